//! `firebox doctor`: its flags, its progress on standard error, and where the result goes.

use std::path::PathBuf;
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
}

pub(crate) fn run(flags: &DoctorFlags) -> anyhow::Result<ExitCode> {
    let chosen = device::choose(&flags.device)?;
    if let Some(path) = &flags.json {
        // Not after half an hour. What an earlier examination wrote stays until there is something in its place.
        std::fs::File::options()
            .append(true)
            .create(true)
            .open(path)
            .with_context(|| format!("cannot write {}", path.display()))?;
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
