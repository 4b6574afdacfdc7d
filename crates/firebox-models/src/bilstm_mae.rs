//! The masked autoencoder of reference system R1: a bidirectional LSTM that restores hidden steps.
//!
//! ```text
//! x [batch, time, channel]     hidden steps replaced by a learned token [channel]
//!   → LSTM, 2 layers × 2 directions × 128, dropout 0.2 between layers
//!   → LayerNorm(256) = the latent [batch, time, 256]
//!   → Linear 256 → 128, ReLU, dropout 0.2 → Linear 128 → channel
//! ```
//!
//! With 4 channels the LSTM has 532,480 parameters and the whole model 566,408. This file draws no
//! mask (see `mask`) and knows no optimizer.

use burn::module::{Module, Param};
use burn::nn::{LayerNorm, LayerNormConfig, Linear};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{
    Activation, Lstm, LstmConfig, feed_forward, init_linear, layer_norm, linear_activated,
    linear_in, normal,
};
use serde::{Deserialize, Serialize};

use crate::encoder::without_padding;
use crate::pretrain::{hidden, reconstruction_loss};
use crate::recurrent::lstm_outputs;
use crate::{Encoder, Loss, MaskRule, ModelError, Pretrain, PretrainBatch, StepMask, valid_steps};

/// What LayerNorm adds to the variance; PyTorch's default.
const EPSILON: f64 = 1e-5;

/// Settings of a [`BiLstmMae`]: the `[model.bilstm-mae]` table. Every default is R1's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BiLstmMaeConfig {
    /// Hidden units of each LSTM layer and direction.
    pub hidden: usize,
    /// LSTM layers.
    pub layers: usize,
    /// Probability of dropout between LSTM layers and in the decoder, `0 ≤ p < 1`.
    pub dropout: f64,
    /// Units of the decoder's hidden layer.
    pub decoder_hidden: usize,
    /// How the hidden steps of a sample are chosen.
    pub mask: MaskRule,
    /// Weight of the term that keeps the latent from collapsing, in units of mean squared error.
    pub latent_weight: f64,
}

impl Default for BiLstmMaeConfig {
    fn default() -> Self {
        Self {
            hidden: 128,
            layers: 2,
            dropout: 0.2,
            decoder_hidden: 128,
            mask: MaskRule::default(),
            latent_weight: 0.1,
        }
    }
}

impl BiLstmMaeConfig {
    /// Checks the settings.
    ///
    /// # Errors
    /// The first setting that is out of its range.
    pub fn validate(&self) -> Result<(), ModelError> {
        let sizes = [
            ("hidden", self.hidden),
            ("layers", self.layers),
            ("decoder_hidden", self.decoder_hidden),
        ];
        if let Some((key, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(ModelError::Setting { key, found: "0".to_owned(), allowed: "at least 1" });
        }
        if !(0.0..1.0).contains(&self.dropout) {
            let (found, allowed) = (self.dropout.to_string(), "at least 0 and below 1");
            return Err(ModelError::Setting { key: "dropout", found, allowed });
        }
        if !(self.latent_weight >= 0.0 && (self.latent_weight as f32).is_finite()) {
            let (found, allowed) =
                (self.latent_weight.to_string(), "finite in f32 and not negative");
            return Err(ModelError::Setting { key: "latent_weight", found, allowed });
        }
        self.mask.validate()
    }

    /// Builds the model with weights drawn from `stream` as PyTorch draws them: the LSTM and the
    /// linear layers uniformly, the mask token N(0, 1) · 0.02, LayerNorm one and zero.
    ///
    /// # Errors
    /// If a setting is out of its range, or there is no channel.
    pub fn init(
        &self,
        stream: Stream,
        channels: usize,
        device: &Device,
    ) -> Result<BiLstmMae, ModelError> {
        self.validate()?;
        if channels == 0 {
            let found = "0".to_owned();
            return Err(ModelError::Setting { key: "channels", found, allowed: "at least 1" });
        }
        let lstm = LstmConfig {
            input: channels,
            hidden: self.hidden,
            layers: self.layers,
            bidirectional: true,
            dropout: self.dropout,
        };
        let width = 2 * self.hidden;
        let token = normal(stream.substream(0), [channels], 0.0, 0.02, device);
        Ok(BiLstmMae {
            mask_token: Param::from_tensor(token),
            lstm: lstm.init(stream.substream(1), device),
            norm: LayerNormConfig::new(width).with_epsilon(EPSILON).init(device),
            decoder: Decoder {
                hidden: init_linear(stream.substream(2), width, self.decoder_hidden, device),
                output: init_linear(stream.substream(3), self.decoder_hidden, channels, device),
            },
            config: self.clone(),
            recomputed: false,
        })
    }
}

/// R1's masked autoencoder. Parameters are named `mask_token`, `lstm.weight_ih_l0`, …,
/// `norm.weight`, `decoder.hidden.weight`, `decoder.output.bias`.
#[derive(Module, Debug)]
pub struct BiLstmMae {
    mask_token: Param<Tensor<1>>,
    lstm: Lstm,
    norm: LayerNorm,
    decoder: Decoder,
    #[module(skip)]
    config: BiLstmMaeConfig,
    #[module(skip)]
    recomputed: bool,
}

#[derive(Module, Debug)]
struct Decoder {
    hidden: Linear,
    output: Linear,
}

impl BiLstmMae {
    /// The settings that the model was built with.
    pub fn config(&self) -> &BiLstmMaeConfig {
        &self.config
    }

    /// The same model with the products of its LSTM and its decoder in this type; see
    /// [`Lstm::in_precision`] and [`linear_in`]. Everything else stays f32.
    #[must_use]
    pub fn in_precision(self, precision: Precision) -> Self {
        Self { lstm: self.lstm.in_precision(precision), ..self }
    }

    /// The same model, of which each LSTM layer keeps its input alone and is computed again for its
    /// gradient, on devices where [`recomputes_on`](firebox_kernels::recomputes_on) says so: less
    /// memory, another forward pass, the same numbers to the bit.
    #[must_use]
    pub fn recomputed(self, recomputed: bool) -> Self {
        Self { recomputed, ..self }
    }

    /// Parameters of the LSTM alone: what R1 counts as the encoder.
    pub fn encoder_parameters(&self) -> usize {
        self.lstm.num_params()
    }

    /// The latent of a batch whose hidden steps are replaced by the mask token.
    fn latent(
        &self,
        batch: &PretrainBatch<'_>,
        masked: &Tensor<3>,
        dropout: Option<Stream>,
    ) -> Tensor<3> {
        self.encode(hidden(&batch.inputs, masked, &self.mask_token), Some(batch.lengths), dropout)
    }

    /// [batch, time, 2 · hidden] → [batch, time, channel]
    fn decode(&self, latent: Tensor<3>, stream: Option<Stream>) -> Tensor<3> {
        let [batch, time, width] = latent.dims();
        // As rows: the gradient of a weight would otherwise be made for each sample and summed.
        let precision = self.lstm.precision();
        let rows = latent.reshape([batch * time, width]);
        let Decoder { hidden, output } = &self.decoder;
        let at_once = match stream {
            None => feed_forward(precision, &rows, hidden, Activation::Relu, output),
            Some(_) => None,
        };
        let rows = at_once.unwrap_or_else(|| {
            let (activation, dropout) = (Activation::Relu, self.config.dropout);
            let rows = linear_activated(precision, rows, hidden, activation, dropout, stream);
            linear_in(precision, rows, output)
        });
        let [_, channels] = rows.dims();
        rows.reshape([batch, time, channels])
    }

    /// Mean over the units of each unit's standard deviation over `steps` valid steps.
    fn spread(&self, latent: Tensor<3>, lengths: &[usize], steps: usize) -> Tensor<1> {
        let [samples, time, width] = latent.dims();
        let rows = samples * time;
        let latent = latent.reshape([rows, width]);
        // Padding is zero in the latent, so it is absent from the sum. The variance does not
        // change with the mean that it is taken around (to first order), so none of its gradient
        // flows through the mean.
        let mean = latent.clone().detach().inner().sum_dim(0) / steps as f64;
        let mut centred = latent - mean;
        if steps < rows {
            let valid = valid_steps(lengths, time, &centred.device().without_autodiff());
            centred = centred * valid.reshape([rows, 1]);
        }
        let variance = centred.square().sum_dim(0) / (steps - 1).max(1) as f64;
        (variance + 1e-8).sqrt().mean()
    }
}

impl Encoder for BiLstmMae {
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
        let output = lstm_outputs(&self.lstm, self.recomputed, input, lengths, dropout);
        let LayerNorm { gamma, beta, .. } = &self.norm;
        let beta = beta.as_ref().map(|beta| beta.val());
        let latent = layer_norm(output, gamma.val(), beta, EPSILON);
        // LayerNorm gives its bias where the LSTM gave zeros.
        without_padding(latent, lengths)
    }

    fn embedding_width(&self) -> usize {
        4 * self.config.hidden
    }
}

impl Pretrain for BiLstmMae {
    fn mask_rule(&self) -> &MaskRule {
        &self.config.mask
    }

    /// `value = reconstruction + latent_weight · relu(1 − spread)`, where
    /// - *reconstruction* is the squared error summed over all channels of all hidden steps of the
    ///   batch, divided by their number, which is also the loss's `weight`;
    /// - *spread* is the standard deviation (unbiased, plus 1e-8 under the root, so that a
    ///   collapsed latent has a gradient) of each latent unit over all valid steps of all samples
    ///   of the batch, averaged over the units.
    fn masked_loss(
        &self,
        batch: &PretrainBatch<'_>,
        mask: &StepMask,
        dropout: Option<Stream>,
    ) -> Loss {
        let [_, time, _] = batch.inputs.dims();
        let masked = mask.to_tensor(&batch.inputs.device().without_autodiff());
        let latent = self.latent(batch, &masked, dropout.map(|stream| stream.substream(0)));
        let output = self.decode(latent.clone(), dropout.map(|stream| stream.substream(1)));
        let mut loss = reconstruction_loss(output, &batch.inputs, masked, mask.count());
        let steps: usize = batch.lengths.iter().map(|length| (*length).min(time)).sum();
        if self.config.latent_weight > 0.0 && steps > 0 {
            let spread = self.spread(latent, batch.lengths, steps);
            loss.parts.push(("latent_spread", spread.clone().detach().inner()));
            loss.value = loss.value + relu(1.0 - spread) * self.config.latent_weight;
        }
        loss
    }

    fn reconstruct(&self, batch: &PretrainBatch<'_>, mask: &StepMask) -> Tensor<3> {
        let masked = mask.to_tensor(&batch.inputs.device().without_autodiff());
        self.decode(self.latent(batch, &masked, None), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(latent_weight: f64) -> BiLstmMae {
        let config = BiLstmMaeConfig {
            hidden: 5,
            decoder_hidden: 4,
            dropout: 0.3,
            latent_weight,
            ..BiLstmMaeConfig::default()
        };
        config.init(Stream::new(1, "weights"), 2, &Device::default()).unwrap()
    }

    fn windows(samples: usize, time: usize) -> Tensor<3> {
        normal(Stream::new(2, "windows"), [samples, time, 2], 0.0, 1.0, &Device::default())
    }

    fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.into_data().try_into_vec().unwrap()
    }

    #[test]
    fn parameters_are_counted_as_in_the_reference_system() {
        let model = BiLstmMaeConfig::default();
        let model = model.init(Stream::new(1, "weights"), 4, &Device::default()).unwrap();
        assert_eq!((model.encoder_parameters(), model.num_params()), (532_480, 566_408));
        assert_eq!(model.embedding_width(), 512);
    }

    #[test]
    fn padding_changes_nothing() {
        let model = small(0.1);
        let lengths = [9, 4, 1];
        let short = windows(3, 9);
        let tail = Tensor::full([3, 6, 2], 1e3, &Device::default());
        let long = Tensor::cat(vec![short.clone(), tail], 1);
        let loss = |inputs: Tensor<3>| {
            let batch = PretrainBatch { inputs, lengths: &lengths, indices: &[0, 1, 2] };
            let loss = model.pretrain_loss(&batch, Stream::new(3, "mask"), None);
            (values(loss.value), loss.weight)
        };
        let (a, b) = (loss(short.clone()), loss(long.clone()));
        assert_eq!(a.1, b.1);
        assert!((a.0[0] - b.0[0]).abs() < 1e-6 * a.0[0].abs(), "{a:?} {b:?}");
        let embedded = |inputs| values(model.embed(inputs, Some(&lengths)));
        for (a, b) in embedded(short).iter().zip(embedded(long)) {
            assert!((a - b).abs() < 1e-5, "{a} {b}");
        }
    }

    #[test]
    fn only_hidden_steps_are_scored() {
        let model = small(0.0);
        let inputs = windows(2, 8);
        let batch = |inputs| PretrainBatch { inputs, lengths: &[8, 8], indices: &[0, 1] };
        let mask = StepMask {
            masked: [[true; 4], [false; 4]].as_flattened().repeat(2),
            batch: 2,
            time: 8,
        };
        let loss = model.masked_loss(&batch(inputs.clone()), &mask, None);
        let output = values(model.reconstruct(&batch(inputs.clone()), &mask));
        let expected =
            output.iter().zip(values(inputs)).enumerate().fold(0.0, |sum, (i, (a, b))| {
                sum + if i % 16 < 8 { f64::from(a - b).powi(2) / 16.0 } else { 0.0 }
            });
        assert_eq!(loss.weight, 16.0);
        assert!((f64::from(values(loss.value)[0]) - expected).abs() < 1e-6, "{expected}");
        // What stands under a hidden step is not seen.
        let hidden = mask.to_tensor(&Device::default());
        let other = windows(2, 8) * (1.0 - hidden.clone()) + hidden * 50.0;
        assert_eq!(values(model.reconstruct(&batch(other), &mask)), output);
    }

    #[test]
    fn a_collapsed_latent_is_penalised_and_a_batch_without_steps_is_not() {
        let model = small(0.1);
        let inputs = Tensor::<3>::ones([1, 1, 2], &Device::default());
        let batch = PretrainBatch { inputs: inputs.clone(), lengths: &[1], indices: &[0] };
        let loss = model.clone().train().pretrain_loss(&batch, Stream::new(1, "mask"), None);
        assert_eq!(loss.parts.len(), 2);
        let penalty = values(loss.value.clone().inner())[0] - values(loss.parts[0].1.clone())[0];
        assert!((penalty - 0.1).abs() < 1e-4, "{penalty}");
        let gradients = loss.value.backward();
        let model = model.train();
        let batch = PretrainBatch { inputs, lengths: &[0], indices: &[0] };
        let loss = model.pretrain_loss(&batch, Stream::new(1, "mask"), None);
        assert_eq!((values(loss.value.inner())[0], loss.weight), (0.0, 0.0));
        drop(gradients);
    }

    #[test]
    fn dropout_follows_its_stream() {
        let model = small(0.1);
        let inputs = windows(3, 20);
        let batch = PretrainBatch { inputs, lengths: &[20, 20, 11], indices: &[0, 1, 2] };
        let loss =
            |dropout| values(model.pretrain_loss(&batch, Stream::new(1, "mask"), dropout).value)[0];
        let stream = |step| Some(Stream::new(1, "dropout").substream(step));
        assert_eq!(loss(stream(1)), loss(stream(1)));
        assert_ne!(loss(stream(1)), loss(stream(2)));
        assert_ne!(loss(stream(1)), loss(None));
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let check = |config: BiLstmMaeConfig, expected: &str| {
            let error = config.init(Stream::new(1, "weights"), 4, &Device::default()).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        };
        let default = BiLstmMaeConfig::default;
        check(BiLstmMaeConfig { hidden: 0, ..default() }, "`hidden` is 0");
        check(BiLstmMaeConfig { dropout: 1.0, ..default() }, "`dropout` is 1");
        check(BiLstmMaeConfig { latent_weight: f64::NAN, ..default() }, "`latent_weight` is NaN");
        check(BiLstmMaeConfig { mask: MaskRule::Block { share: 0.0 }, ..default() }, "mask.block");
        let none = default().init(Stream::new(1, "weights"), 0, &Device::default()).unwrap_err();
        assert!(none.to_string().contains("channels"));
    }
}
