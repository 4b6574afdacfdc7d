//! Gives up all but the best trials each time the spent steps have multiplied.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use crate::direction::Direction;
use crate::pruner::{Pruner, PrunerError, distinct, first_completed, last_report};
use crate::storage::json::as_number;
use crate::trial::{Trial, TrialState};

/// Asynchronous successive halving: Optuna's `SuccessiveHalvingPruner`. Source: Li et al., "A system for
/// massively parallel hyperparameter tuning", 2020.
///
/// A trial completes rung `k` at its first report from step `min_resource ·
/// reduction_factor^(min_early_stopping_rate + k)` on, and goes on only if its value there is among the
/// best 1 / `reduction_factor` of the trials that have completed the rung so far.
///
/// Which rungs a trial has completed, and with which values, is written in its attributes, as Optuna
/// does it. Where they are missing it is computed from the reports, which is the same but for a pruned
/// trial that reached several rungs at its last step: it counts in the first of those. A trial that was
/// tried again counts once, as its last try, and one that repeats another does not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SuccessiveHalvingPruner {
    /// The step of the first rung, at least 1: of reports from step 0 on, so many come before the one that completes
    /// it. Left out: a hundredth of the steps of the trial that completed first, before which nothing is pruned.
    pub min_resource: Option<u64>,
    /// How many times more steps each rung takes, and one in how many trials it keeps; at least 2.
    pub reduction_factor: u64,
    /// Rungs left out at the start.
    pub min_early_stopping_rate: u32,
    /// Trials that must complete a rung before any is promoted. Needs `min_resource`.
    pub bootstrap_count: usize,
    /// Whether a trial has completed only the rungs that its attributes name; a [`PatientPruner`](crate::PatientPruner)
    /// sets it.
    #[serde(skip)]
    pub by_attributes: bool,
}

impl Default for SuccessiveHalvingPruner {
    /// Optuna's defaults.
    fn default() -> Self {
        Self {
            min_resource: None,
            reduction_factor: 4,
            min_early_stopping_rate: 0,
            bootstrap_count: 0,
            by_attributes: false,
        }
    }
}

impl SuccessiveHalvingPruner {
    /// Whether the settings can be.
    ///
    /// # Errors
    ///
    /// For no steps, a factor below 2, and bootstrapping without `min_resource`.
    pub fn validate(&self) -> Result<(), PrunerError> {
        if self.min_resource == Some(0) {
            return Err(PrunerError::Zero("min_resource"));
        }
        if self.reduction_factor < 2 {
            return Err(PrunerError::ReductionFactor(self.reduction_factor));
        }
        if self.bootstrap_count > 0 && self.min_resource.is_none() {
            return Err(PrunerError::Bootstrap("min_resource"));
        }
        Ok(())
    }

    /// The decision, and the rungs that the trial completes with its last report. `since` is the time
    /// from which on the steps of rungs have been known, if not from the start.
    pub(crate) fn decide<'a>(
        &self,
        trials: impl Iterator<Item = &'a Trial> + Clone,
        trial: &Trial,
        direction: Direction,
        since: Option<f64>,
    ) -> (bool, Vec<u32>) {
        let mut completed = Vec::new();
        let Some((step, value)) = last_report(trial) else { return (false, completed) };
        let value = finite(value);
        let estimate = || {
            first_completed(trials.clone()).map(|(ended, last)| ((last / 100).max(1), Some(ended)))
        };
        let given = self.min_resource.map(|resource| (resource, since));
        let Some((resource, since)) = given.or_else(estimate) else { return (false, completed) };
        let rungs = Rungs { halving: self, resource, since };
        let earlier = trial.intermediate.range(..step).next_back().map(|(step, _)| *step);
        let mut rung = 0;
        while earlier.is_some_and(|earlier| rungs.were_completed(trial, rung, earlier)) {
            rung += 1;
        }
        while step >= rungs.step_of(rung) {
            if value.is_nan() {
                return (true, completed);
            }
            completed.push(rung);
            let others = trials.clone().filter(|other| other.number != trial.number);
            let mut losses: Vec<_> = others
                .filter_map(|other| rungs.value_at(other, rung))
                .chain([value])
                .map(|value| direction.loss(value))
                .collect();
            if losses.len() <= self.bootstrap_count {
                return (true, completed);
            }
            losses.sort_unstable_by(f64::total_cmp);
            let promoted = (losses.len() / self.reduction_factor.max(2) as usize).max(1);
            if direction.loss(value) > losses[promoted - 1] {
                return (true, completed);
            }
            rung += 1;
        }
        (false, completed)
    }
}

/// The rungs of a study.
struct Rungs<'a> {
    halving: &'a SuccessiveHalvingPruner,
    /// Steps of the first rung.
    resource: u64,
    /// Since when they have been known, if not from the start.
    since: Option<f64>,
}

impl Rungs<'_> {
    /// The step from which a report completes a rung.
    fn step_of(&self, rung: u32) -> u64 {
        let exponent = self.halving.min_early_stopping_rate.saturating_add(rung);
        let factor = self.halving.reduction_factor.max(2).saturating_pow(exponent);
        self.resource.saturating_mul(factor)
    }

    /// Whether the rungs were known at all reports of a trial and the pruner was asked after each, so that what it
    /// completed can be computed.
    fn were_known(&self, trial: &Trial) -> bool {
        let began_later = |since: f64| trial.started.is_some_and(|started| started >= since);
        !self.halving.by_attributes && self.since.is_none_or(began_later)
    }

    fn were_completed(&self, trial: &Trial, rung: u32, step: u64) -> bool {
        let written = || trial.system_attributes.contains_key(&attribute(rung));
        step >= self.step_of(rung) && (self.were_known(trial) || written())
    }

    /// The value with which a trial completed a rung, if it did.
    fn value_at(&self, trial: &Trial, rung: u32) -> Option<f64> {
        if !self.were_known(trial) || trial.system_attributes.contains_key(&attribute(0)) {
            return as_number(trial.system_attributes.get(&attribute(rung))?).map(finite);
        }
        let (step, value) = trial.intermediate.range(self.step_of(rung)..).next()?;
        let last = trial.intermediate.keys().next_back();
        let earlier = trial.intermediate.range(..step).next_back();
        let jumped =
            rung > 0 && earlier.is_none_or(|(earlier, _)| *earlier < self.step_of(rung - 1));
        let unknown = jumped && trial.state == TrialState::Pruned && last == Some(step);
        (!value.is_nan() && !unknown).then(|| finite(*value))
    }
}

/// Optuna's name of the attribute of a completed rung.
fn attribute(rung: u32) -> String {
    format!("completed_rung_{rung}")
}

/// The value within what JSON can hold: infinities become the greatest floats.
fn finite(value: f64) -> f64 {
    value.clamp(-f64::MAX, f64::MAX)
}

pub(crate) fn rung_attributes(trial: &Trial, completed: &[u32]) -> BTreeMap<String, Json> {
    let value = last_report(trial).map(|(_, value)| json!(finite(value)));
    completed.iter().filter_map(|rung| Some((attribute(*rung), value.clone()?))).collect()
}

impl Pruner for SuccessiveHalvingPruner {
    fn prune(&self, trials: &[Trial], trial: &Trial, direction: Direction) -> bool {
        self.decide(distinct(trials, trial).into_iter(), trial, direction, None).0
    }

    fn attributes(
        &self,
        trials: &[Trial],
        trial: &Trial,
        direction: Direction,
    ) -> BTreeMap<String, Json> {
        let rivals = distinct(trials, trial).into_iter();
        rung_attributes(trial, &self.decide(rivals, trial, direction, None).1)
    }

    fn rely_on_attributes(&mut self) {
        self.by_attributes = true;
    }
}
