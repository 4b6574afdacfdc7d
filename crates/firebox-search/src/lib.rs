//! Hyper-parameter search in Optuna's terms and in Optuna's journal format.
//!
//! A [`Distribution`] says which values a parameter may take; a [`Trial`] is one attempt with its
//! parameters, its intermediate values and its outcome. Nothing here trains a model, reads a
//! pipeline file or knows what a parameter means.

mod decimal;
mod direction;
#[cfg(test)]
mod golden;
mod hypervolume;
mod normal;
mod pareto;
mod pruner;
mod sampler;
mod space;
mod trial;

pub use direction::Direction;
pub use hypervolume::{HypervolumeError, hypervolume};
pub use pareto::pareto_front;
pub use pruner::{
    HyperbandPruner, MedianPruner, NoPruner, PatientPruner, PercentilePruner, Pruner, PrunerError,
    Schedule, SuccessiveHalvingPruner, ThresholdPruner,
};
pub use sampler::{
    GridError, GridSampler, QuasiRandomSampler, RandomSampler, Sampler, SamplerContext, Sequence,
    TpeConfig, TpeError, TpeSampler,
};
pub use space::{Choice, Distribution, DistributionError, Value};
pub use trial::{Trial, TrialState};
