//! Parameters of the augmentations. What they do to a window is in `firebox-cache`.
//!
//! The defaults are those of reference system R1 (jitter, scaling, time-warp and
//! volatility scaling of one-minute bars), with one difference: each coin is tossed per window and
//! version, not once for the whole data set.

use serde::{Deserialize, Serialize};

/// Which augmentations make the versions of a training window, and how many versions there are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Augmentation {
    /// When versions are made: `cached`, `online` or `none`.
    pub mode: AugmentMode,
    /// Augmented copies made of each training window; the original is kept beside them.
    pub versions: u32,
    /// Type that shards are stored in.
    pub storage: Storage,
    /// Gaussian noise on every value.
    pub jitter: Jitter,
    /// One factor for the whole window.
    pub scaling: Scaling,
    /// A smooth change of speed along time.
    pub time_warp: TimeWarp,
    /// A factor on each bar's distance from its own middle.
    pub volatility_scaling: VolatilityScaling,
}

impl Default for Augmentation {
    fn default() -> Self {
        Self {
            mode: AugmentMode::default(),
            versions: 4,
            storage: Storage::default(),
            jitter: Jitter::default(),
            scaling: Scaling::default(),
            time_warp: TimeWarp::default(),
            volatility_scaling: VolatilityScaling::default(),
        }
    }
}

/// When the versions of training windows are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AugmentMode {
    /// Once, before training, and kept: the same versions in every epoch.
    #[default]
    Cached,
    /// When a window is read: `versions` fresh ones beside the original in each epoch, of the same
    /// distribution. Nothing is stored.
    Online,
    /// Never: an epoch holds the originals alone.
    None,
}

/// The number type of shards on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    /// Four bytes a value, exact.
    #[default]
    F32,
    /// Two bytes a value, relative error up to 4.9e-4 between 6.1e-5 and 65,504.
    F16,
    /// Two bytes a value, relative error up to 3.9e-3 over the range of f32.
    Bf16,
}

/// Gaussian noise, independent for every value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Jitter {
    /// Probability that a window version gets it, `0..=1`.
    pub probability: f64,
    /// Standard deviation, in units of each channel's standard deviation within the window.
    pub sigma: f64,
}

impl Default for Jitter {
    fn default() -> Self {
        Self { probability: 0.5, sigma: 0.05 }
    }
}

/// One factor `1 + sigma · z`, `z` standard normal, for all values of the window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scaling {
    /// Probability that a window version gets it, `0..=1`.
    pub probability: f64,
    /// Standard deviation of the factor, around 1.
    pub sigma: f64,
}

impl Default for Scaling {
    fn default() -> Self {
        Self { probability: 0.3, sigma: 0.1 }
    }
}

/// Reads the window at times warped by a smooth curve through random knots.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TimeWarp {
    /// Probability that a window version gets it, `0..=1`.
    pub probability: f64,
    /// Standard deviation of the speed at each knot, around 1.
    pub sigma: f64,
    /// Knots of the curve, both ends included; at least 2.
    pub knots: usize,
}

impl Default for TimeWarp {
    fn default() -> Self {
        Self { probability: 0.5, sigma: 0.12, knots: 6 }
    }
}

/// Multiplies each bar's distance from `(high + low) / 2` by one factor for the window. Windows
/// without high and low channels are left as they are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VolatilityScaling {
    /// Probability that a window version gets it, `0..=1`.
    pub probability: f64,
    /// Smallest factor.
    pub low: f64,
    /// Largest factor.
    pub high: f64,
}

impl Default for VolatilityScaling {
    fn default() -> Self {
        Self { probability: 0.3, low: 0.85, high: 1.15 }
    }
}
