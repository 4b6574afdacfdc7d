//! Rows in another order on a GPU, by Burn's own gather; so is the gradient, the way back. (Burn's own
//! gradient of a gather adds all places one after the other in each column.)

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, Backend, backend_extension};
use burn_cubecl::CubeBackend;

use super::tensors::hand_on;

/// Rows of `[rows, width]` in another order, in i32; there are numbers.
#[backend_extension(Cube, Autodiff, Fusion: cfg(feature = "fusion"))]
pub(crate) trait PermutationOps: Backend {
    /// The differentiable operation: which row comes to each place, and to which place each row goes, both
    /// `[rows]`.
    #[fusion(dtype = x, shape = x)]
    fn firebox_permute(
        x: FloatTensor<Self>,
        rows: IntTensor<Self>,
        places: IntTensor<Self>,
    ) -> FloatTensor<Self>;
}

impl PermutationOps for CubeBackend {
    fn firebox_permute(
        x: FloatTensor<Self>,
        rows: IntTensor<Self>,
        _places: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        CubeBackend::float_select(x, 0, rows)
    }
}

/// What the gradient is computed from.
#[derive(Clone, Debug)]
struct Tape<B: Backend> {
    rows: IntTensor<B>,
    places: IntTensor<B>,
}

#[derive(Debug)]
struct Permuted;

impl<B: PermutationOps> Backward<B, 1> for Permuted {
    type State = Tape<B>;

    fn backward(self, ops: Ops<Tape<B>, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        hand_on::<B, _, _, 1>(ops, grads, |d, Tape { rows, places }| {
            [B::firebox_permute(d, places, rows)]
        });
    }
}

impl<B: PermutationOps, C: CheckpointStrategy> PermutationOps for Autodiff<B, C> {
    fn firebox_permute(
        x: FloatTensor<Self>,
        rows: IntTensor<Self>,
        places: IntTensor<Self>,
    ) -> FloatTensor<Self> {
        let (x, guard) = x.into_parts();
        let out = B::firebox_permute(x, rows.clone(), places.clone());
        match Permuted.prepare::<C>([guard]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(Tape { rows, places }, out),
            OpsKind::UnTracked(prep) => prep.finish(out),
        }
    }
}
