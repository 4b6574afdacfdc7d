//! The page of a search as a reader gets it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod page;

use firebox_core::Stream;
use firebox_eval::{
    Fact, Saved, StudyObjective, StudyOutcome, StudyParameter, StudyReport, StudyTrial,
};

fn parameter(name: &str, marks: &[&str]) -> StudyParameter {
    let last = marks.len().max(2) - 1;
    let mark = |(place, text): (usize, &&str)| (place as f64 / last as f64, (*text).to_owned());
    StudyParameter { name: name.to_owned(), marks: marks.iter().enumerate().map(mark).collect() }
}

fn trial(number: u64) -> StudyTrial {
    let mut draws = Stream::new(number, "study").draws();
    let places = [draws.uniform_f64(), draws.uniform_f64(), draws.below(3) as f64 / 2.0];
    let loss = (places[0] - 0.6).powi(2) + 0.3 * places[1] + 0.1 * draws.uniform_f64();
    let outcome = match number % 10 {
        3 | 6 | 7 => StudyOutcome::Pruned,
        8 if number > 30 => StudyOutcome::Failed,
        _ => StudyOutcome::Complete,
    };
    let steps = if outcome == StudyOutcome::Complete { 30 } else { 8 };
    let report = |step: u32| (f64::from(step), loss + 1.5 * (-0.2 * f64::from(step)).exp());
    let started = 20.0 * (number / 2) as f64;
    let complete = outcome == StudyOutcome::Complete;
    StudyTrial {
        number,
        outcome,
        values: if complete { vec![loss, 1.0 - places[1]] } else { vec![] },
        parameters: places
            .into_iter()
            .enumerate()
            // A setting that only some trials have.
            .map(|(i, place)| {
                (i != 2 || !number.is_multiple_of(4)).then(|| (place, format!("{place:.3}")))
            })
            .collect(),
        reports: (0..steps).map(report).collect(),
        feasible: true,
        started: Some(started),
        ended: Some(started + f64::from(steps)),
        seconds: None,
        reason: (outcome == StudyOutcome::Failed)
            .then(|| "the loss is no number at step 8".to_owned()),
    }
}

fn study(trials: u64) -> StudyReport {
    let trials: Vec<_> = (0..trials).map(trial).collect();
    StudyReport {
        title: "R2's search".to_owned(),
        study: "etth1".to_owned(),
        created: "2026-01-01 12:00 UTC".to_owned(),
        facts: vec![Fact::new("Sampler", "TPE, multivariate")],
        objectives: vec![StudyObjective { name: "validation loss".to_owned(), maximize: false }],
        parameters: vec![
            parameter("train.learning_rate", &["1e-5", "1e-3", "0.1"]),
            parameter("model.dropout", &["0", "0.25", "0.5"]),
            parameter("model.kind", &["gru", "lstm", "transformer"]),
        ],
        trials,
        importances: vec![
            ("train.learning_rate".to_owned(), 0.71),
            ("model.dropout".to_owned(), 0.29),
        ],
        best: vec![],
        seconds: None,
        saved: Some(Saved { seconds: 420.0, spent: 1_100.0 }),
        configuration: "[train]\nlearning_rate = 1e-3\n".to_owned(),
        warnings: vec![],
    }
}

fn check(study: &StudyReport) -> String {
    page::check(study.html())
}

#[test]
fn a_page_has_every_picture() {
    let page = check(&study(60));
    for title in [
        "validation loss by trial",
        "Importance: share",
        "Parallel coordinates",
        "validation loss by train.learning_rate",
        "validation loss on the way",
        "When each trial ran",
    ] {
        assert!(page.contains(&format!("<figcaption>{title}")), "{title}");
    }
    assert!(
        page.contains("36 complete, 18 pruned, 3 failed") || page.contains("complete, 18 pruned")
    );
    assert!(
        page.contains("saved about 7 min 00 s") && page.contains("the loss is no number at step 8")
    );
    assert!(!page.contains("Nothing to draw"));
    if let Some(folder) = std::env::var_os("FIREBOX_TEST_PAGES") {
        study(60).write(std::path::Path::new(&folder)).unwrap();
    }
}

#[test]
fn the_time_of_a_study_is_that_in_which_trials_ran() {
    let mut report = study(60);
    let shown = |time: &str| format!("<h2>Time</h2><p class=\"value\">{time}</p>");
    // The last trial begins at 580 seconds and takes 30.
    assert!(check(&report).contains(&shown("10 min 10 s")));
    report.seconds = Some(300.0);
    assert!(check(&report).contains(&shown("5 min 00 s")));
}

#[test]
fn the_best_trial_is_the_least_or_the_greatest() {
    let mut report = study(60);
    let value = |number: u64| trial(number).values.first().copied();
    let order = |a: &(u64, f64), b: &(u64, f64)| a.1.total_cmp(&b.1);
    let values = || (0..60).filter_map(|number| Some((number, value(number)?)));
    let (least, most) = (values().min_by(order).unwrap().0, values().max_by(order).unwrap().0);
    assert!(check(&report).contains(&format!("<p>trial {least}</p>")));
    report.objectives[0].maximize = true;
    assert!(check(&report).contains(&format!("<p>trial {most}</p>")));
}

#[test]
fn the_card_names_the_trial_whose_configuration_is_shown() {
    let mut report = study(60);
    report.best = vec![4];
    assert!(check(&report).contains("<p>trial 4</p>"));
    // Without a configuration it is the best that violates no constraint and has all values.
    report.best = vec![];
    let named = |report: &StudyReport| {
        let page = check(report);
        let (_, after) = page.split_once("<p>trial ").unwrap();
        after.split('<').next().unwrap().parse::<usize>().unwrap()
    };
    let first = named(&report);
    report.trials[first].feasible = false;
    let second = named(&report);
    assert_ne!(second, first);
    report.objectives.push(StudyObjective { name: "accuracy".to_owned(), maximize: true });
    report.trials[second].values[1] = f64::NAN;
    assert!(![first, second].contains(&named(&report)));
    report.trials.iter_mut().for_each(|trial| trial.feasible = false);
    assert!(check(&report).contains("No complete trial keeps to the constraints"));
}

#[test]
fn two_objectives_show_their_front() {
    let mut report = study(40);
    report.objectives.push(StudyObjective { name: "accuracy".to_owned(), maximize: true });
    report.best = vec![1, 4];
    let page = check(&report);
    assert!(page.contains("accuracy by validation loss, with the Pareto front"));
    assert!(page.contains("2 trials on the Pareto front"));
}

#[test]
fn extremes_draw_without_a_number_that_is_none() {
    check(&StudyReport::default());
    check(&study(1));
    let mut wild = study(12);
    wild.trials[0].values = vec![f64::NAN];
    wild.trials[1].values = vec![f64::INFINITY];
    wild.trials[2].reports = vec![(0.0, f64::NAN), (1.0, f64::NEG_INFINITY), (2.0, 1e300)];
    wild.trials[4].started = Some(f64::NAN);
    wild.trials[5].ended = None;
    wild.trials[5].outcome = StudyOutcome::Running;
    wild.trials[9].parameters.clear();
    wild.importances[1].1 = f64::NAN;
    wild.saved = Some(Saved { seconds: f64::NAN, spent: 0.0 });
    check(&wild);
    let mut unfinished = study(5);
    unfinished.trials.iter_mut().for_each(|trial| trial.outcome = StudyOutcome::Running);
    assert!(check(&unfinished).contains("No trial is complete"));
}

#[test]
fn nothing_that_is_written_becomes_markup() {
    let evil = "</title><script>alert('\"&')</script>\u{0}";
    let mut report = study(40);
    report.title = evil.to_owned();
    report.study = evil.to_owned();
    report.objectives[0].name = evil.to_owned();
    report.parameters[0].name = evil.to_owned();
    report.parameters[1].marks[0].1 = evil.to_owned();
    report.importances[0].0 = evil.to_owned();
    report.trials[38].reason = Some(evil.to_owned());
    report.trials[0].parameters[0] = Some((0.5, evil.to_owned()));
    report.configuration = evil.to_owned();
    report.warnings = vec![evil.to_owned()];
    let page = check(&report);
    assert!(page.contains("&lt;script&gt;") && !page.contains('\u{0}'));
}

#[test]
fn a_large_study_stays_a_page() {
    let page = check(&study(10_000));
    assert!(page.len() < 6_000_000, "{} bytes", page.len());
    assert!(page.contains("Parallel coordinates of the best 300 trials"));
}

#[test]
fn both_files_are_written_and_the_figures_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let report = study(20);
    let written = report.write(&folder.path().join("new")).unwrap();
    assert!(std::fs::metadata(&written.html).unwrap().len() > 5_000);
    let figures = std::fs::read_to_string(&written.figures).unwrap();
    let back: StudyReport = serde_json::from_str(&figures).unwrap();
    assert_eq!(back.trials.len(), 20);
    assert_eq!(back.trials[0], report.trials[0]);
    // Earlier versions did not say whether a trial was feasible.
    let earlier = figures.replace("\"feasible\": true,", "");
    assert!(earlier.len() < figures.len());
    let back: StudyReport = serde_json::from_str(&earlier).unwrap();
    assert_eq!(back.trials[0], report.trials[0]);
}
