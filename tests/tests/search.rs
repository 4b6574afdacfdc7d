//! `firebox search`, whole: what it leaves, what it refuses, and what becomes of workers that die.

#![allow(clippy::unwrap_used, reason = "a test may")]

#[path = "../../crates/firebox-search/tests/peer/server.rs"]
mod server;

#[cfg(target_os = "linux")]
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use firebox_tests::{command, errors, firebox};
use serde_json::Value;
use tempfile::TempDir;

const PIPELINE: &str = r#"
[data]
path = "bars.csv"
[window]
length = 16
stride = 4
[augment]
versions = 1
[loader]
batch_size = 16
[model.bilstm-mae]
hidden = 6
layers = 1
decoder_hidden = 6
[train]
epochs = 2
early_stopping = false
non_finite = "stop"
[train.checkpoint]
resume_every = 2
[evaluate]
seeds = 2
resamples = 200
"#;

const SEARCH: &str = r#"
[search]
trials = 4
heartbeat = 0.2
sampler = "random"
pruner = "none"
[search.space]
"train.optimizer.adamw.learning_rate" = { low = 1e-4, high = 1e-2, log = true }
"model.bilstm-mae.hidden" = { low = 4, high = 8, step = 2 }
"#;

fn project(search: &str) -> TempDir {
    firebox_tests::project(&format!("{PIPELINE}{search}"), 900)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn assert_done(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{}{}", errors(output), said(output));
}

/// The entries of the journal with an operation's number.
fn entries(folder: &Path, operation: u64) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("runs/p.search/study.log")).unwrap();
    let entries = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    entries.filter(|entry| entry["op_code"] == operation).collect()
}

/// The values of the trials that ended complete.
fn values(folder: &Path) -> Vec<f64> {
    let ended = entries(folder, 6).into_iter().filter(|entry| entry["state"] == 1);
    ended.map(|entry| entry["values"][0].as_f64().unwrap()).collect()
}

#[test]
fn a_search_leaves_a_study_the_best_pipeline_and_its_report() {
    let project = project(SEARCH);
    let folder = project.path();
    let output = firebox(folder, &["search", "p.toml"]);
    assert_done(&output);
    let all = values(folder);
    assert!(all.len() == 4 && all.iter().all(|value| value.is_finite()), "{all:?}");
    let best = all.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(said(&output).contains(&format!("validation loss of {best:.5}")), "{}", said(&output));
    let summary = std::fs::read_to_string(folder.join("runs/p.search/summary.md")).unwrap();
    assert!(summary.contains("- complete: 4") && summary.contains("(fANOVA)"), "{summary}");
    let page = std::fs::read_to_string(folder.join("runs/p.search/report.html")).unwrap();
    for part in ["History", "Parameters", "On the way", "Trials", "Best configuration"] {
        assert!(page.contains(&format!(">{part}</h2>")), "{part}");
    }
    // The best pipeline is one, and what it trains has the loss of the trial.
    let path = folder.join("runs/p.search/best.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains("[search"), "{text}");
    let again = tempfile::tempdir().unwrap();
    let runs = format!("run.directory={}", again.path().display());
    let output = firebox(folder, &["run", path.to_str().unwrap(), "--set", &runs]);
    assert_done(&output);
    assert!(
        errors(&output).contains(&format!("best validation loss {best:.5}")),
        "{}",
        errors(&output)
    );
    // The checkpoints of three are kept, and every trial has its log.
    let runs = std::fs::read_dir(folder.join("runs")).unwrap().flatten();
    let runs: Vec<_> =
        runs.map(|run| run.path()).filter(|p| p.join("events.jsonl").exists()).collect();
    let kept = runs.iter().filter(|run| run.join("checkpoints").is_dir()).count();
    assert_eq!((runs.len(), kept), (4, 3));
    // Asked for again there is nothing to do; asked for more, it goes on.
    assert_done(&firebox(folder, &["search", "p.toml"]));
    assert_eq!(values(folder).len(), 4);
    let journal = "runs/p.search/study.log";
    assert_done(&firebox(folder, &["search", "--join", journal, "--set", "search.trials=6"]));
    let after = values(folder);
    assert!(after.len() == 6 && after[..4] == all[..], "{after:?}");
    // The study belongs to this pipeline.
    let other = firebox(folder, &["search", "p.toml", "--set", "train.epochs=3"]);
    assert_eq!(other.status.code(), Some(2));
    let text = errors(&other);
    assert!(text.contains("`train.epochs` = 2") && text.contains("`train.epochs` = 3"), "{text}");
    let other = firebox(folder, &["search", "--join", "p.toml"]);
    assert_eq!(other.status.code(), Some(2));
    let text = errors(&other);
    assert!(text.contains("p.toml is a file, and neither the folder of a study nor"), "{text}");
    let other = firebox(folder, &["search", "--join", journal, "--set", "train.epochs=3"]);
    assert_eq!(other.status.code(), Some(2));
    let text = errors(&other);
    assert!(text.contains("`train.epochs` = 2") && text.contains("`train.epochs` = 3"), "{text}");
}

#[test]
fn what_auto_settled_is_told_once_and_written_into_the_best_pipeline() {
    // Of one model, which is measured once.
    let (search, _) = SEARCH.split_once("\"model.").unwrap();
    let project = project(search);
    let folder = project.path();
    let output = firebox(folder, &["search", "p.toml", "--set", "run.precision=auto"]);
    assert_done(&output);
    let told = errors(&output);
    let told: Vec<&str> = told.lines().filter(|line| line.contains("run.precision = ")).collect();
    let [told] = told[..] else { panic!("{told:?}") };
    assert!(told.starts_with("settle") && told.contains("with batches of 16"), "{told}");
    let (_, told) = told.split_once("trial 0: run.precision = ").unwrap();
    let (value, reason) = told.split_once(": ").unwrap();
    let best = std::fs::read_to_string(folder.join("runs/p.search/best.toml")).unwrap();
    let comment = format!("# run.precision = {value}: it was \"auto\"; {reason}\n");
    assert!(best.contains(&comment), "{comment}{best}");
    assert!(best.contains(&format!("precision = \"{value}\"")), "{best}");
    assert!(!best.contains("precision = \"auto\""), "{best}");
    // Each run has the reason, that of the best after its evaluation, too.
    let runs = std::fs::read_dir(folder.join("runs")).unwrap().flatten();
    let runs =
        runs.filter_map(|run| std::fs::read_to_string(run.path().join("pipeline.toml")).ok());
    let reason = format!("# run.precision = {value}: {reason}\n");
    let said: Vec<bool> = runs.map(|text| text.contains(&reason)).collect();
    assert_eq!(said, [true; 4]);
}

#[test]
fn a_space_that_cannot_be_is_refused_before_the_first_trial() {
    let check = |search: &str, expected: &[&str]| {
        let project = project(search);
        let output = firebox(project.path(), &["search", "p.toml"]);
        let text = errors(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        expected.iter().for_each(|part| assert!(text.contains(part), "`{part}` is not in {text}"));
        assert!(!project.path().join("runs").exists());
    };
    let space = |entry: &str| format!("[search.space]\n{entry}\n");
    let unknown = space(r#""train.optimizer.adamw.learning_rat" = { low = 0.1, high = 1.0 }"#);
    check(
        &unknown,
        &["unknown key `learning_rat`", "did you mean `learning_rate`?", "[search.space]"],
    );
    let empty = space(r#""train.epochs" = { low = 9, high = 3 }"#);
    check(&empty, &["`train.epochs` cannot be: the range from 9 to 3 is empty"]);
    let zero =
        space(r#""train.optimizer.adamw.learning_rate" = { low = 0.0, high = 0.1, log = true }"#);
    check(&zero, &["a logarithmic range must start above 0"]);
    let range = space(r#""model.bilstm-mae.hidden" = { low = 0, high = 8 }"#);
    check(&range, &["[search.space] cannot have `model.bilstm-mae.hidden` = 0", "hidden"]);
    let kind = space(r#""train.epochs" = { low = 1.0, high = 3.0 }"#);
    check(&kind, &["`train.epochs` = 1.0", "whole number"]);
    let choice = space(r#""run.precision" = { choices = ["f32", "f12"] }"#);
    check(&choice, &["`run.precision` = \"f12\""]);
    let table = space(r#""train.schedule" = { choices = ["cosine", "constant"] }"#);
    check(
        &table,
        &["cannot have `train.schedule` = \"cosine\"", "`cosine` has settings of its own"],
    );
    let list = space(r#""train.schedule" = ["cosine", "constant"]"#);
    check(&list, &["p.toml:", "expected a table with `low` and `high`, or with `choices`"]);
    check(
        &space(r#""run.directory" = { choices = ["a"] }"#),
        &["it says where and how a run is kept"],
    );
    check(&space(r#""train.epochs" = { low = 1 }"#), &["it needs `low` and `high`, or `choices`"]);
    check("[search]\n", &["there is nothing to search"]);
    check("", &["has no table [search]"]);
    let when = r#""train.epochs" = { low = 1, high = 2, when = { "loader.batch_size" = 8 } }"#;
    check(
        &space(when),
        &["`train.epochs` depends on `loader.batch_size`, which is not in the space"],
    );
    let misspelt = format!("{}[search.pruner.medain]\n", space(""));
    check(&misspelt, &["unknown choice `medain`", "did you mean `median`?"]);
    let trials = "[search]\ntrials = 0\n".to_owned() + &empty;
    check(&trials, &["`search.trials` is 0"]);
    let seed = space(r#""run.seed" = { low = 1, high = 3 }"#);
    check(&seed, &["`run.seed`", "the losses of its values cannot be compared"]);
    let rate = r#""train.optimizer.adamw.learning_rate" = { low = 1e-4, high = 1e-2 }"#;
    for (setting, expected) in [
        ("study = \"../../esc\"", "a study cannot be called \"../../esc\""),
        ("study = \"\"", "a study cannot be called \"\""),
        ("heartbeat = 1e-9", "it must be from 0.1 to 3600 seconds"),
        ("early_stop = { patience = 0 }", "`search.early_stop.patience` is 0"),
        ("objectives = \"f1\"", "a search has no objective \"f1\"; there are validation-loss"),
        ("objectives = \"validation-r2\"", "allowed here: validation-loss, validation-accuracy,"),
        ("objectives = \"validation-f1\"", "needs classes, and `labels` is none"),
        ("pruner = \"patience\"", "did you mean `patient`?"),
        ("sampler = 3", "one of tpe, random, quasi-random, grid, as a name or as a table"),
        ("objectives = [\"parameters\"]", "the first objective of a search is"),
        (
            "objectives = [\"validation-loss\", \"parameters\"]\npruner = { median = {} }",
            "`search.pruner` is median; with several objectives no trial is given up early",
        ),
    ] {
        check(&format!("[search]\n{setting}\n{}", space(rate)), &[expected]);
    }
}

#[test]
fn a_damaged_journal_is_named_and_left_alone() {
    let project = project(SEARCH);
    let folder = project.path();
    assert_done(&firebox(folder, &["search", "p.toml", "--set", "search.trials=1"]));
    let path = folder.join("runs/p.search/study.log");
    let text = std::fs::read_to_string(&path).unwrap();
    let damaged = text.replacen("{\"op_code\":5", "{\"op_cod", 1);
    std::fs::write(&path, &damaged).unwrap();
    let output = firebox(folder, &["search", "p.toml"]);
    assert_eq!(output.status.code(), Some(2));
    let place = text.lines().position(|line| line.starts_with("{\"op_code\":5")).unwrap() + 1;
    let text = errors(&output);
    let expected = format!("line {place} of {}", path.canonicalize().unwrap().display());
    assert!(text.contains(&expected) && text.contains("is damaged"), "{text}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), damaged);
}

#[test]
fn a_trial_that_fails_keeps_its_reason_and_the_study_goes_on() {
    let search = r#"
[search]
trials = 2
sampler = "grid"
[search.space]
"train.optimizer.adamw.learning_rate" = { choices = [1e-3, 1e37] }
"#;
    let project = project(search);
    let folder = project.path();
    let output = firebox(folder, &["search", "p.toml"]);
    assert_done(&output);
    assert!(said(&output).contains("1 complete, 0 given up early, 1 failed"), "{}", said(&output));
    let reasons: Vec<_> = entries(folder, 8)
        .into_iter()
        .filter_map(|entry| entry["user_attr"]["fail_reason"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(reasons.len(), 1);
    assert!(reasons[0].contains("has the loss") || reasons[0].contains("NaN"), "{reasons:?}");
}

/// A training that goes on with weights beyond all numbers is validated, and no loss of it is one.
#[test]
fn a_trial_without_a_finite_validation_loss_says_that_it_has_none() {
    let search = r#"
[search]
trials = 1
sampler = "random"
[search.space]
"train.optimizer.adamw.learning_rate" = { choices = [1e37] }
"#;
    let goes_on = "non_finite = \"skip\"\nnon_finite_limit = 100000";
    let pipeline = PIPELINE.replace("non_finite = \"stop\"", goes_on);
    let project = firebox_tests::project(&format!("{pipeline}{search}"), 900);
    let folder = project.path();
    let output = firebox(folder, &["search", "p.toml"]);
    assert_eq!(output.status.code(), Some(1), "{}{}", errors(&output), said(&output));
    assert!(said(&output).contains("0 complete, 0 given up early, 1 failed"), "{}", said(&output));
    let summary = std::fs::read_to_string(folder.join("runs/p.search/summary.md")).unwrap();
    let reason = "the objective validation-loss is infinite: what was trained left the range";
    assert!(summary.contains(reason), "{summary}");
}

#[test]
fn a_run_that_somebody_made_stays_whole_and_a_trial_without_its_checkpoint_can_be_run() {
    let search = r#"
[search]
sampler = "grid"
keep = 1
[search.space]
"train.optimizer.adamw.learning_rate" = { choices = [1e-9, 3e-3, 1e-2] }
"#;
    let project = project(search);
    let folder = project.path();
    let rate = |rate: &str| format!("train.optimizer.adamw.learning_rate={rate}");
    let runs = || -> Vec<String> {
        let all = std::fs::read_dir(folder.join("runs")).unwrap().flatten();
        let all = all.map(|run| run.file_name().into_string().unwrap());
        let mut all: Vec<String> = all.filter(|name| name.starts_with("p-")).collect();
        all.sort();
        all
    };
    let has = |run: &str| folder.join("runs").join(run).join("checkpoints").is_dir();
    // One that learns nothing, so that it is not the best.
    assert_done(&firebox(folder, &["run", "p.toml", "--set", &rate("1e-9")]));
    let own = runs();
    assert_eq!(own.len(), 1);
    assert_done(&firebox(folder, &["search", "p.toml"]));
    let all = runs();
    let kept: Vec<&String> = all.iter().filter(|run| has(run)).collect();
    assert!(all.len() == 3 && kept.len() == 2 && has(&own[0]), "{all:?} {kept:?}");
    let again = ["run", "p.toml", "--set", &rate("1e-9"), "--set", "evaluate.resamples=100"];
    let output = firebox(folder, &again);
    assert_done(&output);
    assert!(!errors(&output).contains("trained again"), "{}", errors(&output));
    // A trial whose checkpoint went is trained again, and then belongs to who asked for it.
    let lost = all.iter().find(|run| !has(run)).unwrap();
    let text = std::fs::read_to_string(folder.join("runs").join(lost).join("pipeline.toml"));
    let text = text.unwrap();
    let value = if text.contains("learning_rate = 0.003") { "3e-3" } else { "1e-2" };
    let set = rate(value);
    // The best one belongs to who asks for it from then on, though there is nothing to do.
    let best = all.iter().find(|run| has(run) && **run != own[0]).unwrap();
    let marker = folder.join("runs").join(best).join("searched");
    assert!(marker.is_file());
    let other = rate(if value == "3e-3" { "1e-2" } else { "3e-3" });
    assert_done(&firebox(folder, &["run", "p.toml", "--set", &other]));
    assert!(!marker.exists());
    let planned = firebox(folder, &["plan", "p.toml", "--set", &set]);
    assert!(
        said(&planned).lines().any(|line| line.starts_with("train") && line.ends_with("to do"))
    );
    let output = firebox(folder, &["run", "p.toml", "--set", &set]);
    assert_done(&output);
    assert!(errors(&output).contains("it is trained again"), "{}", errors(&output));
    assert!(has(lost) && runs() == all);
    assert_done(&firebox(folder, &["search", "p.toml"]));
    assert!(has(lost) && has(&own[0]));
    // Other data are another study.
    let text = std::fs::read_to_string(folder.join("bars.csv")).unwrap();
    let (rows, _) = text.trim_end().rsplit_once('\n').unwrap();
    std::fs::write(folder.join("bars.csv"), format!("{rows}\n")).unwrap();
    let output = firebox(folder, &["search", "p.toml"]);
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
    let expected = "the data of the study p are not those that it was begun with";
    assert!(errors(&output).contains(expected), "{}", errors(&output));
    let other = firebox(folder, &["search", "p.toml", "--set", "search.study=p-2"]);
    assert_done(&other);
}

/// A search of a small forecaster.
const FORECAST: &str = r#"
pipeline = "forecast"
[data]
path = "small.demand.toml"
[data.checks]
constant = "keep"
[window]
length = 6
stride = 8
[split.time]
validation = 0.2
test = 0.2
[forecast]
targets = ["homes"]
horizons = [1]
[loader]
batch_size = 32
[model.stacked-lstm]
hidden_1 = 4
hidden_2 = 2
dense = 2
[train]
epochs = 1
[search]
trials = 2
sampler = "random"
objective = "validation-r2"
[search.space]
"train.optimizer.adamw.learning_rate" = { choices = [1e-3] }
"#;

/// A folder with that search, and data of one station.
fn forecast(pipeline: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let data = "stations = 1\nhours = 600\n";
    std::fs::write(folder.path().join("small.demand.toml"), data).unwrap();
    std::fs::write(folder.path().join("p.toml"), pipeline).unwrap();
    folder
}

/// The R² of a target that never changes is no number, whatever was trained: its trials fail, their
/// checkpoints go, and the study goes on, also with values that it had before.
#[test]
fn a_trial_whose_score_is_no_number_fails_and_the_study_goes_on() {
    let folder = forecast(FORECAST);
    let folder = folder.path();
    let join = ["search", "--join", "runs/p.search", "--set", "search.trials=3"];
    for (command, failed) in [(&["search", "p.toml"][..], 2), (&join, 3)] {
        let output = firebox(folder, command);
        let text = errors(&output);
        assert_eq!(output.status.code(), Some(1), "{text}{}", said(&output));
        assert!(text.contains("no trial ended with a value"), "{text}");
        let counts = format!("0 complete, 0 given up early, {failed} failed");
        assert!(said(&output).contains(&counts), "{}", said(&output));
        let summary = std::fs::read_to_string(folder.join("runs/p.search/summary.md")).unwrap();
        let reason = "the score validation-r2 is not a number: it needs a target";
        assert_eq!(summary.matches(reason).count(), failed, "{summary}");
        let mut runs = std::fs::read_dir(folder.join("runs")).unwrap().flatten();
        assert!(!runs.any(|run| run.path().join("checkpoints").is_dir()), "one has its checkpoint");
    }
}

/// What every trial would meet fails none of them, and takes nothing of what the study may try.
#[test]
fn horizons_that_fit_no_data_and_threads_that_are_no_number_fail_no_trial() {
    let folder = forecast(
        &FORECAST
            .replace("constant = \"keep\"", "constant = \"drop\"")
            .replace("\"homes\"", "\"demand\"")
            .replace("horizons = [1]", "horizons = [4000]")
            .replace("objective = \"validation-r2\"\n", ""),
    );
    let folder = folder.path();
    let mut threads = command(folder, &["search", "p.toml"]);
    let threads = threads.env("RAYON_NUM_THREADS", "many").output().unwrap();
    assert_eq!(threads.status.code(), Some(2), "{}", errors(&threads));
    assert!(errors(&threads).contains("RAYON_NUM_THREADS is `many`"), "{}", errors(&threads));
    assert!(entries(folder, 4).is_empty(), "a trial was begun");
    let horizons = firebox(folder, &["search", "p.toml"]);
    let text = errors(&horizons);
    assert_eq!(horizons.status.code(), Some(2), "{text}");
    assert!(text.contains("no window fits") && text.contains("`forecast.horizons`"), "{text}");
    assert!(text.contains("put back, as the worker cannot go on"), "{text}");
    assert!(!text.contains("failed: "), "{text}");
    // Three times, whatever becomes of trials whose worker dies; the worker ends each time.
    for put_back in [true, true, false] {
        let horizons = firebox(folder, &["search", "p.toml", "--set", "search.retries=0"]);
        let text = errors(&horizons);
        assert_eq!(horizons.status.code(), Some(2), "{text}");
        assert_eq!(text.contains("put back, as the worker cannot go on"), put_back, "{text}");
        assert_eq!(text.contains("failed: "), !put_back, "{text}");
    }
    let begun = entries(folder, 4).len();
    assert_eq!(begun, 4, "one trial and its three retries");
}

/// What somebody enqueued is refused with a line of its own, as any other failure.
#[test]
fn an_enqueued_value_that_is_refused_is_told() {
    let project = project(SEARCH);
    let folder = project.path();
    assert_done(&firebox(folder, &["search", "p.toml", "--set", "search.trials=1"]));
    append(
        folder,
        &serde_json::json!({
            "op_code": 4, "worker_id": "another", "study_id": 0, "datetime_start": null, "state": 4,
            "value": null, "values": null, "distributions": {}, "params": {}, "user_attrs": {},
            "system_attrs": {"fixed_params": {"model.bilstm-mae.hidden": 64}}, "intermediate_values": {},
        }),
    );
    let output = firebox(folder, &["search", "p.toml", "--set", "search.trials=2"]);
    assert_done(&output);
    let text = errors(&output);
    let told = text.lines().find(|line| line.contains("failed: ")).unwrap_or_default();
    let reason = "failed: the parameter `model.bilstm-mae.hidden` cannot be: 64 is not among";
    assert!(told.starts_with("trial 1 ") && told.contains(reason), "{text}");
    assert!(!told.trim_end().ends_with(';'), "{told}");
    assert!(said(&output).contains("1 complete, 0 given up early, 1 failed"), "{}", said(&output));
}

/// The command that a search prints joins it, also where its journal has another study.
#[test]
fn the_command_that_is_printed_joins_the_study() {
    let project = project(SEARCH);
    let folder = project.path();
    let one = ["search", "p.toml", "--set", "search.trials=1", "--set", "search.storage=both.log"];
    assert_done(&firebox(folder, &one));
    let output = firebox(folder, &[&one[..], &["--set", "search.study=other"]].concat());
    assert_done(&output);
    let text = errors(&output);
    let (_, command) = text.split_once("join it with: firebox ").unwrap();
    let command: Vec<&str> = command.lines().next().unwrap().split(' ').collect();
    assert!(command.ends_with(&["--study", "other"]), "{command:?}");
    let output = firebox(folder, &command);
    assert_done(&output);
    assert!(errors(&output).contains("study other in "), "{}", errors(&output));
}

/// What is to be measured may be gone: the best trial is then trained again, and is what it was.
#[test]
fn a_best_trial_without_its_checkpoint_is_trained_again() {
    let project = project(SEARCH);
    let folder = project.path();
    let one = ["search", "p.toml", "--set", "search.trials=1"];
    assert_done(&firebox(folder, &one));
    let runs = std::fs::read_dir(folder.join("runs")).unwrap().flatten();
    let run = runs.map(|run| run.path()).find(|run| run.join("training.json").is_file()).unwrap();
    let best = || {
        let text = std::fs::read(run.join("training.json")).unwrap();
        serde_json::from_slice::<Value>(&text).unwrap()["best"].clone()
    };
    let expected = best();
    // What was measured is there, so nothing needs the checkpoint.
    std::fs::remove_dir_all(run.join("checkpoints")).unwrap();
    let output = firebox(folder, &one);
    assert_done(&output);
    assert!(!errors(&output).contains("trained again"), "{}", errors(&output));
    std::fs::remove_file(run.join("manifest.json")).unwrap();
    let output = firebox(folder, &one);
    assert_done(&output);
    let text = errors(&output);
    assert!(text.contains("the checkpoint of trial 0, the best,"), "{text}");
    assert!(text.contains("it is trained again"), "{text}");
    assert_eq!(best(), expected);
    assert!(run.join("checkpoints").is_dir() && run.join("manifest.json").is_file());
}

#[test]
fn a_search_without_a_file_is_told_of_both_ways() {
    let folder = tempfile::tempdir().unwrap();
    let output = firebox(folder.path(), &["search"]);
    assert_eq!(output.status.code(), Some(2));
    let text = errors(&output);
    assert!(text.contains("firebox search FILE") && text.contains("--join STUDY"), "{text}");
}

#[test]
fn several_workers_share_a_search() {
    let project = project(SEARCH);
    let folder = project.path();
    let output =
        firebox(folder, &["search", "p.toml", "--workers", "3", "--set", "search.trials=9"]);
    assert_done(&output);
    assert_eq!(values(folder).len(), 9);
    let begun: std::collections::BTreeSet<String> =
        entries(folder, 4).iter().map(|entry| entry["worker_id"].to_string()).collect();
    assert!(begun.len() >= 2, "one worker did everything: {begun:?}");
    // What is edited in the file counts for the workers.
    let more = SEARCH.replace("trials = 4", "trials = 11");
    std::fs::write(folder.join("p.toml"), format!("{PIPELINE}{more}")).unwrap();
    assert_done(&firebox(folder, &["search", "p.toml", "--workers", "2"]));
    assert_eq!(values(folder).len(), 11);
}

/// The time of a search is the study's: what one command has used, the next has not.
#[test]
fn the_time_of_a_search_is_that_of_all_its_commands() {
    let project = project(SEARCH);
    let folder = project.path();
    let file = ["search", "p.toml"];
    let join = ["search", "--join", "runs/p.search/study.log"];
    let together = ["search", "p.toml", "--workers", "2"];
    // A trial takes longer.
    let timeout = ["--set", "search.timeout=0.001"];
    for command in [&file[..], &join, &together] {
        let output = firebox(folder, &[command, &timeout].concat());
        assert_done(&output);
        assert_eq!(values(folder).len(), 1, "{command:?}");
        let text = said(&output);
        let why = "no more are begun: trials ran for ";
        assert!(text.contains(why) && text.contains("`search.timeout` = 0.001"), "{text}");
    }
    let output = firebox(folder, &[&join[..], &["--set", "search.timeout=1000"]].concat());
    assert_done(&output);
    assert_eq!(values(folder).len(), 4);
    let why = "no more are begun: all of `search.trials` = 4";
    assert!(said(&output).contains(why), "{}", said(&output));
    let summary = std::fs::read_to_string(folder.join("runs/p.search/summary.md")).unwrap();
    assert!(summary.contains(why), "{summary}");
}

/// A trial with the values of another has its result without training, and its curve.
#[test]
fn a_trial_that_repeats_another_has_its_curve() {
    let search = r#"
[search]
trials = 3
sampler = "random"
[search.space]
"train.optimizer.adamw.learning_rate" = { choices = [1e-3] }
"#;
    let project = project(search);
    let folder = project.path();
    let output = firebox(folder, &["search", "p.toml", "--set", "train.epochs=3"]);
    assert_done(&output);
    let all = values(folder);
    assert_eq!(all, [all[0]; 3]);
    let reports = |trial: u64| -> Vec<(u64, f64)> {
        let own = entries(folder, 7).into_iter().filter(|entry| entry["trial_id"] == trial);
        own.map(|e| (e["step"].as_u64().unwrap(), e["intermediate_value"].as_f64().unwrap()))
            .collect()
    };
    assert_eq!(reports(0).len(), 3);
    assert_eq!((reports(1), reports(2)), (reports(0), reports(0)));
    let repeats = entries(folder, 9).into_iter().filter_map(|entry| {
        let original = entry["system_attr"].get("firebox:repeats")?.as_u64()?;
        Some((entry["trial_id"].as_u64()?, original))
    });
    assert_eq!(repeats.collect::<Vec<_>>(), [(1, 0), (2, 0)]);
    assert!(errors(&output).contains("the same as trial 0"), "{}", errors(&output));
}

/// Waits until a run's log has the text.
#[cfg(unix)]
fn wait_for(folder: &Path, text: &str) {
    for _ in 0..5000 {
        let runs = std::fs::read_dir(folder.join("runs")).into_iter().flatten().flatten();
        let mut logs = runs.filter_map(|run| std::fs::read(run.path().join("events.jsonl")).ok());
        if logs.any(|log| String::from_utf8_lossy(&log).contains(text)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(4));
    }
    panic!("no run wrote {text}");
}

/// A worker is killed, or stopped, in the middle of a trial; another goes on from its checkpoint, and
/// the trial ends with the value that it would have had.
#[cfg(unix)]
#[test]
fn a_trial_goes_on_from_its_last_checkpoint() {
    let search = r#"
[search]
trials = 1
heartbeat = 0.2
[search.space]
"train.optimizer.adamw.learning_rate" = { choices = [1e-3] }
"#;
    let long = ["search", "p.toml", "--set", "train.epochs=30"];
    let whole = project(search);
    assert_done(&firebox(whole.path(), &long));
    let expected = values(whole.path());
    for (signal, code) in [("-KILL", None), ("-INT", Some(130))] {
        let project = project(search);
        let folder = project.path();
        let mut child = command(folder, &long);
        let mut child = child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_for(folder, "\"event\":\"checkpoint\"");
        Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert_eq!(child.wait().unwrap().code(), code, "{signal}");
        assert_eq!(values(folder), [0.0; 0]);
        let journal = "runs/p.search/study.log";
        let output = firebox(folder, &["search", "--join", journal]);
        assert_done(&output);
        assert!(errors(&output).contains("goes on with trial 0"), "{}", errors(&output));
        assert_eq!(values(folder), expected, "{signal}");
        let runs: Vec<_> = std::fs::read_dir(folder.join("runs")).unwrap().flatten().collect();
        assert_eq!(runs.len(), 2, "one run and the search: {runs:?}");
        let logs = runs
            .iter()
            .filter_map(|run| std::fs::read_to_string(run.path().join("events.jsonl")).ok());
        let events: Vec<Value> = logs
            .flat_map(|log| {
                log.lines().filter_map(|l| serde_json::from_str(l).ok()).collect::<Vec<_>>()
            })
            .collect();
        assert!(events.iter().any(|event| event["resumed_at_step"].as_u64() > Some(0)), "{signal}");
        let states: Vec<_> =
            entries(folder, 6).iter().map(|entry| entry["state"].as_u64().unwrap()).collect();
        // Failed, taken again, complete.
        assert_eq!(states, [3, 0, 1]);
        let created = entries(folder, 4);
        assert_eq!(created.len(), 2);
        assert_eq!(created[1]["system_attrs"]["retry_history"], serde_json::json!([0]));
    }
}

/// Appends an entry to the journal, as another process would.
fn append(folder: &Path, entry: &Value) {
    use std::io::Write as _;
    let journal = folder.join("runs/p.search/study.log");
    let mut journal = std::fs::OpenOptions::new().append(true).open(journal).unwrap();
    writeln!(journal, "{entry}").unwrap();
}

#[test]
fn a_trial_that_is_no_pipeline_is_told_and_passed_over() {
    let project = project(SEARCH);
    let folder = project.path();
    assert_done(&firebox(folder, &["search", "p.toml"]));
    let best = std::fs::read_to_string(folder.join("runs/p.search/best.toml")).unwrap();
    // Optuna's user adds a trial with a parameter and a value that no pipeline has.
    let distribution = r#"{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 2.0, "log": false}}"#;
    let now = "2026-01-01T00:00:00.000000+00:00";
    append(
        folder,
        &serde_json::json!({
            "op_code": 4, "worker_id": "another", "study_id": 0, "state": 1, "value": -1.0, "values": null,
            "datetime_start": now, "datetime_complete": now,
            "distributions": {"no.such.key": distribution}, "params": {"no.such.key": 1.0},
            "user_attrs": {}, "system_attrs": {}, "intermediate_values": {},
        }),
    );
    let output = firebox(folder, &["search", "p.toml", "--set", "search.trials=6"]);
    assert_done(&output);
    let text = errors(&output);
    assert!(text.contains("trial 4 (validation loss -1) is no pipeline"), "{text}");
    assert!(text.contains("no.such.key"), "{text}");
    let found = values(folder);
    assert_eq!(found.len(), 5, "four trials, the stranger's is no ending, and one more");
    let after = std::fs::read_to_string(folder.join("runs/p.search/best.toml")).unwrap();
    let least = found.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(said(&output).contains(&format!("validation loss of {least:.5}")), "{}", said(&output));
    if found[4] > least {
        assert_eq!(after, best);
    }
}

/// A worker whose trial another has in hand waits for it, and stops when it is told to.
#[cfg(unix)]
#[test]
fn who_waits_for_the_folder_of_a_trial_can_be_stopped() {
    let search = r#"
[search]
trials = 1
heartbeat = 0.2
[search.space]
"train.optimizer.adamw.learning_rate" = { choices = [1e-3] }
"#;
    let project = project(search);
    let folder = project.path();
    assert_done(&firebox(folder, &["search", "p.toml"]));
    let first = values(folder);
    let runs = std::fs::read_dir(folder.join("runs")).unwrap().flatten();
    let run = runs.map(|run| run.path()).find(|run| run.join("lock").is_file()).unwrap();
    // The next trial has the same values and so the same folder; it must train again and may not.
    std::fs::remove_file(run.join("training.json")).unwrap();
    let held = std::fs::File::open(run.join("lock")).unwrap();
    held.lock().unwrap();
    let more = ["search", "p.toml", "--set", "search.trials=2"];
    let mut child = command(folder, &more);
    let mut child = child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // The trial is begun, and its folder written down, before the folder is asked for.
    let begun =
        |_: &u32| entries(folder, 8).iter().filter(|entry| entry["trial_id"] == 1).count() > 0;
    let waited = (0..3000).find(|at| {
        std::thread::sleep(Duration::from_millis(10));
        begun(at)
    });
    assert!(waited.is_some(), "the second trial was never begun");
    std::thread::sleep(Duration::from_millis(1200));
    assert!(child.try_wait().unwrap().is_none(), "it waits for the folder");
    let start = std::time::Instant::now();
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert_eq!(values(folder), first, "its trial is put back, not lost");
    drop(held);
    assert_done(&firebox(folder, &more));
    let all = values(folder);
    assert_eq!(all, [first[0], first[0]], "the same values have the same loss");
}

#[test]
fn a_size_budget_leaves_the_checkpoints_of_the_best_alone() {
    let project = project(SEARCH);
    let folder = project.path();
    let kept = |more: &[&str]| {
        assert_done(&firebox(folder, &[&["search", "p.toml"], more].concat()));
        let runs = std::fs::read_dir(folder.join("runs")).unwrap().flatten();
        runs.filter(|run| run.path().join("checkpoints").is_dir()).count()
    };
    assert_eq!(kept(&["--set", "search.keep=2"]), 2);
    // No checkpoint is smaller than a byte.
    let budget = ["--set", "search.size_budget=1", "--set", "search.trials=6"];
    assert_eq!(kept(&[&["--set", "search.keep=2"], &budget[..]].concat()), 1);
}

#[test]
fn trials_at_once_have_the_losses_of_trials_in_turn() {
    let search = r#"
[search]
trials = 4
sampler = "grid"
pruner = "none"
[search.space]
"train.optimizer.adamw.learning_rate" = { choices = [1e-3, 2e-3, 3e-3, 4e-3] }
"#;
    let found = |concurrent: &str| {
        let project = project(search);
        let set = format!("search.concurrent={concurrent}");
        assert_done(&firebox(project.path(), &["search", "p.toml", "--set", &set]));
        let mut values = values(project.path());
        values.sort_by(f64::total_cmp);
        values
    };
    let in_turn = found("1");
    assert_eq!(in_turn.len(), 4);
    assert_eq!(found("3"), in_turn);
}

#[test]
fn several_objectives_have_a_front_in_journal_page_and_files() {
    let search = r#"
[search]
trials = 4
sampler = "grid"
objectives = ["validation-loss", "parameters"]
[search.space]
"model.bilstm-mae.hidden" = { choices = [2, 4, 6, 8] }
"#;
    let project = project(search);
    let folder = project.path();
    let output = firebox(folder, &["search", "p.toml"]);
    assert_done(&output);
    assert_eq!(entries(folder, 0)[0]["directions"], serde_json::json!([1, 1]));
    let named = entries(folder, 3)
        .into_iter()
        .find_map(|entry| entry["system_attr"].get("study:metric_names").cloned());
    assert_eq!(named, Some(serde_json::json!(["validation loss", "parameters"])));
    let ended = entries(folder, 6).into_iter().filter(|entry| entry["state"] == 1);
    let ended: Vec<(u64, f64, f64)> = ended
        .map(|entry| {
            let value = |place: usize| entry["values"][place].as_f64().unwrap();
            (entry["trial_id"].as_u64().unwrap(), value(0), value(1))
        })
        .collect();
    assert_eq!(ended.len(), 4);
    assert!(ended.iter().all(|(_, _, parameters)| *parameters > 100.0), "{ended:?}");
    // The sizes differ, so a trial is beaten by one that is smaller and no worse.
    let beaten = |own: &(u64, f64, f64)| ended.iter().any(|o| o.2 < own.2 && o.1 <= own.1);
    let mut front: Vec<_> = ended.iter().filter(|own| !beaten(own)).collect();
    front.sort_by(|a, b| a.1.total_cmp(&b.1));
    for (number, ..) in &ended {
        let on_front = front.iter().any(|own| own.0 == *number);
        let file = folder.join(format!("runs/p.search/best-{number}.toml"));
        assert_eq!(file.is_file(), on_front, "{number}: {front:?}");
        let told = said(&output).contains(&format!("on the Pareto front: trial {number},"));
        assert_eq!(told, on_front, "{}", said(&output));
    }
    let best = std::fs::read_to_string(folder.join("runs/p.search/best.toml")).unwrap();
    assert!(best.starts_with(&format!("# Trial {} of", front[0].0)), "{best}");
    let summary = std::fs::read_to_string(folder.join("runs/p.search/summary.md")).unwrap();
    let numbers: Vec<String> = front.iter().map(|own| own.0.to_string()).collect();
    let expected = format!("no other trial beats in all objectives: {}", numbers.join(", "));
    assert!(summary.contains(&expected), "{summary}");
    let page = std::fs::read_to_string(folder.join("runs/p.search/report.html")).unwrap();
    assert!(page.contains("with the Pareto front"), "the page has no picture of it");
    // A pipeline of an earlier front is removed, and nothing else.
    let old = folder.join("runs/p.search/best-77.toml");
    let own = folder.join("runs/p.search/best-of-all.toml");
    for path in [&old, &own] {
        std::fs::write(path, "").unwrap();
    }
    assert_done(&firebox(folder, &["search", "p.toml"]));
    assert!(!old.exists() && own.exists());
    // It is not continued with one objective.
    let one = ["search", "p.toml", "--set", "search.objectives=validation-loss"];
    let output = firebox(folder, &one);
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
    assert!(errors(&output).contains("directions"), "{}", errors(&output));
}

/// Each worker of an array concludes by itself: who comes second waits for the one that measures.
#[test]
fn searches_that_end_at_the_same_time_all_end_well() {
    let project = project(SEARCH);
    let folder = project.path();
    assert_done(&firebox(folder, &["search", "p.toml", "--set", "search.trials=1"]));
    let journal = "runs/p.search/study.log";
    let more = ["search", "--join", journal, "--set", "search.trials=6"];
    let start = |_| {
        let mut command = command(folder, &more);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let all: Vec<_> = (0..4).map(start).collect();
    for worker in all {
        assert_done(&worker.wait_with_output().unwrap());
    }
    assert_eq!(values(folder).len(), 6);
}

/// A market of two moods in turn, calm and rough, which windows tell apart and labels name.
fn moods(search: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut price = 100.0;
    let mut rows = String::new();
    for minute in 0..1200usize {
        let rough = (minute / 30) % 2 == 1;
        let wave = ((minute * minute) % 23) as f64 - 11.0;
        let next = price + wave * if rough { 0.05 } else { 0.002 };
        let (high, low) = (f64::max(price, next) + 0.01, f64::min(price, next) - 0.01);
        let (day, hour) = (1 + minute / 1440, minute / 60 % 24);
        let mood = if rough { "rough" } else { "calm" };
        rows += &format!(
            "2024-03-{day:02}T{hour:02}:{:02}:00,{price},{high},{low},{next},{mood}\n",
            minute % 60
        );
        price = next;
    }
    std::fs::write(
        folder.path().join("bars.csv"),
        format!("time,open,high,low,close,mood\n{rows}"),
    )
    .unwrap();
    let labels = "labels = \"last\"\n";
    let column = "[data]\npath = \"bars.csv\"\n[data.columns]\nlabel = \"mood\"\n";
    let pipeline = PIPELINE.replace("[data]\npath = \"bars.csv\"\n", column);
    std::fs::write(folder.path().join("p.toml"), format!("{labels}{pipeline}{search}")).unwrap();
    folder
}

/// Trials are compared by a score of validation windows, of which more is better: in the journal, by the
/// pruner, among the checkpoints that stay, on the page, and in what is said.
#[test]
fn a_search_by_a_score_looks_for_the_greatest() {
    let search = r#"
[search]
trials = 4
keep = 1
sampler = "grid"
pruner = "none"
objective = "validation-accuracy"
[search.space]
"train.optimizer.adamw.learning_rate" = { choices = [1e-5, 1e-3, 1e-2, 3e-2] }
"#;
    let project = moods(search);
    let folder = project.path();
    let output = firebox(folder, &["search", "p.toml", "--set", "train.epochs=3"]);
    assert_done(&output);
    // Optuna's number of MAXIMIZE.
    assert_eq!(entries(folder, 0)[0]["directions"], serde_json::json!([2]));
    let all = values(folder);
    assert!(all.len() == 4 && all.iter().all(|value| (0.0..=1.0).contains(value)), "{all:?}");
    let best = all.iter().copied().fold(0.0, f64::max);
    assert!(best > all.iter().copied().fold(1.0, f64::min), "the trials score alike: {all:?}");
    let expected = format!("with a validation accuracy of {best:.5}");
    assert!(said(&output).contains(&expected), "{}", said(&output));
    // One report an epoch, and the value is that of the epoch with the least validation loss.
    let ended = entries(folder, 6).into_iter().filter(|entry| entry["state"] == 1);
    for trial in ended {
        let number = trial["trial_id"].as_u64().unwrap();
        let own = |entry: &&Value| entry["trial_id"] == number;
        let reports = entries(folder, 7);
        let reports: Vec<f64> = reports
            .iter()
            .filter(own)
            .map(|report| report["intermediate_value"].as_f64().unwrap())
            .collect();
        let attributes = entries(folder, 8);
        let mut attributes = attributes.iter().filter(own);
        let run = attributes.find_map(|entry| entry["user_attr"]["run"].as_str()).unwrap();
        let events = std::fs::read_to_string(folder.join("runs").join(run).join("events.jsonl"));
        let losses: Vec<f64> = events
            .unwrap()
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|event| event["event"] == "epoch")
            .map(|event| event["validation_loss"].as_f64().unwrap())
            .collect();
        assert_eq!((reports.len(), losses.len()), (3, 3), "{number}");
        let least = losses.iter().copied().fold(f64::INFINITY, f64::min);
        let kept = losses.iter().position(|loss| *loss == least).unwrap();
        assert_eq!(trial["values"][0].as_f64(), Some(reports[kept]), "{number}: {reports:?}");
    }
    let best_file = std::fs::read_to_string(folder.join("runs/p.search/best.toml")).unwrap();
    assert!(best_file.contains(&format!("validation accuracy {best}")), "{best_file}");
    let summary = std::fs::read_to_string(folder.join("runs/p.search/summary.md")).unwrap();
    let first = summary.lines().find(|line| line.contains("| complete |")).unwrap();
    assert!(first.contains(&format!("{best:.5}")), "the best stands first: {summary}");
    // Asked for again there is nothing to train, and the same values.
    assert_done(&firebox(folder, &["search", "p.toml", "--set", "train.epochs=3"]));
    assert_eq!(values(folder), all);
    // Another objective is another study.
    let other = ["search", "p.toml", "--set", "train.epochs=3", "--set"];
    let by_loss = firebox(folder, &[&other[..], &["search.objectives=validation-loss"]].concat());
    assert_eq!(by_loss.status.code(), Some(2), "{}", errors(&by_loss));
    let by_f1 = ["search.objectives=validation-f1", "--set", "search.study=f1"];
    let output = firebox(folder, &[&other[..], &by_f1].concat());
    assert_done(&output);
    assert!(said(&output).contains("with a validation macro F1 of"), "{}", said(&output));
    // A trial with the values of another is scored again and not trained again.
    std::fs::remove_dir_all(folder.join("runs")).unwrap();
    let text = std::fs::read_to_string(folder.join("p.toml")).unwrap();
    let one = text.replace("choices = [1e-5, 1e-3, 1e-2, 3e-2]", "choices = [1e-3]");
    std::fs::write(folder.join("p.toml"), one).unwrap();
    assert_done(&firebox(folder, &["search", "p.toml", "--set", "search.sampler=random"]));
    let all = values(folder);
    assert!(all.len() == 4 && all.iter().all(|value| *value == all[0]), "{all:?}");
    let runs = std::fs::read_dir(folder.join("runs")).unwrap().flatten();
    assert_eq!(runs.filter(|run| run.path().join("events.jsonl").is_file()).count(), 1);
}

/// A trial whose score is too low is given up; one whose score is high is not.
#[test]
fn a_pruner_gives_up_what_scores_too_low() {
    let search = r#"
[search]
trials = 2
sampler = "grid"
objectives = ["validation-accuracy"]
[search.space]
"train.optimizer.adamw.learning_rate" = { choices = [1e-3, 2e-3] }
"#;
    let given_up = |limit: &str| {
        let project = moods(search);
        let set = format!("search.pruner={{threshold={{{limit}}}}}");
        let output = firebox(project.path(), &["search", "p.toml", "--set", &set]);
        let states = entries(project.path(), 6);
        let given_up = states.iter().filter(|entry| entry["state"] == 2).count();
        (output.status.code(), given_up)
    };
    assert_eq!(given_up("lower=1.1"), (Some(1), 2), "nothing scores more than 1");
    assert_eq!(given_up("upper=1.1"), (Some(0), 0));
}

/// A search whose workers are killed: each of its trials lasts.
#[cfg(target_os = "linux")]
const FOUR: &str = r#"
[search]
trials = 4
sampler = "grid"
pruner = "none"
heartbeat = 0.2
[search.space]
"train.optimizer.adamw.learning_rate" = { choices = [1e-3, 2e-3, 3e-3, 4e-3] }
"#;
#[cfg(target_os = "linux")]
const LONG: [&str; 4] = ["--set", "train.epochs=20", "--set", "train.checkpoint.resume_every=16"];

/// The processes that a process has begun, by their ids.
#[cfg(target_os = "linux")]
fn children(parent: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let begun_by = |id: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        // The name may hold anything; after its bracket come the state and the parent.
        let after = stat.rsplit_once(')').map(|(_, after)| after.to_owned()).unwrap_or_default();
        after.split_whitespace().nth(1).and_then(|id| id.parse().ok()) == Some(parent)
    };
    ids.filter(begun_by).collect()
}

#[cfg(target_os = "linux")]
fn kill(signal: &str, process: u32) {
    let _ = Command::new("kill").args([signal, &process.to_string()]).status();
}

/// Workers that are killed are begun anew by the process that began them, and every trial ends with the
/// value that it would have had; after a stop, nobody is begun anew.
#[cfg(target_os = "linux")]
#[test]
fn workers_that_are_killed_are_begun_anew_until_the_search_is_stopped() {
    let begin = |folder: &Path| {
        let workers = ["search", "p.toml", "--workers", "2"];
        let mut command = command(folder, &[&workers, &LONG[..]].concat());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for(folder, "\"event\":\"checkpoint\"");
        child
    };
    let whole = project(FOUR);
    assert_done(&firebox(whole.path(), &[&["search", "p.toml"], &LONG[..]].concat()));
    let mut expected = values(whole.path());
    expected.sort_by(f64::total_cmp);

    let killed = project(FOUR);
    let parent = begin(killed.path());
    let workers = children(parent.id());
    assert_eq!(workers.len(), 2, "{workers:?}");
    workers.iter().for_each(|worker| kill("-KILL", *worker));
    let output = parent.wait_with_output().unwrap();
    assert_done(&output);
    let text = errors(&output);
    assert!(text.matches("begun anew (1 of 10 times)").count() == 2, "{text}");
    let mut found = values(killed.path());
    found.sort_by(f64::total_cmp);
    assert_eq!(found, expected);

    let stopped = project(FOUR);
    let mut parent = begin(stopped.path());
    let workers = children(parent.id());
    kill("-INT", parent.id());
    let mut lines = BufReader::new(parent.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("stopping after this step")));
    workers.iter().for_each(|worker| kill("-KILL", *worker));
    let rest: Vec<String> = lines.collect();
    assert_eq!(parent.wait().unwrap().code(), Some(130), "{rest:?}");
    assert!(!rest.iter().any(|line| line.contains("begun anew")), "{rest:?}");
}

/// Two workers search with a journal on a server: one is killed, the server goes away for a moment, and
/// another command goes on later. The trials end as those of a journal in a file.
#[cfg(target_os = "linux")]
#[test]
fn a_search_on_a_server_survives_a_worker_and_the_server() {
    let Some(mut redis) = server::Redis::start() else { return };
    let file = project(FOUR);
    assert_done(&firebox(file.path(), &[&["search", "p.toml"], &LONG[..]].concat()));
    // Of the table of trials: number, state, value.
    let table = |folder: &Path| -> Vec<String> {
        let text = std::fs::read_to_string(folder.join("runs/p.search/summary.md")).unwrap();
        let complete = text.lines().filter(|line| line.contains("| complete |"));
        let mut values: Vec<_> =
            complete.map(|line| line.split('|').nth(3).unwrap().trim().to_owned()).collect();
        values.sort();
        values
    };
    let expected = table(file.path());
    assert_eq!(expected.len(), 4);

    let address = redis.address();
    let stored = FOUR.replace("trials = 4", &format!("trials = 3\nstorage = \"{address}\""));
    let project = project(&stored);
    let folder = project.path();
    let mut command =
        command(folder, &[&["search", "p.toml", "--workers", "2"], &LONG[..]].concat());
    let parent = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for(folder, "\"event\":\"checkpoint\"");
    let workers = children(parent.id());
    assert_eq!(workers.len(), 2, "{workers:?}");
    kill("-KILL", workers[0]);
    redis.kill();
    std::thread::sleep(Duration::from_millis(500));
    redis.again();
    let output = parent.wait_with_output().unwrap();
    assert_done(&output);
    assert!(errors(&output).contains("begun anew (1 of 10 times)"), "{}", errors(&output));
    let text = said(&output);
    assert!(text.contains("3 complete, 0 given up early, 0 failed"), "{text}");
    assert!(!folder.join("runs/p.search/study.log").exists());
    // Started again from elsewhere, the server has all of it.
    redis.kill();
    redis.again();
    let elsewhere = tempfile::tempdir().unwrap();
    let more = ["search", "--join", &address, "--set", "search.trials=4"];
    let output = firebox(elsewhere.path(), &more);
    assert_done(&output);
    let text = said(&output);
    assert!(text.contains("4 complete, 0 given up early, 0 failed"), "{text}");
    assert_eq!(table(folder), expected);
}
