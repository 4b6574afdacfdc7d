//! Gives up trials whose value leaves a range.

use serde::{Deserialize, Serialize};

use crate::direction::Direction;
use crate::pruner::{Pruner, PrunerError, is_due, last_report};
use crate::trial::Trial;

/// Gives up a trial whose last value is below `lower`, above `upper` or not a number: Optuna's
/// `ThresholdPruner`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ThresholdPruner {
    /// Least value that is kept, if there is a limit.
    pub lower: Option<f64>,
    /// Greatest value that is kept, if there is a limit.
    pub upper: Option<f64>,
    /// Steps of each trial before the first decision.
    pub warmup_steps: u64,
    /// Steps from one decision to the next, counted from the end of the warm-up; at least 1.
    pub interval_steps: u64,
}

impl Default for ThresholdPruner {
    /// No limit but that values are numbers; Optuna's schedule.
    fn default() -> Self {
        Self { lower: None, upper: None, warmup_steps: 0, interval_steps: 1 }
    }
}

impl ThresholdPruner {
    /// Whether the settings can be.
    ///
    /// # Errors
    ///
    /// For no limit at all, limits the wrong way round, and no interval.
    pub fn validate(&self) -> Result<(), PrunerError> {
        let (lower, upper) = (self.lower, self.upper);
        if lower.is_none() && upper.is_none() {
            return Err(PrunerError::NoThreshold);
        }
        let (lower, upper) = (lower.unwrap_or(f64::NEG_INFINITY), upper.unwrap_or(f64::INFINITY));
        if lower.is_nan() || upper.is_nan() || lower > upper {
            return Err(PrunerError::Thresholds { lower, upper });
        }
        if self.interval_steps == 0 {
            return Err(PrunerError::Zero("interval_steps"));
        }
        Ok(())
    }
}

impl Pruner for ThresholdPruner {
    fn prune(&self, _trials: &[Trial], trial: &Trial, _direction: Direction) -> bool {
        let Some((step, value)) = last_report(trial) else { return false };
        is_due(trial, step, self.warmup_steps, self.interval_steps)
            && (value.is_nan()
                || self.lower.is_some_and(|lower| value < lower)
                || self.upper.is_some_and(|upper| value > upper))
    }
}
