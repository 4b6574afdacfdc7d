//! How a product of f32 by single threads is cut: by shared memory and threads.

use std::fmt;

use super::{ALIGN, Hardware, ProductSizes};

/// What a kernel is compiled for.
///
/// All tiles give the same bits: each number of the result is summed over the same numbers, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ExactTile {
    /// Planes of a cube along rows and columns of its tile: of 32 threads, each of which sums eight rows by eight columns.
    pub(crate) planes: [usize; 2],
    /// Whether the columns of an operand, left and right, are the runs that it lies in; its rows otherwise.
    pub(crate) turned: [bool; 2],
    /// Whether tiles end where the matrices do.
    pub(crate) whole: bool,
}

/// Tiles that there are.
pub(crate) const EXACT_TILES: usize = 3;

/// Planes of a tile. Large tiles read least for each product; small ones keep a device busy with small results.
const TILES: [[usize; 2]; EXACT_TILES] = [[4, 2], [2, 1], [1, 1]];

/// Numbers of a sum that are in shared memory at once.
const DEPTH: usize = 16;

/// Numbers of an operand that are read at once, and rows and columns of a block of these that a thread brings.
const FOUR: usize = 4;

/// Numbers from the end of a row in shared memory to the next.
const SKEW: usize = 4;

/// How many products of a number take as long as it does to bring one of an operand.
const BRINGING: usize = 32;

impl ExactTile {
    /// Threads of a plane, down and along its tile.
    pub(crate) const LANES: [usize; 2] = [4, 8];

    /// Rows and columns of a plane's tile, of which each thread has four, and four more half a tile behind.
    pub(crate) const PLANE: [usize; 2] = [8 * Self::LANES[0], 8 * Self::LANES[1]];

    /// The tiles for a product, the one to take untried first.
    pub(crate) fn candidates(
        hardware: &Hardware,
        sizes: ProductSizes,
        turned: [bool; 2],
    ) -> Vec<Self> {
        let tile = |planes| {
            let tile = Self { planes, turned, whole: false };
            Self { whole: tile.fills(sizes), ..tile }
        };
        let mut tiles: Vec<_> =
            TILES.map(tile).into_iter().filter(|tile| tile.runs(hardware, sizes)).collect();
        tiles.sort_by_key(|tile| tile.cost(hardware, sizes));
        tiles
    }

    /// Which of the tiles it is.
    pub(crate) fn index(&self) -> Option<usize> {
        TILES.iter().position(|planes| *planes == self.planes)
    }

    fn runs(&self, hardware: &Hardware, sizes: ProductSizes) -> bool {
        let [along, down] = self.count(sizes);
        self.threads() <= hardware.threads.min(hardware.dim[0])
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
        turns * (self.rows() * self.columns() + BRINGING * (self.rows() + self.columns()))
    }

    fn fills(&self, sizes: ProductSizes) -> bool {
        let ProductSizes { rows, inner, columns, .. } = sizes;
        rows.is_multiple_of(self.rows())
            && inner.is_multiple_of(DEPTH)
            && columns.is_multiple_of(self.columns())
    }

    /// Rows of a cube's tile.
    pub(crate) fn rows(&self) -> usize {
        self.planes[0] * Self::PLANE[0]
    }

    /// Columns of a cube's tile.
    pub(crate) fn columns(&self) -> usize {
        self.planes[1] * Self::PLANE[1]
    }

    /// Numbers of a sum that are in shared memory at once.
    pub(crate) fn inner(&self) -> usize {
        DEPTH
    }

    /// Rows of the left operand (0) or columns of the right one in a tile.
    pub(crate) fn outer(&self, operand: usize) -> usize {
        if operand == 0 { self.rows() } else { self.columns() }
    }

    /// Whether an operand lies along the sum.
    pub(crate) fn along_sum(&self, operand: usize) -> bool {
        self.turned[operand] == (operand == 1)
    }

    /// Vectors of four from a number of the sum to the next in shared memory, where an operand lies across the sum.
    pub(crate) fn stride(&self, operand: usize) -> usize {
        (self.outer(operand) + SKEW) / FOUR
    }

    /// Vectors of four of an operand in shared memory.
    pub(crate) fn room(&self, operand: usize) -> usize {
        DEPTH * self.stride(operand)
    }

    /// Blocks of four by four of an operand.
    pub(crate) fn blocks(&self, operand: usize) -> usize {
        self.outer(operand) * DEPTH / FOUR / FOUR
    }

    /// Blocks that a thread brings.
    pub(crate) fn slots(&self) -> usize {
        (self.blocks(0) + self.blocks(1)).div_ceil(self.threads())
    }

    /// Threads of a cube.
    pub(crate) fn threads(&self) -> usize {
        Self::LANES[0] * Self::LANES[1] * self.planes[0] * self.planes[1]
    }

    /// Threads of a cube along one axis.
    pub(crate) fn dim(&self) -> [usize; 2] {
        [self.threads(), 1]
    }

    /// Cubes along the columns and down the rows of a result.
    pub(crate) fn count(&self, sizes: ProductSizes) -> [usize; 2] {
        [sizes.columns.div_ceil(self.columns()), sizes.rows.div_ceil(self.rows())]
    }

    /// Bytes of shared memory, with room for aligning its parts.
    fn shared_bytes(&self) -> usize {
        2 * 4 * FOUR * (self.room(0) + self.room(1)) + 2 * ALIGN
    }
}

impl fmt::Display for ExactTile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, columns) = (self.rows(), self.columns());
        write!(f, "{rows} × {columns} × {DEPTH}, {} threads", self.threads())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::hardware;
    use super::*;

    fn tiles(hardware: &Hardware, rows: usize, columns: usize) -> Vec<ExactTile> {
        let sizes = ProductSizes { matrices: 1, rows, inner: 64, columns };
        ExactTile::candidates(hardware, sizes, [false; 2])
    }

    #[test]
    fn large_results_take_large_tiles_and_small_ones_keep_the_processors_busy() {
        let hopper = hardware(227 * 1024, 1024, Some(132));
        let first = |rows, columns| tiles(&hopper, rows, columns)[0].to_string();
        assert_eq!(first(2048, 3072), "128 × 128 × 16, 256 threads");
        assert_eq!(first(1024, 512), "64 × 64 × 16, 64 threads");
        assert_eq!(first(64, 64), "32 × 64 × 16, 32 threads");
        assert!(tiles(&hopper, 256, 256).iter().all(|tile| tile.whole));
        assert!(tiles(&hopper, 250, 256).iter().all(|tile| !tile.whole));
    }

    #[test]
    fn small_devices_have_fewer_tiles() {
        // As WebGPU has it at least, and less.
        assert_eq!(tiles(&hardware(16 * 1024, 256, None), 512, 512).len(), 1);
        assert_eq!(tiles(&hardware(4 * 1024, 256, None), 512, 512).len(), 0);
        assert_eq!(tiles(&hardware(48 * 1024, 128, None), 512, 512).len(), 2);
    }

    #[test]
    fn threads_bring_every_block_and_sum_every_number() {
        let hopper = hardware(227 * 1024, 1024, Some(132));
        for tile in tiles(&hopper, 99, 99) {
            assert_eq!(16 * tile.blocks(0), tile.rows() * tile.inner());
            assert_eq!(16 * tile.blocks(1), tile.columns() * tile.inner());
            // Which operand a thread brings a block of is the same for those that run in step.
            assert!(tile.blocks(0).is_multiple_of(32) && tile.blocks(1).is_multiple_of(32));
            assert_eq!(tile.slots() * tile.threads(), tile.blocks(0) + tile.blocks(1));
            assert_eq!(64 * tile.threads(), tile.rows() * tile.columns());
        }
    }
}
