//! The graph of each model of the zoo: encoders of windows, and what stands on them.

use firebox_models::{
    BertConfig, BiLstmMaeConfig, CnnBiLstmConfig, EncoderLayerConfig, TransformerConfig,
};

use super::Part;
use super::graph::{Axis, Graph, Setting, Value};
use super::layers::{Cell, Recurrent, Valid};
use super::proto::{FLOAT, INT64};
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
        (Architecture::PatchTransformer { .. }, _) => {
            Err(ExportError::NoGraph { model: architecture.name() })
        }
        (Architecture::BilstmMae { config, channels }, Part::Head) => {
            let (input, valid) = sequences(graph, *channels);
            let hidden = graph.mask();
            let shown = graph.hide(&input, &hidden, "mask_token")?;
            let shown = graph.without_padding(&shown, &valid);
            let encoded = bilstm_mae(graph, config, &shown, valid)?;
            let x = graph.linear(&encoded.steps, "decoder.hidden")?;
            let x = graph.relu(&x);
            let x = graph.linear(&x, "decoder.output")?;
            restored(graph, &x, *channels);
            Ok(())
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
            bilstm_mae(graph, config, &x, valid)
        }
        Architecture::CnnBilstm { config, channels, .. } => {
            let (x, valid) = sequences(graph, *channels);
            cnn_bilstm(graph, config, &x, &valid)
        }
        Architecture::Transformer { config, channels, .. } => {
            let (x, valid) = sequences(graph, *channels);
            transformer(graph, config, &x, valid)
        }
        Architecture::Mlp { .. } | Architecture::Bert { .. } => {
            Err(ExportError::NoEncoder { model: architecture.name() })
        }
        Architecture::PatchTransformer { .. } => {
            Err(ExportError::NoGraph { model: architecture.name() })
        }
    }
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

/// The output of an autoencoder.
fn restored(graph: &mut Graph<'_>, steps: &Value, channels: usize) {
    let axes = [BATCH, TIME, Axis::Fixed(channels)];
    graph.output("reconstruction", steps, &axes, "every step restored; padding means nothing");
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

fn bilstm_mae(
    graph: &mut Graph<'_>,
    config: &BiLstmMaeConfig,
    x: &Value,
    valid: Valid,
) -> Result<Encoded, ExportError> {
    let stack = Recurrent {
        cell: Cell::Lstm,
        prefix: "lstm",
        hidden: config.hidden,
        layers: config.layers,
        bidirectional: true,
    };
    let x = graph.recurrent(x, &valid, &stack)?;
    let x = graph.layer_norm(&x, "norm")?;
    let latent = graph.without_padding(&x, &valid);
    Ok(mean_max(graph, latent, valid, "time", 2 * config.hidden))
}

fn cnn_bilstm(
    graph: &mut Graph<'_>,
    config: &CnnBiLstmConfig,
    x: &Value,
    valid: &Valid,
) -> Result<Encoded, ExportError> {
    let mut x = graph.transpose(x, &[0, 2, 1]);
    for block in 0..config.convolutions.len() {
        x = graph.conv(&x, &format!("blocks.{block}.conv"), 1)?;
        x = graph.batch_norm(&x, &format!("blocks.{block}.norm"))?;
        x = graph.relu(&x);
        x = graph.halve(&x);
    }
    let x = graph.transpose(&x, &[0, 2, 1]);
    let halvings = graph.int(1 << config.convolutions.len());
    let shorter = graph.node("Div", &[&valid.lengths, &halvings], &[]);
    let valid = graph.valid(&x, 1, &shorter);
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
