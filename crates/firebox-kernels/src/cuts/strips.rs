//! How attention on tensor cores is cut: by what they multiply, threads and shared memory.

use burn::tensor::DType;

use super::{ALIGN, AttentionPlan, Hardware, Shape};

/// What a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Strips {
    /// Its tile are the rows of a block.
    pub(crate) plan: AttentionPlan,
    /// What is multiplied at once: `m` rows of a strip.
    pub(crate) shape: Shape,
    /// Planes of a cube, each with a strip.
    pub(crate) planes: usize,
    /// Threads of a plane.
    pub(crate) lanes: usize,
}

/// Elements between the end of a row in shared memory and the next, so that the rows of a column do not
/// fall on one bank: of what is multiplied, and of scores.
const SKEW: usize = 8;
const SCORES_SKEW: usize = 4;

/// Rows of a strip, if tensor cores can be had that high.
const ROWS: usize = 16;

/// Planes of a cube and rows of a block, the first that fit.
const CUTS: [[usize; 2]; 5] = [[4, 32], [4, 16], [2, 32], [2, 16], [1, 16]];

impl Strips {
    /// The strips for a head whose numbers are of this type; `None` where the device has no tensor cores for
    /// it, too little shared memory, or no barrier of a plane.
    pub(super) fn new(hardware: &Hardware, dtype: DType, plan: AttentionPlan) -> Option<Self> {
        let lanes = hardware.lanes().filter(|_| hardware.plane_barrier)?;
        let shape = Shape::choose(&hardware.shapes(dtype), ROWS)?;
        let cuts = CUTS.map(|[planes, tile]| Self {
            plan: AttentionPlan { tile, ..plan },
            shape,
            planes,
            lanes,
        });
        cuts.into_iter().find(|strips| strips.runs(hardware))
    }

    fn runs(&self, hardware: &Hardware) -> bool {
        let [widest, highest] = hardware.dim;
        self.lanes.is_multiple_of(self.shape.m)
            && self.block().is_multiple_of(self.shape.n.max(self.shape.k))
            // The numbers of dropout are drawn for eight keys at once.
            && self.block().is_multiple_of(8 * self.team())
            && self.threads() <= hardware.threads
            && self.lanes <= widest
            && self.planes <= highest
            && self.shared_bytes() <= hardware.shared_memory
    }

    /// Rows of a block.
    pub(crate) fn block(&self) -> usize {
        self.plan.tile
    }

    /// Rows of a cube.
    pub(crate) fn rows(&self) -> usize {
        self.planes * self.shape.m
    }

    /// Threads of a row: a power of two.
    pub(crate) fn team(&self) -> usize {
        self.lanes / self.shape.m
    }

    /// Threads of a cube.
    pub(crate) fn threads(&self) -> usize {
        self.planes * self.lanes
    }

    /// Numbers of a head with the zeros that fill tiles of the shape.
    pub(crate) fn padded(&self) -> usize {
        self.plan.size.next_multiple_of(self.shape.n.max(self.shape.k))
    }

    /// Tiles of the shape along a row.
    pub(crate) fn columns(&self) -> usize {
        self.padded() / self.shape.n
    }

    /// Elements from a row of queries, keys, values or gradients to the next.
    pub(crate) fn row_stride(&self) -> usize {
        self.padded() + SKEW
    }

    /// Elements from a row of a strip's scores to the next.
    pub(crate) fn scores_stride(&self) -> usize {
        self.block() + SCORES_SKEW
    }

    /// Elements from a row of what is multiplied in place of scores to the next.
    pub(crate) fn shares_stride(&self) -> usize {
        self.block() + SKEW
    }

    /// Vectors of four that a thread has of its row of scores.
    pub(crate) fn vectors(&self) -> usize {
        self.block() / self.team() / 4
    }

    /// Words of random numbers that a plane keeps for a block in the kernel of keys: four for each row of it
    /// and eight keys; four where nothing is dropped, because a shared slice cannot be empty.
    pub(crate) fn words(&self) -> usize {
        if self.plan.dropped { self.shape.m.div_ceil(8) * self.block() * 4 } else { 4 }
    }

    /// Bytes of shared memory of the kernel that needs most, that of keys, with room for aligning its parts.
    pub(super) fn shared_bytes(&self) -> usize {
        let rows = self.rows();
        2 * (2 * (rows + self.block()) * self.row_stride() + rows * self.shares_stride())
            + 4 * (rows * self.scores_stride() + rows + 3 * self.block())
            + 4 * (self.planes * self.words() + self.threads())
            + 8 * ALIGN
    }

    /// Threads of a cube: lanes by planes.
    pub(crate) fn dim(&self) -> [usize; 2] {
        [self.lanes, self.planes]
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{CUDA, hardware, with_cores};
    use super::*;

    fn on(shared: usize, lanes: [usize; 2]) -> Hardware {
        Hardware { plane: lanes, ..hardware(shared, 1024, None) }
    }

    fn found(hardware: Hardware, shapes: &[[usize; 3]], size: usize) -> Option<Strips> {
        let hardware = with_cores(hardware, shapes);
        let plan = AttentionPlan {
            size,
            tile: 32,
            threads: 64,
            packed: true,
            causal: false,
            windowed: false,
            dropped: true,
        };
        let strips = Strips::new(&hardware, DType::BF16, plan)?;
        assert!(strips.shared_bytes() <= hardware.shared_memory, "{strips:?}");
        assert!(strips.padded() >= size && strips.padded() - size < 16, "{strips:?}");
        // A team has its row of scores in vectors of four, and whole groups of eight keys.
        assert_eq!(strips.vectors() * 4 * strips.team(), strips.block());
        assert!(strips.vectors().is_multiple_of(2), "{strips:?}");
        // WMMA begins at multiples of 32 bytes, in rows of multiples of 16.
        for stride in [strips.row_stride(), strips.shares_stride()] {
            assert!(stride.is_multiple_of(8) && (strips.shape.m * stride).is_multiple_of(16));
        }
        assert!(strips.scores_stride().is_multiple_of(4));
        Some(strips)
    }

    #[test]
    fn a_large_device_has_four_strips_and_a_small_one_what_fits() {
        let cut = |strips: Strips| (strips.shape.m, strips.planes, strips.block(), strips.team());
        for size in [1, 16, 33, 64, 100, 128] {
            let hopper = found(on(227 * 1024, [32, 32]), &CUDA, size).unwrap();
            assert_eq!(cut(hopper), (16, 4, 32, 2), "{size}");
        }
        let small = |size| cut(found(on(32 * 1024, [8, 8]), &[[8, 8, 8]], size).unwrap());
        assert_eq!(small(16), (8, 4, 32, 1));
        assert_eq!(small(128), (8, 4, 16, 1));
        // Wide planes: four threads a row.
        let wide = found(on(64 * 1024, [64, 64]), &[[16, 16, 16]], 64).unwrap();
        assert_eq!(cut(wide), (16, 4, 32, 4));
    }

    #[test]
    fn devices_without_what_it_takes_get_none() {
        assert_eq!(found(on(227 * 1024, [32, 32]), &[], 16), None);
        assert_eq!(found(on(227 * 1024, [8, 32]), &CUDA, 16), None);
        assert_eq!(found(on(4096, [32, 32]), &CUDA, 16), None);
        // Fewer threads than rows of a strip.
        assert_eq!(found(on(227 * 1024, [8, 8]), &[[16, 16, 16]], 16), None);
    }
}
