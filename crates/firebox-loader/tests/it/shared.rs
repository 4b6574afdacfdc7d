//! Windows that overlap lie as the steps that they share, on the device and in memory, and give the batches that the same
//! windows give when they are streamed, bit for bit.

use std::sync::Arc;

use burn::tensor::Device;
use firebox_core::*;
use firebox_loader::{
    AugmentedWindows, Batch, HeldOutLoader, HeldOutResident, LoadError, LoaderConfig,
    NormalisedWindows, Place, Position, Relabelled, Resident, Room, Shuffle, Source, TrainLoader,
    TrainResident, TrainSource, bytes_of, place,
};

const CHANNELS: usize = 3;

/// Series of several lengths, one of them with gaps, and windows of 16 steps.
fn parts(stride: usize) -> Split {
    split_by(&WindowRule { length: 16, stride, whole: false }, &SplitRule::time(0.2, 0.1))
}

fn split_by(windows: &WindowRule, rule: &SplitRule) -> Split {
    let mut draws = Stream::new(4, "shared").draws();
    let mut series = vec![];
    for (name, steps) in [("a", 301), ("b", 40), ("c", 177), ("d", 35), ("e", 52), ("f", 47)] {
        let values = (0..steps * CHANNELS).map(|_| 100.0 + 10.0 * draws.normal()).collect();
        series.push(Series::regular(name, 0, 60_000_000, values, CHANNELS));
    }
    if !windows.whole {
        series[2].segments = vec![0..50, 50..62, 62..177];
    }
    let channels = ["x", "y", "z"].map(|name| Channel::new(name, Role::Other)).to_vec();
    let set = Arc::new(SeriesSet::new(channels, vec![], series).unwrap());
    split(&set, windows, rule, &Labels::None).unwrap()
}

fn normaliser(kind: Normalisation, parts: &Split) -> Normaliser {
    Normaliser::fit(kind, &parts.train).unwrap()
}

/// The bits of a batch, and what it says of its samples.
type Content = (Vec<u32>, [usize; 3], Vec<usize>, Vec<Option<u32>>, Vec<usize>, Position);

fn content(batch: Result<Batch, LoadError>) -> Content {
    let Batch { inputs, lengths, labels, indices, next, .. } = batch.unwrap();
    let shape = inputs.dims();
    let values = inputs.into_data().try_to_vec::<f32>().unwrap();
    let bits = values.into_iter().map(f32::to_bits).collect();
    (bits, shape, lengths, labels, indices, next)
}

fn epochs(loader: &TrainLoader) -> Vec<Content> {
    (0..2).flat_map(|epoch| loader.epoch(Position { epoch, batch: 0 })).map(content).collect()
}

fn orders() -> [LoaderConfig; 3] {
    let plain = LoaderConfig { batch_size: 16, seed: 5, ..LoaderConfig::default() };
    let blocks = Shuffle::Blocks { block: 8, window: 50 };
    [plain, LoaderConfig { shuffle: blocks, ..plain }, LoaderConfig { tokens: 200, ..plain }]
}

/// Both resident sets give the batches of the stream, and take so many values of each channel.
fn check(source: impl TrainSource + 'static, steps: usize) {
    let device = Device::default();
    let source = Arc::new(source);
    let sets =
        [TrainResident::upload(source.as_ref(), &device), TrainResident::read(source.as_ref())];
    let bytes = (steps * CHANNELS * size_of::<f32>()) as u64;
    assert_eq!(bytes_of(source.as_ref()), bytes);
    for set in sets.map(Result::unwrap) {
        assert_eq!((set.len(), set.bytes()), (source.len(), bytes), "{set:?}");
        for config in orders() {
            let streamed = TrainLoader::new(source.clone(), config, device.clone()).unwrap();
            let resident = TrainLoader::resident(set.clone(), config, device.clone()).unwrap();
            assert_eq!(epochs(&resident), epochs(&streamed), "{set:?} {config:?}");
        }
        // One by one, and again.
        let mut a = vec![0.0; source.shape()[0] * CHANNELS];
        let mut b = a.clone();
        let twice = set.repeated(2);
        for index in [0, 1, source.len() - 1] {
            let sample = source.read(index, &mut a).unwrap();
            assert_eq!(twice.read(source.len() + index, &mut b).unwrap(), sample);
            let same = a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{index}");
        }
    }
}

/// Steps that are in any of these windows.
fn covered(windows: &Windows) -> usize {
    let steps =
        |window: Window| window.steps().map(|step| (window.series, step)).collect::<Vec<_>>();
    windows.windows().iter().flat_map(steps).collect::<std::collections::BTreeSet<_>>().len()
}

#[test]
fn batches_of_shared_steps_are_those_of_the_windows() {
    for kind in [Normalisation::None, Normalisation::Standard, Normalisation::Robust] {
        for stride in [1, 3, 6] {
            let parts = parts(stride);
            let steps = covered(&parts.train);
            assert!(steps > 250 && parts.train.len() > 2 * steps / 16, "{steps}");
            let source = NormalisedWindows::new(parts.train.clone(), normaliser(kind, &parts));
            check(source, steps);
        }
    }
}

#[test]
fn some_windows_in_any_order_share_what_they_cover() {
    let parts = parts(1);
    let all = parts.train.len();
    // From the last to the first, with holes, and one twice.
    let mut places: Vec<usize> = (0..all).rev().filter(|place| place % 40 < 25).collect();
    places.push(places[0]);
    let used: std::collections::BTreeSet<_> = places
        .iter()
        .map(|place| parts.train.windows().at(*place))
        .flat_map(|window| window.steps().map(move |step| (window.series, step)))
        .collect();
    let source =
        NormalisedWindows::new(parts.train.clone(), normaliser(Normalisation::Standard, &parts));
    check(source.clone().only(places.clone()), used.len());
    // Other labels are those of the samples.
    let labels: Vec<u32> = (0..places.len()).map(|index| index as u32 % 5).collect();
    let names = (0..5).map(|cluster| format!("cluster {cluster}")).collect();
    check(Relabelled::new(Arc::new(source.only(places)), labels, names), used.len());
}

#[test]
fn windows_that_share_little_or_differ_lie_one_by_one() {
    let rule = |stride, whole| WindowRule { length: 16, stride, whole };
    let time = SplitRule::time(0.2, 0.1);
    let series = SplitRule::Series { validation: 0.3, test: 0.3, seed: 1 };
    // Windows side by side, or nearly; values that depend on their window; windows of several lengths.
    for (rule, split, kind) in [
        (rule(16, false), &time, Normalisation::Standard),
        (rule(9, false), &time, Normalisation::Standard),
        (rule(1, false), &time, Normalisation::WindowStandard),
        (WindowRule { length: 64, ..rule(1, true) }, &series, Normalisation::Standard),
    ] {
        let parts = split_by(&rule, split);
        let source = NormalisedWindows::new(parts.train.clone(), normaliser(kind, &parts));
        check(source, parts.train.len() * parts.train.longest());
    }
}

#[test]
fn held_out_windows_share_their_steps_too() {
    let parts = parts(1);
    let source =
        NormalisedWindows::new(parts.test.clone(), normaliser(Normalisation::Standard, &parts));
    let (device, config) = (Device::default(), orders()[0]);
    let set = HeldOutResident::upload(&source, &device).unwrap();
    assert_eq!(bytes_of(&source), (covered(&parts.test) * CHANNELS * size_of::<f32>()) as u64);
    let resident = HeldOutLoader::resident(set, config, device.clone()).unwrap();
    let streamed = HeldOutLoader::new(Arc::new(source), config, device).unwrap();
    let all = |loader: &HeldOutLoader| loader.batches().map(content).collect::<Vec<_>>();
    assert_eq!(all(&resident), all(&streamed));
}

#[test]
fn the_place_is_decided_by_what_is_kept() {
    let parts = parts(1);
    let source =
        NormalisedWindows::new(parts.train.clone(), normaliser(Normalisation::Standard, &parts));
    let kept = bytes_of(&source);
    // Three times what is kept, and too little for the windows one by one.
    let room = |free| Room { device: Some(free), ..Room::default() };
    assert!(3 * kept < (source.len() * 16 * CHANNELS * size_of::<f32>()) as u64);
    let (chosen, why) = place(Resident::Auto, &source, room(3 * kept)).unwrap();
    assert_eq!(chosen, Place::Device);
    assert!(why.contains("MB of steps that samples share fit into"), "{why}");
    assert_eq!(place(Resident::Auto, &source, room(2 * kept)).unwrap().0, Place::Stream);
    // Whoever draws versions holds what they are drawn with beside the originals: here a deviation of each channel.
    let settings = Augmentation { versions: 2, ..Augmentation::default() };
    let own = source.normaliser().clone();
    let online = AugmentedWindows::new(parts.train.clone(), own, &settings, 7).unwrap();
    let with_tables = kept + (source.len() * CHANNELS * size_of::<f32>()) as u64;
    assert_eq!(
        place(Resident::Auto, &online, room(5 * with_tables / 2 + 1)).unwrap().0,
        Place::Device
    );
    assert_eq!(
        place(Resident::Auto, &online, room(5 * with_tables / 2 - 1)).unwrap().0,
        Place::Stream
    );
}

#[test]
fn versions_are_drawn_of_shared_originals() {
    // Prices, whose order depends on the maps of all windows, which are one here.
    let mut draws = Stream::new(9, "bars").draws();
    let mut price = 100.0;
    let bars = (0..600).flat_map(|_| {
        let [open, close] = [price, price + draws.normal()];
        price = close;
        let (high, low) = (
            open.max(close) + f64::from(draws.uniform()),
            open.min(close) - f64::from(draws.uniform()),
        );
        [open, high, low, close]
    });
    let series = Series::regular("bars", 0, 60_000_000, bars.collect(), 4);
    let roles = [("o", Role::Open), ("h", Role::High), ("l", Role::Low), ("c", Role::Close)];
    let channels = roles.map(|(name, role)| Channel::new(name, role)).to_vec();
    let set = Arc::new(SeriesSet::new(channels, vec![], vec![series]).unwrap());
    let rule = WindowRule { length: 16, stride: 1, whole: false };
    let parts = split(&set, &rule, &SplitRule::time(0.1, 0.1), &Labels::None).unwrap();
    let settings = Augmentation { versions: 2, ..Augmentation::default() };
    let device = Device::default();
    for (kind, shared) in [(Normalisation::Robust, true), (Normalisation::WindowRelative, false)] {
        let online =
            AugmentedWindows::new(parts.train.clone(), normaliser(kind, &parts), &settings, 7)
                .unwrap();
        let set = TrainResident::upload(&online, &device).unwrap();
        let steps = if shared { covered(&parts.train) } else { parts.train.len() * 16 };
        assert_eq!(set.bytes(), (steps * 4 * size_of::<f32>()) as u64);
        let resident = TrainLoader::resident(set, orders()[0], device.clone()).unwrap();
        let threads = TrainLoader::new(Arc::new(online), orders()[0], device.clone()).unwrap();
        for (drawn, expected) in epochs(&resident).iter().zip(&epochs(&threads)) {
            assert_eq!((&drawn.2, &drawn.4), (&expected.2, &expected.4));
            for (a, b) in drawn.0.iter().zip(&expected.0) {
                let [a, b] = [*a, *b].map(f32::from_bits);
                assert!((a - b).abs() <= 4e-6 * b.abs().max(1.0), "{kind:?}: {a} {b}");
            }
        }
    }
}
