//! What happens to the scores of one query, `[keys]`: terms of distances, softmax, and its gradient.

use std::f32::consts::LOG2_E;

use super::super::super::BLOCK;
use super::super::super::compute::Compute;
use super::super::super::kernels::dispatch;
use super::super::super::lanes::Lanes;
use super::super::super::math::exp2;
use super::super::super::simd::Simd;

/// That all places are below `count`.
#[inline(always)]
fn check(places: &[u32], count: usize) {
    let last = places.iter().copied().fold(0, u32::max);
    assert!(places.is_empty() || (last as usize) < count, "place {last} of {count}");
}

dispatch!(
    /// Adds to the score of each key the number at its place.
    pub(super) fn add_from_row = picked(from: &[f32], places: &[u32], scores: &mut [f32])
);

/// # Safety
/// That of [`Simd`], whose type only names the instructions that the loop may be compiled to.
#[inline(always)]
unsafe fn picked<S: Simd>(from: &[f32], places: &[u32], scores: &mut [f32]) {
    check(places, from.len());
    for (score, place) in scores.iter_mut().zip(places) {
        // SAFETY: all places are within `from`.
        *score += unsafe { *from.get_unchecked(*place as usize) };
    }
}

dispatch!(
    /// Adds to the score of each key the number at its place in the key's row of `from`, `[keys, width]`.
    pub(super) fn add_from_rows = picked_of_rows(
        from: &[f32],
        width: usize,
        places: &[u32],
        scores: &mut [f32]
    )
);

/// # Safety
/// As for [`picked`].
#[inline(always)]
unsafe fn picked_of_rows<S: Simd>(from: &[f32], width: usize, places: &[u32], scores: &mut [f32]) {
    check(places, width);
    assert!(from.len() >= places.len() * width, "{} rows of {width}", places.len());
    for (key, (score, place)) in scores.iter_mut().zip(places).enumerate() {
        // SAFETY: all places are within their rows, which are there.
        *score += unsafe { *from.get_unchecked(key * width + *place as usize) };
    }
}

dispatch!(
    /// The gradient of [`add_from_row`]: adds that of each score to the number at its place.
    pub(super) fn add_to_row = returned(d_scores: &[f32], places: &[u32], to: &mut [f32])
);

/// # Safety
/// As for [`picked`].
#[inline(always)]
unsafe fn returned<S: Simd>(d_scores: &[f32], places: &[u32], to: &mut [f32]) {
    check(places, to.len());
    for (d, place) in d_scores.iter().zip(places) {
        // SAFETY: all places are within `to`.
        unsafe { *to.get_unchecked_mut(*place as usize) += d };
    }
}

dispatch!(
    /// The gradient of [`add_from_rows`].
    pub(super) fn add_to_rows = returned_to_rows(
        d_scores: &[f32],
        width: usize,
        places: &[u32],
        to: &mut [f32]
    )
);

/// # Safety
/// As for [`picked`].
#[inline(always)]
unsafe fn returned_to_rows<S: Simd>(
    d_scores: &[f32],
    width: usize,
    places: &[u32],
    to: &mut [f32],
) {
    check(places, width);
    assert!(to.len() >= places.len() * width, "{} rows of {width}", places.len());
    for (key, (d, place)) in d_scores.iter().zip(places).enumerate() {
        // SAFETY: all places are within their rows, which are there.
        unsafe { *to.get_unchecked_mut(key * width + *place as usize) += d };
    }
}

dispatch!(
    /// Makes of the first `keys` scores, times `scale`, which is above 0, their exponentials over that of the largest one,
    /// and zeros of the others. `known` becomes the largest, in units of ln 2, and one over their sum. Where words are
    /// rounded, so are the exponentials before they are summed up: what values are weighed by is then 1 in all.
    pub(super) fn exponentials<C: Compute> = row_exponentials(
        keys: usize,
        scale: f32,
        scores: &mut [f32],
        known: &mut [f32; 2]
    )
);

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn row_exponentials<S: Lanes, C: Compute>(
    keys: usize,
    scale: f32,
    scores: &mut [f32],
    known: &mut [f32; 2],
) {
    assert!(scores.len().is_multiple_of(BLOCK), "{} scores", scores.len());
    scores[keys..].fill(f32::NEG_INFINITY);
    let mut lanes = [0.0; BLOCK];
    // SAFETY: the scores are whole blocks, and a vector ends within one.
    unsafe {
        let scale = S::splat(scale * LOG2_E);
        let mut max = S::splat(f32::NEG_INFINITY);
        for at in (0..scores.len()).step_by(S::LANES) {
            max = S::max(max, S::mul(S::load(scores.as_ptr().add(at)), scale));
        }
        S::store(lanes.as_mut_ptr(), max);
        let max = lanes[..S::LANES].iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for at in (0..scores.len()).step_by(S::LANES) {
            let score = S::mul(S::load(scores.as_ptr().add(at)), scale);
            let mut power = exp2::<S>(S::sub(score, S::splat(max)));
            if !C::VERBATIM {
                power = S::rounded(power);
            }
            S::store(scores.as_mut_ptr().add(at), power);
        }
        scores[keys..].fill(0.0);
        let mut sum = S::splat(0.0);
        for at in (0..scores.len()).step_by(S::LANES) {
            sum = S::add(sum, S::load(scores.as_ptr().add(at)));
        }
        S::store(lanes.as_mut_ptr(), sum);
        *known = [max, 1.0 / lanes[..S::LANES].iter().sum::<f32>()];
    }
}

/// What the forward pass and the gradient of the output say about a query.
#[derive(Clone, Copy)]
pub(super) struct Known {
    /// The largest score, in units of ln 2, and one over the sum of the exponentials.
    pub(super) normaliser: [f32; 2],
    /// Minus the product of the output and its gradient, as words have that.
    pub(super) dot: f32,
    /// What scores are multiplied by.
    pub(super) scale: f32,
}

dispatch!(
    /// From the first `keys` scores and the gradient `d` of the probabilities that are left of them, in their places, these
    /// probabilities and the gradient of the scores, and zeros after them. With `p` a probability and `f` its factor, which
    /// is 1 where there are none, the latter is `p · (f · d - Σ output · its gradient) · scale`.
    pub(super) fn gradient = row_gradient(
        keys: usize,
        known: Known,
        factors: Option<&[f32]>,
        scores: &mut [f32],
        d: &mut [f32]
    )
);

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn row_gradient<S: Simd>(
    keys: usize,
    known: Known,
    factors: Option<&[f32]>,
    scores: &mut [f32],
    d: &mut [f32],
) {
    let count = scores.len();
    assert!(count.is_multiple_of(BLOCK) && d.len() == count, "{count} scores");
    assert!(factors.is_none_or(|factors| factors.len() == count), "{count} factors");
    let [max, inverse] = known.normaliser;
    // SAFETY: all are whole blocks, and a vector ends within one.
    unsafe {
        let (max, inverse) = (S::splat(max), S::splat(inverse));
        let (dot, scale) = (S::splat(known.dot), S::splat(known.scale));
        let in_bits = S::splat(known.scale * LOG2_E);
        for at in (0..count).step_by(S::LANES) {
            let (to_scores, to_d) = (scores.as_mut_ptr().add(at), d.as_mut_ptr().add(at));
            let power = exp2::<S>(S::sub(S::mul(S::load(to_scores), in_bits), max));
            let p = S::mul(power, inverse);
            let factor = match factors {
                Some(factors) => S::load(factors.as_ptr().add(at)),
                None => S::splat(1.0),
            };
            let slope = S::mul(p, S::fma(factor, S::load(to_d), dot));
            S::store(to_scores, S::mul(p, factor));
            S::store(to_d, S::mul(slope, scale));
        }
    }
    scores[keys..].fill(0.0);
    d[keys..].fill(0.0);
}
