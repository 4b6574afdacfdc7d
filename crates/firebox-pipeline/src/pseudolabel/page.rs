//! What the report says of iterations, clusters and their agreement with true classes.

use firebox_eval::{
    Card, Chart, Estimate, Fact, Interval, Line, Outcome, Part, Report, Table, Tone, number,
    share_text,
};

use super::iterate::Iterated;
use super::judge::{Judged, Judgement};
use crate::measure::{data_tables, table};
use crate::online::slots;
use crate::stages::{Run, Windows};
use crate::test_table::FILE;

/// The report but for what the run's log tells.
pub(super) fn report(
    run: &Run<'_>,
    title: &str,
    windows: &Windows,
    iterated: &Iterated,
    judged: Judged,
) -> Report {
    let verdict = judged.verdict();
    let tone = match verdict.outcome {
        Outcome::Beats => Tone::Good,
        Outcome::DoesNotBeat => Tone::Bad,
        Outcome::TooFewWindows | Outcome::NoLabels | Outcome::NotMeasured => Tone::Open,
    };
    let mut report = Report::new(title, "", verdict);
    // The probe on the encoder may be better than its baselines or not, which the page tells, too.
    report.badge = match report.verdict.outcome {
        Outcome::Beats => "Clusters agree better".to_owned(),
        Outcome::DoesNotBeat => "Clusters not shown to agree better".to_owned(),
        Outcome::TooFewWindows | Outcome::NoLabels | Outcome::NotMeasured => String::new(),
    };
    report.cards = judged.subjects.first().map(|own| card(own, tone)).into_iter().collect();
    report.parts = vec![
        Part {
            title: "Clusters and true classes".to_owned(),
            lead: lead(&judged),
            charts: charts(&judged),
            tables: judged_tables(&judged),
        },
        Part {
            title: "Iterations".to_owned(),
            lead: match iterated.settled {
                true => "The iterations ended because the clusters had settled.".to_owned(),
                false => "The iterations ended because all of them were made; the clusters had not settled.".to_owned(),
            },
            charts: vec![],
            tables: vec![rounds(iterated)],
        },
    ];
    report.figures = serde_json::to_value(&judged).unwrap_or_default();
    report.evaluation = judged.evaluation;
    report.data = data_tables(windows);
    report.facts = vec![
        Fact::new("training windows", windows.parts.train.len().to_string()),
        Fact::new("augmented versions", (slots(&run.config.augment) - 1).to_string()),
        Fact::new("iterations", iterated.rounds.len().to_string()),
        Fact::new("horizon", run.config.labels.horizon().to_string()),
    ];
    let may_be_none = ["horizon", "augmented versions"];
    report.facts.retain(|fact| !may_be_none.contains(&fact.name.as_str()) || fact.value != "0");
    report
}

/// How clusters are judged, and where those of every window lie.
fn lead(judged: &Judged) -> String {
    let every = match judged.windows {
        0 => String::new(),
        _ => format!(" `{FILE}` beside this page has the clusters of every test window."),
    };
    format!(
        "Clusters were found on training windows; test windows belong to the nearest center. True classes chose nothing, and clusters are never judged by themselves. In the scores below, the pre-trained encoder is the one that was trained on clusters.{every}"
    )
}

fn card(own: &Judgement, tone: Tone) -> Card {
    Card {
        title: "agreement with true classes (NMI)".to_owned(),
        value: format!("{:.3}", own.normalised_information.value),
        notes: vec![
            format!("adjusted Rand index {}", number(own.adjusted_rand.value, 3)),
            format!("purity {:.3}", own.purity.value),
        ],
        tone,
    }
}

fn charts(judged: &Judged) -> Vec<Chart> {
    if judged.subjects.is_empty() {
        return vec![];
    }
    let row = |(at, subject): (usize, &Judgement)| Interval {
        name: subject.name.to_owned(),
        estimate: subject.normalised_information,
        own: at == 0,
    };
    let line = |name: &str, of: fn(&firebox_eval::Agreement) -> f64| Line {
        name: name.to_owned(),
        points: (0..)
            .zip(&judged.by_iteration)
            .map(|(at, found)| (f64::from(at), of(found)))
            .collect(),
    };
    vec![
        Chart::Intervals {
            title: "Normalised mutual information with the true classes".to_owned(),
            rows: judged.subjects.iter().enumerate().map(row).collect(),
            share: false,
            from_zero: true,
        },
        Chart::Lines {
            title: "Agreement after each iteration".to_owned(),
            axis: "iterations".to_owned(),
            value: "agreement".to_owned(),
            lines: vec![
                line("NMI", |found| found.normalised_information),
                line("ARI", |found| found.adjusted_rand),
                line("purity", |found| found.purity),
            ],
        },
    ]
}

fn judged_tables(judged: &Judged) -> Vec<Table> {
    if judged.subjects.is_empty() {
        return vec![];
    }
    let text = |Estimate { value, low, high }: Estimate| {
        format!("{} ({} to {})", number(value, 3), number(low, 3), number(high, 3))
    };
    let row = |(at, subject): (usize, &Judgement)| {
        let lead = at.checked_sub(1).map_or("–".to_owned(), |at| text(judged.leads[at]));
        vec![
            subject.name.to_owned(),
            text(subject.purity),
            text(subject.normalised_information),
            text(subject.adjusted_rand),
            lead,
        ]
    };
    let note = format!(
        "On {} test windows with a true class. In parentheses the {} % interval of what as many other test windows would give, from the spread over halves of them. Purity grows with the number of clusters; the other two do not. NMI of few windows is higher than that of many.",
        judged.windows,
        share_text(judged.confidence)
    );
    let columns = ["clusters of", "purity", "NMI", "ARI", "NMI of the trained encoder less this"];
    vec![table("Agreement", note, &columns, judged.subjects.iter().enumerate().map(row).collect())]
}

fn rounds(iterated: &Iterated) -> Table {
    let rows = iterated.rounds.iter().map(|round| {
        let sizes: Vec<String> = round.sizes.iter().map(usize::to_string).collect();
        vec![
            round.number.to_string(),
            sizes.join(", "),
            round.moved.map_or("–".to_owned(), |share| format!("{:.1} %", 100.0 * share)),
            round.epochs.to_string(),
            round.steps.to_string(),
            round.loss.map_or_else(String::new, |loss| format!("{loss:.4}")),
            format!("{:.1}", round.seconds),
        ]
    });
    let note = "Clusters of the training windows as the iteration began, and the share of these windows whose cluster changed since the one before, once clusters are matched. The loss is that of telling clusters apart, which says nothing of true classes. Each iteration's clusters and training are in its folder below `parts`.".to_owned();
    let columns = [
        "iteration",
        "windows of each cluster",
        "moved",
        "epochs",
        "steps",
        "training loss",
        "seconds",
    ];
    table("Iterations", note, &columns, rows.collect())
}
