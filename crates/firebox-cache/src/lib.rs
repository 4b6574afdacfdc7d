//! Augmentations, and a content-addressed store of pre-augmented windows.
//!
//! [`Augmenter`] makes versions of one normalised window: jitter, scaling, time-warp and volatility
//! scaling, each by a coin of its own that depends on the seed, the window and the version alone.
//! [`Store`] makes all versions of all training windows on all cores, keeps them as Arrow IPC
//! shards of f32, f16 or bf16 under a content key, and hands them out as memory-mapped [`Shards`].
//! The same seed gives the same bytes on any number of threads. What is drawn of a version is a
//! [`Recipe`]'s matter; whoever holds windows elsewhere, such as on a device, follows it by itself.
//!
//! An entry is whole or not there: it is made in a temporary folder that is flushed and renamed, its
//! manifest carries the checksum of each shard, and every byte is checked before it is used. Two
//! processes can share a store; each entry is made once, and [`Store::prune`] never removes what
//! a running process reads.
//!
//! [`Samples`] are arrays of other programs in shards of the same kind, outside of any store: written
//! once, in parallel, and gone on with after an interruption.
//!
//! Shards are mapped. A file that shrinks under its map, or whose disk fails, gives zeros and an error
//! from `check_read`, which the loader asks before it believes what it has read; it does not end the
//! process. The handler of SIGBUS that this takes is installed with the first map, and passes on every
//! fault that is not within one.
//!
//! Held-out windows cannot be augmented: [`Store::augmented`] takes
//! [`TrainWindows`](firebox_core::TrainWindows), which only the split makes. Nothing here knows
//! tensors or the order in which windows are trained on.
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use firebox_cache::{Store, augmented_key};
//! use firebox_core::*;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // A random walk, cut into windows of 16 steps.
//!     let mut draws = Stream::new(1, "walk").draws();
//!     let walk = (0..400).scan(0.0, |price, _| { *price += draws.normal(); Some(*price) }).collect();
//!     let series = Series::regular("walk", 0, 60_000_000, walk, 1);
//!     let channels = vec![Channel::new("close", Role::Close)];
//!     let set = Arc::new(SeriesSet::new(channels, vec![], vec![series])?);
//!     let rule = WindowRule { length: 16, stride: 4, whole: false };
//!     let parts = split(&set, &rule, &SplitRule::time(0.1, 0.1), &Labels::None)?;
//!     let normaliser = Normaliser::fit(Normalisation::WindowRelative, &parts.train)?;
//!
//!     let folder = tempfile::tempdir()?;
//!     let store = Store::open(folder.path())?;
//!     let augmentation = Augmentation { versions: 2, ..Augmentation::default() };
//!     let data = Key::builder("walk", 1).field("steps", "400").finish();
//!     let key = augmented_key(data, &augmentation, 7);
//!     let shards = store.augmented(key, &parts.train, &normaliser, &augmentation, 7, &Silent)?;
//!     assert_eq!(shards.len(), 3 * parts.train.len());
//!
//!     let mut values = [0.0; 16];
//!     let record = shards.read(4, &mut values);
//!     assert_eq!((record.window, record.version, record.length), (1, 1, 16));
//!
//!     let again = store.augmented(key, &parts.train, &normaliser, &augmentation, 7, &Silent)?;
//!     assert!(again.reused());
//!     Ok(())
//! }
//! ```

mod aside;
mod augment;
mod copy;
mod element;
mod error;
mod files;
mod guard;
mod hint;
mod keep;
mod lock;
mod manifest;
mod mapped;
mod parameters;
mod plan;
mod price;
mod recipe;
mod remote;
mod room;
mod samples;
mod shard;
mod shards;
mod store;

pub use aside::Aside;
pub use augment::{Applied, Augmenter};
pub use element::{Values, widens_fast};
pub use error::{CacheError, Damage};
pub use files::FileRecord;
pub use guard::MappedFile;
pub use hint::{ahead, fetch, large_pages};
pub use keep::{Leftover, Listing, Pruned, Stored, Verified};
pub use manifest::checksum_without;
pub use parameters::{ParameterError, check_parameters};
pub use price::{Bars, PriceScale};
pub use recipe::{Drawn, Recipe};
pub use room::free as free_bytes;
pub use samples::{SampleSpec, Samples};
pub use shards::{Record, Shards};
pub use store::{AUGMENTED, Hold, REMOTE, SERIES, Store, TOKENS, augmented_key};
