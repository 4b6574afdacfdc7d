//! What the trainer adds to a step of R1's model at its batch of 512: everything but the forward and the
//! backward pass, as the loop's own spans measure it.
//!
//! ```text
//! cargo run --release -p firebox-train --example trainer_overhead -- [STEPS]
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "an example may")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use burn::tensor::Device;
use firebox_core::{Key, Requests, Silent, Stream};
use firebox_loader::{LoadError, LoaderConfig, Sample, Source, TrainLoader, TrainSource};
use firebox_models::BiLstmMaeConfig;
use firebox_train::{Data, Pretraining, Run, TrainConfig, train};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

const BATCH: usize = 512;
const TIME: usize = 105;
const CHANNELS: usize = 4;

/// Windows of noise, drawn once.
struct Noise {
    values: Vec<f32>,
    steps: usize,
}

impl Source for Noise {
    fn len(&self) -> usize {
        BATCH * self.steps
    }

    fn shape(&self) -> [usize; 2] {
        [TIME, CHANNELS]
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        let size = TIME * CHANNELS;
        out[..size].copy_from_slice(&self.values[index % BATCH * size..][..size]);
        Ok(Sample { length: TIME as u32, label: None })
    }

    fn classes(&self) -> &[String] {
        &[]
    }
}

impl TrainSource for Noise {}

/// Adds up how long each kind of span was entered, in each step of its own.
#[derive(Clone, Default)]
struct Spans {
    next: Arc<AtomicU64>,
    names: Arc<Mutex<Vec<&'static str>>>,
    times: Arc<Mutex<BTreeMap<&'static str, Vec<f64>>>>,
}

thread_local! {
    static ENTERED: RefCell<Vec<Instant>> = const { RefCell::new(vec![]) };
}

impl Subscriber for Spans {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        self.names.lock().unwrap().push(span.metadata().name());
        Id::from_u64(id)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.push(Instant::now()));
    }

    fn exit(&self, span: &Id) {
        let since = ENTERED.with_borrow_mut(Vec::pop).expect("it was entered");
        let name = self.names.lock().unwrap()[span.into_u64() as usize - 1];
        let milliseconds = since.elapsed().as_secs_f64() * 1e3;
        self.times.lock().unwrap().entry(name).or_default().push(milliseconds);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let steps: usize = std::env::args().nth(1).map_or(Ok(12), |steps| steps.parse())?;
    let mut draws = Stream::new(1, "noise").draws();
    let values = (0..BATCH * TIME * CHANNELS).map(|_| draws.normal() as f32).collect();
    let device = Device::default();
    let batches = LoaderConfig {
        batch_size: BATCH,
        workers: 1,
        prefetch: 2,
        seed: 1,
        ..LoaderConfig::default()
    };
    let loader = TrainLoader::new(Arc::new(Noise { values, steps }), batches, device.clone())?;
    let model = BiLstmMaeConfig::default().init(Stream::new(1, "weights"), CHANNELS, &device)?;
    let folder = tempfile::tempdir()?;
    let run = Run {
        folder: folder.path(),
        key: Key::builder("overhead", 1).finish(),
        seed: 1,
        resume: false,
        stop: &AtomicBool::new(false),
        requests: &Requests::new(),
        listener: &Silent,
    };
    let config = TrainConfig { epochs: 1, early_stopping: None, ..TrainConfig::default() };
    let spans = Spans::default();
    // The loop runs on this thread, and so do all spans that are added up.
    tracing::subscriber::with_default(spans.clone(), || {
        train(model, &Pretraining, Data { train: &loader, validation: None }, &config, &run)
    })?;
    let times = spans.times.lock().unwrap();
    let median = |name: &str| {
        // The first step pays for memory that all later ones have.
        let mut own: Vec<f64> = times.get(name).map_or(vec![], |all| all[1..].to_vec());
        own.sort_by(f64::total_cmp);
        own.get(own.len() / 2).copied().unwrap_or(0.0)
    };
    let step = median("step");
    for name in ["forward", "backward", "wait for data", "read back", "optimizer"] {
        println!("{name:<14} {:>9.3} ms  {:>6.2} %", median(name), 100.0 * median(name) / step);
    }
    let overhead = step - median("forward") - median("backward");
    println!("step           {step:>9.3} ms");
    println!(
        "overhead       {overhead:>9.3} ms  {:>6.2} % (at most 1 % is asked)",
        100.0 * overhead / step
    );
    Ok(())
}
