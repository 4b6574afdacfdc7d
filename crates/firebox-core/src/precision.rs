//! The compute type of a run. What a device can run is not decided here.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The type that matrix products are computed in. Master weights, optimizer state, reductions and
/// losses are f32 whatever this is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Precision {
    /// IEEE single precision.
    #[default]
    F32,
    /// f32 storage with 10-bit mantissas in matrix products, on devices that have it.
    Tf32,
    /// 8-bit mantissa, the range of f32.
    Bf16,
    /// IEEE half precision; needs loss scaling.
    F16,
}

impl Precision {
    /// Every precision with its name.
    pub const ALL: [(Self, &'static str); 4] =
        [(Self::F32, "f32"), (Self::Tf32, "tf32"), (Self::Bf16, "bf16"), (Self::F16, "f16")];
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(p, _)| p == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

/// A text that names no precision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a precision: use f32 (or fp32), tf32, bf16 or f16 (or fp16)")]
pub struct ParsePrecisionError(String);

impl FromStr for Precision {
    type Err = ParsePrecisionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "f32" | "fp32" => Ok(Self::F32),
            "tf32" => Ok(Self::Tf32),
            "bf16" => Ok(Self::Bf16),
            "f16" | "fp16" => Ok(Self::F16),
            _ => Err(ParsePrecisionError(text.to_owned())),
        }
    }
}

impl TryFrom<String> for Precision {
    type Error = ParsePrecisionError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Precision> for String {
    fn from(precision: Precision) -> Self {
        precision.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for (precision, name) in Precision::ALL {
            assert_eq!(name.parse(), Ok(precision));
            assert_eq!(precision.to_string(), name);
        }
        assert_eq!("fp16".parse(), Ok(Precision::F16));
        assert!("half".parse::<Precision>().unwrap_err().to_string().contains("bf16"));
    }
}
