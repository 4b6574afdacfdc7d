//! What a run tells TensorBoard, MLflow and Prometheus, read by the real ones where they are
//! installed; and what it says when they are gone.
//!
//! `FIREBOX_TEST_PYTHON` names a Python that has the packages `tensorboard` and `mlflow`; else the
//! `python3` of the path is tried.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use firebox_tests::{command, firebox, root};
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
epochs = 3
early_stopping = false
[evaluate]
seeds = 2
resamples = 200
[monitor]
period = 0.1
"#;

fn project() -> TempDir {
    firebox_tests::project(PIPELINE, 900)
}

/// Runs the pipeline with these settings and returns the run's folder and what was said.
fn run(folder: &Path, settings: &[&str]) -> (PathBuf, String) {
    let mut arguments = vec!["run", "p.toml"];
    settings.iter().for_each(|setting| arguments.extend(["--set", setting]));
    let output = firebox(folder, &arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let runs: Vec<_> = std::fs::read_dir(folder.join("runs")).unwrap().flatten().collect();
    assert_eq!(runs.len(), 1, "{runs:?}");
    (runs[0].path(), errors)
}

/// Steps and losses as the run's own history has them.
fn losses(run: &Path) -> Vec<(u64, f64)> {
    let history = std::fs::read_to_string(run.join("history.jsonl")).unwrap();
    let lines = history.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines
        .filter_map(|line| {
            let step = line.get("step")?;
            Some((step["step"].as_u64().unwrap(), step["loss"].as_f64().unwrap()))
        })
        .collect()
}

/// A Python that has TensorBoard and MLflow, or a line that counts the test as skipped.
fn python() -> Option<PathBuf> {
    let python =
        std::env::var_os("FIREBOX_TEST_PYTHON").map_or_else(|| "python3".into(), PathBuf::from);
    let check = Command::new(&python).arg(script()).arg("available").output();
    if check.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    println!(
        "skipped: {} has no tensorboard and mlflow; set FIREBOX_TEST_PYTHON to a Python that has them",
        python.display()
    );
    None
}

fn script() -> PathBuf {
    root().join("tests/trackers.py")
}

/// The last line that the script prints, read as JSON.
fn read(python: &Path, arguments: &[&str]) -> Value {
    let output = Command::new(python).arg(script()).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

fn points(value: &Value) -> Vec<(u64, f64)> {
    let all = value.as_array().unwrap().iter();
    all.map(|point| (point[0].as_u64().unwrap(), point[1].as_f64().unwrap())).collect()
}

#[test]
fn the_real_tensorboard_reads_curves_histograms_and_settings() {
    let Some(python) = python() else { return };
    let project = project();
    // Long enough for a sample of the machine.
    let (run, _) = run(project.path(), &["monitor.tensorboard={}", "train.epochs=15"]);
    let found = read(&python, &["tensorboard", run.join("tensorboard").to_str().unwrap()]);
    let expected: Vec<(u64, f64)> =
        losses(&run).iter().map(|(step, loss)| (*step, f64::from(*loss as f32))).collect();
    assert!(!expected.is_empty());
    assert_eq!(points(&found["scalars"]["train/loss"]), expected);
    for name in ["epoch/validation_loss", "machine/cpu_threads", "test/reconstruction_error"] {
        assert!(found["scalars"][name].is_array(), "{name} is missing");
    }
    assert_eq!(points(&found["scalars"]["epoch/train_loss"]).len(), 15);
    let histograms = found["histograms"].as_object().unwrap();
    for kind in ["weights/", "gradients, running mean/"] {
        let (_, all) = histograms.iter().find(|(name, _)| name.starts_with(kind)).unwrap();
        for one in all.as_array().unwrap() {
            assert!(one[1].as_f64() > Some(0.0) && one[1] == one[2], "{one}");
        }
    }
    assert_eq!(found["hparams"]["train.epochs"], 15.0);
    assert_eq!(found["hparams"]["train.optimizer.adamw.learning_rate"], 0.001);
    assert_eq!(found["hparams"]["window.whole"], false);
    assert!(found["metrics"].as_array().unwrap().contains(&"epoch/validation_loss".into()));
    assert_eq!(found["status"], 1);
    // Masked windows as pictures, which TensorBoard's own reader of PNG files opens.
    let images = found["images"].as_object().unwrap();
    let (_, size) = images.iter().find(|(name, _)| name.starts_with("test/masked window")).unwrap();
    assert_eq!(size[0], 480, "{images:?}");
    assert!(size[2].as_u64() > Some(2), "{images:?}");
    let graph = &found["graphs"]["losses by step"];
    assert_eq!(graph[0], "^train/loss$", "{found}");
    for tag in graph.as_array().unwrap() {
        let name = tag.as_str().unwrap().trim_matches(['^', '$']);
        assert!(found["scalars"][name].is_array(), "{name}");
    }
}

/// A run that is cut off and goes on is one run, without steps that came twice.
#[cfg(unix)]
#[test]
fn a_resumed_run_is_one_run_in_each_tracker() {
    let Some(python) = python() else { return };
    let project = project();
    let settings = [
        "monitor.tensorboard={}",
        "monitor.mlflow={}",
        "train.epochs=12",
        "train.checkpoint.resume_every=5",
    ];
    let mut arguments = vec!["run", "p.toml"];
    settings.iter().for_each(|setting| arguments.extend(["--set", setting]));
    let mut child = command(project.path(), &arguments).stderr(Stdio::null()).spawn().unwrap();
    let runs = project.path().join("runs");
    let begun = || {
        let run = std::fs::read_dir(&runs).ok()?.flatten().next()?.path();
        let events = std::fs::read_to_string(run.join("events.jsonl")).ok()?;
        events.contains("\"step\":8,").then_some(run)
    };
    let path = (0..3000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(5));
        begun()
    });
    let path = path.unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let resumed = firebox(project.path(), &["run", "--resume", path.to_str().unwrap()]);
    assert_eq!(resumed.status.code(), Some(0), "{}", String::from_utf8_lossy(&resumed.stderr));
    let steps = losses(&path).len();

    let found = read(&python, &["tensorboard", path.join("tensorboard").to_str().unwrap()]);
    let told = points(&found["scalars"]["train/loss"]);
    assert!(told.windows(2).all(|pair| pair[0].0 < pair[1].0), "{told:?}");
    assert_eq!(told.last().map(|point| point.0), Some(steps as u64));

    let found =
        read(&python, &["mlflow", project.path().join("mlruns").to_str().unwrap(), "firebox"]);
    let all = found["runs"].as_array().unwrap();
    assert_eq!(all.len(), 1, "{all:?}");
    assert_eq!(all[0]["status"], "FINISHED");
}

#[test]
fn the_real_mlflow_reads_its_files() {
    let Some(python) = python() else { return };
    let project = project();
    let (run, _) = run(
        project.path(),
        &["monitor.mlflow.to=ml runs", "monitor.mlflow.experiment=bars: a try"],
    );
    let found =
        read(&python, &["mlflow", project.path().join("ml runs").to_str().unwrap(), "bars: a try"]);
    check_mlflow(&found, &run);
}

/// A run that fails is told as one, and no settings or steps of it are lost.
#[test]
fn a_failed_run_has_failed_in_each_tracker() {
    let Some(python) = python() else { return };
    let project = project();
    let arguments = [
        "run",
        "p.toml",
        "--set",
        "monitor.mlflow={}",
        "--set",
        "monitor.tensorboard={}",
        "--set",
        "train.optimizer.adamw.learning_rate=1e30",
        "--set",
        "train.non_finite=stop",
    ];
    let output = firebox(project.path(), &arguments);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let found =
        read(&python, &["mlflow", project.path().join("mlruns").to_str().unwrap(), "firebox"]);
    let [only] = &found["runs"].as_array().unwrap()[..] else { panic!("{found}") };
    assert_eq!(only["status"], "FAILED");
    // The last of them is no number, which is why it failed.
    assert!(!only["metrics"]["train/loss"].as_array().unwrap().is_empty());
    let run = std::fs::read_dir(project.path().join("runs")).unwrap().next().unwrap().unwrap();
    let board = run.path().join("tensorboard");
    let found = read(&python, &["tensorboard", board.to_str().unwrap()]);
    // `STATUS_FAILURE` of the plugin.
    assert_eq!(found["status"], 2);
}

/// What MLflow must know of a run.
fn check_mlflow(found: &Value, run: &Path) {
    let [only] = &found["runs"].as_array().unwrap()[..] else { panic!("{found}") };
    assert_eq!(only["name"], run.file_name().unwrap().to_str().unwrap());
    assert_eq!(only["status"], "FINISHED");
    assert_eq!(only["params"]["train.epochs"], "3");
    assert_eq!(only["params"]["model.bilstm-mae.hidden"], "6");
    assert_eq!(points(&only["metrics"]["train/loss"]), losses(run));
    assert!(only["metrics"]["test/reconstruction_error"].is_array(), "{only}");
}

/// An MLflow server on a port of this machine, ended with the test.
struct MlflowServer {
    child: Child,
    address: String,
}

impl MlflowServer {
    fn start(python: &Path, folder: &Path) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let store = format!("sqlite:///{}", folder.join("mlflow.db").display());
        let child = Command::new(python)
            .args(["-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1"])
            .args(["--port", &port.to_string(), "--backend-store-uri", &store])
            .current_dir(folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self { child, address: format!("http://127.0.0.1:{port}") };
        for _ in 0..600 {
            if get(port, "/health").is_some_and(|answer| answer.contains("200")) {
                return server;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("the MLflow server did not start in a minute");
    }
}

impl Drop for MlflowServer {
    fn drop(&mut self) {
        // The server ends its workers when it is told to; a killed one would leave them.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

/// The answer to a request, if there is one.
fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn a_real_mlflow_server_is_told_a_run() {
    let Some(python) = python() else { return };
    // The package mlflow-skinny reads files and has no server.
    let check = "import importlib.metadata as packages; packages.version('mlflow')";
    let has_server = Command::new(&python).args(["-c", check]).output();
    if !has_server.is_ok_and(|output| output.status.success()) {
        println!(
            "skipped: {} has mlflow without its server, as mlflow-skinny is",
            python.display()
        );
        return;
    }
    let project = project();
    let server = MlflowServer::start(&python, project.path());
    let to = format!("monitor.mlflow.to={}", server.address);
    let (run, errors) = run(project.path(), &[&to]);
    assert!(!errors.contains("warning"), "{errors}");
    check_mlflow(&read(&python, &["mlflow", &server.address, "firebox"]), &run);
}

#[test]
fn a_server_that_is_gone_is_said_once_and_changes_nothing() {
    let (with, without) = (project(), project());
    // A port that nobody listens on.
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let (gone, errors) = run(with.path(), &[&format!("monitor.mlflow.to=http://127.0.0.1:{port}")]);
    let said: Vec<&str> = errors.lines().filter(|line| line.contains("MLflow")).collect();
    assert_eq!(said.len(), 1, "{errors}");
    assert!(said[0].starts_with("warning: MLflow: http://127.0.0.1:"), "{errors}");
    assert!(
        said[0].contains("does not answer") && said[0].contains("training goes on"),
        "{errors}"
    );
    let (alone, _) = run(without.path(), &[]);
    assert_eq!(losses(&gone), losses(&alone));
    let summary = std::fs::read_to_string(gone.join("summary.md")).unwrap();
    assert!(summary.contains("does not answer"), "{summary}");
}

#[test]
fn a_folder_that_cannot_be_written_is_said_once() {
    let project = project();
    std::fs::write(project.path().join("file"), "").unwrap();
    let (_, errors) = run(
        project.path(),
        &["monitor.tensorboard.folder=file/below", "monitor.mlflow.to=file/below"],
    );
    for name in ["TensorBoard", "MLflow"] {
        let said: Vec<&str> = errors.lines().filter(|line| line.contains(name)).collect();
        assert_eq!(said.len(), 1, "{errors}");
        assert!(said[0].contains("cannot write"), "{errors}");
    }
}

#[test]
fn a_page_for_prometheus_is_there_while_the_run_goes_on() {
    let project = project();
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let port_setting = format!("monitor.prometheus.port={port}");
    let arguments = ["run", "p.toml", "--set", &port_setting, "--set", "train.epochs=40"];
    let mut child = command(project.path(), &arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut page = String::new();
    while child.try_wait().unwrap().is_none() && !page.contains("firebox_train_loss{") {
        page = get(port, "/metrics").unwrap_or_default();
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(page.contains("# TYPE firebox_steps_total counter"), "{page}");
    assert!(page.contains("firebox_train_loss{run=\"p-"), "{page}");
    assert!(child.wait().unwrap().success());
    assert!(get(port, "/metrics").is_none(), "the page outlived the run");
}
