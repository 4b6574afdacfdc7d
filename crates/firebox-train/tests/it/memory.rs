//! Too little memory on a device that says so: steps are computed again in smaller parts, and such a
//! run is repeated and resumed exactly. A processor that has too little ends the process: the tests of
//! the whole program have that.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::support::{Plan, Warnings, autoencoder, held_out, loader, steps, weights};
use firebox_loader::Batch;
use firebox_models::{BiLstmMae, Loss};
use firebox_train::{
    BatchWork, CheckpointConfig, DIVISIONS_FILE, Data, Keep, Objective, Outcome, Pretraining,
    Streams, TrainConfig, TrainError,
};

/// Pre-training on a device whose memory is enough for a few samples, or that fails otherwise.
struct Small {
    samples: usize,
    /// Of a validation.
    held_out: usize,
    /// Steps that it has been enough for before, from 0.
    from: u64,
    says: &'static str,
}

impl Objective<BiLstmMae> for Small {
    fn loss(&self, model: &BiLstmMae, batch: &Batch, streams: Streams) -> Loss {
        let begun = (0..self.from).all(|step| {
            let masks = firebox_core::Stream::new(crate::support::SEED, "masks").substream(step);
            streams.samples != masks
        });
        let most = if streams.dropout.is_none() { self.held_out } else { self.samples };
        assert!(!begun || batch.len() <= most, "{}", self.says);
        Pretraining.loss(model, batch, streams)
    }
}

const ALL: &str = "CUDA_ERROR_OUT_OF_MEMORY: out of memory";

impl Small {
    fn new(samples: usize) -> Self {
        Self { samples, held_out: usize::MAX, from: 0, says: ALL }
    }
}

fn config() -> TrainConfig {
    TrainConfig {
        epochs: 3,
        early_stopping: None,
        checkpoint: CheckpointConfig { keep: Keep::EverySteps(2), ..CheckpointConfig::default() },
        ..TrainConfig::default()
    }
}

#[test]
fn a_device_without_memory_computes_smaller_parts_of_the_same_batch() {
    let (loader, validation) = (loader(36, 8), held_out(8));
    let data = Data { train: &loader, validation: Some(&validation) };
    let run = |dropout, samples| {
        let folder = tempfile::tempdir().unwrap();
        let warnings = Warnings::default();
        let watch = |event: &_| warnings.take(event);
        let plan = Plan { watch: &watch, ..Plan::new(folder.path()) };
        let objective = Small::new(samples);
        let model = autoencoder(dropout, 0.0);
        let trained = plan.train(model, &objective, data, &config()).unwrap();
        let said = warnings.0.into_inner().unwrap();
        (weights(&trained.model), trained.summary, steps(folder.path()), said)
    };
    let whole = run(0.0, 8);
    assert!(whole.1.divisions.is_empty() && whole.3.is_empty());
    let divided = run(0.0, 3);
    let divisions: Vec<_> = divided.1.divisions.iter().map(|d| (d.step, d.parts)).collect();
    assert_eq!(divisions, [(1, 4)]);
    assert_eq!(divided.3.len(), 2);
    assert!(divided.3[1].contains("each batch is computed in 4 parts"), "{:?}", divided.3);
    // Same batches, same masks: only the rounding of sums differs.
    assert_eq!(whole.1.counts, divided.1.counts);
    for ((a, [loss, norm]), (b, [divided_loss, divided_norm])) in whole.2.iter().zip(&divided.2) {
        assert_eq!(a, b);
        for (a, b) in [(loss, divided_loss), (norm, divided_norm)] {
            let (a, b) = (f64::from_bits(*a), f64::from_bits(*b));
            assert!((a - b).abs() < 1e-4 * a, "{a} {b}");
        }
    }
    for (a, b) in whole.0.iter().zip(&divided.0) {
        assert!((a - b).abs() < 1e-4, "{a} {b}");
    }
}

#[test]
fn a_divided_run_is_resumed_and_repeated_bit_for_bit() {
    let loader = loader(36, 8);
    let data = Data { train: &loader, validation: None };
    // Memory becomes scarce in the fifth step.
    let scarce = Small { from: 4, ..Small::new(4) };
    let config = TrainConfig { accumulate: 2, ..config() };
    let train = |plan: Plan<'_>, objective: &Small| {
        plan.train(autoencoder(0.3, 0.1), objective, data, &config).unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let whole = train(Plan::new(folder.path()), &scarce);
    assert_eq!(whole.summary.divisions.len(), 1);
    assert_eq!((whole.summary.divisions[0].step, whole.summary.divisions[0].parts), (5, 2));
    for stop_at in [3, 4, 5, 6] {
        let folder = tempfile::tempdir().unwrap();
        let plan = Plan { stop_at: Some(stop_at), ..Plan::new(folder.path()) };
        assert_eq!(train(plan, &scarce).summary.outcome, Outcome::Interrupted);
        let resumed = train(Plan::resumed(folder.path()), &scarce);
        assert_eq!(weights(&resumed.model), weights(&whole.model), "stopped at {stop_at}");
        assert_eq!(resumed.summary.divisions, whole.summary.divisions);
    }
    // On a device with enough memory, the file alone makes the same of it.
    let again = tempfile::tempdir().unwrap();
    std::fs::copy(folder.path().join(DIVISIONS_FILE), again.path().join(DIVISIONS_FILE)).unwrap();
    let enough = Small::new(8);
    let repeated = train(Plan::new(again.path()), &enough);
    assert_eq!(weights(&repeated.model), weights(&whole.model));
    assert_eq!(steps(again.path()), steps(folder.path()));
}

#[test]
fn held_out_batches_are_divided_by_themselves_and_their_losses_stay() {
    let (loader, validation) = (loader(36, 8), held_out(30));
    let data = Data { train: &loader, validation: Some(&validation) };
    let run = |folder: &std::path::Path, held_out| {
        let plan = if folder.join(DIVISIONS_FILE).exists() {
            Plan::resumed(folder)
        } else {
            Plan::new(folder)
        };
        let objective = Small { held_out, ..Small::new(8) };
        plan.train(autoencoder(0.2, 0.0), &objective, data, &config()).unwrap()
    };
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let whole = run(folders[0].path(), usize::MAX);
    let divided = run(folders[1].path(), 4);
    let divisions: Vec<_> =
        divided.summary.divisions.iter().map(|d| (d.work, d.step, d.parts)).collect();
    // In the first validation, of batches of 8.
    assert_eq!(divisions, [(BatchWork::Validation, divided.summary.steps / 3, 2)]);
    assert_eq!(weights(&divided.model), weights(&whole.model));
    let (loss, expected) = (divided.summary.best.unwrap(), whole.summary.best.unwrap());
    assert_eq!((loss.step, loss.epoch), (expected.step, expected.epoch));
    assert!((loss.loss - expected.loss).abs() < 1e-6 * expected.loss, "{loss:?} {expected:?}");
    // The decision alone makes the same of a device with enough.
    let told = folders[2].path();
    std::fs::copy(folders[1].path().join(DIVISIONS_FILE), told.join(DIVISIONS_FILE)).unwrap();
    assert_eq!(run(told, usize::MAX).summary.best, divided.summary.best);
    let none = Small { held_out: 0, ..Small::new(8) };
    let folder = tempfile::tempdir().unwrap();
    let error = Plan::new(folder.path()).train(autoencoder(0.0, 0.0), &none, data, &config());
    let error = error.unwrap_err();
    let validation = BatchWork::Validation;
    assert!(matches!(error, TrainError::OutOfMemory { work, .. } if work == validation), "{error}");
}

#[test]
fn memory_for_less_than_one_sample_is_a_failure_and_so_is_another_panic() {
    let loader = loader(16, 8);
    let data = Data { train: &loader, validation: None };
    let train = |objective: &Small| {
        let folder = tempfile::tempdir().unwrap();
        Plan::new(folder.path()).train(autoencoder(0.0, 0.0), objective, data, &config())
    };
    let nothing = Small::new(0);
    let error = train(&nothing).unwrap_err();
    assert!(matches!(error, TrainError::OutOfMemory { step: 1, .. }), "{error}");
    let broken = Small { says: "a defect", ..Small::new(0) };
    assert!(catch_unwind(AssertUnwindSafe(|| train(&broken))).is_err());
}
