//! The recurrent layer on tensor cores (NVIDIA; matrix cores of AMD, SIMD-group matrices of Apple): the
//! walks of [`forward`](super::forward) and [`backward`](super::backward), whose step multiplies whole
//! tiles of samples by the recurrent weights.
//!
//! A step has two halves with a barrier after each. In the first, each plane (warp) multiplies the tile's
//! hidden states, or the gradients of its gates, by its own columns of the weights, and puts the sums into
//! shared memory; in the second, threads take pairs of a sample and a unit through the cell. What the
//! second half reads from global memory is read before the first, which hides the wait.
//!
//! States and gradients that are multiplied are rounded to the tensors' type, as the device's large matmuls
//! do; sums and the cell's arithmetic are f32.

pub(super) mod backward;
pub(super) mod forward;
mod product;
