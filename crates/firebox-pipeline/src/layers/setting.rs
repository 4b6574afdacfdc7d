//! One value over the file, from `--set` or from the environment: the key that it is for, and what it says.

use figment::value::{Dict, Value};
use toml::Table;

use super::ConfigError;

/// A value for a key, as a layer over the file has it. Those of the environment are laid over the file in
/// the order of these fields.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Setting {
    /// Where it stands, as errors name it.
    pub(super) layer: String,
    /// Its key after those of its tables, such as `train.epochs`.
    pub(super) path: String,
    /// The value, as it was written.
    pub(super) value: String,
}

/// What a `--set` says.
pub(super) fn of_flag(setting: &str) -> Result<Setting, ConfigError> {
    let Some((path, value)) = setting.split_once('=') else {
        return Err(ConfigError::Layer {
            layer: format!("--set {setting}"),
            message: "there is no `=` in it".to_owned(),
            hint: "\n  write --set table.key=value, for example --set train.epochs=5".to_owned(),
        });
    };
    Ok(Setting {
        layer: format!("--set {setting}"),
        path: path.trim().to_owned(),
        value: value.to_owned(),
    })
}

/// The value, within the tables that its path leads through.
pub(super) fn in_tables(path: &str, value: &str) -> Value {
    keys(path)
        .into_iter()
        .rev()
        .fold(typed(value), |value, key| Value::from(Dict::from([(key, value)])))
}

/// The keys of all values within these tables.
pub(super) fn leaves(nested: &Value) -> Vec<String> {
    let Some(table) = nested.as_dict() else { return vec![] };
    let below = |(key, value): (&String, &Value)| match leaves(value) {
        below if below.is_empty() => vec![key.clone()],
        below => below.into_iter().map(|rest| format!("{key}.{rest}")).collect(),
    };
    table.iter().flat_map(below).collect()
}

/// The table that a layer reaches into: down to where there is more than one key, or a value.
pub(super) fn innermost(nested: &Value) -> String {
    let (mut at, mut path) = (nested, vec![]);
    while let Some(table) = at.as_dict()
        && let (1, Some((key, value))) = (table.len(), table.iter().next())
        && value.as_dict().is_some()
    {
        path.push(key.as_str());
        at = value;
    }
    path.join(".")
}

/// The keys of a path such as `search.space."model.bert.width"`: a dot within quotes divides nothing.
fn keys(path: &str) -> Vec<String> {
    let (mut keys, mut key, mut quote) = (vec![], String::new(), None);
    for character in path.chars() {
        match (quote, character) {
            (None, '.') => keys.push(std::mem::take(&mut key)),
            (None, '"' | '\'') => quote = Some(character),
            (Some(open), close) if open == close => quote = None,
            _ => key.push(character),
        }
    }
    keys.push(key);
    keys
}

/// A value as TOML writes it, or else the text itself, so that strings need no quotes.
fn typed(text: &str) -> Value {
    let parsed = toml::from_str::<Table>(&format!("value = {text}")).ok();
    let value = parsed.and_then(|mut table| table.remove("value"));
    let number_or_more = value.and_then(|value| Value::serialize(value).ok());
    // TOML's whole numbers end at 2^63; seeds do not.
    let large = || text.trim().parse::<u64>().ok().map(Value::from);
    number_or_more.or_else(large).unwrap_or_else(|| Value::from(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::keys;

    #[test]
    fn quoted_keys_keep_their_dots() {
        assert_eq!(keys("train.epochs"), ["train", "epochs"]);
        let path = r#"search.space."model.stacked-lstm.hidden_1""#;
        assert_eq!(keys(path), ["search", "space", "model.stacked-lstm.hidden_1"]);
        assert_eq!(keys("a.'b.c'.d"), ["a", "b.c", "d"]);
    }
}
