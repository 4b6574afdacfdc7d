//! Small models of every kind with weights of noise, their running statistics among them.

#![allow(dead_code, reason = "each test uses a part of it")]

use burn::tensor::Device;
use firebox_core::{Channel, Key, Normaliser, Precision, Role, Stream, WindowRule};
use firebox_export::{Architecture, CARD_VERSION, ModelCard, SavedModel, Task};
use firebox_models::{
    Activation, AnyEncoderConfig, BertConfig, BiLstmAttentionConfig, BiLstmMaeConfig, Cell,
    ClassifierConfig, CnnBiLstmConfig, DilatedConfig, Disentangled, MaskedConfig, MlpConfig,
    Parameter, PatchTransformerConfig, Pooling, RecurrentConfig, StackedLstmConfig, StepPooling,
    TextAttention, TextEncoderConfig, TextHeadsConfig, TransformerConfig, Windowed,
};

/// A name, and a model of each kind; the same kinds in other shapes, too.
pub(crate) fn zoo() -> Vec<(&'static str, Architecture)> {
    let mae = |hidden, layers| BiLstmMaeConfig {
        hidden,
        layers,
        decoder_hidden: 7,
        ..BiLstmMaeConfig::default()
    };
    let transformer = TransformerConfig {
        width: 16,
        heads: 4,
        layers: 2,
        feedforward: 24,
        head_hidden: 9,
        ..TransformerConfig::default()
    };
    let last = TransformerConfig {
        norm_first: false,
        activation: Activation::Relu,
        heads: 1,
        ..transformer.clone()
    };
    vec![
        ("mae", Architecture::BilstmMae { config: mae(6, 2), channels: 4 }),
        ("mae-deep", Architecture::BilstmMae { config: mae(5, 3), channels: 1 }),
        (
            "cnn",
            Architecture::CnnBilstm {
                config: CnnBiLstmConfig {
                    convolutions: vec![5, 6],
                    hidden: 7,
                    head: 8,
                    embedding: 6,
                    classifier: vec![5, 4],
                    ..CnnBiLstmConfig::default()
                },
                channels: 3,
                classes: 4,
            },
        ),
        (
            "cnn-wide",
            Architecture::CnnBilstm {
                config: CnnBiLstmConfig {
                    convolutions: vec![4],
                    kernel: 5,
                    hidden: 3,
                    layers: 1,
                    head: 5,
                    head_norm: false,
                    embedding: 0,
                    classifier: vec![],
                    ..CnnBiLstmConfig::default()
                },
                channels: 2,
                classes: 2,
            },
        ),
        (
            "transformer",
            Architecture::Transformer { config: transformer, channels: 3, time: 40, classes: 3 },
        ),
        (
            "transformer-last",
            Architecture::Transformer { config: last, channels: 5, time: 32, classes: 2 },
        ),
        (
            "mlp",
            Architecture::Mlp {
                config: MlpConfig { hidden: vec![9, 5], ..MlpConfig::default() },
                time: 12,
                channels: 3,
                classes: 3,
            },
        ),
        (
            "bert",
            Architecture::Bert {
                config: BertConfig {
                    vocabulary: 31,
                    positions: 40,
                    width: 12,
                    heads: 3,
                    layers: 2,
                    feedforward: 20,
                    labels: 4,
                    ..BertConfig::default()
                },
            },
        ),
        (
            "forecaster",
            Architecture::StackedLstm {
                config: StackedLstmConfig { hidden_1: 6, hidden_2: 4, dense: 5, dropout: 0.2 },
                channels: 2,
                statics: 3,
                outputs: 4,
            },
        ),
        (
            "forecaster-short",
            Architecture::StackedLstm {
                config: StackedLstmConfig { hidden_1: 5, hidden_2: 0, dense: 3, dropout: 0.2 },
                channels: 1,
                statics: 0,
                outputs: 1,
            },
        ),
        ("patches", Architecture::PatchTransformer { config: patches(5), channels: 3 }),
        ("gru", Architecture::Recurrent { config: recurrent(Cell::Gru, true), channels: 3 }),
        (
            "bilstm-attention",
            Architecture::BilstmAttention {
                config: BiLstmAttentionConfig {
                    hidden: 5,
                    attention: 7,
                    head_hidden: 6,
                    ..BiLstmAttentionConfig::default()
                },
                channels: 3,
                classes: 3,
            },
        ),
        (
            "dilated",
            Architecture::Dilated {
                config: DilatedConfig { hidden: 4, output: 6, blocks: 3 },
                channels: 2,
            },
        ),
        (
            "lstm-classifier",
            Architecture::RecurrentClassifier {
                config: ClassifierConfig { heads: 2, hidden: 7, ..ClassifierConfig::default() },
                encoder: recurrent(Cell::Lstm, true),
                channels: 4,
                classes: 3,
            },
        ),
        (
            "gru-classifier",
            Architecture::RecurrentClassifier {
                config: ClassifierConfig {
                    heads: 0,
                    hidden: 0,
                    pooling: StepPooling::MeanMax,
                    ..ClassifierConfig::default()
                },
                encoder: recurrent(Cell::Gru, false),
                channels: 2,
                classes: 2,
            },
        ),
        (
            "patch-classifier",
            Architecture::PatchClassifier {
                config: ClassifierConfig {
                    heads: 2,
                    hidden: 5,
                    pooling: StepPooling::Max,
                    ..ClassifierConfig::default()
                },
                encoder: patches(3),
                channels: 2,
                classes: 4,
            },
        ),
        ("masked-gru", masked(AnyEncoderConfig::Recurrent(recurrent(Cell::Gru, false)))),
        ("masked-dilated", masked(AnyEncoderConfig::Dilated(dilated()))),
        ("masked-transformer", masked(AnyEncoderConfig::Transformer(tiny_transformer()))),
        ("masked-cnn", masked(AnyEncoderConfig::CnnBilstm(tiny_cnn()))),
        ("masked-stacked", masked(AnyEncoderConfig::StackedLstm(tiny_stacked()))),
        ("classifier-dilated", classifier(AnyEncoderConfig::Dilated(dilated()))),
        ("classifier-transformer", classifier(AnyEncoderConfig::Transformer(tiny_transformer()))),
        ("classifier-cnn", classifier(AnyEncoderConfig::CnnBilstm(tiny_cnn()))),
        ("text-bert", text(Pooling::Cls, true, bert_form())),
        (
            "text-roberta",
            text(
                Pooling::Mean,
                false,
                TextEncoderConfig {
                    position_offset: 2,
                    segments: 1,
                    activation: Activation::Relu,
                    ..bert_form()
                },
            ),
        ),
        (
            "text-electra",
            text(Pooling::Max, true, TextEncoderConfig { embedding: Some(8), ..bert_form() }),
        ),
        (
            "text-distilbert",
            text(Pooling::Attention, true, TextEncoderConfig { segments: 0, ..bert_form() }),
        ),
        (
            "text-deberta-v3",
            text(
                Pooling::Cls,
                true,
                deberta(Disentangled { farthest: 16, buckets: 8, ..Disentangled::default() }),
            ),
        ),
        (
            "text-deberta-v2",
            text(
                Pooling::Attention,
                false,
                deberta(Disentangled {
                    farthest: 10,
                    buckets: 0,
                    shared_projection: false,
                    normalised: false,
                    ..Disentangled::default()
                }),
            ),
        ),
        (
            "text-deberta-one-way",
            text(
                Pooling::Mean,
                false,
                deberta(Disentangled {
                    farthest: 9,
                    buckets: 4,
                    content_to_position: false,
                    ..Disentangled::default()
                }),
            ),
        ),
        (
            "text-longformer",
            text(
                Pooling::Cls,
                true,
                TextEncoderConfig {
                    attention: TextAttention::Windowed(Windowed { reach: vec![2, 5] }),
                    ..bert_form()
                },
            ),
        ),
        ("masked-attention", masked(AnyEncoderConfig::BilstmAttention(tiny_attention()))),
        ("classifier-attention", classifier(AnyEncoderConfig::BilstmAttention(tiny_attention()))),
        (
            "classifier-stacked",
            classifier(AnyEncoderConfig::StackedLstm(StackedLstmConfig {
                hidden_2: 6,
                ..tiny_stacked()
            })),
        ),
        ("classifier-gru", classifier(AnyEncoderConfig::Recurrent(recurrent(Cell::Gru, true)))),
        (
            "mlp-without-gate",
            Architecture::Mlp {
                config: MlpConfig { hidden: vec![6], gate: false, ..MlpConfig::default() },
                time: 12,
                channels: 2,
                classes: 2,
            },
        ),
        (
            "text-deberta-absolute",
            text(
                Pooling::Cls,
                false,
                TextEncoderConfig {
                    absolute_positions: true,
                    ..deberta(Disentangled {
                        farthest: 16,
                        buckets: 8,
                        shared_projection: false,
                        position_to_content: false,
                        ..Disentangled::default()
                    })
                },
            ),
        ),
    ]
}

fn masked(encoder: AnyEncoderConfig) -> Architecture {
    let config = MaskedConfig { encoder, ..MaskedConfig::default() };
    Architecture::Masked { config, channels: 3, time: 40 }
}

fn classifier(encoder: AnyEncoderConfig) -> Architecture {
    let config = ClassifierConfig { heads: 2, hidden: 5, ..ClassifierConfig::default() };
    Architecture::EncoderClassifier { config, encoder, channels: 2, time: 40, classes: 3 }
}

fn dilated() -> DilatedConfig {
    DilatedConfig { hidden: 4, output: 6, blocks: 3 }
}

fn tiny_transformer() -> TransformerConfig {
    TransformerConfig {
        width: 8,
        heads: 2,
        layers: 1,
        feedforward: 10,
        head_hidden: 4,
        ..TransformerConfig::default()
    }
}

fn tiny_cnn() -> CnnBiLstmConfig {
    CnnBiLstmConfig {
        convolutions: vec![4, 5],
        hidden: 3,
        head: 6,
        embedding: 0,
        classifier: vec![],
        ..CnnBiLstmConfig::default()
    }
}

fn tiny_attention() -> BiLstmAttentionConfig {
    BiLstmAttentionConfig {
        hidden: 4,
        attention: 5,
        head_hidden: 3,
        ..BiLstmAttentionConfig::default()
    }
}

fn tiny_stacked() -> StackedLstmConfig {
    StackedLstmConfig { hidden_1: 4, hidden_2: 5, dense: 3, dropout: 0.2 }
}

fn text(pooling: Pooling, span: bool, encoder: TextEncoderConfig) -> Architecture {
    let config = TextHeadsConfig { labels: 3, pooling, dropout: 0.1, span };
    Architecture::Text { config, encoder }
}

fn bert_form() -> TextEncoderConfig {
    TextEncoderConfig {
        vocabulary: 31,
        positions: 40,
        width: 12,
        heads: 3,
        layers: 2,
        feedforward: 20,
        ..TextEncoderConfig::default()
    }
}

fn deberta(rule: Disentangled) -> TextEncoderConfig {
    TextEncoderConfig {
        absolute_positions: false,
        segments: 0,
        attention: TextAttention::Disentangled(rule),
        ..bert_form()
    }
}

fn recurrent(cell: Cell, bidirectional: bool) -> RecurrentConfig {
    RecurrentConfig { cell, hidden: 6, bidirectional, ..RecurrentConfig::default() }
}

fn patches(patch: usize) -> PatchTransformerConfig {
    PatchTransformerConfig {
        patch,
        width: 12,
        heads: 3,
        layers: 2,
        feedforward: 10,
        ..PatchTransformerConfig::default()
    }
}

/// Weights of noise for a model. Variances are positive.
pub(crate) fn weights(architecture: &Architecture, seed: u64) -> Vec<Parameter> {
    let mut weights = architecture.init(&Device::default()).unwrap().parameters();
    let stream = Stream::new(seed, "weights");
    for (index, parameter) in weights.iter_mut().enumerate() {
        let mut draws = stream.substream(index as u64).draws();
        let positive = parameter.name.ends_with("running_var");
        for value in &mut parameter.values {
            let drawn = draws.normal();
            *value = if positive { 0.5 + drawn.abs() } else { 0.4 * drawn } as f32;
        }
    }
    weights
}

/// Channels of a window, and the sizes of an axis that cannot be chosen.
pub(crate) fn channels(architecture: &Architecture) -> usize {
    match architecture {
        Architecture::BilstmMae { channels, .. }
        | Architecture::CnnBilstm { channels, .. }
        | Architecture::Transformer { channels, .. }
        | Architecture::Mlp { channels, .. }
        | Architecture::StackedLstm { channels, .. }
        | Architecture::PatchTransformer { channels, .. }
        | Architecture::BilstmAttention { channels, .. }
        | Architecture::Dilated { channels, .. }
        | Architecture::Recurrent { channels, .. }
        | Architecture::RecurrentClassifier { channels, .. }
        | Architecture::PatchClassifier { channels, .. }
        | Architecture::Masked { channels, .. }
        | Architecture::EncoderClassifier { channels, .. } => *channels,
        Architecture::Bert { .. } | Architecture::Text { .. } => 1,
    }
}

/// A model with a card.
pub(crate) fn saved(architecture: &Architecture, seed: u64) -> SavedModel {
    let channels: Vec<Channel> = (0..channels(architecture))
        .map(|index| Channel::new(format!("channel {index}"), Role::Other))
        .collect();
    let key = |name| Key::builder(name, 1).finish();
    SavedModel {
        card: ModelCard {
            version: CARD_VERSION,
            run: "sample-1".to_owned(),
            firebox: "0.1.0".to_owned(),
            task: match architecture.classes() {
                None => Task::Pretraining,
                Some(_) => Task::Classification,
            },
            architecture: architecture.clone(),
            precision: Precision::F32,
            classes: (0..architecture.classes().unwrap_or(0))
                .map(|c| format!("class {c}"))
                .collect(),
            window: WindowRule { length: 12, stride: 3, whole: false },
            interval: Some(60_000_000),
            normaliser: normaliser(&channels),
            forecast: None,
            texts: None,
            channels,
            left_out: vec![],
            data: serde_json::json!({}),
            settings: serde_json::json!({ "train": { "epochs": 3 } }),
            data_key: key("series"),
            training_key: key("training"),
            trained: "12 steps in 3 epochs | a line".to_owned(),
            scores: [("accuracy".to_owned(), 0.75)].into(),
            scores_of: String::new(),
            weights: String::new(),
            checksum: String::new(),
        },
        parameters: weights(architecture, seed),
        tokenizer: None,
    }
}

fn normaliser(channels: &[Channel]) -> Normaliser {
    let one = serde_json::json!({ "center": 0.1, "scale": 3.0 });
    let fitted = vec![one; channels.len()];
    let whole = serde_json::json!({ "kind": "standard", "channels": channels, "fitted": fitted });
    serde_json::from_value(whole).unwrap()
}
