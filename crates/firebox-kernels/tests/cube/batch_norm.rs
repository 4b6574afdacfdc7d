//! Batch normalisation against its formula in float64, and against what is composed of Burn's operations.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Device, Tensor};
use firebox_core::Stream;
use firebox_kernels::{
    BatchNorm, BatchNormConfig, CpuKernels, GpuKernels, LaunchWatch, NormEpilogue,
};

use super::alone;
use super::support::case::{float, noise, values};
use super::support::relative_error;

/// The result, the gradients of input, scale and shift, then the running mean and variance.
type Parts = [Vec<f64>; 6];

const PARTS: [&str; 6] = ["y", "dx", "d gamma", "d beta", "running mean", "running variance"];

/// Puts the running statistics of [`BEFORE`] into a module, whose third and fourth tensor they are.
struct Start {
    seen: usize,
}

impl ModuleMapper for Start {
    fn map_float<const D: usize>(&mut self, parameter: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.seen += 1;
        match self.seen {
            3 | 4 => parameter.map(|tensor| tensor.zeros_like() + BEFORE[self.seen - 3]),
            _ => parameter,
        }
    }
}

#[derive(Clone)]
struct Case {
    shape: [usize; 3],
    x: Vec<f64>,
    gamma: Vec<f64>,
    beta: Vec<f64>,
    d: Vec<f64>,
    rectify: bool,
    /// Whether the scale is trained, so that the statistics are the batch's.
    trained: bool,
}

/// Running mean and variance before the batch, where they are used.
const BEFORE: [f64; 2] = [0.25, 2.0];

impl Case {
    fn new(shape: [usize; 3], scale: f64, mean: f64) -> Self {
        let [samples, time, width] = shape;
        let numbers = |seed, count, scale: f64, mean: f64| -> Vec<f64> {
            let numbers = noise(Stream::new(seed, "batch norm"), count, scale);
            numbers.iter().map(|v| f64::from((v + mean) as f32)).collect()
        };
        Self {
            shape,
            x: numbers(1, samples * time * width, scale, mean),
            gamma: numbers(2, width, 0.5, 1.0),
            beta: numbers(3, width, 1.0, 0.0),
            d: numbers(4, samples * time * width, 1.0, 0.1),
            rectify: false,
            trained: true,
        }
    }

    fn reference(&self) -> Parts {
        let [samples, time, width] = self.shape;
        let rows = samples * time;
        let count = rows as f64;
        let (mut y, mut dx) = (vec![0.0; self.x.len()], vec![0.0; self.x.len()]);
        let [mut d_gamma, mut d_beta, mut means, mut variances] = std::array::from_fn(|_| vec![]);
        for channel in 0..width {
            let x: Vec<f64> = (0..rows).map(|row| self.x[row * width + channel]).collect();
            let [mut mean, mut variance] = BEFORE;
            let by_batch = self.trained && rows != 1;
            if by_batch {
                mean = x.iter().sum::<f64>() / count;
                variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
                let unbiased = variance * count / (count.max(2.0) - 1.0);
                means.push(0.9 * BEFORE[0] + 0.1 * mean);
                variances.push(0.9 * BEFORE[1] + 0.1 * unbiased);
            } else {
                means.push(mean);
                variances.push(variance);
            }
            let deviation = (variance + 1e-5).sqrt();
            let (gamma, beta) = (self.gamma[channel], self.beta[channel]);
            let (mut plain, mut weighted) = (0.0, 0.0);
            for (row, x) in x.iter().enumerate() {
                let n = (x - mean) / deviation;
                let z = n * gamma + beta;
                let cut = self.rectify && z <= 0.0;
                let d = if cut { 0.0 } else { self.d[row * width + channel] };
                y[row * width + channel] = if cut { 0.0 } else { z };
                dx[row * width + channel] = d;
                plain += d;
                weighted += d * n;
            }
            for (row, x) in x.iter().enumerate() {
                let n = (x - mean) / deviation;
                let shared =
                    if self.trained && rows != 1 { (plain + n * weighted) / count } else { 0.0 };
                let dx = &mut dx[row * width + channel];
                *dx = (*dx - shared) * gamma / deviation;
            }
            d_gamma.push(weighted);
            d_beta.push(plain);
        }
        [y, dx, d_gamma, d_beta, means, variances]
    }

    fn module(&self, device: &Device) -> BatchNorm {
        let width = self.shape[2];
        let mut module = BatchNormConfig::new(width).init(device);
        let vector = |numbers: &[f64]| float::<1>(numbers, [width], device);
        let gamma = Param::from_tensor(vector(&self.gamma));
        module.gamma = gamma.set_require_grad(self.trained);
        module.beta = Param::from_tensor(vector(&self.beta));
        module.map(&mut Start { seen: 0 })
    }

    /// On a device with a graph, in a type.
    fn run(&self, device: &Device, dtype: DType) -> Parts {
        let tensor = |numbers: &[f64]| float::<3>(numbers, self.shape, device).cast(dtype);
        let x = tensor(&self.x).detach().require_grad();
        let module = self.module(device);
        let epilogue = NormEpilogue { rectify: self.rectify, pool: 1, dropout: 0.0 };
        let y = module.forward_with(x.clone(), epilogue, None);
        assert_eq!((y.dims(), y.dtype()), (self.shape, dtype));
        let grads = (y.clone() * tensor(&self.d)).sum().backward();
        let plain = |tensor: Tensor<3>| values(tensor.cast(DType::F32));
        let gradient = |parameter: &Param<Tensor<1>>| {
            parameter.val().grad(&grads).map_or_else(|| vec![0.0; self.shape[2]], values)
        };
        [
            plain(y),
            plain(x.grad(&grads).expect("a gradient")),
            gradient(&module.gamma),
            gradient(&module.beta),
            values(module.running_mean.value()),
            values(module.running_var.value()),
        ]
    }

    #[track_caller]
    fn check(&self, device: &Device, dtype: DType, bound: f64) {
        let mut expected = self.reference();
        if !self.trained {
            expected[2].fill(0.0);
        }
        let found = self.run(device, dtype);
        self.compare(&found, &expected, bound);
    }

    #[track_caller]
    fn compare(&self, found: &Parts, expected: &Parts, bound: f64) {
        for (part, (found, expected)) in PARTS.into_iter().zip(found.iter().zip(expected)) {
            assert_eq!(found.len(), expected.len(), "{part}");
            if expected.iter().all(|v| *v == 0.0) {
                assert!(found.iter().all(|v| v.abs() < bound), "{part}: {found:?}");
                continue;
            }
            let error = relative_error(found, expected);
            assert!(error < bound, "{:?}: {part} is off by {error:.2e}", self.shape);
        }
    }
}

#[test]
fn batches_of_any_size_agree_with_float64() {
    alone(|device| {
        let device = device.autodiff();
        let shapes = [
            [2, 1, 3],
            [3, 7, 5],
            [1, 129, 16],
            [5, 40, 33],
            [600, 3, 70],
            [9, 1, 420],
            [40, 50, 1],
        ];
        for shape in shapes {
            for rectify in [false, true] {
                for trained in [true, false] {
                    let case = Case { rectify, trained, ..Case::new(shape, 1.0, 0.3) };
                    // Two rows of a channel are the small difference of large numbers.
                    let bound = if shape[0] * shape[1] == 2 { 1e-2 } else { 2e-5 };
                    case.check(&device, DType::F32, bound);
                }
            }
        }
        // Rows that lie far from zero keep what f32 leaves of them; small ones lose nothing.
        Case::new([50, 20, 6], 1.0, 300.0).check(&device, DType::F32, 2e-4);
        Case::new([50, 20, 6], 1e-2, 0.0).check(&device, DType::F32, 2e-5);
    });
}

#[test]
fn a_batch_of_one_row_has_no_statistics() {
    alone(|device| {
        Case::new([1, 1, 5], 1.0, 0.3).check(&device.autodiff(), DType::F32, 2e-5);
    });
}

#[test]
fn it_is_the_composed_one_in_fewer_launches() {
    alone(|device| {
        let device = device.autodiff();
        for trained in [true, false] {
            let case = Case { rectify: true, trained, ..Case::new([30, 11, 48], 1.0, 0.3) };
            let ours = case.run(&device, DType::F32);
            let watch = LaunchWatch::start();
            assert_eq!(case.run(&device, DType::F32), ours, "the same bits again");
            let launched = watch.end();
            let all = launched.len();
            let named = launched.iter().filter_map(|one| one.work.as_ref());
            let names: Vec<&str> = named.map(|work| work.name).collect();
            let statistics =
                ["batch normalisation, moments", "batch normalisation, moments of all"];
            let rest = [
                "batch normalisation",
                "batch normalisation, gradients of scale and shift",
                "batch normalisation, sums",
                "batch normalisation, gradient",
            ];
            let expected: Vec<&str> =
                statistics[..if trained { 2 } else { 0 }].iter().chain(&rest).copied().collect();
            assert_eq!(names, expected);
            let watch = LaunchWatch::start();
            let theirs = CpuKernels::Composed.force(|| case.run(&device, DType::F32));
            let composed = watch.end().len();
            println!("trained {trained}: {all} launches beside {composed}");
            // By running statistics, fusion makes few of the composed ones.
            assert!(!trained || all < composed, "{all} launches beside {composed}");
            case.compare(&ours, &theirs, 1e-4);
        }
    });
}

#[test]
fn without_a_graph_and_with_what_follows() {
    alone(|device| {
        let case = Case { rectify: true, trained: false, ..Case::new([6, 9, 12], 1.0, 0.3) };
        let [expected, ..] = case.reference();
        let module = case.module(&device);
        let x = float::<3>(&case.x, case.shape, &device);
        let epilogue = NormEpilogue { rectify: true, pool: 1, dropout: 0.0 };
        let y = values(module.forward_with(x.clone(), epilogue, None));
        assert!(relative_error(&y, &expected) < 1e-6);
        let epilogue = NormEpilogue { pool: 2, dropout: 0.4, ..epilogue };
        let stream = Some(Stream::new(3, "dropout"));
        let ours = module.forward_with(x.clone(), epilogue, stream);
        assert_eq!(ours.dims(), [6, 4, 12]);
        let theirs = CpuKernels::Composed.force(|| module.forward_with(x, epilogue, stream));
        assert!(relative_error(&values(ours), &values(theirs)) < 1e-6);
    });
}

#[test]
fn gradients_that_nobody_wants_and_types_that_differ() {
    alone(|device| {
        let case = Case { rectify: true, ..Case::new([12, 9, 7], 1.0, 0.3) };
        let [_, _, d_gamma, d_beta, ..] = case.reference();
        let graph = device.clone().autodiff();
        let epilogue = NormEpilogue { rectify: true, pool: 1, dropout: 0.0 };
        // An input in no graph, as data is, and parameters in one.
        let x = float::<3>(&case.x, case.shape, &device);
        let module = case.module(&graph);
        let y = module.forward_with(x.clone(), epilogue, None);
        let grads = (y * float::<3>(&case.d, case.shape, &graph)).sum().backward();
        for (parameter, expected) in [(&module.gamma, &d_gamma), (&module.beta, &d_beta)] {
            let found = values(parameter.val().grad(&grads).expect("a gradient"));
            assert!(relative_error(&found, expected) < 1e-5);
        }
        if GpuKernels::of_layer(&device, DType::F16, 1, 1, 1).is_err() {
            println!("skipped: this device does not store F16, in which parameters would be");
            return;
        }
        // Parameters in f16 keep their type, and so do their gradients.
        let mut module = case.module(&graph);
        let half = |parameter: &Param<Tensor<1>>| {
            Param::from_tensor(parameter.val().cast(DType::F16).detach().require_grad())
        };
        (module.gamma, module.beta) = (half(&module.gamma), half(&module.beta));
        let y = module.forward_with(x.cast(DType::F16), epilogue, None);
        let d = float::<3>(&case.d, case.shape, &graph).cast(DType::F16);
        let grads = (y * d).sum().backward();
        for (parameter, expected) in [(&module.gamma, &d_gamma), (&module.beta, &d_beta)] {
            let found = parameter.val().grad(&grads).expect("a gradient");
            assert_eq!(found.dtype(), DType::F16);
            assert!(relative_error(&values(found.cast(DType::F32)), expected) < 1e-2);
        }
    });
}

#[test]
fn finite_numbers_with_a_huge_mean_stay_finite() {
    alone(|device| {
        // Fewer rows than threads, so that some have none.
        let mut case = Case::new([3, 1, 4], 1.0, 0.0);
        case.x.fill(1e20);
        let [y, .., variance] = case.run(&device.autodiff(), DType::F32);
        assert!(relative_error(&y[..4], &case.beta) < 1e-6, "{y:?}");
        assert!(variance.iter().all(|v| (v - 0.9 * BEFORE[1]).abs() < 1e-6), "{variance:?}");
    });
}

#[test]
fn running_statistics_of_another_width_are_no_case_for_kernels() {
    alone(|device| {
        let case = Case { trained: false, ..Case::new([3, 2, 8], 1.0, 0.3) };
        let mut module = case.module(&device);
        module.running_mean = case.module(&device).running_mean.map(&mut Cut);
        module.running_var = case.module(&device).running_var.map(&mut Cut);
        let x = float::<3>(&case.x, case.shape, &device);
        let refused =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| values(module.forward(x))));
        assert!(refused.is_err(), "three statistics for eight channels: {refused:?}");
    });
}

#[test]
fn running_statistics_on_another_device_are_refused() {
    alone(|device| {
        let mut module = BatchNormConfig::new(4).init(&Device::flex());
        module.running_mean = BatchNormConfig::new(4).init(&device).running_mean;
        let x = Tensor::<3>::zeros([2, 3, 4], &Device::flex());
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| module.forward(x)));
        let panic = refused.expect_err("two devices");
        let message = panic.downcast_ref::<String>().expect("a message");
        assert!(message.contains("on one device") && message.contains("running mean"), "{message}");
    });
}

/// Leaves three numbers of a tensor.
struct Cut;

impl ModuleMapper for Cut {
    fn map_float<const D: usize>(&mut self, parameter: Param<Tensor<D>>) -> Param<Tensor<D>> {
        parameter.map(|tensor| tensor.narrow(0, 0, 3))
    }
}

#[test]
fn a_channel_with_nan_or_infinity_leaves_its_running_statistics_and_the_others_alone() {
    alone(|device| {
        let device = device.autodiff();
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let mut case = Case::new([20, 3, 4], 1.0, 0.3);
            let [expected, _, _, _, means, variances] = case.reference();
            // Of channel 1, in the second sample.
            case.x[3 * 4 + 1] = bad;
            let [y, .., mean, variance] = case.run(&device, DType::F32);
            for channel in [0, 2, 3] {
                let of = |all: &[f64]| -> Vec<f64> {
                    all.iter().skip(channel).step_by(4).copied().collect()
                };
                assert!(relative_error(&of(&y), &of(&expected)) < 1e-5);
                assert!((mean[channel] - means[channel]).abs() < 1e-6);
                assert!((variance[channel] - variances[channel]).abs() < 1e-5);
            }
            assert_eq!([mean[1], variance[1]], BEFORE, "{bad}");
            let spoilt = y.iter().skip(1).step_by(4).all(|v| !v.is_finite());
            assert!(spoilt, "{bad}: {y:?}");
        }
    });
}

#[test]
fn halves_are_summed_in_f32() {
    alone(|device| {
        let mut ran = 0;
        for (dtype, bound) in [(DType::F16, 2e-3), (DType::BF16, 1.6e-2)] {
            if GpuKernels::of_layer(&device, dtype, 1, 1, 1).is_err() {
                continue;
            }
            ran += 1;
            let mut case = Case::new([64, 40, 33], 1.0, 0.3);
            // What both types hold, so that results alone are rounded.
            let held = |v: &f64| (v * 32.0).round().clamp(-96.0, 96.0) / 32.0;
            case.x = case.x.iter().map(held).collect();
            case.d = case.d.iter().map(held).collect();
            case.check(&device.clone().autodiff(), dtype, bound);
        }
        if ran == 0 {
            println!("skipped: this device stores neither F16 nor BF16");
        }
    });
}
