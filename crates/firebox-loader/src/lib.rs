//! Seeded, resumable, prefetching batches from windows to a Burn device.
//!
//! A [`Source`] holds samples: the pre-augmented [`Shards`](firebox_cache::Shards) of
//! `firebox-cache`, or [`NormalisedWindows`] that are read from series directly. [`TrainLoader`]
//! gives its samples in an order that depends on the seed and the epoch alone; any batch of any
//! epoch can be reached by its [`Position`], so a run that was killed goes on where it stopped.
//! [`HeldOutLoader`] gives them in the order in which they are, and has no other.
//!
//! Batches are filled on background threads ahead of time, over the ends of epochs. How many there
//! are, and how far ahead they work, changes no batch; nor does it whether a thread hands them to the device ahead of the
//! one in use ([`LoaderConfig::upload_ahead`]). A set that fits can stay on the device or in
//! memory instead ([`TrainResident`], [`HeldOutResident`]); it gives the same batches, bit for bit. Of windows that overlap, the steps that they
//! share stay there, each once ([`SharedSteps`]). Sets larger than memory are shuffled by blocks ([`Shuffle::Blocks`]), and samples of unequal length sorted into buckets
//! ([`LoaderConfig::buckets`]), of a window of blocks at a time if both are asked for.
//!
//! [`AugmentedWindows`] are drawn anew in each epoch, with the augmentations of `firebox-cache`: by the
//! threads that fill batches, or by the device that holds the originals. [`Masking`] hides steps and channels of a batch. Everything drawn is a function of a seed and a
//! position.
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use burn::tensor::Device;
//! use firebox_core::*;
//! use firebox_loader::{LoaderConfig, NormalisedWindows, Position, TrainLoader};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let series = Series::regular("demo", 0, 1, (0..200).map(f64::from).collect(), 1);
//!     let set = Arc::new(SeriesSet::new(vec![Channel::new("x", Role::Other)], vec![], vec![series])?);
//!     let rule = WindowRule { length: 8, stride: 2, whole: false };
//!     let parts = split(&set, &rule, &SplitRule::time(0.1, 0.1), &Labels::None)?;
//!     let normaliser = Normaliser::fit(Normalisation::Standard, &parts.train)?;
//!     let source = Arc::new(NormalisedWindows::new(parts.train, normaliser));
//!
//!     let config = LoaderConfig { batch_size: 16, ..LoaderConfig::default() };
//!     let loader = TrainLoader::new(source, config, Device::default())?;
//!     let mut samples = 0;
//!     for batch in loader.epoch(Position::START) {
//!         let batch = batch?;
//!         let [size, time, channel] = batch.inputs.dims();
//!         assert_eq!([time, channel], [8, 1]);
//!         samples += size;
//!     }
//!     assert_eq!(samples, loader.samples());
//!
//!     // The same batch again, without those before it.
//!     let third = loader.epoch(Position { epoch: 0, batch: 2 }).next();
//!     assert_eq!(third.map(|batch| batch.map(|batch| batch.next.batch)).transpose()?, Some(3));
//!     Ok(())
//! }
//! ```

mod augmented;
mod batch;
mod config;
mod error;
mod fill;
mod fresh;
mod loader;
mod masking;
mod order;
mod place;
mod prefetch;
mod recycle;
mod relabelled;
mod resident;
mod shared;
mod sorted;
mod source;
mod upload;

pub use augmented::AugmentedWindows;
pub use batch::{Batch, Position};
pub use config::{LoaderConfig, Shuffle, default_workers};
pub use error::LoadError;
pub use loader::{Batches, HeldOutLoader, TrainLoader};
pub use masking::{Masking, MaskingError};
pub use place::{Place, Resident, Room, bytes_of, fits_beside, place, shared_bytes};
pub use relabelled::Relabelled;
pub use resident::{HeldOutResident, TrainResident};
pub use shared::SharedSteps;
pub use source::{NormalisedWindows, Sample, Source, TrainSamples, TrainSource};
