//! How a launch is cut into cubes: by the device's threads, shared memory and processors.

use burn_cubecl::cubecl::{CubeCount, CubeDim, ir::HardwareProperties};

/// Which of the two passes a tile is for; the backward one keeps more in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    Forward,
    Backward,
}

/// What a kernel is compiled for: another tile is another kernel, other batches and times are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tile {
    /// Hidden units.
    pub(super) units: usize,
    /// Directions of the layer: 1 or 2.
    pub(super) directions: usize,
    /// Samples of a thread: 1, 2 or 4.
    pub(super) rows: usize,
    /// Threads beside each other that have the same units and other samples.
    pub(super) groups: usize,
    /// Threads beside each other that have the same samples and other units.
    pub(super) columns: usize,
    /// Whether the recurrent weights of a direction stay in shared memory.
    pub(super) resident: bool,
}

/// More threads than this would leave each too few registers.
const THREADS: usize = 512;

/// Taken where a device does not say how many processors it has (WebGPU, Metal).
const PROCESSORS: usize = 32;

/// Fewer samples a tile than this do not pay for keeping the weights: as many as could share a read.
const WORTH_KEEPING: usize = 4;

impl Tile {
    /// The tile for a layer in `batch` samples, or `None` where even the smallest does not fit.
    /// `weight` is the size of one weight in bytes. Weights stay in shared memory only if `resident`.
    pub(super) fn new(
        hardware: &HardwareProperties,
        [directions, batch, units]: [usize; 3],
        weight: usize,
        pass: Pass,
        resident: bool,
    ) -> Option<Self> {
        let (widest, highest, _) = hardware.max_cube_dim;
        let threads = (hardware.max_units_per_cube as usize).min(THREADS);
        let columns = units.min(threads).min(widest as usize);
        // Every cube reads all the weights at each step, so tiles are as large as they can be while
        // every processor has one.
        let processors = hardware.num_streaming_multiprocessors.map_or(PROCESSORS, |n| n as usize);
        let wanted = (batch * directions).div_ceil(processors.max(1)).clamp(1, batch);
        let rows = [4, 2].into_iter().find(|rows| *rows <= wanted).unwrap_or(1);
        let most = (threads / columns).min(highest as usize).max(1);
        let groups = wanted.div_ceil(rows).min(most);
        let mut tile = Self { units, directions, rows, groups, columns, resident };
        while tile.shared_bytes(weight, pass) > hardware.max_shared_memory_size {
            match (tile.groups, tile.rows) {
                (1, 1) => return None,
                (1, _) => tile.rows /= 2,
                _ => tile.groups -= 1,
            }
        }
        let pays = !resident || tile.samples() >= wanted.min(WORTH_KEEPING);
        let counted = batch.div_ceil(tile.samples()) <= hardware.max_cube_count.0 as usize;
        (pays && counted).then_some(tile)
    }

    /// Samples of a cube.
    pub(super) fn samples(&self) -> usize {
        self.rows * self.groups
    }

    /// Elements of the shared weights, four a pair of units; one where they are not kept, because a
    /// shared slice cannot be empty.
    pub(super) fn resident_weights(&self) -> usize {
        if self.resident { self.units * self.units } else { 1 }
    }

    /// Bytes of shared memory that a cube needs.
    pub(super) fn shared_bytes(&self, weight: usize, pass: Pass) -> usize {
        let numbers = match pass {
            Pass::Forward => 3,  // h twice, c
            Pass::Backward => 6, // dh, dc, four gates
        };
        4 * numbers * self.units * self.samples() + 4 * weight * self.resident_weights()
    }

    /// Cubes of a launch: tiles of samples by directions.
    pub(super) fn count(&self, batch: usize) -> CubeCount {
        CubeCount::Static(batch.div_ceil(self.samples()) as u32, self.directions as u32, 1)
    }

    /// Threads of a cube: units by groups of samples.
    pub(super) fn dim(&self) -> CubeDim {
        CubeDim::new_2d(self.columns as u32, self.groups as u32)
    }
}
