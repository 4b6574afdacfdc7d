//! A residual sum with dropout on a GPU: one launch forward, and back that of dropout alone, with the same
//! mask.

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

use super::dropout::{DeviceMask, DropoutOps, MaskNumbers, factors};
use super::tensors::{each_of, empty, work_on};
use super::watch::launching;

/// Each thread has the four elements of a block of the mask.
#[cube(launch_unchecked)]
fn added<F: Float>(
    x: &[F],
    y: &[F],
    sum: &mut [F],
    count: u32,
    mask: MaskNumbers,
    #[define(F)] _dtype: ElemType,
) {
    let first = ABSOLUTE_POS * 4;
    if first < count as usize {
        let factors = factors(ABSOLUTE_POS, &mask, true);
        #[unroll]
        for word in 0..4usize {
            let at = first + word;
            if at < count as usize {
                let kept = f32::cast_from(y[at]) * factors[word];
                sum[at] = F::cast_from(f32::cast_from(x[at]) + kept);
            }
        }
    }
}

/// Residual sums, for the backends that `LstmOps` has.
#[backend_extension(Cube, Autodiff, Fusion: cfg(feature = "fusion"))]
pub(crate) trait ResidualOps: Backend {
    /// `x` and the elements of `y` times the mask; of one shape and type, and fewer than 2^32.
    #[fusion(dtype = x, shape = x)]
    fn firebox_dropout_add(
        x: FloatTensor<Self>,
        y: FloatTensor<Self>,
        mask: DeviceMask,
    ) -> FloatTensor<Self>;
}

impl ResidualOps for CubeBackend {
    fn firebox_dropout_add(
        x: FloatTensor<Self>,
        y: FloatTensor<Self>,
        mask: DeviceMask,
    ) -> FloatTensor<Self> {
        let [x, y] = [x, y].map(into_contiguous);
        let (client, dtype, count) = (x.client.clone(), x.dtype, x.shape().num_elements());
        let sum = empty(&x, x.shape(), dtype);
        let (cubes, dim) = each_of(count.div_ceil(4), &client);
        // SAFETY: the kernel compares every index with `count`, the length of all three buffers
        // (`dropout_add` has compared the shapes).
        let launch = || unsafe {
            added::launch_unchecked(
                &client,
                cubes,
                dim,
                x.clone().into_buffer_arg(),
                y.clone().into_buffer_arg(),
                sum.clone().into_buffer_arg(),
                count as u32,
                DeviceMask::launched(Some(mask)),
                dtype_to_storage_type(dtype),
            );
        };
        launching(|| work_on("dropout and residual sum", &x, 2, 3), launch);
        sum
    }
}

#[derive(Debug)]
struct Summed;

impl<B: DropoutOps> Backward<B, 2> for Summed {
    type State = DeviceMask;

    fn backward(self, ops: Ops<DeviceMask, 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let d = grads.consume::<B>(&ops.node);
        let [x, y] = ops.parents;
        if let Some(y) = y {
            grads.register::<B>(y.id, B::firebox_dropout(d.clone(), ops.state));
        }
        if let Some(x) = x {
            grads.register::<B>(x.id, d);
        }
    }
}

impl<B: ResidualOps + DropoutOps, C: CheckpointStrategy> ResidualOps for Autodiff<B, C> {
    fn firebox_dropout_add(
        x: FloatTensor<Self>,
        y: FloatTensor<Self>,
        mask: DeviceMask,
    ) -> FloatTensor<Self> {
        let [(x, x_guard), (y, y_guard)] = [x, y].map(|tensor| tensor.into_parts());
        let sum = B::firebox_dropout_add(x, y, mask);
        match Summed.prepare::<C>([x_guard, y_guard]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(mask, sum),
            OpsKind::UnTracked(prep) => prep.finish(sum),
        }
    }
}
