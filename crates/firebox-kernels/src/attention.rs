//! Scaled dot-product attention over whole sequences as one operation, forward and backward.
//!
//! The arithmetic on a CPU is in [`cpu`]; this file checks shapes and wires it into Burn's graph.
//! Projections before and after it are not part of it.

mod composed;
mod disentangled;
#[cfg(feature = "cube")]
mod gpu;
mod masked;
mod permutation;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex, TensorMetadata};
use burn::tensor::{Tensor, TensorData};
use firebox_core::{Precision, Stream};

use crate::cpu::{
    self, AttentionLengths, AttentionOutput, AttentionRules, AttentionSizes, AttentionWindow,
    CpuKernels, GradientLayout, Operand, Operands, Place, ProbabilityMask, Sight,
};
use crate::device::{flex, flex_in_graph, is_flex, tied};
use crate::operands;
use crate::profile::kernel_span;
use crate::rounded::halved;

pub use disentangled::{DisentangledAttention, DistanceRows, disentangled_attention};
pub use masked::{attention_masked, self_attention_masked};

type Primitive = FloatTensor<Flex>;

/// How [`attention()`] and [`self_attention`] compute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Heads, which lie side by side in every row.
    pub heads: usize,
    /// Whether query `i` sees no key after key `i`.
    pub causal: bool,
    /// Which keys a query sees by their distance, beside what a causal rule says; `None`: all.
    pub window: Option<AttentionWindow>,
    /// What scores are multiplied by; `None` is one over the root of a head's size.
    pub scale: Option<f64>,
    /// Probability that one of the probabilities is set to zero and the others grow to keep the
    /// mean, in `[0, 1]`; rounded to a multiple of 2⁻¹⁶.
    pub dropout: f64,
    /// Type of the operands of products. Sums and softmax are f32 whatever it is. On a GPU that stores bf16
    /// or f16, the result and the gradients have passed through that type as well.
    pub precision: Precision,
}

impl Attention {
    /// So many heads with PyTorch's defaults: all keys are seen, nothing is dropped, in f32.
    pub fn new(heads: usize) -> Self {
        Self {
            heads,
            causal: false,
            window: None,
            scale: None,
            dropout: 0.0,
            precision: Precision::F32,
        }
    }

    /// What queries see. A window that hides nothing is none, so that its results are those without it.
    fn sight(&self, sizes: &AttentionSizes) -> Sight {
        let most = sizes.queries.max(sizes.keys);
        let hides = |window: &AttentionWindow| {
            window.reach.saturating_add(1) < most && window.global < sizes.keys
        };
        Sight { causal: self.causal, window: self.window.filter(hides) }
    }

    fn scale(&self, size: usize) -> f64 {
        self.scale.unwrap_or_else(|| (size as f64).sqrt().recip())
    }

    /// What is dropped of the probabilities of these operands, if anything is.
    #[track_caller]
    fn mask(
        &self,
        stream: Option<Stream>,
        of: &[operands::Operand<'_>],
    ) -> Option<ProbabilityMask> {
        assert!(
            (0.0..=1.0).contains(&self.dropout),
            "dropout probability {} of attention is not between 0 and 1 (of {})",
            self.dropout,
            operands::listed(of.iter().copied())
        );
        let threshold = (self.dropout * 65536.0).round();
        let scale = if threshold < 65536.0 { 65536.0 / (65536.0 - threshold) } else { 0.0 };
        stream.filter(|_| threshold > 0.0).map(|stream| ProbabilityMask {
            stream,
            threshold: threshold.min(65535.0) as u16,
            scale: scale as f32,
        })
    }
}

/// `softmax(scale · q kᵀ) v` for every head.
///
/// Keys after a sample's key length are not seen, and queries after its query length give zeros, as
/// do all queries of a sample without keys; padding gets no gradient and may hold anything. Of the
/// probabilities, which are never stored, [`Attention::dropout`] are dropped if there is a stream:
/// those of key `j` for query `i` in head `h` of sample `b` by the 16 bits number `j % 8` (the lower
/// half of a word comes first) of block `i + 2³² · (j / 8)` of the stream's substream
/// `b · heads + h`, the same on every device. NaN spoils the queries that see it; in a value it may
/// spoil others of the same head, too, under a causal mask, within a window and on the tensor cores of a
/// GPU.
///
/// With a [window](Attention::window) a query sees the keys near its own place and the first ones that are
/// global, and gives zeros if that is none; a window as wide as the sequence changes no bit. On Burn's CPU
/// backend keys out of reach are skipped, forward and backward: time grows with the reach in place of the
/// length, but for a pass over keys and values. So they are in the kernels of GPUs, where it takes none of their
/// tensor cores. Composed, all scores are computed and stored.
///
/// On Burn's CPU backend in f32 it is one operation with a gradient of its own, with the same result
/// on any number of threads, that keeps its result and two numbers for each query and head. Source:
/// Dao, "FlashAttention-2: faster attention with better parallelism and work partitioning", 2023. So it is
/// on GPUs with kernels of this crate, for heads of up to 128 numbers. Elsewhere it is composed of Burn's
/// operations.
///
/// # Shapes
/// - q: `[batch, queries, heads · size]`, in any strides
/// - k, v: `[batch, keys, heads · size]`
/// - lengths: `[batch]`, at most all queries or keys, which they are if `None`; [`attention_masked`] takes masks
/// - the result: `[batch, queries, heads · size]`
///
/// # Panics
/// If a shape does not fit, if a length is longer than the sequence, if types or devices differ, or if the dropout is
/// not in `[0, 1]`; the message holds the shapes and types.
#[track_caller]
pub fn attention(
    q: Tensor<3>,
    k: Tensor<3>,
    v: Tensor<3>,
    query_lengths: Option<&[usize]>,
    key_lengths: Option<&[usize]>,
    dropout: Option<Stream>,
    settings: &Attention,
) -> Tensor<3> {
    let sizes = attention_sizes(&q, &k, &v, settings);
    let AttentionSizes { batch, queries, keys, .. } = sizes;
    let operands = named([&q, &k, &v]);
    check_lengths("query", [batch, queries], query_lengths, &operands);
    check_lengths("key", [batch, keys], key_lengths, &operands);
    let mask = settings.mask(dropout, &operands);
    let lengths = AttentionLengths {
        queries: query_lengths.map(<[usize]>::to_vec),
        keys: key_lengths.map(<[usize]>::to_vec),
    };
    let [_, _, width] = q.dims();
    if batch * queries * width == 0 {
        let nothing = Tensor::zeros([batch, queries, width], (&q.device(), q.dtype()));
        return tied(tied(tied(nothing, &q), &k), &v);
    }
    let on_cpu = is_flex(&q) && is_flex(&k) && is_flex(&v);
    match kernels(on_cpu, &sizes) {
        Some(kernels) => {
            let rules = rules(kernels, &sizes, settings, mask);
            let inputs = [q, k, v].map(|input| halved(input, settings.precision));
            fused(inputs, Call { rules, sizes, lengths, packed: false })
        }
        None => elsewhere(vec![q, k, v], &sizes, &lengths, mask, settings),
    }
}

/// Queries, keys and values as messages name them.
fn named([q, k, v]: [&Tensor<3>; 3]) -> [operands::Operand<'_>; 3] {
    [operands::operand("queries", q), operands::operand("keys", k), operands::operand("values", v)]
}

/// Where the CPU kernels do not run: in GPU kernels, else composed. Queries, keys and values, or all in
/// one.
fn elsewhere(
    inputs: Vec<Tensor<3>>,
    sizes: &AttentionSizes,
    lengths: &AttentionLengths,
    mask: Option<ProbabilityMask>,
    settings: &Attention,
) -> Tensor<3> {
    #[cfg(feature = "cube")]
    if let Some(call) = gpu::call(&inputs, sizes, mask, settings) {
        return gpu::attention(inputs, lengths, mask, call);
    }
    let width = sizes.heads * sizes.size;
    let part = |index: usize| match inputs.len() {
        1 => inputs[0].clone().narrow(2, index * width, width),
        _ => inputs[index].clone(),
    };
    composed::attention([part(0), part(1), part(2)], sizes, lengths, mask, settings)
}

/// [`attention()`] of sequences to themselves, on queries, keys and values that lie side by side, as
/// one linear layer makes them: nothing is copied, and the gradient is one tensor, too.
///
/// # Shapes
/// - qkv: `[batch, time, 3 · heads · size]`: queries of all heads, then keys, then values, as from
///   PyTorch's `in_proj_weight`
/// - lengths: valid steps of each sample, `[batch]`, at most `time`, all if `None`; [`self_attention_masked`] takes a
///   mask
/// - the result: `[batch, time, heads · size]`
///
/// # Panics
/// As [`attention()`].
#[track_caller]
pub fn self_attention(
    qkv: Tensor<3>,
    lengths: Option<&[usize]>,
    dropout: Option<Stream>,
    settings: &Attention,
) -> Tensor<3> {
    let [batch, time, columns] = qkv.dims();
    assert!(
        columns % 3 == 0,
        "self-attention of {:?} ([batch, time, 3 · heads · size]): the last axis holds queries, keys \
         and values and must be a multiple of 3 (in {:?})",
        qkv.dims(),
        qkv.dtype()
    );
    let (width, operands) = (columns / 3, [operands::operand("qkv", &qkv)]);
    let sizes = sizes(settings, [batch, time, time], width, operands[0]);
    check_lengths("sequence", [batch, time], lengths, &operands);
    let mask = settings.mask(dropout, &operands);
    let lengths = lengths.map(<[usize]>::to_vec);
    let lengths = AttentionLengths { queries: lengths.clone(), keys: lengths };
    if batch * time * width == 0 {
        return tied(Tensor::zeros([batch, time, width], (&qkv.device(), qkv.dtype())), &qkv);
    }
    match kernels(is_flex(&qkv), &sizes) {
        Some(kernels) => {
            let rules = rules(kernels, &sizes, settings, mask);
            let inputs = [halved(qkv, settings.precision)];
            fused(inputs, Call { rules, sizes, lengths, packed: true })
        }
        None => elsewhere(vec![qkv], &sizes, &lengths, mask, settings),
    }
}

/// The sizes of [`attention()`] among these tensors.
#[track_caller]
fn attention_sizes(
    q: &Tensor<3>,
    k: &Tensor<3>,
    v: &Tensor<3>,
    settings: &Attention,
) -> AttentionSizes {
    let ([batch, queries, width], [_, keys, _]) = (q.dims(), k.dims());
    let sizes = sizes(settings, [batch, queries, keys], width, named([q, k, v])[0]);
    assert!(
        k.dims() == [batch, keys, width] && v.dims() == [batch, keys, width],
        "attention of queries {:?} ([batch, queries, width]) to keys {:?} and values {:?}: both must \
         be [{batch}, keys, {width}] ({})",
        q.dims(),
        k.dims(),
        v.dims(),
        operands::types(named([q, k, v]))
    );
    operands::alike("attention", named([q, k, v]));
    sizes
}

/// The sizes of attention of so many rows of a width, which the heads divide; `of` has it.
#[track_caller]
pub(crate) fn sizes(
    settings: &Attention,
    [batch, queries, keys]: [usize; 3],
    width: usize,
    of: operands::Operand<'_>,
) -> AttentionSizes {
    let heads = settings.heads;
    assert!(
        heads > 0 && width.is_multiple_of(heads),
        "attention with {heads} heads of a width of {width}: the width must be a multiple of the heads (of {of})"
    );
    AttentionSizes { batch, queries, keys, heads, size: width / heads }
}

/// Refuses lengths that are not one for each sample, and longer ones than the rows of a sample.
#[track_caller]
pub(crate) fn check_lengths(
    what: &str,
    [batch, rows]: [usize; 2],
    lengths: Option<&[usize]>,
    of: &[operands::Operand<'_>],
) {
    let Some(lengths) = lengths else { return };
    let of = || operands::listed(of.iter().copied());
    assert!(
        lengths.len() == batch,
        "attention over a batch of {batch} with {} {what} lengths: one is needed for each sample (of {})",
        lengths.len(),
        of()
    );
    if let Some(sample) = lengths.iter().position(|length| *length > rows) {
        panic!(
            "attention in which sample {sample} has the {what} length {}, longer than its {rows} rows (of {})",
            lengths[sample],
            of()
        );
    }
}

/// The kernels for these tensors, or `None` if attention must be composed.
fn kernels(on_cpu: bool, sizes: &AttentionSizes) -> Option<CpuKernels> {
    let fits = sizes.queries.max(sizes.keys) < cpu::MOST_POSITIONS;
    CpuKernels::fused().filter(|_| on_cpu && fits)
}

pub(crate) fn rules(
    kernels: CpuKernels,
    sizes: &AttentionSizes,
    settings: &Attention,
    dropout: Option<ProbabilityMask>,
) -> AttentionRules {
    AttentionRules {
        kernels,
        bf16: settings.precision == Precision::Bf16,
        scale: settings.scale(sizes.size) as f32,
        sight: settings.sight(sizes),
        dropout,
    }
}

/// One call of the operation.
#[derive(Clone, Debug)]
struct Call {
    rules: AttentionRules,
    sizes: AttentionSizes,
    lengths: AttentionLengths,
    /// Whether queries, keys and values are one tensor.
    packed: bool,
}

impl Call {
    /// Queries, keys and values within the inputs: one of each, or all in one.
    fn operands<'a>(&self, inputs: &'a [Primitive]) -> Operands<'a> {
        let width = self.sizes.heads * self.sizes.size;
        let part = |index: usize| match self.packed {
            true => {
                let Operand { values, place } = operand(&inputs[0]);
                Operand { values, place: Place { offset: place.offset + index * width, ..place } }
            }
            false => operand(&inputs[index]),
        };
        Operands { q: part(0), k: part(1), v: part(2) }
    }

    fn run(&self, inputs: &[Primitive]) -> (Primitive, Vec<[f32; 2]>) {
        let AttentionSizes { batch, queries, keys, heads, size } = self.sizes;
        let _span = kernel_span!(
            "attention",
            [batch, queries, keys, heads, size],
            4 * batch * heads * queries * self.rules.sight.width(keys) * size,
            2 * batch * heads * size * (queries + keys),
            self.rules.bf16
        );
        let operands = self.operands(inputs);
        let (out, normalisers) = cpu::attention(&self.rules, &self.sizes, &self.lengths, &operands);
        let shape = [batch, queries, heads * size];
        (Primitive::from_data(TensorData::new(out, shape)), normalisers)
    }
}

/// A tensor `[batch, rows, width]` that can be read where it is, or a copy that can.
fn readable(x: Primitive) -> Primitive {
    match *x.layout().strides() {
        [sample, row, 1] if sample >= 0 && row >= 0 => x,
        _ => x.to_contiguous(),
    }
}

/// The numbers of a tensor that is [`readable`].
fn operand(x: &Primitive) -> Operand<'_> {
    let [sample, row, _] = *x.layout().strides() else { unreachable!("three axes") };
    let offset = x.layout().start_offset();
    let place = Place { offset, sample: sample as usize, row: row as usize };
    Operand { values: x.storage::<f32>(), place }
}

/// What the gradient is computed from.
#[derive(Clone, Debug)]
struct Tape<const N: usize> {
    call: Call,
    inputs: [Primitive; N],
    out: Primitive,
    normalisers: Vec<[f32; 2]>,
}

fn fused<const N: usize>(tensors: [Tensor<3>; N], call: Call) -> Tensor<3>
where
    Attended: Backward<Flex, N, State = Tape<N>>,
{
    if !tensors.iter().any(Tensor::is_autodiff) {
        let inputs = tensors.map(|tensor| readable(flex(tensor)));
        return Tensor::from_primitive::<Flex>(call.run(&inputs).0);
    }
    let mut guards = vec![];
    let inputs = tensors.map(|tensor| {
        let (primitive, guard) = flex_in_graph(tensor).into_parts();
        guards.push(guard);
        readable(primitive)
    });
    let Ok(guards) = guards.try_into() else { unreachable!("one guard for each tensor") };
    let prepared = Attended.prepare::<NoCheckpointing>(guards).compute_bound().stateful();
    let (out, normalisers) = call.run(&inputs);
    Tensor::from_primitive::<Autodiff<Flex>>(match prepared {
        OpsKind::Tracked(prepared) => {
            prepared.finish(Tape { call, inputs, out: out.clone(), normalisers }, out)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(out),
    })
}

#[derive(Debug)]
struct Attended;

impl<const N: usize> Tape<N> {
    /// Gradients of the inputs.
    fn gradients(&self, d: &Primitive) -> Vec<Vec<f32>> {
        let Call { rules, sizes, lengths, packed } = &self.call;
        let AttentionSizes { batch, queries, keys, heads, size } = *sizes;
        // The scores again, and four gradients.
        let _span = kernel_span!(
            "attention, gradients",
            [batch, queries, keys, heads, size],
            10 * batch * heads * queries * rules.sight.width(keys) * size,
            4 * batch * heads * size * (queries + keys),
            rules.bf16
        );
        let output = AttentionOutput {
            out: operand(&self.out),
            normalisers: &self.normalisers,
            d_out: operand(d),
        };
        let operands = self.call.operands(&self.inputs);
        let layout = if *packed { GradientLayout::Packed } else { GradientLayout::Apart };
        cpu::attention_backward(rules, sizes, lengths, &operands, output, layout)
    }
}

fn backward<const N: usize>(ops: Ops<Tape<N>, N>, grads: &mut Gradients) {
    let d = readable(grads.consume::<Flex>(&ops.node));
    let all = ops.state.gradients(&d);
    for ((parent, values), input) in ops.parents.into_iter().zip(all).zip(&ops.state.inputs) {
        if let Some(parent) = parent {
            let gradient = Primitive::from_data(TensorData::new(values, input.shape()));
            grads.register::<Flex>(parent.id, gradient);
        }
    }
}

impl Backward<Flex, 1> for Attended {
    type State = Tape<1>;

    fn backward(self, ops: Ops<Tape<1>, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        backward(ops, grads);
    }
}

impl Backward<Flex, 3> for Attended {
    type State = Tape<3>;

    fn backward(self, ops: Ops<Tape<3>, 3>, grads: &mut Gradients, _: &mut Checkpointer) {
        backward(ops, grads);
    }
}
