//! The graph of each model of the zoo: encoders of windows, and what stands on them.

use firebox_models::{
    AnyEncoderConfig, BertConfig, BiLstmAttentionConfig, ClassifierConfig, CnnBiLstmConfig,
    DilatedConfig, EncoderLayerConfig, PatchTransformerConfig, RecurrentConfig, StackedLstmConfig,
    StepPooling, TransformerConfig,
};

use super::Part;
use super::graph::{Axis, Graph, Setting, Value};
use super::layers::{Cell, Recurrent, Valid};
use super::proto::{FLOAT, INT64};
use super::text::text;
use crate::{Architecture, ExportError};

const BATCH: Axis = Axis::Free("batch");
const TIME: Axis = Axis::Free("time");

/// Windows as vectors: one for each step that the encoder has, and one for the whole.
struct Encoded {
    /// `[batch, step, width]`, zeros for padding.
    steps: Value,
    /// Which of them are valid.
    valid: Valid,
    /// Name of the axis of steps: `time` where there are as many as in the input.
    axis: &'static str,
    width: usize,
    /// `[batch, embedding]`
    embedding: Value,
    embedding_width: usize,
}

/// Puts the model into an empty graph.
pub(super) fn model(
    graph: &mut Graph<'_>,
    architecture: &Architecture,
    part: Part,
) -> Result<(), ExportError> {
    match (architecture, part) {
        (Architecture::Mlp { time, channels, classes, .. }, Part::Head) => {
            mlp(graph, [*time, *channels], *classes)
        }
        (Architecture::Bert { config }, part) => bert(graph, config, part),
        (Architecture::Text { config, encoder }, part) => text(graph, config, encoder, part),
        (Architecture::BilstmMae { config, channels }, Part::Head) => {
            let (input, valid) = sequences(graph, *channels);
            let hidden = graph.mask();
            let shown = graph.hide(&input, &hidden, "mask_token")?;
            let shown = graph.without_padding(&shown, &valid);
            let encoded = recurrent(graph, &of_mae(config), &shown, valid)?;
            let x = graph.linear(&encoded.steps, "decoder.hidden")?;
            let x = graph.relu(&x);
            let x = graph.linear(&x, "decoder.output")?;
            restored(graph, &x, *channels, 1);
            Ok(())
        }
        (Architecture::PatchTransformer { config, channels }, Part::Head) => {
            let (input, valid) = sequences(graph, *channels);
            let hidden = graph.mask();
            let shown = graph.hide(&input, &hidden, "mask_token")?;
            let shown = graph.without_padding(&shown, &valid);
            let encoded = patch_transformer(graph, config, *channels, &shown, &valid)?;
            let patches = graph.linear(&encoded.steps, "decoder")?;
            let steps = graph.reshape(&patches, &[0, -1, *channels as i64]);
            let steps = graph.as_long_as(&steps, &input);
            restored(graph, &steps, *channels, 1);
            Ok(())
        }
        (Architecture::StackedLstm { statics, outputs, .. }, Part::Head) => {
            let encoded = encoder(graph, architecture)?;
            forecast(graph, &encoded, *statics, *outputs)
        }
        (Architecture::Masked { config, channels, .. }, Part::Head) => {
            let (input, valid) = sequences(graph, *channels);
            let hidden = graph.mask();
            let shown = graph.hide(&input, &hidden, "mask_token")?;
            let shown = graph.without_padding(&shown, &valid);
            let encoded = within_encoder(graph, &config.encoder, &shown, valid)?;
            let steps = graph.linear(&encoded.steps, "decoder")?;
            let steps = graph.reshape(&steps, &[0, -1, *channels as i64]);
            let steps = graph.padded_to(&steps, &input);
            restored(graph, &steps, *channels, config.encoder.fewest_steps());
            Ok(())
        }
        (
            Architecture::RecurrentClassifier { config, classes, .. }
            | Architecture::PatchClassifier { config, classes, .. }
            | Architecture::EncoderClassifier { config, classes, .. },
            Part::Head,
        ) => {
            let encoded = encoder(graph, architecture)?;
            attention_head(graph, config, &encoded, *classes)
        }
        (Architecture::BilstmAttention { classes: count, .. }, Part::Head) => {
            let encoded = encoder(graph, architecture)?;
            let x = graph.linear(&encoded.embedding, "head.hidden")?;
            let x = graph.relu(&x);
            let logits = graph.linear(&x, "head.output")?;
            classes(graph, &logits, *count);
            Ok(())
        }
        (Architecture::Recurrent { .. } | Architecture::Dilated { .. }, Part::Head) => {
            Err(ExportError::NoHead { model: architecture.name() })
        }
        (_, Part::Encoder) => {
            let encoded = encoder(graph, architecture)?;
            outputs(graph, &encoded);
            Ok(())
        }
        (Architecture::CnnBilstm { classes: count, .. }, Part::Head) => {
            let encoded = encoder(graph, architecture)?;
            let hidden = hidden_layers(graph, encoded.embedding, "classifier")?;
            let logits = graph.linear(&hidden, "output")?;
            classes(graph, &logits, *count);
            Ok(())
        }
        (Architecture::Transformer { classes: count, .. }, Part::Head) => {
            let encoded = encoder(graph, architecture)?;
            let mean = graph.mean(&encoded.steps, &encoded.valid);
            let x = graph.linear(&mean, "head.hidden")?;
            let x = graph.relu(&x);
            let logits = graph.linear(&x, "head.output")?;
            classes(graph, &logits, *count);
            Ok(())
        }
    }
}

/// The encoder of a model, from its inputs on.
fn encoder(graph: &mut Graph<'_>, architecture: &Architecture) -> Result<Encoded, ExportError> {
    match architecture {
        Architecture::BilstmMae { config, channels } => {
            let (x, valid) = sequences(graph, *channels);
            recurrent(graph, &of_mae(config), &x, valid)
        }
        Architecture::CnnBilstm { config, channels, .. } => {
            let (x, valid) = sequences(graph, *channels);
            cnn_bilstm(graph, config, &x, &valid)
        }
        Architecture::Transformer { config, channels, .. } => {
            let (x, valid) = sequences(graph, *channels);
            transformer(graph, config, &x, valid)
        }
        Architecture::StackedLstm { config, channels, .. } => {
            let (x, valid) = sequences(graph, *channels);
            stacked_lstm(graph, config, x, valid)
        }
        Architecture::PatchTransformer { config, channels } => {
            let (x, valid) = sequences(graph, *channels);
            patch_transformer(graph, config, *channels, &x, &valid)
        }
        Architecture::BilstmAttention { config, channels, .. } => {
            let (x, valid) = sequences(graph, *channels);
            bilstm_attention(graph, config, &x, valid)
        }
        Architecture::Dilated { config, channels } => {
            let (x, valid) = sequences(graph, *channels);
            dilated(graph, config, &x, valid)
        }
        Architecture::Recurrent { config, channels } => {
            let (x, valid) = sequences(graph, *channels);
            recurrent(graph, config, &x, valid)
        }
        Architecture::RecurrentClassifier { encoder, channels, .. } => {
            let (x, valid) = sequences(graph, *channels);
            graph.within("encoder.");
            let encoded = recurrent(graph, encoder, &x, valid);
            graph.within("");
            encoded
        }
        Architecture::PatchClassifier { encoder, channels, .. } => {
            let (x, valid) = sequences(graph, *channels);
            graph.within("encoder.");
            let encoded = patch_transformer(graph, encoder, *channels, &x, &valid);
            graph.within("");
            encoded
        }
        Architecture::Masked { config, channels, .. } => {
            let (x, valid) = sequences(graph, *channels);
            within_encoder(graph, &config.encoder, &x, valid)
        }
        Architecture::EncoderClassifier { encoder, channels, .. } => {
            let (x, valid) = sequences(graph, *channels);
            within_encoder(graph, encoder, &x, valid)
        }
        Architecture::Mlp { .. } | Architecture::Bert { .. } | Architecture::Text { .. } => {
            Err(ExportError::NoEncoder { model: architecture.name() })
        }
    }
}

/// An encoder whose parameters stand behind `encoder.`.
fn within_encoder(
    graph: &mut Graph<'_>,
    encoder: &AnyEncoderConfig,
    x: &Value,
    valid: Valid,
) -> Result<Encoded, ExportError> {
    graph.within("encoder.");
    let encoded = match encoder {
        AnyEncoderConfig::Recurrent(config) => recurrent(graph, config, x, valid),
        AnyEncoderConfig::Dilated(config) => dilated(graph, config, x, valid),
        AnyEncoderConfig::Transformer(config) => transformer(graph, config, x, valid),
        AnyEncoderConfig::CnnBilstm(config) => cnn_bilstm(graph, config, x, &valid),
        AnyEncoderConfig::BilstmAttention(config) => bilstm_attention(graph, config, x, valid),
        AnyEncoderConfig::StackedLstm(config) => stacked_lstm(graph, config, x.clone(), valid),
    };
    graph.within("");
    encoded
}

/// The windows that a model reads.
fn windows(graph: &mut Graph<'_>, time: Axis, channels: usize) -> Value {
    let axes = [BATCH, time, Axis::Fixed(channels)];
    graph.input("input", FLOAT, &axes, "normalised windows")
}

/// Windows and lengths, with zeros for padding.
fn sequences(graph: &mut Graph<'_>, channels: usize) -> (Value, Valid) {
    let input = windows(graph, TIME, channels);
    let lengths = graph.lengths();
    let valid = graph.valid(&input, 1, &lengths);
    (graph.without_padding(&input, &valid), valid)
}

/// The outputs of an encoder.
fn outputs(graph: &mut Graph<'_>, encoded: &Encoded) {
    let axes = [BATCH, Axis::Free(encoded.axis), Axis::Fixed(encoded.width)];
    graph.output("encoding", &encoded.steps, &axes, "a vector for each step, zeros for padding");
    let axes = [BATCH, Axis::Fixed(encoded.embedding_width)];
    graph.output("embedding", &encoded.embedding, &axes, "a vector for each sample");
}

/// The outputs of a classifier of which one class is true.
fn classes(graph: &mut Graph<'_>, logits: &Value, classes: usize) {
    let axes = [BATCH, Axis::Fixed(classes)];
    let probabilities = graph.softmax(logits);
    graph.output("logits", logits, &axes, "a score for each class");
    graph.output("probabilities", &probabilities, &axes, "softmax of the logits");
}

/// The output of an autoencoder whose encoder makes one step of so many.
fn restored(graph: &mut Graph<'_>, steps: &Value, channels: usize, shortened: usize) {
    let axes = [BATCH, TIME, Axis::Fixed(channels)];
    let meaning = match shortened {
        1 => "every step restored; padding means nothing".to_owned(),
        _ => format!(
            "every step restored but the last `length mod {shortened}` of each window: these and padding mean nothing"
        ),
    };
    graph.output("reconstruction", steps, &axes, &meaning);
}

/// Steps with the embedding that most encoders share: mean ‖ maximum.
fn mean_max(
    graph: &mut Graph<'_>,
    steps: Value,
    valid: Valid,
    axis: &'static str,
    width: usize,
) -> Encoded {
    let (mean, maximum) = (graph.mean(&steps, &valid), graph.maximum(&steps, &valid));
    let embedding = graph.beside(&mean, &maximum);
    Encoded { steps, valid, axis, width, embedding, embedding_width: 2 * width }
}

/// The encoder of the masked autoencoder of R1 as the recurrent encoder that it is.
fn of_mae(config: &firebox_models::BiLstmMaeConfig) -> RecurrentConfig {
    RecurrentConfig { hidden: config.hidden, layers: config.layers, ..RecurrentConfig::default() }
}

fn recurrent(
    graph: &mut Graph<'_>,
    config: &RecurrentConfig,
    x: &Value,
    valid: Valid,
) -> Result<Encoded, ExportError> {
    let (cell, prefix) = match config.cell {
        firebox_models::Cell::Lstm => (Cell::Lstm, "lstm"),
        firebox_models::Cell::Gru => (Cell::Gru, "gru"),
    };
    let stack = Recurrent {
        cell,
        prefix,
        hidden: config.hidden,
        layers: config.layers,
        bidirectional: config.bidirectional,
    };
    let x = graph.recurrent(x, &valid, &stack)?;
    let x = graph.layer_norm(&x, "norm")?;
    let steps = graph.without_padding(&x, &valid);
    Ok(mean_max(graph, steps, valid, "time", config.width()))
}

fn bilstm_attention(
    graph: &mut Graph<'_>,
    config: &BiLstmAttentionConfig,
    x: &Value,
    valid: Valid,
) -> Result<Encoded, ExportError> {
    // Channels of one level, such as prices, lie far from zero.
    let x = graph.centred(x);
    let x = graph.layer_norm(&x, "input_norm")?;
    let stack = Recurrent {
        cell: Cell::Lstm,
        prefix: "lstm",
        hidden: config.hidden,
        layers: config.layers,
        bidirectional: true,
    };
    let x = graph.recurrent(&x, &valid, &stack)?;
    let x = graph.layer_norm(&x, "norm")?;
    let steps = graph.without_padding(&x, &valid);
    let hidden = graph.linear(&steps, "attention.hidden")?;
    let hidden = graph.node("Tanh", &[&hidden], &[]);
    let scores = graph.product(&hidden, "attention.score.weight")?;
    let embedding = graph.weighted(&steps, &scores, &valid);
    let width = 2 * config.hidden;
    Ok(Encoded { steps, valid, axis: "time", width, embedding, embedding_width: width })
}

fn dilated(
    graph: &mut Graph<'_>,
    config: &DilatedConfig,
    x: &Value,
    valid: Valid,
) -> Result<Encoded, ExportError> {
    let x = graph.linear(x, "input")?;
    let mut x = graph.without_padding(&x, &valid);
    for block in 0..config.blocks {
        let mut y = x.clone();
        for conv in ["conv1", "conv2"] {
            y = graph.gelu(&y);
            y = graph.transpose(&y, &[0, 2, 1]);
            y = graph.conv(&y, &format!("blocks.{block}.{conv}"), 1 << block)?;
            y = graph.transpose(&y, &[0, 2, 1]);
            y = graph.without_padding(&y, &valid);
        }
        if graph.has(&format!("blocks.{block}.project.weight")) {
            x = graph.linear(&x, &format!("blocks.{block}.project"))?;
            x = graph.without_padding(&x, &valid);
        }
        x = graph.node("Add", &[&x, &y], &[]);
    }
    Ok(mean_max(graph, x, valid, "time", config.output))
}

fn stacked_lstm(
    graph: &mut Graph<'_>,
    config: &StackedLstmConfig,
    mut x: Value,
    valid: Valid,
) -> Result<Encoded, ExportError> {
    let mut width = 0;
    let sizes = [config.hidden_1, config.hidden_2];
    for (layer, hidden) in sizes.into_iter().filter(|hidden| *hidden > 0).enumerate() {
        let prefix = format!("layers.{layer}");
        let (layers, bidirectional) = (1, false);
        let stack = Recurrent { cell: Cell::Lstm, prefix: &prefix, hidden, layers, bidirectional };
        x = graph.recurrent(&x, &valid, &stack)?;
        width = hidden;
    }
    let embedding = graph.last(&x, &valid);
    Ok(Encoded { steps: x, valid, axis: "time", width, embedding, embedding_width: width })
}

/// Forecasts from the last valid step and what is known of a window beside its values.
fn forecast(
    graph: &mut Graph<'_>,
    encoded: &Encoded,
    statics: usize,
    outputs: usize,
) -> Result<(), ExportError> {
    let mut features = encoded.embedding.clone();
    if statics > 0 {
        let axes = [BATCH, Axis::Fixed(statics)];
        let given = graph.input("statics", FLOAT, &axes, "static features of each sample");
        features = graph.beside(&features, &given);
    }
    let x = graph.linear(&features, "dense")?;
    let x = graph.relu(&x);
    let x = graph.linear(&x, "output")?;
    let axes = [BATCH, Axis::Fixed(outputs)];
    graph.output("forecast", &x, &axes, "a number for each target and horizon, scaled");
    Ok(())
}

fn patch_transformer(
    graph: &mut Graph<'_>,
    config: &PatchTransformerConfig,
    channels: usize,
    x: &Value,
    valid: &Valid,
) -> Result<Encoded, ExportError> {
    let x = graph.patches(x, config.patch, channels);
    let lengths = graph.patch_lengths(&valid.lengths, config.patch);
    let valid = graph.valid(&x, 1, &lengths);
    let x = graph.linear(&x, "input")?;
    let x = graph.sinusoidal(&x, config.width);
    let x = layers(graph, x, &valid, config.layers, &config.layer())?;
    let x = graph.layer_norm(&x, "norm")?;
    let steps = graph.without_padding(&x, &valid);
    Ok(mean_max(graph, steps, valid, "steps", config.width))
}

/// Attention over the steps of an encoder, pooling, and a small head.
fn attention_head(
    graph: &mut Graph<'_>,
    config: &ClassifierConfig,
    encoded: &Encoded,
    count: usize,
) -> Result<(), ExportError> {
    let Encoded { steps, valid, width, .. } = encoded;
    let mut x = steps.clone();
    if config.heads > 0 {
        let part = graph.attend(&x, valid, "attention", config.heads, *width)?;
        x = graph.node("Add", &[&x, &part], &[]);
    }
    let x = graph.layer_norm(&x, "attention_norm")?;
    let x = graph.without_padding(&x, valid);
    let pooled = match config.pooling {
        StepPooling::Mean => graph.mean(&x, valid),
        StepPooling::Max => graph.maximum(&x, valid),
        StepPooling::MeanMax => {
            let (mean, maximum) = (graph.mean(&x, valid), graph.maximum(&x, valid));
            graph.beside(&mean, &maximum)
        }
    };
    let mut x = pooled;
    if config.hidden > 0 {
        x = graph.linear(&x, "head.hidden")?;
        x = graph.relu(&x);
    }
    let logits = graph.linear(&x, "head.output")?;
    classes(graph, &logits, count);
    Ok(())
}

fn cnn_bilstm(
    graph: &mut Graph<'_>,
    config: &CnnBiLstmConfig,
    x: &Value,
    valid: &Valid,
) -> Result<Encoded, ExportError> {
    let (mut x, mut valid) = (x.clone(), valid.clone());
    for block in 0..config.convolutions.len() {
        x = graph.transpose(&x, &[0, 2, 1]);
        x = graph.conv(&x, &format!("blocks.{block}.conv"), 1)?;
        x = graph.batch_norm(&x, &format!("blocks.{block}.norm"))?;
        x = graph.relu(&x);
        x = graph.halve(&x);
        x = graph.transpose(&x, &[0, 2, 1]);
        let two = graph.int(2);
        let shorter = graph.node("Div", &[&valid.lengths, &two], &[]);
        valid = graph.valid(&x, 1, &shorter);
        x = graph.without_padding(&x, &valid);
    }
    let stack = Recurrent {
        cell: Cell::Lstm,
        prefix: "lstm",
        hidden: config.hidden,
        layers: config.layers,
        bidirectional: true,
    };
    let x = graph.recurrent(&x, &valid, &stack)?;
    let mut x = graph.linear(&x, "head")?;
    if graph.has("head_norm.weight") {
        x = graph.transpose(&x, &[0, 2, 1]);
        x = graph.batch_norm(&x, "head_norm")?;
        x = graph.transpose(&x, &[0, 2, 1]);
    }
    let x = graph.relu(&x);
    let steps = graph.without_padding(&x, &valid);
    let (mean, maximum) = (graph.mean(&steps, &valid), graph.maximum(&steps, &valid));
    let mut embedding = graph.beside(&maximum, &mean);
    let mut embedding_width = 2 * config.head;
    if graph.has("embedding.weight") {
        embedding = graph.linear(&embedding, "embedding")?;
        embedding_width = graph.parameter("embedding.bias")?.values.len();
    }
    Ok(Encoded { steps, valid, axis: "steps", width: config.head, embedding, embedding_width })
}

fn layers(
    graph: &mut Graph<'_>,
    mut x: Value,
    valid: &Valid,
    count: usize,
    config: &EncoderLayerConfig,
) -> Result<Value, ExportError> {
    for layer in 0..count {
        x = graph.encoder_layer(&x, valid, &format!("encoder.layers.{layer}"), config)?;
    }
    Ok(x)
}

fn transformer(
    graph: &mut Graph<'_>,
    config: &TransformerConfig,
    x: &Value,
    valid: Valid,
) -> Result<Encoded, ExportError> {
    let x = graph.linear(x, "input")?;
    let x = graph.layer_norm(&x, "input_norm")?;
    let positions = graph.positions(&x, "position")?;
    let x = graph.node("Add", &[&x, &positions], &[]);
    let x = layers(graph, x, &valid, config.layers, &config.layer())?;
    let steps = graph.without_padding(&x, &valid);
    Ok(mean_max(graph, steps, valid, "time", config.width))
}

/// Linear layers with batch normalisation and rectifier, as many as there are: `[batch, width]`.
fn hidden_layers(graph: &mut Graph<'_>, mut x: Value, prefix: &str) -> Result<Value, ExportError> {
    for layer in 0.. {
        if !graph.has(&format!("{prefix}.{layer}.linear.weight")) {
            break;
        }
        x = graph.linear(&x, &format!("{prefix}.{layer}.linear"))?;
        x = graph.batch_norm(&x, &format!("{prefix}.{layer}.norm"))?;
        x = graph.relu(&x);
    }
    Ok(x)
}

fn mlp(
    graph: &mut Graph<'_>,
    [time, channels]: [usize; 2],
    count: usize,
) -> Result<(), ExportError> {
    let input = windows(graph, Axis::Fixed(time), channels);
    let rows = graph.reshape(&input, &[-1, (time * channels) as i64]);
    let x = graph.batch_norm(&rows, "norm")?;
    let mut x = hidden_layers(graph, x, "layers")?;
    if graph.has("gate.weight") {
        let gate = graph.linear(&x, "gate")?;
        let gate = graph.node("Sigmoid", &[&gate], &[]);
        x = graph.node("Mul", &[&x, &gate], &[]);
    }
    let logits = graph.linear(&x, "output")?;
    classes(graph, &logits, count);
    Ok(())
}

fn bert(graph: &mut Graph<'_>, config: &BertConfig, part: Part) -> Result<(), ExportError> {
    let tokens = graph.input("tokens", INT64, &[BATCH, TIME], "numbers of tokens");
    let lengths = graph.lengths();
    let valid = graph.valid(&tokens, 1, &lengths);
    let table = graph.weight("embed.weight")?;
    let tokens = graph.known_tokens(&tokens, &valid);
    let x = graph.node("Gather", &[&table, &tokens], &[]);
    let positions = graph.positions(&x, "position")?;
    let x = graph.node("Add", &[&x, &positions], &[]);
    let steps = layers(graph, x, &valid, config.layers, &config.layer())?;
    let place = graph.int(0);
    let first = graph.node("Gather", &[&steps, &place], &[("axis", Setting::Int(1))]);
    match part {
        Part::Encoder => {
            let width = config.width;
            let axes = [BATCH, TIME, Axis::Fixed(width)];
            graph.output(
                "encoding",
                &steps,
                &axes,
                "a vector for each token; padding means nothing",
            );
            let axes = [BATCH, Axis::Fixed(width)];
            graph.output("embedding", &first, &axes, "that of the first token");
        }
        Part::Head => {
            let logits = graph.linear(&first, "head")?;
            let axes = [BATCH, Axis::Fixed(config.labels)];
            let probabilities = graph.node("Sigmoid", &[&logits], &[]);
            graph.output("logits", &logits, &axes, "a score for each label");
            let meaning = "the logistic function of the logits";
            graph.output("probabilities", &probabilities, &axes, meaning);
        }
    }
    Ok(())
}
