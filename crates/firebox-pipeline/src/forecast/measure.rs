//! The evaluation of a forecaster: test windows in the order of time, forecast by the model and by
//! everything that it is measured beside.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use firebox_core::{Event, HeldOutWindows, Stream, Window, WindowList, count};
use firebox_eval::{
    BlockOf, ForecastData, ForecastEvaluation, ForecastOutput, Forecaster, Forecasts, Linear,
    LinearData, Resampling, evaluate_forecasts, last_value, mean_r2, seasonal_naive,
    seasonal_scale,
};
use firebox_kernels::KeptWeights;
use firebox_loader::{HeldOutLoader, LoaderConfig, NormalisedWindows, Source};
use firebox_models::StackedLstm;
use firebox_train::ForecastSamples;

use super::sequences::Sequences;
use crate::error::PipelineError;
use crate::measure::units_of;
use crate::score::Judge;
use crate::stages::Run;

/// Features of the linear model at most: beyond them it sees the latest steps of a window only.
const MOST_FEATURES: usize = 1_500;

/// What was measured.
pub(super) struct Measured {
    pub(super) evaluation: ForecastEvaluation,
    /// Test windows in the order of time.
    pub(super) windows: WindowList,
    /// True values of each window, `[window, output]`.
    pub(super) truth: Vec<f64>,
    /// Of each forecaster, the model first.
    pub(super) forecasts: Vec<Forecasts>,
    /// What absolute errors are divided by for MASE, `[series, target]`; NaN where there is none.
    pub(super) scales: Vec<f64>,
}

impl Measured {
    /// What trackers compare runs by.
    pub(super) fn scores(&self) -> Vec<(String, f64)> {
        let mut scores = vec![];
        for (place, output) in self.evaluation.outputs.iter().enumerate() {
            if let Some(score) = self.evaluation.score(Forecaster::Model, Some(place)) {
                let name = format!("{}+{}", output.target, output.horizon);
                scores.push((format!("test/mae/{name}"), score.mae.value));
                scores.push((format!("test/r2/{name}"), score.r2.value));
            }
        }
        let all = self.evaluation.score(Forecaster::Model, None);
        scores.extend(all.map(|all| ("test/mase".to_owned(), all.mase.value)));
        scores.retain(|(_, value)| value.is_finite());
        scores
    }
}

/// Scores forecasters by their R² on validation windows, if a search wants that.
pub(super) fn judge<'a>(
    run: &'a Run<'_>,
    sequences: &'a Sequences,
) -> Option<Judge<'a, StackedLstm>> {
    let (set, rule) = (sequences.set(), sequences.rule());
    let windows = &sequences.windows.parts.validation;
    let outputs = rule.outputs();
    let mut truth = vec![0.0; windows.len() * outputs];
    for (window, out) in windows.windows().iter().zip(truth.chunks_exact_mut(outputs)) {
        rule.truth(set, &window, out);
    }
    let of = move |model: &StackedLstm| -> Result<Vec<f64>, PipelineError> {
        let found = forecast(run, sequences, model, Held::Validation)?;
        // There is one score of forecasts.
        Ok(run.wanted.scores.iter().map(|_| mean_r2(&truth, &found, outputs)).collect())
    };
    let wanted = run.wanted;
    (!wanted.scores.is_empty()).then(|| Judge { wanted, of: Box::new(of) })
}

/// Measures trained models, one for each seed.
pub(super) fn measure(
    run: &Run<'_>,
    sequences: &Sequences,
    models: &[StackedLstm],
) -> Result<Measured, PipelineError> {
    let (set, rule, test) = (sequences.set(), sequences.rule(), sequences.test());
    if test.is_empty() {
        return Err(firebox_eval::EvalError::NoForecast.into());
    }
    // Of several series the windows of one time stand side by side.
    let start = |window: Window| set.series()[window.series as usize].time[window.start as usize];
    let mut order: Vec<usize> = (0..test.len()).collect();
    order.sort_by_cached_key(|at| {
        let window = test.windows().at(*at);
        (start(window), window.series)
    });
    let windows: WindowList = order.iter().map(|at| test.windows().at(*at)).collect();
    let outputs = rule.outputs();
    let sorted = |values: &[f64]| -> Vec<f64> {
        order
            .iter()
            .flat_map(|at| values[at * outputs..(at + 1) * outputs].iter().copied())
            .collect()
    };
    let mut runs = vec![];
    for model in models {
        runs.push(sorted(&forecast(run, sequences, model, Held::Test)?));
    }
    let mut forecasts = vec![Forecasts { forecaster: Forecaster::Model, runs }];
    let mut add = |forecaster, run| forecasts.push(Forecasts { forecaster, runs: vec![run] });
    add(Forecaster::LastValue, last_value(set, rule, &windows));
    if let Some((season, _)) = sequences.season {
        let (values, lacking) = seasonal_naive(set, rule, &windows, season);
        if lacking > 0 {
            let message = format!(
                "{lacking} of {} test windows have no value of a season of {season} steps before a target; the seasonal naive forecast takes the last value there",
                windows.len()
            );
            run.listener.on(&Event::Warning { message });
        }
        add(Forecaster::SeasonalNaive(season), values);
    }
    if let Some(linear) = linear(run, sequences)? {
        add(Forecaster::Linear, sorted(&linear));
    }
    let mut truth = vec![0.0; windows.len() * outputs];
    for (window, out) in windows.iter().zip(truth.chunks_exact_mut(outputs)) {
        rule.truth(set, &window, out);
    }
    if let Some(message) = not_measured(&truth) {
        run.listener.on(&Event::Warning { message });
    }
    let scales = seasonal_scale(set, rule, sequences.train(), sequences.steps_of_season());
    let evaluation = evaluate(run, sequences, &windows, &truth, &forecasts, &scales)?;
    Ok(Measured { evaluation, windows, truth, forecasts, scales })
}

/// What is said of targets that were not measured.
fn not_measured(truth: &[f64]) -> Option<String> {
    let none = truth.iter().filter(|value| value.is_nan()).count();
    (none > 0).then(|| {
        format!(
            "{none} of {} that test windows are measured by ({:.1} %) were put in by `data.checks`: no forecast of them counts, here and in training",
            count(truth.len() as u64, "value"),
            100.0 * none as f64 / truth.len() as f64
        )
    })
}

fn evaluate(
    run: &Run<'_>,
    sequences: &Sequences,
    windows: &WindowList,
    truth: &[f64],
    forecasts: &[Forecasts],
    by_series: &[f64],
) -> Result<ForecastEvaluation, PipelineError> {
    let (set, rule) = (sequences.set(), sequences.rule());
    let targets = rule.targets.len();
    let scales: Vec<f64> = windows
        .iter()
        .flat_map(|window| {
            let from = window.series as usize * targets;
            by_series[from..from + targets].repeat(rule.horizons.len())
        })
        .collect();
    let outputs: Vec<ForecastOutput> = rule
        .horizons
        .iter()
        .flat_map(|horizon| rule.targets.iter().map(move |target| (*horizon, *target)))
        .map(|(horizon, target)| ForecastOutput {
            target: set.channels()[target].name.clone(),
            horizon,
        })
        .collect();
    let config = &run.config.evaluate;
    let (block, block_of) = match config.block {
        Some(block) => (block, BlockOf::Setting),
        None => block(run, sequences, windows),
    };
    let resampling = Resampling {
        stream: Stream::new(config.seed, "bootstrap"),
        resamples: config.resamples,
        block,
        units: vec![],
        confidence: config.confidence,
    };
    let data = ForecastData { outputs: &outputs, truth, scales: &scales };
    let evaluation = evaluate_forecasts(&data, forecasts, &resampling)?;
    Ok(ForecastEvaluation { block_of, ..evaluation })
}

/// Consecutive windows, of all series, that are drawn together: those that share a step of a window or
/// of a target, and at least a season of them, because errors hang together with the time of the day. It is not made
/// smaller where that leaves few blocks: intervals would be too narrow, and there are none then.
fn block(run: &Run<'_>, sequences: &Sequences, windows: &WindowList) -> (usize, BlockOf) {
    let window = &run.config.window;
    let series = units_of(windows, |series| series as usize);
    if window.whole {
        return (series.min(1), BlockOf::Overlap);
    }
    let (season, own) = (sequences.steps_of_season(), window.length + sequences.rule().reach());
    let of = if season > own { BlockOf::Season(season) } else { BlockOf::Overlap };
    (own.max(season).div_ceil(window.stride) * series, of)
}

fn normalised(
    sequences: &Sequences,
    windows: &HeldOutWindows,
) -> NormalisedWindows<HeldOutWindows> {
    NormalisedWindows::new(windows.clone(), sequences.windows.normaliser.clone())
}

/// Windows that were held out of training.
#[derive(Clone, Copy)]
enum Held {
    Validation,
    Test,
}

/// Forecasts of held-out windows in their own order and units, `[window, output]`.
fn forecast(
    run: &Run<'_>,
    sequences: &Sequences,
    model: &StackedLstm,
    held: Held,
) -> Result<Vec<f64>, PipelineError> {
    let (set, rule) = (sequences.set(), sequences.rule());
    let [_, of_validation, of_test] = &sequences.samples;
    let (windows, samples) = match held {
        Held::Validation => (&sequences.windows.parts.validation, of_validation),
        Held::Test => (sequences.test(), of_test),
    };
    let (outputs, statics) = (rule.outputs(), rule.static_features());
    let device = &run.device.device;
    let batch_size = run.config.evaluate.batch_size;
    let loader = LoaderConfig { batch_size, ..run.loader() };
    let source = Arc::new(normalised(sequences, windows));
    let loader = HeldOutLoader::new(source, loader, device.clone())?;
    run.device.run(|| {
        let mut all = vec![0.0; windows.len() * outputs];
        let weights = KeptWeights::new();
        for batch in loader.batches() {
            if run.stop.load(Ordering::Relaxed) {
                return Err(PipelineError::Interrupted);
            }
            let batch = batch?;
            let of_batch = samples.statics_of(&batch.indices, statics, device);
            let found = weights
                .during(|| model.forecast(batch.inputs, Some(&batch.lengths), of_batch, None));
            let found: Vec<f32> = found.into_data().iter::<f32>().collect();
            for (index, found) in batch.indices.iter().zip(found.chunks_exact(outputs)) {
                let out = &mut all[index * outputs..(index + 1) * outputs];
                sequences.scaler.restore(set, &windows.windows().at(*index), found, out);
            }
        }
        Ok(all)
    })
}

/// Forecasts of the linear model in the same order and units; `None` where nothing can be fitted.
fn linear(run: &Run<'_>, sequences: &Sequences) -> Result<Option<Vec<f64>>, PipelineError> {
    let parts = &sequences.windows.parts;
    let normaliser = || sequences.windows.normaliser.clone();
    let train = NormalisedWindows::new(parts.train.clone(), normaliser());
    let validation = normalised(sequences, &parts.validation);
    let test = normalised(sequences, &parts.test);
    let [of_train, of_validation, of_test] = &sequences.samples;
    let rows = [
        Rows::new(sequences, &train, of_train),
        Rows::new(sequences, &validation, of_validation),
        Rows::new(sequences, &test, of_test),
    ];
    let readers =
        rows.each_ref().map(|rows| move |sample: usize, out: &mut [f64]| rows.read(sample, out));
    let data = |place: usize| LinearData {
        samples: rows[place].source.len(),
        width: rows[place].width,
        features: &readers[place],
        targets: &rows[place].samples.targets,
    };
    let Some(fitted) = Linear::fit(&data(0), Some(&data(1))) else { return Ok(None) };
    if run.stop.load(Ordering::Relaxed) {
        return Err(PipelineError::Interrupted);
    }
    let outputs = sequences.rule().outputs();
    let found = fitted.predict(&data(2));
    let mut all = vec![0.0; found.len()];
    for (at, window) in sequences.test().windows().iter().enumerate() {
        let place = at * outputs..(at + 1) * outputs;
        let scaled: Vec<f32> = found[place.clone()].iter().map(|value| *value as f32).collect();
        sequences.scaler.restore(sequences.set(), &window, &scaled, &mut all[place]);
    }
    Ok(Some(all))
}

/// Windows as rows of features: their values, the latest last, then the static features.
struct Rows<'a> {
    source: &'a dyn Source,
    samples: &'a ForecastSamples,
    statics: usize,
    /// Values left out at the beginning of a window.
    skipped: usize,
    width: usize,
}

impl<'a> Rows<'a> {
    fn new(sequences: &Sequences, source: &'a dyn Source, samples: &'a ForecastSamples) -> Self {
        let statics = sequences.rule().static_features();
        // All parts have the features of the training windows.
        let channels = sequences.channels();
        let values = sequences.train().longest() * channels;
        let room = MOST_FEATURES.saturating_sub(statics) / channels * channels;
        let skipped = values.saturating_sub(room);
        Self { source, samples, statics, skipped, width: values - skipped + statics }
    }

    fn read(&self, sample: usize, out: &mut [f64]) {
        let [time, channels] = self.source.shape();
        let mut window = vec![0.0; time * channels];
        // Windows in memory are always read; a shorter one leaves zeros, the mean, behind it.
        let _ = self.source.read(sample, &mut window);
        let (values, statics) = out.split_at_mut(self.width - self.statics);
        let shown = window.iter().skip(self.skipped);
        values.iter_mut().zip(shown).for_each(|(out, value)| *out = f64::from(*value));
        let own = &self.samples.statics[sample * self.statics..(sample + 1) * self.statics];
        statics.iter_mut().zip(own).for_each(|(out, value)| *out = f64::from(*value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_that_nobody_measured_are_told_of() {
        assert_eq!(not_measured(&[1.0, 2.0]), None);
        let said = not_measured(&[1.0, f64::NAN, 2.0, 3.0]).unwrap();
        assert!(said.starts_with("1 of 4 values that test windows"), "{said}");
        assert!(said.contains("(25.0 %) were put in by `data.checks`"), "{said}");
    }
}
