//! The maximum of windows along time on a GPU, channels last: one launch forward and one back. Where a
//! maximum came from is found again for the gradient, not kept.

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
use crate::cpu::MaxPool;

/// The sizes of a pooling, as kernels take them.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Sizes {
    time: u32,
    out: u32,
    width: u32,
    kernel: u32,
    stride: u32,
    padding: u32,
}

/// The first step under a window, and the one after its last.
#[cube]
fn window(sizes: &Sizes, step: u32) -> (u32, u32) {
    let start = step * sizes.stride;
    let first = select(start > sizes.padding, start - sizes.padding, 0u32);
    (first, (start + sizes.kernel - sizes.padding).min(sizes.time))
}

/// The largest number under a window and its step: the first of equal ones, and the last NaN. `begin` is
/// the place of the channel in the first step of the sample.
#[cube]
fn largest<F: Float>(x: &[F], sizes: &Sizes, begin: usize, step: u32) -> (f32, u32) {
    let (first, end) = window(sizes, step);
    let mut best = f32::cast_from(x[begin + (first * sizes.width) as usize]);
    let mut chosen = first;
    for row in first + 1..end {
        let value = f32::cast_from(x[begin + (row * sizes.width) as usize]);
        if value > best || value.is_nan() {
            best = value;
            chosen = row;
        }
    }
    (best, chosen)
}

/// Each thread has one number of the result.
///
/// # Shapes
/// - x: `[samples, time, width]`; y: `[samples, out, width]`, of `count` numbers
#[cube(launch_unchecked)]
fn maxima<F: Float>(x: &[F], y: &mut [F], sizes: Sizes, count: u32, #[define(F)] _dtype: ElemType) {
    let at = ABSOLUTE_POS as u32;
    if at < count {
        let (channel, row) = (at % sizes.width, at / sizes.width);
        let (step, sample) = (row % sizes.out, row / sizes.out);
        let begin = (sample * sizes.time * sizes.width + channel) as usize;
        let (best, _) = largest(x, &sizes, begin, step);
        y[at as usize] = F::cast_from(best);
    }
}

/// Each thread has one number of the input, and adds up the gradients of the windows whose maximum it is.
///
/// # Shapes
/// - d: `[samples, out, width]`; x, dx: `[samples, time, width]`, of `count` numbers
#[cube(launch_unchecked)]
fn routed<F: Float>(
    d: &[F],
    x: &[F],
    dx: &mut [F],
    sizes: Sizes,
    count: u32,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS as u32;
    if at < count {
        let (channel, row) = (at % sizes.width, at / sizes.width);
        let (step, sample) = (row % sizes.time, row / sizes.time);
        let begin = (sample * sizes.time * sizes.width + channel) as usize;
        let from = (sample * sizes.out * sizes.width + channel) as usize;
        // Windows that begin too early to reach the step are left out.
        let place = step + sizes.padding;
        let late = select(place + 1 > sizes.kernel, place + 1 - sizes.kernel, 0u32);
        let first = (late + sizes.stride - 1) / sizes.stride;
        let end = (place / sizes.stride + 1).min(sizes.out);
        let mut sum = 0.0f32;
        for over in first..end {
            let (_, chosen) = largest(x, &sizes, begin, over);
            if chosen == step {
                sum += f32::cast_from(d[from + (over * sizes.width) as usize]);
            }
        }
        dx[at as usize] = F::cast_from(sum);
    }
}

/// Maxima of `x`, `[samples, time, width]`, of fewer than 2^30 numbers, as are kernel and stride; there is a step in each window.
#[backend_extension(Cube, Autodiff, Fusion: cfg(feature = "fusion"))]
pub(crate) trait PoolOps: Backend {
    /// The differentiable operation.
    #[fusion(meta = |x, pool| pooled(x, pool))]
    fn firebox_max_pool(x: FloatTensor<Self>, pool: MaxPool) -> FloatTensor<Self>;

    /// The backward pass.
    #[fusion(meta = |_d, x, _pool| x.clone())]
    fn firebox_max_pool_back(
        d: FloatTensor<Self>,
        x: FloatTensor<Self>,
        pool: MaxPool,
    ) -> FloatTensor<Self>;
}

#[cfg(feature = "fusion")]
fn pooled(x: &TensorSpec, pool: &MaxPool) -> TensorSpec {
    TensorSpec::new([pool.samples, pool.out, pool.width].into(), x.dtype)
}

fn sizes(pool: MaxPool) -> SizesLaunch {
    SizesLaunch::new(
        pool.time as u32,
        pool.out as u32,
        pool.width as u32,
        pool.kernel as u32,
        pool.stride as u32,
        pool.padding as u32,
    )
}

fn work(name: &'static str, x: &CubeTensor, pool: MaxPool, reads: usize) -> LaunchedWork {
    let (from, to) = (x.shape().num_elements(), pool.samples * pool.out * pool.width);
    LaunchedWork {
        name,
        shape: x.shape().to_vec(),
        operations: (to * pool.kernel) as f64,
        bytes: ((reads * from + to) * x.dtype.size()) as f64,
        bf16: x.dtype == DType::BF16,
    }
}

impl PoolOps for CubeBackend {
    fn firebox_max_pool(x: FloatTensor<Self>, pool: MaxPool) -> FloatTensor<Self> {
        let x = into_contiguous(x);
        let (client, dtype) = (x.client.clone(), x.dtype);
        let count = pool.samples * pool.out * pool.width;
        let y = empty(&x, [pool.samples, pool.out, pool.width], dtype);
        let (cubes, dim) = each_of(count, &client);
        // SAFETY: the kernel compares its place with the size of `y`, and windows with the steps of `x`
        // (`max_pool1d` has taken both from its shape, and no window is without a step).
        let launch = || unsafe {
            maxima::launch_unchecked(
                &client,
                cubes,
                dim,
                x.clone().into_buffer_arg(),
                y.clone().into_buffer_arg(),
                sizes(pool),
                count as u32,
                dtype_to_storage_type(dtype),
            );
        };
        launching(|| work("maximum of steps", &x, pool, 1), launch);
        y
    }

    fn firebox_max_pool_back(
        d: FloatTensor<Self>,
        x: FloatTensor<Self>,
        pool: MaxPool,
    ) -> FloatTensor<Self> {
        let [d, x] = [d, x].map(into_contiguous);
        let (client, dtype, count) = (x.client.clone(), x.dtype, x.shape().num_elements());
        let dx = empty(&x, x.shape(), dtype);
        let (cubes, dim) = each_of(count, &client);
        // SAFETY: the kernel compares its place with the size of `x`, which `dx` has, and the windows over
        // it with those of `d`.
        let launch = || unsafe {
            routed::launch_unchecked(
                &client,
                cubes,
                dim,
                d.into_buffer_arg(),
                x.clone().into_buffer_arg(),
                dx.clone().into_buffer_arg(),
                sizes(pool),
                count as u32,
                dtype_to_storage_type(dtype),
            );
        };
        launching(|| work("maximum of steps, gradient", &x, pool, 2), launch);
        dx
    }
}

#[derive(Debug)]
struct Pooled;

impl<B: PoolOps> Backward<B, 1> for Pooled {
    type State = (FloatTensor<B>, MaxPool);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        hand_on::<B, _, _, 1>(ops, grads, |d, (x, pool)| [B::firebox_max_pool_back(d, x, pool)]);
    }
}

impl<B: PoolOps, C: CheckpointStrategy> PoolOps for Autodiff<B, C> {
    fn firebox_max_pool(x: FloatTensor<Self>, pool: MaxPool) -> FloatTensor<Self> {
        let (x, guard) = x.into_parts();
        let kept = x.clone();
        let y = B::firebox_max_pool(x, pool);
        match Pooled.prepare::<C>([guard]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((kept, pool), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }

    fn firebox_max_pool_back(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: MaxPool,
    ) -> FloatTensor<Self> {
        unreachable!("the gradient of a gradient is not defined here")
    }
}
