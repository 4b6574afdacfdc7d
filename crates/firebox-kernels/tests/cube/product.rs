//! Products whose arithmetic is named: f32 beside float64, in every layer that multiplies.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use burn::module::Param;
use burn::nn::Linear;
use burn::nn::conv::Conv1dConfig;
use burn::tensor::{DType, Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{
    F32Products, GpuKernels, LaunchWatch, NoF32Products, conv1d, linear, linear_in, product,
    product_kernels, with_product_kernel,
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

/// Which kernels are tiles.
fn tiles() -> Vec<usize> {
    let names = product_kernels();
    (0..names.len()).filter(|index| names[*index].starts_with("tile")).collect()
}

/// A matrix that lies in its rows or in its columns.
fn lying<const D: usize>(x: Tensor<D>, turned: bool) -> Tensor<D> {
    if !turned {
        return x;
    }
    // Copied while it is turned.
    let [shape, across] = [x.clone(), x.clone().swap_dims(D - 2, D - 1)].map(|x| x.dims());
    let x = x.swap_dims(D - 2, D - 1).reshape([across.iter().product::<usize>()]).reshape(across);
    let x = x.swap_dims(D - 2, D - 1);
    assert_eq!(x.dims(), shape);
    x
}

/// Every tile of a type, of operands that lie in every way, with matrices along two axes, of which one operand has some
/// once: beside float64, and to the bit the same as every other tile. How many times one ran.
fn every_tile(
    device: &Device,
    dtype: DType,
    ([outer, matrices], [rows, inner, columns]): ([usize; 2], [usize; 3]),
    bound: f64,
) -> usize {
    let mut ran = 0;
    for turned in [[false, false], [false, true], [true, false], [true, true]] {
        let half = |seed, shape: [usize; 4]| {
            let drawn = drawn(seed, shape.iter().product());
            float::<4>(&drawn, shape, device).cast(dtype)
        };
        // Of the right operand there is one for all matrices along the first axis.
        let left = half(21, [outer, matrices, rows, inner]);
        let right = half(22, [1, matrices, inner, columns]);
        let [of_left, of_right] = [&left, &right].map(|x| values(x.clone().cast(DType::F32)));
        let expected: Vec<f64> = (0..outer * matrices)
            .flat_map(|at| {
                let (a, b) = (rows * inner, inner * columns);
                let right = at % matrices;
                let sizes = [rows, inner, columns];
                multiplied(&of_left[at * a..][..a], &of_right[right * b..][..b], sizes)
            })
            .collect();
        let mut bits: Option<Vec<f64>> = None;
        for tile in tiles() {
            let [a, b] = [(&left, turned[0]), (&right, turned[1])]
                .map(|(x, turned)| lying(x.clone(), turned));
            let made = || values(product(Precision::F32, a, b).cast(DType::F32));
            let made = || F32Products::Exact.during(|| with_product_kernel(tile, made));
            let found = match catch_unwind(AssertUnwindSafe(made)) {
                Ok(found) => found,
                Err(why) if why.downcast_ref::<String>().is_some_and(|w| w.contains("no tile")) => {
                    println!("skipped: tile {tile} does not fit this device or does not read so");
                    continue;
                }
                Err(why) => resume_unwind(why),
            };
            ran += 1;
            let error = error(&found, &expected);
            let what = format!(
                "{dtype:?}, {tile}, {outer} × {matrices} of {rows} {inner} {columns}, {turned:?}"
            );
            assert!(error < bound, "{what}: {error:.1e}");
            let same = bits.get_or_insert_with(|| found.clone());
            assert!(*same == found, "{what}: other bits");
        }
    }
    ran
}

#[test]
fn tiles_agree_with_float64_and_with_each_other() {
    alone(|device| {
        let mut ran = 0;
        for (dtype, bound) in [(DType::F16, 1e-3), (DType::BF16, 8e-3)] {
            if !GpuKernels::attends_on_tensor_cores(&device, dtype, 16) {
                println!("skipped: no tensor cores for {dtype:?}");
                continue;
            }
            let cases = [
                ([1, 1], [129, 40, 72]),
                ([1, 1], [256, 128, 256]),
                ([2, 3], [19, 35, 33]),
                ([3, 1], [65, 33, 8]),
                ([1, 1], [1, 1, 1]),
            ];
            for case in cases {
                ran += every_tile(&device, dtype, case, bound);
            }
        }
        assert!(ran > 0 || tiles_are_not_to_be_had(&device));
    });
}

/// At edges that they do not fill, and where they do; of the last two cases, those that lie along a multiple of four: of the
/// first the left operand in its rows and the right one in its columns, of the second the other way round.
#[test]
fn tiles_of_f32_agree_with_float64_and_with_each_other() {
    alone(|device| {
        let cases = [
            (([1, 1], [132, 40, 72]), 4),
            (([1, 1], [128, 32, 128]), 4),
            (([2, 3], [20, 36, 68]), 4),
            (([3, 1], [4, 4, 4]), 4),
            (([1, 1], [65, 44, 35]), 1),
            (([2, 1], [200, 7, 12]), 1),
        ];
        let mut tiles = None;
        for (case, layouts) in cases {
            let ran = every_tile(&device, DType::F32, case, 1e-6);
            assert!(ran > 0 && ran.is_multiple_of(layouts), "{case:?}: {ran}");
            // As many in each layout and case.
            assert_eq!(ran / layouts, *tiles.get_or_insert(ran / layouts), "{case:?}");
        }
    });
}

/// Large enough for its kernels to be timed in builds that do, of which the fastest makes it.
#[test]
fn a_large_product_agrees_with_float64_by_whichever_kernel_makes_it() {
    alone(|device| {
        let dtype = DType::F16;
        if !GpuKernels::attends_on_tensor_cores(&device, dtype, 16) {
            println!("skipped: no tensor cores for {dtype:?}");
            return;
        }
        let (rows, inner, columns) = (640, 640, 656);
        let half = |seed, shape: [usize; 2]| {
            float::<2>(&drawn(seed, shape[0] * shape[1]), shape, &device).cast(dtype)
        };
        let (left, right) = (half(41, [rows, inner]), half(42, [inner, columns]));
        let [a, b] = [&left, &right].map(|x| values(x.clone().cast(DType::F32)));
        let expected = multiplied(&a, &b, [rows, inner, columns]);
        for _ in 0..2 {
            let found = product(Precision::F32, left.clone(), right.clone());
            let error = error(&values(found.cast(DType::F32)), &expected);
            assert!(error < 1e-3, "{error:.1e}");
        }
    });
}

fn tiles_are_not_to_be_had(device: &Device) -> bool {
    [DType::F16, DType::BF16]
        .iter()
        .all(|dtype| !GpuKernels::attends_on_tensor_cores(device, *dtype, 16))
}

/// Layers in half precision of tensors in f32: what they multiply is rounded, the result is not; its bias is added in f32.
#[test]
fn layers_in_halves_round_their_operands_alone() {
    alone(|device| {
        for (precision, dtype) in [(Precision::F16, DType::F16), (Precision::Bf16, DType::BF16)] {
            if !GpuKernels::attends_on_tensor_cores(&device, dtype, 16) {
                println!("skipped: no tensor cores for {dtype:?}");
                continue;
            }
            // The last two are not read in vectors, and the second and the last lie across.
            let sizes = [[40, 24, 33], [1100, 16, 64], [41, 7, 33], [33, 9, 5]];
            for (at, [rows, inner, columns]) in sizes.into_iter().enumerate() {
                let lies = |x: Tensor<2>| if at % 2 == 1 { across(x) } else { x };
                let autodiff = device.clone().autodiff();
                let tensor = |seed, shape: [usize; 2]| {
                    float::<2>(&drawn(seed, shape[0] * shape[1]), shape, &autodiff)
                };
                // Rounded here: fusion may take a number to a narrower type and back in one register.
                let round = |x: f64| match dtype {
                    DType::F16 => half::f16::from_f64(x).to_f64(),
                    _ => half::bf16::from_f64(x).to_f64(),
                };
                let narrow = |x: &Tensor<2>| -> Vec<f64> {
                    values(x.clone().inner()).into_iter().map(round).collect()
                };
                let weight = lies(tensor(31, [inner, columns]));
                let bias = tensor(32, [1, columns]);
                let (x, d) = (lies(tensor(33, [rows, inner])), lies(tensor(34, [rows, columns])));
                let [of_x, of_weight, of_d] = [&x, &weight, &d].map(narrow);
                let of_bias = values(bias.clone().inner());
                let layer = Linear {
                    weight: Param::from_tensor(weight),
                    bias: Some(Param::from_tensor(bias.reshape([columns]))),
                };
                let x = x.require_grad();
                let out = linear_in(precision, x.clone(), &layer);
                assert_eq!(out.dtype(), DType::F32);
                let grads = (out.clone() * d.clone()).sum().backward();
                let of = |x: Option<Tensor<2>>| values(x.expect("a gradient"));
                let mut out = values(out.inner());
                for (at, number) in out.iter_mut().enumerate() {
                    *number -= of_bias[at % columns];
                }
                let found = [out, of(x.grad(&grads)), of(layer.weight.val().grad(&grads))];
                let operands = [&of_x, &of_weight, &of_d].map(Vec::as_slice);
                let name = format!("{precision}");
                agree(&name, [rows, inner, columns], operands, &found, 1e-5);
                let bias = layer.bias.as_ref().expect("a bias").val();
                let found = values(bias.grad(&grads).expect("a gradient"));
                let exact = values(d.inner());
                let sums: Vec<f64> = (0..columns)
                    .map(|column| (0..rows).map(|row| exact[row * columns + column]).sum())
                    .collect();
                assert!(error(&found, &sums) < 1e-5, "{precision}: {:?}", error(&found, &sums));
            }
        }
    });
}

/// Sums beyond what f16 holds: whichever kernel makes them, a result in f32 has them.
#[test]
fn sums_of_halves_that_no_half_holds_come_out_whole() {
    alone(|device| {
        if !GpuKernels::attends_on_tensor_cores(&device, DType::F16, 16) {
            println!("skipped: no tensor cores for {:?}", DType::F16);
            return;
        }
        let (rows, inner, columns) = (128, 2048, 128);
        let sixes = |shape: [usize; 2]| Tensor::<2>::full(shape, 6.0, (&device, DType::F32));
        let weight = Param::from_tensor(sixes([inner, columns]));
        let layer = Linear { weight, bias: None };
        let x = sixes([rows, inner]);
        let made = || values(linear_in(Precision::F16, x.clone(), &layer));
        let check = |found: Vec<f64>, what: &str| {
            assert!(found.iter().all(|sum| *sum == 73_728.0), "{what}: {:?}", &found[..4]);
        };
        check(made(), "the one that is taken");
        for (kernel, name) in product_kernels().iter().enumerate() {
            let run = || with_product_kernel(kernel, made);
            match catch_unwind(AssertUnwindSafe(run)) {
                Ok(found) => check(found, name),
                Err(why) => {
                    let told = why.downcast_ref::<String>();
                    let none = ["no tile", "no kernel multiplies"];
                    match told.is_some_and(|told| none.iter().any(|none| told.contains(none))) {
                        true => println!("skipped: {name} does not fit this device"),
                        false => resume_unwind(why),
                    }
                }
            }
        }
    });
}

/// The same numbers, the rows of which lie beside each other.
fn across(x: Tensor<2>) -> Tensor<2> {
    let turned = x.inner().swap_dims(0, 1);
    // Adding nothing to it writes it down.
    Tensor::from_inner((turned + 0.0).swap_dims(0, 1))
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

/// The gradient of the right one of two tensors whose second or first axis it is broadcast along.
fn summed(device: &Device, way: F32Products, left: [usize; 4], right: [usize; 4]) -> Vec<f64> {
    let device = device.clone().autodiff();
    let tensor =
        |seed, shape: [usize; 4]| float::<4>(&drawn(seed, shape.iter().product()), shape, &device);
    let (a, b) = (tensor(6, left), tensor(7, right).require_grad());
    let out = way.during(|| product(Precision::F32, a, b.clone()));
    let grads = out.square().sum().backward();
    values(b.grad(&grads).expect("a gradient"))
}

#[test]
fn sums_of_more_blocks_and_matrices_than_a_launch_has_cubes() {
    alone(|device| {
        // 65,535 cubes are all that some devices have along an axis: of 66,000 matrices, and of 65,536 blocks of 32 columns.
        let cases =
            [([66_000, 2, 1, 4], [66_000, 1, 4, 4]), ([1, 16, 1, 1024], [1, 1, 1024, 2048])];
        for (left, right) in cases {
            let expected = summed(&Device::flex(), F32Products::Tuned, left, right);
            let error = error(&summed(&device, F32Products::Exact, left, right), &expected);
            assert!(error < 1e-5, "{left:?} by {right:?}: {error:.1e}");
        }
    });
}

#[test]
fn a_type_that_the_device_does_not_have_is_refused_by_name() {
    alone(|device| {
        for (dtype, precision) in [(DType::F16, Precision::F16), (DType::BF16, Precision::Bf16)] {
            if GpuKernels::of_layer(&device, dtype, 1, 1, 1).is_ok() {
                println!("skipped: this device stores {dtype:?}");
                continue;
            }
            let tensor = |seed| float::<2>(&drawn(seed, 12), [3, 4], &device);
            let layer = Linear { weight: Param::from_tensor(tensor(2).transpose()), bias: None };
            let said = |what: &dyn Fn()| {
                let refused = catch_unwind(AssertUnwindSafe(what)).expect_err("refused");
                refused.downcast_ref::<String>().cloned().unwrap_or_default()
            };
            let expected = format!("has no numbers in {dtype:?}");
            let rounding = said(&|| drop(firebox_kernels::rounded(tensor(1), precision)));
            assert!(rounding.contains(&expected), "{rounding}");
            let layer = said(&|| drop(linear_in(precision, tensor(1), &layer)));
            assert!(layer.contains(&expected), "{layer}");
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
