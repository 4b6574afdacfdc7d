//! Strict, layered TOML pipelines with content-keyed stages.
//!
//! [`Prepared`] reads a pipeline file with the environment and `--set` values over it, and resolves
//! it once into what runs. [`Prepared::plan`] shows the stages with their keys and what is already
//! there; [`Prepared::run`] makes what is missing. Those of the kind `pretrain`:
//!
//! ingest → windows → augment → train → evaluate → report
//!
//! Both first take a few training steps on noise where a setting is `auto`, because keys depend on what they say,
//! and keep it in the cache. Every key of a pipeline file is in `REFERENCE.md` of the repository.
//!
//! Each result is stored under a key of everything that it depends on. A stage is skipped only if
//! its result is there and whole. The resolved settings are written beside the run before its
//! first step, with a reason for each derived value.
//!
//! [`Search`] runs the pipeline up to the end of its training again and again, with other values of
//! some of its keys, and keeps what it finds as a study that Optuna reads.
//!
//! A run leaves its trained model with a card; [`apply()`] makes vectors, classes, forecasts or labels of new
//! data with it, and [`export()`] hands it to other programs.
//!
//! Nothing below this crate sees TOML, and this crate does not know which backends exist: it takes
//! a [`ChosenDevice`].
//!
//! # Example
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::sync::atomic::AtomicBool;
//! use burn::tensor::Device;
//! use firebox_core::Silent;
//! use firebox_pipeline::{ChosenDevice, Prepared, Source, describe_cpu};
//!
//! fn main() -> Result<(), firebox_pipeline::PipelineError> {
//!     let source = Source::File("pipelines/pretrain.toml".into());
//!     let prepared = Prepared::new(&source, std::env::vars(), &["train.epochs=2".to_owned()])?;
//!     let device = ChosenDevice {
//!         device: Device::flex(),
//!         backend: "cpu".to_owned(),
//!         description: describe_cpu(),
//!         reason: "asked for".to_owned(),
//!     };
//!     println!("{}", prepared.plan(&device, &Silent)?);
//!     let finished = prepared.run(&device, &Arc::new(AtomicBool::new(false)), &Silent)?;
//!     println!("{}\n{}", finished.verdict, finished.report.display());
//!     Ok(())
//! }
//! ```

mod apply;
mod batch_size;
mod bench;
mod cached;
mod chain;
mod compare;
mod config;
mod convert;
mod cut;
mod device;
mod doctor;
mod error;
mod export;
mod feed;
mod fewest;
mod filled;
mod finetune;
mod folder;
mod forecast;
mod forgotten;
mod idle;
mod kept;
mod keys;
mod layers;
mod leaks;
mod limits;
mod load_average;
mod measure;
mod moments;
mod multitimeframe;
mod online;
mod padding;
mod page;
mod pages;
mod plan;
mod pools;
mod precision;
mod prepared;
mod pretrain;
mod profile;
mod pseudolabel;
mod score;
mod search;
mod settle;
mod shared;
mod shell;
mod stages;
mod step;
mod sub;
mod test_table;
mod text;
mod threads;
mod together;
mod ucr;
mod unread;
mod values;
mod zoo;

use std::path::Path;

pub use apply::{Applied, ApplyRequest, Wanted, apply};
pub use bench::suite::{
    Axis, Check, Measurement, Peer, Performance, Regression, SuiteConfig, SuiteOutcome, SuitePart,
    TorchConfig, Undecided, Untimed, suite,
};
pub use bench::{
    ADDED_AIM, BenchConfig, BenchResult, Ceilings, KernelShare, PageFaults, Share, SmallModel,
    StepParts, UPDATE_AIM, Verdict, Watching, Workload, bench, bench_shown,
};
pub use compare::compare;
pub use config::{
    Autotune, FetchConfig, Kind, LoaderTable, ModelConfig, PipelineConfig, RunConfig, WindowConfig,
};
pub use convert::{ConvertConfig, ConvertError, Converted, Odd, convert};
pub use device::{ChosenDevice, describe_cpu};
pub use doctor::{
    DoctorCase, DoctorConfig, Examination, Feeding, Found, Hardware, Learning, Mark, Tick, Timed,
    doctor,
};
pub use error::PipelineError;
pub use export::{ExportFormat, ExportRequest, Exported, export};
pub use finetune::FinetuneConfig;
pub use firebox_data::{being_read, quiet_readers};
pub use firebox_eval::loss as loss_text;
pub use firebox_export::Part;
#[cfg(feature = "gpu")]
pub use firebox_kernels::keep_compiled_kernels;
pub use firebox_loader::Resident;
pub use forecast::ForecastConfig;
pub use layers::{ConfigError, load};
pub use leaks::LeakCheck;
pub use limits::memory_limit;
pub use multitimeframe::{LstmTable, MlpTable, ModelName, MultitimeframeConfig, TransformerTable};
pub use plan::{Plan, PlannedStage, StageState};
pub use precision::{
    Abilities, DeviceClass, Policy, PolicyError, Resolution, Support, device_class, device_classes,
    resolve,
};
pub use prepared::{Prepared, Source, find_run};
pub use pseudolabel::PseudolabelConfig;
pub use search::{
    Concurrent, Number, Objective, Objectives, Patient, PrunerConfig, SamplerConfig, Search,
    SearchConfig, SearchSource, Searched, SpaceEntry,
};
pub use shell::quoted_for_a_shell;
pub use stages::{Finished, Outcome};
pub use text::TextConfig;
pub use threads::{begin_threads, refused_thread};
pub use ucr::{UcrConfig, UcrData, UcrFinished, UcrTraining, evaluate_ucr};

/// The store that runs share, for those who look after it.
pub mod cache {
    pub use firebox_cache::{Store, Stored};
}

/// What memory a run takes, for the allocator of a program.
pub mod memory {
    pub use crate::search::{NOTE_BYTES, Shortage, note_trials};
    pub use firebox_monitor::group_leaves;
    pub use firebox_train::memory::{
        gave, held, is_in_step, limit_to, peak, ran_out, reset_peak, took,
    };
}

/// Looking at runs, and asking them for something.
pub mod monitor {
    pub use firebox_monitor::{Counted, ProfileConfig};
    pub use firebox_monitor::{WatchError, request, watch, watch_once};
}

/// Writes the bars of a generated market, the hours of generated demand or generated texts as CSV and
/// returns what was written. A file that is there is replaced only if `force` says so; a link to a file stays, and its target is replaced.
///
/// # Errors
///
/// When the settings cannot be read, or the file cannot be written or must not be.
pub fn generate(settings: &Path, output: &Path, force: bool) -> Result<String, PipelineError> {
    let named = error::at_named("the settings of the generator", settings);
    let text = std::fs::read_to_string(settings).map_err(named)?;
    apply::named_as(output, "CSV", &["csv", "txt"])?;
    let demand = settings.to_string_lossy().to_ascii_lowercase().ends_with(".demand.toml");
    if demand {
        let demand = firebox_data::DemandConfig::from_toml(&text)
            .map_err(|error| layers::in_file(settings, &text, &error))?;
        demand.write_csv_file(&apply::replaceable(output, force, &[settings.to_path_buf()])?)?;
        return Ok(format!("{} hours of {} stations", demand.hours, demand.stations));
    }
    if settings.to_string_lossy().to_ascii_lowercase().ends_with(".texts.toml") {
        let (table, texts) = text::as_csv(settings, &text)?;
        let output = apply::replaceable(output, force, &[settings.to_path_buf()])?;
        folder::write_whole(&output, table.as_bytes()).map_err(error::at(&output))?;
        return Ok(format!("{texts} texts"));
    }
    if settings.to_string_lossy().to_ascii_lowercase().ends_with(".clips.toml") {
        return Err(PipelineError::Setting(format!(
            "clips are not generated as a table: name {} in `data.path`, and they are made as they are read\n  \
             written as CSV are the bars of a .market.toml, the hours of a .demand.toml and the texts of a .texts.toml",
            settings.display()
        )));
    }
    let market = firebox_data::MarketConfig::from_toml(&text)
        .map_err(|error| layers::in_file(settings, &text, &error))?;
    market.write_csv_file(&apply::replaceable(output, force, &[settings.to_path_buf()])?)?;
    Ok(format!("{} bars", market.bars * market.instruments.len()))
}
