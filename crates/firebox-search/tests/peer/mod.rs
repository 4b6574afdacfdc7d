//! What the tests beside real Optuna and a real Redis server share.

#![allow(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod server;

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use firebox_search::{
    Choice, Direction, Distribution, Options, RandomSampler, Storage, Study, Trial,
};
use serde_json::{Value, json};
pub(crate) use server::Redis;

/// A Python that has Optuna: `FIREBOX_TEST_PYTHON`, or `python3`. `None`, and a line that counts the test
/// as skipped, if there is none.
pub(crate) fn optuna() -> Option<Command> {
    let python = std::env::var_os("FIREBOX_TEST_PYTHON").unwrap_or_else(|| "python3".into());
    let check = Command::new(&python)
        .args(["-c", "import optuna, redis; assert int(optuna.__version__.split('.')[0]) >= 5"])
        .stderr(Stdio::null())
        .status();
    if !check.is_ok_and(|status| status.success()) {
        println!(
            "skipped: no Python with optuna 5 and redis from PyPI; set FIREBOX_TEST_PYTHON to one"
        );
        return None;
    }
    let mut command = Command::new(python);
    command.arg(Path::new("tests/peer/optuna_journal.py"));
    Some(command)
}

/// Runs the script to its end and returns what it printed.
pub(crate) fn run(arguments: &[&str]) -> String {
    let output = optuna().unwrap().args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn options() -> Options {
    Options::new(RandomSampler::new(3))
}

pub(crate) fn open(address: &str) -> Arc<Storage> {
    Arc::new(Storage::open(address).unwrap())
}

/// Compares all that Optuna and Firebox know of a journal.
pub(crate) fn assert_read_the_same(address: &str) {
    let theirs: Value = serde_json::from_str(&run(&["dump", address])).unwrap();
    let storage = open(address);
    let names = storage.studies().unwrap();
    let mut known: Vec<&String> = theirs.as_object().unwrap().keys().collect();
    known.sort();
    let mut sorted: Vec<&String> = names.iter().collect();
    sorted.sort();
    assert_eq!(known, sorted);
    for name in &names {
        let study = Study::load(&storage, name, options()).unwrap();
        let theirs = &theirs[name];
        let direction = |d: &Direction| if *d == Direction::Minimize { 1 } else { 2 };
        let directions: Vec<i32> = study.directions().iter().map(direction).collect();
        assert_eq!(theirs["directions"], json!(directions));
        assert_eq!(theirs["user"], json!(study.attributes().unwrap()));
        assert_eq!(theirs["system"], json!(study.system_attributes().unwrap()));
        let trials = study.trials().unwrap();
        assert_eq!(theirs["trials"].as_array().unwrap().len(), trials.len());
        for (theirs, ours) in theirs["trials"].as_array().unwrap().iter().zip(&trials) {
            assert_eq!(theirs, &shown(ours), "trial {} of {name}", ours.number);
        }
        let mut best: Vec<u64> = study.best_trials().unwrap().iter().map(|t| t.number).collect();
        if study.directions().len() == 1 {
            // Optuna names one of several equal trials.
            best.truncate(1);
        }
        assert_eq!(theirs["best"], json!(best), "{name}");
    }
}

/// A trial as the script shows it.
fn shown(trial: &Trial) -> Value {
    let parameters = trial.parameters.iter().map(|(name, (distribution, internal))| {
        (name.clone(), json!([described(distribution), internal]))
    });
    let intermediate = trial.intermediate.iter().map(|(step, v)| (step.to_string(), number(*v)));
    let time = |seconds: Option<f64>| seconds.map(|seconds| (seconds * 1e6).round() as i64);
    json!({
        "number": trial.number,
        "state": trial.state as u8,
        "values": trial.values.as_ref().map(|values| values.iter().map(|v| number(*v)).collect::<Vec<_>>()),
        "params": parameters.collect::<serde_json::Map<_, _>>(),
        "intermediate": intermediate.collect::<serde_json::Map<_, _>>(),
        "user": trial.user_attributes,
        "system": trial.system_attributes,
        "started": time(trial.started),
        "ended": time(trial.ended),
    })
}

fn number(value: f64) -> Value {
    if value.is_nan() {
        json!("NaN")
    } else if value.is_infinite() {
        json!(if value > 0.0 { "Infinity" } else { "-Infinity" })
    } else {
        json!(value)
    }
}

fn described(distribution: &Distribution) -> Value {
    let (name, attributes) = match distribution {
        Distribution::Float { low, high, log, step } => {
            ("Float", json!({ "low": low, "high": high, "log": log, "step": step }))
        }
        Distribution::Int { low, high, log, step } => {
            ("Int", json!({ "low": low, "high": high, "log": log, "step": step }))
        }
        Distribution::Categorical { choices } => {
            let choices: Vec<&Choice> = choices.iter().collect();
            ("Categorical", json!({ "choices": choices }))
        }
    };
    json!({ "name": format!("{name}Distribution"), "attributes": attributes })
}

/// `optuna-dashboard` on a journal, stopped with this.
pub(crate) struct Dashboard {
    port: u16,
    process: Child,
}

impl Dashboard {
    /// `None`, and a line that counts the test as skipped, where Python has none.
    pub(crate) fn start(journal: &str) -> Option<Self> {
        let python = std::env::var_os("FIREBOX_TEST_PYTHON").unwrap_or_else(|| "python3".into());
        let script = "from optuna_dashboard._cli import main; main()";
        let there = Command::new(&python).args(["-c", script, "--version"]).output();
        if !there.is_ok_and(|output| output.status.success()) {
            println!(
                "skipped: no Python with optuna-dashboard from PyPI; set FIREBOX_TEST_PYTHON to one"
            );
            return None;
        }
        let port = server::free_port();
        let process = Command::new(python)
            .args(["-c", script, journal, "--quiet", "--server", "wsgiref"])
            .args(["--port", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let dashboard = Self { port, process: process.unwrap() };
        let start = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(start.elapsed() < Duration::from_secs(60), "optuna-dashboard does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(dashboard)
    }

    /// What it answers to a request for this path.
    pub(crate) fn get(&self, path: &str) -> String {
        let mut server = std::net::TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        write!(server, "GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        server.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.lines().next().unwrap().contains(" 200 "), "{path}: {head}");
        body.to_owned()
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The worker of `examples/shared_study.rs`, brought up to date.
pub(crate) fn worker() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let build = ["build", "--release", "--quiet", "--workspace", "--example", "shared_study"];
    let tests = std::env::current_exe().unwrap();
    let target = tests.ancestors().nth(3).unwrap();
    // Which may be named by a path that starts elsewhere.
    let status = Command::new(cargo).args(build).env("CARGO_TARGET_DIR", target).status();
    assert!(status.unwrap().success());
    target.join("release/examples/shared_study")
}

/// Branin's function, as the worker and the script compute it.
pub(crate) fn branin(trial: &Trial) -> f64 {
    use std::f64::consts::PI;
    let (x, y) = (trial.parameters["x"].1, trial.parameters["y"].1);
    let a = y - 5.1 / (4.0 * PI * PI) * x * x + 5.0 / PI * x - 6.0;
    a * a + 10.0 * (1.0 - 1.0 / (8.0 * PI)) * x.cos() + 10.0
}

/// The numbers have no hole, each trial that was begun ended with its value exactly once, whatever
/// became of its workers, and no value was lost on the way. Returns how many retries there were.
pub(crate) fn assert_each_ended_once(trials: &[Trial], wanted: u64) -> usize {
    use firebox_search::TrialState::{Complete, Fail};
    let mut ended = std::collections::BTreeMap::<u64, u64>::new();
    for (place, trial) in trials.iter().enumerate() {
        assert_eq!(trial.number, place as u64);
        let origin = trial.system_attributes.get("failed_trial").and_then(Value::as_u64);
        let chain = ended.entry(origin.unwrap_or(trial.number)).or_default();
        match trial.state {
            Complete => {
                *chain += 1;
                let value = branin(trial);
                let had = trial.values.as_ref().unwrap()[0];
                assert!((had - value).abs() <= 1e-9 * value.abs(), "{had} {value}");
                let steps: Vec<u64> = trial.intermediate.keys().copied().collect();
                assert_eq!(steps, (0..8).collect::<Vec<_>>(), "trial {place}");
            }
            Fail => {
                let reason = trial.user_attributes["fail_reason"].as_str().unwrap();
                assert!(reason.contains("no sign of life"), "{reason}");
            }
            other => panic!("trial {place} is {other:?}"),
        }
    }
    assert_eq!(ended.len() as u64, wanted);
    assert!(ended.values().all(|times| *times == 1), "{ended:?}");
    trials.len() - wanted as usize
}
