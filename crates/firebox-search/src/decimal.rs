//! Exact arithmetic on the shortest decimal form of floats, as far as steps of a range need it.
//!
//! In binary, 0.3 is not three times 0.1. What somebody wrote as 0.1 and 0.3 is meant in decimal, and
//! Optuna computes the last step of a range so (`optuna/distributions.py`).

/// A finite decimal number: `digits · 10^exponent`.
#[derive(Clone, Copy)]
struct Decimal {
    digits: i128,
    exponent: i32,
}

impl Decimal {
    /// The shortest decimal number that reads back as `value`; `None` if it is not finite.
    fn of(value: f64) -> Option<Self> {
        let text = format!("{value:e}");
        let (mantissa, exponent) = text.split_once('e')?;
        let places = mantissa.split_once('.').map_or(0, |(_, fraction)| fraction.len());
        let digits = mantissa.replace('.', "").parse().ok()?;
        Some(Self { digits, exponent: exponent.parse::<i32>().ok()? - i32::try_from(places).ok()? })
    }

    /// The digits at a smaller exponent; `None` if they need more than 128 bits.
    fn at(self, exponent: i32) -> Option<i128> {
        let shift = u32::try_from(self.exponent - exponent).ok()?;
        self.digits.checked_mul(10_i128.checked_pow(shift)?)
    }
}

/// How many whole steps lie between `low` and `high`, and the greatest `low + k · step` that is not
/// above `high`. `None` if the numbers are too far apart to be exact in 128 bits, or not finite.
pub(crate) fn last_step(low: f64, high: f64, step: f64) -> Option<(i128, f64)> {
    let [a, b, s] = [Decimal::of(low)?, Decimal::of(high)?, Decimal::of(step)?];
    let exponent = a.exponent.min(b.exponent).min(s.exponent);
    let [a, b, s] = [a.at(exponent)?, b.at(exponent)?, s.at(exponent)?];
    let range = b.checked_sub(a)?;
    let count = range.checked_div_euclid(s)?;
    if range.checked_rem_euclid(s)? == 0 {
        return Some((count, high));
    }
    let last = count.checked_mul(s)?.checked_add(a)?;
    Some((count, format!("{last}e{exponent}").parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::last_step;

    #[test]
    fn steps_are_counted_in_decimal() {
        // The values of optuna.distributions._adjust_discrete_uniform_high, 5.0.0.
        let check = |low, high, step, expected| assert_eq!(last_step(low, high, step), expected);
        check(0.0, 0.3, 0.1, Some((3, 0.3)));
        check(0.0, 1.0, 0.3, Some((3, 0.9)));
        check(-1.5, 1.0, 0.7, Some((3, 0.6)));
        check(0.1, 0.1, 5.0, Some((0, 0.1)));
        check(1e-9, 1.0, 0.25, Some((3, 0.750_000_001)));
        check(0.0, 1e300, 1e-300, None);
        check(0.0, f64::INFINITY, 1.0, None);
    }
}
