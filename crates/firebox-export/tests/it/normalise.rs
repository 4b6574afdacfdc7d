//! `normalise` of the exported Python beside the normaliser that windows were trained with.
//!
//! `FIREBOX_TEST_PYTHON` names a Python that has `numpy` and `torch`; else the test says that it was skipped.

use std::process::Command;
use std::sync::Arc;

use firebox_core::{
    Channel, Labels, Normalisation, Normaliser, Role, Series, SeriesSet, SplitRule, Stream,
    WindowRule, split,
};
use firebox_tests::python;
use serde_json::json;

const STEPS: usize = 120;
const LENGTH: usize = 9;

/// A walk with a stretch that stands still and two that rise evenly, the second one in numbers of f32.
fn levels(seed: u64) -> Vec<f64> {
    let mut draws = Stream::new(seed, "levels").draws();
    let mut level = 900.0;
    (0..STEPS)
        .map(|step| {
            match step {
                20..35 => {}
                40..60 | 70..90 => level += 0.1,
                _ => level += draws.normal(),
            }
            match step {
                65..95 => f64::from(level as f32),
                _ => level,
            }
        })
        .collect()
}

#[test]
fn exported_python_normalises_as_windows_were() {
    let Some(python) = python("numpy, torch") else { return };
    let roles = [Role::Open, Role::Return, Role::Close, Role::Other, Role::High];
    let columns: Vec<Vec<f64>> = (0..roles.len()).map(|seed| levels(seed as u64)).collect();
    let values = (0..STEPS).flat_map(|t| columns.iter().map(move |own| own[t]).collect::<Vec<_>>());
    let named = roles.iter().enumerate().map(|(at, role)| Channel::new(format!("c{at}"), *role));
    let series = Series::regular("a", 0, 1, values.collect(), roles.len());
    let set = Arc::new(SeriesSet::new(named.collect(), vec![], vec![series]).unwrap());
    let rule = WindowRule { length: LENGTH, stride: 1, whole: false };
    let all = SplitRule::Time { validation: 0.0, test: 0.0, gap: Some(0) };
    let train = split(&set, &rule, &all, &Labels::None).unwrap().train;
    let kinds = [
        Normalisation::None,
        Normalisation::Standard,
        Normalisation::Robust,
        Normalisation::WindowStandard,
        Normalisation::WindowRelative,
    ];
    let cases: Vec<serde_json::Value> = kinds
        .into_iter()
        .map(|kind| {
            let normaliser = Normaliser::fit(kind, &train).unwrap();
            let windows: Vec<serde_json::Value> = train
                .windows()
                .iter()
                .map(|window| {
                    let mut out = vec![0.0f32; LENGTH * roles.len()];
                    normaliser.apply(&set, &window, &mut out);
                    let steps = window.steps();
                    let raw: Vec<Vec<f64>> =
                        steps.map(|t| columns.iter().map(|own| own[t]).collect()).collect();
                    json!({ "raw": raw, "expected": out })
                })
                .collect();
            json!({ "card": { "normaliser": normaliser }, "windows": windows })
        })
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cases.json");
    std::fs::write(&file, serde_json::to_vec(&cases).unwrap()).unwrap();
    let script = "
import json, sys
import numpy as np
sys.path.insert(0, 'python')
from firebox_models import normalise
compared = 0
for case in json.load(open(sys.argv[1])):
    for window in case['windows']:
        found, expected = normalise(window['raw'], case['card']).ravel(), np.array(window['expected'])
        assert np.allclose(found, expected, rtol=1e-5, atol=1e-5), (case['card'], window, found)
        compared += 1
print(compared, 'windows agree')
";
    let output = Command::new(python).args(["-c", script]).arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(said.trim(), format!("{} windows agree", 5 * train.len()));
}
