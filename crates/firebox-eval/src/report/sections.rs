//! The parts of the page, in the order in which a reader asks for them.

use std::fmt::Write as _;

use super::charts::{Curve, CurveChart, IntervalRow, curve_chart, interval_chart};
use super::html::{Section, table};
use super::plot::{coordinate, escape, prose, words};
use super::{Report, StepPoint, pictures, tables};
use crate::text::{capitalised, count, duration, percent, significant};
use crate::verdict::compared;
use crate::{Fill, Subject};

/// Classes of a confusion matrix that has room beside a chart.
const BESIDE: usize = 4;
/// Masked windows that are drawn.
const MOST_WINDOWS: usize = 8;

/// Every section that has something to show.
pub(super) fn all(report: &Report) -> Vec<Section> {
    let first = [("warnings", "Warnings", warnings(report))];
    let parts = report.parts.iter().enumerate().map(|(place, part)| Section {
        id: format!("part-{}", place + 1).into(),
        title: part.title.clone().into(),
        body: part.html(),
    });
    let rest = [
        ("scores", "Scores", scores(report)),
        ("embedding", "Embedding", embedding(report)),
        ("reconstruction", "Reconstruction", reconstruction(report)),
        ("training", "Training", training(report)),
        ("advice", "Advice", table(&tables::advice(report), false)),
        ("machine", "Machine", machine(report)),
        ("profile", "Profile", report.profile.iter().map(|one| table(one, false)).collect()),
        ("data", "Data", report.data.iter().map(|data| table(data, true)).collect()),
        ("stages", "Stages", stages(report)),
        ("configuration", "Configuration", configuration(report)),
    ];
    let known = |(id, title, body): (&'static str, &'static str, String)| Section {
        id: id.into(),
        title: title.into(),
        body,
    };
    let all = first.into_iter().map(known).chain(parts).chain(rest.into_iter().map(known));
    all.filter(|section| !section.body.is_empty()).collect()
}

fn warnings(report: &Report) -> String {
    let all = report.all_warnings();
    if all.is_empty() {
        return String::new();
    }
    let items: String = all.iter().map(|warning| format!("<li>{}</li>", prose(warning))).collect();
    format!("<ul class=\"warnings\">{items}</ul>\n")
}

fn scores(report: &Report) -> String {
    let Some(evaluation) = &report.evaluation else {
        if !report.parts.is_empty() {
            return String::new();
        }
        let why = match report.unscored.as_str() {
            "" => "No window has a label",
            why => why,
        };
        return format!("<p>{}, so there are no scores.</p>\n", escape(why));
    };
    let rows: Vec<IntervalRow> = evaluation
        .scores
        .iter()
        .map(|score| IntervalRow {
            label: chart_label(&tables::score_name(score)),
            estimate: score.metric(evaluation.metric),
            own: score.subject == Subject::PreTrained,
        })
        .collect();
    let with = if evaluation.has_intervals() { " with its interval" } else { "" };
    let title = format!("Test {}{with}", evaluation.metric.name());
    let (chart, matrix) = (interval_chart(&title, &rows, false, percent), matrix(report));
    // A large matrix needs the width of the page, or its last columns are out of sight.
    let both = if evaluation.classes.len() > BESIDE {
        format!("<div class=\"half\">{chart}</div>\n{matrix}")
    } else {
        format!("<div class=\"grid\">{chart}<div>{matrix}</div></div>\n")
    };
    format!(
        "{both}{}{}{}",
        table(&tables::scores(evaluation), false),
        table(&tables::differences(evaluation), true),
        table(&tables::classes(evaluation), true),
    )
}

/// The names of subjects are longer than a chart on a telephone has room for.
fn chart_label(name: &str) -> String {
    name.replace("randomly initialised encoder", "random encoder")
        .replace("pre-trained encoder", "pre-trained")
        .replace("nearest neighbours", "k-NN")
        .replace("linear probe", "probe")
}

fn matrix(report: &Report) -> String {
    report.evaluation.as_ref().map_or_else(String::new, |evaluation| {
        format!(
            "<figure><figcaption>Confusion matrix of the linear probe</figcaption>{}</figure>",
            pictures::confusion(&evaluation.confusion, &evaluation.classes)
        )
    })
}

fn embedding(report: &Report) -> String {
    let Some(view) = report.embedding.as_ref().filter(|view| !view.projection.points.is_empty())
    else {
        return String::new();
    };
    let [first, second] = view.projection.explained.map(percent);
    format!(
        "<div class=\"grid\">{}<p class=\"note\">Each point is a held-out window, embedded by the frozen encoder and seen along its first two principal components, which hold {first} (from left to right) and {second} (upwards) of the variance. What is apart here can be told apart; what is mixed here may still be apart in the other dimensions.</p></div>\n",
        pictures::embedding(view)
    )
}

fn reconstruction(report: &Report) -> String {
    let mut out = String::new();
    match &report.reconstruction {
        Some(reconstruction) => {
            let rows: Vec<IntervalRow> = reconstruction
                .scores
                .iter()
                .map(|score| IntervalRow {
                    label: score.fill.name().to_owned(),
                    estimate: score.mean_squared_error,
                    own: score.fill == Fill::Model,
                })
                .collect();
            let chart =
                interval_chart("Mean squared error on masked steps", &rows, true, significant);
            let table = table(&tables::reconstruction(reconstruction), false);
            let said = compared(reconstruction).map_or_else(String::new, |said| {
                format!("<p class=\"lead\">{}.</p>", escape(&capitalised(&said)))
            });
            let _ = write!(out, "<div class=\"grid\">{chart}{said}</div>\n{table}");
        }
        None if !report.parts.is_empty() => {}
        None => out.push_str(
            "<p>No masked window was reconstructed, so there is no error to compare.</p>\n",
        ),
    }
    let drawn: String = report
        .masked_windows
        .iter()
        .take(MOST_WINDOWS)
        .map(|window| pictures::masked_window(window, &report.channels))
        .collect();
    if !drawn.is_empty() {
        let _ = write!(
            out,
            "<h3>Masked windows</h3>\n<ul class=\"legend\"><li class=\"truth-key\"><i></i>true values</li><li class=\"model-key\"><i></i>reconstruction</li><li class=\"mask-key\"><i></i>hidden from the model</li></ul>\n<div class=\"grid\">{drawn}</div>\n"
        );
    }
    out
}

fn training(report: &Report) -> String {
    let curves = &report.curves;
    if curves.steps.is_empty() && curves.epochs.is_empty() {
        let said = match report.trained_in_parts() {
            true => prose(
                "Each training of this run has a folder of its own below `parts`, with its curves in `history.jsonl`.",
            ),
            false => "Nothing was trained in this run.".to_owned(),
        };
        return format!("<p>{said}</p>\n");
    }
    let of = |value: fn(&StepPoint) -> f64| {
        curves.steps.iter().map(|point| (point.step as f64, value(point))).collect::<Vec<_>>()
    };
    let epochs = |value: &dyn Fn(usize) -> Option<f64>| {
        let points = curves.epochs.iter().enumerate();
        points
            .filter_map(|(place, epoch)| value(place).map(|value| (epoch.step as f64, value)))
            .collect::<Vec<_>>()
    };
    let curve = |name, class, points, dots| Curve { name, class, points, dots };
    let chart = |title, value, curves, level| {
        curve_chart(&CurveChart { title, axis: "step", value, curves, wide: true, level })
    };
    let few = curves.epochs.len() <= 40;
    let by_epoch = vec![
        curve("training", "train", epochs(&|place| Some(curves.epochs[place].train_loss)), few),
        curve("validation", "own", epochs(&|place| curves.epochs[place].validation_loss), few),
    ];
    let clip = curves.clip_norm.map(|norm| (norm, "clipped above"));
    let loss = vec![curve("training", "train", of(|point| point.loss), false)];
    let rate = vec![curve("learning rate", "train", of(|point| point.learning_rate), false)];
    let norm = vec![curve("gradient norm", "train", of(|point| point.gradient_norm), false)];
    let mut out = String::from("<div class=\"grid\">");
    if !curves.epochs.is_empty() {
        out.push_str(&chart("Loss, mean of each epoch", "loss", by_epoch, None));
    }
    if !curves.steps.is_empty() {
        out.push_str(&chart("Training loss of each step", "loss", loss, None));
        out.push_str(&chart("Learning rate", "learning rate", rate, None));
        out.push_str(&chart("Gradient norm before clipping", "gradient norm", norm, clip));
    }
    out.push_str("</div>\n");
    if !curves.skipped.is_empty() {
        let _ = writeln!(
            out,
            "<p>{} skipped because a loss or gradient was not finite; the learning rate follows the others.</p>",
            count(curves.skipped.len(), "step")
        );
    }
    if let Some(line) = report.scale_line() {
        let _ = writeln!(out, "<p>{line}</p>");
    }
    out.push_str(&folded("Epochs", &table(&tables::epochs(report), false)));
    out.push_str(&table(&tables::checkpoints(report), true));
    out
}

fn machine(report: &Report) -> String {
    let notes = report.machine.notes.iter().map(|note| format!("<p>{}</p>\n", prose(note)));
    let memory = report.machine.memory.iter();
    let memory = memory.map(|chart| format!("<div class=\"grid\">{}</div>\n", chart.html()));
    notes.chain(memory).collect::<String>() + &table(&tables::machine(report), false)
}

fn stages(report: &Report) -> String {
    if report.stages.is_empty() {
        return String::new();
    }
    let total: f64 = report.stages.iter().map(|stage| stage.seconds).sum();
    let mut out = String::from("<ol class=\"stages\">\n");
    for stage in &report.stages {
        let share = if total > 0.0 { 100.0 * stage.seconds / total } else { 0.0 };
        let reused = if stage.reused { "<span class=\"tag good\">reused</span>" } else { "" };
        let key = stage.key.as_ref().map_or_else(String::new, |key| {
            format!("<code title=\"content key\">{}</code>", escape(key))
        });
        let _ = writeln!(
            out,
            "<li><div class=\"what\"><b>{}</b> {reused} {key}<p>{}</p></div><div class=\"time\">{}</div><div class=\"bar\" aria-hidden=\"true\"><i style=\"width:{}%\"></i></div></li>",
            words(&stage.name),
            words(&stage.detail),
            duration(stage.seconds),
            coordinate(share)
        );
    }
    out.push_str("</ol>\n");
    out
}

fn configuration(report: &Report) -> String {
    let mut out = table(&tables::reasons(report), true);
    if !report.configuration.is_empty() {
        let text = format!("<pre><code>{}</code></pre>", escape(&report.configuration));
        out.push_str(&folded("Resolved configuration", &text));
    }
    out
}

/// A part that opens on demand.
pub(super) fn folded(title: &str, body: &str) -> String {
    if body.is_empty() {
        return String::new();
    }
    format!("<details><summary>{title}</summary>{body}</details>\n")
}
