//! Compares decisions with Optuna's on recorded curves.

use serde_json::Value as Json;

use super::*;
use crate::golden::{self, number};
use crate::sampler::testing::trial;

fn pruner(name: &str) -> Box<dyn Pruner> {
    let schedule = |startup_trials, warmup_steps, interval_steps, min_trials| Schedule {
        startup_trials,
        warmup_steps,
        interval_steps,
        min_trials,
    };
    let halving = |min_resource, reduction_factor, min_early_stopping_rate, bootstrap_count| {
        Box::new(SuccessiveHalvingPruner {
            min_resource,
            reduction_factor,
            min_early_stopping_rate,
            bootstrap_count,
            by_attributes: false,
        })
    };
    let study = || "curves".to_owned();
    match name {
        "median" => Box::new(MedianPruner::default()),
        "median_late" => Box::new(MedianPruner { schedule: schedule(3, 4, 3, 2) }),
        "percentile" => {
            Box::new(PercentilePruner { percentile: 25.0, schedule: schedule(2, 1, 1, 1) })
        }
        "percentile_odd" => {
            Box::new(PercentilePruner { percentile: 61.8, schedule: schedule(1, 0, 1, 1) })
        }
        "halving" => halving(None, 4, 0, 0),
        "halving_fixed" => halving(Some(2), 2, 1, 0),
        "halving_bootstrap" => halving(Some(1), 3, 0, 2),
        "hyperband" => Box::new(HyperbandPruner { study: study(), ..Default::default() }),
        "hyperband_fixed" => Box::new(HyperbandPruner {
            study: study(),
            min_resource: 1,
            max_resource: Some(27),
            reduction_factor: 2,
            bootstrap_count: 1,
            by_attributes: false,
        }),
        "patient" => Box::new(PatientPruner::new(None, 2, 0.01).unwrap()),
        "patient_median" => {
            let median = MedianPruner { schedule: schedule(2, 0, 1, 1) };
            Box::new(PatientPruner::new(Some(Box::new(median)), 1, 0.0).unwrap())
        }
        "patient_halving" => {
            Box::new(PatientPruner::new(Some(halving(Some(1), 2, 0, 0)), 1, 0.0).unwrap())
        }
        "patient_hyperband" => {
            let hyperband =
                HyperbandPruner { study: study(), max_resource: Some(27), ..Default::default() };
            Box::new(PatientPruner::new(Some(Box::new(hyperband)), 0, 0.0).unwrap())
        }
        "threshold" => Box::new(ThresholdPruner {
            lower: Some(0.2),
            upper: Some(1.5),
            warmup_steps: 2,
            interval_steps: 2,
        }),
        other => panic!("no pruner {other}"),
    }
}

/// Replays recorded reports; returns the trials and how many decisions were the recorded ones.
fn replay(name: &str, case: &Json, with_attributes: bool) -> (Vec<Trial>, usize, usize) {
    let pruner = pruner(name);
    let direction = match case["maximize"].as_bool().unwrap() {
        true => Direction::Maximize,
        false => Direction::Minimize,
    };
    let mut trials: Vec<Trial> = Vec::new();
    let (mut decisions, mut equal) = (0, 0);
    for (time, event) in case["events"].as_array().unwrap().iter().enumerate() {
        let index = event[0].as_u64().unwrap() as usize;
        while trials.len() <= index {
            let new = trial(trials.len() as u64, TrialState::Running);
            trials.push(Trial { started: Some(time as f64), ..new });
        }
        if event.as_array().unwrap().len() == 1 {
            trials[index].state = TrialState::Complete;
            trials[index].ended = Some(time as f64);
            continue;
        }
        trials[index].intermediate.insert(event[1].as_u64().unwrap(), number(&event[2]));
        let own = trials[index].clone();
        let prune = pruner.prune(&trials, &own, direction);
        if with_attributes {
            let attributes = pruner.attributes(&trials, &own, direction);
            trials[index].system_attributes.extend(attributes);
        }
        decisions += 1;
        let expected = event[3].as_bool().unwrap();
        equal += usize::from(prune == expected);
        if with_attributes {
            assert_eq!(prune, expected, "{name}, event {time}: {event}");
        }
        if expected {
            trials[index].state = TrialState::Pruned;
        }
    }
    (trials, decisions, equal)
}

#[test]
fn decisions_and_attributes_are_optunas() {
    for (name, case) in golden::read("pruners") {
        let (trials, decisions, _) = replay(&name, &case[0], true);
        assert!(decisions > 300, "{name}");
        for (trial, expected) in trials.iter().zip(case[0]["attributes"].as_array().unwrap()) {
            let expected = expected.as_object().unwrap();
            assert_eq!(trial.system_attributes.len(), expected.len(), "{name} {}", trial.number);
            for (key, value) in &trial.system_attributes {
                let expected = number(&expected[key]).clamp(-f64::MAX, f64::MAX);
                assert_eq!(value.as_f64(), Some(expected), "{name} {}", trial.number);
            }
        }
    }
}

#[test]
fn decisions_need_no_attributes_but_where_a_trial_jumps_over_a_rung() {
    // Which rungs a patient one was asked about is in the attributes alone.
    let asked = |(name, _): &(String, Json)| {
        !["patient_halving", "patient_hyperband"].contains(&name.as_str())
    };
    for (name, case) in golden::read("pruners").into_iter().filter(asked) {
        let (_, decisions, equal) = replay(&name, &case[0], false);
        assert!(equal as f64 > 0.95 * decisions as f64, "{name} {equal} of {decisions}");
    }
}

#[test]
fn without_reports_nothing_is_pruned() {
    let trials: Vec<_> = (0..20).map(|number| trial(number, TrialState::Complete)).collect();
    for name in golden::read("pruners").keys() {
        for trials in [&trials[..], &[]] {
            let own = trial(20, TrialState::Running);
            assert!(!pruner(name).prune(trials, &own, Direction::Minimize), "{name}");
        }
    }
    let mut own = trial(20, TrialState::Running);
    own.intermediate.insert(0, f64::NAN);
    assert!(!NoPruner.prune(&trials, &own, Direction::Minimize));
}

#[test]
fn settings_that_cannot_be_are_named() {
    let check = |found: Result<(), PrunerError>, expected: &str| {
        assert_eq!(found.err().map(|error| error.to_string()).unwrap_or_default(), expected);
    };
    let zero = Schedule { interval_steps: 0, ..Schedule::default() };
    check(MedianPruner::default().validate(), "");
    check(
        MedianPruner { schedule: zero }.validate(),
        "`interval_steps` is 0; it must be at least 1",
    );
    check(
        PercentilePruner { percentile: -1.0, schedule: Schedule::default() }.validate(),
        "`percentile` is -1; it must be from 0 to 100",
    );
    let halving = SuccessiveHalvingPruner::default;
    check(halving().validate(), "");
    check(
        SuccessiveHalvingPruner { reduction_factor: 1, ..halving() }.validate(),
        "`reduction_factor` is 1; it must be at least 2",
    );
    check(
        SuccessiveHalvingPruner { bootstrap_count: 1, ..halving() }.validate(),
        "`bootstrap_count` needs a given `min_resource`; set it, or leave out `bootstrap_count`",
    );
    check(
        HyperbandPruner { min_resource: 9, max_resource: Some(3), ..Default::default() }.validate(),
        "`max_resource` is 3; it must be at least `min_resource`, which is 9",
    );
    check(
        PatientPruner::new(None, 1, -0.5).map(|_| ()),
        "`min_delta` is -0.5; it must be 0 or above",
    );
    check(
        ThresholdPruner::default().validate(),
        "neither `lower` nor `upper` is given; give at least one",
    );
    check(
        ThresholdPruner { lower: Some(2.0), upper: Some(1.0), ..Default::default() }.validate(),
        "`lower` is 2 and `upper` is 1; `lower` must be at most `upper`",
    );
}

/// A trial that reported a value at step 1.
fn reported(number: u64, state: TrialState, value: f64) -> Trial {
    Trial { intermediate: BTreeMap::from([(1, value)]), ..trial(number, state) }
}

/// The same, which goes on with an earlier one.
fn retry(number: u64, of: u64, state: TrialState, value: f64) -> Trial {
    let mut retry = reported(number, state, value);
    retry.system_attributes.insert("failed_trial".into(), of.into());
    retry.system_attributes.insert("retry_history".into(), vec![of].into());
    retry
}

#[test]
fn a_trial_that_was_tried_again_counts_once() {
    use TrialState::{Complete, Fail, Running, Waiting};
    let halving = SuccessiveHalvingPruner {
        min_resource: Some(1),
        reduction_factor: 2,
        ..Default::default()
    };
    // One bracket.
    let hyperband =
        HyperbandPruner { max_resource: Some(1), reduction_factor: 2, ..Default::default() };
    let pruners: [(&str, Box<dyn Pruner>); 2] =
        [("halving", Box::new(halving)), ("hyperband", Box::new(hyperband))];
    for (name, pruner) in pruners {
        let prune = |trials: &[Trial], own: &Trial| pruner.prune(trials, own, Direction::Minimize);
        let others = [reported(1, Complete, 0.3), reported(2, Complete, 0.4)];
        // The second of four goes on; the second of five with one value twice would not.
        let own = reported(4, Running, 0.2);
        for (first, again) in [(Fail, Waiting), (Fail, Running), (Fail, Complete), (Fail, Fail)] {
            let tries = [reported(0, first, 0.1), retry(3, 0, again, 0.1)];
            let all = [&tries[..1], &others, &tries[1..], std::slice::from_ref(&own)].concat();
            assert!(!prune(&all, &own), "{name} {again:?}");
            assert!(!prune(&all[..all.len() - 1], &own), "{name} {again:?}");
        }
        let twice = [reported(0, Fail, 0.1), reported(3, Fail, 0.1)];
        assert!(prune(&[&twice[..], &others].concat(), &own), "{name}: two works count twice");
        // The second of three does not go on; it does not stand beside its own first try.
        let own = retry(3, 2, Running, 0.2);
        let all = [reported(0, Complete, 0.1), reported(1, Complete, 0.3), reported(2, Fail, 0.2)];
        let with_it = [&all[..], std::slice::from_ref(&own)].concat();
        assert!(prune(&all, &own) && prune(&with_it, &own), "{name}");
    }
}

#[test]
fn a_retry_stays_in_its_bracket() {
    let pruner = HyperbandPruner { max_resource: Some(27), ..Default::default() };
    let bracket = |trials: &[Trial], number| pruner.bracket(trials, number).unwrap();
    let first = bracket(&[], 0);
    let other = (1..).find(|number| bracket(&[], *number) != first).unwrap();
    let trials = [reported(0, TrialState::Fail, 0.5), retry(other, 0, TrialState::Running, 0.5)];
    assert_eq!(bracket(&trials, other), first);
    assert!(pruner.competes(&trials, 0, other) && !pruner.competes(&[], 0, other));
    // As in Optuna, whose samplers look for a Hyperband that is not wrapped.
    let patient = PatientPruner::new(Some(Box::new(pruner)), 1, 0.0).unwrap();
    assert!(patient.competes(&[], 0, other));
}

#[test]
fn a_trial_that_repeats_another_is_left_out() {
    use TrialState::{Complete, Running};
    let schedule = Schedule { startup_trials: 2, ..Schedule::default() };
    let halving = SuccessiveHalvingPruner {
        min_resource: Some(1),
        reduction_factor: 2,
        ..Default::default()
    };
    let pruners: [(&str, Box<dyn Pruner>); 2] =
        [("median", Box::new(MedianPruner { schedule })), ("halving", Box::new(halving))];
    let trials = [
        reported(0, Complete, 0.1),
        reported(1, Complete, 0.3),
        reported(2, Complete, 0.4),
        reported(3, Complete, 0.1),
        reported(4, Complete, 0.1),
    ];
    let mut repeated = trials.clone();
    for trial in &mut repeated[3..] {
        trial.system_attributes.insert("firebox:repeats".into(), 0.into());
    }
    let own = reported(5, Running, 0.2);
    for (name, pruner) in pruners {
        let prune = |trials: &[Trial]| pruner.prune(trials, &own, Direction::Minimize);
        assert!(!prune(&trials[..3]) && prune(&trials) && !prune(&repeated), "{name}");
    }
    let median = pruner("median_late");
    let late = Trial { intermediate: (0..5).map(|step| (step, 9.0)).collect(), ..own };
    let all = |trials: &[Trial]| -> Vec<Trial> {
        let long = |trial: &Trial| Trial {
            intermediate: (0..5).map(|step| (step, 0.1)).collect(),
            ..trial.clone()
        };
        trials.iter().map(long).collect()
    };
    assert!(median.prune(&all(&trials[2..]), &late, Direction::Minimize));
    // They are no trials to start with.
    assert!(!median.prune(&all(&repeated[2..]), &late, Direction::Minimize));
}
