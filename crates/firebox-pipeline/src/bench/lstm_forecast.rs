//! R2: three values of a later step from a sequence and static features.

use std::ops::Range;

use burn::tensor::Tensor;
use firebox_core::Stream;
use firebox_loader::Batch;
use firebox_models::{Loss, StackedLstm, StackedLstmConfig};
use firebox_train::{Objective, Streams};

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
    let model = StackedLstmConfig::default().init(
        Stream::new(1337, "weights"),
        1,
        12,
        3,
        &device.device,
    )?;
    let noise = Noise::normal(sizes, config, 4);
    time(model.in_precision(config.precision), &Forecasting, noise, config, device, beside)
}

/// Three values of a later step from a sequence and static features, all cut out of the noise as
/// the peer cuts them.
struct Forecasting;

impl Objective<StackedLstm> for Forecasting {
    fn loss(&self, model: &StackedLstm, batch: &Batch, streams: Streams) -> Loss {
        let [samples, _, _] = batch.inputs.dims();
        let part = |steps: Range<usize>, channels: Range<usize>| {
            batch.inputs.clone().slice([0..samples, steps, channels])
        };
        let statics: Tensor<2> = part(24..36, 1..2).reshape([samples, 12]);
        let forecast = model.forecast(part(0..24, 0..1), None, Some(statics), streams.dropout);
        let error = forecast - part(40..41, 0..3).reshape([samples, 3]);
        Loss { value: error.square().mean(), weight: 3.0 * samples as f64, parts: vec![] }
    }
}
