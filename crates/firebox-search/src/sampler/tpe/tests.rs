//! Compares densities, splits and proposals with Optuna's.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::*;
use crate::direction::Direction;
use crate::golden::{self, number, numbers};
use crate::sampler::testing::{context, space};

#[test]
fn densities_of_mixtures_are_optunas() {
    let space = space();
    let space: Subspace<'_> = space.iter().map(|(name, d)| (name.as_str(), d)).collect();
    for case in golden::read("parzen").remove("mixture").unwrap().as_array().unwrap() {
        let rows = |name: &str| -> Vec<Vec<f64>> {
            case[name].as_array().unwrap().iter().map(numbers).collect()
        };
        let shape = Shape {
            prior_weight: number(&case["prior_weight"]),
            magic_clip: case["magic_clip"].as_bool().unwrap(),
            endpoints: case["endpoints"].as_bool().unwrap(),
        };
        let observations = rows("observations");
        let found = Parzen::new(&observations, &space, shape, None).log_density(&rows("points"));
        let expected = numbers(&case["log_density"]);
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            let error = (found - expected).abs() / expected.abs();
            assert!(error < 1e-11, "{found} {expected} of {} trials", observations.len());
        }
    }
}

fn trial(number: u64, json: &Json, space: &BTreeMap<String, Distribution>) -> Trial {
    let mut trial = crate::sampler::testing::trial(number, TrialState::Running);
    trial.state = match json["state"].as_u64().unwrap() {
        0 => TrialState::Running,
        1 => TrialState::Complete,
        2 => TrialState::Pruned,
        3 => TrialState::Fail,
        other => panic!("state {other}"),
    };
    trial.values = (!json["values"].is_null()).then(|| numbers(&json["values"]));
    trial.constraints = (!json["constraints"].is_null()).then(|| numbers(&json["constraints"]));
    for (name, value) in json["params"].as_object().unwrap() {
        trial.parameters.insert(name.clone(), (space[name].clone(), self::number(value)));
    }
    for (step, value) in json["intermediate"].as_object().unwrap() {
        trial.intermediate.insert(step.parse().unwrap(), self::number(value));
    }
    trial
}

#[test]
fn proposals_after_recorded_trials_are_optunas() {
    let space = space();
    for (name, case) in golden::read("tpe") {
        let case = &case[0];
        let config: TpeConfig = serde_json::from_value(case["settings"].clone()).unwrap();
        let directions: Vec<Direction> =
            serde_json::from_value(case["directions"].clone()).unwrap();
        let trials = case["trials"].as_array().unwrap().iter().enumerate();
        let trials: Vec<_> = trials.map(|(n, json)| trial(n as u64, json, &space)).collect();
        let sampler = TpeSampler::new(config, 0).unwrap();
        for proposal in case["proposals"].as_array().unwrap() {
            let number = proposal["number"].as_u64().unwrap();
            let context = SamplerContext {
                trials: &trials[..number as usize],
                directions: &directions,
                number,
            };
            let finished: Vec<_> = others(&context)
                .filter(|t| matches!(t.state, TrialState::Complete | TrialState::Pruned))
                .collect();
            let split = sampler.split(&context);
            let mut checked = 0;
            for part in sampler.parts(&context, &finished, &space) {
                let found = sampler.propose(&context, &split, &part, &mut golden::draws(number));
                for (parameter, found) in part.keys().zip(found) {
                    let expected = proposal["params"][*parameter].as_f64().unwrap();
                    let error = (found - expected).abs() / expected.abs().max(1e-9);
                    assert!(
                        error < 1e-9,
                        "{name}, {parameter} of {number}: {found} instead of {expected}"
                    );
                    checked += 1;
                }
            }
            assert_eq!(checked, space.len());
        }
    }
}

fn complete(number: u64, value: f64) -> Trial {
    let space = space();
    let sampled = RandomSampler::new(4).sample(&context(number), &space);
    let mut trial = crate::sampler::testing::trial(number, TrialState::Complete);
    trial.parameters =
        sampled.into_iter().map(|(n, v)| (n.clone(), (space[&n].clone(), v))).collect();
    trial.values = Some(vec![value]);
    trial
}

#[test]
fn a_proposal_depends_on_seed_number_and_trials_alone() {
    let trials: Vec<_> = (0..30).map(|number| complete(number, (number % 7) as f64)).collect();
    let at = |seed, number, trials: &[Trial]| {
        let context = SamplerContext { trials, ..context(number) };
        TpeSampler::new(TpeConfig::default(), seed).unwrap().sample(&context, &space())
    };
    let first = at(1, 30, &trials);
    assert_eq!(first, at(1, 30, &trials));
    assert_ne!(first, at(2, 30, &trials));
    assert_ne!(first, at(1, 31, &trials));
    assert_ne!(first, at(1, 30, &trials[..12]));
    for number in 0..40 {
        for (name, value) in at(3, number, &trials[..(number as usize).min(30)]) {
            assert!(space()[&name].contains(value), "{name} {value}");
        }
    }
    // The trial itself, already running, changes nothing.
    let mut with_itself = trials.clone();
    with_itself.push(crate::sampler::testing::trial(30, TrialState::Running));
    assert_eq!(first, at(1, 30, &with_itself));
}

#[test]
fn values_that_are_no_numbers_count_as_the_worst() {
    let trials: Vec<_> = [f64::NAN, 2.0, f64::INFINITY, 1.0, f64::NEG_INFINITY, f64::NAN]
        .into_iter()
        .enumerate()
        .map(|(number, value)| complete(number as u64, value))
        .collect();
    let trials: Vec<_> = trials.iter().collect();
    let check = |direction, expected: &[u64]| {
        let [below, above] = split(&trials, &[direction], 3);
        assert_eq!(below.iter().map(|t| t.number).collect::<Vec<_>>(), expected);
        assert_eq!(above.len(), 3);
    };
    check(Direction::Minimize, &[1, 3, 4]);
    check(Direction::Maximize, &[1, 2, 3]);
}

#[test]
fn running_trials_of_optuna_are_avoided_by_the_parameters_they_announce() {
    let space = space();
    let mut running = crate::sampler::testing::trial(9, TrialState::Running);
    let text = r#"{"kind": "lstm", "layers": 3, "mix": 0.5}"#;
    for (chunk, text) in [&text[..20], &text[20..]].into_iter().enumerate() {
        running.system_attributes.insert(format!("tpe:relative_params:{chunk}"), text.into());
    }
    let part: Subspace<'_> =
        ["kind", "layers", "mix"].into_iter().map(|name| (name, &space[name])).collect();
    assert_eq!(observations(&[&running], &part), [[1.0, 3.0, 0.5]]);
    running.system_attributes.remove("tpe:relative_params:1");
    assert!(observations(&[&running], &part).is_empty());
}

#[test]
fn parameters_whose_range_has_changed_are_still_learnt_from() {
    let mut trials: Vec<_> = (0..20).map(|number| complete(number, number as f64)).collect();
    let wider = Distribution::Float { low: -5.0, high: 5.0, log: false, step: None };
    let fewer = Distribution::Categorical { choices: vec![Choice::Bool(true)] };
    for trial in &mut trials {
        trial.parameters.insert("kind".into(), (fewer.clone(), 0.0));
    }
    let space = BTreeMap::from([
        ("mix".to_owned(), wider),
        ("kind".to_owned(), space()["kind"].clone()),
        ("new".to_owned(), Distribution::Int { low: 1, high: 1, log: false, step: 1 }),
    ]);
    let context = SamplerContext { trials: &trials, ..context(20) };
    let values = TpeSampler::new(TpeConfig::default(), 0).unwrap().sample(&context, &space);
    assert_eq!(values["new"], 1.0);
    assert!(values.iter().all(|(name, value)| space[name].contains(*value)));
}

#[test]
fn choices_that_python_holds_equal_are_the_same_ones() {
    let [infinite, nan] = [f64::INFINITY, f64::NAN].map(Choice::Float);
    let among = |first: Choice| {
        let choices = vec![first, infinite.clone(), nan.clone()];
        Distribution::Categorical { choices }
    };
    let space = BTreeMap::from([("c".to_owned(), among(Choice::Int(1)))]);
    let mut old = crate::sampler::testing::trial(0, TrialState::Complete);
    old.parameters.insert("c".into(), (among(Choice::Float(1.0)), 2.0));
    assert_eq!(intersection(&[&old], &space).len(), 1);
    assert_eq!(groups(&[&old], &space).len(), 1);
    let part: Subspace<'_> = space.iter().map(|(name, d)| (name.as_str(), d)).collect();
    assert_eq!(observations(&[&old], &part), [[2.0]]);
    // What Optuna's workers announce, as they write it.
    let mut running = crate::sampler::testing::trial(1, TrialState::Running);
    let mut announce = |text: &str| {
        running.system_attributes.insert("tpe:relative_params:0".into(), text.into());
        observations(&[&running], &part)
    };
    assert_eq!(announce(r#"{"c": Infinity}"#), [[1.0]]);
    assert_eq!(announce(r#"{"c": NaN}"#), [[2.0]]);
    assert!(announce(r#"{"c": "Infinity"}"#).is_empty());
}

#[test]
fn settings_that_cannot_be_are_named() {
    let check = |config, expected| {
        assert_eq!(TpeSampler::new(config, 0).err().map(|e| e.to_string()).as_deref(), expected);
    };
    let default = TpeConfig::default;
    check(default(), None);
    check(
        TpeConfig { group: true, multivariate: Some(false), ..default() },
        Some("`group` needs joint sampling; leave out `multivariate = false` or `group`"),
    );
    check(
        TpeConfig { candidates: 0, ..default() },
        Some("`candidates` is 0; at least 1 point must be drawn"),
    );
    check(
        TpeConfig { prior_weight: f64::NAN, ..default() },
        Some("`prior_weight` is NaN; it must be 0 or a finite number above it"),
    );
}
