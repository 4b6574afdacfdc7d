//! How many parameters a model would have, by its settings alone. Nothing is made for that, so whoever has too little
//! memory for a model learns so before a weight is drawn.
//!
//! A count is an f64, which is exact up to 2^53 and has no end that a product of sizes could run over. Running
//! statistics of batch normalisation are counted, as Burn counts them. What there is room for is not known here.

use crate::masked::UNUSED;
use crate::{
    AnyEncoderConfig, BertConfig, BiLstmAttentionConfig, BiLstmMaeConfig, Cell, CnnBiLstmConfig,
    DilatedConfig, MaskedConfig, MlpConfig, PatchTransformerConfig, RecurrentConfig,
    StackedLstmConfig, TextAttention, TextEncoderConfig, TransformerConfig,
};

/// Gates of an LSTM, and of a GRU.
const LSTM: f64 = 4.0;
const GRU: f64 = 3.0;

/// Steps under a kernel of a [`DilatedEncoder`](crate::DilatedEncoder).
const DILATED_KERNEL: f64 = 3.0;

fn sizes<const N: usize>(sizes: [usize; N]) -> [f64; N] {
    sizes.map(|size| size as f64)
}

fn linear(input: f64, output: f64) -> f64 {
    (input + 1.0) * output
}

fn convolution(input: f64, output: f64, kernel: f64) -> f64 {
    (input * kernel + 1.0) * output
}

fn layer_norm(width: f64) -> f64 {
    2.0 * width
}

fn batch_norm(width: f64) -> f64 {
    4.0 * width
}

/// Layers of hidden units; each direction of each has two matrices and two biases for its gates.
fn recurrent(gates: f64, input: f64, hidden: f64, layers: f64, directions: f64) -> f64 {
    let layer = |input: f64| directions * gates * hidden * (input + hidden + 2.0);
    layer(input) + (layers - 1.0) * layer(directions * hidden)
}

/// A layer of a Transformer's encoder, whichever it is.
fn attending(width: f64, feedforward: f64) -> f64 {
    linear(width, 3.0 * width)
        + linear(width, width)
        + linear(width, feedforward)
        + linear(feedforward, width)
        + 2.0 * layer_norm(width)
}

impl BiLstmMaeConfig {
    /// Parameters of a model of so many channels.
    pub fn parameters(&self, channels: usize) -> f64 {
        let [channels, hidden, layers, between] =
            sizes([channels, self.hidden, self.layers, self.decoder_hidden]);
        let width = 2.0 * hidden;
        channels
            + recurrent(LSTM, channels, hidden, layers, 2.0)
            + layer_norm(width)
            + linear(width, between)
            + linear(between, channels)
    }
}

impl PatchTransformerConfig {
    /// Parameters of a model of so many channels.
    pub fn parameters(&self, channels: usize) -> f64 {
        let [channels, patch, width] = sizes([channels, self.patch, self.width]);
        let [layers, feedforward] = sizes([self.layers, self.feedforward]);
        let numbers = patch * channels;
        channels
            + linear(numbers, width)
            + layers * attending(width, feedforward)
            + layer_norm(width)
            + linear(width, numbers)
    }
}

impl MaskedConfig {
    /// Parameters of a model of so many channels, for windows of at most `time` steps.
    pub fn parameters(&self, channels: usize, time: usize) -> f64 {
        let (width, shortened) = match &self.encoder {
            AnyEncoderConfig::Recurrent(config) => (directions(config) * config.hidden as f64, 1.0),
            AnyEncoderConfig::Dilated(config) => (config.output as f64, 1.0),
            AnyEncoderConfig::Transformer(config) => (config.width as f64, 1.0),
            // Each convolution halves the number of steps.
            AnyEncoderConfig::CnnBilstm(config) => {
                (config.head as f64, (config.convolutions.len() as f64).exp2())
            }
            AnyEncoderConfig::BilstmAttention(config) => (2.0 * config.hidden as f64, 1.0),
            AnyEncoderConfig::StackedLstm(config) => {
                let last = if config.hidden_2 > 0 { config.hidden_2 } else { config.hidden_1 };
                (last as f64, 1.0)
            }
        };
        let encoder = self.encoder.parameters(channels, time);
        let channels = channels as f64;
        channels + encoder + linear(width, channels * shortened)
    }
}

impl AnyEncoderConfig {
    /// Parameters of an encoder of so many channels, for windows of at most `time` steps.
    pub fn parameters(&self, channels: usize, time: usize) -> f64 {
        match self {
            Self::Recurrent(config) => config.parameters(channels),
            Self::Dilated(config) => config.parameters(channels),
            Self::Transformer(config) => config.parameters(channels, time, UNUSED),
            Self::CnnBilstm(config) => config.parameters(channels, UNUSED),
            Self::BilstmAttention(config) => config.parameters(channels, UNUSED),
            Self::StackedLstm(config) => config.parameters(channels, 0, UNUSED),
        }
    }
}

fn directions(config: &RecurrentConfig) -> f64 {
    if config.bidirectional { 2.0 } else { 1.0 }
}

impl RecurrentConfig {
    /// Parameters of an encoder of so many channels.
    pub fn parameters(&self, channels: usize) -> f64 {
        let [channels, hidden, layers] = sizes([channels, self.hidden, self.layers]);
        let gates = match self.cell {
            Cell::Lstm => LSTM,
            Cell::Gru => GRU,
        };
        let directions = directions(self);
        recurrent(gates, channels, hidden, layers, directions) + layer_norm(directions * hidden)
    }
}

impl DilatedConfig {
    /// Parameters of an encoder of so many channels.
    pub fn parameters(&self, channels: usize) -> f64 {
        let [channels, hidden, output, blocks] =
            sizes([channels, self.hidden, self.output, self.blocks]);
        let conv = |input, output| convolution(input, output, DILATED_KERNEL);
        linear(channels, hidden)
            + (blocks - 1.0) * 2.0 * conv(hidden, hidden)
            + conv(hidden, output)
            + conv(output, output)
            + linear(hidden, output)
    }
}

impl TransformerConfig {
    /// Parameters of a model of so many channels and classes, for windows of at most `time` steps.
    pub fn parameters(&self, channels: usize, time: usize, classes: usize) -> f64 {
        let [channels, time, classes] = sizes([channels, time, classes]);
        let [width, layers, feedforward, head] =
            sizes([self.width, self.layers, self.feedforward, self.head_hidden]);
        linear(channels, width)
            + layer_norm(width)
            + time * width
            + layers * attending(width, feedforward)
            + linear(width, head)
            + linear(head, classes)
    }
}

impl CnnBiLstmConfig {
    /// Parameters of a model of so many channels and classes.
    pub fn parameters(&self, channels: usize, classes: usize) -> f64 {
        let [channels, classes, kernel] = sizes([channels, classes, self.kernel]);
        let [hidden, layers, head] = sizes([self.hidden, self.layers, self.head]);
        let (mut width, mut count) = (channels, 0.0);
        for output in self.convolutions.iter().map(|output| *output as f64) {
            count += convolution(width, output, kernel) + batch_norm(output);
            width = output;
        }
        count += recurrent(LSTM, width, hidden, layers, 2.0) + linear(2.0 * hidden, head);
        if self.head_norm {
            count += batch_norm(head);
        }
        width = 2.0 * head;
        if self.embedding > 0 {
            let embedding = self.embedding as f64;
            count += linear(width, embedding);
            width = embedding;
        }
        for hidden in self.classifier.iter().map(|hidden| *hidden as f64) {
            count += linear(width, hidden) + batch_norm(hidden);
            width = hidden;
        }
        count + linear(width, classes)
    }
}

impl BiLstmAttentionConfig {
    /// Parameters of a model of so many channels and classes.
    pub fn parameters(&self, channels: usize, classes: usize) -> f64 {
        let [channels, classes, hidden, layers] =
            sizes([channels, classes, self.hidden, self.layers]);
        let [attention, head] = sizes([self.attention, self.head_hidden]);
        let width = 2.0 * hidden;
        layer_norm(channels)
            + recurrent(LSTM, channels, hidden, layers, 2.0)
            + layer_norm(width)
            // The score of a step has no bias.
            + linear(width, attention)
            + attention
            + linear(width, head)
            + linear(head, classes)
    }
}

impl StackedLstmConfig {
    /// Parameters of a model of so many channels, static features and outputs.
    pub fn parameters(&self, channels: usize, statics: usize, outputs: usize) -> f64 {
        let [channels, statics, outputs, dense] = sizes([channels, statics, outputs, self.dense]);
        let (mut width, mut count) = (channels, 0.0);
        for hidden in sizes([self.hidden_1, self.hidden_2]) {
            if hidden > 0.0 {
                count += recurrent(LSTM, width, hidden, 1.0, 1.0);
                width = hidden;
            }
        }
        count + linear(width + statics, dense) + linear(dense, outputs)
    }
}

impl MlpConfig {
    /// Parameters of a model of so many classes, for windows of `[time, channel]`.
    pub fn parameters(&self, window: [usize; 2], classes: usize) -> f64 {
        let [time, channels] = sizes(window);
        let mut width = time * channels;
        let mut count = batch_norm(width);
        for hidden in self.hidden.iter().map(|hidden| *hidden as f64) {
            count += linear(width, hidden) + batch_norm(hidden);
            width = hidden;
        }
        if self.gate {
            count += linear(width, width);
        }
        count + linear(width, classes as f64)
    }
}

impl BertConfig {
    /// Parameters of a model.
    pub fn parameters(&self) -> f64 {
        let [vocabulary, positions, labels] = sizes([self.vocabulary, self.positions, self.labels]);
        let [width, layers, feedforward] = sizes([self.width, self.layers, self.feedforward]);
        (vocabulary + positions) * width
            + layers * attending(width, feedforward)
            + linear(width, labels)
    }
}

impl TextEncoderConfig {
    /// Parameters of an encoder.
    pub fn parameters(&self) -> f64 {
        let [vocabulary, positions, offset, segments] =
            sizes([self.vocabulary, self.positions, self.position_offset, self.segments]);
        let [width, layers, feedforward] = sizes([self.width, self.layers, self.feedforward]);
        let input = self.embedding.map_or(width, |embedding| embedding as f64);
        let places = if self.absolute_positions { positions + offset } else { 0.0 };
        let projection = match self.embedding {
            Some(embedding) if embedding != self.width => linear(input, width),
            _ => 0.0,
        };
        // Of all layers together, and of each.
        let (distances, own) = match &self.attention {
            TextAttention::Full => (0.0, 0.0),
            TextAttention::Disentangled(rule) => {
                let span = if rule.buckets > 0 { rule.buckets } else { rule.farthest };
                let norm = if rule.normalised { layer_norm(width) } else { 0.0 };
                let own = if rule.shared_projection { 0.0 } else { linear(width, 2.0 * width) };
                (2.0 * span as f64 * width + norm, own)
            }
            TextAttention::Windowed(_) => (0.0, linear(width, 3.0 * width)),
        };
        (vocabulary + places + segments) * input
            + layer_norm(input)
            + projection
            + distances
            + layers * (attending(width, feedforward) + own)
    }
}

#[cfg(test)]
mod tests {
    use burn::module::Module;
    use burn::tensor::Device;
    use firebox_core::Stream;
    use serde_json::json;

    use super::*;
    use crate::{Disentangled, Windowed};

    fn check(counted: f64, built: &impl Module) {
        assert_eq!(counted, built.num_params() as f64, "{counted} beside the model's own number");
    }

    fn drawn() -> (Stream, Device) {
        (Stream::new(1, "weights"), Device::default())
    }

    #[test]
    fn counts_are_those_of_the_models_of_windows() {
        let (stream, device) = drawn();
        let sizes =
            BiLstmMaeConfig { hidden: 5, layers: 3, decoder_hidden: 4, ..Default::default() };
        check(sizes.parameters(3), &sizes.init(stream, 3, &device).unwrap());
        let sizes = PatchTransformerConfig {
            patch: 3,
            width: 8,
            heads: 2,
            layers: 2,
            feedforward: 12,
            ..Default::default()
        };
        check(sizes.parameters(2), &sizes.init(stream, 2, &device).unwrap());
        for hidden_2 in [3, 0] {
            let sizes = StackedLstmConfig { hidden_1: 5, hidden_2, dense: 4, dropout: 0.2 };
            check(sizes.parameters(2, 6, 3), &sizes.init(stream, 2, 6, 3, &device).unwrap());
        }
        for gate in [true, false] {
            let sizes = MlpConfig { hidden: vec![5, 4], gate, ..Default::default() };
            check(sizes.parameters([7, 2], 3), &sizes.init(stream, [7, 2], 3, &device).unwrap());
        }
        let sizes = TransformerConfig {
            width: 8,
            heads: 2,
            layers: 2,
            feedforward: 12,
            head_hidden: 5,
            ..Default::default()
        };
        check(sizes.parameters(2, 9, 3), &sizes.init(stream, 2, 9, 3, &device).unwrap());
        let sizes =
            BiLstmAttentionConfig { hidden: 4, attention: 3, head_hidden: 5, ..Default::default() };
        check(sizes.parameters(2, 3), &sizes.init(stream, 2, 3, &device).unwrap());
        let sizes = CnnBiLstmConfig {
            convolutions: vec![4, 6],
            hidden: 5,
            head: 7,
            embedding: 6,
            classifier: vec![5, 3],
            ..Default::default()
        };
        check(sizes.parameters(3, 2), &sizes.init(stream, 3, 2, &device).unwrap());
    }

    #[test]
    fn counts_are_those_of_every_encoder_that_is_masked() {
        let (stream, device) = drawn();
        for encoder in [
            json!({ "recurrent": { "hidden": 4, "layers": 3, "cell": "gru" } }),
            json!({ "recurrent": { "hidden": 4, "layers": 1, "bidirectional": false } }),
            json!({ "dilated": { "hidden": 4, "output": 6, "blocks": 3 } }),
            json!({ "dilated": { "hidden": 4, "output": 4, "blocks": 1 } }),
            json!({ "transformer": {
                "width": 8, "heads": 2, "layers": 1, "feedforward": 8, "positions": "learned"
            } }),
            json!({ "cnn-bilstm": {
                "convolutions": [4, 6], "kernel": 5, "hidden": 4, "layers": 1, "head": 8,
                "head_norm": false, "embedding": 0, "classifier": []
            } }),
            json!({ "bilstm-attention": { "hidden": 4, "attention": 4, "head_hidden": 4 } }),
            json!({ "stacked-lstm": { "hidden_1": 4, "hidden_2": 6, "dense": 4 } }),
            json!({ "stacked-lstm": { "hidden_1": 4, "hidden_2": 0, "dense": 4 } }),
        ] {
            let sizes: MaskedConfig =
                serde_json::from_value(json!({ "encoder": encoder })).unwrap();
            check(sizes.parameters(2, 14), &sizes.init(stream, 2, 14, &device).unwrap());
        }
    }

    #[test]
    fn counts_are_those_of_the_models_of_texts() {
        let (stream, device) = drawn();
        let sizes = BertConfig {
            vocabulary: 11,
            positions: 9,
            width: 8,
            heads: 2,
            layers: 2,
            feedforward: 12,
            labels: 3,
            ..Default::default()
        };
        check(sizes.parameters(), &sizes.init(stream, &device).unwrap());
        let small = TextEncoderConfig {
            vocabulary: 11,
            positions: 9,
            position_offset: 2,
            width: 8,
            heads: 2,
            layers: 2,
            feedforward: 12,
            ..Default::default()
        };
        let distances = Disentangled { farthest: 6, buckets: 4, ..Default::default() };
        let own = Disentangled {
            buckets: 0,
            shared_projection: false,
            normalised: false,
            ..distances.clone()
        };
        for sizes in [
            TextEncoderConfig { embedding: Some(6), ..small.clone() },
            TextEncoderConfig { absolute_positions: false, segments: 0, ..small.clone() },
            TextEncoderConfig {
                attention: TextAttention::Disentangled(distances),
                ..small.clone()
            },
            TextEncoderConfig { attention: TextAttention::Disentangled(own), ..small.clone() },
            TextEncoderConfig {
                attention: TextAttention::Windowed(Windowed { reach: vec![1, 2] }),
                ..small
            },
        ] {
            check(sizes.parameters(), &sizes.init(stream, &device).unwrap());
        }
    }

    #[test]
    fn sizes_without_end_are_counted_too() {
        let wide = StackedLstmConfig { hidden_1: 1_000_000_000, ..Default::default() };
        let count = wide.parameters(1, 0, 1);
        assert!(count > 4e18 && count < 4.1e18, "{count}");
        let most = StackedLstmConfig { hidden_1: usize::MAX, ..Default::default() };
        let count = most.parameters(usize::MAX, usize::MAX, usize::MAX);
        assert!(count > 1e39 && count.is_finite(), "{count}");
    }
}
