//! What attention with terms for distances needs to know of them: see
//! [`firebox_kernels::disentangled_attention`].

use burn::tensor::Tensor;
use firebox_kernels::DistanceRows;

/// What all layers need to know of distances, made once for a batch.
#[derive(Clone, Debug)]
pub(super) struct Distances {
    /// Vectors of the distances, `[2 · span, width]`.
    pub(super) vectors: Tensor<2>,
    /// Row of each distance `query - key`.
    pub(super) rows: DistanceRows,
}
