//! A number with its noun, as messages say it. Nothing here knows a language's exceptions.

/// `1 step`, `7 steps`.
pub fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular() {
        assert_eq!([0, 1, 2].map(|number| count(number, "step")), ["0 steps", "1 step", "2 steps"]);
    }
}
