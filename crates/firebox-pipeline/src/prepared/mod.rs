//! What was written, resolved once into what runs.

mod difference;
mod find;
mod paths;
mod validate;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use firebox_core::{Event, Key, Listener, MatmulPrecision, Requests, Silent};
use firebox_eval::Reason;
use firebox_monitor::ProfileConfig;

use crate::cached::cached_if;
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::feed::fetch_first;
use crate::folder;
use crate::keys::Keys;
use crate::plan::Plan;
use crate::score::WantedScores;
use crate::settle::{as_before, check_environment, multiplying, reasons_in, settle};
use crate::shared::Shared;
use crate::stages::{Asker, Run};
use crate::{Finished, PipelineConfig, idle, layers, stages};
use difference::{changed_since, same_settings};
use find::find_beside;
use paths::{absolute, urls};

pub(crate) use difference::first_difference;
pub use find::find_run;
pub(crate) use find::find_run_in;
pub(crate) use paths::{absolute_choices, check_folders};
pub(crate) use validate::{check, scales_up};

/// Bucket of the cache with counts of training windows.
const COUNTS: &str = "counts-v1";

/// Where a pipeline comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A pipeline file.
    File(PathBuf),
    /// A run to go on with, by its folder or by its name within the runs folder, which is `run.directory` of the settings;
    /// with the file it came from, if that was named too, to find the runs folder by.
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
    profile: Option<ProfileConfig>,
    /// Why settings that were measured have their values.
    settled: Vec<Reason>,
    /// What is said of keys that do nothing.
    idle: Vec<String>,
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
        Self::read(source, &environment.into_iter().collect::<Vec<_>>(), settings)
    }

    fn read(
        source: &Source,
        environment: &[(String, String)],
        settings: &[String],
    ) -> Result<Self, PipelineError> {
        let read =
            |file: &Path| layers::parse(file, &layers::text_of(file)?, environment, settings);
        let (file, resumed) = match source {
            Source::File(file) => {
                check_folders(file)?;
                (file.clone(), None)
            }
            Source::Resume { run, file } => {
                // A file that cannot be read is told of below.
                let named = file.as_deref().and_then(|file| read(file).ok());
                let runs = match named {
                    Some(config) => config.run.directory,
                    None => layers::folder_of_runs(environment, settings)?,
                };
                let folder = find_beside(run, &runs, file.as_deref())?;
                (folder.join(folder::PIPELINE), Some(folder))
            }
        };
        let mut config = read(&file)?;
        check(&config)?;
        // The file of a run has every key.
        let idle = match source {
            Source::File(file) => idle::told(file, environment, settings, &config)?,
            Source::Resume { .. } => vec![],
        };
        if let Source::Resume { run, file: Some(named) } = source {
            let theirs = read(named)?;
            same_settings(run, &config, named, &theirs)?;
            // Whether it was so when the run was begun is known by the device and its key.
            config.run.matmul = config
                .run
                .matmul
                .or(theirs.run.matmul.filter(|matmul| *matmul == MatmulPrecision::Highest));
        }
        let stem = |path: &Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let name = match &resumed {
            // A run is named after its pipeline and its key, unless someone gave it another name.
            Some(run) => folder::begun(run)?.map(|begun| begun.name).or_else(|| {
                let name = stem(run)?;
                Some(name.rsplit_once('-').map_or(name.as_str(), |(name, _)| name).to_owned())
            }),
            None => stem(&file),
        };
        let name = name.unwrap_or_else(|| "run".to_owned());
        Ok(Self { name, config, resumed, profile: None, settled: vec![], idle })
    }

    /// Profiles these steps of the training, if it takes them.
    #[must_use]
    pub fn profiled(mut self, profile: Option<ProfileConfig>) -> Self {
        self.profile = profile;
        self
    }

    /// What is said of keys that do nothing beside the other settings.
    pub(crate) fn idle(&self) -> &[String] {
        &self.idle
    }

    /// The steps to profile.
    pub(crate) fn profile(&self) -> Option<ProfileConfig> {
        self.profile
    }

    /// A pipeline whose settings were checked before.
    pub(crate) fn of(name: &str, config: PipelineConfig) -> Self {
        Self {
            name: name.to_owned(),
            config,
            resumed: None,
            profile: None,
            settled: vec![],
            idle: vec![],
        }
    }

    /// The same with every setting that the device or a measurement on it decides.
    ///
    /// # Errors
    ///
    /// When the device cannot do what was asked for, or a measurement fails. [`PipelineError::Interrupted`] if `stop` ended
    /// the reading of data for one.
    pub(crate) fn settled(
        &self,
        device: &ChosenDevice,
        stop: &Arc<AtomicBool>,
        shared: &Shared,
    ) -> Result<Self, PipelineError> {
        self.settled_until(device, stop, shared, &Silent)
    }

    /// The same. The listener is told of what was measured, and why it was chosen.
    pub(crate) fn settled_until(
        &self,
        device: &ChosenDevice,
        stop: &Arc<AtomicBool>,
        shared: &Shared,
        listener: &dyn Listener,
    ) -> Result<Self, PipelineError> {
        let count = || self.training_samples(device, stop, shared, listener);
        let told = |Reason { key, value, reason }: &Reason, reused: bool, took: Duration| {
            listener.on(&Event::StageFinished {
                stage: "settle".to_owned(),
                key: None,
                reused,
                seconds: took.as_secs_f64(),
                detail: format!("{key} = {value}: {reason}"),
            });
        };
        let (config, mut settled) = settle(&self.config, device, count, told)?;
        let before = self.resumed.as_ref().map(|run| run.join(folder::PIPELINE));
        let before = before.and_then(|path| std::fs::read_to_string(path).ok());
        let before = before.map_or_else(|| self.settled.clone(), |text| reasons_in(&text));
        settled = as_before(before, &config, settled);
        Ok(Self { config, settled, ..self.clone() })
    }

    /// How many samples an epoch of the training set has; none where `loader.batch_size` sizes no batch of it. The data are
    /// read for it if their windows were not counted before.
    fn training_samples(
        &self,
        device: &ChosenDevice,
        stop: &Arc<AtomicBool>,
        shared: &Shared,
        listener: &dyn Listener,
    ) -> Result<Option<usize>, PipelineError> {
        let (config, keys) = (&self.config, self.keys(device)?);
        let chain = config.pipeline.chain();
        let key = Key::builder("count", 1).upstream("windows", keys.windows).finish();
        // What is measured next has the channels of the series, so these have to be there, too. Texts have none.
        let there = || {
            let checks = || firebox_data::stored_checks(&config.run.cache, keys.series);
            config.text.is_some() || checks().is_some()
        };
        let count = || self.training_windows(device, &keys, stop, shared, listener);
        if chain.own_batches(config).is_some() {
            if !there() {
                count()?;
            }
            return Ok(None);
        }
        let there = |_: &Option<usize>| there();
        let (windows, _) = cached_if(&config.run.cache.join(COUNTS), &key, there, count)?;
        Ok(windows.map(|windows| windows * chain.slots(config)))
    }

    /// How many windows the training set has, from the data.
    fn training_windows(
        &self,
        device: &ChosenDevice,
        keys: &Keys,
        stop: &Arc<AtomicBool>,
        shared: &Shared,
        listener: &dyn Listener,
    ) -> Result<Option<usize>, PipelineError> {
        // The stages of the run itself tell of all else.
        let progress = |event: &Event| {
            if matches!(event, Event::Progress { .. }) {
                listener.on(event);
            }
        };
        let run = Run {
            config: &self.config,
            device,
            keys,
            listener: &progress,
            stop,
            requests: &Requests::new(),
            shared,
            wanted: &WantedScores::NONE,
        };
        match self.config.pipeline.chain().training_windows(&run) {
            // There is no run yet that could go on.
            Err(_) if stop.load(Ordering::SeqCst) => Err(PipelineError::Interrupted),
            counted => counted,
        }
    }

    /// The same with reasons for values that are written now and were measured before.
    pub(crate) fn explained(self, settled: Vec<Reason>) -> Self {
        Self { settled, ..self }
    }

    /// Why settings that a device or a measurement decided have their values.
    pub(crate) fn settled_reasons(&self) -> &[Reason] {
        &self.settled
    }

    /// The keys of its results, and the folder of its run. It is [settled](Self::settled).
    pub(crate) fn place(&self, device: &ChosenDevice) -> Result<(Keys, PathBuf), PipelineError> {
        let keys = self.keys(device)?;
        let path = self.run_path(&keys);
        Ok((keys, path))
    }

    /// The settings.
    pub fn config(&self) -> &PipelineConfig {
        &self.config
    }

    /// Name of the pipeline.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The URLs that it reads, whose copies are fetched first.
    pub fn urls(&self) -> impl Iterator<Item = &Path> {
        urls(&self.config)
    }

    /// The stages, their keys, and which of their results are there. The keys depend on what files hold, so those on
    /// servers are fetched, with word of how far that is.
    ///
    /// # Errors
    ///
    /// When the files to read are not there, or `train.groups` or `train.layer_decay` names what the
    /// model does not have.
    pub fn plan(
        &self,
        device: &ChosenDevice,
        listener: &dyn Listener,
    ) -> Result<Plan, PipelineError> {
        self.check_model(device)?;
        fetch_first(&self.config, &AtomicBool::new(false), listener)?;
        let settled = self.settled_until(device, &Arc::default(), &Shared::default(), listener)?;
        let keys = settled.keys(device)?;
        Plan::new(&settled.config, &keys, &settled.run_path(&keys))
    }

    /// Runs every stage whose result is not there.
    ///
    /// `stop` ends fetching, ingestion and augmentation soon, with nothing half-made kept but what was fetched, training
    /// after the step in hand, and the evaluation after the batch in hand, or the iteration of a fit, with everything saved.
    ///
    /// # Errors
    ///
    /// Whatever ends a stage. What was complete before stays and is used by the next run.
    /// [`PipelineError::Interrupted`] if `stop` came before there was a run.
    pub fn run(
        &self,
        device: &ChosenDevice,
        stop: &Arc<AtomicBool>,
        listener: &dyn Listener,
    ) -> Result<Finished, PipelineError> {
        self.run_for(Asker::User, device, stop, listener)
    }

    /// The same for whoever asks.
    pub(crate) fn run_for(
        &self,
        by: Asker,
        device: &ChosenDevice,
        stop: &Arc<AtomicBool>,
        listener: &dyn Listener,
    ) -> Result<Finished, PipelineError> {
        self.check_model(device)?;
        fetch_first(&self.config, stop, listener)?;
        let settled = self.settled_until(device, stop, &Shared::default(), listener)?;
        let keys = settled.keys(device)?;
        let path = settled.run_path(&keys);
        if let Some(resumed) = &self.resumed
            && let Some(begun) = folder::begun(resumed)?
            && begun.training != keys.training
        {
            let training = |config: &PipelineConfig| -> Result<Key, PipelineError> {
                Ok(config.pipeline.chain().keys(config, device)?.training)
            };
            return Err(PipelineError::Setting(format!(
                "{} cannot go on: {} (its key was {}, and is {} now)\n  \
                 take back the change (FIREBOX_KERNELS chooses among a processor's kernels), or run the pipeline without --resume, which begins another run",
                resumed.display(),
                changed_since(resumed, &settled.config, training),
                begun.training.short(),
                keys.training.short()
            )));
        }
        let run = || stages::run(&settled, device, &keys, &path, (by, stop), listener);
        multiplying(settled.config.run.matmul, run)
    }

    /// Checks the environment, the size of the model and names of its parameters before any data is read, which takes
    /// longer.
    fn check_model(&self, device: &ChosenDevice) -> Result<(), PipelineError> {
        check_environment()?;
        stages::check_size(&self.config, device)?;
        self.config.pipeline.chain().check_model(&self.config, device)
    }

    fn keys(&self, device: &ChosenDevice) -> Result<Keys, PipelineError> {
        self.config.pipeline.chain().keys(&self.config, device)
    }

    fn run_path(&self, keys: &Keys) -> PathBuf {
        let name = format!("{}-{}", self.name, keys.training.short());
        self.resumed.clone().unwrap_or_else(|| self.config.run.directory.join(name))
    }

    /// The settings with paths that mean the same from any folder.
    pub(crate) fn absolute(&self) -> Result<PipelineConfig, PipelineError> {
        absolute(self.config.clone())
    }

    /// The settings as a pipeline file that means the same from any folder.
    pub(crate) fn toml(&self) -> Result<String, PipelineError> {
        let config = self.absolute()?;
        toml::to_string(&config).map_err(|error| {
            PipelineError::Setting(format!("the settings cannot be written as TOML: {error}"))
        })
    }

    /// The same, as it stands beside a run.
    pub(crate) fn resolved(&self, reasons: &[Reason]) -> Result<String, PipelineError> {
        let mut out = "# The settings of this run, with every default.\n# Go on with it: firebox run --resume <this folder>\n".to_owned();
        for Reason { key, value, reason } in reasons {
            out.push_str(&format!("# {key} = {value}: {reason}\n"));
        }
        Ok(out + "\n" + &self.toml()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_that_the_model_lacks_are_refused_before_any_data_is_read() {
        let device = ChosenDevice::named("test");
        let mut config = PipelineConfig::default();
        config.data.path = firebox_data::Paths(vec![PathBuf::from("no/such/file.csv")]);
        let plan = |config: &PipelineConfig| {
            let prepared = Prepared::of("test", config.clone());
            prepared.plan(&device, &firebox_core::Silent).unwrap_err().to_string()
        };
        assert!(!plan(&config).contains("train."), "{}", plan(&config));
        let group = |name: &str| firebox_train::ParameterGroup {
            parameters: vec![name.to_owned()],
            ..firebox_train::ParameterGroup::default()
        };
        config.train.groups = vec![group("decoder.*")];
        assert!(!plan(&config).contains("train."), "{}", plan(&config));
        config.train.groups = vec![group("deocder.*")];
        assert!(plan(&config).contains("`train.groups` names `deocder.*`"), "{}", plan(&config));
        config.train.groups.clear();
        let layers = vec!["gru.*".to_owned()];
        config.train.layer_decay = Some(firebox_train::LayerDecay { factor: 0.5, layers });
        let said = plan(&config);
        assert!(said.contains("`train.layer_decay.layers` names `gru.*`"), "{said}");
    }

    #[test]
    fn windows_are_counted_once_and_their_versions_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("bars.csv");
        let bar = |step: u32| {
            let price = 100.0 + f64::from(step).sin();
            format!("{price},{},{},{}\n", price + 1.0, price - 1.0, price + 0.5)
        };
        let bars: String = (0..300).map(bar).collect();
        std::fs::write(&data, format!("open,high,low,close\n{bars}")).unwrap();
        let mut config = PipelineConfig::default();
        config.data.path = firebox_data::Paths(vec![data]);
        config.run.cache = folder.path().join("cache");
        (config.window.length, config.window.stride) = (10, 1);
        let count = |config: &PipelineConfig, stopped: bool| {
            let (device, stop) = (ChosenDevice::named("cpu"), Arc::new(AtomicBool::new(stopped)));
            let prepared = Prepared::of("test", config.clone());
            prepared.training_samples(&device, &stop, &Shared::default(), &Silent)
        };
        // Nothing is read once it is to stop.
        assert!(matches!(count(&config, true), Err(PipelineError::Interrupted)));
        let first = count(&config, false).unwrap().unwrap();
        assert!(first > 0 && first.is_multiple_of(5), "{first}");
        assert_eq!(count(&config, true).unwrap(), Some(first));
        config.augment.versions = 1;
        assert_eq!(count(&config, true).unwrap(), Some(first / 5 * 2));
        // Where each model has batches of its own, nothing bounds one, and none is counted in another's place.
        let several = PipelineConfig { pipeline: crate::Kind::Multitimeframe, ..config.clone() };
        assert_eq!(count(&several, true).unwrap(), None);
        assert_eq!(count(&config, true).unwrap(), Some(first / 5 * 2));
        // The channels are not known any more.
        std::fs::remove_dir_all(config.run.cache.join(firebox_cache::SERIES)).unwrap();
        assert!(matches!(count(&config, true), Err(PipelineError::Interrupted)));
        assert!(matches!(count(&several, true), Err(PipelineError::Interrupted)));
        assert_eq!(count(&several, false).unwrap(), None);
        let series = crate::feed::series_key(&config).unwrap();
        assert!(firebox_data::stored_checks(&config.run.cache, series).is_some());
    }

    #[test]
    fn the_urls_that_are_fetched_are_named_and_files_are_not() {
        let mut config = PipelineConfig::default();
        let [url, other] = ["s3://bucket/bars.parquet", "https://host/test.csv"].map(PathBuf::from);
        config.data.path = firebox_data::Paths(vec![url.clone(), PathBuf::from("bars.csv")]);
        config.data.test = Some(firebox_data::Paths(vec![other.clone()]));
        let prepared = Prepared::of("test", config);
        assert_eq!(prepared.urls().collect::<Vec<_>>(), [url.as_path(), other.as_path()]);
    }

    #[test]
    fn a_run_goes_on_beside_a_file_that_asks_for_exact_products() {
        use MatmulPrecision::{High, Highest, Medium};
        let folder = tempfile::tempdir().unwrap();
        let (run, file) = (folder.path().join("small-1"), folder.path().join("small.toml"));
        std::fs::create_dir(&run).unwrap();
        let resumed = |begun: Option<MatmulPrecision>, asked: Option<MatmulPrecision>| {
            for (path, matmul) in [(&run.join(folder::PIPELINE), begun), (&file, asked)] {
                let mut config = PipelineConfig::default();
                config.data.path = firebox_data::Paths(vec![folder.path().join("bars.csv")]);
                config.run.directory = folder.path().join("runs");
                config.run.matmul = matmul;
                std::fs::write(path, toml::to_string(&config).unwrap()).unwrap();
            }
            let source = Source::Resume { run: run.clone(), file: Some(file.clone()) };
            let prepared = Prepared::new(&source, [], &[]);
            prepared.map(|prepared| prepared.config.run.matmul).map_err(|error| error.to_string())
        };
        // Runs of earlier versions, settled on a processor, do not say that they were begun with it.
        assert_eq!(resumed(None, Some(Highest)), Ok(Some(Highest)));
        assert_eq!(resumed(Some(Highest), Some(Highest)), Ok(Some(Highest)));
        assert_eq!(resumed(None, None), Ok(None));
        // What makes other products than the f32 that the run was begun in.
        for asked in [High, Medium] {
            let said = resumed(None, Some(asked)).unwrap_err();
            assert!(said.contains("`run.matmul` is"), "{said}");
        }
        let said = resumed(Some(Highest), None).unwrap_err();
        assert!(said.contains("`run.matmul` is"), "{said}");
    }
}
