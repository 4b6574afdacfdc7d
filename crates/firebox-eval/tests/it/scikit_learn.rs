//! Metrics, probes, intervals and the projection beside scikit-learn and SciPy. The golden values
//! are written by `golden/make.py`.

use firebox_core::Stream;
use firebox_eval::{
    Agreement, Comparison, Confusion, Distance, Features, KMeansConfig, Logistic, Metric,
    Neighbours, Predictions, Resampling, Ridge, Stop, Svm, project,
};
use serde_json::Value;

fn golden() -> Value {
    serde_json::from_str(include_str!("../golden/scikit_learn.json")).unwrap()
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

fn singles(value: &Value) -> Vec<f32> {
    floats(value).into_iter().map(|v| v as f32).collect()
}

fn classes(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

fn number(value: &Value) -> usize {
    value.as_u64().unwrap() as usize
}

fn features(case: &Value) -> Features {
    Features {
        rows: singles(&case["rows"]),
        width: number(&case["width"]),
        labels: classes(&case["labels"]),
    }
}

/// Every number is nearer than `bound` to the one that is expected in its place, and none is NaN.
#[track_caller]
fn near(what: &str, found: &[f64], expected: &[f64], bound: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (place, (found, expected)) in found.iter().zip(expected).enumerate() {
        let off = (found - expected).abs();
        assert!(off < bound, "{what}: {found} at {place}, not {expected}");
    }
}

#[test]
fn metrics_agree() {
    for case in golden()["metrics"].as_array().unwrap() {
        let count = number(&case["classes"]);
        let confusion =
            Confusion::of(count, &classes(&case["truth"]), &classes(&case["predicted"]));
        let expected: Vec<u64> = classes(&case["confusion"]).into_iter().map(u64::from).collect();
        assert_eq!(confusion.counts, expected);
        let metrics = serde_json::to_value(confusion.metrics()).unwrap();
        for (name, expected) in case["metrics"].as_object().unwrap() {
            let found = metrics[name].as_f64().unwrap();
            assert!((found - expected.as_f64().unwrap()).abs() < 1e-12, "{count} {name}: {found}");
        }
    }
}

#[test]
fn logistic_probabilities_agree() {
    for case in golden()["logistic"].as_array().unwrap() {
        let (count, l2) = (number(&case["classes"]), case["l2"].as_f64().unwrap());
        let stop = Stop { iterations: 500, gradient: 1e-10 };
        let fitted = Logistic::fit(&features(case), count, l2, stop);
        assert!(fitted.converged, "{count} classes");
        let found = fitted.probabilities(&singles(&case["test"]));
        let what = format!("{count} classes, l2 {l2}");
        near(&what, &found, &floats(&case["probabilities"]), 1e-5);
    }
}

#[test]
fn support_vector_machines_agree() {
    let golden: Value = serde_json::from_str(include_str!("../golden/svm.json")).unwrap();
    for case in golden["svm"].as_array().unwrap() {
        let (count, c) = (number(&case["classes"]), case["c"].as_f64().unwrap());
        let fitted = Svm::fit(&features(case), count, c);
        let found = fitted.scores(&singles(&case["test"]));
        let what = format!("{count} classes, C {c}");
        near(&what, &found, &floats(&case["scores"]), 1e-3);
        assert_eq!(fitted.predict(&singles(&case["test"])), classes(&case["predicted"]));
    }
}

#[test]
fn ridge_classifiers_choose_and_score_alike() {
    let golden: Value = serde_json::from_str(include_str!("../golden/ridge.json")).unwrap();
    let penalties = floats(&golden["penalties"]);
    for case in golden["ridge"].as_array().unwrap() {
        let fitted = Ridge::fit(&features(case), number(&case["classes"]), &penalties);
        let penalty = case["penalty"].as_f64().unwrap();
        assert!((fitted.penalty() / penalty - 1.0).abs() < 1e-6, "{} {penalty}", fitted.penalty());
        let found = fitted.scores(&singles(&case["test"]));
        let what = format!("penalty {penalty}");
        near(&what, &found, &floats(&case["scores"]), 1e-6);
        assert_eq!(fitted.predict(&singles(&case["test"])), classes(&case["predicted"]));
    }
}

#[test]
fn neighbours_agree_where_votes_are_not_tied() {
    for case in golden()["neighbours"].as_array().unwrap() {
        let distance = match case["metric"].as_str().unwrap() {
            "cosine" => Distance::Cosine,
            _ => Distance::Euclidean,
        };
        let fitted = Neighbours::fit(&features(case), number(&case["classes"]), distance);
        let found = fitted.predict(&singles(&case["test"]), number(&case["k"]));
        let expected = classes(&case["predicted"]);
        let tied = case["tied"].as_array().unwrap();
        let mut compared = 0;
        for row in (0..found.len()).filter(|row| tied[*row] == Value::Bool(false)) {
            assert_eq!(found[row], expected[row], "{distance:?}, row {row}");
            compared += 1;
        }
        assert!(compared > found.len() / 2);
    }
}

#[test]
fn bootstrap_intervals_agree_within_their_own_chance() {
    let case = &golden()["bootstrap"];
    let [right, other] = ["right", "other"].map(|name| {
        floats(&case[name]).into_iter().map(|right| u32::from(right == 0.0)).collect::<Vec<_>>()
    });
    let truth = vec![0; right.len()];
    let resampling = Resampling {
        stream: Stream::new(1, "golden"),
        resamples: 20_000,
        block: 1,
        units: vec![],
        whole_units: false,
        confidence: 0.95,
    };
    let classifiers = [right, other].map(Predictions::single);
    let comparison = Comparison::new(&resampling, 2, &truth, &classifiers);
    let found =
        [comparison.estimate(0, Metric::Accuracy), comparison.difference(0, 1, Metric::Accuracy)];
    for (found, expected) in found.into_iter().zip([&case["accuracy"], &case["difference"]]) {
        let expected = floats(expected);
        // One window of 300 is 0.0033; twenty thousand resamples know an end to about that.
        assert!((found.low - expected[0]).abs() < 0.004, "{found:?} {expected:?}");
        assert!((found.high - expected[1]).abs() < 0.004, "{found:?} {expected:?}");
    }
}

#[test]
fn principal_components_agree_up_to_their_sign() {
    let case = &golden()["projection"];
    let found = project(&singles(&case["rows"]), number(&case["width"]));
    let expected = floats(&case["points"]);
    let explained = floats(&case["explained"]);
    for axis in 0..2 {
        assert!((found.explained[axis] - explained[axis]).abs() < 1e-6);
        let sign = (found.points[0][axis] * expected[axis]).signum();
        for (row, point) in found.points.iter().enumerate() {
            assert!((point[axis] - sign * expected[2 * row + axis]).abs() < 1e-4, "row {row}");
        }
    }
}

fn clustering() -> Value {
    serde_json::from_str(include_str!("../golden/clustering.json")).unwrap()
}

#[test]
fn clusters_agree() {
    for case in clustering()["lloyd"].as_array().unwrap() {
        let (rows, width) = (singles(&case["rows"]), number(&case["width"]));
        let start: Vec<f64> = singles(&case["start"]).into_iter().map(f64::from).collect();
        let config = KMeansConfig { clusters: start.len() / width, ..KMeansConfig::default() };
        let never = std::sync::atomic::AtomicBool::new(false);
        let found = config.from_centers(&rows, width, start, &never).unwrap();
        assert_eq!(found.assigned, classes(&case["labels"]));
        for (found, expected) in found.centers.iter().zip(floats(&case["centers"])) {
            assert!((found - expected).abs() < 1e-9, "{found} {expected}");
        }
        let inertia = case["inertia"].as_f64().unwrap();
        assert!((found.inertia / inertia - 1.0).abs() < 1e-9, "{} {inertia}", found.inertia);
        // The best of 50 starts of scikit-learn.
        let best = case["best"].as_f64().unwrap();
        let found = KMeansConfig { restarts: 50, ..config }.fit(&rows, width).unwrap().inertia;
        assert!(found <= best * 1.005, "{found} {best}");
    }
}

#[test]
fn agreements_agree() {
    for case in clustering()["agreement"].as_array().unwrap() {
        let found = Agreement::of(&classes(&case["truth"]), &classes(&case["clusters"]));
        let found = serde_json::to_value(found).unwrap();
        for name in ["purity", "normalised_information", "adjusted_rand"] {
            let [found, expected] = [&found[name], &case[name]].map(|v| v.as_f64().unwrap());
            assert!((found - expected).abs() < 1e-12, "{name}: {found} {expected}");
        }
    }
}
