//! `[text]`: which texts are learnt from, and how.

use std::path::PathBuf;

use firebox_data::TextColumns;
use firebox_remote::is_remote;
use firebox_text::{
    EncoderSource, TextHeads, TextLossConfig, TextSplit, WordPieceTraining, check_settings,
};
use serde::{Deserialize, Serialize};

use crate::config::unused;
use crate::error::PipelineError;
use crate::keys::json;
use crate::unread::only_evaluates_by;
use crate::{ModelConfig, PipelineConfig};

/// What the file of a generated sample ends with.
pub(crate) const SAMPLE: &str = ".texts.toml";

/// Texts with labels, and how an encoder learns from them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TextConfig {
    /// A table of texts (.csv .tsv .parquet .arrow .jsonl), or settings of generated ones
    /// (.texts.toml).
    pub path: PathBuf,
    /// A table of test texts with the same labels. None: they are drawn from `path`.
    pub test: Option<PathBuf>,
    /// What the columns of the tables mean.
    pub columns: TextColumns,
    /// How the texts are divided.
    pub split: TextSplit,
    /// Tokens of a text, at most, those around it among them; what is longer loses its end, and is
    /// counted.
    pub longest: usize,
    /// The vocabulary that is made from the training texts where no encoder is given.
    pub tokenizer: WordPieceTraining,
    /// The encoder to begin with.
    pub encoder: EncoderSource,
    /// The heads.
    pub heads: TextHeads,
    /// How their losses are put together.
    pub loss: TextLossConfig,
}

impl Default for TextConfig {
    fn default() -> Self {
        Self {
            path: PathBuf::new(),
            test: None,
            columns: TextColumns::default(),
            split: TextSplit::default(),
            longest: 128,
            tokenizer: WordPieceTraining::default(),
            encoder: EncoderSource::default(),
            heads: TextHeads::default(),
            loss: TextLossConfig::default(),
        }
    }
}

impl TextConfig {
    /// Whether the texts say where labels hold.
    pub(super) fn has_evidence(&self) -> bool {
        self.is_sample() || self.columns.span.is_some()
    }

    /// Whether the texts are generated.
    pub(crate) fn is_sample(&self) -> bool {
        self.path.to_string_lossy().ends_with(SAMPLE)
    }

    /// Every path.
    pub(crate) fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let given = Some(&mut self.path).filter(|path| !path.as_os_str().is_empty());
        given.into_iter().chain(&mut self.test).chain(&mut self.encoder.folder)
    }

    /// The split, as a plan says it.
    pub(crate) fn split_in_words(&self) -> String {
        let TextSplit { validation, test, seed } = self.split;
        let test = if self.test.is_some() { "as given".to_owned() } else { test.to_string() };
        format!(
            "texts (validation {validation}, test {test}, seed {seed}): equal texts and those of one \
             group stay in one part"
        )
    }
}

/// Keys of `[evaluate]` that labels and evidence are measured by.
pub(super) const EVALUATES_BY: [&str; 4] = ["seed", "confidence", "resamples", "batch_size"];

/// The table `[text]`, and nothing beside it that the pipeline `text` does not read.
pub(super) fn check(config: &PipelineConfig) -> Result<(), PipelineError> {
    let text = table(config)?;
    let setting = |message: &str| Err(PipelineError::Setting(message.to_owned()));
    if text.path.as_os_str().is_empty() {
        return setting(
            "no texts are named: set `text.path` to a table, or to ../data/sample.texts.toml",
        );
    }
    check_local(text)?;
    let real = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
    if text.test.as_ref().is_some_and(|test| real(test) == real(&text.path)) {
        return setting(
            "`text.test` is the file of `text.path`: every test text would be trained on\n  leave \
             text.test out, and text.split.test draws the test texts, or name another table",
        );
    }
    if text.is_sample() && (text.columns != TextColumns::default() || text.test.is_some()) {
        return setting(
            "`text.path` names generated texts, which know their columns and have no table of test \
             texts\n  leave out [text.columns] and text.test",
        );
    }
    let TextConfig { split, longest, tokenizer, encoder, heads, loss, .. } = text;
    check_settings(*longest, split, loss, heads, encoder, tokenizer)?;
    if split.test == 0.0 && text.test.is_none() {
        return setting(
            "`text.split.test` is 0, and `text.test` names no table of test texts: there would be nothing to \
             measure on\n  set text.split.test = 0.2, or name a table of test texts in text.test",
        );
    }
    let evidence = text.has_evidence();
    if !evidence && loss.criteria == 0.0 {
        return setting(
            "`text.loss.criteria` is 0, and without `text.columns.span` there is no evidence either: \
             nothing would be learnt\n  leave text.loss.criteria out, or name the columns of evidence",
        );
    }
    if !evidence && loss.span != TextLossConfig::default().span {
        return setting(
            "`text.loss.span` is set, and without `text.columns.span` there is no evidence to weigh\n  \
             leave text.loss.span out, or name the columns of evidence",
        );
    }
    nothing_unused(config)?;
    match (&config.model, &encoder.folder) {
        (ModelConfig::Bert(_), Some(_)) => setting(
            "[model.bert] is set beside `text.encoder.folder`, whose config.json says what the \
             encoder is\n  leave one of them out; `text.encoder.dropout` changes its dropout",
        ),
        (ModelConfig::Bert(model), None) => Ok(model.encoder(64, *longest).validate()?),
        _ if json(&config.model) == json(&ModelConfig::default()) => Ok(()),
        _ => Err(unused("text", "model.bilstm-mae")),
    }
}

/// Refuses URLs: nothing fetches what they name.
fn check_local(text: &TextConfig) -> Result<(), PipelineError> {
    let named = [
        ("path", Some(&text.path)),
        ("test", text.test.as_ref()),
        ("encoder.folder", text.encoder.folder.as_ref()),
    ];
    let mut named = named.into_iter().filter_map(|(key, path)| Some((key, path?)));
    match named.find(|(_, path)| is_remote(path)) {
        None => Ok(()),
        Some((key, path)) => Err(PipelineError::Setting(format!(
            "`text.{key}` is {}, and texts and their encoders are read from files alone\n  download it, and name \
             the copy",
            path.display()
        ))),
    }
}

pub(super) fn table(config: &PipelineConfig) -> Result<&TextConfig, PipelineError> {
    config.text.as_ref().ok_or_else(|| {
        PipelineError::Setting(
            "the pipeline `text` needs a table [text] with the path of the texts".to_owned(),
        )
    })
}

fn nothing_unused(config: &PipelineConfig) -> Result<(), PipelineError> {
    let default = PipelineConfig::default();
    only_evaluates_by(config, &EVALUATES_BY)?;
    let pairs = [
        ("data", json(&config.data), json(&default.data)),
        ("run.fetch", json(&config.run.fetch), json(&default.run.fetch)),
        ("window", json(&config.window), json(&default.window)),
        ("labels", json(&config.labels), json(&default.labels)),
        ("split", json(&config.split), json(&default.split)),
        ("augment", json(&config.augment), json(&default.augment)),
    ];
    match pairs.iter().find(|(_, found, default)| found != default) {
        Some((table, ..)) => Err(unused("text", table)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    #[test]
    fn urls_are_refused_with_their_key_and_the_way_out() {
        let url = || PathBuf::from("https://host/texts.csv");
        let said = |text: TextConfig| {
            let text = Some(text);
            let config = PipelineConfig { pipeline: Kind::Text, text, ..PipelineConfig::default() };
            check(&config).unwrap_err().to_string()
        };
        let path = said(TextConfig { path: url(), ..TextConfig::default() });
        assert!(path.starts_with("`text.path` is https://host/texts.csv, and texts"), "{path}");
        assert!(path.ends_with("download it, and name the copy"), "{path}");
        let text = || TextConfig { path: "a.csv".into(), ..TextConfig::default() };
        let test = said(TextConfig { test: Some(url()), ..text() });
        assert!(test.starts_with("`text.test` is https:"), "{test}");
        let encoder = EncoderSource { folder: Some(url()), ..EncoderSource::default() };
        let encoder = said(TextConfig { encoder, ..text() });
        assert!(encoder.starts_with("`text.encoder.folder` is https:"), "{encoder}");
    }

    #[test]
    fn a_split_without_test_texts_needs_a_table_of_them() {
        let mut config = PipelineConfig { pipeline: Kind::Text, ..PipelineConfig::default() };
        let text = TextConfig { path: "a.csv".into(), ..TextConfig::default() };
        config.text = Some(TextConfig { split: TextSplit { test: 0.0, ..text.split }, ..text });
        let said = check(&config).unwrap_err().to_string();
        assert!(said.contains("`text.split.test` is 0") && said.contains("text.test"), "{said}");
        if let Some(text) = &mut config.text {
            text.test = Some("test.csv".into());
        }
        check(&config).unwrap();
    }
}
