//! R2: three values of a later step from a sequence and static features. The model is not in the zoo
//! yet.

use std::ops::Range;

use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::{Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{Lstm, LstmConfig, init_linear, linear_in, relu_dropout};
use firebox_loader::Batch;
use firebox_models::Loss;
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
    let model = Forecaster::init(config.precision, &device.device);
    time(model, &Forecasting, Noise::normal(sizes, config, 4), config, device, beside)
}

/// The two layers and the head.
#[derive(Module, Debug)]
struct Forecaster {
    lower: Lstm,
    upper: Lstm,
    hidden: Linear,
    output: Linear,
}

impl Forecaster {
    fn init(precision: Precision, device: &Device) -> Self {
        let stream = |index| Stream::new(1337, "weights").substream(index);
        let lstm = |index, input, hidden| {
            let lstm = LstmConfig::new(input, hidden).init(stream(index), device);
            lstm.in_precision(precision)
        };
        Self {
            lower: lstm(0, 1, 128),
            upper: lstm(1, 128, 64),
            hidden: init_linear(stream(2), 64 + 12, 32, device),
            output: init_linear(stream(3), 32, 3, device),
        }
    }
}

/// Three values of a later step from a sequence and static features, all cut out of the noise as
/// the peer cuts them.
struct Forecasting;

impl Objective<Forecaster> for Forecasting {
    fn loss(&self, model: &Forecaster, batch: &Batch, streams: Streams) -> Loss {
        let [samples, _, _] = batch.inputs.dims();
        let precision = model.lower.precision();
        let part = |steps: Range<usize>, channels: Range<usize>| {
            batch.inputs.clone().slice([0..samples, steps, channels])
        };
        let (below, _) = model.lower.forward(part(0..24, 0..1), None, None, None);
        let (_, last) = model.upper.forward(below, None, None, None);
        let static_features = part(24..36, 1..2).reshape([samples, 12]);
        let features = Tensor::cat(vec![last.hidden.reshape([samples, 64]), static_features], 1);
        let hidden =
            relu_dropout(linear_in(precision, features, &model.hidden), 0.2, streams.dropout);
        let error =
            linear_in(precision, hidden, &model.output) - part(40..41, 0..3).reshape([samples, 3]);
        Loss { value: error.square().mean(), weight: 3.0 * samples as f64, parts: vec![] }
    }
}
