//! What stood out in what a run measured, each with its figure and the setting that would change
//! it. Nothing is said that was not measured.

mod learning;
#[cfg(test)]
mod tests;
mod trainings;

use self::learning::{divergence, overflows, plateau, skipped, still_falling};
use crate::text::{bytes, duration, percent, significant};
use crate::times::{StepDevice, StepTimes};
use crate::usage::{MAJOR_FAULTS, MEMORY_IN_USE, Shares, Usage};

pub use self::trainings::{Training, advice_on_trainings, timings_of_trainings};

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
        /// The first scale.
        initial: f64,
        /// Steps without an overflow after which it rises.
        interval: u64,
        /// Smallest scale.
        floor: f64,
    },
}

/// Keys of the settings that a kind of pipeline may have in a table of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingKeys {
    /// Peak learning rate.
    pub rate: &'static str,
    /// Epochs.
    pub epochs: &'static str,
    /// Epochs without progress after which training ends.
    pub patience: &'static str,
    /// Of what counts as lower for it, if it can be set.
    pub least_improvement: Option<&'static str>,
    /// Samples of a batch, or its steps.
    pub batch_size: &'static str,
    /// Whether gradients can be clipped, by `train.clip` or `train.clip_value`.
    pub clips: bool,
}

impl Default for SettingKeys {
    /// Those of the common tables, with AdamW.
    fn default() -> Self {
        Self {
            rate: "train.optimizer.adamw.learning_rate",
            epochs: "train.epochs",
            patience: "train.early_stopping.patience",
            least_improvement: Some("train.early_stopping.min_delta"),
            batch_size: "loader.batch_size",
            clips: true,
        }
    }
}

/// Padding of training batches, and what buckets would leave of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Padding {
    /// Share of the steps of all batches.
    pub share: f64,
    /// `loader.buckets` as it is; 0: none.
    pub now: usize,
    /// A finer value of `loader.buckets`.
    pub buckets: usize,
    /// Share of the steps with it.
    pub left: f64,
}

/// The settings that advice is about.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Whether the run was on a GPU.
    pub on_gpu: bool,
    /// What stands there: samples of a batch, or its steps.
    pub batch_size: usize,
    /// The least that may stand there.
    pub least_batch: usize,
    /// Samples of an epoch, where batches are of so many samples and it is known; of several training sets, at most so many.
    pub samples: Option<usize>,
    /// Whether there was too little memory for whole batches, which were computed in parts.
    pub divided: bool,
    /// Threads that make batches.
    pub workers: usize,
    /// Batches made ahead.
    pub prefetch: usize,
    /// Whether batches are filled in pinned memory.
    pub pins: bool,
    /// What would make batches sooner than all threads of the machine do.
    pub faster: Faster,
    /// Samples of a block and of a window of `loader.shuffle.blocks` that would suit a set in mapped files, where it is
    /// shuffled as a whole.
    pub blocks: Option<[usize; 2]>,
    /// What of a batch is padding, where samples are of unequal lengths and buckets could be finer.
    pub padding: Option<Padding>,
    /// Where they are written.
    pub keys: SettingKeys,
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
    /// Whether it ended so, and not because all steps were taken.
    pub stopped_early: bool,
    /// By how much a loss has to fall to count as lower for that.
    pub least_improvement: f64,
    /// Steps between two saves that a killed run can go on from.
    pub resume_every: Option<u64>,
}

/// What would make batches sooner than all threads of a machine do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faster {
    /// Samples could lie in memory, decoded.
    Memory,
    /// Versions are drawn anew in each epoch, and could be drawn once and stored.
    Cached,
    /// Nothing that is known of.
    Nothing,
}

/// Share of the time from which waiting is worth a word. R1 and R2 both call a data loader good
/// that costs under 5 %.
const WAITING: f64 = 0.05;
/// Share of the memory from which the next larger batch may not fit.
const FULL: f64 = 0.9;
/// Share of the steps of batches from which padding is worth a word: a fifth of what is read and uploaded. A choice.
const PADDED: f64 = 0.2;
/// Page faults a second from which a disk is being used as memory: each takes about 0.1 ms.
const THRASHING: f64 = 100.0;

/// Everything that stood out; one line that says so if nothing did. Of a run whose own log has no step,
/// because it is made of trainings with logs of their own, only what the machine tells.
pub fn advice(usage: &Usage, settings: &Settings) -> Vec<Advice> {
    if usage.steps.is_empty() {
        let found = [
            memory(usage, settings),
            thrashing(usage, settings),
            gpu_memory(usage, settings),
            utilisation(usage, settings),
        ];
        return found.into_iter().flatten().collect();
    }
    let found = [
        starvation(usage, settings),
        uploads(usage, settings),
        padding(settings),
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
    let Shares { seconds, data: share, .. } = usage.shares();
    let steps = usage.steps.len() as f64;
    let mean = share * seconds * 1e3 / steps;
    let of = usage.steps.iter().map(|step| step.milliseconds).sum::<f64>() / steps;
    if share < WAITING {
        return None;
    }
    let said = format!(
        "{} of the time of training, validation and checkpoints counted in, went by waiting for data: {} of {} ms a step",
        percent(share),
        significant(mean),
        significant(of)
    );
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let times = StepTimes::sum(&usage.times);
    let device = usage.step_device(settings.on_gpu);
    if let StepDevice::Gpu(Some(busy)) = device
        && device.is_busy()
    {
        let said = format!(
            "{said}; the GPU computed meanwhile, as it was busy {} of the time, so that no faster data would change it",
            percent(busy)
        );
        return some(said, String::new());
    }
    if times.is_some_and(|times| times.is_held_up_by_handing(settings.workers, device)) {
        let pin = if settings.pins { "" } else { "`loader.pin` to true, " };
        return some(
            format!(
                "{said}; a thread hands one to the device in longer than a step takes, so that neither more threads nor more batches ahead would change it"
            ),
            format!("{pin}`loader.resident` to \"device\", if the data fit there"),
        );
    }
    if device.is_unknown() && times.is_none_or(|times| times.fills()) {
        return first_batches(usage, [share, seconds], &said).or_else(|| {
            let said = format!(
                "{said}; how much of that the GPU computed is not known, nor what data that come sooner would give"
            );
            some(said, String::new())
        });
    }
    let more = |times: StepTimes| times.workers(settings.workers, threads, device);
    if let Some((workers, gain)) = times.and_then(more) {
        let now = settings.workers;
        return some(
            format!(
                "{said}; `loader.workers` of {workers} would give about {}×",
                significant(gain)
            ),
            format!("`loader.workers` from {now} to {workers}"),
        );
    }
    let prefetch = format!(
        "`loader.prefetch` from {} to {}",
        settings.prefetch,
        (2 * settings.prefetch).max(2)
    );
    match times {
        Some(times) if times.fills() => {
            let first = first_batches(usage, [share, seconds], &said);
            if first.is_some() {
                return first;
            }
            let mut later = times;
            later.waiting = (times.waiting - usage.waits_for_first_batches()).max(0.0);
            if let Some(gain) = later.ahead(settings.workers.min(threads), device) {
                return some(
                    format!(
                        "{said}; threads fill batches fast enough, but some take longer than others: more of them ahead would give up to {}×",
                        significant(gain)
                    ),
                    prefetch,
                );
            }
            let filling = match settings.workers {
                0 => "no thread of the loader fills batches, and one would take from the steps as much as it gives".to_owned(),
                many if many >= threads => format!("the {threads} threads of this machine all fill batches"),
                _ => "its threads fill batches all the time, and more would take from the steps as much as they give".to_owned(),
            };
            let setting = match settings.faster {
                Faster::Memory => "`loader.resident` to \"memory\", if the data fit there",
                Faster::Cached => {
                    "`augment.mode` to \"cached\": versions are then drawn once, and stored"
                }
                Faster::Nothing => "",
            };
            some(format!("{said}; {filling}"), setting.to_owned())
        }
        // Nothing is filled where data lie on the device.
        Some(_) => some(format!("{said}; no thread of the loader takes part in it"), String::new()),
        None if settings.workers >= threads => some(said, prefetch),
        None => {
            let (now, more) = (settings.workers, settings.workers + 1);
            some(said, format!("`loader.workers` from {now} to {more}, {prefetch}"))
        }
    }
}

/// Waiting for data, a share of so many seconds, if it was nearly all for the first batch of an attempt, which nobody can
/// have ready.
fn first_batches(usage: &Usage, [share, seconds]: [f64; 2], said: &str) -> Option<Advice> {
    if share - usage.waits_for_first_batches() / seconds >= WAITING {
        return None;
    }
    let said = format!("{said}, nearly all of it before the first step; no setting changes that");
    some(said, String::new())
}

/// Batches that are handed to the device, or gathered and drawn there, within the steps.
fn uploads(usage: &Usage, settings: &Settings) -> Option<Advice> {
    let times = StepTimes::sum(&usage.times)?;
    let share = times.upload / times.seconds();
    if share < WAITING {
        return None;
    }
    let said = format!("{} of the time of steps went by", percent(share));
    if !times.fills() {
        return some(
            format!("{said} gathering batches on the device, and drawing their versions there, if they have any"),
            match settings.on_gpu {
                true => String::new(),
                false => "`loader.resident` to \"stream\": threads of the loader then do it beside the steps".to_owned(),
            },
        );
    }
    let ahead = "`loader.upload_ahead` to 2: a thread then does it beside the steps";
    some(
        format!("{said} handing batches to the device"),
        if settings.on_gpu { ahead.to_owned() } else { String::new() },
    )
}

fn padding(settings: &Settings) -> Option<Advice> {
    let Padding { share, now, buckets, left } = settings.padding?;
    if share < PADDED || left > share / 2.0 {
        return None;
    }
    some(
        format!("{} of the steps of training batches are padding", percent(share)),
        format!(
            "`loader.buckets` from {now} to {buckets}, with which {} are, and batches have {} times fewer steps in all; a batch then holds samples of similar length",
            percent(left),
            significant((1.0 - left) / (1.0 - share))
        ),
    )
}

fn saves(usage: &Usage, settings: &Settings) -> Option<Advice> {
    let share = usage.shares().saves;
    if share < WAITING {
        return None;
    }
    let often = settings.resume_every.filter(|steps| usage.saves_within_epochs(*steps));
    let setting = match often {
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
    let (size, SettingKeys { batch_size: key, epochs, .. }) = (settings.batch_size, settings.keys);
    // More samples than there are, no batch holds.
    let held = settings.samples.map_or(size, |samples| size.min(samples));
    if held / 2 < settings.least_batch.max(1) {
        return "the model to a smaller one, or windows to shorter ones".to_owned();
    }
    // Trainings with keys of their own know no other.
    let more = match key.starts_with("loader.") && epochs.starts_with("train.") {
        true => " with `train.accumulate` doubled",
        false => "",
    };
    // Twice so many are the whole set.
    let half = if held < size { held.div_ceil(2) } else { held / 2 };
    format!("`{key}` from {size} to {half}{more}")
}

fn thrashing(usage: &Usage, settings: &Settings) -> Option<Advice> {
    let rate = usage.training_mean(MAJOR_FAULTS)?;
    if rate < THRASHING {
        return None;
    }
    some(
        format!("while training, a disk had to serve {} page faults a second", significant(rate)),
        match settings.blocks {
            // What is read is the set, whatever a batch takes.
            Some([block, window]) => format!(
                "`loader.shuffle.blocks` to `{{ block = {block}, window = {window} }}`, so that the disk reads neighbours (of the other samples of a batch, about {} are then of a sample's own block), or keep the data and `run.cache` on a faster disk",
                percent(block as f64 / window as f64)
            ),
            None => format!("{}, or keep `run.cache` on a faster disk", smaller_batch(settings)),
        },
    )
}

fn gpu_memory(usage: &Usage, settings: &Settings) -> Option<Advice> {
    // Of a run on the processor it is another's.
    if usage.gpu_memory < FULL || !settings.on_gpu {
        return None;
    }
    let said = format!("{} of a GPU's memory was in use at the peak", percent(usage.gpu_memory));
    some(said, smaller_batch(settings))
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
    // What held it up is not known where no step was told.
    if usage.steps.is_empty() {
        return None;
    }
    let what = if settings.on_gpu { "GPU" } else { "processor" };
    let is_whole = settings.samples.is_some_and(|samples| samples <= settings.batch_size);
    let setting = match settings.divided {
        true => "no setting: batches were computed in parts for want of memory, and larger ones would be, too".to_owned(),
        false if is_whole => "no setting: a batch holds the whole training set".to_owned(),
        false => format!(
            "`{}` from {} to {}",
            settings.keys.batch_size,
            settings.batch_size,
            2 * settings.batch_size
        ),
    };
    some(
        format!(
            "the {what} was busy {} of the time of training, and neither data ({}) nor checkpoints ({}) held it up",
            percent(utilisation.share),
            percent(shares.data),
            percent(shares.saves)
        ),
        setting,
    )
}
