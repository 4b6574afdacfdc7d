//! One trial: a run of the pipeline up to the end of its training, watched epoch by epoch.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use firebox_core::{Event, Listener};
use firebox_search::{StudyError, Trial, TrialHandle};

use super::training::{Halt, train_only};
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::shared::Shared;
use crate::{PipelineConfig, Prepared};

/// User attribute with the name of a trial's run folder.
const RUN: &str = "run";
const EPOCHS: &str = "epochs";
const PARAMETERS: &str = "parameters";

/// Time between two looks at a run folder that another worker uses.
pub(super) const PAUSE: Duration = Duration::from_millis(500);

/// Sends the validation loss of each epoch to the study, and stops training when the trial is given
/// up or the worker is stopped.
struct Watcher<'a, 'study> {
    trial: Mutex<&'a mut TrialHandle<'study>>,
    /// Of the worker.
    stop: &'a AtomicBool,
    /// Of this training.
    halt: &'a Halt,
    pruned: AtomicBool,
    /// What kept the study from taking a value.
    failed: Mutex<Option<StudyError>>,
    listener: &'a dyn Listener,
    /// Number of the trial, and epochs that it may take.
    number: u64,
    epochs: u64,
    /// Whether its losses are for others to be compared with: not with several objectives.
    reports: bool,
}

impl Watcher<'_, '_> {
    fn report(&self, epoch: u64, loss: f64) -> Result<bool, StudyError> {
        let mut trial = self.trial.lock().unwrap_or_else(PoisonError::into_inner);
        // Optuna's pruners count from 0.
        trial.report(epoch.saturating_sub(1), loss)?;
        trial.should_prune()
    }
}

impl Listener for Watcher<'_, '_> {
    fn on(&self, event: &Event) {
        if self.stop.load(Ordering::SeqCst) {
            self.halt.stop.store(true, Ordering::SeqCst);
        }
        if let Event::Epoch { epoch, .. } = event {
            self.listener.on(&Event::Progress {
                stage: format!("trial {}", self.number),
                done: *epoch,
                total: self.epochs,
                unit: format!("epochs of trial {}", self.number),
            });
        }
        match event {
            Event::Epoch { epoch, validation_loss: Some(loss), .. } if self.reports => {
                match self.report(*epoch, *loss) {
                    Ok(false) => {}
                    Ok(true) => {
                        self.pruned.store(true, Ordering::SeqCst);
                        // Its checkpoints would be removed as soon as they are written.
                        self.halt.requests.give_up();
                        self.halt.stop.store(true, Ordering::SeqCst);
                    }
                    Err(error) => {
                        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                        *failed = Some(error);
                        self.halt.stop.store(true, Ordering::SeqCst);
                    }
                }
            }
            // Each trial has a log of its own; only what the user should know is said at once.
            Event::Warning { .. } => self.listener.on(event),
            _ => {}
        }
    }
}

/// How a trial's training ended.
pub(super) enum Ran {
    /// With this least validation loss, and so many parameters.
    Complete {
        loss: f64,
        parameters: u64,
    },
    Pruned,
    Interrupted,
}

/// Trains with these settings. The run folder is named after its key: a trial that is tried again
/// goes on from the last checkpoint of the one before, and two with the same values are one run.
pub(super) fn run(
    name: &str,
    config: PipelineConfig,
    device: &ChosenDevice,
    stop: &AtomicBool,
    shared: &Shared,
    listener: &dyn Listener,
    trial: &mut TrialHandle<'_>,
) -> Result<Ran, PipelineError> {
    let (number, epochs) = (trial.number(), config.train.epochs);
    let prepared = Prepared::of(name, config).settled(device)?;
    let (keys, path) = prepared.place(device)?;
    trial.set_attribute(RUN, folder_name(&path).into())?;
    let reports = trial.directions().len() == 1;
    let halt = Halt::default();
    let (trained, pruned, failed) = {
        let watcher = Watcher {
            trial: Mutex::new(trial),
            stop,
            halt: &halt,
            pruned: AtomicBool::new(false),
            failed: Mutex::new(None),
            listener,
            number,
            epochs,
            reports,
        };
        let mut waits = false;
        let trained = loop {
            match train_only(&prepared, device, &keys, &path, &halt, shared, &watcher) {
                // Another worker has the same values in hand, or is dying with this very trial.
                Err(PipelineError::InUse(_)) if stop.load(Ordering::SeqCst) => break Ok(None),
                Err(PipelineError::InUse(folder)) => {
                    if !std::mem::replace(&mut waits, true) {
                        let message = format!(
                            "trial {number} waits for {}, which another worker has in hand",
                            folder.display()
                        );
                        listener.on(&Event::Warning { message });
                    }
                    std::thread::sleep(PAUSE);
                }
                other => break other,
            }
        };
        let failed = watcher.failed.into_inner().unwrap_or_else(PoisonError::into_inner);
        (trained, watcher.pruned.into_inner(), failed)
    };
    if let Some(error) = failed {
        return Err(error.into());
    }
    let summary = match trained? {
        _ if pruned => return Ok(Ran::Pruned),
        None => return Ok(Ran::Interrupted),
        Some(summary) => summary,
    };
    trial.set_attribute(EPOCHS, summary.epochs.into())?;
    trial.set_attribute(PARAMETERS, summary.parameters.into())?;
    let best = summary.best.ok_or_else(|| {
        PipelineError::Setting("its training ended before the first validation".to_owned())
    })?;
    Ok(Ran::Complete { loss: best.loss, parameters: summary.parameters })
}

pub(super) fn folder_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Name of a trial's run folder, once it has one.
pub(super) fn run_of(trial: &Trial) -> Option<String> {
    trial.user_attributes.get(RUN).and_then(|run| run.as_str()).map(str::to_owned)
}

/// Removes the checkpoints of a run that ended, and leaves what it logged.
pub(super) fn forget(run: &Path) {
    let checkpoints: PathBuf = run.join(firebox_train::CHECKPOINT_FOLDER);
    if checkpoints.is_dir()
        && let Ok(_held) = crate::folder::RunFolder::open(run)
    {
        // What cannot be removed costs room and nothing else.
        let _ = std::fs::remove_dir_all(checkpoints);
    }
}

/// Bytes of the checkpoints of a run.
pub(super) fn checkpoint_bytes(run: &Path) -> u64 {
    fn size(path: &Path) -> u64 {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        let of = |entry: std::fs::DirEntry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => size(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        };
        entries.map(of).sum()
    }
    size(&run.join(firebox_train::CHECKPOINT_FOLDER))
}
