//! Which trials are the best: one, or with several objectives those that none other beats in all.

use crate::direction::Direction;
use crate::trial::{Trial, TrialState};

/// Whether no constraint is violated. A trial without constraints is feasible, as in Optuna.
pub(super) fn is_feasible(trial: &Trial) -> bool {
    trial.constraints.iter().flatten().all(|size| *size <= 0.0)
}

/// The feasible complete trials that no other such trial dominates, by number. With one objective
/// these are the first best trial alone.
pub(super) fn best<'a>(trials: &'a [Trial], directions: &[Direction]) -> Vec<&'a Trial> {
    let losses = |trial: &'a Trial| -> Option<(&'a Trial, Vec<f64>)> {
        let values = trial.values.as_ref().filter(|values| values.len() == directions.len())?;
        let losses = values.iter().zip(directions).map(|(value, d)| d.loss(*value));
        Some((trial, losses.collect()))
    };
    let complete = trials.iter().filter(|trial| trial.state == TrialState::Complete);
    let mut all: Vec<_> = complete.filter(|trial| is_feasible(trial)).filter_map(losses).collect();
    // A trial can only be dominated by one that comes before it in this order.
    all.sort_by(|(a, x), (b, y)| order(x, y).then(a.number.cmp(&b.number)));
    if directions.len() == 1 {
        return all.first().map(|(trial, _)| *trial).into_iter().collect();
    }
    let mut front: Vec<(&Trial, Vec<f64>)> = vec![];
    for (trial, losses) in all {
        if !front.iter().any(|(_, other)| dominates(other, &losses)) {
            front.push((trial, losses));
        }
    }
    let mut trials: Vec<_> = front.into_iter().map(|(trial, _)| trial).collect();
    trials.sort_by_key(|trial| trial.number);
    trials
}

fn order(a: &[f64], b: &[f64]) -> std::cmp::Ordering {
    let orders = a.iter().zip(b).map(|(a, b)| a.total_cmp(b));
    orders.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then)
}

fn dominates(a: &[f64], b: &[f64]) -> bool {
    a.iter().zip(b).all(|(a, b)| a <= b) && a.iter().zip(b).any(|(a, b)| a < b)
}

/// How many trials have ended since the best value of a single objective last improved.
pub(super) fn since_improvement(trials: &[Trial], direction: Direction) -> u64 {
    let mut ended: Vec<&Trial> = trials.iter().filter(|trial| trial.state.is_finished()).collect();
    ended.sort_by(|a, b| a.ended.unwrap_or(0.0).total_cmp(&b.ended.unwrap_or(0.0)));
    let (mut best, mut since) = (f64::INFINITY, 0);
    for trial in ended {
        let complete = trial.state == TrialState::Complete && is_feasible(trial);
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
