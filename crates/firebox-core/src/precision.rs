//! The compute type of a run, as it is asked for and as it runs. What a device can run is not decided
//! here.

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

/// What a user asks for: a type, or the fastest one that measurement finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum PrecisionRule {
    /// The type whose steps of this model are the shortest on this device, by measurement.
    Auto,
    /// This one, or an error where it cannot be.
    Fixed(Precision),
}

impl Default for PrecisionRule {
    fn default() -> Self {
        Self::Fixed(Precision::default())
    }
}

impl fmt::Display for PrecisionRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Fixed(precision) => precision.fmt(f),
        }
    }
}

impl FromStr for PrecisionRule {
    type Err = ParsePrecisionRuleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => {
                text.parse().map(Self::Fixed).map_err(|_| ParsePrecisionRuleError(text.to_owned()))
            }
        }
    }
}

/// A text that names neither a precision nor `auto`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a precision: use auto, f32 (or fp32), tf32, bf16 or f16 (or fp16)")]
pub struct ParsePrecisionRuleError(String);

impl TryFrom<String> for PrecisionRule {
    type Error = ParsePrecisionRuleError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<PrecisionRule> for String {
    fn from(rule: PrecisionRule) -> Self {
        rule.to_string()
    }
}

/// How exact the products of f32 operands are, in PyTorch's words
/// (`torch.set_float32_matmul_precision`). It concerns products alone: sums are f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MatmulPrecision {
    /// 23 bits of mantissa: f32 itself.
    Highest,
    /// 10 bits: TF32, on devices that have it.
    High,
    /// 7 bits: operands rounded to bf16.
    Medium,
}

impl fmt::Display for MatmulPrecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Highest => "highest",
            Self::High => "high",
            Self::Medium => "medium",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_a_precision_or_auto() {
        for text in ["auto", "f32", "tf32", "bf16", "f16"] {
            let rule: PrecisionRule = text.parse().unwrap();
            assert_eq!(rule.to_string(), text);
        }
        assert_eq!("fp16".parse(), Ok(PrecisionRule::Fixed(Precision::F16)));
        let error = "half".parse::<PrecisionRule>().unwrap_err().to_string();
        assert!(error.contains("`half` is not a precision: use auto, f32"), "{error}");
    }

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
