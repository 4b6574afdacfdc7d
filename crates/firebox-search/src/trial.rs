//! One attempt, as Optuna's `FrozenTrial` keeps it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::space::Distribution;

/// System attributes of a retry, as Optuna's `RetryHeartbeatStaleTrialCallback` (before 4.9
/// `RetryFailedTrialCallback`) writes them: the first trial of the chain, and all before this one.
pub(crate) const FAILED_TRIAL: &str = "failed_trial";
pub(crate) const HISTORY: &str = "retry_history";
/// System attribute with the last sign of life of a trial that a worker of Firebox runs.
pub(crate) const HEARTBEAT: &str = "firebox:heartbeat";
/// System attribute with the number of the trial whose result one has.
pub(crate) const REPEATS: &str = "firebox:repeats";

/// Where a trial stands. The numbers are those of Optuna's journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum TrialState {
    /// A worker has it.
    Running = 0,
    /// Ended with values.
    Complete = 1,
    /// Given up early, because others were better at the same step.
    Pruned = 2,
    /// Ended with an error.
    Fail = 3,
    /// Wanted, but not begun.
    Waiting = 4,
}

impl TrialState {
    /// Whether nothing about the trial can change any more.
    pub fn is_finished(self) -> bool {
        !matches!(self, Self::Running | Self::Waiting)
    }
}

/// A trial with all that is known of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// Its number within the study, from 0 on.
    pub number: u64,
    /// Where it stands.
    pub state: TrialState,
    /// Values of the objectives, one each, of a complete trial. A pruned one has the value that it reported last,
    /// if there is one objective and that is a number, as Optuna's `tell` gives it.
    pub values: Option<Vec<f64>>,
    /// Parameters by name: their distribution and their internal value (the number itself, or the
    /// index of the choice).
    pub parameters: BTreeMap<String, (Distribution, f64)>,
    /// Values reported at steps; NaN is possible.
    pub intermediate: BTreeMap<u64, f64>,
    /// Sizes by which constraints are violated: not above 0 is feasible. `None` if none was computed.
    pub constraints: Option<Vec<f64>>,
    /// Attributes of the user.
    pub user_attributes: BTreeMap<String, serde_json::Value>,
    /// Attributes of samplers, pruners and retries.
    pub system_attributes: BTreeMap<String, serde_json::Value>,
    /// When a worker took it: seconds since the epoch, UTC.
    pub started: Option<f64>,
    /// When it ended: seconds since the epoch, UTC.
    pub ended: Option<f64>,
}

impl Trial {
    /// A trial of which nothing else is known.
    pub fn new(number: u64, state: TrialState) -> Self {
        Self {
            number,
            state,
            values: None,
            parameters: BTreeMap::new(),
            intermediate: BTreeMap::new(),
            constraints: None,
            user_attributes: BTreeMap::new(),
            system_attributes: BTreeMap::new(),
            started: None,
            ended: None,
        }
    }

    /// The number of the trial that was begun first and that this one goes on with, if it is a retry;
    /// else its own.
    pub fn origin(&self) -> u64 {
        let first = self.system_attributes.get(FAILED_TRIAL).and_then(Json::as_u64);
        first.unwrap_or(self.number)
    }

    /// The numbers of the trials that it goes on with, if it is a retry.
    pub fn earlier_tries(&self) -> impl Iterator<Item = u64> {
        let history = self.system_attributes.get(HISTORY).and_then(Json::as_array);
        history.into_iter().flatten().filter_map(Json::as_u64)
    }

    /// The number of the trial whose result it has, if it computed none of its own; see
    /// [`TrialHandle::repeat`](crate::TrialHandle::repeat).
    pub fn repeats(&self) -> Option<u64> {
        self.system_attributes.get(REPEATS).and_then(Json::as_u64)
    }
}

/// The numbers of the trials that another one goes on with.
pub fn superseded(trials: &[Trial]) -> BTreeSet<u64> {
    trials.iter().flat_map(Trial::earlier_tries).collect()
}
