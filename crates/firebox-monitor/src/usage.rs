//! What the events of a run tell of its time and of its machine: averages and peaks, and whether
//! the device was busy.

use crate::times::StepTimes;
use firebox_core::{Event, MachineSample, Request};

use crate::text::{percent, significant};

/// Share of the time from which a device counts as well used: reference systems R1 and R2 both call
/// more than 85 % good.
const GOOD: f64 = 0.85;
/// Share of the time from which something counts as a cause.
const NOTABLE: f64 = 0.05;

/// Collects from the events of a run, over all its attempts.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    training: bool,
    /// Standing still because a person asked for it, which says nothing about the device.
    paused: bool,
    in_training: Gauges,
    in_all: Gauges,
    pub(crate) steps: Vec<StepTime>,
    pub(crate) epochs: Vec<EpochTime>,
    saves: Vec<Save>,
    pub(crate) times: Vec<StepTimes>,
    /// Smallest loss scale that was fallen to.
    pub(crate) lowest_scale: Option<f64>,
    /// Attempts before this one.
    attempt: u64,
    pub(crate) memory: u64,
    /// Peak shares of GPU memory in use.
    pub(crate) gpu_memory: f64,
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
    /// Waiting for data.
    pub(crate) data: f64,
    /// Standing still for a checkpoint.
    pub(crate) saves: f64,
    /// Whatever of the epochs is neither a step nor a checkpoint: validation.
    pub(crate) validation: f64,
}

impl Usage {
    /// Takes an event. After a resume, steps that are told again replace those before.
    pub fn record(&mut self, event: &Event) {
        match event {
            Event::RunStarted { resumed_at_step, .. } => {
                (self.training, self.paused) = (false, false);
                self.attempt += 1;
                if let Some(step) = resumed_at_step {
                    self.forget_after(*step);
                }
            }
            Event::StageStarted { stage } => self.training = stage == "train",
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
            Event::LossScale { scale, .. } => {
                let lowest = self.lowest_scale.unwrap_or(f64::INFINITY);
                self.lowest_scale = Some(lowest.min(*scale));
            }
            Event::Asked { request: Request::Pause, .. } => self.paused = true,
            Event::Asked { request: Request::GoOn, .. } => self.paused = false,
            Event::Machine(sample) => self.sample(sample),
            _ => {}
        }
    }

    fn forget_after(&mut self, step: u64) {
        self.steps.retain(|known| known.step <= step);
        self.epochs.retain(|known| known.step <= step);
        self.saves.retain(|known| known.step <= step);
        self.times.retain(|known| known.step <= step);
    }

    fn sample(&mut self, sample: &MachineSample) {
        self.memory = self.memory.max(sample.memory_bytes);
        for gpu in &sample.gpus {
            if let (Some(used), Some(all)) = (gpu.memory_used_bytes, gpu.memory_bytes) {
                self.gpu_memory = self.gpu_memory.max(used as f64 / all.max(1) as f64);
            }
        }
        if self.training && !self.paused {
            self.in_training.see(sample);
        }
        self.in_all.see(sample);
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

    /// Where the time of training went, by name and as text.
    pub fn timings(&self) -> Vec<(String, String)> {
        let shares = self.shares();
        if self.steps.is_empty() {
            return vec![];
        }
        let steps = self.steps.len() as f64;
        let mean = self.steps.iter().map(|step| step.milliseconds).sum::<f64>() / steps;
        let mut times: Vec<f64> = self.steps.iter().map(|step| step.milliseconds).collect();
        times.sort_by(f64::total_cmp);
        let mut timings = vec![
            ("step, median", format!("{} ms", significant(times[times.len() / 2]))),
            ("step, mean", format!("{} ms", significant(mean))),
            ("waiting for data", percent(shares.data)),
            ("standing still for checkpoints", percent(shares.saves)),
            ("validation", percent(shares.validation)),
        ];
        if let Some(times) = StepTimes::sum(&self.times) {
            timings.extend(times.shares().map(|(name, share)| (name, percent(share))));
            timings.push(("limited by", times.limit()));
        }
        let busy = self.training_mean(CPU_SHARE).map(percent);
        timings.extend(busy.map(|busy| ("processor busy while training", busy)));
        timings.into_iter().map(|(name, text)| (name.to_owned(), text)).collect()
    }

    /// How busy the device was while training: the busiest GPU, or the processor.
    pub fn utilisation(&self, on_gpu: bool) -> Option<Utilisation> {
        let of = |suffix: &str, prefix: &str| {
            let all = self
                .in_training
                .0
                .iter()
                .filter(|gauge| gauge.name.starts_with(prefix) && gauge.name.ends_with(suffix));
            all.map(Gauge::mean).max_by(f64::total_cmp)
        };
        let share = if on_gpu { of("utilisation", "GPU") } else { of(CPU_SHARE, CPU_SHARE) }?;
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
        let mean = |name| self.in_training.get(name).map(Gauge::mean);
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
        let saves: f64 = self.saves.iter().map(|save| save.milliseconds).sum();
        let (mut validation, mut from) = (0.0, 0);
        for epoch in &self.epochs {
            // An epoch that was gone on with has the time since then, as its steps since then have.
            let within = |attempt: u64, step: u64| {
                attempt == epoch.attempt && (from + 1..=epoch.step).contains(&step)
            };
            let own = self.steps.iter().filter(|own| within(own.attempt, own.step));
            let own: f64 = own.map(|step| step.milliseconds).sum();
            // The save that closes an epoch comes after its time was taken.
            let saves: f64 = self
                .saves
                .iter()
                .filter(|save| within(save.attempt, save.step) && save.step != epoch.step)
                .map(|save| save.milliseconds)
                .sum();
            validation += (epoch.seconds * 1e3 - own - saves).max(0.0);
            from = epoch.step;
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

    pub(crate) fn training_peak(&self, name: &str) -> Option<f64> {
        self.in_training.get(name).map(|gauge| gauge.peak)
    }

    pub(crate) fn training_mean(&self, name: &str) -> Option<f64> {
        self.in_training.get(name).map(Gauge::mean)
    }
}

const CPU: &str = "processor, this process";
const CPU_SHARE: &str = "share of the processor";
const OTHERS: &str = "processor, other processes";
pub(crate) const MEMORY_IN_USE: &str = "memory in use, all processes";
pub(crate) const MAJOR_FAULTS: &str = "page faults that a disk served";

/// A figure over time.
#[derive(Clone, Debug, PartialEq)]
struct Gauge {
    name: String,
    unit: &'static str,
    /// Sum of values by the seconds that each was over, and these seconds.
    sum: f64,
    seconds: f64,
    peak: f64,
}

impl Gauge {
    fn mean(&self) -> f64 {
        self.sum / self.seconds.max(f64::MIN_POSITIVE)
    }
}

/// Figures in the order in which they were first seen.
#[derive(Clone, Debug, Default)]
struct Gauges(Vec<Gauge>);

impl Gauges {
    fn get(&self, name: &str) -> Option<&Gauge> {
        self.0.iter().find(|gauge| gauge.name == name)
    }

    fn see(&mut self, sample: &MachineSample) {
        let threads = f64::from(sample.threads.max(1));
        let in_use = sample.memory_bytes.saturating_sub(sample.available_bytes);
        let whole = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
        let all = [
            (CPU, "threads", Some(sample.cpu_threads)),
            (CPU_SHARE, "share", Some(sample.cpu_threads / threads)),
            (OTHERS, "threads", sample.other_threads),
            ("resident memory of this process", "bytes", Some(sample.resident_bytes as f64)),
            (MEMORY_IN_USE, "bytes", Some(in_use as f64)),
            ("page cache of the machine", "bytes", whole(sample.page_cache_bytes)),
            ("page faults that memory served", "1/s", sample.minor_faults),
            (MAJOR_FAULTS, "1/s", sample.major_faults),
            ("read from a disk", "bytes/s", Some(sample.disk_read)),
            ("read from the page cache", "bytes/s", sample.cache_read),
            ("written to a disk", "bytes/s", Some(sample.disk_written)),
        ];
        for (name, unit, value) in all {
            self.add(name, unit, value, sample.seconds);
        }
        for gpu in &sample.gpus {
            let all = [
                ("utilisation", "share", gpu.utilisation),
                ("memory", "bytes", whole(gpu.memory_used_bytes)),
                ("clock", "MHz", gpu.clock_mhz.map(f64::from)),
                ("power", "W", gpu.power_watts),
                ("temperature", "°C", gpu.temperature_celsius.map(f64::from)),
            ];
            for (name, unit, value) in all {
                self.add(&format!("GPU {} {name}", gpu.index), unit, value, sample.seconds);
            }
        }
    }

    fn add(&mut self, name: &str, unit: &'static str, value: Option<f64>, seconds: f64) {
        let Some(value) = value.filter(|value| value.is_finite()) else { return };
        let place = self.0.iter().position(|gauge| gauge.name == name).unwrap_or_else(|| {
            let name = name.to_owned();
            self.0.push(Gauge { name, unit, sum: 0.0, seconds: 0.0, peak: value });
            self.0.len() - 1
        });
        let gauge = &mut self.0[place];
        gauge.sum += value * seconds;
        gauge.seconds += seconds;
        gauge.peak = gauge.peak.max(value);
    }
}

#[cfg(test)]
mod tests {
    use firebox_core::GpuSample;

    use super::*;

    pub(crate) fn started(stage: &str) -> Event {
        Event::StageStarted { stage: stage.to_owned() }
    }

    fn sample(seconds: f64, cpu_threads: f64, other: f64, gpu: Option<f64>) -> Event {
        let gpus = gpu.map(|share| GpuSample { utilisation: Some(share), ..GpuSample::default() });
        Event::Machine(MachineSample {
            seconds,
            cpu_threads,
            threads: 4,
            other_threads: Some(other),
            memory_bytes: 100,
            available_bytes: 40,
            gpus: gpus.into_iter().collect(),
            ..MachineSample::default()
        })
    }

    fn step(step: u64, milliseconds: f64, data_milliseconds: f64) -> Event {
        Event::Step {
            step,
            epoch: 1,
            loss: 1.0,
            learning_rate: 0.1,
            gradient_norm: 1.0,
            samples: 4,
            milliseconds,
            data_milliseconds,
            skipped: false,
        }
    }

    fn usage(events: &[Event]) -> Usage {
        let mut usage = Usage::default();
        events.iter().for_each(|event| usage.record(event));
        usage
    }

    #[test]
    fn means_are_over_time_and_peaks_of_training_are_its_own() {
        let usage = usage(&[
            started("ingest"),
            sample(1.0, 4.0, 0.0, None),
            started("train"),
            sample(3.0, 1.0, 0.0, None),
            Event::Asked { request: Request::Pause, step: 1 },
            sample(9.0, 0.0, 0.0, None),
            Event::Asked { request: Request::GoOn, step: 1 },
            sample(1.0, 3.0, 0.0, None),
        ]);
        let measures = usage.measures();
        let cpu = measures.iter().find(|measure| measure.name == CPU).unwrap();
        assert_eq!((cpu.training_mean, cpu.training_peak, cpu.peak), (Some(1.5), Some(3.0), 4.0));
        assert_eq!(usage.training_mean(CPU_SHARE), Some(0.375));
        assert_eq!(usage.training_peak(MEMORY_IN_USE), Some(60.0));
        assert!(measures.iter().all(|measure| !measure.name.starts_with("GPU")));
    }

    #[test]
    fn time_is_divided_among_data_checkpoints_and_validation() {
        let save = Event::Checkpoint {
            step: 1,
            path: String::new(),
            blocked_milliseconds: 100.0,
            save_milliseconds: 500.0,
            bytes: 1,
        };
        let epoch = Event::Epoch {
            epoch: 1,
            step: 2,
            train_loss: 1.0,
            validation_loss: Some(1.0),
            best: true,
            seconds: 1.0,
        };
        let shares = usage(&[step(1, 300.0, 60.0), save, step(2, 300.0, 40.0), epoch]).shares();
        let expected = Shares { seconds: 1.0, data: 0.1, saves: 0.1, validation: 0.3 };
        assert!((shares.validation - expected.validation).abs() < 1e-9, "{shares:?}");
        assert_eq!(Shares { validation: 0.3, ..shares }, expected);
        assert_eq!(Usage::default().shares(), Shares::default());
    }

    #[test]
    fn an_epoch_that_was_gone_on_with_loses_the_steps_of_its_own_attempt_only() {
        let started = |resumed_at_step| Event::RunStarted {
            run: "r".to_owned(),
            device: "cpu".to_owned(),
            resumed_at_step,
        };
        let epoch = Event::Epoch {
            epoch: 1,
            step: 3,
            train_loss: 1.0,
            validation_loss: Some(1.0),
            best: true,
            seconds: 0.5,
        };
        let events = [
            started(None),
            step(1, 300.0, 0.0),
            step(2, 300.0, 0.0),
            started(Some(2)),
            step(3, 300.0, 0.0),
            epoch,
        ];
        // 0.5 s since the resume, of which one step took 0.3 s; 0.9 s of steps in all.
        let shares = usage(&events).shares();
        assert!((shares.seconds - 1.1).abs() < 1e-9, "{shares:?}");
        assert!((shares.validation - 0.2 / 1.1).abs() < 1e-9, "{shares:?}");
    }

    #[test]
    fn a_device_that_is_not_busy_has_a_cause() {
        let check = |events: &[Event], on_gpu, good, expected: &str| {
            let found = usage(events).utilisation(on_gpu).unwrap();
            assert!(found.good == good && found.sentence.contains(expected), "{}", found.sentence);
        };
        check(
            &[started("train"), sample(1.0, 3.9, 0.0, None)],
            false,
            true,
            "97.5 % of the time: good",
        );
        // Exactly at the border is not above it.
        check(&[started("train"), sample(1.0, 3.4, 0.0, None)], false, false, "85.0 %");
        let starved = [started("train"), sample(1.0, 1.0, 0.0, Some(0.4)), step(1, 10.0, 6.0)];
        check(&starved, true, false, "60.0 % of the time went by waiting for data");
        let shared = [started("train"), sample(1.0, 2.0, 2.0, None), step(1, 10.0, 0.0)];
        check(&shared, false, false, "other processes took 50.0 % of the processor");
        check(&[started("train"), sample(1.0, 1.0, 0.0, None)], false, false, "do not fill it");
        assert_eq!(usage(&[started("train"), step(1, 1.0, 0.0)]).utilisation(false), None);
        assert_eq!(usage(&[started("train"), sample(1.0, 1.0, 0.0, None)]).utilisation(true), None);
        // Samples of other stages say nothing about training.
        assert_eq!(
            usage(&[started("ingest"), sample(1.0, 4.0, 0.0, None)]).utilisation(false),
            None
        );
    }

    #[test]
    fn steps_that_are_told_again_replace_those_before() {
        let resumed = Event::RunStarted {
            run: "r".to_owned(),
            device: "cpu".to_owned(),
            resumed_at_step: Some(1),
        };
        let usage = usage(&[step(1, 1.0, 0.0), step(2, 1.0, 0.0), resumed, step(2, 5.0, 0.0)]);
        assert_eq!(usage.steps.iter().map(|s| s.milliseconds).collect::<Vec<_>>(), [1.0, 5.0]);
    }
}
