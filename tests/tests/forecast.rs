//! The pipeline `forecast`, whole: what it leaves, what it refuses, that it goes on where it was
//! stopped, and its search.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::path::{Path, PathBuf};
use std::process::Output;

use firebox_tests::{
    command, compared_with_its_copy, errors, firebox, kept_and_computed_again, python, root,
    streamed_and_on_device,
};
use serde_json::Value;
use tempfile::TempDir;

const PIPELINE: &str = r#"
pipeline = "forecast"
[run]
seed = 7
[data]
path = "small.demand.toml"
[window]
length = 12
stride = 2
normalise = "standard"
[split.time]
validation = 0.2
test = 0.3
[forecast]
targets = ["demand"]
horizons = [1, 3]
inputs = ["demand"]
statics = ["size"]
calendar = ["hour"]
season = 24
seeds = 2
[loader]
batch_size = 64
[model.stacked-lstm]
hidden_1 = 8
hidden_2 = 4
dense = 6
[train]
epochs = 3
early_stopping = false
[train.checkpoint]
resume_every = 2
[train.schedule.plateau]
patience = 1
[evaluate]
resamples = 200
"#;

const SEARCH: &str = r#"
[search]
trials = 3
sampler = "grid"
[search.space]
"model.stacked-lstm.hidden_2" = { low = 2, high = 6, step = 2 }
"loader.batch_size" = { choices = [32, 64] }
"#;

fn project(search: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("small.demand.toml"), "stations = 2\nhours = 2000\n")
        .unwrap();
    std::fs::write(folder.path().join("p.toml"), format!("{PIPELINE}{search}")).unwrap();
    folder
}

fn done(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{}{said}", errors(output));
    said
}

/// The one run of a project.
fn run_folder(folder: &Path) -> PathBuf {
    let entries = std::fs::read_dir(folder.join("runs")).unwrap().flatten();
    let mut runs: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    runs.retain(|run| run.join("pipeline.toml").is_file());
    assert_eq!(runs.len(), 1, "{runs:?}");
    runs.remove(0)
}

fn scores(run: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(run.join("scores.json")).unwrap()).unwrap()
}

#[test]
fn a_forecast_leaves_a_report_with_its_baselines_and_is_not_made_twice() {
    let project = project("");
    let folder = project.path();
    let said = done(&firebox(folder, &["run", "p.toml"]));
    assert!(said.contains("The model"), "{said}");
    let run = run_folder(folder);
    let page = std::fs::read_to_string(run.join("report.html")).unwrap();
    for text in
        ["Forecast errors", "Forecasts and truth", "seasonal naive (24 steps)", "linear model"]
    {
        assert!(page.contains(text), "{text}");
    }
    let figures = &scores(&run)["results"];
    let outputs: Vec<u64> = figures["outputs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|output| output["horizon"].as_u64().unwrap())
        .collect();
    assert_eq!(outputs, [1, 3]);
    // Four forecasters at two horizons and over both, of which the model has two seeds.
    let all = figures["scores"].as_array().unwrap();
    assert_eq!(all.len(), 12);
    assert_eq!(all[0]["runs"].as_array().unwrap().len(), 2);
    assert_ne!(all[0]["runs"][0], all[0]["runs"][1]);
    for score in all {
        let mae = score["mae"]["value"].as_f64().unwrap();
        assert!(mae > 0.0 && score["mae"]["low"].as_f64().unwrap() <= mae, "{score}");
    }
    // Twelve steps of a window, three ahead, or a season; two stations; every second step.
    assert_eq!(figures["block"], 24);
    let page = compared_with_its_copy(folder, &run);
    for part in [
        " mean absolute error of demand 1 and 3 steps ahead",
        " in the training of the first seed, ",
        " in 1 other training<",
    ] {
        assert!(page.contains(part), "{part}");
    }
    let card = std::fs::read(run.join("model/model.json")).unwrap();
    let card: Value = serde_json::from_slice(&card).unwrap();
    assert!(card["settings"]["forecast"].is_object() && card["settings"]["augment"].is_null());
    let before = std::fs::metadata(run.join("report.html")).unwrap().modified().unwrap();
    done(&firebox(folder, &["run", "p.toml"]));
    let after = std::fs::metadata(run.join("report.html")).unwrap().modified().unwrap();
    assert_eq!(before, after);
    // Another season is another evaluation of the same training.
    let again = firebox(folder, &["run", "p.toml", "--set", "forecast.season=12"]);
    done(&again);
    assert!(errors(&again).contains("reused"), "{}", errors(&again));
    let value = |score: &Value| score["mae"]["value"].as_f64().unwrap();
    let again = &scores(&run_folder(folder))["results"]["scores"][0];
    assert_eq!(value(again), value(&all[0]));
}

/// Hours that nobody knows are no hours of 1970.
fn without_times_is_refused(folder: &Path, run: &str) {
    let table = std::fs::read_to_string(folder.join("demand.csv")).unwrap();
    let time =
        table.lines().next().unwrap().split(',').position(|name| name == "timestamp").unwrap();
    let without = |line: &str| {
        let fields = line.split(',').enumerate().filter(|(place, _)| *place != time);
        fields.map(|(_, field)| field).collect::<Vec<_>>().join(",") + "\n"
    };
    std::fs::write(folder.join("untimed.csv"), table.lines().map(without).collect::<String>())
        .unwrap();
    let series = ["--set", "data.columns.series=station", "--set", "data.interval=1h"];
    let new = ["predict", run, "untimed.csv", "--output", "untimed.parquet"];
    let output = firebox(folder, &[&new[..], &series].concat());
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
    let expected = "untimed.csv has no times, and the model forecasts by the calendar";
    assert!(errors(&output).contains(expected), "{}", errors(&output));
    assert!(!folder.join("untimed.parquet").exists());
}

/// A file may have too little of each series by itself.
fn series_that_go_on_in_another_file(folder: &Path, run: &str) {
    let table = std::fs::read_to_string(folder.join("demand.csv")).unwrap();
    let (header, rows) = table.split_once('\n').unwrap();
    let place = header.split(',').position(|name| name == "station").unwrap();
    let mut stations = std::collections::BTreeSet::new();
    let (first, rest): (Vec<&str>, Vec<&str>) =
        rows.lines().partition(|row| stations.insert(row.split(',').nth(place).unwrap()));
    assert_eq!(first.len(), 2);
    std::fs::create_dir_all(folder.join("days")).unwrap();
    for (name, rows) in [("1.csv", first), ("2.csv", rest)] {
        let text = format!("{header}\n{}\n", rows.join("\n"));
        std::fs::write(folder.join("days").join(name), text).unwrap();
    }
    let new = ["predict", run, "days", "--output", "days.parquet", "--force"];
    let said =
        done(&firebox(folder, &[&new[..], &["--set", "data.columns.series=station"]].concat()));
    assert!(said.contains("390 windows of 2 series in 2 files"), "{said}");
}

#[test]
fn the_forecaster_is_kept_and_forecasts_new_data_in_its_own_units() {
    let project = project("");
    let folder = project.path();
    let settings = "stations = 2\nhours = 400\nseed = 5\n";
    std::fs::write(folder.join("new.demand.toml"), settings).unwrap();
    done(&firebox(folder, &["data", "generate", "new.demand.toml", "demand.csv"]));
    for (predict, seeds) in [("value", "2"), ("change", "1"), ("relative-change", "1")] {
        let predict = format!("forecast.predict={predict}");
        let seeds = format!("forecast.seeds={seeds}");
        done(&firebox(folder, &["run", "p.toml", "--set", &predict, "--set", &seeds]));
        let run = run_folder(folder).display().to_string();
        let apply = |command: &str, output: &str| {
            let series = "data.columns.series=station";
            let new = ["demand.csv", "--output", output, "--force", "--set", series];
            done(&firebox(folder, &[&[command, run.as_str()][..], &new].concat()))
        };
        let said = apply("predict", "forecasts.parquet");
        assert!(
            said.contains("390 windows of 2 series in 1 file: forecasts of 2 values"),
            "{said}"
        );
        series_that_go_on_in_another_file(folder, &run);
        apply("embed", "vectors.parquet");
        without_times_is_refused(folder, &run);
        done(&firebox(
            folder,
            &["export", &run, "--format", "torch", "--output", "model", "--force"],
        ));
        done(&firebox(
            folder,
            &["export", &run, "--format", "onnx", "--output", "m.onnx", "--force"],
        ));
        let card = std::fs::read_to_string(folder.join("model/README.md")).unwrap();
        assert!(card.contains("`demand+1`, `demand+3`"), "{card}");
        if let Some(python) = python("numpy, polars, safetensors, torch") {
            let script = root().join("tests/forecasts.py");
            let output =
                std::process::Command::new(&python).arg(script).arg(folder).output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{said}{}", errors(&output));
            assert!(said.contains("390 windows of demand+1, demand+3 agree"), "{said}");
            // What is written of the test windows gives the scores.
            let script = root().join("tests/scored.py");
            let output =
                std::process::Command::new(&python).arg(script).arg(&run).output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{said}{}", errors(&output));
            assert!(said.contains("32 scores of "), "{said}");
        }
        std::fs::remove_dir_all(folder.join("runs")).unwrap();
    }
}

#[test]
fn a_static_feature_that_is_no_number_is_refused_by_name() {
    let project = project("");
    let folder = project.path();
    done(&firebox(folder, &["data", "generate", "small.demand.toml", "demand.csv"]));
    let text = std::fs::read_to_string(folder.join("demand.csv")).unwrap();
    let header: Vec<&str> = text.lines().next().unwrap().split(',').collect();
    let place = header.iter().position(|name| *name == "size").unwrap();
    let spoilt: Vec<String> = text
        .lines()
        .enumerate()
        .map(|(row, line)| {
            let mut cells: Vec<&str> = line.split(',').collect();
            if row == 500 {
                cells[place] = "NaN";
            }
            cells.join(",")
        })
        .collect();
    std::fs::write(folder.join("demand.csv"), spoilt.join("\n") + "\n").unwrap();
    let series = "data.columns.series=station";
    let output =
        firebox(folder, &["run", "p.toml", "--set", "data.path=demand.csv", "--set", series]);
    let said = errors(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("`size`") && said.contains("not_finite"), "{said}");
}

#[cfg(unix)]
#[test]
fn a_run_that_is_stopped_goes_on_to_the_same_scores() {
    let plain = check_that_it_goes_on(PLAIN);
    assert_ne!(plain, check_that_it_goes_on(NOISE));
}

/// Nothing is drawn of windows.
#[cfg(unix)]
const PLAIN: &str = "";

/// Windows with noise, and with steps that are hidden.
#[cfg(unix)]
const NOISE: &str = r#"
[augment]
mode = "online"
versions = 1
scaling = { probability = 0.0 }
time_warp = { probability = 0.0 }
volatility_scaling = { probability = 0.0 }
jitter = { probability = 1.0, sigma = 0.3 }
[forecast.masking]
time_masks = 1
longest = 0.3
"#;

#[cfg(unix)]
fn check_that_it_goes_on(more: &str) -> Value {
    let project = || project(more);
    let whole = project();
    let long = ["run", "p.toml", "--set", "train.epochs=6"];
    let said = done(&firebox(whole.path(), &long));
    // Two samples of each window, where versions are drawn.
    let counted = said.split_once("trained on ").unwrap().1.split_once(':').unwrap().0;
    let (windows, rest) = counted.split_once(" windows").unwrap();
    let versions = format!(" ({} with augmented versions)", 2 * windows.parse::<usize>().unwrap());
    assert_eq!(rest, if more.is_empty() { "" } else { versions.as_str() }, "{said}");
    let expected = scores(&run_folder(whole.path()))["results"].clone();
    let stopped = project();
    let folder = stopped.path();
    let mut child = command(folder, &long).stderr(std::process::Stdio::null()).spawn().unwrap();
    // In the training of the second seed, if it comes so far.
    for _ in 0..2000 {
        let parts = std::fs::read_dir(folder.join("runs")).into_iter().flatten().flatten();
        if parts.map(|run| run.path().join("parts")).any(|parts| parts.is_dir()) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let kill = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    done(&firebox(folder, &long));
    assert_eq!(scores(&run_folder(folder))["results"], expected);
    expected
}

/// Bars of 15 minutes that are made of rows of one minute.
#[test]
fn the_season_of_bars_that_are_made_is_theirs() {
    let project = project("");
    let folder = project.path();
    let market = "seed = 7\nbars = 6000\ninstruments = [\"ONE\"]\nfirst_day = \"2024-06-03\"\n\
                  session_open = 0\nsession_bars = 1440\n[regimes.calm]\nreversion = 0.02\n";
    std::fs::write(folder.join("bars.market.toml"), market).unwrap();
    let settings = [
        "data.path=bars.market.toml",
        "data.checks.gaps=fill",
        "data.timeframes={higher=[\"1h\"],higher_periods={average=6,strength=6}}",
        "forecast.targets=[\"15min_return\"]",
        "forecast.inputs=[\"15min_return\"]",
        "forecast.statics=[]",
        "forecast.seeds=1",
        "train.epochs=1",
    ];
    // The file writes a season of its own.
    let pipeline = PIPELINE.replace("season = 24\n", "");
    std::fs::write(folder.join("p.toml"), pipeline).unwrap();
    let mut arguments = vec!["run", "p.toml"];
    settings.iter().for_each(|setting| arguments.extend(["--set", setting]));
    done(&firebox(folder, &arguments));
    let run = run_folder(folder);
    let resolved = std::fs::read_to_string(run.join("pipeline.toml")).unwrap();
    let season = "# forecast.season = 96: that of `data.timeframes.base`";
    assert!(resolved.contains(season), "{resolved}");
    let page = std::fs::read_to_string(run.join("report.html")).unwrap();
    assert!(page.contains("6000 rows read, 6005 rows kept in 1 series"));
    assert!(page.contains("One row every 1min (the most frequent). Of these"));
    // An hour's rows of a second, in which there is no day.
    let row = |second: u32| {
        let value = (f64::from(second) / 9.0).sin();
        format!("2024-06-03T10:{:02}:{:02},{value}\n", second / 60, second % 60)
    };
    let rows: String = (0..3000).map(row).collect();
    std::fs::write(folder.join("seconds.csv"), format!("time,load\n{rows}")).unwrap();
    std::fs::remove_dir_all(folder.join("runs")).unwrap();
    let own =
        ["data.path=seconds.csv", "forecast.targets=[\"load\"]", "forecast.inputs=[\"load\"]"];
    let mut arguments = vec!["run", "p.toml"];
    own.iter().chain(&settings[5..]).for_each(|setting| arguments.extend(["--set", setting]));
    let output = firebox(folder, &arguments);
    done(&output);
    assert!(!errors(&output).contains("seasonal naive"), "{}", errors(&output));
    let resolved = std::fs::read_to_string(run_folder(folder).join("pipeline.toml")).unwrap();
    let season =
        "# forecast.season = none: no run of training steps is longer than a usual one of 86400";
    assert!(resolved.contains(season), "{resolved}");
}

#[test]
fn series_that_are_a_window_each_are_forecast_from_their_ends() {
    let project = project("");
    let folder = project.path();
    let mut table = "series,load\n".to_owned();
    for series in 0..20 {
        for step in 0..40 {
            let load = (f64::from(step + series) / 3.0).sin();
            table += &format!("s{series:02},{load}\n");
        }
    }
    std::fs::write(folder.join("series.csv"), table).unwrap();
    let settings = [
        "data.path=series.csv",
        "data.columns.series=series",
        "window.whole=true",
        "window.stride=1",
        "window.length=30",
        "split={series={validation=0.2,test=0.3}}",
        "forecast.targets=[\"load\"]",
        "forecast.inputs=[\"load\"]",
        "forecast.statics=[]",
        "forecast.calendar=[]",
        "forecast.seeds=1",
        "train.epochs=1",
    ];
    let mut arguments = vec!["run", "p.toml"];
    settings.iter().for_each(|setting| arguments.extend(["--set", setting]));
    let output = firebox(folder, &arguments);
    done(&output);
    let told = "20 of 20 series are longer than the 30 steps of a window, and what comes before them is not seen";
    assert!(errors(&output).contains(told), "{}", errors(&output));
    let run = run_folder(folder).display().to_string();
    let new = ["predict", run.as_str(), "series.csv", "--output", "all.parquet"];
    let output = firebox(folder, &[&new[..], &["--set", "data.columns.series=series"]].concat());
    assert!(done(&output).contains("20 windows of 20 series"), "{}", errors(&output));
    assert!(errors(&output).contains(told), "{}", errors(&output));
}

#[test]
fn series_of_one_weather_are_not_equal_if_what_is_forecast_is_not() {
    let project = project("");
    let folder = project.path();
    let mut table = "series,wind,load\n".to_owned();
    for series in 0..8 {
        for step in 0..40 {
            let (wind, load) = (f64::from(step) / 5.0, f64::from(step + 3 * series) / 3.0);
            table += &format!("s{series},{},{}\n", wind.sin(), load.sin());
        }
    }
    std::fs::write(folder.join("series.csv"), table).unwrap();
    let settings = [
        "data.path=series.csv",
        "data.columns.series=series",
        "split={series={validation=0.25,test=0.25}}",
        "forecast.targets=[\"load\"]",
        "forecast.inputs=[\"wind\"]",
        "forecast.statics=[]",
        "forecast.calendar=[]",
        "forecast.seeds=1",
        "train.epochs=1",
    ];
    let mut arguments = vec!["run", "p.toml"];
    settings.iter().for_each(|setting| arguments.extend(["--set", setting]));
    // By the wind alone, all of them would be of one part.
    done(&firebox(folder, &arguments));
}

#[test]
fn what_cannot_be_forecast_is_refused_with_the_way_out() {
    let project = project("");
    let folder = project.path();
    let refused = |settings: &[&str], expected: &str| {
        let mut arguments = vec!["run", "p.toml"];
        settings.iter().for_each(|setting| arguments.extend(["--set", setting]));
        let output = firebox(folder, &arguments);
        let text = errors(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(expected), "{expected}\n{text}");
    };
    refused(
        &["forecast.targets=[\"load\"]"],
        "`forecast.targets` names `load`, and the data has the channels `demand`, `size`, `homes`",
    );
    refused(&["forecast.targets=[]"], "`forecast.targets` is empty");
    refused(&["forecast.horizons=[3, 1]"], "in increasing order");
    refused(&["forecast.horizons=[0]"], "each at least 1");
    refused(&["forecast.statics=[\"size\", \"size\"]"], "names `size` twice");
    refused(&["forecast.seeds=0"], "`forecast.seeds` is 0");
    refused(&["forecast.loss.huber.delta=0"], "`huber.delta` of a loss is 0");
    refused(&["labels=last"], "does not use `labels`");
    refused(&["augment.versions=2"], "`forecast` stores no versions of windows");
    refused(&["augment.mode=online"], "what follows a window that was scaled, warped or stretched");
    refused(&["pipeline=pretrain"], "[forecast] is there");
    refused(&["split.time.test=0"], "no forecast could be measured after training");
    refused(
        &["forecast.horizons=[4000]"],
        "a window takes 12 steps (`window.length`), and the 4000 after it up to the last of `forecast.horizons`",
    );
    let without =
        PIPELINE.replace("[model.stacked-lstm]\nhidden_1 = 8\nhidden_2 = 4\ndense = 6\n", "");
    std::fs::write(folder.join("p.toml"), without).unwrap();
    refused(&[], "cannot train [model.bilstm-mae]\n");
    std::fs::write(folder.join("p.toml"), "pipeline = \"forecast\"\n[model.stacked-lstm]\n")
        .unwrap();
    refused(&[], "has no table [forecast]");
}

#[test]
fn a_search_over_a_forecaster_shares_its_data_among_the_trials() {
    let project = project(SEARCH);
    let folder = project.path();
    let said = done(&firebox(folder, &["search", "p.toml"]));
    assert!(said.contains("3 complete"), "{said}");
    assert!(folder.join("runs/p.search/best.toml").is_file());
    // Two trials with the same values are one run.
    let logs = std::fs::read_dir(folder.join("runs")).unwrap().flatten();
    let logs = logs.filter_map(|run| std::fs::read_to_string(run.path().join("events.jsonl")).ok());
    let logs: Vec<String> = logs.collect();
    let shared = logs.iter().filter(|log| log.contains("shared with other trials")).count();
    assert_eq!(shared, logs.len() - 1, "all but the first");
    // What is measured may not be searched.
    let wrong = SEARCH.replace(
        "\"loader.batch_size\" = { choices = [32, 64] }",
        "\"forecast.loss\" = { choices = [\"mse\", \"mae\"] }",
    );
    std::fs::write(folder.join("p.toml"), format!("{PIPELINE}{wrong}")).unwrap();
    let output = firebox(folder, &["search", "p.toml"]);
    assert!(errors(&output).contains("it changes what is measured"), "{}", errors(&output));
}

#[test]
fn the_pipelines_that_are_shipped_can_be_planned() {
    for name in ["forecast", "search-forecast"] {
        let file = root().join(format!("pipelines/{name}.toml"));
        let folder = tempfile::tempdir().unwrap();
        let file = file.display().to_string();
        let said = done(&firebox(folder.path(), &["plan", &file]));
        assert!(said.contains("windows") && said.contains("not stored"), "{said}");
    }
}

/// The R² of validation windows by which a search may choose: of one output, whose scale is one number,
/// what it lacks to 1 is the validation loss times a constant, of every model.
#[test]
fn a_search_by_r2_looks_for_the_greatest() {
    let search = r#"
[search]
trials = 3
sampler = "grid"
objectives = ["validation-r2", "validation-loss"]
[search.space]
"model.stacked-lstm.hidden_2" = { low = 2, high = 6, step = 2 }
"#;
    let project = project(search);
    let folder = project.path();
    std::fs::write(folder.join("small.demand.toml"), "stations = 1\nhours = 2000\n").unwrap();
    let one = ["--set", "forecast.horizons=[1]", "--set", "forecast.statics=[]"];
    let drop = ["--set", "data.checks.constant=drop", "--set", "forecast.seeds=1"];
    let said = done(&firebox(folder, &[&["search", "p.toml"], &one[..], &drop].concat()));
    let journal = std::fs::read_to_string(folder.join("runs/p.search/study.log")).unwrap();
    let entries: Vec<Value> =
        journal.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // Optuna's numbers of MAXIMIZE and MINIMIZE.
    assert_eq!(entries[0]["directions"], serde_json::json!([2, 1]));
    let ended = entries.iter().filter(|entry| entry["op_code"] == 6 && entry["state"] == 1);
    let values: Vec<[f64; 2]> =
        ended.map(|entry| [0, 1].map(|place| entry["values"][place].as_f64().unwrap())).collect();
    assert_eq!(values.len(), 3);
    let ratio = |[r2, loss]: [f64; 2]| (1.0 - r2) / loss;
    for own in &values {
        assert!(own[0] < 1.0 && (ratio(*own) / ratio(values[0]) - 1.0).abs() < 1e-5, "{values:?}");
    }
    let best = values.iter().map(|own| own[0]).fold(f64::NEG_INFINITY, f64::max);
    let told = format!("with a validation R2 of {best:.5}").replace('-', "\u{2212}");
    assert!(said.contains(&told), "{said}");
}

#[test]
fn a_forecaster_learns_the_same_from_windows_that_lie_on_the_device() {
    let project = project("");
    let ([streamed, on_device], resolved) =
        streamed_and_on_device(project.path(), &["train.epochs=1"]);
    assert_eq!(streamed.len(), 2, "one training for each seed");
    assert_eq!(streamed, on_device);
    assert!(resolved.contains("loader.resident = device: asked for ("), "{resolved}");
}

#[test]
fn a_forecaster_learns_the_same_with_layers_that_are_computed_again() {
    let project = project("");
    let ([kept, again], resolved) = kept_and_computed_again(project.path(), &["train.epochs=1"]);
    assert_eq!(kept.len(), 2, "one training for each seed");
    assert_eq!(kept, again);
    assert!(resolved.contains("run.recompute = true: as written; measured: "), "{resolved}");
}
