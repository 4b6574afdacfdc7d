//! Checkpoints on disk: damage, full disks, budgets, locks, foreign runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::support::{
    Plan, SEED, ToMean, Warnings, autoencoder, held_out, loader, point, steps, weights,
};
use firebox_core::{Event, Key, Request, Requests, Silent};
use firebox_models::{Parameter, read_parameters};
use firebox_train::{
    AdamWConfig, CheckpointConfig, CheckpointError, Data, Keep, Optimizer, Outcome, ParameterGroup,
    Pretraining, Run, TrainConfig, TrainError, checkpoints, load_weights, train,
};

fn config(keep: Keep) -> TrainConfig {
    TrainConfig {
        epochs: 2,
        early_stopping: None,
        checkpoint: CheckpointConfig { keep, ..CheckpointConfig::default() },
        ..TrainConfig::default()
    }
}

/// A run of twelve steps that was interrupted after the ninth, with checkpoints at 2, 4, 6, 8, 9.
fn interrupted(folder: &Path) -> Vec<f32> {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let config = config(Keep::EverySteps(2));
    let whole = tempfile::tempdir().unwrap();
    let plain = Plan::new(whole.path());
    let plain = plain.train(autoencoder(0.2, 0.1), &Pretraining, data, &config).unwrap();
    let plan = Plan { stop_at: Some(9), ..Plan::new(folder) };
    let stopped = plan.train(autoencoder(0.2, 0.1), &Pretraining, data, &config).unwrap();
    assert_eq!(stopped.summary.outcome, Outcome::Interrupted);
    weights(&plain.model)
}

fn resume(folder: &Path, warnings: &Warnings) -> Result<Vec<f32>, TrainError> {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let watch = |event: &Event| warnings.take(event);
    let plan = Plan { watch: &watch, ..Plan::resumed(folder) };
    let config = config(Keep::EverySteps(2));
    let trained = plan.train(autoencoder(0.2, 0.1), &Pretraining, data, &config)?;
    assert_eq!(
        steps(folder).iter().map(|(s, _)| s.step).collect::<Vec<_>>(),
        Vec::from_iter(1..13)
    );
    Ok(weights(&trained.model))
}

fn step_folder(folder: &Path, step: u64) -> PathBuf {
    folder.join(format!("checkpoints/step-{step:06}"))
}

fn flip_a_bit(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_damaged_checkpoint_is_passed_over_with_a_warning() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 6] = [
        ("weights.safetensors` is damaged: its SHA-256", |p| {
            flip_a_bit(&p.join("weights.safetensors"));
        }),
        ("optimizer.safetensors` is damaged: it has 5 bytes", |p| {
            fs::write(p.join("optimizer.safetensors"), "short").unwrap();
        }),
        ("state.json` is damaged", |p| flip_a_bit(&p.join("state.json"))),
        ("manifest.json` is damaged", |p| fs::write(p.join("manifest.json"), "{\"ver").unwrap()),
        ("it has no `manifest.json`", |p| fs::remove_file(p.join("manifest.json")).unwrap()),
        ("cannot read", |p| fs::remove_file(p.join("weights.safetensors")).unwrap()),
    ];
    for (expected, damage) in damages {
        let folder = tempfile::tempdir().unwrap();
        let whole = interrupted(folder.path());
        damage(&step_folder(folder.path(), 9));
        let warnings = Warnings::default();
        assert_eq!(resume(folder.path(), &warnings).unwrap(), whole, "{expected}");
        let warnings = warnings.0.into_inner().unwrap();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains(expected), "{warnings:?}");
        assert!(step_folder(folder.path(), 9).with_extension("damaged").is_dir());
    }
}

#[test]
fn a_history_that_is_too_short_is_refused_and_no_checkpoint_is_touched() {
    let folder = tempfile::tempdir().unwrap();
    let whole = interrupted(folder.path());
    let history = folder.path().join("history.jsonl");
    let text = fs::read_to_string(&history).unwrap();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let names = || {
        let entries = fs::read_dir(folder.path().join("checkpoints")).unwrap().flatten();
        entries.map(|entry| entry.file_name()).collect::<std::collections::BTreeSet<_>>()
    };
    let before = names();
    let refused = || resume(folder.path(), &Warnings::default()).unwrap_err().to_string();
    fs::write(&history, lines[..lines.len() - 1].concat()).unwrap();
    assert!(refused().contains("every other that is newer than"), "{}", refused());
    fs::remove_file(&history).unwrap();
    assert!(refused().contains("has 0 bytes, and the newest checkpoint"), "{}", refused());
    assert_eq!(names(), before);
    fs::write(&history, text).unwrap();
    let warnings = Warnings::default();
    assert_eq!(resume(folder.path(), &warnings).unwrap(), whole);
    assert_eq!(warnings.0.into_inner().unwrap().len(), 0);
}

#[test]
fn a_run_of_which_nothing_is_whole_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    interrupted(folder.path());
    for step in [2, 4, 6, 8, 9] {
        flip_a_bit(&step_folder(folder.path(), step).join("weights.safetensors"));
    }
    let history = fs::read(folder.path().join("history.jsonl")).unwrap();
    // Nor is it begun anew, over its history, by whoever starts it again without a look.
    for _ in 0..2 {
        let error = resume(folder.path(), &Warnings::default()).unwrap_err();
        assert!(error.to_string().contains("none of the 5 checkpoints"), "{error}");
    }
    assert_eq!(fs::read(folder.path().join("history.jsonl")).unwrap(), history);
    fs::remove_dir_all(folder.path().join("checkpoints")).unwrap();
    resume(folder.path(), &Warnings::default()).unwrap();
}

#[cfg(unix)]
#[test]
fn what_cannot_be_read_now_is_not_called_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let whole = interrupted(folder.path());
    let newest = step_folder(folder.path(), 9);
    // A link to itself is refused by the system, whoever asks; it is no other content.
    let (weights, aside) = (newest.join("weights.safetensors"), newest.join("weights.aside"));
    fs::rename(&weights, &aside).unwrap();
    std::os::unix::fs::symlink(&weights, &weights).unwrap();
    let error = resume(folder.path(), &Warnings::default()).unwrap_err();
    let said = error.to_string();
    assert!(
        said.contains("cannot be read now") && said.contains("move that folder away"),
        "{said}"
    );
    assert!(newest.is_dir() && !newest.with_extension("damaged").exists());
    fs::remove_file(&weights).unwrap();
    fs::rename(&aside, &weights).unwrap();
    // Nor is what a later version of this program wrote.
    let manifest = newest.join("manifest.json");
    let text = fs::read_to_string(&manifest).unwrap();
    let later = text.replacen("\"version\": 1", "\"version\": 99", 1);
    let later = later.replacen("\"version\": 2", "\"version\": 99", 1);
    assert_ne!(later, text);
    fs::write(&manifest, later).unwrap();
    let error = resume(folder.path(), &Warnings::default()).unwrap_err();
    assert!(error.to_string().contains("is of version 99"), "{error}");
    assert!(newest.is_dir());
    fs::write(&manifest, text).unwrap();
    assert_eq!(resume(folder.path(), &Warnings::default()).unwrap(), whole);
}

#[test]
fn what_a_killed_save_leaves_behind_is_cleared_away() {
    let folder = tempfile::tempdir().unwrap();
    let whole = interrupted(folder.path());
    let checkpoints = folder.path().join("checkpoints");
    // Killed while writing, while removing, and between the two renames of a replacement.
    fs::create_dir(checkpoints.join(".step-000010.partial")).unwrap();
    fs::write(checkpoints.join(".step-000010.partial/weights.safetensors"), "half").unwrap();
    fs::create_dir(checkpoints.join(".step-000001.removed")).unwrap();
    fs::rename(checkpoints.join("step-000009"), checkpoints.join(".step-000009.replaced")).unwrap();
    let warnings = Warnings::default();
    assert_eq!(resume(folder.path(), &warnings).unwrap(), whole);
    assert!(warnings.0.into_inner().unwrap().is_empty());
    let hidden = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with('.');
    assert_eq!(fs::read_dir(&checkpoints).unwrap().flatten().filter(hidden).count(), 0);
}

#[test]
fn a_save_that_fails_ends_the_run_with_an_error() {
    for asynchronous in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let loader = loader(24, 4);
        let data = Data { train: &loader, validation: None };
        let checkpoints = folder.path().join("checkpoints");
        let broken = AtomicBool::new(false);
        // A file where the folder should be: as good as a read-only disk, also for root.
        let watch = |event: &Event| {
            if matches!(event, Event::Step { step: 3, .. }) {
                let _ = fs::remove_dir_all(&checkpoints);
                broken.store(fs::write(&checkpoints, "in the way").is_ok(), Ordering::Relaxed);
            }
        };
        let mut config = config(Keep::EverySteps(4));
        config.checkpoint.asynchronous = asynchronous;
        let plan = Plan { watch: &watch, ..Plan::new(folder.path()) };
        let error = plan.train(point(), &ToMean::default(), data, &config).unwrap_err();
        assert!(broken.into_inner());
        let message = error.to_string();
        assert!(message.contains("cannot save a checkpoint"), "{message}");
        assert!(!folder.path().join("training.json").exists());
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_folder_that_cannot_be_written_is_refused_at_once() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let folder = Path::new("/proc/firebox-run");
    let config = config(Keep::BestOnly);
    let error = Plan::new(folder).train(point(), &ToMean::default(), data, &config).unwrap_err();
    assert!(error.to_string().contains("cannot create the folder `/proc/firebox-run`"), "{error}");
}

#[test]
fn the_size_budget_holds_and_spares_the_best_and_the_newest() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let all = tempfile::tempdir().unwrap();
    let mut config = TrainConfig { epochs: 6, ..config(Keep::EveryEpoch) };
    let run = |folder: &Path, config: &TrainConfig| {
        let model = autoencoder(0.2, 0.1);
        Plan::new(folder).train(model, &Pretraining, data, config)
    };
    run(all.path(), &config).unwrap();
    let kept = checkpoints(&all.path().join("checkpoints")).unwrap();
    assert_eq!(kept.len(), 6);
    let one = kept.iter().map(firebox_train::Checkpoint::bytes).max().unwrap();
    let folder = tempfile::tempdir().unwrap();
    config.checkpoint.size_budget = Some(one * 5 / 2);
    let trained = run(folder.path(), &config).unwrap();
    let kept = checkpoints(&folder.path().join("checkpoints")).unwrap();
    let steps: Vec<u64> = kept.iter().map(|checkpoint| checkpoint.manifest().step).collect();
    let best = trained.summary.best.unwrap().step;
    assert!(kept.iter().map(firebox_train::Checkpoint::bytes).sum::<u64>() <= one * 5 / 2);
    assert!(steps.contains(&36) && steps.contains(&best) && kept.len() == 2, "{steps:?} {best}");
    config.checkpoint.size_budget = Some(100);
    let other = tempfile::tempdir().unwrap();
    let error = run(other.path(), &config).unwrap_err();
    assert!(matches!(error, TrainError::Budget { budget: 100, .. }), "{error}");
}

#[test]
fn a_size_budget_has_room_for_the_best_beside_the_newest_where_the_best_is_kept() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let objective = ToMean::default();
    let with = |keep, budget| {
        let mut config = config(keep);
        config.checkpoint.size_budget = budget;
        config
    };
    // One weight and two moments of four bytes, twice.
    for keep in [Keep::BestOnly, Keep::Best(2)] {
        let folder = tempfile::tempdir().unwrap();
        let train =
            |plan: Plan<'_>, budget| plan.train(point(), &objective, data, &with(keep, budget));
        let error = train(Plan::new(folder.path()), Some(23)).unwrap_err();
        assert!(
            matches!(error, TrainError::Budget { one: 12, count: 2, needed: 24, .. }),
            "{error}"
        );
        assert!(error.to_string().contains("2 at a time (the newest and the best)"), "{error}");
        let trained = train(Plan::new(folder.path()), Some(24)).unwrap();
        // One that has ended takes no more room.
        let again = train(Plan::resumed(folder.path()), Some(23)).unwrap();
        assert_eq!(again.summary.selected, trained.summary.selected);
    }
    let folder = tempfile::tempdir().unwrap();
    let newest = with(Keep::FinalOnly, Some(12));
    Plan::new(folder.path()).train(point(), &objective, data, &newest).unwrap();
}

#[test]
fn a_size_budget_needs_no_room_for_moments_of_what_is_never_trained() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let model = || autoencoder(0.2, 0.1);
    let group = |name: &str| ParameterGroup {
        parameters: vec![name.to_owned()],
        ..ParameterGroup::default()
    };
    let groups = vec![
        ParameterGroup { frozen: true, ..group("lstm.*") },
        ParameterGroup { unfreeze_at: Some(2), ..group("decoder.*") },
    ];
    // Each weight of four bytes, and two moments of those that are trained sooner or later.
    let copies = |name: &str| if name.starts_with("lstm.") { 1_u64 } else { 3 };
    let numbers = |own: &Parameter| copies(&own.name) * own.values.len() as u64;
    let one = 4 * read_parameters(&model()).iter().map(numbers).sum::<u64>();
    let train = |budget| {
        let folder = tempfile::tempdir().unwrap();
        let mut config = TrainConfig { groups: groups.clone(), ..config(Keep::FinalOnly) };
        config.checkpoint.size_budget = Some(budget);
        Plan::new(folder.path()).train(model(), &Pretraining, data, &config)
    };
    train(one).unwrap();
    let error = train(one - 1).unwrap_err();
    assert!(matches!(error, TrainError::Budget { one: told, .. } if told == one), "{error}");
}

#[test]
fn a_run_belongs_to_one_process_one_key_and_one_seed() {
    let folder = tempfile::tempdir().unwrap();
    interrupted(folder.path());
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let (stop, config) = (AtomicBool::new(false), config(Keep::EverySteps(2)));
    let other = |key: &str, seed| {
        let run = Run {
            folder: folder.path(),
            key: Key::builder(key, 1).finish(),
            seed,
            resume: true,
            stop: &stop,
            requests: &Requests::new(),
            listener: &Silent,
        };
        let model = autoencoder(0.2, 0.1);
        train(model, &Pretraining, data, &config, &run).unwrap_err().to_string()
    };
    assert!(other("other", SEED).contains("was begun with the configuration"));
    assert!(other("test", 99).contains("was begun with the seed 5, and this is 99"));
    // Another process in the same folder, for which a second handle stands in.
    let lock = fs::File::open(folder.path().join("training.lock")).unwrap();
    lock.lock().unwrap();
    assert!(other("test", SEED).contains("another process is training"));
    drop(lock);
    assert!(resume(folder.path(), &Warnings::default()).is_ok());
}

#[test]
fn weights_of_another_model_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    interrupted(folder.path());
    let mut model = point();
    let error = load_weights(&step_folder(folder.path(), 9), &mut model).unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("missing: `weight`"), "{source}");
    assert!(source.contains("unexpected: `decoder.hidden.bias`"), "{source}");
    assert_eq!(weights(&model), weights(&point()));
    let file = step_folder(folder.path(), 9).join("weights.safetensors");
    load_weights(&file, &mut autoencoder(0.2, 0.1)).unwrap();
    let nowhere = load_weights(&folder.path().join("nothing"), &mut model).unwrap_err();
    assert!(matches!(nowhere, CheckpointError::Read { .. }), "{nowhere}");
    fs::write(folder.path().join("text"), "no weights").unwrap();
    let text = load_weights(&folder.path().join("text"), &mut model).unwrap_err();
    assert!(std::error::Error::source(&text).unwrap().to_string().contains("safetensors"));
}

#[test]
fn the_first_version_is_read_and_a_later_one_refused() {
    let folder = tempfile::tempdir().unwrap();
    interrupted(folder.path());
    let path = step_folder(folder.path(), 8);
    let manifest = path.join("manifest.json");
    let text = fs::read_to_string(&manifest).unwrap();
    let load = |version: &str| {
        fs::write(&manifest, text.replace("\"version\": 2", version)).unwrap();
        load_weights(&path, &mut autoencoder(0.2, 0.1))
    };
    load("\"version\": 1").unwrap();
    let message = load("\"version\": 3").unwrap_err().to_string();
    assert!(
        message.contains("is of version 3, and this program reads versions 1 to 2"),
        "{message}"
    );
}

/// Epochs that are shorter than the pause between two saves.
fn short_epochs(interval: Option<u64>) -> TrainConfig {
    let base = config(Keep::BestOnly);
    let checkpoint = CheckpointConfig { interval, ..base.checkpoint };
    // So large a rate that some epochs are worse than the best.
    let adamw = AdamWConfig { learning_rate: 0.1, ..AdamWConfig::default() };
    TrainConfig { epochs: 8, checkpoint, optimizer: Optimizer::AdamW(adamw), ..base }
}

/// Steps and hashes of the checkpoints that are there.
fn hashes(folder: &Path) -> Vec<(u64, Vec<String>)> {
    let all = checkpoints(&folder.join("checkpoints")).unwrap();
    let of = |checkpoint: &firebox_train::Checkpoint| {
        checkpoint.verify().unwrap();
        let manifest = checkpoint.manifest();
        let files = manifest.files.iter().filter(|(name, _)| name.ends_with("safetensors"));
        (manifest.step, files.map(|(_, file)| file.sha256.clone()).collect())
    };
    all.iter().map(of).collect()
}

#[test]
fn short_epochs_share_a_save_and_the_best_one_remains() {
    let (loader, validation) = (loader(24, 4), held_out(10));
    let data = Data { train: &loader, validation: Some(&validation) };
    let run = |interval: Option<u64>| {
        let folder = tempfile::tempdir().unwrap();
        let saves = AtomicUsize::new(0);
        let watch = |event: &Event| {
            saves.fetch_add(
                usize::from(matches!(event, Event::Checkpoint { .. })),
                Ordering::SeqCst,
            );
        };
        let plan = Plan { watch: &watch, ..Plan::new(folder.path()) };
        let trained =
            plan.train(autoencoder(0.2, 0.1), &Pretraining, data, &short_epochs(interval));
        let trained = trained.unwrap();
        let best = trained.summary.best.unwrap().step;
        (saves.into_inner(), best, weights(&trained.model), hashes(folder.path()))
    };
    let (every, shared) = (run(Some(0)), run(None));
    assert!(every.0 >= 7, "{} saves of eight epochs", every.0);
    assert_eq!(shared.0, 1, "saves");
    assert!(every.1 < 48, "the best epoch is not the last one");
    assert_eq!((every.1, every.2, every.3), (shared.1, shared.2, shared.3));
}

#[test]
fn an_interruption_saves_the_best_epoch_that_was_held() {
    let (loader, validation) = (loader(24, 4), held_out(10));
    let data = Data { train: &loader, validation: Some(&validation) };
    let config = short_epochs(None);
    let model = || autoencoder(0.2, 0.1);
    let whole = tempfile::tempdir().unwrap();
    let plain = Plan::new(whole.path()).train(model(), &Pretraining, data, &config).unwrap();
    let folder = tempfile::tempdir().unwrap();
    // Within an epoch and at the end of one, with six steps each.
    for stop_at in [9, 18, 33, 41, 42] {
        let plan = Plan { stop_at: Some(stop_at), ..Plan::resumed(folder.path()) };
        let stopped = plan.train(model(), &Pretraining, data, &config).unwrap();
        assert_eq!(stopped.summary.outcome, Outcome::Interrupted, "at {stop_at}");
        let there: Vec<u64> = hashes(folder.path()).iter().map(|(step, _)| *step).collect();
        let best = stopped.summary.best.unwrap().step;
        assert!(there.contains(&best) && there.contains(&stopped.summary.steps), "{there:?}");
    }
    let resumed = Plan::resumed(folder.path()).train(model(), &Pretraining, data, &config).unwrap();
    assert_eq!(resumed.summary.best, plain.summary.best);
    assert_eq!(weights(&resumed.model), weights(&plain.model));
    assert_eq!(steps(folder.path()), steps(whole.path()));
    assert_eq!(hashes(folder.path()), hashes(whole.path()));
}

#[test]
fn a_run_that_was_given_up_saves_nothing() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let folder = tempfile::tempdir().unwrap();
    let requests = Requests::new();
    let watch = |event: &Event| {
        if matches!(event, Event::Step { step: 9, .. }) {
            requests.give_up();
        }
    };
    let plan =
        Plan { stop_at: Some(9), requests: &requests, watch: &watch, ..Plan::new(folder.path()) };
    let config = short_epochs(None);
    let stopped = plan.train(autoencoder(0.2, 0.1), &Pretraining, data, &config).unwrap();
    assert_eq!(stopped.summary.outcome, Outcome::Interrupted);
    assert_eq!(hashes(folder.path()), []);
    // Whoever takes it up in spite of that begins it again.
    let config = TrainConfig { epochs: 2, ..config };
    let again =
        Plan::resumed(folder.path()).train(autoencoder(0.2, 0.1), &Pretraining, data, &config);
    assert_eq!(again.unwrap().summary.steps, 12);
    assert_eq!(steps(folder.path()).len(), 12);
}

#[test]
fn a_run_that_keeps_nothing_writes_no_checkpoint_and_ends_with_the_weights_of_the_last_step() {
    let loader = loader(24, 4);
    let data = Data { train: &loader, validation: None };
    let model = || autoencoder(0.2, 0.1);
    let kept = tempfile::tempdir().unwrap();
    let plan = Plan::new(kept.path());
    let expected = plan.train(model(), &Pretraining, data, &config(Keep::FinalOnly)).unwrap();
    assert_eq!(hashes(kept.path()).len(), 1);
    let requests = Requests::new();
    for (stop_at, outcome) in [(None, Outcome::Finished), (Some(9), Outcome::Interrupted)] {
        let folder = tempfile::tempdir().unwrap();
        requests.ask(Request::Save);
        let plan = Plan { stop_at, requests: &requests, ..Plan::new(folder.path()) };
        let trained = plan.train(model(), &Pretraining, data, &config(Keep::Nothing)).unwrap();
        assert_eq!(trained.summary.outcome, outcome);
        assert!(!folder.path().join("checkpoints").exists());
        if stop_at.is_none() {
            assert_eq!(weights(&trained.model), weights(&expected.model));
            assert_eq!(steps(folder.path()), steps(kept.path()));
        }
    }
    // No pipeline can ask for it.
    assert!(serde_json::from_str::<Keep>("\"nothing\"").is_err());
}
