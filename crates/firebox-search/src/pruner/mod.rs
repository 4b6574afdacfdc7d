//! Which trials to give up early, by the values they report.

use std::collections::BTreeMap;

use crate::direction::Direction;
use crate::trial::Trial;

/// Decides whether a trial is worth going on with.
///
/// A decision is a function of the trials alone. It is asked for after each reported value.
pub trait Pruner: Send + Sync {
    /// Whether `trial`, which has just reported the value of its last step, should be given up.
    /// `trials` are all trials of the study, `trial` among them or not.
    fn prune(&self, trials: &[Trial], trial: &Trial, direction: Direction) -> bool;

    /// System attributes to write for `trial` beside the decision, so that Optuna's pruner of the
    /// same kind can go on from there. Decisions here do not need them.
    fn attributes(
        &self,
        _trials: &[Trial],
        _trial: &Trial,
        _direction: Direction,
    ) -> BTreeMap<String, serde_json::Value> {
        BTreeMap::new()
    }

    /// Whether the trials numbered `a` and `b` compete with each other. Samplers should learn from
    /// competing trials only.
    fn competes(&self, _trials: &[Trial], _a: u64, _b: u64) -> bool {
        true
    }
}
