//! What an entry of augmented windows is made from, and the making of its shards.
//!
//! A record depends on its window, its version and the seed only; which shard it lies in, and which
//! thread makes it, changes no byte of it.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::sync_channel;

use arrow_array::RecordBatch;
use arrow_buffer::MutableBuffer;
use firebox_core::{
    Augmentation, Event, Key, Listener, Normaliser, Storage, TrainWindows, Window, WindowList,
    Windows,
};
use half::f16;
use rayon::prelude::*;

use crate::augment::Augmenter;
use crate::element::{self, Element, Lost, Zeros, name};
use crate::error::CacheError;
use crate::files::FileRecord;
use crate::manifest::Inputs;
use crate::price::PriceScale;
use crate::room;
use crate::shard::{self, Columns, Layout};

/// Windows that one thread makes before it looks for more work.
const WINDOWS_AT_ONCE: usize = 8;

/// What is done where there is no memory for a shard.
const LESS_MEMORY: &str = "give the process more memory (ulimit -v and -d), or store no versions: augment.mode = \"online\" draws them anew in each epoch";

/// What is to be made.
#[derive(Clone)]
pub(crate) struct Plan<'a> {
    windows: &'a Windows,
    normaliser: &'a Normaliser,
    augmenter: Augmenter,
    pub(crate) inputs: Inputs,
    pub(crate) layout: Layout,
    /// Versions of each window, the original included.
    versions: usize,
    windows_per_shard: usize,
    lost: Arc<Lost>,
    /// Whether whoever waits for it wants it no more.
    stop: &'a AtomicBool,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(
        train: &'a TrainWindows,
        normaliser: &'a Normaliser,
        augmentation: &Augmentation,
        seed: u64,
        shard_bytes: usize,
        stop: &'a AtomicBool,
    ) -> Result<Self, CacheError> {
        let windows: &Windows = train;
        let channels = windows.set().channels();
        let augmenter = Augmenter::new(augmentation, channels, seed)?;
        if normaliser.channels() != channels {
            let names = |channels: &[firebox_core::Channel]| {
                channels.iter().map(|channel| channel.name.clone()).collect()
            };
            let (fitted, found) = (names(normaliser.channels()), names(channels));
            return Err(CacheError::Channels { fitted, found });
        }
        if windows.is_empty() {
            return Err(CacheError::Empty);
        }
        let layout = Layout {
            shape: [windows.longest(), channels.len()],
            storage: augmentation.storage,
            is_packed: false,
        };
        let versions = u64::from(augmentation.versions) + 1;
        let records = versions.checked_mul(windows.len() as u64);
        let countable = windows.len() <= u32::MAX as usize
            && layout.width() <= i32::MAX as usize
            && records.is_some_and(|records| usize::try_from(records).is_ok());
        if !countable {
            let (windows, values) = (windows.len(), layout.width());
            return Err(CacheError::TooMany { windows, versions, values });
        }
        let versions = versions as usize;
        let size = element::bytes(augmentation.storage);
        Ok(Self {
            windows,
            normaliser,
            augmenter,
            inputs: Inputs {
                augmentation: augmentation.clone(),
                seed,
                normaliser: normaliser.clone(),
                windows: fingerprint(windows.windows()),
            },
            layout,
            versions,
            windows_per_shard: (shard_bytes
                / versions.saturating_mul(layout.width()).saturating_mul(size))
            .max(1),
            lost: Arc::default(),
            stop,
        })
    }

    /// The same records in shards of this size, of which nothing was made yet. None if no shard can have it.
    pub(crate) fn with_records_per_shard(&self, records: usize) -> Option<Self> {
        let windows_per_shard = records / self.versions;
        let whole = windows_per_shard > 0 && records.is_multiple_of(self.versions);
        whole.then(|| Self { windows_per_shard, lost: Arc::default(), ..self.clone() })
    }

    pub(crate) fn windows(&self) -> &Windows {
        self.windows
    }

    pub(crate) fn records(&self) -> usize {
        self.windows.len() * self.versions
    }

    /// Refuses to make what takes more than `free`, if that is known.
    pub(crate) fn check_room(&self, path: &Path, free: Option<u64>) -> Result<(), CacheError> {
        let (windows, record) = (self.windows.len(), self.layout.record_bytes() as u64);
        room::check(path, windows, self.versions as u64, record, free)
    }

    /// Records in each shard but the last.
    pub(crate) fn records_per_shard(&self) -> usize {
        self.windows_per_shard.min(self.windows.len()) * self.versions
    }

    pub(crate) fn shards(&self) -> usize {
        self.windows.len().div_ceil(self.windows_per_shard)
    }

    /// Makes the shards of these indices in `folder`: one is computed while the one before it is
    /// hashed and written. `named` gives the file's name.
    pub(crate) fn write(
        &self,
        folder: &Path,
        indices: &[usize],
        listener: &dyn Listener,
        named: impl Fn(usize) -> String + Sync,
    ) -> Result<Vec<FileRecord>, CacheError> {
        let (sender, receiver) = sync_channel::<(usize, RecordBatch)>(0);
        let total = indices.iter().map(|index| self.range(*index).len() as u64).sum();
        let write = |(index, batch): (usize, RecordBatch), done: &mut u64| {
            CacheError::heed(self.stop)?;
            let record = shard::write(&folder.join(named(index)), &batch)?;
            *done += self.range(index).len() as u64;
            let (stage, unit) = ("augment".to_owned(), "windows".to_owned());
            listener.on(&Event::Progress { stage, done: *done, total, unit });
            Ok::<_, CacheError>(record)
        };
        let compute = |index: usize| self.compute(index, &folder.join(named(index)));
        std::thread::scope(|scope| {
            let written = || -> Result<Vec<FileRecord>, CacheError> {
                let mut done = 0;
                receiver.into_iter().map(|shard| write(shard, &mut done)).collect()
            };
            let writer = std::thread::Builder::new().name("firebox-cache".to_owned());
            let Ok(writer) = writer.spawn_scoped(scope, written) else {
                // Memory for its stack was refused: one after the other.
                let mut done = 0;
                let one = |index: &usize| write((*index, compute(*index)?), &mut done);
                return indices.iter().map(one).collect();
            };
            let mut outcome = Ok(());
            for index in indices {
                let sent = compute(*index).map(|batch| sender.send((*index, batch)).is_ok());
                match sent {
                    Ok(true) => {}
                    // The writer has gone: it tells why below.
                    Ok(false) => break,
                    Err(error) => {
                        outcome = Err(error);
                        break;
                    }
                }
            }
            drop(sender);
            let written = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            outcome.and(written)
        })
    }

    /// What the storage type made zeros of in all that was made.
    pub(crate) fn zeros(&self) -> Zeros {
        self.lost.zeros()
    }

    fn range(&self, shard: usize) -> Range<usize> {
        let start = shard * self.windows_per_shard;
        start..(start + self.windows_per_shard).min(self.windows.len())
    }

    fn compute(&self, shard: usize, path: &Path) -> Result<RecordBatch, CacheError> {
        let range = self.range(shard);
        let values = match self.layout.storage {
            Storage::F32 => self.values::<f32>(range.clone()),
            Storage::F16 => self.values::<f16>(range.clone()),
            Storage::Bf16 => self.values::<u16>(range.clone()),
        }?;
        let mut columns = Columns::default();
        for index in range {
            let window = self.windows.windows().at(index);
            for version in 0..self.versions {
                columns.length.push(window.length);
                columns.label.push(window.label);
                columns.window.push(index as u32);
                columns.version.push(version as u32);
            }
        }
        let encode = |source| CacheError::Encode { path: path.to_owned(), source };
        self.layout.batch(values, columns).map_err(encode)
    }

    /// All versions of these windows, one after the other, padded with zeros.
    fn values<T: Element>(&self, range: Range<usize>) -> Result<MutableBuffer, CacheError> {
        let group = self.versions * self.layout.width();
        let mut buffer = shard::zeroed(range.len() * group * size_of::<T>(), LESS_MEMORY)?;
        buffer
            .typed_data_mut::<T>()
            .par_chunks_mut(group)
            .zip(range)
            .with_min_len(WINDOWS_AT_ONCE)
            .try_for_each_init(
                || (self.augmenter.clone(), Vec::new()),
                |(augmenter, scratch), (out, index)| self.window(augmenter, scratch, index, out),
            )?;
        Ok(buffer)
    }

    fn window<T: Element>(
        &self,
        augmenter: &mut Augmenter,
        scratch: &mut Vec<f32>,
        index: usize,
        out: &mut [T],
    ) -> Result<(), CacheError> {
        let (set, window) = (self.windows.set(), &self.windows.windows().at(index));
        let length = window.length as usize * self.layout.shape[1];
        scratch.resize(length, 0.0);
        self.normaliser.apply(set, window, scratch);
        augmenter.load(index as u64, scratch, PriceScale::of(self.normaliser, set, window));
        for (version, out) in out.chunks_exact_mut(self.layout.width()).enumerate() {
            CacheError::heed(self.stop)?;
            augmenter.version(version as u32, scratch);
            T::store(scratch, &mut out[..length])
                .map_err(|at| self.out_of_range(index, version, at, scratch[at]))?;
            self.lost.add(scratch, &out[..length]);
        }
        Ok(())
    }

    fn out_of_range(&self, window: usize, version: usize, at: usize, value: f32) -> CacheError {
        let [_, channels] = self.layout.shape;
        let storage = self.layout.storage;
        CacheError::Range {
            window: window as u32,
            version: version as u32,
            step: at / channels,
            channel: self.windows.set().channels()[at % channels].name.clone(),
            value,
            storage: name(storage),
            way_out: match storage {
                Storage::F32 => {
                    "no storage holds it: look for an outlier in the data there, or make the augmentations smaller"
                }
                Storage::Bf16 => {
                    "look for an outlier in the data there, normalise the data, or store the cache as f32"
                }
                Storage::F16 => "normalise the data, or store the cache as f32 or bf16",
            },
        }
    }
}

/// A key of the windows' places and labels. The values that they look at are not read.
fn fingerprint(windows: &WindowList) -> Key {
    let bytes = |Window { series, start, length, label }| {
        let mut bytes = [u8::from(label.is_some()); 17];
        let words = [series, start, length, label.unwrap_or(0)];
        for (own, word) in bytes.chunks_exact_mut(4).zip(words) {
            own.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    };
    let parts = windows.iter().map(bytes);
    Key::builder("windows", 1).parts("windows", 17 * windows.len(), parts).finish()
}
