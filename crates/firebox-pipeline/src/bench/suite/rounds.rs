//! Takes the rounds: each case once, and the peer right after it, as planned for the time that is left.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::cases::Case;
use super::peers::Torch;
use super::plan::{by_importance, plan, whole_round};
use super::process::{self, Program};
use super::result::{Measurement, Peer, Performance};
use crate::bench::{BenchResult, Ceilings};
use crate::error::PipelineError;

/// Share of its time that the suite may take beyond it, before cases are left out altogether.
const BEYOND: f64 = 0.1;

/// A program that takes this many times what was expected of it, and longer than [`PATIENCE`], is ended.
const SLOW: f64 = 8.0;

/// Seconds that every program may take.
const PATIENCE: f64 = 240.0;

/// The longest that a program may take of which so many seconds were expected.
fn within(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(PATIENCE.max(SLOW * seconds)).unwrap_or(Duration::MAX)
}

/// How long things take, as a share of what was expected.
fn pace(expected: f64, taken: f64) -> f64 {
    if expected > 0.0 { (taken / expected).clamp(0.3, 5.0) } else { 1.0 }
}

/// The rounds in hand.
pub(super) struct Taking<'a> {
    pub(super) cases: &'a [Case],
    pub(super) program: Program<'a>,
    pub(super) torch: Option<&'a Torch>,
    pub(super) ceilings: &'a Ceilings,
    /// What programs take for the system's folder of temporary files. What one leaves there that is ended goes with it.
    pub(super) scratch: &'a Path,
    pub(super) begun: Instant,
    /// Seconds that all of it may take.
    pub(super) seconds: f64,
    pub(super) say: &'a dyn Fn(&str),
}

impl Taking<'_> {
    /// Takes rounds while there is time, and keeps what is there after each case.
    pub(super) fn all(
        &self,
        performance: &mut Performance,
        keep: &dyn Fn(&Performance) -> Result<(), PipelineError>,
    ) -> Result<(), PipelineError> {
        if self.cases.is_empty() {
            return Ok(());
        }
        let (mut expected, mut taken) = (0.0, 0.0);
        loop {
            let (number, scale) = (performance.rounds + 1, pace(expected, taken));
            let plan = plan(self.cases, self.forms(), self.left() / scale, performance.rounds);
            if plan.rounds == 0 {
                break;
            }
            let beside = plan.peers.iter().filter(|rounds| **rounds > 0).count();
            (self.say)(&format!(
                "round {number}: {} cases{}; about {:.1} minutes for {} in all",
                self.cases.len(),
                if self.torch.is_some() {
                    format!(", PyTorch beside {beside}")
                } else {
                    String::new()
                },
                (plan.seconds * scale + self.elapsed()) / 60.0,
                match performance.rounds + plan.rounds {
                    1 => "1 round".to_owned(),
                    rounds => format!("{rounds} rounds"),
                }
            ));
            let start = self.elapsed();
            let limit = self.seconds * (1.0 + BEYOND);
            for (place, case) in self.cases.iter().enumerate() {
                // No peer takes the time of a case that is still to come.
                let rest: f64 = self.cases[place + 1..].iter().map(|case| case.seconds).sum();
                let slower = pace(expected, taken + self.elapsed() - start);
                let until = |seconds: f64| self.elapsed() + slower * seconds;
                let beside =
                    plan.peers[place] > 0 && until(self.expected(case, true) + rest) <= limit;
                // Every case is run once, whatever was expected of it.
                let first = number == 1 && self.elapsed() < limit;
                if first || until(case.seconds) <= limit {
                    self.time(case, &mut performance.cases[place], beside, number);
                    expected += self.expected(case, beside);
                    // What is there is worth keeping, whatever ends the suite.
                    performance.seconds = self.elapsed();
                    keep(performance)?;
                }
            }
            taken += self.elapsed() - start;
            performance.rounds = number;
            performance.seconds = self.elapsed();
            keep(performance)?;
        }
        self.remaining(performance, pace(expected, taken));
        performance.left_out = self.left_out(performance);
        if !performance.left_out.is_empty() {
            let whole = whole_round(self.cases, self.forms()) * pace(expected, taken) / 60.0;
            performance.whole_round_minutes = Some(whole);
            (self.say)(&format!(
                "left out for want of time: {}; a round of everything takes about {whole:.0} minutes",
                performance.left_out.join("; ")
            ));
        }
        Ok(())
    }

    /// Puts the peer beside cases that it was beside in no round, while there is time.
    fn remaining(&self, performance: &mut Performance, scale: f64) {
        for place in by_importance(self.cases) {
            let (case, measurement) = (&self.cases[place], &mut performance.cases[place]);
            let fits = self.expected(case, true) * scale < self.left();
            if self.torch.is_some() && measurement.peers.is_empty() && fits {
                self.time(case, measurement, true, performance.rounds + 1);
            }
        }
    }

    /// What there was no time for.
    fn left_out(&self, performance: &Performance) -> Vec<String> {
        let of = |(case, measurement): (&Case, &Measurement)| {
            if measurement.error.is_some() {
                return None;
            }
            let name = &case.name;
            let peer = self.torch.is_some() && case.importance.is_some();
            match measurement.rounds.is_empty() {
                true => Some(name.clone()),
                false if peer && measurement.peers.is_empty() => {
                    Some(format!("PyTorch beside {name}"))
                }
                false => None,
            }
        };
        self.cases.iter().zip(&performance.cases).filter_map(of).collect()
    }

    fn forms(&self) -> usize {
        self.torch.map_or(0, |torch| torch.forms().len())
    }

    /// Seconds since the suite began.
    fn elapsed(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// Seconds that are left.
    fn left(&self) -> f64 {
        self.seconds - self.elapsed()
    }

    /// Seconds that a case was expected to take.
    fn expected(&self, case: &Case, beside: bool) -> f64 {
        case.seconds + if beside { self.forms() as f64 * case.peer_seconds } else { 0.0 }
    }

    /// What a program tells of which so many seconds are expected.
    fn timed(&self, mut command: Command, seconds: f64) -> Result<BenchResult, String> {
        process::time(command.env("TMPDIR", self.scratch), within(seconds))
    }

    /// Runs a case, and the peer right after it.
    fn time(&self, case: &Case, measurement: &mut Measurement, beside: bool, round: u64) {
        // What has failed would fail again.
        if measurement.error.is_some() {
            return;
        }
        (self.say)(&format!("round {round}: {}", case.name));
        let torch = self.torch.filter(|_| beside);
        match self.timed(self.program.command(case), case.seconds) {
            Ok(result) => {
                measurement.floor_ms = case.floor_ms(self.ceilings, &result);
                // Rounds in which the peer ran too come first, so that each has its own beside it.
                let place = match torch {
                    Some(_) => measurement.peers.iter().map(|peer| peer.rounds.len()).max(),
                    None => Some(measurement.rounds.len()),
                };
                measurement.rounds.insert(place.unwrap_or(0), result);
            }
            Err(error) => {
                measurement.error = Some(error);
                return;
            }
        }
        let Some(torch) = torch else { return };
        for (form, flags) in torch.forms() {
            let place = measurement.peers.iter().position(|peer| peer.form == *form);
            let place = place.unwrap_or_else(|| {
                let command = torch.typed(case, flags, self.program.device);
                let form = (*form).to_owned();
                measurement.peers.push(Peer { form, command, rounds: vec![], error: None });
                measurement.peers.len() - 1
            });
            let peer = &mut measurement.peers[place];
            if peer.error.is_none() {
                let command = torch.command(case, flags, self.program.device);
                match self.timed(command, case.peer_seconds) {
                    Ok(result) => peer.rounds.push(result),
                    Err(error) => peer.error = Some(error),
                }
            }
        }
    }
}
