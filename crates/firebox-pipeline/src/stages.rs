//! The stages of a pipeline, one after the other: each takes what the one before made.

mod size;

use std::collections::BTreeSet;
use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use firebox_cache::{Hold, Shards, Store};
use firebox_core::{
    Event, Key, Labels, Listener, Normaliser, Precision, Requests, Split, SplitRule, StepLabels,
    count, split,
};
use firebox_data::Ingested;
use firebox_eval::{Raster, Reason, unlearnt_classes};
use firebox_loader::LoaderConfig;
use firebox_monitor::{Picture, TrackedRun, Trackers, obeying, sampled_with};
use firebox_train::{LossScale, TrainConfig};

use crate::chain::{Made, Making, Work};
use crate::compare::changed;
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::feed::{effective, local, upload_ahead};
use crate::folder::{
    Begun, Conclusion, EventLog, PIPELINE, RunFolder, begun, conclusion, is_otherwise_finished,
    steps_whole, written_anew,
};
use crate::kept::is_kept;
use crate::keys::Keys;
use crate::pools::pools;
use crate::profile::Profiling;
use crate::score::WantedScores;
use crate::shared::Shared;
use crate::{Kind, PipelineConfig, Prepared, page};

pub(crate) use size::check_size;

/// Tables of which some settings decide a report and not the training that a run is named after.
const MEASURED: [&str; 2] = ["evaluate", "forecast"];

/// Validation windows of which fewer tell no epoch from another. A choice.
const FEW_WINDOWS: usize = 5;

/// What a pipeline left.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Folder of the run.
    pub run: PathBuf,
    /// The report page.
    pub report: PathBuf,
    /// How it ended.
    pub outcome: Outcome,
    /// How many windows and steps were trained.
    pub trained: String,
    /// First line of the report.
    pub verdict: String,
    /// Results that were made, not reused.
    pub remade: usize,
}

/// How a pipeline ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With a report.
    Finished,
    /// It was asked to stop, and everything up to a step is saved.
    Interrupted {
        /// That step.
        step: u64,
    },
}

/// What every stage needs.
pub(crate) struct Run<'a> {
    pub(crate) config: &'a PipelineConfig,
    pub(crate) device: &'a ChosenDevice,
    pub(crate) keys: &'a Keys,
    pub(crate) listener: &'a dyn Listener,
    pub(crate) stop: &'a Arc<AtomicBool>,
    /// What is asked of the training through the run's folder.
    pub(crate) requests: &'a Requests,
    /// What the trials of a worker share.
    pub(crate) shared: &'a Shared,
    /// What a search wants to know of the model.
    pub(crate) wanted: &'a WantedScores,
}

/// The data, ready to be read in windows.
pub(crate) struct Windows {
    pub(crate) ingested: Ingested,
    pub(crate) parts: Split,
    pub(crate) normaliser: Normaliser,
    /// The split, and why it is this one.
    pub(crate) rule: SplitRule,
    pub(crate) chosen: &'static str,
    /// Keeps the series in the cache: a run that prunes must leave what this one, killed, would
    /// start again from.
    #[expect(dead_code, reason = "it is held and not read")]
    pub(crate) hold: Hold,
}

/// Sends events to the user's listener, to the log of the run, and to the trackers.
pub(crate) struct Everyone<'a> {
    pub(crate) listener: &'a dyn Listener,
    pub(crate) log: &'a EventLog,
    pub(crate) trackers: &'a Trackers,
}

impl Everyone<'_> {
    /// Says how a run ended that was started then, ends the trackers, and says what is to be said of
    /// them.
    pub(crate) fn finish(&self, run: &str, outcome: &str, started: Instant) {
        self.on(&Event::RunFinished {
            run: run.to_owned(),
            outcome: outcome.to_owned(),
            seconds: started.elapsed().as_secs_f64(),
        });
        self.say(self.trackers.close());
    }

    fn say(&self, warnings: Vec<String>) {
        for message in warnings {
            let event = Event::Warning { message };
            self.log.on(&event);
            self.listener.on(&event);
        }
    }
}

impl Listener for Everyone<'_> {
    fn on(&self, event: &Event) {
        self.log.on(event);
        self.listener.on(event);
        self.trackers.on(event);
        self.say(self.trackers.warnings());
        if let Some(message) = self.log.warning() {
            self.say(vec![message]);
        }
    }
}

pub(crate) fn run(
    prepared: &Prepared,
    device: &ChosenDevice,
    keys: &Keys,
    path: &Path,
    stop: &Arc<AtomicBool>,
    listener: &dyn Listener,
) -> Result<Finished, PipelineError> {
    let started = Instant::now();
    let chain = prepared.config().pipeline.chain();
    // What it was begun as is known here: its settings led to it.
    let damaged = begun(path).is_err().then(|| written_anew(path));
    // A run of an earlier version left no model; it is made from what is there.
    if let Some(said) = conclusion(path, keys.evaluation).filter(|_| is_kept(path)) {
        if let Some(message) = damaged {
            // A finished run may lie where nothing can be written.
            let begin = |folder: RunFolder| folder.begin(&begun_as(prepared, keys));
            if RunFolder::open(path).and_then(begin).is_ok() {
                listener.on(&Event::Warning { message });
            }
        }
        if prepared.profile().is_some() {
            let message = "nothing was profiled: the finished run is there, and no step is taken";
            listener.on(&Event::Warning { message: message.to_owned() });
        }
        return Ok(already_done(&said, prepared, keys, path, listener));
    }
    let replaced = replaced(prepared, keys, path)?;
    let (folder, reasons, log) = begin(prepared, device, keys, path)?;
    let trackers = trackers(prepared, path)?;
    let all = Everyone { listener, log: &log, trackers: &trackers };
    let name = started_event(device, path, &all);
    for message in damaged.into_iter().chain(replaced) {
        all.on(&Event::Warning { message });
    }
    let requests = Requests::new();
    let shared = Shared::default();
    let run = Run {
        config: prepared.config(),
        device,
        keys,
        listener: &all,
        stop,
        requests: &requests,
        shared: &shared,
        wanted: &WantedScores::NONE,
    };
    let mut work = Work::new(prepared, &folder, path, reasons);
    let finish = |outcome: &str| all.finish(&name, outcome, started);
    // The sampler ends before the report, which tells of its samples.
    let (period, gpu) = (
        prepared.config().monitor.period,
        matches!(device.backend.as_str(), "cuda" | "rocm" | "metal"),
    );
    let trained_before = trained_before(path);
    let profiling = Profiling::start(prepared.profile(), &all);
    firebox_train::memory::reset_peak();
    let made = sampled_with(period, gpu, &|| pools(device), &all, || {
        obeying(path, &requests, &all, || chain.make(&run, &mut work))
    });
    let made = match made {
        // Before or between trainings: what earlier attempts saved is all there is.
        Err(PipelineError::Interrupted) => {
            Ok(Making::Interrupted { step: steps_whole(path).unwrap_or(0) })
        }
        made => made,
    }
    .inspect_err(|error| {
        finish(&failed(error));
        // Nobody goes on with a run whose input was refused.
        if error.is_bad_input() {
            folder.forget();
        }
    })?;
    let profile = profiling.end(&folder, trained_before, device, &all);
    let Made { report, trained, outcome } = match made {
        Making::Complete(made) => *made,
        Making::Interrupted { step } => {
            finish("interrupted");
            return Ok(Finished {
                run: path.to_path_buf(),
                report: path.join("report.html"),
                outcome: Outcome::Interrupted { step },
                trained: String::new(),
                verdict: String::new(),
                remade: work.remade,
            });
        }
    };
    for Raster { name, width, height, palette, pixels } in report.pictures() {
        trackers.picture(Picture { name, width, height, palette, pixels });
    }
    finish(&outcome);
    let report =
        page::complete(&run, &work, report, profile).inspect_err(|error| finish(&failed(error)))?;
    let said = Conclusion { trained, verdict: report.verdict };
    folder.finish(keys.evaluation, &said)?;
    Ok(Finished {
        run: path.to_path_buf(),
        report: report.page,
        outcome: Outcome::Finished,
        trained: said.trained,
        verdict: said.verdict,
        remade: work.remade,
    })
}

/// What a run's training said when it ended, if it ended under this key.
pub(crate) fn summary_of(path: &Path, keys: &Keys) -> Option<firebox_train::Summary> {
    let text = std::fs::read(path.join(firebox_train::SUMMARY_FILE)).ok()?;
    let summary: firebox_train::Summary = serde_json::from_slice(&text).ok()?;
    (summary.key == keys.training).then_some(summary)
}

/// Whether a run's training has ended before.
pub(crate) fn trained_before(path: &Path) -> bool {
    path.join(firebox_train::SUMMARY_FILE).is_file()
}

/// The outcome of a run that ended with this error: its text and its causes, in one line.
pub(crate) fn failed(error: &PipelineError) -> String {
    let mut outcome = format!("failed: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        outcome += &format!(": {error}");
        cause = error.source();
    }
    outcome.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What is to be said of a finished report that is about to be replaced. A run is named after its training, so
/// that another evaluation of it reuses that, and ends in the same folder.
fn replaced(
    prepared: &Prepared,
    keys: &Keys,
    path: &Path,
) -> Result<Option<String>, PipelineError> {
    if !is_otherwise_finished(path, keys.evaluation) {
        return Ok(None);
    }
    // Without it, nothing is known of the settings that it was made with.
    let before = std::fs::read_to_string(path.join(PIPELINE)).unwrap_or_default();
    let changed = changed(&before, &prepared.toml()?, &MEASURED);
    let why = match changed.is_empty() {
        true => "it was made by other settings, or by another version of Firebox".to_owned(),
        false => changed.join(", "),
    };
    Ok(Some(format!(
        "the finished report in {} is replaced: {why}; to keep it, copy report.html, summary.md and scores.json before this run ends",
        path.display()
    )))
}

/// Takes the folder of a run, and writes down what it is begun as.
pub(crate) fn begin(
    prepared: &Prepared,
    device: &ChosenDevice,
    keys: &Keys,
    path: &Path,
) -> Result<(RunFolder, Vec<Reason>, EventLog), PipelineError> {
    let folder = RunFolder::open(path)?;
    folder.unfinish()?;
    folder.begin(&begun_as(prepared, keys))?;
    let reasons = reasons(prepared, device)?;
    folder.write(PIPELINE, prepared.resolved(&reasons)?.as_bytes())?;
    let log = folder.events()?;
    Ok((folder, reasons, log))
}

/// What the run of a pipeline is begun as.
fn begun_as(prepared: &Prepared, keys: &Keys) -> Begun {
    Begun { name: prepared.name().to_owned(), training: keys.training }
}

/// Name of a run: that of its folder.
pub(crate) fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The trackers that the settings ask for.
pub(crate) fn trackers(prepared: &Prepared, path: &Path) -> Result<Trackers, PipelineError> {
    let settings = prepared.absolute()?;
    let tracked = TrackedRun {
        name: name_of(path),
        folder: path.to_path_buf(),
        settings: serde_json::to_value(&settings).unwrap_or_default(),
    };
    Ok(Trackers::start(&settings.monitor, &tracked))
}

/// Says that a run begins or goes on, and returns its name.
pub(crate) fn started_event(device: &ChosenDevice, path: &Path, listener: &dyn Listener) -> String {
    let name = name_of(path);
    listener.on(&Event::RunStarted {
        run: name.clone(),
        device: device.description.clone(),
        resumed_at_step: steps_whole(path),
    });
    name
}

/// Says that no stage has anything to do: what the run left is whole, and needs nothing that it was
/// made from.
fn already_done(
    said: &Conclusion,
    prepared: &Prepared,
    keys: &Keys,
    path: &Path,
    listener: &dyn Listener,
) -> Finished {
    let stages = prepared.config().pipeline.chain().stages(keys);
    // Windows are views: there is nothing of theirs to reuse.
    let stages = stages.into_iter().filter(|(stage, _)| *stage != "windows");
    for (stage, key) in stages {
        listener.on(&Event::StageFinished {
            stage: stage.to_owned(),
            key,
            reused: true,
            seconds: 0.0,
            detail: "the finished run is there and whole".to_owned(),
        });
    }
    Finished {
        run: path.to_path_buf(),
        report: path.join("report.html"),
        outcome: Outcome::Finished,
        trained: said.trained.clone(),
        verdict: said.verdict.clone(),
        remade: 0,
    }
}

/// The settings of training, with the loss scale that the precision asks for.
pub(crate) fn training(config: &PipelineConfig) -> TrainConfig {
    let f16 = config.run.precision == Precision::F16;
    let loss_scale = config.train.loss_scale.resolve(f16);
    TrainConfig { loss_scale, ..config.train.clone() }
}

/// Values that were not written but derived, each with its reason.
fn reasons(prepared: &Prepared, device: &ChosenDevice) -> Result<Vec<Reason>, PipelineError> {
    let config = prepared.config();
    let reason = |key: &str, value: String, reason: &str| Reason {
        key: key.to_owned(),
        value,
        reason: reason.to_owned(),
    };
    let mut reasons = vec![reason("run.device", device.backend.clone(), &device.reason)];
    reasons.extend_from_slice(prepared.settled_reasons());
    if let (LossScale::Auto, LossScale::Dynamic(scale)) =
        (config.train.loss_scale, training(config).loss_scale)
    {
        let value = format!("dynamic from {}", scale.initial);
        reasons.push(reason("train.loss_scale", value, "f16 needs it: small gradients vanish"));
    }
    if let Some(kernels) = device.cpu_kernels()? {
        let why =
            "the fastest LSTM kernels that this processor runs, or what FIREBOX_KERNELS asks for";
        reasons.push(reason("kernels", kernels, why));
    }
    Ok(reasons)
}

/// The split, as far as it was not written but follows from the data. `horizon` is the number of steps
/// after a window that its labels or targets look at.
pub(crate) fn split_reasons(
    config: &PipelineConfig,
    windows: &Windows,
    horizon: usize,
) -> Vec<Reason> {
    let reason = |key: &str, value: String, reason: &str| Reason {
        key: key.to_owned(),
        value,
        reason: reason.to_owned(),
    };
    let mut reasons = Vec::new();
    if config.split.is_none() {
        reasons.push(reason("split", written(&windows.rule), windows.chosen));
    }
    if let SplitRule::Time { gap: None, .. } = windows.rule {
        let gap = config.window.length + horizon;
        let why = "one window and the horizon of its label or targets, so that no held-out window begins in steps that a training window has seen";
        reasons.push(reason("split.time.gap", gap.to_string(), why));
    }
    reasons
}

/// A split as a person would write it.
pub(crate) fn written(rule: &SplitRule) -> String {
    match *rule {
        SplitRule::Time { validation, test, .. } => {
            format!("time (validation {validation}, test {test})")
        }
        SplitRule::Series { validation, test, seed } => {
            format!("series (validation {validation}, test {test}, seed {seed})")
        }
        SplitRule::Given { validation, seed } => {
            format!("given (validation {validation}, seed {seed})")
        }
    }
}

/// The split that was written, or the one that follows from the data, with its reason.
pub(crate) fn rule_for(
    config: &PipelineConfig,
    ingested: &Ingested,
) -> Result<(SplitRule, &'static str), PipelineError> {
    let (series, clock) = (ingested.set.series(), ingested.checks.span.is_some());
    let Some(rule) = config.split else {
        return Ok(SplitRule::automatic(config.data.test.is_some(), clock, series.len()));
    };
    let labelled = series.iter().filter(|one| matches!(one.labels, StepLabels::Whole(_))).count();
    if matches!(rule, SplitRule::Time { .. }) && !clock && series.len() > 1 && labelled > 0 {
        return Err(PipelineError::Setting(format!(
            "[split.time] would put parts of one sample into training and test: {labelled} of {} series have one label each, and none has times\n  \
             replace it with [split.series] (--set split.series.test=0.2), with [split.given] and `data.test`, or leave the split out",
            series.len()
        )));
    }
    Ok((rule, "as written"))
}

/// What is to be said of classes that only the test part has. `by_part` has the labels of training, validation and test:
/// probes are fitted on the first two.
fn unlearnt(names: &[String], by_part: &[Vec<u32>; 3]) -> Option<String> {
    let [train, validation, test] = by_part;
    let mut learnt = vec![false; names.len()];
    train.iter().chain(validation).for_each(|label| learnt[*label as usize] = true);
    let mut tested = vec![0; names.len()];
    test.iter().for_each(|label| tested[*label as usize] += 1);
    unlearnt_classes(names, &learnt, &tested)
}

fn classes_of(names: &[String]) -> String {
    match names {
        [] => "no value".to_owned(),
        [only] => format!("the one class `{only}`"),
        [first, second, ..] => {
            format!("{} different values, such as `{first}` and `{second}`", names.len())
        }
    }
}

impl Run<'_> {
    /// Runs a stage between its two events. `work` returns its result, whether that was reused, and
    /// a line on it.
    pub(crate) fn stage<T>(
        &self,
        name: &str,
        key: Option<Key>,
        remade: &mut usize,
        work: impl FnOnce() -> Result<(T, bool, String), PipelineError>,
    ) -> Result<T, PipelineError> {
        self.listener.on(&Event::StageStarted { stage: name.to_owned() });
        let start = Instant::now();
        let (result, reused, detail) = work().map_err(PipelineError::or_interrupted)?;
        *remade += usize::from(!reused);
        self.listener.on(&Event::StageFinished {
            stage: name.to_owned(),
            key,
            reused,
            seconds: start.elapsed().as_secs_f64(),
            detail,
        });
        Ok(result)
    }

    /// Says that the result of a stage was made by another trial of this worker.
    pub(crate) fn shared_stage(&self, name: &str, key: Option<Key>) {
        self.listener.on(&Event::StageFinished {
            stage: name.to_owned(),
            key,
            reused: true,
            seconds: 0.0,
            detail: "shared with other trials of this worker".to_owned(),
        });
    }

    /// Files → series → parts of windows.
    pub(crate) fn windows(&self, remade: &mut usize) -> Result<Arc<Windows>, PipelineError> {
        let make = || self.make_windows(remade);
        let (windows, there) = self.shared.get("windows", self.keys.windows, make)?;
        if there {
            self.shared_stage("ingest", Some(self.keys.series));
        }
        Ok(windows)
    }

    /// Files → series, which stay in the cache as long as they are held.
    pub(crate) fn ingest(&self, remade: &mut usize) -> Result<(Ingested, Hold), PipelineError> {
        let config = self.config;
        let series = self.keys.series;
        let ingested = self.stage("ingest", Some(series), remade, || {
            let data = local(&config.data, &config.run, self.stop, self.listener)?;
            let cache = &config.run.cache;
            let ingested = firebox_data::ingest_until(self.stop, &data, cache, self.listener)?;
            let detail = format!(
                "{} of {} in {} series, {} of defect",
                count(ingested.set.steps() as u64, "step"),
                count(ingested.set.channels().len() as u64, "channel"),
                ingested.set.series().len(),
                count(ingested.checks.findings.len() as u64, "kind")
            );
            let reused = ingested.reused;
            Ok((ingested, reused, detail))
        })?;
        let hold = Store::open(&config.run.cache)?.hold(firebox_cache::SERIES, series)?;
        Ok((ingested, hold))
    }

    fn make_windows(&self, remade: &mut usize) -> Result<Windows, PipelineError> {
        let config = self.config;
        let (ingested, hold) = self.ingest(remade)?;
        // Windows are views: making them is never work that could be reused.
        self.stage("windows", None, &mut 0, || {
            let (rule, chosen) = rule_for(config, &ingested)?;
            if config.window.length < 3 {
                self.listener.on(&Event::Warning {
                    message: format!(
                        "`window.length` is {}: so short a window leaves nothing beside a masked step to reconstruct it from; 16 steps and more are usual",
                        config.window.length
                    ),
                });
            }
            let parts = split(&ingested.set, &config.window.rule(), &rule, &config.labels)?;
            self.check_labels(&ingested, &parts)?;
            if parts.test.is_empty() {
                self.listener.on(&Event::Warning {
                    message: format!(
                        "the test part has no window (`split.{}.test` is 0): nothing is measured on one",
                        rule.name()
                    ),
                });
            }
            self.warn_of_equal(&parts);
            self.warn_of_unused([&parts], config.labels.horizon());
            self.warn_of_few(&parts);
            let normaliser = Normaliser::fit(config.window.normalise, &parts.train)?;
            let detail = format!(
                "{} training, {} validation, {} test windows by {}; {} across a boundary left out",
                parts.train.len(),
                parts.validation.len(),
                parts.test.len(),
                rule.name(),
                parts.left_out
            );
            let windows = Windows { ingested, parts, normaliser, rule, chosen, hold };
            Ok((windows, false, detail))
        })
    }

    /// Warns of a validation part by which no epoch can be told from another.
    pub(crate) fn warn_of_few(&self, parts: &Split) {
        let windows = parts.validation.len();
        if (1..FEW_WINDOWS).contains(&windows) {
            let message = format!(
                "the validation part has no more than {}: which epoch is kept, and when training ends, is chance; give it a larger share, or more data",
                count(windows as u64, "window")
            );
            self.listener.on(&Event::Warning { message });
        }
    }

    /// Warns of series that equal another one.
    pub(crate) fn warn_of_equal(&self, parts: &Split) {
        for message in parts.equal.warnings() {
            self.listener.on(&Event::Warning { message });
        }
    }

    /// Warns of series that no part of a split has a window of: they would be gone without a word. `horizon` is the number of
    /// steps after a window that its label or targets look at.
    pub(crate) fn warn_of_unused<'a>(
        &self,
        splits: impl IntoIterator<Item = &'a Split>,
        horizon: usize,
    ) {
        const NAMED: usize = 5;
        let parts = splits.into_iter().flat_map(|split| -> [&firebox_core::Windows; 3] {
            [&split.train, &split.validation, &split.test]
        });
        let mut parts = parts.peekable();
        let Some(series) = parts.peek().map(|part| part.set().series()) else { return };
        let mut used = vec![false; series.len()];
        for window in parts.flat_map(|part| part.windows()) {
            used[window.series as usize] = true;
        }
        let unused = series.iter().zip(&used).filter(|(_, used)| !**used);
        let unused: Vec<String> = unused.map(|(series, _)| format!("`{}`", series.name)).collect();
        if unused.is_empty() {
            return;
        }
        let more = if unused.len() > NAMED { ", …" } else { "" };
        self.listener.on(&Event::Warning {
            message: format!(
                "{} of {} series have no window and are not used ({}{more}): a window takes {} steps without a gap on one side of each boundary; make windows shorter, fill gaps (`data.checks.gaps`), or leave these series out",
                unused.len(),
                series.len(),
                unused[..unused.len().min(NAMED)].join(", "),
                self.config.window.length + horizon
            ),
        });
    }

    /// Refuses labels that were asked for and are not there, or are no classes; a score of them would
    /// say nothing. Warns where a part has none.
    fn check_labels(&self, ingested: &Ingested, parts: &Split) -> Result<(), PipelineError> {
        let asked = match self.config.labels {
            Labels::None | Labels::Ahead { .. } => return Ok(()),
            Labels::Last => "last",
            Labels::Majority { .. } => "majority",
            Labels::Forward { .. } => "forward",
            Labels::Return { .. } => "return",
        };
        let setting = |what: String| Err(PipelineError::Setting(what));
        let all: [&firebox_core::Windows; 3] = [&parts.train, &parts.validation, &parts.test];
        let labels = |part: &firebox_core::Windows| {
            part.windows().iter().filter_map(|window| window.label).collect::<Vec<_>>()
        };
        let by_part = all.map(labels);
        let labelled: usize = by_part.iter().map(Vec::len).sum();
        let classes: BTreeSet<u32> = by_part.iter().flatten().copied().collect();
        let checks = &ingested.checks;
        let names = parts.train.classes();
        let column = checks.label_column.as_ref().map_or_else(
            || match &checks.label_like {
                Some(name) => format!(
                    "; the files have a column `{name}`: is data.columns.label = \"{name}\" meant?"
                ),
                None => String::new(),
            },
            |name| format!("; the column `{name}` has {}", classes_of(names)),
        );
        if labelled == 0 {
            return setting(format!(
                "`labels` is {asked}, and no window has a label{column}\n  \
                 declare the column of classes in `data.columns.label`, lower `labels.majority.share`, or train without (--set labels=none)"
            ));
        }
        if classes.len() > 20 && 2 * classes.len() > labelled {
            return setting(format!(
                "`labels` is {asked}, and the {labelled} labelled windows have {} classes{column}: labels are classes, not measurements\n  \
                 declare a column of classes in `data.columns.label`, or train without (--set labels=none)",
                classes.len()
            ));
        }
        if let [only] = Vec::from_iter(&classes)[..] {
            let name = names.get(*only as usize).map_or("", String::as_str);
            return setting(format!(
                "`labels` is {asked}, and all {labelled} labelled windows are of the class `{name}`: there is nothing to tell apart\n  \
                 declare another column in `data.columns.label`, or train without (--set labels=none)"
            ));
        }
        for (part, labels) in ["training", "validation", "test"].iter().zip(&by_part) {
            let different = labels.iter().collect::<BTreeSet<_>>().len();
            let (what, so) = match (different, *part) {
                (0, "validation") | (2.., _) => continue,
                (0, _) => ("no labelled window", "so nothing can be scored"),
                (_, "validation") => {
                    ("windows of one class only", "so penalties are chosen blindly")
                }
                (_, _) => ("labelled windows of one class only", "so the scores say nothing"),
            };
            self.listener.on(&Event::Warning {
                message: format!(
                    "the {part} part has {what}, {so}: choose another split, or more data"
                ),
            });
        }
        // Fine-tuning refuses them.
        if self.config.pipeline != Kind::Finetune
            && let Some(message) = unlearnt(names, &by_part)
        {
            self.listener.on(&Event::Warning { message });
        }
        Ok(())
    }

    pub(crate) fn augment(
        &self,
        windows: &Windows,
        remade: &mut usize,
    ) -> Result<Arc<Shards>, PipelineError> {
        self.stage("augment", Some(self.keys.augmented), remade, || {
            let make = || {
                Store::open(&self.config.run.cache)?.stopped_by(self.stop).augmented(
                    self.keys.augmented,
                    &windows.parts.train,
                    &windows.normaliser,
                    &effective(&self.config.augment),
                    self.config.run.seed,
                    self.listener,
                )
            };
            let (shards, there) = self.shared.get("augmented", self.keys.augmented, make)?;
            let megabytes = shards.bytes() as f64 / 1e6;
            let detail = format!("{} windows, {megabytes:.1} MB", shards.len());
            let reused = there || shards.reused();
            Ok((shards, reused, detail))
        })
    }

    /// How batches are loaded.
    pub(crate) fn loader(&self) -> LoaderConfig {
        let loader = self.config.loader.resolve(self.config.run.seed);
        LoaderConfig { upload_ahead: upload_ahead(self.device, loader.upload_ahead), ..loader }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_that_only_the_test_part_has_is_named() {
        let names = ["a", "b", "c"].map(str::to_owned);
        assert_eq!(unlearnt(&names, &[vec![0, 0], vec![2], vec![0, 2]]), None);
        assert_eq!(
            unlearnt(&names, &[vec![0, 0], vec![2], vec![1, 0, 1]]).unwrap(),
            "class `b` has 2 test windows and no training window: no probe can find it"
        );
    }

    #[test]
    fn a_finished_report_is_not_replaced_without_a_word() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run");
        let said = |config: &PipelineConfig| {
            let keys = Keys::new(config, Key::builder("series", 1).finish(), "cpu");
            replaced(&Prepared::of("test", config.clone()), &keys, &path).unwrap()
        };
        let mut config = PipelineConfig::default();
        config.data.path = firebox_data::Paths(vec!["bars.csv".into()]);
        config.evaluate.seeds = 5;
        assert_eq!(said(&config), None, "there is no report");
        let run = RunFolder::open(&path).unwrap();
        let resolved = Prepared::of("test", config.clone()).resolved(&[]).unwrap();
        run.write(PIPELINE, resolved.as_bytes()).unwrap();
        for name in ["scores.json", "summary.md", "report.html"] {
            run.write(name, b"text").unwrap();
        }
        let keys = Keys::new(&config, Key::builder("series", 1).finish(), "cpu");
        let end = Conclusion { trained: String::new(), verdict: String::new() };
        run.finish(keys.evaluation, &end).unwrap();
        config.monitor.period = 9.0;
        assert_eq!(said(&config), None, "it is the report of these settings");
        config.evaluate.seeds = 6;
        let text = said(&config).unwrap();
        assert!(text.contains("run is replaced: `evaluate.seeds` was 5 and is 6; to"), "{text}");
        run.write(PIPELINE, b"no settings").unwrap();
        let text = said(&config).unwrap();
        assert!(text.contains("is replaced: it was made by other settings, or"), "{text}");
        run.unfinish().unwrap();
        assert_eq!(said(&config), None, "it is finished no more");
    }
}
