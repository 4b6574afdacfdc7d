//! Rows of a table by their numbers on a GPU. Forward is Burn's own gather; back, each row that was used
//! is added up by one cube in the order in which it occurs, so that the sum is the same in every run.
//! (Burn's own adds all places one after the other in each column.)

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::cubecl::dtype_to_storage_type;
#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Autodiff, Backend, TensorMetadata, backend_extension};
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl::{self, prelude::*};
use burn_cubecl::kernel::into_contiguous;

use super::device::{self, without_cores};
use super::team::sum_of_team;
use super::tensors::hand_on;
use super::watch::{LaunchedWork, launching};
use crate::cuts::Scatter;

/// Adds the gradients of all places of a row to the row of the table. Of the places with the same row, the
/// cube of the first one does it; those of the others find that there is an earlier one.
///
/// # Shapes
/// - d: `[places, width]`; indices: `[places]`
/// - table: `[rows, width]`, zeros
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a kernel takes plain numbers")]
fn scatter<F: Float>(
    d: &[F],
    indices: &[i32],
    table: &mut [F],
    places: u32,
    rows: u32,
    passed: u32,
    #[comptime] width: usize,
    #[comptime] threads: usize,
    #[define(F)] _dtype: ElemType,
) {
    let mut found = Shared::<[f32]>::new_slice(threads);
    let mut ahead = Shared::<[u32]>::new_slice(threads);
    let own = UNIT_POS as usize;
    let all = places as usize;
    for place in range_stepped(CUBE_POS_X, places, CUBE_COUNT_X) {
        let place = place as usize;
        let row = u32::reinterpret(indices[place]);
        let mut earlier = 0.0f32;
        for other in range_stepped(own, place, threads) {
            if u32::reinterpret(indices[other]) == row {
                earlier = 1.0f32;
            }
        }
        let earlier = sum_of_team(earlier, &mut found, threads);
        // The same for all threads of the cube.
        if earlier == 0.0f32 && row < rows && row != passed {
            for block in 0..comptime!(width.div_ceil(threads)) {
                let column = block * threads + own;
                let mut sum = 0.0f32;
                for begin in range_stepped(place, all, threads) {
                    if begin + own < all {
                        ahead[own] = u32::reinterpret(indices[begin + own]);
                    }
                    sync_cube();
                    if column < width {
                        for at in 0..(all - begin).min(threads) {
                            if ahead[at] == row {
                                sum += f32::cast_from(d[(begin + at) * width + column]);
                            }
                        }
                    }
                    // Before the next ones are put there.
                    sync_cube();
                }
                if column < width {
                    table[row as usize * width + column] = F::cast_from(sum);
                }
            }
        }
    }
}

/// Rows of a table, `[rows, width]`, by indices in i32, `[places]`; there are numbers.
#[backend_extension(Cube, Autodiff, Fusion: cfg(feature = "fusion"))]
pub(crate) trait EmbeddingOps: Backend {
    /// The differentiable operation: `[places, width]`. A row of the number `passed` has no gradient.
    #[fusion(meta = |table, indices, _passed| gathered(table, indices))]
    fn firebox_embedding(
        table: FloatTensor<Self>,
        indices: IntTensor<Self>,
        passed: Option<u32>,
    ) -> FloatTensor<Self>;

    /// The backward pass, for a table of so many rows.
    #[fusion(meta = |d, _indices, rows, _passed| scattered(d, *rows))]
    fn firebox_embedding_back(
        d: FloatTensor<Self>,
        indices: IntTensor<Self>,
        rows: usize,
        passed: Option<u32>,
    ) -> FloatTensor<Self>;
}

#[cfg(feature = "fusion")]
fn gathered(table: &TensorSpec, indices: &TensorSpec) -> TensorSpec {
    TensorSpec::new([indices.shape[0], table.shape[1]].into(), table.dtype)
}

#[cfg(feature = "fusion")]
fn scattered(d: &TensorSpec, rows: usize) -> TensorSpec {
    TensorSpec::new([rows, d.shape[1]].into(), d.dtype)
}

impl EmbeddingOps for CubeBackend {
    fn firebox_embedding(
        table: FloatTensor<Self>,
        indices: IntTensor<Self>,
        _passed: Option<u32>,
    ) -> FloatTensor<Self> {
        CubeBackend::float_select(table, 0, indices)
    }

    fn firebox_embedding_back(
        d: FloatTensor<Self>,
        indices: IntTensor<Self>,
        rows: usize,
        passed: Option<u32>,
    ) -> FloatTensor<Self> {
        let [d, indices] = [d, indices].map(into_contiguous);
        let [places, width] = d.shape().dims();
        let (client, dtype) = (d.client.clone(), d.dtype);
        let zeros = CubeBackend::float_zeros([rows, width].into(), &d.device, dtype.into());
        let table = into_contiguous(zeros);
        let Scatter { threads, cubes } = Scatter::new(&without_cores(&client), places, width);
        let work = || LaunchedWork {
            name: "embedding, gradient",
            shape: vec![places, rows, width],
            operations: (places * width) as f64,
            bytes: (2 * places * width * dtype.size()) as f64,
            bf16: dtype == DType::BF16,
        };
        // SAFETY: the kernel compares places, rows and columns with the sizes of `d` and `table`; `indices` has
        // a number for each place. Each row is written by one cube, and nobody else holds the table.
        let launch = || unsafe {
            scatter::launch_unchecked(
                &client,
                device::count([cubes, 1]),
                device::dim([threads, 1]),
                d.into_buffer_arg(),
                indices.into_buffer_arg(),
                table.clone().into_buffer_arg(),
                places as u32,
                rows as u32,
                passed.unwrap_or(u32::MAX),
                width,
                threads,
                dtype_to_storage_type(dtype),
            );
        };
        launching(work, launch);
        table
    }
}

/// What the gradient is computed from.
#[derive(Clone, Debug)]
struct Tape<B: Backend> {
    indices: IntTensor<B>,
    rows: usize,
    passed: Option<u32>,
}

#[derive(Debug)]
struct Gathered;

impl<B: EmbeddingOps> Backward<B, 1> for Gathered {
    type State = Tape<B>;

    fn backward(self, ops: Ops<Tape<B>, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        hand_on::<B, _, _, 1>(ops, grads, |d, Tape { indices, rows, passed }| {
            [B::firebox_embedding_back(d, indices, rows, passed)]
        });
    }
}

impl<B: EmbeddingOps, C: CheckpointStrategy> EmbeddingOps for Autodiff<B, C> {
    fn firebox_embedding(
        table: FloatTensor<Self>,
        indices: IntTensor<Self>,
        passed: Option<u32>,
    ) -> FloatTensor<Self> {
        let (table, guard) = table.into_parts();
        let [rows, _] = table.shape().dims();
        let tape = Tape { indices: indices.clone(), rows, passed };
        let out = B::firebox_embedding(table, indices, passed);
        match Gathered.prepare::<C>([guard]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish(tape, out),
            OpsKind::UnTracked(prep) => prep.finish(out),
        }
    }

    fn firebox_embedding_back(
        _: FloatTensor<Self>,
        _: IntTensor<Self>,
        _: usize,
        _: Option<u32>,
    ) -> FloatTensor<Self> {
        unreachable!("the gradient of a gradient is not defined here")
    }
}
