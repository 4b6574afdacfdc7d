//! A run that is watched, asked for something, and profiled, as a user does.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use firebox_tests::{command, errors, firebox, program, python};
use serde_json::Value;
use tempfile::TempDir;

const PIPELINE: &str = r#"
[data]
path = "bars.csv"
[window]
length = 16
stride = 2
[augment]
versions = 1
[loader]
batch_size = 16
[model.bilstm-mae]
hidden = 8
layers = 1
decoder_hidden = 8
[train]
epochs = 60
early_stopping = false
[evaluate]
seeds = 2
resamples = 200
[monitor]
period = 0.2
"#;

fn project() -> TempDir {
    firebox_tests::project(PIPELINE, 1400)
}

fn begin(folder: &Path) -> Child {
    command(folder, &["run", "p.toml"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// The events of the only run once one of them has this text.
fn events(folder: &Path, text: &str) -> (PathBuf, Vec<Value>) {
    for _ in 0..3000 {
        if let Some(run) = std::fs::read_dir(folder.join("runs")).ok().and_then(|mut r| r.next()) {
            let run = run.unwrap().path();
            let log = std::fs::read_to_string(run.join("events.jsonl")).unwrap_or_default();
            if log.contains(text) {
                let lines = log.lines().filter_map(|line| serde_json::from_str(line).ok());
                return (run, lines.collect());
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("no run wrote {text}");
}

fn ask(folder: &Path, run: &Path, request: &str) {
    let name = run.file_name().unwrap().to_str().unwrap();
    let output = firebox(folder, &["watch", name, "--ask", request]);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
}

fn once(folder: &Path, run: &Path, width: &str) -> String {
    let run = run.to_str().unwrap();
    let output = firebox(folder, &["watch", run, "--once", "--width", width, "--height", "40"]);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_run_does_what_it_is_asked_once_and_goes_on_from_there() {
    let project = project();
    let folder = project.path();
    let mut child = begin(folder);
    let (run, _) = events(folder, "\"step\":5,");
    ask(folder, &run, "pause");
    events(folder, "\"request\":\"pause\"");
    let steps = |all: &[Value]| all.iter().filter(|event| event["event"] == "step").count();
    let before = steps(&events(folder, "pause").1);
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(steps(&events(folder, "pause").1), before, "it went on");
    assert!(child.try_wait().unwrap().is_none());
    for width in ["80", "200"] {
        let screen = once(folder, &run, width);
        for part in ["paused", "loss", "processor", "train "] {
            assert!(screen.contains(part), "`{part}` is missing in\n{screen}");
        }
    }
    ask(folder, &run, "save");
    events(folder, "\"event\":\"checkpoint\"");
    // While it stands still: a small run could end before it was asked. The pause ends with it.
    ask(folder, &run, "stop-after-epoch");
    assert_eq!(child.wait().unwrap().code(), Some(130));

    let (_, all) = events(folder, "run-finished");
    let asked: Vec<&str> = all
        .iter()
        .filter(|event| event["event"] == "asked")
        .map(|event| event["request"].as_str().unwrap())
        .collect();
    assert_eq!(asked, ["pause", "save", "stop-after-epoch", "go-on"]);
    let epoch = all.iter().rfind(|event| event["event"] == "epoch").unwrap();
    let step = all.iter().rfind(|event| event["event"] == "step").unwrap();
    assert_eq!(epoch["step"], step["step"], "it did not stop with its epoch");
    assert!(once(folder, &run, "100").contains("interrupted"));

    // A run that has ended cannot be asked; what is left there all the same is forgotten.
    let refused = firebox(folder, &["watch", run.to_str().unwrap(), "--ask", "pause"]);
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{errors}");
    assert!(errors.contains("the run has ended (interrupted)"), "{errors}");
    assert_eq!(std::fs::read_dir(run.join("control")).unwrap().count(), 0);
    std::fs::write(run.join("control").join("1.1.stop-after-epoch"), "").unwrap();
    let resumed = firebox(folder, &["run", "--resume", run.to_str().unwrap()]);
    let errors = String::from_utf8_lossy(&resumed.stderr);
    assert_eq!(resumed.status.code(), Some(0), "{errors}");
    assert!(errors.contains("forgotten: stop-after-epoch"), "{errors}");
    assert!(once(folder, &run, "100").contains(" finished"));
}

#[test]
fn a_paused_run_is_stopped_by_a_signal_and_gone_on_with() {
    let project = project();
    let folder = project.path();
    let mut child = begin(folder);
    let (run, _) = events(folder, "\"step\":5,");
    ask(folder, &run, "pause");
    events(folder, "\"request\":\"pause\"");
    std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let (_, all) = events(folder, "run-finished");
    assert_eq!(all.last().unwrap()["outcome"], "interrupted");
    let steps = |all: &[Value]| -> Vec<u64> {
        let steps = all.iter().filter(|event| event["event"] == "step");
        steps.map(|event| event["step"].as_u64().unwrap()).collect()
    };
    let before = steps(&all);
    let rest = ["run", "--resume", run.to_str().unwrap()];
    let resumed = firebox(folder, &rest);
    assert_eq!(resumed.status.code(), Some(0), "{}", errors(&resumed));
    // Every step of the pause was saved: the run goes on with the one after it, once.
    let (_, all) = events(folder, "\"outcome\":\"finished\"");
    let after = steps(&all);
    assert_eq!(after[..before.len()], before);
    assert!(after.windows(2).all(|pair| pair[1] == pair[0] + 1), "{after:?}");
}

#[test]
fn a_signal_gives_the_terminal_back() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("r-1");
    std::fs::create_dir(&run).unwrap();
    std::fs::write(run.join("pipeline.toml"), "").unwrap();
    let line =
        r#"{"time":1,"event":"run-started","run":"r-1","device":"cpu","resumed_at_step":null}"#;
    std::fs::write(run.join("events.jsonl"), format!("{line}\n")).unwrap();
    let Some(python) = python("pty") else { return };
    // The signal comes once the dashboard has a screen of its own.
    let script = "
import os, pty, signal, sys
child, terminal = pty.fork()
if child == 0:
    os.execv(sys.argv[1], [sys.argv[1], 'watch', sys.argv[2]])
shown, asked = b'', False
while True:
    try:
        more = os.read(terminal, 4096)
    except OSError:
        break
    if not more:
        break
    shown += more
    if b'\\x1b[?1049h' in shown and not asked:
        os.kill(child, int(sys.argv[3]))
        asked = True
_, status = os.waitpid(child, 0)
code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
print(code, b'\\x1b[?1049l' in shown, b'\\x1b[?25h' in shown)
";
    for signal in ["15", "1"] {
        let mut watched = std::process::Command::new(&python);
        watched.args(["-c", script]).arg(program()).arg(&run).arg(signal);
        let output = watched.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said.trim(), "130 True True", "signal {signal}: {}", errors(&output));
    }
}

#[test]
fn what_cannot_be_watched_is_said_with_the_way_out() {
    let project = project();
    let output = firebox(project.path(), &["watch", "nothing"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("there is no run nothing"), "{errors}");
    let output = firebox(project.path(), &["watch", "nothing", "--ask", "dance"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("pause, go-on, save"));
    for size in ["0", "1001", "65535"] {
        for flag in ["--width", "--height"] {
            let output = firebox(project.path(), &["watch", "nothing", "--once", flag, size]);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{errors}");
            assert!(errors.contains("is not in 1..=1000"), "{errors}");
        }
    }
}

#[test]
fn a_profile_is_a_timeline_and_a_table() {
    let project = project();
    let arguments = ["run", "p.toml", "--set", "train.epochs=1", "--profile", "warmup=2,active=4"];
    let output = firebox(project.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let (run, _) = events(project.path(), "run-finished");
    let trace = std::fs::read_to_string(run.join("trace.json")).unwrap();
    let trace: Value = serde_json::from_str(&trace).unwrap();
    let spans: Vec<&Value> =
        trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "X").collect();
    for name in ["step", "wait for data", "forward", "backward", "read back", "optimizer"] {
        let count = spans.iter().filter(|span| span["name"] == name).count();
        assert_eq!(count, 4, "{name}");
    }
    // Spans of one thread lie within one another or apart.
    let ends = |span: &Value| {
        let start = span["ts"].as_f64().unwrap();
        (start, start + span["dur"].as_f64().unwrap())
    };
    for a in &spans {
        for b in spans.iter().filter(|b| b["tid"] == a["tid"]) {
            let ((a0, a1), (b0, b1)) = (ends(a), ends(b));
            let apart = a1 <= b0 || b1 <= a0;
            let within = (a0 <= b0 && b1 <= a1) || (b0 <= a0 && a1 <= b1);
            assert!(apart || within, "{a}\n{b}");
        }
    }
    let summary = std::fs::read_to_string(run.join("summary.md")).unwrap();
    assert!(summary.contains("## Profile"), "{summary}");
    assert!(summary.contains("| backward | 4 |"), "{summary}");
    // Kernels stand with their shapes and rates, and the note tells what a step took.
    let row = summary.lines().find(|line| line.starts_with("| recurrent layer | ")).unwrap();
    assert!(row.contains("16, 4, 8, 2\\]") && row.contains(" %) | "), "{row}");
    assert!(summary.contains("waited for the device ") && summary.contains(" times a step, "));

    // A run that is there already takes no step that could be profiled.
    let output =
        firebox(project.path(), &["run", "p.toml", "--set", "train.epochs=1", "--profile"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert!(errors.contains("nothing was profiled"), "{errors}");
    // Nor does one whose training is there, though its evaluation is made anew.
    let arguments = ["run", "p.toml", "--set", "train.epochs=1", "--profile"];
    let anew = ["--set", "evaluate.resamples=300"];
    let output = firebox(project.path(), &[&arguments[..], &anew[..]].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert!(errors.contains("the training is there and was reused"), "{errors}");
}

#[test]
fn a_run_that_fails_says_so_wherever_it_is_looked_at() {
    let project = project();
    let folder = project.path();
    let rate = "train.optimizer.adamw.learning_rate=1e30";
    let output =
        firebox(folder, &["run", "p.toml", "--set", rate, "--set", "train.non_finite=stop"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    let (run, all) = events(folder, "run-finished");
    let outcome = all.last().unwrap()["outcome"].as_str().unwrap();
    assert!(outcome.starts_with("failed: step "), "{outcome}");
    assert!(once(folder, &run, "100").contains("failed: step "));
    let refused = firebox(folder, &["watch", run.to_str().unwrap(), "--ask", "pause"]);
    assert_eq!(refused.status.code(), Some(2));

    let output = firebox(folder, &["run", "p.toml", "--set", "train.epochs=1"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let runs = std::fs::read_dir(folder.join("runs")).unwrap().flatten();
    let runs: Vec<String> = runs.map(|run| run.file_name().into_string().unwrap()).collect();
    let output = firebox(folder, &["compare", &runs[0], &runs[1]]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let page = std::fs::read_to_string(folder.join("comparison.html")).unwrap();
    assert!(page.contains("failed: step ") && !page.contains("not ended"));
}

#[test]
fn runs_are_compared_on_one_page() {
    let project = project();
    let folder = project.path();
    for epochs in ["train.epochs=1", "train.epochs=2"] {
        let output = firebox(folder, &["run", "p.toml", "--set", epochs]);
        assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    }
    let runs = std::fs::read_dir(folder.join("runs")).unwrap().flatten();
    let runs: Vec<String> = runs.map(|run| run.file_name().into_string().unwrap()).collect();
    assert_eq!(runs.len(), 2);
    let output = firebox(folder, &["compare", &runs[0], &runs[1]]);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let page = std::fs::read_to_string(folder.join("comparison.html")).unwrap();
    for part in [&runs[0], &runs[1], "train.epochs", "step, median", "error on masked steps"] {
        assert!(page.contains(part), "{part} is missing");
    }
    assert!(!page.contains("run.directory") && !page.contains("cannot be read"));
    // A log that is damaged is compared as far as it goes, which is said.
    let log = folder.join("runs").join(&runs[0]).join("events.jsonl");
    let text = std::fs::read_to_string(&log).unwrap();
    std::fs::write(&log, text.replacen("\"event\":\"step\"", "\"event\":\"stop\"", 3)).unwrap();
    let output = firebox(folder, &["compare", &runs[0], &runs[1]]);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let page = std::fs::read_to_string(folder.join("comparison.html")).unwrap();
    assert!(page.contains("lines of the log that cannot be read"));
    let again = folder.join("runs").join(&runs[0]);
    let output = firebox(folder, &["compare", &runs[0], again.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(errors(&output).contains("is named twice"));
    let output = firebox(folder, &["compare", &runs[0], "nothing"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(errors(&output).contains("there is no run nothing"));
}

#[test]
fn the_bar_of_a_run_that_has_finished_is_full() {
    let project = project();
    // Many batches within the second in which the log has one line of a stage.
    let settings = ["--set", "train.epochs=1", "--set", "evaluate.batch_size=8"];
    let output = firebox(project.path(), &[&["run", "p.toml"], &settings[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let (run, _) = events(project.path(), "run-finished");
    let screen = once(project.path(), &run, "100");
    let bar = screen.lines().nth(2).unwrap();
    assert!(bar.contains("masked windows") && bar.contains('━') && !bar.contains('─'), "{screen}");
}
