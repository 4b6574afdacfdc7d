//! Windows that are augmented when they are read, anew in each epoch.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use firebox_cache::{Augmenter, ParameterError, PriceScale, Recipe};
use firebox_core::{Augmentation, Normaliser, TrainWindows};

use crate::fresh::SCALE_WIDTH;
use crate::source::{NormalisedWindows, check, from_windows};
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
    versions: Versions,
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
        let versions = Versions(augmentation.versions);
        Ok(Self { originals, versions, augmenter, idle: Mutex::default() })
    }

    /// Some of the windows, by their places among all, in this order. Each has the versions that it has
    /// among all.
    ///
    /// # Panics
    ///
    /// When there is no window at one of the places.
    pub fn only(self, places: Vec<usize>) -> Self {
        Self { originals: self.originals.only(places), ..self }
    }

    /// The windows without their versions.
    pub(crate) fn originals(&self) -> &NormalisedWindows<TrainWindows> {
        &self.originals
    }

    /// Bytes of what a device that draws versions holds of each original beside its values.
    pub(crate) fn bytes_beside(&self) -> u64 {
        let recipe = self.recipe();
        let own_scale = self.originals.normaliser().depends_on_window() && recipe.bars().is_some();
        let numbers = recipe.channels() + if own_scale { SCALE_WIDTH } else { 0 };
        (self.originals.len() * numbers * size_of::<f32>()) as u64
    }

    /// What is drawn of versions.
    pub(crate) fn recipe(&self) -> &Recipe {
        self.augmenter.recipe()
    }

    /// Versions of each window in an epoch, beside the original.
    pub(crate) fn versions(&self) -> Versions {
        self.versions
    }

    /// The place among all of the window that a sample is a version of.
    fn place(&self, index: usize) -> usize {
        self.originals.place(index / self.versions.slots())
    }

    /// Writes the values of a sample of an epoch. Whether all that they are made of was there is to be [checked](check).
    fn fill(&self, epoch: u64, index: usize, out: &mut [f32]) -> Sample {
        let original = index / self.versions.slots();
        let sample = self.originals.fill(original, out);
        let version = self.versions.of(epoch, index);
        if version > 0 {
            let [_, channels] = self.shape();
            let out = &mut out[..sample.length as usize * channels];
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut augmenter = idle.unwrap_or_else(|| self.augmenter.clone());
            let place = self.originals.place(original);
            augmenter.load(place as u64, out, self.scale(place));
            augmenter.version(version, out);
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(augmenter);
        }
        sample
    }

    /// The scale that the prices of the window at a place among all share.
    pub(crate) fn scale(&self, place: usize) -> PriceScale {
        let windows = self.originals.windows();
        let window = &windows.windows().at(place);
        PriceScale::of(self.originals.normaliser(), windows.set(), window)
    }
}

/// How many versions of each window an epoch has, beside its original.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Versions(u32);

impl Versions {
    /// Samples of each window.
    pub(crate) fn slots(self) -> usize {
        self.0 as usize + 1
    }

    /// The number of the version that a sample of an epoch is; 0 is the original.
    pub(crate) fn of(self, epoch: u64, index: usize) -> u32 {
        match (index % self.slots()) as u64 {
            0 => 0,
            // After 2³² versions of one window they come again.
            slot => {
                let drawn = epoch.wrapping_mul(u64::from(self.0)).wrapping_add(slot - 1);
                (1 + drawn % u64::from(u32::MAX)) as u32
            }
        }
    }
}

impl Source for AugmentedWindows {
    fn len(&self) -> usize {
        self.originals.len() * self.versions.slots()
    }

    fn shape(&self) -> [usize; 2] {
        self.originals.shape()
    }

    fn length(&self, index: usize) -> usize {
        self.originals.length(index / self.versions.slots())
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        self.draw(0, index, out)
    }

    fn draw(&self, epoch: u64, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        let sample = self.fill(epoch, index, out);
        check(self.originals.windows(), |index| self.place(index), &[index])?;
        Ok(sample)
    }

    fn gather(
        &self,
        epoch: u64,
        indices: &[usize],
        steps: usize,
        out: &mut [f32],
    ) -> Result<Vec<Sample>, LoadError> {
        let place = |index| self.place(index);
        let fill = |index, out: &mut [f32]| self.fill(epoch, index, out);
        let width = steps * self.shape()[1];
        from_windows(self.originals.windows(), place, fill, indices, width, out)
    }

    fn mapped_bytes(&self) -> u64 {
        self.originals.mapped_bytes()
    }

    fn will_need(&self, samples: Range<usize>) {
        let slots = self.versions.slots();
        self.originals.will_need(samples.start / slots..samples.end.div_ceil(slots));
    }

    fn varies(&self) -> bool {
        self.versions.slots() > 1
    }

    fn fresh(&self) -> Option<&Self> {
        Some(self)
    }

    fn classes(&self) -> &[String] {
        self.originals.classes()
    }
}

impl TrainSource for AugmentedWindows {}
