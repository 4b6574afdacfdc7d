//! Times whole training steps of the reference workloads, through the loop that training runs.
//!
//! Models, sizes and losses are those of the peer's script for PyTorch, and so are the keys of the
//! result, so that both can be read together. Each workload has a file of its own. Accuracy is not
//! measured here.

mod bert_base;
mod cnn_lstm;
mod labels;
mod lstm_forecast;
mod lstm_mae;
mod mlp;
mod noise;
mod transformer;

use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use burn::module::Module;
use firebox_core::{Event, Key, Precision, Requests, Stream};
use firebox_loader::{Batch, HeldOutLoader, LoaderConfig, TrainLoader};
use firebox_models::Loss;
use firebox_train::{
    CheckpointConfig, Constant, Data, Keep, LossScale, Objective, Run, Schedule, Streams,
    TrainConfig,
};
use serde::Serialize;

use self::noise::Noise;
use crate::device::ChosenDevice;
use crate::error::PipelineError;

/// A model with the shape of its batches, its loss and its dropout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// R1: BiLSTM 2 × 128 with LayerNorm and a decoder, windows of 105 steps and 4 channels, 15 %
    /// of the steps hidden one by one.
    LstmMae,
    /// R2: LSTM 128, LSTM 64, the last step beside 12 static features, 32, 3; sequences of 24 steps
    /// and 1 channel. Not in the zoo yet: the model is beside this file.
    LstmForecast,
    /// R3: Transformer of width 128 with 3 layers, windows of 105 steps and 4 channels, 3 classes.
    Transformer,
    /// R5: 12 layers of width 768 on 128 tokens, 9 labels from the first token.
    BertBase,
    /// R3: a dense network of 128, 96, 64 and 32 units with BatchNorm on whole windows of 105 steps
    /// and 4 channels.
    Mlp,
    /// R4: three convolutions with BatchNorm and a BiLSTM 2 × 256 on sequences of 500 steps and 1,024
    /// channels.
    CnnLstm,
}

impl Workload {
    /// Every workload with its name.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::LstmMae, "lstm-mae"),
        (Self::LstmForecast, "lstm-forecast"),
        (Self::Transformer, "transformer"),
        (Self::BertBase, "bert-base"),
        (Self::Mlp, "mlp"),
        (Self::CnnLstm, "cnn-lstm"),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(workload, _)| *workload == self).map_or("", |(_, name)| name)
    }

    pub(crate) fn default_batch(self) -> usize {
        match self {
            Self::LstmMae | Self::Mlp => 512,
            Self::LstmForecast => 128,
            Self::Transformer => 256,
            Self::BertBase => 16,
            Self::CnnLstm => 64,
        }
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.iter().find(|(_, name)| *name == text);
        known.map(|(workload, _)| *workload).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|(_, name)| *name).collect();
            format!("`{text}` is not a workload; there is {}", names.join(", "))
        })
    }
}

/// What is timed.
#[derive(Clone, Copy, Debug)]
pub struct BenchConfig {
    /// The workload.
    pub workload: Workload,
    /// Type of the operands of products.
    pub precision: Precision,
    /// Samples of a batch; the workload's own by default.
    pub batch: Option<usize>,
    /// Steps that are timed, at least 1.
    pub steps: u64,
    /// Steps before them.
    pub warmup: u64,
    /// Only the forward pass and the loss, without dropout and gradients.
    pub evaluate: bool,
}

/// The result: one line of JSON, with the keys of `torch_steps.py` and the kernels that ran.
#[derive(Clone, Debug, Serialize)]
pub struct BenchResult {
    /// `firebox` with its version.
    pub engine: String,
    /// The workload's name.
    pub workload: String,
    /// `train` or `eval`.
    pub mode: &'static str,
    /// The device with its threads.
    pub device: String,
    /// Precision as the peer spells it: `fp32`, `bf16`.
    pub precision: String,
    /// Samples of a batch.
    pub batch: usize,
    /// Median wall-clock time of a step, milliseconds.
    pub step_ms: f64,
    /// The shortest step.
    pub min_ms: f64,
    /// The longest step.
    pub max_ms: f64,
    /// Samples a second at the median.
    pub samples_per_s: f64,
    /// Largest resident memory of this process up to the last step, MiB; `None` where it is not known.
    pub peak_mib: Option<f64>,
    /// Loss of the first step.
    pub first_loss: f64,
    /// Loss of the last step.
    pub last_loss: f64,
    /// Variant of the kernels.
    pub kernels: String,
}

/// Times a workload on a device.
///
/// # Errors
/// When a setting cannot be, or training fails.
pub fn bench(config: &BenchConfig, device: &ChosenDevice) -> Result<BenchResult, PipelineError> {
    let batch = config.batch.unwrap_or(config.workload.default_batch());
    if batch == 0 || config.steps == 0 {
        let message = "a benchmark needs at least one sample and one step".to_owned();
        return Err(PipelineError::Setting(message));
    }
    let kernels = device.arithmetic()?;
    let Measured { times, losses, peak_mib, .. } = measure(batch, config, device)?;
    let mut sorted = times.clone();
    sorted.sort_by(f64::total_cmp);
    let median = sorted[sorted.len() / 2];
    let threads = rayon::current_num_threads();
    Ok(BenchResult {
        engine: format!("firebox {}", env!("CARGO_PKG_VERSION")),
        workload: config.workload.name().to_owned(),
        mode: if config.evaluate { "eval" } else { "train" },
        device: match device.backend.as_str() {
            "cpu" => format!("cpu x{threads}"),
            _ => device.description.clone(),
        },
        precision: match config.precision {
            Precision::F32 => "fp32".to_owned(),
            Precision::F16 => "fp16".to_owned(),
            other => other.to_string(),
        },
        batch,
        step_ms: median,
        min_ms: sorted[0],
        max_ms: sorted[sorted.len() - 1],
        samples_per_s: 1e3 * batch as f64 / median,
        peak_mib,
        first_loss: losses.first().copied().unwrap_or(f64::NAN),
        last_loss: losses.last().copied().unwrap_or(f64::NAN),
        kernels,
    })
}

/// Takes the steps of a workload.
///
/// # Errors
/// When training fails.
pub(crate) fn measure(
    batch: usize,
    config: &BenchConfig,
    device: &ChosenDevice,
) -> Result<Measured, PipelineError> {
    device.run(|| match config.workload {
        Workload::LstmMae => lstm_mae::run(batch, config, device),
        Workload::LstmForecast => lstm_forecast::run(batch, config, device),
        Workload::Transformer => transformer::run(batch, config, device),
        Workload::Mlp => mlp::run(batch, config, device),
        Workload::CnnLstm => cnn_lstm::run(batch, config, device),
        Workload::BertBase => bert_base::run(batch, config, device),
    })
}

/// Steps of a model of one's own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    /// Type of the operands of products.
    pub(crate) precision: Precision,
    /// Samples of a batch.
    pub(crate) batch: usize,
    /// Steps that are timed, after one that is not.
    pub(crate) steps: u64,
}

impl Probe {
    /// Takes the steps on normal noise of this shape, `[time, channel]`.
    ///
    /// # Errors
    /// When training fails.
    pub(crate) fn run<M: Module, O: Objective<M>>(
        self,
        model: M,
        objective: &O,
        shape: [usize; 2],
        device: &ChosenDevice,
    ) -> Result<Measured, PipelineError> {
        let Self { precision, batch, steps } = self;
        // Nothing here asks which workload it is.
        let (workload, evaluate) = (Workload::LstmMae, false);
        let config =
            BenchConfig { workload, precision, batch: Some(batch), steps, warmup: 1, evaluate };
        let noise = Noise::normal(batch, &config, shape);
        device.run(|| time(model, objective, noise, &config, device))
    }
}

/// What was measured of the steps.
pub(crate) struct Measured {
    /// Times in milliseconds, in the end of the timed steps alone.
    pub(crate) times: Vec<f64>,
    /// Part of the time of each step that it waited for data, milliseconds.
    pub(crate) waits: Vec<f64>,
    /// Losses of all steps.
    pub(crate) losses: Vec<f64>,
    /// Largest resident memory up to the last step: what is saved after it is no part of a step.
    peak_mib: Option<f64>,
}

impl Measured {
    fn nothing() -> Self {
        Self { times: vec![], waits: vec![], losses: vec![], peak_mib: None }
    }

    fn step(&mut self, milliseconds: f64, wait: f64, loss: f64) {
        self.times.push(milliseconds);
        self.waits.push(wait);
        self.losses.push(loss);
        self.peak_mib = peak_mib();
    }
}

fn time<M: Module, O: Objective<M>>(
    model: M,
    objective: &O,
    noise: Noise,
    config: &BenchConfig,
    device: &ChosenDevice,
) -> Result<Measured, PipelineError> {
    // One batch is ready while another is filled: more would be memory that the peer does not take.
    let batch_size = noise.batch;
    let settings = LoaderConfig { batch_size, workers: 1, prefetch: 2, ..LoaderConfig::default() };
    let skip = config.warmup as usize;
    let mut measured = if config.evaluate {
        let loader = HeldOutLoader::new(Arc::new(noise), settings, device.device.clone())?;
        evaluate(&model.valid(), objective, &loader)?
    } else {
        let loader = TrainLoader::new(Arc::new(noise), settings, device.device.clone())?;
        let folder = tempfile::tempdir().map_err(crate::error::at(&std::env::temp_dir()))?;
        train(model, objective, &loader, config.precision, folder.path())?
    };
    measured.times.drain(..skip);
    measured.waits.drain(..skip);
    Ok(measured)
}

/// Steps of training as the loop reports them: from asking for a batch to the updated weights.
fn train<M: Module, O: Objective<M>>(
    model: M,
    objective: &O,
    loader: &TrainLoader,
    precision: Precision,
    folder: &Path,
) -> Result<Measured, PipelineError> {
    let steps = Mutex::new(Measured::nothing());
    let listener = |event: &Event| {
        if let &Event::Step { milliseconds, data_milliseconds, loss, .. } = event {
            let mut steps = steps.lock().unwrap_or_else(PoisonError::into_inner);
            steps.step(milliseconds, data_milliseconds, loss);
        }
    };
    let config = TrainConfig {
        epochs: 1,
        schedule: Schedule::Constant(Constant::default()),
        early_stopping: None,
        // As a pipeline does it: f16 without a scale is another, worse job.
        loss_scale: LossScale::default().resolve(precision == Precision::F16),
        checkpoint: CheckpointConfig { keep: Keep::FinalOnly, ..CheckpointConfig::default() },
        ..TrainConfig::default()
    };
    let run = Run {
        folder,
        key: Key::builder("bench", 1).finish(),
        seed: 1337,
        resume: false,
        stop: &AtomicBool::new(false),
        requests: &Requests::new(),
        listener: &listener,
    };
    firebox_train::train(
        model,
        objective,
        Data { train: loader, validation: None },
        &config,
        &run,
    )?;
    Ok(steps.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Losses of batches as validation computes them, each read back.
fn evaluate<M: Module, O: Objective<M>>(
    model: &M,
    objective: &O,
    loader: &HeldOutLoader,
) -> Result<Measured, PipelineError> {
    let mut measured = Measured::nothing();
    let samples = Stream::new(1337, "masks");
    let mut start = Instant::now();
    for batch in loader.batches() {
        let batch: Batch = batch?;
        let Loss { value, .. } = objective.loss(model, &batch, Streams { samples, dropout: None });
        let loss = value.into_data().iter::<f64>().next().unwrap_or(f64::NAN);
        measured.step(start.elapsed().as_secs_f64() * 1e3, batch.wait.as_secs_f64() * 1e3, loss);
        start = Instant::now();
    }
    Ok(measured)
}

/// The largest resident memory that Linux has seen of this process.
fn peak_mib() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024.0)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn a_line_has_the_peers_keys_and_trains() {
        let device = ChosenDevice {
            device: Device::flex(),
            backend: "cpu".to_owned(),
            description: String::new(),
            reason: String::new(),
        };
        let both = Workload::ALL.into_iter().flat_map(|(one, _)| [(one, false), (one, true)]);
        for (workload, evaluate) in both {
            let config = BenchConfig {
                workload,
                precision: Precision::Bf16,
                // The model of bert-base takes a second a step whatever the batch.
                batch: Some(if workload == Workload::BertBase { 1 } else { 8 }),
                steps: 3,
                warmup: 1,
                evaluate,
            };
            let result = bench(&config, &device).unwrap();
            assert!(result.min_ms > 0.0 && result.min_ms <= result.step_ms);
            // Noise has the variance 1, and an untrained model predicts next to nothing; the
            // cross-entropy of chance is ln 3 or ln 5.
            assert!((0.3..2.5).contains(&result.first_loss), "{}", result.first_loss);
            let line = serde_json::to_value(&result).unwrap();
            for key in ["engine", "workload", "mode", "device", "precision", "batch", "step_ms"] {
                assert!(!line[key].is_null(), "{key}");
            }
            assert_eq!(line["mode"], if evaluate { "eval" } else { "train" });
        }
        let none = BenchConfig {
            workload: Workload::LstmMae,
            precision: Precision::F32,
            batch: Some(0),
            steps: 1,
            warmup: 0,
            evaluate: false,
        };
        assert!(bench(&none, &device).unwrap_err().is_bad_input());
        assert!("lstm".parse::<Workload>().unwrap_err().contains("lstm-mae"));
    }
}
