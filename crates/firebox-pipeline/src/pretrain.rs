//! The pipeline `pretrain`: ingest → windows → augment → pre-train → evaluate → report.

mod rows;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use firebox_core::{Event, Key, count};
use firebox_export::Task;
use firebox_loader::NormalisedWindows;
use firebox_models::read_parameters;
use firebox_train::{Data, Pretraining, Summary};

use crate::PipelineConfig;
use crate::bench::{Measured, Probe};
use crate::chain::{self, Chain, Made, Making, Work};
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::feed::{Feed, effective, series_key};
use crate::kept::{Kept, Shown, named};
use crate::keys::Keys;
use crate::measure;
use crate::score::{Judge, Score};
use crate::stages::{Run, Windows, split_reasons, summary_of, trained_before};
use crate::zoo::{Place, Pretrainable, with_pretrainable};

/// Masked pre-training of an encoder, measured by probes on its frozen features.
pub(crate) struct Pretrain;

impl Chain for Pretrain {
    fn check(&self, config: &PipelineConfig) -> Result<(), PipelineError> {
        config.model.check_pretrainable()
    }

    fn check_model(
        &self,
        config: &PipelineConfig,
        device: &ChosenDevice,
    ) -> Result<(), PipelineError> {
        check_names(config, device)
    }

    fn probe(
        &self,
        config: &PipelineConfig,
        probe: Probe<'_>,
        device: &ChosenDevice,
    ) -> Result<Measured, PipelineError> {
        let shape = probe_shape(config)?;
        let at = Place::probing(config, shape, &probe, device);
        with_pretrainable!(&config.model, M => {
            let model = M::build(&config.model, &at)?;
            probe.run(model, &Pretraining, shape, device)
        })
    }

    fn training_windows(&self, run: &Run<'_>) -> Result<Option<usize>, PipelineError> {
        Ok(Some(run.windows(&mut 0)?.parts.train.len()))
    }

    fn slots(&self, config: &PipelineConfig) -> usize {
        1 + effective(&config.augment).versions as usize
    }

    /// Every model that is pre-trained does.
    fn recomputes(&self, _: &PipelineConfig) -> bool {
        true
    }

    fn stages(&self, keys: &Keys) -> Vec<(&'static str, Option<Key>)> {
        vec![
            ("ingest", Some(keys.series)),
            ("windows", Some(keys.windows)),
            ("augment", Some(keys.augmented)),
            ("train", Some(keys.training)),
            ("evaluate", Some(keys.evaluation)),
            ("report", None),
        ]
    }

    fn make(&self, run: &Run<'_>, work: &mut Work<'_>) -> Result<Making, PipelineError> {
        with_pretrainable!(&run.config.model, M => make::<M>(run, work))
    }

    fn train_only(
        &self,
        run: &Run<'_>,
        work: &mut Work<'_>,
    ) -> Result<Option<Summary>, PipelineError> {
        let windows = run.windows(&mut work.remade)?;
        if windows.parts.validation.is_empty() {
            return Err(PipelineError::NoValidation);
        }
        work.reasons.extend(split_reasons(run.config, &windows, run.config.labels.horizon()));
        let feed = run.feed(&windows, &mut work.remade)?;
        work.reasons.push(feed.reason());
        work.resolved()?;
        let complete = with_pretrainable!(&run.config.model, M => {
            let judge = measure::judge::<M>(run, &windows)?;
            match run.train(&windows, &feed, work.path, judge.as_ref(), &mut work.remade)? {
                Training::Complete(trained) => run.score(work, judge.as_ref(), &trained.model),
                Training::Interrupted { .. } => Ok(false),
            }
        })?;
        Ok(if complete { summary_of(work.path, run.keys) } else { None })
    }

    /// Those of a linear probe.
    fn scores(&self) -> &'static [Score] {
        &[Score::Accuracy, Score::F1]
    }
}

/// Everything up to the report, for one of the models.
fn make<M: Pretrainable>(run: &Run<'_>, work: &mut Work<'_>) -> Result<Making, PipelineError> {
    let windows = run.windows(&mut work.remade)?;
    work.reasons.extend(split_reasons(run.config, &windows, run.config.labels.horizon()));
    let feed = run.feed(&windows, &mut work.remade)?;
    work.reasons.push(feed.reason());
    work.resolved()?;
    let Trained { model, summary, outcome, step } =
        match run.train::<M>(&windows, &feed, work.path, None, &mut work.remade)? {
            Training::Complete(trained) => *trained,
            Training::Interrupted { step } => return Ok(Making::Interrupted { step }),
        };
    let mut evaluated = 0;
    let measured = run.stage("evaluate", Some(run.keys.evaluation), &mut evaluated, || {
        let measured = measure::measure(run, &windows, &model)?;
        rows::write(work.path, &windows, &measured)?;
        let detail = measured.detail();
        Ok((measured, false, detail))
    });
    let measured = match measured {
        Ok(measured) => measured,
        // Whatever the evaluation says that it was stopped by, it was stopped.
        Err(_) if run.stop.load(Ordering::SeqCst) => {
            return Ok(Making::Interrupted { step });
        }
        Err(error) => return Err(error),
    };
    let scores = measured.scores();
    for (name, value) in &scores {
        run.listener.on(&Event::Scored { name: (*name).to_owned(), value: *value });
    }
    let kept = Kept {
        task: Task::Pretraining,
        architecture: M::architecture(&run.config.model, run.shape(&windows))?,
        parameters: read_parameters(&model),
        classes: &[],
        trained: &summary,
        scores: named(&scores),
        scores_of: String::new(),
        shown: Shown::windows(run, &windows)?,
    };
    run.keep_model(work, kept)?;
    work.remade += evaluated;
    let report = measured.report(run, work.prepared.name(), &windows);
    Ok(Making::Complete(Box::new(Made { report, trained: summary, outcome })))
}

/// Checks names of parameters in the settings of pre-training.
pub(crate) fn check_names(
    config: &PipelineConfig,
    device: &ChosenDevice,
) -> Result<(), PipelineError> {
    let PipelineConfig { model, train, .. } = config;
    // Names do not depend on the number of channels, which is not known yet.
    with_pretrainable!(model, M => {
        chain::check_names(train, || M::build(model, &Place::naming(config, device)))
    })
}

/// Channels of a bar, where the data are not known yet.
const BAR: usize = 4;

/// Steps and channels of the windows, the channels from data that were read before.
pub(crate) fn probe_shape(config: &PipelineConfig) -> Result<[usize; 2], PipelineError> {
    let series = series_key(config)?;
    let checks = firebox_data::stored_checks(&config.run.cache, series);
    Ok([config.window.length, checks.map_or(BAR, |checks| checks.channels.len().max(1))])
}

/// How the training ended.
pub(crate) enum Training<M> {
    Complete(Box<Trained<M>>),
    Interrupted { step: u64 },
}

pub(crate) struct Trained<M> {
    pub(crate) model: M,
    pub(crate) summary: String,
    outcome: String,
    step: u64,
}

impl Run<'_> {
    /// The model as it is initialised from a seed, on the device without gradients.
    pub(crate) fn untrained<M: Pretrainable>(
        &self,
        seed: u64,
        channels: usize,
    ) -> Result<M, PipelineError> {
        M::build(&self.config.model, &self.place(seed, channels))
    }

    /// Steps of the longest window that a model is built for, and channels.
    pub(crate) fn shape(&self, windows: &Windows) -> [usize; 2] {
        [self.config.window.length, windows.ingested.set.channels().len()]
    }

    /// What a model of a seed is built for.
    pub(crate) fn place(&self, seed: u64, channels: usize) -> Place<'_> {
        Place::of(self.config, seed, [self.config.window.length, channels], self.device)
    }

    /// Trains, or reads back what was trained.
    pub(crate) fn train<M: Pretrainable>(
        &self,
        windows: &Windows,
        feed: &Feed,
        path: &Path,
        judge: Option<&Judge<'_, M>>,
        remade: &mut usize,
    ) -> Result<Training<M>, PipelineError> {
        let trained_before = trained_before(path);
        let versions = feed.source.len();
        let trained = self.stage("train", Some(self.keys.training), remade, || {
            let validation = &windows.parts.validation;
            let loader = self.train_loader(feed)?;
            let validation = if validation.is_empty() {
                None
            } else {
                let held_out =
                    NormalisedWindows::new(validation.clone(), windows.normaliser.clone());
                let key = Some(self.keys.windows);
                Some(self.validation_loader(Arc::new(held_out), &loader, key, self.loader())?)
            };
            let channels = windows.ingested.set.channels().len();
            let model = self.untrained::<M>(self.config.run.seed, channels)?;
            let data = Data { train: &loader, validation: validation.as_ref() };
            let (trained, detail) = self.train_own(path, model, &Pretraining, data, judge)?;
            Ok((trained, trained_before, detail))
        })?;
        let firebox_train::Trained { model, summary } = trained;
        if summary.outcome == firebox_train::Outcome::Interrupted {
            return Ok(Training::Interrupted { step: summary.steps });
        }
        Ok(Training::Complete(Box::new(Trained {
            model,
            step: summary.steps,
            outcome: summary.outcome.to_string(),
            summary: format!(
                "trained on {} windows ({versions} with augmented versions): {} in {}, {}",
                windows.parts.train.len(),
                count(summary.steps, "step"),
                count(summary.epochs, "epoch"),
                summary.outcome
            ),
        })))
    }
}
