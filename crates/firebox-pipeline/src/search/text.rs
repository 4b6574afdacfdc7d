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

/// The values of a trial, by the last part of their keys.
pub(super) fn parameters_text(trial: &Trial) -> String {
    let values: BTreeMap<_, _> = trial.parameters.iter().collect();
    let shown = values.into_iter().map(|(key, (distribution, internal))| {
        let name = key.rsplit('.').next().unwrap_or(key);
        let value = distribution.to_value(*internal).map_or_else(|_| "?".to_owned(), short);
        format!("{name} {value}")
    });
    shown.collect::<Vec<_>>().join(", ")
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
