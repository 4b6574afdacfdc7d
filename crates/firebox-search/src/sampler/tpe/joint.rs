//! Which parameters are sampled together.
//!
//! Source: Optuna 5.0.0, `optuna/search_space/`.

use std::collections::BTreeMap;

use crate::space::Distribution;
use crate::trial::Trial;

/// Parameters by name that are sampled together.
pub(crate) type Subspace<'a> = BTreeMap<&'a str, &'a Distribution>;

/// The parameters of `space` that every one of the `finished` trials has with the same distribution.
pub(crate) fn intersection<'a>(
    finished: &[&Trial],
    space: &'a BTreeMap<String, Distribution>,
) -> Subspace<'a> {
    let everywhere = |(name, distribution): &(&'a str, &'a Distribution)| {
        let same = |trial: &&Trial| {
            trial.parameters.get(*name).is_some_and(|(known, _)| known.equals(distribution))
        };
        !finished.is_empty() && !distribution.is_single() && finished.iter().all(same)
    };
    space
        .iter()
        .map(|(name, distribution)| (name.as_str(), distribution))
        .filter(everywhere)
        .collect()
}

/// The parts into which the `finished` trials decompose the space, as far as `space` has their
/// parameters: a trial has all parameters of a part or none.
pub(crate) fn groups<'a>(
    finished: &[&Trial],
    space: &'a BTreeMap<String, Distribution>,
) -> Vec<Subspace<'a>> {
    let mut groups: Vec<BTreeMap<&str, &Distribution>> = Vec::new();
    for trial in finished {
        let mut new: BTreeMap<&str, &Distribution> =
            trial.parameters.iter().map(|(name, (d, _))| (name.as_str(), d)).collect();
        let mut next = Vec::new();
        for group in groups {
            let (both, rest): (BTreeMap<_, _>, BTreeMap<_, _>) =
                group.into_iter().partition(|(name, _)| new.contains_key(name));
            both.keys().for_each(|name| _ = new.remove(name));
            next.extend([both, rest]);
        }
        next.push(new);
        next.retain(|group| !group.is_empty());
        groups = next;
    }
    let of_space = |group: BTreeMap<&str, &Distribution>| -> Subspace<'a> {
        space
            .iter()
            .filter(|(name, distribution)| {
                let known = group.get(name.as_str());
                known.is_some_and(|known| known.equals(distribution)) && !distribution.is_single()
            })
            .map(|(name, distribution)| (name.as_str(), distribution))
            .collect()
    };
    groups.into_iter().map(of_space).filter(|group| !group.is_empty()).collect()
}
