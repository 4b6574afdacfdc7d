//! Random shapes and settings against float64, and against finite differences.

use firebox_core::{Precision, Stream};
use firebox_kernels::CpuKernels;

use crate::case::{NAMES, problem, relative_error, run, run_packed};
use crate::reference::Problem;

/// All variants, as three tensors and as one where that can be.
pub fn check(problem: &Problem, bound: f64) {
    let exact = problem.solve();
    for kernels in CpuKernels::available() {
        let mut runs = vec![kernels.force(|| run(problem, Precision::F32))];
        if problem.packs() {
            runs.push(kernels.force(|| run_packed(problem, Precision::F32)));
        }
        for results in runs {
            for ((name, ours), exact) in NAMES.iter().zip(&results).zip(&exact) {
                let error = relative_error(ours, exact);
                let Problem { batch, queries, keys, heads, size, .. } = problem;
                assert!(
                    error < bound,
                    "{kernels:?}, {batch} × {queries} × {keys}, {heads} heads of {size}: {name} is \
                     off by {error:.2e}"
                );
            }
        }
    }
}

#[test]
fn sizes_that_models_have() {
    check(&problem(1, [3, 105, 105, 8, 16]), 1e-5);
    check(&problem(2, [2, 128, 128, 3, 64]), 1e-5);
}

#[test]
fn odd_sizes() {
    for (seed, sizes) in [
        [1, 1, 1, 1, 1],
        [2, 1, 7, 1, 3],
        [1, 2, 1, 3, 5],
        [3, 17, 9, 2, 17],
        [1, 63, 65, 1, 33],
        [2, 66, 31, 5, 7],
        [1, 80, 48, 2, 80],
        [1, 33, 129, 1, 128],
    ]
    .into_iter()
    .enumerate()
    {
        check(&problem(10 + seed as u64, sizes), 1e-5);
    }
}

#[test]
fn more_keys_than_a_tile_holds() {
    check(&problem(30, [1, 70, 500, 2, 16]), 1e-5);
    check(&problem(31, [1, 3, 2000, 1, 24]), 1e-5);
    check(&Problem { causal: true, ..problem(32, [1, 300, 300, 1, 16]) }, 1e-5);
}

#[test]
fn lengths() {
    let padded = Problem {
        query_lengths: Some(vec![20, 1, 0, 13, 20]),
        key_lengths: Some(vec![20, 1, 0, 13, 20]),
        ..problem(40, [5, 20, 20, 2, 16])
    };
    check(&padded, 1e-5);
    let apart = Problem {
        query_lengths: Some(vec![5, 0, 19]),
        key_lengths: Some(vec![30, 4, 0]),
        ..problem(41, [3, 19, 30, 3, 9])
    };
    check(&apart, 1e-5);
    let keys = Problem { key_lengths: Some(vec![150, 3]), ..problem(42, [2, 12, 150, 1, 16]) };
    check(&keys, 1e-5);
}

#[test]
fn causal() {
    for (seed, sizes) in
        [[2, 40, 40, 2, 16], [1, 20, 50, 1, 8], [1, 150, 30, 1, 20], [1, 1, 1, 1, 4]]
            .into_iter()
            .enumerate()
    {
        check(&Problem { causal: true, ..problem(50 + seed as u64, sizes) }, 1e-5);
    }
    let padded = Problem {
        causal: true,
        query_lengths: Some(vec![70, 5]),
        key_lengths: Some(vec![70, 5]),
        ..problem(60, [2, 70, 70, 2, 16])
    };
    check(&padded, 1e-5);
}

#[test]
fn a_scale_of_its_own() {
    for scale in [1.0, 0.03, -0.5, 0.0] {
        check(&Problem { scale: Some(scale), ..problem(70, [2, 21, 18, 2, 12]) }, 1e-5);
    }
}

#[test]
fn dropout_is_what_the_stream_says() {
    let stream = Some(Stream::new(5, "probabilities"));
    for (seed, (dropout, causal)) in
        [(0.2, false), (0.5, true), (0.97, false), (0.0, false), (1.0, true)]
            .into_iter()
            .enumerate()
    {
        for sizes in [[3, 37, 37, 2, 16], [1, 130, 141, 1, 8], [2, 1, 9, 1, 5]] {
            let problem = problem(80 + seed as u64, sizes);
            check(&Problem { dropout, causal, stream, ..problem }, 1e-5);
        }
    }
    // Without a stream nothing is dropped.
    check(&Problem { dropout: 0.5, ..problem(90, [2, 11, 11, 1, 16]) }, 1e-5);
}

#[test]
fn saturated_scores() {
    // Scores of some hundreds: one key takes all.
    let mut saturated = problem(100, [2, 50, 50, 2, 16]);
    saturated.values[0].iter_mut().for_each(|q| *q *= 64.0);
    check(&saturated, 1e-4);
    // Equal scores share evenly.
    let mut even = problem(101, [1, 30, 30, 1, 16]);
    even.values[0].fill(0.0);
    check(&even, 1e-5);
    // An offset common to all scores of a query changes nothing.
    let mut far = problem(102, [1, 30, 30, 1, 16]);
    for key in far.values[1].chunks_mut(16) {
        key[0] = 512.0;
    }
    check(&far, 1e-3);
}

#[test]
fn finite_differences() {
    let stream = Some(Stream::new(6, "probabilities"));
    let base = Problem {
        causal: true,
        dropout: 0.3,
        stream,
        query_lengths: Some(vec![6, 9]),
        key_lengths: Some(vec![6, 9]),
        ..problem(110, [2, 9, 9, 2, 5])
    };
    let loss = |problem: &Problem| -> f64 {
        problem.solve()[0].iter().zip(&problem.values[3]).map(|(y, d)| y * d).sum()
    };
    let exact = base.solve();
    let found = run(&base, Precision::F32);
    for operand in 0..3 {
        for at in (0..base.values[operand].len()).step_by(3) {
            let moved = |by: f64| {
                let mut problem = base.clone();
                problem.values[operand][at] += by;
                loss(&problem)
            };
            let slope = (moved(1e-5) - moved(-1e-5)) / 2e-5;
            assert!((slope - exact[operand + 1][at]).abs() < 1e-7 * slope.abs().max(1.0));
            assert!(
                (slope - f64::from(found[operand + 1][at])).abs() < 1e-5 * slope.abs().max(1.0)
            );
        }
    }
}
