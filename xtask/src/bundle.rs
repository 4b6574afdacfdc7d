//! `cargo xtask bundle OUT`: one folder with all that Firebox needs on a machine that has a GPU and
//! neither a network nor cargo. What is done there is in `xtask/bundle/run.sh`, which goes along.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::check::with_stand_in;
use crate::{build, cargo, program, root};

/// What fits through any door: the largest that the folder may be, bytes.
const MOST: u64 = 64 << 20;

const USAGE: &str = "\
Usage: cargo xtask bundle [--features F,...] [--program FILE] [--torch-steps FILE] OUT

  --features F,...     backends of the firebox binary: cuda,cuda-nvrtc or vulkan, ...; without, the CPU
  --program FILE       take this binary and build nothing
  --torch-steps FILE   the script that times PyTorch; ../shared/peers/torch_steps.py where it is there
";

/// What is written on the command line.
#[derive(Debug, Default, PartialEq)]
struct Flags {
    features: Vec<String>,
    program: Option<PathBuf>,
    torch_steps: Option<PathBuf>,
    out: PathBuf,
}

fn parse(arguments: &[String]) -> Result<Flags, String> {
    let mut flags = Flags::default();
    let mut out = None;
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let (name, inline) = match argument.split_once('=') {
            Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
            _ => (argument.as_str(), None),
        };
        let mut value = || inline.clone().or_else(|| rest.next().cloned());
        let mut needed = || value().ok_or_else(|| format!("`{name}` needs a value\n\n{USAGE}"));
        match name {
            "--features" => {
                let features = needed()?;
                flags.features = features.split(',').map(str::to_owned).collect();
            }
            "--program" => flags.program = Some(needed()?.into()),
            "--torch-steps" => flags.torch_steps = Some(needed()?.into()),
            name if name.starts_with('-') => return Err(format!("`{name}` is unknown\n\n{USAGE}")),
            _ if out.is_none() => out = Some(PathBuf::from(argument)),
            _ => return Err(format!("`{argument}` is one folder too many\n\n{USAGE}")),
        }
    }
    flags.out = out.ok_or_else(|| format!("name the folder to make\n\n{USAGE}"))?;
    Ok(flags)
}

/// Builds what is needed, and lays it out in a folder that must not be there yet.
pub(crate) fn run(arguments: &[String]) -> Result<u8, String> {
    let flags = parse(arguments)?;
    let out = &flags.out;
    if out.exists() {
        return Err(format!("{} is there already: name another folder", out.display()));
    }
    let programs = match &flags.program {
        Some(program) => vec![program.clone()],
        None => built(&flags.features)?,
    };
    let on_gpu = programs.len() > 1;
    let bin = out.join("bin");
    make(&bin)?;
    for program in &programs {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // Tests have a hash after their name; a program that was named may be called anything.
        let name = match &flags.program {
            Some(_) => "firebox",
            None => name.split('-').next().unwrap_or_default(),
        };
        let target = bin.join(name);
        copy(program, &target)?;
        strip(&target);
    }
    pack(out)?;
    let from = root().join("xtask/bundle");
    copy(&from.join("run.sh"), &out.join("run.sh"))?;
    copy_files(&from.join("checks"), &out.join("checks"), |name| on_gpu || !name.contains("gpu"))?;
    copy_files(&root().join("pipelines"), &out.join("pipelines"), |_| true)?;
    copy_files(&root().join("data"), &out.join("data"), |_| true)?;
    let given = flags.torch_steps.clone();
    let script = given.or_else(|| {
        let usual = root().join("../shared/peers/torch_steps.py");
        usual.is_file().then_some(usual)
    });
    match script {
        Some(script) => copy(&script, &make_in(out, "peers")?.join("torch_steps.py"))?,
        None => println!("without PyTorch's script: name it with --torch-steps"),
    }
    let size = size(out)?;
    println!("{} ({:.1} MiB)", out.display(), size as f64 / (1 << 20) as f64);
    if size > MOST {
        return Err(format!(
            "the folder has {} MiB, more than the {} MiB that are allowed: build with fewer backends",
            size >> 20,
            MOST >> 20
        ));
    }
    println!("copy it, and run there: ./run.sh all");
    Ok(0)
}

/// Builds the binary, and for GPUs the tests and times of their kernels. Returns the paths, the
/// binary first.
fn built(features: &[String]) -> Result<Vec<PathBuf>, String> {
    if features.is_empty() {
        return match build("firebox", &["--quiet"])? {
            0 => Ok(vec![program()]),
            code => Err(format!("the build ended with {code}")),
        };
    }
    // One selection of packages, so that all of them have the same features of Burn.
    let mut wanted: Vec<String> =
        features.iter().map(|feature| format!("firebox/{feature}")).collect();
    wanted.extend(["firebox-kernels/cube".to_owned(), "firebox-kernels/fusion".to_owned()]);
    let mut command = cargo();
    command.args(["build", "--release", "-p", "firebox", "-p", "firebox-kernels"]);
    command.args(["--features", &wanted.join(",")]);
    command.args(["--bin", "firebox", "--test", "cube"]);
    for example in ["gpu_lstm_step", "gpu_attention_step", "gpu_product_step"] {
        command.args(["--example", example]);
    }
    command.args(["--message-format", "json-render-diagnostics"]);
    command.current_dir(root()).stdout(Stdio::piped());
    let cuda = features.iter().any(|feature| feature.starts_with("cuda"));
    let output = with_stand_in(&mut command, cuda, |command| {
        command.output().map_err(|error| format!("cannot start cargo: {error}"))
    })?;
    if !output.status.success() {
        return Err(format!("the build ended with {}", output.status));
    }
    let mut programs = executables(&String::from_utf8_lossy(&output.stdout));
    programs.sort_by_key(|path| !path.ends_with("firebox"));
    Ok(programs)
}

/// The programs that cargo says it has made.
fn executables(messages: &str) -> Vec<PathBuf> {
    let path = |line: &str| {
        let rest = line.split_once("\"executable\":\"")?.1;
        Some(PathBuf::from(rest.split_once('"')?.0))
    };
    messages.lines().filter_map(path).collect()
}

fn strip(program: &Path) {
    let done = Command::new("strip").arg(program).status();
    if !done.is_ok_and(|status| status.success()) {
        println!("{} keeps its symbols: there is no `strip` here", program.display());
    }
}

/// Packs all programs into one archive, `programs.tar.xz`, which `run.sh` unpacks: much is the same in all of them. Without
/// `xz` it is `programs.tar.gz`.
fn pack(out: &Path) -> Result<(), String> {
    // A dictionary as large as the programs together, and calls made alike wherever they stand.
    let filters: &[&str] = match cfg!(target_arch = "x86_64") {
        true => &["--x86", "--lzma2=preset=6,dict=384MiB"],
        false => &["--lzma2=preset=6,dict=384MiB"],
    };
    let packed = archived(out, "programs.tar.xz", "xz", filters)
        || archived(out, "programs.tar.gz", "gzip", &["-9"]);
    if !packed {
        return Err(
            "programs cannot be packed: `tar` is missing here, or both `xz` and `gzip` are"
                .to_owned(),
        );
    }
    std::fs::remove_dir_all(out.join("bin")).map_err(failed("remove", &out.join("bin")))
}

/// Whether the programs were archived so; nothing is left where they were not.
fn archived(out: &Path, name: &str, program: &str, arguments: &[&str]) -> bool {
    let path = out.join(name);
    let attempt = || -> std::io::Result<bool> {
        let mut tar = Command::new("tar");
        tar.args(["-c", "bin"]).current_dir(out).stdout(Stdio::piped());
        let mut tar = tar.spawn()?;
        let Some(read) = tar.stdout.take() else { return Ok(false) };
        let mut command = Command::new(program);
        command.args(arguments).arg("-c").stdin(read).stdout(std::fs::File::create(&path)?);
        let packed = command.status();
        Ok(tar.wait()?.success() && packed?.success())
    };
    let done = attempt().unwrap_or(false);
    if !done {
        // What there is of it is of no use.
        let _ = std::fs::remove_file(&path);
    }
    done
}

fn failed<'a>(what: &'a str, path: &'a Path) -> impl Fn(std::io::Error) -> String + 'a {
    move |error| format!("cannot {what} {}: {error}", path.display())
}

fn make(folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(failed("make", folder))
}

fn make_in(out: &Path, name: &str) -> Result<PathBuf, String> {
    let folder = out.join(name);
    make(&folder).map(|()| folder)
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    std::fs::copy(from, to).map(|_| ()).map_err(failed("copy", from))
}

/// Copies the wanted files of a folder, but not the folders in it.
fn copy_files(from: &Path, to: &Path, wanted: impl Fn(&str) -> bool) -> Result<(), String> {
    make(to)?;
    for entry in std::fs::read_dir(from).map_err(failed("read", from))?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_file() && wanted(&name) {
            copy(&entry.path(), &to.join(&name))?;
        }
    }
    Ok(())
}

/// Bytes of all files below a folder.
fn size(folder: &Path) -> Result<u64, String> {
    let mut total = 0;
    for entry in std::fs::read_dir(folder).map_err(failed("read", folder))?.flatten() {
        let path = entry.path();
        total += match path.is_dir() {
            true => size(&path)?,
            false => path.metadata().map_err(failed("read", &path))?.len(),
        };
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(text: &str) -> Result<Flags, String> {
        let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
        parse(&words)
    }

    #[test]
    fn flags_are_read_in_any_order_and_mistakes_are_said() {
        let expected = Flags {
            features: vec!["cuda".to_owned(), "cuda-nvrtc".to_owned()],
            program: Some("a".into()),
            torch_steps: None,
            out: "out".into(),
        };
        assert_eq!(flags("--features cuda,cuda-nvrtc out --program=a"), Ok(expected));
        for (text, said) in [
            ("--features", "needs a value"),
            ("--program x", "name the folder"),
            ("a b", "one folder too many"),
            ("--feature cuda out", "`--feature` is unknown"),
        ] {
            assert!(flags(text).is_err_and(|error| error.contains(said)), "{text}");
        }
    }

    #[test]
    fn programs_are_read_from_what_cargo_says() {
        let said = "{\"reason\":\"compiler-artifact\",\"executable\":null}\n\
                    {\"reason\":\"compiler-artifact\",\"executable\":\"/t/cube-0a1b\",\"fresh\":true}\n";
        assert_eq!(executables(said), [PathBuf::from("/t/cube-0a1b")]);
    }
}
