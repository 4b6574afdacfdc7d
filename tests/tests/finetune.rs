//! Fine-tuning and the archive protocol as a user runs them: from one file or folder to a report, once,
//! and what a user sees who brings the wrong weights or labels.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use firebox_tests::{
    compared_with_its_copy, errors, firebox, kept_and_computed_again, scored_again,
    streamed_and_on_device,
};
use serde_json::Value;

/// Samples of two classes that differ in how fast they swing, as a `.ts` file.
fn samples(path: &Path, classes: &str, counts: &[(&str, usize)]) {
    let mut text = format!(
        "@problemName t\n@timeStamps false\n@univariate true\n@equalLength true\n@seriesLength 24\n@classLabel true {classes}\n@data\n"
    );
    // No sample of a test file is one of a training file.
    let mut number = match path.file_name().and_then(|name| name.to_str()) {
        Some("A_TEST.ts") => 1000,
        Some("B.ts") => 2000,
        _ => 0,
    };
    for (class, count) in counts {
        for _ in 0..*count {
            number += 1;
            let rate = if *class == "slow" { 0.3 } else { 0.9 };
            let noise = |step: usize| ((number * 31 + step * 17) % 13) as f64 / 26.0;
            let value = |step: usize| (rate * step as f64 + number as f64).sin() + noise(step);
            let values: Vec<String> = (0..24).map(|step| format!("{:.4}", value(step))).collect();
            writeln!(text, "{}:{class}", values.join(",")).unwrap();
        }
    }
    std::fs::write(path, text).unwrap();
}

const PIPELINE: &str = r#"
    pipeline = "finetune"
    labels = "last"
    [data]
    path = "A_TRAIN.ts"
    test = "A_TEST.ts"
    [window]
    length = 24
    whole = true
    normalise = "standard"
    [split.given]
    validation = 0.2
    [augment]
    versions = 0
    [loader]
    batch_size = 16
    [model.bilstm-mae]
    hidden = 6
    layers = 1
    decoder_hidden = 6
    [train]
    epochs = 2
    [finetune]
    shares = [0.25, 1.0]
    seeds = 2
    epochs = 4
    frozen_epochs = 1
    learning_rate = 0.01
    batch_size = 16
    [finetune.head]
    hidden = 8
    [evaluate]
    resamples = 200
"#;

/// A folder with a training file, a test file and the pipeline.
fn project() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    samples(&folder.path().join("A_TRAIN.ts"), "slow fast", &[("slow", 30), ("fast", 30)]);
    samples(&folder.path().join("A_TEST.ts"), "slow fast", &[("slow", 20), ("fast", 20)]);
    std::fs::write(folder.path().join("p.toml"), PIPELINE).unwrap();
    folder
}

fn run(folder: &Path, arguments: &[&str]) -> String {
    let output = firebox(folder, &[&["run", "p.toml"], arguments].concat());
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    String::from_utf8_lossy(&output.stdout).into_owned() + &errors(&output)
}

fn refused(folder: &Path, arguments: &[&str]) -> String {
    let output = firebox(folder, &[&["run", "p.toml"], arguments].concat());
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
    errors(&output)
}

/// The weights of a checkpoint of a run, which say nothing of where they are from.
fn read_checkpoint(run: &Path) -> Vec<u8> {
    let mut steps = std::fs::read_dir(run.join("checkpoints")).unwrap().flatten();
    steps.find_map(|step| std::fs::read(step.path().join("weights.safetensors")).ok()).unwrap()
}

fn runs(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder.join("runs")).unwrap().flatten();
    entries.map(|entry| entry.path()).collect()
}

#[test]
fn one_file_leads_from_samples_to_a_comparison_of_arms() {
    let project = project();
    let folder = project.path();
    let text = run(folder, &[]);
    assert!(text.contains("16 classifiers trained"), "{text}");
    assert!(text.contains("10 of 10 parameters match"), "{text}");
    let [own] = &runs(folder)[..] else { panic!("one run") };
    let page = std::fs::read_to_string(own.join("report.html")).unwrap();
    for part in
        ["Test accuracy by share of the labels", "Confusion", "from scratch", "majority class"]
    {
        assert!(page.contains(part), "{part}");
    }
    let scores = std::fs::read_to_string(own.join("scores.json")).unwrap();
    let scores: Value = serde_json::from_str(&scores).unwrap();
    let sentence = scores["verdict"]["sentence"].as_str().unwrap();
    assert!(sentence.contains("with 25.0 % of the labels"), "{sentence}");
    assert!(own.join("parts/share-0.25/fine-tuned/seed-1337/training.json").is_file());
    assert!(page.contains("test.parquet"), "{page}");
    scored_again(own, "18 scores of 40 rows");

    let again = run(folder, &[]);
    assert!(again.contains("nothing to do"), "{again}");
    // Steps and losses in its own log are those of the pre-training.
    let page = compared_with_its_copy(folder, own);
    for part in [
        " in the pre-training, ",
        " in 16 other trainings",
        ">pre-training, epoch ",
        "accuracy with 100 % of the labels",
    ] {
        assert!(page.contains(part), "{part}");
    }

    // A killed run has all but the last of its trainings: the others are read back.
    std::fs::remove_file(own.join("manifest.json")).unwrap();
    let last = own.join("parts/share-1/random-frozen/seed-1338");
    let weights = |folder: &Path| {
        let one = folder.join("parts/share-1/random-frozen/seed-1338/training.json");
        let summary: Value = serde_json::from_slice(&std::fs::read(one).unwrap()).unwrap();
        summary["best"].clone()
    };
    let before = weights(own);
    std::fs::remove_dir_all(&last).unwrap();
    run(folder, &[]);
    assert_eq!(weights(own), before);
    let repeated = std::fs::read_to_string(own.join("scores.json")).unwrap();
    let repeated: Value = serde_json::from_str(&repeated).unwrap();
    assert_eq!(repeated["verdict"], scores["verdict"]);

    // Without its checkpoint, the encoder is pre-trained again, and the classifiers are read back.
    std::fs::remove_dir_all(own.join("checkpoints")).unwrap();
    let again = run(folder, &["--set", "evaluate.resamples=300"]);
    assert!(again.contains("is not there any more") && again.contains("trained again"), "{again}");
    assert_eq!(weights(own), before);
    assert!(own.join("checkpoints").is_dir() && own.join("manifest.json").is_file());
}

/// A training that leaves the range of its numbers names the keys that arms read.
#[test]
fn numbers_out_of_range_name_the_keys_of_the_arms() {
    let project = project();
    let folder = project.path();
    let settings = [
        "finetune.shares=[1.0]",
        "finetune.seeds=1",
        "finetune.learning_rate=1e38",
        "train.non_finite=skip",
    ];
    let settings = settings.iter().flat_map(|setting| ["--set", setting]);
    let arguments: Vec<&str> = ["run", "p.toml"].into_iter().chain(settings).collect();
    let output = firebox(folder, &arguments);
    assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
    let said = errors(&output);
    assert!(said.contains("; lower `finetune.learning_rate`"), "{said}");
    assert!(said.contains("share-1/") && !said.contains("train.non_finite"), "{said}");
}

/// A classifier that is kept before its encoder was trained is told of by its seed; a rate below the usual minimum of a
/// cosine needs no other one.
#[test]
fn a_fine_tuned_encoder_that_is_the_frozen_one_is_told_of() {
    let project = project();
    let folder = project.path();
    let settings = [
        "finetune.shares=[1.0]",
        "finetune.seeds=1",
        "finetune.arms=[\"fine-tuned\"]",
        "finetune.frozen_epochs=3",
        "finetune.patience=1",
        "finetune.learning_rate=1e-9",
    ];
    let settings: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let text = run(folder, &settings);
    assert!(text.contains("`finetune.patience` is 1, and `finetune.frozen_epochs` 3"), "{text}");
    let of_one = "share-1/fine-tuned/seed-1337: the weights that are kept are of epoch ";
    assert!(text.contains(of_one), "{text}");
    assert!(text.contains("`encoder.*` is trained from epoch 4 on"), "{text}");
    assert!(!text.contains("cosine.minimum"), "{text}");
    let [own] = &runs(folder)[..] else { panic!("one run") };
    let scores = std::fs::read_to_string(own.join("scores.json")).unwrap();
    let scores: Value = serde_json::from_str(&scores).unwrap();
    let told = scores["warnings"].to_string();
    assert!(told.contains("is the frozen one in 1 of 1 training (seed 1337)"), "{told}");
}

/// Hidden steps and channels change what is learnt, and whoever hides none has the run of before.
#[test]
fn steps_and_channels_can_be_hidden() {
    let project = project();
    let folder = project.path();
    let short = ["--set", "finetune.shares=[1.0]", "--set", "finetune.seeds=1"];
    let loss = || {
        let [own] = &runs(folder)[..] else { panic!("one run") };
        let training = own.join("parts/share-1/fine-tuned/seed-1337/training.json");
        let summary: Value = serde_json::from_slice(&std::fs::read(training).unwrap()).unwrap();
        summary["best"]["loss"].as_f64().unwrap()
    };
    run(folder, &short);
    let plain = loss();
    let nothing = run(folder, &[&short[..], &["--set", "finetune.masking.longest=0.5"]].concat());
    assert!(nothing.contains("nothing to do"), "no mask of any length: {nothing}");
    std::fs::remove_dir_all(folder.join("runs")).unwrap();
    let masks = ["finetune.masking.time_masks=2", "finetune.masking.longest=0.5"];
    let masks = ["--set", masks[0], "--set", masks[1]];
    run(folder, &[&short[..], &masks].concat());
    assert_ne!(loss(), plain);
    let said = refused(folder, &["--set", "finetune.masking.longest=1.5"]);
    assert!(said.contains("`finetune.masking.longest` is 1.5; it must be from 0 to 1"), "{said}");
    let said = refused(folder, &["--set", "finetune.masking.time_masks=2"]);
    assert!(said.contains("`finetune.masking.longest` is 0 beside time_masks = 2"), "{said}");
}

/// The gradients of every arm are scaled as those of pre-training are, and as the settings have it.
#[test]
fn every_arm_has_the_loss_scale_of_its_precision() {
    let project = project();
    let folder = project.path();
    let scale = |more: &[&str]| {
        let short = ["--set", "finetune.shares=[1.0]", "--set", "finetune.seeds=1"];
        let _ = std::fs::remove_dir_all(folder.join("runs"));
        run(folder, &[&short[..], more].concat());
        let [own] = &runs(folder)[..] else { panic!("one run") };
        let history = own.join("parts/share-1/fine-tuned/seed-1337/history.jsonl");
        let history = std::fs::read_to_string(history).unwrap();
        let scales = history.lines().filter_map(|line| {
            serde_json::from_str::<Value>(line).unwrap()["step"]["loss_scale"].as_f64()
        });
        scales.reduce(f64::max).unwrap()
    };
    assert_eq!(scale(&[]), 1.0);
    let f16 = ["--set", "run.precision=f16"];
    assert_eq!(scale(&f16), 65_536.0);
    assert_eq!(scale(&[f16[0], f16[1], "--set", "train.loss_scale={static=256}"]), 256.0);
}

#[test]
fn weights_come_from_a_run_or_a_file_and_wrong_ones_are_refused() {
    let project = project();
    let folder = project.path();
    let pretrain = PIPELINE.replace("\"finetune\"", "\"pretrain\"");
    let (common, evaluate) = pretrain.split_once("[finetune]").unwrap();
    let evaluate = evaluate.split_once("[evaluate]").unwrap().1;
    let pretrain = format!("{common}[evaluate]\nseeds = 1\n{evaluate}");
    std::fs::write(folder.join("pretrain.toml"), pretrain).unwrap();
    let output = firebox(folder, &["run", "pretrain.toml"]);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let [pretrained] = &runs(folder)[..] else { panic!("one run") };
    let name = pretrained.file_name().unwrap().to_string_lossy().into_owned();

    let quick = ["--set", "finetune.shares=[1.0]", "--set", "finetune.seeds=1"];
    let encoder = format!("finetune.encoder=runs/{name}");
    let with = |more: &[&'static str]| -> Vec<String> {
        let all = quick.iter().copied().chain(["--set", encoder.as_str()]);
        all.chain(more.iter().copied()).map(str::to_owned).collect()
    };
    let arguments = with(&[]);
    let text = run(folder, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(text.contains("10 of 10 parameters match (100 % of their numbers)"), "{text}");
    assert!(text.contains("not used: `decoder.hidden.bias`"), "{text}");
    // Nothing is said of the encoder.
    assert!(!text.contains("the encoder of") && !text.contains("not checked"), "{text}");
    // By the same weights it is the same run, which can be gone on with.
    let again = run(folder, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(again.contains("nothing to do"), "{again}");
    let [tuned] = &runs(folder).into_iter().filter(|run| run != pretrained).collect::<Vec<_>>()[..]
    else {
        panic!("one run: {:?}", runs(folder))
    };
    let output = firebox(folder, &["run", "--resume", tuned.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));

    let wider = with(&["--set", "model.bilstm-mae.hidden=7"]);
    let message = refused(folder, &wider.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(message.contains("does not fit the encoder: 0 of 10 parameters match"), "{message}");
    assert!(message.contains("has shape [24] where the model has [28]"), "{message}");

    let other = with(&["--set", "window.normalise=window-standard"]);
    let message = refused(folder, &other.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(message.contains("normalised by `standard`, and this pipeline has"), "{message}");

    let set = |path: &str| format!("finetune.encoder={path}");
    let before = runs(folder);
    let swapped = ["--set", "data.path=A_TEST.ts", "--set", "data.test=A_TRAIN.ts"];
    let output = firebox(folder, &[&["run", "pretrain.toml"], &swapped[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let other = runs(folder).into_iter().find(|run| !before.contains(run)).unwrap();
    let message = refused(folder, &["--set", &set(&other.display().to_string())]);
    assert!(message.contains("was trained on what this pipeline tests on"), "{message}");
    assert!(message.contains("A_TEST.ts is among the files of its `data.path`"), "{message}");
    let kept = other.join("model/model.safetensors");
    let of_kept = set(&kept.display().to_string());
    let message = refused(folder, &["--set", &of_kept]);
    assert!(message.contains("was trained on what this pipeline tests on"), "{message}");
    // A run that cannot say what it is any more is not taken for weights of which nothing is known, and its pipeline,
    // which trains nothing again, mends that.
    let begun = other.join("run.json");
    let whole = std::fs::read(&begun).unwrap();
    std::fs::write(&begun, &whole[..whole.len() / 2]).unwrap();
    let message = refused(folder, &["--set", &of_kept]);
    assert!(message.contains("run.json is damaged"), "{message}");
    let resumed = firebox(folder, &["run", "--resume", &other.display().to_string()]);
    assert_eq!(resumed.status.code(), Some(2), "{}", errors(&resumed));
    assert!(errors(&resumed).contains("run.json is damaged"), "{}", errors(&resumed));
    let output = firebox(folder, &[&["run", "pretrain.toml"], &swapped[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &errors(&output);
    assert!(said.contains("run.json was damaged, and is written anew"), "{said}");
    assert!(said.contains("nothing to do"), "{said}");
    assert_eq!(std::fs::read(&begun).unwrap(), whole);
    // It may have been longer or shorter then, and is what was trained on.
    let test = folder.join("A_TEST.ts");
    samples(&test, "slow fast", &[("slow", 21), ("fast", 20)]);
    let message = refused(folder, &["--set", &set(&other.display().to_string())]);
    assert!(message.contains("A_TEST.ts is among the files of its `data.path`"), "{message}");
    let moved = folder.join("A_TEST.moved");
    std::fs::rename(&test, &moved).unwrap();
    let elsewhere = format!("data.test={}", folder.join("A_TRAIN.ts").display());
    let own = format!("data.path={}", folder.join("B.ts").display());
    samples(&folder.join("B.ts"), "slow fast", &[("slow", 25), ("fast", 25)]);
    let there = set(&other.display().to_string());
    let arguments = ["--set", &there, "--set", &elsewhere, "--set", &own];
    let text = run(folder, &[&quick[..], &arguments[..]].concat());
    assert!(text.contains("the files of its data are not all there"), "{text}");
    std::fs::rename(&moved, &test).unwrap();
    // A pipeline that lies above weights of somebody else is none of theirs.
    std::fs::create_dir(folder.join("weights")).unwrap();
    let weights = read_checkpoint(&other);
    std::fs::write(folder.join("weights/foreign.safetensors"), weights).unwrap();
    let ours = "[window]\nnormalise = \"robust\"\n";
    std::fs::write(folder.join("pipeline.toml"), ours).unwrap();
    let foreign = set("weights/foreign.safetensors");
    let text = run(folder, &[&quick[..], &["--set", &foreign]].concat());
    assert!(text.contains("was not checked: no run"), "{text}");
    let message = refused(folder, &["--set", &set("nowhere")]);
    assert!(message.contains("nowhere` has no weights: it is not there"), "{message}");
    std::fs::write(folder.join("w.safetensors"), b"no weights").unwrap();
    let message = refused(folder, &["--set", &set("w.safetensors")]);
    assert!(message.contains("not a safetensors file"), "{message}");
}

#[test]
fn labels_that_nothing_can_be_learnt_from_are_refused_by_their_cause() {
    let check =
        |train: &[(&str, usize)], test: &[(&str, usize)], arguments: &[&str], expected: &str| {
            let project = project();
            let folder = project.path();
            samples(&folder.join("A_TRAIN.ts"), "slow fast", train);
            samples(&folder.join("A_TEST.ts"), "slow fast", test);
            let message = refused(folder, arguments);
            assert!(message.contains(expected), "{message}");
        };
    let (both, test) = ([("slow", 30), ("fast", 30)], [("slow", 20), ("fast", 20)]);
    check(
        &[("slow", 30)],
        &test,
        &[],
        "labelled training windows are of the class `slow`: there is nothing to tell apart",
    );
    check(
        &both,
        &test,
        &["--set", "finetune.shares=[0.01]"],
        "a share of 0.01 of the labels leaves 0 of the 24 windows of the class",
    );
    check(&both, &test, &["--set", "labels=none"], "fine-tuning learns from labels");
    check(&both, &test, &["--set", "pipeline=pretrain"], "[finetune] is there");
    check(&both, &test, &["--set", "finetune.head.heads=5"], "`heads` is 5");
}

#[test]
fn the_archive_protocol_measures_every_pair_of_a_folder() {
    let project = project();
    let folder = project.path();
    samples(&folder.join("B_TRAIN.ts"), "slow fast", &[("slow", 9)]);
    samples(&folder.join("B_TEST.ts"), "slow fast", &[("slow", 5), ("fast", 5)]);
    let config = "
        seeds = 2
        [encoder]
        hidden = 6
        output = 8
        blocks = 3
        [pretraining]
        steps = 6
        batch_size = 16
        learning_rate = 0.001
        [finetuning]
        steps = 6
        batch_size = 16
        learning_rate = 0.001
    ";
    std::fs::write(folder.join("ucr.toml"), config).unwrap();
    // A value is missing.
    let train = std::fs::read_to_string(folder.join("A_TRAIN.ts")).unwrap();
    let (before, after) = train.split_once(',').unwrap();
    let (_, after) = after.split_once(',').unwrap();
    std::fs::write(folder.join("A_TRAIN.ts"), format!("{before},?,{after}")).unwrap();
    let fill = "data.checks.not_finite=fill";
    let arguments = ["evaluate", "ucr", ".", "--config", "ucr.toml", "--set", fill];
    let output = firebox(folder, &arguments);
    // One of the sets could not be measured.
    assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("One configuration, from ucr.toml: "), "{text}");
    assert!(text.contains("on 1 set of other archives"), "{text}");
    assert!(text.contains("| B") && text.contains("there is nothing to tell apart"), "{text}");
    let scores = std::fs::read_to_string(folder.join("runs/ucr/scores.json")).unwrap();
    let scores: Value = serde_json::from_str(&scores).unwrap();
    let set = &scores["report"]["sets"][0];
    assert_eq!(set["name"], "A");
    assert_eq!(set["accuracies"]["frozen-svm"].as_array().unwrap().len(), 2);
    // What was filled is told, and is in the report.
    assert_eq!(set["defects"][0]["count"], 1);
    assert_eq!(set["defects"][0]["done"], "filled");
    let told = errors(&output);
    assert!(told.contains("A: channel `value`: 1 value missing, NaN or too large"), "{told}");
    assert_eq!(set["accuracies"]["majority"], serde_json::json!([0.5]));

    // The same again: every training is read back, and every figure is the same.
    let output = firebox(folder, &arguments);
    assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
    let repeated = std::fs::read_to_string(folder.join("runs/ucr/scores.json")).unwrap();
    let repeated: Value = serde_json::from_str(&repeated).unwrap();
    assert_eq!(repeated["report"]["sets"][0]["accuracies"], set["accuracies"]);
    // The flag goes before the file, and has the first of its seeds.
    let output = firebox(folder, &[&arguments[..], &["--seeds", "1"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
    let fewer = std::fs::read_to_string(folder.join("runs/ucr/scores.json")).unwrap();
    let fewer: Value = serde_json::from_str(&fewer).unwrap();
    let [fewer, all] =
        [&fewer["report"]["sets"][0], set].map(|set| &set["accuracies"]["frozen-svm"]);
    assert_eq!(fewer.as_array().unwrap()[..], all.as_array().unwrap()[..1]);

    let output = firebox(folder, &["evaluate", "ucr", ".", "--set", "seeds=1"]);
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
    assert!(errors(&output).contains("name it with --config"), "{}", errors(&output));
    let output = firebox(folder, &["evaluate", "ucr", ".", "--config", "nothere.toml"]);
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
    assert!(errors(&output).contains("cannot read the settings (--config) nothere.toml: "));
    let output = firebox(folder, &["evaluate", "ucr", "nowhere"]);
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
    assert!(errors(&output).contains("there is no folder nowhere"));
    let empty = tempfile::tempdir().unwrap();
    let output = firebox(empty.path(), &["evaluate", "ucr", "."]);
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
    assert!(errors(&output).contains("has no set of the UCR or UEA archive"));
}

#[test]
fn a_fine_tuned_classifier_tells_the_classes_of_new_windows() {
    let project = project();
    let folder = project.path();
    let small = ["--set", "finetune.shares=[1.0]", "--set", "finetune.seeds=1"];
    let said = run(folder, &[&small[..], &["--set", "window.length=20"]].concat());
    assert!(said.contains("100 of 100 series are longer than the 20 steps of a window"), "{said}");
    let runs = std::fs::read_dir(folder.join("runs")).unwrap();
    let name = runs.flatten().next().unwrap().file_name().into_string().unwrap();
    let done = |arguments: &[&str]| {
        let output = firebox(folder, arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", errors(&output));
        String::from_utf8_lossy(&output.stdout).into_owned() + &errors(&output)
    };
    let said = done(&["predict", &name, "A_TEST.ts", "--output", "classes.parquet"]);
    assert!(said.contains("40 windows of 40 series in 1 file: predictions of 2 classes"), "{said}");
    assert!(said.contains("40 of 40 series are longer than the 20 steps of a window"), "{said}");
    let said = done(&["embed", &name, "A_TEST.ts", "--output", "vectors.parquet"]);
    assert!(said.contains("vectors of 24"), "{said}");
    done(&["export", &name, "--format", "onnx", "--output", "classifier.onnx"]);
    let card = std::fs::read_to_string(folder.join("classifier.onnx.md")).unwrap();
    assert!(card.contains("| Classes, in the order of the logits | `slow`, `fast` |"), "{card}");
}

#[test]
fn arms_learn_the_same_from_windows_that_lie_on_the_device() {
    let project = project();
    let settings = ["finetune.seeds=1", "finetune.versions=0"];
    let ([streamed, on_device], resolved) = streamed_and_on_device(project.path(), &settings);
    assert_eq!(streamed.len(), 1 + 2 * 4, "the pre-training and each arm at each share");
    assert_eq!(streamed, on_device);
    assert!(resolved.contains("loader.resident = device: asked for ("), "{resolved}");
}

#[test]
fn versions_of_drawn_windows_are_drawn_on_the_device_that_holds_them() {
    let project = project();
    let settings = ["finetune.seeds=1", "finetune.versions=2", "finetune.arms=[\"from-scratch\"]"];
    let ([streamed, on_device], resolved) = streamed_and_on_device(project.path(), &settings);
    assert!(resolved.contains("of originals); versions are drawn there"), "{resolved}");
    let mut differ = 0;
    // The arm at each share, and no pre-training, which it would not begin with.
    assert!(streamed.keys().eq(on_device.keys()) && streamed.len() == 2);
    for (ours, theirs) in on_device.values().flatten().zip(streamed.values().flatten()) {
        let [ours, theirs] = [ours, theirs].map(|bits| f64::from_bits(*bits));
        assert!((ours - theirs).abs() <= 1e-3 * theirs.abs(), "{ours} {theirs}");
        differ += usize::from(ours != theirs);
    }
    assert!(differ > 0, "warped times are rounded in another way");
}

#[test]
fn arms_learn_the_same_with_layers_that_are_computed_again() {
    let own = "[model.bilstm-mae]\n    hidden = 6\n    layers = 1\n    decoder_hidden = 6\n";
    for model in [
        "[model.bilstm-mae]\nhidden = 6\nlayers = 2\ndecoder_hidden = 6\n",
        "[model.masked.encoder.recurrent]\nhidden = 6\ncell = \"gru\"\n",
        "[model.masked.encoder.dilated]\nhidden = 6\noutput = 6\nblocks = 2\n",
    ] {
        let project = project();
        let pipeline = PIPELINE.replace(own, model);
        assert!(pipeline != PIPELINE, "{PIPELINE}");
        std::fs::write(project.path().join("p.toml"), pipeline).unwrap();
        let settings = ["finetune.seeds=1", "finetune.shares=[1.0]", "finetune.epochs=2"];
        let ([kept, again], resolved) = kept_and_computed_again(project.path(), &settings);
        assert_eq!(kept.len(), 1 + 4, "the pre-training and each arm");
        assert_eq!(kept, again, "{model}");
        assert!(resolved.contains("run.recompute = true: as written; measured: "), "{resolved}");
    }
}

#[test]
fn windows_that_the_encoder_leaves_nothing_of_are_refused_and_leave_no_run() {
    let project = project();
    let folder = project.path();
    let model = "model={masked={encoder={cnn-bilstm={convolutions=[4,4,4],hidden=4,head=4,classifier=[]}}}}";
    let pipeline = PIPELINE.replace(
        "[model.bilstm-mae]\n    hidden = 6\n    layers = 1\n    decoder_hidden = 6\n",
        "",
    );
    std::fs::write(folder.join("p.toml"), pipeline).unwrap();
    let said = refused(folder, &["--set", model, "--set", "window.length=7"]);
    let expected = "`window.length` is 7, and 3 convolutions that halve them need 8";
    assert!(said.contains(expected), "{said}");
    let plan = ["plan", "p.toml", "--set", model, "--set", "window.length=7"];
    let output = firebox(folder, &plan);
    assert!(output.status.code() == Some(2) && errors(&output).contains(expected));
    let mut samples = std::fs::read_to_string(folder.join("A_TEST.ts")).unwrap();
    samples = samples.replace("@equalLength true\n@seriesLength 24\n", "@equalLength false\n");
    samples += "0.1,0.2,0.3,0.4,0.5:slow\n";
    std::fs::write(folder.join("A_TEST.ts"), samples).unwrap();
    let said = refused(folder, &["--set", model]);
    for words in
        ["has 5 steps, and 3 convolutions that halve them need 8; 1 of 101 windows", "=[4, 4]'"]
    {
        assert!(said.contains(words), "{said}");
    }
    let runs = std::fs::read_dir(folder.join("runs")).into_iter().flatten();
    assert_eq!(runs.count(), 0);
}
