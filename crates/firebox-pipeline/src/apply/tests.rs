//! What is written for new data, against windows that are cut, normalised and encoded here.

mod alike;
mod lacking;
pub(crate) mod texts;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use burn::tensor::activation::softmax;
use burn::tensor::{Device, Tensor, TensorData};
use firebox_core::{
    Channel, Key, Normaliser, Precision, Role, SeriesSet, Silent, Stream, Window, WindowRule,
};
use firebox_data::{ChannelColumn, Columns, DataConfig};
use firebox_export::{Architecture, CARD_VERSION, ModelCard, SavedModel, Task};
use firebox_models::{BiLstmMaeConfig, CnnBiLstmConfig, read_parameters};

use super::data::NewData;
use super::{Applied, ApplyRequest, Wanted, apply};
use crate::{ChosenDevice, PipelineError};

const LENGTH: usize = 12;

fn channels() -> Vec<Channel> {
    [("open", Role::Open), ("high", Role::High), ("low", Role::Low), ("close", Role::Close)]
        .map(|(name, role)| Channel::new(name, role))
        .into()
}

fn normaliser() -> Normaliser {
    let one = serde_json::json!({ "center": 0.0, "scale": 0.3 });
    let whole = serde_json::json!({
        "kind": "window-relative", "channels": channels(), "fitted": vec![one; 4]
    });
    serde_json::from_value(whole).unwrap()
}

pub(crate) fn model(architecture: Architecture, classes: &[&str]) -> SavedModel {
    let device = Device::default();
    let stream = Stream::new(3, "weights");
    let parameters = match &architecture {
        Architecture::BilstmMae { config, channels } => {
            read_parameters(&config.init(stream, *channels, &device).unwrap())
        }
        Architecture::CnnBilstm { config, channels, classes } => {
            read_parameters(&config.init(stream, *channels, *classes, &device).unwrap())
        }
        Architecture::StackedLstm { config, channels, statics, outputs } => {
            let model = config.init(stream, *channels, *statics, *outputs, &device).unwrap();
            read_parameters(&model)
        }
        Architecture::Transformer { config, channels, time, classes } => {
            let model = config.init(stream, *channels, *time, *classes, &device).unwrap();
            read_parameters(&model)
        }
        Architecture::Masked { config, channels, time } => {
            read_parameters(&config.init(stream, *channels, *time, &device).unwrap())
        }
        other => panic!("{other:?}"),
    };
    let card = ModelCard {
        version: CARD_VERSION,
        run: "sample-1".to_owned(),
        firebox: "0.1.0".to_owned(),
        task: if classes.is_empty() { Task::Pretraining } else { Task::Classification },
        architecture,
        precision: Precision::F32,
        channels: channels(),
        left_out: vec![],
        classes: classes.iter().map(|name| (*name).to_owned()).collect(),
        window: WindowRule { length: LENGTH, stride: 5, whole: false },
        interval: Some(60_000_000),
        normaliser: normaliser(),
        forecast: None,
        texts: None,
        data: serde_json::to_value(DataConfig::default()).unwrap(),
        settings: serde_json::json!({}),
        data_key: Key::builder("series", 1).finish(),
        training_key: Key::builder("training", 1).finish(),
        trained: "some steps".to_owned(),
        scores: [].into(),
        scores_of: String::new(),
        weights: String::new(),
        checksum: String::new(),
    };
    SavedModel { card, parameters, tokenizer: None }
}

/// The card of a forecaster.
pub(super) fn card_of(
    channels: Vec<Channel>,
    normaliser: Normaliser,
    scaler: firebox_core::ForecastScaler,
) -> ModelCard {
    ModelCard { channels, normaliser, forecast: Some(scaler), ..encoder().card }
}

fn encoder() -> SavedModel {
    let config = BiLstmMaeConfig { hidden: 5, decoder_hidden: 4, ..BiLstmMaeConfig::default() };
    model(Architecture::BilstmMae { config, channels: 4 }, &[])
}

fn classifier() -> SavedModel {
    let config =
        CnnBiLstmConfig { convolutions: vec![4], hidden: 3, head: 5, ..CnnBiLstmConfig::default() };
    model(Architecture::CnnBilstm { config, channels: 4, classes: 3 }, &["a", "b", "c"])
}

/// Bars of a minute (or another interval), with the columns in this order.
fn bars(path: &Path, seed: u64, bars: usize, minutes: usize, columns: &[&str]) {
    let mut draws = Stream::new(seed, "bars").draws();
    let mut text = format!("time,{}\n", columns.join(","));
    let mut price = 100.0;
    for step in 0..bars {
        let minute = step * minutes;
        let close = price + draws.normal();
        let high = f64::max(price, close) + 0.1;
        let low = f64::min(price, close) - 0.1;
        write!(text, "2024-03-01T{:02}:{:02}:00", minute / 60, minute % 60).unwrap();
        for column in columns {
            let value = match *column {
                "open" => price,
                "high" => high,
                "low" => low,
                "close" => close,
                _ => 7.0,
            };
            write!(text, ",{value}").unwrap();
        }
        text.push('\n');
        price = close;
    }
    std::fs::write(path, text).unwrap();
}

const ORDER: [&str; 4] = ["open", "high", "low", "close"];

struct Project(tempfile::TempDir);

impl Project {
    fn new(model: &SavedModel) -> Self {
        let folder = tempfile::tempdir().unwrap();
        model.write(&folder.path().join("model")).unwrap();
        Self(folder)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn request(&self, inputs: &[&str], wanted: Wanted) -> ApplyRequest {
        ApplyRequest {
            run: self.at("model"),
            inputs: inputs.iter().map(|name| self.at(name)).collect(),
            output: self.at("out.parquet"),
            wanted,
            force: false,
            batch: 4,
            stride: None,
            precision: None,
            settings: vec![],
        }
    }
}

fn run(request: &ApplyRequest) -> Result<Applied, PipelineError> {
    let device = ChosenDevice::named("cpu");
    let stop = Arc::new(AtomicBool::new(false));
    apply(request, &device, &stop, &Silent).map(Option::unwrap)
}

/// What is made, and the warnings.
fn heard(request: &ApplyRequest) -> (Applied, Vec<String>) {
    let heard = std::sync::Mutex::new(vec![]);
    let listener = |event: &firebox_core::Event| {
        if let firebox_core::Event::Warning { message } = event {
            heard.lock().unwrap().push(message.clone());
        }
    };
    let (device, stop) = (ChosenDevice::named("cpu"), Arc::new(AtomicBool::new(false)));
    let applied = apply(request, &device, &stop, &listener).unwrap().unwrap();
    (applied, heard.into_inner().unwrap())
}

fn refused(request: &ApplyRequest) -> String {
    let error = run(request).unwrap_err();
    assert!(error.is_bad_input(), "{error}");
    assert!(!request.output.exists() || request.output.is_dir());
    error.to_string()
}

/// The rows of a file that was written: series by series, start and numbers.
fn rows(path: &Path, prefix: &str, count: usize) -> SeriesSet {
    rows_by(path, prefix, count, Some("start"))
}

/// The same, by the times of this column.
fn rows_by(path: &Path, prefix: &str, count: usize, time: Option<&str>) -> SeriesSet {
    let name = |place| ChannelColumn { name: format!("{prefix}{place}"), role: None };
    let mut config = DataConfig {
        columns: Columns {
            time: time.map(str::to_owned),
            series: Some("series".to_owned()),
            channels: (0..count).map(name).collect(),
            ..Columns::default()
        },
        ..DataConfig::new(path)
    };
    config.checks.constant = firebox_data::ConstantPolicy::Keep;
    config.checks.gaps = firebox_data::GapPolicy::Split;
    firebox_data::read(&config, &Silent).unwrap().0
}

/// Windows of a file, cut, normalised and given to `compute` one by one.
fn expected(
    file: &Path,
    stride: usize,
    compute: impl Fn(Tensor<3>) -> Tensor<2>,
) -> Vec<(i64, Vec<f32>)> {
    let (set, _) = firebox_data::read(&DataConfig::new(file), &Silent).unwrap();
    let series = &set.series()[0];
    (0..=series.len() - LENGTH)
        .step_by(stride)
        .map(|start| {
            let length = LENGTH as u32;
            let window = Window { series: 0, start: start as u32, length, label: None };
            let mut values = vec![0.0; LENGTH * 4];
            normaliser().apply(&set, &window, &mut values);
            let data = TensorData::new(values, [1, LENGTH, 4]);
            let made = compute(Tensor::from_data(data, &Device::default()));
            (series.time[start], made.into_data().try_into_vec().unwrap())
        })
        .collect()
}

fn check(found: &SeriesSet, name: &str, expected: &[(i64, Vec<f32>)]) {
    let series = found.series().iter().find(|series| series.name == name).unwrap();
    assert_eq!(series.time, expected.iter().map(|(start, _)| *start).collect::<Vec<_>>());
    let all = expected.iter().flat_map(|(_, values)| values);
    for (found, expected) in series.values.all().iter().zip(all) {
        assert!((found - f64::from(*expected)).abs() < 1e-6, "{found} {expected}");
    }
}

#[test]
fn vectors_are_those_of_each_window_in_files_of_any_order_of_columns() {
    let saved = encoder();
    let project = Project::new(&saved);
    std::fs::create_dir(project.at("in")).unwrap();
    bars(&project.at("in/a.csv"), 1, 60, 1, &ORDER);
    bars(&project.at("in/b.csv"), 2, 41, 1, &["close", "volume", "low", "high", "open"]);
    // Too short for a window: it has no row and is not counted.
    bars(&project.at("in/c.csv"), 3, 5, 1, &ORDER);
    let mut request = project.request(&["in"], Wanted::Embedding { wide: true });
    let applied = run(&request).unwrap();
    assert_eq!((applied.windows, applied.series, applied.files, applied.width), (16, 2, 3, 20));
    let built = saved.build(&Device::default()).unwrap();
    let embed = |input| built.embed(input, &[LENGTH]).unwrap();
    let found = rows(&request.output, "embedding_", 20);
    assert_eq!(found.steps(), 16);
    check(&found, "a", &expected(&project.at("in/a.csv"), 5, embed));
    // The prices of b.csv alone, in the model's order.
    bars(&project.at("b.csv"), 2, 41, 1, &ORDER);
    check(&found, "b", &expected(&project.at("b.csv"), 5, embed));
    // Files of one name from two folders are two series.
    request.force = true;
    request.inputs.push(project.at("b.csv"));
    let found = {
        run(&request).unwrap();
        rows(&request.output, "embedding_", 20)
    };
    let names: Vec<&str> = found.series().iter().map(|series| series.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "b (2)"]);
    request.inputs.pop();
    // Another stride, another batch, lists: as many rows as there are windows.
    request.wanted = Wanted::Embedding { wide: false };
    (request.stride, request.batch, request.force) = (Some(1), 7, true);
    assert_eq!(run(&request).unwrap().windows, 49 + 30);
}

#[test]
fn files_with_and_without_a_column_of_series_are_each_read_once() {
    let project = Project::new(&encoder());
    std::fs::create_dir(project.at("in")).unwrap();
    bars(&project.at("in/a.csv"), 1, 60, 1, &ORDER);
    for (file, seed, name) in [("b.csv", 2, "B"), ("c.csv", 3, "C")] {
        let path = project.at("in").join(file);
        bars(&path, seed, 41, 1, &ORDER);
        let named = |(row, line): (usize, &str)| match row {
            0 => format!("symbol,{line}\n"),
            _ => format!("{name},{line}\n"),
        };
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, text.lines().enumerate().map(named).collect::<String>()).unwrap();
    }
    let request = project.request(&["in"], Wanted::Embedding { wide: true });
    let applied = run(&request).unwrap();
    assert_eq!((applied.windows, applied.series, applied.files), (10 + 6 + 6, 3, 3));
    let found = rows(&request.output, "embedding_", 20);
    let names: Vec<&str> = found.series().iter().map(|series| series.name.as_str()).collect();
    assert_eq!(names, ["a", "B", "C"]);
}

#[test]
fn a_model_is_applied_in_the_type_that_it_was_trained_in() {
    let mut saved = encoder();
    saved.card.precision = Precision::Bf16;
    let project = Project::new(&saved);
    bars(&project.at("a.csv"), 1, 60, 1, &ORDER);
    let mut request = project.request(&["a.csv"], Wanted::Embedding { wide: true });
    // One window at a time, as it is computed here.
    (request.batch, request.force) = (1, true);
    let of = |precision| {
        let architecture = &saved.card.architecture;
        let model = architecture.build(saved.parameters.clone(), &Device::default()).unwrap();
        let model = model.in_precision(precision);
        expected(&project.at("a.csv"), 5, |input| model.embed(input, &[LENGTH]).unwrap())
    };
    let [f32, bf16, f16] = [Precision::F32, Precision::Bf16, Precision::F16].map(of);
    // Operands of 8 bits are rounded by up to 2⁻⁹, and of 11 bits by an eighth of that.
    let [eight, eleven] = [&bf16, &f16].map(|rounded| {
        let pairs = rounded.iter().zip(&f32).flat_map(|((_, a), (_, b))| a.iter().zip(b));
        let (apart, whole) = pairs.fold((0.0, 0.0), |(apart, whole), (a, b)| {
            (apart + f64::from(a - b).powi(2), whole + f64::from(*b).powi(2))
        });
        (apart / whole).sqrt()
    });
    assert!((1e-5..5e-2).contains(&eight) && eleven < eight / 3.0, "{eight:.1e}, {eleven:.1e}");
    let asked = [(None, &bf16), (Some(Precision::Bf16), &bf16), (Some(Precision::F32), &f32)];
    for (precision, expected) in asked {
        request.precision = precision;
        run(&request).unwrap();
        check(&rows(&request.output, "embedding_", 20), "a", expected);
    }
}

#[test]
fn a_file_is_read_once() {
    let project = Project::new(&encoder());
    std::fs::create_dir(project.at("in")).unwrap();
    bars(&project.at("in/a.csv"), 1, 60, 1, &ORDER);
    let request = project.request(&["in", "in/a.csv"], Wanted::Embedding { wide: true });
    let message = refused(&request);
    assert!(message.contains("a.csv is named twice"), "{message}");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(project.at("in/a.csv"), project.at("in/b.csv")).unwrap();
        let request = project.request(&["in"], Wanted::Embedding { wide: true });
        let message = refused(&request);
        assert!(message.contains("b.csv and ") && message.contains("are one file"), "{message}");
    }
}

#[test]
fn classes_are_those_of_the_highest_probability() {
    let saved = classifier();
    let project = Project::new(&saved);
    bars(&project.at("a.csv"), 1, 60, 1, &ORDER);
    let request = project.request(&["a.csv"], Wanted::Prediction);
    let applied = run(&request).unwrap();
    assert_eq!((applied.windows, applied.width), (10, 3));
    let built = saved.build(&Device::default()).unwrap();
    let expected = expected(&project.at("a.csv"), 5, |input| {
        softmax(built.logits(input, &[LENGTH]).unwrap(), 1)
    });
    // Classes are called a, b and c.
    let name = |class| ChannelColumn { name: format!("probability_{class}"), role: None };
    let mut config = DataConfig::new(&request.output);
    config.columns.time = Some("start".to_owned());
    config.columns.label = Some("class".to_owned());
    config.columns.channels = ["a", "b", "c"].map(name).into();
    config.interval = firebox_data::Interval::from_microseconds(300_000_000);
    let (found, _) = firebox_data::read(&config, &Silent).unwrap();
    check(&found, "a", &expected);
    let firebox_core::StepLabels::PerStep(labels) = &found.series()[0].labels else { panic!() };
    for (label, (_, row)) in labels.iter().zip(&expected) {
        let class = &found.classes()[label.unwrap() as usize];
        let best = ["a", "b", "c"].iter().position(|name| name == class).unwrap();
        assert!(row.iter().all(|p| *p <= row[best]), "{class}: {row:?}");
        assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-6);
    }
}

#[test]
fn a_model_is_not_asked_for_what_it_cannot_give() {
    let project = Project::new(&encoder());
    bars(&project.at("a.csv"), 1, 60, 1, &ORDER);
    let message = refused(&project.request(&["a.csv"], Wanted::Prediction));
    assert!(message.contains("has no classes to predict"), "{message}");
    assert!(message.contains("firebox embed"), "{message}");
    let request = project.request(&["a.csv"], Wanted::Embedding { wide: false });
    let message = refused(&ApplyRequest { stride: Some(0), ..request.clone() });
    assert!(message.contains("the stride is 0"), "{message}");
    let message = refused(&ApplyRequest { settings: vec!["train.epochs=3".to_owned()], ..request });
    assert!(message.contains("only how new data is read can be set"), "{message}");
}

#[test]
fn features_of_longer_timeframes_stay_those_of_the_training() {
    let mut model = encoder();
    let frames = r#"
        path = "trained.csv"
        columns = { series = "series" }
        [timeframes]
        base = "15min"
        higher = ["1h"]
        periods = { average = 2, strength = 2, fast = 2, slow = 3, signal = 2 }
        higher_periods = { average = 2, strength = 2 }
    "#;
    let data: DataConfig = toml::from_str(frames).unwrap();
    let channels = data.timeframes.as_ref().unwrap().channels();
    model.card.data = serde_json::to_value(data).unwrap();
    let project = Project::new(&model);
    // Six hours, of which `return_16` looks back on four.
    let write = |name: &str, minutes: std::ops::Range<usize>| {
        let mut text = "time,series,open,high,low,close\n".to_owned();
        for minute in minutes {
            let price = 100.0 + (minute * minute % 17) as f64;
            let (hour, minute) = (minute / 60, minute % 60);
            let time = format!("2024-03-01T{hour:02}:{minute:02}:00");
            writeln!(text, "{time},a,{price},{},{},{price}", price + 1.0, price - 1.0).unwrap();
        }
        std::fs::write(project.at(name), text).unwrap();
    };
    write("1.csv", 0..180);
    write("2.csv", 180..360);
    let request = project.request(&["1.csv"], Wanted::Embedding { wide: false });
    for (settings, is_set) in [
        (&["data.timeframes.periods.average=3"][..], false),
        (&["data.timeframes.stamp=close", "data.timeframes.higher_periods.strength=3"], false),
        (&["data.timeframes={ base = \"5min\" }"], false),
        (&["data.timeframes.stamp=close"], true),
        (&["data.timeframes.periods.average=2"], true),
    ] {
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let message = refused(&ApplyRequest { settings, ..request.clone() });
        assert_eq!(!message.contains("only `stamp` can be set"), is_set, "{message}");
    }
    let message = refused(&request);
    assert!(
        message.contains("1.csv: no step is left: 12 bars in 1 run without a gap"),
        "{message}"
    );
    assert!(message.contains("or leave it out"), "{message}");
    // With the file behind it there are 24 bars, of which the first 16 are looked back on.
    let mut card = model.card;
    card.channels = channels;
    let files = ["1.csv", "2.csv"].map(|name| project.at(name));
    let mut read = vec![];
    NewData::new(&card, &files, &[]).unwrap().read(&card, &Silent, |loaded| {
        let loaded = loaded.unwrap();
        read.push((loaded.files, loaded.set.steps()));
        true
    });
    assert_eq!(read, [(2, 8)]);
}

#[test]
fn a_column_that_is_missing_is_one_that_the_model_reads_unless_the_user_named_it() {
    let project = Project::new(&encoder());
    bars(&project.at("a.csv"), 1, 60, 1, &["open", "high", "close"]);
    let mut request = project.request(&["a.csv"], Wanted::Embedding { wide: false });
    let message = refused(&request);
    assert!(message.contains("has no column `low`, which the model reads"), "{message}");
    request.settings = vec!["data.columns.channels=['open', 'high', 'low', 'close']".to_owned()];
    let message = refused(&request);
    assert!(message.contains("`low`, which `data.columns.channels` names"), "{message}");
}

#[test]
fn products_are_as_exact_as_in_the_training_or_nothing_is_computed() {
    let mut saved = encoder();
    saved.card.settings = serde_json::json!({ "run": { "matmul": "highest" } });
    let project = Project::new(&saved);
    bars(&project.at("a.csv"), 1, 60, 1, &ORDER);
    let request = project.request(&["a.csv"], Wanted::Embedding { wide: false });
    // A processor under the name of a GPU takes no kernel by name.
    let (device, stop) = (ChosenDevice::named("cuda"), Arc::new(AtomicBool::new(false)));
    let error = apply(&request, &device, &stop, &Silent).unwrap_err();
    let said = error.to_string();
    assert!(error.is_bad_input() && said.contains("takes no named products"), "{said}");
    assert!(said.contains("take --device cpu"), "{said}");
    assert!(!request.output.exists());
    run(&request).unwrap();
}

#[test]
fn data_of_another_kind_is_refused_by_name() {
    let project = Project::new(&encoder());
    let refused_of = |order: &[&str], minutes, count| {
        bars(&project.at("a.csv"), 1, count, minutes, order);
        refused(&project.request(&["a.csv"], Wanted::Embedding { wide: false }))
    };
    let message = refused_of(&["open", "high", "low"], 1, 60);
    assert!(message.contains("close") && message.contains("a.csv"), "{message}");
    let message = refused_of(&ORDER, 5, 60);
    assert!(
        message.contains("steps of 5min, and the model was trained on steps of 1min"),
        "{message}"
    );
    // Several series in a file, one of which is of another rate.
    let row = |series: &str, second: usize| {
        format!("2024-01-01T00:{:02}:{:02},{series},1,2,0.5,1\n", second / 60, second % 60)
    };
    let [first, second] = [("a", 60), ("b", 45)]
        .map(|(series, step)| (0..40).map(|at| row(series, at * step)).collect::<String>());
    let text = format!("time,symbol,open,high,low,close\n{first}{second}");
    std::fs::write(project.at("a.csv"), text).unwrap();
    let message = refused(&project.request(&["a.csv"], Wanted::Embedding { wide: false }));
    assert!(message.contains("has steps of "), "{message}");
    assert!(message.contains("would span another time there"), "{message}");
    let message = refused_of(&ORDER, 1, 5);
    assert!(message.contains("12 consecutive steps, and the longest run"), "{message}");
    std::fs::write(
        project.at("a.csv"),
        "time,open,high,low,close\n2024-01-01T00:00,1,2,0.5,\n2024-01-01T00:01,1,2,0.5,1\n",
    )
    .unwrap();
    let request = project.request(&["a.csv"], Wanted::Embedding { wide: false });
    let message = refused(&request);
    assert!(message.contains("not_finite"), "{message}");
}

#[test]
fn nothing_is_overwritten_unless_it_is_asked_for() {
    let project = Project::new(&encoder());
    bars(&project.at("a.csv"), 1, 60, 1, &ORDER);
    let wanted = Wanted::Embedding { wide: false };
    let request = project.request(&["a.csv"], wanted);
    let into = |output: &str| ApplyRequest { output: project.at(output), ..request.clone() };
    let message = run(&into("a.csv")).unwrap_err().to_string();
    assert!(message.contains("a file that is read"), "{message}");
    let message = refused(&into("no/out.parquet"));
    assert!(message.contains("no such folder"), "{message}");
    std::fs::create_dir(project.at("folder")).unwrap();
    assert!(refused(&into("folder")).contains("no regular file"));
    assert!(refused(&into("folder")).contains("name a file in it"));
    let message = refused(&into("new/"));
    assert!(message.contains("it is the name of a folder"), "{message}");
    let message = refused(&ApplyRequest { output: PathBuf::new(), ..request.clone() });
    assert!(message.contains("is empty"), "{message}");
    // Not even with `force`: the model, and what is not to be written.
    let force = |output: &str| ApplyRequest { force: true, ..into(output) };
    for own in ["model/model.json", "model/model.safetensors"] {
        let before = std::fs::read(project.at(own)).unwrap();
        let message = run(&force(own)).unwrap_err().to_string();
        assert!(message.contains("a file that is read"), "{message}");
        assert!(std::fs::read(project.at(own)).unwrap() == before);
    }
    std::fs::write(project.at("kept.parquet"), "mine").unwrap();
    let read_only = |value: bool| {
        let mut now = std::fs::metadata(project.at("kept.parquet")).unwrap().permissions();
        now.set_readonly(value);
        std::fs::set_permissions(project.at("kept.parquet"), now).unwrap();
    };
    read_only(true);
    let message = run(&force("kept.parquet")).unwrap_err().to_string();
    assert!(message.contains("read-only") && message.contains("make it writable"), "{message}");
    read_only(false);
    let told = run(&force("kept.parquet")).unwrap().output;
    assert_eq!(told, project.at("kept.parquet"), "as it was named");
    std::fs::remove_file(told).unwrap();
    run(&request).unwrap();
    let first = std::fs::read(&request.output).unwrap();
    let message = run(&request).unwrap_err().to_string();
    assert!(message.contains("it is there already\n  replace it with --force"), "{message}");
    run(&ApplyRequest { force: true, ..request.clone() }).unwrap();
    assert_eq!(std::fs::read(&request.output).unwrap(), first, "the same bytes");
    let names = std::fs::read_dir(project.0.path()).unwrap().flatten();
    assert_eq!(names.count(), 4, "the model, the bars, the folder, the result");
}

/// A series without times, one value of each channel a step.
fn untimed(path: &Path, steps: usize) {
    let rows: String =
        (0..steps).map(|step| format!("{step},{},{step},{step}\n", step + 1)).collect();
    std::fs::write(path, format!("open,high,low,close\n{rows}")).unwrap();
}

#[test]
fn windows_that_the_encoder_leaves_nothing_of_are_refused_by_file_and_length() {
    let mut saved = classifier();
    saved.card.window.whole = true;
    saved.card.interval = None;
    let Architecture::CnnBilstm { config, .. } = &mut saved.card.architecture else { panic!() };
    config.convolutions = vec![4, 4, 4];
    saved.parameters = model(saved.card.architecture.clone(), &["a", "b", "c"]).parameters;
    let project = Project::new(&saved);
    std::fs::create_dir(project.at("in")).unwrap();
    untimed(&project.at("in/a.csv"), 8);
    let request = project.request(&["in"], Wanted::Prediction);
    assert_eq!(run(&request).unwrap().windows, 1);
    std::fs::remove_file(&request.output).unwrap();
    untimed(&project.at("in/b.csv"), 7);
    for wanted in [Wanted::Prediction, Wanted::Embedding { wide: false }] {
        let message = refused(&project.request(&["in"], wanted));
        assert!(message.contains("b.csv: series `b` has 7 steps"), "{message}");
        assert!(message.contains("need 8\n  leave short series out"), "{message}");
    }
}

#[test]
fn an_array_of_one_step_is_a_window_of_a_model_of_whole_series() {
    let mut saved = encoder();
    (saved.card.window.whole, saved.card.interval) = (true, None);
    let project = Project::new(&saved);
    let text = "{'descr': '<f8', 'fortran_order': False, 'shape': (1, 4), }\n";
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    [1.0_f64, 2.0, 0.5, 1.5].iter().for_each(|value| bytes.extend(value.to_le_bytes()));
    std::fs::write(project.at("a.npy"), &bytes).unwrap();
    let request = project.request(&["a.npy"], Wanted::Embedding { wide: false });
    assert_eq!(run(&request).unwrap().windows, 1);
    // Of another model it is told that it is too short for its windows.
    saved.card.window.whole = false;
    let project = Project::new(&saved);
    std::fs::write(project.at("a.npy"), &bytes).unwrap();
    let message = refused(&project.request(&["a.npy"], Wanted::Embedding { wide: false }));
    assert!(message.contains("the longest") && message.contains("series `a`"), "{message}");
}

#[test]
fn data_without_times_is_refused_unless_the_length_of_its_steps_is_said() {
    let project = Project::new(&encoder());
    untimed(&project.at("a.csv"), 30);
    let mut request = project.request(&["a.csv"], Wanted::Embedding { wide: false });
    let message = refused(&request);
    for part in
        ["a.csv has no times, and the model was trained on steps of 1min", "data.interval=1min"]
    {
        assert!(message.contains(part), "{message}");
    }
    request.settings = vec!["data.interval=5min".to_owned()];
    let message = refused(&request);
    assert!(
        message.contains("steps of 5min, and the model was trained on steps of 1min"),
        "{message}"
    );
    request.settings = vec!["data.interval=1min".to_owned()];
    assert_eq!(run(&request).unwrap().windows, 4);
    // What the model's own data declared is not said of new data.
    let mut saved = encoder();
    let interval = firebox_data::Interval::from_microseconds(60_000_000);
    saved.card.data =
        serde_json::to_value(DataConfig { interval, ..DataConfig::default() }).unwrap();
    let project = Project::new(&saved);
    untimed(&project.at("a.csv"), 30);
    refused(&project.request(&["a.csv"], Wanted::Embedding { wide: false }));
}

#[test]
fn series_that_are_longer_than_their_window_are_told() {
    let mut saved = encoder();
    saved.card.window.whole = true;
    saved.card.interval = None;
    let project = Project::new(&saved);
    std::fs::create_dir(project.at("in")).unwrap();
    for (name, steps) in [("a", LENGTH), ("b", 70), ("c", 30)] {
        untimed(&project.at("in").join(name).with_extension("csv"), steps);
    }
    let (applied, heard) = heard(&project.request(&["in"], Wanted::Embedding { wide: false }));
    assert_eq!(applied.windows, 3);
    let told = |message: &&String| message.contains("2 of 3 series are longer than the 12 steps");
    assert!(
        heard.iter().find(told).unwrap().contains("(the longest, `b`, has 70 steps)"),
        "{heard:?}"
    );
}

#[test]
fn groups_of_the_training_data_are_not_asked_of_new_data() {
    for (group, pattern) in [(Some("subject"), None), (None, Some("^(P[0-9]+)_"))] {
        let mut saved = encoder();
        let mut data: DataConfig = serde_json::from_value(saved.card.data.clone()).unwrap();
        data.columns.group = group.map(str::to_owned);
        data.group_pattern = pattern.map(str::to_owned);
        saved.card.data = serde_json::to_value(data).unwrap();
        let project = Project::new(&saved);
        bars(&project.at("a.csv"), 1, 60, 1, &ORDER);
        let request = project.request(&["a.csv"], Wanted::Embedding { wide: false });
        assert_eq!(run(&request).unwrap().windows, 10);
    }
}
