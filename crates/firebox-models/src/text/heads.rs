//! What a text encoder is asked: which labels hold, and where the evidence stands.
//!
//! The criteria head pools the tokens and scores each label; the span head scores each token as the
//! first and as the last of the evidence. Their losses are summed by weights of the tasks.

use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::activation::softmax;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use firebox_core::{Precision, Stream};
use firebox_kernels::{
    BinaryCrossEntropy, CrossEntropy, LossError, binary_cross_entropy, cross_entropy, dropout,
    linear_in,
};
use serde::{Deserialize, Serialize};

use super::layer::init_normal;
use super::{TextEncoder, TextEncoderConfig};
use crate::encoder::{pool_mean_max, valid_steps};
use crate::{Loss, ModelError};

/// Finite, and below any score.
const LOWEST: f32 = -1e30;

/// How the vectors of a text's tokens become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pooling {
    /// The first token's.
    #[default]
    Cls,
    /// Their mean.
    Mean,
    /// The maximum of each number.
    Max,
    /// A mean by learned weights.
    Attention,
}

/// Settings of the heads of a [`TextModel`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextHeadsConfig {
    /// Labels of a text; R5 has nine.
    pub labels: usize,
    /// How tokens become one vector.
    pub pooling: Pooling,
    /// Probability of dropout before each head, `0 ≤ p < 1`.
    pub dropout: f64,
    /// Whether there is a head for the evidence.
    pub span: bool,
}

impl TextHeadsConfig {
    /// Builds the heads around an encoder, with weights drawn from `stream`.
    ///
    /// # Errors
    /// If a setting is out of its range.
    pub fn init(
        &self,
        encoder: TextEncoder,
        stream: Stream,
        device: &Device,
    ) -> Result<TextModel, ModelError> {
        if self.labels == 0 {
            let (found, allowed) = ("0".to_owned(), "at least 1");
            return Err(ModelError::Setting { key: "labels", found, allowed });
        }
        if !(0.0..1.0).contains(&self.dropout) {
            let (found, allowed) = (self.dropout.to_string(), "at least 0 and below 1");
            return Err(ModelError::Setting { key: "head_dropout", found, allowed });
        }
        let width = encoder.config().width;
        let linear = |index, output| init_normal(stream.substream(index), width, output, device);
        Ok(TextModel {
            encoder,
            attention: (self.pooling == Pooling::Attention).then(|| linear(0, 1)),
            criteria: linear(1, self.labels),
            span: self.span.then(|| linear(2, 2)),
            config: self.clone(),
            precision: Precision::F32,
        })
    }
}

/// A text encoder with its heads. Parameters are those of the encoder after `encoder.`, and
/// `attention.weight`, `criteria.weight`, `span.weight`, … of the heads.
#[derive(Module, Debug)]
pub struct TextModel {
    encoder: TextEncoder,
    attention: Option<Linear>,
    criteria: Linear,
    span: Option<Linear>,
    #[module(skip)]
    config: TextHeadsConfig,
    #[module(skip)]
    precision: Precision,
}

/// Scores of a batch of texts.
#[derive(Clone, Debug)]
pub struct TextScores {
    /// Before the logistic function, `[batch, label]`.
    pub labels: Tensor<2>,
    /// Of each token as the first and as the last of the evidence, before softmax over the tokens,
    /// `[batch, time]` each; far below all others for padding.
    pub span: Option<[Tensor<2>; 2]>,
}

/// What a batch of texts should be scored as.
#[derive(Clone, Copy, Debug)]
pub struct TextTargets<'a> {
    /// 1 for labels that hold and 0 for the others, `[batch, label]`, row by row.
    pub labels: &'a [f32],
    /// First and last token of the evidence of each text, if it has any: `[batch]`.
    pub spans: &'a [Option<[usize; 2]>],
}

/// How the losses of the two heads are taken.
#[derive(Clone, Copy, Debug)]
pub struct TextLoss<'a> {
    /// Weight of the labels' loss.
    pub criteria_weight: f64,
    /// Weight of the evidence's loss.
    pub span_weight: f64,
    /// Weight of each label's ones against its zeros; none: 1.
    pub positive_weights: Option<&'a [f32]>,
}

impl TextModel {
    /// The encoder.
    pub fn encoder(&self) -> &TextEncoder {
        &self.encoder
    }

    /// The settings of the encoder.
    pub fn encoder_config(&self) -> &TextEncoderConfig {
        self.encoder.config()
    }

    /// The settings of the heads.
    pub fn config(&self) -> &TextHeadsConfig {
        &self.config
    }

    /// The same model with the operands of its products in this type.
    #[must_use]
    pub fn in_precision(self, precision: Precision) -> Self {
        Self { encoder: self.encoder.in_precision(precision), precision, ..self }
    }

    /// One vector for each text, as the head of the labels sees it, in evaluation: `[batch, width]`.
    ///
    /// # Shapes
    /// As those of [`TextEncoder::encode`].
    ///
    /// # Panics
    /// As [`TextEncoder::encode`].
    pub fn embed(&self, tokens: Tensor<2, Int>, lengths: Option<&[usize]>) -> Tensor<2> {
        self.pool(self.encoder.encode(tokens, lengths, None), lengths)
    }

    /// The same model, of which each encoder layer keeps its input alone and is computed again for its
    /// gradient, on devices where [`recomputes_on`](firebox_kernels::recomputes_on) says so: less
    /// memory, another forward pass, the same numbers to the bit.
    #[must_use]
    pub fn recomputed(self, recomputed: bool) -> Self {
        Self { encoder: self.encoder.recomputed(recomputed), ..self }
    }

    /// Scores texts. `dropout` is `None` in evaluation.
    ///
    /// # Shapes
    /// As those of [`TextEncoder::encode`].
    ///
    /// # Panics
    /// As [`TextEncoder::encode`].
    pub fn forward(
        &self,
        tokens: Tensor<2, Int>,
        lengths: Option<&[usize]>,
        stream: Option<Stream>,
    ) -> TextScores {
        let draw = |index| stream.map(|stream| stream.substream(index));
        let encoded = self.encoder.encode(tokens, lengths, draw(0));
        let [batch, time, width] = encoded.dims();
        let rate = self.config.dropout;
        let pooled = dropout(self.pool(encoded.clone(), lengths), rate, draw(1));
        let labels = linear_in(self.precision, pooled, &self.criteria);
        let span = self.span.as_ref().map(|head| {
            let rows = dropout(encoded.reshape([batch * time, width]), rate, draw(2));
            let scores = linear_in(self.precision, rows, head).reshape([batch, time, 2]);
            [0, 1].map(|side| {
                let scores = scores.clone().narrow(2, side, 1).reshape([batch, time]);
                hide_padding(scores, lengths)
            })
        });
        TextScores { labels, span }
    }

    /// One vector for each text, `[batch, width]`.
    fn pool(&self, encoded: Tensor<3>, lengths: Option<&[usize]>) -> Tensor<2> {
        let [batch, time, width] = encoded.dims();
        let both = |encoded| pool_mean_max(encoded, lengths);
        match (self.config.pooling, &self.attention) {
            (Pooling::Mean, _) => both(encoded).narrow(1, 0, width),
            (Pooling::Max, _) => both(encoded).narrow(1, width, width),
            (Pooling::Attention, Some(layer)) => {
                let rows = encoded.clone().reshape([batch * time, width]);
                let scores = linear_in(self.precision, rows, layer).reshape([batch, time]);
                let p = softmax(hide_padding(scores, lengths), 1).reshape([batch, time, 1]);
                (encoded * p).sum_dim(1).reshape([batch, width])
            }
            _ => encoded.narrow(1, 0, 1).reshape([batch, width]),
        }
    }

    /// The loss of a batch, as a mean over its texts: binary cross-entropy as the mean over the
    /// labels, and the mean of the cross-entropies of the evidence's two ends, which a text without
    /// evidence has none of. So a text counts alike in whatever batch it comes.
    ///
    /// # Shapes
    /// As those of [`TextEncoder::encode`], and of [`TextTargets`].
    ///
    /// # Errors
    /// If a number of targets does not fit, or a span lies outside the tokens.
    pub fn loss(
        &self,
        tokens: Tensor<2, Int>,
        lengths: Option<&[usize]>,
        targets: TextTargets<'_>,
        settings: TextLoss<'_>,
        stream: Option<Stream>,
    ) -> Result<Loss, LossError> {
        let TextScores { labels, span } = self.forward(tokens, lengths, stream);
        let [batch, count] = labels.dims();
        if targets.labels.len() != batch * count || targets.spans.len() != batch {
            let (what, shape) = ("label targets", vec![batch, count]);
            let allowed = format!("{} labels and {batch} spans", batch * count);
            let (found, dtype) = (targets.labels.len(), labels.dtype());
            return Err(LossError::Count { what, found, shape, dtype, allowed });
        }
        let truth = TensorData::new(targets.labels.to_vec(), [batch, count]);
        let truth = Tensor::from_data(truth, &labels.device().without_autodiff());
        let config = BinaryCrossEntropy { positive_weights: settings.positive_weights, focal: 0.0 };
        let criteria = binary_cross_entropy(labels, truth, None, &config)?.value;
        let mut parts = vec![("criteria", plain(&criteria))];
        let mut value = criteria * settings.criteria_weight;
        if let Some(span) = span {
            let evidence = span_loss(span, targets.spans)?;
            parts.push(("span", plain(&evidence)));
            value = value + evidence * settings.span_weight;
        }
        Ok(Loss { value, weight: batch as f64, parts })
    }
}

fn plain(value: &Tensor<1>) -> Tensor<1> {
    if value.is_autodiff() { value.clone().inner() } else { value.clone() }
}

/// Mean of both ends' cross-entropies over all texts, those without evidence counting 0.
fn span_loss(
    [first, last]: [Tensor<2>; 2],
    spans: &[Option<[usize; 2]>],
) -> Result<Tensor<1>, LossError> {
    let config = CrossEntropy::default();
    let targets = |side: usize| -> Vec<i64> {
        let place =
            |span: &Option<[usize; 2]>| span.map_or(config.ignore_index, |s| s[side] as i64);
        spans.iter().map(place).collect()
    };
    let first = cross_entropy(first, &targets(0), &config)?;
    let last = cross_entropy(last, &targets(1), &config)?;
    let share = first.weight / spans.len().max(1) as f64;
    Ok((first.value + last.value) * (0.5 * share))
}

/// The same with the lowest score after each length.
fn hide_padding(scores: Tensor<2>, lengths: Option<&[usize]>) -> Tensor<2> {
    let [batch, time] = scores.dims();
    let Some(lengths) = lengths.filter(|lengths| lengths.iter().any(|length| *length < time))
    else {
        return scores;
    };
    let device = scores.device().without_autodiff();
    let padding: Tensor<2, Bool> =
        valid_steps(lengths, time, &device).reshape([batch, time]).equal_elem(0.0);
    scores.mask_fill(padding, LOWEST)
}
