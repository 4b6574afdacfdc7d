//! The forecaster of reference system R2: LSTM layers of different widths, and a dense head that also
//! sees what is known of a window beside its values.
//!
//! ```text
//! x [batch, time, channel]
//!   → LSTM 128 → LSTM 64                 = the encoding [batch, time, 64]
//!   → its last valid step ‖ static features [batch, 64 + static]
//!   → Linear 32, ReLU, dropout 0.2 → Linear → forecasts [batch, output]
//! ```
//!
//! An output is one target at one horizon, in the order that whoever trains gives them. What they are
//! scaled by, and the loss, are not known here.

use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::{Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{
    Activation, Lstm, LstmConfig, init_linear, linear_activated, linear_in, recomputed,
};
use serde::{Deserialize, Serialize};

use crate::{Encoder, ModelError};

/// Settings of a [`StackedLstm`]: the `[model.stacked-lstm]` table. Every default is R2's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StackedLstmConfig {
    /// Hidden units of the first LSTM layer.
    pub hidden_1: usize,
    /// Hidden units of the second LSTM layer; 0: there is none.
    pub hidden_2: usize,
    /// Units of the dense layer before the output.
    pub dense: usize,
    /// Probability of dropout after the dense layer, `0 ≤ p < 1`.
    pub dropout: f64,
}

impl Default for StackedLstmConfig {
    fn default() -> Self {
        Self { hidden_1: 128, hidden_2: 64, dense: 32, dropout: 0.2 }
    }
}

impl StackedLstmConfig {
    /// Checks the settings.
    ///
    /// # Errors
    /// The first setting that is out of its range.
    pub fn validate(&self) -> Result<(), ModelError> {
        for (key, size) in [("hidden_1", self.hidden_1), ("dense", self.dense)] {
            at_least_one(key, size)?;
        }
        if !(0.0..1.0).contains(&self.dropout) {
            let (found, allowed) = (self.dropout.to_string(), "at least 0 and below 1");
            return Err(ModelError::Setting { key: "dropout", found, allowed });
        }
        Ok(())
    }

    /// Builds the model with weights drawn from `stream` as PyTorch draws them: uniform in ±1/√hidden
    /// in the LSTM layers and in ±1/√inputs in the dense ones.
    ///
    /// `statics` is the number of static features, which may be 0, and `outputs` that of targets times
    /// horizons.
    ///
    /// # Errors
    /// If a setting is out of its range, or there is no channel or no output.
    pub fn init(
        &self,
        stream: Stream,
        channels: usize,
        statics: usize,
        outputs: usize,
        device: &Device,
    ) -> Result<StackedLstm, ModelError> {
        self.validate()?;
        at_least_one("channels", channels)?;
        at_least_one("outputs", outputs)?;
        let mut layers = vec![];
        let mut width = channels;
        for (place, hidden) in (0..).zip([self.hidden_1, self.hidden_2]) {
            if hidden > 0 {
                let own = stream.substream(0).substream(place);
                layers.push(LstmConfig::new(width, hidden).init(own, device));
                width = hidden;
            }
        }
        Ok(StackedLstm {
            layers,
            dense: init_linear(stream.substream(1), width + statics, self.dense, device),
            output: init_linear(stream.substream(2), self.dense, outputs, device),
            width,
            statics,
            config: self.clone(),
            precision: Precision::F32,
            recomputed: false,
        })
    }
}

fn at_least_one(key: &'static str, size: usize) -> Result<(), ModelError> {
    match size {
        0 => Err(ModelError::Setting { key, found: "0".to_owned(), allowed: "at least 1" }),
        _ => Ok(()),
    }
}

/// R2's forecaster. Parameters are named `layers.0.weight_ih_l0`, …, `dense.weight`, `output.weight`.
#[derive(Module, Debug)]
pub struct StackedLstm {
    layers: Vec<Lstm>,
    dense: Linear,
    output: Linear,
    #[module(skip)]
    width: usize,
    #[module(skip)]
    statics: usize,
    #[module(skip)]
    config: StackedLstmConfig,
    #[module(skip)]
    precision: Precision,
    #[module(skip)]
    recomputed: bool,
}

impl StackedLstm {
    /// The settings that the model was built with.
    pub fn config(&self) -> &StackedLstmConfig {
        &self.config
    }

    /// Static features that it takes.
    pub fn statics(&self) -> usize {
        self.statics
    }

    /// The same model with the products of its layers in this type. Weights, states and sums stay f32.
    #[must_use]
    pub fn in_precision(self, precision: Precision) -> Self {
        let layers = self.layers.into_iter().map(|layer| layer.in_precision(precision)).collect();
        Self { layers, precision, ..self }
    }

    /// The same model, of which each LSTM layer keeps its input alone and is computed again for its
    /// gradient, on devices where [`recomputes_on`](firebox_kernels::recomputes_on) says so: less
    /// memory, another forward pass, the same numbers to the bit.
    #[must_use]
    pub fn recomputed(self, recomputed: bool) -> Self {
        Self { recomputed, ..self }
    }

    /// Forecasts of each sample.
    ///
    /// `lengths` are the valid steps of each sample (all of them when it is `None`), and `dropout` is
    /// the stream that dropout draws from; `None` means evaluation.
    ///
    /// # Shapes
    /// - `inputs`: `[batch, time, channel]`
    /// - `statics`: `[batch, static]`, as many as the model was built with; `None` for none
    /// - returns `[batch, output]`
    ///
    /// # Panics
    /// If a shape does not fit; the message holds the shapes.
    pub fn forecast(
        &self,
        inputs: Tensor<3>,
        lengths: Option<&[usize]>,
        statics: Option<Tensor<2>>,
        dropout: Option<Stream>,
    ) -> Tensor<2> {
        let last = self.last(inputs, lengths);
        let given = statics.as_ref().map_or(0, |statics| statics.dims()[1]);
        assert_eq!(given, self.statics, "static features of a model that was built for as many");
        let features = match statics {
            Some(statics) => Tensor::cat(vec![last, statics], 1),
            None => last,
        };
        let (precision, rate) = (self.precision, self.config.dropout);
        let dense =
            linear_activated(precision, features, &self.dense, Activation::Relu, rate, dropout);
        linear_in(precision, dense, &self.output)
    }

    /// What some of the layers, one above the other, give for each step: `[batch, time, hidden]`.
    fn outputs(&self, layers: &[Lstm], inputs: Tensor<3>, lengths: Option<&[usize]>) -> Tensor<3> {
        layers.iter().fold(inputs, |x, layer| {
            self.layer(layer, x, lengths, |layer, x, lengths| layer.outputs(x, lengths, None))
        })
    }

    /// What the last layer gives for the last valid step, `[batch, hidden]`.
    fn last(&self, inputs: Tensor<3>, lengths: Option<&[usize]>) -> Tensor<2> {
        let ([batch, _, _], width) = (inputs.dims(), self.width);
        let Some((last, below)) = self.layers.split_last() else {
            // `init` makes at least one layer.
            return Tensor::zeros([batch, width], &inputs.device());
        };
        let x = self.outputs(below, inputs, lengths);
        self.layer(last, x, lengths, move |layer, x, lengths| {
            layer.forward(x, lengths, None, None).1.hidden.reshape([batch, width])
        })
    }

    /// What `run` takes of a layer, which keeps its input alone if it is computed again.
    fn layer<const D: usize>(
        &self,
        layer: &Lstm,
        x: Tensor<3>,
        lengths: Option<&[usize]>,
        run: impl Fn(&Lstm, Tensor<3>, Option<&[usize]>) -> Tensor<D> + Send + Sync + 'static,
    ) -> Tensor<D> {
        let [_, time, _] = x.dims();
        // Without padding the kernels need not look at lengths at all.
        let lengths = lengths.filter(|lengths| lengths.iter().any(|length| *length < time));
        if !self.recomputed {
            return run(layer, x, lengths);
        }
        let lengths = lengths.map(<[usize]>::to_vec);
        recomputed(layer, x, move |layer, x| run(layer, x, lengths.as_deref()))
    }
}

impl Encoder for StackedLstm {
    fn encode(&self, input: Tensor<3>, lengths: Option<&[usize]>, _: Option<Stream>) -> Tensor<3> {
        self.outputs(&self.layers, input, lengths)
    }

    /// The encoding of the last valid step, what R2 forecasts from.
    fn embed(&self, input: Tensor<3>, lengths: Option<&[usize]>) -> Tensor<2> {
        self.last(input, lengths)
    }

    fn embedding_width(&self) -> usize {
        self.width
    }

    fn step_width(&self) -> usize {
        self.width
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;

    use super::*;

    fn model(config: &StackedLstmConfig, statics: usize) -> StackedLstm {
        config.init(Stream::new(1, "weights"), 1, statics, 3, &Device::default()).unwrap()
    }

    #[test]
    fn parameters_are_counted_as_in_the_reference_system() {
        let model = model(&StackedLstmConfig::default(), 12);
        let lstm = |input: usize, hidden: usize| 4 * hidden * (input + hidden + 2);
        let dense = (64 + 12) * 32 + 32 + 32 * 3 + 3;
        assert_eq!(model.num_params(), lstm(1, 128) + lstm(128, 64) + dense);
        assert_eq!((model.embedding_width(), model.statics()), (64, 12));
    }

    #[test]
    fn padding_changes_nothing_and_the_last_valid_step_is_taken() {
        let config = StackedLstmConfig { hidden_1: 5, hidden_2: 3, dense: 4, ..Default::default() };
        let model = model(&config, 0);
        let device = Device::default();
        let tensor = |values: Vec<f32>, time: usize| {
            Tensor::<3>::from_data(TensorData::new(values, [1, time, 1]), &device)
        };
        let values = |tensor: Tensor<2>| tensor.into_data().try_into_vec::<f32>().unwrap();
        let padded = tensor(vec![0.5, -1.0, 2.0, 9.0, 9.0], 5);
        let short = tensor(vec![0.5, -1.0, 2.0], 3);
        let forecast = values(model.forecast(padded.clone(), Some(&[3]), None, None));
        assert_eq!(forecast, values(model.forecast(short.clone(), None, None, None)));
        assert!(forecast.iter().all(|value| *value != 0.0));
        let last = model.encode(short.clone(), None, None).slice([0..1, 2..3, 0..3]);
        assert_eq!(values(model.embed(padded, Some(&[3]))), values(last.reshape([1, 3])));
        let one = StackedLstmConfig { hidden_1: 5, hidden_2: 0, ..Default::default() };
        let one = one.init(Stream::new(1, "weights"), 1, 0, 2, &device).unwrap();
        assert_eq!(one.embed(short, None).dims(), [1, 5]);
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let default = StackedLstmConfig::default;
        for (config, expected) in [
            (StackedLstmConfig { hidden_1: 0, ..default() }, "`hidden_1` is 0"),
            (StackedLstmConfig { dense: 0, ..default() }, "`dense` is 0"),
            (StackedLstmConfig { dropout: 1.0, ..default() }, "`dropout` is 1"),
            (StackedLstmConfig { dropout: f64::NAN, ..default() }, "`dropout` is NaN"),
        ] {
            let message = config.validate().unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
        let stream = Stream::new(1, "weights");
        let none = default().init(stream, 0, 0, 1, &Device::default()).unwrap_err();
        assert!(none.to_string().contains("`channels` is 0"), "{none}");
    }
}
