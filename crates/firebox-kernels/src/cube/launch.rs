//! The operation on CubeCL's backend: allocates, arranges the weights, launches.

use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::DType;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::{CubeBackend, tensor::CubeTensor};

use super::backward::backward;
use super::cut::{self, Run};
use super::device::{self, hardware};
use super::forward::forward;
use super::fragments;
use super::op::{Derived, LstmOps, Outputs, Recorded, Way};
use super::tensor_cores;
use super::tensors::empty;
use super::watch::{LaunchedWork, launching};
use crate::cpu::CellKind;
use crate::cuts::{Cut, FragmentTile, GpuKernels, Layer, Pass};

/// The layer of these gates.
fn layer(gates: &CubeTensor, way: Way, pass: Pass) -> Layer {
    let [directions, batch, _, width] = gates.shape().dims();
    let (kernels, dtype, gru) = (way.kernels, gates.dtype, way.cell == CellKind::Gru);
    Layer { kernels, pass, dtype, directions, batch, units: width / 4, gru }
}

/// The recurrent weights as a kernel reads them: from `[directions, units, 4 gates, units before]` to
/// `[directions, units before, units, 4 gates]`; for plain kernels on the way back, to `[directions, units,
/// units before, 4 gates]`. Tensor cores get units with weights of zero until their tiles are full, those that are fed
/// register by register in the order of [`by_lanes`].
fn arrange(weights: CubeTensor, layer: &Layer) -> CubeTensor {
    let [directions, width, units] = weights.shape().dims();
    if layer.kernels != GpuKernels::TensorCores && layer.pass == Pass::Backward {
        let shape = [directions, units, 4, units].into();
        let by_gate = CubeBackend::float_reshape(weights, shape);
        return into_contiguous(CubeBackend::float_swap_dims(by_gate, 2, 3));
    }
    let cuts = layer.cuts(&hardware(&weights.client));
    if let Some(Cut::Fragments(tile)) = cuts.first() {
        return by_lanes(weights, tile);
    }
    let weights = into_contiguous(CubeBackend::float_swap_dims(weights, 1, 2));
    let padded = layer.padded(&cuts);
    if padded == units {
        return weights;
    }
    let shape = [directions, padded, 4 * padded].into();
    let zeros = CubeBackend::float_zeros(shape, &weights.device, weights.dtype.into());
    let place = [0..directions, 0..units, 0..width].map(Into::into);
    into_contiguous(CubeBackend::float_slice_assign(zeros, &place, weights))
}

/// The recurrent weights in the order of the threads that multiply by them.
fn by_lanes(weights: CubeTensor, tile: &FragmentTile) -> CubeTensor {
    let weights = into_contiguous(weights);
    let count = tile.directions * tile.vectors(tile.steps());
    let out = empty(&weights, [8 * count], weights.dtype);
    let (client, storage) = (weights.client.clone(), dtype_to_storage_type(weights.dtype));
    // One kernel serves all tiles of a layer.
    let tile =
        FragmentTile { gru: false, tiles: 1, planes: 1, kept: [0; 2], early: false, ..*tile };
    // SAFETY: the kernel compares rows and columns with those of the weights, and its place with the count.
    unsafe {
        fragments::weights::by_lanes::launch_unchecked(
            &client,
            device::count([count.div_ceil(fragments::weights::THREADS), 1]),
            device::dim([fragments::weights::THREADS, 1]),
            weights.into_buffer_arg(),
            out.clone().into_buffer_arg(),
            count as u32,
            tile,
            storage,
        );
    }
    out
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
    let layer = layer(&gates_x, way, Pass::Forward);
    let weights = arrange(weights, &layer);
    let [gates_x, state, lengths] = [gates_x, state, lengths].map(into_contiguous);
    let [directions, batch, time, width] = gates_x.shape().dims();
    let units = width / 4;
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
    let buffers = [&gates_x, &weights, &state, &lengths, &output, &last, &gates, &cells];
    let buffers = buffers.map(Clone::clone);
    let (client, storage) = (gates_x.client.clone(), dtype_to_storage_type(dtype));
    let run: Run = Arc::new(move |cut| {
        let [gates_x, weights, state, lengths, output, last, gates, cells] =
            buffers.clone().map(CubeTensor::into_buffer_arg);
        let sizes = (batch as u32, time as u32);
        // SAFETY: the kernels index their buffers by sample, step, direction and unit, each of which
        // they compare with the sizes that the buffers were allocated with here, or have by the shapes
        // documented at `LstmOps`; lengths are at most `time` (`Lstm::forward` has checked them). No
        // index exceeds 32 bits: `lstm::gpu::kernels` composes layers of more steps, samples and units.
        unsafe {
            match cut {
                Cut::Plain(tile) => forward::launch_unchecked(
                    &client,
                    device::count(tile.count(batch)),
                    device::dim(tile.dim()),
                    tile.rows,
                    gates_x,
                    weights,
                    state,
                    lengths,
                    output,
                    last,
                    gates,
                    cells,
                    sizes.0,
                    sizes.1,
                    tile,
                    keep,
                    storage,
                ),
                Cut::Fragments(tile) => fragments::forward::forward::launch_unchecked(
                    &client,
                    device::count(tile.count(batch)),
                    device::dim(tile.dim()),
                    gates_x,
                    weights,
                    state,
                    lengths,
                    output,
                    last,
                    gates,
                    cells,
                    sizes.0,
                    sizes.1,
                    tile,
                    keep,
                    storage,
                ),
                Cut::Cores(tile) => tensor_cores::forward::forward::launch_unchecked(
                    &client,
                    device::count(tile.count(batch)),
                    device::dim(tile.dim()),
                    gates_x,
                    weights,
                    state,
                    lengths,
                    output,
                    last,
                    gates,
                    cells,
                    sizes.0,
                    sizes.1,
                    tile,
                    keep,
                    storage,
                ),
            }
        }
    });
    // Gates and outputs, and what is kept.
    let numbers = if keep { [9, 1] } else { [5, 0] };
    let shape = [directions, batch, time, units];
    let work = || work("recurrent layer", shape, way, dtype, numbers);
    launching(work, || cut::run(layer, time, &gates_x, way.tile, run));
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
        let layer = layer(&gates, way, Pass::Backward);
        let weights = arrange(weights, &layer);
        let [d_output, d_last, output, gates] =
            [d_output, d_last, output, gates].map(into_contiguous);
        let [cells, state, lengths] = [cells, state, lengths].map(into_contiguous);
        let dtype = gates.dtype;
        let d_gates = empty(&gates, [directions, batch, time, width], dtype);
        let previous = empty(&gates, [directions, batch, time, units], dtype);
        let d_state = empty(&gates, [2, directions, batch, units], DType::F32);
        let read = [&d_output, &d_last, &output, &gates, &cells, &weights, &state, &lengths];
        let read = read.map(Clone::clone);
        let written = [&d_gates, &previous, &d_state].map(Clone::clone);
        let (client, storage) = (gates.client.clone(), dtype_to_storage_type(dtype));
        let run: Run = Arc::new(move |cut| {
            let [d_output, d_last, output, gates, cells, weights, state, lengths] =
                read.clone().map(CubeTensor::into_buffer_arg);
            let [d_gates, previous, d_state] = written.clone().map(CubeTensor::into_buffer_arg);
            let sizes = (batch as u32, time as u32);
            // SAFETY: as for the forward kernels.
            unsafe {
                match cut {
                    Cut::Plain(tile) => backward::launch_unchecked(
                        &client,
                        device::count(tile.count(batch)),
                        device::dim(tile.dim()),
                        tile.rows,
                        d_output,
                        d_last,
                        output,
                        gates,
                        cells,
                        weights,
                        state,
                        lengths,
                        d_gates,
                        previous,
                        d_state,
                        sizes.0,
                        sizes.1,
                        tile,
                        storage,
                    ),
                    Cut::Fragments(tile) => fragments::backward::backward::launch_unchecked(
                        &client,
                        device::count(tile.count(batch)),
                        device::dim(tile.dim()),
                        d_output,
                        d_last,
                        output,
                        gates,
                        cells,
                        weights,
                        state,
                        lengths,
                        d_gates,
                        previous,
                        d_state,
                        sizes.0,
                        sizes.1,
                        tile,
                        storage,
                    ),
                    Cut::Cores(tile) => tensor_cores::backward::backward::launch_unchecked(
                        &client,
                        device::count(tile.count(batch)),
                        device::dim(tile.dim()),
                        d_output,
                        d_last,
                        output,
                        gates,
                        cells,
                        weights,
                        state,
                        lengths,
                        d_gates,
                        previous,
                        d_state,
                        sizes.0,
                        sizes.1,
                        tile,
                        storage,
                    ),
                }
            }
        });
        // Gates and outputs with their gradients, and the states before; the cells.
        let shape = [directions, batch, time, units];
        let work = || work("recurrent layer, gradients", shape, way, dtype, [11, 1]);
        launching(work, || cut::run(layer, time, &gates, way.tile, run));
        Derived { d_gates, previous, d_state }
    }
}
