//! Numbers of the unit interval as parameters, the way Optuna's `_SearchSpaceTransform` maps them.

use crate::space::Distribution;

/// The internal value at the place `unit`, from 0 to below 1, of a distribution: linear, or linear in
/// the logarithm; every step and every choice has an equal share. The greatest value of a range
/// without steps is never reached, as in Optuna 5.0.0 (`_transform.py`).
pub(crate) fn from_unit(distribution: &Distribution, unit: f64) -> f64 {
    match *distribution {
        Distribution::Categorical { ref choices } => {
            (unit * choices.len() as f64).floor().min(choices.len() as f64 - 1.0)
        }
        Distribution::Float { low, .. } if distribution.is_single() => low,
        Distribution::Float { low, high, log: true, .. } => {
            between(low.ln(), high.ln(), unit).exp().clamp(low, high.next_down())
        }
        Distribution::Float { low, high, step: Some(step), .. } => {
            let place = between(low - step / 2.0, high + step / 2.0, unit);
            (((place - low) / step).round_ties_even() * step + low).clamp(low, high)
        }
        Distribution::Float { low, high, .. } => between(low, high, unit).min(high.next_down()),
        Distribution::Int { low, high, log: true, .. } => {
            let (low, high) = (low as f64, high as f64);
            let place = between((low - 0.5).ln(), (high + 0.5).ln(), unit);
            place.exp().round_ties_even().clamp(low, high)
        }
        Distribution::Int { low, high, step, .. } => {
            let (low, high, step) = (low as f64, high as f64, step as f64);
            let place = between(low - step / 2.0, high + step / 2.0, unit);
            (((place - low) / step + 0.5).floor() * step + low).clamp(low, high)
        }
    }
}

fn between(low: f64, high: f64, unit: f64) -> f64 {
    low + unit * (high - low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::Choice;

    #[test]
    fn places_become_the_values_that_optuna_gives_them() {
        // optuna._transform._SearchSpaceTransform(transform_0_1=True).untransform, 5.0.0.
        let check = |distribution: Distribution, expected: [f64; 5]| {
            let units = [0.0, 0.124, 0.5, 0.876, 1.0 - f64::EPSILON];
            for (unit, expected) in units.into_iter().zip(expected) {
                let found = from_unit(&distribution, unit);
                assert!((found - expected).abs() <= 1e-14 * expected.abs(), "{found} {expected}");
                assert!(distribution.contains(found));
            }
        };
        let float = |low, high, log, step| Distribution::Float { low, high, log, step };
        let int = |low, high, log, step| Distribution::Int { low, high, log, step };
        check(float(-2.0, 3.0, false, None), [-2.0, -1.38, 0.5, 2.38, 3.0]);
        check(
            float(1e-4, 1.0, true, None),
            [1e-4, 0.000_313_328_572_431_559_6, 0.01, 0.319_153_785_510_075_8, 1.0],
        );
        check(float(0.0, 1.0, false, Some(0.25)), [0.0, 0.0, 0.5, 1.0, 1.0]);
        check(int(1, 9, false, 2), [1.0, 1.0, 5.0, 9.0, 9.0]);
        check(int(1, 1000, true, 1), [1.0, 1.0, 22.0, 390.0, 1000.0]);
        let choices = vec![Choice::None, Choice::Int(1), Choice::Int(2)];
        check(Distribution::Categorical { choices }, [0.0, 0.0, 1.0, 2.0, 2.0]);
        check(int(4, 4, false, 1), [4.0; 5]);
        check(float(0.3, 0.3, true, None), [0.3; 5]);
    }
}
