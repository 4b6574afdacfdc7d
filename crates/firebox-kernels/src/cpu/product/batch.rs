//! Products of many pairs of matrices: small ones each by one thread, large ones each by all.

use rayon::prelude::*;

use super::matrix::Matrices;
use super::part::{Left, Out, Right, Room, Task, multiply_in};
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
        // Memory that a thread has for one pair it keeps for the next: taken for each of thousands of tiny ones,
        // threads would wait for each other.
        let alone = |room: &mut Option<Room>, at: usize| {
            self.run_alone([left.at(at), right.at(at)], &part(at), room);
        };
        let work = each * inner;
        if each == 0 || count * work < SERIAL {
            let mut room = None;
            (0..count).for_each(|at| alone(&mut room, at));
        } else if by_pair(count, [rows, inner, columns], rayon::current_num_threads()) {
            // Of tiny ones, as many at once as are worth a thread.
            let several = (SERIAL / work.max(1)).max(1);
            let pairs = (0..count).into_par_iter().with_min_len(several);
            pairs.for_each_init(|| None, alone);
        } else {
            for at in 0..count {
                self.run(left.at(at), right.at(at), None, &part(at), None);
            }
        }
        // SAFETY: every number of every product was written.
        unsafe { out.set_len(count * each) };
        out
    }

    /// Writes every number of `out` by the calling thread, in memory that it makes for the first of some pairs of the same
    /// sizes and distances.
    fn run_alone(self, [left, right]: [Matrix<'_>; 2], out: &Shared<'_>, room: &mut Option<Room>) {
        let sizes @ [rows, inner, columns] = [left.rows, left.columns, right.columns];
        if rows * columns == 0 {
            return;
        }
        if inner == 0 {
            return only_bias(None, out);
        }
        in_words!(self.packing(sizes), C => {
            run_alone::<C>(self.kernels, [left, right], out, room);
        });
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
    [left, right]: [Matrix<'_>; 2],
    out: &Shared<'_>,
    room: &mut Option<Room>,
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
    let most = [rows.min(height), columns.min(width)];
    let room = room.get_or_insert_with(|| Room::new::<C>(&task, most));
    for row in (0..rows).step_by(height) {
        for column in (0..columns).step_by(width) {
            let part = [row..rows.min(row + height), column..columns.min(column + width)];
            multiply_in::<C>(kernels, &task, part, room);
        }
    }
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test says why it fails by panicking")]
mod tests {
    use super::*;
    use crate::cpu::pool;

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

    /// Matrices one after the other, with their rows in one piece each, or their columns.
    fn matrices(values: &[f32], sizes: [usize; 2], across: bool) -> Matrices<'_> {
        let starts = (0..values.len()).step_by(sizes[0] * sizes[1]).collect();
        let strides = if across { [1, sizes[0]] } else { [sizes[1], 1] };
        Matrices { values, starts, sizes, strides }
    }

    #[test]
    fn memory_is_taken_by_the_task_and_not_by_the_pair() {
        const SIZE: usize = 16;
        let count = 1000;
        let values: Vec<f32> = (0..count * SIZE * SIZE).map(|at| (at % 37) as f32 - 18.0).collect();
        let threads = rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("threads");
        // Of these threads alone: other tests take memory of the same pool.
        let taken = || threads.broadcast(|_| pool::times_locked()).iter().sum::<usize>();
        for kernels in CpuKernels::available().into_iter().skip(1) {
            for bf16 in [false, true] {
                for across in [false, true] {
                    let products = Products { kernels, bf16 };
                    let run = |values: &[f32]| {
                        let both = matrices(values, [SIZE; 2], across);
                        products.products(&both, &both)
                    };
                    let before = taken();
                    let all = threads.install(|| run(&values));
                    let found = taken() - before;
                    // 32 pairs are the least that is worth a thread; of the five pieces of memory each is locked for
                    // when it is taken and when it is given back.
                    assert!(found <= count / 32 * 10, "{products:?} {across}: {found}");
                    for at in [0, 1, 499, 999] {
                        let one = &values[at * SIZE * SIZE..][..SIZE * SIZE];
                        let same = run(one) == all[at * SIZE * SIZE..][..SIZE * SIZE];
                        assert!(same, "{products:?} {across}: pair {at}");
                    }
                }
            }
        }
    }

    #[test]
    fn pairs_of_several_rectangles_share_memory() {
        // Rectangles of 384 by 256: the last ones are smaller than the first.
        let (count, sizes) = (9, [400, 40, 300]);
        let [rows, inner, columns] = sizes;
        let noise = |count: usize| -> Vec<f32> {
            (0..count).map(|at| (at * 7919 % 1013) as f32 / 506.0 - 1.0).collect()
        };
        let (a, b) = (noise(count * rows * inner), noise(count * inner * columns));
        assert!(by_pair(count, sizes, 2));
        let threads = rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("threads");
        for kernels in CpuKernels::available().into_iter().skip(1) {
            for bf16 in [false, true] {
                let products = Products { kernels, bf16 };
                let left = matrices(&a, [rows, inner], false);
                let right = matrices(&b, [inner, columns], false);
                let all = threads.install(|| products.products(&left, &right));
                for (at, found) in all.chunks_exact(rows * columns).enumerate() {
                    let alone = products.product(left.at(at), right.at(at), None);
                    assert!(alone == found, "{products:?}: pair {at}");
                }
            }
        }
    }
}
