//! Batch normalisation against float64 and against its parts one by one; the running statistics.

use super::*;

fn noise(seed: u64, count: usize, scale: f64, mean: f64) -> Vec<f32> {
    let mut draws = Stream::new(seed, "batch norm").draws();
    (0..count).map(|_| (mean + scale * draws.normal()) as f32).collect()
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

#[track_caller]
fn close(name: &str, actual: &[f32], expected: &[f64], bound: f64) {
    assert_eq!(actual.len(), expected.len(), "{name}");
    let error: f64 = actual.iter().zip(expected).map(|(a, e)| (f64::from(*a) - e).powi(2)).sum();
    let norm: f64 = expected.iter().map(|e| e * e).sum();
    let error = (error / norm.max(1e-300)).sqrt();
    assert!(error < bound, "{name} is off by {error:.2e}");
}

#[derive(Clone)]
struct Case {
    shape: [usize; 3],
    x: Vec<f32>,
    gamma: Vec<f32>,
    beta: Vec<f32>,
    dy: Vec<f32>,
    epilogue: NormEpilogue,
}

/// `[y, dx, dgamma, dbeta]` of the loss `Σ dy · y`, then mean and unbiased variance.
type Results = [Vec<f64>; 6];

impl Case {
    fn new(shape: [usize; 3], scale: f64, mean: f64, epilogue: NormEpilogue) -> Self {
        let [samples, time, width] = shape;
        Self {
            shape,
            x: noise(1, samples * time * width, scale, mean),
            gamma: noise(2, width, 0.5, 1.0),
            beta: noise(3, width, 1.0, 0.0),
            dy: noise(4, samples * (time / epilogue.pool) * width, 1.0, 0.1),
            epilogue,
        }
    }

    /// By the definition, channel by channel, without dropout.
    fn reference(&self) -> Results {
        let [samples, time, width] = self.shape;
        let pool = self.epilogue.pool;
        let out = time / pool;
        let rows = samples * time;
        let [mut y, mut dx] = [vec![0.0; self.dy.len()], vec![0.0; self.x.len()]];
        let [mut dgamma, mut dbeta, mut means, mut variances] = std::array::from_fn(|_| vec![]);
        for channel in 0..width {
            let x: Vec<f64> = (0..rows).map(|r| f64::from(self.x[r * width + channel])).collect();
            let mean = x.iter().sum::<f64>() / rows as f64;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / rows as f64;
            let deviation = (variance + 1e-5).sqrt();
            let (gamma, beta) = (f64::from(self.gamma[channel]), f64::from(self.beta[channel]));
            let n: Vec<f64> = x.iter().map(|x| (x - mean) / deviation).collect();
            let mut dz = vec![0.0; rows];
            for sample in 0..samples {
                for step in 0..out {
                    let window = (0..pool).map(|tap| sample * time + step * pool + tap);
                    let z = |row: usize| n[row] * gamma + beta;
                    let best = window.reduce(|a, b| if z(b) > z(a) { b } else { a });
                    let best = best.expect("a step");
                    let at = (sample * out + step) * width + channel;
                    let cut = self.epilogue.rectify && z(best) <= 0.0;
                    y[at] = if cut { 0.0 } else { z(best) };
                    dz[best] = if cut { 0.0 } else { f64::from(self.dy[at]) };
                }
            }
            let plain = dz.iter().sum::<f64>();
            let weighted = dz.iter().zip(&n).map(|(d, n)| d * n).sum::<f64>();
            for row in 0..rows {
                let centred = dz[row] - (plain + n[row] * weighted) / rows as f64;
                dx[row * width + channel] = centred * gamma / deviation;
            }
            dgamma.push(weighted);
            dbeta.push(plain);
            means.push(mean);
            variances.push(variance * rows as f64 / (rows.max(2) - 1) as f64);
        }
        [y, dx, dgamma, dbeta, means, variances]
    }

    fn module(&self, device: &Device) -> BatchNorm {
        let mut module = BatchNormConfig::new(self.shape[2]).init(device);
        let tensor = |values: &[f32]| Tensor::<1>::from_data(values, device);
        module.gamma = Param::from_tensor(tensor(&self.gamma));
        module.beta = Param::from_tensor(tensor(&self.beta));
        module
    }

    fn run(&self, module: &BatchNorm, stream: Option<Stream>) -> [Vec<f32>; 4] {
        let [samples, time, width] = self.shape;
        let device = Device::flex().autodiff();
        let x = TensorData::new(self.x.clone(), self.shape);
        let x = Tensor::<3>::from_data(x, &device).require_grad();
        let y = module.forward_with(x.clone(), self.epilogue, stream);
        assert_eq!(y.dims(), [samples, time / self.epilogue.pool, width]);
        let dy = TensorData::new(self.dy.clone(), y.dims());
        let grads = (y.clone() * Tensor::from_data(dy, &device)).sum().backward();
        let of = |p: &Param<Tensor<1>>| p.val().grad(&grads).map_or(vec![], values);
        let dx = values(x.grad(&grads).expect("tracked"));
        [values(y), dx, of(&module.gamma), of(&module.beta)]
    }

    #[track_caller]
    fn check(&self, bound: f64) {
        let expected = self.reference();
        for kernels in CpuKernels::available() {
            // Burn's mean over rows is less exact.
            let bound = if kernels == CpuKernels::Composed { 10.0 * bound } else { bound };
            kernels.force(|| {
                let module = self.module(&Device::flex().autodiff());
                let results = self.run(&module, None);
                for ((name, ours), exact) in
                    ["y", "dx", "dgamma", "dbeta"].into_iter().zip(&results).zip(&expected)
                {
                    close(&format!("{kernels:?}: {name}"), ours, exact, bound);
                }
                let tenth = |exact: &[f64], start: f64| -> Vec<f64> {
                    exact.iter().map(|exact| 0.9 * start + 0.1 * exact).collect()
                };
                let running = [&module.running_mean, &module.running_var];
                let [mean, variance] = running.map(|statistic| values(statistic.value()));
                close("running mean", &mean, &tenth(&expected[4], 0.0), bound.max(1e-6));
                close("running variance", &variance, &tenth(&expected[5], 1.0), bound);
            });
        }
    }
}

const RELU: NormEpilogue = NormEpilogue { rectify: true, pool: 1, dropout: 0.0 };

#[test]
fn agrees_with_float64() {
    let none = NormEpilogue::NONE;
    for (shape, epilogue) in [
        ([3, 1, 1], none),
        ([5, 7, 3], none),
        ([300, 1, 17], RELU),
        ([2, 9, 16], NormEpilogue { pool: 2, ..RELU }),
        ([40, 31, 33], NormEpilogue { pool: 2, ..RELU }),
        ([3, 700, 5], NormEpilogue { pool: 3, ..none }),
        ([9, 130, 64], NormEpilogue { pool: 2, ..RELU }),
    ] {
        Case::new(shape, 1.0, 0.3, epilogue).check(1e-5);
    }
    // Values that lie far from zero keep what f32 leaves of them.
    Case::new([30, 20, 9], 1.0, 100.0, none).check(1e-4);
    Case::new([30, 20, 9], 1e-3, 0.0, none).check(1e-5);
}

#[test]
fn a_constant_channel_is_the_shift_whatever_its_sum_is_rounded_to() {
    for (value, shape) in [(3333.3, [4, 25, 3]), (20_000.1, [8, 64, 17]), (-0.1, [300, 1, 5])] {
        let mut case = Case::new(shape, 1.0, 0.0, NormEpilogue::NONE);
        case.x.fill(value);
        for kernels in CpuKernels::available().into_iter().skip(1) {
            let module = case.module(&Device::flex().autodiff());
            let [y, ..] = kernels.force(|| case.run(&module, None));
            assert!(y.chunks(shape[2]).all(|y| y == case.beta), "{kernels:?} {value}");
            let [mean, variance] = [&module.running_mean, &module.running_var];
            let channels = vec![1.0; shape[2]];
            let of = |number: f64| channels.iter().map(|one| one * number).collect::<Vec<f64>>();
            close("mean", &values(mean.value()), &of(0.1 * f64::from(value)), 1e-6);
            close("variance", &values(variance.value()), &of(0.9), 1e-6);
        }
    }
}

/// Distances of 400 from the mean, whose squares f16 does not hold.
#[test]
fn half_precision_is_normalised_in_f32() {
    let device = Device::flex().autodiff();
    for dtype in [DType::F16, DType::BF16] {
        let one = |value: f64| Tensor::<1>::full([1], value, (&device, dtype));
        let mut module = BatchNormConfig::new(1).init(&device);
        module.gamma = Param::from_tensor(one(2.0));
        module.beta = Param::from_tensor(one(0.5));
        module.running_mean = RunningStatistic::new(one(0.0));
        module.running_var = RunningStatistic::new(one(1.0));
        let x: Vec<f32> = (0..20).map(|row| if row % 2 == 0 { 512.0 } else { -288.0 }).collect();
        let x = Tensor::<3>::from_data(TensorData::new(x, [4, 5, 1]), (&device, dtype));
        let x = x.require_grad();
        let y = module.forward(x.clone());
        assert_eq!(y.dtype(), dtype);
        let exact = (0..20).map(|row| if row % 2 == 0 { 2.5 } else { -1.5 });
        let exact: Vec<f64> = exact.collect();
        close("y", &values(y.clone()), &exact, 1e-3);
        // Of the sum of all results over 16: the normalised numbers add up to nothing.
        let grads = y.div_scalar(16.0).sum().backward();
        let of = |parameter: &Param<Tensor<1>>| parameter.val().grad(&grads).expect("tracked");
        let [dgamma, dbeta] = [&module.gamma, &module.beta].map(|parameter| values(of(parameter)));
        assert!(dgamma[0].abs() < 1e-2 && (dbeta[0] - 1.25).abs() < 1e-2, "{dgamma:?} {dbeta:?}");
        let dx = x.grad(&grads).expect("tracked");
        assert!(values(dx).iter().all(|d| d.abs() < 1e-5), "{dtype:?}");
        // A tenth of the mean 112 and of the unbiased variance 160,000 · 20 / 19.
        let [mean, variance] = [&module.running_mean, &module.running_var].map(|r| r.value());
        assert_eq!([mean.dtype(), variance.dtype()], [dtype; 2]);
        close("mean", &values(mean), &[11.2], 5e-3);
        close("variance", &values(variance), &[0.9 + 320_000.0 / 19.0], 5e-3);
        // By these, the value that was the mean is nine tenths of it above theirs.
        let x = Tensor::<3>::full([1, 1, 1], 112.0, (&Device::flex(), dtype));
        let y = values(module.valid().forward(x));
        close("evaluation", &y, &[0.5 + 2.0 * 100.8 / 129.78], 1e-2);
    }
}

/// The gradients of the reference itself, by central differences.
#[test]
fn the_reference_has_the_gradients_of_its_result() {
    let case = Case::new([3, 5, 2], 1.0, 0.3, NormEpilogue { pool: 2, ..RELU });
    let [_, dx, dgamma, dbeta, ..] = case.reference();
    let loss = |case: &Case| -> f64 {
        let [y, ..] = case.reference();
        y.iter().zip(&case.dy).map(|(y, d)| y * f64::from(*d)).sum()
    };
    let step = 1.0 / 1024.0;
    let slope = |change: &dyn Fn(&mut Case, f32)| {
        let (mut up, mut down) = (case.clone(), case.clone());
        change(&mut up, step);
        change(&mut down, -step);
        (loss(&up) - loss(&down)) / (2.0 * f64::from(step))
    };
    // Steps that f32 rounds are not quite as long as they should be.
    for (at, d) in dx.iter().enumerate() {
        assert!((slope(&|case, h| case.x[at] += h) - d).abs() < 2e-3, "x {at}");
    }
    for (at, d) in dgamma.iter().enumerate() {
        assert!((slope(&|case, h| case.gamma[at] += h) - d).abs() < 2e-3, "gamma {at}");
    }
    for (at, d) in dbeta.iter().enumerate() {
        assert!((slope(&|case, h| case.beta[at] += h) - d).abs() < 2e-3, "beta {at}");
    }
}

#[test]
fn with_dropout_it_is_the_same_as_its_parts_one_by_one() {
    let stream = Some(Stream::new(5, "dropout"));
    for (shape, pool) in [([7, 33, 9], 2), ([70, 6, 17], 1), ([5, 61, 3], 4)] {
        for rectify in [false, true] {
            let epilogue = NormEpilogue { rectify, pool, dropout: 0.3 };
            let case = Case::new(shape, 1.0, 0.3, epilogue);
            let module = || case.module(&Device::flex().autodiff());
            let apart = CpuKernels::Composed.force(|| case.run(&module(), stream));
            for kernels in CpuKernels::available().into_iter().skip(1) {
                let together = kernels.force(|| case.run(&module(), stream));
                for (ours, theirs) in together.iter().zip(&apart) {
                    let theirs: Vec<f64> = theirs.iter().map(|x| f64::from(*x)).collect();
                    close(&format!("{kernels:?} {shape:?}"), ours, &theirs, 1e-5);
                }
            }
        }
    }
}

#[test]
fn after_training_the_running_statistics_are_used() {
    let case = Case::new([6, 11, 5], 1.0, 0.3, NormEpilogue { pool: 2, ..RELU });
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            let trained = case.module(&Device::flex().autodiff());
            case.run(&trained, None);
            let mean: Vec<f32> = values(trained.running_mean.value());
            let valid = trained.clone().valid();
            let x = TensorData::new(case.x.clone(), case.shape);
            let x = Tensor::<3>::from_data(x, &Device::flex());
            let y = values(valid.forward(x.clone()));
            let variance = values(valid.running_var.value());
            let expected: Vec<f64> = (0..case.x.len())
                .map(|at| {
                    let channel = at % 5;
                    let f = |x: &[f32], at: usize| f64::from(x[at]);
                    let deviation = (f(&variance, channel) + 1e-5).sqrt();
                    (f(&case.x, at) - f(&mean, channel)) / deviation * f(&case.gamma, channel)
                        + f(&case.beta, channel)
                })
                .collect();
            close("y", &y, &expected, 1e-6);
            assert_eq!(values(valid.running_mean.value()), mean, "evaluation moves nothing");
            // Frozen, it is a fixed map with a gradient: dx = dy · gamma / deviation.
            let frozen = trained.no_grad();
            let x = Tensor::<3>::from_inner(x).require_grad();
            let grads = frozen.forward(x.clone()).sum().backward();
            let dx = values(x.grad(&grads).expect("tracked"));
            let expected: Vec<f64> = (0..dx.len())
                .map(|at| {
                    f64::from(case.gamma[at % 5]) / (f64::from(variance[at % 5]) + 1e-5).sqrt()
                })
                .collect();
            close("dx", &dx, &expected, 1e-6);
            assert_eq!(values(frozen.running_mean.value()), mean, "nor does a frozen module");
        });
    }
}

#[test]
fn clones_share_the_running_statistics_until_one_is_mapped() {
    struct Double;
    impl burn::module::ModuleMapper for Double {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|value| value * 2.0)
        }
    }
    struct Sum(f32);
    impl burn::module::ModuleVisitor for Sum {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0 += values(param.val()).iter().sum::<f32>();
        }
    }
    let case = Case::new([6, 11, 5], 1.0, 0.3, NormEpilogue::NONE);
    let first = case.module(&Device::flex().autodiff());
    let second = first.clone();
    case.run(&first, None);
    let mean = values(first.running_mean.value());
    assert_eq!(values(second.running_mean.value()), mean);
    let mapped = second.map(&mut Double);
    assert_eq!(
        values(mapped.running_mean.value()),
        mean.iter().map(|m| m * 2.0).collect::<Vec<_>>()
    );
    assert_eq!(values(first.running_mean.value()), mean);
    // A visitor sees the newest values, and four parameters.
    let mut sum = Sum(0.0);
    first.visit(&mut sum);
    let parts = [first.gamma.val(), first.beta.val(), first.running_mean.value()];
    let expected: f32 = parts.into_iter().chain([first.running_var.value()]).flat_map(values).sum();
    assert!((sum.0 - expected).abs() < 1e-4, "{} {expected}", sum.0);
}

#[test]
fn nan_spoils_its_channel_and_one_row_has_no_statistics() {
    let device = Device::flex().autodiff();
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            let mut case = Case::new([4, 6, 20], 1.0, 0.0, NormEpilogue { pool: 2, ..RELU });
            case.x[3 * 20 + 7] = f32::NAN;
            let [y, ..] = case.run(&case.module(&device), None);
            // Burn's maximum promises nothing about NaN.
            if kernels != CpuKernels::Composed {
                assert!(y.iter().enumerate().all(|(at, y)| y.is_nan() == (at % 20 == 7)));
            }
            // By the running mean 0 and variance 1, which stay.
            let one = Case::new([1, 1, 3], 1.0, 0.4, NormEpilogue::NONE);
            let module = one.module(&device);
            let [y, dx, dgamma, dbeta] = one.run(&module, None);
            for channel in 0..3 {
                let deviation = (1.0f32 + 1e-5).sqrt();
                let (x, dy) = (one.x[channel] / deviation, one.dy[channel]);
                let gamma = one.gamma[channel];
                let near = |found: f32, exact: f32| assert!((found - exact).abs() < 1e-5);
                near(y[channel], x * gamma + one.beta[channel]);
                near(dx[channel], dy * gamma / deviation);
                near(dgamma[channel], dy * x);
                near(dbeta[channel], dy);
            }
            assert_eq!(values(module.running_mean.value()), [0.0; 3]);
            assert_eq!(values(module.running_var.value()), [1.0; 3]);
        });
    }
}

#[test]
fn nothing_goes_in_or_comes_out_and_gradients_are_zeros() {
    let device = Device::flex().autodiff();
    // Of the last, steps go in, and are fewer than the maximum takes.
    for (shape, pool) in [([0, 4, 3], 1), ([2, 0, 3], 2), ([0, 5, 3], 2), ([2, 3, 3], 5)] {
        for kernels in CpuKernels::available() {
            kernels.force(|| {
                let case = Case::new([2, 3, 3], 1.0, 0.3, NormEpilogue::NONE);
                let module = case.module(&device);
                let x = Tensor::<3>::zeros(shape, &device).require_grad();
                let y = module.forward_with(x.clone(), NormEpilogue { pool, ..RELU }, None);
                assert_eq!(y.dims(), [shape[0], shape[1] / pool, 3], "{kernels:?}");
                let grads = y.sum().backward();
                let dx = x.grad(&grads).expect("tracked");
                assert_eq!((dx.dims(), values(dx)), (shape, vec![0.0; shape.iter().product()]));
                for parameter in [&module.gamma, &module.beta] {
                    let d = parameter.val().grad(&grads).expect("tracked");
                    assert_eq!(values(d), [0.0; 3], "{kernels:?} {shape:?}");
                }
                let plain = module.clone().valid().forward(Tensor::zeros(shape, &Device::flex()));
                assert_eq!(plain.dims(), shape);
            });
        }
    }
}

#[test]
fn denormal_numbers_count_forward_and_back() {
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            // Numbers whose variance is far below any ε, and what is left of them by a small one.
            let mut case = Case::new([8, 5, 7], 1.0, 0.0, NormEpilogue::NONE);
            case.x = noise(11, case.x.len(), 1e-40, 0.0);
            let device = Device::flex().autodiff();
            // A shift would hide what it is added to.
            case.beta.fill(0.0);
            let mut module = case.module(&device);
            module.epsilon = 1e-30;
            let [y, ..] = case.run(&module, None);
            for (at, y) in y.iter().enumerate() {
                let channel = at % 7;
                let column = || case.x.iter().skip(channel).step_by(7).map(|x| f64::from(*x));
                let mean = column().sum::<f64>() / 40.0;
                let exact = (f64::from(case.x[at]) - mean) * 1e15 * f64::from(case.gamma[channel]);
                // A unit of the smallest numbers, and of their mean.
                let error = (f64::from(*y) - exact).abs();
                assert!(error < 8.0 * 2f64.powi(-149) * 1e15, "{kernels:?} {at}: {y:e} {exact:e}");
            }
            // Gradients that are denormal arrive at numbers that are not.
            let mut case = Case::new([8, 5, 7], 1.0, 0.3, NormEpilogue::NONE);
            case.dy = noise(12, case.dy.len(), 1e-40, 0.0);
            let [_, dx, dgamma, dbeta, ..] = case.reference();
            let found = case.run(&case.module(&device), None);
            let names = ["dx", "dgamma", "dbeta"].into_iter().zip([&dx, &dgamma, &dbeta]);
            for ((name, exact), found) in names.zip(&found[1..]) {
                let largest = exact.iter().fold(0.0, |largest, one| one.abs().max(largest));
                assert!(largest > 5e-41, "{name}");
                for (found, exact) in found.iter().zip(exact) {
                    let error = (f64::from(*found) - exact).abs();
                    assert!(
                        error < 64.0 * 2f64.powi(-149),
                        "{kernels:?} {name}: {found:e} {exact:e}"
                    );
                }
            }
        });
    }
}

#[test]
fn nan_spoils_the_gradients_of_its_channel_and_no_other() {
    let device = Device::flex().autodiff();
    let of = |at: usize| at % 20 == 7;
    for epilogue in [NormEpilogue::NONE, NormEpilogue { pool: 2, ..RELU }] {
        for kernels in CpuKernels::available().into_iter().skip(1) {
            kernels.force(|| {
                let same = |name: &str, found: &[f32], nan: &dyn Fn(usize) -> bool| {
                    let fits = found.iter().enumerate().all(|(at, one)| one.is_nan() == nan(at));
                    assert!(fits, "{kernels:?} {epilogue:?} {name}: {found:?}");
                };
                let mut case = Case::new([4, 6, 20], 1.0, 0.0, epilogue);
                case.x[3 * 20 + 7] = f32::NAN;
                let [y, dx, dgamma, dbeta] = case.run(&case.module(&device), None);
                same("y", &y, &of);
                same("dx", &dx, &of);
                same("dgamma", &dgamma, &of);
                // A sum of what arrives, which is finite.
                same("dbeta", &dbeta, &|_| false);
            });
        }
    }
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            let mut case = Case::new([4, 6, 20], 1.0, 0.0, NormEpilogue::NONE);
            case.dy[3 * 20 + 7] = f32::NAN;
            let [y, dx, dgamma, dbeta] = case.run(&case.module(&device), None);
            assert!(y.iter().all(|y| y.is_finite()));
            for (name, found) in [("dx", &dx), ("dgamma", &dgamma), ("dbeta", &dbeta)] {
                let fits = found.iter().enumerate().all(|(at, one)| one.is_nan() == of(at));
                assert!(fits, "{kernels:?} {name}: {found:?}");
            }
        });
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    for (shape, epilogue) in [
        ([50, 61, 40], NormEpilogue { rectify: true, pool: 2, dropout: 0.2 }),
        ([50, 61, 37], NormEpilogue::NONE),
        ([7000, 1, 5], RELU),
    ] {
        let case = Case::new(shape, 1.0, 0.0, epilogue);
        for kernels in CpuKernels::available().into_iter().skip(1) {
            let run = || {
                let module = case.module(&Device::flex().autodiff());
                let results = case.run(&module, Some(Stream::new(1, "dropout")));
                let running = [&module.running_mean, &module.running_var];
                (results, running.map(|statistic| values(statistic.value())))
            };
            let results = [1, 2, 3].map(|threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                pool.expect("a pool").install(|| kernels.force(run))
            });
            let same = results[0] == results[1] && results[0] == results[2];
            assert!(same, "{kernels:?} {shape:?}");
        }
    }
}

#[test]
#[should_panic(
    expected = "batch normalisation of [2, 5, 3] ([batch, time, channel]) by gamma [4] and beta [4]"
)]
fn channels_must_fit() {
    let device = Device::flex();
    BatchNormConfig::new(4).init(&device).forward(Tensor::zeros([2, 5, 3], &device));
}

#[test]
#[should_panic(
    expected = "batch normalisation of [2, 5, 4] ([batch, time, channel]) by gamma [4] and beta [3]"
)]
fn scales_and_shifts_must_fit() {
    let device = Device::flex();
    let mut module = BatchNormConfig::new(4).init(&device);
    module.beta = Param::from_tensor(Tensor::zeros([3], &device));
    module.forward(Tensor::zeros([2, 5, 4], &device));
}

/// A module on the processor whose running statistics are in F16.
fn with_half_statistics() -> BatchNorm {
    let mut module = BatchNormConfig::new(5).init(&Device::flex().autodiff());
    let half = |value: f64| Tensor::full([5], value, (&Device::flex(), DType::F16));
    module.running_mean = RunningStatistic::new(half(0.5));
    module.running_var = RunningStatistic::new(half(4.0));
    module
}

#[test]
fn in_evaluation_kernels_take_running_statistics_of_another_type() {
    let module = with_half_statistics().valid();
    for kernels in CpuKernels::available().into_iter().filter(|k| *k != CpuKernels::Composed) {
        kernels.force(|| {
            let y = values(module.forward(Tensor::full([2, 3, 5], 2.5, &Device::flex())));
            assert!(y.iter().all(|y| (y - 1.0).abs() < 1e-4), "{kernels:?}: {y:?}");
        });
    }
}

#[test]
fn in_training_running_statistics_of_another_type_are_refused() {
    for kernels in CpuKernels::available() {
        let refused = std::panic::catch_unwind(|| {
            let x = Tensor::full([2, 3, 5], 2.5, &Device::flex().autodiff());
            kernels.force(|| with_half_statistics().forward(x));
        });
        let panic = refused.expect_err("another type");
        let message = panic.downcast_ref::<String>().expect("a message");
        for said in ["x [2, 3, 5] in F32", "running mean [5] in F16"] {
            assert!(message.contains(said), "{kernels:?}: {message}");
        }
    }
}

#[test]
fn a_batch_that_is_not_finite_leaves_the_running_statistics() {
    for bad in [f32::NAN, f32::INFINITY, f32::MAX] {
        let case = Case::new([6, 11, 5], 1.0, 0.3, RELU);
        let mut spoilt = case.x.clone();
        // In channel 2 of 5 alone.
        spoilt[7] = bad;
        for kernels in CpuKernels::available() {
            kernels.force(|| {
                let module = case.module(&Device::flex().autodiff());
                case.run(&module, None);
                let running =
                    || [&module.running_mean, &module.running_var].map(|r| values(r.value()));
                let before = running();
                let x = TensorData::new(spoilt.clone(), case.shape);
                let _ = module.forward(Tensor::<3>::from_data(x, &Device::flex().autodiff()));
                let after = running();
                for (before, after) in before.iter().zip(&after) {
                    assert_eq!(before[2], after[2], "{bad} moved what it spoilt");
                    assert!(
                        before
                            .iter()
                            .zip(after)
                            .all(|(b, a)| a.is_finite() && (b != a || *b == before[2]))
                    );
                }
            });
        }
    }
}
