//! R3: the zoo's Transformer on windows with one of three classes, with the peer's loss.

use firebox_core::Stream;
use firebox_loader::Batch;
use firebox_models::{Loss, Positions, Transformer, TransformerConfig};
use firebox_train::{Objective, Streams};

use super::labels::cross_entropy;
use super::{BenchConfig, Measured, Noise, time};
use crate::device::ChosenDevice;
use crate::error::PipelineError;

const CLASSES: usize = 3;
/// Share of the target that is spread over all classes.
const SMOOTHING: f64 = 0.1;

pub(super) fn run(
    batch: usize,
    config: &BenchConfig,
    device: &ChosenDevice,
) -> Result<Measured, PipelineError> {
    let stream = Stream::new(1337, "weights");
    // The peers learn a vector for each position.
    let model = TransformerConfig { positions: Positions::Learned, ..TransformerConfig::default() };
    let model = model.init(stream, 4, 105, CLASSES, &device.device)?;
    let noise = Noise::normal(batch, config, [105, 4]).with_labels(CLASSES);
    time(model.in_precision(config.precision), &Classifying, noise, config, device)
}

/// Cross-entropy with smoothed labels, as `F.cross_entropy` computes it.
struct Classifying;

impl Objective<Transformer> for Classifying {
    fn loss(&self, model: &Transformer, batch: &Batch, streams: Streams) -> Loss {
        let logits = model.logits(batch.inputs.clone(), None, streams.dropout);
        cross_entropy(logits, batch, SMOOTHING)
    }
}
