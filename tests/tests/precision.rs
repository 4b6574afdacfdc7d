//! The main job, small: f32, bf16 and f16 end alike, and what a device cannot promise is refused.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::fmt::Write as _;
use std::path::Path;

use firebox_tests::{errors, firebox};
use serde_json::Value;
use tempfile::TempDir;

fn project() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut bars = "open,high,low,close,trend\n".to_owned();
    let (mut price, mut seed) = (1000.0f64, 11u64);
    for step in 0..2400 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let noise = (seed >> 33) as f64 / f64::from(1u32 << 31) - 0.5;
        let drift = (f64::from(step) / 9.0).sin();
        let close = price + 1.5 * noise + drift;
        let trend = if drift > 0.0 { "up" } else { "down" };
        let (high, low) = (price.max(close) + 0.1, price.min(close) - 0.1);
        writeln!(bars, "{price:.4},{high:.4},{low:.4},{close:.4},{trend}").unwrap();
        price = close;
    }
    std::fs::write(folder.path().join("bars.csv"), bars).unwrap();
    let pipeline = r#"
        pipeline = "pretrain"
        labels = "last"
        [data]
        path = "bars.csv"
        [data.columns]
        label = "trend"
        [window]
        length = 20
        stride = 2
        [split.time]
        validation = 0.15
        test = 0.3
        [augment]
        versions = 1
        [loader]
        batch_size = 64
        [model.bilstm-mae]
        hidden = 8
        decoder_hidden = 8
        [train]
        epochs = 8
        early_stopping = false
        [evaluate]
        seeds = 1
        resamples = 100
        [monitor]
        period = 0
    "#;
    std::fs::write(folder.path().join("small.toml"), pipeline).unwrap();
    folder
}

/// What a run ended with.
struct Run {
    /// Validation losses after the first and the last epoch.
    losses: [f64; 2],
    /// Of a linear probe on the frozen encoder, on the test windows.
    accuracy: f64,
    settings: String,
}

fn train(folder: &Path, precision: &str) -> Run {
    let set = format!("run.precision={precision}");
    let directory = format!("run.directory=runs-{precision}");
    let output = firebox(folder, &["run", "small.toml", "--set", &set, "--set", &directory]);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let runs = folder.join(format!("runs-{precision}"));
    let run = std::fs::read_dir(runs).unwrap().flatten().next().unwrap().path();
    let history = std::fs::read_to_string(run.join("history.jsonl")).unwrap();
    let epochs: Vec<f64> = history
        .lines()
        .filter_map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            line["epoch"]["validation_loss"].as_f64()
        })
        .collect();
    let events = std::fs::read_to_string(run.join("events.jsonl")).unwrap();
    let accuracy = events.lines().find_map(|line| {
        let event: Value = serde_json::from_str(line).unwrap();
        (event["name"] == "test/accuracy").then(|| event["value"].as_f64().unwrap())
    });
    let settings = std::fs::read_to_string(run.join("pipeline.toml")).unwrap();
    let losses = [epochs[0], epochs[epochs.len() - 1]];
    Run { losses, accuracy: accuracy.unwrap(), settings }
}

#[test]
fn every_precision_ends_where_f32_does() {
    let folder = project();
    let Run { losses: [first, base], accuracy, .. } = train(folder.path(), "f32");
    assert!(base < 0.9 * first, "nothing was learnt: {first} to {base}");
    // Half of the windows are of either class.
    assert!(accuracy > 0.8, "nothing can be told apart: {accuracy}");
    for precision in ["bf16", "f16"] {
        let Run { losses: [_, last], accuracy: own, settings } = train(folder.path(), precision);
        // What is asked of the main job.
        assert!((last - base).abs() < 0.005 * base, "{precision}: {last} beside {base}");
        assert!((own - accuracy).abs() < 0.005 * accuracy, "{precision}: {own}, {accuracy}");
        // It was another arithmetic.
        assert_ne!(last, base, "{precision}");
        assert!(settings.contains(&format!("# run.precision = {precision}: as written")));
        let emulated = settings.contains("rounded to f16, kept and multiplied as f32");
        assert_eq!(emulated, precision == "f16", "{settings}");
    }
}

#[test]
fn auto_is_measured_once_and_written_with_its_reason() {
    let folder = project();
    let settings = train(folder.path(), "auto").settings;
    let reason = settings.lines().find(|line| line.starts_with("# run.precision = ")).unwrap();
    assert!(reason.contains("measured"), "{reason}");
    assert!(!settings.contains("precision = \"auto\""), "{settings}");
    assert!(folder.path().join("cache/precision-v1").is_dir());
    // Resumed by the file: what was measured is not measured again.
    let again =
        ["run", "small.toml", "--set", "run.precision=auto", "--set", "run.directory=runs-auto"];
    let output = firebox(folder.path(), &again);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("nothing to do"), "{said}{}", errors(&output));
}

/// Which type that is depends on the processor.
#[test]
fn auto_chooses_the_type_that_it_measured_as_faster_and_keeps_the_reason() {
    let folder = project();
    let settings = ["run", "small.toml", "--set", "run.precision=auto", "--set"];
    let output = firebox(folder.path(), &[&settings[..], &["train.max_steps=2"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let run = std::fs::read_dir(folder.path().join("runs")).unwrap().flatten().next().unwrap();
    let settings = std::fs::read_to_string(run.path().join("pipeline.toml")).unwrap();
    let reason = settings.lines().find(|line| line.starts_with("# run.precision = ")).unwrap();
    let gain = |before: &str| -> f64 {
        let (_, rest) = reason.split_once(before).unwrap_or_else(|| panic!("{before} in {reason}"));
        rest.split_once('×').unwrap().0.parse().unwrap()
    };
    let (chosen, said) = match reason.starts_with("# run.precision = f32: measured") {
        true => {
            assert!(gain("nothing is faster by 5 %: bf16 ") <= 1.05, "{reason}");
            ("f32", "nothing is faster by 5")
        }
        false => {
            assert!(reason.starts_with("# run.precision = bf16: "), "{reason}");
            assert!(gain("; measured ") >= 1.05, "{reason}");
            ("bf16", "f32 on this model with batches of")
        }
    };
    assert!(settings.contains(&format!("precision = \"{chosen}\"")), "{settings}");
    // Evaluated anew, it keeps the reason that was measured.
    std::fs::remove_file(run.path().join("manifest.json")).unwrap();
    std::fs::remove_file(run.path().join("report.html")).unwrap();
    let name = run.file_name().into_string().unwrap();
    let output = firebox(folder.path(), &["run", "--resume", &name]);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let report = std::fs::read_to_string(run.path().join("report.html")).unwrap();
    assert!(report.contains(said), "the report is silent");
    let resumed = std::fs::read_to_string(run.path().join("pipeline.toml")).unwrap();
    assert_eq!(resumed, settings);
}

/// Linux alone says how much memory there is to choose by.
#[cfg(target_os = "linux")]
#[test]
fn a_batch_that_is_chosen_is_told_before_the_run_and_leaves_an_epoch_ten_steps() {
    let project = project();
    // 44 samples: batches of 8 would be six steps.
    let few = ["--set", "window.stride=60", "--set", "train.epochs=1"];
    let auto = ["run", "small.toml", "--log", "json", "--set", "loader.batch_size=auto"];
    let output = firebox(project.path(), &[&auto[..], &few].concat());
    let said = errors(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let events: Vec<Value> =
        said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let place = |event: &str, stage: &str| {
        let own = |found: &Value| {
            found["event"] == event && (stage.is_empty() || found["stage"] == stage)
        };
        events.iter().position(own).unwrap_or_else(|| panic!("{event} {stage}: {said}"))
    };
    let settled = place("stage-finished", "settle");
    assert!(settled < place("run-started", ""), "{said}");
    let detail = events[settled]["detail"].as_str().unwrap();
    let chosen = detail.strip_prefix("loader.batch_size = ").unwrap();
    let (size, reason) = chosen.split_once(": measured: ").unwrap();
    let windows = events[place("stage-finished", "augment")]["detail"].as_str().unwrap();
    let windows: usize = windows.split_whitespace().next().unwrap().parse().unwrap();
    let size: usize = size.parse().unwrap();
    let steps = |size| windows.div_ceil(size);
    assert!(steps(size) >= 10 && steps(2 * size) < 10, "{size} of {windows}: {detail}");
    let end = format!("would leave fewer than 10 full steps in an epoch of {windows} samples");
    assert!(reason.contains(&end), "{detail}");
    // The same again, from what was kept: the same run.
    let again = firebox(project.path(), &[&auto[..], &few].concat());
    let told = String::from_utf8_lossy(&again.stdout);
    assert!(told.starts_with("nothing to do"), "{told}{}", errors(&again));
    assert!(
        errors(&again).contains(&format!("loader.batch_size = {size}: ")),
        "{}",
        errors(&again)
    );
}

#[test]
fn what_computing_again_costs_is_told_whether_there_is_anything_to_do_or_not() {
    let project = project();
    let again = ["run", "small.toml", "--set", "run.recompute=true", "--set", "train.max_steps=2"];
    let told = || {
        let output = firebox(project.path(), &again);
        let said = errors(&output);
        assert_eq!(output.status.code(), Some(0), "{said}");
        let line = said.lines().find(|line| line.contains("run.recompute = true: ")).unwrap();
        assert!(line.starts_with("settle") && line.contains(" ms a step ("), "{line}");
        let trade = line.split_once("run.recompute").unwrap().1.to_owned();
        (trade, String::from_utf8_lossy(&output.stdout).starts_with("nothing to do"))
    };
    let (trade, nothing) = told();
    assert!(!nothing && trade.contains(" MiB ("), "{trade}");
    assert_eq!(told(), (trade, true));
}

/// One of the devices that an examination lists.
fn found_device(file: &Path, name: &str) -> Value {
    let found: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let devices = found["devices"].as_array().unwrap();
    devices.iter().find(|device| device["name"] == name).unwrap().clone()
}

/// With mlp alone, the quickest of the models.
#[test]
fn the_doctor_measures_a_model_and_its_block_fits_into_a_pipeline() {
    let project = project();
    let folder = project.path();
    let arguments = ["doctor", "--quick", "--workload", "mlp", "--json", "found.json"];
    let output = firebox(folder, &arguments);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{}{said}", errors(&output));
    let headings = [
        "\nDevices\n",
        "\nTime of a training step\n",
        "\nLoss beside f32, same seed\n",
        "\nChecklist of R1's guide\n",
        "\nRecommended\n",
        "\nTo merge into [run] and [loader] of a pipeline\n",
    ];
    for heading in headings {
        assert!(said.contains(heading), "{heading}{said}");
    }
    for ability in ["memory:", "tensor cores:", "int8:", "shared memory", "graph capture:"] {
        assert!(said.contains(ability), "{ability}{said}");
    }
    let cpu = found_device(&folder.join("found.json"), "cpu");
    assert_eq!(cpu["abilities"]["precisions"][0][0].as_str(), Some("f32"), "{cpu}");
    assert!(cpu["hardware"]["memory_mib"].as_f64().is_none_or(|mib| mib > 100.0), "{cpu}");
    let (before, block) =
        said.split_once("To merge into [run] and [loader] of a pipeline").unwrap();
    assert!(before.lines().all(|line| line.chars().count() <= 80), "{before}");
    let text = std::fs::read_to_string(folder.join("found.json")).unwrap();
    let found: Value = serde_json::from_str(&text).unwrap();
    let precisions = |key: &str| -> Vec<String> {
        let all = found[key].as_array().unwrap().iter();
        all.map(|one| one["precision"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(precisions("timed"), ["f32", "bf16", "f16"]);
    assert_eq!(precisions("learnt"), ["f32", "bf16", "f16"]);
    for timed in found["timed"].as_array().unwrap() {
        assert!(timed["median_ms"].as_f64().unwrap() > 0.0, "{timed}");
        assert!(timed["peak_mib"].as_f64().unwrap() > 1.0, "{timed}");
    }
    let learnt = found["learnt"].as_array().unwrap();
    assert_eq!(learnt[0]["difference"].as_f64(), Some(0.0));
    assert!(learnt.iter().all(|one| one["difference"].as_f64().unwrap().abs() < 0.05), "{text}");
    let mark = |part: &str| {
        let lines = found["checklist"].as_array().unwrap().iter();
        let mut own = lines.filter(|tick| tick["line"].as_str().unwrap().contains(part));
        own.next().unwrap()["mark"].as_str().unwrap().to_owned()
    };
    // What follows from the program, and not from how fast this machine is.
    for (part, expected) in [
        ("early stopping", "yes"),
        ("fastest kernels", "yes"),
        ("are kept", "yes"),
        ("augmented data", "yes"),
        ("TF32", "not-here"),
    ] {
        assert_eq!(mark(part), expected, "{part}");
    }
    // Half an hour's figures are not written over without being asked.
    let output = firebox(folder, &arguments);
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
    assert!(errors(&output).contains("it is there already\n  replace it with --force"));
    assert_eq!(std::fs::read_to_string(folder.join("found.json")).unwrap(), text);
    let block = block.split_once("\n[run]").map(|(_, rest)| format!("[run]{rest}")).unwrap();
    let (block, _) = block.split_once("\nexamined in").unwrap();
    let pipeline = std::fs::read_to_string(folder.join("small.toml")).unwrap();
    let pipeline = pipeline.replace("[loader]\n        batch_size = 64", block);
    std::fs::write(folder.join("small.toml"), pipeline).unwrap();
    let output = firebox(folder, &["plan", "small.toml"]);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
}
