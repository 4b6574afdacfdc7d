//! Layer normalisation against its formula in float64, and against Burn's own.

use burn::tensor::{DType, Tensor};
use firebox_core::Stream;
use firebox_kernels::{CpuKernels, GpuKernels, LaunchWatch, layer_norm};

use super::alone;
use super::support::case::{float, noise, values};
use super::support::relative_error;

/// The result and the gradients of input, scale and shift.
type Parts = [Vec<f64>; 4];

struct Case {
    width: usize,
    x: Vec<f64>,
    gamma: Vec<f64>,
    beta: Vec<f64>,
    d: Vec<f64>,
}

impl Case {
    fn new(rows: usize, width: usize, scale: f64, mean: f64) -> Self {
        let numbers = |seed, count, scale: f64, mean: f64| -> Vec<f64> {
            let numbers = noise(Stream::new(seed, "norm"), count, scale);
            numbers.iter().map(|v| f64::from((v + mean) as f32)).collect()
        };
        Self {
            width,
            x: numbers(1, rows * width, scale, mean),
            gamma: numbers(2, width, 0.5, 1.0),
            beta: numbers(3, width, 1.0, 0.0),
            d: numbers(4, rows * width, 1.0, 0.1),
        }
    }

    fn reference(&self) -> Parts {
        let width = self.width;
        let (mut y, mut dx) = (vec![], vec![]);
        let (mut d_gamma, mut d_beta) = (vec![0.0; width], vec![0.0; width]);
        for (x, d) in self.x.chunks(width).zip(self.d.chunks(width)) {
            let mean = x.iter().sum::<f64>() / width as f64;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
            let deviation = (variance + 1e-5).sqrt();
            let n: Vec<f64> = x.iter().map(|x| (x - mean) / deviation).collect();
            let g: Vec<f64> = d.iter().zip(&self.gamma).map(|(d, g)| d * g).collect();
            let plain = g.iter().sum::<f64>() / width as f64;
            let weighted = g.iter().zip(&n).map(|(g, n)| g * n).sum::<f64>() / width as f64;
            for at in 0..width {
                y.push(n[at] * self.gamma[at] + self.beta[at]);
                dx.push((g[at] - plain - n[at] * weighted) / deviation);
                d_gamma[at] += d[at] * n[at];
                d_beta[at] += d[at];
            }
        }
        [y, dx, d_gamma, d_beta]
    }

    /// On a device with a graph, in a type.
    fn run(&self, device: &burn::tensor::Device, dtype: DType) -> Parts {
        let shape = [self.x.len() / self.width, self.width];
        let matrix = |numbers: &[f64]| float::<2>(numbers, shape, device).cast(dtype);
        let vector = |numbers: &[f64]| float::<1>(numbers, [self.width], device).cast(dtype);
        let x = matrix(&self.x).detach().require_grad();
        let gamma = vector(&self.gamma).detach().require_grad();
        let beta = vector(&self.beta).detach().require_grad();
        let y = layer_norm(x.clone(), gamma.clone(), Some(beta.clone()), 1e-5);
        assert_eq!((y.dims(), y.dtype()), (shape, dtype));
        let grads = (y.clone() * matrix(&self.d)).sum().backward();
        let plain = |tensor: Tensor<2>| values(tensor.cast(DType::F32));
        let flat = |tensor: Tensor<1>| values(tensor.cast(DType::F32));
        [
            plain(y),
            plain(x.grad(&grads).expect("a gradient")),
            flat(gamma.grad(&grads).expect("a gradient")),
            flat(beta.grad(&grads).expect("a gradient")),
        ]
    }
}

const PARTS: [&str; 4] = ["y", "dx", "d gamma", "d beta"];

#[track_caller]
fn compare(what: &str, found: &Parts, expected: &Parts, bound: f64) {
    for (part, (found, expected)) in PARTS.into_iter().zip(found.iter().zip(expected)) {
        let error = relative_error(found, expected);
        assert!(error < bound, "{what}: {part} is off by {error:.2e}");
    }
}

#[test]
fn rows_of_any_size_agree_with_float64() {
    alone(|device| {
        let device = device.autodiff();
        let sizes = [(1, 3), (3, 7), (5, 16), (2, 17), (1200, 33), (150, 256), (1, 1030), (9, 768)];
        for (rows, width) in sizes {
            let case = Case::new(rows, width, 1.0, 0.3);
            let what = format!("{rows} rows of {width}");
            compare(&what, &case.run(&device, DType::F32), &case.reference(), 1e-5);
        }
        // Rows of one number are their shift, and their gradient is nothing but rounding.
        let one = Case::new(4, 1, 1.0, 0.3);
        let [y, dx, _, d_beta] = one.run(&device, DType::F32);
        let [expected, _, _, expected_beta] = one.reference();
        assert!(relative_error(&y, &expected) < 1e-6);
        assert!(relative_error(&d_beta, &expected_beta) < 1e-6);
        assert!(dx.iter().all(|v| v.abs() < 1e-3), "{dx:?}");
        // The gradient of a row of two is the small difference of large numbers.
        let two = Case::new(4, 2, 1.0, 0.3);
        compare("rows of 2", &two.run(&device, DType::F32), &two.reference(), 1e-2);
        // Rows that lie far from zero keep what f32 leaves of them.
        let far = Case::new(9, 64, 1.0, 100.0);
        compare("far", &far.run(&device, DType::F32), &far.reference(), 1e-4);
        let small = Case::new(9, 64, 1e-3, 0.0);
        compare("small", &small.run(&device, DType::F32), &small.reference(), 1e-5);
    });
}

#[test]
fn it_is_burns_own_in_fewer_launches() {
    alone(|device| {
        let device = device.autodiff();
        let case = Case::new(37, 48, 1.0, 0.3);
        let ours = case.run(&device, DType::F32);
        let watch = LaunchWatch::start();
        assert_eq!(case.run(&device, DType::F32), ours, "the same bits again");
        let launched = watch.end();
        let names: Vec<&str> =
            launched.iter().filter_map(|one| one.work.as_ref()).map(|work| work.name).collect();
        let expected =
            ["layer normalisation", "layer normalisation, gradients", "layer normalisation, sums"];
        assert_eq!(names, expected);
        let theirs = CpuKernels::Composed.force(|| case.run(&device, DType::F32));
        compare("composed", &ours, &theirs, 1e-5);
    });
}

#[test]
fn without_a_shift_and_without_a_graph() {
    alone(|device| {
        let case = Case::new(5, 9, 1.0, 0.0);
        let zero = Case { beta: vec![0.0; 9], ..Case::new(5, 9, 1.0, 0.0) };
        let [expected, dx, d_gamma, _] = zero.reference();
        let matrix = |numbers: &[f64], device: &_| float::<2>(numbers, [5, 9], device);
        let y =
            layer_norm(matrix(&case.x, &device), float::<1>(&case.gamma, [9], &device), None, 1e-5);
        assert!(relative_error(&values(y), &expected) < 1e-6);
        let device = device.autodiff();
        let x = matrix(&case.x, &device).require_grad();
        let gamma = float::<1>(&case.gamma, [9], &device).require_grad();
        let y = layer_norm(x.clone(), gamma.clone(), None, 1e-5);
        let grads = (y * matrix(&case.d, &device)).sum().backward();
        assert!(relative_error(&values(x.grad(&grads).expect("a gradient")), &dx) < 1e-5);
        assert!(relative_error(&values(gamma.grad(&grads).expect("a gradient")), &d_gamma) < 1e-5);
    });
}

#[test]
fn a_view_and_three_axes() {
    alone(|device| {
        let case = Case::new(6, 8, 1.0, 0.2);
        let (gamma, beta) =
            (float::<1>(&case.gamma, [8], &device), float::<1>(&case.beta, [8], &device));
        // The same numbers, read across.
        let across: Vec<f64> = (0..48).map(|at| case.x[(at % 6) * 8 + at / 6]).collect();
        let x = float::<2>(&across, [8, 6], &device).swap_dims(0, 1).reshape([2, 3, 8]);
        let y = layer_norm(x, gamma, Some(beta), 1e-5);
        assert_eq!(y.dims(), [2, 3, 8]);
        assert!(relative_error(&values(y), &case.reference()[0]) < 1e-6);
        let empty = Tensor::<2>::zeros([0, 8], &device);
        assert_eq!(layer_norm(empty, Tensor::ones([8], &device), None, 1e-5).dims(), [0, 8]);
    });
}

#[test]
fn a_row_with_nan_spoils_itself_and_a_constant_row_is_the_shift() {
    alone(|device| {
        let mut case = Case::new(4, 20, 1.0, 0.0);
        case.x[25] = f64::NAN;
        case.x[40..60].fill(3.5);
        let x = float::<2>(&case.x, [4, 20], &device);
        let gamma = float::<1>(&case.gamma, [20], &device);
        let y = layer_norm(x, gamma.clone(), Some(gamma.clone() * 2.0), 1e-5);
        let y = values(y);
        assert!(y[20..40].iter().all(|v| v.is_nan()));
        assert!(y[..20].iter().chain(&y[40..]).all(|v| v.is_finite()));
        assert_eq!(&y[40..60], values(gamma * 2.0).as_slice());
    });
}

#[test]
fn halves_are_summed_in_f32() {
    alone(|device| {
        let mut ran = 0;
        for (dtype, bound) in [(DType::F16, 2e-3), (DType::BF16, 1.6e-2)] {
            if GpuKernels::of_layer(&device, dtype, 1, 1, 1).is_ok() {
                let case = Case::new(40, 96, 1.0, 0.1);
                let found = case.run(&device.clone().autodiff(), dtype);
                compare(&format!("{dtype:?}"), &found, &case.reference(), bound);
                ran += 1;
            }
        }
        if ran == 0 {
            println!("skipped: this device stores neither F16 nor BF16");
        }
    });
}
