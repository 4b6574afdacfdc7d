//! Every family's hidden states beside those of `transformers`, on tiny models that `golden.py` wrote;
//! and folders that are wrong.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test says why it fails by panicking"
)]

use std::path::{Path, PathBuf};
use std::process::Command;

use burn::tensor::{Device, Int, Tensor, TensorData};
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
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden"))
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
    let hidden = loaded.encoder.encode(tokens, Some(&lengths), None);
    let [_, _, width] = hidden.dims();
    let found: Vec<f32> = hidden.into_data().iter::<f32>().collect();
    let expected = file.tensor("hidden").unwrap().data().to_vec();
    let expected = expected.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    let expected: Vec<f32> = expected.collect();
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

#[test]
fn hidden_states_are_those_of_transformers() {
    for (name, family) in FAMILIES {
        check_family(&golden().join(name), family);
    }
}

/// With `FIREBOX_TEST_PYTHON`, a Python with torch, transformers and tokenizers, the golden files are
/// made anew, by whatever versions it has, and compared.
#[test]
fn hidden_states_are_those_of_the_installed_transformers() {
    let python = std::env::var_os("FIREBOX_TEST_PYTHON").unwrap_or_else(|| "python3".into());
    let has = Command::new(&python).args(["-c", "import torch, transformers, tokenizers"]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        println!(
            "skipped: no Python with torch, transformers and tokenizers from PyPI; set \
             FIREBOX_TEST_PYTHON to one"
        );
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden.py");
    let output = Command::new(&python).arg(script).arg(folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for (name, family) in FAMILIES {
        check_family(&folder.path().join(name), family);
    }
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
    check("bert", &["holds `pytorch_model.bin`", "safe_serialization=True"], &|folder| {
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
