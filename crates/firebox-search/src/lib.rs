//! Hyper-parameter search in Optuna's terms and in Optuna's journal format.
//!
//! A [`Distribution`] says which values a parameter may take; a [`Trial`] is one attempt with its
//! parameters, its intermediate values and its outcome. A [`Sampler`] proposes the parameters of the next
//! trial, a [`Pruner`] says which trials to give up, an [`EarlyStop`] when to end. All of them are
//! functions of a seed, the trial's number and the past trials: a study goes on after a restart as if
//! nothing had happened, and workers need to share nothing but the trials. Their decisions are those of
//! Optuna 5.0.0. Afterwards [`importances`], [`pareto_front`] and [`hypervolume()`] sum up
//! what was found.
//!
//! Nothing here trains a model, reads a pipeline file or knows what a parameter means.
//!
//! # Example
//!
//! The least value of a function, by hand:
//!
//! ```
//! use std::collections::BTreeMap;
//! use firebox_search::{
//!     Direction, Distribution, Sampler, SamplerContext, TpeConfig, TpeSampler, Trial, TrialState,
//! };
//!
//! let x = Distribution::Float { low: -5.0, high: 5.0, log: false, step: None };
//! let space = BTreeMap::from([("x".to_owned(), x.clone())]);
//! let mut sampler = TpeSampler::new(TpeConfig::default(), 7)?;
//! let mut trials: Vec<Trial> = Vec::new();
//! for number in 0..40 {
//!     let directions = &[Direction::Minimize];
//!     let context = SamplerContext { trials: &trials, directions, number };
//!     let value = sampler.sample(&context, &space)["x"];
//!     trials.push(Trial {
//!         number,
//!         state: TrialState::Complete,
//!         values: Some(vec![(value - 2.0).powi(2)]),
//!         parameters: BTreeMap::from([("x".to_owned(), (x.clone(), value))]),
//!         intermediate: BTreeMap::new(),
//!         constraints: None,
//!         user_attributes: BTreeMap::new(),
//!         system_attributes: BTreeMap::new(),
//!         started: None,
//!         ended: None,
//!     });
//! }
//! let best = trials.iter().flat_map(|trial| trial.values.iter().flatten()).copied();
//! assert!(best.fold(f64::INFINITY, f64::min) < 0.01);
//! # Ok::<(), firebox_search::TpeError>(())
//! ```

mod decimal;
mod direction;
#[cfg(test)]
mod golden;
mod hypervolume;
mod importance;
mod normal;
mod pareto;
mod pruner;
mod sampler;
mod space;
mod stop;
mod summary;
mod trial;

pub use direction::Direction;
pub use hypervolume::{HypervolumeError, hypervolume};
pub use importance::{FanovaConfig, importances};
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
pub use stop::EarlyStop;
pub use summary::{Savings, best_trial, savings};
pub use trial::{Trial, TrialState};
