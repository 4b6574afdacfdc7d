//! Parity of fine-tuning's classifier, the patch Transformer and the dilated encoder with PyTorch:
//! outputs, loss and every gradient, with dropout in all its places, on golden files that `golden_finetune.py` wrote in
//! float64.

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use firebox_core::Stream;
use firebox_kernels::{CrossEntropy, cross_entropy};
use firebox_models::{
    Cell, ClassifierConfig, Classify, DilatedConfig, Encoder, PatchTransformerConfig, Pretrain,
    PretrainBatch, RecurrentConfig, StepMask, StepPooling, hierarchical_contrast, write_parameters,
};

use crate::support::{Golden, check, check_gradients, values};

fn lengths(golden: &Golden) -> Vec<usize> {
    golden.integers("lengths").iter().map(|length| *length as usize).collect()
}

fn inputs(golden: &Golden) -> Tensor<3> {
    named(golden, "inputs")
}

fn named(golden: &Golden, name: &str) -> Tensor<3> {
    let inputs = golden.floats(name);
    Tensor::from_data(TensorData::new(inputs.values, inputs.shape), &Device::default())
}

fn dropout() -> Option<Stream> {
    Some(Stream::new(7, "dropout").substream(3))
}

fn check_classifier(name: &str, cell: Cell, pooling: StepPooling) {
    let golden = Golden::read(name);
    let device = Device::default();
    let encoder = RecurrentConfig { cell, hidden: 6, ..RecurrentConfig::default() };
    let encoder = encoder.init(Stream::new(1, "other"), 3, &device).expect("an encoder");
    let config = ClassifierConfig { pooling, hidden: 7, ..ClassifierConfig::default() };
    let model = config.init(Stream::new(1, "other"), encoder, 4, &device);
    let mut model = model.expect("a model");
    write_parameters(&mut model, golden.all("param.")).expect("PyTorch's names and shapes");
    let model = model.train();
    let (inputs, lengths) = (inputs(&golden), lengths(&golden));

    let logits = model.logits(inputs.clone(), Some(&lengths), dropout());
    check("logits", &values(logits.clone()), &golden.floats("logits").values);
    let weights = golden.floats("weights").values;
    let focal = CrossEntropy { focal: 2.0, class_weights: Some(&weights), ..Default::default() };
    let loss = cross_entropy(logits, &golden.integers("labels"), &focal).expect("a loss").value;
    check("loss", &values(loss.clone()), &golden.floats("loss").values);
    check_gradients(&model, &loss.backward(), &golden);

    let evaluated = values(model.valid().logits(inputs, Some(&lengths), None));
    check("logits in evaluation", &evaluated, &golden.floats("evaluated").values);
}

#[test]
fn the_lstm_classifier_agrees_with_pytorch() {
    check_classifier("classifier-lstm", Cell::Lstm, StepPooling::Mean);
}

#[test]
fn the_gru_classifier_agrees_with_pytorch() {
    check_classifier("classifier-gru", Cell::Gru, StepPooling::MeanMax);
}

#[test]
fn the_patch_transformer_agrees_with_pytorch() {
    let golden = Golden::read("patch-transformer");
    let config = PatchTransformerConfig {
        patch: 4,
        width: 8,
        heads: 2,
        layers: 2,
        feedforward: 12,
        ..PatchTransformerConfig::default()
    };
    let model = config.init(Stream::new(1, "other"), 3, &Device::default());
    let mut model = model.expect("a model");
    write_parameters(&mut model, golden.all("param.")).expect("PyTorch's names and shapes");
    let model = model.train();
    let (inputs, lengths) = (inputs(&golden), lengths(&golden));
    let (shape, mask) = golden.bytes("mask");
    let masked = mask.iter().map(|byte| *byte == 1).collect();
    let mask = StepMask { masked, batch: shape[0], time: shape[1] };
    let batch = || PretrainBatch { inputs: inputs.clone(), lengths: &lengths, indices: &[0; 5] };

    let loss = model.masked_loss(&batch(), &mask, dropout()).value;
    check("loss", &values(loss.clone()), &golden.floats("loss").values);
    check_gradients(&model, &loss.backward(), &golden);

    let model = model.valid();
    let output = values(model.reconstruct(&batch(), &mask));
    let steps = output.chunks_exact(18 * 3).zip(&lengths);
    let valid = |(row, length): (&[f32], &usize)| {
        let mut row = row.to_vec();
        row[length * 3..].fill(0.0);
        row
    };
    let output: Vec<f32> = steps.flat_map(valid).collect();
    check("reconstruction", &output, &golden.floats("evaluated").values);
    let embedding = values(model.embed(inputs.clone(), Some(&lengths)));
    check("embedding", &embedding, &golden.floats("embedding").values);
}

#[test]
fn the_dilated_encoder_and_its_contrast_agree_with_pytorch() {
    let golden = Golden::read("dilated");
    let config = DilatedConfig { hidden: 6, output: 8, blocks: 3 };
    let model = config.init(Stream::new(1, "other"), 3, &Device::default());
    let mut model = model.expect("a model");
    write_parameters(&mut model, golden.all("param.")).expect("PyTorch's names and shapes");
    let model = model.train();
    let lengths = lengths(&golden);
    let encode = |name| model.encode(named(&golden, name), Some(&lengths), None);
    let encoded = encode("inputs");
    check("encoding", &values(encoded.clone().inner()), &golden.floats("encoded").values);
    let loss = hierarchical_contrast(encoded, encode("other"));
    check("loss", &values(loss.clone().inner()), &golden.floats("loss").values);
    check_gradients(&model, &loss.backward(), &golden);
}
