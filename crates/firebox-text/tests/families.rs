//! Every family's hidden states beside those of `transformers`, on tiny models that `golden.py` wrote; heads and
//! losses beside PyTorch's; and folders that are wrong.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test says why it fails by panicking"
)]

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Int, Tensor, TensorData};
use firebox_core::Stream;
use firebox_models::{
    Path as Place, Pooling, TextEncoder, TextHeadsConfig, TextLoss, TextTargets, read_parameters,
    write_parameters,
};
use firebox_text::{Family, read_encoder};
use safetensors::SafeTensors;

/// Largest norm-wise relative error that f32 may make.
const LIMIT: f64 = 1e-5;

const FAMILIES: [(&str, Family); 8] = [
    ("bert", Family::Bert),
    ("roberta", Family::Roberta),
    ("xlm-roberta", Family::Roberta),
    ("electra", Family::Electra),
    ("distilbert", Family::DistilBert),
    ("deberta-v3", Family::DebertaV2),
    ("deberta-v2", Family::DebertaV2),
    ("longformer", Family::Longformer),
];

fn golden() -> PathBuf {
    PathBuf::from("tests/golden")
}

fn integers(file: &SafeTensors<'_>, name: &str) -> Vec<i64> {
    let data = file.tensor(name).unwrap().data().to_vec();
    data.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
}

fn check_family(folder: &Path, family: Family) {
    let device = Device::default();
    let loaded = read_encoder(folder, &device).unwrap_or_else(|error| {
        panic!("{}: {error}: {:?}", folder.display(), std::error::Error::source(&error))
    });
    assert_eq!(loaded.family, family);
    let bytes = std::fs::read(folder.join("expected.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let lengths: Vec<usize> = integers(&file, "lengths").iter().map(|l| *l as usize).collect();
    let tokens = integers(&file, "tokens");
    let (batch, time) = (lengths.len(), tokens.len() / lengths.len());
    let tokens = Tensor::<2, Int>::from_data(TensorData::new(tokens, [batch, time]), &device);
    let encoder = loaded.encoder.train();
    let hidden = encoder.encode(tokens, Some(&lengths), None);
    let [_, _, width] = hidden.dims();
    check_gradient(folder, &file, &encoder, hidden.clone(), &lengths);
    let found: Vec<f32> = hidden.into_data().iter::<f32>().collect();
    let expected = file.tensor("hidden").unwrap().data().to_vec();
    let expected = expected.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    let expected: Vec<f32> = expected.collect();
    assert_eq!(found.len(), expected.len(), "{}", folder.display());
    let (mut error, mut norm) = (0.0, 0.0);
    for (sample, length) in lengths.iter().enumerate() {
        for at in sample * time * width..(sample * time + length) * width {
            error += f64::from(found[at] - expected[at]).powi(2);
            norm += f64::from(expected[at]).powi(2);
        }
    }
    let error = (error / norm).sqrt();
    assert!(error < LIMIT, "{}: relative error {error:e}", folder.display());
}

/// The gradient of the vectors of tokens, of a sum over valid tokens whose weights all differ.
fn check_gradient(
    folder: &Path,
    file: &SafeTensors<'_>,
    encoder: &TextEncoder,
    hidden: Tensor<3>,
    lengths: &[usize],
) {
    let [batch, time, width] = hidden.dims();
    let weight = |at: usize| {
        let (sample, step) = (at / (time * width), at / width % time);
        if step < lengths[sample] { (at as f64).cos() as f32 } else { 0.0 }
    };
    let weights: Vec<f32> = (0..batch * time * width).map(weight).collect();
    let weights = TensorData::new(weights, [batch, time, width]);
    let gradients = (hidden * Tensor::from_data(weights, &Device::default())).sum().backward();
    let mut found = BTreeMap::new();
    encoder.visit(&mut Gradient(Place::default(), &gradients, &mut found));
    let what = format!("{}: the gradient", folder.display());
    check(&what, &found["tokens.weight"], &floats(file, "gradient"));
}

/// Gradients by name, in PyTorch's layout.
struct Gradient<'a>(Place, &'a Gradients, &'a mut BTreeMap<String, Vec<f32>>);

impl ModuleVisitor for Gradient<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.0.enter(name, container);
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.0.exit();
    }
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let layout = self.0.layout(param.lazy_shape().as_slice());
        if let Some(gradient) = param.val().grad(self.1) {
            let values = layout.to_torch(gradient.into_data().iter::<f32>().collect());
            self.2.insert(layout.name, values);
        }
    }
}

#[test]
fn hidden_states_are_those_of_transformers() {
    for (name, family) in FAMILIES {
        check_family(&golden().join(name), family);
    }
}

#[test]
fn distilbert_alone_has_no_dropout_behind_the_projection_of_attention() {
    for (name, family) in FAMILIES {
        let encoder = read_encoder(&golden().join(name), &Device::default()).unwrap().encoder;
        let none = (family == Family::DistilBert).then_some(0.0);
        assert_eq!(encoder.config().projection_dropout, none, "{name}");
        let other = encoder.with_dropout(0.5);
        assert_eq!(other.config().projection_dropout, none, "{name}");
    }
}

/// With `FIREBOX_TEST_PYTHON`, a Python with what `golden.py` needs, the golden files are made anew, by whatever
/// versions it has, and Firebox is compared with them. Tokenizers come out otherwise each time that they are
/// trained, and what is expected of them is made with them.
#[test]
fn models_heads_and_tokens_are_those_of_the_installed_packages() {
    let python = std::env::var_os("FIREBOX_TEST_PYTHON").unwrap_or_else(|| "python3".into());
    let has = Command::new(&python)
        .args(["-c", "import torch, transformers, tokenizers, sentencepiece, google.protobuf"])
        .output();
    if !has.is_ok_and(|output| output.status.success()) {
        println!(
            "skipped: no Python with torch, transformers, tokenizers, sentencepiece and protobuf from \
             PyPI; set FIREBOX_TEST_PYTHON to one"
        );
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let script = "tests/golden.py";
    let output = Command::new(&python).arg(script).arg(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for (name, family) in FAMILIES {
        check_family(&folder.path().join(name), family);
    }
    check_heads(folder.path());
    support::check_tokens(&folder.path().join("tokenizers"));
}

/// A copy of a golden folder, changed.
fn changed(name: &str, change: impl FnOnce(&Path)) -> String {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(golden().join(name).join(file), folder.path().join(file)).unwrap();
    }
    change(folder.path());
    let error = read_encoder(folder.path(), &Device::default()).expect_err("refused");
    let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    format!("{error}: {cause}")
}

fn edit(folder: &Path, from: &str, to: &str) {
    let path = folder.join("config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{text}");
    std::fs::write(path, text.replace(from, to)).unwrap();
}

#[test]
fn wrong_folders_say_what_is_wrong() {
    let check = |name: &str, expected: &[&str], change: &dyn Fn(&Path)| {
        let message = changed(name, change);
        for part in expected {
            assert!(message.contains(part), "{message}");
        }
    };
    check("bert", &["family `gpt2`, which is not supported", "roberta"], &|folder| {
        edit(folder, "\"model_type\": \"bert\"", "\"model_type\": \"gpt2\"");
    });
    check("bert", &["sets `hidden_act` to \"gelu_new\"", "\"gelu\""], &|folder| {
        edit(folder, "\"hidden_act\": \"gelu\"", "\"hidden_act\": \"gelu_new\"");
    });
    check("deberta-v3", &["sets `pos_att_type`", "c2p"], &|folder| {
        edit(folder, "\"p2c\"", "\"p2p\"");
    });
    check("bert", &["do not fit", "missing: `bert.encoder.layer.2."], &|folder| {
        edit(folder, "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
    });
    check("bert", &["unexpected: `bert.encoder.layer.1."], &|folder| {
        edit(folder, "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1");
    });
    check(
        "bert",
        &["word_embeddings.weight` has shape [60, 16] where the model has [61, 16]"],
        &|folder| {
            edit(folder, "\"vocab_size\": 60", "\"vocab_size\": 61");
        },
    );
    let converted = ["holds `pytorch_model.bin`", "safe_serialization=True", "AutoTokenizer"];
    check("bert", &converted, &|folder| {
        std::fs::rename(folder.join("model.safetensors"), folder.join("pytorch_model.bin"))
            .unwrap();
    });
    check("bert", &["holds neither `model.safetensors`"], &|folder| {
        std::fs::remove_file(folder.join("model.safetensors")).unwrap();
    });
    check("bert", &["is no whole safetensors file"], &|folder| {
        std::fs::write(folder.join("model.safetensors"), b"nothing").unwrap();
    });
    check("bert", &["config.json` cannot be read"], &|folder| {
        std::fs::remove_file(folder.join("config.json")).unwrap();
    });
    check("bert", &["outside its folder"], &|folder| {
        std::fs::remove_file(folder.join("model.safetensors")).unwrap();
        let index = r#"{"weight_map": {"a": "../model.safetensors"}}"#;
        std::fs::write(folder.join("model.safetensors.index.json"), index).unwrap();
    });
}

#[test]
fn shards_are_put_together() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(golden().join("bert/model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let (first, second): (Vec<_>, Vec<_>) =
        file.tensors().into_iter().enumerate().partition(|(index, _)| index % 2 == 0);
    let mut map = serde_json::Map::new();
    for (part, name) in [(first, "model-1.safetensors"), (second, "model-2.safetensors")] {
        let part: Vec<_> = part.into_iter().map(|(_, tensor)| tensor).collect();
        map.extend(part.iter().map(|(tensor, _)| (tensor.clone(), name.into())));
        let bytes = safetensors::serialize(part, None).unwrap();
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    let index = serde_json::json!({ "weight_map": map }).to_string();
    std::fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    for file in ["config.json", "expected.safetensors"] {
        std::fs::copy(golden().join("bert").join(file), folder.path().join(file)).unwrap();
    }
    check_family(folder.path(), Family::Bert);
    let report = read_encoder(folder.path(), &Device::default()).unwrap().report;
    assert!(report.left_out.iter().any(|name| name == "bert.pooler.dense.weight"));
    assert!(report.left_out.iter().any(|name| name.starts_with("cls.predictions")));
}

fn floats(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let data = file.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}")).data().to_vec();
    data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn check(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let square = |sum: f64, (a, b): (&f32, &f32)| sum + f64::from(a - b).powi(2);
    let error = found.iter().zip(expected).fold(0.0, square).sqrt();
    let norm = expected.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    assert!(error <= LIMIT * norm, "{what}: relative error {:e}", error / norm);
}

#[test]
fn heads_and_losses_are_those_of_pytorch() {
    check_heads(&golden());
}

/// Scores, loss and gradients of heads on the tiny BERT of the folder.
fn check_heads(folder: &Path) {
    let device = Device::default();
    let bytes = std::fs::read(folder.join("heads.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let inputs = std::fs::read(folder.join("bert/expected.safetensors")).unwrap();
    let inputs = SafeTensors::deserialize(&inputs).unwrap();
    let lengths: Vec<usize> = integers(&inputs, "lengths").iter().map(|l| *l as usize).collect();
    let tokens = TensorData::new(integers(&inputs, "tokens"), [4, 11]);
    let tokens = Tensor::<2, Int>::from_data(tokens, &device);
    let truth = [1, 0, 1, 0, 0, 0, 1, 1, 0, 0, 1, 0].map(|v| v as f32);
    // The third text has no evidence.
    let spans = [Some([2, 5]), Some([1, 1]), None, Some([3, 6])];
    for (name, pooling) in [
        ("cls", Pooling::Cls),
        ("mean", Pooling::Mean),
        ("max", Pooling::Max),
        ("attention", Pooling::Attention),
    ] {
        let encoder = read_encoder(&folder.join("bert"), &device).unwrap().encoder;
        let config = TextHeadsConfig { labels: 3, pooling, dropout: 0.1, span: true };
        let mut model = config.init(encoder, Stream::new(1, "heads"), &device).unwrap();
        let mut parameters = read_parameters(&model);
        for own in parameters.iter_mut().filter(|own| !own.name.starts_with("encoder.")) {
            own.values = floats(&file, &format!("param.{}", own.name));
        }
        write_parameters(&mut model, parameters).unwrap();
        let model = model.train();
        let labels = model.forward(tokens.clone(), Some(&lengths), None).labels;
        let labels: Vec<f32> = labels.into_data().iter::<f32>().collect();
        check(name, &labels, &floats(&file, &format!("{name}.labels")));
        let settings = TextLoss {
            criteria_weight: 1.0,
            span_weight: 0.5,
            positive_weights: Some(&[1.0, 2.0, 0.5]),
        };
        let targets = TextTargets { labels: &truth, spans: &spans };
        let loss = model.loss(tokens.clone(), Some(&lengths), targets, settings, None).unwrap();
        assert_eq!((loss.weight, loss.parts.len()), (4.0, 2));
        let value: Vec<f32> = loss.value.clone().into_data().iter::<f32>().collect();
        check(&format!("{name} loss"), &value, &floats(&file, &format!("{name}.loss")));
        let (gradients, mut found) = (loss.value.backward(), BTreeMap::new());
        model.visit(&mut Gradient(Place::default(), &gradients, &mut found));
        let prefix = format!("{name}.grad.");
        let expected = file.names().into_iter().filter_map(|n| n.strip_prefix(&prefix));
        let mut compared = 0;
        for parameter in expected {
            let expected = floats(&file, &format!("{prefix}{parameter}"));
            check(&format!("{prefix}{parameter}"), &found[parameter], &expected);
            compared += 1;
        }
        assert_eq!(compared, if pooling == Pooling::Attention { 5 } else { 4 });
        let wrong = TextTargets { labels: &truth[..9], spans: &spans };
        let error =
            model.loss(tokens.clone(), None, wrong, settings, None).unwrap_err().to_string();
        assert!(error.contains("12 labels and 4 spans"), "{error}");
    }
}
