//! The kernels of a CPU: slices in, slices out, no tensor.
//!
//! Recurrent layers: the batch is cut into tiles of samples of similar length. A tile runs all its time steps on one
//! thread, so no thread ever waits for another within a sequence, and the recurrent weights and the
//! state stay in that core's cache. One step of a tile is one product `[x_t | h] · Wᵀ` in register
//! tiles of several samples by 16 hidden units by four gates; the gate functions are applied to the
//! registers before anything is stored. The backward pass walks the same tiles in reverse: one
//! product gives `[dh | dx]`, and the gradient of the weights is summed up from as many rows at a time
//! as lie in cache.
//!
//! The tiles depend on the batch and its lengths alone and sums over tiles are taken in their
//! order, so results are the same to the bit on any number of threads.

mod amx;
mod attention;
mod backward;
mod batch_norm;
mod block;
mod ceilings;
mod cell;
mod compute;
mod conv;
mod dropout;
mod embedding;
mod encoder;
mod feed_forward;
mod forward;
mod gates;
mod gelu;
mod kernels;
mod lanes;
mod linear;
mod loss;
mod math;
mod max_pool;
mod noise;
mod norm;
mod pack;
mod plan;
mod pool;
mod product;
mod round;
mod simd;
mod sweep;

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

pub use attention::AttentionWindow;
pub(crate) use attention::{
    AttentionLengths, AttentionOutput, AttentionRules, AttentionSizes, DisentangledCall,
    DisentangledRules, DisentangledSizes, DistanceTable, GradientLayout, MOST_POSITIONS, Operand,
    Operands, Place, ProbabilityMask, Sight, attention, attention_backward, disentangled,
    disentangled_backward,
};
pub(crate) use backward::{OutputGradients, Wanted, backward};
pub(crate) use batch_norm::{
    Affine, Epilogue, Normalised, Statistics, Steps, batch_norm_backward, normalise, statistics,
};
pub use ceilings::CpuCeilings;
use compute::{Words, in_words};
pub(crate) use conv::{Conv, ConvArithmetic};
pub(crate) use dropout::{Mask, dropout, relu, relu_backward};
pub(crate) use embedding::{clear, gather, scatter};
pub(crate) use encoder::{EncoderLayer, Norm};
pub(crate) use feed_forward::{DenseLayer, are_worth_a_task, dense_layers, feed_forward};
pub(crate) use forward::{Inputs, Saved, forward};
pub(crate) use gelu::{dropout_add, dropout_of, gelu, gelu_backward, gelu_in_place};
pub use kernels::{CpuKernels, CpuKernelsError};
pub(crate) use linear::{Before, Linear};
pub(crate) use loss::{CrossEntropy, Element, Row, cross_entropy, elements, scale};
pub(crate) use max_pool::MaxPool;
pub(crate) use noise::{Noise, add_noise};
pub(crate) use norm::{
    Gradients as NormGradients, Moments, layer_norm, layer_norm_backward, layer_norm_in_place,
};
pub(crate) use plan::{Plan, Sizes};
pub use pool::{buffer_bytes, release_buffers};
pub use product::Activation;
pub(crate) use product::{Matrices, Matrix, Panels, Products, Weight, distances};
pub(crate) use round::{Narrow, round};
pub(crate) use sweep::{AdamW, AdamWWork, AddWork, Prepare, Sgd, SgdWork, squares, sweep};

/// Hidden units that are computed together, and the width of the blocks of all packed operands: the
/// widest vector. Layouts do not depend on the kind of vector that is used.
const BLOCK: usize = 16;

/// Floats in the four gates of a block of units.
const GATES: usize = 4 * BLOCK;

/// What a layer computes, in which type and with which instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arithmetic {
    pub(crate) kernels: CpuKernels,
    pub(crate) cell: CellKind,
    /// Whether the operands of products are rounded to bf16. Everything else is f32 either way.
    pub(crate) bf16: bool,
}

/// A kind of recurrent cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CellKind {
    Lstm,
    Gru,
}

/// Work that is compiled for each cell and type.
trait Pass {
    type Result;
    fn run<C: compute::Compute, K: cell::Cell>(self) -> Self::Result;
}

impl Arithmetic {
    /// Whether products of a recurrent layer of these sizes are formed by tiles of AMX.
    fn in_tiles(self, sizes: &Sizes) -> bool {
        self.kernels == CpuKernels::Amx && (self.bf16 || self.in_pieces(sizes))
    }

    /// Whether they are products of f32 in pieces: with fewer units or samples, vectors are faster.
    fn in_pieces(self, sizes: &Sizes) -> bool {
        let [samples, units] = PIECES;
        let fits = sizes.batch >= samples && sizes.hidden >= units;
        self.kernels == CpuKernels::Amx && !self.bf16 && fits
    }

    fn dispatch<P: Pass>(self, sizes: &Sizes, pass: P) -> P::Result {
        let words = match self.in_pieces(sizes) {
            true => Words::Split,
            false => Words::of(self.kernels, self.bf16),
        };
        in_words!(words, C => match self.cell {
            CellKind::Lstm => pass.run::<C, cell::LstmCell>(),
            CellKind::Gru => pass.run::<C, cell::GruCell>(),
        })
    }
}

/// Samples and hidden units from which on recurrent layers multiply f32 in pieces: fewer samples do not fill
/// tiles, and with fewer units the packing takes longer than it saves (measured with 8, 64 and 256 samples of 32 to 96
/// units).
const PIECES: [usize; 2] = [32, 64];

/// Runs tasks on all threads, or one after the other where all of them together touch so few numbers
/// that waking threads would take longer. Tasks must not depend on each other.
fn each_task(tasks: usize, numbers: usize, run: impl Fn(usize) + Sync) {
    if tasks < 2 || numbers < 1 << 15 {
        return (0..tasks).for_each(run);
    }
    each_on_a_thread(tasks, &run);
}

/// Runs tasks on all threads. One function for all of them: what spreads them is compiled once.
fn each_on_a_thread(tasks: usize, run: &(dyn Fn(usize) + Sync)) {
    (0..tasks).into_par_iter().with_max_len(1).for_each(run);
}

/// Cuts `count` things into parts and runs each on one thread, in their order: parts of up to `most`
/// things, and towards the end smaller ones, of at least `fewest`, so that threads end together. Results
/// must not depend on the parts.
fn in_order(count: usize, [fewest, most]: [usize; 2], run: impl Fn(Range<usize>) + Sync) {
    let threads = rayon::current_num_threads();
    let (mut parts, mut first) = (vec![], 0);
    while first < count {
        let left = count - first;
        let part = left.div_ceil(2 * threads).min(most).max(fewest).clamp(1, left);
        parts.push(first..first + part);
        first += part;
    }
    let next = AtomicUsize::new(0);
    each_on_a_thread(threads.min(parts.len()), &|_| {
        while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
            run(part.clone());
        }
    });
}

/// So many zeros, written by all threads: a single one takes 5 ms for 50 MB.
pub(crate) fn zeros(count: usize) -> Vec<f32> {
    let mut zeros = vec![];
    rayon::iter::repeat_n(0.0, count).collect_into_vec(&mut zeros);
    zeros
}

/// So many numbers in memory that is written once: `write` puts them there.
///
/// # Safety
/// `write` writes each of them.
unsafe fn written<R>(
    count: usize,
    write: impl FnOnce(&mut [MaybeUninit<f32>]) -> R,
) -> (Vec<f32>, R) {
    let mut numbers = Vec::with_capacity(count);
    let result = write(&mut numbers.spare_capacity_mut()[..count]);
    // SAFETY: there is room for them, and the caller vouches that they were written.
    unsafe { numbers.set_len(count) };
    (numbers, result)
}

/// The same numbers in memory of their own, copied by all threads.
pub(crate) fn copy(values: &[f32]) -> Vec<f32> {
    let mut copy = vec![];
    values.par_iter().copied().collect_into_vec(&mut copy);
    copy
}

/// A slice that several threads write to, each its own elements.
struct Shared<'a, T = f32> {
    start: *mut T,
    len: usize,
    slice: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: only `part` gives access to the elements; its callers promise that no two threads touch
// the same ones.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    fn new(slice: &'a mut [T]) -> Self {
        let (start, len) = (slice.as_mut_ptr(), slice.len());
        Self { start, len, slice: std::marker::PhantomData }
    }

    /// Memory that need not hold numbers yet.
    ///
    /// # Safety
    /// It is valid for `len` numbers, and nobody else uses it as long as this lives.
    unsafe fn from_raw(start: *mut T, len: usize) -> Self {
        Self { start, len, slice: std::marker::PhantomData }
    }

    #[inline(always)]
    fn holds(&self, at: usize, count: usize) -> bool {
        at.checked_add(count).is_some_and(|end| end <= self.len)
    }

    /// Where `count` numbers begin, some of which belong to the caller.
    fn pointer(&self, at: usize, count: usize) -> *mut T {
        assert!(self.holds(at, count), "{count} numbers at {at} of {}", self.len);
        self.start.wrapping_add(at)
    }

    /// The part of the slice that belongs to the caller.
    ///
    /// # Safety
    /// No other part that is alive may overlap this one.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    unsafe fn part(&self, at: usize, count: usize) -> &mut [T] {
        assert!(self.holds(at, count), "a part of {count} at {at} of {} numbers", self.len);
        // SAFETY: inside the slice, by the assertion; not shared, by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), count) }
    }
}
