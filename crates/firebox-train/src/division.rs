//! What a run does about too little memory: it computes each batch in more and smaller parts, whose
//! gradients are averaged, so that the batch of an optimizer step stays what was asked for.
//!
//! From which step on a run divides is written to `memory.json` in its folder. It is a decision like
//! those of the configuration: whoever resumes the run, or repeats it with that file, takes the same
//! steps, bit for bit. Against a run that never divided the results differ by the rounding of sums,
//! by the masks of dropout, which are drawn for each part, and by what a model computes over a whole
//! batch (BatchNorm, the spread of a latent).

use std::any::Any;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::TrainError;
use crate::memory::{Shortage, read_note};

/// Name of the file within the run's folder.
pub const DIVISIONS_FILE: &str = "memory.json";

/// A step from which on each batch is computed in more parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Division {
    /// The step, from 1.
    pub step: u64,
    /// Parts of a batch from then on, a power of two.
    pub parts: u64,
    /// Bytes that were asked for and not given, where that is known.
    pub bytes: Option<u64>,
}

impl std::fmt::Display for Division {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { step, parts, bytes } = self;
        let asked = bytes.map_or(String::new(), |bytes| {
            format!(" (it asked for {:.1} MiB more)", bytes as f64 / f64::from(1 << 20))
        });
        write!(
            f,
            "step {step} had too little memory{asked}: from it on each batch is computed in {parts} \
             parts, whose gradients are averaged; the batch of an update stays as it was"
        )
    }
}

/// The divisions of a run.
#[derive(Debug)]
pub(crate) struct Divisions {
    path: PathBuf,
    all: Vec<Division>,
}

impl Divisions {
    /// Those of the run in this folder, with the one that its last process did not live to write.
    /// Returns that one, too.
    pub(crate) fn open(folder: &Path) -> Result<(Self, Option<Division>), TrainError> {
        let path = folder.join(DIVISIONS_FILE);
        let all = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|source| {
                let way_out = "remove it, and begin the run anew";
                TrainError::Content { path: path.clone(), line: None, way_out, source }
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => vec![],
            Err(source) => return Err(TrainError::File { action: "read", path, source }),
        };
        let mut divisions = Self { path, all };
        let noted = match read_note(folder) {
            Some(shortage) => Some(divisions.divide(shortage)?),
            None => None,
        };
        Ok((divisions, noted))
    }

    /// Parts of each batch of a step.
    pub(crate) fn parts(&self, step: u64) -> u64 {
        let last = self.all.iter().rev().find(|division| division.step <= step);
        last.map_or(1, |division| division.parts)
    }

    /// All of them.
    pub(crate) fn all(&self) -> &[Division] {
        &self.all
    }

    /// Divides further from a step on, and writes it down first.
    pub(crate) fn divide(&mut self, shortage: Shortage) -> Result<Division, TrainError> {
        let Shortage { step, parts, samples, bytes } = shortage;
        if samples <= 1 {
            return Err(TrainError::OutOfMemory { step, bytes });
        }
        let bytes = Some(bytes).filter(|bytes| *bytes > 0);
        let division = Division { step, parts: parts.max(1) * 2, bytes };
        // A step that is computed again after a resume may fail anew.
        self.all.retain(|other| other.step < step);
        self.all.push(division);
        let partial = self.path.with_extension("json.partial");
        let write = || {
            let file = fs::File::create(&partial)?;
            serde_json::to_writer_pretty(&file, &self.all)?;
            file.sync_all()?;
            fs::rename(&partial, &self.path)
        };
        write().map_err(|source| TrainError::File {
            action: "write",
            path: self.path.clone(),
            source,
        })?;
        Ok(division)
    }
}

/// Whether a panic says that a device had no memory left.
pub(crate) fn is_out_of_memory(panic: &(dyn Any + Send)) -> bool {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    says_out_of_memory(text.or(panic.downcast_ref::<&str>().copied()).unwrap_or_default())
}

/// Whether a text says that a device had no memory left, as the drivers of GPUs and CubeCL put it.
pub(crate) fn says_out_of_memory(text: &str) -> bool {
    let text = text.to_lowercase();
    ["out of memory", "outofmemory", "out_of_memory", "out-of-memory", "out of device memory"]
        .iter()
        .any(|sign| text.contains(sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisions_hold_from_their_step_on_and_survive_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let (mut divisions, noted) = Divisions::open(folder.path()).unwrap();
        assert_eq!((divisions.parts(9), noted), (1, None));
        let shortage = |step, parts, samples| Shortage { step, parts, samples, bytes: 1 << 20 };
        divisions.divide(shortage(5, 1, 8)).unwrap();
        divisions.divide(shortage(5, 2, 4)).unwrap();
        let division = divisions.divide(shortage(9, 4, 2)).unwrap();
        let said = division.to_string();
        assert!(said.starts_with("step 9 had too little memory (it asked for 1.0 MiB more)"));
        let error = divisions.divide(shortage(9, 8, 1)).unwrap_err().to_string();
        assert!(error.contains("step 9 has too little memory for one window"), "{error}");
        let (again, _) = Divisions::open(folder.path()).unwrap();
        assert_eq!(again.all(), divisions.all());
        let parts: Vec<u64> = [4, 5, 8, 9, 100].map(|step| again.parts(step)).to_vec();
        assert_eq!(parts, [1, 4, 4, 8, 8]);
    }

    #[test]
    fn the_panics_of_devices_are_recognised() {
        let oom = |text: &'static str| is_out_of_memory(&text);
        assert!(oom("CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\""));
        assert!(oom("Out of Memory when allocating 12 bytes"));
        assert!(is_out_of_memory(&"wgpu error: Out of Memory".to_owned()));
        assert!(says_out_of_memory("an out-of-memory error while allocating 12 bytes"));
        assert!(!oom("index out of bounds") && !is_out_of_memory(&3));
    }
}
