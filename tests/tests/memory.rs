//! Runs under a limit on memory that a process sets on itself: a training step, a validation or a checkpoint
//! that fails begins the program anew, computes each batch in smaller parts, and ends as a run does that was
//! told so from the start, bit for bit; a trial of a search fails with its reason, and the others go on.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use firebox_tests::{errors, firebox, program};
use tempfile::TempDir;

/// Bars and a pipeline whose step takes some 400 MB, on a model small enough for a test.
fn project() -> TempDir {
    pretraining(384, 96, true)
}

/// The same with checkpoints that take more memory than steps: a copy of many weights and moments, beside what a step
/// keeps for the next.
fn large_weights() -> TempDir {
    pretraining(8, 384, false)
}

fn pretraining(batch: usize, hidden: usize, asynchronous: bool) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut bars = "open,high,low,close\n".to_owned();
    let (mut price, mut seed) = (1000.0f64, 7u64);
    for _ in 0..3000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let close = price + ((seed >> 33) as f64 / f64::from(1u32 << 31) - 0.5) * 2.0;
        let (high, low) = (price.max(close) + 0.1, price.min(close) - 0.1);
        writeln!(bars, "{price:.4},{high:.4},{low:.4},{close:.4}").unwrap();
        price = close;
    }
    std::fs::write(folder.path().join("bars.csv"), bars).unwrap();
    let pipeline = r#"
        pipeline = "pretrain"
        labels = "none"
        [data]
        path = "bars.csv"
        [window]
        length = 100
        stride = 4
        [augment]
        versions = 1
        [loader]
        batch_size = BATCH
        workers = 0
        [model.bilstm-mae]
        hidden = HIDDEN
        decoder_hidden = 16
        [train]
        epochs = 1
        max_steps = 3
        [train.checkpoint]
        resume_every = 1
        asynchronous = ASYNCHRONOUS
        [evaluate]
        seeds = 1
        resamples = 100
        [monitor]
        period = 0
    "#;
    let pipeline = pipeline.replace("BATCH", &batch.to_string());
    let pipeline = pipeline.replace("HIDDEN", &hidden.to_string());
    let pipeline = pipeline.replace("ASYNCHRONOUS", &asynchronous.to_string());
    std::fs::write(folder.path().join("small.toml"), pipeline).unwrap();
    folder
}

/// Forecasts whose validations take more memory than their steps: 512 windows beside 4.
fn forecasts() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("two.demand.toml"), "stations = 2\nhours = 2400\n").unwrap();
    let pipeline = r#"
        pipeline = "forecast"
        [data]
        path = "two.demand.toml"
        [window]
        length = 24
        stride = 1
        normalise = "standard"
        [split.time]
        validation = 0.3
        test = 0.2
        [forecast]
        targets = ["demand"]
        horizons = [1]
        inputs = ["demand"]
        [loader]
        batch_size = 4
        workers = 0
        [model.stacked-lstm]
        hidden_1 = 512
        hidden_2 = 16
        dense = 8
        [train]
        epochs = 1
        max_steps = 3
        [train.checkpoint]
        resume_every = 1
        [evaluate]
        batch_size = 8
        resamples = 100
        [monitor]
        period = 0
    "#;
    std::fs::write(folder.path().join("small.toml"), pipeline).unwrap();
    folder
}

/// Runs the program from the start under a limit of its data, in KiB.
fn limited(folder: &Path, kib: u64) -> Output {
    limited_with(folder, kib, &[])
}

/// The same with these settings.
fn limited_with(folder: &Path, kib: u64, settings: &[&str]) -> Output {
    let _ = std::fs::remove_dir_all(folder.join("runs"));
    let mut shell = Command::new("sh");
    let script = format!("ulimit -d {kib}; exec \"$0\" run small.toml \"$@\"");
    shell.arg("-c").arg(script).arg(program());
    shell.args(settings.iter().flat_map(|setting| ["--set", setting]));
    shell.current_dir(folder).env("RAYON_NUM_THREADS", "2").output().unwrap()
}

fn only_run(folder: &Path) -> PathBuf {
    let runs: Vec<_> = std::fs::read_dir(folder.join("runs")).unwrap().flatten().collect();
    assert_eq!(runs.len(), 1, "{runs:?}");
    runs[0].path()
}

/// The weights that a run ended with.
fn weights(run: &Path) -> Vec<u8> {
    let text = std::fs::read(run.join("training.json")).unwrap();
    let summary: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let selected = run.join("checkpoints").join(summary["selected"].as_str().unwrap());
    std::fs::read(selected.join("weights.safetensors")).unwrap()
}

#[test]
fn a_run_without_memory_goes_on_in_smaller_parts() {
    let folder = project();
    // The largest limit under which a step fails: what else a process maps differs by machine.
    let divided = (2..=9).rev().map(|hundreds| hundreds * 100_000).find_map(|kib| {
        let output = limited(folder.path(), kib);
        assert_eq!(output.status.code(), Some(0), "{kib} KiB: {}", errors(&output));
        let run = only_run(folder.path());
        run.join("memory.json").exists().then(|| (run, errors(&output)))
    });
    let (run, said) = divided.expect("a limit under which a step fails");
    tells_and_repeats(&run, &said, project);
}

#[test]
fn what_is_measured_before_a_run_needs_no_more_memory_than_the_run() {
    let folder = project();
    let divides = |kib: &u64| {
        let output = limited(folder.path(), *kib);
        assert_eq!(output.status.code(), Some(0), "{kib} KiB: {}", errors(&output));
        only_run(folder.path()).join("memory.json").exists()
    };
    let mut limits = (2..=9).rev().map(|hundreds| hundreds * 100_000);
    let kib = limits.find(divides).expect("a limit under which a step fails");
    // Each takes whole steps of the model before the run has begun, which nobody divides.
    for (setting, reason) in [
        ("run.precision=auto", "# run.precision = "),
        ("run.recompute=true", "larger ones may not fit without it"),
        ("loader.batch_size=auto", " windows a second in "),
    ] {
        let output = limited_with(folder.path(), kib, &[setting]);
        assert_eq!(output.status.code(), Some(0), "{setting}: {}", errors(&output));
        let run = only_run(folder.path());
        let settled = std::fs::read_to_string(run.join("pipeline.toml")).unwrap();
        assert!(settled.contains(reason), "{setting}: {settled}");
    }
}

#[test]
fn a_validation_without_memory_goes_on_in_smaller_parts() {
    let (run, said, _folder) = divided_below_enough(forecasts, 50_000, 6_000);
    assert!(said.contains("the validation after step 3 had too little memory"), "{said}");
    tells_and_repeats(&run, &said, forecasts);
}

#[test]
fn a_shard_without_memory_ends_a_run_with_an_error() {
    let folder = pretraining(8, 16, false);
    let settings = ["window.stride=1", "augment.versions=20", "train.max_steps=1"];
    // Values of a shard are 64 MiB; what else a process maps differs by machine.
    let told = (100..=240).step_by(5).any(|thousands| {
        for name in ["runs", "cache"] {
            let _ = std::fs::remove_dir_all(folder.path().join(name));
        }
        let kib = thousands * 1000;
        let script = format!("ulimit -d {kib}; exec timeout -s KILL 120 \"$0\" \"$@\"");
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(script).arg(program()).args(["run", "small.toml"]);
        shell.args(settings.iter().flat_map(|setting| ["--set", setting]));
        shell.envs([
            ("RAYON_NUM_THREADS", "2"),
            ("POLARS_MAX_THREADS", "2"),
            ("RUST_BACKTRACE", "1"),
        ]);
        let output = shell.current_dir(folder.path()).output().unwrap();
        let said = errors(&output);
        assert!([Some(0), Some(1)].contains(&output.status.code()), "{kib} KiB: {output:?}");
        said.contains("bytes of memory for a shard of values were refused\n  give the process")
    });
    assert!(told, "no limit under which a shard has no memory");
}

#[test]
fn an_examination_without_memory_does_not_say_that_its_figures_are_kept() {
    // The weights of bert-base and their gradients take 880 MB, and 819 are allowed.
    let script = "ulimit -d 800000; exec \"$0\" doctor --quick --device cpu --workload bert-base";
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).arg(program()).env("RAYON_NUM_THREADS", "2");
    let output = shell.output().unwrap();
    let said = errors(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let expected = "error: memory was refused, and what this examination has measured is not kept\n  examine fewer";
    assert!(said.contains(expected), "{said}");
}

/// A run whose evaluation takes more memory than its steps: many windows at once.
fn large_evaluation() -> TempDir {
    let folder = pretraining(4, 96, false);
    let path = folder.path().join("small.toml");
    let pipeline = std::fs::read_to_string(&path).unwrap();
    let pipeline = pipeline
        .replace("stride = 4", "stride = 1")
        .replace("[augment]", "[split.time]\n        test = 0.5\n        [augment]")
        .replace("[evaluate]", "[evaluate]\n        batch_size = 2048");
    std::fs::write(&path, pipeline).unwrap();
    folder
}

#[test]
fn an_evaluation_without_memory_says_so_and_is_taken_up_where_it_was() {
    let folder = large_evaluation();
    let failed = (2..=15).rev().map(|steps| steps * 40_000).find_map(|kib| {
        let output = limited(folder.path(), kib);
        (output.status.code() != Some(0)).then_some(output)
    });
    let failed = failed.expect("a limit under which the evaluation fails");
    let said = errors(&failed);
    assert_eq!(failed.status.code(), Some(1), "{said}");
    assert!(said.contains("error: memory was refused where a run cannot go on"), "{said}");
    assert!(said.contains("evaluate.batch_size"), "{said}");
    let run = only_run(folder.path());
    let trained = std::fs::read(run.join("training.json")).expect("training was complete");
    let output = firebox(folder.path(), &["run", "small.toml"]);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    assert_eq!(only_run(folder.path()), run);
    assert_eq!(std::fs::read(run.join("training.json")).unwrap(), trained);
}

#[test]
fn memory_that_is_refused_to_threads_is_no_panic_and_no_bad_input() {
    let folder = project();
    // From what is too little to begin with to what a divided run needs: the stack of one thread after the other is refused.
    let ends: Vec<i32> = (0..12)
        .map(|steps| {
            let kib = 90_000 + steps * 6_000;
            let output = limited_with(
                folder.path(),
                kib,
                &["loader.workers=2", "loader.resident=\"stream\""],
            );
            let (code, said) = (output.status.code(), errors(&output));
            assert!(matches!(code, Some(0 | 1)), "{kib} KiB: {code:?}: {said}");
            assert!(!said.contains("panicked") && !said.contains("Ctrl-C error"), "{kib}: {said}");
            code.unwrap()
        })
        .collect();
    assert_eq!(ends.last(), Some(&0), "{ends:?}");
}

#[test]
fn a_checkpoint_without_memory_is_saved_with_less() {
    let (run, said, _folder) = divided_below_enough(large_weights, 40_000, 8_000);
    assert!(said.contains("a checkpoint after step"), "{said}");
    assert!(said.contains("gives up its buffers before each checkpoint"), "{said}");
    tells_and_repeats(&run, &said, large_weights);
}

/// A run under the first limit at which something had too little memory, found from one that is enough, first in
/// large and then in small steps (KiB).
fn divided_below_enough(
    project: fn() -> TempDir,
    large: u64,
    small: u64,
) -> (PathBuf, String, TempDir) {
    let folder = project();
    let run = |kib| {
        let output = limited(folder.path(), kib);
        let done = || (only_run(folder.path()), errors(&output));
        (output.status.code() == Some(0)).then(done)
    };
    let is_divided = |run: &Path| run.join("memory.json").exists();
    let whole = |kib: &u64| run(*kib).is_some_and(|(run, _)| !is_divided(&run));
    let limits = (3..=12).rev().map(|parts| parts * large);
    let enough = limits.take_while(whole).last().expect("a limit that is enough");
    // Near what is too little to go on with, a run may end before anything is divided: other limits between, then.
    let (run, said) = [0, 3, 1, 5, 2, 4]
        .into_iter()
        .map(|sixth| sixth * small / 6)
        .flat_map(|shift| (1..=large / small).map(move |parts| parts * small - shift))
        .filter_map(|less| run(enough - less))
        .find(|(run, _)| is_divided(run))
        .expect("a limit under which there is too little");
    (run, said, folder)
}

/// A run that was divided says so, leaves no note, and ends as one that was told so from the start.
fn tells_and_repeats(run: &Path, said: &str, project: fn() -> TempDir) {
    assert!(said.contains("had too little memory (it asked for"), "{said}");
    assert!(!run.join("out-of-memory").exists(), "the note stays");
    let report = std::fs::read_to_string(run.join("report.html")).unwrap();
    assert!(report.contains("had too little memory"), "the report is silent");
    let (name, found) = (run.file_name().unwrap().to_owned(), weights(run));
    let divisions = std::fs::read(run.join("memory.json")).unwrap();
    // The same decision from the start, with memory enough.
    let other = project();
    let run = other.path().join("runs").join(&name);
    std::fs::create_dir_all(&run).unwrap();
    std::fs::write(run.join("memory.json"), &divisions).unwrap();
    let output = firebox(other.path(), &["run", "small.toml"]);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    assert!(weights(&run) == found, "the weights differ");
}

/// A control group of this process's memory, which ends with the test.
struct Group(PathBuf);

impl Group {
    /// One below that of this process with a limit in bytes, or a line that counts the test as skipped.
    fn limited_to(bytes: u64) -> Option<Self> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let made = groups.lines().find_map(|line| {
            let (root, own, file) = match line.split_once("::/") {
                Some((_, own)) => ("/sys/fs/cgroup", own, "memory.max"),
                None => {
                    let (_, own) = line.split_once(":memory:/")?;
                    ("/sys/fs/cgroup/memory", own, "memory.limit_in_bytes")
                }
            };
            let path = Path::new(root).join(own).join(format!("firebox-{}", std::process::id()));
            std::fs::create_dir(&path).ok()?;
            let group = Self(path);
            std::fs::write(group.0.join(file), bytes.to_string()).ok()?;
            Some(group)
        });
        if made.is_none() {
            println!("skipped: no control group of memory can be made here; run the tests as root");
        }
        made
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_step_near_the_limit_of_its_control_group_goes_on_in_smaller_parts() {
    let Some(group) = Group::limited_to(480_000_000) else { return };
    let folder = project();
    let mut shell = Command::new("sh");
    shell.arg("-c").arg("echo $$ > \"$1\" && exec \"$0\" run small.toml").arg(program());
    shell.arg(group.0.join("cgroup.procs")).current_dir(folder.path());
    let output = shell.env("RAYON_NUM_THREADS", "2").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let run = only_run(folder.path());
    assert!(run.join("memory.json").exists(), "nothing was divided: {}", errors(&output));
    tells_and_repeats(&run, &errors(&output), project);
}

/// Four trials of a search, of which one is too large by far for 1 GB.
fn search(choices: &str, epochs: u64) -> TempDir {
    let folder = project();
    let path = folder.path().join("small.toml");
    let pipeline = std::fs::read_to_string(&path).unwrap();
    let pipeline = pipeline.replace("stride = 4", "stride = 8");
    let pipeline =
        pipeline.replace("epochs = 1\n        max_steps = 3", &format!("epochs = {epochs}"));
    let search = format!(
        r#"
        [search]
        trials = 4
        sampler = "grid"
        pruner = "none"
        [search.space]
        "model.bilstm-mae.hidden" = {{ choices = {choices} }}
        "#
    );
    std::fs::write(path, pipeline + &search).unwrap();
    folder
}

fn search_limited(folder: &Path, kib: u64, more: &[&str]) -> Output {
    let script = format!("ulimit -d {kib}; exec \"$0\" search small.toml \"$@\"");
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(script).arg(program()).args(more);
    shell.current_dir(folder).env("RAYON_NUM_THREADS", "2").output().unwrap()
}

/// Entries of the journal with an operation's number.
fn entries(folder: &Path, operation: u64) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(folder.join("runs/small.search/study.log")).unwrap();
    let entries = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    entries.filter(|entry| entry["op_code"] == operation).collect()
}

/// Values of the complete trials, sorted, and reasons of those that failed.
fn ends(folder: &Path) -> (Vec<f64>, Vec<String>) {
    let complete = entries(folder, 6).into_iter().filter(|entry| entry["state"] == 1);
    let mut values: Vec<f64> = complete.map(|entry| entry["values"][0].as_f64().unwrap()).collect();
    values.sort_by(f64::total_cmp);
    let reasons = entries(folder, 8).into_iter();
    let reasons = reasons.filter_map(|e| e["user_attr"]["fail_reason"].as_str().map(str::to_owned));
    (values, reasons.collect())
}

#[test]
fn a_trial_without_memory_fails_with_its_reason_and_the_others_end_as_they_would() {
    let small = search("[4, 8, 12]", 12);
    let output = search_limited(small.path(), 8_000_000, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let (expected, none) = ends(small.path());
    assert_eq!((expected.len(), none.len()), (3, 0));
    // One after the other, beside each other, and by processes; a journal has each trial's end once.
    for more in [
        &[][..],
        &["--set", "search.concurrent=3"],
        &["--set", "search.concurrent=2", "--workers", "2", "--set", "search.heartbeat=0.5"],
    ] {
        let folder = search("[4, 8, 12, 2048]", 12);
        let folder = folder.path();
        let output = search_limited(folder, 1_000_000, more);
        let said = errors(&output);
        assert_eq!(output.status.code(), Some(0), "{more:?}: {said}");
        let (values, reasons) = ends(folder);
        assert_eq!(values, expected, "{more:?}: {said}");
        let (own, others): (Vec<_>, Vec<_>) =
            reasons.iter().partition(|reason| reason.contains("it has too little memory"));
        assert_eq!(own.len(), 1, "{more:?}: {reasons:?}");
        assert!(own[0].contains("it needs at least") && own[0].contains("ulimit -d"), "{own:?}");
        // Those that ran beside it are put back, and none is taken for one whose worker died.
        let put_back = |reason: &&String| reason.starts_with("its worker ran out of memory");
        assert!(others.iter().all(put_back), "{more:?}: {others:?}");
        let begun = entries(folder, 4).len();
        assert_eq!(begun, 4 + others.len(), "{more:?}: each is tried again once");
        let summary = std::fs::read_to_string(folder.join("runs/small.search/summary.md")).unwrap();
        assert!(summary.contains("- complete: 3\n- failed: 1"), "{summary}");
        assert!(summary.contains("too little memory"), "{summary}");
        // It is not tried again, and there is nothing left to do.
        let output = search_limited(folder, 1_000_000, more);
        assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
        assert_eq!(entries(folder, 4).len(), begun);
    }
}

#[test]
fn a_search_whose_every_trial_is_too_large_ends_with_the_reasons() {
    let folder = search("[2048, 2049]", 1);
    let output = search_limited(folder.path(), 1_000_000, &[]);
    let said = errors(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("no trial ended with a value"), "{said}");
    let (values, reasons) = ends(folder.path());
    assert_eq!((values.len(), reasons.len()), (0, 2), "{reasons:?}");
    assert!(reasons.iter().all(|reason| reason.contains("too little memory")), "{reasons:?}");
}
