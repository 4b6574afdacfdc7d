//! What a study promises to its workers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde_json::json;

use super::*;
use crate::sampler::RandomSampler;
use crate::space::Value;

fn options() -> Options {
    Options { heartbeat: Duration::from_millis(50), ..Options::new(RandomSampler::new(7)) }
}

fn memory(directions: &[Direction]) -> Study {
    let storage = Arc::new(Storage::memory().unwrap());
    Study::create(&storage, "s", directions, options()).unwrap()
}

fn minimize() -> Study {
    memory(&[Direction::Minimize])
}

fn trials(n: u64) -> Budget {
    Budget { trials: Some(n), ..Budget::default() }
}

type Anything = Box<dyn std::error::Error>;

#[test]
fn trials_are_numbered_and_the_best_is_found() {
    for (direction, best) in [(Direction::Minimize, 0), (Direction::Maximize, 9)] {
        let study = memory(&[direction]);
        study
            .optimize(&trials(10), |trial| Ok::<_, StudyError>(vec![trial.number() as f64]))
            .unwrap();
        let all = study.trials().unwrap();
        assert_eq!(all.iter().map(|t| t.number).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
        assert!(all.iter().all(|t| t.state == TrialState::Complete && t.ended >= t.started));
        assert_eq!(study.best_trials().unwrap()[0].number, best);
    }
}

#[test]
fn what_is_suggested_stays_and_lies_in_its_range() {
    let study = minimize();
    let objective = |trial: &mut TrialHandle<'_>| -> Result<Vec<f64>, Anything> {
        let x = trial.suggest_float("x", -1.0, 2.0)?;
        assert!((-1.0..=2.0).contains(&x));
        assert_eq!(trial.suggest_float("x", -1.0, 2.0)?, x);
        assert!((1e-4..=1e-1).contains(&trial.suggest_log("rate", 1e-4, 1e-1)?));
        assert!((3..=5).contains(&trial.suggest_int("n", 3, 5)?));
        let choices = [Choice::Text("a".into()), Choice::Bool(true), Choice::None];
        assert!(choices.contains(&trial.suggest_choice("c", &choices)?));
        assert_eq!(trial.suggest_int("single", 4, 4)?, 4);
        let kept: Vec<String> = trial.trial().unwrap().parameters.into_keys().collect();
        assert_eq!(kept, ["c", "n", "rate", "single", "x"]);
        Ok(vec![x])
    };
    study.optimize(&trials(30), objective).unwrap();
    let all = study.trials().unwrap();
    assert!(all.iter().all(|trial| trial.state == TrialState::Complete), "{all:?}");
}

/// A sampler that keeps what it was asked for.
struct Recorder(Arc<Mutex<Vec<Vec<String>>>>, RandomSampler);

impl Sampler for Recorder {
    fn sample(
        &mut self,
        context: &SamplerContext<'_>,
        space: &BTreeMap<String, Distribution>,
    ) -> BTreeMap<String, f64> {
        self.0.lock().unwrap().push(space.keys().cloned().collect());
        self.1.sample(context, space)
    }
}

#[test]
fn parameters_that_belong_together_are_sampled_together() {
    let asked = Arc::new(Mutex::new(vec![]));
    let storage = Arc::new(Storage::memory().unwrap());
    let options = Options::new(Recorder(Arc::clone(&asked), RandomSampler::new(1)));
    let study = Study::create(&storage, "s", &[Direction::Minimize], options).unwrap();
    let objective = |trial: &mut TrialHandle<'_>| {
        let (a, b) = (trial.suggest_float("a", 0.0, 1.0)?, trial.suggest_float("b", 0.0, 1.0)?);
        if trial.number().is_multiple_of(2) {
            trial.suggest_float("only even", 0.0, 1.0)?;
        }
        Ok::<_, StudyError>(vec![a + b])
    };
    study.optimize(&trials(2), objective).unwrap();
    asked.lock().unwrap().clear();
    study.optimize(&trials(3), objective).unwrap();
    assert_eq!(*asked.lock().unwrap(), [vec!["a", "b"], vec!["only even"]]);
    // A space that is known is sampled at once, and what depends on a choice after it.
    asked.lock().unwrap().clear();
    let choices = vec![Choice::Int(1), Choice::Int(2)];
    let float = Distribution::Float { low: 0.0, high: 1.0, log: false, step: None };
    let when = |n| Some(("kind".to_owned(), Value::Choice(Choice::Int(n))));
    let parameter =
        |distribution: &Distribution, when| Parameter { distribution: distribution.clone(), when };
    let space = Space::new(BTreeMap::from([
        ("kind".to_owned(), parameter(&Distribution::Categorical { choices }, None)),
        ("c".to_owned(), parameter(&float, None)),
        ("one".to_owned(), parameter(&float, when(1))),
        ("two".to_owned(), parameter(&float, when(2))),
    ]));
    let space = space.unwrap();
    let mut trial = study.ask(&trials(4)).unwrap().unwrap();
    let values = trial.suggest_space(&space).unwrap();
    let depends = if values["kind"] == Value::Choice(Choice::Int(1)) { "one" } else { "two" };
    assert_eq!(*asked.lock().unwrap(), [vec!["c", "kind"], vec![depends]]);
    assert!(values.contains_key(depends) && values.len() == 3, "{values:?}");
    trial.tell(Ended::Complete(vec![1.0])).unwrap();
}

#[test]
fn failures_keep_their_reason_and_the_study_goes_on() {
    let study = minimize();
    let objective = |trial: &mut TrialHandle<'_>| -> Result<Vec<f64>, Anything> {
        match trial.number() {
            0 => Err("out of memory".into()),
            1 => Ok(vec![f64::NAN]),
            2 => Ok(vec![1.0, 2.0]),
            3 => panic!("an assertion of the device"),
            4 => Ok(vec![trial.suggest_float("x", 1.0, 0.0)?]),
            5 => Ok(vec![trial.suggest_log("y", 0.0, 1.0)?]),
            _ => Ok(vec![0.5]),
        }
    };
    study.optimize(&trials(7), objective).unwrap();
    let all = study.trials().unwrap();
    let reasons = [
        "out of memory",
        "its value is NaN",
        "it has 2 values, and the study 1 objectives",
        "it panicked: an assertion of the device",
        "the parameter `x` cannot be: the range from 1 to 0 is empty",
        "the parameter `y` cannot be: a logarithmic range must start above 0",
    ];
    for (trial, reason) in all.iter().zip(reasons) {
        assert_eq!((trial.state, &trial.values), (TrialState::Fail, &None));
        let said = trial.user_attributes["fail_reason"].as_str().unwrap();
        assert!(said.contains(reason), "{said}");
    }
    assert_eq!(study.best_trials().unwrap()[0].number, 6);
    // A handle that is lost is a failure as well.
    drop(study.ask(&Budget::default()).unwrap());
    let last = study.trials().unwrap().pop().unwrap();
    assert_eq!(last.user_attributes["fail_reason"], "it was given back without a result");
}

/// Prunes whatever is above a number.
struct Above(f64);

impl Pruner for Above {
    fn prune(&self, _: &[Trial], trial: &Trial, direction: Direction) -> bool {
        let last = trial.intermediate.last_key_value();
        last.is_some_and(|(_, value)| direction.loss(*value) > self.0)
    }
}

#[test]
fn pruned_trials_keep_their_last_value() {
    let storage = Arc::new(Storage::memory().unwrap());
    let options = Options { pruner: Some(Box::new(Above(2.5))), ..options() };
    let study = Study::create(&storage, "s", &[Direction::Minimize], options).unwrap();
    let objective = |trial: &mut TrialHandle<'_>| -> Result<Vec<f64>, Anything> {
        for step in 0..5 {
            trial.report(step, (trial.number() * step) as f64)?;
            trial.report(step, -1.0)?;
            if trial.should_prune()? {
                trial.give_up();
                return Err("whatever".into());
            }
        }
        Ok(vec![0.0])
    };
    study.optimize(&trials(3), objective).unwrap();
    let all = study.trials().unwrap();
    assert_eq!(all[0].intermediate.values().copied().collect::<Vec<_>>(), [0.0; 5]);
    assert_eq!((all[1].state, all[1].values.clone()), (TrialState::Pruned, Some(vec![3.0])));
    assert_eq!((all[2].state, all[2].values.clone()), (TrialState::Pruned, Some(vec![4.0])));
    assert_eq!(study.best_trials().unwrap().len(), 1);
    let several = memory(&[Direction::Minimize, Direction::Minimize]);
    let mut trial = several.ask(&Budget::default()).unwrap().unwrap();
    assert!(matches!(trial.report(0, 1.0), Err(StudyError::ManyObjectives(2))));
    assert!(!trial.should_prune().unwrap());
}

#[test]
fn a_trial_that_repeats_another_has_its_curve() {
    let study = minimize();
    let objective = |trial: &mut TrialHandle<'_>| -> Result<Vec<f64>, Anything> {
        match trial.number() {
            0 => (0..3).try_for_each(|step| trial.report(step, 1.5 - step as f64))?,
            1 => trial.repeat(0)?,
            _ => {
                trial.report(1, 9.0)?;
                trial.repeat(1)?;
                trial.repeat(77)?;
            }
        }
        Ok(vec![-0.5])
    };
    study.optimize(&trials(3), objective).unwrap();
    let all = study.trials().unwrap();
    assert_eq!(all[1].intermediate, all[0].intermediate);
    assert_eq!(all[2].intermediate, BTreeMap::from([(0, 1.5), (1, 9.0), (2, -0.5)]));
    let repeats: Vec<_> = all.iter().map(Trial::repeats).collect();
    assert_eq!(repeats, [None, Some(0), Some(1)]);
}

#[test]
fn the_front_of_several_objectives_holds_what_nothing_beats() {
    let study = memory(&[Direction::Minimize, Direction::Maximize]);
    let values = [[1.0, 1.0], [2.0, 2.0], [2.0, 1.5], [0.5, 3.0], [0.5, 3.0], [0.1, 9.0]];
    let objective = |trial: &mut TrialHandle<'_>| {
        let infeasible = trial.number() == 5;
        trial.set_constraints(&[-1.0, if infeasible { 0.1 } else { 0.0 }])?;
        Ok::<_, StudyError>(values[trial.number() as usize].to_vec())
    };
    study.optimize(&trials(6), objective).unwrap();
    let best: Vec<u64> = study.best_trials().unwrap().iter().map(|trial| trial.number).collect();
    assert_eq!(best, [3, 4]);
    let mut trial = study.ask(&Budget::default()).unwrap().unwrap();
    assert!(trial.set_constraints(&[f64::NAN]).is_err());
}

#[test]
fn budgets_end_a_search() {
    let study = minimize();
    let early_stop = Some(EarlyStop { patience: 4, min_delta: 0.0 });
    let patience = Budget { early_stop, ..trials(100) };
    study
        .optimize(&patience, |trial| {
            Ok::<_, StudyError>(vec![if trial.number() == 3 { 0.0 } else { 1.0 }])
        })
        .unwrap();
    assert_eq!(study.trials().unwrap().len(), 8);
    // Another one: the time of those eight would count.
    let study = minimize();
    let time = Budget { time: Some(Duration::from_millis(60)), ..Budget::default() };
    let start = Instant::now();
    let slow = |_: &mut TrialHandle<'_>| {
        std::thread::sleep(Duration::from_millis(20));
        Ok::<_, StudyError>(vec![1.0])
    };
    study.optimize(&time, slow).unwrap();
    assert!(start.elapsed() < Duration::from_secs(5));
    let begun = study.trials().unwrap().len();
    assert!((1..=3).contains(&begun), "{begun} trials of 20 ms");
}

#[test]
fn the_time_of_a_study_is_that_of_all_its_workers() {
    let storage = Arc::new(Storage::memory().unwrap());
    let study = || Study::join(&storage, "s", &[Direction::Minimize], options()).unwrap();
    let second = Duration::from_secs(1);
    let budget = Budget { time: Some(second), ..Budget::default() };
    let slow = |_: &mut TrialHandle<'_>| {
        std::thread::sleep(Duration::from_millis(40));
        Ok::<_, StudyError>(vec![1.0])
    };
    assert_eq!(study().limit(&budget).unwrap(), None);
    // One worker after the other, each for one trial, and pauses that are longer and cost nothing.
    for _ in 0..2 {
        let one =
            Budget { trials: Some(study().trials().unwrap().len() as u64 + 1), ..budget.clone() };
        study().optimize(&one, slow).unwrap();
        std::thread::sleep(Duration::from_millis(550));
    }
    assert_eq!(study().limit(&budget).unwrap(), None);
    study().optimize(&budget, slow).unwrap();
    let all = study().trials().unwrap().len();
    assert!((3..=25).contains(&all), "{all} trials of 40 ms");
    let spent = study().time_spent().unwrap();
    assert!(spent >= second && spent < Duration::from_secs(5), "{spent:?}");
    // Who comes later has nothing left to begin.
    assert_eq!(study().limit(&budget).unwrap(), Some(Limit::Time));
    study().optimize(&budget, slow).unwrap();
    assert!(study().ask(&budget).unwrap().is_none());
    assert_eq!(study().trials().unwrap().len(), all);
    // But a trial that was begun is gone on with.
    study().ask(&Budget::default()).unwrap().unwrap().tell(Ended::Interrupted).unwrap();
    study().optimize(&budget, slow).unwrap();
    let states: Vec<_> = study().trials().unwrap()[all..].iter().map(|t| t.state).collect();
    assert_eq!(states, [TrialState::Fail, TrialState::Complete]);
    let begun = Budget { trials: Some(all as u64 + 1), ..Budget::default() };
    assert_eq!(study().limit(&begun).unwrap(), Some(Limit::Trials));
    let patience = Some(EarlyStop { patience: 1, min_delta: 0.0 });
    let patience = Budget { early_stop: patience, ..Budget::default() };
    assert_eq!(study().limit(&patience).unwrap(), Some(Limit::EarlyStop));
    assert_eq!(study().limit(&Budget::default()).unwrap(), None);
}

#[test]
fn enqueued_trials_come_first_with_their_values() {
    let study = minimize();
    let values =
        BTreeMap::from([("x".to_owned(), Choice::Float(0.25)), ("n".to_owned(), Choice::Int(2))]);
    study.enqueue(&values, &BTreeMap::from([("note".to_owned(), json!("mine"))])).unwrap();
    study
        .enqueue(&BTreeMap::from([("x".to_owned(), Choice::Float(7.0))]), &BTreeMap::new())
        .unwrap();
    let objective = |trial: &mut TrialHandle<'_>| {
        let x = trial.suggest_float("x", 0.0, 1.0)?;
        Ok::<_, StudyError>(vec![x + trial.suggest_int("n", 1, 4)? as f64])
    };
    study.optimize(&trials(3), objective).unwrap();
    let all = study.trials().unwrap();
    assert_eq!(
        (all[0].values.clone(), &all[0].user_attributes["note"]),
        (Some(vec![2.25]), &json!("mine"))
    );
    let said = all[1].user_attributes["fail_reason"].as_str().unwrap();
    assert!(said.contains("7.0 is not among the numbers from 0 to 1"), "{said}");
    assert_eq!((all.len(), all[2].state), (3, TrialState::Complete));
}

#[test]
fn choices_that_are_infinite_or_no_numbers_are_chosen_as_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("j.log");
    let storage = Arc::new(Storage::open(path.to_str().unwrap()).unwrap());
    let study = Study::create(&storage, "s", &[Direction::Minimize], options()).unwrap();
    let text = Choice::Text("NaN".to_owned());
    let [infinite, nan] = [f64::INFINITY, f64::NAN].map(Choice::Float);
    let reals = [Choice::Float(1.0), infinite.clone(), nan.clone()];
    let words = [Choice::Float(1.0), text.clone()];
    for (real, word) in [(infinite, text), (nan, Choice::Int(1))] {
        let values = BTreeMap::from([("real".to_owned(), real), ("word".to_owned(), word)]);
        study.enqueue(&values, &BTreeMap::new()).unwrap();
    }
    let objective = |trial: &mut TrialHandle<'_>| {
        let (real, word) =
            (trial.suggest_choice("real", &reals)?, trial.suggest_choice("word", &words)?);
        Ok::<_, StudyError>(vec![f64::from(u8::from(real == word))])
    };
    study.optimize(&trials(5), objective).unwrap();
    let all = study.trials().unwrap();
    let failed: Vec<_> = all.iter().filter(|t| t.state != TrialState::Complete).collect();
    assert!(all.len() == 5 && failed.is_empty(), "{failed:?}");
    let places = |trial: &Trial| ["real", "word"].map(|name| trial.parameters[name].1);
    assert_eq!([places(&all[0]), places(&all[1])], [[1.0, 1.0], [2.0, 0.0]]);
    // Which is how Optuna writes and reads them.
    let journal = std::fs::read_to_string(&path).unwrap();
    for line in [
        r#""fixed_params":{"real":Infinity,"word":"NaN"}"#,
        r#""fixed_params":{"real":NaN,"word":1}"#,
        r#"{\"choices\": [1.0, Infinity, NaN]}"#,
    ] {
        assert!(journal.contains(line), "{line}: {journal}");
    }
}

#[test]
fn fine_steps_fail_no_trial() {
    let study = minimize();
    let fine = Distribution::Float { low: 1e5, high: 2e5, log: false, step: Some(1e-3) };
    let objective = |trial: &mut TrialHandle<'_>| match trial.suggest("x", &fine)? {
        Value::Float(x) => Ok::<_, StudyError>(vec![x]),
        other => panic!("{other}"),
    };
    study.optimize(&trials(50), objective).unwrap();
    let all = study.trials().unwrap();
    assert!(all.iter().all(|trial| trial.state == TrialState::Complete));
}

#[test]
fn a_study_is_continued_as_it_was_begun_or_not_at_all() {
    let storage = Arc::new(Storage::memory().unwrap());
    let create = || Study::create(&storage, "s", &[Direction::Minimize], options());
    let study = create().unwrap();
    let text = |error: StudyError| error.to_string();
    assert!(text(create().err().unwrap()).contains("memory already holds a study `s`"));
    let absent = Study::load(&storage, "t", options()).err().unwrap();
    assert!(text(absent).contains("holds no study `t`, but `s`"));
    let other = Study::join(&storage, "s", &[Direction::Maximize], options()).err().unwrap();
    assert!(
        text(other)
            .contains("the directions [Minimize], and this one has the directions [Maximize]")
    );
    study
        .optimize(&trials(1), |trial| Ok::<_, StudyError>(vec![trial.suggest_log("x", 0.1, 1.0)?]))
        .unwrap();
    let again = Study::join(&storage, "s", &[Direction::Minimize], options()).unwrap();
    let space = |log, high| {
        Space::from(BTreeMap::from([(
            "x".to_owned(),
            Distribution::Float { low: 0.1, high, log, step: None },
        )]))
    };
    again.check_space(&space(true, 5.0)).unwrap();
    let error = text(again.check_space(&space(false, 1.0)).unwrap_err());
    assert!(error.contains("`x` among") && error.contains("logarithmic"), "{error}");
    again
        .optimize(&trials(2), |trial| {
            Ok::<_, StudyError>(vec![trial.suggest_float("x", 0.1, 1.0)?])
        })
        .unwrap();
    let failed = again.trials().unwrap().pop().unwrap();
    assert!(failed.user_attributes["fail_reason"].as_str().unwrap().contains("logarithmic"));
}

/// A worker that dies, as far as the others can see: its heart stops, and its trial stays.
fn dies(storage: &Arc<Storage>) -> u64 {
    let study = Study::load(storage, "s", options()).unwrap();
    let mut trial = study.ask(&Budget::default()).unwrap().unwrap();
    trial.suggest_float("x", 0.0, 1.0).unwrap();
    trial.report(0, 5.0).unwrap();
    let number = trial.number();
    std::mem::forget(trial);
    number
}

#[test]
fn a_trial_of_a_dead_worker_is_tried_again_with_all_it_had() {
    let study = minimize();
    assert_eq!(dies(&study.storage), 0);
    let runs = AtomicU64::new(0);
    let objective = |trial: &mut TrialHandle<'_>| {
        runs.fetch_add(1, Ordering::Relaxed);
        let x = trial.suggest_float("x", 0.0, 1.0)?;
        trial.report(0, 9.0)?;
        trial.report(1, 4.0)?;
        Ok::<_, StudyError>(vec![x])
    };
    study.optimize(&trials(2), objective).unwrap();
    let all = study.trials().unwrap();
    assert_eq!(runs.into_inner(), 2);
    assert_eq!(all.len(), 3);
    assert_eq!((all[0].state, all[0].number), (TrialState::Fail, 0));
    let retry =
        all.iter().find(|trial| trial.system_attributes.contains_key("retry_history")).unwrap();
    assert_eq!(retry.system_attributes["failed_trial"], 0);
    assert_eq!(retry.system_attributes["retry_history"], json!([0]));
    assert_eq!(retry.parameters, all[0].parameters);
    assert_eq!(retry.intermediate, BTreeMap::from([(0, 5.0), (1, 4.0)]));
    assert_eq!(all[1].state, TrialState::Complete);
    assert_eq!(all[2].state, TrialState::Complete);
}

#[test]
fn a_trial_that_kills_its_workers_is_given_up() {
    let storage = Arc::new(Storage::memory().unwrap());
    let options = || Options { retries: 2, ..options() };
    let study = Study::create(&storage, "s", &[Direction::Minimize], options()).unwrap();
    for _ in 0..3 {
        dies(&storage);
        let start = Instant::now();
        while study.others_work().unwrap() && start.elapsed() < Duration::from_secs(5) {
            study.retry_lost().unwrap();
            std::thread::sleep(Duration::from_millis(20));
            if study.trials().unwrap().iter().any(|t| t.state == TrialState::Waiting) {
                break;
            }
        }
    }
    let all = study.trials().unwrap();
    assert_eq!(all.len(), 3);
    assert!(all.iter().all(|trial| trial.state == TrialState::Fail));
    let last = all[2].user_attributes["fail_reason"].as_str().unwrap();
    assert!(last.contains("as 2 times before"), "{last}");
    assert!(!study.others_work().unwrap());
}

#[test]
fn a_worker_that_was_taken_for_dead_learns_of_it() {
    let study = minimize();
    let other = Study::load(&study.storage, "s", options()).unwrap();
    let mut slow = other.ask(&Budget::default()).unwrap().unwrap();
    // Its heart stops, as that of a process that is suspended.
    other.heart.stop(0);
    study.optimize(&trials(1), |_| Ok::<_, StudyError>(vec![1.0])).unwrap();
    assert!(matches!(slow.report(0, 1.0), Err(StudyError::Ended { number: 0 })));
    assert!(matches!(slow.tell(Ended::Complete(vec![0.0])), Err(StudyError::Ended { number: 0 })));
    let states: Vec<_> = study.trials().unwrap().iter().map(|trial| trial.state).collect();
    assert_eq!(states, [TrialState::Fail, TrialState::Complete]);
}

#[test]
fn a_worker_that_is_stopped_leaves_its_trial_to_be_gone_on_with() {
    let study = minimize();
    let objective = |trial: &mut TrialHandle<'_>| {
        assert_eq!(trial.origin(), 0);
        trial.interrupt();
        Ok::<_, StudyError>(vec![0.0])
    };
    study.optimize(&trials(1), objective).unwrap();
    assert_eq!(study.trials().unwrap()[1].state, TrialState::Waiting);
    let objective = |trial: &mut TrialHandle<'_>| {
        assert_eq!((trial.number(), trial.origin()), (1, 0));
        Ok::<_, StudyError>(vec![0.0])
    };
    study.optimize(&trials(1), objective).unwrap();
    assert_eq!(study.trials().unwrap().len(), 2);
}

#[test]
fn a_worker_that_is_stopped_costs_the_trial_no_retry() {
    let storage = Arc::new(Storage::memory().unwrap());
    let options = || Options { retries: 1, ..options() };
    let study = Study::create(&storage, "s", &[Direction::Minimize], options()).unwrap();
    for _ in 0..3 {
        study.ask(&trials(1)).unwrap().unwrap().tell(Ended::Interrupted).unwrap();
    }
    dies(&storage);
    study.optimize(&trials(1), |_| Ok::<_, StudyError>(vec![1.0])).unwrap();
    let all = study.trials().unwrap();
    assert_eq!((all.len(), all[4].state), (5, TrialState::Complete));
    assert_eq!(all[4].system_attributes["retry_history"], json!([0, 1, 2, 3]));
}

#[test]
fn faults_are_counted_apart_from_stops_and_cost_no_retry() {
    let storage = Arc::new(Storage::memory().unwrap());
    let options = || Options { retries: 0, ..options() };
    let study = Study::create(&storage, "s", &[Direction::Minimize], options()).unwrap();
    // Stopped, three faults with a stop between them, and stopped once more.
    let ends = ["", "the disk is full", "", "the disk is full", "no data", ""];
    for (end, faults) in ends.into_iter().zip([0, 0, 1, 1, 2, 3]) {
        let objective = |trial: &mut TrialHandle<'_>| {
            assert_eq!((trial.origin(), trial.faults()), (0, faults));
            match end {
                "" => trial.interrupt(),
                fault => trial.put_back(fault),
            }
            Ok::<_, StudyError>(vec![0.0])
        };
        study.optimize(&trials(1), objective).unwrap();
    }
    study.optimize(&trials(1), |_| Ok::<_, StudyError>(vec![1.0])).unwrap();
    let all = study.trials().unwrap();
    let reasons: Vec<_> =
        all[..6].iter().map(|trial| trial.user_attributes["fail_reason"].as_str()).collect();
    let stopped = "its worker was stopped";
    let expected = ends.map(|end| Some(if end.is_empty() { stopped } else { end }));
    assert_eq!(reasons, expected);
    assert_eq!((all.len(), all[6].state), (7, TrialState::Complete));
    assert_eq!(all[6].system_attributes["retry_history"], json!([0, 1, 2, 3, 4, 5]));
}

/// A sampler of one proposal.
struct Once(RandomSampler);

impl Sampler for Once {
    fn sample(
        &mut self,
        context: &SamplerContext<'_>,
        space: &BTreeMap<String, Distribution>,
    ) -> BTreeMap<String, f64> {
        self.0.sample(context, space)
    }

    fn is_exhausted(&self, trials: &[Trial]) -> bool {
        !trials.is_empty()
    }
}

#[test]
fn who_has_nothing_left_to_begin_goes_on_with_the_trials_of_the_dead() {
    let storage = Arc::new(Storage::memory().unwrap());
    let once = || Options {
        heartbeat: Duration::from_millis(50),
        ..Options::new(Once(RandomSampler::new(1)))
    };
    let study = Study::create(&storage, "s", &[Direction::Minimize], once()).unwrap();
    dies(&storage);
    study.optimize(&Budget::default(), |_| Ok::<_, StudyError>(vec![1.0])).unwrap();
    let states = || study.trials().unwrap().iter().map(|t| t.state).collect::<Vec<_>>();
    assert_eq!(states(), [TrialState::Fail, TrialState::Complete]);
    // The same when the search has ended early meanwhile.
    dies(&storage);
    let early_stop = Some(EarlyStop { patience: 1, min_delta: 0.0 });
    study.enqueue(&BTreeMap::new(), &BTreeMap::new()).unwrap();
    study.optimize(&Budget::default(), |_| Ok::<_, StudyError>(vec![1.0])).unwrap();
    dies(&storage);
    let budget = Budget { early_stop, ..Budget::default() };
    study.optimize(&budget, |_| Ok::<_, StudyError>(vec![1.0])).unwrap();
    assert!(states().iter().all(|state| state.is_finished()), "{:?}", states());
}

#[test]
fn threads_share_a_study_and_its_budget() {
    let folder = tempfile::tempdir().unwrap();
    let storage = Storage::open(folder.path().join("j.log").to_str().unwrap()).unwrap();
    let options = Options { heartbeat: Duration::from_secs(5), ..options() };
    let study = Study::create(&Arc::new(storage), "s", &[Direction::Minimize], options).unwrap();
    let runs = AtomicU64::new(0);
    let objective = |trial: &mut TrialHandle<'_>| {
        runs.fetch_add(1, Ordering::Relaxed);
        Ok::<_, StudyError>(vec![trial.suggest_float("x", 0.0, 1.0)?])
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| study.optimize(&trials(40), objective).unwrap());
        }
    });
    assert_eq!((runs.load(Ordering::Relaxed), study.trials().unwrap().len()), (40, 40));
}
