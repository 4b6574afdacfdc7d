//! How a launch of a recurrent layer without tensor cores is cut into cubes: by the device's threads, shared
//! memory and processors.

use super::{Hardware, Pass};

/// What a kernel is compiled for: another tile is another kernel, other batches and times are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tile {
    /// Hidden units.
    pub(crate) units: usize,
    /// Directions of the layer: 1 or 2.
    pub(crate) directions: usize,
    /// Samples of a thread: 1, 2 or 4.
    pub(crate) rows: usize,
    /// Threads beside each other that have the same units and other samples.
    pub(crate) groups: usize,
    /// Threads beside each other that have the same samples and other units.
    pub(crate) columns: usize,
    /// Whether the recurrent weights of a direction stay in shared memory.
    pub(crate) resident: bool,
    /// Whether the cell is a GRU; an LSTM otherwise.
    pub(crate) gru: bool,
}

/// More threads than this would leave each too few registers.
const THREADS: usize = 512;

/// Fewer samples a tile than this do not pay for keeping the weights: as many as could share a read.
const WORTH_KEEPING: usize = 4;

impl Tile {
    /// The tiles for a layer in `batch` samples, the one to take untried first; none where even the
    /// smallest does not fit. `weight` is the size of one weight in bytes. Weights stay in shared memory
    /// only if `resident`. All of them give the same bits.
    pub(super) fn candidates(
        hardware: &Hardware,
        sizes @ [directions, batch, _]: [usize; 3],
        weight: usize,
        pass: Pass,
        resident: bool,
    ) -> Vec<Self> {
        // Every cube reads all the weights at each step, so tiles are as large as they can be while
        // every processor has one.
        let wanted = hardware.wanted(directions, batch);
        let mut found = vec![];
        for wanted in [wanted, wanted.div_ceil(2), (2 * wanted).min(batch)] {
            let tile = Self::of(hardware, sizes, wanted, weight, pass, resident);
            found.extend(tile.filter(|tile| !found.contains(tile)));
        }
        found
    }

    /// The tile for cubes of about `wanted` samples.
    fn of(
        hardware: &Hardware,
        [directions, batch, units]: [usize; 3],
        wanted: usize,
        weight: usize,
        pass: Pass,
        resident: bool,
    ) -> Option<Self> {
        let [widest, highest] = hardware.dim;
        let threads = hardware.threads.min(THREADS);
        let columns = units.min(threads).min(widest);
        let rows = [4, 2].into_iter().find(|rows| *rows <= wanted).unwrap_or(1);
        let most = (threads / columns).min(highest).max(1);
        let groups = wanted.div_ceil(rows).min(most);
        let mut tile = Self { units, directions, rows, groups, columns, resident, gru: false };
        while tile.shared_bytes(weight, pass) > hardware.shared_memory {
            match (tile.groups, tile.rows) {
                (1, 1) => return None,
                (1, _) => tile.rows /= 2,
                _ => tile.groups -= 1,
            }
        }
        let pays = !resident || tile.samples() >= wanted.min(WORTH_KEEPING);
        let counted = batch.div_ceil(tile.samples()) <= hardware.count[0];
        (pays && counted).then_some(tile)
    }

    /// Samples of a cube.
    pub(crate) fn samples(&self) -> usize {
        self.rows * self.groups
    }

    /// Threads of a cube.
    pub(crate) fn threads(&self) -> usize {
        self.columns * self.groups
    }

    /// Elements of the shared weights, four a pair of units; one where they are not kept, because a
    /// shared slice cannot be empty.
    pub(crate) fn resident_weights(&self) -> usize {
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
    pub(crate) fn count(&self, batch: usize) -> [usize; 2] {
        [batch.div_ceil(self.samples()), self.directions]
    }

    /// Threads of a cube: units by groups of samples.
    pub(crate) fn dim(&self) -> [usize; 2] {
        [self.columns, self.groups]
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::hardware;
    use super::*;

    /// Samples a thread, groups and columns of both passes.
    fn check(
        hardware: &Hardware,
        sizes: [usize; 3],
        weight: usize,
        resident: bool,
        expected: [Option<(usize, usize, usize)>; 2],
    ) {
        let found = [Pass::Forward, Pass::Backward].map(|pass| {
            let tile = *Tile::candidates(hardware, sizes, weight, pass, resident).first()?;
            assert!(tile.shared_bytes(weight, pass) <= hardware.shared_memory);
            assert!(tile.columns * tile.groups <= hardware.threads);
            Some((tile.rows, tile.groups, tile.columns))
        });
        assert_eq!(found, expected, "{sizes:?}");
    }

    #[test]
    fn a_large_device_gives_every_processor_a_tile_and_keeps_half_precision_weights() {
        let hopper = hardware(227 * 1024, 1024, Some(132));
        let tile = Some((4, 2, 128));
        check(&hopper, [2, 512, 128], 4, true, [None, None]);
        check(&hopper, [2, 512, 128], 4, false, [tile, tile]);
        check(&hopper, [2, 512, 128], 2, true, [tile, tile]);
        check(&hopper, [1, 1, 128], 2, true, [Some((1, 1, 128)); 2]);
        check(&hopper, [2, 4096, 256], 2, false, [Some((4, 2, 256)); 2]);
    }

    #[test]
    fn a_small_device_takes_few_samples_at_a_time() {
        let small = hardware(16 * 1024, 256, None);
        check(&small, [2, 512, 16], 4, true, [Some((4, 8, 16)); 2]);
        check(&small, [2, 512, 128], 4, false, [Some((4, 2, 128)), Some((4, 1, 128))]);
        check(&small, [2, 512, 600], 4, false, [Some((2, 1, 256)), Some((1, 1, 256))]);
        check(&small, [2, 512, 1000], 4, false, [Some((1, 1, 256)), None]);
        // Weights that would leave room for two samples only are not worth keeping.
        check(&small, [2, 512, 28], 4, true, [Some((4, 2, 28)), Some((4, 1, 28))]);
        check(&small, [2, 512, 31], 4, true, [None, None]);
    }

    #[test]
    fn more_tiles_than_a_launch_can_have_are_refused() {
        let mut few = hardware(16 * 1024, 256, None);
        few.count[0] = 3;
        check(&few, [1, 300, 300], 4, false, [None, None]);
    }
}
