//! The report of a forecaster: errors by horizon beside the baselines, and forecasts beside the truth.

use std::collections::BTreeMap;

use firebox_core::count;

use firebox_eval::{
    BlockOf, Card, Chart, Decimals, Estimate, Fact, ForecastEvaluation, ForecastScore, Forecaster,
    Interval, Line, Outcome, Part, Report, Table, Tone, forecast_verdict, share_text,
};
use serde_json::Value;

use super::measure::Measured;
use super::sequences::{Sequences, static_features};
use crate::measure::{data_tables, table};
use crate::online::slots;
use crate::stages::Run;

/// Horizons whose forecasts are drawn.
const SHOWN_HORIZONS: usize = 3;
/// Steps that are drawn of the first series: four days of hours.
const SHOWN_STEPS: usize = 96;
/// Targets whose forecasts are drawn.
const SHOWN_TARGETS: usize = 4;

/// What this kind of run has to say.
pub(super) fn report(
    run: &Run<'_>,
    name: &str,
    sequences: &Sequences,
    measured: &Measured,
) -> Report {
    let evaluation = &measured.evaluation;
    let verdict = forecast_verdict(evaluation);
    let tone = match verdict.outcome {
        Outcome::Beats => Tone::Good,
        Outcome::DoesNotBeat => Tone::Bad,
        Outcome::TooFewWindows | Outcome::NoLabels | Outcome::NotMeasured => Tone::Open,
    };
    let mut report = Report::new(name, "", verdict);
    report.cards = cards(evaluation, tone);
    report.parts = vec![errors(evaluation), shown(sequences, measured)];
    report.figures = serde_json::to_value(evaluation).unwrap_or_default();
    let series = sequences.set().series().iter().map(|series| series.name.as_str());
    let targets: Vec<&str> = sequences
        .rule()
        .targets
        .iter()
        .map(|target| sequences.set().channels()[*target].name.as_str())
        .collect();
    report.figures["mase_scales"] =
        scales(sequences.steps_of_season(), series, &targets, &measured.scales);
    report.data = data_tables(&sequences.windows);
    report.facts = vec![
        Fact::new("training windows", sequences.train().len().to_string()),
        Fact::new("augmented versions", (slots(&run.config.augment) - 1).to_string()),
        Fact::new("static features", static_features(sequences.rule())),
    ];
    report
}

/// What MASE was computed with. `values` are `[series, target]`; what is not finite is null.
fn scales<'a>(
    season: usize,
    series: impl Iterator<Item = &'a str>,
    targets: &[&str],
    values: &[f64],
) -> Value {
    let rows = series.zip(values.chunks(targets.len().max(1)));
    let each = rows.flat_map(|(series, values)| {
        targets.iter().zip(values).map(move |(target, scale)| {
            serde_json::json!({ "series": series, "target": target, "scale": scale })
        })
    });
    serde_json::json!({ "season": season, "scales": each.collect::<Vec<_>>() })
}

/// Decimals of R², whose size is that of 1.
fn of_r2() -> Decimals {
    Decimals::of([0.1])
}

/// A number with its interval in words below it, as a card shows it.
fn card(title: String, estimate: &Estimate, decimals: Decimals) -> Card {
    Card {
        title,
        value: decimals.show(estimate.value),
        notes: vec![range(estimate, |value| decimals.show(value))],
        tone: Tone::Neutral,
    }
}

/// An interval in words.
fn range(estimate: &Estimate, show: impl Fn(f64) -> String) -> String {
    estimate.ends(show).unwrap_or_else(|| "too few windows for an interval".to_owned())
}

/// A share in per cent, with a true minus sign.
fn share(value: f64) -> String {
    let text = format!("{:.1} %", 100.0 * value);
    match text.as_str() {
        _ if !value.is_finite() => "–".to_owned(),
        "-0.0 %" => "0.0 %".to_owned(),
        text => text.replace('-', "\u{2212}"),
    }
}

/// `all outputs`, or how many of them.
fn of_outputs(counted: usize, evaluation: &ForecastEvaluation) -> String {
    match evaluation.outputs.len() {
        all if all == counted => "all outputs".to_owned(),
        all => format!("{counted} of {all} outputs"),
    }
}

fn cards(evaluation: &ForecastEvaluation, tone: Tone) -> Vec<Card> {
    let Some(all) = evaluation.score(Forecaster::Model, None) else { return vec![] };
    let outputs = evaluation.outputs.len();
    let (title, estimate) = match evaluation.one_target() && !evaluation.by_scale {
        true => {
            let of = match evaluation.measured_outputs() {
                measured if measured == outputs => "all horizons".to_owned(),
                measured => format!("{measured} of {outputs} horizons"),
            };
            (format!("mean absolute error, {of}"), all.mae)
        }
        false => {
            let scaled = evaluation.measured_outputs() - evaluation.unscaled().len();
            let of = of_outputs(scaled, evaluation);
            (format!("mean absolute scaled error, {of}"), all.mase)
        }
    };
    let mut cards = vec![card(title, &estimate, Decimals::of([estimate.value]))];
    let least = evaluation.gains.iter().filter(|gain| gain.output.is_none());
    let least = least.filter(|gain| !gain.gain.value.is_nan());
    if let Some(least) = least.min_by(|a, b| a.gain.value.total_cmp(&b.gain.value)) {
        let Estimate { value, .. } = least.gain;
        cards.push(Card {
            title: format!("less error than the {}", least.baseline.name()),
            value: share(value),
            notes: vec![
                match value.is_finite() {
                    true => range(&least.gain, share),
                    false => "it has no error".to_owned(),
                },
                "the best baseline".to_owned(),
            ],
            tone,
        });
    }
    let scores = evaluation.scores.iter();
    let varied = scores
        .filter(|score| score.forecaster == Forecaster::Model)
        .filter(|score| score.output.is_some() && score.r2.value.is_finite());
    let of = of_outputs(varied.count(), evaluation);
    cards.push(card(format!("R², mean over {of}"), &all.r2, of_r2()));
    cards
}

fn forecasters(evaluation: &ForecastEvaluation) -> Vec<Forecaster> {
    [vec![Forecaster::Model], evaluation.baselines()].concat()
}

fn errors(evaluation: &ForecastEvaluation) -> Part {
    let mut charts = vec![];
    let targets = evaluation.outputs.iter().map(|output| output.target.as_str());
    let targets: Vec<&str> =
        targets.collect::<std::collections::BTreeSet<_>>().into_iter().collect();
    for target in targets {
        let places: Vec<usize> = (0..evaluation.outputs.len())
            .filter(|place| evaluation.outputs[*place].target == target)
            .collect();
        charts.push(match places[..] {
            [only] => intervals(evaluation, target, only),
            _ => by_horizon(evaluation, target, &places),
        });
    }
    // The season is in the table; a chart has no room for it.
    let short = |baseline| match baseline {
        Forecaster::SeasonalNaive(_) => "seasonal naive".to_owned(),
        other => other.name(),
    };
    let gains = evaluation.gains.iter().map(|gain| Interval {
        name: match gain.output.map(|place| &evaluation.outputs[place]) {
            Some(output) => {
                format!("{}, {} +{}", short(gain.baseline), output.target, output.horizon)
            }
            None => format!("{}, all", short(gain.baseline)),
        },
        estimate: gain.among_all.unwrap_or(gain.gain),
        own: gain.output.is_none(),
    });
    charts.push(Chart::Intervals {
        title: "How much less the model errs".to_owned(),
        rows: gains.collect(),
        share: true,
        from_zero: false,
    });
    Part {
        title: "Forecast errors".to_owned(),
        lead: errors_lead(evaluation),
        charts,
        tables: vec![score_table(evaluation)],
    }
}

/// What the errors are of, how their intervals are drawn, and where every forecast lies.
fn errors_lead(evaluation: &ForecastEvaluation) -> String {
    let windows = count(evaluation.windows as u64, "test window");
    let gains = match evaluation.by_scale {
        true => {
            "; series are of unlike size, so gains and the conclusion are by the scaled error, each over its own series' scale"
        }
        false => "",
    };
    let start = format!("Errors on {windows}, in the target's units{gains}");
    let every = format!("`{}` beside this page has every forecast.", super::rows::FILE);
    if let Some(why) = evaluation.no_intervals() {
        return format!("{start}. They have no intervals: {why}. {every}");
    }
    let block = evaluation.block;
    let in_blocks = |why: &str| {
        format!("resamples draw blocks of {block} consecutive windows, {why}, the same for all")
    };
    let drawn = match evaluation.block_of {
        _ if block <= 1 => "resamples draw windows one by one, the same for all".to_owned(),
        BlockOf::Setting => in_blocks("as `evaluate.block` asks"),
        BlockOf::Overlap => in_blocks("at least as many as share steps"),
        BlockOf::Units => format!(
            "resamples draw whole series, or groups of them, that were not trained on, {block} windows each in the mean, the same for all"
        ),
        BlockOf::Season(steps) => in_blocks(&format!(
            "as many as lie within a season of {}, over which errors hang together",
            count(steps as u64, "step")
        )),
    };
    let confidence = share_text(evaluation.confidence);
    let joint = evaluation.gains.iter().filter_map(|gain| gain.among_all);
    let joint = joint.filter(|gain| !gain.value.is_nan()).count();
    let joint = match joint {
        ..=1 => String::new(),
        joint => format!(
            " Intervals of what the model errs less at one output hold for all {joint} of them together."
        ),
    };
    format!("{start}, with their {confidence} % intervals: {drawn}.{joint} {every}")
}

fn intervals(evaluation: &ForecastEvaluation, target: &str, place: usize) -> Chart {
    let scores = evaluation.scores.iter().filter(|score| score.output == Some(place));
    let rows = scores.map(|score| Interval {
        name: score.forecaster.name(),
        estimate: score.mae,
        own: score.forecaster == Forecaster::Model,
    });
    let horizon = evaluation.outputs[place].horizon;
    let title = format!("Mean absolute error of {target}, {} ahead", count(horizon as u64, "step"));
    Chart::Intervals { title, rows: rows.collect(), share: false, from_zero: true }
}

fn by_horizon(evaluation: &ForecastEvaluation, target: &str, places: &[usize]) -> Chart {
    let line = |forecaster: Forecaster| {
        let point = |place: &usize| {
            let score = evaluation.score(forecaster, Some(*place))?;
            Some((evaluation.outputs[*place].horizon as f64, score.mae.value))
        };
        Line { name: forecaster.name(), points: places.iter().filter_map(point).collect() }
    };
    Chart::Lines {
        title: format!("Mean absolute error of {target} by horizon"),
        axis: "steps ahead".to_owned(),
        value: "error".to_owned(),
        lines: forecasters(evaluation).into_iter().map(line).collect(),
    }
}

fn score_table(evaluation: &ForecastEvaluation) -> Table {
    let one = evaluation.one_target();
    // Numbers in the units of a target are as exact as its smallest error asks for. There may be thousands of outputs,
    // so each score is looked at once.
    let mut errors = BTreeMap::<&str, Vec<f64>>::new();
    for score in evaluation.scores.iter().filter(|score| one || score.output.is_some()) {
        let target = evaluation.outputs[score.output.unwrap_or(0)].target.as_str();
        errors.entry(target).or_default().extend([score.mae.value, score.rmse.value]);
    }
    let of_target: BTreeMap<&str, Decimals> =
        errors.into_iter().map(|(target, errors)| (target, Decimals::of(errors))).collect();
    let of_mase = Decimals::of(evaluation.scores.iter().map(|score| score.mase.value));
    let row = |score: &ForecastScore| {
        let (output, own_units) = match score.output.map(|place| &evaluation.outputs[place]) {
            Some(output) => (format!("{} +{}", output.target, output.horizon), true),
            None => ("all".to_owned(), one),
        };
        let own = of_target[evaluation.outputs[score.output.unwrap_or(0)].target.as_str()];
        let error = |estimate| if own_units { own.interval(estimate) } else { "–".to_owned() };
        let seeds: Vec<String> = match score.runs.len() {
            1 => vec![],
            _ if !own_units => vec![],
            _ => score.runs.iter().map(|run| own.show(*run)).collect(),
        };
        vec![
            output,
            score.forecaster.name(),
            error(&score.mae),
            error(&score.rmse),
            of_r2().interval(&score.r2),
            of_mase.interval(&score.mase),
            seeds.join(", "),
        ]
    };
    let places = (0..evaluation.outputs.len()).map(Some).chain([None]);
    let scores = places
        .flat_map(|place| evaluation.scores.iter().filter(move |score| score.output == place));
    let note = "MAE and RMSE in the target's units; R² is 0 for the mean of the test values, and – where they are constant; MASE is the absolute error in units of the seasonal naive forecast's on the training steps, and – where that is 0, or training has no run longer than a season. Means over all outputs are of those that have the number.".to_owned();
    let columns = ["output", "forecaster", "MAE", "RMSE", "R²", "MASE", "MAE of each seed"];
    let mut rows: Vec<Vec<String>> = scores.map(row).collect();
    let several = rows.iter().any(|row| row.last().is_some_and(|seeds| !seeds.is_empty()));
    let shown = if several { columns.len() } else { columns.len() - 1 };
    rows.iter_mut().for_each(|row| row.truncate(shown));
    table("Errors by output", note, &columns[..shown], rows)
}

/// Forecasts of consecutive windows of the first series beside what came.
fn shown(sequences: &Sequences, measured: &Measured) -> Part {
    let (set, rule, outputs) = (sequences.set(), sequences.rule(), sequences.rule().outputs());
    let series = measured.windows.first().map_or(0, |window| window.series);
    let of_series = measured.windows.iter().enumerate().filter(|(_, w)| w.series == series);
    let first = measured.windows.first().map_or(0, |window| window.start);
    let drawn: Vec<(usize, f64)> = of_series
        .map(|(at, window)| (at, f64::from(window.start - first)))
        .take_while(|(_, step)| *step < SHOWN_STEPS as f64)
        .collect();
    let (horizons, targets) = (rule.horizons.len(), rule.targets.len());
    // Of several targets the nearest and the farthest horizon, so that there are not more pictures than anybody looks at.
    let places = match (targets, horizons) {
        (1, 0..=SHOWN_HORIZONS) => (0..horizons).collect(),
        (1, _) => vec![0, horizons / 2, horizons - 1],
        (_, 1) => vec![0],
        _ => vec![0, horizons - 1],
    };
    let drawn_targets = targets.min(SHOWN_TARGETS);
    let of_target = |target: usize| places.iter().map(move |place| (target, *place));
    let chart = |(target, place): (usize, usize)| {
        let names = &set.channels()[rule.targets[target]].name;
        let horizon = rule.horizons[place];
        let output = place * targets + target;
        let line = |name: String, values: &[f64]| {
            let point =
                |(at, step): &(usize, f64)| (step + horizon as f64, values[at * outputs + output]);
            let points = drawn.iter().map(point).filter(|(_, value)| value.is_finite());
            Line { name, points: points.collect() }
        };
        let mut lines = vec![line("true value".to_owned(), &measured.truth)];
        for forecasts in &measured.forecasts {
            if matches!(forecasts.forecaster, Forecaster::Model | Forecaster::LastValue) {
                lines.push(line(forecasts.forecaster.name(), &forecasts.runs[0]));
            }
        }
        Chart::Lines {
            title: format!("{names}, {} ahead", count(horizon as u64, "step")),
            axis: "steps of the test".to_owned(),
            value: names.clone(),
            lines,
        }
    };
    let of_all = match targets > drawn_targets {
        true => format!(" The first {drawn_targets} of {targets} targets are drawn."),
        false => String::new(),
    };
    let lead = format!(
        "The first {} test windows of `{}`: each point is the forecast that was made so many steps before.{of_all}",
        drawn.len(),
        set.series()[series as usize].name
    );
    let charts = (0..drawn_targets).flat_map(of_target).map(chart).collect();
    Part { title: "Forecasts and truth".to_owned(), lead, charts, tables: vec![] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_told_by_series_and_target() {
        let told = scales(24, ["a", "b"].into_iter(), &["x", "y"], &[1.0, 2.0, f64::NAN, 4.0]);
        let expected = serde_json::json!({ "season": 24, "scales": [
            { "series": "a", "target": "x", "scale": 1.0 },
            { "series": "a", "target": "y", "scale": 2.0 },
            { "series": "b", "target": "x", "scale": null },
            { "series": "b", "target": "y", "scale": 4.0 },
        ] });
        assert_eq!(told, expected);
    }
}
