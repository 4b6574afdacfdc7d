//! The main job as a user runs it: made once, reused, interrupted, killed and resumed.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use firebox_tests::{command, firebox, program, scored_again};
use serde_json::Value;
use tempfile::TempDir;

/// A folder with bars and a pipeline file of a model that trains in a second.
fn project() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut bars = "timestamp,open,high,low,close,regime\n".to_owned();
    let (mut price, mut seed) = (1000.0f64, 7u64);
    for minute in 0..900 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let move_ = ((seed >> 33) as f64 / f64::from(1u32 << 31) - 0.5) * 2.0;
        let calm = minute / 60 % 2 == 0;
        let close = price + move_ * if calm { 0.2 } else { 1.5 };
        let (high, low) = (price.max(close) + 0.1, price.min(close) - 0.1);
        let regime = if calm { "calm" } else { "wild" };
        let (hour, minute) = (minute / 60, minute % 60);
        let (day, hour) = (1 + hour / 24, hour % 24);
        writeln!(
            bars,
            "2024-03-{day:02}T{hour:02}:{minute:02}:00,{price:.4},{high:.4},{low:.4},{close:.4},{regime}"
        )
        .unwrap();
        price = close;
    }
    std::fs::write(folder.path().join("bars.csv"), bars).unwrap();
    let pipeline = r#"
        pipeline = "pretrain"
        [data]
        path = "bars.csv"
        [data.columns]
        label = "regime"
        [window]
        length = 20
        stride = 4
        [labels.majority]
        share = 0.6
        [augment]
        versions = 2
        [loader]
        batch_size = 32
        [model.bilstm-mae]
        hidden = 8
        layers = 2
        decoder_hidden = 8
        [train]
        epochs = 4
        [train.checkpoint]
        resume_every = 3
        [evaluate]
        seeds = 2
        resamples = 200
    "#;
    std::fs::write(folder.path().join("small.toml"), pipeline).unwrap();
    folder
}

fn run(folder: &Path, more: &[&str]) -> String {
    let output = firebox(folder, &[&["run", "small.toml"], more].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}\n{errors}");
    text + &errors
}

/// The only run in a folder.
fn only_run(folder: &Path) -> PathBuf {
    let runs: Vec<_> = std::fs::read_dir(folder.join("runs")).unwrap().flatten().collect();
    assert_eq!(runs.len(), 1, "{runs:?}");
    runs[0].path()
}

/// Bytes of every weight file of a run, and loss and gradient norm of every step, bit for bit.
fn weights_and_losses(run: &Path) -> (BTreeMap<String, Vec<u8>>, BTreeMap<u64, [u64; 2]>) {
    let mut weights = BTreeMap::new();
    for checkpoint in std::fs::read_dir(run.join("checkpoints")).unwrap().flatten() {
        for file in ["weights.safetensors", "optimizer.safetensors"] {
            if let Ok(bytes) = std::fs::read(checkpoint.path().join(file)) {
                weights.insert(format!("{}/{file}", checkpoint.file_name().display()), bytes);
            }
        }
    }
    let history = std::fs::read_to_string(run.join("history.jsonl")).unwrap();
    let mut losses = BTreeMap::new();
    for line in history.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        if let Some(step) = line.get("step") {
            let bits = ["loss", "gradient_norm"].map(|key| step[key].as_f64().unwrap().to_bits());
            // Each step stands there once: nothing is lost or written twice.
            assert!(losses.insert(step["step"].as_u64().unwrap(), bits).is_none());
        }
    }
    (weights, losses)
}

#[test]
fn results_are_made_once_and_only_what_changed_is_made_again() {
    let project = project();
    let folder = project.path();
    let text = run(folder, &[]);
    assert!(text.contains("report.html"), "{text}");
    let first = only_run(folder);
    for file in ["report.html", "summary.md", "scores.json", "pipeline.toml", "manifest.json"] {
        assert!(first.join(file).is_file(), "{file} is missing");
    }

    // Six ways of probing and the majority, each scored in two ways, and five ways of restoring hidden steps.
    scored_again(&first, "19 scores of ");

    let again = run(folder, &[]);
    assert!(again.contains("nothing to do"), "{again}");
    assert_eq!(again.matches("reused").count(), 5, "{again}");

    // Another model: the data and the augmented windows stay.
    let model = run(folder, &["--set", "model.bilstm-mae.hidden=6"]);
    let line = |text: &str, stage: &str| {
        let found =
            text.lines().find(|line| line.starts_with(&format!("{stage} "))).unwrap_or_default();
        found.contains("reused")
    };
    assert!(line(&model, "ingest") && line(&model, "augment") && !line(&model, "train"), "{model}");

    // Another augmentation: only the series stay.
    let sigma = run(folder, &["--set", "augment.jitter.sigma=0.2"]);
    assert!(
        line(&sigma, "ingest") && !line(&sigma, "augment") && !line(&sigma, "train"),
        "{sigma}"
    );

    // Another evaluation: the training stays, and the report that is replaced is named before.
    let seeds = run(folder, &["--set", "evaluate.seeds=3"]);
    assert!(
        line(&seeds, "augment") && line(&seeds, "train") && !line(&seeds, "evaluate"),
        "{seeds}"
    );
    let replaced = "is replaced: `evaluate.seeds` was 2 and is 3; to keep it, with its scores";
    let log = std::fs::read_to_string(first.join("events.jsonl")).unwrap();
    assert!(seeds.contains(replaced) && log.contains(replaced), "{seeds}");
    let evaluated = seeds.lines().position(|line| line.starts_with("evaluate "));
    assert!(seeds.lines().position(|line| line.contains(replaced)) < evaluated, "{seeds}");

    // A result that is no longer whole is made again.
    std::fs::write(first.join("scores.json"), "{}").unwrap();
    let mended = run(folder, &["--set", "evaluate.seeds=3"]);
    assert!(!mended.contains("nothing to do") && line(&mended, "train"), "{mended}");
    assert!(!mended.contains("is replaced"), "{mended}");

    let planned = || firebox(folder, &["plan", "small.toml", "--set", "train.epochs=5"]);
    let plan = String::from_utf8_lossy(&planned().stdout).into_owned();
    let states: Vec<_> = plan.lines().filter(|line| line.ends_with("done")).collect();
    assert_eq!(states.len(), 2, "{plan}");
    // What cannot be looked at is not told as if it were not there.
    let place = plan.lines().find_map(|line| line.strip_prefix("run       ")).unwrap();
    std::fs::write(folder.join(place), "").unwrap();
    let (refused, name) = (planned(), Path::new(place).file_name().unwrap());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains(name.to_str().unwrap()), "{said}");
}

#[test]
fn a_model_that_no_memory_holds_is_refused_before_it_is_made() {
    let project = project();
    for command in ["plan", "run"] {
        let wide = "model.bilstm-mae.hidden=1000000000";
        let output = firebox(project.path(), &[command, "small.toml", "--set", wide]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        let setting = "the largest of its settings is `model.bilstm-mae.hidden` = 1000000000";
        assert!(errors.contains("e19 parameters") && errors.contains(setting), "{errors}");
    }
    assert!(!project.path().join("runs").exists());
}

/// A file of labelled samples without times.
fn samples(folder: &Path, name: &str, count: usize, missing: bool) {
    let mut text = "@problemName P\n@classLabel true a b\n@data\n".to_owned();
    for index in 0..count {
        let value = |step: usize| ((step * (index % 5 + 1) + index * 3) % 11).to_string();
        let mut values: Vec<_> = (0..30).map(value).collect();
        if missing {
            values[7] = "?".to_owned();
        }
        writeln!(text, "{}:{}", values.join(","), ["a", "b"][index % 2]).unwrap();
    }
    std::fs::write(folder.join(name), text).unwrap();
}

#[test]
fn the_split_that_nobody_wrote_follows_from_the_data_and_is_explained() {
    let project = project();
    let folder = project.path();
    samples(folder, "a.ts", 40, false);
    samples(folder, "b.ts", 12, true);
    let pipeline = std::fs::read_to_string(folder.join("small.toml")).unwrap();
    let pipeline = pipeline
        .replace("label = \"regime\"", "")
        .replace("[labels.majority]\n        share = 0.6", "");
    std::fs::write(folder.join("small.toml"), format!("labels = \"last\"\n{pipeline}")).unwrap();
    let sets = [
        "--set",
        "data.path=a.ts",
        "--set",
        "train.epochs=1",
        "--set",
        "data.checks.not_finite=fill",
    ];
    let plan = |more: &[&str]| {
        let output = firebox(folder, &[&["plan", "small.toml"], &sets[..], more].concat());
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(plan(&[]).contains("follows from the data"), "{}", plan(&[]));

    // Samples without a clock: no sample is in two parts.
    run(folder, &sets);
    let planned = plan(&[]);
    assert!(
        planned.contains("split     series (validation 0.1, test 0.2, seed 1337): "),
        "{planned}"
    );
    let made = only_run(folder);
    let summary = std::fs::read_to_string(made.join("summary.md")).unwrap();
    assert!(
        summary
            .contains("By series (validation 0.1, test 0.2, seed 1337): the series have no times"),
        "{summary}"
    );
    assert!(!summary.contains("1970"), "{summary}");
    let written = std::fs::read_to_string(made.join("pipeline.toml")).unwrap();
    assert!(written.contains("# split = series"), "{written}");
    std::fs::remove_dir_all(folder.join("runs")).unwrap();

    // A test set: it is the test part, and nothing of it is trained on. Whole samples are filled.
    let sets = [&sets[..], &["--set", "data.test=b.ts", "--set", "window.whole=true"]].concat();
    let text = run(folder, &sets);
    assert!(text.contains("36 training, 4 validation, 12 test windows by given"), "{text}");

    // One series without times is split by time, and its times are steps.
    std::fs::remove_dir_all(folder.join("runs")).unwrap();
    let bars = std::fs::read_to_string(folder.join("bars.csv")).unwrap();
    let rows: String =
        bars.lines().map(|line| line.split_once(',').unwrap().1.to_owned() + "\n").collect();
    std::fs::write(folder.join("rows.csv"), rows).unwrap();
    run(
        folder,
        &["--set", "data.path=rows.csv", "--set", "labels=none", "--set", "train.epochs=1"],
    );
    let summary = std::fs::read_to_string(only_run(folder).join("summary.md")).unwrap();
    assert!(summary.contains("Validation begins at step 630, the test at step 720."), "{summary}");
}

#[test]
fn json_events_are_one_object_a_line() {
    let project = project();
    let output =
        firebox(project.path(), &["run", "small.toml", "--log", "json", "--set", "train.epochs=1"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    let events: Vec<Value> = errors.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    for name in ["run-started", "stage-started", "step", "epoch", "stage-finished", "run-finished"]
    {
        assert!(events.iter().any(|event| event["event"] == name), "no {name} in\n{errors}");
    }
    let scores = |events: &[Value]| -> Vec<Value> {
        events.iter().filter(|event| event["event"] == "scored").cloned().collect()
    };
    // Each time that the finished run is asked for, and of what it was evaluated by last.
    let again = |more: &[&str]| -> Vec<Value> {
        let run = ["run", "small.toml", "--log", "json", "--set", "train.epochs=1"];
        let output = firebox(project.path(), &[&run[..], more].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{errors}");
        errors.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let first = scores(&events);
    assert!(!first.is_empty(), "{errors}");
    let there = again(&[]);
    assert!(there.iter().all(|event| event["event"] != "run-started"), "{there:?}");
    assert_eq!(scores(&there), first);
    let other = ["--set", "evaluate.seeds=3"];
    let second = scores(&again(&other));
    assert_eq!(second.len(), first.len());
    assert_eq!(scores(&again(&other)), second);
}

#[cfg(unix)]
#[test]
fn ctrl_c_saves_and_the_printed_command_goes_on() {
    let undisturbed = project();
    run(
        undisturbed.path(),
        &["--set", "train.epochs=30", "--set", "train.early_stopping.patience=99"],
    );
    let project = project();
    let arguments = [
        "run",
        "small.toml",
        "--set",
        "train.epochs=30",
        "--set",
        "train.early_stopping.patience=99",
    ];
    let child =
        command(project.path(), &arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let child = child.unwrap();
    wait_for_step(project.path(), 5);
    assert!(
        Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success()
    );
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(130), "{text}");
    let resume = text.lines().find_map(|line| line.split("firebox run ").nth(1)).unwrap();
    let words: Vec<&str> = std::iter::once("run").chain(resume.split_whitespace()).collect();
    let output = firebox(project.path(), &words);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(
        weights_and_losses(&only_run(project.path())),
        weights_and_losses(&only_run(undisturbed.path()))
    );
}

#[cfg(unix)]
fn wait_for_step(folder: &Path, step: u64) {
    for _ in 0..600 {
        if let Ok(runs) = std::fs::read_dir(folder.join("runs"))
            && let Some(run) = runs.flatten().next()
            && let Ok(events) = std::fs::read_to_string(run.path().join("events.jsonl"))
            && events.contains(&format!("\"step\":{step},"))
        {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("step {step} was not reached");
}

/// Kills the program at many random moments, in every stage, and lets it go on each time.
#[cfg(unix)]
#[test]
fn a_killed_run_ends_like_an_undisturbed_one() {
    let undisturbed = project();
    // Made before it is timed.
    program();
    let start = std::time::Instant::now();
    run(undisturbed.path(), &[]);
    let whole = start.elapsed();
    let expected = weights_and_losses(&only_run(undisturbed.path()));
    let scores = |folder: &Path| {
        let text = std::fs::read_to_string(only_run(folder).join("scores.json")).unwrap();
        let scores: Value = serde_json::from_str(&text).unwrap();
        (scores["evaluation"].clone(), scores["reconstruction"].clone())
    };

    let mut seed = 12_345u64;
    let mut kills = 0;
    // A run that is killed late ends soon; another one is begun until enough were killed.
    for _ in 0..20 {
        let project = project();
        for _ in 0..10 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let share = (seed >> 40) as f64 / f64::from(1u32 << 24);
            let mut child = command(project.path(), &["run", "small.toml"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            std::thread::sleep(whole.mul_f64(share * 0.9));
            if child.try_wait().unwrap().is_some_and(|status| status.success()) {
                break;
            }
            child.kill().unwrap();
            child.wait().unwrap();
            kills += 1;
        }
        run(project.path(), &[]);
        let ended = weights_and_losses(&only_run(project.path()));
        assert_eq!(ended, expected, "after {kills} kills");
        assert_eq!(scores(project.path()), scores(undisturbed.path()));
        if kills >= 25 {
            break;
        }
    }
    assert!(kills >= 5, "only {kills} of 20 runs were still going when they were to be killed");
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_augmentation_soon_and_the_run_is_gone_on_with() {
    let project = project();
    let many = "augment.versions=8000";
    let start = |arguments: &[&str]| {
        let mut child = command(project.path(), arguments);
        child.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    };
    let log = || {
        let runs = std::fs::read_dir(project.path().join("runs")).into_iter().flatten().flatten();
        let log = runs.map(|run| std::fs::read_to_string(run.path().join("events.jsonl")));
        log.flatten().collect::<String>()
    };
    let begun = "\"stage-started\",\"stage\":\"augment\"";
    let interrupt = |child: std::process::Child, times: usize| {
        let until = std::time::Instant::now() + Duration::from_secs(60);
        while log().matches(begun).count() < times {
            assert!(std::time::Instant::now() < until, "augmentation did not begin");
            std::thread::sleep(Duration::from_millis(5));
        }
        let asked = std::time::Instant::now();
        Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        let output = child.wait_with_output().unwrap();
        // A second here; other tests may have the disk.
        assert!(asked.elapsed() < Duration::from_secs(30), "{:?}", asked.elapsed());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(130), "{text}");
        assert!(text.contains("interrupted before a step was saved"), "{text}");
        let bucket = project.path().join("cache").join("augmented-v1");
        assert_eq!(std::fs::read_dir(bucket).unwrap().count(), 0);
        text
    };
    let text = interrupt(start(&["run", "small.toml", "--set", many]), 1);
    assert!(log().lines().last().unwrap().contains("\"outcome\":\"interrupted\""));
    let resume = text.lines().find_map(|line| line.split("firebox run ").nth(1)).unwrap();
    let words: Vec<&str> = std::iter::once("run").chain(resume.split_whitespace()).collect();
    interrupt(start(&words), 2);
    only_run(project.path());
}
