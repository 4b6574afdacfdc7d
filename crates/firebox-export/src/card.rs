//! What must be known of a trained model to use it without the run that made it.
//!
//! The card is written twice: as JSON for programs, and as Markdown for people. It holds no weights.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use firebox_core::{Channel, ForecastScaler, Key, Normaliser, Precision, WindowRule};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::at;
use crate::{Architecture, ExportError, numbers};

/// Version of the card's form.
pub const CARD_VERSION: u32 = 1;

/// The key of the card's own checksum.
pub(crate) const CHECKSUM: &str = "checksum";

/// What a model was trained for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// To restore hidden steps: its use is the embedding of windows.
    Pretraining,
    /// To tell classes of windows apart.
    Classification,
    /// To tell what values follow a window.
    Forecasting,
    /// To tell which labels a text has, and where it says so.
    Labelling,
}

/// How texts become what a model reads, and its scores what it says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextInput {
    /// The column of texts in the tables that were learnt from.
    pub column: String,
    /// Tokens of a text, at most, those around it among them.
    pub longest: usize,
    /// The probability from which on each label is taken to hold, chosen on validation texts.
    pub thresholds: Vec<f32>,
    /// Share of the tokens of the training texts that stand for what the vocabulary does not know; not there where it
    /// was not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<f64>,
    /// BLAKE3 of `tokenizer.json`, in hexadecimal digits. Empty until that is written.
    #[serde(default)]
    pub tokenizer: String,
}

/// What is known of a trained model beside its weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelCard {
    /// Version of this form: [`CARD_VERSION`].
    pub version: u32,
    /// Name of the run that trained it.
    pub run: String,
    /// Version of Firebox that wrote it.
    pub firebox: String,
    /// What it was trained for.
    pub task: Task,
    /// Which model it is, with its settings and sizes.
    pub architecture: Architecture,
    /// Type of the operands of products that it was trained with.
    pub precision: Precision,
    /// Channels of a window, in order.
    pub channels: Vec<Channel>,
    /// Names of channels that the files of its training have beside these, and that were left out because they never change
    /// there. New files may have them, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// Names of the classes, in the order of the logits; empty for a model that has none.
    pub classes: Vec<String>,
    /// How series are cut into windows.
    pub window: WindowRule,
    /// Time between two rows of the files, in microseconds, if they have times. Rows are the steps, unless the table
    /// `timeframes` of `data` makes these of them.
    pub interval: Option<i64>,
    /// What windows are normalised with. A forecaster may see fewer channels than the data has: those
    /// of this.
    pub normaliser: Normaliser,
    /// What is forecast, by places among the channels of the card, and the scales that bring outputs
    /// to the units of the data: of a forecaster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forecast: Option<ForecastScaler>,
    /// Of a model of texts, whose card has no channels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub texts: Option<TextInput>,
    /// The `[data]` table that the training data was read by, without its paths: what columns mean,
    /// and what is done about defects.
    pub data: Value,
    /// The settings of the run that shaped the model, every default among them.
    pub settings: Value,
    /// Key of the series that it was trained on.
    pub data_key: Key,
    /// Key of its training, which contains that of the data and all settings.
    pub training_key: Key,
    /// What was trained, in one line.
    pub trained: String,
    /// What it scored, by name.
    pub scores: BTreeMap<String, f64>,
    /// What was scored, where it is not the model of these weights by itself, such as several seeds of which it is one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub scores_of: String,
    /// BLAKE3 of the file of weights, in hexadecimal digits. Empty until that is written.
    #[serde(default)]
    pub weights: String,
    /// BLAKE3 of all else that the card says, in hexadecimal digits, however it is laid out. Empty until it is written, and
    /// in cards of earlier builds.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub checksum: String,
}

/// The checksum of a card that says this: of its values, whatever the order of its keys and the space between them.
pub(crate) fn checksum(card: &Value) -> String {
    let mut hasher = blake3::Hasher::new();
    add(card, true, &mut hasher);
    hasher.finalize().to_hex().to_string()
}

/// Adds a value to what is hashed, so that no two that differ add the same.
fn add(value: &Value, is_card: bool, hasher: &mut blake3::Hasher) {
    match value {
        Value::Object(table) => {
            let keys: BTreeMap<&String, &Value> =
                table.iter().filter(|(key, _)| !(is_card && *key == CHECKSUM)).collect();
            hasher.update(format!("{{{}:", keys.len()).as_bytes());
            for (key, value) in keys {
                hasher.update(json(key).as_bytes());
                add(value, false, hasher);
            }
        }
        Value::Array(values) => {
            hasher.update(format!("[{}:", values.len()).as_bytes());
            values.iter().for_each(|value| add(value, false, hasher));
        }
        // Some tools write `1` for `1.0`.
        Value::Number(number) if !number.is_i64() && !number.is_u64() => {
            let value = number.as_f64().unwrap_or(f64::NAN);
            let whole = value.fract() == 0.0 && value.abs() < 9e15;
            let text = if whole { (value as i64).to_string() } else { number.to_string() };
            hasher.update(format!("{text};").as_bytes());
        }
        plain => {
            hasher.update(format!("{plain};").as_bytes());
        }
    }
}

impl ModelCard {
    /// Reads a card.
    ///
    /// # Errors
    /// If there is none, or it is of another version, or says something else than when it was written.
    pub fn read(path: &Path) -> Result<Self, ExportError> {
        let bytes = std::fs::read(path).map_err(at(path))?;
        let refuse = |reason: String| ExportError::Card { path: path.to_path_buf(), reason };
        let card: Value =
            serde_json::from_slice(&bytes).map_err(|error| refuse(error.to_string()))?;
        match card.get("version").and_then(Value::as_u64) {
            Some(version) if version == u64::from(CARD_VERSION) => {}
            found => {
                let found = found.map_or("none".to_owned(), |found| found.to_string());
                return Err(refuse(format!(
                    "its version is {found}, and this build of Firebox reads {CARD_VERSION}"
                )));
            }
        }
        let sum = checksum(&card);
        let card: Self = serde_json::from_value(card).map_err(|error| refuse(error.to_string()))?;
        match card.checksum.is_empty() || card.checksum == sum {
            true => Ok(card),
            false => Err(ExportError::ChangedCard { path: path.to_path_buf() }),
        }
    }

    /// The card as named texts, for the metadata of other formats. Every name begins with
    /// `firebox.`; what is not a plain text is JSON. `interval` is the time between two steps, in microseconds; where
    /// these are made of bars that the files have, `source_interval` is that of the files, and `timeframes` says how.
    pub fn metadata(&self) -> Vec<(String, String)> {
        let mut entries = vec![
            ("run", self.run.clone()),
            ("version", self.firebox.clone()),
            ("task", json(&self.task).trim_matches('"').to_owned()),
            ("model", json(&self.architecture)),
            ("channels", json(&self.channels)),
            ("classes", json(&self.classes)),
            ("window", json(&self.window)),
            ("interval", json(&self.step())),
            ("normaliser", json(&self.normaliser)),
            ("data_key", self.data_key.to_string()),
            ("training_key", self.training_key.to_string()),
            ("precision", self.precision.to_string()),
            ("scores", json(&self.scores)),
        ];
        entries.extend((!self.scores_of.is_empty()).then(|| ("scores_of", self.scores_of.clone())));
        entries.extend(self.forecast.iter().map(|forecast| ("forecast", json(forecast))));
        entries.extend(self.texts.iter().map(|texts| ("texts", json(texts))));
        if let Some(timeframes) = self.timeframes() {
            entries.push(("timeframes", json(timeframes)));
            entries.push(("source_interval", json(&self.interval)));
        }
        entries.into_iter().map(|(name, text)| (format!("firebox.{name}"), text)).collect()
    }

    /// The card of a file that holds the encoder alone: without what only a head says, and with scores that are called
    /// those of the whole model.
    pub fn without_head(&self) -> Self {
        let mut card = Self { classes: vec![], forecast: None, ..self.clone() };
        if let Some(texts) = &mut card.texts {
            texts.thresholds.clear();
        }
        if self.task != Task::Pretraining && !self.scores.is_empty() {
            let whole = "Of the model with its head, which is not in this file.";
            card.scores_of = format!("{whole} {}", self.scores_of).trim_end().to_owned();
        }
        card
    }

    /// The card for people, in Markdown. `files` says what lies beside it and how it is used.
    pub fn markdown(&self, files: &str) -> String {
        let list = |names: &mut dyn Iterator<Item = &str>| {
            names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
        };
        let mut rows = vec![
            ("Model", format!("`{}`", self.architecture.name())),
            ("Trained for", self.purpose().to_owned()),
            ("Training", self.trained.clone()),
        ];
        let classes = list(&mut self.classes.iter().map(String::as_str));
        if let Some(TextInput { longest, thresholds, .. }) = &self.texts {
            rows.push(("Texts", format!("up to {longest} tokens")));
            if !self.classes.is_empty() {
                rows.push(("Labels, in the order of the logits", classes));
                let thresholds: Vec<String> = thresholds.iter().map(f32::to_string).collect();
                let meaning = "Probabilities from which on they hold";
                rows.push((meaning, thresholds.join(", ")));
            }
        } else {
            let seen = self.normaliser.channels().iter().map(|channel| channel.name.as_str());
            let seen = list(&mut { seen });
            if let Some(forecast) = &self.forecast {
                // What is forecast need not be seen, nor what is seen be all that the data have.
                let all = list(&mut self.channels.iter().map(|channel| channel.name.as_str()));
                let targets = forecast.rule().targets.iter();
                let targets = targets.filter_map(|target| self.channels.get(*target));
                rows.push(("Channels of the data, in order", all));
                rows.push(("Channels that the model sees, in order", seen));
                let targets = list(&mut { targets.map(|channel| channel.name.as_str()) });
                rows.push(("Channels that it forecasts", targets));
            } else {
                rows.push(("Channels, in order", seen));
            }
            rows.push(("Windows", self.windows()));
            let steps = self.most_steps().or_else(|| self.fewest_steps());
            rows.extend(steps.map(|steps| ("Steps that the model takes", steps)));
            rows.push(("Normalisation", self.normalisation()));
            if !self.classes.is_empty() {
                rows.push(("Classes, in the order of the logits", classes));
            }
        }
        if let Some(forecast) = &self.forecast {
            rows.push(("Outputs, in order", self.outputs(forecast)));
        }
        let precision = match self.precision {
            Precision::Bf16 | Precision::F16 => format!(
                "{}, which `firebox predict` computes in, too; PyTorch and ONNX compute in f32, as `firebox predict --precision f32` does",
                self.precision
            ),
            Precision::F32 | Precision::Tf32 => self.precision.to_string(),
        };
        rows.push(("Precision", precision));
        rows.push(("Key of the data", format!("`{}`", self.data_key)));
        rows.push(("Key of the training", format!("`{}`", self.training_key)));
        rows.push(("Written by", format!("Firebox {}", self.firebox)));
        let mut out = format!("# {}\n\n{files}\n\n| | |\n|---|---|\n", self.run);
        for (name, value) in rows {
            let _ = writeln!(out, "| {name} | {} |", numbers::cell(&value));
        }
        if !self.scores.is_empty() {
            out += "\n## Scores\n\n";
            if !self.scores_of.is_empty() {
                let _ = writeln!(out, "{}\n", self.scores_of);
            }
            out += "| score | value |\n|---|---|\n";
            for (name, value) in &self.scores {
                let _ = writeln!(out, "| {name} | {} |", score(*value));
            }
        }
        if let Some(timeframes) = self.timeframes() {
            out += &self.features(timeframes);
        }
        if self.texts.is_none() {
            out += &numbers::normalisation(&self.normaliser);
        }
        if let Some(forecast) = &self.forecast {
            let name = |target: &usize| self.channel_name(*target);
            let targets: Vec<String> = forecast.rule().targets.iter().map(name).collect();
            out += &numbers::outputs(forecast, &self.forecast_names(forecast), &targets);
        }
        let settings = serde_json::to_string_pretty(&self.settings).unwrap_or_default();
        let _ = write!(out, "\n## Settings\n\n```json\n{settings}\n```\n");
        out
    }

    /// Targets and horizons of a forecaster.
    fn outputs(&self, forecast: &ForecastScaler) -> String {
        let names: Vec<String> =
            self.forecast_names(forecast).into_iter().map(|name| format!("`{name}`")).collect();
        format!(
            "{}, a target and the steps after a window; what brings them to its units stands below",
            names.join(", ")
        )
    }

    /// The name of each output of a forecaster: `TARGET+STEPS`.
    pub fn forecast_names(&self, forecast: &ForecastScaler) -> Vec<String> {
        let rule = forecast.rule();
        let of = |horizon: &usize| -> Vec<String> {
            let name = |target: &usize| format!("{}+{horizon}", self.channel_name(*target));
            rule.targets.iter().map(name).collect()
        };
        rule.horizons.iter().flat_map(of).collect()
    }

    /// The name of a channel of the card, or its place where there is none.
    pub fn channel_name(&self, place: usize) -> String {
        self.channels.get(place).map_or_else(|| place.to_string(), |channel| channel.name.clone())
    }

    /// How many steps windows may have, where that is not free.
    fn most_steps(&self) -> Option<String> {
        let most = self.architecture.most_steps()?;
        Some(match self.architecture {
            Architecture::Mlp { .. } => format!("{most}, no more and no fewer"),
            _ => format!("{most} at most: it has a position for each"),
        })
    }

    /// How many steps windows must have, where one is not enough.
    fn fewest_steps(&self) -> Option<String> {
        let fewest = self.architecture.fewest_steps();
        let why = "of fewer its convolutions leave nothing, and what it says of all such windows is the same";
        (fewest > 1).then(|| format!("{fewest} at least: {why}"))
    }

    /// The settings by which the channels are made of the bars of the files, if they are.
    fn timeframes(&self) -> Option<&Value> {
        Some(&self.data["timeframes"]).filter(|timeframes| timeframes.is_object())
    }

    /// Time between two steps, in microseconds, if steps have times.
    fn step(&self) -> Option<i64> {
        match self.timeframes() {
            Some(timeframes) => microseconds(timeframes["base"].as_str()?),
            None => self.interval,
        }
    }

    /// How the channels are made of the bars of the files, by these settings.
    fn features(&self, timeframes: &Value) -> String {
        let bars = match self.interval {
            Some(micros) => format!("bars of {} s", micros as f64 / 1e6),
            None => "bars".to_owned(),
        };
        let settings = serde_json::to_string_pretty(timeframes).unwrap_or_default();
        format!(
            "\n## Features of timeframes\n\nThe channels are made of {bars}, as \"Features of timeframes\" in \
             Firebox's REFERENCE.md says, with these settings of `[data.timeframes]`:\n\n```json\n{settings}\n```\n"
        )
    }

    fn windows(&self) -> String {
        let WindowRule { length, stride, whole } = self.window;
        // Bars of longer timeframes are made of those that the files have, whose interval this is.
        let base = self.timeframes().and_then(|timeframes| timeframes["base"].as_str());
        let steps = match (base, self.interval) {
            (Some(base), _) => format!("steps of {base}"),
            (None, Some(micros)) => format!("steps of {} s", micros as f64 / 1e6),
            (None, None) => "steps without times".to_owned(),
        };
        if whole {
            // What follows is forecast from the newest.
            let last = if self.task == Task::Forecasting { "its last " } else { "" };
            return format!("one of each series, up to {last}{length} {steps}");
        }
        let every = if stride == 1 { "step".to_owned() } else { format!("{stride} steps") };
        format!("{length} {steps}, one every {every}")
    }

    /// What it was trained for, in words.
    fn purpose(&self) -> &'static str {
        match self.task {
            Task::Pretraining => "restoring hidden steps: use it as an encoder of windows",
            Task::Classification => "telling classes of windows apart",
            Task::Forecasting => "telling what values follow a window",
            Task::Labelling => match &self.architecture {
                Architecture::Text { config, .. } if !config.span => {
                    "telling which labels a text has"
                }
                _ => "telling which labels a text has, and where it says so",
            },
        }
    }

    fn normalisation(&self) -> String {
        let kind = serde_json::to_value(self.normaliser.kind()).unwrap_or_default();
        let kind = kind.as_str().unwrap_or_default().to_owned();
        format!("`{kind}`, as stated below")
    }
}

/// A length of time as settings have it, such as `15min`, in microseconds.
fn microseconds(text: &str) -> Option<i64> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[number.len()..] {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "min" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return None,
    };
    number.parse::<i64>().ok()?.checked_mul(unit)
}

/// With four decimals, unless that would leave nothing of it or all of its digits.
fn score(value: f64) -> String {
    match value.abs() {
        size if size == 0.0 || (1e-3..1e6).contains(&size) => format!("{value:.4}"),
        _ => format!("{value:.3e}"),
    }
}

/// JSON of a part of a card. Plain values: there is no map with other keys than texts to fail on.
fn json(part: &impl Serialize) -> String {
    serde_json::to_string(part).unwrap_or_default()
}
