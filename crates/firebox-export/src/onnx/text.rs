//! The graph of a model of texts: encoders of every family, and their heads.
//!
//! Which pairs of tokens see each other, and the row of each distance, are made within the graph from
//! the number of tokens, so that it is free.

use firebox_models::{
    Activation, Disentangled, Pooling, TextAttention, TextEncoderConfig, TextHeadsConfig,
};

use super::Part;
use super::graph::{Axis, Graph, Setting, Value};
use super::layers::Valid;
use super::proto::INT64;
use crate::ExportError;

const BATCH: Axis = Axis::Free("batch");
const TIME: Axis = Axis::Free("time");
/// Finite, so that a row without a key has no NaN.
const NEVER: f32 = -1e30;

/// Puts a model of texts into an empty graph.
pub(super) fn text(
    graph: &mut Graph<'_>,
    heads: &TextHeadsConfig,
    encoder: &TextEncoderConfig,
    part: Part,
) -> Result<(), ExportError> {
    let tokens = graph.input("tokens", INT64, &[BATCH, TIME], "numbers of tokens");
    let lengths = graph.lengths();
    let valid = graph.valid(&tokens, 1, &lengths);
    graph.within("encoder.");
    let steps = encode(graph, encoder, &tokens, &valid);
    graph.within("");
    let steps = steps?;
    let pooled = pool(graph, heads.pooling, &steps, &valid)?;
    match part {
        Part::Encoder => {
            let axes = [BATCH, TIME, Axis::Fixed(encoder.width)];
            let meaning = "a vector for each token; padding means nothing";
            graph.output("encoding", &steps, &axes, meaning);
            let axes = [BATCH, Axis::Fixed(encoder.width)];
            graph.output("embedding", &pooled, &axes, "a vector for each text");
        }
        Part::Head => {
            let logits = graph.linear(&pooled, "criteria")?;
            let axes = [BATCH, Axis::Fixed(heads.labels)];
            let probabilities = graph.node("Sigmoid", &[&logits], &[]);
            graph.output("logits", &logits, &axes, "a score for each label");
            let meaning = "the logistic function of the logits";
            graph.output("probabilities", &probabilities, &axes, meaning);
            if heads.span {
                evidence(graph, &steps, &valid)?;
            }
        }
    }
    Ok(())
}

/// Scores of each token as the first and as the last of the evidence.
fn evidence(graph: &mut Graph<'_>, steps: &Value, valid: &Valid) -> Result<(), ExportError> {
    let scores = graph.linear(steps, "span")?;
    let never = graph.float(NEVER);
    let scores = graph.node("Where", &[&valid.steps, &scores, &never], &[]);
    for (place, name) in (0..).zip(["first", "last"]) {
        let side = graph.int(place);
        let side = graph.node("Gather", &[&scores, &side], &[("axis", Setting::Int(2))]);
        let meaning = format!("a score of each token as the {name} of the evidence");
        graph.output(name, &side, &[BATCH, TIME], &meaning);
    }
    Ok(())
}

/// One vector for each text: `[batch, width]`.
fn pool(
    graph: &mut Graph<'_>,
    pooling: Pooling,
    steps: &Value,
    valid: &Valid,
) -> Result<Value, ExportError> {
    Ok(match pooling {
        Pooling::Cls => {
            let first = graph.int(0);
            graph.node("Gather", &[steps, &first], &[("axis", Setting::Int(1))])
        }
        Pooling::Mean => {
            let steps = graph.without_padding(steps, valid);
            graph.mean(&steps, valid)
        }
        Pooling::Max => graph.maximum(steps, valid),
        Pooling::Attention => {
            let scores = graph.linear(steps, "attention")?;
            graph.weighted(steps, &scores, valid)
        }
    })
}

/// A vector for each token: `[batch, time, width]`.
fn encode(
    graph: &mut Graph<'_>,
    config: &TextEncoderConfig,
    tokens: &Value,
    valid: &Valid,
) -> Result<Value, ExportError> {
    let epsilon = config.epsilon as f32;
    let table = graph.weight("tokens.weight")?;
    let tokens = graph.known_tokens(tokens, valid);
    let mut x = graph.node("Gather", &[&table, &tokens], &[]);
    if config.absolute_positions {
        let table = graph.parameter("positions.weight")?;
        let width = table.values.len() / (config.positions + config.position_offset).max(1);
        let values = &table.values[config.position_offset * width..];
        let shape = [1, config.positions, width];
        let positions = graph.floats("positions.of_texts", &shape, values);
        let positions = graph.as_long_as(&positions, &x);
        x = graph.node("Add", &[&x, &positions], &[]);
    }
    if config.segments > 0 {
        let table = graph.parameter("segments.weight")?;
        let first = table.values.chunks(table.values.len().div_ceil(config.segments).max(1)).next();
        let first = first.unwrap_or_default();
        let segment = graph.floats("segments.first", &[first.len()], first);
        x = graph.node("Add", &[&x, &segment], &[]);
    }
    x = graph.layer_norm_by(&x, "embedding_norm", epsilon)?;
    if graph.has("projection.weight") {
        x = graph.linear(&x, "projection")?;
    }
    let around = Around::new(graph, config, &x, valid)?;
    for layer in 0..config.layers {
        let own = format!("layers.{layer}");
        let attended = attention(graph, config, &x, &around, layer)?;
        let sum = graph.node("Add", &[&x, &attended], &[]);
        x = graph.layer_norm_by(&sum, &format!("{own}.attention_norm"), epsilon)?;
        let hidden = graph.linear(&x, &format!("{own}.linear1"))?;
        let hidden = match config.activation {
            Activation::Gelu => graph.gelu(&hidden),
            Activation::Relu => graph.relu(&hidden),
        };
        let fed = graph.linear(&hidden, &format!("{own}.linear2"))?;
        let sum = graph.node("Add", &[&x, &fed], &[]);
        x = graph.layer_norm_by(&sum, &format!("{own}.output_norm"), epsilon)?;
    }
    Ok(x)
}

/// What all layers need to know of the batch.
struct Around {
    valid: Valid,
    /// Which keys are no padding, `[batch, 1, 1, time]`.
    keys: Value,
    /// Place of the query minus that of the key, `[time, time]`.
    distance: Value,
    /// Place of each key, `[time]`.
    places: Value,
    /// Row of the table of distances, `[time, time]`, and the table's vectors, `[row, width]`.
    table: Option<[Value; 2]>,
}

impl Around {
    fn new(
        graph: &mut Graph<'_>,
        config: &TextEncoderConfig,
        x: &Value,
        valid: &Valid,
    ) -> Result<Self, ExportError> {
        let keys = graph.transpose(&valid.steps, &[0, 2, 1]);
        let keys = graph.unsqueeze(&keys, &[1]);
        let (zero, one, time) = (graph.int(0), graph.int(1), graph.axis_of(x, 1));
        let places = graph.node("Range", &[&zero, &time, &one], &[]);
        let column = graph.unsqueeze(&places, &[1]);
        let distance = graph.node("Sub", &[&column, &places], &[]);
        let table = match &config.attention {
            TextAttention::Disentangled(rule) => Some(distances(graph, config, rule, &distance)?),
            TextAttention::Full | TextAttention::Windowed(_) => None,
        };
        Ok(Self { valid: valid.clone(), keys, distance, places, table })
    }
}

/// The row of each distance and the vectors of all rows.
fn distances(
    graph: &mut Graph<'_>,
    config: &TextEncoderConfig,
    rule: &Disentangled,
    distance: &Value,
) -> Result<[Value; 2], ExportError> {
    let farthest = config.positions as i64 - 1;
    let rows: Vec<i64> = (-farthest..=farthest).map(|distance| rule.row(distance)).collect();
    let (rows, from) = (graph.ints(&rows), graph.int(farthest));
    let places = graph.node("Add", &[distance, &from], &[]);
    let rows = graph.node("Gather", &[&rows, &places], &[]);
    let vectors = graph.weight("distances.weight")?;
    let vectors = match graph.has("distance_norm.weight") {
        true => graph.layer_norm_by(&vectors, "distance_norm", config.epsilon as f32)?,
        false => vectors,
    };
    Ok([rows, vectors])
}

fn attention(
    graph: &mut Graph<'_>,
    config: &TextEncoderConfig,
    x: &Value,
    around: &Around,
    layer: usize,
) -> Result<Value, ExportError> {
    let own = format!("layers.{layer}.attention");
    let attended = match &config.attention {
        TextAttention::Full => {
            return graph.attend(x, &around.valid, &own, config.heads, config.width);
        }
        TextAttention::Disentangled(rule) => disentangled(graph, config, rule, x, around, &own)?,
        TextAttention::Windowed(rule) => {
            let reach = rule.reach.get(layer).copied().unwrap_or_default();
            windowed(graph, config, reach, x, around, &own)?
        }
    };
    // [batch, head, time, size] → [batch, time, width]
    let attended = graph.transpose(&attended, &[0, 2, 1, 3]);
    let attended = graph.reshape(&attended, &[0, 0, config.width as i64]);
    // Of a text without tokens, softmax would be of nothing.
    let attended = graph.without_padding(&attended, &around.valid);
    graph.linear(&attended, &format!("{own}.out_proj"))
}

/// Parts of projected rows by heads, `[batch, head, time, size]` each.
fn by_heads(
    graph: &mut Graph<'_>,
    config: &TextEncoderConfig,
    projected: &Value,
    parts: usize,
) -> Vec<Value> {
    let (heads, size) = (config.heads as i64, (config.width / config.heads.max(1)) as i64);
    let parts = graph.split(projected, 2, parts);
    let of = |part: &Value| {
        let part = graph.reshape(part, &[0, 0, heads, size]);
        graph.transpose(&part, &[0, 2, 1, 3])
    };
    parts.iter().map(of).collect()
}

fn projected(graph: &mut Graph<'_>, x: &Value, own: &str) -> Result<Value, ExportError> {
    graph.linear_named(x, &format!("{own}.in_proj_weight"), &format!("{own}.in_proj_bias"))
}

/// `a bᵀ` over the last axis.
fn products(graph: &mut Graph<'_>, a: &Value, b: &Value) -> Value {
    let b = graph.transpose(b, &[0, 1, 3, 2]);
    graph.node("MatMul", &[a, &b], &[])
}

/// Values weighted by softmax over the keys that are seen.
fn weighted(graph: &mut Graph<'_>, scores: &Value, seen: &Value, values: &Value) -> Value {
    let never = graph.float(NEVER);
    let scores = graph.node("Where", &[seen, scores, &never], &[]);
    let shares = graph.softmax(&scores);
    graph.node("MatMul", &[&shares, values], &[])
}

/// DeBERTa's: scores of content, of content to distance, and of distance to content.
fn disentangled(
    graph: &mut Graph<'_>,
    config: &TextEncoderConfig,
    rule: &Disentangled,
    x: &Value,
    around: &Around,
    own: &str,
) -> Result<Value, ExportError> {
    let qkv = projected(graph, x, own)?;
    let [q, k, v] = &by_heads(graph, config, &qkv, 3)[..] else {
        return Err(ExportError::Missing { name: own.to_owned() });
    };
    let Some([rows, vectors]) = &around.table else {
        return Err(ExportError::Missing { name: "distances.weight".to_owned() });
    };
    let vectors = graph.unsqueeze(vectors, &[0]);
    let (of_distances, parts) = match rule.shared_projection {
        true => (projected(graph, &vectors, own)?, 3),
        false => (graph.linear(&vectors, &format!("{own}.positions"))?, 2),
    };
    let positions = by_heads(graph, config, &of_distances, parts);
    let terms = 1 + usize::from(rule.content_to_position) + usize::from(rule.position_to_content);
    let size = config.width / config.heads.max(1);
    let scale = graph.float(((size * terms) as f64).sqrt().recip() as f32);
    let q = graph.node("Mul", &[q, &scale], &[]);
    let mut scores = products(graph, &q, k);
    let shape = graph.node("Shape", &[&scores], &[]);
    let along = [("axis", Setting::Int(3))];
    if rule.content_to_position {
        let of_content = products(graph, &q, &positions[1]);
        let rows = graph.node("Expand", &[rows, &shape], &[]);
        let found = graph.node("GatherElements", &[&of_content, &rows], &along);
        scores = graph.node("Add", &[&scores, &found], &[]);
    }
    if rule.position_to_content {
        // The row for `query - key`, found from the key's side.
        let k = graph.node("Mul", &[k, &scale], &[]);
        let of_content = products(graph, &k, &positions[0]);
        let rows = graph.transpose(rows, &[1, 0]);
        let rows = graph.node("Expand", &[&rows, &shape], &[]);
        let found = graph.node("GatherElements", &[&of_content, &rows], &along);
        let found = graph.transpose(&found, &[0, 1, 3, 2]);
        scores = graph.node("Add", &[&scores, &found], &[]);
    }
    Ok(weighted(graph, &scores, &around.keys, v))
}

/// Longformer's: each token sees its neighbours and the first one, which sees all by projections of
/// its own.
fn windowed(
    graph: &mut Graph<'_>,
    config: &TextEncoderConfig,
    reach: usize,
    x: &Value,
    around: &Around,
    own: &str,
) -> Result<Value, ExportError> {
    let size = config.width / config.heads.max(1);
    let scale = graph.float((size as f64).sqrt().recip() as f32);
    let (farthest, zero) = (graph.int(reach as i64), graph.int(0));
    let away = graph.node("Abs", &[&around.distance], &[]);
    let near = graph.node("LessOrEqual", &[&away, &farthest], &[]);
    let first = graph.node("Equal", &[&around.places, &zero], &[]);
    let near = graph.node("Or", &[&near, &first], &[]);
    let seen = graph.node("And", &[&near, &around.keys], &[]);
    let qkv = projected(graph, x, own)?;
    let global = graph.linear(x, &format!("{own}.global"))?;
    let mut attended = Vec::with_capacity(2);
    for (projected, seen) in [(&global, &around.keys), (&qkv, &seen)] {
        let [q, k, v] = &by_heads(graph, config, projected, 3)[..] else {
            return Err(ExportError::Missing { name: own.to_owned() });
        };
        let q = graph.node("Mul", &[q, &scale], &[]);
        let scores = products(graph, &q, k);
        attended.push(weighted(graph, &scores, seen, v));
    }
    // The first row of the one, the others of the other.
    let own_row = graph.unsqueeze(&around.places, &[1]);
    let is_first = graph.node("Equal", &[&own_row, &zero], &[]);
    Ok(graph.node("Where", &[&is_first, &attended[0], &attended[1]], &[]))
}
