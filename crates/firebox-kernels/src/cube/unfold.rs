//! The steps that each result of a convolution takes, laid side by side, and back: one launch each.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::cubecl::dtype_to_storage_type;
#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, TensorMetadata, backend_extension};
use burn::tensor::DType;
use burn_cubecl::cubecl::{self, prelude::*};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::{CubeBackend, tensor::CubeTensor};

use super::tensors::{each_of, empty, hand_on};
use super::watch::{LaunchedWork, launching};
use crate::cpu::Conv;

/// The sizes of a convolution, as kernels take them: channels in vectors.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Sizes {
    time: u32,
    steps: u32,
    channels: u32,
    kernel: u32,
    stride: u32,
    padding: u32,
    dilation: u32,
}

/// Each thread has a vector of the result.
///
/// # Shapes
/// - x: `[batch, time, channel]`; windows: `[batch, step, kernel, channel]`, of `count` vectors
#[cube(launch_unchecked)]
fn unfold<F: Float, T: Float, N: Size>(
    x: &[Vector<F, N>],
    windows: &mut [Vector<T, N>],
    sizes: Sizes,
    count: u32,
    #[define(F)] _from: ElemType,
    #[define(T)] _to: ElemType,
) {
    let at = ABSOLUTE_POS as u32;
    if at < count {
        let (channel, row) = (at % sizes.channels, at / sizes.channels);
        let (place, row) = (row % sizes.kernel, row / sizes.kernel);
        let (step, sample) = (row % sizes.steps, row / sizes.steps);
        let padded = step * sizes.stride + place * sizes.dilation;
        let inside = padded >= sizes.padding && padded < sizes.padding + sizes.time;
        let from = (sample * sizes.time + padded - sizes.padding) * sizes.channels + channel;
        // Padding is not read.
        let mut numbers = Vector::<T, N>::cast_from(x[select(inside, from, 0u32) as usize]);
        if !inside {
            numbers = Vector::<T, N>::new(T::new(0.0));
        }
        windows[at as usize] = numbers;
    }
}

/// Each thread has a vector of the input, and adds up the gradients of where it was laid.
///
/// # Shapes
/// - d: `[batch, step, kernel, channel]`; dx: `[batch, time, channel]`, of `count` vectors
#[cube(launch_unchecked)]
fn fold<F: Float, T: Float, N: Size>(
    d: &[Vector<F, N>],
    dx: &mut [Vector<T, N>],
    sizes: Sizes,
    count: u32,
    #[define(F)] _from: ElemType,
    #[define(T)] _to: ElemType,
) {
    let at = ABSOLUTE_POS as u32;
    if at < count {
        let (channel, row) = (at % sizes.channels, at / sizes.channels);
        let (step, sample) = (row % sizes.time, row / sizes.time);
        let padded = step + sizes.padding;
        let mut sum = Vector::<f32, N>::new(0.0f32);
        for place in 0..sizes.kernel {
            let before = place * sizes.dilation;
            if padded >= before && (padded - before) % sizes.stride == 0 {
                let window = (padded - before) / sizes.stride;
                if window < sizes.steps {
                    let row = (sample * sizes.steps + window) * sizes.kernel + place;
                    sum +=
                        Vector::<f32, N>::cast_from(d[(row * sizes.channels + channel) as usize]);
                }
            }
        }
        dx[at as usize] = Vector::<T, N>::cast_from(sum);
    }
}

/// What convolutions multiply, `[batch, step, kernel · channel]`, of `x`, `[batch, time, channel]`, in a type: both have
/// numbers, fewer than 2^32 each, and so have the steps of padded input.
#[backend_extension(Cube, Autodiff, Fusion: cfg(feature = "fusion"))]
pub(crate) trait UnfoldOps: Backend {
    /// The differentiable operation.
    #[fusion(meta = |_x, conv, to| unfolded(conv, *to))]
    fn firebox_unfold(x: FloatTensor<Self>, conv: Conv, to: DType) -> FloatTensor<Self>;

    /// The backward pass, in a type.
    #[fusion(meta = |_d, conv, to| folded(conv, *to))]
    fn firebox_fold(d: FloatTensor<Self>, conv: Conv, to: DType) -> FloatTensor<Self>;
}

#[cfg(feature = "fusion")]
fn unfolded(conv: &Conv, to: DType) -> TensorSpec {
    TensorSpec::new([conv.batch, conv.steps(), conv.kernel * conv.input].into(), to)
}

#[cfg(feature = "fusion")]
fn folded(conv: &Conv, to: DType) -> TensorSpec {
    TensorSpec::new([conv.batch, conv.time, conv.input].into(), to)
}

/// Numbers that are read at once.
fn vector(conv: &Conv) -> usize {
    if conv.input.is_multiple_of(4) { 4 } else { 1 }
}

fn sizes(conv: &Conv) -> SizesLaunch {
    SizesLaunch::new(
        conv.time as u32,
        conv.steps() as u32,
        (conv.input / vector(conv)) as u32,
        conv.kernel as u32,
        conv.stride as u32,
        conv.padding[0] as u32,
        conv.dilation as u32,
    )
}

fn work(name: &'static str, read: &CubeTensor, written: &CubeTensor) -> LaunchedWork {
    let bytes = |x: &CubeTensor| x.shape().num_elements() * x.dtype.size();
    LaunchedWork {
        name,
        shape: written.shape().to_vec(),
        operations: 0.0,
        bytes: (bytes(read) + bytes(written)) as f64,
        bf16: false,
    }
}

/// Which way steps are laid.
#[derive(Clone, Copy)]
enum Way {
    SideBySide,
    Back,
}

fn laid(x: CubeTensor, conv: Conv, to: DType, way: Way) -> CubeTensor {
    let (name, shape) = match way {
        Way::SideBySide => {
            ("windows of steps", [conv.batch, conv.steps(), conv.kernel * conv.input])
        }
        Way::Back => ("windows of steps, gradient", [conv.batch, conv.time, conv.input]),
    };
    let x = into_contiguous(x);
    let out = empty(&x, shape, to);
    let count = out.shape().num_elements() / vector(&conv);
    let (cubes, dim) = each_of(count, &x.client);
    let (from, written) = (x.clone().into_buffer_arg(), out.clone().into_buffer_arg());
    let (sizes, width, count) = (sizes(&conv), vector(&conv), count as u32);
    let types = [x.dtype, to].map(dtype_to_storage_type);
    // SAFETY: both kernels compare their place with the size of `out`, and the step or the windows that they read with
    // those of `x`.
    let launch = || unsafe {
        let client = &x.client;
        match way {
            Way::SideBySide => unfold::launch_unchecked(
                client, cubes, dim, width, from, written, sizes, count, types[0], types[1],
            ),
            Way::Back => fold::launch_unchecked(
                client, cubes, dim, width, from, written, sizes, count, types[0], types[1],
            ),
        }
    };
    launching(|| work(name, &x, &out), launch);
    out
}

impl UnfoldOps for CubeBackend {
    fn firebox_unfold(x: FloatTensor<Self>, conv: Conv, to: DType) -> FloatTensor<Self> {
        laid(x, conv, to, Way::SideBySide)
    }

    fn firebox_fold(d: FloatTensor<Self>, conv: Conv, to: DType) -> FloatTensor<Self> {
        laid(d, conv, to, Way::Back)
    }
}

#[derive(Debug)]
struct Unfolded;

impl<B: UnfoldOps> Backward<B, 1> for Unfolded {
    /// With the type of the input.
    type State = (Conv, DType);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        hand_on::<B, _, _, 1>(ops, grads, |d, (conv, to)| [B::firebox_fold(d, conv, to)]);
    }
}

impl<B: UnfoldOps, C: CheckpointStrategy> UnfoldOps for Autodiff<B, C> {
    fn firebox_unfold(x: FloatTensor<Self>, conv: Conv, to: DType) -> FloatTensor<Self> {
        let (x, guard) = x.into_parts();
        let from = x.dtype();
        let windows = B::firebox_unfold(x, conv, to);
        match Unfolded.prepare::<C>([guard]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((conv, from), windows),
            OpsKind::UnTracked(prep) => prep.finish(windows),
        }
    }

    fn firebox_fold(_: FloatTensor<Self>, _: Conv, _: DType) -> FloatTensor<Self> {
        unreachable!("the gradient of a gradient is not defined here")
    }
}
