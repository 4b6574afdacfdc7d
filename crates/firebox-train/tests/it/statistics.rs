//! Running statistics of batch normalisation are state like the weights: saved, restored, brought
//! back by a rollback, and never trained.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::support::{Plan, SEED, Waves, held_out, loader, steps};
use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::Device;
use firebox_core::{Event, Stream};
use firebox_kernels::{BatchNorm, BatchNormConfig, init_linear, linear};
use firebox_loader::{
    Batch, LoadError, LoaderConfig, Position, Sample, Source, TrainLoader, TrainSource,
};
use firebox_models::{Loss, Parameter, read_parameters};
use firebox_train::{
    AverageConfig, CheckpointConfig, DIVISIONS_FILE, Data, Keep, NonFinite, Objective, Outcome,
    ParameterGroup, Streams, TrainConfig, TrainError, load_weights,
};

#[derive(Module, Debug)]
struct Normed {
    norm: BatchNorm,
    output: Linear,
}

fn model() -> Normed {
    let device = Device::default();
    Normed {
        norm: BatchNormConfig::new(2).init(&device),
        output: init_linear(Stream::new(SEED, "weights"), 2, 1, &device),
    }
}

/// Draws one output to the mean of the inputs; not a number at one step (from 0), before the
/// normalisation.
struct ToMean {
    broken: Option<u64>,
}

impl Objective<Normed> for ToMean {
    fn loss(&self, model: &Normed, batch: &Batch, streams: Streams) -> Loss {
        let step = |step| Stream::new(SEED, "masks").substream(step);
        let broken = self.broken.is_some_and(|broken| streams.samples == step(broken));
        let inputs = batch.inputs.clone() * if broken { f64::NAN } else { 1.0 };
        let [samples, time, channels] = inputs.dims();
        let normal = model.norm.forward(inputs).reshape([samples * time, channels]);
        let target = batch.inputs.clone().mean_dim(2).reshape([samples * time, 1]);
        let value = (linear(normal, &model.output) - target).square().mean();
        Loss { value, weight: samples as f64, parts: vec![] }
    }
}

fn config(non_finite: NonFinite) -> TrainConfig {
    TrainConfig {
        epochs: 2,
        early_stopping: None,
        non_finite,
        checkpoint: CheckpointConfig { keep: Keep::EverySteps(2), ..CheckpointConfig::default() },
        ..TrainConfig::default()
    }
}

fn named(model: &Normed, name: &str) -> Vec<f32> {
    let all = read_parameters(model);
    all.into_iter().find(|parameter| parameter.name == name).unwrap().values
}

#[test]
fn a_resumed_run_ends_with_the_same_statistics_and_losses() {
    let (loader, validation) = (loader(24, 4), held_out(9));
    let data = Data { train: &loader, validation: Some(&validation) };
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let config = config(NonFinite::Stop);
    let objective = ToMean { broken: None };
    let plain = Plan::new(whole.path()).train(model(), &objective, data, &config).unwrap();
    // In the middle of an epoch, and right before its validation, which reads the statistics.
    let mut plan = Plan { stop_at: Some(3), ..Plan::new(parts.path()) };
    for stop in [5, 6] {
        let stopped = plan.train(model(), &objective, data, &config).unwrap();
        assert_eq!(stopped.summary.outcome, Outcome::Interrupted);
        plan = Plan { stop_at: Some(stop), ..Plan::resumed(parts.path()) };
    }
    let resumed = Plan::resumed(parts.path()).train(model(), &objective, data, &config).unwrap();
    assert_eq!(read_parameters(&resumed.model), read_parameters(&plain.model));
    assert_eq!(steps(parts.path()), steps(whole.path()));
    assert_eq!(resumed.summary.best, plain.summary.best);
    for (name, start) in [("norm.running_mean", 0.0), ("norm.running_var", 1.0)] {
        assert!(named(&plain.model, name).iter().all(|x| x.is_finite() && *x != start), "{name}");
    }
}

#[test]
fn statistics_are_no_targets_of_the_optimizer() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let folder = tempfile::tempdir().unwrap();
    let (plan, config) = (Plan::new(folder.path()), config(NonFinite::Stop));
    let trained = plan.train(model(), &ToMean { broken: None }, data, &config).unwrap();
    let path = trained.summary.selected_path(folder.path()).join("optimizer.safetensors");
    let bytes = std::fs::read(path).unwrap();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    assert!(text.contains("norm.weight") && !text.contains("running"));
    // The mean of twelve batches, weighted by the momentum: within what the data allow.
    let variance = named(&trained.model, "norm.running_var");
    assert!(variance.iter().all(|x| (0.05..3.0).contains(x)), "{variance:?}");
}

#[test]
fn a_rollback_brings_the_statistics_back() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let folder = tempfile::tempdir().unwrap();
    let objective = ToMean { broken: Some(7) };
    let config = config(NonFinite::Rollback);
    let trained = Plan::new(folder.path()).train(model(), &objective, data, &config).unwrap();
    assert_eq!(trained.summary.counts.rollbacks, 1);
    let at = |step: &str| {
        let mut model = model();
        load_weights(&folder.path().join("checkpoints").join(step), &mut model).unwrap();
        model
    };
    // Step 8 is the broken one: it takes back what steps 7 and 8 made of the checkpoint of step 6.
    let [before, after, later] = ["step-000006", "step-000008", "step-000010"].map(at);
    assert_eq!(read_parameters(&after), read_parameters(&before));
    for name in ["norm.running_mean", "norm.running_var"] {
        assert!(named(&trained.model, name).iter().all(|x| x.is_finite()), "{name}");
        assert_ne!(named(&later, name), named(&after, name), "{name}");
    }
}

#[test]
fn statistics_of_averages_are_the_same_wherever_a_run_was_stopped() {
    let (loader, validation) = (loader(24, 4), held_out(9));
    let data = Data { train: &loader, validation: Some(&validation) };
    let objective = ToMean { broken: None };
    let equal = AverageConfig { equal: true, ..AverageConfig::default() };
    let config = TrainConfig {
        epochs: 3,
        validate_every: 2,
        average: Some(equal),
        ..config(NonFinite::Stop)
    };
    let run = |config: &TrainConfig, divided: bool, stop_at: Option<u64>| {
        let folder = tempfile::tempdir().unwrap();
        if divided {
            let division = r#"[{"work": "statistics", "step": 1, "parts": 2, "bytes": null}]"#;
            std::fs::write(folder.path().join(DIVISIONS_FILE), division).unwrap();
        }
        let plan = Plan { stop_at, ..Plan::new(folder.path()) };
        let mut trained = plan.train(model(), &objective, data, config).unwrap();
        if stop_at.is_some() {
            assert_eq!(trained.summary.outcome, Outcome::Interrupted);
            let plan = Plan::resumed(folder.path());
            trained = plan.train(model(), &objective, data, config).unwrap();
        }
        (read_parameters(&trained.model), trained.summary.best)
    };
    let frozen = ParameterGroup {
        parameters: vec!["norm.*".to_owned()],
        frozen: true,
        ..ParameterGroup::default()
    };
    let frozen = TrainConfig { groups: vec![frozen], ..config.clone() };
    let of = |(parameters, _): &(Vec<Parameter>, _), name: &str| -> Vec<f32> {
        parameters.iter().find(|own| own.name == name).unwrap().values.clone()
    };
    let (whole, parts) = (run(&config, false, None), run(&config, true, None));
    // Means of the same inputs, whatever they are divided into; variances of smaller batches are others.
    let pairs = of(&whole, "norm.running_mean").into_iter().zip(of(&parts, "norm.running_mean"));
    assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() < 1e-5));
    assert_ne!(of(&whole, "norm.running_var"), of(&parts, "norm.running_var"));
    let still = run(&frozen, false, None);
    assert_eq!(of(&still, "norm.running_mean"), [0.0; 2]);
    // Within an epoch, at the end of one that is not validated, and of both that are.
    for stop_at in [8, 6, 12, 18] {
        assert_eq!(run(&config, false, Some(stop_at)), whole, "{stop_at}");
        assert_eq!(run(&config, true, Some(stop_at)), parts, "{stop_at}");
        assert_eq!(run(&frozen, false, Some(stop_at)), still, "{stop_at}");
    }
}

/// Eight samples of eight steps and one of four, each the same at all of its steps.
struct Unlike;

impl Unlike {
    fn step(index: usize) -> [f32; 2] {
        [index as f32 - 3.0, (index * index) as f32 / 16.0]
    }
}

impl Source for Unlike {
    fn len(&self) -> usize {
        9
    }

    fn shape(&self) -> [usize; 2] {
        [8, 2]
    }

    fn length(&self, index: usize) -> usize {
        if index == 8 { 4 } else { 8 }
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        let length = self.length(index);
        for step in out.chunks_exact_mut(2).take(length) {
            step.copy_from_slice(&Self::step(index));
        }
        Ok(Sample { length: length as u32, label: None })
    }

    fn classes(&self) -> &[String] {
        &[]
    }
}

impl TrainSource for Unlike {}

/// Draws an output of each sample's mean to zero: its normalisation has one row of a sample.
struct OfMeans;

impl Objective<Normed> for OfMeans {
    fn loss(&self, model: &Normed, batch: &Batch, _: Streams) -> Loss {
        let normal = model.norm.forward(batch.inputs.clone().mean_dim(1));
        let output = linear(normal.reshape([batch.len(), 2]), &model.output);
        Loss { value: output.square().mean(), weight: batch.len() as f64, parts: vec![] }
    }
}

#[test]
fn a_first_batch_of_one_row_leaves_nothing_of_the_latest_statistics() {
    // The batches of the epoch after the first, of four, four and one.
    let ordered = |seed| {
        let config = LoaderConfig {
            batch_size: 4,
            buckets: 4,
            workers: 0,
            prefetch: 1,
            seed,
            ..LoaderConfig::default()
        };
        let loader = TrainLoader::new(Arc::new(Unlike), config, Device::default()).unwrap();
        let batches = loader.epoch_beside(Position { epoch: 1, batch: 0 });
        let order: Vec<Vec<usize>> = batches.map(|batch| batch.unwrap().indices).collect();
        (loader, order)
    };
    let (loader, order) = (0..100).map(ordered).find(|(_, order)| order[0].len() == 1).unwrap();
    assert_eq!(order[1..].iter().map(Vec::len).collect::<Vec<_>>(), [4, 4]);
    let data = Data { train: &loader, validation: None };
    for count in [2, 3] {
        let average = AverageConfig {
            equal: true,
            statistics_batches: Some(count),
            ..AverageConfig::default()
        };
        let checkpoint = CheckpointConfig { keep: Keep::FinalOnly, ..CheckpointConfig::default() };
        let config = TrainConfig {
            epochs: 1,
            average: Some(average),
            checkpoint,
            ..config(NonFinite::Stop)
        };
        let folder = tempfile::tempdir().unwrap();
        let trained = Plan::new(folder.path()).train(model(), &OfMeans, data, &config).unwrap();
        let [means, variances] =
            ["norm.running_mean", "norm.running_var"].map(|name| named(&trained.model, name));
        for (channel, found) in means.into_iter().zip(variances).enumerate() {
            // Of the batches of several, each as much as the others.
            let (mut mean, mut variance) = (0.0, 0.0);
            let batches = &order[1..count as usize];
            for batch in batches {
                let rows = || batch.iter().map(|index| f64::from(Unlike::step(*index)[channel]));
                let own = rows().sum::<f64>() / 4.0;
                mean += own / batches.len() as f64;
                variance +=
                    rows().map(|row| (row - own).powi(2)).sum::<f64>() / (3 * batches.len()) as f64;
            }
            let near = |found: f32, expected: f64| (f64::from(found) - expected).abs() < 1e-4;
            assert!(
                near(found.0, mean) && near(found.1, variance),
                "channel {channel} over {count} batches: {found:?}, not {mean} and {variance}"
            );
        }
    }
}

/// [`ToMean`] on a device that is short of memory from the fourth step on, and finds out after the normalisation.
struct Scarce {
    most: usize,
}

impl Objective<Normed> for Scarce {
    fn loss(&self, model: &Normed, batch: &Batch, streams: Streams) -> Loss {
        let step = |step| Stream::new(SEED, "masks").substream(step);
        let begun = (0..3).all(|before| streams.samples != step(before));
        let loss = ToMean { broken: None }.loss(model, batch, streams);
        assert!(!begun || batch.len() <= self.most, "CUDA_ERROR_OUT_OF_MEMORY: out of memory");
        loss
    }
}

#[test]
fn a_step_that_is_computed_again_for_want_of_memory_moves_statistics_once() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let config = TrainConfig { accumulate: 2, ..config(NonFinite::Stop) };
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [scarce, enough] = &folders;
    let train = |folder: &std::path::Path, most| {
        let trained = Plan::new(folder).train(model(), &Scarce { most }, data, &config).unwrap();
        (read_parameters(&trained.model), trained.summary.divisions)
    };
    let divided = train(scarce.path(), 2);
    assert_eq!(divided.1.iter().map(|d| (d.step, d.parts)).collect::<Vec<_>>(), [(4, 2)]);
    // With enough memory the file alone makes the same of it, and no step is computed twice.
    let file = |folder: &std::path::Path| folder.join(DIVISIONS_FILE);
    std::fs::copy(file(scarce.path()), file(enough.path())).unwrap();
    assert_eq!(train(enough.path(), 4), divided);
}

/// Waves of which one cannot be read while `fails` is set.
struct Failing {
    waves: Waves,
    fails: Arc<AtomicBool>,
}

impl Source for Failing {
    fn len(&self) -> usize {
        self.waves.len()
    }

    fn shape(&self) -> [usize; 2] {
        self.waves.shape()
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        match index == 17 && self.fails.load(Ordering::Relaxed) {
            true => Err(LoadError::Sample { index, source: "the disk has gone".into() }),
            false => self.waves.read(index, out),
        }
    }

    fn classes(&self) -> &[String] {
        &[]
    }
}

impl TrainSource for Failing {}

/// [`ToMean`], counting its batches.
struct Counted(AtomicUsize);

impl Objective<Normed> for Counted {
    fn loss(&self, model: &Normed, batch: &Batch, streams: Streams) -> Loss {
        self.0.fetch_add(1, Ordering::Relaxed);
        ToMean { broken: None }.loss(model, batch, streams)
    }
}

#[test]
fn a_step_that_was_given_up_half_way_moves_no_statistics() {
    let fails = Arc::<AtomicBool>::default();
    let source = Failing { waves: Waves { samples: 24, seed: 1 }, fails: Arc::clone(&fails) };
    let batches =
        LoaderConfig { batch_size: 4, workers: 1, prefetch: 2, seed: SEED, ..Default::default() };
    let loader = TrainLoader::new(Arc::new(source), batches, Device::default()).unwrap();
    let data = Data { train: &loader, validation: None };
    // An epoch is a step of six batches.
    let config = TrainConfig { accumulate: 6, epochs: 3, ..config(NonFinite::Stop) };
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [whole, failed] = &folders;
    let objective = || Counted(AtomicUsize::new(0));
    let plain = Plan::new(whole.path()).train(model(), &objective(), data, &config).unwrap();
    let watch = |event: &Event| {
        if let Event::Epoch { epoch: 1, .. } = event {
            fails.store(true, Ordering::Relaxed);
        }
    };
    let (plan, counted) = (Plan { watch: &watch, ..Plan::new(failed.path()) }, objective());
    let error = plan.train(model(), &counted, data, &config).err().unwrap();
    assert!(matches!(error, TrainError::Load(LoadError::Sample { index: 17, .. })), "{error}");
    let computed = counted.0.into_inner();
    assert!((7..12).contains(&computed), "some batches of the second step: {computed}");
    fails.store(false, Ordering::Relaxed);
    let plan = Plan::resumed(failed.path());
    let resumed = plan.train(model(), &objective(), data, &config).unwrap();
    assert_eq!(read_parameters(&resumed.model), read_parameters(&plain.model));
    assert_eq!(steps(failed.path()), steps(whole.path()));
}
