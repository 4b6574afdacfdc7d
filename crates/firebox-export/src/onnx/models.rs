//! The graph of each model of the zoo.

use firebox_models::{
    BertConfig, BiLstmMaeConfig, CnnBiLstmConfig, EncoderLayerConfig, MlpConfig, TransformerConfig,
};

use super::Part;
use super::graph::{Axis, Graph, Value};
use super::layers::{Cell, Recurrent, Valid};
use super::proto::{FLOAT, INT64};
use crate::{Architecture, ExportError};

const BATCH: Axis = Axis::Free("batch");
const TIME: Axis = Axis::Free("time");

/// Puts the model into an empty graph.
pub(super) fn model(
    graph: &mut Graph<'_>,
    architecture: &Architecture,
    part: Part,
) -> Result<(), ExportError> {
    match architecture {
        Architecture::BilstmMae { config, channels } => bilstm_mae(graph, config, *channels, part),
        Architecture::CnnBilstm { config, channels, classes } => {
            cnn_bilstm(graph, config, *channels, *classes, part)
        }
        Architecture::Transformer { config, channels, classes, .. } => {
            transformer(graph, config, *channels, *classes, part)
        }
        Architecture::Mlp { config, time, channels, classes } => {
            mlp(graph, config, [*time, *channels], *classes, part)
        }
        Architecture::PatchTransformer { .. } => {
            Err(ExportError::NoGraph { model: architecture.name() })
        }
        Architecture::Bert { config } => bert(graph, config, part),
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
fn encoder(
    graph: &mut Graph<'_>,
    encoding: &Value,
    embedding: &Value,
    time: &'static str,
    [width, embedded]: [usize; 2],
) {
    let axes = [BATCH, Axis::Free(time), Axis::Fixed(width)];
    graph.output("encoding", encoding, &axes, "a vector for each step, zeros for padding");
    let axes = [BATCH, Axis::Fixed(embedded)];
    graph.output("embedding", embedding, &axes, "a vector for each sample");
}

/// The outputs of a classifier of which one class is true.
fn classes(graph: &mut Graph<'_>, logits: &Value, classes: usize) {
    let axes = [BATCH, Axis::Fixed(classes)];
    let probabilities = graph.softmax(logits);
    graph.output("logits", logits, &axes, "a score for each class");
    graph.output("probabilities", &probabilities, &axes, "softmax of the logits");
}

fn bilstm_mae(
    graph: &mut Graph<'_>,
    config: &BiLstmMaeConfig,
    channels: usize,
    part: Part,
) -> Result<(), ExportError> {
    let (mut x, valid) = sequences(graph, channels);
    if part == Part::Head {
        let hidden = graph.mask();
        x = graph.hide(&x, &hidden, "mask_token")?;
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
    let x = graph.layer_norm(&x, "norm")?;
    let latent = graph.without_padding(&x, &valid);
    if part == Part::Head {
        let x = graph.linear(&latent, "decoder.hidden")?;
        let x = graph.relu(&x);
        let x = graph.linear(&x, "decoder.output")?;
        let axes = [BATCH, TIME, Axis::Fixed(channels)];
        graph.output("reconstruction", &x, &axes, "every step restored; padding means nothing");
        return Ok(());
    }
    let (mean, maximum) = (graph.mean(&latent, &valid), graph.maximum(&latent, &valid));
    let embedding = graph.beside(&mean, &maximum);
    encoder(graph, &latent, &embedding, "time", [2 * config.hidden, 4 * config.hidden]);
    Ok(())
}

fn cnn_bilstm(
    graph: &mut Graph<'_>,
    config: &CnnBiLstmConfig,
    channels: usize,
    count: usize,
    part: Part,
) -> Result<(), ExportError> {
    let (x, valid) = sequences(graph, channels);
    let mut x = graph.transpose(&x, &[0, 2, 1]);
    for block in 0..config.convolutions.len() {
        x = graph.conv(&x, &format!("blocks.{block}.conv"))?;
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
    let x = graph.linear(&x, "head")?;
    let x = graph.relu(&x);
    let encoding = graph.without_padding(&x, &valid);
    let (mean, maximum) = (graph.mean(&encoding, &valid), graph.maximum(&encoding, &valid));
    let embedding = graph.beside(&maximum, &mean);
    match part {
        Part::Encoder => {
            encoder(graph, &encoding, &embedding, "steps", [config.head, 2 * config.head]);
        }
        Part::Head => {
            let logits = graph.linear(&embedding, "output")?;
            classes(graph, &logits, count);
        }
    }
    Ok(())
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
    channels: usize,
    count: usize,
    part: Part,
) -> Result<(), ExportError> {
    let (x, valid) = sequences(graph, channels);
    let x = graph.linear(&x, "input")?;
    let x = graph.layer_norm(&x, "input_norm")?;
    let positions = graph.positions(&x, "position")?;
    let x = graph.node("Add", &[&x, &positions], &[]);
    let x = layers(graph, x, &valid, config.layers, &config.layer())?;
    let encoding = graph.without_padding(&x, &valid);
    let mean = graph.mean(&encoding, &valid);
    match part {
        Part::Encoder => {
            let maximum = graph.maximum(&encoding, &valid);
            let embedding = graph.beside(&mean, &maximum);
            encoder(graph, &encoding, &embedding, "time", [config.width, 2 * config.width]);
        }
        Part::Head => {
            let x = graph.linear(&mean, "head.hidden")?;
            let x = graph.relu(&x);
            let logits = graph.linear(&x, "head.output")?;
            classes(graph, &logits, count);
        }
    }
    Ok(())
}

fn mlp(
    graph: &mut Graph<'_>,
    config: &MlpConfig,
    [time, channels]: [usize; 2],
    count: usize,
    part: Part,
) -> Result<(), ExportError> {
    if part == Part::Encoder {
        return Err(ExportError::NoEncoder { model: "mlp" });
    }
    let input = windows(graph, Axis::Fixed(time), channels);
    let rows = graph.reshape(&input, &[-1, (time * channels) as i64]);
    let mut x = graph.batch_norm(&rows, "norm")?;
    for layer in 0..config.hidden.len() {
        x = graph.linear(&x, &format!("layers.{layer}.linear"))?;
        x = graph.batch_norm(&x, &format!("layers.{layer}.norm"))?;
        x = graph.relu(&x);
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
    let encoding = layers(graph, x, &valid, config.layers, &config.layer())?;
    let first = graph.int(0);
    let settings = [("axis", super::graph::Setting::Int(1))];
    let first = graph.node("Gather", &[&encoding, &first], &settings);
    match part {
        Part::Encoder => {
            encoder(graph, &encoding, &first, "time", [config.width, config.width]);
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
