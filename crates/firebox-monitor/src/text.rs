//! Numbers as a person reads them in a line.

/// `84.2 %`.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// With three significant digits.
pub(crate) fn significant(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0".to_owned() } else { value.to_string() };
    }
    match value.abs().log10().floor() as i32 {
        magnitude @ -4..=2 => format!("{value:.*}", (2 - magnitude) as usize),
        3..=8 => format!("{value:.0}"),
        _ => format!("{value:.2e}"),
    }
}

/// `12.4 MB`, in powers of ten.
pub(crate) fn bytes(count: f64) -> String {
    match count {
        ..1e3 => format!("{count:.0} B"),
        ..1e6 => format!("{:.1} kB", count / 1e3),
        ..1e9 => format!("{:.1} MB", count / 1e6),
        _ => format!("{:.2} GB", count / 1e9),
    }
}

/// `0.4 s`, `38 s`, `2 min 05 s`, `1 h 12 min`.
pub(crate) fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match seconds {
        ..9.95 => format!("{:.1} s", seconds.max(0.0)),
        ..59.5 => format!("{whole} s"),
        ..3599.5 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(
            [0.0, 0.01234, 2.34567, 12345.6].map(significant),
            ["0", "0.0123", "2.35", "12346"]
        );
        assert_eq!(significant(3.1e-7), "3.10e-7");
        assert_eq!(significant(f64::NAN), "NaN");
        assert_eq!([7.0, 1500.0, 2.5e6, 3e9].map(bytes), ["7 B", "1.5 kB", "2.5 MB", "3.00 GB"]);
        assert_eq!(
            [0.44, 38.0, 125.0, 4320.0].map(duration),
            ["0.4 s", "38 s", "2 min 05 s", "1 h 12 min"]
        );
        assert_eq!(percent(0.8421), "84.2 %");
    }
}
