//! The pipeline `multitimeframe`, reference system R3: ingest → windows in walk-forward folds → train
//! several models on each fold → evaluate beside baselines → report.
//!
//! Every training has a folder of its own, `parts/fold-1/lstm`, and goes on where it was stopped.

mod baselines;
mod config;
mod page;
mod train;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::Ordering;

use firebox_core::{
    Event, Fold, Key, Labels, WindowList, count, outliers, unchanging_channels, walk_forward,
};
use firebox_data::Ingested;
use firebox_eval::{Contender, Contest, Metric, Standing, TestScore, contest};
use firebox_export::Task;
use firebox_train::{AdamWConfig, Optimizer, SgdConfig};
use serde_json::Value;

use crate::bench::{Measured, Probe};
use crate::chain::{Chain, Made, Making, Work};
use crate::config::{LoaderTable, ModelConfig};
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::filled::in_labels;
use crate::kept::{Kept, MODEL, MODELS, Shown};
use crate::keys::{Keys, json, learnt_by, ordered};
use crate::online;
use crate::stages::Run;
use crate::test_table::{FILE, Said, TestTable};
use crate::together::in_time;
use crate::unread::{not_evaluated_by, only_evaluates_by};
use crate::{PipelineConfig, WindowConfig};

pub use config::{LstmTable, MlpTable, ModelName, MultitimeframeConfig, TransformerTable};

/// Several classifiers on the same walk-forward folds.
pub(crate) struct Multitimeframe;

/// Keys of `[evaluate]` that models and baselines are measured by.
const EVALUATES_BY: [&str; 7] =
    ["seed", "metric", "confidence", "resamples", "block", "train_limit", "probe"];

/// Tables and keys that are refused, or have a place for each model.
const UNREAD: [&str; 5] = [
    "model",
    "loader.batch_size",
    "loader.tokens",
    "train.optimizer.adamw.learning_rate",
    "train.optimizer.sgd.learning_rate",
];

impl Chain for Multitimeframe {
    fn check(&self, config: &PipelineConfig) -> Result<(), PipelineError> {
        let refuse =
            |what: &str, way_out: &str| Err(PipelineError::Setting(format!("{what}\n  {way_out}")));
        if config.split.is_some() {
            let what = "[split] divides once, and `multitimeframe` divides into folds";
            return refuse(what, "remove it, and set [multitimeframe.folds]");
        }
        if json(&config.model) != json(&ModelConfig::default()) {
            let what = "[model] names one model, and `multitimeframe` trains several";
            return refuse(what, "remove it, and set `multitimeframe.models` and their tables");
        }
        online::check(config, None, "[multitimeframe.masking] and [multitimeframe.mix]")?;
        let optimizer = &config.train.optimizer;
        let usual = match optimizer {
            Optimizer::AdamW(_) => Optimizer::AdamW(AdamWConfig::default()),
            Optimizer::Sgd(_) => Optimizer::Sgd(SgdConfig::default()),
        };
        if optimizer.learning_rate() != usual.learning_rate() {
            let what = "`train.optimizer` has a learning rate, and `multitimeframe` has one for each model";
            return refuse(
                what,
                "leave it out, and set multitimeframe.lstm.learning_rate, or that of `transformer` or `mlp`",
            );
        }
        let loader = LoaderTable::default();
        if config.loader.batch_size != loader.batch_size || config.loader.tokens != loader.tokens {
            let what = "`loader.batch_size` or `loader.tokens` is set, and `multitimeframe` has batches of a size for each model";
            return refuse(
                what,
                "leave them out, and set multitimeframe.lstm.batch_size, or that of `transformer` or `mlp`",
            );
        }
        if config.labels == Labels::None {
            let what = "`multitimeframe` learns classes, and `labels` is none";
            return refuse(what, "set [labels.return] with `horizon` and `threshold`");
        }
        if config.window.whole {
            let what = "`window.whole` makes one window of each series, which no moment divides";
            return refuse(what, "set window.whole = false");
        }
        only_evaluates_by(config, &EVALUATES_BY)?;
        settings(config).validate()
    }

    fn check_model(
        &self,
        config: &PipelineConfig,
        device: &ChosenDevice,
    ) -> Result<(), PipelineError> {
        train::check_names(config, device)
    }

    fn keys(&self, config: &PipelineConfig, device: &ChosenDevice) -> Result<Keys, PipelineError> {
        let series = crate::feed::series_key(config)?;
        let arithmetic = device.arithmetic_of(config)?;
        let keys = Keys::new(config, series, &arithmetic);
        let training = ordered(Key::builder("multitimeframe", 1), config);
        let training = online::varied(training, config, &arithmetic)
            .upstream("windows", keys.windows)
            .field("multitimeframe", json(&settings(config).trained_only()))
            .field("train", json(&learnt_by(&config.train)))
            .field("precision", config.run.precision.to_string())
            .field("seed", config.run.seed.to_le_bytes())
            .field("arithmetic", arithmetic)
            .finish();
        Ok(keys.trained(training, config))
    }

    fn probe(
        &self,
        config: &PipelineConfig,
        probe: Probe<'_>,
        device: &ChosenDevice,
    ) -> Result<Measured, PipelineError> {
        train::probe(config, probe, device)
    }

    /// None: each model has batches of its own. Their channels are read.
    fn training_windows(&self, run: &Run<'_>) -> Result<Option<usize>, PipelineError> {
        run.ingest(&mut 0)?;
        Ok(None)
    }

    fn own_batches(&self, config: &PipelineConfig) -> Option<&'static str> {
        let settings = settings(config);
        match &settings.models[..] {
            [only] => Some(settings.keys(*only, config).batch_size),
            _ => Some("multitimeframe.lstm.batch_size, and that of each other model,"),
        }
    }

    /// All but the dense network do.
    fn recomputes(&self, config: &PipelineConfig) -> bool {
        settings(config).models.iter().any(|model| *model != ModelName::Mlp)
    }

    fn not_recomputed(&self) -> &'static str {
        "`mlp`, the one model of `multitimeframe.models`,"
    }

    fn stages(&self, keys: &Keys) -> Vec<(&'static str, Option<Key>)> {
        keys.stages()
    }

    fn make(&self, run: &Run<'_>, work: &mut Work<'_>) -> Result<Making, PipelineError> {
        let settings = settings(run.config);
        let (ingested, _hold) = run.ingest(&mut work.remade)?;
        let folds = run.folds(&ingested, &settings)?;
        work.reasons.extend(reasons(run.config, &settings));
        let parts: Vec<train::FoldParts> = folds
            .iter()
            .map(|fold| train::FoldParts::new(fold, run.config.window.normalise))
            .collect::<Result<_, _>>()?;
        // Most folds have the steps of the one before.
        if let (Some(fold), Some(first)) = (folds.first(), parts.first()) {
            run.warn_of_unscaled(&first.normaliser, &fold.split.train);
        }
        if let Some(largest) = parts.iter().max_by_key(|parts| parts.train.windows().len()) {
            work.reasons.push(run.placed(run.learnt(largest)?.as_ref())?.reason());
        }
        work.resolved()?;
        let trained = match run.train_folds(work, &settings, &folds, &parts)? {
            Ok(trained) => trained,
            Err(step) => return Ok(Making::Interrupted { step }),
        };
        let mut remade = 0;
        let measured = run.stage("evaluate", Some(run.keys.evaluation), &mut remade, || {
            let has_clock = ingested.checks.span.is_some();
            let measured = measure(run, work, &settings, &folds, &parts, &trained, has_clock)?;
            let detail = format!("{} test windows", measured.0.windows);
            Ok((measured, false, detail))
        });
        let (measured, warnings) = match measured {
            Err(PipelineError::Interrupted) => {
                return Ok(Making::Interrupted { step: trained.steps() });
            }
            measured => measured?,
        };
        if run.stop.load(Ordering::SeqCst) {
            return Ok(Making::Interrupted { step: trained.steps() });
        }
        work.remade += remade;
        for standing in measured.standings.iter().filter(|standing| !standing.baseline) {
            for (name, value) in scores(standing) {
                run.listener.on(&Event::Scored { name, value });
            }
        }
        let (made, steps) = (trained.lines.len() as u64, trained.steps());
        let trainings = count(made, "training");
        let of = count(folds.len() as u64, "fold");
        let said = format!("{trainings} of {of}: {} in all", count(steps, "step"));
        let kept = LastFold { ingested: &ingested, fold: folds.last(), parts: parts.last() };
        run.keep_models(work, &settings, &kept, &trained, &measured)?;
        let mut report =
            page::report(run, work.prepared.name(), &ingested, &folds, &trained, measured);
        report.warnings = warnings;
        let outcome = "finished".to_owned();
        Ok(Making::Complete(Box::new(Made { report, trained: said, outcome })))
    }

    fn main_scores(&self, figures: &Value) -> Vec<TestScore> {
        let measured: Option<Contest> = serde_json::from_value(figures.clone()).ok();
        measured.map_or_else(Vec::new, |measured| measured.main_scores())
    }

    fn unread(&self, config: &PipelineConfig) -> Vec<String> {
        let tables = online::unread(config).into_iter().chain(UNREAD.map(str::to_owned));
        tables.chain(not_evaluated_by(&EVALUATES_BY)).collect()
    }

    fn unsearched(&self) -> Option<&'static str> {
        Some(
            "a search needs one training with one validation loss, and `multitimeframe` has several of both\n  \
             search a pipeline of one model",
        )
    }
}

/// What trackers compare runs by.
fn scores(standing: &Standing) -> Vec<(String, f64)> {
    let name =
        |metric: &Metric| format!("test/{}/{}", standing.name, metric.name().replace(' ', "_"));
    standing.metrics.iter().map(|(metric, estimate)| (name(metric), estimate.value)).collect()
}

/// What the models that are kept were trained on: of all folds the last, which has seen most.
struct LastFold<'a> {
    ingested: &'a Ingested,
    fold: Option<&'a Fold>,
    parts: Option<&'a train::FoldParts>,
}

impl Run<'_> {
    /// Keeps every model of the last fold under its name, and the one with the lowest validation loss
    /// as the run's own, too. Test windows choose nothing.
    fn keep_models(
        &self,
        work: &Work<'_>,
        settings: &MultitimeframeConfig,
        last: &LastFold<'_>,
        trained: &train::Trained,
        measured: &Contest,
    ) -> Result<(), PipelineError> {
        let (Some(fold), Some(parts)) = (last.fold, last.parts) else { return Ok(()) };
        let classes = fold.split.train.classes();
        let time = self.config.window.length;
        let channels = last.ingested.set.channels().len();
        let (best, loss) = trained.best(&settings.models);
        for (place, model) in settings.models.iter().enumerate() {
            let said = format!(
                "{} on the last of the folds, {} windows{}",
                model.title(),
                parts.train.windows().len(),
                match place == best && settings.models.len() > 1 {
                    true => format!(
                        "; of {} models the one with the lowest validation loss, {loss:.4} over the folds",
                        settings.models.len()
                    ),
                    false => String::new(),
                }
            );
            let own = measured.standings.iter().find(|standing| standing.name == model.title());
            let keep = |folder: &Path| {
                let kept = Kept {
                    task: Task::Classification,
                    architecture: settings.architecture(*model, time, channels, classes.len()),
                    parameters: trained.last.get(place).cloned().unwrap_or_default(),
                    classes,
                    trained: &said,
                    scores: own.map(scores).unwrap_or_default(),
                    scores_of: "On the test windows of all folds, each by the model of its fold; these weights are those of the last fold."
                        .to_owned(),
                    shown: Shown::series(self, last.ingested, parts.normaliser.clone())?,
                };
                self.keep_model_in(work, kept, folder)
            };
            keep(&Path::new(MODELS).join(model.name()))?;
            if place == best {
                keep(Path::new(MODEL))?;
            }
        }
        Ok(())
    }
}

/// The table, or its defaults.
pub(crate) fn settings(config: &PipelineConfig) -> MultitimeframeConfig {
    config.multitimeframe.clone().unwrap_or_default()
}

/// What was not written but follows.
fn reasons(config: &PipelineConfig, settings: &MultitimeframeConfig) -> Vec<firebox_eval::Reason> {
    let WindowConfig { length, .. } = config.window;
    let mut reasons = Vec::new();
    if settings.folds.embargo.is_none() {
        reasons.push(firebox_eval::Reason {
            key: "multitimeframe.folds.embargo".to_owned(),
            value: (length + config.labels.horizon()).to_string(),
            reason: "one window and the horizon of its label, so that no held-out window begins in steps that a window before the boundary has seen".to_owned(),
        });
    }
    reasons
}

impl Run<'_> {
    /// The folds, each with something to learn from.
    fn folds(
        &self,
        ingested: &Ingested,
        settings: &MultitimeframeConfig,
    ) -> Result<Vec<Fold>, PipelineError> {
        let config = self.config;
        self.stage("windows", None, &mut 0, || {
            let rule = config.window.rule();
            let folds = walk_forward(&ingested.set, &rule, &settings.folds, &config.labels)?;
            if let Some(first) = folds.first() {
                self.warn_of_equal(&first.split);
            }
            self.warn_of_filled(&ingested.checks, config.labels.horizon());
            if let Some(message) = in_labels(&config.labels, &ingested.set) {
                self.listener.on(&Event::Warning { message });
            }
            let (mut told, timed) = (BTreeSet::new(), ingested.checks.span.is_some());
            for (fold, number) in folds.iter().zip(1..) {
                self.check_classes(fold, number)?;
                let part = format!("the training part of fold {number}");
                self.warn_of_unchanging(&part, &unchanging_channels(&fold.split.train));
                // Most folds have the steps of the one before.
                let mut found = outliers(&fold.split.train);
                found.retain(|outlier| told.insert(outlier.channel.clone()));
                self.warn_of_outliers(&part, &ingested.set, &found, timed);
            }
            self.warn_of_unused(folds.iter().map(|fold| &fold.split), config.labels.horizon());
            let tested: usize = folds.iter().map(|fold| fold.split.test.len()).sum();
            let train = |fold: Option<&Fold>| fold.map_or(0, |fold| fold.split.train.len());
            let detail = format!(
                "{} of {} to {} training windows, {tested} test windows in all",
                count(folds.len() as u64, "fold"),
                train(folds.first()),
                train(folds.last()),
            );
            Ok((folds, false, detail))
        })
    }

    /// Refuses a fold that has nothing to tell apart, and warns where its test has one class only.
    fn check_classes(&self, fold: &Fold, number: usize) -> Result<(), PipelineError> {
        let split = &fold.split;
        let classes = |part: &firebox_core::Windows| {
            let labels = part.windows().iter().filter_map(|window| window.label);
            labels.collect::<BTreeSet<u32>>()
        };
        let parts =
            [("training", classes(&split.train)), ("validation", classes(&split.validation))];
        for (part, found) in parts {
            let enough = if part == "training" { 2 } else { 1 };
            if found.len() >= enough {
                continue;
            }
            let what = match found.first() {
                Some(only) => {
                    let name = split.train.classes().get(*only as usize);
                    format!("only windows of the class `{}`", name.map_or("", String::as_str))
                }
                None => "no labelled window".to_owned(),
            };
            return Err(PipelineError::Setting(format!(
                "the {part} part of fold {number} has {what}: there is nothing to tell apart\n  \
                 lower `labels.return.threshold`, give more data, or use fewer folds (`multitimeframe.folds.folds`)"
            )));
        }
        if classes(&split.test).len() < 2 {
            self.listener.on(&Event::Warning {
                message: format!(
                    "the test part of fold {number} has windows of one class only: its own scores say little"
                ),
            });
        }
        Ok(())
    }
}

/// Writes the test windows of all folds: the fold of each, and the class that every model and baseline predicts.
fn write_test(
    path: &Path,
    has_clock: bool,
    classes: &[String],
    parts: &[train::FoldParts],
    contenders: &[Contender],
) -> Result<(), PipelineError> {
    let tests = || parts.iter().map(|part| part.test.windows());
    let folds: Vec<u32> =
        (1..).zip(tests()).flat_map(|(fold, test)| vec![fold; test.len()]).collect();
    let column = |name: &str| name.to_lowercase().replace(' ', "_");
    let predicted = contenders.iter().map(|one| (column(&one.name), Said::Class(&one.predicted)));
    let fold = ("fold".to_owned(), Said::Number(&folds));
    let Some(first) = parts.first() else { return Ok(()) };
    let table = TestTable {
        set: first.test.windows().set(),
        has_clock,
        classes,
        windows: tests().flat_map(|test| test.windows()).collect(),
        said: std::iter::once(fold).chain(predicted).collect(),
    };
    Ok(table.write(path)?)
}

/// What is said of models that answer one class for every test window, where these are of several.
fn constant(contenders: &[Contender], truth: &[u32]) -> Vec<String> {
    let is_one = |all: &[u32]| all.windows(2).all(|pair| pair[0] == pair[1]);
    if is_one(truth) {
        return vec![];
    }
    let models = contenders.iter().filter(|one| !one.baseline && is_one(&one.predicted));
    let said = |one: &Contender| {
        format!("`{}` answers one class for every test window: it has learnt nothing", one.name)
    };
    models.map(said).collect()
}

/// The models and the baselines on the test windows of all folds, and what is to be said of models.
fn measure(
    run: &Run<'_>,
    work: &Work<'_>,
    settings: &MultitimeframeConfig,
    folds: &[Fold],
    parts: &[train::FoldParts],
    trained: &train::Trained,
    has_clock: bool,
) -> Result<(Contest, Vec<String>), PipelineError> {
    let classes = folds[0].split.test.classes().to_vec();
    let truth: Vec<u32> = parts.iter().flat_map(|part| part.truth()).collect();
    let mut contenders: Vec<Contender> = settings
        .models
        .iter()
        .zip(&trained.predicted)
        .map(|(model, predicted)| Contender {
            name: model.title().to_owned(),
            baseline: false,
            predicted: predicted.clone(),
        })
        .collect();
    contenders.extend(baselines::all(run, work, parts, classes.len())?);
    write_test(&work.path.join(FILE), has_clock, &classes, parts, &contenders)?;
    let footprint = run.config.window.length + run.config.labels.horizon();
    let tested = parts.iter().flat_map(|part| part.test.windows().windows().iter());
    let tested: WindowList = tested.filter(|window| window.label.is_some()).collect();
    let set = folds[0].split.test.set();
    let together = in_time(&tested, set, footprint, run.config.window.stride, has_clock);
    let measured = contest(&run.config.evaluate, &classes, &truth, &together, &contenders);
    Ok((measured, constant(&contenders, &truth)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_that_tell_nothing_apart_are_named() {
        let one = |name: &str, baseline, predicted: &[u32]| Contender {
            name: name.to_owned(),
            baseline,
            predicted: predicted.to_vec(),
        };
        let all = [
            one("MLP", false, &[2, 2, 2]),
            one("LSTM", false, &[2, 1, 2]),
            one("majority class", true, &[2, 2, 2]),
        ];
        let said = constant(&all, &[0, 1, 2]);
        assert_eq!(said, ["`MLP` answers one class for every test window: it has learnt nothing"]);
        assert!(constant(&all, &[2, 2, 2]).is_empty(), "which is right there");
    }
}
