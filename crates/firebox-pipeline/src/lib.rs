//! Strict, layered TOML pipelines with content-keyed stages.
//!
//! [`Prepared`] reads a pipeline file with the environment and `--set` values over it, and resolves
//! it once into what runs. [`Prepared::plan`] shows the stages with their keys and what is already
//! there; [`Prepared::run`] makes what is missing:
//!
//! ingest → windows → augment → train → evaluate → report
//!
//! Each result is stored under a key of everything that it depends on. A stage is skipped only if
//! its result is there and whole. The resolved settings are written beside the run before its
//! first step, with a reason for each derived value.
//!
//! [`Search`] runs the pipeline up to the end of its training again and again, with other values of
//! some of its keys, and keeps what it finds as a study that Optuna reads.
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
//! let source = Source::File("pipelines/pretrain.toml".into());
//! let prepared = Prepared::new(&source, std::env::vars(), &["train.epochs=2".to_owned()])?;
//! let device = ChosenDevice {
//!     device: Device::flex(),
//!     backend: "cpu".to_owned(),
//!     description: describe_cpu(),
//!     reason: "asked for".to_owned(),
//! };
//! println!("{}", prepared.plan(&device)?);
//! let finished = prepared.run(&device, &Arc::new(AtomicBool::new(false)), &Silent)?;
//! println!("{}\n{}", finished.verdict, finished.report.display());
//! # Ok::<(), firebox_pipeline::PipelineError>(())
//! ```

mod bench;
mod chain;
mod compare;
mod config;
mod device;
mod error;
mod folder;
mod keys;
mod layers;
mod measure;
mod page;
mod plan;
mod prepared;
mod pretrain;
mod profile;
mod search;
mod stages;
#[allow(dead_code, reason = "kinds with several trainings use it")]
mod sub;
mod text;

use std::path::{Path, PathBuf};

pub use bench::{BenchConfig, BenchResult, Workload, bench};
pub use compare::compare;
pub use config::{Kind, LoaderTable, ModelConfig, PipelineConfig, RunConfig, WindowConfig};
pub use device::{ChosenDevice, describe_cpu};
pub use error::PipelineError;
pub use layers::{ConfigError, load};
pub use plan::{Plan, PlannedStage, StageState};
pub use prepared::{Prepared, Source, find_run};
pub use search::{
    Number, Objective, Patient, PrunerConfig, SamplerConfig, Search, SearchConfig, SearchSource,
    Searched, SpaceEntry,
};
pub use stages::{Finished, Outcome};
pub use text::TextConfig;

/// The store that runs share, for those who look after it.
pub mod cache {
    pub use firebox_cache::{Store, Stored};
}

/// Looking at runs, and asking them for something.
pub mod monitor {
    pub use firebox_monitor::ProfileConfig;
    #[cfg(unix)]
    pub use firebox_monitor::{WatchError, request, watch, watch_once};
}

/// Writes the bars of a generated market as CSV and returns their number. A file that is there is
/// replaced only if `force` says so; a link to a file stays, and its target is replaced.
///
/// # Errors
///
/// When the settings cannot be read, or the file cannot be written or must not be.
pub fn generate_market(
    settings: &Path,
    output: &Path,
    force: bool,
) -> Result<usize, PipelineError> {
    let text = std::fs::read_to_string(settings)
        .map_err(|source| ConfigError::Read { path: settings.to_path_buf(), source })?;
    let market = firebox_data::MarketConfig::from_toml(&text)
        .map_err(|error| layers::in_file(settings, &text, &error))?;
    market.write_csv_file(&replaceable(settings, output, force)?)?;
    Ok(market.bars * market.instruments.len())
}

/// Where a generated file may be written: a new path, or with `force` a file, through its links.
fn replaceable(settings: &Path, output: &Path, force: bool) -> Result<PathBuf, PipelineError> {
    let refuse = |what: &str| {
        Err(PipelineError::Setting(format!("{} is not written: {what}", output.display())))
    };
    if output.symlink_metadata().is_err() {
        return Ok(output.to_path_buf());
    }
    let Ok(target) = output.canonicalize() else {
        return refuse("it is a link that leads nowhere\n  remove it, or name another file");
    };
    if settings.canonicalize().is_ok_and(|settings| settings == target) {
        return refuse("it is the file of the settings itself\n  name another file");
    }
    if !target.is_file() {
        return refuse("it is there and no regular file\n  name another file");
    }
    if !force {
        return refuse("it is there already\n  replace it with --force, or name another file");
    }
    Ok(target)
}
