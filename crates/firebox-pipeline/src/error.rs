//! What can end a pipeline.

use std::path::{Path, PathBuf};

use firebox_cache::CacheError;
use firebox_eval::EvalError;
use firebox_loader::LoadError;
use firebox_remote::RemoteError;
use firebox_search::{StorageError, StudyError};
use firebox_train::TrainError;

use crate::ConfigError;

/// A pipeline that cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// The pipeline file or a layer over it.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The files to read.
    #[error(transparent)]
    Data(#[from] firebox_data::DataError),
    /// A remote file.
    #[error(transparent)]
    Remote(#[from] firebox_remote::RemoteError),
    /// Texts, a tokenizer, or the folder of a model.
    #[error(transparent)]
    Text(#[from] firebox_text::TextError),
    /// The split.
    #[error("the series cannot be divided into training, validation and test")]
    Split(#[from] firebox_core::SplitError),
    /// The same of windows with what is forecast after them.
    #[error("{0}")]
    Horizons(String),
    /// The normalisation.
    #[error("the windows cannot be normalised")]
    Normalise(#[from] firebox_core::NormaliseError),
    /// Settings of the augmentations.
    #[error("an augmentation cannot be made: see the table [augment]")]
    Augmentation(#[from] firebox_cache::ParameterError),
    /// The cache of augmented windows.
    #[error(transparent)]
    Cache(#[from] firebox_cache::CacheError),
    /// Batches.
    #[error(transparent)]
    Load(#[from] firebox_loader::LoadError),
    /// Settings of the model.
    #[error(transparent)]
    Model(#[from] firebox_models::ModelError),
    /// A trained model, stored or exported.
    #[error(transparent)]
    Export(#[from] firebox_export::ExportError),
    /// The CPU kernels that the environment asks for.
    #[error(transparent)]
    Kernels(#[from] firebox_kernels::CpuKernelsError),
    /// A precision that the device does not have.
    #[error(transparent)]
    Policy(#[from] crate::precision::PolicyError),
    /// Settings of training.
    #[error(transparent)]
    TrainSettings(#[from] firebox_train::ConfigError),
    /// Settings of the monitor.
    #[error(transparent)]
    Monitor(#[from] firebox_monitor::ConfigError),
    /// Settings of a loss.
    #[error(transparent)]
    Loss(#[from] firebox_kernels::LossError),
    /// Training.
    #[error(transparent)]
    Train(#[from] firebox_train::TrainError),
    /// A training whose settings have keys of their own left the range of its numbers.
    #[error("{training}: {what}; {way_out}")]
    NotFinite {
        /// Name of the training, which is also its folder below `parts/`.
        training: String,
        /// The step, its loss and its gradient.
        what: String,
        /// Which keys act there.
        way_out: String,
    },
    /// Steps that are measured before a run.
    #[error(
        "{what} cannot be measured: the steps that are taken for it before the run, on noise, fail\n  \
         set what is \"auto\" to a value, and leave run.recompute out: nothing is measured then"
    )]
    Measuring {
        /// The settings that were measured.
        what: &'static str,
        /// Why.
        #[source]
        source: Box<TrainError>,
    },
    /// Weights that an encoder was to begin with.
    #[error(transparent)]
    Encoder(Box<firebox_train::LoadEncoder>),
    /// Evaluation or report.
    #[error(transparent)]
    Eval(#[from] firebox_eval::EvalError),
    /// A study, or its storage.
    #[error(transparent)]
    Study(#[from] firebox_search::StudyError),
    /// A searched key that the schema does not have, or not with this value.
    #[error("[search.space] cannot have `{key}` = {value}")]
    Space {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// Why not.
        #[source]
        source: Box<PipelineError>,
    },
    /// A file of the run.
    #[error("cannot read or write {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Another process works in the same run folder.
    #[error(
        "another process is working in {0}\n  wait for it, or stop it; a run has a folder of its own with another setting of data, model or training (not of [evaluate]), or with another `run.directory`"
    )]
    InUse(PathBuf),
    /// A stage was asked to stop; what was complete before it is kept.
    #[error("it was interrupted")]
    Interrupted,
    /// What lies before is made with what comes after.
    #[error(
        "a {kind} looks ahead: it changes with {when}\n  {what}\n  what is measured with it is worth nothing until it is mended"
    )]
    Leak {
        /// What looks ahead.
        kind: &'static str,
        /// What was changed.
        when: String,
        /// The place, before and after.
        what: String,
    },
    /// Files that changed between the key of a run and their reading.
    #[error(
        "the files of the data were changed while the run was about to read them: what was read is not what the run is named after, and was left alone\n  \
         start it again once nobody writes to them"
    )]
    OtherData,
    /// Weights that changed between the key of a run and their reading.
    #[error(
        "the weights of {} were changed while the run was about to read them: it would not be what it is named after, and was not begun\n  \
         start it again once nobody writes to them",
        path.display()
    )]
    OtherWeights {
        /// Where they are.
        path: PathBuf,
    },
    /// Files that changed while a search was at work.
    #[error(
        "the data of the study {study} are not those that it was begun with, or this version of Firebox reads them otherwise: losses of other data cannot be compared\n  \
         put back the files that it was begun with, or begin another study, as with --set search.study={study}-2"
    )]
    OtherStudyData {
        /// Name of the study.
        study: String,
    },
    /// A search of a split without a validation part.
    #[error(
        "there are no validation windows, so no trial has a value\n  choose a split with a validation part"
    )]
    NoValidation,
    /// A search by a score of windows, whose training or validation part has no labelled one.
    #[error(
        "there are no labelled windows in the training or the validation part, so no trial has a score\n  choose another split or other labels, or search by search.objectives = \"validation-loss\""
    )]
    NoLabels,
    /// The system gives no thread, mostly for want of memory for its stack.
    #[error(
        "the system refused a thread, {what}{limits}: its stack takes memory, too\n  \
         give the process more memory (ulimit -v and -d) or threads (ulimit -u, its control group), or let fewer threads compute, as with RAYON_NUM_THREADS=1"
    )]
    NoThread {
        /// Which.
        what: &'static str,
        /// The limits on memory, after a comma, if there are any.
        limits: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A setting that is valid by itself, and not with the others or with this build.
    #[error("{0}")]
    Setting(String),
    /// A run that was named and is not there.
    #[error("there is no run {0}: a run folder has a file pipeline.toml{1}")]
    NoRun(PathBuf, String),
}

impl PipelineError {
    /// The same; a stage that says that it was asked to stop was interrupted.
    pub(crate) fn or_interrupted(self) -> Self {
        match self {
            Self::Cache(CacheError::Stopped)
            | Self::Data(firebox_data::DataError::Stopped)
            | Self::Text(firebox_text::TextError::Stopped)
            | Self::Eval(EvalError::Stopped)
            | Self::Remote(RemoteError::Stopped { .. }) => Self::Interrupted,
            other => other,
        }
    }

    /// The same; what ended training was met where steps were measured for this setting.
    pub(crate) fn measuring(self, what: &'static str) -> Self {
        match self {
            // What ends the whole process, which then begins anew, is not of the measurement.
            Self::Train(error) if !error.begins_anew() => {
                Self::Measuring { what, source: Box::new(error) }
            }
            other => other,
        }
    }

    /// Whether the run goes on where it was, and with less memory, if the same program is started again.
    pub fn begins_anew(&self) -> bool {
        matches!(self, Self::Train(error) if error.begins_anew())
    }

    /// Whether the user can mend it in the flags, the pipeline file or the data; else it failed
    /// while running.
    pub fn is_bad_input(&self) -> bool {
        match self {
            Self::Config(_)
            | Self::Split(_)
            | Self::Horizons(_)
            | Self::Text(_)
            | Self::Normalise(_)
            | Self::Model(_)
            | Self::Loss(_)
            | Self::TrainSettings(_)
            | Self::Augmentation(_)
            | Self::Kernels(_)
            | Self::Policy(_)
            | Self::Monitor(_)
            | Self::Setting(_)
            | Self::NoValidation
            | Self::OtherData
            | Self::OtherWeights { .. }
            | Self::OtherStudyData { .. }
            | Self::NoLabels
            | Self::NoRun(..)
            | Self::Encoder(_)
            | Self::Space { .. } => true,
            Self::Study(error) => match error {
                StudyError::Storage(StorageError::Address { .. })
                | StudyError::Storage(StorageError::Damaged { .. }) => true,
                StudyError::Storage(_) | StudyError::Ended { .. } => false,
                _ => true,
            },
            Self::Export(error) => error.is_bad_input(),
            Self::Data(error) => error.is_bad_input(),
            // Values, budgets and settings that are known to be impossible only once the data is read.
            Self::Cache(error) => matches!(error, CacheError::Range { .. }),
            Self::Train(error) => {
                matches!(
                    error,
                    TrainError::Budget { .. } | TrainError::Group(_) | TrainError::Unreached { .. }
                )
            }
            Self::Eval(error) => matches!(
                error,
                EvalError::Setting { .. }
                    | EvalError::Runs { .. }
                    | EvalError::NotOurs { .. }
                    | EvalError::Clusters { .. }
                    | EvalError::NoForecast
            ),
            Self::Load(error) => matches!(
                error,
                LoadError::Pin
                    | LoadError::NotResident { .. }
                    | LoadError::Tokens { .. }
                    | LoadError::Masking(_)
            ),
            Self::Remote(error) => matches!(
                error,
                RemoteError::Url { .. }
                    | RemoteError::NotBuilt { .. }
                    | RemoteError::NotFound { .. }
                    | RemoteError::Refused { .. }
                    | RemoteError::NoKeys { .. }
                    | RemoteError::NoLength { .. }
                    | RemoteError::NoFile { .. }
                    | RemoteError::Encoded { .. }
                    | RemoteError::NoCopy { .. }
            ),
            Self::Io { .. }
            | Self::InUse(_)
            | Self::Interrupted
            | Self::Leak { .. }
            | Self::NotFinite { .. }
            | Self::NoThread { .. }
            | Self::Measuring { .. } => false,
        }
    }
}

/// Names the path in an error of the file system.
pub(crate) fn at(path: &Path) -> impl Fn(std::io::Error) -> PipelineError {
    let path = path.to_path_buf();
    move |source| PipelineError::Io { path: path.clone(), source }
}

/// The same of what the user has named, called so: that it is not there, or cannot be read as what it is, is bad input.
pub(crate) fn at_named(what: &str, path: &Path) -> impl Fn(std::io::Error) -> PipelineError {
    use std::io::ErrorKind::{
        InvalidData, IsADirectory, NotADirectory, NotFound, PermissionDenied,
    };
    let (what, path) = (what.to_owned(), path.to_path_buf());
    move |source| match source.kind() {
        NotFound | IsADirectory | NotADirectory | PermissionDenied | InvalidData => {
            PipelineError::Setting(format!("cannot read {what} {}: {source}", path.display()))
        }
        _ => at(&path)(source),
    }
}

#[cfg(test)]
mod tests {
    use firebox_train::TrainError;

    use super::*;

    #[test]
    fn a_run_that_lost_steps_for_want_of_memory_begins_anew_and_no_other() {
        let of = |error: TrainError| PipelineError::from(error).begins_anew();
        assert!(of(TrainError::Lost { first: 1, last: 2 }));
        assert!(!of(TrainError::Device("out of memory".to_owned())));
        assert!(!PipelineError::NoValidation.begins_anew());
    }

    #[test]
    fn what_is_named_and_not_there_is_bad_input_and_a_broken_disk_is_not() {
        let of = |kind: std::io::ErrorKind| at_named("the settings", Path::new("a"))(kind.into());
        let absent = of(std::io::ErrorKind::NotFound);
        assert!(absent.is_bad_input());
        assert_eq!(absent.to_string(), "cannot read the settings a: entity not found");
        assert!(!of(std::io::ErrorKind::Other).is_bad_input());
    }

    #[test]
    fn what_fails_while_it_is_measured_says_so_and_what_begins_anew_does() {
        let of = |error: TrainError| PipelineError::from(error).measuring("`loader.batch_size`");
        let failed = of(TrainError::Overflowed { steps: 4, scale: 1.0 });
        assert!(!failed.is_bad_input() && !failed.begins_anew());
        let said = failed.to_string();
        assert!(said.starts_with("`loader.batch_size` cannot be measured: "), "{said}");
        let cause = std::error::Error::source(&failed).map(ToString::to_string);
        assert!(cause.is_some_and(|cause| cause.contains("all 4 steps overflowed")));
        assert!(of(TrainError::Lost { first: 1, last: 2 }).begins_anew());
    }
}
