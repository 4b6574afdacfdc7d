//! The folder of one run: its lock, its event log, and the manifest that says it is finished.

use std::fs::{DirEntry, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use firebox_core::{Event, Key, Listener, is_training};
use firebox_export::{CARD, TOKENIZER, WEIGHTS};
use serde::{Deserialize, Serialize};

use crate::error::{PipelineError, at};
use crate::kept::{MODEL, MODELS};
use crate::test_table::FILE as TABLE;

/// Name of the resolved pipeline within a run folder.
pub(crate) const PIPELINE: &str = "pipeline.toml";
const MANIFEST: &str = "manifest.json";
pub(crate) const BEGUN: &str = "run.json";
const EVENTS: &str = "events.jsonl";
const LOCK: &str = "lock";
/// Name of the file that says that a search made the run, and may remove its checkpoints.
const SEARCHED: &str = "searched";
/// What is in the folder of a run before anything is made; the lock goes last.
const BEGINNING: [&str; 5] = [BEGUN, PIPELINE, EVENTS, SEARCHED, LOCK];
/// What a finished run consists of, beside its checkpoints.
const RESULTS: [&str; 4] = [PIPELINE, "scores.json", "summary.md", "report.html"];

/// Time for which somebody who only looks whether the run is alive may hold its lock.
const LOOKED_AT: Duration = Duration::from_millis(50);

/// A run folder, locked by this process.
pub(crate) struct RunFolder {
    path: PathBuf,
    /// Whether it was not there before.
    new: bool,
    _lock: File,
}

/// Written last: a run with a manifest that fits its files is finished.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    /// Key of the evaluation, which contains those of everything before it.
    key: Key,
    /// What is printed when the run is asked for again.
    trained: String,
    /// First line of the report.
    verdict: String,
    /// BLAKE3 of each result.
    files: Vec<(String, String)>,
}

/// What a run was begun as; its folder may be renamed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Begun {
    /// Name of the pipeline.
    pub(crate) name: String,
    /// Key of its training.
    pub(crate) training: Key,
}

/// What the run in this folder was begun as; `None` where there is no run, or one of an earlier version, which did not
/// say.
///
/// # Errors
///
/// When the run's file is damaged: nothing could be checked by it.
pub(crate) fn begun(path: &Path) -> Result<Option<Begun>, PipelineError> {
    let file = path.join(BEGUN);
    let text = match std::fs::read(&file) {
        Ok(text) => text,
        Err(_) if !file.is_file() => return Ok(None),
        Err(source) => return Err(at(&file)(source)),
    };
    match serde_json::from_slice(&text) {
        Ok(begun) => Ok(Some(begun)),
        // Other programs have files of that name, too.
        Err(_) if !path.join(PIPELINE).is_file() => Ok(None),
        Err(error) => Err(PipelineError::Setting(format!(
            "{} is damaged, which says what the run was begun as: {error}\n  \
             run its pipeline file without --resume, which finds the run and writes that file anew; of a folder that was renamed, remove the file, and nothing is checked by it",
            file.display()
        ))),
    }
}

/// Whether this is the folder of a run that says what it was begun as, well or not: other programs have files of some
/// of these names.
pub(crate) fn is_run(path: &Path) -> bool {
    [BEGUN, PIPELINE, EVENTS].iter().all(|name| path.join(name).is_file())
}

/// What is said of a run whose damaged `run.json` is written anew.
pub(crate) fn written_anew(path: &Path) -> String {
    format!(
        "{} was damaged, and is written anew: this pipeline says what the run was begun as",
        path.join(BEGUN).display()
    )
}

/// What a finished run said.
#[derive(Clone, Debug)]
pub(crate) struct Conclusion {
    pub(crate) trained: String,
    pub(crate) verdict: String,
}

/// Whether a search made the run in this folder, and nobody asked for it since.
pub(crate) fn is_searched(path: &Path) -> bool {
    path.join(SEARCHED).is_file()
}

/// Takes that back: whoever asked for the run keeps its checkpoints. Where nothing can be written, nobody removes them.
pub(crate) fn unmark(path: &Path) {
    let _ = std::fs::remove_file(path.join(SEARCHED));
}

impl RunFolder {
    /// Makes the folder if it is new, and locks it.
    pub(crate) fn open(path: &Path) -> Result<Self, PipelineError> {
        let new = make(path).map_err(at(path))?;
        let file = path.join(LOCK);
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&file);
        let lock = match lock {
            // It went at this moment.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !path.is_dir() => {
                return Self::open(path);
            }
            lock => lock.map_err(at(&file))?,
        };
        let until = Instant::now() + LOOKED_AT;
        let mut taken = lock.try_lock();
        while matches!(taken, Err(TryLockError::WouldBlock)) && Instant::now() < until {
            std::thread::sleep(LOOKED_AT / 10);
            taken = lock.try_lock();
        }
        match taken {
            // Whoever held it was refused, and took the folder away.
            Ok(()) if !is_still(&lock, &file) => Self::open(path),
            Ok(()) => Ok(Self { path: path.to_path_buf(), new, _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(PipelineError::InUse(path.to_path_buf())),
            Err(TryLockError::Error(source)) => Err(at(&file)(source)),
        }
    }

    /// Removes the folder of a run that was refused before anything was made. One that was there before, or that
    /// has anything else in it, such as a checkpoint, stays as it is.
    pub(crate) fn forget(&self) {
        let begun = |entry: std::io::Result<DirEntry>| {
            entry.is_ok_and(|entry| BEGINNING.iter().any(|name| entry.file_name() == *name))
        };
        let bare = || std::fs::read_dir(&self.path).is_ok_and(|mut all| all.all(begun));
        if !self.new || !bare() {
            return;
        }
        // What cannot be removed does no harm, and the folder goes only if it is empty by then.
        for name in BEGINNING {
            let _ = std::fs::remove_file(self.path.join(name));
        }
        let _ = std::fs::remove_dir(&self.path);
    }

    /// Says that a search made the run, if it is new.
    pub(crate) fn mark_if_new(&self) -> Result<(), PipelineError> {
        if self.new { self.write(SEARCHED, b"") } else { Ok(()) }
    }

    /// Writes a file so that it is either whole or not there.
    pub(crate) fn write(&self, name: &str, content: &[u8]) -> Result<(), PipelineError> {
        let path = self.path.join(name);
        write_whole(&path, content).map_err(at(&path))
    }

    /// Writes down what the run is begun as.
    pub(crate) fn begin(&self, begun: &Begun) -> Result<(), PipelineError> {
        let text = serde_json::to_vec_pretty(begun).map_err(|e| at(&self.path)(e.into()))?;
        self.write(BEGUN, &text)
    }

    /// Takes back the word that the run is finished, before anything of it is made again.
    pub(crate) fn unfinish(&self) -> Result<(), PipelineError> {
        let path = self.path.join(MANIFEST);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(at(&path)(error)),
            _ => Ok(()),
        }
    }

    /// Says that the run is finished.
    pub(crate) fn finish(&self, key: Key, said: &Conclusion) -> Result<(), PipelineError> {
        let mut files = Vec::new();
        let kept = [WEIGHTS, CARD, TOKENIZER].map(|name| format!("{MODEL}/{name}"));
        let more = kept.into_iter().chain([TABLE.to_owned()]).chain(self.models());
        let more = more.filter(|name| self.path.join(name).is_file());
        for name in RESULTS.map(str::to_owned).into_iter().chain(more) {
            let path = self.path.join(&name);
            files.push((name, checksum(&path).map_err(at(&path))?));
        }
        let Conclusion { trained, verdict } = said.clone();
        let manifest = Manifest { key, trained, verdict, files };
        let text = serde_json::to_vec_pretty(&manifest).map_err(|e| at(&self.path)(e.into()))?;
        self.write(MANIFEST, &text)
    }

    /// The files of a run's further models.
    fn models(&self) -> impl Iterator<Item = String> {
        let below = |name: &str| {
            let all = std::fs::read_dir(self.path.join(name)).into_iter().flatten().flatten();
            let name = name.to_owned();
            all.map(move |entry| format!("{name}/{}", entry.file_name().to_string_lossy()))
        };
        let mut all: Vec<String> = below(MODELS).flat_map(|model| below(&model)).collect();
        all.sort();
        all.into_iter()
    }

    /// The events of this run, appended to what earlier attempts left.
    pub(crate) fn events(&self) -> Result<EventLog, PipelineError> {
        let path = self.path.join(EVENTS);
        let mut options = OpenOptions::new();
        let mut file =
            options.create(true).append(true).read(true).open(&path).map_err(at(&path))?;
        // A killed attempt may have left half a line; nothing may be appended to that.
        if ends_within_a_line(&mut file).map_err(at(&path))? {
            file.write_all(b"\n").map_err(at(&path))?;
        }
        Ok(EventLog::new(file))
    }
}

/// Whether something stands behind the last end of a line.
fn ends_within_a_line(file: &mut File) -> std::io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

/// Whether a lock is still the file of that name.
#[cfg(unix)]
fn is_still(lock: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let place = |about: std::fs::Metadata| (about.dev(), about.ino());
    let found = std::fs::metadata(path).map(place).ok();
    found.is_some() && lock.metadata().map(place).ok() == found
}

/// Whether a lock is still the file of that name, which cannot be removed while it is open.
#[cfg(not(unix))]
fn is_still(_: &File, path: &Path) -> bool {
    path.is_file()
}

/// Makes a folder, and says whether it was not there.
fn make(path: &Path) -> std::io::Result<bool> {
    path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    match std::fs::create_dir(path) {
        Ok(()) => Ok(true),
        Err(_) if path.is_dir() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes a file so that it is either whole or what was there before.
pub(crate) fn write_whole(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut file = temporary().tempfile_in(folder.unwrap_or(Path::new(".")))?;
    file.write_all(content).and_then(|()| file.as_file().sync_all())?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Temporary files that others may read as they may any file, once these are in their place.
pub(crate) fn temporary() -> tempfile::Builder<'static, 'static> {
    #[cfg_attr(not(unix), allow(unused_mut))]
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder
}

/// Steps that the newest checkpoint of a run has behind it, whole or not.
pub(crate) fn steps_saved(path: &Path) -> Option<u64> {
    let checkpoints = firebox_train::checkpoints(&path.join(firebox_train::CHECKPOINT_FOLDER));
    checkpoints.ok()?.iter().map(|checkpoint| checkpoint.manifest().step).max()
}

/// Steps that a run has behind it when it begins: all of its training's, if that has ended, or those of its newest whole
/// checkpoint.
pub(crate) fn steps_behind(path: &Path) -> Option<u64> {
    #[derive(Deserialize)]
    struct Ended {
        steps: u64,
    }
    let text = std::fs::read(path.join(firebox_train::SUMMARY_FILE)).ok();
    let ended: Option<Ended> = text.and_then(|text| serde_json::from_slice(&text).ok());
    ended.map(|ended| ended.steps).or_else(|| steps_whole(path))
}

/// Steps that the newest whole checkpoint of a run has behind it: where it goes on from.
pub(crate) fn steps_whole(path: &Path) -> Option<u64> {
    let checkpoints = firebox_train::checkpoints(&path.join(firebox_train::CHECKPOINT_FOLDER));
    let whole = checkpoints.ok()?.into_iter().find(|checkpoint| checkpoint.verify().is_ok());
    whole.map(|checkpoint| checkpoint.manifest().step)
}

fn manifest(path: &Path) -> Option<Manifest> {
    serde_json::from_slice(&std::fs::read(path.join(MANIFEST)).ok()?).ok()
}

/// Whether the run in `path` says that it is finished.
pub(crate) fn is_finished(path: &Path) -> bool {
    manifest(path).is_some()
}

/// Whether the run in `path` is finished under another key than this.
pub(crate) fn is_otherwise_finished(path: &Path, key: Key) -> bool {
    manifest(path).is_some_and(|manifest| manifest.key != key)
}

/// What the run in `path` concluded, if it is finished under `key` and every result is whole.
pub(crate) fn conclusion(path: &Path, key: Key) -> Option<Conclusion> {
    let manifest = manifest(path)?;
    let whole = |(name, expected): &(String, String)| {
        checksum(&path.join(name)).is_ok_and(|found| found == *expected)
    };
    let Manifest { trained, verdict, files, .. } = manifest;
    (manifest.key == key && files.iter().all(whole)).then_some(Conclusion { trained, verdict })
}

fn checksum(path: &Path) -> std::io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    std::io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok(hasher.finalize().to_hex().to_string())
}

/// Time between two lines on how far one stage is.
const PROGRESS: Duration = Duration::from_secs(1);

/// `events.jsonl`: one event a line with the time it was written, milliseconds since 1970 UTC.
pub(crate) struct EventLog {
    open: Mutex<Open>,
    /// Why a line could not be written, until that is said.
    lost: OnceLock<String>,
    said: AtomicBool,
}

impl EventLog {
    fn new(file: File) -> Self {
        let open = Mutex::new(Open { file, progress: None });
        Self { open, lost: OnceLock::new(), said: AtomicBool::new(false) }
    }

    /// What is to be said once: lines that are missing. Costs a memory access if there is nothing.
    pub(crate) fn warning(&self) -> Option<String> {
        let lost = self.lost.get()?;
        if self.said.swap(true, Ordering::Relaxed) {
            return None;
        }
        Some(format!(
            "events.jsonl cannot be written: {lost}; training goes on, and what happens meanwhile is missing in the log and in what is made of it"
        ))
    }
}

struct Open {
    file: File,
    /// The stage whose progress was told last, and when.
    progress: Option<(String, Instant)>,
}

impl Open {
    /// Whether progress of this stage is worth a line: a run that is watched needs to tell how far
    /// it is and that all is done, and a log needs no line for each sample.
    fn tells(&mut self, stage: &str, all: bool) -> bool {
        let now = Instant::now();
        let told = self.progress.as_ref();
        if !all && told.is_some_and(|(known, at)| known == stage && now - *at < PROGRESS) {
            return false;
        }
        self.progress = Some((stage.to_owned(), now));
        true
    }
}

#[derive(Serialize)]
struct Line<'a> {
    time: u128,
    #[serde(flatten)]
    event: &'a Event,
}

impl Listener for EventLog {
    fn on(&self, event: &Event) {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis());
        let Ok(mut open) = self.open.lock() else { return };
        if let Event::Progress { stage, done, total, .. } = event
            && !open.tells(stage, done == total)
        {
            return;
        }
        let Ok(mut line) = serde_json::to_vec(&Line { time, event }) else { return };
        line.push(b'\n');
        // One write a line, without a buffer: a killed run must not lose the steps that a checkpoint
        // has counted. A log that cannot be written must not end it either.
        if let Err(error) = open.file.write_all(&line) {
            let _ = self.lost.set(error.to_string());
        }
    }
}

/// The attempts that it took to finish a run, as its events tell them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Attempts {
    /// How often the run was begun or gone on with.
    pub(crate) count: u64,
    /// How many of them trained. Others ended before that, or measured what was trained: the best trial of a search, or the run
    /// of other evaluations.
    pub(crate) trained: u64,
    /// Wall-clock time of all of them.
    pub(crate) seconds: f64,
    /// Stages that an attempt did not live to end, with the time that it spent in them.
    pub(crate) cut: Vec<(String, f64)>,
    /// Lines of the log that cannot be read, besides those that a killed attempt wrote in part.
    pub(crate) unreadable: usize,
}

impl Attempts {
    /// How many there were, for a reader, if there were several.
    pub(crate) fn told(&self) -> Option<String> {
        let trained = match self.trained == self.count {
            true => String::new(),
            false => format!(", of which {} trained", self.trained),
        };
        let said = || format!("{}{trained}; times are summed over them", self.count);
        (self.count > 1).then(said)
    }
}

/// Where an attempt stands.
#[derive(Default)]
struct Attempt {
    began: Option<u64>,
    last: u64,
    stage: Option<(String, u64)>,
    trained: bool,
}

impl Attempt {
    fn close(self, attempts: &mut Attempts) {
        let cut = self.stage.as_ref().is_some_and(|(stage, _)| is_training(stage));
        attempts.trained += u64::from(self.trained || cut);
        let seconds = |from: u64| self.last.saturating_sub(from) as f64 / 1e3;
        if let Some(began) = self.began {
            attempts.seconds += seconds(began);
        }
        if let Some((stage, began)) = self.stage {
            attempts.cut.push((stage, seconds(began)));
        }
    }
}

#[derive(Deserialize)]
struct Stamp {
    time: u64,
}

/// Reads the events of all attempts of a run, in order. What cannot be read is left out.
pub(crate) fn replay(path: &Path, take: &mut dyn FnMut(&Event)) -> Result<Attempts, PipelineError> {
    let path = path.join(EVENTS);
    let bytes = std::fs::read(&path).map_err(at(&path))?;
    let (mut attempts, mut now) = (Attempts::default(), Attempt::default());
    for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
        let event: Event = match serde_json::from_slice(line) {
            Ok(event) => event,
            // Half a line is what a killed attempt leaves.
            Err(error) if error.is_eof() => continue,
            Err(_) => {
                attempts.unreadable += 1;
                continue;
            }
        };
        let time = serde_json::from_slice(line).map_or(now.last, |stamp: Stamp| stamp.time);
        match &event {
            Event::RunStarted { .. } => {
                std::mem::take(&mut now).close(&mut attempts);
                attempts.count += 1;
                now.began = Some(time);
            }
            Event::StageStarted { stage } => now.stage = Some((stage.clone(), time)),
            Event::StageFinished { stage, reused, .. } => {
                now.trained |= is_training(stage) && !reused;
                now.stage = None;
            }
            _ => {}
        }
        now.last = time;
        take(&event);
    }
    now.close(&mut attempts);
    Ok(attempts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_training_that_has_ended_has_all_its_steps_behind_it() {
        // Where its best epoch is not its last, the checkpoint that is left is an earlier one.
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(steps_behind(folder.path()), None);
        std::fs::write(folder.path().join("training.json"), r#"{"steps":294,"epochs":6}"#).unwrap();
        assert_eq!(steps_behind(folder.path()), Some(294));
    }

    #[cfg(unix)]
    #[test]
    fn whoever_may_read_the_log_may_read_every_file() {
        use std::os::unix::fs::PermissionsExt as _;

        let folder = tempfile::tempdir().unwrap();
        let run = RunFolder::open(folder.path()).unwrap();
        run.events().unwrap();
        run.write(PIPELINE, b"text").unwrap();
        let mode = |name| std::fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode(PIPELINE), mode(EVENTS));
    }

    #[test]
    fn an_attempt_goes_on_behind_whole_lines_and_behind_half_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunFolder::open(folder.path()).unwrap();
        let path = folder.path().join(EVENTS);
        for (before, after) in [("", ""), ("{}\n", "{}\n"), ("{}\n{\"ti", "{}\n{\"ti\n")] {
            std::fs::write(&path, before).unwrap();
            run.events().unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), after);
        }
    }

    #[test]
    fn a_finished_run_is_believed_only_while_its_files_are_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run");
        let run = RunFolder::open(&path).unwrap();
        let key = Key::builder("test", 1).finish();
        let said = Conclusion { trained: "t".to_owned(), verdict: "v".to_owned() };
        assert!(run.finish(key, &said).is_err());
        assert!(conclusion(&path, key).is_none());
        RESULTS.iter().for_each(|name| run.write(name, b"text").unwrap());
        run.finish(key, &said).unwrap();
        assert_eq!(conclusion(&path, key).unwrap().verdict, "v");
        assert!(conclusion(&path, Key::builder("test", 2).finish()).is_none());
        std::fs::write(path.join("scores.json"), b"other").unwrap();
        assert!(conclusion(&path, key).is_none());
        assert!(matches!(RunFolder::open(&path), Err(PipelineError::InUse(_))));
        drop(run);
        RunFolder::open(&path).unwrap().unfinish().unwrap();
        assert!(!path.join(MANIFEST).exists());
    }

    #[test]
    fn a_run_whose_beginning_is_damaged_is_said_to_be_and_other_files_of_that_name_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run");
        assert_eq!(begun(&path).unwrap(), None);
        let run = RunFolder::open(&path).unwrap();
        let own = Begun { name: "p".to_owned(), training: Key::builder("test", 1).finish() };
        run.begin(&own).unwrap();
        run.write(PIPELINE, b"text").unwrap();
        assert_eq!(begun(&path).unwrap(), Some(own));
        let whole = std::fs::read(path.join(BEGUN)).unwrap();
        for damaged in [&whole[..whole.len() / 2], b"", b"{}", b"no JSON"] {
            run.write(BEGUN, damaged).unwrap();
            let said = begun(&path).unwrap_err();
            assert!(said.is_bad_input(), "{said}");
            let said = said.to_string();
            assert!(said.contains("run.json is damaged") && said.contains("--resume"), "{said}");
        }
        std::fs::remove_file(path.join(PIPELINE)).unwrap();
        assert_eq!(begun(&path).unwrap(), None);
        // A file has none beside itself.
        assert_eq!(begun(&path.join(BEGUN)).unwrap(), None);
    }

    #[test]
    fn a_torn_line_of_the_log_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunFolder::open(folder.path()).unwrap();
        let event = Event::Warning { message: "first".to_owned() };
        run.events().unwrap().on(&event);
        let path = folder.path().join(EVENTS);
        let mut text = std::fs::read_to_string(&path).unwrap();
        text.push_str("{\"time\": 1, \"eve");
        std::fs::write(&path, text).unwrap();
        run.events().unwrap().on(&event);
        let mut seen = Vec::new();
        let attempts = replay(folder.path(), &mut |event| seen.push(event.clone())).unwrap();
        assert_eq!((seen, attempts.unreadable), (vec![event.clone(), event], 0));
    }

    #[test]
    fn progress_is_told_once_a_second_at_a_new_stage_and_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let log = RunFolder::open(folder.path()).unwrap().events().unwrap();
        for stage in ["train", "train", "evaluate", "evaluate"] {
            let (stage, unit) = (stage.to_owned(), "steps".to_owned());
            log.on(&Event::Progress { stage, done: 1, total: 2, unit });
        }
        let (stage, unit) = ("evaluate".to_owned(), "steps".to_owned());
        log.on(&Event::Progress { stage, done: 2, total: 2, unit });
        let text = std::fs::read_to_string(folder.path().join(EVENTS)).unwrap();
        assert_eq!(text.lines().count(), 3, "{text}");
    }

    #[test]
    fn a_folder_is_forgotten_only_while_nothing_was_made_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs").join("run");
        let begun = || {
            let run = RunFolder::open(&path).unwrap();
            run.write(PIPELINE, b"text").unwrap();
            run.events().unwrap();
            run
        };
        begun().forget();
        assert!(!path.exists());
        let run = begun();
        std::fs::create_dir(path.join("checkpoints")).unwrap();
        run.forget();
        assert!(path.join(PIPELINE).is_file());
        drop(run);
        std::fs::remove_dir(path.join("checkpoints")).unwrap();
        // It was there before.
        begun().forget();
        assert!(path.join(PIPELINE).is_file());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_log_on_a_full_disk_is_said_once() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let log = EventLog::new(full);
        assert_eq!(log.warning(), None);
        for _ in 0..3 {
            log.on(&Event::Warning { message: "lost".to_owned() });
        }
        let said = log.warning().unwrap();
        assert!(said.contains("No space left") && said.contains("training goes on"), "{said}");
        assert_eq!(log.warning(), None);
    }

    #[test]
    fn attempts_are_counted_with_the_time_of_those_that_were_killed() {
        let folder = tempfile::tempdir().unwrap();
        let started = r#""event":"run-started","run":"r","device":"cpu","resumed_at_step":null"#;
        let stage = |name: &str| format!(r#""event":"stage-started","stage":"{name}""#);
        let ended = r#""event":"stage-finished","stage":"ingest","key":null,"reused":false,"seconds":1.0,"detail":"""#;
        let lines = [
            format!("{{\"time\":1000,{started}}}"),
            format!("{{\"time\":1000,{}}}", stage("ingest")),
            format!("{{\"time\":2000,{ended}}}"),
            format!("{{\"time\":2000,{}}}", stage("train")),
            r#"{"time":4500,"event":"warning","message":"m"}"#.to_owned(),
            format!("{{\"time\":99000,{started}}}"),
            r#"{"time":99500,"event":"run-finished","run":"r","outcome":"finished","seconds":0.5}"#
                .to_owned(),
        ];
        let mut bytes = lines.join("\n").into_bytes();
        // One byte that is no text must not cost the run its report.
        bytes.extend(b"\n{\"time\":99500,\"event\":\"warning\",\"message\":\"\xff\"}\n");
        std::fs::write(folder.path().join(EVENTS), bytes).unwrap();
        let mut seen = 0;
        let attempts = replay(folder.path(), &mut |_| seen += 1).unwrap();
        let cut = vec![("train".to_owned(), 2.5)];
        assert_eq!(attempts, Attempts { count: 2, trained: 1, seconds: 4.0, cut, unreadable: 1 });
        assert_eq!(seen, 7);
    }

    #[test]
    fn attempts_that_found_everything_trained_are_told_as_such() {
        let folder = tempfile::tempdir().unwrap();
        let log = RunFolder::open(folder.path()).unwrap().events().unwrap();
        let begins = || {
            let (run, device) = ("r".to_owned(), "cpu".to_owned());
            log.on(&Event::RunStarted { run, device, resumed_at_step: None });
        };
        let ends = |stage: &str, reused| {
            let (stage, detail) = (stage.to_owned(), String::new());
            log.on(&Event::StageFinished { stage, key: None, reused, seconds: 1.0, detail });
        };
        let told = || replay(folder.path(), &mut |_| ()).unwrap().told();
        begins();
        ends("train", false);
        assert_eq!(told(), None);
        // The evaluation of the best trial: its training is the trial's.
        begins();
        ends("train", true);
        ends("evaluate", false);
        let two = "2, of which 1 trained; times are summed over them";
        assert_eq!(told().as_deref(), Some(two));
        // Of further seeds, and of arms, there are trainings beside it.
        for stage in ["train, seed 7", "finetune"] {
            begins();
            ends("train", true);
            ends(stage, false);
        }
        let four = "4, of which 3 trained; times are summed over them";
        assert_eq!(told().as_deref(), Some(four));
    }
}
