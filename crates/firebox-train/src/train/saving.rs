//! When a training is saved, and what is held in memory until then. Files are written in
//! `checkpoint/`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use burn::module::Module;
use firebox_core::Event;
use firebox_kernels::release_buffers;
use tracing::info_span;

use super::{Session, is_saved};
use crate::TrainError;
use crate::checkpoint::{Job, Kind, Saver};
use crate::config::{CHECKPOINT_INTERVAL, CheckpointConfig, Keep, NonFinite};
use crate::division::BatchWork;
use crate::run::{CHECKPOINT_FOLDER, Outcome};
use crate::snapshot::Snapshot;

impl<M: Module> Session<'_, M> {
    /// Whether this step is one that the configuration saves by its number.
    pub(super) fn save_is_due(&self) -> bool {
        let every = match self.config.checkpoint.keep {
            Keep::EverySteps(steps) => Some(steps),
            _ => None,
        };
        let step = self.state.step;
        [every, self.config.checkpoint.resume_every]
            .into_iter()
            .flatten()
            .any(|n| step.is_multiple_of(n))
    }

    /// Saves after an interruption, and waits until it is on disk.
    pub(super) fn interrupt(&mut self, saver: &mut Saver<'_>) -> Result<Outcome, TrainError> {
        saver.wait()?;
        self.settle()?;
        let saved = self.saved == Some((self.state.step, self.state.closed_at));
        if !saved && !self.run.requests.is_given_up() {
            self.save(saver, Kind::Interrupt, None)?;
        }
        saver.wait()?;
        Ok(Outcome::Interrupted)
    }

    /// Saves what was learnt before the data failed, as an interruption does, and says that it is kept or why it is not.
    pub(super) fn keep(&mut self, saver: &mut Saver<'_>) {
        let step = self.state.step;
        if step == 0 {
            return;
        }
        let message = match self.interrupt(saver) {
            // Nobody will go on with it.
            Ok(_) if self.saved.is_none_or(|(saved, _)| saved != step) => return,
            Ok(_) => format!(
                "the data failed after step {step}, which is saved: the same command goes on from there"
            ),
            Err(error) => {
                format!("the data failed after step {step}, which cannot be saved: {error}")
            }
        };
        self.run.listener.on(&Event::Warning { message });
    }

    /// Saves the epoch that was just closed, or holds it until the next save.
    pub(super) fn save_epoch(
        &mut self,
        saver: &mut Saver<'_>,
        score: Option<f64>,
        finished: bool,
    ) -> Result<(), TrainError> {
        self.begin_saving();
        let saved = self.save_epoch_now(saver, score, finished);
        self.watch.end();
        saved
    }

    fn save_epoch_now(
        &mut self,
        saver: &mut Saver<'_>,
        score: Option<f64>,
        finished: bool,
    ) -> Result<(), TrainError> {
        let CheckpointConfig { keep, interval, .. } = self.config.checkpoint;
        let due = self.save_is_due();
        if keep != Keep::BestOnly || self.config.non_finite == NonFinite::Rollback {
            let wanted = keep.saves_epochs() || due || finished;
            return if wanted { self.save(saver, Kind::Epoch, score) } else { Ok(()) };
        }
        let best = self.state.best.is_some_and(|best| best.step == self.state.step);
        if finished {
            saver.wait()?;
        }
        if finished && !best && (self.held.is_some() || self.best_is_saved()) {
            let held = self.held.take();
            return held.map_or(Ok(()), |held| self.hand_over(saver, held));
        }
        let pause = Duration::from_secs(interval.unwrap_or(CHECKPOINT_INTERVAL));
        // Where memory is short, none is kept in it.
        let now = best && self.divisions.are_lean();
        if finished || due || now || self.saved_at.elapsed() >= pause {
            return self.save(saver, Kind::Epoch, score);
        }
        if best {
            let _checkpoint = info_span!("checkpoint").entered();
            self.held = None;
            self.held = Some(self.copy(Kind::Epoch, score, Instant::now())?);
        }
        Ok(())
    }

    /// Says that a checkpoint is what takes memory from now on. A run that is told to stop does not begin anew for
    /// one: what it has saved before stays.
    pub(super) fn begin_saving(&self) {
        if self.run.stop.load(Ordering::Relaxed) {
            return;
        }
        // Before the first step, that one counts as in hand: a note of none is none.
        let step = self.state.step.max(1);
        let parts = self.divisions.parts(BatchWork::Step, step);
        match self.divisions.are_lean() {
            true => self.watch.begin_beyond(BatchWork::Checkpoint, step, parts, self.samples),
            false => self.watch.begin(BatchWork::Checkpoint, step, parts, self.samples),
        }
    }

    /// Whether the checkpoint of the best epoch is there.
    fn best_is_saved(&self) -> bool {
        is_saved(self.state.best, &self.run.folder.join(CHECKPOINT_FOLDER))
    }

    /// Saves what there is now, and before it what is held, unless this takes its place, or nothing is kept.
    pub(super) fn save(
        &mut self,
        saver: &mut Saver<'_>,
        kind: Kind,
        score: Option<f64>,
    ) -> Result<(), TrainError> {
        self.settle()?;
        // A run that goes on from there does not take these steps again.
        self.tell_times()?;
        if self.config.checkpoint.keep == Keep::Nothing {
            return Ok(());
        }
        let since = Instant::now();
        let _checkpoint = info_span!("checkpoint").entered();
        self.begin_saving();
        let saved = self.save_now(saver, kind, score, since);
        self.watch.end();
        saved
    }

    fn save_now(
        &mut self,
        saver: &mut Saver<'_>,
        kind: Kind,
        score: Option<f64>,
        since: Instant,
    ) -> Result<(), TrainError> {
        let now = (self.state.step, self.state.closed_at);
        if let Some(held) = self.held.take() {
            let best = self.state.best.is_some_and(|best| best.step == self.state.step);
            let same = (held.state.step, held.state.closed_at) == now;
            if same || !(best && kind == Kind::Epoch) {
                self.hand_over(saver, held)?;
            }
            if same {
                return Ok(());
            }
        }
        // There is never more than one copy besides the one that is held.
        saver.wait()?;
        let job = self.copy(kind, score, since)?;
        self.hand_over(saver, job)
    }

    /// A copy of what there is now, for which training stands still `since` then.
    fn copy(&mut self, kind: Kind, score: Option<f64>, since: Instant) -> Result<Job, TrainError> {
        if self.divisions.are_lean() {
            release_buffers();
        }
        let snapshot = Arc::new(Snapshot::take(&self.model, &self.optimizer, &self.average)?);
        if self.config.non_finite == NonFinite::Rollback && kind != Kind::Interrupt {
            self.safe.take(&mut self.state.rollback, self.state.step, &snapshot);
        }
        self.state.history_bytes = self.log.bytes();
        self.state.averaged = self.average.count;
        let (state, history) = (self.state.clone(), self.log.handle()?);
        let (blocked, waits) = (since.elapsed(), self.divisions.are_lean());
        Ok(Job { snapshot, state, kind, score, history, blocked, waits })
    }

    fn hand_over(&mut self, saver: &mut Saver<'_>, mut job: Job) -> Result<(), TrainError> {
        let since = Instant::now();
        saver.wait()?;
        job.blocked += since.elapsed();
        self.saved = Some((job.state.step, job.state.closed_at));
        self.saved_at = Instant::now();
        let waits = job.waits;
        saver.save(job)?;
        // Beside what a step takes there may be no room for the copy.
        if waits { Ok(saver.wait()?) } else { Ok(()) }
    }
}
