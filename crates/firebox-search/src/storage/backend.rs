//! What a journal is kept in, and the one way of changing it.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::error::StorageError;

/// Entries that were not read before, one a line, each with its end.
pub(super) type Batch = String;

/// What the last applied entry was, by which a journal is known again: one that was restored from an older copy, or is another's,
/// may have grown beyond what was applied.
#[derive(Default)]
pub(super) struct Seen {
    last: Option<Print>,
    /// Of the entries that were read and are not applied yet.
    coming: VecDeque<Print>,
}

/// Length and hash of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Print(u64, u64);

impl Print {
    fn of(entry: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        entry.hash(&mut hasher);
        Self(entry.len() as u64, hasher.finish())
    }
}

impl Seen {
    /// Entries are read anew from the first that is not applied.
    pub(super) fn begin(&mut self) {
        self.coming.clear();
    }

    /// The next entry was read.
    pub(super) fn read(&mut self, entry: &[u8]) {
        self.coming.push_back(Print::of(entry));
    }

    /// So many of them were applied.
    pub(super) fn advance(&mut self, entries: u64) {
        for _ in 0..entries {
            self.last = self.coming.pop_front().or(self.last);
        }
    }

    /// Whether an entry is the last that was applied; any is where none was.
    pub(super) fn is_last(&self, entry: &[u8]) -> bool {
        self.last.is_none_or(|last| last == Print::of(entry))
    }

    /// Bytes of the last entry that was applied.
    pub(super) fn length(&self) -> u64 {
        self.last.map_or(0, |Print(length, _)| length)
    }
}

/// A list of entries that only grows. Every change goes through `begin`, `read`, `commit`, `end`:
/// nothing that another process writes comes between what was read and what is committed.
pub(super) trait Backend: Send {
    /// Begins a change.
    fn begin(&mut self) -> Result<(), StorageError>;

    /// Gives up soon instead of waiting for another process, once `stop` is true.
    fn stop_with(&mut self, _stop: &Arc<AtomicBool>) {}

    /// The entries after those that were applied.
    fn read(&mut self) -> Result<Batch, StorageError>;

    /// Where an entry is, for a message.
    fn place(&self, entry: u64) -> String;

    /// Number of the entries that were applied.
    fn applied(&self) -> u64;

    /// Counts entries as applied, and their bytes with the ends of their lines.
    fn advance(&mut self, entries: u64, bytes: u64);

    /// Stores lines after the last that was read, all or none. Whatever becomes of this process, they
    /// are there when this returns; if they are to `last`, they and all before them also outlive the
    /// machine. `false` if another process was quicker, and nothing was stored.
    fn commit(&mut self, lines: &[String], last: bool) -> Result<bool, StorageError>;

    /// Ends a change, whatever came of it.
    fn end(&mut self);
}
