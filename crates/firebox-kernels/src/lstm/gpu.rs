//! One layer as a single operation of a GPU, with its gradient.
//!
//! The recurrence is in [`cube`](crate::cube); this file projects the input, which is one large
//! matmul, and puts weights and state into the kernels' layout. Burn differentiates both.

use burn::backend::Dispatch;
use burn::module::Param;
use burn::tensor::{DType, Int, Tensor, TensorData};
use firebox_core::Precision;

use super::{Direction, LstmState, Stack};
use crate::cube::{Factor, LstmOps, Parameters, TensorList, UnitOps, Way};
use crate::cuts::{GpuKernels, parts};
use crate::products::{ProductWay, add_bias, cast, product, shifted_in_halves};
use crate::rounded::compute_type;

/// How a layer is computed, and in which type.
#[derive(Clone, Copy)]
pub(super) struct Chosen {
    way: Way,
    dtype: DType,
    precision: Precision,
}

/// The kernels for tensors of one type and device, as all that get here are; `None` if the layer must be composed of
/// Burn's operations.
pub(super) fn kernels(stack: &Stack<'_>, input: &Tensor<3>, directions: usize) -> Option<Chosen> {
    let [batch, time, _] = input.dims();
    // The kernels count in 32 bits.
    let counted = directions.saturating_mul(batch).saturating_mul(time);
    u32::try_from(counted.saturating_mul(stack.config.hidden)).ok()?;
    let dtype = compute_type(input.dtype(), stack.precision);
    let hidden = stack.config.hidden;
    let kernels = GpuKernels::of_layer(&input.device(), dtype, directions, batch, hidden).ok()?;
    let (cell, tile) = (stack.cell, GpuKernels::forced_tile());
    let products = ProductWay::on(stack.precision, &input.device(), dtype);
    let way = Way { kernels, cell, tile, products };
    Some(Chosen { way, dtype, precision: stack.precision })
}

/// All directions of one layer; the same as [`composed::layer`](super::composed::layer).
pub(super) fn layer(
    Chosen { way, dtype, precision }: Chosen,
    input: Tensor<3>,
    lengths: Option<&[usize]>,
    parameters: &[Direction],
    initial: Option<LstmState>,
) -> (Tensor<3>, LstmState) {
    let [batch, time, channels] = input.dims();
    let [_, hidden] = parameters[0].weight_hh.dims();
    let directions = parameters.len();
    let (device, given) = (input.device(), input.dtype());
    let valid = valid_steps(&input, lengths);
    // Padding may hold NaN, which no later zero would take back out of the gradient.
    let input = if lengths.is_some() { clear(input, &valid) } else { input };
    let parts = parts(batch, directions * channels * 4 * hidden);
    let rows = cast(input, dtype).reshape([1, parts, batch / parts * time, channels]);
    let of = |factor| (Parameters::of(factor, way.cell), dtype);
    let weights = |of, weight: fn(&Direction) -> &Param<Tensor<2>>| {
        by_unit::<2, 3>(parameters.iter().map(|direction| weight(direction).val()), of)
    };
    let weight_ih = weights(of(Factor::Input), |direction| &direction.weight_ih);
    let weight_hh = weights(of(Factor::State), |direction| &direction.weight_hh);
    let biases = parameters.iter().flat_map(|direction| [&direction.bias_ih, &direction.bias_hh]);
    let bias = by_unit::<1, 2>(biases.map(Param::val), of(Factor::One));
    let weight_ih = weight_ih.swap_dims(1, 2).unsqueeze_dim(1);
    let shape = [directions, batch, time, 4 * hidden];
    let projected = match shifted_in_halves(precision, &rows, &weight_ih, &bias) {
        Some(projected) => projected.reshape(shape),
        None => {
            let y = product(precision, rows, weight_ih);
            add_bias(y.reshape([directions, batch * time, 4 * hidden]), bias).reshape(shape)
        }
    };
    let state = match initial {
        Some(LstmState { hidden, cell }) => {
            cast(Tensor::stack::<4>(vec![hidden, cell], 0), DType::F32)
        }
        None => Tensor::zeros([2, directions, batch, hidden], (&device, DType::F32)),
    };
    let outputs = <Dispatch as LstmOps>::lstm_layer(
        projected.into_dispatch(),
        weight_hh.into_dispatch(),
        state.into_dispatch(),
        valid.into_dispatch(),
        way,
    );
    let last = cast(Tensor::<4>::from_dispatch(outputs.last), given);
    let part = |index| last.clone().narrow(0, index, 1).reshape([directions, batch, hidden]);
    let state = LstmState { hidden: part(0), cell: part(1) };
    (cast(Tensor::from_dispatch(outputs.output), given), state)
}

/// The parameters of all directions with the four columns of a unit next to each other, in a type: `[directions, 4 *
/// hidden, columns]`, of biases `[directions, 4 * hidden]`.
fn by_unit<const FROM: usize, const TO: usize>(
    parameters: impl Iterator<Item = Tensor<FROM>>,
    (of, to): (Parameters, DType),
) -> Tensor<TO> {
    let parameters = TensorList(parameters.map(Tensor::into_dispatch).collect());
    Tensor::from_dispatch(<Dispatch as UnitOps>::firebox_by_unit(parameters, of, to))
}

/// The length of each sample as a tensor. Without lengths nothing is copied to the device.
fn valid_steps(input: &Tensor<3>, lengths: Option<&[usize]>) -> Tensor<1, Int> {
    let [batch, time, _] = input.dims();
    let options = (&input.device(), DType::I32);
    match lengths {
        Some(lengths) => {
            let lengths: Vec<_> = lengths.iter().map(|length| *length as i32).collect();
            Tensor::from_data(TensorData::new(lengths, [batch]), options)
        }
        None => Tensor::full([batch], time as i32, options),
    }
}

/// The input with zeros in its padding.
fn clear(input: Tensor<3>, valid: &Tensor<1, Int>) -> Tensor<3> {
    let shape @ [batch, time, _] = input.dims();
    let steps = Tensor::<1, Int>::arange(0..time as i64, (&input.device(), DType::I32));
    let steps = steps.reshape([1, time]).expand([batch, time]);
    let over = steps.greater_equal(valid.clone().reshape([batch, 1]).expand([batch, time]));
    input.mask_fill(over.reshape([batch, time, 1]).expand(shape), 0.0)
}
