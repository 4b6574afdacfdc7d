//! The lock of a journal file, as Optuna's processes take it: a link or a file named `….lock`.
//!
//! Optuna waits for a lock whose owner was killed until the grace period has passed. Processes of
//! Firebox first take a lock of the operating system on `….owner`, in which the owner of the `.lock`
//! is written; the system frees it when a process dies, so the next one knows a dead owner at once.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::error::{StorageError, file};

/// How processes keep each other from writing at the same time. All that share a journal, Optuna's
/// included, must use the same way; Optuna's default is the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalLock {
    /// A symbolic link, `JournalFileSymlinkLock`: works on network file systems of any age.
    Link,
    /// A file that is created exclusively, `JournalFileOpenLock`: for NFS 3 and later, and Windows.
    Open,
}

impl Default for JournalLock {
    fn default() -> Self {
        if cfg!(unix) { Self::Link } else { Self::Open }
    }
}

/// How long a lock may be held before it counts as left behind. Source: Optuna's `grace_period`.
pub const GRACE: Duration = Duration::from_secs(30);
/// Longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// Pause between two tries where processes of Firebox queue up.
const QUEUE_PAUSE: Duration = Duration::from_millis(1);
/// How long a process that was asked to stop waits for another that stays.
const STOPPED_GRACE: Duration = Duration::from_secs(3);
/// Longest gap that is left for Optuna's processes, which try less and less often.
const LONGEST_GAP: Duration = Duration::from_millis(5);

pub(super) struct FileLock {
    journal: PathBuf,
    path: PathBuf,
    owner: PathBuf,
    draft: PathBuf,
    kind: JournalLock,
    grace: Duration,
    /// Whether whoever waits should soon give up.
    pub(super) stop: Arc<AtomicBool>,
}

/// The lock while it is held.
pub(super) struct Held {
    path: PathBuf,
    owner: File,
    /// Since when, if other processes of Firebox wait as well.
    contended: Option<Instant>,
    released: bool,
}

impl FileLock {
    /// `journal` must be absolute: Optuna follows the link to see when the journal was last written.
    pub(super) fn new(journal: &Path, kind: JournalLock, grace: Duration) -> Self {
        let beside = |suffix: &str| {
            let mut name = journal.as_os_str().to_owned();
            name.push(suffix);
            PathBuf::from(name)
        };
        let (path, owner) = (beside(".lock"), beside(".owner"));
        // Only the owner of this machine makes one.
        let draft = beside(&format!(".lock-{}", machine()));
        Self {
            journal: journal.to_path_buf(),
            path,
            owner,
            draft,
            kind,
            grace,
            stop: Arc::default(),
        }
    }

    /// Waits for the lock.
    pub(super) fn acquire(&self) -> Result<Held, StorageError> {
        let failed = |error| file("lock", &self.owner)(error);
        let options = OpenOptions::new().read(true).write(true).create(true).clone();
        let mut owner = options.open(&self.owner).map_err(failed)?;
        let contended = match owner.try_lock() {
            Ok(()) => None,
            Err(TryLockError::WouldBlock) => {
                self.queue(&mut owner)?;
                Some(Instant::now())
            }
            Err(TryLockError::Error(error)) => return Err(file("lock", &self.owner)(error)),
        };
        let mut pause = Duration::from_millis(1);
        let mut seen: Option<(String, Instant)> = None;
        // Who held the lock last must be known before this process writes itself down.
        let last = written(&mut owner);
        loop {
            match self.create(&mut owner) {
                Ok(()) => break,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(file("create", &self.path)(error)),
            }
            let Some(now) = identity(&self.path) else { continue };
            let left = match &seen {
                Some((before, since)) if *before == now => since.elapsed() > self.grace,
                _ => {
                    seen = Some((now.clone(), Instant::now()));
                    // The owner's own lock is ours now: it is dead, or it would hold it.
                    last.as_deref().and_then(|last| last.lines().next()) == Some(now.as_str())
                }
            };
            if left && identity(&self.path).as_deref() == Some(&now) {
                remove(&self.path);
                continue;
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
        Ok(Held { path: self.path.clone(), owner, contended, released: false })
    }

    /// Waits for the owner's own lock. Who has it may itself wait for the grace period, until a lock of
    /// Optuna's counts as left behind; a process that keeps it for twice as long is alive, and suspended
    /// or stuck: nothing may be written in its place.
    fn queue(&self, owner: &mut File) -> Result<(), StorageError> {
        let (mut holder, mut since) = (written(owner), Instant::now());
        let mut look = Instant::now();
        let mut asked: Option<Instant> = None;
        loop {
            match owner.try_lock() {
                Ok(()) => return Ok(()),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(file("lock", &self.owner)(error)),
            }
            if self.stop.load(Ordering::SeqCst) {
                asked.get_or_insert_with(Instant::now);
            }
            if look.elapsed() > LONGEST_PAUSE {
                look = Instant::now();
                let now = written(owner);
                // Others take turns; only one that stays is stuck.
                if now != holder {
                    (holder, since) = (now, look);
                }
            }
            let stopped = asked.is_some_and(|asked| asked.max(since).elapsed() > STOPPED_GRACE);
            if since.elapsed() > 2 * self.grace || stopped {
                return Err(StorageError::Held {
                    journal: self.journal.display().to_string(),
                    holder: process(holder.as_deref()),
                    seconds: since.elapsed().as_secs(),
                });
            }
            std::thread::sleep(QUEUE_PAUSE);
        }
    }

    /// Makes the lock elsewhere, writes it down as this process's, and puts it into its place if there
    /// is none: a process that is killed at any moment leaves a lock that is known to be its own.
    fn create(&self, owner: &mut File) -> std::io::Result<()> {
        if self.path.symlink_metadata().is_ok() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let draft = &self.draft;
        let _ = std::fs::remove_file(draft);
        self.create_at(draft)?;
        write_down(owner, identity(draft));
        let linked = std::fs::hard_link(draft, &self.path);
        let _ = std::fs::remove_file(draft);
        match linked {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(error),
            // A file system without hard links.
            Err(_) => {
                self.create_at(&self.path)?;
                write_down(owner, identity(&self.path));
                Ok(())
            }
        }
    }

    fn create_at(&self, path: &Path) -> std::io::Result<()> {
        match self.kind {
            #[cfg(unix)]
            JournalLock::Link => std::os::unix::fs::symlink(&self.journal, path),
            #[cfg(windows)]
            JournalLock::Link => std::os::windows::fs::symlink_file(&self.journal, path),
            JournalLock::Open => {
                OpenOptions::new().write(true).create_new(true).open(path).map(drop)
            }
        }
    }
}

/// Keeps who holds the lock. A failure costs the next one a wait for the grace period, no more.
fn write_down(owner: &mut File, identity: Option<String>) {
    let (identity, process) = (identity.unwrap_or_default(), std::process::id());
    let text = format!("{identity}\n{process}\n{}\n", host());
    let _ = owner.rewind().and_then(|()| owner.write_all(text.as_bytes()));
    let _ = owner.set_len(text.len() as u64);
}

/// The process that was written down, for a message.
fn process(written: Option<&str>) -> String {
    let line = |at| written.and_then(|text| text.lines().nth(at)).filter(|line| !line.is_empty());
    let number = line(1).map_or("another process".to_owned(), |number| format!("process {number}"));
    match line(2).filter(|other| *other != host()) {
        Some(other) => format!("{number} of the machine {other}"),
        None => number,
    }
}

impl Held {
    fn release(&mut self) {
        if std::mem::replace(&mut self.released, true) {
            return;
        }
        remove(&self.path);
        // Where processes queue up here, the lock would never be seen free by one of Optuna's that
        // tries once a second: leave it free for as long as it was held.
        if let Some(since) = self.contended {
            std::thread::sleep(since.elapsed().min(LONGEST_GAP));
        }
        let _ = self.owner.unlock();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.release();
    }
}

/// Renames, then removes: of two that try, one succeeds.
fn remove(lock: &Path) {
    let mut name = lock.as_os_str().to_owned();
    name.push(format!("{}.rename", uuid::Uuid::new_v4()));
    let renamed = PathBuf::from(name);
    if std::fs::rename(lock, &renamed).is_ok() {
        let _ = std::fs::remove_file(&renamed);
    }
}

fn written(owner: &mut File) -> Option<String> {
    let mut text = String::new();
    owner.rewind().ok()?;
    owner.read_to_string(&mut text).ok()?;
    Some(text)
}

/// What tells this lock from the one before and the one after it; `None` if there is none. The
/// machine belongs to it: the system's lock may not reach beyond it.
fn identity(lock: &Path) -> Option<String> {
    let metadata = lock.symlink_metadata().ok()?;
    let since = metadata.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(format!("{} {} {}", machine(), inode(&metadata), since.as_nanos()))
}

#[cfg(unix)]
fn inode(metadata: &Metadata) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    metadata.ino()
}

#[cfg(not(unix))]
fn inode(_: &Metadata) -> u64 {
    0
}

/// What people call this machine; empty if it does not say.
fn host() -> &'static str {
    static HOST: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    HOST.get_or_init(|| {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        name.lines().next().unwrap_or_default().trim().to_owned()
    })
}

/// This machine since it was started: locks of the system do not outlive that.
fn machine() -> &'static str {
    static MACHINE: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    MACHINE.get_or_init(|| {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        id.map_or_else(|_| uuid::Uuid::new_v4().to_string(), |id| id.trim().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(folder: &Path, kind: JournalLock, grace: Duration) -> FileLock {
        let journal = folder.join("journal.log");
        std::fs::write(&journal, "").unwrap();
        FileLock::new(&journal, kind, grace)
    }

    #[test]
    fn a_lock_is_held_by_one_and_leaves_nothing() {
        for kind in [JournalLock::Link, JournalLock::Open] {
            let folder = tempfile::tempdir().unwrap();
            let lock = lock(folder.path(), kind, GRACE);
            let held = lock.acquire().unwrap();
            assert!(lock.path.symlink_metadata().is_ok());
            let (send, receive) = std::sync::mpsc::channel();
            std::thread::scope(|scope| {
                scope.spawn(|| send.send(lock.acquire().map(drop)));
                assert!(receive.recv_timeout(Duration::from_millis(50)).is_err());
                drop(held);
                receive.recv_timeout(Duration::from_secs(5)).unwrap().unwrap();
            });
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
        }
    }

    #[test]
    fn a_suspended_owner_is_named_after_the_grace_and_sooner_to_who_should_stop() {
        let folder = tempfile::tempdir().unwrap();
        let lock = lock(folder.path(), JournalLock::default(), Duration::from_millis(300));
        let held = lock.acquire().unwrap();
        let start = Instant::now();
        let error = lock.acquire().err().unwrap().to_string();
        assert!(start.elapsed() > Duration::from_millis(600), "{:?}", start.elapsed());
        assert!(error.contains("locked for"), "{error}");
        #[cfg(unix)]
        assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
        let patient = FileLock { grace: Duration::from_secs(60), ..lock };
        patient.stop.store(true, Ordering::SeqCst);
        let start = Instant::now();
        assert!(matches!(patient.acquire(), Err(StorageError::Held { .. })));
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        drop(held);
        drop(patient.acquire().unwrap());
    }

    #[test]
    fn a_holder_is_named_with_its_machine_if_that_is_another() {
        assert_eq!(process(None), "another process");
        assert_eq!(process(Some("id\n17\n")), "process 17");
        assert_eq!(process(Some(&format!("id\n17\n{}\n", host()))), "process 17");
        assert_eq!(process(Some("id\n17\nother\n")), "process 17 of the machine other");
    }

    #[test]
    fn a_dead_owner_of_this_machine_is_known_at_once_and_a_strange_one_after_the_grace() {
        let folder = tempfile::tempdir().unwrap();
        let lock = lock(folder.path(), JournalLock::default(), Duration::from_secs(30));
        let mut held = lock.acquire().unwrap();
        // What the system does when a process is killed.
        held.released = true;
        held.owner.unlock().unwrap();
        let start = Instant::now();
        drop(lock.acquire().unwrap());
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        // Optuna's process writes no owner.
        let lock = FileLock { grace: Duration::from_millis(300), ..lock };
        lock.create_at(&lock.path).unwrap();
        let start = Instant::now();
        drop(lock.acquire().unwrap());
        assert!(start.elapsed() > Duration::from_millis(300));
    }
}
