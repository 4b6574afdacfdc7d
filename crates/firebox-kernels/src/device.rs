//! Whether a tensor is one that the CPU kernels can take.

use burn::tensor::{DType, Device, GradientCheckpointingStrategy, Tensor};

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
