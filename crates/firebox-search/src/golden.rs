//! Reads the recorded results of Optuna and SciPy that tests compare with (`tests/golden/make.py`).

use std::collections::BTreeMap;

use serde_json::Value as Json;

/// The cases of one file by name.
pub(crate) fn read(name: &str) -> BTreeMap<String, Json> {
    let text = match name {
        "quasi" => include_str!("../tests/golden/quasi.json"),
        other => panic!("no golden file {other}"),
    };
    serde_json::from_str(text).unwrap()
}

/// A list of numbers; `null` is NaN, and infinities are texts.
pub(crate) fn numbers(json: &Json) -> Vec<f64> {
    json.as_array().unwrap().iter().map(number).collect()
}

/// A number; `null` is NaN, and infinities are texts.
pub(crate) fn number(json: &Json) -> f64 {
    match json {
        Json::Null => f64::NAN,
        Json::String(text) => text.parse().unwrap(),
        other => other.as_f64().unwrap(),
    }
}
