//! A layer of a text encoder: attention and a feed-forward network, each with LayerNorm after its
//! residual sum.
//!
//! It differs from [`EncoderLayer`](crate::EncoderLayer), which is PyTorch's, in what published text
//! encoders do: dropout stands after attention (but in DistilBERT) and after the feed-forward network, not
//! within it, and attention has a rate of its own.

use burn::module::{Module, Param};
use burn::nn::{LayerNorm, LayerNormConfig, Linear};
use burn::tensor::{Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{
    Attention, AttentionWindow, DisentangledAttention, EncoderParameters, EncoderSettings,
    FeedForward, attention, disentangled_attention, encoder_layer, feed_forward_add, layer_norm,
    linear_add, linear_in, normal, self_attention,
};

use super::config::{Disentangled, TextAttention, TextEncoderConfig};
use super::distances::Distances;

/// Deviation of initial weights. Source: BERT's `initializer_range`.
pub(super) const DEVIATION: f64 = 0.02;

/// One layer.
#[derive(Module, Debug)]
pub(super) struct TextLayer {
    attention: TextSelfAttention,
    attention_norm: LayerNorm,
    linear1: Linear,
    linear2: Linear,
    output_norm: LayerNorm,
}

/// The projections of attention.
#[derive(Module, Debug)]
pub(super) struct TextSelfAttention {
    /// Queries, keys and values side by side.
    in_proj: Linear,
    out_proj: Linear,
    /// Queries and keys of distances, where they do not share those of content.
    positions: Option<Linear>,
    /// Queries, keys and values of the tokens that see all, where there is a window.
    global: Option<Linear>,
}

/// What a layer is told about the batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Surroundings<'a> {
    pub(super) batch: usize,
    pub(super) time: usize,
    pub(super) lengths: Option<&'a [usize]>,
    pub(super) distances: Option<&'a Distances>,
    /// Number of the layer.
    pub(super) index: usize,
}

pub(super) fn init_normal(stream: Stream, input: usize, output: usize, device: &Device) -> Linear {
    let weight = normal(stream, [input, output], 0.0, DEVIATION, device);
    let bias = Some(Param::from_tensor(Tensor::zeros([output], device)));
    Linear { weight: Param::from_tensor(weight), bias }
}

pub(super) fn norm<const D: usize>(norm: &LayerNorm, x: Tensor<D>, epsilon: f64) -> Tensor<D> {
    layer_norm(x, norm.gamma.val(), norm.beta.as_ref().map(|beta| beta.val()), epsilon)
}

impl TextLayer {
    pub(super) fn init(config: &TextEncoderConfig, stream: Stream, device: &Device) -> Self {
        let (width, between) = (config.width, config.feedforward);
        let linear =
            |index, output, input| init_normal(stream.substream(index), input, output, device);
        let positions = match &config.attention {
            TextAttention::Disentangled(rule) if !rule.shared_projection => {
                Some(linear(4, 2 * width, width))
            }
            _ => None,
        };
        let windowed = matches!(config.attention, TextAttention::Windowed(_));
        let norm = || LayerNormConfig::new(width).with_epsilon(config.epsilon).init(device);
        Self {
            attention: TextSelfAttention {
                in_proj: linear(0, 3 * width, width),
                out_proj: linear(1, width, width),
                positions,
                global: windowed.then(|| linear(5, 3 * width, width)),
            },
            attention_norm: norm(),
            linear1: linear(2, between, width),
            linear2: linear(3, width, between),
            output_norm: norm(),
        }
    }

    /// Runs the layer on rows, `[batch · time, width]`.
    pub(super) fn forward(
        &self,
        config: &TextEncoderConfig,
        precision: Precision,
        x: Tensor<2>,
        around: Surroundings<'_>,
        stream: Option<Stream>,
    ) -> Tensor<2> {
        if stream.is_none()
            && let Some(y) = self.at_once(config, precision, &x, around)
        {
            return y;
        }
        let draw = |index| stream.map(|stream| stream.substream(index));
        let streams = [draw(0), draw(1)];
        let x = self.attention.forward(config, precision, x, around, streams);
        let x = norm(&self.attention_norm, x, config.epsilon);
        let network = FeedForward {
            precision,
            first: &self.linear1,
            activation: config.activation.into(),
            second: &self.linear2,
            dropout: config.dropout,
            streams: [None, draw(2)],
        };
        norm(&self.output_norm, feed_forward_add(x.clone(), x, &network), config.epsilon)
    }
}

impl TextLayer {
    /// The layer as one operation, where there is one: with plain attention.
    fn at_once(
        &self,
        config: &TextEncoderConfig,
        precision: Precision,
        x: &Tensor<2>,
        around: Surroundings<'_>,
    ) -> Option<Tensor<2>> {
        let plain = match config.attention {
            TextAttention::Windowed(_) => false,
            TextAttention::Disentangled(_) => around.distances.is_none(),
            TextAttention::Full => true,
        };
        if !plain {
            return None;
        }
        let parameters = EncoderParameters {
            in_proj: &self.attention.in_proj,
            out_proj: &self.attention.out_proj,
            feed: [&self.linear1, &self.linear2],
            norms: [&self.attention_norm, &self.output_norm],
        };
        let settings = EncoderSettings {
            attention: Attention { precision, ..Attention::new(config.heads) },
            activation: config.activation.into(),
            epsilon: config.epsilon,
            norm_first: false,
        };
        let [rows, width] = x.dims();
        let samples = x.clone().reshape([around.batch, around.time, width]);
        let y = encoder_layer(&samples, around.lengths, &parameters, &settings)?;
        Some(y.reshape([rows, width]))
    }
}

impl TextSelfAttention {
    fn forward(
        &self,
        config: &TextEncoderConfig,
        precision: Precision,
        x: Tensor<2>,
        around: Surroundings<'_>,
        [stream, after]: [Option<Stream>; 2],
    ) -> Tensor<2> {
        let residual = x.clone();
        let attended = match (&config.attention, around.distances) {
            (TextAttention::Disentangled(rule), Some(distances)) => {
                let qkv = linear_in(precision, x, &self.in_proj);
                self.disentangled(config, rule, precision, qkv, distances, around, stream)
            }
            (TextAttention::Windowed(rule), _) => {
                let reach = rule.reach.get(around.index).copied().unwrap_or_default();
                self.windowed(config, reach, precision, x, around, stream)
            }
            _ => {
                let Surroundings { batch, time, lengths, .. } = around;
                let settings = plain(config, precision);
                let qkv = linear_in(precision, x, &self.in_proj);
                let qkv = qkv.reshape([batch, time, 3 * config.width]);
                self_attention(qkv, lengths, stream, &settings)
                    .reshape([batch * time, config.width])
            }
        };
        linear_add(precision, residual, attended, &self.out_proj, config.after_attention(), after)
    }

    #[allow(clippy::too_many_arguments, reason = "all of it belongs to one formula")]
    fn disentangled(
        &self,
        config: &TextEncoderConfig,
        rule: &Disentangled,
        precision: Precision,
        qkv: Tensor<2>,
        distances: &Distances,
        around: Surroundings<'_>,
        stream: Option<Stream>,
    ) -> Tensor<2> {
        let Surroundings { batch, time, lengths, .. } = around;
        let own = self.positions.as_ref().unwrap_or(&self.in_proj);
        let projected = linear_in(precision, distances.vectors.clone(), own);
        let settings = DisentangledAttention {
            heads: config.heads,
            content_to_position: rule.content_to_position,
            position_to_content: rule.position_to_content,
            dropout: config.attention_dropout,
            precision,
        };
        let qkv = qkv.reshape([batch, time, 3 * config.width]);
        disentangled_attention(qkv, projected, &distances.rows, lengths, stream, &settings)
            .reshape([batch * time, config.width])
    }

    /// The first token sees all, by projections of its own; the others see it and their neighbours.
    fn windowed(
        &self,
        config: &TextEncoderConfig,
        reach: usize,
        precision: Precision,
        x: Tensor<2>,
        around: Surroundings<'_>,
        stream: Option<Stream>,
    ) -> Tensor<2> {
        let (width, Surroundings { batch, time, lengths, .. }) = (config.width, around);
        let draw = |index| stream.map(|stream| stream.substream(index));
        // One tensor for both projections, so that no gradient is a sum of more than two, whose order might
        // be another where the layer is computed again.
        let x = x.reshape([batch, time, width]);
        let project = |linear: &Linear| {
            let qkv = linear_in(precision, x.clone().reshape([batch * time, width]), linear);
            qkv.reshape([batch, time, 3 * width])
        };
        let settings = plain(config, precision);
        let window = Some(AttentionWindow { reach, global: 1 });
        let near = Attention { window, ..settings };
        let others = self_attention(project(&self.in_proj), lengths, draw(0), &near);
        let Some(global) = &self.global else { return others.reshape([batch * time, width]) };
        let qkv = project(global);
        let part = |index: usize| qkv.clone().narrow(2, index * width, width);
        let first = part(0).narrow(1, 0, 1);
        let first = attention(first, part(1), part(2), None, lengths, draw(1), &settings);
        if time == 1 {
            return first.reshape([batch, width]);
        }
        let rest = others.narrow(1, 1, time - 1);
        Tensor::cat(vec![first, rest], 1).reshape([batch * time, width])
    }
}

/// Attention of each token to all.
fn plain(config: &TextEncoderConfig, precision: Precision) -> Attention {
    Attention { dropout: config.attention_dropout, precision, ..Attention::new(config.heads) }
}
