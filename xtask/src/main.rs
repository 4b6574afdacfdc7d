//! `cargo xtask`: launches Firebox's pipelines, tests, benches and checks.
//!
//! It only starts other programs: it links none of Firebox's crates and has no dependency, so it
//! is built in a second. What a command does is in the crate that does it.

mod bundle;
mod check;
mod environment;
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
A file with a table [search] is searched: its flags go to `firebox search`, such as --workers N, and
without a file --join STUDY takes part in a search that was begun.
";

/// Flags of `firebox run` and `firebox search` that the next argument may be the value of.
const VALUED: [&str; 8] =
    ["--set", "--resume", "--device", "--log", "--profile", "--workers", "--join", "--study"];

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
            if VALUED.contains(&argument.as_str()) {
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
    command.arg(verb(file.as_deref(), &flags));
    // `firebox run --resume RUN` finds the file in the run; without both it says what it needs.
    command.args(file);
    hand_over(command.args(flags))
}

/// The command of the program that a file and flags are for: `search` where the file has a table `[search]`, or a
/// search of others is joined. What is wrong with the file is said by the program.
fn verb(file: Option<&Path>, flags: &[String]) -> &'static str {
    let text = file.and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
    let joins = flags.iter().any(|flag| flag == "--join" || flag.starts_with("--join="));
    if joins || has_search(&text) { "search" } else { "run" }
}

/// Whether a pipeline has a table `search`, however TOML writes it: `[search]`, `[ search.space ]`, or above all tables
/// `search = {…}` and `search.trials = …`.
fn has_search(text: &str) -> bool {
    let mut is_above_tables = true;
    text.lines().map(str::trim_start).any(|line| {
        let key = line.trim_start_matches('[');
        let is_header = key.len() < line.len();
        is_above_tables &= !is_header;
        let ends = if is_header { [']', '.'] } else { ['=', '.'] };
        let rest = after_search(key).filter(|_| is_header || is_above_tables);
        rest.is_some_and(|rest| rest.starts_with(ends))
    })
}

/// What follows the key `search`, where a text begins with it.
fn after_search(text: &str) -> Option<&str> {
    let text = text.trim_start();
    let mut keys = ["search", "\"search\"", "'search'"].into_iter();
    keys.find_map(|key| text.strip_prefix(key)).map(str::trim_start)
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

/// Cargo's target folder, absolute: one that is named by a relative path is below the folder in which cargo was
/// started, and not all that this starts runs there.
fn target() -> PathBuf {
    let set = std::env::var_os("CARGO_TARGET_DIR");
    let target = set.map_or_else(|| root().join("target"), PathBuf::from);
    std::path::absolute(&target).unwrap_or(target)
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
        0 => hand_over(Command::new(program()).arg("doctor").args(flags)),
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
            "Building Firebox. The first build takes 15 to 45 minutes on 2 cores; later ones seconds."
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
            0 => {
                let program = target().join("release").join("firebox-benches");
                hand_over(Command::new(program).args(rest))
            }
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
    hand_over(&mut command)
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

/// The cargo that runs this, as a user starts it.
fn cargo() -> Command {
    environment::cargo(&target())
}

/// Runs a command to its end and returns its exit code; a signal counts as 1.
fn run(command: &mut Command) -> Result<u8, String> {
    let status = command.status().map_err(|error| unstarted(command, &error))?;
    Ok(status.code().map_or(1, |code| u8::try_from(code).unwrap_or(1)))
}

/// Runs the last program of a command in the place of this one: Ctrl-C and other signals are for that one to hear.
#[cfg(unix)]
fn hand_over(command: &mut Command) -> Result<u8, String> {
    use std::os::unix::process::CommandExt as _;
    // It returns only where nothing was started.
    let error = command.exec();
    Err(unstarted(command, &error))
}

/// Runs the last program of a command beside this one, which waits for it.
#[cfg(not(unix))]
fn hand_over(command: &mut Command) -> Result<u8, String> {
    run(command)
}

fn unstarted(command: &Command, error: &std::io::Error) -> String {
    format!("cannot start {}: {error}", command.get_program().display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_is_recognised_however_its_table_is_written() {
        for text in [
            "[search]",
            "a = 1\n\n  [ search ] # of both",
            "[data]\npath = \"a\"\n[search.space]",
            "[\"search\".space]",
            "search = { trials = 5 }",
            "a = 1\nsearch.trials = 5",
        ] {
            assert!(has_search(text), "{text}");
        }
        for text in [
            "",
            "# [search]",
            "[data]\npath = \"search.csv\"",
            "[searching]",
            "[data.search]",
            "[data]\nsearch = 1",
            "search-text = 1",
        ] {
            assert!(!has_search(text), "{text}");
        }
    }

    #[test]
    fn a_search_of_others_is_joined_without_a_file() {
        let verb_of = |flags: &[&str]| {
            verb(None, &flags.iter().map(|flag| (*flag).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(verb_of(&["--join", "runs/search.search"]), "search");
        assert_eq!(verb_of(&["--study", "own", "--join=redis://host"]), "search");
        assert_eq!(verb_of(&["--resume", "runs/pretrain"]), "run");
    }

    #[test]
    fn the_pipelines_that_are_searched_are_told_from_those_that_are_run() {
        let verb_of = |name| verb(Some(pipeline_file(name).unwrap().as_path()), &[]);
        assert_eq!(["search", "search-text", "pretrain"].map(verb_of), ["search", "search", "run"]);
    }

    #[test]
    fn programs_are_at_absolute_paths() {
        assert!(target().is_absolute() && program().starts_with(target()));
    }
}
