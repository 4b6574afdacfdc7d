//! Maps of files that may shrink, fail or be written to under a running job.
//!
//! A page behind the new end of a shrunken file raises SIGBUS, which kills the process without a
//! word. Here the fault is noted, the rest of the map becomes zeros, and whoever was reading finds
//! out by [`Guard::check`] before the values are used. Where only part of a page is gone, nothing is
//! raised and the kernel gives zeros, so the check looks at the file's length too. A file that is
//! deleted stays readable as long as it is mapped, and is no error. Of files that a record says are
//! finished, the check looks at the time of the last change as well: what is changed in place at the
//! same length shows there.

use std::fs::{self, File, Metadata};
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use memmap2::Mmap;

use crate::error::{CacheError, Damage, RUN_AGAIN};
use crate::files::{FileRecord, check_file};

/// Files that a process may have open on most systems.
const USUAL_LIMIT: usize = 1024;

/// Files of maps that are open.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// A file, mapped for reading: one that shrinks gives zeros, and an error from [`check`](Self::check).
#[derive(Clone, Debug)]
pub struct MappedFile(Arc<Guard>);

impl MappedFile {
    /// Maps a file of a folder that is finished, whose size must be that of its record; `verify` says
    /// whether to read all of it and compare its checksum, too.
    ///
    /// # Errors
    ///
    /// Says in what it is not the file of the record.
    pub fn open(
        folder: &std::path::Path,
        record: &FileRecord,
        verify: bool,
    ) -> Result<Self, Damage> {
        check_file(folder, record, verify).map(Self)
    }

    /// Maps a file that is nobody's record, such as one of a user's or one that still grows: a program that changes it in
    /// place changes what is read, and is not found out about.
    ///
    /// # Errors
    ///
    /// If it cannot be opened or mapped.
    pub fn of_path(path: &std::path::Path) -> io::Result<Self> {
        Self::mapped(path, |_| None)
    }

    /// Maps a file that nobody should write to meanwhile: [`check`](Self::check) finds out who did.
    ///
    /// # Errors
    ///
    /// If it cannot be opened or mapped.
    pub fn of_input(path: &std::path::Path) -> io::Result<Self> {
        Self::mapped(path, |file| Some(Stamp::of(file)))
    }

    fn mapped(
        path: &std::path::Path,
        stamp: impl FnOnce(&Metadata) -> Option<Stamp>,
    ) -> io::Result<Self> {
        let file = File::open(path)?;
        let stamp = stamp(&file.metadata()?);
        // SAFETY: as for any reader that maps a file, what others write to it is garbage in its bytes, which are only
        // ever parsed; that it shrinks is caught.
        let map = unsafe { Mmap::map(&file) }?;
        Ok(Self(Guard::new(map, file, path.to_owned(), stamp)))
    }

    /// Its content.
    pub fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    /// Whether everything that was read so far was there.
    ///
    /// # Errors
    ///
    /// When the file is shorter than its map, its disk could not give a page of it, or it was finished and has been written
    /// to.
    pub fn check(&self) -> Result<(), CacheError> {
        self.0.check()
    }

    /// Tells the system that these bytes have been read: they are no memory of this process any more, which is what
    /// its peak counts, and come from the file again if they are asked for after all. What lies behind the end of the
    /// map is left out.
    pub fn release(&self, bytes: Range<usize>) {
        self.0.release(bytes);
    }
}

/// A file mapped for reading.
#[derive(Debug)]
pub(crate) struct Guard {
    map: Mmap,
    path: PathBuf,
    file: Option<File>,
    /// What the file was when it was mapped, if it is not to change any more.
    finished: Option<Stamp>,
    #[cfg(unix)]
    region: Option<&'static fault::Region>,
}

impl Guard {
    /// Watches over the map of a file, which was this when it was opened if it is finished.
    pub(crate) fn new(map: Mmap, file: File, path: PathBuf, finished: Option<Stamp>) -> Arc<Self> {
        let keeps = OPEN.fetch_add(1, Ordering::Relaxed) < kept_open();
        if !keeps {
            OPEN.fetch_sub(1, Ordering::Relaxed);
        }
        #[cfg(unix)]
        let region = fault::watch(&map);
        Arc::new(Self {
            map,
            path,
            file: keeps.then_some(file),
            finished,
            #[cfg(unix)]
            region,
        })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Whether everything that was read so far was there.
    ///
    /// # Errors
    ///
    /// When the file is shorter than its map, its disk could not give a page of it, or it was finished and has been written
    /// to.
    pub(crate) fn check(&self) -> Result<(), CacheError> {
        let found = self.metadata();
        #[cfg(unix)]
        if self.region.is_some_and(fault::Region::hit) {
            return Err(self.damaged(found.ok().map(|found| found.len())));
        }
        match found {
            // Another file has its name now; the one that is mapped is as it was.
            Ok(found) if self.finished.is_some_and(|own| own.is_another(&found)) => Ok(()),
            Ok(found) if found.len() < self.map.len() as u64 => {
                Err(self.damaged(Some(found.len())))
            }
            Ok(found) if self.finished.is_some_and(|own| own.is_older_than(&found)) => {
                Err(self.vanished(Damage::Rewritten))
            }
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => {
                let source = Damage::Unreadable(error);
                Err(self.vanished(source))
            }
        }
    }

    fn metadata(&self) -> io::Result<Metadata> {
        match &self.file {
            Some(file) => file.metadata(),
            None => fs::metadata(&self.path),
        }
    }

    fn damaged(&self, found: Option<u64>) -> CacheError {
        let expected = self.map.len() as u64;
        let source = match found {
            Some(found) if found < expected => Damage::Size { found, expected },
            _ => Damage::Unreadable(io::Error::other("the disk could not read a page of it")),
        };
        self.vanished(source)
    }

    fn vanished(&self, source: Damage) -> CacheError {
        CacheError::Vanished { path: self.path.clone(), way_out: RUN_AGAIN, source }
    }

    /// Tells the system that these bytes are read soon. A hint: nothing goes wrong without it.
    pub(crate) fn will_need(&self, offset: usize, length: usize) {
        #[cfg(unix)]
        let _ = self.map.advise_range(memmap2::Advice::WillNeed, offset, length);
        #[cfg(not(unix))]
        let _ = (offset, length);
    }

    /// Takes these bytes' pages out of the process. A hint: nothing goes wrong without it.
    fn release(&self, bytes: Range<usize>) {
        let length = self.map.len();
        let (start, end) = (bytes.start.min(length), bytes.end.min(length));
        #[cfg(unix)]
        if start < end {
            // SAFETY: the range lies in the map, which is shared and read-only, so that its pages come back from the
            // file, or zeros where it has shrunk, which is what they are already.
            let _ = unsafe {
                self.map.unchecked_advise_range(
                    memmap2::UncheckedAdvice::DontNeed,
                    start,
                    end - start,
                )
            };
        }
        #[cfg(not(unix))]
        let _ = (start, end);
    }
}

/// By what a file is known again, and when its content was last changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    /// Device and number; none where the system has no such.
    identity: Option<[u64; 2]>,
    /// None where it is not kept.
    modified: Option<SystemTime>,
}

impl Stamp {
    pub(crate) fn of(file: &Metadata) -> Self {
        Self { identity: identity(file), modified: file.modified().ok() }
    }

    fn is_another(&self, file: &Metadata) -> bool {
        self.identity != identity(file)
    }

    fn is_older_than(&self, file: &Metadata) -> bool {
        self.modified != file.modified().ok()
    }
}

#[cfg(unix)]
fn identity(file: &Metadata) -> Option<[u64; 2]> {
    use std::os::unix::fs::MetadataExt;
    Some([file.dev(), file.ino()])
}

#[cfg(not(unix))]
fn identity(_: &Metadata) -> Option<[u64; 2]> {
    None
}

/// Files of maps that stay open, so that they are asked without a path, behind which another file may be by now: a
/// quarter of what the process may have open, which leaves room for all else. The others are asked by their paths.
fn kept_open() -> usize {
    static MOST: OnceLock<usize> = OnceLock::new();
    *MOST.get_or_init(|| limit_of_files().unwrap_or(USUAL_LIMIT) / 4)
}

/// Files that this process may have open, if the system says so.
#[cfg(unix)]
fn limit_of_files() -> Option<usize> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: it writes into a structure that outlives the call.
    let done = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    (done == 0).then(|| usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX))
}

#[cfg(not(unix))]
fn limit_of_files() -> Option<usize> {
    None
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.file.is_some() {
            OPEN.fetch_sub(1, Ordering::Relaxed);
        }
        #[cfg(unix)]
        if let Some(region) = self.region {
            region.forget();
        }
    }
}

#[cfg(unix)]
mod fault {
    //! The handler of SIGBUS, for faults within watched maps alone; any other goes where it went
    //! before.

    use std::ffi::{c_int, c_void};
    use std::mem::MaybeUninit;
    use std::ptr;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    /// Maps watched at a time: about as many as Linux lets a process have. A signal handler can take no lock, so their
    /// number is fixed.
    const REGIONS: usize = 1 << 16;

    static WATCHED: [Region; REGIONS] = [const { Region::free() }; REGIONS];
    /// Regions that were ever in use.
    static USED: AtomicUsize = AtomicUsize::new(0);
    /// Where the next free region is looked for first: behind the one that was taken last.
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    /// What handled SIGBUS before; none if the handler could not be installed.
    static BEFORE: OnceLock<Option<libc::sigaction>> = OnceLock::new();

    /// Addresses of a map.
    #[derive(Debug)]
    pub(super) struct Region {
        /// First address; 0 while it is free, 1 while it is being taken.
        start: AtomicUsize,
        end: AtomicUsize,
        hit: AtomicBool,
    }

    impl Region {
        const fn free() -> Self {
            Self {
                start: AtomicUsize::new(0),
                end: AtomicUsize::new(0),
                hit: AtomicBool::new(false),
            }
        }

        pub(super) fn hit(&self) -> bool {
            self.hit.load(Ordering::Acquire)
        }

        /// Frees it. The map is still there, so that no other can have its addresses.
        pub(super) fn forget(&self) {
            self.end.store(0, Ordering::Release);
            self.hit.store(false, Ordering::Release);
            self.start.store(0, Ordering::Release);
        }
    }

    /// Watches a map. None if that is not possible: a fault then ends the process, as without.
    pub(super) fn watch(map: &[u8]) -> Option<&'static Region> {
        BEFORE.get_or_init(install).as_ref()?;
        let range = map.as_ptr_range();
        let first = NEXT.load(Ordering::Relaxed) % REGIONS;
        for index in (first..REGIONS).chain(0..first) {
            let region = &WATCHED[index];
            let taken = region.start.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed);
            if taken.is_ok() {
                region.hit.store(false, Ordering::Release);
                region.end.store(range.end as usize, Ordering::Release);
                region.start.store(range.start as usize, Ordering::Release);
                USED.fetch_max(index + 1, Ordering::AcqRel);
                NEXT.store(index + 1, Ordering::Relaxed);
                return Some(region);
            }
        }
        None
    }

    fn install() -> Option<libc::sigaction> {
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: both structures are plain data that zeros are valid for; the handler has the
        // signature that SA_SIGINFO asks for and does only what a signal handler may.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&mut action.sa_mask);
            let done = libc::sigaction(libc::SIGBUS, &action, before.as_mut_ptr());
            (done == 0).then(|| before.assume_init())
        }
    }

    /// Puts zeros where the file has ended, so that the read that faulted can go on.
    extern "C" fn handle(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
        // SAFETY: the kernel passes a valid `info`; `mmap`, `sysconf` and `sigaction` may be called
        // here, and the pages replaced are those of a map that its owner only reads.
        unsafe {
            let at = (*info).si_addr() as usize;
            let used = USED.load(Ordering::Acquire).min(REGIONS);
            let within = |region: &'static Region| {
                let [start, end, again] = [&region.start, &region.end, &region.start]
                    .map(|one| one.load(Ordering::Acquire));
                // Another thread may have freed it meanwhile, and taken it for another map.
                let is_one = start > 1 && start == again;
                (is_one && start <= at && at < end).then_some((region, end))
            };
            if let Some((region, end)) = WATCHED[..used].iter().find_map(within) {
                let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
                let first = at - at % page;
                let length = end - first;
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                let to = first as *mut c_void;
                // Before the zeros are there: another thread may read them and ask at once.
                region.hit.store(true, Ordering::SeqCst);
                if libc::mmap(to, length, libc::PROT_READ, flags, -1, 0) != libc::MAP_FAILED {
                    return;
                }
            }
            // Not ours: the read faults again, under whatever was there before.
            match BEFORE.get() {
                Some(Some(before)) => libc::sigaction(libc::SIGBUS, before, ptr::null_mut()),
                _ => libc::signal(libc::SIGBUS, libc::SIG_DFL) as c_int,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// KiB of a file's pages that this process has.
    #[cfg(target_os = "linux")]
    fn resident(path: &std::path::Path) -> u64 {
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let of_file = maps.split_once(path.to_str().unwrap()).unwrap().1;
        let line = of_file.lines().find(|line| line.starts_with("Rss:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn a_file_in_the_place_of_one_that_is_mapped_is_not_that_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let opened = |is_kept: bool| {
            fs::write(&path, "as it was").unwrap();
            let blake3 = blake3::hash(b"as it was").to_hex().to_string();
            let record = FileRecord { name: "a".to_owned(), bytes: 9, blake3 };
            let mut file = MappedFile::open(folder.path(), &record, true).unwrap();
            let guard = Arc::get_mut(&mut file.0).unwrap();
            if !is_kept && guard.file.take().is_some() {
                OPEN.fetch_sub(1, Ordering::Relaxed);
            }
            file
        };
        for is_kept in [true, false] {
            let (file, other) = (opened(is_kept), folder.path().join("b"));
            fs::write(&other, "short").unwrap();
            #[cfg(unix)]
            {
                fs::rename(&other, &path).unwrap();
                file.check().unwrap();
            }
            let file = opened(is_kept);
            file.check().unwrap();
            let later = SystemTime::now() + std::time::Duration::from_secs(1);
            File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
            let error = file.check().unwrap_err();
            assert!(matches!(&error, CacheError::Vanished { source: Damage::Rewritten, .. }));
            assert_eq!(file.bytes(), b"as it was");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_quarter_of_the_files_that_may_be_open_are_those_of_maps() {
        let said = std::process::Command::new("sh").args(["-c", "ulimit -n"]).output().unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        // Where there is no limit, it is a word.
        let limit = said.trim().parse().unwrap_or(usize::MAX);
        assert_eq!(kept_open(), limit / 4);
    }

    #[test]
    fn released_bytes_take_no_memory_and_are_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("a");
        let content: Vec<u8> = (0..1 << 20).map(|index: u32| (index % 251) as u8).collect();
        fs::write(&path, &content).unwrap();
        let file = MappedFile::of_path(&path).unwrap();
        assert_eq!(file.bytes(), content);
        #[cfg(target_os = "linux")]
        assert_eq!(resident(&path), 1024);
        // Neither its first page nor what comes after the map, whatever lies there.
        file.release(8192..usize::MAX);
        file.release(usize::MAX..usize::MAX);
        #[cfg(target_os = "linux")]
        assert!(resident(&path) <= 8, "{}", resident(&path));
        assert_eq!(file.bytes(), content);
        file.check().unwrap();
    }
}
