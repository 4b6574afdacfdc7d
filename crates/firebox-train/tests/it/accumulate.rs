//! Accumulated batches with masked losses and a tail, scaled, clipped and averaged, and statistics of averaged weights,
//! against PyTorch (`golden_accumulate.py` and `golden_update_bn.py` wrote what it does), in one go and resumed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::support::{Plan, Warnings, weights};
use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::tensor::{Device, Tensor, TensorData};
use firebox_kernels::{BatchNorm, BatchNormConfig, linear};
use firebox_loader::{
    Batch, LoadError, LoaderConfig, Position, Sample, Source, TrainLoader, TrainSource,
};
use firebox_models::{Loss, Parameter, read_parameters};
use firebox_train::{
    AdamWConfig, AverageConfig, Checkpoint, CheckpointConfig, Constant, DIVISIONS_FILE, Data,
    DynamicScale, History, Keep, LossScale, Objective, Optimizer, Outcome, Schedule, SgdConfig,
    Streams, TrainConfig, load_weights, read_weights,
};
use serde::Deserialize;

const TIME: usize = 4;
const INPUT: usize = 3;
const OUTPUT: usize = 2;
const EPOCHS: u64 = 3;

#[derive(Deserialize)]
struct Golden {
    inputs: Vec<f32>,
    targets: Vec<f32>,
    mask: Vec<f32>,
    start: Start,
    steps: Vec<Step>,
    weight: Vec<f32>,
    bias: Vec<f32>,
    average_weight: Vec<f32>,
    average_bias: Vec<f32>,
    equal_weight: Vec<f32>,
    equal_bias: Vec<f32>,
}

#[derive(Deserialize)]
struct Start {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

#[derive(Deserialize)]
struct Step {
    loss: f64,
    norm: f64,
    scale: f64,
}

fn read<T: serde::de::DeserializeOwned>(name: &str) -> T {
    let path = "tests/golden/";
    serde_json::from_str(&std::fs::read_to_string(format!("{path}{name}")).unwrap()).unwrap()
}

fn golden() -> Golden {
    read("accumulate.json")
}

/// PyTorch's `[out, in]` as Burn's `[in, out]`, flat.
fn transposed(weight: &[f32]) -> Vec<f32> {
    (0..INPUT * OUTPUT).map(|at| weight[at % OUTPUT * INPUT + at / OUTPUT]).collect()
}

struct Inputs(Vec<f32>);

impl Source for Inputs {
    fn len(&self) -> usize {
        self.0.len() / (TIME * INPUT)
    }

    fn shape(&self) -> [usize; 2] {
        [TIME, INPUT]
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        let size = TIME * INPUT;
        out[..size].copy_from_slice(&self.0[index * size..][..size]);
        Ok(Sample { length: TIME as u32, label: None })
    }

    fn classes(&self) -> &[String] {
        &[]
    }
}

impl TrainSource for Inputs {}

/// The mean squared error of the values that count.
struct Masked(Golden);

impl Objective<Linear> for Masked {
    fn loss(&self, model: &Linear, batch: &Batch, _: Streams) -> Loss {
        let device = Device::default();
        let of = |values: &[f32], width: usize| -> Tensor<2> {
            let size = TIME * width;
            let rows = batch.indices.iter().flat_map(|index| &values[index * size..][..size]);
            let rows: Vec<f32> = rows.copied().collect();
            Tensor::from_data(TensorData::new(rows, [batch.len() * TIME, width]), &device)
        };
        let mask = of(&self.0.mask, 1);
        let count = f64::from(mask.clone().sum().into_scalar::<f32>()) * OUTPUT as f64;
        let x = batch.inputs.clone().reshape([batch.len() * TIME, INPUT]);
        let error = (linear(x, model) - of(&self.0.targets, OUTPUT)).square() * mask;
        Loss { value: error.sum() / count.max(1.0), weight: count, parts: vec![] }
    }
}

fn loader(batch_size: usize) -> TrainLoader {
    loader_of(golden().inputs, batch_size)
}

fn loader_of(inputs: Vec<f32>, batch_size: usize) -> TrainLoader {
    let config = LoaderConfig {
        batch_size,
        workers: 0,
        prefetch: 1,
        seed: crate::support::SEED,
        ..LoaderConfig::default()
    };
    TrainLoader::new(Arc::new(Inputs(inputs)), config, Device::default()).unwrap()
}

fn model() -> Linear {
    let Start { weight, bias } = golden().start;
    let weight = TensorData::new(transposed(&weight), [INPUT, OUTPUT]);
    let (weight, bias) = (
        Tensor::from_data(weight, &Device::default()),
        Tensor::from_data(bias.as_slice(), &Device::default()),
    );
    Linear { weight: Param::from_tensor(weight), bias: Some(Param::from_tensor(bias)) }
}

fn config(accumulate: u64) -> TrainConfig {
    let adamw = AdamWConfig { learning_rate: 0.05, weight_decay: 0.01, ..AdamWConfig::default() };
    let dynamic = DynamicScale { initial: 1024.0, interval: 2, ..DynamicScale::default() };
    TrainConfig {
        epochs: EPOCHS,
        optimizer: Optimizer::AdamW(adamw),
        schedule: Schedule::Constant(Constant::default()),
        clip: Some(1.0),
        loss_scale: LossScale::Dynamic(dynamic),
        accumulate,
        average: Some(AverageConfig { decay: 0.9, evaluate: true, ..AverageConfig::default() }),
        early_stopping: None,
        // The last weights, not those of the epoch with the lowest loss.
        checkpoint: CheckpointConfig { keep: Keep::FinalOnly, ..CheckpointConfig::default() },
        ..TrainConfig::default()
    }
}

#[track_caller]
fn near(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 5e-6, "{what}: {found}, {expected}");
    }
}

#[test]
fn the_order_is_that_of_the_golden_file() {
    let order: Vec<Vec<usize>> = read("order.json");
    let loader = loader(3);
    let epoch = |epoch| -> Vec<usize> {
        let batches = loader.epoch(Position { epoch, batch: 0 });
        batches.flat_map(|batch| batch.unwrap().indices).collect()
    };
    assert_eq!((0..EPOCHS).map(epoch).collect::<Vec<_>>(), order);
}

#[test]
fn accumulated_masked_batches_are_pytorchs() {
    let golden = golden();
    let (objective, loader) = (Masked(self::golden()), loader(3));
    let data = Data { train: &loader, validation: None };
    // Uninterrupted, and resumed after each step of the second epoch and of its tail.
    for stop_at in [None, Some(2), Some(3), Some(5)] {
        let folder = tempfile::tempdir().unwrap();
        let plan = Plan { stop_at, ..Plan::new(folder.path()) };
        let mut trained = plan.train(model(), &objective, data, &config(2)).unwrap();
        if stop_at.is_some() {
            assert_eq!(trained.summary.outcome, Outcome::Interrupted);
            let plan = Plan::resumed(folder.path());
            trained = plan.train(model(), &objective, data, &config(2)).unwrap();
        }
        let history = History::read(folder.path()).unwrap();
        assert_eq!(history.steps.len(), golden.steps.len());
        for (found, expected) in history.steps.iter().zip(&golden.steps) {
            let what = format!("step {}", found.step);
            assert!((found.loss - expected.loss).abs() < 2e-6 * expected.loss, "{what}: loss");
            assert!((found.gradient_norm / expected.norm - 1.0).abs() < 1e-5, "{what}: norm");
            assert_eq!(found.loss_scale, expected.scale, "{what}");
        }
        let average = [golden.average_weight.clone(), golden.average_bias.clone()].concat();
        near("average", &weights(&trained.model), &average);
        // The weights themselves are beside their average.
        let mut plain = model();
        let selected = trained.summary.selected_path(folder.path());
        assert!(Checkpoint::open(&selected).unwrap().has_average());
        load_weights(&selected, &mut plain).unwrap();
        near("weights", &weights(&plain), &[golden.weight.clone(), golden.bias.clone()].concat());
        // Whoever begins with the run's weights begins with its model, and with the checkpoint's with those.
        let read = |path: &Path| {
            let (mut parameters, _) = read_weights(path).unwrap();
            // By name: the bias comes first.
            parameters.reverse();
            parameters.into_iter().flat_map(|own| own.values).collect::<Vec<f32>>()
        };
        near("weights of the run", &read(folder.path()), &average);
        near("weights of the checkpoint", &read(&selected), &weights(&plain));
    }
}

#[test]
fn equal_averages_from_an_epoch_on_are_those_of_pytorchs_swa() {
    let golden = golden();
    let (objective, loader) = (Masked(self::golden()), loader(3));
    let data = Data { train: &loader, validation: None };
    let swa = AverageConfig { equal: true, from_epoch: 1, ..AverageConfig::default() };
    let config = TrainConfig { average: Some(swa), ..config(2) };
    // Two updates an epoch: before it begins, at its first, and within.
    for stop_at in [None, Some(1), Some(2), Some(3), Some(5)] {
        let folder = tempfile::tempdir().unwrap();
        let plan = Plan { stop_at, ..Plan::new(folder.path()) };
        let mut trained = plan.train(model(), &objective, data, &config).unwrap();
        if stop_at.is_some() {
            assert_eq!(trained.summary.outcome, Outcome::Interrupted);
            trained =
                Plan::resumed(folder.path()).train(model(), &objective, data, &config).unwrap();
        }
        let expected = [golden.equal_weight.clone(), golden.equal_bias.clone()].concat();
        near("equal average", &weights(&trained.model), &expected);
    }
}

#[test]
fn one_batch_is_its_parts() {
    // Six samples at once are two batches of three: the same updates but for rounding.
    let objective = Masked(golden());
    let run = |batch_size, accumulate| {
        let folder = tempfile::tempdir().unwrap();
        let loader = loader(batch_size);
        let data = Data { train: &loader, validation: None };
        let plan = Plan::new(folder.path());
        weights(&plan.train(model(), &objective, data, &config(accumulate)).unwrap().model)
    };
    near("one batch", &run(6, 1), &run(3, 2));
    near("single samples", &run(1, 6), &run(3, 2));
}

/// What `golden_update_bn.py` wrote: parameters by name.
#[derive(Deserialize)]
struct Fitted {
    inputs: Vec<f32>,
    targets: Vec<f32>,
    start: BTreeMap<String, Vec<f32>>,
    latest: BTreeMap<String, Vec<f32>>,
    two: BTreeMap<String, Vec<f32>>,
    epoch: BTreeMap<String, Vec<f32>>,
}

#[derive(Module, Debug)]
struct Normed {
    input: Linear,
    norm: BatchNorm,
    output: Linear,
}

impl Normed {
    fn new(start: &BTreeMap<String, Vec<f32>>) -> Self {
        let device = Device::default();
        let layer = |name: &str, [inputs, outputs]: [usize; 2]| {
            let weight =
                TensorData::new(start[&format!("{name}.weight")].clone(), [outputs, inputs]);
            let bias = start[&format!("{name}.bias")].as_slice();
            Linear {
                weight: Param::from_tensor(Tensor::<2>::from_data(weight, &device).transpose()),
                bias: Some(Param::from_tensor(Tensor::from_data(bias, &device))),
            }
        };
        Self {
            input: layer("input", [INPUT, 3]),
            norm: BatchNormConfig::new(3).init(&device),
            output: layer("output", [3, OUTPUT]),
        }
    }
}

/// The mean squared error.
struct Near(Fitted);

impl Objective<Normed> for Near {
    fn loss(&self, model: &Normed, batch: &Batch, _: Streams) -> Loss {
        let size = TIME * OUTPUT;
        let rows = batch.indices.iter().flat_map(|index| &self.0.targets[index * size..][..size]);
        let rows: Vec<f32> = rows.copied().collect();
        let [samples, count] = [batch.len(), batch.len() * TIME];
        let targets = TensorData::new(rows, [count, OUTPUT]);
        let x = linear(batch.inputs.clone().reshape([count, INPUT]), &model.input);
        let y = model.norm.forward(x.reshape([samples, TIME, 3])).reshape([count, 3]);
        let error = linear(y, &model.output) - Tensor::<2>::from_data(targets, &Device::default());
        Loss { value: error.square().mean(), weight: batch.len() as f64, parts: vec![] }
    }
}

#[test]
fn statistics_of_equal_averages_are_those_of_pytorchs_update_bn() {
    let golden = || -> Fitted { read("update_bn.json") };
    let (objective, loader) = (Near(golden()), loader_of(golden().inputs, 4));
    let data = Data { train: &loader, validation: None };
    let run = |own: AverageConfig, stop_at: Option<u64>| {
        let folder = tempfile::tempdir().unwrap();
        let sgd = SgdConfig { learning_rate: 0.2, momentum: 0.0, ..SgdConfig::default() };
        let config = TrainConfig {
            epochs: 2,
            optimizer: Optimizer::Sgd(sgd),
            clip: None,
            loss_scale: LossScale::Off,
            average: Some(AverageConfig { equal: true, from_epoch: 1, ..own }),
            ..config(1)
        };
        let plan = Plan { stop_at, ..Plan::new(folder.path()) };
        let model = || Normed::new(&golden().start);
        let mut trained = plan.train(model(), &objective, data, &config).unwrap();
        if stop_at.is_some() {
            assert_eq!(trained.summary.outcome, Outcome::Interrupted);
            let plan = Plan::resumed(folder.path());
            trained = plan.train(model(), &objective, data, &config).unwrap();
        }
        read_parameters(&trained.model)
    };
    let over = |count| AverageConfig { statistics_batches: count, ..AverageConfig::default() };
    // Each epoch has three batches; more than that are that many.
    let cases = [
        (over(None), golden().epoch),
        (over(Some(9)), golden().epoch),
        (over(Some(2)), golden().two),
        (over(Some(0)), golden().latest),
    ];
    for (own, expected) in &cases {
        let found = run(*own, None);
        assert_eq!(found.len(), expected.len());
        for Parameter { name, values, .. } in &found {
            near(&format!("{name}, {:?}", own.statistics_batches), values, &expected[name]);
        }
        // The last one while the statistics are computed, if they are.
        for stop_at in 2..=if own.statistics_batches == Some(0) { 5 } else { 6 } {
            assert_eq!(run(*own, Some(stop_at)), found, "stopped after step {stop_at}");
        }
    }
    // They are not what they were.
    let [latest, epoch] =
        [golden().latest, golden().epoch].map(|mut all| all.remove("norm.running_var").unwrap());
    assert!(latest.iter().zip(epoch).any(|(latest, epoch)| (latest - epoch).abs() > 0.01));
}

#[test]
fn statistics_that_no_part_of_a_batch_has_are_told_once() {
    let golden = || -> Fitted { read("update_bn.json") };
    let told = |parts: u64| {
        let folder = tempfile::tempdir().unwrap();
        // As a run leaves it that had too little memory.
        let division = format!(r#"[{{"step": 1, "parts": {parts}, "bytes": null}}]"#);
        std::fs::write(folder.path().join(DIVISIONS_FILE), division).unwrap();
        // Batches of four and four windows, and of two.
        let (objective, loader) = (Near(golden()), loader_of(golden().inputs, 4));
        let average = Some(AverageConfig { equal: true, ..AverageConfig::default() });
        let config = TrainConfig { epochs: 2, loss_scale: LossScale::Off, average, ..config(1) };
        let warnings = Warnings::default();
        let plan = Plan { watch: &|event| warnings.take(event), ..Plan::new(folder.path()) };
        let data = Data { train: &loader, validation: None };
        plan.train(Normed::new(&golden().start), &objective, data, &config).unwrap();
        let said = warnings.0.into_inner().unwrap();
        said.iter().filter(|said| said.contains("running statistics of the latest")).count()
    };
    // Of both epochs together; in two parts, the largest batches have two windows each.
    assert_eq!([4, 2, 1].map(told), [1, 0, 0]);
}
