//! Ingestion from files on disk to series, through the public interface.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests may panic, their helpers too")]
#![allow(clippy::single_range_in_vec_init, reason = "segments are lists of ranges, often of one")]

mod checks;
mod formats;
mod groups;
mod messages;
mod real;
mod store;

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use firebox_core::{Event, Silent};
use firebox_data::{DataConfig, DataError, Ingested, ingest};

/// A folder for the files of one test, and a cache beside them.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    fn cache(&self) -> PathBuf {
        self.path("cache")
    }

    /// The configuration `toml` for the file or folder `name`.
    fn config(&self, name: &str, toml: &str) -> DataConfig {
        let mut config: DataConfig = toml::from_str(toml).unwrap_or_else(|e| panic!("{e}"));
        config.path.0 = vec![name.into()];
        config.resolve(self.0.path());
        config
    }

    fn ingest(&self, name: &str, toml: &str) -> Result<Ingested, DataError> {
        ingest(&self.config(name, toml), &self.cache(), &Silent)
    }

    /// The error with its causes, without the folder's name.
    fn error(&self, name: &str, toml: &str) -> String {
        let error = self.ingest(name, toml).expect_err("the data must be refused");
        render(&error, self.0.path())
    }

    /// What ingestion warns of.
    fn warnings(&self, name: &str, toml: &str) -> Vec<String> {
        let warnings = Mutex::new(vec![]);
        let listener = |event: &Event| {
            if let Event::Warning { message } = event {
                warnings.lock().unwrap().push(message.clone());
            }
        };
        ingest(&self.config(name, toml), &self.cache(), &listener).unwrap();
        warnings.into_inner().unwrap()
    }
}

fn render(error: &dyn std::error::Error, folder: &Path) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text.replace(&format!("{}/", folder.display()), "").replace(&folder.display().to_string(), ".")
}

/// A CSV of one-minute bars with this many rows.
fn bars(rows: usize) -> String {
    let mut text = "timestamp,open,high,low,close\n".to_owned();
    for row in 0..rows {
        let (hour, minute) = (row / 60, row % 60);
        let (open, close) = (100 + row % 7, 100 + (row + 1) % 7);
        let (high, low) = (open.max(close) + 1, open.min(close) - 1);
        text += &format!("2024-01-02T{hour:02}:{minute:02}:00,{open},{high},{low},{close}\n");
    }
    text
}

/// A `.npy` file of f64 as NumPy writes it.
fn npy(shape: &[usize], values: &[f64]) -> Vec<u8> {
    let shape: String = shape.iter().map(|n| format!("{n}, ")).collect();
    let text = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': ({shape}), }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    bytes
}
