//! Samples with other labels, such as clusters.

use std::ops::Range;
use std::sync::Arc;

use crate::{AugmentedWindows, LoadError, Sample, SharedSteps, Source, TrainSource};

/// Samples of another source with labels of their own, such as clusters.
#[derive(Clone)]
pub struct Relabelled {
    source: Arc<dyn TrainSource>,
    labels: Vec<u32>,
    classes: Vec<String>,
}

impl Relabelled {
    /// The samples of `source`, each with the label at its place, an index into `classes`.
    ///
    /// # Panics
    ///
    /// When there is not one label for each sample, or one is no index into `classes`.
    pub fn new(source: Arc<dyn TrainSource>, labels: Vec<u32>, classes: Vec<String>) -> Self {
        assert_eq!(source.len(), labels.len(), "one label for each sample");
        let known = labels.iter().all(|label| (*label as usize) < classes.len());
        assert!(known, "labels below {}", classes.len());
        Self { source, labels, classes }
    }
}

impl Source for Relabelled {
    fn len(&self) -> usize {
        self.source.len()
    }

    fn shape(&self) -> [usize; 2] {
        self.source.shape()
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        let sample = self.source.read(index, out)?;
        Ok(Sample { label: Some(self.labels[index]), ..sample })
    }

    fn length(&self, index: usize) -> usize {
        self.source.length(index)
    }

    fn draw(&self, epoch: u64, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        let sample = self.source.draw(epoch, index, out)?;
        Ok(Sample { label: Some(self.labels[index]), ..sample })
    }

    fn gather(
        &self,
        epoch: u64,
        indices: &[usize],
        steps: usize,
        out: &mut [f32],
    ) -> Result<Vec<Sample>, LoadError> {
        let mut samples = self.source.gather(epoch, indices, steps, out)?;
        for (sample, index) in samples.iter_mut().zip(indices) {
            sample.label = Some(self.labels[*index]);
        }
        Ok(samples)
    }

    fn at_once(&self) -> usize {
        self.source.at_once()
    }

    fn varies(&self) -> bool {
        self.source.varies()
    }

    fn fresh(&self) -> Option<&AugmentedWindows> {
        self.source.fresh()
    }

    fn shared_steps(&self) -> Option<SharedSteps<'_>> {
        self.source.shared_steps().map(|steps| steps.relabelled(&self.labels))
    }

    fn relabels(&self) -> Option<&[u32]> {
        Some(&self.labels)
    }

    fn decoded(&self) -> bool {
        self.source.decoded()
    }

    fn mapped_bytes(&self) -> u64 {
        self.source.mapped_bytes()
    }

    fn will_need(&self, samples: Range<usize>) {
        self.source.will_need(samples);
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }
}

impl TrainSource for Relabelled {}
