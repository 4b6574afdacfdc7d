//! Parameter groups, other optimizers and averaged weights in whole runs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::{
    Plan, Point, ToMean, Warnings, autoencoder, held_out, loader, point, steps, weights,
};
use burn::backend::Flex;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use firebox_core::{Event, Stream};
use firebox_kernels::{CpuKernels, uniform};
use firebox_loader::Batch;
use firebox_models::{Loss, Pretrain, PretrainBatch, read_parameters};
use firebox_train::{
    AverageConfig, CheckpointConfig, Clip, Data, DynamicScale, Gradients, Keep, LayerDecay,
    LossScale, Objective, Optimizer, OptimizerState, Outcome, ParameterGroup, Pretraining,
    SgdConfig, SquaredNorm, Streams, TrainConfig, TrainError, UpdateBy, checkpoints, load_average,
    load_weights,
};

fn every_epoch(config: TrainConfig) -> TrainConfig {
    let keep = Keep::EveryEpoch;
    let checkpoint = CheckpointConfig { keep, ..CheckpointConfig::default() };
    TrainConfig { early_stopping: None, checkpoint, ..config }
}

/// The weights of a run's checkpoints by name, the oldest first.
fn by_epoch(folder: &Path) -> Vec<BTreeMap<String, Vec<f32>>> {
    let mut all = checkpoints(&folder.join("checkpoints")).unwrap();
    all.reverse();
    all.iter()
        .map(|checkpoint| {
            let mut model = autoencoder(0.0, 0.1);
            load_weights(checkpoint.path(), &mut model).unwrap();
            read_parameters(&model).into_iter().map(|p| (p.name, p.values)).collect()
        })
        .collect()
}

fn group(parameters: &str) -> ParameterGroup {
    ParameterGroup { parameters: vec![parameters.to_owned()], ..ParameterGroup::default() }
}

#[test]
fn what_is_frozen_stays_until_its_epoch() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let config = every_epoch(TrainConfig {
        epochs: 3,
        groups: vec![
            ParameterGroup { frozen: true, ..group("lstm.*_l1*") },
            ParameterGroup { unfreeze_at: Some(3), learning_rate: Some(1e-4), ..group("lstm.*") },
        ],
        ..TrainConfig::default()
    });
    let folder = tempfile::tempdir().unwrap();
    Plan::new(folder.path()).train(autoencoder(0.0, 0.1), &Pretraining, data, &config).unwrap();
    let start: BTreeMap<_, _> =
        read_parameters(&autoencoder(0.0, 0.1)).into_iter().map(|p| (p.name, p.values)).collect();
    let epochs = by_epoch(folder.path());
    assert_eq!(epochs.len(), 3);
    for (name, first) in &start {
        let stays = |epoch: usize| &epochs[epoch][name] == first;
        let expected = match name {
            name if name.starts_with("lstm.") && name.contains("_l1") => [true, true, true],
            name if name.starts_with("lstm.") => [true, true, false],
            _ => [false, false, false],
        };
        assert_eq!([stays(0), stays(1), stays(2)], expected, "{name}");
    }
    // Six steps of AdamW at 1e-4 cannot go further than this, and at 1e-3 they would.
    let name = "lstm.weight_hh_l0";
    let moved = epochs[2][name].iter().zip(&start[name]).map(|(a, b)| (a - b).abs());
    let furthest = moved.fold(0.0, f32::max);
    assert!(furthest > 1e-5 && furthest < 7e-4, "{furthest}");
}

#[test]
fn layers_learn_at_their_own_rates() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let layers = ["lstm.*_l0*", "lstm.*_l1*", "decoder*"].map(str::to_owned).to_vec();
    let config = TrainConfig {
        max_steps: Some(1),
        layer_decay: Some(LayerDecay { factor: 0.1, layers }),
        ..every_epoch(TrainConfig::default())
    };
    let folder = tempfile::tempdir().unwrap();
    let run = |folder: &Path, config: &TrainConfig| {
        Plan::new(folder).train(autoencoder(0.0, 0.1), &Pretraining, data, config)
    };
    run(folder.path(), &config).unwrap();
    let start = read_parameters(&autoencoder(0.0, 0.1));
    let after = &by_epoch(folder.path())[0];
    let rate = steps(folder.path())[0].0.learning_rate;
    for parameter in start {
        let factor = match &parameter.name {
            name if name.contains("lstm") && name.contains("_l0") => 0.01,
            name if name.contains("lstm") && name.contains("_l1") => 0.1,
            _ => 1.0,
        };
        // The first step of AdamW moves each weight by its rate.
        let moved = after[&parameter.name].iter().zip(&parameter.values);
        let furthest = moved.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let ratio = f64::from(furthest) / (rate * factor);
        assert!((0.9..1.1).contains(&ratio), "{}: {ratio}", parameter.name);
    }
    let groups = vec![group("lstn.*")];
    let other = tempfile::tempdir().unwrap();
    let error = run(other.path(), &TrainConfig { groups, ..config }).unwrap_err();
    assert!(matches!(error, TrainError::Group(_)), "{error}");
    assert!(error.to_string().contains("`train.groups` names `lstn.*`"), "{error}");
}

#[test]
fn averaged_weights_are_kept_validated_and_returned() {
    let (loader, validation) = (loader(24, 4), held_out(8));
    let data = Data { train: &loader, validation: Some(&validation) };
    let run = |evaluate| {
        let folder = tempfile::tempdir().unwrap();
        let config = TrainConfig {
            epochs: 2,
            average: Some(AverageConfig { decay: 0.5, evaluate, ..AverageConfig::default() }),
            checkpoint: CheckpointConfig {
                keep: Keep::EverySteps(1),
                ..CheckpointConfig::default()
            },
            early_stopping: None,
            ..TrainConfig::default()
        };
        let objective = ToMean::default();
        let trained = Plan::new(folder.path()).train(point(), &objective, data, &config).unwrap();
        let mut all = checkpoints(&folder.path().join("checkpoints")).unwrap();
        all.reverse();
        let read = |averaged: bool| -> Vec<f32> {
            let one = |checkpoint: &firebox_train::Checkpoint| {
                let mut model = point();
                match averaged {
                    true => load_average(checkpoint.path(), &mut model).unwrap(),
                    false => load_weights(checkpoint.path(), &mut model).unwrap(),
                }
                weights(&model)[0]
            };
            all.iter().map(one).collect()
        };
        (weights(&trained.model)[0], trained.summary.best.unwrap(), read(false), read(true))
    };
    let (returned, best, plain, averaged) = run(true);
    let mut expected = f64::from(plain[0]);
    for (weight, average) in plain.iter().zip(&averaged) {
        expected += 0.5 * (f64::from(*weight) - expected);
        assert!((expected - f64::from(*average)).abs() < 1e-6, "{expected} {average}");
    }
    assert_eq!(plain.len(), 12);
    assert_eq!(returned, averaged[best.step as usize - 1]);
    let (returned, other, same, _) = run(false);
    assert_eq!(same, plain);
    assert_eq!(returned, plain[other.step as usize - 1]);
    assert_ne!(other.loss, best.loss);
}

#[test]
fn a_resume_is_exact_with_momentum_groups_scale_and_average() {
    let (loader, validation) = (loader(28, 4), held_out(10));
    let data = Data { train: &loader, validation: Some(&validation) };
    let sgd = SgdConfig { nesterov: true, learning_rate: 1e-2, ..SgdConfig::default() };
    let config = TrainConfig {
        accumulate: 2,
        epochs: 3,
        clip: None,
        clip_value: Some(0.1),
        optimizer: Optimizer::Sgd(sgd),
        groups: vec![ParameterGroup { unfreeze_at: Some(2), ..group("lstm.*_l1*") }],
        average: Some(AverageConfig { decay: 0.9, evaluate: true, ..AverageConfig::default() }),
        loss_scale: LossScale::Dynamic(DynamicScale { interval: 3, ..DynamicScale::default() }),
        early_stopping: None,
        ..TrainConfig::default()
    };
    let model = || autoencoder(0.2, 0.1);
    let run = |stops: &[u64]| {
        let folder = tempfile::tempdir().unwrap();
        for stop_at in stops {
            let plan = Plan { stop_at: Some(*stop_at), ..Plan::resumed(folder.path()) };
            let stopped = plan.train(model(), &Pretraining, data, &config).unwrap();
            assert_eq!(stopped.summary.outcome, Outcome::Interrupted, "at {stop_at}");
        }
        let plan = Plan::resumed(folder.path());
        let trained = plan.train(model(), &Pretraining, data, &config).unwrap();
        let all = checkpoints(&folder.path().join("checkpoints")).unwrap();
        let files = all[0].manifest().files.clone();
        let tensors: Vec<_> =
            files.into_iter().filter(|(name, _)| name.ends_with("safetensors")).collect();
        assert_eq!(tensors.len(), 3);
        (weights(&trained.model), tensors, steps(folder.path()))
    };
    let plain = run(&[]);
    assert_eq!(plain.2.last().unwrap().0.loss_scale, 65_536.0 * 8.0);
    assert_eq!(run(&[1, 3, 4, 5, 8, 10]), plain);
}

/// Where the numbers of each parameter lie.
fn places<M: Module>(model: &M) -> Vec<*const f32> {
    struct Visitor(Vec<*const f32>);
    impl ModuleVisitor for Visitor {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let inside = param.base().inner().try_into_primitive::<Flex>().unwrap();
            self.0.push(inside.storage::<f32>().as_ptr());
        }
    }
    let mut visitor = Visitor(vec![]);
    model.visit(&mut visitor);
    visitor.0
}

#[test]
fn weights_are_updated_where_they_lie_after_a_real_backward_pass() {
    if CpuKernels::current() == Ok(CpuKernels::Composed) {
        return;
    }
    let mut model = autoencoder(0.2, 0.1).train();
    let mut optimizer = OptimizerState::new(&model, &TrainConfig::default()).unwrap();
    let (mut before, mut values) = (vec![], weights(&model));
    for step in 0..3 {
        let stream = Stream::new(1, "test").substream(step);
        let inputs = uniform::<3>(stream, [4, 14, 2], -1.0, 1.0, &Device::default());
        let batch = PretrainBatch { inputs, lengths: &[14, 9, 14, 3], indices: &[0, 1, 2, 3] };
        let loss = model.pretrain_loss(&batch, stream, Some(stream));
        let gradients = Gradients::take(&model, loss.value.backward());
        let SquaredNorm::Known(squared_norm) = gradients.squared_norm() else { unreachable!() };
        let by = UpdateBy { learning_rate: 0.1, clip: Clip::Norm(1.0), scale: 1.0, squared_norm };
        assert!(optimizer.step(&mut model, &gradients, by));
        let (after, new_values) = (places(&model), weights(&model));
        // The first step may have to give a parameter memory of its own.
        assert!(step == 0 || after == before, "step {step}");
        assert_ne!(new_values, values);
        (before, values) = (after, new_values);
    }
}

/// Drawn in training away from where its validation loss is least.
struct Away;

impl Objective<Point> for Away {
    fn loss(&self, model: &Point, batch: &Batch, streams: Streams) -> Loss {
        let goal = if streams.dropout.is_some() { 9.0 } else { 0.0 };
        let value = (model.weight.val() - goal).square();
        Loss { value, weight: batch.indices.len() as f64, parts: vec![] }
    }
}

#[test]
fn a_plain_epoch_that_is_better_than_every_average_is_kept_and_said() {
    let (loader, validation) = (loader(24, 4), held_out(8));
    let data = Data { train: &loader, validation: Some(&validation) };
    let average = Some(AverageConfig { equal: true, from_epoch: 1, ..AverageConfig::default() });
    let config = TrainConfig { epochs: 3, early_stopping: None, average, ..TrainConfig::default() };
    let (folder, warnings) = (tempfile::tempdir().unwrap(), Warnings::default());
    let watch = |event: &Event| warnings.take(event);
    let plan = Plan { watch: &watch, ..Plan::new(folder.path()) };
    let trained = plan.train(point(), &Away, data, &config).unwrap();
    let best = trained.summary.best.unwrap();
    let weight = f64::from(weights(&trained.model)[0]);
    assert_eq!(best.epoch, 1);
    assert!((weight * weight - best.loss).abs() < 1e-6, "{weight} {}", best.loss);
    let said = warnings.0.lock().unwrap();
    assert!(said.iter().any(|text| text.contains("epoch 1 has the lowest loss")), "{said:?}");
}

/// Losses that rise from batch to batch, whatever is learnt.
struct Rising(AtomicUsize);

impl Objective<Point> for Rising {
    fn loss(&self, model: &Point, batch: &Batch, _: Streams) -> Loss {
        let before = self.0.fetch_add(1, Ordering::Relaxed) as f64;
        let value = (model.weight.val() - 9.0).square() + 100.0 * before;
        Loss { value, weight: batch.indices.len() as f64, parts: vec![] }
    }
}

#[test]
fn without_validation_data_the_newest_average_is_kept() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let run = |folder: &Path, evaluate| {
        let average = Some(AverageConfig { decay: 0.5, evaluate, ..AverageConfig::default() });
        let config =
            TrainConfig { epochs: 3, early_stopping: None, average, ..TrainConfig::default() };
        let objective = Rising(AtomicUsize::new(0));
        Plan::new(folder).train(point(), &objective, data, &config).unwrap()
    };
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    // Six batches an epoch: the losses of the weights that are trained are least in the first one.
    let plain = run(folders[0].path(), false).summary;
    assert_eq!((plain.best.unwrap().epoch, plain.averaged), (1, false));
    assert_eq!(plain.selected, "step-000006");
    let trained = run(folders[1].path(), true);
    let summary = trained.summary;
    assert_eq!((summary.best, summary.selected.as_str()), (None, "step-000018"));
    assert!(summary.averaged);
    let kept = checkpoints(&folders[1].path().join("checkpoints")).unwrap();
    let [kept] = &kept[..] else { panic!("{}", kept.len()) };
    let mut averaged = point();
    load_average(kept.path(), &mut averaged).unwrap();
    assert_eq!(weights(&trained.model), weights(&averaged));
}
