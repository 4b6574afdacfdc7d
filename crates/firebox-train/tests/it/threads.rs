//! Whole training steps, forward, back and the optimizer's, of models of the zoo: the same to the bit on any number of
//! threads.

use std::sync::Arc;

use crate::support::{Plan, SEED, steps, weights};
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{CpuKernels, CrossEntropy, GaussianNoise, cross_entropy};
use firebox_loader::{Batch, LoadError, LoaderConfig, Sample, Source, TrainLoader, TrainSource};
use firebox_models::{
    Bert, BertConfig, BiLstmMaeConfig, CnnBiLstm, CnnBiLstmConfig, Loss, Mlp, MlpConfig, Positions,
    Transformer, TransformerConfig,
};
use firebox_train::{
    Constant, Data, Objective, Pretraining, Schedule, StepRecord, Streams, TrainConfig,
};

/// Steps of a window: odd, as batches and widths below are, and no multiple of what a thread takes.
const TIME: usize = 61;
const CLASSES: usize = 3;
/// Tokens, where windows have one channel.
const VOCABULARY: usize = 1031;

/// Noise in several channels, or tokens in one.
struct Signals {
    samples: usize,
    channels: usize,
    classes: Vec<String>,
}

impl Signals {
    fn new(samples: usize, channels: usize) -> Self {
        Self { samples, channels, classes: (0..CLASSES).map(|class| class.to_string()).collect() }
    }
}

impl Source for Signals {
    fn len(&self) -> usize {
        self.samples
    }

    fn shape(&self) -> [usize; 2] {
        [TIME, self.channels]
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        let mut draws = Stream::new(1, "signals").substream(index as u64).draws();
        for value in &mut out[..TIME * self.channels] {
            *value = match self.channels {
                1 => draws.below(VOCABULARY as u64) as f32,
                _ => draws.normal() as f32,
            };
        }
        Ok(Sample { length: TIME as u32, label: Some((index % CLASSES) as u32) })
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }
}

impl TrainSource for Signals {}

/// Cross-entropy of the scores that a function gives.
struct Scored<F>(F);

impl<M, F: Fn(&M, &Batch, Streams) -> Tensor<2> + Sync> Objective<M> for Scored<F> {
    fn loss(&self, model: &M, batch: &Batch, streams: Streams) -> Loss {
        let targets: Vec<i64> =
            batch.labels.iter().map(|label| i64::from(label.unwrap())).collect();
        let config = CrossEntropy { label_smoothing: 0.1, ..CrossEntropy::default() };
        let loss = cross_entropy((self.0)(model, batch, streams), &targets, &config).unwrap();
        Loss { value: loss.value, weight: loss.weight, parts: vec![] }
    }
}

/// Losses and gradient norms of all steps, and the weights behind the last.
type Found = (Vec<(StepRecord, [u64; 2])>, Vec<u32>);

const STEPS: usize = 3;

fn run<M: Module, O: Objective<M>>(
    model: M,
    objective: &O,
    channels: usize,
    batch_size: usize,
) -> Found {
    let folder = tempfile::tempdir().unwrap();
    let config =
        LoaderConfig { batch_size, workers: 1, prefetch: 2, seed: SEED, ..LoaderConfig::default() };
    let source = Arc::new(Signals::new(STEPS * batch_size, channels));
    let loader = TrainLoader::new(source, config, Device::default()).unwrap();
    let config = TrainConfig {
        epochs: 1,
        schedule: Schedule::Constant(Constant::default()),
        early_stopping: None,
        ..TrainConfig::default()
    };
    let data = Data { train: &loader, validation: None };
    let trained = Plan::new(folder.path()).train(model, objective, data, &config).unwrap();
    let bits = weights(&trained.model).into_iter().map(f32::to_bits).collect();
    (steps(folder.path()), bits)
}

/// Trains on 1, 2 and 3 threads, by the plainest and by the fastest kernels, in f32 and bf16.
#[track_caller]
fn check(name: &str, train: impl Fn(Precision) -> Found + Sync) {
    let all: Vec<CpuKernels> = CpuKernels::available().into_iter().skip(1).collect();
    let mut ends = vec![all[0], all[all.len() - 1]];
    ends.dedup();
    for kernels in ends {
        for precision in [Precision::F32, Precision::Bf16] {
            let [one, two, three] = [1, 2, 3].map(|threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| kernels.force(|| train(precision)))
            });
            let losses: Vec<f64> =
                one.0.iter().map(|(_, [loss, _])| f64::from_bits(*loss)).collect();
            let learns = losses.len() == STEPS && losses.iter().all(|loss| loss.is_finite());
            assert!(learns && losses[0] != losses[STEPS - 1], "{name}: {losses:?}");
            assert!(one == two, "{name} {kernels:?} {precision}: 1 and 2 threads differ");
            assert!(one == three, "{name} {kernels:?} {precision}: 1 and 3 threads differ");
        }
    }
}

fn stream() -> Stream {
    Stream::new(SEED, "weights")
}

#[test]
fn a_transformer() {
    let scored = Scored(|model: &Transformer, batch: &Batch, streams: Streams| {
        model.logits(batch.inputs.clone(), None, streams.dropout)
    });
    check("transformer", |precision| {
        let config = TransformerConfig {
            width: 48,
            heads: 3,
            layers: 2,
            feedforward: 100,
            head_hidden: 17,
            positions: Positions::Learned,
            ..TransformerConfig::default()
        };
        let model = config.init(stream(), 3, TIME, CLASSES, &Device::default()).unwrap();
        run(model.in_precision(precision), &scored, 3, 37)
    });
}

#[test]
fn a_small_bert() {
    let scored = Scored(|model: &Bert, batch: &Batch, streams: Streams| {
        let [samples, time, _] = batch.inputs.dims();
        let tokens = batch.inputs.clone().reshape([samples, time]).int();
        model.logits(tokens, None, streams.dropout)
    });
    check("bert", |precision| {
        let config = BertConfig {
            vocabulary: VOCABULARY,
            positions: TIME,
            width: 48,
            heads: 3,
            layers: 2,
            feedforward: 192,
            labels: CLASSES,
            ..BertConfig::default()
        };
        let model = config.init(stream(), &Device::default()).unwrap();
        run(model.in_precision(precision), &scored, 1, 37)
    });
}

#[test]
fn a_dense_network() {
    let scored = Scored(|model: &Mlp, batch: &Batch, streams: Streams| {
        model.logits(batch.inputs.clone(), streams.dropout)
    });
    check("mlp", |precision| {
        let config = MlpConfig::default();
        let model = config.init(stream(), [TIME, 3], CLASSES, &Device::default()).unwrap();
        run(model.in_precision(precision), &scored, 3, 301)
    });
}

#[test]
fn convolutions_and_an_lstm() {
    let scored = Scored(|model: &CnnBiLstm, batch: &Batch, streams: Streams| {
        let noise = GaussianNoise { deviation: 0.01, stream: streams.samples };
        model.logits(batch.inputs.clone(), None, Some(noise), streams.dropout)
    });
    check("cnn-lstm", |precision| {
        let config = CnnBiLstmConfig {
            convolutions: vec![20, 33],
            hidden: 17,
            head: 21,
            embedding: 11,
            classifier: vec![13],
            ..CnnBiLstmConfig::default()
        };
        let model = config.init(stream(), 3, CLASSES, &Device::default()).unwrap();
        run(model.in_precision(precision), &scored, 3, 37)
    });
}

#[test]
fn a_masked_autoencoder_of_lstms() {
    check("lstm-mae", |precision| {
        let config =
            BiLstmMaeConfig { hidden: 33, decoder_hidden: 19, ..BiLstmMaeConfig::default() };
        let model = config.init(stream(), 3, &Device::default()).unwrap();
        run(model.in_precision(precision), &Pretraining, 3, 67)
    });
}
