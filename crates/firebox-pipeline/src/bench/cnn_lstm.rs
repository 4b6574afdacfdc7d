//! R4: the zoo's convolutions and BiLSTM on sequences of 500 steps and 1,024 channels, with normal
//! noise on them at every step, in evaluation too, as the peer has it.

use firebox_core::Stream;
use firebox_kernels::GaussianNoise;
use firebox_loader::Batch;
use firebox_models::{CnnBiLstm, CnnBiLstmConfig, Loss};
use firebox_train::{Objective, Streams};

use super::config::{BenchConfig, Sizes};
use super::labels::cross_entropy;
use super::noise::Noise;
use super::timing::{Beside, Measured, time};
use crate::device::ChosenDevice;
use crate::error::PipelineError;

pub(super) fn run(
    sizes: Sizes,
    config: &BenchConfig,
    device: &ChosenDevice,
    beside: &Beside<'_>,
) -> Result<Measured, PipelineError> {
    // The peers' model classifies the pooled encoding at once.
    let model = CnnBiLstmConfig {
        hidden: sizes.hidden,
        head_norm: false,
        head_dropout: 0.3,
        embedding: 0,
        classifier: vec![],
        ..CnnBiLstmConfig::default()
    };
    let model = model.init(Stream::new(1337, "weights"), 1024, 5, &device.device)?;
    let noise = Noise::normal(sizes, config, 1024).with_labels(3);
    time(model.in_precision(config.precision), &Classifying, noise, config, device, beside)
}

struct Classifying;

impl Objective<CnnBiLstm> for Classifying {
    fn loss(&self, model: &CnnBiLstm, batch: &Batch, streams: Streams) -> Loss {
        let noise = GaussianNoise { deviation: 0.005, stream: streams.samples };
        let logits = model.logits(batch.inputs.clone(), None, Some(noise), streams.dropout);
        cross_entropy(logits, batch, 0.0)
    }
}
