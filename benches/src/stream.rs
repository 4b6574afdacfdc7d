//! Samples of two megabytes from converted arrays to batches: the shape of reference system R4.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, ensure};
use burn::tensor::Device;
use firebox_cache::Samples;
use firebox_core::{Silent, Storage};
use firebox_loader::{LoaderConfig, Position, TrainLoader, TrainSamples};
use firebox_pipeline::{ConvertConfig, convert};

use crate::measure::{Work, case, print};

const BATCH: usize = 16;
const STORAGES: [(Storage, &str); 3] =
    [(Storage::F32, "f32"), (Storage::F16, "f16"), (Storage::Bf16, "bf16")];

/// The case `make` converts the arrays in `clips/`, as each type; `f32-2` and the like read epochs of
/// them with so many workers.
pub(crate) fn run(name: &str, folder: &Path) -> anyhow::Result<()> {
    if name == "make" {
        return STORAGES.iter().try_for_each(|(storage, name)| make(*storage, name, folder));
    }
    let (storage, workers) = name.split_once('-').context("a case, such as f32-2")?;
    let samples = Samples::open(&folder.join(format!("clips-{storage}")), false)?;
    let all = samples.len();
    let bytes = all * samples.shape().iter().product::<usize>() * size_of::<f32>();
    let workers = workers.parse().context("a number of workers")?;
    let config =
        LoaderConfig { batch_size: BATCH, workers, prefetch: 4, ..LoaderConfig::default() };
    let loader = TrainLoader::new(Arc::new(TrainSamples(samples)), config, Device::default())?;
    let mut epoch = 0;
    case(
        &format!("stream/{name}-workers"),
        || Ok(()),
        |()| {
            let (mut count, mut check) = (0, 0.0);
            // Epochs one behind the other, as a training reads them.
            for batch in loader.epoch(Position { epoch, batch: 0 }) {
                let batch = batch?;
                count += batch.len();
                check += batch.indices.iter().sum::<usize>() as f64;
            }
            epoch += 1;
            ensure!(count == all, "{count} samples");
            Ok(Work { rows: count, bytes, check })
        },
    )
}

fn make(storage: Storage, name: &str, folder: &Path) -> anyhow::Result<()> {
    let output = folder.join(format!("clips-{name}"));
    if output.exists() {
        std::fs::remove_dir_all(&output)?;
    }
    let config = ConvertConfig { storage: Some(storage), ..ConvertConfig::default() };
    let start = Instant::now();
    let converted = convert(&folder.join("clips"), &output, &config, &Silent)?;
    let seconds = start.elapsed().as_secs_f64();
    let [time, channel] = converted.shape;
    let rows = converted.samples;
    let bytes = rows * time * channel * size_of::<f32>();
    print(&format!("convert/{name}"), [seconds; 2], Work { rows, bytes, check: rows as f64 });
    Ok(())
}
