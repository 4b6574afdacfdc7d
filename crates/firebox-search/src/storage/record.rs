//! A line of the journal as it is read: the fields of all operations, of which each has some.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::json::Number;

/// Unknown fields are ignored, as Optuna ignores them.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Record {
    pub(super) op_code: Option<u64>,
    pub(super) worker_id: Option<String>,
    pub(super) study_id: Option<u64>,
    pub(super) trial_id: Option<u64>,
    pub(super) study_name: Option<String>,
    pub(super) directions: Option<Vec<u8>>,
    pub(super) user_attr: Option<BTreeMap<String, Value>>,
    pub(super) system_attr: Option<BTreeMap<String, Value>>,
    pub(super) param_name: Option<String>,
    pub(super) param_value_internal: Option<Number>,
    pub(super) distribution: Option<String>,
    pub(super) state: Option<u8>,
    pub(super) value: Option<Number>,
    pub(super) values: Option<Vec<Number>>,
    pub(super) datetime_start: Option<String>,
    pub(super) datetime_complete: Option<String>,
    pub(super) step: Option<u64>,
    pub(super) intermediate_value: Option<Number>,
    pub(super) distributions: BTreeMap<String, String>,
    pub(super) params: BTreeMap<String, Number>,
    pub(super) user_attrs: BTreeMap<String, Value>,
    pub(super) system_attrs: BTreeMap<String, Value>,
    pub(super) intermediate_values: BTreeMap<u64, Number>,
}

/// The field, or the reason why the line is damaged.
pub(super) fn field<T>(value: Option<T>, name: &str) -> Result<T, String> {
    value.ok_or_else(|| format!("the entry has no `{name}`"))
}
