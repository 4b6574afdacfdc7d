//! One layer as a single operation of Burn's CPU backend, with its gradient.
//!
//! The arithmetic is in [`cpu`]; this file wires it into Burn's graph. A node of that
//! graph has one output, but a layer has two, so there are two nodes: [`Sequence`] gives the
//! outputs of all steps, and [`Last`], its child, the last states. On the way back `Last` leaves its
//! gradient in a place that `Sequence` looks into.

use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex, TensorMetadata};
use burn::tensor::{Bool, DType, Tensor, TensorData};
use firebox_core::Precision;
use tracing::span::EnteredSpan;

use super::{LstmState, Stack, Weights};
use crate::cpu::{
    self, Arithmetic, CellKind, CpuKernels, Inputs, OutputGradients, Plan, Saved, Sizes, Wanted,
};
use crate::device::{flex, flex_in_graph, is_flex};
use crate::profile::kernel_span;
use crate::rounded::halved;

type Primitive = FloatTensor<Flex>;

/// The kernels for these tensors, or `None` if the layer must be composed of Burn's operations.
///
/// # Panics
/// If `FIREBOX_KERNELS` asks for what this processor cannot do.
pub(super) fn kernels(
    input: &Tensor<3>,
    weights: &[Weights],
    initial: Option<&LstmState>,
) -> Option<CpuKernels> {
    let mut fits = is_flex(input);
    for Weights { weight_ih, weight_hh, bias } in weights {
        fits &= is_flex(weight_ih) && is_flex(weight_hh) && is_flex(bias);
    }
    if let Some(LstmState { hidden, cell }) = initial {
        fits &= is_flex(hidden) && is_flex(cell);
    }
    if fits { CpuKernels::fused() } else { None }
}

/// All directions of one layer; the same as [`composed::layer`](super::composed::layer).
pub(super) fn layer(
    kernels: CpuKernels,
    stack: &Stack<'_>,
    input: Tensor<3>,
    lengths: Option<&[usize]>,
    weights: Vec<Weights>,
    initial: Option<LstmState>,
) -> (Tensor<3>, LstmState) {
    let bf16 = stack.precision == Precision::Bf16;
    let arithmetic = Arithmetic { kernels, cell: stack.cell, bf16 };
    let [batch, time, channels] = input.dims();
    let [_, hidden] = weights[0].weight_hh.dims();
    let directions = weights.len();
    let sizes = Sizes { batch, time, input: channels, hidden, directions };
    let plan = Arc::new(Plan::new(arithmetic, sizes, lengths));
    let (mut ih, mut hh, mut bias) = (vec![], vec![], vec![]);
    for weights in weights {
        ih.push(halved(weights.weight_ih, stack.precision));
        hh.push(halved(weights.weight_hh, stack.precision));
        bias.push(weights.bias.unsqueeze_dim::<2>(1));
    }
    let states = [directions, batch, hidden];
    // Of a sample without a step the state is given back, not multiplied and so not rounded.
    let kept = match (&initial, lengths) {
        (Some(LstmState { hidden, .. }), Some(lengths)) if stack.precision == Precision::F16 => {
            let without: Vec<bool> = lengths.iter().map(|length| *length == 0).collect();
            without.contains(&true).then(|| {
                let without = TensorData::new(without, [1, batch, 1]);
                let without =
                    Tensor::<3, Bool>::from_data(without, &input.device().without_autodiff());
                (without.expand(states), hidden.clone())
            })
        }
        _ => None,
    };
    let state = initial.unwrap_or_else(|| {
        let zeros = || Tensor::zeros(states, (&input.device().without_autodiff(), DType::F32));
        LstmState { hidden: zeros(), cell: zeros() }
    });
    let tensors = [
        halved(input, stack.precision),
        Tensor::stack(ih, 0),
        Tensor::stack(hh, 0),
        Tensor::stack(bias, 0),
        halved(state.hidden, stack.precision),
        state.cell,
    ];
    let (output, last) = if tensors.iter().any(Tensor::is_autodiff) {
        tracked(arithmetic, plan, tensors)
    } else {
        let inputs = tensors.map(|tensor| flex(tensor).to_contiguous());
        let (output, last, _) = run(arithmetic, &plan, &inputs, false);
        (Tensor::from_primitive::<Flex>(output), Tensor::from_primitive::<Flex>(last))
    };
    let part = |index| last.clone().narrow(0, index, 1).reshape(states);
    let hidden = match kept {
        Some((without, first)) => part(0).mask_where(without, first),
        None => part(0),
    };
    (output, LstmState { hidden, cell: part(1) })
}

fn tensor(values: Vec<f32>, shape: impl Into<burn::tensor::Shape>) -> Primitive {
    Primitive::from_data(TensorData::new(values, shape.into()))
}

/// The operations and numbers of a pass over a layer forward.
fn work(arithmetic: Arithmetic, sizes: Sizes) -> (usize, usize) {
    let Sizes { batch, time, input, hidden, directions } = sizes;
    let gates = match arithmetic.cell {
        CellKind::Lstm => 4,
        CellKind::Gru => 3,
    };
    let weights = gates * hidden * (input + hidden);
    let rows = batch * time * directions;
    // The state and, for the backward pass, the gates are written, too.
    (2 * rows * weights, directions * weights + rows * (input + (gates + 1) * hidden))
}

fn span(arithmetic: Arithmetic, sizes: Sizes) -> EnteredSpan {
    let Sizes { batch, time, input, hidden, directions } = sizes;
    let shape = [batch, time, input, hidden, directions];
    let (operations, numbers) = work(arithmetic, sizes);
    kernel_span!("recurrent layer", shape, operations, numbers, arithmetic.bf16)
}

/// Outputs, last states `[2, directions, batch, hidden]`, and what the backward pass needs.
fn run(
    arithmetic: Arithmetic,
    plan: &Plan,
    inputs: &[Primitive; 6],
    keep: bool,
) -> (Primitive, Primitive, Option<Saved>) {
    let Sizes { batch, time, hidden, directions, .. } = plan.sizes;
    let _span = span(arithmetic, plan.sizes);
    let outputs = cpu::forward(arithmetic, plan, slices(inputs), keep);
    let mut last = outputs.hidden;
    last.extend(outputs.cell);
    (
        tensor(outputs.output, [batch, time, directions * hidden]),
        tensor(last, [2, directions, batch, hidden]),
        outputs.saved,
    )
}

fn slices(inputs: &[Primitive; 6]) -> Inputs<'_> {
    let [input, weight_ih, weight_hh, bias, hidden, cell] =
        inputs.each_ref().map(|tensor| tensor.storage::<f32>());
    Inputs { input, weight_ih, weight_hh, bias, hidden, cell }
}

/// Where [`Last`] leaves the gradient of the last states for [`Sequence`].
#[derive(Clone, Debug, Default)]
struct Handover(Arc<Mutex<Option<Primitive>>>);

impl Handover {
    fn put(&self, gradient: Primitive) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(gradient);
    }

    fn take(&self) -> Option<Primitive> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// What the gradient is computed from.
#[derive(Clone, Debug)]
struct Tape {
    arithmetic: Arithmetic,
    plan: Arc<Plan>,
    inputs: [Primitive; 6],
    output: Primitive,
    saved: Arc<Saved>,
    last: Handover,
}

/// Runs the layer and puts it into the graph, if any of its inputs needs a gradient.
fn tracked(
    arithmetic: Arithmetic,
    plan: Arc<Plan>,
    tensors: [Tensor<3>; 6],
) -> (Tensor<3>, Tensor<4>) {
    let mut guards = vec![];
    let inputs = tensors.map(|tensor| {
        let (primitive, guard) = flex_in_graph(tensor).into_parts();
        guards.push(guard);
        primitive.to_contiguous()
    });
    let Ok(guards) = guards.try_into() else { unreachable!("one guard for each of six tensors") };
    let (output, last) = match Sequence
        .prepare::<NoCheckpointing>(guards)
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prep) => {
            let (output, last, saved) = run(arithmetic, &plan, &inputs, true);
            let Some(saved) = saved else { unreachable!("asked to keep it") };
            let handover = Handover::default();
            let tape = Tape {
                arithmetic,
                plan,
                inputs,
                output: output.clone(),
                saved: Arc::new(saved),
                last: handover.clone(),
            };
            let output = prep.finish(tape, output);
            let last =
                match Last.prepare::<NoCheckpointing>([output.node()]).compute_bound().stateful() {
                    OpsKind::Tracked(prep) => prep.finish(handover, last),
                    OpsKind::UnTracked(prep) => prep.finish(last),
                };
            (output, last)
        }
        OpsKind::UnTracked(prep) => {
            let (output, last, _) = run(arithmetic, &plan, &inputs, false);
            let output = prep.finish(output);
            let last =
                match Last.prepare::<NoCheckpointing>([output.node()]).compute_bound().stateful() {
                    OpsKind::Tracked(prep) => prep.finish(Handover::default(), last),
                    OpsKind::UnTracked(prep) => prep.finish(last),
                };
            (output, last)
        }
    };
    (
        Tensor::from_primitive::<Autodiff<Flex>>(output),
        Tensor::from_primitive::<Autodiff<Flex>>(last),
    )
}

/// The outputs of all steps, from input, weights (input, recurrent, bias) and initial states.
#[derive(Debug)]
struct Sequence;

impl Backward<Flex, 6> for Sequence {
    type State = Tape;

    fn backward(self, ops: Ops<Tape, 6>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d_output = grads.consume::<Flex>(&ops.node).to_contiguous();
        let Tape { arithmetic, plan, inputs, output, saved, last } = ops.state;
        let Sizes { batch, time, input, hidden, directions } = plan.sizes;
        let last = last.take().map(|last| last.to_contiguous());
        let used = d_output.shape() == output.shape();
        let d = OutputGradients {
            output: used.then(|| d_output.storage::<f32>()),
            last: last.as_ref().map(|last| {
                let both = last.storage::<f32>();
                both.split_at(both.len() / 2)
            }),
        };
        let [x, _, _, _, hidden_state, cell_state] = ops.parents.each_ref().map(Option::is_some);
        let wanted = Wanted { input: x, states: hidden_state || cell_state };
        let values = output.storage::<f32>();
        let (operations, numbers) = work(arithmetic, plan.sizes);
        let _span = kernel_span!(
            "recurrent layer, gradients",
            [batch, time, input, hidden, directions],
            2 * operations,
            2 * numbers,
            arithmetic.bf16
        );
        let gradients =
            cpu::backward(arithmetic, &plan, slices(&inputs), values, &saved, &d, wanted);
        let states = [directions, batch, hidden];
        let all = [
            (gradients.input.unwrap_or_default(), [batch, time, input]),
            (gradients.weight_ih, [directions, 4 * hidden, input]),
            (gradients.weight_hh, [directions, 4 * hidden, hidden]),
            (gradients.bias, [directions, 4 * hidden, 1]),
            (gradients.hidden, states),
            (gradients.cell, states),
        ];
        for (parent, (values, shape)) in ops.parents.into_iter().zip(all) {
            if let Some(parent) = parent {
                grads.register::<Flex>(parent.id, tensor(values, shape));
            }
        }
    }
}

/// The last states of a [`Sequence`].
#[derive(Debug)]
struct Last;

impl Backward<Flex, 1> for Last {
    type State = Handover;

    fn backward(self, ops: Ops<Handover, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        ops.state.put(grads.consume::<Flex>(&ops.node));
        if let [Some(sequence)] = ops.parents {
            // Without any gradient of its own the sequence would not be visited. One zero stands
            // for all of them: it adds nothing to what else arrives, and alone it is recognised.
            grads.register::<Flex>(sequence.id, tensor(vec![0.0], [1, 1, 1]));
        }
    }
}
