//! Programs that the suite starts: itself for each case, and those that check a build.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use firebox_loader::Resident;
use serde::de::DeserializeOwned;

use super::cases::Case;
use super::result::Check;
use crate::bench::{BenchResult, Ceilings};
use crate::error::{PipelineError, at_named};

/// How often a program is looked after: what it measures, it measures itself.
const LOOK: Duration = Duration::from_millis(50);

/// How long what a program has said is waited for once it has ended.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// The longest that measuring what a device does at most may take, kernels of a GPU that are compiled for it counted in.
const CEILINGS: Duration = Duration::from_secs(600);

/// Lines of what a check said that are kept.
const KEPT: usize = 12;

/// This program, and the device that it is told.
pub(super) struct Program<'a> {
    pub(super) path: &'a Path,
    pub(super) device: &'a str,
}

impl Program<'_> {
    /// The program without settings of its environment, with so many threads.
    fn plain(&self, threads: usize) -> Command {
        let mut command = Command::new(self.path);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("FIREBOX_") {
                command.env_remove(name);
            }
        }
        command.env("RAYON_NUM_THREADS", threads.to_string());
        command
    }

    /// What the device does at most, measured in a process of its own: Linux counts to the peak memory of a program what
    /// the process had that started it, so that this one, which starts the peer, must stay small.
    pub(super) fn ceilings(&self) -> Result<Ceilings, String> {
        let mut command = self.plain(rayon::current_num_threads());
        command.args(["bench", "ceilings", "--device", self.device]);
        told(&mut command, CEILINGS)
    }

    /// How a case is started.
    pub(super) fn command(&self, case: &Case) -> Command {
        let config = &case.config;
        let mut command = self.plain(case.threads_or_all());
        if case.composed {
            command.env("FIREBOX_KERNELS", "composed");
        }
        command.args(["bench", "--json", "--workload", config.workload.name()]);
        command.args(["--precision", &config.precision.to_string()]);
        let numbers = [
            ("--batch", config.batch),
            ("--length", config.length),
            ("--hidden", config.hidden),
            ("--samples", config.samples),
            ("--workers", Some(config.workers).filter(|workers| *workers != 1)),
            ("--steps", Some(config.steps as usize)),
            ("--warmup", Some(config.warmup as usize)),
        ];
        for (name, number) in numbers {
            if let Some(number) = number {
                command.args([name, &number.to_string()]);
            }
        }
        if config.resident != Resident::Auto {
            command.args(["--resident", &config.resident.to_string()]);
        }
        if config.seconds > 0.0 {
            command.args(["--seconds", &config.seconds.to_string()]);
        }
        for (name, there) in [
            ("--eval", config.evaluate),
            ("--watched", config.watched),
            ("--parts", config.parts),
            ("--kernels", config.kernels),
        ] {
            if there {
                command.arg(name);
            }
        }
        command.args(["--device", self.device]);
        command
    }
}

impl Case {
    /// Threads that compute on a processor: on the peer's side as many as on ours.
    pub(super) fn threads_or_all(&self) -> usize {
        self.threads.unwrap_or_else(rayon::current_num_threads)
    }

    /// What a step of it cannot go below with its threads, milliseconds.
    pub(super) fn floor_ms(&self, ceilings: &Ceilings, result: &BenchResult) -> f64 {
        let all = rayon::current_num_threads() as f64;
        let share = self.threads.map_or(1.0, |threads| threads as f64 / all);
        let BenchResult { gflop, parameters, .. } = *result;
        let config = &self.config;
        ceilings.floor_ms(config.precision, gflop, parameters, config.evaluate) / share
    }
}

/// A command as it is typed, with what it finds in its environment.
pub(super) fn text(command: &Command) -> String {
    let set = command.get_envs().filter_map(|(name, value)| {
        Some(format!("{}={}", name.to_string_lossy(), value?.to_string_lossy()))
    });
    let program = command.get_program().to_string_lossy().into_owned();
    let arguments = command.get_args().map(|argument| argument.to_string_lossy().into_owned());
    set.chain([program]).chain(arguments).collect::<Vec<_>>().join(" ")
}

/// What a program that times a case tells within a time, or why it does not.
pub(super) fn time(command: &mut Command, within: Duration) -> Result<BenchResult, String> {
    told(command, within)
}

/// The last line of JSON that a program prints within a time, or why there is none.
fn told<T: DeserializeOwned>(command: &mut Command, within: Duration) -> Result<T, String> {
    let output = output(command, within)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().rfind(|line| line.starts_with('{')).unwrap_or_default();
    if let Ok(result) = serde_json::from_str(line) {
        return Ok(result);
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let mut said: Vec<&str> = errors.lines().filter(|line| !line.trim().is_empty()).collect();
    if line.contains("\"error\"") {
        said = vec![line];
    }
    let kept = said.len().saturating_sub(3);
    Err(format!("{}: {}", output.status, said[kept..].join(" ")))
}

/// What a program says, unless it takes longer: then it is ended.
fn output(command: &mut Command, within: Duration) -> Result<Output, String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let name = command.get_program().display().to_string();
    let begun = Instant::now();
    let mut child =
        command.spawn().map_err(|error| format!("{name} cannot be started: {error}"))?;
    let read = |pipe: Option<Box<dyn Read + Send>>| {
        let (told, said) = mpsc::channel();
        std::thread::spawn(move || {
            let mut text = vec![];
            // What a program that is ended has said until then is as good as nothing, and nobody waits for it.
            let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut text));
            let _ = told.send(text);
        });
        said
    };
    let readers = [
        read(child.stdout.take().map(|pipe| Box::new(pipe) as _)),
        read(child.stderr.take().map(|pipe| Box::new(pipe) as _)),
    ];
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if begun.elapsed() < within => std::thread::sleep(LOOK),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                let seconds = begun.elapsed().as_secs_f64();
                return Err(format!(
                    "ended after {seconds:.0} s, far more than was expected of it"
                ));
            }
            Err(error) => {
                let _ = child.kill();
                return Err(format!("{name}: {error}"));
            }
        }
    };
    // Something that it has started may hold its end of a pipe.
    let [stdout, stderr] = readers.map(|said| said.recv_timeout(LAST_WORDS).unwrap_or_default());
    Ok(Output { status, stdout, stderr })
}

/// Runs every program of a folder, in the order of their names.
///
/// # Errors
///
/// When the folder cannot be read. A program that fails is a result.
pub(super) fn check(folder: &Path, say: &dyn Fn(&str)) -> Result<Vec<Check>, PipelineError> {
    let named = at_named("the folder of checks (--checks)", folder);
    let entries = std::fs::read_dir(folder).map_err(named)?;
    let mut programs: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    programs.retain(|path| path.is_file());
    programs.sort();
    let run = |path: &std::path::PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        say(&format!("check {name}"));
        let start = Instant::now();
        let output = Command::new(path).stdin(Stdio::null()).output();
        let seconds = start.elapsed().as_secs_f64();
        let (passed, said) = match output {
            Ok(output) => {
                let both = [output.stdout, output.stderr].concat();
                let both = String::from_utf8_lossy(&both).into_owned();
                let lines: Vec<&str> = both.lines().collect();
                let end = lines[lines.len().saturating_sub(KEPT)..].join("\n");
                (output.status.success(), end)
            }
            Err(error) => (false, error.to_string()),
        };
        Check { name, passed, seconds, said }
    };
    Ok(programs.iter().map(run).collect())
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::cases::{Choice, SuitePart};
    use super::*;

    fn shell(script: &str) -> Result<BenchResult, String> {
        time(Command::new("sh").args(["-c", script]), Duration::from_secs(60))
    }

    #[test]
    fn a_program_that_takes_too_long_is_ended() {
        let begun = Instant::now();
        let command = &mut Command::new("sleep");
        let error = time(command.arg("60"), Duration::from_millis(200)).unwrap_err();
        assert!(error.contains("far more than was expected"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn the_last_line_of_json_counts_and_a_failure_is_told() {
        let error = shell("echo first >&2; echo '{\"error\": \"no such type\"}'").unwrap_err();
        assert!(error.contains("no such type"), "{error}");
        let error = shell("echo what went wrong >&2; exit 3").unwrap_err();
        assert!(error.contains("exit status: 3") && error.contains("what went wrong"), "{error}");
        let error = time(&mut Command::new("no-such-program"), Duration::MAX).unwrap_err();
        assert!(error.contains("no-such-program cannot be started"), "{error}");
    }

    #[test]
    fn checks_are_run_in_order_and_failures_are_results() {
        let folder = tempfile::tempdir().unwrap();
        for (name, script) in [("b", "echo bad; exit 1"), ("a", "echo good")] {
            let path = folder.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let checks = check(folder.path(), &|_| ()).unwrap();
        let found: Vec<_> =
            checks.iter().map(|check| (check.passed, check.said.as_str())).collect();
        assert_eq!(found, [(true, "good"), (false, "bad")]);
        assert!(check(&folder.path().join("none"), &|_| ()).is_err());
    }

    #[test]
    fn a_case_is_typed_as_it_is_started() {
        let ceilings = Ceilings {
            f32_flops: 5e11,
            bf16_flops: Some(1e12),
            f16_flops: Some(5e11),
            memory_bytes: 6e10,
        };
        let parts = [SuitePart::Table, SuitePart::Scaling];
        let (on_gpu, threads, quick) = (false, 2, false);
        let choice = Choice { ceilings: &ceilings, on_gpu, threads, quick, parts: &parts };
        let program = Program { path: Path::new("firebox"), device: "cpu" };
        let typed: Vec<String> =
            choice.cases().iter().map(|case| text(&program.command(case))).collect();
        let all = rayon::current_num_threads();
        let first =
            format!("FIREBOX_KERNELS=composed RAYON_NUM_THREADS={all} firebox bench --json");
        assert!(typed[0].starts_with(&first), "{typed:?}");
        assert!(typed[0].contains("--samples 59365 --workers 0"), "{}", typed[0]);
        let last = typed.last().unwrap();
        assert!(last.starts_with("RAYON_NUM_THREADS=2 firebox bench"), "{last}");
        assert!(last.ends_with("--device cpu"), "{last}");
    }
}
