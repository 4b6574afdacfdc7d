//! The maximum of windows along time, channels last, and the way of a gradient back to the steps
//! that the maxima came from.

use super::kernels::dispatch;
use super::simd::Simd;
use super::{CpuKernels, Shared, each_task, zeros};

/// The sizes of a pooling. Windows have a step inside of the sequence each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MaxPool {
    pub(crate) samples: usize,
    /// Steps of the input.
    pub(crate) time: usize,
    /// Steps of the output.
    pub(crate) out: usize,
    pub(crate) width: usize,
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    /// Steps before the first, which are never the maximum.
    pub(crate) padding: usize,
}

impl MaxPool {
    /// The input steps under a window.
    #[inline(always)]
    fn window(&self, step: usize) -> std::ops::Range<usize> {
        let start = step * self.stride;
        start.saturating_sub(self.padding)..(start + self.kernel - self.padding).min(self.time)
    }

    /// `[samples, out, width]`
    pub(crate) fn forward(&self, kernels: CpuKernels, x: &[f32]) -> Vec<f32> {
        let (from, to) = (self.time * self.width, self.out * self.width);
        let mut y = zeros(self.samples * to);
        let shared = Shared::new(&mut y);
        each_task(self.samples, x.len(), |sample| {
            // SAFETY: a sample's rows are its own.
            let y = unsafe { shared.part(sample * to, to) };
            maxima(kernels, self, &x[sample * from..][..from], y);
        });
        y
    }

    /// `dx`: each gradient is added to the step that was the maximum.
    pub(crate) fn backward(&self, kernels: CpuKernels, x: &[f32], dy: &[f32]) -> Vec<f32> {
        let (from, to) = (self.time * self.width, self.out * self.width);
        let mut dx = zeros(x.len());
        let shared = Shared::new(&mut dx);
        each_task(self.samples, x.len(), |sample| {
            // SAFETY: a sample's rows are its own.
            let dx = unsafe { shared.part(sample * from, from) };
            let (x, dy) = (&x[sample * from..][..from], &dy[sample * to..][..to]);
            route(kernels, self, x, dy, dx);
        });
        dx
    }
}

dispatch!(fn maxima = maxima_of(pool: &MaxPool, x: &[f32], y: &mut [f32]));

/// # Safety
/// That of [`Simd`], whose type only names the instructions that the loops may be compiled to.
#[inline(always)]
unsafe fn maxima_of<S: Simd>(pool: &MaxPool, x: &[f32], y: &mut [f32]) {
    let width = pool.width;
    for (step, y) in y.chunks_exact_mut(width).enumerate() {
        y.fill(f32::NEG_INFINITY);
        for row in pool.window(step) {
            for (y, x) in y.iter_mut().zip(&x[row * width..][..width]) {
                // Where either is NaN, so is the maximum.
                *y = if *x > *y || x.is_nan() { *x } else { *y };
            }
        }
    }
}

dispatch!(fn route = route_back(pool: &MaxPool, x: &[f32], dy: &[f32], dx: &mut [f32]));

/// As in PyTorch, the first of equal steps is the maximum, and the last NaN.
///
/// # Safety
/// That of [`Simd`], whose type only names the instructions that the loops may be compiled to.
#[inline(always)]
unsafe fn route_back<S: Simd>(pool: &MaxPool, x: &[f32], dy: &[f32], dx: &mut [f32]) {
    let width = pool.width;
    let (mut best, mut chosen) = (vec![0.0; width], vec![0_u32; width]);
    for (step, dy) in dy.chunks_exact(width).enumerate() {
        let window = pool.window(step);
        best.fill(f32::NEG_INFINITY);
        chosen.fill(window.start as u32);
        for row in window.clone() {
            let rows = best.iter_mut().zip(&mut chosen).zip(&x[row * width..][..width]);
            for ((best, chosen), x) in rows {
                let better = *x > *best || x.is_nan();
                *best = if better { *x } else { *best };
                *chosen = if better { row as u32 } else { *chosen };
            }
        }
        for row in window {
            let rows = dx[row * width..][..width].iter_mut().zip(&chosen).zip(dy);
            for ((dx, chosen), dy) in rows {
                *dx += if *chosen == row as u32 { *dy } else { 0.0 };
            }
        }
    }
}
