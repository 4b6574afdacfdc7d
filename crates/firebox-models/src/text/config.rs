//! Settings of a text encoder: one form for the families that share BERT's skeleton.

use serde::{Deserialize, Serialize};

use crate::transformer::at_least_one;
use crate::{Activation, ModelError};

/// Settings of a [`TextEncoder`](crate::TextEncoder). Every default is BERT's base model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TextEncoderConfig {
    /// Tokens that have a vector.
    pub vocabulary: usize,
    /// Tokens of a text, at most.
    pub positions: usize,
    /// Whether each position has a learned vector. DeBERTa has none.
    pub absolute_positions: bool,
    /// Rows of the table of positions before that of the first token. RoBERTa: 2. Every token is counted:
    /// `transformers` leaves out a padding token within a text, and those behind it come a row earlier there.
    pub position_offset: usize,
    /// Kinds of segments, of which texts that stand alone are the first; 0: none.
    pub segments: usize,
    /// Numbers of a token's vector where they differ from `width`, as ELECTRA's may. None: `width`.
    pub embedding: Option<usize>,
    /// Numbers of a token within the model; a multiple of the heads.
    pub width: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Encoder layers.
    pub layers: usize,
    /// Units of each layer's feed-forward network.
    pub feedforward: usize,
    /// What stands within the feed-forward network.
    pub activation: Activation,
    /// Probability of dropout on embeddings and before each residual sum, `0 ≤ p < 1`.
    pub dropout: f64,
    /// Probability of dropout on the probabilities of attention, `0 ≤ p < 1`.
    pub attention_dropout: f64,
    /// Probability of dropout on what attention adds to its residual, where it is another than `dropout`, `0 ≤ p < 1`.
    /// DistilBERT: 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub projection_dropout: Option<f64>,
    /// What LayerNorm adds to the variance.
    pub epsilon: f64,
    /// Which tokens see each other, and how their distance counts.
    pub attention: TextAttention,
}

impl Default for TextEncoderConfig {
    fn default() -> Self {
        Self {
            vocabulary: 30_522,
            positions: 512,
            absolute_positions: true,
            position_offset: 0,
            segments: 2,
            embedding: None,
            width: 768,
            heads: 12,
            layers: 12,
            feedforward: 3072,
            activation: Activation::Gelu,
            dropout: 0.1,
            attention_dropout: 0.1,
            projection_dropout: None,
            epsilon: 1e-12,
            attention: TextAttention::Full,
        }
    }
}

/// How tokens attend to each other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TextAttention {
    /// Each to all, whatever the distance.
    #[default]
    Full,
    /// Each to all, with terms for the distance: DeBERTa's.
    Disentangled(Disentangled),
    /// Each to its neighbours and the first token, which sees all: Longformer's. No scores but these are
    /// computed, and none are stored, on processors and in the kernels of GPUs.
    Windowed(Windowed),
}

/// Attention in which content and distance have vectors of their own. Source: He, Liu, Gao and Chen,
/// "DeBERTa: decoding-enhanced BERT with disentangled attention", 2021; DeBERTaV3, 2023.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Disentangled {
    /// Distances, in tokens, from which on all count alike.
    pub farthest: usize,
    /// Buckets that distances share in each direction, wider the farther; 0: one for each distance.
    pub buckets: usize,
    /// Whether content attends to distances.
    pub content_to_position: bool,
    /// Whether distances attend to content.
    pub position_to_content: bool,
    /// Whether distances are projected by the weights of content. If not, they have their own.
    pub shared_projection: bool,
    /// Whether the vectors of distances are normalised.
    pub normalised: bool,
}

impl Default for Disentangled {
    fn default() -> Self {
        Self {
            farthest: 512,
            buckets: 256,
            content_to_position: true,
            position_to_content: true,
            shared_projection: true,
            normalised: true,
        }
    }
}

impl Disentangled {
    /// Half of the rows of the table of distances.
    pub(super) fn span(&self) -> usize {
        if self.buckets > 0 { self.buckets } else { self.farthest }
    }

    /// The row of the table of distances for `distance`, the query's place minus the key's.
    ///
    /// Source: `build_relative_position` and `make_log_bucket_position` of `transformers`, whose
    /// logarithm is taken in f32.
    pub fn row(&self, distance: i64) -> i64 {
        let span = self.span() as i64;
        (self.bucket(distance) + span).clamp(0, 2 * span - 1)
    }

    fn bucket(&self, distance: i64) -> i64 {
        let middle = (self.buckets / 2) as i64;
        if self.buckets == 0 || distance.abs() <= middle {
            return distance;
        }
        let (middle, farthest) = (middle as f32, self.farthest as f32);
        let far = (distance.abs() as f32 / middle).ln() / ((farthest - 1.0) / middle).ln();
        distance.signum() * ((far * (middle - 1.0)).ceil() + middle) as i64
    }
}

/// Attention within a window. Source: Beltagy, Peters and Cohan, "Longformer: the long-document
/// Transformer", 2020.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Windowed {
    /// Tokens that a token sees on each side, for each layer.
    pub reach: Vec<usize>,
}

impl TextEncoderConfig {
    /// Probability of dropout on what attention adds to its residual.
    pub(super) fn after_attention(&self) -> f64 {
        self.projection_dropout.unwrap_or(self.dropout)
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// The first setting that is out of its range.
    pub fn validate(&self) -> Result<(), ModelError> {
        at_least_one(&[
            ("vocabulary", self.vocabulary),
            ("positions", self.positions),
            ("embedding", self.embedding.unwrap_or(1)),
            ("width", self.width),
            ("heads", self.heads),
            ("layers", self.layers),
            ("feedforward", self.feedforward),
        ])?;
        let setting = |key, found: String, allowed| ModelError::Setting { key, found, allowed };
        if !self.width.is_multiple_of(self.heads) {
            let found = format!("{} with {} heads", self.width, self.heads);
            return Err(setting("width", found, "a multiple of the heads"));
        }
        for (key, rate) in [
            ("dropout", self.dropout),
            ("attention_dropout", self.attention_dropout),
            ("projection_dropout", self.projection_dropout.unwrap_or(0.0)),
        ] {
            if !(0.0..1.0).contains(&rate) {
                return Err(setting(key, rate.to_string(), "at least 0 and below 1"));
            }
        }
        if !(self.epsilon > 0.0 && self.epsilon < 1.0) {
            return Err(setting("epsilon", self.epsilon.to_string(), "above 0 and below 1"));
        }
        match &self.attention {
            TextAttention::Full => Ok(()),
            TextAttention::Disentangled(rule) => {
                at_least_one(&[("attention.disentangled.farthest", rule.farthest)])?;
                let (key, found) = ("attention.disentangled.buckets", rule.buckets.to_string());
                match rule.buckets {
                    0 => Ok(()),
                    2.. if rule.farthest > rule.buckets / 2 + 1 => Ok(()),
                    _ => Err(setting(key, found, "0, or at least 2 and below twice the farthest")),
                }
            }
            TextAttention::Windowed(rule) if rule.reach.len() == self.layers => Ok(()),
            TextAttention::Windowed(rule) => {
                let found = format!("{} numbers for {} layers", rule.reach.len(), self.layers);
                Err(setting("attention.windowed.reach", found, "one number for each layer"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_were_kept_before_there_was_one_of_projections_are_read_and_written_alike() {
        let kept = r#"{"segments": 0, "dropout": 0.2, "attention_dropout": 0.1}"#;
        let read: TextEncoderConfig = serde_json::from_str(kept).unwrap();
        assert_eq!((read.projection_dropout, read.after_attention()), (None, 0.2));
        assert!(!serde_json::to_string(&read).unwrap().contains("projection"));
        let config = TextEncoderConfig { projection_dropout: Some(0.0), ..read };
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<TextEncoderConfig>(&text).unwrap(), config);
        assert_eq!(config.after_attention(), 0.0);
        let wrong = TextEncoderConfig { projection_dropout: Some(1.0), ..config };
        assert!(wrong.validate().unwrap_err().to_string().contains("projection_dropout"));
    }

    #[test]
    fn far_distances_share_buckets() {
        let rule = Disentangled { farthest: 512, buckets: 256, ..Disentangled::default() };
        // As `make_log_bucket_position` of transformers gives.
        for (distance, expected) in
            [(0, 0), (1, 1), (-5, -5), (128, 128), (129, 129), (140, 137), (-300, -207), (511, 255)]
        {
            assert_eq!(rule.bucket(distance), expected, "{distance}");
        }
        let rule = Disentangled { buckets: 0, ..rule };
        assert_eq!(rule.bucket(-300), -300);
        assert_eq!([rule.row(-900), rule.row(0), rule.row(900)], [0, 512, 1023]);
    }
}
