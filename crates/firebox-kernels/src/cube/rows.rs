//! The kernels of layer normalisation: a team of threads takes a row, which it reads from memory once
//! and then from the cache.

use burn_cubecl::cubecl::{self, prelude::*};

use super::team::sum_of_team;
use crate::cuts::Team;

/// Normalises rows. A cube takes every `CUBE_COUNT_X`-th block of rows, one for each of its teams.
///
/// # Shapes
/// - x, y: `[rows, width]`
/// - gamma, beta (not read unless `shifted`): `[width]`
/// - moments: `[2, rows]`, mean and one over the deviation
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a kernel has one argument for each buffer")]
pub(super) fn normalise<F: Float>(
    x: &[F],
    gamma: &[F],
    beta: &[F],
    y: &mut [F],
    moments: &mut [f32],
    rows: u32,
    blocks: u32,
    epsilon: f32,
    #[comptime] width: usize,
    #[comptime] shifted: bool,
    #[comptime] team: Team,
    #[define(F)] _dtype: ElemType,
) {
    let columns = comptime!(team.columns);
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(team.threads()));
    let rows = rows as usize;
    let column = UNIT_POS_X as usize;
    for block in range_stepped(CUBE_POS_X, blocks, CUBE_COUNT_X) {
        let row = block as usize * comptime!(team.rows) + UNIT_POS_Y as usize;
        let begin = row * width;
        // A team without a row takes part in the sums.
        let end = select::<usize>(row < rows, width, 0usize);
        let mut sum = 0.0f32;
        for at in range_stepped(column, end, columns) {
            sum += f32::cast_from(x[begin + at]);
        }
        let count = comptime!(width as f32);
        let mean = sum_of_team(sum, &mut scratch, columns) / count;
        let mut squares = 0.0f32;
        for at in range_stepped(column, end, columns) {
            let distance = f32::cast_from(x[begin + at]) - mean;
            squares += distance * distance;
        }
        let variance = sum_of_team(squares, &mut scratch, columns) / count;
        let scale = 1.0f32 / (variance + epsilon).sqrt();
        for at in range_stepped(column, end, columns) {
            let n = (f32::cast_from(x[begin + at]) - mean) * scale;
            let mut value = n * f32::cast_from(gamma[at]);
            if comptime!(shifted) {
                value += f32::cast_from(beta[at]);
            }
            y[begin + at] = F::cast_from(value);
        }
        if row < rows && column == 0 {
            moments[row] = mean;
            moments[rows + row] = scale;
        }
    }
}

/// The gradient of the input, and what each cube adds to those of scale and shift. With
/// `n = (x - mean) / deviation` and `g = d · gamma`, the gradient of the input is
/// `(g - mean(g) - n · mean(g · n)) / deviation`.
///
/// # Shapes
/// - d, x, dx: `[rows, width]`; gamma and moments as in `normalise`
/// - sums: `[cubes, 2, width]`, of `d · n` and of `d`
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a kernel has one argument for each buffer")]
pub(super) fn normalise_back<F: Float>(
    d: &[F],
    x: &[F],
    gamma: &[F],
    moments: &[f32],
    dx: &mut [F],
    sums: &mut [f32],
    rows: u32,
    blocks: u32,
    #[comptime] width: usize,
    #[comptime] team: Team,
    #[define(F)] _dtype: ElemType,
) {
    let columns = comptime!(team.columns);
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(team.threads()));
    // A number is added to by one thread alone until the end.
    let mut kept = Shared::<[f32]>::new_slice(comptime!(2 * width * team.rows));
    let rows = rows as usize;
    let column = UNIT_POS_X as usize;
    let own = UNIT_POS_Y as usize * comptime!(2 * width);
    for at in range_stepped(column, width, columns) {
        kept[own + at] = 0.0f32;
        kept[own + width + at] = 0.0f32;
    }
    for block in range_stepped(CUBE_POS_X, blocks, CUBE_COUNT_X) {
        let row = block as usize * comptime!(team.rows) + UNIT_POS_Y as usize;
        let begin = row * width;
        let end = select::<usize>(row < rows, width, 0usize);
        let mut mean = 0.0f32;
        let mut scale = 0.0f32;
        if row < rows {
            mean = moments[row];
            scale = moments[rows + row];
        }
        let mut plain = 0.0f32;
        let mut weighted = 0.0f32;
        for at in range_stepped(column, end, columns) {
            let d_y = f32::cast_from(d[begin + at]);
            let n = (f32::cast_from(x[begin + at]) - mean) * scale;
            let g = d_y * f32::cast_from(gamma[at]);
            plain += g;
            weighted += g * n;
            kept[own + at] += d_y * n;
            kept[own + width + at] += d_y;
        }
        let count = comptime!(width as f32);
        let plain = sum_of_team(plain, &mut scratch, columns) / count;
        let weighted = sum_of_team(weighted, &mut scratch, columns) / count;
        for at in range_stepped(column, end, columns) {
            let n = (f32::cast_from(x[begin + at]) - mean) * scale;
            let g = f32::cast_from(d[begin + at]) * f32::cast_from(gamma[at]);
            dx[begin + at] = F::cast_from((g - plain - n * weighted) * scale);
        }
    }
    sync_cube();
    let place = CUBE_POS_X as usize * comptime!(2 * width);
    for at in range_stepped(UNIT_POS as usize, comptime!(2 * width), comptime!(team.threads())) {
        let mut sum = 0.0f32;
        #[unroll]
        for of in 0..comptime!(team.rows) {
            sum += kept[of * comptime!(2 * width) + at];
        }
        sums[place + at] = sum;
    }
}

/// The gradients of scale and shift from what all cubes have added up, `[cubes, 2, width]`.
#[cube(launch_unchecked)]
pub(super) fn fold<F: Float>(
    sums: &[f32],
    d_gamma: &mut [F],
    d_beta: &mut [F],
    cubes: u32,
    width: u32,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    let width = width as usize;
    if at < 2 * width {
        let mut sum = 0.0f32;
        for cube in 0..cubes as usize {
            sum += sums[cube * 2 * width + at];
        }
        if at < width {
            d_gamma[at] = F::cast_from(sum);
        } else {
            d_beta[at - width] = F::cast_from(sum);
        }
    }
}
