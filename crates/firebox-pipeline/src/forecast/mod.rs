//! The pipeline `forecast`: ingest → windows → train → evaluate → report. A model of several horizons,
//! measured beside what anybody could say without one.

mod config;
mod measure;
mod page;
mod rows;
mod scales;
mod sequences;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use firebox_core::{
    Augmentation, Calendar, Event, Key, Labels, Predicted, SplitRule, Stream, count,
};
use firebox_eval::{ForecastEvaluation, TestScore, loss};
use firebox_export::{Architecture, Task};
use firebox_loader::{HeldOutLoader, LoaderConfig, NormalisedWindows, TrainLoader};
use firebox_models::{StackedLstm, StackedLstmConfig, read_parameters};
use firebox_train::{Data, ForecastSamples, Forecasting, Outcome, Summary, Trained};
use serde_json::Value;

use crate::PipelineConfig;
use crate::bench::{Measured, Probe};
use crate::chain::{Chain, Made, Making, Work, check_names};
use crate::config::{ModelConfig, RunConfig};
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::kept::{Kept, Shown};
use crate::keys::{Keys, json};
use crate::online;
use crate::page::setting_keys;
use crate::pretrain::probe_shape;
use crate::score::{Judge, Score};
use crate::stages::{Run, split_reasons, summary_of, trained_before, training};
use crate::sub::{Sub, sub_trained_before};
use crate::unread::{not_evaluated_by, only_evaluates_by};

pub use config::ForecastConfig;
use sequences::Sequences;
pub(crate) use sequences::{channels, samples};

/// Forecasts of several targets at several horizons.
pub(crate) struct Forecast;

/// Keys of `[evaluate]` that forecasts are measured by.
const EVALUATES_BY: [&str; 5] = ["seed", "confidence", "resamples", "block", "batch_size"];

/// Why windows get noise and are not changed otherwise.
const NOISE_ALONE: &str =
    "what follows a window that was scaled, warped or stretched is no longer what followed it";

/// The table, which this kind of pipeline must have.
fn table(config: &PipelineConfig) -> Result<&ForecastConfig, PipelineError> {
    config.forecast.as_ref().ok_or_else(|| {
        PipelineError::Setting(
            "`pipeline = \"forecast\"` has no table [forecast]\n  name what is forecast, such as [forecast] targets = [\"demand\"]; pipelines/forecast.toml has an example"
                .to_owned(),
        )
    })
}

fn model(config: &PipelineConfig) -> Result<&StackedLstmConfig, PipelineError> {
    match &config.model {
        ModelConfig::StackedLstm(model) => Ok(model),
        other => Err(PipelineError::Setting(format!(
            "`pipeline = \"forecast\"` cannot train [model.{}]\n  write [model.stacked-lstm]",
            other.name()
        ))),
    }
}

impl Chain for Forecast {
    fn check(&self, config: &PipelineConfig) -> Result<(), PipelineError> {
        table(config)?.validate()?;
        model(config)?.validate()?;
        let unused = |what: &str, why: &str| {
            Err(PipelineError::Setting(format!(
                "`pipeline = \"forecast\"` does not use {what}: {why}\n  remove it"
            )))
        };
        if config.labels != Labels::None {
            return unused("`labels`", "its targets are values, declared in [forecast]");
        }
        online::check(config, Some(NOISE_ALONE), "[forecast.masking]")?;
        // A part whose share is not 0 is refused by the split itself where it has no window.
        if let Some(rule @ (SplitRule::Time { test, .. } | SplitRule::Series { test, .. })) =
            config.split
            && test == 0.0
        {
            let rule = rule.name();
            return Err(PipelineError::Setting(format!(
                "`split.{rule}.test` is 0: no forecast could be measured after training\n  \
                 give the test part a share, as with --set split.{rule}.test=0.2"
            )));
        }
        only_evaluates_by(config, &EVALUATES_BY)
    }

    fn check_model(
        &self,
        config: &PipelineConfig,
        device: &ChosenDevice,
    ) -> Result<(), PipelineError> {
        // Names do not depend on the sizes that only the data tells.
        check_names(&config.train, || {
            Ok(model(config)?.init(Stream::new(0, "names"), 1, 0, 1, &device.device)?)
        })
    }

    fn keys(&self, config: &PipelineConfig, device: &ChosenDevice) -> Result<Keys, PipelineError> {
        let series = crate::feed::series_key(config)?;
        let base = Keys::new(&online::read(config), series, &device.arithmetic_of(config)?);
        let forecast = table(config)?;
        let measured = (forecast.seeds, forecast.season);
        let shown = ForecastConfig { seeds: 1, season: None, ..forecast.clone() };
        let (loss, masking) = (shown.loss, shown.masking);
        let shown =
            ForecastConfig { loss: Default::default(), masking: Default::default(), ..shown };
        let mut windows = Key::builder("sequences", 1)
            .upstream("windows", base.windows)
            .field("forecast", json(&shown));
        // What rounding leaves of an even rise was once the scale of its changes.
        if forecast.predict == Predicted::Change {
            windows = windows.field("changes", "above rounding");
        }
        // The window of a whole series was once of its first steps.
        if config.window.whole {
            windows = windows.field("whole", "latest");
        }
        // Series were once compared by their inputs alone.
        let takes_some = forecast.inputs.is_some() || !forecast.statics.is_empty();
        if takes_some && !matches!(config.split, Some(SplitRule::Time { .. })) {
            windows = windows.field("compared", "in all channels");
        }
        let windows = windows.finish();
        let mut training = Key::builder("forecaster", 1)
            .upstream("training", base.training)
            .upstream("windows", windows)
            .field("loss", json(&loss));
        // Left out where nothing is hidden, so that such runs keep their keys.
        if masking.is_on() {
            training = training.field("masking", json(&masking));
        }
        let training = training.finish();
        let evaluation = Key::builder("forecasts", 1)
            .upstream("evaluation", base.evaluation)
            .upstream("training", training)
            .field("measured", json(&measured))
            .finish();
        Ok(Keys { windows, training, evaluation, ..base })
    }

    fn probe(
        &self,
        config: &PipelineConfig,
        probe: Probe<'_>,
        device: &ChosenDevice,
    ) -> Result<Measured, PipelineError> {
        let forecast = table(config)?;
        let [length, all] = probe_shape(config)?;
        let channels = match &forecast.inputs {
            Some(inputs) => inputs.len(),
            None => all.saturating_sub(forecast.statics.len()).max(1),
        };
        let statics = forecast.statics.len() + Calendar::WIDTH * forecast.calendar.len();
        let outputs = forecast.targets.len() * forecast.horizons.len();
        let samples = Arc::new(ForecastSamples {
            statics: vec![0.0; probe.samples() * statics],
            targets: vec![0.0; probe.samples() * outputs],
        });
        let samples = [Arc::clone(&samples), samples];
        let objective = Forecasting::new(samples, statics, outputs, forecast.loss)?;
        let stream = Stream::new(config.run.seed, "weights");
        let model = model(config)?.init(stream, channels, statics, outputs, &device.device)?;
        let model = model.in_precision(probe.precision).recomputed(config.run.recompute);
        probe.run(model, &objective, [length, channels], device)
    }

    fn training_windows(&self, run: &Run<'_>) -> Result<Option<usize>, PipelineError> {
        let sequences = run.sequences(table(run.config)?, &mut 0)?;
        Ok(Some(sequences.train().len()))
    }

    fn slots(&self, config: &PipelineConfig) -> usize {
        online::slots(&config.augment)
    }

    fn recomputes(&self, _: &PipelineConfig) -> bool {
        true
    }

    fn stages(&self, keys: &Keys) -> Vec<(&'static str, Option<Key>)> {
        keys.stages()
    }

    fn make(&self, run: &Run<'_>, work: &mut Work<'_>) -> Result<Making, PipelineError> {
        let config = table(run.config)?;
        let sequences = begin(run, work, config)?;
        let first = run.train_forecaster(&sequences, work, None)?;
        if first.summary.outcome == Outcome::Interrupted {
            return Ok(Making::Interrupted { step: first.summary.steps });
        }
        let trained = said(&sequences, &run.config.augment, config, &first.summary);
        let outcome = first.summary.outcome;
        let mut step = first.summary.steps;
        let mut models = vec![first.model];
        for more in 1..config.seeds {
            let Trained { model, summary } = run.train_more(&sequences, work, more)?;
            step += summary.steps;
            if summary.outcome == Outcome::Interrupted {
                return Ok(Making::Interrupted { step });
            }
            models.push(model);
        }
        let mut evaluated = 0;
        let measured = run.stage("evaluate", Some(run.keys.evaluation), &mut evaluated, || {
            let measured = measure::measure(run, &sequences, &models)?;
            rows::write(&work.path.join(rows::FILE), &sequences, &measured)?;
            let detail = format!("{} test windows", measured.evaluation.windows);
            Ok((measured, false, detail))
        });
        let measured = match measured {
            Ok(measured) => measured,
            // Whatever the evaluation says that it was stopped by, it was stopped.
            Err(_) if run.stop.load(Ordering::SeqCst) => return Ok(Making::Interrupted { step }),
            Err(error) => return Err(error),
        };
        for (name, value) in measured.scores() {
            run.listener.on(&Event::Scored { name, value });
        }
        work.remade += evaluated;
        run.keep_model(work, kept(run, &sequences, &models[0], &trained, measured.scores())?)?;
        let report = page::report(run, work.prepared.name(), &sequences, &measured);
        Ok(Making::Complete(Box::new(Made { report, trained, outcome: outcome.to_string() })))
    }

    fn train_only(
        &self,
        run: &Run<'_>,
        work: &mut Work<'_>,
    ) -> Result<Option<Summary>, PipelineError> {
        let sequences = begin(run, work, table(run.config)?)?;
        if sequences.windows.parts.validation.is_empty() {
            return Err(PipelineError::NoValidation);
        }
        let judge = measure::judge(run, &sequences);
        let trained = run.train_forecaster(&sequences, work, judge.as_ref())?;
        let complete = match trained.summary.outcome {
            Outcome::Interrupted => false,
            Outcome::Finished | Outcome::StoppedEarly => {
                run.score(work, judge.as_ref(), &trained.model)?
            }
        };
        Ok(if complete { summary_of(work.path, run.keys) } else { None })
    }

    fn scores(&self) -> &'static [Score] {
        &[Score::R2]
    }

    fn main_scores(&self, figures: &Value) -> Vec<TestScore> {
        let measured: Option<ForecastEvaluation> = serde_json::from_value(figures.clone()).ok();
        measured.and_then(|measured| measured.main_score()).into_iter().collect()
    }

    /// Those of later seeds are in parts.
    fn own_training(&self, several: bool) -> &'static str {
        if several { "training of the first seed" } else { "" }
    }

    fn unread(&self, config: &PipelineConfig) -> Vec<String> {
        let tables = online::unread(config).into_iter().chain(["labels".to_owned()]);
        tables.chain(not_evaluated_by(&EVALUATES_BY)).collect()
    }
}

/// Reads the data and writes down what follows from it.
fn begin(
    run: &Run<'_>,
    work: &mut Work<'_>,
    config: &ForecastConfig,
) -> Result<Arc<Sequences>, PipelineError> {
    let sequences = run.sequences(config, &mut work.remade)?;
    let reach = sequences.rule().reach();
    work.reasons.extend(split_reasons(run.config, &sequences.windows, reach));
    if let (None, Some((season, why))) = (config.season, sequences.season) {
        work.reasons.push(firebox_eval::Reason {
            key: "forecast.season".to_owned(),
            value: season.to_string(),
            reason: why.to_owned(),
        });
    }
    if let Some(usual) = sequences.too_long {
        work.reasons.push(firebox_eval::Reason {
            key: "forecast.season".to_owned(),
            value: "none".to_owned(),
            reason: format!("no run of training steps is longer than a usual one of {usual}"),
        });
    }
    let source = sequences.source(&run.config.augment, run.config.run.seed)?;
    work.reasons.push(run.placed(source.as_ref())?.reason());
    work.resolved()?;
    Ok(sequences)
}

/// The model of the first seed, for later use. Scores are means over all seeds.
fn kept<'a>(
    run: &Run<'_>,
    sequences: &Sequences,
    forecaster: &StackedLstm,
    trained: &'a str,
    scores: Vec<(String, f64)>,
) -> Result<Kept<'a>, PipelineError> {
    let (rule, windows) = (sequences.rule(), &sequences.windows);
    let shown = Shown::windows(run, windows)?;
    Ok(Kept {
        task: Task::Forecasting,
        architecture: Architecture::StackedLstm {
            config: model(run.config)?.clone(),
            channels: sequences.channels(),
            statics: rule.static_features(),
            outputs: rule.outputs(),
        },
        parameters: read_parameters(forecaster),
        classes: &[],
        trained,
        scores,
        scores_of: match table(run.config)?.seeds {
            1 => String::new(),
            seeds => format!("Means over {seeds} seeds; these weights are those of the first."),
        },
        shown: Shown { forecast: Some(sequences.scaler.clone()), ..shown },
    })
}

/// One line on what was trained.
fn said(
    sequences: &Sequences,
    augment: &Augmentation,
    config: &ForecastConfig,
    summary: &Summary,
) -> String {
    let seeds = match config.seeds {
        1 => String::new(),
        seeds => format!(" of the first of {seeds} seeds"),
    };
    let (windows, slots) = (sequences.train().len(), online::slots(augment));
    let versions = match slots {
        1 => String::new(),
        slots => format!(" ({} with augmented versions)", windows * slots),
    };
    format!(
        "trained on {windows} windows{versions}: {} in {}{seeds}, {}",
        count(summary.steps, "step"),
        count(summary.epochs, "epoch"),
        summary.outcome
    )
}

impl Run<'_> {
    /// The model as it is initialised from a seed.
    fn forecaster(&self, sequences: &Sequences, seed: u64) -> Result<StackedLstm, PipelineError> {
        let rule = sequences.rule();
        let (channels, statics) = (sequences.channels(), rule.static_features());
        let (stream, device) = (Stream::new(seed, "weights"), &self.device.device);
        let model = model(self.config)?.init(stream, channels, statics, rule.outputs(), device)?;
        let RunConfig { precision, recompute, .. } = self.config.run;
        Ok(model.in_precision(precision).recomputed(recompute))
    }

    /// Trains in the run's own folder, or reads back what was trained.
    fn train_forecaster(
        &self,
        sequences: &Sequences,
        work: &mut Work<'_>,
        judge: Option<&Judge<'_, StackedLstm>>,
    ) -> Result<Trained<StackedLstm>, PipelineError> {
        let trained_before = trained_before(work.path);
        self.stage("train", Some(self.keys.training), &mut work.remade, || {
            let seed = self.config.run.seed;
            let parts = Parts::new(self, sequences, self.loader())?;
            let model = self.forecaster(sequences, seed)?;
            let (trained, detail) =
                self.train_own(work.path, model, &parts.objective, parts.data(), judge)?;
            Ok((trained, trained_before, detail))
        })
    }

    /// Trains with a later seed, in a folder of its own.
    fn train_more(
        &self,
        sequences: &Sequences,
        work: &mut Work<'_>,
        more: u64,
    ) -> Result<Trained<StackedLstm>, PipelineError> {
        let seed = self.config.run.seed.wrapping_add(more);
        let key = Key::builder("seed", 1)
            .upstream("training", self.keys.training)
            .field("seed", seed.to_le_bytes())
            .finish();
        let name = format!("seed-{seed}");
        let stage = format!("train, seed {seed}");
        let work = &*work;
        let trained_before = sub_trained_before(work, &name);
        self.stage(&stage, Some(key), &mut 0, || {
            let parts = Parts::new(self, sequences, LoaderConfig { seed, ..self.loader() })?;
            let model = self.forecaster(sequences, seed)?;
            let (batch_size, keys) = (self.config.loader.batch_size, setting_keys(self.config));
            let sub = Sub { name: &name, key, seed, batch_size, keys };
            let config = training(self.config);
            let trained =
                self.train_sub(work, &sub, model, &parts.objective, parts.data(), &config)?;
            let best = trained.summary.best.map_or(String::new(), |best| {
                format!("best loss {} after epoch {}", loss(best.loss), best.epoch)
            });
            Ok((trained, trained_before, best))
        })
    }
}

/// Steps of a batch of validation windows. A choice: as many as a training of usual size has in a batch.
const VALIDATION_STEPS: usize = 1 << 14;

/// Windows of a batch of validation windows: not fewer than in training, and more where these are few and
/// short. Nothing is kept for gradients, and few large batches take less time than many small ones.
fn validation_batch(training: usize, length: usize) -> usize {
    training.max((VALIDATION_STEPS / length.max(1)).min(512))
}

/// What a training reads.
struct Parts {
    train: TrainLoader,
    validation: Option<HeldOutLoader>,
    objective: Forecasting,
}

impl Parts {
    fn new(
        run: &Run<'_>,
        sequences: &Sequences,
        loader: LoaderConfig,
    ) -> Result<Self, PipelineError> {
        let normaliser = || sequences.windows.normaliser.clone();
        // Each seed has versions of its own.
        let augment = &run.config.augment;
        let windows = sequences.source(augment, loader.seed)?;
        let key = online::samples_key(run.keys.windows, augment, loader.seed);
        let train = run.placed_loader(windows, Some(key), loader)?;
        let train = train.with_masking(table(run.config)?.masking)?;
        let validation = &sequences.windows.parts.validation;
        let validation = match validation.is_empty() {
            true => None,
            false => {
                let windows = NormalisedWindows::new(validation.clone(), normaliser());
                let batch_size = validation_batch(loader.batch_size, run.config.window.length);
                let loader = LoaderConfig { batch_size, ..loader };
                Some(run.validation_loader(
                    Arc::new(windows),
                    &train,
                    Some(run.keys.windows),
                    loader,
                )?)
            }
        };
        let rule = sequences.rule();
        let [of_train, of_validation, _] = &sequences.samples;
        let objective = Forecasting::new(
            [Arc::clone(of_train), Arc::clone(of_validation)],
            rule.static_features(),
            rule.outputs(),
            table(run.config)?.loss,
        )?;
        let objective = objective.of_versions(online::slots(augment));
        Ok(Self { train, validation, objective })
    }

    fn data(&self) -> Data<'_> {
        Data { train: &self.train, validation: self.validation.as_ref() }
    }
}
