//! What a journal is kept in, and the one way of changing it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::error::StorageError;

/// Entries that were not read before, one a line, each with its end.
pub(super) type Batch = String;

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
