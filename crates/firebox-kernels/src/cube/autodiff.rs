//! The gradient of a layer, for every backend that has its two passes.
//!
//! A node of Burn's graph has one output, but a layer has two, so there are two nodes: [`Layer`]
//! gives the outputs of all steps, and [`Last`], its child, the last states. On the way back `Last`
//! leaves its gradient in a place that `Layer` looks into.

use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, Backend, TensorMetadata};
use burn::tensor::DType;

use super::op::{Derived, LstmOps, Outputs, Recorded, Way};
use super::product::ProductOps;
use crate::cuts::parts;
use crate::products::ProductWay;

/// Where [`Last`] leaves its gradient for [`Layer`].
#[derive(Debug)]
struct Handover<B: Backend>(Arc<Mutex<Option<FloatTensor<B>>>>);

impl<B: Backend> Clone for Handover<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<B: Backend> Handover<B> {
    fn new() -> Self {
        Self(Arc::default())
    }

    fn put(&self, gradient: FloatTensor<B>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(gradient);
    }

    fn take(&self) -> Option<FloatTensor<B>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// What the gradient is computed from.
#[derive(Clone, Debug)]
struct Tape<B: Backend> {
    output: FloatTensor<B>,
    gates: FloatTensor<B>,
    cells: FloatTensor<B>,
    weights: FloatTensor<B>,
    state: FloatTensor<B>,
    lengths: IntTensor<B>,
    way: Way,
    last: Handover<B>,
}

/// The outputs of all steps, from projected input, recurrent weights and initial state.
#[derive(Debug)]
struct Layer;

impl<B: LstmOps + ProductOps> Backward<B, 3> for Layer {
    type State = Tape<B>;

    fn backward(self, ops: Ops<Tape<B>, 3>, grads: &mut Gradients, _: &mut Checkpointer) {
        let Tape { output, gates, cells, weights, state, lengths, way, last } = ops.state;
        let zeros = |like: &FloatTensor<B>| {
            B::float_zeros(like.shape(), &like.device(), like.dtype().into())
        };
        let d_output = grads.consume::<B>(&ops.node);
        let d_output = if d_output.shape() == output.shape() { d_output } else { zeros(&output) };
        let d_last = last.take().unwrap_or_else(|| zeros(&state));
        let Derived { d_gates, previous, d_state } =
            B::lstm_backward(d_output, d_last, output, gates, cells, weights, state, lengths, way);
        let [d_gates_x, d_weights, d_initial] = ops.parents;
        if let Some(node) = d_weights {
            grads.register::<B>(node.id, of_weights::<B>(d_gates.clone(), previous, way.products));
        }
        if let Some(node) = d_gates_x {
            grads.register::<B>(node.id, d_gates);
        }
        if let Some(node) = d_initial {
            grads.register::<B>(node.id, d_state);
        }
    }
}

/// The gradient of the recurrent weights, `[directions, 4 * units, units]`: the sum over samples and
/// steps of the products of `d_gates` and the hidden state before the step.
fn of_weights<B: ProductOps>(
    d_gates: FloatTensor<B>,
    previous: FloatTensor<B>,
    way: Option<ProductWay>,
) -> FloatTensor<B> {
    let [directions, batch, time, width] = d_gates.shape().dims();
    let parts = parts(batch, directions * width * width / 4);
    let split = |tensor: FloatTensor<B>, columns: usize| {
        let rows = batch / parts * time;
        B::float_reshape(tensor, [directions, parts, rows, columns].into())
    };
    let d_gates = B::float_swap_dims(split(d_gates, width), 2, 3);
    let previous = split(previous, width / 4);
    let to = d_gates.dtype();
    let products = match way {
        Some(way) => B::firebox_multiply(d_gates, previous, way, DType::F32),
        None => B::float_matmul(d_gates, previous),
    };
    let sum = B::firebox_sum_rows(products, [directions, parts, width * width / 4], to);
    B::float_reshape(sum, [directions, width, width / 4].into())
}

/// The last states of a [`Layer`].
#[derive(Debug)]
struct Last;

impl<B: LstmOps> Backward<B, 1> for Last {
    /// With the type of the outputs, which that of the states can differ from.
    type State = (Handover<B>, DType);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        let (handover, dtype) = ops.state;
        if let [Some(layer)] = ops.parents {
            // Without any gradient of its own the layer would not be visited. One zero stands for
            // all of them: it adds nothing to what else arrives, and alone it is recognised.
            let zero = B::float_zeros([1, 1, 1].into(), &gradient.device(), dtype.into());
            grads.register::<B>(layer.id, zero);
        }
        handover.put(gradient);
    }
}

impl<B: LstmOps + ProductOps, C: CheckpointStrategy> LstmOps for Autodiff<B, C> {
    fn lstm_layer(
        gates_x: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        state: FloatTensor<Self>,
        lengths: IntTensor<Self>,
        way: Way,
    ) -> Outputs<Self> {
        let (gates_x, gates_x_guard) = gates_x.into_parts();
        let (weights, weights_guard) = weights.into_parts();
        let (state, state_guard) = state.into_parts();
        let guards = [gates_x_guard, weights_guard, state_guard];
        let handover = Handover::<B>::new();
        let (output, last) = match Layer.prepare::<C>(guards).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let inputs = (weights.clone(), state.clone(), lengths.clone());
                let Recorded { output, last, gates, cells } =
                    B::lstm_record(gates_x, inputs.0, inputs.1, inputs.2, way);
                let tape = Tape {
                    output: output.clone(),
                    gates,
                    cells,
                    weights,
                    state,
                    lengths,
                    way,
                    last: handover.clone(),
                };
                (prep.finish(tape, output), last)
            }
            OpsKind::UnTracked(prep) => {
                let Outputs { output, last } = B::lstm_infer(gates_x, weights, state, lengths, way);
                (prep.finish(output), last)
            }
        };
        let dtype = output.dtype();
        let last = match Last.prepare::<C>([output.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((handover, dtype), last),
            OpsKind::UnTracked(prep) => prep.finish(last),
        };
        Outputs { output, last }
    }

    fn lstm_infer(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: IntTensor<Self>,
        _: Way,
    ) -> Outputs<Self> {
        unreachable!("the passes are called below the graph, by `lstm_layer`")
    }

    fn lstm_record(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: IntTensor<Self>,
        _: Way,
    ) -> Recorded<Self> {
        unreachable!("the passes are called below the graph, by `lstm_layer`")
    }

    fn lstm_backward(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: IntTensor<Self>,
        _: Way,
    ) -> Derived<Self> {
        unreachable!("the gradient of a gradient is not defined here")
    }
}
