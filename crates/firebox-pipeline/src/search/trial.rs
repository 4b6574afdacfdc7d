//! One trial: a run of the pipeline up to the end of its training, watched epoch by epoch.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use firebox_core::{Event, Key, Listener};
use firebox_search::{Study, StudyError, Trial, TrialHandle, TrialState};

use super::Objectives;
use super::settled::{self, Told};
use super::training::{Ended, Halt, train_only};
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::folder::is_searched;
use crate::forgotten::forgotten;
use crate::score::Score;
use crate::settle::multiplying;
use crate::shared::Shared;
use crate::{PipelineConfig, Prepared};

/// User attribute with the name of a trial's run folder.
const RUN: &str = "run";
const EPOCHS: &str = "epochs";
const PARAMETERS: &str = "parameters";

/// Time between two looks at a run folder that another worker uses.
pub(super) const PAUSE: Duration = Duration::from_millis(500);

/// Sends the value of each epoch to the study, and stops training when the trial is given up or the
/// worker is stopped.
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
    /// What the worker has said.
    told: &'a Told,
    /// Number of the trial, and epochs that it may take.
    number: u64,
    epochs: u64,
    /// Whether any epoch ended.
    trained: AtomicBool,
    /// What of each epoch is for others to be compared with.
    reports: Reports,
    /// The score of the epoch that is about to end.
    score: Mutex<Option<f64>>,
}

/// What a trial reports after each epoch that is validated.
#[derive(Clone, Copy)]
enum Reports {
    /// Nothing, with several objectives.
    Nothing,
    Loss,
    Score(Score),
}

impl Reports {
    fn of(objectives: &Objectives) -> Self {
        match objectives.all() {
            [only] => only.score().map_or(Self::Loss, Self::Score),
            _ => Self::Nothing,
        }
    }
}

impl Watcher<'_, '_> {
    fn report(&self, epoch: u64, value: f64) -> Result<bool, StudyError> {
        let mut trial = self.trial.lock().unwrap_or_else(PoisonError::into_inner);
        // Optuna's pruners count from 0.
        trial.report(epoch.saturating_sub(1), value)?;
        trial.should_prune()
    }

    /// The value of an epoch that ends, if it was validated and is reported.
    fn value(&self, validation_loss: Option<f64>) -> Option<f64> {
        match self.reports {
            Reports::Nothing => None,
            Reports::Loss => validation_loss,
            Reports::Score(_) => self.score.lock().unwrap_or_else(PoisonError::into_inner).take(),
        }
    }

    fn epoch(&self, epoch: u64, value: f64) {
        match self.report(epoch, value) {
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
}

impl Listener for Watcher<'_, '_> {
    fn on(&self, event: &Event) {
        if self.stop.load(Ordering::SeqCst) {
            self.halt.stop.store(true, Ordering::SeqCst);
        }
        if let Event::Epoch { epoch, .. } = event {
            self.trained.store(true, Ordering::SeqCst);
            self.listener.on(&Event::Progress {
                stage: format!("trial {}", self.number),
                done: *epoch,
                total: self.epochs,
                unit: format!("epochs of trial {}", self.number),
            });
        }
        match event {
            Event::Scored { name, value } => {
                if matches!(self.reports, Reports::Score(own) if own.event() == name) {
                    let mut score = self.score.lock().unwrap_or_else(PoisonError::into_inner);
                    *score = Some(*value);
                }
            }
            Event::Epoch { epoch, validation_loss, .. } => {
                if let Some(value) = self.value(*validation_loss) {
                    self.epoch(*epoch, value);
                }
            }
            // Of a trial without steps it is told how far its data are read.
            Event::Progress { stage, .. } if stage == "ingest" => self.listener.on(event),
            // Each trial has a log of its own; only what the user should know is said at once, and once for all trials.
            Event::Warning { message } if self.told.is_new(message) => self.listener.on(event),
            _ => {}
        }
    }
}

/// How a trial's training ended.
pub(super) enum Ran {
    /// With this least validation loss, which is infinite if none was finite, so many parameters, and the scores that
    /// were wanted.
    Complete {
        loss: f64,
        parameters: u64,
        scores: Vec<f64>,
    },
    Pruned,
    Interrupted,
}

/// What a trial has of the worker that runs it.
pub(super) struct Worker<'a> {
    pub(super) study: &'a Study,
    /// Key of the data that its trials are compared by.
    pub(super) data: Key,
    pub(super) device: &'a ChosenDevice,
    pub(super) stop: &'a Arc<AtomicBool>,
    pub(super) shared: &'a Shared,
    pub(super) listener: &'a dyn Listener,
    pub(super) told: &'a Told,
}

/// Trains with these settings. The run folder is named after its key: a trial that is tried again
/// goes on from the last checkpoint of the one before, and two with the same values are one run.
pub(super) fn run(
    name: &str,
    config: PipelineConfig,
    objectives: &Objectives,
    worker: &Worker<'_>,
    trial: &mut TrialHandle<'_>,
) -> Result<Ran, PipelineError> {
    let Worker { study, data, device, stop, shared, listener, told } = *worker;
    let (number, epochs) = (trial.number(), config.train.epochs);
    let written = Prepared::of(name, config);
    let settling = told.listening(number, listener);
    let prepared = match written.settled_until(device, stop, shared, &settling) {
        Err(PipelineError::Interrupted) => return Ok(Ran::Interrupted),
        settled => settled?,
    };
    settled::keep(trial, written.config(), &prepared)?;
    let (keys, path) = prepared.place(device)?;
    if keys.series != data {
        return Err(PipelineError::OtherStudyData { study: name.to_owned() });
    }
    trial.set_attribute(RUN, folder_name(&path).into())?;
    let wanted = objectives.wanted();
    let halt = Halt::default();
    let (trained, anew, pruned, failed) = {
        let watcher = Watcher {
            trial: Mutex::new(trial),
            stop,
            halt: &halt,
            told,
            pruned: AtomicBool::new(false),
            failed: Mutex::new(None),
            listener,
            number,
            epochs,
            trained: AtomicBool::new(false),
            reports: Reports::of(objectives),
            score: Mutex::new(None),
        };
        let mut waits = false;
        let trained = loop {
            let common = (shared, &wanted);
            // Looked up anew after each wait: whoever had it in hand may have told its scores and removed its checkpoint.
            let train = || match known(study, objectives, &path, keys.training)? {
                Some(ended) => Ok(Some(ended)),
                None => train_only(&prepared, device, &keys, &path, &halt, common, &watcher),
            };
            match multiplying(prepared.config().run.matmul, train) {
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
                Err(error) if error.begins_anew() && stop.load(Ordering::SeqCst) => break Ok(None),
                // It goes on from its newest checkpoint, in parts of half the size at most each time.
                Err(error) if error.begins_anew() => {
                    let message = format!("trial {number} begins anew: {error}");
                    listener.on(&Event::Warning { message });
                }
                other => break other,
            }
        };
        let failed = watcher.failed.into_inner().unwrap_or_else(PoisonError::into_inner);
        (trained, watcher.trained.into_inner(), watcher.pruned.into_inner(), failed)
    };
    if let Some(error) = failed {
        return Err(error.into());
    }
    let (summary, scores) = match trained? {
        _ if pruned => return Ok(Ran::Pruned),
        None => return Ok(Ran::Interrupted),
        Some(ended) => ended,
    };
    let reports = !matches!(Reports::of(objectives), Reports::Nothing);
    if !anew && let Some(original) = original(study, trial, reports)? {
        trial.repeat(original)?;
    }
    trial.set_attribute(EPOCHS, summary.epochs.into())?;
    trial.set_attribute(PARAMETERS, summary.parameters.into())?;
    // A training that ended was validated; without a best epoch, no loss of it was finite.
    let loss = summary.best.map_or(f64::INFINITY, |best| best.loss);
    Ok(Ran::Complete { loss, parameters: summary.parameters, scores })
}

/// What a trial has whose run was trained before and has no checkpoint any more, if the study knows its
/// scores: nothing is trained again for them.
fn known(
    study: &Study,
    objectives: &Objectives,
    run: &Path,
    key: Key,
) -> Result<Option<Ended>, StudyError> {
    let Some(summary) = forgotten(run).filter(|summary| summary.key == key) else {
        return Ok(None);
    };
    let name = folder_name(run);
    let trials = study.trials()?;
    let mut same = trials.iter().filter(|trial| {
        trial.state == TrialState::Complete && run_of(trial).is_some_and(|own| own == name)
    });
    let scores = same.find_map(|trial| objectives.scores(trial.values.as_deref()?));
    Ok(scores.map(|scores| (summary, scores)))
}

/// The trial that trained what this one has found trained, if it is of this study and has reported
/// something, if trials do. It may not have ended yet: another worker writes down its value just now.
fn original(
    study: &Study,
    own: &TrialHandle<'_>,
    reports: bool,
) -> Result<Option<u64>, StudyError> {
    let Some(own) = own.trial().filter(|own| own.intermediate.is_empty()) else { return Ok(None) };
    let trains = |trial: &&Trial| {
        matches!(trial.state, TrialState::Complete | TrialState::Running)
            && trial.repeats().is_none()
            && (!reports || !trial.intermediate.is_empty())
            && trial.number != own.number
            && run_of(trial) == run_of(&own)
    };
    Ok(study.trials()?.iter().find(trains).map(|trial| trial.number))
}

pub(super) fn folder_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Name of a trial's run folder, once it has one.
pub(super) fn run_of(trial: &Trial) -> Option<String> {
    trial.user_attributes.get(RUN).and_then(|run| run.as_str()).map(str::to_owned)
}

/// Removes the checkpoints of a run that ended, and leaves what it logged. One that somebody asked for, before the search
/// or after it, stays whole.
pub(super) fn forget(run: &Path) {
    let checkpoints: PathBuf = run.join(firebox_train::CHECKPOINT_FOLDER);
    if checkpoints.is_dir()
        && let Ok(_held) = crate::folder::RunFolder::open(run)
        && is_searched(run)
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

#[cfg(test)]
mod tests {
    use firebox_search::{Budget, Direction, Ended, Options, RandomSampler, Storage};

    use super::*;
    use crate::forgotten::tests::ended;

    #[test]
    fn a_trial_whose_run_has_no_checkpoint_any_more_has_the_scores_that_the_study_knows() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("p-1");
        let (key, other) = (Key::builder("test", 1).finish(), Key::builder("test", 2).finish());
        let summary = ended(&run, key);
        let storage = Arc::new(Storage::memory().unwrap());
        let options = Options::new(RandomSampler::new(1));
        let study = Study::create(&storage, "s", &[Direction::Maximize], options).unwrap();
        let by_r2: Objectives = serde_json::from_str("\"validation-r2\"").unwrap();
        let found = |key| known(&study, &by_r2, &run, key).unwrap();
        let end = |run: &str, ended| {
            let mut trial = study.ask(&Budget::default()).unwrap().unwrap();
            trial.set_attribute(RUN, run.into()).unwrap();
            trial.tell(ended).unwrap();
        };
        end("p-1", Ended::Complete(vec![f64::INFINITY]));
        end("p-2", Ended::Complete(vec![0.25]));
        end("p-1", Ended::Failed("why".to_owned()));
        std::fs::remove_dir_all(summary.selected_path(&run)).unwrap();
        assert_eq!(found(key), None, "no trial of this run has a score");
        end("p-1", Ended::Complete(vec![0.75]));
        assert_eq!((found(key), found(other)), (Some((summary.clone(), vec![0.75])), None));
        // While the checkpoint is there, the model is scored, whatever was written of it.
        ended(&run, key);
        assert_eq!(found(key), None);
    }

    #[test]
    fn only_what_the_search_made_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("p-1");
        let key = Key::builder("test", 1).finish();
        let is_there = || run.join(firebox_train::CHECKPOINT_FOLDER).is_dir();
        crate::folder::RunFolder::open(&run).unwrap().mark_if_new().unwrap();
        ended(&run, key);
        // Somebody ran it by itself, and the folder is not new any more.
        crate::folder::unmark(&run);
        crate::folder::RunFolder::open(&run).unwrap().mark_if_new().unwrap();
        forget(&run);
        assert!(is_there());
        let another = folder.path().join("p-2");
        crate::folder::RunFolder::open(&another).unwrap().mark_if_new().unwrap();
        ended(&another, key);
        forget(&another);
        assert!(!another.join(firebox_train::CHECKPOINT_FOLDER).is_dir());
    }
}
