//! A set larger than the memory that it may use: made shard by shard, read by blocks, with the most
//! anonymous memory that was resident meanwhile.
//!
//! Pages of mapped files are not anonymous: the system drops them when memory is short.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use burn::tensor::Device;
use firebox_cache::{CacheError, SampleSpec, Samples};
use firebox_core::{Key, Silent, Storage, Stream};
use firebox_loader::{LoaderConfig, Position, Shuffle, TrainLoader, TrainSamples};

/// R1's window: 1,680 bytes.
const SHAPE: [usize; 2] = [105, 4];
const BATCH: usize = 512;

/// Anonymous memory of this process in bytes, as proc(5) has it.
fn anonymous() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib: u64 = line.context("no RssAnon")?.split_whitespace().next().context("")?.parse()?;
    Ok(kib * 1024)
}

/// Runs `work` while the largest anonymous memory is looked for every few milliseconds.
fn peak<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(T, u64)> {
    let (done, most) = (AtomicBool::new(false), AtomicU64::new(anonymous()?));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                most.fetch_max(anonymous().unwrap_or(0), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        Ok((result?, most.load(Ordering::Relaxed)))
    })
}

pub(crate) fn run(folder: &Path, bytes: u64) -> anyhow::Result<()> {
    let width = SHAPE[0] * SHAPE[1];
    let count = usize::try_from(bytes)? / (width * size_of::<f32>());
    let output = tempfile::tempdir_in(folder)?;
    let spec = SampleSpec {
        key: Key::builder("larger", 1).field("bytes", bytes.to_le_bytes()).finish(),
        source: String::new(),
        shape: SHAPE,
        storage: Storage::F32,
        classes: vec![],
        samples: vec![(SHAPE[0] as u32, None); count],
        names: vec![],
        shard_bytes: 64 << 20,
    };
    let seed = Stream::new(7, "larger");
    let start = Instant::now();
    let (samples, most) = peak(|| {
        Ok(Samples::write(output.path(), &spec, &Silent, |sample, out| {
            let start = out.len();
            out.resize(start + width, 0.0);
            seed.substream(sample as u64).fill_uniform(0, &mut out[start..]);
            // So that what is read can be told to be the sample that was asked for.
            out[start] = (sample % 8191) as f32;
            Ok::<(), CacheError>(())
        })?)
    })?;
    said("larger/make", count, bytes, most, start);
    let shuffle = Shuffle::Blocks { block: 256, window: 65_536.min(count.max(512)) };
    let config = LoaderConfig { batch_size: BATCH, shuffle, workers: 1, ..LoaderConfig::default() };
    let loader = TrainLoader::new(Arc::new(TrainSamples(samples)), config, Device::default())?;
    for (epoch, name) in [(0, "larger/first-epoch"), (1, "larger/second-epoch")] {
        let start = Instant::now();
        let (read, most) = peak(|| {
            let mut read = 0;
            for batch in loader.epoch(Position { epoch, batch: 0 }) {
                let batch = batch?;
                read += batch.len();
                let first = batch.inputs.narrow(1, 0, 1).narrow(2, 0, 1).into_data();
                let first = first.try_to_vec::<f32>().map_err(|e| anyhow::anyhow!("{e:?}"))?;
                let right = |(value, index): (&f32, &usize)| *value == (index % 8191) as f32;
                ensure!(first.iter().zip(&batch.indices).all(right), "a sample is another one");
            }
            Ok(read)
        })?;
        ensure!(read == count, "{read} of {count} samples");
        said(name, count, bytes, most, start);
    }
    Ok(())
}

fn said(case: &str, rows: usize, bytes: u64, anonymous: u64, start: Instant) {
    let line = serde_json::json!({
        "case": case, "seconds": start.elapsed().as_secs_f64(), "rows": rows, "bytes": bytes,
        "check": rows, "anonymous_bytes": anonymous,
    });
    println!("{line}");
}
