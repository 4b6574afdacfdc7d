//! A small data set, a one-weight model, and runs in temporary folders.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use firebox_core::{Event, Key, Requests, Stream};
use firebox_loader::{
    Batch, HeldOutLoader, LoadError, LoaderConfig, Sample, Source, TrainLoader, TrainSource,
};
use firebox_models::{BiLstmMae, BiLstmMaeConfig, Loss, read_parameters};
use firebox_train::{
    AdamWConfig, Constant, Data, History, Objective, Optimizer, Run, Schedule, StepRecord, Streams,
    TrainConfig, TrainError, Trained, train,
};

pub(crate) const TIME: usize = 14;
pub(crate) const SEED: u64 = 5;

/// Noisy waves of two channels and unequal lengths.
pub(crate) struct Waves {
    pub(crate) samples: usize,
    pub(crate) seed: u64,
}

impl Source for Waves {
    fn len(&self) -> usize {
        self.samples
    }

    fn shape(&self) -> [usize; 2] {
        [TIME, 2]
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        let mut draws = Stream::new(self.seed, "waves").substream(index as u64).draws();
        let length = TIME - draws.below(6) as usize;
        let (speed, phase) = (0.3 + draws.uniform_f64(), draws.uniform_f64() * 6.0);
        for (step, pair) in out.chunks_exact_mut(2).take(length).enumerate() {
            let angle = phase + speed * step as f64;
            pair[0] = (angle.sin() + 0.1 * draws.normal()) as f32;
            pair[1] = (angle.cos() * 2.0 + 0.1 * draws.normal()) as f32;
        }
        Ok(Sample { length: length as u32, label: None })
    }

    fn classes(&self) -> &[String] {
        &[]
    }
}

impl TrainSource for Waves {}

pub(crate) fn loader(samples: usize, batch_size: usize) -> TrainLoader {
    let config =
        LoaderConfig { batch_size, workers: 1, prefetch: 2, seed: SEED, ..LoaderConfig::default() };
    TrainLoader::new(Arc::new(Waves { samples, seed: 1 }), config, Device::default()).unwrap()
}

pub(crate) fn held_out(samples: usize) -> HeldOutLoader {
    let config =
        LoaderConfig { batch_size: 8, workers: 0, prefetch: 1, seed: 0, ..LoaderConfig::default() };
    HeldOutLoader::new(Arc::new(Waves { samples, seed: 2 }), config, Device::default()).unwrap()
}

pub(crate) fn autoencoder(dropout: f64, latent_weight: f64) -> BiLstmMae {
    let config = BiLstmMaeConfig {
        hidden: 6,
        decoder_hidden: 5,
        dropout,
        latent_weight,
        ..BiLstmMaeConfig::default()
    };
    config.init(Stream::new(SEED, "weights"), 2, &Device::default()).unwrap()
}

/// Three epochs at one rate, to their end.
pub(crate) fn config(learning_rate: f64) -> TrainConfig {
    let adamw = AdamWConfig { learning_rate, ..AdamWConfig::default() };
    TrainConfig {
        epochs: 3,
        optimizer: Optimizer::AdamW(adamw),
        schedule: Schedule::Constant(Constant::default()),
        early_stopping: None,
        ..TrainConfig::default()
    }
}

/// A model of one weight: quick, and its loss can be made to be anything.
#[derive(Module, Debug)]
pub(crate) struct Point {
    pub(crate) weight: Param<Tensor<1>>,
}

pub(crate) fn point() -> Point {
    Point { weight: Param::from_tensor(Tensor::from_data([1.5f32], &Device::default())) }
}

/// Draws the weight to the mean of the batch; not a number at some steps (from 0).
#[derive(Clone, Debug, Default)]
pub(crate) struct ToMean {
    pub(crate) broken: Vec<u64>,
}

impl Objective<Point> for ToMean {
    fn loss(&self, model: &Point, batch: &Batch, streams: Streams) -> Loss {
        let broken = self
            .broken
            .iter()
            .any(|step| streams.samples == Stream::new(SEED, "masks").substream(*step));
        let distance = model.weight.val() - batch.inputs.clone().mean();
        let noise = match streams.dropout {
            Some(stream) => f64::from(stream.draws().uniform()),
            None => 1.0,
        };
        let value = distance.square() * if broken { f64::NAN } else { noise };
        Loss { value, weight: batch.indices.len() as f64, parts: vec![] }
    }
}

/// Nobody asks anything.
static NOTHING: Requests = Requests::new();

/// What a test does to a run.
pub(crate) struct Plan<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) resume: bool,
    /// Sets the stop flag when this step is reported.
    pub(crate) stop_at: Option<u64>,
    /// What is asked of the run.
    pub(crate) requests: &'a Requests,
    /// Is called with every event.
    pub(crate) watch: &'a (dyn Fn(&Event) + Send + Sync),
}

impl<'a> Plan<'a> {
    pub(crate) fn new(folder: &'a Path) -> Self {
        Self { folder, resume: false, stop_at: None, requests: &NOTHING, watch: &|_| {} }
    }

    pub(crate) fn resumed(folder: &'a Path) -> Self {
        Self { resume: true, ..Self::new(folder) }
    }

    pub(crate) fn train<M: Module, O: Objective<M>>(
        &self,
        model: M,
        objective: &O,
        data: Data<'_>,
        config: &TrainConfig,
    ) -> Result<Trained<M>, TrainError> {
        let stop = AtomicBool::new(false);
        let listener = |event: &Event| {
            if let Event::Step { step, .. } = event
                && Some(*step) == self.stop_at
            {
                stop.store(true, Ordering::Relaxed);
            }
            (self.watch)(event);
        };
        let run = Run {
            folder: self.folder,
            key: Key::builder("test", 1).finish(),
            seed: SEED,
            resume: self.resume,
            stop: &stop,
            requests: self.requests,
            listener: &listener,
        };
        train(model, objective, data, config, &run)
    }
}

/// Collects warnings.
#[derive(Default)]
pub(crate) struct Warnings(pub Mutex<Vec<String>>);

impl Warnings {
    pub(crate) fn take(&self, event: &Event) {
        if let Event::Warning { message } = event {
            self.0.lock().unwrap().push(message.clone());
        }
    }
}

pub(crate) fn weights<M: Module>(model: &M) -> Vec<f32> {
    read_parameters(model).into_iter().flat_map(|parameter| parameter.values).collect()
}

/// The steps of a run without the times that no two runs share, as bits.
pub(crate) fn steps(folder: &Path) -> Vec<(StepRecord, [u64; 2])> {
    let mut history = History::read(folder).unwrap();
    for step in &mut history.steps {
        (step.milliseconds, step.data_milliseconds) = (0.0, 0.0);
    }
    let bits = |step: StepRecord| {
        let bits = [step.loss.to_bits(), step.gradient_norm.to_bits()];
        let plain = StepRecord { loss: 0.0, gradient_norm: 0.0, parts: Default::default(), ..step };
        (plain, bits)
    };
    history.steps.into_iter().map(bits).collect()
}
