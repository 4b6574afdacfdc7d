//! What stood out in what a run measured, each with its figure and the setting that would change
//! it. Nothing is said that was not measured.

use crate::text::{bytes, duration, percent, significant};
use crate::times::StepTimes;
use crate::usage::{EpochTime, MAJOR_FAULTS, MEMORY_IN_USE, Usage};

/// Something that stood out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// What, with its figure.
    pub finding: String,
    /// The setting that would change it, and to what; empty where nothing needs changing.
    pub setting: String,
}

/// The factor on the loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    /// None.
    Off,
    /// Always this one.
    Static(f64),
    /// One that falls at an overflow and rises again.
    Dynamic {
        /// Steps without an overflow after which it rises.
        interval: u64,
        /// Smallest scale.
        floor: f64,
    },
}

/// The settings that advice is about.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Whether the run was on a GPU.
    pub on_gpu: bool,
    /// Samples of a batch.
    pub batch_size: usize,
    /// Threads that make batches.
    pub workers: usize,
    /// Batches made ahead.
    pub prefetch: usize,
    /// Key of the peak learning rate.
    pub rate_key: &'static str,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// The factor on the loss.
    pub scaling: Scaling,
    /// Norm that gradients are clipped to.
    pub clip: Option<f64>,
    /// Absolute value that each element of a gradient is clipped to, instead of the norm.
    pub clip_value: Option<f64>,
    /// Epochs that were asked for.
    pub epochs: u64,
    /// Whether training ends when the validation loss has stopped falling.
    pub early_stopping: bool,
    /// Steps between two saves that a killed run can go on from.
    pub resume_every: Option<u64>,
}

/// Share of the time from which waiting is worth a word. R1 and R2 both call a data loader good
/// that costs under 5 %.
const WAITING: f64 = 0.05;
/// Share of the memory from which the next larger batch may not fit.
const FULL: f64 = 0.9;
/// Page faults a second from which a disk is being used as memory: each takes about 0.1 ms.
const THRASHING: f64 = 100.0;
/// Share of steps that a dynamic loss scale may lose to overflows: it finds its value by them.
const OVERFLOWS: f64 = 0.01;
/// Overflows that any run may need to find its scale.
const FIRST_OVERFLOWS: u64 = 10;
/// How much the training loss may rise above its lowest epoch.
const DIVERGED: f64 = 1.5;
/// Share of the epochs after the best one from which they were spent for nothing.
const PLATEAU: f64 = 0.5;
/// Fall of the validation loss over the last epoch from which more epochs would have helped.
const STILL_FALLING: f64 = 0.01;

/// Everything that stood out; one line that says so if nothing did. Empty for a run that took no
/// step.
pub fn advice(usage: &Usage, settings: &Settings) -> Vec<Advice> {
    if usage.steps.is_empty() {
        return vec![];
    }
    let found = [
        starvation(usage, settings),
        saves(usage, settings),
        memory(usage, settings),
        thrashing(usage, settings),
        gpu_memory(usage, settings),
        skipped(usage, settings),
        overflows(usage, settings),
        divergence(usage, settings),
        plateau(usage, settings),
        still_falling(usage, settings),
        utilisation(usage, settings),
    ];
    let mut found: Vec<Advice> = found.into_iter().flatten().collect();
    if found.is_empty() {
        let shares = usage.shares();
        let skipped = usage.steps.iter().filter(|step| step.skipped).count();
        found.push(Advice {
            finding: format!(
                "nothing stood out: {} of {} of training went by waiting for data, {} standing still for checkpoints; {skipped} of {} steps were skipped",
                percent(shares.data),
                duration(shares.seconds),
                percent(shares.saves),
                usage.steps.len()
            ),
            setting: String::new(),
        });
    }
    found
}

fn some(finding: String, setting: String) -> Option<Advice> {
    Some(Advice { finding, setting })
}

fn starvation(usage: &Usage, settings: &Settings) -> Option<Advice> {
    let share = usage.shares().data;
    let steps = usage.steps.len() as f64;
    let mean = usage.steps.iter().map(|step| step.data_milliseconds).sum::<f64>() / steps;
    let of = usage.steps.iter().map(|step| step.milliseconds).sum::<f64>() / steps;
    if share < WAITING {
        return None;
    }
    let said = format!(
        "{} of the time of training went by waiting for data: {} of {} ms a step",
        percent(share),
        significant(mean),
        significant(of)
    );
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let times = StepTimes::sum(&usage.times);
    if let Some((workers, gain)) = times.and_then(|times| times.workers(settings.workers, threads))
    {
        let now = settings.workers;
        return some(
            format!("{said}; {workers} threads would give about {}×", significant(gain)),
            format!("`loader.workers` from {now} to {workers}"),
        );
    }
    some(
        said,
        format!(
            "`loader.workers` from {} to {}, `loader.prefetch` from {} to {}",
            settings.workers,
            settings.workers + 1,
            settings.prefetch,
            (2 * settings.prefetch).max(2)
        ),
    )
}

fn saves(usage: &Usage, settings: &Settings) -> Option<Advice> {
    let share = usage.shares().saves;
    if share < WAITING {
        return None;
    }
    let setting = match settings.resume_every {
        Some(steps) => format!("`train.checkpoint.resume_every` from {steps} to {}", 4 * steps),
        None => "`train.checkpoint.keep` to `final-only`, or to a larger `every-steps`".to_owned(),
    };
    let said = format!("{} of the time of training stood still for checkpoints", percent(share));
    some(said, setting)
}

fn memory(usage: &Usage, settings: &Settings) -> Option<Advice> {
    let peak = usage.training_peak(MEMORY_IN_USE)?;
    let share = peak / usage.memory.max(1) as f64;
    if share < FULL {
        return None;
    }
    some(
        format!(
            "while training, all processes together had {} of {} of memory in use ({})",
            bytes(peak),
            bytes(usage.memory as f64),
            percent(share)
        ),
        format!("{}, or end other programs", smaller_batch(settings)),
    )
}

fn smaller_batch(settings: &Settings) -> String {
    let half = (settings.batch_size / 2).max(1);
    format!(
        "`loader.batch_size` from {} to {half} with `train.accumulate` doubled",
        settings.batch_size
    )
}

fn thrashing(usage: &Usage, settings: &Settings) -> Option<Advice> {
    let rate = usage.training_mean(MAJOR_FAULTS)?;
    if rate < THRASHING {
        return None;
    }
    some(
        format!("while training, a disk had to serve {} page faults a second", significant(rate)),
        format!("{}, or keep `run.cache` on a faster disk", smaller_batch(settings)),
    )
}

fn gpu_memory(usage: &Usage, settings: &Settings) -> Option<Advice> {
    if usage.gpu_memory < FULL {
        return None;
    }
    let said = format!("{} of a GPU's memory was in use at the peak", percent(usage.gpu_memory));
    some(said, smaller_batch(settings))
}

fn skipped(usage: &Usage, settings: &Settings) -> Option<Advice> {
    let all = usage.steps.len();
    // An overflow under a loss scale is another matter.
    let scaled = settings.scaling != Scaling::Off;
    let skipped = usage.steps.iter().filter(|step| step.skipped && !(scaled && step.overflown));
    let skipped: Vec<u64> = skipped.map(|step| step.step).collect();
    let (first, count) = (skipped.first()?, skipped.len());
    some(
        format!(
            "{count} of {all} steps were skipped because a loss or gradient was not finite; the first step that was skipped is {first}"
        ),
        calmer(settings),
    )
}

fn overflows(usage: &Usage, settings: &Settings) -> Option<Advice> {
    let count = usage.steps.iter().filter(|step| step.overflown).count() as u64;
    let all = usage.steps.len();
    let said = format!("{count} of {all} steps were skipped because a gradient overflowed");
    match settings.scaling {
        _ if count == 0 => None,
        Scaling::Off => None,
        Scaling::Static(scale) => some(
            format!("{said} under the loss scale of {scale}, which never falls"),
            format!(
                "`train.loss_scale.static` from {scale} to {}, or `train.loss_scale.dynamic` in its place",
                scale / 16.0
            ),
        ),
        Scaling::Dynamic { .. }
            if count <= FIRST_OVERFLOWS || (count as f64) < OVERFLOWS * all as f64 =>
        {
            None
        }
        Scaling::Dynamic { floor, .. } if usage.lowest_scale.is_none_or(|low| low <= floor) => {
            let lower = match floor > 1.0 {
                true => format!("`train.loss_scale.dynamic.floor` from {floor} to 1, "),
                false => String::new(),
            };
            let said = format!("{said}, at the smallest loss scale ({floor}) too");
            some(said, lower + &calmer(settings))
        }
        Scaling::Dynamic { interval, .. } => some(
            format!("{said} under its loss scale"),
            format!(
                "`train.loss_scale.dynamic.interval` from {interval} to {}",
                interval.saturating_mul(2)
            ),
        ),
    }
}

fn calmer(settings: &Settings) -> String {
    // The two ways to clip exclude one another.
    let clip = match (settings.clip, settings.clip_value) {
        (_, Some(value)) => format!("`train.clip_value` from {value} to {}", value / 2.0),
        (Some(clip), _) if clip <= 1.0 => format!("`train.clip` from {clip} to {}", clip / 2.0),
        (Some(clip), _) => format!("`train.clip` from {clip} to 1.0"),
        (None, None) => "`train.clip` to 1.0 (it is off)".to_owned(),
    };
    let rate = settings.learning_rate;
    format!("`{}` from {rate} to {}, {clip}", settings.rate_key, rate / 2.0)
}

fn divergence(usage: &Usage, settings: &Settings) -> Option<Advice> {
    let finite = || usage.epochs.iter().filter(|epoch| epoch.train_loss.is_finite());
    let lowest = finite().min_by(|a, b| a.train_loss.total_cmp(&b.train_loss))?;
    let last = finite().next_back()?;
    if lowest.train_loss <= 0.0 || last.train_loss <= DIVERGED * lowest.train_loss {
        return None;
    }
    let norms = usage.steps.iter().map(|step| step.gradient_norm).filter(|norm| norm.is_finite());
    some(
        format!(
            "the training loss rose from {} in epoch {} to {} in epoch {}; the largest gradient norm was {}",
            significant(lowest.train_loss),
            lowest.epoch,
            significant(last.train_loss),
            last.epoch,
            significant(norms.fold(0.0, f64::max))
        ),
        calmer(settings),
    )
}

/// Epochs that were validated, with their losses.
fn validated(usage: &Usage) -> Vec<(&EpochTime, f64)> {
    let finite = |loss: &f64| loss.is_finite();
    let all = usage.epochs.iter();
    all.filter_map(|epoch| Some((epoch, epoch.validation_loss.filter(finite)?))).collect()
}

fn plateau(usage: &Usage, settings: &Settings) -> Option<Advice> {
    let epochs = validated(usage);
    let (best, loss) = epochs.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let last = epochs.last()?.0.epoch;
    let after = last - best.epoch;
    // Two epochs may go sideways in any run.
    if after < 3 || (after as f64) < PLATEAU * last as f64 {
        return None;
    }
    let stop = match settings.early_stopping {
        true => "`train.early_stopping.patience` lower",
        false => "`train.early_stopping.patience` to 5 (it is off)",
    };
    some(
        format!(
            "the validation loss was at its best ({}) after epoch {} of {last}; {after} epochs after it brought nothing",
            significant(*loss),
            best.epoch
        ),
        format!(
            "`train.epochs` from {} to {}, or {stop}; a lower `{}` than {} may go further",
            settings.epochs,
            best.epoch + 2,
            settings.rate_key,
            settings.learning_rate
        ),
    )
}

fn still_falling(usage: &Usage, settings: &Settings) -> Option<Advice> {
    let epochs = validated(usage);
    let [.., (_, before), (last, loss)] = &epochs[..] else { return None };
    let fall = 1.0 - loss / before;
    let lowest = epochs.iter().all(|(_, other)| loss <= other);
    if !lowest || fall < STILL_FALLING || *before <= 0.0 || last.epoch < settings.epochs {
        return None;
    }
    some(
        format!(
            "the validation loss still fell by {} in the last epoch ({} to {})",
            percent(fall),
            significant(*before),
            significant(*loss)
        ),
        format!("`train.epochs` from {} to {}", settings.epochs, 2 * settings.epochs),
    )
}

fn utilisation(usage: &Usage, settings: &Settings) -> Option<Advice> {
    let utilisation = usage.utilisation(settings.on_gpu).filter(|found| !found.good)?;
    let shares = usage.shares();
    // What has a cause that is measured was said above.
    if shares.data >= WAITING || shares.saves >= WAITING {
        return None;
    }
    let others = if settings.on_gpu { 0.0 } else { usage.others() };
    if others >= WAITING {
        let said =
            format!("while training, other processes took {} of the processor", percent(others));
        return some(said, "no setting: end other programs".to_owned());
    }
    let what = if settings.on_gpu { "GPU" } else { "processor" };
    some(
        format!(
            "the {what} was busy {} of the time of training, and neither data ({}) nor checkpoints ({}) held it up",
            percent(utilisation.share),
            percent(shares.data),
            percent(shares.saves)
        ),
        format!("`loader.batch_size` from {} to {}", settings.batch_size, 2 * settings.batch_size),
    )
}

#[cfg(test)]
mod tests {
    use firebox_core::{Event, GpuSample, MachineSample};

    use super::*;

    fn settings() -> Settings {
        Settings {
            on_gpu: false,
            batch_size: 64,
            workers: 1,
            prefetch: 2,
            rate_key: "train.optimizer.adamw.learning_rate",
            learning_rate: 0.001,
            scaling: Scaling::Off,
            clip: Some(1.0),
            clip_value: None,
            epochs: 8,
            early_stopping: true,
            resume_every: None,
        }
    }

    fn step(step: u64, milliseconds: f64, data_milliseconds: f64, loss: f64) -> Event {
        match crate::testing::step(step, loss) {
            Event::Step { epoch, loss, learning_rate, gradient_norm, samples, skipped, .. } => {
                Event::Step {
                    step,
                    epoch,
                    loss,
                    learning_rate,
                    gradient_norm,
                    samples,
                    milliseconds,
                    data_milliseconds,
                    skipped,
                }
            }
            other => other,
        }
    }

    fn epoch(epoch: u64, train_loss: f64, validation: f64) -> Event {
        let validation_loss = Some(validation);
        Event::Epoch { epoch, step: epoch, train_loss, validation_loss, best: false, seconds: 0.0 }
    }

    fn machine(share: f64, in_use: u64, major_faults: f64) -> Event {
        Event::Machine(MachineSample {
            seconds: 1.0,
            threads: 2,
            cpu_threads: 2.0 * share,
            memory_bytes: 1000,
            available_bytes: 1000 - in_use,
            major_faults: Some(major_faults),
            ..MachineSample::default()
        })
    }

    /// The findings and settings of these events of training, beside those of a quiet run.
    fn lines(events: &[Event], settings: &Settings) -> Vec<String> {
        let mut usage = Usage::default();
        usage.record(&Event::StageStarted { stage: "train".to_owned() });
        events.iter().for_each(|event| usage.record(event));
        let lines = advice(&usage, settings).into_iter();
        lines.map(|advice| format!("{} -> {}", advice.finding, advice.setting)).collect()
    }

    fn check(events: &[Event], settings: &Settings, expected: &[&str]) {
        let lines = lines(events, settings);
        let [line] = &lines[..] else { panic!("{lines:?}") };
        for part in expected {
            assert!(line.contains(part), "`{part}` is missing in: {line}");
        }
    }

    #[test]
    fn a_quiet_run_says_so_and_a_run_without_steps_says_nothing() {
        let quiet = [step(1, 100.0, 1.0, 1.0), machine(0.95, 500, 0.0)];
        check(&quiet, &settings(), &["nothing stood out: 1.0 % of 0.1 s of training"]);
        assert!(lines(&[machine(0.1, 999, 500.0)], &settings()).is_empty());
    }

    #[test]
    fn each_finding_has_its_figure_and_its_setting() {
        let one = |event| vec![step(1, 100.0, 1.0, 1.0), event];
        check(
            &[step(1, 100.0, 5.0, 1.0), step(2, 100.0, 19.0, 1.0)],
            &settings(),
            &[
                "12.0 % of the time",
                "12.0 of 100 ms",
                "workers` from 1 to 2",
                "prefetch` from 2 to 4",
            ],
        );
        let save = Event::Checkpoint {
            step: 1,
            path: String::new(),
            blocked_milliseconds: 100.0,
            save_milliseconds: 1.0,
            bytes: 1,
        };
        let every = Settings { resume_every: Some(5), ..settings() };
        check(&one(save), &every, &["50.0 % of the time", "resume_every` from 5 to 20"]);
        check(
            &one(machine(0.95, 950, 0.0)),
            &settings(),
            &["950 B of 1.0 kB of memory in use (95.0 %)", "batch_size` from 64 to 32"],
        );
        check(&one(machine(0.95, 1, 250.0)), &settings(), &["serve 250 page faults a second"]);
        check(&one(machine(0.4, 1, 0.0)), &settings(), &["busy 40.0 %", "from 64 to 128"]);
        let mut shared = machine(0.4, 1, 0.0);
        if let Event::Machine(sample) = &mut shared {
            sample.other_threads = Some(0.5);
        }
        check(&one(shared), &settings(), &["other processes took 25.0 %", "end other programs"]);
        let gpu = Event::Machine(MachineSample {
            seconds: 1.0,
            gpus: vec![GpuSample {
                utilisation: Some(0.9),
                memory_used_bytes: Some(95),
                memory_bytes: Some(100),
                ..GpuSample::default()
            }],
            ..MachineSample::default()
        });
        let on_gpu = Settings { on_gpu: true, ..settings() };
        check(&one(gpu), &on_gpu, &["95.0 % of a GPU's memory"]);
    }

    #[test]
    fn unstable_training_is_told_to_be_calmer() {
        let skipped = [step(1, 1.0, 0.0, 1.0), step(2, 1.0, 0.0, f64::NAN)];
        let expected = [
            "1 of 2 steps",
            "skipped is 2",
            "learning_rate` from 0.001 to 0.0005",
            "clip` from 1 to 0.5",
        ];
        check(&skipped, &settings(), &expected);
        let off = Settings { clip: None, ..settings() };
        check(&skipped, &off, &["`train.clip` to 1.0 (it is off)"]);
        let values = Settings { clip: None, clip_value: Some(0.5), ..settings() };
        check(&skipped, &values, &["to 0.0005, `train.clip_value` from 0.5 to 0.25"]);
        let risen = [step(1, 1.0, 0.0, 1.0), epoch(1, 0.2, 1.0), epoch(2, 0.5, 1.0)];
        check(
            &risen,
            &settings(),
            &["rose from 0.200 in epoch 1 to 0.500 in epoch 2", "norm was 1.00"],
        );
        let level = [step(1, 1.0, 0.0, 1.0), epoch(1, 0.2, 1.0), epoch(2, 0.3, 1.0)];
        check(&level, &settings(), &["nothing stood out"]);
    }

    /// A step whose loss is finite and whose gradient is not.
    fn overflown(number: u64) -> Event {
        let mut event = step(number, 1.0, 0.0, 1.0);
        if let Event::Step { gradient_norm, skipped, .. } = &mut event {
            (*gradient_norm, *skipped) = (f64::INFINITY, true);
        }
        event
    }

    #[test]
    fn overflows_that_find_a_loss_scale_are_no_instability() {
        let scaled = |scaling| Settings { scaling, ..settings() };
        let dynamic = scaled(Scaling::Dynamic { interval: 2_000, floor: 1.0 });
        let run = |overflows: u64, scale: f64| {
            let mut events: Vec<Event> = (1..=100).map(|n| step(n, 1.0, 0.0, 1.0)).collect();
            for n in 101..=100 + overflows {
                events.push(overflown(n));
                let before = 2.0 * scale;
                events.push(Event::LossScale { step: n, before, scale, overflows: n - 100 });
            }
            events
        };
        check(&run(3, 8.0), &dynamic, &["nothing stood out"]);
        let expected = ["20 of 120 steps", "under its loss scale -> `", "from 2000 to 4000"];
        check(&run(20, 8.0), &dynamic, &expected);
        // Where the scale cannot fall any more, training must become calmer.
        let expected = ["a gradient overflowed, at the smallest loss scale (1) too", "to 0.0005"];
        check(&run(20, 1.0), &dynamic, &expected);
        let high = scaled(Scaling::Dynamic { interval: 2_000, floor: 8.0 });
        check(&run(20, 8.0), &high, &["`train.loss_scale.dynamic.floor` from 8 to 1, `train"]);
        // A scale that never falls has itself to blame.
        let events = [step(1, 1.0, 0.0, 1.0), overflown(2)];
        let fixed = scaled(Scaling::Static(65_536.0));
        let expected = "which never falls -> `train.loss_scale.static` from 65536 to 4096, or";
        check(&events, &fixed, &[expected]);
        check(&events, &settings(), &["a loss or gradient was not finite", "to 0.0005"]);
    }

    #[test]
    fn epochs_that_were_too_many_or_too_few_are_told() {
        let run = |losses: &[f64]| {
            let mut events = vec![step(1, 1.0, 0.0, 1.0)];
            events.extend(losses.iter().zip(1..).map(|(loss, number)| epoch(number, 0.1, *loss)));
            events
        };
        let early = run(&[1.0, 0.5, 0.6, 0.6, 0.6]);
        check(&early, &settings(), &["best (0.500) after epoch 2 of 5; 3 epochs", "from 8 to 4"]);
        let falling = run(&[1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]);
        check(&falling, &settings(), &["fell by 25.0 %", "`train.epochs` from 8 to 16"]);
        // Stopped before its last epoch, or level at the end: neither.
        check(&run(&[1.0, 0.9]), &settings(), &["nothing stood out"]);
        let level = run(&[1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.399]);
        check(&level, &settings(), &["nothing stood out"]);
    }
}
