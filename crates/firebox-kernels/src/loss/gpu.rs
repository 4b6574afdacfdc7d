//! The cross-entropy in the kernels of a GPU.

use burn::backend::Dispatch;
use burn::tensor::{DType, Int, Tensor, TensorData};

use crate::cpu::{CrossEntropy, Row};
use crate::cube::{EntropyOps, EntropySettings};
use crate::cuts::GpuKernels;

/// Whether the kernels take these logits, which are in f32.
pub(super) fn takes(logits: &Tensor<2>) -> bool {
    (1..=u32::MAX as usize).contains(&logits.shape().num_elements())
        && GpuKernels::takes(&logits.device(), DType::F32).is_ok()
}

/// The sum of the losses of all rows by their weights, `[1]`.
pub(super) fn cross_entropy(
    logits: Tensor<2>,
    rows: &[Row],
    config: CrossEntropy<'_>,
) -> Tensor<1> {
    let device = logits.device();
    let constant = |values: Vec<f32>| {
        let size = values.len();
        Tensor::<1>::from_data(TensorData::new(values, [size]), (&device, DType::F32))
    };
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
        constant(rows.iter().map(|row| row.weight as f32).collect()).into_dispatch(),
        constant(config.class_weights.map_or_else(|| vec![1.0], <[f32]>::to_vec)).into_dispatch(),
        settings,
    ))
}
