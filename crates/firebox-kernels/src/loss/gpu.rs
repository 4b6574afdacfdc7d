//! Losses in the kernels of a GPU: puts targets and weights into the form that [`cube`](crate::cube) takes.

use burn::backend::Dispatch;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use crate::cpu::{CrossEntropy, Element, Row};
use crate::cube::{ElementOps, ElementSettings, EntropyOps, EntropySettings, Formula, WeightsOf};
use crate::cuts::GpuKernels;

/// Whether the kernels take these logits, which are in f32.
pub(super) fn takes(logits: &Tensor<2>) -> bool {
    (1..=u32::MAX as usize).contains(&logits.shape().num_elements())
        && GpuKernels::takes(&logits.device(), DType::F32).is_ok()
}

/// Whether the kernels take these predictions, which are in f32; they stride over them in numbers of 32 bits.
pub(super) fn takes_elements(predictions: &Tensor<1>) -> bool {
    (1..=i32::MAX as usize).contains(&predictions.shape().num_elements())
        && GpuKernels::takes(&predictions.device(), DType::F32).is_ok()
}

fn constant(device: &Device, values: &[f32]) -> Tensor<1> {
    let device = device.clone().without_autodiff();
    let values = TensorData::new(values.to_vec(), [values.len()]);
    Tensor::from_data(values, (&device, DType::F32))
}

/// The sum of the losses of all numbers by their weights over `sum`, `[1]`.
pub(super) fn elements(
    kind: Element<'_>,
    [predictions, targets]: [Tensor<1>; 2],
    width: usize,
    weights: Option<&[f32]>,
    sum: f64,
) -> Tensor<1> {
    let (device, [count]) = (predictions.device(), predictions.dims());
    let (formula, setting, positive) = match kind {
        Element::Squared => (Formula::Squared, 0.0, None),
        // Some devices do not take infinity as an argument.
        Element::Huber { delta } => (Formula::Huber, delta.min(f32::MAX), None),
        Element::Binary { positive, focal } => {
            let of = Formula::Binary { focused: focal > 0.0, positive: positive.is_some() };
            (of, focal as f32, positive)
        }
    };
    let weights_of = match weights {
        None => WeightsOf::Nothing,
        Some(weights) if weights.len() == count => WeightsOf::Numbers,
        Some(_) => WeightsOf::Rows,
    };
    let share = (1.0 / sum) as f32;
    let settings = ElementSettings { formula, weights: weights_of, width, share, setting };
    let weights = constant(&device, weights.unwrap_or(&[1.0]));
    let positive = constant(&device, positive.unwrap_or(&[1.0]));
    run([predictions, targets], [weights, positive], settings)
}

fn run(
    [predictions, targets]: [Tensor<1>; 2],
    [weights, positive]: [Tensor<1>; 2],
    settings: ElementSettings,
) -> Tensor<1> {
    Tensor::from_dispatch(<Dispatch as ElementOps>::firebox_element_loss(
        predictions.into_dispatch(),
        targets.into_dispatch(),
        weights.into_dispatch(),
        positive.into_dispatch(),
        settings,
    ))
}

/// The squared distances of the numbers of some rows over `sum`, `[1]`; `counted` has a weight for each row.
pub(super) fn squares_of_rows(
    both: [Tensor<1>; 2],
    counted: Tensor<1>,
    width: usize,
    sum: f64,
) -> Tensor<1> {
    let (formula, weights, share) = (Formula::Squared, WeightsOf::Rows, (1.0 / sum) as f32);
    let settings = ElementSettings { formula, weights, width, share, setting: 0.0 };
    // Nothing has weights by label.
    let positive = counted.clone();
    run(both, [counted, positive], settings)
}

/// The sum of the losses of all rows by their weights, `[1]`.
pub(super) fn cross_entropy(
    logits: Tensor<2>,
    rows: &[Row],
    config: CrossEntropy<'_>,
) -> Tensor<1> {
    let device = logits.device();
    let weights: Vec<f32> = rows.iter().map(|row| row.weight as f32).collect();
    let targets: Vec<i32> = rows.iter().map(|row| row.class as i32).collect();
    let targets = TensorData::new(targets, [rows.len()]);
    let targets = Tensor::<1, Int>::from_data(targets, (&device, DType::I32));
    let settings = EntropySettings {
        smoothing: config.smoothing as f32,
        focal: config.focal as f32,
        weighted: config.class_weights.is_some(),
    };
    Tensor::from_dispatch(<Dispatch as EntropyOps>::firebox_cross_entropy(
        logits.into_dispatch(),
        targets.into_dispatch(),
        constant(&device, &weights).into_dispatch(),
        constant(&device, config.class_weights.unwrap_or(&[1.0])).into_dispatch(),
        settings,
    ))
}
