//! The loaders: order, resuming, errors and stopping, whatever the number of threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use burn::tensor::Device;
use firebox_loader::{
    Batch, HeldOutLoader, LoadError, LoaderConfig, Position, Sample, Source, TrainLoader,
    TrainSource,
};

/// Threads that fill batches, and batches ahead: all must deliver the same.
const THREADS: [(usize, usize); 5] = [(0, 0), (0, 3), (1, 1), (2, 4), (5, 2)];

/// Samples of unequal length whose values name the sample, the step and the channel.
struct Numbers {
    samples: usize,
    /// What happens at a sample.
    event: fn(usize) -> Result<(), LoadError>,
    reads: AtomicUsize,
    delay: Duration,
}

const TIME: usize = 5;

impl Numbers {
    fn new(samples: usize) -> Self {
        Self { samples, event: |_| Ok(()), reads: AtomicUsize::new(0), delay: Duration::ZERO }
    }

    fn length(index: usize) -> usize {
        1 + index % TIME
    }

    fn value(index: usize, step: usize, channel: usize) -> f32 {
        (index * 100 + step * 10 + channel + 1) as f32
    }
}

impl Source for Numbers {
    fn len(&self) -> usize {
        self.samples
    }

    fn shape(&self) -> [usize; 2] {
        [TIME, 2]
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(self.delay);
        (self.event)(index)?;
        // Writes behind its end too: the loader clears it.
        for (at, out) in out.iter_mut().enumerate() {
            *out = Self::value(index, at / 2, at % 2);
        }
        let label = (!index.is_multiple_of(3)).then_some(index as u32 % 3);
        Ok(Sample { length: Self::length(index) as u32, label })
    }

    fn classes(&self) -> &[String] {
        &[]
    }
}

impl TrainSource for Numbers {}

fn config((workers, prefetch): (usize, usize)) -> LoaderConfig {
    LoaderConfig { batch_size: 8, workers, prefetch, seed: 5, ..LoaderConfig::default() }
}

fn loader(source: Numbers, threads: (usize, usize)) -> TrainLoader {
    TrainLoader::new(Arc::new(source), config(threads), Device::default()).unwrap()
}

fn collect(batches: impl Iterator<Item = Result<Batch, LoadError>>) -> Vec<Batch> {
    batches.collect::<Result<_, _>>().unwrap()
}

/// All of a batch but the time that it took.
/// Values, lengths, labels, indices and next position of a batch.
type Content = (Vec<f32>, Vec<usize>, Vec<Option<u32>>, Vec<usize>, Position);

fn content(batch: &Batch) -> Content {
    let values = batch.inputs.to_data().try_to_vec::<f32>().unwrap();
    let Batch { lengths, labels, indices, next, .. } = batch.clone();
    (values, lengths, labels, indices, next)
}

fn contents(batches: &[Batch]) -> Vec<Content> {
    batches.iter().map(content).collect()
}

#[test]
fn batches_hold_their_samples_padded_with_zeros() {
    let loader = loader(Numbers::new(21), (2, 2));
    let batches = collect(loader.epoch(Position::START));
    assert_eq!(batches.iter().map(Batch::len).collect::<Vec<_>>(), [8, 8, 5]);
    assert_eq!((loader.batches_per_epoch(), loader.samples()), (3, 21));
    for batch in &batches {
        let [size, time, channel] = batch.inputs.dims();
        assert_eq!([size, time, channel], [batch.len(), TIME, 2]);
        let values = batch.inputs.to_data().try_to_vec::<f32>().unwrap();
        for (row, index) in batch.indices.iter().enumerate() {
            assert_eq!(batch.lengths[row], Numbers::length(*index));
            assert_eq!(batch.labels[row], (!index.is_multiple_of(3)).then_some(*index as u32 % 3));
            for step in 0..TIME {
                for channel in 0..2 {
                    let padding = step >= batch.lengths[row];
                    let expected =
                        if padding { 0.0 } else { Numbers::value(*index, step, channel) };
                    assert_eq!(values[(row * TIME + step) * 2 + channel], expected);
                }
            }
        }
        assert_eq!(batch.is_full_length(), batch.lengths.iter().all(|length| *length == TIME));
    }
}

#[test]
fn every_epoch_holds_every_sample_once_in_an_order_of_its_own() {
    let loader = loader(Numbers::new(100), (2, 2));
    let order = |epoch| -> Vec<usize> {
        let batches = collect(loader.epoch(Position { epoch, batch: 0 }));
        batches.into_iter().flat_map(|batch| batch.indices).collect()
    };
    let orders: Vec<_> = (0..4).map(order).collect();
    for (epoch, order) in orders.iter().enumerate() {
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
        assert_ne!(*order, sorted);
        assert!(orders[..epoch].iter().all(|earlier| earlier != order));
    }
    let other = LoaderConfig { seed: 6, ..config((0, 0)) };
    let other = TrainLoader::new(Arc::new(Numbers::new(100)), other, Device::default()).unwrap();
    let first: Vec<_> =
        collect(other.epoch(Position::START)).into_iter().flat_map(|batch| batch.indices).collect();
    assert_ne!(first, orders[0]);
}

#[test]
fn order_is_the_shuffle_of_the_documented_stream() {
    // So that a run can be repeated by another program.
    let mut expected: Vec<usize> = (0..30).collect();
    firebox_core::Stream::new(5, "order").substream(3).draws().shuffle(&mut expected);
    let batches = collect(loader(Numbers::new(30), (1, 1)).epoch(Position { epoch: 3, batch: 0 }));
    assert_eq!(batches.into_iter().flat_map(|batch| batch.indices).collect::<Vec<_>>(), expected);
}

#[test]
fn threads_and_prefetch_change_no_batch() {
    let epoch = |threads, epoch| {
        contents(&collect(loader(Numbers::new(77), threads).epoch(Position { epoch, batch: 0 })))
    };
    let expected = [epoch(THREADS[0], 0), epoch(THREADS[0], 1)];
    for threads in THREADS {
        assert_eq!([epoch(threads, 0), epoch(threads, 1)], expected, "{threads:?}");
    }
}

#[test]
fn any_position_goes_on_as_if_there_had_been_no_break() {
    for threads in THREADS {
        let loader = loader(Numbers::new(45), threads);
        let whole = collect(loader.epoch(Position { epoch: 2, batch: 0 }));
        assert_eq!(whole.len(), 6);
        for (from, batch) in whole.iter().enumerate() {
            let position = Position { epoch: 2, batch: from as u64 };
            let rest = collect(loader.epoch(position));
            assert_eq!(contents(&rest), contents(&whole[from..]), "{threads:?}");
            assert_eq!(batch.next, loader.after(position));
        }
        assert_eq!(whole[4].next, Position { epoch: 2, batch: 5 });
        assert_eq!(whole[5].next, Position { epoch: 3, batch: 0 });
        assert!(loader.epoch(Position { epoch: 2, batch: 6 }).next().is_none());
        assert!(loader.epoch(Position { epoch: 2, batch: u64::MAX }).next().is_none());
    }
    let position = Position { epoch: 7, batch: 3 };
    let text = serde_json::to_string(&position).unwrap();
    assert_eq!(text, r#"{"epoch":7,"batch":3}"#);
    assert_eq!(serde_json::from_str::<Position>(&text).unwrap(), position);
}

#[test]
fn held_out_samples_come_in_their_own_order() {
    for threads in THREADS {
        let source = Arc::new(Numbers::new(19));
        let loader = HeldOutLoader::new(source, config(threads), Device::default()).unwrap();
        for _ in 0..2 {
            let batches = collect(loader.batches());
            let indices: Vec<_> = batches.iter().flat_map(|batch| batch.indices.clone()).collect();
            assert_eq!(indices, (0..19).collect::<Vec<_>>());
        }
        assert_eq!(loader.batches_per_epoch(), 3);
    }
}

/// Runs `test` and fails if it takes longer than any slow machine needs.
fn promptly(test: impl FnOnce() + Send + 'static) {
    let (done, wait) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    let ended = wait.recv_timeout(Duration::from_secs(60));
    assert!(ended != Err(std::sync::mpsc::RecvTimeoutError::Timeout), "it hangs");
    thread.join().unwrap();
}

#[test]
fn an_error_or_panic_ends_the_batches_in_its_turn_with_its_cause_within_a_second() {
    static FAILED: Mutex<Option<Instant>> = Mutex::new(None);
    fn now() {
        *FAILED.lock().unwrap() = Some(Instant::now());
    }
    fn broken(index: usize) -> Result<(), LoadError> {
        if index == 33 {
            now();
        }
        match index {
            33 => Err(LoadError::Sample { index, source: "the disk has gone".into() }),
            _ => Ok(()),
        }
    }
    fn panics(index: usize) -> Result<(), LoadError> {
        if index == 33 {
            now();
        }
        assert_ne!(index, 33, "out of luck");
        Ok(())
    }
    promptly(|| {
        // A processor with other work may be late once; the best of three tries counts.
        let mut slowest = [Duration::ZERO; 3];
        let tries =
            THREADS.into_iter().flat_map(|threads| [(threads, 0), (threads, 1), (threads, 2)]);
        for (threads, attempt) in tries {
            for event in [broken, panics] {
                let numbers = || Numbers { event, ..Numbers::new(1000) };
                let loader =
                    HeldOutLoader::new(Arc::new(numbers()), config(threads), Device::default());
                let mut batches = loader.unwrap().batches();
                for _ in 0..4 {
                    batches.next().unwrap().unwrap();
                }
                let error = batches.next().unwrap().unwrap_err();
                let took = FAILED.lock().unwrap().take().unwrap().elapsed();
                slowest[attempt] = took.max(slowest[attempt]);
                let cause = match &error {
                    LoadError::Sample { source, .. } => source.to_string(),
                    LoadError::Panic { message, .. } => message.clone(),
                    _ => String::new(),
                };
                assert!(error.to_string().contains("33"), "{error}");
                assert!(cause.contains("the disk has gone") || cause.contains("out of luck"));
                assert!(batches.next().is_none() && batches.next().is_none());
            }
        }
        let fastest = slowest.iter().min().unwrap();
        assert!(*fastest < Duration::from_secs(1), "it took {slowest:?}");
    });
}

#[test]
fn a_sample_longer_than_the_longest_is_an_error() {
    struct Liar;
    impl Source for Liar {
        fn len(&self) -> usize {
            1
        }
        fn shape(&self) -> [usize; 2] {
            [3, 1]
        }
        fn read(&self, _: usize, _: &mut [f32]) -> Result<Sample, LoadError> {
            Ok(Sample { length: 4, label: None })
        }
        fn classes(&self) -> &[String] {
            &[]
        }
    }
    let loader = HeldOutLoader::new(Arc::new(Liar), config((1, 1)), Device::default()).unwrap();
    let error = loader.batches().next().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "sample 0 has 4 steps; the source holds up to 3");
}

#[test]
fn dropping_the_batches_midway_stops_the_threads_at_the_sample_at_hand() {
    promptly(|| {
        for threads in THREADS {
            let source =
                Arc::new(Numbers { delay: Duration::from_millis(5), ..Numbers::new(100_000) });
            let train: Arc<dyn TrainSource> = source.clone();
            let loader = TrainLoader::new(train, config(threads), Device::default()).unwrap();
            let mut batches = loader.epoch(Position::START);
            batches.next().unwrap().unwrap();
            let start = Instant::now();
            drop(batches);
            // Joined: no thread reads on, and none holds the source.
            let reads = source.reads.load(Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(source.reads.load(Ordering::Relaxed), reads);
            drop(loader);
            assert_eq!(Arc::strong_count(&source), 1);
            assert!(start.elapsed() < Duration::from_secs(20));
            // At most what `prefetch` allows was read ahead.
            let (workers, prefetch) = threads;
            assert!(reads <= 8 * (1 + 1 + workers.max(prefetch)), "{reads}");
            drop(loader_without_use(threads));
        }
    });
}

/// Batches that nobody ever asks for.
fn loader_without_use(threads: (usize, usize)) -> firebox_loader::Batches {
    loader(Numbers::new(1000), threads).epoch(Position::START)
}

#[test]
fn threads_work_ahead_while_the_caller_is_busy() {
    let source = Arc::new(Numbers::new(1000));
    let train: Arc<dyn TrainSource> = source.clone();
    let loader = TrainLoader::new(train, config((2, 6)), Device::default()).unwrap();
    let mut batches = loader.epoch(Position::START);
    batches.next().unwrap().unwrap();
    let patience = Instant::now();
    // One batch taken, six ahead.
    while source.reads.load(Ordering::Relaxed) < 7 * 8 {
        assert!(patience.elapsed() < Duration::from_secs(30), "nothing is prefetched");
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(source.reads.load(Ordering::Relaxed), 7 * 8);
}

#[test]
fn settings_out_of_range_are_refused() {
    let check = |config: LoaderConfig, samples, expected: &str| {
        let source = Arc::new(Numbers::new(samples));
        let error = TrainLoader::new(source.clone(), config, Device::default()).err().unwrap();
        assert_eq!(error.to_string(), expected);
        let error = HeldOutLoader::new(source, config, Device::default()).err().unwrap();
        assert_eq!(error.to_string(), expected);
    };
    let config = LoaderConfig::default();
    let none = LoaderConfig { batch_size: 0, ..config };
    check(none, 1, "`batch_size` is 0; a batch holds at least one sample");
    let many = LoaderConfig { workers: 5000, ..config };
    check(many, 1, "`workers` is 5000; it must be at most 1024");
    let far = LoaderConfig { prefetch: usize::MAX, ..config };
    check(far, 1, &format!("`prefetch` is {}; it must be at most 1024", usize::MAX));
    check(config, 0, "the source has no sample");
    check(
        config,
        1 << 33,
        "the source has 8589934592 samples; an epoch can order up to 4,294,967,295",
    );
}
