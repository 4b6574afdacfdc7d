//! How a product of matrices on tensor cores is cut: by what they multiply, threads, registers and shared memory.

use std::fmt;

use burn::tensor::DType;

use super::cores::{MOST, OTHERS, REGISTERS, SKEW};
use super::{ALIGN, Hardware, Shape};

/// The sizes of a product: so many matrices, `[rows, inner]` by `[inner, columns]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProductSizes {
    pub(crate) matrices: usize,
    pub(crate) rows: usize,
    pub(crate) inner: usize,
    pub(crate) columns: usize,
}

/// What a kernel is compiled for.
///
/// Tiles of one shape give the same bits: each number of the result is summed over the same steps in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProductTile {
    /// What is multiplied at once.
    pub(crate) shape: Shape,
    /// Planes of a cube along rows and columns of its tile.
    pub(crate) planes: [usize; 2],
    /// Tiles of the shape that a plane sums, along rows and columns.
    pub(crate) own: [usize; 2],
    /// Steps of the shape along the sum that are in shared memory at once.
    pub(crate) depth: usize,
    /// Threads of a plane.
    pub(crate) lanes: usize,
    /// Whether the columns of an operand, left and right, are the runs that it lies in; its rows otherwise.
    pub(crate) turned: [bool; 2],
    /// Whether tiles end where the matrices do.
    pub(crate) whole: bool,
    /// Whether a number is added to each column.
    pub(crate) biased: bool,
    /// Whether operands and sums are told register by register, as NVIDIA's `mma.m16n8k16` takes them; the shape is two of
    /// these beside each other then.
    pub(crate) by_hand: bool,
}

/// A tile of an operand in shared memory: runs of numbers, and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Runs {
    pub(crate) count: usize,
    pub(crate) length: usize,
}

impl Runs {
    /// Elements from a run to the next.
    pub(crate) fn stride(self) -> usize {
        self.length + SKEW
    }

    /// Elements of all.
    pub(crate) fn room(self) -> usize {
        self.count * self.stride()
    }

    /// Vectors of this width that each of so many threads brings, as many as it takes for all.
    pub(crate) fn slots(self, vector: usize, threads: usize) -> usize {
        (self.count * self.length / vector).div_ceil(threads)
    }
}

/// Tiles that there are of one shape.
pub(crate) const PRODUCT_TILES: usize = 5;

/// Planes, tiles of the shape for each, and depth. Large tiles read least for each product; small ones keep a device busy
/// with small results.
const TILES: [([usize; 2], [usize; 2], usize); PRODUCT_TILES] = [
    ([2, 4], [4, 2], 2),
    ([2, 2], [4, 4], 2),
    ([2, 2], [4, 2], 2),
    ([2, 2], [2, 2], 2),
    ([2, 2], [2, 1], 4),
];

/// How many products of a number take as long as it does to bring one of an operand: the tensor cores of an H100 multiply
/// 1,024 pairs of halves in a cycle, for which its shared memory delivers 64, each of which is written there first.
const BRINGING: usize = 32;

/// Rows of the shape, if tensor cores can be had that high.
const ROWS: usize = 16;

/// The widest vector that an operand may be read by.
const WIDEST: usize = 8;

impl ProductTile {
    /// The tiles for a product of this type, the one to take untried first; none where the device has no tensor cores for
    /// it, or planes of unknown size.
    pub(crate) fn candidates(
        hardware: &Hardware,
        dtype: DType,
        sizes: ProductSizes,
        turned: [bool; 2],
        biased: bool,
    ) -> Vec<Self> {
        let Some(lanes) = hardware.lanes() else { return vec![] };
        let by_hand = lanes == 32 && hardware.by_hand.contains(&dtype);
        let shape = match by_hand {
            true => Some(Shape { m: 16, n: 16, k: 16 }),
            false => Shape::choose(&hardware.shapes(dtype), ROWS),
        };
        let Some(shape) = shape else { return vec![] };
        let tile = |(planes, own, depth)| {
            let whole = false;
            let tile = Self { shape, planes, own, depth, lanes, turned, whole, biased, by_hand };
            Self { whole: tile.fills(sizes), ..tile }
        };
        let mut tiles: Vec<_> =
            TILES.map(tile).into_iter().filter(|t| t.runs(hardware, dtype, sizes)).collect();
        // Of those that take as long, the first.
        tiles.sort_by_key(|tile| tile.cost(hardware, sizes));
        tiles
    }

    /// Which of the tiles of its shape it is.
    pub(crate) fn index(&self) -> Option<usize> {
        TILES.iter().position(|tile| *tile == (self.planes, self.own, self.depth))
    }

    fn runs(&self, hardware: &Hardware, dtype: DType, sizes: ProductSizes) -> bool {
        let [widest, highest] = hardware.dim;
        let [along, down] = self.count(sizes);
        self.registers(dtype) + OTHERS <= MOST.min(REGISTERS / self.threads())
            && self.threads() <= hardware.threads
            && self.lanes <= widest
            && self.planes() <= highest
            && self.shared_bytes() <= hardware.shared_memory
            && along <= hardware.count[0]
            && down <= hardware.count[1]
            // The third axis of a launch is as long as the second on every device that is known.
            && sizes.matrices <= hardware.count[1]
    }

    /// About how long a product takes: what each processor multiplies and brings one after the other.
    fn cost(&self, hardware: &Hardware, sizes: ProductSizes) -> usize {
        let [along, down] = self.count(sizes);
        let turns = (along * down * sizes.matrices).div_ceil(hardware.processors());
        let (rows, columns) = (self.rows(), self.columns());
        turns * (rows * columns + BRINGING * (rows + columns))
    }

    fn fills(&self, sizes: ProductSizes) -> bool {
        let ProductSizes { rows, inner, columns, .. } = sizes;
        rows.is_multiple_of(self.rows())
            && inner.is_multiple_of(self.inner())
            && columns.is_multiple_of(self.columns())
    }

    /// Registers of a thread that sums, operands and what is read ahead take.
    fn registers(&self, dtype: DType) -> usize {
        let Shape { m, n, k } = self.shape;
        // CUDA's fragments hold each number of an f16 operand twice.
        let held = if dtype == DType::F16 && !self.by_hand { 4 } else { 2 };
        let [down, along] = self.own;
        let operands = held * (down * m * k + k * n);
        let ahead = 2 * self.inner() * (self.rows() + self.columns()) / self.planes();
        (4 * down * m * along * n + operands + ahead) / self.lanes / 4
    }

    /// Rows of a cube's tile.
    pub(crate) fn rows(&self) -> usize {
        self.planes[0] * self.own[0] * self.shape.m
    }

    /// Columns of a cube's tile.
    pub(crate) fn columns(&self) -> usize {
        self.planes[1] * self.own[1] * self.shape.n
    }

    /// Numbers of a sum that are in shared memory at once.
    pub(crate) fn inner(&self) -> usize {
        self.depth * self.shape.k
    }

    /// How the tile of an operand lies, of the left (0) and of the right one.
    pub(crate) fn runs_of(&self, operand: usize) -> Runs {
        let (high, wide) = match operand {
            0 => (self.rows(), self.inner()),
            _ => (self.inner(), self.columns()),
        };
        let (count, length) = if self.turned[operand] { (wide, high) } else { (high, wide) };
        Runs { count, length }
    }

    fn planes(&self) -> usize {
        self.planes[0] * self.planes[1]
    }

    /// Threads of a cube.
    pub(crate) fn threads(&self) -> usize {
        self.planes() * self.lanes
    }

    /// Threads of a cube: lanes by planes.
    pub(crate) fn dim(&self) -> [usize; 2] {
        [self.lanes, self.planes()]
    }

    /// Cubes along the columns and down the rows of a result.
    pub(crate) fn count(&self, sizes: ProductSizes) -> [usize; 2] {
        [sizes.columns.div_ceil(self.columns()), sizes.rows.div_ceil(self.rows())]
    }

    /// Elements from a row of a plane's sums in shared memory to the next.
    pub(crate) fn sums_stride(&self) -> usize {
        self.own[1] * self.shape.n + SKEW
    }

    /// Elements of the sums that all planes put into shared memory at once.
    pub(crate) fn sums_room(&self) -> usize {
        self.planes() * self.shape.m * self.sums_stride()
    }

    /// Bytes of shared memory, with room for aligning its parts.
    pub(super) fn shared_bytes(&self) -> usize {
        let operands = self.runs_of(0).room() + self.runs_of(1).room();
        2 * 2 * operands + 4 * self.sums_room() + 3 * ALIGN
    }
}

/// The widest vector of those that a device reads at once in which an operand can be read: whose runs are this long, and
/// begin at multiples of `steps`.
pub(crate) fn vector(widths: impl Iterator<Item = usize>, length: usize, steps: &[usize]) -> usize {
    let fits = |width: usize| {
        length.is_multiple_of(width) && steps.iter().all(|step| step.is_multiple_of(width))
    };
    widths.filter(|width| *width <= WIDEST && fits(*width)).max().unwrap_or(1)
}

impl fmt::Display for ProductTile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, columns, inner) = (self.rows(), self.columns(), self.inner());
        write!(f, "{rows} × {columns} × {inner}, {} threads", self.threads())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{CUDA, hardware, with_cores};
    use super::*;

    fn of(rows: usize, inner: usize, columns: usize) -> ProductSizes {
        ProductSizes { matrices: 1, rows, inner, columns }
    }

    fn on_hopper(dtype: DType, sizes: ProductSizes) -> Vec<String> {
        let hopper = with_cores(hardware(227 * 1024, 1024, Some(132)), &CUDA);
        let tiles = ProductTile::candidates(&hopper, dtype, sizes, [false; 2], false);
        for tile in &tiles {
            assert_eq!(tile.shape, Shape { m: 16, n: 16, k: 16 });
            // Two cubes or more to a processor.
            assert!(tile.shared_bytes() <= 227 * 1024 / 2, "{tile}: {}", tile.shared_bytes());
        }
        tiles.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn large_results_take_large_tiles_and_small_ones_keep_the_processors_busy() {
        for dtype in [DType::BF16, DType::F16] {
            let first =
                |rows, inner, columns| on_hopper(dtype, of(rows, inner, columns))[0].clone();
            assert_eq!(first(2048, 768, 3072), "128 × 128 × 32, 256 threads");
            assert_eq!(first(53_760, 128, 512), "128 × 128 × 32, 256 threads");
            assert_eq!(first(1024, 512, 1024), "128 × 64 × 32, 128 threads");
            assert_eq!(first(768, 512, 640), "64 × 64 × 32, 128 threads");
            assert_eq!(first(512, 512, 512), "64 × 32 × 64, 128 threads");
            assert_eq!(first(64, 420, 128), "64 × 32 × 64, 128 threads");
            assert_eq!(on_hopper(dtype, of(1, 1, 1)).len(), 5);
        }
    }

    #[test]
    fn what_lies_in_shared_memory_begins_where_tensor_cores_read() {
        let hopper = with_cores(hardware(227 * 1024, 1024, Some(132)), &CUDA);
        for turned in [[false, false], [false, true], [true, false], [true, true]] {
            for tile in ProductTile::candidates(&hopper, DType::BF16, of(99, 99, 99), turned, true)
            {
                assert!(!tile.whole);
                for runs in [tile.runs_of(0), tile.runs_of(1)] {
                    // WMMA begins at multiples of 32 bytes, in rows of multiples of 16.
                    assert!(runs.stride().is_multiple_of(8) && runs.room().is_multiple_of(16));
                    assert_eq!(
                        runs.slots(8, tile.threads()) * tile.threads() * 8,
                        runs.count * runs.length
                    );
                }
                assert!(tile.sums_stride().is_multiple_of(8));
            }
        }
    }

    #[test]
    fn what_is_multiplied_by_hand_has_one_shape_and_halves_that_are_held_once() {
        let cores = with_cores(hardware(227 * 1024, 1024, Some(132)), &[[8, 32, 16]]);
        let hopper = Hardware { by_hand: vec![DType::F16], ..cores.clone() };
        let of = |hardware: &Hardware, dtype| {
            let sizes = of(512, 512, 512);
            let tiles = ProductTile::candidates(hardware, dtype, sizes, [false; 2], false);
            tiles.iter().map(|tile| (tile.by_hand, tile.shape)).collect::<Vec<_>>()
        };
        let square = Shape { m: 16, n: 16, k: 16 };
        assert_eq!(of(&hopper, DType::F16), [(true, square); PRODUCT_TILES]);
        let wide = Shape { m: 8, n: 32, k: 16 };
        assert!(of(&hopper, DType::BF16).iter().all(|of| *of == (false, wide)));
        // The registers are told to 32 threads.
        let narrow = Hardware { plane: [16, 16], ..hopper };
        assert!(of(&narrow, DType::F16).iter().all(|(by_hand, _)| !by_hand));
    }

    #[test]
    fn vectors_are_as_wide_as_what_they_read_allows() {
        let of = |length, steps: &[usize]| vector([8, 4, 2, 1].into_iter(), length, steps);
        assert_eq!(of(64, &[64, 0]), 8);
        assert_eq!(of(420, &[420, 420 * 105]), 4);
        assert_eq!(of(64, &[66]), 2);
        assert_eq!(of(7, &[7]), 1);
        assert_eq!(vector([16].into_iter(), 64, &[64]), 1);
    }

    #[test]
    fn devices_without_tensor_cores_or_with_little_memory_get_none() {
        let of = |hardware: &Hardware| {
            ProductTile::candidates(hardware, DType::F16, of(64, 64, 64), [false; 2], false).len()
        };
        let plain = hardware(227 * 1024, 1024, Some(132));
        assert_eq!(of(&plain), 0);
        assert_eq!(of(&with_cores(Hardware { plane: [8, 32], ..plain.clone() }, &CUDA)), 0);
        assert_eq!(of(&with_cores(hardware(4096, 1024, None), &CUDA)), 0);
        // Mesa's software driver.
        let small = Hardware { plane: [8, 8], ..hardware(32 * 1024, 1024, None) };
        assert_eq!(of(&with_cores(small, &[[8, 8, 8]])), 5);
    }
}
