//! A set larger than the memory that the process may have: made, mapped, shuffled by blocks and read.
//! `benches/data_path.py --only larger --larger 20000000000` is the same in large.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use burn::tensor::Device;
use firebox_cache::{CacheError, SampleSpec, Samples};
use firebox_core::{Key, Silent, Storage};
use firebox_loader::{LoaderConfig, Position, Shuffle, TrainLoader, TrainSamples};

const SHAPE: [usize; 2] = [64, 8];
/// 128 MiB of samples of 2 KiB.
const SAMPLES: usize = 64 << 10;
/// KiB of private memory that the process may have: three quarters of the set, with its stacks.
const LIMIT: usize = 96 << 10;
/// KiB of anonymous memory that reading may have resident: two shards in the making, batches, orders.
const RESIDENT: usize = 24 << 10;

/// KiB of anonymous memory, as proc(5) has it.
fn anonymous() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

fn make_and_read(folder: &Path) {
    let width = SHAPE[0] * SHAPE[1];
    let spec = SampleSpec {
        key: Key::builder("larger", 1).finish(),
        source: String::new(),
        shape: SHAPE,
        storage: Storage::F32,
        classes: vec![],
        samples: vec![(SHAPE[0] as u32, None); SAMPLES],
        names: vec![],
        shard_bytes: 4 << 20,
    };
    let samples = Samples::write(folder, &spec, &Silent, |sample, out| {
        out.extend((0..width).map(|at| (sample * 3 + at) as f32));
        Ok::<(), CacheError>(())
    });
    let mut most = anonymous();
    let shuffle = Shuffle::Blocks { block: 64, window: 4096 };
    let config = LoaderConfig {
        batch_size: 256,
        workers: 2,
        prefetch: 4,
        shuffle,
        ..LoaderConfig::default()
    };
    let source = Arc::new(TrainSamples(samples.unwrap()));
    // As they come, and sorted by length.
    for (epoch, buckets) in [(0, 0), (1, 0), (0, 16), (1, 16)] {
        let config = LoaderConfig { buckets, ..config };
        let loader = TrainLoader::new(source.clone(), config, Device::default()).unwrap();
        let mut seen = vec![false; SAMPLES];
        for batch in loader.epoch(Position { epoch, batch: 0 }) {
            let batch = batch.unwrap();
            let values = batch.inputs.into_data();
            let values = values.as_slice::<f32>().unwrap();
            for (row, index) in values.chunks_exact(width).zip(&batch.indices) {
                assert_eq!(row[width - 1], (index * 3 + width - 1) as f32);
                assert!(!std::mem::replace(&mut seen[*index], true));
            }
            most = most.max(anonymous());
        }
        assert!(seen.into_iter().all(|seen| seen));
    }
    println!("anonymous memory: {most} KiB");
    assert!(most < RESIDENT, "{most} KiB of anonymous memory for {} KiB", SAMPLES * 2);
}

#[test]
fn a_set_larger_than_memory_is_made_and_read() {
    if let Some(folder) = std::env::var_os("FIREBOX_TEST_LARGER") {
        make_and_read(Path::new(&folder));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = std::env::current_exe().unwrap();
    let output = Command::new("sh")
        .args([
            "-c",
            &format!("ulimit -d {LIMIT} && exec \"$0\" --nocapture"),
            program.to_str().unwrap(),
        ])
        .env("FIREBOX_TEST_LARGER", folder.path())
        .env("RAYON_NUM_THREADS", "2")
        // glibc keeps large blocks that are given back, by when which thread gives back what; and a backtrace
        // for which there is no memory waits for itself.
        .envs([("MALLOC_MMAP_THRESHOLD_", "131072"), ("RUST_BACKTRACE", "0")])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("anonymous memory: "), "{said}");
}
