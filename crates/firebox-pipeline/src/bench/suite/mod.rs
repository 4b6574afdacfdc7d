//! The benchmark suite: many cases, each a process of its own, in rounds, so that whatever else the
//! machine does falls on all of them; the peer beside each case that it has too.
//!
//! The time is divided by [`plan::plan`]; what it does not suffice for is named in the results.
//!
//! Results are `performance.json`, `performance_summary.md` and `performance.html`. A figure is the
//! median over the rounds of each process's median step, with the range of the rounds.

mod cases;
mod page;
mod peers;
mod plan;
mod process;
mod result;
mod rounds;
mod tables;

use std::path::{Path, PathBuf};
use std::time::Instant;

use time::OffsetDateTime;
use time::macros::format_description;

pub use self::cases::{Axis, SuitePart};
use self::cases::{Case, Choice};
use self::peers::Torch;
pub use self::peers::TorchConfig;
use self::process::{Program, check};
pub use self::result::{Check, Measurement, Peer, Performance, Regression, Undecided, Untimed};
use self::rounds::Taking;
use super::Ceilings;
use crate::device::ChosenDevice;
use crate::error::{PipelineError, at, at_named};

/// What the suite does.
#[derive(Clone, Debug)]
pub struct SuiteConfig {
    /// The program of this build, which is started for each case.
    pub program: PathBuf,
    /// What was typed, for whoever wants the figures again.
    pub command: String,
    /// The device by its name, as the program takes it.
    pub device: String,
    /// Folder of the results.
    pub output: PathBuf,
    /// Fewer and shorter cases.
    pub quick: bool,
    /// Minutes that it may take; they decide how many rounds there are, and beside how many cases the
    /// peer runs.
    pub minutes: f64,
    /// Parts that are wanted.
    pub parts: Vec<SuitePart>,
    /// The peer, if one is wanted.
    pub torch: Option<TorchConfig>,
    /// An earlier `performance.json` that the result is compared with.
    pub baseline: Option<PathBuf>,
    /// Folder of programs that are run first, each of which checks something.
    pub checks: Option<PathBuf>,
}

/// What became of it.
#[derive(Clone, Debug)]
pub struct SuiteOutcome {
    /// All figures.
    pub performance: Performance,
    /// Cases that have become slower than noise explains; `None` without a baseline.
    pub regressions: Option<Vec<Regression>>,
    /// Cases that seem to have become slower, in too few rounds to tell.
    pub undecided: Vec<Undecided>,
    /// Cases that the baseline has and that failed now.
    pub untimed: Vec<Untimed>,
    /// Where the summary is.
    pub summary: PathBuf,
}

/// Runs the suite; `say` is told of what goes on, a line at a time.
///
/// # Errors
///
/// When a setting cannot be, the peer cannot be had, or a result cannot be written. A case that fails
/// is a result.
pub fn suite(
    config: &SuiteConfig,
    device: &ChosenDevice,
    say: &dyn Fn(&str),
) -> Result<SuiteOutcome, PipelineError> {
    if !(config.minutes > 0.0 && config.minutes.is_finite()) {
        let found = config.minutes;
        return Err(PipelineError::Setting(format!(
            "a suite of {found} minutes cannot be run: --minutes is more than 0"
        )));
    }
    let before = config.baseline.as_deref().map(read).transpose()?;
    if let Some(before) = before.as_ref().filter(|before| before.device != device.description) {
        return Err(PipelineError::Setting(format!(
            "the baseline is of another device:\n  {}\n  {}\n  its times say nothing about this one",
            before.device, device.description
        )));
    }
    std::fs::create_dir_all(&config.output).map_err(at(&config.output))?;
    let on_gpu = device.backend != "cpu";
    let torch = config.torch.as_ref();
    let torch = torch.map(|torch| Torch::find(torch, &config.device, say)).transpose()?;
    if torch.is_some() && on_gpu {
        say(tables::STEPS_OF_A_GPU);
    }
    // Making an environment for the peer is no part of the suite.
    let begun = Instant::now();
    let checks = config.checks.as_deref().map_or(Ok(vec![]), |folder| check(folder, say))?;
    say("measuring what the device does at most");
    let program = Program { path: &config.program, device: &config.device };
    let ceilings = program.ceilings().unwrap_or_else(|said| {
        say(&format!("measuring it in this process, as another one could not: {said}"));
        Ceilings::measure(device)
    });
    let threads = rayon::current_num_threads();
    let parts = &config.parts;
    let choice = Choice { ceilings: &ceilings, on_gpu, threads, quick: config.quick, parts };
    let cases = choice.cases();
    if let Some(before) = &before
        && !cases.is_empty()
        && !cases.iter().any(|case| before.times(case.part, &case.name))
    {
        return Err(PipelineError::Setting(
            "the baseline timed none of the cases that are asked for
  name the parts that it has with --only, or another file"
                .to_owned(),
        ));
    }
    let mut performance = Performance {
        created: now(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        device: device.description.clone(),
        command: config.command.clone(),
        seconds: 0.0,
        rounds: 0,
        ceilings,
        peers: vec![],
        checks,
        left_out: vec![],
        whole_round_minutes: None,
        cases: cases.iter().map(|case| empty(case, config)).collect(),
    };
    let scratch = tempfile::tempdir().map_err(at(&std::env::temp_dir()))?;
    let taking = Taking {
        cases: &cases,
        program,
        torch: torch.as_ref(),
        ceilings: &ceilings,
        scratch: scratch.path(),
        begun,
        seconds: 60.0 * config.minutes,
        say,
    };
    taking.all(&mut performance, &|performance| {
        write(&config.output.join("performance.json"), &json(performance)?)
    })?;
    performance.peers = engines(&performance);
    performance.seconds = begun.elapsed().as_secs_f64();
    let regressions = before.as_ref().map(|before| performance.regressions(before));
    let undecided = before.as_ref().map_or(vec![], |before| performance.undecided(before));
    let untimed = before.as_ref().map_or(vec![], |before| performance.untimed(before));
    write(&config.output.join("performance.json"), &json(&performance)?)?;
    let summary = config.output.join("performance_summary.md");
    let compared = before.as_ref().map_or(0, |before| performance.shared(before).count());
    let slower = regressions.as_deref();
    let slower = slower.map(|cases| page::Slower {
        cases,
        undecided: &undecided,
        untimed: &untimed,
        compared,
    });
    let page = page::page(&performance, slower);
    write(&summary, &page.markdown())?;
    page.write(&config.output.join("performance.html"))?;
    Ok(SuiteOutcome { performance, regressions, undecided, untimed, summary })
}

/// A case that no round has timed yet.
fn empty(case: &Case, config: &SuiteConfig) -> Measurement {
    let program = Program { path: Path::new("firebox"), device: &config.device };
    Measurement {
        part: case.part,
        name: case.name.clone(),
        command: process::text(&program.command(case)),
        point: case.point,
        floor_ms: 0.0,
        rounds: vec![],
        error: None,
        peers: vec![],
    }
}

/// The peers that ran, each once.
fn engines(performance: &Performance) -> Vec<String> {
    let peers = performance.cases.iter().flat_map(|case| &case.peers);
    let mut engines: Vec<String> =
        peers.flat_map(|peer| &peer.rounds).map(|round| round.engine.clone()).collect();
    engines.sort();
    engines.dedup();
    engines
}

fn read(path: &Path) -> Result<Performance, PipelineError> {
    let text = std::fs::read(path).map_err(at_named("the baseline (--baseline)", path))?;
    serde_json::from_slice(&text).map_err(|error| {
        PipelineError::Setting(format!(
            "{} is no performance.json of this suite: {error}",
            path.display()
        ))
    })
}

fn json(performance: &Performance) -> Result<String, PipelineError> {
    let text = serde_json::to_string_pretty(performance);
    text.map(|text| text + "\n")
        .map_err(|error| PipelineError::Setting(format!("the result is not JSON: {error}")))
}

/// Under another name first, so that what is there is whole at any time.
fn write(path: &Path, text: &str) -> Result<(), PipelineError> {
    let partial = path.with_added_extension("partial");
    std::fs::write(&partial, text).map_err(at(&partial))?;
    std::fs::rename(&partial, path).map_err(at(path))
}

/// `2026-01-31 09:30 UTC`.
fn now() -> String {
    let format = format_description!("[year]-[month]-[day] [hour]:[minute] UTC");
    OffsetDateTime::now_utc().format(format).unwrap_or_default()
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use burn::tensor::Device;

    use super::*;

    /// What a program in the place of this one says of a device.
    const CEILINGS: Ceilings = Ceilings {
        f32_flops: 1.5e11,
        bf16_flops: Some(2.5e11),
        f16_flops: None,
        memory_bytes: 3.5e10,
    };

    /// A program in the place of this one, that times every case at once, but for the one whose command
    /// has this text.
    fn program(folder: &Path, fails: &str) -> PathBuf {
        let line = serde_json::to_string(&result::tests::round(10.0)).unwrap();
        let ceilings = serde_json::to_string(&CEILINGS).unwrap();
        let script = format!(
            "#!/bin/sh\ncase \"$*\" in 'bench ceilings --device cpu') echo '{ceilings}'; exit;; esac\ncase \"$*\" in *'{fails}'*) echo out of memory >&2; exit 9;; esac\ncat <<'END'\n{line}\nEND\n"
        );
        let path = folder.join("firebox");
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn take(folder: &Path, fails: &str, baseline: Option<PathBuf>) -> SuiteOutcome {
        let device = ChosenDevice {
            device: Device::flex(),
            backend: "cpu".to_owned(),
            description: "a processor".to_owned(),
            reason: String::new(),
        };
        let config = SuiteConfig {
            program: program(folder, fails),
            command: "firebox bench suite".to_owned(),
            device: "cpu".to_owned(),
            output: folder.join(if baseline.is_some() { "now" } else { "before" }),
            quick: true,
            minutes: 1.0,
            parts: vec![SuitePart::Watching],
            torch: None,
            baseline,
            checks: None,
        };
        suite(&config, &device, &|_| ()).unwrap()
    }

    #[test]
    fn what_was_timed_is_kept_before_the_suite_ends() {
        let folder = tempfile::tempdir().unwrap();
        let seen = folder.path().join("seen.json");
        let kept = folder.path().join("before/performance.json");
        // Every case but the first finds what is there so far, and the second one keeps it.
        let (from, to) = (kept.display(), seen.display());
        let text = format!("'*) test -e {to} || cp {from} {to} 2>/dev/null;; *'");
        take(folder.path(), &text, None);
        let timed = |path: &Path| {
            let cases = read(path).unwrap().cases;
            (cases.iter().filter(|case| !case.rounds.is_empty()).count(), cases.len())
        };
        let ((first, all), (end, _)) = (timed(&seen), timed(&kept));
        assert!(first == 1 && all > 1 && end == all, "{first} and {end} of {all}");
        assert!(!folder.path().join("before/performance.json.partial").exists());
    }

    #[test]
    fn ceilings_are_those_of_a_process_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let SuiteOutcome { performance, .. } = take(folder.path(), "no such flag", None);
        assert_eq!(performance.ceilings, CEILINGS);
        // One that cannot tell them, as an earlier build.
        let program = folder.path().join("old");
        std::fs::write(&program, "#!/bin/sh\necho no such command >&2; exit 2\n").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let said = Program { path: &program, device: "cpu" }.ceilings().unwrap_err();
        assert!(said.contains("no such command"), "{said}");
    }

    #[test]
    fn what_a_case_leaves_among_temporary_files_goes_with_the_suite() {
        let folder = tempfile::tempdir().unwrap();
        let seen = folder.path().join("seen");
        let leaves = format!("echo \"$TMPDIR\" > {}; : > \"$TMPDIR/left\"", seen.display());
        let outcome = take(folder.path(), &format!("'*) {leaves};; *'"), None);
        assert!(outcome.performance.cases.iter().all(|case| !case.rounds.is_empty()));
        let place = std::fs::read_to_string(&seen).unwrap();
        let place = Path::new(place.trim_end());
        assert!(place != std::env::temp_dir() && place.is_absolute(), "{}", place.display());
        assert!(!place.exists(), "{}", place.display());
    }

    #[test]
    fn a_case_that_fails_and_that_the_baseline_has_is_told_on_the_page() {
        let folder = tempfile::tempdir().unwrap();
        let before = take(folder.path(), "no such flag", None);
        assert!(before.untimed.is_empty() && before.regressions.is_none());
        let baseline = folder.path().join("before/performance.json");
        let now = take(folder.path(), "--watched", Some(baseline));
        assert_eq!(now.regressions, Some(vec![]));
        let [untimed] = now.untimed.as_slice() else { panic!("{:?}", now.untimed) };
        assert!(untimed.reason.contains("out of memory"), "{untimed:?}");
        let summary = std::fs::read_to_string(now.summary).unwrap();
        let row = format!("| {} | 10.0 | not timed |", untimed.name);
        assert!(summary.contains(&row), "{row} in {summary}");
    }
}
