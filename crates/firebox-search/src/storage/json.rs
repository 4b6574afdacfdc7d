//! JSON as Python writes it: with `NaN`, `Infinity` and `-Infinity`, which JSON does not have.

use std::fmt;

use serde::de::{DeserializeOwned, Deserializer, Error, Visitor};
use serde_json::Value;

/// Numbers that Python writes and JSON does not have.
const TOKENS: [&str; 3] = ["NaN", "Infinity", "-Infinity"];
/// What stands in JSON before a text that is one of Python's tokens: a character that no text of people has.
const MARK: &str = "\\u0000";
/// The same as it is read.
const MARK_READ: char = '\0';

/// Reads a line. Python's tokens become texts, which [`Number`] takes for the numbers they name; in
/// an attribute they stay texts, because [`Value`] has no such number.
pub(super) fn read<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    read_with(text, "")
}

/// Reads a text whose values may be numbers or texts, where the text "NaN" is not the number: what stands
/// for one of Python's tokens is known by [`token`].
pub(crate) fn read_marked<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    read_with(text, MARK)
}

fn read_with<T: DeserializeOwned>(text: &str, mark: &str) -> serde_json::Result<T> {
    match serde_json::from_str(text) {
        Ok(value) => Ok(value),
        Err(error) => {
            let tokens = quoted(text, mark);
            let all = tokens.as_deref().unwrap_or(text);
            match (without_lone_surrogates(all), tokens) {
                (Some(text), _) | (None, Some(text)) => serde_json::from_str(&text),
                (None, None) => Err(error),
            }
        }
    }
}

/// The text with U+FFFD in the place of each half of a pair of surrogates that has no other: Python writes bytes that are no
/// text so, as of the names of files. `None` if there is none.
fn without_lone_surrogates(text: &str) -> Option<String> {
    let unit = |at: usize| {
        let digits = text.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok()
    };
    let (mut result, mut done, mut at) = (String::new(), 0, 0);
    while let Some(found) = text[at..].find('\\') {
        at += found;
        let is =
            |at: usize, range: std::ops::Range<u16>| unit(at).is_some_and(|u| range.contains(&u));
        at += match () {
            () if is(at, 0xd800..0xdc00) && is(at + 6, 0xdc00..0xe000) => 12,
            () if is(at, 0xd800..0xe000) => {
                result.push_str(&text[done..at]);
                result.push('\u{fffd}');
                done = at + 6;
                6
            }
            // What is escaped is no escape; behind the last one there is nothing.
            () => 1 + text[at + 1..].chars().next().map_or(0, char::len_utf8),
        };
    }
    result.push_str(&text[done..]);
    (done > 0).then_some(result)
}

/// The text with Python's tokens in quotes, behind `mark`; `None` if it has none outside of texts.
fn quoted(text: &str, mark: &str) -> Option<String> {
    let (mut result, mut done) = (String::new(), 0);
    let bytes = text.as_bytes();
    let (mut at, mut inside) = (0, false);
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if inside => at += 1,
            b'"' => inside = !inside,
            _ if inside => {}
            _ => {
                let token =
                    TOKENS.into_iter().find(|token| bytes[at..].starts_with(token.as_bytes()));
                if let Some(token) = token {
                    result.push_str(&text[done..at]);
                    result.push_str(&format!("\"{mark}{token}\""));
                    at += token.len();
                    done = at;
                    continue;
                }
            }
        }
        at += 1;
    }
    result.push_str(&text[done..]);
    (done > 0).then_some(result)
}

/// A number as Python's `json.dumps` writes it.
pub(super) fn number(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
    } else {
        Value::from(value).to_string()
    }
}

/// A number as a value, marked where JSON has none such, so that [`write()`] writes Python's token.
pub(crate) fn marked(value: f64) -> Value {
    if value.is_finite() {
        Value::from(value)
    } else {
        Value::from(format!("{MARK_READ}{}", number(value)))
    }
}

/// What [`read`] gives for the token of a number, and the number itself where JSON has it.
pub(crate) fn unmarked(value: f64) -> Value {
    if value.is_finite() { Value::from(value) } else { Value::from(number(value)) }
}

/// A value as Python's `json.dumps` writes it, up to spaces: what is [`marked`] as the number that it is.
pub(super) fn write(value: &Value) -> String {
    match value {
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(write).collect();
            format!("[{}]", values.join(","))
        }
        Value::Object(values) => {
            let field = |(key, value): (&String, &Value)| {
                format!("{}:{}", Value::from(key.as_str()), write(value))
            };
            format!("{{{}}}", values.iter().map(field).collect::<Vec<_>>().join(","))
        }
        _ => token(value).map_or_else(|| value.to_string(), number),
    }
}

/// The number of one of Python's tokens in what [`read_marked`] gave.
pub(crate) fn token(value: &Value) -> Option<f64> {
    named(value.as_str()?.strip_prefix(MARK_READ)?)
}

/// The number of a value that [`read`] gave.
pub(crate) fn as_number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => named(text),
        _ => None,
    }
}

fn named(text: &str) -> Option<f64> {
    match text {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

/// A number that may be one of Python's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Number(pub(super) f64);

impl<'de> serde::Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Take;
        impl Visitor<'_> for Take {
            type Value = Number;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<Number, E> {
                Ok(Number(value))
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Number, E> {
                Ok(Number(value as f64))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Number, E> {
                Ok(Number(value as f64))
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<Number, E> {
                // To Python `True` is a number too, and may be reported as a value.
                Ok(Number(f64::from(u8::from(value))))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Number, E> {
                named(text)
                    .map(Number)
                    .ok_or_else(|| E::invalid_type(serde::de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(Take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_surrogates_are_no_damage() {
        let text = |line: &str| read::<Value>(line).unwrap()["p"].clone();
        assert_eq!(text(r#"{"p":"a\udcff"}"#), "a\u{fffd}");
        assert_eq!(
            text(r#"{"p":"\ud83d\ude00 \ud800x\\ud800","q":NaN}"#),
            "\u{1f600} \u{fffd}x\\ud800"
        );
        assert!(read::<Value>(r#"{"p":"\udcff"#).is_err());
    }

    #[test]
    fn numbers_go_both_ways_as_python_has_them() {
        let check = |value: f64, text: &str| {
            assert_eq!(number(value), text);
            let Number(back) = read(text).unwrap();
            assert!(back == value || (back.is_nan() && value.is_nan()), "{text}");
        };
        check(0.1, "0.1");
        check(-3.0, "-3.0");
        check(1e-300, "1e-300");
        check(f64::NAN, "NaN");
        check(f64::INFINITY, "Infinity");
        check(f64::NEG_INFINITY, "-Infinity");
        assert!(read::<Number>("\"high\"").is_err());
    }

    #[test]
    fn a_marked_token_is_told_from_the_text_of_its_letters() {
        let text = r#"["NaN",NaN,"a\"\u0000NaN",-Infinity,1.5]"#;
        let value: Value = read_marked(text).unwrap();
        let all = value.as_array().unwrap();
        let tokens: Vec<_> = all.iter().map(token).collect();
        assert!(tokens[1].unwrap().is_nan());
        assert_eq!([tokens[0], tokens[2], tokens[4]], [None; 3]);
        assert_eq!(tokens[3], Some(f64::NEG_INFINITY));
        assert_eq!(write(&value), text);
        let numbers = [f64::INFINITY, 2.0, f64::NAN];
        assert_eq!(write(&numbers.map(marked).to_vec().into()), "[Infinity,2.0,NaN]");
        assert_eq!(
            read::<Value>("[Infinity,2.0,NaN]").unwrap(),
            Value::from(numbers.map(unmarked).to_vec())
        );
    }

    #[test]
    fn only_what_stands_outside_of_texts_is_a_number() {
        let text = r#"{"a": "NaN, \"Infinity", "b": [NaN, -Infinity, 1]}"#;
        let value: Value = read(text).unwrap();
        assert_eq!(value["a"], "NaN, \"Infinity");
        assert_eq!(as_number(&value["b"][1]), Some(f64::NEG_INFINITY));
        assert!(read::<Value>("{\"a\": Nan}").is_err());
        assert!(read::<Value>("{\"a\": NaN").is_err());
    }
}
