//! Pipelines of several trainings as a user runs them: made once, reused, and gone on with where a
//! fold or an iteration is missing.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use firebox_tests::{
    compared_with_its_copy, errors, firebox, kept_and_computed_again, losses_below, scored_again,
    streamed_and_on_device,
};
use serde_json::Value;
use tempfile::TempDir;

const MARKET: &str = r#"
    seed = 5
    bars = 2880
    instruments = ["ONE", "TWO"]
    session_open = 0
    session_bars = 1440
    [regimes.calm]
    [regimes.trend]
    drift = 0.2
    duration = 300
"#;

const FOLDS: &str = r#"
    pipeline = "multitimeframe"
    [data]
    path = "small.market.toml"
    checks = { gaps = "split" }
    [data.timeframes]
    base = "5min"
    higher = ["15min", "1h"]
    periods = { average = 6, strength = 5, fast = 3, slow = 6, signal = 3 }
    higher_periods = { average = 3, strength = 3 }
    [window]
    length = 8
    normalise = "standard"
    [labels.return]
    horizon = 4
    threshold = 0.001
    [multitimeframe]
    folds = { folds = 2, validation = 0.3 }
    lstm = { batch_size = 64, settings = { hidden = 4, attention = 4, head_hidden = 4 } }
    transformer = { batch_size = 64, settings = { width = 8, heads = 2, layers = 1, feedforward = 8, head_hidden = 4 } }
    mlp = { batch_size = 64, settings = { hidden = [8, 4] } }
    [train]
    epochs = 2
    [evaluate]
    resamples = 200
    probe = { l2 = [1.0] }
"#;

const CLUSTERS: &str = r#"
    pipeline = "pseudolabel"
    labels = "last"
    [data]
    path = "train.ts"
    test = "test.ts"
    [window]
    length = 24
    whole = true
    normalise = "standard"
    [pseudolabel]
    clusters = 2
    iterations = 2
    settled = 0.0
    time_mask = 4
    [pseudolabel.model]
    convolutions = [8, 8]
    hidden = 4
    head = 8
    embedding = 8
    classifier = [8]
    [loader]
    batch_size = 16
    [train]
    epochs = 2
    [evaluate]
    seeds = 1
    resamples = 200
"#;

fn project(pipeline: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("small.market.toml", MARKET);
    write("p.toml", pipeline);
    for (name, samples, phase) in [("train.ts", 24, 0.0), ("test.ts", 30, 0.4)] {
        write(name, &samples_of(samples, phase));
    }
    folder
}

/// Waves of two frequencies, of unequal length.
fn samples_of(samples: usize, phase: f64) -> String {
    let mut text = "@problemName waves\n@univariate false\n@dimensions 2\n@equalLength false\n@classLabel true slow fast\n@data\n".to_owned();
    for sample in 0..samples {
        let (fast, length) = (sample % 2 == 1, 12 + sample % 13);
        let rate = if fast { 1.9 } else { 0.5 };
        let wave = |shift: f64| {
            let values = (0..length).map(|t| {
                let at = rate * t as f64 + shift + phase + sample as f64;
                format!("{:.4}", at.sin())
            });
            values.collect::<Vec<_>>().join(",")
        };
        let class = if fast { "fast" } else { "slow" };
        text += &format!("{}:{}:{class}\n", wave(0.0), wave(1.0));
    }
    text
}

fn run(folder: &Path, more: &[&str]) -> String {
    let output = firebox(folder, &[&["run", "p.toml"], more].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}\n{}", errors(&output));
    text
}

fn only_run(folder: &Path) -> PathBuf {
    let runs: Vec<_> = std::fs::read_dir(folder.join("runs")).unwrap().flatten().collect();
    assert_eq!(runs.len(), 1, "{runs:?}");
    runs[0].path()
}

fn figures(run: &Path) -> Value {
    let text = std::fs::read(run.join("scores.json")).unwrap();
    let scores: Value = serde_json::from_slice(&text).unwrap();
    let figures = scores["results"].clone();
    assert!(figures.is_object(), "{scores}");
    figures
}

/// Runs, again with nothing to do, and again with `missing` gone: with the same figures, and with
/// what was there left alone.
fn goes_on(folder: &Path, missing: &str, kept: &str) -> (PathBuf, Value) {
    let first = run(folder, &[]);
    assert!(!first.contains("nothing to do"), "{first}");
    let place = only_run(folder);
    let made = figures(&place);
    assert!(run(folder, &[]).contains("nothing to do"));
    let history = place.join("parts").join(kept).join("history.jsonl");
    let before = std::fs::metadata(&history).unwrap().modified().unwrap();
    std::fs::remove_dir_all(place.join("parts").join(missing)).unwrap();
    std::fs::remove_file(place.join("manifest.json")).unwrap();
    let again = run(folder, &[]);
    assert!(!again.contains("nothing to do"), "{again}");
    assert_eq!(figures(&place), made);
    assert_eq!(std::fs::metadata(&history).unwrap().modified().unwrap(), before);
    (place, made)
}

fn refused(folder: &Path, settings: &[&str], expected: &[&str]) {
    let mut arguments = vec!["run", "p.toml"];
    settings.iter().for_each(|setting| arguments.extend(["--set", setting]));
    let output = firebox(folder, &arguments);
    let said = errors(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    expected.iter().for_each(|words| assert!(said.contains(words), "{words}: {said}"));
}

/// What was predicted is not predicted again where an evaluation was cut off.
fn predictions_are_kept(folder: &Path, place: &Path, made: &Value) {
    let kept = |name: &str| -> Vec<PathBuf> {
        let files = std::fs::read_dir(place.join("parts").join(name)).unwrap().flatten();
        let mut files: Vec<PathBuf> = files.map(|file| file.path()).collect();
        files.sort();
        files
    };
    let [first, second] = ["fold-1/baselines", "fold-2/baselines"].map(kept);
    assert_eq!((first.len(), second.len()), (2, 2));
    let written = || -> Vec<_> {
        first.iter().map(|file| file.metadata().unwrap().modified().unwrap()).collect()
    };
    let before = written();
    // As whoever is killed in the second fold may leave it, and a damaged one.
    std::fs::remove_file(&second[0]).unwrap();
    std::fs::write(&second[1], "[9, 9").unwrap();
    std::fs::remove_file(place.join("manifest.json")).unwrap();
    run(folder, &[]);
    assert_eq!(figures(place), *made);
    assert_eq!((written(), kept("fold-2/baselines")), (before, second));
}

#[test]
fn models_on_folds_are_trained_once_and_compared_beside_baselines() {
    let folder = project(FOLDS);
    let (place, made) = goes_on(folder.path(), "fold-2/mlp", "fold-1/lstm");
    predictions_are_kept(folder.path(), &place, &made);
    scored_again(&place, &format!("14 scores of {} rows", made["windows"]));
    let names: Vec<&str> = made["standings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|standing| standing["name"].as_str().unwrap())
        .collect();
    assert_eq!(names[..4], ["BiLSTM with attention", "Transformer", "MLP", "majority class"]);
    assert_eq!(names.len(), 7);
    for name in ["fold-1/lstm", "fold-2/lstm", "fold-1/transformer", "fold-2/mlp"] {
        assert!(place.join("parts").join(name).join("training.json").is_file(), "{name}");
    }
    let summary = std::fs::read_to_string(place.join("summary.md")).unwrap();
    for words in ["Models and baselines", "Confusion matrix: MLP", "embargoed", "1h_rsi"] {
        assert!(summary.contains(words), "{words}: {summary}");
    }
    let output = firebox(folder.path(), &["data", "check-leaks", "p.toml"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}{}", errors(&output));
    assert!(text.contains("29 channels") && text.contains("of 2 folds"), "{text}");
    assert!(text.contains("nothing looks ahead"), "{text}");
    let page = compared_with_its_copy(folder.path(), &place);
    for part in ["accuracy: BiLSTM with attention ", " in 6 trainings<"] {
        assert!(page.contains(part), "{part}");
    }
    models_are_kept(folder.path(), &place);
}

/// Every model of the last fold is there, and tells the classes of new bars.
fn models_are_kept(folder: &Path, run: &Path) {
    let done = |arguments: &[&str]| {
        let output = firebox(folder, arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", errors(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    done(&["data", "generate", "small.market.toml", "new.csv"]);
    let own = run.display().to_string();
    let said = done(&["predict", &own, "new.csv", "--output", "own.parquet"]);
    assert!(said.contains("predictions of 3 classes"), "{said}");
    let mut same = 0;
    for name in ["lstm", "transformer", "mlp"] {
        let model = run.join("models").join(name).display().to_string();
        let output = format!("{name}.parquet");
        done(&["predict", &model, "new.csv", "--output", &output]);
        let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
        same += usize::from(read(&output) == read("own.parquet"));
        done(&["export", &model, "--format", "onnx", "--output", &format!("{name}.onnx")]);
    }
    assert_eq!(same, 1, "the run's own model is one of them");
    let card = std::fs::read_to_string(run.join("model/model.json")).unwrap();
    assert!(card.contains("the one with the lowest validation loss"), "{card}");
    let mlp = run.join("models/mlp").display().to_string();
    refused_of(folder, &["embed", &mlp, "new.csv", "--output", "v.parquet"], "makes no vectors");
}

fn refused_of(folder: &Path, arguments: &[&str], expected: &str) {
    let output = firebox(folder, arguments);
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
    assert!(errors(&output).contains(expected), "{}", errors(&output));
}

#[test]
fn folds_that_cannot_be_made_say_why() {
    let folder = project(FOLDS);
    let folder = folder.path();
    refused(
        folder,
        &["data.timeframes.higher=[\"12min\"]"],
        &["`data.timeframes.higher` is 12min", "multiple of the base, 5min"],
    );
    refused(
        folder,
        &["multitimeframe.folds.folds=100"],
        &["fold 1 of 100 has no", "fewer folds", "there are"],
    );
    refused(
        folder,
        &["labels.return.threshold=5.0"],
        &[
            "the training part of fold 1 has only windows of the class `stays`",
            "labels.return.threshold",
        ],
    );
    refused(folder, &["split.time.test=0.2"], &["[split] divides once", "[multitimeframe.folds]"]);
    refused(folder, &["pipeline=pretrain"], &["which does not read it"]);
    refused(
        folder,
        &["multitimeframe.mlp.batch_size=0"],
        &["`multitimeframe.mlp.batch_size` is 0"],
    );
}

#[test]
fn an_encoder_learns_from_its_clusters_and_is_judged_by_true_classes() {
    let folder = project(CLUSTERS);
    let (place, made) = goes_on(folder.path(), "iteration-2", "iteration-1");
    assert_eq!(made["windows"], 30);
    let by_iteration = made["by_iteration"].as_array().unwrap();
    assert!(!by_iteration.is_empty() && by_iteration.len() <= 3, "{by_iteration:?}");
    assert_eq!(made["subjects"].as_array().unwrap().len(), 3);
    scored_again(&place, &format!("{} scores of 30 rows", 3 + by_iteration.len()));
    let clusters = std::fs::read(place.join("parts/iteration-1/clusters.json")).unwrap();
    let clusters: Value = serde_json::from_slice(&clusters).unwrap();
    assert_eq!(clusters["assigned"].as_array().unwrap().len(), 22);
    // What an iteration draws is none of what the one before drew: the run's own seed is 1337.
    let seeds = [1, 2].map(|iteration| {
        let state = selected(&place, &format!("iteration-{iteration}")).join("state.json");
        let state: Value = serde_json::from_slice(&std::fs::read(state).unwrap()).unwrap();
        state["seed"].as_u64()
    });
    assert_eq!(seeds, [Some(1337), Some(1338)]);
    let log = std::fs::read_to_string(place.join("events.jsonl")).unwrap();
    for told in
        [r#""done":10,"total":10,"unit":"starts of K-means on windows""#, r#""unit":"probes""#]
    {
        assert!(log.contains(told), "{log}");
    }
    let summary = std::fs::read_to_string(place.join("summary.md")).unwrap();
    assert!(summary.contains("mutual information with the true classes of 30 test"), "{summary}");
    let page = compared_with_its_copy(folder.path(), &place);
    assert!(page.contains(" normalised mutual information with the true classes</td>"));
}

#[test]
fn clusters_that_cannot_be_made_say_why() {
    let folder = project(CLUSTERS);
    let folder = folder.path();
    refused(
        folder,
        &["pseudolabel.model.convolutions=[8, 8, 8, 8]"],
        &["that halve them need 16", "use fewer of them"],
    );
    refused(folder, &["pseudolabel.clusters=50"], &["50 clusters cannot be made of"]);
    refused(folder, &["pseudolabel.clusters=1"], &["`pseudolabel.clusters` is 1"]);
}

#[test]
fn folds_and_iterations_learn_the_same_from_windows_that_lie_on_the_device() {
    for (pipeline, trainings) in [(FOLDS, 6), (CLUSTERS, 2)] {
        let folder = project(pipeline);
        let ([streamed, on_device], resolved) =
            streamed_and_on_device(folder.path(), &["train.epochs=1"]);
        assert_eq!(streamed.len(), trainings);
        assert_eq!(streamed, on_device);
        assert!(resolved.contains("loader.resident = device: asked for ("), "{resolved}");
    }
}

#[test]
fn folds_and_iterations_learn_the_same_with_layers_that_are_computed_again() {
    for (pipeline, trainings) in [(FOLDS, 6), (CLUSTERS, 2)] {
        let folder = project(pipeline);
        let ([kept, again], resolved) = kept_and_computed_again(folder.path(), &["train.epochs=1"]);
        assert_eq!(kept.len(), trainings);
        assert_eq!(kept, again);
        assert!(resolved.contains("run.recompute = true: as written; measured: "), "{resolved}");
    }
}

#[test]
fn versions_that_are_drawn_are_the_same_for_any_threads_and_change_what_is_learnt() {
    const NOISE: [&str; 5] = [
        "augment.mode=online",
        "augment.versions=2",
        "augment.scaling.probability=0",
        "augment.time_warp.probability=0",
        "augment.volatility_scaling.probability=0",
    ];
    let folds = ["multitimeframe.masking={ time_masks = 1, longest = 0.3, channels = 0.1 }"];
    let mixed = ["multitimeframe.mix.mixup.alpha=0.4"];
    let clips = ["pseudolabel.masking={ time_masks = 2, longest = 0.2, channels = 0.2 }"];
    let warps = ["augment.mode=online", "augment.versions=1"];
    let all: [(&str, [&[&str]; 4]); 2] =
        [(FOLDS, [&[], &NOISE, &folds, &mixed]), (CLUSTERS, [&[], &NOISE, &clips, &warps])];
    for (pipeline, ways) in all {
        let mut found = vec![];
        for settings in ways {
            let losses = |workers| {
                let (_folder, place) =
                    trained(pipeline, &[settings, &["train.epochs=1", workers]].concat());
                losses_below(&place).into_values().collect::<Vec<_>>()
            };
            let losses = [losses("loader.workers=0"), losses("loader.workers=3")];
            assert_eq!(losses[0], losses[1], "{settings:?}");
            assert!(!found.contains(&losses[0]), "{settings:?} changes nothing");
            found.push(losses[0].clone());
        }
        // Three samples of each window.
        let steps = |way: usize| found[way].iter().map(Vec::len).sum::<usize>();
        assert!(steps(1) > 2 * steps(0), "{} {}", steps(1), steps(0));
    }
}

#[test]
fn what_is_drawn_for_clusters_lies_on_the_device_too() {
    let losses = |place: &str| {
        let settings = [place, "augment.mode=online", "augment.time_warp.probability=0"];
        let (_folder, run) = trained(CLUSTERS, &[&settings[..], &["train.epochs=1"]].concat());
        losses_below(&run).into_values().collect::<Vec<_>>()
    };
    let [streamed, on_device] =
        ["stream", "device"].map(|place| losses(&format!("loader.resident={place}")));
    assert_eq!(streamed.len(), 2);
    // The same versions with the same clusters, but for rounding.
    let all = streamed[0].iter().zip(&on_device[0]);
    for (a, b) in all.map(|(a, b)| (f64::from_bits(*a), f64::from_bits(*b))) {
        assert!((a - b).abs() <= 1e-4 * a.abs(), "{a} {b}");
    }
}

/// A project that was run with these settings, and the folder of its run.
fn trained(pipeline: &str, settings: &[&str]) -> (TempDir, PathBuf) {
    let folder = project(pipeline);
    let arguments: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    run(folder.path(), &arguments);
    let place = only_run(folder.path());
    (folder, place)
}

/// The checkpoint that a training within a run ended with.
fn selected(run: &Path, part: &str) -> PathBuf {
    let place = run.join("parts").join(part);
    let text = std::fs::read(place.join("training.json")).unwrap();
    let summary: Value = serde_json::from_slice(&text).unwrap();
    place.join("checkpoints").join(summary["selected"].as_str().unwrap())
}

/// The weights that a training within a run ended with, by name.
fn weights(run: &Path, part: &str) -> BTreeMap<String, Vec<u8>> {
    let file = std::fs::read(selected(run, part).join("weights.safetensors")).unwrap();
    // Safetensors: the length of a header, the header, the numbers.
    let (length, rest) = file.split_at(8);
    let (header, numbers) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
    let header: Value = serde_json::from_slice(header).unwrap();
    let tensors = header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__");
    let named = tensors.map(|(name, tensor)| {
        let place = |at: usize| tensor["data_offsets"][at].as_u64().unwrap() as usize;
        (name.clone(), numbers[place(0)..place(1)].to_vec())
    });
    named.collect()
}

/// Of two trainings that begin alike, what these names begin with is the same in both, and something else is not.
fn only_these_stay(
    ours: &BTreeMap<String, Vec<u8>>,
    theirs: &BTreeMap<String, Vec<u8>>,
    these: &[&str],
) {
    assert!(ours.keys().eq(theirs.keys()), "{:?} {:?}", ours.keys(), theirs.keys());
    let (mut stay, mut moved) = (0, 0);
    for (name, values) in ours {
        let same = *values == theirs[name];
        if these.iter().any(|prefix| name.starts_with(prefix)) {
            assert!(same, "{name} was trained");
            stay += 1;
        } else {
            moved += usize::from(!same);
        }
    }
    assert!(stay > 0 && moved > 0, "{stay} stay, {moved} moved of {:?}", ours.keys());
}

/// Groups and layers that name what no parameter is called.
fn names_of_none_are_refused(folder: &Path) {
    refused(
        folder,
        &["train.groups=[{parameters=[\"lstn.*\"]}]"],
        &["`train.groups` names `lstn.*`"],
    );
    let layers = "train.layer_decay={factor=0.5,layers=[\"block.{}.*\"]}";
    refused(folder, &[layers], &["`train.layer_decay.layers` names `block.{}.*`"]);
}

#[test]
fn each_model_on_folds_takes_the_groups_and_layers_that_name_its_own_parameters() {
    let frozen = "train.groups=[{parameters=[\"head.*\",\"gate.*\"],frozen=true}]";
    let (_folder, place) = trained(FOLDS, &[frozen]);
    for model in ["lstm", "transformer", "mlp"] {
        let [ours, theirs] = [1, 2].map(|fold| weights(&place, &format!("fold-{fold}/{model}")));
        only_these_stay(&ours, &theirs, &["head.", "gate."]);
    }
    let decay = "train.layer_decay={factor=0.1,layers=[\"lstm.*_l{}*\",\"encoder.layers.{}.*\",\"head.*\"]}";
    let (_one, plain) = trained(FOLDS, &[]);
    let (_other, decayed) = trained(FOLDS, &[decay]);
    for (model, same) in [("lstm", false), ("transformer", false), ("mlp", true)] {
        let part = format!("fold-1/{model}");
        assert_eq!(weights(&plain, &part) == weights(&decayed, &part), same, "{model}");
    }
    let folder = project(FOLDS);
    let folder = folder.path();
    names_of_none_are_refused(folder);
    // A model that is not trained has no say.
    let gate = "train.groups=[{parameters=[\"gate.*\"]}]";
    let two = "multitimeframe.models=[\"lstm\",\"transformer\"]";
    refused(folder, &[two, gate], &["`train.groups` names `gate.*`"]);
}

#[test]
fn iterations_take_groups_and_layers() {
    let first = |settings: &[&str]| {
        let (_folder, place) = trained(CLUSTERS, settings);
        weights(&place, "iteration-1")
    };
    let frozen = "train.groups=[{parameters=[\"blocks.0.conv.*\"],frozen=true}]";
    let faster = "train.optimizer.adamw.learning_rate=0.01";
    only_these_stay(&first(&[frozen]), &first(&[frozen, faster]), &["blocks.0.conv."]);
    let decay = "train.layer_decay={factor=0.1,layers=[\"blocks.{}.*\",\"lstm.*_l{}*\",\"head*\"]}";
    assert!(first(&[decay]) != first(&[]), "layers learn at rates of their own");
    names_of_none_are_refused(project(CLUSTERS).path());
}
