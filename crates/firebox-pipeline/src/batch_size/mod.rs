//! `loader.batch_size = "auto"`: how many windows fit into memory, and how many still make training
//! faster.
//!
//! Sizes are tried by a few training steps of the model on noise. The search begins at the guess for the class of the
//! device, or below it where that may not fit or would take long, by what the two smallest sizes took; it goes down
//! by halves as long as these are as fast, or else up by doubles as long as these are faster. A double is tried only if
//! what two sizes took says that it fits. It ends where a size of more than 32 brings less than 5 % more windows a
//! second, or would leave fewer than ten optimizer steps an epoch. The learning rate is left alone.
//!
//! On a processor the program's allocator counts bytes. With CUDA, NVIDIA's driver says what is
//! free: a size takes what is free less behind its steps, when Burn's pools still hold what they had needed.
//!
//! What is chosen is kept for as long as it fits into memory at all: free memory is another one at every
//! start, and a run that goes on needs the batch that it began with.

mod epoch;
mod search;

use std::path::Path;

use firebox_core::{Key, KeyBuilder};
use firebox_train::memory;

use crate::bench::Probe;
use crate::cached::{cached, cached_if, entry};
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::limits::Limits;
use crate::load_average;
use crate::precision::device_class;
use crate::step::{of_step, step_text};
use crate::{Kind, PipelineConfig};

use epoch::Epoch;
pub(crate) use search::Chosen;
use search::{Found, Guess, SIZES, STEPS, Taken, choose, expected, is_of_device, mib};

/// Bucket of the cache.
const BUCKET: &str = "batch-v2";

/// Refuses a batch that is measured where `loader.batch_size` sizes none, or nobody counts memory.
///
/// # Errors
/// That setting.
pub(crate) fn check_sized(
    config: &PipelineConfig,
    device: &ChosenDevice,
) -> Result<(), PipelineError> {
    if config.loader.tokens != 0 {
        return Err(PipelineError::Setting(
            "`loader.batch_size` is auto, and it sizes no training batch beside `loader.tokens`, which does\n  \
             leave loader.batch_size out, or loader.tokens to have a batch measured"
                .to_owned(),
        ));
    }
    match config.pipeline.chain().own_batches(config) {
        Some(own) => Err(PipelineError::Setting(format!(
            "`loader.batch_size` is auto, and it sizes no training batch of this pipeline: {own} does\n  \
             leave loader.batch_size out"
        ))),
        None => counted(device).map(|_| ()),
    }
}

/// [`choose`], or what was found before for this model, precision and device, and whether it was. `samples` are those of
/// the training set, where they were counted, with the versions that an epoch has of them.
pub(crate) fn choose_cached(
    config: &PipelineConfig,
    samples: Option<usize>,
    device: &ChosenDevice,
) -> Result<(Chosen, bool), PipelineError> {
    let class = device_class(&device.description);
    give_back(device);
    let room = counted(device)?;
    let epoch = Epoch::new(samples, config.train.accumulate);
    let what = match config.pipeline {
        Kind::Text => "texts",
        _ => "windows",
    };
    let mut key = Key::builder("batch", 5);
    // Left out where it is as it was when nothing else was said.
    if what != "windows" {
        key = key.field("what", what);
    }
    let key = key
        .field("most", (epoch.most() as u64).to_le_bytes())
        .field("class", class.name.as_str())
        .field("guess", (class.batch_size as u64).to_le_bytes())
        .field("version", env!("CARGO_PKG_VERSION"))
        .field("device", device.description.as_str())
        .field("arithmetic", device.arithmetic()?)
        .field("threads", rayon::current_num_threads().to_le_bytes())
        .field("precision", config.run.precision.to_string())
        .field("model", step_text(config, 0))
        .finish();
    let fits = |found: &Found| found.bytes <= room;
    let bucket = config.run.cache.join(BUCKET);
    let (found, reused) = cached_if(&bucket, &key, fits, || {
        begin(config, device)?;
        let noted = load_average::noted_now(&entry(&bucket, &key));
        let guess = Guess { class: &class.name, size: class.batch_size };
        let found = choose(room, epoch.most(), guess, what, |size| take(config, size, device))?;
        Ok(found.noted(&noted))
    })?;
    Ok((found.within(epoch), reused))
}

/// The first steps of a GPU also make what all later ones use: they are taken, and not counted.
fn begin(config: &PipelineConfig, device: &ChosenDevice) -> Result<(), PipelineError> {
    match device.backend.as_str() {
        "cpu" => Ok(()),
        _ => take(config, SIZES[0], device).map(|_| ()),
    }
}

/// [Free](free) bytes.
fn counted(device: &ChosenDevice) -> Result<u64, PipelineError> {
    free(device).ok_or_else(|| {
        let class = device_class(&device.description);
        let several = match device.backend.as_str() {
            "cuda" => ", or it is not known which of several cards it is: with CUDA_DEVICE_ORDER=PCI_BUS_ID it is, unless a part of a card is meant",
            _ => "",
        };
        PipelineError::Setting(format!(
            "`loader.batch_size` is auto, and this device or program reports no memory to measure it by{several}\n  \
             set loader.batch_size to a number, such as {}: the guess for the class `{}`",
            class.batch_size, class.name
        ))
    })
}

/// Bytes that steps can still take; `None` where nobody counts them.
fn free(device: &ChosenDevice) -> Option<u64> {
    match device.backend.as_str() {
        "cpu" => memory::held().and(room()),
        // Whose memory others use is not known, nor in every environment which card is meant.
        "cuda" => firebox_monitor::free_gpu_memory(device.index(), device.numbering()),
        _ => None,
    }
}

/// What it costs and saves that layers are computed again, in one line: measured with and without, in batches of this
/// size; and whether it was known.
pub(crate) fn recompute_trade(
    config: &PipelineConfig,
    batch: usize,
    device: &ChosenDevice,
) -> Result<(String, bool), PipelineError> {
    let key = of_steps(Key::builder("recompute", 3), config, batch, device)?;
    let measure = || {
        let mut kept = config.clone();
        kept.run.recompute = false;
        // Who lets layers be computed again may have no memory to keep them.
        let size = fitting(&kept, batch, device)?;
        begin(config, device)?;
        let said = traded(|recompute| take(if recompute { config } else { &kept }, size, device))?;
        Ok(match size == batch {
            true => said,
            false => format!("{said}, in batches of {size}: larger ones may not fit without it"),
        })
    };
    cached_if(&config.run.cache.join("recompute-v1"), &key, |_| true, measure)
}

/// The key of what steps of this model say, in batches of so many windows, or of any size with 0.
fn of_steps(
    key: KeyBuilder,
    config: &PipelineConfig,
    windows: usize,
    device: &ChosenDevice,
) -> Result<Key, PipelineError> {
    let key = key
        .field("version", env!("CARGO_PKG_VERSION"))
        .field("device", device.description.as_str())
        .field("arithmetic", device.arithmetic()?)
        .field("threads", rayon::current_num_threads().to_le_bytes())
        .field("precision", config.run.precision.to_string())
        .field("model", step_text(config, windows));
    Ok(key.finish())
}

/// What steps say that compute layers again, or do not, as is asked of `take`.
fn traded(
    mut take: impl FnMut(bool) -> Result<Taken, PipelineError>,
) -> Result<String, PipelineError> {
    // The device may have no memory to keep layers, the second time, too: others may use it.
    let kept = |taken| match taken {
        Err(PipelineError::Train(error)) if is_of_device(&error) => Ok(None),
        taken => taken.map(Some),
    };
    // What drifts meanwhile falls on both alike.
    let before = kept(take(false))?;
    let again = [take(true)?, take(true)?];
    let after = if before.is_some() { kept(take(false))? } else { None };
    Ok(match before.zip(after) {
        Some((before, after)) => trade([before, after], again),
        None => trade_alone(again),
    })
}

/// The windows of a batch that is measured before anything is known of it: so many, or as many as take half of the
/// memory that there is, by what the two smallest sizes take. What is measured is divided nowhere, unlike a run's steps.
pub(crate) fn fitting(
    config: &PipelineConfig,
    most: usize,
    device: &ChosenDevice,
) -> Result<usize, PipelineError> {
    let own = config.pipeline.chain().own_batches(config).is_some();
    let known = if own || device.backend != "cpu" { None } else { free(device) };
    let Some(room) = known.filter(|_| most > 2 * SIZES[0]) else { return Ok(most) };
    let key = of_steps(Key::builder("fitting", 1), config, 0, device)?;
    let [smaller, larger]: [Taken; 2] = cached(&config.run.cache.join(BUCKET), &key, || {
        let smaller = take(config, SIZES[0], device)?;
        Ok([smaller, take(config, 2 * SIZES[0], device)?])
    })?;
    Ok(within(room / 2, [smaller, larger], most))
}

/// The most windows of a batch, halved until it takes no more bytes than these.
fn within(bytes: u64, [smaller, larger]: [Taken; 2], most: usize) -> usize {
    let mut size = most;
    while size > larger.size && expected(smaller, larger, size) > bytes {
        size = (size / 2).max(larger.size);
    }
    size
}

/// Mean of two measurements of the same, and its standard error.
struct Twice {
    mean: f64,
    error: f64,
}

impl Twice {
    fn of([a, b]: [f64; 2]) -> Self {
        Self { mean: (a + b) / 2.0, error: (a - b).abs() / 2.0 }
    }

    /// `+30 ± 4 %`: how much more another is, with the standard error of the ratio to first order.
    fn to(&self, other: &Self) -> String {
        let ratio = other.mean / self.mean;
        let relative = (self.error / self.mean).hypot(other.error / other.mean);
        format!("{:+.0} ± {:.0} %", 100.0 * (ratio - 1.0), 100.0 * ratio * relative)
    }
}

/// What two measurements of steps that keep everything say beside two of steps that compute layers again.
fn trade(kept: [Taken; 2], again: [Taken; 2]) -> String {
    let of = |taken: [Taken; 2], what: fn(&Taken) -> f64| Twice::of(taken.map(|one| what(&one)));
    let [before, after] = [kept, again].map(|taken| of(taken, |one| one.milliseconds));
    let time = format!(
        "{:.1} ± {:.1} to {:.1} ± {:.1} ms a step ({})",
        before.mean,
        before.error,
        after.mean,
        after.error,
        before.to(&after)
    );
    let noise = "± is the standard error of two measurements each";
    // Nobody counts memory in every program.
    if kept.iter().chain(&again).any(|taken| taken.bytes == 0) {
        return format!("as written; measured: {time}; {noise}");
    }
    let [before, after] = [kept, again].map(|taken| of(taken, |one| mib(one.bytes)));
    let saved = before.to(&after);
    format!(
        "as written; measured: {:.0} to {:.0} MiB ({saved}), {time}; {noise}",
        before.mean, after.mean
    )
}

/// The same where the device has no memory for steps that keep everything.
fn trade_alone(again: [Taken; 2]) -> String {
    let [time, size] =
        [Twice::of(again.map(|one| one.milliseconds)), Twice::of(again.map(|one| mib(one.bytes)))];
    let counted = if size.mean > 0.0 { format!("{:.0} MiB, ", size.mean) } else { String::new() };
    let Twice { mean, error } = time;
    format!(
        "as written; measured: {counted}{mean:.1} ± {error:.1} ms a step; without it the memory of the device does not hold a step"
    )
}

/// Gives back what earlier steps left for later ones.
fn give_back(device: &ChosenDevice) {
    match device.backend.as_str() {
        "cpu" => firebox_kernels::release_buffers(),
        _ => device.device.memory_cleanup(),
    }
}

/// Takes steps of a size, with the settings that a step is made of.
fn take(
    config: &PipelineConfig,
    size: usize,
    device: &ChosenDevice,
) -> Result<Taken, PipelineError> {
    let on_cpu = device.backend == "cpu";
    // What a smaller batch left would not be counted for this one.
    give_back(device);
    let before = if on_cpu { memory::held() } else { free(device) };
    let reserved = || device.reserved().unwrap_or(0);
    let pools = reserved();
    memory::reset_peak();
    let precision = config.run.precision;
    let own = of_step(config);
    let probe = Probe { precision, batch: size, steps: STEPS, train: &own.train };
    let measured = config.pipeline.chain().probe(&own, probe, device)?;
    let bytes = match (on_cpu, before) {
        (true, before) => memory::peak().unwrap_or(0).saturating_sub(before.unwrap_or(0)),
        (false, Some(before)) => before.saturating_sub(free(device).unwrap_or(0)),
        // What Burn's pools had to ask the device for.
        (false, None) => reserved().saturating_sub(pools),
    };
    let mut times = measured.times;
    times.sort_by(f64::total_cmp);
    let milliseconds = times.get(times.len() / 2).copied().unwrap_or(f64::NAN);
    Ok(Taken { size, milliseconds, bytes })
}

/// Share of the addresses that are left which hold memory in use: an allocator keeps those of what it was given back, and
/// stacks of threads and maps of files take others. A choice.
const OF_ADDRESSES: f64 = 0.5;

/// Bytes that this process can still take: of the machine, of its own limits, and of its control group's.
/// Linux alone says it.
pub(crate) fn room() -> Option<u64> {
    let machine = field(Path::new("/proc/meminfo"), "MemAvailable:")?;
    let Limits { addresses, data } = Limits::now();
    let status = Path::new("/proc/self/status");
    let own = [(data, "VmData:", 1.0), (addresses, "VmSize:", OF_ADDRESSES)];
    let rooms = own.iter().filter_map(|(most, used, share)| {
        let left = (*most)?.saturating_sub(field(status, used)?);
        Some((left as f64 * share) as u64)
    });
    Some(rooms.chain(group_room()).fold(machine, u64::min))
}

/// Bytes that the control group of this process leaves it, if it has a limit: what others of the group hold now is
/// taken, whatever they held when this process began.
pub(crate) fn group_room() -> Option<u64> {
    let limit = [memory::limit(), firebox_monitor::group_leaves()].into_iter().flatten().min();
    let left = limit.zip(memory::held()).map(|(limit, held)| limit.saturating_sub(held));
    // Where no allocator counts, what it keeps is not told from what it has in use.
    left.or_else(firebox_monitor::group_free)
}

/// A field of a file of `/proc` in KiB, as bytes.
pub(crate) fn field(path: &Path, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use firebox_train::TrainError;

    use super::search::tests::{MIB, model};
    use super::*;

    #[test]
    fn a_choice_is_kept_while_it_fits() {
        let folder = tempfile::tempdir().unwrap();
        let key = Key::builder("test", 1).finish();
        let ask = |room: u64| {
            let fits = |found: &Found| found.bytes <= room;
            let guess = Guess { class: "a class", size: 128 };
            let measure = || choose(room, SIZES[1], guess, "windows", model(1 << 20));
            let found = cached_if(folder.path(), &key, fits, measure).unwrap().0;
            found.within(Epoch::new(None, 1)).size
        };
        // More room than when it was chosen, a little less, and less than it takes.
        assert_eq!([200, 4000, 140, 100].map(|mib| ask(mib * MIB)), [128, 128, 128, 64]);
    }

    #[test]
    fn what_is_measured_takes_no_more_than_it_may() {
        let mut take = model(1 << 20);
        let two = [take(4).unwrap(), take(8).unwrap()];
        // 10 MiB and one a window: 522 for 512, 138 for 128, 18 for eight.
        let sizes = [522, 521, 138, 137, 1].map(|mib| within(mib * MIB, two, 512));
        assert_eq!(sizes, [512, 256, 128, 64, 8]);
        assert_eq!(within(MIB, two, 100), 8);
        assert_eq!(within(200 * MIB, two, 100), 100);
        let [smaller, larger] = two;
        let first = Taken { bytes: 2 * larger.bytes, ..smaller };
        // 18 MiB for eight.
        assert_eq!(within(300 * MIB, [first, larger], 512), 128);
    }

    #[test]
    fn a_trade_is_told_in_bytes_and_milliseconds() {
        let taken = |milliseconds, bytes| Taken { size: 4, milliseconds, bytes };
        let both = |a: f64, b: f64, bytes: u64| [taken(a, bytes), taken(b, bytes)];
        // 1.3 · √(0.02² + (0.4 / 13)²) is 0.048.
        let said = trade(both(9.8, 10.2, 400 * MIB), both(13.4, 12.6, 100 * MIB));
        let expected = "as written; measured: 400 to 100 MiB (-75 ± 0 %), 10.0 ± 0.2 to 13.0 ± 0.4 ms a step (+30 ± 5 %); ± is the standard error of two measurements each";
        assert_eq!(said, expected);
        let [said, other] = [[300, 500], [400, 400]].map(|mib: [u64; 2]| {
            trade(mib.map(|mib| taken(10.0, mib * MIB)), both(10.0, 10.0, 200 * MIB))
        });
        assert!(said.contains("400 to 200 MiB (-50 ± 12 %)"), "{said}");
        assert!(other.contains("400 to 200 MiB (-50 ± 0 %)"), "{other}");
        let said = trade(both(10.0, 10.0, 0), both(9.0, 9.0, 0));
        assert!(
            said.contains("measured: 10.0 ± 0.0 to 9.0 ± 0.0 ms a step (-10 ± 0 %);"),
            "{said}"
        );
        let said = trade_alone(both(12.0, 14.0, 100 * MIB));
        assert!(said.contains("measured: 100 MiB, 13.0 ± 1.0 ms a step; without it"), "{said}");
    }

    #[test]
    fn a_device_without_memory_to_keep_layers_ends_no_run() {
        let said = |refused: usize| {
            let mut asked = vec![];
            let said = traded(|recompute| {
                asked.push(recompute);
                match asked.len() == refused {
                    true => Err(TrainError::Device("out of memory".to_owned()).into()),
                    false => Ok(Taken { size: 4, milliseconds: 10.0, bytes: MIB }),
                }
            });
            (said.ok().map(|said| said.contains("does not hold a step")), asked)
        };
        let all = vec![false, true, true, false];
        assert_eq!(said(0), (Some(false), all.clone()));
        assert_eq!(said(1), (Some(true), all[..3].to_vec()));
        assert_eq!(said(4), (Some(true), all.clone()));
        // Without those that compute again there is nothing to tell.
        assert_eq!(said(3), (None, all[..3].to_vec()));
    }

    #[test]
    fn linux_says_what_is_left() {
        if cfg!(target_os = "linux") {
            assert!(room().unwrap() > MIB);
        }
    }
}
