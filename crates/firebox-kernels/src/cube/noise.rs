//! Normal noise on a tensor, drawn where it is added: the numbers of `cpu/noise.rs` by their position.

use std::f32::consts::LN_2;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::cubecl::dtype_to_storage_type;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, TensorMetadata, backend_extension};
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl::{self, prelude::*};
use burn_cubecl::kernel::into_contiguous;
use firebox_core::Stream;

use super::dropout::philox;
use super::math::{log_series, sine_and_cosine};
use super::row_noise::{GROUP, LANES};
use super::tensors::{each_of, empty, hand_on};
use super::watch::{LaunchedWork, launching};

/// Where the numbers come from, and what they are multiplied by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceNoise {
    key: [u32; 2],
    deviation: f32,
}

impl DeviceNoise {
    pub(crate) fn new(deviation: f32, stream: Stream) -> Self {
        Self { key: stream.key(), deviation }
    }
}

/// `√(−2 ln u)` of the uniform number `u = (⌊word / 2⌋ + 1/2) / 2^31` as f32 holds it. By a
/// polynomial: a device's own logarithm may lose its digits next to 1.
#[cube]
fn radius(word: u32) -> f32 {
    // In two parts that f32 holds, so that one sum alone is rounded: devices may round a conversion as
    // they like.
    let whole = f32::cast_from(word >> 9u32) * 256.0f32 + f32::cast_from((word >> 1u32) & 0xffu32);
    // Times 2^-31, exactly, and 2^-32.
    let uniform = whole * 4.656_613e-10f32 + 2.328_306_4e-10f32;
    // Mantissas from √½, whose bits are 0x3f3504f3, to √2; with 33 added to the exponent, which is -32 or
    // more, so that no number is negative.
    let above = u32::reinterpret(uniform) - 0x2eb5_04f3u32;
    let exponent = f32::cast_from(above >> 23u32) - 33.0f32;
    let m = f32::reinterpret((above & 0x007f_ffffu32) + 0x3f35_04f3u32) - 1.0f32;
    let square = m * m;
    let p = log_series(m);
    let logarithm = (p * m * square - square * 0.5f32 + m) + exponent * comptime!(LN_2);
    // Rounding may bring the logarithm of a number near 1 a hair above zero.
    (0.0f32 - logarithm * 2.0f32).max(0.0f32).sqrt()
}

/// A point of the unit circle: thirty bits for an angle in ±π/4, one for the sign of its cosine and one
/// for the exchange of the axes.
#[cube]
fn point(word: u32) -> (f32, f32) {
    // In two parts, as above.
    let upper = (f32::cast_from((word >> 8u32) & 0x003f_ffffu32) - 2_097_152.0f32) * 256.0f32;
    // π/2 times 2^-30.
    let angle = (upper + f32::cast_from(word & 0xffu32)) * 1.462_918_1e-9f32;
    let (sine, cosine) = sine_and_cosine(angle);
    let cosine = select((word >> 30u32) & 1u32 == 1u32, -cosine, cosine);
    let exchanged = word >> 31u32 == 1u32;
    (select(exchanged, sine, cosine), select(exchanged, cosine, sine))
}

/// Each thread draws one block of the stream and adds its four numbers. There are [`LANES`] threads for
/// each [`GROUP`] of numbers.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a kernel takes plain numbers")]
fn noisy<F: Float>(
    x: &[F],
    y: &mut [F],
    count: u32,
    key_0: u32,
    key_1: u32,
    deviation: f32,
    #[define(F)] _dtype: ElemType,
) {
    let count = count as usize;
    let block = ABSOLUTE_POS;
    let first = (block / LANES) * GROUP + block % LANES;
    if first < count {
        let words = philox(block as u32, 0u32.runtime(), key_0, key_1);
        #[unroll]
        for pair in 0..2usize {
            let distance = radius(words[2 * pair]);
            let (across, up) = point(words[2 * pair + 1]);
            let at = first + 2 * pair * LANES;
            if at < count {
                y[at] = F::cast_from(f32::cast_from(x[at]) + deviation * (distance * across));
            }
            let at = at + LANES;
            if at < count {
                y[at] = F::cast_from(f32::cast_from(x[at]) + deviation * (distance * up));
            }
        }
    }
}

/// Noise on a tensor.
#[backend_extension(Cube, Autodiff, Fusion: cfg(feature = "fusion"))]
pub(crate) trait NoiseOps: Backend {
    /// The elements with noise on them; of fewer than 2^31.
    #[fusion(dtype = x, shape = x)]
    fn firebox_noise(x: FloatTensor<Self>, noise: DeviceNoise) -> FloatTensor<Self>;
}

impl NoiseOps for CubeBackend {
    fn firebox_noise(x: FloatTensor<Self>, noise: DeviceNoise) -> FloatTensor<Self> {
        let x = into_contiguous(x);
        let (client, dtype, count) = (x.client.clone(), x.dtype, x.shape().num_elements());
        let y = empty(&x, x.shape(), dtype);
        let threads = count.div_ceil(GROUP) * LANES;
        let (cubes, dim) = each_of(threads, &client);
        let work = || LaunchedWork {
            name: "noise",
            shape: x.shape().to_vec(),
            // Two polynomials and a root of each number.
            operations: (30 * count) as f64,
            bytes: (2 * count * dtype.size()) as f64,
            bf16: dtype == DType::BF16,
        };
        // SAFETY: the kernel compares every index with `count`, the length of both buffers.
        let launch = || unsafe {
            noisy::launch_unchecked(
                &client,
                cubes,
                dim,
                x.clone().into_buffer_arg(),
                y.clone().into_buffer_arg(),
                count as u32,
                noise.key[0],
                noise.key[1],
                noise.deviation,
                dtype_to_storage_type(dtype),
            );
        };
        launching(work, launch);
        y
    }
}

/// What is added has no gradient, and what it is added to has that of the sum.
#[derive(Debug)]
struct Added;

impl<B: NoiseOps> Backward<B, 1> for Added {
    type State = ();

    fn backward(self, ops: Ops<(), 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        hand_on::<B, _, _, 1>(ops, grads, |d, ()| [d]);
    }
}

impl<B: NoiseOps, C: CheckpointStrategy> NoiseOps for Autodiff<B, C> {
    fn firebox_noise(x: FloatTensor<Self>, noise: DeviceNoise) -> FloatTensor<Self> {
        let (x, guard) = x.into_parts();
        let y = B::firebox_noise(x, noise);
        match Added.prepare::<C>([guard]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }
}
