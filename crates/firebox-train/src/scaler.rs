//! Loss scaling: gradients that are too small for f16 are computed of a loss that is multiplied by a
//! large number, which is taken away again before they are used.
//!
//! Source: Micikevicius et al., "Mixed precision training", ICLR 2018. What happens step by step is
//! that of `torch.amp.GradScaler`, but for a floor: below a scale of 1, gradients that are not
//! finite are no overflow. On a GPU, whose kernels add squares in f32, gradients with a norm above 1.8e19, scaled,
//! are an overflow, too, though each is finite.

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, check, check_in_f32};

/// The factor on the loss: `train.loss_scale`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum LossScale {
    /// Dynamic in f16, and none in types that have the range of f32.
    #[default]
    Auto,
    /// None.
    Off,
    /// Always the same, above 0 and within the normal numbers of f32.
    Static(f64),
    /// As large as gradients allow.
    Dynamic(DynamicScale),
}

/// A scale that falls at every overflow and rises after many steps without one. The defaults are
/// PyTorch's, with a floor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DynamicScale {
    /// The first scale, at least the floor and finite in f32.
    pub initial: f64,
    /// Factor on the scale after `interval` steps without an overflow; above 1.
    pub growth: f64,
    /// Factor on the scale after an overflow; above 0 and below 1.
    pub backoff: f64,
    /// Steps without an overflow after which the scale rises; at least 1.
    pub interval: u64,
    /// Smallest scale, above 0 and within the normal numbers of f32.
    pub floor: f64,
}

impl Default for DynamicScale {
    fn default() -> Self {
        Self { initial: 65_536.0, growth: 2.0, backoff: 0.5, interval: 2_000, floor: 1.0 }
    }
}

impl LossScale {
    /// What `Auto` means for a run in f16 or not; others are what they are.
    pub fn resolve(self, f16: bool) -> Self {
        match (self, f16) {
            (Self::Auto, true) => Self::Dynamic(DynamicScale::default()),
            (Self::Auto, false) => Self::Off,
            (other, _) => other,
        }
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        match self {
            Self::Auto | Self::Off => Ok(()),
            Self::Static(scale) => {
                let allowed = "above 0 and a normal number of f32 (1.2e-38 to 3.4e38), or \
                               `train.loss_scale` be \"off\"";
                check_in_f32("loss_scale.static", *scale, 0.0, allowed)
            }
            Self::Dynamic(scale) => {
                let DynamicScale { initial, growth, backoff, interval, floor } = *scale;
                let allowed = "above 0 and a normal number of f32 (1.2e-38 to 3.4e38)";
                check_in_f32("loss_scale.dynamic.floor", floor, 0.0, allowed)?;
                let allowed = "at least the floor, and at most what f32 holds (3.4e38)";
                check_in_f32("loss_scale.dynamic.initial", initial, floor, allowed)?;
                let more = |v: f64| v > 1.0 && v.is_finite();
                check("loss_scale.dynamic.growth", growth, more, "above 1 and finite")?;
                let less = |v: f64| v > 0.0 && v < 1.0;
                check("loss_scale.dynamic.backoff", backoff, less, "above 0 and below 1")?;
                check("loss_scale.dynamic.interval", interval, |v| v >= 1, "at least 1")
            }
        }
    }
}

/// The scale in use; part of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scaler {
    /// Factor on the loss of the next step.
    pub scale: f64,
    /// Steps without an overflow since the scale last changed.
    pub good_steps: u64,
    /// Steps that were skipped because of an overflow.
    pub overflows: u64,
}

impl Default for Scaler {
    fn default() -> Self {
        Self { scale: 1.0, good_steps: 0, overflows: 0 }
    }
}

impl Scaler {
    /// Before the first step.
    pub fn new(config: &LossScale) -> Self {
        let scale = match config {
            LossScale::Auto | LossScale::Off => 1.0,
            LossScale::Static(scale) => *scale,
            LossScale::Dynamic(dynamic) => dynamic.initial,
        };
        // PyTorch keeps it in f32.
        Self { scale: f64::from(scale as f32), ..Self::default() }
    }

    /// After a step, of which some gradient was infinite or not a number, or none. Returns whether
    /// such a step is an overflow that a smaller scale may avoid: not without dynamic scaling, and
    /// not where the scale cannot fall any more.
    pub fn update(&mut self, config: &LossScale, found_infinite: bool) -> bool {
        let LossScale::Dynamic(dynamic) = config else { return false };
        if found_infinite {
            let before = self.scale;
            self.scale =
                f64::from((before * dynamic.backoff) as f32).max(f64::from(dynamic.floor as f32));
            self.good_steps = 0;
            self.overflows += 1;
            return self.scale < before;
        }
        self.good_steps += 1;
        if self.good_steps == dynamic.interval {
            self.good_steps = 0;
            let grown = (self.scale * dynamic.growth) as f32;
            if grown.is_finite() {
                self.scale = f64::from(grown);
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_of_overflows_ends_at_the_floor() {
        let config = LossScale::Auto.resolve(true);
        let mut scaler = Scaler::new(&config);
        let falls = (0..40).filter(|_| scaler.update(&config, true)).count();
        assert_eq!((falls, scaler.scale, scaler.overflows), (16, 1.0, 40));
        (0..2_000).for_each(|_| assert!(!scaler.update(&config, false)));
        assert_eq!(scaler.scale, 2.0);
    }

    #[test]
    fn a_scale_that_is_set_stays() {
        let config = LossScale::Static(128.0);
        let mut scaler = Scaler::new(&config);
        for found in [false, true, false] {
            assert!(!scaler.update(&config, found));
        }
        assert_eq!(scaler, Scaler { scale: 128.0, ..Scaler::default() });
    }

    #[test]
    fn scales_that_cannot_be_name_the_way_out() {
        let check = |text: &str, expected: &str| {
            let scale: LossScale = serde_json::from_str(text).unwrap();
            let message = scale.validate().unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        };
        check(r#"{"static": 0}"#, "`train.loss_scale.static` is 0; it must be above 0");
        check(r#"{"static": -2}"#, "or `train.loss_scale` be \"off\"");
        check(r#"{"dynamic": {"growth": 1}}"#, "growth` is 1; it must be above 1");
        check(r#"{"dynamic": {"backoff": 1}}"#, "backoff` is 1");
        check(r#"{"dynamic": {"interval": 0}}"#, "interval` is 0");
        check(r#"{"static": 1e-60}"#, "`train.loss_scale.static` is 1e-60; it");
        check(r#"{"static": 1e-40}"#, "a normal number of f32 (1.2e-38 to 3.4e38)");
        check(r#"{"static": 1e300}"#, "`train.loss_scale.static` is 1e300; it");
        check(r#"{"dynamic": {"floor": 1e-60}}"#, "`train.loss_scale.dynamic.floor` is 1e-60; it");
        check(r#"{"dynamic": {"initial": 1e300}}"#, "at most what f32 holds (3.4e38)");
        check(r#"{"dynamic": {"initial": 0.5}}"#, "initial` is 0.5; it must be at least the floor");
        assert_eq!(LossScale::Auto.resolve(false), LossScale::Off);
        let text = serde_json::to_string(&LossScale::default()).unwrap();
        assert_eq!(serde_json::from_str::<LossScale>(&text).unwrap(), LossScale::Auto);
    }
}
