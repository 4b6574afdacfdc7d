//! Products of matrices in pairs.

use burn::tensor::{Device, Tensor, TensorData};
use firebox_core::{Precision, Stream};
use firebox_kernels::{CpuKernels, batched_product, product};

use crate::{Lay, bits, error, kernels, noise, on_threads, values, wide};

/// Pairs, rows, inner size, columns.
type Sizes = [usize; 4];

/// The result and both gradients of `Σ d · y`.
fn run(precision: Precision, [n, rows, inner, columns]: Sizes, lays: [Lay; 3]) -> [Vec<f32>; 3] {
    let shapes = [[n, rows, inner], [n, inner, columns], [n, rows, columns]];
    let [left, right, d] = std::array::from_fn(|at| {
        let numbers = noise(at as u64, shapes[at].iter().product());
        lays[at].tensor(&numbers, shapes[at])
    });
    let plain = batched_product(precision, left.clone(), right.clone());
    let [left, right] = [left, right].map(|operand| Tensor::from_inner(operand).require_grad());
    let y = batched_product(precision, left.clone(), right.clone());
    assert_eq!(bits(plain), bits(y.clone()), "in a graph or not");
    let grads = (y.clone() * Tensor::from_inner(d)).sum().backward();
    let of = |operand: Tensor<3>| {
        let grad = operand.grad(&grads).expect("tracked");
        assert_eq!(grad.dims(), operand.dims());
        values(grad)
    };
    [values(y), of(left), of(right)]
}

/// The same in float64, and what is rounded before a product rounded.
fn exact(precision: Precision, [n, rows, inner, columns]: Sizes) -> [Vec<f64>; 3] {
    let (a, b) = (noise(0, n * rows * inner), noise(1, n * inner * columns));
    let [a, b] = [a, b].map(|numbers| wide(&numbers, precision));
    // In f16 gradients are rounded behind a product, not before it.
    let before = if precision == Precision::F16 { Precision::F32 } else { precision };
    let d = wide(&noise(2, n * rows * columns), before);
    let (mut y, mut da, mut db) = (vec![0.0; d.len()], vec![0.0; a.len()], vec![0.0; b.len()]);
    for at in 0..n {
        for row in 0..rows {
            for column in 0..columns {
                let out = (at * rows + row) * columns + column;
                for k in 0..inner {
                    let (i, j) =
                        ((at * rows + row) * inner + k, (at * inner + k) * columns + column);
                    y[out] += a[i] * b[j];
                    da[i] += d[out] * b[j];
                    db[j] += d[out] * a[i];
                }
            }
        }
    }
    [y, da, db]
}

#[track_caller]
fn agrees(sizes: Sizes, lays: [Lay; 3]) {
    for precision in [Precision::F32, Precision::Tf32, Precision::Bf16, Precision::F16] {
        let exact = exact(precision, sizes);
        for kernels in kernels() {
            let found = kernels.force(|| run(precision, sizes, lays));
            // Composed of Burn's operations, gradients are not rounded before a product.
            let bounds = match (kernels, precision) {
                (_, Precision::F16) => [2e-6, 5e-4, 5e-4],
                (CpuKernels::Composed, Precision::Bf16) => [2e-6, 2e-2, 2e-2],
                _ => [2e-6; 3],
            };
            for (part, bound) in bounds.into_iter().enumerate() {
                let error = error(&found[part], &exact[part]);
                assert!(
                    error < bound,
                    "{kernels:?} {precision} {sizes:?} {lays:?}, part {part}: {error:e}"
                );
            }
        }
    }
}

#[test]
fn agrees_with_float64_forward_and_backward() {
    for sizes in [
        [1, 1, 1, 1],
        [0, 3, 4, 5],
        [3, 0, 4, 5],
        [3, 4, 0, 5],
        [3, 4, 5, 0],
        [2, 1, 7, 1],
        [5, 1, 33, 9],
        [5, 9, 33, 1],
        [40, 3, 5, 7],
        [7, 64, 64, 64],
        [3, 65, 129, 67],
        [2, 130, 40, 70],
        // More than one rectangle by one thread, and ones that all threads share.
        [2, 400, 33, 270],
        [1, 800, 20, 40],
        [2, 17, 35, 530],
        [3, 100, 300, 66],
    ] {
        agrees(sizes, [Lay::Plain; 3]);
    }
}

#[test]
fn agrees_with_float64_on_random_shapes_that_lie_anyhow() {
    let mut draws = Stream::new(9, "shapes").draws();
    for _ in 0..24 {
        let most = [6, 80, 80, 80];
        let sizes = most.map(|most| draws.below(most + 1) as usize);
        let lays = [0; 3].map(|_| Lay::ALL[draws.below(Lay::ALL.len() as u64) as usize]);
        agrees(sizes, lays);
    }
}

#[test]
fn bits_do_not_depend_on_how_operands_lie_or_on_threads() {
    // By one thread each, tiny ones several at once, and by all threads.
    for sizes in [[6, 20, 66, 70], [700, 5, 9, 7], [3, 41, 70, 101], [2, 790, 16, 20]] {
        for precision in [Precision::F32, Precision::Bf16] {
            for kernels in kernels().into_iter().filter(|one| *one != CpuKernels::Composed) {
                let of = |threads: usize, lays: [Lay; 3]| {
                    on_threads(threads, || kernels.force(|| run(precision, sizes, lays)))
                };
                let plain = of(1, [Lay::Plain; 3]);
                for threads in [2, 3] {
                    let same = of(threads, [Lay::Plain; 3]) == plain;
                    assert!(same, "{kernels:?} {precision} {sizes:?}: {threads} threads");
                }
                for lay in Lay::ALL {
                    for lays in
                        [[lay, Lay::Plain, Lay::Plain], [Lay::Plain, lay, Lay::Plain], [lay; 3]]
                    {
                        let same = of(2, lays) == plain;
                        assert!(same, "{kernels:?} {precision} {sizes:?}: {lays:?}");
                    }
                }
            }
        }
    }
}

/// Axes before the matrices, of which some are broadcast.
#[test]
fn axes_are_broadcast_as_burn_broadcasts_them() {
    let cases = [
        ([2, 3, 5, 7], [2, 3, 7, 4]),
        ([1, 3, 5, 7], [2, 1, 7, 4]),
        ([2, 1, 9, 33], [2, 3, 33, 40]),
        ([1, 1, 20, 35], [4, 3, 35, 33]),
        ([0, 3, 5, 7], [1, 3, 7, 4]),
        ([2, 1, 5, 7], [2, 0, 7, 4]),
    ];
    let device = Device::flex().autodiff();
    let tensor = |seed: u64, shape: [usize; 4]| {
        let numbers = noise(seed, shape.iter().product());
        Tensor::<4>::from_data(TensorData::new(numbers, shape), &device)
    };
    type Multiply = fn(Tensor<4>, Tensor<4>) -> Tensor<4>;
    for (left, right) in cases {
        let run = |multiply: Multiply| {
            let (left, right) = (tensor(1, left).require_grad(), tensor(2, right).require_grad());
            let y = multiply(left.clone(), right.clone());
            let grads = (y.clone() * tensor(3, y.dims())).sum().backward();
            let of = |operand: Tensor<4>| values(operand.grad(&grads).expect("tracked"));
            (y.dims(), [values(y), of(left), of(right)])
        };
        let (shape, theirs) = run(|left, right| product(Precision::F32, left, right));
        for kernels in kernels() {
            let ours: Multiply = |left, right| batched_product(Precision::F32, left, right);
            let (found, ours) = kernels.force(|| run(ours));
            assert_eq!(found, shape);
            for (ours, theirs) in ours.iter().zip(&theirs) {
                let error = error(ours, &wide(theirs, Precision::F32));
                assert!(error < 2e-6, "{kernels:?} {left:?} {right:?}: {error:e}");
            }
        }
    }
}

#[test]
fn heads_are_read_where_they_lie() {
    let device = Device::flex();
    let [batch, time, heads, size] = [2, 19, 3, 8];
    let numbers =
        TensorData::new(noise(1, batch * time * heads * size), [batch, time, heads, size]);
    let apart = Tensor::<4>::from_data(numbers, &device).swap_dims(1, 2);
    let copied = Tensor::<4>::from_data(apart.clone().into_data(), &device);
    for kernels in kernels().into_iter().filter(|one| *one != CpuKernels::Composed) {
        let [ours, copied] = [&apart, &copied].map(|x| {
            let scores = || batched_product(Precision::F32, x.clone(), x.clone().swap_dims(2, 3));
            bits(kernels.force(scores))
        });
        assert_eq!(ours, copied, "{kernels:?}");
    }
    // A vector is a matrix, too.
    let row = Tensor::<2>::from_data([[1.0f32, 2.0, 3.0]], &device);
    let product = batched_product(Precision::F32, row.clone(), row.transpose());
    assert_eq!(values(product), [14.0]);
}

/// The sum is linear in each number, so that differences over a long way are exact but for rounding.
#[test]
fn gradients_are_central_differences() {
    let [n, rows, inner, columns] = [2, 3, 18, 17];
    let (a, b) = (noise(0, n * rows * inner), noise(1, n * inner * columns));
    let d = noise(2, n * rows * columns);
    for kernels in kernels() {
        let [_, da, db] =
            kernels.force(|| run(Precision::F32, [n, rows, inner, columns], [Lay::Transposed; 3]));
        let sum = |a: &[f32], b: &[f32]| -> f64 {
            let left = Lay::Plain.tensor(a, [n, rows, inner]);
            let right = Lay::Plain.tensor(b, [n, inner, columns]);
            let y = kernels.force(|| values(batched_product(Precision::F32, left, right)));
            y.iter().zip(&d).map(|(y, d)| f64::from(*y) * f64::from(*d)).sum()
        };
        let moved = |numbers: &[f32], at: usize, by: f32| {
            let mut numbers = numbers.to_vec();
            numbers[at] += by;
            numbers
        };
        for at in (0..a.len()).step_by(5) {
            let difference = sum(&moved(&a, at, 1.0), &b) - sum(&moved(&a, at, -1.0), &b);
            assert!((difference / 2.0 - f64::from(da[at])).abs() < 1e-4, "{kernels:?} left {at}");
        }
        for at in (0..b.len()).step_by(7) {
            let difference = sum(&a, &moved(&b, at, 1.0)) - sum(&a, &moved(&b, at, -1.0));
            assert!((difference / 2.0 - f64::from(db[at])).abs() < 1e-4, "{kernels:?} right {at}");
        }
    }
}

#[test]
fn what_is_not_finite_stays_in_its_row_of_its_pair() {
    let [n, rows, inner, columns] = [3, 20, 40, 35];
    let mut a = noise(1, n * rows * inner);
    a[(rows + 5) * inner + 7] = f32::NAN;
    let b = noise(2, n * inner * columns);
    for kernels in kernels() {
        for precision in [Precision::F32, Precision::Bf16] {
            let left = Lay::Plain.tensor(&a, [n, rows, inner]);
            let right = Lay::Plain.tensor(&b, [n, inner, columns]);
            let y = kernels.force(|| values(batched_product(precision, left, right)));
            for (row, y) in y.chunks(columns).enumerate() {
                let spoilt = row == rows + 5;
                assert!(y.iter().all(|y| y.is_nan() == spoilt), "{kernels:?} {precision}: {row}");
            }
        }
    }
}

#[test]
fn a_gradient_that_nobody_wants_is_not_made() {
    for kernels in kernels() {
        kernels.force(|| {
            let left = Tensor::from_inner(Lay::Plain.tensor(&noise(1, 24), [2, 3, 4]));
            let left = left.require_grad();
            let right = Lay::Plain.tensor(&noise(2, 40), [2, 4, 5]);
            let lifted = Tensor::from_inner(right.clone());
            let y = batched_product(Precision::F32, left.clone(), right.clone());
            let grads = y.sum().backward();
            assert!(lifted.grad(&grads).is_none());
            // The sums of the right operand's rows.
            let sums = right.sum_dim(2).swap_dims(1, 2).expand([2, 3, 4]);
            let exact = wide(&values(sums), Precision::F32);
            assert!(error(&values(left.grad(&grads).expect("tracked")), &exact) < 2e-6);
        });
    }
}
