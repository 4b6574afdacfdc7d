//! Sums over threads of a cube that work on one row together.

use burn_cubecl::cubecl::{self, prelude::*};

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
