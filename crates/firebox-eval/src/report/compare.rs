//! Several runs on one page: curves, scores, the settings that differ, and where the time went.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::charts::{Curve, CurveChart, IntervalRow, curve_chart, interval_chart};
use super::html::{MADE_BY, Section, page, table};
use super::plot::words;
use super::sections::folded;
use super::write::replace;
use super::{Curves, Report, StepPoint, Table};
use crate::text::{count, duration, grouped, percent, significant};
use crate::{Estimate, EvalError, Fill, Head, Subject};

/// Trainings whose charts are not folded.
const SHOWN: usize = 12;

/// Runs that colours tell apart.
pub const MOST_RUNS: usize = 9;

/// A test score that a run tells, by a name that says what was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct TestScore {
    /// What was measured, such as `macro F1`; scores of one name are beside each other.
    pub metric: String,
    /// Which model of the run it is of; empty where the run has one.
    pub model: String,
    /// Its value with its interval.
    pub estimate: Estimate,
    /// Whether it is a share, written as a percentage.
    pub is_share: bool,
}

impl TestScore {
    /// A score of a run's one model that is written as a number.
    pub fn number(metric: impl Into<String>, estimate: Estimate) -> Self {
        Self { metric: metric.into(), model: String::new(), estimate, is_share: false }
    }

    /// A score of a run's one model that is written as a percentage.
    pub fn share(metric: impl Into<String>, estimate: Estimate) -> Self {
        Self { is_share: true, ..Self::number(metric, estimate) }
    }

    fn format(&self) -> fn(f64) -> String {
        if self.is_share { percent } else { significant }
    }
}

/// A run beside others.
#[derive(Clone, Debug, PartialEq)]
pub struct ComparedRun {
    /// What its events and its `scores.json` tell.
    pub report: Report,
    /// The test scores that a run of its kind tells first, beside those of a probe and of masked steps.
    pub tests: Vec<TestScore>,
    /// Which of its trainings the curves of the report are of, such as `pre-training`; empty where they are of the
    /// run's only one.
    pub own_training: String,
    /// Its settings: names with dots, and values as text.
    pub settings: BTreeMap<String, String>,
    /// Every score that its log tells, whatever its pipeline is.
    pub scores: BTreeMap<String, f64>,
    /// Times and rates by name.
    pub timings: Vec<(String, String)>,
    /// The curves of each training by its name, of a run that has several.
    pub trainings: BTreeMap<String, Curves>,
}

type Points = Vec<(f64, f64)>;

/// Each name once, sorted, the numbers in them by their size.
fn in_order<'a>(names: impl Iterator<Item = &'a String>) -> Vec<&'a String> {
    let mut names: Vec<&String> = names.collect::<BTreeSet<_>>().into_iter().collect();
    names.sort_by_cached_key(|&name| pieces(name));
    names
}

/// What names are sorted by: text and the number behind it, in turn. Of a number with decimals, these are a text of
/// their own, which begins with the point.
fn pieces(name: &str) -> Vec<(&str, u64)> {
    let mut pieces = vec![];
    let mut rest = name;
    while !rest.is_empty() {
        let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let begin = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let is_fraction = !pieces.is_empty() && &rest[..begin] == ".";
        let end = begin + digits(&rest[begin..]);
        if is_fraction {
            // Digits behind the point compare as text: .05 comes before .1.
            pieces.push((&rest[..end], 0));
        } else {
            let number = &rest[begin..end];
            let none = if number.is_empty() { 0 } else { u64::MAX };
            pieces.push((&rest[..begin], number.parse().unwrap_or(none)));
        }
        rest = &rest[end..];
    }
    pieces
}

/// Several runs on one page, at most [`MOST_RUNS`].
#[derive(Clone, Debug, PartialEq)]
pub struct SideBySide {
    runs: Vec<ComparedRun>,
}

impl SideBySide {
    /// Puts runs side by side. Runs of one name are numbered.
    ///
    /// # Errors
    ///
    /// When there are fewer than two runs, or more than can be told apart.
    pub fn new(mut runs: Vec<ComparedRun>) -> Result<Self, EvalError> {
        if !(2..=MOST_RUNS).contains(&runs.len()) {
            return Err(EvalError::Runs { found: runs.len(), most: MOST_RUNS });
        }
        let mut names: Vec<String> = runs.iter().map(|run| run.report.run.clone()).collect();
        for place in 1..names.len() {
            let own = names[place].clone();
            if names[..place].contains(&own) {
                let numbered = (2..).map(|number| format!("{own} ({number})"));
                let free = numbered.into_iter().find(|name| !names.contains(name));
                names[place] = free.unwrap_or(own);
            }
        }
        runs.iter_mut().zip(names).for_each(|(run, name)| run.report.run = name);
        Ok(Self { runs })
    }

    /// Writes the page, whole or not at all. It replaces an older page of Firebox, and no other file.
    ///
    /// # Errors
    ///
    /// When the file is something else, or cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), EvalError> {
        if path.exists() && !fs::read_to_string(path).is_ok_and(|text| text.contains(MADE_BY)) {
            return Err(EvalError::NotOurs { path: path.to_owned() });
        }
        replace(path, &self.html())
    }

    /// The page.
    pub fn html(&self) -> String {
        let title = format!("Comparison of {}", count(self.runs.len(), "run"));
        let names: Vec<String> = self.runs.iter().map(|run| run.report.run.clone()).collect();
        let head = format!(
            "<header>\n<h1>{title}</h1>\n<p class=\"note\">{}</p>\n</header>\n",
            words(&names.join(", "))
        );
        let sections = [
            ("runs", "Runs", table(&self.overview(), false)),
            ("curves", "Curves", self.curves()),
            ("scores", "Scores", self.scores()),
            ("settings", "Settings that differ", table(&self.settings(), false)),
            ("time", "Time", table(&self.timings(), false)),
        ];
        let sections: Vec<Section> = sections
            .into_iter()
            .filter(|(.., body)| !body.is_empty())
            .map(|(id, title, body)| Section { id: id.into(), title: title.into(), body })
            .collect();
        page(&title, &head, &sections, "each run has a report of its own in its folder")
    }

    fn overview(&self) -> Table {
        let columns = ["run", "outcome", "steps", "best validation loss", "test", "time"];
        let rows = self.runs.iter().map(|run| {
            let report = &run.report;
            let best = report.best_epoch().map_or_else(
                || "–".to_owned(),
                |(epoch, loss)| {
                    let of = match run.own_training.as_str() {
                        "" => String::new(),
                        of => format!("{of}, "),
                    };
                    format!("{} ({of}epoch {})", significant(loss), epoch.epoch)
                },
            );
            let outcome = if report.outcome.is_empty() { "not ended" } else { &report.outcome };
            let (name, outcome) = (report.run.clone(), outcome.to_owned());
            vec![name, outcome, steps(run), best, told(run), duration(report.seconds)]
        });
        let note = "Losses compare between runs of one kind that learn the same targets by the same loss, in the same units: those of values and of changes do not. Each test score is the one that the run itself tells first.";
        Table {
            title: "Runs".to_owned(),
            note: note.to_owned(),
            columns: columns.map(str::to_owned).to_vec(),
            rows: rows.collect(),
        }
    }

    /// A curve for each run; nothing where no run has one.
    fn chart(
        &self,
        title: &str,
        value: &str,
        wide: bool,
        name: &dyn Fn(&ComparedRun) -> String,
        points: &dyn Fn(&ComparedRun) -> Points,
    ) -> Option<String> {
        let names: Vec<String> = self.runs.iter().map(name).collect();
        let curves = self.runs.iter().zip(&names).zip(COLOURS).map(|((run, name), class)| {
            let points = points(run);
            Curve { name, class, dots: points.len() <= 40, points }
        });
        let curves: Vec<Curve<'_>> = curves.filter(|curve| !curve.points.is_empty()).collect();
        let title = match curves.as_slice() {
            [] => return None,
            // It has no legend.
            [one] => format!("{title} ({})", one.name),
            _ => title.to_owned(),
        };
        let (title, axis, level) = (&title, "step", None);
        Some(curve_chart(&CurveChart { title, axis, value, curves, wide, level }))
    }

    fn curves(&self) -> String {
        let of = |run: &ComparedRun, value: fn(&StepPoint) -> f64| -> Points {
            let steps = &run.report.curves.steps;
            steps.iter().map(|point| (point.step as f64, value(point))).collect()
        };
        let name = |run: &ComparedRun| match run.own_training.as_str() {
            "" => run.report.run.clone(),
            own => format!("{}, {own}", run.report.run),
        };
        let chart = |title, value, points: &dyn Fn(&ComparedRun) -> Points| {
            self.chart(title, value, true, &name, points)
        };
        let charts = [
            chart("Validation loss", "loss", &|run| validation(&run.report.curves)),
            chart("Training loss, mean of each epoch", "loss", &|run| means(&run.report.curves)),
            chart("Training loss of each step", "loss", &|run| of(run, |p| p.loss)),
            chart("Learning rate", "learning rate", &|run| of(run, |p| p.learning_rate)),
            chart("Gradient norm", "gradient norm", &|run| of(run, |p| p.gradient_norm)),
        ];
        let trainings = self.trainings();
        match charts.into_iter().flatten().collect::<String>() {
            none if none.is_empty() && trainings.is_empty() => {
                "<p>None of these runs has trained yet.</p>\n".to_owned()
            }
            none if none.is_empty() => trainings,
            own => format!("<div class=\"grid\">{own}</div>\n{trainings}"),
        }
    }

    /// A chart for each training of runs that have several, by name; those behind the first are folded.
    fn trainings(&self) -> String {
        let names = in_order(self.runs.iter().flat_map(|run| run.trainings.keys()));
        let chart = |name: &String| {
            let curves = |run: &ComparedRun, points: fn(&Curves) -> Points| {
                run.trainings.get(name).map(points).unwrap_or_default()
            };
            let title = |what: &str| format!("{name}: {what}");
            let of = |run: &ComparedRun| run.report.run.clone();
            let chart = |title: &str, points: fn(&Curves) -> Points| {
                self.chart(title, "loss", false, &of, &|run| curves(run, points))
            };
            chart(&title("validation loss"), validation)
                .or_else(|| chart(&title("training loss, mean of each epoch"), means))
        };
        let charts: Vec<String> = names.into_iter().filter_map(chart).collect();
        if charts.is_empty() {
            return String::new();
        }
        let (shown, rest) = charts.split_at(charts.len().min(SHOWN));
        let grid = |charts: &[String]| format!("<div class=\"grid\">{}</div>", charts.concat());
        let more = match rest {
            [] => String::new(),
            some => folded(&count(some.len(), "more training"), &grid(some)),
        };
        let note = "Trainings of one name are beside each other.";
        format!("<h3>Trainings</h3>\n<p class=\"note\">{note}</p>{}\n{more}", grid(shown))
    }

    fn scores(&self) -> String {
        let all: Vec<(&str, TestScore)> = self
            .runs
            .iter()
            .flat_map(|run| tests(run).into_iter().map(move |test| (run.report.run.as_str(), test)))
            .collect();
        if all.is_empty() && self.runs.iter().all(|run| run.scores.is_empty()) {
            return "<p>None of these runs has scores yet.</p>\n".to_owned();
        }
        let note = "Runs on other data, another split or another mask are not measured on the same windows; the settings below say whether these are.";
        let own = match all.is_empty() {
            true => String::new(),
            false => format!(
                "<div class=\"grid\">{}</div>\n{}",
                score_charts(&all),
                table(&score_table(&all), false)
            ),
        };
        format!("<p class=\"note\">{note}</p>{own}{}", table(&self.all_scores(), true))
    }

    fn all_scores(&self) -> Table {
        let names = in_order(self.runs.iter().flat_map(|run| run.scores.keys()));
        let rows = names.into_iter().map(|name| {
            let value = |run: &ComparedRun| {
                run.scores.get(name).map_or_else(|| "–".to_owned(), |value| significant(*value))
            };
            std::iter::once(name.clone()).chain(self.runs.iter().map(value)).collect()
        });
        self.beside("score", "Every score in the logs", String::new(), rows.collect())
    }

    /// The table of a value for each run, under the names of the runs.
    fn beside(&self, first: &str, title: &str, note: String, rows: Vec<Vec<String>>) -> Table {
        let names = self.runs.iter().map(|run| run.report.run.clone());
        let columns = std::iter::once(first.to_owned()).chain(names).collect();
        Table { title: title.to_owned(), note, columns, rows }
    }

    fn settings(&self) -> Table {
        let names = in_order(self.runs.iter().flat_map(|run| run.settings.keys()));
        let row = |name: &&String| -> Option<Vec<String>> {
            let values = self.runs.iter().map(|run| run.settings.get(*name));
            let values: Vec<Option<&String>> = values.collect();
            let differs = values.iter().any(|value| *value != values[0]);
            let text = |value: Option<&String>| value.map_or("not set", String::as_str).to_owned();
            let cells = std::iter::once((*name).clone()).chain(values.into_iter().map(text));
            differs.then(|| cells.collect())
        };
        let mut rows: Vec<Vec<String>> = names.iter().filter_map(row).collect();
        let same = names.len() - rows.len();
        // Files may change under settings that stay.
        let data = self.runs.iter().map(|run| {
            let read = run.report.stages.iter().find(|stage| stage.name == "ingest");
            read.and_then(|stage| stage.key.as_deref())
        });
        let data: Vec<Option<&str>> = data.collect();
        if data.iter().flatten().any(|key| Some(*key) != data.iter().flatten().next().copied()) {
            let cells = data.into_iter().map(|key| key.unwrap_or("not known").to_owned());
            let name = "what was read of the data (its key)".to_owned();
            rows.insert(0, std::iter::once(name).chain(cells).collect());
        }
        if rows.is_empty() {
            let none = std::iter::once("nothing differs".to_owned());
            rows.push(none.chain(self.runs.iter().map(|_| "–".to_owned())).collect());
        }
        let note = match same {
            1 => "1 setting is the same in all of these runs.".to_owned(),
            _ => format!("{} are the same in all of these runs.", count(same, "setting")),
        };
        self.beside("setting", "Settings that differ", note, rows)
    }

    fn timings(&self) -> Table {
        let mut names: Vec<&String> = vec![];
        for (name, _) in self.runs.iter().flat_map(|run| &run.timings) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let rows = names.into_iter().map(|name| {
            let value = |run: &ComparedRun| {
                let found = run.timings.iter().find(|known| known.0 == *name);
                found.map_or_else(|| "–".to_owned(), |known| known.1.clone())
            };
            std::iter::once(name.clone()).chain(self.runs.iter().map(value)).collect()
        });
        let note = "Over all attempts of each run. Times of runs on different machines, or beside other work, do not compare.";
        self.beside("", "Time", note.to_owned(), rows.collect())
    }
}

pub(super) const COLOURS: [&str; MOST_RUNS] =
    ["c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8"];

/// Validation losses by step.
fn validation(curves: &Curves) -> Points {
    let losses = curves.epochs.iter();
    losses.filter_map(|epoch| Some((epoch.step as f64, epoch.validation_loss?))).collect()
}

/// Mean training losses of epochs by step.
fn means(curves: &Curves) -> Points {
    curves.epochs.iter().map(|epoch| (epoch.step as f64, epoch.train_loss)).collect()
}

/// The steps of a run's own training, and those of the trainings within it.
fn steps(run: &ComparedRun) -> String {
    let ComparedRun { report, own_training, trainings, .. } = run;
    let mut said = vec![];
    let own = report.curves.taken().unwrap_or(0);
    if own > 0 {
        let skipped = match report.curves.skipped.len() {
            0 => String::new(),
            some => format!(" ({some} skipped)"),
        };
        let of = match own_training.as_str() {
            "" => String::new(),
            of => format!(" in the {of}"),
        };
        said.push(grouped(own as f64) + &skipped + &of);
    }
    let within: u64 = trainings.values().filter_map(Curves::taken).sum();
    if within > 0 {
        let what = if own > 0 { "other training" } else { "training" };
        said.push(format!("{} in {}", grouped(within as f64), count(trainings.len(), what)));
    }
    match said.is_empty() {
        true => "–".to_owned(),
        false => said.join(", "),
    }
}

/// The score that a run tells first, of each of its models.
fn told(run: &ComparedRun) -> String {
    let all = tests(run);
    let Some(first) = all.first() else { return "–".to_owned() };
    let value = |test: &TestScore| test.format()(test.estimate.value);
    if first.model.is_empty() {
        return format!("{} {}", value(first), first.metric);
    }
    let same = all.iter().filter(|test| test.metric == first.metric);
    let of_each: Vec<String> = same.map(|test| format!("{} {}", test.model, value(test))).collect();
    format!("{}: {}", first.metric, of_each.join(", "))
}

/// Every test score with its interval, the one that a run tells first before the others.
fn tests(run: &ComparedRun) -> Vec<TestScore> {
    let more = own_score(&run.report).into_iter().chain(own_error(&run.report));
    let all = run.tests.iter().cloned().chain(more);
    all.filter(|test| test.estimate.value.is_finite()).collect()
}

/// A chart for each name of a score.
fn score_charts(all: &[(&str, TestScore)]) -> String {
    // A share and a number of one name are on other axes.
    let kind = |test: &TestScore| (test.metric.clone(), test.is_share);
    let mut metrics: Vec<(String, bool)> = vec![];
    for (_, test) in all {
        if !metrics.contains(&kind(test)) {
            metrics.push(kind(test));
        }
    }
    let chart = |metric: (String, bool)| {
        let of_metric: Vec<_> = all.iter().filter(|(_, test)| kind(test) == metric).collect();
        let row = |(run, test): &&(&str, TestScore)| IntervalRow {
            label: match test.model.as_str() {
                "" => (*run).to_owned(),
                model => format!("{run}, {model}"),
            },
            estimate: test.estimate,
            own: false,
        };
        let rows: Vec<IntervalRow> = of_metric.iter().map(row).collect();
        let (_, first) = of_metric.first()?;
        let title = format!("Test {}, with its interval", metric.0);
        Some(interval_chart(&title, &rows, !first.is_share, first.format()))
    };
    metrics.into_iter().filter_map(chart).collect()
}

fn score_table(all: &[(&str, TestScore)]) -> Table {
    let row = |(run, test): &(&str, TestScore)| {
        let what = match test.model.as_str() {
            "" => test.metric.clone(),
            model => format!("{}, {model}", test.metric),
        };
        vec![(*run).to_owned(), what, test.estimate.with_interval(test.format())]
    };
    Table {
        title: "Scores".to_owned(),
        note: String::new(),
        columns: ["run", "test score", "value"].map(str::to_owned).to_vec(),
        rows: all.iter().map(row).collect(),
    }
}

/// What a probe on the frozen encoder reaches.
fn own_score(report: &Report) -> Option<TestScore> {
    let evaluation = report.evaluation.as_ref()?;
    let score = evaluation.score(Subject::PreTrained, Some(Head::Logistic))?;
    let name = format!("{} of a linear probe", evaluation.metric.name());
    Some(TestScore::share(name, score.metric(evaluation.metric)))
}

fn own_error(report: &Report) -> Option<TestScore> {
    let mut scores = report.reconstruction.as_ref()?.scores.iter();
    let own = scores.find(|score| score.fill == Fill::Model)?;
    Some(TestScore::number("mean squared error on masked steps", own.mean_squared_error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_are_sorted_as_numbers() {
        let names = ["demand +24/mae", "demand +1/mae", "demand +6/mae", "a", "demand", "a"];
        let names = names.map(str::to_owned);
        let expected = ["a", "demand", "demand +1/mae", "demand +6/mae", "demand +24/mae"];
        assert_eq!(in_order(names.iter()), expected);
        let shares =
            ["share-1/seed-10", "share-0.5/b", "share-0.25/b", "share-0.05/b", "share-0.1/b"];
        let shares = shares.map(str::to_owned);
        let expected =
            ["share-0.05/b", "share-0.1/b", "share-0.25/b", "share-0.5/b", "share-1/seed-10"];
        assert_eq!(in_order(shares.iter()), expected);
    }
}
