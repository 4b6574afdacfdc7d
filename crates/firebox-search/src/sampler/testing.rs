//! A space and trials for the tests of the samplers.

use std::collections::BTreeMap;

use crate::direction::Direction;
use crate::sampler::SamplerContext;
use crate::space::{Choice, Distribution};
use crate::trial::{Trial, TrialState};

/// One parameter of each kind; `golden/make.py` has the same space.
pub(crate) fn space() -> BTreeMap<String, Distribution> {
    let kinds = ["gru", "lstm", "transformer"].map(|kind| Choice::Text(kind.to_owned()));
    BTreeMap::from([
        (
            "dropout".into(),
            Distribution::Float { low: 0.0, high: 0.5, log: false, step: Some(0.25) },
        ),
        ("kind".into(), Distribution::Categorical { choices: kinds.to_vec() }),
        ("layers".into(), Distribution::Int { low: 1, high: 7, log: false, step: 2 }),
        ("mix".into(), Distribution::Float { low: -1.0, high: 2.0, log: false, step: None }),
        ("rate".into(), Distribution::Float { low: 1e-5, high: 1e-1, log: true, step: None }),
        ("width".into(), Distribution::Int { low: 8, high: 512, log: true, step: 1 }),
    ])
}

/// The context of a study without trials.
pub(crate) fn context(number: u64) -> SamplerContext<'static> {
    SamplerContext { trials: &[], directions: &[Direction::Minimize], number }
}

/// A trial of which nothing is known but its state.
pub(crate) fn trial(number: u64, state: TrialState) -> Trial {
    Trial::new(number, state)
}
