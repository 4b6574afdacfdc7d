//! What whoever trains is told beside the steps: settings that come to nothing, threads, batches and losses that are not as
//! they should be. What ends a run is an error, and told by whoever began it.

use std::thread::Scope;
use std::time::Duration;

use burn::module::Module;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, select};
use firebox_core::{Event, Listener, new_thread, quoted};
use firebox_loader::TrainLoader;

use super::Session;
use crate::average::AverageConfig;
use crate::config::TrainConfig;
use crate::groups::ParameterGroup;
use crate::run::{Outcome, Summary};
use crate::schedule::{PlateauState, Progress};

/// Time without a batch after which that is said.
pub(super) const SILENT: Duration = Duration::from_secs(30);
/// Time for a failure of a loader's thread to end the run by itself, in which case it is not told twice.
const ENDING: Duration = Duration::from_millis(600);

/// What is told once, and was.
#[derive(Default)]
pub(super) struct Told {
    /// Threads could not be had.
    refused: bool,
    /// A validation loss is not finite.
    unbounded: bool,
    /// Averaged weights have no statistics of their own.
    no_statistics: bool,
}

/// Tells of a failure of the loader's threads within a second, where it ends the run later than that: after the step in
/// hand, or an epoch's end. Ends when what it returns is dropped.
pub(super) fn tell_failures<'scope>(
    scope: &'scope Scope<'scope, '_>,
    failures: Receiver<String>,
    listener: &'scope dyn Listener,
) -> Sender<()> {
    // What was said of another training is not of this one.
    while failures.try_recv().is_ok() {}
    let (running, ended) = bounded(0);
    let tell = move || {
        let message = select! {
            recv(failures) -> message => message,
            recv(ended) -> _ => return,
        };
        let still_running = ended.recv_timeout(ENDING) == Err(RecvTimeoutError::Timeout);
        if let (Ok(message), true) = (message, still_running) {
            let message = format!("the run ends where that batch is needed: {message}");
            listener.on(&Event::Warning { message });
        }
    };
    // Without a thread it is told where it ends the run, and no earlier.
    let thread = new_thread("firebox-failures");
    let _ = thread.and_then(|thread| thread.spawn_scoped(scope, tell));
    running
}

/// What is said where the weights that a run returns are no average, though they were to be.
pub(super) fn no_average(average: &AverageConfig, summary: &Summary) -> String {
    let AverageConfig { from_epoch, every, .. } = average;
    let first = from_epoch + 1;
    let kept = summary.kept_epoch();
    if kept < summary.epochs {
        return format!(
            "the weights that are kept are no average: epoch {kept} has the lowest loss, and no update until then was averaged, as \
             `train.average` has it from epoch {first} on, once in {every} updates; let it begin earlier, or keep them"
        );
    }
    format!(
        "the weights that are kept are no average: no update before them was averaged, as `train.average` has it from epoch {first} on, \
         once in {every} updates; let it begin earlier, or the run end later (train.early_stopping, train.max_steps)"
    )
}

/// What is said of each group of parameters that is not trained yet in the weights that a run returns.
pub(super) fn still_frozen(config: &TrainConfig, summary: &Summary) -> Vec<String> {
    let kept = summary.kept_epoch();
    let wait = match summary.outcome {
        Outcome::StoppedEarly => ", or early stopping wait longer",
        Outcome::Finished | Outcome::Interrupted => "",
    };
    // Where the steps end before it, that was said when they began.
    let is_told = |epoch: u64| summary.outcome == Outcome::Finished && summary.epochs < epoch;
    let of = |group: &ParameterGroup| {
        let epoch = group.unfreeze_at.filter(|epoch| *epoch > kept && !is_told(*epoch))?;
        Some(format!(
            "the weights that are kept are of epoch {kept}, and what is called {} is trained from epoch {epoch} on: it is as it \
             began; let it be trained earlier{wait}",
            quoted(&group.parameters, 4)
        ))
    };
    config.groups.iter().filter_map(of).collect()
}

impl<M: Module> Session<'_, M> {
    /// Says that an epoch has fewer batches than an update is to be of.
    pub(super) fn tell_accumulation(&self, batches: u64) {
        let accumulate = self.config.accumulate;
        if accumulate <= batches || batches == 0 {
            return;
        }
        let batches = match batches {
            1 => "1 batch".to_owned(),
            _ => format!("{batches} batches"),
        };
        let message = format!(
            "`train.accumulate` is {accumulate}, and an epoch has {batches}: each epoch is one update, of all its batches"
        );
        self.run.listener.on(&Event::Warning { message });
    }

    /// Says what of the learning rates comes to nothing in a run of this length.
    pub(super) fn tell_schedule(&self, run: Progress) {
        self.tell_warmup(run);
        let peak = self.config.learning_rate();
        if let Some((key, minimum)) = self.config.schedule.minimum().filter(|(_, own)| *own > peak)
        {
            let message = format!(
                "`train.schedule.{key}.minimum` is {minimum:.3e}, above the optimizer's learning rate of {peak:.3e}, which does not fall then: lower it"
            );
            self.run.listener.on(&Event::Warning { message });
        }
        let epochs = run.total.div_ceil(run.per_epoch.max(1));
        for group in &self.config.groups {
            let Some(epoch) = group.unfreeze_at.filter(|epoch| *epoch > epochs) else { continue };
            let message = format!(
                "`train.groups.unfreeze_at` is {epoch} for {}, and the run of {} steps ends in epoch {epochs}: what is called so is never trained",
                quoted(&group.parameters, 4),
                run.total
            );
            self.run.listener.on(&Event::Warning { message });
        }
    }

    /// Says that the learning rate never gets to where it is to rise.
    fn tell_warmup(&self, run: Progress) {
        let (steps, total) = (self.config.schedule.warmup_steps(run), run.total);
        if steps <= total || total == 0 {
            return;
        }
        let peak = self.config.learning_rate();
        let last = self.config.schedule.learning_rate(
            peak,
            Progress { step: total - 1, ..run },
            &PlateauState::default(),
        );
        let message = format!(
            "the learning rate rises for {steps} steps (`warmup` in `train.schedule`), and the run has {total}: it gets to {last:.3e} of {peak:.3e}"
        );
        self.run.listener.on(&Event::Warning { message });
    }

    /// Says that no batch has come for [`SILENT`].
    pub(super) fn tell_silence(&self) {
        let message = format!(
            "no batch has come for {} s: what it is read from may not answer",
            SILENT.as_secs()
        );
        self.run.listener.on(&Event::Warning { message });
    }

    /// Says that threads of the loader could not be had, once.
    pub(super) fn tell_refused(&mut self, loader: &TrainLoader) {
        let refused = loader.refused_threads();
        if refused == 0 || std::mem::replace(&mut self.told.refused, true) {
            return;
        }
        let message = format!(
            "the system refused {refused} of the loader's threads, mostly for want of memory for their stacks: the others fill the batches, or training \
             itself; give the process more memory (ulimit -v and -d) or threads (ulimit -u), or set loader.workers to fewer"
        );
        self.run.listener.on(&Event::Warning { message });
    }

    /// Says, once, that averaged weights have the latest running statistics, because each batch is computed in so many
    /// parts that all are single windows.
    pub(super) fn tell_no_statistics(&mut self, parts: u64) {
        if std::mem::replace(&mut self.told.no_statistics, true) {
            return;
        }
        let message = format!(
            "for want of memory each batch is computed in {parts} parts, which are single windows, and a normalisation may have no statistics of one: the averaged \
             weights have the running statistics of the latest update in place of their own; give the training more memory, or set a smaller model or shorter windows"
        );
        self.run.listener.on(&Event::Warning { message });
    }

    /// Says, once, that a validation loss is no number to compare by.
    pub(super) fn tell_unbounded(&mut self, validation: Option<f64>) {
        let Some(loss) = validation.filter(|loss| !loss.is_finite()) else { return };
        if std::mem::replace(&mut self.told.unbounded, true) {
            return;
        }
        let epoch = self.state.position.epoch + 1;
        let message = format!(
            "the validation loss of epoch {epoch} is {loss}: an epoch without a finite one is never the best, and if none has one, the weights of the last epoch \
             are kept, whatever they are worth; look for values in the validation data that lie far from all others, and in f16 beyond 65504"
        );
        self.run.listener.on(&Event::Warning { message });
    }
}
