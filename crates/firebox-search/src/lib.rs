//! Hyper-parameter search in Optuna's terms and in Optuna's journal format.
//!
//! A [`Distribution`] says which values a parameter may take; a [`Trial`] is one attempt with its
//! parameters, its intermediate values and its outcome. Nothing here trains a model, reads a
//! pipeline file or knows what a parameter means.

mod decimal;
mod direction;
#[cfg(test)]
mod golden;
mod pruner;
mod sampler;
mod space;
mod storage;
mod study;
mod trial;

pub use direction::Direction;
pub use pruner::Pruner;
pub use sampler::{
    GridError, GridSampler, QuasiRandomSampler, RandomSampler, Sampler, SamplerContext, Sequence,
};
pub use space::{Choice, Distribution, DistributionError, Value};
pub use storage::{GRACE, JournalLock, Storage, StorageError};
pub use study::{Budget, Ended, Options, Parameter, Space, Study, StudyError, TrialHandle};
pub use trial::{Trial, TrialState};
