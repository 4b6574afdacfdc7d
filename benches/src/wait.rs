//! What the loader adds to a step of the main job on the CPU: the model of reference system R1 trained by
//! the trainer on its batches, streamed as `auto` has them, beside the same trainer and model given one and
//! the same batch at every step.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use anyhow::ensure;
use burn::tensor::Device;
use firebox_core::{Event, Key, Requests, Stream};
use firebox_loader::{Place, TrainLoader, default_workers};
use firebox_models::BiLstmMaeConfig;
use firebox_train::{Data, Pretraining, Run, TrainConfig, train};

use crate::data::{CHANNELS, SEED};
use crate::gather::{loader, shards};

/// Pairs of runs, whose order changes from one to the next so that a drift of the machine cancels out.
const ROUNDS: usize = 4;
/// Steps of a run, and those at its beginning that are not counted.
const STEPS: u64 = 10;
const WARM_UP: usize = 2;

/// Prints the median step with the loader and without, and the part of it that is spent waiting for data.
pub(crate) fn run(folder: &Path) -> anyhow::Result<()> {
    let streamed = loader(shards(folder)?, Place::Stream, default_workers())?;
    let same = streamed.clone().repeating_the_first()?;
    let mut steps = [vec![], vec![]];
    let (mut waited, mut worked) = (0.0, 0.0);
    for round in 0..ROUNDS {
        for turn in [round % 2, 1 - round % 2] {
            let times = train_on([&streamed, &same][turn])?;
            ensure!(times.len() as u64 == STEPS, "{} steps", times.len());
            for [step, wait] in times.into_iter().skip(WARM_UP) {
                steps[turn].push(step);
                if turn == 0 {
                    waited += wait;
                    worked += step;
                }
            }
        }
    }
    let [with, without] = steps.map(|mut steps| {
        steps.sort_unstable_by(f64::total_cmp);
        steps[steps.len() / 2]
    });
    let line = serde_json::json!({
        "case": "wait/main-job", "step_milliseconds": with, "without_loader_milliseconds": without,
        "waiting": waited / worked, "steps": ROUNDS * (STEPS as usize - WARM_UP),
    });
    println!("{line}");
    Ok(())
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
