//! The stages of a pipeline, one after the other: each takes what the one before made.

mod derived;
mod events;
mod labels;
mod outliers;
mod size;
mod start;
mod telling;
mod unchanging;
mod windows;

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use firebox_cache::{Shards, Store};
use firebox_core::{Event, Key, Listener, Requests};
use firebox_eval::Raster;
use firebox_loader::LoaderConfig;
use firebox_monitor::{Picture, obeying, sampled_with};

use crate::chain::{Made, Making, Work};
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::feed::{effective, upload_ahead};
use crate::folder::{Conclusion, begun, conclusion, replay, steps_whole, unmark, written_anew};
use crate::forgotten::begin_again_if_forgotten;
use crate::kept::is_kept;
use crate::keys::Keys;
use crate::pools::pools;
use crate::profile::Profiling;
use crate::score::WantedScores;
use crate::shared::Shared;
use crate::{PipelineConfig, Prepared, page};
use start::{begin_anew, replaced};

pub(crate) use derived::{automatic, rule_for, split_reasons, training, written};
pub(crate) use events::Everyone;
pub(crate) use outliers::TEST_PART;
pub(crate) use size::check_size;
pub(crate) use start::{Asker, begin, name_of, started_event, trackers};
pub(crate) use windows::{Windows, same_data};

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
    pub(crate) stop: &'a Arc<AtomicBool>,
    /// What is asked of the training through the run's folder.
    pub(crate) requests: &'a Requests,
    /// What the trials of a worker share.
    pub(crate) shared: &'a Shared,
    /// What a search wants to know of the model.
    pub(crate) wanted: &'a WantedScores,
}

pub(crate) fn run(
    prepared: &Prepared,
    device: &ChosenDevice,
    keys: &Keys,
    path: &Path,
    (by, stop): (Asker, &Arc<AtomicBool>),
    listener: &dyn Listener,
) -> Result<Finished, PipelineError> {
    let started = Instant::now();
    // What it was begun as is known here: its settings led to it.
    let damaged = begun(path).is_err().then(|| written_anew(path));
    // A run of an earlier version left no model; it is made from what is there.
    if let Some(said) = conclusion(path, keys.evaluation).filter(|_| is_kept(path)) {
        if let Some(message) = damaged {
            begin_anew(prepared, keys, path, message, listener);
        }
        if by == Asker::User {
            unmark(path);
        }
        return Ok(already_done(&said, prepared, keys, path, listener));
    }
    let replaced = replaced(prepared, keys, path)?;
    let (folder, reasons, log) = begin(prepared, device, keys, path, by)?;
    let config = prepared.config();
    let own = config.pipeline.chain().own_keys(config, device, keys)?;
    let again = begin_again_if_forgotten(path, own.training)?;
    let trackers = trackers(prepared, path)?;
    let all = Everyone { listener, log: &log, trackers: &trackers };
    let name = started_event(device, path, &all);
    let told = damaged.into_iter().chain(replaced).chain(again);
    for message in told.chain(prepared.idle().to_vec()) {
        all.on(&Event::Warning { message });
    }
    let requests = Requests::new();
    let shared = Shared::default();
    let run = Run {
        config,
        device,
        keys,
        listener: &all,
        stop,
        requests: &requests,
        shared: &shared,
        wanted: &WantedScores::NONE,
    };
    let mut work = Work::new(prepared, &folder, path, reasons);
    let finish = |outcome: &str| all.finish(&name, outcome, started);
    let trained_before = trained_before(path);
    let profiling = Profiling::start(prepared.profile(), &all);
    firebox_train::memory::reset_peak();
    // The sampler ends before the report, which tells of its samples.
    let made = make(&run, &mut work).inspect_err(|error| {
        finish(&failed(error));
        // Nobody goes on with a run whose input was refused.
        if error.is_bad_input() {
            folder.forget();
        }
    })?;
    let profile = profiling.end(&folder, trained_before, device, &all);
    let Made { report, trained, outcome } = match made {
        Making::Complete(made) => *made,
        Making::Interrupted { step } => {
            finish("interrupted");
            return Ok(interrupted(path, step, work.remade));
        }
    };
    for Raster { name, width, height, palette, pixels } in report.pictures() {
        trackers.picture(Picture { name, width, height, palette, pixels });
    }
    finish(&outcome);
    let report =
        page::complete(&run, &work, report, profile).inspect_err(|error| finish(&failed(error)))?;
    let said = Conclusion { trained, verdict: report.verdict };
    folder.finish(keys.evaluation, &said)?;
    Ok(Finished {
        run: path.to_path_buf(),
        report: report.page,
        outcome: Outcome::Finished,
        trained: said.trained,
        verdict: said.verdict,
        remade: work.remade,
    })
}

/// Makes everything up to the report, while the machine is sampled and what is asked for is done.
fn make(run: &Run<'_>, work: &mut Work<'_>) -> Result<Making, PipelineError> {
    let (chain, device, path) = (run.config.pipeline.chain(), run.device, work.path);
    let (period, threads) = (run.config.monitor.period, rayon::current_num_threads());
    let made =
        sampled_with(period, threads, device.watched(), &|| pools(device), run.listener, || {
            obeying(path, run.requests, run.listener, || chain.make(run, work))
        });
    match made {
        // Before or between trainings: what earlier attempts saved is all there is.
        Err(PipelineError::Interrupted) => {
            Ok(Making::Interrupted { step: steps_whole(path).unwrap_or(0) })
        }
        made => made,
    }
}

/// A run that was asked to stop and goes on another time from this step.
fn interrupted(path: &Path, step: u64, remade: usize) -> Finished {
    Finished {
        run: path.to_path_buf(),
        report: path.join("report.html"),
        outcome: Outcome::Interrupted { step },
        trained: String::new(),
        verdict: String::new(),
        remade,
    }
}

/// Says that no stage has anything to do: what the run left is whole, and needs nothing that it was
/// made from.
fn already_done(
    said: &Conclusion,
    prepared: &Prepared,
    keys: &Keys,
    path: &Path,
    listener: &dyn Listener,
) -> Finished {
    if prepared.profile().is_some() {
        let message = "nothing was profiled: the finished run is there, and no step is taken";
        listener.on(&Event::Warning { message: message.to_owned() });
    }
    let stages = prepared.config().pipeline.chain().stages(keys);
    // Windows are views: there is nothing of theirs to reuse.
    let stages = stages.into_iter().filter(|(stage, _)| *stage != "windows");
    for (stage, key) in stages {
        listener.on(&Event::StageFinished {
            stage: stage.to_owned(),
            key,
            reused: true,
            seconds: 0.0,
            detail: "the finished run is there and whole".to_owned(),
        });
    }
    scored(path).iter().for_each(|event| listener.on(event));
    Finished {
        run: path.to_path_buf(),
        report: path.join("report.html"),
        outcome: Outcome::Finished,
        trained: said.trained.clone(),
        verdict: said.verdict.clone(),
        remade: 0,
    }
}

/// What a finished run told of its model when it ended, as far as its log can be read.
fn scored(path: &Path) -> Vec<Event> {
    let mut scored = vec![];
    // What no log can tell, scores.json and the report do: they are whole.
    let _ = replay(path, &mut |event| match event {
        // The last attempt is the one that finished.
        Event::RunStarted { .. } => scored.clear(),
        Event::Scored { .. } => scored.push(event.clone()),
        _ => {}
    });
    scored
}

/// What a run's training said when it ended, if it ended under this key.
pub(crate) fn summary_of(path: &Path, keys: &Keys) -> Option<firebox_train::Summary> {
    let text = std::fs::read(path.join(firebox_train::SUMMARY_FILE)).ok()?;
    let summary: firebox_train::Summary = serde_json::from_slice(&text).ok()?;
    (summary.key == keys.training).then_some(summary)
}

/// Whether a run's training has ended before.
pub(crate) fn trained_before(path: &Path) -> bool {
    path.join(firebox_train::SUMMARY_FILE).is_file()
}

/// The outcome of a run that ended with this error: its text and its causes, in one line.
pub(crate) fn failed(error: &PipelineError) -> String {
    let mut outcome = format!("failed: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        outcome += &format!(": {error}");
        cause = error.source();
    }
    outcome.split_whitespace().collect::<Vec<_>>().join(" ")
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
        let (result, reused, detail) = work().map_err(PipelineError::or_interrupted)?;
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

    /// Says that the result of a stage was made by another trial of this worker.
    pub(crate) fn shared_stage(&self, name: &str, key: Option<Key>) {
        self.listener.on(&Event::StageFinished {
            stage: name.to_owned(),
            key,
            reused: true,
            seconds: 0.0,
            detail: "shared with other trials of this worker".to_owned(),
        });
    }

    pub(crate) fn augment(
        &self,
        windows: &Windows,
        remade: &mut usize,
    ) -> Result<Arc<Shards>, PipelineError> {
        self.stage("augment", Some(self.keys.augmented), remade, || {
            let make = || {
                Store::open(&self.config.run.cache)?.stopped_by(self.stop).augmented(
                    self.keys.augmented,
                    &windows.parts.train,
                    &windows.normaliser,
                    &effective(&self.config.augment),
                    self.config.run.seed,
                    self.listener,
                )
            };
            let (shards, there) = self.shared.get("augmented", self.keys.augmented, make)?;
            let megabytes = shards.bytes() as f64 / 1e6;
            let detail = format!("{} windows, {megabytes:.1} MB", shards.len());
            let reused = there || shards.reused();
            Ok((shards, reused, detail))
        })
    }

    /// How batches are loaded.
    pub(crate) fn loader(&self) -> LoaderConfig {
        let loader = self.config.loader.resolve(self.config.run.seed);
        LoaderConfig { upload_ahead: upload_ahead(self.device, loader.upload_ahead), ..loader }
    }
}

#[cfg(test)]
mod tests {
    use firebox_core::Silent;

    use super::*;

    fn bars(path: &Path, steps: u32) {
        let bar = |step| {
            let price = 100.0 + f64::from(step).sin();
            format!("{price},{},{},{}\n", price + 1.0, price - 1.0, price + 0.5)
        };
        let rows: String = (0..steps).map(bar).collect();
        std::fs::write(path, format!("open,high,low,close\n{rows}")).unwrap();
    }

    #[test]
    fn files_that_change_between_key_and_reading_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("bars.csv");
        bars(&data, 300);
        let mut config = PipelineConfig::default();
        config.data.path = firebox_data::Paths(vec![data.clone()]);
        config.run.cache = folder.path().join("cache");
        config.run.directory = folder.path().join("runs");
        (config.window.length, config.window.stride, config.monitor.period) = (10, 1, 0.0);
        let (device, stop) = (ChosenDevice::named("cpu"), Arc::default());
        let prepared = Prepared::of("p", config.clone());
        let (keys, path) = prepared.place(&device).unwrap();
        bars(&data, 301);
        let made = super::run(&prepared, &device, &keys, &path, (Asker::User, &stop), &Silent);
        assert!(matches!(made, Err(PipelineError::OtherData)), "{:?}", made.err());
        assert!(!path.join("checkpoints").exists());
        assert!(firebox_data::stored_checks(&config.run.cache, keys.series).is_none());
        // As they were, they are read.
        bars(&data, 300);
        let run = Run {
            config: &config,
            device: &device,
            keys: &keys,
            listener: &Silent,
            stop: &stop,
            requests: &Requests::new(),
            shared: &Shared::default(),
            wanted: &WantedScores::NONE,
        };
        assert_eq!(run.ingest(&mut 0).unwrap().0.key, keys.series);
    }
}
