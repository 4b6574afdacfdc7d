//! R1: masked pre-training of the zoo's BiLSTM, with the peer's mask and loss.

use firebox_core::Stream;
use firebox_models::{BiLstmMaeConfig, MaskRule};
use firebox_train::Pretraining;

use super::config::{BenchConfig, Sizes};
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
    let model = BiLstmMaeConfig {
        hidden: sizes.hidden,
        decoder_hidden: sizes.hidden,
        mask: MaskRule::Random { probability: 0.15 },
        latent_weight: 0.0,
        ..BiLstmMaeConfig::default()
    };
    let model = model.init(Stream::new(1337, "weights"), 4, &device.device)?;
    let noise = Noise::normal(sizes, config, 4);
    time(model.in_precision(config.precision), &Pretraining, noise, config, device, beside)
}
