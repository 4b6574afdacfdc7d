//! Pre-augmented windows, read from memory-mapped shards.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use firebox_core::{Channel, Key, Storage};

use crate::element::Values;
use crate::error::CacheError;
use crate::manifest::Manifest;
use crate::mapped::Mapped;
use crate::shard::Shard;
use crate::store::Hold;

/// What a record is, beside its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// Valid steps; those after it are zero.
    pub length: u32,
    /// Class, an index into [`Shards::classes`].
    pub label: Option<u32>,
    /// Index of the training window that it was made from.
    pub window: u32,
    /// Number of the version; 0 is the original.
    pub version: u32,
}

/// The versions of all training windows: those of the first window, from version 0 on, then those of
/// the next. They stay in the cache as long as this value or a copy of it lives.
#[derive(Clone, Debug)]
pub struct Shards {
    path: PathBuf,
    manifest: Arc<Manifest>,
    mapped: Mapped,
    reused: bool,
    /// Keeps `prune` away.
    _used: Arc<Hold>,
}

impl Shards {
    pub(crate) fn new(path: PathBuf, manifest: Manifest, shards: Vec<Shard>, used: Hold) -> Self {
        let sizes = [manifest.records, manifest.records_per_shard];
        let storage = manifest.inputs.augmentation.storage;
        let mapped = Mapped::new(shards, sizes, manifest.shape, storage);
        Self { path, manifest: Arc::new(manifest), mapped, reused: true, _used: Arc::new(used) }
    }

    pub(crate) fn made(self) -> Self {
        Self { reused: false, ..self }
    }

    /// Number of records: windows × versions.
    pub fn len(&self) -> usize {
        self.manifest.records
    }

    /// Whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Steps of the longest window, and channels: `[time, channel]`.
    pub fn window_shape(&self) -> [usize; 2] {
        self.manifest.shape
    }

    /// Channels of each step.
    pub fn channels(&self) -> &[Channel] {
        &self.manifest.channels
    }

    /// Class names that the labels index.
    pub fn classes(&self) -> &[String] {
        &self.manifest.classes
    }

    /// The key under which they are stored.
    pub fn key(&self) -> Key {
        self.manifest.key
    }

    /// The folder in which they are stored.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes on disk, without the manifest.
    pub fn bytes(&self) -> u64 {
        self.manifest.files.iter().map(|file| file.bytes).sum()
    }

    /// Whether they were there already, and whole.
    pub fn reused(&self) -> bool {
        self.reused
    }

    /// The type that values are stored in.
    pub fn storage(&self) -> Storage {
        self.mapped.storage()
    }

    /// Writes the values of a record as f32, padded with zeros.
    ///
    /// # Shapes
    ///
    /// - `out`: `[time, channel]`, row-major, as [`window_shape`](Self::window_shape) says.
    ///
    /// # Panics
    ///
    /// When there is no such record, or `out` has another length.
    pub fn read(&self, index: usize, out: &mut [f32]) -> Record {
        self.values(index).write(out);
        self.record(index)
    }

    /// Writes the values of records as f32, one after the other, each cut or padded with zeros to
    /// `steps`. Faster than reading one by one: neighbours are copied together, and the next record
    /// is fetched while one is copied.
    ///
    /// # Shapes
    ///
    /// - `out`: `[record, steps, channel]`, row-major
    ///
    /// # Panics
    ///
    /// When there is no such record, or `out` has another length.
    pub fn gather(&self, indices: &[usize], steps: usize, out: &mut [f32]) {
        self.mapped.gather(indices, steps, out);
    }

    /// Whether these records, which have just been read, were there. A file that shrinks under its
    /// map reads as zeros, and this is where that is found out.
    ///
    /// # Errors
    ///
    /// When a file has shrunk, or its disk could not read a page. What was read is not to be used.
    pub fn check_read(&self, indices: &[usize]) -> Result<(), CacheError> {
        self.mapped.check_read(indices)
    }

    /// Tells the system that these records are read soon, so that it fetches them from the disk.
    pub fn will_need(&self, records: Range<usize>) {
        self.mapped.will_need(records);
    }

    /// The values of a record as they are stored, in place.
    ///
    /// # Panics
    ///
    /// When there is no such record.
    pub fn values(&self, index: usize) -> Values<'_> {
        let (shard, row) = self.mapped.place(index);
        shard.values(row)
    }

    /// Valid steps and class of a record, without looking at the rest of it.
    ///
    /// # Panics
    ///
    /// When there is no such record.
    pub fn sample(&self, index: usize) -> (u32, Option<u32>) {
        self.mapped.sample(index)
    }

    /// What a record is, without its values.
    ///
    /// # Panics
    ///
    /// When there is no such record.
    pub fn record(&self, index: usize) -> Record {
        let (shard, row) = self.mapped.place(index);
        let (length, label, window, version) = shard.about(row);
        Record { length, label, window, version }
    }
}
