//! Any encoder of windows, and its pre-training by restoring hidden steps.
//!
//! ```text
//! x [batch, time, channel]     hidden steps replaced by a learned token [channel]
//!   → the encoder [batch, step, width]
//!   → Linear width → channel; of an encoder that shortens time, as many steps as it has put into one
//! ```
//!
//! [`BiLstmMae`](crate::BiLstmMae) is R1's own and [`PatchTransformer`](crate::PatchTransformer) the modern
//! choice; this is for all others. An encoder that comes with a head of its own keeps that head as it was
//! drawn: nothing is learnt of it here. This file knows no optimizer.

use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::tensor::{Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{init_linear, linear_in, normal};
use serde::{Deserialize, Serialize};

use crate::pretrain::{hidden, reconstruction_loss};
use crate::transformer::at_least_one;
use crate::{
    BiLstmAttention, BiLstmAttentionConfig, CnnBiLstm, CnnBiLstmConfig, DilatedConfig,
    DilatedEncoder, Encoder, Loss, MaskRule, ModelError, Pretrain, PretrainBatch, RecurrentConfig,
    RecurrentEncoder, StackedLstm, StackedLstmConfig, StepMask, Transformer, TransformerConfig,
};

/// Classes and outputs of heads that are not used.
pub(crate) const UNUSED: usize = 1;

/// Which encoder, with its settings: `[model.masked.encoder.NAME]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AnyEncoderConfig {
    /// An LSTM or a GRU, in one direction or both.
    Recurrent(RecurrentConfig),
    /// TS2Vec's dilated convolutions.
    Dilated(DilatedConfig),
    /// R3's Transformer, with a position for each step of a window.
    Transformer(TransformerConfig),
    /// R4's convolutions and LSTM.
    CnnBilstm(CnnBiLstmConfig),
    /// R3's LSTM with attention.
    BilstmAttention(BiLstmAttentionConfig),
    /// R2's stacked LSTM.
    StackedLstm(StackedLstmConfig),
}

impl Default for AnyEncoderConfig {
    fn default() -> Self {
        Self::Dilated(DilatedConfig::default())
    }
}

impl AnyEncoderConfig {
    /// Its name, as in `[model.masked.encoder.NAME]`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Recurrent(_) => "recurrent",
            Self::Dilated(_) => "dilated",
            Self::Transformer(_) => "transformer",
            Self::CnnBilstm(_) => "cnn-bilstm",
            Self::BilstmAttention(_) => "bilstm-attention",
            Self::StackedLstm(_) => "stacked-lstm",
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// The first setting that is out of its range.
    pub fn validate(&self) -> Result<(), ModelError> {
        match self {
            Self::Recurrent(config) => config.validate(),
            Self::Dilated(config) => config.validate(),
            Self::Transformer(config) => config.validate(),
            Self::CnnBilstm(config) => config.validate(),
            Self::BilstmAttention(config) => config.validate(),
            Self::StackedLstm(config) => config.validate(),
        }
    }

    /// Steps of the shortest window that it encodes to more than nothing.
    pub fn fewest_steps(&self) -> usize {
        match self {
            Self::CnnBilstm(config) => config.fewest_steps(),
            _ => 1,
        }
    }

    /// Steps of a window that one step of the encoding stands for.
    fn shortened(&self) -> usize {
        self.fewest_steps()
    }

    /// Builds the encoder for windows of at most `time` steps, with weights drawn from `stream`.
    ///
    /// # Errors
    /// If a setting or size is out of its range.
    pub fn init(
        &self,
        stream: Stream,
        channels: usize,
        time: usize,
        device: &Device,
    ) -> Result<AnyEncoder, ModelError> {
        Ok(match self {
            Self::Recurrent(config) => {
                AnyEncoder::Recurrent(config.init(stream, channels, device)?)
            }
            Self::Dilated(config) => AnyEncoder::Dilated(config.init(stream, channels, device)?),
            Self::Transformer(config) => {
                AnyEncoder::Transformer(config.init(stream, channels, time, UNUSED, device)?)
            }
            Self::CnnBilstm(config) => {
                AnyEncoder::CnnBilstm(config.init(stream, channels, UNUSED, device)?)
            }
            Self::BilstmAttention(config) => {
                AnyEncoder::BilstmAttention(config.init(stream, channels, UNUSED, device)?)
            }
            Self::StackedLstm(config) => {
                AnyEncoder::StackedLstm(config.init(stream, channels, 0, UNUSED, device)?)
            }
        })
    }
}

/// An encoder of windows, whichever it is. Its parameters are named as that one's.
#[allow(clippy::large_enum_variant, reason = "a model holds one")]
#[derive(Module, Debug)]
pub enum AnyEncoder {
    /// An LSTM or a GRU.
    Recurrent(RecurrentEncoder),
    /// Dilated convolutions.
    Dilated(DilatedEncoder),
    /// R3's Transformer.
    Transformer(Transformer),
    /// R4's convolutions and LSTM.
    CnnBilstm(CnnBiLstm),
    /// R3's LSTM with attention.
    BilstmAttention(BiLstmAttention),
    /// R2's stacked LSTM.
    StackedLstm(StackedLstm),
}

/// Does the same with the encoder, whichever it is.
macro_rules! each {
    ($encoder:expr, $inner:ident => $value:expr) => {
        match $encoder {
            AnyEncoder::Recurrent($inner) => $value,
            AnyEncoder::Dilated($inner) => $value,
            AnyEncoder::Transformer($inner) => $value,
            AnyEncoder::CnnBilstm($inner) => $value,
            AnyEncoder::BilstmAttention($inner) => $value,
            AnyEncoder::StackedLstm($inner) => $value,
        }
    };
}

impl AnyEncoder {
    /// The same encoder with the operands of its products in this type.
    #[must_use]
    pub fn in_precision(self, precision: Precision) -> Self {
        match self {
            Self::Recurrent(encoder) => Self::Recurrent(encoder.in_precision(precision)),
            Self::Dilated(encoder) => Self::Dilated(encoder.in_precision(precision)),
            Self::Transformer(encoder) => Self::Transformer(encoder.in_precision(precision)),
            Self::CnnBilstm(encoder) => Self::CnnBilstm(encoder.in_precision(precision)),
            Self::BilstmAttention(encoder) => {
                Self::BilstmAttention(encoder.in_precision(precision))
            }
            Self::StackedLstm(encoder) => Self::StackedLstm(encoder.in_precision(precision)),
        }
    }

    /// The same encoder, of which each layer keeps its input alone and is computed again for its
    /// gradient, as the encoder's own function of that name says.
    #[must_use]
    pub fn recomputed(self, recomputed: bool) -> Self {
        match self {
            Self::Recurrent(encoder) => Self::Recurrent(encoder.recomputed(recomputed)),
            Self::Dilated(encoder) => Self::Dilated(encoder.recomputed(recomputed)),
            Self::Transformer(encoder) => Self::Transformer(encoder.recomputed(recomputed)),
            Self::CnnBilstm(encoder) => Self::CnnBilstm(encoder.recomputed(recomputed)),
            Self::BilstmAttention(encoder) => Self::BilstmAttention(encoder.recomputed(recomputed)),
            Self::StackedLstm(encoder) => Self::StackedLstm(encoder.recomputed(recomputed)),
        }
    }
}

impl Encoder for AnyEncoder {
    fn encode(
        &self,
        input: Tensor<3>,
        lengths: Option<&[usize]>,
        dropout: Option<Stream>,
    ) -> Tensor<3> {
        each!(self, encoder => encoder.encode(input, lengths, dropout))
    }

    fn embed(&self, input: Tensor<3>, lengths: Option<&[usize]>) -> Tensor<2> {
        each!(self, encoder => encoder.embed(input, lengths))
    }

    fn embedding_width(&self) -> usize {
        each!(self, encoder => encoder.embedding_width())
    }

    fn step_width(&self) -> usize {
        each!(self, encoder => encoder.step_width())
    }

    fn step_lengths(&self, lengths: &[usize]) -> Vec<usize> {
        each!(self, encoder => encoder.step_lengths(lengths))
    }
}

/// Settings of a [`Masked`] encoder: the `[model.masked]` table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MaskedConfig {
    /// How the hidden steps of a sample are chosen.
    pub mask: MaskRule,
    /// Which encoder.
    pub encoder: AnyEncoderConfig,
}

impl MaskedConfig {
    /// Checks the settings.
    ///
    /// # Errors
    /// The first setting that is out of its range.
    pub fn validate(&self) -> Result<(), ModelError> {
        self.encoder.validate()?;
        self.mask.validate()
    }

    /// Builds the model for windows of at most `time` steps, with weights drawn from `stream`: the mask
    /// token N(0, 1) · 0.02, the rest as the encoder's own.
    ///
    /// # Errors
    /// If a setting or size is out of its range.
    pub fn init(
        &self,
        stream: Stream,
        channels: usize,
        time: usize,
        device: &Device,
    ) -> Result<Masked, ModelError> {
        self.validate()?;
        at_least_one(&[("channels", channels), ("time", time)])?;
        let encoder = self.encoder.init(stream.substream(1), channels, time, device)?;
        let numbers = channels * self.encoder.shortened();
        let token = normal(stream.substream(0), [channels], 0.0, 0.02, device);
        Ok(Masked {
            mask_token: Param::from_tensor(token),
            decoder: init_linear(stream.substream(2), encoder.step_width(), numbers, device),
            encoder,
            config: self.clone(),
            precision: Precision::F32,
        })
    }
}

/// An encoder that restores hidden steps. Parameters are named `mask_token`, `encoder.…` (as the encoder
/// names them) and `decoder.weight`.
#[derive(Module, Debug)]
pub struct Masked {
    mask_token: Param<Tensor<1>>,
    encoder: AnyEncoder,
    decoder: Linear,
    #[module(skip)]
    config: MaskedConfig,
    #[module(skip)]
    precision: Precision,
}

impl Masked {
    /// The settings that the model was built with.
    pub fn config(&self) -> &MaskedConfig {
        &self.config
    }

    /// The encoder.
    pub fn encoder(&self) -> &AnyEncoder {
        &self.encoder
    }

    /// The same model with the operands of its products in this type.
    #[must_use]
    pub fn in_precision(self, precision: Precision) -> Self {
        Self { encoder: self.encoder.in_precision(precision), precision, ..self }
    }

    /// The same model, of whose encoder each layer keeps its input alone and is computed again for its
    /// gradient: see [`AnyEncoder::recomputed`].
    #[must_use]
    pub fn recomputed(self, recomputed: bool) -> Self {
        Self { encoder: self.encoder.recomputed(recomputed), ..self }
    }

    /// Encodes a batch whose hidden steps are replaced by the token, and decodes it.
    fn restore(
        &self,
        batch: &PretrainBatch<'_>,
        masked: &Tensor<3>,
        dropout: Option<Stream>,
    ) -> Tensor<3> {
        let [samples, time, channels] = batch.inputs.dims();
        let shown = hidden(&batch.inputs, masked, &self.mask_token);
        let latent = self.encoder.encode(shown, Some(batch.lengths), dropout);
        let [_, steps, width] = latent.dims();
        let rows =
            linear_in(self.precision, latent.reshape([samples * steps, width]), &self.decoder);
        let restored = steps * self.config.encoder.shortened();
        let rows = rows.reshape([samples, restored, channels]);
        if restored < time {
            let rest = Tensor::zeros([samples, time - restored, channels], &rows.device());
            return Tensor::cat(vec![rows, rest], 1);
        }
        rows
    }
}

impl Encoder for Masked {
    fn encode(
        &self,
        input: Tensor<3>,
        lengths: Option<&[usize]>,
        dropout: Option<Stream>,
    ) -> Tensor<3> {
        self.encoder.encode(input, lengths, dropout)
    }

    fn embed(&self, input: Tensor<3>, lengths: Option<&[usize]>) -> Tensor<2> {
        self.encoder.embed(input, lengths)
    }

    fn embedding_width(&self) -> usize {
        self.encoder.embedding_width()
    }

    fn step_width(&self) -> usize {
        self.encoder.step_width()
    }

    fn step_lengths(&self, lengths: &[usize]) -> Vec<usize> {
        self.encoder.step_lengths(lengths)
    }
}

impl Pretrain for Masked {
    fn mask_rule(&self) -> &MaskRule {
        &self.config.mask
    }

    /// The loss of a batch whose hidden steps are given: the squared error summed over all channels of
    /// all hidden steps that the encoder covers, divided by their number, which is the loss's weight.
    fn masked_loss(
        &self,
        batch: &PretrainBatch<'_>,
        mask: &StepMask,
        dropout: Option<Stream>,
    ) -> Loss {
        let device = batch.inputs.device().without_autodiff();
        let scored = self.scored(mask, batch.lengths);
        let output = self.restore(batch, &mask.to_tensor(&device), dropout);
        reconstruction_loss(output, &batch.inputs, scored.to_tensor(&device), scored.count())
    }

    /// The hidden steps that are restored: an encoder that shortens time leaves out what does not fill
    /// a step of its own.
    fn scored(&self, mask: &StepMask, lengths: &[usize]) -> StepMask {
        let mut scored = mask.clone();
        let each = self.config.encoder.shortened();
        let rows = scored.masked.chunks_exact_mut(mask.time.max(1));
        for (row, steps) in rows.zip(self.encoder.step_lengths(lengths)) {
            row.iter_mut().skip(steps * each).for_each(|step| *step = false);
        }
        scored
    }

    fn reconstruct(&self, batch: &PretrainBatch<'_>, mask: &StepMask) -> Tensor<3> {
        let masked = mask.to_tensor(&batch.inputs.device().without_autodiff());
        self.restore(batch, &masked, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layouts;

    const TIME: usize = 14;

    fn all() -> Vec<MaskedConfig> {
        let of = |encoder: serde_json::Value| -> MaskedConfig {
            serde_json::from_value(serde_json::json!({ "encoder": encoder })).unwrap()
        };
        vec![
            of(serde_json::json!({ "recurrent": { "hidden": 4, "layers": 1, "cell": "gru" } })),
            of(serde_json::json!({ "dilated": { "hidden": 4, "output": 6, "blocks": 2 } })),
            of(serde_json::json!({
                "transformer": { "width": 8, "heads": 2, "layers": 1, "feedforward": 8 }
            })),
            of(serde_json::json!({
                "cnn-bilstm": { "convolutions": [4, 6], "hidden": 4, "head": 8, "classifier": [] }
            })),
            of(serde_json::json!({
                "bilstm-attention": { "hidden": 4, "attention": 4, "head_hidden": 4 }
            })),
            of(serde_json::json!({ "stacked-lstm": { "hidden_1": 4, "hidden_2": 6, "dense": 4 } })),
        ]
    }

    fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.into_data().try_into_vec().unwrap()
    }

    #[test]
    fn every_encoder_restores_what_is_hidden_without_seeing_it() {
        let device = Device::default();
        for config in all() {
            let name = config.encoder.name();
            let model = config.init(Stream::new(1, "weights"), 2, TIME, &device).unwrap();
            let inputs: Tensor<3> =
                normal(Stream::new(2, "windows"), [2, TIME, 2], 0.0, 1.0, &device);
            let batch = |inputs| PretrainBatch { inputs, lengths: &[14, 9], indices: &[0, 1] };
            let mut mask = StepMask::none(2, TIME);
            [1, 2, 13, TIME + 4, TIME + 8].into_iter().for_each(|step| mask.masked[step] = true);
            let output = values(model.reconstruct(&batch(inputs.clone()), &mask));
            let hidden = mask.to_tensor(&device);
            let other = inputs.clone() * (1.0 - hidden.clone()) + hidden * 50.0;
            assert_eq!(values(model.reconstruct(&batch(other), &mask)), output, "{name}");
            // The encoder of convolutions covers 12 of 14 steps and 8 of 9: steps 13 and 8 are left out.
            let scored: &[usize] = match name {
                "cnn-bilstm" => &[1, 2, TIME + 4],
                _ => &[1, 2, 13, TIME + 4, TIME + 8],
            };
            let drawn = model.scored(&mask, &[14, 9]).masked;
            assert!((0..2 * TIME).filter(|step| drawn[*step]).eq(scored.iter().copied()), "{name}");
            let truth = values(inputs.clone());
            let square = |at: usize| f64::from(output[at] - truth[at]).powi(2);
            let sum: f64 = scored.iter().map(|step| square(2 * step) + square(2 * step + 1)).sum();
            let loss = model.masked_loss(&batch(inputs.clone()), &mask, None);
            assert_eq!(loss.weight, 2.0 * scored.len() as f64, "{name}");
            let found = f64::from(values(loss.value)[0]);
            assert!((found - sum / loss.weight).abs() < 1e-5 * found, "{name}: {found}");
            let width = model.step_width();
            let steps = model.encode(inputs.clone(), Some(&[14, 9]), None).dims();
            assert_eq!(steps[2], width, "{name}");
            assert_eq!(model.embed(inputs, Some(&[14, 9])).dims(), [2, model.embedding_width()]);
        }
    }

    #[test]
    fn parameters_are_named_as_the_encoder_names_them() {
        for config in all() {
            let device = Device::default();
            let model = config.init(Stream::new(1, "weights"), 2, TIME, &device).unwrap();
            let names: Vec<String> = layouts(&model).into_iter().map(|one| one.name).collect();
            let own = config.encoder.init(Stream::new(1, "weights"), 2, TIME, &device).unwrap();
            let expected = layouts(&own).into_iter().map(|one| format!("encoder.{}", one.name));
            assert!(expected.into_iter().all(|name| names.contains(&name)), "{names:?}");
            assert!(names.contains(&"mask_token".to_owned()), "{names:?}");
            assert!(names.iter().all(|name| !name.contains(char::is_uppercase)), "{names:?}");
        }
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let refused = |table: serde_json::Value| {
            let config: MaskedConfig = serde_json::from_value(table).unwrap();
            config.validate().unwrap_err().to_string()
        };
        let none = serde_json::json!({ "encoder": { "dilated": { "blocks": 0 } } });
        assert!(refused(none).contains("`blocks` is 0"));
        let nothing = serde_json::json!({ "mask": { "block": { "share": 0.0 } } });
        assert!(refused(nothing).contains("mask.block.share"));
        let mlp = serde_json::json!({ "encoder": { "mlp": {} } });
        assert!(serde_json::from_value::<MaskedConfig>(mlp).is_err());
    }
}
