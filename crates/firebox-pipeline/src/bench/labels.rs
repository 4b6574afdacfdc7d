//! The loss of the workloads with classes.

use burn::tensor::Tensor;
use firebox_kernels::CrossEntropy;
use firebox_loader::Batch;
use firebox_models::Loss;

/// Mean cross-entropy of the labels of a batch, which all have one.
///
/// # Shapes
/// - `logits`: `[batch, class]`
pub(super) fn cross_entropy(logits: Tensor<2>, batch: &Batch) -> Loss {
    let labels = batch.labels.iter();
    let labels: Vec<i64> = labels.map(|label| i64::from(label.unwrap_or_default())).collect();
    match firebox_kernels::cross_entropy(logits, &labels, &CrossEntropy::default()) {
        Ok(loss) => Loss { value: loss.value, weight: loss.weight, parts: vec![] },
        Err(error) => unreachable!("a workload draws labels for each of its samples: {error}"),
    }
}
