//! From text to a [`PipelineConfig`]: file, then `FIREBOX_*` environment, then `--set`.
//!
//! A later layer replaces single keys of an earlier one. Each layer is as strict as the file: an
//! unknown key or a wrong type is an error that names the layer, the place and the nearest key.

use std::ops::Range;
use std::path::{Path, PathBuf};

use figment::Figment;
use figment::providers::Serialized;
use figment::value::{Dict, Value};
use firebox_data::DataConfig;
use toml::Table;
use toml::de::{DeTable, DeValue};

use crate::PipelineConfig;
use crate::error::PipelineError;
use crate::keys::json;

/// A pipeline that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be opened.
    #[error("cannot read the pipeline file {path}")]
    Read {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is not TOML, or has an unknown key or a value of the wrong type.
    #[error("{path}:{line}:{column}: {message}{hint}")]
    File {
        /// Its path.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong.
        message: String,
        /// The way out, as further lines; may be empty.
        hint: String,
    },
    /// A value from the environment or from `--set` does not fit.
    #[error("{layer}: {message}{hint}")]
    Layer {
        /// Where the value stands.
        layer: String,
        /// What is wrong.
        message: String,
        /// The way out, as further lines; may be empty.
        hint: String,
    },
}

/// Separates tables and keys in a variable's name. With one underscore it could not be told from
/// those in names of keys.
const NESTING: &str = "__";
/// Variables of this name that are no settings: the kernels, where a worker finds its study, what was
/// typed to start a suite, and what the tests of this workspace are told.
const NO_SETTINGS: [&str; 7] = [
    "FIREBOX_KERNELS",
    "FIREBOX_SEARCH_ADDRESS",
    "FIREBOX_TYPED",
    "FIREBOX_PROGRAM",
    "FIREBOX_SHARED_DATA",
    "FIREBOX_GOLDEN_FULL",
    "FIREBOX_TEST_",
];

/// Reads `file` and lays the `environment` and the `settings` (`a.b=value`) over it.
///
/// Relative paths in the file are taken from the file's folder, those of the other layers from the
/// working folder.
///
/// # Errors
///
/// A file that cannot be read, text that is not TOML, an unknown key, a value of the wrong type.
pub fn load(
    file: &Path,
    environment: impl IntoIterator<Item = (String, String)>,
    settings: &[String],
) -> Result<PipelineConfig, ConfigError> {
    parse(file, &text_of(file)?, environment, settings)
}

/// These settings of data with `settings` (`data.a=value`) over them. Errors name them as `of`.
pub(crate) fn of_data(
    data: DataConfig,
    of: &str,
    settings: &[String],
) -> Result<DataConfig, PipelineError> {
    let whole = PipelineConfig { data, ..PipelineConfig::default() };
    let text = toml::to_string(&whole).map_err(|error| {
        PipelineError::Setting(format!("the settings cannot be written as TOML: {error}"))
    })?;
    Ok(parse(Path::new(of), &text, [], settings)?.data)
}

pub(crate) fn text_of(file: &Path) -> Result<String, ConfigError> {
    let read = std::fs::read_to_string(file);
    read.map_err(|source| ConfigError::Read { path: file.to_path_buf(), source })
}

pub(crate) fn parse(
    file: &Path,
    text: &str,
    environment: impl IntoIterator<Item = (String, String)>,
    settings: &[String],
) -> Result<PipelineConfig, ConfigError> {
    // The file alone is read strictly first: only this knows lines and columns.
    toml::from_str::<PipelineConfig>(text).map_err(|error| in_pipeline(file, text, &error))?;
    let mut table: Table = toml::from_str(text).map_err(|error| in_file(file, text, &error))?;
    let folder = file.parent().unwrap_or(Path::new(""));
    anchor_paths(&mut table, folder);
    for (at, other, name) in OTHER_NAMES {
        let table = table.get_mut(at).and_then(toml::Value::as_table_mut);
        if let Some((table, value)) =
            table.and_then(|table| table.remove(other).map(|v| (table, v)))
        {
            table.insert(name.to_owned(), value);
        }
    }
    let mut figment = Figment::from(Serialized::globals(table));
    let mut layers = Vec::new();
    for (name, value) in environment {
        if is_no_setting(&name) {
            continue;
        }
        let Some(path) = name.strip_prefix("FIREBOX_") else {
            refuse_small_letters(&name)?;
            continue;
        };
        let path = key_of(path);
        refuse_unknown(&name, &path)?;
        layers.push((format!("environment variable {name}"), path, value));
    }
    layers.sort();
    for setting in settings {
        let Some((path, value)) = setting.split_once('=') else {
            return Err(ConfigError::Layer {
                layer: format!("--set {setting}"),
                message: "there is no `=` in it".to_owned(),
                hint: "\n  write --set table.key=value, for example --set train.epochs=5"
                    .to_owned(),
            });
        };
        layers.push((format!("--set {setting}"), path.trim().to_owned(), value.to_owned()));
    }
    // The first layer after which a key is missing: it chose a table and left it incomplete.
    let mut incomplete = None;
    for (layer, path, value) in layers {
        let mut nested = keys(&path)
            .into_iter()
            .rev()
            .fold(typed(&value), |value, key| Value::from(Dict::from([(key, value)])));
        own_names(&mut nested, &layer)?;
        for choice in CHOICES {
            figment = chosen(figment, choice, &nested, &layer)?;
        }
        let table = innermost(&nested);
        figment = figment.merge(Serialized::globals(nested));
        // Checked after each layer, so that the error names the one that broke it. What is still
        // missing may come with the next.
        match figment.extract::<PipelineConfig>() {
            Ok(_) => incomplete = None,
            Err(error) => match &error.kind {
                figment::error::Kind::MissingField(name) if incomplete.is_none() => {
                    incomplete = Some(missing_beside(layer, &table, name));
                }
                figment::error::Kind::MissingField(_) => {}
                _ => return Err(in_layer(&layer, &path, &error, &figment)),
            },
        }
    }
    let of_file = |error| in_layer(&file.display().to_string(), "", &error, &figment);
    figment.extract().map_err(|error| incomplete.unwrap_or_else(|| of_file(error)))
}

/// Tables whose key has another name: the table, that name, the key. A layer may write either, and
/// replaces what an earlier one wrote under the other.
const OTHER_NAMES: [(&str, &str, &str); 1] = [("search", "objective", "objectives")];

/// Writes keys that have two names under their own.
fn own_names(nested: &mut Value, layer: &str) -> Result<(), ConfigError> {
    let Value::Dict(_, tables) = nested else { return Ok(()) };
    for (table, other, name) in OTHER_NAMES {
        let Some(Value::Dict(_, keys)) = tables.get_mut(table) else { continue };
        let Some(value) = keys.remove(other) else { continue };
        if keys.insert(name.to_owned(), value).is_some() {
            return Err(ConfigError::Layer {
                layer: layer.to_owned(),
                message: both_names(table, other, name),
                hint: "\n  leave out one of them".to_owned(),
            });
        }
    }
    Ok(())
}

fn both_names(table: &str, other: &str, name: &str) -> String {
    format!("`{table}.{name}` stands there twice: `{table}.{other}` is another name for it")
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

/// The table that a layer reaches into: down to where there is more than one key, or a value.
fn innermost(nested: &Value) -> String {
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

fn missing_beside(layer: String, table: &str, name: &str) -> ConfigError {
    ConfigError::Layer {
        layer,
        message: format!("`{table}` also needs `{name}`"),
        hint: format!("\n  set it too, as with --set {table}.{name}=VALUE"),
    }
}

/// The tables and keys of a pipeline file.
const TOP: [&str; 18] = [
    "pipeline",
    "run",
    "data",
    "window",
    "labels",
    "split",
    "augment",
    "loader",
    "model",
    "train",
    "evaluate",
    "monitor",
    "search",
    "text",
    "finetune",
    "forecast",
    "multitimeframe",
    "pseudolabel",
];

/// The key of a setting that the rest of a variable's name says.
fn key_of(name: &str) -> String {
    name.to_lowercase().replace(NESTING, ".")
}

/// Whether a variable of this name is ours, and no setting of a pipeline.
fn is_no_setting(name: &str) -> bool {
    let is = |known: &str| known == name || (known.ends_with('_') && name.starts_with(known));
    NO_SETTINGS.iter().any(|known| is(known))
}

/// A variable that would be ours in capitals was meant to be ours.
fn refuse_small_letters(name: &str) -> Result<(), ConfigError> {
    let meant = name.to_uppercase();
    let Some(path) = meant.strip_prefix("FIREBOX_") else { return Ok(()) };
    let is_known = is_no_setting(&meant) || refuse_unknown(&meant, &key_of(path)).is_ok();
    Err(ConfigError::Layer {
        layer: format!("environment variable {name}"),
        message: "it is not read, as its name does not begin with FIREBOX_ in capitals".to_owned(),
        hint: match is_known {
            true => format!("\n  did you mean {meant}? unset it if it is not meant for Firebox"),
            false => "\n  unset it if it is not meant for Firebox".to_owned(),
        },
    })
}

/// A variable that begins like a setting and is none was meant to be one.
fn refuse_unknown(name: &str, path: &str) -> Result<(), ConfigError> {
    let first = path.split('.').next().unwrap_or_default();
    if TOP.contains(&first) {
        return Ok(());
    }
    let own = NO_SETTINGS.iter().copied().filter(|known| !known.ends_with('_'));
    let variables: Vec<String> =
        TOP.iter().map(|top| format!("FIREBOX_{}", top.to_uppercase())).collect();
    let known: Vec<&str> = variables.iter().map(String::as_str).chain(own).collect();
    // Most often, one underscore stands for two.
    let single =
        TOP.iter().find_map(|top| Some((*top, path.strip_prefix(top)?.strip_prefix('_')?)));
    let misspelt = || {
        let (table, key) = path.split_once('.')?;
        Some((nearest(table, &TOP)?, key))
    };
    let meant = match single.or_else(misspelt) {
        Some((table, key)) => {
            Some(format!("FIREBOX_{table}{NESTING}{}", key.replace('.', NESTING)).to_uppercase())
        }
        None => nearest(name, &known).map(str::to_owned),
    };
    let hint = meant.map_or(String::new(), |meant| format!("\n  did you mean {meant}?"));
    Err(ConfigError::Layer {
        layer: format!("environment variable {name}"),
        message: "it names no setting".to_owned(),
        hint: format!(
            "{hint}\n  settings are FIREBOX_TABLE__KEY (two underscores between table and key), or FIREBOX_KEY for {}",
            TOP.join(", ")
        ),
    })
}

/// Tables of which one of several may stand: naming another replaces the one before.
pub(crate) const CHOICES: [&str; 15] = [
    "split",
    "labels",
    "model",
    "train.schedule",
    "train.schedule.constant.warmup",
    "train.schedule.cosine.warmup",
    "train.schedule.plateau.warmup",
    "train.optimizer",
    "train.loss_scale",
    "train.checkpoint.keep",
    "finetune.loss",
    "forecast.loss",
    "finetune.mix",
    "search.sampler",
    "search.pruner",
];

/// Drops what an earlier layer chose where `nested` makes another choice of the same table, and
/// refuses two choices at once, as the file is refused: one of them would be taken silently.
fn chosen(
    figment: Figment,
    table: &str,
    nested: &Value,
    layer: &str,
) -> Result<Figment, ConfigError> {
    let choices = nested.find_ref(table).and_then(Value::as_dict);
    let Some(choices) = choices.filter(|choices| !choices.is_empty()) else {
        return Ok(figment);
    };
    if choices.len() > 1 {
        let names: Vec<String> = choices.keys().map(|name| format!("`{name}`")).collect();
        return Err(ConfigError::Layer {
            layer: layer.to_owned(),
            message: format!("`{table}` takes one of its choices, not {}", names.join(" and ")),
            hint: "\n  leave out all but one of them".to_owned(),
        });
    }
    // Not as a table of TOML, whose numbers cannot hold every seed.
    let Ok(mut all) = figment.extract::<Dict>() else { return Ok(figment) };
    let mut at = Some(&mut all);
    for key in table.split('.') {
        at = at.and_then(|table| match table.get_mut(key)? {
            Value::Dict(_, inner) => Some(inner),
            _ => None,
        });
    }
    let Some(found) = at else { return Ok(figment) };
    found.retain(|key, _| choices.contains_key(key));
    Ok(Figment::from(Serialized::globals(all)))
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

/// Keys whose values are paths, or for `data` lists of them.
pub(crate) const PATHS: [&str; 9] = [
    "data.path",
    "data.test",
    "finetune.encoder",
    "monitor.mlflow.to",
    "monitor.tensorboard.folder",
    "search.storage",
    "text.encoder.folder",
    "text.path",
    "text.test",
];

/// Makes the paths of a file relative to its folder: those of its keys, and those that a search may give
/// to them.
fn anchor_paths(table: &mut Table, folder: &Path) {
    for path in PATHS {
        let mut keys = path.split('.');
        let first = keys.next().and_then(|key| table.get_mut(key));
        let value = keys.fold(first, |at, key| at.and_then(|table| table.get_mut(key)));
        value.into_iter().for_each(|value| anchor(value, folder));
    }
    let space = table.get_mut("search").and_then(|search| search.get_mut("space"));
    for (key, entry) in space.and_then(toml::Value::as_table_mut).into_iter().flatten() {
        if let Some(choices) = entry.get_mut("choices").filter(|_| PATHS.contains(&key.as_str())) {
            anchor(choices, folder);
        }
        let when = entry.get_mut("when").and_then(toml::Value::as_table_mut);
        for (_, choice) in when.into_iter().flatten().filter(|(on, _)| PATHS.contains(&on.as_str()))
        {
            anchor(choice, folder);
        }
    }
}

fn anchor(value: &mut toml::Value, folder: &Path) {
    match value {
        toml::Value::Array(paths) => paths.iter_mut().for_each(|path| anchor(path, folder)),
        toml::Value::String(path) if !path.trim().is_empty() && !path.contains("://") => {
            *path = folder.join(&*path).display().to_string();
        }
        _ => {}
    }
}

/// [`in_file`] for a pipeline, whose choices are known.
fn in_pipeline(path: &Path, text: &str, error: &toml::de::Error) -> ConfigError {
    let mut said = in_file(path, text, error);
    let is_choice = |message: &str| {
        message.starts_with("invalid type: unit variant") || message == "wanted string or table"
    };
    let place = error.span().filter(|_| is_choice(error.message())).and_then(|span| {
        let keys = keys_to(DeTable::parse(text).ok()?.get_ref(), &span)?;
        of_choice(&keys, text.get(span)?)
    });
    if let (Some((what, way)), ConfigError::File { message, hint, .. }) = (place, &mut said) {
        (*message, *hint) = (what, way);
    }
    said
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
    let number = text.get(span).and_then(|found| {
        let limit = beyond(found, i64::MAX as u64)?;
        Some((format!("{found} is {limit}"), String::new()))
    });
    let (message, hint) = number.unwrap_or_else(|| explain(error.message()));
    ConfigError::File {
        path: path.to_path_buf(),
        line: before.matches('\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
        message,
        hint,
    }
}

fn floor_char_boundary(text: &str, mut offset: usize) -> usize {
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    offset
}

/// `figment` holds the layer and those before it.
fn in_layer(layer: &str, path: &str, error: &figment::Error, figment: &Figment) -> ConfigError {
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
        let inner = Value::from(Dict::from([(name.to_owned(), Value::from(Dict::new()))]));
        let table = keys
            .iter()
            .rev()
            .fold(inner, |value, key| Value::from(Dict::from([(key.clone(), value)])));
        let read = Figment::from(Serialized::globals(table)).extract::<PipelineConfig>();
        read.err().map(|error| error.kind)
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
    let nearest = nearest(name, allowed);
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
        ("expected u64", "expected a whole number of at least 0"),
        ("expected u32", "expected a whole number from 0 to 4294967295"),
        ("expected usize", "expected a whole number of at least 0"),
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
    // `expected struct DataConfig`, `expected enum ModelConfig`: names that nobody wrote.
    ["expected struct ", "expected enum "].iter().fold(text, |text, before| {
        match text.split_once(before) {
            Some((start, rest)) => {
                let end = rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len());
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

/// The allowed name that is most like the one found, if any is like it.
fn nearest<'a>(found: &str, allowed: &[&'a str]) -> Option<&'a str> {
    let score = |name: &&&str| (strsim::jaro_winkler(found, name) * 1e6) as u64;
    allowed.iter().max_by_key(score).filter(|name| score(name) > 750_000).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Kind;

    fn read(
        text: &str,
        environment: &[(&str, &str)],
        settings: &[&str],
    ) -> Result<PipelineConfig, ConfigError> {
        let environment = environment.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned()));
        let settings: Vec<String> = settings.iter().map(|text| (*text).to_owned()).collect();
        parse(Path::new("folder/a.toml"), text, environment, &settings)
    }

    fn message(text: &str, environment: &[(&str, &str)], settings: &[&str]) -> String {
        read(text, environment, settings).unwrap_err().to_string()
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

    #[test]
    fn a_later_layer_replaces_single_keys() {
        let text = "[run]\nseed = 1\n[window]\nlength = 50\nstride = 5\n";
        let environment = [
            ("FIREBOX_WINDOW__STRIDE", "7"),
            ("FIREBOX_RUN__SEED", "2"),
            ("FIREBOX_KERNELS", "avx2"),
            ("FIREBOX_TYPED", "cargo xtask bench"),
        ];
        let config = read(text, &environment, &["run.seed=3", "window.normalise=robust"]).unwrap();
        assert_eq!((config.run.seed, config.window.length, config.window.stride), (3, 50, 7));
        assert_eq!(config.window.normalise, firebox_core::Normalisation::Robust);
        assert_eq!(config.pipeline, Kind::Pretrain);
    }

    #[test]
    fn variables_in_small_letters_are_refused_and_those_of_others_are_not() {
        for (name, meant) in [
            ("firebox_train__epochs", "FIREBOX_TRAIN__EPOCHS"),
            ("Firebox_Run__Seed", "FIREBOX_RUN__SEED"),
            ("firebox_kernels", "FIREBOX_KERNELS"),
        ] {
            let said = message("", &[(name, "3")], &[]);
            assert!(said.starts_with(&format!("environment variable {name}: ")), "{said}");
            assert!(said.contains(&format!("did you mean {meant}?")), "{said}");
        }
        let others = [("train__epochs", "3"), ("fireboxes", "3"), ("FIREBOX_train__epochs", "7")];
        assert_eq!(read("", &others, &[]).unwrap().train.epochs, 7);
    }

    #[test]
    fn whole_keys_come_from_the_environment_and_seeds_use_all_their_bits() {
        let seed = ["run.seed=18446744073709551615"];
        let environment = [("FIREBOX_LABELS", "none"), ("FIREBOX_PROGRAM", "x")];
        let config = read("labels = \"last\"\n", &environment, &seed).unwrap();
        assert_eq!((config.labels, config.run.seed), (firebox_core::Labels::None, u64::MAX));
        let config = read("", &[], &["labels.forward.horizon=5", "labels.forward.threshold=1"]);
        assert_eq!(config.unwrap().labels.horizon(), 5);
    }

    #[test]
    fn another_choice_replaces_the_one_before() {
        let text = "[split.time]\nvalidation = 0.1\ntest = 0.2\n[labels.majority]\nshare = 0.5\n";
        let config =
            read(text, &[], &["split.given.validation=0.3", "split.given.seed=4", "labels=last"]);
        let config = config.unwrap();
        let given = firebox_core::SplitRule::Given { validation: 0.3, seed: 4 };
        assert_eq!(config.split, Some(given));
        assert_eq!(config.labels, firebox_core::Labels::Last);
    }

    #[test]
    fn two_choices_at_once_are_refused_in_every_layer() {
        let expected = "`train.optimizer` takes one of its choices, not `adamw` and `sgd`";
        let both = "{sgd={},adamw={}}";
        let said = [
            message("", &[], &[&format!("train.optimizer={both}")]),
            message("", &[], &[&format!("train={{optimizer={both}}}")]),
            message("", &[("FIREBOX_TRAIN__OPTIMIZER", both)], &[]),
        ];
        for said in said {
            assert!(said.contains(expected), "{said}");
        }
        let said = message("", &[], &["train.loss_scale={static=0.5,dynamic={}}"]);
        assert!(said.contains("not `dynamic` and `static`"), "{said}");
        // A table that is set as a whole replaces another choice too.
        let file = "[train.optimizer.adamw]\nlearning_rate = 0.5\n";
        let config = read(file, &[], &["train.optimizer={sgd={}}"]).unwrap();
        let sgd = firebox_train::Optimizer::Sgd(firebox_train::SgdConfig::default());
        assert_eq!(config.train.optimizer, sgd);
        let seed = ["run.seed=18446744073709551615", "train.optimizer={sgd={}}"];
        assert_eq!(read(file, &[], &seed).unwrap().train.optimizer, sgd);
        let file = "[train.schedule.cosine]\nwarmup = { steps = 5 }\n";
        let config = read(file, &[], &["train.schedule.cosine.warmup.share=0.5"]).unwrap();
        let text = serde_json::to_string(&config.train.schedule).unwrap();
        assert!(text.contains(r#""warmup":{"share":0.5}"#), "{text}");
    }

    #[test]
    fn a_key_with_two_names_is_one_key_in_every_layer() {
        let one = "[search]\nobjective = \"validation-loss\"\n";
        let two = "[search]\nobjectives = [\"validation-loss\", \"parameters\"]\n";
        let count = |text: &str, environment: &[(&str, &str)], settings: &[&str]| {
            let search = read(text, environment, settings).unwrap().search.unwrap();
            search.objectives.all().len()
        };
        let both = "[\"validation-loss\", \"parameters\"]";
        assert_eq!((count(one, &[], &[]), count(two, &[], &[])), (1, 2));
        for name in ["search.objective", "search.objectives"] {
            assert_eq!(count(one, &[], &[&format!("{name}={both}")]), 2, "{name}");
            assert_eq!(count(two, &[], &[&format!("{name}=validation-loss")]), 1, "{name}");
        }
        assert_eq!(count(one, &[], &[&format!("search={{objective={both}}}")]), 2);
        let environment = [("FIREBOX_SEARCH__OBJECTIVE", both)];
        assert_eq!(count(one, &environment, &[]), 2);
        assert_eq!(count(one, &environment, &["search.objectives=validation-loss"]), 1);
        // Within one layer nobody could tell which counts.
        let file = format!("{one}objectives = {both}\n");
        let set = format!("search={{objective=\"validation-loss\",objectives={both}}}");
        for said in [message(&file, &[], &[]), message("", &[], &[&set])] {
            let expected = "`search.objective` is another name for it\n  leave out one of them";
            assert!(said.contains(expected), "{said}");
        }
    }

    #[test]
    fn a_table_that_lacks_a_key_is_named_whole() {
        for setting in ["train.layer_decay={factor=0.5}", "train.layer_decay.factor=0.5"] {
            let said = message("", &[], &[setting]);
            assert!(said.contains("`train.layer_decay` also needs `layers`"), "{said}");
            assert!(said.contains("--set train.layer_decay.layers=VALUE"), "{said}");
        }
    }

    #[test]
    fn quoted_keys_keep_their_dots() {
        assert_eq!(keys("train.epochs"), ["train", "epochs"]);
        let path = r#"search.space."model.stacked-lstm.hidden_1""#;
        assert_eq!(keys(path), ["search", "space", "model.stacked-lstm.hidden_1"]);
        assert_eq!(keys("a.'b.c'.d"), ["a", "b.c", "d"]);
    }

    #[test]
    fn paths_of_the_file_start_at_its_folder_and_others_where_the_user_is() {
        let path = |config: PipelineConfig| serde_json::to_string(&config.data.path).unwrap();
        let text = "[data]\npath = \"bars.csv\"\n";
        assert_eq!(path(read(text, &[], &[]).unwrap()), "\"folder/bars.csv\"");
        assert_eq!(path(read(text, &[], &["data.path=x/y.csv"]).unwrap()), "\"x/y.csv\"");
        let text = "[monitor.tensorboard]\nfolder = \"tb\"\n[monitor.mlflow]\nto = \"ml\"\n";
        let trackers = |settings: &[&str]| {
            let monitor = read(text, &[], settings).unwrap().monitor;
            (monitor.tensorboard.map(|board| board.folder), monitor.mlflow.map(|mlflow| mlflow.to))
        };
        let expected = (Some(PathBuf::from("folder/tb")), Some("folder/ml".to_owned()));
        assert_eq!(trackers(&[]), expected);
        let expected = (Some(PathBuf::from("folder/tb")), Some("http://a".to_owned()));
        assert_eq!(trackers(&["monitor.mlflow.to=http://a"]), expected);
        assert_eq!(trackers(&["monitor.tensorboard=false", "monitor.mlflow=false"]), (None, None));
    }

    #[test]
    fn paths_that_a_search_chooses_among_start_where_those_of_the_file_do() {
        let text = r#"
            [search.space]
            "text.encoder.folder" = { choices = ["one", "/two", "https://three"] }
            "text.heads.pooling" = { choices = ["cls", "mean"] }
            "text.heads.dropout" = { low = 0.0, high = 0.5, when = { "text.encoder.folder" = "one" } }
        "#;
        let space = |text: &str, settings: &[&str]| {
            let entries = read(text, &[], settings).unwrap().search.unwrap().space.into_iter();
            let shown = entries.map(|(key, entry)| {
                (key, serde_json::to_string(&(entry.choices, entry.when)).unwrap())
            });
            shown.collect::<std::collections::BTreeMap<_, _>>()
        };
        let found = space(text, &[]);
        assert_eq!(found["text.encoder.folder"], r#"[["folder/one","/two","https://three"],null]"#);
        assert_eq!(found["text.heads.pooling"], r#"[["cls","mean"],null]"#);
        assert_eq!(found["text.heads.dropout"], r#"[null,{"text.encoder.folder":"folder/one"}]"#);
        let set = r#"search.space."text.encoder.folder"={choices=["one"]}"#;
        assert_eq!(space("", &[set])["text.encoder.folder"], r#"[["one"],null]"#);
    }

    #[test]
    fn errors_name_the_place_and_the_nearest_key() {
        let messages = [
            message("[train]\n  epoks = 3\n", &[], &[]),
            message("[run]\nseed = \"x\"\n", &[], &[]),
            message("[run\n", &[], &[]),
            message("", &[], &["window.lenght=3"]),
            message("", &[], &["window.length=long"]),
            message("", &[], &["window.length"]),
            message("", &[("FIREBOX_RUN__SEED", "-1")], &[]),
            message("pipeline = \"pretrian\"\n", &[], &[]),
            message("data = 3\n", &[], &[]),
            message("[split]\n", &[], &[]),
            message("[model]\n", &[], &[]),
            message("", &[], &["labels.forward.horizon=5"]),
            message("", &[("FIREBOX_PIPELINE", "zzz")], &[]),
            message("", &[("FIREBOX_TRAIN", "3")], &[]),
            message("", &[("FIREBOX_TRAIN_EPOCHS", "7")], &[]),
            message("", &[("FIREBOX_LABLES", "none")], &[]),
            message("", &[("FIREBOX_TRAN__EPOCHS", "3")], &[]),
            message("[train]\nschedule = \"cosine\"\n", &[], &[]),
            message("model = 3\n", &[], &[]),
            message("[labels.last]\nshare = 1\n", &[], &[]),
            message("[run]\nseed = 18446744073709551616\n", &[], &[]),
            message("", &[], &["train.schedule=cosine"]),
            message("", &[], &["train.loss_scale=static"]),
            message("", &[], &["labels=forward"]),
            message("", &[], &["split=true"]),
            message("", &[], &["labels.last.share=1"]),
            message("", &[], &["run.seed=18446744073709551616"]),
            message("", &[], &["window.length=-9223372036854775809"]),
            message("", &[], &["window.length=--5"]),
            message("", &[], &["train.optimizer.adamw.learning_rate=1e400"]),
        ];
        insta::assert_snapshot!("layer_errors", messages.join("\n\n"));
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in "\\PC*", setting in "\\PC*") {
            let _ = read(&text, &[], &[&setting]);
            let _ = read("", &[], &[&format!("window.length={setting}")]);
        }

        #[test]
        fn no_toml_like_text_panics(
            text in proptest::collection::vec("(\\[?[a-z.]{0,8}\\]? ?=? ?[\"0-9a-z\\[\\]{}]{0,6}\n?)", 0..12)
        ) {
            let _ = read(&text.concat(), &[], &[]);
        }
    }
}
