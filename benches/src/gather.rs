//! Epochs of batches of R1's shape through the loader, onto the CPU device, one after the other as a
//! training reads them.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use burn::tensor::Device;
use firebox_cache::{Shards, Store, augmented_key};
use firebox_core::*;
use firebox_data::{DataConfig, ingest};
use firebox_loader::{
    LoaderConfig, NormalisedWindows, Place, Position, Resident, Room, TrainLoader, TrainResident,
    TrainSource, default_workers, place,
};

use crate::data::{BATCH, RULE, SEED, WIDTH, augmentations};
use crate::measure::{Work, case};

/// Folder of what is read again by later cases.
const CACHE: &str = "gathered";

/// One case: `make` fills the cache; `stream-N` streams with N threads, `memory-N` gathers from memory with N,
/// `device` gathers there, and `auto` takes the place and the threads that a run without settings has on a CPU. With
/// `-f16` or `-bf16` behind it, of values that are stored so.
pub(crate) fn run(name: &str, folder: &Path) -> anyhow::Result<()> {
    let halves = [("-f16", Storage::F16), ("-bf16", Storage::Bf16)];
    let stored = halves.iter().find_map(|(end, storage)| Some((name.strip_suffix(end)?, *storage)));
    let (case, storage) = stored.unwrap_or((name, Storage::F32));
    let shards = shards(folder, storage)?;
    if case == "make" {
        return Ok(());
    }
    let (place, workers) = match case.split_once('-') {
        Some(("stream", workers)) => (Place::Stream, workers.parse().context("stream-N")?),
        Some(("memory", workers)) => (Place::Memory, workers.parse().context("memory-N")?),
        None if case == "device" => (Place::Device, 0),
        None if case == "auto" => {
            let room = Room { shared: true, host: free(), ..Room::default() };
            let (place, why) = place(Resident::Auto, &shards, room)?;
            eprintln!("{place} with {} workers: {why}", default_workers());
            (place, default_workers())
        }
        _ => bail!("no case is called {name}"),
    };
    epochs(&format!("gather/{name}"), &loader(shards, place, workers)?)
}

/// One case of windows at every step of `bars.parquet`, scaled by the training: `stream-N` makes them of their series with
/// N threads, `memory-N` gathers them from the steps that they share.
pub(crate) fn overlapping(name: &str, folder: &Path) -> anyhow::Result<()> {
    let every = WindowRule { stride: 1, ..RULE };
    let (train, normaliser) = windows_by(folder, &every, Normalisation::Standard)?;
    let source = NormalisedWindows::new(train, normaliser);
    let (place, workers) = match name.split_once('-') {
        Some(("stream", workers)) => (Place::Stream, workers.parse().context("stream-N")?),
        Some(("memory", workers)) => (Place::Memory, workers.parse().context("memory-N")?),
        _ => bail!("no case is called {name}"),
    };
    epochs(&format!("overlapping/{name}"), &loader(source, place, workers)?)
}

/// Times epochs, one after the other.
fn epochs(name: &str, loader: &TrainLoader) -> anyhow::Result<()> {
    let mut position = Position::START;
    case(
        name,
        || Ok(()),
        |()| {
            let (mut samples, mut sum) = (0, 0);
            for batch in loader.epoch(position) {
                let batch = batch?;
                samples += batch.len();
                sum += batch.indices.iter().sum::<usize>();
            }
            position = Position { epoch: position.epoch + 1, batch: 0 };
            let all = loader.samples();
            ensure!(samples == all && sum == all * (all - 1) / 2, "{samples} samples, {sum}");
            Ok(Work { rows: samples, bytes: samples * WIDTH * 4, check: samples as f64 })
        },
    )
}

/// Batches of R1's size from this place.
pub(crate) fn loader(
    source: impl TrainSource + 'static,
    place: Place,
    workers: usize,
) -> anyhow::Result<TrainLoader> {
    let device = Device::default();
    let config = LoaderConfig {
        batch_size: BATCH,
        workers,
        prefetch: 4,
        seed: SEED,
        ..LoaderConfig::default()
    };
    let set = match place {
        Place::Stream => return Ok(TrainLoader::new(Arc::new(source), config, device)?),
        Place::Memory => TrainResident::read(&source)?,
        Place::Device => TrainResident::upload(&source, &device)?,
    };
    Ok(TrainLoader::resident(set, config, device)?)
}

/// Free memory of the host in bytes, as proc(5) has it.
fn free() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// Every window of `bars.parquet`, and how they are normalised.
pub(crate) fn windows(folder: &Path) -> anyhow::Result<(TrainWindows, Normaliser)> {
    windows_by(folder, &RULE, Normalisation::WindowRelative)
}

fn windows_by(
    folder: &Path,
    rule: &WindowRule,
    normalise: Normalisation,
) -> anyhow::Result<(TrainWindows, Normaliser)> {
    let config = DataConfig::new(folder.join("bars.parquet"));
    let set = ingest(&config, &folder.join(CACHE), &Silent)?.set;
    let parts = split(&set, rule, &SplitRule::time(0.0, 0.0), &Labels::None)?;
    let normaliser = Normaliser::fit(normalise, &parts.train)?;
    Ok((parts.train, normaliser))
}

/// Every window with its versions, made by whoever comes first.
pub(crate) fn shards(folder: &Path, storage: Storage) -> anyhow::Result<Shards> {
    let (train, normaliser) = windows(folder)?;
    let augmentation = augmentations(storage);
    let key = augmented_key(Key::builder("benches", 1).finish(), &augmentation, SEED);
    let store = Store::open(&folder.join(CACHE))?;
    Ok(store.augmented(key, &train, &normaliser, &augmentation, SEED, &Silent)?)
}
