//! Words of a shell, for commands that are printed to be typed again.

/// A text as a POSIX shell takes it for one word.
pub fn quoted_for_a_shell(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-./:@%+=,".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_one_word_of_a_shell() {
        let quoted = |text: &str| quoted_for_a_shell(text);
        assert_eq!(quoted("runs/pretrain-5e0ff9fb"), "runs/pretrain-5e0ff9fb");
        assert_eq!(quoted("runs/数据-1"), "runs/数据-1");
        assert_eq!(quoted("runs/my run"), "'runs/my run'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }
}
