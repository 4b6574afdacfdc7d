//! Gradients against central differences of a forward pass in float64 that is written from the formula.

use burn::module::{Param, ParamId};
use burn::nn::Embedding;
use burn::tensor::{Device, Int, Tensor, TensorData};
use firebox_core::Precision;
use firebox_kernels::{
    Activation, CpuKernels, FeedForward, embedding, feed_forward_add, gelu, layer_norm, linear,
    linear_add,
};

use crate::as_f64;
use crate::run::{Operation, layer, noise, run};

/// The same operation in float64.
type Forward<'a> = &'a dyn Fn(&[Vec<f64>]) -> Vec<f64>;

const STEP: f64 = 1e-5;

fn loss(forward: Forward<'_>, leaves: &[Vec<f64>], d: &[f64]) -> f64 {
    forward(leaves).iter().zip(d).map(|(y, d)| y * d).sum()
}

/// Result and gradients of an operation whose leaves have so many numbers, in every variant.
#[track_caller]
fn check(name: &str, operation: Operation<'_>, forward: Forward<'_>, counts: &[usize]) {
    let leaves: Vec<Vec<f32>> =
        (0..).zip(counts).map(|(seed, count)| noise(seed, *count)).collect();
    let wide: Vec<Vec<f64>> = leaves.iter().map(|leaf| as_f64(leaf)).collect();
    let mut expected = vec![forward(&wide)];
    let d = noise(99, expected[0].len());
    for part in 0..wide.len() {
        let slope = |at: usize| {
            let moved = |by: f64| {
                let mut moved = wide.clone();
                moved[part][at] += by;
                loss(forward, &moved, &as_f64(&d))
            };
            (moved(STEP) - moved(-STEP)) / (2.0 * STEP)
        };
        expected.push((0..wide[part].len()).map(slope).collect());
    }
    for kernels in CpuKernels::available() {
        let found = kernels.force(|| run(operation, &leaves, &d));
        for (part, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found.len(), expected.len(), "{name}");
            let pairs = found.iter().zip(expected).map(|(f, e)| (f64::from(*f) - e).powi(2));
            let norm: f64 = expected.iter().map(|e| e * e).sum();
            let error = (pairs.sum::<f64>() / norm).sqrt();
            assert!(error < 1e-5, "{kernels:?}, {name}, part {part}: {error:.1e}");
        }
    }
}

/// `x · weight + bias`, `[rows, input] · [input, output]`.
fn times(x: &[f64], weight: &[f64], bias: &[f64]) -> Vec<f64> {
    let output = bias.len();
    let input = weight.len() / output;
    let at = |at: usize| {
        let row = &x[at / output * input..][..input];
        let products = row.iter().enumerate().map(|(i, x)| x * weight[i * output + at % output]);
        bias[at % output] + products.sum::<f64>()
    };
    (0..x.len() / input * output).map(at).collect()
}

fn sum(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// x · Φ(x), with the density integrated from zero by Simpson's rule.
fn bent(x: f64) -> f64 {
    let density = |x: f64| (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
    let step = x / 400.0;
    let weight = |n: usize| match n {
        0 | 400 => 1.0,
        _ if n % 2 == 1 => 4.0,
        _ => 2.0,
    };
    let integral = (0..=400).map(|n| weight(n) * density(n as f64 * step)).sum::<f64>();
    x * (0.5 + integral * step / 3.0)
}

#[test]
fn of_layer_normalisation() {
    for [rows, width] in [[4, 7], [3, 19], [2, 32]] {
        let operation = |leaves: &[Tensor<1>]| {
            let [x, gamma, beta] = [0, 1, 2].map(|at| leaves[at].clone());
            let x = x.reshape([rows, width]);
            layer_norm(x, gamma, Some(beta), 1e-5).reshape([rows * width])
        };
        let forward = |leaves: &[Vec<f64>]| -> Vec<f64> {
            let row = |x: &[f64]| -> Vec<f64> {
                let mean = x.iter().sum::<f64>() / width as f64;
                let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
                let one = |(at, x): (usize, &f64)| {
                    (x - mean) / (variance + 1e-5).sqrt() * leaves[1][at] + leaves[2][at]
                };
                x.iter().enumerate().map(one).collect()
            };
            leaves[0].chunks(width).flat_map(row).collect()
        };
        check("layer normalisation", &operation, &forward, &[rows * width, width, width]);
    }
}

#[test]
fn of_gelu() {
    let operation = |leaves: &[Tensor<1>]| gelu(leaves[0].clone());
    let forward =
        |leaves: &[Vec<f64>]| -> Vec<f64> { leaves[0].iter().map(|x| bent(*x)).collect() };
    check("GELU", &operation, &forward, &[53]);
}

#[test]
fn of_linear_layers() {
    for [rows, input, output] in [[3, 5, 2], [6, 7, 19]] {
        let sizes = [rows * input, input * output, output];
        // The square makes the gradient of the result differ from `d`.
        let operation = |leaves: &[Tensor<1>]| {
            let layer = layer([&leaves[1], &leaves[2]], [input, output]);
            let y = linear(leaves[0].clone().reshape([rows, input]), &layer);
            (y.clone() * y).reshape([rows * output])
        };
        let forward = |leaves: &[Vec<f64>]| -> Vec<f64> {
            times(&leaves[0], &leaves[1], &leaves[2]).iter().map(|y| y * y).collect()
        };
        check("linear", &operation, &forward, &sizes);

        let operation = |leaves: &[Tensor<1>]| {
            let layer = layer([&leaves[1], &leaves[2]], [input, output]);
            let x = leaves[0].clone().reshape([rows, input]);
            let residual = leaves[3].clone().reshape([rows, output]);
            let y = linear_add(Precision::F32, residual, x, &layer, 0.0, None);
            (y.clone() * y).reshape([rows * output])
        };
        let forward = |leaves: &[Vec<f64>]| -> Vec<f64> {
            let y = sum(&leaves[3], &times(&leaves[0], &leaves[1], &leaves[2]));
            y.iter().map(|y| y * y).collect()
        };
        check(
            "linear and residual sum",
            &operation,
            &forward,
            &[&sizes[..], &[rows * output]].concat(),
        );
    }
}

#[test]
fn of_feed_forward_networks() {
    let [rows, width, between] = [3, 6, 11];
    let operation = |leaves: &[Tensor<1>]| {
        let [residual, x] = [0, 1].map(|at| leaves[at].clone().reshape([rows, width]));
        let first = layer([&leaves[2], &leaves[3]], [width, between]);
        let second = layer([&leaves[4], &leaves[5]], [between, width]);
        let network = FeedForward {
            precision: Precision::F32,
            first: &first,
            activation: Activation::Gelu,
            second: &second,
            dropout: 0.0,
            streams: [None; 2],
        };
        feed_forward_add(residual, x, &network).reshape([rows * width])
    };
    let forward = |leaves: &[Vec<f64>]| -> Vec<f64> {
        let between = times(&leaves[1], &leaves[2], &leaves[3]);
        let between: Vec<f64> = between.iter().map(|x| bent(*x)).collect();
        sum(&leaves[0], &times(&between, &leaves[4], &leaves[5]))
    };
    let (outer, inner) = (rows * width, width * between);
    check(
        "feed-forward network",
        &operation,
        &forward,
        &[outer, outer, inner, between, inner, width],
    );
}

#[test]
fn of_embeddings() {
    let (rows, width, places) = (7, 5, [3_i64, 0, 6, 3, 3, 1, 0, 6]);
    let operation = |leaves: &[Tensor<1>]| {
        let table = leaves[0].clone().reshape([rows, width]);
        let layer = Embedding { weight: Param::initialized(ParamId::new(), table) };
        let indices = TensorData::new(places.to_vec(), [2, 4]);
        let indices = Tensor::<2, Int>::from_data(indices, &Device::flex());
        let y = embedding(&layer, indices, None);
        (y.clone() * y).reshape([places.len() * width])
    };
    let forward = |leaves: &[Vec<f64>]| -> Vec<f64> {
        let row = |place: &i64| leaves[0][*place as usize * width..][..width].to_vec();
        places.iter().flat_map(row).map(|y| y * y).collect()
    };
    check("embedding", &operation, &forward, &[rows * width]);
}
