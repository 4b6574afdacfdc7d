//! The part of the report that all kinds of run have: what the log tells, the machine, advice and
//! settings.

use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use firebox_core::count;
use firebox_eval::{Advice, Chart, Fact, Line, Machine, Measure, Report, Table};
use firebox_loader::Resident;
use firebox_monitor::{
    Faster, Scaling, SettingKeys, Training, Usage, advice_on_trainings, timings_of_trainings,
};
use firebox_train::{
    CHECKPOINT_FOLDER, DIVISIONS_FILE, DynamicScale, History, LossScale, Optimizer, Outcome,
    TrainConfig,
};

use crate::chain::Work;
use crate::error::{PipelineError, at};
use crate::folder::{Attempts, PIPELINE, replay};
use crate::online::online;
use crate::stages::{Run, summary_of, training};
use crate::{Kind, PipelineConfig, sub};

/// Where the report lies and what its first line says.
pub(crate) struct Reported {
    pub(crate) page: PathBuf,
    pub(crate) verdict: String,
}

/// Completes a report by everything that the run's events tell and by its settings, and writes it.
pub(crate) fn complete(
    run: &Run<'_>,
    work: &Work<'_>,
    mut report: Report,
    profile: Option<Table>,
) -> Result<Reported, PipelineError> {
    let path = work.path;
    let mut usage = Usage::default();
    let attempts = replay(path, &mut |event| {
        report.record(event);
        usage.record(event);
    })?;
    let trainings = trainings(run, work, &usage);
    report.machine = machine(&usage, &trainings, &run.device.backend);
    report.advice = advice(&usage, &trainings, run, path);
    settle(&mut report, &attempts, path);
    let settings = path.join(PIPELINE);
    report.configuration = std::fs::read_to_string(&settings).map_err(at(&settings))?;
    report.reasons = work.reasons.clone();
    report.profile = profile;
    report.curves.clip_norm = run.config.train.clip;
    let common = [
        Fact::new("batch", batch(run.config, run.config.loader.batch_size)),
        Fact::new("precision", run.config.run.precision.to_string()),
        Fact::new("seed", run.config.run.seed.to_string()),
    ];
    for fact in common {
        // A kind with several of them has said so itself.
        if report.facts.iter().all(|own| own.name != fact.name) {
            report.facts.push(fact);
        }
    }
    report.facts.extend(attempts.told().map(|said| Fact::new("attempts", said)));
    report.created = now();
    let written = report.write(path)?;
    Ok(Reported { page: written.html, verdict: report.verdict.sentence })
}

/// How large batches of so many samples are.
pub(crate) fn batch(config: &PipelineConfig, size: usize) -> String {
    let steps = if config.pipeline == Kind::Text { "token" } else { "step" };
    match config.loader.tokens {
        0 => size.to_string(),
        tokens => format!("{} with their padding", count(tokens as u64, steps)),
    }
}

/// This moment, as text.
pub(crate) fn now() -> String {
    let now = time::OffsetDateTime::now_utc();
    // A reader of a page needs no parts of a second.
    let now = now.replace_nanosecond(0).unwrap_or(now);
    now.format(&time::format_description::well_known::Rfc3339).unwrap_or_default()
}

/// What the machine did, and how well it was used.
fn machine(usage: &Usage, trainings: &[Training], backend: &str) -> Machine {
    let on_gpu = backend != "cpu";
    let note = match usage.utilisation(on_gpu) {
        Some(utilisation) => Some(utilisation.sentence),
        None if on_gpu => Some(
            "How busy the GPU was is not known: no driver that can be asked told of it, or there are several and it is not known which of them it was."
                .to_owned(),
        ),
        None => None,
    };
    let measures = usage.measures().into_iter().map(|measure| Measure {
        name: measure.name,
        unit: measure.unit.to_owned(),
        training_mean: measure.training_mean,
        training_peak: measure.training_peak,
        peak: measure.peak,
    });
    let went = |whose: &str, timings: Vec<(String, String)>| {
        let parts = timings.iter().map(|(name, value)| format!("{name} {value}"));
        let said =
            format!("Where the time of {whose} went: {}.", parts.collect::<Vec<_>>().join("; "));
        Some(said).filter(|_| !timings.is_empty())
    };
    let own = went("training", usage.timings(on_gpu));
    let timed = trainings.iter().filter(|training| training.usage.is_timed());
    let whose = match timed.count() {
        1 => "the training within the run".to_owned(),
        count => format!("{count} trainings within the run"),
    };
    let within = went(&whose, timings_of_trainings(trainings));
    Machine {
        notes: note.into_iter().chain(own).chain(within).collect(),
        measures: measures.collect(),
        memory: memory(usage),
    }
}

/// Memory over time, by what it was taken from.
fn memory(usage: &Usage) -> Option<Chart> {
    let megabytes = |bytes: f64| bytes / 1e6;
    let curves = usage.memory_over_time().into_iter();
    let lines: Vec<Line> = curves
        .map(|curve| Line {
            name: curve.name,
            points: curve.points.into_iter().map(|(at, bytes)| (at, megabytes(bytes))).collect(),
        })
        .collect();
    (!lines.is_empty()).then(|| Chart::Lines {
        title: "Memory in MB, in use and reserved".to_owned(),
        axis: "seconds".to_owned(),
        value: "MB".to_owned(),
        lines,
    })
}

/// What the histories of the trainings within a run tell, of which the log of all is given.
fn trainings(run: &Run<'_>, work: &Work<'_>, all: &Usage) -> Vec<Training> {
    let parts = work.parts.lock().unwrap_or_else(PoisonError::into_inner);
    let told = parts.iter().filter_map(|part| {
        // Advice and times are all that a history that cannot be read costs.
        let history = History::read(&sub::path(work, &part.name)).ok()?;
        let mut usage = Usage::default();
        history.tell(&mut |event| usage.record(event));
        usage.on_the_gpu_of(all);
        let settings = settings(run, &part.config, part.batch_size, part.keys);
        let divided = is_divided(&sub::path(work, &part.name));
        let stopped_early = part.outcome == Outcome::StoppedEarly;
        let settings = firebox_monitor::Settings { divided, stopped_early, ..settings };
        Some(Training { name: part.name.clone(), usage, settings })
    });
    told.collect()
}

/// What stood out in the run in this folder and in the trainings within it, and the settings that would change it.
fn advice(usage: &Usage, trainings: &[Training], run: &Run<'_>, path: &Path) -> Vec<Advice> {
    let keys = setting_keys(run.config);
    let own = settings(run, &training(run.config), run.config.loader.batch_size, keys);
    // Of a run that is made of trainings with batches of their own, `loader.batch_size` says nothing.
    let own = match trainings.iter().find(|_| !usage.has_steps()) {
        Some(training) => training.settings.clone(),
        None => {
            let trained = run.config.pipeline.chain().own_keys(run.config, run.device, run.keys);
            // What a key cannot be made of has ended the run before.
            let ended = trained.ok().and_then(|keys| summary_of(path, &keys));
            let ended = ended.map(|summary| summary.outcome);
            let stopped_early = ended == Some(Outcome::StoppedEarly);
            firebox_monitor::Settings { divided: is_divided(path), stopped_early, ..own }
        }
    };
    let found = firebox_monitor::advice(usage, &own).into_iter();
    let found = found.chain(advice_on_trainings(trainings));
    found.map(|found| Advice { finding: found.finding, setting: found.setting }).collect()
}

/// Whether the training in this folder had too little memory for whole batches.
fn is_divided(folder: &Path) -> bool {
    folder.join(DIVISIONS_FILE).is_file()
}

/// Where the settings of a training are written that has none of its own.
pub(crate) fn setting_keys(config: &PipelineConfig) -> SettingKeys {
    let rate = match training(config).optimizer {
        Optimizer::AdamW(_) => "train.optimizer.adamw.learning_rate",
        Optimizer::Sgd(_) => "train.optimizer.sgd.learning_rate",
    };
    SettingKeys { rate, ..SettingKeys::default() }
}

/// What would make batches sooner, and not be refused.
fn faster(config: &PipelineConfig) -> Faster {
    let is_drawn = online(&config.augment).is_some();
    match config.pipeline {
        // Its classifiers draw versions in each epoch, whatever `augment.mode` is.
        Kind::Finetune => Faster::Nothing,
        Kind::Pretrain if is_drawn => Faster::Cached,
        // Others store none.
        _ if is_drawn => Faster::Nothing,
        _ if config.loader.resident != Resident::Memory => Faster::Memory,
        _ => Faster::Nothing,
    }
}

/// What sizes the batches of a training, the least that it may be, and where it is written: `loader.tokens` has the
/// place of any number of samples.
fn sized(
    config: &PipelineConfig,
    batch_size: usize,
    keys: SettingKeys,
) -> (usize, usize, SettingKeys) {
    match config.loader.tokens {
        0 => (batch_size, 1, keys),
        tokens => {
            // A batch holds the longest sample. How long texts and whole series are is known with them.
            let known = config.pipeline != Kind::Text && !config.window.whole;
            let least = if known { config.window.length } else { 1 };
            (tokens, least, SettingKeys { batch_size: "loader.tokens", ..keys })
        }
    }
}

/// The settings of a training that advice is about.
fn settings(
    run: &Run<'_>,
    train: &TrainConfig,
    batch_size: usize,
    keys: SettingKeys,
) -> firebox_monitor::Settings {
    let scaling = match train.loss_scale {
        LossScale::Auto | LossScale::Off => Scaling::Off,
        LossScale::Static(scale) => Scaling::Static(scale),
        LossScale::Dynamic(DynamicScale { initial, interval, floor, .. }) => {
            Scaling::Dynamic { initial, interval, floor }
        }
    };
    let (batch_size, least_batch, keys) = sized(run.config, batch_size, keys);
    let noted = run.shared.noted();
    firebox_monitor::Settings {
        on_gpu: run.device.backend != "cpu",
        batch_size,
        least_batch,
        // A batch of so many steps is of no number of samples.
        samples: noted.samples.filter(|_| run.config.loader.tokens == 0),
        divided: false,
        workers: run.config.loader.workers,
        prefetch: run.config.loader.prefetch,
        pins: run.config.loader.pin,
        faster: faster(run.config),
        blocks: noted.blocks,
        padding: noted.padding,
        keys,
        learning_rate: train.optimizer.learning_rate(),
        scaling,
        clip: train.clip,
        clip_value: train.clip_value,
        epochs: train.epochs,
        early_stopping: train.early_stopping.is_some(),
        stopped_early: false,
        least_improvement: train.early_stopping.map_or(0.0, |early| early.min_delta),
        resume_every: train.checkpoint.resume_every,
    }
}

/// What the events of several attempts do not say by themselves: the time of all of them together,
/// and which checkpoints are still there.
fn settle(report: &mut Report, attempts: &Attempts, path: &Path) {
    report.seconds = report.seconds.max(attempts.seconds);
    for (name, seconds) in &attempts.cut {
        if let Some(stage) = report.stages.iter_mut().find(|stage| stage.name == *name) {
            stage.seconds += seconds;
        }
    }
    let completed = report.checkpoints.len();
    for row in &mut report.checkpoints {
        // The run folder may have been moved since.
        if let Some(name) = Path::new(&row.path).file_name() {
            row.path = path.join(CHECKPOINT_FOLDER).join(name).display().to_string();
        }
    }
    report.checkpoints.retain(|row| Path::new(&row.path).is_dir());
    report.checkpoints_removed = completed - report.checkpoints.len();
    if attempts.unreadable > 0 {
        report.warnings.push(format!(
            "{} lines of events.jsonl cannot be read; the curves and times of this report lack what they told",
            attempts.unreadable
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_make_batches_sooner_is_not_refused() {
        let of = |kind: &str, more: &str| {
            let text = format!("pipeline = '{kind}'\nlabels = 'last'\n{more}");
            faster(&toml::from_str(&text).unwrap())
        };
        let online = "[augment]\nmode = 'online'\n";
        assert_eq!(of("pretrain", ""), Faster::Memory);
        assert_eq!(of("pretrain", "[loader]\nresident = 'memory'\n"), Faster::Nothing);
        assert_eq!(of("pretrain", online), Faster::Cached);
        // Where nothing is drawn, windows may lie in memory.
        assert_eq!(of("pretrain", "[augment]\nmode = 'online'\nversions = 0\n"), Faster::Memory);
        for kind in ["multitimeframe", "forecast", "pseudolabel"] {
            assert_eq!(of(kind, online), Faster::Nothing, "{kind} stores no versions");
            assert_eq!(of(kind, ""), Faster::Memory);
        }
        // With and without its table, of which `versions` are 1 by default.
        for table in ["", "[finetune]\n", online] {
            assert_eq!(of("finetune", table), Faster::Nothing);
        }
    }

    #[test]
    fn batches_of_so_many_steps_are_advised_by_their_own_key() {
        let of = |text: &str, keys: SettingKeys| {
            let config: PipelineConfig = toml::from_str(text).unwrap();
            let (size, least, keys) = sized(&config, 64, keys);
            (size, least, keys.batch_size)
        };
        let usual = SettingKeys::default();
        let arm = SettingKeys { batch_size: "finetune.batch_size", ..usual };
        let windows = "[window]\nlength = 60\n";
        assert_eq!(of(windows, usual), (64, 1, "loader.batch_size"));
        assert_eq!(of(windows, arm), (64, 1, "finetune.batch_size"));
        let tokens = "[loader]\ntokens = 1200\n";
        for keys in [usual, arm] {
            let found = of(&format!("{windows}{tokens}"), keys);
            assert_eq!(found, (1200, 60, "loader.tokens"));
        }
        // How long the longest is, is known with them.
        let whole = format!("{tokens}{windows}whole = true");
        assert_eq!(of(&whole, usual), (1200, 1, "loader.tokens"));
        let texts = format!("pipeline = 'text'\n{tokens}[text]\npath = 'a.csv'\n[model.bert]\n");
        assert_eq!(of(&texts, usual), (1200, 1, "loader.tokens"));
    }
}
