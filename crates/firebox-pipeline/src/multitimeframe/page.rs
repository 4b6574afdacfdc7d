//! What the report says of folds, models and baselines.

use firebox_core::Fold;
use firebox_data::Ingested;
use firebox_eval::{
    Card, Chart, Contest, Fact, Interval, Metric, Outcome, Part, Report, Table, Tone, percent,
};

use super::train::Trained;
use crate::measure::{channel_table, defect_table, moment, table};
use crate::stages::Run;
use crate::test_table::FILE;

/// The report but for what the run's log tells.
pub(super) fn report(
    run: &Run<'_>,
    title: &str,
    ingested: &Ingested,
    folds: &[Fold],
    trained: &Trained,
    measured: Contest,
) -> Report {
    let mut verdict = measured.verdict();
    let limit = run.config.evaluate.train_limit;
    let most = folds.iter().map(|fold| fold.split.train.labelled().len()).max().unwrap_or(0);
    if limit > 0 && most > limit {
        verdict.sentence.push_str(&format!(
            " The regressions among the baselines were fitted on {limit} of up to {most} training windows of a fold, where the models had all (`evaluate.train_limit`; 0 takes all)."
        ));
    }
    let tone = match verdict.outcome {
        Outcome::Beats => Tone::Good,
        Outcome::DoesNotBeat => Tone::Bad,
        Outcome::TooFewWindows | Outcome::NoLabels | Outcome::NotMeasured => Tone::Open,
    };
    let mut report = Report::new(title, "", verdict);
    report.cards = vec![card(&measured, tone)];
    report.parts = vec![
        Part {
            title: "Models and baselines".to_owned(),
            lead: format!(
                "Every model and every baseline predicted the same {} windows, each fold after training on what came before it. `{FILE}` beside this page has every prediction.",
                measured.windows
            ),
            charts: [measured.metric, Metric::Accuracy]
                .into_iter()
                .take(if measured.metric == Metric::Accuracy { 1 } else { 2 })
                .map(|metric| chart(&measured, metric))
                .collect(),
            tables: measured.tables(),
        },
        Part {
            title: "Folds and trainings".to_owned(),
            lead: "Training parts expand; purged windows reach over a boundary, embargoed ones begin just after it.".to_owned(),
            charts: vec![],
            tables: vec![fold_table(ingested, folds), training_table(trained)],
        },
    ];
    report.figures = serde_json::to_value(&measured).unwrap_or_default();
    report.data = vec![channel_table(ingested), defect_table(ingested)];
    report.data.extend(timeframe_table(ingested));
    report.facts = vec![
        Fact::new("folds", folds.len().to_string()),
        Fact::new("features", ingested.set.channels().len().to_string()),
        Fact::new("window", run.config.window.length.to_string()),
        Fact::new("horizon", run.config.labels.horizon().to_string()),
        Fact::new("batch", batches(run)),
    ];
    report
}

/// The batch of each model.
fn batches(run: &Run<'_>) -> String {
    let settings = super::settings(run.config);
    let of = |model: &super::ModelName| format!("{} ({})", settings.batch(*model), model.name());
    settings.models.iter().map(of).collect::<Vec<_>>().join(", ")
}

fn card(measured: &Contest, tone: Tone) -> Card {
    let metric = measured.metric;
    let best = |baseline: bool| {
        let all = measured.standings.iter().filter(|standing| standing.baseline == baseline);
        let value = |standing: &firebox_eval::Standing| {
            standing.metrics.get(&metric).map_or(0.0, |estimate| estimate.value)
        };
        let best = all.max_by(|a, b| value(a).total_cmp(&value(b)));
        best.map(|best| (best.name.clone(), value(best)))
    };
    let text = |(name, value): (String, f64)| format!("{} {name}", percent(value));
    Card {
        title: format!("test {}", metric.name()),
        value: best(false).map_or_else(String::new, |(_, value)| percent(value)),
        notes: vec![
            best(false).map_or_else(String::new, |found| format!("highest model: {}", text(found))),
            best(true)
                .map_or_else(String::new, |found| format!("highest baseline: {}", text(found))),
        ],
        tone,
    }
}

fn chart(measured: &Contest, metric: Metric) -> Chart {
    let row = |standing: &firebox_eval::Standing| Interval {
        name: standing.name.clone(),
        estimate: standing.metrics.get(&metric).copied().unwrap_or_default(),
        own: !standing.baseline,
    };
    Chart::Intervals {
        title: format!("Test {}", metric.name()),
        rows: measured.standings.iter().map(row).collect(),
        share: true,
        from_zero: false,
    }
}

fn fold_table(ingested: &Ingested, folds: &[Fold]) -> Table {
    let clock = ingested.checks.span.is_some();
    let at = |time: i64| match time {
        i64::MAX => "the end".to_owned(),
        time if clock => moment(time),
        time => format!("step {time}"),
    };
    let row = |(fold, number): (&Fold, usize)| {
        let [validation, test, end] = fold.boundaries;
        let split = &fold.split;
        let mut row = vec![number.to_string(), at(validation), at(test), at(end)];
        let counts = [
            split.train.len(),
            split.validation.len(),
            split.test.len(),
            fold.purged,
            fold.embargoed,
        ];
        row.extend(counts.map(|count| count.to_string()));
        row
    };
    let columns = [
        "fold",
        "validation from",
        "test from",
        "test until",
        "training",
        "validation",
        "test",
        "purged",
        "embargoed",
    ];
    table("Folds", String::new(), &columns, folds.iter().zip(1..).map(row).collect())
}

fn training_table(trained: &Trained) -> Table {
    let rows = trained.lines.iter().map(|line| {
        let (epoch, loss) = line.best.map_or_else(Default::default, |(epoch, loss)| {
            (epoch.to_string(), format!("{loss:.4}"))
        });
        vec![
            line.fold.to_string(),
            line.model.title().to_owned(),
            line.windows.to_string(),
            line.parameters.to_string(),
            line.epochs.to_string(),
            line.steps.to_string(),
            epoch,
            loss,
            line.outcome.to_string(),
            format!("{:.1}", line.seconds),
        ]
    });
    let note = "The weights of the epoch with the lowest validation loss are tested. Each training's steps, epochs and checkpoints are in its folder below `parts`; times are of its last attempt.".to_owned();
    let columns = [
        "fold",
        "model",
        "windows",
        "parameters",
        "epochs",
        "steps",
        "best epoch",
        "validation loss",
        "outcome",
        "seconds",
    ];
    table("Trainings", note, &columns, rows.collect())
}

fn timeframe_table(ingested: &Ingested) -> Option<Table> {
    let made = ingested.checks.timeframes.as_ref()?;
    let rows = [
        ("bars made", made.bars),
        ("runs of them without a gap", made.runs),
        ("bars left out while indicators warmed up", made.warmup),
        ("runs too short for any", made.lost_runs),
    ];
    let rows = rows.map(|(what, count)| vec![what.to_owned(), count.to_string()]).to_vec();
    Some(table("Timeframes", String::new(), &["what", "count"], rows))
}
