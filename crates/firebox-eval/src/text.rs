//! Numbers as a reader of a report sees them.

use crate::Estimate;

/// Decimals that the numbers of one column share, so that they can be compared by eye: three significant
/// digits of the smallest one, and no more than six of the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decimals(Option<usize>);

impl Decimals {
    /// For these numbers; zeros and what is not finite do not count.
    pub fn of(numbers: impl IntoIterator<Item = f64>) -> Self {
        let sizes =
            numbers.into_iter().map(f64::abs).filter(|size| size.is_finite() && *size > 0.0);
        let ends = sizes.fold(None, |ends: Option<(f64, f64)>, size| match ends {
            Some((low, high)) => Some((low.min(size), high.max(size))),
            None => Some((size, size)),
        });
        let Some((low, high)) = ends else { return Self(Some(3)) };
        let magnitude = |size: f64| size.log10().floor() as i32;
        let (low, high) = (magnitude(low), magnitude(high));
        if !(-5..9).contains(&high) {
            return Self(None);
        }
        Self(Some((2 - low).min(5 - high).max(0) as usize))
    }

    /// A number; `–` for none. One that would read as zero, and is not, has its own digits.
    pub fn show(self, value: f64) -> String {
        match self.0 {
            _ if !value.is_finite() => "–".to_owned(),
            Some(_) if value.abs() >= 1e9 => significant(value),
            // Half of a unit is rounded to the even one, which may be zero.
            Some(0) if value.abs() > 0.5 => grouped(value),
            Some(decimals) if value == 0.0 || value.abs() > 0.5 * 0.1_f64.powi(decimals as i32) => {
                number(value, decimals)
            }
            _ => significant(value),
        }
    }

    /// An estimate with its interval, if it has one; `–` for none.
    pub fn interval(self, estimate: &Estimate) -> String {
        match estimate.value.is_finite() {
            true => estimate.with_interval(|value| self.show(value)),
            false => "–".to_owned(),
        }
    }
}

/// What stands for a number that is not finite.
fn not_finite(value: f64) -> Option<String> {
    let text = match value {
        _ if value.is_finite() => return None,
        _ if value.is_nan() => "unknown",
        _ if value < 0.0 => "\u{2212}\u{221e}",
        _ => "\u{221e}",
    };
    Some(text.to_owned())
}

/// A share in per cent, `84.2 %`; one below a whole never reads as `100 %`. Without bounds, `∞`.
pub fn percent(share: f64) -> String {
    if let Some(text) = not_finite(share) {
        return text;
    }
    // Rounding must not turn an error into perfection.
    let text = format!("{:.1}", 100.0 * share);
    match text.as_str() {
        "100.0" if share == 1.0 => "100 %".to_owned(),
        "100.0" if share < 1.0 => format!("{:.2} %", (10_000.0 * share).floor() / 100.0),
        "-0.0" => "0.0 %".to_owned(),
        _ => format!("{} %", minus(&text)),
    }
}

/// A difference of shares in percentage points: `6.3`.
pub(crate) fn points(difference: f64) -> String {
    number(100.0 * difference, 1)
}

/// The same with its sign: `+6.3`, `−0.4`.
pub(crate) fn signed_points(difference: f64) -> String {
    signed(100.0 * difference, 1)
}

/// A number with this many decimals and its sign: `+0.354`, `−0.354`, and `0.000` for what reads so.
pub fn signed(value: f64, decimals: usize) -> String {
    let text = number(value, decimals);
    let plus = value.is_finite() && value > 0.0 && text.parse::<f64>() != Ok(0.0);
    if plus { format!("+{text}") } else { text }
}

/// A number with this many decimals and a true minus sign, never `-0`.
pub fn number(value: f64, decimals: usize) -> String {
    if !value.is_finite() {
        return "unknown".to_owned();
    }
    let text = format!("{value:.decimals$}");
    if text.parse::<f64>() == Ok(0.0) { text.replace('-', "") } else { minus(&text) }
}

/// A loss with five decimals, `0.25000`, as it is printed line by line; one that these say too little of, or that has more
/// than eight digits before them, as `9.57e-7`; without bounds, `∞`.
pub fn loss(value: f64) -> String {
    if let Some(text) = not_finite(value) {
        return text;
    }
    match value.abs() {
        size if size == 0.0 || (1e-3..1e8).contains(&size) => minus(&format!("{value:.5}")),
        _ => minus(&format!("{value:.2e}")),
    }
}

/// With three significant digits: `0.412`, `12.3`, `1,230`, `3.1e-7`; without bounds, `∞`.
pub(crate) fn significant(value: f64) -> String {
    if let Some(text) = not_finite(value) {
        return text;
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    let magnitude = value.abs().log10().floor() as i32;
    match magnitude {
        5.. if value.abs() >= 1e9 => minus(&format!("{value:.2e}")),
        3.. => grouped(value),
        -4..=2 => minus(&format!("{value:.*}", (2 - magnitude) as usize)),
        _ => minus(&format!("{value:.2e}")),
    }
}

/// Thousands separated by commas.
pub(crate) fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if value < 0.0 { format!("\u{2212}{out}") } else { out }
}

/// A count with its noun: `1 window`, `1,029 windows`.
pub(crate) fn count(number: usize, singular: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {singular}{plural}", grouped(number as f64))
}

/// `38 ms`, `4.2 s`, `2 min 05 s`, `1 h 12 min`.
pub(crate) fn duration(seconds: f64) -> String {
    let whole = seconds.round();
    match seconds {
        s if !s.is_finite() || s < 0.0 => "unknown".to_owned(),
        0.0 => "0 s".to_owned(),
        ..0.001 => "under 1 ms".to_owned(),
        ..0.9995 => format!("{:.0} ms", 1000.0 * seconds),
        ..9.95 => format!("{seconds:.1} s"),
        ..59.5 => format!("{whole:.0} s"),
        ..3599.5 => format!("{:.0} min {:02.0} s", (whole / 60.0).floor(), whole % 60.0),
        _ => {
            let minutes = (seconds / 60.0).round();
            format!("{:.0} h {:02.0} min", (minutes / 60.0).floor(), minutes % 60.0)
        }
    }
}

/// `12.4 MB`, in powers of ten.
pub(crate) fn bytes(count: u64) -> String {
    let value = count as f64;
    match count {
        0..1_000 => format!("{count} B"),
        1_000..1_000_000 => format!("{:.1} kB", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", value / 1e6),
        _ => format!("{:.2} GB", value / 1e9),
    }
}

/// `a`, `a and b`, `a, b and c`.
pub(crate) fn list<S: AsRef<str>>(items: &[S]) -> String {
    match items {
        [] => String::new(),
        [only] => only.as_ref().to_owned(),
        [start @ .., last] => {
            let start: Vec<&str> = start.iter().map(AsRef::as_ref).collect();
            format!("{} and {}", start.join(", "), last.as_ref())
        }
    }
}

/// With a capital first letter.
pub(crate) fn capitalised(text: &str) -> String {
    let mut characters = text.chars();
    characters
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

fn minus(text: &str) -> String {
    text.strip_prefix('-').map_or_else(|| text.to_owned(), |rest| format!("\u{2212}{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_told_with_digits_that_say_something() {
        let told = [0.25, 12.5, f64::NAN, 0.0, 9.57e-7, -3.2e-5, 1.25e29].map(loss);
        let expected =
            ["0.25000", "12.50000", "unknown", "0.00000", "9.57e-7", "\u{2212}3.20e-5", "1.25e29"];
        assert_eq!(told, expected);
    }

    #[test]
    fn rounding_never_makes_an_error_perfect_or_zero_negative() {
        let all = [1.0, 0.99996, 0.8421, 0.0, -0.0001, -0.031, f64::NAN].map(percent);
        assert_eq!(all, ["100 %", "99.99 %", "84.2 %", "0.0 %", "0.0 %", "−3.1 %", "unknown"]);
        assert_eq!(
            [0.063, -0.004, 0.00001, 0.0].map(signed_points),
            ["+6.3", "−0.4", "0.0", "0.0"]
        );
        let all = [0.3541, -0.3541, -0.0001, 0.0001, f64::INFINITY].map(|value| signed(value, 3));
        assert_eq!(all, ["+0.354", "−0.354", "0.000", "0.000", "unknown"]);
    }

    #[test]
    fn what_has_no_bounds_is_not_unknown() {
        let all = [f64::NEG_INFINITY, f64::INFINITY, f64::NAN];
        assert_eq!(all.map(significant), ["−∞", "∞", "unknown"]);
        assert_eq!(all.map(percent), ["−∞", "∞", "unknown"]);
    }

    #[test]
    fn significant_digits_cover_all_sizes() {
        let all = [0.0, 0.4123, 12.345, 0.00012345, 3.14159e-7, 1234.4, -98765.4, 2.5e11, 999.6];
        let expected =
            ["0", "0.412", "12.3", "0.000123", "3.14e-7", "1,234", "−98,765", "2.50e11", "1000"];
        assert_eq!(all.map(significant), expected);
    }

    #[test]
    fn columns_share_their_decimals() {
        let all = |numbers: &[f64]| -> Vec<String> {
            let decimals = Decimals::of(numbers.iter().copied());
            numbers.iter().map(|value| decimals.show(*value)).collect()
        };
        assert_eq!(all(&[0.912, 1.0213, -0.3]), ["0.912", "1.021", "−0.300"]);
        assert_eq!(all(&[2.13e-4, 1.5e-3, 0.0]), ["0.000213", "0.001500", "0.000000"]);
        assert_eq!(all(&[1234.5, 20.0]), ["1234.5", "20.0"]);
        assert_eq!(all(&[1_234_567.0, 20.0]), ["1,234,567", "20"]);
        // Six digits of the largest leave nothing of the smallest, which must not read as zero.
        assert_eq!(all(&[123_456.7, 2e-4]), ["123,457", "0.000200"]);
        assert_eq!(all(&[123_456.7, 0.5]), ["123,457", "0.500"]);
        assert_eq!(all(&[3e30, -2e12]), ["3.00e30", "−2.00e12"]);
        assert_eq!(all(&[3e-9, f64::NAN, f64::INFINITY]), ["3.00e-9", "–", "–"]);
        assert_eq!(Decimals::of([]).show(0.0), "0.000");
        let estimate = Estimate { value: 2e-4, low: 1e-4, high: 3.5e-4 };
        assert_eq!(Decimals::of([2e-4]).interval(&estimate), "0.000200 (0.000100 to 0.000350)");
        let alone = Estimate { low: f64::NAN, high: f64::NAN, ..estimate };
        assert_eq!(Decimals::of([2e-4]).interval(&alone), "0.000200");
    }

    #[test]
    fn durations_and_sizes() {
        let all = [0.0, 0.0001, 0.038, 4.23, 59.4, 59.6, 125.0, 4320.0, 3599.9].map(duration);
        let expected = [
            "0 s",
            "under 1 ms",
            "38 ms",
            "4.2 s",
            "59 s",
            "1 min 00 s",
            "2 min 05 s",
            "1 h 12 min",
            "1 h 00 min",
        ];
        assert_eq!(all, expected);
        assert_eq!([999, 12_400_000].map(bytes), ["999 B", "12.4 MB"]);
        assert_eq!(list(&["a", "b", "c"]), "a, b and c");
        assert_eq!(count(1029, "window"), "1,029 windows");
    }
}
