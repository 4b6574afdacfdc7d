//! A linear layer with its activation.

use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::tensor::{Device, Tensor, TensorData};
use firebox_core::{Precision, Stream};
use firebox_kernels::{
    Activation, CpuKernels, gelu_dropout, linear_activated, linear_in, relu_dropout,
};

use crate::{bits, error, kernels, noise, on_threads, values, wide};

#[derive(Clone, Copy, Debug)]
struct Case {
    sizes: [usize; 3],
    precision: Precision,
    activation: Activation,
    dropout: f64,
    bias: bool,
}

fn matrix(seed: u64, shape: [usize; 2], device: &Device) -> Tensor<2> {
    Tensor::from_data(TensorData::new(noise(seed, shape[0] * shape[1]), shape), device)
}

fn layer([input, output]: [usize; 2], bias: bool, device: &Device) -> Linear {
    let vector = matrix(2, [1, output], device).squeeze_dim::<1>(0);
    let weight = Param::from_tensor(matrix(1, [input, output], device));
    Linear { weight, bias: bias.then(|| Param::from_tensor(vector)) }
}

type Apply = fn(Tensor<2>, &Linear, &Case) -> Tensor<2>;

fn whole(x: Tensor<2>, layer: &Linear, case: &Case) -> Tensor<2> {
    let Case { precision, activation, dropout, .. } = *case;
    linear_activated(precision, x, layer, activation, dropout, Some(Stream::new(4, "dropped")))
}

fn parts(x: Tensor<2>, layer: &Linear, case: &Case) -> Tensor<2> {
    let stream = Some(Stream::new(4, "dropped"));
    let y = linear_in(case.precision, x, layer);
    match case.activation {
        Activation::Gelu => gelu_dropout(y, case.dropout, stream),
        Activation::Relu => relu_dropout(y, case.dropout, stream),
    }
}

/// The result, and the gradients of input, weight and bias.
fn run(apply: Apply, case: &Case) -> Vec<Vec<u32>> {
    let device = Device::flex().autodiff();
    let [rows, input, output] = case.sizes;
    let layer = layer([input, output], case.bias, &device);
    let x = matrix(0, [rows, input], &device).require_grad();
    let y = apply(x.clone(), &layer, case);
    let grads = (y.clone() * matrix(3, [rows, output], &device)).sum().backward();
    let bias = layer.bias.as_ref().map(|bias| bias.val().grad(&grads).expect("a bias"));
    let plain = apply(x.clone().inner(), &layer.clone().valid(), case);
    assert_eq!(bits(plain), bits(y.clone()), "with and without a graph: {case:?}");
    vec![
        bits(y),
        bits(x.grad(&grads).expect("x")),
        bits(layer.weight.val().grad(&grads).expect("a weight")),
        bias.map_or(vec![], bits),
    ]
}

fn cases() -> Vec<Case> {
    let mut cases = vec![];
    for sizes in [[1, 1, 1], [3, 5, 2], [40, 33, 36], [0, 4, 8], [420, 20, 68], [30, 150, 7]] {
        for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
            for activation in [Activation::Gelu, Activation::Relu] {
                for (dropout, bias) in [(0.0, true), (0.3, true), (0.0, false)] {
                    cases.push(Case { sizes, precision, activation, dropout, bias });
                }
            }
        }
    }
    cases
}

#[test]
fn is_the_operations_one_by_one_to_the_bit() {
    for case in cases() {
        for kernels in kernels() {
            let [ours, apart] =
                [whole as Apply, parts].map(|apply| kernels.force(|| run(apply, &case)));
            assert!(ours == apart, "{kernels:?} {case:?}");
        }
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    for activation in [Activation::Gelu, Activation::Relu] {
        for precision in [Precision::F32, Precision::Bf16] {
            let case =
                Case { sizes: [501, 40, 132], precision, activation, dropout: 0.2, bias: true };
            for kernels in kernels().into_iter().filter(|one| *one != CpuKernels::Composed) {
                let [one, two, three] = [1, 2, 3]
                    .map(|threads| on_threads(threads, || kernels.force(|| run(whole, &case))));
                assert!(one == two && one == three, "{kernels:?} {case:?}");
            }
        }
    }
}

/// `x · Φ(x)` with the density integrated by Simpson's rule.
fn gelu(x: f64) -> f64 {
    let density = |x: f64| (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
    let weight = |n: usize| match n {
        0 | 600 => 1.0,
        _ if n % 2 == 1 => 4.0,
        _ => 2.0,
    };
    let step = x / 600.0;
    x * (0.5 + (0..=600).map(|n| weight(n) * density(n as f64 * step)).sum::<f64>() * step / 3.0)
}

/// Central differences in float64, of the formula written down again.
#[test]
fn results_and_gradients_are_those_of_float64() {
    let [rows, input, output] = [7, 9, 8];
    let keep: Vec<f64> = {
        let mut draws = Stream::new(4, "dropped").draws();
        (0..rows * output).map(|_| if draws.uniform() >= 0.3 { 1.0 / 0.7 } else { 0.0 }).collect()
    };
    let numbers = [(0, rows * input), (1, input * output), (2, output), (3, rows * output)];
    let [x, weight, bias, d] =
        numbers.map(|(seed, count)| wide(&noise(seed, count), Precision::F32));
    for activation in [Activation::Gelu, Activation::Relu] {
        let bend = |x: f64| if activation == Activation::Gelu { gelu(x) } else { x.max(0.0) };
        let result = |x: &[f64], weight: &[f64], bias: &[f64]| -> Vec<f64> {
            let at = |at: usize| {
                let (row, column) = (at / output, at % output);
                let products = (0..input).map(|k| x[row * input + k] * weight[k * output + column]);
                keep[at] * bend(bias[column] + products.sum::<f64>())
            };
            (0..rows * output).map(at).collect()
        };
        let sum = |operands: &[Vec<f64>; 3]| -> f64 {
            let y = result(&operands[0], &operands[1], &operands[2]);
            y.iter().zip(&d).map(|(y, d)| y * d).sum()
        };
        let operands = [x.clone(), weight.clone(), bias.clone()];
        let mut exact = vec![result(&x, &weight, &bias)];
        for part in 0..3 {
            let difference = |at: usize| {
                let moved = |by: f64| {
                    let mut operands = operands.clone();
                    operands[part][at] += by;
                    sum(&operands)
                };
                (moved(1e-5) - moved(-1e-5)) / 2e-5
            };
            exact.push((0..operands[part].len()).map(difference).collect());
        }
        let case = Case {
            sizes: [rows, input, output],
            precision: Precision::F32,
            activation,
            dropout: 0.3,
            bias: true,
        };
        for kernels in kernels() {
            let found = kernels.force(|| run(whole, &case));
            for (part, (found, exact)) in found.iter().zip(&exact).enumerate() {
                let found: Vec<f32> = found.iter().map(|bits| f32::from_bits(*bits)).collect();
                let error = error(&found, exact);
                assert!(error < 5e-6, "{kernels:?} {activation:?}, part {part}: {error:e}");
            }
        }
    }
}

#[test]
fn gradients_that_nobody_wants_are_not_made() {
    let device = Device::flex().autodiff();
    let layer = layer([8, 12], true, &device).no_grad();
    let x = matrix(0, [6, 8], &device);
    for kernels in kernels() {
        let y = kernels.force(|| {
            let wanted = x.clone().require_grad();
            let y = linear_activated(
                Precision::F32,
                wanted.clone(),
                &layer,
                Activation::Relu,
                0.0,
                None,
            );
            let grads = y.clone().sum().backward();
            assert!(wanted.grad(&grads).is_some() && layer.weight.val().grad(&grads).is_none());
            y
        });
        assert!(values(y).iter().all(|y| *y >= 0.0));
    }
}
