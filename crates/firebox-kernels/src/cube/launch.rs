//! The operation on CubeCL's backend: allocates, chooses the tile, launches.

use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::DType;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::{CubeBackend, tensor::CubeTensor};

use super::GpuKernels;
use super::backward::backward;
use super::forward::forward;
use super::op::{Derived, LstmOps, Outputs, Recorded, Way};
use super::tensors::empty;
use super::tile::{Pass, Tile};
use super::watch::{LaunchedWork, launching};
use crate::cpu::CellKind;

fn tile(gates: &CubeTensor, Way { kernels, cell }: Way, pass: Pass) -> Tile {
    let [directions, batch, _, width] = gates.shape().dims();
    let hardware = &gates.client.properties().hardware;
    let sizes = [directions, batch, width / 4];
    let resident = kernels == GpuKernels::Resident;
    match Tile::new(hardware, sizes, gates.dtype.size(), pass, resident) {
        Some(tile) => Tile { gru: cell == CellKind::Gru, ..tile },
        // `GpuKernels::of_layer` has asked for the same tile.
        None => unreachable!("a tile of {kernels:?} kernels for {sizes:?}"),
    }
}

/// What a launch does: at each step, the product of the states and the weights, and for each unit
/// `numbers` read and written, those in the tensors' type and those in f32.
fn work(
    name: &'static str,
    shape: [usize; 4],
    Way { cell, .. }: Way,
    dtype: DType,
    numbers: [usize; 2],
) -> LaunchedWork {
    let [directions, batch, time, units] = shape;
    // Of a GRU's four columns, one does not see the state.
    let columns = if cell == CellKind::Gru { 3 } else { 4 };
    let steps = (directions * batch * time * units) as f64;
    let weights = (directions * 4 * units * units * dtype.size()) as f64;
    LaunchedWork {
        name,
        shape: shape.to_vec(),
        operations: 2.0 * steps * (columns * units) as f64,
        bytes: weights + steps * (numbers[0] * dtype.size() + 4 * numbers[1]) as f64,
        bf16: dtype == DType::BF16,
    }
}

/// Runs the forward kernel. Without `keep`, the last two tensors are stand-ins of one element.
fn run(inputs: [CubeTensor; 4], way: Way, keep: bool) -> Recorded<CubeBackend> {
    let [gates_x, weights, state, lengths] = inputs;
    // From `[units, 4 gates, units before]` to `[units before, units, 4 gates]`.
    let weights = CubeBackend::float_swap_dims(weights, 1, 2);
    let [gates_x, weights, state, lengths] =
        [gates_x, weights, state, lengths].map(into_contiguous);
    let [directions, batch, time, width] = gates_x.shape().dims();
    let units = width / 4;
    let tile = tile(&gates_x, way, Pass::Forward);
    let dtype = gates_x.dtype;
    let output = empty(&gates_x, [batch, time, directions * units], dtype);
    let last = empty(&gates_x, [2, directions, batch, units], DType::F32);
    let (gates, cells) = match keep {
        true => (
            empty(&gates_x, [directions, batch, time, width], dtype),
            empty(&gates_x, [directions, batch, time, units], DType::F32),
        ),
        false => (empty(&gates_x, [4], dtype), empty(&gates_x, [1], DType::F32)),
    };
    let client = gates_x.client.clone();
    let shape = [directions, batch, time, units];
    // Gates and outputs, and what is kept.
    let numbers = if keep { [9, 1] } else { [5, 0] };
    // SAFETY: the kernel indexes its buffers by sample, step, direction and unit, each of which it
    // compares with the sizes that the buffers were allocated with here, or have by the shapes
    // documented at `LstmOps`; lengths are at most `time` (`Lstm::forward` has checked them). No index
    // exceeds 32 bits: gates alone would fill 32 GiB, in one buffer.
    let launch = || unsafe {
        forward::launch_unchecked(
            &client,
            tile.count(batch),
            tile.dim(),
            tile.rows,
            gates_x.into_buffer_arg(),
            weights.into_buffer_arg(),
            state.into_buffer_arg(),
            lengths.into_buffer_arg(),
            output.clone().into_buffer_arg(),
            last.clone().into_buffer_arg(),
            gates.clone().into_buffer_arg(),
            cells.clone().into_buffer_arg(),
            batch as u32,
            time as u32,
            tile,
            keep,
            dtype_to_storage_type(dtype),
        );
    };
    launching(|| work("recurrent layer", shape, way, dtype, numbers), launch);
    Recorded { output, last, gates, cells }
}

impl LstmOps for CubeBackend {
    fn lstm_infer(
        gates_x: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        state: FloatTensor<Self>,
        lengths: IntTensor<Self>,
        way: Way,
    ) -> Outputs<Self> {
        let Recorded { output, last, .. } = run([gates_x, weights, state, lengths], way, false);
        Outputs { output, last }
    }

    fn lstm_record(
        gates_x: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        state: FloatTensor<Self>,
        lengths: IntTensor<Self>,
        way: Way,
    ) -> Recorded<Self> {
        run([gates_x, weights, state, lengths], way, true)
    }

    fn lstm_backward(
        d_output: FloatTensor<Self>,
        d_last: FloatTensor<Self>,
        output: FloatTensor<Self>,
        gates: FloatTensor<Self>,
        cells: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        state: FloatTensor<Self>,
        lengths: IntTensor<Self>,
        way: Way,
    ) -> Derived<Self> {
        let [directions, batch, time, width] = gates.shape().dims();
        let units = width / 4;
        // From `[units, 4 gates, units before]` to `[units, units before, 4 gates]`.
        let weights = Self::float_reshape(weights, [directions, units, 4, units].into());
        let weights = Self::float_swap_dims(weights, 2, 3);
        let [d_output, d_last, output, gates] =
            [d_output, d_last, output, gates].map(into_contiguous);
        let [cells, weights, state, lengths] =
            [cells, weights, state, lengths].map(into_contiguous);
        let tile = tile(&gates, way, Pass::Backward);
        let dtype = gates.dtype;
        let d_gates = empty(&gates, [directions, batch, time, width], dtype);
        let previous = empty(&gates, [directions, batch, time, units], dtype);
        let d_state = empty(&gates, [2, directions, batch, units], DType::F32);
        let client = gates.client.clone();
        let shape = [directions, batch, time, units];
        // SAFETY: as for the forward kernel.
        let launch = || unsafe {
            backward::launch_unchecked(
                &client,
                tile.count(batch),
                tile.dim(),
                tile.rows,
                d_output.into_buffer_arg(),
                d_last.into_buffer_arg(),
                output.into_buffer_arg(),
                gates.into_buffer_arg(),
                cells.into_buffer_arg(),
                weights.into_buffer_arg(),
                state.into_buffer_arg(),
                lengths.into_buffer_arg(),
                d_gates.clone().into_buffer_arg(),
                previous.clone().into_buffer_arg(),
                d_state.clone().into_buffer_arg(),
                batch as u32,
                time as u32,
                tile,
                dtype_to_storage_type(dtype),
            );
        };
        // Gates and outputs with their gradients, and the states before; the cells.
        let name = "recurrent layer, gradients";
        launching(|| work(name, shape, way, dtype, [11, 1]), launch);
        Derived { d_gates, previous, d_state }
    }
}
