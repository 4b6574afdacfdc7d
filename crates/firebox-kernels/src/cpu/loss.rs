//! Losses of rows with their gradients, each in one pass: slices in, slices out.
//!
//! A loss is computed with the gradient of its sum in the place of its input, while that lies in
//! cache. Rows are summed in f64, by chunks of a fixed length in their order, so results are the same
//! to the bit on any number of threads.

mod element;

use rayon::prelude::*;

pub(crate) use self::element::{Element, elements};
use super::kernels::dispatch;
use super::math::exp;
use super::simd::Simd;
use super::{BLOCK, CpuKernels};

/// Numbers that a thread takes at once, at least a row.
const CHUNK: usize = 1 << 14;

/// Numbers below which one thread does all.
const THREADED: usize = 1 << 15;

/// Numbers whose exponentials are summed in f32 before the sum goes on in f64.
const PART: usize = 1024;

/// What one row of logits is measured by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// The class that it should be.
    pub(crate) class: u32,
    /// Its share in the mean; rows of zero are not read.
    pub(crate) weight: f64,
}

/// The settings of a cross-entropy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CrossEntropy<'a> {
    /// Weight of each class; all are 1 without.
    pub(crate) class_weights: Option<&'a [f32]>,
    /// Share of the target that is spread over all classes.
    pub(crate) smoothing: f64,
    /// Exponent of the focal factor; 0: none.
    pub(crate) focal: f64,
}

/// Sums a loss over chunks of `at_once` numbers, whose gradients take the place of what they are
/// made from. Each chunk comes with the place of its first number.
fn over_chunks(
    values: &mut [f32],
    at_once: usize,
    one: impl Fn(usize, &mut [f32]) -> f64 + Sync,
) -> f64 {
    if values.len() < THREADED {
        let chunks = values.chunks_mut(at_once).enumerate();
        return chunks.map(|(index, chunk)| one(index * at_once, chunk)).sum();
    }
    let chunks = values.par_chunks_mut(at_once).enumerate();
    let mut sums = vec![];
    chunks.map(|(index, chunk)| one(index * at_once, chunk)).collect_into_vec(&mut sums);
    sums.iter().sum()
}

/// Numbers of as many rows as a thread takes at once.
fn rows_at_once(width: usize) -> usize {
    (CHUNK / width).max(1) * width
}

/// The sum of the losses of all rows by their weights. Their logits, `[rows, classes]`, become the
/// gradient of that sum, if that is wanted, else any numbers.
pub(crate) fn cross_entropy(
    kernels: CpuKernels,
    config: CrossEntropy<'_>,
    (logits, wanted): (&mut [f32], bool),
    classes: usize,
    rows: &[Row],
) -> f64 {
    over_chunks(logits, rows_at_once(classes), |start, logits| {
        let mut sum = 0.0;
        let rows = &rows[start / classes..][..logits.len() / classes];
        cross_entropy_rows(kernels, config, (logits, wanted), rows, &mut sum);
        sum
    })
}

/// Rows of fewer classes than a vector has lanes whose exponentials are computed together.
const FEW: usize = 16;

dispatch!(fn cross_entropy_rows = cross_entropy_rows_of(
    config: CrossEntropy<'_>,
    logits: (&mut [f32], bool),
    rows: &[Row],
    sum: &mut f64
));

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn cross_entropy_rows_of<S: Simd>(
    config: CrossEntropy<'_>,
    (logits, wanted): (&mut [f32], bool),
    rows: &[Row],
    sum: &mut f64,
) {
    let classes = logits.len() / rows.len().max(1);
    let few = classes < S::LANES;
    let at_once = if few { FEW } else { 1 };
    for (logits, rows) in logits.chunks_mut(at_once * classes).zip(rows.chunks(at_once)) {
        let mut known = [Known::default(); FEW];
        for ((logits, row), known) in logits.chunks_exact_mut(classes).zip(rows).zip(&mut known) {
            if row.weight == 0.0 {
                logits.fill(0.0);
                continue;
            }
            *known = Known::of(config, logits, *row);
            if few {
                logits.iter_mut().for_each(|x| *x -= known.largest);
            }
        }
        if few {
            // SAFETY: the caller's promise is the same.
            unsafe { exponentials::<S>(logits, 0.0) };
        }
        for ((logits, row), known) in logits.chunks_exact_mut(classes).zip(rows).zip(&known) {
            if row.weight == 0.0 {
                logits.fill(0.0);
                continue;
            }
            // Beside the target's own, if that is the largest, f32 has no digits of small ones.
            if known.is_largest() {
                logits[row.class as usize] = if few { 0.0 } else { f32::NEG_INFINITY };
            }
            let total = match few {
                true => logits.iter().map(|e| f64::from(*e)).sum(),
                // SAFETY: the caller's promise is the same.
                false => unsafe { exponentials::<S>(logits, known.largest) },
            };
            cross_entropy_row(config, (logits, wanted), *row, (known, total), sum);
        }
    }
}

/// What is known of a row's logits before their exponentials take their place.
#[derive(Clone, Copy, Default)]
struct Known {
    largest: f32,
    /// The target's logit less the largest, as a difference of the two: beside a logit of 1e13, the logarithm of a sum
    /// is lost in f64, too.
    target: f64,
    /// With smoothing: the sum of the weights of all classes, and that of the logits less the largest by them.
    all: f64,
    spread: f64,
}

impl Known {
    #[inline(always)]
    fn of(config: CrossEntropy<'_>, logits: &[f32], row: Row) -> Self {
        let largest = largest(logits);
        let (all, spread) = match (config.smoothing > 0.0, config.class_weights) {
            (false, _) => (0.0, 0.0),
            (true, None) => (logits.len() as f64, weighted_sum(logits, largest, None)),
            (true, Some(weights)) => {
                (weighted_sum(weights, 0.0, None), weighted_sum(logits, largest, Some(weights)))
            }
        };
        let target = f64::from(logits[row.class as usize]) - f64::from(largest);
        Self { largest, target, all, spread }
    }

    /// Whether the target's logit is the largest, alone or beside others.
    #[inline(always)]
    fn is_largest(&self) -> bool {
        self.target == 0.0
    }
}

/// With `p` the softmax, `t` the class, `w` the weights of classes and `ε` the smoothing, the loss is
/// `-(1 - ε) w_t ln p_t - ε/C Σ w_c ln p_c`, or `-w_t (1 - p_t)^γ ln p_t`.
///
/// `logits` are their exponentials, whose sum is `total`, without the target's if that is 1 because its logit is the
/// largest.
#[inline(always)]
fn cross_entropy_row(
    config: CrossEntropy<'_>,
    (logits, wanted): (&mut [f32], bool),
    row: Row,
    (known, total): (&Known, f64),
    sum: &mut f64,
) {
    let CrossEntropy { class_weights, smoothing, focal } = config;
    let Known { target, all, spread, .. } = *known;
    let (class, count) = (row.class as usize, logits.len() as f64);
    let class_weight = class_weights.map_or(1.0, |weights| f64::from(weights[class]));
    // Less the largest logit, as the others; with all its digits where p is near 1.
    let (total, normaliser) = match known.is_largest() {
        true => (1.0 + total, total.ln_1p()),
        false => (total, total.ln()),
    };
    let ln_p = target - normaliser;
    let own = (1.0 - smoothing) * class_weight;
    let (value, factor) = match focal > 0.0 {
        false => (-own * ln_p, own),
        true => {
            // 1 - p, with all its digits where p is near 1.
            let other = -ln_p.exp_m1();
            let weight = other.powf(focal);
            let slope =
                if other > 0.0 { focal * (weight / other) * ln_p.exp() * ln_p } else { 0.0 };
            (-own * weight * ln_p, own * (weight - slope))
        }
    };
    let share = smoothing / count;
    let smooth = if smoothing > 0.0 { -share * (spread - all * normaliser) } else { 0.0 };
    *sum += row.weight * (value + smooth);
    if !wanted {
        return;
    }
    let scale = (row.weight * (factor + share * all) / total) as f32;
    let minus = (row.weight * share) as f32;
    match class_weights.filter(|_| smoothing > 0.0) {
        None => {
            for e in logits.iter_mut() {
                *e = *e * scale - minus;
            }
        }
        Some(weights) => {
            for (e, weight) in logits.iter_mut().zip(weights) {
                *e = *e * scale - minus * weight;
            }
        }
    }
    // From both terms at once, so that nothing is lost where p is near 1.
    let without = row.weight * (factor * ln_p.exp_m1() + share * all * ln_p.exp());
    let smoothed = f64::from(minus) * class_weights.map_or(1.0, |w| f64::from(w[class]));
    logits[class] = (without - smoothed) as f32;
}

/// The sum of some numbers less `origin` by their weights, in f64.
#[inline(always)]
fn weighted_sum(values: &[f32], origin: f32, weights: Option<&[f32]>) -> f64 {
    let (ones, mut sums) = ([1.0; BLOCK], [0.0f64; BLOCK]);
    let origin = f64::from(origin);
    for (index, values) in values.chunks(BLOCK).enumerate() {
        let weights = weights.map_or(ones.as_slice(), |weights| &weights[index * BLOCK..]);
        for ((sum, value), weight) in sums.iter_mut().zip(values).zip(weights) {
            *sum += (f64::from(*value) - origin) * f64::from(*weight);
        }
    }
    sums.iter().sum()
}

/// The largest of some numbers; NaN is passed over.
#[inline(always)]
fn largest(values: &[f32]) -> f32 {
    let larger = |a: f32, b: &f32| if *b > a { *b } else { a };
    let (chunks, rest) = values.as_chunks::<{ 2 * BLOCK }>();
    let of_rest = rest.iter().fold(f32::NEG_INFINITY, larger);
    // Rows of few classes have nothing but a rest.
    if chunks.is_empty() {
        return of_rest;
    }
    let mut lanes = [f32::NEG_INFINITY; 2 * BLOCK];
    for chunk in chunks {
        for lane in 0..2 * BLOCK {
            lanes[lane] = if chunk[lane] > lanes[lane] { chunk[lane] } else { lanes[lane] };
        }
    }
    lanes.iter().fold(of_rest, larger)
}

/// `e^(x - largest)` in the place of each `x`, and their sum.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn exponentials<S: Simd>(values: &mut [f32], largest: f32) -> f64 {
    let mut total = 0.0;
    for part in values.chunks_mut(PART) {
        let whole = part.len() - part.len() % S::LANES;
        // SAFETY: every vector ends at or before `whole`; the last one is in an array of a block.
        unsafe {
            let (shift, mut sum) = (S::splat(largest), S::splat(0.0));
            for at in (0..whole).step_by(S::LANES) {
                let at = part.as_mut_ptr().add(at);
                let e = exp::<S>(S::sub(S::load(at), shift));
                S::store(at, e);
                sum = S::add(sum, e);
            }
            if whole > 0 {
                let mut lanes = [0.0; BLOCK];
                S::store(lanes.as_mut_ptr(), sum);
                total += lanes[..S::LANES].iter().map(|x| f64::from(*x)).sum::<f64>();
            }
            let rest = &mut part[whole..];
            let mut last = [0.0; BLOCK];
            last[..rest.len()].copy_from_slice(rest);
            let e = exp::<S>(S::sub(S::load(last.as_ptr()), shift));
            S::store(last.as_mut_ptr(), e);
            rest.copy_from_slice(&last[..rest.len()]);
            total += rest.iter().map(|x| f64::from(*x)).sum::<f64>();
        }
    }
    total
}

/// Multiplies all numbers.
pub(crate) fn scale(values: &mut [f32], factor: f32) {
    if factor == 1.0 {
        return;
    }
    let one = |chunk: &mut [f32]| chunk.iter_mut().for_each(|value| *value *= factor);
    match values.len() < THREADED {
        true => one(values),
        false => values.par_chunks_mut(CHUNK).for_each(one),
    }
}
