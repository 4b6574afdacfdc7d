//! Passes over all gradients, weights and moments of a model at once: slices in, slices out.
//!
//! Every slice is cut into chunks of a fixed length and the chunks of all slices are one list of
//! work, so a model of two hundred small tensors costs as little as one large tensor and both keep
//! all threads busy. Nothing is allocated but the list. Each number is computed from those at its
//! own place by the same instructions in every variant, and the sum of squares is taken in f64 over
//! chunks in their order: results are the same to the bit on any number of threads and any variant.

use rayon::prelude::*;

use super::CpuKernels;
use super::kernels::dispatch;
use super::simd::Simd;

/// Numbers that a thread takes at once.
const CHUNK: usize = 1 << 15;

/// Numbers below which one thread is done before a second one has begun.
const THREADED: usize = 1 << 16;

/// Partial sums of a chunk, so that additions do not wait for each other.
const SUMS: usize = 32;

/// The sum of the squares of all numbers, in f64: it is finite exactly if every number is.
pub(crate) fn squares(kernels: CpuKernels, slices: &[&[f32]]) -> f64 {
    let chunks: Vec<&[f32]> = slices.iter().flat_map(|slice| slice.chunks(CHUNK)).collect();
    let one = |chunk: &&[f32]| {
        let mut sum = 0.0;
        chunk_squares(kernels, chunk, &mut sum);
        sum
    };
    if slices.iter().map(|slice| slice.len()).sum::<usize>() < THREADED {
        return chunks.iter().map(one).sum();
    }
    let mut sums = vec![];
    chunks.par_iter().map(one).collect_into_vec(&mut sums);
    sums.iter().sum()
}

dispatch!(fn chunk_squares = chunk_squares_of(x: &[f32], total: &mut f64));

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn chunk_squares_of<S: Simd>(x: &[f32], total: &mut f64) {
    let mut sums = [0.0; SUMS];
    let (chunks, rest) = x.as_chunks::<SUMS>();
    for chunk in chunks {
        for lane in 0..SUMS {
            // The square of an f32 is exact in f64, so that it does not matter whether product and
            // sum are fused.
            sums[lane] += f64::from(chunk[lane]) * f64::from(chunk[lane]);
        }
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        *sum += f64::from(*x) * f64::from(*x);
    }
    *total = sums.iter().sum();
}

/// Several slices of the same length, of which a chunk is taken from all at the same place.
pub(crate) trait Work: Sized + Send {
    /// Numbers in each slice.
    fn len(&self) -> usize;
    /// The first `at` numbers of each slice, and the others.
    fn split(self, at: usize) -> (Self, Self);
    /// Does the work.
    fn run(self, kernels: CpuKernels);
}

/// Does all the work, in chunks.
pub(crate) fn sweep<W: Work>(kernels: CpuKernels, work: Vec<W>) {
    if work.iter().map(Work::len).sum::<usize>() < THREADED {
        return work.into_iter().for_each(|work| work.run(kernels));
    }
    let mut chunks = vec![];
    for mut rest in work {
        while rest.len() > CHUNK {
            let (chunk, others) = rest.split(CHUNK);
            chunks.push(chunk);
            rest = others;
        }
        chunks.push(rest);
    }
    chunks.into_par_iter().for_each(|chunk| chunk.run(kernels));
}

/// What a gradient goes through before it is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prepare {
    /// Factor on the gradient.
    pub(crate) factor: f32,
    /// Largest magnitude after that; infinite: any.
    pub(crate) limit: f32,
}

impl Prepare {
    #[inline(always)]
    fn apply(self, gradient: f32) -> f32 {
        let gradient = gradient * self.factor;
        // Not `clamp`, which panics on bounds that are not numbers.
        if gradient > self.limit {
            self.limit
        } else if gradient < -self.limit {
            -self.limit
        } else {
            gradient
        }
    }
}

/// The numbers of an AdamW step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdamW {
    pub(crate) prepare: Prepare,
    /// What decay leaves of a weight.
    pub(crate) keep: f32,
    /// `1 - β₁`
    pub(crate) first: f32,
    /// `β₂` and `1 - β₂`
    pub(crate) second: [f32; 2],
    /// `√(1 - β₂ᵗ)`
    pub(crate) correction: f32,
    pub(crate) eps: f32,
    /// `lr / (1 - β₁ᵗ)`
    pub(crate) step_size: f32,
}

/// A parameter and its moments under AdamW.
pub(crate) struct AdamWWork<'a> {
    pub(crate) weights: &'a mut [f32],
    pub(crate) gradient: &'a [f32],
    pub(crate) first: &'a mut [f32],
    pub(crate) second: &'a mut [f32],
    pub(crate) step: AdamW,
}

impl Work for AdamWWork<'_> {
    fn len(&self) -> usize {
        self.weights.len()
    }

    fn split(self, at: usize) -> (Self, Self) {
        let (weights, weights_rest) = self.weights.split_at_mut(at);
        let (gradient, gradient_rest) = self.gradient.split_at(at);
        let (first, first_rest) = self.first.split_at_mut(at);
        let (second, second_rest) = self.second.split_at_mut(at);
        let step = self.step;
        (
            Self { weights, gradient, first, second, step },
            Self {
                weights: weights_rest,
                gradient: gradient_rest,
                first: first_rest,
                second: second_rest,
                step,
            },
        )
    }

    fn run(self, kernels: CpuKernels) {
        let Self { weights, gradient, first, second, step } = self;
        adamw(kernels, weights, gradient, first, second, step);
    }
}

dispatch!(fn adamw = adamw_of(
    weights: &mut [f32],
    gradient: &[f32],
    first: &mut [f32],
    second: &mut [f32],
    step: AdamW
));

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn adamw_of<S: Simd>(
    weights: &mut [f32],
    gradient: &[f32],
    first: &mut [f32],
    second: &mut [f32],
    step: AdamW,
) {
    let AdamW { prepare, keep, second: [beta, rest], correction, eps, step_size, .. } = step;
    let all = weights.iter_mut().zip(gradient).zip(first.iter_mut().zip(second));
    for ((weight, gradient), (first, second)) in all {
        let gradient = prepare.apply(*gradient);
        *first += (gradient - *first) * step.first;
        *second = *second * beta + gradient * gradient * rest;
        let denominator = second.sqrt() / correction + eps;
        *weight = *weight * keep - *first / denominator * step_size;
    }
}

/// The numbers of a step of stochastic gradient descent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sgd {
    pub(crate) prepare: Prepare,
    /// Share of the weight that is added to its gradient.
    pub(crate) decay: f32,
    pub(crate) momentum: f32,
    /// Share of the gradient that the momentum takes.
    pub(crate) take: f32,
    pub(crate) nesterov: bool,
    pub(crate) rate: f32,
}

/// A parameter and its momentum; the momentum has no numbers where there is none.
pub(crate) struct SgdWork<'a> {
    pub(crate) weights: &'a mut [f32],
    pub(crate) gradient: &'a [f32],
    pub(crate) momentum: &'a mut [f32],
    pub(crate) step: Sgd,
}

impl Work for SgdWork<'_> {
    fn len(&self) -> usize {
        self.weights.len()
    }

    fn split(self, at: usize) -> (Self, Self) {
        let (weights, weights_rest) = self.weights.split_at_mut(at);
        let (gradient, gradient_rest) = self.gradient.split_at(at);
        let of_momentum = at.min(self.momentum.len());
        let (momentum, momentum_rest) = self.momentum.split_at_mut(of_momentum);
        let step = self.step;
        let rest =
            Self { weights: weights_rest, gradient: gradient_rest, momentum: momentum_rest, step };
        (Self { weights, gradient, momentum, step }, rest)
    }

    fn run(self, kernels: CpuKernels) {
        let Self { weights, gradient, momentum, step } = self;
        match momentum.is_empty() {
            true => sgd_plain(kernels, weights, gradient, step),
            false => sgd(kernels, weights, gradient, momentum, step),
        }
    }
}

dispatch!(fn sgd_plain = sgd_plain_of(weights: &mut [f32], gradient: &[f32], step: Sgd));

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn sgd_plain_of<S: Simd>(weights: &mut [f32], gradient: &[f32], step: Sgd) {
    for (weight, gradient) in weights.iter_mut().zip(gradient) {
        *weight -= (step.prepare.apply(*gradient) + *weight * step.decay) * step.rate;
    }
}

dispatch!(fn sgd = sgd_of(
    weights: &mut [f32],
    gradient: &[f32],
    momentum: &mut [f32],
    step: Sgd
));

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn sgd_of<S: Simd>(weights: &mut [f32], gradient: &[f32], momentum: &mut [f32], step: Sgd) {
    for ((weight, gradient), momentum) in weights.iter_mut().zip(gradient).zip(momentum) {
        let gradient = step.prepare.apply(*gradient) + *weight * step.decay;
        *momentum = *momentum * step.momentum + gradient * step.take;
        // Nesterov's direction is `g + μ·b`, the plain one `b`.
        let looked = gradient + *momentum * step.momentum;
        let direction = if step.nesterov { looked } else { *momentum };
        *weight -= direction * step.rate;
    }
}

/// `to ← to + from · factor`, or `to ← to + (from - to) · factor`.
pub(crate) struct AddWork<'a> {
    pub(crate) to: &'a mut [f32],
    pub(crate) from: &'a [f32],
    pub(crate) factor: f32,
    /// Whether the difference to `from` is added, and not `from` itself.
    pub(crate) towards: bool,
}

impl Work for AddWork<'_> {
    fn len(&self) -> usize {
        self.to.len()
    }

    fn split(self, at: usize) -> (Self, Self) {
        let Self { factor, towards, .. } = self;
        let (to, to_rest) = self.to.split_at_mut(at);
        let (from, from_rest) = self.from.split_at(at);
        (Self { to, from, factor, towards }, Self { to: to_rest, from: from_rest, factor, towards })
    }

    fn run(self, kernels: CpuKernels) {
        match self.towards {
            false => add(kernels, self.to, self.from, self.factor),
            true => approach(kernels, self.to, self.from, self.factor),
        }
    }
}

dispatch!(fn add = add_of(to: &mut [f32], from: &[f32], factor: f32));

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn add_of<S: Simd>(to: &mut [f32], from: &[f32], factor: f32) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += *from * factor;
    }
}

dispatch!(fn approach = approach_of(to: &mut [f32], from: &[f32], factor: f32));

/// # Safety
/// That of [`Simd`].
#[inline(always)]
unsafe fn approach_of<S: Simd>(to: &mut [f32], from: &[f32], factor: f32) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += (*from - *to) * factor;
    }
}
