//! Models of the zoo that no reference workload has, at small sizes, for whoever examines a device with all of them.
//! Neither `firebox bench` nor the comparison with PyTorch knows them.

use firebox_core::{Silent, Stream};
use firebox_loader::Batch;
use firebox_models::{
    AnyEncoderConfig, BiLstmAttentionConfig, Cell, ClassifierConfig, Classify, DilatedConfig,
    Disentangled, Loss, MaskedConfig, PatchTransformerConfig, Pooling, RecurrentConfig,
    TextAttention, TextEncoderConfig, TextHeadsConfig, TextModel, Windowed,
};
use firebox_text::Family;
use firebox_train::{Objective, Pretraining, Streams};

use super::config::{BenchConfig, Sizes};
use super::labels::{binary_cross_entropy, cross_entropy};
use super::noise::Noise;
use super::timing::{Beside, Measured, time};
use crate::device::ChosenDevice;
use crate::error::PipelineError;

/// Channels of windows, as R1's have them.
const CHANNELS: usize = 4;
/// Classes of windows, as R3's have them.
const CLASSES: usize = 3;
/// Labels of a text, as R5's have them.
const LABELS: usize = 9;
/// Layers of an encoder of texts.
const LAYERS: usize = 2;

/// A model of the zoo that is no reference workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmallModel {
    /// Masked pre-training of the Transformer over patches.
    PatchTransformer,
    /// Masked pre-training of a recurrent encoder of gated recurrent units.
    Gru,
    /// Masked pre-training of TS2Vec's dilated convolutions.
    Dilated,
    /// R3's LSTM with additive attention, 3 classes.
    BilstmAttention,
    /// R1's fine-tuning: attention and a head on a recurrent encoder, 3 classes.
    Classifier,
    /// An encoder of texts of a family, 9 labels.
    Text(Family),
}

impl SmallModel {
    /// Every one with its name.
    pub const ALL: [(Self, &'static str); 11] = [
        (Self::PatchTransformer, "patch-transformer"),
        (Self::Gru, "gru"),
        (Self::Dilated, "dilated"),
        (Self::BilstmAttention, "bilstm-attention"),
        (Self::Classifier, "classifier"),
        (Self::Text(Family::Bert), "bert"),
        (Self::Text(Family::Roberta), "roberta"),
        (Self::Text(Family::Electra), "electra"),
        (Self::Text(Family::DistilBert), "distilbert"),
        (Self::Text(Family::DebertaV2), "deberta-v2"),
        (Self::Text(Family::Longformer), "longformer"),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(model, _)| *model == self).map_or("", |(_, name)| name)
    }

    /// Whether it reads texts.
    pub fn reads_texts(self) -> bool {
        matches!(self, Self::Text(_))
    }

    /// Samples of a batch.
    pub(crate) fn default_batch(self) -> usize {
        if self.reads_texts() { 16 } else { 32 }
    }

    /// Steps of a window, or tokens of a text.
    fn length(self) -> usize {
        if self.reads_texts() { 32 } else { 105 }
    }
}

/// Takes the steps of a small model. Of the settings, the workload is not asked for.
///
/// # Errors
/// When a setting cannot be, or training fails.
pub(crate) fn measure_small(
    model: SmallModel,
    config: &BenchConfig,
    device: &ChosenDevice,
) -> Result<Measured, PipelineError> {
    let batch = config.batch.unwrap_or(model.default_batch());
    let config = BenchConfig { batch: Some(batch), length: Some(model.length()), ..*config };
    let sizes = config.sizes()?;
    let beside = Beside { progress: &Silent, train: None };
    device.run(|| steps(model, sizes, &config, device, &beside))
}

fn steps(
    model: SmallModel,
    sizes: Sizes,
    config: &BenchConfig,
    device: &ChosenDevice,
    beside: &Beside<'_>,
) -> Result<Measured, PipelineError> {
    let (stream, place, precision) =
        (Stream::new(1337, "weights"), &device.device, config.precision);
    let windows = Noise::normal(sizes, config, CHANNELS);
    match model {
        SmallModel::PatchTransformer => {
            let model = PatchTransformerConfig::default().init(stream, CHANNELS, place)?;
            time(model.in_precision(precision), &Pretraining, windows, config, device, beside)
        }
        SmallModel::Gru => {
            let cell = RecurrentConfig { cell: Cell::Gru, ..RecurrentConfig::default() };
            let model = masked(AnyEncoderConfig::Recurrent(cell));
            let model = model.init(stream, CHANNELS, sizes.length, place)?;
            time(model.in_precision(precision), &Pretraining, windows, config, device, beside)
        }
        SmallModel::Dilated => {
            let model = masked(AnyEncoderConfig::Dilated(DilatedConfig::default()));
            let model = model.init(stream, CHANNELS, sizes.length, place)?;
            time(model.in_precision(precision), &Pretraining, windows, config, device, beside)
        }
        SmallModel::BilstmAttention => {
            let model = BiLstmAttentionConfig::default().init(stream, CHANNELS, CLASSES, place)?;
            let windows = windows.with_labels(CLASSES);
            time(model.in_precision(precision), &Classifying, windows, config, device, beside)
        }
        SmallModel::Classifier => {
            let encoder = RecurrentConfig::default();
            let encoder = encoder.init(stream.substream(0), CHANNELS, place)?;
            let encoder = encoder.in_precision(precision);
            let head = ClassifierConfig::default();
            let model = head.init(stream.substream(1), encoder, CLASSES, place)?;
            let windows = windows.with_labels(CLASSES);
            time(model.in_precision(precision), &Classifying, windows, config, device, beside)
        }
        SmallModel::Text(family) => {
            let encoder = text_encoder(family, sizes.length);
            let texts = Noise::tokens(sizes, config, encoder.vocabulary).with_labels(LABELS);
            let encoder = encoder.init(stream.substream(0), place)?;
            let (pooling, dropout) = (Pooling::Cls, 0.1);
            let heads = TextHeadsConfig { labels: LABELS, pooling, dropout, span: false };
            let model = heads.init(encoder, stream.substream(1), place)?;
            time(model.in_precision(precision), &Labelling, texts, config, device, beside)
        }
    }
}

fn masked(encoder: AnyEncoderConfig) -> MaskedConfig {
    MaskedConfig { encoder, ..MaskedConfig::default() }
}

/// What makes each family another than BERT, around a small encoder.
fn text_encoder(family: Family, positions: usize) -> TextEncoderConfig {
    let bert = TextEncoderConfig {
        vocabulary: 1000,
        positions,
        width: 64,
        heads: 4,
        layers: LAYERS,
        feedforward: 128,
        ..TextEncoderConfig::default()
    };
    match family {
        Family::Bert => bert,
        Family::Roberta => TextEncoderConfig { position_offset: 2, segments: 1, ..bert },
        Family::Electra => TextEncoderConfig { embedding: Some(32), ..bert },
        Family::DistilBert => TextEncoderConfig { segments: 0, ..bert },
        Family::DebertaV2 => {
            let rule = Disentangled { farthest: 64, buckets: 16, ..Disentangled::default() };
            let attention = TextAttention::Disentangled(rule);
            TextEncoderConfig { absolute_positions: false, segments: 0, attention, ..bert }
        }
        Family::Longformer => {
            let attention = TextAttention::Windowed(Windowed { reach: vec![8; LAYERS] });
            TextEncoderConfig { position_offset: 2, segments: 1, attention, ..bert }
        }
    }
}

/// Cross-entropy of the classes.
struct Classifying;

impl<M: Classify> Objective<M> for Classifying {
    fn loss(&self, model: &M, batch: &Batch, streams: Streams) -> Loss {
        cross_entropy(model.logits(batch.inputs.clone(), None, streams.dropout), batch, 0.0)
    }
}

/// Binary cross-entropy of all labels, of which one is true.
struct Labelling;

impl Objective<TextModel> for Labelling {
    fn loss(&self, model: &TextModel, batch: &Batch, streams: Streams) -> Loss {
        let [samples, time, _] = batch.inputs.dims();
        let tokens = batch.inputs.clone().reshape([samples, time]).int();
        binary_cross_entropy(model.forward(tokens, None, streams.dropout).labels, batch)
    }
}

#[cfg(test)]
mod tests {
    use firebox_core::Precision;

    use super::*;
    use crate::bench::Workload;

    #[test]
    fn every_small_model_trains_in_every_precision_of_a_processor() {
        let device = ChosenDevice::named("cpu");
        for (model, name) in SmallModel::ALL {
            assert_eq!(model.name(), name);
            for precision in [Precision::F32, Precision::Bf16] {
                let config = BenchConfig {
                    precision,
                    batch: Some(2),
                    steps: 2,
                    warmup: 0,
                    ..BenchConfig::new(Workload::LstmMae)
                };
                let measured = measure_small(model, &config, &device).unwrap();
                // Noise has the variance 1; the cross-entropy of chance is ln 3 or ln 2.
                assert_eq!(measured.losses.len(), 2, "{name}");
                assert!((0.2..5.0).contains(&measured.losses[0]), "{name}: {:?}", measured.losses);
                assert!(measured.parameters > 1000, "{name}");
            }
        }
    }
}
