//! Which trials to give up early, by the values they report.

mod halving;
mod hyperband;
mod patient;
mod percentile;
#[cfg(test)]
mod tests;
mod threshold;

use std::collections::BTreeMap;

pub use halving::SuccessiveHalvingPruner;
pub use hyperband::HyperbandPruner;
pub use patient::PatientPruner;
pub(crate) use percentile::percentile_of;
pub use percentile::{MedianPruner, PercentilePruner, Schedule};
pub use threshold::ThresholdPruner;

use crate::direction::Direction;
use crate::trial::{Trial, TrialState, superseded};

/// Decides whether a trial is worth going on with.
///
/// A decision is a function of the trials alone. It is asked for after each reported value.
pub trait Pruner: Send + Sync {
    /// Whether `trial`, which has just reported the value of its last step, should be given up.
    /// `trials` are all trials of the study, `trial` among them or not. What
    /// [`Pruner::attributes`] gave at earlier reports should be among their attributes.
    fn prune(&self, trials: &[Trial], trial: &Trial, direction: Direction) -> bool;

    /// System attributes to write for `trial` after the decision, as Optuna's pruner of the same kind
    /// writes them, from the same arguments.
    fn attributes(
        &self,
        _trials: &[Trial],
        _trial: &Trial,
        _direction: Direction,
    ) -> BTreeMap<String, serde_json::Value> {
        BTreeMap::new()
    }

    /// Takes from now on only what [`Pruner::attributes`] gave for what a trial has reached, and computes none of it
    /// from reports: for a pruner that is not asked after each of them, such as one within a [`PatientPruner`].
    fn rely_on_attributes(&mut self) {}

    /// Whether the trials numbered `a` and `b` compete with each other. Samplers should learn from
    /// competing trials only.
    fn competes(&self, _trials: &[Trial], _a: u64, _b: u64) -> bool {
        true
    }
}

/// Gives up no trial: Optuna's `NopPruner`.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPruner;

impl Pruner for NoPruner {
    fn prune(&self, _trials: &[Trial], _trial: &Trial, _direction: Direction) -> bool {
        false
    }
}

/// Why a pruner cannot be.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum PrunerError {
    /// A percentile outside of its range.
    #[error("`percentile` is {0}; it must be from 0 to 100")]
    Percentile(f64),
    /// A number that must be positive.
    #[error("`{0}` is 0; it must be at least 1")]
    Zero(&'static str),
    /// A factor that reduces nothing.
    #[error("`reduction_factor` is {0}; it must be at least 2")]
    ReductionFactor(u64),
    /// Bootstrapping rungs that are not known yet.
    #[error("`bootstrap_count` needs a given `{0}`; set it, or leave out `bootstrap_count`")]
    Bootstrap(&'static str),
    /// Fewer steps at most than at least.
    #[error("`max_resource` is {most}; it must be at least `min_resource`, which is {least}")]
    Resources {
        /// Least steps.
        least: u64,
        /// Greatest steps.
        most: u64,
    },
    /// A least change that is negative.
    #[error("`min_delta` is {0}; it must be 0 or above")]
    MinDelta(f64),
    /// No threshold.
    #[error("neither `lower` nor `upper` is given; give at least one")]
    NoThreshold,
    /// Thresholds the wrong way round.
    #[error("`lower` is {lower} and `upper` is {upper}; `lower` must be at most `upper`")]
    Thresholds {
        /// Lower threshold.
        lower: f64,
        /// Upper threshold.
        upper: f64,
    },
}

/// The trials that `own` is compared with, each work once: without the tries that another goes on with,
/// whose reports it has, and without those that repeat another (see [`crate::TrialHandle::repeat`]).
/// Optuna's pruners count them all.
fn distinct<'a>(trials: &'a [Trial], own: &Trial) -> Vec<&'a Trial> {
    let mut earlier = superseded(trials);
    earlier.extend(own.earlier_tries());
    let counts = |trial: &&Trial| !earlier.contains(&trial.number) && trial.repeats().is_none();
    trials.iter().filter(counts).collect()
}

/// The last step that a trial has reported, and the value there.
fn last_report(trial: &Trial) -> Option<(u64, f64)> {
    trial.intermediate.last_key_value().map(|(step, value)| (*step, *value))
}

/// Whether `step`, the trial's last, is the first that it reports since a decision was due: decisions
/// are due at the end of the warm-up and each `interval` steps after it.
fn is_due(trial: &Trial, step: u64, warmup: u64, interval: u64) -> bool {
    let Some(since) = step.checked_sub(warmup) else { return false };
    let due = warmup + since - since % interval.max(1);
    trial.intermediate.range(..step).next_back().is_none_or(|(earlier, _)| *earlier < due)
}

/// When the trial that was complete first ended, and its last step, of the trials that reported any.
/// Taking the first keeps what is estimated from it the same for the rest of the study; where clocks of machines
/// differ, one that ends a little later may become the first.
fn first_completed<'a>(trials: impl Iterator<Item = &'a Trial>) -> Option<(f64, u64)> {
    let complete = trials.filter(|trial| trial.state == TrialState::Complete);
    let reported = complete.filter_map(|trial| {
        Some((trial.ended.unwrap_or(f64::INFINITY), trial.number, last_report(trial)?.0))
    });
    let first = reported.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    first.map(|(ended, _, last)| (ended, last))
}
