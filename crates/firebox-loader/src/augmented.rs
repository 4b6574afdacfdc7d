//! Windows that are augmented when they are read, anew in each epoch.

use std::sync::{Mutex, PoisonError};

use firebox_cache::{Augmenter, ParameterError, PriceScale, Recipe};
use firebox_core::{Augmentation, Normaliser, TrainWindows};

use crate::source::{NormalisedWindows, from_set};
use crate::{LoadError, Sample, Source, TrainSource};

/// Training windows with fresh versions in each epoch, beside the same ones that
/// [`Shards`](firebox_cache::Shards) keep.
///
/// An epoch holds every window's original and `versions` versions of it. In the first epoch these
/// are the versions of the cache, bit for bit if those are stored as f32; in epoch `e` they are what
/// the cache would have as versions `e × versions + 1` and on. So they have the same distribution, and
/// which thread draws one, and when, changes nothing.
///
/// A device can hold the originals and draw the versions itself
/// ([`TrainResident::upload`](crate::TrainResident::upload)): the same ones, but for rounding.
///
/// Held-out windows are refused by the type, as everywhere.
#[derive(Debug)]
pub struct AugmentedWindows {
    originals: NormalisedWindows<TrainWindows>,
    /// The windows that are used, by their place among all; none where all are.
    chosen: Option<Vec<usize>>,
    versions: u32,
    augmenter: Augmenter,
    /// Augmenters with their scratch memory, for whichever thread reads next.
    idle: Mutex<Vec<Augmenter>>,
}

impl AugmentedWindows {
    /// Windows, the normaliser that was fitted on them, and what they are varied with. The type that
    /// `augmentation` stores values in is not used: nothing is stored.
    ///
    /// # Errors
    ///
    /// The first parameter outside its range.
    ///
    /// # Panics
    ///
    /// When the windows have other channels than the normaliser was fitted on.
    pub fn new(
        windows: TrainWindows,
        normaliser: Normaliser,
        augmentation: &Augmentation,
        seed: u64,
    ) -> Result<Self, ParameterError> {
        let originals = NormalisedWindows::new(windows, normaliser);
        let channels = originals.windows().set().channels();
        let augmenter = Augmenter::new(augmentation, channels, seed)?;
        let versions = augmentation.versions;
        Ok(Self { originals, chosen: None, versions, augmenter, idle: Mutex::default() })
    }

    /// Some of the windows, by their places among all, in this order. Each has the versions that it has
    /// among all.
    ///
    /// # Panics
    ///
    /// When there is no window at one of the places.
    pub fn only(self, places: Vec<usize>) -> Self {
        let windows = self.originals.len();
        assert!(places.iter().all(|place| *place < windows), "places below {windows}");
        Self { chosen: Some(places), ..self }
    }

    /// Number of windows, without their versions.
    pub fn windows(&self) -> usize {
        self.chosen.as_ref().map_or(self.originals.len(), Vec::len)
    }

    /// The windows without their versions.
    pub(crate) fn originals(&self) -> Originals<'_> {
        Originals(self)
    }

    /// What is drawn of versions.
    pub(crate) fn recipe(&self) -> &Recipe {
        self.augmenter.recipe()
    }

    /// Versions of each window in an epoch, beside the original.
    pub(crate) fn versions(&self) -> u32 {
        self.versions
    }

    /// The place of a window among all, which its versions depend on.
    pub(crate) fn number(&self, place: usize) -> usize {
        self.chosen.as_ref().map_or(place, |chosen| chosen[place])
    }

    /// The scale that the prices of the window with a number share.
    pub(crate) fn scale(&self, number: usize) -> PriceScale {
        let windows = self.originals.windows();
        let window = &windows.windows()[number];
        PriceScale::of(self.originals.normaliser(), windows.set(), window)
    }

    /// Samples of each window.
    fn slots(&self) -> usize {
        self.versions as usize + 1
    }
}

/// The number of the version that a slot holds in an epoch of `versions`; 0 is the original.
pub(crate) fn version(versions: u32, epoch: u64, slot: usize) -> u32 {
    match slot as u64 {
        0 => 0,
        // After 2³² versions of one window they come again.
        slot => {
            let drawn = epoch.wrapping_mul(u64::from(versions)).wrapping_add(slot - 1);
            (1 + drawn % u64::from(u32::MAX)) as u32
        }
    }
}

/// The originals alone.
pub(crate) struct Originals<'a>(&'a AugmentedWindows);

impl Source for Originals<'_> {
    fn len(&self) -> usize {
        self.0.windows()
    }

    fn shape(&self) -> [usize; 2] {
        self.0.originals.shape()
    }

    fn length(&self, index: usize) -> usize {
        self.0.originals.length(self.0.number(index))
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        self.0.originals.read(self.0.number(index), out)
    }

    fn gather(
        &self,
        epoch: u64,
        indices: &[usize],
        steps: usize,
        out: &mut Vec<f32>,
    ) -> Result<Vec<Sample>, LoadError> {
        from_set(self, self.0.originals.windows().set(), epoch, indices, steps, out)
    }

    fn classes(&self) -> &[String] {
        self.0.originals.classes()
    }
}

impl TrainSource for Originals<'_> {}

impl Source for AugmentedWindows {
    fn len(&self) -> usize {
        self.windows() * self.slots()
    }

    fn shape(&self) -> [usize; 2] {
        self.originals.shape()
    }

    fn length(&self, index: usize) -> usize {
        self.originals.length(self.number(index / self.slots()))
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        self.draw(0, index, out)
    }

    fn draw(&self, epoch: u64, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        let (number, slot) = (self.number(index / self.slots()), index % self.slots());
        let sample = self.originals.read(number, out)?;
        if slot > 0 {
            let [_, channels] = self.shape();
            let out = &mut out[..sample.length as usize * channels];
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut augmenter = idle.unwrap_or_else(|| self.augmenter.clone());
            augmenter.load(number as u64, out, self.scale(number));
            augmenter.version(version(self.versions, epoch, slot), out);
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(augmenter);
        }
        Ok(sample)
    }

    fn gather(
        &self,
        epoch: u64,
        indices: &[usize],
        steps: usize,
        out: &mut Vec<f32>,
    ) -> Result<Vec<Sample>, LoadError> {
        from_set(self, self.originals.windows().set(), epoch, indices, steps, out)
    }

    fn varies(&self) -> bool {
        self.versions > 0
    }

    fn fresh(&self) -> Option<&Self> {
        Some(self)
    }

    fn classes(&self) -> &[String] {
        self.originals.classes()
    }
}

impl TrainSource for AugmentedWindows {}
