//! Samples of two megabytes from converted arrays to batches: the shape of reference system R4.

use std::path::Path;
use std::sync::Arc;

use anyhow::ensure;
use burn::tensor::Device;
use firebox_cache::Samples;
use firebox_core::{Silent, Storage};
use firebox_loader::{LoaderConfig, Position, TrainLoader, TrainSamples};
use firebox_pipeline::{ConvertConfig, convert};

use crate::measure::{Work, case};

const BATCH: usize = 16;

/// Converts the arrays in `clips/`, and reads epochs of them.
pub(crate) fn run(folder: &Path) -> anyhow::Result<()> {
    let clips = folder.join("clips");
    for (storage, name) in [(Storage::F32, "f32"), (Storage::F16, "f16"), (Storage::Bf16, "bf16")] {
        let config = ConvertConfig { storage: Some(storage), ..ConvertConfig::default() };
        let output = tempfile::tempdir_in(folder)?;
        let start = std::time::Instant::now();
        let converted = convert(&clips, output.path(), &config, &Silent)?;
        let [time, channel] = converted.shape;
        let bytes = converted.samples * time * channel * size_of::<f32>();
        println!(
            "{}",
            serde_json::json!({
                "case": format!("convert/{name}"), "seconds": start.elapsed().as_secs_f64(),
                "rows": converted.samples, "bytes": bytes, "check": converted.samples,
            })
        );
        let samples = Arc::new(TrainSamples(Samples::open(output.path(), true)?));
        for workers in [0, 2] {
            let config =
                LoaderConfig { batch_size: BATCH, workers, prefetch: 4, ..LoaderConfig::default() };
            let loader = TrainLoader::new(samples.clone(), config, Device::default())?;
            let mut epoch = 0;
            case(
                &format!("stream/{name}-{workers}-workers"),
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
                    ensure!(count == converted.samples, "{count} samples");
                    Ok(Work { rows: count, bytes, check })
                },
            )?;
        }
    }
    Ok(())
}
