//! Splitters: a normalised text into words, none of whose tokens reaches into another.

use regex::Regex;
use serde_json::Value;

use super::characters::{Character, is_letter, is_number, is_punctuation, text};
use super::normalise::pattern;
use super::{flag, kind, unsupported};

#[derive(Clone, Debug)]
pub(super) enum Splitter {
    /// At white space, which is left out, and around each punctuation mark.
    Bert,
    /// At white space, which is left out.
    WhitespaceSplit,
    /// Runs of word characters, and runs of others.
    Whitespace,
    Punctuation,
    Digits {
        individual: bool,
    },
    /// GPT-2's pattern, then bytes in the place of characters.
    ByteLevel {
        prefix: bool,
        pattern: bool,
    },
    Metaspace {
        replacement: char,
        prefix: Prefix,
        split: bool,
    },
    /// Matches stand alone, or are left out.
    Split {
        pattern: Regex,
        removed: bool,
        inverted: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prefix {
    Always,
    First,
    Never,
}

impl Splitter {
    pub(super) fn read(value: &Value) -> Result<Self, String> {
        match kind(value) {
            "BertPreTokenizer" => Ok(Self::Bert),
            "WhitespaceSplit" => Ok(Self::WhitespaceSplit),
            "Whitespace" => Ok(Self::Whitespace),
            "Punctuation" if ["Isolated", ""].contains(&behaviour(value)) => Ok(Self::Punctuation),
            "Digits" => Ok(Self::Digits { individual: flag(value, "individual_digits", false) }),
            "ByteLevel" => Ok(Self::ByteLevel {
                prefix: flag(value, "add_prefix_space", true),
                pattern: flag(value, "use_regex", true),
            }),
            "Metaspace" => metaspace(value),
            "Split" if ["Isolated", "Removed"].contains(&behaviour(value)) => Ok(Self::Split {
                pattern: pattern(value)?,
                removed: behaviour(value) == "Removed",
                inverted: flag(value, "invert", false),
            }),
            _ => Err(unsupported(
                "pre-tokenizer",
                value,
                "BertPreTokenizer, Whitespace, WhitespaceSplit, Digits, ByteLevel, Metaspace, \
                 Punctuation (Isolated), Split (Isolated, Removed)",
            )),
        }
    }

    /// Splits one part of a text; `first` says whether the text begins with it.
    pub(super) fn apply(&self, part: Vec<Character>, first: bool) -> Vec<Vec<Character>> {
        match self {
            Self::Bert => words(&part)
                .into_iter()
                .flat_map(|word| isolated(&word, |c| is_punctuation(c.value)))
                .collect(),
            Self::WhitespaceSplit => words(&part),
            Self::Whitespace => words(&part)
                .into_iter()
                .flat_map(|word| runs(&word, |c| c.is_alphanumeric() || c == '_'))
                .collect(),
            Self::Punctuation => isolated(&part, |c| is_punctuation(c.value)),
            Self::Digits { individual: true } => isolated(&part, |c| c.value.is_numeric()),
            Self::Digits { individual: false } => runs(&part, char::is_numeric),
            Self::ByteLevel { prefix, pattern } => byte_level(part, *prefix, *pattern),
            Self::Metaspace { replacement, prefix, split } => {
                let prefix = *prefix == Prefix::Always || (*prefix == Prefix::First && first);
                with_metaspace(part, *replacement, prefix, *split)
            }
            Self::Split { pattern, removed, inverted } => {
                by_pattern(&part, pattern, *removed, *inverted)
            }
        }
    }
}

fn behaviour(value: &Value) -> &str {
    value.get("behavior").and_then(Value::as_str).unwrap_or_default()
}

fn metaspace(value: &Value) -> Result<Splitter, String> {
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    let prefix = match (text("prepend_scheme"), flag(value, "add_prefix_space", true)) {
        (Some("always"), _) | (None, true) => Prefix::Always,
        (Some("first"), _) => Prefix::First,
        (Some("never"), _) | (None, false) => Prefix::Never,
        _ => return Err(unsupported("pre-tokenizer", value, "always, first or never")),
    };
    let replacement = text("replacement").and_then(|text| text.chars().next()).unwrap_or('▁');
    Ok(Splitter::Metaspace { replacement, prefix, split: flag(value, "split", true) })
}

/// Parts between white space.
fn words(part: &[Character]) -> Vec<Vec<Character>> {
    let words = part.split(|c| c.value.is_whitespace());
    words.filter(|word| !word.is_empty()).map(<[Character]>::to_vec).collect()
}

/// Each character of this kind alone, and the runs between them.
fn isolated(part: &[Character], alone: impl Fn(&Character) -> bool) -> Vec<Vec<Character>> {
    let mut out: Vec<Vec<Character>> = vec![];
    let mut open = false;
    for c in part {
        let single = alone(c);
        match out.last_mut().filter(|_| open && !single) {
            Some(run) => run.push(*c),
            None => out.push(vec![*c]),
        }
        open = !single;
    }
    out
}

/// Runs of characters of one kind, and of the others.
fn runs(part: &[Character], kind: impl Fn(char) -> bool) -> Vec<Vec<Character>> {
    part.chunk_by(|a, b| kind(a.value) == kind(b.value)).map(<[Character]>::to_vec).collect()
}

fn by_pattern(
    part: &[Character],
    pattern: &Regex,
    removed: bool,
    inverted: bool,
) -> Vec<Vec<Character>> {
    let written = text(part);
    let number = |byte: usize| written.get(..byte).map_or(0, |before| before.chars().count());
    let (mut out, mut from) = (vec![], 0);
    let mut push = |range: std::ops::Range<usize>, matched: bool| {
        let gone = removed && matched != inverted;
        if !(gone || range.is_empty()) {
            out.push(part[range].to_vec());
        }
    };
    for found in pattern.find_iter(&written) {
        let (start, end) = (number(found.start()), number(found.end()));
        push(from..start, false);
        push(start..end, true);
        from = end;
    }
    push(from..part.len(), false);
    out
}

fn with_metaspace(
    part: Vec<Character>,
    replacement: char,
    prefix: bool,
    split: bool,
) -> Vec<Vec<Character>> {
    let mut marked: Vec<Character> = part
        .into_iter()
        .map(|c| Character { value: if c.value == ' ' { replacement } else { c.value }, ..c })
        .collect();
    if let Some(first) = marked.first().copied().filter(|c| prefix && c.value != replacement) {
        marked.insert(0, Character { value: replacement, ..first });
    }
    if !split {
        return vec![marked];
    }
    marked.chunk_by(|_, next| next.value != replacement).map(<[Character]>::to_vec).collect()
}

fn byte_level(part: Vec<Character>, prefix: bool, split: bool) -> Vec<Vec<Character>> {
    let mut part = part;
    if let Some(first) = part.first().copied().filter(|c| prefix && c.value != ' ') {
        part.insert(0, Character { value: ' ', ..first });
    }
    let words = if split { contractions_and_runs(&part) } else { vec![part.as_slice()] };
    let bytes = |word: &[Character]| {
        let of = |c: &Character| {
            let (place, mut buffer) = (c.place, [0; 4]);
            let bytes = c.value.encode_utf8(&mut buffer).as_bytes().to_vec();
            bytes.into_iter().map(move |byte| Character { value: byte_character(byte), place })
        };
        word.iter().flat_map(of).collect()
    };
    words.into_iter().map(bytes).collect()
}

/// The character that stands for a byte: itself where it can be seen, else one from 256 on. Source:
/// `bytes_to_unicode` of GPT-2.
pub(super) fn byte_character(byte: u8) -> char {
    let seen = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if seen(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|b| !seen(*b)).count() as u32;
    char::from_u32(256 + before).unwrap_or('\u{fffd}')
}

/// GPT-2's pattern, which looks ahead: `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|
/// \s+(?!\S)|\s+`.
fn contractions_and_runs(part: &[Character]) -> Vec<&[Character]> {
    let kind = |c: char| match c {
        c if c.is_whitespace() => 0,
        c if is_letter(c) => 1,
        c if is_number(c) => 2,
        _ => 3,
    };
    let run = |from: usize, wanted: u8| {
        part[from..].iter().take_while(|c| kind(c.value) == wanted).count()
    };
    let (mut out, mut at) = (vec![], 0);
    while let Some(c) = part.get(at) {
        let follows = |suffix: &&str| {
            let rest = part[at + 1..].iter().map(|c| c.value);
            suffix.chars().eq(rest.take(suffix.chars().count()))
        };
        let contraction = ["s", "t", "re", "ve", "m", "ll", "d"].into_iter().find(follows);
        let next = part.get(at + 1).map(|c| kind(c.value));
        let length = match (c.value, contraction, next) {
            ('\'', Some(suffix), _) => 1 + suffix.len(),
            (' ', _, Some(next)) if next != 0 => 1 + run(at + 1, next),
            (value, ..) if kind(value) != 0 => run(at, kind(value)),
            _ => {
                let spaces = run(at, 0);
                // The last one belongs to the word that follows.
                if at + spaces < part.len() && spaces > 1 { spaces - 1 } else { spaces }
            }
        };
        out.push(&part[at..at + length]);
        at += length;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::characters::characters;
    use super::*;

    #[test]
    fn bytes_have_characters_of_their_own() {
        let all: std::collections::BTreeSet<char> = (0..=255).map(byte_character).collect();
        assert_eq!(all.len(), 256);
        assert_eq!(
            (byte_character(b' '), byte_character(b'\n'), byte_character(0xad)),
            ('Ġ', 'Ċ', 'Ń')
        );
    }

    #[test]
    fn gpt2s_pattern_keeps_the_last_space() {
        let part = characters("I'll  go,\n 'tis 3x  ");
        let words: Vec<String> = contractions_and_runs(&part).into_iter().map(text).collect();
        assert_eq!(words, ["I", "'ll", " ", " go", ",", "\n", " '", "tis", " 3", "x", "  "]);
    }
}
