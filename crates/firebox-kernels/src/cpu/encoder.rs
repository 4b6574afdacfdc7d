//! A layer of a Transformer's encoder as a whole, without gradients: a thread takes some samples from
//! their input to the layer's result, and all that is between stays in its caches.
//!
//! The arithmetic is that of the operations one by one, to the bit.

use super::attention::{
    AttentionLengths, AttentionRules, AttentionSizes, Operand, Operands, Place, attention_of,
};
use super::feed_forward::{FEWEST, fed};
use super::norm::norm_rows;
use super::pool::Lent;
use super::product::{Activation, Weight};
use super::{CpuKernels, Shared, in_order};

/// Steps that a thread takes at once, if one sample does not have more.
const STEPS: usize = 256;

/// Scale and shift of a layer normalisation, and what it adds to the variance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Norm<'a> {
    pub(crate) gamma: &'a [f32],
    pub(crate) beta: Option<&'a [f32]>,
    pub(crate) epsilon: f32,
}

impl Norm<'_> {
    fn apply(&self, kernels: CpuKernels, x: &[f32], y: &mut [f32]) {
        norm_rows(kernels, x, self.gamma, self.beta, self.epsilon, y);
    }
}

/// A layer and the shape of its input, `[batch, queries, heads · size]`.
pub(crate) struct EncoderLayer<'a> {
    pub(crate) rules: AttentionRules,
    pub(crate) sizes: AttentionSizes,
    /// Queries, keys and values side by side.
    pub(crate) in_proj: Weight<'a>,
    pub(crate) out_proj: Weight<'a>,
    pub(crate) feed: [Weight<'a>; 2],
    pub(crate) activation: Activation,
    /// Of attention and of the feed-forward network.
    pub(crate) norms: [Norm<'a>; 2],
    /// Whether they stand before each part, not after its residual sum.
    pub(crate) norm_first: bool,
}

impl EncoderLayer<'_> {
    /// `[batch, queries, heads · size]`
    pub(crate) fn forward(&self, x: &[f32], lengths: Option<&[usize]>) -> Vec<f32> {
        let AttentionSizes { batch, queries: time, heads, size, .. } = self.sizes;
        let of_a_sample = time * heads * size;
        assert_eq!(x.len(), batch * of_a_sample, "samples of {time} × {}", heads * size);
        let mut out = Vec::with_capacity(x.len());
        // SAFETY: there is room for so many numbers, and the memory is nobody else's.
        let shared = unsafe { Shared::from_raw(out.as_mut_ptr(), x.len()) };
        in_order(batch, [FEWEST.div_ceil(time), STEPS / time], |samples| {
            let [first, last] = [samples.start, samples.end].map(|sample| sample * of_a_sample);
            let to = shared.pointer(first, last - first);
            // SAFETY: samples belong to one task.
            let to = unsafe { Shared::from_raw(to, last - first) };
            self.samples(&x[first..last], lengths.map(|lengths| &lengths[samples]), &to);
        });
        // SAFETY: every sample was written.
        unsafe { out.set_len(x.len()) };
        out
    }

    /// Whole samples by the calling thread.
    fn samples(&self, x: &[f32], lengths: Option<&[usize]>, out: &Shared<'_>) {
        let kernels = self.rules.kernels;
        let [norm1, norm2] = &self.norms;
        let mut normal = Lent::take(x.len());
        let mut sum = Lent::take(x.len());
        let (normal, sum) = (&mut normal.get_mut()[..x.len()], &mut sum.get_mut()[..x.len()]);
        if self.norm_first {
            norm1.apply(kernels, x, normal);
            self.attend(normal, lengths, x, &Shared::new(sum));
            norm2.apply(kernels, sum, normal);
            self.feed(normal, sum, out);
        } else {
            self.attend(x, lengths, x, &Shared::new(sum));
            norm1.apply(kernels, sum, normal);
            self.feed(normal, normal, &Shared::new(sum));
            // SAFETY: the samples are this task's.
            norm2.apply(kernels, sum, unsafe { out.part(0, x.len()) });
        }
    }

    /// Attention between its projections, and `addend`.
    fn attend(&self, x: &[f32], lengths: Option<&[usize]>, addend: &[f32], out: &Shared<'_>) {
        let AttentionSizes { queries: time, heads, size, .. } = self.sizes;
        let width = heads * size;
        let sizes = AttentionSizes { batch: x.len() / (time * width), ..self.sizes };
        let mut packed = Lent::take(self.in_proj.packed(sizes.batch * time));
        let mut projected = Lent::take(3 * x.len());
        let mut attended = Lent::take(x.len());
        let values = &mut projected.get_mut()[..3 * x.len()];
        self.in_proj.multiply(self.in_proj.pack(x, packed.get_mut()), None, &Shared::new(values));
        let part = |index: usize| {
            let place = Place { offset: index * width, sample: 3 * time * width, row: 3 * width };
            Operand { values, place }
        };
        let operands = Operands { q: part(0), k: part(1), v: part(2) };
        let lengths = lengths.map(<[usize]>::to_vec);
        let lengths = AttentionLengths { queries: lengths.clone(), keys: lengths };
        let values = &mut attended.get_mut()[..x.len()];
        attention_of(&self.rules, &sizes, &lengths, &operands, values);
        let attended = self.out_proj.pack(values, packed.get_mut());
        self.out_proj.multiply(attended, Some(addend), out);
    }

    /// The feed-forward network, and `addend`.
    fn feed(&self, x: &[f32], addend: &[f32], out: &Shared<'_>) {
        let [first, second] = &self.feed;
        fed(first, self.activation, second, x, Some(addend), out);
    }
}
