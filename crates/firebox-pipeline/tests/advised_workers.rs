//! Advice that is true: training that waits for a source is told a number of threads and how much faster it would be with
//! them; it takes them, and is about that much faster. Samples and steps sleep, so that what comes does not depend on
//! how many cores the machine has or what else they do.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::Duration;

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use firebox_core::{Event, GpuSample, Key, MachineSample, Requests};
use firebox_loader::{Batch, LoadError, LoaderConfig, Sample, Source, TrainLoader, TrainSource};
use firebox_models::Loss;
use firebox_monitor::{Scaling, SettingKeys, Settings, Usage, advice};
use firebox_train::{Data, Objective, Run, Streams, TrainConfig, train};

/// Samples of a batch, of which the source makes one at a time.
const BATCH: usize = 2;
const STEPS: usize = 21;
/// Time that a thread takes to read a sample.
const READING: Duration = Duration::from_millis(30);
/// Time that a step takes to compute.
const COMPUTING: Duration = Duration::from_millis(40);

/// Samples that take their time and no core.
struct Asleep;

impl Source for Asleep {
    fn len(&self) -> usize {
        STEPS * BATCH
    }

    fn shape(&self) -> [usize; 2] {
        [1, 1]
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        sleep(READING);
        out[0] = index as f32;
        Ok(Sample { length: 1, label: None })
    }

    fn classes(&self) -> &[String] {
        &[]
    }
}

impl TrainSource for Asleep {}

#[derive(Module, Debug)]
struct Point {
    weight: Param<Tensor<1>>,
}

/// A loss that takes its time and no core.
struct Slow;

impl Objective<Point> for Slow {
    fn loss(&self, model: &Point, batch: &Batch, _: Streams) -> Loss {
        sleep(COMPUTING);
        let value = (model.weight.val() - batch.inputs.clone().mean()).square();
        Loss { value, weight: batch.indices.len() as f64, parts: vec![] }
    }
}

/// Trains with this many threads. Returns the median time of a step, and what training told.
fn trained(workers: usize) -> (f64, Usage) {
    let device = Device::default();
    let loader = LoaderConfig { batch_size: BATCH, workers, prefetch: 4, ..Default::default() };
    let loader = TrainLoader::new(Arc::new(Asleep), loader, device.clone()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut usage = Usage::default();
    usage.record(&Event::StageStarted { stage: "train".to_owned() });
    // A device that is hardly busy, so that a gain is told.
    let gpu = GpuSample { utilisation: Some(0.01), ..GpuSample::default() };
    let sample = MachineSample { seconds: 1.0, gpus: vec![gpu], ..MachineSample::default() };
    usage.record(&Event::Machine(sample));
    let told = Mutex::new((Vec::new(), usage));
    let listener = |event: &Event| {
        let mut told = told.lock().unwrap();
        if let Event::Step { milliseconds, .. } = event {
            told.0.push(*milliseconds);
        }
        told.1.record(event);
    };
    let run = Run {
        folder: folder.path(),
        key: Key::builder("test", 1).finish(),
        seed: 1,
        resume: false,
        stop: &AtomicBool::new(false),
        requests: &Requests::new(),
        listener: &listener,
    };
    let point = Point { weight: Param::from_tensor(Tensor::from_data([1.5f32], &device)) };
    let config = TrainConfig { epochs: 1, early_stopping: None, ..TrainConfig::default() };
    let data = Data { train: &loader, validation: None };
    train(point, &Slow, data, &config, &run).unwrap();
    let (mut steps, usage) = told.into_inner().unwrap();
    assert_eq!(steps.len(), STEPS);
    steps.sort_by(f64::total_cmp);
    (steps[STEPS / 2], usage)
}

/// The threads that are advised to training without any, and the gain that is told with them.
fn advised(usage: &Usage) -> (usize, f64) {
    let settings = Settings {
        // Nothing that computes is asked to share with what reads.
        on_gpu: true,
        batch_size: BATCH,
        least_batch: 1,
        samples: None,
        divided: false,
        workers: 0,
        prefetch: 4,
        pins: false,
        faster: firebox_monitor::Faster::Memory,
        blocks: None,
        padding: None,
        keys: SettingKeys::default(),
        learning_rate: 0.001,
        scaling: Scaling::Off,
        clip: None,
        clip_value: None,
        epochs: 1,
        early_stopping: false,
        stopped_early: false,
        least_improvement: 0.0,
        resume_every: None,
    };
    let found = advice(usage, &settings);
    let said = found.iter().map(|one| &one.finding).find(|said| said.contains("loader.workers"));
    let said = said.unwrap_or_else(|| panic!("{found:?}"));
    let number = |behind: &str| -> f64 {
        let rest = said.split_once(behind).unwrap().1;
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        rest[..end].parse().unwrap()
    };
    (number("`loader.workers` of ") as usize, number("would give about "))
}

#[test]
fn advised_threads_bring_about_the_gain_that_is_told() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    // A batch takes 60 ms and a step 40 ms: two threads keep up, and one is all that a single core is advised.
    let (wanted, ideal) = if threads > 1 { (2, 2.5) } else { (1, 100.0 / 60.0) };
    let mut tries = Vec::new();
    // A machine that stands still for a moment is no reason to fail.
    for _ in 0..3 {
        let (before, usage) = trained(0);
        let (workers, told) = advised(&usage);
        let (after, _) = trained(workers);
        let came = before / after;
        tries.push((workers, told, came));
        if workers == wanted && (told / ideal - 1.0).abs() < 0.2 && (came / told - 1.0).abs() < 0.2
        {
            return;
        }
    }
    panic!("{wanted} threads and {ideal:.2} times were to be told, and to come: {tries:?}");
}
