//! The loop: accumulation, losses that are not finite, early stopping, interruption, results.

use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::{
    Plan, Point, SEED, ToMean, Warnings, autoencoder, config, held_out, loader, point, steps,
    weights,
};
use burn::module::Param;
use burn::tensor::{Device, Tensor};
use firebox_core::{Event, Request, Requests, Stream};
use firebox_loader::Batch;
use firebox_models::Loss;
use firebox_train::{
    CheckpointConfig, Constant, Cosine, Data, EarlyStopping, History, Keep, NonFinite, Objective,
    Optimizer, Outcome, ParameterGroup, Pretraining, Schedule, ScoreError, SgdConfig, Streams,
    TrainConfig, TrainError, Warmup, checkpoints, load_weights,
};

fn every_steps(n: u64) -> CheckpointConfig {
    CheckpointConfig { keep: Keep::EverySteps(n), ..CheckpointConfig::default() }
}

#[test]
fn accumulated_batches_equal_one_batch_and_the_tail_is_kept() {
    // 28 samples: three steps of 12, 12 and 4, from batches of 12 or of 4.
    let run = |batch_size, accumulate| {
        let folder = tempfile::tempdir().unwrap();
        let loader = loader(28, batch_size);
        let data = Data { train: &loader, validation: None };
        let config = TrainConfig { accumulate, epochs: 2, ..config(1e-2) };
        let model = autoencoder(0.0, 0.0);
        let trained = Plan::new(folder.path()).train(model, &Pretraining, data, &config).unwrap();
        assert_eq!(trained.summary.counts.samples, 56);
        (History::read(folder.path()).unwrap(), weights(&trained.model))
    };
    let (whole, parts) = (run(12, 1), run(4, 3));
    assert_eq!((whole.0.steps.len(), parts.0.steps.len()), (6, 6));
    for (a, b) in whole.0.steps.iter().zip(&parts.0.steps) {
        assert_eq!(a.samples, b.samples);
        assert!((a.loss - b.loss).abs() < 1e-4 * a.loss, "{} {}", a.loss, b.loss);
        assert!((a.gradient_norm - b.gradient_norm).abs() < 1e-3 * a.gradient_norm);
    }
    // The first step starts from the same weights: only rounding differs.
    let (a, b) = (&whole.0.steps[0], &parts.0.steps[0]);
    assert!((a.loss - b.loss).abs() < 1e-6 * a.loss && a.loss > 0.0);
    assert!((a.gradient_norm - b.gradient_norm).abs() < 1e-5 * a.gradient_norm);
    for (a, b) in whole.1.iter().zip(&parts.1) {
        assert!((a - b).abs() < 2e-3, "{a} {b}");
    }
}

#[test]
fn batches_that_are_fewer_than_those_of_an_update_are_told() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    for (accumulate, said) in [(6, None), (7, Some("is 7, and an epoch has 6 batches: each epoch"))]
    {
        let folder = tempfile::tempdir().unwrap();
        let warnings = Warnings::default();
        let watch = |event: &Event| warnings.take(event);
        let plan = Plan { watch: &watch, ..Plan::new(folder.path()) };
        let config = TrainConfig { accumulate, ..config(1e-2) };
        let trained = plan.train(point(), &ToMean::default(), data, &config).unwrap();
        assert_eq!(trained.summary.steps, 3);
        let warnings = warnings.0.into_inner().unwrap();
        assert_eq!(warnings.len(), usize::from(said.is_some()), "{warnings:?}");
        assert!(said.is_none_or(|said| warnings[0].contains(said)), "{warnings:?}");
    }
}

#[test]
fn training_lowers_the_loss_and_reports_every_step() {
    let folder = tempfile::tempdir().unwrap();
    let (loader, validation) = (loader(40, 8), held_out(16));
    let data = Data { train: &loader, validation: Some(&validation) };
    let config = TrainConfig { epochs: 30, ..config(1e-2) };
    let seen = AtomicUsize::new(0);
    let watch = |event: &Event| {
        seen.fetch_add(usize::from(matches!(event, Event::Step { .. })), Ordering::Relaxed);
    };
    let plan = Plan { watch: &watch, ..Plan::new(folder.path()) };
    let trained = plan.train(autoencoder(0.1, 0.1), &Pretraining, data, &config).unwrap();
    let history = History::read(folder.path()).unwrap();
    assert_eq!((history.steps.len(), history.epochs.len()), (150, 30));
    assert_eq!(seen.into_inner(), 150);
    let losses: Vec<f64> = history.epochs.iter().filter_map(|e| e.validation_loss).collect();
    let best = trained.summary.best.unwrap();
    assert!(best.loss < 0.8 * losses[0], "{losses:?}");
    assert_eq!(best.loss, losses.iter().copied().fold(f64::INFINITY, f64::min));
    // The weights that come back are those of the best epoch, the only checkpoint left.
    let kept = checkpoints(&folder.path().join("checkpoints")).unwrap();
    assert_eq!(kept.len(), 1);
    assert_eq!((kept[0].manifest().step, kept[0].manifest().score), (best.step, Some(best.loss)));
    let mut again = autoencoder(0.1, 0.1);
    load_weights(kept[0].path(), &mut again).unwrap();
    assert_eq!(weights(&again), weights(&trained.model));
}

#[test]
fn a_skipped_step_changes_nothing_and_is_counted() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let run = |max_steps, broken: &[u64]| {
        let folder = tempfile::tempdir().unwrap();
        let config =
            TrainConfig { max_steps: Some(max_steps), non_finite: NonFinite::Skip, ..config(1e-2) };
        let warnings = Warnings::default();
        let watch = |event: &Event| warnings.take(event);
        let plan = Plan { watch: &watch, ..Plan::new(folder.path()) };
        let objective = ToMean { broken: broken.to_vec() };
        let trained = plan.train(point(), &objective, data, &config).unwrap();
        let skipped: Vec<u64> =
            steps(folder.path()).iter().filter(|(s, _)| s.skipped).map(|(s, _)| s.step).collect();
        (weights(&trained.model), trained.summary, skipped, warnings.0.into_inner().unwrap())
    };
    let (short, _, none, _) = run(3, &[]);
    let (long, summary, skipped, warnings) = run(5, &[3, 4]);
    assert_eq!(short, long);
    assert_eq!((summary.steps, summary.counts.skipped, none.len()), (5, 2, 0));
    assert_eq!(skipped, [4, 5]);
    assert!(warnings[0].contains("step 4 has the loss NaN"), "{warnings:?}");
}

#[test]
fn a_rollback_goes_back_to_the_last_regular_checkpoint_also_after_a_resume() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let objective = ToMean { broken: vec![5] };
    let config = TrainConfig {
        max_steps: Some(8),
        non_finite: NonFinite::Rollback,
        checkpoint: every_steps(2),
        ..config(1e-2)
    };
    let folder = tempfile::tempdir().unwrap();
    let plain = Plan::new(folder.path()).train(point(), &objective, data, &config).unwrap();
    assert_eq!((plain.summary.counts.skipped, plain.summary.counts.rollbacks), (1, 1));
    let weight_at = |step: &str| {
        let mut model = point();
        load_weights(&folder.path().join("checkpoints").join(step), &mut model).unwrap();
        weights(&model)
    };
    assert_eq!(weight_at("step-000006"), weight_at("step-000004"));
    assert_ne!(weight_at("step-000008"), weight_at("step-000004"));

    // Interrupted between the regular checkpoint and the bad step.
    let other = tempfile::tempdir().unwrap();
    let plan = Plan { stop_at: Some(5), ..Plan::new(other.path()) };
    let stopped = plan.train(point(), &objective, data, &config).unwrap();
    assert_eq!(stopped.summary.outcome, Outcome::Interrupted);
    let resumed = Plan::resumed(other.path()).train(point(), &objective, data, &config).unwrap();
    assert_eq!(weights(&resumed.model), weights(&plain.model));
    assert_eq!(steps(other.path()), steps(folder.path()));
    assert_eq!(resumed.summary.counts, plain.summary.counts);

    // A bad first step goes back to the start.
    let first = tempfile::tempdir().unwrap();
    let objective = ToMean { broken: vec![0] };
    let config = TrainConfig { max_steps: Some(2), checkpoint: every_steps(1), ..config };
    Plan::new(first.path()).train(point(), &objective, data, &config).unwrap();
    let mut after = Point { weight: Param::from_tensor(Tensor::zeros([1], &Device::default())) };
    load_weights(&first.path().join("checkpoints/step-000001"), &mut after).unwrap();
    assert_eq!(weights(&after), weights(&point()));
}

#[test]
fn a_size_budget_spares_what_a_rollback_needs() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let objective = ToMean { broken: vec![5] };
    let checkpoint = CheckpointConfig { size_budget: Some(100), ..every_steps(2) };
    let config = TrainConfig {
        max_steps: Some(8),
        non_finite: NonFinite::Rollback,
        checkpoint,
        ..config(1e-2)
    };
    let folder = tempfile::tempdir().unwrap();
    let plain = Plan::new(folder.path()).train(point(), &objective, data, &config).unwrap();
    assert_eq!(plain.summary.counts.rollbacks, 1);
    for stop_at in 1..8 {
        let other = tempfile::tempdir().unwrap();
        let plan = Plan { stop_at: Some(stop_at), ..Plan::new(other.path()) };
        plan.train(point(), &objective, data, &config).unwrap();
        let resumed = Plan::resumed(other.path()).train(point(), &objective, data, &config);
        let resumed = resumed.unwrap();
        assert_eq!(weights(&resumed.model), weights(&plain.model), "at {stop_at}");
        assert_eq!(steps(other.path()), steps(folder.path()), "at {stop_at}");
        assert_eq!(resumed.summary.counts, plain.summary.counts);
    }
    // One weight and two moments of four bytes, twice.
    let small = CheckpointConfig { size_budget: Some(23), ..config.checkpoint };
    let config = TrainConfig { checkpoint: small, ..config };
    let other = tempfile::tempdir().unwrap();
    let error = Plan::new(other.path()).train(point(), &objective, data, &config).unwrap_err();
    assert!(matches!(error, TrainError::Budget { one: 12, count: 2, needed: 24, .. }), "{error}");
}

#[test]
fn a_rollback_to_nothing_is_an_error_and_not_counted() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let objective = ToMean { broken: vec![5] };
    let config = TrainConfig {
        max_steps: Some(8),
        non_finite: NonFinite::Rollback,
        checkpoint: every_steps(4),
        ..config(1e-2)
    };
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan { stop_at: Some(5), ..Plan::new(folder.path()) };
    plan.train(point(), &objective, data, &config).unwrap();
    fs::remove_dir_all(folder.path().join("checkpoints/step-000004")).unwrap();
    let warnings = Warnings::default();
    let watch = |event: &Event| warnings.take(event);
    let plan = Plan { watch: &watch, ..Plan::resumed(folder.path()) };
    let error = plan.train(point(), &objective, data, &config).unwrap_err();
    assert!(matches!(error, TrainError::NoWayBack { step: 6, .. }), "{error}");
    let warnings = warnings.0.into_inner().unwrap();
    assert!(warnings[0].contains("the checkpoint of step 4, which"), "{warnings:?}");
    assert!(!warnings.iter().any(|warning| warning.contains("went back")), "{warnings:?}");
}

/// A loss whose gradient at one step (from 0) is finite, but throws the weight so far that no loss
/// is finite from there on.
struct Thrown(u64);

impl Objective<Point> for Thrown {
    fn loss(&self, model: &Point, batch: &Batch, streams: Streams) -> Loss {
        let thrown = streams.samples == Stream::new(SEED, "masks").substream(self.0);
        let distance = model.weight.val() - batch.inputs.clone().mean();
        let value = if thrown { distance * 1e30 } else { distance.square() };
        Loss { value, weight: batch.indices.len() as f64, parts: vec![] }
    }
}

#[test]
fn a_rollback_passes_over_a_checkpoint_of_broken_weights() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    // The fourth step breaks the weight, is saved, and shows in the fifth.
    let objective = Thrown(3);
    let sgd = SgdConfig { learning_rate: 1e-2, ..SgdConfig::default() };
    let config = TrainConfig {
        max_steps: Some(12),
        optimizer: Optimizer::Sgd(sgd),
        clip: None,
        non_finite: NonFinite::Rollback,
        checkpoint: every_steps(2),
        ..config(1e-2)
    };
    let folder = tempfile::tempdir().unwrap();
    let warnings = Warnings::default();
    let watch = |event: &Event| warnings.take(event);
    let plan = Plan { watch: &watch, ..Plan::new(folder.path()) };
    let plain = plan.train(point(), &objective, data, &config).unwrap();
    assert_eq!((plain.summary.counts.skipped, plain.summary.counts.rollbacks), (1, 1));
    assert!(weights(&plain.model)[0].abs() < 10.0);
    let warnings = warnings.0.into_inner().unwrap();
    assert!(warnings[0].contains("step 5") && warnings[0].ends_with("of step 2"), "{warnings:?}");
    for stop_at in 1..12 {
        let other = tempfile::tempdir().unwrap();
        let plan = Plan { stop_at: Some(stop_at), ..Plan::new(other.path()) };
        plan.train(point(), &objective, data, &config).unwrap();
        let resumed = Plan::resumed(other.path()).train(point(), &objective, data, &config);
        let resumed = resumed.unwrap();
        assert_eq!(weights(&resumed.model), weights(&plain.model), "at {stop_at}");
        assert_eq!(steps(other.path()), steps(folder.path()), "at {stop_at}");
        assert_eq!(resumed.summary.counts, plain.summary.counts);
    }
}

#[test]
fn a_run_of_which_no_update_is_left_is_no_result() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let run = |max_steps, every| {
        let folder = tempfile::tempdir().unwrap();
        let config = TrainConfig {
            max_steps: Some(max_steps),
            non_finite: NonFinite::Rollback,
            checkpoint: every_steps(every),
            ..config(1e-2)
        };
        let objective = ToMean { broken: vec![1, 3, 5] };
        let trained = Plan::new(folder.path()).train(point(), &objective, data, &config);
        assert_eq!(trained.is_ok(), folder.path().join("training.json").exists());
        trained.map(|trained| weights(&trained.model))
    };
    // With checkpoints between, which hold weights that were gone back to.
    for every in [100, 2] {
        let error = run(6, every).unwrap_err();
        assert!(matches!(error, TrainError::Undone { steps: 6, rollbacks: 3, .. }), "{error}");
        assert!(error.to_string().contains("no update is left of 6 steps"), "{error}");
        // One is.
        assert_ne!(run(7, every).unwrap(), weights(&point()));
    }
}

/// [`ToMean`], away from which training goes.
struct Away;

impl Objective<Point> for Away {
    fn loss(&self, model: &Point, batch: &Batch, streams: Streams) -> Loss {
        let factor = if streams.dropout.is_some() { -1.0 } else { 1.0 };
        let Loss { value, weight, parts } = ToMean::default().loss(model, batch, streams);
        Loss { value: value * factor, weight, parts }
    }
}

#[test]
fn a_damaged_best_checkpoint_does_not_take_the_others_with_it() {
    let (loader, validation) = (loader(24, 4), held_out(8));
    let data = Data { train: &loader, validation: Some(&validation) };
    let config = TrainConfig { early_stopping: None, ..config(1e-2) };
    let whole = tempfile::tempdir().unwrap();
    let plain = Plan::new(whole.path()).train(point(), &Away, data, &config).unwrap();
    assert_eq!((plain.summary.steps, plain.summary.selected.as_str()), (18, "step-000006"));
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan { stop_at: Some(13), ..Plan::new(folder.path()) };
    plan.train(point(), &Away, data, &config).unwrap();
    let best = folder.path().join("checkpoints/step-000006");
    fs::write(best.join("weights.safetensors"), "short").unwrap();
    let warnings = Warnings::default();
    let watch = |event: &Event| warnings.take(event);
    let plan = Plan { watch: &watch, ..Plan::resumed(folder.path()) };
    let trained = plan.train(point(), &Away, data, &config).unwrap();
    assert_eq!((trained.summary.steps, trained.summary.selected.as_str()), (18, "step-000018"));
    assert_ne!(weights(&trained.model), weights(&plain.model));
    assert!(best.with_extension("damaged").is_dir() && !best.exists());
    let warnings = warnings.0.into_inner().unwrap();
    let [said] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(said.contains("is damaged: it has 5 bytes"), "{said}");
    assert!(said.ends_with("the best of those that are left is used"), "{said}");
    // What is left is read back as ever.
    let again = Plan::resumed(folder.path()).train(point(), &Away, data, &config).unwrap();
    assert_eq!(weights(&again.model), weights(&trained.model));
}

#[test]
fn of_a_run_that_keeps_every_epoch_the_second_best_takes_the_place_of_a_damaged_best() {
    let (loader, validation) = (loader(24, 4), held_out(8));
    let data = Data { train: &loader, validation: Some(&validation) };
    let keep = Keep::EveryEpoch;
    let checkpoint = CheckpointConfig { keep, ..CheckpointConfig::default() };
    let config = TrainConfig { early_stopping: None, checkpoint, ..config(1e-2) };
    let folder = tempfile::tempdir().unwrap();
    // The first epoch is the best, and is damaged while the run goes on.
    let best = folder.path().join("checkpoints/step-000006");
    let watch = |event: &Event| {
        if matches!(event, Event::Checkpoint { step: 12, .. }) {
            fs::write(best.join("weights.safetensors"), "short").unwrap();
        }
    };
    let plan = Plan { watch: &watch, ..Plan::new(folder.path()) };
    let trained = plan.train(point(), &Away, data, &config).unwrap();
    assert!(best.with_extension("damaged").is_dir() && !best.exists());
    let summary = &trained.summary;
    assert_eq!((summary.steps, summary.selected.as_str()), (18, "step-000012"));
    let history = History::read(folder.path()).unwrap();
    let second = summary.best.map(|best| (best.step, best.epoch, Some(best.loss)));
    assert_eq!(second, Some((12, 2, history.epochs[1].validation_loss)));
    assert_eq!(summary.kept_epoch(), 2);
    let mut kept = point();
    load_weights(&folder.path().join("checkpoints/step-000012"), &mut kept).unwrap();
    assert_eq!(weights(&trained.model), weights(&kept));
}

#[test]
fn a_learning_rate_that_never_gets_to_its_peak_is_told_of() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    for (steps, said) in [(18, None), (36, Some("rises for 36 steps"))] {
        let folder = tempfile::tempdir().unwrap();
        let warnings = Warnings::default();
        let watch = |event: &Event| warnings.take(event);
        let plan = Plan { watch: &watch, ..Plan::new(folder.path()) };
        let schedule = Schedule::Constant(Constant { warmup: Warmup::Steps(steps) });
        let config = TrainConfig { schedule, ..config(1e-2) };
        plan.train(point(), &ToMean::default(), data, &config).unwrap();
        let warnings = warnings.0.into_inner().unwrap();
        assert_eq!(warnings.len(), usize::from(said.is_some()), "{warnings:?}");
        assert!(said.is_none_or(|said| warnings[0].contains(said)), "{warnings:?}");
        assert!(
            said.is_none()
                || warnings[0].ends_with("the run has 18: it gets to 5.000e-3 of 1.000e-2"),
            "{warnings:?}"
        );
    }
}

fn newest() -> CheckpointConfig {
    CheckpointConfig { keep: Keep::FinalOnly, ..CheckpointConfig::default() }
}

/// The decoder, trained from this epoch on.
fn decoder_from(epoch: u64) -> ParameterGroup {
    let parameters = vec!["decoder.*".to_owned()];
    ParameterGroup { parameters, unfreeze_at: Some(epoch), ..ParameterGroup::default() }
}

#[test]
fn parameters_that_are_frozen_in_the_weights_that_are_kept_are_told_of() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    // No loss falls by so much: the second epoch is the last.
    let early = EarlyStopping { patience: 1, min_delta: 1e3 };
    for (epoch, is_told) in [(2, false), (3, true)] {
        let folder = tempfile::tempdir().unwrap();
        let warnings = Warnings::default();
        let watch = |event: &Event| warnings.take(event);
        let plan = Plan { watch: &watch, ..Plan::new(folder.path()) };
        let config = TrainConfig {
            epochs: 9,
            early_stopping: Some(early),
            groups: vec![decoder_from(epoch)],
            checkpoint: newest(),
            ..config(1e-2)
        };
        let trained = plan.train(autoencoder(0.0, 0.0), &Pretraining, data, &config).unwrap();
        let summary = trained.summary;
        assert_eq!((summary.outcome, summary.kept_epoch()), (Outcome::StoppedEarly, 2));
        let warnings = warnings.0.into_inner().unwrap();
        assert_eq!(warnings.len(), usize::from(is_told), "{warnings:?}");
        let expected = "the weights that are kept are of epoch 2, and what is called `decoder.*` is trained from epoch 3 on: ";
        assert!(warnings.iter().all(|said| said.starts_with(expected)), "{warnings:?}");
    }
}

#[test]
fn settings_that_come_to_nothing_are_told_of() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let told = |config: TrainConfig| {
        let folder = tempfile::tempdir().unwrap();
        let warnings = Warnings::default();
        let watch = |event: &Event| warnings.take(event);
        let plan = Plan { watch: &watch, ..Plan::new(folder.path()) };
        plan.train(autoencoder(0.0, 0.0), &Pretraining, data, &config).unwrap();
        warnings.0.into_inner().unwrap()
    };
    let cosine = |minimum| Schedule::Cosine(Cosine { minimum, ..Cosine::default() });
    for (minimum, is_told) in [(1e-2, false), (2e-2, true)] {
        let warnings = told(TrainConfig { schedule: cosine(minimum), ..config(1e-2) });
        assert_eq!(warnings.len(), usize::from(is_told), "{warnings:?}");
        let expected = "`train.schedule.cosine.minimum` is 2.000e-2, above the optimizer's learning rate of 1.000e-2";
        assert!(warnings.iter().all(|said| said.starts_with(expected)), "{warnings:?}");
    }
    for (max_steps, is_told) in [(None, false), (Some(7), false), (Some(6), true)] {
        let groups = vec![decoder_from(2)];
        let checkpoint = newest();
        let warnings = told(TrainConfig { max_steps, groups, checkpoint, ..config(1e-2) });
        assert_eq!(warnings.len(), usize::from(is_told), "{warnings:?}");
        let expected = "`train.groups.unfreeze_at` is 2 for `decoder.*`, and the run of 6 steps ends in epoch 1: ";
        assert!(warnings.iter().all(|said| said.starts_with(expected)), "{warnings:?}");
    }
    // A rate that is 0 in f32 moves nothing.
    let error = config(1e-46).validate().unwrap_err().to_string();
    assert!(error.contains("learning_rate` is") && error.contains("above 0"), "{error}");
}

/// [`ToMean`], of whose batches none counts before a step (from 0).
struct Counting(u64, AtomicUsize);

impl Objective<Point> for Counting {
    fn loss(&self, model: &Point, batch: &Batch, streams: Streams) -> Loss {
        let Loss { value, weight, parts } = ToMean::default().loss(model, batch, streams);
        let step = self.1.fetch_add(1, Ordering::SeqCst) as u64;
        if step < self.0 {
            return Loss { value: value * 0.0, weight: 0.0, parts };
        }
        Loss { value, weight, parts }
    }
}

#[test]
fn an_epoch_in_which_nothing_counts_is_an_error_and_a_batch_is_none() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let train = |none: u64| {
        let folder = tempfile::tempdir().unwrap();
        let objective = Counting(none, AtomicUsize::new(0));
        Plan::new(folder.path()).train(point(), &objective, data, &config(1e-2))
    };
    assert_eq!(train(5).unwrap().summary.steps, 18);
    let Err(error) = train(6) else { panic!("six batches are an epoch") };
    let said = error.to_string();
    assert!(matches!(error, TrainError::NothingCounts { epoch: 1, batches: 6 }), "{said}");
    assert!(said.contains("none of the 6 batches of epoch 1"), "{said}");
}

/// [`ToMean`], of which the batch with the first sample has nothing to learn from: its loss is multiplied by this.
struct Nothing(f64);

impl Objective<Point> for Nothing {
    fn loss(&self, model: &Point, batch: &Batch, streams: Streams) -> Loss {
        let Loss { value, weight, .. } = ToMean::default().loss(model, batch, streams);
        let is_empty = batch.indices.contains(&0);
        let value = if is_empty { value * self.0 } else { value };
        let weight = if is_empty { 0.0 } else { weight };
        let part = if value.is_autodiff() { value.clone().inner() } else { value.clone() };
        Loss { value, weight, parts: vec![("distance", part)] }
    }
}

#[test]
fn the_mean_of_nothing_takes_no_part_in_its_step_or_validation() {
    let (loader, validation) = (loader(24, 4), held_out(16));
    let data = Data { train: &loader, validation: Some(&validation) };
    for accumulate in [1, 2] {
        let train = |factor| {
            let folder = tempfile::tempdir().unwrap();
            let config = TrainConfig { accumulate, ..config(1e-2) };
            let plan = Plan::new(folder.path());
            let trained = plan.train(point(), &Nothing(factor), data, &config).unwrap();
            let history = History::read(folder.path()).unwrap();
            let parts: Vec<f64> = history.steps.iter().map(|step| step.parts["distance"]).collect();
            let losses: Vec<_> = history.epochs.iter().map(|own| own.validation_loss).collect();
            assert_eq!(trained.summary.counts.skipped, 0);
            (weights(&trained.model), parts, losses)
        };
        assert_eq!(train(f64::NAN), train(0.0), "{accumulate}");
    }
}

/// [`ToMean`], whose loss this cuts off from the model in training.
struct CutOff(fn(Tensor<1>) -> Tensor<1>);

impl Objective<Point> for CutOff {
    fn loss(&self, model: &Point, batch: &Batch, streams: Streams) -> Loss {
        let Loss { value, weight, parts } = ToMean::default().loss(model, batch, streams);
        let value = if streams.dropout.is_some() { (self.0)(value) } else { value };
        Loss { value, weight, parts }
    }
}

#[test]
fn a_loss_that_reaches_no_parameter_is_an_error() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let ways: [fn(Tensor<1>) -> Tensor<1>; 2] = [|value| value.detach(), |value| value.inner()];
    for way in ways {
        let folder = tempfile::tempdir().unwrap();
        let plan = Plan::new(folder.path());
        let error = plan.train(point(), &CutOff(way), data, &config(1e-2)).unwrap_err();
        assert!(matches!(error, TrainError::Unreached { step: 1 }), "{error}");
    }
}

/// [`ToMean`], whose loss is infinite where nothing is learnt.
struct Boundless;

impl Objective<Point> for Boundless {
    fn loss(&self, model: &Point, batch: &Batch, streams: Streams) -> Loss {
        let factor = if streams.dropout.is_none() { f64::INFINITY } else { 1.0 };
        let Loss { value, weight, parts } = ToMean::default().loss(model, batch, streams);
        Loss { value: value * factor, weight, parts }
    }
}

#[test]
fn a_validation_loss_that_is_not_finite_is_told_once() {
    let (loader, validation) = (loader(24, 4), held_out(8));
    let data = Data { train: &loader, validation: Some(&validation) };
    let folder = tempfile::tempdir().unwrap();
    let warnings = Warnings::default();
    let watch = |event: &Event| warnings.take(event);
    let plan = Plan { watch: &watch, ..Plan::new(folder.path()) };
    let trained = plan.train(point(), &Boundless, data, &config(1e-2)).unwrap();
    assert_eq!((trained.summary.best, trained.summary.selected.as_str()), (None, "step-000018"));
    let warnings = warnings.0.into_inner().unwrap();
    let [said] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(said.starts_with("the validation loss of epoch 1 is inf: "), "{said}");
    assert!(said.contains("the weights of the last epoch"), "{said}");
}

#[test]
fn a_loss_that_is_no_number_ends_the_run_as_failed() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let run = |objective: &ToMean, config: &TrainConfig| {
        let folder = tempfile::tempdir().unwrap();
        let error = Plan::new(folder.path()).train(point(), objective, data, config).unwrap_err();
        assert!(!folder.path().join("training.json").exists());
        error
    };
    let error = run(&ToMean { broken: vec![1] }, &config(1e-2));
    assert!(matches!(error, TrainError::NonFinite { step: 2, epoch: 1, .. }), "{error}");
    assert!(error.to_string().contains("step 2 (epoch 1) has the loss NaN"), "{error}");
    let config = TrainConfig { non_finite: NonFinite::Skip, non_finite_limit: 3, ..config(1e-2) };
    let error = run(&ToMean { broken: vec![1, 3, 4, 5] }, &config);
    assert!(matches!(error, TrainError::NonFiniteLimit { count: 3, step: 6, .. }), "{error}");
}

/// [`ToMean`], which scores a model by its weight, or cannot.
struct Weighed {
    inner: ToMean,
    fails: bool,
}

impl Objective<Point> for Weighed {
    fn loss(&self, model: &Point, batch: &Batch, streams: Streams) -> Loss {
        self.inner.loss(model, batch, streams)
    }

    fn scores(&self, model: &Point) -> Result<Vec<(&'static str, f64)>, ScoreError> {
        let weight = f64::from(weights(model)[0]);
        if self.fails { Err("no scales".into()) } else { Ok(vec![("weight", weight)]) }
    }
}

#[test]
fn models_are_scored_after_each_validation_and_nothing_else_changes() {
    let (loader, validation) = (loader(24, 4), held_out(8));
    let data = Data { train: &loader, validation: Some(&validation) };
    let config = TrainConfig { epochs: 4, validate_every: 2, ..config(1e-2) };
    let told = Mutex::new(vec![]);
    let watch = |event: &Event| match event {
        Event::Scored { name, value } => told.lock().unwrap().push((name.clone(), *value)),
        Event::Epoch { epoch, .. } => told.lock().unwrap().push((epoch.to_string(), f64::NAN)),
        _ => {}
    };
    let weighed = |fails| Weighed { inner: ToMean::default(), fails };
    let [plain, scored] = [0, 1].map(|_| tempfile::tempdir().unwrap());
    let plan = Plan { watch: &watch, ..Plan::new(scored.path()) };
    let with = plan.train(point(), &weighed(false), data, &config).unwrap();
    let without = Plan::new(plain.path()).train(point(), &ToMean::default(), data, &config);
    assert_eq!(weights(&with.model), weights(&without.unwrap().model));
    assert_eq!(steps(scored.path()), steps(plain.path()));
    let told = told.into_inner().unwrap();
    let names: Vec<&str> = told.iter().map(|(name, _)| name.as_str()).collect();
    // Before the epoch that it belongs to, and only where there was a validation.
    assert_eq!(names, ["1", "weight", "2", "3", "weight", "4"]);
    assert_eq!(told[4].1, f64::from(weights(&with.model)[0]), "the last epoch is the best");
    assert!((told[1].1 - told[4].1).abs() > 1e-4, "{told:?}");
    // What cannot be scored ends the training, unless it was stopped.
    let folder = tempfile::tempdir().unwrap();
    let error = Plan::new(folder.path()).train(point(), &weighed(true), data, &config).unwrap_err();
    assert!(matches!(error, TrainError::Score(_)), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan { stop_at: Some(12), ..Plan::new(folder.path()) };
    let stopped = plan.train(point(), &weighed(true), data, &config).unwrap();
    assert_eq!(stopped.summary.outcome, Outcome::Interrupted);
}

#[test]
fn validations_count_where_the_last_epoch_before_them_was_skipped() {
    // An epoch is one step, and every other one is skipped.
    let (loader, validation) = (loader(24, 24), held_out(8));
    let data = Data { train: &loader, validation: Some(&validation) };
    let early = EarlyStopping { patience: 2, min_delta: 1e3 };
    for first in [0, 1] {
        let objective = ToMean { broken: (first..12).step_by(2).collect() };
        let config = TrainConfig {
            epochs: 12,
            validate_every: 2,
            non_finite: NonFinite::Skip,
            early_stopping: Some(early),
            ..config(1e-2)
        };
        let folder = tempfile::tempdir().unwrap();
        let trained = Plan::new(folder.path()).train(point(), &objective, data, &config).unwrap();
        // Two more validations than the first, which has nothing to undercut.
        let summary = trained.summary;
        assert_eq!((summary.outcome, summary.epochs), (Outcome::StoppedEarly, 6), "{first}");
    }
}

#[test]
fn early_stopping_counts_on_across_a_resume() {
    let loader = loader(24, 4);
    let validation = held_out(8);
    let data = Data { train: &loader, validation: Some(&validation) };
    // Too slow to improve by min_delta: the first epoch is the best, and three more are waited for.
    let config = TrainConfig {
        epochs: 20,
        early_stopping: Some(EarlyStopping { patience: 3, min_delta: 0.001 }),
        ..config(1e-9)
    };
    let folder = tempfile::tempdir().unwrap();
    let objective = ToMean::default();
    let plain = Plan::new(folder.path()).train(point(), &objective, data, &config).unwrap();
    assert_eq!((plain.summary.outcome, plain.summary.epochs), (Outcome::StoppedEarly, 4));
    let other = tempfile::tempdir().unwrap();
    for stop_at in [8, 9, 18, 20] {
        let plan = Plan { stop_at: Some(stop_at), ..Plan::resumed(other.path()) };
        let stopped = plan.train(point(), &objective, data, &config).unwrap();
        assert_eq!(stopped.summary.outcome, Outcome::Interrupted, "at {stop_at}");
    }
    let resumed = Plan::resumed(other.path()).train(point(), &objective, data, &config).unwrap();
    assert_eq!((resumed.summary.outcome, resumed.summary.epochs), (Outcome::StoppedEarly, 4));
    assert_eq!(weights(&resumed.model), weights(&plain.model));
    assert_eq!(steps(other.path()), steps(folder.path()));
}

#[test]
fn an_interruption_at_any_step_is_not_seen_in_the_result() {
    let (loader, validation) = (loader(28, 4), held_out(10));
    let data = Data { train: &loader, validation: Some(&validation) };
    // Seven batches an epoch, in steps of two: four steps, the last of one batch.
    let config = TrainConfig {
        accumulate: 2,
        checkpoint: CheckpointConfig { resume_every: Some(3), ..CheckpointConfig::default() },
        schedule: Schedule::default(),
        ..config(1e-2)
    };
    let folder = tempfile::tempdir().unwrap();
    let model = || autoencoder(0.2, 0.1);
    let plain = Plan::new(folder.path()).train(model(), &Pretraining, data, &config).unwrap();
    assert_eq!(plain.summary.steps, 12);
    let other = tempfile::tempdir().unwrap();
    for stop_at in 1..12 {
        let plan = Plan { stop_at: Some(stop_at), ..Plan::resumed(other.path()) };
        let stopped = plan.train(model(), &Pretraining, data, &config).unwrap();
        assert_eq!(stopped.summary.outcome, Outcome::Interrupted, "at {stop_at}");
        assert_eq!(stopped.summary.steps, stop_at);
    }
    let resumed = Plan::resumed(other.path()).train(model(), &Pretraining, data, &config).unwrap();
    assert_eq!(weights(&resumed.model), weights(&plain.model));
    assert_eq!(steps(other.path()), steps(folder.path()));
    let epochs = |folder| {
        let epochs = History::read(folder).unwrap().epochs;
        epochs.into_iter().map(|e| (e.step, e.train_loss, e.validation_loss, e.best)).collect()
    };
    let (a, b): (Vec<_>, Vec<_>) = (epochs(folder.path()), epochs(other.path()));
    assert_eq!(a, b);
    // Where the time of each step went is told once, whatever cut its epoch.
    for folder in [&folder, &other] {
        let History { steps, times, .. } = History::read(folder.path()).unwrap();
        assert_eq!(times.iter().map(|times| times.steps).sum::<u64>(), 12);
        let parts =
            times.iter().map(|t| t.waiting + t.upload + t.computing + t.reading_back + t.other);
        let (parts, all) =
            (parts.sum::<f64>(), steps.iter().map(|step| step.milliseconds).sum::<f64>());
        assert!((1e3 * parts - all).abs() < 0.05 * all, "{parts} s of {all} ms");
    }
}

#[test]
fn a_run_that_has_ended_is_read_back_and_not_repeated() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let folder = tempfile::tempdir().unwrap();
    let objective = ToMean::default();
    let first = Plan::new(folder.path()).train(point(), &objective, data, &config(1e-2)).unwrap();
    let no_step = |event: &Event| assert!(!matches!(event, Event::Step { .. }));
    let plan = Plan { watch: &no_step, ..Plan::resumed(folder.path()) };
    let again = plan.train(point(), &objective, data, &config(1e-2)).unwrap();
    assert_eq!(weights(&again.model), weights(&first.model));
    assert_eq!(again.summary, first.summary);
    let error = Plan::new(folder.path()).train(point(), &objective, data, &config(1e-2));
    assert!(matches!(error.unwrap_err(), TrainError::Exists(_)));
}

#[test]
fn writing_in_the_background_changes_no_result() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let run = |asynchronous| {
        let folder = tempfile::tempdir().unwrap();
        let checkpoint = CheckpointConfig { asynchronous, ..every_steps(1) };
        let config = TrainConfig { checkpoint, ..config(1e-2) };
        let plan = Plan::new(folder.path());
        let trained = plan.train(autoencoder(0.2, 0.1), &Pretraining, data, &config).unwrap();
        let saves = trained.summary.saves;
        assert_eq!(saves.saves, 18);
        assert!(saves.bytes > 0 && saves.write_seconds > 0.0);
        let kept = checkpoints(&folder.path().join("checkpoints")).unwrap();
        let files: Vec<_> = kept
            .iter()
            .flat_map(|checkpoint| checkpoint.manifest().files.clone())
            .filter(|(name, _)| name.ends_with("safetensors"))
            .collect();
        assert_eq!(files.len(), 36);
        files
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn a_person_may_pause_save_and_stop_after_the_epoch_and_no_step_differs() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    // Six steps an epoch, three epochs; only the end of the run is saved by itself.
    let config = TrainConfig { checkpoint: newest(), ..config(1e-2) };
    let alone = tempfile::tempdir().unwrap();
    let model = || autoencoder(0.2, 0.1);
    let expected = Plan::new(alone.path()).train(model(), &Pretraining, data, &config).unwrap();

    let (folder, requests) = (tempfile::tempdir().unwrap(), Requests::new());
    let (asked, saved) = (Mutex::new(vec![]), Mutex::new(vec![]));
    let watch = |event: &Event| match event {
        Event::Step { step: 3, .. } => {
            requests.ask(Request::Pause);
            requests.ask(Request::Save);
        }
        Event::Step { step: 8, .. } => requests.ask(Request::StopAfterEpoch),
        Event::Asked { request, step } => {
            asked.lock().unwrap().push((*request, *step));
            if *request == Request::Pause {
                requests.ask(Request::GoOn);
            }
        }
        Event::Checkpoint { step, .. } => saved.lock().unwrap().push(*step),
        _ => {}
    };
    let plan = Plan { requests: &requests, watch: &watch, ..Plan::new(folder.path()) };
    let stopped = plan.train(model(), &Pretraining, data, &config).unwrap();
    assert_eq!((stopped.summary.outcome, stopped.summary.steps), (Outcome::Interrupted, 12));
    let expected_asked =
        [(Request::Save, 3), (Request::Pause, 3), (Request::GoOn, 3), (Request::StopAfterEpoch, 8)];
    assert_eq!(*asked.lock().unwrap(), expected_asked);
    assert_eq!(*saved.lock().unwrap(), [3, 12]);

    let resumed = Plan::resumed(folder.path()).train(model(), &Pretraining, data, &config).unwrap();
    assert_eq!(resumed.summary.outcome, Outcome::Finished);
    assert_eq!(weights(&resumed.model), weights(&expected.model));
    assert_eq!(steps(folder.path()), steps(alone.path()));
}

#[test]
fn a_paused_run_that_is_told_to_stop_after_the_epoch_goes_on_to_its_end() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let (folder, requests, asked) =
        (tempfile::tempdir().unwrap(), Requests::new(), Mutex::new(vec![]));
    let watch = |event: &Event| match event {
        Event::Step { step: 3, .. } => requests.ask(Request::Pause),
        Event::Asked { request, step } => {
            asked.lock().unwrap().push((*request, *step));
            if *request == Request::Pause {
                requests.ask(Request::StopAfterEpoch);
            }
        }
        _ => {}
    };
    let plan = Plan { requests: &requests, watch: &watch, ..Plan::new(folder.path()) };
    let stopped = plan.train(autoencoder(0.2, 0.1), &Pretraining, data, &config(1e-2)).unwrap();
    // Six steps an epoch.
    assert_eq!((stopped.summary.outcome, stopped.summary.steps), (Outcome::Interrupted, 6));
    let expected = [(Request::Pause, 3), (Request::StopAfterEpoch, 3), (Request::GoOn, 3)];
    assert_eq!(*asked.lock().unwrap(), expected);
}

#[test]
fn a_paused_run_can_be_interrupted() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let (folder, requests) = (tempfile::tempdir().unwrap(), Requests::new());
    requests.ask(Request::Pause);
    let plan = Plan { requests: &requests, stop_at: Some(1), ..Plan::new(folder.path()) };
    let stopped = plan.train(autoencoder(0.2, 0.1), &Pretraining, data, &config(1e-2)).unwrap();
    assert_eq!((stopped.summary.outcome, stopped.summary.steps), (Outcome::Interrupted, 1));
}
