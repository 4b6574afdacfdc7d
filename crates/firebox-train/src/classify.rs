//! Classification by the labels of the samples.

use firebox_kernels::{CrossEntropy, cross_entropy};
use firebox_loader::Batch;
use firebox_models::{Classifier, Loss};

use crate::{Objective, Streams};

/// Mean cross-entropy of the samples that have a label.
#[derive(Clone, Copy, Debug, Default)]
pub struct Classification {
    /// Share of each target that is spread evenly over all classes, from 0 to below 1. Source: Szegedy
    /// et al., 2016. In training only, so that validation losses of different values compare.
    pub label_smoothing: f64,
}

impl<M: Classifier> Objective<M> for Classification {
    /// # Panics
    /// When a label is not below the model's classes, or the smoothing out of range.
    fn loss(&self, model: &M, batch: &Batch, streams: Streams) -> Loss {
        let targets: Vec<i64> =
            batch.labels.iter().map(|label| label.map_or(IGNORED, i64::from)).collect();
        let scores = model.scores(batch.inputs.clone(), &batch.lengths, streams.dropout);
        let label_smoothing = if streams.dropout.is_some() { self.label_smoothing } else { 0.0 };
        let config =
            CrossEntropy { label_smoothing, ignore_index: IGNORED, ..CrossEntropy::default() };
        match cross_entropy(scores, &targets, &config) {
            Ok(mean) => Loss { value: mean.value, weight: mean.weight, parts: vec![] },
            Err(error) => panic!("labels are classes of the model: {error}"),
        }
    }
}

/// The target of a sample without a label.
const IGNORED: i64 = -100;
