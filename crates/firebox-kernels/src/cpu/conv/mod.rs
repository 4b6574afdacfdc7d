//! Convolution along time, channels last, without the matrix of all windows in memory.
//!
//! A task copies the rows that its output steps read into a buffer that stays in the core's cache:
//! rounded if operands are bf16, with noise added if there is any, and zero where a window reaches
//! beyond the sequence. A window of neighbouring steps is then one contiguous run of that buffer,
//! and products read overlapping runs as rows of a matrix. What a task is depends on the sizes
//! alone, and every number is summed by one task in one order, so results are the same on any
//! number of threads.

mod forward;
mod weights;

use rayon::prelude::*;

use super::BLOCK;
use super::amx::{self, Tiles};
use super::block::accumulate;
use super::compute::{Compute, Words, in_whole_words};
use super::noise::Noise;
use super::simd::Simd;

/// What a convolution computes: with which instructions, and whether the operands of products are
/// rounded to bf16.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvArithmetic {
    pub(crate) kernels: super::CpuKernels,
    pub(crate) bf16: bool,
}

impl ConvArithmetic {
    /// What the operands of products are.
    fn words(self) -> Words {
        Words::of(self.kernels, self.bf16)
    }
}

/// The sizes of a convolution. Neither kernel, stride, nor dilation is zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Conv {
    pub(crate) batch: usize,
    /// Steps of the input.
    pub(crate) time: usize,
    /// Channels of the input.
    pub(crate) input: usize,
    /// Channels of the output.
    pub(crate) output: usize,
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    /// Zeros before the first and after the last step.
    pub(crate) padding: [usize; 2],
    pub(crate) dilation: usize,
}

impl Conv {
    /// Steps of the output; none if the kernel is longer than the padded input.
    pub(crate) fn steps(&self) -> usize {
        let reach = self.dilation * (self.kernel - 1) + 1;
        let padded = self.time + self.padding[0] + self.padding[1];
        if padded < reach { 0 } else { (padded - reach) / self.stride + 1 }
    }

    /// `y[b, t, o] = bias[o] + Σ x[b, t · stride + j · dilation - padding, c] · weight[o, c, j]` over
    /// taps `j` and channels `c`.
    pub(crate) fn forward(
        &self,
        arithmetic: ConvArithmetic,
        x: &[f32],
        noise: Option<Noise>,
        weight: &[f32],
        bias: Option<&[f32]>,
    ) -> Vec<f32> {
        let source = Source { noise, ..Source::new(x, self.time, self.input) };
        let walk = Walk {
            batch: self.batch,
            steps: self.steps(),
            width: self.output,
            taps: self.kernel,
            start: -(self.padding[0] as isize),
            stride: self.stride,
            dilation: self.dilation,
        };
        let [to_output, to_input] = [self.input * self.kernel, self.kernel];
        let at = |tap: usize, from: usize, to: usize| to * to_output + from * to_input + tap;
        in_whole_words!(arithmetic.words(), C => {
            forward::run::<C>(arithmetic.kernels, &walk, source, weight, at, bias)
        })
    }

    /// `dx`: a convolution of `dy`, spread out by the stride, with the kernel reversed.
    pub(crate) fn input_gradient(
        &self,
        arithmetic: ConvArithmetic,
        weight: &[f32],
        dy: &[f32],
    ) -> Vec<f32> {
        let source = Source { spread: self.stride, ..Source::new(dy, self.steps(), self.output) };
        let reach = self.dilation * (self.kernel - 1);
        let walk = Walk {
            batch: self.batch,
            steps: self.time,
            width: self.input,
            taps: self.kernel,
            start: self.padding[0] as isize - reach as isize,
            stride: 1,
            dilation: self.dilation,
        };
        let [from_output, to_input] = [self.input * self.kernel, self.kernel];
        let last = self.kernel - 1;
        let at =
            |tap: usize, from: usize, to: usize| from * from_output + to * to_input + last - tap;
        in_whole_words!(arithmetic.words(), C => {
            forward::run::<C>(arithmetic.kernels, &walk, source, weight, at, None)
        })
    }

    /// `dweight[o, c, j] = Σ x[b, t · stride + j · dilation - padding, c] · dy[b, t, o]`
    pub(crate) fn weight_gradient(
        &self,
        arithmetic: ConvArithmetic,
        x: &[f32],
        noise: Option<Noise>,
        dy: &[f32],
    ) -> Vec<f32> {
        let source = Source { noise, ..Source::new(x, self.time, self.input) };
        in_whole_words!(arithmetic.words(), C => {
            weights::run::<C>(arithmetic.kernels, self, source, dy)
        })
    }

    /// `dbias[o] = Σ dy[b, t, o]`, summed over blocks of rows and then over the blocks, in their
    /// order.
    pub(crate) fn bias_gradient(&self, dy: &[f32]) -> Vec<f32> {
        const ROWS: usize = 1024;
        let add = |mut sum: Vec<f32>, row: &[f32]| {
            sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            sum
        };
        let none = || vec![0.0; self.output];
        let blocks: Vec<_> = dy
            .par_chunks(self.output * ROWS)
            .map(|rows| rows.chunks_exact(self.output).fold(none(), add))
            .collect();
        blocks.iter().fold(none(), |sum, block| add(sum, block))
    }
}

/// How windows go over a source: step `t` reads, with tap `j`, row `start + t · stride + j · dilation`.
#[derive(Clone, Copy, Debug)]
struct Walk {
    batch: usize,
    /// Output steps of a sample.
    steps: usize,
    /// Output channels.
    width: usize,
    taps: usize,
    start: isize,
    stride: usize,
    dilation: usize,
}

impl Walk {
    /// Rows that `count` steps read, from the first to the last.
    fn rows(&self, count: usize) -> usize {
        count.saturating_sub(1) * self.stride + (self.taps - 1) * self.dilation + 1
    }
}

/// The rows that are read, `[sample, rows, channels]`.
#[derive(Clone, Copy)]
struct Source<'a> {
    values: &'a [f32],
    /// Rows of a sample.
    rows: usize,
    channels: usize,
    /// The distance of two neighbouring rows, between which zeros are read.
    spread: usize,
    /// Added to the values.
    noise: Option<Noise>,
}

impl<'a> Source<'a> {
    fn new(values: &'a [f32], rows: usize, channels: usize) -> Self {
        Self { values, rows, channels, spread: 1, noise: None }
    }

    /// Reads channels from `first` on of the row at a place that may lie outside of the sample or
    /// between two rows; there it reads zeros.
    #[inline(always)]
    fn read(&self, sample: usize, place: isize, first: usize, out: &mut [f32]) {
        let place = usize::try_from(place).ok();
        let row = place.filter(|at| at % self.spread == 0).map(|at| at / self.spread);
        let Some(row) = row.filter(|row| *row < self.rows) else {
            out.fill(0.0);
            return;
        };
        let at = (sample * self.rows + row) * self.channels + first;
        let values = &self.values[at..][..out.len()];
        match self.noise {
            Some(noise) => noise.add(at as u64, values, out),
            None => out.copy_from_slice(values),
        }
    }
}

/// Blocks of columns of the next panel, of those that are left; one where they are narrow.
fn panel_blocks(left: usize, narrow: bool) -> usize {
    match left {
        _ if narrow => 1,
        0 | 1 => 1,
        2 | 3 => 2,
        _ => 4,
    }
}

/// `acc[m][n] += Σ_k a[m][k · step] · b[k][n]` for `count` words, where row `k` of `b` is `N` blocks
/// long and row `m` of `acc` is `stride` numbers after the one before.
///
/// # Safety
/// That of [`Simd`]; each pointer of `a` is valid for `(count - 1) · step + 1` numbers, `b` for
/// `count · N` blocks, and `acc` for `(M - 1) · stride` numbers and `N` blocks.
#[inline(always)]
unsafe fn tile<S: Simd, C: Compute, const M: usize, const N: usize>(
    acc: *mut f32,
    stride: usize,
    a: [*const f32; M],
    step: usize,
    b: *const f32,
    count: usize,
) {
    for lane in (0..BLOCK).step_by(S::LANES) {
        // SAFETY: every offset is below what the caller vouches for.
        unsafe {
            let mut sums = [[S::splat(0.0); N]; M];
            for (m, sums) in sums.iter_mut().enumerate() {
                for (n, sum) in sums.iter_mut().enumerate() {
                    *sum = S::load(acc.add(m * stride + n * BLOCK + lane));
                }
            }
            accumulate::<S, C, M, N>(&mut sums, a, step, b.add(lane), count);
            for (m, sums) in sums.iter().enumerate() {
                for (n, sum) in sums.iter().enumerate() {
                    S::store(acc.add(m * stride + n * BLOCK + lane), *sum);
                }
            }
        }
    }
}

/// [`tile`] by AMX, of `rows` rows that are `a_row` words apart, one word after the other: as many words as make
/// whole groups.
///
/// # Safety
/// As for [`tile`]; `a` is valid for whole tiles of rows.
unsafe fn whole_tiles(
    tiles: &Tiles,
    (acc, stride): (*mut f32, usize),
    rows: usize,
    (a, a_row): (*const f32, usize),
    (b, blocks): (*const f32, usize),
    groups: usize,
) {
    for row in (0..rows).step_by(amx::TILE) {
        // SAFETY: the caller's promise.
        unsafe {
            let a = a.add(row * a_row);
            let part = std::iter::once(amx::Part {
                a,
                a_row,
                b,
                b_row: blocks * BLOCK,
                groups,
                ahead: None,
            });
            let (here, sums) = (amx::TILE.min(rows - row), (acc.add(row * stride), stride));
            tiles.rows(here, blocks, part, sums, amx::kept(sums));
        }
    }
}
