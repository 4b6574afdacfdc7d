//! The kernels of batch normalisation: each column of a matrix is added up by itself, over all rows.
//!
//! A cube takes a block of columns, `CUBE_POS_X`, and every `CUBE_COUNT_Y`-th block of rows. Its threads
//! lie beside each other along the columns and below each other along the rows. What they add up is put
//! together in shared memory, and what cubes add up by one more launch.

use burn_cubecl::cubecl::{self, prelude::*};

use crate::cuts::Team;

/// The column of this thread.
#[cube]
pub(super) fn column(#[comptime] team: Team) -> usize {
    CUBE_POS_X as usize * comptime!(team.columns) + UNIT_POS_X as usize
}

/// The first row of this thread.
#[cube]
pub(super) fn first_row(#[comptime] team: Team) -> usize {
    CUBE_POS_Y as usize * comptime!(team.rows) + UNIT_POS_Y as usize
}

/// From one row of this thread to the next.
#[cube]
pub(super) fn stride(#[comptime] team: Team) -> usize {
    CUBE_COUNT_Y as usize * comptime!(team.rows)
}

/// Count, mean and summed squared distances from it of two sets of numbers together. Source: Chan, Golub
/// and LeVeque, 1979.
#[cube]
fn together(
    count: f32,
    mean: f32,
    squares: f32,
    other_count: f32,
    other_mean: f32,
    other_squares: f32,
) -> (f32, f32, f32) {
    let all = count + other_count;
    let share = other_count / all.max(1.0f32);
    let distance = other_mean - mean;
    // In this order, a side without numbers adds zero whatever the other's mean is.
    let between = distance * share * count * distance;
    (all, mean + distance * share, squares + other_squares + between)
}

/// Puts those of the whole column together in `scratch`, three numbers for each thread: they lie in the
/// places of the threads of the first row of the cube. All threads must get here.
#[cube]
fn of_cube(
    count: f32,
    mean: f32,
    squares: f32,
    scratch: &mut Shared<[f32]>,
    #[comptime] team: Team,
) {
    let threads = comptime!(team.threads());
    let at = UNIT_POS as usize;
    scratch[at] = count;
    scratch[threads + at] = mean;
    scratch[comptime!(2 * threads) + at] = squares;
    sync_cube();
    #[unroll]
    for level in 0..comptime!(team.rows.ilog2() as usize) {
        let half = comptime!(team.rows >> (level + 1));
        if (UNIT_POS_Y as usize) < half {
            let below = at + comptime!(half * team.columns);
            let (count, mean, squares) = together(
                scratch[at],
                scratch[threads + at],
                scratch[comptime!(2 * threads) + at],
                scratch[below],
                scratch[threads + below],
                scratch[comptime!(2 * threads) + below],
            );
            scratch[at] = count;
            scratch[threads + at] = mean;
            scratch[comptime!(2 * threads) + at] = squares;
        }
        sync_cube();
    }
}

/// Count, mean and squared distances of the rows of each cube. Source of the sum over rows: Welford,
/// 1962.
///
/// # Shapes
/// - x: `[rows, width]`
/// - parts: `[cubes, 3, width]`
#[cube(launch_unchecked)]
pub(super) fn column_moments<F: Float>(
    x: &[F],
    parts: &mut [f32],
    rows: u32,
    #[comptime] width: usize,
    #[comptime] team: Team,
    #[define(F)] _dtype: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(3 * team.threads()));
    let at = column(team);
    // A thread without a column takes part in the sums.
    let end = select::<usize>(at < width, rows as usize, 0usize);
    let mut count = 0.0f32;
    let mut mean = 0.0f32;
    let mut squares = 0.0f32;
    for row in range_stepped(first_row(team), end, stride(team)) {
        let value = f32::cast_from(x[row * width + at]);
        let distance = value - mean;
        count += 1.0f32;
        mean += distance / count;
        squares += distance * (value - mean);
    }
    of_cube(count, mean, squares, &mut scratch, team);
    if UNIT_POS_Y == 0 && at < width {
        let part = CUBE_POS_Y as usize * comptime!(3 * width) + at;
        let own = UNIT_POS as usize;
        parts[part] = scratch[own];
        parts[part + width] = scratch[comptime!(team.threads()) + own];
        parts[part + comptime!(2 * width)] = scratch[comptime!(2 * team.threads()) + own];
    }
}

/// Mean and biased variance of each column, and the running ones moved towards it by `momentum`, the
/// variance towards the unbiased one. They stay where a column's are not finite.
///
/// # Shapes
/// - parts: `[cubes, 3, width]`
/// - running_mean, running_var, new_mean, new_var: `[width]`
/// - moments: `[2, width]`
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a kernel has one argument for each buffer")]
pub(super) fn settle(
    parts: &[f32],
    running_mean: &[f32],
    running_var: &[f32],
    moments: &mut [f32],
    new_mean: &mut [f32],
    new_var: &mut [f32],
    cubes: u32,
    momentum: f32,
    #[comptime] width: usize,
    #[comptime] team: Team,
) {
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(3 * team.threads()));
    let at = column(team);
    let end = select::<usize>(at < width, cubes as usize, 0usize);
    let mut count = 0.0f32;
    let mut mean = 0.0f32;
    let mut squares = 0.0f32;
    for cube in range_stepped(UNIT_POS_Y as usize, end, comptime!(team.rows)) {
        let part = cube * comptime!(3 * width) + at;
        let (more, moved, wider) = together(
            count,
            mean,
            squares,
            parts[part],
            parts[part + width],
            parts[part + comptime!(2 * width)],
        );
        count = more;
        mean = moved;
        squares = wider;
    }
    of_cube(count, mean, squares, &mut scratch, team);
    if UNIT_POS_Y == 0 && at < width {
        let own = UNIT_POS as usize;
        let count = scratch[own];
        let mean = scratch[comptime!(team.threads()) + own];
        let squares = scratch[comptime!(2 * team.threads()) + own];
        let variance = squares / count;
        let unbiased = squares / (count - 1.0f32).max(1.0f32);
        moments[at] = mean;
        moments[width + at] = variance;
        let known = !(mean.is_nan() || mean.is_inf() || variance.is_nan() || variance.is_inf());
        let keep = 1.0f32 - momentum;
        let (old_mean, old_var) = (running_mean[at], running_var[at]);
        new_mean[at] = select(known, old_mean * keep + mean * momentum, old_mean);
        new_var[at] = select(known, old_var * keep + unbiased * momentum, old_var);
    }
}

/// A column's own numbers.
#[derive(CubeType)]
struct Column {
    mean: f32,
    /// One over the deviation.
    sharpness: f32,
    /// The factor on a distance from the mean.
    scale: f32,
    shift: f32,
}

/// Those of a column, of zeros where the thread has none.
#[cube]
fn numbers_of(
    moments: &[f32],
    gamma: &[f32],
    beta: &[f32],
    at: usize,
    epsilon: f32,
    #[comptime] width: usize,
) -> Column {
    let safe = select::<usize>(at < width, at, 0usize);
    let sharpness = 1.0f32 / (moments[width + safe] + epsilon).sqrt();
    Column { mean: moments[safe], sharpness, scale: sharpness * gamma[safe], shift: beta[safe] }
}

/// A number after the normalisation, before the rectifier.
#[cube]
fn normal(value: f32, column: &Column) -> f32 {
    (value - column.mean) * column.scale + column.shift
}

/// `(x - mean) / deviation · gamma + beta`, and no less than zero if `rectify`.
///
/// # Shapes
/// - x, y: `[rows, width]`
/// - moments: mean and variance, `[2, width]`
/// - gamma, beta: `[width]`
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a kernel has one argument for each buffer")]
pub(super) fn apply<F: Float>(
    x: &[F],
    moments: &[f32],
    gamma: &[f32],
    beta: &[f32],
    y: &mut [F],
    rows: u32,
    epsilon: f32,
    #[comptime] rectify: bool,
    #[comptime] width: usize,
    #[comptime] team: Team,
    #[define(F)] _dtype: ElemType,
) {
    let at = column(team);
    let own = numbers_of(moments, gamma, beta, at, epsilon, width);
    let end = select::<usize>(at < width, rows as usize, 0usize);
    for row in range_stepped(first_row(team), end, stride(team)) {
        let place = row * width + at;
        let mut value = normal(f32::cast_from(x[place]), &own);
        if comptime!(rectify) {
            // Not `max`, which loses NaN.
            value = select(value < 0.0f32, 0.0f32, value);
        }
        y[place] = F::cast_from(value);
    }
}

/// The gradient of a number after the normalisation: none where the rectifier cut it off.
#[cube]
fn passed(d: f32, value: f32, column: &Column, #[comptime] rectify: bool) -> f32 {
    let mut result = d;
    if comptime!(rectify) {
        result = select(normal(value, column) <= 0.0f32, 0.0f32, d);
    }
    result
}

/// What the rows of each cube add to the gradients of scale and shift.
///
/// # Shapes
/// - d, x: `[rows, width]`; moments, gamma and beta as in `apply`
/// - parts: of `d · n` and of `d`, with `n` the number normalised, `[cubes, 2, width]`
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a kernel has one argument for each buffer")]
pub(super) fn gradient_sums<F: Float>(
    d: &[F],
    x: &[F],
    moments: &[f32],
    gamma: &[f32],
    beta: &[f32],
    parts: &mut [f32],
    rows: u32,
    epsilon: f32,
    #[comptime] rectify: bool,
    #[comptime] width: usize,
    #[comptime] team: Team,
    #[define(F)] _dtype: ElemType,
) {
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(2 * team.threads()));
    let at = column(team);
    let own = numbers_of(moments, gamma, beta, at, epsilon, width);
    let end = select::<usize>(at < width, rows as usize, 0usize);
    let mut weighted = 0.0f32;
    let mut plain = 0.0f32;
    for row in range_stepped(first_row(team), end, stride(team)) {
        let value = f32::cast_from(x[row * width + at]);
        let d = passed(f32::cast_from(d[row * width + at]), value, &own, rectify);
        weighted += d * ((value - own.mean) * own.sharpness);
        plain += d;
    }
    add_up(weighted, plain, &mut scratch, team);
    if UNIT_POS_Y == 0 && at < width {
        let part = CUBE_POS_Y as usize * comptime!(2 * width) + at;
        parts[part] = scratch[UNIT_POS as usize];
        parts[part + width] = scratch[comptime!(team.threads()) + UNIT_POS as usize];
    }
}

/// Leaves the sums of a column's two numbers in `scratch`, in the places of the threads of the first row
/// of the cube. All threads must get here.
#[cube]
fn add_up(first: f32, second: f32, scratch: &mut Shared<[f32]>, #[comptime] team: Team) {
    let threads = comptime!(team.threads());
    let at = UNIT_POS as usize;
    scratch[at] = first;
    scratch[threads + at] = second;
    add_down(scratch, 2usize, team);
}

/// Adds up each of the numbers that the threads of a cube have left in `scratch`, `[numbers, threads]`, over the rows of the
/// cube: the sums are in the places of the threads of its first row. All threads must get here.
#[cube]
pub(super) fn add_down(
    scratch: &mut Shared<[f32]>,
    #[comptime] numbers: usize,
    #[comptime] team: Team,
) {
    let at = UNIT_POS as usize;
    sync_cube();
    #[unroll]
    for level in 0..comptime!(team.rows.ilog2() as usize) {
        let half = comptime!(team.rows >> (level + 1));
        if (UNIT_POS_Y as usize) < half {
            let below = at + comptime!(half * team.columns);
            #[unroll]
            for number in 0..numbers {
                let from = comptime!(number * team.threads());
                let other = scratch[from + below];
                scratch[from + at] += other;
            }
        }
        sync_cube();
    }
}

/// Adds up what cubes have left: the gradients of scale and shift.
///
/// # Shapes
/// - parts: `[cubes, 2, width]`; moments as in `apply`
/// - known: the moments, then the sums, `[4, width]`, so that the next kernel binds one buffer less;
///   d_gamma and d_beta, the sums again: `[width]`
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a kernel has one argument for each buffer")]
pub(super) fn fold_columns(
    parts: &[f32],
    moments: &[f32],
    known: &mut [f32],
    d_gamma: &mut [f32],
    d_beta: &mut [f32],
    cubes: u32,
    #[comptime] width: usize,
    #[comptime] team: Team,
) {
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(2 * team.threads()));
    let at = column(team);
    let end = select::<usize>(at < width, cubes as usize, 0usize);
    let mut weighted = 0.0f32;
    let mut plain = 0.0f32;
    for cube in range_stepped(UNIT_POS_Y as usize, end, comptime!(team.rows)) {
        let part = cube * comptime!(2 * width) + at;
        weighted += parts[part];
        plain += parts[part + width];
    }
    add_up(weighted, plain, &mut scratch, team);
    if UNIT_POS_Y == 0 && at < width {
        let weighted = scratch[UNIT_POS as usize];
        let plain = scratch[comptime!(team.threads()) + UNIT_POS as usize];
        known[at] = moments[at];
        known[width + at] = moments[width + at];
        known[comptime!(2 * width) + at] = weighted;
        known[comptime!(3 * width) + at] = plain;
        d_gamma[at] = weighted;
        d_beta[at] = plain;
    }
}

/// The gradient of the input: `scale · (d - mean(d) - n · mean(d · n))`, or `scale · d` where mean and
/// deviation are not the batch's own.
///
/// # Shapes
/// - d, x, dx: `[rows, width]`; gamma and beta as in `apply`
/// - known: mean and variance, the sums of `d · n` and of `d`, `[4, width]`
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a kernel has one argument for each buffer")]
pub(super) fn back<F: Float>(
    d: &[F],
    x: &[F],
    known: &[f32],
    gamma: &[f32],
    beta: &[f32],
    dx: &mut [F],
    rows: u32,
    epsilon: f32,
    #[comptime] from_batch: bool,
    #[comptime] rectify: bool,
    #[comptime] width: usize,
    #[comptime] team: Team,
    #[define(F)] _dtype: ElemType,
) {
    let at = column(team);
    let own = numbers_of(known, gamma, beta, at, epsilon, width);
    let safe = select::<usize>(at < width, at, 0usize);
    let end = select::<usize>(at < width, rows as usize, 0usize);
    let mut weighted = 0.0f32;
    let mut plain = 0.0f32;
    if comptime!(from_batch) {
        weighted = known[comptime!(2 * width) + safe] / rows as f32;
        plain = known[comptime!(3 * width) + safe] / rows as f32;
    }
    for row in range_stepped(first_row(team), end, stride(team)) {
        let place = row * width + at;
        let value = f32::cast_from(x[place]);
        let d = passed(f32::cast_from(d[place]), value, &own, rectify);
        let n = (value - own.mean) * own.sharpness;
        dx[place] = F::cast_from((d - plain - n * weighted) * own.scale);
    }
}
