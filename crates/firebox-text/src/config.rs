//! What a person decides about learning from texts: `[text]` and `[model.bert]`.

use std::path::PathBuf;

use firebox_models::{Pooling, TextEncoderConfig};
use serde::{Deserialize, Serialize};

use crate::{TextError, WordPieceTraining};

/// The heads: `[text.heads]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TextHeads {
    /// How the vectors of a text's tokens become one.
    pub pooling: Pooling,
    /// Probability of dropout before each head, `0 ≤ p < 1`.
    pub dropout: f64,
}

impl Default for TextHeads {
    fn default() -> Self {
        Self { pooling: Pooling::Cls, dropout: 0.1 }
    }
}

/// How the losses of the heads are put together: `[text.loss]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TextLossConfig {
    /// Weight of the labels' loss, 0 or more.
    pub criteria: f64,
    /// Weight of the evidence's loss, 0 or more; without columns of evidence there is none.
    pub span: f64,
    /// Whether each label's ones weigh as much as its zeros, by their numbers in training (at most
    /// 20 times).
    pub balance: bool,
}

impl Default for TextLossConfig {
    fn default() -> Self {
        Self { criteria: 1.0, span: 1.0, balance: false }
    }
}

/// How texts are divided: `[text.split]`. Texts that are equal but for case and space, and texts of
/// one group, stay together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TextSplit {
    /// Share of the texts that thresholds and the best epoch are chosen by.
    pub validation: f64,
    /// Share of the texts that are tested on; where a table of test texts is given, none. Without one, above 0.
    pub test: f64,
    /// Seed of the division.
    pub seed: u64,
}

impl Default for TextSplit {
    fn default() -> Self {
        Self { validation: 0.15, test: 0.2, seed: 1337 }
    }
}

/// The encoder to begin with: `[text.encoder]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EncoderSource {
    /// Folder of a Hugging Face model to begin with. None: `[model.bert]`, from scratch.
    pub folder: Option<PathBuf>,
    /// Probability of dropout within it, in place of what its config.json says.
    pub dropout: Option<f64>,
}

/// `[model.bert]`: an encoder of BERT's form that is trained from scratch. Its vocabulary and its
/// positions follow from `[text]`. The defaults are
/// half as wide as the smallest published BERT.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BertFromScratch {
    /// Numbers of a token within the model; a multiple of the heads.
    pub width: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Encoder layers.
    pub layers: usize,
    /// Units of each layer's feed-forward network.
    pub feedforward: usize,
    /// Probability of dropout on embeddings and before each residual sum, `0 ≤ p < 1`.
    pub dropout: f64,
    /// Probability of dropout on the probabilities of attention, `0 ≤ p < 1`.
    pub attention_dropout: f64,
}

impl Default for BertFromScratch {
    fn default() -> Self {
        Self {
            width: 64,
            heads: 2,
            layers: 2,
            feedforward: 256,
            dropout: 0.1,
            attention_dropout: 0.1,
        }
    }
}

impl BertFromScratch {
    /// The encoder for so many tokens in a vocabulary and, at most, in a text.
    pub fn encoder(&self, vocabulary: usize, positions: usize) -> TextEncoderConfig {
        TextEncoderConfig {
            vocabulary,
            positions,
            segments: 0,
            width: self.width,
            heads: self.heads,
            layers: self.layers,
            feedforward: self.feedforward,
            dropout: self.dropout,
            attention_dropout: self.attention_dropout,
            ..TextEncoderConfig::default()
        }
    }
}

/// Checks what the schema cannot.
///
/// # Errors
/// The first setting that is out of its range.
pub fn check_settings(
    longest: usize,
    split: &TextSplit,
    loss: &TextLossConfig,
    heads: &TextHeads,
    encoder: &EncoderSource,
    tokenizer: &WordPieceTraining,
) -> Result<(), TextError> {
    let wrong = |key: &str, found: String, allowed: &str| {
        Err(TextError::Texts(format!("`text.{key}` is {found}; it must be {allowed}")))
    };
    if longest < 4 {
        return wrong("longest", longest.to_string(), "at least 4 tokens");
    }
    for (key, share) in [("split.validation", split.validation), ("split.test", split.test)] {
        if !(0.0..1.0).contains(&share) {
            return wrong(key, share.to_string(), "at least 0 and below 1");
        }
    }
    if split.validation + split.test >= 1.0 {
        let found = format!("{} beside split.test = {}", split.validation, split.test);
        return wrong("split.validation", found, "so small that texts are left to train on");
    }
    for (key, weight) in [("loss.criteria", loss.criteria), ("loss.span", loss.span)] {
        if !(weight >= 0.0 && weight.is_finite()) {
            return wrong(key, weight.to_string(), "0 or more, and finite");
        }
    }
    if loss.criteria + loss.span == 0.0 {
        return wrong(
            "loss.criteria",
            "0 beside loss.span = 0".to_owned(),
            "above 0, or the other",
        );
    }
    let rates = [("heads.dropout", Some(heads.dropout)), ("encoder.dropout", encoder.dropout)];
    for (key, rate) in rates {
        if rate.is_some_and(|rate| !(0.0..1.0).contains(&rate)) {
            return wrong(key, rate.unwrap_or_default().to_string(), "at least 0 and below 1");
        }
    }
    if encoder.folder.is_none() && encoder.dropout.is_some() {
        return wrong(
            "encoder.dropout",
            "set without encoder.folder".to_owned(),
            "left out: `model.bert.dropout` is that of an encoder trained from scratch",
        );
    }
    if encoder.folder.is_some() && *tokenizer != WordPieceTraining::default() {
        return wrong(
            "tokenizer",
            "set beside encoder.folder".to_owned(),
            "left out: the folder has a tokenizer",
        );
    }
    tokenizer.check()
}
