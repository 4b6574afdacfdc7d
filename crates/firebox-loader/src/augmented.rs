//! Windows that are augmented when they are read, anew in each epoch.

use std::sync::{Mutex, PoisonError};

use firebox_cache::{Augmenter, ParameterError, PriceScale};
use firebox_core::{Augmentation, Normaliser, TrainWindows};

use crate::source::from_set;
use crate::{LoadError, Sample, Source, TrainSource};

/// Training windows with fresh versions in each epoch, beside the same ones that
/// [`Shards`](firebox_cache::Shards) keep.
///
/// An epoch holds every window's original and `versions` versions of it. In the first epoch these
/// are the versions of the cache, bit for bit if those are stored as f32; in epoch `e` they are what
/// the cache would have as versions `e × versions + 1` and on. So they have the same distribution, and
/// which thread draws one, and when, changes nothing.
///
/// Held-out windows are refused by the type, as everywhere.
#[derive(Debug)]
pub struct AugmentedWindows {
    windows: TrainWindows,
    normaliser: Normaliser,
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
        let channels = windows.set().channels();
        assert_eq!(channels, normaliser.channels(), "the normaliser was fitted on other channels");
        let augmenter = Augmenter::new(augmentation, channels, seed)?;
        let versions = augmentation.versions;
        Ok(Self { windows, normaliser, versions, augmenter, idle: Mutex::default() })
    }

    /// Samples of each window.
    fn slots(&self) -> usize {
        self.versions as usize + 1
    }

    /// The number of the version that a slot holds in an epoch; 0 is the original.
    fn version(&self, epoch: u64, slot: usize) -> u32 {
        match slot as u64 {
            0 => 0,
            // After 2³² versions of one window they come again.
            slot => {
                let drawn = epoch.wrapping_mul(u64::from(self.versions)).wrapping_add(slot - 1);
                (1 + drawn % u64::from(u32::MAX)) as u32
            }
        }
    }
}

impl Source for AugmentedWindows {
    fn len(&self) -> usize {
        self.windows.len() * self.slots()
    }

    fn shape(&self) -> [usize; 2] {
        [self.windows.longest(), self.windows.set().channels().len()]
    }

    fn length(&self, index: usize) -> usize {
        self.windows.windows()[index / self.slots()].length as usize
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        self.draw(0, index, out)
    }

    fn draw(&self, epoch: u64, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        let (number, slot) = (index / self.slots(), index % self.slots());
        let (set, window) = (self.windows.set(), &self.windows.windows()[number]);
        let [_, channels] = self.shape();
        let out = &mut out[..window.length as usize * channels];
        self.normaliser.apply(set, window, out);
        if slot > 0 {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut augmenter = idle.unwrap_or_else(|| self.augmenter.clone());
            augmenter.load(number as u64, out, PriceScale::of(&self.normaliser, set, window));
            augmenter.version(self.version(epoch, slot), out);
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(augmenter);
        }
        Ok(Sample { length: window.length, label: window.label })
    }

    fn gather(
        &self,
        epoch: u64,
        indices: &[usize],
        steps: usize,
        out: &mut Vec<f32>,
    ) -> Result<Vec<Sample>, LoadError> {
        from_set(self, self.windows.set(), epoch, indices, steps, out)
    }

    fn varies(&self) -> bool {
        self.versions > 0
    }

    fn classes(&self) -> &[String] {
        self.windows.classes()
    }
}

impl TrainSource for AugmentedWindows {}
