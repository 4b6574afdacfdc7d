//! Convolutions as products of the steps that each result takes, laid side by side, beside those of the CPU.

use burn::module::Param;
use burn::nn::PaddingConfig1d;
use burn::nn::conv::{Conv1d, Conv1dConfig};
use burn::tensor::{DType, Device};
use firebox_core::{Precision, Stream};
use firebox_kernels::{F32Products, GpuKernels, LaunchWatch, conv1d};

use super::alone;
use super::support::case::{float, noise, values};

/// Sizes of the input, `[batch, time, channel]`, then output channels and kernel, padding before and after, stride and
/// dilation.
type Case = ([usize; 3], [usize; 2], [usize; 2], [usize; 2]);

const CASES: [Case; 7] = [
    ([2, 23, 5], [7, 3], [1, 1], [1, 1]),
    ([3, 17, 8], [4, 5], [0, 0], [2, 1]),
    ([2, 30, 12], [9, 3], [0, 4], [1, 3]),
    ([2, 11, 4], [6, 4], [5, 2], [3, 2]),
    ([1, 1, 1], [1, 1], [0, 0], [1, 1]),
    ([2, 3, 4], [5, 3], [7, 9], [4, 1]),
    ([64, 40, 32], [48, 3], [1, 1], [1, 1]),
];

fn drawn(seed: u64, count: usize, round: impl Fn(f64) -> f64) -> Vec<f64> {
    noise(Stream::new(seed, "conv"), count, 1.0).into_iter().map(round).collect()
}

fn layer(case: Case, device: &Device, round: impl Fn(f64) -> f64) -> Conv1d {
    let ([_, _, channels], [output, kernel], [before, after], [stride, dilation]) = case;
    let config = Conv1dConfig::new(channels, output, kernel)
        .with_stride(stride)
        .with_dilation(dilation)
        .with_padding(PaddingConfig1d::Explicit(before, after));
    let mut layer = config.init(device);
    let weight = drawn(2, output * channels * kernel, round);
    layer.weight = Param::from_tensor(float::<3>(&weight, [output, channels, kernel], device));
    layer.bias = Some(Param::from_tensor(float::<1>(&drawn(3, output, |x| x), [output], device)));
    layer
}

/// The result, and the gradients of `Σ d · y` in x, weight and bias.
fn run(
    case: Case,
    device: &Device,
    precision: Precision,
    round: impl Fn(f64) -> f64 + Copy,
) -> [Vec<f64>; 4] {
    let device = device.clone().autodiff();
    let layer = layer(case, &device, round);
    let x = drawn(1, case.0.iter().product(), round);
    let x = float::<3>(&x, case.0, &device).require_grad();
    let y = F32Products::Exact.during(|| conv1d(x.clone(), &layer, precision, None));
    let d = drawn(4, y.shape().num_elements(), round);
    let grads = (y.clone() * float::<3>(&d, y.dims(), &device)).sum().backward();
    let bias = layer.bias.as_ref().expect("a bias").val();
    [
        values(y),
        values(x.grad(&grads).expect("a gradient")),
        values(layer.weight.val().grad(&grads).expect("a gradient")),
        values(bias.grad(&grads).expect("a gradient")),
    ]
}

fn error(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let square = |of: &dyn Fn(usize) -> f64| (0..found.len()).map(|at| of(at).powi(2)).sum::<f64>();
    (square(&|at| found[at] - expected[at]) / square(&|at| expected[at]).max(1e-300)).sqrt()
}

#[test]
fn agrees_with_the_processor_in_f32() {
    alone(|device| {
        for case in CASES {
            let expected = run(case, &Device::flex(), Precision::F32, |x| x);
            let found = run(case, &device, Precision::F32, |x| x);
            for (found, expected) in found.iter().zip(&expected) {
                let error = error(found, expected);
                assert!(error < 2e-6, "{case:?}: {error:.1e}");
            }
        }
    });
}

/// Of operands that are rounded already, the result is rounded once more nowhere; the gradient of what was laid side by
/// side is, before it is added up.
#[test]
fn in_halves_agrees_with_the_processor_on_rounded_operands() {
    alone(|device| {
        for (precision, dtype, round, bound) in [
            (
                Precision::F16,
                DType::F16,
                (|x| half::f16::from_f64(x).to_f64()) as fn(f64) -> f64,
                1e-3,
            ),
            (Precision::Bf16, DType::BF16, |x| half::bf16::from_f64(x).to_f64(), 8e-3),
        ] {
            if !GpuKernels::attends_on_tensor_cores(&device, dtype, 16) {
                println!("skipped: no tensor cores for {dtype:?}");
                continue;
            }
            for case in CASES {
                let expected = run(case, &Device::flex(), Precision::F32, round);
                let found = run(case, &device, precision, round);
                for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    let error = error(found, expected);
                    let bound = if index == 1 { bound } else { 1e-5 };
                    assert!(error < bound, "{precision} {case:?}, {index}: {error:.1e}");
                }
            }
        }
    });
}

#[test]
fn steps_are_laid_side_by_side_in_one_launch_and_one_back() {
    alone(|device| {
        let watch = LaunchWatch::start();
        run(CASES[2], &device, Precision::F32, |x| x);
        let launched = watch.end();
        let named = |name: &str| {
            launched
                .iter()
                .filter(|one| one.work.as_ref().is_some_and(|work| work.name == name))
                .count()
        };
        assert_eq!([named("windows of steps"), named("windows of steps, gradient")], [1, 1]);
    });
}
