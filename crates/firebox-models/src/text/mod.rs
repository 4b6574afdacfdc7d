//! Text encoders of BERT's skeleton: BERT, RoBERTa, ELECTRA, DistilBERT, DeBERTa, Longformer.
//!
//! ```text
//! tokens [batch, time]
//!   → vectors of tokens (+ positions) (+ segments) → LayerNorm, dropout (→ Linear to the width)
//!   → layers: attention, feed-forward network, each with dropout, residual sum and LayerNorm after it
//! ```
//!
//! Sources: Devlin, Chang, Lee and Toutanova, 2019, and those at each setting. There is no tokenizer
//! and no file here; heads and losses are in [`TextModel`].

mod config;
mod distances;
mod heads;
mod layer;

use burn::module::{Module, Param};
use burn::nn::{Embedding, LayerNorm, LayerNormConfig, Linear};
use burn::tensor::{Device, Int, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{
    DistanceRows, dropout, embedding, linear_in, normal, recomputed, recomputed_beside,
};

pub use config::{Disentangled, TextAttention, TextEncoderConfig, Windowed};
pub use heads::{Pooling, TextHeadsConfig, TextLoss, TextModel, TextScores, TextTargets};

use crate::ModelError;
use distances::Distances;
use layer::{DEVIATION, Surroundings, TextLayer, init_normal, norm};

impl TextEncoderConfig {
    /// Builds the encoder with weights drawn from `stream`: N(0, 0.02²), biases 0.
    ///
    /// # Errors
    /// If a setting is out of its range.
    pub fn init(&self, stream: Stream, device: &Device) -> Result<TextEncoder, ModelError> {
        self.validate()?;
        let input = self.embedding.unwrap_or(self.width);
        let table = |index, rows, width| {
            let weight = normal(stream.substream(index), [rows, width], 0.0, DEVIATION, device);
            Embedding { weight: Param::from_tensor(weight) }
        };
        let norm = |width| LayerNormConfig::new(width).with_epsilon(self.epsilon).init(device);
        let places = self.positions + self.position_offset;
        let distances = match &self.attention {
            TextAttention::Disentangled(rule) => Some(rule),
            _ => None,
        };
        let layers = stream.substream(4);
        let layer = |index| TextLayer::init(self, layers.substream(index as u64), device);
        Ok(TextEncoder {
            tokens: table(0, self.vocabulary, input),
            positions: self.absolute_positions.then(|| table(1, places, input)),
            segments: (self.segments > 0).then(|| table(2, self.segments, input)),
            embedding_norm: norm(input),
            projection: (input != self.width)
                .then(|| init_normal(stream.substream(3), input, self.width, device)),
            distances: distances.map(|rule| table(5, 2 * rule.span(), self.width)),
            distance_norm: distances.filter(|rule| rule.normalised).map(|_| norm(self.width)),
            layers: (0..self.layers).map(layer).collect(),
            config: self.clone(),
            precision: Precision::F32,
            recomputed: false,
        })
    }
}

/// A text encoder. Parameters are named `tokens.weight`, `positions.weight`, `segments.weight`,
/// `embedding_norm.weight`, `layers.0.attention.in_proj_weight`, `layers.0.linear1.weight`, …
#[derive(Module, Debug)]
pub struct TextEncoder {
    tokens: Embedding,
    positions: Option<Embedding>,
    segments: Option<Embedding>,
    embedding_norm: LayerNorm,
    projection: Option<Linear>,
    distances: Option<Embedding>,
    distance_norm: Option<LayerNorm>,
    layers: Vec<TextLayer>,
    #[module(skip)]
    config: TextEncoderConfig,
    #[module(skip)]
    precision: Precision,
    #[module(skip)]
    recomputed: bool,
}

impl TextEncoder {
    /// The settings that the encoder was built with.
    pub fn config(&self) -> &TextEncoderConfig {
        &self.config
    }

    /// The same encoder with the operands of its products in this type.
    #[must_use]
    pub fn in_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// The same encoder, of which each layer keeps its input alone and is computed again for its
    /// gradient, on devices where [`recomputes_on`](firebox_kernels::recomputes_on) says so: less
    /// memory, another forward pass, the same numbers to the bit; but for rounding where
    /// [disentangled](TextAttention::Disentangled) attention is composed of Burn's operations.
    #[must_use]
    pub fn recomputed(self, recomputed: bool) -> Self {
        Self { recomputed, ..self }
    }

    /// The same encoder with dropout of this probability, on the probabilities of attention, too; where there was to be
    /// none on what attention adds, there is none.
    #[must_use]
    pub fn with_dropout(mut self, dropout: f64) -> Self {
        (self.config.dropout, self.config.attention_dropout) = (dropout, dropout);
        self
    }

    /// A vector for each token; those after a text's length mean nothing. Where attention has a
    /// window, the first token is the one that sees all.
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
        let [batch, time] = tokens.dims();
        let (config, precision) = (&self.config, self.precision);
        let positions = config.positions;
        assert!(time <= positions, "texts of {time} tokens for a model with {positions} positions");
        if batch * time == 0 {
            return Tensor::zeros([batch, time, config.width], &self.tokens.weight.device());
        }
        let stream = |index| dropout.map(|stream| stream.substream(index));
        let distances = self.distances(time);
        let mut x = self.embed(tokens, stream(0));
        for (index, layer) in self.layers.iter().enumerate() {
            let around =
                Surroundings { batch, time, lengths, distances: distances.as_ref(), index };
            let stream = stream(1).map(|stream| stream.substream(index as u64));
            x = match self.recomputed {
                true => again(layer, config, precision, x, around, stream),
                false => layer.forward(config, precision, x, around, stream),
            };
        }
        x.reshape([batch, time, config.width])
    }

    /// What goes into the first layer, `[batch · time, width]`.
    fn embed(&self, tokens: Tensor<2, Int>, stream: Option<Stream>) -> Tensor<2> {
        let [batch, time] = tokens.dims();
        let mut x = embedding(&self.tokens, tokens, None);
        let [_, _, input] = x.dims();
        if let Some(positions) = &self.positions {
            let rows = positions.weight.val().narrow(0, self.config.position_offset, time);
            x = x + rows.unsqueeze::<3>();
        }
        if let Some(segments) = &self.segments {
            x = x + segments.weight.val().narrow(0, 0, 1).unsqueeze::<3>();
        }
        let x = norm(&self.embedding_norm, x.reshape([batch * time, input]), self.config.epsilon);
        let x = dropout(x, self.config.dropout, stream);
        match &self.projection {
            Some(projection) => linear_in(self.precision, x, projection),
            None => x,
        }
    }

    /// What attention needs to know of distances. Unlike in the original, their vectors have no
    /// dropout.
    fn distances(&self, time: usize) -> Option<Distances> {
        let (TextAttention::Disentangled(rule), Some(table)) =
            (&self.config.attention, &self.distances)
        else {
            return None;
        };
        let vectors = table.weight.val();
        let vectors = match &self.distance_norm {
            Some(layer) => norm(layer, vectors, self.config.epsilon),
            None => vectors,
        };
        // Rows are never below 0.
        let rows = DistanceRows::new(time, |distance| rule.row(distance) as usize);
        Some(Distances { vectors, rows })
    }
}

/// A layer that keeps its input alone, and is computed again for its gradient.
fn again(
    layer: &TextLayer,
    config: &TextEncoderConfig,
    precision: Precision,
    x: Tensor<2>,
    around: Surroundings<'_>,
    stream: Option<Stream>,
) -> Tensor<2> {
    let Surroundings { batch, time, lengths, distances, index } = around;
    let (lengths, config) = (lengths.map(<[usize]>::to_vec), config.clone());
    let run = move |layer: &TextLayer, x, distances: Option<&Distances>| {
        let around = Surroundings { batch, time, lengths: lengths.as_deref(), distances, index };
        layer.forward(&config, precision, x, around, stream)
    };
    match distances.cloned() {
        None => recomputed(layer, x, move |layer, x| run(layer, x, None)),
        // The vectors of distances are every layer's, and learn.
        Some(Distances { vectors, rows }) => {
            recomputed_beside(layer, x, vectors, move |layer, x, vectors| {
                run(layer, x, Some(&Distances { vectors, rows: rows.clone() }))
            })
        }
    }
}
