//! The squared error of rows that the device knows, as the masked autoencoders have it.

use burn::tensor::Tensor;

#[cfg(feature = "cube")]
use super::gpu;
use super::{composed, elements_fused, in_f32, kernels};
use crate::cpu::Element;
use crate::device::{flex, is_flex};
use crate::operands::{alike, listed, operand};

/// The squared error of some rows, `Σ (x - t)² / numbers` over their numbers, where the rows are known to the device: a
/// mask that it has hidden steps by, too. Other rows are not read: whatever they hold, they change nothing and their
/// gradient is zero.
///
/// On Burn's CPU backend it is one pass, loss and gradient, as [`squared_error`](crate::squared_error()) is, and on a GPU
/// with kernels of this crate one launch and one for the sum. Elsewhere it is composed, and summed sample by sample
/// first: the sum of a large tensor at once would depend on the number of threads.
///
/// # Shapes
/// - predictions, targets (they get no gradient): `[samples, ..., width]`
/// - counted: `[samples, ..., 1]`, one for each row that counts and zero elsewhere
/// - numbers: how many count; `0`, where there are none, divides as 1
/// - output: `[1]` in f32
///
/// # Panics
/// If shapes, types or devices do not go together; the message holds the shapes and types.
#[track_caller]
pub fn masked_squared_error<const D: usize>(
    predictions: Tensor<D>,
    targets: Tensor<D>,
    counted: Tensor<D>,
    numbers: f64,
) -> Tensor<1> {
    let operands = [
        operand("predictions", &predictions),
        operand("targets", &targets),
        operand("counted", &counted),
    ];
    alike("a masked squared error", operands);
    let shape = predictions.dims();
    let mut rows = shape;
    rows[D - 1] = 1;
    assert!(
        targets.dims() == shape && counted.dims() == rows,
        "a masked squared error was given {}; targets must be {shape:?} as the predictions are, and what is counted \
         {rows:?}, one for each row",
        listed(operands)
    );
    let inner = |tensor: Tensor<D>| if tensor.is_autodiff() { tensor.inner() } else { tensor };
    let [predictions, targets, counted] = [predictions, inner(targets), inner(counted)].map(in_f32);
    let (width, sum) = (shape[D - 1], numbers.max(1.0));
    let on_cpu = is_flex(&targets) && is_flex(&counted);
    if let Some(kernels) = kernels(&predictions).filter(|_| on_cpu) {
        let [targets, counted] = [targets, counted].map(|one| flex(one).to_contiguous());
        let weights = (Some(counted.storage()), sum);
        let kind = Element::Squared;
        return elements_fused(kernels, kind, predictions, targets.storage(), width, weights);
    }
    #[cfg(feature = "cube")]
    {
        let flat = |tensor: Tensor<D>| tensor.flatten::<1>(0, D - 1);
        let predictions = flat(predictions.clone());
        if gpu::takes_elements(&predictions) {
            let both = [predictions, flat(targets)];
            return gpu::squares_of_rows(both, flat(counted), width, sum);
        }
    }
    composed::squares_of_rows(predictions, targets, counted) / sum
}
