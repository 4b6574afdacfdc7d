//! ONNX graphs of the zoo's models, of standard operators only, with free batch and time axes.
//!
//! A graph is made of the settings and the weights of a model; no model runs. Operators are those of set 17 ([`OPSET`]), which onnxruntime has since 1.13.

mod graph;
mod layers;
mod models;
pub mod proto;
mod text;

use firebox_models::Parameter;
use prost::Message;

use crate::{Architecture, ExportError};
use graph::Graph;
use proto::{
    Dimension, GraphProto, ModelProto, OperatorSetIdProto, StringStringEntryProto, ValueInfoProto,
};

/// Version of the standard operators.
pub const OPSET: i64 = 17;

/// Version of the file format that came with [`OPSET`].
const IR_VERSION: i64 = 8;

/// What a file of Protocol Buffers can hold.
const LARGEST: usize = i32::MAX as usize;

/// What of a model is exported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// Windows to vectors: `encoding` `[batch, time, width]` and `embedding` `[batch, width]`.
    #[default]
    Encoder,
    /// What the model was trained for: `reconstruction` `[batch, time, channel]` of a masked
    /// autoencoder, whose further input `mask` `[batch, time]` says which steps are hidden, or
    /// `logits` and `probabilities` `[batch, class]` of a classifier, or `forecast` `[batch, output]` of a
    /// forecaster, which may have a further input `statics` `[batch, static]`. A model of texts that finds
    /// evidence has `first` and `last` `[batch, time]`, too, scores of each token as its ends.
    Head,
}

/// A model as an ONNX graph.
///
/// The parameters carry PyTorch's names, as [`read_parameters`](firebox_models::read_parameters)
/// gives them; those that the part does not need are left out. `metadata` becomes the file's named
/// texts.
///
/// # Shapes
/// - the graph's `input`: `[batch, time, channel]`, f32, normalised; a text model's `tokens`:
///   `[batch, time]`, i64
/// - its `lengths`: `[batch]`, i64, the valid steps of each sample. What stands after them is
///   ignored. A dense model, whose windows all have one length, has no such input
/// - `batch` is 1 or more: of none, the LSTM and GRU of onnxruntime (1.32 among others) end the process
///
/// # Errors
/// If a parameter is missing or of another shape, the model has no such part, or the file would be
/// larger than Protocol Buffers allow.
///
/// # Example
/// ```
/// use burn::tensor::Device;
/// use firebox_core::Stream;
/// use firebox_export::{Architecture, Part, onnx};
/// use firebox_models::{TransformerConfig, read_parameters};
///
/// let config = TransformerConfig { width: 16, heads: 2, layers: 1, ..TransformerConfig::default() };
/// let model = config.init(Stream::new(1, "weights"), 4, 105, 3, &Device::default())?;
///
/// let architecture = Architecture::Transformer { config, channels: 4, time: 105, classes: 3 };
/// let file = onnx(&architecture, &read_parameters(&model), Part::Head, &[])?;
/// assert!(file.len() > 10_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn onnx(
    architecture: &Architecture,
    parameters: &[Parameter],
    part: Part,
    metadata: &[(String, String)],
) -> Result<Vec<u8>, ExportError> {
    let graph = graph_of(architecture, parameters, part)?;
    let text = |(key, value): &(String, String)| StringStringEntryProto {
        key: key.clone(),
        value: value.clone(),
    };
    let model = ModelProto {
        ir_version: IR_VERSION,
        producer_name: "firebox".to_owned(),
        producer_version: env!("CARGO_PKG_VERSION").to_owned(),
        doc_string: String::new(),
        graph: Some(graph),
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: OPSET }],
        metadata_props: metadata.iter().map(text).collect(),
    };
    match model.encoded_len() {
        size if size > LARGEST => Err(ExportError::TooLarge { bytes: size }),
        _ => Ok(model.encode_to_vec()),
    }
}

/// An input or an output of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Name.
    pub name: String,
    /// Type of an element, as numpy calls it.
    pub kind: &'static str,
    /// Size of each axis, or its name where it is free.
    pub axes: Vec<String>,
    /// What it is.
    pub meaning: String,
}

/// The inputs and the outputs of the graph that [`onnx()`] makes.
///
/// # Errors
/// As [`onnx()`], but for the size of the file.
pub fn ports(
    architecture: &Architecture,
    parameters: &[Parameter],
    part: Part,
) -> Result<[Vec<Port>; 2], ExportError> {
    let graph = graph_of(architecture, parameters, part)?;
    Ok([graph.input, graph.output].map(|all| all.into_iter().map(port).collect()))
}

fn graph_of(
    architecture: &Architecture,
    parameters: &[Parameter],
    part: Part,
) -> Result<GraphProto, ExportError> {
    architecture.check(parameters)?;
    let mut graph = Graph::new(parameters);
    models::model(&mut graph, architecture, part)?;
    Ok(graph.finish(architecture.name()))
}

fn port(info: ValueInfoProto) -> Port {
    let tensor = info.r#type.and_then(|kind| kind.tensor_type).unwrap_or_default();
    let axes = tensor.shape.unwrap_or_default().dim.into_iter().map(|axis| match axis.value {
        Some(Dimension::Size(size)) => size.to_string(),
        Some(Dimension::Name(name)) => name,
        None => String::new(),
    });
    let kind = match tensor.elem_type {
        proto::INT64 => "int64",
        proto::BOOL => "bool",
        _ => "float32",
    };
    Port { name: info.name, kind, axes: axes.collect(), meaning: info.doc_string }
}
