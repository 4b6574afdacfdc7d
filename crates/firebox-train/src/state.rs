//! Everything that a run remembers between two steps, apart from weights and moments.
//!
//! There is no random state: what is drawn depends on the seed, the step and the sample alone.

use firebox_core::Key;
use firebox_loader::Position;
use serde::{Deserialize, Serialize};

use crate::config::EarlyStopping;
use crate::rollback::RollbackSteps;
use crate::scaler::Scaler;
use crate::schedule::PlateauState;

/// The state of a run after a step; `state.json` of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Key of all that the run was begun with.
    pub key: Key,
    /// Seed of everything random.
    pub seed: u64,
    /// Optimizer steps so far, those included whose update was not applied. The schedule goes by
    /// [`State::updates`].
    pub step: u64,
    /// The next batch. Its batch number is that of the epoch's end until the epoch was validated.
    pub position: Position,
    /// The step after which an epoch was last closed.
    pub closed_at: u64,
    /// Updates that were applied until the last epoch that was validated, or whose training loss stands for that.
    #[serde(default)]
    pub closed_updates: u64,
    /// Epochs closed so far.
    pub epochs: u64,
    /// Training loss of the epoch so far.
    pub running: Mean,
    /// State of the plateau schedule.
    pub plateau: PlateauState,
    /// State of early stopping.
    pub early: EarlyState,
    /// The best epoch so far.
    pub best: Option<Best>,
    /// What was counted.
    pub counts: Counts,
    /// The loss scale.
    #[serde(default)]
    pub scaler: Scaler,
    /// What a rollback needs; absent in a run that never goes back.
    #[serde(default, skip_serializing_if = "RollbackSteps::is_empty")]
    pub rollback: RollbackSteps,
    /// Updates that are in the average of the weights.
    #[serde(default)]
    pub averaged: u64,
    /// Bytes of the history that belong to the steps so far.
    pub history_bytes: u64,
}

/// A mean by weight, in the making.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mean {
    /// Sum of value × weight.
    pub sum: f64,
    /// Sum of weights.
    pub weight: f64,
}

impl Mean {
    /// Takes a value.
    pub fn add(&mut self, value: f64, weight: f64) {
        if weight > 0.0 {
            self.sum += value * weight;
            self.weight += weight;
        }
    }

    /// The mean; NaN of nothing.
    pub fn value(&self) -> f64 {
        self.sum / self.weight
    }
}

/// What early stopping remembers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EarlyState {
    /// The loss that has to be undercut.
    pub best: Option<f64>,
    /// Validations since it was.
    pub waited: u64,
}

impl EarlyState {
    /// Takes a validation loss.
    pub(crate) fn observe(&mut self, loss: f64, settings: &EarlyStopping) {
        // An infinite one is no better than none, and a checkpoint could not hold it.
        if loss.is_finite() && self.best.is_none_or(|best| loss < best - settings.min_delta) {
            *self = Self { best: Some(loss), waited: 0 };
        } else {
            self.waited += 1;
        }
    }
}

/// The best epoch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// Steps taken when it ended.
    pub step: u64,
    /// The epoch, from 1.
    pub epoch: u64,
    /// Its validation loss, or its mean training loss without validation data.
    pub loss: f64,
}

/// What a run counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// Samples trained on.
    pub samples: u64,
    /// Steps that were not finite and changed no weights. Running statistics of batch normalisations moved in them.
    pub skipped: u64,
    /// How many of them went back to a checkpoint.
    pub rollbacks: u64,
    /// Steps in a row, up to now, that were not finite.
    pub non_finite_in_a_row: u64,
}

impl State {
    /// Steps whose update was applied: what the schedule goes by.
    pub fn updates(&self) -> u64 {
        self.step.saturating_sub(self.counts.skipped)
    }

    /// The state before the first step.
    pub(crate) fn start(key: Key, seed: u64, scaler: Scaler) -> Self {
        Self {
            key,
            seed,
            step: 0,
            position: Position::START,
            closed_at: 0,
            closed_updates: 0,
            epochs: 0,
            running: Mean::default(),
            plateau: PlateauState::default(),
            early: EarlyState::default(),
            best: None,
            counts: Counts::default(),
            scaler,
            rollback: RollbackSteps::default(),
            averaged: 0,
            history_bytes: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_stopping_waits_for_an_improvement_of_min_delta() {
        let settings = EarlyStopping { patience: 2, min_delta: 0.1 };
        let mut state = EarlyState::default();
        for (loss, waited) in [(1.0, 0), (0.95, 1), (0.85, 0), (f64::NAN, 1), (0.76, 2), (0.74, 0)]
        {
            state.observe(loss, &settings);
            assert_eq!(state.waited, waited, "after {loss}");
        }
    }

    #[test]
    fn losses_that_are_infinite_from_the_start_are_counted_alike_after_a_resume() {
        let settings = EarlyStopping { patience: 2, min_delta: 0.0 };
        let [mut whole, mut resumed] = [EarlyState::default(); 2];
        for epoch in 1..=3 {
            whole.observe(f64::INFINITY, &settings);
            resumed.observe(f64::INFINITY, &settings);
            resumed = serde_json::from_str(&serde_json::to_string(&resumed).unwrap()).unwrap();
            assert_eq!((resumed, whole.waited), (whole, epoch));
        }
        whole.observe(f64::MAX, &settings);
        assert_eq!(whole, EarlyState { best: Some(f64::MAX), waited: 0 });
    }

    #[test]
    fn a_state_survives_json_bit_for_bit() {
        let mut state = State::start(Key::builder("test", 1).finish(), u64::MAX, Scaler::default());
        state.running = Mean { sum: 0.1 + 0.2, weight: 1.0 / 3.0 };
        state.plateau.scale = 1e-300;
        state.best = Some(Best { step: 3, epoch: 1, loss: f64::MIN_POSITIVE });
        let text = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<State>(&text).unwrap(), state);
        // The first version of checkpoints had no scale.
        let mut first: serde_json::Value = serde_json::from_str(&text).unwrap();
        for later in ["scaler", "averaged"] {
            first.as_object_mut().unwrap().remove(later);
        }
        assert_eq!(serde_json::from_value::<State>(first).unwrap(), state);
    }

    #[test]
    fn the_schedule_goes_by_applied_steps() {
        let mut state = State::start(Key::builder("test", 1).finish(), 1, Scaler::default());
        (state.step, state.counts.skipped) = (9, 2);
        assert_eq!(state.updates(), 7);
    }
}
