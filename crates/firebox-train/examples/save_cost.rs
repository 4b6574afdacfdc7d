//! What a checkpoint of R1's model costs the training loop, written at once and in the background.
//!
//! ```text
//! cargo run --release -p firebox-train --example save_cost -- [FOLDER]
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use burn::tensor::Device;
use firebox_core::*;
use firebox_loader::{LoaderConfig, NormalisedWindows, TrainLoader};
use firebox_models::BiLstmMaeConfig;
use firebox_train::{CheckpointConfig, Data, Keep, Pretraining, Run, TrainConfig, train};

fn main() -> Result<(), Box<dyn Error>> {
    let root = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let mut draws = Stream::new(1, "walk").draws();
    let values: Vec<f64> = (0..4 * 2_000).map(|_| draws.normal()).collect();
    let names = ["open", "high", "low", "close"];
    let channels = names.into_iter().map(|name| Channel::new(name, Role::Other)).collect();
    let series = Series::regular("noise", 0, 60, values, 4);
    let set = Arc::new(SeriesSet::new(channels, vec![], vec![series])?);
    let rule = WindowRule { length: 105, stride: 20, whole: false };
    let parts = split(&set, &rule, &SplitRule::time(0.0, 0.0), &Labels::None)?;
    let normaliser = Normaliser::fit(Normalisation::Standard, &parts.train)?;
    let source = Arc::new(NormalisedWindows::new(parts.train, normaliser));
    let device = Device::default();
    let batches = LoaderConfig { batch_size: 16, ..LoaderConfig::default() };
    let loader = TrainLoader::new(source, batches, device.clone())?;
    for asynchronous in [false, true] {
        let folder = root.join(format!("firebox-save-cost-{}-{asynchronous}", std::process::id()));
        let checkpoint =
            CheckpointConfig { keep: Keep::EverySteps(2), asynchronous, ..Default::default() };
        let config = TrainConfig { max_steps: Some(24), checkpoint, ..TrainConfig::default() };
        let times = Mutex::new(vec![]);
        let listener = |event: &Event| {
            if let Event::Checkpoint { blocked_milliseconds, save_milliseconds, .. } = event
                && let Ok(mut times) = times.lock()
            {
                times.push((*blocked_milliseconds, *save_milliseconds));
            }
        };
        let model = BiLstmMaeConfig::default().init(Stream::new(1, "weights"), 4, &device)?;
        let run = Run {
            folder: &folder,
            key: Key::builder("save cost", 1).finish(),
            seed: 1,
            resume: false,
            stop: &AtomicBool::new(false),
            requests: &Requests::new(),
            listener: &listener,
        };
        let data = Data { train: &loader, validation: None };
        let summary = train(model, &Pretraining, data, &config, &run)?.summary;
        std::fs::remove_dir_all(&folder)?;
        let times = times.into_inner().unwrap_or_default();
        let median = |part: fn(&(f64, f64)) -> f64| {
            let mut values: Vec<f64> = times.iter().map(part).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
        };
        println!(
            "asynchronous {asynchronous}: {} saves of {:.1} MB, training stood still {:.2} ms, \
             writing took {:.2} ms (medians)",
            summary.saves.saves,
            summary.saves.bytes as f64 / summary.saves.saves as f64 / 1e6,
            median(|(blocked, _)| *blocked),
            median(|(_, save)| *save),
        );
    }
    Ok(())
}
