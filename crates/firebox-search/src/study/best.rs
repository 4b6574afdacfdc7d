//! Which trials are the best, and for how long none was better.

use crate::direction::Direction;
use crate::pareto::{pareto_front, violation};
use crate::trial::{Trial, TrialState};

/// The best feasible complete trials: of one objective the first of those with the best value, of
/// several the Pareto front.
pub(super) fn best<'a>(trials: &'a [Trial], directions: &[Direction]) -> Vec<&'a Trial> {
    let mut numbers = pareto_front(trials, directions, true);
    if directions.len() == 1 {
        numbers.truncate(1);
    }
    numbers.into_iter().filter_map(|number| trials.get(usize::try_from(number).ok()?)).collect()
}

/// How many trials have ended since the best value of a single objective last improved.
pub(super) fn since_improvement(trials: &[Trial], direction: Direction) -> u64 {
    let mut ended: Vec<&Trial> = trials.iter().filter(|trial| trial.state.is_finished()).collect();
    ended.sort_by(|a, b| a.ended.unwrap_or(0.0).total_cmp(&b.ended.unwrap_or(0.0)));
    let (mut best, mut since) = (f64::INFINITY, 0);
    for trial in ended {
        let complete = trial.state == TrialState::Complete && violation(trial) <= 0.0;
        let value = trial.values.as_ref().and_then(|values| values.first());
        let loss = value.filter(|_| complete).map(|value| direction.loss(*value));
        if loss.is_some_and(|loss| loss < best) {
            best = loss.unwrap_or(best);
            since = 0;
        } else if trial.state != TrialState::Fail {
            since += 1;
        }
    }
    since
}
