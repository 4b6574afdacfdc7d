//! A journal in a file: one line an entry, only ever appended to. Optuna's `JournalFileBackend`.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::backend::{Backend, Batch, Seen};
use super::error::{StorageError, file};
use super::lock::{FileLock, Held, JournalLock};

pub(super) struct FileBackend {
    path: PathBuf,
    lock: FileLock,
    held: Option<Held>,
    /// Bytes and lines that were applied.
    bytes: u64,
    lines: u64,
    seen: Seen,
}

impl FileBackend {
    /// Opens the journal, or begins it.
    pub(super) fn open(
        path: &Path,
        lock: JournalLock,
        grace: Duration,
    ) -> Result<Self, StorageError> {
        match OpenOptions::new().append(true).create_new(true).open(path) {
            Ok(created) => {
                created.sync_all().map_err(file("write", path))?;
                // The name must outlive a power failure as well.
                #[cfg(unix)]
                if let Some(folder) = path.parent() {
                    let folder =
                        if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
                    let _ = File::open(folder).and_then(|folder| folder.sync_all());
                }
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(file("create", path)(error)),
        }
        let given = path;
        let path = path.canonicalize().map_err(file("find", path))?;
        let lock = FileLock::new(&path, lock, grace).opened_as(given);
        Ok(Self { path, lock, held: None, bytes: 0, lines: 0, seen: Seen::default() })
    }

    /// What follows the lines that were applied, of which the last is still there.
    fn rest(&self) -> Result<Vec<u8>, StorageError> {
        let cut = || StorageError::Cut { journal: self.path.display().to_string() };
        let mut journal = File::open(&self.path).map_err(file("read", &self.path))?;
        let length = journal.metadata().map_err(file("read", &self.path))?.len();
        if length < self.bytes {
            return Err(cut());
        }
        let own = self.seen.length();
        let mut bytes = vec![];
        journal.seek(SeekFrom::Start(self.bytes - own)).map_err(file("read", &self.path))?;
        journal.read_to_end(&mut bytes).map_err(file("read", &self.path))?;
        let own = own as usize;
        if !bytes.get(..own).is_some_and(|last| self.seen.is_last(last)) {
            return Err(cut());
        }
        bytes.drain(..own);
        Ok(bytes)
    }

    /// Puts the end right, which a writer that was killed or a full disk left unfinished: half an
    /// entry, which nobody was told is stored, is taken away; a whole one gets its end.
    fn mend(&self) -> Result<(), StorageError> {
        let bytes = self.rest()?;
        let tail = bytes.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        if tail.is_empty() {
            return Ok(());
        }
        if !is_begun(tail) {
            let lines = bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
            return Err(StorageError::Damaged {
                place: self.place(self.lines + lines),
                reason: "it is no part of an entry, and stays as it is".to_owned(),
            });
        }
        let whole = serde_json::from_slice::<serde::de::IgnoredAny>(tail).is_ok();
        // Windows cuts nothing that was opened to be appended to.
        let mut journal = OpenOptions::new()
            .append(whole)
            .write(true)
            .open(&self.path)
            .map_err(file("open", &self.path))?;
        if whole {
            journal.write_all(b"\n").map_err(file("write", &self.path))?;
        } else {
            let end = self.bytes + (bytes.len() - tail.len()) as u64;
            journal.set_len(end).map_err(file("write", &self.path))?;
        }
        flush(&journal).map_err(file("write", &self.path))
    }
}

/// Whether this is the beginning of an entry, or the zeros that some file systems leave in its place.
fn is_begun(tail: &[u8]) -> bool {
    const BEGINNING: &[u8] = b"{\"op_code\"";
    let zeros = tail.iter().rev().take_while(|byte| **byte == 0).count();
    let tail = &tail[..tail.len() - zeros];
    let known = tail.len().min(BEGINNING.len());
    tail[..known] == BEGINNING[..known]
}

/// Makes all that was written to the journal, by whomever, outlive the machine; the times of the file,
/// which nobody reads, need not.
fn flush(journal: &File) -> std::io::Result<()> {
    #[cfg(test)]
    FLUSHED.with_borrow_mut(|flushed| flushed.push(journal.metadata().map_or(0, |m| m.len())));
    journal.sync_data()
}

#[cfg(test)]
thread_local! {
    /// Bytes of the journal at each flush by this thread.
    pub(crate) static FLUSHED: std::cell::RefCell<Vec<u64>> = const { std::cell::RefCell::new(vec![]) };
}

impl Backend for FileBackend {
    fn begin(&mut self) -> Result<(), StorageError> {
        self.held = Some(self.lock.acquire()?);
        self.mend()
    }

    fn stop_with(&mut self, stop: &Arc<AtomicBool>) {
        self.lock.stop = Arc::clone(stop);
    }

    fn read(&mut self) -> Result<Batch, StorageError> {
        let mut bytes = self.rest()?;
        // The last line may still be in the making.
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        bytes.truncate(whole);
        self.seen.begin();
        bytes.split_inclusive(|byte| *byte == b'\n').for_each(|line| self.seen.read(line));
        String::from_utf8(bytes).map_err(|error| {
            let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = self.lines + good.iter().filter(|byte| **byte == b'\n').count() as u64;
            StorageError::Damaged { place: self.place(line), reason: "it is not text".to_owned() }
        })
    }

    fn place(&self, entry: u64) -> String {
        format!("line {} of {}", entry + 1, self.path.display())
    }

    fn applied(&self) -> u64 {
        self.lines
    }

    fn advance(&mut self, entries: u64, bytes: u64) {
        self.lines += entries;
        self.bytes += bytes;
        self.seen.advance(entries);
    }

    fn commit(&mut self, lines: &[String], last: bool) -> Result<bool, StorageError> {
        let mut text = lines.join("\n");
        text.push('\n');
        let journal =
            OpenOptions::new().append(true).open(&self.path).map_err(file("open", &self.path))?;
        // One write, which others see as a whole unless it was cut off.
        let written = (&journal).write_all(text.as_bytes());
        if written.is_err() {
            // What a full disk took of it must not be read as the beginning of the next entry.
            let _ = journal.set_len(self.bytes);
        }
        // Lines that could not be flushed stay: others may have read them.
        let flush = |()| if last { flush(&journal) } else { Ok(()) };
        written.and_then(flush).map_err(file("write", &self.path))?;
        Ok(true)
    }

    fn end(&mut self) {
        self.held = None;
    }
}
