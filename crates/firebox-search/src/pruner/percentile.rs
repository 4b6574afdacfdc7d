//! Gives up trials that are worse than a share of the others at the same step.

use serde::{Deserialize, Serialize};

use crate::direction::Direction;
use crate::pruner::{Pruner, PrunerError, is_due, last_report};
use crate::trial::{Trial, TrialState};

/// Keeps a trial as long as its best value so far is within the best `percentile` of what complete
/// trials reported at this step: Optuna's `PercentilePruner`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PercentilePruner {
    /// Share of the trials that is good enough, in percent.
    pub percentile: f64,
    /// When and with how many trials it decides.
    #[serde(default)]
    pub schedule: Schedule,
}

/// Keeps a trial as long as its best value so far is not worse than the median of what complete trials
/// reported at this step: Optuna's `MedianPruner`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MedianPruner {
    /// When and with how many trials it decides.
    pub schedule: Schedule,
}

/// When a [`PercentilePruner`] decides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Schedule {
    /// Complete trials before the first decision.
    pub startup_trials: usize,
    /// Steps of each trial before the first decision.
    pub warmup_steps: u64,
    /// Steps from one decision to the next, counted from the end of the warm-up; at least 1.
    pub interval_steps: u64,
    /// Complete trials that must have reported at the step; at least 1.
    pub min_trials: usize,
}

impl Default for Schedule {
    /// Optuna's defaults.
    fn default() -> Self {
        Self { startup_trials: 5, warmup_steps: 0, interval_steps: 1, min_trials: 1 }
    }
}

impl PercentilePruner {
    /// Whether the settings can be.
    ///
    /// # Errors
    ///
    /// For a percentile outside of 0 to 100, no interval and no trials to compare with.
    pub fn validate(&self) -> Result<(), PrunerError> {
        if !(0.0..=100.0).contains(&self.percentile) {
            return Err(PrunerError::Percentile(self.percentile));
        }
        self.schedule.validate()
    }
}

impl MedianPruner {
    /// Whether the settings can be.
    ///
    /// # Errors
    ///
    /// For no interval and no trials to compare with.
    pub fn validate(&self) -> Result<(), PrunerError> {
        self.schedule.validate()
    }
}

impl Schedule {
    fn validate(&self) -> Result<(), PrunerError> {
        if self.interval_steps == 0 {
            return Err(PrunerError::Zero("interval_steps"));
        }
        if self.min_trials == 0 {
            return Err(PrunerError::Zero("min_trials"));
        }
        Ok(())
    }

    fn prune(
        &self,
        percentile: f64,
        trials: &[Trial],
        trial: &Trial,
        direction: Direction,
    ) -> bool {
        // Tries that another goes on with have failed, so that only repeated trials would count twice.
        let counts =
            |trial: &&Trial| trial.state == TrialState::Complete && trial.repeats().is_none();
        let complete = || trials.iter().filter(counts);
        let count = complete().count();
        let Some((step, _)) = last_report(trial) else { return false };
        if count == 0
            || count < self.startup_trials
            || !is_due(trial, step, self.warmup_steps, self.interval_steps)
        {
            return false;
        }
        let own = trial.intermediate.values().map(|value| direction.loss(*value));
        let Some(best) = own.filter(|loss| !loss.is_nan()).reduce(f64::min) else {
            return true;
        };
        let others: Vec<_> =
            complete().filter_map(|t| t.intermediate.get(&step).copied()).collect();
        if others.len() < self.min_trials {
            return false;
        }
        let share = match direction {
            Direction::Minimize => percentile,
            Direction::Maximize => 100.0 - percentile,
        };
        best > direction.loss(percentile_of(others, share))
    }
}

impl Pruner for PercentilePruner {
    fn prune(&self, trials: &[Trial], trial: &Trial, direction: Direction) -> bool {
        self.schedule.prune(self.percentile, trials, trial, direction)
    }
}

impl Pruner for MedianPruner {
    fn prune(&self, trials: &[Trial], trial: &Trial, direction: Direction) -> bool {
        self.schedule.prune(50.0, trials, trial, direction)
    }
}

/// The percentile of the values that are numbers, interpolated linearly: `numpy.nanpercentile`, of
/// which the roundings decide between equal trials. NaN if there is none.
pub(crate) fn percentile_of(mut values: Vec<f64>, percentile: f64) -> f64 {
    values.retain(|value| !value.is_nan());
    values.sort_unstable_by(f64::total_cmp);
    let Some(last) = values.len().checked_sub(1) else { return f64::NAN };
    let place = percentile / 100.0 * last as f64;
    let (before, part) = (place.floor() as usize, place.fract());
    let (low, high) = (values[before.min(last)], values[(before + 1).min(last)]);
    let difference = high - low;
    if part >= 0.5 { high - difference * (1.0 - part) } else { low + difference * part }
}
