//! What is in an exported graph, read back from its bytes: operators, shapes, weights. What it
//! computes is compared with onnxruntime and PyTorch in `peers`.

use std::collections::{BTreeMap, BTreeSet};

use crate::zoo::{saved, weights, zoo};
use firebox_export::proto::{Dimension, FLOAT, GraphProto, ModelProto, ValueInfoProto};
use firebox_export::{Architecture, OPSET, Part, onnx};
use prost::Message;

const PARTS: [Part; 2] = [Part::Encoder, Part::Head];

/// Operators of the standard set in version 17 that graphs may consist of.
const STANDARD: [&str; 45] = [
    "Abs",
    "Add",
    "And",
    "BatchNormalization",
    "Cast",
    "Concat",
    "Conv",
    "Div",
    "Equal",
    "Erf",
    "Expand",
    "GRU",
    "Gather",
    "GatherElements",
    "Greater",
    "LSTM",
    "LayerNormalization",
    "Less",
    "LessOrEqual",
    "MatMul",
    "Max",
    "MaxPool",
    "Min",
    "Mod",
    "Mul",
    "Or",
    "Pad",
    "Range",
    "ReduceMax",
    "ReduceMean",
    "ReduceSum",
    "Relu",
    "Reshape",
    "Shape",
    "Sigmoid",
    "Sin",
    "Slice",
    "Softmax",
    "Split",
    "Sub",
    "Tanh",
    "Transpose",
    "Squeeze",
    "Unsqueeze",
    "Where",
];

fn read(file: &[u8]) -> (ModelProto, GraphProto) {
    let model = ModelProto::decode(file).unwrap();
    let graph = model.graph.clone().unwrap();
    (model, graph)
}

fn axes(info: &ValueInfoProto) -> Vec<String> {
    let tensor = info.r#type.as_ref().unwrap().tensor_type.as_ref().unwrap();
    let dims = &tensor.shape.as_ref().unwrap().dim;
    dims.iter()
        .map(|dim| match dim.value.as_ref().unwrap() {
            Dimension::Size(size) => size.to_string(),
            Dimension::Name(name) => name.clone(),
        })
        .collect()
}

#[test]
fn every_value_is_made_before_it_is_read_and_every_operator_is_standard() {
    for (name, architecture) in zoo() {
        for part in PARTS {
            let there = match part {
                Part::Encoder => architecture.is_encoder(),
                Part::Head => architecture.has_head(),
            };
            if !there {
                let error = onnx(&architecture, &weights(&architecture, 1), part, &[]).unwrap_err();
                assert!(error.is_bad_input(), "{error}");
                continue;
            }
            let file = onnx(&architecture, &weights(&architecture, 1), part, &[]).unwrap();
            let (model, graph) = read(&file);
            assert_eq!(model.opset_import[0].version, OPSET);
            let mut known: BTreeSet<&str> = BTreeSet::from([""]);
            let given = graph.input.iter().map(|one| one.name.as_str());
            let stored = graph.initializer.iter().map(|one| one.name.as_str());
            for value in given.chain(stored) {
                assert!(known.insert(value), "{name}: {value} twice");
            }
            let mut read = BTreeSet::new();
            for node in &graph.node {
                assert!(STANDARD.contains(&node.op_type.as_str()), "{name}: {}", node.op_type);
                for input in &node.input {
                    assert!(known.contains(input.as_str()), "{name}: {} reads {input}", node.name);
                    read.insert(input.as_str());
                }
                for output in &node.output {
                    assert!(known.insert(output), "{name}: {output} twice");
                }
            }
            for output in &graph.output {
                assert!(known.contains(output.name.as_str()), "{name}: {}", output.name);
            }
            for constant in &graph.initializer {
                assert!(read.contains(constant.name.as_str()), "{name}: {} unused", constant.name);
                let size = constant.dims.iter().product::<i64>() as usize;
                let width = if constant.data_type == FLOAT { 4 } else { 8 };
                assert_eq!(constant.raw_data.len(), size * width, "{name}: {}", constant.name);
            }
        }
    }
}

#[test]
fn batch_and_time_are_free_and_the_rest_is_stated() {
    let shapes = |name: &str, part| {
        let architecture = zoo().into_iter().find(|(known, _)| *known == name).unwrap().1;
        let (_, graph) = read(&onnx(&architecture, &weights(&architecture, 1), part, &[]).unwrap());
        let all = graph.input.iter().chain(&graph.output);
        all.map(|info| format!("{} [{}]", info.name, axes(info).join(", "))).collect::<Vec<_>>()
    };
    let mae = ["input [batch, time, 4]", "lengths [batch]"];
    let encoder = shapes("mae", Part::Encoder);
    assert_eq!(encoder[..2], mae);
    assert_eq!(encoder[2..], ["encoding [batch, time, 12]", "embedding [batch, 24]"]);
    let head = shapes("mae", Part::Head);
    assert_eq!(head[2..], ["mask [batch, time]", "reconstruction [batch, time, 4]"]);
    assert_eq!(
        shapes("mlp", Part::Head),
        ["input [batch, 12, 3]", "logits [batch, 3]", "probabilities [batch, 3]"]
    );
    assert_eq!(
        shapes("cnn", Part::Encoder)[2..],
        ["encoding [batch, steps, 8]", "embedding [batch, 6]"]
    );
    assert_eq!(shapes("bert", Part::Head)[..2], ["tokens [batch, time]", "lengths [batch]"]);
    assert_eq!(
        shapes("forecaster", Part::Head)[2..],
        ["statics [batch, 3]", "forecast [batch, 4]"]
    );
    assert_eq!(shapes("patches", Part::Head)[3..], ["reconstruction [batch, time, 3]"]);
    assert_eq!(shapes("gru-classifier", Part::Encoder)[3..], ["embedding [batch, 12]"]);
}

#[test]
fn channels_are_normalised_without_their_mean() {
    let known = ["bilstm-attention", "masked-attention", "classifier-attention"];
    let all = zoo().into_iter().filter(|(name, _)| known.contains(name));
    let mut seen = 0;
    for (name, architecture) in all {
        let file = onnx(&architecture, &weights(&architecture, 1), Part::Encoder, &[]).unwrap();
        let (_, graph) = read(&file);
        let maker = |value: &str| {
            let mut nodes = graph.node.iter();
            nodes.find(|node| node.output.iter().any(|made| made == value)).unwrap()
        };
        let mut nodes = graph.node.iter();
        let norm = nodes.find(|node| node.op_type == "LayerNormalization").unwrap();
        let centred = maker(&norm.input[0]);
        assert_eq!(centred.op_type, "Sub", "{name}");
        let mean = maker(&centred.input[1]);
        assert_eq!((mean.op_type.as_str(), &mean.input[0]), ("ReduceMean", &centred.input[0]));
        assert_eq!(mean.attribute[0].ints, [-1_i64], "{name}");
        seen += 1;
    }
    assert_eq!(seen, known.len());
}

#[test]
fn weights_are_in_the_graph_in_the_order_of_onnx() {
    let (_, architecture) = zoo().remove(0);
    let parameters = weights(&architecture, 3);
    let (_, graph) = read(&onnx(&architecture, &parameters, Part::Encoder, &[]).unwrap());
    let stored: BTreeMap<&str, Vec<f32>> = graph
        .initializer
        .iter()
        .filter(|one| one.data_type == FLOAT)
        .map(|one| {
            let values = one.raw_data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
            (one.name.as_str(), values.collect())
        })
        .collect();
    let named = |name: &str| &parameters.iter().find(|p| p.name == name).unwrap().values;
    // Six units: PyTorch's gates are input, forget, cell, output; ONNX's input, output, forget, cell.
    let (torch, onnx) = (named("lstm.weight_ih_l0_reverse"), &stored["lstm.weight_ih_l0"][96..]);
    for (gate, from) in [0, 3, 1, 2].into_iter().enumerate() {
        assert_eq!(onnx[gate * 24..][..24], torch[from * 24..][..24]);
    }
    let bias = &stored["lstm.bias_ih_bias_hh_l1"];
    assert_eq!(bias.len(), 2 * 2 * 24);
    assert_eq!(bias[..6], named("lstm.bias_ih_l1")[..6]);
    assert_eq!(bias[24..30], named("lstm.bias_hh_l1")[..6]);
    assert_eq!(&stored["norm.weight"], named("norm.weight"));
    // What only the decoder needs is not in the encoder.
    let head = onnx_names(&architecture, Part::Head);
    let encoder = onnx_names(&architecture, Part::Encoder);
    for name in ["decoder.hidden.weight.transposed", "decoder.output.bias", "mask_token"] {
        assert!(head.contains(name) && !encoder.contains(name), "{name}");
    }
}

fn onnx_names(architecture: &Architecture, part: Part) -> BTreeSet<String> {
    let (_, graph) = read(&onnx(architecture, &weights(architecture, 3), part, &[]).unwrap());
    graph.initializer.into_iter().map(|one| one.name).collect()
}

#[test]
fn a_file_tells_what_the_card_tells() {
    let (_, architecture) = zoo().remove(2);
    let model = saved(&architecture, 1);
    let (file, _) = read(&model.onnx(Part::Head).unwrap());
    let texts: BTreeMap<_, _> =
        file.metadata_props.iter().map(|p| (p.key.as_str(), p.value.as_str())).collect();
    assert_eq!(texts["firebox.classes"], r#"["class 0","class 1","class 2","class 3"]"#);
    assert_eq!(texts["firebox.task"], "classification");
    assert!(texts["firebox.normaliser"].contains(r#""center":0.1,"scale":3.0"#), "{texts:?}");
    assert!(texts["firebox.model"].starts_with(r#"{"cnn-bilstm":{"config":"#), "{texts:?}");
    assert_eq!(texts["firebox.precision"], "f32");
    // An encoder alone says nothing of classes.
    let (file, _) = read(&model.onnx(Part::Encoder).unwrap());
    let classes = file.metadata_props.iter().find(|own| own.key == "firebox.classes").unwrap();
    assert_eq!(classes.value, "[]");
}

#[test]
fn weights_of_another_model_and_parts_that_are_not_there_are_refused() {
    let all = zoo();
    let error = onnx(&all[0].1, &weights(&all[1].1, 1), Part::Encoder, &[]).unwrap_err();
    assert!(
        error.to_string().contains("`decoder.output.bias` has shape [1] where the model has [4]"),
        "{error}"
    );
    let mlp = &all.iter().find(|(name, _)| *name == "mlp").unwrap().1;
    let error = onnx(mlp, &weights(mlp, 1), Part::Encoder, &[]).unwrap_err();
    assert!(error.to_string().contains("has no encoder to export"), "{error}");
    let mut short = weights(&all[0].1, 1);
    short.retain(|parameter| parameter.name != "norm.bias");
    let error = onnx(&all[0].1, &short, Part::Encoder, &[]).unwrap_err();
    assert!(error.to_string().contains("missing: `norm.bias`"), "{error}");
}
