//! Folders in which something is made that is not named after an entry.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::lock;

/// How such folders begin.
const BEING_MADE: &str = ".making-";
/// The lock file in one, which its maker holds.
const LOCK: &str = "making";

/// A folder in a bucket for something that is being made. It goes when this is dropped; where its process was killed,
/// with the next one that is begun in the bucket, or when the cache is pruned.
#[derive(Debug)]
pub struct Aside {
    /// Closing the file releases the lock. Before the folder, which Windows keeps while a file in it is open.
    _lock: File,
    folder: TempDir,
}

impl Aside {
    /// Makes a folder in a bucket that is there, and removes what processes left there that were killed.
    ///
    /// # Errors
    ///
    /// When the bucket cannot be written to.
    pub fn begin(bucket: &Path) -> io::Result<Self> {
        sweep(bucket);
        let folder = tempfile::Builder::new().prefix(BEING_MADE).tempdir_in(bucket)?;
        let path = folder.path().join("lock");
        let lock = File::create_new(&path)?;
        // Where nothing can be locked, what is left of a process that was killed is told by its age alone.
        if lock.try_lock().is_ok() {
            // Nobody finds it before it is held.
            fs::rename(&path, path.with_file_name(LOCK))?;
        }
        Ok(Self { _lock: lock, folder })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// The lock of whoever makes something in this folder, if it has one.
pub(crate) fn lock_of(folder: &Path) -> Option<PathBuf> {
    Some(folder.join(LOCK)).filter(|lock| lock.is_file())
}

/// Removes what processes left that were killed, as far as it can be.
fn sweep(bucket: &Path) {
    for entry in fs::read_dir(bucket).into_iter().flatten().flatten() {
        let is_one = entry.file_name().to_string_lossy().starts_with(BEING_MADE);
        let lock = lock_of(&entry.path()).filter(|_| is_one);
        if let Some(Ok(Some(alone))) = lock.as_deref().map(lock::try_exclusive) {
            // It is held while the folder goes, so that nobody else tries, where a file that is open can go.
            let _alone = cfg!(unix).then_some(alone);
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
