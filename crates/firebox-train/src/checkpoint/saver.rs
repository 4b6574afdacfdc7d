//! Writes checkpoints, in the background or at once, and removes those that the rule gives up.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::Scope;
use std::time::{Duration, Instant};

use firebox_core::{Event, Listener, new_thread};
use serde::{Deserialize, Serialize};

use super::retention::{Entry, Rule};
use super::{Checkpoint, CheckpointError, Kind, checkpoints, discard, sweep, write};
use crate::config::CheckpointConfig;
use crate::rollback::RollbackSteps;
use crate::snapshot::Snapshot;
use crate::state::State;

/// A checkpoint to be written.
pub(crate) struct Job {
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) state: State,
    pub(crate) kind: Kind,
    pub(crate) score: Option<f64>,
    /// The history, whose lines must be on disk before the checkpoint that counts on them.
    pub(crate) history: File,
    /// Time that training has stood still for it.
    pub(crate) blocked: Duration,
    /// Whether training stands still until it is written.
    pub(crate) waits: bool,
}

/// Time and size of saves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SaveTimes {
    /// Checkpoints written.
    pub saves: u64,
    /// Seconds that training stood still for them.
    pub blocked_seconds: f64,
    /// Seconds that writing took, in the background or not.
    pub write_seconds: f64,
    /// Bytes written.
    pub bytes: u64,
}

/// Writes checkpoints of one run, one after the other.
pub(crate) struct Writer<'a> {
    folder: PathBuf,
    rule: Rule,
    asynchronous: bool,
    listener: &'a dyn Listener,
    /// Whether it was told that a checkpoint that is given up stays.
    told: AtomicBool,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(
        folder: PathBuf,
        config: &CheckpointConfig,
        listener: &'a dyn Listener,
    ) -> Self {
        let rollback = RollbackSteps::default();
        let rule = Rule { keep: config.keep, budget: config.size_budget, rollback };
        let told = AtomicBool::new(false);
        Self { folder, rule, asynchronous: config.asynchronous, listener, told }
    }

    fn save(&self, job: &Job) -> Result<SaveTimes, CheckpointError> {
        let start = Instant::now();
        let _span = tracing::info_span!("write checkpoint", step = job.state.step).entered();
        job.history.sync_data().map_err(|source| CheckpointError::Write {
            action: "synchronise the history beside",
            path: self.folder.clone(),
            source,
        })?;
        let saved = write(&self.folder, &job.snapshot, &job.state, job.kind, job.score)?;
        self.tidy(job.state.rollback, false);
        let write_time = start.elapsed();
        let waited = job.waits || !self.asynchronous;
        let blocked = if waited { job.blocked + write_time } else { job.blocked };
        self.listener.on(&Event::Checkpoint {
            step: job.state.step,
            path: saved.path().display().to_string(),
            blocked_milliseconds: blocked.as_secs_f64() * 1e3,
            save_milliseconds: write_time.as_secs_f64() * 1e3,
            bytes: saved.bytes(),
        });
        Ok(SaveTimes {
            saves: 1,
            blocked_seconds: blocked.as_secs_f64(),
            write_seconds: write_time.as_secs_f64(),
            bytes: saved.bytes(),
        })
    }

    /// Removes what the rule gives up and no rollback needs. What cannot be removed, such as what somebody reads on a disk of
    /// a network, is tried again the next time: it is no reason to end a training whose checkpoints are saved.
    pub(crate) fn tidy(&self, rollback: RollbackSteps, finished: bool) {
        let tidied = self.parted(rollback, finished).and_then(|[_, gone]| {
            // One that stays keeps no other.
            let discarded: Vec<_> = gone.iter().map(|old| discard(old.path())).collect();
            discarded.into_iter().collect::<Result<(), _>>()
        });
        // What somebody else had open, when it was to be removed.
        sweep(&self.folder);
        if let Err(error) = tidied
            && !self.told.swap(true, Ordering::Relaxed)
        {
            let why = match error {
                CheckpointError::Write { action, path, source } => {
                    format!("cannot {action} `{}`: {source}", path.display())
                }
                error => error.to_string(),
            };
            let message = format!("a checkpoint that is not needed any more stays for now: {why}");
            self.listener.on(&Event::Warning { message });
        }
    }

    /// The checkpoints that the rule keeps, and those that it gives up, newest first.
    pub(crate) fn parted(
        &self,
        rollback: RollbackSteps,
        finished: bool,
    ) -> Result<[Vec<Checkpoint>; 2], CheckpointError> {
        let entry = |checkpoint: &Checkpoint| {
            let manifest = checkpoint.manifest();
            let (step, kind, score) = (manifest.step, manifest.kind, manifest.score);
            Entry { step, kind, score, bytes: checkpoint.bytes() }
        };
        let there = checkpoints(&self.folder)?;
        let entries: Vec<Entry> = there.iter().map(entry).collect();
        let gone = Rule { rollback, ..self.rule }.discarded(&entries, finished);
        let is_gone = |checkpoint: &Checkpoint| gone.contains(&checkpoint.manifest().step);
        let (gone, kept) = there.into_iter().partition(is_gone);
        Ok([kept, gone])
    }
}

/// Hands checkpoints to a [`Writer`].
pub(crate) struct Saver<'a> {
    route: Route<'a>,
    times: SaveTimes,
}

enum Route<'a> {
    Inline(Writer<'a>),
    Background { jobs: Sender<Job>, results: Receiver<Outcome>, busy: bool },
}

type Outcome = Result<SaveTimes, CheckpointError>;

impl<'a> Saver<'a> {
    /// A saver that writes as the configuration says; a background thread lives in `scope` and ends
    /// with the saver. Where the system gives none, training waits for each save.
    pub(crate) fn start<'scope>(scope: &'scope Scope<'scope, '_>, mut writer: Writer<'a>) -> Self
    where
        'a: 'scope,
    {
        let times = SaveTimes::default();
        if !writer.asynchronous {
            return Self { route: Route::Inline(writer), times };
        }
        let (jobs, waiting) = channel::<Job>();
        let (done, results) = channel();
        // It goes to the thread once that is there.
        let (hand, taken) = channel::<Writer<'a>>();
        let work = move || {
            let Ok(writer) = taken.recv() else { return };
            for job in waiting {
                let saved = writer.save(&job);
                // Whoever waits for the result may need the memory.
                drop(job);
                if done.send(saved).is_err() {
                    break;
                }
            }
        };
        let thread = new_thread("firebox-saver");
        if let Err(error) = thread.and_then(|thread| thread.spawn_scoped(scope, work)) {
            let message = format!(
                "there is no thread for checkpoints: {error}; training waits for each until it is written, as with train.checkpoint.asynchronous = false"
            );
            writer.listener.on(&Event::Warning { message });
            writer.asynchronous = false;
            return Self { route: Route::Inline(writer), times };
        }
        // It waits for nothing else.
        let _ = hand.send(writer);
        Self { route: Route::Background { jobs, results, busy: false }, times }
    }

    /// Waits until an earlier save is done, so that there is never more than one copy.
    pub(crate) fn wait(&mut self) -> Result<(), CheckpointError> {
        self.collect(None)
    }

    /// Looks whether a save has failed meanwhile.
    pub(crate) fn check(&mut self) -> Result<(), CheckpointError> {
        self.collect(Some(Duration::ZERO))
    }

    fn collect(&mut self, timeout: Option<Duration>) -> Result<(), CheckpointError> {
        let Route::Background { results, busy: busy @ true, .. } = &mut self.route else {
            return Ok(());
        };
        let outcome = match timeout {
            Some(timeout) => results.recv_timeout(timeout),
            None => results.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match outcome {
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => Err(CheckpointError::Thread),
            Ok(outcome) => {
                *busy = false;
                self.count(outcome?);
                Ok(())
            }
        }
    }

    fn count(&mut self, one: SaveTimes) {
        self.times.saves += one.saves;
        self.times.blocked_seconds += one.blocked_seconds;
        self.times.write_seconds += one.write_seconds;
        self.times.bytes += one.bytes;
    }

    /// Writes a checkpoint or hands it over. [`Saver::wait`] must have been called.
    pub(crate) fn save(&mut self, job: Job) -> Result<(), CheckpointError> {
        match &mut self.route {
            Route::Inline(writer) => {
                let times = writer.save(&job)?;
                self.count(times);
                Ok(())
            }
            Route::Background { jobs, busy, .. } => {
                *busy = true;
                jobs.send(job).map_err(|_| CheckpointError::Thread)
            }
        }
    }

    /// Time and size of the saves that are done.
    pub(crate) fn times(&self) -> SaveTimes {
        self.times
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use firebox_core::with_threads;

    use super::*;

    #[test]
    fn without_a_thread_checkpoints_are_written_by_whoever_trains() {
        let folder = tempfile::tempdir().unwrap();
        let said = Mutex::new(vec![]);
        let listener = |event: &Event| {
            if let Event::Warning { message } = event {
                said.lock().unwrap().push(message.clone());
            }
        };
        let is_inline = || {
            let config = CheckpointConfig::default();
            let writer = Writer::new(folder.path().to_owned(), &config, &listener);
            std::thread::scope(|scope| {
                let saver = Saver::start(scope, writer);
                matches!(&saver.route, Route::Inline(writer) if !writer.asynchronous)
            })
        };
        assert!(with_threads(0, is_inline) && !is_inline());
        let said = said.into_inner().unwrap();
        assert!(said.len() == 1 && said[0].contains("asynchronous = false"), "{said:?}");
    }
}
