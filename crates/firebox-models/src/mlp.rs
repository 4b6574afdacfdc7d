//! The dense classifier of reference system R3: every value of a window is a feature.
//!
//! ```text
//! x [batch, time, channel] → flattened [batch, time · channel] → BatchNorm
//!   → four times: Linear → BatchNorm → ReLU → dropout 0.3, with 128, 96, 64, 32 units
//!   → times sigmoid(Linear 32 → 32) of itself → Linear → logits [batch, class]
//! ```
//!
//! Windows must all have the same length. This file knows no loss and no optimizer.

use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::activation::sigmoid;
use burn::tensor::{Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{
    BatchNorm, BatchNormConfig, DenseLayer, NormEpilogue, dense_layers, init_linear, linear_in,
};
use serde::{Deserialize, Serialize};

use crate::ModelError;

/// Settings of an [`Mlp`]: `settings` of `[multitimeframe.mlp]`. Every default is R3's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MlpConfig {
    /// Units of each hidden layer.
    pub hidden: Vec<usize>,
    /// Probability of dropout after each hidden layer, `0 ≤ p < 1`.
    pub dropout: f64,
    /// Whether the last hidden layer is multiplied by a sigmoid of a linear layer of itself (a gated
    /// linear unit with its own input as the value: Dauphin et al., 2017). R3's guide names a sigmoid
    /// gate and not its form.
    pub gate: bool,
}

impl Default for MlpConfig {
    fn default() -> Self {
        Self { hidden: vec![128, 96, 64, 32], dropout: 0.3, gate: true }
    }
}

impl MlpConfig {
    /// Checks the settings.
    ///
    /// # Errors
    /// The first setting that is out of its range.
    pub fn validate(&self) -> Result<(), ModelError> {
        if self.hidden.is_empty() || self.hidden.contains(&0) {
            let (found, allowed) = (format!("{:?}", self.hidden), "a list of sizes of at least 1");
            return Err(ModelError::Setting { key: "hidden", found, allowed });
        }
        if !(0.0..1.0).contains(&self.dropout) {
            let (found, allowed) = (self.dropout.to_string(), "at least 0 and below 1");
            return Err(ModelError::Setting { key: "dropout", found, allowed });
        }
        Ok(())
    }

    /// Builds the model for windows of `[time, channel]`, with weights drawn from `stream` as PyTorch
    /// draws them.
    ///
    /// # Errors
    /// If a setting is out of its range, or a window or the list of classes is empty.
    pub fn init(
        &self,
        stream: Stream,
        window: [usize; 2],
        classes: usize,
        device: &Device,
    ) -> Result<Mlp, ModelError> {
        self.validate()?;
        for (key, size) in [("time", window[0]), ("channels", window[1]), ("classes", classes)] {
            if size == 0 {
                let found = "0".to_owned();
                return Err(ModelError::Setting { key, found, allowed: "at least 1" });
            }
        }
        let features = window[0] * window[1];
        let mut width = features;
        let mut layers = vec![];
        for (index, hidden) in self.hidden.iter().enumerate() {
            layers.push(Layer {
                linear: init_linear(stream.substream(index as u64), width, *hidden, device),
                norm: BatchNormConfig::new(*hidden).init(device),
            });
            width = *hidden;
        }
        let last = stream.substream(self.hidden.len() as u64);
        let gate = stream.substream(self.hidden.len() as u64 + 1);
        Ok(Mlp {
            norm: BatchNormConfig::new(features).init(device),
            layers,
            gate: self.gate.then(|| init_linear(gate, width, width, device)),
            output: init_linear(last, width, classes, device),
            dropout: self.dropout,
            precision: Precision::F32,
        })
    }
}

/// R3's dense classifier. Parameters are named `norm.weight`, `layers.0.linear.weight`,
/// `layers.0.norm.bias`, …, `gate.weight`, `output.weight`.
#[derive(Module, Debug)]
pub struct Mlp {
    norm: BatchNorm,
    layers: Vec<Layer>,
    gate: Option<Linear>,
    output: Linear,
    dropout: f64,
    #[module(skip)]
    precision: Precision,
}

#[derive(Module, Debug)]
struct Layer {
    linear: Linear,
    norm: BatchNorm,
}

impl Mlp {
    /// The same model with its products in this type; see [`linear_in`].
    #[must_use]
    pub fn in_precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// Scores of each class. In training, batch normalisation uses the statistics of this batch.
    ///
    /// # Shapes
    /// - `inputs`: `[batch, time, channel]`
    /// - the result: `[batch, class]`
    pub fn logits(&self, inputs: Tensor<3>, dropout: Option<Stream>) -> Tensor<2> {
        let [batch, time, channels] = inputs.dims();
        let rows = inputs.reshape([batch, 1, time * channels]);
        if let Some(logits) = self.inferred(&rows, dropout) {
            return logits;
        }
        let mut hidden = self.norm.forward(rows);
        let epilogue = NormEpilogue { rectify: true, pool: 1, dropout: self.dropout };
        for (index, Layer { linear, norm }) in self.layers.iter().enumerate() {
            let [_, _, width] = hidden.dims();
            let rows = linear_in(self.precision, hidden.reshape([batch, width]), linear);
            let [_, width] = rows.dims();
            let stream = dropout.map(|stream| stream.substream(index as u64));
            hidden = norm.forward_with(rows.reshape([batch, 1, width]), epilogue, stream);
        }
        let [_, _, width] = hidden.dims();
        let hidden = self.gated(hidden.reshape([batch, width]));
        linear_in(self.precision, hidden, &self.output)
    }

    fn gated(&self, hidden: Tensor<2>) -> Tensor<2> {
        match &self.gate {
            Some(gate) => hidden.clone() * sigmoid(linear_in(self.precision, hidden, gate)),
            None => hidden,
        }
    }

    /// All layers as one operation, where there are no gradients and no dropout; `None` where there is none.
    fn inferred(&self, rows: &Tensor<3>, dropout: Option<Stream>) -> Option<Tensor<2>> {
        if dropout.is_some() && self.dropout > 0.0 {
            return None;
        }
        let [batch, _, features] = rows.dims();
        let rows = rows.clone().reshape([batch, features]);
        let mut layers: Vec<_> = (self.layers.iter())
            .map(|Layer { linear, norm }| DenseLayer { linear, norm: Some((norm, true)) })
            .collect();
        if self.gate.is_none() {
            layers.push(DenseLayer { linear: &self.output, norm: None });
            return dense_layers(self.precision, &rows, Some(&self.norm), &layers);
        }
        let hidden = dense_layers(self.precision, &rows, Some(&self.norm), &layers)?;
        Some(linear_in(self.precision, self.gated(hidden), &self.output))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_counted_as_in_the_reference_system() {
        let model = MlpConfig::default()
            .init(Stream::new(1, "weights"), [105, 4], 3, &Device::default())
            .unwrap();
        let norms = 420 + 128 + 96 + 64 + 32;
        let linears = 420 * 128 + 128 * 96 + 96 * 64 + 64 * 32 + 32 * 3 + 128 + 96 + 64 + 32 + 3;
        let gate = 32 * 32 + 32;
        // PyTorch counts running statistics as buffers.
        assert_eq!(model.num_params(), linears + gate + 2 * norms + 2 * norms);
        let logits = model.logits(Tensor::zeros([5, 105, 4], &Device::default()), None);
        assert_eq!(logits.dims(), [5, 3]);
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let error = |config: MlpConfig| config.validate().unwrap_err().to_string();
        let dropout = error(MlpConfig { dropout: 1.0, ..MlpConfig::default() });
        assert_eq!(dropout, "model setting `dropout` is 1; it must be at least 0 and below 1");
        let hidden = error(MlpConfig { hidden: vec![4, 0], ..MlpConfig::default() });
        assert!(hidden.contains("[4, 0]"), "{hidden}");
        let config = MlpConfig::default();
        let none = config.init(Stream::new(1, "weights"), [0, 4], 3, &Device::default());
        assert!(none.unwrap_err().to_string().contains("`time` is 0"));
    }
}
