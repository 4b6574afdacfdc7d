//! The evaluation of a forecaster: test windows in the order of time, forecast by the model and by
//! everything that it is measured beside.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use firebox_core::{Event, HeldOutWindows, SeriesSet, Stream, Window, WindowList, count};
use firebox_eval::{
    BlockOf, Estimate, ForecastData, ForecastEvaluation, ForecastOutput, Forecaster, Forecasts,
    Linear, LinearData, Resampling, block_of_overlap, evaluate_forecasts, last_value, mean_r2,
    seasonal_naive, seasonal_scale, size_of_units,
};
use firebox_kernels::KeptWeights;
use firebox_loader::{HeldOutLoader, LoaderConfig, NormalisedWindows, Source};
use firebox_models::StackedLstm;
use firebox_train::ForecastSamples;

use super::sequences::Sequences;
use crate::error::PipelineError;
use crate::score::Judge;
use crate::stages::Run;
use crate::together::{is_apart, numbers_of_units};

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
    let resampling = |hanging: &Hanging| Resampling {
        stream: Stream::new(config.seed, "bootstrap"),
        resamples: config.resamples,
        block: hanging.block,
        units: hanging.units.clone(),
        whole_units: !hanging.units.is_empty(),
        confidence: config.confidence,
    };
    let count = outputs.len();
    let evaluated = |hanging: &Hanging| -> Result<ForecastEvaluation, PipelineError> {
        let (truth, scales) = (hanging.arranged(truth, count), hanging.arranged(&scales, count));
        let of = |own: &Forecasts| {
            let runs = own.runs.iter().map(|run| hanging.arranged(run, count).into_owned());
            Forecasts { forecaster: own.forecaster, runs: runs.collect() }
        };
        let forecasts: Cow<'_, [Forecasts]> = match &hanging.order {
            None => forecasts.into(),
            Some(_) => forecasts.iter().map(of).collect::<Vec<_>>().into(),
        };
        let data = ForecastData { outputs: &outputs, truth: &truth, scales: &scales };
        let evaluation = evaluate_forecasts(&data, &forecasts, &resampling(hanging))?;
        Ok(ForecastEvaluation { block_of: hanging.of, ..evaluation })
    };
    if let Some(block) = config.block {
        return evaluated(&Hanging { block, of: BlockOf::Setting, order: None, units: vec![] });
    }
    let evaluation = evaluated(&in_time(run, sequences, windows))?;
    match by_units(sequences, windows) {
        Some(units) => Ok(wider(evaluation, evaluated(&units)?)),
        None => Ok(evaluation),
    }
}

/// Two evaluations of the same forecasts, of which the one says what windows hang together by moments and the other by units:
/// intervals that hold both, and what is said of the one with fewer independent windows.
fn wider(one: ForecastEvaluation, other: ForecastEvaluation) -> ForecastEvaluation {
    let join = |own: &mut Estimate, other: Estimate| {
        let is_one = own.low.is_nan() || other.low.is_nan();
        (own.low, own.high) = match is_one {
            true => (f64::NAN, f64::NAN),
            false => (own.low.min(other.low), own.high.max(other.high)),
        };
    };
    let (mut fewer, more) = match one.independent() <= other.independent() {
        true => (one, other),
        false => (other, one),
    };
    for (own, other) in fewer.scores.iter_mut().zip(more.scores) {
        join(&mut own.mae, other.mae);
        join(&mut own.rmse, other.rmse);
        join(&mut own.r2, other.r2);
        join(&mut own.mase, other.mase);
    }
    for (own, other) in fewer.gains.iter_mut().zip(more.gains) {
        join(&mut own.gain, other.gain);
        if let (Some(own), Some(other)) = (&mut own.among_all, other.among_all) {
            join(own, other);
        }
    }
    fewer
}

/// Windows that hang together, which intervals have to know.
#[derive(Debug)]
struct Hanging {
    /// How many follow on one another.
    block: usize,
    of: BlockOf,
    /// In this order; none: in that of time.
    order: Option<Vec<usize>>,
    /// The unit of each window in that order, where whole units are drawn in place of blocks. Empty: they are not.
    units: Vec<u32>,
}

impl Hanging {
    /// Values of windows in that order, `[window, output]`.
    fn arranged<'a>(&self, values: &'a [f64], outputs: usize) -> Cow<'a, [f64]> {
        let Some(order) = &self.order else { return values.into() };
        let of = |window: &usize| values[window * outputs..(window + 1) * outputs].iter().copied();
        order.iter().flat_map(of).collect::<Vec<_>>().into()
    }
}

/// Consecutive windows, of all series that go on at once, that are drawn together: as many as the overlap of those that share
/// a step of a window or of a target takes, and at least a season of them, because errors hang together with the time of the
/// day. It is not made smaller where a season leaves few blocks: intervals would be too narrow, and there are none then.
fn in_time(run: &Run<'_>, sequences: &Sequences, windows: &WindowList) -> Hanging {
    let window = &run.config.window;
    // Without a clock, nothing is known of the times of one series beside another.
    let has_clock = sequences.windows.ingested.checks.span.is_some();
    let order = (!has_clock).then(|| ordered(windows, |series| series as usize));
    if window.whole {
        return Hanging { block: 1, of: BlockOf::Overlap, order, units: vec![] };
    }
    // Where gaps cut what has days, errors still hang together with the time of the day.
    let has = |season: &usize| sequences.set().series().iter().any(|own| own.len() > *season);
    let season = sequences.too_long.filter(has).unwrap_or_else(|| sequences.steps_of_season());
    let own = window.length + sequences.rule().reach();
    let beside = if has_clock { at_once(windows, sequences.set()) } else { 1 };
    let of_a_series = windows.len() as f64 / beside as f64;
    let (block, of) = block_in_time([season, own], window.stride, of_a_series);
    Hanging { block: block * beside, of, order, units: vec![] }
}

/// How many of the windows of one series are drawn together, and why: where a season has so many steps, a window with its
/// targets `own`, and one begins every `stride`.
fn block_in_time([season, own]: [usize; 2], stride: usize, windows: f64) -> (usize, BlockOf) {
    let overlap = block_of_overlap(own.div_ceil(stride), windows);
    match season.div_ceil(stride) {
        seasonal if seasonal > overlap => (seasonal, BlockOf::Season(season)),
        _ => (overlap, BlockOf::Overlap),
    }
}

/// Where series, or groups of them, are tested on that were not trained on, all windows of one of them: what holds for those
/// says nothing of other series.
fn by_units(sequences: &Sequences, windows: &WindowList) -> Option<Hanging> {
    let set = sequences.set();
    is_apart(&sequences.windows.rule, set).then(|| {
        let units = set.units();
        let unit = |series: u32| units[series as usize];
        let order = ordered(windows, unit);
        let numbers = numbers_of_units(windows, unit);
        let own: Vec<u32> = order.iter().map(|window| numbers[*window]).collect();
        let block = size_of_units(&own);
        Hanging { block, of: BlockOf::Units, order: Some(order), units: own }
    })
}

/// Windows by their units, and those of one series behind each other.
fn ordered(windows: &WindowList, unit: impl Fn(u32) -> usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..windows.len()).collect();
    order.sort_by_cached_key(|at| {
        let window = windows.at(*at);
        (unit(window.series), window.series, window.start)
    });
    order
}

/// Series whose windows go on at the moment of a window, its own among them: the mean over all windows.
fn at_once(windows: &WindowList, set: &SeriesSet) -> usize {
    let start = |window: &Window| set.series()[window.series as usize].time[window.start as usize];
    let mut ranges = BTreeMap::<u32, [i64; 2]>::new();
    for window in windows {
        let (own, range) = (start(&window), ranges.entry(window.series));
        let [first, last] = range.or_insert([own; 2]);
        (*first, *last) = (own.min(*first), own.max(*last));
    }
    let [mut firsts, mut lasts] =
        [0, 1].map(|side| ranges.values().map(|range| range[side]).collect::<Vec<i64>>());
    firsts.sort_unstable();
    lasts.sort_unstable();
    let beside = |window: Window| {
        let own = start(&window);
        let begun = firsts.partition_point(|first| *first <= own);
        begun - lasts.partition_point(|last| *last < own)
    };
    let all: usize = windows.iter().map(beside).sum();
    all.div_ceil(windows.len().max(1)).max(1)
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
    let told = |done: usize, total: usize| {
        run.listener.on(&Event::Progress {
            stage: "evaluate".to_owned(),
            done: done as u64,
            total: total as u64,
            unit: "penalties of the linear model".to_owned(),
        });
    };
    let fitted = Linear::fit(&data(0), Some(&data(1)), run.stop, &told)?;
    let Some(fitted) = fitted else { return Ok(None) };
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

/// Windows as rows of features: their values, the latest last, whatever their length, then the static features.
struct Rows<'a> {
    source: &'a dyn Source,
    samples: &'a ForecastSamples,
    statics: usize,
    width: usize,
}

impl<'a> Rows<'a> {
    fn new(sequences: &Sequences, source: &'a dyn Source, samples: &'a ForecastSamples) -> Self {
        let statics = sequences.rule().static_features();
        // All parts have the features of the training windows.
        let channels = sequences.channels();
        let values = sequences.train().longest() * channels;
        let room = MOST_FEATURES.saturating_sub(statics) / channels * channels;
        Self { source, samples, statics, width: values.min(room) + statics }
    }

    fn read(&self, sample: usize, out: &mut [f64]) {
        let [time, channels] = self.source.shape();
        let mut window = vec![0.0; time * channels];
        // Windows in memory are always read; a shorter one has zeros, the mean, before it.
        let steps = self.source.read(sample, &mut window).map_or(0, |read| read.length as usize);
        let (values, statics) = out.split_at_mut(self.width - self.statics);
        latest_last(&window[..steps.min(time) * channels], values);
        let own = &self.samples.statics[sample * self.statics..(sample + 1) * self.statics];
        statics.iter_mut().zip(own).for_each(|(out, value)| *out = f64::from(*value));
    }
}

/// Writes values so that the last one is last, with zeros before the first, or without those that there is no room for.
fn latest_last(values: &[f32], out: &mut [f64]) {
    let count = values.len().min(out.len());
    let (before, own) = out.split_at_mut(out.len() - count);
    before.fill(0.0);
    let latest = &values[values.len() - count..];
    own.iter_mut().zip(latest).for_each(|(out, value)| *out = f64::from(*value));
}

#[cfg(test)]
mod tests {
    use firebox_core::{Channel, Labels, Role, Series, SplitRule, WindowRule, split};
    use firebox_eval::ForecastScore;

    use super::*;

    #[test]
    fn the_latest_value_has_the_same_place_whatever_the_length() {
        let mut out = [9.0; 4];
        latest_last(&[1.0, 2.0], &mut out);
        assert_eq!(out, [0.0, 0.0, 1.0, 2.0]);
        latest_last(&[1.0, 2.0, 3.0, 4.0, 5.0], &mut out);
        assert_eq!(out, [2.0, 3.0, 4.0, 5.0]);
        latest_last(&[], &mut out);
        assert_eq!(out, [0.0; 4]);
    }

    #[test]
    fn series_are_counted_that_go_on_at_once() {
        let count = |begins: &[i64]| {
            let series = begins.iter().enumerate().map(|(index, begin)| {
                let values = (0..100).map(f64::from).collect();
                Series::regular(format!("s{index}"), begin * 60_000_000, 60_000_000, values, 1)
            });
            let channels = vec![Channel::new("x", Role::Other)];
            let set = Arc::new(SeriesSet::new(channels, vec![], series.collect()).unwrap());
            let rule = WindowRule { length: 8, stride: 2, whole: false };
            let parts = split(&set, &rule, &SplitRule::time(0.0, 0.0), &Labels::None).unwrap();
            at_once(parts.train.windows(), &set)
        };
        assert_eq!(count(&[0]), 1);
        assert_eq!(count(&[0, 0, 0]), 3);
        assert_eq!(count(&[0, 200, 400]), 1, "one after the other");
        assert_eq!(count(&[0, 50]), 2);
    }

    #[test]
    fn a_block_is_of_a_season_only_if_the_overlap_takes_no_more() {
        // (13 − 1/13)² · 2000 / 6 = 55 669 = 38.2³, and of 300 windows 25 blocks of twelve.
        assert_eq!(block_in_time([24, 13], 1, 2000.0), (38, BlockOf::Overlap));
        assert_eq!(block_in_time([24, 13], 1, 300.0), (24, BlockOf::Season(24)));
        // Four windows share a step: of 60 of them 25 blocks of two, so four.
        assert_eq!(block_in_time([24, 13], 4, 60.0), (6, BlockOf::Season(24)));
        assert_eq!(block_in_time([0, 13], 13, 300.0), (1, BlockOf::Overlap));
    }

    #[test]
    fn an_interval_by_moments_and_one_by_units_are_both_held() {
        let estimate = |low, high| Estimate { value: 1.0, low, high };
        let evaluation = |block, low, high| {
            let mae = estimate(low, high);
            let none = estimate(f64::NAN, f64::NAN);
            let score = ForecastScore {
                forecaster: Forecaster::Model,
                output: None,
                mae,
                rmse: mae,
                r2: none,
                mase: mae,
                runs: vec![1.0],
            };
            ForecastEvaluation {
                outputs: vec![],
                windows: 100,
                block,
                units: (block > 5).then_some(100 / block),
                measured: None,
                block_of: if block > 5 { BlockOf::Units } else { BlockOf::Overlap },
                by_scale: false,
                confidence: 0.95,
                scores: vec![score],
                gains: vec![],
            }
        };
        let found = wider(evaluation(5, 0.4, 1.1), evaluation(20, 0.7, 1.4));
        assert_eq!((found.block, found.block_of), (20, BlockOf::Units));
        assert_eq!(found.scores[0].mae, estimate(0.4, 1.4));
        assert!(found.scores[0].r2.low.is_nan() && found.scores[0].r2.high.is_nan());
        let none = wider(evaluation(5, 0.4, 1.1), evaluation(50, f64::NAN, f64::NAN));
        assert!(none.scores[0].mae.low.is_nan(), "too few units for an interval");
    }

    #[test]
    fn windows_are_arranged_by_their_units() {
        let window = |series, start| Window { series, start, length: 2, label: None };
        let list: WindowList =
            [window(0, 0), window(1, 0), window(2, 0), window(0, 1), window(2, 1)]
                .into_iter()
                .collect();
        // The first and the last series are of one unit.
        let unit = |series: u32| usize::from(series == 1);
        let order = ordered(&list, unit);
        assert_eq!(numbers_of_units(&list, unit), [0, 1, 0, 0, 0]);
        let hanging = Hanging { block: 4, of: BlockOf::Units, order: Some(order), units: vec![] };
        let values: Vec<f64> = (0..10).map(f64::from).collect();
        let expected = [0.0, 1.0, 6.0, 7.0, 4.0, 5.0, 8.0, 9.0, 2.0, 3.0];
        assert_eq!(*hanging.arranged(&values, 2), expected);
    }

    #[test]
    fn targets_that_nobody_measured_are_told_of() {
        assert_eq!(not_measured(&[1.0, 2.0]), None);
        let said = not_measured(&[1.0, f64::NAN, 2.0, 3.0]).unwrap();
        assert!(said.starts_with("1 of 4 values that test windows"), "{said}");
        assert!(said.contains("(25.0 %) were put in by `data.checks`"), "{said}");
    }
}
