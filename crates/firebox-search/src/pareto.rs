//! Trials that no other beats in every objective, and ranks of all.
//!
//! All functions take losses: one row a trial, each number to be minimised.

use std::cmp::Ordering;

use crate::direction::Direction;
use crate::trial::{Trial, TrialState};

/// The losses of complete trials with as many values as `directions`, with the trials.
pub(crate) fn losses<'a>(
    trials: impl IntoIterator<Item = &'a Trial>,
    directions: &[Direction],
) -> Vec<(&'a Trial, Vec<f64>)> {
    let complete = trials.into_iter().filter(|trial| trial.state == TrialState::Complete);
    complete.filter_map(|trial| Some((trial, loss_of(trial, directions)?))).collect()
}

/// The losses of one trial, if it has a value of each objective. NaN counts as the worst.
pub(crate) fn loss_of(trial: &Trial, directions: &[Direction]) -> Option<Vec<f64>> {
    let values = trial.values.as_ref().filter(|values| values.len() == directions.len())?;
    let loss = |(value, direction): (&f64, &Direction)| {
        if value.is_nan() { f64::INFINITY } else { direction.loss(*value) }
    };
    Some(values.iter().zip(directions).map(loss).collect())
}

/// The numbers of the complete trials on the Pareto front, in the order of `trials`: no other trial is
/// at least as good in every objective and better in one. With `feasible_only`, trials that violate a
/// constraint are left out. Equal to Optuna's `Study.best_trials`.
pub fn pareto_front(trials: &[Trial], directions: &[Direction], feasible_only: bool) -> Vec<u64> {
    let candidates = losses(trials, directions);
    let candidates: Vec<_> = candidates
        .into_iter()
        .filter(|(trial, _)| !feasible_only || violation(trial) <= 0.0)
        .collect();
    let rows: Vec<_> = candidates.iter().map(|(_, row)| row.as_slice()).collect();
    let ranks = ranks(&rows, 1);
    candidates.iter().zip(ranks).filter(|(_, r)| *r == 0).map(|((t, _), _)| t.number).collect()
}

/// How much a trial violates its constraints in all; 0 is feasible, and so is a trial without any.
pub(crate) fn violation(trial: &Trial) -> f64 {
    let constraints = trial.constraints.iter().flatten();
    constraints.filter(|violation| **violation > 0.0).sum()
}

/// Of each row how many fronts are better than its own, at least for the best `enough` different rows;
/// all behind them share the next rank. Source: Deb et al., "A fast and elitist multiobjective genetic
/// algorithm: NSGA-II", 2002, as Optuna 5.0.0 has it (`study/_multi_objective.py`).
pub(crate) fn ranks(rows: &[&[f64]], enough: usize) -> Vec<usize> {
    let (unique, places) = unique_sorted(rows);
    let mut ranks = vec![0; unique.len()];
    if unique.first().is_some_and(|row| row.len() == 1) {
        ranks = (0..unique.len()).collect();
    } else {
        let mut left: Vec<usize> = (0..unique.len()).collect();
        let mut rank = 0;
        while unique.len() - left.len() < enough.min(unique.len()) {
            let candidates: Vec<_> = left.iter().map(|i| unique[*i]).collect();
            let front = front_of_sorted(&candidates);
            let mut on_front = front.iter();
            left.retain(|i| {
                let stays = !on_front.next().copied().unwrap_or(false);
                if !stays {
                    ranks[*i] = rank;
                }
                stays
            });
            rank += 1;
        }
        left.into_iter().for_each(|i| ranks[i] = rank);
    }
    places.into_iter().map(|place| ranks[place]).collect()
}

/// Whether each of some rows, sorted and without repeats, is dominated by none before it.
pub(crate) fn front_of_sorted(rows: &[&[f64]]) -> Vec<bool> {
    let mut front: Vec<&[f64]> = Vec::new();
    let mut on_front = Vec::with_capacity(rows.len());
    for row in rows {
        // Those before are not above it in the first objective.
        let better = |(member, own): (&f64, &f64)| own < member;
        let free = front.iter().all(|member| member[1..].iter().zip(&row[1..]).any(better));
        on_front.push(free);
        if free {
            front.push(row);
        }
    }
    on_front
}

/// The different rows in lexicographic order, and of each row its place among them.
pub(crate) fn unique_sorted<'a>(rows: &[&'a [f64]]) -> (Vec<&'a [f64]>, Vec<usize>) {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by(|a, b| compare(rows[*a], rows[*b]));
    let (mut unique, mut places) = (Vec::<&[f64]>::new(), vec![0; rows.len()]);
    for index in order {
        if unique.last().is_none_or(|last| compare(last, rows[index]).is_ne()) {
            unique.push(rows[index]);
        }
        places[index] = unique.len() - 1;
    }
    (unique, places)
}

fn compare(a: &[f64], b: &[f64]) -> Ordering {
    a.partial_cmp(b).unwrap_or(Ordering::Equal)
}
