//! What the loader adds to a step of the main job on the CPU: the model of reference system R1 trained by
//! the trainer on its batches, streamed as `auto` has them, beside the same trainer and model given one and
//! the same batch at every step.
//!
//! Runs alternate within this process, in blocks of four: with the loader, without, without, with. A drift of the machine
//! that is steady within a block falls on both alike, and what is not steady is in the spread of the blocks' ratios.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use anyhow::ensure;
use burn::tensor::Device;
use firebox_core::{Event, Key, Requests, Storage, Stream};
use firebox_loader::{Place, TrainLoader, default_workers};
use firebox_models::BiLstmMaeConfig;
use firebox_pipeline::Share;
use firebox_train::{Data, Pretraining, Run, TrainConfig, train};

use crate::data::{CHANNELS, SEED};
use crate::gather::{loader, shards};

/// Blocks of four runs, unless `RUNS` says another number.
const BLOCKS: usize = 10;
/// A block: whether each run has the one batch alone.
const ORDER: [bool; 4] = [false, true, true, false];
/// Steps of a run, and those at its beginning that are not counted.
const STEPS: u64 = 8;
const WARM_UP: usize = 2;
/// The most by which the loader may change a step.
const AIM: f64 = 0.01;

/// Prints the step with the loader over that without, with its standard error, and the part of it that is spent waiting
/// for data.
pub(crate) fn run(folder: &Path) -> anyhow::Result<()> {
    let blocks = std::env::var("RUNS").map_or(Ok(BLOCKS), |runs| runs.parse())?;
    ensure!(
        blocks >= 2,
        "RUNS is at least 2: the spread of the blocks says how sure the result is"
    );
    let streamed = loader(shards(folder, Storage::F32)?, Place::Stream, default_workers())?;
    let same = streamed.clone().repeating_the_first()?;
    let (mut ratios, mut steps) = (vec![], [vec![], vec![]]);
    let (mut waited, mut worked) = (0.0, 0.0);
    for block in 0..blocks {
        let ratio = ratio_of_block(|alone| {
            let times = train_on(if alone { &same } else { &streamed })?;
            ensure!(times.len() as u64 == STEPS, "{} steps", times.len());
            let own: Vec<f64> = times[WARM_UP..].iter().map(|[step, _]| *step).collect();
            steps[usize::from(alone)].extend(own.iter().copied());
            if !alone {
                waited += times[WARM_UP..].iter().map(|[_, wait]| wait).sum::<f64>();
                worked += times[WARM_UP..].iter().map(|[step, _]| step).sum::<f64>();
            }
            // A step that something else held up is no part of a median.
            Ok(median(own))
        })?;
        ratios.push(ratio);
        eprintln!("block {} of {blocks}: {ratio:.4}", block + 1);
    }
    let counted = steps[0].len();
    let [with, without] = steps.map(median);
    let Share { mean: ratio, error } = Share::of(&ratios);
    let line = serde_json::json!({
        "case": "wait/main-job", "step_milliseconds": with, "without_loader_milliseconds": without,
        "ratio": ratio, "ratio_error": error, "blocks": blocks, "aim": AIM,
        "outcome": outcome(ratio - 1.0, error), "waiting": waited / worked, "steps": counted,
    });
    println!("{line}");
    Ok(())
}

/// The step with the loader over that without, of a block of runs: `run` gives the milliseconds of a step, with the one
/// batch alone or without.
fn ratio_of_block(mut run: impl FnMut(bool) -> anyhow::Result<f64>) -> anyhow::Result<f64> {
    let mut sums = [0.0, 0.0];
    for alone in ORDER {
        sums[usize::from(alone)] += run(alone)?;
    }
    Ok(sums[0] / sums[1])
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    let (lower, upper) = ((times.len() - 1) / 2, times.len() / 2);
    (times[lower] + times[upper]) / 2.0
}

/// Whether a change is smaller than the aim, by two standard errors.
fn outcome(change: f64, error: f64) -> String {
    Share { mean: change.abs(), error }.below(AIM).to_string()
}

/// Milliseconds of each step, and those of it spent waiting for data.
fn train_on(loader: &TrainLoader) -> anyhow::Result<Vec<[f64; 2]>> {
    let device = Device::default();
    let model = BiLstmMaeConfig::default().init(Stream::new(SEED, "weights"), CHANNELS, &device)?;
    let folder = tempfile::tempdir()?;
    let times = Mutex::new(vec![]);
    let stop = AtomicBool::new(false);
    let listener = |event: &Event| {
        if let Event::Step { milliseconds, data_milliseconds, .. } = event
            && let Ok(mut times) = times.lock()
        {
            times.push([*milliseconds, *data_milliseconds]);
        }
    };
    let run = Run {
        folder: folder.path(),
        key: Key::builder("wait", 1).finish(),
        seed: SEED,
        resume: false,
        stop: &stop,
        requests: &Requests::new(),
        listener: &listener,
    };
    let config = TrainConfig {
        epochs: 1,
        max_steps: Some(STEPS),
        early_stopping: None,
        ..TrainConfig::default()
    };
    train(model, &Pretraining, Data { train: loader, validation: None }, &config, &run)?;
    Ok(times.into_inner().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_cancels_a_steady_drift() {
        // Steps that take 1 % longer with the loader, and longer from run to run.
        let (mut drift, mut alone) = (100.0, 0);
        let ratio = ratio_of_block(|without| {
            drift += 5.0;
            alone += usize::from(without);
            Ok(if without { drift } else { 1.01 * drift })
        });
        let ratio = ratio.unwrap();
        assert!((ratio - 1.01).abs() < 1e-12 && alone == 2, "{ratio}");
        assert!(ratio_of_block(|_| anyhow::bail!("no step")).is_err());
    }

    #[test]
    fn a_change_is_told_with_its_error_and_decided_by_it() {
        // Squares of 0.0005 in all, over 3 and over 4.
        let Share { mean: ratio, error } = Share::of(&[1.01, 0.99, 1.02, 1.0]);
        assert!((ratio - 1.005).abs() < 1e-12 && (error - 0.006_454_972).abs() < 1e-9, "{error}");
        for (change, error, expected) in [
            (0.002, 0.001, "met"),
            (-0.002, 0.001, "met"),
            (0.002, 0.005, "not decided"),
            (0.012, 0.002, "not decided"),
            (0.02, 0.002, "missed"),
            (-0.02, 0.002, "missed"),
            (0.001, f64::NAN, "not decided"),
        ] {
            assert_eq!(outcome(change, error), expected, "{change} ± {error}");
        }
        assert_eq!([median(vec![3.0, 1.0, 2.0]), median(vec![3.0, 1.0])], [2.0, 2.0]);
    }
}
