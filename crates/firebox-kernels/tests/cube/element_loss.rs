//! Losses of single numbers against PyTorch's values, the formulas in float64, and the CPU kernels.

use burn::tensor::{DType, Device, Tensor};
use firebox_core::Stream;
use firebox_kernels::{
    BinaryCrossEntropy, CpuKernels, GpuKernels, LaunchWatch, MeanLoss, binary_cross_entropy, huber,
    masked_squared_error, squared_error,
};
use serde_json::Value;

use super::alone;
use super::support::case::{float, noise, values};
use super::support::relative_error;

/// A loss with its settings.
#[derive(Clone, Debug)]
enum Loss {
    Squared,
    Huber(f64),
    Binary { positive: Option<Vec<f32>>, focal: f64 },
}

impl Loss {
    fn of(&self, x: Tensor<2>, targets: Tensor<2>, weights: Option<&[f32]>) -> MeanLoss {
        let loss = match self {
            Self::Squared => squared_error(x, targets, weights),
            Self::Huber(delta) => huber(x, targets, weights, *delta),
            Self::Binary { positive, focal } => {
                let config =
                    BinaryCrossEntropy { positive_weights: positive.as_deref(), focal: *focal };
                binary_cross_entropy(x, targets, weights, &config)
            }
        };
        loss.expect("a loss")
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Squared => "squared error",
            Self::Huber(_) => "Huber loss",
            Self::Binary { .. } => "binary cross-entropy",
        }
    }

    /// Value and slope of one number at its place in a row.
    fn exact(&self, x: f64, t: f64, place: usize) -> [f64; 2] {
        let distance = x - t;
        match self {
            Self::Squared => [distance * distance, 2.0 * distance],
            Self::Huber(delta) if distance.abs() <= *delta => [distance * distance / 2.0, distance],
            Self::Huber(delta) => {
                [delta * (distance.abs() - delta / 2.0), delta * distance.signum()]
            }
            Self::Binary { positive, focal } => {
                let own = t * positive.as_ref().map_or(1.0, |w| f64::from(w[place]));
                let ln_sigma = |x: f64| x.min(0.0) - (-x.abs()).exp().ln_1p();
                let (ln_p, ln_q) = (ln_sigma(x), ln_sigma(-x));
                let (p, q) = (ln_p.exp(), ln_q.exp());
                let (to_yes, to_no) = ((focal * ln_q).exp(), (focal * ln_p).exp());
                let value = -(own * to_yes * ln_p + (1.0 - t) * to_no * ln_q);
                let yes = to_yes * (focal * p * ln_p - q);
                let no = to_no * (p - focal * q * ln_q);
                [value, own * yes + (1.0 - t) * no]
            }
        }
    }
}

fn losses(width: usize) -> Vec<Loss> {
    let positive: Vec<f32> =
        noise(Stream::new(9, "positive"), width, 1.0).iter().map(|w| w.abs() as f32).collect();
    let mut losses = vec![Loss::Squared, Loss::Huber(1.0), Loss::Huber(0.3)];
    for focal in [0.0, 2.0, 0.5] {
        losses.push(Loss::Binary { positive: None, focal });
        losses.push(Loss::Binary { positive: Some(positive.clone()), focal });
    }
    losses
}

/// Loss, gradient and weight, with the loss scaled by 4; the loss without a graph is the same.
fn measure(
    loss: &Loss,
    shape: [usize; 2],
    [x, targets]: [&[f64]; 2],
    weights: Option<&[f32]>,
    (device, dtype): (&Device, DType),
) -> (f64, Vec<f64>, f64) {
    let on = |numbers, device: &Device| float::<2>(numbers, shape, device).cast(dtype).detach();
    let plain = loss.of(on(x, device), on(targets, device), weights);
    let graph = device.clone().autodiff();
    let x = on(x, &graph).require_grad();
    let MeanLoss { value, weight } = loss.of(x.clone(), on(targets, device), weights);
    assert_eq!((value.dtype(), weight), (DType::F32, plain.weight));
    let found = values(value.clone())[0];
    // Burn's fused sums are not the same with and without a graph.
    if CpuKernels::current() != Ok(CpuKernels::Composed) {
        assert_eq!(found.to_bits(), values(plain.value)[0].to_bits(), "{}", loss.name());
    }
    let gradients = (value * 4.0).backward();
    let gradient = x.grad(&gradients).expect("a gradient");
    assert_eq!(gradient.dtype(), dtype);
    let gradient = values(gradient.cast(DType::F32)).iter().map(|g| g / 4.0).collect();
    (found, gradient, weight)
}

#[track_caller]
fn close(what: &str, found: &[f64], expected: &[f64], bound: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let error: f64 = found.iter().zip(expected).map(|(f, e)| (f - e).powi(2)).sum();
    let norm: f64 = expected.iter().map(|e| e * e).sum();
    // Gradients of 1e-30 and the like count as zeros.
    assert!(error.sqrt() <= bound * norm.sqrt() + 1e-20, "{what}: {found:?}, not {expected:?}");
}

#[test]
fn losses_and_gradients_are_pytorchs() {
    alone(|device| {
        let golden: Value = serde_json::from_str(include_str!("../golden/losses.json"))
            .expect("what PyTorch wrote");
        let number = |value: &Value| {
            let text = || value.as_str().and_then(|text| text.parse().ok());
            value.as_f64().or_else(text).expect("a number")
        };
        let numbers = |value: &Value| -> Vec<f64> {
            value.as_array().expect("numbers").iter().map(number).collect()
        };
        let singles = |value: &Value| -> Option<Vec<f32>> {
            value.as_array().map(|all| all.iter().map(|one| number(one) as f32).collect())
        };
        let cases = golden["elements"].as_array().expect("cases");
        assert!(!cases.is_empty());
        for (index, case) in cases.iter().enumerate() {
            let loss = match case["name"].as_str().expect("a name") {
                "squared" | "masked" => Loss::Squared,
                "huber" => Loss::Huber(number(&case["delta"])),
                _ => Loss::Binary {
                    positive: singles(&case["positive"]),
                    focal: case["focal"].as_f64().unwrap_or(0.0),
                },
            };
            let (x, targets) = (numbers(&case["x"]), numbers(&case["targets"]));
            let width = numbers(&case["shape"]).last().map_or(1, |width| *width as usize);
            let weights = singles(&case["weights"]);
            let shape = [x.len() / width, width];
            let (value, gradient, _) =
                measure(&loss, shape, [&x, &targets], weights.as_deref(), (&device, DType::F32));
            let what = format!("{} {index}", case["name"]);
            close(&what, &[value], &[number(&case["value"])], 5e-6);
            close(&what, &gradient, &numbers(&case["gradient"]), 1e-5);
        }
    });
}

/// None, one for each number and one for each row; some are 0.
fn weights([rows, width]: [usize; 2]) -> [Option<Vec<f32>>; 3] {
    let draw = |seed, count| -> Vec<f32> {
        let numbers = noise(Stream::new(seed, "weights"), count, 1.0);
        let one = |(place, w): (usize, &f64)| if place % 3 == 1 { 0.0 } else { w.abs() as f32 };
        numbers.iter().enumerate().map(one).collect()
    };
    [None, Some(draw(1, rows * width)), Some(draw(2, rows))]
}

fn problem([rows, width]: [usize; 2]) -> [Vec<f64>; 2] {
    let x = noise(Stream::new(1, "loss"), rows * width, 3.0);
    let mut draws = Stream::new(2, "targets").draws();
    let targets = (0..rows * width).map(|_| f64::from(draws.uniform())).collect();
    [x, targets]
}

#[test]
fn the_squared_error_of_some_rows_is_two_launches_and_reads_no_other() {
    alone(|device| {
        for shape @ [samples, time, width] in [[1, 1, 1], [3, 5, 4], [7, 105, 3], [64, 133, 17]] {
            let [mut x, targets] = problem([samples * time, width]);
            let kept = |row: usize| row.is_multiple_of(3);
            let counted: Vec<f64> =
                (0..samples * time).map(|row| f64::from(u8::from(kept(row)))).collect();
            let numbers = counted.iter().sum::<f64>() * width as f64;
            let (mut value, mut gradient) = (0.0, vec![]);
            for (at, (x, target)) in x.iter_mut().zip(&targets).enumerate() {
                let share = counted[at / width] / numbers;
                value += share * (*x - target).powi(2);
                gradient.push(2.0 * share * (*x - target));
                if !kept(at / width) {
                    *x = [f64::NAN, f64::INFINITY][at % 2];
                }
            }
            let graph = device.clone().autodiff();
            let x = float::<3>(&x, shape, &graph).require_grad();
            let targets = float::<3>(&targets, shape, &device);
            let counted = float::<3>(&counted, [samples, time, 1], &device);
            let watch = LaunchWatch::start();
            let loss = masked_squared_error(x.clone(), targets, counted, numbers);
            let found = values(loss.clone());
            let launched = watch.end();
            assert!((1..=2).contains(&launched.len()), "{launched:?}");
            let gradients = (loss * 4.0).backward();
            let slope = values(x.grad(&gradients).expect("a gradient"));
            let slope: Vec<f64> = slope.iter().map(|g| g / 4.0).collect();
            let what = format!("{shape:?}");
            close(&what, &found, &[value], 3e-6);
            close(&what, &slope, &gradient, 3e-6);
        }
    });
}

#[test]
fn random_sizes_agree_with_float64_and_the_host() {
    alone(|device| {
        for shape in [[1, 1], [1, 7], [5, 3], [2, 1024], [1, 2049], [683, 17], [90, 1031]] {
            let [rows, width] = shape;
            let [x, targets] = problem(shape);
            for loss in losses(width) {
                for weights in weights(shape) {
                    let of = |place: usize| match &weights {
                        None => 1.0,
                        Some(weights) if weights.len() == rows * width => f64::from(weights[place]),
                        Some(weights) => f64::from(weights[place / width]),
                    };
                    let total: f64 = (0..rows * width).map(of).sum();
                    let (mut value, mut gradient) = (0.0, vec![]);
                    for place in 0..rows * width {
                        let [of_one, slope] = loss.exact(x[place], targets[place], place % width);
                        let share = if total > 0.0 { of(place) / total } else { 0.0 };
                        value += share * of_one;
                        gradient.push(share * slope);
                    }
                    let kind = weights.as_ref().map(Vec::len);
                    let what = format!("{}, {shape:?}, {kind:?} weights", loss.name());
                    let on = |device: &Device| {
                        let of = weights.as_deref();
                        measure(&loss, shape, [&x, &targets], of, (device, DType::F32))
                    };
                    let found = on(&device);
                    close(&what, &[found.0, found.2], &[value, total], 3e-6);
                    if total > 0.0 {
                        let error = relative_error(&found.1, &gradient);
                        assert!(error < 3e-6, "{what}: the gradient is off by {error:.2e}");
                    }
                    let host = on(&Device::flex());
                    close(&what, &[found.0, found.2], &[host.0, host.2], 3e-6);
                    close(&what, &found.1, &host.1, 3e-6);
                    assert_eq!(on(&device), found, "{what}: not the same again");
                }
            }
        }
    });
}

#[test]
fn a_loss_is_one_launch_and_one_for_the_sum_of_many_numbers() {
    alone(|device| {
        for (shape, sums) in [([3, 20], 0), ([90, 1031], 1)] {
            let [x, targets] = problem(shape);
            for loss in losses(shape[1]) {
                let run = || measure(&loss, shape, [&x, &targets], None, (&device, DType::F32));
                let ours = run();
                let watch = LaunchWatch::start();
                run();
                let launched = watch.end();
                let works: Vec<_> =
                    launched.iter().filter_map(|one| one.work.as_ref()).map(|w| w.name).collect();
                let named = |name| works.iter().filter(|work| **work == name).count();
                // Without a graph, and with one.
                assert_eq!((named(loss.name()), named("sum")), (2, 2 * sums), "{works:?}");
                assert_eq!(works.len(), 2 + 2 * sums, "{works:?}");
                let theirs = CpuKernels::Composed.force(run);
                close("the loss", &[ours.0], &[theirs.0], 1e-5);
                close("the gradient", &ours.1, &theirs.1, 1e-5);
            }
        }
    });
}

#[test]
fn what_has_no_weight_is_not_read_and_nothing_learnt_from_is_zero() {
    alone(|device| {
        let x = [1.0, f64::NAN, f64::INFINITY, -2.0, 0.5, f64::NEG_INFINITY];
        let targets = [0.0, 1.0, f64::NAN, 1.0, f64::NAN, 0.25];
        for loss in losses(3) {
            let one = |weights: &[f32]| {
                measure(&loss, [2, 3], [&x, &targets], Some(weights), (&device, DType::F32))
            };
            let (value, gradient, weight) = one(&[2.0, 0.0, 0.0, 1.0, 0.0, 0.0]);
            assert!(value.is_finite() && value > 0.0 && weight == 3.0, "{loss:?}: {value}");
            assert!(gradient[0] != 0.0 && gradient[3] != 0.0, "{loss:?}: {gradient:?}");
            for unread in [1, 2, 4, 5] {
                assert_eq!(gradient[unread], 0.0, "{loss:?}");
            }
            for nothing in [&[0.0; 6][..], &[0.0; 2]] {
                let (value, gradient, weight) = one(nothing);
                assert_eq!((value, gradient, weight), (0.0, vec![0.0; 6], 0.0), "{loss:?}");
            }
            // What is read and is no number is none afterwards, and nothing else is.
            for broken in [1, 4] {
                let mut weights = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0];
                weights[broken] = 1.0;
                let (value, gradient, _) = one(&weights);
                assert!(value.is_nan() && gradient[broken].is_nan(), "{loss:?}: {gradient:?}");
                assert!(gradient[0].is_finite() && gradient[3].is_finite(), "{loss:?}");
            }
        }
        for loss in losses(4) {
            let nothing = Tensor::<2>::zeros([0, 4], &device);
            let MeanLoss { value, weight } = loss.of(nothing.clone(), nothing, None);
            assert_eq!((values(value), weight), (vec![0.0], 0.0));
        }
    });
}

#[test]
fn extremes_are_those_of_the_host() {
    alone(|device| {
        // Logits that are told well or not at all, and distances from small to large.
        let x = [0.0, -0.0, 12.0, -12.0, 30.0, -30.0, 80.0, -80.0, 200.0, -200.0, 1e4, -1e4];
        let one = |x: f64, target: f64, loss: &Loss, device: &Device| {
            let pair = [&[x][..], &[target]];
            measure(loss, [1, 1], pair, None, (device, DType::F32))
        };
        for loss in losses(1) {
            for x in x {
                for target in [0.0, 0.25, 1.0] {
                    let found = one(x, target, &loss, &device);
                    let host = one(x, target, &loss, &Device::flex());
                    let what = format!("{loss:?} of {x} and {target}");
                    for (found, host) in [(found.0, host.0), (found.1[0], host.1[0])] {
                        // What an exponential of f32 has left of its digits, and its smallest numbers.
                        let near = (found - host).abs() <= 2e-5 * host.abs() + 1e-36;
                        assert!(near, "{what}: {found:e}, not {host:e}");
                    }
                }
            }
        }
        // Infinite distances and large ones: only Huber's slope is finite.
        let run = |loss: Loss, x: f64| {
            let found = measure(&loss, [1, 1], [&[x], &[0.0]], None, (&device, DType::F32));
            (found.0, found.1[0])
        };
        assert_eq!(run(Loss::Huber(2.0), f64::NEG_INFINITY), (f64::INFINITY, -2.0));
        assert_eq!(run(Loss::Squared, f64::INFINITY), (f64::INFINITY, f64::INFINITY));
        assert_eq!(run(Loss::Huber(f64::INFINITY), 3.0), (4.5, 3.0));
        // Weights whose sum f32 has, or has not.
        let shape = [3, 5];
        let [x, targets] = problem(shape);
        for scale in [1e-36f32, 1e-28, 1e-10, 1e28, 1e36] {
            let weights: Vec<f32> = (0..15).map(|place| scale * (1 + place % 4) as f32).collect();
            for loss in losses(5) {
                let of = |device: &Device| {
                    measure(&loss, shape, [&x, &targets], Some(&weights), (device, DType::F32))
                };
                let (found, host) = (of(&device), of(&Device::flex()));
                let what = format!("{loss:?} by weights of {scale:e}");
                close(&what, &[found.0], &[host.0], 3e-6);
                close(&what, &found.1, &host.1, 3e-6);
            }
        }
    });
}

#[test]
fn targets_and_predictions_may_lie_across() {
    alone(|device| {
        let [x, targets] = problem([7, 13]);
        let turn = |of: &[f64]| -> Vec<f64> { (0..91).map(|i| of[i % 7 * 13 + i / 7]).collect() };
        let weights: Vec<f32> = (0..91).map(|i| (i % 5) as f32).collect();
        for loss in losses(7) {
            let across = |of: &[f64]| float::<2>(of, [7, 13], &device).swap_dims(0, 1);
            let along = |of: &[f64]| float::<2>(&turn(of), [13, 7], &device);
            let one = loss.of(across(&x), across(&targets), Some(&weights));
            let other = loss.of(along(&x), along(&targets), Some(&weights));
            assert_eq!(values(one.value), values(other.value), "{loss:?}");
        }
    });
}

#[test]
fn halves_are_measured_in_f32() {
    alone(|device| {
        if GpuKernels::of_layer(&device, DType::F16, 1, 1, 1).is_err() {
            return println!("skipped: this device does not store F16");
        }
        let shape = [5, 9];
        // Rounded here: fusion may take a number to a narrower type and back in one register.
        let round = |of: Vec<f64>| -> Vec<f64> {
            of.into_iter().map(|x| half::f16::from_f64(x).to_f64()).collect()
        };
        let [x, targets] = problem(shape).map(round);
        for loss in losses(9) {
            let of = |dtype| measure(&loss, shape, [&x, &targets], None, (&device, dtype));
            let (half, full) = (of(DType::F16), of(DType::F32));
            assert_eq!((half.0, half.2), (full.0, full.2), "{loss:?}");
            for (half, full) in half.1.iter().zip(&full.1) {
                let near = (half - full).abs() <= 2f64.powi(-11) * full.abs() + 1e-7;
                assert!(near, "{loss:?}: {half} {full}");
            }
        }
    });
}
