//! Linear layers with what follows them, layer normalisation and GELU against golden files that `golden_dense.py` wrote
//! with PyTorch.

use burn::module::Param;
use burn::nn::Linear;
use burn::tensor::{Device, Gradients};
use firebox_core::Precision;
use firebox_kernels::{
    Activation, CpuKernels, FeedForward, feed_forward_add, gelu, layer_norm, linear, linear_add,
    linear_in,
};

use crate::run::numbers;
use crate::{Golden, gradient};

fn layer(golden: &Golden, name: &str, device: &Device) -> Linear {
    Linear {
        weight: Param::from_tensor(golden.tensor(&format!("{name}.weight"), device)),
        bias: Some(Param::from_tensor(golden.tensor(&format!("{name}.bias"), device))),
    }
}

/// Checks the gradients of a layer.
#[track_caller]
fn check(golden: &Golden, case: &str, name: &str, layer: &Linear, all: &Gradients) {
    let weight = gradient(&layer.weight.val(), all);
    golden.check(&format!("{case}.grad.{name}.weight"), weight);
    let bias = gradient(&layer.bias.as_ref().expect("a bias").val(), all);
    golden.check(&format!("{case}.grad.{name}.bias"), bias);
}

#[test]
fn linear_layers_and_what_follows_them_agree_with_pytorch() {
    let device = Device::flex().autodiff();
    let golden = Golden::read("linear");
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            let leaf = |name: &str| golden.tensor::<2>(name, &device).require_grad();
            let (x, first) = (leaf("x"), layer(&golden, "first", &device));
            let y = linear(x.clone(), &first);
            golden.check("linear.result", y.clone());
            let all = (y * golden.tensor("d.between", &device)).sum().backward();
            golden.check("linear.grad.x", gradient(&x, &all));
            check(&golden, "linear", "first", &first, &all);

            let (residual, between) = (leaf("residual"), leaf("between"));
            let second = layer(&golden, "second", &device);
            let precision = Precision::F32;
            let y = linear_add(precision, residual.clone(), between.clone(), &second, 0.0, None);
            golden.check("add.result", y.clone());
            let all = (y * golden.tensor("d", &device)).sum().backward();
            golden.check("add.grad.residual", gradient(&residual, &all));
            golden.check("add.grad.between", gradient(&between, &all));
            check(&golden, "add", "second", &second, &all);

            for (case, activation) in [("gelu", Activation::Gelu), ("relu", Activation::Relu)] {
                let (residual, x) = (leaf("residual"), leaf("x"));
                let [first, second] = ["first", "second"].map(|name| layer(&golden, name, &device));
                let network = FeedForward {
                    precision,
                    first: &first,
                    activation,
                    second: &second,
                    dropout: 0.0,
                    streams: [None; 2],
                };
                let y = feed_forward_add(residual.clone(), x.clone(), &network);
                golden.check(&format!("{case}.result"), y.clone());
                let all = (y * golden.tensor("d", &device)).sum().backward();
                golden.check(&format!("{case}.grad.residual"), gradient(&residual, &all));
                golden.check(&format!("{case}.grad.x"), gradient(&x, &all));
                check(&golden, case, "first", &first, &all);
                check(&golden, case, "second", &second, &all);
            }
        });
    }
}

#[test]
fn in_bf16_a_linear_layer_errs_no_more_than_pytorchs() {
    let device = Device::flex().autodiff();
    let golden = Golden::read("linear");
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            let x = golden.tensor::<2>("x", &device).require_grad();
            let first = layer(&golden, "first", &device);
            let y = linear_in(Precision::Bf16, x.clone(), &first);
            let all = (y.clone() * golden.tensor("d.between", &device)).sum().backward();
            let weight = gradient(&first.weight.val(), &all);
            let bias = gradient(&first.bias.as_ref().expect("a bias").val(), &all);
            for (name, error) in [
                ("result", golden.error("linear.result", y)),
                ("grad.x", golden.error("linear.grad.x", gradient(&x, &all))),
                ("grad.first.weight", golden.error("linear.grad.first.weight", weight)),
                ("grad.first.bias", golden.error("linear.grad.first.bias", bias)),
            ] {
                let theirs = golden.bf16[name].as_f64().expect("a number");
                let fits = theirs > 0.0 && error <= 1.5 * theirs;
                assert!(fits, "{kernels:?} {name}: {error:.1e} {theirs:.1e}");
            }
        });
    }
}

#[test]
fn layer_normalisation_agrees_with_pytorch_row_by_row() {
    let device = Device::flex().autodiff();
    let golden = Golden::read("layer-norm");
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            let x = golden.tensor::<2>("input", &device).require_grad();
            let [scale, shift] =
                ["scale", "shift"].map(|name| golden.tensor::<1>(name, &device).require_grad());
            let y = layer_norm(x.clone(), scale.clone(), Some(shift.clone()), 1e-5);
            let all = (y.clone() * golden.tensor("d", &device)).sum().backward();
            golden.check("grad.scale", gradient(&scale, &all));
            golden.check("grad.shift", gradient(&shift, &all));
            // Rows differ by five orders of magnitude: the largest would hide the others.
            for (name, found) in [("result", y), ("grad.input", gradient(&x, &all))] {
                let [_, width] = found.dims();
                let found = numbers(found);
                let rows = found.chunks(width).zip(golden.tensors[name].1.chunks(width));
                for (row, (found, exact)) in rows.enumerate() {
                    let pairs =
                        || found.iter().zip(exact).map(|(a, b)| (f64::from(*a), f64::from(*b)));
                    let error: f64 = pairs().map(|(a, b)| (a - b).powi(2)).sum();
                    let norm: f64 = pairs().map(|(_, b)| b * b).sum();
                    let error = (error / norm).sqrt();
                    assert!(error < 1e-5, "{kernels:?}, {name}, row {row}: {error:.1e}");
                }
            }
        });
    }
}

#[test]
fn gelu_agrees_with_pytorch_number_by_number() {
    let device = Device::flex().autodiff();
    let golden = Golden::read("gelu");
    let wide =
        |name: &str| golden.tensors[name].1.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
    let (x, d, y, dx) = (wide("input"), wide("d"), wide("result"), wide("grad.input"));
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            let leaf = golden.tensor::<2>("input", &device).require_grad();
            let found = gelu(leaf.clone());
            let all = (found.clone() * golden.tensor("d", &device)).sum().backward();
            let (found, slopes) = (numbers(found), numbers(gradient(&leaf, &all)));
            for at in 0..x.len() {
                // What is promised of the kernels; Burn's own is less exact.
                let [bound, of_slope] = match kernels {
                    CpuKernels::Composed => [2e-6 * x[at].abs().max(1.0), 2e-6],
                    _ => [4e-7 * x[at].abs(), 1e-6],
                };
                let error = (f64::from(found[at]) - y[at]).abs();
                assert!(error <= bound, "{kernels:?} at {}: {error:.1e}", x[at]);
                let error = (f64::from(slopes[at]) - dx[at]).abs();
                assert!(
                    error <= of_slope * d[at].abs().max(1e-2),
                    "{kernels:?} at {}: {error:.1e}",
                    x[at]
                );
            }
        });
    }
}
