//! Whether a tensor is one that the CPU kernels can take, the way into it, and what all operations
//! that are composed of Burn's share.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex, TensorMetadata};
use burn::tensor::{DType, Device, GradientCheckpointingStrategy, Tensor, TensorData};

use crate::cpu;

/// Whether a tensor is in f32 on Burn's CPU backend, in a graph without checkpointing if in any.
pub(crate) fn is_flex<const D: usize>(tensor: &Tensor<D>) -> bool {
    let device = tensor.device();
    let plain = match device.gradient_checkpointing_strategy() {
        None | Some(GradientCheckpointingStrategy::Disabled) => true,
        Some(_) => false,
    };
    tensor.dtype() == DType::F32 && device == Device::flex() && plain
}

/// The same tensor in a graph: a constant if it was in none.
pub(crate) fn lift<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    if tensor.is_autodiff() { tensor } else { Tensor::from_inner(tensor) }
}

/// Numbers that the host has made, in the type of `x` and where it is: a constant of its graph, if it is in
/// one. By itself, `from_data` takes the type of the device.
pub(crate) fn constant_like<const D: usize>(x: &Tensor<D>, numbers: TensorData) -> Tensor<D> {
    let constant = Tensor::from_data(numbers, (&x.device().without_autodiff(), x.dtype()));
    if x.is_autodiff() { lift(constant) } else { constant }
}

/// The inside of a tensor that [`is_flex`] and is in no graph.
pub(crate) fn flex<const D: usize>(tensor: Tensor<D>) -> FloatTensor<Flex> {
    match tensor.try_into_primitive::<Flex>() {
        Ok(tensor) => tensor,
        Err(error) => unreachable!("a tensor of the CPU backend: {error:?}"),
    }
}

/// The inside of a tensor that [`is_flex`], [lifted](lift) into a graph.
pub(crate) fn flex_in_graph<const D: usize>(tensor: Tensor<D>) -> FloatTensor<Autodiff<Flex>> {
    match lift(tensor).try_into_primitive::<Autodiff<Flex>>() {
        Ok(tensor) => tensor,
        Err(error) => unreachable!("a tensor of the CPU backend: {error:?}"),
    }
}

/// A result without a number, in the graph of a tensor that it would have been made of, which so gets zeros for its
/// gradient and not none: on Burn's CPU backend.
pub(crate) fn tied<const D: usize, const E: usize>(
    nothing: Tensor<D>,
    to: &Tensor<E>,
) -> Tensor<D> {
    if !to.is_autodiff() || !is_flex(to) || nothing.dtype() != DType::F32 {
        return nothing;
    }
    lift(nothing) + to.clone().sum().reshape([1_usize; D])
}

/// The same numbers, whole, in order and held by nobody else: in the memory that they have, if nobody
/// else holds it.
pub(crate) fn own(tensor: FloatTensor<Flex>) -> FloatTensor<Flex> {
    let whole = tensor.to_contiguous();
    drop(tensor);
    if whole.is_unique() {
        return whole;
    }
    let shape = whole.shape();
    FloatTensor::<Flex>::from_data(TensorData::new(cpu::copy(whole.storage()), shape))
}
