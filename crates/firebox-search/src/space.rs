//! Values a parameter may take, with Optuna's distributions and their meaning.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::decimal::last_step;

/// One of the values of a categorical parameter: what JSON calls a scalar.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a choice is a number, true, false or a text")]
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
    /// A range whose width or whole numbers a float cannot hold.
    #[error(
        "the range from {low} to {high} is too wide; its width must be a finite float and whole \
         numbers must lie within ±9007199254740992"
    )]
    TooWide {
        /// Its `low`.
        low: f64,
        /// Its `high`.
        high: f64,
    },
    /// A value outside of the distribution.
    #[error("{value} is not among {allowed}")]
    Outside {
        /// The value.
        value: String,
        /// What the distribution allows.
        allowed: String,
    },
}

/// Beyond it not every whole number is a float: 2⁵³.
const EXACT: i64 = 1 << 53;
/// How far from a step a float value may lie, in steps. Source: Optuna's `FloatDistribution`.
const STEP_TOLERANCE: f64 = 1e-8;
/// The most that it may lie off where steps are so fine that floats of that size are rounded by more (Firebox's
/// own: Optuna takes what it draws unchecked).
const MOST_STEP_TOLERANCE: f64 = 0.1;

impl Distribution {
    /// Whether the distribution can be.
    ///
    /// # Errors
    ///
    /// For an empty range, a logarithmic one that reaches zero, a step that is not positive or stands
    /// beside `log`, no choices, numbers that are not finite, and whole numbers beyond 2⁵³.
    pub fn validate(&self) -> Result<(), DistributionError> {
        match *self {
            Self::Float { low, high, log, step } => {
                for number in [Some(low), Some(high), step].into_iter().flatten() {
                    if !number.is_finite() {
                        return Err(DistributionError::NotFinite(number));
                    }
                }
                if low > high {
                    return Err(DistributionError::EmptyRange { low, high });
                }
                if !(high - low).is_finite() {
                    return Err(DistributionError::TooWide { low, high });
                }
                if log && low <= 0.0 {
                    return Err(DistributionError::LogOfZero { low });
                }
                step.map_or(Ok(()), |step| validate_step(step, log))
            }
            Self::Int { low, high, log, step } => {
                let (least, greatest) = (low as f64, high as f64);
                if low > high {
                    return Err(DistributionError::EmptyRange { low: least, high: greatest });
                }
                if low < -EXACT || high > EXACT || step > EXACT {
                    return Err(DistributionError::TooWide { low: least, high: greatest });
                }
                if log && low < 1 {
                    return Err(DistributionError::LogOfZero { low: least });
                }
                validate_step(step as f64, log && step != 1)
            }
            Self::Categorical { ref choices } if choices.is_empty() => {
                Err(DistributionError::NoChoices)
            }
            Self::Categorical { .. } => Ok(()),
        }
    }

    /// The same values with `high` at the last step, as Optuna keeps the distribution: from 0 to 1 in
    /// steps of 0.3 becomes from 0 to 0.9.
    ///
    /// # Errors
    ///
    /// As [`Distribution::validate`].
    pub fn aligned(self) -> Result<Self, DistributionError> {
        self.validate()?;
        Ok(match self {
            Self::Float { low, high, log, step: Some(step) } => {
                let high = last_step(low, high, step).map_or(high, |(_, last)| last);
                Self::Float { low, high, log, step: Some(step) }
            }
            Self::Int { low, high, log, step } => {
                Self::Int { low, high: low + (high - low) / step * step, log, step }
            }
            other => other,
        })
    }

    /// The internal value of `value`.
    ///
    /// # Errors
    ///
    /// If the value is of another kind, not a number, or outside of the range, between its steps or
    /// not among the choices.
    pub fn to_internal(&self, value: &Value) -> Result<f64, DistributionError> {
        let internal = match (self, value) {
            (Self::Float { .. }, &Value::Float(number)) => Some(number),
            (Self::Float { .. } | Self::Int { .. }, &Value::Int(number))
                if (-EXACT..=EXACT).contains(&number) =>
            {
                Some(number as f64)
            }
            (Self::Categorical { choices }, Value::Choice(choice)) => {
                let exact = choices.iter().position(|known| known == choice);
                let index = exact.or_else(|| choices.iter().position(|known| known.equals(choice)));
                index.map(|index| index as f64)
            }
            _ => None,
        };
        internal
            .filter(|&internal| self.contains(internal))
            .ok_or_else(|| self.outside(format!("{value}")))
    }

    /// The value whose internal value is `internal`.
    ///
    /// # Errors
    ///
    /// If the distribution does not contain it.
    pub fn to_value(&self, internal: f64) -> Result<Value, DistributionError> {
        if !self.contains(internal) {
            return Err(self.outside(format!("{internal}")));
        }
        Ok(match self {
            Self::Float { .. } => Value::Float(internal),
            Self::Int { .. } => Value::Int(internal as i64),
            Self::Categorical { choices } => Value::Choice(choices[internal as usize].clone()),
        })
    }

    /// Whether `internal` is the internal value of one of the values. NaN never is.
    pub fn contains(&self, internal: f64) -> bool {
        match *self {
            Self::Float { low, high, step, .. } => {
                (low..=high).contains(&internal)
                    && step.is_none_or(|step| {
                        let steps = (internal - low) / step;
                        (steps - steps.round()).abs() < step_tolerance(low, internal, step)
                    })
            }
            Self::Int { low, high, step, .. } => {
                (low as f64..=high as f64).contains(&internal)
                    && internal.fract() == 0.0
                    && (internal as i64).checked_sub(low).and_then(|k| k.checked_rem(step))
                        == Some(0)
            }
            Self::Categorical { ref choices } => {
                (0.0..choices.len() as f64).contains(&internal) && internal.fract() == 0.0
            }
        }
    }

    /// Whether there is no more than one value, so that there is nothing to search.
    pub fn is_single(&self) -> bool {
        match *self {
            Self::Float { low, high, step, .. } => {
                low == high
                    || step.is_some_and(|step| {
                        last_step(low, high, step)
                            .map_or(high - low < step, |(count, _)| count == 0)
                    })
            }
            Self::Int { low, high, log: true, .. } => low == high,
            Self::Int { low, high, step, .. } => high.saturating_sub(low) < step,
            Self::Categorical { ref choices } => choices.len() == 1,
        }
    }

    /// Whether Python holds the two equal: as `==`, but for choices that are equal to it, such as `1` and `1.0`,
    /// or two NaN.
    pub(crate) fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Categorical { choices: a }, Self::Categorical { choices: b }) => {
                same_choices(a, b)
            }
            _ => self == other,
        }
    }

    fn outside(&self, value: String) -> DistributionError {
        DistributionError::Outside { value, allowed: self.to_string() }
    }
}

/// How far from a step `value` may lie, in steps: `low + k · step` is itself rounded.
fn step_tolerance(low: f64, value: f64, step: f64) -> f64 {
    let rounded = 4.0 * f64::EPSILON * (value.abs() + low.abs()) / step;
    (STEP_TOLERANCE + rounded).min(MOST_STEP_TOLERANCE)
}

fn validate_step(step: f64, log: bool) -> Result<(), DistributionError> {
    let reason = if step <= 0.0 {
        "it must be above 0"
    } else if log {
        "a logarithmic range has no step; leave out one of the two"
    } else {
        return Ok(());
    };
    Err(DistributionError::Step { step, reason })
}

/// Whether Python holds the choices of two categorical parameters equal, each with the one in its place.
pub(crate) fn same_choices(a: &[Choice], b: &[Choice]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.equals(b))
}

impl Choice {
    /// As JSON, with `number` for floats: infinities are written and read as different values.
    pub(crate) fn to_json(&self, number: fn(f64) -> Json) -> Json {
        match self {
            Self::None => Json::Null,
            Self::Bool(flag) => Json::from(*flag),
            Self::Int(whole) => Json::from(*whole),
            Self::Float(real) => number(*real),
            Self::Text(text) => Json::from(text.as_str()),
        }
    }

    /// Whether Python holds the two equal, which is how Optuna finds a choice: `1`, `1.0` and `true`
    /// are the same, and so are two NaN.
    fn equals(&self, other: &Self) -> bool {
        if let (Self::Int(a), Self::Int(b)) = (self, other) {
            // Beyond 2⁵³ two of them are one float.
            return a == b;
        }
        let number = |choice: &Self| match *choice {
            Self::Bool(flag) => Some(f64::from(u8::from(flag))),
            Self::Int(number) => Some(number as f64),
            Self::Float(number) => Some(number),
            Self::None | Self::Text(_) => None,
        };
        match (number(self), number(other)) {
            (Some(a), Some(b)) => a == b || (a.is_nan() && b.is_nan()),
            (None, None) => self == other,
            _ => false,
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("null"),
            Self::Bool(flag) => flag.fmt(f),
            Self::Int(number) => number.fmt(f),
            Self::Float(number) => write!(f, "{number:?}"),
            Self::Text(text) => write!(f, "{text:?}"),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float(number) => write!(f, "{number:?}"),
            Self::Int(number) => number.fmt(f),
            Self::Choice(choice) => choice.fmt(f),
        }
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float { low, high, step: Some(step), .. } => {
                write!(f, "the numbers from {low} to {high} in steps of {step}")
            }
            Self::Float { low, high, .. } => write!(f, "the numbers from {low} to {high}"),
            Self::Int { low, high, step: 1, .. } => {
                write!(f, "the whole numbers from {low} to {high}")
            }
            Self::Int { low, high, step, .. } => {
                write!(f, "the whole numbers from {low} to {high} in steps of {step}")
            }
            Self::Categorical { choices } => {
                for (place, choice) in choices.iter().enumerate() {
                    let separator = if place == 0 { "" } else { ", " };
                    write!(f, "{separator}{choice}")?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn float(low: f64, high: f64, log: bool, step: Option<f64>) -> Distribution {
        Distribution::Float { low, high, log, step }
    }

    fn int(low: i64, high: i64, log: bool, step: i64) -> Distribution {
        Distribution::Int { low, high, log, step }
    }

    fn choices(choices: &[Choice]) -> Distribution {
        Distribution::Categorical { choices: choices.to_vec() }
    }

    #[test]
    fn what_cannot_be_is_named() {
        let check = |distribution: Distribution, expected: &str| {
            let found = distribution.validate().map_err(|error| error.to_string());
            assert_eq!(found.err().unwrap_or_default(), expected);
        };
        let log = "a logarithmic range must start above 0 (whole numbers: at 1), but starts at 0";
        let beside =
            "the step 2 cannot be: a logarithmic range has no step; leave out one of the two";
        check(float(0.0, 1.0, false, None), "");
        check(float(1.0, 1.0, true, None), "");
        check(
            float(2.0, 1.0, false, None),
            "the range from 2 to 1 is empty; `low` must be at most `high`",
        );
        check(int(2, 1, false, 1), "the range from 2 to 1 is empty; `low` must be at most `high`");
        check(float(0.0, 1.0, true, None), log);
        check(int(0, 8, true, 1), log);
        check(float(1.0, 2.0, true, Some(2.0)), beside);
        check(int(1, 8, true, 2), beside);
        check(float(0.0, 1.0, false, Some(0.0)), "the step 0 cannot be: it must be above 0");
        check(int(0, 8, false, -1), "the step -1 cannot be: it must be above 0");
        check(float(f64::NAN, 1.0, false, None), "NaN is not a finite number");
        check(float(0.0, f64::INFINITY, false, None), "inf is not a finite number");
        check(float(0.0, 1.0, false, Some(f64::NAN)), "NaN is not a finite number");
        check(choices(&[]), "a categorical parameter needs at least one choice");
        for wide in [float(-1e308, 1e308, false, None), int(0, i64::MAX, false, 1)] {
            assert!(matches!(wide.validate(), Err(DistributionError::TooWide { .. })));
        }
    }

    #[test]
    fn values_come_back_from_their_internal_values() {
        let text = |text: &str| Choice::Text(text.to_owned());
        let check = |distribution: &Distribution, value: Value, expected: f64| {
            assert_eq!(distribution.to_internal(&value), Ok(expected));
            assert_eq!(distribution.to_value(expected), Ok(value));
        };
        check(
            &float(0.0, 1.0, false, Some(0.1)),
            Value::Float(0.300_000_000_000_000_04),
            0.1 * 3.0,
        );
        check(&int(-3, 9, false, 4), Value::Int(5), 5.0);
        let mixed = choices(&[Choice::None, Choice::Bool(true), Choice::Int(3), text("adam")]);
        check(&mixed, Value::Choice(Choice::None), 0.0);
        check(&mixed, Value::Choice(text("adam")), 3.0);
        // As Python's `[None, True, 3, "adam"].index(1.0)`.
        assert_eq!(mixed.to_internal(&Value::Choice(Choice::Float(1.0))), Ok(1.0));
        let nan = choices(&[Choice::Int(1), Choice::Float(f64::NAN)]);
        assert_eq!(nan.to_internal(&Value::Choice(Choice::Float(f64::NAN))), Ok(1.0));
    }

    #[test]
    fn values_of_fine_steps_are_known_however_they_were_rounded() {
        let fine = float(1e5, 2e5, false, Some(1e-3));
        for thousandths in (100_000_000..200_000_000).step_by(9_973) {
            // What somebody writes, and what is computed from it.
            let (whole, rest) = (thousandths / 1000, thousandths % 1000);
            let written: f64 = format!("{whole}.{rest:03}").parse().unwrap();
            let computed = 1e5 + f64::from(thousandths - 100_000_000) * 1e-3;
            assert!(fine.contains(written) && fine.contains(computed), "{written} {computed}");
            assert!(!fine.contains(written + 1e-4) && !fine.contains(written - 5e-4), "{written}");
        }
        // Where floats themselves are coarse: 1.2e-7 lies between two of them.
        let coarse = float(1e9, 2e9, false, Some(1e-6));
        assert!(!coarse.contains(1e9 + 0.5e-6));
        assert!(!float(0.0, 1.0, false, Some(0.25)).contains(0.25 + 1e-8));
    }

    #[test]
    fn values_outside_are_refused_with_what_is_allowed() {
        let check = |distribution: Distribution, value: Value, expected: &str| {
            assert_eq!(distribution.to_internal(&value).unwrap_err().to_string(), expected);
        };
        check(
            int(0, 8, false, 2),
            Value::Int(3),
            "3 is not among the whole numbers from 0 to 8 in steps of 2",
        );
        check(
            float(0.0, 1.0, false, None),
            Value::Float(f64::NAN),
            "NaN is not among the numbers from 0 to 1",
        );
        check(
            choices(&[Choice::Bool(false), Choice::Text("a".to_owned())]),
            Value::Int(0),
            "0 is not among false, \"a\"",
        );
        for internal in [-1.0, 0.5, 2.0, f64::NAN] {
            assert!(choices(&[Choice::None, Choice::Int(1)]).to_value(internal).is_err());
        }
        assert!(int(0, 8, false, 1).to_value(2.5).is_err());
    }

    #[test]
    fn a_range_ends_at_its_last_step_and_may_hold_one_value() {
        let check = |distribution: Distribution, expected: Distribution, single: bool| {
            assert_eq!(distribution.is_single(), single, "{distribution}");
            assert_eq!(distribution.aligned(), Ok(expected));
        };
        check(float(0.0, 1.0, false, Some(0.3)), float(0.0, 0.9, false, Some(0.3)), false);
        check(float(0.0, 0.3, false, Some(0.1)), float(0.0, 0.3, false, Some(0.1)), false);
        check(float(0.0, 0.3, false, Some(0.4)), float(0.0, 0.0, false, Some(0.4)), true);
        check(float(0.5, 0.5, true, None), float(0.5, 0.5, true, None), true);
        check(int(1, 8, false, 3), int(1, 7, false, 3), false);
        check(int(1, 3, false, 3), int(1, 1, false, 3), true);
        check(int(4, 4, true, 1), int(4, 4, true, 1), true);
        check(choices(&[Choice::None]), choices(&[Choice::None]), true);
    }
}
