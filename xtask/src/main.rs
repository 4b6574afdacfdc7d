//! `cargo xtask`: launches Firebox's pipelines, tests, benches and checks.
//!
//! It only starts other programs: it links none of Firebox's crates and has no dependency, so it
//! is built in a second. What a command does is in the crate that does it.

mod bundle;
mod check;
mod test;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::slice::Iter;

const USAGE: &str = "\
Usage: cargo xtask COMMAND

  pipeline NAME-or-FILE [--backend B] [FLAGS]  run a pipeline; NAME is a file of pipelines/
  test [FILTER]                                all tests, and how many were skipped
  bench [FLAGS]                                the benchmark suite; all flags of `firebox bench suite`
  bench data FOLDER                            the data path, which benches/compare.py runs beside NumPy
  bundle [FLAGS] OUT                           a folder to take to a machine without a network
  doctor [--backend B] [FLAGS]                 examine the devices: --quick, --json FILE, --device
  ci                                           format, tests, clippy, docs, main job, backends

`--backend` is one of cpu (default), vulkan, metal, wgpu, cuda, rocm: a feature of the firebox
binary. All other flags of `pipeline` go to `firebox run`: --set KEY=VALUE, --resume RUN,
--device NAME, --log json, --profile warmup=5,active=10. See `cargo xtask pipeline pretrain --help`.
A file with a table [search] is searched: its flags go to `firebox search`, such as --workers N.
";

const BACKENDS: [&str; 6] = ["cpu", "vulkan", "metal", "wgpu", "cuda", "rocm"];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rest = arguments.get(1..).unwrap_or_default();
    let result = match arguments.first().map(String::as_str) {
        Some("pipeline") => pipeline(rest),
        Some("test") => test::run(rest),
        Some("bench") => bench(rest),
        Some("bundle") => bundle::run(rest),
        Some("doctor") => doctor(rest),
        Some("ci") => check::run(),
        Some("help" | "--help" | "-h") => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        other => {
            let found = other.map_or("no command".to_owned(), |name| format!("`{name}`"));
            eprintln!("error: {found} is not a command of xtask\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::from(2)
        }
    }
}

/// Builds the binary for a backend and runs one pipeline file with it.
fn pipeline(arguments: &[String]) -> Result<u8, String> {
    let mut backend = "cpu".to_owned();
    let mut file = None;
    let mut flags = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if let Some(name) = named_backend(argument, &mut rest)? {
            backend = name;
        } else if argument.starts_with('-') || file.is_some() {
            flags.push(argument.clone());
            // The values of flags are not pipeline names.
            let valued = ["--set", "--resume", "--device", "--log", "--profile", "--workers"];
            if valued.contains(&argument.as_str()) {
                flags.extend(rest.next().cloned());
            }
        } else {
            file = Some(argument.clone());
        }
    }
    match build_for(&backend)? {
        0 => {}
        code => return Ok(code),
    }
    let mut command = Command::new(program());
    let file = file.map(|name| pipeline_file(&name)).transpose()?;
    command.arg(if file.as_deref().is_some_and(is_search) { "search" } else { "run" });
    // `firebox run --resume RUN` finds the file in the run; without both it says what it needs.
    command.args(file);
    run(command.args(flags))
}

/// Whether a pipeline file has a table `[search]`, and so is searched and not run. What is wrong with
/// the file is said by the program.
fn is_search(file: &Path) -> bool {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().any(|line| line.trim_start().starts_with("[search"))
}

/// The path of `NAME-or-FILE`: a name without a slash or an extension is one of `pipelines/`.
fn pipeline_file(name: &str) -> Result<PathBuf, String> {
    if Path::new(name).components().count() > 1 || name.ends_with(".toml") {
        return Ok(PathBuf::from(name));
    }
    let folder = root().join("pipelines");
    let file = folder.join(format!("{name}.toml"));
    if file.is_file() {
        return Ok(file);
    }
    let mut known: Vec<String> = std::fs::read_dir(&folder)
        .map_err(|error| format!("cannot read {}: {error}", folder.display()))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .filter_map(|path| path.file_stem()?.to_str().map(String::from))
        .collect();
    known.sort();
    Err(format!(
        "there is no pipeline `{name}`: pipelines/ has {}; a file of your own is named by its path, ending in .toml",
        known.join(", ")
    ))
}

fn first_build_is_done() -> bool {
    program().exists()
}

/// The binary that cargo builds.
fn program() -> PathBuf {
    target().join("release").join("firebox")
}

/// Cargo's target folder.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Builds the binary for a backend and examines the devices with it.
fn doctor(arguments: &[String]) -> Result<u8, String> {
    let mut backend = "cpu".to_owned();
    let mut flags = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match named_backend(argument, &mut rest)? {
            Some(name) => backend = name,
            None => flags.push(argument),
        }
    }
    match build_for(&backend)? {
        0 => run(Command::new(program()).arg("doctor").args(flags)),
        code => Ok(code),
    }
}

/// The backend that an argument names, perhaps with the one after it.
fn named_backend(argument: &str, rest: &mut Iter<'_, String>) -> Result<Option<String>, String> {
    match argument.strip_prefix("--backend=") {
        Some(name) => Ok(Some(name.to_owned())),
        None if argument != "--backend" => Ok(None),
        None => rest.next().cloned().map(Some).ok_or_else(|| "`--backend` needs a name".to_owned()),
    }
}

/// Builds the binary for a backend.
fn build_for(backend: &str) -> Result<u8, String> {
    if !BACKENDS.contains(&backend) {
        return Err(format!("`{backend}` is not a backend: use one of {}", BACKENDS.join(", ")));
    }
    if !first_build_is_done() {
        eprintln!(
            "Building Firebox. The first build takes 15 to 30 minutes on 2 cores; later ones seconds."
        );
    }
    build("firebox", &["--quiet", "--features", &format!("firebox/{backend}")])
}

/// The benchmark suite, or the data path, which is a program of its own.
fn bench(arguments: &[String]) -> Result<u8, String> {
    if let Some(("data", rest)) =
        arguments.split_first().map(|(first, rest)| (first.as_str(), rest))
    {
        return match build("firebox-benches", &["--quiet"])? {
            0 => run(Command::new(target().join("release").join("firebox-benches")).args(rest)),
            code => Ok(code),
        };
    }
    match build("firebox", &["--quiet"])? {
        0 => {}
        code => return Ok(code),
    }
    let mut command = Command::new(program());
    command.args(["bench", "suite"]).args(arguments);
    // The summary prints what was typed, not what this has made of it.
    let typed = ["cargo", "xtask", "bench"].into_iter().chain(arguments.iter().map(String::as_str));
    command.env("FIREBOX_TYPED", typed.collect::<Vec<_>>().join(" "));
    let named = arguments.iter().any(|argument| argument.starts_with("--torch-steps"));
    let script = root().join("../shared/peers/torch_steps.py");
    if !named && script.is_file() {
        command.arg("--torch-steps").arg(script);
    }
    run(&mut command)
}

/// Builds a binary. Selecting the whole workspace gives its dependencies the features that the tests
/// build them with, so that Burn and polars are built once.
fn build(binary: &str, flags: &[&str]) -> Result<u8, String> {
    let mut command = cargo();
    command.args(["build", "--release", "--workspace", "--bin", binary]).args(flags);
    run(command.current_dir(root()))
}

/// The workspace's folder: the one that cargo runs this in, which may be another than that in which it was built, where
/// clones share a target folder.
fn root() -> PathBuf {
    let own = std::env::var_os("CARGO_MANIFEST_DIR");
    let manifest = own.map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    manifest.parent().unwrap_or(&manifest).to_path_buf()
}

/// The cargo that runs this, as a user starts it. What it has set for this program (the name of its
/// package, its folder) would make build scripts that look at it, and all that depends on them,
/// run anew.
fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let own = |name: &str| name.starts_with("CARGO") || name == "LD_LIBRARY_PATH";
    for (name, _) in std::env::vars_os() {
        let shown = name.to_string_lossy();
        if own(&shown) && !["CARGO_HOME", "CARGO_TARGET_DIR"].contains(&shown.as_ref()) {
            command.env_remove(&name);
        }
    }
    command
}

/// Runs a command to its end and returns its exit code; a signal counts as 1.
fn run(command: &mut Command) -> Result<u8, String> {
    let status = command
        .status()
        .map_err(|error| format!("cannot start {}: {error}", command.get_program().display()))?;
    Ok(status.code().map_or(1, |code| u8::try_from(code).unwrap_or(1)))
}
