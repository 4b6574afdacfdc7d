//! The kernel of softmax and cross-entropy: a team of threads takes a row of logits and leaves its
//! loss and its gradient.

use burn_cubecl::cubecl::{self, prelude::*};

use super::math::{ln_one_plus, one_minus_exp};
use super::team::{largest_of_team, sum_of_team};
use crate::cuts::Team;

/// What a cross-entropy is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    /// Whether classes have weights.
    pub(super) weighted: bool,
    /// Whether targets are smoothed.
    pub(super) smoothed: bool,
    /// Whether there is a focal factor.
    pub(super) focused: bool,
    /// Whether the gradient is written.
    pub(super) keep: bool,
}

#[cube]
fn weight_of(class_weights: &[f32], class: usize, #[comptime] weighted: bool) -> f32 {
    if comptime!(weighted) { class_weights[class] } else { 1.0f32.runtime() }
}

/// The losses of rows by their weights, and the gradient of their sum. The formulas are those of the
/// CPU (`cpu::loss`). Rows of weight 0 are not read.
///
/// # Shapes
/// - logits, gradient: `[rows, classes]`; targets, weights, losses: `[rows]`
/// - class_weights: `[classes]`, not read unless weighted
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a kernel has one argument for each buffer")]
pub(super) fn cross_entropy(
    logits: &[f32],
    targets: &[i32],
    weights: &[f32],
    class_weights: &[f32],
    gradient: &mut [f32],
    losses: &mut [f32],
    rows: u32,
    blocks: u32,
    classes: u32,
    smoothing: f32,
    focal: f32,
    #[comptime] kind: Kind,
    #[comptime] team: Team,
) {
    let columns = comptime!(team.columns);
    let mut scratch = Shared::<[f32]>::new_slice(comptime!(team.threads()));
    let classes = classes as usize;
    let column = UNIT_POS_X as usize;
    let count = f32::cast_from(classes as u32);
    for block in range_stepped(CUBE_POS_X, blocks, CUBE_COUNT_X) {
        let row = block as usize * comptime!(team.rows) + UNIT_POS_Y as usize;
        let begin = row * classes;
        let mut weight = 0.0f32;
        let mut target = 0usize.runtime();
        if row < rows as usize {
            weight = weights[row];
            target = targets[row] as usize;
        }
        // A team without anything to read takes part in the sums.
        let end = select(weight > 0.0f32, classes, 0usize);
        let mut largest = f32::min_value();
        for at in range_stepped(column, end, columns) {
            let x = logits[begin + at];
            if x > largest {
                largest = x;
            }
        }
        let largest = largest_of_team(largest, &mut scratch, columns);
        // Without the target's own, which is added last, so that nothing is lost where it is alone.
        let mut total = 0.0f32;
        let mut spread = 0.0f32;
        let mut all = 0.0f32;
        for at in range_stepped(column, end, columns) {
            let distance = logits[begin + at] - largest;
            if at != target {
                total += distance.exp();
            }
            if comptime!(kind.smoothed) {
                let class_weight = weight_of(class_weights, at, kind.weighted);
                spread += class_weight * distance;
                all += class_weight;
            }
        }
        let others = sum_of_team(total, &mut scratch, columns);
        let mut slack = 0.0f32;
        if comptime!(kind.smoothed) {
            spread = sum_of_team(spread, &mut scratch, columns);
            all = sum_of_team(all, &mut scratch, columns);
        }
        let mut ln_p = 0.0f32;
        let mut total = 1.0f32;
        let mut own = 0.0f32;
        if weight > 0.0f32 {
            let distance = logits[begin + target] - largest;
            let e = distance.exp();
            total = others + e;
            // Where the target is the largest, its part of the total is one.
            let ln_total = select(distance == 0.0f32, ln_one_plus(others), total.ln());
            ln_p = distance - ln_total;
            own = (1.0f32 - smoothing) * weight_of(class_weights, target, kind.weighted);
            slack = spread - all * ln_total;
        }
        let mut value = -own * ln_p;
        let mut factor = own;
        if comptime!(kind.focused) {
            // 1 - p, with all its digits where p is near 1.
            let other = one_minus_exp(ln_p);
            let mut power = 0.0f32;
            let mut slope = 0.0f32;
            if other > 0.0f32 {
                power = (focal * other.ln()).exp();
                slope = focal * (power / other) * ln_p.exp() * ln_p;
            }
            // NaN compares with nothing.
            if other.is_nan() {
                power = other;
            }
            value *= power;
            factor = own * (power - slope);
        }
        let share = smoothing / count;
        if row < rows as usize && column == 0 {
            losses[row] = weight * (value - share * slack);
        }
        if comptime!(kind.keep) {
            let scale = weight * (factor + share * all) / total;
            let minus = weight * share;
            let last = select(row < rows as usize, classes, 0usize);
            for at in range_stepped(column, last, columns) {
                let mut slope = 0.0f32;
                if weight > 0.0f32 {
                    let class_weight = weight_of(class_weights, at, kind.weighted);
                    slope = (logits[begin + at] - largest).exp() * scale;
                    if at == target {
                        // From both terms at once, so that nothing is lost where p is near 1.
                        slope = weight * (share * all * ln_p.exp() - factor * one_minus_exp(ln_p));
                    }
                    slope -= minus * class_weight;
                }
                gradient[begin + at] = slope;
            }
        }
    }
}
