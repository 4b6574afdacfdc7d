//! The evaluation stage and the report: the trained model on held-out windows, beside its
//! baselines.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use firebox_core::Labels;
use firebox_eval::{
    Advice, EmbeddingView, Evaluation, Fact, Fill, Head, Machine, MaskedSample, Measure, Metric,
    Reason, Report, Sources, Subject, Table, embed, evaluate_encoder, reconstruct,
};
use firebox_loader::{LoadError, NormalisedWindows, Sample, Source};
use firebox_models::BiLstmMae;
use firebox_monitor::{Scaling, Usage};
use firebox_train::{CHECKPOINT_FOLDER, DynamicScale, LossScale, Optimizer};

use crate::error::{PipelineError, at};
use crate::folder::{Attempts, PIPELINE, replay};
use crate::stages::{Run, Windows, training, written};
use crate::{PipelineConfig, Prepared};

/// Masked windows that the report draws.
const SHOWN_WINDOWS: usize = 6;
/// Embeddings that the report draws, spread evenly over the test windows.
const SHOWN_EMBEDDINGS: usize = 2_000;

/// What was measured.
pub(crate) struct Measured {
    evaluation: Option<Evaluation>,
    masked: MaskedSample,
    embedding: EmbeddingView,
}

impl Measured {
    pub(crate) fn detail(&self) -> String {
        let labelled = self.evaluation.as_ref().map_or(0, |evaluation| evaluation.windows[2]);
        let masked = self.masked.reconstruction.as_ref().map_or(0, |errors| errors.windows);
        format!("{labelled} labelled and {masked} masked test windows")
    }

    /// What trackers compare runs by.
    pub(crate) fn scores(&self) -> Vec<(&'static str, f64)> {
        let own = self
            .evaluation
            .as_ref()
            .and_then(|evaluation| evaluation.score(Subject::PreTrained, Some(Head::Logistic)));
        let mut scores = Vec::new();
        if let Some(own) = own {
            let all = [
                ("test/accuracy", Metric::Accuracy),
                ("test/balanced_accuracy", Metric::BalancedAccuracy),
                ("test/macro_f1", Metric::MacroF1),
            ];
            scores.extend(all.map(|(name, metric)| (name, own.metric(metric).value)));
        }
        let model = self.masked.reconstruction.iter().flat_map(|errors| &errors.scores);
        let model = model.filter(|score| score.fill == Fill::Model);
        scores.extend(model.map(|m| ("test/reconstruction_error", m.mean_squared_error.value)));
        scores
    }
}

/// Measures a trained model: probes where there are labels, reconstruction always.
pub(crate) fn measure(
    run: &Run<'_>,
    windows: &Windows,
    model: &BiLstmMae,
) -> Result<Measured, PipelineError> {
    let (config, device) = (&run.config.evaluate, &run.device.device);
    let (parts, normaliser) = (&windows.parts, &windows.normaliser);
    let stop = || Arc::clone(run.stop);
    let normalised = |windows| NormalisedWindows::new(windows, normaliser.clone());
    let train = NormalisedWindows::new(parts.train.clone(), normaliser.clone());
    let sources = Sources {
        train: Arc::new(Stoppable { source: train, stop: stop() }),
        validation: Arc::new(Stoppable {
            source: normalised(parts.validation.clone()),
            stop: stop(),
        }),
        test: Arc::new(Stoppable { source: normalised(parts.test.clone()), stop: stop() }),
        channels: channel_names(windows),
        overlap: overlap(run.config),
    };
    let masked = reconstruct(config, model, &sources, SHOWN_WINDOWS, device, run.listener)?;
    let channels = sources.channels.len();
    let random = |seed| match run.stop.load(Ordering::Relaxed) {
        true => Err(PipelineError::Interrupted),
        false => run.untrained(seed, channels),
    };
    let evaluation = evaluate_encoder(config, model, random, &sources, device, run.listener)?;
    let embeddings = embed(model, &sources.test, SHOWN_EMBEDDINGS, config.batch_size, device)?;
    if run.stop.load(Ordering::Relaxed) {
        return Err(PipelineError::Interrupted);
    }
    Ok(Measured { evaluation, masked, embedding: embeddings.view(parts.test.classes()) })
}

/// Windows that can be read until the run is asked to stop.
struct Stoppable<S> {
    source: S,
    stop: Arc<AtomicBool>,
}

impl<S: Source> Source for Stoppable<S> {
    fn len(&self) -> usize {
        self.source.len()
    }

    fn shape(&self) -> [usize; 2] {
        self.source.shape()
    }

    fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(LoadError::Sample { index, source: Box::new(PipelineError::Interrupted) });
        }
        self.source.read(index, out)
    }

    fn classes(&self) -> &[String] {
        self.source.classes()
    }
}

/// Consecutive windows that share a step: they are not independent, and intervals must know it.
fn overlap(config: &PipelineConfig) -> usize {
    if config.window.whole { 1 } else { config.window.length.div_ceil(config.window.stride) }
}

fn channel_names(windows: &Windows) -> Vec<String> {
    windows.ingested.set.channels().iter().map(|channel| channel.name.clone()).collect()
}

/// Where the report lies and what its first line says.
pub(crate) struct Reported {
    pub(crate) page: PathBuf,
    pub(crate) verdict: String,
}

/// Writes the report of everything that the run's events tell, its settings and what was measured.
pub(crate) fn report(
    run: &Run<'_>,
    prepared: &Prepared,
    windows: &Windows,
    measured: Measured,
    reasons: &[Reason],
    profile: Option<Table>,
    path: &Path,
) -> Result<Reported, PipelineError> {
    let Measured { evaluation, masked, embedding } = measured;
    let verdict = firebox_eval::verdict(evaluation.as_ref(), masked.reconstruction.as_ref());
    let mut report = Report::new(prepared.name(), "", verdict);
    let mut usage = Usage::default();
    let attempts = replay(path, &mut |event| {
        report.record(event);
        usage.record(event);
    })?;
    report.machine = machine(&usage, &run.device.backend);
    report.advice = advice(&usage, run);
    settle(&mut report, &attempts, path);
    report.judge(evaluation, masked.reconstruction);
    if report.evaluation.is_none() && run.config.labels != Labels::None {
        let found = "There are no labels in the training or the test part";
        let sentence = report.verdict.sentence.replacen("There are no labels", found, 1);
        report.verdict.sentence = sentence;
    }
    report.masked_windows = masked.windows;
    report.embedding = Some(embedding);
    report.channels = channel_names(windows);
    report.data = vec![split_table(windows), channel_table(windows), defect_table(windows)];
    report.configuration =
        std::fs::read_to_string(path.join(PIPELINE)).map_err(at(&path.join(PIPELINE)))?;
    report.reasons = reasons.to_vec();
    report.profile = profile;
    report.curves.clip_norm = run.config.train.clip;
    report.facts = vec![
        Fact::new("training windows", windows.parts.train.len().to_string()),
        Fact::new("augmented versions", run.config.augment.versions.to_string()),
        Fact::new("batch", run.config.loader.batch_size.to_string()),
        Fact::new("precision", run.config.run.precision.to_string()),
        Fact::new("seed", run.config.run.seed.to_string()),
    ];
    if attempts.count > 1 {
        let said = format!("{}; times are summed over them", attempts.count);
        report.facts.push(Fact::new("attempts", said));
    }
    report.created = now();
    let written = report.write(path)?;
    Ok(Reported { page: written.html, verdict: report.verdict.sentence })
}

/// This moment, as text.
pub(crate) fn now() -> String {
    let now = time::OffsetDateTime::now_utc();
    now.format(&time::format_description::well_known::Rfc3339).unwrap_or_default()
}

/// What the machine did, and how well it was used.
fn machine(usage: &Usage, backend: &str) -> Machine {
    let on_gpu = backend != "cpu";
    let note = match usage.utilisation(on_gpu) {
        Some(utilisation) => Some(utilisation.sentence),
        None if on_gpu => Some(
            "How busy the GPU was is not known: no driver that can be asked told of it.".to_owned(),
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
    Machine { notes: note.into_iter().collect(), measures: measures.collect() }
}

/// What stood out, and the settings that would change it.
fn advice(usage: &Usage, run: &Run<'_>) -> Vec<Advice> {
    let (loader, train) = (&run.config.loader, training(run.config));
    let rate_key = match &train.optimizer {
        Optimizer::AdamW(_) => "train.optimizer.adamw.learning_rate",
        Optimizer::Sgd(_) => "train.optimizer.sgd.learning_rate",
    };
    let scaling = match train.loss_scale {
        LossScale::Auto | LossScale::Off => Scaling::Off,
        LossScale::Static(scale) => Scaling::Static(scale),
        LossScale::Dynamic(DynamicScale { interval, floor, .. }) => {
            Scaling::Dynamic { interval, floor }
        }
    };
    let settings = firebox_monitor::Settings {
        on_gpu: run.device.backend != "cpu",
        batch_size: loader.batch_size,
        workers: loader.workers,
        prefetch: loader.prefetch,
        rate_key,
        learning_rate: train.optimizer.learning_rate(),
        scaling,
        clip: train.clip,
        clip_value: train.clip_value,
        epochs: train.epochs,
        early_stopping: train.early_stopping.is_some(),
        resume_every: train.checkpoint.resume_every,
    };
    let found = firebox_monitor::advice(usage, &settings).into_iter();
    found.map(|found| Advice { finding: found.finding, setting: found.setting }).collect()
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

pub(crate) fn table(title: &str, note: String, columns: &[&str], rows: Vec<Vec<String>>) -> Table {
    let columns = columns.iter().map(|column| (*column).to_owned()).collect();
    Table { title: title.to_owned(), note, columns, rows }
}

fn split_table(windows: &Windows) -> Table {
    let parts = &windows.parts;
    let row = |name: &str, part: &firebox_core::Windows| {
        let labelled = part.windows().iter().filter(|window| window.label.is_some()).count();
        vec![name.to_owned(), part.len().to_string(), labelled.to_string()]
    };
    let rows = vec![
        row("training", &parts.train),
        row("validation", &parts.validation),
        row("test", &parts.test),
    ];
    // Data without times counts its steps.
    let clock = windows.ingested.checks.span.is_some();
    let at = |time| if clock { moment(time) } else { format!("step {time}") };
    let boundaries = parts.boundaries.map_or(String::new(), |[validation, test]| {
        format!(
            " Validation begins at {}, the test at {}. {} windows lie across a boundary or in the gap after it and are left out.",
            at(validation),
            at(test),
            parts.left_out
        )
    });
    let note = format!("By {}: {}.{boundaries}", written(&windows.rule), windows.chosen);
    table("Split", note, &["part", "windows", "labelled"], rows)
}

/// A time as text.
fn moment(microseconds: i64) -> String {
    let nanoseconds = i128::from(microseconds) * 1_000;
    time::OffsetDateTime::from_unix_timestamp_nanos(nanoseconds)
        .ok()
        .and_then(|time| time.format(&time::format_description::well_known::Rfc3339).ok())
        .unwrap_or_else(|| microseconds.to_string())
}

fn channel_table(windows: &Windows) -> Table {
    let checks = &windows.ingested.checks;
    let rows = windows
        .ingested
        .set
        .channels()
        .iter()
        .map(|channel| vec![channel.name.clone(), format!("{:?}", channel.role).to_lowercase()])
        .collect();
    let interval = checks.interval.map_or(String::new(), |interval| {
        let how = if checks.interval_declared { "declared" } else { "the most frequent" };
        format!(" One step every {interval} ({how}).")
    });
    let note = format!(
        "{} rows read, {} steps kept in {} series and {} runs without a gap.{interval}",
        checks.rows, checks.steps, checks.series, checks.segments
    );
    table("Channels", note, &["channel", "role"], rows)
}

fn defect_table(windows: &Windows) -> Table {
    let findings = &windows.ingested.checks.findings;
    let rows: Vec<Vec<String>> = findings
        .iter()
        .map(|finding| {
            vec![
                finding.to_string(),
                finding.count.to_string(),
                finding.series.to_string(),
                format!("{:?}", finding.action).to_lowercase(),
            ]
        })
        .collect();
    let note = if rows.is_empty() { "No defect was found.".to_owned() } else { String::new() };
    table("Data checks", note, &["found", "count", "series", "done about it"], rows)
}
