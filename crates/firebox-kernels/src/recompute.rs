//! Activation checkpointing: a segment of a model keeps its input alone, and is computed again when its
//! gradient is asked for.
//!
//! Burn's own strategy (`BalancedCheckpointing`) decides operation by operation, and the operations of
//! this crate have none that it could compute again. Here a segment is one operation: forward without a
//! graph, backward with a graph of its own. Source: Chen et al., "Training deep nets with sublinear
//! memory cost", 2016.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};

use crate::device::{flex, flex_in_graph, is_flex};

type Primitive = FloatTensor<Flex>;

/// Whether [`recomputed`] computes again on this device: Burn's CPU backend alone. Elsewhere it
/// computes once and keeps everything.
pub fn recomputes_on(device: &Device) -> bool {
    device.clone().without_autodiff() == Device::flex()
}

/// `segment(module, x)`, of which nothing is kept but `x`: the gradient computes it again.
///
/// Results and gradients are those of the segment itself, bit for bit. It costs another forward pass,
/// and saves what all operations of the segment would have kept until then. `segment` must give the
/// same whenever it is called: dropout from a [`Stream`](firebox_core::Stream) does, and
/// [`BatchNorm`](crate::BatchNorm), which changes its running statistics, does not.
///
/// Every parameter that `segment` uses has to be one of `module`.
pub fn recomputed<M, const D: usize, const E: usize>(
    module: &M,
    x: Tensor<D>,
    segment: impl Fn(&M, Tensor<D>) -> Tensor<E> + Send + Sync + 'static,
) -> Tensor<E>
where
    M: Module + 'static,
{
    let parameters = Nodes::of(module);
    let Some(anchor) = parameters.first else {
        // Nothing of it learns, so that nothing would be kept for it but for its input's sake.
        return segment(module, x);
    };
    if !is_flex(&x) {
        return segment(module, x);
    }
    let (x, guard) = flex_in_graph(x).into_parts();
    let plain = module.valid();
    let y = flex(segment(&plain, Tensor::from_primitive::<Flex>(x.clone())));
    let prepared =
        Recomputed.prepare::<NoCheckpointing>([guard, anchor]).compute_bound().stateful();
    Tensor::from_primitive::<Autodiff<Flex>>(match prepared {
        OpsKind::Tracked(prepared) => {
            let tape = Tape::new(plain, x, parameters.ids, segment);
            prepared.finish(tape, y)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(y),
    })
}

/// The places of a module's parameters in the graph, in the order of a visit.
#[derive(Default)]
struct Nodes {
    /// `None` for a parameter without a gradient.
    ids: Vec<Option<NodeId>>,
    /// The first that has one.
    first: Option<NodeGuard>,
}

impl Nodes {
    fn of<M: Module>(module: &M) -> Self {
        let mut nodes = Self::default();
        module.visit(&mut nodes);
        nodes
    }
}

impl ModuleVisitor for Nodes {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        if !value.is_autodiff() || !is_flex(&value) {
            return self.ids.push(None);
        }
        let value = flex_in_graph(value);
        self.ids.push(value.is_tracked().then(|| value.id()));
        if value.is_tracked() && self.first.is_none() {
            self.first = Some(value.node());
        }
    }
}

/// The gradients of a segment from that of its result.
type Again = dyn Fn(Primitive, bool) -> (Option<Primitive>, Vec<(NodeId, Primitive)>) + Send + Sync;

/// What the gradient is computed from.
#[derive(Clone)]
struct Tape(Arc<Again>);

impl fmt::Debug for Tape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a segment to compute again")
    }
}

impl Tape {
    fn new<M: Module + 'static, const D: usize, const E: usize>(
        module: M,
        x: Primitive,
        ids: Vec<Option<NodeId>>,
        segment: impl Fn(&M, Tensor<D>) -> Tensor<E> + Send + Sync + 'static,
    ) -> Self {
        // A module may be sent to another thread and not be looked at from two.
        let module = Mutex::new(module);
        Self(Arc::new(move |dy, wants_x| {
            let module = module.lock().unwrap_or_else(PoisonError::into_inner).clone().train();
            let input = Tensor::<D>::from_inner(Tensor::from_primitive::<Flex>(x.clone()));
            let input = if wants_x { input.require_grad() } else { input };
            let y = segment(&module, input.clone());
            let dy = Tensor::<E>::from_inner(Tensor::from_primitive::<Flex>(dy));
            // A loss whose gradient with respect to the result is the given one, to the bit.
            let mut gradients = (y * dy).sum().backward();
            let to_x = input.grad_remove(&mut gradients).filter(|_| wants_x).map(flex);
            let mut taken = Taken { gradients, ids: ids.iter().copied(), found: vec![] };
            module.visit(&mut taken);
            (to_x, taken.found)
        }))
    }
}

/// Takes the gradients of a module's parameters for the nodes of another.
struct Taken<I> {
    gradients: burn::tensor::Gradients,
    ids: I,
    found: Vec<(NodeId, Primitive)>,
}

impl<I: Iterator<Item = Option<NodeId>>> ModuleVisitor for Taken<I> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(Some(id)) = self.ids.next() else { return };
        if let Some(gradient) = param.val().grad_remove(&mut self.gradients) {
            self.found.push((id, flex(gradient)));
        }
    }
}

#[derive(Debug)]
struct Recomputed;

impl Backward<Flex, 2> for Recomputed {
    type State = Tape;

    fn backward(self, ops: Ops<Tape, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = grads.consume::<Flex>(&ops.node);
        // The anchor is one of the parameters: its gradient is among theirs.
        let [to_x, _] = ops.parents;
        let (dx, parameters) = (ops.state.0)(dy, to_x.is_some());
        if let (Some(parent), Some(dx)) = (to_x, dx) {
            grads.register::<Flex>(parent.id, dx);
        }
        for (id, gradient) in parameters {
            grads.register::<Flex>(id, gradient);
        }
    }
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test says why it fails by panicking")]
mod tests {
    use burn::nn::Linear;
    use burn::tensor::TensorData;
    use firebox_core::Stream;

    use super::*;
    use crate::{Lstm, LstmConfig, dropout, init_linear, linear, relu_dropout};

    #[derive(Module, Debug)]
    struct Block {
        lower: Linear,
        lstm: Lstm,
        upper: Linear,
    }

    fn block() -> Block {
        let device = Device::flex();
        let stream = |index| Stream::new(3, "weights").substream(index);
        Block {
            lower: init_linear(stream(0), 5, 7, &device),
            lstm: LstmConfig { bidirectional: true, ..LstmConfig::new(7, 4) }
                .init(stream(1), &device),
            upper: init_linear(stream(2), 8, 5, &device),
        }
    }

    fn forward(block: &Block, x: Tensor<3>) -> Tensor<3> {
        let [batch, time, width] = x.dims();
        let stream = Stream::new(9, "dropout");
        let rows = linear(x.clone().reshape([batch * time, width]), &block.lower);
        let rows = relu_dropout(rows, 0.3, Some(stream.substream(0)));
        let hidden = rows.reshape([batch, time, 7]);
        let (hidden, _) = block.lstm.forward(hidden, Some(&[6, 3, 6]), None, None);
        let rows = linear(hidden.reshape([batch * time, 8]), &block.upper);
        let rows = dropout(rows, 0.2, Some(stream.substream(1)));
        rows.reshape([batch, time, width]) + x
    }

    fn input(tracked: bool) -> Tensor<3> {
        let mut draws = Stream::new(4, "input").draws();
        let values: Vec<f32> = (0..3 * 6 * 5).map(|_| draws.normal() as f32).collect();
        let device = Device::flex().autodiff();
        let x = Tensor::from_data(TensorData::new(values, [3, 6, 5]), &device);
        if tracked { x.require_grad() } else { x }
    }

    fn bits<const D: usize>(tensor: Tensor<D>) -> Vec<u32> {
        tensor.into_data().iter::<f32>().map(f32::to_bits).collect()
    }

    /// Result and all gradients of a loss of the block twice, as it is or computed again.
    fn run(model: &Block, again: bool, tracked: bool) -> Vec<Option<Vec<u32>>> {
        let x = input(tracked);
        let once = |x: Tensor<3>| match again {
            true => recomputed(model, x, forward),
            false => forward(model, x),
        };
        // The same segment twice: gradients of one parameter from two places add up.
        let y = once(once(x.clone()) * 0.5);
        let mut gradients = (y.clone() * y.clone()).mean().backward();
        struct Visitor<'a>(&'a mut burn::tensor::Gradients, Vec<Option<Vec<u32>>>);
        impl ModuleVisitor for Visitor<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                self.1.push(param.val().grad_remove(self.0).map(bits));
            }
        }
        let mut all = vec![Some(bits(y)), x.grad_remove(&mut gradients).map(bits)];
        let mut visitor = Visitor(&mut gradients, vec![]);
        model.visit(&mut visitor);
        all.append(&mut visitor.1);
        all
    }

    #[test]
    fn results_and_gradients_are_the_same_to_the_bit() {
        for tracked in [true, false] {
            let model = block().train();
            let plain = run(&model, false, tracked);
            assert_eq!(plain.len(), 2 + 2 + 8 + 2);
            assert_eq!(plain.iter().filter(|one| one.is_none()).count(), usize::from(!tracked));
            assert!(plain == run(&model, true, tracked), "tracked {tracked}");
        }
    }

    #[test]
    fn what_is_frozen_gets_no_gradient() {
        let mut model = block().train();
        model.lower = model.lower.no_grad();
        let plain = run(&model, false, true);
        assert_eq!(plain.iter().filter(|one| one.is_none()).count(), 2);
        assert!(plain == run(&model, true, true));
        // All of it, and so only its input learns.
        let frozen = block().train().no_grad();
        assert!(run(&frozen, false, true) == run(&frozen, true, true));
    }

    #[test]
    fn without_a_graph_it_is_the_segment() {
        let model = block();
        let x = input(false).inner();
        assert_eq!(bits(recomputed(&model, x.clone(), forward)), bits(forward(&model, x)));
    }
}
