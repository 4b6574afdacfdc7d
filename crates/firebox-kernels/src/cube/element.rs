//! The kernel of losses of single numbers: squared error, Huber's, and the cross-entropy of labels that do
//! not exclude each other. The formulas are those of the CPU (`cpu::loss`).

use burn_cubecl::cubecl::{self, prelude::*};

use super::math::ln_one_plus;
use super::team::sum_of_team;

/// Which loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Formula {
    /// `(x - t)²`
    Squared,
    /// `(x - t)² / 2` near zero, linear from a distance on.
    Huber,
    /// Logistic function and cross-entropy, with a focal factor if so.
    Binary {
        focused: bool,
        /// Whether targets of 1 have weights by label.
        positive: bool,
    },
}

/// What has weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WeightsOf {
    Nothing,
    Numbers,
    Rows,
}

/// What a loss is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ElementKind {
    pub(crate) formula: Formula,
    pub(crate) weights: WeightsOf,
    /// Whether the gradient is written.
    pub(crate) keep: bool,
}

impl ElementKind {
    fn focused(self) -> bool {
        matches!(self.formula, Formula::Binary { focused: true, .. })
    }

    fn positive(self) -> bool {
        matches!(self.formula, Formula::Binary { positive: true, .. })
    }

    fn binary(self) -> bool {
        matches!(self.formula, Formula::Binary { .. })
    }
}

/// `-(t' (1-p)^γ ln p + (1 - t) p^γ ln(1-p))` and its slope in `x`, with `p = σ(x)` and `t'` the target with
/// its weight.
#[cube]
fn binary(x: f32, target: f32, own: f32, focal: f32, #[comptime] focused: bool) -> (f32, f32) {
    // What is below e^-104 is none in f32, and of infinity devices may know no exponential.
    let tail = (-x.abs()).max(-104.0f32).exp();
    let ln_one = ln_one_plus(tail);
    let minus_ln_p = (-x).max(0.0f32) + ln_one;
    let minus_ln_q = x.max(0.0f32) + ln_one;
    // p and 1 - p, each from the side that loses no digits.
    let above = 1.0f32 / (1.0f32 + tail);
    let below = tail / (1.0f32 + tail);
    let p = select(x >= 0.0f32, above, below);
    let q = select(x >= 0.0f32, below, above);
    let mut yes = minus_ln_p;
    let mut no = minus_ln_q;
    let mut yes_slope = -q;
    let mut no_slope = p;
    if comptime!(focused) {
        let factor = (-focal * minus_ln_q).max(-104.0f32).exp();
        yes_slope = -factor * (focal * p * minus_ln_p + q);
        yes = factor * minus_ln_p;
        let factor = (-focal * minus_ln_p).max(-104.0f32).exp();
        no_slope = factor * (focal * q * minus_ln_q + p);
        no = factor * minus_ln_q;
    }
    let other = 1.0f32 - target;
    let value = own * yes + other * no;
    let slope = own * yes_slope + other * no_slope;
    // The largest of NaN and a number may be the number.
    (select(x.is_nan(), x, value), select(x.is_nan(), x, slope))
}

/// The losses of all numbers by their weights, summed by each cube, and the gradient of their sum. What has no
/// weight is not read. `setting` is Huber's distance or the focal exponent.
///
/// # Shapes
/// - predictions, targets, gradient: `[count]`, in rows of `width`; losses: `[cubes]`
/// - weights: `[count]` or `[count / width]`; positive: `[width]`; not read unless so compiled
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a kernel has one argument for each buffer")]
pub(super) fn elements(
    predictions: &[f32],
    targets: &[f32],
    weights: &[f32],
    positive: &[f32],
    gradient: &mut [f32],
    losses: &mut [f32],
    count: u32,
    width: u32,
    share: f32,
    setting: f32,
    #[comptime] kind: ElementKind,
    #[comptime] threads: usize,
) {
    let mut scratch = Shared::<[f32]>::new_slice(threads);
    let first = CUBE_POS_X * CUBE_DIM + UNIT_POS;
    let stride = CUBE_COUNT_X * CUBE_DIM;
    let mut sum = 0.0f32;
    for at in range_stepped(first as usize, count as usize, stride as usize) {
        let mut weight = 1.0f32;
        if comptime!(kind.weights == WeightsOf::Numbers) {
            weight = weights[at];
        }
        if comptime!(kind.weights == WeightsOf::Rows) {
            weight = weights[at / width as usize];
        }
        let mut slope = 0.0f32;
        if weight != 0.0f32 {
            // A share of the mean, before what may be large.
            let weight = weight * share;
            let (x, target) = (predictions[at], targets[at]);
            if comptime!(kind.binary()) {
                let mut own = target;
                if comptime!(kind.positive()) {
                    own = target * positive[at % width as usize];
                }
                let (value, of) = binary(x, target, own, setting, comptime!(kind.focused()));
                sum += weight * value;
                slope = weight * of;
            } else {
                let distance = x - target;
                if comptime!(kind.formula == Formula::Huber) {
                    // By comparisons, which leave NaN as it is.
                    let cut = select(distance > setting, setting, distance);
                    let cut = select(cut < -setting, -setting, cut);
                    // δ·(|d| − δ/2) is d·c − c²/2 with c the distance cut to δ, and d²/2 is the same.
                    slope = weight * cut;
                    sum += slope * (distance - 0.5f32 * cut);
                } else {
                    slope = weight * 2.0f32 * distance;
                    sum += weight * distance * distance;
                }
            }
        }
        if comptime!(kind.keep) {
            gradient[at] = slope;
        }
    }
    let all = sum_of_team(sum, &mut scratch, threads);
    if UNIT_POS == 0 {
        losses[CUBE_POS_X as usize] = all;
    }
}
