//! The gradient of the weights: products of the input's columns and the output's gradient over all
//! steps of all samples.

use rayon::prelude::*;

use super::super::amx::{self, Tiles, in_tiles};
use super::super::block::{for_row_tiles, narrow};
use super::super::compute::Compute;
use super::super::kernels::dispatch;
use super::super::pool::Lent;
use super::super::simd::Simd;
use super::super::{BLOCK, CpuKernels, Shared, zeros};
use super::{Conv, Source, panel_blocks, tile, whole_tiles};

/// Steps that are taken at once, an even number: with four blocks of columns their gradients fill
/// 30 KiB.
const STEPS: usize = 120;
/// The same for tiles of AMX: words of pairs of steps that make whole groups.
const TILED_STEPS: usize = 128;
/// Input channels of a task: the first that gives at least [`TASKS`], whatever the number of
/// threads, else the last.
const CHANNELS: [usize; 3] = [64, 48, 24];
const TASKS: usize = 8;

/// `[output, input, kernel]`
pub(super) fn run<C: Compute>(
    kernels: CpuKernels,
    conv: &Conv,
    source: Source<'_>,
    dy: &[f32],
) -> Vec<f32> {
    let mut out = zeros(conv.output * conv.input * conv.kernel);
    if dy.is_empty() || out.is_empty() {
        return out;
    }
    let blocks = conv.output.div_ceil(BLOCK);
    let mut panels = vec![];
    let mut block = 0;
    while block < blocks {
        panels.push((block, panel_blocks(blocks - block, false)));
        block += panel_blocks(blocks - block, false);
    }
    let enough = |channels: &usize| conv.input.div_ceil(*channels) * panels.len() >= TASKS;
    let channels = CHANNELS.into_iter().find(enough).unwrap_or(CHANNELS[2]);
    let shared = Shared::new(&mut out);
    let pass = Pass { kernels, conv, source, dy, out: &shared };
    let firsts = (0..conv.input).step_by(channels);
    let tasks: Vec<_> = firsts
        .flat_map(|first| panels.iter().map(move |(block, blocks)| (first, *block, *blocks)))
        .map(|(first, block, blocks)| Task {
            first,
            channels: channels.min(conv.input - first),
            block,
            blocks,
        })
        .collect();
    tasks.into_par_iter().with_max_len(1).for_each(|task| run_task::<C>(kernels, &pass, task));
    out
}

struct Pass<'a> {
    kernels: CpuKernels,
    conv: &'a Conv,
    source: Source<'a>,
    /// `[sample, step, output]`
    dy: &'a [f32],
    /// `[output, input, kernel]`
    out: &'a Shared<'a>,
}

/// Some input channels, and some blocks of output channels.
#[derive(Clone, Copy)]
struct Task {
    first: usize,
    channels: usize,
    block: usize,
    blocks: usize,
}

dispatch!(fn run_task<C: Compute> = compute_task(pass: &Pass<'_>, task: Task));

/// # Safety
/// That of [`Simd`], and no task twice at a time.
#[inline(always)]
unsafe fn compute_task<S: Simd, C: Compute>(pass: &Pass<'_>, task: Task) {
    let Pass { conv, .. } = *pass;
    let Task { first, channels, block, blocks } = task;
    let width = blocks * BLOCK;
    // Tiles read the steps of a channel one after the other.
    let tiles = Tiles::of::<C>(pass.kernels).filter(|_| conv.stride == 1);
    let most_steps = if tiles.is_some() { TILED_STEPS } else { STEPS };
    // Rows follow the stride, which may be longer than the input where there are fewer steps.
    let most_steps = most_steps.min(conv.steps());
    let most_rows = (most_steps - 1) * conv.stride + (conv.kernel - 1) * conv.dilation + 1;
    let unit = if tiles.is_some() { amx::TILE } else { 1 };
    let sizes = [
        conv.kernel * channels * width,
        most_rows * channels.next_multiple_of(unit),
        most_steps * width,
        2 * channels.max(width),
        channels,
    ];
    let mut scratch = Lent::take(sizes.iter().sum());
    let (sums, rest) = scratch.get_mut().split_at_mut(sizes[0]);
    let (input, rest) = rest.split_at_mut(sizes[1]);
    let (gradients, rest) = rest.split_at_mut(sizes[2]);
    let (rows, rest) = rest.split_at_mut(sizes[3]);
    sums.fill(0.0);
    let row = &mut rest[..channels];
    let tiled = tiles.map(|tiles| Tiled { tiles, rows: most_rows, row });
    let mut buffers = Buffers { sums, input, gradients, rows, tiled };
    let steps = conv.steps();
    for sample in 0..conv.batch {
        let mut step = 0;
        while step < steps {
            let left = most_steps.min(steps - step);
            // An odd step at the end is taken alone, beside zeros: as the second of a pair, rows
            // that it does not read would meet its zero, and NaN times zero is NaN.
            let taken = if C::PAIR == 2 && left > 1 { left - left % 2 } else { left };
            // SAFETY: the caller's promise, and buffers for so many steps.
            unsafe { add_steps::<S, C>(pass, task, sample, step, taken, &mut buffers) };
            step += taken;
        }
    }
    let last = conv.output.min((block + blocks) * BLOCK);
    for (column, output) in (block * BLOCK..last).enumerate() {
        let at = (output * conv.input + first) * conv.kernel;
        // SAFETY: the channels of a task are its own.
        let out = unsafe { pass.out.part(at, channels * conv.kernel) };
        for (channel, taps) in out.chunks_exact_mut(conv.kernel).enumerate() {
            for (tap, value) in taps.iter_mut().enumerate() {
                *value = buffers.sums[(tap * channels + channel) * width + column];
            }
        }
    }
}

struct Buffers<'a> {
    /// `[tap, channel, column]`
    sums: &'a mut [f32],
    /// `[row, channel]`
    input: &'a mut [f32],
    /// `[step, column]`; `[block, step, 16]` where register tiles are [`narrow`].
    gradients: &'a mut [f32],
    /// Two rows of either.
    rows: &'a mut [f32],
    tiled: Option<Tiled<'a>>,
}

/// What tiles of AMX need: then the input lies as `[channel, row]`, with whole tiles of channels.
struct Tiled<'a> {
    tiles: Tiles,
    /// From one channel to the next.
    rows: usize,
    /// Words of all channels.
    row: &'a mut [f32],
}

/// Adds the products of some steps of a sample. Where words are pairs, a word holds a number of a
/// step of the first half and of the same step of the second half; `count` is then even, or one.
///
/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn add_steps<S: Simd, C: Compute>(
    pass: &Pass<'_>,
    task: Task,
    sample: usize,
    step: usize,
    count: usize,
    buffers: &mut Buffers<'_>,
) {
    let Pass { conv, source, dy, .. } = *pass;
    let Task { first, channels, block, blocks } = task;
    let width = blocks * BLOCK;
    let half = count.div_ceil(C::PAIR);
    let paired = half < count;
    let rows = (half - 1) * conv.stride + (conv.kernel - 1) * conv.dilation + 1;
    let start = (step * conv.stride) as isize - conv.padding[0] as isize;
    let (low, high) = buffers.rows.split_at_mut(channels.max(width));
    for row in 0..rows {
        let place = start + row as isize;
        let words = match &mut buffers.tiled {
            Some(tiled) => &mut *tiled.row,
            None => &mut buffers.input[row * channels..][..channels],
        };
        if C::VERBATIM {
            source.read(sample, place, first, words);
            continue;
        }
        let (low, high) = (&mut low[..channels], &mut high[..channels]);
        source.read(sample, place, first, low);
        match paired {
            true => source.read(sample, place + (half * conv.stride) as isize, first, high),
            false => high.fill(0.0),
        }
        // SAFETY: the caller's promise.
        unsafe { C::join_rows::<S>(low, high, words) };
        if let Some(tiled) = &buffers.tiled {
            let places = buffers.input[row..].iter_mut().step_by(tiled.rows);
            places.zip(&*tiled.row).for_each(|(place, word)| *place = *word);
        }
    }
    let columns = block * BLOCK..conv.output.min((block + blocks) * BLOCK);
    let read = |step: usize, out: &mut [f32]| {
        let row = &dy[(sample * conv.steps() + step) * conv.output..][columns.clone()];
        let (values, rest) = out.split_at_mut(row.len());
        values.copy_from_slice(row);
        rest.fill(0.0);
    };
    if narrow::<S, C>() {
        let row = &mut low[..width];
        for at in 0..half {
            read(step + at, row);
            for (block, values) in row.chunks_exact(BLOCK).enumerate() {
                let words = &mut buffers.gradients[(block * half + at) * BLOCK..][..BLOCK];
                // SAFETY: the caller's promise.
                unsafe { C::pack::<S>(values, words) };
            }
        }
    }
    let packed = if narrow::<S, C>() { 0 } else { half };
    for (at, words) in buffers.gradients.chunks_exact_mut(width).take(packed).enumerate() {
        if C::VERBATIM {
            read(step + at, words);
            continue;
        }
        let (low, high) = (&mut low[..width], &mut high[..width]);
        read(step + at, low);
        match paired {
            true => read(step + half + at, high),
            false => high.fill(0.0),
        }
        // SAFETY: the caller's promise.
        unsafe { C::join_rows::<S>(low, high, words) };
    }
    // From one step to the next, from one channel to the next, and steps that tiles take.
    let (jump, channel_row, done) = match &buffers.tiled {
        Some(tiled) => (1, tiled.rows, in_tiles(half)),
        None => (conv.stride * channels, 1, 0),
    };
    let row = if buffers.tiled.is_some() { 1 } else { channels };
    for tap in 0..conv.kernel {
        // SAFETY: step `k` of tap `tap` reads row `k · stride + tap · dilation`, which is below
        // `rows`; `sums` has a row for every channel of every tap.
        unsafe {
            let input = buffers.input.as_ptr().add(tap * conv.dilation * row);
            let gradients = buffers.gradients.as_ptr();
            let sums = buffers.sums.as_mut_ptr().add(tap * channels * width);
            if let Some(Tiled { tiles, rows, .. }) = buffers.tiled.as_mut().filter(|_| done > 0) {
                let (sums, input, gradients) = ((sums, width), (input, *rows), (gradients, blocks));
                let groups = done / amx::TILE;
                whole_tiles(tiles, sums, channels, input, gradients, groups);
            }
            if done == half {
                continue;
            }
            let (input, gradients) = (input.add(done), gradients.add(done * width));
            macro_rules! columns {
                ($N:literal) => {
                    for_row_tiles!(S, channels, channel, M => {
                        let mut starts = [input; M];
                        for (m, start) in starts.iter_mut().enumerate() {
                            *start = input.add((channel + m) * channel_row);
                        }
                        let sums = sums.add(channel * width);
                        tile::<S, C, M, $N>(sums, width, starts, jump, gradients, half - done);
                    })
                };
            }
            match blocks {
                _ if narrow::<S, C>() => {
                    for block in 0..blocks {
                        let gradients = gradients.add(block * half * BLOCK);
                        for_row_tiles!(S, channels, channel, M => {
                            let mut starts = [input; M];
                            for (m, start) in starts.iter_mut().enumerate() {
                                *start = input.add(channel + m);
                            }
                            let sums = sums.add(channel * width + block * BLOCK);
                            tile::<S, C, M, 1>(sums, width, starts, jump, gradients, half);
                        });
                    }
                }
                4 => columns!(4),
                2 => columns!(2),
                _ => columns!(1),
            }
        }
    }
}
