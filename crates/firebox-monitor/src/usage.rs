//! What the events of a run tell of its time and of its machine: averages and peaks, and whether
//! the device was busy.

mod gauges;
mod memory;
#[cfg(test)]
mod tests;

use firebox_core::{Event, GpuSample, MachineSample, Request, is_training};

use self::gauges::{CPU, CPU_SHARE, Gauge, Gauges, OTHERS};
pub(crate) use self::gauges::{MAJOR_FAULTS, MEMORY_IN_USE};
use self::memory::Memory;
pub use self::memory::MemoryCurve;
use crate::text::{percent, significant};
use crate::times::{StepDevice, StepTimes};

/// Share of the time from which a device counts as well used: reference systems R1 and R2 both call
/// more than 85 % good.
const GOOD: f64 = 0.85;
/// Share of the time from which something counts as a cause.
const NOTABLE: f64 = 0.05;

/// What the first step of an attempt takes that the others do not: on a GPU kernels are compiled and
/// tuned in it, on a processor memory is touched for the first time.
const WARM_UP: &str =
    "warm-up (first steps beyond the median: compiling, tuning, first use of memory)";

/// The middle one of some times, the upper of two.
fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// What the machine did while a stage trained.
#[derive(Clone, Debug, Default)]
struct Trained {
    gauges: Gauges,
    /// Sum of the shares of time in which the GPU was busy, where one alone was looked at, each by the seconds that it was
    /// over, and these seconds.
    gpu_busy: [f64; 2],
}

impl Trained {
    fn is_known(&self) -> bool {
        !self.gauges.0.is_empty() || self.gpu_busy[1] > 0.0
    }
}

/// The stage in which classifiers are trained; every other that trains is the run's training.
const CLASSIFIERS: &str = "finetune";

/// Collects from the events of a run, over all its attempts.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    training: bool,
    /// Whether what trains are classifiers, whose steps are not among those of the run.
    classifies: bool,
    /// Standing still because a person asked for it, which says nothing about the device.
    paused: bool,
    /// Whether an attempt began that has told no step yet, and does not say from which one on it goes on.
    begun: bool,
    /// Of all stages that train.
    in_training: Gauges,
    /// Of the run's training.
    own: Trained,
    /// Of that of classifiers.
    classifiers: Trained,
    in_all: Gauges,
    pub(crate) steps: Vec<StepTime>,
    pub(crate) epochs: Vec<EpochTime>,
    saves: Vec<Save>,
    pub(crate) times: Vec<StepTimes>,
    /// Smallest loss scale that was fallen to.
    pub(crate) lowest_scale: Option<f64>,
    /// Steps after which the loss scale fell, and what it fell to.
    falls: Vec<(u64, f64)>,
    /// Attempts before this one.
    attempt: u64,
    pub(crate) memory: u64,
    /// Peak share of the GPU's memory in use, where one alone was looked at.
    pub(crate) gpu_memory: f64,
    over_time: Memory,
}

/// A checkpoint.
#[derive(Clone, Copy, Debug)]
struct Save {
    attempt: u64,
    step: u64,
    /// Time that training stood still for it.
    milliseconds: f64,
}

/// Time and health of an optimizer step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StepTime {
    attempt: u64,
    pub(crate) step: u64,
    pub(crate) milliseconds: f64,
    pub(crate) data_milliseconds: f64,
    pub(crate) gradient_norm: f64,
    pub(crate) skipped: bool,
    /// Skipped though its loss was finite: a gradient was not.
    pub(crate) overflown: bool,
}

/// Time and losses of an epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct EpochTime {
    attempt: u64,
    pub(crate) epoch: u64,
    pub(crate) step: u64,
    pub(crate) seconds: f64,
    pub(crate) train_loss: f64,
    pub(crate) validation_loss: Option<f64>,
}

/// A figure of the machine, averaged over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    /// What it is.
    pub name: String,
    /// Its unit: `threads`, `share`, `bytes`, `bytes/s`, `1/s`, `MHz`, `W` or `°C`.
    pub unit: &'static str,
    /// Mean while training, if a sample was taken then.
    pub training_mean: Option<f64>,
    /// Peak while training.
    pub training_peak: Option<f64>,
    /// Peak of the whole run.
    pub peak: f64,
}

/// Whether the device was busy while training.
#[derive(Clone, Debug, PartialEq)]
pub struct Utilisation {
    /// Mean share of the time, or of the threads, that it was busy.
    pub share: f64,
    /// Whether this is good.
    pub good: bool,
    /// One sentence with the cause, if it is not.
    pub sentence: String,
}

/// Shares of the time of training, each from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Shares {
    /// Seconds in all.
    pub(crate) seconds: f64,
    /// Waiting for data: until batches were filled.
    pub(crate) data: f64,
    /// Standing still for a checkpoint.
    pub(crate) saves: f64,
    /// Whatever of the epochs is neither a step nor a checkpoint: validation.
    pub(crate) validation: f64,
}

impl Usage {
    /// Whether a step was told: of a run that is made of trainings with logs of their own, none is.
    pub fn has_steps(&self) -> bool {
        !self.steps.is_empty()
    }

    /// Takes an event. After a resume, steps that are told again replace those before.
    pub fn record(&mut self, event: &Event) {
        match event {
            Event::RunStarted { resumed_at_step, .. } => {
                (self.training, self.paused) = (false, false);
                self.attempt += 1;
                self.begun = resumed_at_step.is_none();
                if let Some(step) = resumed_at_step {
                    self.forget_after(*step);
                }
            }
            Event::StageStarted { stage } => {
                (self.training, self.classifies) = (is_training(stage), stage == CLASSIFIERS);
            }
            Event::StageFinished { .. } => self.training = false,
            &Event::Step {
                step,
                loss,
                milliseconds,
                data_milliseconds,
                gradient_norm,
                skipped,
                ..
            } => {
                self.begin_at(step);
                self.steps.push(StepTime {
                    attempt: self.attempt,
                    step,
                    milliseconds,
                    data_milliseconds,
                    gradient_norm,
                    skipped,
                    overflown: skipped && loss.is_finite(),
                });
            }
            &Event::Epoch { epoch, step, train_loss, validation_loss, seconds, .. } => {
                self.epochs.retain(|known| known.epoch < epoch);
                let attempt = self.attempt;
                let time = EpochTime { attempt, epoch, step, seconds, train_loss, validation_loss };
                self.epochs.push(time);
            }
            &Event::Times { step, .. } => self.times.extend(StepTimes::of(step, event)),
            &Event::Checkpoint { step, blocked_milliseconds: milliseconds, .. } => {
                self.saves.push(Save { attempt: self.attempt, step, milliseconds });
            }
            &Event::LossScale { step, before, scale, .. } => {
                // It comes before the step that it is of.
                self.begin_at(step);
                let lowest = self.lowest_scale.unwrap_or(f64::INFINITY);
                self.lowest_scale = Some(lowest.min(scale));
                if scale < before {
                    self.falls.push((step, scale));
                }
            }
            Event::Asked { request: Request::Pause, .. } => self.paused = true,
            Event::Asked { request: Request::GoOn, .. } => self.paused = false,
            Event::Machine(sample) => self.sample(sample),
            _ => {}
        }
    }

    /// Forgets what an attempt told that ended before it saved anything, and began anew.
    fn begin_at(&mut self, step: u64) {
        if std::mem::take(&mut self.begun) {
            self.forget_after(step.saturating_sub(1));
        }
    }

    fn forget_after(&mut self, step: u64) {
        self.steps.retain(|known| known.step <= step);
        self.epochs.retain(|known| known.step <= step);
        self.saves.retain(|known| known.step <= step);
        self.times.retain(|known| known.step <= step);
        self.falls.retain(|(known, _)| *known <= step);
    }

    fn sample(&mut self, sample: &MachineSample) {
        self.memory = self.memory.max(sample.memory_bytes);
        // Of several, it is not known which one the run is on: others may be at work on each.
        if let [gpu] = &sample.gpus[..] {
            self.sample_gpu(gpu, sample.seconds);
        }
        if self.training && !self.paused {
            self.in_training.see(sample);
            self.trained_now().gauges.see(sample);
        }
        self.in_all.see(sample);
        self.over_time.see(sample);
    }

    fn sample_gpu(&mut self, gpu: &GpuSample, seconds: f64) {
        if let (Some(used), Some(all)) = (gpu.memory_used_bytes, gpu.memory_bytes) {
            self.gpu_memory = self.gpu_memory.max(used as f64 / all.max(1) as f64);
        }
        let share = gpu.utilisation.filter(|share| share.is_finite());
        if let Some(share) = share.filter(|_| self.training && !self.paused) {
            let [busy, all] = &mut self.trained_now().gpu_busy;
            *busy += share * seconds;
            *all += seconds;
        }
    }

    /// The mean of a figure over the training that the run's steps are of.
    fn own_mean(&self, name: &str) -> Option<f64> {
        self.trained().gauges.get(name).map(Gauge::mean)
    }

    fn trained_now(&mut self) -> &mut Trained {
        if self.classifies { &mut self.classifiers } else { &mut self.own }
    }

    /// What is known of the training that the run's steps are of: its own, or that of classifiers where there was none.
    fn trained(&self) -> &Trained {
        if self.own.is_known() { &self.own } else { &self.classifiers }
    }

    /// How many gradients overflowed before the first step that was taken, and the loss scale of that step, if the scale
    /// fell each time.
    pub(crate) fn found_scale(&self) -> Option<(u64, f64)> {
        let first = self.steps.iter().find(|step| !step.skipped)?.step;
        let before = self.steps.iter().filter(|step| step.overflown && step.step < first).count();
        let falls = || self.falls.iter().filter(move |(step, _)| *step < first);
        // At the floor, gradients overflow and the scale stays.
        if falls().count() < before {
            return None;
        }
        falls().next_back().map(|(_, scale)| (before as u64, *scale))
    }

    /// Whether it was told where the time of steps went.
    pub fn is_timed(&self) -> bool {
        !self.times.is_empty()
    }

    /// Memory over the seconds that were sampled: of the process, and of each pool.
    pub fn memory_over_time(&self) -> Vec<MemoryCurve> {
        self.over_time.curves()
    }

    /// Every figure that was measured.
    pub fn measures(&self) -> Vec<Measure> {
        let measures = self.in_all.0.iter().map(|gauge| {
            let training = self.in_training.get(&gauge.name);
            Measure {
                name: gauge.name.clone(),
                unit: gauge.unit,
                training_mean: training.map(Gauge::mean),
                training_peak: training.map(|training| training.peak),
                peak: gauge.peak,
            }
        });
        measures.collect()
    }

    /// Where the time of training went, by name and as text. On a GPU, what it was limited by is told by how busy that was.
    pub fn timings(&self, on_gpu: bool) -> Vec<(String, String)> {
        let shares = self.shares();
        if self.steps.is_empty() {
            return vec![];
        }
        let (first, later) = self.first_and_later();
        // A run of one step has no other.
        let times = if later.is_empty() { &first } else { &later };
        let (median, mean) = (median(times), times.iter().sum::<f64>() / times.len() as f64);
        let beyond: f64 = first.iter().map(|first| (first - median).max(0.0)).sum();
        let mut timings = vec![
            ("step, median", format!("{} ms", significant(median))),
            ("step, mean", format!("{} ms", significant(mean))),
        ];
        if !later.is_empty() {
            timings.push((WARM_UP, format!("{} ms", significant(beyond))));
        }
        let steps = StepTimes::sum(&self.times);
        let of_training = |share| format!("{} of training", percent(share));
        let of_a_step = |share| format!("{} of a step", percent(share));
        let mut waiting = of_training(shares.data);
        if let Some(times) = &steps {
            waiting += &format!(", {}", of_a_step(times.waiting_share()));
        }
        timings.extend([
            ("waiting for data", waiting),
            ("standing still for checkpoints", of_training(shares.saves)),
            ("validation", of_training(shares.validation)),
        ]);
        if let Some(times) = steps {
            timings.extend(times.shares().map(|(name, share)| (name, of_a_step(share))));
            timings.push(("limited by", times.limit(self.step_device(on_gpu))));
        }
        let busy = self.own_mean(CPU_SHARE).map(percent);
        timings.extend(busy.map(|busy| ("processor busy while training", busy)));
        timings.into_iter().map(|(name, text)| (name.to_owned(), text)).collect()
    }

    /// Milliseconds of the first step of each attempt, and of all others.
    fn first_and_later(&self) -> (Vec<f64>, Vec<f64>) {
        let mut before = None;
        let (first, later): (Vec<_>, Vec<_>) = self.steps.iter().partition(|step| {
            let is_first = before != Some(step.attempt);
            before = Some(step.attempt);
            is_first
        });
        let times = |steps: Vec<&StepTime>| steps.iter().map(|step| step.milliseconds).collect();
        (times(first), times(later))
    }

    /// Share of the time of training in which the GPU was busy, validation counted in; `None` unless one alone was looked at.
    fn gpu_share(&self) -> Option<f64> {
        let [busy, seconds] = self.trained().gpu_busy;
        (seconds > 0.0).then(|| (busy / seconds).clamp(0.0, 1.0))
    }

    /// Takes how busy the GPU was from the run that this training is within, whose classifier it is if the run has
    /// trained some: its own log says nothing of it.
    pub fn on_the_gpu_of(&mut self, run: &Self) {
        let of = if run.classifiers.is_known() { &run.classifiers } else { &run.own };
        self.own.gpu_busy = of.gpu_busy;
    }

    /// What steps were computed on, with what is known of how busy that was.
    pub(crate) fn step_device(&self, on_gpu: bool) -> StepDevice {
        if on_gpu { StepDevice::Gpu(self.gpu_share()) } else { StepDevice::Processor }
    }

    /// How busy the device was while training: the GPU, if one alone was looked at, or the processor.
    pub fn utilisation(&self, on_gpu: bool) -> Option<Utilisation> {
        let share = match on_gpu {
            true => self.gpu_share(),
            false => self.own_mean(CPU_SHARE),
        }?;
        let what = if on_gpu { "the GPU" } else { "the processor" };
        let good = share > GOOD;
        let sentence = if good {
            format!(
                "While training, {what} was busy {} of the time: good (over 85 %).",
                percent(share)
            )
        } else {
            let cause = self.cause(on_gpu);
            format!(
                "While training, {what} was busy {} of the time, below the 85 % that count as good: {cause}.",
                percent(share)
            )
        };
        Some(Utilisation { share, good, sentence })
    }

    /// Why the device was not busy, by what took the most time of what was measured.
    fn cause(&self, on_gpu: bool) -> String {
        let Shares { data, saves, validation, .. } = self.shares();
        let others = self.others();
        let mut causes = vec![
            (data, format!("{} of the time went by waiting for data", percent(data))),
            (
                saves,
                format!("{} of the time went by standing still for checkpoints", percent(saves)),
            ),
        ];
        if !on_gpu {
            let said = format!("other processes took {} of the processor", percent(others));
            causes.push((others, said));
        }
        causes.sort_by(|a, b| b.0.total_cmp(&a.0));
        match causes.into_iter().next().filter(|(share, _)| *share >= NOTABLE) {
            Some((_, said)) => said,
            // Trainings within a run tell of their steps in logs of their own.
            None if self.steps.is_empty() => {
                "the run has no steps of its own that would tell why".to_owned()
            }
            None => format!(
                "neither data ({}) nor checkpoints ({}) nor validation ({}) held it up, so the steps themselves do not fill it (parts that one thread computes, small batches)",
                percent(data),
                percent(saves),
                percent(validation)
            ),
        }
    }

    /// Share of this process's hardware threads that others kept busy while training.
    pub(crate) fn others(&self) -> f64 {
        let mean = |name| self.own_mean(name);
        match (mean(OTHERS), mean(CPU), mean(CPU_SHARE)) {
            (Some(others), Some(own), Some(share)) if share > 0.0 => {
                // Others may have been busy on threads that this process may not use.
                let threads = own / share;
                (others / threads).min(1.0 - share).max(0.0)
            }
            _ => 0.0,
        }
    }

    /// Where the time of training went.
    pub(crate) fn shares(&self) -> Shares {
        let steps: f64 = self.steps.iter().map(|step| step.milliseconds).sum();
        let data: f64 = self.steps.iter().map(|step| step.data_milliseconds).sum();
        // Steps tell it with the time in which batches were handed to the device.
        let data = data * StepTimes::sum(&self.times).map_or(1.0, |times| times.waiting_of_data());
        let saves: f64 = self.saves.iter().map(|save| save.milliseconds).sum();
        let (own, within) = self.within_epochs();
        let mut validation = 0.0;
        for (epoch, (own, saves)) in self.epochs.iter().zip(own.iter().zip(&within)) {
            validation += (epoch.seconds * 1e3 - own - saves).max(0.0);
        }
        let all = steps + saves + validation;
        let share = |part: f64| if all > 0.0 { part / all } else { 0.0 };
        Shares {
            seconds: all / 1e3,
            data: share(data),
            saves: share(saves),
            validation: share(validation),
        }
    }

    /// Milliseconds of the steps and of the saves that are within the time of each epoch. Each is looked for among the
    /// epochs once: a long run has thousands of these, and millions of steps.
    fn within_epochs(&self) -> (Vec<f64>, Vec<f64>) {
        let (mut steps, mut saves) = (vec![0.0; self.epochs.len()], vec![0.0; self.epochs.len()]);
        for step in &self.steps {
            if let Some((place, _)) = self.epoch_of(step.attempt, step.step) {
                steps[place] += step.milliseconds;
            }
        }
        for save in &self.saves {
            // The save that closes an epoch comes after its time was taken.
            if let Some((place, epoch)) = self.epoch_of(save.attempt, save.step)
                && save.step != epoch.step
            {
                saves[place] += save.milliseconds;
            }
        }
        (steps, saves)
    }

    /// The epoch that a step is of, and its place. One that was gone on with has the time since then, as its steps since then
    /// have: those of earlier attempts are of none.
    fn epoch_of(&self, attempt: u64, step: u64) -> Option<(usize, &EpochTime)> {
        let place = self.epochs.partition_point(|epoch| epoch.step < step);
        let epoch = self.epochs.get(place).filter(|epoch| epoch.attempt == attempt && step > 0);
        epoch.map(|epoch| (place, epoch))
    }

    /// Whether a checkpoint was saved after one of each `every` steps that ends no epoch.
    pub(crate) fn saves_within_epochs(&self, every: u64) -> bool {
        let ends_epoch =
            |step: u64| self.epochs.binary_search_by_key(&step, |epoch| epoch.step).is_ok();
        let steps = self.saves.iter().map(|save| save.step).filter(|step| *step > 0);
        steps.filter(|step| step.is_multiple_of(every)).any(|step| !ends_epoch(step))
    }

    /// Seconds that the first step of each attempt waited for data, which nobody can have ready before it begins.
    pub(crate) fn waits_for_first_batches(&self) -> f64 {
        let begins = |at: usize| at == 0 || self.steps[at - 1].attempt != self.steps[at].attempt;
        let first = (0..self.steps.len()).filter(|at| begins(*at));
        let waits: f64 = first.map(|at| self.steps[at].data_milliseconds).sum();
        waits / 1e3 * StepTimes::sum(&self.times).map_or(1.0, |times| times.waiting_of_data())
    }

    pub(crate) fn training_peak(&self, name: &str) -> Option<f64> {
        self.in_training.get(name).map(|gauge| gauge.peak)
    }

    pub(crate) fn training_mean(&self, name: &str) -> Option<f64> {
        self.in_training.get(name).map(Gauge::mean)
    }
}
