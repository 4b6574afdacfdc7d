//! Where samples come from.

use std::ops::Deref;

use firebox_cache::Shards;
use firebox_core::{Normaliser, TrainWindows, Windows};

use crate::LoadError;

/// What a sample is, beside its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sample {
    /// Valid steps.
    pub length: u32,
    /// Class, an index into [`Source::classes`].
    pub label: Option<u32>,
}

/// Samples that can be read in any order, from several threads at once.
pub trait Source: Send + Sync {
    /// Number of samples.
    fn len(&self) -> usize;

    /// Whether there is no sample.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Steps of the longest sample, and channels: `[time, channel]`.
    fn shape(&self) -> [usize; 2];

    /// Writes the values of a sample into the beginning of `out`, which is zero before.
    ///
    /// # Shapes
    ///
    /// - `out`: `[time, channel]`, row-major, as [`shape`](Self::shape) says.
    ///
    /// # Errors
    ///
    /// When the sample cannot be read; [`LoadError::Sample`] carries any cause.
    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError>;

    /// Class names that labels index.
    fn classes(&self) -> &[String];
}

/// A source that may be trained on, and so be shuffled. Held-out windows are none:
///
/// ```compile_fail
/// use std::sync::Arc;
/// use firebox_core::{HeldOutWindows, Normaliser};
/// use firebox_loader::{LoaderConfig, NormalisedWindows, TrainLoader};
///
/// fn shuffle(test: HeldOutWindows, normaliser: Normaliser) {
///     let source = Arc::new(NormalisedWindows::new(test, normaliser));
///     let _ = TrainLoader::new(source, LoaderConfig::default(), Default::default());
/// }
/// ```
pub trait TrainSource: Source {}

/// Windows that are normalised when they are read.
#[derive(Clone, Debug)]
pub struct NormalisedWindows<W> {
    windows: W,
    normaliser: Normaliser,
}

impl<W: Deref<Target = Windows>> NormalisedWindows<W> {
    /// Windows, [`TrainWindows`] or [`HeldOutWindows`](firebox_core::HeldOutWindows), and the normaliser that was fitted on the
    /// training windows of the same set.
    ///
    /// # Panics
    ///
    /// When the windows have other channels than the normaliser was fitted on.
    pub fn new(windows: W, normaliser: Normaliser) -> Self {
        let channels = windows.set().channels();
        assert_eq!(channels, normaliser.channels(), "the normaliser was fitted on other channels");
        Self { windows, normaliser }
    }

    /// The windows.
    pub fn windows(&self) -> &W {
        &self.windows
    }

    /// The normaliser.
    pub fn normaliser(&self) -> &Normaliser {
        &self.normaliser
    }
}

impl<W: Deref<Target = Windows> + Send + Sync> Source for NormalisedWindows<W> {
    fn len(&self) -> usize {
        self.windows.len()
    }

    fn shape(&self) -> [usize; 2] {
        [self.windows.longest(), self.windows.set().channels().len()]
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        let window = &self.windows.windows()[index];
        let [_, channels] = self.shape();
        let out = &mut out[..window.length as usize * channels];
        self.normaliser.apply(self.windows.set(), window, out);
        Ok(Sample { length: window.length, label: window.label })
    }

    fn classes(&self) -> &[String] {
        self.windows.classes()
    }
}

impl TrainSource for NormalisedWindows<TrainWindows> {}

/// Samples of another source with labels of their own, such as clusters.
#[derive(Clone)]
pub struct Relabelled<S> {
    source: S,
    labels: Vec<u32>,
    classes: Vec<String>,
}

impl<S: Source> Relabelled<S> {
    /// The samples of `source`, each with the label at its place, an index into `classes`.
    ///
    /// # Panics
    ///
    /// When there is not one label for each sample, or one is no index into `classes`.
    pub fn new(source: S, labels: Vec<u32>, classes: Vec<String>) -> Self {
        assert_eq!(source.len(), labels.len(), "one label for each sample");
        let known = labels.iter().all(|label| (*label as usize) < classes.len());
        assert!(known, "labels below {}", classes.len());
        Self { source, labels, classes }
    }
}

impl<S: Source> Source for Relabelled<S> {
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

    fn classes(&self) -> &[String] {
        &self.classes
    }
}

impl<S: TrainSource> TrainSource for Relabelled<S> {}

impl Source for Shards {
    fn len(&self) -> usize {
        Shards::len(self)
    }

    fn shape(&self) -> [usize; 2] {
        self.window_shape()
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        let record = Shards::read(self, index, out);
        Ok(Sample { length: record.length, label: record.label })
    }

    fn classes(&self) -> &[String] {
        Shards::classes(self)
    }
}

/// Shards are made from training windows only.
impl TrainSource for Shards {}
