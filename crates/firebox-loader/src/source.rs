//! Where samples come from.

use std::ops::{Deref, Range};

use firebox_cache::{Samples, Shards, widens_fast};
use firebox_core::{Normaliser, TrainWindows, Window, Windows};

use crate::{AugmentedWindows, LoadError, SharedSteps};

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

    /// Valid steps of a sample, found without reading it. A source that does not know says what its
    /// longest has; its samples cannot be sorted by length then.
    fn length(&self, index: usize) -> usize {
        let _ = index;
        self.shape()[0]
    }

    /// Writes the values of a sample into the beginning of `out`, which is zero before.
    ///
    /// # Shapes
    ///
    /// - `out`: `[time, channel]`, row-major, with at least the sample's own steps; as
    ///   [`shape`](Self::shape) says unless batches are cut to their longest sample.
    ///
    /// # Errors
    ///
    /// When the sample cannot be read; [`LoadError::Sample`] carries any cause.
    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError>;

    /// The same as [`read`](Self::read) for a source whose samples differ from epoch to epoch; it is
    /// a function of the epoch and the index.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read).
    fn draw(&self, epoch: u64, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        let _ = epoch;
        self.read(index, out)
    }

    /// Writes the values of samples one after the other, each cut or padded to `steps`. What lies
    /// behind a sample's end is cleared by the loader; `out` may hold anything before.
    ///
    /// # Shapes
    ///
    /// - `out`: `[sample, steps, channel]`, row-major
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read), of the first sample that cannot be read.
    fn gather(
        &self,
        epoch: u64,
        indices: &[usize],
        steps: usize,
        out: &mut [f32],
    ) -> Result<Vec<Sample>, LoadError> {
        one_by_one(self, epoch, indices, steps, out)
    }

    /// Samples that [`gather`](Self::gather) is given at once: more than one where that is faster
    /// and no sample takes long.
    fn at_once(&self) -> usize {
        1
    }

    /// Whether samples differ from epoch to epoch.
    fn varies(&self) -> bool {
        false
    }

    /// The windows whose versions these samples are, if a device that holds those may draw them itself.
    fn fresh(&self) -> Option<&AugmentedWindows> {
        None
    }

    /// The steps that samples share, if each is a run of them and all are of one length: a set that stays in memory is these
    /// steps, then, where they are fewer than the samples have.
    fn shared_steps(&self) -> Option<SharedSteps<'_>> {
        None
    }

    /// The label of each sample in place of that of the window that it is a version of; none where windows keep theirs.
    /// All versions of a window have one label.
    fn relabels(&self) -> Option<&[u32]> {
        None
    }

    /// Whether reading a sample is copying it, or as fast: values are there as f32, or in half precision that the processor
    /// widens by whole vectors.
    fn decoded(&self) -> bool {
        false
    }

    /// Bytes of mapped files that an epoch reads; 0 where samples lie in memory.
    fn mapped_bytes(&self) -> u64 {
        0
    }

    /// Told that these samples are read soon. A source may fetch them from its disk meanwhile.
    fn will_need(&self, samples: Range<usize>) {
        let _ = samples;
    }

    /// Class names that labels index.
    fn classes(&self) -> &[String];
}

/// [`Source::gather`] by [`Source::draw`].
pub(crate) fn one_by_one<S: Source + ?Sized>(
    source: &S,
    epoch: u64,
    indices: &[usize],
    steps: usize,
    out: &mut [f32],
) -> Result<Vec<Sample>, LoadError> {
    let width = steps * source.shape()[1];
    rows(indices, width, out, |index, out| source.draw(epoch, index, out))
}

/// Samples that `read` writes into a row each, which is cleared before.
fn rows(
    indices: &[usize],
    width: usize,
    out: &mut [f32],
    read: impl Fn(usize, &mut [f32]) -> Result<Sample, LoadError>,
) -> Result<Vec<Sample>, LoadError> {
    let read = |(row, index): (usize, &usize)| {
        let out = &mut out[row * width..(row + 1) * width];
        out.fill(0.0);
        read(*index, out)
    };
    indices.iter().enumerate().map(read).collect()
}

/// Samples that `fill` makes of these windows, one after the other, each `width` numbers at most: an error if values of
/// theirs were not there.
pub(crate) fn from_windows(
    windows: &Windows,
    place: impl Fn(usize) -> usize,
    fill: impl Fn(usize, &mut [f32]) -> Sample,
    indices: &[usize],
    width: usize,
    out: &mut [f32],
) -> Result<Vec<Sample>, LoadError> {
    let samples = rows(indices, width, out, |index, out| Ok(fill(index, out)))?;
    check(windows, place, indices)?;
    Ok(samples)
}

/// An error if values of the windows that these samples are made of were not there when they were read.
pub(crate) fn check(
    windows: &Windows,
    place: impl Fn(usize) -> usize,
    indices: &[usize],
) -> Result<(), LoadError> {
    let index = indices.first().copied().unwrap_or(0);
    let series = indices.iter().map(|index| windows.windows().at(place(*index)).series as usize);
    let whole = windows.set().check_series(series);
    whole.map_err(|lost| LoadError::Sample { index, source: lost.into() })
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
    /// The windows that are used, by their place among all; none where all are.
    chosen: Option<Vec<usize>>,
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
        Self { windows, normaliser, chosen: None }
    }

    /// Some of the windows, by their places among all, in this order.
    ///
    /// # Panics
    ///
    /// When there is no window at one of the places.
    pub fn only(self, places: Vec<usize>) -> Self {
        let windows = self.windows.len();
        assert!(places.iter().all(|place| *place < windows), "places below {windows}");
        Self { chosen: Some(places), ..self }
    }

    /// The place of a sample's window among all.
    pub fn place(&self, index: usize) -> usize {
        self.chosen.as_ref().map_or(index, |chosen| chosen[index])
    }

    fn window(&self, index: usize) -> Window {
        self.windows.windows().at(self.place(index))
    }

    /// The windows that are used, in the order of the samples.
    pub(crate) fn used(&self) -> impl Iterator<Item = Window> + '_ {
        let count = self.chosen.as_ref().map_or(self.windows.len(), Vec::len);
        (0..count).map(|index| self.window(index))
    }

    /// All windows, those that are not used among them.
    pub fn windows(&self) -> &W {
        &self.windows
    }

    /// The normaliser.
    pub fn normaliser(&self) -> &Normaliser {
        &self.normaliser
    }

    /// Writes the values of a sample. Whether all of them were there is to be [checked](check).
    pub(crate) fn fill(&self, index: usize, out: &mut [f32]) -> Sample {
        let window = self.window(index);
        let channels = self.windows.set().channels().len();
        let out = &mut out[..window.length as usize * channels];
        self.normaliser.apply(self.windows.set(), &window, out);
        Sample { length: window.length, label: window.label }
    }
}

impl<W: Deref<Target = Windows> + Send + Sync> Source for NormalisedWindows<W> {
    fn len(&self) -> usize {
        self.chosen.as_ref().map_or(self.windows.len(), Vec::len)
    }

    fn shape(&self) -> [usize; 2] {
        [self.windows.longest(), self.windows.set().channels().len()]
    }

    fn length(&self, index: usize) -> usize {
        self.window(index).length as usize
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        let sample = self.fill(index, out);
        check(&self.windows, |index| self.place(index), &[index])?;
        Ok(sample)
    }

    fn gather(
        &self,
        _: u64,
        indices: &[usize],
        steps: usize,
        out: &mut [f32],
    ) -> Result<Vec<Sample>, LoadError> {
        let place = |index| self.place(index);
        let fill = |index, out: &mut [f32]| self.fill(index, out);
        from_windows(&self.windows, place, fill, indices, steps * self.shape()[1], out)
    }

    fn at_once(&self) -> usize {
        at_once(self.shape())
    }

    fn shared_steps(&self) -> Option<SharedSteps<'_>> {
        SharedSteps::of(self)
    }

    fn mapped_bytes(&self) -> u64 {
        // Of files of which windows take a part, the same part is read; windows that overlap take it once.
        let steps: u64 = (0..self.len()).map(|index| self.length(index) as u64).sum();
        let all = (self.windows.set().steps() as u64).max(1);
        let part = u128::from(steps.min(all)) * u128::from(self.windows.set().bytes_elsewhere());
        (part / u128::from(all)) as u64
    }

    fn will_need(&self, samples: Range<usize>) {
        let [_, channels] = self.shape();
        for index in samples.start..samples.end.min(self.len()) {
            let window = self.window(index);
            let steps = window.steps();
            let values = &self.windows.set().series()[window.series as usize].values;
            values.will_need(steps.start * channels..steps.end * channels);
        }
    }

    fn classes(&self) -> &[String] {
        self.windows.classes()
    }
}

impl TrainSource for NormalisedWindows<TrainWindows> {}

/// Records in mapped shards are read in the same way, whatever they were made from.
macro_rules! mapped_source {
    ($type:ty, $shape:ident) => {
        impl Source for $type {
            fn len(&self) -> usize {
                <$type>::len(self)
            }

            fn shape(&self) -> [usize; 2] {
                self.$shape()
            }

            fn length(&self, index: usize) -> usize {
                self.sample(index).0 as usize
            }

            fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
                let (length, label) = self.sample(index);
                let count = length as usize * self.$shape()[1];
                self.values(index).part(..count).write(&mut out[..count]);
                self.check_read(&[index]).map_err(|source| unreadable(index, source))?;
                Ok(Sample { length, label })
            }

            fn gather(
                &self,
                _: u64,
                indices: &[usize],
                steps: usize,
                out: &mut [f32],
            ) -> Result<Vec<Sample>, LoadError> {
                <$type>::gather(self, indices, steps, out);
                let sample = |index: &usize| {
                    let (length, label) = self.sample(*index);
                    Sample { length, label }
                };
                let samples = indices.iter().map(sample).collect();
                let first = indices.first().copied().unwrap_or(0);
                self.check_read(indices).map_err(|source| unreadable(first, source))?;
                Ok(samples)
            }

            fn at_once(&self) -> usize {
                at_once(self.$shape())
            }

            fn decoded(&self) -> bool {
                widens_fast(self.storage())
            }

            fn mapped_bytes(&self) -> u64 {
                <$type>::bytes(self)
            }

            fn will_need(&self, samples: Range<usize>) {
                <$type>::will_need(self, samples);
            }

            fn classes(&self) -> &[String] {
                <$type>::classes(self)
            }
        }
    };
}

mapped_source!(Shards, window_shape);
mapped_source!(Samples, shape);

/// Records that are copied in one go: about 2 MiB of values, so that a stop is heeded soon and what is
/// done once for a group, such as asking whether a file is still whole, costs little.
pub(crate) fn at_once([time, channel]: [usize; 2]) -> usize {
    ((512 << 10) / (time * channel).max(1)).clamp(1, 1024)
}

fn unreadable(index: usize, source: firebox_cache::CacheError) -> LoadError {
    LoadError::Sample { index, source: Box::new(source) }
}

/// Shards are made from training windows only.
impl TrainSource for Shards {}

/// Samples that may be trained on. A folder of samples does not say which part of the data it is: whoever
/// wraps it says that it holds no held-out one.
#[derive(Clone, Debug)]
pub struct TrainSamples(pub Samples);

impl Source for TrainSamples {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn shape(&self) -> [usize; 2] {
        self.0.shape()
    }

    fn length(&self, index: usize) -> usize {
        Source::length(&self.0, index)
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        Source::read(&self.0, index, out)
    }

    fn gather(
        &self,
        epoch: u64,
        indices: &[usize],
        steps: usize,
        out: &mut [f32],
    ) -> Result<Vec<Sample>, LoadError> {
        Source::gather(&self.0, epoch, indices, steps, out)
    }

    fn at_once(&self) -> usize {
        Source::at_once(&self.0)
    }

    fn decoded(&self) -> bool {
        Source::decoded(&self.0)
    }

    fn mapped_bytes(&self) -> u64 {
        self.0.mapped_bytes()
    }

    fn will_need(&self, samples: Range<usize>) {
        Source::will_need(&self.0, samples);
    }

    fn classes(&self) -> &[String] {
        Source::classes(&self.0)
    }
}

impl TrainSource for TrainSamples {}
