//! The layer as an operation that Burn routes to the backend of its tensors.

#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, ExtensionType, backend_extension};
#[cfg(feature = "fusion")]
use burn::tensor::DType;

use crate::cpu::CellKind;
use crate::cuts::GpuKernels;
use crate::products::ProductWay;

/// How a layer is computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) kernels: GpuKernels,
    pub(crate) cell: CellKind,
    /// The index of the tile to take; the fastest if `None`.
    pub(crate) tile: Option<usize>,
    /// How products beside the recurrence are made by name; Burn's own if `None`.
    pub(crate) products: Option<ProductWay>,
}

/// What the next layer and the next call need.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(crate) struct Outputs<B: Backend> {
    /// `[batch, time, directions * units]`
    pub(crate) output: FloatTensor<B>,
    /// Hidden and cell state after the last step in f32, `[2, directions, batch, units]`.
    pub(crate) last: FloatTensor<B>,
}

/// [`Outputs`], and what the backward pass needs.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(crate) struct Recorded<B: Backend> {
    /// As in [`Outputs`].
    pub(crate) output: FloatTensor<B>,
    /// As in [`Outputs`].
    pub(crate) last: FloatTensor<B>,
    /// Columns after their functions, `[directions, batch, time, 4 * units]`.
    pub(crate) gates: FloatTensor<B>,
    /// Cell states in f32, `[directions, batch, time, units]`.
    pub(crate) cells: FloatTensor<B>,
}

/// What the backward pass gives.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(crate) struct Derived<B: Backend> {
    /// Gradient of `gates_x`.
    pub(crate) d_gates: FloatTensor<B>,
    /// Hidden state before each step, zero where the step is padding, `[directions, batch, time,
    /// units]`: the other factor of the gradient of the recurrent weights.
    pub(crate) previous: FloatTensor<B>,
    /// Gradient of the initial state.
    pub(crate) d_state: FloatTensor<B>,
}

/// One layer. `Cube` is every runtime of CubeCL; its implementation, and that of `Autodiff`, are
/// written by hand, that of `Fusion` follows from the shapes given here. `Flex` is not among them:
/// `lstm::fused` takes what the CPU has kernels for, and nothing asks for this operation on a device
/// that [`GpuKernels::of_layer`] has refused.
///
/// # Shapes
/// - gates_x: `[directions, batch, time, 4 * units]`, the projected input with its bias; the four
///   columns of a unit lie next to each other
/// - weights: `[directions, 4 * units, units]`, recurrent, with rows in the same order
/// - state: `[2, directions, batch, units]` in f32, hidden then cell
/// - lengths: `[batch]` in i32
#[backend_extension(Cube, Autodiff, Fusion: cfg(feature = "fusion"))]
pub(crate) trait LstmOps: Backend {
    /// The differentiable operation; without a graph, the same as `lstm_infer`.
    #[fusion(default)]
    fn lstm_layer(
        gates_x: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        state: FloatTensor<Self>,
        lengths: IntTensor<Self>,
        way: Way,
    ) -> Outputs<Self> {
        Self::lstm_infer(gates_x, weights, state, lengths, way)
    }

    /// The forward pass that keeps nothing.
    #[fusion(meta = |gates_x, _weights, state, _lengths, _way| outputs(gates_x, state))]
    fn lstm_infer(
        gates_x: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        state: FloatTensor<Self>,
        lengths: IntTensor<Self>,
        way: Way,
    ) -> Outputs<Self>;

    /// The forward pass that keeps what the backward pass needs.
    #[fusion(meta = |gates_x, _weights, state, _lengths, _way| recorded(gates_x, state))]
    fn lstm_record(
        gates_x: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        state: FloatTensor<Self>,
        lengths: IntTensor<Self>,
        way: Way,
    ) -> Recorded<Self>;

    /// The backward pass.
    #[allow(clippy::too_many_arguments, reason = "the macro takes tensors as arguments")]
    #[fusion(meta = |_d_output, _d_last, _output, gates, _cells, _weights, state, _lengths, _way| {
        derived(gates, state)
    })]
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
    ) -> Derived<Self>;
}

// Fusion trusts these shapes: no build compares them with what the backend returns.

#[cfg(feature = "fusion")]
fn outputs(gates_x: &TensorSpec, state: &TensorSpec) -> OutputsMetadata {
    let [directions, batch, time, width] = gates_x.shape.dims();
    let output = TensorSpec::new([batch, time, directions * width / 4].into(), gates_x.dtype);
    OutputsMetadata { output, last: state.clone() }
}

#[cfg(feature = "fusion")]
fn recorded(gates_x: &TensorSpec, state: &TensorSpec) -> RecordedMetadata {
    let OutputsMetadata { output, last } = outputs(gates_x, state);
    let [directions, batch, time, width] = gates_x.shape.dims();
    let cells = TensorSpec::new([directions, batch, time, width / 4].into(), DType::F32);
    RecordedMetadata { output, last, gates: gates_x.clone(), cells }
}

#[cfg(feature = "fusion")]
fn derived(gates: &TensorSpec, state: &TensorSpec) -> DerivedMetadata {
    let [directions, batch, time, width] = gates.shape.dims();
    let previous = TensorSpec::new([directions, batch, time, width / 4].into(), gates.dtype);
    DerivedMetadata { d_gates: gates.clone(), previous, d_state: state.clone() }
}
