//! Where the parameters of the next trial come from.

mod grid;
mod halton;
mod mersenne;
mod quasi;
mod random;
mod sobol;
#[cfg(test)]
pub(crate) mod testing;
mod tpe;
mod unit;

use std::collections::BTreeMap;

pub use grid::{GridError, GridSampler};
pub use quasi::{QuasiRandomSampler, Sequence};
pub use random::RandomSampler;
pub use tpe::{TpeConfig, TpeError, TpeSampler};

use crate::direction::Direction;
use crate::space::Distribution;
use crate::trial::Trial;

/// What a sampler may look at.
#[derive(Clone, Copy, Debug)]
pub struct SamplerContext<'a> {
    /// The trials of the study so far, in the order of their numbers; the one to sample for may be
    /// among them and is left out by its number.
    pub trials: &'a [Trial],
    /// The direction of each objective.
    pub directions: &'a [Direction],
    /// The number of the trial to sample for.
    pub number: u64,
}

/// Proposes parameters.
///
/// A proposal is a function of the sampler's seed and of the context alone, so that it is the same
/// after a restart and whatever other threads do.
pub trait Sampler: Send {
    /// Internal values for the whole of `space` at once.
    fn sample(
        &mut self,
        context: &SamplerContext<'_>,
        space: &BTreeMap<String, Distribution>,
    ) -> BTreeMap<String, f64>;

    /// Whether it is given only the trials that compete with the one that it is for, such as those of its bracket
    /// ([`Pruner::competes`](crate::Pruner::competes)), and not all: what was tried in another bracket teaches little of this
    /// one. One that goes through a list takes account of all.
    fn learns_from_rivals_alone(&self) -> bool {
        true
    }

    /// System attributes to write for the trial after [`Sampler::sample`], as Optuna's sampler of the
    /// same kind writes them.
    fn attributes(&self, _context: &SamplerContext<'_>) -> BTreeMap<String, serde_json::Value> {
        BTreeMap::new()
    }

    /// Whether nothing is left to propose after these trials, so that the study should end.
    fn is_exhausted(&self, _trials: &[Trial]) -> bool {
        false
    }
}
