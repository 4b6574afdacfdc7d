//! The evaluation of a pre-trained encoder on held-out windows, beside its baselines, and what the
//! report says of it and of its data.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use firebox_core::{Labels, Split, WindowList, count, quoted};
use firebox_data::{Checks, Ingested};
use firebox_eval::{
    Answers, EmbeddingView, Evaluation, Fact, Fill, Head, MaskedSample, Metric, Outcome, Report,
    Sources, Subject, Table, ValidationProbe, WindowErrors, embed, evaluate_encoder, reconstruct,
};
use firebox_loader::{LoadError, NormalisedWindows, Sample, Source};

use crate::error::PipelineError;
use crate::feed::effective;
use crate::score::{Judge, Score};
use crate::stages::{Run, Windows, written};
use crate::test_table::FILE;
use crate::together::{as_labelled, together};
use crate::zoo::Pretrainable;

/// Masked windows that the report draws.
const SHOWN_WINDOWS: usize = 6;
/// Embeddings that the report draws, from all over the test windows.
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

    /// What was predicted of each labelled test window, if any was.
    pub(crate) fn answers(&self) -> Option<&Answers> {
        self.evaluation.as_ref().map(|evaluation| &evaluation.answers)
    }

    /// How well each masked test window was restored.
    pub(crate) fn errors(&self) -> &[WindowErrors] {
        &self.masked.errors
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

    /// What the report says of it.
    pub(crate) fn report(self, run: &Run<'_>, title: &str, windows: &Windows) -> Report {
        let Self { evaluation, masked, embedding } = self;
        let is_told = evaluation.is_some() || !masked.errors.is_empty();
        let verdict = firebox_eval::verdict(evaluation.as_ref(), masked.reconstruction.as_ref());
        let mut report = Report::new(title, "", verdict);
        report.judge(evaluation, masked.reconstruction);
        if report.evaluation.is_none() && run.config.labels != Labels::None {
            let (found, is_labelled) = unscored(&windows.parts);
            let sentence = report.verdict.sentence.replacen("There are no labels", found, 1);
            report.verdict.sentence = sentence;
            if is_labelled {
                report.verdict.outcome = Outcome::NotMeasured;
                report.unscored = found.to_owned();
            }
        }
        report.masked_windows = masked.windows;
        report.embedding = Some(embedding);
        report.channels = channel_names(windows);
        report.data = data_tables(windows);
        report.facts = vec![
            Fact::new("training windows", windows.parts.train.len().to_string()),
            Fact::new("augmented versions", effective(&run.config.augment).versions.to_string()),
        ];
        if is_told {
            let file = format!("`{FILE}` beside this page");
            report.facts.push(Fact::new("what was measured of each test window", file));
        }
        report
    }
}

/// Why there are no scores although labels are asked for, and whether it is not for want of any.
fn unscored(parts: &Split) -> (&'static str, bool) {
    let is_labelled =
        |part: &firebox_core::Windows| part.windows().iter().any(|window| window.label.is_some());
    let of_parts = [is_labelled(&parts.train), is_labelled(&parts.test)];
    match of_parts {
        _ if parts.test.is_empty() => ("There is no test part", true),
        [true, false] => ("No test window has a label", true),
        [false, true] => ("No training window has a label", true),
        [true, true] | [false, false] => {
            ("There are no labels in the training or the test part", false)
        }
    }
}

/// Measures a trained model: probes where there are labels, reconstruction always.
pub(crate) fn measure<M: Pretrainable>(
    run: &Run<'_>,
    windows: &Windows,
    model: &M,
) -> Result<Measured, PipelineError> {
    let (config, device) = (&run.config.evaluate, &run.device.device);
    let (parts, normaliser) = (&windows.parts, &windows.normaliser);
    let stop = || Arc::clone(run.stop);
    let normalised = |windows| NormalisedWindows::new(windows, normaliser.clone());
    let train = NormalisedWindows::new(parts.train.clone(), normaliser.clone());
    let mut sources = Sources {
        train: Arc::new(Stoppable { source: train, stop: stop() }),
        validation: Arc::new(Stoppable {
            source: normalised(parts.validation.clone()),
            stop: stop(),
        }),
        test: Arc::new(Stoppable { source: normalised(parts.test.clone()), stop: stop() }),
        held_out: Some(parts.test.clone()),
        channels: channel_names(windows),
        together: together(run.config, windows, &parts.test),
    };
    let masked = reconstruct(config, model, &sources, SHOWN_WINDOWS, device, run.listener)?;
    // All windows were restored, and probes are judged by those with a class.
    sources.together = as_labelled(&parts.test, |test| together(run.config, windows, test));
    let channels = sources.channels.len();
    let random = |seed| match run.stop.load(Ordering::Relaxed) {
        true => Err(PipelineError::Interrupted),
        false => run.untrained::<M>(seed, channels),
    };
    let evaluation =
        evaluate_encoder(config, model, random, &sources, device, run.stop, run.listener)?;
    let embeddings = embed(model, &sources.test, SHOWN_EMBEDDINGS, config.batch_size, device)?;
    if run.stop.load(Ordering::Relaxed) {
        return Err(PipelineError::Interrupted);
    }
    Ok(Measured { evaluation, masked, embedding: embeddings.view(parts.test.classes()) })
}

/// Scores encoders on validation windows by a linear probe, if a search wants that.
pub(crate) fn judge<'a, M: Pretrainable>(
    run: &'a Run<'_>,
    windows: &Windows,
) -> Result<Option<Judge<'a, M>>, PipelineError> {
    let wanted = run.wanted;
    if wanted.scores.is_empty() {
        return Ok(None);
    }
    let (parts, normaliser) = (&windows.parts, &windows.normaliser);
    let stop = || Arc::clone(run.stop);
    let train = NormalisedWindows::new(parts.train.clone(), normaliser.clone());
    let validation = NormalisedWindows::new(parts.validation.clone(), normaliser.clone());
    let train: Arc<dyn Source> = Arc::new(Stoppable { source: train, stop: stop() });
    let validation: Arc<dyn Source> = Arc::new(Stoppable { source: validation, stop: stop() });
    let probe = ValidationProbe::new(&run.config.evaluate, &train, &validation)?;
    let Some(probe) = probe else { return Err(PipelineError::NoLabels) };
    let of = move |model: &M| -> Result<Vec<f64>, PipelineError> {
        let metrics = probe.confusion(model, &run.device.device, run.stop)?.metrics();
        let value = |score: &Score| match score {
            Score::Accuracy => metrics.accuracy,
            Score::F1 => metrics.macro_f1,
            Score::R2 => f64::NAN,
        };
        Ok(wanted.scores.iter().map(value).collect())
    };
    Ok(Some(Judge { wanted, of: Box::new(of) }))
}

/// Windows that can be read until the run is asked to stop.
pub(crate) struct Stoppable<S> {
    pub(crate) source: S,
    pub(crate) stop: Arc<AtomicBool>,
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

/// Series that these windows are of, each counted as the unit that it belongs to.
pub(crate) fn units_of(windows: &WindowList, unit: impl Fn(u32) -> usize) -> usize {
    let mut units: Vec<usize> = Vec::new();
    for window in windows {
        // Windows of one series mostly stand together.
        let own = unit(window.series);
        if units.last() != Some(&own) {
            units.push(own);
        }
    }
    units.sort_unstable();
    units.dedup();
    units.len()
}

pub(crate) fn channel_names(windows: &Windows) -> Vec<String> {
    windows.ingested.set.channels().iter().map(|channel| channel.name.clone()).collect()
}

/// What is said of windows: their split, their channels, and the defects of the data.
pub(crate) fn data_tables(windows: &Windows) -> Vec<Table> {
    let (channels, defects) = (channel_table(&windows.ingested), defect_table(&windows.ingested));
    [Some(split_table(windows)), class_table(windows), Some(channels), Some(defects)]
        .into_iter()
        .flatten()
        .collect()
}

/// Classes of which a table has a row; more would be read by nobody.
const CLASSES: usize = 100;

/// How many windows of each part have each class; none where no window has one.
fn class_table(windows: &Windows) -> Option<Table> {
    let Split { train, validation, test, .. } = &windows.parts;
    let parts: [&firebox_core::Windows; 3] = [train, validation, test];
    let classes = train.classes();
    let count = |part: &&firebox_core::Windows| {
        let mut counts = vec![0_usize; classes.len()];
        for label in part.windows().iter().filter_map(|window| window.label) {
            if let Some(count) = counts.get_mut(label as usize) {
                *count += 1;
            }
        }
        counts
    };
    let counts: Vec<Vec<usize>> = parts.iter().map(count).collect();
    if counts.iter().flatten().all(|count| *count == 0) {
        return None;
    }
    let of = |class: usize| counts.iter().map(move |part| part[class]);
    let row = |class: usize| {
        let counts = of(class).map(|count| count.to_string());
        std::iter::once(classes[class].clone()).chain(counts).collect()
    };
    let rows: Vec<Vec<String>> = (0..classes.len().min(CLASSES)).map(row).collect();
    let untested: Vec<&str> = (0..classes.len())
        .filter(|class| of(*class).any(|count| count > 0) && counts[2][*class] == 0)
        .map(|class| classes[class].as_str())
        .collect();
    let mut notes = vec![];
    if !untested.is_empty() && !test.is_empty() {
        notes.push(format!(
            "No test window is of {}: scores say nothing of that, and macro averages count 0 for one that is answered.",
            quoted(&untested, 10)
        ));
    }
    if classes.len() > CLASSES {
        notes.push(format!("The first {CLASSES} of {} classes.", classes.len()));
    }
    let columns = ["class", "training", "validation", "test"];
    Some(table("Classes", notes.join(" "), &columns, rows))
}

pub(crate) fn table(title: &str, note: String, columns: &[&str], rows: Vec<Vec<String>>) -> Table {
    let columns = columns.iter().map(|column| (*column).to_owned()).collect();
    Table { title: title.to_owned(), note, columns, rows }
}

fn split_table(windows: &Windows) -> Table {
    let parts = &windows.parts;
    let set = &windows.ingested.set;
    let units = (set.groups() > 0).then(|| set.units());
    let row = |name: &str, part: &firebox_core::Windows| {
        let labelled = part.windows().iter().filter(|window| window.label.is_some()).count();
        let mut row = vec![name.to_owned(), part.len().to_string(), labelled.to_string()];
        let groups = |units: &Vec<usize>| units_of(part.windows(), |series| units[series as usize]);
        row.extend(units.as_ref().map(|units| groups(units).to_string()));
        row
    };
    let rows = vec![
        row("training", &parts.train),
        row("validation", &parts.validation),
        row("test", &parts.test),
    ];
    // Data without times counts its steps.
    let clock = windows.ingested.checks.span.is_some();
    let at = |time| if clock { moment(time) } else { format!("step {time}") };
    let boundaries = boundaries(parts, at);
    let note = format!("By {}: {}.{boundaries}", written(&windows.rule), windows.chosen);
    let columns = ["part", "windows", "labelled", "groups"];
    table("Split", note, &columns[..if units.is_some() { 4 } else { 3 }], rows)
}

/// Where the parts of a split by time begin that have windows, and how many windows are in none.
fn boundaries(parts: &Split, at: impl Fn(i64) -> String) -> String {
    let Some([validation, test]) = parts.boundaries else { return String::new() };
    let begin = match [parts.validation.is_empty(), parts.test.is_empty()] {
        [false, false] => {
            format!("Validation begins at {}, the test at {}.", at(validation), at(test))
        }
        [true, false] => format!("The test begins at {}.", at(test)),
        [false, true] => format!("Validation begins at {}.", at(validation)),
        [true, true] => return String::new(),
    };
    let left_out = match parts.left_out {
        1 => "1 window lies across a boundary or in the gap after it and is left out".to_owned(),
        windows => format!(
            "{windows} windows lie across a boundary or in the gap after it and are left out"
        ),
    };
    format!(" {begin} {left_out}.")
}

/// A time as text.
pub(crate) fn moment(microseconds: i64) -> String {
    let nanoseconds = i128::from(microseconds) * 1_000;
    time::OffsetDateTime::from_unix_timestamp_nanos(nanoseconds)
        .ok()
        .and_then(|time| time.format(&time::format_description::well_known::Rfc3339).ok())
        .unwrap_or_else(|| microseconds.to_string())
}

pub(crate) fn channel_table(ingested: &Ingested) -> Table {
    let checks = &ingested.checks;
    let rows = ingested
        .set
        .channels()
        .iter()
        .map(|channel| vec![channel.name.clone(), format!("{:?}", channel.role).to_lowercase()])
        .collect();
    let made = checks.timeframes.as_ref().map(|_| {
        let runs = ingested.set.series().iter().map(|series| series.segments.len());
        [ingested.set.steps() as u64, runs.sum::<usize>() as u64]
    });
    table("Channels", kept(checks, made), &["channel", "role"], rows)
}

/// What was read and kept. `made` are the steps that `data.timeframes` made of that, if it did, and their runs.
fn kept(checks: &Checks, made: Option<[u64; 2]>) -> String {
    let kept = if made.is_some() { "row" } else { "step" };
    let interval = checks.interval.map_or(String::new(), |interval| {
        let how = if checks.interval_declared { "declared" } else { "the most frequent" };
        format!(" One {kept} every {interval} ({how}).")
    });
    let made = made.map_or(String::new(), |[steps, runs]| {
        format!(
            " Of these `data.timeframes` makes {} in {} without a gap.",
            count(steps, "step"),
            count(runs, "run")
        )
    });
    format!(
        "{} read, {} kept in {} series and {} without a gap.{interval}{made}",
        count(checks.rows, "row"),
        count(checks.steps, kept),
        checks.series,
        count(checks.segments, "run")
    )
}

pub(crate) fn defect_table(ingested: &Ingested) -> Table {
    let findings = &ingested.checks.findings;
    let rows: Vec<Vec<String>> = findings
        .iter()
        .map(|finding| {
            vec![
                finding.to_string(),
                finding.count.to_string(),
                finding.series.to_string(),
                finding.action.to_string(),
            ]
        })
        .collect();
    let note = if rows.is_empty() { "No defect was found.".to_owned() } else { String::new() };
    table("Data checks", note, &["found", "count", "series", "done about it"], rows)
}

#[cfg(test)]
mod tests {
    use firebox_core::{
        Channel, Role, Series, SeriesSet, SplitRule, StepLabels, WindowRule, split,
    };

    use super::*;

    /// One series of 200 steps of one class, in windows of 10.
    fn parts(validation: f64, test: f64, labels: &Labels) -> Split {
        let values = (0..200).map(f64::from).collect();
        let labelled = StepLabels::Whole(0);
        let series = Series { labels: labelled, ..Series::regular("a", 0, 1, values, 1) };
        let channels = vec![Channel::new("x", Role::Other)];
        let set = SeriesSet::new(channels, vec!["idle".to_owned()], vec![series]).unwrap();
        let rule = WindowRule { length: 10, stride: 10, whole: false };
        let by_time = SplitRule::Time { validation, test, gap: Some(0) };
        split(&Arc::new(set), &rule, &by_time, labels).unwrap()
    }

    #[test]
    fn parts_without_a_window_begin_nowhere() {
        let said = |validation, test| {
            boundaries(&parts(validation, test, &Labels::None), |time| format!("step {time}"))
        };
        let none = "0 windows lie across a boundary or in the gap after it and are left out.";
        let both = format!(" Validation begins at step 140, the test at step 160. {none}");
        assert_eq!(said(0.1, 0.2), both);
        assert_eq!(said(0.0, 0.2), format!(" The test begins at step 160. {none}"));
        assert_eq!(said(0.2, 0.0), format!(" Validation begins at step 160. {none}"));
        assert_eq!(said(0.0, 0.0), "");
    }

    #[test]
    fn rows_are_not_called_steps_where_timeframes_are_made_of_them() {
        let interval = firebox_data::Interval::from_microseconds(60_000_000);
        let checks = Checks {
            rows: 28_800,
            steps: 28_749,
            series: 1,
            segments: 7,
            interval,
            ..Checks::default()
        };
        let read = "28800 rows read, 28749";
        assert_eq!(
            kept(&checks, None),
            format!(
                "{read} steps kept in 1 series and 7 runs without a gap. One step every 1min (the most frequent)."
            )
        );
        let of_bars = "Of these `data.timeframes` makes 1397 steps in 4 runs without a gap.";
        assert_eq!(
            kept(&checks, Some([1397, 4])),
            format!(
                "{read} rows kept in 1 series and 7 runs without a gap. One row every 1min (the most frequent). {of_bars}"
            )
        );
    }

    #[test]
    fn labels_are_not_denied_where_the_test_part_is_what_is_missing() {
        let labelled = parts(0.1, 0.0, &Labels::Last);
        assert_eq!(unscored(&labelled), ("There is no test part", true));
        let unlabelled = parts(0.1, 0.2, &Labels::None);
        let neither = "There are no labels in the training or the test part";
        assert_eq!(unscored(&unlabelled), (neither, false));
        let mut mixed = parts(0.1, 0.2, &Labels::Last);
        mixed.test = unlabelled.test.clone();
        assert_eq!(unscored(&mixed), ("No test window has a label", true));
        mixed = parts(0.1, 0.2, &Labels::Last);
        mixed.train = unlabelled.train;
        assert_eq!(unscored(&mixed), ("No training window has a label", true));
    }
}
