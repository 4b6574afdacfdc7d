//! A recurrent encoder: an LSTM or a GRU with LayerNorm on its steps.
//!
//! With its defaults it is the encoder of [`BiLstmMae`](crate::BiLstmMae), under the same names of
//! parameters (`lstm.weight_ih_l0`, …, `norm.bias`), so that pre-trained weights fit it as they are.
//! It has no decoder and no head.

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig};
use burn::tensor::{Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{Gru, GruConfig, Lstm, LstmConfig, dropout, recomputed};
use serde::{Deserialize, Serialize};

use crate::encoder::without_padding;
use crate::encoder_layer::{EPSILON, norm};
use crate::transformer::at_least_one;
use crate::{Encoder, ModelError};

/// The unit that a recurrent encoder is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cell {
    /// Long short-term memory.
    #[default]
    Lstm,
    /// Gated recurrent unit.
    Gru,
}

/// Settings of a [`RecurrentEncoder`]. Every default is R1's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecurrentConfig {
    /// The unit.
    pub cell: Cell,
    /// Hidden units of each layer and direction.
    pub hidden: usize,
    /// Layers.
    pub layers: usize,
    /// Whether each layer also reads the sequence backwards.
    pub bidirectional: bool,
    /// Probability of dropout between layers, `0 ≤ p < 1`.
    pub dropout: f64,
}

impl Default for RecurrentConfig {
    fn default() -> Self {
        Self { cell: Cell::Lstm, hidden: 128, layers: 2, bidirectional: true, dropout: 0.2 }
    }
}

impl RecurrentConfig {
    /// Checks the settings.
    ///
    /// # Errors
    /// The first setting that is out of its range.
    pub fn validate(&self) -> Result<(), ModelError> {
        at_least_one(&[("hidden", self.hidden), ("layers", self.layers)])?;
        if !(0.0..1.0).contains(&self.dropout) {
            let (found, allowed) = (self.dropout.to_string(), "at least 0 and below 1");
            return Err(ModelError::Setting { key: "dropout", found, allowed });
        }
        Ok(())
    }

    /// Numbers of an encoded step.
    pub fn width(&self) -> usize {
        self.hidden * (1 + usize::from(self.bidirectional))
    }

    /// Builds the encoder with weights drawn from `stream` as PyTorch draws them.
    ///
    /// # Errors
    /// If a setting is out of its range, or there is no channel.
    pub fn init(
        &self,
        stream: Stream,
        channels: usize,
        device: &Device,
    ) -> Result<RecurrentEncoder, ModelError> {
        self.validate()?;
        at_least_one(&[("channels", channels)])?;
        let &Self { cell, hidden, layers, bidirectional, dropout } = self;
        let input = channels;
        let lstm = LstmConfig { input, hidden, layers, bidirectional, dropout };
        let gru = GruConfig { input, hidden, layers, bidirectional, dropout };
        let stream = stream.substream(1);
        Ok(RecurrentEncoder {
            lstm: (cell == Cell::Lstm).then(|| lstm.init(stream, device)),
            gru: (cell == Cell::Gru).then(|| gru.init(stream, device)),
            norm: LayerNormConfig::new(self.width()).with_epsilon(EPSILON).init(device),
            config: self.clone(),
            recomputed: false,
        })
    }
}

/// An LSTM or a GRU with LayerNorm. Parameters are named `lstm.weight_ih_l0` or `gru.weight_ih_l0`,
/// …, `norm.weight`, `norm.bias`.
#[derive(Module, Debug)]
pub struct RecurrentEncoder {
    lstm: Option<Lstm>,
    gru: Option<Gru>,
    norm: LayerNorm,
    #[module(skip)]
    config: RecurrentConfig,
    #[module(skip)]
    recomputed: bool,
}

impl RecurrentEncoder {
    /// The settings that the encoder was built with.
    pub fn config(&self) -> &RecurrentConfig {
        &self.config
    }

    /// The same encoder with the operands of its products in this type.
    #[must_use]
    pub fn in_precision(self, precision: Precision) -> Self {
        Self {
            lstm: self.lstm.map(|lstm| lstm.in_precision(precision)),
            gru: self.gru.map(|gru| gru.in_precision(precision)),
            ..self
        }
    }

    /// The same encoder, of which each recurrent layer keeps its input alone and is computed again for its
    /// gradient, on devices where [`recomputes_on`](firebox_kernels::recomputes_on) says so: less
    /// memory, another forward pass, the same numbers to the bit.
    #[must_use]
    pub fn recomputed(self, recomputed: bool) -> Self {
        Self { recomputed, ..self }
    }
}

/// What an LSTM gives for each step, layer by layer if they are computed again for their gradients.
pub(crate) fn lstm_outputs(
    lstm: &Lstm,
    again: bool,
    input: Tensor<3>,
    lengths: Option<&[usize]>,
    stream: Option<Stream>,
) -> Tensor<3> {
    if !again {
        return lstm.outputs(input, lengths, stream);
    }
    let run: Layer<Lstm> = |layer, x, lengths| layer.outputs(x, lengths, None);
    layer_by_layer(&lstm.layers(), lstm.config().dropout, input, lengths, stream, run)
}

/// The same of a GRU.
fn gru_outputs(
    gru: &Gru,
    again: bool,
    input: Tensor<3>,
    lengths: Option<&[usize]>,
    stream: Option<Stream>,
) -> Tensor<3> {
    if !again {
        return gru.outputs(input, lengths, stream);
    }
    let run: Layer<Gru> = |layer, x, lengths| layer.outputs(x, lengths, None);
    layer_by_layer(&gru.layers(), gru.config().dropout, input, lengths, stream, run)
}

/// One recurrent layer: what it gives for each step of an input with these valid steps.
type Layer<M> = fn(&M, Tensor<3>, Option<&[usize]>) -> Tensor<3>;

/// Layers that keep their inputs alone, and are computed again for their gradients.
fn layer_by_layer<M: Module + 'static>(
    layers: &[M],
    rate: f64,
    input: Tensor<3>,
    lengths: Option<&[usize]>,
    stream: Option<Stream>,
    run: Layer<M>,
) -> Tensor<3> {
    layers.iter().enumerate().fold(input, |x, (index, layer)| {
        let lengths = lengths.map(<[usize]>::to_vec);
        // Above the first layer, dropout of what is below: computed again like the rest.
        let below = index.checked_sub(1).and_then(|below| Some((below, stream?)));
        recomputed(layer, x, move |layer, x| {
            let stream = below.map(|(below, stream)| stream.substream(below as u64));
            run(layer, dropout(x, rate, stream), lengths.as_deref())
        })
    })
}

impl Encoder for RecurrentEncoder {
    fn encode(
        &self,
        input: Tensor<3>,
        lengths: Option<&[usize]>,
        dropout: Option<Stream>,
    ) -> Tensor<3> {
        let [batch, time, _] = input.dims();
        let output = match (&self.lstm, &self.gru) {
            _ if lengths.is_some_and(|lengths| lengths.iter().all(|length| *length == 0)) => {
                return Tensor::zeros([batch, time, self.config.width()], &input.device());
            }
            (Some(lstm), _) => lstm_outputs(lstm, self.recomputed, input, lengths, dropout),
            (None, Some(gru)) => gru_outputs(gru, self.recomputed, input, lengths, dropout),
            (None, None) => unreachable!("an encoder is built with one of both"),
        };
        // LayerNorm gives its bias where padding was zero.
        without_padding(norm(&self.norm, output), lengths)
    }

    fn embedding_width(&self) -> usize {
        2 * self.config.width()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BiLstmMaeConfig, Parameter, layouts, read_parameters, write_parameters};

    #[test]
    fn it_is_the_encoder_of_the_masked_autoencoder() {
        let device = Device::default();
        let mae = BiLstmMaeConfig { hidden: 5, decoder_hidden: 4, ..BiLstmMaeConfig::default() };
        let mae = mae.init(Stream::new(1, "weights"), 3, &device).unwrap();
        let config = RecurrentConfig { hidden: 5, ..RecurrentConfig::default() };
        let mut encoder = config.init(Stream::new(9, "other"), 3, &device).unwrap();
        let own: Vec<String> = layouts(&encoder).into_iter().map(|layout| layout.name).collect();
        let weights: Vec<Parameter> =
            read_parameters(&mae).into_iter().filter(|p| own.contains(&p.name)).collect();
        write_parameters(&mut encoder, weights).unwrap();
        let data: Vec<f32> = (0..2 * 9 * 3).map(|i| (i as f32 * 0.7).sin()).collect();
        let data = burn::tensor::TensorData::new(data, [2, 9, 3]);
        let input = Tensor::<3>::from_data(data, &device);
        let lengths = [9, 4];
        let embed = |a: Tensor<2>| a.into_data().try_into_vec::<f32>().unwrap();
        assert_eq!(
            embed(encoder.embed(input.clone(), Some(&lengths))),
            embed(mae.embed(input, Some(&lengths)))
        );
    }

    #[test]
    fn a_gru_has_three_gates_and_padding_changes_nothing() {
        let device = Device::default();
        let config = RecurrentConfig { cell: Cell::Gru, hidden: 4, ..RecurrentConfig::default() };
        let encoder = config.init(Stream::new(1, "weights"), 2, &device).unwrap();
        let named = layouts(&encoder);
        let layout = named.iter().find(|layout| layout.name == "gru.weight_ih_l0").unwrap();
        assert_eq!(layout.torch_shape(), [12, 2]);
        let short = Tensor::<3>::ones([1, 3, 2], &device);
        let long = Tensor::cat(vec![short.clone(), Tensor::full([1, 2, 2], 7.0, &device)], 1);
        let embed = |x| encoder.embed(x, Some(&[3])).into_data().try_into_vec::<f32>().unwrap();
        assert_eq!(embed(short), embed(long));
        let empty = encoder.encode(Tensor::ones([1, 3, 2], &device), Some(&[0]), None);
        assert_eq!(empty.into_data().try_into_vec::<f32>().unwrap(), [0.0; 24]);
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let refused = |config: RecurrentConfig| config.validate().unwrap_err().to_string();
        let default = RecurrentConfig::default;
        assert!(refused(RecurrentConfig { hidden: 0, ..default() }).contains("`hidden` is 0"));
        assert!(refused(RecurrentConfig { dropout: 1.0, ..default() }).contains("`dropout` is 1"));
    }
}
