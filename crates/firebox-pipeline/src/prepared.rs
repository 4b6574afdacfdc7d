//! What was written, resolved once into what runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use firebox_core::{
    AugmentMode, Labels, Listener, MatmulPrecision, Normalisation, Precision, SplitRule,
};
use firebox_eval::Reason;
use firebox_loader::{LoadError, LoaderConfig, Resident};
use firebox_monitor::{MonitorConfig, ProfileConfig};
use firebox_remote::{check_url, is_remote};
use firebox_train::LossScale;

use crate::config::FetchConfig;
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::feed::fetch_first;
use crate::folder;
use crate::keys::Keys;
use crate::plan::Plan;
use crate::search::SearchConfig;
use crate::settle::{as_before, check_batches, check_environment, multiplying, settle};
use crate::text::TextConfig;
use crate::{Finished, Kind, PipelineConfig, layers, stages};

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
    profile: Option<ProfileConfig>,
    /// Why settings that were measured have their values.
    settled: Vec<Reason>,
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
                let folder = find_beside(run, file.as_deref())?;
                (folder.join(folder::PIPELINE), Some(folder))
            }
        };
        let environment: Vec<(String, String)> = environment.into_iter().collect();
        let mut config = layers::load(&file, environment.clone(), settings)?;
        check(&config)?;
        if let Source::Resume { run, file: Some(named) } = source {
            let theirs = layers::load(named, environment, settings)?;
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
        Ok(Self { name, config, resumed, profile: None, settled: vec![] })
    }

    /// Profiles these steps of the training, if it takes them.
    #[must_use]
    pub fn profiled(mut self, profile: Option<ProfileConfig>) -> Self {
        self.profile = profile;
        self
    }

    /// The steps to profile.
    pub(crate) fn profile(&self) -> Option<ProfileConfig> {
        self.profile
    }

    /// A pipeline whose settings were checked before.
    pub(crate) fn of(name: &str, config: PipelineConfig) -> Self {
        Self { name: name.to_owned(), config, resumed: None, profile: None, settled: vec![] }
    }

    /// The same with every setting that the device or a measurement on it decides.
    ///
    /// # Errors
    ///
    /// When the device cannot do what was asked for, or a measurement fails.
    pub(crate) fn settled(&self, device: &ChosenDevice) -> Result<Self, PipelineError> {
        let (config, mut settled) = settle(&self.config, device)?;
        let before = self.resumed.as_ref().map(|run| run.join(folder::PIPELINE));
        if let Some(before) = before.and_then(|path| std::fs::read_to_string(path).ok()) {
            settled = as_before(&before, &config, settled);
        }
        Ok(Self { config, settled, ..self.clone() })
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
        let settled = self.settled(device)?;
        let keys = settled.keys(device)?;
        Ok(Plan::new(&settled.config, &keys, &settled.run_path(&keys)))
    }

    /// Runs every stage whose result is not there.
    ///
    /// `stop` ends fetching, ingestion and augmentation soon, with nothing half-made kept but what was fetched, training
    /// after the step in hand, and the evaluation after the batch in hand, with everything saved.
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
        self.check_model(device)?;
        fetch_first(&self.config, stop, listener)?;
        let settled = self.settled(device)?;
        let keys = settled.keys(device)?;
        let path = settled.run_path(&keys);
        if let Some(resumed) = &self.resumed
            && let Some(begun) = folder::begun(resumed)?
            && begun.training != keys.training
        {
            return Err(PipelineError::Setting(format!(
                "{} cannot go on: its data, settings or device have changed since it was begun (its key was {}, and is {} now)\n  \
                 take back the change (FIREBOX_KERNELS chooses among a processor's kernels), or run the pipeline without --resume, which begins another run",
                resumed.display(),
                begun.training.short(),
                keys.training.short()
            )));
        }
        let run = || stages::run(&settled, device, &keys, &path, stop, listener);
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

/// The URLs among the paths of the data.
fn urls(config: &PipelineConfig) -> impl Iterator<Item = &Path> {
    config.data.paths().map(PathBuf::as_path).filter(|path| is_remote(path))
}

/// What no single component can check by itself.
pub(crate) fn check(config: &PipelineConfig) -> Result<(), PipelineError> {
    let setting = |message: String| Err(PipelineError::Setting(message));
    let f16 = config.run.precision == Precision::F16;
    if f16 && config.train.loss_scale == LossScale::Off && !config.train.allow_unscaled_f16 {
        return setting(
            "`run.precision` is f16 and `train.loss_scale` is off: gradients below 6e-8 would vanish\n  \
             leave `train.loss_scale` out, which scales dynamically, or set train.allow_unscaled_f16 = true"
                .to_owned(),
        );
    }
    if let Some(rule) = config.split
        && config.data.test.is_some()
        && !matches!(rule, SplitRule::Given { .. })
    {
        return setting(format!(
            "`data.test` names a test set, but [split.{}] would train on part of it\n  \
             replace it with [split.given] (--set split.given.validation=0.1), or leave the split out: it is `given` then",
            rule.name()
        ));
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
    if let Labels::Return { horizon, threshold } = config.labels
        && (horizon == 0 || !(threshold.is_finite() && threshold >= 0.0))
    {
        return setting(format!(
            "`labels.return` has horizon {horizon} and threshold {threshold}; it looks at least 1 step ahead, for a finite threshold that is not negative (0.006 is 0.6 %)"
        ));
    }
    // A batch of `auto` has its size later.
    let batch_size = config.loader.batch_size.max(1);
    match (LoaderConfig { batch_size, ..config.loader.resolve(0) }).validate() {
        Err(LoadError::TooMany { key, found, most }) => {
            return setting(format!("`loader.{key}` is {found}; it must be at most {most}"));
        }
        Err(error) => return setting(format!("[loader]: {error}")),
        Ok(()) => {}
    }
    check_batches(config)?;
    if let Some(timeframes) = &config.data.timeframes {
        timeframes.validate()?;
    }
    for (key, steps) in [("length", config.window.length), ("stride", config.window.stride)] {
        if steps == 0 {
            return setting(format!("`window.{key}` is 0; it must be at least 1"));
        }
    }
    let relative = match config.window.normalise {
        Normalisation::WindowStandard => Some("window-standard"),
        Normalisation::WindowRelative => Some("window-relative"),
        Normalisation::None | Normalisation::Standard | Normalisation::Robust => None,
    };
    if let (1, Some(name)) = (config.window.length, relative) {
        return setting(format!(
            "`window.length` is 1 and `window.normalise` is {name}: a single step has no scale of its own\n  \
             make windows longer, or set window.normalise = \"standard\""
        ));
    }
    if matches!(config.labels, Labels::Forward { .. }) && config.window.length < 3 {
        return setting(format!(
            "`window.length` is {}, and `labels.forward` measures in units of the window's volatility, which takes 3 steps\n  \
             make windows longer, or use [labels.return]",
            config.window.length
        ));
    }
    let fetch = &config.run.fetch;
    if !(1..=3600).contains(&fetch.timeout) {
        return setting(format!(
            "`run.fetch.timeout` is {}; it is a number of seconds from 1 to 3600",
            fetch.timeout
        ));
    }
    if fetch.retries > 100 {
        return setting(format!(
            "`run.fetch.retries` is {}; it must be at most 100",
            fetch.retries
        ));
    }
    for (key, path) in [("cache", &config.run.cache), ("directory", &config.run.directory)] {
        let name = path.display();
        if path.as_os_str().is_empty() {
            return setting(format!(
                "`run.{key}` is empty\n  name a folder, which is made if it is not there"
            ));
        }
        if path.exists() && !path.is_dir() {
            return setting(format!(
                "`run.{key}` is {name}, which is no folder\n  name a folder, which is made if it is not there"
            ));
        }
    }
    for (table, there, kind) in config.own_tables() {
        if there && kind != config.pipeline {
            return setting(format!(
                "[{table}] is there, and the pipeline is `{}`, which does not read it\n  set pipeline = \"{table}\", or remove the table",
                config.pipeline.name()
            ));
        }
    }
    config.pipeline.chain().check(config)?;
    check_loader(config)?;
    urls(config).filter_map(Path::to_str).try_for_each(check_url)?;
    firebox_cache::check_parameters(&config.augment)?;
    config.train.validate()?;
    config.evaluate.validate()?;
    config.monitor.validate()?;
    Ok(())
}

/// Refuses batches that these windows cannot come in, wherever that is known without them.
fn check_loader(config: &PipelineConfig) -> Result<(), PipelineError> {
    let (tokens, length) = (config.loader.tokens, config.window.length);
    // Texts are no windows, and how long whole series are is known with them.
    let known = config.pipeline != Kind::Text && !config.window.whole;
    if known && tokens != 0 && tokens < length {
        return Err(PipelineError::Setting(format!(
            "`loader.tokens` is {tokens}, and a window has {length} steps (`window.length`), which a batch must hold\n  \
             set loader.tokens to {length} or more, or leave it out"
        )));
    }
    match drawn_anew(config) {
        Some((setting, way_out)) if config.loader.resident == Resident::Memory => {
            Err(PipelineError::Setting(format!(
                "`loader.resident` is \"memory\", and {setting}: windows that are drawn anew in each epoch do not lie in memory\n  \
                 set loader.resident = \"auto\", or {way_out}"
            )))
        }
        _ => Ok(()),
    }
}

/// The setting by which training windows are drawn anew in each epoch, and the one by which they are not.
fn drawn_anew(config: &PipelineConfig) -> Option<(String, &'static str)> {
    let finetune = config.finetune.clone().unwrap_or_default();
    let pretrains = match config.pipeline {
        Kind::Pretrain => true,
        Kind::Finetune => finetune.encoder.is_none(),
        Kind::Text | Kind::Multitimeframe | Kind::Forecast | Kind::Pseudolabel => false,
    };
    if pretrains && config.augment.mode == AugmentMode::Online && config.augment.versions > 0 {
        return Some(("`augment.mode` is \"online\"".to_owned(), "augment.mode = \"cached\""));
    }
    (config.pipeline == Kind::Finetune && finetune.versions > 0)
        .then(|| (format!("`finetune.versions` is {}", finetune.versions), "finetune.versions = 0"))
}

/// Runs that a message names.
const NAMED: usize = 5;

/// The names of all runs in a folder, the newest first.
fn newest_runs(runs: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(runs).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter(|entry| entry.path().join(folder::PIPELINE).is_file())
        .map(|entry| {
            let changed = entry.metadata().and_then(|meta| meta.modified()).ok();
            (std::cmp::Reverse(changed), entry.file_name().to_string_lossy().into_owned())
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, name)| name).collect()
}

/// The folder of a run that was named by its path or by its name.
///
/// # Errors
///
/// When there is no such run; the message names those that there are.
pub fn find_run(run: &Path) -> Result<PathBuf, PipelineError> {
    find_beside(run, None)
}

/// The same, where the runs folder may also lie beside a pipeline file.
fn find_beside(run: &Path, file: Option<&Path>) -> Result<PathBuf, PipelineError> {
    let runs = PipelineConfig::default().run.directory;
    let beside = file.and_then(Path::parent).map(|folder| folder.join(&runs).join(run));
    let places: Vec<PathBuf> =
        [Some(run.to_path_buf()), Some(runs.join(run)), beside].into_iter().flatten().collect();
    if let Some(found) = places.iter().find(|place| place.join(folder::PIPELINE).is_file()) {
        return Ok(found.clone());
    }
    let known = newest_runs(&runs);
    let known = match known.len() {
        0 => String::new(),
        all => {
            let more =
                if all > NAMED { format!(" and {} older", all - NAMED) } else { String::new() };
            let names = known.into_iter().take(NAMED).collect::<Vec<_>>().join(", ");
            format!("\n  in {}: {names}{more}", runs.display())
        }
    };
    Err(PipelineError::NoRun(run.to_path_buf(), known))
}

/// The settings with paths that mean the same from any folder.
fn absolute(mut config: PipelineConfig) -> Result<PipelineConfig, PipelineError> {
    let absolute = |path: &Path| std::path::absolute(path).map_err(crate::error::at(path));
    config.run.directory = absolute(&config.run.directory)?;
    config.run.cache = absolute(&config.run.cache)?;
    if let Some(search) = &mut config.search {
        absolute_choices(search)?;
        if let Some(storage) = search.storage.as_mut().filter(|storage| !storage.contains("://")) {
            *storage = absolute(Path::new(storage))?.display().to_string();
        }
    }
    let here = std::env::current_dir().map_err(crate::error::at(Path::new(".")))?;
    config.data.resolve(&here);
    for path in config.monitor.paths() {
        *path = absolute(path)?;
    }
    if let Some(mlflow) = config.monitor.mlflow.as_mut().filter(|mlflow| !mlflow.to.contains("://"))
    {
        mlflow.to = absolute(Path::new(mlflow.to.trim()))?.display().to_string();
    }
    for path in paths(&mut config).filter(|path| !is_remote(path)) {
        *path = absolute(path)?;
    }
    if let Some(encoder) = config.finetune.as_mut().and_then(|finetune| finetune.encoder.as_mut()) {
        *encoder = absolute(encoder)?;
    }
    Ok(config)
}

/// The same for the paths that a search chooses among: its trials have them from the journal.
pub(crate) fn absolute_choices(search: &mut SearchConfig) -> Result<(), PipelineError> {
    for path in search.paths().filter(|path| !path.trim().is_empty() && !path.contains("://")) {
        let whole = std::path::absolute(&*path).map_err(crate::error::at(Path::new(&*path)))?;
        *path = whole.display().to_string();
    }
    Ok(())
}

/// Every path of the data.
fn paths(config: &mut PipelineConfig) -> impl Iterator<Item = &mut PathBuf> {
    let test = config.data.test.iter_mut().flat_map(|test| &mut test.0);
    let texts = config.text.iter_mut().flat_map(TextConfig::paths);
    config.data.path.0.iter_mut().chain(test).chain(texts)
}

/// Refuses to go on with a run beside a pipeline file that says something else.
fn same_settings(
    run: &Path,
    ours: &PipelineConfig,
    file: &Path,
    theirs: &PipelineConfig,
) -> Result<(), PipelineError> {
    // What was measured then is not measured again.
    let mut theirs = theirs.clone();
    if theirs.run.auto {
        (theirs.run.precision, theirs.run.auto) = (ours.run.precision, ours.run.auto);
    }
    let settled = match theirs.run.matmul {
        Some(MatmulPrecision::Highest) => ours.run.precision == Precision::F32,
        Some(MatmulPrecision::High) => ours.run.precision == Precision::Tf32,
        Some(MatmulPrecision::Medium) => ours.run.precision == Precision::Bf16,
        None => false,
    };
    if settled && ours.run.matmul.is_none() {
        (theirs.run.precision, theirs.run.matmul) = (ours.run.precision, None);
    }
    if theirs.loader.batch_size == 0 {
        theirs.loader.batch_size = ours.loader.batch_size;
    }
    match first_difference(ours, &theirs)? {
        Some((key, ours, theirs)) => Err(PipelineError::Setting(format!(
            "{} differs from the pipeline of the run {}: `{key}` is {theirs} in the one and {ours} in the other\n  \
             leave {0} out to go on with the run as it was begun, or leave out --resume to begin another run",
            file.display(),
            run.display(),
        ))),
        None => Ok(()),
    }
}

/// The first key whose values differ, with both values. Where results lie does not matter, nor how a
/// file is named.
pub(crate) fn first_difference(
    ours: &PipelineConfig,
    theirs: &PipelineConfig,
) -> Result<Option<(String, String, String)>, PipelineError> {
    let value = |config: &PipelineConfig| -> Result<serde_json::Value, PipelineError> {
        let mut config = absolute(config.clone())?;
        // Those of the run stay where they are.
        config.run.directory.clear();
        config.run.cache.clear();
        // Nor does it matter how patiently data are fetched.
        config.run.fetch = FetchConfig::default();
        // Who watches does not matter either.
        config.monitor = MonitorConfig::default();
        // One file may have been named in two ways.
        for path in paths(&mut config) {
            if let Ok(known) = path.canonicalize() {
                *path = known;
            }
        }
        let value = serde_json::to_value(config);
        value.map_err(|error| {
            PipelineError::Setting(format!("the settings cannot be compared: {error}"))
        })
    };
    Ok(difference("", &value(ours)?, &value(theirs)?))
}

/// The first key whose values differ, with both values.
fn difference(
    key: &str,
    a: &serde_json::Value,
    b: &serde_json::Value,
) -> Option<(String, String, String)> {
    use serde_json::Value;
    let empty = serde_json::Map::new();
    if !a.is_object() && !b.is_object() {
        let text =
            |value: &Value| if value.is_null() { "not set".to_owned() } else { value.to_string() };
        return (a != b).then(|| (key.to_owned(), text(a), text(b)));
    }
    let (mine, theirs) = (a.as_object().unwrap_or(&empty), b.as_object().unwrap_or(&empty));
    let mut keys: Vec<&String> = mine.keys().chain(theirs.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter().find_map(|name| {
        let full = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
        let of = |map: &serde_json::Map<String, Value>| map.get(name).cloned().unwrap_or_default();
        difference(&full, &of(mine), &of(theirs))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_without_a_loss_scale_names_the_way_out() {
        let mut config = PipelineConfig::default();
        config.run.precision = Precision::F16;
        check(&config).unwrap();
        config.train.loss_scale = LossScale::Off;
        let text = check(&config).unwrap_err().to_string();
        assert!(text.contains("gradients below 6e-8 would vanish"), "{text}");
        config.train.allow_unscaled_f16 = true;
        check(&config).unwrap();
        config.train.loss_scale = LossScale::Static(0.0);
        let text = check(&config).unwrap_err().to_string();
        assert!(text.contains("`train.loss_scale.static` is 0; it must be above 0"), "{text}");
    }

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
    fn the_urls_that_are_fetched_are_named_and_files_are_not() {
        let mut config = PipelineConfig::default();
        let [url, other] = ["s3://bucket/bars.parquet", "https://host/test.csv"].map(PathBuf::from);
        config.data.path = firebox_data::Paths(vec![url.clone(), PathBuf::from("bars.csv")]);
        config.data.test = Some(firebox_data::Paths(vec![other.clone()]));
        let prepared = Prepared::of("test", config);
        assert_eq!(prepared.urls().collect::<Vec<_>>(), [url.as_path(), other.as_path()]);
    }

    #[test]
    fn addresses_stay_what_they_are_beside_paths() {
        let mut config = PipelineConfig::default();
        let url = PathBuf::from("s3://bucket/bars.parquet");
        config.data.path = firebox_data::Paths(vec![url.clone(), PathBuf::from("bars.csv")]);
        let found = absolute(config).unwrap().data.path.0;
        assert_eq!(found[0], url);
        assert!(found[1].is_absolute() && found[1].ends_with("bars.csv"), "{found:?}");
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

    #[test]
    fn the_first_setting_that_differs_is_named() {
        let base = PipelineConfig::default();
        let mut other = base.clone();
        other.train.epochs = 7;
        let error = same_settings(Path::new("r"), &base, Path::new("p.toml"), &other).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("p.toml differs from the pipeline of the run r: `train.epochs` is 7"),
            "{text}"
        );
        same_settings(Path::new("r"), &base, Path::new("p.toml"), &base).unwrap();
        let mut watched = base.clone();
        watched.monitor.period = 5.0;
        same_settings(Path::new("r"), &base, Path::new("p.toml"), &watched).unwrap();
        let mut patient = base.clone();
        patient.run.fetch.timeout = 120;
        same_settings(Path::new("r"), &base, Path::new("p.toml"), &patient).unwrap();
    }
}
