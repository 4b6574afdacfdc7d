//! The two sources: shards of the cache, and windows that are normalised when read.

use std::sync::Arc;

use burn::tensor::Device;
use firebox_cache::{Store, augmented_key};
use firebox_core::*;
use firebox_loader::{
    HeldOutLoader, LoaderConfig, NormalisedWindows, Position, Source, TrainLoader,
};

/// Labelled series of unequal length, one of them held out.
fn parts() -> Split {
    let series = [30, 12, 9, 20, 17].iter().enumerate().map(|(index, steps)| {
        let mut draws = Stream::new(index as u64, "values").draws();
        let values = (0..steps * 2).map(|_| draws.normal()).collect();
        Series {
            labels: StepLabels::Whole(index as u32 % 2),
            origin: if index == 0 { Origin::Test } else { Origin::Train },
            ..Series::regular(format!("s{index}"), 0, 1, values, 2)
        }
    });
    let channels = vec![Channel::new("a", Role::Other), Channel::new("b", Role::Other)];
    let classes = vec!["even".to_owned(), "odd".to_owned()];
    let set = Arc::new(SeriesSet::new(channels, classes, series.collect()).unwrap());
    let rule = WindowRule { length: 16, stride: 1, whole: true };
    split(
        &set,
        &rule,
        &SplitRule::Given { validation: 0.0, seed: 0, equal: EqualPolicy::Keep },
        &Labels::Last,
    )
    .unwrap()
}

#[test]
fn windows_and_the_originals_of_shards_are_the_same_samples() {
    let parts = parts();
    let normaliser = Normaliser::fit(Normalisation::Standard, &parts.train).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let augmentation = Augmentation { versions: 2, ..Augmentation::default() };
    let key = augmented_key(Key::builder("test", 1).finish(), &augmentation, 1);
    let shards =
        store.augmented(key, &parts.train, &normaliser, &augmentation, 1, &Silent).unwrap();
    let windows = NormalisedWindows::new(parts.train, normaliser);
    assert_eq!(Source::len(&shards), 3 * windows.len());
    assert_eq!(shards.shape(), windows.shape());
    assert_eq!(Source::classes(&shards), windows.classes());
    let [time, channel] = windows.shape();
    // Shards are mapped; the series of these windows lie in memory.
    let each = if augmentation.storage == Storage::F32 { 4 } else { 2 };
    let all = (3 * windows.len() * time * channel * each) as u64;
    assert_eq!((windows.mapped_bytes(), shards.mapped_bytes()), (0, shards.bytes()));
    assert!((all..all + 4096).contains(&shards.bytes()), "{} {all}", shards.bytes());
    for index in 0..windows.len() {
        let (mut a, mut b) = (vec![0.0; time * channel], vec![0.0; time * channel]);
        let sample = windows.read(index, &mut a).unwrap();
        assert_eq!(Source::read(&shards, 3 * index, &mut b).unwrap(), sample);
        assert_eq!(a, b);
        assert_eq!(sample.length as usize, windows.windows().windows().at(index).length as usize);
    }
    // All versions of all windows are trained on, once an epoch.
    let config = LoaderConfig { batch_size: 5, ..LoaderConfig::default() };
    let loader = TrainLoader::new(Arc::new(shards), config, Device::default()).unwrap();
    let mut indices: Vec<_> =
        loader.epoch(Position::START).flat_map(|batch| batch.unwrap().indices).collect();
    indices.sort_unstable();
    assert_eq!(indices, (0..12).collect::<Vec<_>>());
}

#[test]
fn held_out_windows_are_scaled_as_training_windows_were() {
    let parts = parts();
    let normaliser = Normaliser::fit(Normalisation::Standard, &parts.train).unwrap();
    let window = parts.test.windows().at(0);
    let mut expected = vec![0.0; 32];
    normaliser.apply(parts.test.set(), &window, &mut expected);
    let source = Arc::new(NormalisedWindows::new(parts.test, normaliser));
    let loader = HeldOutLoader::new(source, LoaderConfig::default(), Device::default()).unwrap();
    let batch = loader.batches().next().unwrap().unwrap();
    assert_eq!(batch.inputs.to_data().try_to_vec::<f32>().unwrap(), expected);
    assert_eq!((batch.lengths, batch.labels), (vec![16], vec![Some(0)]));
}
