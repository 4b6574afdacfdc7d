//! `firebox doctor`: its flags, its progress on standard error, and where the result goes.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use firebox_pipeline::{DoctorCase, DoctorConfig, Examination, Found};

use crate::device::{self, Listed};
use crate::output::say;
use crate::terminal::write_line;

#[derive(Args)]
pub(crate) struct DoctorFlags {
    /// Take fewer steps and leave out bert-base and the small models of texts: at most 3 minutes on two processor
    /// cores, but for --workload bert-base. In full it takes up to half an hour.
    #[arg(long)]
    quick: bool,
    /// The device to examine: auto, cpu, cuda:0, vulkan, …
    #[arg(long, default_value = "auto", value_name = "NAME")]
    device: String,
    /// Examine with this model alone: lstm-mae, lstm-forecast, transformer, mlp, cnn-lstm, bert-base, or a small one:
    /// patch-transformer, gru, dilated, bilstm-attention, classifier, bert, roberta, electra, distilbert, deberta-v2,
    /// longformer.
    #[arg(long, value_name = "NAME")]
    workload: Option<DoctorCase>,
    /// Also write all that was measured as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Replace that file if it is there.
    #[arg(long, requires = "json")]
    force: bool,
}

pub(crate) fn run(flags: &DoctorFlags) -> anyhow::Result<ExitCode> {
    let chosen = device::choose(&flags.device)?;
    if let Some(path) = &flags.json {
        claim(path, flags.force)?;
    }
    // What a driver fails to tell of one device hides no other.
    let devices = device::all().into_iter().map(|Listed { name, kind, found }| {
        let asked = found.and_then(|device| {
            let found = device::guarded(&name, || Found::of(&name, &device))?;
            Ok(Found { kind: kind.map(str::to_owned), ..found })
        });
        asked.unwrap_or_else(|error| {
            Found::absent(&name, error.to_string().lines().next().unwrap_or_default())
        })
    });
    let config = DoctorConfig { quick: flags.quick, only: flags.workload };
    let mut result =
        firebox_pipeline::doctor(config, devices.collect(), &chosen, &|text| write_line(text))?;
    let kept = flags.json.as_ref().map_or(Ok(()), |path| keep(&mut result, path));
    // Whatever became of the file: it took half an hour.
    say(result.text())?;
    kept?;
    Ok(ExitCode::SUCCESS)
}

/// Writes all that was measured, and ticks that it is kept once it is.
fn keep(result: &mut Examination, path: &Path) -> anyhow::Result<()> {
    let mut kept = result.clone();
    kept.kept_as(&path.display().to_string());
    let text = serde_json::to_string_pretty(&kept)?;
    write(path, &(text + "\n")).with_context(|| format!("cannot write {}", path.display()))?;
    *result = kept;
    Ok(())
}

/// Writes a file so that it is either whole or what was there before. What is no file, such as a terminal, is written to as
/// it is, and so is a file whose folder takes no other.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let is_file = std::fs::metadata(path).is_ok_and(|found| found.is_file());
    // `/dev/stdout` may be a file, and the table goes there, too.
    if !is_file || path.parent() == Some(Path::new("/dev")) {
        return std::fs::write(path, text);
    }
    // Of a link, what it leads to is replaced.
    let path = path.canonicalize()?;
    let partial = path.with_added_extension("partial");
    let Ok(mut file) = std::fs::File::create(&partial) else { return std::fs::write(path, text) };
    // A file that is mounted by itself is not replaced.
    let replace = || std::fs::rename(&partial, &path).or_else(|_| std::fs::write(&path, text));
    let whole = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    let written = whole.and_then(|()| replace());
    // Gone if it was renamed.
    let _ = std::fs::remove_file(&partial);
    written
}

/// Sees to it that a result can be written, before half an hour was spent on it. What an earlier examination wrote stays
/// until there is something in its place.
fn claim(path: &Path, force: bool) -> anyhow::Result<()> {
    // One that was given up left an empty file; what is no file, such as a terminal, holds nothing to lose.
    let there = std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() > 0);
    if there && !force {
        anyhow::bail!(
            "{} is not written: it is there already\n  replace it with --force, or name another file",
            path.display()
        );
    }
    let opened = std::fs::File::options().append(true).create(true).open(path);
    opened.map(drop).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_that_is_there_is_replaced_only_if_that_is_asked_for() {
        let folder = std::env::temp_dir().join(format!("firebox-doctor-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("found.json");
        claim(&path, false).unwrap();
        // What was begun and given up.
        claim(&path, false).unwrap();
        std::fs::write(&path, "{}").unwrap();
        let said = claim(&path, false).unwrap_err().to_string();
        assert!(said.contains("is there already\n  replace it with --force"), "{said}");
        claim(&path, true).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{}");
        let said = claim(&folder, true).unwrap_err().to_string();
        assert!(said.starts_with("cannot write"), "{said}");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_was_there_stays_until_the_whole_of_a_result_is() {
        let folder = std::env::temp_dir().join(format!("firebox-kept-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (path, partial) = (folder.join("found.json"), folder.join("found.json.partial"));
        let read = || std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, "before").unwrap();
        write(&path, "one").unwrap();
        assert!(read() == "one" && !partial.exists());
        // A folder that takes no other file.
        std::fs::create_dir(&partial).unwrap();
        write(&path, "two").unwrap();
        assert_eq!(read(), "two");
        std::fs::remove_dir(&partial).unwrap();
        #[cfg(unix)]
        if Path::new("/dev/full").exists() {
            // A disk that is full.
            std::os::unix::fs::symlink("/dev/full", &partial).unwrap();
            write(&path, "three").unwrap_err();
            assert!(read() == "two" && !partial.is_symlink());
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
