//! What the whole-program tests share: where things are, and how the program is started.

// The launcher starts cargo in the same way, and no crate may depend on it.
#[path = "../../xtask/src/environment.rs"]
mod environment;
mod peers;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

pub use peers::{S3, python};

/// The workspace's folder: the one that cargo runs this test in, which may be another than that in which it was built,
/// where clones share a target folder.
pub fn root() -> &'static Path {
    static MANIFEST: OnceLock<PathBuf> = OnceLock::new();
    let manifest = MANIFEST.get_or_init(|| {
        let own = std::env::var_os("CARGO_MANIFEST_DIR");
        own.map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from)
    });
    manifest.parent().unwrap_or(manifest)
}

/// A file of `../shared/data`, or a line that counts this test as skipped.
pub fn shared(path: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("FIREBOX_SHARED_DATA")
        .map_or_else(|| root().join("../shared/data"), PathBuf::from);
    let file = folder.join(path);
    if file.exists() {
        return Some(file);
    }
    println!("skipped: {path} is not there; set FIREBOX_SHARED_DATA to the folder that has it");
    None
}

/// The `firebox` program of this workspace: `FIREBOX_PROGRAM`, which `cargo xtask test` sets, or one
/// that is built now in the profile of the tests.
///
/// # Panics
///
/// When it cannot be built.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        if let Some(program) = std::env::var_os("FIREBOX_PROGRAM") {
            return PathBuf::from(program);
        }
        let mut build = cargo();
        build.args(["build", "--quiet", "--release", "--workspace", "--bin", "firebox"]);
        let status = build.current_dir(root()).status();
        assert!(status.is_ok_and(|status| status.success()), "the firebox program does not build");
        target().join("release").join("firebox")
    })
}

/// Cargo as a user starts it: what the cargo that runs this test has set would build things anew.
pub fn cargo() -> Command {
    environment::cargo(&target())
}

/// Cargo's target folder, absolute.
pub fn target() -> PathBuf {
    let set = std::env::var_os("CARGO_TARGET_DIR");
    let target = set.map_or_else(|| root().join("target"), PathBuf::from);
    if target.is_absolute() {
        return target;
    }
    // It is below the folder in which cargo was started, which no test is told: this program is in its release/deps.
    let program = std::env::current_exe().ok();
    let found = program.as_deref().and_then(|program| program.ancestors().nth(3));
    found.map_or_else(|| root().join(&target), Path::to_path_buf)
}

/// Runs the program in `folder` with nothing of this process's environment that it would read.
///
/// # Panics
///
/// When it cannot be started.
pub fn firebox(folder: &Path, arguments: &[&str]) -> Output {
    let output = command(folder, arguments).output();
    output.unwrap_or_else(|error| panic!("firebox does not start: {error}"))
}

/// What a program wrote to standard error.
pub fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Makes the scores of a run of classifiers, of clusters, of an encoder or of texts again from its table of test windows or
/// texts, where there is a Python for it; in any case the table is there.
///
/// # Panics
///
/// When it is not there, or other scores come of it.
pub fn scored_again(run: &Path, expected: &str) {
    assert!(run.join("test.parquet").is_file(), "{} has no test.parquet", run.display());
    let Some(python) = python("numpy, polars") else { return };
    let script = root().join("tests/classified.py");
    let output = Command::new(python).arg(script).arg(run).output();
    let output = output.unwrap_or_else(|error| panic!("python does not start: {error}"));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", errors(&output));
    assert!(said.contains(expected), "{said}");
}

/// The page of `firebox compare` on a run of a project and a copy of what it reads of that.
///
/// # Panics
///
/// When the run cannot be copied or compared.
pub fn compared_with_its_copy(folder: &Path, run: &Path) -> String {
    let copy = || -> std::io::Result<()> {
        std::fs::create_dir(folder.join("copy"))?;
        for name in ["pipeline.toml", "events.jsonl", "scores.json"] {
            std::fs::copy(run.join(name), folder.join("copy").join(name))?;
        }
        Ok(())
    };
    copy().unwrap_or_else(|error| panic!("{} cannot be copied: {error}", run.display()));
    let output = firebox(folder, &["compare", &run.display().to_string(), "copy"]);
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    let page = std::fs::read_to_string(folder.join("comparison.html"));
    let page = page.unwrap_or_else(|error| panic!("there is no page: {error}"));
    // Lines do not break before the sign.
    page.replace("\u{a0}%", " %")
}

/// The command of [`firebox`], not yet started.
pub fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(arguments).current_dir(folder);
    let own = |name: &str| name.to_uppercase().starts_with("FIREBOX_");
    for (name, _) in std::env::vars().filter(|(name, _)| own(name)) {
        command.env_remove(name);
    }
    command
}

/// A folder with the pipeline file `p.toml` and so many one-minute bars in `bars.csv`, whose prices go
/// up and down.
///
/// # Panics
///
/// When it cannot be written.
pub fn project(pipeline: &str, bars: usize) -> tempfile::TempDir {
    let price = |i: usize| 100.0 + (i * i % 17) as f64 * 0.1;
    let row = |i: usize| {
        let (open, close) = (price(i), price(i + 1));
        let (high, low) = (open.max(close) + 0.1, open.min(close) - 0.1);
        format!("2024-03-01T{:02}:{:02}:00,{open},{high},{low},{close}\n", i / 60, i % 60)
    };
    let bars: String = (0..bars).map(row).collect();
    let write = |folder: &Path| {
        std::fs::write(folder.join("bars.csv"), format!("time,open,high,low,close\n{bars}"))?;
        std::fs::write(folder.join("p.toml"), pipeline)
    };
    let folder = tempfile::tempdir();
    let written = folder.and_then(|folder| write(folder.path()).map(|()| folder));
    written.unwrap_or_else(|error| panic!("the project of a test cannot be written: {error}"))
}

/// The loss of every step of every training below a folder, bit for bit, by the training's own folder.
///
/// # Panics
///
/// When a history cannot be read.
pub fn losses_below(folder: &Path) -> BTreeMap<PathBuf, Vec<u64>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(place) = folders.pop() {
        if let Ok(history) = std::fs::read_to_string(place.join("history.jsonl")) {
            let line = |line: &str| serde_json::from_str::<serde_json::Value>(line);
            let lines = history.lines().map(line).collect::<Result<Vec<_>, _>>();
            let lines = lines.unwrap_or_else(|error| panic!("{}: {error}", place.display()));
            let losses = lines.iter().filter_map(|line| line.get("step")?["loss"].as_f64());
            let name = place.strip_prefix(folder).unwrap_or(&place).to_path_buf();
            found.insert(name, losses.map(f64::to_bits).collect());
        }
        let entries = std::fs::read_dir(&place).into_iter().flatten().flatten();
        folders.extend(entries.map(|entry| entry.path()).filter(|path| path.is_dir()));
    }
    found
}

/// Runs the pipeline of a project once with its training data streamed and once with them on the device,
/// and returns the losses of both, and the resolved settings of the second.
///
/// # Panics
///
/// When a run fails.
pub fn streamed_and_on_device(
    folder: &Path,
    settings: &[&str],
) -> ([BTreeMap<PathBuf, Vec<u64>>; 2], String) {
    run_twice(folder, settings, ["loader.resident=stream", "loader.resident=device"])
}

/// The same once with layers that are kept and once with layers that are computed again for their gradients.
///
/// # Panics
///
/// When a run fails.
pub fn kept_and_computed_again(
    folder: &Path,
    settings: &[&str],
) -> ([BTreeMap<PathBuf, Vec<u64>>; 2], String) {
    run_twice(folder, settings, ["run.recompute=false", "run.recompute=true"])
}

/// Runs the pipeline of a project with each of two settings, in folders of their own.
fn run_twice(
    folder: &Path,
    settings: &[&str],
    both: [&str; 2],
) -> ([BTreeMap<PathBuf, Vec<u64>>; 2], String) {
    let mut resolved = String::new();
    let losses = both.map(|own| {
        let place = own.replace('=', "-");
        let directory = format!("run.directory={place}");
        let mut arguments = vec!["run", "p.toml", "--set", &directory, "--set", own];
        settings.iter().for_each(|setting| arguments.extend(["--set", setting]));
        let output = firebox(folder, &arguments);
        assert!(output.status.success(), "{}", errors(&output));
        let mut runs = std::fs::read_dir(folder.join(&place)).into_iter().flatten().flatten();
        let run = runs.next().map(|run| run.path()).unwrap_or_default();
        resolved = std::fs::read_to_string(run.join("pipeline.toml")).unwrap_or_default();
        losses_below(&run)
    });
    (losses, resolved)
}
