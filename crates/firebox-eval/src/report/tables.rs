//! The tables of a report as text, for the page and for the summary alike.

use super::{Report, Table};
use crate::text::{bytes, count, duration, grouped, percent, signed_points, significant};
use crate::verdict::{conclusion, percent_interval};
use crate::{Difference, Estimate, Evaluation, Head, Metric, Reconstruction, Score, Subject};

fn table<const N: usize>(title: &str, note: String, columns: [&str; N]) -> Table {
    Table {
        title: title.to_owned(),
        note,
        columns: columns.map(str::to_owned).to_vec(),
        rows: vec![],
    }
}

/// A subject with its head: `pre-trained encoder, linear probe`.
pub(super) fn score_name(score: &Score) -> String {
    named(score.subject, score.head)
}

fn named(subject: Subject, head: Option<Head>) -> String {
    match head {
        Some(head) => format!("{}, {}", subject.name(), head.name()),
        None => subject.name().to_owned(),
    }
}

pub(super) fn scores(evaluation: &Evaluation) -> Table {
    let [train, validation, test] = evaluation.windows;
    let blocks = match evaluation.block {
        ..=1 => String::new(),
        block if evaluation.units.is_some() => format!(
            " Windows of a series or group hang together and are new to the model, so the bootstrap draws whole ones, of {block} each in the mean."
        ),
        block => format!(
            " Windows that overlap, are of one series or moment, or have labels that persist hang together, so the bootstrap draws blocks of {block}."
        ),
    };
    let validated = match validation {
        0 => " windows, and their penalty chosen by cross-validation over them".to_owned(),
        _ => format!(
            " and {} validation windows, which also chose their penalty (where they are few: cross-validation over all)",
            grouped(validation as f64)
        ),
    };
    let intervals = match evaluation.has_intervals() {
        true => format!(
            "In parentheses the {} of {} bootstrap resamples.{blocks}",
            percent_interval(evaluation.confidence),
            grouped(f64::from(evaluation.resamples))
        ),
        false => "The test windows are too few for intervals.".to_owned(),
    };
    let note = format!(
        "Measured on {} of the test part; probes were fitted on {} training{validated}. {intervals}",
        count(test, "labelled window"),
        grouped(train as f64),
    );
    let columns = ["subject", "accuracy", "balanced accuracy", "macro F1", "weighted F1", "seeds"];
    let mut out = table("Scores", note, columns);
    for score in &evaluation.scores {
        let cell = |metric| score.metric(metric).with_interval(percent);
        let seeds = match score.spread {
            Some(spread) => {
                format!("{} (± {} points)", score.runs, crate::text::number(100.0 * spread, 1))
            }
            None => "–".to_owned(),
        };
        out.rows.push(vec![
            score_name(score),
            cell(Metric::Accuracy),
            cell(Metric::BalancedAccuracy),
            cell(Metric::MacroF1),
            cell(Metric::WeightedF1),
            seeds,
        ]);
    }
    out
}

pub(super) fn differences(evaluation: &Evaluation) -> Table {
    let metric = evaluation.metric;
    let minus =
        "Pre-trained minus baseline in percentage points, with the same head, on the same windows";
    let note = match evaluation.has_intervals() {
        true => format!(
            "{minus}; in parentheses the {}. The conclusion is about the {}: a difference whose interval includes zero is not counted as one.",
            percent_interval(evaluation.confidence),
            metric.name()
        ),
        false => format!("{minus}, which are too few for intervals."),
    };
    let mut metrics = vec![metric];
    metrics
        .extend([Metric::Accuracy, Metric::BalancedAccuracy].into_iter().filter(|m| *m != metric));
    let mut out = table("Pre-trained against its baselines", note, ["baseline", "conclusion"]);
    out.columns.extend(metrics.iter().map(|metric| metric.name().to_owned()));
    let headline = evaluation.differences.iter().filter(|d| d.metric == metric);
    for Difference { head, baseline, difference, .. } in headline {
        let conclusion = conclusion(evaluation.independent_windows(), difference);
        let name = match baseline {
            Subject::Majority => format!("{}, against the {}", baseline.name(), head.name()),
            _ => named(*baseline, Some(*head)),
        };
        let mut row = vec![name, conclusion.to_owned()];
        for metric in &metrics {
            let found = evaluation
                .differences
                .iter()
                .find(|d| (d.head, d.baseline, d.metric) == (*head, *baseline, *metric));
            row.push(found.map_or_else(String::new, |d| d.difference.with_interval(signed_points)));
        }
        out.rows.push(row);
    }
    out
}

pub(super) fn classes(evaluation: &Evaluation) -> Table {
    let note = "Of the linear probe on the pre-trained encoder.".to_owned();
    let columns = ["class", "test windows", "predicted", "precision", "recall", "F1"];
    let mut out = table("Classes", note, columns);
    for (name, class) in evaluation.classes.iter().zip(evaluation.confusion.per_class()) {
        out.rows.push(vec![
            name.clone(),
            grouped(class.support as f64),
            grouped(class.predicted as f64),
            percent(class.precision),
            percent(class.recall),
            percent(class.f1),
        ]);
    }
    out
}

/// The confusion matrix as a table of counts.
pub(super) fn confusion(evaluation: &Evaluation) -> Table {
    let note = "Rows are true classes, columns predicted ones.".to_owned();
    let mut out = table("Confusion matrix", note, ["true \\ predicted"]);
    out.columns.extend(evaluation.classes.iter().cloned());
    for (class, name) in evaluation.classes.iter().enumerate() {
        let counts = evaluation.confusion.row(class).iter().map(|n| grouped(*n as f64));
        out.rows.push(std::iter::once(name.clone()).chain(counts).collect());
    }
    out
}

pub(super) fn reconstruction(reconstruction: &Reconstruction) -> Table {
    let mut errors = reconstruction.scores.iter().map(|score| &score.mean_squared_error);
    let intervals = match errors.any(Estimate::has_interval) {
        true => format!("; in parentheses the {}", percent_interval(reconstruction.confidence)),
        false => String::new(),
    };
    let note = format!(
        "Error on {} masked steps of {}, in normalised units{intervals}. Below zero, the model is worse than the fill.",
        grouped(reconstruction.masked_steps as f64),
        count(reconstruction.windows, "held-out window"),
    );
    let mut out = table(
        "Reconstruction of masked steps",
        note,
        ["fill", "mean squared error", "mean absolute error", "model's error is lower by"],
    );
    // With many channels the page would be all columns; `scores.json` has every one.
    let shown = reconstruction.channels.len();
    let shown = if (2..=6).contains(&shown) { shown } else { 0 };
    out.columns
        .extend(reconstruction.channels.iter().take(shown).map(|name| format!("MSE {name}")));
    for score in &reconstruction.scores {
        let lower = reconstruction.reductions.iter().find(|r| r.fill == score.fill);
        let mut row = vec![
            score.fill.name().to_owned(),
            score.mean_squared_error.with_interval(significant),
            significant(score.mean_absolute_error),
            lower.map_or_else(|| "–".to_owned(), |r| r.reduction.with_interval(percent)),
        ];
        row.extend(score.per_channel.iter().take(shown).map(|value| significant(*value)));
        out.rows.push(row);
    }
    out
}

/// Epochs; of many, the first, the best, the last, and evenly spaced ones between.
pub(super) fn epochs(report: &Report) -> Table {
    const MOST: usize = 20;
    let epochs = &report.curves.epochs;
    let best = report.best_epoch().map(|(epoch, _)| epoch.epoch);
    let note = if epochs.len() > MOST {
        format!("Of {} epochs, some are shown.", epochs.len())
    } else {
        String::new()
    };
    let columns = ["epoch", "steps", "training loss", "validation loss", ""];
    let mut out = table("Epochs", note, columns);
    let every = epochs.len().div_ceil(MOST).max(1);
    for (place, epoch) in epochs.iter().enumerate() {
        let is_best = Some(epoch.epoch) == best;
        if place % every != 0 && place + 1 != epochs.len() && !is_best {
            continue;
        }
        out.rows.push(vec![
            epoch.epoch.to_string(),
            grouped(epoch.step as f64),
            significant(epoch.train_loss),
            epoch.validation_loss.map_or_else(|| "–".to_owned(), significant),
            if is_best { "best".to_owned() } else { String::new() },
        ]);
    }
    out
}

pub(super) fn checkpoints(report: &Report) -> Table {
    let mut note =
        "Training stands still only while a snapshot is taken; the rest of a save runs beside it."
            .to_owned();
    if report.checkpoints_removed > 0 {
        let removed = count(report.checkpoints_removed, "more checkpoint");
        note.push_str(&format!(" {removed} gave way to newer or better ones."));
    }
    let columns = ["step", "size", "training stood still", "whole save", "folder"];
    let mut out = table("Checkpoints", note, columns);
    for row in &report.checkpoints {
        out.rows.push(vec![
            grouped(row.step as f64),
            bytes(row.bytes),
            duration(row.blocked_milliseconds / 1000.0),
            duration(row.save_milliseconds / 1000.0),
            row.path.clone(),
        ]);
    }
    out
}

/// What the machine did, each figure in its unit.
pub(super) fn machine(report: &Report) -> Table {
    let columns = ["figure", "mean while training", "peak while training", "peak of the run"];
    let mut out = table("Machine", String::new(), columns);
    for measure in &report.machine.measures {
        let text = |value: f64| match measure.unit.as_str() {
            "share" => percent(value),
            "bytes" => bytes(value.max(0.0) as u64),
            "bytes/s" => format!("{}/s", bytes(value.max(0.0) as u64)),
            "1/s" => format!("{} /s", significant(value)),
            unit => format!("{} {unit}", significant(value)),
        };
        let training = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), text);
        out.rows.push(vec![
            measure.name.clone(),
            training(measure.training_mean),
            training(measure.training_peak),
            text(measure.peak),
        ]);
    }
    out
}

/// What stood out, and what would change it.
pub(super) fn advice(report: &Report) -> Table {
    let note = "Computed from what this run measured.".to_owned();
    let mut out = table("Advice", note, ["what was measured", "what would change it"]);
    for advice in &report.advice {
        let setting = if advice.setting.is_empty() { "–" } else { &advice.setting };
        out.rows.push(vec![advice.finding.clone(), setting.to_owned()]);
    }
    out
}

pub(super) fn stages(report: &Report) -> Table {
    let columns = ["stage", "time", "state", "key", "result"];
    let mut out = table("Stages", String::new(), columns);
    for stage in &report.stages {
        out.rows.push(vec![
            stage.name.clone(),
            duration(stage.seconds),
            if stage.reused { "reused" } else { "made" }.to_owned(),
            stage.key.clone().unwrap_or_else(|| "–".to_owned()),
            stage.detail.clone(),
        ]);
    }
    out
}

pub(super) fn reasons(report: &Report) -> Table {
    let note = "Values that were not written down but follow from something else.".to_owned();
    let mut out = table("Derived values", note, ["key", "value", "reason"]);
    for reason in &report.reasons {
        out.rows.push(vec![reason.key.clone(), reason.value.clone(), reason.reason.clone()]);
    }
    out
}
