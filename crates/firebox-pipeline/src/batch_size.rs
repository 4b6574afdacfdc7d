//! `loader.batch_size = "auto"`: how many windows fit into memory, and how many still make training
//! faster.
//!
//! Sizes are tried from small to large, each twice the one before, by a few training steps of the
//! model on noise. The bytes that two sizes took say what the next would take, and the second is taken
//! to need twice the first, so that none is tried that may not fit; the first of all is the smallest. It ends
//! where a size of more than 32 brings less than 5 % more windows a second. The learning rate is left alone.
//!
//! On a processor the program's allocator counts bytes. With CUDA, NVIDIA's driver says what is
//! free: a size takes what is free less behind its steps, when Burn's pools still hold what they had needed.
//!
//! What is chosen is kept for as long as it fits into memory at all: free memory is another one at every
//! start, and a run that goes on needs the batch that it began with.

use std::path::Path;

use firebox_core::Key;
use firebox_train::memory;
use serde::{Deserialize, Serialize};

use crate::PipelineConfig;
use crate::bench::Probe;
use crate::cached::{cached, cached_if};
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::precision::device_class;
use crate::settle::model_text;

/// The part of the free memory that stays free (Firebox's own).
const HEADROOM: f64 = 0.2;
/// How much faster twice the batch has to be.
const GAIN: f64 = 1.05;
/// The first and the last size that are tried. Larger ones change what is learnt more than they save.
const SIZES: [usize; 2] = [4, 4096];
/// Sizes up to this one are taken if they fit, whatever they bring: the guess for the smallest devices.
const SMALL: usize = 32;
/// Steps of a size that are timed.
const STEPS: u64 = 3;
/// Bucket of the cache.
const BUCKET: &str = "batch-v2";

/// The size that was chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Chosen {
    /// Windows of a batch.
    pub(crate) size: usize,
    /// Bytes that its steps took.
    bytes: u64,
    /// Why, in one line.
    pub(crate) reason: String,
}

/// What steps of a size took.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Taken {
    size: usize,
    milliseconds: f64,
    bytes: u64,
}

impl Taken {
    fn rate(&self) -> f64 {
        1e3 * self.size as f64 / self.milliseconds
    }
}

/// Bytes that a size would take, from what two others took: a part that is there whatever the size, and
/// one that grows with it. Where the larger took no more than the smaller, which may have made what later ones use,
/// all of it is its windows'.
fn expected(smaller: Taken, larger: Taken, size: usize) -> u64 {
    let each = match larger.bytes.checked_sub(smaller.bytes) {
        None | Some(0) => larger.bytes as f64 / larger.size as f64,
        Some(more) => more as f64 / (larger.size - smaller.size) as f64,
    };
    larger.bytes + (each * (size - larger.size) as f64) as u64
}

/// Chooses a size for `room` bytes by what `take` measures.
fn choose(
    room: u64,
    guess: (&str, usize),
    mut take: impl FnMut(usize) -> Result<Taken, PipelineError>,
) -> Result<Chosen, PipelineError> {
    let usable = (room as f64 * (1.0 - HEADROOM)) as u64;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let mut all: Vec<Taken> = vec![];
    let mut size = SIZES[0];
    let ended = loop {
        let bytes = match all[..] {
            [] => 0,
            [only] => 2 * only.bytes,
            [.., smaller, larger] => expected(smaller, larger, size),
        };
        if bytes > usable {
            break format!(
                "{size} would take {:.0} MiB of the {:.0} free, of which {:.0} % stay free",
                mib(bytes),
                mib(room),
                100.0 * HEADROOM
            );
        }
        let taken = take(size)?;
        let last = all.last().copied();
        if taken.bytes > usable {
            break format!("{size} took {:.0} MiB of the {:.0} free", mib(taken.bytes), mib(room));
        }
        if let Some(last) = last
            && size > SMALL
            && taken.rate() < GAIN * last.rate()
        {
            break format!(
                "{size} brings {:+.0} % windows a second",
                100.0 * (taken.rate() / last.rate() - 1.0)
            );
        }
        all.push(taken);
        if size >= SIZES[1] {
            break format!("{size} is the largest that is tried");
        }
        size *= 2;
    };
    let Some(best) = all.last() else {
        return Err(PipelineError::Setting(format!(
            "`loader.batch_size` is auto, and even a batch of {ended}, of which {:.0} % stay free\n  \
             choose a smaller model or a shorter window, or set loader.batch_size to a number below {size}",
            100.0 * HEADROOM
        )));
    };
    let (class, guessed) = guess;
    let reason = format!(
        "measured: {:.0} windows a second in {:.0} MiB; {ended}{}",
        best.rate(),
        mib(best.bytes),
        if guessed == best.size {
            String::new()
        } else {
            format!("; the guess for the class `{class}` was {guessed}")
        }
    );
    Ok(Chosen { size: best.size, bytes: best.bytes, reason })
}

/// [`choose`], or what was found before for this model, precision and device.
pub(crate) fn choose_cached(
    config: &PipelineConfig,
    device: &ChosenDevice,
) -> Result<Chosen, PipelineError> {
    if let Some(own) = config.pipeline.chain().own_batches(config) {
        return Err(PipelineError::Setting(format!(
            "`loader.batch_size` is auto, and it sizes no training batch of this pipeline: {own} does\n  \
             leave loader.batch_size out"
        )));
    }
    let class = device_class(&device.description);
    give_back(device);
    let Some(room) = free(device) else {
        return Err(PipelineError::Setting(format!(
            "`loader.batch_size` is auto, and this device or program reports no memory to measure it by\n  \
             set loader.batch_size to a number, such as {}: the guess for the class `{}`",
            class.batch_size, class.name
        )));
    };
    let key = Key::builder("batch", 2)
        .field("version", env!("CARGO_PKG_VERSION"))
        .field("device", device.description.as_str())
        .field("arithmetic", device.arithmetic()?)
        .field("precision", config.run.precision.to_string())
        .field("model", model_text(config, 0))
        .finish();
    let fits = |chosen: &Chosen| chosen.bytes <= room;
    cached_if(&config.run.cache.join(BUCKET), &key, fits, || {
        // The first steps of a GPU also make what all later ones use.
        if device.backend != "cpu" {
            take(config, SIZES[0], device)?;
        }
        choose(room, (&class.name, class.batch_size), |size| take(config, size, device))
    })
}

/// Bytes that steps can still take; `None` where nobody counts them.
fn free(device: &ChosenDevice) -> Option<u64> {
    match device.backend.as_str() {
        "cpu" => memory::held().and(room()),
        // The driver numbers its cards as CUDA does; whose memory others use is not known.
        "cuda" => firebox_monitor::free_gpu_memory(device.index(), true),
        _ => None,
    }
}

/// What it costs and saves that layers are computed again, in one line: measured with and without.
pub(crate) fn recompute_trade(
    config: &PipelineConfig,
    device: &ChosenDevice,
) -> Result<String, PipelineError> {
    let key = Key::builder("recompute", 2)
        .field("version", env!("CARGO_PKG_VERSION"))
        .field("device", device.description.as_str())
        .field("arithmetic", device.arithmetic()?)
        .field("threads", rayon::current_num_threads().to_le_bytes())
        .field("precision", config.run.precision.to_string())
        .field("model", model_text(config, config.loader.batch_size))
        .finish();
    cached(&config.run.cache.join("recompute-v1"), &key, || {
        let mut kept = config.clone();
        kept.run.recompute = false;
        // Who lets layers be computed again may have no memory to keep them.
        let size = fitting(&kept, config.loader.batch_size, device)?;
        let both = [&kept, config].map(|config| take(config, size, device));
        let [kept, again] = both;
        let said = trade(kept?, again?);
        Ok(match size == config.loader.batch_size {
            true => said,
            false => format!("{said}, in batches of {size}: larger ones may not fit without it"),
        })
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
    let key = Key::builder("fitting", 1)
        .field("version", env!("CARGO_PKG_VERSION"))
        .field("device", device.description.as_str())
        .field("arithmetic", device.arithmetic()?)
        .field("threads", rayon::current_num_threads().to_le_bytes())
        .field("precision", config.run.precision.to_string())
        .field("model", model_text(config, 0))
        .finish();
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

fn trade(kept: Taken, again: Taken) -> String {
    let change = |before: f64, after: f64| 100.0 * (after / before - 1.0);
    let mib = |taken: Taken| taken.bytes as f64 / f64::from(1 << 20);
    let time = format!(
        "{:.1} to {:.1} ms a step ({:+.0} %)",
        kept.milliseconds,
        again.milliseconds,
        change(kept.milliseconds, again.milliseconds)
    );
    // Nobody counts memory in every program.
    if kept.bytes == 0 || again.bytes == 0 {
        return format!("as written; measured: {time}");
    }
    let (before, after) = (mib(kept), mib(again));
    let saved = change(before, after);
    format!("as written; measured: {before:.0} to {after:.0} MiB ({saved:+.0} %), {time}")
}

/// Gives back what earlier steps left for later ones.
fn give_back(device: &ChosenDevice) {
    match device.backend.as_str() {
        "cpu" => firebox_kernels::release_buffers(),
        _ => device.device.memory_cleanup(),
    }
}

/// Takes steps of a size.
fn take(
    config: &PipelineConfig,
    size: usize,
    device: &ChosenDevice,
) -> Result<Taken, PipelineError> {
    let on_cpu = device.backend == "cpu";
    // What a smaller batch left would not be counted for this one.
    give_back(device);
    let before = if on_cpu { memory::held() } else { free(device) }.unwrap_or(0);
    memory::reset_peak();
    let precision = config.run.precision;
    let probe = Probe { precision, batch: size, steps: STEPS, train: &config.train };
    let measured = config.pipeline.chain().probe(config, probe, device)?;
    let bytes = match on_cpu {
        true => memory::peak().unwrap_or(0).saturating_sub(before),
        false => before.saturating_sub(free(device).unwrap_or(0)),
    };
    let mut times = measured.times;
    times.sort_by(f64::total_cmp);
    let milliseconds = times.get(times.len() / 2).copied().unwrap_or(f64::NAN);
    Ok(Taken { size, milliseconds, bytes })
}

/// Bytes that this process can still take: of the machine, of its own limits, and of its control group's.
/// Linux alone says it.
pub(crate) fn room() -> Option<u64> {
    let machine = field(Path::new("/proc/meminfo"), "MemAvailable:")?;
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let status = Path::new("/proc/self/status");
    let own = [("Max data size", "VmData:"), ("Max address space", "VmSize:")];
    let rooms = own.iter().filter_map(|(limit, used)| {
        let line = limits.lines().find_map(|line| line.strip_prefix(limit))?;
        let most: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(most.saturating_sub(field(status, used)?))
    });
    let group = memory::limit().zip(memory::held());
    let group = group.map(|(limit, held)| limit.saturating_sub(held));
    Some(rooms.chain(group).fold(machine, u64::min))
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
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A model of 10 MiB with 1 MiB a window, which gains from batches up to a size.
    fn model(gains_to: usize) -> impl FnMut(usize) -> Result<Taken, PipelineError> {
        move |size| {
            let milliseconds = 10.0 * (size as f64 / gains_to as f64).max(1.0);
            Ok(Taken { size, milliseconds, bytes: 10 * MIB + size as u64 * MIB })
        }
    }

    #[test]
    fn a_batch_grows_while_it_gains() {
        let chosen = choose(1 << 40, ("a class", 512), model(256)).unwrap();
        assert_eq!(chosen.size, 256);
        assert!(chosen.reason.contains("512 brings +0 %"), "{}", chosen.reason);
        assert!(chosen.reason.ends_with("the guess for the class `a class` was 512"));
    }

    #[test]
    fn a_batch_that_would_not_fit_is_not_tried() {
        let mut tried = vec![];
        let mut take = model(1 << 20);
        let chosen = choose(200 * MIB, ("a class", 128), |size| {
            tried.push(size);
            take(size)
        })
        .unwrap();
        // 138 of 160 usable MiB, and 266 for twice as many.
        assert_eq!((chosen.size, tried), (128, vec![4, 8, 16, 32, 64, 128]));
        assert!(
            chosen.reason.contains("256 would take 266 MiB of the 200 free"),
            "{}",
            chosen.reason
        );
    }

    #[test]
    fn a_batch_that_took_no_more_than_the_one_before_says_what_the_next_may_take() {
        // Pools grow by pages.
        let mut tried = vec![];
        let chosen = choose(150 * MIB, ("a class", 32), |size| {
            tried.push(size);
            let mib = match size {
                4 => 60,
                8 | 16 => 62,
                _ => 124,
            };
            Ok(Taken { size, milliseconds: 10.0, bytes: mib * MIB })
        });
        // 124 of 120 usable MiB for thirty-two.
        assert_eq!((chosen.unwrap().size, tried), (16, vec![4, 8, 16]));
    }

    #[test]
    fn a_batch_that_fills_the_memory_is_not_doubled_and_none_is_taken_that_breaks_the_headroom() {
        let tried = |room: u64| {
            let mut tried = vec![];
            let mut take = model(1 << 20);
            let chosen = choose(room, ("a class", 32), |size| {
                tried.push(size);
                take(size)
            });
            (tried, chosen.map(|chosen| chosen.size).map_err(|error| error.to_string()))
        };
        // 14 of 16 usable MiB for four windows: eight might take twice as much.
        assert_eq!(tried(20 * MIB), (vec![4], Ok(4)));
        let (tried, chosen) = tried(15 * MIB);
        let error = chosen.unwrap_err();
        assert!(
            tried == [4] && error.contains("even a batch of 4 took 14 MiB of the 15"),
            "{error}"
        );
    }

    #[test]
    fn a_choice_is_kept_while_it_fits() {
        let folder = tempfile::tempdir().unwrap();
        let key = Key::builder("test", 1).finish();
        let ask = |room: u64| {
            let fits = |chosen: &Chosen| chosen.bytes <= room;
            let measure = || choose(room, ("a class", 128), model(1 << 20));
            cached_if(folder.path(), &key, fits, measure).unwrap().size
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
        let said = trade(taken(10.0, 400 * MIB), taken(13.0, 100 * MIB));
        let expected =
            "as written; measured: 400 to 100 MiB (-75 %), 10.0 to 13.0 ms a step (+30 %)";
        assert_eq!(said, expected);
        assert!(
            trade(taken(10.0, 0), taken(9.0, 0))
                .ends_with("measured: 10.0 to 9.0 ms a step (-10 %)")
        );
    }

    #[test]
    fn linux_says_what_is_left() {
        if cfg!(target_os = "linux") {
            assert!(room().unwrap() > MIB);
        }
    }
}
