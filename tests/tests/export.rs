//! A trained model after its run: exported, applied to new data, and refused where it does not fit.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::path::Path;
use std::process::Command;

use firebox_tests::{command, errors, firebox, project, python, root};
use tempfile::TempDir;

const PIPELINE: &str = r#"
    pipeline = "pretrain"
    data = { path = "bars.csv" }
    window = { length = 16, stride = 4 }
    [augment]
    versions = 1
    [model.bilstm-mae]
    hidden = 6
    decoder_hidden = 5
    [train]
    epochs = 2
    [evaluate]
    seeds = 2
    resamples = 100
"#;

/// A project with a finished run, and the name of that.
fn trained() -> (TempDir, String) {
    let project = project(PIPELINE, 400);
    let folder = project.path();
    let output = firebox(folder, &["run", "p.toml"]);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let run = std::fs::read_dir(folder.join("runs")).unwrap().flatten().next().unwrap();
    let name = run.file_name().into_string().unwrap();
    (project, name)
}

fn done(folder: &Path, arguments: &[&str]) -> String {
    let output = firebox(folder, arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", errors(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn refused(folder: &Path, arguments: &[&str], expected: &str) {
    let output = firebox(folder, arguments);
    let said = errors(&output);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    assert!(said.contains(expected), "{arguments:?}: {said}");
}

const NEEDED: &str = "numpy, onnxruntime, polars, safetensors, torch";

#[test]
fn a_model_needs_neither_its_data_nor_its_run() {
    let (project, run) = trained();
    let folder = project.path();
    std::fs::rename(folder.join("bars.csv"), folder.join("new.csv")).unwrap();
    std::fs::remove_dir_all(folder.join("cache")).unwrap();
    let said = done(folder, &["embed", &run, "new.csv", "--output", "a.parquet"]);
    assert!(said.contains("97 windows of 1 series in 1 file: vectors of 24"), "{said}");
    for format in ["safetensors", "onnx", "torch"] {
        let said = done(folder, &["export", &run, "--format", format]);
        assert!(said.starts_with(&format!("exported {run}")), "{said}");
    }
    // What is printed can be typed again.
    let said = done(folder, &["export", &run, "--format", "torch", "--output", "my model"]);
    let typed = "python 'my model/firebox_models.py' 'my model'\n";
    assert!(said.contains(typed), "{said}");
    std::fs::rename(folder.join("runs").join(&run), folder.join("my run")).unwrap();
    let said = done(folder, &["export", "my run", "--output", "other.safetensors"]);
    assert!(said.contains("firebox export 'my run' --format torch"), "{said}");
    std::fs::rename(folder.join("my run"), folder.join("runs").join(&run)).unwrap();
    // The exported folder is a model too, wherever it lies and when the run is gone.
    std::fs::rename(folder.join(format!("{run}-torch")), folder.join("model")).unwrap();
    std::fs::remove_dir_all(folder.join("runs")).unwrap();
    done(folder, &["embed", "model", "new.csv", "--output", "b.parquet"]);
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    assert_eq!(read("a.parquet"), read("b.parquet"));
    // Threads change no bit.
    let arguments = ["embed", "model", "new.csv", "--output", "c.parquet", "--batch", "256"];
    let output = command(folder, &arguments).env("RAYON_NUM_THREADS", "1").output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
    assert_eq!(read("a.parquet"), read("c.parquet"));
}

#[test]
fn other_programs_compute_the_same_from_the_same_file() {
    let Some(python) = python(NEEDED) else { return };
    let (project, run) = trained();
    let folder = project.path();
    done(folder, &["embed", &run, "bars.csv", "--output", "vectors.parquet"]);
    done(folder, &["embed", &run, "bars.csv", "--output", "wide.parquet", "--wide"]);
    done(folder, &["export", &run, "--format", "torch", "--output", "model"]);
    done(folder, &["export", &run, "--format", "onnx", "--output", "encoder.onnx"]);
    let script = root().join("tests/embedded.py");
    let output = Command::new(python).arg(script).arg(folder).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", errors(&output));
    assert!(said.contains("97 windows agree"), "{said}");
}

#[test]
fn what_is_there_stays_and_what_does_not_fit_is_refused() {
    let (project, run) = trained();
    let folder = project.path();
    let export = ["export", &run, "--format", "torch", "--output", "model"];
    done(folder, &export);
    refused(folder, &export, "it is there already\n  replace it with --force");
    done(folder, &[&export[..], &["--force"]].concat());
    let names = std::fs::read_dir(folder.join("model")).unwrap().flatten();
    assert_eq!(names.count(), 4);
    // A folder of something else is not removed.
    refused(
        folder,
        &["export", &run, "--format", "torch", "--output", "runs", "--force"],
        "a folder of something else",
    );
    // Nor is a run's own model, nor what somebody put into an exported one.
    let own = format!("runs/{run}/model");
    refused(
        folder,
        &["export", &run, "--format", "torch", "--output", &own, "--force"],
        "the model is read from it",
    );
    let itself = ["export", "model", "--format", "torch", "--output", "model", "--force"];
    refused(folder, &itself, "the model is read from it");
    std::fs::write(folder.join("model/notes.txt"), "mine").unwrap();
    refused(folder, &[&export[..], &["--force"]].concat(), "it holds notes.txt, too");
    std::fs::remove_file(folder.join("model/notes.txt")).unwrap();
    let weights = format!("{own}/model.safetensors");
    refused(folder, &["export", &run, "--output", &weights, "--force"], "a file that is read");
    refused(folder, &["export", &run, "--output", "m.onnx"], "take --format onnx");
    let folder_of = ["export", &run, "--format", "torch", "--output", "no/model"];
    refused(folder, &folder_of, "there is no folder to put it in");
    refused(folder, &["export", &run, "--part", "head"], "--part is for --format onnx");
    refused(folder, &["export", "no-run"], "there is no run no-run");
    refused(
        folder,
        &["predict", &run, "bars.csv", "--output", "p.parquet"],
        "has no classes to predict",
    );
    refused(folder, &["embed", &run, "no.csv", "--output", "v.parquet"], "no.csv does not exist");
    refused(
        folder,
        &["embed", &run, "bars.csv", "--output", "v.parquet", "--batch", "0"],
        "at least 1",
    );
    assert!(!folder.join("p.parquet").exists() && !folder.join("v.parquet").exists());
    // A card that was changed, and weights that are not its own.
    let weights = folder.join("model/model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    refused(
        folder,
        &["embed", "model", "bars.csv", "--output", "v.parquet"],
        "is damaged or was changed",
    );
}

#[test]
fn a_run_without_a_model_says_how_to_get_it() {
    let (project, run) = trained();
    let folder = project.path();
    let model = folder.join("runs").join(&run).join("model");
    std::fs::remove_dir_all(&model).unwrap();
    refused(folder, &["export", &run], "end it, which trains nothing that was trained before");
    let said = done(folder, &["run", "--resume", &run]);
    assert!(said.contains("report"), "{said}");
    assert!(model.join("model.json").is_file());
    done(folder, &["export", &run]);
}
