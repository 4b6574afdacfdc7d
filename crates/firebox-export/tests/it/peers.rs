//! Exports beside onnxruntime and PyTorch: what Firebox computes, they compute from its files.
//!
//! `FIREBOX_TEST_PYTHON` names a Python that has the packages `onnx`, `onnxruntime`, `torch` and
//! `safetensors`; else the test says that it was skipped. The other half is `peers.py`.

use std::path::Path;
use std::process::Command;

use crate::zoo::{channels, saved, zoo};
use burn::tensor::{Device, Int, Tensor, TensorData};
use firebox_core::{Draws, Stream};
use firebox_export::{
    Architecture, Model, Part, SavedModel, parameters_from_safetensors, safetensors,
};
use firebox_models::{Encoder, Parameter, Pretrain, PretrainBatch, StepMask};
use firebox_tests::python;

/// Batches of each model, of random sizes.
const CASES: u64 = 6;

#[test]
fn onnxruntime_and_pytorch_compute_what_firebox_computes() {
    let Some(python) = python("onnx, onnxruntime, torch, safetensors") else { return };
    let folder = tempfile::tempdir().unwrap();
    for (seed, (name, architecture)) in zoo().into_iter().enumerate() {
        let folder = folder.path().join(name);
        let model = saved(&architecture, seed as u64);
        model.write(&folder).unwrap();
        if architecture.is_encoder() {
            std::fs::write(folder.join("encoder.onnx"), model.onnx(Part::Encoder).unwrap())
                .unwrap();
        }
        if architecture.has_head() {
            std::fs::write(folder.join("head.onnx"), model.onnx(Part::Head).unwrap()).unwrap();
        }
        for case in 0..CASES {
            write_case(&folder, &model, case);
        }
    }
    let script = Path::new("tests/peers.py");
    let output = Command::new(python).arg(script).arg(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    println!("{said}");
    assert!(said.contains(&format!("{} models agree", zoo().len())), "{said}");
    for (name, architecture) in zoo() {
        check_state_dict(&folder.path().join(name), &architecture);
    }
}

/// A state dict of PyTorch becomes the model that it was there.
fn check_state_dict(folder: &Path, architecture: &Architecture) {
    let read = |name: &str| {
        let path = folder.join(name);
        parameters_from_safetensors(&std::fs::read(&path).unwrap(), &path).unwrap()
    };
    let model = architecture.build(read("from-torch.safetensors"), &Device::default()).unwrap();
    let (case, expected) = (read("case-0.safetensors"), read("from-torch-case.safetensors"));
    let given = |name: &str| case.iter().find(|one| one.name == name);
    let lengths = &given("lengths").unwrap().values;
    let lengths: Vec<usize> = lengths.iter().map(|length| *length as usize).collect();
    let device = Device::default();
    let found = |name: &str| match (&model, given("input"), given("tokens")) {
        (model, _, Some(Parameter { shape, values, .. })) => {
            let tokens: Vec<i32> = values.iter().map(|token| (*token as i32).max(0)).collect();
            let data = TensorData::new(tokens, shape.clone());
            let tokens = Tensor::<2, Int>::from_data(data, &device);
            match name {
                "embedding" => model.embed_texts(tokens, &lengths),
                _ => model.scores(tokens, &lengths).map(|scores| scores.labels),
            }
        }
        (model, Some(Parameter { shape, values, .. }), _) => {
            let mut shown = values.clone();
            let [time, width] = [shape[1], shape[2]];
            for (row, length) in shown.chunks_exact_mut(time * width).zip(&lengths) {
                row[length * width..].fill(0.0);
            }
            let input = Tensor::<3>::from_data(TensorData::new(shown, shape.clone()), &device);
            match name {
                "embedding" => model.embed(input, &lengths),
                _ => model.logits(input, &lengths),
            }
        }
        _ => None,
    };
    assert!(!expected.is_empty());
    for Parameter { name, values, .. } in expected {
        let found = found(&name).unwrap().into_data().try_into_vec::<f32>().unwrap();
        let rows = found.len() / lengths.len();
        for (row, (found, expected)) in found.chunks(rows).zip(values.chunks(rows)).enumerate() {
            // PyTorch has no attention to nothing.
            let texts =
                matches!(architecture, Architecture::Bert { .. } | Architecture::Text { .. });
            if lengths[row] == 0 && texts {
                continue;
            }
            for (found, expected) in found.iter().zip(expected) {
                let error = (found - expected).abs() / expected.abs().max(1.0);
                assert!(error < 1e-4, "{}: {name} {found} {expected}", folder.display());
            }
        }
    }
}

/// A batch with values in its padding, and what Firebox makes of it.
fn write_case(folder: &Path, model: &SavedModel, case: u64) {
    let architecture = &model.card.architecture;
    let mut draws = Stream::new(case, "case").draws();
    let batch = 1 + draws.below(5) as usize;
    let (time, fixed) = match architecture {
        Architecture::Mlp { time, .. } => (*time, true),
        _ => (8 + draws.below(24) as usize, false),
    };
    let length =
        |draws: &mut Draws| if fixed { time } else { draws.below(time as u64 + 1) as usize };
    let mut lengths: Vec<usize> = (0..batch).map(|_| length(&mut draws)).collect();
    // A whole sample in every batch; one without a step in the second.
    lengths[0] = if case == 1 && !fixed { 0 } else { time };
    let built = model.build(&Device::default()).unwrap();
    let mut out = vec![numbers("lengths", &[batch], lengths.iter().map(|l| *l as f32).collect())];
    match &built {
        Model::Bert(_) | Model::Text(_) => {
            let mut tokens: Vec<i32> = (0..batch * time).map(|_| draws.below(31) as i32).collect();
            for (row, length) in tokens.chunks_exact_mut(time).zip(&lengths) {
                row[*length..].fill(0);
            }
            let data = TensorData::new(tokens.clone(), [batch, time]);
            let input = Tensor::<2, Int>::from_data(data, &Device::default());
            // What is padded with is no token.
            let given = tokens.iter().enumerate().map(|(place, token)| {
                if place % time < lengths[place / time] { *token as f32 } else { -100.0 }
            });
            out.push(numbers("tokens", &[batch, time], given.collect()));
            let scores = built.scores(input.clone(), &lengths).unwrap();
            out.push(tensor("logits", scores.labels));
            for (name, scores) in
                ["first", "last"].into_iter().zip(scores.span.into_iter().flatten())
            {
                out.push(tensor(name, scores));
            }
            match &built {
                Model::Text(model) => {
                    out.push(tensor("embedding", model.embed(input.clone(), Some(&lengths))));
                    let encoding = model.encoder().encode(input, Some(&lengths), None);
                    out.push(tensor("encoding", encoding));
                }
                Model::Bert(model) => {
                    let encoding = model.encode(input, Some(&lengths), None);
                    let [_, _, width] = encoding.dims();
                    let first = encoding.clone().narrow(1, 0, 1).reshape([batch, width]);
                    out.push(tensor("embedding", first));
                    out.push(tensor("encoding", encoding));
                }
                _ => {}
            }
        }
        _ => {
            let width = channels(architecture);
            // Prices that are not normalised, to a model that normalises each step over its channels.
            let priced = matches!(architecture, Architecture::BilstmAttention { .. });
            let level = if priced && case + 1 == CASES { 200.0 } else { 0.0 };
            let values: Vec<f32> =
                (0..batch * time * width).map(|_| (level + draws.normal()) as f32).collect();
            out.push(numbers("input", &[batch, time, width], values.clone()));
            let mut shown = values;
            for (row, length) in shown.chunks_exact_mut(time * width).zip(&lengths) {
                row[length * width..].fill(0.0);
            }
            let data = TensorData::new(shown, [batch, time, width]);
            let input = Tensor::<3>::from_data(data, &Device::default());
            windows(&built, input, &lengths, &mut draws, &mut out);
        }
    }
    let file = safetensors(&out, &[]).unwrap();
    std::fs::write(folder.join(format!("case-{case}.safetensors")), file).unwrap();
}

fn windows(
    model: &Model,
    input: Tensor<3>,
    lengths: &[usize],
    draws: &mut Draws,
    out: &mut Vec<Parameter>,
) {
    let [batch, _, _] = input.dims();
    if let Some(embedding) = model.embed(input.clone(), lengths) {
        out.push(tensor("embedding", embedding));
    }
    if let Some(logits) = model.logits(input.clone(), lengths) {
        out.push(tensor("logits", logits));
    }
    match model {
        Model::BilstmMae(model) => {
            out.push(steps(model, &input, lengths));
            restore(model, input, lengths, draws, out);
        }
        Model::PatchTransformer(model) => {
            out.push(steps(model, &input, lengths));
            restore(model, input, lengths, draws, out);
        }
        Model::Masked(model) => {
            out.push(steps(model, &input, lengths));
            restore(model, input, lengths, draws, out);
        }
        Model::EncoderClassifier(model) => out.push(steps(model.encoder(), &input, lengths)),
        Model::CnnBilstm(model) => out.push(steps(model, &input, lengths)),
        Model::Transformer(model) => out.push(steps(model, &input, lengths)),
        Model::BilstmAttention(model) => out.push(steps(model, &input, lengths)),
        Model::Dilated(model) => out.push(steps(model, &input, lengths)),
        Model::Recurrent(model) => out.push(steps(model, &input, lengths)),
        Model::RecurrentClassifier(model) => out.push(steps(model.encoder(), &input, lengths)),
        Model::PatchClassifier(model) => out.push(steps(model.encoder(), &input, lengths)),
        Model::StackedLstm(model) => {
            out.push(steps(model, &input, lengths));
            let width = model.statics();
            let values: Vec<f32> = (0..batch * width).map(|_| draws.normal() as f32).collect();
            let given = (width > 0).then(|| {
                out.push(numbers("statics", &[batch, width], values.clone()));
                let data = TensorData::new(values, [batch, width]);
                Tensor::<2>::from_data(data, &Device::default())
            });
            out.push(tensor("forecast", model.forecast(input, Some(lengths), given, None)));
        }
        Model::Mlp(_) | Model::Bert(_) | Model::Text(_) => {}
    }
}

fn steps(encoder: &impl Encoder, input: &Tensor<3>, lengths: &[usize]) -> Parameter {
    tensor("encoding", encoder.encode(input.clone(), Some(lengths), None))
}

/// Hides some valid steps, and what the model puts in their place.
fn restore(
    model: &impl Pretrain,
    inputs: Tensor<3>,
    lengths: &[usize],
    draws: &mut Draws,
    out: &mut Vec<Parameter>,
) {
    let [batch, time, _] = inputs.dims();
    let masked: Vec<bool> = (0..batch * time)
        .map(|step| step % time < lengths[step / time] && draws.chance(0.3))
        .collect();
    let values = masked.iter().map(|hidden| f32::from(u8::from(*hidden))).collect();
    out.push(numbers("mask", &[batch, time], values));
    let indices: Vec<usize> = (0..batch).collect();
    let mask = StepMask { masked, batch, time };
    let given = PretrainBatch { inputs, lengths, indices: &indices };
    out.push(tensor("reconstruction", model.reconstruct(&given, &mask)));
}

fn numbers(name: &str, shape: &[usize], values: Vec<f32>) -> Parameter {
    Parameter { name: name.to_owned(), shape: shape.to_vec(), values }
}

fn tensor<const D: usize>(name: &str, tensor: Tensor<D>) -> Parameter {
    numbers(name, &tensor.dims(), tensor.into_data().try_into_vec().unwrap())
}
