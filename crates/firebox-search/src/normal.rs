//! The normal distribution cut off at both ends: logarithms of its mass and density, and its quantiles.
//!
//! Accurate far out in the tails, where the mass itself is no longer a float. The formulas are those
//! of SciPy's `truncnorm` as Optuna 5.0.0 keeps them (`optuna/samplers/_tpe/_truncnorm.py`), with
//! `libm`'s error functions.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

/// ln √(2π).
const LOG_ROOT_TAU: f64 = 0.918_938_533_204_672_8;

/// The logarithm of the standard normal mass below `x`.
pub(crate) fn log_mass_below(x: f64) -> f64 {
    if x > 6.0 {
        return -mass_below(-x);
    }
    if x > -20.0 {
        return mass_below(x).ln();
    }
    // The asymptotic series of the error function, until its terms vanish.
    let head = -0.5 * x * x - (-x).ln() - LOG_ROOT_TAU;
    let (mut sum, mut last, mut term, mut k) = (1.0, 0.0_f64, 1.0, 1.0);
    while (last - sum).abs() > f64::EPSILON {
        last = sum;
        term *= -(2.0 * k - 1.0) / (x * x);
        sum += term;
        k += 1.0;
    }
    head + sum.ln()
}

fn mass_below(x: f64) -> f64 {
    let scaled = x * FRAC_1_SQRT_2;
    if scaled < -FRAC_1_SQRT_2 {
        0.5 * libm::erfc(-scaled)
    } else if scaled < FRAC_1_SQRT_2 {
        0.5 + 0.5 * libm::erf(scaled)
    } else {
        1.0 - 0.5 * libm::erfc(scaled)
    }
}

/// The logarithm of the standard normal mass from `a` to `b`, where `a` is not above `b`.
pub(crate) fn log_mass_between(a: f64, b: f64) -> f64 {
    // Differences are exact in the left tail only, so the right one is mirrored.
    if b <= 0.0 {
        let (upper, lower) = (log_mass_below(b), log_mass_below(a));
        return upper + (-(lower - upper).exp()).ln_1p();
    }
    if a > 0.0 {
        return log_mass_between(-b, -a);
    }
    let below = |x: f64| 0.5 + 0.5 * libm::erf(x * FRAC_1_SQRT_2);
    (-below(a) - below(-b)).ln_1p()
}

/// The logarithm of the density of a standard normal distribution at `x`.
pub(crate) fn log_density(x: f64) -> f64 {
    -0.5 * x * x - LOG_ROOT_TAU
}

/// The value `x` whose [`log_mass_below`] is `y`, by Newton's method.
fn quantile_of_log(y: f64) -> f64 {
    // Close to zero, the mass above x is the more exact number.
    let flipped = y > -1e-2;
    let target = if flipped { (-y.exp_m1()).ln() } else { y };
    let mut x = if target < -5.0 {
        -(-2.0 * (target + LOG_ROOT_TAU)).sqrt()
    } else {
        -(3.0_f64.sqrt() / PI) * (-target).exp_m1().ln()
    };
    for _ in 0..100 {
        let log_mass = log_mass_below(x);
        let change = (log_mass - target) * (log_mass - log_density(x)).exp();
        x -= change;
        if change.abs() < 1e-8 * x.abs() {
            break;
        }
    }
    if flipped { -x } else { x }
}

/// The quantile `q`, from 0 to 1, of a standard normal distribution cut off at `a` and `b`.
pub(crate) fn quantile(q: f64, a: f64, b: f64) -> f64 {
    if q <= 0.0 || a >= b {
        return a;
    }
    if q >= 1.0 {
        return b;
    }
    let log_mass = log_mass_between(a, b);
    let found = if a < 0.0 {
        quantile_of_log(log_sum(log_mass_below(a), q.ln() + log_mass))
    } else {
        -quantile_of_log(log_sum(log_mass_below(-b), (-q).ln_1p() + log_mass))
    };
    // Where the mass is so small that it has no quantiles, the end nearest to the middle has it all.
    if found.is_nan() { 0.0_f64.clamp(a, b) } else { found.clamp(a, b) }
}

/// ln(eᵃ + eᵇ).
fn log_sum(a: f64, b: f64) -> f64 {
    let (least, greatest) = if a < b { (a, b) } else { (b, a) };
    if greatest == f64::NEG_INFINITY {
        return greatest;
    }
    greatest + (least - greatest).exp().ln_1p()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;

    fn near(found: f64, expected: f64, what: &str) {
        let error = (found - expected).abs();
        assert!(error < 1e-11 * expected.abs() + 1e-15, "{what}: {found} instead of {expected}");
    }

    #[test]
    fn masses_and_quantiles_are_optunas() {
        let mut cases = golden::read("parzen");
        for case in cases.remove("log_mass").unwrap().as_array().unwrap() {
            let [a, b, mass] = golden::numbers(case)[..] else { panic!("three numbers") };
            near(log_mass_between(a, b), mass, &format!("mass from {a} to {b}"));
        }
        for case in cases.remove("quantile").unwrap().as_array().unwrap() {
            let [q, a, b, x] = golden::numbers(case)[..] else { panic!("four numbers") };
            near(quantile(q, a, b), x, &format!("quantile {q} from {a} to {b}"));
        }
    }

    #[test]
    fn quantiles_invert_masses() {
        for (a, b) in
            [(-1.0, 1.0), (-40.0, -30.0), (3.0, 3.5), (-8.0, 0.0), (0.0, 50.0), (-5.0, 9.0)]
        {
            for q in [1e-12, 1e-3, 0.2, 0.5, 0.9, 1.0 - 1e-9] {
                let x = quantile(q, a, b);
                let back = (log_mass_between(a, x) - log_mass_between(a, b)).exp();
                assert!(
                    (a..=b).contains(&x) && (back - q).abs() < 1e-7 * q + 1e-15,
                    "{q} {back} in {a} {b}"
                );
            }
        }
    }

    #[test]
    fn extremes_stay_within_the_ends() {
        for (a, b) in [(1e3, 2e3), (-1e200, -1e199), (5.0, 5.0), (0.0, f64::INFINITY)] {
            for q in [0.0, 1e-300, 0.5, 1.0 - f64::EPSILON, 1.0] {
                assert!((a..=b).contains(&quantile(q, a, b)), "{q} in {a} {b}");
            }
        }
    }
}
