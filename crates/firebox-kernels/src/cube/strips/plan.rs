//! How attention on tensor cores is cut: by what they multiply, threads and shared memory.

use burn_cubecl::cubecl::CubeDim;
use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::features::Plane;
use burn_cubecl::cubecl::ir::{ElemType, HardwareProperties};

use super::super::attend::Plan;
use super::super::tensor_cores::{ALIGN, Shape};

/// What a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::cube) struct Strips {
    /// Its tile are the rows of a block.
    pub(in crate::cube) plan: Plan,
    /// What is multiplied at once: `m` rows of a strip.
    pub(in crate::cube) shape: Shape,
    /// Planes of a cube, each with a strip.
    pub(in crate::cube) planes: usize,
    /// Threads of a plane.
    pub(in crate::cube) lanes: usize,
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
    pub(in crate::cube) fn new(client: &Client, elem: ElemType, plan: Plan) -> Option<Self> {
        let properties = client.properties();
        if !properties.features.plane.contains(Plane::Sync) {
            return None;
        }
        Self::on(&properties.hardware, &Shape::of(client, elem), plan)
    }

    /// [`new`](Self::new) on a device with tensor cores of these shapes.
    fn on(hardware: &HardwareProperties, shapes: &[Shape], plan: Plan) -> Option<Self> {
        let lanes = hardware.plane_size_max as usize;
        if lanes == 0 || hardware.plane_size_min != hardware.plane_size_max {
            return None;
        }
        let shape = Shape::choose(shapes, ROWS)?;
        let cuts =
            CUTS.map(|[planes, tile]| Self { plan: Plan { tile, ..plan }, shape, planes, lanes });
        cuts.into_iter().find(|strips| strips.runs(hardware))
    }

    fn runs(&self, hardware: &HardwareProperties) -> bool {
        let (widest, highest, _) = hardware.max_cube_dim;
        self.lanes.is_multiple_of(self.shape.m)
            && self.block().is_multiple_of(self.shape.n.max(self.shape.k))
            // The numbers of dropout are drawn for eight keys at once.
            && self.block().is_multiple_of(8 * self.team())
            && self.threads() <= hardware.max_units_per_cube as usize
            && self.lanes <= widest as usize
            && self.planes <= highest as usize
            && self.shared_bytes() <= hardware.max_shared_memory_size
    }

    /// Rows of a block.
    pub(super) fn block(&self) -> usize {
        self.plan.tile
    }

    /// Rows of a cube.
    pub(in crate::cube) fn rows(&self) -> usize {
        self.planes * self.shape.m
    }

    /// Threads of a row: a power of two.
    pub(super) fn team(&self) -> usize {
        self.lanes / self.shape.m
    }

    /// Threads of a cube.
    pub(super) fn threads(&self) -> usize {
        self.planes * self.lanes
    }

    /// Numbers of a head with the zeros that fill tiles of the shape.
    pub(super) fn padded(&self) -> usize {
        self.plan.size.next_multiple_of(self.shape.n.max(self.shape.k))
    }

    /// Tiles of the shape along a row.
    pub(super) fn columns(&self) -> usize {
        self.padded() / self.shape.n
    }

    /// Elements from a row of queries, keys, values or gradients to the next.
    pub(super) fn row_stride(&self) -> usize {
        self.padded() + SKEW
    }

    /// Elements from a row of a strip's scores to the next.
    pub(super) fn scores_stride(&self) -> usize {
        self.block() + SCORES_SKEW
    }

    /// Elements from a row of what is multiplied in place of scores to the next.
    pub(super) fn shares_stride(&self) -> usize {
        self.block() + SKEW
    }

    /// Vectors of four that a thread has of its row of scores.
    pub(super) fn vectors(&self) -> usize {
        self.block() / self.team() / 4
    }

    /// Words of random numbers that a plane keeps for a block in the kernel of keys: four for each row of it
    /// and eight keys; four where nothing is dropped, because a shared slice cannot be empty.
    pub(super) fn words(&self) -> usize {
        if self.plan.dropped { self.shape.m.div_ceil(8) * self.block() * 4 } else { 4 }
    }

    /// Bytes of shared memory of the kernel that needs most, that of keys, with room for aligning its parts.
    fn shared_bytes(&self) -> usize {
        let rows = self.rows();
        2 * (2 * (rows + self.block()) * self.row_stride() + rows * self.shares_stride())
            + 4 * (rows * self.scores_stride() + rows + 3 * self.block())
            + 4 * (self.planes * self.words() + self.threads())
            + 8 * ALIGN
    }

    /// Threads of a cube: lanes by planes.
    pub(in crate::cube) fn dim(&self) -> CubeDim {
        CubeDim::new_2d(self.lanes as u32, self.planes as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUDA: [[usize; 3]; 3] = [[16, 16, 16], [32, 8, 16], [8, 32, 16]];

    fn hardware(shared: usize, lanes: [u32; 2]) -> HardwareProperties {
        let [plane_size_min, plane_size_max] = lanes;
        let any = super::super::super::hardware(shared, 1024, None);
        HardwareProperties { plane_size_min, plane_size_max, ..any }
    }

    fn found(hardware: &HardwareProperties, shapes: &[[usize; 3]], size: usize) -> Option<Strips> {
        let shapes: Vec<_> = shapes.iter().map(|[m, n, k]| Shape { m: *m, n: *n, k: *k }).collect();
        let plan = Plan { size, tile: 32, threads: 64, packed: true, causal: false, dropped: true };
        let strips = Strips::on(hardware, &shapes, plan)?;
        assert!(strips.shared_bytes() <= hardware.max_shared_memory_size, "{strips:?}");
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
            let hopper = found(&hardware(227 * 1024, [32, 32]), &CUDA, size).unwrap();
            assert_eq!(cut(hopper), (16, 4, 32, 2), "{size}");
        }
        let small = |size| cut(found(&hardware(32 * 1024, [8, 8]), &[[8, 8, 8]], size).unwrap());
        assert_eq!(small(16), (8, 4, 32, 1));
        assert_eq!(small(128), (8, 4, 16, 1));
        // Wide planes: four threads a row.
        let wide = found(&hardware(64 * 1024, [64, 64]), &[[16, 16, 16]], 64).unwrap();
        assert_eq!(cut(wide), (16, 4, 32, 4));
    }

    #[test]
    fn devices_without_what_it_takes_get_none() {
        assert_eq!(found(&hardware(227 * 1024, [32, 32]), &[], 16), None);
        assert_eq!(found(&hardware(227 * 1024, [8, 32]), &CUDA, 16), None);
        assert_eq!(found(&hardware(4096, [32, 32]), &CUDA, 16), None);
        // Fewer threads than rows of a strip.
        assert_eq!(found(&hardware(227 * 1024, [8, 8]), &[[16, 16, 16]], 16), None);
    }
}
