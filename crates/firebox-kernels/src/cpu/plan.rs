//! How a batch is cut into tiles, and where each tile keeps what the backward pass needs.

use super::{Arithmetic, BLOCK, GATES, amx};

/// The sizes of one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sizes {
    pub(crate) batch: usize,
    pub(crate) time: usize,
    pub(crate) input: usize,
    pub(crate) hidden: usize,
    pub(crate) directions: usize,
}

impl Sizes {
    /// Blocks of hidden units.
    pub(super) fn blocks(&self) -> usize {
        self.hidden.div_ceil(BLOCK)
    }

    /// Hidden units rounded up to whole blocks.
    pub(super) fn padded(&self) -> usize {
        self.blocks() * BLOCK
    }

    /// Where the output of a sample's step and direction starts.
    pub(super) fn output(&self, sample: usize, t: usize, direction: usize) -> usize {
        ((sample * self.time + t) * self.directions + direction) * self.hidden
    }

    /// Where a sample's state in a direction starts.
    pub(super) fn state(&self, sample: usize, direction: usize) -> usize {
        (direction * self.batch + sample) * self.hidden
    }

    /// Where the input of a sample's step starts.
    pub(super) fn input(&self, sample: usize, t: usize) -> usize {
        (sample * self.time + t) * self.input
    }
}

/// The batch cut into tiles.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) sizes: Sizes,
    pub(super) tiles: Vec<Tile>,
}

/// Samples that are computed together, the longest first, so that those which are still running at
/// any step are the first ones.
#[derive(Clone, Debug)]
pub(super) struct Tile {
    /// Indices of the samples in the batch.
    pub(super) samples: Vec<usize>,
    /// Their lengths.
    pub(super) lengths: Vec<usize>,
    /// For each step, the sum of [`active`](Tile::active) over the steps before it; one more entry
    /// holds the sum over all.
    starts: Vec<usize>,
}

/// Rows of the tiles of a batch. Large tiles reuse weights better, many tiles keep many cores busy; a
/// batch that would be one tile of sixteen is two of eight. Where there are many, they are whole register
/// tiles of `unit` rows; where there are few, equal ones share the cores better.
fn rows(batch: usize, unit: usize) -> usize {
    let fewest = batch.div_ceil(2).clamp(8, 16);
    let rows = batch.div_ceil(16).clamp(fewest, 64);
    if batch < 256 { rows } else { rows.next_multiple_of(unit) }
}

impl Plan {
    pub(crate) fn new(arithmetic: Arithmetic, sizes: Sizes, lengths: Option<&[usize]>) -> Self {
        let unit = if arithmetic.in_tiles(&sizes) { amx::TILE } else { 6 };
        let length = |sample: usize| lengths.map_or(sizes.time, |lengths| lengths[sample]);
        let mut order: Vec<usize> = (0..sizes.batch).collect();
        order.sort_by_key(|sample| std::cmp::Reverse(length(*sample)));
        let tiles = order
            .chunks(rows(sizes.batch, unit))
            .map(|samples| {
                let lengths: Vec<_> = samples.iter().map(|sample| length(*sample)).collect();
                let mut starts = vec![0];
                for t in 0..lengths[0] {
                    let active = lengths.iter().take_while(|length| **length > t).count();
                    starts.push(starts[t] + active);
                }
                Tile { samples: samples.to_vec(), lengths, starts }
            })
            .collect();
        Self { sizes, tiles }
    }

    /// Whether no sample ends before the others.
    pub(super) fn whole(&self) -> bool {
        self.tiles.iter().all(|tile| tile.lengths.iter().all(|length| *length == self.sizes.time))
    }

    /// Floats of activated gates that all tiles and directions keep.
    pub(super) fn gates(&self) -> usize {
        self.sizes.directions * self.tiles.iter().map(|tile| tile.gates(&self.sizes)).sum::<usize>()
    }
}

impl Tile {
    pub(super) fn rows(&self) -> usize {
        self.samples.len()
    }

    /// Steps of the longest sample.
    pub(super) fn steps(&self) -> usize {
        self.starts.len() - 1
    }

    /// Samples that have not ended at step `t`: that many first ones.
    pub(super) fn active(&self, t: usize) -> usize {
        self.starts[t + 1] - self.starts[t]
    }

    /// Rows, one per running sample and step, before step `t`.
    pub(super) fn start(&self, t: usize) -> usize {
        self.starts[t]
    }

    /// Floats of activated gates in one direction; the cell states are a quarter of it.
    pub(super) fn gates(&self, sizes: &Sizes) -> usize {
        self.starts[self.steps()] * sizes.blocks() * GATES
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CellKind, CpuKernels};
    use super::*;

    #[test]
    fn tiles_hold_every_sample_once_and_running_ones_first() {
        let lengths: Vec<usize> = (0..77).map(|i| i * 13 % 20).collect();
        let sizes = Sizes { batch: 77, time: 19, input: 3, hidden: 17, directions: 2 };
        let arithmetic =
            Arithmetic { kernels: CpuKernels::Portable, cell: CellKind::Lstm, bf16: false };
        let plan = Plan::new(arithmetic, sizes, Some(&lengths));
        let mut seen: Vec<_> = plan.tiles.iter().flat_map(|tile| tile.samples.clone()).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..77).collect::<Vec<_>>());
        for tile in &plan.tiles {
            for t in 0..tile.steps() {
                for (row, sample) in tile.samples.iter().enumerate() {
                    assert_eq!(row < tile.active(t), lengths[*sample] > t);
                }
            }
        }
        // Two directions, 32 units after rounding, four gates, no room for padding.
        assert_eq!(plan.gates(), 2 * lengths.iter().sum::<usize>() * 4 * 32);
    }
}
