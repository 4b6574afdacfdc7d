//! R5: BERT's encoder on random tokens with nine labels, with the peer's loss.

use firebox_core::Stream;
use firebox_loader::Batch;
use firebox_models::{Bert, BertConfig, Loss};
use firebox_train::{Objective, Streams};

use super::config::{BenchConfig, Sizes, heads};
use super::labels::binary_cross_entropy;
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
    let width = sizes.hidden;
    let settings = BertConfig {
        positions: sizes.length,
        width,
        heads: heads(width, 64),
        feedforward: 4 * width,
        ..BertConfig::default()
    };
    let noise = Noise::tokens(sizes, config, settings.vocabulary).with_labels(3);
    let model = settings.init(Stream::new(1337, "weights"), &device.device)?;
    time(model.in_precision(config.precision), &Labelling, noise, config, device, beside)
}

/// Binary cross-entropy of all labels, of which one is true, as
/// `F.binary_cross_entropy_with_logits` computes it.
struct Labelling;

impl Objective<Bert> for Labelling {
    fn loss(&self, model: &Bert, batch: &Batch, streams: Streams) -> Loss {
        let [samples, time, _] = batch.inputs.dims();
        let tokens = batch.inputs.clone().reshape([samples, time]).int();
        let logits = model.logits(tokens, None, streams.dropout);
        binary_cross_entropy(logits, batch)
    }
}
