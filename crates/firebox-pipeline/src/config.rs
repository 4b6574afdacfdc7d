//! What was written: the schema of a pipeline file. Nothing here is resolved or run.
//!
//! Each component owns its table's struct; this module only puts them together.

use std::path::PathBuf;

use firebox_core::{Augmentation, Labels, Normalisation, Precision, SplitRule, WindowRule};
use firebox_data::DataConfig;
use firebox_eval::EvalConfig;
use firebox_loader::LoaderConfig;
use firebox_models::{BiLstmMaeConfig, PatchTransformerConfig, StackedLstmConfig};
use firebox_monitor::MonitorConfig;
use firebox_train::TrainConfig;
use serde::{Deserialize, Serialize};

use crate::finetune::FinetuneConfig;
use crate::forecast::ForecastConfig;
use crate::multitimeframe::MultitimeframeConfig;
use crate::pseudolabel::PseudolabelConfig;
use crate::search::SearchConfig;

/// A pipeline file. Every table and key may be left out; what stands then is documented with it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PipelineConfig {
    /// Which chain of stages runs.
    pub pipeline: Kind,
    /// Seed, device, precision and folders.
    pub run: RunConfig,
    /// Which files are read, and what is done about their defects.
    pub data: DataConfig,
    /// How series are cut into windows and normalised.
    pub window: WindowConfig,
    /// Where the label of a window comes from.
    pub labels: Labels,
    /// How windows are divided into training, validation and test. Left out, it follows from the
    /// data: as `data.test` gives it; by whole series where several series have no times; else by
    /// time, the last fifth for the test and the tenth before it for validation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split: Option<SplitRule>,
    /// What the training windows are varied with before training.
    pub augment: Augmentation,
    /// Batches.
    pub loader: LoaderTable,
    /// The model.
    pub model: ModelConfig,
    /// Optimisation and checkpoints.
    pub train: TrainConfig,
    /// What the encoder is measured with.
    pub evaluate: EvalConfig,
    /// Fine-tuning, where `pipeline` is `finetune`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finetune: Option<FinetuneConfig>,
    /// What is forecast, for the pipeline `forecast`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forecast: Option<ForecastConfig>,
    /// What is measured beside training, and which trackers are told.
    pub monitor: MonitorConfig,
    /// What the kind `multitimeframe` needs beside the tables above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multitimeframe: Option<MultitimeframeConfig>,
    /// What the kind `pseudolabel` needs beside the tables above.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pseudolabel: Option<PseudolabelConfig>,
    /// Which keys `firebox search` searches, and how. `firebox run` leaves it alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub search: Option<SearchConfig>,
}

impl PipelineConfig {
    /// The tables that one kind of pipeline alone reads, whether they are there, and that kind.
    pub(crate) fn own_tables(&self) -> [(&'static str, bool, Kind); 4] {
        [
            ("finetune", self.finetune.is_some(), Kind::Finetune),
            ("forecast", self.forecast.is_some(), Kind::Forecast),
            ("multitimeframe", self.multitimeframe.is_some(), Kind::Multitimeframe),
            ("pseudolabel", self.pseudolabel.is_some(), Kind::Pseudolabel),
        ]
    }
}

/// A chain of stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// ingest → windows → augment → pre-train → evaluate → report
    #[default]
    Pretrain,
    /// ingest → windows in walk-forward folds → train several models on each → evaluate → report
    Multitimeframe,
    /// ingest → windows → (augment → pre-train →) fine-tune → evaluate → report
    Finetune,
    /// ingest → windows → train → evaluate → report
    Forecast,
    /// ingest → windows → iterations of clustering and training on the clusters → evaluate → report
    Pseudolabel,
}

/// `[run]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunConfig {
    /// Seed of every random draw.
    pub seed: u64,
    /// `auto` or the name of a device: `cpu`, `cuda:0`, `vulkan`, …
    pub device: String,
    /// Compute type: `f32`, or `bf16`, in which the operands of the LSTM's products are rounded to
    /// bf16. Weights, states, sums, the other layers and the optimizer are f32 in both.
    pub precision: Precision,
    /// Folder of the runs.
    pub directory: PathBuf,
    /// Folder of the results that runs share.
    pub cache: PathBuf,
}

impl Default for RunConfig {
    fn default() -> Self {
        Self {
            seed: 1337,
            device: "auto".to_owned(),
            precision: Precision::F32,
            directory: "runs".into(),
            cache: "cache".into(),
        }
    }
}

/// `[window]`
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WindowConfig {
    /// Steps of a window.
    pub length: usize,
    /// Steps between the starts of two windows.
    pub stride: usize,
    /// One window for each series, cut to `length`; for files that hold one sample a series.
    pub whole: bool,
    /// How values are brought to a common scale.
    pub normalise: Normalisation,
}

impl Default for WindowConfig {
    fn default() -> Self {
        let WindowRule { length, stride, whole } = WindowRule::default();
        Self { length, stride, whole, normalise: Normalisation::WindowRelative }
    }
}

impl WindowConfig {
    /// The part of it that cuts.
    pub fn rule(&self) -> WindowRule {
        WindowRule { length: self.length, stride: self.stride, whole: self.whole }
    }
}

/// `[loader]`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoaderTable {
    /// Windows of a training batch.
    pub batch_size: usize,
    /// Batches made ahead.
    pub prefetch: usize,
    /// Threads that make batches; 0 makes them where they are used. They do not change the order.
    pub workers: usize,
}

impl LoaderTable {
    /// The loader's own settings, with the seed of the run.
    pub(crate) fn resolve(&self, seed: u64) -> LoaderConfig {
        let &Self { batch_size, prefetch, workers } = self;
        LoaderConfig { batch_size, workers, prefetch, seed }
    }
}

impl Default for LoaderTable {
    /// The batch of reference system R1, and one thread: R1's windows take microseconds to copy.
    fn default() -> Self {
        Self { batch_size: 512, prefetch: 2, workers: 1 }
    }
}

/// `[model.NAME]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum ModelConfig {
    /// The BiLSTM masked autoencoder of reference system R1.
    BilstmMae(BiLstmMaeConfig),
    /// The masked Transformer over patches.
    PatchTransformer(PatchTransformerConfig),
    /// The forecaster of reference system R2.
    StackedLstm(StackedLstmConfig),
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self::BilstmMae(BiLstmMaeConfig::default())
    }
}
