//! Whether a study looks for the least or the greatest value of an objective.

use serde::{Deserialize, Serialize};

/// Which values of an objective are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Small values are better.
    Minimize,
    /// Great values are better.
    Maximize,
}

impl Direction {
    /// The value as a loss: what is to be minimised, whatever the direction.
    pub fn loss(self, value: f64) -> f64 {
        match self {
            Self::Minimize => value,
            Self::Maximize => -value,
        }
    }
}
