//! GELU and rectifier with dropout behind them on a GPU: one launch forward and one back. Nothing is kept but
//! what was there already, the input of GELU and the result of the rectifier; masks are drawn again.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::cubecl::dtype_to_storage_type;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, TensorMetadata, backend_extension};
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl::{self, prelude::*};
use burn_cubecl::kernel::into_contiguous;

use super::dropout::{DeviceMask, MaskNumbers, factors};
use super::math::error_function;
use super::tensors::{each_of, empty, hand_on, work_on};
use super::watch::launching;
use crate::cpu::Activation;

/// An activation and what is dropped behind it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActivationSettings {
    pub(crate) activation: Activation,
    /// Nothing is dropped without.
    pub(crate) mask: Option<DeviceMask>,
}

/// Φ(x), the distribution function of the normal distribution. Of NaN, any number.
#[cube]
fn distribution(x: f32) -> f32 {
    error_function(x * std::f32::consts::FRAC_1_SQRT_2) * 0.5f32 + 0.5f32
}

/// `x · Φ(x)`, or `max(x, 0)`. NaN stays NaN.
#[cube]
fn value(x: f32, #[comptime] gelu: bool) -> f32 {
    let mut y = x;
    if comptime!(gelu) {
        y = x * distribution(x);
    } else if x < 0.0f32 {
        y = 0.0f32;
    }
    y
}

/// `Φ(x) + x · φ(x)`, with φ the density of the normal distribution. NaN stays NaN.
#[cube]
fn slope(x: f32) -> f32 {
    // Beyond 13 the density is below what f32 tells from zero beside the rest.
    let near = x.max(-13.0f32).min(13.0f32);
    let density = (near * near * -0.5f32).exp() * 0.398_942_3f32;
    select(x.is_nan(), x, near * density + distribution(x))
}

/// Each thread has the four elements of a block of the mask.
#[cube(launch_unchecked)]
fn activated<F: Float>(
    x: &[F],
    y: &mut [F],
    count: u32,
    mask: MaskNumbers,
    #[comptime] gelu: bool,
    #[comptime] masked: bool,
    #[define(F)] _dtype: ElemType,
) {
    let first = ABSOLUTE_POS * 4;
    if first < count as usize {
        let factors = factors(ABSOLUTE_POS, &mask, masked);
        #[unroll]
        for word in 0..4usize {
            if first + word < count as usize {
                let y_of = value(f32::cast_from(x[first + word]), gelu);
                y[first + word] = F::cast_from(y_of * factors[word]);
            }
        }
    }
}

/// The gradient of GELU and dropout, from the input.
#[cube(launch_unchecked)]
fn gelu_back<F: Float>(
    d: &[F],
    x: &[F],
    dx: &mut [F],
    count: u32,
    mask: MaskNumbers,
    #[comptime] masked: bool,
    #[define(F)] _dtype: ElemType,
) {
    let first = ABSOLUTE_POS * 4;
    if first < count as usize {
        let factors = factors(ABSOLUTE_POS, &mask, masked);
        #[unroll]
        for word in 0..4usize {
            let at = first + word;
            if at < count as usize {
                let of = f32::cast_from(d[at]) * factors[word];
                dx[at] = F::cast_from(of * slope(f32::cast_from(x[at])));
            }
        }
    }
}

/// The gradient of rectifier and dropout from the result: what became zero, by either way, passes nothing
/// on, and all else has the same factor.
#[cube(launch_unchecked)]
fn relu_back<F: Float>(
    d: &[F],
    y: &[F],
    dx: &mut [F],
    count: u32,
    scale: f32,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < count as usize {
        let mut of = f32::cast_from(d[at]) * scale;
        // Not by `!=`, which some runtimes deny of NaN.
        if f32::cast_from(y[at]) == 0.0f32 {
            of = 0.0f32;
        }
        dx[at] = F::cast_from(of);
    }
}

/// Activations, for the backends that `LstmOps` has. Tensors have fewer than 2^32 elements.
#[backend_extension(Cube, Autodiff, Fusion: cfg(feature = "fusion"))]
pub(crate) trait ActivationOps: Backend {
    /// The differentiable operation.
    #[fusion(dtype = x, shape = x)]
    fn firebox_activate(x: FloatTensor<Self>, settings: ActivationSettings) -> FloatTensor<Self>;

    /// The backward pass, from the input of GELU or the result of the rectifier.
    #[fusion(dtype = kept, shape = kept)]
    fn firebox_activate_back(
        d: FloatTensor<Self>,
        kept: FloatTensor<Self>,
        settings: ActivationSettings,
    ) -> FloatTensor<Self>;
}

impl ActivationOps for CubeBackend {
    fn firebox_activate(x: FloatTensor<Self>, settings: ActivationSettings) -> FloatTensor<Self> {
        let ActivationSettings { activation, mask } = settings;
        let x = into_contiguous(x);
        let (client, dtype, count) = (x.client.clone(), x.dtype, x.shape().num_elements());
        let y = empty(&x, x.shape(), dtype);
        let (cubes, dim) = each_of(count.div_ceil(4), &client);
        // SAFETY: the kernel compares every index with `count`, the length of both buffers.
        let launch = || unsafe {
            activated::launch_unchecked(
                &client,
                cubes,
                dim,
                x.clone().into_buffer_arg(),
                y.clone().into_buffer_arg(),
                count as u32,
                DeviceMask::launched(mask),
                activation == Activation::Gelu,
                mask.is_some(),
                dtype_to_storage_type(dtype),
            );
        };
        let (name, operations) = match activation {
            Activation::Gelu => ("GELU and dropout", 30),
            Activation::Relu => ("rectifier and dropout", 2),
        };
        launching(|| work_on(name, &x, operations, 2), launch);
        y
    }

    fn firebox_activate_back(
        d: FloatTensor<Self>,
        kept: FloatTensor<Self>,
        settings: ActivationSettings,
    ) -> FloatTensor<Self> {
        let ActivationSettings { activation, mask } = settings;
        let [d, kept] = [d, kept].map(into_contiguous);
        let (client, dtype, count) = (kept.client.clone(), kept.dtype, kept.shape().num_elements());
        let dx = empty(&kept, kept.shape(), dtype);
        let (name, operations, threads) = match activation {
            Activation::Gelu => ("GELU and dropout, gradients", 45, count.div_ceil(4)),
            Activation::Relu => ("rectifier and dropout, gradients", 2, count),
        };
        let (cubes, dim) = each_of(threads, &client);
        // SAFETY: both kernels compare every index with `count`, the length of all three buffers.
        let launch = || unsafe {
            let [d, of, to] = [&d, &kept, &dx].map(|tensor| tensor.clone().into_buffer_arg());
            match activation {
                Activation::Gelu => gelu_back::launch_unchecked(
                    &client,
                    cubes,
                    dim,
                    d,
                    of,
                    to,
                    count as u32,
                    DeviceMask::launched(mask),
                    mask.is_some(),
                    dtype_to_storage_type(dtype),
                ),
                Activation::Relu => relu_back::launch_unchecked(
                    &client,
                    cubes,
                    dim,
                    d,
                    of,
                    to,
                    count as u32,
                    DeviceMask::scale(mask),
                    dtype_to_storage_type(dtype),
                ),
            }
        };
        launching(|| work_on(name, &kept, operations, 3), launch);
        dx
    }
}

#[derive(Debug)]
struct Activated;

impl<B: ActivationOps> Backward<B, 1> for Activated {
    type State = (FloatTensor<B>, ActivationSettings);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        hand_on::<B, _, _, 1>(ops, grads, |d, (kept, settings)| {
            [B::firebox_activate_back(d, kept, settings)]
        });
    }
}

impl<B: ActivationOps, C: CheckpointStrategy> ActivationOps for Autodiff<B, C> {
    fn firebox_activate(x: FloatTensor<Self>, settings: ActivationSettings) -> FloatTensor<Self> {
        let (x, guard) = x.into_parts();
        match Activated.prepare::<C>([guard]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let y = B::firebox_activate(x.clone(), settings);
                let kept = match settings.activation {
                    Activation::Gelu => x,
                    Activation::Relu => y.clone(),
                };
                prep.finish((kept, settings), y)
            }
            OpsKind::UnTracked(prep) => prep.finish(B::firebox_activate(x, settings)),
        }
    }

    fn firebox_activate_back(
        _: FloatTensor<Self>,
        _: FloatTensor<Self>,
        _: ActivationSettings,
    ) -> FloatTensor<Self> {
        unreachable!("the gradient of a gradient is not defined here")
    }
}
