//! The recurrent classifier of reference system R3: a bidirectional LSTM that looks back over all
//! steps by additive attention.
//!
//! ```text
//! x [batch, time, channel]
//!   → LayerNorm(channel) → LSTM, 2 layers × 2 directions × 128, dropout 0.4 between layers
//!   → LayerNorm(256) = the encoding h [batch, time, 256]
//!   → scores vᵀ tanh(W h + b) of each step, softmax over the valid steps, their mean by these weights
//!   → Linear 256 → 128, ReLU, dropout 0.4 → Linear 128 → logits [batch, class]
//! ```
//!
//! Source of the attention: Bahdanau, Cho and Bengio, "Neural machine translation by jointly learning
//! to align and translate", 2015, with the steps alone in place of steps and a decoder's state. There is
//! no loss and no optimizer here.

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear};
use burn::tensor::activation::softmax;
use burn::tensor::{Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{Activation, Lstm, LstmConfig, init_linear, linear_activated, linear_in};
use serde::{Deserialize, Serialize};

use crate::encoder::without_padding;
use crate::encoder_layer::{EPSILON, norm};
use crate::recurrent::lstm_outputs;
use crate::transformer::at_least_one;
use crate::{Encoder, ModelError, valid_steps};

/// Settings of a [`BiLstmAttention`]: `settings` of `[multitimeframe.lstm]`. Every default is R3's;
/// its guide does not say how wide the attention is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BiLstmAttentionConfig {
    /// Hidden units of each LSTM layer and direction.
    pub hidden: usize,
    /// LSTM layers.
    pub layers: usize,
    /// Units of the attention.
    pub attention: usize,
    /// Units of the head's hidden layer.
    pub head_hidden: usize,
    /// Probability of dropout between LSTM layers and in the head, `0 ≤ p < 1`.
    pub dropout: f64,
}

impl Default for BiLstmAttentionConfig {
    fn default() -> Self {
        Self { hidden: 128, layers: 2, attention: 128, head_hidden: 128, dropout: 0.4 }
    }
}

impl BiLstmAttentionConfig {
    /// Checks the settings.
    ///
    /// # Errors
    /// The first setting that is out of its range.
    pub fn validate(&self) -> Result<(), ModelError> {
        at_least_one(&[
            ("hidden", self.hidden),
            ("layers", self.layers),
            ("attention", self.attention),
            ("head_hidden", self.head_hidden),
        ])?;
        if !(0.0..1.0).contains(&self.dropout) {
            let (found, allowed) = (self.dropout.to_string(), "at least 0 and below 1");
            return Err(ModelError::Setting { key: "dropout", found, allowed });
        }
        Ok(())
    }

    /// Builds the model with weights drawn from `stream` as PyTorch draws them.
    ///
    /// # Errors
    /// If a setting is out of its range, or there are fewer than two channels or no class.
    pub fn init(
        &self,
        stream: Stream,
        channels: usize,
        classes: usize,
        device: &Device,
    ) -> Result<BiLstmAttention, ModelError> {
        self.validate()?;
        at_least_one(&[("channels", channels), ("classes", classes)])?;
        if channels == 1 {
            let allowed = "at least 2, because each step is normalised over its channels, and of one nothing is left: give more, or use another encoder, such as `recurrent`";
            return Err(ModelError::Setting { key: "channels", found: "1".to_owned(), allowed });
        }
        let lstm = LstmConfig {
            input: channels,
            hidden: self.hidden,
            layers: self.layers,
            bidirectional: true,
            dropout: self.dropout,
        };
        let width = 2 * self.hidden;
        let layer_norm = |width| LayerNormConfig::new(width).with_epsilon(EPSILON).init(device);
        let score = init_linear(stream.substream(2), self.attention, 1, device);
        Ok(BiLstmAttention {
            input_norm: layer_norm(channels),
            lstm: lstm.init(stream.substream(0), device),
            norm: layer_norm(width),
            attention: Attend {
                hidden: init_linear(stream.substream(1), width, self.attention, device),
                // A shift of all scores does not change their softmax.
                score: Linear { bias: None, ..score },
            },
            head: Head {
                hidden: init_linear(stream.substream(3), width, self.head_hidden, device),
                output: init_linear(stream.substream(4), self.head_hidden, classes, device),
            },
            config: self.clone(),
            precision: Precision::F32,
            recomputed: false,
        })
    }
}

/// R3's recurrent classifier. Parameters are named `input_norm.weight`, `lstm.weight_ih_l0`, …,
/// `norm.weight`, `attention.hidden.weight`, `attention.score.weight`, `head.hidden.weight`, ….
#[derive(Module, Debug)]
pub struct BiLstmAttention {
    input_norm: LayerNorm,
    lstm: Lstm,
    norm: LayerNorm,
    attention: Attend,
    head: Head,
    #[module(skip)]
    config: BiLstmAttentionConfig,
    #[module(skip)]
    precision: Precision,
    #[module(skip)]
    recomputed: bool,
}

#[derive(Module, Debug)]
struct Attend {
    hidden: Linear,
    score: Linear,
}

#[derive(Module, Debug)]
struct Head {
    hidden: Linear,
    output: Linear,
}

impl BiLstmAttention {
    /// The settings that the model was built with.
    pub fn config(&self) -> &BiLstmAttentionConfig {
        &self.config
    }

    /// The same model with the operands of its products in this type.
    #[must_use]
    pub fn in_precision(self, precision: Precision) -> Self {
        Self { lstm: self.lstm.in_precision(precision), precision, ..self }
    }

    /// The same model, of which each LSTM layer keeps its input alone and is computed again for its
    /// gradient, on devices where [`recomputes_on`](firebox_kernels::recomputes_on) says so: less
    /// memory, another forward pass, the same numbers to the bit.
    #[must_use]
    pub fn recomputed(self, recomputed: bool) -> Self {
        Self { recomputed, ..self }
    }

    /// A score for each class, before softmax. A sample without a step has the scores of a vector of
    /// zeros.
    ///
    /// # Shapes
    /// - input: `[batch, time, channel]`
    /// - lengths: valid steps of each sample, `[batch]`, all if `None`
    /// - the result: `[batch, class]`
    pub fn logits(
        &self,
        input: Tensor<3>,
        lengths: Option<&[usize]>,
        dropout: Option<Stream>,
    ) -> Tensor<2> {
        let encoded = self.encode(input, lengths, dropout.map(|stream| stream.substream(0)));
        let context = self.attend(encoded, lengths);
        let stream = dropout.map(|stream| stream.substream(1));
        let (precision, head, dropout) = (self.precision, &self.head, self.config.dropout);
        let hidden =
            linear_activated(precision, context, &head.hidden, Activation::Relu, dropout, stream);
        linear_in(precision, hidden, &head.output)
    }

    /// The mean of the valid steps by their attention, `[batch, time, width]` → `[batch, width]`.
    fn attend(&self, encoded: Tensor<3>, lengths: Option<&[usize]>) -> Tensor<2> {
        let [batch, time, width] = encoded.dims();
        let rows = encoded.clone().reshape([batch * time, width]);
        let rows = linear_in(self.precision, rows, &self.attention.hidden).tanh();
        let scores = linear_in(self.precision, rows, &self.attention.score);
        let scores = scores.reshape([batch, time, 1]);
        let padded = lengths.filter(|lengths| lengths.iter().any(|length| *length < time));
        let scores = match padded {
            // Pushed below every valid score, so that its weight is zero.
            Some(lengths) => {
                let device = encoded.device().without_autodiff();
                scores + (valid_steps(lengths, time, &device) - 1.0) * f32::MAX.sqrt()
            }
            None => scores,
        };
        // Padding is zero in the encoding, so a sample without a step gives zeros.
        (encoded * softmax(scores, 1)).sum_dim(1).reshape([batch, width])
    }
}

impl Encoder for BiLstmAttention {
    fn encode(
        &self,
        input: Tensor<3>,
        lengths: Option<&[usize]>,
        dropout: Option<Stream>,
    ) -> Tensor<3> {
        let [batch, time, _] = input.dims();
        if lengths.is_some_and(|lengths| lengths.iter().all(|length| *length == 0)) {
            return Tensor::zeros([batch, time, 2 * self.config.hidden], &input.device());
        }
        let input = norm(&self.input_norm, input);
        let output = lstm_outputs(&self.lstm, self.recomputed, input, lengths, dropout);
        // LayerNorm gives its bias where the LSTM gave zeros.
        without_padding(norm(&self.norm, output), lengths)
    }

    /// What the head classifies by: the mean of the steps by their attention.
    fn embed(&self, input: Tensor<3>, lengths: Option<&[usize]>) -> Tensor<2> {
        self.attend(self.encode(input, lengths, None), lengths)
    }

    fn embedding_width(&self) -> usize {
        2 * self.config.hidden
    }

    fn step_width(&self) -> usize {
        2 * self.config.hidden
    }
}
