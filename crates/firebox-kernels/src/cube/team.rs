//! Threads of a cube that work on one row together: how many there are, and their sums.

use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::{self, CubeDim, ir::HardwareProperties, prelude::*};

/// The threads of a cube as `rows` teams beside each other, each of `columns` threads; both are powers
/// of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Team {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

/// Threads of a cube, if the device can have as many.
const THREADS: usize = 256;

/// Numbers that a thread should have of a row before another one joins it.
const EACH: usize = 4;

impl Team {
    /// The whole cube as one team.
    pub(super) fn whole(hardware: &HardwareProperties) -> Self {
        Self { columns: threads(hardware), rows: 1 }
    }

    /// Teams for rows of `width` numbers.
    pub(super) fn of_rows(hardware: &HardwareProperties, width: usize) -> Self {
        let threads = threads(hardware);
        let columns = width.div_ceil(EACH).next_power_of_two().min(threads);
        let rows = (threads / columns).min(below(hardware.max_cube_dim.1 as usize));
        Self { columns, rows }
    }

    /// The threads of a cube.
    pub(super) fn dim(&self) -> CubeDim {
        CubeDim::new_2d(self.columns as u32, self.rows as u32)
    }

    /// All threads of a cube.
    pub(super) fn threads(&self) -> usize {
        self.columns * self.rows
    }
}

/// How rows are spread over cubes.
pub(super) struct Spread {
    pub(super) team: Team,
    /// Blocks of rows, each with one for each team of a cube.
    pub(super) blocks: usize,
    /// Cubes, as many as there are blocks if the device can have them: they stride.
    pub(super) cubes: usize,
}

impl Spread {
    /// For rows of `width` numbers.
    pub(super) fn new(client: &Client, rows: usize, width: usize) -> Self {
        let hardware = &client.properties().hardware;
        let team = Team::of_rows(hardware, width);
        let blocks = rows.div_ceil(team.rows);
        Self { team, blocks, cubes: blocks.min(hardware.max_cube_count.0 as usize) }
    }
}

fn threads(hardware: &HardwareProperties) -> usize {
    let most = hardware.max_units_per_cube.min(hardware.max_cube_dim.0) as usize;
    below(most.min(THREADS))
}

/// The largest power of two up to a number.
fn below(number: usize) -> usize {
    1 << number.max(1).ilog2()
}

/// The sum over a team, by pairs. All threads of the cube must get here; `scratch` has a number for
/// each.
#[cube]
pub(super) fn sum_of_team(
    value: f32,
    scratch: &mut Shared<[f32]>,
    #[comptime] columns: usize,
) -> f32 {
    reduce(value, scratch, columns, false)
}

/// The largest number of a team; otherwise as `sum_of_team`.
#[cube]
pub(super) fn largest_of_team(
    value: f32,
    scratch: &mut Shared<[f32]>,
    #[comptime] columns: usize,
) -> f32 {
    reduce(value, scratch, columns, true)
}

#[cube]
fn reduce(
    value: f32,
    scratch: &mut Shared<[f32]>,
    #[comptime] columns: usize,
    #[comptime] largest: bool,
) -> f32 {
    let own = UNIT_POS as usize;
    let column = UNIT_POS_X as usize;
    scratch[own] = value;
    sync_cube();
    #[unroll]
    for level in 0..comptime!(columns.ilog2() as usize) {
        let half = comptime!(columns >> (level + 1));
        if column < half {
            let other = scratch[own + half];
            if comptime!(largest) {
                if other > scratch[own] {
                    scratch[own] = other;
                }
            } else {
                scratch[own] += other;
            }
        }
        sync_cube();
    }
    let result = scratch[own - column];
    // Before the next call writes.
    sync_cube();
    result
}
