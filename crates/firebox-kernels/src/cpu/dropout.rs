//! Multiplication by a dropout mask that is drawn on the fly.

use firebox_core::Stream;
use rayon::prelude::*;

use super::CpuKernels;
use super::kernels::dispatch;
use super::simd::Simd;

/// Which elements are kept, and what they are multiplied by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mask {
    stream: Stream,
    /// An element is kept if the upper 24 bits of its word are at least this.
    threshold: u32,
    scale: f32,
}

impl Mask {
    /// The mask that drops with a `probability` in `[0, 1]`.
    pub(crate) fn new(probability: f64, scale: f32, stream: Stream) -> Self {
        // A uniform number of the stream is the upper 24 bits over 2^24, without rounding.
        Self { stream, threshold: (probability * 16_777_216.0).ceil() as u32, scale }
    }

    /// The mask that keeps the same elements as they are, and what they are then to be multiplied by.
    pub(super) fn apart(self) -> (Self, f32) {
        // Where everything is dropped the factor is infinite, and zeros must stay zeros.
        let factor = if self.scale.is_finite() { self.scale } else { 0.0 };
        (Self { scale: 1.0, ..self }, factor)
    }
}

/// Elements that a thread takes at once; a multiple of [`CHUNK`].
const TASK: usize = 64 * CHUNK;
/// Elements whose sixteen blocks of random words are drawn side by side, one per lane.
const CHUNK: usize = 64;

/// `x *= mask`
pub(crate) fn dropout(kernels: CpuKernels, mask: Mask, x: &mut [f32]) {
    x.par_chunks_mut(TASK)
        .enumerate()
        .for_each(|(task, x)| multiply(kernels, mask, (task * TASK) as u64 / 4, x));
}

/// `x = max(x, 0) * mask`, without a mask the same for every element kept as it is. NaN stays NaN.
pub(crate) fn relu(kernels: CpuKernels, mask: Option<Mask>, x: &mut [f32]) {
    x.par_chunks_mut(TASK)
        .enumerate()
        .for_each(|(task, x)| relu_part(kernels, mask, task * TASK, x));
}

/// [`relu`] of the part that begins at this place, a multiple of four with a mask.
pub(super) fn relu_part(kernels: CpuKernels, mask: Option<Mask>, first: usize, x: &mut [f32]) {
    for value in x.iter_mut() {
        // Not `max`, which turns NaN into zero.
        *value = if *value < 0.0 { 0.0 } else { *value };
    }
    if let Some(mask) = mask {
        multiply_part_of(kernels, mask, first as u64, x);
    }
}

/// The gradient of [`relu`] from its result: what became zero, by either way, passes nothing on.
pub(crate) fn relu_backward(mask: Option<Mask>, y: &[f32], d: &mut [f32]) {
    d.par_chunks_mut(TASK)
        .zip(y.par_chunks(TASK))
        .for_each(|(d, y)| relu_part_backward(mask, y, d));
}

/// [`relu_backward`] of a part, for the same part of `y`.
pub(super) fn relu_part_backward(mask: Option<Mask>, y: &[f32], d: &mut [f32]) {
    let scale = mask.map_or(1.0, |mask| mask.scale);
    for (d, y) in d.iter_mut().zip(y) {
        *d = if *y == 0.0 { 0.0 } else { *d * scale };
    }
}

/// `y *= mask` for a part of a tensor whose first element has this index, a multiple of four.
pub(super) fn multiply_part_of(kernels: CpuKernels, mask: Mask, first: u64, y: &mut [f32]) {
    debug_assert_eq!(first % 4, 0, "a block has four words");
    multiply(kernels, mask, first / 4, y);
}

dispatch!(
    /// Multiplies by the mask from its word `4 * first_block` on.
    fn multiply = multiply_part(mask: Mask, first_block: u64, y: &mut [f32])
);

/// # Safety
/// That of [`Simd`], whose type only names the instructions that the loops may be compiled to.
#[inline(always)]
unsafe fn multiply_part<S: Simd>(mask: Mask, first_block: u64, y: &mut [f32]) {
    let Mask { stream, threshold, scale } = mask;
    for (chunk, y) in y.chunks_mut(CHUNK).enumerate() {
        let first = first_block + (chunk * CHUNK / 4) as u64;
        let mut factors = [[0.0; 4]; CHUNK / 4];
        for (block, factors) in (first..).zip(&mut factors) {
            for (factor, word) in factors.iter_mut().zip(stream.block(block)) {
                *factor = if word >> 8 >= threshold { scale } else { 0.0 };
            }
        }
        for (y, factor) in y.iter_mut().zip(factors.as_flattened()) {
            *y *= factor;
        }
    }
}
