//! What an iteration minimises: cross-entropy of the clusters, on windows with noise and a hidden run
//! of steps.

use burn::tensor::{Tensor, TensorData};
use firebox_core::Stream;
use firebox_kernels::{CrossEntropy, GaussianNoise, cross_entropy};
use firebox_loader::Batch;
use firebox_models::{CnnBiLstm, Loss};
use firebox_train::{Objective, Streams};

/// The stream that noise is drawn from, beside those of dropout.
const NOISE: u64 = u64::MAX;

/// Classification by clusters. Each class has the same weight in all, however large its cluster, or
/// the encoder could please itself with one large cluster (Caron et al., 2018, section 3.3).
pub(super) struct Clusters {
    weights: Vec<f32>,
    noise: f64,
    time_mask: usize,
}

impl Clusters {
    /// Of windows that were assigned to `clusters` clusters.
    pub(super) fn new(assigned: &[u32], clusters: usize, noise: f64, time_mask: usize) -> Self {
        let mut sizes = vec![0usize; clusters];
        assigned.iter().for_each(|cluster| sizes[*cluster as usize] += 1);
        let weight = |size: &usize| assigned.len() as f32 / (clusters * (*size).max(1)) as f32;
        Self { weights: sizes.iter().map(weight).collect(), noise, time_mask }
    }

    /// Hides a run of steps of each sample, which becomes zero: `[batch, time, channel]`.
    fn hide(&self, inputs: Tensor<3>, batch: &Batch, samples: Stream) -> Tensor<3> {
        let [size, time, _] = inputs.dims();
        if self.time_mask < 2 {
            return inputs;
        }
        let mut shown = vec![1.0f32; size * time];
        for (row, index) in batch.indices.iter().enumerate() {
            let mut draws = samples.substream(*index as u64).draws();
            let length = batch.lengths[row].min(time);
            // At least half of a short sample stays.
            let widest = self.time_mask.min(length / 2 + 1);
            let width = draws.below(widest.max(1) as u64) as usize;
            let start = draws.below((length - width + 1) as u64) as usize;
            shown[row * time + start..row * time + start + width].fill(0.0);
        }
        let device = inputs.device().without_autodiff();
        inputs * Tensor::<3>::from_data(TensorData::new(shown, [size, time, 1]), &device)
    }
}

impl Objective<CnnBiLstm> for Clusters {
    fn loss(&self, model: &CnnBiLstm, batch: &Batch, streams: Streams) -> Loss {
        let Streams { samples, dropout } = streams;
        let training = dropout.is_some();
        // Dropout's stream is of this batch, or part of one: noise goes by places in it, not by samples.
        let noise = dropout.filter(|_| self.noise > 0.0);
        let noise = noise
            .map(|stream| GaussianNoise { deviation: self.noise, stream: stream.substream(NOISE) });
        let inputs = batch.inputs.clone();
        let inputs = if training { self.hide(inputs, batch, samples) } else { inputs };
        let targets: Vec<i64> =
            batch.labels.iter().map(|label| i64::from(label.unwrap_or_default())).collect();
        let scores = model.logits(inputs, Some(&batch.lengths), noise, dropout);
        let config = CrossEntropy { class_weights: Some(&self.weights), ..CrossEntropy::default() };
        match cross_entropy(scores, &targets, &config) {
            Ok(mean) => Loss { value: mean.value, weight: mean.weight, parts: vec![] },
            Err(error) => unreachable!("every window has a cluster of the model: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use burn::tensor::Device;
    use firebox_loader::Position;

    use super::*;

    #[test]
    fn hidden_runs_lie_within_each_sample_and_depend_on_its_index_alone() {
        let clusters = Clusters::new(&[0, 0, 0, 1], 2, 0.0, 6);
        assert_eq!(clusters.weights, [4.0 / 6.0, 2.0]);
        let device = Device::default();
        let lengths = vec![12, 3, 7, 1];
        let batch = |indices: Vec<usize>| Batch {
            inputs: Tensor::ones([4, 12, 2], &device),
            lengths: lengths.clone(),
            labels: vec![Some(0); 4],
            indices,
            next: Position::START,
            wait: Duration::ZERO,
            upload: Duration::ZERO,
            handed: Duration::ZERO,
            fill: Duration::ZERO,
        };
        let hidden = |indices: Vec<usize>, seed| {
            let batch = batch(indices);
            let out = clusters.hide(batch.inputs.clone(), &batch, Stream::new(seed, "samples"));
            out.into_data().try_into_vec::<f32>().unwrap()
        };
        let mut any = 0;
        for seed in 0..40 {
            let values = hidden(vec![3, 8, 1, 4], seed);
            for (row, length) in values.chunks_exact(24).zip(&lengths) {
                let zeros = row.iter().step_by(2).filter(|value| **value == 0.0).count();
                assert!(zeros < 6 && zeros <= length / 2, "{zeros} of {length}");
                assert!(row[2 * length..].iter().all(|value| *value == 1.0));
                any += zeros;
            }
            let moved = hidden(vec![3, 8, 2, 4], seed);
            assert_eq!(values[..48], moved[..48]);
        }
        assert!(any > 40);
    }
}
