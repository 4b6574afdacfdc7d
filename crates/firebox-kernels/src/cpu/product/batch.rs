//! Products of many pairs of matrices: small ones each by one thread, large ones each by all.

use rayon::prelude::*;

use super::matrix::Matrices;
use super::part::{Left, Out, Right, Task, multiply_part};
use super::{Matrix, Products, RECTANGLE, SERIAL, only_bias, rectangle};
use crate::cpu::compute::{Compute, in_words};
use crate::cpu::{CpuKernels, Shared};

impl Products {
    /// `left · right` of each pair of matrices, `[pair, left.rows, right.columns]`.
    pub(crate) fn products(self, left: &Matrices<'_>, right: &Matrices<'_>) -> Vec<f32> {
        let count = left.starts.len();
        assert_eq!(count, right.starts.len(), "pairs of matrices");
        let ([rows, inner], [high, columns]) = (left.sizes, right.sizes);
        assert_eq!(inner, high, "inner sizes of a product");
        let each = rows * columns;
        let mut out = Vec::with_capacity(count * each);
        // SAFETY: there is room for all, and the memory is nobody else's.
        let shared = unsafe { Shared::from_raw(out.as_mut_ptr(), count * each) };
        // SAFETY: each product is written by one task.
        let part = |at: usize| unsafe { Shared::from_raw(shared.pointer(at * each, each), each) };
        let alone = |at: usize| self.run_alone(left.at(at), right.at(at), &part(at));
        let work = each * inner;
        if each == 0 || count * work < SERIAL {
            (0..count).for_each(alone);
        } else if by_pair(count, [rows, inner, columns], rayon::current_num_threads()) {
            // Of tiny ones, as many at once as are worth a thread.
            let several = (SERIAL / work.max(1)).max(1);
            (0..count).into_par_iter().with_min_len(several).for_each(alone);
        } else {
            for at in 0..count {
                self.run(left.at(at), right.at(at), None, &part(at), None);
            }
        }
        // SAFETY: every number of every product was written.
        unsafe { out.set_len(count * each) };
        out
    }

    /// Writes every number of `out` by the calling thread.
    fn run_alone(self, left: Matrix<'_>, right: Matrix<'_>, out: &Shared<'_>) {
        let sizes @ [rows, inner, columns] = [left.rows, left.columns, right.columns];
        if rows * columns == 0 {
            return;
        }
        if inner == 0 {
            return only_bias(None, out);
        }
        in_words!(self.packing(sizes), C => run_alone::<C>(self.kernels, left, right, out));
    }
}

/// Whether each of so many products is computed by one thread: where they are so small that a thread takes them in
/// a few rectangles, and enough for all threads, or too small to be cut.
fn by_pair(count: usize, [rows, inner, columns]: [usize; 3], threads: usize) -> bool {
    let small = rows <= 2 * RECTANGLE[0] && columns <= 2 * RECTANGLE[1];
    let enough = count >= 4 * threads || count.is_multiple_of(threads);
    small && (enough || rows * inner * columns < 2 * SERIAL)
}

/// No size may be 0.
fn run_alone<C: Compute>(
    kernels: CpuKernels,
    left: Matrix<'_>,
    right: Matrix<'_>,
    out: &Shared<'_>,
) {
    let (rows, columns) = (left.rows, right.columns);
    let task = Task {
        kernels,
        left: Left::Numbers(left),
        right: Right::Numbers(right),
        rows,
        inner: left.columns,
        columns,
        bias: None,
        addend: None,
        out: Out::Numbers(out),
    };
    let [height, width] = rectangle::<C>();
    for row in (0..rows).step_by(height) {
        for column in (0..columns).step_by(width) {
            let part = [row..rows.min(row + height), column..columns.min(column + width)];
            multiply_part::<C>(kernels, &task, part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_large_products_are_cut_and_many_small_ones_are_not() {
        assert!(by_pair(384, [64, 64, 64], 2));
        assert!(by_pair(8, [512, 512, 512], 2));
        assert!(by_pair(3, [40, 40, 40], 2));
        // One thread would wait for the other.
        assert!(!by_pair(3, [512, 512, 512], 2));
        assert!(!by_pair(1, [200, 200, 200], 2));
        // Each is worth all threads, and its operands worth packing by all.
        assert!(!by_pair(8, [2048, 64, 64], 2));
        assert!(!by_pair(8, [64, 64, 2048], 2));
    }
}
