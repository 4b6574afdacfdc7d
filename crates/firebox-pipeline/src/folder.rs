//! The folder of one run: its lock, its event log, and the manifest that says it is finished.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use firebox_core::{Event, Key, Listener};
use serde::{Deserialize, Serialize};

use crate::error::{PipelineError, at};

/// Name of the resolved pipeline within a run folder.
pub(crate) const PIPELINE: &str = "pipeline.toml";
const MANIFEST: &str = "manifest.json";
const EVENTS: &str = "events.jsonl";
/// What a finished run consists of, beside its checkpoints.
const RESULTS: [&str; 4] = [PIPELINE, "scores.json", "summary.md", "report.html"];

/// A run folder, locked by this process.
pub(crate) struct RunFolder {
    path: PathBuf,
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

/// What a finished run said.
#[derive(Clone, Debug)]
pub(crate) struct Conclusion {
    pub(crate) trained: String,
    pub(crate) verdict: String,
}

impl RunFolder {
    /// Makes the folder if it is new, and locks it.
    pub(crate) fn open(path: &Path) -> Result<Self, PipelineError> {
        std::fs::create_dir_all(path).map_err(at(path))?;
        let file = path.join("lock");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&file);
        let lock = lock.map_err(at(&file))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_path_buf(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(PipelineError::InUse(path.to_path_buf())),
            Err(TryLockError::Error(source)) => Err(at(&file)(source)),
        }
    }

    /// Writes a file so that it is either whole or not there.
    pub(crate) fn write(&self, name: &str, content: &[u8]) -> Result<(), PipelineError> {
        let path = self.path.join(name);
        let mut file = tempfile::NamedTempFile::new_in(&self.path).map_err(at(&path))?;
        file.write_all(content).and_then(|()| file.as_file().sync_all()).map_err(at(&path))?;
        file.persist(&path).map_err(|error| at(&path)(error.error))?;
        Ok(())
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
        for name in RESULTS {
            let path = self.path.join(name);
            files.push((name.to_owned(), checksum(&path).map_err(at(&path))?));
        }
        let Conclusion { trained, verdict } = said.clone();
        let manifest = Manifest { key, trained, verdict, files };
        let text = serde_json::to_vec_pretty(&manifest).map_err(|e| at(&self.path)(e.into()))?;
        self.write(MANIFEST, &text)
    }

    /// The events of this run, appended to what earlier attempts left.
    pub(crate) fn events(&self) -> Result<EventLog, PipelineError> {
        let path = self.path.join(EVENTS);
        let mut options = OpenOptions::new();
        let mut file = options.create(true).append(true).open(&path).map_err(at(&path))?;
        // A killed attempt may have left half a line; nothing may be appended to that.
        if file.metadata().map_err(at(&path))?.len() > 0 {
            file.write_all(b"\n").map_err(at(&path))?;
        }
        Ok(EventLog { file: Mutex::new(file) })
    }
}

/// Steps that the newest checkpoint of a run has behind it.
pub(crate) fn steps_saved(path: &Path) -> Option<u64> {
    let checkpoints = firebox_train::checkpoints(&path.join(firebox_train::CHECKPOINT_FOLDER));
    checkpoints.ok()?.iter().map(|checkpoint| checkpoint.manifest().step).max()
}

/// What the run in `path` concluded, if it is finished under `key` and every result is whole.
pub(crate) fn conclusion(path: &Path, key: Key) -> Option<Conclusion> {
    let text = std::fs::read(path.join(MANIFEST)).ok()?;
    let manifest: Manifest = serde_json::from_slice(&text).ok()?;
    let whole = |(name, expected): &(String, String)| {
        checksum(&path.join(name)).is_ok_and(|found| found == *expected)
    };
    let Manifest { trained, verdict, files, .. } = manifest;
    (manifest.key == key && files.iter().all(whole)).then_some(Conclusion { trained, verdict })
}

fn checksum(path: &Path) -> std::io::Result<String> {
    Ok(blake3::hash(&std::fs::read(path)?).to_hex().to_string())
}

/// `events.jsonl`: one event a line with the time it was written, milliseconds since 1970 UTC.
pub(crate) struct EventLog {
    file: Mutex<File>,
}

#[derive(Serialize)]
struct Line<'a> {
    time: u128,
    #[serde(flatten)]
    event: &'a Event,
}

impl Listener for EventLog {
    fn on(&self, event: &Event) {
        if matches!(event, Event::Progress { .. }) {
            return;
        }
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis());
        let Ok(mut file) = self.file.lock() else { return };
        let Ok(mut line) = serde_json::to_vec(&Line { time, event }) else { return };
        line.push(b'\n');
        // One write a line, without a buffer: a killed run must not lose the steps that a checkpoint
        // has counted. A disk that is full is reported by what must be saved.
        let _ = file.write_all(&line);
    }
}

/// Reads the events of all attempts of a run, in order. What a killed attempt wrote only in part is
/// left out.
pub(crate) fn replay(path: &Path, take: &mut dyn FnMut(&Event)) -> Result<(), PipelineError> {
    let path = path.join(EVENTS);
    let text = std::fs::read_to_string(&path).map_err(at(&path))?;
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).for_each(|event| take(&event));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        replay(folder.path(), &mut |event| seen.push(event.clone())).unwrap();
        assert_eq!(seen, [event.clone(), event]);
    }
}
