//! Multiplication by a dropout mask that is drawn where it is needed, forward and backward: the mask
//! is never stored, and never made by the host.

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
use firebox_core::Stream;

use super::tensors::{each_of, empty, hand_on, work_on};
use super::watch::launching;

/// Which elements are kept, and what they are multiplied by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceMask {
    key: [u32; 2],
    /// An element is kept if the upper 24 bits of its word are at least this.
    threshold: u32,
    scale: f32,
}

impl DeviceMask {
    /// The mask that drops with a `probability` in `[0, 1]`.
    pub(crate) fn new(probability: f64, scale: f32, stream: Stream) -> Self {
        // A uniform number of the stream is the upper 24 bits over 2^24, without rounding.
        let threshold = (probability * 16_777_216.0).ceil() as u32;
        Self { key: stream.key(), threshold, scale }
    }

    /// As a kernel takes it: of nothing, one that keeps every element as it is.
    pub(super) fn launched(mask: Option<Self>) -> MaskNumbersLaunch {
        let Self { key: [key_0, key_1], threshold, scale } =
            mask.unwrap_or(Self { key: [0; 2], threshold: 0, scale: 1.0 });
        MaskNumbersLaunch::new(key_0, key_1, threshold, scale)
    }

    /// The factor of the elements that are kept.
    pub(super) fn scale(mask: Option<Self>) -> f32 {
        mask.map_or(1.0, |mask| mask.scale)
    }
}

/// The numbers of a mask.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct MaskNumbers {
    key_0: u32,
    key_1: u32,
    threshold: u32,
    scale: f32,
}

/// Philox4x32-10 as in `firebox_core`: block `low + 2³² · high` of the stream with this key.
#[cube]
pub(super) fn philox(low: u32, high: u32, key_0: u32, key_1: u32) -> Array<u32> {
    let mut counter = Array::<u32>::new(4usize);
    counter[0] = low;
    counter[1] = high;
    counter[2] = 0u32.runtime();
    counter[3] = 0u32.runtime();
    let mut k_0 = key_0;
    let mut k_1 = key_1;
    #[unroll]
    for round in 0..10usize {
        if comptime!(round > 0) {
            k_0 += 0x9E37_79B9u32;
            k_1 += 0xBB67_AE85u32;
        }
        let (c_0, c_2) = (counter[0], counter[2]);
        let (a, b) = (0xD251_1F53u32.runtime(), 0xCD9E_8D57u32.runtime());
        counter[0] = b.mul_hi(c_2) ^ counter[1] ^ k_0;
        counter[1] = b * c_2;
        counter[2] = a.mul_hi(c_0) ^ counter[3] ^ k_1;
        counter[3] = a * c_0;
    }
    counter
}

/// The factors of a block's four elements; without a mask nothing is drawn.
#[cube]
pub(super) fn factors(block: usize, mask: &MaskNumbers, #[comptime] masked: bool) -> Array<f32> {
    let mut factors = Array::<f32>::new(4usize);
    if comptime!(masked) {
        let words = philox(block as u32, 0u32.runtime(), mask.key_0, mask.key_1);
        #[unroll]
        for word in 0..4usize {
            factors[word] = select(words[word] >> 8 >= mask.threshold, mask.scale, 0.0f32);
        }
    } else {
        #[unroll]
        for word in 0..4usize {
            factors[word] = 1.0f32;
        }
    }
    factors
}

/// Each thread draws one block of the stream and has its four elements.
#[cube(launch_unchecked)]
fn masked<F: Float>(
    x: &[F],
    y: &mut [F],
    count: u32,
    mask: MaskNumbers,
    #[define(F)] _dtype: ElemType,
) {
    let first = ABSOLUTE_POS * 4;
    if first < count as usize {
        let factors = factors(ABSOLUTE_POS, &mask, true);
        #[unroll]
        for word in 0..4usize {
            if first + word < count as usize {
                // A product also where the factor is zero: NaN stays NaN.
                y[first + word] = F::cast_from(f32::cast_from(x[first + word]) * factors[word]);
            }
        }
    }
}

/// Dropout, for the backends that `LstmOps` has.
#[backend_extension(Cube, Autodiff, Fusion: cfg(feature = "fusion"))]
pub(crate) trait DropoutOps: Backend {
    /// The elements times the mask; of fewer than 2^32.
    #[fusion(dtype = x, shape = x)]
    fn firebox_dropout(x: FloatTensor<Self>, mask: DeviceMask) -> FloatTensor<Self>;
}

impl DropoutOps for CubeBackend {
    fn firebox_dropout(x: FloatTensor<Self>, mask: DeviceMask) -> FloatTensor<Self> {
        let x = into_contiguous(x);
        let (client, dtype, count) = (x.client.clone(), x.dtype, x.shape().num_elements());
        let y = empty(&x, x.shape(), dtype);
        let (cubes, dim) = each_of(count.div_ceil(4), &client);
        // SAFETY: the kernel compares every index with `count`, the length of both buffers.
        let launch = || unsafe {
            masked::launch_unchecked(
                &client,
                cubes,
                dim,
                x.clone().into_buffer_arg(),
                y.clone().into_buffer_arg(),
                count as u32,
                DeviceMask::launched(Some(mask)),
                dtype_to_storage_type(dtype),
            );
        };
        launching(|| work_on("dropout", &x, 1, 2), launch);
        y
    }
}

#[derive(Debug)]
struct Dropped;

impl<B: DropoutOps> Backward<B, 1> for Dropped {
    type State = DeviceMask;

    fn backward(self, ops: Ops<DeviceMask, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        hand_on::<B, _, _, 1>(ops, grads, |d, mask| [B::firebox_dropout(d, mask)]);
    }
}

impl<B: DropoutOps, C: CheckpointStrategy> DropoutOps for Autodiff<B, C> {
    fn firebox_dropout(x: FloatTensor<Self>, mask: DeviceMask) -> FloatTensor<Self> {
        let (x, guard) = x.into_parts();
        let y = B::firebox_dropout(x, mask);
        match Dropped.prepare::<C>([guard]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(mask, y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }
}
