//! Losses of single numbers: of each prediction and its target by themselves.

use super::{CHUNK, over_chunks, rows_at_once};
use crate::cpu::kernels::dispatch;
use crate::cpu::simd::Simd;
use crate::cpu::{BLOCK, CpuKernels};

/// A loss of each number by itself.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Element<'a> {
    /// `(x - t)²`
    Squared,
    /// `(x - t)² / 2` where that is below `delta`, else `delta · (|x - t| - delta / 2)`
    Huber { delta: f32 },
    /// `-(w t ln σ(x) + (1 - t) ln σ(-x))`, times `(1 - p)^focal` with `p = σ(x)` where the target is
    /// 1 and `σ(-x)` where it is 0, mixed between.
    Binary { positive: Option<&'a [f32]>, focal: f64 },
}

/// The sum of the losses of all numbers by their weights. The predictions, `[rows, width]`, become
/// the gradient of that sum times `share`. What has no weight is not read.
///
/// `weights` has one for each row or for each number; all are 1 without.
pub(crate) fn elements(
    kernels: CpuKernels,
    (kind, share): (Element<'_>, f32),
    predictions: &mut [f32],
    targets: &[f32],
    width: usize,
    weights: Option<&[f32]>,
) -> f64 {
    let by_row = weights.is_some_and(|weights| weights.len() != targets.len());
    let by_place = matches!(kind, Element::Binary { positive: Some(_), .. });
    // Rows matter only to what is given by row or by place; else all are one.
    let (width, at_once) = match by_row || by_place {
        true => (width, rows_at_once(width)),
        false => (CHUNK, CHUNK),
    };
    over_chunks(predictions, at_once, |start, predictions| {
        let mut sum = 0.0;
        for (index, predictions) in predictions.chunks_mut(width).enumerate() {
            let places = start + index * width..start + index * width + predictions.len();
            let weights = match weights {
                None => Weights::All(1.0),
                Some(weights) if by_row => Weights::All(weights[places.start / width]),
                Some(weights) => Weights::Each(&weights[places.clone()]),
            };
            if matches!(weights, Weights::All(0.0)) {
                predictions.fill(0.0);
                continue;
            }
            let (targets, add) = (&targets[places], &mut sum);
            let by = match kind {
                Element::Binary { positive, focal } => {
                    let by = (weights, share);
                    *add += binary(predictions, targets, by, positive, focal);
                    continue;
                }
                Element::Squared => Distance { delta: f32::INFINITY, scale: 2.0, share },
                Element::Huber { delta } => Distance { delta, scale: 1.0, share },
            };
            distances(kernels, by, predictions, targets, weights, add);
        }
        sum
    })
}

/// The weights of a row.
#[derive(Clone, Copy)]
enum Weights<'a> {
    All(f32),
    Each(&'a [f32]),
}

/// What a distance is measured by.
#[derive(Clone, Copy)]
struct Distance {
    /// Beyond it, the loss is linear.
    delta: f32,
    /// What half a square is multiplied by.
    scale: f32,
    /// What the gradient is multiplied by beside.
    share: f32,
}

dispatch!(fn distances = distances_of(
    by: Distance,
    predictions: &mut [f32],
    targets: &[f32],
    weights: Weights<'_>,
    sum: &mut f64
));

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn distances_of<S: Simd>(
    Distance { delta, scale, share }: Distance,
    predictions: &mut [f32],
    targets: &[f32],
    weights: Weights<'_>,
    sum: &mut f64,
) {
    let all = match weights {
        Weights::All(weight) => [weight; BLOCK],
        Weights::Each(_) => [0.0; BLOCK],
    };
    let mut sums = [0.0f64; BLOCK];
    let chunks = predictions.chunks_mut(BLOCK).zip(targets.chunks(BLOCK)).enumerate();
    for (index, (predictions, targets)) in chunks {
        let weights = match weights {
            Weights::All(_) => &all[..targets.len()],
            Weights::Each(weights) => &weights[index * BLOCK..][..targets.len()],
        };
        let lanes = predictions.iter_mut().zip(targets).zip(weights).zip(&mut sums);
        for (((x, target), weight), sum) in lanes {
            let distance = if *weight == 0.0 { 0.0 } else { *x - target };
            // Cut without a panic at bounds that are not numbers, and with NaN as it is.
            let cut = if distance > delta { delta } else { distance };
            let cut = if cut < -delta { -delta } else { cut };
            // δ·(|d| − δ/2) is c·(d − c/2) with c the distance cut to δ. Where it was not cut that is c²/2, which an
            // infinite distance has, too: from itself it would be no number.
            let half = 0.5 * f64::from(cut);
            let other = if cut == distance { half } else { f64::from(distance) - half };
            *sum += f64::from(*weight) * f64::from(scale) * (f64::from(cut) * other);
            *x = *weight * scale * cut * share;
        }
    }
    *sum += sums.iter().sum::<f64>();
}

/// In f64, one number at a time: there are few of them in any model.
fn binary(
    predictions: &mut [f32],
    targets: &[f32],
    (weights, share): (Weights<'_>, f32),
    positive: Option<&[f32]>,
    focal: f64,
) -> f64 {
    let mut sum = 0.0;
    for (place, (x, target)) in predictions.iter_mut().zip(targets).enumerate() {
        let weight = match weights {
            Weights::All(weight) => weight,
            Weights::Each(weights) => weights[place],
        };
        if weight == 0.0 {
            *x = 0.0;
            continue;
        }
        let (weight, target) = (f64::from(weight), f64::from(*target));
        let own = positive.map_or(1.0, |positive| f64::from(positive[place])) * target;
        let logit = f64::from(*x);
        let (yes, yes_slope) = side(logit, focal);
        let (no, no_slope) = side(-logit, focal);
        sum += weight * (own * yes + (1.0 - target) * no);
        *x = (weight * (own * yes_slope - (1.0 - target) * no_slope)) as f32 * share;
    }
    sum
}

/// `-(1 - p)^γ ln p` with `p = σ(x)`, and its slope in `x`.
fn side(x: f64, focal: f64) -> (f64, f64) {
    let tail = (-x.abs()).exp();
    let minus_ln_p = (-x).max(0.0) + tail.ln_1p();
    let minus_ln_p = if x.is_nan() { x } else { minus_ln_p };
    // 1 - p = σ(-x), from the side that loses no digits.
    let other = if x >= 0.0 { tail / (1.0 + tail) } else { 1.0 / (1.0 + tail) };
    if focal == 0.0 {
        return (minus_ln_p, if x.is_nan() { x } else { -other });
    }
    let factor = other.powf(focal);
    // d/dx of (1-p)^γ is -γ (1-p)^γ p, and of -ln p it is -(1-p).
    let slope = -factor * (focal * (1.0 - other) * minus_ln_p + other);
    (factor * minus_ln_p, if x.is_nan() { x } else { slope })
}
