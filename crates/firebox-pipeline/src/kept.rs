//! What a run leaves to be used later: the trained model with its card, in `runs/<id>/model/`.
//!
//! A chain calls [`Run::keep_model`] once its scores are known. Using the model is in `apply`.

use std::path::{Path, PathBuf};

use firebox_cache::CacheError;
use firebox_core::{Channel, ForecastScaler, Normaliser, WindowRule};
use firebox_data::Ingested;
use firebox_export::{
    Architecture, CARD, CARD_VERSION, ModelCard, SavedModel, TOKENIZER, Task, TextInput, WEIGHTS,
};
use firebox_models::Parameter;
use serde_json::Value;

use crate::PipelineConfig;
use crate::chain::Work;
use crate::error::PipelineError;
use crate::prepared::find_run;
use crate::stages::{Run, Windows, name_of};

/// Folder of the trained model within that of its run.
pub(crate) const MODEL: &str = "model";

/// Folder of the models of a run that has several, each in a folder of its own below it.
pub(crate) const MODELS: &str = "models";

/// Tables and keys that say where and how a run went, and did not shape its model.
const NOT_SHAPING: [&str; 10] = [
    "run.directory",
    "run.cache",
    "run.fetch",
    "run.device",
    "monitor",
    "search",
    "data",
    "text.path",
    "text.test",
    "text.encoder.folder",
];

/// What a chain knows of what it trained.
pub(crate) struct Kept<'a> {
    pub(crate) task: Task,
    pub(crate) architecture: Architecture,
    pub(crate) parameters: Vec<Parameter>,
    /// Names of the classes or labels, for a model that tells some.
    pub(crate) classes: &'a [String],
    /// One line on what was trained.
    pub(crate) trained: &'a str,
    pub(crate) scores: Vec<(String, f64)>,
    /// What was scored, where it is not this model by itself.
    pub(crate) scores_of: String,
    pub(crate) shown: Shown,
}

/// What a model is shown, and what its outputs mean where they are no classes.
pub(crate) struct Shown {
    /// Channels of the data.
    pub(crate) channels: Vec<Channel>,
    /// Names of those that its files have beside these.
    pub(crate) left_out: Vec<String>,
    /// Time between two steps, in microseconds.
    pub(crate) interval: Option<i64>,
    /// Of the channels that the model sees.
    pub(crate) normaliser: Normaliser,
    pub(crate) window: WindowRule,
    pub(crate) forecast: Option<ForecastScaler>,
    /// With the content of `tokenizer.json`.
    pub(crate) texts: Option<(TextInput, String)>,
}

impl Shown {
    /// Windows of all channels.
    ///
    /// # Errors
    ///
    /// As [`series`](Self::series).
    pub(crate) fn windows(run: &Run<'_>, windows: &Windows) -> Result<Self, PipelineError> {
        Self::series(run, &windows.ingested, windows.normaliser.clone())
    }

    /// Windows of series, by this normalisation.
    ///
    /// # Errors
    ///
    /// If the series were lost while they were read: what was trained and measured is not believed.
    pub(crate) fn series(
        run: &Run<'_>,
        ingested: &Ingested,
        normaliser: Normaliser,
    ) -> Result<Self, PipelineError> {
        ingested.set.check_read().map_err(CacheError::Lost)?;
        Ok(Self {
            channels: ingested.set.channels().to_vec(),
            left_out: ingested.checks.left_out().map(str::to_owned).collect(),
            interval: ingested.checks.interval.map(|interval| interval.microseconds()),
            normaliser,
            window: run.config.window.rule(),
            forecast: None,
            texts: None,
        })
    }

    /// Texts.
    pub(crate) fn texts(input: TextInput, tokenizer: String) -> Self {
        Self {
            channels: vec![],
            left_out: vec![],
            interval: None,
            normaliser: Normaliser::of_nothing(),
            window: WindowRule { length: input.longest, stride: 1, whole: true },
            forecast: None,
            texts: Some((input, tokenizer)),
        }
    }
}

/// Scores by names that may be written down.
pub(crate) fn named(scores: &[(&'static str, f64)]) -> Vec<(String, f64)> {
    scores.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

impl Run<'_> {
    /// Writes the trained model into the run's folder, where it is found when it is to be used.
    pub(crate) fn keep_model(&self, work: &Work<'_>, kept: Kept<'_>) -> Result<(), PipelineError> {
        self.keep_model_in(work, kept, Path::new(MODEL))
    }

    /// Writes a trained model into a folder within that of the run.
    pub(crate) fn keep_model_in(
        &self,
        work: &Work<'_>,
        kept: Kept<'_>,
        folder: &Path,
    ) -> Result<(), PipelineError> {
        let Shown { channels, left_out, interval, normaliser, window, forecast, texts } =
            kept.shown;
        let (texts, tokenizer) = texts.unzip();
        let mut data = serde_json::to_value(&self.config.data).unwrap_or_default();
        ["path", "test"].iter().for_each(|path| remove(&mut data, path));
        let finite = kept.scores.into_iter().filter(|(_, value)| value.is_finite());
        let card = ModelCard {
            version: CARD_VERSION,
            run: name_of(work.path),
            firebox: env!("CARGO_PKG_VERSION").to_owned(),
            task: kept.task,
            architecture: kept.architecture,
            precision: self.config.run.precision,
            channels,
            left_out,
            classes: kept.classes.to_vec(),
            window,
            interval,
            normaliser,
            forecast,
            texts,
            data,
            settings: shaping(self.config),
            data_key: self.keys.series,
            training_key: self.keys.training,
            trained: kept.trained.to_owned(),
            scores: finite.collect(),
            scores_of: kept.scores_of,
            weights: String::new(),
            checksum: String::new(),
        };
        let model = SavedModel { card, parameters: kept.parameters, tokenizer };
        Ok(model.write(&work.path.join(folder))?)
    }
}

/// The settings that shaped a model: those of them that its kind of pipeline reads.
fn shaping(config: &PipelineConfig) -> Value {
    let mut settings = serde_json::to_value(config).unwrap_or_default();
    let unread = config.pipeline.chain().unread(config);
    let left_out = NOT_SHAPING.into_iter().chain(unread.iter().map(String::as_str));
    left_out.for_each(|path| remove(&mut settings, path));
    settings
}

/// Removes a key such as `run.cache`.
fn remove(value: &mut Value, path: &str) {
    let (tables, key) = path.rsplit_once('.').unwrap_or(("", path));
    let mut named = tables.split('.').filter(|table| !table.is_empty());
    let table = named.try_fold(value, |value, table| value.get_mut(table));
    if let Some(Value::Object(table)) = table {
        table.remove(key);
    }
}

/// Whether a run has left its model.
pub(crate) fn is_kept(run: &Path) -> bool {
    run.join(MODEL).join(CARD).is_file()
}

/// The folder of the model that the user named: by its run, or by a folder that has a card.
pub(crate) fn find_model(named: &Path) -> Result<PathBuf, PipelineError> {
    for folder in [named.to_path_buf(), named.join(MODEL)] {
        if folder.join(CARD).is_file() {
            return Ok(folder);
        }
    }
    let run = find_run(named)?;
    if is_kept(&run) {
        return Ok(run.join(MODEL));
    }
    Err(PipelineError::Setting(format!(
        "the run {0} has no trained model in {1}: it has not ended, or an earlier version of Firebox made it\n  \
         end it, which trains nothing that was trained before: firebox run --resume {0}",
        run.display(),
        run.join(MODEL).display()
    )))
}

/// The trained model that the user named, and the files that it is read from, which no result may replace.
pub(crate) fn read_model(named: &Path) -> Result<(SavedModel, Vec<PathBuf>), PipelineError> {
    let folder = find_model(named)?;
    let files = [CARD, WEIGHTS, TOKENIZER].map(|name| folder.join(name));
    Ok((SavedModel::read(&folder)?, files.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_has_only_settings_that_its_kind_reads() {
        let shown = |pipeline: &str| -> Value { shaping(&toml::from_str(pipeline).unwrap()) };
        let keys = |table: &Value| -> Vec<String> {
            let mut keys: Vec<String> = table.as_object().unwrap().keys().cloned().collect();
            keys.sort();
            keys
        };
        let forecast = shown(
            "pipeline = 'forecast'\n[augment]\nversions = 0\n[forecast]\ntargets = ['close']\n[model.stacked-lstm]\n",
        );
        let read =
            ["evaluate", "forecast", "loader", "model", "pipeline", "run", "train", "window"];
        assert_eq!(keys(&forecast), read);
        let measured = ["batch_size", "block", "confidence", "resamples", "seed"];
        assert_eq!(keys(&forecast["evaluate"]), measured);
        let pretrain = shown("pipeline = 'pretrain'");
        assert!(!pretrain["augment"]["jitter"]["sigma"].is_null(), "{pretrain}");
        let folds = shown("pipeline = 'multitimeframe'");
        assert!(folds["augment"].is_null() && folds["model"].is_null(), "{folds}");
        assert!(folds["train"]["optimizer"]["adamw"]["learning_rate"].is_null(), "{folds}");
        let text = "pipeline = 'text'\n[text]\npath = 'a.csv'\n";
        assert!(shown(text)["model"].is_null());
        assert!(!shown(&format!("{text}[model.bert]\n"))["model"].is_null());
    }

    #[test]
    fn keys_are_removed_and_others_stay() {
        let mut value = serde_json::json!({
            "run": { "cache": "c", "seed": 1 }, "monitor": {}, "text": { "encoder": { "folder": "f", "dropout": 0 } }
        });
        NOT_SHAPING.iter().for_each(|path| remove(&mut value, path));
        let left =
            serde_json::json!({ "run": { "seed": 1 }, "text": { "encoder": { "dropout": 0 } } });
        assert_eq!(value, left);
    }
}
