//! Small models of every kind with weights of noise, their running statistics among them.

#![allow(dead_code, reason = "each test uses a part of it")]

use burn::tensor::Device;
use firebox_core::{Channel, Key, Normaliser, Precision, Role, Stream, WindowRule};
use firebox_export::{Architecture, CARD_VERSION, Model, ModelCard, SavedModel, Task};
use firebox_models::{
    Activation, BertConfig, BiLstmMaeConfig, CnnBiLstmConfig, MlpConfig, Parameter,
    TransformerConfig,
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
    ]
}

/// Weights of noise for a model. Variances are positive.
pub(crate) fn weights(architecture: &Architecture, seed: u64) -> Vec<Parameter> {
    let mut weights = fresh(architecture).parameters();
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

/// The model with fresh weights.
fn fresh(architecture: &Architecture) -> Model {
    let device = Device::default();
    let stream = Stream::new(1, "fresh");
    match architecture {
        Architecture::BilstmMae { config, channels } => {
            Model::BilstmMae(config.init(stream, *channels, &device).unwrap())
        }
        Architecture::CnnBilstm { config, channels, classes } => {
            Model::CnnBilstm(config.init(stream, *channels, *classes, &device).unwrap())
        }
        Architecture::Transformer { config, channels, time, classes } => {
            Model::Transformer(config.init(stream, *channels, *time, *classes, &device).unwrap())
        }
        Architecture::Mlp { config, time, channels, classes } => {
            Model::Mlp(config.init(stream, [*time, *channels], *classes, &device).unwrap())
        }
        Architecture::Bert { config } => Model::Bert(config.init(stream, &device).unwrap()),
    }
}

/// Channels of a window, and the sizes of an axis that cannot be chosen.
pub(crate) fn channels(architecture: &Architecture) -> usize {
    match architecture {
        Architecture::BilstmMae { channels, .. }
        | Architecture::CnnBilstm { channels, .. }
        | Architecture::Transformer { channels, .. }
        | Architecture::Mlp { channels, .. } => *channels,
        Architecture::Bert { .. } => 1,
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
            channels,
            data: serde_json::json!({}),
            settings: serde_json::json!({ "train": { "epochs": 3 } }),
            data_key: key("series"),
            training_key: key("training"),
            trained: "12 steps in 3 epochs | a line".to_owned(),
            scores: [("accuracy".to_owned(), 0.75)].into(),
            weights: String::new(),
        },
        parameters: weights(architecture, seed),
    }
}

fn normaliser(channels: &[Channel]) -> Normaliser {
    let one = serde_json::json!({ "center": 0.1, "scale": 3.0 });
    let fitted = vec![one; channels.len()];
    let whole = serde_json::json!({ "kind": "standard", "channels": channels, "fitted": fitted });
    serde_json::from_value(whole).unwrap()
}
