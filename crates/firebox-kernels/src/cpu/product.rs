//! Products of two matrices, in f32 or with operands rounded to bf16, into memory of the caller. Tiles of AMX
//! multiply f32 too, each number as the sum of three bf16.
//!
//! The result is cut into rectangles, each computed by one thread over the whole inner size: chunks
//! of the right operand are packed into panels of 64 columns, or of 16 where a register tile is no wider,
//! that stay in the core's first cache, and register tiles of several rows walk over them. Operands that several rectangles read are
//! packed before them, by all threads. Every number of the result is summed up in
//! the same order however the result is cut, so that the number of threads changes no bit.
//!
//! The speed is that of the `gemm` crate in f32, and twice that in bf16 where the processor has fast
//! instructions for it.

mod ahead;
mod batch;
mod matrix;
mod pack;
mod part;
mod tile;
mod weight;

use firebox_core::Precision;

pub(crate) use self::matrix::{Matrices, Matrix, distances};
pub(super) use self::pack::{group, pack_row, words};
pub use self::part::Activation;
use self::part::{Left, Out, PANEL, Rectangle, Right, TILE, Task, multiply_part};
pub(crate) use self::weight::{Panels, Rows, Weight};
use super::amx::{self, Tiles};
use super::compute::{Compute, Words, in_words};
use super::{CpuKernels, Shared, each_on_a_thread};

/// Largest rectangle of the result that a thread computes at once, in rows and columns: with its
/// operands it fits into a core's second cache.
const RECTANGLE: [usize; 2] = [384, 256];

/// The same of processors with tiles, whose second caches are of 2 MiB, where operands are in pieces: these are
/// half as long again, and come from beyond that cache half as often.
const PIECES_RECTANGLE: [usize; 2] = [512, 512];

fn rectangle<C: Compute>() -> [usize; 2] {
    if C::PIECES > 1 { PIECES_RECTANGLE } else { RECTANGLE }
}

/// An operand that so many rectangles read is packed once, before them.
const SHARED: usize = 3;

/// Products of fewer multiplications run on the calling thread: waking another one costs more.
const SERIAL: usize = 1 << 17;

/// Rows, inner size and columns from which on f32 is faster in pieces, in the tiles of AMX: packing takes
/// longer than in f32, and tiles are not filled by fewer.
const PIECES: [usize; 3] = [16, 32, 32];

/// What is done to the parts of a result's rows while they lie in the cache of the core that computed them, with
/// the place of a part's first number in the result. Parts begin at multiples of [`PANEL`] columns.
pub(crate) type After<'a> = &'a (dyn Fn(usize, &mut [f32]) + Sync);

/// How products are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Products {
    pub(crate) kernels: CpuKernels,
    /// Whether the operands are rounded to bf16; sums are f32 either way.
    pub(crate) bf16: bool,
}

impl Products {
    /// Of operands in a type; `None` if they are composed of Burn's operations, and in f16, whose operands are
    /// rounded one by one.
    pub(crate) fn of(precision: Precision) -> Option<Self> {
        let bf16 = match precision {
            Precision::F32 | Precision::Tf32 => false,
            Precision::Bf16 => true,
            Precision::F16 => return None,
        };
        CpuKernels::fused().map(|kernels| Self { kernels, bf16 })
    }

    /// `bias + left · right` in memory of its own, `[left.rows, right.columns]`, with a bias for each
    /// column or none.
    pub(crate) fn product(
        self,
        left: Matrix<'_>,
        right: Matrix<'_>,
        bias: Option<&[f32]>,
    ) -> Vec<f32> {
        self.product_then(left, right, bias, None)
    }

    /// [`product`](Self::product), each part of which is changed once it is complete.
    pub(super) fn product_then(
        self,
        left: Matrix<'_>,
        right: Matrix<'_>,
        bias: Option<&[f32]>,
        after: Option<After<'_>>,
    ) -> Vec<f32> {
        let count = left.rows * right.columns;
        let mut out = Vec::with_capacity(count);
        // SAFETY: there is room for `count` numbers, and the memory is nobody else's.
        let shared = unsafe { Shared::from_raw(out.as_mut_ptr(), count) };
        self.run(left, right, bias, &shared, after);
        // SAFETY: every number of the result was written.
        unsafe { out.set_len(count) };
        out
    }

    /// Writes every number of `out`, whatever was there.
    fn run(
        self,
        left: Matrix<'_>,
        right: Matrix<'_>,
        bias: Option<&[f32]>,
        out: &Shared<'_>,
        after: Option<After<'_>>,
    ) {
        let (rows, inner, columns) = (left.rows, left.columns, right.columns);
        assert_eq!(inner, right.rows, "inner sizes of a product");
        assert_eq!(out.len, rows * columns, "a product of {rows} × {columns}");
        if let Some(bias) = bias {
            let length = bias.len();
            assert!(length == columns, "a bias of {length} numbers for {columns} columns");
        }
        if rows * columns == 0 {
            return;
        }
        if inner == 0 {
            only_bias(bias, out);
            return finish(out, columns, [0..rows, 0..columns], after);
        }
        in_words!(self.packing([rows, inner, columns]), C => {
            run::<C>(self.kernels, left, (Right::Numbers(right), columns), bias, out, after);
        });
    }

    /// How the operands of a product of `[rows, inner, columns]` are packed.
    fn packing(self, sizes: [usize; 3]) -> Words {
        match (self.bf16, self.kernels) {
            (false, CpuKernels::Amx)
                if sizes.iter().zip(PIECES).all(|(size, least)| *size >= least) =>
            {
                Words::Split
            }
            (bf16, kernels) => Words::of(kernels, bf16),
        }
    }
}

/// Writes every number of `out`, a product with a right operand of so many columns. No size may be 0.
fn run<C: Compute>(
    kernels: CpuKernels,
    left: Matrix<'_>,
    (right, columns): (Right<'_>, usize),
    bias: Option<&[f32]>,
    out: &Shared<'_>,
    after: Option<After<'_>>,
) {
    let (rows, inner) = (left.rows, left.columns);
    let height = if Tiles::of::<C>(kernels).is_some() { amx::TILE } else { TILE };
    let cuts = cuts([rows, columns], inner, rectangle::<C>(), height);
    let strips = !pack::in_rows::<C>(kernels, &left);
    let copied = strips || !C::VERBATIM;
    let packed_left = (copied && cuts[1] >= SHARED).then(|| pack::whole_left::<C>(kernels, left));
    let packed_right = match right {
        Right::Numbers(right) if cuts[0] >= SHARED => Some(pack::whole_right::<C>(kernels, right)),
        _ => None,
    };
    let task = Task {
        kernels,
        left: match (&packed_left, strips) {
            (None, _) => Left::Numbers(left),
            (Some(packed), false) => Left::Rows(packed.get()),
            (Some(packed), true) => Left::Strips(packed.get()),
        },
        right: packed_right.as_ref().map_or(right, |packed| Right::Panels(packed.get())),
        rows,
        inner,
        columns,
        bias,
        addend: None,
        out: Out::Numbers(out),
    };
    let compute = |rectangle: Rectangle| {
        multiply_part::<C>(kernels, &task, rectangle.clone());
        finish(out, columns, rectangle, after);
    };
    if cuts == [1, 1] {
        return compute([0..rows, 0..columns]);
    }
    let part = |size: usize, unit: usize, index: usize, count: usize| {
        let at = |index: usize| (size.div_ceil(unit) * index / count * unit).min(size);
        at(index)..at(index + 1)
    };
    // Neighbours share rows of the left operand, which is usually the larger one.
    each_on_a_thread(cuts[0] * cuts[1], &|index| {
        let (row, column) = (index / cuts[1], index % cuts[1]);
        let rows = part(rows, height, row, cuts[0]);
        let columns = part(columns, PANEL, column, cuts[1]);
        compute([rows, columns]);
    });
}

/// Does what comes after a rectangle of a result with so many columns, which is complete and the caller's.
fn finish(out: &Shared<'_>, all: usize, [rows, columns]: Rectangle, after: Option<After<'_>>) {
    let Some(after) = after else { return };
    for row in rows {
        let first = row * all + columns.start;
        // SAFETY: the rectangle is this thread's, and its numbers were written.
        after(first, unsafe { out.part(first, columns.len()) });
    }
}

/// A product without an inner size.
fn only_bias(bias: Option<&[f32]>, out: &Shared<'_>) {
    for index in 0..out.len {
        let value = bias.map_or(0.0, |bias| bias[index % bias.len()]);
        // SAFETY: the index is within the memory, which nobody else uses.
        unsafe { out.pointer(index, 1).write(value) };
    }
}

/// Into how many parts the rows and the columns of a result are cut: into rectangles of the size that is given at
/// most, of whole tiles of so many rows.
fn cuts([rows, columns]: [usize; 2], inner: usize, most: [usize; 2], height: usize) -> [usize; 2] {
    if rows * columns * inner.max(1) < SERIAL {
        return [1, 1];
    }
    let mut cuts = [rows.div_ceil(most[0]), columns.div_ceil(most[1])];
    // Whole rounds for all threads, where there are few.
    let threads = rayon::current_num_threads();
    let uneven = |cuts: [usize; 2]| {
        let parts = cuts[0] * cuts[1];
        parts < 4 * threads && !parts.is_multiple_of(threads)
    };
    if uneven(cuts) {
        let per_column = threads.div_ceil(cuts[1]).max(1);
        cuts[0] = cuts[0].next_multiple_of(per_column).min(rows.div_ceil(4 * TILE));
    }
    if uneven(cuts) {
        let even = (cuts[1]..=columns.div_ceil(PANEL)).find(|columns| !uneven([cuts[0], *columns]));
        cuts[1] = even.unwrap_or_else(|| columns.div_ceil(PANEL).min(threads).max(cuts[1]));
    }
    if cuts[0] * cuts[1] < threads {
        cuts[0] = threads.div_ceil(cuts[1]).min(rows.div_ceil(height));
    }
    cuts
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test says why it fails by panicking")]
mod tests {
    use firebox_core::Stream;

    use super::*;
    use crate::cpu::simd::pair;

    fn noise(seed: u64, count: usize) -> Vec<f32> {
        let mut draws = Stream::new(seed, "products").draws();
        (0..count).map(|_| draws.normal() as f32).collect()
    }

    /// As the operands of a product in bf16 are rounded.
    fn rounded(x: f32, bf16: bool) -> f64 {
        f64::from(if bf16 { f32::from_bits(pair(0.0, x).to_bits() & 0xffff_0000) } else { x })
    }

    /// The norm of the error over the norm of the result in float64.
    fn error(
        products: Products,
        sizes @ [rows, inner, columns]: [usize; 3],
        transposed: [bool; 2],
        biased: bool,
    ) -> f64 {
        let (a, b) = (noise(1, rows * inner), noise(2, inner * columns));
        let bias = noise(3, columns);
        let left = match transposed[0] {
            false => Matrix::new(&a, rows, inner),
            true => Matrix::new(&a, inner, rows).transposed(),
        };
        let right = match transposed[1] {
            false => Matrix::new(&b, inner, columns),
            true => Matrix::new(&b, columns, inner).transposed(),
        };
        let out = products.product(left, right, biased.then_some(&bias));
        let (mut square, mut norm) = (0.0, 1e-30);
        for row in 0..rows {
            for column in 0..columns {
                let mut exact = if biased { f64::from(bias[column]) } else { 0.0 };
                for k in 0..inner {
                    let a = if transposed[0] { a[k * rows + row] } else { a[row * inner + k] };
                    let b =
                        if transposed[1] { b[column * inner + k] } else { b[k * columns + column] };
                    exact += rounded(a, products.bf16) * rounded(b, products.bf16);
                }
                square += (f64::from(out[row * columns + column]) - exact).powi(2);
                norm += exact * exact;
            }
        }
        let error = (square / norm).sqrt();
        assert!(error.is_finite(), "{products:?} {sizes:?}");
        error
    }

    #[test]
    fn agrees_with_float64() {
        let mut sizes = vec![
            [1, 1, 1],
            [7, 0, 5],
            [6, 128, 64],
            [8, 129, 65],
            [13, 257, 47],
            [200, 300, 260],
            [400, 31, 3],
            [1, 1000, 90],
            // So many rectangles that one operand or both are packed before them.
            [1190, 300, 45],
            [50, 290, 790],
            [1160, 35, 600],
        ];
        let mut draws = Stream::new(5, "sizes").draws();
        sizes.extend((0..12).map(|_| [0, 1, 2].map(|_| 1 + draws.below(150) as usize)));
        for kernels in CpuKernels::available().into_iter().skip(1) {
            for bf16 in [false, true] {
                for (index, sizes) in sizes.iter().enumerate() {
                    let products = Products { kernels, bf16 };
                    for transposed in [[false, false], [true, false], [false, true], [true, true]] {
                        let error = error(products, *sizes, transposed, index % 2 == 1);
                        assert!(error < 1e-6, "{products:?} {sizes:?} {transposed:?}: {error:e}");
                    }
                }
            }
        }
    }

    #[test]
    fn few_rectangles_are_the_same_number_for_each_thread() {
        let of = |threads: usize, sizes: [usize; 2]| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            pool.expect("threads").install(|| cuts(sizes, 768, RECTANGLE, TILE))
        };
        // Three rectangles of 256 columns would leave one of two threads idle for a third of the time.
        assert_eq!(of(2, [256, 768]), [1, 4]);
        assert_eq!(of(2, [2048, 768]), [6, 3]);
        assert_eq!(of(3, [256, 768]), [1, 3]);
        assert_eq!(of(16, [1000, 768]), [6, 8]);
        // Nothing can be cut below a register tile or a panel.
        assert_eq!(of(16, [6, 64]), [1, 1]);
        for threads in [1, 2, 3, 5, 8] {
            for rows in [1, 30, 256, 500, 3000] {
                for columns in [40, 64, 300, 768, 3072] {
                    let [down, across] = of(threads, [rows, columns]);
                    assert!(down <= rows.div_ceil(TILE) && across <= columns.div_ceil(PANEL));
                    let (parts, most) = (down * across, rows.div_ceil(4 * TILE));
                    let fine = parts >= 4 * threads || parts.is_multiple_of(threads);
                    let coarse = most * columns.div_ceil(PANEL) < 4 * threads;
                    assert!(fine || coarse, "{threads}: {rows} × {columns} as {down} × {across}");
                }
            }
        }
    }

    #[test]
    fn nan_reaches_its_row_alone() {
        let mut a = noise(1, 40 * 30);
        a[5 * 30 + 7] = f32::NAN;
        let b = noise(2, 30 * 20);
        for kernels in CpuKernels::available().into_iter().skip(1) {
            for bf16 in [false, true] {
                let (a, b) = (Matrix::new(&a, 40, 30), Matrix::new(&b, 30, 20));
                let out = Products { kernels, bf16 }.product(a, b, None);
                for (row, values) in out.chunks(20).enumerate() {
                    assert!(values.iter().all(|value| value.is_nan() == (row == 5)), "{row}");
                }
            }
        }
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let (a, b) = (noise(1, 1300 * 300), noise(2, 300 * 200));
        for kernels in CpuKernels::available().into_iter().skip(1) {
            for (bf16, transposed) in [
                (false, [false, false]),
                (false, [true, true]),
                (true, [false, true]),
                (true, [true, false]),
            ] {
                let results = [1, 2, 3, 7].map(|threads| {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                    pool.expect("a pool").install(|| {
                        let left = match transposed[0] {
                            false => Matrix::new(&a, 1300, 300),
                            true => Matrix::new(&a, 300, 1300).transposed(),
                        };
                        let right = match transposed[1] {
                            false => Matrix::new(&b, 300, 200),
                            true => Matrix::new(&b, 200, 300).transposed(),
                        };
                        Products { kernels, bf16 }.product(left, right, None)
                    })
                });
                let same = results.windows(2).all(|pair| pair[0] == pair[1]);
                assert!(same, "{kernels:?}, bf16 {bf16}, {transposed:?}");
            }
        }
    }
}
