//! Parity with PyTorch: logits, loss, every gradient and the running statistics of the classifiers,
//! on golden files that `golden_classifiers.py` wrote in float64 with all dropout draws.

use std::collections::BTreeMap;
use std::path::Path;

use burn::module::Module;
use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Tensor, TensorData};
use firebox_core::Stream;
use firebox_models::{
    BiLstmAttentionConfig, CnnBiLstmConfig, Encoder, MlpConfig, Parameter, read_parameters,
    write_parameters,
};
use safetensors::{Dtype, SafeTensors};

use crate::support::{gradients, values};

struct Golden {
    floats: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
    labels: Vec<usize>,
}

impl Golden {
    fn read(name: &str) -> Self {
        let folder = Path::new("tests/golden");
        let bytes = std::fs::read(folder.join(name)).unwrap();
        let (mut floats, mut labels) = (BTreeMap::new(), vec![]);
        for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
            if view.dtype() == Dtype::I64 {
                let all = view.data().as_chunks::<8>().0.iter();
                labels = all.map(|bytes| i64::from_le_bytes(*bytes) as usize).collect();
                continue;
            }
            let values = view.data().as_chunks::<4>().0.iter();
            let values = values.map(|bytes| f32::from_le_bytes(*bytes)).collect();
            floats.insert(name, (view.shape().to_vec(), values));
        }
        Self { floats, labels }
    }

    fn named(&self, prefix: &str) -> Vec<Parameter> {
        let with = |(name, (shape, values)): (&String, &(Vec<usize>, Vec<f32>))| {
            let name = name.strip_prefix(prefix)?.to_owned();
            Some(Parameter { name, shape: shape.clone(), values: values.clone() })
        };
        self.floats.iter().filter_map(with).collect()
    }

    fn size(&self, name: &str, axis: usize) -> usize {
        self.floats[&format!("param.{name}")].0[axis]
    }

    fn inputs(&self, device: &Device) -> Tensor<3> {
        let (shape, values) = &self.floats["inputs"];
        Tensor::from_data(TensorData::new(values.clone(), shape.clone()), device)
    }

    /// ‖found − expected‖ / ‖expected‖
    fn check(&self, name: &str, found: &[f32]) {
        let expected = &self.floats[name].1;
        assert_eq!(found.len(), expected.len(), "{name}");
        let pairs = found.iter().zip(expected).map(|(a, b)| (f64::from(*a), f64::from(*b)));
        let error = pairs.clone().map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
        let norm = pairs.map(|(_, b)| b * b).sum::<f64>().sqrt();
        // A shift before a batch normalisation has no gradient: what both have is rounding.
        if norm < 1e-12 {
            return assert!(error < 1e-5, "{name}: {error:.1e}");
        }
        assert!(error / norm < 1e-5, "{name}: relative error {:.1e}", error / norm);
    }

    /// Loss and gradients of logits in training, then the statistics that they left.
    fn check_training<M: Module>(&self, model: &M, logits: Tensor<2>) {
        self.check("logits", &values(logits.clone()));
        let [samples, classes] = logits.dims();
        let mut chosen = vec![0.0_f32; samples * classes];
        for (row, label) in chosen.chunks_exact_mut(classes).zip(&self.labels) {
            row[*label] = -1.0 / samples as f32;
        }
        let chosen = TensorData::new(chosen, [samples, classes]);
        let loss = (log_softmax(logits, 1) * Tensor::from_data(chosen, &Device::default())).sum();
        self.check("loss", &values(loss.clone()));
        let recorded = loss.backward();
        let found = gradients(model, &recorded);
        assert_eq!(found.len(), self.named("grad.").len());
        for (name, gradient) in found {
            self.check(&format!("grad.{name}"), &gradient);
        }
        let after = read_parameters(model);
        let statistics: Vec<_> = after.iter().filter(|p| p.name.contains("running")).collect();
        assert_eq!(statistics.len(), self.named("after.").len());
        for statistic in statistics {
            self.check(&format!("after.{}", statistic.name), &statistic.values);
        }
    }
}

fn dropout() -> Option<Stream> {
    Some(Stream::new(7, "dropout").substream(3))
}

#[test]
fn the_dense_classifier_is_pytorchs() {
    for name in ["mlp.safetensors", "mlp-gate.safetensors"] {
        check_mlp(&Golden::read(name));
    }
}

fn check_mlp(golden: &Golden) {
    let device = Device::default();
    let inputs = golden.inputs(&device);
    let [_, time, channels] = inputs.dims();
    let hidden = (0..4).map(|at| golden.size(&format!("layers.{at}.linear.weight"), 0)).collect();
    let gate = golden.floats.contains_key("param.gate.weight");
    let config = MlpConfig { hidden, gate, ..MlpConfig::default() };
    let classes = golden.size("output.weight", 0);
    let stream = Stream::new(1, "other");
    let mut model = config.init(stream, [time, channels], classes, &device).unwrap();
    write_parameters(&mut model, golden.named("param.")).unwrap();
    let model = model.train();
    golden.check_training(&model, model.logits(inputs.clone(), dropout()));
    golden.check("evaluated", &values(model.valid().logits(inputs, None)));
}

#[test]
fn the_convolutional_classifier_is_pytorchs() {
    for name in ["cnn-bilstm.safetensors", "cnn-bilstm-embedding.safetensors"] {
        check_convolutions(&Golden::read(name));
    }
}

fn check_convolutions(golden: &Golden) {
    let device = Device::default();
    let inputs = golden.inputs(&device);
    let [_, time, channels] = inputs.dims();
    let whole = golden.floats.contains_key("param.embedding.weight");
    let width = |at: usize| golden.size(&format!("blocks.{at}.conv.weight"), 0);
    let config = CnnBiLstmConfig {
        convolutions: (0..3).map(width).collect(),
        hidden: golden.size("lstm.weight_hh_l0", 1),
        head: golden.size("head.weight", 0),
        head_norm: whole,
        head_dropout: if whole { 0.0 } else { 0.3 },
        embedding: if whole { golden.size("embedding.weight", 0) } else { 0 },
        classifier: match whole {
            true => {
                (0..2).map(|at| golden.size(&format!("classifier.{at}.linear.weight"), 0)).collect()
            }
            false => vec![],
        },
        ..CnnBiLstmConfig::default()
    };
    let classes = golden.size("output.weight", 0);
    let mut model = config.init(Stream::new(1, "other"), channels, classes, &device).unwrap();
    write_parameters(&mut model, golden.named("param.")).unwrap();
    let model = model.train();
    golden.check_training(&model, model.logits(inputs.clone(), None, None, dropout()));
    let model = model.valid();
    let lengths = vec![time; inputs.dims()[0]];
    let evaluated = model.logits(inputs.clone(), Some(&lengths), None, None);
    golden.check("evaluated", &values(evaluated));
    golden.check("embedding", &values(model.embed(inputs, None)));
}

#[test]
fn convolutions_of_a_sample_do_not_depend_on_what_it_is_padded_to() {
    let device = Device::default();
    let stream = Stream::new(3, "padded");
    let (channels, longest) = (4, 41);
    for head_norm in [false, true] {
        let config = CnnBiLstmConfig {
            convolutions: vec![5, 8, 6],
            hidden: 7,
            head: 9,
            head_norm,
            ..CnnBiLstmConfig::default()
        };
        let model = config.init(stream, channels, 3, &device).unwrap().train();
        let all = firebox_kernels::uniform(stream, [6, longest, channels], -1.0, 1.0, &device);
        // Running statistics as they are in no new model.
        drop(model.logits(all.clone(), None, None, None));
        let model = model.valid();
        let lengths = [41, 8, 9, 23, 30, 15];
        let together = values(model.logits(all.clone(), Some(&lengths), None, None));
        for (row, length) in lengths.into_iter().enumerate() {
            let alone = all.clone().slice([row..row + 1, 0..length, 0..channels]);
            let alone = values(model.logits(alone, None, None, None));
            for (a, b) in alone.iter().zip(&together[row * 3..]) {
                assert!((a - b).abs() < 1e-5, "{length} steps: {a} alone, {b} beside longer ones");
            }
        }
    }
}

#[test]
fn the_classifier_with_attention_is_pytorchs() {
    let golden = Golden::read("bilstm-attention.safetensors");
    let device = Device::default();
    let inputs = golden.inputs(&device);
    let [samples, _, channels] = inputs.dims();
    let config = BiLstmAttentionConfig {
        hidden: golden.size("lstm.weight_hh_l0", 1),
        attention: golden.size("attention.hidden.weight", 0),
        head_hidden: golden.size("head.hidden.weight", 0),
        ..BiLstmAttentionConfig::default()
    };
    let classes = golden.size("head.output.weight", 0);
    let mut model = config.init(Stream::new(1, "other"), channels, classes, &device).unwrap();
    write_parameters(&mut model, golden.named("param.")).unwrap();
    let model = model.train();
    let lengths = [9, 4, 1, 9, 6, 7];
    golden.check_training(&model, model.logits(inputs.clone(), Some(&lengths), dropout()));
    let model = model.valid();
    golden.check("evaluated", &values(model.logits(inputs.clone(), Some(&lengths), None)));
    golden.check("embedding", &values(model.embed(inputs.clone(), Some(&lengths))));
    // Padding, whatever it holds, and a sample without a step.
    let tail = Tensor::full([samples, 3, channels], 1e3, &device);
    let long = Tensor::cat(vec![inputs, tail], 1);
    golden.check("evaluated", &values(model.logits(long.clone(), Some(&lengths), None)));
    let none = values(model.embed(long, Some(&[9, 0, 1, 9, 6, 7])));
    let width = none.len() / samples;
    assert!(none[width..2 * width].iter().all(|x| *x == 0.0));
    let refused = BiLstmAttentionConfig { attention: 0, ..BiLstmAttentionConfig::default() };
    assert!(refused.validate().unwrap_err().to_string().contains("`attention` is 0"));
}

#[test]
fn the_classifier_with_attention_has_the_size_of_the_reference_system() {
    let model = BiLstmAttentionConfig::default();
    let model = model.init(Stream::new(1, "w"), 29, 3, &Device::default()).unwrap();
    let lstm = 2 * (512 * (29 + 128 + 2) + 512 * (256 + 128 + 2));
    let heads = 256 * 128 + 128 + 128 + 256 * 128 + 128 + 128 * 3 + 3;
    assert_eq!(model.num_params(), lstm + heads + 2 * 29 + 2 * 256);
}
