//! Several successive halvings at once, from eager to patient.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::direction::Direction;
use crate::pruner::halving::{SuccessiveHalvingPruner, rung_attributes};
use crate::pruner::{Pruner, PrunerError, distinct, first_completed};
use crate::trial::Trial;

/// Hyperband: Optuna's `HyperbandPruner`. Source: Li et al., "Hyperband: a novel bandit-based approach to
/// hyperparameter optimization", 2018.
///
/// Each trial belongs to one of some brackets by the study's name and its number. Trials of a bracket
/// compete with each other alone; bracket `b` is a [`SuccessiveHalvingPruner`] that leaves out `b`
/// rungs at the start. A retry stays in the bracket of the trial that it goes on with, whose rungs it has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HyperbandPruner {
    /// The study's name, which decides the brackets; the pipeline sets it.
    #[serde(skip)]
    pub study: String,
    /// The step of the first rung of the most eager bracket, at least 1: of reports from step 0 on, so many come before
    /// the one that completes it.
    pub min_resource: u64,
    /// Steps of a whole trial. Left out: those of the trial that completed first, before which nothing
    /// is pruned.
    pub max_resource: Option<u64>,
    /// How many times more steps each rung takes, and one in how many trials it keeps; at least 2.
    pub reduction_factor: u64,
    /// Trials that must complete a rung before any is promoted. Needs `max_resource`.
    pub bootstrap_count: usize,
    /// Whether a trial has completed only the rungs that its attributes name; a [`PatientPruner`](crate::PatientPruner)
    /// sets it.
    #[serde(skip)]
    pub by_attributes: bool,
}

impl Default for HyperbandPruner {
    /// Optuna's defaults.
    fn default() -> Self {
        Self {
            study: String::new(),
            min_resource: 1,
            max_resource: None,
            reduction_factor: 3,
            bootstrap_count: 0,
            by_attributes: false,
        }
    }
}

impl HyperbandPruner {
    /// Whether the settings can be.
    ///
    /// # Errors
    ///
    /// For no steps, more least than greatest steps, a factor below 2, and bootstrapping without
    /// `max_resource`.
    pub fn validate(&self) -> Result<(), PrunerError> {
        if self.min_resource == 0 {
            return Err(PrunerError::Zero("min_resource"));
        }
        if let Some(most) = self.max_resource.filter(|most| *most < self.min_resource) {
            return Err(PrunerError::Resources { least: self.min_resource, most });
        }
        if self.reduction_factor < 2 {
            return Err(PrunerError::ReductionFactor(self.reduction_factor));
        }
        if self.bootstrap_count > 0 && self.max_resource.is_none() {
            return Err(PrunerError::Bootstrap("max_resource"));
        }
        Ok(())
    }

    /// The shares of the brackets, and since when they have been known, if not from the start. `None` as
    /// long as the steps of a whole trial are unknown.
    fn budgets(&self, trials: &[Trial]) -> Option<(Vec<u64>, Option<f64>)> {
        let first = || first_completed(trials.iter()).map(|(ended, last)| (last + 1, Some(ended)));
        let (most, since) = self.max_resource.map(|most| (most, None)).or_else(first)?;
        let factor = self.reduction_factor.max(2) as f64;
        let ratio = most as f64 / self.min_resource.max(1) as f64;
        let brackets = (ratio.ln() / factor.ln()).floor().max(0.0) as i32 + 1;
        let budget = |bracket: i32| {
            let rungs = brackets - 1 - bracket;
            (f64::from(brackets) * factor.powi(rungs) / f64::from(rungs + 1)).ceil() as u64
        };
        Some(((0..brackets).map(budget).collect(), since))
    }

    /// The bracket of trial `number`. `None` as long as the steps of a whole trial are unknown.
    pub fn bracket(&self, trials: &[Trial], number: u64) -> Option<u32> {
        let place = trials.binary_search_by_key(&number, |trial| trial.number);
        let origin = place.map_or(number, |place| trials[place].origin());
        self.bracket_of(&self.budgets(trials)?.0, origin)
    }

    /// The bracket of the trials that began as this one.
    fn bracket_of(&self, budgets: &[u64], origin: u64) -> Option<u32> {
        let hash = crc32(format!("{}_{origin}", self.study).as_bytes());
        let mut place = u64::from(hash).checked_rem(budgets.iter().sum())?;
        for (bracket, budget) in (0..).zip(budgets) {
            if place < *budget {
                return Some(bracket);
            }
            place -= budget;
        }
        None
    }

    fn decide(&self, trials: &[Trial], trial: &Trial, direction: Direction) -> (bool, Vec<u32>) {
        let Some((budgets, since)) = self.budgets(trials) else { return (false, Vec::new()) };
        let Some(bracket) = self.bracket_of(&budgets, trial.origin()) else {
            return (false, Vec::new());
        };
        let halving = SuccessiveHalvingPruner {
            min_resource: Some(self.min_resource.max(1)),
            reduction_factor: self.reduction_factor,
            min_early_stopping_rate: bracket,
            bootstrap_count: self.bootstrap_count,
            by_attributes: self.by_attributes,
        };
        let mut rivals = distinct(trials, trial);
        rivals.retain(|other| self.bracket_of(&budgets, other.origin()) == Some(bracket));
        halving.decide(rivals.into_iter(), trial, direction, since)
    }
}

impl Pruner for HyperbandPruner {
    fn prune(&self, trials: &[Trial], trial: &Trial, direction: Direction) -> bool {
        self.decide(trials, trial, direction).0
    }

    fn attributes(
        &self,
        trials: &[Trial],
        trial: &Trial,
        direction: Direction,
    ) -> BTreeMap<String, Json> {
        rung_attributes(trial, &self.decide(trials, trial, direction).1)
    }

    fn rely_on_attributes(&mut self) {
        self.by_attributes = true;
    }

    fn competes(&self, trials: &[Trial], a: u64, b: u64) -> bool {
        self.bracket(trials, a) == self.bracket(trials, b)
    }
}

/// The checksum of Ethernet, gzip and Python's `binascii.crc32`.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_the_catalogue() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b""), 0);
    }

    #[test]
    fn brackets_share_the_trials_by_their_budgets() {
        let pruner =
            HyperbandPruner { max_resource: Some(81), study: "s".into(), ..Default::default() };
        assert_eq!(pruner.budgets(&[]), Some((vec![81, 34, 15, 8, 5], None)));
        let mut counts = [0_u32; 5];
        (0..14_300).for_each(|n| counts[pruner.bracket(&[], n).unwrap() as usize] += 1);
        for (count, budget) in counts.into_iter().zip([81, 34, 15, 8, 5]) {
            assert!(count.abs_diff(budget * 100) < budget * 20, "{counts:?}");
        }
        assert!(pruner.competes(&[], 4, 4) && !(0..9).all(|n| pruner.competes(&[], 0, n)));
    }
}
