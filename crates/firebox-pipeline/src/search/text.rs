//! Trials and errors in a line of text.

use std::collections::BTreeMap;

use firebox_search::Trial;

use super::{Objective, Objectives};
use crate::error::PipelineError;

/// An error with its causes, in one line each.
pub(super) fn reason(error: &PipelineError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        let said = inner.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = inner.source();
    }
    text
}

/// The objectives with the values of a trial, for a line of a log.
pub(super) fn values_text(values: &[f64], objectives: &Objectives) -> String {
    let named = objectives.all().iter().zip(values);
    let text = |(objective, value): (&Objective, &f64)| match objective {
        Objective::Parameters => format!("{value} parameters"),
        scored => format!("{} {}", scored.name(), firebox_eval::loss(*value)),
    };
    named.map(text).collect::<Vec<_>>().join(", ")
}

/// The objectives of a trial with their values.
pub(super) fn value_text(trial: &Trial, objectives: &Objectives) -> String {
    let Some(values) = &trial.values else { return "no value".to_owned() };
    let named = objectives.names().into_iter().zip(values);
    named.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
}

/// The values of a trial, by the last part of their keys, or by as many as tell them apart.
pub(super) fn parameters_text(trial: &Trial) -> String {
    let values: BTreeMap<_, _> = trial.parameters.iter().collect();
    let shown = values.into_iter().map(|(key, (distribution, internal))| {
        let name = name_among(key, trial.parameters.keys());
        let value = distribution.to_value(*internal).map_or_else(|_| "?".to_owned(), short);
        format!("{name} {value}")
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// As many last parts of a key as no other one of these ends with.
fn name_among<'a, 'b>(key: &'a str, all: impl Iterator<Item = &'b String> + Clone) -> &'a str {
    let is_single = |name: &&str| {
        let ends = |other: &str| {
            let start = other.strip_suffix(*name);
            start.is_some_and(|start| start.is_empty() || start.ends_with('.'))
        };
        all.clone().filter(|other| ends(other)).count() <= 1
    };
    let mut ends = key.rmatch_indices('.').map(|(at, _)| &key[at + 1..]);
    ends.find(is_single).unwrap_or(key)
}

pub(super) fn short(value: firebox_search::Value) -> String {
    match value {
        firebox_search::Value::Float(number) if number != 0.0 && number.abs() < 1e-2 => {
            format!("{number:.2e}")
        }
        firebox_search::Value::Float(number) => format!("{number:.4}"),
        firebox_search::Value::Choice(firebox_search::Choice::Text(text)) => text,
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use firebox_search::{Distribution, TrialState};

    use super::*;

    #[test]
    fn settings_of_one_name_are_told_apart() {
        let of = |keys: &[(&str, f64)]| {
            let mut trial = Trial::new(0, TrialState::Complete);
            for (key, value) in keys {
                let unit = Distribution::Float { low: 0.0, high: 1.0, log: false, step: None };
                trial.parameters.insert((*key).to_owned(), (unit, *value));
            }
            parameters_text(&trial)
        };
        let both = [("model.bert.dropout", 1.81e-3), ("text.heads.dropout", 0.0774)];
        assert_eq!(of(&both), "bert.dropout 1.81e-3, heads.dropout 0.0774");
        assert_eq!(of(&both[1..]), "dropout 0.0774");
        let like = [("a.rate", 0.25), ("b.a.rate", 0.5), ("c.first_rate", 0.75)];
        assert_eq!(of(&like), "a.rate 0.2500, b.a.rate 0.5000, first_rate 0.7500");
    }
}
