//! A number with its noun, and names of which there may be many, as messages say them. Nothing here knows a language's
//! exceptions.

/// `1 step`, `7 steps`.
pub fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// Names in code style: "`a`, `b` and 3 more" if there are more than `most`.
pub fn quoted<S: AsRef<str>>(names: &[S], most: usize) -> String {
    let shown: Vec<String> =
        names.iter().take(most).map(|name| format!("`{}`", name.as_ref())).collect();
    let rest = match names.len().saturating_sub(most) {
        0 => String::new(),
        rest => format!(" and {rest} more"),
    };
    shown.join(", ") + &rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular() {
        assert_eq!([0, 1, 2].map(|number| count(number, "step")), ["0 steps", "1 step", "2 steps"]);
    }

    #[test]
    fn of_many_names_the_first_are_said() {
        assert_eq!(quoted(&["a", "b"], 2), "`a`, `b`");
        assert_eq!(quoted(&["a", "b", "c"], 2), "`a`, `b` and 1 more");
        assert_eq!(quoted::<&str>(&[], 2), "");
    }
}
