//! R3: the zoo's Transformer on windows with one of three classes, with the peer's loss.

use firebox_core::Stream;
use firebox_loader::Batch;
use firebox_models::{Loss, Positions, Transformer, TransformerConfig};
use firebox_train::{Objective, Streams};

use super::config::{BenchConfig, Sizes, heads};
use super::labels::cross_entropy;
use super::noise::Noise;
use super::timing::{Beside, Measured, time};
use crate::device::ChosenDevice;
use crate::error::PipelineError;

const CLASSES: usize = 3;
/// Share of the target that is spread over all classes.
const SMOOTHING: f64 = 0.1;

pub(super) fn run(
    sizes: Sizes,
    config: &BenchConfig,
    device: &ChosenDevice,
    beside: &Beside<'_>,
) -> Result<Measured, PipelineError> {
    let stream = Stream::new(1337, "weights");
    let width = sizes.hidden;
    let settings = TransformerConfig {
        width,
        heads: heads(width, 16),
        feedforward: 4 * width,
        // The peers learn a vector for each position.
        positions: Positions::Learned,
        ..TransformerConfig::default()
    };
    let model = settings.init(stream, 4, sizes.length, CLASSES, &device.device)?;
    let noise = Noise::normal(sizes, config, 4).with_labels(CLASSES);
    time(model.in_precision(config.precision), &Classifying, noise, config, device, beside)
}

/// Cross-entropy with smoothed labels, as `F.cross_entropy` computes it.
struct Classifying;

impl Objective<Transformer> for Classifying {
    fn loss(&self, model: &Transformer, batch: &Batch, streams: Streams) -> Loss {
        let logits = model.logits(batch.inputs.clone(), None, streams.dropout);
        cross_entropy(logits, batch, SMOOTHING)
    }
}
