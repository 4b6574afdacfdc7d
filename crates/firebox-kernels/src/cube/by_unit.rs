//! The parameters of a recurrent layer as its kernels read them: those of all directions, with the four columns of a
//! unit next to each other, and in the type that is computed in; and their gradients, the way back. One launch each.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, NodeGuard, Ops, OpsKind};
use burn::backend::cubecl::dtype_to_storage_type;
#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, TensorMetadata, backend_extension};
use burn::tensor::{DType, Shape};
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl::{self, prelude::*};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;

use super::list::TensorList;
use super::tensors::{arguments, each_of, empty, hand_on};
use super::watch::{LaunchedWork, launching};
use crate::cpu::CellKind;

/// What the parameters of a layer are factors of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Factor {
    /// The input: `weight_ih`.
    Input,
    /// The hidden state: `weight_hh`.
    State,
    /// One: `bias_ih`, followed by `bias_hh`, which are added.
    One,
}

/// Which parameters a list has: those of each direction, one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Parameters {
    pub(crate) factor: Factor,
    /// A GRU's three blocks of rows, or an LSTM's four.
    pub(crate) gru: bool,
}

impl Parameters {
    pub(crate) fn of(factor: Factor, cell: CellKind) -> Self {
        Self { factor, gru: cell == CellKind::Gru }
    }

    /// Parameters of a direction.
    fn terms(&self) -> usize {
        1 + usize::from(self.factor == Factor::One)
    }

    /// Blocks of rows of a parameter.
    fn blocks(&self) -> usize {
        4 - usize::from(self.gru)
    }

    /// Whether a direction's parameter of this number stands beside the hidden state.
    fn is_of_state(&self, term: usize) -> bool {
        self.factor == Factor::State || term == 1
    }

    /// The block of rows that a cell's column of this number comes from. A GRU's columns are reset, update, and the
    /// candidate's parts from the input and from the hidden state.
    fn block(&self, term: usize, column: usize) -> Option<usize> {
        match (self.gru, self.is_of_state(term), column) {
            (true, false, 3) | (true, true, 2) => None,
            (true, true, 3) => Some(2),
            _ => Some(column),
        }
    }

    /// The column that a block of rows goes to.
    fn column(&self, term: usize, block: usize) -> usize {
        if self.gru && self.is_of_state(term) && block == 2 { 3 } else { block }
    }

    /// The shape of all directions' parameters as kernels read them, from that of one.
    fn arranged(&self, count: usize, one: &Shape) -> Shape {
        let rows = 4 * one[0] / self.blocks();
        let shape = [count / self.terms(), rows].into_iter().chain(one.iter().copied().skip(1));
        Shape::from(shape.collect::<Vec<_>>())
    }

    /// How many parameters there are of all directions, and the shape of each.
    fn each(&self, arranged: &Shape) -> (usize, Shape) {
        let rows = arranged[1] / 4 * self.blocks();
        let shape = [rows].into_iter().chain(arranged.iter().copied().skip(2));
        (arranged[0] * self.terms(), Shape::from(shape.collect::<Vec<_>>()))
    }
}

/// Each thread has a number of the result.
///
/// # Shapes
/// - parameters: each `[blocks, unit, column]`
/// - out: `[direction, unit, 4 columns of the cell, column]`, of `count` numbers
#[cube(launch_unchecked)]
fn by_unit<F: Float, T: Float>(
    parameters: &Sequence<Box<[F]>>,
    out: &mut [T],
    units: u32,
    columns: u32,
    count: u32,
    #[comptime] of: Parameters,
    #[define(F)] _from: ElemType,
    #[define(T)] _to: ElemType,
) {
    let at = ABSOLUTE_POS as u32;
    if at < count {
        let (row, column) = (at / columns, at % columns);
        let (gate, unit) = (row % 4, row / 4);
        let (unit, direction) = (unit % units, unit / units);
        let mut sum = 0.0f32;
        #[unroll]
        for i in 0..parameters.len() {
            let parameter = &parameters[i];
            if direction == comptime!((i / of.terms()) as u32) {
                #[unroll]
                for own in 0..4usize {
                    let block = comptime!(of.block(i % of.terms(), own));
                    if comptime!(block.is_some()) && gate == comptime!(own as u32) {
                        let row = comptime!(block.unwrap_or(0) as u32) * units + unit;
                        sum += f32::cast_from(parameter[(row * columns + column) as usize]);
                    }
                }
            }
        }
        out[at as usize] = T::cast_from(sum);
    }
}

/// Each thread has a number of a parameter's gradient.
///
/// # Shapes
/// - d: `[direction, 4 columns of each unit, column]`, with these strides
/// - gradients: each `[blocks, unit, column]`, `count` numbers in all
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments, reason = "a kernel has one argument for each number")]
fn by_gate<F: Float, T: Float>(
    d: &[F],
    gradients: &mut Sequence<Box<[T]>>,
    along_directions: u32,
    along_rows: u32,
    along_columns: u32,
    units: u32,
    columns: u32,
    count: u32,
    #[comptime] of: Parameters,
    #[define(F)] _from: ElemType,
    #[define(T)] _to: ElemType,
) {
    let at = ABSOLUTE_POS as u32;
    if at < count {
        let each = comptime!(of.blocks() as u32) * units * columns;
        let (parameter, place) = (at / each, at % each);
        let (row, column) = (place / columns, place % columns);
        let (block, unit) = (row / units, row % units);
        #[unroll]
        for i in 0..gradients.len() {
            let gradient = &mut gradients[i];
            if parameter == comptime!(i as u32) {
                let direction = comptime!((i / of.terms()) as u32);
                #[unroll]
                for own in 0..comptime!(of.blocks()) {
                    if block == comptime!(own as u32) {
                        let gate = comptime!(of.column(i % of.terms(), own) as u32);
                        let from = direction * along_directions
                            + (unit * 4 + gate) * along_rows
                            + column * along_columns;
                        gradient[place as usize] = T::cast_from(d[from as usize]);
                    }
                }
            }
        }
    }
}

/// Parameters of recurrent layers; there are numbers.
#[backend_extension(Cube, Autodiff, Fusion: cfg(feature = "fusion"))]
pub(crate) trait UnitOps: Backend {
    /// The differentiable operation: from parameters, each `[blocks · units, columns]` or `[blocks · units]`, to
    /// `[directions, 4 · units, columns]` or `[directions, 4 · units]`, in a type.
    #[fusion(meta = |parameters, of, to| arranged(parameters, *of, *to))]
    fn firebox_by_unit(
        #[extension_type] parameters: TensorList<Self>,
        of: Parameters,
        to: DType,
    ) -> FloatTensor<Self>;

    /// The gradients of the parameters, in a type, from that of what they became.
    #[fusion(meta = |d, of, to| each(d, *of, *to))]
    fn firebox_by_gate(d: FloatTensor<Self>, of: Parameters, to: DType) -> TensorList<Self>;
}

#[cfg(feature = "fusion")]
fn arranged(parameters: &[TensorSpec], of: Parameters, to: DType) -> TensorSpec {
    TensorSpec::new(of.arranged(parameters.len(), &parameters[0].shape), to)
}

#[cfg(feature = "fusion")]
fn each(d: &TensorSpec, of: Parameters, to: DType) -> Vec<TensorSpec> {
    let (count, shape) = of.each(&d.shape);
    vec![TensorSpec::new(shape, to); count]
}

/// What a launch does.
fn work(name: &'static str, shape: &Shape, from: DType, to: DType) -> LaunchedWork {
    let bytes = shape.num_elements() * (from.size() + to.size());
    LaunchedWork { name, shape: shape.to_vec(), operations: 0.0, bytes: bytes as f64, bf16: false }
}

/// Columns of what was arranged: 1 of biases.
fn columns(arranged: &Shape) -> usize {
    arranged.iter().skip(2).product()
}

impl UnitOps for CubeBackend {
    fn firebox_by_unit(
        parameters: TensorList<Self>,
        of: Parameters,
        to: DType,
    ) -> FloatTensor<Self> {
        let parameters: Vec<CubeTensor> = parameters.0.into_iter().map(into_contiguous).collect();
        let (first, from) = (&parameters[0], parameters[0].dtype);
        let shape = of.arranged(parameters.len(), &first.shape());
        let out = empty(first, shape.clone(), to);
        let count = shape.num_elements();
        let (cubes, dim) = each_of(count, &first.client);
        // SAFETY: a thread compares its place with the numbers of the result; each direction has its parameters, of
        // the sizes that the result's follow from.
        let launch = || unsafe {
            by_unit::launch_unchecked(
                &first.client,
                cubes,
                dim,
                arguments(&parameters),
                out.clone().into_buffer_arg(),
                (shape[1] / 4) as u32,
                columns(&shape) as u32,
                count as u32,
                of,
                dtype_to_storage_type(from),
                dtype_to_storage_type(to),
            );
        };
        launching(|| work("parameters of a recurrent layer", &shape, from, to), launch);
        out
    }

    fn firebox_by_gate(d: FloatTensor<Self>, of: Parameters, to: DType) -> TensorList<Self> {
        let (arranged, from) = (d.shape(), d.dtype);
        let (count, shape) = of.each(&arranged);
        let gradients: Vec<CubeTensor> = (0..count).map(|_| empty(&d, shape.clone(), to)).collect();
        let stride = |axis: usize| d.meta.strides().get(axis).map_or(0, |stride| *stride as u32);
        let (strides, numbers) = ([0, 1, 2].map(stride), count * shape.num_elements());
        let (cubes, dim) = each_of(numbers, &d.client);
        let client = d.client.clone();
        // SAFETY: a thread compares its place with the numbers of all gradients, and writes one of them; what it reads
        // is within `d`, of whose shape theirs is made, by its own strides.
        let launch = || unsafe {
            by_gate::launch_unchecked(
                &client,
                cubes,
                dim,
                d.clone().into_buffer_arg(),
                arguments(&gradients),
                strides[0],
                strides[1],
                strides[2],
                (arranged[1] / 4) as u32,
                columns(&arranged) as u32,
                numbers as u32,
                of,
                dtype_to_storage_type(from),
                dtype_to_storage_type(to),
            );
        };
        let name = "parameters of a recurrent layer, gradients";
        launching(|| work(name, &arranged, from, to), launch);
        TensorList(gradients)
    }
}

/// What was arranged, and the type of its parameters.
#[derive(Debug)]
struct Arranged;

impl<B: UnitOps, const N: usize> Backward<B, N> for Arranged {
    type State = (Parameters, DType);

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        hand_on::<B, _, _, N>(ops, grads, |d, (of, to)| B::firebox_by_gate(d, of, to).0);
    }
}

/// Puts what was arranged into the graph, behind so many parameters.
fn tracked<B: UnitOps, C: CheckpointStrategy, const N: usize>(
    guards: Vec<NodeGuard>,
    state: (Parameters, DType),
    out: FloatTensor<B>,
) -> FloatTensor<Autodiff<B, C>> {
    let Ok(guards) = <[NodeGuard; N]>::try_from(guards) else {
        unreachable!("there are as many as was asked before")
    };
    match Backward::<B, N>::prepare::<C>(Arranged, guards).compute_bound().stateful() {
        OpsKind::Tracked(prep) => prep.finish(state, out),
        OpsKind::UnTracked(prep) => prep.finish(out),
    }
}

impl<B: UnitOps, C: CheckpointStrategy> UnitOps for Autodiff<B, C> {
    fn firebox_by_unit(
        parameters: TensorList<Self>,
        of: Parameters,
        to: DType,
    ) -> FloatTensor<Self> {
        let parts = parameters.0.into_iter().map(|parameter| parameter.into_parts());
        let (parameters, guards): (Vec<_>, Vec<_>) = parts.unzip();
        let state = (of, parameters[0].dtype());
        let out = B::firebox_by_unit(TensorList(parameters), of, to);
        match guards.len() {
            1 => tracked::<B, C, 1>(guards, state, out),
            2 => tracked::<B, C, 2>(guards, state, out),
            4 => tracked::<B, C, 4>(guards, state, out),
            count => unreachable!("{count} parameters of one or two directions"),
        }
    }

    fn firebox_by_gate(_: FloatTensor<Self>, _: Parameters, _: DType) -> TensorList<Self> {
        unreachable!("the gradient of a gradient is not defined here")
    }
}
