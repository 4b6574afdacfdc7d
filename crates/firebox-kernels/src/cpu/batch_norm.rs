//! Batch normalisation over all rows of a tensor, with what often follows it in the same pass:
//! rectifier, maximum of neighbouring steps, dropout.
//!
//! Sums over rows are taken over a fixed number of rows first, then over these sums in their order in
//! f64, whatever the number of threads.

mod backward;

pub(crate) use backward::{Normalised, batch_norm_backward};

use super::dropout::{Mask, multiply_part_of};
use super::kernels::dispatch;
use super::norm::corrected;
use super::simd::Simd;
use super::{CpuKernels, Shared, each_task, zeros};

/// Rows whose statistics are taken at once, and rows that f32 sums of gradients run over.
const ROWS: usize = 128;
/// Output rows that a task aims at.
const TASK_ROWS: usize = 256;

/// `[samples, time, width]`
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps {
    pub(crate) samples: usize,
    pub(crate) time: usize,
    pub(crate) width: usize,
}

/// What follows the normalisation, in this order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epilogue {
    /// `max(z, 0)`
    pub(crate) rectify: bool,
    /// The maximum of so many neighbouring steps, at least 1; steps left over at the end are dropped.
    pub(crate) pool: usize,
    pub(crate) mask: Option<Mask>,
}

impl Epilogue {
    /// What a value must be above to pass; NaN, which nothing compares with, if all do.
    fn floor(self) -> f32 {
        if self.rectify { 0.0 } else { f32::NAN }
    }
}

/// Mean and biased variance of each channel.
#[derive(Clone, Debug)]
pub(crate) struct Statistics {
    pub(crate) mean: Vec<f32>,
    pub(crate) variance: Vec<f32>,
}

/// `z = (x - mean) * scale + shift`, by channel.
#[derive(Clone, Debug)]
pub(crate) struct Affine {
    mean: Vec<f32>,
    /// One over the standard deviation.
    sharpness: Vec<f32>,
    scale: Vec<f32>,
    shift: Vec<f32>,
}

impl Affine {
    pub(crate) fn new(statistics: Statistics, gamma: &[f32], beta: &[f32], epsilon: f64) -> Self {
        let Statistics { mean, variance } = statistics;
        let sharpness = |variance: &f32| (f64::from(*variance) + epsilon).sqrt().recip() as f32;
        let sharpness: Vec<f32> = variance.iter().map(sharpness).collect();
        let scale = sharpness.iter().zip(gamma).map(|(sharpness, gamma)| sharpness * gamma);
        Self { mean, scale: scale.collect(), sharpness, shift: beta.to_vec() }
    }
}

/// The statistics of rows as wide as `width`. Source of the sum of blocks: Chan, Golub and LeVeque,
/// 1979.
pub(crate) fn statistics(kernels: CpuKernels, x: &[f32], width: usize) -> Statistics {
    let blocks = x.len().div_ceil(ROWS * width);
    let mut sums = vec![0.0; blocks * 3 * width];
    let shared = Shared::new(&mut sums);
    each_task(blocks, x.len(), |block| {
        let rows = &x[block * ROWS * width..x.len().min((block + 1) * ROWS * width)];
        // SAFETY: the sums of a block are its own.
        let sums = unsafe { shared.part(block * 3 * width, 3 * width) };
        moments(kernels, rows, width, sums);
    });
    let (mut mean, mut squares) = (vec![0.0_f64; width], vec![0.0_f64; width]);
    let mut count = 0.0;
    for (block, sums) in sums.chunks_exact(3 * width).enumerate() {
        let rows = ROWS.min(x.len() / width - block * ROWS) as f64;
        let (own_mean, own_squares) = sums[..2 * width].split_at(width);
        let all = count + rows;
        for channel in 0..width {
            let distance = f64::from(own_mean[channel]) - mean[channel];
            mean[channel] += distance * rows / all;
            squares[channel] +=
                f64::from(own_squares[channel]) + distance * distance * count * rows / all;
        }
        count = all;
    }
    Statistics {
        mean: mean.into_iter().map(|mean| mean as f32).collect(),
        variance: squares.into_iter().map(|squares| (squares / count) as f32).collect(),
    }
}

dispatch!(fn moments = moments_of(x: &[f32], width: usize, sums: &mut [f32]));

/// The mean of each column, its squared distances from that, summed, and room: by two passes, of which the second
/// [corrects](corrected) what the first one rounded off.
///
/// # Safety
/// That of [`Simd`], whose type only names the instructions that the loops may be compiled to.
#[inline(always)]
unsafe fn moments_of<S: Simd>(x: &[f32], width: usize, sums: &mut [f32]) {
    let (mean, sums) = sums.split_at_mut(width);
    let (squares, rest) = sums.split_at_mut(width);
    for row in x.chunks_exact(width) {
        for (mean, x) in mean.iter_mut().zip(row) {
            *mean += x;
        }
    }
    let rows = (x.len() / width) as f32;
    for mean in mean.iter_mut() {
        *mean /= rows;
    }
    for row in x.chunks_exact(width) {
        let sums = squares.iter_mut().zip(rest.iter_mut()).zip(mean.iter());
        for (((squares, rest), mean), x) in sums.zip(row) {
            let centred = x - mean;
            *squares += centred * centred;
            *rest += centred;
        }
    }
    for ((mean, squares), rest) in mean.iter_mut().zip(squares).zip(rest) {
        [*mean, *squares] = corrected(*mean, *squares, *rest, rows);
    }
}

/// How the samples are cut into tasks.
#[derive(Clone, Copy)]
struct Tasks {
    steps: Steps,
    /// Output steps of a sample.
    out: usize,
    /// Samples of a task, a multiple of four: so many begin with a whole block of random words.
    samples: usize,
}

impl Tasks {
    fn new(mut steps: Steps, pool: usize) -> Self {
        // Where no step is left over, samples need not be told apart.
        if steps.time.is_multiple_of(pool) {
            steps = Steps { samples: steps.samples * (steps.time / pool), time: pool, ..steps };
        }
        let out = steps.time / pool;
        let samples = (TASK_ROWS / out.max(1)).max(1).next_multiple_of(4);
        Self { steps, out, samples }
    }

    fn count(&self) -> usize {
        self.steps.samples.div_ceil(self.samples)
    }

    /// First sample of a task and number of its samples.
    fn range(&self, task: usize) -> (usize, usize) {
        let first = task * self.samples;
        (first, self.samples.min(self.steps.samples - first))
    }
}

/// `y`, `[samples, time / pool, width]`.
pub(crate) fn normalise(
    kernels: CpuKernels,
    steps: Steps,
    x: &[f32],
    affine: &Affine,
    epilogue: Epilogue,
) -> Vec<f32> {
    let tasks = Tasks::new(steps, epilogue.pool);
    let Steps { time, width, .. } = tasks.steps;
    let row = tasks.out * width;
    let mut y = zeros(tasks.steps.samples * row);
    let shared = Shared::new(&mut y);
    each_task(tasks.count(), x.len(), |task| {
        let (first, count) = tasks.range(task);
        // SAFETY: the samples of a task are its own.
        let y = unsafe { shared.part(first * row, count * row) };
        let x = &x[first * time * width..][..count * time * width];
        apply(kernels, &tasks, x, affine, epilogue, y);
        if let Some(mask) = epilogue.mask {
            multiply_part_of(kernels, mask, (first * row) as u64, y);
        }
    });
    y
}

/// The normalisation of some rows of single steps by the calling thread, rectified or not, into `y`.
pub(super) fn normalise_rows(
    kernels: CpuKernels,
    x: &[f32],
    affine: &Affine,
    rectify: bool,
    y: &mut [f32],
) {
    assert_eq!(x.len(), y.len(), "a number for each");
    let width = affine.mean.len();
    let steps = Steps { samples: x.len() / width, time: 1, width };
    let epilogue = Epilogue { rectify, pool: 1, mask: None };
    apply(kernels, &Tasks::new(steps, 1), x, affine, epilogue, y);
}

dispatch!(fn apply = apply_to(
    tasks: &Tasks,
    x: &[f32],
    affine: &Affine,
    epilogue: Epilogue,
    y: &mut [f32]
));

/// Everything but the dropout.
///
/// # Safety
/// That of [`Simd`], whose type only names the instructions that the loops may be compiled to.
#[inline(always)]
unsafe fn apply_to<S: Simd>(
    tasks: &Tasks,
    x: &[f32],
    affine: &Affine,
    epilogue: Epilogue,
    y: &mut [f32],
) {
    let Steps { time, width, .. } = tasks.steps;
    let (mean, scale) = (&affine.mean[..width], &affine.scale[..width]);
    let shift = &affine.shift[..width];
    let floor = epilogue.floor();
    let samples = x.chunks_exact(time * width).zip(y.chunks_exact_mut(tasks.out * width));
    for (x, y) in samples {
        for (rows, y) in x.chunks_exact(epilogue.pool * width).zip(y.chunks_exact_mut(width)) {
            let x = &rows[..width];
            for at in 0..width {
                let z = (x[at] - mean[at]) * scale[at] + shift[at];
                y[at] = if z < floor { floor } else { z };
            }
            for x in rows.chunks_exact(width).skip(1) {
                for at in 0..width {
                    let z = (x[at] - mean[at]) * scale[at] + shift[at];
                    // Where either is NaN, so is the maximum.
                    y[at] = if z > y[at] || z.is_nan() { z } else { y[at] };
                }
            }
        }
    }
}
