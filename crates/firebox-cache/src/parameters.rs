//! What the parameters of the augmentations may be.

use firebox_core::Augmentation;

/// A parameter of an augmentation outside its range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("`{key}` is {found}; it must be {allowed}")]
pub struct ParameterError {
    /// Its key within the table of augmentations.
    pub key: &'static str,
    /// The value found.
    pub found: String,
    /// What it may be.
    pub allowed: &'static str,
}

/// Windows are of the order of 1; with larger factors than this, f32 overflows.
const LARGEST: f64 = 1e6;

/// Checks every parameter.
///
/// # Errors
///
/// The first parameter outside its range.
///
/// # Example
///
/// ```
/// use firebox_cache::check_parameters;
/// use firebox_core::{Augmentation, Jitter};
///
/// let jitter = Jitter { sigma: -0.1, ..Jitter::default() };
/// let error = check_parameters(&Augmentation { jitter, ..Augmentation::default() }).unwrap_err();
/// assert_eq!(error.to_string(), "`jitter.sigma` is -0.1; it must be from 0 to 1,000,000");
/// ```
pub fn check_parameters(augmentation: &Augmentation) -> Result<(), ParameterError> {
    let Augmentation {
        mode: _,
        versions: _,
        storage: _,
        jitter,
        scaling,
        time_warp,
        volatility_scaling,
    } = augmentation;
    probability("jitter.probability", jitter.probability)?;
    sigma("jitter.sigma", jitter.sigma)?;
    probability("scaling.probability", scaling.probability)?;
    sigma("scaling.sigma", scaling.sigma)?;
    probability("time_warp.probability", time_warp.probability)?;
    sigma("time_warp.sigma", time_warp.sigma)?;
    check("time_warp.knots", time_warp.knots, (2..=1024).contains(&time_warp.knots), "2 to 1024")?;
    let volatility = volatility_scaling;
    probability("volatility_scaling.probability", volatility.probability)?;
    let positive = |factor: f64| factor > 0.0 && factor <= LARGEST;
    let allowed = "above 0, up to 1,000,000";
    check("volatility_scaling.low", volatility.low, positive(volatility.low), allowed)?;
    check(
        "volatility_scaling.high",
        volatility.high,
        positive(volatility.high) && volatility.high >= volatility.low,
        "up to 1,000,000, and not below `volatility_scaling.low`",
    )
}

fn probability(key: &'static str, found: f64) -> Result<(), ParameterError> {
    check(key, found, (0.0..=1.0).contains(&found), "a probability, from 0 to 1")
}

fn sigma(key: &'static str, found: f64) -> Result<(), ParameterError> {
    check(key, found, (0.0..=LARGEST).contains(&found), "from 0 to 1,000,000")
}

fn check(
    key: &'static str,
    found: impl std::fmt::Debug,
    fits: bool,
    allowed: &'static str,
) -> Result<(), ParameterError> {
    if fits { Ok(()) } else { Err(ParameterError { key, found: format!("{found:?}"), allowed }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_out_of_range_is_named() {
        assert_eq!(check_parameters(&Augmentation::default()), Ok(()));
        let check = |edit: &dyn Fn(&mut Augmentation), key: &str| {
            let mut augmentation = Augmentation::default();
            edit(&mut augmentation);
            assert_eq!(check_parameters(&augmentation).unwrap_err().key, key);
        };
        for bad in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            check(&|a| a.jitter.probability = bad, "jitter.probability");
            check(&|a| a.scaling.probability = bad, "scaling.probability");
            check(&|a| a.time_warp.probability = bad, "time_warp.probability");
            check(&|a| a.volatility_scaling.probability = bad, "volatility_scaling.probability");
        }
        for bad in [-0.1, f64::NAN, f64::INFINITY, 1e300] {
            check(&|a| a.jitter.sigma = bad, "jitter.sigma");
            check(&|a| a.scaling.sigma = bad, "scaling.sigma");
            check(&|a| a.time_warp.sigma = bad, "time_warp.sigma");
            check(&|a| a.volatility_scaling.low = bad, "volatility_scaling.low");
            check(&|a| a.volatility_scaling.high = bad, "volatility_scaling.high");
        }
        check(&|a| a.volatility_scaling.low = 0.0, "volatility_scaling.low");
        check(&|a| a.volatility_scaling.high = 0.5, "volatility_scaling.high");
        check(&|a| a.time_warp.knots = 1, "time_warp.knots");
        check(&|a| a.time_warp.knots = usize::MAX, "time_warp.knots");
    }
}
