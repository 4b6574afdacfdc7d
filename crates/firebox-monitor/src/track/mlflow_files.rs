//! MLflow's file layout (`mlflow/store/tracking/file_store.py`): a folder for each experiment, in it
//! one for each run with a file for each parameter and metric.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::mlflow::{Known, Metric, Store};
use super::{Ending, TrackError, at};

/// An MLflow folder.
pub(super) struct Files {
    root: PathBuf,
    experiment: String,
    run: PathBuf,
    /// Files of metrics that were written before.
    open: BTreeMap<String, File>,
}

/// Files of metrics that are kept open: those of the curves that every run has.
const OPEN: usize = 64;

impl Files {
    pub(super) fn new(root: &Path, experiment: &str) -> Self {
        let (root, experiment) = (root.to_path_buf(), experiment.to_owned());
        Self { root, experiment, run: PathBuf::new(), open: BTreeMap::new() }
    }

    /// The folder of the experiment of this name, or a new one, with its number.
    fn experiment(&self, root: &Path, time: u64) -> Result<(PathBuf, String), TrackError> {
        let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
        for folder in entries.map(|entry| entry.path()) {
            let Ok(text) = std::fs::read_to_string(folder.join("meta.yaml")) else { continue };
            let of = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(unquoted);
            if of("name: ").as_deref() == Some(&self.experiment)
                && let Some(id) = of("experiment_id: ")
            {
                return Ok((folder, id));
            }
        }
        // As many digits as MLflow's own numbers have.
        let id = (100_000_000_000_000_000 + random() % 900_000_000_000_000_000).to_string();
        let folder = root.join(&id);
        std::fs::create_dir_all(&folder).map_err(at(&folder))?;
        let text = format!(
            "artifact_location: {}\ncreation_time: {time}\nexperiment_id: '{id}'\nlast_update_time: {time}\nlifecycle_stage: active\nname: {}\n",
            quoted(&address(&folder)),
            quoted(&self.experiment)
        );
        write_whole(&folder.join("meta.yaml"), &text)?;
        Ok((folder, id))
    }

    /// Writes lines to the end of a metric's file.
    fn append(&mut self, name: &str, lines: &[u8]) -> Result<(), TrackError> {
        let path = self.run.join("metrics").join(name);
        if let Some(file) = self.open.get_mut(name) {
            return file.write_all(lines).map_err(at(&path));
        }
        let folder = path.parent().unwrap_or(&self.run);
        std::fs::create_dir_all(folder).map_err(at(folder))?;
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let mut file = file.map_err(at(&path))?;
        file.write_all(lines).map_err(at(&path))?;
        if self.open.len() < OPEN {
            self.open.insert(name.to_owned(), file);
        }
        Ok(())
    }

    /// Changes lines of the run's `meta.yaml`.
    fn set(&self, changes: &[(&str, String)]) -> Result<(), TrackError> {
        let path = self.run.join("meta.yaml");
        let mut text = std::fs::read_to_string(&path).map_err(at(&path))?;
        for (key, value) in changes {
            let line = |line: &str| match line.starts_with(&format!("{key}: ")) {
                true => format!("{key}: {value}\n"),
                false => format!("{line}\n"),
            };
            text = text.lines().map(line).collect();
        }
        write_whole(&path, &text)
    }
}

impl Store for Files {
    fn begin(
        &mut self,
        known: Option<Known>,
        name: &str,
        time: u64,
        parameters: &[(String, String)],
    ) -> Result<Known, TrackError> {
        std::fs::create_dir_all(&self.root).map_err(at(&self.root))?;
        let root = self.root.canonicalize().map_err(at(&self.root))?;
        if let Some(known) = known {
            self.run = root.join(&known.experiment_id).join(&known.run_id);
            if self.run.join("meta.yaml").is_file() {
                self.set(&[("status", "1".to_owned()), ("end_time", "null".to_owned())])?;
                return Ok(known);
            }
        }
        let (folder, experiment_id) = self.experiment(&root, time)?;
        let run_id = format!("{:016x}{:016x}", random(), random());
        self.run = folder.join(&run_id);
        for part in ["metrics", "params", "tags", "artifacts"] {
            let folder = self.run.join(part);
            std::fs::create_dir_all(&folder).map_err(at(&folder))?;
        }
        for (key, value) in parameters {
            write(&self.run.join("params").join(key), value)?;
        }
        let tags = [
            ("mlflow.runName", name),
            ("mlflow.source.name", "firebox"),
            ("mlflow.source.type", "LOCAL"),
        ];
        for (key, value) in tags {
            write(&self.run.join("tags").join(key), value)?;
        }
        // 4 is `LOCAL`; 1 is `RUNNING`.
        let text = format!(
            "artifact_uri: {}\nend_time: null\nentry_point_name: ''\nexperiment_id: '{experiment_id}'\nlifecycle_stage: active\nrun_id: {run_id}\nrun_name: {}\nrun_uuid: {run_id}\nsource_name: ''\nsource_type: 4\nsource_version: ''\nstart_time: {time}\nstatus: 1\ntags: []\nuser_id: unknown\n",
            quoted(&address(&self.run.join("artifacts"))),
            quoted(name)
        );
        // Last: a folder without it is no run.
        write_whole(&self.run.join("meta.yaml"), &text)?;
        let (to, experiment) = (self.root.display().to_string(), self.experiment.clone());
        Ok(Known { to, experiment, experiment_id, run_id })
    }

    fn log(&mut self, metrics: &[Metric]) -> Result<(), TrackError> {
        let mut files: BTreeMap<&str, String> = BTreeMap::new();
        for Metric { name, value, time, step } in metrics {
            let lines = files.entry(name).or_default();
            // Python reads `nan` and `inf`, and every other number as Rust writes it.
            let _ = writeln!(lines, "{time} {} {step}", value.to_string().to_lowercase());
        }
        for (name, lines) in files {
            self.append(name, lines.as_bytes())?;
        }
        Ok(())
    }

    fn end(&mut self, time: u64, ending: Ending) -> Result<(), TrackError> {
        let status = match ending {
            Ending::Finished => 3,
            Ending::Failed => 4,
            Ending::Interrupted => 5,
        };
        self.set(&[("status", status.to_string()), ("end_time", time.to_string())])
    }
}

/// A number that no other run will draw; nothing depends on it but a name.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn write(path: &Path, text: &str) -> Result<(), TrackError> {
    std::fs::write(path, text).map_err(at(path))
}

/// Writes a file whole, or leaves the one that is there: on a full disk MLflow would find an empty one.
fn write_whole(path: &Path, text: &str) -> Result<(), TrackError> {
    let unfinished = path.with_extension("unfinished");
    let written =
        std::fs::write(&unfinished, text).and_then(|()| std::fs::rename(&unfinished, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&unfinished);
    }
    written.map_err(at(path))
}

/// A text of one line in YAML's single quotes.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\n', " ").replace('\'', "''"))
}

/// A scalar of YAML, plain or in single quotes.
fn unquoted(text: &str) -> String {
    let text = text.trim();
    match text.strip_prefix('\'').and_then(|text| text.strip_suffix('\'')) {
        Some(inner) => inner.replace("''", "'"),
        None => text.to_owned(),
    }
}

/// The `file:` address of a path.
fn address(path: &Path) -> String {
    let mut out = "file://".to_owned();
    for byte in path.display().to_string().bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            other => {
                let _ = write!(out, "%{other:02X}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metric(name: &str, value: f64, step: u64) -> Metric {
        Metric { name: name.to_owned().into(), value, time: 7, step }
    }

    #[test]
    fn a_run_is_files_that_a_resumed_run_goes_on_with() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("ml runs");
        let mut files = Files::new(&root, "it's");
        let parameters = [("a.b".to_owned(), "1".to_owned())];
        let known = files.begin(None, "run-1", 5, &parameters).unwrap();
        files.log(&[metric("train/loss", 0.5, 1), metric("train/loss", f64::NAN, 2)]).unwrap();
        files.log(&[metric("train/loss", 0.25, 3)]).unwrap();
        files.end(9, Ending::Interrupted).unwrap();
        let run = root.join(&known.experiment_id).join(&known.run_id);
        let read = |path: &str| std::fs::read_to_string(run.join(path)).unwrap();
        assert_eq!(read("metrics/train/loss"), "7 0.5 1\n7 nan 2\n7 0.25 3\n");
        assert_eq!(read("params/a.b"), "1");
        assert!(
            read("meta.yaml").contains("\nstatus: 5\n")
                && read("meta.yaml").contains("end_time: 9\n")
        );
        assert!(read("meta.yaml").contains("/ml%20runs/"), "{}", read("meta.yaml"));

        let mut again = Files::new(&root, "it's");
        assert_eq!(again.begin(Some(known.clone()), "run-1", 5, &parameters).unwrap(), known);
        assert!(read("meta.yaml").contains("\nstatus: 1\n"));
        again.end(11, Ending::Finished).unwrap();
        assert!(read("meta.yaml").contains("\nstatus: 3\n"));
        // Another run of the same experiment, and one whose files are gone.
        let other = Files::new(&root, "it's").begin(None, "run-2", 5, &[]).unwrap();
        assert_eq!(other.experiment_id, known.experiment_id);
        std::fs::remove_dir_all(&run).unwrap();
        let anew = Files::new(&root, "it's").begin(Some(known.clone()), "run-1", 5, &[]).unwrap();
        assert_ne!(anew.run_id, known.run_id);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = Files::new(&file, "e").begin(None, "r", 1, &[]).unwrap_err().to_string();
        assert!(error.contains("cannot write") && error.contains("file"), "{error}");
    }
}
