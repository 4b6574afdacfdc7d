//! Whether early stopping ends a run that cannot improve.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use firebox_core::{Key, Requests, Silent, Stream};
use firebox_loader::{
    HeldOutLoader, LoadError, LoaderConfig, Sample, Source, TrainLoader, TrainSource,
};
use firebox_models::{BiLstmMaeConfig, MaskRule};
use firebox_train::{
    AdamWConfig, Constant, Data, EarlyStopping, Optimizer, Outcome, Pretraining, Run, Schedule,
    TrainConfig,
};

use crate::device::ChosenDevice;
use crate::error::{PipelineError, at};

/// A few windows that a model cannot get better on without a learning rate.
struct Waves;

impl Source for Waves {
    fn len(&self) -> usize {
        8
    }

    fn shape(&self) -> [usize; 2] {
        [14, 1]
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        for (step, value) in out.iter_mut().take(14).enumerate() {
            *value = ((index + 1) as f32 * step as f32 / 5.0).sin();
        }
        Ok(Sample { length: 14, label: None })
    }

    fn classes(&self) -> &[String] {
        &[]
    }
}

impl TrainSource for Waves {}

/// Trains without a learning rate to speak of. Returns after how many epochs it ended, and after how
/// many it should have: the first, and those of its patience.
pub(super) fn early_stopping(device: &ChosenDevice) -> Result<(u64, u64), PipelineError> {
    let patience = 2;
    let model = BiLstmMaeConfig {
        hidden: 4,
        layers: 1,
        decoder_hidden: 4,
        dropout: 0.0,
        mask: MaskRule::Random { probability: 0.5 },
        ..BiLstmMaeConfig::default()
    };
    let model = model.init(Stream::new(1, "weights"), 1, &device.device)?;
    let loader =
        LoaderConfig { batch_size: 8, workers: 0, prefetch: 1, seed: 1, ..LoaderConfig::default() };
    let train = TrainLoader::new(Arc::new(Waves), loader, device.device.clone())?;
    let held_out = HeldOutLoader::new(Arc::new(Waves), loader, device.device.clone())?;
    let adamw = AdamWConfig { learning_rate: 1e-12, ..AdamWConfig::default() };
    let config = TrainConfig {
        epochs: 10,
        optimizer: Optimizer::AdamW(adamw),
        schedule: Schedule::Constant(Constant::default()),
        early_stopping: Some(EarlyStopping { patience, ..EarlyStopping::default() }),
        ..TrainConfig::default()
    };
    let folder = tempfile::tempdir().map_err(at(&std::env::temp_dir()))?;
    let run = Run {
        folder: folder.path(),
        key: Key::builder("doctor", 1).finish(),
        seed: 1,
        resume: false,
        stop: &AtomicBool::new(false),
        requests: &Requests::new(),
        listener: &Silent,
    };
    let data = Data { train: &train, validation: Some(&held_out) };
    let trained = firebox_train::train(model, &Pretraining, data, &config, &run)?;
    let stopped = trained.summary.outcome == Outcome::StoppedEarly;
    Ok((if stopped { trained.summary.epochs } else { 0 }, 1 + patience))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_stopping_is_measured_and_ends_in_time() {
        let device = ChosenDevice::named("cpu");
        assert_eq!(early_stopping(&device).unwrap(), (3, 3));
    }
}
