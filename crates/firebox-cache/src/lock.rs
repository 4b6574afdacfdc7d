//! Locks between processes that share a cache.
//!
//! Each entry has two lock files in `locks/<bucket>/`, which are never removed: `<key>.use` is held
//! shared by whoever uses or makes the entry, and exclusively by whoever removes it; `<key>.make` is
//! held exclusively by whoever makes or repairs it. The operating system releases both when a
//! process ends, however it ends.

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use crate::error::CacheError;

/// A lock held until it is dropped. Empty where the file system cannot lock or be written to: then
/// nobody else can remove anything there either, or renaming alone must keep entries whole.
#[derive(Debug)]
pub(crate) struct Lock {
    /// Closing the file releases the lock.
    held: Option<File>,
}

impl Lock {
    /// Whether something is locked by it.
    pub(crate) fn is_real(&self) -> bool {
        self.held.is_some()
    }
}

/// Whether an error says that nothing can be locked there: the file system cannot, or the service that it asks is missing,
/// as on many mounts of NFS.
fn is_unlockable(error: &std::io::Error) -> bool {
    #[cfg(unix)]
    if error.raw_os_error() == Some(libc::ENOLCK) {
        return true;
    }
    error.kind() == ErrorKind::Unsupported
}

/// Waits for a shared lock.
pub(crate) fn shared(path: &Path) -> Result<Lock, CacheError> {
    let Some(file) = open(path)? else { return Ok(Lock { held: None }) };
    match file.lock_shared() {
        Ok(()) => Ok(Lock { held: Some(file) }),
        Err(error) if is_unlockable(&error) => Ok(Lock { held: None }),
        Err(error) => Err(CacheError::io("lock", path)(error)),
    }
}

/// A shared lock, or none if someone has an exclusive one.
pub(crate) fn try_shared(path: &Path) -> Result<Option<Lock>, CacheError> {
    let Some(file) = open(path)? else { return Ok(Some(Lock { held: None })) };
    match file.try_lock_shared() {
        Ok(()) => Ok(Some(Lock { held: Some(file) })),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) if is_unlockable(&error) => Ok(Some(Lock { held: None })),
        Err(TryLockError::Error(error)) => Err(CacheError::io("lock", path)(error)),
    }
}

/// Time between two looks at a lock that someone else has.
const PAUSE: Duration = Duration::from_millis(50);

/// Does what shares itself out among rayon's threads while a lock is held.
///
/// A thread of rayon's that waits for the others takes up work that waits, too, which may want the lock that it holds itself: such a
/// thread only waits here, and a pool of its own does the work.
pub(crate) fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    if rayon::current_thread_index().is_none() {
        return work();
    }
    let threads = rayon::current_num_threads();
    match rayon::ThreadPoolBuilder::new().num_threads(threads).build() {
        Ok(pool) => std::thread::scope(|scope| {
            let done = scope.spawn(|| pool.install(work)).join();
            done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        }),
        // For want of memory for stacks. What is left is that nobody else wants it.
        Err(_) => work(),
    }
}

/// Waits for an exclusive lock, until `stop` is true; `waiting` is called first if someone else has it.
pub(crate) fn exclusive(
    path: &Path,
    stop: &AtomicBool,
    waiting: impl FnOnce(),
) -> Result<Lock, CacheError> {
    let Some(file) = open(path)? else { return Ok(Lock { held: None }) };
    let mut waiting = Some(waiting);
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Lock { held: Some(file) }),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) if is_unlockable(&error) => {
                return Ok(Lock { held: None });
            }
            Err(TryLockError::Error(error)) => return Err(CacheError::io("lock", path)(error)),
        }
        if let Some(waiting) = waiting.take() {
            waiting();
        }
        CacheError::heed(stop)?;
        std::thread::sleep(PAUSE);
    }
}

/// An exclusive lock, or none if someone has one. Where nothing can be locked, nobody is known not to.
pub(crate) fn try_exclusive(path: &Path) -> Result<Option<Lock>, CacheError> {
    let Some(file) = open(path)? else { return Ok(None) };
    match file.try_lock() {
        Ok(()) => Ok(Some(Lock { held: Some(file) })),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) if is_unlockable(&error) => Ok(None),
        Err(TryLockError::Error(error)) => Err(CacheError::io("lock", path)(error)),
    }
}

/// Whether someone holds the lock, or may: where nothing can be locked, nobody is known not to. Asking takes it for a
/// moment only, and makes no file.
pub(crate) fn is_held(path: &Path) -> bool {
    // Some file systems of networks lock only what may be written.
    let writable = File::options().read(true).append(true).open(path);
    let Ok(file) = writable.or_else(|_| File::open(path)) else { return false };
    file.try_lock().is_err()
}

/// Writes down that an entry was used now, as the time of its lock file.
pub(crate) fn mark_used(path: &Path) {
    // A cache that may only be read has no order of use to keep.
    let _ = File::options().append(true).open(path).and_then(|f| f.set_modified(SystemTime::now()));
}

/// The path of a lock file.
pub(crate) fn path(root: &Path, bucket: &str, key: &str, kind: &str) -> PathBuf {
    root.join("locks").join(bucket).join(format!("{key}.{kind}"))
}

/// Opens a lock file, and makes it if needed. None if it neither is there nor can be made because
/// the cache may only be read.
fn open(path: &Path) -> Result<Option<File>, CacheError> {
    let made = path
        .parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| File::options().create(true).append(true).read(true).open(path));
    match made {
        Ok(file) => Ok(Some(file)),
        Err(error) if read_only(&error) => Ok(File::open(path).ok()),
        Err(error) => Err(CacheError::io("make the lock file", path)(error)),
    }
}

fn read_only(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_locks_keep_exclusive_ones_out() {
        let root = tempfile::tempdir().unwrap();
        let path = path(root.path(), "bucket", "key", "use");
        assert!(!is_held(&path));
        let (a, b) = (shared(&path).unwrap(), shared(&path).unwrap());
        assert!(is_held(&path));
        drop(a);
        assert!(try_exclusive(&path).unwrap().is_none());
        drop(b);
        let mut waited = false;
        let lock = exclusive(&path, &AtomicBool::new(false), || waited = true).unwrap();
        assert!(!waited && is_held(&path) && lock.held.is_some());
        assert!(try_shared(&path).unwrap().is_none());
        std::thread::scope(|scope| {
            let (sender, receiver) = std::sync::mpsc::channel();
            let path = &path;
            let other = scope.spawn(move || {
                exclusive(path, &AtomicBool::new(false), || sender.send(()).unwrap()).map(drop)
            });
            receiver.recv().unwrap();
            drop(lock);
            other.join().unwrap().unwrap();
        });
    }

    #[cfg(unix)]
    #[test]
    fn a_service_of_locks_that_is_missing_is_as_none() {
        assert!(is_unlockable(&std::io::Error::from_raw_os_error(libc::ENOLCK)));
        assert!(is_unlockable(&ErrorKind::Unsupported.into()));
        assert!(!is_unlockable(&ErrorKind::PermissionDenied.into()));
    }

    #[test]
    fn who_is_stopped_waits_no_longer() {
        let root = tempfile::tempdir().unwrap();
        let path = path(root.path(), "bucket", "key", "make");
        let stop = AtomicBool::new(false);
        let held = exclusive(&path, &stop, || ()).unwrap();
        let wait = || stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(matches!(exclusive(&path, &stop, wait), Err(CacheError::Stopped)));
        drop(held);
    }

    #[test]
    fn asking_makes_no_file_and_works_on_one_that_may_only_be_read() {
        let root = tempfile::tempdir().unwrap();
        let path = path(root.path(), "bucket", "key", "use");
        assert!(!is_held(&path) && !path.exists());
        let held = shared(&path).unwrap();
        let mode = |read_only| {
            let mut mode = fs::metadata(&path).unwrap().permissions();
            mode.set_readonly(read_only);
            fs::set_permissions(&path, mode).unwrap();
        };
        mode(true);
        assert!(is_held(&path));
        mode(false);
        drop(held);
    }
}
