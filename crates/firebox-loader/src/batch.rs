//! Batches, and where they stand in the course of training.

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
    /// The part of it in which the batch was handed to the device. A device that copies by itself may
    /// go on copying afterwards.
    pub upload: Duration,
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

    /// Whether all samples are as long as the batch, so that no step is padding.
    pub fn is_full_length(&self) -> bool {
        let [_, time, _] = self.inputs.dims();
        self.lengths.iter().all(|length| *length == time)
    }
}
