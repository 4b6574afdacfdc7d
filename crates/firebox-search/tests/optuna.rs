//! The journal beside real Optuna from PyPI: each reads, continues and extends the other's studies,
//! one after the other and both at once.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod peer;

use std::collections::BTreeMap;
use std::process::Child;

use firebox_search::{
    Budget, Choice, Direction, Ended, Space, Study, StudyError, Trial, TrialHandle, TrialState,
};
use peer::{assert_each_ended_once, assert_read_the_same, open, options, optuna, run, worker};
use serde_json::json;

fn budget(trials: u64) -> Budget {
    Budget { trials: Some(trials), ..Budget::default() }
}

fn journal() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let address = folder.path().join("study.log").display().to_string();
    (folder, address)
}

/// The parameters of the script's `everything`.
fn everything(trial: &mut TrialHandle<'_>) -> Result<Vec<f64>, StudyError> {
    use firebox_search::Distribution::{Float, Int};
    let x = trial.suggest_float("x", -5.0, 10.0)?;
    trial.suggest_log("rate", 1e-5, 1e-1)?;
    trial.suggest("dropout", &Float { low: 0.0, high: 0.5, log: false, step: Some(0.25) })?;
    trial.suggest("layers", &Int { low: 1, high: 9, log: false, step: 2 })?;
    trial.suggest("hidden", &Int { low: 8, high: 512, log: true, step: 1 })?;
    let text = |text: &str| Choice::Text(text.to_owned());
    let rest = [Choice::None, Choice::Bool(true), Choice::Int(3), Choice::Float(2.5)];
    let choices = [vec![text("a"), text("b \"quoted\" ü")], rest.to_vec()].concat();
    if trial.suggest_choice("kind", &choices)? == Choice::None {
        trial.suggest_float("conditional", 0.0, 1.0)?;
    }
    trial.set_attribute("note", json!({ "ü \"": [1, 2.5, null, "\n"] }))?;
    trial.set_constraints(&[x - 5.0, -1.0])?;
    for (step, value) in [x, f64::NAN, f64::INFINITY].into_iter().enumerate() {
        trial.report(step as u64, value)?;
    }
    match trial.number() % 5 {
        3 => trial.give_up(),
        4 => return Ok(vec![f64::NAN]),
        _ => {}
    }
    Ok(vec![if trial.number() == 2 { f64::NEG_INFINITY } else { x * x }])
}

#[test]
fn firebox_continues_a_study_of_optuna() {
    if optuna().is_none() {
        return;
    }
    let (_folder, address) = journal();
    run(&["write", &address]);
    assert_read_the_same(&address);
    let storage = open(&address);
    let study = Study::load(&storage, "everything", options()).unwrap();
    // Two wait: one enqueued, of which Optuna's `ask` took one, and a retry of trial 4.
    let before = study.trials().unwrap();
    let waiting: Vec<_> = before.iter().filter(|t| t.state == TrialState::Waiting).collect();
    assert_eq!(waiting.len(), 1);
    assert_eq!(waiting[0].system_attributes["retry_history"], json!([4]));
    study.optimize(&budget(20), everything).unwrap();
    assert_read_the_same(&address);
    let after = study.trials().unwrap();
    let retried = &after[waiting[0].number as usize];
    assert!(retried.state.is_finished());
    assert_eq!(retried.parameters["x"], before[4].parameters["x"]);
    // 20 were begun besides the retry; the one that Optuna's `ask` left stays as it is.
    assert_eq!(after.len(), 21);
    assert_eq!(after.iter().filter(|t| t.state == TrialState::Running).count(), 1);
    run(&["extend", &address, "everything", "6"]);
    assert_read_the_same(&address);
    assert_eq!(study.trials().unwrap().len(), 27);
}

#[test]
fn optuna_continues_a_study_of_firebox() {
    if optuna().is_none() {
        return;
    }
    let (_folder, address) = journal();
    let storage = open(&address);
    let study = Study::create(&storage, "everything", &[Direction::Minimize], options()).unwrap();
    study.set_metric_names(&["loss"]).unwrap();
    study.set_attribute("origin", &json!("Firebox")).unwrap();
    study.optimize(&budget(12), everything).unwrap();
    let fixed = BTreeMap::from([
        ("x".to_owned(), Choice::Float(1.25)),
        ("layers".to_owned(), Choice::Int(5)),
    ]);
    study.enqueue(&fixed, &BTreeMap::from([("memo".to_owned(), json!("first"))])).unwrap();
    let two = [Direction::Minimize, Direction::Maximize];
    let several = Study::create(&storage, "several", &two, options()).unwrap();
    let float = firebox_search::Distribution::Float { low: 0.0, high: 1.0, log: false, step: None };
    let space =
        Space::from(BTreeMap::from([("x".to_owned(), float.clone()), ("y".to_owned(), float)]));
    let objective = |trial: &mut TrialHandle<'_>| {
        let values = trial.suggest_space(&space)?;
        let number = |name: &str| match values[name] {
            firebox_search::Value::Float(number) => number,
            _ => f64::NAN,
        };
        Ok::<_, StudyError>(vec![number("x"), number("y")])
    };
    several.optimize(&budget(30), objective).unwrap();
    assert_read_the_same(&address);
    run(&["extend", &address, "everything", "5"]);
    assert_read_the_same(&address);
    let trials = study.trials().unwrap();
    assert_eq!(trials.len(), 17);
    assert_eq!((trials[12].parameters["x"].1, trials[12].parameters["layers"].1), (1.25, 5.0));
    assert!(trials[12..].iter().all(|trial| trial.state.is_finished()));
}

/// Optuna takes the trials that Firebox put back, and the other way round.
#[test]
fn interrupted_trials_are_gone_on_with_by_optuna() {
    if optuna().is_none() {
        return;
    }
    let (_folder, address) = journal();
    let study =
        Study::create(&open(&address), "branin", &[Direction::Minimize], options()).unwrap();
    let mut trial = study.ask(&Budget::default()).unwrap().unwrap();
    let x = trial.suggest_float("x", -5.0, 10.0).unwrap();
    trial.tell(Ended::Interrupted).unwrap();
    run(&["extend", &address, "branin", "1"]);
    assert_read_the_same(&address);
    let trials = study.trials().unwrap();
    assert_eq!(trials.len(), 2);
    assert_eq!((trials[1].state, trials[1].parameters["x"].1), (TrialState::Complete, x));
    assert_eq!(trials[1].system_attributes["failed_trial"], 0);
}

/// Two processes of Optuna and two of Firebox on one study.
fn both_at_once(address: &str) {
    drop(Study::create(&open(address), "branin", &[Direction::Minimize], options()).unwrap());
    let extend = || optuna().unwrap().args(["extend", address, "branin", "15"]).spawn().unwrap();
    let program = worker();
    let work = || {
        std::process::Command::new(&program).args([address, "branin", "70", "5"]).spawn().unwrap()
    };
    let children: Vec<Child> = vec![extend(), work(), extend(), work()];
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_read_the_same(address);
    let study = Study::load(&open(address), "branin", options()).unwrap();
    let trials = study.trials().unwrap();
    let firebox = trials.iter().filter(|t| t.user_attributes.contains_key("begun as")).count();
    // Optuna's processes count their own trials, Firebox's those of the study.
    assert_eq!(trials.len() - firebox, 30);
    assert!((70..=100).contains(&trials.len()), "{}", trials.len());
    assert_eq!(assert_each_ended_once(&trials, trials.len() as u64), 0);
}

#[test]
fn optuna_and_firebox_write_one_file_at_once() {
    if optuna().is_none() {
        return;
    }
    let (_folder, address) = journal();
    both_at_once(&address);
}

#[test]
fn optuna_and_firebox_write_to_one_server_at_once() {
    if optuna().is_none() {
        return;
    }
    let Some(redis) = peer::Redis::start() else { return };
    both_at_once(&redis.address());
}

/// The dashboard has what the journal has, also of trials that end while it is open.
fn is_shown_while_it_runs(address: &str) {
    let study =
        Study::create(&open(address), "everything", &[Direction::Minimize], options()).unwrap();
    study.set_metric_names(&["loss"]).unwrap();
    study.optimize(&budget(10), everything).unwrap();
    let Some(dashboard) = peer::Dashboard::start(address) else { return };
    let page = dashboard.get("/dashboard/");
    assert!(page.contains("<title>Optuna Dashboard"), "{page}");
    let json =
        |path: &str| serde_json::from_str::<serde_json::Value>(&dashboard.get(path)).unwrap();
    let studies = json("/api/studies");
    assert_eq!(studies["study_summaries"][0]["study_name"], "everything");
    for wanted in [10, 14] {
        study.optimize(&budget(wanted), everything).unwrap();
        let start = std::time::Instant::now();
        // It reads the journal again every few seconds.
        let shown = loop {
            let shown = json("/api/studies/0?after=0");
            if shown["trials"].as_array().unwrap().len() as u64 == wanted {
                break shown;
            }
            assert!(start.elapsed() < std::time::Duration::from_secs(60), "{shown}");
            std::thread::sleep(std::time::Duration::from_millis(500));
        };
        assert_eq!(shown["objective_names"], json!(["loss"]));
        let ours = study.trials().unwrap();
        for (theirs, ours) in shown["trials"].as_array().unwrap().iter().zip(&ours) {
            let number = ours.number;
            assert_eq!(theirs["number"], number);
            assert_eq!(theirs["state"], format!("{:?}", ours.state), "{number}");
            assert_eq!(theirs["params"].as_array().unwrap().len(), ours.parameters.len());
            let reports = theirs["intermediate_values"].as_array().unwrap();
            assert_eq!(reports.len(), ours.intermediate.len(), "{number}");
            let finite = ours.values.as_ref().filter(|values| values[0].is_finite());
            if let Some(values) = finite {
                assert_eq!(theirs["values"], json!(values), "{number}");
            }
        }
        // Its best trial may violate constraints.
        let complete = ours.iter().filter(|trial| trial.state == TrialState::Complete);
        let value = |trial: &&Trial| trial.values.as_ref().unwrap()[0];
        let best = complete.min_by(|a, b| value(a).total_cmp(&value(b))).unwrap();
        assert_eq!(shown["best_trials"][0]["number"], best.number);
    }
}

#[test]
fn the_dashboard_shows_a_study_in_a_file() {
    let (_folder, address) = journal();
    is_shown_while_it_runs(&address);
}

#[test]
fn the_dashboard_shows_a_study_on_a_server() {
    let Some(redis) = peer::Redis::start() else { return };
    is_shown_while_it_runs(&redis.address());
}
