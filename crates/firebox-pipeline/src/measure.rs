//! The evaluation stage and the report: the trained model on held-out windows, beside its
//! baselines.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use firebox_eval::{
    EmbeddingView, Evaluation, Fact, MaskedSample, Reason, Report, Sources, Table, embed,
    evaluate_encoder, reconstruct,
};
use firebox_loader::NormalisedWindows;
use firebox_models::BiLstmMae;

use crate::error::{PipelineError, at};
use crate::folder::{PIPELINE, replay};
use crate::stages::{Run, Windows};
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
}

/// Measures a trained model: probes where there are labels, reconstruction always.
pub(crate) fn measure(
    run: &Run<'_>,
    windows: &Windows,
    model: &BiLstmMae,
) -> Result<Measured, PipelineError> {
    let (config, device) = (&run.config.evaluate, &run.device.device);
    let (parts, normaliser) = (&windows.parts, &windows.normaliser);
    let sources = Sources {
        train: Arc::new(NormalisedWindows::new(parts.train.clone(), normaliser.clone())),
        validation: Arc::new(NormalisedWindows::new(parts.validation.clone(), normaliser.clone())),
        test: Arc::new(NormalisedWindows::new(parts.test.clone(), normaliser.clone())),
        channels: channel_names(windows),
        overlap: overlap(run.config),
    };
    let masked = reconstruct(config, model, &sources, SHOWN_WINDOWS, device, run.listener)?;
    let channels = sources.channels.len();
    let random = |seed| run.untrained(seed, channels);
    let evaluation = evaluate_encoder(config, model, random, &sources, device, run.listener)?;
    let embeddings = embed(model, &sources.test, SHOWN_EMBEDDINGS, config.batch_size, device)?;
    Ok(Measured { evaluation, masked, embedding: embeddings.view(parts.test.classes()) })
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
    path: &Path,
) -> Result<Reported, PipelineError> {
    let Measured { evaluation, masked, embedding } = measured;
    let verdict = firebox_eval::verdict(evaluation.as_ref(), masked.reconstruction.as_ref());
    let mut report = Report::new(prepared.name(), "", verdict);
    replay(path, &mut |event| report.record(event))?;
    report.judge(evaluation, masked.reconstruction);
    report.masked_windows = masked.windows;
    report.embedding = Some(embedding);
    report.channels = channel_names(windows);
    report.data = vec![split_table(windows), channel_table(windows), defect_table(windows)];
    report.configuration =
        std::fs::read_to_string(path.join(PIPELINE)).map_err(at(&path.join(PIPELINE)))?;
    report.reasons = reasons.to_vec();
    report.curves.clip_norm = run.config.train.clip;
    report.facts = vec![
        Fact::new("training windows", windows.parts.train.len().to_string()),
        Fact::new("augmented versions", run.config.augment.versions.to_string()),
        Fact::new("batch", run.config.loader.batch_size.to_string()),
        Fact::new("precision", run.config.run.precision.to_string()),
        Fact::new("seed", run.config.run.seed.to_string()),
    ];
    report.created = time::OffsetDateTime::now_utc()
        .format(&time::format_description::well_known::Rfc3339)
        .unwrap_or_default();
    let written = report.write(path)?;
    Ok(Reported { page: written.html, verdict: report.verdict.sentence })
}

fn table(title: &str, note: String, columns: &[&str], rows: Vec<Vec<String>>) -> Table {
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
    let boundaries = parts.boundaries.map_or(String::new(), |[validation, test]| {
        format!("Validation begins at {}, the test at {}. ", moment(validation), moment(test))
    });
    let note = format!(
        "{boundaries}{} windows lie across a boundary or in the gap after it and are left out.",
        parts.left_out
    );
    table("Split", note, &["part", "windows", "labelled"], rows)
}

/// A time as text; data without times counts its steps.
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
