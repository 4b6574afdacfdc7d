//! The loss of the workloads with classes.

use burn::tensor::activation::log_softmax;
use burn::tensor::{Tensor, TensorData};
use firebox_loader::Batch;
use firebox_models::Loss;

/// Mean cross-entropy of the labels of a batch, which all have one.
///
/// # Shapes
/// - `logits`: `[batch, class]`
pub(super) fn cross_entropy(logits: Tensor<2>, batch: &Batch) -> Loss {
    let [samples, classes] = logits.dims();
    let mut chosen = vec![0.0_f32; samples * classes];
    for (row, label) in chosen.chunks_exact_mut(classes).zip(&batch.labels) {
        if let Some(label) = label {
            row[*label as usize] = -1.0 / samples as f32;
        }
    }
    let device = logits.device().without_autodiff();
    let chosen = Tensor::<2>::from_data(TensorData::new(chosen, [samples, classes]), &device);
    let value = (log_softmax(logits, 1) * chosen).sum();
    Loss { value, weight: samples as f64, parts: vec![] }
}
