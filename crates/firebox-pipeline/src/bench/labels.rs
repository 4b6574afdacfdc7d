//! The losses of the workloads with labels.

use burn::tensor::{Device, Int, Tensor, TensorData};
use firebox_kernels::{CrossEntropy, LossError, MeanLoss};
use firebox_loader::Batch;
use firebox_models::Loss;

/// Mean cross-entropy of the labels of a batch, `label_smoothing` of each spread over all classes.
///
/// # Shapes
/// - `logits`: `[batch, class]`
pub(super) fn cross_entropy(logits: Tensor<2>, batch: &Batch, label_smoothing: f64) -> Loss {
    let config = CrossEntropy { label_smoothing, ..CrossEntropy::default() };
    loss(firebox_kernels::cross_entropy(logits, &labels(batch), &config))
}

/// Mean binary cross-entropy of all logits, of which a batch's labels name the true one.
///
/// # Shapes
/// - `logits`: `[batch, label]`
pub(super) fn binary_cross_entropy(logits: Tensor<2>, batch: &Batch) -> Loss {
    let [samples, count] = logits.dims();
    let device: Device = logits.device().without_autodiff();
    let truth = TensorData::new(labels(batch), [samples]);
    let truth = Tensor::<1, Int>::from_data(truth, &device).one_hot::<2>(count).float();
    loss(firebox_kernels::binary_cross_entropy(logits, truth, None, &Default::default()))
}

/// The label of each sample of a batch, which all have one.
fn labels(batch: &Batch) -> Vec<i64> {
    batch.labels.iter().map(|label| i64::from(label.unwrap_or_default())).collect()
}

fn loss(mean: Result<MeanLoss, LossError>) -> Loss {
    match mean {
        Ok(loss) => Loss { value: loss.value, weight: loss.weight, parts: vec![] },
        Err(error) => unreachable!("a workload draws labels for each of its samples: {error}"),
    }
}
