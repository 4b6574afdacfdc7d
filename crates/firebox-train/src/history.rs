//! The history of a run: one line per step, epoch, and account of where the time of steps went, in `history.jsonl`.
//!
//! Every checkpoint records how long the file was; a resume cuts it there, so that no step is
//! written twice and none is lost.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use firebox_core::Event;
use serde::{Deserialize, Deserializer, Serialize};

use crate::TrainError;

/// Name of the file within the run's folder.
pub const HISTORY_FILE: &str = "history.jsonl";

/// One optimizer step. A number that was not finite is NaN here and `null` in the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepRecord {
    /// Steps taken, this one included.
    pub step: u64,
    /// Epoch, from 1.
    pub epoch: u64,
    /// Training loss.
    #[serde(deserialize_with = "firebox_core::number_or_nan")]
    pub loss: f64,
    /// Summands of the loss by name.
    #[serde(deserialize_with = "numbers")]
    pub parts: BTreeMap<String, f64>,
    /// Learning rate.
    pub learning_rate: f64,
    /// Global gradient norm before clipping.
    #[serde(deserialize_with = "firebox_core::number_or_nan")]
    pub gradient_norm: f64,
    /// Factor on the loss while its gradients were computed.
    #[serde(default = "unscaled")]
    pub loss_scale: f64,
    /// Samples.
    pub samples: u64,
    /// Whether the step was not finite and changed no weights.
    pub skipped: bool,
    /// Wall-clock time.
    pub milliseconds: f64,
    /// Part of it spent waiting for data.
    pub data_milliseconds: f64,
}

/// One epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpochRecord {
    /// Epoch, from 1.
    pub epoch: u64,
    /// Steps taken so far.
    pub step: u64,
    /// Mean training loss over the epoch.
    #[serde(deserialize_with = "firebox_core::number_or_nan")]
    pub train_loss: f64,
    /// Validation loss, if it was validated.
    pub validation_loss: Option<f64>,
    /// Learning rate of its last step.
    pub learning_rate: f64,
    /// Whether it is the best so far.
    pub best: bool,
    /// Wall-clock time, validation included; since the resume if there was one within it.
    pub seconds: f64,
}

/// Where the time of some steps went, in seconds, as [`Event::Times`] has it: of an epoch's, or of those since
/// the last checkpoint within one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimesRecord {
    /// Steps taken so far.
    pub step: u64,
    /// Steps that these times are of.
    pub steps: u64,
    /// Standing still until a batch was filled.
    pub waiting: f64,
    /// Handing batches to the device.
    pub upload: f64,
    /// The same by whichever thread, beside the steps or within them.
    #[serde(default)]
    pub handing: f64,
    /// Filling batches, on all threads together.
    pub filling: f64,
    /// Forward, backward and optimizer, as long as the host was busy with them.
    pub computing: f64,
    /// Standing still until the device had a result.
    pub reading_back: f64,
    /// Whatever else a step did.
    pub other: f64,
}

/// Numbers of a whole run, for reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct History {
    /// All steps in order.
    pub steps: Vec<StepRecord>,
    /// All epochs in order.
    pub epochs: Vec<EpochRecord>,
    /// Where the time of steps went, in order.
    pub times: Vec<TimesRecord>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    Step(StepRecord),
    Epoch(EpochRecord),
    Times(TimesRecord),
}

impl StepRecord {
    /// What a listener is told of it.
    pub(crate) fn event(&self) -> Event {
        Event::Step {
            step: self.step,
            epoch: self.epoch,
            loss: self.loss,
            learning_rate: self.learning_rate,
            gradient_norm: self.gradient_norm,
            samples: self.samples,
            milliseconds: self.milliseconds,
            data_milliseconds: self.data_milliseconds,
            skipped: self.skipped,
        }
    }
}

impl EpochRecord {
    /// What a listener is told of it.
    pub(crate) fn event(&self) -> Event {
        Event::Epoch {
            epoch: self.epoch,
            step: self.step,
            train_loss: self.train_loss,
            validation_loss: self.validation_loss,
            best: self.best,
            seconds: self.seconds,
        }
    }
}

impl TimesRecord {
    /// What a listener is told of it.
    pub(crate) fn event(&self) -> Event {
        let Self { step, steps, waiting, upload, handing, filling, computing, reading_back, other } =
            *self;
        Event::Times {
            step,
            steps,
            waiting,
            upload,
            handing,
            filling,
            computing,
            reading_back,
            other,
        }
    }
}

fn unscaled() -> f64 {
    1.0
}

fn numbers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, f64>, D::Error> {
    let values = BTreeMap::<String, Option<f64>>::deserialize(deserializer)?;
    Ok(values.into_iter().map(|(name, value)| (name, value.unwrap_or(f64::NAN))).collect())
}

impl History {
    /// Reads the history of the run in `folder`. A last line without an end, which a killed run
    /// leaves, is not counted.
    ///
    /// # Errors
    /// If there is no such file or a line is none of a history.
    pub fn read(folder: &Path) -> Result<Self, TrainError> {
        let path = folder.join(HISTORY_FILE);
        let file = |source| TrainError::File { action: "read", path: path.clone(), source };
        let mut reader = BufReader::new(File::open(&path).map_err(file)?);
        let (mut history, mut text) = (Self::default(), String::new());
        for line in 1.. {
            text.clear();
            reader.read_line(&mut text).map_err(file)?;
            if !text.ends_with('\n') {
                break;
            }
            match serde_json::from_str(&text) {
                Ok(Line::Step(step)) => history.steps.push(step),
                Ok(Line::Epoch(epoch)) => history.epochs.push(epoch),
                Ok(Line::Times(times)) => history.times.push(times),
                Err(source) => {
                    let way_out = "remove that line, or train again";
                    return Err(TrainError::Content { path, line: Some(line), way_out, source });
                }
            }
        }
        Ok(history)
    }

    /// Tells of the steps, their times and the epochs, in their order, as the training did.
    pub fn tell(&self, listener: &mut dyn FnMut(&Event)) {
        let mut epochs = self.epochs.iter().peekable();
        let mut times = self.times.iter().peekable();
        let (mut scale, mut overflows) = (None, 0);
        for step in &self.steps {
            while let Some(times) = times.next_if(|times| times.step < step.step) {
                listener(&times.event());
            }
            while let Some(epoch) = epochs.next_if(|epoch| epoch.step < step.step) {
                listener(&epoch.event());
            }
            let before = scale.replace(step.loss_scale).unwrap_or(step.loss_scale);
            if before != step.loss_scale {
                let (step, scale) = (step.step - 1, step.loss_scale);
                listener(&Event::LossScale { step, before, scale, overflows });
            }
            overflows += u64::from(step.skipped && step.loss.is_finite());
            listener(&step.event());
        }
        times.for_each(|times| listener(&times.event()));
        epochs.for_each(|epoch| listener(&epoch.event()));
    }
}

/// The file, being written.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl Log {
    /// Opens the history of a run and cuts it to its first `bytes`; `None` if it has fewer.
    pub(crate) fn open(folder: &Path, bytes: u64) -> Result<Option<Self>, TrainError> {
        let path = folder.join(HISTORY_FILE);
        let open = || -> std::io::Result<Option<File>> {
            let options = &mut OpenOptions::new();
            let mut file = options.create(true).truncate(false).write(true).open(&path)?;
            if file.metadata()?.len() < bytes {
                return Ok(None);
            }
            file.set_len(bytes)?;
            file.seek(SeekFrom::End(0))?;
            Ok(Some(file))
        };
        let file = open().map_err(|source| TrainError::File {
            action: "open",
            path: path.clone(),
            source,
        })?;
        Ok(file.map(|file| Self { path, file, bytes }))
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A handle by which a checkpoint makes sure that the lines before it are on disk.
    pub(crate) fn handle(&self) -> Result<File, TrainError> {
        self.file.try_clone().map_err(|source| self.error(source))
    }

    pub(crate) fn step(&mut self, step: StepRecord) -> Result<(), TrainError> {
        self.write(&Line::Step(step))
    }

    pub(crate) fn epoch(&mut self, epoch: EpochRecord) -> Result<(), TrainError> {
        self.write(&Line::Epoch(epoch))
    }

    pub(crate) fn times(&mut self, times: TimesRecord) -> Result<(), TrainError> {
        self.write(&Line::Times(times))
    }

    /// Writes a line at once, so that whoever watches the run sees it.
    fn write(&mut self, line: &Line) -> Result<(), TrainError> {
        let mut text = serde_json::to_vec(line).map_err(|source| self.error(source.into()))?;
        text.push(b'\n');
        self.file.write_all(&text).map_err(|source| self.error(source))?;
        self.bytes += text.len() as u64;
        Ok(())
    }

    fn error(&self, source: std::io::Error) -> TrainError {
        TrainError::File { action: "write", path: self.path.clone(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: u64, loss: f64) -> StepRecord {
        StepRecord {
            step,
            epoch: 1,
            loss,
            parts: BTreeMap::from([("reconstruction".to_owned(), loss)]),
            learning_rate: 0.1,
            gradient_norm: loss,
            loss_scale: 1.0,
            samples: 2,
            skipped: !loss.is_finite(),
            milliseconds: 1.5,
            data_milliseconds: 0.5,
        }
    }

    #[test]
    fn a_resumed_history_has_every_step_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = Log::open(folder.path(), 0).unwrap().unwrap();
        log.step(step(1, 0.1 + 0.2)).unwrap();
        let kept = log.bytes();
        log.step(step(2, 7.0)).unwrap();
        log.file.write_all(b"{\"step\":{\"st").unwrap();
        assert_eq!(History::read(folder.path()).unwrap().steps.len(), 2);
        let mut log = Log::open(folder.path(), kept).unwrap().unwrap();
        log.step(step(2, f64::INFINITY)).unwrap();
        let history = History::read(folder.path()).unwrap();
        assert_eq!(history.steps[0], step(1, 0.1 + 0.2));
        assert!(
            history.steps[1].loss.is_nan() && history.steps[1].parts["reconstruction"].is_nan()
        );
        assert_eq!(history.steps.len(), 2);
        assert!(Log::open(folder.path(), log.bytes() + 1).unwrap().is_none());
    }

    #[test]
    fn what_was_written_is_told_in_its_order() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = Log::open(folder.path(), 0).unwrap().unwrap();
        let times =
            |step| TimesRecord { step, steps: 2, computing: 0.25, ..TimesRecord::default() };
        let epoch = EpochRecord {
            epoch: 1,
            step: 4,
            train_loss: 1.0,
            validation_loss: None,
            learning_rate: 0.1,
            best: true,
            seconds: 2.0,
        };
        for number in 1..=5 {
            log.step(step(number, 1.0)).unwrap();
            if number % 2 == 0 {
                log.times(times(number)).unwrap();
            }
            if number == 4 {
                log.epoch(epoch.clone()).unwrap();
            }
        }
        let history = History::read(folder.path()).unwrap();
        assert_eq!(history.times, [times(2), times(4)]);
        let mut told = vec![];
        history.tell(&mut |event| {
            told.push(match event {
                Event::Step { step, .. } => format!("step {step}"),
                Event::Times { step, computing, .. } => format!("times {step} {computing}"),
                Event::Epoch { epoch, .. } => format!("epoch {epoch}"),
                other => format!("{other:?}"),
            });
        });
        let expected = ["step 1", "step 2", "times 2 0.25", "step 3", "step 4", "times 4 0.25"];
        assert_eq!(told[..6], expected);
        assert_eq!(told[6..], ["epoch 1", "step 5"]);
    }

    #[test]
    fn a_line_of_something_else_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(HISTORY_FILE), "{\"steps\":1}\n").unwrap();
        let message = History::read(folder.path()).unwrap_err().to_string();
        assert!(message.contains("history.jsonl` cannot be understood at line 1"), "{message}");
    }
}
