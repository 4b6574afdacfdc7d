//! The ways of data through the whole program: where it lies, how it is ordered, when it is augmented,
//! where it comes from, and what is said when that cannot be.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
#[cfg(unix)]
use std::time::{Duration, Instant};

use firebox_tests::{command, errors, firebox, project};
use serde_json::Value;

const PIPELINE: &str = r#"
[data]
path = "bars.csv"
[window]
length = 16
stride = 3
[augment]
versions = 2
[loader]
batch_size = 16
[model.bilstm-mae]
hidden = 4
layers = 1
decoder_hidden = 4
[train]
epochs = 2
[evaluate]
seeds = 1
resamples = 100
"#;

/// Runs with these settings into a folder of runs of its own, and returns the run.
fn run(folder: &Path, name: &str, settings: &[&str]) -> PathBuf {
    let directory = format!("run.directory={name}");
    let mut arguments = vec!["run", "p.toml", "--set", &directory];
    settings.iter().for_each(|setting| arguments.extend(["--set", setting]));
    let output = firebox(folder, &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let mut runs = std::fs::read_dir(folder.join(name)).unwrap().flatten();
    runs.next().unwrap().path()
}

/// Loss of every step, bit for bit.
fn losses(run: &Path) -> Vec<u64> {
    let history = std::fs::read_to_string(run.join("history.jsonl")).unwrap();
    let lines = history.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter_map(|line| Some(line.get("step")?["loss"].as_f64()?.to_bits())).collect()
}

fn resolved(run: &Path) -> String {
    std::fs::read_to_string(run.join("pipeline.toml")).unwrap()
}

#[test]
fn wherever_the_data_lies_every_loss_is_the_same() {
    let folder = project(PIPELINE, 500);
    let stream = run(folder.path(), "stream", &["loader.workers=2"]);
    let expected = losses(&stream);
    assert!(expected.len() > 10, "{}", expected.len());
    let text = resolved(&stream);
    assert!(text.contains("one copy from the mapped data"), "{text}");
    for (name, settings) in [
        ("device", ["loader.resident=device", "loader.workers=0"]),
        ("memory", ["loader.resident=memory", "loader.workers=3"]),
        ("alone", ["loader.resident=stream", "loader.workers=0"]),
    ] {
        let other = run(folder.path(), name, &settings);
        assert_eq!(losses(&other), expected, "{name}");
        // The same training, so the same name.
        assert_eq!(other.file_name(), stream.file_name());
    }
    // Other orders are other trainings.
    for (name, setting) in
        [("blocks", "loader.shuffle.blocks.block=4"), ("tokens", "loader.tokens=128")]
    {
        let settings: &[&str] = match name {
            "blocks" => &[setting, "loader.shuffle.blocks.window=32"],
            _ => &[setting],
        };
        let other = run(folder.path(), name, settings);
        assert_ne!(losses(&other), expected, "{name}");
        assert_ne!(other.file_name(), stream.file_name(), "{name}");
    }
}

#[test]
fn augmenting_online_or_not_at_all_trains_too() {
    let folder = project(PIPELINE, 500);
    let cached = run(folder.path(), "cached", &[]);
    let online = run(folder.path(), "online", &["augment.mode=online"]);
    let none = run(folder.path(), "none", &["augment.mode=none"]);
    for (run, versions) in [(&cached, 2), (&online, 2), (&none, 0)] {
        let summary = std::fs::read_to_string(run.join("summary.md")).unwrap();
        let told = summary.lines().find(|line| line.contains("augmented versions"));
        assert!(told.is_some_and(|told| told.ends_with(&format!(": {versions}"))), "{summary}");
    }
    let [cached, online, none] = [cached, online, none].map(|run| losses(&run));
    // The first epoch draws the same versions; the second does not.
    let half = cached.len() / 2;
    assert_eq!(cached[..half], online[..half]);
    assert_ne!(cached[half..], online[half..]);
    assert_eq!(none.len() * 3, cached.len(), "originals alone are a third");
    for unstored in ["augment.mode=online", "augment.mode=none", "augment.versions=0"] {
        let plan = firebox(folder.path(), &["plan", "p.toml", "--set", unstored]);
        let plan = String::from_utf8_lossy(&plan.stdout).into_owned();
        let line = plan.lines().find(|line| line.starts_with("augment")).unwrap();
        assert!(line.contains("not stored"), "{line}");
    }
    // The cached versions are all that is there, until originals are asked for in a type of their own.
    let stored = || std::fs::read_dir(folder.path().join("cache/augmented-v1")).unwrap().count();
    assert_eq!(stored(), 1);
    let halves = run(folder.path(), "halves", &["augment.mode=none", "augment.storage=f16"]);
    assert_eq!(stored(), 2);
    let apart = numbers(&losses(&halves)).into_iter().zip(numbers(&none));
    assert!(apart.clone().all(|(half, exact)| (half - exact).abs() < 0.01 * exact));
    assert!(apart.into_iter().any(|(half, exact)| half != exact), "rounded");
}

/// Losses as numbers.
fn numbers(losses: &[u64]) -> Vec<f64> {
    losses.iter().map(|bits| f64::from_bits(*bits)).collect()
}

#[test]
fn a_device_that_holds_the_data_draws_versions_itself() {
    let folder = project(PIPELINE, 500);
    let online = ["augment.mode=online", "loader.resident=device"];
    let first = run(folder.path(), "first", &online);
    let all = losses(&first);
    // The same again, with any number of threads: the device draws, not they.
    let again = run(folder.path(), "again", &[online[0], online[1], "loader.workers=0"]);
    assert_eq!(losses(&again), all);
    assert_eq!(again.file_name(), first.file_name());
    let text = resolved(&first);
    assert!(text.contains("of originals); versions are drawn there, anew in each epoch"), "{text}");
    // What threads draw is the same but for rounding, and so is what is learnt.
    let threads = run(folder.path(), "threads", &online[..1]);
    assert_ne!(threads.file_name(), first.file_name(), "another key: other last bits");
    for (ours, theirs) in numbers(&all).iter().zip(numbers(&losses(&threads))) {
        assert!((ours - theirs).abs() < 1e-3 * theirs.abs(), "{ours} {theirs}");
    }
}

/// A device's versions in a run that is killed on its way, and gone on with.
#[test]
fn a_killed_run_whose_device_draws_versions_ends_like_an_undisturbed_one() {
    let folder = project(PIPELINE, 500);
    let settings = [
        "augment.mode=online",
        "loader.resident=device",
        "train.epochs=40",
        "train.early_stopping.patience=99",
        "train.checkpoint.resume_every=3",
    ];
    let expected = losses(&run(folder.path(), "whole", &settings));
    let mut arguments = vec!["run", "p.toml", "--set", "run.directory=killed"];
    settings.iter().for_each(|setting| arguments.extend(["--set", setting]));
    let quiet = || std::process::Stdio::null();
    let started = command(folder.path(), &arguments).stdout(quiet()).stderr(quiet()).spawn();
    let mut child = started.unwrap();
    let events = || {
        let runs = std::fs::read_dir(folder.path().join("killed")).into_iter().flatten().flatten();
        runs.map(|run| run.path().join("events.jsonl"))
            .find_map(|events| std::fs::read_to_string(events).ok())
            .unwrap_or_default()
    };
    let patience = std::time::Instant::now();
    while !events().contains("\"step\":30,") {
        assert!(patience.elapsed().as_secs() < 60, "step 30 was not reached");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let killed = run(folder.path(), "killed", &settings);
    let lines = events();
    let resumed = lines
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok()?["resumed_at_step"].as_u64());
    assert!(resumed.max() >= Some(3), "it was killed too late");
    assert_eq!(losses(&killed), expected);
}

#[test]
fn the_report_says_where_the_time_went() {
    let folder = project(PIPELINE, 500);
    let run = run(folder.path(), "runs", &[]);
    let page = std::fs::read_to_string(run.join("report.html")).unwrap();
    for part in ["waiting for data", "handing batches to the device", "limited by"] {
        assert!(page.contains(part), "{part}");
    }
}

/// What a run says that is refused as bad input.
fn refused(settings: &[&str]) -> String {
    let folder = project(PIPELINE, 500);
    let mut arguments = vec!["run", "p.toml"];
    settings.iter().for_each(|setting| arguments.extend(["--set", setting]));
    let output = firebox(folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
    errors(&output)
}

#[test]
fn what_cannot_be_is_refused_with_the_way_out() {
    let said = refused(&["loader.pin=true"]);
    assert!(said.contains("nothing is uploaded; leave it out"), "{said}");
    let said = refused(&["augment.mode=online", "loader.resident=memory"]);
    assert!(said.contains("`loader.resident` is \"memory\", and `augment.mode` is"), "{said}");
    assert!(said.contains("or augment.mode = \"cached\""), "{said}");
    let said = refused(&["loader.shuffle.blocks.block=8", "loader.shuffle.blocks.window=8"]);
    assert!(said.contains("a window at least two blocks"), "{said}");
    let said = refused(&["data.path=ftp://server/bars.csv"]);
    assert!(said.contains("use s3://, gs://, az:// or https://"), "{said}");
    // A plan does not say that it is fetched.
    let folder = project(PIPELINE, 500);
    let plan = ["plan", "p.toml", "--set", "data.path=ftp://server/bars.csv"];
    let output = firebox(folder.path(), &plan);
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    // Nobody listens there.
    let gone = ["run", "p.toml", "--set", "data.path=http://127.0.0.1:1/bars.csv"];
    let said = errors(&firebox(folder.path(), &gone));
    assert!(said.contains("`http://127.0.0.1:1/bars.csv` cannot be fetched"), "{said}");
}

/// Serves one file, whole or in parts; returns the port, and the requests and bytes of the file that were answered.
fn serve(content: Vec<u8>) -> (u16, Arc<[AtomicUsize; 2]>) {
    let sent = Arc::new([0, 0].map(AtomicUsize::new));
    let count = Arc::clone(&sent);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let (content, count) = (content.clone(), Arc::clone(&count));
            std::thread::spawn(move || while answer(&mut stream, &content, &count).is_some() {});
        }
    });
    (port, sent)
}

/// Answers a request; `None` if the connection has ended.
fn answer(stream: &mut TcpStream, content: &[u8], [asked, sent]: &[AtomicUsize; 2]) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    let first = lines.next()?.ok()?;
    asked.fetch_add(1, Ordering::Relaxed);
    let headers = lines.map_while(Result::ok).take_while(|line| !line.is_empty());
    let range = headers.map(|line| line.to_lowercase()).find(|line| line.starts_with("range:"));
    let range = range.and_then(|line| {
        let (start, end) = line.split_once('=')?.1.split_once('-')?;
        Some((start.trim().parse::<usize>().ok()?, end.trim().parse::<usize>().ok()?))
    });
    let (status, start, end) = match range {
        Some((start, end)) => ("206 Partial", start, (end + 1).min(content.len())),
        None => ("200 OK", 0, content.len()),
    };
    let all = content.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nContent-Range: bytes {start}-{}/{all}\r\nETag: \"one\"\r\n\r\n",
        end - start,
        end - 1
    );
    stream.write_all(head.as_bytes()).ok()?;
    if !first.starts_with("HEAD") {
        stream.write_all(&content[start..end]).ok()?;
        sent.fetch_add(end - start, Ordering::Relaxed);
    }
    Some(())
}

#[test]
fn a_run_on_the_data_of_a_server_is_that_on_a_copy_and_goes_on() {
    let folder = project(PIPELINE, 500);
    let (port, count) = serve(std::fs::read(folder.path().join("bars.csv")).unwrap());
    let address = format!("data.path=http://127.0.0.1:{port}/bars.csv");
    let [local, remote] = [("local", "window.stride=3"), ("remote", &address)]
        .map(|(name, setting)| run(folder.path(), name, &[setting, "train.epochs=3"]));
    assert_eq!(losses(&remote), losses(&local));
    let settings = resolved(&remote);
    assert!(settings.contains(&format!("\"http://127.0.0.1:{port}/bars.csv\"")), "{settings}");
    // As if it had been killed after its training.
    std::fs::remove_file(remote.join("manifest.json")).unwrap();
    let again = firebox(folder.path(), &["run", "--resume", &remote.display().to_string()]);
    assert_eq!(again.status.code(), Some(0), "{}", errors(&again));
    assert!(remote.join("manifest.json").is_file());
    let checked = firebox(folder.path(), &["data", "check-leaks", "p.toml", "--set", &address]);
    assert_eq!(checked.status.code(), Some(0), "{}", errors(&checked));
    // Without a line, on the copy that is there.
    let asked = count[0].load(Ordering::Relaxed);
    let settings = [&address, "run.fetch.offline=true", "train.epochs=3"];
    assert_eq!(losses(&run(folder.path(), "offline", &settings)), losses(&local));
    assert_eq!(count[0].load(Ordering::Relaxed), asked, "nobody was asked");
}

#[test]
fn arrays_are_converted_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let arrays = folder.path().join("arrays");
    std::fs::create_dir(&arrays).unwrap();
    let convert = || firebox(folder.path(), &["data", "convert", "arrays", "samples"]);
    let output = convert();
    assert_eq!(output.status.code(), Some(2));
    assert!(errors(&output).contains("has no .npy file"), "{}", errors(&output));
    // For programs, an error is an object as events are.
    let json = ["data", "convert", "arrays", "samples", "--log", "json"];
    let output = firebox(folder.path(), &json);
    let said = errors(&output);
    let error: serde_json::Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert!(error["event"] == "error" && said.contains("has no .npy file"), "{said}");
    array(&arrays.join("a.npy"), 3, |at| at as f32);
    for _ in 0..2 {
        let output = convert();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
        assert!(said.contains("1 sample of up to 3 steps and 2 channels"), "{said}");
    }
    assert!(folder.path().join("samples/manifest.json").is_file());
}

/// An array of two channels as NumPy writes it.
fn array(path: &Path, steps: usize, value: impl Fn(usize) -> f32) {
    let mut text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({steps}, 2), }}");
    text += &" ".repeat(64 - (11 + text.len()) % 64);
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16 + 1).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes.push(b'\n');
    (0..2 * steps).for_each(|at| bytes.extend(value(at).to_le_bytes()));
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// Converts the arrays of a folder `arrays` to `samples`.
fn convert(folder: &Path) {
    let output = firebox(folder, &["data", "convert", "arrays", "samples"]);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
}

/// Waves of two speeds, which are their classes, as arrays and as converted samples.
fn convert_waves(folder: &Path) {
    for number in 0..40 {
        let class = ["calm", "wild"][number % 2];
        let path = folder.join(format!("arrays/{class}/{number:03}.npy"));
        let speed = [0.3, 0.9][number % 2];
        array(&path, 16 + number % 3, |at| (at as f32 * speed + number as f32).sin());
    }
    convert(folder);
}

#[test]
fn a_pipeline_trains_on_converted_samples_as_on_their_arrays() {
    let folder = project(PIPELINE, 10);
    convert_waves(folder.path());
    let settings = ["data.path=samples", "labels=last", "window.whole=true", "augment.versions=1"];
    let trained = run(folder.path(), "trained", &settings);
    assert!(losses(&trained).len() > 1);
    let text = resolved(&trained);
    assert!(text.contains("series (validation"), "{text}");
    // What is said of a series names its file.
    let stored = std::fs::read_dir(folder.path().join("cache/series-v2")).unwrap().flatten();
    let about = stored.map(|entry| std::fs::read_to_string(entry.path().join("manifest.json")));
    let about: String = about.flatten().collect();
    assert!(about.contains("\"calm/000\"") && about.contains("\"wild/039\""), "{about}");
    // Its manifest names the same, and a folder that is not complete is none.
    let same = run(
        folder.path(),
        "same",
        &[&["data.path=samples/manifest.json"], &settings[1..]].concat(),
    );
    assert_eq!(losses(&same), losses(&trained));
    let half = folder.path().join("half");
    std::fs::create_dir(&half).unwrap();
    std::fs::copy(folder.path().join("samples/shard-00000.arrow"), half.join("shard-00000.arrow"))
        .unwrap();
    for settings in [vec!["data.path=half"], vec!["data.path=arrays", "data.format=samples"]] {
        let sets = settings.iter().flat_map(|setting| ["--set", setting]);
        let arguments: Vec<&str> = ["run", "p.toml"].into_iter().chain(sets).collect();
        let output = firebox(folder.path(), &arguments);
        assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
        assert!(errors(&output).contains("firebox data convert ARRAYS"), "{}", errors(&output));
    }
    // The shards are what it is made of: one that is damaged is refused.
    std::fs::remove_dir_all(folder.path().join("cache")).unwrap();
    std::fs::write(folder.path().join("samples/shard-00000.arrow"), "").unwrap();
    let output = firebox(folder.path(), &["run", "p.toml", "--set", "data.path=samples"]);
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
    assert!(errors(&output).contains("convert the arrays again"), "{}", errors(&output));
}

/// A program that is ended with the test that waits for it.
struct Running(Option<std::process::Child>);

impl Running {
    fn of(command: &mut std::process::Command) -> Self {
        use std::process::Stdio;
        Self(Some(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()))
    }

    fn child(&mut self) -> &mut std::process::Child {
        self.0.as_mut().unwrap()
    }

    fn output(mut self) -> std::process::Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Anonymous memory of a whole run on so many arrays, in KiB at most.
#[cfg(target_os = "linux")]
fn most_of_a_run(arrays: usize) -> usize {
    const STEPS: usize = 8192;
    let folder = project(PIPELINE, 10);
    for number in 0..arrays {
        let path = folder.path().join(format!("arrays/{number:04}.npy"));
        array(&path, STEPS, |at| ((at * (number + 3)) % 1009) as f32 / 100.0);
    }
    let settings = [
        "data.path=arrays",
        "labels=none",
        "window.length=512",
        "window.stride=512",
        "augment.versions=1",
        "loader.batch_size=32",
        "loader.resident=stream",
        "train.epochs=1",
        "train.max_steps=40",
        "evaluate.seeds=1",
    ];
    let sets = settings.iter().flat_map(|setting| ["--set", setting]);
    let mut run = command(folder.path(), &["run", "p.toml"]);
    let mut run = Running::of(run.args(sets));
    let (status, mut most) = (PathBuf::from(format!("/proc/{}/status", run.child().id())), 0);
    while run.child().try_wait().unwrap().is_none() {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let anonymous = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = anonymous.and_then(|kib| kib.trim().trim_end_matches(" kB").parse().ok());
        most = most.max(kib.unwrap_or(0));
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let output = run.output();
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    most
}

#[cfg(target_os = "linux")]
#[test]
fn a_run_takes_no_more_memory_for_more_data() {
    // Both fill the shards that are made at once, and what is known of each window is little beside it.
    let [few, many] = [1500, 5500].map(most_of_a_run);
    // Of f32, two for each step; series are stored as float64.
    let more = 4000 * 8192 * 2 * 4 / 1024;
    println!("{few} KiB of anonymous memory, and {many} for {more} KiB of data more");
    // Of shards in hand, one more may wait where the disk is slow or the machine busy; what is held is held whole.
    assert!(many < few + more / 2, "{few} KiB, and {many} for {more} KiB of data more");
}

/// Folders in a cache that hold a manifest, and so count as done.
#[cfg(target_os = "linux")]
fn stored(listed: &str, bucket: &str) -> bool {
    listed.lines().any(|line| line.contains(bucket) && line.ends_with("manifest.json"))
}

/// Caches on a disk that is full before the series are written, that has no room for their augmented versions, and
/// that is full before these are complete.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_while_caching_is_told_and_nothing_half_written_is_believed() {
    let no_room = "lower `augment.versions` (there is room for 0)";
    for (size, whole, missing, why) in [
        ("12k", None, "series-v2", None),
        ("64k", Some("series-v2"), "augmented-v1", Some(no_room)),
        ("120k", Some("series-v2"), "augmented-v1", None),
    ] {
        let folder = project(PIPELINE, 500);
        // The shard takes 92 kB, and so is none of a limit of 120.
        let limit = if size == "120k" { "64k" } else { size };
        let arguments = "run p.toml --set run.cache=small";
        let Full { said, errors, why: full } =
            on_a_full_disk(folder.path(), [size, limit], arguments);
        let codes: Vec<&str> = said.lines().filter(|line| line.starts_with("code ")).collect();
        assert_eq!(codes, ["code 1", "code 0"], "{said}{errors}");
        // A limit for files leaves room on the disk.
        let why = why.filter(|_| full == NO_SPACE).unwrap_or(full);
        assert!(errors.contains(why), "{size}: {errors}");
        let (before, _) = said.split_once("again\n").unwrap();
        assert!(!stored(before, missing), "{said}");
        whole.into_iter().for_each(|bucket| assert!(stored(before, bucket), "{said}"));
    }
}

/// Runs a script in a namespace of its own, in which `mount` works where the system allows one, or in none.
#[cfg(target_os = "linux")]
fn scripted(folder: &Path, program: &[&str], script: &str) -> Option<std::process::Output> {
    let mut command = std::process::Command::new(program[0]);
    command.args(&program[1..]).args(["-c", script]).current_dir(folder);
    command.env("RAYON_NUM_THREADS", "1");
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FIREBOX_")) {
        command.env_remove(name);
    }
    command.output().ok().filter(|output| output.status.code() == Some(0))
}

/// What a command does on a full disk, and then on one with room.
#[cfg(target_os = "linux")]
struct Full {
    /// Exit codes, and what is there in between.
    said: String,
    errors: String,
    /// What the system says of the disk.
    why: &'static str,
}

#[cfg(target_os = "linux")]
const NO_SPACE: &str = "No space left on device";

/// What a command does on a disk of this size, and again on one with room. Where nobody may mount a disk, no file may grow
/// beyond the limit, which is told in the same words but for the system's.
#[cfg(target_os = "linux")]
fn on_a_full_disk(folder: &Path, [size, limit]: [&str; 2], arguments: &str) -> Full {
    std::fs::create_dir(folder.join("small")).unwrap();
    let run = format!("'{}' {arguments}", firebox_tests::program().display());
    let find = "find small -type f -printf '%i %s %p\\n'";
    let script = |[before, limited, between]: [&str; 3]| {
        format!(
            "{before} {limited} {run}; echo code $?; {find}; echo again; {between} {run}; echo code $?; {find}"
        )
    };
    let mount = format!("mount -t tmpfs -o size={size} none small || exit 77;");
    let remount = "mount -o remount,size=64m small || exit 77;";
    let mounted = script([&mount, "", remount]);
    let bytes = limit.strip_suffix('k').map_or(0, |kib| kib.parse::<u64>().unwrap() << 10);
    let limited = script(["trap '' XFSZ;", &format!("prlimit --fsize={bytes}"), ""]);
    let (output, why) = match scripted(folder, &["unshare", "-rm", "sh"], &mounted) {
        Some(output) => (output, NO_SPACE),
        None => (scripted(folder, &["sh"], &limited).unwrap(), "File too large"),
    };
    Full {
        said: String::from_utf8_lossy(&output.stdout).into_owned(),
        errors: errors(&output),
        why,
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_while_fetching_is_told_and_the_download_goes_on() {
    let folder = project(PIPELINE, 500);
    let content = std::fs::read(folder.path().join("bars.csv")).unwrap();
    let all = content.len();
    assert!(all > 20_000, "{all}");
    let (port, sent) = serve(content);
    let arguments = format!(
        "run p.toml --set run.cache=small --set data.path=http://127.0.0.1:{port}/bars.csv --set train.epochs=1"
    );
    let Full { said, errors, why } = on_a_full_disk(folder.path(), ["16k", "16k"], &arguments);
    let (before, after) = said.split_once("again\n").unwrap();
    assert!(before.contains("code 1") && after.contains("code 0"), "{said}{errors}");
    assert!(errors.contains(&format!("takes {all} bytes")), "{errors}");
    assert!(errors.contains(why), "{errors}");
    assert!(errors.contains("set `run.cache` to a folder on another disk"), "{errors}");
    // Nothing that could be taken for the file, and all that came through.
    assert!(!before.contains("/bars.csv\n") && !before.contains("manifest.json\n"), "{said}");
    let part = before.lines().find(|line| line.ends_with("bars.csv.part")).unwrap();
    let kept: usize = part.split(' ').nth(1).unwrap().parse().unwrap();
    assert!(kept > 0, "{said}");
    assert_eq!(sent[1].load(Ordering::Relaxed), all + all - kept, "{said}");
    assert!(after.contains("/bars.csv\n") && !after.contains(".part\n"), "{said}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_while_converting_is_told_and_what_is_finished_is_kept() {
    let of_size = |sizes| {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..4 {
            let path = folder.path().join(format!("arrays/{number}.npy"));
            array(&path, 100_000, |at| (at + number) as f32);
        }
        let arguments = "data convert arrays small/samples --shard-size 1";
        on_a_full_disk(folder.path(), sizes, arguments)
    };
    // A disk that clearly has no room is found out about before anything is written to it.
    let Full { said, errors, why } = of_size(["2048k", "500k"]);
    if why == NO_SPACE {
        let (before, after) = said.split_once("again\n").unwrap();
        assert!(before.contains("code 1") && !before.contains("shard"), "{said}{errors}");
        assert!(errors.contains("4 samples take 3200000 bytes in `small/samples`"), "{errors}");
        assert!(after.contains("code 0") && after.contains("shard-00003.arrow"), "{said}");
    }
    // One with room for the values, and not for all that lies beside them.
    let Full { said, errors, why } = of_size(["3140k", "500k"]);
    let (before, after) = said.split_once("again\n").unwrap();
    assert!(before.contains("code 1") && after.contains("code 0"), "{said}{errors}");
    assert!(errors.contains("of 3200000 in all, and its disk has no room"), "{errors}");
    assert!(errors.contains(why), "{errors}");
    assert!(!before.contains("manifest.json") && !before.contains(".part"), "{said}");
    // A shard that was whole is not written again: it is the same file.
    let first = |text: &str| {
        let mut lines = text.lines().filter(|line| line.ends_with("shard-00000.arrow"));
        lines.next().map(str::to_owned)
    };
    // Of shards of one size, a limit for files lets none be finished.
    let is_kept = first(before).is_some() && first(before) == first(after);
    assert!(is_kept || why != NO_SPACE, "{said}");
    assert!(after.contains("small/samples/manifest.json") && after.contains("shard-00003.arrow"));
}

#[test]
fn copies_of_remote_files_are_listed_and_pruned_unless_they_are_locked() {
    let folder = project(PIPELINE, 500);
    let (port, _) = serve(std::fs::read(folder.path().join("bars.csv")).unwrap());
    let address = format!("http://127.0.0.1:{port}/bars.csv");
    let setting = format!("data.path={address}");
    let checked = || {
        let output = firebox(folder.path(), &["data", "check-leaks", "p.toml", "--set", &setting]);
        assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    };
    checked();
    let bucket = folder.path().join("cache/remote-v1");
    let copy = std::fs::read_dir(&bucket).unwrap().next().unwrap().unwrap().path();
    // As a download of a later version leaves it that was cut short.
    std::fs::write(copy.join("bars.csv.part"), [0; 1000]).unwrap();
    let part =
        r#"{"url":"http://me:secret@host/bars.csv","version":{"bytes":5000,"tag":"\"two\""}}"#;
    std::fs::write(copy.join("part.json"), part).unwrap();
    let cache = |arguments: &[&str]| {
        let output = firebox(folder.path(), &[&["cache"], arguments].concat());
        assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let line = |listed: &str, end: &str| {
        let found = listed.lines().find(|line| line.contains(end)).map(str::to_owned);
        found.unwrap_or_else(|| panic!("{end}: {listed}"))
    };
    let locked = std::fs::File::open(copy.join("lock")).unwrap();
    locked.lock().unwrap();
    let listed = cache(&["list"]);
    let own = line(&listed, &address);
    assert!(
        own.starts_with("remote-v1") && own.contains("kB") && own.contains("in use now"),
        "{own}"
    );
    let part = line(&listed, "bars.csv.part");
    assert!(part.contains("being made") && part.ends_with("http://host/bars.csv"), "{part}");
    assert!(!listed.contains("secret"), "{listed}");
    let pruned = cache(&["prune", "--max-size", "0"]);
    assert!(line(&pruned, &address).starts_with("kept"), "{pruned}");
    assert!(copy.join("bars.csv").is_file() && copy.join("bars.csv.part").is_file());
    drop(locked);
    let listed = cache(&["list"]);
    assert!(line(&listed, &address).contains("used "), "{listed}");
    assert!(line(&listed, "bars.csv.part").contains("prune removes it"), "{listed}");
    assert!(line(&cache(&["verify"]), "remote-v1").ends_with("whole"));
    let pruned = cache(&["prune", "--max-size", "0"]);
    assert!(line(&pruned, &address).starts_with("removed"), "{pruned}");
    let left: Vec<_> =
        std::fs::read_dir(&copy).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(left, ["lock"]);
    assert!(!cache(&["list"]).contains("remote-v1"));
    checked();
    assert!(copy.join("bars.csv").is_file());
    // A copy that lost its manifest is none.
    std::fs::remove_file(copy.join("manifest.json")).unwrap();
    assert!(line(&cache(&["list"]), "bars.csv").contains("prune removes it"));
    cache(&["prune", "--max-size", "1GB"]);
    assert!(!copy.join("bars.csv").exists());
}

/// All files and folders below a folder.
#[cfg(unix)]
fn below(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut open) = (vec![], vec![folder.to_owned()]);
    while let Some(folder) = open.pop() {
        let inside = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        let inside: Vec<PathBuf> = inside.map(|entry| entry.path()).collect();
        open.extend(inside.iter().filter(|path| path.is_dir()).cloned());
        found.extend(inside);
    }
    found
}

/// A file of this name below a folder.
#[cfg(unix)]
fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    below(folder).into_iter().find(|path| path.is_file() && path.ends_with(name))
}

/// Cuts a shard off once a run has taken steps; returns what the run said, and how long after that it ended.
#[cfg(unix)]
fn cut_off_while_training(
    folder: &Path,
    arguments: &[&str],
    runs: &Path,
    shard: impl FnOnce() -> PathBuf,
) -> (std::process::Output, Duration) {
    let running = Running::of(&mut command(folder, arguments));
    let deadline = Instant::now() + Duration::from_secs(60);
    let trains = |path: PathBuf| std::fs::read_to_string(path).unwrap().contains("\"step\":5,");
    while !find(runs, "events.jsonl").is_some_and(trains) {
        assert!(Instant::now() < deadline, "no step was trained");
        std::thread::sleep(Duration::from_millis(20));
    }
    let cut = std::fs::File::options().write(true).open(shard()).unwrap();
    let start = Instant::now();
    cut.set_len(1000).unwrap();
    (running.output(), start.elapsed())
}

/// A shard is cut off while it is trained on.
#[cfg(unix)]
#[test]
fn a_shard_that_shrinks_under_a_run_ends_it_within_a_second_and_is_made_anew() {
    let folder = project(PIPELINE, 500);
    let settings = [
        "run",
        "p.toml",
        "--set",
        "train.epochs=100000",
        "--set",
        "train.early_stopping.patience=100000",
        "--set",
        "run.cache=cache",
        "--set",
        "run.directory=runs",
    ];
    let (runs, cache) = (folder.path().join("runs"), folder.path().join("cache"));
    // A processor with other work may be late once; the best of three tries counts.
    let mut fastest = Duration::MAX;
    for _ in 0..3 {
        if let Some(events) = find(&runs, "events.jsonl") {
            std::fs::remove_dir_all(events.parent().unwrap()).unwrap();
        }
        let shard = || find(&cache, "shard-00000.arrow").unwrap();
        let (output, after) = cut_off_while_training(folder.path(), &settings, &runs, shard);
        fastest = fastest.min(after);
        let said = errors(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("changed while it was being read"), "{said}");
        if fastest < Duration::from_secs(1) {
            break;
        }
    }
    assert!(fastest < Duration::from_secs(1), "it took {fastest:?}");
    // The damaged shard is found and made again.
    let mut arguments = settings.to_vec();
    arguments.extend(["--set", "train.epochs=1"]);
    let output = firebox(folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    assert!(errors(&output).contains("it is made again"), "{}", errors(&output));
}

/// What someone has not finished writing, by the names that such files and folders have.
#[cfg(unix)]
fn unfinished(folder: &Path) -> Vec<PathBuf> {
    let ends = [".part", ".partial", ".removed", ".replaced"];
    let is_unfinished = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.contains(".tmp") || ends.iter().any(|end| name.ends_with(end))
    };
    below(folder).into_iter().filter(is_unfinished).collect()
}

/// Samples that are read where they were converted to, which no run makes again.
#[cfg(unix)]
#[test]
fn converted_samples_that_shrink_under_a_run_end_it_and_it_goes_on_once_they_are_converted_again() {
    let folder = project(PIPELINE, 10);
    convert_waves(folder.path());
    let settings = [
        "data.path=samples",
        "labels=last",
        "window.whole=true",
        "augment.mode=online",
        "loader.resident=stream",
        "train.epochs=200",
        "train.early_stopping.patience=1000",
    ];
    let expected = losses(&run(folder.path(), "whole", &settings));
    let mut arguments = vec!["run", "p.toml", "--set", "run.directory=cut"];
    settings.iter().for_each(|setting| arguments.extend(["--set", setting]));
    let runs = folder.path().join("cut");
    let shard = || folder.path().join("samples/shard-00000.arrow");
    let mut output = cut_off_while_training(folder.path(), &arguments, &runs, shard).0;
    for _ in 0..4 {
        if output.status.code() != Some(0) {
            break;
        }
        // A processor with other work was late: the run had ended.
        std::fs::remove_dir_all(&runs).unwrap();
        convert(folder.path());
        output = cut_off_while_training(folder.path(), &arguments, &runs, shard).0;
    }
    let said = errors(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let file = "samples/shard-00000.arrow` changed while it was being read";
    assert!(said.contains(file) && said.contains("convert the arrays again"), "{said}");
    // The run says so, too, and is no finished one.
    let events = find(&runs, "events.jsonl").unwrap();
    let lines = std::fs::read_to_string(&events).unwrap();
    let all: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let finished = all.iter().find(|event| event["event"] == "run-finished").unwrap();
    let outcome = finished["outcome"].as_str().unwrap();
    assert!(outcome.starts_with("failed: ") && outcome.contains(file), "{outcome}");
    let cut = events.parent().unwrap();
    assert!(!cut.join("manifest.json").exists() && !cut.join("report.html").exists());
    assert_eq!(unfinished(folder.path()), Vec::<PathBuf>::new());
    // Before they are mended, the same is told, and what was learnt stays.
    let again = firebox(folder.path(), &arguments);
    let said = errors(&again);
    assert_eq!(again.status.code(), Some(2), "{said}");
    assert!(said.contains("convert the arrays again"), "{said}");
    convert(folder.path());
    assert_eq!(losses(&run(folder.path(), "cut", &settings)), expected);
    let lines = std::fs::read_to_string(&events).unwrap();
    let resumed = lines
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok()?["resumed_at_step"].as_u64());
    assert!(resumed.max() >= Some(5), "it began anew");
}

/// What a run has mapped stays until it lets go of it.
#[cfg(unix)]
#[test]
fn a_cache_that_is_deleted_under_a_run_changes_nothing_of_it_and_is_made_anew() {
    let folder = project(PIPELINE, 500);
    let settings = [
        "run.cache=cache",
        "loader.resident=stream",
        "train.epochs=60",
        "train.early_stopping.patience=99",
    ];
    let expected = losses(&run(folder.path(), "whole", &settings));
    let cache = folder.path().join("cache");
    std::fs::remove_dir_all(&cache).unwrap();
    let mut arguments = vec!["run", "p.toml", "--set", "run.directory=robbed"];
    settings.iter().for_each(|setting| arguments.extend(["--set", setting]));
    let running = Running::of(&mut command(folder.path(), &arguments));
    let robbed = || std::fs::read_dir(folder.path().join("robbed")).unwrap().flatten().next();
    let trained = |step: usize| {
        let events = robbed().map(|run| run.path().join("events.jsonl"));
        let events = events.and_then(|events| std::fs::read_to_string(events).ok());
        events.is_some_and(|events| events.contains(&format!("\"step\":{step},")))
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while !folder.path().join("robbed").is_dir() || !trained(30) {
        assert!(Instant::now() < deadline, "step 30 was not reached");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::fs::remove_dir_all(&cache).unwrap();
    assert!(!trained(expected.len()), "it was deleted too late");
    let output = running.output();
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let robbed = robbed().unwrap().path();
    assert_eq!(losses(&robbed), expected);
    assert!(robbed.join("report.html").is_file());
    // Nothing of it is taken to be there.
    let again = run(folder.path(), "again", &settings);
    assert_eq!(losses(&again), expected);
    assert!(cache.join("augmented-v1").is_dir());
}
