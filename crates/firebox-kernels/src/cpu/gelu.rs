//! The Gaussian error linear unit with a dropout mask, and a residual sum with one, each in one pass
//! over memory in each direction.

use rayon::prelude::*;

use super::dropout::{Mask, multiply_part_of};
use super::kernels::dispatch;
use super::math::{erf, exp};
use super::simd::Simd;
use super::{BLOCK, CpuKernels};

/// Numbers that a thread takes at once.
const TASK: usize = 64 * PART;
/// Numbers that stay in the first cache between one step of the arithmetic and the next.
const PART: usize = 1024;

/// Calls `change(first, part)` for all parts of `y`, on all threads, where `first` is the position of
/// the part.
fn for_parts(y: &mut [f32], change: impl Fn(usize, &mut [f32]) + Sync) {
    y.par_chunks_mut(TASK).enumerate().for_each(|(task, y)| {
        for (part, y) in y.chunks_mut(PART).enumerate() {
            change(task * TASK + part * PART, y);
        }
    });
}

/// The same for a copy of `x`, each part of which is changed while it is in the first cache.
fn copy_parts(x: &[f32], change: impl Fn(usize, &mut [f32]) + Sync) -> Vec<f32> {
    let mut copy = Vec::with_capacity(x.len());
    let room = &mut copy.spare_capacity_mut()[..x.len()];
    room.par_chunks_mut(TASK).zip(x.par_chunks(TASK)).enumerate().for_each(|(task, (y, x))| {
        for (part, (y, x)) in y.chunks_mut(PART).zip(x.chunks(PART)).enumerate() {
            change(task * TASK + part * PART, y.write_copy_of_slice(x));
        }
    });
    // SAFETY: each number was copied.
    unsafe { copy.set_len(x.len()) };
    copy
}

/// `x · Φ(x) · mask`, with Φ the distribution function of the normal distribution.
pub(crate) fn gelu(kernels: CpuKernels, mask: Option<Mask>, x: &[f32]) -> Vec<f32> {
    copy_parts(x, |first, y| gelu_part(kernels, mask, first, y))
}

/// [`gelu`] in the place of `x`.
pub(crate) fn gelu_in_place(kernels: CpuKernels, mask: Option<Mask>, x: &mut [f32]) {
    for_parts(x, |first, x| gelu_part(kernels, mask, first, x));
}

/// [`gelu`] of the part that begins at this place, a multiple of four with a mask.
pub(super) fn gelu_part(kernels: CpuKernels, mask: Option<Mask>, first: usize, x: &mut [f32]) {
    forward(kernels, x);
    if let Some(mask) = mask {
        multiply_part_of(kernels, mask, first as u64, x);
    }
}

/// `d *= mask · (Φ(x) + x · φ(x))`, with φ the density of the normal distribution.
pub(crate) fn gelu_backward(kernels: CpuKernels, mask: Option<Mask>, x: &[f32], d: &mut [f32]) {
    assert_eq!(x.len(), d.len(), "a number for each");
    for_parts(d, |first, d| gelu_part_backward(kernels, mask, first, x, d));
}

/// [`gelu_backward`] of a part, as [`gelu_part`] has it, for all of `x`.
pub(super) fn gelu_part_backward(
    kernels: CpuKernels,
    mask: Option<Mask>,
    first: usize,
    x: &[f32],
    d: &mut [f32],
) {
    if let Some(mask) = mask {
        multiply_part_of(kernels, mask, first as u64, d);
    }
    backward(kernels, &x[first..][..d.len()], d);
}

/// `y = y · mask + x`
pub(crate) fn dropout_add(kernels: CpuKernels, mask: Option<Mask>, x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "a number for each");
    for_parts(y, |first, y| dropout_add_part(kernels, mask, first, x, y));
}

/// [`dropout_add`] of a part, as [`gelu_part`] has it, for all of `x`.
pub(super) fn dropout_add_part(
    kernels: CpuKernels,
    mask: Option<Mask>,
    first: usize,
    x: &[f32],
    y: &mut [f32],
) {
    if let Some(mask) = mask {
        multiply_part_of(kernels, mask, first as u64, y);
    }
    y.iter_mut().zip(&x[first..]).for_each(|(y, x)| *y += x);
}

/// `x · mask`
pub(crate) fn dropout_of(kernels: CpuKernels, mask: Mask, x: &[f32]) -> Vec<f32> {
    copy_parts(x, |first, y| multiply_part_of(kernels, mask, first as u64, y))
}

/// Φ(x)
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn distribution<S: Simd>(x: S::Vector) -> S::Vector {
    // SAFETY: the caller's promise is the one that `Simd` asks for.
    unsafe {
        let erf = erf::<S>(S::mul(x, S::splat(std::f32::consts::FRAC_1_SQRT_2)));
        S::fma(erf, S::splat(0.5), S::splat(0.5))
    }
}

/// x · Φ(x)
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
pub(super) unsafe fn value<S: Simd>(x: S::Vector) -> S::Vector {
    // SAFETY: the caller's promise is the one that `Simd` asks for.
    unsafe { S::mul(x, distribution::<S>(x)) }
}

/// Φ(x) + x · φ(x)
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn slope<S: Simd>(x: S::Vector) -> S::Vector {
    // SAFETY: the caller's promise is the one that `Simd` asks for.
    unsafe {
        // Beyond 13 the density is below what f32 tells from zero beside the rest.
        let near = S::clamp(x, -13.0, 13.0);
        let density =
            S::mul(exp::<S>(S::mul(S::mul(near, near), S::splat(-0.5))), S::splat(0.398_942_3));
        S::fma(near, density, distribution::<S>(x))
    }
}

dispatch!(fn forward = forward_part(x: &mut [f32]));

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn forward_part<S: Simd>(x: &mut [f32]) {
    let (blocks, rest) = x.as_chunks_mut::<BLOCK>();
    for block in blocks {
        // SAFETY: the caller's promise is the same.
        unsafe { value_of_block::<S>(block) };
    }
    let mut padded = [0.0; BLOCK];
    padded[..rest.len()].copy_from_slice(rest);
    // SAFETY: as above.
    unsafe { value_of_block::<S>(&mut padded) };
    rest.copy_from_slice(&padded[..rest.len()]);
}

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn value_of_block<S: Simd>(x: &mut [f32; BLOCK]) {
    for at in (0..BLOCK).step_by(S::LANES) {
        // SAFETY: a block is a whole number of vectors.
        unsafe {
            let at = x.as_mut_ptr().add(at);
            S::store(at, value::<S>(S::load(at)));
        }
    }
}

dispatch!(fn backward = backward_part(x: &[f32], d: &mut [f32]));

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn backward_part<S: Simd>(x: &[f32], d: &mut [f32]) {
    let (x_vectors, x_rest) = x.as_chunks::<BLOCK>();
    let (d_vectors, d_rest) = d.as_chunks_mut::<BLOCK>();
    for (x, d) in x_vectors.iter().zip(d_vectors) {
        // SAFETY: a block is a whole number of vectors.
        unsafe { slope_of_block::<S>(x, d) };
    }
    let (mut padded, mut result) = ([0.0; BLOCK], [0.0; BLOCK]);
    padded[..x_rest.len()].copy_from_slice(x_rest);
    result[..d_rest.len()].copy_from_slice(d_rest);
    // SAFETY: as above.
    unsafe { slope_of_block::<S>(&padded, &mut result) };
    d_rest.copy_from_slice(&result[..d_rest.len()]);
}

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn slope_of_block<S: Simd>(x: &[f32; BLOCK], d: &mut [f32; BLOCK]) {
    for at in (0..BLOCK).step_by(S::LANES) {
        // SAFETY: a block is a whole number of vectors.
        unsafe {
            let to = d.as_mut_ptr().add(at);
            S::store(to, S::mul(S::load(to), slope::<S>(S::load(x.as_ptr().add(at)))));
        }
    }
}
