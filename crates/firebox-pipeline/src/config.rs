//! What was written: the schema of a pipeline file. Nothing here is resolved or run.
//!
//! Each component owns its table's struct; this module only puts them together.

use std::path::PathBuf;
use std::time::Duration;

use firebox_core::{
    Augmentation, Labels, MatmulPrecision, Normalisation, Precision, PrecisionRule, SplitRule,
    WindowRule,
};
use firebox_data::DataConfig;
use firebox_eval::EvalConfig;
use firebox_loader::{LoaderConfig, Masking, MaskingError, Resident, Shuffle, default_workers};
use firebox_models::{BiLstmMaeConfig, MaskedConfig, PatchTransformerConfig, StackedLstmConfig};
use firebox_monitor::MonitorConfig;
use firebox_remote::RemoteConfig;
use firebox_text::BertFromScratch;
use firebox_train::TrainConfig;
use serde::{Deserialize, Serialize};

use crate::error::PipelineError;
use crate::finetune::FinetuneConfig;
use crate::forecast::ForecastConfig;
use crate::multitimeframe::MultitimeframeConfig;
use crate::pseudolabel::PseudolabelConfig;
use crate::search::SearchConfig;
use crate::text::TextConfig;

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
    /// Texts with labels, and how an encoder learns from them: the pipeline `text` alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<TextConfig>,
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
    pub(crate) fn own_tables(&self) -> [(&'static str, bool, Kind); 5] {
        [
            ("finetune", self.finetune.is_some(), Kind::Finetune),
            ("forecast", self.forecast.is_some(), Kind::Forecast),
            ("multitimeframe", self.multitimeframe.is_some(), Kind::Multitimeframe),
            ("text", self.text.is_some(), Kind::Text),
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
    /// ingest → tokenise → train → evaluate → report
    Text,
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
#[serde(from = "RunTable", into = "RunTable")]
pub struct RunConfig {
    /// Seed of every random draw.
    pub seed: u64,
    /// `auto` or the name of a device: `cpu`, `cuda:0`, `vulkan`, …
    pub device: String,
    /// Compute type: `f32`, or `bf16` or `f16`, to which the operands of products are rounded. Weights,
    /// states, sums, losses and the optimizer are f32 in all of them. `tf32` only where a device has
    /// it. `auto` measures a few steps of the model in each type and takes the fastest, f32 unless
    /// another is faster by 5 %; until then, this is f32 here, and [`RunConfig::auto`] is true.
    pub precision: Precision,
    /// Whether the precision is still to be measured.
    pub auto: bool,
    /// How exact products of f32 have to be: `highest`, `high` or `medium`. Left out: as exact as
    /// `precision` makes them. An error where the device cannot promise it.
    pub matmul: Option<MatmulPrecision>,
    /// Whether Burn chooses among kernels by timing them, and keeps its choice in cubecl's cache.
    /// Left out: where a backend does so. Processors have nothing to tune.
    pub autotune: Option<Autotune>,
    /// Whether the layers of a model keep their inputs alone and are computed again for their
    /// gradients: less memory, another forward pass, and the same numbers, to the bit on processors; on GPUs whose kernels
    /// Burn fuses, but for rounding.
    pub recompute: bool,
    /// Whether a whole step is recorded once and replayed. Refused: it is bit-equal to taking the
    /// steps on no device yet.
    pub capture: bool,
    /// Folder of the runs.
    pub directory: PathBuf,
    /// Folder of the results that runs share.
    pub cache: PathBuf,
    /// How files on servers are fetched.
    pub fetch: FetchConfig,
}

/// `[run.fetch]`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FetchConfig {
    /// Seconds that a server has for each answer, 1 to 3600.
    pub timeout: u64,
    /// Times that a part is asked for again after a failure that may pass, at most 100.
    pub retries: usize,
    /// Whole copies in the cache are used, and no server is asked.
    pub offline: bool,
}

impl Default for FetchConfig {
    /// Those of [`RemoteConfig`].
    fn default() -> Self {
        let RemoteConfig { timeout, retries, offline, .. } = RemoteConfig::default();
        Self { timeout: timeout.as_secs(), retries, offline }
    }
}

impl From<FetchConfig> for RemoteConfig {
    fn from(FetchConfig { timeout, retries, offline }: FetchConfig) -> Self {
        Self { timeout: Duration::from_secs(timeout), retries, offline, ..Self::default() }
    }
}

/// `run.autotune`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Autotune {
    /// By timing.
    On,
    /// By rule.
    Off,
}

/// [`RunConfig`] as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename = "RunConfig")]
struct RunTable {
    seed: u64,
    device: String,
    precision: PrecisionRule,
    #[serde(skip_serializing_if = "Option::is_none")]
    matmul: Option<MatmulPrecision>,
    #[serde(skip_serializing_if = "Option::is_none")]
    autotune: Option<Autotune>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    recompute: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    capture: bool,
    directory: PathBuf,
    cache: PathBuf,
    fetch: FetchConfig,
}

impl Default for RunTable {
    fn default() -> Self {
        RunConfig::default().into()
    }
}

impl From<RunTable> for RunConfig {
    fn from(table: RunTable) -> Self {
        let (precision, auto) = match table.precision {
            PrecisionRule::Auto => (Precision::F32, true),
            PrecisionRule::Fixed(precision) => (precision, false),
        };
        Self {
            seed: table.seed,
            device: table.device,
            precision,
            auto,
            matmul: table.matmul,
            autotune: table.autotune,
            recompute: table.recompute,
            capture: table.capture,
            directory: table.directory,
            cache: table.cache,
            fetch: table.fetch,
        }
    }
}

impl From<RunConfig> for RunTable {
    fn from(config: RunConfig) -> Self {
        let precision = config.rule();
        Self {
            seed: config.seed,
            device: config.device,
            precision,
            matmul: config.matmul,
            autotune: config.autotune,
            recompute: config.recompute,
            capture: config.capture,
            directory: config.directory,
            cache: config.cache,
            fetch: config.fetch,
        }
    }
}

impl RunConfig {
    /// The precision that was asked for.
    pub fn rule(&self) -> PrecisionRule {
        if self.auto { PrecisionRule::Auto } else { PrecisionRule::Fixed(self.precision) }
    }
}

impl Default for RunConfig {
    fn default() -> Self {
        Self {
            seed: 1337,
            device: "auto".to_owned(),
            precision: Precision::F32,
            auto: false,
            matmul: None,
            autotune: None,
            recompute: false,
            capture: false,
            directory: "runs".into(),
            cache: "cache".into(),
            fetch: FetchConfig::default(),
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
    /// One window for each series, cut to `length`; for files that hold one sample a series. It is of the first steps, and
    /// of `forecast` of the last ones that targets follow.
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

/// The name of what normalises each window by itself, if this does.
pub(crate) fn of_each_window(normalise: Normalisation) -> Option<&'static str> {
    match normalise {
        Normalisation::WindowStandard => Some("window-standard"),
        Normalisation::WindowRelative => Some("window-relative"),
        Normalisation::None | Normalisation::Standard | Normalisation::Robust => None,
    }
}

/// `[loader]`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoaderTable {
    /// Windows of a training batch, at least 1. `auto` measures how many fit into memory and how many
    /// still make training faster; until then, this is 0.
    #[serde(with = "batch_size")]
    pub batch_size: usize,
    /// Batches made ahead.
    pub prefetch: usize,
    /// Threads that make batches; 0 makes them where they are used. They do not change the order. By
    /// default one for every second hardware thread, from 1 to 8.
    pub workers: usize,
    /// Batches that are handed to the device ahead of the one in use, so that they are copied while it
    /// computes; 0 hands each over when it is asked for. On the CPU nothing is copied, and this is 0.
    pub upload_ahead: usize,
    /// Make batches in pinned memory, from which the device copies by itself. Refused where there is none, as
    /// on the CPU, where nothing is copied.
    pub pin: bool,
    /// Where the training samples lie: `auto`, `device`, `memory` or `stream`. Batches are the same; with
    /// `augment.mode = "online"`, a device holds the originals and draws their versions itself, which
    /// are those of the host but for rounding.
    pub resident: Resident,
    /// How an epoch is shuffled: `full`, or by `blocks` for sets larger than memory.
    pub shuffle: Shuffle,
    /// Sort samples into buckets whose lengths are multiples of this number of steps, and pad each
    /// batch to its bucket; 0 pads all to the longest.
    pub buckets: usize,
    /// Steps of a batch with its padding, in place of `batch_size`, at least those of the longest sample; 0
    /// for none.
    pub tokens: usize,
}

impl LoaderTable {
    /// The loader's own settings, with the seed of the run.
    pub(crate) fn resolve(&self, seed: u64) -> LoaderConfig {
        let &Self {
            batch_size,
            prefetch,
            workers,
            upload_ahead,
            pin,
            shuffle,
            buckets,
            tokens,
            ..
        } = self;
        LoaderConfig {
            batch_size,
            workers,
            prefetch,
            upload_ahead,
            pin,
            shuffle,
            buckets,
            tokens,
            seed,
        }
    }
}

impl Default for LoaderTable {
    /// The batch of reference system R1.
    fn default() -> Self {
        Self {
            batch_size: 512,
            prefetch: 2,
            workers: default_workers(),
            upload_ahead: 2,
            pin: false,
            resident: Resident::Auto,
            shuffle: Shuffle::Full,
            buckets: 0,
            tokens: 0,
        }
    }
}

/// Samples of a batch, at most: no set has more.
pub(crate) const LARGEST_BATCH: usize = u32::MAX as usize;

/// `loader.batch_size`: a number, or `auto`, which is 0.
mod batch_size {
    use std::fmt;

    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};

    use super::LARGEST_BATCH;

    fn refused<E: Error>(size: impl fmt::Display, bound: &str) -> E {
        E::custom(format!("a batch of {size} windows; it has {bound}, or is \"auto\""))
    }

    pub(super) fn serialize<S: Serializer>(size: &usize, to: S) -> Result<S::Ok, S::Error> {
        match size {
            0 => to.serialize_str("auto"),
            size => to.serialize_u64(*size as u64),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
        struct Size;
        impl Visitor<'_> for Size {
            type Value = usize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of windows, at least 1, or \"auto\"")
            }

            fn visit_u64<E: Error>(self, size: u64) -> Result<usize, E> {
                match usize::try_from(size) {
                    Ok(size) if (1..=LARGEST_BATCH).contains(&size) => Ok(size),
                    Ok(0) => Err(refused(size, "at least one")),
                    _ => Err(refused(size, &format!("at most {LARGEST_BATCH}"))),
                }
            }

            fn visit_i64<E: Error>(self, size: i64) -> Result<usize, E> {
                match u64::try_from(size) {
                    Ok(size) => self.visit_u64(size),
                    Err(_) => Err(refused(size, "at least one")),
                }
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<usize, E> {
                match text {
                    "auto" => Ok(0),
                    other => Err(E::custom(format!(
                        "`{other}` is no size of a batch: write a number of windows, or \"auto\""
                    ))),
                }
            }
        }
        from.deserialize_any(Size)
    }
}

/// `[model.NAME]`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum ModelConfig {
    /// The BiLSTM masked autoencoder of reference system R1.
    BilstmMae(BiLstmMaeConfig),
    /// An encoder of BERT's form that is trained from scratch, for the pipeline `text`.
    Bert(BertFromScratch),
    /// The masked Transformer over patches.
    PatchTransformer(PatchTransformerConfig),
    /// Any other encoder of windows, which learns by masking.
    Masked(MaskedConfig),
    /// The forecaster of reference system R2.
    StackedLstm(StackedLstmConfig),
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self::BilstmMae(BiLstmMaeConfig::default())
    }
}

/// Checks the masking in a table.
///
/// # Errors
/// The key that cannot be, with the table's name.
pub(crate) fn check_masking(masking: &Masking, table: &str) -> Result<(), PipelineError> {
    masking.validate().map_err(|error| of_table(&error, table))
}

/// Checks what every table of masking hides against the length of windows.
///
/// # Errors
/// More stretches than a window has steps, or shorter ones than a step, with the table's name.
pub(crate) fn check_masks(config: &PipelineConfig) -> Result<(), PipelineError> {
    let tables = [
        ("finetune", config.finetune.as_ref().map(|table| &table.masking)),
        ("forecast", config.forecast.as_ref().map(|table| &table.masking)),
        ("multitimeframe", config.multitimeframe.as_ref().map(|table| &table.masking)),
        ("pseudolabel", config.pseudolabel.as_ref().map(|table| &table.masking)),
    ];
    let mut there = tables.into_iter().filter_map(|(table, masking)| Some((table, masking?)));
    there.try_for_each(|(table, masking)| {
        masking.validate_for(config.window.length).map_err(|error| of_table(&error, table))
    })
}

/// An error of masking with the name of the table that it is in.
fn of_table(error: &MaskingError, table: &str) -> PipelineError {
    PipelineError::Setting(error.to_string().replacen('`', &format!("`{table}."), 1))
}

/// A table that a kind of pipeline does not use.
pub(crate) fn unused(kind: &str, table: &str) -> PipelineError {
    PipelineError::Setting(format!(
        "[{table}] is set, and the pipeline `{kind}` does not use it\n  \
         take it out, or choose the pipeline that it belongs to"
    ))
}
