//! A report as plain data. The pages made of it are in the modules below; nothing here draws.

mod archive;
mod charts;
mod compare;
mod events;
mod html;
mod markdown;
mod part;
mod pictures;
mod plot;
mod published;
mod raster;
mod sections;
mod sheet;
mod study;
mod study_charts;
mod tables;
mod write;

use firebox_core::is_training;
use serde::{Deserialize, Serialize};

use crate::{Evaluation, MaskedWindow, Projection, Reconstruction, Verdict};

pub use archive::{ArchiveDefect, ArchiveReport, ArchiveSet, Recipe};
pub use compare::{ComparedRun, MOST_RUNS, SideBySide, TestScore};
pub use part::{Card, Chart, Interval, Line, Part, Tone};
pub use published::{PUBLISHED, Published, published};
pub use raster::Raster;
pub use sheet::{Sheet, SheetChart, SheetSection};
pub use study::{
    Saved, StudyObjective, StudyOutcome, StudyParameter, StudyReport, StudyTrial, WrittenStudy,
};
pub use write::WrittenReport;

/// Everything that a report shows. A part that is empty is left out, or said to be missing.
///
/// The training curves, stages, checkpoints and warnings can be collected with
/// [`Report::record`] from the events of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// What was run, such as the pipeline's name.
    pub title: String,
    /// Name of the run.
    pub run: String,
    /// When it was made, as text.
    pub created: String,
    /// The device with its memory, driver and abilities as far as they are known.
    pub device: String,
    /// `finished`, `stopped early` or `interrupted`.
    pub outcome: String,
    /// Whether an attempt began that has told no step yet, and does not say from which one on it goes on.
    #[serde(skip)]
    begun: bool,
    /// Wall-clock time of the run, over all attempts.
    pub seconds: f64,
    /// Short facts for the head of the page, such as the number of parameters.
    pub facts: Vec<Fact>,
    /// The first line.
    pub verdict: Verdict,
    /// What the badge before it says in place of a word on baselines, where it is something else that was compared; empty
    /// elsewhere.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub badge: String,
    /// Numbers to see at once, in place of those of a pre-training.
    #[serde(default)]
    pub cards: Vec<Card>,
    /// What this kind of run brings along itself, before everything else; a run that has such parts
    /// is not said to lack labels or reconstructions.
    #[serde(default)]
    pub parts: Vec<Part>,
    /// Figures of those parts, for `scores.json`.
    #[serde(default)]
    pub figures: serde_json::Value,
    /// Scores, where there are labels.
    pub evaluation: Option<Evaluation>,
    /// Why there are none although there are labels, as the begin of a sentence; empty elsewhere.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unscored: String,
    /// Reconstruction errors, where windows were masked.
    pub reconstruction: Option<Reconstruction>,
    /// Names of the channels of `masked_windows`.
    pub channels: Vec<String>,
    /// A few masked windows to look at.
    pub masked_windows: Vec<MaskedWindow>,
    /// Embeddings to look at.
    pub embedding: Option<EmbeddingView>,
    /// What happened while training.
    pub curves: Curves,
    /// Stages in the order in which they first ended, each once.
    pub stages: Vec<Stage>,
    /// Checkpoints in the order in which they were completed.
    pub checkpoints: Vec<CheckpointRow>,
    /// Checkpoints that were completed and removed again.
    pub checkpoints_removed: usize,
    /// What the machine did.
    pub machine: Machine,
    /// What stood out in what was measured, and the setting that would change it.
    pub advice: Vec<Advice>,
    /// Where the time of some steps went, if they were profiled.
    pub profile: Option<Table>,
    /// What was found in the data and what was done about it, and how it was split.
    pub data: Vec<Table>,
    /// The resolved configuration, as it was written beside the run.
    pub configuration: String,
    /// Values that were derived, each with its reason.
    pub reasons: Vec<Reason>,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// A named value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    /// What it is.
    pub name: String,
    /// Its value, with its unit.
    pub value: String,
}

impl Fact {
    /// A fact of this name.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self { name: name.into(), value: value.into() }
    }
}

/// Embeddings of held-out windows in two dimensions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EmbeddingView {
    /// The points.
    pub projection: Projection,
    /// Class of each point, if it has one.
    pub labels: Vec<Option<u32>>,
    /// Names of the classes.
    pub classes: Vec<String>,
}

/// What happened while training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Curves {
    /// Every optimizer step.
    pub steps: Vec<StepPoint>,
    /// Every epoch.
    pub epochs: Vec<EpochPoint>,
    /// Steps that were skipped because a loss or gradient was not finite.
    pub skipped: Vec<u64>,
    /// Changes of the loss scale, if there is one.
    #[serde(default)]
    pub loss_scales: Vec<ScaleChange>,
    /// Norm that gradients are clipped to.
    pub clip_norm: Option<f64>,
}

impl Curves {
    /// Optimizer steps that were taken, those that were skipped among them.
    pub(crate) fn taken(&self) -> Option<u64> {
        let of_points = self.steps.last().map(|point| point.step);
        let of_epochs = self.epochs.last().map(|epoch| epoch.step);
        of_points.max(of_epochs).max(self.skipped.last().copied())
    }
}

/// A change of the loss scale: it falls when a gradient overflows, and the step is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScaleChange {
    /// Steps taken so far.
    pub step: u64,
    /// The scale until then.
    pub before: f64,
    /// The scale from then on.
    pub scale: f64,
}

/// An optimizer step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepPoint {
    /// Steps taken, this one included.
    pub step: u64,
    /// Training loss.
    pub loss: f64,
    /// Learning rate.
    pub learning_rate: f64,
    /// Global gradient norm before clipping.
    pub gradient_norm: f64,
}

/// An epoch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpochPoint {
    /// Epoch, from 1.
    pub epoch: u64,
    /// Steps taken at its end.
    pub step: u64,
    /// Mean training loss.
    pub train_loss: f64,
    /// Validation loss.
    pub validation_loss: Option<f64>,
    /// Whether the validation loss was the best so far.
    pub best: bool,
}

/// A stage of the pipeline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// Name.
    pub name: String,
    /// Content key of its result.
    pub key: Option<String>,
    /// Whether no attempt of this run had to make the result.
    pub reused: bool,
    /// Wall-clock time, over all attempts.
    pub seconds: f64,
    /// One line on what was made.
    pub detail: String,
}

/// A checkpoint on disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointRow {
    /// Steps taken.
    pub step: u64,
    /// Its folder.
    pub path: String,
    /// Size on disk.
    pub bytes: u64,
    /// Time that training stood still for it.
    pub blocked_milliseconds: f64,
    /// Time of the whole save.
    pub save_milliseconds: f64,
}

/// What the machine did while the run went on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Sentences on how well it was used, and on what could not be measured.
    pub notes: Vec<String>,
    /// Figures, averaged over time.
    pub measures: Vec<Measure>,
    /// Memory over time, drawn; the samples themselves are in the run's log.
    #[serde(skip)]
    pub memory: Option<Chart>,
}

/// A figure of the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// What it is.
    pub name: String,
    /// Its unit; `share`, `bytes`, `bytes/s` and `1/s` are written as a person would.
    pub unit: String,
    /// Mean while training.
    pub training_mean: Option<f64>,
    /// Peak while training.
    pub training_peak: Option<f64>,
    /// Peak of the whole run.
    pub peak: f64,
}

/// Something that stood out in what was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// What, with its figure.
    pub finding: String,
    /// The setting that would change it, and to what; empty where there is nothing to change.
    pub setting: String,
}

/// A table as text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// Heading.
    pub title: String,
    /// A sentence below the heading; may be empty.
    pub note: String,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Cells, row by row. A column whose cells are all numbers is aligned to the right.
    pub rows: Vec<Vec<String>>,
}

/// A value that was derived, and why it has this value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// Key of the configuration.
    pub key: String,
    /// Its value.
    pub value: String,
    /// Why.
    pub reason: String,
}

impl Report {
    /// Whether the run has trained without curves of its own: those of its parts are in their folders.
    fn trained_in_parts(&self) -> bool {
        let none = self.curves.steps.is_empty() && self.curves.epochs.is_empty();
        none && self.stages.iter().any(|stage| is_training(&stage.name))
    }

    /// A report of this run with its verdict, to which everything else is added.
    pub fn new(title: impl Into<String>, run: impl Into<String>, verdict: Verdict) -> Self {
        Self {
            title: title.into(),
            run: run.into(),
            created: String::new(),
            device: String::new(),
            outcome: String::new(),
            begun: false,
            seconds: 0.0,
            facts: vec![],
            verdict,
            badge: String::new(),
            cards: vec![],
            parts: vec![],
            figures: serde_json::Value::Null,
            evaluation: None,
            unscored: String::new(),
            reconstruction: None,
            channels: vec![],
            masked_windows: vec![],
            embedding: None,
            curves: Curves::default(),
            stages: vec![],
            checkpoints: vec![],
            checkpoints_removed: 0,
            machine: Machine::default(),
            advice: vec![],
            profile: None,
            data: vec![],
            configuration: String::new(),
            reasons: vec![],
            warnings: vec![],
        }
    }

    /// Sets scores and reconstruction errors, and the verdict that follows from them.
    pub fn judge(
        &mut self,
        evaluation: Option<Evaluation>,
        reconstruction: Option<Reconstruction>,
    ) {
        self.verdict = crate::verdict(evaluation.as_ref(), reconstruction.as_ref());
        self.evaluation = evaluation;
        self.reconstruction = reconstruction;
    }

    /// Warnings of the run and of the evaluation together, each once.
    pub(crate) fn all_warnings(&self) -> Vec<&str> {
        let evaluation = self.evaluation.iter().flat_map(|evaluation| &evaluation.warnings);
        let new = evaluation.filter(|warning| !self.warnings.contains(warning));
        self.warnings.iter().chain(new).map(String::as_str).collect()
    }

    /// The first epoch of the best validation loss.
    pub(crate) fn best_epoch(&self) -> Option<(&EpochPoint, f64)> {
        let losses = self.curves.epochs.iter().filter_map(|epoch| {
            epoch.validation_loss.filter(|loss| loss.is_finite()).map(|loss| (epoch, loss))
        });
        losses.min_by(|a, b| a.1.total_cmp(&b.1))
    }
}
