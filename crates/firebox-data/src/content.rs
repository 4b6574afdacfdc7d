//! Hashes of what files hold, and whether a file is still what it was.
//!
//! A hash is remembered within the process, so that what asks for the key of the same data again (each stage of
//! a run, each trial of a search) does not read it again. It is forgotten with any sign that the file was
//! written: its length, its times, and on Unix which file it is and when anything about it changed.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::DataError;

/// Length, and the time of the last change where the system has it.
type Stamp = (u64, Option<SystemTime>);

/// What the system says of files before they are read, to find out that one was changed meanwhile. Content is read
/// twice: for the key, and for its values.
pub(crate) struct Seen(Vec<(PathBuf, Option<Stamp>)>);

impl Seen {
    pub(crate) fn now(files: impl IntoIterator<Item = PathBuf>) -> Self {
        Self(files.into_iter().map(|path| (path.clone(), Self::of(&path))).collect())
    }

    fn of(path: &Path) -> Option<Stamp> {
        fs::metadata(path).ok().map(|found| stamp(&found))
    }

    pub(crate) fn check(&self) -> Result<(), DataError> {
        match self.0.iter().find(|(path, before)| Self::of(path) != *before) {
            Some((path, _)) => Err(DataError::Changed { path: path.clone() }),
            None => Ok(()),
        }
    }
}

fn stamp(found: &Metadata) -> Stamp {
    (found.len(), found.modified().ok())
}

/// All that tells a file from what it was before.
type Identity = (Stamp, [i128; 3]);

#[cfg(unix)]
fn identity(found: &Metadata) -> Identity {
    use std::os::unix::fs::MetadataExt;
    let changed = i128::from(found.ctime()) * 1_000_000_000 + i128::from(found.ctime_nsec());
    (stamp(found), [changed, found.dev().into(), found.ino().into()])
}

#[cfg(not(unix))]
fn identity(found: &Metadata) -> Identity {
    (stamp(found), [0; 3])
}

/// A file that was written less than this ago is hashed anew: another writing in the same tick of the file
/// system's clock leaves no sign. FAT's ticks are of two seconds.
const SETTLED: Duration = Duration::from_secs(4);

/// Whether a file was not written lately, by all that is known of it.
fn has_settled(identity: &Identity, now: SystemTime) -> bool {
    let ((_, modified), [changed, ..]) = identity;
    let before = |time: SystemTime| now.duration_since(time).is_ok_and(|age| age >= SETTLED);
    let changed =
        u64::try_from(*changed).map(|at| SystemTime::UNIX_EPOCH + Duration::from_nanos(at));
    modified.is_some_and(before) && changed.is_ok_and(before)
}

static KNOWN: LazyLock<Mutex<HashMap<PathBuf, (Identity, blake3::Hash)>>> =
    LazyLock::new(Mutex::default);

/// The hash of a file's content, which is read anew only if the file may have been written since it was hashed in this
/// process.
///
/// # Errors
///
/// If the file cannot be read.
pub fn content_hash(path: &Path) -> Result<blake3::Hash, DataError> {
    content_hash_until(path, &AtomicBool::new(false))
}

/// The same until `stop` is true.
///
/// # Errors
///
/// As [`content_hash`], and [`DataError::Stopped`].
pub fn content_hash_until(path: &Path, stop: &AtomicBool) -> Result<blake3::Hash, DataError> {
    content_hash_heard(path, &|_| DataError::heed(stop))
}

/// Bytes that are hashed at once.
pub(crate) const AT_ONCE: usize = 4 << 20;

/// The same where `heard` hears of so many bytes more that were hashed, before any and after each that are at once, and may
/// end it.
pub(crate) fn content_hash_heard(
    path: &Path,
    heard: &dyn Fn(usize) -> Result<(), DataError>,
) -> Result<blake3::Hash, DataError> {
    let mut file = File::open(path).map_err(DataError::io("open", path))?;
    let identity_of = |file: &File| {
        file.metadata().map(|found| identity(&found)).map_err(DataError::io("read", path))
    };
    let (before, now) = (identity_of(&file)?, SystemTime::now());
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    // A run's own settings have whole paths, and the user's begin where the file lies.
    let real = path.canonicalize().map_err(DataError::io("read", path))?;
    if let Some((of, hash)) = known().get(&real)
        && *of == before
    {
        return Ok(*hash);
    }
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; AT_ONCE];
    heard(0)?;
    loop {
        let read = file.read(&mut buffer).map_err(DataError::io("read", path))?;
        if read == 0 {
            break;
        }
        hasher.update_rayon(&buffer[..read]);
        heard(read)?;
    }
    let hash = hasher.finalize();
    if has_settled(&before, now) && identity_of(&file)? == before {
        known().insert(real, (before, hash));
    }
    Ok(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &Path) -> blake3::Hash {
        content_hash(path).unwrap()
    }

    fn is_known(path: &Path) -> bool {
        KNOWN.lock().unwrap().contains_key(&path.canonicalize().unwrap())
    }

    #[test]
    fn what_was_written_lately_is_not_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "one").unwrap();
        assert_eq!(of(&path), blake3::hash(b"one"));
        assert!(!is_known(&path));
        let ago = SystemTime::now() - Duration::from_secs(60);
        File::options().write(true).open(&path).unwrap().set_modified(ago).unwrap();
        // Its time was set back, which is a change of its own.
        let settled =
            |path| has_settled(&identity(&fs::metadata(path).unwrap()), SystemTime::now());
        assert_eq!(settled(&path), !cfg!(unix));
        let later = SystemTime::now() + SETTLED;
        assert!(has_settled(&identity(&fs::metadata(&path).unwrap()), later));
    }

    #[test]
    fn a_remembered_hash_is_that_of_the_file_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("a");
        fs::write(&path, "one").unwrap();
        let before = identity(&fs::metadata(&path).unwrap());
        // As if it had been hashed long after it was written.
        let remembered = blake3::hash(b"remembered");
        KNOWN.lock().unwrap().insert(path.clone(), (before, remembered));
        assert_eq!(of(&path), remembered);
        assert_eq!(of(&folder.path().join(".").join("a")), remembered);
        // Of another length: many file systems have ticks of some milliseconds, in which both writings are one.
        fs::write(&path, "three").unwrap();
        assert_eq!(of(&path), blake3::hash(b"three"));
        // Another file of the same length and time in its place.
        let other = folder.path().join("b");
        fs::write(&other, "seven").unwrap();
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        let before = identity(&fs::metadata(&path).unwrap());
        KNOWN.lock().unwrap().insert(path.clone(), (before, blake3::hash(b"three")));
        File::options().write(true).open(&other).unwrap().set_modified(time).unwrap();
        fs::rename(&other, &path).unwrap();
        if cfg!(unix) {
            assert_eq!(of(&path), blake3::hash(b"seven"));
        }
    }

    #[test]
    fn a_stop_ends_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "one").unwrap();
        let stopped = content_hash_until(&path, &AtomicBool::new(true));
        assert!(matches!(stopped, Err(DataError::Stopped)));
    }
}
