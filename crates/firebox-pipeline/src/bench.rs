//! Times whole training steps of the reference workloads, through the loop that training runs.
//!
//! Models, sizes and losses are those of the peer's script for PyTorch, and so are the keys of the
//! result, so that both can be read together. Accuracy is not measured here.

use std::ops::Range;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::{Device, Tensor};
use firebox_core::{Event, Key, Precision, Requests, Stream};
use firebox_kernels::{Lstm, LstmConfig, init_linear, relu_dropout};
use firebox_loader::{Batch, TrainSource};
use firebox_loader::{HeldOutLoader, LoadError, LoaderConfig, Sample, Source, TrainLoader};
use firebox_models::{BiLstmMaeConfig, Loss, MaskRule};
use firebox_train::{
    CheckpointConfig, Constant, Data, Keep, Objective, Pretraining, Run, Schedule, Streams,
    TrainConfig,
};
use serde::Serialize;

use crate::device::ChosenDevice;
use crate::error::PipelineError;

/// A model with the shape of its batches, its loss and its dropout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// R1: BiLSTM 2 × 128 with LayerNorm and a decoder, windows of 105 steps and 4 channels, 15 %
    /// of the steps hidden one by one.
    LstmMae,
    /// R2: LSTM 128, LSTM 64, the last step beside 12 static features, 32, 3; sequences of 24 steps
    /// and 1 channel. Not in the zoo yet: the model is in this file.
    LstmForecast,
}

impl Workload {
    /// Every workload with its name.
    pub const ALL: [(Self, &'static str); 2] =
        [(Self::LstmMae, "lstm-mae"), (Self::LstmForecast, "lstm-forecast")];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(workload, _)| *workload == self).map_or("", |(_, name)| name)
    }

    fn default_batch(self) -> usize {
        match self {
            Self::LstmMae => 512,
            Self::LstmForecast => 128,
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
    /// Largest resident memory of this process so far, MiB; `None` where it is not known.
    pub peak_mib: Option<f64>,
    /// Loss of the first step.
    pub first_loss: f64,
    /// Loss of the last step.
    pub last_loss: f64,
    /// Variant of the recurrent kernels.
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
    let (times, losses) = match config.workload {
        Workload::LstmMae => {
            let model = BiLstmMaeConfig {
                mask: MaskRule::Random { probability: 0.15 },
                latent_weight: 0.0,
                ..BiLstmMaeConfig::default()
            };
            let model = model.init(Stream::new(1337, "weights"), 4, &device.device)?;
            let noise = Noise::new(batch, config, [105, 4]);
            time(model.in_precision(config.precision), &Pretraining, noise, config, device)?
        }
        Workload::LstmForecast => {
            let model = Forecaster::init(config.precision, &device.device);
            time(model, &Forecasting, Noise::new(batch, config, [105, 4]), config, device)?
        }
    };
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
        peak_mib: peak_mib(),
        first_loss: losses.first().copied().unwrap_or(f64::NAN),
        last_loss: losses.last().copied().unwrap_or(f64::NAN),
        kernels,
    })
}

/// Times of the timed steps in milliseconds, and the losses of all steps.
type Times = (Vec<f64>, Vec<f64>);

fn time<M: Module, O: Objective<M>>(
    model: M,
    objective: &O,
    noise: Noise,
    config: &BenchConfig,
    device: &ChosenDevice,
) -> Result<Times, PipelineError> {
    let settings = LoaderConfig { batch_size: noise.batch, ..LoaderConfig::default() };
    let skip = config.warmup as usize;
    let (times, losses) = if config.evaluate {
        let loader = HeldOutLoader::new(Arc::new(noise), settings, device.device.clone())?;
        evaluate(&model.valid(), objective, &loader)?
    } else {
        let loader = TrainLoader::new(Arc::new(noise), settings, device.device.clone())?;
        let folder = tempfile::tempdir().map_err(crate::error::at(&std::env::temp_dir()))?;
        train(model, objective, &loader, folder.path())?
    };
    Ok((times[skip..].to_vec(), losses))
}

/// Steps of training as the loop reports them: from asking for a batch to the updated weights.
fn train<M: Module, O: Objective<M>>(
    model: M,
    objective: &O,
    loader: &TrainLoader,
    folder: &Path,
) -> Result<Times, PipelineError> {
    let steps = Mutex::new((vec![], vec![]));
    let listener = |event: &Event| {
        if let Event::Step { milliseconds, loss, .. } = event {
            let mut steps = steps.lock().unwrap_or_else(PoisonError::into_inner);
            steps.0.push(*milliseconds);
            steps.1.push(*loss);
        }
    };
    let config = TrainConfig {
        epochs: 1,
        schedule: Schedule::Constant(Constant::default()),
        early_stopping: None,
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
) -> Result<Times, PipelineError> {
    let (mut times, mut losses) = (vec![], vec![]);
    let samples = Stream::new(1337, "masks");
    let mut start = Instant::now();
    for batch in loader.batches() {
        let batch: Batch = batch?;
        let Loss { value, .. } = objective.loss(model, &batch, Streams { samples, dropout: None });
        losses.push(value.into_data().iter::<f64>().next().unwrap_or(f64::NAN));
        times.push(start.elapsed().as_secs_f64() * 1e3);
        start = Instant::now();
    }
    Ok((times, losses))
}

/// The model of [`Workload::LstmForecast`].
#[derive(Module, Debug)]
struct Forecaster {
    lower: Lstm,
    upper: Lstm,
    hidden: Linear,
    output: Linear,
}

impl Forecaster {
    fn init(precision: Precision, device: &Device) -> Self {
        let stream = |index| Stream::new(1337, "weights").substream(index);
        let lstm = |index, input, hidden| {
            let lstm = LstmConfig::new(input, hidden).init(stream(index), device);
            lstm.in_precision(precision)
        };
        Self {
            lower: lstm(0, 1, 128),
            upper: lstm(1, 128, 64),
            hidden: init_linear(stream(2), 64 + 12, 32, device),
            output: init_linear(stream(3), 32, 3, device),
        }
    }
}

/// Three values of a later step from a sequence and static features, all cut out of the noise as
/// the peer cuts them.
struct Forecasting;

impl Objective<Forecaster> for Forecasting {
    fn loss(&self, model: &Forecaster, batch: &Batch, streams: Streams) -> Loss {
        let [samples, _, _] = batch.inputs.dims();
        let part = |steps: Range<usize>, channels: Range<usize>| {
            batch.inputs.clone().slice([0..samples, steps, channels])
        };
        let (below, _) = model.lower.forward(part(0..24, 0..1), None, None, None);
        let (_, last) = model.upper.forward(below, None, None, None);
        let static_features = part(24..36, 1..2).reshape([samples, 12]);
        let features = Tensor::cat(vec![last.hidden.reshape([samples, 64]), static_features], 1);
        let hidden = relu_dropout(model.hidden.forward(features), 0.2, streams.dropout);
        let error = model.output.forward(hidden) - part(40..41, 0..3).reshape([samples, 3]);
        Loss { value: error.square().mean(), weight: 3.0 * samples as f64, parts: vec![] }
    }
}

/// Normal noise: one batch that comes again at every step.
#[derive(Debug)]
struct Noise {
    values: Vec<f32>,
    shape: [usize; 2],
    batch: usize,
    steps: usize,
}

impl Noise {
    fn new(batch: usize, config: &BenchConfig, shape: [usize; 2]) -> Self {
        let mut draws = Stream::new(1337, "noise").draws();
        let count = batch * shape[0] * shape[1];
        let values = (0..count).map(|_| draws.normal() as f32).collect();
        Self { values, shape, batch, steps: (config.steps + config.warmup) as usize }
    }
}

impl Source for Noise {
    fn len(&self) -> usize {
        self.batch * self.steps
    }

    fn shape(&self) -> [usize; 2] {
        self.shape
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        let count = self.shape[0] * self.shape[1];
        out[..count].copy_from_slice(&self.values[index % self.batch * count..][..count]);
        Ok(Sample { length: self.shape[0] as u32, label: None })
    }

    fn classes(&self) -> &[String] {
        &[]
    }
}

impl TrainSource for Noise {}

/// The largest resident memory that Linux has seen of this process.
fn peak_mib() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib / 1024.0)
}

#[cfg(test)]
mod tests {
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
                batch: Some(8),
                steps: 3,
                warmup: 1,
                evaluate,
            };
            let result = bench(&config, &device).unwrap();
            assert!(result.min_ms > 0.0 && result.min_ms <= result.step_ms);
            // Noise has the variance 1, and an untrained model predicts next to nothing.
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
