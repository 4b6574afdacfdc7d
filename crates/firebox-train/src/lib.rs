//! A training loop for Burn that resumes exactly: schedules, clipping, checkpoints.
//!
//! [`train()`] takes a model, an [`Objective`], loaders and a [`TrainConfig`], and trains until the
//! steps are taken, the validation loss has stopped falling, or it is told to stop. A run that is
//! killed at any moment and resumed ends with the same weights and losses, bit for bit on the CPU,
//! as one that was left alone: whatever is random is a function of the seed, the step and the
//! sample, and a checkpoint holds all the rest. That goes for models whose state is their parameters, and whose dropout
//! draws from the streams that the objective is given, as firebox-models' and firebox-kernels' layers do: Burn's own `Dropout` draws from
//! a generator of the process, and the running statistics of its `BatchNorm` lag behind by a step where a checkpoint falls within an
//! epoch. An objective of your own returns `firebox_models::Loss`, so that your project depends on that crate, too.
//!
//! Checkpoints are whole or not there, verified by SHA-256 when they are read, and written by a
//! background thread from a copy of the state. A save that fails ends the run with an error.
//!
//! A step that runs out of memory is computed again in smaller parts, whose gradients are averaged, if
//! the device says so by a panic or an error (GPUs). On a processor the allocation ends the process; a program
//! whose allocator uses [`memory`] can begin itself anew, and the run goes on from its newest
//! checkpoint in smaller parts. A checkpoint that had too little memory is saved without what training keeps for
//! its next step, and training waits until it is written. What the system's out-of-memory killer ends leaves no note:
//! such a run is resumed as it was.
//!
//! On a GPU with kernels of ours ([`firebox_kernels::update_on_device`]) the host does not wait for a step
//! before it begins the next: it reads the numbers of several at once. For the first two steps of each shape it waits before
//! they are taken. If a later one had too little memory, others were built on it: [`TrainError::Lost`] then ends the run, which
//! goes on from its newest checkpoint in smaller parts when it is started again ([`TrainError::begins_anew`]).
//!
//! There is no printing here: what happens is told to a [`Listener`](firebox_core::Listener) and
//! written to `history.jsonl` ([`History`]).
//!
//! # Example
//!
//! ```
//! use std::sync::{Arc, atomic::AtomicBool};
//! use burn::tensor::Device;
//! use firebox_core::*;
//! use firebox_loader::{HeldOutLoader, LoaderConfig, NormalisedWindows, TrainLoader};
//! use firebox_models::{BiLstmMaeConfig, Encoder};
//! use firebox_train::{Data, Outcome, Pretraining, Run, TrainConfig, train};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // A noisy wave, cut into windows of 21 steps.
//!     let mut draws = Stream::new(1, "demo").draws();
//!     let wave = (0..400).map(|t| (f64::from(t) / 5.0).sin() + 0.1 * draws.normal()).collect();
//!     let channels = vec![Channel::new("wave", Role::Other)];
//!     let set = Arc::new(SeriesSet::new(channels, vec![], vec![Series::regular("a", 0, 1, wave, 1)])?);
//!     let rule = WindowRule { length: 21, stride: 4, whole: false };
//!     let parts = split(&set, &rule, &SplitRule::time(0.2, 0.2), &Labels::None)?;
//!     let normaliser = Normaliser::fit(Normalisation::Standard, &parts.train)?;
//!     let device = Device::default();
//!     let batches = LoaderConfig { batch_size: 16, ..LoaderConfig::default() };
//!     let held_out = NormalisedWindows::new(parts.validation, normaliser.clone());
//!     let validation = HeldOutLoader::new(Arc::new(held_out), batches, device.clone())?;
//!     let train_windows = NormalisedWindows::new(parts.train, normaliser);
//!     let loader = TrainLoader::new(Arc::new(train_windows), batches, device.clone())?;
//!
//!     let config = BiLstmMaeConfig { hidden: 4, decoder_hidden: 4, ..BiLstmMaeConfig::default() };
//!     let model = config.init(Stream::new(1337, "weights"), 1, &device)?;
//!     let folder = tempfile::tempdir()?;
//!     let trained = train(
//!         model,
//!         &Pretraining,
//!         Data { train: &loader, validation: Some(&validation) },
//!         &TrainConfig { epochs: 2, ..TrainConfig::default() },
//!         &Run {
//!             folder: folder.path(),
//!             key: Key::builder("demo", 1).finish(),
//!             seed: 1337,
//!             resume: false,
//!             stop: &AtomicBool::new(false),
//!             requests: &Requests::new(),
//!             listener: &Silent,
//!         },
//!     )?;
//!     assert_eq!(trained.summary.outcome, Outcome::Finished);
//!     assert_eq!(trained.model.embedding_width(), 16);
//!     assert!(folder.path().join("checkpoints").join(&trained.summary.selected).is_dir());
//!     Ok(())
//! }
//! ```

mod ahead;
mod average;
mod checkpoint;
mod classify;
mod config;
mod contrast;
mod division;
mod error;
mod folder;
mod forecasting;
mod gradients;
mod groups;
mod history;
mod load;
pub mod memory;
mod mix;
mod objective;
mod off;
mod optimizer;
mod rollback;
mod run;
mod scaler;
mod schedule;
mod snapshot;
mod state;
mod tensor_file;
mod times;
mod train;
mod types;

pub use average::{Average, AverageConfig};
pub use checkpoint::{
    Checkpoint, CheckpointError, FileEntry, Kind, Manifest, SaveTimes, checkpoints, load_average,
    load_weights,
};
pub use classify::{ClassLoss, ClassWeights, Classification};
pub use config::{
    AdamWConfig, CHECKPOINT_INTERVAL, CheckpointConfig, ConfigError, Decay, EarlyStopping, Keep,
    NonFinite, Optimizer, SgdConfig, TrainConfig,
};
pub use contrast::Contrasting;
pub use division::{BatchWork, DIVISIONS_FILE, Division};
pub use error::{FixedScale, TrainError};
pub use firebox_kernels::{Clip, SquaredNorm};
pub use forecasting::{ForecastLoss, ForecastSamples, Forecasting};
pub use gradients::Gradients;
pub use groups::{
    GroupError, LayerDecay, ParameterGroup, check_groups, check_groups_of_several, groups_of,
};
pub use history::{EpochRecord, HISTORY_FILE, History, StepRecord, TimesRecord};
pub use load::{LoadEncoder, MatchReport, load_matching, read_weights};
pub use mix::{Mix, Mixed};
pub use objective::{Objective, Pretraining, ScoreError, Streams};
pub use optimizer::{OptimizerState, UpdateBy};
pub use rollback::RollbackSteps;
pub use run::{CHECKPOINT_FOLDER, Data, Outcome, Run, SUMMARY_FILE, Summary, Trained};
pub use scaler::{DynamicScale, LossScale, Scaler};
pub use schedule::{Constant, Cosine, OneCycle, Plateau, PlateauState, Progress, Schedule, Warmup};
pub use snapshot::LoadWeights;
pub use state::{Best, Counts, EarlyState, Mean, State};
pub use train::train;
#[doc(hidden)]
pub use train::without_memory_once;
