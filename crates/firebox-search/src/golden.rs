//! Reads the recorded results of Optuna and SciPy that tests compare with (`tests/golden/make.py`).

use std::collections::BTreeMap;

use serde_json::Value as Json;

/// The cases of one file by name.
pub(crate) fn read(name: &str) -> BTreeMap<String, Json> {
    let text = match name {
        "pruners" => include_str!("../tests/golden/pruners.json"),
        "quasi" => include_str!("../tests/golden/quasi.json"),
        "fanova" => include_str!("../tests/golden/fanova.json"),
        "parzen" => include_str!("../tests/golden/parzen.json"),
        "tpe" => include_str!("../tests/golden/tpe.json"),
        "volumes" => include_str!("../tests/golden/volumes.json"),
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

/// The generator that `make.py` puts in the place of NumPy's: uniform numbers in [0, 1).
pub(crate) fn draws(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed;
    let mut one = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / 9_007_199_254_740_992.0
    };
    for _ in 0..4 {
        one();
    }
    one
}
