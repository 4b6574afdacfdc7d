//! The kernels of an optimizer step: the norm of all gradients, the numbers of a step from what the
//! device holds, and the sweep over weights and moments; and that of running sums and means.
//!
//! Each launch takes several tensors. A cube works on one of them, strided; which one, it finds from
//! its place among the cubes of all. The branches differ between cubes and never within one.

use burn_cubecl::cubecl::{self, prelude::*};

use super::math::one_minus_exp;
use super::team::sum_of_team;

/// Numbers of a parameter in a step, in the order of [`Column`].
pub(crate) const COLUMNS: usize = 10;

/// The numbers of a parameter's step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    /// Factor on the gradient.
    Factor,
    /// Largest magnitude after that.
    Limit,
    /// What decay leaves of a weight.
    Keep,
    /// `1 - β₁`
    First,
    /// `β₂`
    Beta,
    /// `1 - β₂`
    Rest,
    /// `√(1 - β₂ᵗ)`
    Correction,
    /// Added to the root of the second moment.
    Epsilon,
    /// `lr / (1 - β₁ᵗ)`
    StepSize,
    /// 1 if the update is applied; 0 if nothing changes.
    Applied,
}

/// Numbers of a parameter in a step of gradient descent, in the order of [`Descent`].
pub(crate) const DESCENT_COLUMNS: usize = 7;

/// The numbers of a parameter's step of gradient descent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Descent {
    /// Factor on the gradient.
    Factor,
    /// Largest magnitude after that.
    Limit,
    /// Share of the weight that is added to its gradient.
    Decay,
    /// What is kept of the momentum.
    Momentum,
    /// Share of the gradient that the momentum takes.
    Take,
    /// Learning rate.
    Rate,
    /// 1 if the update is applied; 0 if nothing changes.
    Applied,
}

/// The first cube and the last but one of tensor `i`, as far as they are known when the kernel is
/// compiled; whether the cube in hand is among them.
#[cube]
pub(super) fn is_of(ends: &Sequence<u32>, #[comptime] i: usize) -> bool {
    let cube = CUBE_POS_X;
    if comptime!(i == 0) {
        cube < ends[0]
    } else {
        cube >= ends[comptime!(i - 1)] && cube < ends[i]
    }
}

/// The first number of the thread in hand within tensor `i`, and how far it strides.
#[cube]
pub(super) fn strided(ends: &Sequence<u32>, #[comptime] i: usize) -> (usize, usize) {
    let begin = if comptime!(i == 0) { 0u32.runtime() } else { ends[comptime!(i - 1)] };
    let first = (CUBE_POS_X - begin) * CUBE_DIM + UNIT_POS;
    let stride = (ends[i] - begin) * CUBE_DIM;
    (first as usize, stride as usize)
}

/// The sum of the squares of what each cube reads, written to `sums` from `from` on. In f32, so that it is
/// infinite from a norm of 1.8e19 on: a step has one number for both, the norm by which gradients are clipped
/// and whether all are finite, and its square has to fit.
#[cube(launch_unchecked)]
pub(super) fn squares(
    gradients: &Sequence<Box<[f32]>>,
    sizes: &Sequence<u32>,
    ends: &Sequence<u32>,
    sums: &mut [f32],
    from: u32,
    #[comptime] threads: usize,
) {
    let mut scratch = Shared::<[f32]>::new_slice(threads);
    let mut sum = 0.0f32;
    #[unroll]
    for i in 0..gradients.len() {
        if is_of(ends, i) {
            let gradient = &gradients[i];
            let (first, stride) = strided(ends, i);
            for at in range_stepped(first, sizes[i] as usize, stride) {
                sum += gradient[at] * gradient[at];
            }
        }
    }
    let sum = sum_of_team(sum, &mut scratch, threads);
    if UNIT_POS == 0 {
        sums[(from + CUBE_POS_X) as usize] = sum;
    }
}

/// The sum of some numbers, by one cube.
#[cube(launch_unchecked)]
pub(super) fn total(numbers: &[f32], sum: &mut [f32], count: u32, #[comptime] threads: usize) {
    let mut scratch = Shared::<[f32]>::new_slice(threads);
    let mut own = 0.0f32;
    for at in range_stepped(UNIT_POS as usize, count as usize, threads) {
        own += numbers[at];
    }
    let all = sum_of_team(own, &mut scratch, threads);
    if UNIT_POS == 0 {
        sum[0] = all;
    }
}

/// The numbers of a step of which there may be several.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Lists {
    rates: u32,
    /// Updates before which the first rate counts.
    known: f32,
    losses: u32,
}

#[cube]
fn is_finite(number: f32) -> bool {
    !(number.is_nan() || number.is_inf())
}

/// The factor on all gradients, which takes the loss scale out and brings their norm to `norm` at most.
#[cube]
fn prepared(squared_norm: f32, loss_scale: f32, norm: f32) -> f32 {
    let unscale = 1.0f32 / loss_scale;
    let shrink = norm / (squared_norm.sqrt() * unscale + 1e-6f32);
    select(shrink < 1.0f32, unscale * shrink, unscale)
}

/// Whether the squared norm and all losses are finite.
#[cube]
fn applies(squared_norm: f32, losses: &[f32], count: u32) -> bool {
    let mut finite = is_finite(squared_norm);
    for at in range_stepped(0usize, count as usize, 1usize) {
        finite = finite && is_finite(losses[at]);
    }
    finite
}

/// The learning rate after so many updates.
#[cube]
fn rate_after(updates: f32, rates: &[f32], lists: &Lists) -> f32 {
    let at = u32::cast_from((updates - lists.known).max(0.0f32)).min(lists.rates - 1);
    rates[at as usize]
}

/// The numbers of a step for all parameters, from what the device holds; then counts the update.
/// One cube. `logarithms` are those of β₁ and β₂, `norm` is the largest norm of all gradients together
/// and `limit` the largest magnitude of each.
///
/// # Shapes
/// - learning_rates: `[rates]`; losses: `[losses]`
/// - loss_scale, squared_norm, updates: `[1]`
/// - constants: rate, weight decay and updates missed of each, `[parameters, 3]`
/// - numbers: `[parameters, COLUMNS]`
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a kernel has one argument for each buffer")]
pub(super) fn step_numbers(
    learning_rates: &[f32],
    loss_scale: &[f32],
    squared_norm: &[f32],
    losses: &[f32],
    updates: &mut [f32],
    constants: &[f32],
    numbers: &mut [f32],
    lists: Lists,
    parameters: u32,
    ln_first: f32,
    ln_second: f32,
    first: f32,
    beta: f32,
    rest: f32,
    epsilon: f32,
    norm: f32,
    limit: f32,
) {
    let squared = squared_norm[0];
    let before = updates[0];
    // All threads have read the count.
    sync_cube();
    let factor = prepared(squared, loss_scale[0], norm);
    let finite = applies(squared, losses, lists.losses);
    let learning_rate = rate_after(before, learning_rates, &lists);
    for parameter in range_stepped(UNIT_POS as usize, parameters as usize, CUBE_DIM as usize) {
        let rate = learning_rate * constants[parameter * 3];
        let decay = constants[parameter * 3 + 1];
        let count = (before + 1.0f32 - constants[parameter * 3 + 2]).max(1.0f32);
        let row = parameter * COLUMNS;
        numbers[row + comptime!(Column::Factor as usize)] = factor;
        numbers[row + comptime!(Column::Limit as usize)] = limit;
        numbers[row + comptime!(Column::Keep as usize)] = 1.0f32 - rate * decay;
        numbers[row + comptime!(Column::First as usize)] = first;
        numbers[row + comptime!(Column::Beta as usize)] = beta;
        numbers[row + comptime!(Column::Rest as usize)] = rest;
        numbers[row + comptime!(Column::Correction as usize)] =
            one_minus_exp(count * ln_second).sqrt();
        numbers[row + comptime!(Column::Epsilon as usize)] = epsilon;
        numbers[row + comptime!(Column::StepSize as usize)] =
            rate / one_minus_exp(count * ln_first);
        numbers[row + comptime!(Column::Applied as usize)] = select::<f32>(finite, 1.0f32, 0.0f32);
    }
    if UNIT_POS == 0 && finite {
        updates[0] = before + 1.0f32;
    }
}

/// The numbers of a step of gradient descent for all parameters, from what the device holds; then counts
/// the update. One cube. `take` is what a momentum takes of a gradient that is not its first.
///
/// # Shapes
/// As in `step_numbers`; numbers: `[parameters, DESCENT_COLUMNS]`
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a kernel has one argument for each buffer")]
pub(super) fn descent_numbers(
    learning_rates: &[f32],
    loss_scale: &[f32],
    squared_norm: &[f32],
    losses: &[f32],
    updates: &mut [f32],
    constants: &[f32],
    numbers: &mut [f32],
    lists: Lists,
    parameters: u32,
    momentum: f32,
    take: f32,
    norm: f32,
    limit: f32,
) {
    let squared = squared_norm[0];
    let before = updates[0];
    // All threads have read the count.
    sync_cube();
    let factor = prepared(squared, loss_scale[0], norm);
    let finite = applies(squared, losses, lists.losses);
    let learning_rate = rate_after(before, learning_rates, &lists);
    for parameter in range_stepped(UNIT_POS as usize, parameters as usize, CUBE_DIM as usize) {
        let count = before + 1.0f32 - constants[parameter * 3 + 2];
        let row = parameter * DESCENT_COLUMNS;
        numbers[row + comptime!(Descent::Factor as usize)] = factor;
        numbers[row + comptime!(Descent::Limit as usize)] = limit;
        numbers[row + comptime!(Descent::Decay as usize)] = constants[parameter * 3 + 1];
        numbers[row + comptime!(Descent::Momentum as usize)] = momentum;
        numbers[row + comptime!(Descent::Take as usize)] = select(count <= 1.0f32, 1.0f32, take);
        numbers[row + comptime!(Descent::Rate as usize)] = learning_rate * constants[parameter * 3];
        numbers[row + comptime!(Descent::Applied as usize)] = select::<f32>(finite, 1.0f32, 0.0f32);
    }
    if UNIT_POS == 0 && finite {
        updates[0] = before + 1.0f32;
    }
}

/// A loss scale and the steps without an overflow, each one number, after a step with gradients of this squared norm, as
/// `torch.amp.GradScaler` has them; one thread.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a kernel has one argument for each number")]
pub(super) fn rescale(
    scale: &mut [f32],
    good_steps: &mut [f32],
    squared_norm: &[f32],
    growth: f32,
    backoff: f32,
    interval: f32,
    floor: f32,
) {
    if UNIT_POS == 0 {
        let (before, finite) = (scale[0], is_finite(squared_norm[0]));
        let (good, grown) = (good_steps[0] + 1.0f32, before * growth);
        let rises = good == interval;
        let risen = select(rises && is_finite(grown), grown, before);
        scale[0] = select(finite, risen, (before * backoff).max(floor));
        good_steps[0] = select(finite && !rises, good, 0.0f32);
    }
}

/// Updates a tensor's weights and moments where they are, by its row of `numbers`.
#[cube]
#[allow(clippy::too_many_arguments, reason = "a parameter has four tensors")]
fn update(
    gradient: &[f32],
    weights: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
    numbers: &[f32],
    row: usize,
    begin: usize,
    stride: usize,
    size: u32,
) {
    let row = row * COLUMNS;
    if numbers[row + comptime!(Column::Applied as usize)] > 0.0f32 {
        let factor = numbers[row + comptime!(Column::Factor as usize)];
        let limit = numbers[row + comptime!(Column::Limit as usize)];
        let keep = numbers[row + comptime!(Column::Keep as usize)];
        let share = numbers[row + comptime!(Column::First as usize)];
        let beta = numbers[row + comptime!(Column::Beta as usize)];
        let rest = numbers[row + comptime!(Column::Rest as usize)];
        let correction = numbers[row + comptime!(Column::Correction as usize)];
        let epsilon = numbers[row + comptime!(Column::Epsilon as usize)];
        let step_size = numbers[row + comptime!(Column::StepSize as usize)];
        for at in range_stepped(begin, size as usize, stride) {
            let d = (gradient[at] * factor).min(limit).max(-limit);
            let m = first[at] + (d - first[at]) * share;
            let v = second[at] * beta + d * d * rest;
            first[at] = m;
            second[at] = v;
            let denominator = v.sqrt() / correction + epsilon;
            weights[at] = weights[at] * keep - m / denominator * step_size;
        }
    }
}

/// Updates weights and moments; `numbers` has a row of [`COLUMNS`] for each tensor, from row `from` on.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a kernel has one argument for each buffer")]
pub(super) fn adamw(
    gradients: &Sequence<Box<[f32]>>,
    weights: &mut Sequence<Box<[f32]>>,
    first: &mut Sequence<Box<[f32]>>,
    second: &mut Sequence<Box<[f32]>>,
    sizes: &Sequence<u32>,
    ends: &Sequence<u32>,
    numbers: &[f32],
    from: u32,
) {
    #[unroll]
    for i in 0..gradients.len() {
        if is_of(ends, i) {
            let (begin, stride) = strided(ends, i);
            update(
                &gradients[i],
                &mut weights[i],
                &mut first[i],
                &mut second[i],
                numbers,
                from as usize + i,
                begin,
                stride,
                sizes[i],
            );
        }
    }
}

/// Steps of gradient descent without momentum; `numbers` has a row of [`DESCENT_COLUMNS`] for each tensor, from
/// row `from` on.
#[cube(launch_unchecked)]
pub(super) fn descend(
    gradients: &Sequence<Box<[f32]>>,
    weights: &mut Sequence<Box<[f32]>>,
    sizes: &Sequence<u32>,
    ends: &Sequence<u32>,
    numbers: &[f32],
    from: u32,
) {
    #[unroll]
    for i in 0..gradients.len() {
        if is_of(ends, i) {
            let (begin, stride) = strided(ends, i);
            let row = (from as usize + i) * DESCENT_COLUMNS;
            let (gradient, weights) = (&gradients[i], &mut weights[i]);
            if numbers[row + comptime!(Descent::Applied as usize)] > 0.0f32 {
                let rate = numbers[row + comptime!(Descent::Rate as usize)];
                for at in range_stepped(begin, sizes[i] as usize, stride) {
                    let weight = weights[at];
                    weights[at] = weight - decayed(gradient[at], weight, numbers, row) * rate;
                }
            }
        }
    }
}

/// A gradient with its factor, limit and decay.
#[cube]
fn decayed(gradient: f32, weight: f32, numbers: &[f32], row: usize) -> f32 {
    let factor = numbers[row + comptime!(Descent::Factor as usize)];
    let limit = numbers[row + comptime!(Descent::Limit as usize)];
    let decay = numbers[row + comptime!(Descent::Decay as usize)];
    (gradient * factor).min(limit).max(-limit) + weight * decay
}

/// The same with momentum, that of Nesterov or the plain one.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a kernel has one argument for each buffer")]
pub(super) fn descend_with_momentum(
    gradients: &Sequence<Box<[f32]>>,
    weights: &mut Sequence<Box<[f32]>>,
    momenta: &mut Sequence<Box<[f32]>>,
    sizes: &Sequence<u32>,
    ends: &Sequence<u32>,
    numbers: &[f32],
    from: u32,
    #[comptime] nesterov: bool,
) {
    #[unroll]
    for i in 0..gradients.len() {
        if is_of(ends, i) {
            let (begin, stride) = strided(ends, i);
            let row = (from as usize + i) * DESCENT_COLUMNS;
            let (gradient, weights) = (&gradients[i], &mut weights[i]);
            let momenta = &mut momenta[i];
            if numbers[row + comptime!(Descent::Applied as usize)] > 0.0f32 {
                let momentum = numbers[row + comptime!(Descent::Momentum as usize)];
                let take = numbers[row + comptime!(Descent::Take as usize)];
                let rate = numbers[row + comptime!(Descent::Rate as usize)];
                for at in range_stepped(begin, sizes[i] as usize, stride) {
                    let weight = weights[at];
                    let d = decayed(gradient[at], weight, numbers, row);
                    let after = momenta[at] * momentum + d * take;
                    momenta[at] = after;
                    let mut direction = after;
                    if comptime!(nesterov) {
                        direction = d + after * momentum;
                    }
                    weights[at] = weight - direction * rate;
                }
            }
        }
    }
}

/// How the numbers of one tensor change by those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Combination {
    /// `to + from · factor`
    Sum,
    /// `to + (from − to) · factor`
    Mean,
    /// The same, and `to` as it is where the factor is 0, whatever `from` holds.
    HeldMean,
}

/// Changes tensors where they are by others of their sizes and a `factor`, `[1]`.
#[cube(launch_unchecked)]
pub(super) fn combine<F: Float>(
    from: &Sequence<Box<[F]>>,
    to: &mut Sequence<Box<[F]>>,
    sizes: &Sequence<u32>,
    ends: &Sequence<u32>,
    factor: &[f32],
    #[comptime] combination: Combination,
    #[define(F)] _dtype: ElemType,
) {
    let factor = factor[0];
    #[unroll]
    for i in 0..from.len() {
        if is_of(ends, i) {
            let (begin, stride) = strided(ends, i);
            let (from, to) = (&from[i], &mut to[i]);
            // Some runtimes deny `!=` of NaN.
            let held = match comptime!(combination == Combination::HeldMean) {
                true => factor == 0.0f32,
                false => false.runtime(),
            };
            if !held {
                for at in range_stepped(begin, sizes[i] as usize, stride) {
                    let before = f32::cast_from(to[at]);
                    let mut by = f32::cast_from(from[at]);
                    if comptime!(combination != Combination::Sum) {
                        by -= before;
                    }
                    to[at] = F::cast_from(before + by * factor);
                }
            }
        }
    }
}
