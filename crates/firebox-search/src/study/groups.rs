//! Parameters that were always suggested together, so that they can be sampled together.
//!
//! Source: `_GroupDecomposedSearchSpace` in `optuna/search_space/group_decomposed.py`. A conditional
//! parameter ends up in a group of its own.

use std::collections::BTreeMap;

use crate::space::Distribution;
use crate::trial::{Trial, TrialState};

/// Splits the parameters of the trials that ended with a value into groups: two are in one group if
/// no trial has the one without the other.
pub(super) fn groups(trials: &[Trial]) -> Vec<BTreeMap<String, Distribution>> {
    let mut groups: Vec<BTreeMap<String, Distribution>> = vec![];
    let of_interest = [TrialState::Complete, TrialState::Pruned];
    for trial in trials.iter().filter(|trial| of_interest.contains(&trial.state)) {
        // Most trials have what the one before had, and split nothing.
        let covered: usize = groups.iter().map(BTreeMap::len).sum();
        let whole = |group: &BTreeMap<String, Distribution>| {
            group.keys().all(|name| trial.parameters.contains_key(name))
        };
        if covered == trial.parameters.len() && groups.iter().all(whole) {
            continue;
        }
        let mut rest: BTreeMap<_, _> =
            trial.parameters.iter().map(|(name, (d, _))| (name.clone(), d.clone())).collect();
        let mut next = vec![];
        for group in groups {
            let (both, only): (BTreeMap<_, _>, BTreeMap<_, _>) =
                group.into_iter().partition(|(name, _)| trial.parameters.contains_key(name));
            rest.retain(|name, _| !both.contains_key(name));
            next.extend([both, only]);
        }
        next.push(rest);
        next.retain(|group| !group.is_empty());
        groups = next;
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::testing;

    #[test]
    fn groups_are_what_is_always_together() {
        let trial = |number: u64, names: &[&str]| {
            let distribution = Distribution::Float { low: 0.0, high: 1.0, log: false, step: None };
            let parameter = |name: &&str| ((*name).to_owned(), (distribution.clone(), 0.5));
            Trial {
                values: Some(vec![0.0]),
                parameters: names.iter().map(parameter).collect(),
                ..testing::trial(number, TrialState::Complete)
            }
        };
        let trials =
            [trial(0, &["a", "b", "c"]), trial(1, &["a", "b", "d"]), trial(2, &["a", "b", "c"])];
        let found = groups(&trials);
        let mut names: Vec<Vec<&str>> =
            found.iter().map(|group| group.keys().map(String::as_str).collect()).collect();
        names.sort();
        assert_eq!(names, [vec!["a", "b"], vec!["c"], vec!["d"]]);
    }
}
