//! A layer of a Transformer's encoder: attention and a feed-forward network, each around a residual
//! connection. What [`Transformer`](crate::Transformer) and [`Bert`](crate::Bert) share.
//!
//! Parameters are named and laid out as in PyTorch's `nn.TransformerEncoderLayer`, and dropout stands
//! where it stands there: on the probabilities of attention, after attention, between the two linear
//! layers, and after them. There is no embedding and no head here.

use burn::module::{Module, Param};
use burn::nn::{LayerNorm, LayerNormConfig, Linear};
use burn::tensor::{Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{
    Attention, EncoderParameters, EncoderSettings, FeedForward, attention, encoder_layer,
    feed_forward_add, init_linear, layer_norm, linear_add, linear_in, recomputed, self_attention,
    uniform,
};
use serde::{Deserialize, Serialize};

use crate::ModelError;

/// What LayerNorm adds to the variance; PyTorch's default.
pub(crate) const EPSILON: f64 = 1e-5;

/// What stands between the two linear layers of the feed-forward network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activation {
    /// The Gaussian error linear unit, exact.
    #[default]
    Gelu,
    /// The rectifier.
    Relu,
}

impl From<Activation> for firebox_kernels::Activation {
    fn from(activation: Activation) -> Self {
        match activation {
            Activation::Gelu => Self::Gelu,
            Activation::Relu => Self::Relu,
        }
    }
}

/// Settings of an [`EncoderLayer`], those of PyTorch's.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderLayerConfig {
    /// Numbers of a step.
    pub width: usize,
    /// Heads of attention; the width is a multiple of them.
    pub heads: usize,
    /// Units between the two linear layers.
    pub feedforward: usize,
    /// Probability of dropout in all four places, `0 ≤ p < 1`.
    pub dropout: f64,
    /// What stands between the two linear layers.
    pub activation: Activation,
    /// Whether LayerNorm stands before each part, not after its residual sum.
    pub norm_first: bool,
}

impl EncoderLayerConfig {
    /// Checks the settings.
    ///
    /// # Errors
    /// The first setting that is out of its range.
    pub fn validate(&self) -> Result<(), ModelError> {
        let sizes =
            [("width", self.width), ("heads", self.heads), ("feedforward", self.feedforward)];
        if let Some((key, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(ModelError::Setting { key, found: "0".to_owned(), allowed: "at least 1" });
        }
        if !self.width.is_multiple_of(self.heads) {
            let found = format!("{} with {} heads", self.width, self.heads);
            let allowed = "a multiple of the heads";
            return Err(ModelError::Setting { key: "width", found, allowed });
        }
        if !(0.0..1.0).contains(&self.dropout) {
            let (found, allowed) = (self.dropout.to_string(), "at least 0 and below 1");
            return Err(ModelError::Setting { key: "dropout", found, allowed });
        }
        Ok(())
    }

    /// Builds a layer with weights drawn from `stream` as PyTorch draws them: the projection of
    /// queries, keys and values by Glorot's uniform rule, the others uniform in ±1/√inputs; zero are
    /// the biases of attention.
    ///
    /// # Errors
    /// If a setting is out of its range.
    pub fn init(&self, stream: Stream, device: &Device) -> Result<EncoderLayer, ModelError> {
        self.validate()?;
        let width = self.width;
        let norm = || LayerNormConfig::new(width).with_epsilon(EPSILON).init(device);
        Ok(EncoderLayer {
            self_attn: SelfAttention::init(width, stream, device),
            linear1: init_linear(stream.substream(2), width, self.feedforward, device),
            linear2: init_linear(stream.substream(3), self.feedforward, width, device),
            norm1: norm(),
            norm2: norm(),
            config: self.clone(),
            precision: Precision::F32,
        })
    }
}

/// One layer.
#[derive(Module, Debug)]
pub struct EncoderLayer {
    self_attn: SelfAttention,
    linear1: Linear,
    linear2: Linear,
    norm1: LayerNorm,
    norm2: LayerNorm,
    #[module(skip)]
    config: EncoderLayerConfig,
    #[module(skip)]
    precision: Precision,
}

/// Attention of steps to one another between its projections, with the parameters of PyTorch's
/// `nn.MultiheadAttention`.
#[derive(Module, Debug)]
pub(crate) struct SelfAttention {
    in_proj: Linear,
    out_proj: Linear,
}

impl SelfAttention {
    /// As PyTorch starts: the projection of queries, keys and values by Glorot's uniform rule, that of
    /// the result uniform in ±1/√width, biases zero.
    pub(crate) fn init(width: usize, stream: Stream, device: &Device) -> Self {
        let bound = (6.0 / (4 * width) as f64).sqrt();
        let zeros = |size| Some(Param::from_tensor(Tensor::zeros([size], device)));
        let weight = uniform(stream.substream(0), [width, 3 * width], -bound, bound, device);
        let in_proj = Linear { weight: Param::from_tensor(weight), bias: zeros(3 * width) };
        let out_proj = init_linear(stream.substream(1), width, width, device);
        Self { in_proj, out_proj: Linear { bias: zeros(width), ..out_proj } }
    }

    /// `[batch · time, width]` to the same, with dropout at the attention's rate of the second stream, added to the
    /// residual of the same shape; steps after a sample's length are not attended to.
    pub(crate) fn forward(
        &self,
        residual: Tensor<2>,
        x: Tensor<2>,
        [batch, time]: [usize; 2],
        lengths: Option<&[usize]>,
        streams: [Option<Stream>; 2],
        settings: &Attention,
    ) -> Tensor<2> {
        let ([rows, width], precision) = (x.dims(), settings.precision);
        let qkv = linear_in(precision, x, &self.in_proj).reshape([batch, time, 3 * width]);
        let attended = self_attention(qkv, lengths, streams[0], settings).reshape([rows, width]);
        linear_add(precision, residual, attended, &self.out_proj, settings.dropout, streams[1])
    }

    /// What [`forward`](Self::forward) gives for the first step of each sample, `[batch, width]`.
    fn first(
        &self,
        x: Tensor<2>,
        [batch, time]: [usize; 2],
        lengths: Option<&[usize]>,
        settings: &Attention,
    ) -> Tensor<2> {
        let [_, width] = x.dims();
        let part = |from, width| {
            let bias = self.in_proj.bias.as_ref();
            Linear {
                weight: Param::from_tensor(self.in_proj.weight.val().narrow(1, from, width)),
                bias: bias.map(|bias| Param::from_tensor(bias.val().narrow(0, from, width))),
            }
        };
        let precision = settings.precision;
        let queries = linear_in(precision, first_steps(x.clone(), [batch, time]), &part(0, width));
        let others = linear_in(precision, x, &part(width, 2 * width));
        let others = others.reshape([batch, time, 2 * width]);
        let [keys, values] = [0, width].map(|from| others.clone().narrow(2, from, width));
        let queries = queries.reshape([batch, 1, width]);
        let attended = attention(queries, keys, values, None, lengths, None, settings);
        linear_in(precision, attended.reshape([batch, width]), &self.out_proj)
    }
}

/// The first row of each sample, `[batch · time, width]` → `[batch, width]`.
fn first_steps(x: Tensor<2>, [batch, time]: [usize; 2]) -> Tensor<2> {
    let [_, width] = x.dims();
    x.reshape([batch, time, width]).narrow(1, 0, 1).reshape([batch, width])
}

impl EncoderLayer {
    /// The settings that the layer was built with.
    pub fn config(&self) -> &EncoderLayerConfig {
        &self.config
    }

    /// The same layer with the operands of its products, attention's among them, in this type.
    #[must_use]
    pub fn in_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// Runs the layer. Steps after a sample's length are not attended to; what the layer gives for
    /// them means nothing. `dropout` is `None` in evaluation.
    ///
    /// # Shapes
    /// - x and the result: `[batch, time, width]`
    /// - lengths: valid steps of each sample, `[batch]`, all if `None`
    pub fn forward(
        &self,
        x: Tensor<3>,
        lengths: Option<&[usize]>,
        dropout: Option<Stream>,
    ) -> Tensor<3> {
        if dropout.is_none()
            && let Some(y) = self.at_once(&x, lengths)
        {
            return y;
        }
        let [batch, time, width] = x.dims();
        let stream = |index| dropout.map(|stream| stream.substream(index));
        let steps = [batch, time];
        // As rows: the gradient of a weight would otherwise be made for each sample and summed.
        let x = x.reshape([batch * time, width]);
        let attend = |x: Tensor<2>, part| {
            let streams = [stream(0), stream(1)];
            self.self_attn.forward(x, part, steps, lengths, streams, &self.attention())
        };
        let network = self.network([stream(2), stream(3)]);
        let x = if self.config.norm_first {
            let x = attend(x.clone(), norm(&self.norm1, x));
            feed_forward_add(x.clone(), norm(&self.norm2, x), &network)
        } else {
            let x = norm(&self.norm1, attend(x.clone(), x));
            norm(&self.norm2, feed_forward_add(x.clone(), x, &network))
        };
        x.reshape([batch, time, width])
    }

    /// What [`forward`](Self::forward) gives in evaluation for the first step of each sample,
    /// `[batch, width]`: of the other steps nothing is computed but what the first one attends to.
    fn first(&self, x: Tensor<3>, lengths: Option<&[usize]>) -> Tensor<2> {
        let [batch, time, width] = x.dims();
        let steps = [batch, time];
        let x = x.reshape([batch * time, width]);
        let first = first_steps(x.clone(), steps);
        let settings = self.attention();
        if self.config.norm_first {
            let part = norm(&self.norm1, x);
            let x = first + self.self_attn.first(part, steps, lengths, &settings);
            feed_forward_add(x.clone(), norm(&self.norm2, x), &self.network([None; 2]))
        } else {
            let part = self.self_attn.first(x, steps, lengths, &settings);
            let x = norm(&self.norm1, first + part);
            norm(&self.norm2, feed_forward_add(x.clone(), x, &self.network([None; 2])))
        }
    }

    /// The layer as one operation, where there is one.
    fn at_once(&self, x: &Tensor<3>, lengths: Option<&[usize]>) -> Option<Tensor<3>> {
        let parameters = EncoderParameters {
            in_proj: &self.self_attn.in_proj,
            out_proj: &self.self_attn.out_proj,
            feed: [&self.linear1, &self.linear2],
            norms: [&self.norm1, &self.norm2],
        };
        let settings = EncoderSettings {
            attention: Attention { dropout: 0.0, ..self.attention() },
            activation: self.config.activation.into(),
            epsilon: EPSILON,
            norm_first: self.config.norm_first,
        };
        encoder_layer(x, lengths, &parameters, &settings)
    }

    fn attention(&self) -> Attention {
        Attention {
            dropout: self.config.dropout,
            precision: self.precision,
            ..Attention::new(self.config.heads)
        }
    }

    /// The feed-forward network; nothing is dropped without streams.
    fn network(&self, streams: [Option<Stream>; 2]) -> FeedForward<'_> {
        FeedForward {
            precision: self.precision,
            first: &self.linear1,
            activation: self.config.activation.into(),
            second: &self.linear2,
            dropout: self.config.dropout,
            streams,
        }
    }
}

/// Layer normalisation with a module's parameters.
pub(crate) fn norm<const D: usize>(norm: &LayerNorm, x: Tensor<D>) -> Tensor<D> {
    let beta = norm.beta.as_ref().map(|beta| beta.val());
    layer_norm(x, norm.gamma.val(), beta, EPSILON)
}

/// A stack of layers: the name `encoder.layers.0` and so on, as in PyTorch's `nn.TransformerEncoder`.
#[derive(Module, Debug)]
pub(crate) struct Layers {
    layers: Vec<EncoderLayer>,
    #[module(skip)]
    recomputed: bool,
}

impl Layers {
    pub(crate) fn init(
        config: &EncoderLayerConfig,
        count: usize,
        stream: Stream,
        device: &Device,
    ) -> Result<Self, ModelError> {
        let layers = (0..count).map(|index| config.init(stream.substream(index as u64), device));
        Ok(Self { layers: layers.collect::<Result<_, _>>()?, recomputed: false })
    }

    #[must_use]
    pub(crate) fn in_precision(self, precision: Precision) -> Self {
        let layers = self.layers.into_iter().map(|layer| layer.in_precision(precision));
        Self { layers: layers.collect(), ..self }
    }

    /// Whether each layer keeps its input alone and is computed again for its gradient.
    #[must_use]
    pub(crate) fn recomputed(self, recomputed: bool) -> Self {
        Self { recomputed, ..self }
    }

    pub(crate) fn forward(
        &self,
        x: Tensor<3>,
        lengths: Option<&[usize]>,
        dropout: Option<Stream>,
    ) -> Tensor<3> {
        self.run(self.layers.len(), x, lengths, dropout)
    }

    /// What [`forward`](Self::forward) gives for the first step of each sample, `[batch, width]`.
    pub(crate) fn first(
        &self,
        x: Tensor<3>,
        lengths: Option<&[usize]>,
        dropout: Option<Stream>,
    ) -> Tensor<2> {
        let [batch, time, width] = x.dims();
        match self.layers.split_last() {
            // In training all steps are computed, so that masks are drawn as they always were.
            Some((last, before)) if dropout.is_none() && !x.is_autodiff() => {
                last.first(self.run(before.len(), x, lengths, None), lengths)
            }
            _ => {
                let rows = self.forward(x, lengths, dropout).reshape([batch * time, width]);
                first_steps(rows, [batch, time])
            }
        }
    }

    /// The first so many layers.
    fn run(
        &self,
        count: usize,
        x: Tensor<3>,
        lengths: Option<&[usize]>,
        dropout: Option<Stream>,
    ) -> Tensor<3> {
        self.layers[..count].iter().enumerate().fold(x, |x, (index, layer)| {
            let dropout = dropout.map(|stream| stream.substream(index as u64));
            if !self.recomputed {
                return layer.forward(x, lengths, dropout);
            }
            let lengths = lengths.map(<[usize]>::to_vec);
            recomputed(layer, x, move |layer, x| layer.forward(x, lengths.as_deref(), dropout))
        })
    }
}

#[cfg(test)]
mod tests {
    use firebox_kernels::normal;

    use super::*;

    #[test]
    fn the_first_step_alone_is_what_all_layers_give_for_it() {
        let device = Device::default();
        let x = normal::<3>(Stream::new(1, "steps"), [3, 20, 24], 0.0, 1.0, &device);
        for (norm_first, precision) in [(false, Precision::F32), (true, Precision::Bf16)] {
            let config = EncoderLayerConfig {
                width: 24,
                heads: 3,
                feedforward: 50,
                dropout: 0.1,
                activation: Activation::Gelu,
                norm_first,
            };
            let layers = Layers::init(&config, 2, Stream::new(2, "weights"), &device).unwrap();
            let layers = layers.in_precision(precision);
            for lengths in [None, Some(&[20, 1, 7][..])] {
                let all = layers.forward(x.clone(), lengths, None).narrow(1, 0, 1);
                let first = layers.first(x.clone(), lengths, None);
                assert_eq!(first.into_data(), all.reshape([3, 24]).into_data());
            }
            let drawn = Some(Stream::new(3, "dropout"));
            let all = layers.forward(x.clone(), None, drawn).narrow(1, 0, 1).reshape([3, 24]);
            assert_eq!(layers.first(x.clone(), None, drawn).into_data(), all.into_data());
        }
    }
}
