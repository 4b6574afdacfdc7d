//! Batches, and where they stand in the course of training.

use std::ops::Range;
use std::time::Duration;

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// Where a run stands: the next batch to be read.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Batch within the epoch, from 0.
    pub batch: u64,
}

impl Position {
    /// The first batch of the first epoch.
    pub const START: Self = Self { epoch: 0, batch: 0 };
}

/// Samples on the device, and what is known about them on the host.
#[derive(Clone, Debug)]
pub struct Batch {
    /// `[batch, time, channel]`: `time` is that of the longest sample of the source in every batch,
    /// so that a device sees one shape, or where lengths are sorted into buckets that of the bucket;
    /// steps after a sample's length are zero.
    pub inputs: Tensor<3>,
    /// Valid steps of each sample.
    pub lengths: Vec<usize>,
    /// Class of each sample.
    pub labels: Vec<Option<u32>>,
    /// Index of each sample in the source.
    pub indices: Vec<usize>,
    /// Where a run goes on after this batch.
    pub next: Position,
    /// Time that the caller stood still for this batch: until it was filled and handed to the
    /// device.
    pub wait: Duration,
    /// The part of it in which the batch was handed to the device; zero where that was done ahead. A device
    /// that copies by itself may go on copying afterwards.
    pub upload: Duration,
    /// Time that handing it to the device took, on whichever thread; zero where it is gathered there.
    pub handed: Duration,
    /// Time that a thread spent on filling the batch; zero where it is gathered on the device.
    pub fill: Duration,
}

impl Batch {
    /// Number of samples.
    pub fn len(&self) -> usize {
        self.indices.len()
    }

    /// Whether there is no sample. A loader delivers no such batch.
    pub fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }

    /// The batch in `parts` of nearly the same number of samples, in order; fewer where there are
    /// fewer samples. The whole wait is counted for the first.
    pub fn parts(&self, parts: u64) -> Vec<Self> {
        let size = (self.len() as u64).div_ceil(parts.max(1)).max(1) as usize;
        let starts = (0..self.len()).step_by(size);
        starts.map(|start| self.part(start..(start + size).min(self.len()))).collect()
    }

    /// Some of its samples.
    fn part(&self, samples: Range<usize>) -> Self {
        let Self { inputs, lengths, labels, indices, next, wait, upload, handed, fill } = self;
        // The whole of a time is counted once.
        let once = |time: &Duration| if samples.start == 0 { *time } else { Duration::ZERO };
        Self {
            inputs: match samples.len() == self.len() {
                true => inputs.clone(),
                false => inputs.clone().narrow(0, samples.start, samples.len()),
            },
            lengths: lengths[samples.clone()].to_vec(),
            labels: labels[samples.clone()].to_vec(),
            indices: indices[samples.clone()].to_vec(),
            next: *next,
            wait: once(wait),
            upload: once(upload),
            handed: once(handed),
            fill: once(fill),
        }
    }

    /// Whether all samples are as long as the batch, so that no step is padding.
    pub fn is_full_length(&self) -> bool {
        let [_, time, _] = self.inputs.dims();
        self.lengths.iter().all(|length| *length == time)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;

    #[test]
    fn parts_hold_every_sample_once_and_in_order() {
        let values: Vec<f32> = (0..7 * 2 * 3).map(|value| value as f32).collect();
        let inputs = Tensor::from_data(TensorData::new(values.clone(), [7, 2, 3]), &Device::flex());
        let batch = Batch {
            inputs,
            lengths: vec![2, 1, 2, 2, 0, 1, 2],
            labels: (0..7).map(|label| (label > 2).then_some(label)).collect(),
            indices: (10..17).collect(),
            next: Position { epoch: 1, batch: 2 },
            wait: Duration::from_secs(3),
            upload: Duration::ZERO,
            handed: Duration::ZERO,
            fill: Duration::ZERO,
        };
        for (asked, sizes) in
            [(1, vec![7]), (2, vec![4, 3]), (4, vec![2, 2, 2, 1]), (9, vec![1; 7])]
        {
            let parts = batch.parts(asked);
            assert_eq!(parts.iter().map(Batch::len).collect::<Vec<_>>(), sizes);
            let joined = Tensor::cat(parts.iter().map(|part| part.inputs.clone()).collect(), 0);
            assert_eq!(joined.into_data().try_into_vec::<f32>().unwrap(), values);
            let all =
                |of: &dyn Fn(&Batch) -> Vec<usize>| parts.iter().flat_map(of).collect::<Vec<_>>();
            assert_eq!(all(&|part| part.lengths.clone()), batch.lengths);
            assert_eq!(all(&|part| part.indices.clone()), batch.indices);
            let labels: Vec<_> = parts.iter().flat_map(|part| part.labels.clone()).collect();
            assert_eq!(labels, batch.labels);
            assert_eq!(parts.iter().map(|part| part.wait).sum::<Duration>(), batch.wait);
            assert!(parts.iter().all(|part| part.next == batch.next));
        }
    }
}
