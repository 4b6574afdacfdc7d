//! Files that are whole or not there: checksums, flushing, replacing.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::Mmap;
use serde::{Deserialize, Serialize};

use crate::error::{CacheError, Damage};
use crate::guard::{Guard, Stamp};

/// Above this size, all threads hash a file together.
const PARALLEL: usize = 256 * 1024;

/// A file as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Name within its folder.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// BLAKE3 of its content, 64 hexadecimal digits.
    pub blake3: String,
}

/// Counts and hashes what is written.
#[derive(Debug)]
pub(crate) struct Hashing<W> {
    inner: W,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl<W> Hashing<W> {
    pub(crate) fn new(inner: W) -> Self {
        Self { inner, hasher: blake3::Hasher::new(), bytes: 0 }
    }

    /// What was written to the file at `path`.
    pub(crate) fn finish(self, path: &Path) -> FileRecord {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let blake3 = self.hasher.finalize().to_hex().to_string();
        FileRecord { name: name.unwrap_or_default(), bytes: self.bytes, blake3 }
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        update(&mut self.hasher, &bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn update(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    if bytes.len() >= PARALLEL {
        hasher.update_rayon(bytes);
    } else {
        hasher.update(bytes);
    }
}

/// Maps a file, and checks its size and, if `hash`, its content.
pub(crate) fn check_file(
    folder: &Path,
    record: &FileRecord,
    hash: bool,
) -> Result<Arc<Guard>, Damage> {
    if record.name.is_empty() || record.name.contains(['/', '\\']) || record.name == ".." {
        return Err(Damage::Content(format!("`{}` is not the name of a file", record.name)));
    }
    let path = folder.join(&record.name);
    let file = File::open(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Damage::Missing,
        _ => Damage::Unreadable(error),
    })?;
    let about = file.metadata().map_err(Damage::Unreadable)?;
    if about.len() != record.bytes {
        return Err(Damage::Size { found: about.len(), expected: record.bytes });
    }
    // SAFETY: files in the store are replaced by renaming and never changed in place, so nothing of
    // this engine changes the bytes under the map.
    let map = unsafe { Mmap::map(&file) }.map_err(Damage::Unreadable)?;
    let map = Guard::new(map, file, path, Some(Stamp::of(&about)));
    if hash {
        let mut hasher = blake3::Hasher::new();
        update(&mut hasher, map.bytes());
        if hasher.finalize().to_hex().as_str() != record.blake3 {
            return Err(Damage::Checksum);
        }
    }
    Ok(map)
}

/// Writes a small file and waits until it is on the disk.
pub(crate) fn write_flushed(path: &Path, content: &[u8]) -> Result<(), CacheError> {
    let mut file = File::create(path).map_err(CacheError::io("create", path))?;
    file.write_all(content).map_err(CacheError::io("write", path))?;
    file.sync_all().map_err(CacheError::io("flush to disk", path))
}

/// The same of a file that is there whole, as it was or as it is to be, at any moment.
pub(crate) fn replace_flushed(path: &Path, content: &[u8]) -> Result<(), CacheError> {
    let part = path.with_extension("json.part");
    write_flushed(&part, content)?;
    fs::rename(&part, path).map_err(CacheError::io("rename into place", path))
}

/// Waits until the names in a folder are on the disk. Only Unix lets a folder be flushed.
pub(crate) fn flush_folder(path: &Path) -> Result<(), CacheError> {
    if cfg!(unix) {
        let folder = File::open(path).map_err(CacheError::io("open", path))?;
        folder.sync_all().map_err(CacheError::io("flush to disk", path))?;
    }
    Ok(())
}

/// A file or folder that is being made: removed again unless it is kept.
#[derive(Debug)]
pub(crate) struct Unfinished {
    path: PathBuf,
    kept: bool,
}

impl Unfinished {
    /// Takes charge of what will be made at `path`.
    pub(crate) fn at(path: PathBuf) -> Self {
        Self { path, kept: false }
    }

    /// Makes an empty folder.
    pub(crate) fn folder(path: PathBuf) -> Result<Self, CacheError> {
        fs::create_dir(&path).map_err(CacheError::io("create", &path))?;
        Ok(Self::at(path))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it its final name.
    pub(crate) fn rename(mut self, to: &Path) -> Result<(), CacheError> {
        fs::rename(&self.path, to).map_err(CacheError::io("rename into place", to))?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.kept {
            // Nothing can be done about a failure here: the error that led here is already on its
            // way, and `Store::list` reports what is left over.
            let _ = remove(&self.path);
        }
    }
}

/// Removes a file, or a folder with all that is in it.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    }
}

/// A name that no other thread or process makes: `<stem>.tmp-<process>-<count>`.
pub(crate) fn temporary(folder: &Path, stem: &str) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    folder.join(format!("{stem}.tmp-{}-{count}", std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_folders_disappear_and_finished_ones_stay() {
        let root = tempfile::tempdir().unwrap();
        let unfinished = Unfinished::folder(temporary(root.path(), "a")).unwrap();
        fs::write(unfinished.path().join("part"), "x").unwrap();
        drop(unfinished);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
        let finished = Unfinished::folder(temporary(root.path(), "a")).unwrap();
        finished.rename(&root.path().join("b")).unwrap();
        assert!(root.path().join("b").is_dir());
    }

    #[test]
    fn names_that_leave_the_folder_are_refused() {
        let root = tempfile::tempdir().unwrap();
        for name in ["", "..", "../secret", "a/b", "a\\b"] {
            let record = FileRecord { name: name.to_owned(), bytes: 0, blake3: String::new() };
            let damage = check_file(root.path(), &record, true).unwrap_err();
            assert!(matches!(damage, Damage::Content(_)), "{name}: {damage}");
        }
    }
}
