//! What `config.json` says, as settings of Firebox's text encoder.

use std::path::{Path, PathBuf};

use firebox_models::{Activation, Disentangled, TextAttention, TextEncoderConfig, Windowed};
use serde_json::Value;

use crate::TextError;
use crate::error::json;

/// The families that are supported, for messages.
pub const SUPPORTED: &str = "bert, roberta, xlm-roberta, camembert, electra, distilbert, deberta-v2 \
                             (DeBERTa-v3 too), longformer";

/// A family of models, by how its files are named and laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// BERT, and checkpoints of its form, such as BioBERT's and ClinicalBERT's.
    Bert,
    /// RoBERTa, XLM-RoBERTa and CamemBERT: positions begin after the number of the padding token.
    Roberta,
    /// ELECTRA: vectors of tokens may be narrower than the model.
    Electra,
    /// DistilBERT: no segments, and names of its own.
    DistilBert,
    /// DeBERTa-v2 and v3: attention with terms for distances.
    DebertaV2,
    /// Longformer: attention within a window.
    Longformer,
}

impl Family {
    /// What names of the encoder's weights begin with where there are heads beside it.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Self::Bert => "bert.",
            Self::Roberta => "roberta.",
            Self::Electra => "electra.",
            Self::DistilBert => "distilbert.",
            Self::DebertaV2 => "deberta.",
            Self::Longformer => "longformer.",
        }
    }

    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "bert" => Self::Bert,
            "roberta" | "xlm-roberta" | "camembert" => Self::Roberta,
            "electra" => Self::Electra,
            "distilbert" => Self::DistilBert,
            "deberta-v2" => Self::DebertaV2,
            "longformer" => Self::Longformer,
            _ => return None,
        })
    }
}

/// A `config.json` with the place that it was read from.
struct Keys {
    path: PathBuf,
    values: Value,
}

impl Keys {
    fn refuse(&self, key: &str, allowed: impl Into<String>) -> TextError {
        let found = self.values.get(key).map_or("nothing".to_owned(), Value::to_string);
        let (path, key, allowed) = (self.path.clone(), key.to_owned(), allowed.into());
        TextError::Setting { path, key, found, allowed }
    }

    /// The value, unless it is missing or null.
    fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key).filter(|value| !value.is_null())
    }

    fn size(&self, key: &str) -> Result<usize, TextError> {
        let found = self.get(key).and_then(Value::as_u64).and_then(|v| usize::try_from(v).ok());
        found.ok_or_else(|| self.refuse(key, "a whole number of at least 0"))
    }

    fn size_or(&self, key: &str, default: usize) -> Result<usize, TextError> {
        if self.get(key).is_some() { self.size(key) } else { Ok(default) }
    }

    fn number_or(&self, key: &str, default: f64) -> Result<f64, TextError> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => value.as_f64().ok_or_else(|| self.refuse(key, "a number")),
        }
    }

    fn flag_or(&self, key: &str, default: bool) -> Result<bool, TextError> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| self.refuse(key, "true or false")),
        }
    }

    fn activation(&self, key: &str) -> Result<Activation, TextError> {
        match self.get(key).map_or(Some("gelu"), Value::as_str) {
            Some("gelu") => Ok(Activation::Gelu),
            Some("relu") => Ok(Activation::Relu),
            _ => Err(self.refuse(key, "\"gelu\" (exact) or \"relu\"")),
        }
    }

    /// An error unless the key is missing, or this.
    fn only(&self, key: &str, value: &Value) -> Result<(), TextError> {
        match self.get(key) {
            Some(found) if found != value => Err(self.refuse(key, format!("only {value}"))),
            _ => Ok(()),
        }
    }
}

/// The family and the settings of the encoder in a folder.
///
/// # Errors
/// If there is no readable `config.json`, or it describes what is not supported.
pub fn read_config(folder: &Path) -> Result<(Family, TextEncoderConfig), TextError> {
    let path = folder.join("config.json");
    let keys = Keys { values: json(&path)?, path };
    let name = keys.get("model_type").and_then(Value::as_str).unwrap_or("nothing");
    let Some(family) = Family::of(name) else {
        return Err(TextError::Family { path: keys.path.clone(), found: name.to_owned() });
    };
    keys.only("is_decoder", &Value::Bool(false))?;
    keys.only("position_embedding_type", &Value::from("absolute"))?;
    let config = match family {
        Family::DistilBert => distilbert(&keys)?,
        _ => bert(family, &keys)?,
    };
    config.validate()?;
    Ok((family, config))
}

fn bert(family: Family, keys: &Keys) -> Result<TextEncoderConfig, TextError> {
    let (layers, width) = (keys.size("num_hidden_layers")?, keys.size("hidden_size")?);
    let places = keys.size("max_position_embeddings")?;
    let offset = match family {
        Family::Roberta | Family::Longformer => keys.size_or("pad_token_id", 1)? + 1,
        _ => 0,
    };
    let positions = places
        .checked_sub(offset)
        .ok_or_else(|| keys.refuse("max_position_embeddings", format!("more than {offset}")))?;
    let embedding = keys.size_or("embedding_size", width)?;
    let segments = if family == Family::DebertaV2 { 0 } else { 2 };
    Ok(TextEncoderConfig {
        vocabulary: keys.size("vocab_size")?,
        positions,
        absolute_positions: family != Family::DebertaV2
            || keys.flag_or("position_biased_input", true)?,
        position_offset: offset,
        segments: keys.size_or("type_vocab_size", segments)?,
        embedding: (embedding != width).then_some(embedding),
        width,
        heads: keys.size("num_attention_heads")?,
        layers,
        feedforward: keys.size("intermediate_size")?,
        activation: keys.activation("hidden_act")?,
        dropout: keys.number_or("hidden_dropout_prob", 0.1)?,
        attention_dropout: keys.number_or("attention_probs_dropout_prob", 0.1)?,
        projection_dropout: None,
        // The defaults of `transformers`.
        epsilon: keys
            .number_or("layer_norm_eps", if family == Family::DebertaV2 { 1e-7 } else { 1e-12 })?,
        attention: match family {
            Family::DebertaV2 => disentangled(keys, width)?,
            Family::Longformer => windowed(keys, layers)?,
            _ => TextAttention::Full,
        },
    })
}

fn distilbert(keys: &Keys) -> Result<TextEncoderConfig, TextError> {
    Ok(TextEncoderConfig {
        vocabulary: keys.size("vocab_size")?,
        positions: keys.size("max_position_embeddings")?,
        segments: 0,
        width: keys.size("dim")?,
        heads: keys.size("n_heads")?,
        layers: keys.size("n_layers")?,
        feedforward: keys.size("hidden_dim")?,
        activation: keys.activation("activation")?,
        dropout: keys.number_or("dropout", 0.1)?,
        attention_dropout: keys.number_or("attention_dropout", 0.1)?,
        // Source: `DistilBertSelfAttention` of `transformers`.
        projection_dropout: Some(0.0),
        ..TextEncoderConfig::default()
    })
}

fn disentangled(keys: &Keys, width: usize) -> Result<TextAttention, TextError> {
    keys.only("relative_attention", &Value::Bool(true))?;
    if keys.get("relative_attention").is_none() {
        return Err(keys.refuse("relative_attention", "only true"));
    }
    keys.only("embedding_size", &Value::from(width))?;
    keys.only("conv_kernel_size", &Value::from(0))?;
    let least_one = |key: &str| keys.get(key).and_then(Value::as_u64).filter(|value| *value > 0);
    let farthest = match least_one("max_relative_positions") {
        Some(farthest) => farthest as usize,
        None => keys.size("max_position_embeddings")?,
    };
    // A list, or one text with bars between its parts.
    let parts: Vec<&str> = match keys.get("pos_att_type") {
        None => vec![],
        Some(Value::String(text)) => text.split('|').map(str::trim).collect(),
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
        Some(_) => return Err(keys.refuse("pos_att_type", "a list of \"c2p\" and \"p2c\"")),
    };
    if let Some(other) = parts.iter().find(|part| !["c2p", "p2c"].contains(part)) {
        return Err(keys.refuse("pos_att_type", format!("a list of c2p and p2c, not {other}")));
    }
    let norm = keys.get("norm_rel_ebd").and_then(Value::as_str).unwrap_or("none");
    Ok(TextAttention::Disentangled(Disentangled {
        farthest,
        buckets: least_one("position_buckets").unwrap_or(0) as usize,
        content_to_position: parts.contains(&"c2p"),
        position_to_content: parts.contains(&"p2c"),
        shared_projection: keys.flag_or("share_att_key", false)?,
        normalised: norm.split('|').any(|part| part.trim() == "layer_norm"),
    }))
}

fn windowed(keys: &Keys, layers: usize) -> Result<TextAttention, TextError> {
    let refuse = || keys.refuse("attention_window", "an even number, or one for each layer");
    let windows: Vec<u64> = match keys.get("attention_window") {
        None => vec![512; layers],
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_u64).collect(),
        Some(value) => vec![value.as_u64().ok_or_else(refuse)?; layers],
    };
    if windows.len() != layers || windows.iter().any(|window| *window == 0 || window % 2 == 1) {
        return Err(refuse());
    }
    let reach = windows.iter().map(|window| (window / 2) as usize).collect();
    Ok(TextAttention::Windowed(Windowed { reach }))
}
