//! The pipeline `text` as a user runs it: from scratch, on a given encoder, in every precision, and
//! on bad input.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use firebox_tests::{compared_with_its_copy, errors, firebox, python, root, scored_again};
use serde_json::Value;
use tempfile::TempDir;

const PIPELINE: &str = r#"
    pipeline = "text"
    [text]
    path = "letters.csv"
    longest = 24
    [text.columns]
    span = ["from", "to"]
    group = "author"
    [text.split]
    validation = 0.2
    test = 0.25
    [text.heads]
    pooling = "max"
    [text.tokenizer]
    vocabulary = 80
    [model.bert]
    width = 8
    heads = 2
    layers = 1
    feedforward = 16
    [loader]
    batch_size = 16
    [train]
    epochs = 40
    early_stopping = false
    [train.optimizer.adamw]
    learning_rate = 0.02
    [evaluate]
    resamples = 200
"#;

/// Short letters, whose labels are words in them.
fn letters(count: usize) -> String {
    let mut csv = "text,late,lost,from,to,author\n".to_owned();
    for number in 0..count {
        let (late, lost) = (number % 3 == 0, number % 4 == 1);
        let opening = ["Hello.", "Dear team.", "Hi."][number / 2 % 3];
        let mut text = format!("{opening} Number {number} here.");
        let mut span = String::from(",");
        for (holds, words) in [(late, "It came late."), (lost, "It is gone.")] {
            if holds {
                let from = text.chars().count() + 1;
                if span == "," {
                    span = format!("{from},{}", from + words.len());
                }
                text += " ";
                text += words;
            }
        }
        let (late, lost) = (u8::from(late), u8::from(lost));
        writeln!(csv, "{text},{late},{lost},{span},a{}", number / 2).unwrap();
    }
    csv
}

fn project() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("letters.csv"), letters(160)).unwrap();
    std::fs::write(folder.path().join("text.toml"), PIPELINE).unwrap();
    folder
}

fn run(folder: &Path, more: &[&str]) -> String {
    let output = firebox(folder, &[&["run", "text.toml"], more].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}\n{}", errors(&output));
    text + &errors(&output)
}

fn scores(folder: &Path) -> (PathBuf, Value) {
    let runs: Vec<_> = std::fs::read_dir(folder.join("runs")).unwrap().flatten().collect();
    let newest = runs.iter().max_by_key(|run| run.metadata().unwrap().modified().unwrap());
    let path = newest.unwrap().path();
    let scores = std::fs::read(path.join("scores.json")).unwrap();
    (path, serde_json::from_slice(&scores).unwrap())
}

/// The value of a key, wherever it stands.
fn find<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    match value {
        Value::Object(map) => {
            map.get(key).or_else(|| map.values().find_map(|inner| find(inner, key)))
        }
        Value::Array(list) => list.iter().find_map(|inner| find(inner, key)),
        _ => None,
    }
}

#[test]
fn labels_and_evidence_are_learnt_and_results_reused() {
    let project = project();
    let folder = project.path();
    let text = run(folder, &[]);
    assert!(text.contains("report.html"), "{text}");
    let (path, scores) = scores(folder);
    let encoder = find(&scores, "encoder").unwrap();
    let f1 = encoder["macro_f1"]["value"].as_f64().unwrap();
    assert!(f1 > 0.9, "{f1}: {scores}");
    // Nothing holds in most texts, so the majority finds nothing, although most cells are right.
    assert_eq!(find(&scores, "majority").unwrap()["macro_f1"]["value"], 0.0);
    let evidence = find(&scores, "evidence").unwrap();
    assert!(evidence["token_f1"]["value"].as_f64().unwrap() > 0.9, "{evidence}");
    let page = std::fs::read_to_string(path.join("report.html")).unwrap();
    assert!(page.contains("Macro F1") && page.contains("Evidence found exactly"));
    assert!(evidence["not_judged"].as_u64().unwrap() > 0, "{evidence}");
    assert!(page.contains("have none and are not judged"), "{page}");
    assert!(path.join("model/tokenizer.json").is_file());
    assert!(page.contains("test.parquet"), "{page}");
    // Three ways of telling labels, each scored in three ways, and two scores of evidence.
    scored_again(&path, "11 scores of ");
    assert!(compared_with_its_copy(folder, &path).contains(" macro F1</td>"));
    let again = run(folder, &["--set", "evaluate.resamples=300"]);
    for stage in ["tokenise", "train"] {
        let line = again.lines().find(|line| line.starts_with(&format!("{stage} ")));
        let line = line.unwrap_or_default();
        assert!(line.contains("reused"), "{again}");
    }
    the_model_reads_new_texts(folder, &path);
    let list = firebox(folder, &["cache", "list"]);
    assert!(String::from_utf8_lossy(&list.stdout).contains("tokens-v1"));
    let verified = firebox(folder, &["cache", "verify"]);
    assert_eq!(verified.status.code(), Some(0), "{}", errors(&verified));
    assert!(String::from_utf8_lossy(&verified.stdout).ends_with(" damaged\n"));
    // As whoever removes them holds them.
    let mut stored = std::fs::read_dir(folder.join("cache/tokens-v1")).unwrap().flatten();
    let key = stored.find(|entry| entry.path().join("manifest.json").is_file()).unwrap();
    let lock = folder.join("cache/locks/tokens-v1").join(key.file_name());
    let lock = std::fs::File::options().append(true).open(lock.with_extension("use")).unwrap();
    lock.lock().unwrap();
    let verified = firebox(folder, &["cache", "verify"]);
    let said = String::from_utf8_lossy(&verified.stdout).into_owned();
    assert_eq!(verified.status.code(), Some(0), "{said}{}", errors(&verified));
    assert!(said.contains("  in use by another process: not looked at\n"), "{said}");
    assert!(said.ends_with(" 0 damaged, 1 not looked at\n"), "{said}");
}

/// The model that a run leaves tells labels and evidence of other tables, in PyTorch alike.
fn the_model_reads_new_texts(folder: &Path, path: &Path) {
    let done = |arguments: &[&str]| {
        let output = firebox(folder, arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", errors(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let run = path.display().to_string();
    // No column but the texts, under another name.
    let bodies: Vec<String> =
        letters(60).lines().map(|line| line.split(',').next().unwrap().to_owned()).collect();
    std::fs::write(folder.join("new.csv"), bodies.join("\n").replacen("text", "body", 1)).unwrap();
    let column = ["--set", "text.columns.text=body"];
    let predict = ["predict", &run, "new.csv", "--output", "labels.parquet"];
    let said = done(&[&predict[..], &column].concat());
    assert!(said.contains("60 texts in 1 file: predictions of 2 labels"), "{said}");
    // Nobody wrote so in the training texts.
    std::fs::write(
        folder.join("other.csv"),
        "text\n".to_owned() + &"Посылка не пришла.\n".repeat(9),
    )
    .unwrap();
    for (table, column, told) in [("other.csv", "text", true), ("new.csv", "body", false)] {
        let column = format!("text.columns.text={column}");
        let predict = ["predict", &run, table, "--output", "told.parquet", "--force"];
        let output = firebox(folder, &[&predict[..], &["--set", &column]].concat());
        let said = errors(&output);
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert_eq!(
            said.contains("75 % of the tokens of the new texts are unknown"),
            told,
            "{said}"
        );
        assert_eq!(said.contains("the model's vocabulary"), told, "{said}");
    }
    // Texts of nothing have no row, and the others those that they had.
    let gaps = "body,place\n,1\nthe parcel came late,2\n\"  \",3\n\u{200b},4\nall is well,5\n";
    std::fs::write(folder.join("gaps.csv"), gaps).unwrap();
    let predict_gaps = ["predict", &run, "gaps.csv", "--output", "gaps.parquet"];
    let output = firebox(folder, &[&predict_gaps[..], &column].concat());
    let said = errors(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let expected = "3 of 5 texts are empty, or nothing of them has a token, and they have no rows in the result: row 1 of gaps.csv, row 3 of gaps.csv, row 4 of gaps.csv";
    assert!(said.contains(expected), "{said}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("2 texts in 1 file: predictions of 2 labels"), "{said}");
    let refused = |arguments: &[&str], expected: &str| {
        let output = firebox(folder, arguments);
        assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
        assert!(errors(&output).contains(expected), "{}", errors(&output));
    };
    refused(&[&predict[..], &["--force"]].concat(), "there is no column `text`");
    std::fs::write(folder.join("empty.csv"), "body,place\n,1\n,2\n").unwrap();
    let nothing = ["predict", &run, "empty.csv", "--output", "none.parquet"];
    refused(&[&nothing[..], &column].concat(), "each of 2 texts is empty");
    assert!(!folder.join("none.parquet").exists());
    refused(&[&predict[..], &["--force", "--stride", "2"]].concat(), "leave --stride out");
    refused(
        &[&predict[..], &["--force", "--set", "train.epochs=2"]].concat(),
        "only the column of new texts can be set",
    );
    let embed = ["embed", &run, "new.csv", "--output", "vectors.parquet", "--batch", "7"];
    let said = done(&[&embed[..], &column].concat());
    assert!(said.contains("vectors of 8"), "{said}");
    done(&["export", &run, "--format", "torch", "--output", "model"]);
    done(&["export", &run, "--format", "onnx", "--output", "model.onnx"]);
    assert!(folder.join("model.onnx.tokenizer.json").is_file());
    let needed = "numpy, onnxruntime, polars, safetensors, tokenizers, torch";
    let Some(python) = python(needed) else { return };
    let script = root().join("tests/labelled.py");
    let output = std::process::Command::new(python).arg(script).arg(folder).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", errors(&output));
    assert!(said.contains("60 texts agree"), "{said}");
}

/// Wherever the tokens lie, the same is learnt; texts of one length make more batches, with less padding.
#[test]
fn tokens_lie_in_memory_and_come_by_length() {
    let learnt = |more: &[&str]| {
        let project = project();
        let said = run(project.path(), &[&["--set", "train.epochs=3"], more].concat());
        let (path, scores) = scores(project.path());
        let resolved = std::fs::read_to_string(path.join("pipeline.toml")).unwrap();
        let training = std::fs::read(path.join("training.json")).unwrap();
        let training: Value = serde_json::from_slice(&training).unwrap();
        let steps = find(&training, "steps").unwrap().as_u64().unwrap();
        let encoder = find(&scores, "encoder").unwrap();
        (steps, find(&training, "loss").unwrap().clone(), encoder.clone(), resolved, said)
    };
    let streamed = learnt(&[]);
    assert!(streamed.3.contains("samples are written into each batch"), "{}", streamed.3);
    let held = learnt(&["--set", "loader.resident=memory"]);
    assert!(held.3.contains("fit") || held.3.contains("asked for"), "{}", held.3);
    assert_eq!((held.0, held.1, held.2), (streamed.0, streamed.1, streamed.2));
    let by_length = learnt(&["--set", "loader.buckets=4"]);
    assert!(by_length.0 > streamed.0, "{} steps, {}", by_length.0, streamed.0);
    let few = learnt(&["--set", "loader.buckets=4", "--set", "loader.tokens=48"]);
    assert!(few.0 > by_length.0, "{} steps, {}", few.0, by_length.0);
}

#[test]
fn every_precision_is_what_was_asked_for() {
    let project = project();
    let folder = project.path();
    let mut losses = vec![];
    for precision in ["f32", "bf16", "f16"] {
        let set = format!("run.precision={precision}");
        run(folder, &["--set", &set, "--set", "train.epochs=2"]);
        let (path, _) = scores(folder);
        let resolved = std::fs::read_to_string(path.join("pipeline.toml")).unwrap();
        assert!(resolved.contains(&format!("precision = \"{precision}\"")), "{resolved}");
        let history = std::fs::read_to_string(path.join("history.jsonl")).unwrap();
        let loss = history.lines().find_map(|line| {
            serde_json::from_str::<Value>(line).unwrap().get("step")?["loss"].as_f64()
        });
        losses.push(loss.unwrap());
    }
    let [f32, bf16, f16] = losses[..] else { unreachable!("three precisions") };
    assert!(f32 != bf16 && f32 != f16 && bf16 != f16, "{losses:?}");
    assert!((f32 - bf16).abs() < 0.02 && (f32 - f16).abs() < 0.005, "{losses:?}");
}

#[test]
fn a_given_encoder_is_trained_with_layers_and_accumulation() {
    let project = project();
    let folder = project.path();
    encoder(folder, |_| ());
    let pipeline = on_an_encoder();
    let layers = r#"
        [train.layer_decay]
        factor = 0.8
        layers = ["encoder.tokens.*", "encoder.layers.{}.*", "criteria.*"]
    "#;
    std::fs::write(folder.join("text.toml"), pipeline + layers).unwrap();
    let text = run(folder, &["--set", "train.accumulate=2", "--set", "train.epochs=2"]);
    assert!(text.contains("all 37 weights matched"), "{text}");
    let refused = |set: &str| {
        let output = firebox(folder, &["run", "text.toml", "--set", set]);
        assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
        errors(&output)
    };
    assert!(refused("text.longest=13").contains("the encoder has 12 positions"));
    assert!(refused("text.encoder.folder=nowhere").contains("nowhere"));
    assert!(refused("model.bert.width=8").contains("[model.bert] is set beside"));
    assert!(refused("train.layer_decay.factor=2").contains("factor"));
    let _ = self::encoder(folder, |tokenizer| {
        tokenizer["model"]["vocab"]["more"] = Value::from(60);
    });
    assert!(refused("run.seed=2").contains("61 tokens, and the model has vectors for 60"));
    let _ = self::encoder(folder, |tokenizer| tokenizer["post_processor"] = Value::Null);
    assert!(refused("run.seed=2").contains("adds no token before or after a text"));
    let encoder = self::encoder(folder, |_| ());
    std::fs::remove_file(encoder.join("model.safetensors")).unwrap();
    std::fs::write(encoder.join("pytorch_model.bin"), b"").unwrap();
    assert!(refused("run.seed=2").contains("safe_serialization=True"));
}

/// A search may choose among encoders beside its file, wherever its workers are begun.
#[test]
fn a_search_chooses_among_encoders_beside_its_file() {
    let project = project();
    let folder = project.path();
    encoder(folder, |_| ());
    std::fs::rename(folder.join("encoder"), folder.join("another")).unwrap();
    encoder(folder, |_| ());
    let search = r#"
    [search]
    trials = 1
    sampler = "grid"
    pruner = "none"
    [search.space]
    "text.encoder.folder" = { choices = ["another", "encoder"] }
"#;
    let file = folder.join("text.toml");
    std::fs::write(&file, on_an_encoder() + search).unwrap();
    let outside = tempfile::tempdir().unwrap();
    let runs = format!("run.directory={}", outside.path().join("runs").display());
    let file = ["search", file.to_str().unwrap(), "--set", "train.epochs=1", "--set", &runs];
    let check = |folder: &Path, command: &[&str], complete: &str| {
        let output = firebox(folder, command);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(0), "{said}{}", errors(&output));
        assert!(said.contains(complete), "{said}");
    };
    check(outside.path(), &file, "1 complete, 0 given up early, 0 failed");
    let journal = outside.path().join("runs/text.search/study.log");
    let elsewhere = tempfile::tempdir().unwrap();
    let join = ["search", "--join", journal.to_str().unwrap(), "--set", "search.trials=2"];
    check(elsewhere.path(), &join, "2 complete, 0 given up early, 0 failed");
    check(folder, &file, "2 complete, 0 given up early, 0 failed");
    let best = std::fs::read_to_string(outside.path().join("runs/text.search/best.toml")).unwrap();
    let chosen =
        |name: &str| best.contains(&format!("folder = \"{}\"", folder.join(name).display()));
    assert!(chosen("another") || chosen("encoder"), "{best}");
}

/// The pipeline on the encoder that lies beside its file.
fn on_an_encoder() -> String {
    let without_model = PIPELINE.replace("[model.bert]", "[unused]");
    let (before, after) = without_model.split_once("[unused]").unwrap();
    let (_, after) = after.split_once("[loader]").unwrap();
    let pipeline = format!("{before}[loader]{after}").replace("[text.tokenizer]", "[text.encoder]");
    let pipeline = pipeline.replace("vocabulary = 80", "folder = \"encoder\"");
    pipeline.replace("longest = 24", "longest = 12")
}

/// The tiny BERT of firebox-text's tests, with a tokenizer of its size.
fn encoder(folder: &Path, change: impl Fn(&mut Value)) -> PathBuf {
    let golden = root().join("crates/firebox-text/tests/golden");
    let encoder = folder.join("encoder");
    std::fs::create_dir_all(&encoder).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(golden.join("bert").join(file), encoder.join(file)).unwrap();
    }
    let text = std::fs::read(golden.join("tokenizers/wordpiece.json")).unwrap();
    let mut tokenizer: Value = serde_json::from_slice(&text).unwrap();
    let vocabulary = tokenizer["model"]["vocab"].as_object_mut().unwrap();
    vocabulary.retain(|_, id| id.as_u64().unwrap() < 60);
    change(&mut tokenizer);
    std::fs::write(encoder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    encoder
}

#[test]
fn bad_input_is_named() {
    let project = project();
    let folder = project.path();
    let csv = letters(160);
    let refused = |more: &[&str]| {
        let output = firebox(folder, &[&["run", "text.toml"], more].concat());
        assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
        errors(&output)
    };
    let check = |csv: &str, more: &[&str], expected: &str| {
        std::fs::write(folder.join("letters.csv"), csv).unwrap();
        let said = refused(more);
        assert!(said.contains(expected), "{said}");
    };
    check(&csv.replace("here.,0,0", "here.,0,3"), &[], "the label `lost` is `3` in row");
    check(
        &csv.replacen(",22,35,", ",22,99,", 1),
        &[],
        "from character 22 to 99, and its text has 35",
    );
    std::fs::write(folder.join("letters.csv"), &csv).unwrap();
    let test = csv.replace("text,late,lost", "text,late,gone");
    std::fs::write(folder.join("test.csv"), test).unwrap();
    let said = refused(&["--set", "text.test=test.csv"]);
    assert!(said.contains("has the labels `lost`, which") && said.contains("lacks"), "{said}");
    let wordy = |set: &str, expected: &str| {
        let said = refused(&["--set", set]);
        assert!(said.contains(expected), "{set}: {said}");
    };
    wordy("text.longest=2", "`text.longest` is 2; it must be at least 4");
    wordy("text.split.test=0.9", "so small that texts are left");
    wordy("text.columns.text=body", "there is no column `body`");
    wordy("text.heads.pooling=median", "median");
    wordy("data.path=a.csv", "[data] is set, and the pipeline `text` does not use it");
    wordy("evaluate.seeds=9", "reads seed, confidence, resamples and batch_size");
    wordy("model.bert.heads=3", "a multiple of the heads");
    wordy("text.encoder.folder=nowhere", "`text.tokenizer` is set beside encoder.folder");
    wordy("text.path=nowhere.csv", "there is no file");
}

/// A search may choose by the macro F1 of validation texts.
#[test]
fn a_search_by_f1_looks_for_the_greatest() {
    let folder = project();
    let search = r#"
    [search]
    trials = 2
    sampler = "grid"
    pruner = "none"
    objective = "validation-f1"
    [search.space]
    "train.optimizer.adamw.learning_rate" = { choices = [1e-6, 2e-2] }
"#;
    std::fs::write(folder.path().join("text.toml"), format!("{PIPELINE}{search}")).unwrap();
    let output = firebox(folder.path(), &["search", "text.toml", "--set", "train.epochs=12"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{said}{}", errors(&output));
    let journal =
        std::fs::read_to_string(folder.path().join("runs/text.search/study.log")).unwrap();
    let entries: Vec<Value> =
        journal.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(entries[0]["directions"], serde_json::json!([2]));
    let of = |code: u64| entries.iter().filter(move |entry| entry["op_code"] == code);
    let ended = of(6).filter(|entry| entry["state"] == 1);
    let mut values: Vec<f64> = ended.map(|entry| entry["values"][0].as_f64().unwrap()).collect();
    values.sort_by(f64::total_cmp);
    // The words tell the labels: who learns, finds them.
    assert!(values.len() == 2 && values[0] < values[1] - 0.1 && values[1] <= 1.0, "{values:?}");
    assert_eq!(of(7).count(), 24, "a report for each epoch");
    assert!(said.contains(&format!("with a validation macro F1 of {:.5}", values[1])), "{said}");
}
