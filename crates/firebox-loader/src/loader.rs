//! The loaders: which samples each batch holds, and their way to the device.

use std::sync::Arc;
use std::time::Instant;

use burn::tensor::{Device, Tensor, TensorData};
use firebox_core::Stream;
use serde::{Deserialize, Serialize};

use crate::batch::{Batch, Position};
use crate::prefetch::{Indices, Prefetch};
use crate::{LoadError, Source, TrainSource};

/// More threads or batches ahead than these are a slip of the finger.
const MOST: usize = 1024;

/// How batches are loaded. Only `batch_size` and `seed` change what they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoaderConfig {
    /// Samples of a batch. The last batch of an epoch has what is left.
    pub batch_size: usize,
    /// Threads that fill batches; with 0, the calling thread fills each when it is asked for.
    pub workers: usize,
    /// Batches that the threads work ahead of the one in use, at least one for each thread. Each
    /// takes `batch × time × channel` × 4 bytes of memory.
    pub prefetch: usize,
    /// Seed of the order of samples.
    pub seed: u64,
}

impl Default for LoaderConfig {
    fn default() -> Self {
        Self { batch_size: 512, workers: 2, prefetch: 4, seed: 1337 }
    }
}

impl LoaderConfig {
    /// Checks what can be checked without a source.
    ///
    /// # Errors
    ///
    /// A batch size of zero, and more threads or batches ahead than any machine has use for.
    pub fn validate(&self) -> Result<(), LoadError> {
        if self.batch_size == 0 {
            return Err(LoadError::BatchSize);
        }
        for (key, found) in [("workers", self.workers), ("prefetch", self.prefetch)] {
            if found > MOST {
                return Err(LoadError::TooMany { key, found, most: MOST });
            }
        }
        Ok(())
    }

    fn check(&self, source: &dyn Source) -> Result<(), LoadError> {
        self.validate()?;
        if source.is_empty() {
            return Err(LoadError::Empty);
        }
        if u32::try_from(source.len()).is_err() {
            return Err(LoadError::TooLarge(source.len()));
        }
        Ok(())
    }

    fn batches(&self, samples: usize) -> u64 {
        samples.div_ceil(self.batch_size) as u64
    }

    /// The places within an epoch that a batch takes.
    fn places(&self, samples: usize, batch: u64) -> std::ops::Range<usize> {
        let start = batch as usize * self.batch_size;
        start..(start + self.batch_size).min(samples)
    }
}

/// Batches to train on, in another order in each epoch.
///
/// The order of an epoch is a shuffle by the `"order"` stream of the seed and by the epoch: it does
/// not depend on workers, prefetch, the device or the batches read before.
#[derive(Clone)]
pub struct TrainLoader {
    source: Arc<dyn TrainSource>,
    config: LoaderConfig,
    device: Device,
}

impl TrainLoader {
    /// A loader of these samples onto this device.
    ///
    /// # Errors
    ///
    /// When a setting is out of range, or the source has no sample or too many.
    pub fn new(
        source: Arc<dyn TrainSource>,
        config: LoaderConfig,
        device: Device,
    ) -> Result<Self, LoadError> {
        config.check(source.as_ref())?;
        Ok(Self { source, config, device })
    }

    /// The batches from `position` to the end of its epoch. None if the epoch has ended there.
    pub fn epoch(&self, position: Position) -> Batches {
        let order = self.order(position.epoch);
        let (config, samples) = (self.config, self.samples());
        let indices = move |batch| {
            order[config.places(samples, batch)].iter().map(|index| *index as usize).collect()
        };
        let source: Arc<dyn Source> = Arc::clone(&self.source) as Arc<dyn Source>;
        Batches::start(source, &self.config, &self.device, Arc::new(indices), position)
    }

    /// Batches of an epoch, the last partial one included.
    pub fn batches_per_epoch(&self) -> u64 {
        self.config.batches(self.samples())
    }

    /// Samples of an epoch.
    pub fn samples(&self) -> usize {
        self.source.len()
    }

    /// Where the samples come from.
    pub fn source(&self) -> &Arc<dyn TrainSource> {
        &self.source
    }

    /// How batches are loaded.
    pub fn config(&self) -> &LoaderConfig {
        &self.config
    }

    /// The device that batches are handed to.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The position after the batch at `position`: the next batch, or the next epoch's first.
    pub fn after(&self, position: Position) -> Position {
        after(position, self.batches_per_epoch())
    }

    fn order(&self, epoch: u64) -> Vec<u32> {
        // `check` has made sure that indices fit.
        let mut order: Vec<u32> = (0..self.samples() as u32).collect();
        Stream::new(self.config.seed, "order").substream(epoch).draws().shuffle(&mut order);
        order
    }
}

/// Batches to measure on, in the order of the source: there is no way to change it.
#[derive(Clone)]
pub struct HeldOutLoader {
    source: Arc<dyn Source>,
    config: LoaderConfig,
    device: Device,
}

impl HeldOutLoader {
    /// A loader of these samples onto this device. The seed is not used.
    ///
    /// # Errors
    ///
    /// When a setting is out of range, or the source has no sample or too many.
    pub fn new(
        source: Arc<dyn Source>,
        config: LoaderConfig,
        device: Device,
    ) -> Result<Self, LoadError> {
        config.check(source.as_ref())?;
        Ok(Self { source, config, device })
    }

    /// All batches, the last partial one included.
    pub fn batches(&self) -> Batches {
        let (config, samples) = (self.config, self.samples());
        let indices = Arc::new(move |batch| config.places(samples, batch).collect());
        let source = Arc::clone(&self.source);
        Batches::start(source, &self.config, &self.device, indices, Position::START)
    }

    /// Number of batches.
    pub fn batches_per_epoch(&self) -> u64 {
        self.config.batches(self.samples())
    }

    /// Number of samples.
    pub fn samples(&self) -> usize {
        self.source.len()
    }

    /// Where the samples come from.
    pub fn source(&self) -> &Arc<dyn Source> {
        &self.source
    }
}

/// Batches one after the other. Dropping it stops its threads.
///
/// An error is the last item: it comes in its batch's turn, after the batches before it.
pub struct Batches {
    state: State,
    shape: [usize; 2],
    device: Device,
    epoch: u64,
    per_epoch: u64,
}

enum State {
    Running(Prefetch),
    /// Threads could not be started.
    Failed(Option<LoadError>),
}

impl Batches {
    fn start(
        source: Arc<dyn Source>,
        config: &LoaderConfig,
        device: &Device,
        indices: Indices,
        position: Position,
    ) -> Self {
        let (shape, per_epoch) = (source.shape(), config.batches(source.len()));
        let batches = position.batch.min(per_epoch)..per_epoch;
        let started = Prefetch::start(source, indices, batches, config.workers, config.prefetch);
        let state = started.map_or_else(|error| State::Failed(Some(error)), State::Running);
        Self { state, shape, device: device.clone(), epoch: position.epoch, per_epoch }
    }
}

impl Iterator for Batches {
    type Item = Result<Batch, LoadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let start = Instant::now();
        let (number, filled) = match &mut self.state {
            State::Running(prefetch) => prefetch.next()?,
            State::Failed(error) => return error.take().map(Err),
        };
        Some(filled.map(|filled| {
            let [time, channel] = self.shape;
            let data = TensorData::new(filled.values, [filled.indices.len(), time, channel]);
            // On the caller's thread: a device orders work by thread, and a tensor that another
            // thread uploaded would have to be waited for.
            let inputs = Tensor::from_data(data, &self.device);
            Batch {
                inputs,
                lengths: filled.lengths,
                labels: filled.labels,
                indices: filled.indices,
                next: after(Position { epoch: self.epoch, batch: number }, self.per_epoch),
                wait: start.elapsed(),
            }
        }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.state {
            State::Running(prefetch) => {
                let remaining = usize::try_from(prefetch.remaining()).unwrap_or(usize::MAX);
                // An error ends the batches early.
                (remaining.min(1), Some(remaining))
            }
            State::Failed(error) => {
                let count = usize::from(error.is_some());
                (count, Some(count))
            }
        }
    }
}

impl std::iter::FusedIterator for Batches {}

fn after(position: Position, per_epoch: u64) -> Position {
    if position.batch + 1 < per_epoch {
        Position { batch: position.batch + 1, ..position }
    } else {
        Position { epoch: position.epoch + 1, batch: 0 }
    }
}
