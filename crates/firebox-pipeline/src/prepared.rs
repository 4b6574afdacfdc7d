//! What was written, resolved once into what runs.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use firebox_core::{Labels, Listener, Precision};
use firebox_eval::Reason;

use crate::config::ModelConfig;
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::folder;
use crate::keys::Keys;
use crate::plan::Plan;
use crate::{Finished, PipelineConfig, layers, stages};

/// Where a pipeline comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A pipeline file.
    File(PathBuf),
    /// A run to go on with, by its folder or by its name within the runs folder; with the file it
    /// came from, if that was named too, to find the runs folder by.
    Resume {
        /// Folder or name.
        run: PathBuf,
        /// The pipeline file.
        file: Option<PathBuf>,
    },
}

/// A pipeline whose settings are read and valid.
#[derive(Clone, Debug)]
pub struct Prepared {
    name: String,
    config: PipelineConfig,
    resumed: Option<PathBuf>,
}

impl Prepared {
    /// Reads the file, or that of the run to go on with, and lays `environment` and `settings`
    /// over it.
    ///
    /// # Errors
    ///
    /// What cannot be read, is unknown or out of range; a run that is not there.
    pub fn new(
        source: &Source,
        environment: impl IntoIterator<Item = (String, String)>,
        settings: &[String],
    ) -> Result<Self, PipelineError> {
        let (file, resumed) = match source {
            Source::File(file) => (file.clone(), None),
            Source::Resume { run, file } => {
                let folder = find_run(run, file.as_deref())?;
                (folder.join(folder::PIPELINE), Some(folder))
            }
        };
        let config = layers::load(&file, environment, settings)?;
        check(&config)?;
        let stem = |path: &Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let name = match &resumed {
            // A run is named after its pipeline and its key.
            Some(run) => stem(run).and_then(|name| Some(name.rsplit_once('-')?.0.to_owned())),
            None => stem(&file),
        };
        Ok(Self { name: name.unwrap_or_else(|| "run".to_owned()), config, resumed })
    }

    /// The settings.
    pub fn config(&self) -> &PipelineConfig {
        &self.config
    }

    /// Name of the pipeline.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The stages, their keys, and which of their results are there.
    ///
    /// # Errors
    ///
    /// When the files to read are not there.
    pub fn plan(&self, device: &ChosenDevice) -> Result<Plan, PipelineError> {
        let keys = self.keys(device)?;
        Ok(Plan::new(&self.config, &keys, &self.run_path(&keys)))
    }

    /// Runs every stage whose result is not there.
    ///
    /// `stop` ends training after the step in hand, with everything saved.
    ///
    /// # Errors
    ///
    /// Whatever ends a stage. What was complete before stays and is used by the next run.
    pub fn run(
        &self,
        device: &ChosenDevice,
        stop: &AtomicBool,
        listener: &dyn Listener,
    ) -> Result<Finished, PipelineError> {
        let keys = self.keys(device)?;
        let path = self.run_path(&keys);
        if let Some(resumed) = &self.resumed
            && !same_folder(resumed, &path)
        {
            return Err(PipelineError::Setting(format!(
                "{} cannot go on: its data, settings or device have changed since, and they lead to the run {}\n  \
                 take back the change (FIREBOX_KERNELS chooses among a processor's kernels), or start that run without --resume",
                resumed.display(),
                path.display()
            )));
        }
        stages::run(self, device, &keys, &path, stop, listener)
    }

    fn keys(&self, device: &ChosenDevice) -> Result<Keys, PipelineError> {
        let series = firebox_data::fingerprint(&self.config.data)?;
        Ok(Keys::new(&self.config, series, &device.arithmetic()?))
    }

    fn run_path(&self, keys: &Keys) -> PathBuf {
        let name = format!("{}-{}", self.name, keys.training.short());
        match self.resumed.as_ref().and_then(|run| run.parent()) {
            Some(runs) => runs.join(name),
            None => self.config.run.directory.join(name),
        }
    }

    /// The settings as a pipeline file that means the same from any folder.
    pub(crate) fn resolved(&self, reasons: &[Reason]) -> Result<String, PipelineError> {
        let mut config = self.config.clone();
        let absolute = |path: &Path| std::path::absolute(path).map_err(crate::error::at(path));
        config.run.directory = absolute(&config.run.directory)?;
        config.run.cache = absolute(&config.run.cache)?;
        let here = std::env::current_dir().map_err(crate::error::at(Path::new(".")))?;
        config.data.resolve(&here);
        let text = toml::to_string(&config).map_err(|error| {
            PipelineError::Setting(format!("the settings cannot be written as TOML: {error}"))
        })?;
        let mut out = "# The settings of this run, with every default.\n# Go on with it: firebox run --resume <this folder>\n".to_owned();
        for Reason { key, value, reason } in reasons {
            out.push_str(&format!("# {key} = {value}: {reason}\n"));
        }
        Ok(out + "\n" + &text)
    }
}

/// What no single component can check by itself.
fn check(config: &PipelineConfig) -> Result<(), PipelineError> {
    let setting = |message: String| Err(PipelineError::Setting(message));
    if !matches!(config.run.precision, Precision::F32 | Precision::Bf16) {
        return setting(format!(
            "`run.precision` is {}, and this version trains in f32, or in bf16 with f32 weights, states and sums\n  set run.precision = \"f32\" or \"bf16\"",
            config.run.precision
        ));
    }
    if config.loader.batch_size == 0 {
        return setting("`loader.batch_size` is 0; a batch has at least one window".to_owned());
    }
    if let Labels::Majority { share } = config.labels
        && !(0.0..=1.0).contains(&share)
    {
        return setting(format!("`labels.majority.share` is {share}; a share lies from 0 to 1"));
    }
    if let Labels::Forward { horizon, threshold } = config.labels
        && (horizon == 0 || !(threshold.is_finite() && threshold >= 0.0))
    {
        return setting(format!(
            "`labels.forward` has horizon {horizon} and threshold {threshold}; it looks at least 1 step ahead, for a finite threshold that is not negative"
        ));
    }
    let ModelConfig::BilstmMae(model) = &config.model;
    model.validate()?;
    firebox_cache::check_parameters(&config.augment)?;
    config.train.validate()?;
    config.evaluate.validate()?;
    Ok(())
}

/// The folder of a run that was named by its path or by its name.
fn find_run(run: &Path, file: Option<&Path>) -> Result<PathBuf, PipelineError> {
    let runs = PipelineConfig::default().run.directory;
    let beside = file.and_then(Path::parent).map(|folder| folder.join(&runs).join(run));
    let places: Vec<PathBuf> =
        [Some(run.to_path_buf()), Some(runs.join(run)), beside].into_iter().flatten().collect();
    if let Some(found) = places.iter().find(|place| place.join(folder::PIPELINE).is_file()) {
        return Ok(found.clone());
    }
    let known: Vec<String> = std::fs::read_dir(&runs)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .collect();
    let known = if known.is_empty() {
        String::new()
    } else {
        format!("\n  in {}: {}", runs.display(), known.join(", "))
    };
    Err(PipelineError::NoRun(run.to_path_buf(), known))
}

fn same_folder(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    }
}
