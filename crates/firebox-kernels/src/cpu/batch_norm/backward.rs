//! The gradient of batch normalisation and of what follows it, computed from the input again.

use super::super::dropout::multiply_part_of;
use super::super::kernels::dispatch;
use super::super::pool::Lent;
use super::super::simd::Simd;
use super::super::{CpuKernels, Shared, each_task, zeros};
use super::{Affine, Epilogue, ROWS, Steps, Tasks};

/// Gradients of input (if wanted), scale and shift.
pub(crate) struct BatchNormGradients {
    pub(crate) x: Option<Vec<f32>>,
    pub(crate) gamma: Vec<f32>,
    pub(crate) beta: Vec<f32>,
}

/// What a gradient is computed from.
#[derive(Clone, Copy)]
pub(crate) struct Normalised<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) affine: &'a Affine,
    pub(crate) epilogue: Epilogue,
    /// Whether mean and variance are those of `x`, and have a gradient.
    pub(crate) from_batch: bool,
}

/// With `n` the normalised input and `dz` the gradient that reaches it through the epilogue:
/// `dgamma = Σ dz * n`, `dbeta = Σ dz`, and with means over all rows
/// `dx = (dz - mean(dz) - n * mean(dz * n)) * gamma / deviation`; without the means where the
/// statistics are not those of `x`.
pub(crate) fn batch_norm_backward(
    kernels: CpuKernels,
    steps: Steps,
    of: Normalised<'_>,
    dy: &[f32],
    wanted: bool,
) -> BatchNormGradients {
    let tasks = Tasks::new(steps, of.epilogue.pool);
    let Steps { time, width, .. } = tasks.steps;
    let row = tasks.out * width;
    let mut dz = zeros(of.x.len());
    let mut sums = vec![0.0_f64; tasks.count() * 2 * width];
    let (shared, shared_sums) = (Shared::new(&mut dz), Shared::new(&mut sums));
    each_task(tasks.count(), of.x.len(), |task| {
        let (first, count) = tasks.range(task);
        // SAFETY: the samples and the sums of a task are its own.
        let (dz, sums) = unsafe {
            let dz = shared.part(first * time * width, count * time * width);
            (dz, shared_sums.part(task * 2 * width, 2 * width))
        };
        let x = &of.x[first * time * width..][..count * time * width];
        let own = &dy[first * row..][..count * row];
        match of.epilogue.mask {
            None => route(kernels, &tasks, x, of, own, dz, sums),
            Some(mask) => {
                let mut kept = Lent::take(own.len());
                let kept = &mut kept.get_mut()[..own.len()];
                kept.copy_from_slice(own);
                multiply_part_of(kernels, mask, (first * row) as u64, kept);
                route(kernels, &tasks, x, of, kept, dz, sums);
            }
        }
    });
    let mut total = vec![0.0_f64; 2 * width];
    for sums in sums.chunks_exact(2 * width) {
        total.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
    }
    let rows = (of.x.len() / width) as f64;
    let mean_of = |sums: &[f64]| sums.iter().map(|sum| (sum / rows) as f32).collect::<Vec<_>>();
    if wanted {
        let means = match of.from_batch {
            true => [mean_of(&total[..width]), mean_of(&total[width..])],
            false => [vec![0.0; width], vec![0.0; width]],
        };
        let shared = Shared::new(&mut dz);
        let chunk = ROWS * width;
        each_task(of.x.len().div_ceil(chunk), of.x.len(), |task| {
            let count = chunk.min(of.x.len() - task * chunk);
            // SAFETY: the rows of a task are its own.
            let dz = unsafe { shared.part(task * chunk, count) };
            finish(kernels, &of.x[task * chunk..][..count], of.affine, &means, dz);
        });
    }
    let narrow = |sums: &[f64]| sums.iter().map(|sum| *sum as f32).collect();
    BatchNormGradients {
        x: wanted.then_some(dz),
        beta: narrow(&total[..width]),
        gamma: narrow(&total[width..]),
    }
}

dispatch!(fn route = route_back(
    tasks: &Tasks,
    x: &[f32],
    of: Normalised<'_>,
    dy: &[f32],
    dz: &mut [f32],
    sums: &mut [f64]
));

/// Gives each gradient to the step that was the maximum, unless the rectifier cut it off, and sums
/// up `dz` and `dz * n`.
///
/// # Safety
/// That of [`Simd`], whose type only names the instructions that the loops may be compiled to.
#[inline(always)]
unsafe fn route_back<S: Simd>(
    tasks: &Tasks,
    x: &[f32],
    of: Normalised<'_>,
    dy: &[f32],
    dz: &mut [f32],
    sums: &mut [f64],
) {
    let (width, pool) = (tasks.steps.width, of.epilogue.pool);
    let mut scratch = Lent::take(4 * width);
    let (best, rest) = scratch.get_mut()[..4 * width].split_at_mut(width);
    let (chosen, rest) = rest.split_at_mut(width);
    let (plain, weighted) = rest.split_at_mut(width);
    plain.fill(0.0);
    weighted.fill(0.0);
    let floor = of.epilogue.floor();
    let mut summed = 0;
    let sample = tasks.steps.time * width;
    let samples = x.chunks_exact(sample).zip(dz.chunks_exact_mut(sample));
    for ((x, dz), dy) in samples.zip(dy.chunks_exact(tasks.out * width)) {
        dz[tasks.out * pool * width..].fill(0.0);
        let windows = x.chunks_exact(pool * width).zip(dz.chunks_exact_mut(pool * width));
        for ((x, dz), dy) in windows.zip(dy.chunks_exact(width)) {
            choose(x, of.affine, best, chosen);
            for (tap, (x, dz)) in x.chunks_exact(width).zip(dz.chunks_exact_mut(width)).enumerate()
            {
                let rows = Rows { x, dy, best, chosen };
                add_row(tap as f32, floor, of.affine, rows, dz, plain, weighted);
            }
            summed += pool;
            if summed >= ROWS {
                flush(plain, weighted, sums);
                summed = 0;
            }
        }
    }
    flush(plain, weighted, sums);
}

/// For each channel the maximum of a window and the step that it comes from: as in PyTorch the first
/// of equal ones and the last NaN.
#[inline(always)]
fn choose(x: &[f32], affine: &Affine, best: &mut [f32], chosen: &mut [f32]) {
    let width = best.len();
    let (mean, scale) = (&affine.mean[..width], &affine.scale[..width]);
    let (shift, chosen) = (&affine.shift[..width], &mut chosen[..width]);
    best.fill(f32::NEG_INFINITY);
    chosen.fill(0.0);
    for (tap, x) in x.chunks_exact(width).enumerate() {
        for at in 0..width {
            let z = (x[at] - mean[at]) * scale[at] + shift[at];
            let better = z > best[at] || z.is_nan();
            best[at] = if better { z } else { best[at] };
            chosen[at] = if better { tap as f32 } else { chosen[at] };
        }
    }
}

#[derive(Clone, Copy)]
struct Rows<'a> {
    x: &'a [f32],
    dy: &'a [f32],
    best: &'a [f32],
    chosen: &'a [f32],
}

/// `dz` of one step of a window, and its part of the sums.
#[inline(always)]
fn add_row(
    tap: f32,
    floor: f32,
    affine: &Affine,
    rows: Rows<'_>,
    dz: &mut [f32],
    plain: &mut [f32],
    weighted: &mut [f32],
) {
    let width = dz.len();
    let (mean, sharpness) = (&affine.mean[..width], &affine.sharpness[..width]);
    let (x, dy) = (&rows.x[..width], &rows.dy[..width]);
    let (best, chosen) = (&rows.best[..width], &rows.chosen[..width]);
    let (plain, weighted) = (&mut plain[..width], &mut weighted[..width]);
    for at in 0..width {
        // Not the negation, which would also cut off NaN.
        let cut = chosen[at] != tap || best[at] <= floor;
        let d = if cut { 0.0 } else { dy[at] };
        dz[at] = d;
        plain[at] += d;
        weighted[at] += d * ((x[at] - mean[at]) * sharpness[at]);
    }
}

#[inline(always)]
fn flush(plain: &mut [f32], weighted: &mut [f32], sums: &mut [f64]) {
    for (sum, part) in sums.iter_mut().zip(plain.iter_mut().chain(weighted)) {
        *sum += f64::from(*part);
        *part = 0.0;
    }
}

dispatch!(fn finish = finish_rows(
    x: &[f32],
    affine: &Affine,
    means: &[Vec<f32>; 2],
    dz: &mut [f32]
));

/// # Safety
/// That of [`Simd`], whose type only names the instructions that the loops may be compiled to.
#[inline(always)]
unsafe fn finish_rows<S: Simd>(x: &[f32], affine: &Affine, means: &[Vec<f32>; 2], dz: &mut [f32]) {
    let width = affine.mean.len();
    let (mean, sharpness) = (&affine.mean[..width], &affine.sharpness[..width]);
    let (scale, [plain, weighted]) = (&affine.scale[..width], means);
    let (plain, weighted) = (&plain[..width], &weighted[..width]);
    for (x, dz) in x.chunks_exact(width).zip(dz.chunks_exact_mut(width)) {
        for at in 0..width {
            let normal = (x[at] - mean[at]) * sharpness[at];
            dz[at] = (dz[at] - plain[at] - normal * weighted[at]) * scale[at];
        }
    }
}
