//! Gives up no trial that still gets better.

use std::collections::BTreeMap;

use crate::direction::Direction;
use crate::pruner::{Pruner, PrunerError};
use crate::trial::Trial;

/// Asks another pruner only once the last `patience` + 1 values are all worse than the best one before
/// them: Optuna's `PatientPruner`.
pub struct PatientPruner {
    wrapped: Option<Box<dyn Pruner>>,
    patience: usize,
    min_delta: f64,
}

impl PatientPruner {
    /// Puts `wrapped` on hold while the best value of the last `patience` + 1 reports is not worse, by
    /// more than `min_delta`, than the best value before. With nothing wrapped, it prunes then.
    ///
    /// As in Optuna a trial that `wrapped` was not asked about has completed none of its rungs, and one that it is
    /// asked about late completes all that it has passed at once: see [`Pruner::rely_on_attributes`]. Nor do
    /// samplers know of the brackets of a wrapped [`HyperbandPruner`](crate::HyperbandPruner): all trials compete.
    ///
    /// # Errors
    ///
    /// If `min_delta` is negative or not a number.
    pub fn new(
        mut wrapped: Option<Box<dyn Pruner>>,
        patience: usize,
        min_delta: f64,
    ) -> Result<Self, PrunerError> {
        if min_delta.is_nan() || min_delta < 0.0 {
            return Err(PrunerError::MinDelta(min_delta));
        }
        if let Some(wrapped) = &mut wrapped {
            wrapped.rely_on_attributes();
        }
        Ok(Self { wrapped, patience, min_delta })
    }

    fn is_out_of_patience(&self, trial: &Trial, direction: Direction) -> bool {
        let losses: Vec<_> = trial.intermediate.values().map(|v| direction.loss(*v)).collect();
        let Some(before) = losses.len().checked_sub(self.patience.saturating_add(1)) else {
            return false;
        };
        let best = |losses: &[f64]| losses.iter().copied().fold(f64::NAN, f64::min);
        best(&losses[..before]) + self.min_delta < best(&losses[before..])
    }
}

impl Pruner for PatientPruner {
    fn prune(&self, trials: &[Trial], trial: &Trial, direction: Direction) -> bool {
        self.is_out_of_patience(trial, direction)
            && self.wrapped.as_ref().is_none_or(|wrapped| wrapped.prune(trials, trial, direction))
    }

    fn attributes(
        &self,
        trials: &[Trial],
        trial: &Trial,
        direction: Direction,
    ) -> BTreeMap<String, serde_json::Value> {
        match &self.wrapped {
            Some(wrapped) if self.is_out_of_patience(trial, direction) => {
                wrapped.attributes(trials, trial, direction)
            }
            _ => BTreeMap::new(),
        }
    }
}
