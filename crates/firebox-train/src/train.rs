//! The training loop.
//!
//! Everything random is a function of the seed, the step and the sample, and the order of batches
//! one of the seed and the epoch, so a run that goes on from a checkpoint takes the same steps as
//! one that was never stopped.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::tensor::Tensor;
use firebox_core::{Event, Request, Stream};
use firebox_kernels::{KeptWeights, release_buffers};
use firebox_loader::{Batch, Batches, HeldOutLoader, LoadError, Position};
use firebox_models::{Layout, Loss, layouts};
use tracing::info_span;

use crate::ahead::{Ahead, Taken};
use crate::average::{Average, AverageConfig, Statistics};
use crate::checkpoint::{
    Checkpoint, Job, Kind, Manifest, Saver, Writer, best_or_first, best_or_newest, checkpoints,
    folder_name, leave_whole_best, load_average, load_weights, newest_whole, recover,
};
use crate::config::{Keep, NonFinite, TrainConfig};
use crate::division::{BatchWork, Divisions, if_memory_lasts};
use crate::folder::{check_same, ended_before, history_reaches, lock, write_summary};
use crate::gradients::Gradients;
use crate::groups::{Settings, freeze, names_statistic, resolve};
use crate::history::{EpochRecord, Log, StepRecord};
use crate::memory::{NOTE_FILE, Shortage, Watch};
use crate::objective::{Objective, Streams};
use crate::optimizer::{OptimizerState, UpdateBy};
use crate::rollback::{RollbackSteps, Safe};
use crate::run::{CHECKPOINT_FOLDER, Data, Outcome, Run, SUMMARY_FILE, Summary, Trained};
use crate::scaler::{LossScale, Scaler};
use crate::schedule::Progress;
use crate::state::{Best, Mean, State};
use crate::times::Times;
use crate::types::{check_batch, check_gradients, check_loss, check_parameters};
use crate::{FixedScale, TrainError};

/// Trains a model until its steps are taken, its validation loss has stopped falling, or it is told
/// to stop.
///
/// A resumed run ends with the same weights and losses, bit for bit on the CPU, as one that was
/// never interrupted, whatever ended it and wherever. A run that has already ended is not repeated:
/// its result is read back.
///
/// # Errors
/// If a setting cannot be, data cannot be read, a checkpoint or the history cannot be written, the
/// run belongs to something else or to another process, the loss or a part of it is not one f32, or reaches no
/// parameter that is trained, or the loss is not finite and the configuration says to stop. No error is followed
/// by a result.
pub fn train<M, O>(
    model: M,
    objective: &O,
    data: Data<'_>,
    config: &TrainConfig,
    run: &Run<'_>,
) -> Result<Trained<M>, TrainError>
where
    M: Module,
    O: Objective<M>,
{
    config.validate()?;
    // What has ended is read back, and takes no more room.
    if !run.folder.join(SUMMARY_FILE).is_file() {
        check_budget(&model, config, data.validation.is_some())?;
    }
    let _lock = lock(run.folder)?;
    let folder = run.folder.join(CHECKPOINT_FOLDER);
    if let Some(mut summary) = ended_before(run)? {
        // Of one that was killed before it had removed them, some may be left.
        let writer = Writer::new(folder, &config.checkpoint, run.listener);
        writer.tidy(RollbackSteps::default(), true);
        // One of an earlier version did not say so.
        let averaged = is_averaged(config, &summary, run)?;
        if averaged != summary.averaged {
            summary.averaged = averaged;
            write_summary(run.folder, &summary)?;
        }
        return read_back(model, summary, config, run);
    }
    let writer = Writer::new(folder.clone(), &config.checkpoint, run.listener);
    let mut session = Session::open(model, config, run)?;
    let start = Instant::now();
    let (outcome, saves) = std::thread::scope(|scope| {
        let mut saver = Saver::start(scope, writer);
        // Dropped with this part of the program, however it ends.
        let _told = tell_failures(scope, data.train.failures(), run.listener);
        let outcome = match session.run(objective, data, &mut saver) {
            Err(TrainError::Load(LoadError::Stopped)) => session.interrupt(&mut saver)?,
            // What was learnt is kept; what is wrong with the data is told, whatever is wrong with the disk.
            Err(error @ TrainError::Load(_)) => {
                session.keep(&mut saver);
                return Err(error);
            }
            outcome => outcome?,
        };
        session.begin_saving();
        saver.wait()?;
        session.watch.end();
        Ok::<_, TrainError>((outcome, saver.times()))
    })?;
    let Session { model, state, optimizer, data_time, divisions, .. } = session;
    // Whatever comes now takes other ones.
    release_buffers();
    let Scaler { scale, overflows, .. } = state.scaler;
    let rollbacks = state.counts.rollbacks;
    let undone = rollbacks > 0 && optimizer.updates == 0;
    if outcome != Outcome::Interrupted && undone {
        return Err(TrainError::Undone { steps: state.step, rollbacks, scale });
    }
    if outcome != Outcome::Interrupted && state.step > 0 && state.updates() == 0 {
        let steps = state.step;
        return Err(match overflows {
            0 => TrainError::NothingLearnt { steps, scale },
            _ => TrainError::Overflowed { steps, scale },
        });
    }
    let mut summary = Summary {
        outcome,
        key: run.key,
        steps: state.step,
        epochs: state.epochs,
        parameters: model.num_params() as u64,
        best: state.best,
        selected: folder_name(state.step),
        counts: state.counts,
        divisions: divisions.all().to_vec(),
        saves,
        averaged: false,
        seconds: start.elapsed().as_secs_f64(),
        data_seconds: data_time.as_secs_f64(),
    };
    if outcome == Outcome::Interrupted || config.checkpoint.keep == Keep::Nothing {
        return Ok(Trained { model: model.valid(), summary });
    }
    let was_kept = is_saved(summary.best, &folder);
    // What is kept alone from here on has to be whole.
    if leave_whole_best(&folder, run.listener)? && was_kept {
        summary.best = best_of(&folder)?;
    }
    let (nothing, writer) =
        (RollbackSteps::default(), Writer::new(folder, &config.checkpoint, run.listener));
    let [left, _] = writer.parted(nothing, true)?;
    let kept = |step| left.iter().any(|checkpoint| checkpoint.manifest().step == step);
    if let Some(best) = summary.best.filter(|best| kept(best.step)) {
        summary.selected = folder_name(best.step);
    } else if !kept(summary.steps)
        && let Some(left) = best_or_first(&left)
    {
        // What was to be kept was damaged.
        summary.selected = folder_name(left.manifest().step);
    }
    summary.averaged = is_averaged(config, &summary, run)?;
    // A run that is killed before its end is written down goes on from its newest checkpoint.
    write_summary(run.folder, &summary)?;
    writer.tidy(nothing, true);
    read_back(model, summary, config, run)
}

mod reading;
mod saving;
mod statistics;
mod told;

#[doc(hidden)]
pub use reading::without_memory_once;
use reading::{Numbers, read};
use told::{SILENT, Told, no_average, still_frozen, tell_failures};

/// Time between two looks whether a pause is over.
const PAUSED: Duration = Duration::from_millis(20);
/// Time between two looks whether to stop while no batch comes.
const LOOK: Duration = Duration::from_millis(100);

/// A run in progress.
struct Session<'a, M> {
    config: &'a TrainConfig,
    run: &'a Run<'a>,
    model: M,
    optimizer: OptimizerState,
    average: Average,
    state: State,
    log: Log,
    /// What a rollback goes back to.
    safe: Safe,
    /// Step and closed step of the last save.
    saved: Option<(u64, u64)>,
    /// When that was, or this process began.
    saved_at: Instant,
    /// The best epoch, if it is not saved yet.
    held: Option<Job>,
    data_time: Duration,
    times: Times,
    /// Steps that nobody has read yet, where the device can go ahead.
    ahead: Option<Ahead>,
    /// In how many parts each batch is computed, for want of memory.
    divisions: Divisions,
    /// Where this process would note that it had too little.
    watch: Watch,
    /// Samples of the part in hand.
    samples: u64,
    /// A person asked that it be interrupted when this epoch is closed.
    ends_with_epoch: bool,
    told: Told,
}

/// What one optimizer step computed.
struct Step {
    losses: Vec<Loss>,
    gradients: Gradients,
    /// Factor on the gradients besides the loss scale: what averages an accumulation.
    factor: f64,
    /// `None`: nobody waits for them.
    numbers: Option<Numbers>,
    weight: f64,
    samples: u64,
    batches: u64,
    wait: Duration,
    /// Samples of the largest part.
    largest: u64,
}

impl<M: Module> Session<'_, M> {
    /// The loop: epochs of steps, each closed by a validation.
    fn run<O: Objective<M>>(
        &mut self,
        objective: &O,
        data: Data<'_>,
        saver: &mut Saver<'_>,
    ) -> Result<Outcome, TrainError> {
        let (config, run) = (self.config, self.run);
        let batches = data.train.batches_per_epoch();
        let total = config.total_steps(batches);
        let per_epoch = config.steps_per_epoch(batches);
        self.tell_accumulation(batches);
        self.tell_schedule(Progress { step: 0, total, per_epoch });
        let begun = self.state.rollback.proved.is_some();
        if config.non_finite == NonFinite::Rollback && self.state.step == 0 && !begun {
            self.save(saver, Kind::Step, None)?;
        }
        loop {
            let epoch_ended = self.state.position.batch >= batches || self.state.step >= total;
            let closed = self.state.closed_at == self.state.step;
            if closed && (self.state.step >= total || self.stops_early()) {
                break;
            }
            let mut epoch_start = Instant::now();
            if !epoch_ended {
                // A stop that came during the last save is heeded before any more work.
                if run.stop.load(Ordering::Relaxed) {
                    return self.interrupt(saver);
                }
                self.freeze();
                let mut loader = data.train.epoch(self.state.position);
                self.tell_refused(data.train);
                while self.state.position.batch < batches && self.state.step < total {
                    let start = Instant::now();
                    let span = info_span!("step", number = self.state.step + 1).entered();
                    let group = config.accumulate.min(batches - self.state.position.batch);
                    let step = loop {
                        match self.attempt(objective, &mut loader, group)? {
                            Some(step) => break step,
                            None => {
                                // Its batches make room first.
                                drop(loader);
                                loader = data.train.epoch(self.state.position);
                            }
                        }
                    };
                    self.apply(step, [total, per_epoch], start)?;
                    self.watch.end();
                    drop(span);
                    let done = self.state.step;
                    run.listener.on(&Event::Progress {
                        stage: "train".to_owned(),
                        done,
                        total,
                        unit: "steps".to_owned(),
                    });
                    if self.ahead.as_ref().is_some_and(Ahead::is_due) || run.requests.is_paused() {
                        self.settle()?;
                    }
                    saver.check()?;
                    let closing = self.state.position.batch >= batches || done >= total;
                    if !closing && self.save_is_due() {
                        self.save(saver, Kind::Step, None)?;
                    }
                    epoch_start += self.answer(saver)?;
                    if !closing && run.stop.load(Ordering::Relaxed) {
                        return self.interrupt(saver);
                    }
                }
            }
            self.settle()?;
            self.refuse_nothing(batches)?;
            let last_epoch = self.state.step >= total;
            let due = (self.state.epochs + 1).is_multiple_of(config.validate_every) || last_epoch;
            // Without held-out data any epoch may be the best one.
            if due || data.validation.is_none() {
                self.renew_statistics(objective, data.train)?;
            }
            let validation = match data.validation.filter(|_| due) {
                Some(loader) => match self.validate(objective, loader)? {
                    Some(loss) => Some(loss),
                    None => return self.interrupt(saver),
                },
                None => None,
            };
            let watched = match data.validation {
                Some(_) => validation,
                None => Some(self.state.running.value()),
            };
            // The losses of steps are those of the weights that are trained, and say nothing of their average: where
            // nothing is held out to measure it, no epoch of a run that returns it is better than the newest.
            let averaged = config.average.is_some_and(|average| average.evaluate);
            let score = watched.filter(|_| data.validation.is_some() || !averaged);
            let updates = self.state.updates().saturating_sub(1);
            let rate = self.learning_rate(updates, [total, per_epoch]);
            self.close_epoch(validation, [watched, score], rate, epoch_start.elapsed())?;
            let finished = self.state.step >= total || self.stops_early();
            self.save_epoch(saver, score, finished)?;
            if self.ends_with_epoch && !finished {
                return self.interrupt(saver);
            }
        }
        Ok(if self.state.step >= total { Outcome::Finished } else { Outcome::StoppedEarly })
    }

    /// Switches the gradients of parameters on or off, as their groups have it in this epoch.
    fn freeze(&mut self) {
        if self.optimizer.freezes() {
            let epoch = self.state.position.epoch;
            self.model = freeze(self.model.clone(), &self.optimizer, epoch);
        }
    }

    /// [`compute`](Self::compute), or `None` if the device had too little memory for it: the batches
    /// are to be read again, and will be computed in smaller parts.
    fn attempt<O: Objective<M>>(
        &mut self,
        objective: &O,
        loader: &mut Batches,
        group: u64,
    ) -> Result<Option<Step>, TrainError> {
        let step = self.state.step + 1;
        let parts = self.divisions.parts(BatchWork::Step, step);
        let before = Statistics::of(&self.model);
        let computed = if_memory_lasts(|| self.compute(objective, loader, group, parts));
        if !matches!(computed, Ok(Some(_))) {
            // Whoever computes this step again, here or after a resume, moves them then.
            self.model = before.put_back(self.model.clone());
        }
        let computed = computed?;
        if computed.is_none() {
            // If a step before it had too little, this one was computed of what that left.
            self.settle()?;
            self.divide(BatchWork::Step, step, parts)?;
        }
        Ok(computed)
    }

    /// Divides further after what is in hand had too little memory, and says so.
    fn divide(&mut self, work: BatchWork, step: u64, parts: u64) -> Result<(), TrainError> {
        self.watch.end();
        let shortage = Shortage { work, step, parts, samples: self.samples, bytes: 0 };
        let message = self.divisions.divide(shortage)?.to_string();
        self.run.listener.on(&Event::Warning { message });
        Ok(())
    }

    /// Says what is computed from now on.
    fn begin(&mut self, work: BatchWork, step: u64, parts: u64, batch: &Batch) {
        self.samples = batch.len() as u64;
        self.watch.begin(work, step, parts, self.samples);
    }

    /// Loss and gradients of the next `group` batches, each in `parts`, the gradients times the loss scale
    /// and [`Step::factor`].
    fn compute<O: Objective<M>>(
        &mut self,
        objective: &O,
        loader: &mut Batches,
        group: u64,
        parts: u64,
    ) -> Result<Step, TrainError> {
        let [masks, dropout] = ["masks", "dropout"]
            .map(|purpose| Stream::new(self.run.seed, purpose).substream(self.state.step));
        let scale = self.state.scaler.scale;
        let scale_there = self.ahead.as_ref().and_then(Ahead::scale).map(Tensor::from_inner);
        let (mut gradients, mut first, mut losses) = (Gradients::default(), None, vec![]);
        let (mut samples, mut wait, mut kinds) = (0, Duration::ZERO, vec![]);
        for micro in 0..group {
            let next = info_span!("wait for data").in_scope(|| self.next_batch(loader));
            let batch = next.ok_or(TrainError::Short { epoch: self.state.position.epoch })??;
            check_batch(&batch)?;
            samples += batch.indices.len() as u64;
            kinds.push([batch.len() as u64, batch.inputs.dims()[1] as u64, parts]);
            wait += batch.wait;
            self.times.batch(&batch);
            let computing = Instant::now();
            let dropout = dropout.substream(micro);
            let divided = if parts > 1 { batch.parts(parts) } else { vec![batch] };
            for (part, batch) in divided.into_iter().enumerate() {
                self.begin(BatchWork::Step, self.state.step + 1, parts, &batch);
                let dropout = if parts > 1 { dropout.substream(part as u64) } else { dropout };
                let streams = Streams { samples: masks, dropout: Some(dropout) };
                let forward = info_span!("forward", samples = batch.indices.len() as u64);
                let loss = forward.in_scope(|| objective.loss(&self.model, &batch, streams));
                check_loss("the loss", &loss)?;
                let Loss { value, weight, parts } = loss;
                if weight > 0.0 && !value.is_tracked() {
                    return Err(TrainError::Unreached { step: self.state.step + 1 });
                }
                let plain = value.clone().detach().inner();
                // A batch with nothing to learn from has no gradient.
                if weight > 0.0 {
                    let _backward = info_span!("backward").entered();
                    let value = match &scale_there {
                        Some(scale) => value * scale.clone(),
                        None if scale == 1.0 => value,
                        None => value * scale,
                    };
                    let taken = Gradients::take(&self.model, value.backward());
                    check_gradients(&taken, self.optimizer.layouts())?;
                    match first {
                        None => (gradients, first) = (taken, Some(weight)),
                        // Each mean counts by what it is a mean of; the sum is divided with the scale.
                        Some(first) => gradients.add(taken, weight / first),
                    }
                }
                losses.push(Loss { value: plain, weight, parts });
            }
            self.times.computing += computing.elapsed();
        }
        let weight: f64 = losses.iter().map(|loss| loss.weight).sum();
        let factor = first.map_or(1.0, |first| weight / first);
        let updates = self.optimizer.updates;
        let steady = self.optimizer.is_steady(&gradients);
        // The first weights that are averaged are taken by the host.
        let epoch = self.state.position.epoch;
        let begun = |own: AverageConfig| epoch < own.from_epoch || self.average.count > 0;
        let possible = steady && self.config.average.is_none_or(begun);
        let ahead = self.ahead.as_mut().filter(|ahead| possible && ahead.counts(updates));
        let mut numbers = None;
        let largest = kinds.iter().map(|[samples, _, parts]| samples.div_ceil(*parts)).max();
        if !ahead.as_ref().is_some_and(|ahead| ahead.has_room(&kinds)) {
            // On a GPU, the host waits here for all that it has asked for above, and hears only now which had too little
            // memory: the largest is divided.
            self.samples = largest.unwrap_or(self.samples);
            let (_read_back, reading) = (info_span!("read back").entered(), Instant::now());
            numbers = Some(read(&losses, weight, &gradients)?);
            self.times.reading_back += reading.elapsed();
        }
        if let Some(ahead) = ahead {
            ahead.prove(&kinds);
            // The device decides by its own, whoever has read them.
            numbers = None;
        }
        let batches = group;
        let largest = largest.unwrap_or(0);
        Ok(Step { losses, gradients, factor, numbers, weight, samples, batches, wait, largest })
    }

    /// The next batch. While none comes, a stop is heeded, and after some time it is said.
    fn next_batch(&self, batches: &mut Batches) -> Option<Result<Batch, LoadError>> {
        let mut still = Some(Instant::now() + SILENT);
        while !batches.is_ready_within(LOOK) {
            if self.run.stop.load(Ordering::Relaxed) {
                return Some(Err(LoadError::Stopped));
            }
            if still.is_some_and(|still| Instant::now() >= still) {
                still = None;
                self.tell_silence();
            }
        }
        batches.next()
    }

    /// Takes the step if it is finite, and writes it down; or leaves both to the device.
    fn apply(&mut self, step: Step, of: [u64; 2], start: Instant) -> Result<(), TrainError> {
        let Step { losses, gradients, factor, numbers, weight, samples, batches, wait, largest } =
            step;
        if numbers.is_some() {
            self.settle()?;
        }
        let updates = self.state.updates();
        self.state.step += 1;
        self.state.position.batch += batches;
        self.state.counts.samples += samples;
        self.data_time += wait;
        let (step, epoch) = (self.state.step, self.state.position.epoch + 1);
        let taken = Taken { step, epoch, factor, weight, samples, wait, largest };
        let Some(numbers) = numbers else {
            let unread = self.ahead.as_ref().map_or(0, Ahead::len) as u64;
            let rates = updates.saturating_sub(unread)..=updates;
            let rates = rates.map(|updates| self.learning_rate(updates, of)).collect();
            self.go_ahead(taken, losses, &gradients, rates, start);
            return Ok(());
        };
        let learning_rate = self.learning_rate(updates, of);
        if numbers.are_finite() {
            let _optimizer = info_span!("optimizer").entered();
            let (updating, clip) = (Instant::now(), self.config.clipping());
            let scale = self.state.scaler.scale * factor;
            let by = UpdateBy { learning_rate, clip, scale, squared_norm: numbers.squared_norm };
            self.optimizer.step(&mut self.model, &gradients, by);
            let average = self.config.average.as_ref();
            if let Some(average) = average.filter(|own| own.takes(epoch - 1, self.state.updates()))
            {
                self.average.update(&self.model, average);
            }
            self.times.computing += updating.elapsed();
        }
        if let Some(ahead) = &mut self.ahead {
            ahead.forget();
        }
        self.write_down(taken, numbers, learning_rate, start.elapsed())
    }

    /// Counts a step and writes it down, and deals with one that is not finite.
    fn write_down(
        &mut self,
        taken: Taken,
        numbers: Numbers,
        learning_rate: f64,
        time: Duration,
    ) -> Result<(), TrainError> {
        let Taken { step, epoch, factor, weight, samples, wait, .. } = taken;
        let finite = numbers.are_finite();
        let Numbers { loss, parts, squared_norm } = numbers;
        if finite {
            self.state.counts.non_finite_in_a_row = 0;
            self.state.running.add(loss, weight);
            // A batch with nothing to learn from says nothing about the weights.
            if weight > 0.0 {
                self.safe.prove(&mut self.state.rollback);
            }
        } else {
            self.state.counts.skipped += 1;
        }
        let loss_scale = self.state.scaler.scale;
        let norm = squared_norm.sqrt() / (loss_scale * factor);
        let overflow = self.rescale(step, !squared_norm.is_finite());
        let record = StepRecord {
            step,
            epoch,
            loss,
            parts,
            learning_rate,
            gradient_norm: norm,
            loss_scale,
            samples,
            skipped: !finite,
            milliseconds: time.as_secs_f64() * 1e3,
            data_milliseconds: wait.as_secs_f64() * 1e3,
        };
        self.run.listener.on(&record.event());
        self.log.step(record)?;
        self.times.step(time);
        // A smaller scale may avoid an overflow of the gradients, and nothing else.
        if finite || (overflow && loss.is_finite()) {
            return Ok(());
        }
        self.state.counts.non_finite_in_a_row += 1;
        self.non_finite([step, epoch], loss, norm)
    }

    /// Moves the loss scale after a step. Returns whether the step was an overflow that the new
    /// scale may avoid.
    fn rescale(&mut self, step: u64, found_infinite: bool) -> bool {
        let before = self.state.scaler.scale;
        let overflow = self.state.scaler.update(&self.config.loss_scale, found_infinite);
        let Scaler { scale, overflows, .. } = self.state.scaler;
        if scale != before {
            self.run.listener.on(&Event::LossScale { step, before, scale, overflows });
        }
        overflow
    }

    /// After a step that was not finite and changed no weights. Running statistics have moved by then, as in PyTorch,
    /// and stay so unless it goes back to a checkpoint.
    fn non_finite(
        &mut self,
        [step, epoch]: [u64; 2],
        loss: f64,
        norm: f64,
    ) -> Result<(), TrainError> {
        let count = self.state.counts.non_finite_in_a_row;
        let what = format!("step {step} has the loss {loss} and the gradient norm {norm}");
        // The loss is read before it is scaled.
        let scale = match self.config.loss_scale {
            _ if !loss.is_finite() => None,
            LossScale::Static(scale) if scale > 1.0 => Some(FixedScale::Static(scale)),
            // Above it, an overflow does not come here.
            LossScale::Dynamic(own) if own.floor > 1.0 => Some(FixedScale::Floor(own.floor)),
            _ => None,
        };
        let message = match self.config.non_finite {
            NonFinite::Stop => {
                return Err(TrainError::NonFinite { step, epoch, loss, norm, scale });
            }
            _ if count >= self.config.non_finite_limit => {
                return Err(TrainError::NonFiniteLimit { count, step, scale });
            }
            NonFinite::Skip => format!("{what}; it was skipped"),
            NonFinite::Rollback => {
                let Some(safe) = self.safe.go_back(&mut self.state.rollback) else {
                    return Err(TrainError::NoWayBack { step, epoch, loss, norm, scale });
                };
                let model = self.model.clone();
                self.model = safe.restore(model, &mut self.optimizer, &mut self.average);
                self.state.counts.rollbacks += 1;
                let to = self.state.rollback.proved.unwrap_or(0);
                format!("{what}; weights and optimizer went back to the checkpoint of step {to}")
            }
        };
        self.run.listener.on(&Event::Warning { message });
        Ok(())
    }

    /// Mean loss over the held-out data, or `None` if it was told to stop meanwhile. Tells what else the
    /// objective scores.
    fn validate<O: Objective<M>>(
        &mut self,
        objective: &O,
        loader: &HeldOutLoader,
    ) -> Result<Option<f64>, TrainError> {
        let _validation = info_span!("validation").entered();
        let mut model = self.model.valid();
        if self.config.average.is_some_and(|average| average.evaluate) {
            model = self.average.apply(model);
        }
        let mut mean = Mean::default();
        let weights = KeptWeights::new();
        let mut batches = loader.batches();
        while let Some(batch) = self.next_batch(&mut batches) {
            if self.run.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let batch = batch?;
            for (loss, weight) in weights.during(|| self.held_out(objective, &model, &batch))? {
                mean.add(loss, weight);
            }
        }
        let scores = match objective.scores(&model) {
            // Whatever it says that it was stopped by, it was stopped.
            Err(_) if self.run.stop.load(Ordering::Relaxed) => return Ok(None),
            scores => scores.map_err(TrainError::Score)?,
        };
        for (name, value) in scores {
            self.run.listener.on(&Event::Scored { name: name.to_owned(), value });
        }
        Ok(Some(mean.value()))
    }

    /// Loss and weight of each part of a held-out batch, in as many parts as it takes.
    fn held_out<O: Objective<M>>(
        &mut self,
        objective: &O,
        model: &M,
        batch: &Batch,
    ) -> Result<Vec<(f64, f64)>, TrainError> {
        // Not a function of the step: every epoch hides the same steps of the same samples.
        let samples = Stream::new(self.run.seed, "validation masks");
        let (work, step) = (BatchWork::Validation, self.state.step);
        check_batch(batch)?;
        loop {
            let parts = self.divisions.parts(work, step);
            let mut losses = vec![];
            let computed = if_memory_lasts(|| {
                for batch in batch.parts(parts) {
                    self.begin(work, step, parts, &batch);
                    let loss = objective.loss(model, &batch, Streams { samples, dropout: None });
                    let weight = loss.weight;
                    check_loss("the validation loss", &loss)?;
                    losses.push((read(&[loss], weight, &Gradients::default())?.loss, weight));
                }
                Ok(())
            })?;
            match computed {
                Some(()) => {
                    self.watch.end();
                    return Ok(losses);
                }
                None => self.divide(work, step, parts)?,
            }
        }
    }

    /// Refuses a whole epoch in which no element counted. Steps that were skipped may have had some.
    fn refuse_nothing(&self, batches: u64) -> Result<(), TrainError> {
        let state = &self.state;
        let is_whole = state.position.batch >= batches;
        if is_whole && state.running.weight == 0.0 && state.counts.skipped == 0 {
            return Err(TrainError::NothingCounts { epoch: state.position.epoch + 1, batches });
        }
        Ok(())
    }

    /// Ends an epoch: early stopping and plateau by the loss that is watched, best epoch by the score, history.
    fn close_epoch(
        &mut self,
        validation: Option<f64>,
        [watched, score]: [Option<f64>; 2],
        learning_rate: f64,
        time: Duration,
    ) -> Result<(), TrainError> {
        self.tell_unbounded(validation);
        let state = &mut self.state;
        let (epoch, step) = (state.position.epoch + 1, state.step);
        let best = score
            .filter(|loss| loss.is_finite() && state.best.is_none_or(|best| *loss < best.loss));
        if let Some(loss) = best {
            state.best = Some(Best { step, epoch, loss });
        }
        if let Some(loss) = watched {
            // Where all steps since the last one were skipped, it is the loss of the model before, and says nothing new.
            if state.updates() != state.closed_updates {
                if let Some(settings) = &self.config.early_stopping {
                    state.early.observe(loss, settings);
                }
                self.config.schedule.observe(loss, &mut state.plateau);
            }
            state.closed_updates = state.updates();
        }
        let train_loss = std::mem::take(&mut state.running).value();
        state.epochs += 1;
        state.closed_at = step;
        state.position = Position { epoch, batch: 0 };
        let seconds = time.as_secs_f64();
        self.tell_times()?;
        let (validation_loss, best) = (validation, best.is_some());
        let record =
            EpochRecord { epoch, step, train_loss, validation_loss, learning_rate, best, seconds };
        self.run.listener.on(&record.event());
        self.log.epoch(record)
    }

    /// Where the time of the steps went that it has not been told of.
    fn tell_times(&mut self) -> Result<(), TrainError> {
        let Some(times) = self.times.take(self.state.step) else { return Ok(()) };
        self.run.listener.on(&times.event());
        self.log.times(times)
    }

    /// After so many updates, of a run of so many steps in all and in an epoch.
    fn learning_rate(&self, step: u64, [total, per_epoch]: [u64; 2]) -> f64 {
        let (config, at) = (self.config, Progress { step, total, per_epoch });
        config.schedule.learning_rate(config.learning_rate(), at, &self.state.plateau)
    }

    fn stops_early(&self) -> bool {
        let early = self.config.early_stopping;
        early.is_some_and(|settings| self.state.early.waited >= settings.patience)
    }

    /// Does what a person asked, between two steps, and returns the time that it stood still.
    fn answer(&mut self, saver: &mut Saver<'_>) -> Result<Duration, TrainError> {
        let (requests, step) = (self.run.requests, self.state.step);
        let listener = self.run.listener;
        let tell = |request| listener.on(&Event::Asked { request, step });
        let mut paused: Option<Instant> = None;
        loop {
            // Looked at first: what ends a pause is then heard before the run goes on.
            let stands = requests.is_paused() && !self.run.stop.load(Ordering::Relaxed);
            if requests.take_stop_after_epoch() {
                self.ends_with_epoch = true;
                tell(Request::StopAfterEpoch);
            }
            if requests.take_save() {
                tell(Request::Save);
                // As after an interruption: a rollback goes back to the same steps, asked or not.
                if self.saved != Some((step, self.state.closed_at)) {
                    self.save(saver, Kind::Interrupt, None)?;
                }
            }
            if !stands {
                break;
            }
            paused.get_or_insert_with(|| {
                tell(Request::Pause);
                Instant::now()
            });
            std::thread::sleep(PAUSED);
        }
        let Some(since) = paused else { return Ok(Duration::ZERO) };
        // A run that was told to stop meanwhile does not go on.
        if !requests.is_paused() {
            tell(Request::GoOn);
        }
        Ok(since.elapsed())
    }
}

impl<'a, M: Module> Session<'a, M> {
    /// A new run, or the newest whole checkpoint of the one in the folder.
    fn open(model: M, config: &'a TrainConfig, run: &'a Run<'a>) -> Result<Self, TrainError> {
        let mut model = model.train();
        check_parameters(&model)?;
        let mut optimizer = OptimizerState::new(&model, config)?;
        let (divisions, noted) = Divisions::open(run.folder)?;
        if let Some(division) = noted {
            run.listener.on(&Event::Warning { message: division.to_string() });
        }
        let watch = Watch::start(run.folder, run.resume).map_err(|source| TrainError::File {
            action: "create",
            path: run.folder.join(NOTE_FILE),
            source,
        })?;
        let mut average = Average::default();
        let folder = run.folder.join(CHECKPOINT_FOLDER);
        recover(&folder)?;
        let checkpoint = if run.resume {
            let newest = newest_whole(&folder, run.listener)?;
            newest.iter().try_for_each(|whole| history_reaches(run, &whole.checkpoint))?;
            newest
        } else if checkpoints(&folder)?.is_empty() {
            None
        } else {
            return Err(TrainError::Exists(run.folder.to_owned()));
        };
        let goes_on = checkpoint.is_some();
        let state = match checkpoint {
            None => State::start(run.key, run.seed, Scaler::new(&config.loss_scale)),
            Some(checkpoint) => {
                let mut state = checkpoint.state()?;
                check_same(&state, run)?;
                if is_saved(state.best, &folder) && leave_whole_best(&folder, run.listener)? {
                    // Epochs to come are compared with what is left.
                    state.best = best_of(&folder)?;
                }
                checkpoint.restore(&mut model, &mut optimizer, &mut average)?;
                state
            }
        };
        let Some(log) = Log::open(run.folder, state.history_bytes)? else {
            return Err(TrainError::Exists(run.folder.to_owned()));
        };
        let ahead = Ahead::new(&model, config);
        let mut session = Self {
            config,
            run,
            model,
            optimizer,
            average,
            saved: goes_on.then_some((state.step, state.closed_at)),
            saved_at: Instant::now(),
            held: None,
            state,
            log,
            safe: Safe::default(),
            data_time: Duration::ZERO,
            times: Times::default(),
            ahead,
            divisions,
            watch,
            samples: 0,
            ends_with_epoch: false,
            told: Told::default(),
        };
        if config.non_finite == NonFinite::Rollback && goes_on {
            let like = (&session.model, &session.optimizer, &session.average);
            let steps = &mut session.state.rollback;
            session.safe = Safe::read(steps, &folder, like, run.listener)?;
        }
        Ok(session)
    }
}

fn check_budget<M: Module>(
    model: &M,
    config: &TrainConfig,
    validates: bool,
) -> Result<(), TrainError> {
    let Some(budget) = config.checkpoint.size_budget else { return Ok(()) };
    let one = checkpoint_bytes(model, config)?;
    // A rollback needs one beside the newest, and another where an overflow may come between.
    let of_rollback = match (config.non_finite, config.loss_scale) {
        (NonFinite::Rollback, LossScale::Dynamic(_)) => 2,
        (NonFinite::Rollback, _) => 1,
        (NonFinite::Stop | NonFinite::Skip, _) => 0,
    };
    // While a run goes on, the best one is there beside the newest, or another model comes out.
    let averaged = config.average.is_some_and(|average| average.evaluate);
    // Of averages that nothing measures, the newest is kept.
    let keeps_best = (validates || !averaged)
        && matches!(config.checkpoint.keep, Keep::BestOnly | Keep::Best(_));
    let count = 1 + of_rollback + u64::from(keeps_best);
    let what = match (keeps_best, of_rollback > 0) {
        (false, false) => "the newest",
        (true, false) => "the newest and the best",
        (false, true) => "the newest and what a rollback needs",
        (true, true) => "the newest, the best and what a rollback needs",
    };
    let needed = one.saturating_mul(count);
    match needed > budget {
        true => Err(TrainError::Budget { one, count, what, needed, budget }),
        false => Ok(()),
    }
}

/// Bytes of a checkpoint: weights, their average, and moments of what is trained in some epoch, four bytes each. Names
/// and states take little beside them.
fn checkpoint_bytes<M: Module>(model: &M, config: &TrainConfig) -> Result<u64, TrainError> {
    let moments = config.optimizer.moments().len();
    let copies = 1 + usize::from(config.average.is_some());
    let numbers = |(layout, settings): (&Layout, Settings)| {
        let has_moments = settings.from.is_some() && !names_statistic(&layout.name);
        let copies = if has_moments { copies + moments } else { copies };
        layout.shape.iter().product::<usize>() * copies
    };
    let layouts = layouts(model);
    let all: usize = layouts.iter().zip(resolve(config, &layouts)?).map(numbers).sum();
    Ok(all as u64 * 4)
}

/// The result of a run that has ended, from its selected checkpoint: the weights, or their average
/// if that is what was validated.
fn read_back<M: Module>(
    mut model: M,
    summary: Summary,
    config: &TrainConfig,
    run: &Run<'_>,
) -> Result<Trained<M>, TrainError> {
    let selected = summary.selected_path(run.folder);
    if summary.averaged {
        load_average(&selected, &mut model)?;
    } else {
        if let Some(average) = config.average.filter(|average| average.evaluate) {
            run.listener.on(&Event::Warning { message: no_average(&average, &summary) });
        }
        load_weights(&selected, &mut model)?;
    }
    for message in still_frozen(config, &summary) {
        run.listener.on(&Event::Warning { message });
    }
    Ok(Trained { model: model.valid(), summary })
}

/// Whether the model of a run that has ended is the average in its checkpoint.
fn is_averaged(config: &TrainConfig, summary: &Summary, run: &Run<'_>) -> Result<bool, TrainError> {
    match config.average.is_some_and(|average| average.evaluate) {
        true => Ok(Checkpoint::open(&summary.selected_path(run.folder))?.has_average()),
        false => Ok(false),
    }
}

/// Whether the checkpoint of the best epoch is there.
fn is_saved(best: Option<Best>, folder: &Path) -> bool {
    best.is_some_and(|best| folder.join(folder_name(best.step)).is_dir())
}

/// The best epoch of which there is a checkpoint.
fn best_of(folder: &Path) -> Result<Option<Best>, TrainError> {
    let left = best_or_newest(folder)?;
    Ok(left.and_then(|left| {
        let Manifest { step, epochs, score, .. } = *left.manifest();
        Some(Best { step, epoch: epochs, loss: score? })
    }))
}
