//! The report of a search: what was tried, what came of it, and which settings mattered.
//!
//! Plain rows that a study fills; nothing here knows how trials are sampled or stored.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::html::{Section, card, facts, page, table};
use super::plot::{escape, words};
use super::study_charts::{curves, history, importances, parallel, pareto, slices, timeline};
use super::write::replace;
use super::{Fact, Table};
use crate::EvalError;
use crate::text::{count, duration, percent, significant};

/// Trials that the table lists.
const MOST_ROWS: usize = 50;

/// Everything that the page of a search shows. A part that is empty is left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StudyReport {
    /// What was searched, such as the pipeline's name.
    pub title: String,
    /// Name of the study.
    pub study: String,
    /// When the page was made, as text.
    pub created: String,
    /// Short facts for the head of the page, such as the sampler.
    pub facts: Vec<Fact>,
    /// What was to be made small or great. The pictures show the first.
    pub objectives: Vec<StudyObjective>,
    /// The settings that were searched.
    pub parameters: Vec<StudyParameter>,
    /// All trials in the order of their numbers.
    pub trials: Vec<StudyTrial>,
    /// Names of parameters with their shares of the variance, the greatest first.
    pub importances: Vec<(String, f64)>,
    /// Numbers of the trials that no other beats in all objectives; the best one alone with one
    /// objective. The configuration is that of the first.
    pub best: Vec<u64>,
    /// Seconds in which at least one trial ran, so that pauses between commands do not count. Left out: those from the
    /// first beginning to the last end.
    pub seconds: Option<f64>,
    /// What giving up trials early saved.
    pub saved: Option<Saved>,
    /// The best trial as a pipeline file, ready to run.
    pub configuration: String,
    /// What the user should know.
    pub warnings: Vec<String>,
}

/// An objective of a study.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StudyObjective {
    /// Its name, such as `validation loss`.
    pub name: String,
    /// Whether great values are better.
    pub maximize: bool,
}

/// A setting that was searched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StudyParameter {
    /// Its name, such as `model.width`.
    pub name: String,
    /// Places on its axis, from 0 to 1, that have a mark, with their labels.
    pub marks: Vec<(f64, String)>,
}

/// How a trial ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StudyOutcome {
    /// With values.
    Complete,
    /// Given up early.
    Pruned,
    /// With an error.
    Failed,
    /// Not yet.
    Running,
    /// Not yet begun.
    Waiting,
}

/// A trial.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StudyTrial {
    /// Its number.
    pub number: u64,
    /// How it ended.
    pub outcome: StudyOutcome,
    /// Values of the objectives of a complete trial.
    pub values: Vec<f64>,
    /// Of each parameter, where its value lies on the axis, from 0 to 1, and the value as text.
    /// `None` for a parameter that the trial does not have.
    pub parameters: Vec<Option<(f64, String)>>,
    /// Whether it violates no constraint: one that does is never the best.
    #[serde(default = "feasible")]
    pub feasible: bool,
    /// Values reported on the way, by epoch.
    pub reports: Vec<(f64, f64)>,
    /// When it began, in seconds since the study did.
    pub started: Option<f64>,
    /// When it ended, in seconds since the study began.
    pub ended: Option<f64>,
    /// Seconds that it took, with the tries that it goes on with. Left out: those from its start to its end.
    pub seconds: Option<f64>,
    /// Why it failed.
    pub reason: Option<String>,
}

/// What a trial is of which nothing else is said.
fn feasible() -> bool {
    true
}

/// What giving up trials early saved: the median time of complete trials, less the pruned trials' own.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// Seconds of trials that were not spent.
    pub seconds: f64,
    /// Seconds of trials that were spent.
    pub spent: f64,
}

/// Where the report of a study lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenStudy {
    /// One page without anything from a network.
    pub html: PathBuf,
    /// All figures.
    pub figures: PathBuf,
}

impl StudyReport {
    /// The page, as `report.html` holds it.
    pub fn html(&self) -> String {
        let sections = [
            ("warnings", "Warnings", self.warning_list()),
            ("history", "History", self.history()),
            ("parameters", "Parameters", self.parameter_charts()),
            ("time", "On the way", self.over_time()),
            (
                "trials",
                "Trials",
                table(&self.trial_table(), false) + &table(&self.failure_table(), true),
            ),
            ("configuration", "Best configuration", self.best_configuration()),
        ];
        let sections: Vec<Section> = sections
            .into_iter()
            .filter(|(.., body)| !body.is_empty())
            .map(|(id, title, body)| Section { id: id.into(), title: title.into(), body })
            .collect();
        page(
            &format!("{}: search", self.title),
            &self.head(),
            &sections,
            "all figures are in <code>study.json</code> beside it",
        )
    }

    /// Writes `report.html` and `study.json` into `folder`, each whole or not at all.
    ///
    /// # Errors
    ///
    /// When the folder cannot be made or a file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<WrittenStudy, EvalError> {
        let error = |source| EvalError::Write { path: folder.to_owned(), source };
        fs::create_dir_all(folder).map_err(error)?;
        let written =
            WrittenStudy { html: folder.join("report.html"), figures: folder.join("study.json") };
        replace(&written.html, &self.html())?;
        // Numbers that are not finite become null.
        let mut figures = format!("{:#}", serde_json::json!(self));
        figures.push('\n');
        replace(&written.figures, &figures)?;
        Ok(written)
    }

    /// The value of the first objective of a complete trial, if it is a number.
    pub(super) fn value(trial: &StudyTrial) -> Option<f64> {
        let complete = trial.outcome == StudyOutcome::Complete;
        trial.values.first().copied().filter(|value| complete && value.is_finite())
    }

    /// Whether `a` is a better value of the first objective than `b`.
    pub(super) fn is_better(&self, a: f64, b: f64) -> bool {
        if self.objectives.first().is_some_and(|objective| objective.maximize) {
            a > b
        } else {
            a < b
        }
    }

    /// Name of the first objective.
    pub(super) fn value_name(&self) -> &str {
        self.objectives.first().map_or("value", |objective| &objective.name)
    }

    /// Whether a trial may be called the best: it violates no constraint, and all its values are numbers.
    pub(super) fn may_be_best(&self, trial: &StudyTrial) -> bool {
        trial.feasible
            && trial.values.len() >= self.objectives.len()
            && trial.values.iter().all(|value| value.is_finite())
    }

    /// The trial that the card names and the pictures mark: the one whose configuration the page shows, or the
    /// best one where there is no configuration.
    pub(super) fn marked(&self) -> Option<u64> {
        let first = self.ranked().first().copied()?.0;
        self.may_be_best(first).then_some(first.number)
    }

    /// Complete trials by their value of the first objective, the best first. Before all others stands the one whose
    /// configuration is shown, and behind them those that may not be called the best.
    pub(super) fn ranked(&self) -> Vec<(&StudyTrial, f64)> {
        let valued = self.trials.iter().filter_map(|trial| Some((trial, Self::value(trial)?)));
        let mut ranked: Vec<_> = valued.collect();
        let maximize = self.objectives.first().is_some_and(|objective| objective.maximize);
        let loss = |value: f64| if maximize { -value } else { value };
        let group = |trial: &StudyTrial| match self.may_be_best(trial) {
            true if self.best.first() == Some(&trial.number) => 0,
            true => 1,
            false => 2,
        };
        ranked.sort_by(|a, b| {
            let by_group = group(a.0).cmp(&group(b.0));
            by_group.then(loss(a.1).total_cmp(&loss(b.1))).then(a.0.number.cmp(&b.0.number))
        });
        ranked
    }

    fn count(&self, outcome: StudyOutcome) -> usize {
        self.trials.iter().filter(|trial| trial.outcome == outcome).count()
    }

    fn head(&self) -> String {
        let own = [("Study", self.study.as_str()), ("Made", self.created.as_str())];
        let more = self.facts.iter().map(|fact| (fact.name.as_str(), fact.value.as_str()));
        let mut cards = self.best_card();
        let of_all = [
            (StudyOutcome::Complete, "complete"),
            (StudyOutcome::Pruned, "pruned"),
            (StudyOutcome::Failed, "failed"),
            (StudyOutcome::Running, "running"),
            (StudyOutcome::Waiting, "waiting"),
        ];
        let parts: Vec<String> = of_all
            .into_iter()
            .map(|(outcome, name)| (self.count(outcome), name))
            .filter(|(number, _)| *number > 0)
            .map(|(number, name)| format!("{number} {name}"))
            .collect();
        cards += &card("Trials", &self.trials.len().to_string(), &[parts.join(", ")], "");
        cards += &self.pruned_card();
        let ends = self.trials.iter().filter_map(|trial| trial.ended.or(trial.started));
        let last = ends.filter(|end| end.is_finite()).fold(0.0, f64::max);
        let total = self.seconds.unwrap_or(last);
        let spent = self.saved.map(|saved| format!("{} of trials", duration(saved.spent)));
        cards += &card("Time", &duration(total), &[spent.unwrap_or_default()], "");
        format!(
            "<header>\n<h1>{}</h1>\n{}<div class=\"cards\">\n{cards}</div>\n</header>\n",
            words(&self.title),
            facts(own.into_iter().chain(more))
        )
    }

    fn best_card(&self) -> String {
        let title = format!("Best {}", self.value_name());
        let ranked = self.ranked();
        let candidates = ranked.iter().filter(|(trial, _)| self.may_be_best(trial)).count();
        let Some((trial, value)) = ranked.first().copied().filter(|_| candidates > 0) else {
            let why = match ranked.is_empty() {
                true => "No trial is complete.",
                false => "No complete trial keeps to the constraints and has all values.",
            };
            return card(&title, "–", &[why.to_owned()], "open");
        };
        let front = (self.objectives.len() > 1)
            .then(|| format!("{} on the Pareto front", count(self.best.len(), "trial")));
        // What is chosen by a figure has more of it than it is worth.
        let chosen = match candidates {
            1 => String::new(),
            some => format!(
                "the best of {some} by this very figure, and too good by what chance gives it: run it anew on data that chose nothing"
            ),
        };
        let notes = [format!("trial {}", trial.number), front.unwrap_or_default(), chosen];
        card(&title, &significant(value), &notes, "good")
    }

    fn pruned_card(&self) -> String {
        let ended = self.count(StudyOutcome::Complete) + self.count(StudyOutcome::Pruned);
        let pruned = self.count(StudyOutcome::Pruned);
        if pruned == 0 {
            let complete = self.count(StudyOutcome::Complete);
            let note = match complete == self.trials.len() {
                true => "Every trial ran to its end.".to_owned(),
                false => {
                    format!("{complete} of {} ran to their end.", count(self.trials.len(), "trial"))
                }
            };
            return card("Pruned", "none", &[note], "");
        }
        let note = self.saved.map(|saved| {
            let share = saved.seconds / (saved.seconds + saved.spent);
            format!("saved about {}, {} of the time", duration(saved.seconds), percent(share))
        });
        let share = percent(pruned as f64 / ended as f64);
        card("Pruned", &share, &[format!("{pruned} of {ended}"), note.unwrap_or_default()], "")
    }

    fn warning_list(&self) -> String {
        if self.warnings.is_empty() {
            return String::new();
        }
        let item = |warning: &String| format!("<li>{}</li>", words(warning));
        format!(
            "<ul class=\"warnings\">{}</ul>\n",
            self.warnings.iter().map(item).collect::<String>()
        )
    }

    fn history(&self) -> String {
        let second = if self.objectives.len() > 1 { pareto(self) } else { importances(self) };
        format!("<div class=\"grid\">{}{second}</div>\n", history(self))
    }

    fn parameter_charts(&self) -> String {
        if self.parameters.is_empty() {
            return String::new();
        }
        let shares = match self.objectives.len() > 1 {
            // One picture alone would be as wide as the page.
            true => format!("<div class=\"half\">{}</div>\n", importances(self)),
            false => String::new(),
        };
        format!("{shares}{}<div class=\"grid\">{}</div>\n", parallel(self), slices(self))
    }

    fn over_time(&self) -> String {
        let (curves, timeline) = (curves(self), timeline(self));
        if curves.is_empty() && timeline.is_empty() {
            return String::new();
        }
        // One picture alone would be as wide as the page.
        let class = if curves.is_empty() || timeline.is_empty() { "half" } else { "grid" };
        format!("<div class=\"{class}\">{curves}{timeline}</div>\n")
    }

    fn best_configuration(&self) -> String {
        if self.configuration.is_empty() {
            return String::new();
        }
        format!("<pre><code>{}</code></pre>\n", escape(&self.configuration))
    }

    /// Trials that failed, newest last, with their reasons: sentences that need the width of a table
    /// of their own.
    fn failure_table(&self) -> Table {
        let failed = self.trials.iter().filter(|trial| trial.outcome == StudyOutcome::Failed);
        let told = failed.filter_map(|trial| Some((trial.number, trial.reason.clone()?)));
        let rows = told.take(MOST_ROWS).map(|(number, reason)| vec![number.to_string(), reason]);
        Table {
            title: "Failures".to_owned(),
            note: String::new(),
            columns: vec!["trial".to_owned(), "reason".to_owned()],
            rows: rows.collect(),
        }
    }

    /// The best trials, and after them those that failed. Those that were given up have no value of their own.
    fn trial_table(&self) -> Table {
        let ranked = self.ranked();
        let failed = self.trials.iter().filter(|trial| trial.outcome == StudyOutcome::Failed);
        let shown: Vec<&StudyTrial> = ranked
            .iter()
            .map(|(trial, _)| *trial)
            .take(MOST_ROWS)
            .chain(failed.take(MOST_ROWS))
            .collect();
        let names = self.objectives.iter().map(|objective| objective.name.clone());
        let columns = ["trial".to_owned()]
            .into_iter()
            .chain(names)
            .chain(self.parameters.iter().map(|parameter| parameter.name.clone()))
            .chain(["time".to_owned()]);
        let row = |trial: &&StudyTrial| {
            let value =
                |place| trial.values.get(place).map_or("–".to_owned(), |v| significant(*v));
            let setting = |place: usize| match trial.parameters.get(place) {
                Some(Some((_, text))) => text.clone(),
                _ => "–".to_owned(),
            };
            let ran = trial.started.zip(trial.ended).map(|(start, end)| end - start);
            let time = trial.seconds.or(ran).map(duration);
            let mut row = vec![trial.number.to_string()];
            row.extend((0..self.objectives.len()).map(value));
            row.extend((0..self.parameters.len()).map(setting));
            row.push(time.unwrap_or_else(|| "–".to_owned()));
            row
        };
        let rows: Vec<_> = shown.iter().map(row).collect();
        let best = match ranked.len() > MOST_ROWS {
            true => format!("The best {MOST_ROWS} of {} complete trials.", ranked.len()),
            false => String::new(),
        };
        let left = match self.trials.len() - shown.len() {
            0 => String::new(),
            _ => format!(
                "{} of {} are shown; all are in study.json.",
                shown.len(),
                count(self.trials.len(), "trial")
            ),
        };
        let note =
            [best, left].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
        Table { title: "Trials".to_owned(), note, columns: columns.collect(), rows }
    }
}
