//! The encoder shape of reference system R5: BERT's base model with labels from the first token.
//!
//! ```text
//! tokens [batch, time]
//!   → a learned vector for each token + one for each position
//!   → 12 encoder layers: width 768, 12 heads, feed-forward 3072, GELU, dropout 0.1, LayerNorm last
//!   → the first token → Linear 768 → labels
//! ```
//!
//! Source: Devlin, Chang, Lee and Toutanova, 2019, without segments and without LayerNorm and dropout
//! on the embedding: what `bench` times beside PyTorch's layers. Published models are read into
//! [`TextEncoder`](crate::TextEncoder). There is no tokenizer and no loss here.

use burn::module::{Module, Param};
use burn::nn::{Embedding, Linear};
use burn::tensor::{Device, Int, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{embedding, init_linear, linear_in, normal};
use serde::{Deserialize, Serialize};

use crate::encoder_layer::Layers;
use crate::transformer::at_least_one;
use crate::{Activation, EncoderLayerConfig, ModelError};

/// Settings of a [`Bert`]. Every default is R5's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BertConfig {
    /// Tokens that have a vector.
    pub vocabulary: usize,
    /// Tokens of a text, at most.
    pub positions: usize,
    /// Numbers of a token within the model; a multiple of the heads.
    pub width: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Encoder layers.
    pub layers: usize,
    /// Units of each layer's feed-forward network.
    pub feedforward: usize,
    /// Probability of dropout in each layer, `0 ≤ p < 1`.
    pub dropout: f64,
    /// Labels of a text.
    pub labels: usize,
}

impl Default for BertConfig {
    fn default() -> Self {
        Self {
            vocabulary: 30_522,
            positions: 128,
            width: 768,
            heads: 12,
            layers: 12,
            feedforward: 3072,
            dropout: 0.1,
            labels: 9,
        }
    }
}

impl BertConfig {
    /// The settings of each of its layers.
    pub fn layer(&self) -> EncoderLayerConfig {
        EncoderLayerConfig {
            width: self.width,
            heads: self.heads,
            feedforward: self.feedforward,
            dropout: self.dropout,
            activation: Activation::Gelu,
            norm_first: false,
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// The first setting that is out of its range.
    pub fn validate(&self) -> Result<(), ModelError> {
        self.layer().validate()?;
        at_least_one(&[
            ("vocabulary", self.vocabulary),
            ("positions", self.positions),
            ("layers", self.layers),
            ("labels", self.labels),
        ])
    }

    /// Builds the model with weights drawn from `stream`: vectors of tokens N(0, 1), of positions
    /// N(0, 1) · 0.02, layers as PyTorch draws them.
    ///
    /// # Errors
    /// If a setting is out of its range.
    pub fn init(&self, stream: Stream, device: &Device) -> Result<Bert, ModelError> {
        self.validate()?;
        let embed = normal(stream.substream(0), [self.vocabulary, self.width], 0.0, 1.0, device);
        let position =
            normal(stream.substream(1), [1, self.positions, self.width], 0.0, 0.02, device);
        Ok(Bert {
            embed: Embedding { weight: Param::from_tensor(embed) },
            position: Param::from_tensor(position),
            encoder: Layers::init(&self.layer(), self.layers, stream.substream(2), device)?,
            head: init_linear(stream.substream(3), self.width, self.labels, device),
            config: self.clone(),
            precision: Precision::F32,
        })
    }
}

/// R5's encoder. Parameters are named `embed.weight`, `position`,
/// `encoder.layers.0.self_attn.in_proj_weight`, …, `head.weight`, `head.bias`.
#[derive(Module, Debug)]
pub struct Bert {
    embed: Embedding,
    position: Param<Tensor<3>>,
    encoder: Layers,
    head: Linear,
    #[module(skip)]
    config: BertConfig,
    #[module(skip)]
    precision: Precision,
}

impl Bert {
    /// The settings that the model was built with.
    pub fn config(&self) -> &BertConfig {
        &self.config
    }

    /// The same model with the operands of its products in this type.
    #[must_use]
    pub fn in_precision(self, precision: Precision) -> Self {
        let encoder = self.encoder.in_precision(precision);
        Self { encoder, precision, ..self }
    }

    /// The same model, of which each encoder layer keeps its input alone and is computed again for its
    /// gradient, on devices where [`recomputes_on`](firebox_kernels::recomputes_on) says so: less
    /// memory, another forward pass, the same numbers to the bit.
    #[must_use]
    pub fn recomputed(self, recomputed: bool) -> Self {
        Self { encoder: self.encoder.recomputed(recomputed), ..self }
    }

    /// A vector for each token; those after a text's length mean nothing.
    ///
    /// # Shapes
    /// - tokens: `[batch, time]`, below the vocabulary, no more than positions
    /// - lengths: valid tokens of each text, `[batch]`, all if `None`
    /// - the result: `[batch, time, width]`
    ///
    /// # Panics
    /// If there are more tokens than positions; the message holds both.
    pub fn encode(
        &self,
        tokens: Tensor<2, Int>,
        lengths: Option<&[usize]>,
        dropout: Option<Stream>,
    ) -> Tensor<3> {
        self.encoder.forward(self.embedded(tokens), lengths, dropout)
    }

    fn embedded(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let [_, time] = tokens.dims();
        let [_, positions, _] = self.position.dims();
        assert!(time <= positions, "texts of {time} tokens for a model with {positions} positions");
        embedding(&self.embed, tokens, None) + self.position.val().narrow(1, 0, time)
    }

    /// A score for each label from the first token, before the logistic function. Without gradients and
    /// dropout, the last layer computes of the other tokens what the first one attends to, and no more.
    ///
    /// # Shapes
    /// - tokens, lengths: as for [`Bert::encode`]
    /// - the result: `[batch, label]`
    ///
    /// # Panics
    /// As [`Bert::encode`].
    pub fn logits(
        &self,
        tokens: Tensor<2, Int>,
        lengths: Option<&[usize]>,
        dropout: Option<Stream>,
    ) -> Tensor<2> {
        let first = self.encoder.first(self.embedded(tokens), lengths, dropout);
        linear_in(self.precision, first, &self.head)
    }
}
