//! Products whose arithmetic is named: f32 beside float64, in every layer that multiplies.

use burn::module::Param;
use burn::nn::Linear;
use burn::nn::conv::Conv1dConfig;
use burn::tensor::{DType, Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{
    F32Products, GpuKernels, LaunchWatch, NoF32Products, conv1d, linear, product,
};

use super::alone;
use super::support::case::{float, noise, values};

/// The product of matrices in float64 and, by the same, its gradients for a gradient of its own.
fn multiplied(left: &[f64], right: &[f64], [rows, inner, columns]: [usize; 3]) -> Vec<f64> {
    let mut out = vec![0.0; rows * columns];
    for row in 0..rows {
        for at in 0..inner {
            for column in 0..columns {
                out[row * columns + column] +=
                    left[row * inner + at] * right[at * columns + column];
            }
        }
    }
    out
}

fn turned(x: &[f64], [rows, columns]: [usize; 2]) -> Vec<f64> {
    (0..rows * columns).map(|at| x[at % rows * columns + at / rows]).collect()
}

/// Numbers as a tensor of f32 holds them.
fn drawn(seed: u64, count: usize) -> Vec<f64> {
    let numbers = noise(Stream::new(seed, "product"), count, 1.0);
    numbers.into_iter().map(|x| f64::from(x as f32)).collect()
}

fn error(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let square = |of: &dyn Fn(usize) -> f64| (0..found.len()).map(|at| of(at).powi(2)).sum::<f64>();
    (square(&|at| found[at] - expected[at]) / square(&|at| expected[at])).sqrt()
}

/// Compares a product and its gradients with float64: `[rows, inner]` by `[inner, columns]`, for a gradient `d` of its own.
fn agree(
    what: &str,
    [rows, inner, columns]: [usize; 3],
    [left, right, d]: [&[f64]; 3],
    found: &[Vec<f64>; 3],
    bound: f64,
) {
    let expected = [
        multiplied(left, right, [rows, inner, columns]),
        multiplied(d, &turned(right, [inner, columns]), [rows, columns, inner]),
        multiplied(&turned(left, [rows, inner]), d, [inner, rows, columns]),
    ];
    for (name, (found, expected)) in
        ["product", "left", "right"].iter().zip(found.iter().zip(&expected))
    {
        let error = error(found, expected);
        assert!(error < bound, "{what}: {name} of {rows} {inner} {columns}: {error:.1e}");
    }
}

#[test]
fn products_of_f32_are_f32_forward_and_back() {
    alone(|device| {
        let sizes = [
            [1, 1, 1],
            [1, 7, 5],
            [5, 7, 1],
            [33, 105, 17],
            [64, 64, 64],
            [128, 4, 512],
            [3, 1000, 2],
            [257, 65, 129],
        ];
        for [rows, inner, columns] in sizes {
            let (left, right) = (drawn(1, rows * inner), drawn(2, inner * columns));
            let d = drawn(3, rows * columns);
            let autodiff = device.clone().autodiff();
            let tracked = |x: &[f64], shape| float::<2>(x, shape, &autodiff).require_grad();
            let (a, b) = (tracked(&left, [rows, inner]), tracked(&right, [inner, columns]));
            let out = F32Products::Exact.during(|| product(Precision::F32, a.clone(), b.clone()));
            // Gradients are made as the product was, wherever they are asked for.
            let weighted = out.clone() * float::<2>(&d, [rows, columns], &autodiff);
            let grads = weighted.sum().backward();
            let found = [
                values(out.inner()),
                values(a.grad(&grads).expect("a gradient")),
                values(b.grad(&grads).expect("a gradient")),
            ];
            let drawn = [&left, &right, &d].map(Vec::as_slice);
            agree("f32", [rows, inner, columns], drawn, &found, 1e-6);
        }
    });
}

/// Halves are multiplied on tensor cores and summed in f32; results and gradients are rounded once.
#[test]
fn products_of_halves_are_summed_in_f32_forward_and_back() {
    alone(|device| {
        let bounds = [(DType::F16, 1e-3), (DType::BF16, 8e-3)];
        for (dtype, bound) in bounds {
            if GpuKernels::of_layer(&device, dtype, 1, 1, 1).is_err() {
                println!("skipped: this device does not store {dtype:?}");
                continue;
            }
            let sizes = [
                [1, 7, 5],
                [33, 105, 17],
                [512, 420, 128],
                [4096, 64, 40],
                [1600, 3, 700],
                [2048, 256, 512],
                [520, 1030, 2100],
            ];
            for [rows, inner, columns] in sizes {
                let (left, right) = (drawn(11, rows * inner), drawn(12, inner * columns));
                let d = drawn(13, rows * columns);
                let autodiff = device.clone().autodiff();
                let half = |x: &[f64], shape| float::<2>(x, shape, &autodiff).cast(dtype).detach();
                let (a, b) = (half(&left, [rows, inner]), half(&right, [inner, columns]));
                let d = half(&d, [rows, columns]);
                let exact = |x: &Tensor<2>| values(x.clone().inner().cast(DType::F32));
                let (left, right, d_out) = (exact(&a), exact(&b), exact(&d));
                let (a, b) = (a.require_grad(), b.require_grad());
                let out = product(Precision::F32, a.clone(), b.clone());
                let grads = (out.clone() * d).sum().backward();
                let of =
                    |x: &Tensor<2>| values(x.grad(&grads).expect("a gradient").cast(DType::F32));
                let found = [values(out.inner().cast(DType::F32)), of(&a), of(&b)];
                let rounded = [&left, &right, &d_out].map(Vec::as_slice);
                agree(&format!("{dtype:?}"), [rows, inner, columns], rounded, &found, bound);
            }
        }
    });
}

/// A bias for each matrix, in few rows and in many, and what broadcasting a weight adds up.
#[test]
fn biases_and_their_sums_agree_with_float64() {
    alone(|device| {
        for [rows, inner, columns] in [[1, 3, 5], [40, 8, 33], [5000, 4, 300], [7, 6, 2000]] {
            let run = |device: &Device| {
                let device = device.clone().autodiff();
                let layer = Linear {
                    weight: Param::from_tensor(float::<2>(
                        &drawn(1, inner * columns),
                        [inner, columns],
                        &device,
                    )),
                    bias: Some(Param::from_tensor(float::<1>(
                        &drawn(2, columns),
                        [columns],
                        &device,
                    ))),
                };
                let x = float::<2>(&drawn(3, rows * inner), [rows, inner], &device);
                let out = F32Products::Exact.during(|| linear(x, &layer));
                let grads = out.clone().square().sum().backward();
                let bias = layer.bias.as_ref().expect("a bias").val();
                [values(out.inner()), values(bias.grad(&grads).expect("a gradient"))]
            };
            for (found, expected) in run(&device).iter().zip(&run(&Device::flex())) {
                let error = error(found, expected);
                assert!(error < 2e-6, "{rows} {inner} {columns}: {error:.1e}");
            }
        }
    });
}

#[test]
fn other_axes_are_broadcast_and_their_gradients_summed() {
    alone(|device| {
        let (left, right) = (drawn(4, 3 * 5 * 4), drawn(5, 2 * 4 * 7));
        let run = |device: &Device, way: F32Products| {
            let device = device.clone().autodiff();
            let a = float::<4>(&left, [1, 3, 5, 4], &device).require_grad();
            let b = float::<4>(&right, [2, 1, 4, 7], &device).require_grad();
            let out = way.during(|| product(Precision::F32, a.clone(), b.clone()));
            assert_eq!(out.dims(), [2, 3, 5, 7]);
            let grads = out.clone().square().sum().backward();
            let of = |x: &Tensor<4>| values(x.grad(&grads).expect("a gradient"));
            [values(out.inner()), of(&a), of(&b)]
        };
        let expected = run(&Device::flex(), F32Products::Tuned);
        for (found, expected) in run(&device, F32Products::Exact).iter().zip(&expected) {
            let error = error(found, expected);
            assert!(error < 1e-6, "{error:.1e}");
        }
    });
}

#[test]
fn layers_multiply_as_they_are_told_and_come_to_the_same() {
    alone(|device| {
        let run = |device: &Device, way: F32Products| {
            let device = device.clone().autodiff();
            let tensor = |seed, shape: [usize; 2]| {
                float::<2>(&drawn(seed, shape[0] * shape[1]), shape, &device)
            };
            let layer = Linear {
                weight: Param::from_tensor(tensor(1, [6, 9])),
                bias: Some(Param::from_tensor(tensor(2, [1, 9]).reshape([9]))),
            };
            let mut conv = Conv1dConfig::new(9, 4, 3).with_stride(2).with_dilation(2).init(&device);
            conv.weight = Param::from_tensor(tensor(3, [4 * 9, 3]).reshape([4, 9, 3]));
            conv.bias = Some(Param::from_tensor(tensor(4, [1, 4]).reshape([4])));
            let x = tensor(5, [3 * 11, 6]).require_grad();
            let out = way.during(|| {
                let hidden = linear(x.clone(), &layer).reshape([3, 11, 9]);
                conv1d(hidden, &conv, Precision::F32, None)
            });
            let grads = out.clone().square().sum().backward();
            let of = |x: Tensor<2>| values(x.grad(&grads).expect("a gradient"));
            let weight = conv.weight.val().grad(&grads).expect("a gradient");
            [values(out.inner()), of(x), of(layer.weight.val()), values(weight)]
        };
        let expected = run(&Device::flex(), F32Products::Tuned);
        let watch = LaunchWatch::start();
        let found = run(&device, F32Products::Exact);
        let launched = watch.end();
        let named = launched.iter().filter_map(|one| one.work.as_ref());
        // Of both layers, the product and its gradients.
        assert_eq!(named.filter(|work| work.name == "product").count(), 6);
        for (found, expected) in found.iter().zip(&expected) {
            let error = error(found, expected);
            assert!(error < 2e-6, "{error:.1e}");
        }
    });
}

#[test]
fn tf32_is_for_tensor_cores_that_have_it() {
    alone(|device| {
        let check = F32Products::Tf32.check(&device);
        assert_eq!(F32Products::Exact.check(&device), Ok(()));
        let (left, right) = (drawn(6, 64 * 64), drawn(7, 64 * 64));
        let tensors = || [&left, &right].map(|x| float::<2>(x, [64, 64], &device));
        let [a, b] = tensors();
        let found = values(product(Precision::Tf32, a, b));
        let expected = multiplied(&left, &right, [64; 3]);
        let error = error(&found, &expected);
        match check {
            // Ten bits of mantissa: errors of 2^-11 a factor, which are seen.
            Ok(()) => assert!((1e-5..1e-3).contains(&error), "{error:.1e}"),
            Err(NoF32Products::NoTf32 { .. }) => {
                println!("skipped: the device has no TF32");
                assert!(error < 1e-6, "{error:.1e}");
            }
            Err(other) => panic!("{other}"),
        }
        let half = float::<2>(&left, [64, 64], &device).cast(DType::F16);
        let product = F32Products::Exact.during(|| product(Precision::F16, half.clone(), half));
        assert_eq!(product.dtype(), DType::F16);
    });
}
