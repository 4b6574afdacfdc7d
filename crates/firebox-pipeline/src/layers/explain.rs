//! What is wrong with a setting, and where it stands: errors of TOML, serde and figment in our words,
//! with the nearest of the allowed names.

use std::ops::Range;
use std::path::Path;

use figment::Figment;
use figment::providers::Serialized;
use figment::value::{Dict, Value};
use firebox_core::nearest;
use toml::de::{DeTable, DeValue};

use super::ConfigError;
use super::aliases::{OTHER_NAMES, both_names};
use crate::PipelineConfig;
use crate::keys::json;

/// [`in_file`] for a pipeline, whose choices are known.
pub(super) fn in_pipeline(path: &Path, text: &str, error: &toml::de::Error) -> ConfigError {
    let mut said = in_file(path, text, error);
    let is_choice = |message: &str| {
        message.starts_with("invalid type: unit variant") || message == "wanted string or table"
    };
    let keys = |span: &Range<usize>| keys_to(DeTable::parse(text).ok()?.get_ref(), span);
    let place = error.span().filter(|_| is_choice(error.message())).and_then(|span| {
        let keys = keys(&span)?;
        of_choice(&keys, text.get(span)?)
    });
    if let (Some((what, way)), ConfigError::File { message, hint, .. }) = (place, &mut said) {
        (*message, *hint) = (what, way);
    }
    if error.message().contains(TABLE_OF_CHOICE)
        && let ConfigError::File { hint, .. } = &mut said
        && let Some(way) = error.span().and_then(|span| keys_of(&keys(&span)?))
    {
        *hint = way;
    }
    said
}

/// What serde says of a choice that takes a table.
const TABLE_OF_CHOICE: &str = "struct variant ";

/// The keys of the table at a place of a pipeline's file, where something else stands.
fn keys_of(keys: &[String]) -> Option<String> {
    use figment::error::Kind;
    // What the schema says of a table there with a key that no table has.
    let unknown = Value::from(Dict::from([(String::new(), Value::from(Dict::new()))]));
    let Some(Kind::UnknownField(name, allowed)) = said_of(keys, unknown) else { return None };
    if !name.is_empty() {
        return None;
    }
    let place = keys.join(".");
    let first = allowed.first()?;
    Some(format!(
        "\n  name its keys, in a table [{place}] or as with --set {place}.{first}=VALUE{}",
        allowed_here(allowed)
    ))
}

/// What the schema of a pipeline's file says of a value at this place, with nothing else in the file.
fn said_of(keys: &[String], value: Value) -> Option<figment::error::Kind> {
    let nest = |value, key: &String| Value::from(Dict::from([(key.clone(), value)]));
    let table = keys.iter().rev().fold(value, nest);
    let read = Figment::from(Serialized::globals(table)).extract::<PipelineConfig>();
    read.err().map(|error| error.kind)
}

/// The keys that lead to what stands at a place of a file.
fn keys_to(table: &DeTable<'_>, place: &Range<usize>) -> Option<Vec<String>> {
    table.iter().find_map(|(key, value)| {
        let mut keys = vec![key.get_ref().to_string()];
        if value.span() != *place {
            let DeValue::Table(inner) = value.get_ref() else { return None };
            keys.extend(keys_to(inner, place)?);
        }
        Some(keys)
    })
}

pub(crate) fn in_file(path: &Path, text: &str, error: &toml::de::Error) -> ConfigError {
    let span = error.span().unwrap_or_default();
    let before = &text[..floor_char_boundary(text, span.start.min(text.len()))];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    // TOML's whole numbers end at 2^63.
    let number = text.get(span.clone()).and_then(|found| {
        let limit = beyond(found, i64::MAX as u64)?;
        Some((format!("{found} is {limit}"), String::new()))
    });
    let again = (error.message().trim() == "duplicate key").then(|| written_again(text, &span));
    let said = number.or(again.flatten());
    let (message, hint) = said.unwrap_or_else(|| explain(error.message()));
    ConfigError::File {
        path: path.to_path_buf(),
        line: before.matches('\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
        message,
        hint,
    }
}

/// What is wrong where a key or a table stands a second time, and where it stood before if that can be told.
fn written_again(text: &str, place: &Range<usize>) -> Option<(String, String)> {
    let key = text.get(place.clone())?;
    let (before, rest) = text.split_at_checked(place.start)?;
    let line = before.rsplit('\n').next()?.to_owned() + rest.lines().next()?;
    let header = line.trim_start().strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let Some((table, _)) = header.filter(|_| !line.trim_start().starts_with("[[")) else {
        let way = "\n  leave out one of them; --set KEY=VALUE sets a key over the file";
        return Some((format!("the key `{key}` stands there a second time"), way.to_owned()));
    };
    let table = table.trim();
    let own = |line: &str| line.trim_start().starts_with(&format!("[{table}]"));
    let first = before.lines().take(before.matches('\n').count()).position(own);
    let first = first.map_or_else(String::new, |line| format!(", first in line {}", line + 1));
    Some((
        format!("the table [{table}] stands there a second time{first}"),
        format!(
            "\n  a table stands in a file once: write its keys below the first one, in place of those that are there already, or set them \
             over the file, as with --set {table}.KEY=VALUE"
        ),
    ))
}

fn floor_char_boundary(text: &str, mut offset: usize) -> usize {
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    offset
}

/// `figment` holds the layer and those before it.
pub(super) fn in_layer(
    layer: &str,
    path: &str,
    error: &figment::Error,
    figment: &Figment,
) -> ConfigError {
    use figment::error::{Actual, Kind};
    let place = error.path.join(".");
    let choice = || of_choice(&error.path, &json(&figment.find_value(&place).ok()?));
    let said = match &error.kind {
        Kind::InvalidType(Actual::Str(text), _) => beyond(text, u64::MAX)
            .map(|limit| (format!("`{place}` is {text}, {limit}"), String::new())),
        Kind::InvalidType(Actual::UnitVariant, _) => choice(),
        Kind::InvalidType(_, wanted) if wanted.starts_with("enum ") => choice(),
        Kind::InvalidType(Actual::Map, wanted) if wanted == "unit" => {
            error.path.split_last().map(|(name, keys)| no_keys(name, &keys.join(".")))
        }
        _ => None,
    };
    if let Some((message, hint)) = said {
        return ConfigError::Layer { layer: layer.to_owned(), message, hint };
    }
    let (mut message, mut hint) = match &error.kind {
        Kind::UnknownField(name, allowed) => unknown("key", name, allowed),
        Kind::UnknownVariant(name, allowed) => unknown("choice", name, allowed),
        kind => (plain(&kind.to_string()), String::new()),
    };
    // A key that is not in the schema hides the whole path that was written.
    if matches!(error.kind, Kind::UnknownField(..)) && path.contains('.') {
        message = format!("{message} in `{path}`");
    } else if !error.path.is_empty() {
        message = format!("{message} for `{place}`");
    }
    if let Kind::InvalidType(_, wanted) = &error.kind
        && wanted.starts_with(TABLE_OF_CHOICE)
    {
        hint = keys_of(&error.path).unwrap_or_default();
    }
    if hint.is_empty() && message.starts_with("invalid type") {
        hint = "\n  values are written as in the file: 5, 0.1, true, text, [1, 2]".to_owned();
    }
    ConfigError::Layer { layer: layer.to_owned(), message, hint }
}

/// What is wrong where a choice is named without the table or the value that belongs to it, or where something else
/// stands; none where no choice belongs. `found` is what stands there, as it is written.
fn of_choice(keys: &[String], found: &str) -> Option<(String, String)> {
    use figment::error::{Actual, Kind};
    // What the schema says of a table there that has this one key, without anything in it.
    let said = |name: &str| {
        let inner = Dict::from([(name.to_owned(), Value::from(Dict::new()))]);
        said_of(keys, Value::from(inner))
    };
    let Some(Kind::UnknownVariant(_, allowed)) = said("") else { return None };
    let place = keys.join(".");
    let name = found.trim_matches(['"', '\'']);
    if !allowed.contains(&name) {
        return Some((
            format!("`{place}` is {found}, and takes one of its choices"),
            allowed_here(allowed),
        ));
    }
    let (takes, way) = match said(name) {
        Some(Kind::InvalidType(Actual::Map, wanted)) => {
            let wanted = plain(&format!("expected {wanted}")).replacen("expected ", "", 1);
            let way = format!("`{name} = VALUE` in [{place}], or --set {place}.{name}=VALUE");
            (wanted, way)
        }
        Some(Kind::MissingField(key)) => {
            let table = format!("{place}.{name}");
            let way = format!("[{table}] with `{key}` in it, or --set {table}.{key}=VALUE");
            ("a table".to_owned(), way)
        }
        _ => {
            let table = format!("{place}.{name}");
            let way = format!("[{table}] with its keys, or --set {table}={{}} for their defaults");
            ("a table".to_owned(), way)
        }
    };
    Some((
        format!("the choice `{name}` for `{place}` takes {takes}, and its name stands there alone"),
        format!("\n  write {way}{}", allowed_here(allowed)),
    ))
}

fn no_keys(name: &str, place: &str) -> (String, String) {
    let message = format!("the choice `{name}` for `{place}` has no keys");
    (message, format!("\n  write its name alone, as in --set {place}={name}"))
}

/// What is wrong with a number that cannot be read, as it ends the sentence that names it; none with any other text.
/// `most` is the largest whole number.
fn beyond(text: &str, most: u64) -> Option<String> {
    let number = text.trim().replace('_', "");
    let digits = number.strip_prefix(['+', '-']).unwrap_or(&number);
    if !digits.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let whole = digits.bytes().all(|byte| byte.is_ascii_digit());
    match (whole, number.starts_with('-')) {
        (true, true) if number.parse::<i64>().is_err() => {
            Some(format!("too small: whole numbers are at least {}", i64::MIN))
        }
        (true, false) if !digits.parse::<u64>().is_ok_and(|number| number <= most) => {
            Some(format!("too large: whole numbers are at most {most}"))
        }
        (false, _) if number.parse::<f64>().is_ok_and(f64::is_infinite) => {
            Some(format!("out of range: numbers lie from {:e} to {:e}", f64::MIN, f64::MAX))
        }
        _ => None,
    }
}

/// Serde's message in our words, with the nearest allowed name.
fn explain(message: &str) -> (String, String) {
    // TOML has a message of its own for a key that is written twice, so this one has two names.
    let twice = OTHER_NAMES.into_iter().find(|(.., name)| {
        message.strip_prefix("duplicate field").is_some_and(|rest| rest.contains(*name))
    });
    if let Some((table, other, name)) = twice {
        return (both_names(table, other, name), "\n  leave out one of them".to_owned());
    }
    // And one for keys that a choice with keys of its own does not have.
    let other = message.trim().strip_prefix("unexpected keys in table: ");
    if let Some((found, allowed)) = other.and_then(|rest| rest.split_once(", available keys: ")) {
        let allowed: Vec<&str> = allowed.split(", ").collect();
        return unknown("key", found.split(", ").next().unwrap_or(found), &allowed);
    }
    if message == "expected empty table" {
        let way = "\n  write its name alone, as in labels = \"last\"";
        return ("this choice has no keys".to_owned(), way.to_owned());
    }
    let kinds = [("unknown field", "key"), ("unknown variant", "choice")];
    let found =
        kinds.iter().find_map(|(text, kind)| message.strip_prefix(text).map(|rest| (kind, rest)));
    let Some((kind, rest)) = found else {
        return (plain(message), String::new());
    };
    // Names stand in backticks: first the unknown one, then those that are allowed.
    let names: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
    match names.split_first() {
        Some((name, allowed)) => unknown(kind, name, allowed),
        None => (plain(message), String::new()),
    }
}

fn unknown(kind: &str, name: &str, allowed: &[&str]) -> (String, String) {
    let nearest = nearest(name, allowed.iter().copied());
    let suggestion = nearest.map_or(String::new(), |name| format!("\n  did you mean `{name}`?"));
    (format!("unknown {kind} `{name}`"), suggestion + &allowed_here(allowed))
}

fn allowed_here(names: &[&str]) -> String {
    let mut sorted = names.to_vec();
    sorted.sort_unstable();
    let list = if sorted.is_empty() { "none".to_owned() } else { sorted.join(", ") };
    format!("\n  allowed here: {list}")
}

/// A message without the names of Rust's types.
fn plain(message: &str) -> String {
    let types = [
        // Which of them a key takes is said by whoever checks it.
        ("expected u64", "expected a whole number that is not negative"),
        ("expected u32", "expected a whole number from 0 to 4294967295"),
        ("expected usize", "expected a whole number that is not negative"),
        ("expected i64", "expected a whole number"),
        ("expected f64", "expected a number"),
        ("expected a boolean", "expected true or false"),
        ("expected a sequence", "expected a list"),
        ("invalid value signed int", "invalid value"),
        ("invalid value unsigned int", "invalid value"),
        ("invalid value: integer", "invalid value:"),
    ];
    let text =
        types.iter().fold(message.trim().to_owned(), |text, (from, to)| text.replace(from, to));
    if text.contains("exactly 1 element") {
        return "the table takes exactly one of its choices, such as [split.time], [labels.majority] or [model.bilstm-mae]; leave the whole table out for the default".to_owned();
    }
    // `expected struct DataConfig`, `expected struct variant Labels::Majority`, `expected enum ModelConfig`: names that
    // nobody wrote.
    ["expected struct ", "expected enum "].iter().fold(text, |text, before| {
        match text.split_once(before) {
            Some((start, rest)) => {
                let rest = rest.strip_prefix("variant ").unwrap_or(rest);
                let is_of_name = |c: char| c.is_alphanumeric() || c == ':';
                let end = rest.find(|c: char| !is_of_name(c)).unwrap_or(rest.len());
                let what = if before.contains("enum") {
                    "expected one of its choices"
                } else {
                    "expected a table"
                };
                format!("{start}{what}{}", &rest[end..])
            }
            None => text,
        }
    })
}

#[cfg(test)]
mod tests {
    use crate::layers::tests::message;

    #[test]
    fn what_stands_twice_is_named_with_the_way_out() {
        let said = |text: &str| message(text, &[], &[]);
        let table = said("[run]\nseed = 1\n[window]\nlength = 5\n[run]\nprecision = \"bf16\"\n");
        assert!(table.starts_with("folder/a.toml:5:2: the table [run] stands"), "{table}");
        assert!(table.contains("a second time, first in line 1\n"), "{table}");
        assert!(table.contains("as with --set run.KEY=VALUE"), "{table}");
        let inner = said("[data.checks]\ngaps = \"split\"\n[data.checks]\n");
        assert!(inner.contains("the table [data.checks] stands there a second time"), "{inner}");
        let key = said("[run]\nseed = 1\nseed = 2\n");
        assert!(key.starts_with("folder/a.toml:3:1: the key `seed` stands there"), "{key}");
    }

    #[test]
    fn a_value_in_place_of_a_table_is_told_with_its_keys() {
        let found = "found float `0.6`, expected a table for `labels.majority`";
        let said = message("", &[], &["labels.majority=0.6"]);
        assert!(said.contains(found), "{said}");
        let way = "name its keys, in a table [labels.majority] or as with --set labels.majority.share=VALUE\n  allowed here: share";
        assert!(said.contains(way), "{said}");
        let said = message("labels.majority = 0.6\n", &[], &[]);
        assert!(said.starts_with("folder/a.toml:1:19: "), "{said}");
        assert!(said.contains("`0.6`, expected a table\n") && said.contains(way), "{said}");
        let said = message("[split]\ntime = 0.2\n", &[], &[]);
        let keys = "--set split.time.validation=VALUE\n  allowed here: gap, test, validation";
        assert!(said.contains(keys) && !said.contains("SplitRule"), "{said}");
        let said = message("", &[], &["data.interval=60"]);
        assert!(
            said.contains("expected a number and a unit in quotes, such as \"1min\""),
            "{said}"
        );
    }

    #[test]
    fn an_unknown_key_of_a_choice_is_told_with_the_nearest() {
        for (text, place) in [
            ("[split.time]\ntst = 0.2\n", "folder/a.toml:2:1"),
            ("[split.time]\ntest = 0.1\ntst = 0.2\n", "folder/a.toml:"),
        ] {
            let message = message(text, &[], &[]);
            let told =
                message.contains("unknown key `tst`\n  did you mean `test`?\n  allowed here: ");
            assert!(told && message.contains(place) && message.contains("validation"), "{message}");
        }
        let message = message("", &[], &["labels.forward.horizn=3"]);
        assert!(message.contains("did you mean `horizon`?"), "{message}");
    }
}
