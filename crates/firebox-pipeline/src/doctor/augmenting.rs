//! Whether it pays that versions of windows are made before training: the time that one takes to be made, and to be read
//! from the cache.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use firebox_cache::{Augmenter, PriceScale, Shards, Store, augmented_key};
use firebox_core::{
    Augmentation, Channel, Key, Labels, Normalisation, Normaliser, Role, Series, SeriesSet, Silent,
    SplitRule, Stream, TrainWindows, WindowRule, split,
};

use super::checklist::median;
use crate::error::{PipelineError, at};

/// Bars of the walk that windows are cut out of.
const BARS: usize = 3000;
/// Steps and channels of a window, as R1 has them.
const SHAPE: [usize; 2] = [105, 4];
/// Seed of the walk and of the versions.
const SEED: u64 = 1337;
/// Times that all versions are made and read, in turn.
const ROUNDS: usize = 3;

/// Microseconds of one thread for a version of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Augmenting {
    /// To make it, with R1's augmentations.
    pub(super) made: f64,
    /// To read it from the cache, whose files are in memory.
    pub(super) read: f64,
}

impl Augmenting {
    /// Makes versions of windows of a random walk, keeps them in a folder of its own, and reads them.
    pub(super) fn measure() -> Result<Self, PipelineError> {
        let train = windows()?;
        let normaliser = Normaliser::fit(Normalisation::default(), &train)?;
        let augmentation = Augmentation::default();
        let folder = tempfile::tempdir().map_err(at(&std::env::temp_dir()))?;
        let store = Store::open(folder.path())?;
        let data = Key::builder("doctor", 1).field("bars", BARS.to_le_bytes()).finish();
        let key = augmented_key(data, &augmentation, SEED);
        let shards = store.augmented(key, &train, &normaliser, &augmentation, SEED, &Silent)?;
        let mut augmenter = Augmenter::new(&augmentation, train.set().channels(), SEED)?;
        let (mut made, mut read) = (vec![], vec![]);
        for _ in 0..ROUNDS {
            made.push(make(&mut augmenter, &shards, augmentation.versions));
            read.push(read_all(&shards));
        }
        Ok(Self { made: median(made), read: median(read) })
    }
}

/// Training windows of a random walk of bars.
fn windows() -> Result<TrainWindows, PipelineError> {
    let mut draws = Stream::new(SEED, "walk").draws();
    let mut price = 1000.0;
    let mut values = Vec::with_capacity(BARS * SHAPE[1]);
    for _ in 0..BARS {
        let open: f64 = price;
        price += draws.normal();
        values.extend([open, open.max(price) + 0.5, open.min(price) - 0.5, price]);
    }
    let roles = [Role::Open, Role::High, Role::Low, Role::Close];
    let names = ["open", "high", "low", "close"];
    let channels = names.iter().zip(roles).map(|(name, role)| Channel::new(*name, role)).collect();
    let series = Series::regular("walk", 0, 60_000_000, values, SHAPE[1]);
    let set = match SeriesSet::new(channels, vec![], vec![series]) {
        Ok(set) => Arc::new(set),
        Err(error) => unreachable!("one series of whole bars is a set: {error}"),
    };
    let rule = WindowRule { length: SHAPE[0], stride: 4, whole: false };
    Ok(split(&set, &rule, &SplitRule::time(0.0, 0.1), &Labels::None)?.train)
}

/// Makes the versions of the windows whose originals are in the cache; microseconds for each.
fn make(augmenter: &mut Augmenter, shards: &Shards, versions: u32) -> f64 {
    let mut original = vec![0.0_f32; SHAPE[0] * SHAPE[1]];
    let mut out = original.clone();
    let (mut seconds, mut count) = (0.0, 0);
    for index in 0..shards.len() {
        let record = shards.read(index, &mut original);
        if record.version > 0 {
            continue;
        }
        let begun = Instant::now();
        augmenter.load(u64::from(record.window), &original, PriceScale::SHARED);
        for version in 1..=versions {
            augmenter.version(version, black_box(&mut out));
        }
        seconds += begun.elapsed().as_secs_f64();
        count += versions;
    }
    1e6 * seconds / f64::from(count.max(1))
}

/// Reads all records; microseconds for each.
fn read_all(shards: &Shards) -> f64 {
    let mut out = vec![0.0_f32; SHAPE[0] * SHAPE[1]];
    let begun = Instant::now();
    for index in 0..shards.len() {
        shards.read(index, black_box(&mut out));
    }
    1e6 * begun.elapsed().as_secs_f64() / shards.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_faster_than_it_is_made() {
        let Augmenting { made, read } = Augmenting::measure().unwrap();
        assert!(read > 0.0 && made > read, "{made} µs to make, {read} µs to read");
    }
}
