//! The data of the workloads: random numbers, labels and tokens, drawn once. No file is read.

use std::sync::Arc;

use firebox_core::Stream;
use firebox_loader::{LoadError, Sample, Source, TrainSource};

use super::config::{BenchConfig, Sizes};

/// Some samples that come again and again. Copies share them.
#[derive(Clone, Debug)]
pub(super) struct Noise {
    values: Arc<[f32]>,
    labels: Option<Vec<u32>>,
    classes: Vec<String>,
    shape: [usize; 2],
    pub(super) batch: usize,
    /// Different samples.
    samples: usize,
    steps: usize,
}

/// Steps of this many samples between two that follow each other: a prime, so that all are met.
const STRIDE: usize = 7919;

impl Noise {
    /// Standard normal numbers in so many channels, without labels.
    pub(super) fn normal(sizes: Sizes, config: &BenchConfig, channels: usize) -> Self {
        let mut draws = Stream::new(1337, "noise").draws();
        let count = sizes.samples * sizes.length * channels;
        let values = (0..count).map(|_| draws.normal() as f32).collect();
        Self::of(values, sizes, config, channels)
    }

    /// Tokens from 0 to below `vocabulary`, as numbers in windows of `[time, 1]`. Every integer up
    /// to 2^24 is exact in f32.
    pub(super) fn tokens(sizes: Sizes, config: &BenchConfig, vocabulary: usize) -> Self {
        let count = sizes.samples * sizes.length;
        let values = integers("tokens", vocabulary, count).map(|token| token as f32).collect();
        Self::of(values, sizes, config, 1)
    }

    fn of(values: Vec<f32>, sizes: Sizes, config: &BenchConfig, channels: usize) -> Self {
        let Sizes { batch, length, samples, .. } = sizes;
        let steps = (config.steps + config.warmup) as usize;
        let shape = [length, channels];
        Self { values: values.into(), labels: None, classes: vec![], shape, batch, samples, steps }
    }

    /// Samples that differ, which the first places of an epoch have if they are as many as a batch.
    pub(super) fn different(&self) -> usize {
        self.samples
    }

    /// Each of the different samples once, and how often an epoch has them that is as long as this or a little longer, and
    /// whose batches are all full.
    pub(super) fn once(&self) -> (Self, usize) {
        let full = self.batch / common(self.batch, self.samples);
        let times = self.len().div_ceil(self.samples).next_multiple_of(full);
        (Self { batch: self.samples, steps: 1, ..self.clone() }, times)
    }

    /// Where the sample at a place of the epoch lies. More samples than a batch are met all over
    /// memory.
    fn place(&self, index: usize) -> usize {
        if self.samples == self.batch {
            index % self.samples
        } else {
            index * STRIDE % self.samples
        }
    }

    fn sample(&self, sample: usize) -> Sample {
        let label = self.labels.as_ref().map(|labels| labels[sample]);
        Sample { length: self.shape[0] as u32, label }
    }

    /// The same with a label from 0 to below `classes` for each sample.
    pub(super) fn with_labels(self, classes: usize) -> Self {
        let labels = integers("labels", classes, self.samples).map(|label| label as u32).collect();
        let classes = (0..classes).map(|class| class.to_string()).collect();
        Self { labels: Some(labels), classes, ..self }
    }
}

/// The largest number that divides both.
fn common(one: usize, other: usize) -> usize {
    if other == 0 { one } else { common(other, one % other) }
}

/// Uniform integers from 0 to below `bound`.
fn integers(purpose: &str, bound: usize, count: usize) -> impl Iterator<Item = usize> {
    let mut draws = Stream::new(1337, purpose).draws();
    (0..count).map(move |_| draws.below(bound as u64) as usize)
}

impl Source for Noise {
    fn len(&self) -> usize {
        self.batch * self.steps
    }

    fn shape(&self) -> [usize; 2] {
        self.shape
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        let count = self.shape[0] * self.shape[1];
        let sample = self.place(index);
        out[..count].copy_from_slice(&self.values[sample * count..][..count]);
        Ok(self.sample(sample))
    }

    fn gather(
        &self,
        _: u64,
        indices: &[usize],
        steps: usize,
        out: &mut [f32],
    ) -> Result<Vec<Sample>, LoadError> {
        let [length, channels] = self.shape;
        let kept = steps.min(length) * channels;
        let copy = |(index, out): (&usize, &mut [f32])| {
            let sample = self.place(*index);
            let (values, padding) = out.split_at_mut(kept);
            values.copy_from_slice(&self.values[sample * length * channels..][..kept]);
            padding.fill(0.0);
            self.sample(sample)
        };
        // A chunk of nothing cannot be; there is a step and a channel.
        let rows = out.chunks_exact_mut((steps * channels).max(1));
        Ok(indices.iter().zip(rows).map(copy).collect())
    }

    /// Reading is copying here.
    fn at_once(&self) -> usize {
        256
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }
}

impl TrainSource for Noise {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Workload;

    #[test]
    fn labels_and_tokens_cover_their_ranges_and_come_again() {
        let config = BenchConfig { steps: 2, warmup: 1, ..BenchConfig::new(Workload::BertBase) };
        let sizes = Sizes { batch: 64, length: 128, hidden: 768, samples: 64 };
        let noise = Noise::tokens(sizes, &config, 30_522).with_labels(3);
        assert_eq!((noise.len(), noise.shape()), (3 * 64, [128, 1]));
        assert_eq!(noise.classes(), ["0", "1", "2"]);
        let read = |index| {
            let mut out = vec![0.0; 128];
            let sample = noise.read(index, &mut out).unwrap();
            (sample, out)
        };
        let (mut seen, mut largest) = ([false; 3], 0.0_f32);
        for index in 0..64 {
            let (sample, tokens) = read(index);
            seen[sample.label.unwrap() as usize] = true;
            for token in &tokens {
                assert!(token.fract() == 0.0 && (0.0..30_522.0).contains(token), "{token}");
                largest = largest.max(*token);
            }
            assert_eq!(read(index + 64), (sample, tokens));
        }
        assert!(seen == [true; 3] && largest > 30_000.0);
    }
    #[test]
    fn more_samples_than_a_batch_are_all_met() {
        let config = BenchConfig { steps: 50, warmup: 0, ..BenchConfig::new(Workload::LstmMae) };
        let sizes = Sizes { batch: 2, length: 3, hidden: 8, samples: 100 };
        let noise = Noise::normal(sizes, &config, 4);
        let met: std::collections::BTreeSet<usize> =
            (0..noise.len()).map(|index| noise.place(index)).collect();
        assert_eq!((noise.len(), met.len()), (100, 100));
        let (once, times) = noise.once();
        assert_eq!((once.len(), once.place(99), times), (100, 99, 1));
        // Batches of 6 out of 4 or 9 samples, all full.
        for (samples, steps, expected) in [(4, 1, 3), (4, 3, 6), (9, 1, 2), (9, 4, 4), (6, 5, 5)] {
            let config = BenchConfig { steps, warmup: 0, ..config };
            let sizes = Sizes { batch: 6, samples, ..sizes };
            let (once, times) = Noise::normal(sizes, &config, 4).once();
            let all = once.len() * times;
            assert_eq!((once.len(), times), (samples, expected));
            assert!(all >= 6 * steps as usize && all.is_multiple_of(6));
        }
    }
}
