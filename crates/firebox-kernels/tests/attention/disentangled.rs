//! Disentangled attention against float64, finite differences and what it is composed of.

mod problem;

use burn::tensor::{DType, Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{CpuKernels, DisentangledAttention, DistanceRows, disentangled_attention};
use problem::{Problem, problem, values};

use crate::case::relative_error;

const NAMES: [&str; 3] = ["the result", "the gradient of qkv", "the gradient of positions"];

fn check(problem: &Problem, bound: f64) {
    let exact = problem.solve();
    for kernels in CpuKernels::available() {
        let found = kernels.force(|| problem.run(Precision::F32));
        for ((name, found), exact) in NAMES.iter().zip(&found).zip(&exact) {
            let error = relative_error(found, exact);
            let Problem { batch, time, heads, size, terms, .. } = problem;
            assert!(
                error < bound,
                "{kernels:?}, {batch} × {time}, {heads} heads of {size}, {terms:?}: {name} is off by \
                 {error:.2e}"
            );
        }
    }
}

const SIZES: [[usize; 4]; 9] = [
    [1, 1, 1, 1],
    [2, 2, 1, 3],
    [3, 7, 2, 5],
    [2, 16, 3, 16],
    [1, 33, 2, 17],
    [2, 64, 1, 8],
    [1, 65, 2, 20],
    [2, 81, 1, 33],
    [1, 150, 1, 64],
];

#[test]
fn sizes_tables_and_terms() {
    for (seed, sizes) in SIZES.into_iter().enumerate() {
        for terms in [[true, true], [true, false], [false, true], [false, false]] {
            check(&Problem { terms, ..problem(seed as u64, sizes) }, 1e-5);
        }
    }
}

#[test]
fn lengths() {
    for seed in 0..6 {
        let lengths = Some(vec![0, 20, 1, 80, 16, 37, 79]);
        check(&Problem { lengths, ..problem(seed, [7, 80, 2, 6]) }, 1e-5);
    }
    let lengths = Some(vec![0; 3]);
    check(&Problem { lengths, ..problem(6, [3, 5, 2, 4]) }, 1e-5);
}

/// More heads and samples than there are tasks, so that a task sums up some samples' table.
#[test]
fn tasks_of_several_samples() {
    let lengths = Some(vec![0, 9, 3, 9, 5]);
    check(&Problem { lengths, ..problem(7, [5, 9, 60, 3]) }, 1e-5);
}

#[test]
fn random_shapes() {
    let mut draws = Stream::new(11, "shapes").draws();
    for seed in 0..25 {
        let mut below = |most| 1 + draws.below(most) as usize;
        let sizes = [below(4), below(90), below(4), below(40)];
        let lengths = Some((0..sizes[0]).map(|_| below(sizes[1] as u64 + 1) - 1).collect());
        let terms = [below(3) > 1, below(3) > 1];
        let dropout = [0.0, 0.1, 0.5][below(3) - 1];
        let stream = Some(Stream::new(seed, "dropout"));
        let lengths = lengths.filter(|_| seed % 2 == 0);
        check(&Problem { lengths, terms, dropout, stream, ..problem(seed, sizes) }, 1e-5);
    }
}

#[test]
fn dropout_is_that_of_a_tensor_of_probabilities() {
    let stream = Some(Stream::new(5, "probabilities"));
    for (seed, dropout) in [0.1, 0.5, 0.97, 0.0, 1.0].into_iter().enumerate() {
        // Odd numbers of probabilities, so that rows begin anywhere within a block of the stream.
        for sizes in [[3, 7, 3, 4], [1, 70, 2, 16], [2, 1, 2, 5], [2, 9, 1, 3]] {
            check(&Problem { dropout, stream, ..problem(seed as u64, sizes) }, 1e-5);
        }
    }
    check(&Problem { dropout: 0.5, ..problem(5, [2, 11, 1, 16]) }, 1e-5);
}

#[test]
fn saturated_and_even_scores() {
    let mut saturated = problem(0, [2, 40, 2, 16]);
    saturated.values[0].iter_mut().for_each(|x| *x *= 16.0);
    check(&saturated, 1e-4);
    let mut even = problem(1, [1, 30, 1, 16]);
    even.values[0].chunks_mut(48).for_each(|row| row[..32].fill(0.0));
    check(&even, 1e-5);
    // So small that products of two are nothing: only values and their gradient are left.
    let mut small = problem(2, [1, 20, 2, 16]);
    for values in &mut small.values[..2] {
        values.iter_mut().for_each(|x| *x = f64::from((*x * 1e-30) as f32));
    }
    let exact = small.solve();
    for kernels in CpuKernels::available() {
        let [out, ..] = kernels.force(|| small.run(Precision::F32));
        assert!(relative_error(&out, &exact[0]) < 1e-5, "{kernels:?}");
    }
}

#[test]
fn finite_differences() {
    let base = Problem {
        dropout: 0.3,
        stream: Some(Stream::new(6, "probabilities")),
        lengths: Some(vec![6, 9]),
        ..problem(3, [2, 9, 2, 5])
    };
    let loss = |problem: &Problem| -> f64 {
        problem.solve()[0].iter().zip(&problem.values[2]).map(|(y, d)| y * d).sum()
    };
    let exact = base.solve();
    let found = base.run(Precision::F32);
    for operand in 0..2 {
        for at in (0..base.values[operand].len()).step_by(7) {
            let moved = |by: f64| {
                let mut problem = base.clone();
                problem.values[operand][at] += by;
                loss(&problem)
            };
            let slope = (moved(1e-5) - moved(-1e-5)) / 2e-5;
            let near = slope.abs().max(1.0);
            assert!((slope - exact[operand + 1][at]).abs() < 1e-7 * near);
            assert!((slope - f64::from(found[operand + 1][at])).abs() < 1e-5 * near);
        }
    }
}

#[test]
fn narrow_products_are_those_of_the_composed_way() {
    let stream = Some(Stream::new(8, "dropout"));
    for (seed, sizes) in SIZES.into_iter().enumerate() {
        for terms in [[true, true], [true, false], [false, true]] {
            let problem = Problem { dropout: 0.2, stream, terms, ..problem(seed as u64, sizes) };
            for (precision, bound) in [(Precision::Bf16, 3e-2), (Precision::F16, 4e-3)] {
                let composed = CpuKernels::Composed.force(|| problem.run(precision));
                let exact = problem.solve();
                for kernels in CpuKernels::available().into_iter().skip(1) {
                    let found = kernels.force(|| problem.run(precision));
                    for (part, name) in NAMES.iter().enumerate() {
                        let [ours, theirs] = [&found, &composed]
                            .map(|found| relative_error(&found[part], &exact[part]));
                        assert!(
                            ours < bound && ours < 2.0 * theirs + bound / 10.0,
                            "{kernels:?} {precision} {sizes:?} {terms:?}: {name} is off by {ours:.2e}, \
                             composed by {theirs:.2e}"
                        );
                    }
                }
            }
        }
    }
}

/// Queries, keys or values, or the gradients of theirs.
fn part<T: Copy>(qkv: &[T], width: usize, index: usize) -> Vec<T> {
    qkv.chunks(width).skip(index).step_by(3).flatten().copied().collect()
}

#[test]
fn of_one_key_scores_have_no_slope_in_bf16() {
    let stream = Some(Stream::new(9, "dropout"));
    for (seed, dropout) in [(20, 0.0), (21, 0.1)] {
        let problem = Problem { dropout, stream, ..problem(seed, [3, 1, 2, 16]) };
        for kernels in CpuKernels::available() {
            let [_, qkv, positions] = kernels.force(|| problem.run(Precision::Bf16));
            let [dq, dk] = [0, 1].map(|index| part(&qkv, problem.width(), index));
            // Two sums of the same products in two orders.
            let slopes = dq.iter().chain(&dk).chain(&positions);
            let largest = slopes.fold(0.0, |most: f32, d| most.max(d.abs()));
            assert!(largest < 2e-5, "{kernels:?}, {dropout}: {largest:e}");
        }
    }
}

/// What all keys and all values have in common changes no score beside others, and no difference of slopes.
#[test]
fn what_keys_and_values_have_in_common_takes_no_part_in_bf16() {
    let stream = Some(Stream::new(9, "dropout"));
    for (terms, dropout) in
        [([true, true], 0.0), ([true, false], 0.1), ([false, true], 0.3), ([false, false], 0.0)]
    {
        let mut problem = Problem { terms, dropout, stream, ..problem(20, [2, 48, 2, 32]) };
        let width = problem.width();
        let rounded = |x: f64| half::bf16::from_f64(x).to_f64();
        // Operands that bf16 holds, so that all that is rounded is what is computed, and the gradient of the result.
        for (row, values) in problem.values[0].chunks_mut(width).enumerate() {
            let shift = [0.0, 5.0, 5.0][row % 3];
            values.iter_mut().for_each(|x| *x = rounded(*x + shift));
        }
        // Small queries of distances: with such keys, scores would be nothing but these.
        let across = problem.parts * width;
        for (at, value) in problem.values[1].iter_mut().enumerate() {
            *value = rounded(if at % across < width { *value / 32.0 } else { *value });
        }
        let [exact, exact_qkv, exact_positions] = problem.solve();
        for kernels in CpuKernels::available().into_iter().skip(1) {
            let [out, qkv, positions] = kernels.force(|| problem.run(Precision::Bf16));
            let of = |index| {
                let (found, exact) = (part(&qkv, width, index), part(&exact_qkv, width, index));
                relative_error(&found, &exact)
            };
            let distances = relative_error(&positions, &exact_positions);
            let errors = [relative_error(&out, &exact), of(0), of(1), of(2), distances];
            let near = errors.iter().zip([1e-3, 1.6e-2, 5e-3, 5e-3, 5e-3]).all(|(a, b)| *a < b);
            assert!(near, "{kernels:?} {terms:?} {dropout}: {errors:?}");
        }
    }
}

#[test]
fn padding_may_hold_anything_and_gives_zeros() {
    let lengths = vec![4, 0, 70];
    let clean = Problem { lengths: Some(lengths.clone()), ..problem(3, [3, 70, 2, 5]) };
    assert_eq!(clean.parts, 3);
    let mut dirty = clean.clone();
    let width = clean.width();
    for (values, across) in dirty.values.iter_mut().zip([3 * width, 0, width]) {
        for (row, values) in values.chunks_mut(across.max(1)).enumerate() {
            if across > 0 && row % 70 >= lengths[row / 70] {
                values.fill(f64::NAN);
            }
        }
    }
    // Values of distances are read by nobody.
    for row in dirty.values[1].chunks_mut(3 * width) {
        row[2 * width..].fill(f64::NAN);
    }
    for kernels in CpuKernels::available() {
        for precision in [Precision::F32, Precision::Bf16] {
            // The gradient that arrives is multiplied with zeros by the composed way's masks.
            let mut dirty = dirty.clone();
            if kernels == CpuKernels::Composed {
                dirty.values[2].clone_from(&clean.values[2]);
            }
            let [a, b] = [&clean, &dirty].map(|one| kernels.force(|| one.run(precision)));
            for ((a, b), across) in a.iter().zip(&b).zip([width, 3 * width, 0]) {
                assert!(b.iter().all(|x| x.is_finite()), "{kernels:?}");
                assert!(a == b, "{kernels:?}");
                for (row, values) in b.chunks(across.max(1)).enumerate() {
                    let padding = across > 0 && row % 70 >= lengths[row / 70];
                    assert!(!padding || values.iter().all(|x| *x == 0.0), "{kernels:?}");
                }
            }
            for row in b[2].chunks(3 * width) {
                assert!(row[2 * width..].iter().all(|x| *x == 0.0), "{kernels:?}");
            }
        }
    }
}

#[test]
fn nan_spoils_the_queries_that_see_it() {
    let mut spoilt = problem(4, [2, 20, 2, 16]);
    let width = spoilt.width();
    // Key 7 in head 1 of sample 0, a query in head 0 of sample 1.
    spoilt.values[0][7 * 3 * width + width + 16] = f64::NAN;
    spoilt.values[0][30 * 3 * width + 3] = f64::NAN;
    for kernels in CpuKernels::available() {
        for precision in [Precision::F32, Precision::Bf16] {
            let [out, ..] = kernels.force(|| spoilt.run(precision));
            for (index, value) in out.iter().enumerate() {
                let (row, column) = (index / width, index % width);
                let nan = if row < 20 { column >= 16 } else { row == 30 && column < 16 };
                assert_eq!(value.is_nan(), nan, "{kernels:?}, {precision:?}: {row} {column}");
            }
        }
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    for sizes in [[5, 70, 3, 16], [5, 9, 60, 4]] {
        let lengths = [70, 12, 0, 55, 70].map(|length: usize| length.min(sizes[1])).to_vec();
        let stream = Some(Stream::new(1, "dropout"));
        let problem = problem(0, sizes);
        let problem = Problem { dropout: 0.2, stream, lengths: Some(lengths), ..problem };
        for kernels in CpuKernels::available().into_iter().skip(1) {
            for precision in [Precision::F32, Precision::Bf16] {
                let results = [1, 2, 3].map(|threads| {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                    pool.expect("a pool").install(|| kernels.force(|| problem.run(precision)))
                });
                assert!(results[0] == results[1] && results[0] == results[2], "{kernels:?}");
            }
        }
    }
}

#[test]
fn strided_operands_are_read_where_they_are() {
    let problem = problem(1, [2, 13, 2, 6]);
    let (qkv, positions, _) = problem.tensors(&Device::flex());
    let run = |qkv: Tensor<3>, positions: Tensor<2>| {
        let settings = problem.settings(Precision::F32);
        let out =
            disentangled_attention(qkv, positions, &problem.distances(), None, None, &settings);
        values(out)
    };
    let beside = |qkv: Tensor<3>| Tensor::cat(vec![qkv.clone(), qkv], 2).narrow(2, 36, 36);
    let below = Tensor::cat(vec![positions.clone(), positions.clone()], 1).narrow(1, 24, 24);
    for kernels in CpuKernels::available().into_iter().skip(1) {
        kernels.force(|| {
            let expected = run(qkv.clone(), positions.clone());
            let turned = qkv.clone().swap_dims(0, 1).mul_scalar(1.0).swap_dims(0, 1);
            let across = positions.clone().transpose().mul_scalar(1.0).transpose();
            assert_eq!(run(beside(qkv.clone()), below.clone()), expected, "{kernels:?}");
            assert_eq!(run(turned, across), expected, "{kernels:?}");
        });
    }
}

#[test]
fn a_gradient_of_one_operand_alone() {
    let problem = problem(2, [2, 11, 2, 4]);
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            let whole = problem.run(Precision::F32);
            for tracked in 0..2 {
                let (qkv, positions, d) = problem.tensors(&Device::flex().autodiff());
                // A tensor in no graph goes with one in a graph.
                let (qkv, positions) = match tracked {
                    0 => (qkv.require_grad(), positions.inner()),
                    _ => (qkv.inner(), positions.require_grad()),
                };
                let (a, b) = (qkv.clone(), positions.clone());
                let (distances, settings) = (problem.distances(), problem.settings(Precision::F32));
                let y = disentangled_attention(a, b, &distances, None, None, &settings);
                let grads = (y * d).sum().backward();
                let found = match tracked {
                    0 => values(qkv.grad(&grads).expect("tracked")),
                    _ => values(positions.grad(&grads).expect("tracked")),
                };
                assert_eq!(found, whole[1 + tracked], "{kernels:?}");
            }
        });
    }
}

#[test]
fn nothing_gives_nothing() {
    let device = Device::flex().autodiff();
    for kernels in CpuKernels::available() {
        kernels.force(|| {
            for [batch, time, width] in [[0, 5, 4], [2, 0, 4], [2, 5, 0]] {
                let qkv = Tensor::<3>::ones([batch, time, 3 * width], &device).require_grad();
                let positions = Tensor::<2>::ones([4, 2 * width], &device).require_grad();
                let distances = DistanceRows::new(time, |distance| (distance.abs() % 4) as usize);
                assert_eq!(distances.time(), time);
                let settings = DisentangledAttention::new(2);
                let (a, b) = (qkv.clone(), positions.clone());
                let out = disentangled_attention(a, b, &distances, None, None, &settings);
                assert_eq!(out.dims(), [batch, time, width]);
                let grads = out.sum().backward();
                let zeros = |x: Vec<f32>| x.iter().all(|x| *x == 0.0);
                assert!(zeros(values(qkv.grad(&grads).expect("tracked"))), "{kernels:?}");
                assert!(zeros(values(positions.grad(&grads).expect("tracked"))), "{kernels:?}");
            }
        });
    }
}

#[test]
fn other_types_are_composed() {
    let problem = problem(3, [2, 12, 2, 4]);
    let exact = problem.solve();
    let (qkv, positions, _) = problem.tensors(&Device::flex());
    for dtype in [DType::F64, DType::F16] {
        let (qkv, positions) = (qkv.clone().cast(dtype), positions.clone().cast(dtype));
        let settings = problem.settings(Precision::F32);
        let out =
            disentangled_attention(qkv, positions, &problem.distances(), None, None, &settings);
        assert_eq!(out.dtype(), dtype);
        let bound = if dtype == DType::F64 { 1e-6 } else { 1e-2 };
        assert!(relative_error(&values(out), &exact[0]) < bound);
    }
}
