//! What memory a step takes, and a note of the step that had too little.
//!
//! On a processor an allocation that fails ends the process: Rust's collections cannot go on without
//! what they asked for, and an allocator must not unwind. So the program's allocator tells this
//! module what it gives and takes back ([`took`], [`gave`]), and in its last moment which step,
//! validation or checkpoint had too little ([`ran_out`]). The note is a file in the run's folder, made before the first
//! step and written without a further byte of memory. The program then begins itself anew, and the run
//! goes on from its newest checkpoint with smaller parts (see `division`).
//!
//! Nothing here allocates or waits. A process without such an allocator knows nothing of its memory,
//! and dies as it always did. Of several trainings at a time in one process, the one that was begun last has the note;
//! the others take no step that is noted.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::division::BatchWork;

/// Name of the note within the run's folder.
pub(crate) const NOTE_FILE: &str = "out-of-memory";

/// Bytes that the allocator has given and not taken back.
static HELD: AtomicU64 = AtomicU64::new(0);
/// The most of them since the peak was last reset.
static PEAK: AtomicU64 = AtomicU64::new(0);
/// What may be held at most.
static LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);
/// Step, parts and samples of a part that are being computed, and what for, as its place in [`WORK`]; step 0
/// for none.
static IN_HAND: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
/// How much of what is in hand may take more than [`LIMIT`], as long as the system gives it.
static BEYOND: AtomicU64 = AtomicU64::new(0);
/// What takes memory.
const WORK: [BatchWork; 4] =
    [BatchWork::Step, BatchWork::Validation, BatchWork::Checkpoint, BatchWork::Statistics];
/// Number of the watch that was started last, which has all this.
static LAST: AtomicU64 = AtomicU64::new(0);
/// Where a note would be written.
static NOTE: RwLock<Option<File>> = RwLock::new(None);

/// Counts an allocation. Returns whether it keeps to the limit of [`limit_to`], or may go beyond it: a checkpoint
/// beside which nothing is left to give up may.
pub fn took(bytes: usize) -> bool {
    let held = HELD.fetch_add(bytes as u64, Relaxed) + bytes as u64;
    if held > PEAK.load(Relaxed) {
        PEAK.fetch_max(held, Relaxed);
    }
    held <= LIMIT.load(Relaxed) || BEYOND.load(Relaxed) > 0
}

/// Counts what is given back.
pub fn gave(bytes: usize) {
    HELD.fetch_sub(bytes as u64, Relaxed);
}

/// From now on, [`took`] says when more bytes than this are held.
pub fn limit_to(bytes: u64) {
    LIMIT.store(bytes, Relaxed);
}

/// What [`limit_to`] was told last; `None` if nothing.
pub fn limit() -> Option<u64> {
    Some(LIMIT.load(Relaxed)).filter(|limit| *limit < u64::MAX)
}

/// Bytes held now; `None` if no allocator counts them.
pub fn held() -> Option<u64> {
    (PEAK.load(Relaxed) > 0).then(|| HELD.load(Relaxed))
}

/// The most bytes that were held at any time since [`reset_peak`]; `None` if no allocator counts.
pub fn peak() -> Option<u64> {
    Some(PEAK.load(Relaxed)).filter(|peak| *peak > 0)
}

/// Begins to look for another peak, if an allocator counts.
pub fn reset_peak() {
    if peak().is_some() {
        PEAK.store(HELD.load(Relaxed).max(1), Relaxed);
    }
}

/// Whether a training step or a validation is being computed, or a checkpoint saved, in a run that can be gone on with.
pub fn is_in_step() -> bool {
    IN_HAND[0].load(Relaxed) > 0
}

/// For the allocator, when it has nothing to give: notes the step in hand. Returns whether it did, so
/// that the run can go on in a new process.
pub fn ran_out(bytes: usize) -> bool {
    let [step, parts, samples, work] = IN_HAND.each_ref().map(|value| value.load(Relaxed));
    // Whoever holds it to write is between two runs.
    let Ok(note) = NOTE.try_read() else { return false };
    let Some(mut file) = note.as_ref().filter(|_| step > 0) else { return false };
    let mut record = [0; 40];
    let values = [step, parts, samples, bytes as u64, work];
    for (place, value) in record.chunks_exact_mut(8).zip(values) {
        place.copy_from_slice(&value.to_le_bytes());
    }
    file.seek(SeekFrom::Start(0)).is_ok() && file.write_all(&record).is_ok()
}

/// What a process that ran out of memory left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    /// What was computed.
    pub(crate) work: BatchWork,
    /// The step, from 1.
    pub(crate) step: u64,
    /// Parts that each of its batches was computed in.
    pub(crate) parts: u64,
    /// Samples of such a part.
    pub(crate) samples: u64,
    /// Bytes that were asked for and not given; 0 if that is not known.
    pub(crate) bytes: u64,
}

/// Reads the note of an earlier process.
pub(crate) fn read_note(folder: &Path) -> Option<Shortage> {
    let record = std::fs::read(folder.join(NOTE_FILE)).ok()?;
    let values: Vec<u64> = record
        .chunks_exact(8)
        .filter_map(|value| Some(u64::from_le_bytes(value.try_into().ok()?)))
        .collect();
    let &[step, parts, samples, bytes, work] = values.as_slice() else { return None };
    let work = *WORK.get(usize::try_from(work).ok()?)?;
    (step > 0).then_some(Shortage { work, step, parts, samples, bytes })
}

/// Keeps an empty note open for as long as a run goes on, and removes it if nothing came to be noted.
#[derive(Debug)]
pub(crate) struct Watch {
    path: Option<PathBuf>,
    number: u64,
    /// Whether what it has in hand counts in [`BEYOND`].
    is_beyond: AtomicBool,
}

impl Watch {
    /// Empties the note of this run, or makes it. A run that nobody would go on with has none.
    pub(crate) fn start(folder: &Path, resumed: bool) -> std::io::Result<Self> {
        let path = resumed.then(|| folder.join(NOTE_FILE));
        let file = path.as_ref().map(File::create).transpose()?;
        let note = NOTE.write();
        let number = LAST.fetch_add(1, Relaxed) + 1;
        IN_HAND[0].store(0, Relaxed);
        if let Ok(mut note) = note {
            *note = file;
        }
        Ok(Self { path, number, is_beyond: AtomicBool::new(false) })
    }

    /// Whether no other one was begun later.
    fn is_owner(&self) -> bool {
        LAST.load(Relaxed) == self.number
    }

    /// Says what takes memory from now on, of which step, in how many parts of how many samples each.
    pub(crate) fn begin(&self, work: BatchWork, step: u64, parts: u64, samples: u64) {
        if !self.is_owner() {
            return;
        }
        let work = WORK.iter().position(|one| *one == work).unwrap_or_default() as u64;
        for (place, value) in IN_HAND.iter().zip([step, parts, samples, work]).rev() {
            place.store(value, Relaxed);
        }
    }

    /// The same of what there is nothing left to give up for: the limit of [`limit_to`] does not count for it.
    pub(crate) fn begin_beyond(&self, work: BatchWork, step: u64, parts: u64, samples: u64) {
        if !self.is_beyond.swap(true, Relaxed) {
            BEYOND.fetch_add(1, Relaxed);
        }
        self.begin(work, step, parts, samples);
    }

    /// Says that nothing of the kind is in hand.
    pub(crate) fn end(&self) {
        if self.is_beyond.swap(false, Relaxed) {
            BEYOND.fetch_sub(1, Relaxed);
        }
        if self.is_owner() {
            IN_HAND[0].store(0, Relaxed);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end();
        if let Ok(mut note) = NOTE.write()
            && self.is_owner()
        {
            *note = None;
        }
        let empty = |path: &PathBuf| path.metadata().is_ok_and(|file| file.len() == 0);
        if let Some(path) = self.path.as_ref().filter(|path| empty(path)) {
            // An empty note that stays says nothing.
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;

    /// What is in hand is the whole process's.
    static ALONE: Mutex<()> = Mutex::new(());

    #[test]
    fn a_note_is_written_within_a_step_and_read_back() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read_note(folder.path()), None);
        let watch = Watch::start(folder.path(), true).unwrap();
        assert!(!ran_out(100) && !is_in_step());
        for work in WORK.into_iter().rev() {
            watch.begin(work, 7, 2, 64);
            assert!(is_in_step() && ran_out(4096));
            let shortage = Shortage { work, step: 7, parts: 2, samples: 64, bytes: 4096 };
            assert_eq!(read_note(folder.path()), Some(shortage));
        }
        watch.end();
        assert!(!ran_out(1));
        drop(watch);
        let watch = Watch::start(folder.path(), false).unwrap();
        watch.begin(BatchWork::Step, 8, 1, 64);
        assert!(!ran_out(1) && read_note(folder.path()).unwrap().step == 7);
        drop(watch);
        assert!(folder.path().join(NOTE_FILE).is_file());
        let watch = Watch::start(folder.path(), true).unwrap();
        assert!(folder.path().join(NOTE_FILE).is_file());
        drop(watch);
        assert_eq!(read_note(folder.path()), None);
        assert!(!folder.path().join(NOTE_FILE).exists(), "an empty note stays");
    }

    #[test]
    fn what_is_held_and_the_most_of_it_are_counted() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        // Nothing else in this process counts.
        assert_eq!((held(), peak()), (None, None));
        assert!(took(1000) && took(500));
        gave(1000);
        assert_eq!((held(), peak()), (Some(500), Some(1500)));
        reset_peak();
        assert!(took(100));
        assert_eq!(peak(), Some(600));
        limit_to(650);
        assert!(took(50) && !took(100));
        let folder = tempfile::tempdir().unwrap();
        let watch = Watch::start(folder.path(), true).unwrap();
        watch.begin_beyond(BatchWork::Checkpoint, 1, 1, 1);
        assert!(took(100));
        watch.end();
        assert!(!took(0));
        gave(100);
        drop(watch);
        assert_eq!(limit(), Some(650));
        limit_to(u64::MAX);
        assert_eq!(limit(), None);
        assert_eq!(held(), Some(750));
        gave(750);
    }
}
