//! Distributions as Optuna's journal has them: JSON texts of a class and its attributes.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::json;
use crate::space::{Choice, Distribution, same_choices};

#[derive(Deserialize)]
struct Written {
    name: String,
    attributes: Map<String, Value>,
}

/// Reads `{"name": CLASS, "attributes": {…}}`, the classes of Optuna before 3.0 included.
pub(super) fn read(text: &str) -> Result<Distribution, String> {
    let Written { name, attributes } =
        json::read_marked(text).map_err(|error| format!("`{text}` is no distribution: {error}"))?;
    let missing = |key: &str| format!("the distribution `{text}` has no `{key}`");
    let flag = |key: &str| attributes.get(key).and_then(Value::as_bool).unwrap_or(false);
    let number = |key: &str| {
        let value = attributes.get(key);
        value.and_then(|v| v.as_f64().or_else(|| json::token(v))).ok_or_else(|| missing(key))
    };
    let whole = |key: &str| {
        // Python's `int` may have been written as a float.
        let value = attributes.get(key).ok_or_else(|| missing(key))?;
        let float = || value.as_f64().filter(|v| v.fract() == 0.0).map(|v| v as i64);
        value.as_i64().or_else(float).ok_or_else(|| missing(key))
    };
    let optional = |key: &str| attributes.get(key).filter(|value| !value.is_null());
    let step = |key: &str| optional(key).map(|_| number(key)).transpose();
    let int_step = || optional("step").map_or(Ok(1), |_| whole("step"));
    let float = |log, step| -> Result<_, String> {
        Ok(Distribution::Float { low: number("low")?, high: number("high")?, log, step })
    };
    let int = |log, step| -> Result<_, String> {
        Ok(Distribution::Int { low: whole("low")?, high: whole("high")?, log, step })
    };
    match name.as_str() {
        "FloatDistribution" => float(flag("log"), step("step")?),
        "IntDistribution" => int(flag("log"), int_step()?),
        "CategoricalDistribution" => {
            let choices = attributes.get("choices").and_then(Value::as_array);
            let choices = choices.ok_or_else(|| missing("choices"))?;
            Ok(Distribution::Categorical { choices: choices.iter().map(choice).collect() })
        }
        "UniformDistribution" => float(false, None),
        "LogUniformDistribution" => float(true, None),
        "DiscreteUniformDistribution" => float(false, Some(number("q")?)),
        "IntUniformDistribution" => int(false, int_step()?),
        "IntLogUniformDistribution" => int(true, 1),
        _ => Err(format!("the distribution `{name}` is not known")),
    }
}

/// What is no scalar, which Optuna warns of, can be shown and not be suggested: its JSON stands for it.
fn choice(value: &Value) -> Choice {
    let number = json::token(value).map(Choice::Float);
    let scalar = number.or_else(|| serde_json::from_value(value.clone()).ok());
    scalar.unwrap_or_else(|| Choice::Text(json::write(value)))
}

/// The text that Optuna's `distribution_to_json` writes, up to spaces.
pub(super) fn write(distribution: &Distribution) -> String {
    match distribution {
        Distribution::Float { low, high, log, step } => {
            let step = step.map_or("null".to_owned(), json::number);
            let [low, high] = [low, high].map(|value| json::number(*value));
            format!(
                r#"{{"name": "FloatDistribution", "attributes": {{"step": {step}, "low": {low}, "high": {high}, "log": {log}}}}}"#
            )
        }
        Distribution::Int { low, high, log, step } => format!(
            r#"{{"name": "IntDistribution", "attributes": {{"log": {log}, "step": {step}, "low": {low}, "high": {high}}}}}"#
        ),
        Distribution::Categorical { choices } => {
            let choices: Vec<String> = choices.iter().map(choice_text).collect();
            format!(
                r#"{{"name": "CategoricalDistribution", "attributes": {{"choices": [{}]}}}}"#,
                choices.join(", ")
            )
        }
    }
}

fn choice_text(choice: &Choice) -> String {
    match choice {
        Choice::None => "null".to_owned(),
        Choice::Bool(flag) => flag.to_string(),
        Choice::Int(number) => number.to_string(),
        Choice::Float(number) => json::number(*number),
        Choice::Text(text) => Value::from(text.as_str()).to_string(),
    }
}

/// Why `new` cannot stand for the parameter for which a trial of the study has `old`: Optuna's
/// `check_distribution_compatibility`. Ranges may differ; kind, logarithm and choices may not.
pub(crate) fn incompatible(old: &Distribution, new: &Distribution) -> Option<&'static str> {
    use Distribution::{Categorical, Float, Int};
    match (old, new) {
        (Float { log: a, .. }, Float { log: b, .. }) | (Int { log: a, .. }, Int { log: b, .. }) => {
            (a != b).then_some("one is logarithmic and the other is not")
        }
        (Categorical { choices: a }, Categorical { choices: b }) => {
            (!same_choices(a, b)).then_some("the choices differ")
        }
        _ => Some("they are of different kinds"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_optuna_writes_is_read_and_written_the_same() {
        // optuna.distributions.distribution_to_json of 5.0.0.
        let texts = [
            r#"{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0001, "high": 0.1, "log": true}}"#,
            r#"{"name": "FloatDistribution", "attributes": {"step": 0.25, "low": -1.0, "high": 1.0, "log": false}}"#,
            r#"{"name": "IntDistribution", "attributes": {"log": false, "step": 2, "low": 2, "high": 8}}"#,
            r#"{"name": "CategoricalDistribution", "attributes": {"choices": [null, true, 3, 2.5, "a\"b"]}}"#,
            r#"{"name": "CategoricalDistribution", "attributes": {"choices": [Infinity, NaN, -Infinity, "NaN", "Infinity"]}}"#,
        ];
        for text in texts {
            assert_eq!(write(&read(text).unwrap()), text);
        }
        let old = r#"{"name": "IntLogUniformDistribution", "attributes": {"low": 1, "high": 8, "step": 1}}"#;
        let expected = Distribution::Int { low: 1, high: 8, log: true, step: 1 };
        assert_eq!(read(old).unwrap(), expected);
        assert!(read(r#"{"name": "Odd", "attributes": {}}"#).unwrap_err().contains("Odd"));
        assert!(read(r#"{"name": "FloatDistribution", "attributes": {"low": 1}}"#).is_err());
    }

    #[test]
    fn ranges_may_change_and_kinds_may_not() {
        let float = |low, log| Distribution::Float { low, high: 9.0, log, step: None };
        let among = |choice| Distribution::Categorical { choices: vec![choice] };
        let choices = |n: i64| among(Choice::Int(n));
        assert_eq!(incompatible(&float(1.0, true), &float(2.0, true)), None);
        assert!(incompatible(&float(1.0, true), &float(1.0, false)).is_some());
        assert!(incompatible(&float(1.0, true), &choices(1)).is_some());
        assert!(incompatible(&choices(1), &choices(2)).is_some());
        // As Python's `CategoricalDistribution((1,)) == CategoricalDistribution((1.0,))`.
        for same in [Choice::Float(1.0), Choice::Bool(true)] {
            assert_eq!(incompatible(&choices(1), &among(same)), None);
        }
        let large = |n: i64| choices((1 << 53) + n);
        assert!(incompatible(&large(0), &large(1)).is_some());
        let [nan, text] = [Choice::Float(f64::NAN), Choice::Text("NaN".to_owned())].map(among);
        assert_eq!(incompatible(&nan, &nan), None);
        assert!(incompatible(&nan, &text).is_some());
    }
}
