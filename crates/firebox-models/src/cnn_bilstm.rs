//! The classifier of reference system R4: convolutions that shorten a sequence of many channels, and
//! a bidirectional LSTM over what they leave.
//!
//! ```text
//! x [batch, time, channel]
//!   → three times: Conv1d, kernel 3 → BatchNorm → ReLU → maximum of 2 steps → dropout 0.2,
//!     with 64, 128, 256 channels
//!   → LSTM, 2 layers × 2 directions × 256, dropout 0.3 between layers
//!   → Linear 512 → 512, BatchNorm, ReLU = the encoding [batch, time / 8, 512]
//!   → maximum ‖ mean over time → Linear 1024 → 512 = the embedding [batch, 512]
//!   → twice: Linear → BatchNorm → ReLU → dropout 0.4, with 256 and 128 units
//!   → Linear → logits [batch, class]
//! ```
//!
//! Each convolution finds zeros behind a sample's end, as it does behind the last step of a batch, so that what is computed of a
//! sample does not depend on how long the others are. A step that a maximum makes of one valid step and none behind it is
//! left out. Batch statistics of a training count padding, as PyTorch's do; the LSTM and the pooling leave it out. This file
//! knows no loss and no optimizer.

use burn::module::Module;
use burn::nn::Linear;
use burn::nn::conv::Conv1d;
use burn::tensor::{Device, Tensor};
use firebox_core::{Precision, Stream};
use firebox_kernels::{
    Activation, BatchNorm, BatchNormConfig, GaussianNoise, Lstm, LstmConfig, NormEpilogue, conv1d,
    init_conv1d, init_linear, linear_activated, linear_in, relu_dropout,
};
use serde::{Deserialize, Serialize};

use crate::encoder::without_padding;
use crate::recurrent::lstm_outputs;
use crate::{Encoder, ModelError, pool_mean_max};

/// The stream that the classifier's dropout draws from; those below it belong to the encoder.
const CLASSIFIER: u64 = 1000;

/// Settings of a [`CnnBiLstm`]: the `[pseudolabel.model]` table. Every default is R4's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CnnBiLstmConfig {
    /// Channels of each convolution; each halves the number of steps.
    pub convolutions: Vec<usize>,
    /// Steps under a convolution's kernel, an odd number.
    pub kernel: usize,
    /// Probability of dropout after each convolution, `0 ≤ p < 1`.
    pub convolution_dropout: f64,
    /// Hidden units of each LSTM layer and direction.
    pub hidden: usize,
    /// LSTM layers.
    pub layers: usize,
    /// Units of the linear layer after the LSTM.
    pub head: usize,
    /// Probability of dropout between LSTM layers, `0 ≤ p < 1`.
    pub dropout: f64,
    /// Whether batch normalisation stands after the linear layer.
    pub head_norm: bool,
    /// Probability of dropout after the linear layer, `0 ≤ p < 1`.
    pub head_dropout: f64,
    /// Numbers of an embedding, by a linear layer after the pooling; 0: the pooled vector is the
    /// embedding.
    pub embedding: usize,
    /// Units of the hidden layers between embedding and classes; none: one linear layer.
    pub classifier: Vec<usize>,
    /// Probability of dropout after each of these layers, `0 ≤ p < 1`.
    pub classifier_dropout: f64,
}

impl Default for CnnBiLstmConfig {
    fn default() -> Self {
        Self {
            convolutions: vec![64, 128, 256],
            kernel: 3,
            convolution_dropout: 0.2,
            hidden: 256,
            layers: 2,
            head: 512,
            dropout: 0.3,
            head_norm: true,
            head_dropout: 0.0,
            embedding: 512,
            classifier: vec![256, 128],
            classifier_dropout: 0.4,
        }
    }
}

impl CnnBiLstmConfig {
    /// Checks the settings.
    ///
    /// # Errors
    /// The first setting that is out of its range.
    pub fn validate(&self) -> Result<(), ModelError> {
        let refuse = |key, found, allowed| Err(ModelError::Setting { key, found, allowed });
        for (key, size) in [("hidden", self.hidden), ("layers", self.layers), ("head", self.head)] {
            if size == 0 {
                return refuse(key, "0".to_owned(), "at least 1");
            }
        }
        if self.convolutions.is_empty() || self.convolutions.contains(&0) {
            let found = format!("{:?}", self.convolutions);
            return refuse("convolutions", found, "a list of sizes of at least 1");
        }
        if self.kernel.is_multiple_of(2) {
            return refuse("kernel", self.kernel.to_string(), "an odd number");
        }
        if self.classifier.contains(&0) {
            let found = format!("{:?}", self.classifier);
            return refuse("classifier", found, "a list of sizes of at least 1, or empty");
        }
        for (key, probability) in [
            ("convolution_dropout", self.convolution_dropout),
            ("dropout", self.dropout),
            ("head_dropout", self.head_dropout),
            ("classifier_dropout", self.classifier_dropout),
        ] {
            if !(0.0..1.0).contains(&probability) {
                return refuse(key, probability.to_string(), "at least 0 and below 1");
            }
        }
        Ok(())
    }

    /// Steps of the shortest window that leaves a step after the convolutions, each of which halves them.
    pub fn fewest_steps(&self) -> usize {
        let halvings = u32::try_from(self.convolutions.len()).unwrap_or(u32::MAX);
        1_usize.checked_shl(halvings).unwrap_or(usize::MAX)
    }

    /// Numbers of an embedding.
    fn embedding_width(&self) -> usize {
        if self.embedding > 0 { self.embedding } else { 2 * self.head }
    }

    /// Builds the model with weights drawn from `stream` as PyTorch draws them.
    ///
    /// # Errors
    /// If a setting is out of its range, or there is no channel or no class.
    pub fn init(
        &self,
        stream: Stream,
        channels: usize,
        classes: usize,
        device: &Device,
    ) -> Result<CnnBiLstm, ModelError> {
        self.validate()?;
        for (key, size) in [("channels", channels), ("classes", classes)] {
            if size == 0 {
                let found = "0".to_owned();
                return Err(ModelError::Setting { key, found, allowed: "at least 1" });
            }
        }
        let mut blocks = vec![];
        let mut width = channels;
        for (index, output) in self.convolutions.iter().enumerate() {
            let own = stream.substream(0).substream(index as u64);
            blocks.push(Block {
                conv: init_conv1d(own, width, *output, self.kernel, device),
                norm: BatchNormConfig::new(*output).init(device),
            });
            width = *output;
        }
        let lstm = LstmConfig {
            input: width,
            hidden: self.hidden,
            layers: self.layers,
            bidirectional: true,
            dropout: self.dropout,
        };
        let pooled = 2 * self.head;
        let embed = stream.substream(4);
        let embedding =
            (self.embedding > 0).then(|| init_linear(embed, pooled, self.embedding, device));
        let mut width = self.embedding_width();
        let mut classifier = vec![];
        for (index, hidden) in self.classifier.iter().enumerate() {
            let own = stream.substream(5).substream(index as u64);
            classifier.push(Layer {
                linear: init_linear(own, width, *hidden, device),
                norm: BatchNormConfig::new(*hidden).init(device),
            });
            width = *hidden;
        }
        Ok(CnnBiLstm {
            blocks,
            lstm: lstm.init(stream.substream(1), device),
            head: init_linear(stream.substream(2), 2 * self.hidden, self.head, device),
            head_norm: self.head_norm.then(|| BatchNormConfig::new(self.head).init(device)),
            embedding,
            classifier,
            output: init_linear(stream.substream(3), width, classes, device),
            config: self.clone(),
            precision: Precision::F32,
            recomputed: false,
        })
    }
}

/// R4's classifier. Parameters are named `blocks.0.conv.weight`, `blocks.0.norm.weight`, …,
/// `lstm.weight_ih_l0`, …, `head.weight`, `head_norm.weight`, `embedding.weight`,
/// `classifier.0.linear.weight`, …, `output.weight`.
#[derive(Module, Debug)]
pub struct CnnBiLstm {
    blocks: Vec<Block>,
    lstm: Lstm,
    head: Linear,
    head_norm: Option<BatchNorm>,
    embedding: Option<Linear>,
    classifier: Vec<Layer>,
    output: Linear,
    #[module(skip)]
    config: CnnBiLstmConfig,
    #[module(skip)]
    precision: Precision,
    #[module(skip)]
    recomputed: bool,
}

#[derive(Module, Debug)]
struct Block {
    conv: Conv1d,
    norm: BatchNorm,
}

#[derive(Module, Debug)]
struct Layer {
    linear: Linear,
    norm: BatchNorm,
}

impl CnnBiLstm {
    /// The settings that the model was built with.
    pub fn config(&self) -> &CnnBiLstmConfig {
        &self.config
    }

    /// The same model with the products of its convolutions, its LSTM and its linear layers in this
    /// type. Everything else stays f32.
    #[must_use]
    pub fn in_precision(self, precision: Precision) -> Self {
        Self { lstm: self.lstm.in_precision(precision), precision, ..self }
    }

    /// The same model, of which each LSTM layer keeps its input alone and is computed again for its
    /// gradient, on devices where [`recomputes_on`](firebox_kernels::recomputes_on) says so: less
    /// memory, another forward pass, the same numbers to the bit. Convolutions and linear layers
    /// keep what they compute: a batch normalisation moves its running statistics whenever it runs.
    #[must_use]
    pub fn recomputed(self, recomputed: bool) -> Self {
        Self { recomputed, ..self }
    }

    /// Scores of each class. In training, batch normalisation uses the statistics of this batch.
    ///
    /// `lengths` are the valid steps of each sample, `noise` is added to the inputs, and `dropout` is
    /// the stream that dropout draws from; without one there is none.
    ///
    /// # Shapes
    /// - `inputs`: `[batch, time, channel]`
    /// - the result: `[batch, class]`
    pub fn logits(
        &self,
        inputs: Tensor<3>,
        lengths: Option<&[usize]>,
        noise: Option<GaussianNoise>,
        dropout: Option<Stream>,
    ) -> Tensor<2> {
        let (encoding, lengths) = self.encoding(inputs, lengths, noise, dropout);
        let embedding = self.project(max_and_mean(encoding, lengths.as_deref()));
        let epilogue =
            NormEpilogue { rectify: true, pool: 1, dropout: self.config.classifier_dropout };
        let mut hidden = embedding;
        for (Layer { linear, norm }, index) in self.classifier.iter().zip(0..) {
            let rows = linear_in(self.precision, hidden, linear);
            let [batch, width] = rows.dims();
            let stream = dropout.map(|stream| stream.substream(CLASSIFIER).substream(index));
            let rows = norm.forward_with(rows.reshape([batch, 1, width]), epilogue, stream);
            hidden = rows.reshape([batch, width]);
        }
        linear_in(self.precision, hidden, &self.output)
    }

    /// `[batch, 2 · head]` → `[batch, embedding]`
    fn project(&self, pooled: Tensor<2>) -> Tensor<2> {
        match &self.embedding {
            Some(embedding) => linear_in(self.precision, pooled, embedding),
            None => pooled,
        }
    }

    /// `[batch, time / 2^convolutions, head]`, zero after each length, and the lengths that are left: 0 of a sample of fewer
    /// steps than [`CnnBiLstmConfig::fewest_steps`].
    ///
    /// # Panics
    /// When no sample could have so many.
    fn encoding(
        &self,
        inputs: Tensor<3>,
        lengths: Option<&[usize]>,
        noise: Option<GaussianNoise>,
        dropout: Option<Stream>,
    ) -> (Tensor<3>, Option<Vec<usize>>) {
        let stream = |index| dropout.map(|stream: Stream| stream.substream(index));
        let epilogue =
            NormEpilogue { rectify: true, pool: 2, dropout: self.config.convolution_dropout };
        let ([_, given, _], fewest) = (inputs.dims(), self.config.fewest_steps());
        assert!(
            given >= fewest,
            "windows of {given} steps are too short for the {} convolutions of cnn-bilstm, each of which halves the steps: they need {fewest}",
            self.blocks.len()
        );
        let mut lengths = lengths.map(<[usize]>::to_vec);
        let padded = lengths.iter().flatten().any(|length| *length < given);
        let (x, noise) = match noise {
            // A convolution at the end of a sample finds no noise behind it.
            Some(noise) if padded => (noise.add_to(inputs), None),
            noise => (inputs, noise),
        };
        let mut x = without_padding(x, lengths.as_deref());
        for (index, Block { conv, norm }) in self.blocks.iter().enumerate() {
            let noise = noise.filter(|_| index == 0);
            x = norm.forward_with(
                conv1d(x, conv, self.precision, noise),
                epilogue,
                stream(2 + index as u64),
            );
            let [_, left, _] = x.dims();
            lengths.iter_mut().flatten().for_each(|length| *length = (*length / 2).min(left));
            x = without_padding(x, lengths.as_deref());
        }
        let [batch, time, _] = x.dims();
        let lengths = lengths.filter(|lengths| lengths.iter().any(|length| *length < time));
        let x = lstm_outputs(&self.lstm, self.recomputed, x, lengths.as_deref(), stream(0));
        let [_, _, width] = x.dims();
        let rows = x.reshape([batch * time, width]);
        let (head, precision, dropout) = (&self.head, self.precision, self.config.head_dropout);
        let rows = match &self.head_norm {
            Some(norm) => {
                let rows = linear_in(precision, rows, head);
                let rows = norm.forward(rows.reshape([batch, time, self.config.head]));
                let rows = rows.reshape([batch * time, self.config.head]);
                relu_dropout(rows, dropout, stream(1))
            }
            None => linear_activated(precision, rows, head, Activation::Relu, dropout, stream(1)),
        };
        let encoding = rows.reshape([batch, time, self.config.head]);
        (without_padding(encoding, lengths.as_deref()), lengths)
    }
}

/// Maximum ‖ mean over the valid steps, R4's order.
fn max_and_mean(encoding: Tensor<3>, lengths: Option<&[usize]>) -> Tensor<2> {
    let [_, _, width] = encoding.dims();
    let pooled = pool_mean_max(encoding, lengths);
    let half = |from: usize| pooled.clone().slice([0..pooled.dims()[0], from..from + width]);
    Tensor::cat(vec![half(width), half(0)], 1)
}

impl Encoder for CnnBiLstm {
    /// There are fewer steps than in the input: half after each convolution.
    ///
    /// # Panics
    /// When the input has fewer steps than [`CnnBiLstmConfig::fewest_steps`]. A sample whose length says so has no step left, and
    /// the vector of nothing.
    fn encode(
        &self,
        input: Tensor<3>,
        lengths: Option<&[usize]>,
        dropout: Option<Stream>,
    ) -> Tensor<3> {
        self.encoding(input, lengths, None, dropout).0
    }

    /// Maximum ‖ mean over time, and the linear layer after it: what R4 clusters and classifies by.
    fn embed(&self, input: Tensor<3>, lengths: Option<&[usize]>) -> Tensor<2> {
        let (encoding, lengths) = self.encoding(input, lengths, None, None);
        self.project(max_and_mean(encoding, lengths.as_deref()))
    }

    fn embedding_width(&self) -> usize {
        self.config.embedding_width()
    }

    fn step_width(&self) -> usize {
        self.config.head
    }

    fn step_lengths(&self, lengths: &[usize]) -> Vec<usize> {
        lengths.iter().map(|length| length >> self.blocks.len()).collect()
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;

    use super::*;

    fn small() -> CnnBiLstm {
        let config = CnnBiLstmConfig {
            convolutions: vec![4, 6],
            hidden: 5,
            head: 7,
            embedding: 6,
            classifier: vec![5],
            ..CnnBiLstmConfig::default()
        };
        config.init(Stream::new(1, "weights"), 3, 2, &Device::default()).unwrap()
    }

    fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.into_data().try_into_vec().unwrap()
    }

    #[test]
    #[should_panic(
        expected = "windows of 3 steps are too short for the 2 convolutions of cnn-bilstm"
    )]
    fn windows_that_nothing_is_left_of_are_told() {
        let device = Device::default();
        let config = CnnBiLstmConfig { convolutions: vec![4, 6], ..CnnBiLstmConfig::default() };
        assert_eq!(config.fewest_steps(), 4);
        let model = config.init(Stream::new(3, "weights"), 2, 3, &device).unwrap();
        assert_eq!(model.embed(Tensor::zeros([1, 4, 2], &device), None).dims()[0], 1);
        model.embed(Tensor::zeros([1, 3, 2], &device), None);
    }

    #[test]
    fn parameters_are_counted_as_in_the_reference_system() {
        let model = CnnBiLstmConfig::default();
        let model = model.init(Stream::new(1, "weights"), 1024, 5, &Device::default()).unwrap();
        let convolutions = 3 * (1024 * 64 + 64 * 128 + 128 * 256) + (64 + 128 + 256);
        let lstm = 2 * (1024 * (256 + 256 + 2) + 1024 * (512 + 256 + 2));
        let classifier = 512 * 256 + 256 + 256 * 128 + 128 + 128 * 5 + 5;
        let linears = 512 * 512 + 512 + 1024 * 512 + 512 + classifier;
        let norms = 2 * (64 + 128 + 256 + 512 + 256 + 128);
        // PyTorch counts running statistics as buffers.
        assert_eq!(model.num_params(), convolutions + lstm + linears + 2 * norms);
        assert_eq!(model.embedding_width(), 512);
    }

    #[test]
    fn noise_leaves_padding_alone() {
        let model = small().valid();
        let device = Device::default();
        // Noise that would be seen in whatever is near it, of which only the padding could have some.
        let noise = GaussianNoise { deviation: 1e3, stream: Stream::new(5, "noise") };
        let logits = |noise, lengths: &[usize]| {
            values(model.logits(Tensor::zeros([2, 16, 3], &device), Some(lengths), noise, None))
        };
        assert_eq!(logits(Some(noise), &[0, 0]), logits(None, &[0, 0]));
        assert_ne!(logits(Some(noise), &[8, 0])[..2], logits(None, &[8, 0])[..2]);
        assert_eq!(logits(Some(noise), &[8, 0])[2..], logits(None, &[8, 0])[2..]);
    }

    #[test]
    fn padding_of_zeros_changes_nothing_in_evaluation() {
        let model = small().valid();
        let device = Device::default();
        let mut draws = Stream::new(2, "windows").draws();
        // Zeros within, too, so that a convolution at the end sees the same with and without padding.
        let data: Vec<f32> = (0..2 * 16 * 3)
            .map(|at| if at / 3 % 16 < 8 { draws.normal() as f32 } else { 0.0 })
            .collect();
        let long = Tensor::<3>::from_data(TensorData::new(data, [2, 16, 3]), &device);
        let short = long.clone().slice([0..2, 0..12, 0..3]);
        let lengths = [8, 8];
        let a = values(model.embed(long.clone(), Some(&lengths)));
        let b = values(model.embed(short, Some(&lengths)));
        for (a, b) in a.iter().zip(b) {
            assert!((a - b).abs() < 1e-6, "{a} {b}");
        }
        let encoding = model.encode(long.clone(), Some(&[8, 0]), None);
        assert_eq!(encoding.dims(), [2, 4, 7]);
        let encoding = values(encoding);
        assert!(encoding[2 * 7..].iter().all(|x| *x == 0.0), "zero after each length");
        assert!(encoding[..2 * 7].iter().any(|x| *x != 0.0));
        let logits = model.logits(long, Some(&[8, 3]), None, None);
        assert!(values(logits).iter().all(|x| x.is_finite()));
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let default = CnnBiLstmConfig::default;
        for (config, expected) in [
            (CnnBiLstmConfig { kernel: 4, ..default() }, "`kernel` is 4; it must be an odd number"),
            (CnnBiLstmConfig { dropout: 1.0, ..default() }, "`dropout` is 1"),
            (CnnBiLstmConfig { convolutions: vec![], ..default() }, "`convolutions` is []"),
            (CnnBiLstmConfig { hidden: 0, ..default() }, "`hidden` is 0"),
            (CnnBiLstmConfig { classifier: vec![3, 0], ..default() }, "`classifier` is [3, 0]"),
            (CnnBiLstmConfig { classifier_dropout: 1.0, ..default() }, "`classifier_dropout` is 1"),
        ] {
            let message = config.validate().unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
