//! Compares trees with scikit-learn's, and importances with Optuna's.

use serde_json::Value as Json;

use super::forest::{Node, Tree, tree_of};
use super::*;
use crate::golden::{self, number, numbers};
use crate::sampler::testing::{space, trial};
use crate::space::Choice;

fn rows(json: &Json) -> Vec<Vec<f64>> {
    json.as_array().unwrap().iter().map(numbers).collect()
}

/// A tree of scikit-learn: features, thresholds, left and right children, values.
fn recorded(json: &Json) -> Tree {
    let field = |name: &str| numbers(&json[name]);
    let [feature, threshold, left, right, value] =
        ["feature", "threshold", "left", "right", "value"].map(field);
    let node = |i: usize| {
        if feature[i] < 0.0 {
            Node::Leaf { value: value[i] }
        } else {
            Node::Split {
                feature: feature[i] as usize,
                threshold: threshold[i],
                left: left[i] as usize,
                right: right[i] as usize,
            }
        }
    };
    Tree { nodes: (0..feature.len()).map(node).collect() }
}

fn predict(tree: &Tree, row: &[f64]) -> f64 {
    let mut node = 0;
    loop {
        match tree.nodes[node] {
            Node::Leaf { value } => return value,
            Node::Split { feature, threshold, left, right } => {
                let goes_left = f64::from(row[feature] as f32) <= threshold;
                node = if goes_left { left } else { right };
            }
        }
    }
}

/// Splits that part the rows equally well by different features are left to chance by both, so it is
/// the parts that must be the same.
#[test]
fn trees_are_scikit_learns() {
    for case in golden::read("fanova").remove("trees").unwrap().as_array().unwrap() {
        let (rows, targets) = (rows(&case["rows"]), numbers(&case["targets"]));
        let (weights, depth) = (numbers(&case["weights"]), case["depth"].as_u64().unwrap());
        let expected = recorded(&case["tree"]);
        for seed in 0..20 {
            let mut draws = Stream::new(seed, "test").draws();
            let found = tree_of(&rows, &targets, &weights, depth as usize, &mut draws);
            assert_eq!(found.nodes.len(), expected.nodes.len());
            for (row, weight) in rows.iter().zip(&weights) {
                let error = (predict(&found, row) - predict(&expected, row)).abs();
                assert!(*weight == 0.0 || error < 1e-12);
            }
        }
    }
}

#[test]
fn variances_of_a_tree_are_optunas() {
    for case in golden::read("fanova").remove("trees").unwrap().as_array().unwrap() {
        let bounds: Vec<[f64; 2]> =
            rows(&case["bounds"]).iter().map(|ends| [ends[0], ends[1]]).collect();
        let boxes = Boxes::new(&recorded(&case["tree"]), &bounds);
        let near = |found: f64, expected: &Json| {
            let expected = number(expected);
            assert!(
                (found - expected).abs() < 1e-11 * expected.abs() + 1e-14,
                "{found} {expected}"
            );
        };
        near(boxes.variance(), &case["variance"]);
        for marginal in case["marginals"].as_array().unwrap() {
            let columns: Vec<_> =
                numbers(&marginal["columns"]).into_iter().map(|column| column as usize).collect();
            near(boxes.marginal_variance(&columns), &marginal["variance"]);
        }
    }
}

fn study(case: &Json) -> Vec<Trial> {
    let space = space();
    let trials = case["trials"].as_array().unwrap().iter().enumerate();
    let read = |(index, json): (usize, &Json)| {
        let mut trial = trial(index as u64, TrialState::Complete);
        trial.values = Some(vec![number(&json["value"])]);
        for (name, value) in json["params"].as_object().unwrap() {
            trial.parameters.insert(name.clone(), (space[name].clone(), number(value)));
        }
        trial
    };
    trials.map(read).collect()
}

#[test]
fn importances_are_optunas_within_the_spread_of_their_seeds() {
    for case in golden::read("fanova").remove("studies").unwrap().as_array().unwrap() {
        let trials = study(case);
        let expected = case["importances"].as_object().unwrap();
        let found = importances(&trials, 0, FanovaConfig::default());
        assert_eq!(found.len(), expected.len());
        assert!((found.iter().map(|(_, share)| share).sum::<f64>() - 1.0).abs() < 1e-12);
        // In an order that one of Optuna's ten seeds gives.
        let most = [&found[0].0, &found[1].0];
        let of_seed = |seed: usize| {
            let mut ranked: Vec<(&String, f64)> =
                expected.iter().map(|(name, shares)| (name, numbers(shares)[seed])).collect();
            ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
            [ranked[0].0, ranked[1].0]
        };
        assert!((0..10).any(|seed| of_seed(seed) == most), "{most:?}");
        for (name, share) in found {
            let of_seeds = numbers(&expected[&name]);
            let (least, most) = of_seeds
                .iter()
                .fold((f64::MAX, f64::MIN), |(least, most), v| (least.min(*v), most.max(*v)));
            let spread = most - least;
            let middle = (least + most) / 2.0;
            assert!(
                (share - middle).abs() <= spread + 1e-3,
                "{name}: {share} not {least} to {most}"
            );
        }
    }
}

#[test]
fn a_parameter_is_common_where_python_holds_its_choices_equal() {
    let cases = golden::read("fanova").remove("studies").unwrap();
    let mut trials = study(&cases[0]);
    let of = [Choice::Bool(true), Choice::Int(1), Choice::Float(1.0)]
        .map(|first| Distribution::Categorical { choices: vec![first, Choice::None] });
    for (trial, distribution) in trials.iter_mut().zip(of.iter().cycle()) {
        trial.parameters.insert("flag".into(), (distribution.clone(), 0.0));
    }
    let found = importances(&trials, 0, FanovaConfig::default());
    assert!(found.iter().any(|(name, _)| name == "flag"), "{found:?}");
}

#[test]
fn importances_depend_on_the_seed_and_the_trials_alone() {
    let cases = golden::read("fanova").remove("studies").unwrap();
    let mut trials = study(&cases[0]);
    let of = |trials: &[Trial], seed| {
        importances(trials, 0, FanovaConfig { seed, ..FanovaConfig::default() })
    };
    let first = of(&trials, 1);
    assert_eq!(first, of(&trials, 1));
    assert_ne!(first, of(&trials, 2));
    // Trials without a value that counts change nothing.
    let mut odd = trials[0].clone();
    odd.values = Some(vec![f64::INFINITY]);
    trials.push(odd.clone());
    trials.push(Trial { state: TrialState::Pruned, values: None, ..odd });
    assert_eq!(first, of(&trials, 1));
}

#[test]
fn without_differences_all_shares_are_zero() {
    let cases = golden::read("fanova").remove("studies").unwrap();
    let mut trials = study(&cases[0]);
    assert!(importances(&[], 0, FanovaConfig::default()).is_empty());
    let zero = |trials: &[Trial], objective| {
        let found = importances(trials, objective, FanovaConfig::default());
        assert_eq!(found.len(), space().len());
        assert!(found.iter().all(|(_, share)| *share == 0.0));
    };
    zero(&trials[..1], 0);
    zero(&trials, 1);
    trials.iter_mut().for_each(|trial| trial.values = Some(vec![2.0]));
    zero(&trials, 0);
}
