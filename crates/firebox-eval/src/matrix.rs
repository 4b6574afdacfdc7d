//! Dense matrix products and the Cholesky factor that the probes and the projection stand on.
//!
//! Not a linear algebra library: what is here is what this crate needs.

use gemm::Parallelism;

/// A view of a dense matrix, `[rows, columns]`, row-major before `transposed` is applied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a, T> {
    values: &'a [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// Views `values` as rows of `columns` values.
    ///
    /// # Panics
    ///
    /// When `values` does not hold `rows × columns` values.
    pub(crate) fn new(values: &'a [T], rows: usize, columns: usize) -> Self {
        assert_eq!(values.len(), rows * columns, "a matrix of {rows} × {columns}");
        Self { values, rows, columns, row_stride: columns, column_stride: 1 }
    }

    /// The same values with rows and columns exchanged.
    pub(crate) fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }
}

/// The number types that products are computed in.
pub(crate) trait Real: Copy + 'static {
    const ZERO: Self;
    const ONE: Self;
}

impl Real for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
}

impl Real for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
}

/// Writes `left · right` to `out`, `[left.rows, right.columns]` row-major.
///
/// # Panics
///
/// When the shapes do not fit.
pub(crate) fn multiply<T: Real>(left: Matrix<'_, T>, right: Matrix<'_, T>, out: &mut [T]) {
    let (rows, inner, columns) = (left.rows, left.columns, right.columns);
    assert_eq!(inner, right.rows, "inner sizes of a product");
    assert_eq!(out.len(), rows * columns, "a product of {rows} × {columns}");
    if inner == 0 || out.is_empty() {
        return out.fill(T::ZERO);
    }
    // A thread costs more than a small product.
    let parallelism =
        if rows * columns * inner < 1 << 16 { Parallelism::None } else { Parallelism::Rayon(0) };
    // SAFETY: `Matrix::new` and the assertions above tie every size to the length of its slice, and
    // `transposed` exchanges sizes and strides together, so no index leaves a slice; `out` is
    // borrowed mutably and therefore overlaps neither operand. Its old content is not read.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            inner,
            out.as_mut_ptr(),
            1,
            columns as isize,
            false,
            left.values.as_ptr(),
            left.column_stride as isize,
            left.row_stride as isize,
            right.values.as_ptr(),
            right.column_stride as isize,
            right.row_stride as isize,
            T::ZERO,
            T::ONE,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// The lower factor `L` of a symmetric positive definite matrix `A = L·Lᵀ`, in place of its lower
/// half; `None` when it is not positive definite.
///
/// # Shapes
///
/// - `a`: `[n, n]`, row-major.
pub(crate) fn cholesky(mut a: Vec<f64>, n: usize) -> Option<Vec<f64>> {
    for j in 0..n {
        let (above, rest) = a.split_at_mut((j + 1) * n);
        let row = &mut above[j * n..];
        let pivot = row[j] - row[..j].iter().map(|v| v * v).sum::<f64>();
        // NaN is not positive either.
        if pivot.is_nan() || pivot <= 0.0 {
            return None;
        }
        let pivot = pivot.sqrt();
        row[j] = pivot;
        let row = &*row;
        let column = |below: &mut [f64]| {
            let dot: f64 = below[..j].iter().zip(&row[..j]).map(|(a, b)| a * b).sum();
            below[j] = (below[j] - dot) / pivot;
        };
        if (n - j) * j > 1 << 15 {
            use rayon::prelude::*;
            rest.par_chunks_mut(n).with_min_len(16).for_each(column);
        } else {
            rest.chunks_mut(n).for_each(column);
        }
    }
    Some(a)
}

/// Solves `L·Lᵀ·x = b` in place, for the factor that [`cholesky`] gives and each `b`. Several share each row of the
/// factor while it is at hand, and every one has the bits that it has alone.
///
/// # Shapes
///
/// - `all`: `[b, n]`
pub(crate) fn solve(factor: &[f64], n: usize, all: &mut [f64]) {
    for i in 0..n {
        let (row, pivot) = (&factor[i * n..i * n + i], factor[i * n + i]);
        for b in all.chunks_exact_mut(n) {
            let dot: f64 = row.iter().zip(&*b).map(|(l, b)| l * b).sum();
            b[i] = (b[i] - dot) / pivot;
        }
    }
    for i in (0..n).rev() {
        let (row, pivot) = (&factor[i * n..i * n + i], factor[i * n + i]);
        for b in all.chunks_exact_mut(n) {
            b[i] /= pivot;
            let value = b[i];
            b[..i].iter_mut().zip(row).for_each(|(b, l)| *b -= l * value);
        }
    }
}

#[cfg(test)]
mod tests {
    use firebox_core::Stream;

    use super::*;

    fn random(seed: u64, count: usize) -> Vec<f64> {
        let mut draws = Stream::new(seed, "matrix").draws();
        (0..count).map(|_| draws.normal()).collect()
    }

    #[test]
    fn products_equal_their_definition_for_odd_sizes_and_transposes() {
        for (m, k, n) in [(1, 1, 1), (3, 5, 7), (33, 17, 65), (101, 50, 41), (2, 0, 3)] {
            let (a, b) = (random(1, m * k), random(2, k * n));
            let mut expected = vec![0.0; m * n];
            for i in 0..m {
                for j in 0..n {
                    expected[i * n + j] = (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum();
                }
            }
            let mut out = vec![f64::NAN; m * n];
            multiply(Matrix::new(&a, m, k), Matrix::new(&b, k, n), &mut out);
            assert!(out.iter().zip(&expected).all(|(x, y)| (x - y).abs() < 1e-12), "{m} {k} {n}");
            let mut at = vec![0.0; m * k];
            for i in 0..m {
                for j in 0..k {
                    at[j * m + i] = a[i * k + j];
                }
            }
            out.fill(f64::NAN);
            multiply(Matrix::new(&at, k, m).transposed(), Matrix::new(&b, k, n), &mut out);
            assert!(out.iter().zip(&expected).all(|(x, y)| (x - y).abs() < 1e-12), "{m} {k} {n}");
        }
    }

    #[test]
    fn cholesky_solves_and_refuses_what_is_not_positive_definite() {
        for n in [1, 2, 7, 90, 300] {
            let x = random(3, 2 * n * n);
            let mut a = vec![0.0; n * n];
            let view = Matrix::new(&x, 2 * n, n);
            multiply(view.transposed(), view, &mut a);
            let b = random(4, n);
            let mut solution = b.clone();
            solve(&cholesky(a.clone(), n).unwrap(), n, &mut solution);
            for i in 0..n {
                let back: f64 = (0..n).map(|j| a[i * n + j] * solution[j]).sum();
                assert!((back - b[i]).abs() < 1e-6, "{n}: {back} {}", b[i]);
            }
            // Others beside it change no bit.
            let mut together = [random(5, n), b, random(6, n)].concat();
            solve(&cholesky(a, n).unwrap(), n, &mut together);
            assert_eq!(together[n..2 * n], solution[..], "{n}");
        }
        assert!(cholesky(vec![1.0, 2.0, 2.0, 1.0], 2).is_none());
        assert!(cholesky(vec![f64::NAN], 1).is_none());
    }
}
