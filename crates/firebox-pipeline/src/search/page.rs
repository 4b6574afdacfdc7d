//! The study as a page, `report.html`, and as text, `summary.md`, beside the best pipeline.

use std::path::{Path, PathBuf};

use firebox_eval::{
    Fact, Saved, StudyObjective, StudyOutcome, StudyParameter, StudyReport, StudyTrial,
};
use firebox_search::{
    Direction, Distribution, FanovaConfig, Space, Study, Trial, TrialState, importances, savings,
    seconds_taken,
};

use super::conclude::is_feasible;
use super::{Objective, Objectives};
use crate::error::{PipelineError, at};

/// User attribute of a trial with the reason of its failure.
pub(super) const REASON: &str = "fail_reason";
/// Marks of an axis.
const MARKS: usize = 5;

/// What the page shows.
pub(super) struct About<'a> {
    pub(super) study: &'a Study,
    /// The last try of each trial.
    pub(super) trials: &'a [Trial],
    /// All tries, in the order of their numbers: each took its time.
    pub(super) all: &'a [Trial],
    /// Seconds in which at least one of them ran.
    pub(super) seconds: f64,
    pub(super) space: &'a Space,
    pub(super) storage: &'a str,
    pub(super) objectives: &'a Objectives,
    pub(super) sampler: &'static str,
    pub(super) pruner: &'static str,
    /// Why no more trials are begun, if so.
    pub(super) ended: Option<String>,
    /// Numbers of the best trials: one, or those on the Pareto front of several objectives.
    pub(super) best: Vec<u64>,
    /// The best trial as a pipeline file.
    pub(super) configuration: String,
    pub(super) warnings: Vec<String>,
}

/// Writes the page and the text, and returns the path of the page.
pub(super) fn write(folder: &Path, about: &About<'_>) -> Result<PathBuf, PipelineError> {
    let shares = shares(about.trials);
    let path = folder.join("summary.md");
    replace(&path, &summary(about, &shares))?;
    Ok(report(about, shares).write(folder)?.html)
}

/// Writes a file beside the old one and puts it in its place: what was there stays if the disk is full.
pub(super) fn replace(path: &Path, text: &str) -> Result<(), PipelineError> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(".{}", std::process::id()));
    let draft = PathBuf::from(draft);
    let written = std::fs::write(&draft, text).and_then(|()| std::fs::rename(&draft, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&draft);
    }
    written.map_err(at(path))
}

fn report(about: &About<'_>, shares: Vec<(String, f64)>) -> StudyReport {
    let About { study, trials, space, storage, objectives, sampler, pruner, .. } = about;
    let began = trials.iter().filter_map(|trial| trial.started).fold(f64::INFINITY, f64::min);
    let parameters = space.parameters().iter();
    let axes: Vec<(&String, &Distribution)> =
        parameters.map(|(name, parameter)| (name, &parameter.distribution)).collect();
    let mark = |(name, axis): &(&String, &Distribution)| StudyParameter {
        name: (*name).clone(),
        marks: axis.marks(MARKS),
    };
    let fact = |name: &str, value: &str| Fact::new(name, value);
    let mut facts =
        vec![fact("sampler", sampler), fact("pruner", pruner), fact("journal", storage)];
    facts.extend(continued(trials).iter().map(|told| fact("tried again", told)));
    facts.extend(about.ended.iter().map(|ended| fact("no more trials", ended)));
    let shown = |trial: &Trial| {
        let seconds = seconds_taken(about.all, trial);
        StudyTrial { seconds, ..row(trial, began, &axes) }
    };
    StudyReport {
        title: format!("Search of {}", study.name()),
        study: study.name().to_owned(),
        created: crate::page::now(),
        facts,
        objectives: objectives.all().iter().map(objective).collect(),
        parameters: axes.iter().map(mark).collect(),
        trials: trials.iter().map(shown).collect(),
        importances: shares,
        best: about.best.clone(),
        seconds: Some(about.seconds),
        saved: savings(about.all).map(|s| Saved { seconds: s.seconds, spent: s.spent }),
        configuration: about.configuration.clone(),
        warnings: about.warnings.clone(),
    }
}

/// The share of the variance that each parameter explains; none where nothing tells, such as of a single complete trial.
fn shares(trials: &[Trial]) -> Vec<(String, f64)> {
    let shares = importances(trials, 0, FanovaConfig::default());
    if shares.iter().any(|(_, share)| *share > 0.0) { shares } else { vec![] }
}

fn objective(objective: &Objective) -> StudyObjective {
    let maximize = objective.direction() == Direction::Maximize;
    StudyObjective { name: objective.name().to_owned(), maximize }
}

fn row(trial: &Trial, began: f64, axes: &[(&String, &Distribution)]) -> StudyTrial {
    let outcome = match trial.state {
        TrialState::Complete => StudyOutcome::Complete,
        TrialState::Pruned => StudyOutcome::Pruned,
        TrialState::Fail => StudyOutcome::Failed,
        TrialState::Running => StudyOutcome::Running,
        TrialState::Waiting => StudyOutcome::Waiting,
    };
    let values = trial.values.clone().filter(|_| outcome == StudyOutcome::Complete);
    StudyTrial {
        number: trial.number,
        outcome,
        values: values.unwrap_or_default(),
        parameters: axes.iter().map(|(name, axis)| place(trial, name, axis)).collect(),
        // Steps count from 0, and epochs from 1.
        reports: trial.intermediate.iter().map(|(k, value)| (*k as f64 + 1.0, *value)).collect(),
        feasible: is_feasible(trial),
        started: trial.started.map(|time| time - began),
        ended: trial.ended.map(|time| time - began),
        seconds: None,
        reason: (outcome == StudyOutcome::Failed).then(|| reason(trial)),
    }
}

/// Where a trial's value lies on the axis of the space, and the value as text.
fn place(trial: &Trial, name: &str, axis: &Distribution) -> Option<(f64, String)> {
    let (own, internal) = trial.parameters.get(name)?;
    let value = own.to_value(*internal).ok()?;
    // The axis may have changed since the trial was begun.
    let there = axis.to_internal(&value).unwrap_or(*internal);
    Some((axis.place(there), super::text::short(value)))
}

fn summary(about: &About<'_>, shares: &[(String, f64)]) -> String {
    let About { study, trials, objectives, best, .. } = about;
    let (name, names) = (study.name(), objectives.names());
    let of = |state: TrialState| trials.iter().filter(move |trial| trial.state == state);
    let mut text = format!("# Study {name}\n\n");
    for (state, what) in [
        (TrialState::Complete, "complete"),
        (TrialState::Pruned, "given up early"),
        (TrialState::Fail, "failed"),
        (TrialState::Running, "running"),
        (TrialState::Waiting, "waiting"),
    ] {
        let count = of(state).count();
        if count > 0 {
            text.push_str(&format!("- {what}: {count}\n"));
        }
    }
    if let Some(told) = continued(trials) {
        text.push_str(&format!("- tried again: {told}\n"));
    }
    if let Some(ended) = &about.ended {
        text.push_str(&format!("- no more are begun: {ended}\n"));
    }
    if let Some(saved) = savings(about.all) {
        text.push_str(&format!(
            "- {:.0} % of the trials were given up early, which saved about {:.0} s beside the {:.0} s that were spent, by the median time of complete trials\n",
            100.0 * saved.share, saved.seconds, saved.spent
        ));
    }
    if names.len() > 1 && !best.is_empty() {
        let numbers: Vec<String> = best.iter().map(u64::to_string).collect();
        text.push_str(&format!(
            "- no other trial beats in all objectives: {}\n",
            numbers.join(", ")
        ));
    }
    if !shares.is_empty() {
        text.push_str("\n| key | share of the variance (fANOVA) |\n|---|---|\n");
        for (name, share) in shares {
            text.push_str(&format!("| {name} | {:.1} % |\n", 100.0 * share));
        }
    }
    let (heads, rules) = (names.join(" | "), "---|".repeat(names.len()));
    text.push_str(&format!(
        "\n| trial | state | {heads} | seconds | values |\n|---|---|{rules}---|---|\n"
    ));
    let mut sorted: Vec<&Trial> = trials.iter().collect();
    let value = |trial: &Trial| trial.values.as_ref().and_then(|values| values.first().copied());
    let loss = |value: f64| study.directions().first().map_or(value, |first| first.loss(value));
    let rank = |trial: &Trial| match trial.state {
        TrialState::Complete => value(trial).map_or(f64::INFINITY, loss),
        _ => f64::INFINITY,
    };
    let order = |trial: &Trial| (!is_feasible(trial), rank(trial));
    sorted.sort_by(|a, b| {
        let ((a_last, a_rank), (b_last, b_rank)) = (order(a), order(b));
        a_last.cmp(&b_last).then(a_rank.total_cmp(&b_rank)).then(a.number.cmp(&b.number))
    });
    for trial in sorted {
        let mut shown = match (trial.state, value(trial)) {
            (TrialState::Fail, _) => cell(&reason(trial)),
            (_, Some(value)) => {
                objectives.all().first().map_or(String::new(), |first| value_text(first, value))
            }
            _ => String::new(),
        };
        for (place, objective) in objectives.all().iter().enumerate().skip(1) {
            let value = trial.values.as_ref().and_then(|values| values.get(place));
            let text = value.map_or(String::new(), |value| value_text(objective, *value));
            shown.push_str(&format!(" | {text}"));
        }
        let seconds = seconds_taken(about.all, trial);
        let seconds = seconds.map_or(String::new(), |seconds| format!("{seconds:.1}"));
        let mut state = format!("{:?}", trial.state).to_lowercase();
        if !is_feasible(trial) {
            state += ", against a constraint";
        }
        let values = cell(&super::text::parameters_text(trial));
        let number = trial.number;
        text.push_str(&format!("| {number} | {state} | {shown} | {seconds} | {values} |\n"));
    }
    text
}

fn reason(trial: &Trial) -> String {
    let said = trial.user_attributes.get(REASON).and_then(|reason| reason.as_str());
    said.unwrap_or_default().replace('\n', " ")
}

/// A text within a cell of a table of Markdown.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// The value of an objective: a count as it is, and a score with digits that say something.
fn value_text(objective: &Objective, value: f64) -> String {
    match objective {
        Objective::Parameters => value.to_string(),
        _ => firebox_eval::loss(value),
    }
}

/// Which trials go on with others, whose numbers are gone from the page.
fn continued(trials: &[Trial]) -> Option<String> {
    let told = |trial: &Trial| {
        let earlier: Vec<String> = trial.earlier_tries().map(|number| number.to_string()).collect();
        (!earlier.is_empty())
            .then(|| format!("trial {} continues {}", trial.number, earlier.join(" and ")))
    };
    let all: Vec<String> = trials.iter().filter_map(told).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use firebox_search::{Options, RandomSampler, Storage};

    use super::*;

    #[test]
    fn the_time_of_a_trial_is_that_of_all_its_tries() {
        let storage = Arc::new(Storage::memory().unwrap());
        let options = Options::new(RandomSampler::new(0));
        let study = Study::create(&storage, "s", &[Direction::Minimize], options).unwrap();
        let ended = |number, state: TrialState, started, ended, value: f64| Trial {
            started: Some(started),
            ended: Some(ended),
            values: Some(vec![value]).filter(|_| state == TrialState::Complete),
            ..Trial::new(number, state)
        };
        // Stopped after 7 seconds, and gone on with after a pause of 93; and one that was given up after 2 seconds.
        let mut all = vec![
            ended(0, TrialState::Fail, 1000.0, 1007.0, 0.0),
            ended(1, TrialState::Complete, 1100.0, 1108.9, 0.5),
            ended(2, TrialState::Pruned, 1110.0, 1112.0, 0.0),
        ];
        all[1].system_attributes.insert("retry_history".to_owned(), vec![0].into());
        let (space, objectives) = (Space::default(), Objectives::default());
        let about = About {
            study: &study,
            trials: &all[1..],
            all: &all,
            seconds: 17.9,
            space: &space,
            storage: "memory",
            objectives: &objectives,
            sampler: "random",
            pruner: "median",
            ended: None,
            best: vec![1],
            configuration: String::new(),
            warnings: vec![],
        };
        let text = summary(&about, &[]);
        assert!(text.contains("| 1 | complete | 0.50000 | 15.9 |"), "{text}");
        let saved = "which saved about 14 s beside the 18 s that were spent";
        assert!(text.contains(saved), "{text}");
        let report = report(&about, vec![]);
        assert_eq!(report.seconds, Some(17.9));
        assert!((report.trials[0].seconds.unwrap() - 15.9).abs() < 1e-6);
        let saved = report.saved.unwrap();
        assert!((saved.seconds - 13.9).abs() < 1e-6 && (saved.spent - 17.9).abs() < 1e-6);
    }

    #[test]
    fn shares_are_told_where_trials_tell_of_them() {
        let complete = |number, place: f64| {
            let mut trial = Trial::new(number, TrialState::Complete);
            let unit = Distribution::Float { low: 0.0, high: 1.0, log: false, step: None };
            trial.parameters.insert("train.clip".to_owned(), (unit, place));
            trial.values = Some(vec![place]);
            trial
        };
        let all = [complete(0, 0.1), complete(1, 0.5), complete(2, 0.9)];
        assert!(shares(&all[..1]).is_empty());
        assert_eq!(shares(&all), [("train.clip".to_owned(), 1.0)]);
    }

    #[test]
    fn a_reason_is_escaped_for_the_table_of_the_summary_alone() {
        let mut trial = Trial::new(0, TrialState::Fail);
        trial.user_attributes.insert(REASON.to_owned(), "`a | b`\nfails".into());
        assert_eq!(row(&trial, 0.0, &[]).reason.as_deref(), Some("`a | b` fails"));
        assert_eq!(cell(&reason(&trial)), "`a \\| b` fails");
    }

    #[test]
    fn a_trial_that_violates_a_constraint_is_told_as_such() {
        let mut trial = Trial::new(0, TrialState::Complete);
        for (constraints, feasible) in [(None, true), (Some(0.0), true), (Some(0.5), false)] {
            trial.constraints = constraints.map(|size| vec![size]);
            assert_eq!(row(&trial, 0.0, &[]).feasible, feasible, "{constraints:?}");
        }
    }

    #[test]
    fn small_values_do_not_read_as_zero() {
        let loss = Objective::ValidationLoss;
        assert_eq!([3.1e-7, 0.25].map(|value| value_text(&loss, value)), ["3.10e-7", "0.25000"]);
        assert_eq!(value_text(&Objective::Parameters, 1_234_567.0), "1234567");
    }

    #[test]
    fn a_trial_that_goes_on_with_another_says_so() {
        let trial = |number, earlier: &[u64]| {
            let mut trial = Trial::new(number, TrialState::Complete);
            let earlier = serde_json::Value::from(earlier);
            trial.system_attributes.insert("retry_history".to_owned(), earlier);
            trial
        };
        assert_eq!(continued(&[Trial::new(0, TrialState::Complete), trial(1, &[])]), None);
        let told = continued(&[trial(0, &[]), trial(8, &[4]), trial(11, &[5, 9])]).unwrap();
        assert_eq!(told, "trial 8 continues 4; trial 11 continues 5 and 9");
    }
}
