//! `cargo xtask ci`: everything that must hold before a change is taken.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::{cargo, program, root, run as execute, test};

/// A check returns the exit code of what it ran.
type Check = fn() -> Result<u8, String>;

/// Runs all checks, the quick ones first, and stops at the first that fails.
pub(crate) fn run() -> Result<u8, String> {
    let checks: [(&str, Check); 6] = [
        ("format", || execute(cargo().args(["fmt", "--all", "--check"]))),
        ("tests", || test::run(&[])),
        ("clippy", clippy),
        ("main job on a small input", main_job),
        ("documentation", documentation),
        ("clippy of the builds for GPUs", gpu_builds),
    ];
    for (name, check) in checks {
        eprintln!("\n== {name}");
        let start = Instant::now();
        let code = check()?;
        let seconds = start.elapsed().as_secs_f64();
        if code != 0 {
            eprintln!("== {name}: FAILED after {seconds:.0} s");
            return Ok(code);
        }
        eprintln!("== {name}: done in {seconds:.0} s");
    }
    Ok(0)
}

fn clippy() -> Result<u8, String> {
    let mut command = cargo();
    command.args(["clippy", "--quiet", "--release", "--workspace", "--all-targets"]);
    execute(command.args(["--", "-D", "warnings"]))
}

fn documentation() -> Result<u8, String> {
    let mut command = cargo();
    command.args([
        "doc",
        "--quiet",
        "--release",
        "--workspace",
        "--no-deps",
        "--document-private-items",
    ]);
    execute(command.env("RUSTDOCFLAGS", "-D warnings"))
}

/// The README's first command, on a few windows and for two short epochs, in a folder of its own.
/// It runs the program that the tests have built.
fn main_job() -> Result<u8, String> {
    let folder = std::env::temp_dir().join(format!("firebox-ci-{}", std::process::id()));
    std::fs::create_dir_all(&folder)
        .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    let mut command = Command::new(program());
    command.arg("run").arg(root().join("pipelines").join("pretrain.toml"));
    for setting in ["window.stride=60", "augment.versions=1", "train.epochs=2", "evaluate.seeds=2"]
    {
        command.args(["--set", setting]);
    }
    let code = execute(command.current_dir(&folder))?;
    let report = std::fs::read_dir(folder.join("runs"))
        .map_err(|error| format!("the main job left no runs: {error}"))?
        .flatten()
        .any(|run| run.path().join("report.html").is_file());
    let _ = std::fs::remove_dir_all(&folder);
    if code == 0 && !report {
        return Err("the main job ended well but left no report.html".to_owned());
    }
    Ok(code)
}

/// Compiles and lints the program with the GPU backends, the kernels that only those builds have, and the
/// tests and examples of these, which nothing here runs. `firebox` switches on `cube` of firebox-kernels.
///
/// The features of both backends add up, and only the choice of devices tells them apart, so that one
/// check serves both, and Burn is checked once. Burn's CUDA feature downloads LLVM while building;
/// `../shared/cuda-build` replaces it where it is at hand, and CUDA is left out where it is not.
fn gpu_builds() -> Result<u8, String> {
    let cuda = stand_in().is_some();
    if !cuda {
        println!("skipped: the cuda build, because ../shared/cuda-build is absent");
    }
    let features = if cuda { "firebox/vulkan,firebox/cuda-nvrtc" } else { "firebox/vulkan" };
    let mut command = cargo();
    command.args(["clippy", "--quiet", "--release", "--features", features]);
    command.args(["--package", "firebox", "--package", "firebox-kernels"]);
    command.args(["--lib", "--bins", "--examples", "--test", "cube"]);
    with_stand_in(&mut command, cuda, |command| execute(command.args(["--", "-D", "warnings"])))
}

/// What replaces LLVM in a build for CUDA, where it is at hand.
fn stand_in() -> Option<PathBuf> {
    let folder = root().join("../shared/cuda-build/cubecl-llvm");
    folder.join("Cargo.toml").is_file().then(|| folder.canonicalize().ok()).flatten()
}

/// Runs cargo; for CUDA with what replaces LLVM, where that is at hand.
pub(crate) fn with_stand_in<T>(
    command: &mut Command,
    cuda: bool,
    run: impl FnOnce(&mut Command) -> Result<T, String>,
) -> Result<T, String> {
    let Some(stand_in) = stand_in().filter(|_| cuda) else { return run(command) };
    let _lock = KeepLockFile::new(&root().join("Cargo.lock"))?;
    let setting = format!("patch.crates-io.cubecl-llvm.path={:?}", stand_in.display().to_string());
    run(command.args(["--config", &setting]))
}

/// Puts Cargo.lock back as it was: the override rewrites it.
struct KeepLockFile {
    path: PathBuf,
    content: Vec<u8>,
}

impl KeepLockFile {
    fn new(path: &Path) -> Result<Self, String> {
        let content = std::fs::read(path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        Ok(Self { path: path.to_path_buf(), content })
    }
}

impl Drop for KeepLockFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::write(&self.path, &self.content) {
            eprintln!(
                "warning: {} could not be put back: {error}; use git checkout",
                self.path.display()
            );
        }
    }
}
