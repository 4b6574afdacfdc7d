//! Values a parameter may take, with Optuna's distributions and their meaning.

use serde::{Deserialize, Serialize};

/// One of the values of a categorical parameter: what JSON calls a scalar.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Choice {
    /// `null`
    None,
    /// `true` or `false`
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Another number.
    Float(f64),
    /// A text.
    Text(String),
}

/// A parameter's value as the caller sees it.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of a [`Distribution::Float`].
    Float(f64),
    /// Of a [`Distribution::Int`].
    Int(i64),
    /// Of a [`Distribution::Categorical`].
    Choice(Choice),
}

/// The values that a parameter may take, as Optuna's `FloatDistribution`, `IntDistribution` and
/// `CategoricalDistribution` have them. Both ends belong to the range.
///
/// Optuna keeps every value as a float, its *internal* value: the number itself, or the index of the
/// choice. [`Distribution::to_internal`] and [`Distribution::to_value`] convert.
#[derive(Clone, Debug, PartialEq)]
pub enum Distribution {
    /// Real numbers from `low` to `high`; with `log` their logarithm is uniform; with a `step` only
    /// `low + k · step`.
    Float {
        /// Least value.
        low: f64,
        /// Greatest value.
        high: f64,
        /// Whether the logarithm is uniform; excludes `step`.
        log: bool,
        /// Distance of the values.
        step: Option<f64>,
    },
    /// Whole numbers from `low` to `high` in steps of `step`.
    Int {
        /// Least value.
        low: i64,
        /// Greatest value.
        high: i64,
        /// Whether the logarithm is uniform; excludes a `step` other than 1.
        log: bool,
        /// Distance of the values.
        step: i64,
    },
    /// One of some values without an order.
    Categorical {
        /// The values, at least one.
        choices: Vec<Choice>,
    },
}

/// Why a distribution cannot be, or does not hold a value.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DistributionError {
    /// A range that ends before it starts.
    #[error("the range from {low} to {high} is empty; `low` must be at most `high`")]
    EmptyRange {
        /// Its `low`.
        low: f64,
        /// Its `high`.
        high: f64,
    },
    /// A logarithmic range that reaches zero or below.
    #[error("a logarithmic range must start above 0 (whole numbers: at 1), but starts at {low}")]
    LogOfZero {
        /// Its `low`.
        low: f64,
    },
    /// A step that is not positive, or one beside `log`.
    #[error("the step {step} cannot be: {reason}")]
    Step {
        /// The step.
        step: f64,
        /// Why not.
        reason: &'static str,
    },
    /// No choice at all.
    #[error("a categorical parameter needs at least one choice")]
    NoChoices,
    /// A number that is not finite.
    #[error("{0} is not a finite number")]
    NotFinite(f64),
    /// A value outside of the distribution.
    #[error("{value} is not among {allowed}")]
    Outside {
        /// The value.
        value: String,
        /// What the distribution allows.
        allowed: String,
    },
}
