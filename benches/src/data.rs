//! Ingestion, windows, augmentation and the cache. The loader is measured in `gather`.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use firebox_cache::{Augmenter, PriceScale, Shards, Store, augmented_key};
use firebox_core::*;
use firebox_data::{DataConfig, fingerprint, ingest, read};
use firebox_loader::{NormalisedWindows, Source};
use rayon::prelude::*;

use crate::gather::{shards, windows};
use crate::measure::{Work, case};

/// R1's window, four versions of each, and its batch.
pub(crate) const RULE: WindowRule = WindowRule { length: 105, stride: 10, whole: false };
pub(crate) const CHANNELS: usize = 4;
pub(crate) const WIDTH: usize = RULE.length * CHANNELS;
pub(crate) const VERSIONS: usize = 4;
pub(crate) const BATCH: usize = 512;
pub(crate) const SEED: u64 = 1337;

/// All cases, in the order in which a run goes through the stages.
pub(crate) fn run(folder: &Path) -> anyhow::Result<()> {
    let set = ingestion(folder)?;
    let parts = split(&set, &RULE, &SplitRule::time(0.0, 0.0), &Labels::None)?;
    let normaliser = Normaliser::fit(Normalisation::WindowRelative, &parts.train)?;
    windowing(&set, &parts.train, &normaliser)?;
    augmentation(&parts.train, &normaliser)?;
    cache(&parts.train, &normaliser, folder)
}

/// A stage by itself, on what `gather make` has left: `read` from the cache, or `augment` in memory.
pub(crate) fn one(name: &str, folder: &Path) -> anyhow::Result<()> {
    match name {
        "read" => reading(&shards(folder, Storage::F32)?, Storage::F32, "f32"),
        "augment" => {
            let (train, normaliser) = windows(folder)?;
            augmentation(&train, &normaliser)
        }
        _ => bail!("no case is called {name}"),
    }
}

/// Reading and checking many bars: the case `read-csv` or `read-parquet`. What is measured apart: the hash
/// of the files, which names the result (`hash-`), the result's way onto the disk (`all-`), and from there
/// (`again-`).
pub(crate) fn many(name: &str, folder: &Path) -> anyhow::Result<()> {
    let (what, format) = name.split_once('-').context("a case, such as read-csv")?;
    let file = folder.join(format!("many.{format}"));
    let bytes = std::fs::metadata(&file).with_context(|| file.display().to_string())?.len();
    let config = DataConfig::new(&file);
    let check = |set: &SeriesSet| -> anyhow::Result<Work> {
        let close = set.role(Role::Close).context("no close")?;
        // On all processors, as polars does it.
        let values = set.series()[0].values.all();
        let check = values.par_chunks(1 << 16);
        let check = check.map(|rows| rows.iter().skip(close).step_by(CHANNELS).sum::<f64>()).sum();
        Ok(Work { rows: set.steps(), bytes: bytes as usize, check })
    };
    let nothing = || Ok(());
    let case_name = format!("many/{name}");
    match what {
        "hash" => case(&case_name, nothing, |()| {
            fingerprint(&config)?;
            Ok(Work { rows: 1, bytes: bytes as usize, check: 1.0 })
        }),
        "read" => case(&case_name, nothing, |()| check(&read(&config, &Silent)?.0)),
        "all" => {
            let fresh = || Ok(tempfile::tempdir_in(folder)?);
            case(&case_name, fresh, |cache| check(&ingest(&config, cache.path(), &Silent)?.set))
        }
        "again" => {
            let cache = tempfile::tempdir_in(folder)?;
            ingest(&config, cache.path(), &Silent)?;
            case(&case_name, nothing, |()| {
                let data = ingest(&config, cache.path(), &Silent)?;
                ensure!(data.reused, "it was made again");
                check(&data.set)
            })
        }
        _ => bail!("no case is called {name}"),
    }
}

pub(crate) fn augmentations(storage: Storage) -> Augmentation {
    Augmentation { versions: VERSIONS as u32, storage, ..Augmentation::default() }
}

fn ingestion(folder: &Path) -> anyhow::Result<Arc<SeriesSet>> {
    let mut kept = None;
    for name in ["csv", "parquet"] {
        let file = folder.join(format!("bars.{name}"));
        let bytes = std::fs::metadata(&file).with_context(|| file.display().to_string())?.len();
        let config = DataConfig::new(&file);
        // A fresh cache each time: otherwise the second run would find the first one's result.
        let fresh = || Ok(tempfile::tempdir_in(folder)?);
        case(&format!("ingest/{name}"), fresh, |cache| {
            let data = ingest(&config, cache.path(), &Silent)?;
            ensure!(!data.reused, "the cache was not fresh");
            let series = data.set.series();
            let close = data.set.role(Role::Close).context("no close")?;
            let check = series[0].values.all().iter().skip(close).step_by(CHANNELS).sum();
            let rows = data.set.steps();
            kept = Some(data.set);
            Ok(Work { rows, bytes: bytes as usize, check })
        })?;
    }
    kept.context("nothing was ingested")
}

/// The sum over all values, in f64.
fn total(values: &[f32]) -> f64 {
    values.par_chunks(WIDTH).map(|row| row.iter().map(|v| f64::from(*v)).sum::<f64>()).sum()
}

/// The sum over the squares of all values, in f64: without a copy of them, which would be part of the peak memory.
fn energy(values: &[f32]) -> f64 {
    values.par_chunks(WIDTH).map(|row| row.iter().map(|v| f64::from(v * v)).sum::<f64>()).sum()
}

fn windowing(
    set: &Arc<SeriesSet>,
    train: &TrainWindows,
    normaliser: &Normaliser,
) -> anyhow::Result<()> {
    let nothing = || Ok(());
    case("window/split", nothing, |()| {
        let parts = split(set, &RULE, &SplitRule::time(0.0, 0.0), &Labels::None)?;
        let rows = parts.train.len();
        Ok(Work { rows, bytes: rows * size_of::<Window>(), check: rows as f64 })
    })?;
    let source = NormalisedWindows::new(train.clone(), normaliser.clone());
    let mut out = vec![0.0f32; train.len() * WIDTH];
    case("window/normalise", nothing, |()| {
        out.par_chunks_mut(WIDTH)
            .enumerate()
            .try_for_each(|(index, out)| source.read(index, out).map(drop))?;
        Ok(Work { rows: train.len(), bytes: size_of_val(&*out), check: total(&out) })
    })
}

/// In memory, from normalised windows to their versions.
fn augmentation(train: &TrainWindows, normaliser: &Normaliser) -> anyhow::Result<()> {
    let source = NormalisedWindows::new(train.clone(), normaliser.clone());
    let mut originals = vec![0.0f32; train.len() * WIDTH];
    for (index, out) in originals.chunks_exact_mut(WIDTH).enumerate() {
        source.read(index, out)?;
    }
    let mut versions = vec![0.0f32; originals.len() * VERSIONS];
    let augmenter = Augmenter::new(&augmentations(Storage::F32), train.set().channels(), SEED)?;
    let expected = energy(&originals);
    let mut make = || {
        versions
            .par_chunks_exact_mut(WIDTH * VERSIONS)
            .zip(originals.par_chunks_exact(WIDTH))
            .enumerate()
            .for_each_init(
                || augmenter.clone(),
                |augmenter, (index, (out, original))| {
                    augmenter.load(index as u64, original, PriceScale::SHARED);
                    for (version, out) in out.chunks_exact_mut(WIDTH).enumerate() {
                        augmenter.version(version as u32 + 1, out);
                    }
                },
            );
        Ok(Work {
            rows: train.len() * VERSIONS,
            bytes: size_of_val(&*versions),
            check: versions.len() as f64,
        })
    };
    let single = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
    case("augment/one-thread", || Ok(()), |()| single.install(&mut make))?;
    case("augment/all-threads", || Ok(()), |()| make())?;
    // Augmented windows keep the scale of their originals: E[(1 + 0.1 z)²] is 1.01 on 3 in 10.
    let found = energy(&versions) / VERSIONS as f64;
    ensure!((found / expected - 1.0).abs() < 0.05, "energy {found}, originals {expected}");
    Ok(())
}

/// The cache of augmented windows, on the disk of `folder`, where the peer has its own.
fn cache(train: &TrainWindows, normaliser: &Normaliser, folder: &Path) -> anyhow::Result<()> {
    for (storage, name) in [(Storage::F32, "f32"), (Storage::F16, "f16"), (Storage::Bf16, "bf16")] {
        let augmentation = augmentations(storage);
        let key = augmented_key(Key::builder("benches", 1).finish(), &augmentation, SEED);
        let make =
            |store: &Store| store.augmented(key, train, normaliser, &augmentation, SEED, &Silent);
        let fresh = || {
            let place = tempfile::tempdir_in(folder)?;
            Ok((Store::open(place.path())?, place))
        };
        case(&format!("cache/make-{name}"), fresh, |(store, _)| {
            let shards = make(store)?;
            ensure!(!shards.reused() && shards.len() == train.len() * (VERSIONS + 1));
            work(&shards, storage, shards.len() as f64)
        })?;
        let (store, _place) = fresh()?;
        let shards = make(&store)?;
        case(
            &format!("cache/open-{name}"),
            || Ok(()),
            |()| {
                let shards = make(&store)?;
                ensure!(shards.reused(), "it was made again");
                work(&shards, storage, shards.len() as f64)
            },
        )?;
        reading(&shards, storage, name)?;
        if storage == Storage::F32 {
            bandwidth(&shards)?;
        }
    }
    Ok(())
}

fn work(shards: &Shards, storage: Storage, check: f64) -> anyhow::Result<Work> {
    let size = if storage == Storage::F32 { 4 } else { 2 };
    Ok(Work { rows: shards.len(), bytes: shards.len() * WIDTH * size, check })
}

/// The records of an epoch into a batch's buffer, one batch after the other, in their order and in a
/// random one.
fn reading(shards: &Shards, storage: Storage, name: &str) -> anyhow::Result<()> {
    let mut order: Vec<usize> = (0..shards.len()).collect();
    let read = |case_name: &str, order: &[usize]| {
        let mut buffer = vec![0.0; BATCH * WIDTH];
        case(
            case_name,
            || Ok(()),
            |()| {
                let mut records = 0;
                for batch in order.chunks(BATCH) {
                    shards.gather(batch, RULE.length, &mut buffer[..batch.len() * WIDTH]);
                    shards.check_read(batch)?;
                    std::hint::black_box(&mut buffer);
                    records += batch.len();
                }
                ensure!(records == shards.len(), "{records} records");
                let last = order.len() - order.len() % BATCH..;
                let mut expected = [0.0; WIDTH];
                for (index, found) in order[last].iter().zip(buffer.chunks_exact(WIDTH)) {
                    shards.read(*index, &mut expected);
                    ensure!(found == expected, "record {index} is another one");
                }
                let check = records as f64;
                work(shards, storage, check)
            },
        )
    };
    read(&format!("cache/read-{name}"), &order)?;
    Stream::new(SEED, "order").draws().shuffle(&mut order);
    read(&format!("cache/read-shuffled-{name}"), &order)
}

/// What this machine's memory can do with the same bytes, to compare reading with.
fn bandwidth(shards: &Shards) -> anyhow::Result<()> {
    let mut all = vec![0.0f32; shards.len() * WIDTH];
    for (index, out) in all.chunks_exact_mut(WIDTH).enumerate() {
        shards.read(index, out);
    }
    let bytes = size_of_val(&*all);
    let rows = shards.len();
    let mut buffer = vec![0.0f32; BATCH * WIDTH];
    case(
        "memory/copy-to-batch",
        || Ok(()),
        |()| {
            for batch in all.chunks(BATCH * WIDTH) {
                std::hint::black_box(&mut buffer)[..batch.len()].copy_from_slice(batch);
            }
            Ok(Work { rows, bytes, check: rows as f64 })
        },
    )?;
    case(
        "memory/sum",
        || Ok(()),
        |()| {
            // 64 partial sums, so that additions do not wait for each other.
            let mut sums = [0.0f32; 64];
            for row in all.chunks_exact(64) {
                sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
            ensure!(sums.iter().all(|sum| sum.is_finite()));
            Ok(Work { rows, bytes, check: rows as f64 })
        },
    )
}
