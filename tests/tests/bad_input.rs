//! What a user sees who gets something wrong: the message, exit code 2, and no run folder.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::path::Path;

use firebox_tests::firebox;

/// Runs a pipeline text and returns what it says, with the folder's name taken out.
fn refused(pipeline: &str, arguments: &[&str], prepare: impl Fn(&Path)) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("p.toml"), pipeline).unwrap();
    let bars: String = (0..300)
        .map(|i| format!("2024-03-01T{:02}:{:02}:00,{i},{},{},{i}\n", i / 60, i % 60, i + 1, i - 1))
        .collect();
    let bars = format!("time,open,high,low,close\n{bars}");
    std::fs::write(folder.path().join("bars.csv"), bars).unwrap();
    prepare(folder.path());
    let output = firebox(folder.path(), &[&["run", "p.toml"], arguments].concat());
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    let finished = std::fs::read_dir(folder.path().join("runs")).into_iter().flatten().flatten();
    let finished: Vec<_> =
        finished.filter(|run| run.path().join("manifest.json").exists()).collect();
    assert!(finished.is_empty(), "a run folder looks finished");
    let text = errors.replace(&folder.path().display().to_string(), "DIR");
    // What was done before the error, and how long it took, is no part of the message.
    text.lines().skip_while(|line| !line.starts_with("error:")).collect::<Vec<_>>().join("\n")
}

const GOOD: &str = "[data]\npath = \"bars.csv\"\n[window]\nlength = 8\n";

macro_rules! refuses {
    ($($name:ident: $pipeline:expr, $arguments:expr, $prepare:expr;)*) => {$(
        #[test]
        fn $name() {
            insta::assert_snapshot!(stringify!($name), refused($pipeline, &$arguments, $prepare));
        }
    )*};
}

fn nothing(_: &Path) {}

refuses! {
    unknown_table: "[tarin]\nepochs = 3\n", [], nothing;
    unknown_key: "[train]\nepoch = 3\n", [], nothing;
    wrong_type: "[window]\nlength = \"long\"\n", [], nothing;
    broken_toml: "[window\n", [], nothing;
    negative_count: "[window]\nlength = -5\n", [], nothing;
    unknown_pipeline: "pipeline = \"pretain\"\n", [], nothing;
    unknown_choice: "[model.lstm]\nhidden = 3\n", [], nothing;
    set_without_value: GOOD, ["--set", "train.epochs"], nothing;
    set_unknown_key: GOOD, ["--set", "train.epoch=3"], nothing;
    unknown_device: GOOD, ["--device", "gpu"], nothing;
    device_not_compiled_in: GOOD, ["--device", "cuda"], nothing;
    unknown_precision: GOOD, ["--set", "run.precision=half"], nothing;
    precision_not_there_yet: GOOD, ["--set", "run.precision=f16"], nothing;
    no_epochs: GOOD, ["--set", "train.epochs=0"], nothing;
    dropout_of_one: GOOD, ["--set", "model.bilstm-mae.dropout=1"], nothing;
    window_too_long: GOOD, ["--set", "window.length=400"], nothing;
    empty_side: GOOD, ["--set", "split.time.validation=0.02", "--set", "split.time.test=0.2"], nothing;
    shares_over_one: GOOD, ["--set", "split.time.validation=0.1", "--set", "split.time.test=0.95"], nothing;
    split_not_given: GOOD, ["--set", "split.given.validation=0.1", "--set", "split.given.seed=1"], nothing;
    missing_file: GOOD, ["--set", "data.path=nothing.csv"], nothing;
    no_path: "[window]\nlength = 20\n", [], nothing;
    bad_augmentation: GOOD, ["--set", "augment.jitter.sigma=-1"], nothing;
    empty_batch: GOOD, ["--set", "loader.batch_size=0"], nothing;
    zip_of_the_wrong_kind: GOOD, ["--set", "data.path=bars.parquet"], |folder: &Path| {
        std::fs::write(folder.join("bars.parquet"), b"PK\x03\x04not a table").unwrap();
    };
}

#[test]
fn a_missing_pipeline_file_and_a_missing_run_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let say = |arguments: &[&str]| {
        let output = firebox(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    insta::assert_snapshot!("missing_pipeline_file", say(&["run", "missing.toml"]));
    insta::assert_snapshot!("missing_run", say(&["run", "--resume", "missing"]));
    insta::assert_snapshot!("missing_cache", say(&["cache", "list"]));
}
