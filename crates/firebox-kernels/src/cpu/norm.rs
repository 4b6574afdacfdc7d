//! Layer normalisation of rows, forward and backward, each in one pass over memory.

use std::mem::MaybeUninit;

use rayon::prelude::*;

use super::kernels::dispatch;
use super::simd::Simd;
use super::{CpuKernels, written};

/// Rows that a thread takes at once. The gradients of scale and shift are summed over that many
/// rows first and then over these sums in their order, whatever the number of threads.
const ROWS: usize = 512;

/// Numbers of rows that stay in the first cache.
const NEAR: usize = 4096;

/// What the forward pass keeps of each row: its mean and one over its standard deviation.
pub(crate) type Moments = Vec<[f32; 2]>;

/// `y = (x - mean) / sqrt(variance + epsilon) * gamma + beta` for rows as wide as `gamma`.
pub(crate) fn layer_norm(
    kernels: CpuKernels,
    x: &[f32],
    gamma: &[f32],
    beta: Option<&[f32]>,
    epsilon: f32,
) -> (Vec<f32>, Moments) {
    let width = gamma.len();
    assert!(is_of_rows(x, width, beta), "numbers of whole rows");
    let mut moments = vec![[0.0; 2]; x.len() / width];
    let write = |y: &mut [MaybeUninit<f32>]| {
        y.par_chunks_mut(ROWS * width)
            .zip(x.par_chunks(ROWS * width))
            .zip(moments.par_chunks_mut(ROWS))
            .for_each(|((y, x), moments)| forward(kernels, x, gamma, beta, epsilon, y, moments));
    };
    // SAFETY: every row is written from its first number to its last.
    let (y, ()) = unsafe { written(x.len(), write) };
    (y, moments)
}

/// Whether `x` has whole rows of this width, and a shift as many numbers.
fn is_of_rows(x: &[f32], width: usize, beta: Option<&[f32]>) -> bool {
    x.len().is_multiple_of(width) && beta.is_none_or(|beta| beta.len() == width)
}

/// [`layer_norm`] in the place of `x`, without moments: there is no gradient of it.
pub(crate) fn layer_norm_in_place(
    kernels: CpuKernels,
    x: &mut [f32],
    gamma: &[f32],
    beta: Option<&[f32]>,
    epsilon: f32,
) {
    let width = gamma.len();
    assert!(is_of_rows(x, width, beta), "numbers of whole rows");
    let near = (NEAR / width).max(1) * width;
    x.par_chunks_mut(ROWS * width).for_each(|x| {
        let mut before = vec![0.0; near.min(x.len())];
        for y in x.chunks_mut(near) {
            let before = &mut before[..y.len()];
            before.copy_from_slice(y);
            norm_rows(kernels, before, gamma, beta, epsilon, y);
        }
    });
}

/// [`layer_norm`] of some rows by the calling thread, into `y`.
pub(super) fn norm_rows(
    kernels: CpuKernels,
    x: &[f32],
    gamma: &[f32],
    beta: Option<&[f32]>,
    epsilon: f32,
    y: &mut [f32],
) {
    assert!(x.len() == y.len() && is_of_rows(x, gamma.len(), beta), "a number for each");
    let mut moments = vec![[0.0; 2]; x.len() / gamma.len()];
    // SAFETY: the same memory, into which nothing but numbers is written.
    let y = unsafe { std::slice::from_raw_parts_mut(y.as_mut_ptr().cast(), y.len()) };
    forward(kernels, x, gamma, beta, epsilon, y, &mut moments);
}

dispatch!(fn forward = forward_rows(
    x: &[f32],
    gamma: &[f32],
    beta: Option<&[f32]>,
    epsilon: f32,
    y: &mut [MaybeUninit<f32>],
    moments: &mut [[f32; 2]]
));

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn forward_rows<S: Simd>(
    x: &[f32],
    gamma: &[f32],
    beta: Option<&[f32]>,
    epsilon: f32,
    y: &mut [MaybeUninit<f32>],
    moments: &mut [[f32; 2]],
) {
    let width = gamma.len();
    let whole = width - width % S::LANES;
    let rows = x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(moments);
    for ((x, y), moments) in rows {
        // SAFETY: every vector ends at or before `whole`, which is within all rows.
        unsafe {
            let mut sum = S::splat(0.0);
            for at in (0..whole).step_by(S::LANES) {
                sum = S::add(sum, S::load(x.as_ptr().add(at)));
            }
            let mean = (total::<S>(sum) + x[whole..].iter().sum::<f32>()) / width as f32;
            let (middle, mut squares, mut rest) = (S::splat(mean), S::splat(0.0), S::splat(0.0));
            for at in (0..whole).step_by(S::LANES) {
                let centred = S::sub(S::load(x.as_ptr().add(at)), middle);
                squares = S::fma(centred, centred, squares);
                rest = S::add(rest, centred);
            }
            let (mut squares, mut rest) = (total::<S>(squares), total::<S>(rest));
            for x in &x[whole..] {
                squares += (x - mean) * (x - mean);
                rest += x - mean;
            }
            let [mean, squares] = corrected(mean, squares, rest, width as f32);
            let scale = (squares / width as f32 + epsilon).sqrt().recip();
            *moments = [mean, scale];
            let (middle, factor) = (S::splat(mean), S::splat(scale));
            for at in (0..whole).step_by(S::LANES) {
                let normal = S::mul(S::sub(S::load(x.as_ptr().add(at)), middle), factor);
                let gamma = S::load(gamma.as_ptr().add(at));
                let value = match beta {
                    Some(beta) => S::fma(normal, gamma, S::load(beta.as_ptr().add(at))),
                    None => S::mul(normal, gamma),
                };
                S::store(y.as_mut_ptr().cast::<f32>().add(at), value);
            }
            for at in whole..width {
                let shift = beta.map_or(0.0, |beta| beta[at]);
                y[at].write((x[at] - mean) * scale * gamma[at] + shift);
            }
        }
    }
}

/// The mean of so many numbers, and the sum of their squared distances from it: of the mean as one pass rounds it, the sum
/// of squared distances from that, and the sum of the distances themselves, which is what was rounded off. Source: Chan,
/// Golub and LeVeque, "Algorithms for computing the sample variance", 1983.
#[inline(always)]
pub(super) fn corrected(mean: f32, squares: f32, rest: f32, count: f32) -> [f32; 2] {
    // What is not finite stays as it is.
    if !squares.is_finite() {
        return [mean, squares];
    }
    let by = rest / count;
    [mean + by, (squares - rest * by).max(0.0)]
}

/// The sum of a vector's lanes, from the first to the last.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn total<S: Simd>(sum: S::Vector) -> f32 {
    let mut lanes = [0.0; super::BLOCK];
    // SAFETY: no vector is wider than a block.
    unsafe { S::store(lanes.as_mut_ptr(), sum) };
    lanes[..S::LANES].iter().sum()
}

/// Gradients of input, scale and shift.
pub(crate) struct Gradients {
    pub(crate) x: Vec<f32>,
    pub(crate) gamma: Vec<f32>,
    pub(crate) beta: Vec<f32>,
}

/// With `n` the normalised row, `dn = dy * gamma` and means over the row:
/// `dx = (dn - mean(dn) - n * mean(dn * n)) / deviation`, `dgamma = Σ dy * n`, `dbeta = Σ dy`.
pub(crate) fn layer_norm_backward(
    kernels: CpuKernels,
    x: &[f32],
    gamma: &[f32],
    moments: &Moments,
    dy: &[f32],
) -> Gradients {
    let width = gamma.len();
    assert!(
        dy.len() == x.len() && moments.len() * width == x.len(),
        "a gradient of {} numbers for {}",
        dy.len(),
        x.len()
    );
    let write = |dx: &mut [MaybeUninit<f32>]| -> Vec<_> {
        dx.par_chunks_mut(ROWS * width)
            .zip(x.par_chunks(ROWS * width))
            .zip(dy.par_chunks(ROWS * width))
            .zip(moments.par_chunks(ROWS))
            .map(|(((dx, x), dy), moments)| {
                let mut sums = vec![0.0; 2 * width];
                backward(kernels, x, gamma, moments, dy, dx, &mut sums);
                sums
            })
            .collect()
    };
    // SAFETY: every row is written from its first number to its last.
    let (dx, partial) = unsafe { written(x.len(), write) };
    let mut sums = vec![0.0; 2 * width];
    for part in partial {
        for (sum, part) in sums.iter_mut().zip(part) {
            *sum += part;
        }
    }
    let beta = sums.split_off(width);
    Gradients { x: dx, gamma: sums, beta }
}

dispatch!(fn backward = backward_rows(
    x: &[f32],
    gamma: &[f32],
    moments: &[[f32; 2]],
    dy: &[f32],
    dx: &mut [MaybeUninit<f32>],
    sums: &mut [f32]
));

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn backward_rows<S: Simd>(
    x: &[f32],
    gamma: &[f32],
    moments: &[[f32; 2]],
    dy: &[f32],
    dx: &mut [MaybeUninit<f32>],
    sums: &mut [f32],
) {
    let width = gamma.len();
    let whole = width - width % S::LANES;
    let (d_gamma, d_beta) = sums.split_at_mut(width);
    let rows = x
        .chunks_exact(width)
        .zip(dy.chunks_exact(width))
        .zip(dx.chunks_exact_mut(width))
        .zip(moments);
    for (((x, dy), dx), &[mean, scale]) in rows {
        // SAFETY: every vector ends at or before `whole`, which is within all rows.
        unsafe {
            let (middle, factor) = (S::splat(mean), S::splat(scale));
            let (mut plain, mut weighted) = (S::splat(0.0), S::splat(0.0));
            for at in (0..whole).step_by(S::LANES) {
                let normal = S::mul(S::sub(S::load(x.as_ptr().add(at)), middle), factor);
                let d = S::load(dy.as_ptr().add(at));
                let dn = S::mul(d, S::load(gamma.as_ptr().add(at)));
                plain = S::add(plain, dn);
                weighted = S::fma(dn, normal, weighted);
                let to = d_gamma.as_mut_ptr().add(at);
                S::store(to, S::fma(d, normal, S::load(to)));
                let to = d_beta.as_mut_ptr().add(at);
                S::store(to, S::add(d, S::load(to)));
            }
            let (mut plain, mut weighted) = (total::<S>(plain), total::<S>(weighted));
            for at in whole..width {
                let normal = (x[at] - mean) * scale;
                let dn = dy[at] * gamma[at];
                plain += dn;
                weighted += dn * normal;
                d_gamma[at] += dy[at] * normal;
                d_beta[at] += dy[at];
            }
            let (plain, weighted) = (plain / width as f32, weighted / width as f32);
            let (plain_mean, weighted_mean) = (S::splat(plain), S::splat(weighted));
            for at in (0..whole).step_by(S::LANES) {
                let normal = S::mul(S::sub(S::load(x.as_ptr().add(at)), middle), factor);
                let dn = S::mul(S::load(dy.as_ptr().add(at)), S::load(gamma.as_ptr().add(at)));
                let rest = S::sub(S::sub(dn, plain_mean), S::mul(normal, weighted_mean));
                S::store(dx.as_mut_ptr().cast::<f32>().add(at), S::mul(rest, factor));
            }
            for at in whole..width {
                let normal = (x[at] - mean) * scale;
                dx[at].write((dy[at] * gamma[at] - plain - normal * weighted) * scale);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_is_corrected_unless_a_number_is_not_finite() {
        // Of 2, 2, 3 and 3 around 2.25.
        assert_eq!(corrected(2.25, 1.25, 1.0, 4.0), [2.5, 1.0]);
        // An infinite number is no distance from an infinite mean.
        let [mean, squares] = corrected(f32::INFINITY, f32::NAN, f32::NAN, 4.0);
        assert!(mean == f32::INFINITY && squares.is_nan());
    }
}
