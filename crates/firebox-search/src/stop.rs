//! When a study has found what it will find.

use serde::{Deserialize, Serialize};

use crate::direction::Direction;
use crate::pareto::loss_of;
use crate::trial::{Trial, TrialState};

/// Ends a study after some trials in a row that have not improved it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table with `patience`, such as { patience = 20 }")]
pub struct EarlyStop {
    /// Complete and pruned trials without an improvement after which the study ends; at least 1.
    pub patience: u64,
    /// By how much a value must be better than the best one to be an improvement.
    #[serde(default)]
    pub min_delta: f64,
}

impl EarlyStop {
    /// Whether the study should end: the last `patience` trials that were complete or pruned, in the
    /// order of their ends, have not improved it. Each machine writes the ends of its trials by its own clock:
    /// where clocks differ, an improvement may count as made earlier or later than it was.
    ///
    /// With several objectives a trial improves the study if no earlier one is as good as it, but for
    /// `min_delta`, in all of them. Trials that violate a constraint or failed improve nothing; failed
    /// ones do not count either. Nothing ends before the first improvement.
    pub fn is_over(&self, trials: &[Trial], directions: &[Direction]) -> bool {
        let counts =
            |trial: &&Trial| matches!(trial.state, TrialState::Complete | TrialState::Pruned);
        let mut ended: Vec<_> = trials.iter().filter(counts).collect();
        let time = |trial: &Trial| trial.ended.unwrap_or(f64::INFINITY);
        ended.sort_by(|a, b| time(a).total_cmp(&time(b)).then(a.number.cmp(&b.number)));
        let mut best: Vec<Vec<f64>> = Vec::new();
        let mut since = 0;
        for trial in ended {
            since += 1;
            if let Some(losses) = self.improvement(trial, &best, directions) {
                best.push(losses);
                since = 0;
            }
        }
        !best.is_empty() && since >= self.patience.max(1)
    }

    /// The losses of a trial that improves on those before.
    fn improvement(
        &self,
        trial: &Trial,
        best: &[Vec<f64>],
        directions: &[Direction],
    ) -> Option<Vec<f64>> {
        let feasible = crate::pareto::violation(trial) <= 0.0;
        let complete = trial.state == TrialState::Complete && feasible;
        let losses = loss_of(trial, directions)
            .filter(|losses| complete && losses.iter().all(|loss| *loss < f64::INFINITY))?;
        let covers = |known: &Vec<f64>| {
            known.iter().zip(&losses).all(|(known, loss)| known - self.min_delta <= *loss)
        };
        (!best.iter().any(covers)).then_some(losses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::testing::trial;

    fn complete(number: u64, values: &[f64]) -> Trial {
        let values = Some(values.to_vec());
        Trial { values, ended: Some(number as f64), ..trial(number, TrialState::Complete) }
    }

    fn is_over(patience: u64, min_delta: f64, trials: &[Trial], directions: &[Direction]) -> bool {
        EarlyStop { patience, min_delta }.is_over(trials, directions)
    }

    #[test]
    fn a_study_ends_after_its_patience_without_a_better_value() {
        let values = [3.0, 2.0, 2.5, 2.0, 1.95, 4.0];
        let mut trials: Vec<_> = (0..).zip(values).map(|(n, v)| complete(n, &[v])).collect();
        let minimize = [Direction::Minimize];
        assert!(!is_over(1, 0.0, &[], &minimize));
        assert!(is_over(2, 0.0, &trials[..4], &minimize));
        assert!(!is_over(2, 0.0, &trials, &minimize) && is_over(1, 0.0, &trials, &minimize));
        assert!(is_over(4, 0.1, &trials, &minimize) && !is_over(5, 0.1, &trials, &minimize));
        assert!(!is_over(1, 0.0, &trials, &[Direction::Maximize]));
        // The order of ends counts: the best value came last.
        trials[4].ended = Some(9.0);
        assert!(!is_over(1, 0.0, &trials, &minimize));
        trials.push(trial(6, TrialState::Fail));
        trials.push(trial(7, TrialState::Running));
        assert!(!is_over(1, 0.0, &trials, &minimize));
        trials.push(Trial { ended: Some(10.0), ..trial(8, TrialState::Pruned) });
        assert!(is_over(1, 0.0, &trials, &minimize));
    }

    #[test]
    fn nothing_ends_while_no_trial_was_feasible() {
        let mut trials: Vec<_> = (0..9).map(|number| complete(number, &[1.0])).collect();
        trials.iter_mut().for_each(|trial| trial.constraints = Some(vec![0.5]));
        assert!(!is_over(2, 0.0, &trials, &[Direction::Minimize]));
        trials[0].constraints = None;
        assert!(is_over(2, 0.0, &trials, &[Direction::Minimize]));
        trials[0].values = Some(vec![f64::NAN]);
        assert!(!is_over(2, 0.0, &trials, &[Direction::Minimize]));
    }

    #[test]
    fn with_two_objectives_a_trial_off_the_front_is_no_improvement() {
        let both = [Direction::Minimize, Direction::Maximize];
        let values = [[1.0, 1.0], [2.0, 2.0], [2.0, 1.5], [1.5, 1.5], [1.0, 1.0]];
        let trials: Vec<_> = (0..).zip(values).map(|(n, v)| complete(n, &v)).collect();
        assert!(is_over(1, 0.0, &trials[..3], &both) && !is_over(1, 0.0, &trials[..4], &both));
        assert!(is_over(1, 0.0, &trials, &both) && !is_over(2, 0.0, &trials, &both));
    }
}
