//! Softmax and cross-entropy against PyTorch's values and the formula in float64.

use burn::tensor::{DType, Device, Tensor};
use firebox_core::Stream;
use firebox_kernels::{CpuKernels, CrossEntropy, LaunchWatch, cross_entropy};
use serde_json::Value;

use super::alone;
use super::entropy::reference;
use super::support::case::{float, noise, values};
use super::support::relative_error;

/// Loss, gradient and weight, with the loss scaled by 4; the loss without a graph is the same.
fn measure(
    x: &[f64],
    targets: &[i64],
    config: &CrossEntropy<'_>,
    device: &Device,
) -> (f64, Vec<f64>, f64) {
    let shape = [targets.len(), x.len() / targets.len()];
    let logits = float::<2>(x, shape, device);
    let plain = cross_entropy(logits, targets, config).expect("a loss");
    let logits = float::<2>(x, shape, &device.clone().autodiff()).require_grad();
    let loss = cross_entropy(logits.clone(), targets, config).expect("a loss");
    let (value, plain) = (values(loss.value.clone())[0], values(plain.value)[0]);
    assert!(value == plain || value.is_nan() && plain.is_nan(), "{value} {plain}");
    let gradients = (loss.value * 4.0).backward();
    let gradient = values(logits.grad(&gradients).expect("a gradient"));
    (value, gradient.iter().map(|g| g / 4.0).collect(), loss.weight)
}

#[track_caller]
fn close(what: &str, found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let error: f64 = found.iter().zip(expected).map(|(f, e)| (f - e).powi(2)).sum();
    let norm: f64 = expected.iter().map(|e| e * e).sum();
    // Gradients of 1e-30 and the like count as zeros.
    assert!(error.sqrt() <= 1e-5 * norm.sqrt() + 1e-20, "{what}: {found:?}, not {expected:?}");
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
        let cases = golden["entropy"].as_array().expect("cases");
        assert!(!cases.is_empty());
        for case in cases {
            let targets: Vec<i64> = numbers(&case["targets"]).iter().map(|t| *t as i64).collect();
            let weights = case["class_weights"].as_array().map(|weights| {
                weights.iter().map(|weight| number(weight) as f32).collect::<Vec<_>>()
            });
            let config = CrossEntropy {
                label_smoothing: number(&case["smoothing"]),
                class_weights: weights.as_deref(),
                focal: case["focal"].as_f64().unwrap_or(0.0),
                ..CrossEntropy::default()
            };
            let (value, gradient, _) = measure(&numbers(&case["x"]), &targets, &config, &device);
            let what = case["name"].to_string();
            close(&what, &[value], &[number(&case["value"])]);
            close(&what, &gradient, &numbers(&case["gradient"]));
        }
    });
}

#[test]
fn odd_and_large_sizes_agree_with_float64() {
    alone(|device| {
        for (rows, classes) in [(1, 2), (3, 17), (700, 3), (65, 1031), (2, 30_522)] {
            let draw = |seed, count, scale| noise(Stream::new(seed, "loss"), count, scale);
            let x = draw(1, rows * classes, 4.0);
            let mut draws = Stream::new(7, "targets").draws();
            // One more than the classes is passed over, but for the first.
            let mut targets: Vec<i64> = (0..rows)
                .map(|_| draws.below(classes as u64 + 1) as i64)
                .map(|target| if target == classes as i64 { -100 } else { target })
                .collect();
            targets[0] = 1;
            let positive = |seed, count| -> Vec<f32> {
                draw(seed, count, 1.0).iter().map(|w| w.abs() as f32).collect()
            };
            let (class_weights, sample_weights) = (positive(2, classes), positive(3, rows));
            for smoothing in [0.0, 0.1] {
                let config = CrossEntropy {
                    label_smoothing: smoothing,
                    class_weights: Some(&class_weights),
                    sample_weights: Some(&sample_weights),
                    ..CrossEntropy::default()
                };
                let expected =
                    reference(&x, classes, &targets, smoothing, &class_weights, &sample_weights);
                let found = measure(&x, &targets, &config, &device);
                let what = format!("{rows} rows of {classes}, smoothed by {smoothing}");
                close(&what, &[found.0, found.2], &[expected.0, expected.2]);
                let error = relative_error(&found.1, &expected.1);
                assert!(error < 1e-5, "{what}: the gradient is off by {error:.2e}");
            }
        }
    });
}

#[test]
fn it_agrees_with_the_composed_one_in_fewer_launches() {
    alone(|device| {
        let x = noise(Stream::new(4, "loss"), 40 * 9, 2.0);
        let targets: Vec<i64> =
            (0..40).map(|row| if row % 7 == 0 { -100 } else { row % 9 }).collect();
        for focal in [0.0, 1.5] {
            let config = CrossEntropy { focal, ..CrossEntropy::default() };
            let run = || measure(&x, &targets, &config, &device);
            let ours = run();
            let watch = LaunchWatch::start();
            assert_eq!(run(), ours);
            let launched = watch.end();
            let named = |name| {
                let works = launched.iter().filter_map(|one| one.work.as_ref());
                works.filter(|work| work.name == name).count()
            };
            // Without a graph, and with one.
            assert_eq!((named("cross-entropy"), named("sum")), (2, 2));
            let theirs = CpuKernels::Composed.force(run);
            close("the loss", &[ours.0, ours.2], &[theirs.0, theirs.2]);
            close("the gradient", &ours.1, &theirs.1);
        }
    });
}

#[test]
fn what_has_no_weight_is_not_read_and_nothing_learnt_from_is_zero() {
    alone(|device| {
        let x = [1.0, 2.0, f64::NAN, f64::NAN, 0.5, f64::INFINITY];
        for focal in [0.0, 2.0] {
            let config = CrossEntropy { focal, ..CrossEntropy::default() };
            let one = |targets: &[i64]| measure(&x, targets, &config, &device);
            let (value, gradient, weight) = one(&[1, -100, -100]);
            assert!(value.is_finite() && value > 0.0 && weight == 1.0, "{value}");
            assert!(gradient[0] > 0.0 && gradient[1] < 0.0, "{gradient:?}");
            assert_eq!(gradient[2..], [0.0; 4]);
            assert_eq!(one(&[-100; 3]), (0.0, vec![0.0; 6], 0.0));
            // A row that is read and is no number is none afterwards.
            let (value, gradient, _) = one(&[1, 0, -100]);
            assert!(value.is_nan() && gradient[2].is_nan() && gradient[1].is_finite());
        }
        let empty = Tensor::<2>::zeros([0, 4], &device);
        let loss = cross_entropy(empty, &[], &CrossEntropy::default()).expect("a loss");
        assert_eq!((values(loss.value), loss.weight), (vec![0.0], 0.0));
    });
}

#[test]
fn a_row_that_is_told_well_keeps_the_digits_of_its_loss() {
    alone(|device| {
        for lead in [1.0, 8.0, 12.0, 16.0, 30.0] {
            let x = [lead, 0.0, -0.5];
            let others = f64::exp(-lead) + f64::exp(-0.5 - lead);
            let (value, gradient, _) = measure(&x, &[0], &CrossEntropy::default(), &device);
            let expected = others.ln_1p();
            assert!((value / expected - 1.0).abs() < 1e-5, "{lead}: {value:e}, not {expected:e}");
            let p_other = others / (1.0 + others);
            assert!((gradient[0] / -p_other - 1.0).abs() < 1e-5, "{lead}: {gradient:?}");
        }
    });
}

#[test]
fn logits_in_half_precision_are_measured_in_f32() {
    alone(|device| {
        let x = noise(Stream::new(4, "loss"), 12, 1.0);
        if firebox_kernels::GpuKernels::of_layer(&device, DType::F16, 1, 1, 1).is_err() {
            return println!("skipped: this device does not store F16");
        }
        let half = float::<2>(&x, [3, 4], &device).cast(DType::F16);
        let rounded = values(half.clone().cast(DType::F32));
        let config = CrossEntropy::default();
        let found = cross_entropy(half, &[0, 1, 2], &config).expect("a loss").value;
        assert_eq!(found.dtype(), DType::F32);
        assert_eq!(values(found)[0], measure(&rounded, &[0, 1, 2], &config, &device).0);
    });
}
