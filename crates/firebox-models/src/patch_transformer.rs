//! A Transformer over patches of steps that restores hidden steps: the modern choice for masked
//! pre-training.
//!
//! ```text
//! x [batch, time, channel]     hidden steps replaced by a learned token [channel]
//!   → patches of 7 steps, not overlapping [batch, patch, 7 · channel]
//!   → Linear → 128, + sine and cosine of the patch's number
//!   → 3 encoder layers: 8 heads, feed-forward 256, GELU, dropout 0.2, LayerNorm first
//!   → LayerNorm = the latent [batch, patch, 128]
//!   → Linear 128 → 7 · channel
//! ```
//!
//! Source: Nie, Nguyen, Sinthong and Kalagnanam, "A time series is worth 64 words" (PatchTST), 2023,
//! with two differences: the channels of a patch are read together and not apart, and norms are those
//! of layers, which need no statistics of a batch. Positions are computed (Vaswani et al., 2017), so
//! that windows may have any length. This file draws no mask and knows no optimizer.

use burn::module::{Module, Param};
use burn::nn::{LayerNorm, LayerNormConfig, Linear};
use burn::tensor::{Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{init_linear, linear_in, normal};
use serde::{Deserialize, Serialize};

use crate::encoder::without_padding;
use crate::encoder_layer::{EPSILON, Layers, norm};
use crate::pretrain::{hidden, reconstruction_loss};
use crate::transformer::{at_least_one, sinusoidal};
use crate::{
    Activation, Encoder, EncoderLayerConfig, Loss, MaskRule, ModelError, Pretrain, PretrainBatch,
    StepMask, pool_mean_max,
};

/// Settings of a [`PatchTransformer`]: the `[model.patch-transformer]` table. Width, layers, dropout
/// and the share of hidden patches are PatchTST's; a patch is R1's 7 steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PatchTransformerConfig {
    /// Steps of a patch. The last one of a window may be shorter.
    pub patch: usize,
    /// Numbers of a patch within the model; a multiple of the heads, and even.
    pub width: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Encoder layers.
    pub layers: usize,
    /// Units of each layer's feed-forward network.
    pub feedforward: usize,
    /// Probability of dropout in each layer, `0 ≤ p < 1`.
    pub dropout: f64,
    /// How the hidden steps of a sample are chosen.
    pub mask: MaskRule,
}

impl Default for PatchTransformerConfig {
    fn default() -> Self {
        Self {
            patch: 7,
            width: 128,
            heads: 8,
            layers: 3,
            feedforward: 256,
            dropout: 0.2,
            mask: MaskRule::Patch { steps: 7, share: 0.4 },
        }
    }
}

impl PatchTransformerConfig {
    /// The settings of each of its layers.
    pub fn layer(&self) -> EncoderLayerConfig {
        EncoderLayerConfig {
            width: self.width,
            heads: self.heads,
            feedforward: self.feedforward,
            dropout: self.dropout,
            activation: Activation::Gelu,
            norm_first: true,
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// The first setting that is out of its range.
    pub fn validate(&self) -> Result<(), ModelError> {
        self.layer().validate()?;
        at_least_one(&[("patch", self.patch), ("layers", self.layers)])?;
        if !self.width.is_multiple_of(2) {
            let (found, allowed) =
                (self.width.to_string(), "even: positions are sines and cosines");
            return Err(ModelError::Setting { key: "width", found, allowed });
        }
        self.mask.validate()
    }

    /// Builds the model with weights drawn from `stream`: layers as PyTorch draws them, the mask
    /// token N(0, 1) · 0.02.
    ///
    /// # Errors
    /// If a setting is out of its range, or there is no channel.
    pub fn init(
        &self,
        stream: Stream,
        channels: usize,
        device: &Device,
    ) -> Result<PatchTransformer, ModelError> {
        self.validate()?;
        at_least_one(&[("channels", channels)])?;
        let (width, numbers) = (self.width, self.patch * channels);
        let token = normal(stream.substream(0), [channels], 0.0, 0.02, device);
        Ok(PatchTransformer {
            mask_token: Param::from_tensor(token),
            input: init_linear(stream.substream(1), numbers, width, device),
            encoder: Layers::init(&self.layer(), self.layers, stream.substream(2), device)?,
            norm: LayerNormConfig::new(width).with_epsilon(EPSILON).init(device),
            decoder: init_linear(stream.substream(3), width, numbers, device),
            config: self.clone(),
            precision: Precision::F32,
        })
    }
}

/// A Transformer over patches. Parameters are named `mask_token`, `input.weight`,
/// `encoder.layers.0.self_attn.in_proj_weight`, …, `norm.weight`, `decoder.weight`.
#[derive(Module, Debug)]
pub struct PatchTransformer {
    mask_token: Param<Tensor<1>>,
    input: Linear,
    encoder: Layers,
    norm: LayerNorm,
    decoder: Linear,
    #[module(skip)]
    config: PatchTransformerConfig,
    #[module(skip)]
    precision: Precision,
}

impl PatchTransformer {
    /// The settings that the model was built with.
    pub fn config(&self) -> &PatchTransformerConfig {
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

    /// Encodes a batch whose hidden steps are replaced by the token, and decodes it.
    fn restore(
        &self,
        batch: &PretrainBatch<'_>,
        masked: &Tensor<3>,
        dropout: Option<Stream>,
    ) -> Tensor<3> {
        let [samples, time, channels] = batch.inputs.dims();
        let shown = hidden(&batch.inputs, masked, &self.mask_token);
        let latent = self.encode(shown, Some(batch.lengths), dropout);
        let [_, patches, width] = latent.dims();
        let rows = latent.reshape([samples * patches, width]);
        let rows = linear_in(self.precision, rows, &self.decoder);
        let steps = rows.reshape([samples, patches * self.config.patch, channels]);
        steps.slice([0..samples, 0..time, 0..channels])
    }

    /// `[batch, time, channel]` → `[batch · patch, steps · channel]` and the number of patches; zeros
    /// fill the last patch, and stand for padding.
    fn patches(&self, input: Tensor<3>, lengths: Option<&[usize]>) -> (Tensor<2>, usize) {
        let [batch, time, channels] = input.dims();
        let input = without_padding(input, lengths);
        let (patch, patches) = (self.config.patch, time.div_ceil(self.config.patch));
        let missing = patches * patch - time;
        let input = if missing == 0 {
            input
        } else {
            let zeros = Tensor::zeros([batch, missing, channels], &input.device());
            Tensor::cat(vec![input, zeros], 1)
        };
        (input.reshape([batch * patches, patch * channels]), patches)
    }
}

impl Encoder for PatchTransformer {
    /// A step of the encoding is a patch of the input.
    fn encode(
        &self,
        input: Tensor<3>,
        lengths: Option<&[usize]>,
        dropout: Option<Stream>,
    ) -> Tensor<3> {
        let [batch, _, _] = input.dims();
        let width = self.config.width;
        let (rows, patches) = self.patches(input, lengths);
        let rows = linear_in(self.precision, rows, &self.input);
        let device = rows.device().without_autodiff();
        let x = rows.reshape([batch, patches, width]) + sinusoidal(patches, width, &device);
        let lengths = lengths.map(|lengths| self.step_lengths(lengths));
        let x = self.encoder.forward(x, lengths.as_deref(), dropout);
        let x = norm(&self.norm, x.reshape([batch * patches, width]));
        without_padding(x.reshape([batch, patches, width]), lengths.as_deref())
    }

    fn embed(&self, input: Tensor<3>, lengths: Option<&[usize]>) -> Tensor<2> {
        let encoded = self.encode(input, lengths, None);
        let lengths = lengths.map(|lengths| self.step_lengths(lengths));
        pool_mean_max(encoded, lengths.as_deref())
    }

    fn embedding_width(&self) -> usize {
        2 * self.config.width
    }

    fn step_lengths(&self, lengths: &[usize]) -> Vec<usize> {
        lengths.iter().map(|length| length.div_ceil(self.config.patch)).collect()
    }
}

impl Pretrain for PatchTransformer {
    fn mask_rule(&self) -> &MaskRule {
        &self.config.mask
    }

    /// The loss of a batch whose hidden steps are given: the squared error summed over all channels
    /// of all hidden steps, divided by their number, which is also the loss's weight.
    fn masked_loss(
        &self,
        batch: &PretrainBatch<'_>,
        mask: &StepMask,
        dropout: Option<Stream>,
    ) -> Loss {
        let masked = mask.to_tensor(&batch.inputs.device().without_autodiff());
        let output = self.restore(batch, &masked, dropout);
        reconstruction_loss(output, &batch.inputs, masked, mask.count())
    }

    fn reconstruct(&self, batch: &PretrainBatch<'_>, mask: &StepMask) -> Tensor<3> {
        let masked = mask.to_tensor(&batch.inputs.device().without_autodiff());
        self.restore(batch, &masked, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> PatchTransformer {
        let config = PatchTransformerConfig {
            patch: 4,
            width: 8,
            heads: 2,
            layers: 1,
            feedforward: 12,
            ..PatchTransformerConfig::default()
        };
        config.init(Stream::new(1, "weights"), 2, &Device::default()).unwrap()
    }

    fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.into_data().try_into_vec().unwrap()
    }

    fn windows(samples: usize, time: usize) -> Tensor<3> {
        normal(Stream::new(2, "windows"), [samples, time, 2], 0.0, 1.0, &Device::default())
    }

    #[test]
    fn padding_changes_nothing_whatever_it_holds() {
        let model = small();
        let short = windows(3, 9);
        let tail = Tensor::full([3, 6, 2], 1e3, &Device::default());
        let long = Tensor::cat(vec![short.clone(), tail], 1);
        let lengths = [9, 4, 0];
        assert_eq!(model.step_lengths(&lengths), [3, 1, 0]);
        let a = values(model.embed(short, Some(&lengths)));
        let b = values(model.embed(long.clone(), Some(&lengths)));
        for (a, b) in a.iter().zip(&b) {
            assert!((a - b).abs() < 1e-5, "{a} {b}");
        }
        assert_eq!(b[32..], [0.0; 16]);
        assert_eq!(model.encode(long, Some(&lengths), None).dims(), [3, 4, 8]);
    }

    #[test]
    fn what_stands_under_a_hidden_step_is_not_seen_and_is_all_that_is_scored() {
        let model = small();
        let inputs = windows(2, 8);
        let batch = |inputs| PretrainBatch { inputs, lengths: &[8, 8], indices: &[0, 1] };
        let masked = [[true; 4], [false; 4]].as_flattened().repeat(2);
        let mask = StepMask { masked, batch: 2, time: 8 };
        let output = values(model.reconstruct(&batch(inputs.clone()), &mask));
        let hidden = mask.to_tensor(&Device::default());
        let other = inputs.clone() * (1.0 - hidden.clone()) + hidden * 50.0;
        assert_eq!(values(model.reconstruct(&batch(other), &mask)), output);
        let loss = model.masked_loss(&batch(inputs.clone()), &mask, None);
        let expected =
            output.iter().zip(values(inputs)).enumerate().fold(0.0, |sum, (at, (a, b))| {
                sum + if at % 16 < 8 { f64::from(a - b).powi(2) / 16.0 } else { 0.0 }
            });
        assert_eq!(loss.weight, 16.0);
        assert!((f64::from(values(loss.value)[0]) - expected).abs() < 1e-5 * expected);
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let refused = |config: PatchTransformerConfig| config.validate().unwrap_err().to_string();
        let default = PatchTransformerConfig::default;
        assert!(refused(PatchTransformerConfig { patch: 0, ..default() }).contains("`patch` is 0"));
        let odd = PatchTransformerConfig { width: 9, heads: 3, ..default() };
        assert!(refused(odd).contains("`width` is 9; it must be even"));
        let mask = MaskRule::Block { share: 0.0 };
        assert!(refused(PatchTransformerConfig { mask, ..default() }).contains("mask.block"));
    }
}
