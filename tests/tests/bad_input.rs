//! What a user sees who gets something wrong: the message, exit code 2, and no run folder.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use firebox_tests::firebox;

/// Runs a pipeline text and returns what it says, with the folder's name taken out.
fn refused(pipeline: &str, arguments: &[&str], prepare: impl Fn(&Path)) -> String {
    failed(2, pipeline, arguments, prepare)
}

/// The same of a run that ends with a code.
fn failed(code: i32, pipeline: &str, arguments: &[&str], prepare: impl Fn(&Path)) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("p.toml"), pipeline).unwrap();
    let bars: String = (0..300)
        .map(|i| format!("2024-03-01T{:02}:{:02}:00,{i},{},{},{i}\n", i / 60, i % 60, i + 1, i - 1))
        .collect();
    let bars = format!("time,open,high,low,close\n{bars}");
    std::fs::write(folder.path().join("bars.csv"), bars).unwrap();
    prepare(folder.path());
    let output = firebox(folder.path(), &[&["run", "p.toml"], arguments].concat());
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{errors}");
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    let runs = std::fs::read_dir(folder.path().join("runs")).into_iter().flatten().flatten();
    let mut runs = runs.map(|run| run.path());
    match code {
        // Nothing was begun.
        2 => assert_eq!(runs.next(), None),
        _ => assert!(runs.all(|run| !run.join("manifest.json").exists()), "a run looks finished"),
    }
    let text = errors.replace(&folder.path().display().to_string(), "DIR");
    // What was done before the error, and how long it took, is no part of the message.
    text.lines().skip_while(|line| !line.starts_with("error:")).collect::<Vec<_>>().join("\n")
}

const GOOD: &str = "[data]\npath = \"bars.csv\"\n[window]\nlength = 8\n";

macro_rules! refuses {
    ($($name:ident: $pipeline:expr, $arguments:expr, $prepare:expr;)*) => {$(
        #[test]
        fn $name() {
            insta::assert_snapshot!(stringify!($name), refused($pipeline, &$arguments, $prepare));
        }
    )*};
}

fn nothing(_: &Path) {}

/// Adds a column of labels to the bars.
fn labelled(folder: &Path, label: impl Fn(usize) -> String) {
    let bars = std::fs::read_to_string(folder.join("bars.csv")).unwrap();
    let label = |(row, line): (usize, &str)| match row {
        0 => format!("{line},label\n"),
        row => format!("{line},{}\n", label(row)),
    };
    let text: String = bars.lines().enumerate().map(label).collect();
    std::fs::write(folder.join("bars.csv"), text).unwrap();
}

/// Labelled samples of 24 steps, without times.
fn samples(count: usize) -> String {
    let line = |index: usize| {
        let values: Vec<_> = (0..24).map(|step| (step * (index % 3 + 1) % 7).to_string()).collect();
        format!("{}:{}\n", values.join(","), ["a", "b"][index % 2])
    };
    let lines: String = (0..count).map(line).collect();
    format!("@problemName P\n@classLabel true a b\n@data\n{lines}")
}

refuses! {
    unknown_table: "[tarin]\nepochs = 3\n", [], nothing;
    unknown_key: "[train]\nepoch = 3\n", [], nothing;
    wrong_type: "[window]\nlength = \"long\"\n", [], nothing;
    broken_toml: "[window\n", [], nothing;
    negative_count: "[window]\nlength = -5\n", [], nothing;
    unknown_pipeline: "pipeline = \"pretain\"\n", [], nothing;
    unknown_choice: "[model.lstm]\nhidden = 3\n", [], nothing;
    set_without_value: GOOD, ["--set", "train.epochs"], nothing;
    set_unknown_key: GOOD, ["--set", "train.epoch=3"], nothing;
    unknown_device: GOOD, ["--device", "gpu"], nothing;
    device_not_compiled_in: GOOD, ["--device", "cuda"], nothing;
    unknown_precision: GOOD, ["--set", "run.precision=half"], nothing;
    precision_not_there_yet: GOOD, ["--set", "run.precision=tf32"], nothing;
    f16_without_a_scale: GOOD, ["--set", "run.precision=f16", "--set", "train.loss_scale=off"], nothing;
    static_scale_of_zero: GOOD, ["--set", "train.loss_scale.static=0"], nothing;
    two_ways_of_clipping: GOOD, ["--set", "train.clip_value=0.5"], nothing;
    unknown_group: GOOD, ["--set", "train.groups=[{parameters=[\"lstn.*\"],frozen=true}]"], nothing;
    no_epochs: GOOD, ["--set", "train.epochs=0"], nothing;
    dropout_of_one: GOOD, ["--set", "model.bilstm-mae.dropout=1"], nothing;
    window_too_long: GOOD, ["--set", "window.length=400"], nothing;
    empty_side: GOOD, ["--set", "split.time.validation=0.02", "--set", "split.time.test=0.2"], nothing;
    shares_over_one: GOOD, ["--set", "split.time.validation=0.1", "--set", "split.time.test=0.95"], nothing;
    split_not_given: GOOD, ["--set", "split.given.validation=0.1", "--set", "split.given.seed=1"], nothing;
    missing_file: GOOD, ["--set", "data.path=nothing.csv"], nothing;
    no_path: "[window]\nlength = 20\n", [], nothing;
    bad_augmentation: GOOD, ["--set", "augment.jitter.sigma=-1"], nothing;
    empty_batch: GOOD, ["--set", "loader.batch_size=0"], nothing;
    test_set_split_by_time: GOOD, ["--set", "data.test=other.csv", "--set", "split.time.test=0.2"], |folder: &Path| {
        std::fs::copy(folder.join("bars.csv"), folder.join("other.csv")).unwrap();
    };
    test_set_is_the_training_set: GOOD, ["--set", "data.test=other.csv"], |folder: &Path| {
        std::fs::copy(folder.join("bars.csv"), folder.join("other.csv")).unwrap();
    };
    one_file_twice: GOOD, ["--set", "data.path=[\"bars.csv\", \"./bars.csv\"]"], nothing;
    samples_split_by_time: GOOD, ["--set", "data.path=a.ts", "--set", "split.time.test=0.2"], |folder: &Path| {
        std::fs::write(folder.join("a.ts"), samples(12)).unwrap();
    };
    samples_in_pieces: GOOD, ["--set", "data.path=a.ts", "--set", "window.whole=true", "--set", "data.checks.not_finite=drop"], |folder: &Path| {
        std::fs::write(folder.join("a.ts"), samples(12).replace(",2,", ",?,")).unwrap();
    };
    evaluate_seeds: GOOD, ["--set", "evaluate.seeds=0"], nothing;
    evaluate_confidence: GOOD, ["--set", "evaluate.confidence=2"], nothing;
    probe_without_strength: GOOD, ["--set", "evaluate.probe.l2=[]"], nothing;
    too_many_workers: GOOD, ["--set", "loader.workers=2000"], nothing;
    too_much_prefetch: GOOD, ["--set", "loader.prefetch=2000"], nothing;
    no_room_for_a_checkpoint: GOOD, ["--set", "train.checkpoint.size_budget=1"], nothing;
    empty_cache_folder: GOOD, ["--set", "run.cache="], nothing;
    runs_behind_a_lost_link: GOOD, ["--set", "run.directory=gone/runs"], |folder: &Path| {
        std::os::unix::fs::symlink("nowhere", folder.join("gone")).unwrap();
    };
    runs_in_a_file: GOOD, ["--set", "run.directory=bars.csv"], nothing;
    empty_data_path: GOOD, ["--set", "data.path="], nothing;
    no_channels: GOOD, ["--set", "data.columns.channels=[]"], nothing;
    window_of_one_step: GOOD, ["--set", "window.length=1"], nothing;
    fetch_without_time: GOOD, ["--set", "run.fetch.timeout=0"], nothing;
    fetch_without_end: GOOD, ["--set", "run.fetch.retries=1000"], nothing;
    huge_jitter: GOOD, ["--set", "augment.jitter.sigma=1e300"], nothing;
    huge_price: GOOD, ["--set", "window.normalise=none"], |folder: &Path| {
        let bars = std::fs::read_to_string(folder.join("bars.csv")).unwrap();
        let bars = bars.replace(",20,21,19,20\n", ",20,1e39,19,20\n");
        std::fs::write(folder.join("bars.csv"), bars).unwrap();
    };
    huge_window: GOOD, ["--set", "window.length=9223372036854775807"], nothing;
    data_is_no_table: "data = 3\n", [], nothing;
    empty_split: "[split]\n", [], nothing;
    half_a_choice: GOOD, ["--set", "labels.forward.horizon=5"], nothing;
    labels_without_a_column: GOOD, ["--set", "labels.majority.share=0.6"], |folder: &Path| {
        labelled(folder, |row| ["a", "b"][row / 30 % 2].to_owned());
    };
    labels_that_are_empty: GOOD, ["--set", "labels=last", "--set", "data.columns.label=label"], |folder: &Path| {
        labelled(folder, |_| String::new());
    };
    labels_that_are_measurements: GOOD, ["--set", "labels=last", "--set", "data.columns.label=label"], |folder: &Path| {
        labelled(folder, |row| format!("{}", row as f64 * 0.37));
    };
    labels_of_one_class: GOOD, ["--set", "labels=last", "--set", "data.columns.label=label"], |folder: &Path| {
        labelled(folder, |_| "only".to_owned());
    };
    zip_of_the_wrong_kind: GOOD, ["--set", "data.path=bars.parquet"], |folder: &Path| {
        std::fs::write(folder.join("bars.parquet"), b"PK\x03\x04not a table").unwrap();
    };
}

/// A server on this machine that says this to every request, or accepts it and says nothing.
fn server(answer: Option<&'static str>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut silent = vec![];
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let Some(answer) = answer else {
                silent.push(stream);
                continue;
            };
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            lines.map_while(Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
            // Whoever asked may have gone.
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    port
}

#[test]
fn servers_that_refuse_or_do_not_answer_are_named() {
    let said = |code, answer: Option<&'static str>, more: &[&str]| {
        let path = format!("data.path=http://127.0.0.1:{}/bars.csv", server(answer));
        let patience = ["run.fetch.timeout=1", "run.fetch.retries=0"];
        let arguments = ["--set", &path, "--set", patience[0], "--set", patience[1]];
        failed(code, GOOD, &[&arguments, more].concat(), nothing)
    };
    let answer = "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let forbidden = said(2, Some(answer), &[]);
    assert!(
        forbidden.contains("/bars.csv` may not be read (401 or 403): it may want a login"),
        "{forbidden}"
    );
    let begun = Instant::now();
    // Nothing is wrong with the settings.
    let silent = said(1, None, &[]);
    assert!(
        silent.contains("/bars.csv`: no answer within 1s, asked 1 times")
            && silent.contains("`run.fetch.timeout`"),
        "{silent}"
    );
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    let answer = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 9\r\nConnection: close\r\n\r\n";
    let page = said(2, Some(answer), &[]);
    assert!(page.contains("/bars.csv` is no file of data: the server sends a web page"), "{page}");
    let offline = said(2, None, &["--set", "run.fetch.offline=true"]);
    assert!(offline.contains("/bars.csv` has no whole copy in `cache`"), "{offline}");
}

#[test]
fn a_run_that_was_there_stays_when_it_is_refused() {
    let folder = firebox_tests::project(&format!("{GOOD}[train]\nepochs = 1\n"), 300);
    let run = |more: &[&str]| firebox(folder.path(), &[&["run", "p.toml"], more].concat());
    assert_eq!(run(&[]).status.code(), Some(0));
    let runs = || std::fs::read_dir(folder.path().join("runs")).unwrap().flatten();
    let made = runs().next().unwrap().path();
    std::fs::remove_file(made.join("manifest.json")).unwrap();
    // The loader decides no key: it is the same run.
    assert_eq!(run(&["--set", "loader.pin=true"]).status.code(), Some(2));
    assert_eq!(runs().count(), 1);
    assert!(made.join("training.json").is_file() && made.join("checkpoints").is_dir());
}

#[test]
fn a_missing_pipeline_file_and_a_missing_run_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let say = |arguments: &[&str]| {
        let output = firebox(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    insta::assert_snapshot!("missing_pipeline_file", say(&["run", "missing.toml"]));
    insta::assert_snapshot!("missing_run", say(&["run", "--resume", "missing"]));
    insta::assert_snapshot!("missing_cache", say(&["cache", "list"]));
}
