//! Parity with PyTorch: forward, loss and every gradient of the masked autoencoder, on golden files
//! that `golden.py` wrote in float64 with all masks and dropout draws.
//!
//! The committed files are of a small model. For one at full width, write it with
//! `golden.py --full DIR` and name the folder in `FIREBOX_GOLDEN_FULL`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use firebox_core::Stream;
use firebox_models::{
    BiLstmMae, BiLstmMaeConfig, Encoder, MaskRule, Parameter, Path as Place, Pretrain,
    PretrainBatch, write_parameters,
};
use safetensors::{Dtype, SafeTensors};

/// Largest norm-wise relative error that f32 may make.
const LIMIT: f64 = 1e-5;

struct Golden(Vec<u8>);

impl Golden {
    fn read(path: &Path) -> Self {
        Self(std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    }

    fn all(&self, prefix: &str) -> Vec<Parameter> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let named = file.tensors().into_iter().filter_map(|(name, view)| {
            let name = name.strip_prefix(prefix)?.to_owned();
            assert_eq!(view.dtype(), Dtype::F32);
            let values = view.data().as_chunks::<4>().0.iter();
            let values = values.map(|bytes| f32::from_le_bytes(*bytes)).collect();
            Some(Parameter { name, shape: view.shape().to_vec(), values })
        });
        named.collect()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        let mut found = self.all(name);
        found.retain(|parameter| parameter.name.is_empty());
        found.pop().unwrap_or_else(|| panic!("the golden file has no `{name}`")).values
    }

    fn bytes(&self, name: &str) -> (Vec<usize>, Vec<u8>) {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let view = file.tensor(name).unwrap();
        (view.shape().to_vec(), view.data().to_vec())
    }

    fn integers(&self, name: &str) -> Vec<usize> {
        let (_, bytes) = self.bytes(name);
        bytes.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b) as usize).collect()
    }
}

/// ‖found − expected‖ / ‖expected‖
fn check(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let pairs = found.iter().zip(expected);
    let error = norm(&mut pairs.map(|(a, b)| f64::from(*a) - f64::from(*b)));
    let size = norm(&mut expected.iter().map(|v| f64::from(*v)));
    assert!(size > 0.0 && error / size < LIMIT, "{what}: relative error {}", error / size);
    println!("{what}: {:.1e}", error / size);
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec().unwrap()
}

/// Gradients by name, in PyTorch's layout.
fn gradients(model: &BiLstmMae, recorded: &Gradients) -> Vec<(String, Vec<f32>)> {
    struct Visitor<'a>(Place, &'a Gradients, Vec<(String, Vec<f32>)>);
    impl ModuleVisitor for Visitor<'_> {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.0.enter(name, container);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let gradient = param.val().grad(self.1).expect("every parameter has a gradient");
            let layout = self.0.layout(gradient.shape().as_slice());
            self.2.push((layout.name.clone(), layout.to_torch(values(gradient))));
        }
    }
    let mut visitor = Visitor(Place::default(), recorded, vec![]);
    model.visit(&mut visitor);
    visitor.2
}

fn unpack(bits: &[u8], count: usize) -> Vec<bool> {
    (0..count).map(|i| bits[i / 8] >> (7 - i % 8) & 1 == 1).collect()
}

fn keep(stream: Stream, count: usize) -> Vec<bool> {
    let mut draws = vec![0.0; count];
    stream.fill_uniform(0, &mut draws);
    draws.iter().map(|draw| f64::from(*draw) >= 0.2).collect()
}

fn parity(path: &Path, mask: MaskRule) {
    let golden = Golden::read(path);
    let device = Device::default();
    let named = golden.all("param.");
    let shape = |name: &str| &named.iter().find(|p| p.name == name).unwrap().shape;
    let (hidden, decoder) = (shape("lstm.weight_hh_l0")[1], shape("decoder.hidden.weight")[0]);
    let channels = shape("mask_token")[0];
    let config = BiLstmMaeConfig { hidden, decoder_hidden: decoder, mask, ..Default::default() };
    let mut model = config.init(Stream::new(1, "other"), channels, &device).unwrap();
    write_parameters(&mut model, named.clone()).unwrap();
    let model = model.train();

    let (lengths, indices) = (golden.integers("lengths"), golden.integers("indices"));
    let (mask_shape, mask_bytes) = golden.bytes("mask");
    let [samples, time] = mask_shape[..] else { panic!("{mask_shape:?}") };
    let data = TensorData::new(golden.floats("inputs"), [samples, time, channels]);
    let inputs = Tensor::from_data(data, &device);
    let batch = PretrainBatch { inputs: inputs.clone(), lengths: &lengths, indices: &indices };
    let masks = Stream::new(7, "masks").substream(3);
    let dropout = Stream::new(7, "dropout").substream(3);

    // The draws are those that were saved.
    let drawn = model.draw_mask(&batch, masks);
    assert_eq!(drawn.masked, mask_bytes.iter().map(|b| *b == 1).collect::<Vec<_>>());
    for (name, stream, width) in [
        ("keep.lstm", dropout.substream(0).substream(0), 2 * hidden),
        ("keep.decoder", dropout.substream(1), decoder),
    ] {
        let count = samples * time * width;
        assert_eq!(keep(stream, count), unpack(&golden.bytes(name).1, count), "{name}");
    }

    let loss = model.pretrain_loss(&batch, masks, Some(dropout));
    let scalars = golden.floats("scalars");
    assert_eq!(loss.weight, (drawn.count() * channels) as f64);
    check("reconstruction loss", &values(loss.parts[0].1.clone()), &scalars[..1]);
    check("latent spread", &values(loss.parts[1].1.clone()), &scalars[1..2]);
    check("loss", &values(loss.value.clone().inner()), &scalars[2..3]);
    let recorded = loss.value.backward();
    let expected = golden.all("grad.");
    let found = gradients(&model, &recorded);
    assert_eq!(found.len(), expected.len());
    for (name, gradient) in found {
        let expected = expected.iter().find(|p| p.name == name).unwrap();
        check(&format!("gradient of {name}"), &gradient, &expected.values);
    }

    let model = model.valid();
    let plain = model.pretrain_loss(&batch, masks, None);
    check("loss in evaluation", &values(plain.value), &scalars[3..]);
    let output = values(model.reconstruct(&batch, &drawn));
    let expected = golden.floats("evaluated");
    // Beyond a sample's length the reference's values mean as little as ours.
    let valid = |all: &[f32]| -> Vec<f32> {
        let rows = all.chunks(time * channels).zip(&lengths);
        rows.flat_map(|(row, length)| row[..length * channels].to_vec()).collect()
    };
    check("reconstruction", &valid(&output), &valid(&expected));
    check("embedding", &values(model.embed(inputs, Some(&lengths))), &golden.floats("embedding"));
}

fn committed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

#[test]
fn patch_masks() {
    parity(&committed("patch.safetensors"), MaskRule::default());
}

#[test]
fn block_masks() {
    parity(&committed("block.safetensors"), MaskRule::Block { share: 0.15 });
}

#[test]
fn random_masks() {
    parity(&committed("random.safetensors"), MaskRule::Random { probability: 0.15 });
}

#[test]
fn full_width_where_asked_for() {
    match std::env::var_os("FIREBOX_GOLDEN_FULL") {
        Some(folder) => parity(&Path::new(&folder).join("patch.safetensors"), MaskRule::default()),
        None => eprintln!("FIREBOX_GOLDEN_FULL is not set: the full-width parity was not checked"),
    }
}
