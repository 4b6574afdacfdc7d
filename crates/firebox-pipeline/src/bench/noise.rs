//! The data of the workloads: random numbers, labels and tokens, drawn once. No file is read.

use firebox_core::Stream;
use firebox_loader::{LoadError, Sample, Source, TrainSource};

use super::BenchConfig;

/// One batch that comes again at every step.
#[derive(Debug)]
pub(super) struct Noise {
    values: Vec<f32>,
    labels: Option<Vec<u32>>,
    classes: Vec<String>,
    shape: [usize; 2],
    pub(super) batch: usize,
    steps: usize,
}

impl Noise {
    /// Standard normal numbers of a shape of `[time, channel]`, without labels.
    pub(super) fn normal(batch: usize, config: &BenchConfig, shape: [usize; 2]) -> Self {
        let mut draws = Stream::new(1337, "noise").draws();
        let count = batch * shape[0] * shape[1];
        let values = (0..count).map(|_| draws.normal() as f32).collect();
        let steps = (config.steps + config.warmup) as usize;
        Self { values, labels: None, classes: vec![], shape, batch, steps }
    }

    /// Tokens from 0 to below `vocabulary`, as numbers in windows of `[time, 1]`. Every integer up
    /// to 2^24 is exact in f32.
    pub(super) fn tokens(
        batch: usize,
        config: &BenchConfig,
        time: usize,
        vocabulary: usize,
    ) -> Self {
        let values = integers("tokens", vocabulary, batch * time).map(|token| token as f32);
        let values = values.collect();
        let steps = (config.steps + config.warmup) as usize;
        Self { values, labels: None, classes: vec![], shape: [time, 1], batch, steps }
    }

    /// The same with a label from 0 to below `classes` for each sample.
    pub(super) fn with_labels(self, classes: usize) -> Self {
        let labels = integers("labels", classes, self.batch).map(|label| label as u32).collect();
        let classes = (0..classes).map(|class| class.to_string()).collect();
        Self { labels: Some(labels), classes, ..self }
    }
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
        let sample = index % self.batch;
        out[..count].copy_from_slice(&self.values[sample * count..][..count]);
        let label = self.labels.as_ref().map(|labels| labels[sample]);
        Ok(Sample { length: self.shape[0] as u32, label })
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }
}

impl TrainSource for Noise {}

#[cfg(test)]
mod tests {
    use firebox_core::Precision;

    use super::*;
    use crate::bench::Workload;

    #[test]
    fn labels_and_tokens_cover_their_ranges_and_come_again() {
        let config = BenchConfig {
            workload: Workload::LstmMae,
            precision: Precision::F32,
            batch: None,
            steps: 2,
            warmup: 1,
            evaluate: false,
        };
        let noise = Noise::tokens(64, &config, 128, 30_522).with_labels(3);
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
}
