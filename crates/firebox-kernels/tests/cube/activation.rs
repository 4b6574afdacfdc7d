//! GELU, rectifier and residual sum with dropout against their formulas in float64, with the masks of the host.

use burn::tensor::{DType, Device, Tensor};
use firebox_core::Stream;
use firebox_kernels::{
    CpuKernels, GpuKernels, LaunchWatch, dropout_add, gelu, gelu_dropout, relu_dropout,
};

use super::alone;
use super::support::case::{float, noise, values};
use super::support::relative_error;

const SHAPES: [[usize; 2]; 7] = [[1, 1], [1, 3], [3, 7], [5, 16], [1, 1025], [70, 1031], [4, 4096]];

fn numbers(seed: u64, count: usize) -> Vec<f64> {
    noise(Stream::new(seed, "activation"), count, 2.0)
}

/// With nothing dropped, with some, and with all.
fn drops() -> [(f64, Option<Stream>); 4] {
    let stream = Some(Stream::new(7, "dropout"));
    [(0.3, None), (0.3, stream), (0.0, stream), (1.0, stream)]
}

/// What is kept of each element, as `dropout` documents it.
fn kept(count: usize, (probability, stream): (f64, Option<Stream>)) -> Vec<f64> {
    let Some(stream) = stream.filter(|_| probability > 0.0) else { return vec![1.0; count] };
    let mut draws = stream.draws();
    let keep = |draw: f32| match f64::from(draw) >= probability {
        true => 1.0 / (1.0 - probability),
        false => 0.0,
    };
    (0..count).map(|_| keep(draws.uniform())).collect()
}

fn density(x: f64) -> f64 {
    (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt()
}

/// Φ(x) by integrating the density from zero, with Simpson's rule.
fn distribution(x: f64) -> f64 {
    let step = x / 200.0;
    let weight = |n: usize| match n {
        0 | 200 => 1.0,
        _ if n % 2 == 1 => 4.0,
        _ => 2.0,
    };
    0.5 + (0..=200).map(|n| weight(n) * density(n as f64 * step)).sum::<f64>() * step / 3.0
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Which {
    Gelu,
    Relu,
}

/// Value and slope.
fn exact(which: Which, x: f64) -> [f64; 2] {
    match which {
        Which::Gelu => [x * distribution(x), distribution(x) + x * density(x)],
        Which::Relu => [x.max(0.0), if x > 0.0 { 1.0 } else { 0.0 }],
    }
}

/// The result and the gradient of `Σ d · y`, with the result without a graph, which is the same.
fn run(
    which: Which,
    shape: [usize; 2],
    (probability, stream): (f64, Option<Stream>),
    [x, d]: [&[f64]; 2],
    (device, dtype): (&Device, DType),
) -> [Vec<f64>; 2] {
    let apply = |x| match which {
        Which::Gelu => gelu_dropout(x, probability, stream),
        Which::Relu => relu_dropout(x, probability, stream),
    };
    let plain = |tensor: Tensor<2>| values(tensor.cast(DType::F32));
    let without = plain(apply(float::<2>(x, shape, device).cast(dtype)));
    let device = device.clone().autodiff();
    let x = float::<2>(x, shape, &device).cast(dtype).detach().require_grad();
    let y = apply(x.clone());
    assert_eq!(y.dtype(), dtype);
    let d = float::<2>(d, shape, &device).cast(dtype);
    let grads = (y.clone() * d).sum().backward();
    let found = [plain(y), plain(x.grad(&grads).expect("a gradient"))];
    let bits = |numbers: &[f64]| numbers.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&found[0]), bits(&without));
    found
}

#[track_caller]
fn close(what: &str, found: &[f64], expected: &[f64], bound: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (place, (found, expected)) in found.iter().zip(expected).enumerate() {
        let near =
            expected.is_finite() && (found - expected).abs() <= bound * expected.abs().max(1.0);
        let both = found == expected || found.is_nan() && expected.is_nan();
        assert!(near || both, "{what}: {found} at {place}, not {expected}");
    }
}

#[test]
fn activations_agree_with_float64_and_drop_what_the_host_drops() {
    alone(|device| {
        for (which, shape) in
            [Which::Gelu, Which::Relu].into_iter().flat_map(|w| SHAPES.map(|s| (w, s)))
        {
            let count = shape[0] * shape[1];
            let (x, d) = (numbers(1, count), numbers(2, count));
            for drop in drops() {
                let what = format!("{which:?}, {shape:?}, {drop:?}");
                let keep = kept(count, drop);
                let of = |part: usize, with: &dyn Fn(usize) -> f64| -> Vec<f64> {
                    (0..count).map(|i| keep[i] * with(i) * exact(which, x[i])[part]).collect()
                };
                let expected = [of(0, &|_| 1.0), of(1, &|i| d[i])];
                let found = run(which, shape, drop, [&x, &d], (&device, DType::F32));
                close(&what, &found[0], &expected[0], 2e-6);
                close(&what, &found[1], &expected[1], 4e-6);
                let host = run(which, shape, drop, [&x, &d], (&Device::flex(), DType::F32));
                for (found, host) in found.iter().zip(&host) {
                    close(&what, found, host, 2e-6);
                }
            }
        }
    });
}

#[test]
fn activations_are_one_launch_each_way() {
    alone(|device| {
        let (x, d) = (numbers(1, 60), numbers(2, 60));
        let names = [
            (Which::Gelu, ["GELU and dropout", "GELU and dropout, gradients"]),
            (Which::Relu, ["rectifier and dropout", "rectifier and dropout, gradients"]),
        ];
        for (which, [forward, backward]) in names {
            for drop in drops() {
                // That one is Burn's, whose fusion joins it with what is before it.
                if cfg!(feature = "fusion")
                    && which == Which::Relu
                    && (drop.0 == 0.0 || drop.1.is_none())
                {
                    continue;
                }
                let run = || run(which, [12, 5], drop, [&x, &d], (&device, DType::F32));
                run();
                let watch = LaunchWatch::start();
                run();
                let launched = watch.end();
                let works = launched.iter().filter_map(|one| one.work.as_ref());
                let found: Vec<&str> = works.map(|work| work.name).collect();
                // Without a graph, and with one.
                assert_eq!(found, [forward, forward, backward], "{drop:?}");
            }
        }
    });
}

#[test]
fn activations_at_their_ends_are_those_of_the_host() {
    alone(|device| {
        let x = [
            f64::NAN,
            0.0,
            -0.0,
            50.0,
            -50.0,
            f64::INFINITY,
            f64::NEG_INFINITY,
            1e-30,
            -1e-30,
            5.4,
            -5.4,
            5.6,
            -5.6,
            13.0,
            -13.0,
            1e30,
            -1e30,
        ];
        let d = [1.0; 17];
        for which in [Which::Gelu, Which::Relu] {
            for drop in drops() {
                let of =
                    |device: &Device| run(which, [1, 17], drop, [&x, &d], (device, DType::F32));
                let (found, host) = (of(&device), of(&Device::flex()));
                for (found, host) in found.iter().zip(&host) {
                    close(&format!("{which:?}, {drop:?}"), found, host, 1e-6);
                }
                assert!(found[0][0].is_nan());
            }
        }
    });
}

#[test]
fn halves_stay_what_they_are() {
    alone(|device| {
        let mut ran = 0;
        for (dtype, unit) in [(DType::F16, 2f64.powi(-10)), (DType::BF16, 2f64.powi(-7))] {
            if GpuKernels::of_layer(&device, dtype, 1, 1, 1).is_err() {
                continue;
            }
            ran += 1;
            for which in [Which::Gelu, Which::Relu] {
                let shape = [9, 31];
                let round = |seed| {
                    let full = float::<2>(&numbers(seed, 279), shape, &device);
                    values(full.cast(dtype).cast(DType::F32))
                };
                let (x, d) = (round(1), round(2));
                for drop in drops() {
                    let full = run(which, shape, drop, [&x, &d], (&device, DType::F32));
                    let half = run(which, shape, drop, [&x, &d], (&device, dtype));
                    for (half, full) in half.iter().zip(&full) {
                        for (half, full) in half.iter().zip(full) {
                            assert!(
                                (half - full).abs() <= unit * full.abs() + 1e-7,
                                "{half} {full}"
                            );
                        }
                    }
                }
            }
        }
        if ran == 0 {
            println!("skipped: this device stores neither F16 nor BF16");
        }
    });
}

#[test]
fn the_order_is_that_of_rows_however_a_tensor_lies() {
    alone(|device| {
        let x = numbers(1, 7 * 13);
        let turned: Vec<f64> = (0..91).map(|i| x[i % 7 * 13 + i / 7]).collect();
        let stream = Some(Stream::new(3, "dropout"));
        let (across, along) = (
            float::<2>(&x, [7, 13], &device).swap_dims(0, 1),
            float::<2>(&turned, [13, 7], &device),
        );
        let applied = |x: Tensor<2>| {
            [
                gelu_dropout(x.clone(), 0.3, stream),
                relu_dropout(x.clone(), 0.3, stream),
                dropout_add(x.clone(), x, 0.3, stream),
            ]
            .map(values)
        };
        assert_eq!(applied(across), applied(along));
    });
}

#[test]
fn nothing_stays_nothing() {
    alone(|device| {
        let stream = Some(Stream::new(3, "dropout"));
        for device in [device.clone(), device.autodiff()] {
            let nothing = || Tensor::<2>::zeros([0, 5], &device);
            assert_eq!(gelu(nothing()).dims(), [0, 5]);
            assert_eq!(relu_dropout(nothing(), 0.3, stream).dims(), [0, 5]);
            assert_eq!(dropout_add(nothing(), nothing(), 0.3, stream).dims(), [0, 5]);
        }
    });
}

/// The sum, and the gradients of both sides of `Σ d · sum`, of those that are asked for.
fn sum(
    shape: [usize; 2],
    (probability, stream): (f64, Option<Stream>),
    wanted: [bool; 2],
    (device, dtype): (&Device, DType),
) -> [Vec<f64>; 3] {
    let count = shape[0] * shape[1];
    let device = device.clone().autodiff();
    let of = |seed, wanted| {
        let tensor = float::<2>(&numbers(seed, count), shape, &device).cast(dtype).detach();
        if wanted { tensor.require_grad() } else { tensor }
    };
    let (x, y) = (of(1, wanted[0]), of(2, wanted[1]));
    let total = dropout_add(x.clone(), y.clone(), probability, stream);
    assert_eq!(total.dtype(), dtype);
    let plain = |tensor: Tensor<2>| values(tensor.cast(DType::F32));
    let grads = (total.clone() * of(3, false)).sum().backward();
    [plain(total), x.grad(&grads).map_or(vec![], plain), y.grad(&grads).map_or(vec![], plain)]
}

#[test]
fn a_residual_sum_agrees_with_float64() {
    alone(|device| {
        for shape in SHAPES {
            let count = shape[0] * shape[1];
            let [x, y, d] = [1, 2, 3].map(|seed| numbers(seed, count));
            for drop in drops() {
                let keep = kept(count, drop);
                let expected = [
                    (0..count).map(|i| x[i] + keep[i] * y[i]).collect::<Vec<f64>>(),
                    d.clone(),
                    (0..count).map(|i| keep[i] * d[i]).collect(),
                ];
                let found = sum(shape, drop, [true; 2], (&device, DType::F32));
                for (found, expected) in found.iter().zip(&expected) {
                    close(&format!("{shape:?}, {drop:?}"), found, expected, 1e-6);
                }
            }
        }
    });
}

#[test]
fn a_residual_sum_is_one_launch_and_makes_the_gradients_that_are_wanted() {
    alone(|device| {
        let drop = drops()[1];
        let all = sum([6, 11], drop, [true; 2], (&device, DType::F32));
        let cases = [
            ([true, true], vec!["dropout and residual sum", "dropout"]),
            ([false, true], vec!["dropout and residual sum", "dropout"]),
            ([true, false], vec!["dropout and residual sum"]),
        ];
        for (wanted, names) in cases {
            let watch = LaunchWatch::start();
            let found = sum([6, 11], drop, wanted, (&device, DType::F32));
            let launched = watch.end();
            let works = launched.iter().filter_map(|one| one.work.as_ref());
            assert_eq!(works.map(|work| work.name).collect::<Vec<_>>(), names);
            assert_eq!(found[0], all[0]);
            for side in [0, 1] {
                let expected = if wanted[side] { all[side + 1].as_slice() } else { &[] };
                assert_eq!(found[side + 1], expected);
            }
        }
        let composed =
            CpuKernels::Composed.force(|| sum([6, 11], drop, [true; 2], (&device, DType::F32)));
        for (ours, theirs) in all.iter().zip(&composed) {
            assert!(relative_error(ours, theirs) < 1e-6);
        }
        if GpuKernels::of_layer(&device, DType::F16, 1, 1, 1).is_err() {
            return println!("skipped: this device does not store F16");
        }
        let half = sum([6, 11], drop, [true; 2], (&device, DType::F16));
        for (half, full) in half.iter().zip(&all) {
            // Two operands that are rounded, and a sum.
            close("in F16", half, full, 3.0 * 2f64.powi(-10));
        }
    });
}
