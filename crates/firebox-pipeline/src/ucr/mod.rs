//! `firebox evaluate ucr`: the published protocol on every set of a folder.
//!
//! For each pair `NAME_TRAIN.ts`, `NAME_TEST.ts` and each seed, an encoder is pre-trained without labels
//! on the training file; frozen, it is judged by logistic regression and a support vector machine; and
//! it is trained on with the labels. Beside it stand fixed kernels under ridge regression, which
//! the ensemble hears, too. One configuration serves all sets. Whatever is chosen for a set
//! (penalty, strength) is chosen by cross-validation on its training file; the test file is read for the
//! last predictions alone.

mod features;
mod recipe;
mod sets;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use firebox_core::{Event, Key, Listener};
use firebox_data::{CheckPolicies, DataConfig};
use firebox_eval::{ArchiveReport, ArchiveSet};
use firebox_models::{ClassifierConfig, DilatedConfig, StepPooling};
use firebox_train::{AdamWConfig, CheckpointConfig, ClassLoss, Keep, Mix, Optimizer, TrainConfig};
use serde::{Deserialize, Serialize};

use crate::device::ChosenDevice;
use crate::error::{PipelineError, at, at_named};
use crate::layers;
use crate::page::now;

/// The one configuration of all sets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UcrConfig {
    /// First seed; the others follow it.
    pub seed: u64,
    /// Seeds, at least 1.
    pub seeds: u32,
    /// Steps of a window: longer samples are cut.
    pub longest: usize,
    /// How the files are read.
    #[serde(skip_serializing_if = "UcrData::is_default")]
    pub data: UcrData,
    /// The encoder.
    pub encoder: DilatedConfig,
    /// Runs of steps whose maxima, side by side, are the features of the frozen encoder: 1 is the whole
    /// sample, 4 its quarters.
    pub levels: Vec<usize>,
    /// Thresholds of all fixed kernels, of values and of changes each, at least 84: MultiRocket's.
    pub kernels: usize,
    /// Penalties of the ridge regression on them to choose from, by the errors on samples that are left out;
    /// the ten of MultiRocket's authors.
    pub ridge: Vec<f64>,
    /// Strengths `C` of the support vector machine to choose from.
    pub strengths: Vec<f64>,
    /// Strengths of the logistic regression's penalty to choose from.
    pub penalties: Vec<f64>,
    /// Folds of the cross-validation that chooses both.
    pub folds: usize,
    /// Pre-training.
    pub pretraining: UcrTraining,
    /// Training with labels.
    pub finetuning: UcrTraining,
    /// The head of the classifier.
    pub head: ClassifierConfig,
    /// Its loss.
    pub loss: ClassLoss,
    /// How its training windows are mixed.
    pub mix: Mix,
    /// The file that it was read from.
    #[serde(skip)]
    pub file: Option<PathBuf>,
}

/// How the files of all sets are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UcrData {
    /// What is done about each kind of defect: as `[data.checks]` of a pipeline.
    pub checks: CheckPolicies,
}

impl UcrData {
    /// Whether it is left out where settings are written: a training's key has the policies in that of its series.
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A training of a fixed number of steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UcrTraining {
    /// Optimizer steps, at least 1.
    pub steps: u64,
    /// Samples of a batch, at least 2.
    pub batch_size: usize,
    /// Peak learning rate of AdamW; it falls along half a cosine.
    pub learning_rate: f64,
}

impl Default for UcrConfig {
    fn default() -> Self {
        Self {
            seed: 1337,
            seeds: 5,
            longest: 512,
            data: UcrData::default(),
            encoder: DilatedConfig { hidden: 64, output: 128, blocks: 7 },
            levels: vec![1, 2, 4, 8, 16],
            kernels: 6250,
            ridge: (0..10).map(|place| 10f64.powf(-3.0 + 6.0 / 9.0 * f64::from(place))).collect(),
            strengths: vec![1.0, 10.0, 100.0, 0.1, 1000.0],
            penalties: vec![1000.0, 100.0, 10.0, 1.0, 0.1],
            folds: 5,
            pretraining: UcrTraining { steps: 200, batch_size: 16, learning_rate: 1e-3 },
            finetuning: UcrTraining { steps: 300, batch_size: 16, learning_rate: 3e-3 },
            head: ClassifierConfig {
                heads: 0,
                pooling: StepPooling::MeanMax,
                hidden: 0,
                ..ClassifierConfig::default()
            },
            loss: ClassLoss::CrossEntropy { label_smoothing: 0.1 },
            mix: Mix::Mixup { alpha: 0.4 },
            file: None,
        }
    }
}

impl UcrConfig {
    /// Reads settings from a TOML file; what it leaves out is as built in.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, an unknown key, or a value of another type.
    pub fn read(file: &Path) -> Result<Self, PipelineError> {
        let named = at_named("the settings (--config)", file);
        let text = std::fs::read_to_string(file).map_err(named)?;
        let config: Self = toml::from_str(&text).map_err(|error| {
            PipelineError::Setting(format!("{} cannot be read: {error}", file.display()))
        })?;
        Ok(Self { file: Some(file.to_owned()), ..config })
    }

    /// Lays `settings` (`data.checks.not_finite=fill`) over the policies of the file.
    ///
    /// # Errors
    ///
    /// Another key than those of `data.checks`, or a value that does not fit.
    pub fn with(self, settings: &[String]) -> Result<Self, PipelineError> {
        for setting in settings {
            let key = setting.split_once('=').map_or(setting.as_str(), |(key, _)| key).trim();
            if key != "data.checks" && !key.starts_with("data.checks.") {
                return Err(PipelineError::Setting(format!(
                    "--set {setting}: only what is done about defects of the data can be set: keys of data.checks, such as data.checks.not_finite\n  \
                     write other settings into a TOML file, and name it with --config"
                )));
            }
        }
        let data = DataConfig { checks: self.data.checks, ..DataConfig::default() };
        let DataConfig { checks, .. } = layers::of_data(data, "the settings", settings)?;
        Ok(Self { data: UcrData { checks }, ..self })
    }

    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// The first setting that is out of its range.
    pub fn validate(&self) -> Result<(), PipelineError> {
        let refuse = |what: &str| Err(PipelineError::Setting(what.to_owned()));
        self.encoder.validate()?;
        self.head.validate()?;
        self.loss.validate()?;
        self.mix.validate()?;
        if self.seeds == 0 {
            return refuse("no seed\n  use at least one: --seeds 1");
        }
        if self.levels.is_empty() || self.levels.contains(&0) || self.longest == 0 {
            return refuse(
                "`levels` needs at least one number above 0, and `longest` must be above 0",
            );
        }
        if self.kernels < 84 {
            return refuse("`kernels` must be at least 84: one threshold for each kernel");
        }
        let positive =
            |all: &[f64]| !all.is_empty() && all.iter().all(|v| *v > 0.0 && v.is_finite());
        let all = [&self.strengths, &self.penalties, &self.ridge];
        if !all.into_iter().all(|all| positive(all)) || self.folds < 2 {
            return refuse(
                "`strengths`, `penalties` and `ridge` need positive numbers, `folds` at least 2",
            );
        }
        for training in [&self.pretraining, &self.finetuning] {
            if training.steps == 0 || training.batch_size < 2 {
                return refuse("a training takes at least 1 step and batches of at least 2");
            }
            let rate = training.learning_rate;
            if !(rate as f32 > 0.0 && (rate as f32).is_finite()) {
                return refuse(&format!(
                    "`learning_rate` of a training is {rate}; it must be above 0, and finite in f32"
                ));
            }
        }
        Ok(())
    }
}

impl UcrTraining {
    /// The settings of the training loop for a set of this many samples.
    fn config(&self, samples: usize) -> TrainConfig {
        let batches = samples.div_ceil(self.batch_size).max(1) as u64;
        let adamw = AdamWConfig { learning_rate: self.learning_rate, ..AdamWConfig::default() };
        TrainConfig {
            epochs: self.steps.div_ceil(batches),
            max_steps: Some(self.steps),
            optimizer: Optimizer::AdamW(adamw),
            early_stopping: None,
            checkpoint: CheckpointConfig { keep: Keep::FinalOnly, ..CheckpointConfig::default() },
            ..TrainConfig::default()
        }
    }
}

/// Where the results are.
#[derive(Clone, Debug)]
pub struct UcrFinished {
    /// The report page; none where it was asked to stop before there was something to report.
    pub page: Option<PathBuf>,
    /// Its first line.
    pub verdict: String,
    /// The table, as text.
    pub summary: String,
    /// Whether it was asked to stop before the last set.
    pub interrupted: bool,
    /// Sets that could not be measured.
    pub failed: usize,
}

/// Measures one configuration on every set of `folder` and writes the report into `output`. Trainings
/// are kept below `output`, so that one that was interrupted goes on.
///
/// The report is written after each set, and says how many there are so far. A report in `output` that is finished, or has
/// more sets, stays meanwhile: this one is in its folder `so-far` until all sets are measured.
///
/// A set that cannot be measured is named in the report with the reason, and the others go on.
///
/// # Errors
///
/// A folder without a pair of files; a setting out of range; every set failing; a report that cannot be
/// written.
pub fn evaluate_ucr(
    folder: &Path,
    output: &Path,
    config: &UcrConfig,
    device: &ChosenDevice,
    stop: &Arc<AtomicBool>,
    listener: &dyn Listener,
) -> Result<UcrFinished, PipelineError> {
    config.validate()?;
    let sets::Sets { pairs, alone } = sets::pairs(folder)?;
    std::fs::create_dir_all(output).map_err(at(output))?;
    for (name, lacks) in &alone {
        let message = format!("{name} could not be measured: there is {lacks}");
        listener.on(&Event::Warning { message });
    }
    let started = Instant::now();
    let configuration = toml::to_string(config).map_err(|error| {
        PipelineError::Setting(format!("the configuration cannot be written as TOML: {error}"))
    })?;
    let before = before(output);
    let of = pairs.len() + alone.len();
    let mut report = ArchiveReport {
        created: String::new(),
        device: device.description.clone(),
        seeds: config.seeds as usize,
        seconds: 0.0,
        configuration,
        file: config.file.as_ref().map(|file| file.display().to_string()),
        sets: vec![],
        failed: alone
            .into_iter()
            .map(|(name, lacks)| (name, format!("there is {lacks}")))
            .collect(),
        of,
    };
    if let Some(message) = before.as_ref().and_then(|before| replaced(before, &report, output)) {
        listener.on(&Event::Warning { message });
    }
    let so_far = output.join("so-far");
    let total = pairs.len() as u64 * u64::from(config.seeds);
    let (mut done, mut interrupted, mut first_error, mut written) = (0, false, None, None);
    for pair in &pairs {
        let set_started = Instant::now();
        let mut progress = |seeds: u64| {
            done += seeds;
            listener.on(&Event::Progress {
                stage: format!("evaluate {}", pair.name),
                done,
                total,
                unit: "seeds".to_owned(),
            });
        };
        match (recipe::Job { config, device, stop, output, pair, listener }).run(&mut progress) {
            Ok(set) => {
                let seconds = set_started.elapsed().as_secs_f64();
                report.sets.push(ArchiveSet { seconds, ..set });
            }
            Err(_) if stop.load(Ordering::SeqCst) => {
                interrupted = true;
                break;
            }
            Err(error) => {
                let why = crate::stages::failed(&error);
                // Stands in a line, in the table and in what is said.
                let why = why.trim_start_matches("failed: ").replace("\n  ", "; ");
                let message = format!("{} could not be measured: {why}", pair.name);
                listener.on(&Event::Warning { message });
                report.failed.push((pair.name.clone(), why));
                first_error.get_or_insert(error);
            }
        }
        // After each set, so that a long run can be looked at.
        report.created = now();
        report.seconds = started.elapsed().as_secs_f64();
        let is_kept = before.as_ref().is_some_and(|before| stays(before, &report));
        let place = if is_kept { so_far.as_path() } else { output };
        report.write(place)?;
        written = Some(place);
    }
    if let Some(error) = first_error
        && report.sets.is_empty()
        && !interrupted
    {
        return Err(error);
    }
    if written == Some(output) {
        // What is beside it is of fewer sets; one that stays does no harm. A set may have this name, too.
        for name in ["report.html", "summary.md", "scores.json"] {
            let _ = std::fs::remove_file(so_far.join(name));
        }
        let _ = std::fs::remove_dir(&so_far);
    }
    let page = written.map(|place| place.join("report.html"));
    let (verdict, summary) = (report.verdict(), report.markdown());
    let failed = report.failed.len();
    Ok(UcrFinished { page, verdict, summary, interrupted, failed })
}

/// The report that is in a folder, if it has a set.
fn before(output: &Path) -> Option<ArchiveReport> {
    #[derive(Deserialize)]
    struct Scores {
        report: ArchiveReport,
    }
    let text = std::fs::read(output.join("scores.json")).ok()?;
    let Scores { report } = serde_json::from_slice(&text).ok()?;
    (!report.sets.is_empty()).then_some(report)
}

/// Whether the report that was there stays where it is beside what there is of this one.
fn stays(before: &ArchiveReport, report: &ArchiveReport) -> bool {
    let is_ahead = before.left() == 0 || before.sets.len() > report.sets.len();
    let is_worse = before.configuration == report.configuration
        && before.of == report.of
        && before.sets.len() > report.sets.len();
    report.sets.is_empty() || (report.left() > 0 && is_ahead) || is_worse
}

/// What is said of a finished report of other settings or sets, in the place of which this one is written at the end.
fn replaced(before: &ArchiveReport, report: &ArchiveReport, output: &Path) -> Option<String> {
    // Reports of before do not say of how many.
    let all = |report: &ArchiveReport| report.of.max(report.sets.len() + report.failed.len());
    let is_same = before.configuration == report.configuration && all(before) == all(report);
    (before.left() == 0 && !is_same).then(|| {
        format!(
            "the finished report in {} is replaced once all sets are measured, as it is of other settings or sets; to keep it, \
             copy report.html, summary.md and scores.json before that, or name another folder with --output",
            output.display()
        )
    })
}

/// Names of the two trainings.
const PRETRAIN: &str = "pretrain";
const FINETUNE: &str = "finetune";

/// The key of a training of one set, from its data and all settings.
fn key(kind: &str, series: Key, config: &UcrConfig, seed: u64, arithmetic: &str) -> Key {
    // Neither the number of seeds nor what is done with the features changes a training.
    let UcrConfig { longest, encoder, pretraining, .. } = config.clone();
    let mut shared = UcrConfig { longest, encoder, pretraining, ..UcrConfig::default() };
    if kind == FINETUNE {
        let UcrConfig { finetuning, head, loss, mix, .. } = config.clone();
        shared = UcrConfig { finetuning, head, loss, mix, ..shared };
    }
    // Both begin with crops, whose places were once drawn otherwise.
    Key::builder(kind, 2)
        .upstream("series", series)
        .field("config", serde_json::to_string(&shared).unwrap_or_default())
        .field("seed", seed.to_le_bytes())
        .field("arithmetic", arithmetic)
        .finish()
}

#[cfg(test)]
mod tests {
    use firebox_core::Silent;
    use firebox_data::{ConstantPolicy, Policy};
    use firebox_eval::Recipe;

    use super::*;

    #[test]
    fn what_does_not_change_a_training_does_not_change_its_key() {
        let series = Key::builder("series", 1).finish();
        let base = UcrConfig::default();
        let of = |config: &UcrConfig, seed| key(PRETRAIN, series, config, seed, "cpu");
        let more = UcrConfig { seeds: 9, levels: vec![1], kernels: 84, folds: 3, ..base.clone() };
        assert_eq!(of(&base, 1), of(&more, 1));
        assert_ne!(of(&base, 1), of(&base, 2));
        let mixed = UcrConfig { mix: Mix::None, ..base.clone() };
        assert_eq!(of(&base, 1), of(&mixed, 1), "pre-training has no labels to mix");
        let tuned = |config: &UcrConfig| key(FINETUNE, series, config, 1, "cpu");
        assert_ne!(tuned(&base), tuned(&mixed));
        let longer = UcrTraining { steps: 7, ..base.pretraining };
        assert_ne!(of(&base, 1), of(&UcrConfig { pretraining: longer, ..base.clone() }, 1));
        assert!(!serde_json::to_string(&base).unwrap().contains("checks"), "the keys of before");
    }

    /// A report of these sets, of so many that there are.
    fn report(sets: &[&str], of: usize) -> ArchiveReport {
        let set = |name: &&str| ArchiveSet {
            name: (*name).to_owned(),
            samples: [6, 6],
            channels: 1,
            steps: 8,
            classes: 2,
            accuracies: [(Recipe::Ensemble, vec![1.0])].into(),
            seconds: 1.0,
            defects: vec![],
        };
        ArchiveReport {
            created: "2026-01-01".to_owned(),
            device: "cpu".to_owned(),
            seeds: 1,
            seconds: 1.0,
            configuration: "seeds = 1\n".to_owned(),
            file: None,
            sets: sets.iter().map(set).collect(),
            failed: vec![],
            of,
        }
    }

    #[test]
    fn a_report_stays_until_one_of_as_many_sets_is_there() {
        let (none, one, two) = (report(&[], 2), report(&["A"], 2), report(&["A", "B"], 2));
        let all = |before: &ArchiveReport| [&none, &one, &two].map(|now| stays(before, now));
        assert_eq!(all(&two), [true, true, false]);
        assert_eq!(all(&one), [true, false, false]);
        assert!(stays(&report(&["A"], 1), &one), "a finished one of fewer sets");
        let said = |before: &ArchiveReport| replaced(before, &none, Path::new("runs/ucr"));
        assert_eq!([said(&two), said(&one)], [None, None]);
        let other = ArchiveReport { configuration: "seeds = 2\n".to_owned(), ..two.clone() };
        assert!(said(&other).is_some_and(|said| said.contains("report in runs/ucr is replaced")));
    }

    #[test]
    fn a_finished_report_outlives_a_rerun_that_is_stopped_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("ucr");
        for (name, shift) in [("A_TRAIN.ts", 0), ("A_TEST.ts", 1)] {
            let head = "@problemName t\n@timeStamps false\n@univariate true\n@equalLength true\n@seriesLength 8\n@classLabel true x y\n@data\n";
            let sample = |number: usize| {
                let value = |step: usize| ((number + 1) * (step + 3) * 7 + 5 * shift) % 97;
                let value = |step: usize| value(step).to_string();
                let values: Vec<String> = (0..8).map(value).collect();
                format!("{}:{}\n", values.join(","), ["x", "y"][number % 2])
            };
            let text: String = (0..12).map(sample).collect();
            std::fs::write(folder.path().join(name), format!("{head}{text}")).unwrap();
        }
        report(&["A"], 1).write(&output).unwrap();
        let scores = || std::fs::read_to_string(output.join("scores.json")).unwrap();
        let before = scores();
        let training = UcrTraining { steps: 20, batch_size: 4, learning_rate: 1e-3 };
        let config = UcrConfig {
            seeds: 1,
            encoder: DilatedConfig { hidden: 4, output: 4, blocks: 1 },
            levels: vec![1],
            kernels: 84,
            pretraining: training,
            finetuning: training,
            ..UcrConfig::default()
        };
        let device = ChosenDevice::named("cpu");
        let run = |output: &Path| {
            let stop = Arc::new(AtomicBool::new(true));
            evaluate_ucr(folder.path(), output, &config, &device, &stop, &Silent).unwrap()
        };
        let finished = run(&output);
        assert!(finished.interrupted && finished.page.is_none(), "{finished:?}");
        assert_eq!(scores(), before);
        let empty = folder.path().join("other");
        assert!(run(&empty).page.is_none() && !empty.join("report.html").exists());
    }

    #[test]
    fn settings_out_of_range_are_refused_and_the_default_is_not() {
        let default = UcrConfig::default;
        default().validate().unwrap();
        assert!(UcrConfig { seeds: 0, ..default() }.validate().is_err());
        assert!(UcrConfig { levels: vec![0], ..default() }.validate().is_err());
        assert!(UcrConfig { kernels: 83, ..default() }.validate().is_err());
        assert!(UcrConfig { strengths: vec![-1.0], ..default() }.validate().is_err());
        assert!(UcrConfig { ridge: vec![], ..default() }.validate().is_err());
        let none = UcrTraining { steps: 0, ..default().pretraining };
        assert!(UcrConfig { pretraining: none, ..default() }.validate().is_err());
        let text = toml::to_string(&default()).unwrap();
        assert_eq!(toml::from_str::<UcrConfig>(&text).unwrap(), default());
    }

    #[test]
    fn policies_come_from_the_file_and_from_settings_over_it_and_nothing_else_does() {
        let file = "[data.checks]\nnot_finite = \"fill\"\nlongest_fill = 3\n";
        let config: UcrConfig = toml::from_str(file).unwrap();
        let with = |settings: &[&str]| {
            let settings: Vec<String> = settings.iter().map(|text| (*text).to_owned()).collect();
            config.clone().with(&settings)
        };
        assert_eq!(with(&[]).unwrap(), config);
        let both = with(&["data.checks.constant=keep", "data.checks.longest_fill=7"]).unwrap();
        let expected = CheckPolicies {
            not_finite: Policy::Fill,
            constant: ConstantPolicy::Keep,
            longest_fill: 7,
            ..CheckPolicies::default()
        };
        assert_eq!(both, UcrConfig { data: UcrData { checks: expected }, ..config.clone() });
        let written = toml::to_string(&both).unwrap();
        assert_eq!(toml::from_str::<UcrConfig>(&written).unwrap(), both, "{written}");
        let refused = |setting: &str| with(&[setting]).unwrap_err().to_string();
        assert!(refused("seeds=3").contains("name it with --config"));
        assert!(refused("data.checks.not_finite=mend").contains("unknown choice `mend`"));
    }
}
