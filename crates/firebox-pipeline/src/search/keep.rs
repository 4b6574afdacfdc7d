//! Which checkpoints of a search stay on disk.

use std::collections::BTreeSet;

use firebox_search::{Study, Trial, TrialState};

use super::conclude::ranked;
use super::trial::{self, Ran};
use super::{Search, is_shared};
use crate::error::PipelineError;

impl Search {
    /// Removes the checkpoints of trials that are not among the best any more.
    pub(super) fn tidy(
        &self,
        study: &Study,
        now: &Trial,
        ran: &Result<Ran, PipelineError>,
    ) -> Result<(), PipelineError> {
        let mut trials = self.trials(study)?;
        let mut done = vec![];
        if let Some(own) = trials.iter_mut().find(|trial| trial.number == now.number) {
            match ran {
                Ok(ran @ Ran::Complete { .. }) => {
                    (own.state, own.values) = (TrialState::Complete, Some(self.values(ran)));
                }
                Ok(Ran::Pruned) => done.extend(trial::run_of(own)),
                // Not if another worker goes on with it.
                Err(error) if !is_shared(error) && !matches!(error, PipelineError::Study(_)) => {
                    done.extend(trial::run_of(own));
                }
                Ok(Ran::Interrupted) | Err(_) => {}
            }
        }
        // Those that failed for good, whoever noticed it, and that no trial goes on with.
        let runs_of = |which: fn(&Trial) -> bool| {
            trials.iter().filter(move |trial| which(trial)).filter_map(trial::run_of)
        };
        let living: BTreeSet<String> = runs_of(|trial| !trial.state.is_finished()).collect();
        let failed = runs_of(|trial| trial.state == TrialState::Fail);
        done.extend(failed.filter(|run| !living.contains(run)));
        let mut runs: Vec<String> = vec![];
        for one in ranked(&trials, study.directions()) {
            // Trials with the same values are one run.
            runs.extend(trial::run_of(one.trial).filter(|run| !runs.contains(run)));
        }
        let best = runs.iter().take(self.search.keep.max(1)).cloned();
        let sizes = best.map(|run| {
            let size = trial::checkpoint_bytes(&self.config.run.directory.join(&run));
            (run, size)
        });
        let kept = within(self.search.size_budget, sizes.collect());
        done.extend(runs);
        let done: BTreeSet<String> = done.into_iter().collect();
        for run in done.iter().filter(|run| !kept.contains(run)) {
            trial::forget(&self.config.run.directory.join(run));
        }
        Ok(())
    }
}

/// The runs, the best first, whose checkpoints fit into the budget together; always the first.
fn within(budget: Option<u64>, runs: Vec<(String, u64)>) -> Vec<String> {
    let mut taken = 0u64;
    let fits = |(place, (_, size)): &(usize, (String, u64))| {
        taken = taken.saturating_add(*size);
        *place == 0 || budget.is_none_or(|budget| taken <= budget)
    };
    runs.into_iter().enumerate().take_while(fits).map(|(_, (run, _))| run).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_budget_keeps_the_best_and_what_fits_beside_it() {
        let runs =
            || [("a", 5), ("b", 3), ("c", 3)].map(|(run, size)| (run.to_owned(), size)).to_vec();
        assert_eq!(within(None, runs()), ["a", "b", "c"]);
        assert_eq!(within(Some(8), runs()), ["a", "b"]);
        assert_eq!(within(Some(7), runs()), ["a"]);
        assert_eq!(within(Some(0), runs()), ["a"]);
        assert!(within(Some(9), vec![]).is_empty());
    }
}
