//! The samples of a workload as those of real data lie and are read: in mapped shards of half precision, from which each
//! window is widened, normalised by its own steps, and varied anew in each epoch. For whoever asks how many threads a
//! step needs; what a step computes with them is as good as noise.

use std::sync::Arc;

use firebox_cache::{SampleSpec, Samples};
use firebox_core::{
    Augmentation, Channel, Key, Labels, Normalisation, Normaliser, Origin, Role, Series, SeriesSet,
    Silent, SplitRule, StepLabels, Storage, TrainWindows, WindowRule, split,
};
use firebox_data::DataError;
use firebox_loader::{AugmentedWindows, LoadError, Sample, Source, TrainSource};
use tempfile::TempDir;

use super::noise::Noise;
use crate::error::{PipelineError, at};

/// Size of a shard in bytes, as `firebox data convert` makes them.
const SHARD_BYTES: usize = 64 << 20;

/// Windows of a temporary folder that come again and again.
pub(super) struct Stored {
    windows: AugmentedWindows,
    /// Samples of an epoch.
    samples: usize,
    /// Holds the shards.
    _folder: TempDir,
}

impl Stored {
    /// Writes the different samples of `noise` down, each of which has so many versions in an epoch beside the original.
    /// Not for tokens, which half precision does not hold.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub(super) fn of(noise: &Noise, versions: u32) -> Result<Self, PipelineError> {
        let folder = tempfile::tempdir().map_err(at(&std::env::temp_dir()))?;
        let [time, channel] = noise.shape();
        let about = |index| noise.read(index, &mut vec![0.0; time * channel]);
        let about: Vec<Sample> =
            (0..noise.different()).map(about).collect::<Result<_, LoadError>>()?;
        let spec = SampleSpec {
            key: Key::builder("bench", 1).finish(),
            source: "noise".to_owned(),
            shape: [time, channel],
            storage: Storage::F16,
            classes: noise.classes().to_vec(),
            samples: about.iter().map(|sample| (sample.length, sample.label)).collect(),
            names: vec![],
            shard_bytes: SHARD_BYTES,
        };
        let samples = Samples::write(folder.path(), &spec, &Silent, |index, out| {
            let start = out.len();
            out.resize(start + time * channel, 0.0);
            noise.read(index, &mut out[start..]).map(|_| ()).map_err(PipelineError::from)
        })?;
        let windows = windows(&samples)?;
        let normaliser = Normaliser::fit(Normalisation::WindowStandard, &windows)?;
        let augmentation = Augmentation { versions, ..Augmentation::default() };
        let windows = AugmentedWindows::new(windows, normaliser, &augmentation, 1337)?;
        Ok(Self { windows, samples: noise.len(), _folder: folder })
    }

    /// Where the sample at a place of the epoch lies.
    fn place(&self, index: usize) -> usize {
        index % self.windows.len()
    }
}

/// A training window of each sample, whole.
fn windows(samples: &Samples) -> Result<TrainWindows, PipelineError> {
    let [time, channel] = samples.shape();
    let series = samples.series_values().into_iter().enumerate().map(|(index, values)| Series {
        name: index.to_string(),
        time: (0..time as i64).collect(),
        values,
        labels: samples.sample(index).1.map_or(StepLabels::None, StepLabels::Whole),
        segments: std::iter::once(0..time).collect(),
        origin: Origin::Unassigned,
        ..Series::default()
    });
    let channels = (0..channel).map(|channel| Channel::new(channel.to_string(), Role::Other));
    let classes = samples.classes().to_vec();
    let labels = if classes.is_empty() { Labels::None } else { Labels::Last };
    let set = SeriesSet::looked_at(channels.collect(), classes, series.collect());
    let set = Arc::new(set.map_err(DataError::from)?);
    let rule = WindowRule { length: time, stride: 1, whole: true };
    let all = SplitRule::Series { validation: 0.0, test: 0.0, seed: 0 };
    Ok(split(&set, &rule, &all, &labels)?.train)
}

impl Source for Stored {
    fn len(&self) -> usize {
        self.samples
    }

    fn shape(&self) -> [usize; 2] {
        self.windows.shape()
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        self.windows.read(self.place(index), out)
    }

    fn draw(&self, epoch: u64, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        self.windows.draw(epoch, self.place(index), out)
    }

    fn gather(
        &self,
        epoch: u64,
        indices: &[usize],
        steps: usize,
        out: &mut [f32],
    ) -> Result<Vec<Sample>, LoadError> {
        let places: Vec<usize> = indices.iter().map(|index| self.place(*index)).collect();
        self.windows.gather(epoch, &places, steps, out)
    }

    fn at_once(&self) -> usize {
        self.windows.at_once()
    }

    fn varies(&self) -> bool {
        self.windows.varies()
    }

    fn mapped_bytes(&self) -> u64 {
        self.windows.mapped_bytes()
    }

    fn classes(&self) -> &[String] {
        self.windows.classes()
    }
}

impl TrainSource for Stored {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::config::Sizes;
    use crate::bench::{BenchConfig, Workload, measure};
    use crate::device::ChosenDevice;

    #[test]
    fn samples_are_mapped_in_half_precision_normalised_and_varied() {
        let config = BenchConfig { steps: 9, warmup: 1, ..BenchConfig::new(Workload::Mlp) };
        let sizes = Sizes { batch: 6, length: 20, hidden: 0, samples: 6 };
        let noise = Noise::normal(sizes, &config, 3).with_labels(2);
        let stored = Stored::of(&noise, 4).unwrap();
        assert_eq!((stored.len(), stored.shape()), (noise.len(), noise.shape()));
        assert_eq!((stored.classes(), stored.mapped_bytes()), (noise.classes(), 6 * 20 * 3 * 2));
        assert!(stored.varies());
        let slots = stored.windows.len() / 6;
        let (mut original, mut version, mut varied) = (vec![0.0; 60], vec![0.0; 60], 0);
        for window in 0..6 {
            let first = stored.draw(0, window * slots, &mut original).unwrap();
            assert_eq!(first, noise.read(window, &mut version).unwrap());
            for channel in 0..3 {
                let values = original.iter().skip(channel).step_by(3);
                assert!((values.sum::<f32>() / 20.0).abs() < 1e-3, "{original:?}");
            }
            assert_ne!(original, version, "not normalised");
            // Whether a version differs is drawn, too.
            for slot in 1..slots {
                stored.draw(0, window * slots + slot, &mut version).unwrap();
                varied += usize::from(original != version);
            }
        }
        assert!(varied > 0);
        assert!(!Stored::of(&noise, 0).unwrap().varies());
    }

    #[test]
    fn a_workload_trains_on_them() {
        let small = BenchConfig {
            batch: Some(4),
            steps: 3,
            warmup: 1,
            length: Some(16),
            stored: true,
            ..BenchConfig::new(Workload::Mlp)
        };
        for workers in [0, 2] {
            let config = BenchConfig { workers, ..small };
            let measured = measure(&config, &ChosenDevice::named("cpu"), &Silent).unwrap();
            assert_eq!((measured.times.len(), measured.losses.len()), (3, 4));
            assert!(measured.losses.iter().all(|loss| loss.is_finite()), "{:?}", measured.losses);
        }
    }
}
