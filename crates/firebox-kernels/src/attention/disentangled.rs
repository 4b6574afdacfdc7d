//! Disentangled attention: scores with terms for the distance of two steps, as one operation, forward and
//! backward.
//!
//! The arithmetic on a CPU is in [`cpu`]; this file checks shapes and wires it into Burn's graph.

mod composed;

use std::sync::{Arc, OnceLock};

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::{Autodiff, Flex, TensorMetadata};
use burn::tensor::{Device, Int, Tensor, TensorData};
use firebox_core::{Precision, Stream};

use super::{Primitive, check_lengths, operand, readable};
use crate::cpu::{
    self, AttentionOutput, CpuKernels, DisentangledCall, DisentangledRules, DisentangledSizes,
    DistanceTable, Mask, Operand, Operands, Place,
};
use crate::device::{flex, flex_in_graph, is_flex, tied};
use crate::dropout;
use crate::operands;
use crate::profile::kernel_span;
use crate::rounded::halved;

/// How [`disentangled_attention`] computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DisentangledAttention {
    /// Heads, which lie side by side in every row.
    pub heads: usize,
    /// Whether content attends to distances: term (b) of equation 4.
    pub content_to_position: bool,
    /// Whether distances attend to content: term (c) of equation 4.
    pub position_to_content: bool,
    /// Probability that one of the probabilities is set to zero and the others grow to keep the mean, in `[0, 1]`.
    pub dropout: f64,
    /// Type of the operands of products. Sums and softmax are f32 whatever it is.
    pub precision: Precision,
}

impl DisentangledAttention {
    /// So many heads with both terms of distances: nothing is dropped, in f32.
    pub fn new(heads: usize) -> Self {
        Self {
            heads,
            content_to_position: true,
            position_to_content: true,
            dropout: 0.0,
            precision: Precision::F32,
        }
    }

    /// One over the root of a head's size times the number of terms.
    fn scale(&self, size: usize) -> f64 {
        let terms =
            1 + usize::from(self.content_to_position) + usize::from(self.position_to_content);
        ((size * terms) as f64).sqrt().recip()
    }
}

/// The row of the table of distances for each distance of two steps: the function `δ` of equation 3 or any other one,
/// such as DeBERTa-v3's, in which far distances share rows.
#[derive(Clone, Debug)]
pub struct DistanceRows {
    time: usize,
    /// Of the distances `query - key` from `1 - time` to `time - 1`.
    rows: Arc<[u32]>,
    /// For each query and key, on the device that asked first.
    pairs: Arc<OnceLock<Tensor<2, Int>>>,
}

impl DistanceRows {
    /// What `row` says of the distance of a query's step minus a key's, for sequences of `time` steps.
    ///
    /// # Panics
    /// If a row is above 2³² - 1.
    #[track_caller]
    pub fn new(time: usize, row: impl Fn(i64) -> usize) -> Self {
        let farthest = time as i64 - 1;
        let rows = (-farthest..=farthest).filter(|_| time > 0).map(|distance| {
            let row = row(distance);
            match u32::try_from(row) {
                Ok(row) => row,
                Err(_) => panic!("row {row} of distance {distance}: it may be at most 2^32 - 1"),
            }
        });
        Self { time, rows: rows.collect(), pairs: Arc::default() }
    }

    /// Steps of a sequence.
    pub fn time(&self) -> usize {
        self.time
    }

    /// The last row that a distance has.
    fn last(&self) -> Option<u32> {
        self.rows.iter().copied().max()
    }

    /// The row of each pair, `[query, key]`.
    fn pairs(&self, device: &Device) -> Tensor<2, Int> {
        let make = || {
            let time = self.time;
            let rows = (0..time).flat_map(|query| {
                (0..time).map(move |key| i64::from(self.rows[query + time - 1 - key]))
            });
            Tensor::from_data(TensorData::new(rows.collect(), [time, time]), device)
        };
        let pairs = self.pairs.get_or_init(make);
        if pairs.device() == *device { pairs.clone() } else { make() }
    }
}

/// Attention of sequences to themselves with terms for the distances of steps: for every head
/// `softmax((q kᵀ + q rₖᵀ[δ] + (k r_qᵀ[δ])ᵀ) / √(terms · size)) v`, where `r_q` and `r_k` are queries and keys of
/// distances, one row of a table each, and `δ` is the row for `query - key`.
///
/// Source: He, Liu, Gao and Chen, "DeBERTa: decoding-enhanced BERT with disentangled attention", 2021,
/// arXiv:2006.03654, equation 4; `δ` is that of equation 3 or whatever `distances` holds. The last term takes the row of the same
/// distance, `query - key`, as the authors' program and published weights do, where the paper writes `δ(j, i)`. Either term may be switched
/// off ([`DisentangledAttention`]), and is not counted then.
///
/// Keys after a sample's length are not seen, and queries after it give zeros; padding gets no gradient and may hold
/// anything. Of the probabilities, `[batch, head, query, key]`, those are dropped that [`dropout()`](crate::dropout())
/// drops of such a tensor with this stream.
///
/// On Burn's CPU backend in f32 it is one operation with a gradient of its own, with the same result on any number
/// of threads, that keeps its result and two numbers for each query and head. Each core has the scores of one head of
/// one sample at a time, at most `time · (rows of the table)` numbers and as many for their gradient, and the gradient of the
/// table is summed up in up to some hundred parts. Elsewhere, on GPUs too, it is composed of Burn's operations, which keep the
/// scores, all their terms and the probabilities.
///
/// # Shapes
/// - qkv: `[batch, time, 3 · heads · size]`: queries of all heads, then keys, then values, as in
///   [`self_attention`](crate::self_attention)
/// - positions: `[rows, 2 · heads · size]`: queries of all heads for each row of the table, then keys. It may be
///   `[rows, 3 · heads · size]`, as from the layer that makes `qkv`; the values are not read.
/// - distances: for `time` steps, of rows that the table has
/// - lengths: valid steps of each sample, `[batch]`, at most `time`, all if `None`
/// - the result: `[batch, time, heads · size]`
///
/// # Panics
/// If a shape does not fit, if a length is longer than the sequence, if a distance has a row that the table lacks, if
/// types or devices differ, or if the dropout is not in `[0, 1]`; the message holds the shapes and types.
///
/// # Example
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebox_kernels::{DisentangledAttention, DistanceRows, disentangled_attention};
///
/// let device = Device::default();
/// let (qkv, positions) = (Tensor::ones([2, 5, 24], &device), Tensor::ones([6, 16], &device));
/// // Distances of 3 and more count alike.
/// let distances = DistanceRows::new(5, |distance| (distance + 3).clamp(0, 5) as usize);
/// let settings = DisentangledAttention::new(2);
/// let out = disentangled_attention(qkv, positions, &distances, Some(&[5, 2]), None, &settings);
/// assert_eq!(out.dims(), [2, 5, 8]);
/// ```
#[track_caller]
pub fn disentangled_attention(
    qkv: Tensor<3>,
    positions: Tensor<2>,
    distances: &DistanceRows,
    lengths: Option<&[usize]>,
    dropout: Option<Stream>,
    settings: &DisentangledAttention,
) -> Tensor<3> {
    let sizes = checked(&qkv, &positions, distances, lengths, settings);
    let DisentangledSizes { batch, time, heads, size } = sizes;
    let dropout = dropout.filter(|_| settings.dropout > 0.0);
    if batch * time * size == 0 {
        let nothing = Tensor::zeros([batch, time, heads * size], (&qkv.device(), qkv.dtype()));
        return tied(tied(nothing, &qkv), &positions);
    }
    let on_cpu = is_flex(&qkv) && is_flex(&positions);
    let Some(kernels) = CpuKernels::fused().filter(|_| on_cpu) else {
        return composed::attention(qkv, positions, distances, lengths, dropout, sizes, settings);
    };
    let mask = |stream| Mask::new(settings.dropout, dropout::scale(settings.dropout), stream);
    let rules = DisentangledRules {
        kernels,
        bf16: settings.precision == Precision::Bf16,
        scale: settings.scale(size) as f32,
        content_to_position: settings.content_to_position,
        position_to_content: settings.position_to_content,
        dropout: dropout.map(mask),
    };
    let call = Call {
        rules,
        sizes,
        lengths: lengths.map(<[usize]>::to_vec),
        table: DistanceTable::new(&distances.rows),
    };
    let (qkv, positions) = (halved(qkv, settings.precision), halved(positions, settings.precision));
    fused(qkv, positions, call)
}

/// The sizes of the operation among these operands, which fit.
#[track_caller]
fn checked(
    qkv: &Tensor<3>,
    positions: &Tensor<2>,
    distances: &DistanceRows,
    lengths: Option<&[usize]>,
    settings: &DisentangledAttention,
) -> DisentangledSizes {
    let ([batch, time, columns], [rows, across]) = (qkv.dims(), positions.dims());
    let named = [operands::operand("qkv", qkv), operands::operand("positions", positions)];
    let (width, heads) = (columns / 3, settings.heads);
    assert!(
        columns % 3 == 0 && heads > 0 && width % heads == 0,
        "disentangled attention with {heads} heads of {}: qkv is [batch, time, 3 · heads · size] and holds queries, keys \
         and values",
        operands::listed(named)
    );
    assert!(
        across == 2 * width || across == 3 * width,
        "disentangled attention of {}: positions must be [rows, {}], queries and keys of as many heads as qkv has, or \
         [rows, {columns}] with values after them",
        operands::listed(named),
        2 * width
    );
    operands::alike("disentangled attention", named);
    assert!(
        distances.time == time,
        "disentangled attention of {} with distances of {} steps: qkv has {time}",
        operands::listed(named),
        distances.time
    );
    if let Some(last) = distances.last() {
        assert!(
            (last as usize) < rows,
            "disentangled attention of {} with distances of up to row {last}: positions have {rows} rows",
            operands::listed(named)
        );
    }
    check_lengths("sequence", [batch, time], lengths, &named);
    dropout::check(settings.dropout, named[0]);
    DisentangledSizes { batch, time, heads, size: width / heads }
}

/// One call of the operation.
#[derive(Clone, Debug)]
struct Call {
    rules: DisentangledRules,
    sizes: DisentangledSizes,
    lengths: Option<Vec<usize>>,
    table: DistanceTable,
}

impl Call {
    /// What the kernels are called with.
    fn with<R>(
        &self,
        qkv: &Primitive,
        positions: &Primitive,
        run: impl FnOnce(&DisentangledCall<'_>) -> R,
    ) -> R {
        let width = self.sizes.heads * self.sizes.size;
        let (content, vectors) = (operand(qkv), operand_of_rows(positions));
        let part = |of: Operand<'_>, index: usize| Place {
            offset: of.place.offset + index * width,
            ..of.place
        };
        let of = |index| Operand { place: part(content, index), ..content };
        let vector = |index| Operand { place: part(vectors, index), ..vectors };
        run(&DisentangledCall {
            rules: &self.rules,
            sizes: &self.sizes,
            lengths: self.lengths.as_deref(),
            content: Operands { q: of(0), k: of(1), v: of(2) },
            positions: [vector(0), vector(1)],
            table: &self.table,
        })
    }

    /// Additions and multiplications of one product of each kind: of content, and with the table.
    fn work(&self) -> [usize; 2] {
        let DisentangledSizes { batch, time, heads, size } = self.sizes;
        let terms = usize::from(self.rules.content_to_position)
            + usize::from(self.rules.position_to_content);
        let each = 2 * batch * heads * time * size;
        [each * time, terms * each * self.table.range().len()]
    }

    fn run(&self, qkv: &Primitive, positions: &Primitive) -> (Primitive, Vec<[f32; 2]>) {
        let DisentangledSizes { batch, time, heads, size } = self.sizes;
        let [content, table] = self.work();
        let _span = kernel_span!(
            "disentangled attention",
            [batch, time, heads, size, self.table.range().len()],
            2 * content + table,
            4 * batch * time * heads * size,
            self.rules.bf16
        );
        let (out, normalisers) = self.with(qkv, positions, cpu::disentangled);
        (Primitive::from_data(TensorData::new(out, [batch, time, heads * size])), normalisers)
    }
}

/// A table that can be read where it is, or a copy that can.
fn readable_rows(x: Primitive) -> Primitive {
    match *x.layout().strides() {
        [row, 1] if row >= 0 => x,
        _ => x.to_contiguous(),
    }
}

/// The numbers of a table that is [readable](readable_rows), the same for all samples.
fn operand_of_rows(x: &Primitive) -> Operand<'_> {
    let [row, _] = *x.layout().strides() else { unreachable!("two axes") };
    let offset = x.layout().start_offset();
    Operand { values: x.storage::<f32>(), place: Place { offset, sample: 0, row: row as usize } }
}

/// What the gradient is computed from.
#[derive(Clone, Debug)]
struct Tape {
    call: Call,
    qkv: Primitive,
    positions: Primitive,
    out: Primitive,
    normalisers: Vec<[f32; 2]>,
}

fn fused(qkv: Tensor<3>, positions: Tensor<2>, call: Call) -> Tensor<3> {
    if !qkv.is_autodiff() && !positions.is_autodiff() {
        let (qkv, positions) = (readable(flex(qkv)), readable_rows(flex(positions)));
        return Tensor::from_primitive::<Flex>(call.run(&qkv, &positions).0);
    }
    let (qkv, of_qkv) = flex_in_graph(qkv).into_parts();
    let (positions, of_positions) = flex_in_graph(positions).into_parts();
    let (qkv, positions) = (readable(qkv), readable_rows(positions));
    let guards = [of_qkv, of_positions];
    let prepared = Disentangled.prepare::<NoCheckpointing>(guards).compute_bound().stateful();
    let (out, normalisers) = call.run(&qkv, &positions);
    Tensor::from_primitive::<Autodiff<Flex>>(match prepared {
        OpsKind::Tracked(prepared) => {
            let tape = Tape { call, qkv, positions, out: out.clone(), normalisers };
            prepared.finish(tape, out)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(out),
    })
}

#[derive(Debug)]
struct Disentangled;

impl Tape {
    /// Gradients of both inputs.
    fn gradients(&self, d: &Primitive) -> [Primitive; 2] {
        let Self { call, qkv, positions, out, normalisers } = self;
        let DisentangledSizes { batch, time, heads, size } = call.sizes;
        let [content, table] = call.work();
        // The scores again, and the gradients of both operands of each product.
        let _span = kernel_span!(
            "disentangled attention, gradients",
            [batch, time, heads, size, call.table.range().len()],
            5 * content + 3 * table,
            8 * batch * time * heads * size,
            call.rules.bf16
        );
        let output = AttentionOutput { out: operand(out), normalisers, d_out: operand(d) };
        let run = |call: &DisentangledCall<'_>| cpu::disentangled_backward(call, output);
        let [d_qkv, d_rows] = call.with(qkv, positions, run);
        let [rows, columns] = positions.shape().dims();
        let (width, range) = (heads * size, call.table.range());
        let mut d_positions = cpu::zeros(rows * columns);
        let used = &mut d_positions[range.start * columns..range.end * columns];
        for (to, from) in used.chunks_exact_mut(columns).zip(d_rows.chunks_exact(2 * width)) {
            to[..2 * width].copy_from_slice(from);
        }
        let d_positions = Primitive::from_data(TensorData::new(d_positions, positions.shape()));
        [Primitive::from_data(TensorData::new(d_qkv, qkv.shape())), d_positions]
    }
}

impl Backward<Flex, 2> for Disentangled {
    type State = Tape;

    fn backward(self, ops: Ops<Tape, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = readable(grads.consume::<Flex>(&ops.node));
        for (parent, gradient) in ops.parents.into_iter().zip(ops.state.gradients(&d)) {
            if let Some(parent) = parent {
                grads.register::<Flex>(parent.id, gradient);
            }
        }
    }
}
