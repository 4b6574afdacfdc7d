//! Attention within a window: against float64 and finite differences, against attention to all, and what it
//! must not read.

use burn::tensor::{Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{Attention, AttentionWindow, CpuKernels, attention_masked};

use crate::case::{
    NAMES, is_clear_outside, mask, masked, problem, relative_error, run, run_packed,
    with_nan_outside,
};
use crate::numbers::check;
use crate::reference::Problem;

fn within(reach: usize, global: usize, problem: Problem) -> Problem {
    Problem { window: Some(AttentionWindow { reach, global }), ..problem }
}

#[test]
fn reaches_and_global_keys() {
    for (seed, (reach, global)) in
        [(0, 0), (0, 1), (1, 0), (3, 1), (7, 0), (17, 2), (40, 1), (33, 40), (200, 0)]
            .into_iter()
            .enumerate()
    {
        for causal in [false, true] {
            let sizes = [2, 150, 150, 2, 9];
            check(
                &within(reach, global, Problem { causal, ..problem(300 + seed as u64, sizes) }),
                1e-5,
            );
        }
    }
}

#[test]
fn windows_that_lie_many_tiles_behind_the_first() {
    for (seed, (reach, global, causal)) in
        [(20, 1, false), (64, 0, false), (75, 3, true), (0, 130, false), (130, 70, true)]
            .into_iter()
            .enumerate()
    {
        let long = Problem { causal, ..problem(320 + seed as u64, [1, 700, 700, 1, 16]) };
        check(&within(reach, global, long), 1e-5);
    }
}

#[test]
fn queries_and_keys_of_other_numbers() {
    let sizes = [[1, 1, 1, 1, 1], [2, 5, 90, 1, 3], [1, 70, 9, 2, 17], [1, 200, 140, 1, 33]];
    for (seed, sizes) in sizes.into_iter().enumerate() {
        for (reach, global) in [(0, 0), (2, 0), (5, 1), (11, 4), (66, 0)] {
            // A query with one key has no slope, so that all that is left is rounding.
            let bound = if reach == 0 { 1e-4 } else { 1e-5 };
            check(&within(reach, global, problem(330 + seed as u64, sizes)), bound);
        }
    }
}

#[test]
fn random_lengths() {
    let mut draws = Stream::new(5, "lengths").draws();
    for seed in 340..352 {
        let mut number = |most: u64| draws.below(most + 1) as usize;
        let [queries, keys, size] = [1 + number(160), 1 + number(160), 1 + number(20)];
        let (reach, global) = (number(50), number(2));
        let of = |rows: usize, number: &mut dyn FnMut(u64) -> usize| {
            Some((0..4).map(|sample| if sample == 2 { 0 } else { number(rows as u64) }).collect())
        };
        let both: Option<Vec<usize>> = of(keys, &mut number);
        let cross = Problem {
            query_lengths: of(queries, &mut number),
            key_lengths: both.clone(),
            causal: number(1) == 1,
            ..problem(seed, [4, queries, keys, 1, size])
        };
        check(&within(reach, global, cross), 1e-5);
        let of_itself = Problem {
            query_lengths: both.clone(),
            key_lengths: both,
            dropout: 0.3,
            stream: Some(Stream::new(seed, "probabilities")),
            causal: number(1) == 1,
            ..problem(seed, [4, keys, keys, 2, size])
        };
        check(&within(reach, global, of_itself), 1e-5);
    }
}

#[test]
fn dropout_is_that_of_attention_to_all() {
    let stream = Some(Stream::new(5, "probabilities"));
    for (seed, (dropout, causal)) in
        [(0.2, false), (0.5, true), (0.97, false), (1.0, true)].into_iter().enumerate()
    {
        for (sizes, reach, global) in
            [([3, 37, 37, 2, 16], 5, 1), ([1, 300, 300, 1, 8], 45, 0), ([2, 200, 150, 1, 5], 9, 11)]
        {
            let problem = Problem { dropout, causal, stream, ..problem(360 + seed as u64, sizes) };
            check(&within(reach, global, problem), 1e-5);
        }
    }
}

/// As exact as attention to all is beside PyTorch, and not more exact than rounded operands are.
#[test]
fn bf16_is_rounded_as_in_attention_to_all() {
    for (seed, (reach, global)) in [(3, 1), (40, 0), (21, 9)].into_iter().enumerate() {
        let all = problem(370 + seed as u64, [2, 260, 260, 2, 24]);
        let near = within(reach, global, all.clone());
        for kernels in CpuKernels::available() {
            let error = |problem: &Problem| {
                let exact = problem.solve();
                let found = kernels.force(|| run_packed(problem, Precision::Bf16));
                [0, 1, 2, 3].map(|part| relative_error(&found[part], &exact[part]))
            };
            for ((name, near), all) in NAMES.iter().zip(error(&near)).zip(error(&all)) {
                assert!(near < 2.0 * all, "{kernels:?}, {name}: {near:.2e}, {all:.2e} of all");
                assert!(near > 1e-4, "{kernels:?}, {name}: {near:.2e} only");
            }
        }
    }
}

#[test]
fn a_window_as_wide_as_the_sequence_changes_no_bit() {
    let stream = Some(Stream::new(6, "probabilities"));
    for causal in [false, true] {
        let lengths = Some(vec![130, 0, 77, 1]);
        let all = Problem {
            dropout: 0.2,
            stream,
            causal,
            query_lengths: lengths.clone(),
            key_lengths: lengths,
            ..problem(380, [4, 130, 130, 2, 16])
        };
        for kernels in CpuKernels::available() {
            for precision in [Precision::F32, Precision::Bf16] {
                let run = |problem: &Problem| {
                    kernels.force(|| (run(problem, precision), run_packed(problem, precision)))
                };
                let expected = run(&all);
                for (reach, global) in
                    [(129, 0), (130, 1), (usize::MAX, 0), (0, 130), (3, usize::MAX)]
                {
                    let found = run(&within(reach, global, all.clone()));
                    assert!(found == expected, "{kernels:?} {precision} {reach} {global}");
                }
                // Of a sample that is shorter than the reach all is as it was, too.
                let (found, _) = run(&within(80, 0, all.clone()));
                for (found, expected) in found.iter().zip(&expected.0) {
                    let third = 2 * 130 * all.width()..3 * 130 * all.width();
                    let near = |(a, b): (&f32, &f32)| match kernels {
                        CpuKernels::Composed => (a - b).abs() < 1e-4,
                        _ => a == b,
                    };
                    let mut pairs = found[third.clone()].iter().zip(&expected[third]);
                    assert!(pairs.all(near), "{kernels:?} {precision}");
                }
            }
        }
    }
}

#[test]
fn queries_that_see_nothing_give_zeros() {
    let far = within(4, 0, problem(390, [1, 90, 10, 1, 8]));
    for kernels in CpuKernels::available() {
        for precision in [Precision::F32, Precision::Bf16] {
            let [out, dq, ..] = kernels.force(|| run(&far, precision));
            for values in [out, dq] {
                let seen = |row: &[f32]| row.iter().any(|value| *value != 0.0);
                let rows: Vec<bool> = values.chunks(8).map(seen).collect();
                let expected: Vec<bool> = (0..90).map(|query| query < 14).collect();
                // The only key of the last one has all of its probability, and no slope.
                assert_eq!(rows[..13], expected[..13], "{kernels:?} {precision}");
                assert_eq!(rows[14..], expected[14..], "{kernels:?} {precision}");
            }
        }
    }
}

#[test]
fn nan_spoils_the_queries_that_see_it() {
    let (reach, time) = (6, 300);
    for (global, at) in [(0, 140), (1, 140), (1, 0), (0, 0), (0, 299)] {
        let mut spoilt = within(reach, global, problem(400, [1, time, time, 2, 16]));
        let width = spoilt.width();
        // A key of the second head.
        spoilt.values[1][at * width + 16] = f64::NAN;
        for kernels in CpuKernels::available() {
            for precision in [Precision::F32, Precision::Bf16] {
                let [out, dq, ..] = kernels.force(|| run(&spoilt, precision));
                for (name, values) in [("the result", out), ("dq", dq)] {
                    for (index, value) in values.iter().enumerate() {
                        let (query, column) = (index / width, index % width);
                        let seen = at < global || query.abs_diff(at) <= reach;
                        // Composed, a product with zero spoils the gradients of all queries.
                        if name == "the result" || kernels != CpuKernels::Composed && seen {
                            let nan = column >= 16 && seen;
                            let what = format!("{kernels:?} {precision} {name} {query} {column}");
                            assert_eq!(value.is_nan(), nan, "{what}, {at} of {global}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn padding_may_hold_anything_and_gives_zeros() {
    let lengths = Some(vec![4, 0, 120, 77]);
    let clean = Problem {
        query_lengths: lengths.clone(),
        key_lengths: lengths,
        ..problem(410, [4, 120, 120, 2, 16])
    };
    for (reach, global) in [(0, 0), (9, 1), (50, 0)] {
        let clean = within(reach, global, clean.clone());
        let mut dirty = clean.clone();
        let width = dirty.width();
        let padding = [4 * width..240 * width, 437 * width..480 * width];
        for values in &mut dirty.values {
            padding.iter().for_each(|rows| values[rows.clone()].fill(f64::NAN));
        }
        for kernels in CpuKernels::available() {
            for precision in [Precision::F32, Precision::Bf16] {
                let (a, b) =
                    kernels.force(|| (run_packed(&clean, precision), run(&dirty, precision)));
                for (a, b) in a.iter().zip(&b) {
                    for rows in &padding {
                        assert!(b[rows.clone()].iter().all(|v| *v == 0.0), "{kernels:?}");
                    }
                    assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6), "{kernels:?}");
                }
            }
        }
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    let lengths = Some(vec![200, 0, 3, 150, 199]);
    let problem = Problem {
        dropout: 0.2,
        stream: Some(Stream::new(1, "dropout")),
        query_lengths: lengths.clone(),
        key_lengths: lengths,
        ..problem(420, [5, 200, 200, 3, 16])
    };
    let problem = within(31, 1, problem);
    for kernels in CpuKernels::available().into_iter().skip(1) {
        for precision in [Precision::F32, Precision::Bf16] {
            let results = [1, 2, 3].map(|threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                pool.expect("a pool").install(|| kernels.force(|| run_packed(&problem, precision)))
            });
            assert!(results[0] == results[1] && results[0] == results[2], "{kernels:?}");
        }
    }
}

#[test]
fn finite_differences() {
    for (reach, global, causal) in [(2, 1, false), (1, 0, true), (0, 2, false)] {
        let base = Problem {
            causal,
            dropout: 0.3,
            stream: Some(Stream::new(6, "probabilities")),
            query_lengths: Some(vec![6, 9]),
            key_lengths: Some(vec![6, 9]),
            ..problem(430, [2, 9, 9, 2, 5])
        };
        let base = within(reach, global, base);
        let loss = |problem: &Problem| -> f64 {
            problem.solve()[0].iter().zip(&problem.values[3]).map(|(y, d)| y * d).sum()
        };
        let found = run(&base, Precision::F32);
        for operand in 0..3 {
            for at in (0..base.values[operand].len()).step_by(3) {
                let moved = |by: f64| {
                    let mut problem = base.clone();
                    problem.values[operand][at] += by;
                    loss(&problem)
                };
                let slope = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                let off = (slope - f64::from(found[operand + 1][at])).abs();
                assert!(off < 1e-5 * slope.abs().max(1.0), "{reach} {global}: {off:e}");
            }
        }
    }
}

#[test]
fn masks_count_valid_rows() {
    for (seed, sizes) in [[6, 20, 2, 16], [6, 150, 1, 9], [5, 1, 1, 4]].into_iter().enumerate() {
        for (reach, global, causal) in [(0, 1, false), (4, 0, false), (9, 2, true)] {
            let masked = Problem { causal, ..masked(440 + seed as u64, sizes) };
            let near = within(reach, global, masked);
            check(&near, 1e-5);
            let dirty = with_nan_outside(&near);
            for kernels in CpuKernels::available() {
                let found = kernels.force(|| run_packed(&dirty, Precision::F32));
                assert!(is_clear_outside(&near, &found), "{kernels:?}");
            }
        }
    }
}

/// One that leaves valid rows in front is lengths, whatever the other is.
#[test]
fn masks_in_front_may_differ() {
    let lengths = |lengths: [usize; 2], rows: usize| -> Vec<bool> {
        lengths.iter().flat_map(|length| (0..rows).map(move |row| row < *length)).collect()
    };
    let in_front = Problem {
        query_mask: Some(lengths([9, 3], 9)),
        key_mask: Some(lengths([2, 12], 12)),
        ..problem(450, [2, 9, 12, 2, 8])
    };
    check(&within(3, 0, in_front.clone()), 1e-5);
    check(&within(2, 1, Problem { query_mask: None, ..in_front }), 1e-5);
}

#[test]
#[should_panic(expected = "masks that differ, and valid rows of keys that are not in front")]
fn masks_with_gaps_must_be_the_same() {
    let x = || Tensor::<3>::zeros([2, 5, 8], &Device::flex());
    let window = Some(AttentionWindow { reach: 1, global: 0 });
    let settings = Attention { window, ..Attention::new(2) };
    let mask = mask(1, [2, 5]);
    attention_masked(x(), x(), x(), None, Some(&mask[..]), None, &settings);
}
