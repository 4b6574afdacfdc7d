//! Attention against float64, and what it must not read.

use burn::tensor::{DType, Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{Attention, AttentionWindow, CpuKernels, GpuKernels, LaunchWatch, attention};

use super::alone;
use super::case::{
    NAMES, is_clear_outside, mask, masked, problem, relative_error, run_on, run_packed_on,
    settings, tensor, values, with_nan_outside,
};
use super::reference::Problem;
use super::strips::{rounded, run as run_in};

/// The result and the gradients of q, k and v from three tensors.
fn run(problem: &Problem, device: &Device) -> [Vec<f32>; 4] {
    run_on(device, problem, Precision::F32)
}

/// The same from one tensor that holds all three side by side.
fn run_packed(problem: &Problem, device: &Device) -> [Vec<f32>; 4] {
    run_packed_on(device, problem, Precision::F32)
}

/// As three tensors and as one, where that can be.
#[track_caller]
fn check(device: &Device, problem: &Problem, bound: f64) {
    let exact = problem.solve();
    let mut runs = vec![run(problem, device)];
    if problem.packs() {
        runs.push(run_packed(problem, device));
    }
    for found in runs {
        for ((name, found), exact) in NAMES.iter().zip(&found).zip(&exact) {
            let error = relative_error(found, exact);
            let Problem { batch, queries, keys, heads, size, .. } = problem;
            assert!(
                error < bound,
                "{batch} × {queries} × {keys}, {heads} heads of {size}: {name} is off by {error:.2e}"
            );
        }
    }
}

#[test]
fn sizes_that_models_have_and_odd_ones() {
    alone(|device| {
        let sizes = [
            [3, 105, 105, 2, 16],
            [1, 1, 1, 1, 1],
            [2, 1, 7, 1, 3],
            [1, 2, 1, 3, 5],
            [3, 17, 9, 2, 17],
            [1, 63, 65, 1, 33],
            [1, 130, 200, 2, 16],
        ];
        for (seed, sizes) in sizes.into_iter().enumerate() {
            check(&device, &problem(10 + seed as u64, sizes), 1e-5);
        }
    });
}

#[test]
fn heads_as_large_as_they_can_be_and_larger_ones() {
    alone(|device| {
        check(&device, &problem(20, [1, 9, 40, 1, 128]), 1e-5);
        // Composed.
        check(&device, &problem(21, [1, 5, 7, 1, 130]), 1e-5);
    });
}

#[test]
fn lengths() {
    alone(|device| {
        let padded = Problem {
            query_lengths: Some(vec![20, 1, 0, 13, 20]),
            key_lengths: Some(vec![20, 1, 0, 13, 20]),
            ..problem(40, [5, 20, 20, 2, 16])
        };
        check(&device, &padded, 1e-5);
        let apart = Problem {
            query_lengths: Some(vec![5, 0, 19]),
            key_lengths: Some(vec![30, 4, 0]),
            ..problem(41, [3, 19, 30, 3, 9])
        };
        check(&device, &apart, 1e-5);
        let keys = Problem { key_lengths: Some(vec![150, 3]), ..problem(42, [2, 12, 150, 1, 16]) };
        check(&device, &keys, 1e-5);
    });
}

#[test]
fn causal() {
    alone(|device| {
        for (seed, sizes) in
            [[2, 40, 40, 2, 16], [1, 20, 50, 1, 16], [1, 150, 30, 1, 16], [1, 1, 1, 1, 16]]
                .into_iter()
                .enumerate()
        {
            check(&device, &Problem { causal: true, ..problem(50 + seed as u64, sizes) }, 1e-5);
        }
        let padded = Problem {
            causal: true,
            query_lengths: Some(vec![70, 5]),
            key_lengths: Some(vec![70, 5]),
            ..problem(60, [2, 70, 70, 2, 16])
        };
        check(&device, &padded, 1e-5);
    });
}

#[test]
fn windows() {
    alone(|device| {
        let stream = Some(Stream::new(5, "probabilities"));
        for (seed, (reach, global, causal)) in
            [(0, 1, false), (5, 0, true), (9, 2, false), (70, 0, false)].into_iter().enumerate()
        {
            let lengths = Some(vec![70, 0, 33]);
            let near = Problem {
                window: Some(AttentionWindow { reach, global }),
                causal,
                dropout: 0.2,
                stream,
                query_lengths: lengths.clone(),
                key_lengths: lengths,
                ..problem(65 + seed as u64, [3, 70, 70, 2, 16])
            };
            check(&device, &near, 1e-5);
        }
        // Some cubes leave keys out between the first ones and those in reach; some queries see none.
        for (seed, (reach, global, keys)) in
            [(9, 2, 260), (40, 0, 260), (3, 40, 260), (9, 0, 100)].into_iter().enumerate()
        {
            let window = Some(AttentionWindow { reach, global });
            let problem = problem(75 + seed as u64, [1, 260, keys, 1, 16]);
            check(&device, &Problem { window, dropout: 0.2, stream, ..problem }, 1e-5);
        }
    });
}

#[test]
fn windows_take_the_kernels_and_are_as_wide_as_the_sequence_without_a_change() {
    alone(|device| {
        let lengths = Some(vec![40, 0, 13]);
        let all = Problem {
            query_lengths: lengths.clone(),
            key_lengths: lengths,
            ..problem(85, [3, 40, 40, 2, 16])
        };
        let within =
            |reach| Problem { window: Some(AttentionWindow { reach, global: 1 }), ..all.clone() };
        assert_eq!(run_packed(&within(39), &device), run_packed(&all, &device));
        let mut dirty = within(4);
        let width = dirty.width();
        for values in &mut dirty.values {
            values[40 * width..80 * width].fill(f64::NAN);
            values[93 * width..].fill(f64::NAN);
        }
        let watch = LaunchWatch::start();
        let found = run_packed(&dirty, &device);
        let launched = watch.end();
        let works = launched.iter().filter_map(|one| one.work.as_ref());
        assert_eq!(works.filter(|work| work.name.starts_with("attention")).count(), 3);
        for (found, exact) in found.iter().zip(&within(4).solve()) {
            assert!(relative_error(found, exact) < 1e-5);
        }
    });
}

#[test]
fn dropout_is_what_the_stream_says_and_a_scale_of_its_own() {
    alone(|device| {
        let stream = Some(Stream::new(5, "probabilities"));
        for (seed, (dropout, causal)) in
            [(0.2, false), (0.5, true), (0.97, false), (0.0, false), (1.0, true)]
                .into_iter()
                .enumerate()
        {
            let problem = problem(80 + seed as u64, [2, 70, 70, 2, 16]);
            check(&device, &Problem { dropout, causal, stream, ..problem }, 1e-5);
        }
        // Without a stream nothing is dropped.
        check(&device, &Problem { dropout: 0.5, ..problem(90, [2, 11, 11, 1, 16]) }, 1e-5);
        for scale in [0.03, -0.5, 0.0] {
            let problem = problem(70, [2, 21, 18, 2, 16]);
            check(&device, &Problem { scale: Some(scale), ..problem }, 1e-5);
        }
    });
}

#[test]
fn saturated_scores() {
    alone(|device| {
        // Scores of some hundreds: one key takes all.
        let mut saturated = problem(100, [2, 50, 50, 2, 16]);
        saturated.values[0].iter_mut().for_each(|q| *q *= 64.0);
        check(&device, &saturated, 1e-3);
        let mut even = problem(101, [1, 30, 30, 1, 16]);
        even.values[0].fill(0.0);
        check(&device, &even, 1e-5);
    });
}

#[test]
fn padding_may_hold_anything_and_gives_zeros() {
    alone(|device| {
        let lengths = Some(vec![4, 0, 20]);
        let clean = Problem {
            query_lengths: lengths.clone(),
            key_lengths: lengths,
            ..problem(1, [3, 20, 20, 2, 16])
        };
        let mut dirty = clean.clone();
        let width = dirty.width();
        for values in &mut dirty.values {
            values[4 * width..40 * width].fill(f64::NAN);
        }
        for (a, b) in run_packed(&clean, &device).iter().zip(&run(&dirty, &device)) {
            assert!(b[4 * width..40 * width].iter().all(|v| *v == 0.0));
            // Three tensors may have been composed where all in one were not.
            assert!(relative_error(b, a) < 1e-5);
        }
    });
}

#[test]
fn masks() {
    alone(|device| {
        let stream = Some(Stream::new(5, "probabilities"));
        for (dropout, causal) in [(0.0, false), (0.0, true), (0.3, true)] {
            let gaps = Problem { dropout, causal, stream, ..masked(140, [6, 20, 2, 16]) };
            check(&device, &gaps, 1e-5);
        }
        let cross = Problem {
            query_mask: Some(mask(141, [6, 19])),
            key_mask: Some(mask(142, [6, 30])),
            ..problem(141, [6, 19, 30, 3, 9])
        };
        check(&device, &cross, 1e-5);
        CpuKernels::Composed.force(|| check(&device, &cross, 1e-5));
        for one in [cross, Problem { causal: true, ..masked(143, [6, 20, 2, 16]) }] {
            let clean = run(&one, &device);
            let dirty = run(&with_nan_outside(&one), &device);
            assert!(is_clear_outside(&one, &dirty));
            assert_eq!(dirty, clean);
            assert_eq!(run(&one, &device), clean, "the same bits again");
        }
    });
}

#[test]
fn masks_in_half_precision() {
    alone(|device| {
        for (precision, dtype) in [(Precision::F16, DType::F16), (Precision::Bf16, DType::BF16)] {
            if GpuKernels::of_layer(&device, dtype, 1, 1, 1).is_err() {
                println!("skipped: this device does not store {dtype:?}");
                continue;
            }
            let gaps = masked(144, [6, 20, 2, 16]);
            let exact = gaps.solve();
            let found = run_packed_on(&device, &with_nan_outside(&gaps), precision);
            assert!(is_clear_outside(&gaps, &found));
            for ((name, found), exact) in NAMES.iter().zip(&found).zip(&exact) {
                let error = relative_error(found, exact);
                assert!(error < 2.4e-2, "{dtype:?}: {name} is off by {error:.2e}");
            }
        }
    });
}

#[test]
fn nan_spoils_the_queries_that_see_it() {
    alone(|device| {
        let mut spoilt = problem(2, [2, 40, 40, 2, 16]);
        let width = spoilt.width();
        // Key 7 in head 1 of sample 0, value 30 in head 0 of sample 1.
        spoilt.values[1][7 * width + 16] = f64::NAN;
        spoilt.values[2][70 * width + 3] = f64::NAN;
        let [out, ..] = run(&spoilt, &device);
        for (index, value) in out.iter().enumerate() {
            let (sample, column) = (index / (40 * width), index % width);
            let nan = if sample == 0 { column >= 16 } else { column == 3 };
            assert_eq!(value.is_nan(), nan, "{sample} {column}");
        }
        let [out, ..] = run(&Problem { causal: true, ..spoilt }, &device);
        for (index, value) in out.iter().enumerate().take(40 * width) {
            // A query before the key does not see it.
            assert_eq!(value.is_nan(), index / width >= 7 && index % width >= 16, "{index}");
        }
    });
}

#[test]
fn it_is_the_composed_one_in_three_launches() {
    alone(|device| {
        let stream = Some(Stream::new(5, "probabilities"));
        let problem = Problem { dropout: 0.2, stream, ..problem(110, [2, 12, 12, 2, 16]) };
        let ours = run_packed(&problem, &device);
        let watch = LaunchWatch::start();
        assert_eq!(run_packed(&problem, &device), ours, "the same bits again");
        let launched = watch.end();
        let names: Vec<&str> =
            launched.iter().filter_map(|one| one.work.as_ref()).map(|work| work.name).collect();
        let expected =
            ["attention", "attention, gradients of queries", "attention, gradients of keys"];
        assert_eq!(names, expected);
        // Three tensors need more buffers than all in one, which a small device may not bind.
        let apart = run(&problem, &device);
        for (apart, ours) in apart.iter().zip(&ours) {
            assert!(relative_error(apart, ours) < 1e-5);
        }
        let theirs = CpuKernels::Composed.force(|| run_packed(&problem, &device));
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert!(relative_error(ours, theirs) < 1e-5);
        }
        let none = Tensor::<3>::ones([2, 0, 8], &device);
        let q = Tensor::<3>::ones([2, 3, 8], &device);
        let out = attention(q, none.clone(), none, None, None, None, &Attention::new(2));
        assert_eq!(values(out), vec![0.0; 48]);
    });
}

#[test]
fn halves_are_summed_in_f32() {
    alone(|device| {
        let takes = |dtype| GpuKernels::of_layer(&device, dtype, 1, 1, 1).is_ok();
        let bounds = [(DType::F16, 3e-3), (DType::BF16, 2.4e-2)];
        if !bounds.iter().any(|(dtype, _)| takes(*dtype)) {
            println!("skipped: this device stores neither F16 nor BF16");
        }
        for (dtype, bound) in bounds.into_iter().filter(|(dtype, _)| takes(*dtype)) {
            let problem = Problem { causal: true, ..problem(120, [2, 40, 40, 2, 16]) };
            let device = device.clone().autodiff();
            let half = |index: usize| {
                tensor(&problem.values[index], [2, 40, 32], &device).cast(dtype).detach()
            };
            let [q, k, v] = [0, 1, 2].map(|index| half(index).require_grad());
            let settings = settings(&problem, Precision::F32);
            let out = attention(q.clone(), k.clone(), v.clone(), None, None, None, &settings);
            assert_eq!(out.dtype(), dtype);
            let grads = (out.clone() * half(3)).sum().backward();
            let plain = |tensor: Tensor<3>| values(tensor.cast(DType::F32));
            let [dq, dk, dv] = [q, k, v].map(|x| plain(x.grad(&grads).expect("a gradient")));
            let found = [plain(out), dq, dk, dv];
            for ((name, found), exact) in NAMES.iter().zip(&found).zip(&problem.solve()) {
                let error = relative_error(found, exact);
                assert!(error < bound, "{dtype:?}: {name} is off by {error:.2e}");
            }
        }
    });
}

#[test]
fn operands_in_half_precision_take_the_kernels_too() {
    alone(|device| {
        for (precision, dtype) in [(Precision::F16, DType::F16), (Precision::Bf16, DType::BF16)] {
            if GpuKernels::of_layer(&device, dtype, 1, 1, 1).is_err() {
                println!("skipped: this device does not store {dtype:?}");
                continue;
            }
            let stream = Some(Stream::new(5, "probabilities"));
            let problem = Problem { dropout: 0.2, stream, ..problem(130, [2, 20, 20, 2, 16]) };
            let problem = rounded(&problem, dtype, &device);
            let half = run_in(&problem, dtype, false, &device);
            assert_eq!(run_on(&device, &problem, precision), half);
            let watch = LaunchWatch::start();
            assert_eq!(run_packed_on(&device, &problem, precision), half);
            let launched = watch.end();
            let works = launched.iter().filter_map(|one| one.work.as_ref());
            let ours = works.filter(|work| work.name.starts_with("attention")).count();
            assert_eq!(ours, 3);
        }
    });
}
