//! How values of the data are written in what is said of them. Numbers that were measured have their own ways.

/// A value that somebody will look for in a file.
pub(crate) fn exact(value: f64) -> String {
    match value != 0.0 && !(1e-5..1e15).contains(&value.abs()) {
        true => format!("{value:e}"),
        false => value.to_string(),
    }
}

/// A value to four digits.
pub(crate) fn rounded(value: f64) -> String {
    exact(format!("{value:.3e}").parse().unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_powers_of_ten_only_where_zeros_would_be_counted() {
        let values = [401.37327, -9999.0, 1e20, 1e-7, 0.0];
        assert_eq!(values.map(exact), ["401.37327", "-9999", "1e20", "1e-7", "0"]);
        assert_eq!(values.map(rounded), ["401.4", "-9999", "1e20", "1e-7", "0"]);
    }
}
