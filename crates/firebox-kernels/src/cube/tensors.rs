//! What the operations on CubeCL's backend do with their tensors, whatever they compute: make new ones,
//! pass lists of them to a kernel, add one up, and hand gradients on to where they belong.

use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::Ops;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{DType, Shape};
use burn_cubecl::cubecl::client::Client;
use burn_cubecl::cubecl::{calculate_cube_count_elemwise, prelude::*};
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;

use super::device::{self, without_cores};
use super::sweep::total;
use super::watch::{LaunchedWork, launching};
use crate::cuts::Team;

/// A new tensor beside another. The kernels index their buffers as flat slices, so it has to be
/// contiguous: the default allocation of some runtimes pads rows.
pub(super) fn empty(like: &CubeTensor, shape: impl Into<Shape>, dtype: DType) -> CubeTensor {
    let (client, device) = (like.client.clone(), like.device.clone());
    empty_device_contiguous_dtype(client, device, shape.into(), dtype)
}

/// Rows of a shape, all axes but the last, and their width; there are elements.
pub(super) fn rows_of(shape: &Shape) -> (usize, usize) {
    let width = shape[shape.num_dims() - 1];
    (shape.num_elements() / width, width)
}

/// What a launch does, with so many operations, numbers of the tensor's type read and written for each
/// element.
pub(super) fn work_on(
    name: &'static str,
    x: &CubeTensor,
    operations: usize,
    numbers: usize,
) -> LaunchedWork {
    let count = x.shape().num_elements();
    LaunchedWork {
        name,
        shape: x.shape().to_vec(),
        operations: (operations * count) as f64,
        bytes: (numbers * count * x.dtype.size()) as f64,
        bf16: x.dtype == DType::BF16,
    }
}

/// Cubes and their threads where each of so many threads has elements of its own.
pub(super) fn each_of(threads: usize, client: &Client) -> (CubeCount, CubeDim) {
    let dim = CubeDim::new(client, threads);
    (calculate_cube_count_elemwise(client, threads, dim), dim)
}

/// Tensors as one argument of a kernel.
pub(super) fn arguments<C: LaunchArg<RuntimeArg = BufferArg>>(
    tensors: &[CubeTensor],
) -> SequenceArg<C> {
    tensors.iter().map(|tensor| tensor.clone().into_buffer_arg()).collect()
}

/// The sum of a tensor in f32, contiguous, that has elements: `[1]`.
pub(super) fn sum(numbers: &CubeTensor) -> CubeTensor {
    let count = numbers.shape().num_elements();
    let sum = empty(numbers, [1], DType::F32);
    let team = Team::whole(&without_cores(&numbers.client));
    let work = || LaunchedWork {
        name: "sum",
        shape: vec![count],
        operations: count as f64,
        bytes: (4 * count) as f64,
        bf16: false,
    };
    // SAFETY: the kernel compares every index with the count, and writes the one number of the sum.
    let launch = || unsafe {
        total::launch_unchecked(
            &numbers.client,
            device::count([1, 1]),
            device::dim(team.dim()),
            numbers.clone().into_buffer_arg(),
            sum.clone().into_buffer_arg(),
            count as u32,
            team.threads(),
        );
    };
    launching(work, launch);
    sum
}

/// A backward pass: `derive` makes the gradients of the parents, in their order, of that of the result and
/// of what was kept.
pub(super) fn hand_on<B: Backend, S, G, const N: usize>(
    ops: Ops<S, N>,
    grads: &mut Gradients,
    derive: impl FnOnce(FloatTensor<B>, S) -> G,
) where
    G: IntoIterator<Item = FloatTensor<B>>,
{
    let d = grads.consume::<B>(&ops.node);
    for (parent, gradient) in ops.parents.into_iter().zip(derive(d, ops.state)) {
        if let Some(parent) = parent {
            grads.register::<B>(parent.id, gradient);
        }
    }
}
