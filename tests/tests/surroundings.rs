//! The program among terminals that close, disks that fill up, folders that are renamed, and files
//! that are damaged.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use firebox_tests::{command, errors, firebox, root};
use serde_json::Value;
use tempfile::TempDir;

const PIPELINE: &str = r#"
[data]
path = "bars.csv"
[window]
length = 16
stride = 8
[augment]
versions = 1
[loader]
batch_size = 16
[model.bilstm-mae]
hidden = 6
layers = 1
decoder_hidden = 6
[train]
epochs = 2
early_stopping = false
[train.checkpoint]
resume_every = 2
[evaluate]
seeds = 2
resamples = 200
"#;

fn project() -> TempDir {
    firebox_tests::project(PIPELINE, 900)
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn only_run(folder: &Path) -> PathBuf {
    let runs: Vec<_> = std::fs::read_dir(folder.join("runs")).unwrap().flatten().collect();
    assert_eq!(runs.len(), 1, "{runs:?}");
    runs[0].path()
}

/// Starts a run, waits until its log has `text`, and kills it with this signal.
#[cfg(unix)]
fn killed(folder: &Path, arguments: &[&str], text: &str, signal: &str) -> Output {
    let child = command(folder, arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.unwrap();
    wait_for(folder, text);
    Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    child.wait_with_output().unwrap()
}

/// Waits until the log of a run has `text`.
#[cfg(unix)]
fn wait_for(folder: &Path, text: &str) {
    for _ in 0..5000 {
        let logs = std::fs::read_dir(folder.join("runs")).into_iter().flatten().flatten();
        let mut logs = logs.filter_map(|run| std::fs::read(run.path().join("events.jsonl")).ok());
        if logs.any(|log| String::from_utf8_lossy(&log).contains(text)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(4));
    }
    panic!("no run wrote {text}");
}

#[test]
fn a_reader_that_goes_away_is_no_error_and_a_full_disk_is_one() {
    let project = project();
    let plan = || command(project.path(), &["plan", "p.toml"]);
    let mut child = plan().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((code(&output), errors(&output).as_str()), (Some(0), ""));
    if Path::new("/dev/full").exists() {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = plan().stdout(full).output().unwrap();
        assert_eq!(code(&output), Some(1));
        assert!(errors(&output).contains("cannot be written to standard output"));
    }
}

#[cfg(unix)]
#[test]
fn variables_that_are_no_text_matter_only_where_they_are_ours() {
    use std::os::unix::ffi::OsStrExt as _;
    let project = project();
    let bytes = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    let plan = |name| command(project.path(), &["plan", "p.toml"]).env(name, bytes).output();
    assert_eq!(code(&plan("SOMETHING").unwrap()), Some(0));
    let ours = plan("FIREBOX_TRAIN__EPOCHS").unwrap();
    assert_eq!(code(&ours), Some(2));
    assert!(errors(&ours).contains("FIREBOX_TRAIN__EPOCHS is not valid UTF-8"));
}

#[cfg(target_os = "linux")]
#[test]
fn a_folder_that_is_no_text_is_refused_before_there_is_a_run() {
    use std::os::unix::ffi::OsStrExt as _;
    let project = project();
    let odd = project.path().join(std::ffi::OsStr::from_bytes(b"n\xff"));
    std::fs::create_dir(&odd).unwrap();
    for name in ["p.toml", "bars.csv"] {
        std::fs::copy(project.path().join(name), odd.join(name)).unwrap();
    }
    let mut beside = command(project.path(), &["run"]);
    beside.arg(odd.join("p.toml"));
    for mut refused in [beside, command(&odd, &["run", "p.toml"])] {
        let output = refused.output().unwrap();
        assert_eq!(code(&output), Some(2), "{}", errors(&output));
        assert!(errors(&output).contains("is not valid UTF-8"), "{}", errors(&output));
    }
    assert!(!odd.join("runs").exists() && !project.path().join("runs").exists());
}

#[cfg(unix)]
#[test]
fn a_variable_in_small_letters_is_refused() {
    let project = project();
    let mut plan = command(project.path(), &["plan", "p.toml"]);
    let plan = plan.env("firebox_train__epochs", "3").output().unwrap();
    assert_eq!(code(&plan), Some(2));
    assert!(errors(&plan).contains("did you mean FIREBOX_TRAIN__EPOCHS?"), "{}", errors(&plan));
}

#[test]
fn the_last_line_of_a_json_log_is_the_error() {
    let project = project();
    let output =
        firebox(project.path(), &["run", "p.toml", "--log", "json", "--set", "window.length=5000"]);
    assert_eq!(code(&output), Some(2));
    let text = errors(&output);
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(last["event"], "error");
    assert!(last["causes"][0].as_str().unwrap().contains("no window fits"), "{last}");
    assert!(text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{text}");
    let output = firebox(project.path(), &["run", "p.toml", "--log", "json", "--devise", "cpu"]);
    assert_eq!(code(&output), Some(2));
    let refused: Value = serde_json::from_str(&errors(&output)).unwrap();
    assert_eq!(refused["message"], "unexpected argument '--devise' found");
    assert!(refused["hint"].as_str().unwrap().contains("--device"), "{refused}");
}

#[test]
fn every_pipeline_in_the_readme_is_one() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let blocks: Vec<&str> = readme.split("```toml\n").skip(1).collect();
    assert!(!blocks.is_empty());
    for block in blocks {
        let text = block.split("```").next().unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("p.toml"), text).unwrap();
        let data =
            if text.contains("[text]") { "text.path=none.csv" } else { "data.path=none.csv" };
        let output = firebox(folder.path(), &["plan", "p.toml", "--set", data]);
        // It is read as far as its files, which are not there.
        let said = errors(&output);
        assert!(said.contains("none.csv") || said.contains("bio-bert"), "{text}\n{said}");
    }
}

#[cfg(unix)]
#[test]
fn generated_data_replaces_only_what_it_may() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("m.market.toml"), "bars = 20\n[regimes.a]\n").unwrap();
    let generate = |more: &[&str]| {
        let output =
            firebox(folder.path(), &[&["data", "generate", "m.market.toml"], more].concat());
        (code(&output), errors(&output))
    };
    assert_eq!(generate(&["out.csv"]).0, Some(0));
    let refused = |more: &[&str], why: &str| {
        let (code, text) = generate(more);
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains(why), "{text}");
    };
    refused(&["out.csv"], "it is there already");
    refused(&["m.market.toml", "--force"], "a file that is read");
    refused(&["/dev/null", "--force"], "no regular file");
    refused(&[".", "--force"], "no regular file");
    std::os::unix::fs::symlink("out.csv", at("link.csv")).unwrap();
    std::os::unix::fs::symlink("nowhere", at("dead.csv")).unwrap();
    refused(&["dead.csv", "--force"], "leads nowhere");
    std::fs::write(at("out.csv"), "old").unwrap();
    assert_eq!(generate(&["link.csv", "--force"]).0, Some(0));
    assert!(at("link.csv").is_symlink());
    assert!(std::fs::read_to_string(at("out.csv")).unwrap().starts_with("symbol,"));
}

#[test]
fn clips_are_refused_where_tables_are_generated() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.clips.toml"), "channels = 3\n").unwrap();
    let output = firebox(folder.path(), &["data", "generate", "a.clips.toml", "x.csv"]);
    let said = errors(&output);
    assert_eq!(code(&output), Some(2), "{said}");
    assert!(
        said.contains("clips are not generated as a table") && said.contains(".demand.toml"),
        "{said}"
    );
    assert!(!folder.path().join("x.csv").exists());
}

/// One row for each stage, whatever it took; a log with a bad byte; a folder with another name; and
/// checkpoints that are gone.
#[cfg(unix)]
#[test]
fn the_report_of_a_killed_renamed_and_damaged_run() {
    let project = project();
    let folder = project.path();
    // The best one alone might be the newest: at the second kill, two are there whatever was best.
    let keep = "train.checkpoint.keep={last=3}";
    let arguments = ["run", "p.toml", "--set", "train.epochs=40", "--set", keep];
    killed(folder, &arguments, "\"step\":5,", "-KILL");
    killed(folder, &arguments, "\"step\":55,", "-KILL");
    let first = only_run(folder);
    let mut log = std::fs::read(first.join("events.jsonl")).unwrap();
    log.extend(b"\n{\"time\":1,\"event\":\"warning\",\"message\":\"\xff\"}\n");
    std::fs::write(first.join("events.jsonl"), log).unwrap();
    let renamed = folder.join("runs/mine");
    std::fs::rename(first, &renamed).unwrap();
    // The newest checkpoint is damaged: what is announced is what is gone on from.
    let checkpoints = std::fs::read_dir(renamed.join("checkpoints")).unwrap().flatten();
    let mut names: Vec<_> = checkpoints.map(|entry| entry.path()).collect();
    names.retain(|path| path.file_name().unwrap().to_string_lossy().starts_with("step-"));
    names.sort();
    let newest = names.pop().unwrap();
    std::fs::write(newest.join("weights.safetensors"), "x").unwrap();

    let output = firebox(folder, &["run", "--resume", "mine"]);
    let text = errors(&output);
    assert_eq!(code(&output), Some(0), "{text}");
    let damaged = newest.file_name().unwrap().to_string_lossy().replace("step-", "");
    let announced = format!("resumed at step {}", damaged.trim_start_matches('0'));
    assert!(!text.contains(&announced), "{text}");
    let summary = std::fs::read_to_string(renamed.join("summary.md")).unwrap();
    for stage in ["ingest", "windows", "augment", "train", "evaluate"] {
        let rows = summary.lines().filter(|line| line.starts_with(&format!("| {stage} |"))).count();
        assert_eq!(rows, 1, "{stage} in\n{summary}");
    }
    assert!(summary.contains("- attempts: 3; times are summed over them"), "{summary}");
    assert!(summary.contains("1 lines of events.jsonl cannot be read"), "{summary}");
    let rows = summary.lines().filter(|line| line.starts_with('|'));
    let listed = rows.filter_map(|line| line.split("checkpoints/step-").nth(1));
    let listed: Vec<_> = listed.map(|rest| rest.split(' ').next().unwrap()).collect();
    for step in &listed {
        let path = renamed.join(format!("checkpoints/step-{step}"));
        assert!(path.is_dir(), "{} is listed and not there", path.display());
    }
    assert!(
        !listed.is_empty() && summary.contains("gave way to newer or better ones"),
        "{summary}"
    );
    assert!(renamed.join("manifest.json").is_file());
}

#[test]
fn a_run_goes_on_as_it_was_begun_or_not_at_all() {
    let project = project();
    let folder = project.path();
    assert_eq!(code(&firebox(folder, &["run", "p.toml"])), Some(0));
    let name = only_run(folder).file_name().unwrap().to_string_lossy().into_owned();
    let resume = |more: &[&str]| firebox(folder, &[&["run"], more, &["--resume", &name]].concat());
    assert_eq!(code(&resume(&["p.toml"])), Some(0), "{}", errors(&resume(&["p.toml"])));
    assert_eq!(code(&resume(&["absent.toml"])), Some(2));
    std::fs::write(folder.join("q.toml"), PIPELINE.replace("epochs = 2", "epochs = 3")).unwrap();
    let other = resume(&["q.toml"]);
    assert_eq!(code(&other), Some(2));
    assert!(errors(&other).contains("`train.epochs` is 3 in the one and 2 in the other"));
    let changed = resume(&["--set", "train.epochs=5"]);
    assert_eq!(code(&changed), Some(2));
    assert!(errors(&changed).contains("have changed since it was begun"), "{}", errors(&changed));
    assert!(errors(&changed).contains("`train.epochs` was 2 then, and is 5 now"));
    // What no result depends on is not blamed for data that were changed.
    let bars = std::fs::read_to_string(folder.join("bars.csv")).unwrap();
    std::fs::write(folder.join("bars.csv"), bars.replacen("100", "101", 1)).unwrap();
    let changed = resume(&["--set", "loader.workers=3"]);
    assert_eq!(code(&changed), Some(2));
    assert!(errors(&changed).contains("its data or device have changed"), "{}", errors(&changed));
    assert!(!errors(&changed).contains("loader.workers"), "{}", errors(&changed));
    std::fs::write(folder.join("bars.csv"), bars).unwrap();

    // A shard of half its size is not done.
    let shards = std::fs::read_dir(folder.join("cache/augmented-v1")).unwrap().flatten();
    let files = shards.flat_map(|entry| std::fs::read_dir(entry.path()).into_iter().flatten());
    let shard = files.flatten().find(|file| file.path().extension().is_some_and(|e| e == "arrow"));
    let shard = shard.unwrap().path();
    let plan = || {
        let output = firebox(folder, &["plan", "p.toml"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().find(|line| line.starts_with("augment")).unwrap().to_owned()
    };
    assert!(plan().ends_with("done"), "{}", plan());
    let bytes = std::fs::read(&shard).unwrap();
    std::fs::write(&shard, &bytes[..bytes.len() / 2]).unwrap();
    assert!(plan().ends_with("to do"), "{}", plan());
}

#[cfg(unix)]
#[test]
fn an_evaluation_is_stopped_and_gone_on_with() {
    let project = project();
    let folder = project.path();
    let arguments = [
        "run",
        "p.toml",
        "--set",
        "evaluate.seeds=3000",
        "--set",
        "train.epochs=1",
        "--set",
        "labels.forward.horizon=1",
        "--set",
        "labels.forward.threshold=0.5",
    ];
    let began = r#""event":"stage-started","stage":"evaluate""#;
    let output = killed(folder, &arguments, began, "-INT");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(code(&output), Some(130), "{text}{}", errors(&output));
    assert!(text.contains("firebox run --resume "), "{text}");
    let run = only_run(folder);
    assert!(!run.join("manifest.json").exists());
    let name = run.file_name().unwrap().to_string_lossy().into_owned();
    let rest = ["run", "--resume", &name, "--set", "evaluate.seeds=1"];
    let output = firebox(folder, &rest);
    assert_eq!(code(&output), Some(0), "{}", errors(&output));
    assert!(run.join("manifest.json").exists());
}

/// Starts of K-means that take the better part of an hour.
#[cfg(unix)]
#[test]
fn clustering_is_stopped_at_once() {
    let project = project();
    let folder = project.path();
    let mut samples = "@problemName waves\n@classLabel false\n@data\n".to_owned();
    for sample in 0..40 {
        let value =
            |step: usize| ((step * (sample % 5 + 1) + sample * 3) % 11 + sample).to_string();
        samples += &((0..24).map(value).collect::<Vec<_>>().join(",") + "\n");
    }
    std::fs::write(folder.join("waves.ts"), samples).unwrap();
    let pipeline = "pipeline = 'pseudolabel'\ndata.path = 'waves.ts'\n[window]\nlength = 24\nwhole = true\nnormalise = 'standard'\n[pseudolabel]\nclusters = 4\nrestarts = 50_000_000\n[pseudolabel.model]\nconvolutions = [8, 8]\nhidden = 4\nhead = 8\nembedding = 8\nclassifier = [8]\n";
    std::fs::write(folder.join("clusters.toml"), pipeline).unwrap();
    let began = r#""event":"stage-started","stage":"train""#;
    let since = std::time::Instant::now();
    let output = killed(folder, &["run", "clusters.toml"], began, "-INT");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(code(&output), Some(130), "{text}{}", errors(&output));
    assert!(text.contains("firebox run --resume "), "{text}");
    assert!(since.elapsed() < Duration::from_secs(120), "{:?}", since.elapsed());
}

#[cfg(unix)]
#[test]
fn a_second_signal_has_an_exit_code_of_its_own() {
    // A step may end between the two signals, and the run with it; so it is tried again.
    let forced = (0..10).any(|_| {
        let project = project();
        let arguments =
            ["run", "p.toml", "--set", "train.epochs=4000", "--set", "model.bilstm-mae.hidden=768"];
        let mut run = command(project.path(), &arguments);
        let mut child = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for(project.path(), "\"step\":1,");
        let id = child.id().to_string();
        for _ in 0..1000 {
            Command::new("kill").args(["-INT", &id]).stderr(Stdio::null()).status().unwrap();
            if child.try_wait().unwrap().is_some() {
                break;
            }
        }
        let output = child.wait_with_output().unwrap();
        assert!(matches!(code(&output), Some(130 | 131)), "{output:?}");
        let lost = errors(&output).contains("since the last checkpoint is lost");
        assert_eq!(lost, code(&output) == Some(131), "{}", errors(&output));
        lost
    });
    assert!(forced, "no second signal came before the step's end");
}

/// As timeout(1) sends it, to the process and to its group.
#[cfg(unix)]
#[test]
fn a_signal_that_comes_twice_at_once_is_one() {
    let project = project();
    let mut run = command(project.path(), &["run", "p.toml", "--set", "train.epochs=4000"]);
    let child = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for(project.path(), "\"step\":1,");
    let id = child.id().to_string();
    let twice = ["-INT", &id, &id];
    assert!(Command::new("kill").args(twice).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), Some(130), "{}", errors(&output));
}

/// A closed terminal hangs up; what is written to it after that is lost, and nothing else.
#[cfg(unix)]
#[test]
fn a_run_outlives_its_terminal() {
    let project = project();
    let arguments = ["run", "p.toml", "--set", "train.epochs=20"];
    let output = killed(project.path(), &arguments, "\"step\":3,", "-HUP");
    assert_eq!(code(&output), Some(0), "{}", errors(&output));
    assert!(only_run(project.path()).join("manifest.json").is_file());
    // A terminal that is gone cannot be written to either.
    let other = firebox_tests::project(PIPELINE, 900);
    let mut child = command(other.path(), &arguments);
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop((child.stdout.take(), child.stderr.take()));
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let losses = |folder: &Path| {
        let history = std::fs::read_to_string(only_run(folder).join("history.jsonl")).unwrap();
        let lines = history.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter_map(|line| line["step"]["loss"].as_f64()).take(10).collect::<Vec<_>>()
    };
    assert_eq!(losses(project.path()).len(), 10);
    assert_eq!(losses(project.path()), losses(other.path()));
}

/// TensorBoard's files on a disk of 64 kB that is full before the run ends. Where nobody may mount one, no file may grow
/// beyond 400 kB, which no other one does.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_under_a_tracker_is_said_once_and_changes_nothing() {
    let project = project();
    let small = project.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let run = format!(
        "'{}' run p.toml --set train.epochs=40 --set monitor.tensorboard.folder=small",
        firebox_tests::program().display()
    );
    let done = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(project.path());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FIREBOX_")) {
            command.env_remove(name);
        }
        command.output()
    };
    // A namespace of its own may mount what it likes, where the system allows one.
    let script = format!("mount -t tmpfs -o size=64k none small && exec {run}");
    let is_mounted = |output: &Output| {
        !errors(output).contains("unshare:") && !errors(output).contains("mount:")
    };
    let mounted = done("unshare", &["-rm", "sh", "-c", &script]).ok().filter(is_mounted);
    let (output, full) = match mounted {
        Some(output) => (output, "No space left"),
        None => {
            let script = format!("trap '' XFSZ; exec prlimit --fsize=400000 {run}");
            (done("sh", &["-c", &script]).unwrap(), "File too large")
        }
    };
    assert_eq!(code(&output), Some(0), "{}", errors(&output));
    let text = errors(&output);
    let said: Vec<&str> = text.lines().filter(|line| line.contains("TensorBoard")).collect();
    assert_eq!(said.len(), 1, "{text}");
    assert!(said[0].contains(full) && said[0].contains("training goes on"), "{text}");
    let summary = std::fs::read_to_string(only_run(project.path()).join("summary.md")).unwrap();
    assert!(summary.contains(full), "{summary}");
}

#[cfg(unix)]
#[test]
fn a_limit_for_files_is_an_error_and_not_a_silent_end() {
    let project = project();
    let mut shell = Command::new("sh");
    // A few KiB, in whichever unit this shell counts.
    shell.args(["-c", "ulimit -f 8; exec \"$0\" run p.toml"]).arg(firebox_tests::program());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FIREBOX_")) {
        shell.env_remove(name);
    }
    let output = shell.current_dir(project.path()).output().unwrap();
    let said = errors(&output);
    assert_eq!(code(&output), Some(1), "{said}");
    assert!(said.contains("File too large"), "{said}");
}

#[test]
fn what_makes_a_score_worthless_is_said_first() {
    let project = project();
    let folder = project.path();
    let bars = std::fs::read_to_string(folder.join("bars.csv")).unwrap();
    // The last quarter, which is tested on, has one class only.
    let label = |(row, line): (usize, &str)| match row {
        0 => format!("{line},label\n"),
        row if row < 650 => format!("{line},{}\n", ["a", "b"][row / 40 % 2]),
        _ => format!("{line},a\n"),
    };
    let text: String = bars.lines().enumerate().map(label).collect();
    std::fs::write(folder.join("bars.csv"), text).unwrap();
    let arguments = [
        "run",
        "p.toml",
        "--set",
        "labels=last",
        "--set",
        "data.columns.label=label",
        "--set",
        "window.length=2",
    ];
    let output = firebox(folder, &arguments);
    let said = errors(&output);
    assert_eq!(code(&output), Some(0), "{said}");
    let one_class = "the test part has labelled windows of one class only";
    assert!(said.contains(one_class) && said.contains("`window.length` is 2"), "{said}");
    let summary = std::fs::read_to_string(only_run(folder).join("summary.md")).unwrap();
    let first = summary.split("## Scores").next().unwrap();
    assert!(first.contains("## Warnings") && first.contains(one_class), "{summary}");
}

#[test]
fn a_run_that_is_not_there_is_told_from_the_newest_few() {
    let folder = tempfile::tempdir().unwrap();
    for name in 0..8 {
        let run = folder.path().join(format!("runs/r{name}"));
        std::fs::create_dir_all(&run).unwrap();
        std::fs::write(run.join("pipeline.toml"), "").unwrap();
        // Times of files have steps of some milliseconds.
        std::thread::sleep(Duration::from_millis(20));
    }
    let text = errors(&firebox(folder.path(), &["run", "--resume", "notrun"]));
    assert!(text.contains("r7") && !text.contains("r0") && text.contains("and 3 older"), "{text}");
}

#[test]
fn a_series_without_a_window_is_named() {
    let project = project();
    let folder = project.path();
    let bars = std::fs::read_to_string(folder.join("bars.csv")).unwrap();
    let short: String = bars.lines().take(11).map(|line| format!("{line}\n")).collect();
    std::fs::write(folder.join("short.csv"), short).unwrap();
    let paths = "data.path=[\"bars.csv\", \"short.csv\"]";
    let output = firebox(folder, &["run", "p.toml", "--set", paths]);
    let said = errors(&output);
    assert_eq!(code(&output), Some(0), "{said}");
    assert!(said.contains("1 of 2 series have no window and are not used (`short`)"), "{said}");
}
