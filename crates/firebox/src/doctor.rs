//! `firebox doctor`: its flags, its progress on standard error, and where the result goes.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use firebox_pipeline::{DoctorCase, DoctorConfig, Found};

use crate::device::{self, Listed};
use crate::output::say;
use crate::terminal::write_line;

#[derive(Args)]
pub(crate) struct DoctorFlags {
    /// Take fewer steps and leave out bert-base and the small models of texts: at most 3 minutes on two processor
    /// cores. In full it takes up to half an hour.
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
    if let Some(path) = &flags.json {
        result.kept_as(&path.display().to_string());
        let text = serde_json::to_string_pretty(&result)?;
        std::fs::write(path, text + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    say(result.text())?;
    Ok(ExitCode::SUCCESS)
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
}
