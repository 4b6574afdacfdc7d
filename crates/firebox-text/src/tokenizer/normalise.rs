//! Normalisers: rewriting of a text before it is split, each character keeping its place.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use regex::Regex;
use serde_json::Value;
use unicode_normalization::char::{
    canonical_combining_class, compose, decompose_canonical, decompose_compatible,
};
use unicode_segmentation::UnicodeSegmentation;

use super::characters::{Character, is_ideograph, is_nonspacing_mark, is_other, place, text};
use super::{flag, kind, unsupported};

#[derive(Clone, Debug)]
pub(super) enum Normaliser {
    Bert {
        clean: bool,
        ideographs: bool,
        strip_accents: bool,
        lowercase: bool,
    },
    Lowercase,
    /// Unicode's forms: whether of compatibility, and whether composed.
    Unicode {
        compatible: bool,
        composed: bool,
    },
    StripAccents,
    Strip {
        left: bool,
        right: bool,
    },
    Replace {
        pattern: Regex,
        by: String,
    },
    Prepend(String),
    Precompiled(Arc<CharacterMap>),
}

impl Normaliser {
    pub(super) fn read(value: &Value) -> Result<Self, String> {
        let unicode = |compatible, composed| Ok(Self::Unicode { compatible, composed });
        match kind(value) {
            "BertNormalizer" => {
                let lowercase = flag(value, "lowercase", true);
                Ok(Self::Bert {
                    clean: flag(value, "clean_text", true),
                    ideographs: flag(value, "handle_chinese_chars", true),
                    strip_accents: flag(value, "strip_accents", lowercase),
                    lowercase,
                })
            }
            "Lowercase" => Ok(Self::Lowercase),
            "NFD" => unicode(false, false),
            "NFC" => unicode(false, true),
            "NFKD" => unicode(true, false),
            "NFKC" => unicode(true, true),
            "StripAccents" => Ok(Self::StripAccents),
            "Strip" => Ok(Self::Strip {
                left: flag(value, "strip_left", true),
                right: flag(value, "strip_right", true),
            }),
            "Replace" => {
                let by = value.get("content").and_then(Value::as_str).unwrap_or_default();
                Ok(Self::Replace { pattern: pattern(value)?, by: by.to_owned() })
            }
            "Prepend" => {
                let with = value.get("prepend").and_then(Value::as_str).unwrap_or_default();
                Ok(Self::Prepend(with.to_owned()))
            }
            "Precompiled" => {
                let map = value.get("precompiled_charsmap").and_then(Value::as_str);
                Ok(Self::Precompiled(Arc::new(CharacterMap::read(map.unwrap_or_default())?)))
            }
            _ => Err(unsupported(
                "normaliser",
                value,
                "BertNormalizer, Lowercase, NFC, NFD, NFKC, NFKD, StripAccents, Strip, Replace, \
                 Prepend, Precompiled",
            )),
        }
    }

    pub(super) fn apply(&self, text: Vec<Character>) -> Vec<Character> {
        match self {
            Self::Bert { clean, ideographs, strip_accents, lowercase } => {
                let mut text = text;
                if *clean {
                    text = cleaned(text);
                }
                if *ideographs {
                    text = apart(text);
                }
                if *strip_accents {
                    text = decomposed(text, false);
                    text.retain(|c| !is_nonspacing_mark(c.value));
                }
                if *lowercase { lowercased(text) } else { text }
            }
            Self::Lowercase => lowercased(text),
            Self::Unicode { compatible, composed: false } => decomposed(text, *compatible),
            Self::Unicode { compatible, composed: true } => composed(decomposed(text, *compatible)),
            Self::StripAccents => {
                text.into_iter().filter(|c| !is_nonspacing_mark(c.value)).collect()
            }
            Self::Strip { left, right } => stripped(text, *left, *right),
            Self::Replace { pattern, by } => replaced(&text, pattern, by),
            Self::Prepend(with) => {
                let at = text.first().map(|first| first.place);
                let before =
                    at.map(|place| with.chars().map(move |value| Character { value, place }));
                before.into_iter().flatten().chain(text.iter().copied()).collect()
            }
            Self::Precompiled(map) => map.apply(&text),
        }
    }
}

/// The `pattern` of a part of the file: a text or a regular expression.
pub(super) fn pattern(value: &Value) -> Result<Regex, String> {
    let pattern = value.get("pattern").unwrap_or(&Value::Null);
    let expression = match (pattern.get("String"), pattern.get("Regex")) {
        (Some(Value::String(text)), _) => regex::escape(text),
        (_, Some(Value::String(expression))) => expression.clone(),
        _ => return Err(format!("has a pattern that is neither String nor Regex: {pattern}")),
    };
    let allowed = "a regular expression without looking around or back";
    Regex::new(&expression).map_err(|_| unsupported("pattern", pattern, allowed))
}

fn cleaned(text: Vec<Character>) -> Vec<Character> {
    let kept = |c: &Character| {
        matches!(c.value, '\t' | '\n' | '\r')
            || !(c.value == '\0' || c.value == '\u{fffd}' || is_other(c.value))
    };
    let plain = |c: Character| {
        let value = if c.value.is_whitespace() { ' ' } else { c.value };
        Character { value, ..c }
    };
    text.into_iter().filter(kept).map(plain).collect()
}

/// Ideographs with spaces around them.
fn apart(text: Vec<Character>) -> Vec<Character> {
    let spaced = |c: Character| {
        let space = is_ideograph(c.value).then_some(Character { value: ' ', ..c });
        space.into_iter().chain([c]).chain(space)
    };
    text.into_iter().flat_map(spaced).collect()
}

fn lowercased(text: Vec<Character>) -> Vec<Character> {
    let lower = |c: Character| c.value.to_lowercase().map(move |value| Character { value, ..c });
    text.into_iter().flat_map(lower).collect()
}

/// Decomposed characters, marks in their canonical order.
fn decomposed(text: Vec<Character>, compatible: bool) -> Vec<Character> {
    let mut out: Vec<Character> = Vec::with_capacity(text.len());
    for c in text {
        let push = |value| out.push(Character { value, ..c });
        match compatible {
            true => decompose_compatible(c.value, push),
            false => decompose_canonical(c.value, push),
        }
    }
    let class = |c: &Character| canonical_combining_class(c.value);
    let mut from = 0;
    while from < out.len() {
        let marks = out[from..].iter().take_while(|c| class(c) != 0).count();
        out[from..from + marks].sort_by_key(class);
        from += marks.max(1);
    }
    out
}

/// Unicode's canonical composition of decomposed characters.
fn composed(text: Vec<Character>) -> Vec<Character> {
    let mut out: Vec<Character> = Vec::with_capacity(text.len());
    let (mut starter, mut last_class) = (None::<usize>, 0u8);
    for c in text {
        let class = canonical_combining_class(c.value);
        if let Some(at) = starter {
            let blocked = out.len() > at + 1 && (last_class == 0 || last_class >= class);
            if let Some(value) = compose(out[at].value, c.value).filter(|_| !blocked) {
                out[at] = Character { value, place: place(&[out[at], c]) };
                continue;
            }
        }
        if class == 0 {
            starter = Some(out.len());
        }
        last_class = class;
        out.push(c);
    }
    out
}

fn stripped(text: Vec<Character>, left: bool, right: bool) -> Vec<Character> {
    let space = |c: &&Character| c.value.is_whitespace();
    let from = if left { text.iter().take_while(space).count() } else { 0 };
    let rest = &text[from..];
    let end = if right { rest.iter().rev().take_while(space).count() } else { 0 };
    rest[..rest.len() - end].to_vec()
}

fn replaced(run: &[Character], pattern: &Regex, by: &str) -> Vec<Character> {
    let written = text(run);
    let (mut out, mut from) = (vec![], 0);
    for found in pattern.find_iter(&written).filter(|found| !found.is_empty()) {
        let [start, end] = [found.start(), found.end()].map(|byte| number_at(&written, byte));
        out.extend_from_slice(&run[from..start]);
        let place = place(&run[start..end]);
        out.extend(by.chars().map(|value| Character { value, place }));
        from = end;
    }
    out.extend_from_slice(&run[from..]);
    out
}

fn number_at(text: &str, byte: usize) -> usize {
    text.get(..byte).map_or(0, |before| before.chars().count())
}

/// SentencePiece's table of what characters become: a double-array trie and the texts that its leaves
/// point to. Source: `normalizer.cc` of SentencePiece, and Yata et al., "A compact static double-array
/// keeping character codes", 2007.
#[derive(Clone, Debug)]
pub(super) struct CharacterMap {
    units: Vec<u32>,
    texts: Vec<u8>,
}

impl CharacterMap {
    fn read(encoded: &str) -> Result<Self, String> {
        let bad = || "has a precompiled character map that is damaged".to_owned();
        let bytes = STANDARD.decode(encoded).map_err(|_| bad())?;
        let (size, rest) = bytes.split_first_chunk::<4>().ok_or_else(bad)?;
        let size = u32::from_le_bytes(*size) as usize;
        let (trie, texts) = rest.split_at_checked(size).ok_or_else(bad)?;
        let units = trie.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        Ok(Self { units, texts: texts.to_vec() })
    }

    /// What the shortest beginning of `key` that is in the table becomes.
    fn find(&self, key: &str) -> Option<&str> {
        let offset = |unit: u32| ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize;
        let mut node = offset(*self.units.first()?);
        for byte in key.bytes().take_while(|byte| *byte != 0) {
            node ^= usize::from(byte);
            let unit = *self.units.get(node)?;
            if unit & ((1 << 31) | 0xff) != u32::from(byte) {
                return None;
            }
            node ^= offset(unit);
            if (unit >> 8) & 1 == 1 {
                let start = (*self.units.get(node)? & ((1 << 31) - 1)) as usize;
                let text = self.texts.get(start..)?;
                let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
                return std::str::from_utf8(&text[..end]).ok();
            }
        }
        None
    }

    fn apply(&self, run: &[Character]) -> Vec<Character> {
        let written = text(run);
        let (mut out, mut at) = (Vec::with_capacity(run.len()), 0);
        for grapheme in written.graphemes(true) {
            let count = grapheme.chars().count();
            let own = &run[at..at + count];
            at += count;
            // Longer ones are none that the table holds as a whole.
            if let Some(found) = self.find(grapheme).filter(|_| grapheme.len() < 6) {
                let place = place(own);
                out.extend(found.chars().map(|value| Character { value, place }));
                continue;
            }
            for c in own {
                match self.find(c.value.encode_utf8(&mut [0; 4])) {
                    Some(found) => {
                        out.extend(found.chars().map(|value| Character { value, ..*c }));
                    }
                    None => out.push(*c),
                }
            }
        }
        out
    }
}
