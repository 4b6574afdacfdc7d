//! Activation checkpointing: a segment of a model keeps its input alone, and is computed again when its
//! gradient is asked for.
//!
//! Burn's own strategy (`BalancedCheckpointing`) decides operation by operation, and the operations of
//! this crate have none that it could compute again. Here a segment is one operation: forward without a
//! graph, backward with a graph of its own. Source: Chen et al., "Training deep nets with sublinear
//! memory cost", 2016.

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::backend::{
    Autodiff, Backend, DispatchKindConversion, DispatchTensor, Flex, tensor::FloatTensor,
};
#[cfg(feature = "cube")]
use burn::backend::{Cube, DispatchDevice};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, GradientCheckpointingStrategy, Tensor};

use crate::device::lift;

/// Whether [`recomputed`] computes again on this device: Burn's CPU backend, and with the feature `cube`
/// those of GPUs. Elsewhere, and in a graph with a checkpointing strategy of Burn's, it computes once and
/// keeps everything.
pub fn recomputes_on(device: &Device) -> bool {
    Place::of(device).is_some()
}

/// `segment(module, x)`, of which nothing is kept but `x`: the gradient computes it again.
///
/// Results and gradients are those of the segment itself, bit for bit; with Burn's fusion, which joins
/// operations of a GPU across the ends of a segment, but for rounding. It costs another forward pass, and saves what all operations of the segment would have kept until then. `segment` must give the
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
    match Place::of(&x.device()) {
        None => segment(module, x),
        Some(Place::Processor) => on::<Flex, _, D, E>(module, x, segment),
        #[cfg(feature = "cube")]
        Some(Place::Gpu) => on::<Cube, _, D, E>(module, x, segment),
    }
}

/// Where segments are computed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Processor,
    #[cfg(feature = "cube")]
    Gpu,
}

impl Place {
    fn of(device: &Device) -> Option<Self> {
        match device.gradient_checkpointing_strategy() {
            None | Some(GradientCheckpointingStrategy::Disabled) => {}
            Some(_) => return None,
        }
        let device = device.clone().without_autodiff();
        #[cfg(feature = "cube")]
        if let DispatchDevice::Cube(_) = device.as_dispatch() {
            return Some(Self::Gpu);
        }
        (device == Device::flex()).then_some(Self::Processor)
    }
}

/// The ways into a backend's tensors and out of them, in a graph and in none.
trait Inside: Backend {
    fn plain<const D: usize>(tensor: Tensor<D>) -> FloatTensor<Self>;
    fn tensor<const D: usize>(plain: FloatTensor<Self>) -> Tensor<D>;
    fn tracked<const D: usize>(tensor: Tensor<D>) -> FloatTensor<Autodiff<Self>>;
    fn of_graph<const D: usize>(tracked: FloatTensor<Autodiff<Self>>) -> Tensor<D>;
}

impl<B: Backend> Inside for B
where
    DispatchTensor: DispatchKindConversion<B> + DispatchKindConversion<Autodiff<B>>,
{
    fn plain<const D: usize>(tensor: Tensor<D>) -> FloatTensor<B> {
        match tensor.try_into_primitive::<B>() {
            Ok(tensor) => tensor,
            Err(error) => unreachable!("a tensor of the place that was looked up: {error:?}"),
        }
    }

    fn tensor<const D: usize>(plain: FloatTensor<B>) -> Tensor<D> {
        Tensor::from_primitive::<B>(plain)
    }

    fn tracked<const D: usize>(tensor: Tensor<D>) -> FloatTensor<Autodiff<B>> {
        match lift(tensor).try_into_primitive::<Autodiff<B>>() {
            Ok(tensor) => tensor,
            Err(error) => unreachable!("a tensor of the place that was looked up: {error:?}"),
        }
    }

    fn of_graph<const D: usize>(tracked: FloatTensor<Autodiff<B>>) -> Tensor<D> {
        Tensor::from_primitive::<Autodiff<B>>(tracked)
    }
}

/// [`recomputed`] where `x` lies.
fn on<B: Inside, M: Module + 'static, const D: usize, const E: usize>(
    module: &M,
    x: Tensor<D>,
    segment: impl Fn(&M, Tensor<D>) -> Tensor<E> + Send + Sync + 'static,
) -> Tensor<E> {
    let parameters = Nodes::<B>::of(module, &x.device());
    let Some(anchor) = parameters.first else {
        // Nothing of it learns, so that nothing would be kept for it but for its input's sake.
        return segment(module, x);
    };
    let (x, guard) = B::tracked(x).into_parts();
    let plain = module.valid();
    let y = B::plain(segment(&plain, B::tensor(x.clone())));
    let prepared =
        Recomputed.prepare::<NoCheckpointing>([guard, anchor]).compute_bound().stateful();
    B::of_graph(match prepared {
        OpsKind::Tracked(prepared) => {
            let tape = Tape::<B>::new(plain, x, parameters.ids, segment);
            prepared.finish(tape, y)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(y),
    })
}

/// The places of a module's parameters in the graph, in the order of a visit.
struct Nodes<B> {
    device: Device,
    /// `None` for a parameter without a gradient.
    ids: Vec<Option<NodeId>>,
    /// The first that has one.
    first: Option<NodeGuard>,
    backend: PhantomData<B>,
}

impl<B: Inside> Nodes<B> {
    fn of<M: Module>(module: &M, device: &Device) -> Self {
        let device = device.clone().without_autodiff();
        let mut nodes = Self { device, ids: vec![], first: None, backend: PhantomData };
        module.visit(&mut nodes);
        nodes
    }
}

impl<B: Inside> ModuleVisitor for Nodes<B> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        if !value.is_autodiff() || value.device().without_autodiff() != self.device {
            return self.ids.push(None);
        }
        let value = B::tracked(value);
        self.ids.push(value.is_tracked().then(|| value.id()));
        if value.is_tracked() && self.first.is_none() {
            self.first = Some(value.node());
        }
    }
}

/// Gradients with respect to a segment's input and to its parameters.
type Derived<B> = (Option<FloatTensor<B>>, Vec<(NodeId, FloatTensor<B>)>);

/// These from the gradient of its result; that of the input only if it is wanted.
type Again<B> = dyn Fn(FloatTensor<B>, bool) -> Derived<B> + Send + Sync;

/// What the gradient is computed from.
struct Tape<B: Backend>(Arc<Again<B>>);

impl<B: Backend> Clone for Tape<B> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<B: Backend> fmt::Debug for Tape<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a segment to compute again")
    }
}

impl<B: Inside> Tape<B> {
    fn new<M: Module + 'static, const D: usize, const E: usize>(
        module: M,
        x: FloatTensor<B>,
        ids: Vec<Option<NodeId>>,
        segment: impl Fn(&M, Tensor<D>) -> Tensor<E> + Send + Sync + 'static,
    ) -> Self {
        // A module may be sent to another thread and not be looked at from two.
        let module = Mutex::new(module);
        Self(Arc::new(move |dy, wants_x| {
            let module = module.lock().unwrap_or_else(PoisonError::into_inner).clone().train();
            let input = Tensor::<D>::from_inner(B::tensor(x.clone()));
            let input = if wants_x { input.require_grad() } else { input };
            let y = segment(&module, input.clone());
            let dy = Tensor::<E>::from_inner(B::tensor(dy));
            // A loss whose gradient with respect to the result is the given one, to the bit.
            let mut gradients = (y * dy).sum().backward();
            let to_x = input.grad_remove(&mut gradients).filter(|_| wants_x).map(B::plain);
            let ids = ids.iter().copied();
            let mut taken = Taken::<B, _> { gradients, ids, found: vec![] };
            module.visit(&mut taken);
            (to_x, taken.found)
        }))
    }
}

/// Takes the gradients of a module's parameters for the nodes of another.
struct Taken<B: Backend, I> {
    gradients: burn::tensor::Gradients,
    ids: I,
    found: Vec<(NodeId, FloatTensor<B>)>,
}

impl<B: Inside, I: Iterator<Item = Option<NodeId>>> ModuleVisitor for Taken<B, I> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(Some(id)) = self.ids.next() else { return };
        if let Some(gradient) = param.val().grad_remove(&mut self.gradients) {
            self.found.push((id, B::plain(gradient)));
        }
    }
}

#[derive(Debug)]
struct Recomputed;

impl<B: Inside> Backward<B, 2> for Recomputed {
    type State = Tape<B>;

    fn backward(self, ops: Ops<Tape<B>, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let dy = grads.consume::<B>(&ops.node);
        // The anchor is one of the parameters: its gradient is among theirs.
        let [to_x, _] = ops.parents;
        let (dx, parameters) = (ops.state.0)(dy, to_x.is_some());
        if let (Some(parent), Some(dx)) = (to_x, dx) {
            grads.register::<B>(parent.id, dx);
        }
        for (id, gradient) in parameters {
            grads.register::<B>(id, gradient);
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
