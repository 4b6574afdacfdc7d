//! What can be written to a journal, each as one line. Source: `optuna/storages/journal/_storage.py`.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{distribution, json, time};
use crate::direction::Direction;
use crate::space::Distribution;
use crate::trial::TrialState;

/// A change of a study or a trial. Studies and trials are named by their numbers in the journal.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    CreateStudy {
        name: String,
        directions: Vec<Direction>,
    },
    StudyUserAttribute {
        study: u64,
        key: String,
        value: Value,
    },
    StudySystemAttribute {
        study: u64,
        key: String,
        value: Value,
    },
    /// A trial that runs, with its first attributes in the same line.
    CreateTrial {
        study: u64,
        started: f64,
        system_attributes: BTreeMap<String, Value>,
    },
    /// A trial that waits for a worker, with what it is to begin with.
    Enqueue {
        study: u64,
        parameters: BTreeMap<String, (Distribution, f64)>,
        intermediate: BTreeMap<u64, f64>,
        user_attributes: BTreeMap<String, Value>,
        system_attributes: BTreeMap<String, Value>,
    },
    Parameter {
        trial: u64,
        name: String,
        internal: f64,
        distribution: Distribution,
    },
    State {
        trial: u64,
        state: TrialState,
        values: Option<Vec<f64>>,
        time: f64,
    },
    Intermediate {
        trial: u64,
        step: u64,
        value: f64,
    },
    UserAttribute {
        trial: u64,
        key: String,
        value: Value,
    },
    SystemAttribute {
        trial: u64,
        key: String,
        value: Value,
    },
}

impl Operation {
    /// The line without its end.
    pub(super) fn line(&self, worker: &str) -> String {
        let head = format!(r#"{{"op_code":{},"worker_id":{}"#, self.code(), text(worker));
        format!("{head},{}}}", self.fields())
    }

    /// Whether it must outlive the machine as soon as it is made, and with it all that was written before.
    /// What a trial reports while it runs is lost with the trial, which is then tried again and reports
    /// it anew.
    pub(super) fn must_last(&self) -> bool {
        match self {
            Self::CreateStudy { .. }
            | Self::StudyUserAttribute { .. }
            | Self::StudySystemAttribute { .. }
            | Self::CreateTrial { .. }
            | Self::Enqueue { .. }
            | Self::State { .. } => true,
            Self::Parameter { .. }
            | Self::Intermediate { .. }
            | Self::UserAttribute { .. }
            | Self::SystemAttribute { .. } => false,
        }
    }

    fn code(&self) -> u8 {
        match self {
            Self::CreateStudy { .. } => 0,
            Self::StudyUserAttribute { .. } => 2,
            Self::StudySystemAttribute { .. } => 3,
            Self::CreateTrial { .. } | Self::Enqueue { .. } => 4,
            Self::Parameter { .. } => 5,
            Self::State { .. } => 6,
            Self::Intermediate { .. } => 7,
            Self::UserAttribute { .. } => 8,
            Self::SystemAttribute { .. } => 9,
        }
    }

    fn fields(&self) -> String {
        match self {
            Self::CreateStudy { name, directions } => {
                let codes: Vec<_> = directions.iter().map(|d| direction_code(*d)).collect();
                format!(r#""study_name":{},"directions":[{}]"#, text(name), codes.join(","))
            }
            Self::StudyUserAttribute { study, key, value } => {
                format!(r#""study_id":{study},"user_attr":{}"#, attribute(key, value))
            }
            Self::StudySystemAttribute { study, key, value } => {
                format!(r#""study_id":{study},"system_attr":{}"#, attribute(key, value))
            }
            Self::CreateTrial { study, started, system_attributes } => {
                let started = time::write(*started);
                let mut fields = format!(r#""study_id":{study},"datetime_start":"{started}""#);
                if !system_attributes.is_empty() {
                    let attributes = object(system_attributes, json::write);
                    fields += &format!(r#","system_attrs":{attributes}"#);
                }
                fields
            }
            Self::Enqueue {
                study,
                parameters,
                intermediate,
                user_attributes,
                system_attributes,
            } => {
                let distributions = object(parameters, |(d, _)| text(&distribution::write(d)));
                let reported = intermediate
                    .iter()
                    .map(|(step, value)| format!(r#""{step}":{}"#, json::number(*value)));
                let reported = format!("{{{}}}", reported.collect::<Vec<_>>().join(","));
                let params = object(parameters, |(_, internal)| json::number(*internal));
                format!(
                    r#""study_id":{study},"datetime_start":null,"state":4,"value":null,"values":null,"distributions":{distributions},"params":{params},"user_attrs":{},"system_attrs":{},"intermediate_values":{reported}"#,
                    object(user_attributes, json::write),
                    object(system_attributes, json::write),
                )
            }
            Self::Parameter { trial, name, internal, distribution } => format!(
                r#""trial_id":{trial},"param_name":{},"param_value_internal":{},"distribution":{}"#,
                text(name),
                json::number(*internal),
                text(&distribution::write(distribution)),
            ),
            Self::State { trial, state, values, time } => {
                state_fields(*trial, *state, values.as_deref(), *time)
            }
            Self::Intermediate { trial, step, value } => format!(
                r#""trial_id":{trial},"step":{step},"intermediate_value":{}"#,
                json::number(*value)
            ),
            Self::UserAttribute { trial, key, value } => {
                format!(r#""trial_id":{trial},"user_attr":{}"#, attribute(key, value))
            }
            Self::SystemAttribute { trial, key, value } => {
                format!(r#""trial_id":{trial},"system_attr":{}"#, attribute(key, value))
            }
        }
    }
}

fn state_fields(trial: u64, state: TrialState, values: Option<&[f64]>, time: f64) -> String {
    let values = values.map_or("null".to_owned(), |values| {
        let values: Vec<String> = values.iter().map(|value| json::number(*value)).collect();
        format!("[{}]", values.join(","))
    });
    let code = state as u8;
    let mut fields = format!(r#""trial_id":{trial},"state":{code},"values":{values}"#);
    let stamp = match state {
        TrialState::Running => Some("datetime_start"),
        state if state.is_finished() => Some("datetime_complete"),
        _ => None,
    };
    if let Some(stamp) = stamp {
        fields.push_str(&format!(r#","{stamp}":"{}""#, time::write(time)));
    }
    fields
}

/// Optuna's `StudyDirection`.
fn direction_code(direction: Direction) -> &'static str {
    match direction {
        Direction::Minimize => "1",
        Direction::Maximize => "2",
    }
}

fn text(text: &str) -> String {
    Value::from(text).to_string()
}

/// An object of this one field.
fn attribute(key: &str, value: &Value) -> String {
    format!("{{{}:{}}}", text(key), json::write(value))
}

fn object<V>(values: &BTreeMap<String, V>, write: impl Fn(&V) -> String) -> String {
    let fields: Vec<String> =
        values.iter().map(|(key, value)| format!("{}:{}", text(key), write(value))).collect();
    format!("{{{}}}", fields.join(","))
}
