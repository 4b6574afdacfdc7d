//! How much each parameter matters for an objective.

mod fanova;
mod forest;
#[cfg(test)]
mod tests;

use firebox_core::Stream;

use crate::space::Distribution;
use crate::trial::{Trial, TrialState};
use fanova::Boxes;
use forest::forest;

/// How importances are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FanovaConfig {
    /// Trees of the forest.
    pub trees: u64,
    /// Most splits from a tree's root to a leaf.
    pub max_depth: usize,
    /// Where the bootstrap samples come from.
    pub seed: u64,
}

impl Default for FanovaConfig {
    /// Optuna's defaults, with seed 0.
    fn default() -> Self {
        Self { trees: 64, max_depth: 64, seed: 0 }
    }
}

/// The share of the variance of a value that each parameter explains alone, the greatest first: Optuna's
/// `get_param_importances` with its `FanovaImportanceEvaluator`. The shares add up to 1.
///
/// `objective` says which value of a trial. Only complete trials with a finite value count, and only
/// parameters that all of them have with the same distribution. All shares are 0 if there are fewer
/// than two trials, or no differences to explain.
pub fn importances(trials: &[Trial], objective: usize, config: FanovaConfig) -> Vec<(String, f64)> {
    let mut shares = fanova(trials, objective, config);
    let sum: f64 = shares.iter().map(|(_, share)| share).sum();
    if sum > 0.0 {
        shares.iter_mut().for_each(|(_, share)| *share /= sum);
    }
    shares.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    shares
}

/// The mean over the trees of the share of the variance that each parameter explains alone.
fn fanova(trials: &[Trial], objective: usize, config: FanovaConfig) -> Vec<(String, f64)> {
    let value = |trial: &Trial| trial.values.as_ref().and_then(|v| v.get(objective)).copied();
    let complete: Vec<_> = trials.iter().filter(|t| t.state == TrialState::Complete).collect();
    let space = common_space(&complete);
    let mut shares: Vec<_> = space.iter().map(|(name, _)| ((*name).to_owned(), 0.0)).collect();
    let counted: Vec<(&Trial, f64)> = complete
        .into_iter()
        .filter_map(|trial| Some((trial, value(trial).filter(|value| value.is_finite())?)))
        .collect();
    if counted.len() < 2 {
        return shares;
    }
    let layout = Layout::new(&space);
    let rows: Vec<_> = counted.iter().map(|(trial, _)| layout.row(trial, &space)).collect();
    let targets: Vec<_> = counted.iter().map(|(_, target)| *target).collect();
    let stream = Stream::new(config.seed, "search/fanova");
    let mut count = 0_u32;
    for tree in forest(&rows, &targets, config.trees, config.max_depth, stream) {
        let boxes = Boxes::new(&tree, &layout.bounds);
        let variance = boxes.variance();
        if variance > 0.0 {
            count += 1;
            for ((_, share), columns) in shares.iter_mut().zip(&layout.columns) {
                if !columns.is_empty() {
                    *share += boxes.marginal_variance(columns) / variance;
                }
            }
        }
    }
    shares.iter_mut().for_each(|(_, share)| *share /= f64::from(count.max(1)));
    shares
}

/// The parameters that all of the trials have with the same distribution, in the order of names.
fn common_space<'a>(trials: &[&'a Trial]) -> Vec<(&'a str, &'a Distribution)> {
    let Some((first, others)) = trials.split_first() else { return Vec::new() };
    let everywhere = |name: &str, distribution: &Distribution| {
        others
            .iter()
            .all(|t| t.parameters.get(name).is_some_and(|(known, _)| known.equals(distribution)))
    };
    first
        .parameters
        .iter()
        .map(|(name, (distribution, _))| (name.as_str(), distribution))
        .filter(|(name, distribution)| everywhere(name, distribution))
        .collect()
}

/// Parameters as columns of numbers: one each, and of a categorical one a column for each choice.
struct Layout {
    bounds: Vec<[f64; 2]>,
    /// Of each parameter; none where there is nothing to choose.
    columns: Vec<Vec<usize>>,
}

impl Layout {
    fn new(space: &[(&str, &Distribution)]) -> Self {
        let (mut bounds, mut columns) = (Vec::new(), Vec::new());
        for (_, distribution) in space {
            let first = bounds.len();
            match distribution {
                _ if distribution.is_single() => {}
                Distribution::Float { low, high, .. } => bounds.push([*low, *high]),
                Distribution::Int { low, high, .. } => bounds.push([*low as f64, *high as f64]),
                Distribution::Categorical { choices } => {
                    bounds.extend(std::iter::repeat_n([0.0, 1.0], choices.len()));
                }
            }
            columns.push((first..bounds.len()).collect());
        }
        Self { bounds, columns }
    }

    fn row(&self, trial: &Trial, space: &[(&str, &Distribution)]) -> Vec<f64> {
        let mut row = vec![0.0; self.bounds.len()];
        for ((name, distribution), columns) in space.iter().zip(&self.columns) {
            let Some((_, value)) = trial.parameters.get(*name) else { continue };
            match (distribution, columns.first()) {
                (_, None) => {}
                (Distribution::Categorical { .. }, Some(first)) => {
                    row[first + (*value as usize).min(columns.len() - 1)] = 1.0;
                }
                (_, Some(column)) => row[*column] = *value,
            }
        }
        row
    }
}
