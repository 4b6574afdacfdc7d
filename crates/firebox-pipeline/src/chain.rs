//! What each kind of pipeline is: the one place where kinds are told apart.
//!
//! Everything around a chain is common: its folder with lock, log and manifest, trackers, monitor,
//! profile, requests, and the report's frame. A kind is a module with a [`Chain`].

use std::path::Path;
use std::sync::Mutex;

use burn::module::Module;
use firebox_core::Key;
use firebox_eval::{Reason, Report, TestScore};
use firebox_train::{Summary, TrainConfig, TrainError, check_groups};
use serde_json::Value;

use crate::bench::{Measured, Probe};
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::feed::series_key;
use crate::finetune::Finetune;
use crate::folder::RunFolder;
use crate::forecast::Forecast;
use crate::keys::Keys;
use crate::multitimeframe::Multitimeframe;
use crate::pretrain::Pretrain;
use crate::pseudolabel::Pseudolabel;
use crate::score::Score;
use crate::stages::Run;
use crate::sub::Part;
use crate::text::Text;
use crate::{Kind, PipelineConfig, Prepared};

/// A chain of stages.
pub(crate) trait Chain: Sync {
    /// Refuses settings that this kind does not use, or that cannot be. Those that every kind has
    /// are checked before.
    fn check(&self, config: &PipelineConfig) -> Result<(), PipelineError>;

    /// Checks what is known only with the model, such as names of parameters, before any data is
    /// read.
    fn check_model(
        &self,
        config: &PipelineConfig,
        device: &ChosenDevice,
    ) -> Result<(), PipelineError>;

    /// The key of the data, whose remote files are fetched for it.
    fn data_key(&self, config: &PipelineConfig) -> Result<Key, PipelineError> {
        series_key(config)
    }

    /// The keys of its results. All depend on `[data]`, `[window]` and the other common tables; a
    /// kind adds its own.
    fn keys(&self, config: &PipelineConfig, device: &ChosenDevice) -> Result<Keys, PipelineError> {
        let series = series_key(config)?;
        Ok(Keys::new(config, series, &device.arithmetic_of(config)?))
    }

    /// The keys that the training in the run's own folder has, of a run of these keys: the same, unless it is named after
    /// what comes after that training.
    fn own_keys(
        &self,
        _config: &PipelineConfig,
        _device: &ChosenDevice,
        keys: &Keys,
    ) -> Result<Keys, PipelineError> {
        Ok(*keys)
    }

    /// A few training steps of its model on noise, for what is measured before a run. A kind with
    /// several models takes each in turn, and adds up their times.
    fn probe(
        &self,
        config: &PipelineConfig,
        probe: Probe<'_>,
        device: &ChosenDevice,
    ) -> Result<Measured, PipelineError>;

    /// How many windows, or texts, the training set has, for whoever measures steps before a run: an epoch is to have some
    /// steps, and no batch is larger than all of their samples. The data are read for it, and their channels are known from
    /// then on. None where they are not counted.
    ///
    /// # Errors
    ///
    /// Whatever keeps the data from being read, as in a run.
    fn training_windows(&self, run: &Run<'_>) -> Result<Option<usize>, PipelineError>;

    /// Samples of each of them in an epoch: its original and its versions.
    fn slots(&self, _config: &PipelineConfig) -> usize {
        1
    }

    /// The setting that sizes its training batches, where that is not `loader.batch_size`.
    fn own_batches(&self, _config: &PipelineConfig) -> Option<&'static str> {
        None
    }

    /// Whether its model, or one of several, takes `run.recompute`.
    fn recomputes(&self, config: &PipelineConfig) -> bool;

    /// What does not compute its layers again, where [`recomputes`](Self::recomputes) says so.
    fn not_recomputed(&self) -> &'static str {
        "the model of this kind of pipeline"
    }

    /// Its stages in order, with the keys of their results. The names are those of the events.
    fn stages(&self, keys: &Keys) -> Vec<(&'static str, Option<Key>)>;

    /// Everything up to the report. It leaves a trained model by [`Run::keep_model`], without which no
    /// run is whole.
    fn make(&self, run: &Run<'_>, work: &mut Work<'_>) -> Result<Making, PipelineError>;

    /// The test scores that a run of this kind tells first, of the figures that its page wrote into `scores.json`; none
    /// where a probe or masked steps are all that is measured.
    fn main_scores(&self, _figures: &Value) -> Vec<TestScore> {
        vec![]
    }

    /// Which of a run's trainings is the one in its own folder, if there may be others: `several` says whether there are.
    fn own_training(&self, _several: bool) -> &'static str {
        ""
    }

    /// Tables and keys of a pipeline file that this kind does not read, such as `evaluate.seeds`: a model's card has none
    /// of them.
    fn unread(&self, _config: &PipelineConfig) -> Vec<String> {
        vec![]
    }

    /// Why this kind cannot be searched, if it cannot.
    fn unsearched(&self) -> Option<&'static str> {
        None
    }

    /// The scores on validation data that a search of this kind may choose by.
    fn scores(&self) -> &'static [Score] {
        &[]
    }

    /// Everything up to the end of training, for a search: what the training says of itself, or
    /// `None` if it was stopped. It leaves the scores that the run wants in [`Work::scores`].
    ///
    /// # Errors
    ///
    /// Among others, that this kind is not searched.
    fn train_only(
        &self,
        run: &Run<'_>,
        work: &mut Work<'_>,
    ) -> Result<Option<Summary>, PipelineError> {
        let _ = (run, work);
        Err(PipelineError::Setting(self.unsearched().unwrap_or_default().to_owned()))
    }
}

impl Kind {
    /// Its name in a pipeline file.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pretrain => "pretrain",
            Self::Finetune => "finetune",
            Self::Forecast => "forecast",
            Self::Multitimeframe => "multitimeframe",
            Self::Pseudolabel => "pseudolabel",
            Self::Text => "text",
        }
    }

    /// The chain of this kind.
    pub(crate) fn chain(self) -> &'static dyn Chain {
        match self {
            Self::Pretrain => &Pretrain,
            Self::Text => &Text,
            Self::Multitimeframe => &Multitimeframe,
            Self::Finetune => &Finetune,
            Self::Forecast => &Forecast,
            Self::Pseudolabel => &Pseudolabel,
        }
    }
}

/// The run in hand: what was written, where its results go, and what has become of it so far.
pub(crate) struct Work<'a> {
    pub(crate) prepared: &'a Prepared,
    pub(crate) folder: &'a RunFolder,
    pub(crate) path: &'a Path,
    /// Values that were derived, each with its reason; [`Work::resolved`] writes them down.
    pub(crate) reasons: Vec<Reason>,
    /// Results that were made, not reused.
    pub(crate) remade: usize,
    /// Trainings within it that were done, or read back.
    pub(crate) parts: Mutex<Vec<Part>>,
    /// What the run wants to know of its model on validation data, in the order of its wishes.
    pub(crate) scores: Vec<f64>,
}

impl<'a> Work<'a> {
    /// A run of which nothing was done yet.
    pub(crate) fn new(
        prepared: &'a Prepared,
        folder: &'a RunFolder,
        path: &'a Path,
        reasons: Vec<Reason>,
    ) -> Self {
        Self { prepared, folder, path, reasons, remade: 0, parts: Mutex::default(), scores: vec![] }
    }

    /// Writes the resolved settings beside the run, with the reasons known so far.
    pub(crate) fn resolved(&self) -> Result<(), PipelineError> {
        // A trial that reads what somebody's run has learnt leaves it as it is.
        if crate::folder::is_finished(self.path) {
            return Ok(());
        }
        let text = self.prepared.resolved(&self.reasons)?;
        self.folder.write(crate::folder::PIPELINE, text.as_bytes())
    }
}

/// What the stages before the report made.
pub(crate) enum Making {
    Complete(Box<Made>),
    Interrupted { step: u64 },
}

/// Everything that a run ended with, but for what its log tells.
pub(crate) struct Made {
    /// What this kind of run has to say. The rest of the page (curves, stages, machine, settings) is
    /// filled in from the log.
    pub(crate) report: Report,
    /// One line on what was trained.
    pub(crate) trained: String,
    /// `finished` or `stopped early`.
    pub(crate) outcome: String,
}

/// Whether any setting of training names parameters.
pub(crate) fn names_parameters(train: &TrainConfig) -> bool {
    !train.groups.is_empty() || train.layer_decay.is_some()
}

/// Checks the names of parameters in the settings of training against a model, which is made only if there are any.
pub(crate) fn check_names<M: Module>(
    train: &TrainConfig,
    model: impl FnOnce() -> Result<M, PipelineError>,
) -> Result<(), PipelineError> {
    if !names_parameters(train) {
        return Ok(());
    }
    check_groups(&model()?, train).map_err(|error| TrainError::from(error).into())
}
