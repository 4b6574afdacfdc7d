//! R3: the zoo's dense classifier on whole windows.

use firebox_core::Stream;
use firebox_loader::Batch;
use firebox_models::{Loss, Mlp, MlpConfig};
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
    // The peers' model has no gate.
    let model = MlpConfig { gate: false, ..MlpConfig::default() };
    let model = model.init(Stream::new(1337, "weights"), [sizes.length, 4], 3, &device.device)?;
    let noise = Noise::normal(sizes, config, 4).with_labels(3);
    time(model.in_precision(config.precision), &Classifying, noise, config, device, beside)
}

struct Classifying;

impl Objective<Mlp> for Classifying {
    fn loss(&self, model: &Mlp, batch: &Batch, streams: Streams) -> Loss {
        cross_entropy(model.logits(batch.inputs.clone(), streams.dropout), batch, 0.0)
    }
}
