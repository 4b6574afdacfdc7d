//! How a launch of a recurrent layer on tensor cores is cut: by the shapes that they multiply, threads,
//! registers and shared memory.

use burn::tensor::DType;

use super::{Hardware, Pass};

/// Where the recurrent weights of a direction are kept while a cube walks its samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// In the registers of the planes that multiply by them: read once.
    Registers,
    /// In shared memory: read from there at each step.
    Shared,
    /// In global memory (the device's caches): read from there at each step.
    Global,
}

/// What tensor cores of a device multiply at once: `[m, k]` by `[k, n]`, all three powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

impl Shape {
    /// Whether kernels can be cut for it.
    pub(super) fn usable(&self) -> bool {
        [self.m, self.n, self.k].iter().all(|d| d.is_power_of_two() && *d >= 8)
    }

    /// The one for cubes of up to `wanted` samples or rows. Of those that leave no rows empty, the highest; then
    /// the deepest and the narrowest. Columns of less than 32 bytes, at which CUDA wants a matrix to begin,
    /// are taken only where there are no others.
    pub(super) fn choose(shapes: &[Self], wanted: usize) -> Option<Self> {
        let wide = shapes.iter().any(|s| s.n >= 16);
        let usable = || shapes.iter().filter(|s| !wide || s.n >= 16);
        let lowest = usable().map(|s| s.m).min()?;
        let highest = usable().map(|s| s.m).filter(|m| *m <= wanted).max().unwrap_or(lowest);
        let fit = usable().filter(|s| s.m == highest);
        fit.max_by_key(|s| (s.k, std::cmp::Reverse(s.n))).copied()
    }
}

/// What a kernel is compiled for: another tile is another kernel, other batches and times are not.
///
/// All tiles of one shape give the same bits: a sum is taken over the same numbers in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CoreTile {
    /// Hidden units.
    pub(crate) units: usize,
    /// Directions of the layer: 1 or 2.
    pub(crate) directions: usize,
    /// Whether the cell is a GRU; an LSTM otherwise.
    pub(crate) gru: bool,
    /// What is multiplied at once.
    pub(crate) shape: Shape,
    /// Samples of a cube, in multiples of the shape's `m`.
    pub(crate) tiles: usize,
    /// Planes (warps) for each of the four quarters of the columns; the last may have fewer columns.
    pub(crate) quarter: usize,
    /// Threads of a plane.
    pub(crate) lanes: usize,
    /// Where the weights are.
    pub(crate) place: Place,
}

/// Elements between the end of a row in shared memory and the next, so that the rows of a column do
/// not fall on one bank.
pub(super) const SKEW: usize = 8;

/// Places of the weights and, for each, threads of a cube that are tried.
const PLACES: [(Place, [usize; 2]); 3] =
    [(Place::Registers, [512, 256]), (Place::Shared, [512, 256]), (Place::Global, [512, 256])];

/// 32-bit registers of a multiprocessor, and the most that a thread has (NVIDIA). What a tile keeps in them
/// must leave a thread `OTHERS`: what does not fit is moved to memory and back at each step.
pub(super) const REGISTERS: usize = 65_536;
pub(super) const MOST: usize = 255;
pub(super) const OTHERS: usize = 48;

/// Units of a thread up to which their numbers are read before the product that hides the wait: on the way
/// back, six or seven registers each.
const AHEAD: usize = 4;

impl CoreTile {
    /// The tiles for a layer in `batch` samples, the one to take untried first; none where the device
    /// cannot have any. Which shape they have follows from the sizes alone.
    pub(super) fn candidates(
        hardware: &Hardware,
        [directions, batch, units]: [usize; 3],
        dtype: DType,
        pass: Pass,
    ) -> Vec<Self> {
        // A plane of unknown size cannot be told which columns are its own.
        let Some(lanes) = hardware.lanes() else { return vec![] };
        let wanted = hardware.wanted(directions, batch);
        let Some(shape) = Shape::choose(&hardware.shapes(dtype), wanted) else { return vec![] };
        let tiles = if wanted >= 2 * shape.m { vec![2, 1] } else { vec![1] };
        let tile = |place, tiles, threads| {
            let (gru, quarter) = (false, 1);
            let one = Self { units, directions, gru, shape, tiles, quarter, lanes, place };
            Self { quarter: one.planes_in(threads), ..one }
        };
        let mut found: Vec<Self> = vec![];
        for (place, threads) in PLACES {
            // What fits nearer to the planes is read faster from there.
            if place == Place::Global && !found.is_empty() {
                break;
            }
            for (tiles, threads) in tiles.iter().flat_map(|t| threads.map(|threads| (*t, threads)))
            {
                let tile = tile(place, tiles, threads);
                if tile.runs(hardware, batch, dtype, pass) && !found.contains(&tile) {
                    found.push(tile);
                }
            }
        }
        found
    }

    /// Planes of a quarter in `threads`, as many as have columns if each has as many as the first.
    fn planes_in(&self, threads: usize) -> usize {
        let most = (threads / (4 * self.lanes)).clamp(1, self.columns());
        self.columns().div_ceil(self.columns().div_ceil(most))
    }

    fn runs(&self, hardware: &Hardware, batch: usize, dtype: DType, pass: Pass) -> bool {
        let [widest, highest] = hardware.dim;
        self.registers(dtype) + OTHERS <= MOST.min(REGISTERS / self.threads())
            && self.threads() <= hardware.threads
            && self.lanes <= widest
            && self.planes() <= highest
            && self.shared_bytes(pass) <= hardware.shared_memory
            && batch.div_ceil(self.samples()) <= hardware.count[0]
    }

    /// Registers of a thread that sums and weights take.
    pub(super) fn registers(&self, dtype: DType) -> usize {
        let Shape { m, n, k } = self.shape;
        // CUDA holds each number of an f16 operand twice.
        let held = if dtype == DType::F16 { 4 } else { 2 };
        let kept = if self.place == Place::Registers { self.steps() * k * n * held } else { 0 };
        self.own() * (kept + self.tiles * m * n * 4) / self.lanes / 4
    }

    /// Samples of a cube.
    pub(crate) fn samples(&self) -> usize {
        self.tiles * self.shape.m
    }

    /// Units with those that are added, of weights zero, so that tiles of the shape fill them.
    pub(crate) fn padded(&self) -> usize {
        self.units.next_multiple_of(self.shape.n.max(self.shape.k))
    }

    /// Tiles of the shape along the sum of a product, a quarter of it on the way back.
    pub(crate) fn steps(&self) -> usize {
        self.padded() / self.shape.k
    }

    /// Planes of a cube.
    pub(crate) fn planes(&self) -> usize {
        4 * self.quarter
    }

    /// Threads of a cube.
    pub(crate) fn threads(&self) -> usize {
        self.planes() * self.lanes
    }

    /// Columns of a quarter, in multiples of the shape's `n`.
    pub(crate) fn columns(&self) -> usize {
        self.padded() / self.shape.n
    }

    /// Columns that a plane has, in multiples of the shape's `n`; the last of a quarter may have fewer.
    pub(crate) fn own(&self) -> usize {
        self.columns().div_ceil(self.quarter)
    }

    /// Whether the last plane of a quarter has fewer columns.
    pub(crate) fn ragged(&self) -> bool {
        !self.columns().is_multiple_of(self.quarter)
    }

    /// Elements from a sample to the next of what is multiplied by the weights: hidden states, or, on
    /// the way back, the gradients of all four columns.
    pub(crate) fn rows_stride(&self, pass: Pass) -> usize {
        match pass {
            Pass::Forward => self.padded() + SKEW,
            Pass::Backward => 4 * self.padded() + SKEW,
        }
    }

    /// Elements from a sample to the next of the product.
    pub(crate) fn sums_stride(&self) -> usize {
        4 * self.padded() + SKEW
    }

    /// Elements from a row of the weights to the next, where they are kept.
    pub(crate) fn weights_stride(&self) -> usize {
        match self.place {
            Place::Shared => 4 * self.padded() + SKEW,
            Place::Registers | Place::Global => 4 * self.padded(),
        }
    }

    /// Elements of the weights in shared memory; four where they are not there, because a shared slice
    /// cannot be empty.
    pub(crate) fn shared_weights(&self) -> usize {
        if self.place == Place::Shared { self.padded() * self.weights_stride() } else { 4 }
    }

    /// Bytes of shared memory that a cube needs, with room for aligning its parts.
    pub(super) fn shared_bytes(&self, pass: Pass) -> usize {
        let samples = self.samples();
        2 * (samples * self.rows_stride(pass) + self.shared_weights())
            + 4 * (samples * self.sums_stride() + samples * self.units + samples)
            + 5 * ALIGN
    }

    /// Pairs of sample and unit that a thread has.
    pub(crate) fn slots(&self) -> usize {
        (self.samples() * self.units).div_ceil(self.threads())
    }

    /// Whether what a step reads from global memory is read before the product that it waits for.
    pub(crate) fn ahead(&self) -> bool {
        self.slots() <= AHEAD
    }

    /// Cubes of a launch: tiles of samples by directions.
    pub(crate) fn count(&self, batch: usize) -> [usize; 2] {
        [batch.div_ceil(self.samples()), self.directions]
    }

    /// Threads of a cube: lanes by planes.
    pub(crate) fn dim(&self) -> [usize; 2] {
        [self.lanes, self.planes()]
    }
}

/// At how many bytes the parts of shared memory begin: CUDA wants 32 for a matrix.
pub(crate) const ALIGN: usize = 32;

#[cfg(test)]
mod tests {
    use super::super::tests::{CUDA, hardware, with_cores};
    use super::*;

    /// The shape, and for each candidate its place, samples, planes and tiles of columns of a plane.
    type Found = (Shape, Vec<(Place, usize, usize, usize)>);

    fn found(hardware: &Hardware, of: &[[usize; 3]], sizes: [usize; 3]) -> Option<Found> {
        let hardware = &with_cores(hardware.clone(), of);
        let [forward, backward] = [Pass::Forward, Pass::Backward].map(|pass| {
            let tiles = CoreTile::candidates(hardware, sizes, DType::BF16, pass);
            assert!(tiles.len() <= 8, "{tiles:?}");
            for tile in &tiles {
                assert!(tile.shared_bytes(pass) <= hardware.shared_memory, "{tile:?}");
                assert!(tile.threads() <= hardware.threads, "{tile:?}");
                assert_eq!(tile.shape, tiles[0].shape, "one shape, one order of sums");
                // All columns have a plane, and every plane has one.
                assert!(tile.own() * tile.quarter >= tile.columns(), "{tile:?}");
                assert!(tile.own() * (tile.quarter - 1) < tile.columns(), "{tile:?}");
                assert!(tile.padded() >= sizes[2] && tile.padded().is_multiple_of(tile.shape.k));
            }
            tiles
        });
        let shape = forward.first()?.shape;
        assert_eq!(backward.first()?.shape, shape);
        let of = |t: &CoreTile| (t.place, t.samples(), t.planes(), t.own());
        Some((shape, forward.iter().map(of).collect()))
    }

    #[test]
    fn a_large_device_keeps_the_weights_in_registers_and_gives_every_processor_a_tile() {
        use Place::{Global, Registers, Shared};
        let hopper = hardware(227 * 1024, 1024, Some(132));
        let (shape, tiles) = found(&hopper, &CUDA, [2, 512, 128]).unwrap();
        assert_eq!(shape, Shape { m: 8, n: 32, k: 16 });
        let both = |place| [(place, 8, 16, 1), (place, 8, 8, 2)];
        assert_eq!(tiles, [both(Registers), both(Shared)].concat());
        // Enough samples for two tiles each, and never columns of eight.
        let (shape, tiles) = found(&hopper, &CUDA, [2, 4096, 128]).unwrap();
        assert_eq!(shape, Shape { m: 16, n: 16, k: 16 });
        // Two columns a plane take 96 registers, four 192; 512 threads have 128 each, of which 48 are left for
        // all else, and 256 have 255.
        let expected = [
            (Registers, 32, 8, 4),
            (Registers, 16, 16, 2),
            (Registers, 16, 8, 4),
            (Shared, 32, 16, 2),
            (Shared, 32, 8, 4),
            (Shared, 16, 16, 2),
            (Shared, 16, 8, 4),
        ];
        assert_eq!(tiles, expected);
        // Seven columns a quarter: two planes of four and three, or four of two, two, two and one.
        assert_eq!(found(&hopper, &CUDA, [2, 4096, 100]).unwrap().1, expected);
        // 512 KiB of weights fit nowhere near.
        let (_, tiles) = found(&hopper, &CUDA, [2, 512, 256]).unwrap();
        assert!(tiles.iter().all(|(place, ..)| *place == Global), "{tiles:?}");
    }

    #[test]
    fn odd_widths_are_filled_up() {
        let hopper = hardware(227 * 1024, 1024, Some(132));
        for units in [1, 7, 33, 100, 200, 333] {
            let (shape, tiles) = found(&hopper, &CUDA, [1, 64, units]).unwrap();
            assert_eq!(shape.m, 8, "{units}");
            assert!(!tiles.is_empty() && tiles.len() <= 8, "{units}: {tiles:?}");
        }
    }

    #[test]
    fn devices_without_them_get_none() {
        let known = hardware(227 * 1024, 1024, Some(132));
        assert_eq!(found(&known, &[], [2, 512, 128]), None);
        let unknown = Hardware { plane: [8, 32], ..known.clone() };
        assert_eq!(found(&unknown, &CUDA, [2, 512, 128]), None);
        let small = Hardware { shared_memory: 4096, ..known };
        assert_eq!(found(&small, &CUDA, [2, 512, 128]), None);
        // Only narrow columns: they are taken.
        let apple = hardware(32 * 1024, 1024, None);
        let (shape, tiles) = found(&apple, &[[8, 8, 8]], [2, 512, 32]).unwrap();
        assert_eq!(shape, Shape { m: 8, n: 8, k: 8 });
        assert_eq!(tiles[0].0, Place::Registers);
    }
}
