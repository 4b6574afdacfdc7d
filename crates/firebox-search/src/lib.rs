//! Hyper-parameter search in Optuna's terms and in Optuna's journal format.
//!
//! A [`Study`] runs a function again and again with parameters that a [`Sampler`] proposes. A
//! [`Distribution`] says which values a parameter may take; a [`Trial`] is one attempt with its
//! parameters, its intermediate values and its outcome. A [`Pruner`] says which trials to give up, an
//! [`EarlyStop`] when to end. All of them are functions of a seed, the trial's number and the past
//! trials: a study goes on after a restart as if nothing had happened, and workers need to share
//! nothing but the trials. Their decisions are those of Optuna 5.0.0, but for a trial that was tried
//! again or repeats another, which counts once for a pruner. Afterwards [`importances`],
//! [`pareto_front`] and [`hypervolume()`] sum up what was found.
//!
//! The [`Storage`] keeps studies in a file or on a Redis server, in the format of Optuna's
//! `JournalStorage`: Optuna loads, continues and extends a study of this crate, also while it runs,
//! and this crate one of Optuna's. Any number of threads, processes and machines work on one study;
//! a trial whose worker dies is noticed, and tried again, once for each death, `Options::retries` times at most.
//!
//! # What outlives what
//!
//! Whatever a call has written to a journal file is there when it returns, whatever becomes of the
//! process. What begins or ends something is flushed to the disk as well, with all that any process of
//! the machine wrote to the file before: studies and their attributes, trials that are begun, taken,
//! enqueued or ended. Parameters, reports, attributes and signs of life of a trial that runs are not: a
//! failure of the machine's power may take those that no later flush, and not the system's own (some
//! 30 seconds on Linux), has brought to the disk. No trial that had ended is lost or counted twice by
//! that. One that ran counts as lost when the machine is back, and is tried again with the parameters
//! that are left; those that are not are drawn anew, and what it had trained with the old ones stays
//! unused. A line that was cut, or zeros in its place, give way to the next entry.
//!
//! A journal on a file server that fails itself, or on a Redis server, is as durable as that server: with
//! Redis' `appendfsync everysec` the last second may be gone. A worker that read what is gone then ends
//! with an error, where the journal is shorter than what it had read, and is to be started anew.
//!
//! Nothing here trains a model, reads a pipeline file or knows what a parameter means.
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use firebox_search::{Budget, Direction, Options, RandomSampler, Storage, Study, StudyError};
//!
//! fn main() -> Result<(), StudyError> {
//!     let storage = Arc::new(Storage::memory()?); // or Storage::open("study.log")?
//!     let options = Options::new(RandomSampler::new(1));
//!     let study = Study::create(&storage, "example", &[Direction::Minimize], options)?;
//!
//!     let budget = Budget { trials: Some(50), ..Budget::default() };
//!     study.optimize(&budget, |trial| {
//!         let x = trial.suggest_float("x", -3.0, 3.0)?;
//!         let shift = trial.suggest_int("shift", 0, 4)?;
//!         Ok::<_, StudyError>(vec![(x - 1.0).powi(2) + shift as f64])
//!     })?;
//!
//!     let best = &study.best_trials()?[0];
//!     assert!(best.values.as_ref().is_some_and(|values| values[0] < 1.5));
//!     Ok(())
//! }
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
mod storage;
mod study;
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
pub use storage::{GRACE, JournalLock, Storage, StorageError};
pub use study::{Budget, Ended, Limit, Options, Parameter, Space, Study, StudyError, TrialHandle};
pub use summary::{Savings, best_trial, savings, seconds_taken};
pub use trial::{Trial, TrialState, superseded};
