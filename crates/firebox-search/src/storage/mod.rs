//! Studies on disk or on a server, in Optuna's journal: Optuna reads and continues what is written
//! here, and the other way round.
//!
//! A journal is a list of small changes. What it holds is known by applying them in order, and only
//! what is new is read. A change is decided on what the journal holds at that moment, with every
//! other writer kept out, so that a trial is taken, ended or tried again exactly once.

mod backend;
mod distribution;
mod error;
mod file;
pub(crate) mod json;
mod lock;
mod memory;
mod operation;
mod record;
mod redis;
mod replay;
pub(crate) mod time;

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backend::Backend;
pub(crate) use distribution::incompatible;
pub use error::StorageError;
#[cfg(test)]
pub(crate) use file::FLUSHED;
pub use lock::{GRACE, JournalLock};
pub(crate) use operation::Operation;
pub(crate) use replay::{Replay, StudyRecord};

/// A journal of studies, shared by the threads of this process.
pub struct Storage {
    address: String,
    secret: String,
    journal: Mutex<Journal>,
}

struct Journal {
    backend: Box<dyn Backend>,
    replay: Replay,
    worker: String,
}

impl Storage {
    /// Opens the journal at an address: `redis://HOST:PORT/DATABASE`, with `?prefix=TEXT` for the
    /// prefix of its keys, or the path of a file, which is begun if it is not there.
    ///
    /// # Errors
    ///
    /// If it cannot be reached, read or written, or one of its entries is damaged.
    pub fn open(address: &str) -> Result<Self, StorageError> {
        if address.contains("://") {
            return Self::redis(address, redis::PATIENCE);
        }
        Self::file(Path::new(address), JournalLock::default(), GRACE)
    }

    /// Opens a journal file, or begins it, with this way of locking and this patience with locks
    /// that are left behind. See [`GRACE`].
    ///
    /// Of a link to a journal both names are locked, the journal's own and, where files may be made beside it, the
    /// link's; processes of Optuna that work on it must all be given the same one of these.
    ///
    /// # Errors
    ///
    /// As [`Storage::open`].
    pub fn file(path: &Path, lock: JournalLock, grace: Duration) -> Result<Self, StorageError> {
        let backend = file::FileBackend::open(path, lock, grace)?;
        Self::with(path.display().to_string(), Box::new(backend))
    }

    /// Opens a journal on a Redis server, and keeps trying for so long when it does not answer.
    ///
    /// # Errors
    ///
    /// As [`Storage::open`].
    pub fn redis(url: &str, patience: Duration) -> Result<Self, StorageError> {
        let backend = redis::RedisBackend::open(url, patience)?;
        let storage = Self::with(Self::public(url), Box::new(backend))?;
        Ok(Self { secret: url.to_owned(), ..storage })
    }

    /// A journal of this process alone, which ends with it.
    ///
    /// # Errors
    ///
    /// None in practice.
    pub fn memory() -> Result<Self, StorageError> {
        Self::with("memory".to_owned(), Box::<memory::MemoryBackend>::default())
    }

    fn with(address: String, backend: Box<dyn Backend>) -> Result<Self, StorageError> {
        // Optuna's are a UUID and the number of a thread.
        let worker = format!("{}-firebox", uuid::Uuid::new_v4());
        let journal = Journal { backend, replay: Replay::default(), worker };
        let secret = address.clone();
        let storage = Self { address, secret, journal: Mutex::new(journal) };
        storage.view(&Arc::default(), |_| ())?;
        Ok(storage)
    }

    /// Where it is, without user and password.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Where it is, as it was opened: not to be shown or kept.
    pub fn secret_address(&self) -> &str {
        &self.secret
    }

    /// An address without user and password, which may be shown and kept.
    pub fn public(address: &str) -> String {
        redis::hidden(address)
    }

    /// Names of the studies, in the order in which they were created.
    ///
    /// # Errors
    ///
    /// As [`Storage::open`].
    pub fn studies(&self) -> Result<Vec<String>, StorageError> {
        self.view(&Arc::default(), |replay| {
            replay.studies().map(|(_, study)| study.name.clone()).collect()
        })
    }

    /// The journal for one who waits for no other process any more, but shortly, once `stop` is true. Several studies
    /// may share it, each with a stop of its own; a thread that has it may keep the others waiting meanwhile.
    fn journal(&self, stop: &Arc<AtomicBool>) -> MutexGuard<'_, Journal> {
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        journal.backend.stop_with(stop);
        journal
    }

    /// Reads what is new, and looks at all of it.
    pub(crate) fn view<T>(
        &self,
        stop: &Arc<AtomicBool>,
        look: impl FnOnce(&Replay) -> T,
    ) -> Result<T, StorageError> {
        let mut journal = self.journal(stop);
        journal.read()?;
        Ok(look(&journal.replay))
    }

    /// Looks at what was read last, without reading.
    pub(crate) fn peek<T>(&self, look: impl FnOnce(&Replay) -> T) -> T {
        let journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        look(&journal.replay)
    }

    /// Decides on everything that was written before, and stores what was decided before anything
    /// else is written. `decide` may be asked again when another process was quicker; then its
    /// earlier answer is forgotten.
    pub(crate) fn change<T, E: From<StorageError>>(
        &self,
        stop: &Arc<AtomicBool>,
        mut decide: impl FnMut(&Replay) -> Result<(Vec<Operation>, T), E>,
    ) -> Result<T, E> {
        let mut journal = self.journal(stop);
        loop {
            if let Some(result) = journal.try_change(&mut decide)? {
                return Ok(result);
            }
        }
    }
}

impl Journal {
    fn try_change<T, E: From<StorageError>>(
        &mut self,
        decide: &mut impl FnMut(&Replay) -> Result<(Vec<Operation>, T), E>,
    ) -> Result<Option<T>, E> {
        let changed = self.backend.begin().map_err(E::from).and_then(|()| {
            self.read()?;
            let (operations, result) = decide(&self.replay)?;
            let lines: Vec<String> =
                operations.iter().map(|operation| operation.line(&self.worker)).collect();
            if lines.is_empty() {
                return Ok(Some(result));
            }
            let last = operations.iter().any(Operation::must_last);
            let stored = self.backend.commit(&lines, last)?;
            if stored {
                self.read()?;
            }
            Ok(stored.then_some(result))
        });
        self.backend.end();
        changed
    }

    /// Applies what is new. After an error the entry at fault and all after it are still new.
    fn read(&mut self) -> Result<(), StorageError> {
        let batch = self.backend.read()?;
        for line in batch.split_inclusive('\n') {
            let entry = self.backend.applied();
            let damaged =
                |reason| StorageError::Damaged { place: self.backend.place(entry), reason };
            let record = json::read(line.trim_ascii_end()).map_err(|e| damaged(e.to_string()))?;
            self.replay.apply(record).map_err(damaged)?;
            self.backend.advance(1, line.len() as u64);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
