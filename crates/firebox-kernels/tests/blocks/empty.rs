//! Where nothing goes in, nothing comes out, and what it would have been made with has zeros for its gradient.

use burn::module::Param;
use burn::nn::Linear;
use burn::tensor::{Device, Gradients, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{
    Activation, CpuKernels, FeedForward, dropout_add, feed_forward_add, gelu_dropout, layer_norm,
    linear_add, linear_in,
};

use crate::gradient;
use crate::run::numbers;

const PRECISIONS: [Precision; 3] = [Precision::F32, Precision::Bf16, Precision::F16];

fn device() -> Device {
    Device::flex().autodiff()
}

fn leaf<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::ones(shape, &device()).require_grad()
}

fn layer(input: usize, output: usize) -> Linear {
    Linear {
        weight: Param::from_tensor(Tensor::ones([input, output], &device())),
        bias: Some(Param::from_tensor(Tensor::full([output], 0.5, &device()))),
    }
}

/// A gradient has the shape of its tensor, and every number of it is this.
#[track_caller]
fn is<const D: usize>(number: f32, tensor: &Tensor<D>, all: &Gradients) {
    let found = gradient(tensor, all);
    assert_eq!(found.dims(), tensor.dims());
    assert!(numbers(found).iter().all(|d| *d == number));
}

#[track_caller]
fn of_layer(layer: &Linear, bias: f32, all: &Gradients) {
    is(0.0, &layer.weight.val(), all);
    is(bias, &layer.bias.as_ref().expect("a bias").val(), all);
}

#[test]
fn linear_layers() {
    for kernels in CpuKernels::available() {
        for precision in PRECISIONS {
            kernels.force(|| {
                // Without rows there is no result, without inputs it is the bias.
                for [rows, input, output] in [[0, 4, 3], [3, 0, 2]] {
                    let (x, layer) = (leaf([rows, input]), layer(input, output));
                    let y = linear_in(precision, x.clone(), &layer);
                    assert_eq!(y.dims(), [rows, output]);
                    assert_eq!(numbers(y.clone()), vec![0.5; rows * output]);
                    let plain = Linear { bias: None, ..layer.clone() };
                    let z = linear_in(precision, x.clone(), &plain);
                    assert_eq!(numbers(z), vec![0.0; rows * output], "{kernels:?} {precision}");
                    let all = y.sum().backward();
                    is(0.0, &x, &all);
                    of_layer(&layer, rows as f32, &all);
                }
                let (x, residual, layer) = (leaf([0, 4]), leaf([0, 3]), layer(4, 3));
                let y = linear_add(precision, residual.clone(), x.clone(), &layer, 0.0, None);
                assert_eq!(y.dims(), [0, 3]);
                let all = y.sum().backward();
                is(0.0, &x, &all);
                is(0.0, &residual, &all);
                of_layer(&layer, 0.0, &all);
            });
        }
    }
}

#[test]
fn feed_forward_networks() {
    let streams = [4, 5].map(|seed| Some(Stream::new(seed, "dropout")));
    for kernels in CpuKernels::available() {
        for precision in PRECISIONS {
            for activation in [Activation::Gelu, Activation::Relu] {
                kernels.force(|| {
                    let (first, second) = (layer(4, 8), layer(8, 4));
                    let network = FeedForward {
                        precision,
                        first: &first,
                        activation,
                        second: &second,
                        dropout: 0.3,
                        streams,
                    };
                    let (residual, x) = (leaf([0, 4]), leaf([0, 4]));
                    let y = feed_forward_add(residual.clone(), x.clone(), &network);
                    assert_eq!(y.dims(), [0, 4]);
                    let all = y.sum().backward();
                    is(0.0, &x, &all);
                    is(0.0, &residual, &all);
                    of_layer(&first, 0.0, &all);
                    of_layer(&second, 0.0, &all);
                });
            }
        }
    }
}

#[test]
fn layer_normalisation() {
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            for shape in [[0, 3, 5], [2, 0, 5]] {
                for shifted in [true, false] {
                    let (x, gamma, beta) = (leaf(shape), leaf([5]), leaf([5]));
                    let shift = shifted.then(|| beta.clone());
                    let y = layer_norm(x.clone(), gamma.clone(), shift, 1e-5);
                    assert_eq!(y.dims(), shape);
                    let all = y.sum().backward();
                    is(0.0, &x, &all);
                    is(0.0, &gamma, &all);
                    if shifted {
                        is(0.0, &beta, &all);
                    }
                    let plain = Tensor::<3>::zeros(shape, &Device::flex());
                    let y = layer_norm(plain, Tensor::ones([5], &Device::flex()), None, 1e-5);
                    assert_eq!(y.dims(), shape, "{kernels:?}");
                }
            }
        });
    }
}

#[test]
fn gelu_and_residual_sums() {
    let stream = Some(Stream::new(3, "dropout"));
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            for shape in [[0, 5], [3, 0]] {
                let (x, y) = (leaf(shape), leaf(shape));
                let bent = gelu_dropout(y.clone(), 0.3, stream);
                let sum = dropout_add(x.clone(), bent, 0.2, stream);
                assert_eq!(sum.dims(), shape, "{kernels:?}");
                let all = sum.sum().backward();
                is(0.0, &x, &all);
                is(0.0, &y, &all);
            }
        });
    }
}
