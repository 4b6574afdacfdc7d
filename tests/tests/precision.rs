//! The main job, small: f32, bf16 and f16 end alike, and what a device cannot promise is refused.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::fmt::Write as _;
use std::path::Path;

use firebox_tests::{errors, firebox};
use serde_json::Value;
use tempfile::TempDir;

fn project() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut bars = "open,high,low,close\n".to_owned();
    let (mut price, mut seed) = (1000.0f64, 11u64);
    for step in 0..900 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let noise = (seed >> 33) as f64 / f64::from(1u32 << 31) - 0.5;
        let close = price + noise + (f64::from(step) / 9.0).sin();
        let (high, low) = (price.max(close) + 0.1, price.min(close) - 0.1);
        writeln!(bars, "{price:.4},{high:.4},{low:.4},{close:.4}").unwrap();
        price = close;
    }
    std::fs::write(folder.path().join("bars.csv"), bars).unwrap();
    let pipeline = r#"
        pipeline = "pretrain"
        labels = "none"
        [data]
        path = "bars.csv"
        [window]
        length = 20
        stride = 2
        [augment]
        versions = 1
        [loader]
        batch_size = 64
        [model.bilstm-mae]
        hidden = 8
        decoder_hidden = 8
        [train]
        epochs = 12
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

/// The losses of a run, and its folder's settings.
fn train(folder: &Path, precision: &str) -> (f64, f64, String) {
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
    let settings = std::fs::read_to_string(run.join("pipeline.toml")).unwrap();
    (epochs[0], epochs[epochs.len() - 1], settings)
}

#[test]
fn every_precision_ends_where_f32_does() {
    let folder = project();
    let (first, base, _) = train(folder.path(), "f32");
    assert!(base < 0.9 * first, "nothing was learnt: {first} to {base}");
    for precision in ["bf16", "f16"] {
        let (_, last, settings) = train(folder.path(), precision);
        // What is asked of the main job.
        assert!((last - base).abs() < 0.005 * base, "{precision}: {last} beside {base}");
        assert!(settings.contains(&format!("# run.precision = {precision}: as written")));
        let emulated = settings.contains("storage and rounding, its arithmetic is f32");
        assert_eq!(emulated, precision == "f16", "{settings}");
    }
}

#[test]
fn auto_is_measured_once_and_written_with_its_reason() {
    let folder = project();
    let (_, _, settings) = train(folder.path(), "auto");
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
