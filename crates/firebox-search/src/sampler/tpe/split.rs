//! Which past trials count as good and which as bad.
//!
//! Source: Optuna 5.0.0, `_split_trials` in `optuna/samplers/_tpe/sampler.py`.

use std::cmp::Ordering;

use crate::direction::Direction;
use crate::hypervolume;
use crate::pareto::{loss_of, ranks, violation};
use crate::trial::{Trial, TrialState};

/// Never zero: a reference point must not touch the worst point.
const EPSILON: f64 = 1e-12;

/// Splits trials into the best `count` and the others, each in the order of numbers.
///
/// Complete trials are better than pruned ones, and both than those that violate a constraint.
/// Pruned trials are better the longer they ran, then by their last value; infeasible ones the less
/// they violate. Running trials are never good.
pub(crate) fn split<'a>(
    trials: &[&'a Trial],
    directions: &[Direction],
    count: usize,
) -> (Vec<&'a Trial>, Vec<&'a Trial>) {
    let (mut complete, mut pruned) = (Vec::new(), Vec::new());
    let (mut infeasible, mut above) = (Vec::new(), Vec::new());
    for trial in trials {
        match trial.state {
            TrialState::Running => above.push(*trial),
            _ if violation(trial) > 0.0 => infeasible.push(*trial),
            TrialState::Complete => complete.push(*trial),
            _ => pruned.push(*trial),
        }
    }
    order_complete(&mut complete, directions, count);
    pruned.sort_by(|a, b| compare_pruned(a, b, directions));
    infeasible.sort_by(|a, b| violation(a).total_cmp(&violation(b)));
    let mut below = Vec::new();
    for (place, trial) in complete.into_iter().chain(pruned).chain(infeasible).enumerate() {
        if place < count { below.push(trial) } else { above.push(trial) }
    }
    below.sort_by_key(|trial| trial.number);
    above.sort_by_key(|trial| trial.number);
    (below, above)
}

/// Puts the best `count` complete trials first.
fn order_complete(trials: &mut Vec<&Trial>, directions: &[Direction], count: usize) {
    let losses: Vec<Vec<f64>> = trials
        .iter()
        .map(|trial| {
            loss_of(trial, directions).unwrap_or_else(|| vec![f64::INFINITY; directions.len()])
        })
        .collect();
    let mut order: Vec<usize> = (0..trials.len()).collect();
    if directions.len() <= 1 {
        let loss = |place: usize| losses[place].first().copied().unwrap_or(f64::INFINITY);
        order.sort_by(|a, b| loss(*a).partial_cmp(&loss(*b)).unwrap_or(Ordering::Equal));
    } else if 0 < count && count < trials.len() {
        let rows: Vec<_> = losses.iter().map(Vec::as_slice).collect();
        let good = good_of_many(&rows, count);
        order.sort_by_key(|place| !good[*place]);
    }
    *trials = order.into_iter().map(|place| trials[place]).collect();
}

/// Which `count` rows are good: whole fronts, and of the front that does not fit whole the part with
/// the greatest hypervolume.
fn good_of_many(rows: &[&[f64]], count: usize) -> Vec<bool> {
    let ranks = ranks(rows, count);
    let mut good = vec![false; rows.len()];
    let mut left = count;
    for rank in 0.. {
        let front: Vec<usize> = (0..rows.len()).filter(|place| ranks[*place] == rank).collect();
        let members: Vec<_> = front.iter().map(|place| rows[*place]).collect();
        if front.len() <= left {
            front.iter().for_each(|place| good[*place] = true);
            left -= front.len();
            if left > 0 && !front.is_empty() {
                continue;
            }
        } else {
            for chosen in hypervolume::select(&members, left, &reference(&members)) {
                good[front[chosen]] = true;
            }
        }
        break;
    }
    good
}

/// A tenth worse than the worst of each objective.
fn reference(rows: &[&[f64]]) -> Vec<f64> {
    let objectives = rows.first().map_or(0, |row| row.len());
    let limit = |objective: usize| {
        let worst = rows.iter().map(|row| row[objective]).fold(f64::NEG_INFINITY, f64::max);
        let limit = (1.1 * worst).max(0.9 * worst);
        if limit == 0.0 { EPSILON } else { limit }
    };
    (0..objectives).map(limit).collect()
}

fn compare_pruned(a: &Trial, b: &Trial, directions: &[Direction]) -> Ordering {
    let direction = directions.first().copied().unwrap_or(Direction::Minimize);
    let score = |trial: &Trial| {
        trial.intermediate.last_key_value().map_or((1, 0.0), |(step, value)| {
            let loss = if value.is_nan() { f64::INFINITY } else { direction.loss(*value) };
            (-i128::from(*step), loss)
        })
    };
    score(a).partial_cmp(&score(b)).unwrap_or(Ordering::Equal)
}
