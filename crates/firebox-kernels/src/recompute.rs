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

use firebox_core::Precision;

use crate::device::lift;
use crate::{CpuKernels, F32Products};

/// Whether [`recomputed`] computes again on this device: Burn's CPU backend, and with the feature `cube`
/// those of GPUs. Elsewhere, and in a graph with a checkpointing strategy of Burn's, it computes once and
/// keeps everything.
pub fn recomputes_on(device: &Device) -> bool {
    Place::of(device).is_some()
}

/// `segment(module, x)`, of which nothing is kept but `x`: the gradient computes it again.
///
/// Results and gradients are those of the segment itself, bit for bit, as long as no tensor of it is used by more
/// than two operations in a way that has a gradient: the gradients of more are summed up in another order. Burn's fusion
/// joins operations of a GPU across the ends of a segment, and so rounds otherwise, too. It costs another forward pass,
/// and saves what all operations of the segment would have kept until then. `segment` must give the same whenever it is
/// called: dropout from a [`Stream`](firebox_core::Stream) does, and [`BatchNorm`](crate::BatchNorm), which changes its
/// running statistics, does not.
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

/// [`recomputed`] of a segment that takes a second input beside its own, which is kept as well and may have a gradient:
/// what all segments of a model share, for example. It has to lie where `x` does.
///
/// `beside` gets one gradient of each segment, in the order in which segments are computed again: the last one first.
pub fn recomputed_beside<M, const D: usize, const S: usize, const E: usize>(
    module: &M,
    x: Tensor<D>,
    beside: Tensor<S>,
    segment: impl Fn(&M, Tensor<D>, Tensor<S>) -> Tensor<E> + Send + Sync + 'static,
) -> Tensor<E>
where
    M: Module + 'static,
{
    let place = Place::of(&x.device()).filter(|place| Place::of(&beside.device()) == Some(*place));
    match place {
        None => segment(module, x, beside),
        Some(Place::Processor) => beside_on::<Flex, _, D, S, E>(module, x, beside, segment),
        #[cfg(feature = "cube")]
        Some(Place::Gpu) => beside_on::<Cube, _, D, S, E>(module, x, beside, segment),
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
    kept::<B, 1, 2, E>([guard, anchor], y, || {
        Tape::new(plain, parameters.ids, move |module, [wanted]| {
            let x = Input::<D>::new::<B>(&x, wanted);
            let y = segment(module, x.0.clone());
            (y, [Box::new(x) as Box<dyn Wanted<B>>])
        })
    })
}

/// [`recomputed_beside`] where both inputs lie.
fn beside_on<B: Inside, M: Module + 'static, const D: usize, const S: usize, const E: usize>(
    module: &M,
    x: Tensor<D>,
    beside: Tensor<S>,
    segment: impl Fn(&M, Tensor<D>, Tensor<S>) -> Tensor<E> + Send + Sync + 'static,
) -> Tensor<E> {
    let parameters = Nodes::<B>::of(module, &x.device());
    let Some(anchor) = parameters.first else {
        return segment(module, x, beside);
    };
    let (x, of_x) = B::tracked(x).into_parts();
    let (beside, of_beside) = B::tracked(beside).into_parts();
    let plain = module.valid();
    let y = B::plain(segment(&plain, B::tensor(x.clone()), B::tensor(beside.clone())));
    kept::<B, 2, 3, E>([of_x, of_beside, anchor], y, || {
        Tape::new(plain, parameters.ids, move |module, [wants_x, wants_beside]| {
            let x = Input::<D>::new::<B>(&x, wants_x);
            let beside = Input::<S>::new::<B>(&beside, wants_beside);
            let y = segment(module, x.0.clone(), beside.0.clone());
            (y, [Box::new(x) as Box<dyn Wanted<B>>, Box::new(beside)])
        })
    })
}

/// A segment's result in the graph of its inputs and of a parameter, the last one of `guards`.
fn kept<B: Inside, const N: usize, const P: usize, const E: usize>(
    guards: [NodeGuard; P],
    y: FloatTensor<B>,
    tape: impl FnOnce() -> Tape<B, N>,
) -> Tensor<E>
where
    Recomputed<N>: Backward<B, P, State = Tape<B, N>>,
{
    let prepared = Recomputed.prepare::<NoCheckpointing>(guards).compute_bound().stateful();
    B::of_graph(match prepared {
        OpsKind::Tracked(prepared) => prepared.finish(tape(), y),
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

/// An input of a segment that is computed again: in a graph, if its gradient is wanted.
struct Input<const D: usize>(Tensor<D>);

impl<const D: usize> Input<D> {
    fn new<B: Inside>(x: &FloatTensor<B>, wanted: bool) -> Self {
        let input = Tensor::<D>::from_inner(B::tensor(x.clone()));
        Self(if wanted { input.require_grad() } else { input })
    }
}

/// What has a gradient once the segment was computed again.
trait Wanted<B: Backend> {
    fn gradient(&self, gradients: &mut burn::tensor::Gradients) -> Option<FloatTensor<B>>;
}

impl<B: Inside, const D: usize> Wanted<B> for Input<D> {
    fn gradient(&self, gradients: &mut burn::tensor::Gradients) -> Option<FloatTensor<B>> {
        self.0.grad_remove(gradients).map(B::plain)
    }
}

/// Gradients with respect to a segment's inputs, of those that are wanted, and to its parameters.
type Derived<B, const N: usize> = ([Option<FloatTensor<B>>; N], Vec<(NodeId, FloatTensor<B>)>);

/// These from the gradient of its result.
type Again<B, const N: usize> = dyn Fn(FloatTensor<B>, [bool; N]) -> Derived<B, N> + Send + Sync;

/// What the gradient is computed from.
struct Tape<B: Backend, const N: usize>(Arc<Again<B, N>>);

impl<B: Backend, const N: usize> Clone for Tape<B, N> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<B: Backend, const N: usize> fmt::Debug for Tape<B, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a segment to compute again")
    }
}

impl<B: Inside, const N: usize> Tape<B, N> {
    /// `again` computes the segment in a graph, and has its inputs.
    fn new<M: Module + 'static, const E: usize>(
        module: M,
        ids: Vec<Option<NodeId>>,
        again: impl Fn(&M, [bool; N]) -> (Tensor<E>, [Box<dyn Wanted<B>>; N]) + Send + Sync + 'static,
    ) -> Self {
        // A module may be sent to another thread and not be looked at from two.
        let module = Mutex::new(module);
        // Gradients are computed as what they belong to was, wherever they are asked for.
        let way = Way::now();
        let run = move |dy, wanted: [bool; N]| {
            let module = module.lock().unwrap_or_else(PoisonError::into_inner).clone().train();
            let (y, inputs) = again(&module, wanted);
            let dy = Tensor::<E>::from_inner(B::tensor(dy));
            // A loss whose gradient with respect to the result is the given one, to the bit.
            let mut gradients = (y * dy).sum().backward();
            let of_inputs = std::array::from_fn(|index| {
                inputs[index].gradient(&mut gradients).filter(|_| wanted[index])
            });
            let ids = ids.iter().copied();
            let mut taken = Taken::<B, _> { gradients, ids, found: vec![] };
            module.visit(&mut taken);
            (of_inputs, taken.found)
        };
        Self(Arc::new(move |dy, wanted| way.during(|| run(dy, wanted))))
    }
}

/// The kernels that a thread has chosen.
#[derive(Clone, Copy, Debug)]
struct Way {
    products: F32Products,
    kernels: Option<CpuKernels>,
}

impl Way {
    fn now() -> Self {
        let products = F32Products::of(Precision::F32);
        Self { products, kernels: CpuKernels::current().ok() }
    }

    fn during<T>(self, run: impl FnOnce() -> T) -> T {
        self.products.during(|| match self.kernels {
            Some(kernels) => kernels.force(run),
            None => run(),
        })
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

/// A segment with so many inputs.
#[derive(Debug)]
struct Recomputed<const N: usize>;

impl<const N: usize> Recomputed<N> {
    fn run<B: Inside, const P: usize>(ops: Ops<Tape<B, N>, P>, grads: &mut Gradients) {
        let dy = grads.consume::<B>(&ops.node);
        // The anchor, which comes after the inputs, is one of the parameters: its gradient is among theirs.
        let wanted = std::array::from_fn(|index| ops.parents[index].is_some());
        let (inputs, parameters) = (ops.state.0)(dy, wanted);
        for (parent, gradient) in ops.parents.into_iter().zip(inputs) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                grads.register::<B>(parent.id, gradient);
            }
        }
        for (id, gradient) in parameters {
            grads.register::<B>(id, gradient);
        }
    }
}

impl<B: Inside> Backward<B, 2> for Recomputed<1> {
    type State = Tape<B, 1>;

    fn backward(self, ops: Ops<Tape<B, 1>, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        Self::run(ops, grads);
    }
}

impl<B: Inside> Backward<B, 3> for Recomputed<2> {
    type State = Tape<B, 2>;

    fn backward(self, ops: Ops<Tape<B, 2>, 3>, grads: &mut Gradients, _: &mut Checkpointer) {
        Self::run(ops, grads);
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
        run_with(CpuKernels::current().expect("kernels"), model, again, tracked)
    }

    /// The same, with these kernels for the way forward alone.
    fn run_with(
        kernels: CpuKernels,
        model: &Block,
        again: bool,
        tracked: bool,
    ) -> Vec<Option<Vec<u32>>> {
        let x = input(tracked);
        let once = |x: Tensor<3>| match again {
            true => recomputed(model, x, forward),
            false => forward(model, x),
        };
        // The same segment twice: gradients of one parameter from two places add up.
        let y = kernels.force(|| once(once(x.clone()) * 0.5));
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
    fn gradients_are_those_of_the_kernels_of_the_way_forward() {
        let model = block().train();
        // Burn's own operations, the first variant, have no kernels to keep.
        for kernels in CpuKernels::available().into_iter().skip(1) {
            let [plain, again] = [false, true].map(|again| run_with(kernels, &model, again, true));
            assert!(plain == again, "{kernels:?}");
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

    /// Segments that share a second input, each of which learns, or not.
    fn run_beside(model: &Block, again: bool, tracked: [bool; 2]) -> [Option<Vec<u32>>; 4] {
        let beside = input(false).narrow(1, 0, 1).squeeze_dim::<2>(1);
        let beside = if tracked[1] { beside.require_grad() } else { beside };
        let segment = |block: &Block, x: Tensor<3>, beside: Tensor<2>| {
            let moved = linear(beside, &block.lower).narrow(1, 0, 5);
            forward(block, x + moved.unsqueeze_dim::<3>(1))
        };
        let once = |x: Tensor<3>, beside: Tensor<2>| match again {
            true => recomputed_beside(model, x, beside, segment),
            false => segment(model, x, beside),
        };
        let x = input(tracked[0]);
        let shared = beside.clone() * 2.0;
        let y = once(once(x.clone(), shared.clone()) * 0.5, shared);
        let mut gradients = (y.clone() * y.clone()).mean().backward();
        let found =
            [x.grad_remove(&mut gradients).map(bits), beside.grad_remove(&mut gradients).map(bits)];
        let weight = model.upper.weight.val().grad_remove(&mut gradients).map(bits);
        let [of_x, of_beside] = found;
        [Some(bits(y)), of_x, of_beside, weight]
    }

    #[test]
    fn what_segments_share_gets_the_same_gradient() {
        for tracked in [[true, true], [false, true], [true, false], [false, false]] {
            let model = block().train();
            let plain = run_beside(&model, false, tracked);
            let none = [true, tracked[0], tracked[1], true];
            assert_eq!(plain.each_ref().map(Option::is_some), none);
            assert!(plain == run_beside(&model, true, tracked), "tracked {tracked:?}");
            // All of the model frozen, so that only inputs learn.
            let frozen = block().train().no_grad();
            if tracked.contains(&true) {
                assert!(run_beside(&frozen, false, tracked) == run_beside(&frozen, true, tracked));
            }
        }
        let (model, x) = (block(), input(false).inner());
        let beside = x.clone().narrow(1, 0, 1).squeeze_dim::<2>(1);
        let segment = |block: &Block, x: Tensor<3>, beside: Tensor<2>| {
            forward(block, x + beside.unsqueeze_dim::<3>(1))
        };
        let plain = segment(&model, x.clone(), beside.clone());
        assert_eq!(bits(recomputed_beside(&model, x, beside, segment)), bits(plain));
    }

    #[test]
    fn without_a_graph_it_is_the_segment() {
        let model = block();
        let x = input(false).inner();
        assert_eq!(bits(recomputed(&model, x.clone(), forward)), bits(forward(&model, x)));
    }
}
