//! How a launch of a recurrent layer is cut whose tensor cores get their operands register by register
//! (`mma.m16n8k16` of NVIDIA's devices): by registers and shared memory.

use burn::tensor::DType;

use super::cores::{MOST, REGISTERS, SKEW};
use super::{ALIGN, Hardware, Pass, Place};

/// What a kernel is compiled for: another tile is another kernel, other batches and times are not.
///
/// The weights are the left operand, in tiles of 16 rows: on the way forward those of two gates of eight units, so that
/// two tiles have all four columns of these and a thread all four of its own; on the way back 16 units. Eight samples
/// are the columns of the right operand. A step of the sum is 16 of the numbers that are summed over, units before or,
/// on the way back, columns; two are read at once.
///
/// All tiles of a layer give the same bits: a sum is taken over the same numbers in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FragmentTile {
    /// Hidden units.
    pub(crate) units: usize,
    /// Directions of the layer: 1 or 2.
    pub(crate) directions: usize,
    /// Whether the cell is a GRU; an LSTM otherwise.
    pub(crate) gru: bool,
    /// Which of the two passes it is for.
    pub(crate) pass: Pass,
    /// Samples of a cube, in multiples of eight.
    pub(crate) tiles: usize,
    /// Planes (warps) of a cube; the last may have fewer units.
    pub(crate) planes: usize,
    /// Steps of the sum whose weights are in registers, and how many behind these are in shared memory; those of all
    /// others are read from global memory at each step in time.
    pub(crate) kept: [usize; 2],
    /// Whether a step on the way back reads for the next one before it computes: where there are registers for both.
    pub(crate) early: bool,
}

/// Units of an octet, and samples of a tile.
const EIGHT: usize = 8;

/// Numbers that a step sums over.
const DEPTH: usize = 16;

/// Rows of a tile.
const ROWS: usize = 16;

/// Threads of a plane.
const LANES: usize = 32;

/// Planes of a cube and tiles of samples that are tried, the first that fit best untried.
const PLANES: [usize; 2] = [16, 8];
const TILES: [usize; 3] = [4, 2, 1];

/// Registers of a thread that are left for all that is not counted.
const OTHERS: usize = 40;

impl FragmentTile {
    /// The tiles for a layer in `batch` samples, the one to take untried first; none where the device has no such tensor
    /// cores, or no room for so many units.
    pub(super) fn candidates(
        hardware: &Hardware,
        [directions, batch, units]: [usize; 3],
        dtype: DType,
        pass: Pass,
    ) -> Vec<Self> {
        if !hardware.by_hand.contains(&dtype) || hardware.lanes() != Some(LANES) {
            return vec![];
        }
        let wanted = hardware.wanted(directions, batch).div_ceil(EIGHT).max(1);
        // With as many of the weights as near as possible, and with all in shared memory, which leaves registers for more
        // cubes.
        let of = |tiles, nearest| {
            let mut found: Vec<Self> = vec![];
            for most in PLANES {
                let (gru, planes, kept, early) = (false, 1, [0; 2], false);
                let one = Self { units, directions, gru, pass, tiles, planes, kept, early };
                let one = Self { planes: one.planes_in(most), ..one };
                let kept = if nearest { one.most_kept(hardware) } else { [0, one.steps()] };
                let early = pass == Pass::Backward && Self { kept, early: true, ..one }.holds();
                let tile = Self { kept, early, ..one };
                if tile.runs(hardware, batch) && !found.contains(&tile) {
                    found.push(tile);
                }
            }
            found
        };
        let tiles = TILES.into_iter().filter(|tiles| *tiles <= wanted);
        // Of the most samples that registers take the sums of, and of fewer.
        let tiles: Vec<_> = tiles.filter(|tiles| !of(*tiles, true).is_empty()).take(2).collect();
        let mut found: Vec<Self> = tiles.iter().flat_map(|tiles| of(*tiles, true)).collect();
        for tile in tiles.iter().flat_map(|tiles| of(*tiles, false)) {
            if !found.contains(&tile) {
                found.push(tile);
            }
        }
        found
    }

    /// Planes of a cube, `most` of them at most: as many as have units if each has as many as the first.
    fn planes_in(&self, most: usize) -> usize {
        let groups = self.high_tiles() / self.tiles_at_once();
        groups.div_ceil(groups.div_ceil(most))
    }

    /// The weights of as many steps as registers take, then of as many of the others as shared memory takes.
    fn most_kept(&self, hardware: &Hardware) -> [usize; 2] {
        let keeping = |kept| Self { kept, ..*self };
        let steps = self.steps();
        let held = |registers: &usize| keeping([*registers, 0]).holds();
        let registers = (0..=steps).rev().find(held).unwrap_or(0);
        let fits =
            |shared: &usize| keeping([registers, *shared]).shared_bytes() <= hardware.shared_memory;
        [registers, (0..=steps - registers).rev().find(fits).unwrap_or(0)]
    }

    fn runs(&self, hardware: &Hardware, batch: usize) -> bool {
        let [widest, highest] = hardware.dim;
        self.holds()
            && self.threads() <= hardware.threads
            && LANES <= widest
            && self.planes <= highest
            && self.shared_bytes() <= hardware.shared_memory
            && batch.div_ceil(self.samples()) <= hardware.count[0]
    }

    /// Whether a thread has registers for its sums, its units and what it keeps of the weights.
    fn holds(&self) -> bool {
        // For each pair of a unit and a sample: what is read ahead, its state, and addresses.
        let pair = match self.pass {
            Pass::Forward => 6,
            Pass::Backward if self.early => 12,
            Pass::Backward => 7,
        };
        let weights = 4 * self.own_tiles() * self.kept[0];
        let all = 2 * self.sums() + weights + pair * self.pairs() + OTHERS;
        // Planes are dealt to four quarters of a processor, each with a quarter of its registers: the fullest counts.
        all <= MOST.min(REGISTERS / self.threads().next_multiple_of(4 * LANES))
    }

    /// Samples of a cube.
    pub(crate) fn samples(&self) -> usize {
        self.tiles * EIGHT
    }

    /// Units with those that are added, of weights zero: of the tiles' rows, and of what is summed over.
    pub(crate) fn padded(&self) -> [usize; 2] {
        match self.pass {
            Pass::Forward => [EIGHT, 2 * DEPTH],
            Pass::Backward => [ROWS, EIGHT],
        }
        .map(|multiple| self.units.next_multiple_of(multiple))
    }

    /// Tiles of rows that the weights have.
    pub(crate) fn high_tiles(&self) -> usize {
        let [units, _] = self.padded();
        units / EIGHT * self.tiles_at_once() / self.octets_at_once()
    }

    /// Tiles that a thread needs for all columns of a unit, and the octets of units that are in these.
    fn tiles_at_once(&self) -> usize {
        match self.pass {
            Pass::Forward => 2,
            Pass::Backward => 1,
        }
    }

    fn octets_at_once(&self) -> usize {
        match self.pass {
            Pass::Forward => 1,
            Pass::Backward => 2,
        }
    }

    /// Tiles of rows that a plane has; the last plane may have fewer.
    pub(crate) fn own_tiles(&self) -> usize {
        let at_once = self.tiles_at_once();
        (self.high_tiles() / at_once).div_ceil(self.planes) * at_once
    }

    /// Octets of units that a plane has; the last plane may have fewer.
    pub(crate) fn octets(&self) -> usize {
        self.own_tiles() / self.tiles_at_once() * self.octets_at_once()
    }

    /// Pairs of a unit and a sample that a thread has.
    pub(crate) fn pairs(&self) -> usize {
        self.octets() * self.tiles * 2
    }

    /// Sums that are taken beside each other, and added at the end: one waits for the one before.
    pub(crate) fn chains(&self) -> usize {
        match self.pass {
            Pass::Forward => 1,
            Pass::Backward => 2,
        }
    }

    /// Pairs of sums that a thread has.
    pub(crate) fn sums(&self) -> usize {
        2 * self.own_tiles() * self.tiles * self.chains()
    }

    /// Whether the tiles of all planes have no unit that is added.
    pub(crate) fn whole(&self) -> bool {
        self.planes * self.octets() * EIGHT == self.units
    }

    /// Steps of a sum, an even number.
    pub(crate) fn steps(&self) -> usize {
        let [_, units] = self.padded();
        match self.pass {
            Pass::Forward => units / DEPTH,
            Pass::Backward => 4 * units / DEPTH,
        }
    }

    /// The steps of the sum whose weights are in a place: the first, and the one behind the last.
    pub(crate) fn steps_in(&self, place: Place) -> [usize; 2] {
        let [registers, shared] = self.kept;
        match place {
            Place::Registers => [0, registers],
            Place::Shared => [registers, registers + shared],
            Place::Global => [registers + shared, self.steps()],
        }
    }

    /// Elements from a sample to the next of what is multiplied by the weights: hidden states, or, on the way back, the
    /// gradients of all four columns.
    pub(crate) fn rows_stride(&self) -> usize {
        self.steps() * DEPTH + SKEW
    }

    /// Elements of both copies of these.
    pub(crate) fn rows_room(&self) -> usize {
        2 * self.samples() * self.rows_stride()
    }

    /// Vectors of eight weights of a direction that some steps have.
    pub(crate) fn vectors(&self, steps: usize) -> usize {
        steps * self.high_tiles() * LANES
    }

    /// Bytes of shared memory that a cube needs, with room for aligning its parts.
    pub(super) fn shared_bytes(&self) -> usize {
        // A slice cannot be empty.
        let weights = self.vectors(self.kept[1]).max(1);
        2 * (self.rows_room() + 8 * weights) + 2 * ALIGN
    }

    /// Threads of a cube.
    pub(crate) fn threads(&self) -> usize {
        self.planes * LANES
    }

    /// Cubes of a launch: tiles of samples by directions.
    pub(crate) fn count(&self, batch: usize) -> [usize; 2] {
        [batch.div_ceil(self.samples()), self.directions]
    }

    /// Threads of a cube: lanes by planes.
    pub(crate) fn dim(&self) -> [usize; 2] {
        [LANES, self.planes]
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::hardware;
    use super::*;

    /// For each candidate its samples, its planes, and the steps whose weights are in registers and shared memory.
    fn found(sizes: [usize; 3], pass: Pass) -> Vec<(usize, usize, [usize; 2])> {
        let hopper = hardware(227 * 1024, 1024, Some(132));
        let hopper = Hardware { by_hand: vec![DType::BF16], ..hopper };
        assert!(FragmentTile::candidates(&hopper, sizes, DType::F16, pass).is_empty());
        let of = |tile: &FragmentTile| (tile.samples(), tile.planes, tile.kept);
        FragmentTile::candidates(&hopper, sizes, DType::BF16, pass).iter().map(of).collect()
    }

    #[test]
    fn weights_are_kept_as_near_as_there_is_room() {
        // 128 KiB in registers or, on the way back by few planes, as many of them.
        let forward = [(8, 16, [8, 0]), (8, 8, [8, 0]), (8, 16, [0, 8]), (8, 8, [0, 8])];
        assert_eq!(found([2, 512, 128], Pass::Forward), forward);
        let backward = [(8, 8, [32, 0]), (8, 8, [0, 32])];
        assert_eq!(found([2, 512, 128], Pass::Backward), backward);
        // Thirteen planes have the registers of sixteen.
        assert_eq!(found([2, 64, 200], Pass::Forward)[..2], [(8, 13, [3, 8]), (8, 7, [4, 8])]);
        // 512 KiB: more than half near. Not all in shared memory, for which there is no room.
        assert_eq!(found([2, 64, 256], Pass::Forward), [(8, 16, [3, 6]), (8, 8, [4, 6])]);
        assert_eq!(found([2, 64, 256], Pass::Backward), [(8, 16, [13, 24]), (8, 8, [17, 24])]);
    }

    #[test]
    fn of_many_samples_more_are_taken_at_once() {
        let expected = [
            (32, 16, [1, 7]),
            (32, 8, [3, 5]),
            (16, 16, [6, 2]),
            (16, 8, [8, 0]),
            (32, 16, [0, 8]),
            (32, 8, [0, 8]),
            (16, 16, [0, 8]),
            (16, 8, [0, 8]),
        ];
        assert_eq!(found([2, 4096, 128], Pass::Forward), expected);
    }

    #[test]
    fn layers_that_are_too_wide_get_none() {
        for pass in [Pass::Forward, Pass::Backward] {
            for batch in [64, 4096] {
                assert!(!found([2, batch, 512], pass).is_empty(), "{pass:?}, {batch}");
            }
        }
        assert!(found([1, 64, 4096], Pass::Forward).is_empty());
    }
}
