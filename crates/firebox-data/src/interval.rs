//! Lengths of time in configurations.

use std::fmt;

use serde::de::{self, Deserializer};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};

/// A positive length of time, written as a number and a unit: `"90s"`, `"1min"`, `"0.5h"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    microseconds: i64,
}

const UNITS: [(&str, i64); 6] = [
    ("us", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("min", 60_000_000),
    ("h", 3_600_000_000),
    ("d", 86_400_000_000),
];

impl Interval {
    /// An interval of this many microseconds, which must be positive.
    pub fn from_microseconds(microseconds: i64) -> Option<Self> {
        (microseconds > 0).then_some(Self { microseconds })
    }

    /// An interval of this many microseconds, 1 where they are not positive.
    pub(crate) fn whole(microseconds: i64) -> Self {
        Self { microseconds: microseconds.max(1) }
    }

    /// The same in whole numbers of the largest unit of which it has a thousand, for people.
    pub(crate) fn rounded(self) -> Self {
        let fits = |(_, factor): &&(&str, i64)| self.microseconds / 1000 >= *factor;
        let (_, unit) = UNITS.iter().rev().find(fits).unwrap_or(&UNITS[0]);
        Self { microseconds: self.microseconds.saturating_add(unit / 2) / unit * unit }
    }

    /// Its length in microseconds.
    pub fn microseconds(self) -> i64 {
        self.microseconds
    }
}

/// A text that is not an [`Interval`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseIntervalError {
    /// Not a number followed by a unit.
    #[error(
        "`{0}` is no interval: write a number and a unit (us, ms, s, min, h, d), such as `1min`"
    )]
    Form(String),
    /// Zero, negative, or beyond 292,000 years.
    #[error("the interval `{0}` must be longer than zero (and fit into 64 bits of microseconds)")]
    Range(String),
}

impl std::str::FromStr for Interval {
    type Err = ParseIntervalError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = || ParseIntervalError::Form(text.to_owned());
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = &text[digits.len()..];
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(form)?;
        let number: f64 = digits.trim().parse().map_err(|_| form())?;
        let microseconds = (number * *factor as f64).round();
        if !(microseconds >= 1.0 && microseconds < i64::MAX as f64) {
            return Err(ParseIntervalError::Range(text.to_owned()));
        }
        Ok(Self { microseconds: microseconds as i64 })
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |(_, factor): &&(&str, i64)| self.microseconds % factor == 0;
        let (unit, factor) = UNITS.iter().rev().find(fits).unwrap_or(&UNITS[0]);
        write!(f, "{}{unit}", self.microseconds / factor)
    }
}

impl Serialize for Interval {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Interval {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IntervalVisitor;
        impl de::Visitor<'_> for IntervalVisitor {
            type Value = Interval;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number and a unit in quotes, such as \"1min\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Interval, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(IntervalVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_numbers_with_units() {
        let check = |text: &str, expected: Option<i64>, written: &str| {
            let parsed: Result<Interval, _> = text.parse();
            assert_eq!(parsed.clone().ok().map(Interval::microseconds), expected, "{text}");
            if let Ok(interval) = parsed {
                assert_eq!(interval.to_string(), written);
            }
        };
        check("1min", Some(60_000_000), "1min");
        check("60s", Some(60_000_000), "1min");
        check("0.5h", Some(1_800_000_000), "30min");
        check("7us", Some(7), "7us");
        for bad in ["", "min", "1", "1m", "0s", "-3h", "nans", "infd", "1e300d", "1 week", "ü"] {
            check(bad, None, "");
        }
    }
}
