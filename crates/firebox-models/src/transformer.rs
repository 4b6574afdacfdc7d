//! The classifier of reference system R3: a Transformer over windows.
//!
//! ```text
//! x [batch, time, channel]
//!   → Linear channel → 128, LayerNorm, + a vector of sines and cosines for each position
//!   → 3 encoder layers: 8 heads, feed-forward 512, GELU, dropout 0.2, LayerNorm first
//!   → mean over the valid steps → Linear 128 → 64, ReLU → Linear 64 → classes
//! ```
//!
//! There is no loss and no optimizer here.

use burn::module::{Module, Param};
use burn::nn::{LayerNorm, LayerNormConfig, Linear};
use burn::tensor::{Device, Tensor, TensorData};
use firebox_core::{Precision, Stream};
use firebox_kernels::{init_linear, linear_activated, linear_in, normal};
use serde::{Deserialize, Serialize};

use crate::encoder::without_padding;
use crate::encoder_layer::{EPSILON, Layers, norm};
use crate::{Activation, Encoder, EncoderLayerConfig, ModelError};

/// Settings of a [`Transformer`]. Every default is R3's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransformerConfig {
    /// Numbers of a step within the model; a multiple of the heads.
    pub width: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Encoder layers.
    pub layers: usize,
    /// Units of each layer's feed-forward network.
    pub feedforward: usize,
    /// Probability of dropout in each layer, `0 ≤ p < 1`.
    pub dropout: f64,
    /// What stands within the feed-forward network.
    pub activation: Activation,
    /// Whether LayerNorm stands before attention and feed-forward network, not after them.
    pub norm_first: bool,
    /// Units of the head's hidden layer.
    pub head_hidden: usize,
    /// What a step is told about where it stands.
    pub positions: Positions,
}

/// What a step is told about where it stands in its window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Positions {
    /// Sines and cosines of the position at wavelengths from 2π to 10,000 · 2π, which are not
    /// learned. Source: Vaswani et al., "Attention is all you need", 2017, section 3.5.
    #[default]
    Sinusoidal,
    /// A learned vector for each position.
    Learned,
}

impl Default for TransformerConfig {
    fn default() -> Self {
        Self {
            width: 128,
            heads: 8,
            layers: 3,
            feedforward: 512,
            dropout: 0.2,
            activation: Activation::Gelu,
            norm_first: true,
            head_hidden: 64,
            positions: Positions::default(),
        }
    }
}

impl TransformerConfig {
    /// The settings of each of its layers.
    pub fn layer(&self) -> EncoderLayerConfig {
        EncoderLayerConfig {
            width: self.width,
            heads: self.heads,
            feedforward: self.feedforward,
            dropout: self.dropout,
            activation: self.activation,
            norm_first: self.norm_first,
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// The first setting that is out of its range.
    pub fn validate(&self) -> Result<(), ModelError> {
        self.layer().validate()?;
        at_least_one(&[("layers", self.layers), ("head_hidden", self.head_hidden)])
    }

    /// Builds the model for windows of up to `time` steps with weights drawn from `stream`: layers as
    /// PyTorch draws them, learned positions N(0, 1) · 0.02.
    ///
    /// # Errors
    /// If a setting is out of its range, or there is no channel, step or class.
    pub fn init(
        &self,
        stream: Stream,
        channels: usize,
        time: usize,
        classes: usize,
        device: &Device,
    ) -> Result<Transformer, ModelError> {
        self.validate()?;
        at_least_one(&[("channels", channels), ("time", time), ("classes", classes)])?;
        let position = match self.positions {
            Positions::Learned => {
                let drawn = normal(stream.substream(0), [1, time, self.width], 0.0, 0.02, device);
                Param::from_tensor(drawn)
            }
            // Kept with the parameters, so that files of weights hold it, and never learned.
            Positions::Sinusoidal => {
                Param::from_tensor(sinusoidal(time, self.width, device)).set_require_grad(false)
            }
        };
        Ok(Transformer {
            input: init_linear(stream.substream(1), channels, self.width, device),
            input_norm: LayerNormConfig::new(self.width).with_epsilon(EPSILON).init(device),
            position,
            encoder: Layers::init(&self.layer(), self.layers, stream.substream(2), device)?,
            head: Head {
                hidden: init_linear(stream.substream(3), self.width, self.head_hidden, device),
                output: init_linear(stream.substream(4), self.head_hidden, classes, device),
            },
            config: self.clone(),
            precision: Precision::F32,
        })
    }
}

/// Sines and cosines of the numbers of the steps, `[1, time, width]`: `sin(t / 10000^(2i / width))` at place
/// `2i` and the cosine after it. Source: Vaswani et al., "Attention is all you need", 2017.
pub(crate) fn sinusoidal(time: usize, width: usize, device: &Device) -> Tensor<3> {
    let value = |at: usize| {
        let (step, place) = ((at / width) as f64, at % width);
        let angle = step / 10_000f64.powf((place - place % 2) as f64 / width as f64);
        if place % 2 == 0 { angle.sin() as f32 } else { angle.cos() as f32 }
    };
    let values: Vec<f32> = (0..time * width).map(value).collect();
    Tensor::from_data(TensorData::new(values, [1, time, width]), device)
}

pub(crate) fn at_least_one(sizes: &[(&'static str, usize)]) -> Result<(), ModelError> {
    match sizes.iter().find(|(_, size)| *size == 0) {
        Some((key, _)) => {
            Err(ModelError::Setting { key, found: "0".to_owned(), allowed: "at least 1" })
        }
        None => Ok(()),
    }
}

/// R3's Transformer. Parameters are named `input.weight`, `input_norm.weight`, `position`,
/// `encoder.layers.0.self_attn.in_proj_weight`, …, `head.hidden.weight`, `head.output.bias`.
#[derive(Module, Debug)]
pub struct Transformer {
    input: Linear,
    input_norm: LayerNorm,
    position: Param<Tensor<3>>,
    encoder: Layers,
    head: Head,
    #[module(skip)]
    config: TransformerConfig,
    #[module(skip)]
    precision: Precision,
}

#[derive(Module, Debug)]
struct Head {
    hidden: Linear,
    output: Linear,
}

impl Transformer {
    /// The settings that the model was built with.
    pub fn config(&self) -> &TransformerConfig {
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

    /// A score for each class, before softmax. A sample without a step has the scores of a vector of
    /// zeros.
    ///
    /// # Shapes
    /// - input: `[batch, time, channel]`, with no more steps than the model has positions
    /// - lengths: valid steps of each sample, `[batch]`, all if `None`
    /// - the result: `[batch, class]`
    ///
    /// # Panics
    /// As [`Encoder::encode`].
    pub fn logits(
        &self,
        input: Tensor<3>,
        lengths: Option<&[usize]>,
        dropout: Option<Stream>,
    ) -> Tensor<2> {
        let pooled = mean_of_valid(self.encode(input, lengths, dropout), lengths);
        let (precision, head) = (self.precision, &self.head);
        let rectifier = firebox_kernels::Activation::Relu;
        let hidden = linear_activated(precision, pooled, &head.hidden, rectifier, 0.0, None);
        linear_in(precision, hidden, &head.output)
    }
}

/// The mean over the valid steps, where what is padding is zero; zero for a sample without a step.
///
/// # Shapes
/// - `[batch, time, width]` → `[batch, width]`
fn mean_of_valid(encoded: Tensor<3>, lengths: Option<&[usize]>) -> Tensor<2> {
    let [batch, time, width] = encoded.dims();
    let sum = encoded.sum_dim(1).reshape([batch, width]);
    match lengths.filter(|lengths| lengths.iter().any(|length| *length < time)) {
        None => sum / time.max(1) as f64,
        Some(lengths) => {
            let counts: Vec<f32> =
                lengths.iter().map(|length| (*length).clamp(1, time) as f32).collect();
            let device = sum.device().without_autodiff();
            let counts = Tensor::<1>::from_data(counts.as_slice(), &device);
            sum / counts.reshape([batch, 1])
        }
    }
}

impl Encoder for Transformer {
    /// # Panics
    /// If there are more steps than positions; the message holds both.
    fn encode(
        &self,
        input: Tensor<3>,
        lengths: Option<&[usize]>,
        dropout: Option<Stream>,
    ) -> Tensor<3> {
        let [batch, time, channels] = input.dims();
        let [_, positions, width] = self.position.dims();
        assert!(
            time <= positions,
            "windows of {time} steps for a model with {positions} positions"
        );
        let rows = linear_in(self.precision, input.reshape([batch * time, channels]), &self.input);
        let x = norm(&self.input_norm, rows).reshape([batch, time, width]);
        let x = x + self.position.val().narrow(1, 0, time);
        without_padding(self.encoder.forward(x, lengths, dropout), lengths)
    }

    fn embedding_width(&self) -> usize {
        2 * self.config.width
    }
}
