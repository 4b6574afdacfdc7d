//! Characters that know where they came from, and what kind they are.

use std::sync::OnceLock;

use regex::Regex;

/// A character of the normalised text, with the bytes of the original that it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Character {
    pub(super) value: char,
    pub(super) place: [usize; 2],
}

pub(super) fn characters(text: &str) -> Vec<Character> {
    let one = |(at, value): (usize, char)| Character { value, place: [at, at + value.len_utf8()] };
    text.char_indices().map(one).collect()
}

/// What a run of characters stands for: from the first byte to the last.
pub(super) fn place(run: &[Character]) -> [usize; 2] {
    let first = run.iter().map(|c| c.place[0]).min().unwrap_or(0);
    [first, run.iter().map(|c| c.place[1]).max().unwrap_or(first)]
}

pub(super) fn text(run: &[Character]) -> String {
    run.iter().map(|c| c.value).collect()
}

macro_rules! class {
    ($(#[$doc:meta])* $name:ident, $pattern:literal, $ascii:expr) => {
        $(#[$doc])*
        pub(super) fn $name(c: char) -> bool {
            static PATTERN: OnceLock<Option<Regex>> = OnceLock::new();
            if c.is_ascii() {
                let ascii: fn(char) -> bool = $ascii;
                return ascii(c);
            }
            let pattern = PATTERN.get_or_init(|| Regex::new($pattern).ok());
            pattern.as_ref().is_some_and(|p| p.is_match(c.encode_utf8(&mut [0; 4])))
        }
    };
}

class!(
    /// BERT's punctuation: Unicode's, and every ASCII character that is neither letter nor number.
    is_punctuation,
    r"\p{P}",
    |c| c.is_ascii_punctuation()
);
class!(
    /// A mark that takes no room of its own, such as an accent.
    is_nonspacing_mark,
    r"\p{Mn}",
    |_| false
);
class!(
    /// Control, format and private characters.
    is_other,
    r"[\p{Cc}\p{Cf}\p{Co}]",
    |c| c.is_ascii_control()
);
class!(is_letter, r"\p{L}", |c| c.is_ascii_alphabetic());
class!(is_number, r"\p{N}", |c| c.is_ascii_digit());

/// Ideographs, which BERT takes as words. Source: `_is_chinese_char` of BERT's tokenizer.
pub(super) fn is_ideograph(c: char) -> bool {
    matches!(u32::from(c),
        0x4E00..=0x9FFF | 0x3400..=0x4DBF | 0x20000..=0x2A6DF | 0x2A700..=0x2B73F
        | 0x2B740..=0x2B81F | 0x2B920..=0x2CEAF | 0xF900..=0xFAFF | 0x2F800..=0x2FA1F)
}
