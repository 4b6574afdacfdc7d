//! From text to a [`PipelineConfig`]: file, then `FIREBOX_*` environment, then `--set`.
//!
//! A later layer replaces single keys of an earlier one. Each layer is as strict as the file: an
//! unknown key or a wrong type is an error that names the layer, the place and the nearest key.

mod aliases;
mod choices;
mod environment;
mod explain;
mod paths;
mod setting;

use std::path::{Path, PathBuf};

use figment::Figment;
use figment::providers::Serialized;
use figment::value::Value;
use firebox_data::DataConfig;
use toml::Table;

use crate::PipelineConfig;
use crate::error::PipelineError;
use aliases::{own_names, own_names_of_file};
use choices::chosen;
use environment::of_environment;
use explain::{in_layer, in_pipeline};
use paths::anchor_paths;
use setting::{Setting, in_tables, innermost, leaves, of_flag};

pub(crate) use choices::CHOICES;
pub(crate) use explain::in_file;
pub(crate) use paths::PATHS;

/// The variable of the environment that says where runs lie.
pub(crate) const FOLDER_OF_RUNS: &str = "FIREBOX_RUN__DIRECTORY";

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
    let environment: Vec<_> = environment.into_iter().collect();
    parse(file, &text_of(file)?, &environment, settings)
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
    Ok(parse(Path::new(of), &text, &[], settings)?.data)
}

pub(crate) fn text_of(file: &Path) -> Result<String, ConfigError> {
    let read = std::fs::read_to_string(file);
    read.map_err(|source| ConfigError::Read { path: file.to_path_buf(), source })
}

/// [`load`] of a text. Not generic: whoever calls a generic function compiles all that it calls, and this is the reading
/// of every settings key.
pub(crate) fn parse(
    file: &Path,
    text: &str,
    environment: &[(String, String)],
    settings: &[String],
) -> Result<PipelineConfig, ConfigError> {
    let mut figment = Figment::from(Serialized::globals(table_of(file, text)?));
    let mut over = of_environment(environment)?;
    for setting in settings {
        over.push(of_flag(setting)?);
    }
    // The first layer after which a key is missing: it chose a table and left it incomplete.
    let mut incomplete = None;
    for Setting { layer, path, value } in over {
        let mut nested = in_tables(&path, &value);
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

/// The folder of runs where there is no pipeline file that would say it: what is laid over one of `[run]`, over the
/// default. All else is read, and refused, with a file.
pub(crate) fn folder_of_runs(
    environment: &[(String, String)],
    settings: &[String],
) -> Result<PathBuf, ConfigError> {
    let says = |name: &str| {
        let own = name.strip_prefix("FIREBOX_").map(str::to_lowercase);
        own.is_some_and(|own| own == "run" || own == "run__directory")
    };
    let environment = environment.iter().filter(|(name, _)| says(name));
    let is_of_run = |setting: &&String| {
        let key = setting.split_once('=').map(|(key, _)| key.trim());
        key.is_some_and(|key| key == "run" || key == "run.directory")
    };
    let settings: Vec<String> = settings.iter().filter(is_of_run).cloned().collect();
    let environment: Vec<_> = environment.cloned().collect();
    Ok(parse(Path::new(""), "", &environment, &settings)?.run.directory)
}

/// The keys that a file has with other values than `usual`, each after its tables, as `train.epochs`. What runs and searches
/// write has every key.
pub(crate) fn keys_of(text: &str, usual: &PipelineConfig) -> Vec<String> {
    let Ok(table) = toml::from_str::<Table>(text) else { return vec![] };
    let (Ok(own), Ok(usual)) = (serde_json::to_value(&table), serde_json::to_value(usual)) else {
        return vec![];
    };
    let keys = Value::serialize(table).map_or_else(|_| vec![], |all| leaves(&all));
    keys.into_iter().filter(|key| value_at(&own, key) != value_at(&usual, key)).collect()
}

fn value_at<'a>(all: &'a serde_json::Value, key: &str) -> Option<&'a serde_json::Value> {
    key.split('.').try_fold(all, |table, key| table.get(key))
}

/// The keys that are laid over a file, each with where it stands.
pub(crate) fn laid_over(
    environment: &[(String, String)],
    settings: &[String],
) -> Result<Vec<(String, String)>, ConfigError> {
    let mut all = of_environment(environment)?;
    for setting in settings {
        all.push(of_flag(setting)?);
    }
    let keys = |Setting { layer, path, value }: Setting| {
        leaves(&in_tables(&path, &value)).into_iter().map(move |key| (layer.clone(), key))
    };
    Ok(all.into_iter().flat_map(keys).collect())
}

/// The table of a file: its paths start at its folder, and its keys have their own names.
fn table_of(file: &Path, text: &str) -> Result<Table, ConfigError> {
    // The file alone is read strictly first: only this knows lines and columns.
    toml::from_str::<PipelineConfig>(text).map_err(|error| in_pipeline(file, text, &error))?;
    let mut table: Table = toml::from_str(text).map_err(|error| in_file(file, text, &error))?;
    let folder = file.parent().unwrap_or(Path::new(""));
    anchor_paths(&mut table, folder);
    own_names_of_file(&mut table);
    Ok(table)
}

fn missing_beside(layer: String, table: &str, name: &str) -> ConfigError {
    ConfigError::Layer {
        layer,
        message: format!("`{table}` also needs `{name}`"),
        hint: format!("\n  set it too, as with --set {table}.{name}=VALUE"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Kind;

    pub(super) fn read(
        text: &str,
        environment: &[(&str, &str)],
        settings: &[&str],
    ) -> Result<PipelineConfig, ConfigError> {
        let own = |(a, b): &(&str, &str)| ((*a).to_owned(), (*b).to_owned());
        let environment: Vec<_> = environment.iter().map(own).collect();
        let settings: Vec<String> = settings.iter().map(|text| (*text).to_owned()).collect();
        parse(Path::new("folder/a.toml"), text, &environment, &settings)
    }

    pub(super) fn message(text: &str, environment: &[(&str, &str)], settings: &[&str]) -> String {
        read(text, environment, settings).unwrap_err().to_string()
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
    fn whole_keys_come_from_the_environment_and_seeds_use_all_their_bits() {
        let seed = ["run.seed=18446744073709551615"];
        let environment = [("FIREBOX_LABELS", "none"), ("FIREBOX_PROGRAM", "x")];
        let config = read("labels = \"last\"\n", &environment, &seed).unwrap();
        assert_eq!((config.labels, config.run.seed), (firebox_core::Labels::None, u64::MAX));
        let config = read("", &[], &["labels.forward.horizon=5", "labels.forward.threshold=1"]);
        assert_eq!(config.unwrap().labels.horizon(), 5);
    }

    #[test]
    fn the_folder_of_runs_is_known_without_a_file() {
        let own = |text: &&str| (*text).to_owned();
        let folder = |environment: &[(&str, &str)], settings: &[&str]| {
            let environment: Vec<_> =
                environment.iter().map(|(name, value)| (own(name), own(value))).collect();
            let settings: Vec<String> = settings.iter().map(own).collect();
            folder_of_runs(&environment, &settings).unwrap().display().to_string()
        };
        assert_eq!(folder(&[], &[]), "runs");
        let environment = [("FIREBOX_RUN__DIRECTORY", "out"), ("FIREBOX_TRAIN__EPOCHS", "x")];
        assert_eq!(folder(&environment, &[]), "out");
        // What only a file can take is not looked at.
        let settings = ["train.epochs", "text.path=a.csv", " run.directory =\"in\""];
        assert_eq!(folder(&environment, &settings), "in");
        assert_eq!(folder(&[], &["run={directory='x'}"]), "x");
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
