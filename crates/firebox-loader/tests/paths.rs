//! The ways of a sample to its batch: streamed, in memory, on the device, by blocks, in buckets,
//! augmented on the way. The same settings give the same batches whichever way they come.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use burn::tensor::Device;
use firebox_cache::{Store, augmented_key, widens_fast};
use firebox_core::*;
use firebox_loader::{
    AugmentedWindows, Batch, HeldOutLoader, HeldOutResident, LoadError, LoaderConfig, Masking,
    Place, Position, Relabelled, Resident, Room, Sample, Shuffle, Source, TrainLoader,
    TrainResident, TrainSource, fits_beside, place,
};

const LONGEST: usize = 37;

/// Samples of 0 to 37 steps of two channels, whose values name them.
struct Ragged(usize);

impl Ragged {
    fn steps(index: usize) -> usize {
        index * 7919 % (LONGEST + 1)
    }
}

impl Source for Ragged {
    fn len(&self) -> usize {
        self.0
    }

    fn shape(&self) -> [usize; 2] {
        [LONGEST, 2]
    }

    fn length(&self, index: usize) -> usize {
        Self::steps(index)
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        let length = Self::steps(index);
        for (at, out) in out[..length * 2].iter_mut().enumerate() {
            *out = (index * 100 + at + 1) as f32;
        }
        Ok(Sample { length: length as u32, label: Some(index as u32 % 3) })
    }

    fn classes(&self) -> &[String] {
        &[]
    }
}

impl TrainSource for Ragged {}

/// The same samples, three times.
struct Thrice(Ragged);

impl Source for Thrice {
    fn len(&self) -> usize {
        3 * self.0.len()
    }

    fn shape(&self) -> [usize; 2] {
        self.0.shape()
    }

    fn length(&self, index: usize) -> usize {
        self.0.length(index % self.0.len())
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        self.0.read(index % self.0.len(), out)
    }

    fn classes(&self) -> &[String] {
        self.0.classes()
    }
}

impl TrainSource for Thrice {}

type Content = (Vec<f32>, [usize; 3], Vec<usize>, Vec<Option<u32>>, Vec<usize>, Position);

fn content(batch: Result<Batch, LoadError>) -> Content {
    let Batch { inputs, lengths, labels, indices, next, .. } = batch.unwrap();
    let shape = inputs.dims();
    (inputs.into_data().try_to_vec::<f32>().unwrap(), shape, lengths, labels, indices, next)
}

/// Two epochs, one behind the other.
fn epochs(loader: &TrainLoader) -> Vec<Content> {
    (0..2).flat_map(|epoch| loader.epoch(Position { epoch, batch: 0 })).map(content).collect()
}

fn config() -> LoaderConfig {
    LoaderConfig { batch_size: 16, workers: 2, prefetch: 3, seed: 5, ..LoaderConfig::default() }
}

fn loader(source: impl TrainSource + 'static, config: LoaderConfig) -> TrainLoader {
    TrainLoader::new(Arc::new(source), config, Device::default()).unwrap()
}

/// Every way of ordering.
fn orders() -> [LoaderConfig; 8] {
    let blocks = |block, window| Shuffle::Blocks { block, window };
    [
        config(),
        LoaderConfig { shuffle: blocks(8, 50), ..config() },
        LoaderConfig { buckets: 8, ..config() },
        LoaderConfig { buckets: 8, tokens: 100, ..config() },
        LoaderConfig { tokens: 100, ..config() },
        LoaderConfig { buckets: 8, shuffle: blocks(8, 50), ..config() },
        LoaderConfig { buckets: 8, tokens: 100, shuffle: blocks(5, 41), ..config() },
        // Windows that complete no batch.
        LoaderConfig { buckets: 8, shuffle: blocks(1, 2), ..config() },
    ]
}

#[test]
fn every_place_threads_and_resume_give_the_same_batches() {
    let device = Device::default();
    for config in orders() {
        let expected = epochs(&loader(Ragged(203), LoaderConfig { workers: 0, ..config }));
        for (workers, prefetch, upload_ahead) in
            [(1, 0, 0), (2, 4, 0), (5, 1, 0), (3, 40, 0), (0, 0, 1), (2, 4, 2), (1, 1, 7)]
        {
            let threads = LoaderConfig { workers, prefetch, upload_ahead, ..config };
            assert_eq!(epochs(&loader(Ragged(203), threads)), expected, "{threads:?}");
        }
        let on_device = TrainResident::upload(&Ragged(203), &device).unwrap();
        let in_memory = TrainResident::read(&Ragged(203)).unwrap();
        assert_eq!((on_device.place(), in_memory.place()), (Place::Device, Place::Memory));
        for set in [on_device, in_memory] {
            let resident = TrainLoader::resident(set, config, device.clone()).unwrap();
            assert_eq!(epochs(&resident), expected, "{config:?}");
        }
        // From every batch on, with threads that waited elsewhere.
        for upload_ahead in [0, 2] {
            let loader = loader(Ragged(203), LoaderConfig { upload_ahead, ..config });
            let per_epoch = loader.batches_per_epoch();
            assert_eq!(expected.len() as u64, 2 * per_epoch);
            for from in (0..per_epoch).rev() {
                let rest = loader.epoch(Position { epoch: 1, batch: from }).map(content);
                let rest: Vec<_> = rest.collect();
                assert_eq!(rest, expected[(per_epoch + from) as usize..], "{config:?} from {from}");
            }
        }
    }
}

#[test]
fn repeated_samples_are_those_of_a_set_that_has_them_so_often() {
    let device = Device::default();
    for config in orders() {
        let expected = epochs(&loader(Thrice(Ragged(203)), config));
        let sets =
            [TrainResident::upload(&Ragged(203), &device), TrainResident::read(&Ragged(203))];
        for set in sets {
            let set = set.unwrap().repeated(3);
            assert_eq!((set.len(), set.bytes()), (609, 203 * 2 * LONGEST as u64 * 4));
            let resident = TrainLoader::resident(set, config, device.clone()).unwrap();
            assert_eq!(epochs(&resident), expected, "{config:?}");
        }
    }
    let none = TrainResident::read(&Ragged(203)).unwrap().repeated(0);
    assert!(TrainLoader::resident(none, config(), device).is_err());
}

#[test]
fn held_out_batches_are_the_same_however_far_ahead_they_are_handed_over() {
    let batches = |workers, upload_ahead| -> Vec<_> {
        let config = LoaderConfig { workers, upload_ahead, ..config() };
        let held_out = HeldOutLoader::new(Arc::new(Ragged(203)), config, Device::default());
        held_out.unwrap().batches().map(content).collect()
    };
    let expected = batches(0, 0);
    assert_eq!(expected.len(), 13);
    for (workers, ahead) in [(0, 2), (1, 1), (3, 2), (2, 40)] {
        assert_eq!(batches(workers, ahead), expected, "{workers} {ahead}");
    }
}

#[test]
fn held_out_samples_on_the_device_give_the_same_batches_again_and_again() {
    let device = Device::default();
    for buckets in [0, 8] {
        let config = LoaderConfig { buckets, upload_ahead: 2, ..config() };
        let streamed = HeldOutLoader::new(Arc::new(Ragged(203)), config, device.clone()).unwrap();
        let set = HeldOutResident::upload(&Ragged(203), &device).unwrap();
        let resident = HeldOutLoader::resident(set, config, device.clone()).unwrap();
        assert_eq!(resident.samples(), 203);
        assert_eq!(resident.batches_per_epoch(), streamed.batches_per_epoch());
        for _ in 0..2 {
            let all = |loader: &HeldOutLoader| loader.batches().map(content).collect::<Vec<_>>();
            assert_eq!(all(&resident), all(&streamed), "{buckets}");
        }
    }
}

#[test]
fn batches_of_any_size_are_the_same_in_whichever_queue_they_are_copied() {
    // Below and above what is copied in the queue of the steps.
    for samples in [1, 4_000, 40_000] {
        let batches = |upload_ahead| -> Vec<_> {
            let config = LoaderConfig { batch_size: samples, upload_ahead, ..config() };
            let held_out = HeldOutLoader::new(Arc::new(Ragged(samples)), config, Device::default());
            held_out.unwrap().batches().map(content).collect()
        };
        assert!(batches(2) == batches(0), "{samples}");
    }
}

#[test]
fn batches_are_handed_over_ahead_and_no_further() {
    let reads = Arc::new(AtomicUsize::new(0));
    let source = Slow { reads: Arc::clone(&reads), fails_at: 1000, dies_at: 1000 };
    let config = LoaderConfig { workers: 0, upload_ahead: 2, ..config() };
    let loader = loader(source, config);
    let mut batches = loader.epoch(Position::START);
    let first = batches.next().unwrap().unwrap();
    let reaches = |count: usize| {
        let patience = Instant::now();
        while reads.load(Ordering::Relaxed) < count {
            assert!(patience.elapsed() < Duration::from_secs(30), "nothing is handed over");
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(reads.load(Ordering::Relaxed), count, "more is handed over");
    };
    // The one in use, and two.
    reaches(3 * 16);
    let second = batches.next().unwrap().unwrap();
    reaches(4 * 16);
    assert_eq!((first.upload, second.upload), (Duration::ZERO, Duration::ZERO));
}

#[test]
fn loaders_that_are_left_midway_end_at_once() {
    for workers in [0, 1, 3] {
        for taken in 0..4 {
            let reads = Arc::new(AtomicUsize::new(0));
            let source = Slow { reads, fails_at: 1000, dies_at: 1000 };
            let config = LoaderConfig { workers, upload_ahead: 2, ..config() };
            let loader = loader(source, config);
            let mut batches = loader.epoch(Position::START);
            for _ in 0..taken {
                batches.next().unwrap().unwrap();
            }
            let left = Instant::now();
            drop(batches);
            drop(loader);
            assert!(left.elapsed() < Duration::from_secs(2), "{workers} {taken}");
        }
    }
}

#[test]
fn every_order_holds_every_sample_once_an_epoch_and_differs_between_epochs() {
    for config in orders() {
        let loader = loader(Ragged(203), config);
        let order = |epoch| -> Vec<usize> {
            loader.epoch(Position { epoch, batch: 0 }).flat_map(|batch| content(batch).4).collect()
        };
        let (first, second) = (order(0), order(1));
        assert_ne!(first, second);
        for mut order in [first, second] {
            order.sort_unstable();
            assert_eq!(order, (0..203).collect::<Vec<_>>(), "{config:?}");
        }
    }
}

#[test]
fn buckets_pad_to_their_own_length_and_keep_to_the_tokens() {
    let config = LoaderConfig { buckets: 8, tokens: 100, ..config() };
    let batches = epochs(&loader(Ragged(500), config));
    let (mut padded, mut valid) = (0, 0);
    for (values, [size, steps, channels], lengths, _, indices, _) in &batches {
        assert!(steps.is_multiple_of(8) || *steps == LONGEST, "{steps}");
        assert!(size * steps <= 100, "{size} samples of {steps} steps");
        let longest = lengths.iter().max().unwrap();
        assert!((*longest).max(1).next_multiple_of(8).min(LONGEST) == *steps, "{longest} {steps}");
        padded += size * steps;
        valid += lengths.iter().sum::<usize>();
        for (row, index) in indices.iter().enumerate() {
            for at in 0..steps * channels {
                let known = at < lengths[row] * channels;
                let expected = if known { (index * 100 + at + 1) as f32 } else { 0.0 };
                assert_eq!(values[row * steps * channels + at], expected);
            }
        }
    }
    // Padded to the longest, half of all steps would be padding.
    assert!((valid as f64) > 0.8 * padded as f64, "{valid} of {padded}");
    // Held-out samples keep their order; their batches are cut to their longest.
    let held_out = HeldOutLoader::new(Arc::new(Ragged(100)), config, Device::default()).unwrap();
    let batches: Vec<_> = held_out.batches().map(content).collect();
    let indices: Vec<_> = batches.iter().flat_map(|batch| batch.4.clone()).collect();
    assert_eq!(indices, (0..100).collect::<Vec<_>>());
    for (_, [_, steps, _], lengths, ..) in batches {
        assert!(steps >= *lengths.iter().max().unwrap() && steps <= LONGEST);
    }
}

#[test]
fn batches_have_few_shapes_and_every_epoch_the_same() {
    for config in orders() {
        let loader = loader(Ragged(203), config);
        let shapes = |epoch| -> BTreeSet<[usize; 2]> {
            let batches = loader.epoch(Position { epoch, batch: 0 }).map(content);
            batches.map(|(_, [batch, steps, _], ..)| [batch, steps]).collect()
        };
        let first = shapes(0);
        let lengths: BTreeSet<usize> = first.iter().map(|[_, steps]| *steps).collect();
        let expected = if config.buckets > 0 { LONGEST.div_ceil(config.buckets) } else { 1 };
        assert_eq!(lengths.len(), expected, "{config:?}: {first:?}");
        // Of each length the full batch, and what is left of its samples.
        assert!(first.len() <= 2 * expected, "{config:?}: {first:?}");
        assert!((1..4).all(|epoch| shapes(epoch) == first), "{config:?}");
    }
}

#[test]
fn a_batch_that_does_not_hold_the_longest_sample_is_refused() {
    let made = |tokens| {
        let config = LoaderConfig { buckets: 8, tokens, ..config() };
        TrainLoader::new(Arc::new(Ragged(50)), config, Device::default()).map(drop)
    };
    assert_eq!(
        made(LONGEST - 1).unwrap_err().to_string(),
        "`loader.tokens` is 36, and the longest training sample has 37 steps, which a batch must hold\n  \
         set it to 37 or more, or leave it out"
    );
    assert!(made(LONGEST).is_ok() && made(0).is_ok());
    // Held-out batches are not counted in steps.
    let config = LoaderConfig { tokens: 1, ..config() };
    assert!(HeldOutLoader::new(Arc::new(Ragged(50)), config, Device::default()).is_ok());
}

#[test]
fn blocks_mix_as_documented() {
    const SAMPLES: usize = 10_000;
    let (block, window, size) = (50, 1000, 100);
    let shuffle = Shuffle::Blocks { block, window };
    let config = LoaderConfig { batch_size: size, shuffle, workers: 0, ..config() };
    let loader = loader(Ragged(SAMPLES), config);
    let batches: Vec<_> = loader.epoch(Position::START).map(content).collect();
    let (mut pairs, mut same, mut first_half) = (0u64, 0u64, 0);
    for (number, (.., indices, _)) in batches.iter().enumerate() {
        for (at, a) in indices.iter().enumerate() {
            for b in &indices[..at] {
                pairs += 1;
                same += u64::from(a / block == b / block);
            }
        }
        if number < batches.len() / 2 {
            first_half += indices.iter().filter(|index| **index < SAMPLES / 2).count();
        }
    }
    let share = same as f64 / pairs as f64;
    let expected = (block - 1) as f64 / (window - 1) as f64;
    assert!((share / expected - 1.0).abs() < 0.1, "{share} {expected}");
    // Blocks go anywhere: a hypergeometric count of 100 of 200 blocks, deviation 3.5 blocks.
    assert!((first_half as f64 / SAMPLES as f64 - 0.25).abs() < 0.06, "{first_half}");
    // No more than a window is in use at a time.
    let order: Vec<usize> = batches.into_iter().flat_map(|batch| batch.4).collect();
    for part in order.chunks(window) {
        let blocks: std::collections::HashSet<_> = part.iter().map(|index| index / block).collect();
        assert_eq!(blocks.len(), window / block);
    }
}

#[test]
fn settings_of_orders_are_refused_where_they_cannot_be() {
    let error = |config: LoaderConfig| config.validate().unwrap_err().to_string();
    let blocks = |block, window| Shuffle::Blocks { block, window };
    assert_eq!(
        error(LoaderConfig { shuffle: blocks(8, 15), ..config() }),
        "`shuffle.blocks` has blocks of 8 and a window of 15 samples; a block holds at least 1, and a window at least two blocks"
    );
    assert!(LoaderConfig { shuffle: blocks(8, 16), buckets: 4, ..config() }.validate().is_ok());
}

#[test]
fn blocks_mix_as_documented_in_buckets_too() {
    const SAMPLES: usize = 20_000;
    let (block, window) = (50, 2000);
    let shuffle = Shuffle::Blocks { block, window };
    let config = LoaderConfig { batch_size: 20, buckets: 8, shuffle, workers: 0, ..config() };
    let loader = loader(Ragged(SAMPLES), config);
    let (mut pairs, mut same, mut padded, mut valid) = (0u64, 0u64, 0, 0);
    for batch in loader.epoch(Position::START) {
        let (_, [size, steps, _], lengths, _, indices, _) = content(batch);
        (padded, valid) = (padded + size * steps, valid + lengths.iter().sum::<usize>());
        for (at, a) in indices.iter().enumerate() {
            pairs += at as u64;
            same += indices[..at].iter().filter(|b| **b / block == a / block).count() as u64;
        }
    }
    // About `block / window`, where a full shuffle has a tenth of it. The lengths of neighbours are all different here, and
    // a fifth of a block is of one bucket: without itself, a sample has a little fewer of its own block.
    let share = same as f64 / pairs as f64;
    let expected = block as f64 / window as f64;
    assert!((0.7..1.1).contains(&(share / expected)), "{share} {expected}");
    assert!((valid as f64) > 0.8 * padded as f64, "{valid} of {padded}");
}

/// Samples that take a while, counted.
struct Slow {
    reads: Arc<AtomicUsize>,
    fails_at: usize,
    dies_at: usize,
}

impl Source for Slow {
    fn len(&self) -> usize {
        96
    }

    fn shape(&self) -> [usize; 2] {
        [1, 1]
    }

    fn read(&self, index: usize, _: &mut [f32]) -> Result<Sample, LoadError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        if index == self.fails_at {
            return Err(LoadError::Sample { index, source: "the disk has gone".into() });
        }
        Ok(Sample { length: 1, label: None })
    }

    fn length(&self, index: usize) -> usize {
        assert_ne!(index, self.dies_at, "no length");
        1
    }

    fn classes(&self) -> &[String] {
        &[]
    }
}

impl TrainSource for Slow {}

#[test]
fn threads_go_on_with_the_next_epoch_while_nothing_is_asked_for() {
    let reads = Arc::new(AtomicUsize::new(0));
    let source = Slow { reads: Arc::clone(&reads), fails_at: 1000, dies_at: 1000 };
    let loader = loader(source, config());
    let mut batches = loader.epoch(Position::START);
    // As the training loop does it: not one more than there are.
    for _ in 0..loader.batches_per_epoch() {
        batches.next().unwrap().unwrap();
    }
    drop(batches);
    let patience = Instant::now();
    while reads.load(Ordering::Relaxed) < 96 + 3 * 16 {
        assert!(patience.elapsed() < Duration::from_secs(30), "nothing is prefetched");
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(reads.load(Ordering::Relaxed), 96 + 3 * 16, "the queue is bounded");
    // What waits is used, and not read again.
    let second = loader.epoch(Position { epoch: 1, batch: 0 });
    assert_eq!(second.count(), 6);
    assert!(reads.load(Ordering::Relaxed) <= 2 * 96 + 3 * 16);
}

#[test]
fn a_failure_is_told_within_a_second_however_far_ahead_it_is() {
    for upload_ahead in [0, 1, 2] {
        check_a_failure_far_ahead(upload_ahead);
    }
}

fn check_a_failure_far_ahead(upload_ahead: usize) {
    let reads = Arc::new(AtomicUsize::new(0));
    let source = Slow { reads: Arc::clone(&reads), fails_at: 90, dies_at: 1000 };
    let config = LoaderConfig { prefetch: 12, upload_ahead, ..config() };
    let held_out = HeldOutLoader::new(Arc::new(source), config, Device::default()).unwrap();
    let mut batches = held_out.batches();
    batches.next().unwrap().unwrap();
    // Five batches of 16, and the sixth up to the sample that cannot be read.
    let patience = Instant::now();
    while reads.load(Ordering::Relaxed) < 91 {
        assert!(patience.elapsed() < Duration::from_secs(30), "nothing is prefetched");
        std::thread::yield_now();
    }
    // Steps of 0.3 s: in its turn, the failure would come after four more.
    let mut delivered = 0;
    let error = loop {
        std::thread::sleep(Duration::from_millis(300));
        match batches.next().unwrap() {
            Ok(_) => delivered += 1,
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("sample 90"), "{error}");
    assert!(delivered < 4, "{delivered}");
    assert!(batches.next().is_none());
}

/// Samples that come in groups, and the threads that read them; those of a thread of the loader take a
/// while.
#[derive(Default)]
struct Groups {
    threads: Mutex<Vec<ThreadId>>,
    fails_at: Option<usize>,
}

impl Source for Groups {
    fn len(&self) -> usize {
        96
    }

    fn shape(&self) -> [usize; 2] {
        [1, 1]
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        let thread = std::thread::current();
        if thread.name().is_some_and(|name| name.starts_with("firebox-loader")) {
            std::thread::sleep(Duration::from_micros(200));
        }
        self.threads.lock().unwrap().push(thread.id());
        if self.fails_at == Some(index) {
            return Err(LoadError::Sample { index, source: "the disk has gone".into() });
        }
        out[0] = index as f32;
        Ok(Sample { length: 1, label: None })
    }

    fn at_once(&self) -> usize {
        8
    }

    fn classes(&self) -> &[String] {
        &[]
    }
}

impl TrainSource for Groups {}

#[test]
fn whoever_waits_for_groups_fills_batches_too_and_gets_the_same() {
    let source = Arc::new(Groups::default());
    let of = |workers| {
        let config = LoaderConfig { workers, prefetch: 5, ..config() };
        epochs(&TrainLoader::new(source.clone(), config, Device::default()).unwrap())
    };
    let expected = of(0);
    source.threads.lock().unwrap().clear();
    assert_eq!(of(1), expected);
    let here = std::thread::current().id();
    assert!(source.threads.lock().unwrap().contains(&here), "the caller stood still");
    assert_eq!(of(3), expected);
    // An error comes in its turn whoever meets it.
    for (fails_at, upload_ahead) in [(0, 0), (20, 0), (95, 0), (0, 2), (20, 2), (95, 2)] {
        let source = Arc::new(Groups { fails_at: Some(fails_at), ..Groups::default() });
        let config = LoaderConfig { upload_ahead, ..config() };
        let held_out = HeldOutLoader::new(source, config, Device::default()).unwrap();
        let mut batches = held_out.batches();
        let delivered = batches.by_ref().take_while(Result::is_ok).count();
        assert!(delivered == fails_at / 16 && batches.next().is_none(), "{delivered}");
    }
}

#[test]
fn one_batch_can_be_had_at_every_position() {
    let masking = Masking { channels: 0.3, ..Masking::default() };
    for config in orders() {
        let loader = loader(Ragged(203), config).with_masking(masking).unwrap();
        let all = epochs(&loader);
        let same = epochs(&loader.repeating_the_first().unwrap());
        assert_eq!(same.len(), all.len());
        assert_eq!(same[0], all[0]);
        for (same, other) in same.iter().zip(&all) {
            // Positions go on as they do in a run.
            assert_eq!((&same.4, &same.2, same.5), (&all[0].4, &all[0].2, other.5));
        }
    }
}

#[test]
fn a_thread_that_dies_outside_of_a_sample_is_an_error_too() {
    let source = Slow { reads: Arc::default(), fails_at: 1000, dies_at: 40 };
    // Held-out batches in buckets ask for lengths on the threads.
    let config = LoaderConfig { buckets: 4, ..config() };
    let held_out = HeldOutLoader::new(Arc::new(source), config, Device::default()).unwrap();
    let outcome: Result<Vec<_>, _> = held_out.batches().collect();
    let error = outcome.unwrap_err().to_string();
    assert!(
        error.starts_with("filling batch 2 panicked") && error.contains("no length"),
        "{error}"
    );
}

#[test]
fn the_place_is_chosen_by_what_fits_and_says_why() {
    let gigabyte = 1_000_000_000;
    let gpu = Room { device: Some(gigabyte), host: Some(gigabyte), ..Room::default() };
    let cpu = Room { shared: true, host: Some(gigabyte), ..Room::default() };
    let chosen = |wanted, samples, room| {
        let (place, reason) = place(wanted, &Ragged(samples), room).unwrap();
        format!("{place}: {reason}")
    };
    // 296 bytes a sample.
    assert_eq!(
        chosen(Resident::Auto, 1000, gpu),
        "device: auto: 0.3 MB fit into 1000.0 MB of free device memory"
    );
    assert_eq!(
        chosen(Resident::Auto, 2_000_000, gpu),
        "stream: auto: 592.0 MB would leave too little of 1000.0 MB of free device memory"
    );
    assert_eq!(
        chosen(Resident::Auto, 1000, Room::default()),
        "stream: auto: free device memory is not known"
    );
    assert!(chosen(Resident::Auto, 1000, cpu).starts_with("memory: auto: 0.3 MB decoded once"));
    assert!(chosen(Resident::Memory, 1000, gpu).starts_with("memory: asked for"));
    assert!(chosen(Resident::Device, 1000, gpu).starts_with("device: asked for"));
    let error = place(Resident::Device, &Ragged(9_000_000), gpu).unwrap_err().to_string();
    assert_eq!(
        error,
        "`loader.resident` is \"device\", but its 2664.0 MB do not fit into 1000.0 MB of free memory; set it to \"auto\" or \"stream\""
    );
    // A device that computes in the host's memory has no more than the host; and what is uploaded part by part
    // lies there twice for a moment.
    assert!(place(Resident::Device, &Ragged(9_000_000), cpu).is_err());
    assert!(place(Resident::Device, &Ragged(2_000_000), gpu).is_err());
    assert!(chosen(Resident::Device, 1_500_000, gpu).starts_with("device: asked for"));
    // A set is one tensor, which a device may have too little memory for in one piece.
    let roomy = Room { device: Some(4 * gigabyte), piece: Some(gigabyte / 2), ..gpu };
    assert!(chosen(Resident::Auto, 1_600_000, roomy).starts_with("device: auto"));
    assert_eq!(
        chosen(Resident::Auto, 2_000_000, roomy),
        "stream: auto: 592.0 MB are more than the 500.0 MB that the device has memory for in one piece"
    );
    let error = place(Resident::Device, &Ragged(2_000_000), roomy).unwrap_err().to_string();
    assert!(error.contains("592.0 MB are more than the 500.0 MB"), "{error}");
    let [small, large] = [1_600_000, 2_000_000].map(|samples| fits_beside(&Ragged(samples), roomy));
    assert!(small && !large);
    assert!(
        chosen(Resident::Auto, 2_000_000, Room { piece: Some(1), ..cpu }).starts_with("memory")
    );
}

#[test]
fn stored_halves_are_read_where_they_lie_as_f32_are() {
    let parts = parts();
    let normaliser = Normaliser::fit(Normalisation::WindowRelative, &parts.train).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let free = Some(1_000_000_000);
    let all = [("f32", Storage::F32), ("f16", Storage::F16), ("bf16", Storage::Bf16)];
    for (name, storage) in all {
        let settings = Augmentation { versions: 1, storage, ..Augmentation::default() };
        let key = Key::builder("halves", 1).field("storage", name).finish();
        let shards =
            store.augmented(key, &parts.train, &normaliser, &settings, 7, &Silent).unwrap();
        let placed = |wanted, shared: bool| {
            let device = free.filter(|_| !shared);
            let room = Room { device, shared, host: free, piece: None };
            place(wanted, &shards, room).unwrap()
        };
        let (here, why) = placed(Resident::Auto, true);
        let from_files = here == Place::Stream && why.ends_with("one copy from the mapped data");
        assert_eq!(from_files, widens_fast(storage), "{storage:?}: {here}: {why}");
        assert_eq!(placed(Resident::Memory, true).0, Place::Memory);
        assert_eq!(placed(Resident::Auto, false).0, Place::Device);
    }
}

/// A random walk, split.
fn parts() -> Split {
    let mut draws = Stream::new(1, "walk").draws();
    let mut price = 100.0;
    let walk = (0..4000).map(|_| {
        price += draws.normal();
        price
    });
    let series = Series::regular("walk", 0, 60_000_000, walk.collect(), 1);
    let channels = vec![Channel::new("close", Role::Close)];
    let set = Arc::new(SeriesSet::new(channels, vec![], vec![series]).unwrap());
    let rule = WindowRule { length: 16, stride: 4, whole: false };
    split(&set, &rule, &SplitRule::time(0.1, 0.1), &Labels::None).unwrap()
}

#[test]
fn augmenting_on_the_way_draws_what_the_cache_would_hold() {
    let parts = parts();
    let normaliser = Normaliser::fit(Normalisation::WindowRelative, &parts.train).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let settings = |versions| Augmentation { versions, ..Augmentation::default() };
    let cached = |versions| {
        let settings = settings(versions);
        let key = augmented_key(Key::builder("walk", 1).finish(), &settings, 7);
        store.augmented(key, &parts.train, &normaliser, &settings, 7, &Silent).unwrap()
    };
    let online =
        AugmentedWindows::new(parts.train.clone(), normaliser.clone(), &settings(2), 7).unwrap();
    let (two, eight) = (cached(2), cached(8));
    let (mut a, mut b) = ([0.0; 16], [0.0; 16]);
    assert_eq!(online.len(), two.len());
    for index in 0..online.len() {
        online.draw(0, index, &mut a).unwrap();
        two.read(index, &mut b);
        assert_eq!(a, b);
        // Epoch 3 has versions 7 and 8 beside the original.
        online.draw(3, index, &mut a).unwrap();
        let slot = index % 3;
        eight.read(index / 3 * 9 + if slot == 0 { 0 } else { 6 + slot }, &mut b);
        assert_eq!(a, b);
    }
    assert!(online.varies() && TrainResident::read(&online).is_err());
    // 64 bytes an original: a device of its own draws versions of them, a processor's threads do.
    let room = |shared| Room { device: Some(1 << 30), shared, host: Some(1 << 30), piece: None };
    let chosen = |wanted, shared| {
        let (place, reason) = place(wanted, &online, room(shared)).unwrap();
        format!("{place}: {reason}")
    };
    let originals = format!("{:.1} MB of originals", (parts.train.len() * 64) as f64 / 1e6);
    assert_eq!(chosen(Resident::Auto, true), "stream: auto: samples are drawn anew in each epoch");
    assert_eq!(
        chosen(Resident::Auto, false),
        format!(
            "device: auto: {originals} fit into 1073.7 MB of free device memory; versions are drawn there, anew in each epoch"
        )
    );
    assert_eq!(
        chosen(Resident::Device, true),
        format!("device: asked for ({originals}); versions are drawn there, anew in each epoch")
    );
    let refused = place(Resident::Memory, &online, room(false)).unwrap_err().to_string();
    assert!(refused.contains("drawn anew in each epoch"), "{refused}");
    // Through the loader, and the same with any number of threads.
    let config = LoaderConfig { workers: 0, ..config() };
    let online = Arc::new(online);
    let all = |workers| {
        let config = LoaderConfig { workers, ..config };
        epochs(&TrainLoader::new(online.clone(), config, Device::default()).unwrap())
    };
    let batches = all(0);
    assert_eq!(batches, all(3));
    // Originals are the same in both epochs, versions are not.
    let mut seen = HashMap::<usize, Vec<Vec<f32>>>::new();
    for (values, .., indices, _) in &batches {
        for (row, index) in indices.iter().enumerate() {
            seen.entry(*index).or_default().push(values[row * 16..(row + 1) * 16].to_vec());
        }
    }
    let same = |slot: usize| {
        let of = seen.iter().filter(|(index, _)| *index % 3 == slot);
        let (same, all) = of.fold((0, 0), |(same, all), (_, values)| {
            (same + usize::from(values[0] == values[1]), all + 1)
        });
        same as f64 / all as f64
    };
    assert_eq!(same(0), 1.0);
    // Both are unchanged with the probability that no coin fell in two draws.
    assert!(same(1) < 0.2 && same(2) < 0.2, "{} {}", same(1), same(2));
}

#[test]
fn a_device_draws_the_versions_that_threads_draw_and_resumes_at_every_batch() {
    let (parts, again_parts) = (parts(), parts());
    let normaliser = Normaliser::fit(Normalisation::WindowRelative, &parts.train).unwrap();
    let own = normaliser.clone();
    let settings = Augmentation { versions: 2, ..Augmentation::default() };
    let online = AugmentedWindows::new(parts.train, normaliser, &settings, 7).unwrap();
    let device = Device::default();
    let set = TrainResident::upload(&online, &device).unwrap();
    assert!(set.varies() && set.place() == Place::Device && set.len() == online.len());
    let online = Arc::new(online);
    for config in orders() {
        let threads = TrainLoader::new(online.clone(), config, device.clone()).unwrap();
        let drawn = TrainLoader::resident(set.clone(), config, device.clone()).unwrap();
        let (threads, all) = (epochs(&threads), epochs(&drawn));
        assert_eq!(threads.len(), all.len());
        let mut differ = 0;
        for (threads, drawn) in threads.iter().zip(&all) {
            assert_eq!((&threads.1, &threads.2, &threads.4), (&drawn.1, &drawn.2, &drawn.4));
            assert_eq!((&threads.3, threads.5), (&drawn.3, drawn.5));
            for (a, b) in threads.0.iter().zip(&drawn.0) {
                assert!((a - b).abs() <= 2e-6 * a.abs().max(1.0), "{a} {b}");
                differ += usize::from(a != b);
            }
        }
        // Warped times alone are rounded in another way.
        assert!(differ < all.len() * all[0].0.len() / 2, "{differ}");
        let per_epoch = drawn.batches_per_epoch();
        for from in [0, 1, per_epoch / 2, per_epoch - 1] {
            let again = TrainLoader::resident(set.clone(), config, device.clone()).unwrap();
            let rest: Vec<_> =
                again.epoch(Position { epoch: 1, batch: from }).map(content).collect();
            assert_eq!(rest, all[(per_epoch + from) as usize..], "{config:?} from {from}");
        }
    }
    // Other labels, such as clusters, are those of the windows and their versions.
    let labels: Vec<u32> = (0..online.len()).map(|index| (index / 3 % 5) as u32).collect();
    let names: Vec<String> = (0..5).map(|cluster| format!("cluster {cluster}")).collect();
    let again = AugmentedWindows::new(again_parts.train, own, &settings, 7).unwrap();
    let relabelled = Relabelled::new(Arc::new(again), labels.clone(), names.clone());
    let held = TrainResident::upload(&relabelled, &device).unwrap();
    assert_eq!((held.place(), held.len(), held.classes()), (Place::Device, set.len(), &names[..]));
    let threads = epochs(&loader(relabelled, config()));
    let drawn = epochs(&TrainLoader::resident(held, config(), device.clone()).unwrap());
    for (threads, drawn) in threads.iter().zip(&drawn) {
        let expected: Vec<_> = drawn.4.iter().map(|index| Some(labels[*index])).collect();
        assert_eq!((&drawn.3, &threads.3), (&expected, &expected));
        assert!(
            threads.0.iter().zip(&drawn.0).all(|(a, b)| (a - b).abs() <= 2e-6 * a.abs().max(1.0))
        );
    }
    // Again in an epoch, a version is the same.
    let again = set.clone().repeated(2);
    let (mut first, mut second) = ([0.0; 16], [0.0; 16]);
    again.draw(1, 4, &mut first).unwrap();
    again.draw(1, set.len() + 4, &mut second).unwrap();
    assert_eq!(first, second);
    // One by one, from the device, as in a batch.
    let (mut a, mut b) = ([0.0; 16], [0.0; 16]);
    for index in 0..9 {
        set.draw(1, index, &mut a).unwrap();
        online.draw(1, index, &mut b).unwrap();
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 2e-6 * a.abs().max(1.0)));
    }
}

#[test]
fn no_sample_is_an_error_on_a_device_too() {
    let device = Device::default();
    let held_out = HeldOutResident::upload(&Ragged(0), &device).map(drop);
    let train = TrainResident::upload(&Ragged(0), &device).map(drop);
    for uploaded in [held_out, train] {
        assert!(matches!(uploaded, Err(LoadError::Empty)), "{uploaded:?}");
    }
}

#[test]
fn masking_that_cannot_be_is_refused_before_there_is_a_batch() {
    // Meant as steps.
    let masking = Masking { time_masks: 2, longest: 4.0, channels: 0.0 };
    let refused = loader(Ragged(203), config()).with_masking(masking).map(drop);
    let said = refused.unwrap_err().to_string();
    assert_eq!(said, "`masking.longest` is 4; it must be from 0 to 1");
}

#[test]
fn masking_is_part_of_the_batch_wherever_it_comes_from() {
    let masking = Masking { time_masks: 1, longest: 0.5, channels: 0.3 };
    let plain = epochs(&loader(Ragged(203), config()));
    let masked = epochs(&loader(Ragged(203), config()).with_masking(masking).unwrap());
    let set = TrainResident::upload(&Ragged(203), &Device::default()).unwrap();
    let resident = TrainLoader::resident(set, config(), Device::default()).unwrap();
    assert_eq!(epochs(&resident.with_masking(masking).unwrap()), masked);
    let mut hidden = 0;
    for (plain, masked) in plain.iter().zip(&masked) {
        assert_eq!(plain.4, masked.4);
        for (plain, masked) in plain.0.iter().zip(&masked.0) {
            assert!(masked == plain || *masked == 0.0);
            hidden += usize::from(masked != plain);
        }
    }
    assert!(hidden > 1000, "{hidden}");
}

#[test]
fn waiting_for_a_batch_can_be_given_up_and_counts_for_it() {
    for upload_ahead in [0, 2] {
        let source = Slow { reads: Arc::default(), fails_at: 50, dies_at: 1000 };
        let loader = loader(source, LoaderConfig { upload_ahead, ..config() });
        let mut batches = loader.epoch(Position::START);
        let mut taken = 0;
        loop {
            let patience = Instant::now();
            while !batches.is_ready_within(Duration::from_millis(5)) {
                assert!(patience.elapsed() < Duration::from_secs(30), "nothing comes");
            }
            match batches.next() {
                Some(Ok(_)) => taken += 1,
                Some(Err(error)) => {
                    assert!(error.to_string().contains("sample 50"), "{error}");
                    break;
                }
                None => panic!("a sample cannot be read"),
            }
        }
        assert!(taken < 6, "{taken}");
        assert!(batches.is_ready_within(Duration::ZERO) && batches.next().is_none());
        // Before its turn, and with its cause.
        let said = loader.failures().try_recv().unwrap();
        assert_eq!(said, "sample 50 cannot be read: the disk has gone");
    }
    // Nothing comes until the gate is opened, and what was waited is told with the batch.
    let gate = Arc::<(Mutex<bool>, Condvar)>::default();
    let source = Gated(Arc::clone(&gate));
    let config = LoaderConfig { batch_size: 2, workers: 1, ..config() };
    let held_out = HeldOutLoader::new(Arc::new(source), config, Device::default()).unwrap();
    let mut batches = held_out.batches();
    assert!(!batches.is_ready_within(Duration::from_millis(30)));
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
    while !batches.is_ready_within(Duration::from_secs(1)) {}
    let batch = batches.next().unwrap().unwrap();
    assert!(batch.wait >= Duration::from_millis(30), "{:?}", batch.wait);
}

#[test]
fn the_end_of_the_batches_needs_no_wait() {
    for (workers, upload_ahead) in [(0, 0), (1, 0), (2, 0), (0, 2), (2, 2)] {
        let config = LoaderConfig { workers, upload_ahead, ..config() };
        let held_out = HeldOutLoader::new(Arc::new(Ragged(50)), config, Device::default()).unwrap();
        let train = loader(Ragged(50), config);
        for mut batches in [held_out.batches(), train.epoch(Position::START)] {
            let mut taken = 0;
            loop {
                let patience = Instant::now();
                while !batches.is_ready_within(Duration::from_millis(5)) {
                    assert!(patience.elapsed() < Duration::from_secs(30), "{taken} were taken");
                }
                let Some(batch) = batches.next() else { break };
                batch.unwrap();
                taken += 1;
            }
            assert_eq!(taken, 4, "{workers} {upload_ahead}");
        }
    }
}

/// Eight samples that can be read once the gate is open.
struct Gated(Arc<(Mutex<bool>, Condvar)>);

impl Source for Gated {
    fn len(&self) -> usize {
        8
    }

    fn shape(&self) -> [usize; 2] {
        [1, 1]
    }

    fn read(&self, _: usize, _: &mut [f32]) -> Result<Sample, LoadError> {
        let (open, opened) = &*self.0;
        drop(opened.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
        Ok(Sample { length: 1, label: None })
    }

    fn classes(&self) -> &[String] {
        &[]
    }
}
