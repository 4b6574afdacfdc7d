//! Parity with PyTorch: forward, loss and every gradient of the masked autoencoder, on golden files
//! that `golden.py` wrote in float64 with all masks and dropout draws.
//!
//! The committed files are of a small model. For one at full width, write it with
//! `golden.py --full DIR` and name the folder in `FIREBOX_GOLDEN_FULL`.

use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use firebox_core::Stream;
use firebox_models::{
    BiLstmMaeConfig, Encoder, MaskRule, Pretrain, PretrainBatch, write_parameters,
};

use crate::support::{Golden, check, check_gradients, values};

fn unpack(bits: &[u8], count: usize) -> Vec<bool> {
    (0..count).map(|i| bits[i / 8] >> (7 - i % 8) & 1 == 1).collect()
}

fn keep(stream: Stream, count: usize) -> Vec<bool> {
    let mut draws = vec![0.0; count];
    stream.fill_uniform(0, &mut draws);
    draws.iter().map(|draw| f64::from(*draw) >= 0.2).collect()
}

fn parity(path: &Path, mask: MaskRule) {
    let golden = Golden::open(path);
    let device = Device::default();
    let named = golden.all("param.");
    let shape = |name: &str| &named.iter().find(|p| p.name == name).unwrap().shape;
    let (hidden, decoder) = (shape("lstm.weight_hh_l0")[1], shape("decoder.hidden.weight")[0]);
    let channels = shape("mask_token")[0];
    let config = BiLstmMaeConfig { hidden, decoder_hidden: decoder, mask, ..Default::default() };
    let mut model = config.init(Stream::new(1, "other"), channels, &device).unwrap();
    write_parameters(&mut model, named.clone()).unwrap();
    let model = model.train();

    let sizes = |name: &str| -> Vec<usize> {
        golden.integers(name).into_iter().map(|value| value as usize).collect()
    };
    let (lengths, indices) = (sizes("lengths"), sizes("indices"));
    let (mask_shape, mask_bytes) = golden.bytes("mask");
    let [samples, time] = mask_shape[..] else { panic!("{mask_shape:?}") };
    let data = TensorData::new(golden.floats("inputs").values, [samples, time, channels]);
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

    let token = &named.iter().find(|p| p.name == "mask_token").unwrap().values;
    let mut shown = golden.floats("inputs").values;
    let steps = shown.chunks_exact_mut(channels).zip(&drawn.masked);
    steps.filter(|(_, masked)| **masked).for_each(|(step, _)| step.copy_from_slice(token));
    let shown = TensorData::new(shown, [samples, time, channels]);
    let shown = Tensor::<3>::from_data(shown, &device);
    let latent = model.encode(shown, Some(&lengths), Some(dropout.substream(0)));
    check("latent", &values(latent), &golden.floats("latent").values);

    let loss = model.pretrain_loss(&batch, masks, Some(dropout));
    let scalars = golden.floats("scalars").values;
    assert_eq!(loss.weight, (drawn.count() * channels) as f64);
    check("reconstruction loss", &values(loss.parts[0].1.clone()), &scalars[..1]);
    check("latent spread", &values(loss.parts[1].1.clone()), &scalars[1..2]);
    check("loss", &values(loss.value.clone().inner()), &scalars[2..3]);
    let recorded = loss.value.backward();
    check_gradients(&model, &recorded, &golden);

    let model = model.valid();
    let plain = model.pretrain_loss(&batch, masks, None);
    check("loss in evaluation", &values(plain.value), &scalars[3..]);
    let output = values(model.reconstruct(&batch, &drawn));
    let expected = golden.floats("evaluated").values;
    // Beyond a sample's length the reference's values mean as little as ours.
    let valid = |all: &[f32]| -> Vec<f32> {
        let rows = all.chunks(time * channels).zip(&lengths);
        rows.flat_map(|(row, length)| row[..length * channels].to_vec()).collect()
    };
    check("reconstruction", &valid(&output), &valid(&expected));
    check(
        "embedding",
        &values(model.embed(inputs, Some(&lengths))),
        &golden.floats("embedding").values,
    );
}

fn committed(name: &str) -> PathBuf {
    Path::new("tests/golden").join(name)
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
        None => println!(
            "skipped: FIREBOX_GOLDEN_FULL is not set, which names the folder of the full-width \
             golden file"
        ),
    }
}
