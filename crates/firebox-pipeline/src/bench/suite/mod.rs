//! The benchmark suite: many cases, each a process of its own, in rounds, so that whatever else the
//! machine does falls on all of them; the peer beside each case that it has too.
//!
//! Results are `performance.json`, `performance_summary.md` and `performance.html`. A figure is the
//! median over the rounds of each process's median step, with the range of the rounds.

mod cases;
mod page;
mod peers;
mod process;
mod result;
mod tables;

use std::path::{Path, PathBuf};
use std::time::Instant;

use time::OffsetDateTime;
use time::macros::format_description;

pub use self::cases::{Axis, SuitePart};
use self::cases::{Case, Choice, rounds};
use self::peers::Torch;
pub use self::peers::TorchConfig;
use self::process::{Program, check};
pub use self::result::{Check, Measurement, Peer, Performance, Regression};
use super::Ceilings;
use crate::device::ChosenDevice;
use crate::error::{PipelineError, at};

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
    /// Minutes that it may take; they decide how many rounds there are.
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
        return Err(PipelineError::Setting(format!("a suite of {found} minutes cannot be run")));
    }
    let begun = Instant::now();
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
    let torch = torch.map(|torch| Torch::find(torch, on_gpu, say)).transpose()?;
    let checks = config.checks.as_deref().map_or(Ok(vec![]), |folder| check(folder, say))?;
    say("measuring what the device does at most");
    let ceilings = Ceilings::measure(device);
    let threads = rayon::current_num_threads();
    let parts = &config.parts;
    let choice = Choice { ceilings: &ceilings, on_gpu, threads, quick: config.quick, parts };
    let cases = choice.cases();
    let forms = torch.as_ref().map_or(0, |torch| torch.forms().len()) as f64;
    let left = 60.0 * config.minutes - begun.elapsed().as_secs_f64();
    let (wanted, seconds) = rounds(&cases, forms, left);
    if !cases.is_empty() {
        say(&format!(
            "{} cases, about {:.0} s a round; {wanted} rounds, about {:.1} minutes in all",
            cases.len(),
            seconds,
            (wanted as f64 * seconds + begun.elapsed().as_secs_f64()) / 60.0
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
        cases: cases.iter().map(|case| empty(case, config)).collect(),
    };
    let program = Program { path: &config.program, device: &config.device };
    while performance.rounds < wanted {
        let start = Instant::now();
        let number = performance.rounds + 1;
        take_round(&cases, &program, torch.as_ref(), &mut performance, &|name| {
            say(&format!("round {number} of {wanted}: {name}"));
        });
        performance.rounds = number;
        performance.seconds = begun.elapsed().as_secs_f64();
        // What is there after each round is worth keeping.
        write(&config.output.join("performance.json"), &json(&performance)?)?;
        let next = performance.seconds + start.elapsed().as_secs_f64();
        if number < wanted && next > 60.0 * config.minutes {
            say("another round would take longer than was asked for");
            break;
        }
    }
    performance.peers = engines(&performance);
    performance.seconds = begun.elapsed().as_secs_f64();
    let regressions = before.as_ref().map(|before| performance.regressions(before));
    write(&config.output.join("performance.json"), &json(&performance)?)?;
    let summary = config.output.join("performance_summary.md");
    let page = page::page(&performance, regressions.as_deref());
    write(&summary, &page.markdown())?;
    page.write(&config.output.join("performance.html"))?;
    Ok(SuiteOutcome { performance, regressions, summary })
}

/// Runs each case once, the peer right after it.
fn take_round(
    cases: &[Case],
    program: &Program<'_>,
    torch: Option<&Torch>,
    performance: &mut Performance,
    say: &dyn Fn(&str),
) {
    for (case, measurement) in cases.iter().zip(&mut performance.cases) {
        // What has failed would fail again.
        if measurement.error.is_some() {
            continue;
        }
        say(&case.name);
        match process::time(&mut program.command(case)) {
            Ok(result) => {
                measurement.floor_ms = case.floor_ms(&performance.ceilings, &result);
                measurement.rounds.push(result);
            }
            Err(error) => {
                measurement.error = Some(error);
                continue;
            }
        }
        let Some(torch) = torch.filter(|_| case.peer) else { continue };
        for (form, flags) in torch.forms() {
            let place = measurement.peers.iter().position(|peer| peer.form == *form);
            let place = place.unwrap_or_else(|| {
                let form = (*form).to_owned();
                measurement.peers.push(Peer { form, rounds: vec![], error: None });
                measurement.peers.len() - 1
            });
            let peer = &mut measurement.peers[place];
            if peer.error.is_none() {
                match process::time(&mut torch.command(case, flags, program.device)) {
                    Ok(result) => peer.rounds.push(result),
                    Err(error) => peer.error = Some(error),
                }
            }
        }
    }
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
    let text = std::fs::read(path).map_err(at(path))?;
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

fn write(path: &Path, text: &str) -> Result<(), PipelineError> {
    std::fs::write(path, text).map_err(at(path))
}

/// `2026-01-31 09:30 UTC`.
fn now() -> String {
    let format = format_description!("[year]-[month]-[day] [hour]:[minute] UTC");
    OffsetDateTime::now_utc().format(format).unwrap_or_default()
}
