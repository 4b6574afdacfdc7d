//! Pictures of a search: history, importances, parallel coordinates, slices, curves and time.

use std::fmt::Write as _;

use super::charts::{BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, axes, axes_with, figure, nothing};
use super::plot::{Scale, buckets, coordinate, escape, path, range};
use super::study::{StudyOutcome, StudyReport, StudyTrial};
use crate::text::{duration, percent, significant};

/// Lines that a picture shows; of more trials the best are drawn.
const MOST_LINES: usize = 300;
/// Bars that the timeline shows; of more trials the last are drawn.
const MOST_BARS: usize = 400;
/// Points of a curve.
const MOST_POINTS: usize = 60;
/// Share of the trials that is drawn as the best.
const BEST_SHARE: f64 = 0.1;

/// CSS class of an outcome.
fn class(outcome: StudyOutcome) -> &'static str {
    match outcome {
        StudyOutcome::Complete => "train",
        StudyOutcome::Pruned | StudyOutcome::Waiting => "other",
        StudyOutcome::Failed => "failed",
        StudyOutcome::Running => "running",
    }
}

fn dot(x: f64, y: f64, title: &str) -> String {
    format!(
        r#"<circle cx="{}" cy="{}" r="3"><title>{}</title></circle>"#,
        coordinate(x),
        coordinate(y),
        escape(title)
    )
}

/// Values by number, and the best so far.
pub(super) fn history(study: &StudyReport) -> String {
    let title = format!("{} by trial", study.value_name());
    let complete: Vec<_> =
        study.trials.iter().filter_map(|trial| Some((trial, StudyReport::value(trial)?))).collect();
    let last = study.trials.iter().map(|trial| trial.number).max().unwrap_or(0);
    let Some(y_range) = range(complete.iter().map(|(_, value)| *value)) else {
        return nothing(&title);
    };
    let x = Scale::linear([0.0, last as f64], LEFT, WIDTH - RIGHT);
    let y = Scale::fitting(y_range, HEIGHT - BOTTOM, TOP);
    let mut body = axes_with(&whole_marks(&x, [0.0, last as f64]), &x, &y, "trial");
    body.push_str(r#"<g class="train">"#);
    let (mut best, mut steps) = (None::<f64>, Vec::new());
    for (trial, value) in &complete {
        let (at, place) = (x.at(trial.number as f64), y.at(*value));
        body.push_str(&dot(at, place, &format!("trial {}: {}", trial.number, significant(*value))));
        let improves = best.is_none_or(|best| study.is_better(*value, best));
        if improves && study.may_be_best(trial) {
            steps.extend(best.map(|best| (at, y.at(best))));
            steps.push((at, place));
            best = Some(*value);
        }
    }
    steps.extend(best.map(|best| (x.at(last as f64), y.at(best))));
    let _ = write!(body, r#"</g><g class="own"><path class="curve" d="{}"/></g>"#, path(steps));
    let scale = if y.is_logarithmic() { ", logarithmic axis" } else { "" };
    let legend = [("complete trial", "train"), ("best so far", "own")];
    figure(&format!("{title}{scale}"), [WIDTH, HEIGHT], &body, &legend)
}

/// Marks at whole numbers, such as those of trials, of which there is none beyond the range.
fn whole_marks(x: &Scale, [low, high]: [f64; 2]) -> Vec<(f64, String)> {
    let mut marks = x.whole_ticks(5);
    marks.retain(|(value, _)| (low..=high).contains(value));
    marks
}

/// Each parameter's share of the variance.
pub(super) fn importances(study: &StudyReport) -> String {
    const LABELS: f64 = 178.0;
    const ROW: f64 = 24.0;
    let title = "Importance: share of the variance that each parameter explains alone (fANOVA)";
    let Some([_, most]) = range(study.importances.iter().map(|(_, share)| *share)) else {
        return String::new();
    };
    let x = Scale::linear([0.0, most.max(1e-3)], LABELS, WIDTH - 58.0);
    let mut body = String::new();
    for (place, (name, share)) in study.importances.iter().enumerate() {
        let middle = 4.0 + ROW * (place as f64 + 0.5);
        let _ = write!(
            body,
            r#"<g class="own"><title>{7}</title><text class="tick" x="{0}" y="{2}" text-anchor="end">{1}</text><rect x="{LABELS}" y="{3}" width="{4}" height="13" rx="2"/><text class="tick" x="{5}" y="{2}">{6}</text></g>"#,
            LABELS - 8.0,
            escape(&short(name)),
            middle + 4.0,
            middle - 6.5,
            coordinate((x.at(*share) - LABELS).max(0.5)),
            coordinate(x.at(*share) + 6.0),
            escape(&percent(*share)),
            escape(name),
        );
    }
    figure(title, [WIDTH, ROW * study.importances.len() as f64 + 8.0], &body, &[])
}

/// The first two objectives beside each other.
pub(super) fn pareto(study: &StudyReport) -> String {
    let [first, second, ..] = &study.objectives[..] else { return String::new() };
    let title = format!("{} by {}, with the Pareto front", second.name, first.name);
    let complete =
        |trial: &&StudyTrial| trial.outcome == StudyOutcome::Complete && trial.values.len() > 1;
    let trials: Vec<_> = study.trials.iter().filter(complete).collect();
    let of = |objective: usize| range(trials.iter().map(|trial| trial.values[objective]));
    let (Some(x_range), Some(y_range)) = (of(0), of(1)) else { return nothing(&title) };
    let x = Scale::fitting(x_range, LEFT, WIDTH - RIGHT);
    let y = Scale::fitting(y_range, HEIGHT - BOTTOM, TOP);
    let mut body = axes(&x, &y, &first.name);
    for (on_front, class) in [(false, "other"), (true, "own")] {
        let _ = write!(body, r#"<g class="{class}">"#);
        for trial in &trials {
            let [a, b] = [trial.values[0], trial.values[1]];
            if study.best.contains(&trial.number) == on_front && a.is_finite() && b.is_finite() {
                let text =
                    format!("trial {}: {}, {}", trial.number, significant(a), significant(b));
                body.push_str(&dot(x.at(a), y.at(b), &text));
            }
        }
        body.push_str("</g>");
    }
    let legend = [("complete trial", "other"), ("on the front", "own")];
    figure(&title, [WIDTH, HEIGHT], &body, &legend)
}

/// The parameters in the order of their importance, those without one last.
fn by_importance(study: &StudyReport) -> Vec<usize> {
    let mut order: Vec<usize> = (0..study.parameters.len()).collect();
    let rank = |place: &usize| {
        let name = &study.parameters[*place].name;
        study.importances.iter().position(|(known, _)| known == name).unwrap_or(usize::MAX)
    };
    order.sort_by_key(rank);
    order
}

/// Each complete trial as a line through its value and its parameters.
pub(super) fn parallel(study: &StudyReport) -> String {
    /// So wide that the longest name of `short` does not touch the next one.
    const AXIS: f64 = 150.0;
    /// So wide that texts have the size of those in the smaller pictures.
    const PAGE: f64 = 960.0;
    const FLOOR: f64 = 250.0;
    let ranked = study.ranked();
    let Some(y_range) = range(ranked.iter().map(|(_, value)| *value)) else {
        return nothing("Parallel coordinates");
    };
    let order = by_importance(study);
    let width = (AXIS * (order.len() + 1) as f64).max(PAGE);
    let step = width / (order.len() + 1) as f64;
    let at = |axis: usize| step * (axis as f64 + 0.5);
    let y = Scale::fitting(y_range, FLOOR, 30.0);
    let unit = Scale::linear([0.0, 1.0], FLOOR, 30.0);
    let shown = &ranked[..ranked.len().min(MOST_LINES)];
    let best = ((BEST_SHARE * ranked.len() as f64).ceil() as usize).max(1);
    let mut body = String::new();
    for (place, (trial, value)) in shown.iter().enumerate().rev() {
        let point = |(axis, parameter): (usize, &usize)| match trial.parameters.get(*parameter) {
            Some(Some((place, _))) => (at(axis + 1), unit.at(*place)),
            _ => (f64::NAN, f64::NAN),
        };
        let points = [(at(0), y.at(*value))].into_iter().chain(order.iter().enumerate().map(point));
        let _ = write!(
            body,
            r#"<g class="thin {}"><path class="curve" d="{}"><title>trial {}: {}</title></path></g>"#,
            if place < best && study.may_be_best(trial) { "own" } else { "other" },
            path(points),
            trial.number,
            significant(*value)
        );
    }
    body.push_str(&axis(at(0), study.value_name(), &y, &y.ticks(5)));
    for (axis_place, parameter) in order.iter().enumerate() {
        let parameter = &study.parameters[*parameter];
        body.push_str(&axis(at(axis_place + 1), &parameter.name, &unit, &parameter.marks));
    }
    let title = if shown.len() < ranked.len() {
        format!("Parallel coordinates of the best {MOST_LINES} trials")
    } else {
        "Parallel coordinates".to_owned()
    };
    let legend = [("best tenth", "own"), ("others", "other")];
    // In a narrow window it is moved sideways; scaled down, nobody could read it.
    let picture = figure(&title, [width, FLOOR + 14.0], &body, &legend);
    format!(
        "<div class=\"scroll wide\" tabindex=\"0\" role=\"region\" aria-label=\"{title}\">{picture}</div>\n"
    )
}

/// A key that fits between two axes: its last parts.
fn short(name: &str) -> String {
    const MOST: usize = 20;
    if name.chars().count() <= MOST {
        return name.to_owned();
    }
    let ends = name.match_indices('.').map(|(at, _)| &name[at + 1..]);
    let fitting = ends.into_iter().find(|end| end.chars().count() < MOST);
    match fitting {
        Some(end) => format!("…{end}"),
        None => name.chars().take(MOST - 1).chain(['…']).collect(),
    }
}

/// An upright axis with its name above it.
fn axis(x: f64, name: &str, scale: &Scale, marks: &[(f64, String)]) -> String {
    let at = coordinate(x);
    let mut out = format!(
        r#"<path class="axis" d="M{at} {}V{}"/><text class="label" x="{at}" y="16" text-anchor="middle"><title>{}</title>{}</text>"#,
        coordinate(scale.at(f64::MAX)),
        coordinate(scale.at(f64::MIN)),
        escape(name),
        escape(&short(name))
    );
    for (value, label) in marks {
        let y = scale.at(*value);
        let _ = write!(
            out,
            r#"<path class="axis" d="M{at} {}h4"/><text class="tick" x="{}" y="{}">{}</text>"#,
            coordinate(y),
            coordinate(x + 6.0),
            coordinate(y + 3.5),
            escape(label)
        );
    }
    out
}

/// The value over each parameter.
pub(super) fn slices(study: &StudyReport) -> String {
    by_importance(study).into_iter().map(|parameter| slice(study, parameter)).collect()
}

fn slice(study: &StudyReport, place: usize) -> String {
    let parameter = &study.parameters[place];
    let title = format!("{} by {}", study.value_name(), parameter.name);
    let (ranked, marked) = (study.ranked(), study.marked());
    let Some(y_range) = range(ranked.iter().map(|(_, value)| *value)) else {
        return nothing(&title);
    };
    let x = Scale::linear([0.0, 1.0], LEFT + 8.0, WIDTH - RIGHT - 8.0);
    let y = Scale::fitting(y_range, HEIGHT - BOTTOM, TOP);
    let mut body = axes_with(&parameter.marks, &x, &y, &parameter.name);
    // Backwards, so that the best lies on top.
    for (trial, value) in ranked.iter().rev() {
        if let Some(Some((at, text))) = trial.parameters.get(place) {
            let text = format!("trial {}: {} at {text}", trial.number, significant(*value));
            let class = if marked == Some(trial.number) { "own" } else { "train" };
            let _ =
                write!(body, r#"<g class="{class}">{}</g>"#, dot(x.at(*at), y.at(*value), &text));
        }
    }
    let legend = [("complete trial", "train"), ("best", "own")];
    figure(&title, [WIDTH, HEIGHT], &body, &legend)
}

/// What the trials reported on their way.
pub(super) fn curves(study: &StudyReport) -> String {
    let title = format!("{} on the way", study.value_name());
    let (ranked, marked) = (study.ranked(), study.marked());
    let pruned = study.trials.iter().filter(|trial| trial.outcome == StudyOutcome::Pruned);
    let several = |trial: &&StudyTrial| trial.reports.len() > 1;
    // The best complete ones lie on top.
    let complete = ranked.iter().map(|(trial, _)| *trial).take(MOST_LINES / 2).rev();
    let shown: Vec<&StudyTrial> =
        pruned.take(MOST_LINES / 2).chain(complete).filter(several).collect();
    let reports = || shown.iter().flat_map(|trial| &trial.reports);
    let (Some(x_range), Some(y_range)) =
        (range(reports().map(|point| point.0)), range(reports().map(|point| point.1)))
    else {
        return String::new();
    };
    let x = Scale::linear(x_range, LEFT, WIDTH - RIGHT);
    let y = Scale::fitting(y_range, HEIGHT - BOTTOM, TOP);
    let mut body = axes_with(&whole_marks(&x, x_range), &x, &y, "epoch");
    for trial in &shown {
        let points = buckets(&trial.reports, MOST_POINTS);
        let points = points.iter().map(|b| (x.at((b.x[0] + b.x[1]) / 2.0), y.at(b.mean)));
        let own = marked == Some(trial.number);
        let _ = write!(
            body,
            r#"<g class="thin {}"><path class="curve" d="{}"><title>trial {}</title></path></g>"#,
            if own { "own" } else { class(trial.outcome) },
            path(points),
            trial.number
        );
    }
    let scale = if y.is_logarithmic() { ", logarithmic axis" } else { "" };
    let legend = [("complete", "train"), ("pruned", "other"), ("best", "own")];
    figure(&format!("{title}{scale}"), [WIDTH, HEIGHT], &body, &legend)
}

/// When each trial ran.
pub(super) fn timeline(study: &StudyReport) -> String {
    let end = |trial: &StudyTrial| trial.ended.filter(|end| end.is_finite());
    let times = study.trials.iter().flat_map(|trial| [end(trial), trial.started]).flatten();
    let Some([_, now]) = range(times) else { return String::new() };
    let begun: Vec<_> = study
        .trials
        .iter()
        .filter_map(|trial| Some((trial, trial.started.filter(|start| start.is_finite())?)))
        .collect();
    let begun = &begun[begun.len().saturating_sub(MOST_BARS)..];
    let row = (200.0 / begun.len().max(1) as f64).clamp(1.2, 12.0);
    let height = row * begun.len() as f64 + TOP + BOTTOM;
    let (unit, name) = match now {
        now if now < 300.0 => (1.0, "seconds"),
        now if now < 18_000.0 => (60.0, "minutes"),
        _ => (3600.0, "hours"),
    };
    let x = Scale::linear([0.0, now / unit], LEFT, WIDTH - RIGHT);
    let floor = height - BOTTOM;
    let mut body = String::new();
    for (value, label) in x.ticks(5) {
        let _ = write!(
            body,
            r#"<path class="grid" d="M{0} {TOP}V{floor}"/><text class="tick" x="{0}" y="{1}" text-anchor="middle">{label}</text>"#,
            coordinate(x.at(value)),
            coordinate(floor + 16.0)
        );
    }
    for (place, (trial, start)) in begun.iter().enumerate() {
        let (from, to) = (x.at(start / unit), x.at(end(trial).unwrap_or(now) / unit));
        let seconds = duration(end(trial).unwrap_or(now) - start);
        let _ = write!(
            body,
            r#"<g class="{}"><rect x="{}" y="{}" width="{}" height="{}"><title>trial {}: {}</title></rect></g>"#,
            class(trial.outcome),
            coordinate(from),
            coordinate(TOP + row * place as f64),
            coordinate((to - from).max(0.5)),
            coordinate((row * 0.85).max(1.0)),
            trial.number,
            escape(&seconds)
        );
    }
    let _ = write!(
        body,
        r#"<text class="name" x="{}" y="{}" text-anchor="end">{name}</text>"#,
        WIDTH - RIGHT,
        coordinate(height - 6.0)
    );
    let legend =
        [("complete", "train"), ("pruned", "other"), ("failed", "failed"), ("running", "running")];
    figure("When each trial ran", [WIDTH, height], &body, &legend)
}

#[cfg(test)]
mod tests {
    use super::super::study::StudyParameter;
    use super::*;

    fn trial(number: u64, value: f64) -> StudyTrial {
        StudyTrial {
            number,
            outcome: StudyOutcome::Complete,
            values: vec![value],
            parameters: vec![],
            reports: vec![(1.0, value + 1.0), (2.0, value + 0.5), (3.0, value)],
            feasible: true,
            started: None,
            ended: None,
            seconds: None,
            reason: None,
        }
    }

    fn study(values: &[f64]) -> StudyReport {
        let trials = values.iter().enumerate().map(|(n, value)| trial(n as u64, *value));
        StudyReport { trials: trials.collect(), ..StudyReport::default() }
    }

    /// What stands below the horizontal axis.
    fn places(page: &str) -> Vec<&str> {
        let marks = page.split(r#"text-anchor="middle">"#).skip(1);
        marks.filter_map(|mark| mark.split('<').next()).collect()
    }

    #[test]
    fn trials_and_epochs_are_counted_in_whole_numbers() {
        assert_eq!(places(&history(&study(&[3.0]))), ["0"]);
        assert_eq!(places(&history(&study(&[3.0, 1.0, 2.0]))), ["0", "1", "2"]);
        let page = curves(&study(&[3.0, 1.0]));
        assert_eq!(places(&page), ["1", "2", "3"]);
        assert!(page.contains(">epoch</text>") && !page.contains(">step</text>"), "{page}");
    }

    #[test]
    fn a_trial_that_violates_a_constraint_is_never_the_best() {
        let mut report = study(&[3.0, 1.0, 2.0]);
        let of = |page: &str, name: &str, from: &str| -> String {
            let after = page.split_once(name).unwrap().1.split_once(from).unwrap().1;
            after.split('"').next().unwrap().to_owned()
        };
        for (feasible, best, number) in [(true, "1.00", 1), (false, "2.00", 2)] {
            report.trials[1].feasible = feasible;
            let page = history(&report);
            let is_best = |dot: &&str| dot.contains(&format!(": {best}<"));
            let dot = page.split("<circle ").find(is_best).unwrap();
            let line = of(&page, r#"class="curve""#, "d=\"");
            assert!(line.ends_with(&format!(" {}", of(dot, "cx", "cy=\""))), "{line} {dot}");
            assert_eq!(report.marked(), Some(number));
        }
        assert_eq!(report.ranked().last().map(|(trial, _)| trial.number), Some(1));
        report.trials.iter_mut().for_each(|trial| trial.feasible = false);
        assert_eq!(report.marked(), None);
        assert!(!curves(&report).contains(r#"class="thin own""#));
    }

    #[test]
    fn the_trial_is_marked_whose_configuration_is_shown() {
        let mut report = study(&[3.0, 1.0, 2.0]);
        report.parameters = vec![StudyParameter { name: "width".to_owned(), marks: vec![] }];
        for trial in &mut report.trials {
            trial.parameters = vec![Some((0.5, "8".to_owned()))];
        }
        for (best, marked) in [(vec![], 1), (vec![2, 1], 2)] {
            report.best = best;
            let (slices, curves) = (slices(&report), curves(&report));
            let (_, own) = slices.split_once(r#"<g class="own">"#).unwrap();
            let title = format!("<title>trial {marked}: ");
            assert_eq!(own.find("<title>"), own.find(&title), "{slices}");
            let (_, own) = curves.split_once(r#"<g class="thin own">"#).unwrap();
            assert_eq!(own.find("<title>"), own.find(&format!("<title>trial {marked}<")));
        }
    }

    #[test]
    fn keys_are_shortened_from_the_front() {
        assert_eq!(short("loader.batch_size"), "loader.batch_size");
        assert_eq!(short("train.optimizer.adamw.learning_rate"), "…adamw.learning_rate");
        assert_eq!(short("model.bilstm-mae.hidden"), "…bilstm-mae.hidden");
        assert_eq!(short("one_name_that_has_no_parts_at_all"), "one_name_that_has_n…");
    }
}
