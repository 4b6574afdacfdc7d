//! The layer of the environment: which variables are settings of a pipeline, and which were meant to be.

use firebox_core::{nearest, nearest_by};

use super::ConfigError;
use super::setting::Setting;

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

/// The settings among these variables, in the order of their names.
pub(super) fn of_environment(
    environment: &[(String, String)],
) -> Result<Vec<Setting>, ConfigError> {
    let mut settings = Vec::new();
    for (name, value) in environment {
        if is_no_setting(name) {
            continue;
        }
        let Some(path) = name.strip_prefix("FIREBOX_") else {
            refuse_small_letters(name)?;
            continue;
        };
        let path = key_of(path);
        refuse_unknown(name, &path)?;
        let (layer, value) = (format!("environment variable {name}"), value.clone());
        settings.push(Setting { layer, path, value });
    }
    settings.sort();
    Ok(settings)
}

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

fn after_prefix(name: &str) -> &str {
    name.strip_prefix("FIREBOX_").unwrap_or(name)
}

/// A variable that begins like a setting and is none was meant to be one.
fn refuse_unknown(name: &str, path: &str) -> Result<(), ConfigError> {
    let first = path.split('.').next().unwrap_or_default();
    if TOP.contains(&first) {
        return Ok(());
    }
    let others = NO_SETTINGS.iter().copied().filter(|known| !known.ends_with('_'));
    let variables: Vec<String> =
        TOP.iter().map(|top| format!("FIREBOX_{}", top.to_uppercase())).collect();
    let known: Vec<&str> = variables.iter().map(String::as_str).chain(others).collect();
    // Most often, one underscore stands for two.
    let single =
        TOP.iter().find_map(|top| Some((*top, path.strip_prefix(top)?.strip_prefix('_')?)));
    let misspelt = || {
        let (table, key) = path.split_once('.')?;
        Some((nearest(table, TOP)?, key))
    };
    let meant = match single.or_else(misspelt) {
        Some((table, key)) => {
            Some(format!("FIREBOX_{table}{NESTING}{}", key.replace('.', NESTING)).to_uppercase())
        }
        // All begin alike, which says nothing.
        None => nearest_by(after_prefix(name), known, after_prefix).map(str::to_owned),
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

#[cfg(test)]
mod tests {
    use crate::layers::tests::{message, read};

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
}
