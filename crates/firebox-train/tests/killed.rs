//! A real process that trains is killed with SIGKILL again and again, and resumed: in the end its
//! weights and losses are those of a process that was left alone, bit for bit.

#![allow(clippy::unwrap_used, clippy::expect_used)]
#![cfg(unix)]

mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use firebox_core::Stream;
use firebox_train::{
    CheckpointConfig, Cosine, Data, EarlyStopping, History, Keep, Pretraining, Schedule,
    TrainConfig, Warmup, checkpoints,
};
use support::{Plan, autoencoder, held_out, loader, steps};

const FOLDER: &str = "FIREBOX_TEST_RUN_FOLDER";

/// Not a test by itself: what the processes of the tests below do.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let (loader, validation) = (loader(60, 4), held_out(12));
    let data = Data { train: &loader, validation: Some(&validation) };
    let config = TrainConfig {
        epochs: 16,
        accumulate: 2,
        early_stopping: Some(EarlyStopping { patience: 8, min_delta: 0.0 }),
        schedule: Schedule::Cosine(Cosine { warmup: Warmup::Epochs(1.0), ..Cosine::default() }),
        checkpoint: CheckpointConfig {
            keep: Keep::Best(2),
            resume_every: Some(2),
            ..CheckpointConfig::default()
        },
        ..TrainConfig::default()
    };
    let model = autoencoder(0.2, 0.1);
    let plan = Plan::resumed(Path::new(&folder));
    if let Err(error) = plan.train(model, &Pretraining, data, &config) {
        eprintln!("error: {error}: {:?}", std::error::Error::source(&error));
        std::process::exit(3);
    }
}

fn start(folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--test-threads", "1"]).env(FOLDER, folder);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Hashes of weights and moments of every checkpoint that is left.
fn files(folder: &Path) -> Vec<(u64, String, String)> {
    let kept = checkpoints(&folder.join("checkpoints")).unwrap();
    let files = kept.iter().flat_map(|checkpoint| {
        checkpoint.verify().unwrap();
        let manifest = checkpoint.manifest();
        let step = manifest.step;
        manifest.files.iter().map(move |(name, file)| (step, name.clone(), file.sha256.clone()))
    });
    files.filter(|(_, name, _)| name.ends_with("safetensors")).collect()
}

fn epochs(folder: &Path) -> Vec<(u64, u64, u64, Option<u64>, bool)> {
    let epochs = History::read(folder).unwrap().epochs;
    let bits = |epoch: firebox_train::EpochRecord| {
        let validation = epoch.validation_loss.map(f64::to_bits);
        (epoch.epoch, epoch.step, epoch.train_loss.to_bits(), validation, epoch.best)
    };
    epochs.into_iter().map(bits).collect()
}

#[test]
fn a_killed_run_ends_as_if_nothing_had_happened() {
    let undisturbed = tempfile::tempdir().unwrap();
    let output = start(undisturbed.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(steps(undisturbed.path()).len() > 64);

    let folder = tempfile::tempdir().unwrap();
    let mut draws = Stream::new(11, "moments").draws();
    let (mut killed, mut done) = (0, false);
    for _ in 0..200 {
        let mut process = start(folder.path()).spawn().unwrap();
        // Killed some steps after it began to train, at any moment within a step or a save; or,
        // for no step, while it starts. Counted in steps and not in time, so that a slow machine
        // sees as many kills as a fast one.
        let wanted = draws.below(9);
        let moment = Duration::from_micros(draws.below(if wanted == 0 { 40_000 } else { 4_000 }));
        let history = folder.path().join("history.jsonl");
        let length = || fs::metadata(&history).map_or(0, |file| file.len());
        let (mut last, mut grown) = (length(), 0);
        let ended = loop {
            if let Some(status) = process.try_wait().unwrap() {
                break Some(status);
            }
            let now = length();
            grown += u64::from(now > last);
            last = now;
            if grown >= wanted {
                std::thread::sleep(moment);
                break process.try_wait().unwrap();
            }
            std::thread::sleep(Duration::from_micros(200));
        };
        match ended {
            Some(status) => {
                assert!(status.success(), "{status}");
                done = true;
                break;
            }
            None => {
                process.kill().unwrap();
                process.wait().unwrap();
                killed += 1;
            }
        }
    }
    if !done {
        assert!(start(folder.path()).status().unwrap().success());
    }
    println!("killed {killed} times");
    assert!(killed >= 8, "the process was killed {killed} times only");
    assert_eq!(steps(folder.path()), steps(undisturbed.path()));
    assert_eq!(epochs(folder.path()), epochs(undisturbed.path()));
    assert_eq!(files(folder.path()), files(undisturbed.path()));
    assert!(!files(folder.path()).is_empty());
}

#[test]
fn a_full_disk_is_an_error_and_the_run_can_be_resumed() {
    let undisturbed = tempfile::tempdir().unwrap();
    assert!(start(undisturbed.path()).status().unwrap().success());
    let folder = tempfile::tempdir().unwrap();
    // No file may grow beyond 4 KiB; ignoring the signal turns that into an error of `write`.
    let program = std::env::current_exe().unwrap();
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" --exact child --nocapture"])
        .arg(program)
        .env(FOLDER, folder.path())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("cannot save a checkpoint: cannot write"), "{stderr}");
    assert!(!folder.path().join("training.json").exists());
    let left = fs::read_dir(folder.path().join("checkpoints")).unwrap().count();
    assert_eq!(left, 0, "what was written of it takes no room");
    // With room again, the run goes on.
    assert!(start(folder.path()).status().unwrap().success());
    assert_eq!(steps(folder.path()), steps(undisturbed.path()));
    assert_eq!(files(folder.path()), files(undisturbed.path()));
}
