//! Samples of two megabytes from converted arrays to batches: the shape of reference system R4.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, ensure};
use burn::tensor::Device;
use firebox_cache::Samples;
use firebox_core::{Silent, Storage};
use firebox_loader::{LoaderConfig, Position, Shuffle, TrainLoader, TrainSamples};
use firebox_pipeline::{ConvertConfig, convert};

use crate::measure::{Work, case, print};

const BATCH: usize = 16;
const STORAGES: [(Storage, &str); 3] =
    [(Storage::F32, "f32"), (Storage::F16, "f16"), (Storage::Bf16, "bf16")];
/// As `loader.shuffle.blocks` has it for sets larger than memory: windows of 128 MiB in f32, which are announced.
const BLOCKS: Shuffle = Shuffle::Blocks { block: 1, window: 64 };

/// The case `make` converts the arrays in `clips/`, as each type; `f32-2` and the like read epochs of
/// them with so many workers. `cold-f32-2` and `blocks-f32-2` open the files and read one epoch, shuffled as a whole or
/// in blocks, within the time: whoever asks has emptied the page cache, of which opening reads a part.
pub(crate) fn run(name: &str, folder: &Path) -> anyhow::Result<()> {
    if name == "make" {
        return STORAGES.iter().try_for_each(|(storage, name)| make(*storage, name, folder));
    }
    let (case_name, nothing) = (format!("stream/{name}-workers"), || Ok(()));
    let once = |kind: &str, shuffle| {
        case(&case_name, nothing, |()| epoch(&opened(kind, shuffle, folder)?, 0))
    };
    match name.split_once('-') {
        Some(("cold", kind)) => once(kind, Shuffle::Full),
        Some(("blocks", kind)) => once(kind, BLOCKS),
        _ => {
            let (loader, mut next) = (opened(name, Shuffle::Full, folder)?, 0);
            case(&case_name, nothing, |()| {
                // Epochs one behind the other, as a training reads them.
                next += 1;
                epoch(&loader, next - 1)
            })
        }
    }
}

/// Converted clips of a kind such as `f32-2`: their type, and the number of workers.
fn opened(kind: &str, shuffle: Shuffle, folder: &Path) -> anyhow::Result<TrainLoader> {
    let (storage, workers) = kind.split_once('-').context("a case, such as f32-2")?;
    let samples = Samples::open(&folder.join(format!("clips-{storage}")), false)?;
    let workers = workers.parse().context("a number of workers")?;
    let config = LoaderConfig {
        batch_size: BATCH,
        workers,
        prefetch: 4,
        shuffle,
        ..LoaderConfig::default()
    };
    Ok(TrainLoader::new(Arc::new(TrainSamples(samples)), config, Device::default())?)
}

fn epoch(loader: &TrainLoader, epoch: u64) -> anyhow::Result<Work> {
    let (mut rows, mut bytes, mut check) = (0, 0, 0.0);
    for batch in loader.epoch(Position { epoch, batch: 0 }) {
        let batch = batch?;
        let [samples, time, channel] = batch.inputs.dims();
        rows += samples;
        bytes += samples * time * channel * size_of::<f32>();
        check += batch.indices.iter().sum::<usize>() as f64;
    }
    ensure!(rows == loader.samples(), "{rows} samples");
    Ok(Work { rows, bytes, check })
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
