//! The lock of a journal file, as Optuna's processes take it: a link or a file named `….lock`.
//!
//! Optuna waits for a lock whose owner was killed until the grace period has passed. Processes of
//! Firebox first take a lock of the operating system on `….owner`, in which the owner of the `.lock`
//! is written; the system frees it when a process dies, so the next one knows a dead owner at once.
//!
//! Optuna locks the name that it is given. Where that is a link to the journal, processes of Firebox take the
//! lock of that name as well, after that of the journal's own, so that they and Optuna's keep each other out by
//! either, unless a process may not write where the link is. Processes of Optuna that have different names of one
//! journal do not.
//!
//! What is written in `….owner` is of the latest owner alone. Where one that opened the journal by a link is killed,
//! and a process that has the journal's own name takes the lock next, the next one that opens it by the link waits for
//! the whole grace period.

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
/// What Optuna adds to the name of the journal.
const LOCK: &str = ".lock";
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
    /// The lock by the name of the link that the journal was opened by.
    alias: Option<PathBuf>,
    owner: PathBuf,
    kind: JournalLock,
    grace: Duration,
    /// Whether whoever waits should soon give up.
    pub(super) stop: Arc<AtomicBool>,
}

/// The lock while it is held.
pub(super) struct Held {
    /// Each name that is locked, with the lock's identity.
    taken: Vec<(PathBuf, String)>,
    owner: File,
    /// Since when, if other processes of Firebox wait as well.
    contended: Option<Instant>,
    released: bool,
}

impl FileLock {
    /// `journal` must be absolute: Optuna follows the link to see when the journal was last written.
    pub(super) fn new(journal: &Path, kind: JournalLock, grace: Duration) -> Self {
        let (path, owner) = (beside(journal, LOCK), beside(journal, ".owner"));
        Self {
            journal: journal.to_path_buf(),
            path,
            alias: None,
            owner,
            kind,
            grace,
            stop: Arc::default(),
        }
    }

    /// The same for a journal that was opened as `given`.
    pub(super) fn opened_as(mut self, given: &Path) -> Self {
        let is_link = given.symlink_metadata().is_ok_and(|found| found.file_type().is_symlink());
        let folder = given.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).canonicalize().ok();
        let name = folder.zip(given.file_name()).map(|(folder, name)| folder.join(name));
        self.alias = name.filter(|_| is_link).map(|name| beside(&name, LOCK));
        self
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
        // Who held the lock last must be known before this process writes itself down.
        let last = written(&mut owner);
        let mut held = Held { taken: vec![], owner, contended, released: false };
        for path in std::iter::once(&self.path).chain(&self.alias) {
            self.take(path, last.as_deref(), &mut held)?;
        }
        Ok(held)
    }

    /// Waits for the lock of one name. That of a link is left out where nothing may be written beside it.
    fn take(&self, path: &Path, last: Option<&str>, held: &mut Held) -> Result<(), StorageError> {
        let mut pause = Duration::from_millis(1);
        let mut seen: Option<(String, Instant)> = None;
        loop {
            match self.create(path, held) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                // Where this process may not lock the link's name, only that of the journal is locked.
                Err(error) if path != self.path && is_refused(&error) => return Ok(()),
                Err(error) => return Err(file("create", path)(error)),
            }
            let Some(now) = identity(path) else { continue };
            let left = match &seen {
                Some((before, since)) if *before == now => since.elapsed() > self.grace,
                _ => {
                    seen = Some((now.clone(), Instant::now()));
                    // The owner's own lock is ours now: it is dead, or it would hold it.
                    last.is_some_and(|last| last.lines().any(|line| line == now))
                }
            };
            if left && identity(path).as_deref() == Some(&now) {
                match remove(path) {
                    Err(error) if is_refused(&error) && path != self.path => return Ok(()),
                    Err(error) if is_refused(&error) => return Err(file("remove", path)(error)),
                    // Else another process was faster.
                    _ => continue,
                }
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
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
    fn create(&self, path: &Path, held: &mut Held) -> std::io::Result<()> {
        if path.symlink_metadata().is_ok() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        // Only the owner of this machine makes one.
        let draft = &beside(path, &format!("-{}", machine()));
        let _ = std::fs::remove_file(draft);
        self.create_at(draft)?;
        let mut own = identity(draft).unwrap_or_default();
        held.write_down(&own);
        let linked = std::fs::hard_link(draft, path);
        let _ = std::fs::remove_file(draft);
        match linked {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(error),
            // A file system without hard links.
            Err(_) => {
                self.create_at(path)?;
                own = identity(path).unwrap_or_default();
                held.write_down(&own);
            }
        }
        held.taken.push((path.to_path_buf(), own));
        Ok(())
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

/// Whether this process may write no file there.
fn is_refused(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
}

/// The file beside this one whose name has this behind it.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
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
    /// Keeps who holds the lock, and that this is the next one. A failure costs the next process a wait for the
    /// grace period, no more.
    fn write_down(&mut self, next: &str) {
        let mut identities = self.taken.iter().map(|(_, identity)| identity.as_str()).chain([next]);
        let (first, process) = (identities.next().unwrap_or_default(), std::process::id());
        let mut text = format!("{first}\n{process}\n{}\n", host());
        identities.for_each(|identity| text += &format!("{identity}\n"));
        let owner = &mut self.owner;
        let _ = owner.rewind().and_then(|()| owner.write_all(text.as_bytes()));
        let _ = owner.set_len(text.len() as u64);
    }

    fn release(&mut self) {
        if std::mem::replace(&mut self.released, true) {
            return;
        }
        self.taken.iter().rev().for_each(|(path, _)| drop(remove(path)));
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
fn remove(lock: &Path) -> std::io::Result<()> {
    let mut name = lock.as_os_str().to_owned();
    name.push(format!("{}.rename", uuid::Uuid::new_v4()));
    let renamed = PathBuf::from(name);
    std::fs::rename(lock, &renamed)?;
    std::fs::remove_file(&renamed)
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

    #[cfg(unix)]
    #[test]
    fn a_journal_behind_a_link_is_locked_by_both_of_its_names() {
        let [folder, elsewhere] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let lock = lock(folder.path(), JournalLock::default(), GRACE);
        let link = elsewhere.path().join("study.log");
        std::os::unix::fs::symlink(&lock.journal, &link).unwrap();
        let lock = lock.opened_as(&link);
        let locks =
            [folder.path().join("journal.log.lock"), elsewhere.path().join("study.log.lock")];
        let there = || locks.each_ref().map(|lock| lock.symlink_metadata().is_ok());
        let mut held = lock.acquire().unwrap();
        assert_eq!(there(), [true; 2]);
        // As in the test of a dead owner below: it is known by both.
        held.released = true;
        held.owner.unlock().unwrap();
        let start = Instant::now();
        drop(lock.acquire().unwrap());
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        assert_eq!(there(), [false; 2]);
        // A process of Optuna that was given the link.
        lock.create_at(&locks[1]).unwrap();
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| send.send(lock.acquire().map(drop)));
            assert!(receive.recv_timeout(Duration::from_millis(50)).is_err());
            std::fs::remove_file(&locks[1]).unwrap();
            receive.recv_timeout(Duration::from_secs(5)).unwrap().unwrap();
        });
        // By its own name it has one.
        let journal = folder.path().join("journal.log");
        assert_eq!(
            FileLock::new(&journal, JournalLock::Open, GRACE).opened_as(&journal).alias,
            None
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_link_where_nobody_may_write_leaves_the_lock_of_the_journal_alone() {
        for kind in [JournalLock::Link, JournalLock::Open] {
            let folder = tempfile::tempdir().unwrap();
            let lock = lock(folder.path(), kind, GRACE);
            // The kernel refuses files here to everybody.
            let refused = PathBuf::from("/sys/firebox.log.lock");
            let lock = FileLock { alias: Some(refused.clone()), ..lock };
            let held = lock.acquire().unwrap();
            let taken = held.taken.iter().map(|(path, _)| path).collect::<Vec<_>>();
            assert_eq!(taken, [&lock.path]);
            assert!(lock.path.symlink_metadata().is_ok() && refused.symlink_metadata().is_err());
            drop(held);
            assert!(lock.path.symlink_metadata().is_err());
            // The same of the journal's own name is an error.
            let lock = FileLock { path: refused, alias: None, ..lock };
            assert!(lock.acquire().is_err());
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
