//! Parity of the forecaster with PyTorch: forecasts, losses, every gradient and the encoding, on a
//! golden file that `golden_forecaster.py` wrote in float64 with all dropout draws.

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use firebox_core::Stream;
use firebox_kernels::{huber, squared_error};
use firebox_models::{Encoder, StackedLstmConfig, write_parameters};

use crate::support::{Golden, check, check_gradients, values};

fn tensor<const D: usize>(golden: &Golden, name: &str) -> Tensor<D> {
    let found = golden.floats(name);
    let shape: [usize; D] = found.shape.try_into().unwrap();
    Tensor::from_data(TensorData::new(found.values, shape), &Device::default())
}

#[test]
fn the_forecaster_is_pytorchs() {
    let golden = Golden::read("stacked-lstm");
    let device = Device::default();
    let size = |name: &str, axis: usize| golden.floats(&format!("param.{name}")).shape[axis];
    let config = StackedLstmConfig {
        hidden_1: size("layers.0.weight_hh_l0", 1),
        hidden_2: size("layers.1.weight_hh_l0", 1),
        dense: size("dense.weight", 0),
        dropout: 0.2,
    };
    let statics: Tensor<2> = tensor(&golden, "statics");
    let inputs: Tensor<3> = tensor(&golden, "inputs");
    let [_, _, channels] = inputs.dims();
    let [_, width] = statics.dims();
    let stream = Stream::new(1, "other");
    let outputs = size("output.weight", 0);
    let mut model = config.init(stream, channels, width, outputs, &device).unwrap();
    write_parameters(&mut model, golden.all("param.")).unwrap();
    let lengths: Vec<usize> = golden.integers("lengths").into_iter().map(|l| l as usize).collect();

    let model = model.train();
    let dropout = Some(Stream::new(7, "dropout").substream(3));
    let forecast = model.forecast(inputs.clone(), Some(&lengths), Some(statics.clone()), dropout);
    check("forecasts in training", &values(forecast.clone()), &golden.floats("forecast").values);
    let targets = || tensor::<2>(&golden, "targets");
    let losses = golden.floats("losses").values;
    let loss = squared_error(forecast.clone(), targets(), None).unwrap();
    check("squared error", &values(loss.value.clone()), &losses[..1]);
    check_gradients(&model, &loss.value.backward(), &golden);
    let absolute = (forecast.clone() - targets()).abs().mean();
    check("absolute error", &values(absolute), &losses[1..2]);
    let huber = huber(forecast, targets(), None, 0.7).unwrap();
    check("Huber's error", &values(huber.value), &losses[2..]);

    let model = model.valid();
    let evaluated = model.forecast(inputs.clone(), Some(&lengths), Some(statics), None);
    check("forecasts", &values(evaluated), &golden.floats("evaluated").values);
    let encoded = golden.floats("encoded");
    check("encoding", &values(model.encode(inputs.clone(), Some(&lengths), None)), &encoded.values);
    let [time, hidden] = [encoded.shape[1], encoded.shape[2]];
    let last = lengths.iter().zip(encoded.values.chunks_exact(time * hidden));
    let last: Vec<f32> = last
        .flat_map(|(length, sample)| sample[(length - 1) * hidden..length * hidden].to_vec())
        .collect();
    check("embedding", &values(model.embed(inputs, Some(&lengths))), &last);
}
