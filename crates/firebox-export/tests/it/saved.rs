//! Models stored and read back: nothing is lost, and what is damaged is refused.

use crate::zoo::{channels, saved, zoo};
use burn::tensor::{Device, Tensor};
use firebox_core::Precision;
use firebox_export::{
    CARD, ExportError, ModelCard, SavedModel, WEIGHTS, parameters_from_safetensors, write_together,
};

#[test]
fn a_stored_model_comes_back_as_it_was() {
    for (name, architecture) in zoo() {
        let folder = tempfile::tempdir().unwrap();
        let model = saved(&architecture, 5);
        model.write(folder.path()).unwrap();
        // Writing again replaces it.
        model.write(folder.path()).unwrap();
        let mut again = SavedModel::read(folder.path()).unwrap();
        assert_eq!(again.card.weights.len(), 64);
        assert_eq!(again.card.checksum.len(), 64);
        again.card.weights.clear();
        again.card.checksum.clear();
        let mut parameters = model.parameters.clone();
        parameters.sort_by(|a, b| a.name.cmp(&b.name));
        assert_eq!((&again.card, &again.parameters), (&model.card, &parameters), "{name}");
        let left = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 2, "{name}: no temporary file is left");
    }
}

#[test]
fn a_built_model_computes_what_it_computed() {
    for (name, architecture) in zoo() {
        let model = saved(&architecture, 6);
        let built = model.build(&Device::default()).unwrap();
        let read: usize = model.parameters.iter().map(|one| one.values.len()).sum();
        assert_eq!(built.size(), read, "{name}");
        let shape = [2, 12, channels(&architecture)];
        let windows = Tensor::<3>::ones(shape, &Device::default());
        let embedded = built.embed(windows.clone(), &[12, 7]).map(|e| e.dims());
        assert_eq!(embedded, built.embedding_width().map(|width| [2, width]), "{name}");
        let logits = built.logits(windows, &[12, 12]).map(|logits| logits.dims());
        // A text model has labels, and not of windows.
        let of_texts = name == "bert" || name.starts_with("text-");
        let classes = architecture.classes().filter(|_| !of_texts);
        assert_eq!(logits, classes.map(|classes| [2, classes]), "{name}");
    }
}

#[test]
fn a_model_computes_in_its_precision_below_its_head_too() {
    let mut classifiers = 0;
    for (name, architecture) in zoo() {
        let device = Device::default();
        let model = || saved(&architecture, 6).build(&device).unwrap();
        let shape = [3, 12, channels(&architecture)];
        let windows = || {
            let numbers: Vec<f32> =
                (0..shape.iter().product()).map(|at: usize| (at as f32 * 0.7).sin()).collect();
            Tensor::<3>::from_data(burn::tensor::TensorData::new(numbers, shape), &device)
        };
        let embedded = |precision| {
            let vectors = model().in_precision(precision).embed(windows(), &[12, 12, 7])?;
            Some(vectors.into_data().try_to_vec::<f32>().unwrap())
        };
        let [single, brain] = [Precision::F32, Precision::Bf16].map(embedded);
        let (Some(single), Some(brain)) = (single, brain) else { continue };
        classifiers += usize::from(name.contains("classifier"));
        assert!(brain.iter().all(|value| value.is_finite()), "{name}");
        let off = single.iter().zip(&brain).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let largest = single.iter().fold(0.0f32, |all, value| all.max(value.abs()));
        assert!(off > 0.0 && off < 0.1 * largest.max(0.1), "{name}: {off} of {largest}");
    }
    assert!(classifiers >= 6, "{classifiers}");
}

#[test]
fn what_is_damaged_missing_or_of_another_version_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let error = SavedModel::read(path).unwrap_err();
    assert!(matches!(error, ExportError::NoModel { .. }), "{error}");
    saved(&zoo()[0].1, 1).write(path).unwrap();
    let card = std::fs::read_to_string(path.join(CARD)).unwrap();
    let weights = std::fs::read(path.join(WEIGHTS)).unwrap();
    let refused = |card: &str, weights: &[u8]| {
        std::fs::write(path.join(CARD), card).unwrap();
        std::fs::write(path.join(WEIGHTS), weights).unwrap();
        SavedModel::read(path).unwrap_err().to_string()
    };
    let mut other = weights.clone();
    *other.last_mut().unwrap() ^= 1;
    let message = refused(&card, &other);
    assert!(message.contains("model.safetensors is damaged"), "{message}");
    let message = refused(&card.replacen("\"version\": 1", "\"version\": 9", 1), &weights);
    assert!(message.contains("its version is 9, and this build of Firebox reads 1"), "{message}");
    let message = refused(&card.replacen("bilstm-mae", "bilstm-map", 1), &weights);
    assert!(message.contains("unknown variant `bilstm-map`"), "{message}");
    let steps = "\"length\": 12";
    assert!(card.contains(steps), "{card}");
    let changed = card.replacen(steps, "\"length\": 11", 1);
    let message = refused(&changed, &weights);
    assert!(
        message.contains("model.json was changed: its checksum is not that of what"),
        "{message}"
    );
    assert!(message.contains("take `checksum` out of it"), "{message}");
    // As that says, and however a card is laid out.
    let mut value: serde_json::Value = serde_json::from_str(&changed).unwrap();
    value.as_object_mut().unwrap().remove("checksum").unwrap();
    std::fs::write(path.join(CARD), value.to_string()).unwrap();
    assert_eq!(SavedModel::read(path).unwrap().card.window.length, 11);
    let same: serde_json::Value = serde_json::from_str(&card).unwrap();
    std::fs::write(path.join(CARD), same.to_string()).unwrap();
    assert_eq!(SavedModel::read(path).unwrap().card.window.length, 12);
    let message = refused(&card[..100], &weights);
    assert!(message.contains("is not the card of a model"), "{message}");
}

#[test]
fn settings_of_a_far_larger_model_are_refused_before_there_is_one() {
    let mut refused = 0;
    for (name, architecture) in zoo() {
        let model = saved(&architecture, 3);
        // Those that are one model's pass.
        model.build(&Device::default()).unwrap();
        // Every number of the settings, one by one, as an edited card may have it.
        let settings = serde_json::to_value(&architecture).unwrap();
        for place in numbers(&settings) {
            let mut changed = settings.clone();
            *changed.pointer_mut(&place).unwrap() = serde_json::json!(1u64 << 40);
            let Ok(larger) = serde_json::from_value(changed) else { continue };
            let card = ModelCard { architecture: larger, ..model.card.clone() };
            let error = SavedModel { card, ..model.clone() }.build(&Device::default()).unwrap_err();
            refused += usize::from(matches!(error, ExportError::Size { .. }));
        }
        assert!(refused > 0, "{name}");
    }
    assert!(refused > 50, "{refused}");
}

/// Where whole numbers that are sizes of the model stand.
fn numbers(value: &serde_json::Value) -> Vec<String> {
    let of = |(key, value): (String, &serde_json::Value)| -> Vec<String> {
        let sizes = ["hidden", "width", "channels", "decoder_hidden", "feedforward", "output"];
        match value.is_u64() && sizes.contains(&key.as_str()) {
            true => vec![format!("/{key}")],
            false => numbers(value).into_iter().map(|rest| format!("/{key}{rest}")).collect(),
        }
    };
    match value {
        serde_json::Value::Object(table) => {
            table.iter().flat_map(|(key, value)| of((key.clone(), value))).collect()
        }
        serde_json::Value::Array(all) => (0..)
            .map(|at: usize| at.to_string())
            .zip(all)
            .flat_map(|(key, value)| of((key, value)))
            .collect(),
        _ => vec![],
    }
}

#[test]
fn the_page_for_people_names_what_matters() {
    let mut model = saved(&zoo()[2].1, 1);
    model.card.scores.extend([("small".to_owned(), 6.56e-7), ("large".to_owned(), 661_965_934.9)]);
    let page = model.card.markdown("Load it so.");
    for part in [
        "# sample-1\n\nLoad it so.\n",
        "| Model | `cnn-bilstm` |",
        "| Training | 12 steps in 3 epochs \\| a line |",
        "| Channels, in order | `channel 0`, `channel 1`, `channel 2` |",
        "| Windows | 12 steps of 60 s, one every 3 steps |",
        "| Classes, in the order of the logits | `class 0`, `class 1`, `class 2`, `class 3` |",
        "| accuracy | 0.7500 |",
        "| small | 6.560e-7 |",
        "| large | 6.620e8 |",
        "\"epochs\": 3",
    ] {
        assert!(page.contains(part), "{part}\n{page}");
    }
    let said = |card: &ModelCard, key: &str| {
        let entries = card.metadata().into_iter();
        let mut own = entries.filter(|(name, _)| name.strip_prefix("firebox.") == Some(key));
        own.next().map(|(_, text)| text)
    };
    assert_eq!(said(&model.card, "interval").as_deref(), Some("60000000"));
    assert_eq!(said(&model.card, "timeframes"), None);
    assert_eq!(said(&model.card, "source_interval"), None);
    assert!(!page.contains("## Features of timeframes"), "{page}");
    // What the model sees are bars of a longer frame than the files have.
    let frames = serde_json::json!({ "base": "15min", "higher": ["1h"], "stamp": "close" });
    model.card.data["timeframes"] = frames.clone();
    model.card.window.stride = 1;
    let page = model.card.markdown("");
    assert!(page.contains("| Windows | 12 steps of 15min, one every step |"), "{page}");
    assert!(page.contains("The channels are made of bars of 60 s, as "), "{page}");
    assert!(page.contains("\"stamp\": \"close\""), "{page}");
    // 15 · 60 · 10⁶ microseconds.
    assert_eq!(said(&model.card, "interval").as_deref(), Some("900000000"));
    assert_eq!(said(&model.card, "source_interval").as_deref(), Some("60000000"));
    let told = said(&model.card, "timeframes").unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&told).unwrap(), frames);
    let file = model.safetensors().unwrap();
    assert_eq!(
        parameters_from_safetensors(&file, "x".as_ref()).unwrap().len(),
        model.parameters.len()
    );
}

#[test]
fn files_are_written_together_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let of = |name: &str| folder.path().join(name);
    let names = || {
        let entries = std::fs::read_dir(folder.path()).unwrap().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let (card, model) = (b"card".as_slice(), b"model".as_slice());
    // A disk that takes the one file and not the other, such as a full one.
    let files = [(of("a.onnx.md"), card), (of("no folder").join("a.onnx"), model)];
    let error = write_together(&files).unwrap_err().to_string();
    assert!(error.contains("a.onnx") && !error.contains(".md"), "{error}");
    assert!(names().is_empty(), "{:?}", names());
    std::fs::write(of("a.onnx"), "earlier").unwrap();
    write_together(&[(of("a.onnx.md"), card), (of("a.onnx"), model)]).unwrap();
    assert_eq!(names(), ["a.onnx", "a.onnx.md"]);
    assert_eq!(std::fs::read(of("a.onnx")).unwrap(), model);
    // Nor is anything changed where the last one cannot take its place.
    std::fs::create_dir_all(of("b.onnx").join("in the way")).unwrap();
    std::fs::write(of("b.onnx.md"), "earlier").unwrap();
    let all = names();
    let files = [(of("b.onnx.json"), card), (of("b.onnx.md"), card), (of("b.onnx"), model)];
    assert!(write_together(&files).is_err());
    assert_eq!(names(), all);
    assert_eq!(std::fs::read(of("b.onnx.md")).unwrap(), b"earlier");
}
