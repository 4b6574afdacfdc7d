//! The classifier of reference system R1's fine-tuning: any encoder, attention over its steps, and a
//! small head.
//!
//! ```text
//! x [batch, time, channel]
//!   → encoder = steps [batch, step, width]
//!   → multi-head self-attention, 2 heads; + steps, LayerNorm
//!   → mean over the valid steps → Linear width → 128, ReLU, dropout 0.2 → Linear 128 → classes
//! ```
//!
//! This file knows no loss, and does not say which parameters are trained: that is for groups of the
//! optimizer (`encoder.*`).

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear};
use burn::tensor::{Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{Activation, Attention, init_linear, linear_activated, linear_in};
use serde::{Deserialize, Serialize};

use crate::encoder::without_padding;
use crate::encoder_layer::{EPSILON, SelfAttention, norm};
use crate::transformer::at_least_one;
use crate::{BiLstmAttention, CnnBiLstm, Encoder, Mlp, ModelError, Transformer, pool_mean_max};

/// A model that scores the classes of windows.
pub trait Classify: Module {
    /// A score for each class, before softmax. `lengths` are the valid steps of each sample, all if
    /// `None`; `dropout` is `None` in evaluation.
    ///
    /// # Shapes
    /// - inputs: `[batch, time, channel]`
    /// - the result: `[batch, class]`
    fn logits(
        &self,
        inputs: Tensor<3>,
        lengths: Option<&[usize]>,
        dropout: Option<Stream>,
    ) -> Tensor<2>;
}

macro_rules! classify {
    ($($model:ty),*) => {$(
        impl Classify for $model {
            fn logits(
                &self,
                inputs: Tensor<3>,
                lengths: Option<&[usize]>,
                dropout: Option<Stream>,
            ) -> Tensor<2> {
                <$model>::logits(self, inputs, lengths, dropout)
            }
        }
    )*};
}

classify!(BiLstmAttention, Transformer);

/// Padding is part of the window: to this classifier every value is a feature.
impl Classify for Mlp {
    fn logits(&self, inputs: Tensor<3>, _: Option<&[usize]>, dropout: Option<Stream>) -> Tensor<2> {
        self.logits(inputs, dropout)
    }
}

impl Classify for CnnBiLstm {
    fn logits(
        &self,
        inputs: Tensor<3>,
        lengths: Option<&[usize]>,
        dropout: Option<Stream>,
    ) -> Tensor<2> {
        self.logits(inputs, lengths, None, dropout)
    }
}

/// How the steps of a window become one vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepPooling {
    /// Mean over the valid steps.
    #[default]
    Mean,
    /// Largest number over the valid steps.
    Max,
    /// Mean ‖ maximum.
    MeanMax,
}

/// Settings of a [`Classifier`]. Heads and their number are R1's; it says nothing of the rest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClassifierConfig {
    /// Heads of attention; the width of an encoded step is a multiple of them. 0: no attention, only
    /// LayerNorm.
    pub heads: usize,
    /// How steps become one vector.
    pub pooling: StepPooling,
    /// Units of the head's hidden layer. 0: none, a linear head.
    pub hidden: usize,
    /// Probability of dropout on the probabilities of attention, after attention and within the head,
    /// `0 ≤ p < 1`.
    pub dropout: f64,
}

/// Units of a hidden layer at most: more than any model has, and few enough to be counted and allocated.
const MOST_HIDDEN: usize = 1 << 20;

impl Default for ClassifierConfig {
    fn default() -> Self {
        Self { heads: 2, pooling: StepPooling::Mean, hidden: 128, dropout: 0.2 }
    }
}

impl ClassifierConfig {
    /// Checks the settings.
    ///
    /// # Errors
    /// The first setting that is out of its range.
    pub fn validate(&self) -> Result<(), ModelError> {
        if !(0.0..1.0).contains(&self.dropout) {
            let (found, allowed) = (self.dropout.to_string(), "at least 0 and below 1");
            return Err(ModelError::Setting { key: "dropout", found, allowed });
        }
        if self.hidden > MOST_HIDDEN {
            let (found, allowed) = (self.hidden.to_string(), "at most 1048576");
            return Err(ModelError::Setting { key: "hidden", found, allowed });
        }
        Ok(())
    }

    /// Puts attention and a head with weights drawn from `stream` on an encoder: attention as
    /// PyTorch's `nn.MultiheadAttention` starts, linear layers as `nn.Linear`.
    ///
    /// # Errors
    /// If a setting is out of its range, there is no class, or the heads do not divide the width of
    /// the encoder's steps.
    pub fn init<E: Encoder>(
        &self,
        stream: Stream,
        encoder: E,
        classes: usize,
        device: &Device,
    ) -> Result<Classifier<E>, ModelError> {
        self.validate()?;
        let width = encoder.step_width();
        at_least_one(&[("classes", classes)])?;
        if self.heads > 0 && !width.is_multiple_of(self.heads) {
            let found = format!("{} on an encoder whose steps have {width} numbers", self.heads);
            let allowed = "a divisor of the encoder's width";
            return Err(ModelError::Setting { key: "heads", found, allowed });
        }
        let pooled = width * if self.pooling == StepPooling::MeanMax { 2 } else { 1 };
        let last = if self.hidden > 0 { self.hidden } else { pooled };
        let hidden = || init_linear(stream.substream(1), pooled, self.hidden, device);
        Ok(Classifier {
            encoder,
            attention: (self.heads > 0)
                .then(|| SelfAttention::init(width, stream.substream(0), device)),
            attention_norm: LayerNormConfig::new(width).with_epsilon(EPSILON).init(device),
            head: Head {
                hidden: (self.hidden > 0).then(hidden),
                output: init_linear(stream.substream(2), last, classes, device),
            },
            config: self.clone(),
            classes,
            precision: Precision::F32,
        })
    }
}

/// R1's classifier. Parameters are named `encoder.…` (as the encoder names them),
/// `attention.in_proj_weight`, `attention.out_proj.weight`, `attention_norm.weight`,
/// `head.hidden.weight`, `head.output.bias`.
#[derive(Module, Debug)]
pub struct Classifier<E: Module> {
    encoder: E,
    attention: Option<SelfAttention>,
    attention_norm: LayerNorm,
    head: Head,
    #[module(skip)]
    config: ClassifierConfig,
    #[module(skip)]
    classes: usize,
    #[module(skip)]
    precision: Precision,
}

#[derive(Module, Debug)]
struct Head {
    hidden: Option<Linear>,
    output: Linear,
}

impl<E: Encoder> Classifier<E> {
    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// The settings that the model was built with.
    pub fn config(&self) -> &ClassifierConfig {
        &self.config
    }

    /// The encoder.
    pub fn encoder(&self) -> &E {
        &self.encoder
    }

    /// The same model with the operands of the products of attention and head in this type; that of
    /// the encoder is the encoder's.
    #[must_use]
    pub fn in_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// The same model with what this makes of its encoder, such as one whose products are of another type.
    #[must_use]
    pub fn map_encoder(self, change: impl FnOnce(E) -> E) -> Self {
        Self { encoder: change(self.encoder), ..self }
    }

    /// Attention to all valid steps around a residual connection, and LayerNorm.
    fn attend(
        &self,
        steps: Tensor<3>,
        lengths: Option<&[usize]>,
        dropout: Option<Stream>,
    ) -> Tensor<3> {
        let [batch, time, width] = steps.dims();
        let rows = steps.reshape([batch * time, width]);
        let rows = match &self.attention {
            None => rows,
            Some(attention) => {
                let settings = Attention {
                    dropout: self.config.dropout,
                    precision: self.precision,
                    ..Attention::new(self.config.heads)
                };
                let stream = |index| dropout.map(|stream| stream.substream(index));
                let (steps, streams) = ([batch, time], [stream(0), stream(1)]);
                attention.forward(rows.clone(), rows, steps, lengths, streams, &settings)
            }
        };
        let attended = norm(&self.attention_norm, rows).reshape([batch, time, width]);
        without_padding(attended, lengths)
    }

    /// `[batch, step, width]` → `[batch, width]`, or twice the width.
    fn pool(&self, steps: Tensor<3>, lengths: Option<&[usize]>) -> Tensor<2> {
        let [batch, _, width] = steps.dims();
        let pooled = pool_mean_max(steps, lengths);
        match self.config.pooling {
            StepPooling::Mean => pooled.slice([0..batch, 0..width]),
            StepPooling::Max => pooled.slice([0..batch, width..2 * width]),
            StepPooling::MeanMax => pooled,
        }
    }
}

impl<E: Encoder> Classify for Classifier<E> {
    fn logits(
        &self,
        inputs: Tensor<3>,
        lengths: Option<&[usize]>,
        dropout: Option<Stream>,
    ) -> Tensor<2> {
        let stream = |index| dropout.map(|stream: Stream| stream.substream(index));
        let steps = self.encoder.encode(inputs, lengths, stream(0));
        let lengths = lengths.map(|lengths| self.encoder.step_lengths(lengths));
        let lengths = lengths.as_deref();
        let pooled = self.pool(self.attend(steps, lengths, stream(1)), lengths);
        let hidden = match &self.head.hidden {
            None => pooled,
            Some(hidden) => {
                let (activation, dropout) = (Activation::Relu, self.config.dropout);
                linear_activated(self.precision, pooled, hidden, activation, dropout, stream(2))
            }
        };
        linear_in(self.precision, hidden, &self.head.output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RecurrentConfig, layouts};

    fn model(config: ClassifierConfig) -> Result<Classifier<crate::RecurrentEncoder>, ModelError> {
        let device = Device::default();
        let encoder = RecurrentConfig { hidden: 3, ..RecurrentConfig::default() };
        let encoder = encoder.init(Stream::new(1, "encoder"), 2, &device)?;
        config.init(Stream::new(1, "head"), encoder, 4, &device)
    }

    fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.into_data().try_into_vec().unwrap()
    }

    #[test]
    fn padding_changes_nothing_and_a_window_without_a_step_has_finite_scores() {
        for pooling in [StepPooling::Mean, StepPooling::Max, StepPooling::MeanMax] {
            let model = model(ClassifierConfig { pooling, ..Default::default() }).unwrap();
            let device = Device::default();
            let short = Tensor::<3>::ones([2, 5, 2], &device);
            let tail = Tensor::full([2, 4, 2], 9.0, &device);
            let long = Tensor::cat(vec![short.clone(), tail], 1);
            let lengths = [5, 2];
            let a = values(model.logits(short, Some(&lengths), None));
            let b = values(model.logits(long.clone(), Some(&lengths), None));
            for (a, b) in a.iter().zip(b) {
                assert!((a - b).abs() < 1e-5, "{a} {b}");
            }
            let empty = values(model.logits(long, Some(&[3, 0]), None));
            assert!(empty.iter().all(|score| score.is_finite()));
        }
    }

    #[test]
    fn names_of_the_encoder_stand_under_encoder() {
        let names: Vec<String> = layouts(&model(ClassifierConfig::default()).unwrap())
            .into_iter()
            .map(|l| l.name)
            .collect();
        for name in [
            "encoder.lstm.weight_ih_l1_reverse",
            "encoder.norm.weight",
            "attention.in_proj_weight",
            "attention.out_proj.bias",
            "attention_norm.bias",
            "head.hidden.weight",
            "head.output.bias",
        ] {
            assert!(names.iter().any(|own| own == name), "{name} is not in {names:?}");
        }
        let plain = ClassifierConfig { heads: 0, hidden: 0, ..ClassifierConfig::default() };
        let names: Vec<String> =
            layouts(&model(plain).unwrap()).into_iter().map(|l| l.name).collect();
        assert!(!names.iter().any(|own| own.starts_with("attention.") || own.contains("hidden")));
    }

    #[test]
    fn dropout_follows_its_stream() {
        let model = model(ClassifierConfig { dropout: 0.5, ..Default::default() }).unwrap();
        let input = Tensor::<3>::ones([2, 7, 2], &Device::default());
        let logits = |step| {
            let dropout = Some(Stream::new(1, "dropout").substream(step));
            values(model.logits(input.clone(), None, dropout))
        };
        assert_eq!(logits(1), logits(1));
        assert_ne!(logits(1), logits(2));
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let refused = |config| model(config).unwrap_err().to_string();
        let four = ClassifierConfig { heads: 4, ..ClassifierConfig::default() };
        assert!(refused(four).contains("`heads` is 4 on an encoder whose steps have 6 numbers"));
        let one = ClassifierConfig { dropout: 1.0, ..ClassifierConfig::default() };
        assert!(refused(one).contains("`dropout` is 1"));
    }
}
