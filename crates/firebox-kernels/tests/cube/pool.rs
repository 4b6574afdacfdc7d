//! The maximum of windows along time against its definition, and against Burn's own.

use burn::tensor::{DType, Device, Tensor};
use firebox_core::Stream;
use firebox_kernels::{CpuKernels, GpuKernels, LaunchWatch, max_pool1d};

use super::alone;
use super::support::case::{float, noise, values};

/// Sizes of the input, then kernel, stride and padding.
type Case = ([usize; 3], [usize; 3]);

const CASES: [Case; 9] = [
    ([3, 8, 5], [2, 2, 0]),
    ([2, 9, 4], [2, 2, 0]),
    ([2, 500, 33], [2, 2, 0]),
    ([4, 7, 3], [3, 1, 1]),
    ([1, 11, 70], [5, 2, 2]),
    ([2, 10, 6], [2, 5, 1]),
    ([3, 4, 1], [4, 3, 2]),
    ([2, 3, 4], [1, 1, 0]),
    ([2, 3, 4], [5, 1, 1]),
];

/// Small integers, so that there are equal ones.
fn integers(seed: u64, count: usize) -> Vec<f64> {
    noise(Stream::new(seed, "pool"), count, 2.0).into_iter().map(f64::round).collect()
}

/// Maxima and the gradient of `Σ d · y`, by definition.
fn reference(([samples, time, width], of): Case, x: &[f64], d: &[f64]) -> [Vec<f64>; 2] {
    let [kernel, stride, padding] = of.map(|size| size as isize);
    let out = (time as isize + 2 * padding - kernel) / stride + 1;
    let (mut y, mut dx) = (vec![], vec![0.0; x.len()]);
    for sample in 0..samples {
        for step in 0..out {
            for channel in 0..width {
                let begin = step * stride - padding;
                let under = (begin..begin + kernel).filter(|t| (0..time as isize).contains(t));
                let places = under.map(|t| (sample * time + t as usize) * width + channel);
                let better = |a: usize, b: usize| {
                    if x[b] > x[a] || x[b].is_nan() { b } else { a }
                };
                let best = places.reduce(better).expect("a step");
                dx[best] += d[y.len()];
                y.push(x[best]);
            }
        }
    }
    [y, dx]
}

fn run(case: Case, x: &[f64], d: &[f64], device: &Device, dtype: DType) -> [Vec<f64>; 2] {
    let (shape, [kernel, stride, padding]) = case;
    let x = float::<3>(x, shape, device).cast(dtype).detach().require_grad();
    let y = max_pool1d(x.clone(), kernel, stride, padding);
    assert_eq!(y.dtype(), dtype);
    let d = float::<3>(d, y.dims(), device).cast(dtype);
    // Added, so that NaN has a gradient as well.
    let grads = (y.clone() + 1.0).mul(d).sum().backward();
    let plain = |tensor: Tensor<3>| values(tensor.cast(DType::F32));
    [plain(y), plain(x.grad(&grads).expect("a gradient"))]
}

fn problem(case @ ([samples, time, width], _): Case) -> (Vec<f64>, Vec<f64>) {
    let x = integers(1, samples * time * width);
    let (_, [kernel, stride, padding]) = case;
    let out = (time + 2 * padding - kernel) / stride + 1;
    (x, integers(2, samples * out * width))
}

fn same(found: &[f64], expected: &[f64]) -> bool {
    let equal = |(a, b): (&f64, &f64)| a == b || a.is_nan() && b.is_nan();
    found.len() == expected.len() && found.iter().zip(expected).all(equal)
}

#[test]
fn maxima_and_their_gradients_are_those_of_the_definition() {
    alone(|device| {
        let device = device.autodiff();
        for case in CASES {
            let (mut x, d) = problem(case);
            for nan in [false, true] {
                if nan {
                    let at = x.len() / 2;
                    (x[at], x[0]) = (f64::NAN, f64::NEG_INFINITY);
                }
                let expected = reference(case, &x, &d);
                let found = run(case, &x, &d, &device, DType::F32);
                assert!(same(&found[0], &expected[0]), "{case:?}: {found:?} {expected:?}");
                assert!(same(&found[1], &expected[1]), "{case:?}: {found:?} {expected:?}");
            }
        }
    });
}

#[test]
fn it_is_burns_own_in_two_launches() {
    alone(|device| {
        let device = device.autodiff();
        let case = CASES[4];
        let (x, d) = problem(case);
        let watch = LaunchWatch::start();
        let ours = run(case, &x, &d, &device, DType::F32);
        let launched = watch.end();
        let names: Vec<&str> =
            launched.iter().filter_map(|one| one.work.as_ref()).map(|work| work.name).collect();
        assert_eq!(names, ["maximum of steps", "maximum of steps, gradient"]);
        // Of equal steps Burn's own may take another one.
        let theirs = CpuKernels::Composed.force(|| run(case, &x, &d, &device, DType::F32));
        assert_eq!(ours[0], theirs[0]);
    });
}

#[test]
fn halves_stay_what_they_are() {
    alone(|device| {
        let mut ran = 0;
        for dtype in [DType::F16, DType::BF16] {
            if GpuKernels::of_layer(&device, dtype, 1, 1, 1).is_err() {
                continue;
            }
            ran += 1;
            for case in CASES {
                let (x, d) = problem(case);
                let found = run(case, &x, &d, &device.clone().autodiff(), dtype);
                assert_eq!(found, reference(case, &x, &d), "{dtype:?}, {case:?}");
            }
        }
        if ran == 0 {
            println!("skipped: this device stores neither F16 nor BF16");
        }
    });
}
