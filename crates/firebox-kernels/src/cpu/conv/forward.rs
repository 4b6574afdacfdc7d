//! The products of windows and weights: the forward pass, and the gradient of the input.

use rayon::prelude::*;

use super::super::amx::{self, Tiles, in_tiles};
use super::super::block::{Buffer, for_row_tiles, is_narrow, narrow};
use super::super::compute::Compute;
use super::super::kernels::dispatch;
use super::super::pool::Lent;
use super::super::simd::Simd;
use super::super::{BLOCK, CpuKernels, Shared, each_on_a_thread, zeros};
use super::{Source, Walk, panel_blocks, tile, whole_tiles};

/// Words of a window that are taken at once: with four blocks of columns their weights fill 32 KiB.
const INNER: usize = 128;
/// The same of panels of one block, which leaves room for windows.
const NARROW_INNER: usize = 256;
/// Output steps of a task at most, a multiple of every height of a register tile.
const STEPS: usize = 96;
/// Numbers of the buffer of rows that a task aims at: 192 KiB.
const ROOM: usize = 48 * 1024;

/// Convolves. `at(tap, from, to)` is where a weight stands.
pub(super) fn run<C: Compute>(
    kernels: CpuKernels,
    walk: &Walk,
    source: Source<'_>,
    weight: &[f32],
    at: impl Fn(usize, usize, usize) -> usize + Sync,
    bias: Option<&[f32]>,
) -> Vec<f32> {
    let narrow = is_narrow::<C>(kernels);
    let weight = |tap, from, to| weight[at(tap, from, to)];
    let weights = pack::<C>(walk, source.channels, narrow, weight);
    let mut out = zeros(walk.batch * walk.steps * walk.width);
    if out.is_empty() {
        return out;
    }
    let tasks = Tasks::new(walk, C::words(source.channels));
    let shared = Shared::new(&mut out);
    let pass = Pass { kernels, walk, source, weights: weights.get(), bias, tasks, out: &shared };
    each_on_a_thread(tasks.count, &|task| run_task::<C>(kernels, &pass, task));
    out
}

/// Panels of columns, each with a row for every word of a window: `[panel, tap, word, column]`.
fn pack<C: Compute>(
    walk: &Walk,
    channels: usize,
    narrow: bool,
    weight: impl Fn(usize, usize, usize) -> f32 + Sync,
) -> Buffer {
    let (blocks, words) = (walk.width.div_ceil(BLOCK), C::words(channels));
    let inner = walk.taps * words;
    let mut packed = Buffer::zeros(blocks * BLOCK * inner);
    let (mut rest, mut first) = (packed.get_mut(), 0);
    while first < blocks {
        let width = panel_blocks(blocks - first, narrow) * BLOCK;
        let (panel, after) = rest.split_at_mut(width * inner);
        panel.par_chunks_exact_mut(width).enumerate().with_min_len(64).for_each(
            |(row, columns)| {
                let (tap, word) = (row / words, row % words);
                for (value, to) in columns.iter_mut().zip(first * BLOCK..walk.width) {
                    *value = C::word(channels, word, |from| weight(tap, from, to));
                }
            },
        );
        rest = after;
        first += width / BLOCK;
    }
    packed
}

/// How the output is cut: into pieces of a sample's steps, or into groups of whole samples where
/// these are short.
#[derive(Clone, Copy)]
struct Tasks {
    /// Steps of a piece.
    steps: usize,
    /// Pieces of a sample.
    pieces: usize,
    /// Samples of a group.
    samples: usize,
    count: usize,
}

impl Tasks {
    fn new(walk: &Walk, words: usize) -> Self {
        let fits = (ROOM / (words * walk.stride).max(1)).clamp(24, STEPS) / 12 * 12;
        let pieces = walk.steps.div_ceil(fits);
        let steps = walk.steps.div_ceil(pieces);
        let samples = if pieces == 1 { (fits / steps).max(1) } else { 1 };
        Self { steps, pieces, samples, count: walk.batch.div_ceil(samples) * pieces }
    }
}

struct Pass<'a> {
    kernels: CpuKernels,
    walk: &'a Walk,
    source: Source<'a>,
    weights: &'a [f32],
    bias: Option<&'a [f32]>,
    tasks: Tasks,
    /// `[sample, step, width]`
    out: &'a Shared<'a>,
}

dispatch!(fn run_task<C: Compute> = compute_task(pass: &Pass<'_>, index: usize));

/// # Safety
/// That of [`Simd`], and no two tasks of the same index at a time.
#[inline(always)]
unsafe fn compute_task<S: Simd, C: Compute>(pass: &Pass<'_>, index: usize) {
    let Pass { walk, source, tasks, .. } = *pass;
    let first_sample = index / tasks.pieces * tasks.samples;
    let samples = tasks.samples.min(walk.batch - first_sample);
    let first_step = index % tasks.pieces * tasks.steps;
    let steps = tasks.steps.min(walk.steps - first_step);
    let words = C::words(source.channels);
    let rows = walk.rows(steps);
    let padded = walk.width.next_multiple_of(BLOCK);
    let (row_size, sums_size) = (source.channels, samples * steps * padded);
    let input_size = samples * rows * words;
    // AMX reads sixteen windows at a time, behind a sample's last as well: where that takes more room than all
    // others of a whole group, they are left to vectors, in the last group, too, which may have fewer samples.
    let behind = (steps.next_multiple_of(amx::TILE) - steps) * walk.stride * words;
    let most = ROOM.max(tasks.samples * rows * words);
    let tiles = Tiles::of::<C>(pass.kernels).filter(|_| behind <= most);
    let behind = if tiles.is_some() { behind } else { 0 };
    let mut scratch = Lent::take(input_size + behind + row_size + sums_size);
    let (sums, rest) = scratch.get_mut().split_at_mut(sums_size);
    let (padded_input, rest) = rest.split_at_mut(input_size + behind);
    let row = &mut rest[..row_size];
    let input = &mut padded_input[..input_size];
    for (at, words) in input.chunks_exact_mut(words).enumerate() {
        let (sample, place) = (first_sample + at / rows, first_step * walk.stride + at % rows);
        let place = walk.start + place as isize;
        if C::VERBATIM {
            source.read(sample, place, 0, words);
        } else {
            source.read(sample, place, 0, row);
            // SAFETY: the caller's promise.
            unsafe { C::pack::<S>(row, words) };
        }
    }
    for sums in sums.chunks_exact_mut(padded) {
        let (values, rest) = sums.split_at_mut(walk.width);
        match pass.bias {
            Some(bias) => values.copy_from_slice(bias),
            None => values.fill(0.0),
        }
        rest.fill(0.0);
    }
    let windows = Windows { steps, rows, words, count: samples * steps };
    // SAFETY: the buffers have the sizes that `windows` and `walk` say.
    unsafe { multiply::<S, C>(pass, windows, tiles.as_ref(), padded_input, sums) };
    // SAFETY: the steps of a task are its own.
    let out = unsafe {
        let first = first_sample * walk.steps + first_step;
        pass.out.part(first * walk.width, samples * steps * walk.width)
    };
    for (out, sums) in out.chunks_exact_mut(walk.width).zip(sums.chunks_exact(padded)) {
        out.copy_from_slice(&sums[..walk.width]);
    }
}

/// The windows of a task within its buffer of rows.
#[derive(Clone, Copy)]
struct Windows {
    /// Steps of a sample.
    steps: usize,
    /// Rows of a sample.
    rows: usize,
    /// Words of a row.
    words: usize,
    /// Steps of all samples.
    count: usize,
}

/// Adds the products of all windows and weights to `sums`, `[step, padded width]`.
///
/// # Safety
/// That of [`Simd`], with `input` and `sums` as large as `windows` says, and for tiles as many windows more as make
/// whole tiles of those of a sample.
#[inline(always)]
unsafe fn multiply<S: Simd, C: Compute>(
    pass: &Pass<'_>,
    windows: Windows,
    tiles: Option<&Tiles>,
    input: &[f32],
    sums: &mut [f32],
) {
    let walk = pass.walk;
    let Windows { steps, rows, words, count } = windows;
    let blocks = walk.width.div_ceil(BLOCK);
    let inner = walk.taps * words;
    assert_eq!(sums.len(), count * blocks * BLOCK);
    assert!(input.len() >= count / steps * rows * words);
    assert_eq!(pass.weights.len(), inner * blocks * BLOCK);
    // Neighbouring taps follow each other in memory; others are taken one by one.
    let (runs, run) = if walk.dilation == 1 { (1, inner) } else { (walk.taps, words) };
    let most = const { if narrow::<S, C>() { NARROW_INNER } else { INNER } };
    for (tap, done) in (0..runs).flat_map(|tap| (0..run).step_by(most).map(move |at| (tap, at))) {
        let taken = most.min(run - done);
        let (from, weight_row) = (tap * walk.dilation * words + done, tap * run + done);
        let tiled = if tiles.is_some() { in_tiles(taken) } else { 0 };
        let mut block = 0;
        while block < blocks {
            let taken_blocks = panel_blocks(blocks - block, const { narrow::<S, C>() });
            // SAFETY: a window's words end with the last row of its sample, a panel has `inner`
            // rows, and `sums` has a row for each step.
            unsafe {
                let panel = pass.weights.as_ptr().add(block * BLOCK * inner);
                let weights = panel.add(weight_row * taken_blocks * BLOCK);
                let sums = sums.as_mut_ptr().add(block * BLOCK);
                let stride = blocks * BLOCK;
                let input = input.as_ptr().add(from);
                let window = |step: usize| {
                    let (sample, step) = (step / steps, step % steps);
                    input.add((sample * rows + step * walk.stride) * words)
                };
                if let Some(tiles) = tiles.filter(|_| tiled > 0) {
                    let row = walk.stride * words;
                    for first in (0..count).step_by(steps) {
                        let (sums, windows) = (sums.add(first * stride), (window(first), row));
                        let (weights, groups) = ((weights, taken_blocks), tiled / amx::TILE);
                        whole_tiles(tiles, (sums, stride), steps, windows, weights, groups);
                    }
                }
                let left = taken - tiled;
                let weights = weights.add(tiled * taken_blocks * BLOCK);
                macro_rules! columns {
                    ($N:literal) => {
                        for_row_tiles!(S, count, step, M => {
                            let mut starts = [input; M];
                            for (m, start) in starts.iter_mut().enumerate() {
                                *start = window(step + m).add(tiled);
                            }
                            let sums = sums.add(step * stride);
                            tile::<S, C, M, $N>(sums, stride, starts, 1, weights, left);
                        })
                    };
                }
                match taken_blocks {
                    _ if left == 0 => {}
                    4 => columns!(4),
                    2 => columns!(2),
                    _ => columns!(1),
                }
            }
            block += taken_blocks;
        }
    }
}
