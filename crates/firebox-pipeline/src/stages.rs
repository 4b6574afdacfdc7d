//! The stages of a pipeline, one after the other: each takes what the one before made.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use firebox_cache::{Hold, Shards, Store};
use firebox_core::{Event, Key, Listener, Normaliser, Split, Stream, split};
use firebox_data::Ingested;
use firebox_eval::Reason;
use firebox_kernels::CpuKernels;
use firebox_loader::{HeldOutLoader, LoaderConfig, NormalisedWindows, TrainLoader};
use firebox_models::BiLstmMae;
use firebox_train::{Data, Pretraining};

use crate::config::ModelConfig;
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::folder::{Conclusion, EventLog, PIPELINE, RunFolder, conclusion, steps_saved};
use crate::keys::Keys;
use crate::measure;
use crate::{PipelineConfig, Prepared};

/// What a pipeline left.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Folder of the run.
    pub run: PathBuf,
    /// The report page.
    pub report: PathBuf,
    /// How it ended.
    pub outcome: Outcome,
    /// How many windows and steps were trained.
    pub trained: String,
    /// First line of the report.
    pub verdict: String,
    /// Results that were made, not reused.
    pub remade: usize,
}

/// How a pipeline ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With a report.
    Finished,
    /// It was asked to stop, and everything up to a step is saved.
    Interrupted {
        /// That step.
        step: u64,
    },
}

/// What every stage needs.
pub(crate) struct Run<'a> {
    pub(crate) config: &'a PipelineConfig,
    pub(crate) device: &'a ChosenDevice,
    pub(crate) keys: &'a Keys,
    pub(crate) listener: &'a dyn Listener,
    pub(crate) stop: &'a AtomicBool,
}

/// The data, ready to be read in windows.
pub(crate) struct Windows {
    pub(crate) ingested: Ingested,
    pub(crate) parts: Split,
    pub(crate) normaliser: Normaliser,
    /// Keeps the series in the cache: a run that prunes must leave what this one, killed, would
    /// start again from.
    _hold: Hold,
}

/// Sends events to the user's listener and to the log of the run.
struct Both<'a> {
    listener: &'a dyn Listener,
    log: &'a EventLog,
}

impl Listener for Both<'_> {
    fn on(&self, event: &Event) {
        self.log.on(event);
        self.listener.on(event);
    }
}

pub(crate) fn run(
    prepared: &Prepared,
    device: &ChosenDevice,
    keys: &Keys,
    path: &Path,
    stop: &AtomicBool,
    listener: &dyn Listener,
) -> Result<Finished, PipelineError> {
    let started = Instant::now();
    if let Some(said) = conclusion(path, keys.evaluation) {
        return Ok(already_done(&said, keys, path, listener));
    }
    let folder = RunFolder::open(path)?;
    folder.unfinish()?;
    let reasons = reasons(prepared.config(), device)?;
    folder.write(PIPELINE, prepared.resolved(&reasons)?.as_bytes())?;
    let log = folder.events()?;
    let both = Both { listener, log: &log };
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    both.on(&Event::RunStarted {
        run: name.clone(),
        device: device.description.clone(),
        resumed_at_step: steps_saved(path),
    });
    let run = Run { config: prepared.config(), device, keys, listener: &both, stop };
    let finish = |outcome: &str| {
        both.on(&Event::RunFinished {
            run: name.clone(),
            outcome: outcome.to_owned(),
            seconds: started.elapsed().as_secs_f64(),
        });
    };
    let mut remade = 0;
    let windows = run.windows(&mut remade)?;
    let shards = run.augment(&windows, &mut remade)?;
    let trained = run.train(&windows, shards, path, &mut remade)?;
    let Trained { model, summary, outcome } = match trained {
        Training::Complete(trained) => *trained,
        Training::Interrupted { step } => {
            finish("interrupted");
            return Ok(Finished {
                run: path.to_path_buf(),
                report: path.join("report.html"),
                outcome: Outcome::Interrupted { step },
                trained: String::new(),
                verdict: String::new(),
                remade,
            });
        }
    };
    let measured = run.stage("evaluate", Some(keys.evaluation), &mut remade, || {
        let measured = measure::measure(&run, &windows, &model)?;
        let detail = measured.detail();
        Ok((measured, false, detail))
    })?;
    finish(&outcome);
    let report = measure::report(&run, prepared, &windows, measured, &reasons, path)?;
    let said = Conclusion { trained: summary, verdict: report.verdict };
    folder.finish(keys.evaluation, &said)?;
    Ok(Finished {
        run: path.to_path_buf(),
        report: report.page,
        outcome: Outcome::Finished,
        trained: said.trained,
        verdict: said.verdict,
        remade,
    })
}

/// Says that no stage has anything to do: what the run left is whole, and needs nothing that it was
/// made from.
fn already_done(said: &Conclusion, keys: &Keys, path: &Path, listener: &dyn Listener) -> Finished {
    let stages = [
        ("ingest", Some(keys.series)),
        ("augment", Some(keys.augmented)),
        ("train", Some(keys.training)),
        ("evaluate", Some(keys.evaluation)),
        ("report", None),
    ];
    for (stage, key) in stages {
        listener.on(&Event::StageFinished {
            stage: stage.to_owned(),
            key,
            reused: true,
            seconds: 0.0,
            detail: "the finished run is there and whole".to_owned(),
        });
    }
    Finished {
        run: path.to_path_buf(),
        report: path.join("report.html"),
        outcome: Outcome::Finished,
        trained: said.trained.clone(),
        verdict: said.verdict.clone(),
        remade: 0,
    }
}

/// Values that were not written but derived, each with its reason.
fn reasons(config: &PipelineConfig, device: &ChosenDevice) -> Result<Vec<Reason>, PipelineError> {
    let reason = |key: &str, value: String, reason: &str| Reason {
        key: key.to_owned(),
        value,
        reason: reason.to_owned(),
    };
    let mut reasons = vec![
        reason("run.device", device.backend.clone(), &device.reason),
        reason(
            "run.precision",
            config.run.precision.to_string(),
            "as written; weights, states and sums are f32 whatever it is",
        ),
    ];
    if device.backend == "cpu" {
        let kernels = format!("{:?}", CpuKernels::current()?).to_lowercase();
        let why =
            "the fastest LSTM kernels that this processor runs, or what FIREBOX_KERNELS asks for";
        reasons.push(reason("kernels", kernels, why));
    }
    if let firebox_core::SplitRule::Time { gap: None, .. } = config.split.0 {
        let gap = config.window.length + config.labels.horizon();
        let why = "one window and the horizon of its label, so that no held-out window begins in steps that a training window has seen";
        reasons.push(reason("split.time.gap", gap.to_string(), why));
    }
    Ok(reasons)
}

enum Training {
    Complete(Box<Trained>),
    Interrupted { step: u64 },
}

struct Trained {
    model: BiLstmMae,
    summary: String,
    outcome: String,
}

impl Run<'_> {
    /// Runs a stage between its two events. `work` returns its result, whether that was reused, and
    /// a line on it.
    pub(crate) fn stage<T>(
        &self,
        name: &str,
        key: Option<Key>,
        remade: &mut usize,
        work: impl FnOnce() -> Result<(T, bool, String), PipelineError>,
    ) -> Result<T, PipelineError> {
        self.listener.on(&Event::StageStarted { stage: name.to_owned() });
        let start = Instant::now();
        let (result, reused, detail) = work()?;
        *remade += usize::from(!reused);
        self.listener.on(&Event::StageFinished {
            stage: name.to_owned(),
            key,
            reused,
            seconds: start.elapsed().as_secs_f64(),
            detail,
        });
        Ok(result)
    }

    /// Files → series → parts of windows.
    fn windows(&self, remade: &mut usize) -> Result<Windows, PipelineError> {
        let config = self.config;
        let series = self.keys.series;
        let ingested = self.stage("ingest", Some(series), remade, || {
            let ingested = firebox_data::ingest(&config.data, &config.run.cache, self.listener)?;
            let detail = format!(
                "{} steps of {} channels in {} series, {} kinds of defect",
                ingested.set.steps(),
                ingested.set.channels().len(),
                ingested.set.series().len(),
                ingested.checks.findings.len()
            );
            let reused = ingested.reused;
            Ok((ingested, reused, detail))
        })?;
        let hold = Store::open(&config.run.cache)?.hold(firebox_cache::SERIES, series)?;
        // Windows are views: making them is never work that could be reused.
        self.stage("windows", None, &mut 0, || {
            let parts =
                split(&ingested.set, &config.window.rule(), &config.split.0, &config.labels)?;
            let normaliser = Normaliser::fit(config.window.normalise, &parts.train)?;
            let detail = format!(
                "{} training, {} validation, {} test windows; {} across a boundary left out",
                parts.train.len(),
                parts.validation.len(),
                parts.test.len(),
                parts.left_out
            );
            Ok((Windows { ingested, parts, normaliser, _hold: hold }, false, detail))
        })
    }

    fn augment(&self, windows: &Windows, remade: &mut usize) -> Result<Arc<Shards>, PipelineError> {
        self.stage("augment", Some(self.keys.augmented), remade, || {
            let shards = Store::open(&self.config.run.cache)?.augmented(
                self.keys.augmented,
                &windows.parts.train,
                &windows.normaliser,
                &self.config.augment,
                self.config.run.seed,
                self.listener,
            )?;
            let megabytes = shards.bytes() as f64 / 1e6;
            let detail = format!("{} windows, {megabytes:.1} MB", shards.len());
            let reused = shards.reused();
            Ok((Arc::new(shards), reused, detail))
        })
    }

    /// The model as it is initialised from a seed, on the device without gradients.
    pub(crate) fn untrained(&self, seed: u64, channels: usize) -> Result<BiLstmMae, PipelineError> {
        let ModelConfig::BilstmMae(model) = &self.config.model;
        let model = model.init(Stream::new(seed, "weights"), channels, &self.device.device)?;
        Ok(model.in_precision(self.config.run.precision))
    }

    /// Trains, or reads back what was trained.
    fn train(
        &self,
        windows: &Windows,
        shards: Arc<Shards>,
        path: &Path,
        remade: &mut usize,
    ) -> Result<Training, PipelineError> {
        let trained_before = path.join(firebox_train::SUMMARY_FILE).is_file();
        let versions = shards.len();
        let trained = self.stage("train", Some(self.keys.training), remade, || {
            let device = &self.device.device;
            let validation = &windows.parts.validation;
            let loader = TrainLoader::new(shards, self.loader(), device.clone())?;
            let validation = if validation.is_empty() {
                None
            } else {
                let held_out =
                    NormalisedWindows::new(validation.clone(), windows.normaliser.clone());
                Some(HeldOutLoader::new(Arc::new(held_out), self.loader(), device.clone())?)
            };
            let channels = windows.ingested.set.channels().len();
            let trained = firebox_train::train(
                self.untrained(self.config.run.seed, channels)?,
                &Pretraining,
                Data { train: &loader, validation: validation.as_ref() },
                &self.config.train,
                &firebox_train::Run {
                    folder: path,
                    key: self.keys.training,
                    seed: self.config.run.seed,
                    resume: true,
                    stop: self.stop,
                    listener: self.listener,
                },
            )?;
            let summary = &trained.summary;
            let best = summary.best.map_or(String::new(), |best| {
                format!(", best loss {:.5} after epoch {}", best.loss, best.epoch)
            });
            let detail = format!(
                "{} steps in {} epochs, {} parameters, {}{best}",
                summary.steps, summary.epochs, summary.parameters, summary.outcome
            );
            Ok((trained, trained_before, detail))
        })?;
        let firebox_train::Trained { model, summary } = trained;
        if summary.outcome == firebox_train::Outcome::Interrupted {
            return Ok(Training::Interrupted { step: summary.steps });
        }
        Ok(Training::Complete(Box::new(Trained {
            model,
            outcome: summary.outcome.to_string(),
            summary: format!(
                "trained on {} windows ({versions} with augmented versions): {} steps in {} epochs, {}",
                windows.parts.train.len(),
                summary.steps,
                summary.epochs,
                summary.outcome
            ),
        })))
    }

    fn loader(&self) -> LoaderConfig {
        let table = &self.config.loader;
        LoaderConfig {
            batch_size: table.batch_size,
            workers: table.workers,
            prefetch: table.prefetch,
            seed: self.config.run.seed,
        }
    }
}
