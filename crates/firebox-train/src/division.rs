//! What a run does about too little memory: it computes each batch in more and smaller parts, whose
//! gradients are averaged, so that the batch of an optimizer step stays what was asked for. Batches of a
//! validation are divided likewise and by themselves, because they may be larger. Once there was too
//! little on the host, checkpoints are written without buffers and without a step beside them.
//!
//! From which step on a run divides is written to `memory.json` in its folder. It is a decision like
//! those of the configuration: whoever resumes the run, or repeats it with that file, takes the same
//! steps, bit for bit. Against a run that never divided the results differ by the rounding of sums,
//! by the masks of dropout, which are drawn for each part, and by what a model computes over a whole
//! batch (BatchNorm, the spread of a latent).

use std::any::Any;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::TrainError;
use crate::memory::{NOTE_FILE, Shortage, read_note};

/// Name of the file within the run's folder.
pub const DIVISIONS_FILE: &str = "memory.json";

/// What a run has in hand that takes memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchWork {
    /// A training step.
    #[default]
    Step,
    /// The validation after a step.
    Validation,
    /// A checkpoint after a step: a copy of weights and moments, beside what steps keep for the next ones.
    Checkpoint,
    /// Training batches after a step, of which averaged weights get their running statistics.
    Statistics,
}

impl BatchWork {
    fn is_step(&self) -> bool {
        *self == Self::Step
    }
}

impl std::fmt::Display for BatchWork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Step => "step",
            Self::Validation => "the validation after step",
            Self::Checkpoint => "a checkpoint after step",
            Self::Statistics => "the statistics of averaged weights after step",
        })
    }
}

/// A step from which on each batch is computed in more parts, or checkpoints are saved with less memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Division {
    /// Of what.
    #[serde(default, skip_serializing_if = "BatchWork::is_step")]
    pub work: BatchWork,
    /// The step, from 1.
    pub step: u64,
    /// Parts of a batch from then on, a power of two; of a checkpoint, those of steps at that time.
    pub parts: u64,
    /// Bytes that were asked for and not given, where that is known.
    pub bytes: Option<u64>,
}

impl std::fmt::Display for Division {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { work, step, parts, bytes } = self;
        let asked =
            bytes.map_or(String::new(), |bytes| format!(" (it asked for {} more)", amount(bytes)));
        let (batch, rest) = match work {
            BatchWork::Step => (
                "batch",
                "gradients are averaged; the batch of an update stays as it was, but for what a model computes over a batch (such as BatchNorm), which is of each part",
            ),
            BatchWork::Validation => ("held-out batch", "losses are averaged"),
            BatchWork::Statistics => ("batch of them", "statistics are averaged"),
            BatchWork::Checkpoint => {
                return write!(
                    f,
                    "{work} {step} had too little memory{asked}: from it on, training gives up its \
                     buffers before each checkpoint and waits until it is written"
                );
            }
        };
        write!(
            f,
            "{work} {step} had too little memory{asked}: from it on each {batch} is computed in \
             {parts} parts, whose {rest}"
        )
    }
}

/// Bytes in the unit that says something of them.
fn amount(bytes: u64) -> String {
    match bytes {
        few if few < 1 << 10 => format!("{few} bytes"),
        some if some < 1 << 20 => format!("{:.1} KiB", some as f64 / f64::from(1 << 10)),
        many => format!("{:.1} MiB", many as f64 / f64::from(1 << 20)),
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
        let Some(shortage) = read_note(folder) else { return Ok((divisions, None)) };
        let divided = divisions.divide(shortage);
        if matches!(divided, Ok(_) | Err(TrainError::OutOfMemory { .. })) {
            // It is written down, or said once: whoever resumes the run then has made room, or hears the same after
            // the same step. A note that stays is read again.
            let _ = fs::remove_file(folder.join(NOTE_FILE));
        }
        Ok((divisions, Some(divided?)))
    }

    /// Parts of each batch of a step, or of the validation after it.
    pub(crate) fn parts(&self, work: BatchWork, step: u64) -> u64 {
        let own = |division: &&Division| division.work == work && division.step <= step;
        let last = self.all.iter().rev().find(own);
        last.map_or(1, |division| division.parts)
    }

    /// Whether the host's memory was ever too little: then no buffer is kept beside a checkpoint that is written,
    /// and no step is computed. What was too little on a device has no size.
    pub(crate) fn are_lean(&self) -> bool {
        self.all.iter().any(|division| division.bytes.is_some())
    }

    /// All of them.
    pub(crate) fn all(&self) -> &[Division] {
        &self.all
    }

    /// Divides further from a step on, and writes it down first.
    pub(crate) fn divide(&mut self, shortage: Shortage) -> Result<Division, TrainError> {
        let Shortage { work, step, parts, samples, bytes } = shortage;
        let parts = match work {
            // Of a checkpoint there is nothing to divide, and buffers are given up but once.
            BatchWork::Checkpoint => (!self.are_lean()).then_some(parts.max(1)),
            BatchWork::Step | BatchWork::Validation | BatchWork::Statistics => {
                (samples > 1).then_some(parts.max(1) * 2)
            }
        };
        let Some(parts) = parts else {
            if work != BatchWork::Checkpoint {
                // What was of no use is not the way to go on.
                self.all.retain(|other| other.work != work || other.step < step);
                self.write()?;
            }
            return Err(TrainError::OutOfMemory { work, step, bytes });
        };
        // What is computed again after a resume may fail anew.
        self.all.retain(|other| other.work != work || other.step < step);
        let bytes = Some(bytes).filter(|bytes| *bytes > 0);
        let division = Division { work, step, parts, bytes };
        self.all.push(division);
        self.write()?;
        Ok(division)
    }

    fn write(&self) -> Result<(), TrainError> {
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
        })
    }
}

/// What `work` returns, or `None` if the device had too little memory for it.
pub(crate) fn if_memory_lasts<T>(
    work: impl FnOnce() -> Result<T, TrainError>,
) -> Result<Option<T>, TrainError> {
    match catch_unwind(AssertUnwindSafe(work)) {
        // CubeCL hands on a failed allocation with the tensors that needed it, up to who reads them.
        Ok(Err(TrainError::Device(error))) if says_out_of_memory(&error) => Ok(None),
        Ok(result) => result.map(Some),
        Err(panic) if is_out_of_memory(panic.as_ref()) => Ok(None),
        Err(panic) => resume_unwind(panic),
    }
}

/// Whether a panic says that a device had no memory left.
fn is_out_of_memory(panic: &(dyn Any + Send)) -> bool {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    says_out_of_memory(text.or(panic.downcast_ref::<&str>().copied()).unwrap_or_default())
}

/// Whether a text says that a device had no memory left, as the drivers of GPUs and CubeCL put it.
fn says_out_of_memory(text: &str) -> bool {
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
        assert_eq!((divisions.parts(BatchWork::Step, 9), noted), (1, None));
        let work = BatchWork::Step;
        let shortage =
            |step, parts, samples| Shortage { work, step, parts, samples, bytes: 1 << 20 };
        divisions.divide(shortage(5, 1, 8)).unwrap();
        divisions.divide(shortage(5, 2, 4)).unwrap();
        let division = divisions.divide(shortage(9, 4, 2)).unwrap();
        let said = division.to_string();
        assert_eq!([7, 2048, 3 << 19].map(amount), ["7 bytes", "2.0 KiB", "1.5 MiB"]);
        assert!(said.starts_with("step 9 had too little memory (it asked for 1.0 MiB more)"));
        let error = divisions.divide(shortage(9, 8, 1)).unwrap_err().to_string();
        assert!(error.contains("step 9 has too little memory for one window"), "{error}");
        // What did not help is not the way to go on with more memory; what did is.
        let (mut again, _) = Divisions::open(folder.path()).unwrap();
        assert_eq!(again.all(), divisions.all());
        let parts = |of: &Divisions| [4, 5, 8, 9, 100].map(|step| of.parts(work, step));
        assert_eq!(parts(&again), [1, 4, 4, 4, 4]);
        again.divide(shortage(9, 4, 2)).unwrap();
        assert_eq!(parts(&again), [1, 4, 4, 8, 8]);
    }

    #[test]
    fn validations_are_divided_by_themselves() {
        let folder = tempfile::tempdir().unwrap();
        let (mut divisions, _) = Divisions::open(folder.path()).unwrap();
        let shortage = |work, step| Shortage { work, step, parts: 1, samples: 8, bytes: 0 };
        divisions.divide(shortage(BatchWork::Step, 5)).unwrap();
        let division = divisions.divide(shortage(BatchWork::Validation, 4)).unwrap();
        assert_eq!(
            division.to_string(),
            "the validation after step 4 had too little memory: from it on each held-out batch is \
             computed in 2 parts, whose losses are averaged"
        );
        let (again, _) = Divisions::open(folder.path()).unwrap();
        for (step, parts) in [(3, [1, 1]), (4, [1, 2]), (5, [2, 2])] {
            let found =
                [BatchWork::Step, BatchWork::Validation].map(|work| again.parts(work, step));
            assert_eq!(found, parts, "{step}");
        }
        let alone = Shortage { samples: 1, ..shortage(BatchWork::Validation, 4) };
        let error = divisions.divide(alone).unwrap_err().to_string();
        assert!(error.starts_with("the validation after step 4 has too little"), "{error}");
    }

    #[test]
    fn a_checkpoint_divides_nothing_and_is_tried_once_more() {
        let folder = tempfile::tempdir().unwrap();
        let (mut divisions, _) = Divisions::open(folder.path()).unwrap();
        let shortage =
            |work, samples| Shortage { work, step: 5, parts: 1, samples, bytes: 1 << 20 };
        assert!(!divisions.are_lean());
        let division = divisions.divide(shortage(BatchWork::Checkpoint, 1)).unwrap();
        assert_eq!(
            division.to_string(),
            "a checkpoint after step 5 had too little memory (it asked for 1.0 MiB more): from it on, \
             training gives up its buffers before each checkpoint and waits until it is written"
        );
        let (mut again, _) = Divisions::open(folder.path()).unwrap();
        let parts = [BatchWork::Step, BatchWork::Validation].map(|work| again.parts(work, 9));
        assert_eq!((again.are_lean(), parts), (true, [1, 1]));
        let error = again.divide(shortage(BatchWork::Checkpoint, 8)).unwrap_err().to_string();
        assert!(
            error.starts_with("a checkpoint after step 5 has too little memory for a copy"),
            "{error}"
        );
        again.divide(shortage(BatchWork::Step, 8)).unwrap();
        assert_eq!((again.parts(BatchWork::Step, 5), again.all().len()), (2, 2));
    }

    #[test]
    fn what_cannot_be_divided_is_said_once_and_then_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let note: Vec<u8> = [7u64, 4, 1, 4096, 0].iter().flat_map(|n| n.to_le_bytes()).collect();
        fs::write(folder.path().join(NOTE_FILE), note).unwrap();
        let error = Divisions::open(folder.path()).unwrap_err().to_string();
        assert!(error.starts_with("step 7 has too little memory for one window"), "{error}");
        let (divisions, noted) = Divisions::open(folder.path()).unwrap();
        assert!(divisions.all().is_empty() && noted.is_none());
        // What is written down is not read again, either.
        let note: Vec<u8> = [7u64, 4, 1, 4096, 2].iter().flat_map(|n| n.to_le_bytes()).collect();
        fs::write(folder.path().join(NOTE_FILE), note).unwrap();
        for noted in [true, false] {
            let (divisions, division) = Divisions::open(folder.path()).unwrap();
            assert_eq!((division.is_some(), divisions.are_lean()), (noted, true));
        }
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
