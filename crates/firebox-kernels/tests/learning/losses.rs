//! Losses and their gradients: `golden_learning.py` wrote what PyTorch gives; larger cases are compared
//! with the formula in float64.

use burn::backend::Flex;
use burn::tensor::{DType, Device, Tensor, TensorData};
use firebox_core::Stream;
use firebox_kernels::{
    BinaryCrossEntropy, CpuKernels, CrossEntropy, LossError, MeanLoss, binary_cross_entropy,
    cross_entropy, huber, squared_error,
};
use serde::Deserialize;
use serde_json::Value;

use crate::entropy::reference;
use crate::masked::masked;

#[derive(Deserialize)]
struct Golden {
    entropy: Vec<Entropy>,
    elements: Vec<Elements>,
}

#[derive(Deserialize)]
struct Entropy {
    name: String,
    shape: [usize; 2],
    x: Vec<Value>,
    targets: Vec<i64>,
    smoothing: f64,
    class_weights: Option<Vec<f32>>,
    #[serde(default)]
    focal: f64,
    value: Value,
    gradient: Vec<Value>,
}

#[derive(Deserialize)]
struct Elements {
    name: String,
    shape: Vec<usize>,
    x: Vec<Value>,
    targets: Vec<Value>,
    weights: Option<Vec<f32>>,
    #[serde(default)]
    delta: f64,
    positive: Option<Vec<f32>>,
    #[serde(default)]
    focal: f64,
    value: Value,
    gradient: Vec<Value>,
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| value.as_str().unwrap().parse().unwrap())
}

fn numbers(values: &[Value]) -> Vec<f64> {
    values.iter().map(number).collect()
}

pub(crate) fn tensor<const D: usize>(values: &[f64], shape: [usize; D]) -> Tensor<D> {
    let values: Vec<f32> = values.iter().map(|v| *v as f32).collect();
    Tensor::from_data(TensorData::new(values, shape), &Device::flex().autodiff())
}

pub(crate) fn read<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

#[track_caller]
pub(crate) fn close(what: &str, found: &[f64], expected: &[f64], bound: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let error: f64 = found.iter().zip(expected).map(|(f, e)| (f - e).powi(2)).sum();
    let norm: f64 = expected.iter().map(|e| e * e).sum();
    // Gradients of 1e-38 and the like count as zeros.
    assert!(error.sqrt() <= bound * norm.sqrt() + 1e-30, "{what}: {found:?}, not {expected:?}");
}

/// Value and gradient of a loss, with the loss scaled by 4, and the value without gradients.
pub(crate) fn measure<const D: usize>(
    x: Tensor<D>,
    loss: impl Fn(Tensor<D>) -> Result<MeanLoss, LossError>,
) -> (f64, Vec<f64>, f64) {
    let x = x.require_grad();
    let plain = read(loss(x.clone().inner()).unwrap().value)[0];
    let MeanLoss { value, weight } = loss(x.clone()).unwrap();
    let found = read(value.clone())[0];
    assert!(found == plain || found.is_nan() && plain.is_nan(), "{found} {plain}");
    let gradients = (value * 4.0).backward();
    let gradient = read(x.grad(&gradients).unwrap()).iter().map(|g| g / 4.0).collect();
    (found, gradient, weight)
}

#[test]
fn losses_and_gradients_are_pytorchs_in_every_variant() {
    let golden: Golden = serde_json::from_str(include_str!("../golden/losses.json")).unwrap();
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            for case in &golden.entropy {
                let what = format!("{kernels:?}: {}", case.name);
                let config = CrossEntropy {
                    label_smoothing: case.smoothing,
                    class_weights: case.class_weights.as_deref(),
                    focal: case.focal,
                    ..CrossEntropy::default()
                };
                let x = tensor(&numbers(&case.x), case.shape);
                let (value, gradient, _) = measure(x, |x| cross_entropy(x, &case.targets, &config));
                close(&what, &[value], &[number(&case.value)], 2e-6);
                close(&what, &gradient, &numbers(&case.gradient), 1e-5);
            }
            for (index, case) in golden.elements.iter().enumerate() {
                let what = format!("{kernels:?}: {} {index}", case.name);
                let (x, targets) = (numbers(&case.x), numbers(&case.targets));
                let weights = case.weights.as_deref();
                let loss = |x: Tensor<3>| {
                    let targets = tensor(&targets, x.dims());
                    match case.name.as_str() {
                        "squared" => squared_error(x, targets, weights),
                        "huber" => huber(x, targets, weights, case.delta),
                        "masked" => Ok(masked(x, &targets, weights.unwrap())),
                        _ => {
                            let positive_weights = case.positive.as_deref();
                            let config = BinaryCrossEntropy { positive_weights, focal: case.focal };
                            binary_cross_entropy(x, targets, weights, &config)
                        }
                    }
                };
                // The extremes have two axes.
                let mut shape = [1; 3];
                let axes = case.shape.len();
                shape[3 - axes..].copy_from_slice(&case.shape);
                let (value, gradient, _) = measure(tensor(&x, shape), loss);
                close(&what, &[value], &[number(&case.value)], 2e-6);
                close(&what, &gradient, &numbers(&case.gradient), 1e-5);
            }
        });
    }
}

pub(crate) fn noise(purpose: u64, count: usize, scale: f64) -> Vec<f64> {
    let mut draws = Stream::new(5, "losses").substream(purpose).draws();
    (0..count).map(|_| f64::from((scale * draws.normal()) as f32)).collect()
}

pub(crate) fn fused() -> Vec<CpuKernels> {
    CpuKernels::available().into_iter().filter(|k| *k != CpuKernels::Composed).collect()
}

#[test]
fn large_and_odd_sizes_agree_with_float64_on_any_number_of_threads() {
    for (rows, classes) in [(1, 2), (3, 17), (700, 3), (129, 1_031), (5, 30_522), (9_000, 7)] {
        let x = noise(1, rows * classes, 4.0);
        let mut draws = Stream::new(7, "targets").draws();
        let mut target = || draws.below(classes as u64 + 1) as i64;
        // One more than the classes is passed over, but for the first.
        let drawn = (0..rows).map(|_| target()).map(|t| if t == classes as i64 { -100 } else { t });
        let mut targets: Vec<i64> = drawn.collect();
        targets[0] = 1;
        let positive = |seed, count| {
            noise(seed, count, 1.0).iter().map(|w| w.abs() as f32).collect::<Vec<_>>()
        };
        let (class_weights, sample_weights) = (positive(2, classes), positive(3, rows));
        let config = CrossEntropy {
            label_smoothing: 0.1,
            class_weights: Some(&class_weights),
            sample_weights: Some(&sample_weights),
            ..CrossEntropy::default()
        };
        let (value, gradient, weight) =
            reference(&x, classes, &targets, 0.1, &class_weights, &sample_weights);
        for kernels in fused() {
            let run = |threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let x = tensor(&x, [rows, classes]);
                let loss = |x| cross_entropy(x, &targets, &config);
                pool.install(|| kernels.force(|| measure(x, loss)))
            };
            let found = run(1);
            let what = format!("{kernels:?}, {rows} rows of {classes}");
            close(&what, &[found.0, found.2], &[value, weight], 1e-6);
            close(&what, &found.1, &gradient, 1e-5);
            assert_eq!(run(2), found, "{what}");
            assert_eq!(run(3), found, "{what}");
        }
    }
}

#[test]
fn finite_differences_agree() {
    let (rows, classes) = (4, 6);
    let x = noise(11, rows * classes, 1.5);
    let targets = [0, 5, -100, 3];
    let entropy = |focal| {
        move |x: Tensor<2>| {
            cross_entropy(x, &targets, &CrossEntropy { focal, ..CrossEntropy::default() })
        }
    };
    let others = tensor::<2>(&noise(12, rows * classes, 1.0), [rows, classes]).inner();
    let labels = others.clone().greater_elem(0.0).float();
    let check = |what: &str, loss: &dyn Fn(Tensor<2>) -> Result<MeanLoss, LossError>| {
        let (_, gradient, _) = measure(tensor(&x, [rows, classes]), loss);
        for place in 0..x.len() {
            let at = |step: f64| {
                let mut moved = x.clone();
                moved[place] += step;
                read(loss(tensor(&moved, [rows, classes])).unwrap().value)[0]
            };
            let slope = (at(1e-2) - at(-1e-2)) / 2e-2;
            assert!((slope - gradient[place]).abs() < 2e-4, "{what} {place}: {slope}");
        }
    };
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            check("entropy", &entropy(0.0));
            check("focal", &entropy(1.5));
            check("squared", &|x| squared_error(x, others.clone(), None));
            check("masked", &|x| Ok(masked(x, &others, &[1.0, 0.0, 1.0, 1.0])));
            check("huber", &|x| huber(x, others.clone(), None, 0.8));
            for focal in [0.0, 1.5] {
                let config = BinaryCrossEntropy { focal, ..BinaryCrossEntropy::default() };
                check("binary", &|x| binary_cross_entropy(x, labels.clone(), None, &config));
            }
        });
    }
}

#[test]
fn what_has_no_weight_is_not_read_and_nothing_learnt_from_is_zero() {
    let nan = f64::NAN;
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            let config = CrossEntropy::default();
            let x = [1.0, 2.0, nan, nan, 0.5, f64::INFINITY];
            let one = |targets: &'static [i64]| {
                measure(tensor(&x, [3, 2]), |x| cross_entropy(x, targets, &config))
            };
            let (value, gradient, weight) = one(&[1, -100, -100]);
            let p = 1.0 / (1.0 + 1f64.exp());
            close("one row", &[value], &[-(1.0 - p).ln()], 1e-6);
            close("one row", &gradient, &[p, -p, 0.0, 0.0, 0.0, 0.0], 1e-6);
            assert_eq!(weight, 1.0);
            assert_eq!(one(&[-100; 3]), (0.0, vec![0.0; 6], 0.0), "{kernels:?}");
            // A row that is read and is no number is none afterwards.
            let (value, gradient, _) = one(&[1, 0, -100]);
            assert!(value.is_nan() && gradient[2].is_nan() && gradient[1].is_finite());

            let weights = [1.0, 1.0, 0.0, 0.0, 1.0, 0.0];
            let masked = |kind: usize| {
                let target = tensor(&[0.0, 1.0, nan, 1.0, 1.0, nan], [3, 2]);
                measure(tensor(&x, [3, 2]), move |x| match kind {
                    0 => squared_error(x, target.clone(), Some(&weights)),
                    1 => huber(x, target.clone(), Some(&weights), 1.0),
                    2 => {
                        let config = BinaryCrossEntropy::default();
                        binary_cross_entropy(x, target.clone(), Some(&weights), &config)
                    }
                    _ => squared_error(x, target.clone(), Some(&[0.0; 3])),
                })
            };
            for kind in 0..3 {
                let (value, gradient, weight) = masked(kind);
                assert!(value.is_finite() && value > 0.0 && weight == 3.0, "{kernels:?} {kind}");
                assert!(gradient.iter().all(|g| g.is_finite()), "{gradient:?}");
                assert_eq!((gradient[2], gradient[3], gradient[5]), (0.0, 0.0, 0.0));
            }
            close("squared", &[masked(0).0], &[(1.0 + 1.0 + 0.25) / 3.0], 1e-6);
            assert_eq!(masked(3), (0.0, vec![0.0; 6], 0.0));
        });
    }
}

#[test]
fn distances_beyond_f32_are_infinite() {
    let (infinite, most) = (f64::INFINITY, 3e38);
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            // So are differences of numbers that are not.
            for (x, target) in [(infinite, 0.0), (-infinite, 0.0), (most, -most), (-most, most)] {
                let target = tensor(&[target, 0.0], [1, 2]);
                let run = |loss: &dyn Fn(Tensor<2>) -> Result<MeanLoss, LossError>| {
                    let (value, gradient, _) = measure(tensor(&[x, 1.0], [1, 2]), loss);
                    assert_eq!(value, infinite, "{kernels:?} {x}");
                    gradient
                };
                // The slope of half a square, halved for two numbers.
                let slopes = [infinite.copysign(x), 0.5];
                let squared = run(&|x| squared_error(x, target.clone(), None));
                assert_eq!(squared, slopes.map(|slope| 2.0 * slope), "{kernels:?}");
                let of_rows = run(&|x| Ok(masked(x, &target, &[1.0])));
                assert_eq!(of_rows, squared, "{kernels:?}");
                // A delta that f32 has not.
                let huge = run(&|x| huber(x, target.clone(), None, 1e39));
                assert_eq!(huge, slopes, "{kernels:?}");
                let near = run(&|x| huber(x, target.clone(), None, 2.0));
                assert_eq!(near, [1f64.copysign(x), 0.5], "{kernels:?}");
            }
        });
    }
}

#[test]
fn logits_far_from_zero_lose_nothing_of_their_differences() {
    for (size, classes) in [(1e13, 3), (-1e13, 17), (1e30, 5), (-3e38, 40), (3e38, 2)] {
        let size = f64::from(size as f32);
        // Rows of equal logits, and rows of which one is less by more than an exponential can tell.
        let x: Vec<f64> = (0..4 * classes)
            .map(|place| {
                if place / classes >= 2 && place % classes == 1 {
                    size - size.abs() * 0.1
                } else {
                    size
                }
            })
            .map(|x| f64::from(x as f32))
            .collect();
        let (targets, ones) = ([0, 1, 0, -100], vec![1.0; classes]);
        for smoothing in [0.0, 0.1] {
            let config = CrossEntropy { label_smoothing: smoothing, ..CrossEntropy::default() };
            let (value, gradient, _) =
                reference(&x, classes, &targets, smoothing, &ones, &[1.0; 4]);
            for kernels in CpuKernels::available() {
                kernels.force(|| {
                    let what = format!("{kernels:?} {size} {classes} {smoothing}");
                    let loss = |x| cross_entropy(x, &targets, &config);
                    let found = measure(tensor(&x, [4, classes]), loss);
                    close(&what, &[found.0], &[value], 2e-6);
                    close(&what, &found.1, &gradient, 1e-5);
                });
            }
        }
    }
}

#[test]
fn a_loss_near_zero_keeps_its_digits() {
    // What one other class is below the target: the loss is ln(1 + e^-below).
    for below in [18.0, 30.0, 60.0] {
        for (classes, target, other) in [(2, 0, 1), (3, 1, 0), (32, 0, 16), (1500, 1024, 3)] {
            let mut x = vec![-100.0; classes];
            (x[target], x[other]) = (0.0, -below);
            let exact = f64::exp(-below).ln_1p();
            for kernels in fused() {
                kernels.force(|| {
                    let what = format!("{kernels:?} {classes} {below}");
                    let config = CrossEntropy::default();
                    let loss = |x| cross_entropy(x, &[target as i64], &config);
                    let (value, gradient, _) = measure(tensor(&x, [1, classes]), loss);
                    assert!((value / exact - 1.0).abs() < 1e-5, "{what}: {value:e}, not {exact:e}");
                    for (place, slope) in [(target, -exact), (other, exact)] {
                        let error = (gradient[place] / slope - 1.0).abs();
                        assert!(error < 1e-5, "{what}: {:e}, not {slope:e}", gradient[place]);
                    }
                });
            }
        }
    }
}

#[test]
fn rows_of_classes_without_weight_teach_nothing_by_smoothing_either() {
    let config = CrossEntropy {
        class_weights: Some(&[0.0, 1.0]),
        label_smoothing: 0.1,
        ..CrossEntropy::default()
    };
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            let x = tensor(&[1.0, 2.0, -3.0, 0.5], [2, 2]);
            let found = measure(x, |x| cross_entropy(x, &[0, 0], &config));
            assert_eq!(found, (0.0, vec![0.0; 4], 0.0), "{kernels:?}");
        });
    }
}

#[test]
fn rows_of_a_class_without_weight_are_not_read() {
    let config = CrossEntropy { class_weights: Some(&[0.0, 1.0]), ..CrossEntropy::default() };
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            for odd in [[f64::NAN, 0.0], [f64::NEG_INFINITY, 0.0], [f64::INFINITY, f64::NAN]] {
                let x = tensor(&[odd[0], odd[1], 1.0, 2.0], [2, 2]);
                let (value, gradient, weight) = measure(x, |x| cross_entropy(x, &[0, 1], &config));
                let p = 1.0 / (1.0 + 1f64.exp());
                close("the other row", &[value], &[-(1.0 - p).ln()], 1e-6);
                close("its gradient", &gradient, &[0.0, 0.0, p, -p], 1e-6);
                assert_eq!(weight, 1.0, "{kernels:?} {odd:?}");
            }
        });
    }
}

#[test]
fn weights_may_be_as_small_and_as_large_as_numbers_are() {
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            for weight in [1e-45, 1e-39, 1e-20, 1e20, 1.7e38, f32::MAX] {
                let name = format!("{kernels:?} {weight:e}");
                let (x, target) = ([1.0, 4.0], [0.0, 1.0]);
                let run = |by_row: bool| {
                    let shape = if by_row { [2, 1] } else { [1, 2] };
                    let target = tensor(&target, shape);
                    measure(tensor(&x, shape), |x| {
                        squared_error(x, target.clone(), Some(&[weight; 2]))
                    })
                };
                for by_row in [true, false] {
                    let (value, gradient, _) = run(by_row);
                    close(&name, &[value], &[5.0], 1e-6);
                    close(&name, &gradient, &[1.0, 3.0], 1e-6);
                }
                let (value, gradient, _) = measure(tensor(&x, [1, 2]), |x| {
                    huber(x, tensor(&target, [1, 2]), Some(&[weight]), 2.0)
                });
                close(&name, &[value], &[(0.5 + 4.0) / 2.0], 1e-6);
                close(&name, &gradient, &[0.5, 1.0], 1e-6);
            }
        });
    }
}

#[test]
fn empty_batches_give_zero() {
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            let nothing = (0.0, vec![], 0.0);
            let config = CrossEntropy::default();
            let none = measure(tensor(&[], [0, 4]), |x| cross_entropy(x, &[], &config));
            assert_eq!(none, nothing, "{kernels:?}");
            for class_weights in [None, Some(&[][..])] {
                let config = CrossEntropy { class_weights, ..CrossEntropy::default() };
                let x = tensor(&[], [3, 0]);
                let none = measure(x, |x| cross_entropy(x, &[-100; 3], &config));
                assert_eq!(none, nothing, "{kernels:?}");
            }
            // No row, and rows of nothing.
            for shape in [[0, 4], [3, 0]] {
                let x = || tensor::<2>(&[], shape);
                assert_eq!(measure(x(), |one| squared_error(one, x(), None)), nothing);
                assert_eq!(measure(x(), |one| squared_error(one, x(), Some(&[]))), nothing);
                assert_eq!(measure(x(), |one| huber(one, x(), None, 1.0)), nothing);
                for focal in [0.0, 1.5] {
                    let config = BinaryCrossEntropy { focal, ..BinaryCrossEntropy::default() };
                    let found = measure(x(), |one| binary_cross_entropy(one, x(), None, &config));
                    assert_eq!(found, nothing, "{kernels:?} {shape:?}");
                }
            }
        });
    }
}

#[test]
fn denormal_predictions_and_targets_count() {
    // Units of the smallest number; their differences are exact.
    let (x, t) = ([40_000.0, -3.0, 0.0, 900_000.0], [10_000.0, 5.0, -70_000.0, 900_000.0]);
    let least = 2f64.powi(-149);
    let [x, t] = [x, t].map(|units: [f64; 4]| units.map(|one| one * least));
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            let near = |what: &str, found: &[f64], exact: [f64; 4]| {
                for (found, exact) in found.iter().zip(exact) {
                    assert!(
                        (found - exact).abs() <= 4.0 * least,
                        "{kernels:?} {what}: {found:e} {exact:e}"
                    );
                }
            };
            let target = tensor(&t, [2, 2]);
            let run = |loss: &dyn Fn(Tensor<2>) -> Result<MeanLoss, LossError>| {
                measure(tensor(&x, [2, 2]), loss)
            };
            // The mean is over four, of a square whose slope is twice the distance.
            let distance = [0, 1, 2, 3].map(|at| x[at] - t[at]);
            let (value, gradient, _) = run(&|x| squared_error(x, target.clone(), None));
            assert_eq!(value, 0.0);
            near("squared", &gradient, distance.map(|d| d / 2.0));
            let (_, gradient, _) = run(&|x| huber(x, target.clone(), None, 1.0));
            near("huber", &gradient, distance.map(|d| d / 4.0));
            let delta = 20_000.0 * least;
            let (_, gradient, _) = run(&|x| huber(x, target.clone(), None, delta));
            near("huber, cut", &gradient, distance.map(|d| d.clamp(-delta, delta) / 4.0));
            // Of logits next to zero, both sides are as likely.
            let half = tensor(&[1.0, 0.0, 1.0, 0.0], [2, 2]);
            let config = BinaryCrossEntropy::default();
            let (value, gradient, _) =
                run(&|x| binary_cross_entropy(x, half.clone(), None, &config));
            close("binary", &[value], &[2f64.ln()], 1e-6);
            close("binary", &gradient, &[-0.125, 0.125, -0.125, 0.125], 1e-6);
            let config = CrossEntropy::default();
            let (value, gradient, _) = run(&|x| cross_entropy(x, &[0, 1], &config));
            close("entropy", &[value], &[2f64.ln()], 1e-6);
            close("entropy", &gradient, &[-0.25, 0.25, 0.25, -0.25], 1e-6);
        });
    }
}

#[test]
fn the_gradient_takes_the_place_of_logits_that_nobody_holds() {
    if CpuKernels::current() == Ok(CpuKernels::Composed) {
        return;
    }
    let place =
        |tensor: Tensor<2>| tensor.try_into_primitive::<Flex>().unwrap().storage::<f32>().as_ptr();
    let x = noise(3, 12, 1.0);
    let leaf = tensor(&x, [3, 4]).require_grad();
    let config = CrossEntropy::default();
    // The leaf itself is held, and must not change.
    let held = cross_entropy(leaf.clone(), &[0, 1, 2], &config).unwrap();
    close("the leaf", &read(leaf.clone()), &x, 0.0);
    drop(held);
    let logits = leaf.clone() * 2.0;
    let at = place(logits.clone().inner());
    let loss = cross_entropy(logits, &[0, 1, 2], &config).unwrap();
    let mut gradients = loss.value.backward();
    let gradient = leaf.grad_remove(&mut gradients).unwrap();
    // Burn multiplies by 2 where the gradient lies.
    assert_eq!(place(gradient), at);
}

#[test]
fn logits_in_half_precision_are_measured_in_f32() {
    let x = noise(4, 12, 1.0);
    let half = tensor(&x, [3, 4]).cast(DType::F16);
    let rounded = read(half.clone());
    let config = CrossEntropy::default();
    let found = cross_entropy(half, &[0, 1, 2], &config).unwrap().value;
    assert_eq!(found.dtype(), DType::F32);
    let same = cross_entropy(tensor(&rounded, [3, 4]), &[0, 1, 2], &config).unwrap().value;
    assert_eq!(read(found), read(same));
}

#[test]
fn what_does_not_fit_is_named() {
    let x = || Tensor::<2>::zeros([2, 3], &Device::flex());
    let check = |error: Result<MeanLoss, LossError>, expected: &str| {
        let message = error.unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    };
    let config = CrossEntropy::default();
    check(cross_entropy(x(), &[0], &config), "1 targets were given for [2, 3]; there must be 2");
    check(cross_entropy(x(), &[0, 3], &config), "target of row 1 is 3, and there are 3 classes");
    check(cross_entropy(x(), &[0, -1], &config), "must be 0 to 2, or -100");
    let with = |edit: fn(&mut CrossEntropy<'_>)| {
        let mut config = CrossEntropy::default();
        edit(&mut config);
        cross_entropy(x(), &[0, 1], &config)
    };
    check(
        with(|c| c.label_smoothing = 1.5),
        "`label_smoothing` of a loss is 1.5; it must be from 0",
    );
    check(with(|c| c.focal = f64::NAN), "`focal` of a loss is NaN");
    check(with(|c| (c.focal, c.label_smoothing) = (1.0, 0.1)), "0 where there is label smoothing");
    check(with(|c| c.class_weights = Some(&[1.0])), "1 class weights were given");
    check(with(|c| c.sample_weights = Some(&[1.0, -1.0])), "`sample_weights` of a loss is -1");
    let other = Tensor::<2>::zeros([3, 2], &Device::flex());
    check(squared_error(x(), other, None), "one for each number, not [3, 2]");
    check(squared_error(x(), x(), Some(&[1.0])), "6, one for each number, or 2, one for each row");
    check(huber(x(), x(), None, 0.0), "`delta` of a loss is 0; it must be above 0");
    let config = BinaryCrossEntropy { positive_weights: Some(&[1.0]), focal: 0.0 };
    check(binary_cross_entropy(x(), x(), None, &config), "1 positive weights were given");
}
