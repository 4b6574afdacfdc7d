//! `firebox evaluate`: the published protocol on a folder of archive sets.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use firebox_pipeline::{UcrConfig, evaluate_ucr};

use crate::output::say;
use crate::terminal::{AFTER_THIS_STEP, LogFormat, Terminal};
use crate::{device, stop_on_signal};

#[derive(Subcommand)]
pub(crate) enum EvaluateCommand {
    /// Every pair NAME_TRAIN.ts, NAME_TEST.ts of a folder: frozen encoder, probes and fine-tuning by one
    /// configuration, beside published figures.
    Ucr(UcrFlags),
}

#[derive(Args)]
pub(crate) struct UcrFlags {
    /// The folder; sets may lie in folders of their own below it.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Seeds of each set; those of the settings, 5 in the built-in ones, if none is given.
    #[arg(long)]
    seeds: Option<u32>,
    /// Where trainings are kept and the report is written.
    #[arg(long, default_value = "runs/ucr", value_name = "DIR")]
    output: PathBuf,
    /// A TOML file with other settings than the built-in ones, which a report shows in full.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// What is done about defects of the data, such as --set data.checks.not_finite=fill, over the table data.checks of
    /// the settings.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Device: auto, cpu, cuda:0, vulkan, …
    #[arg(long, default_value = "auto", value_name = "NAME")]
    device: String,
}

pub(crate) fn run(EvaluateCommand::Ucr(flags): &EvaluateCommand) -> anyhow::Result<ExitCode> {
    let config = match &flags.config {
        None => UcrConfig::default(),
        Some(file) => UcrConfig::read(file)?,
    };
    let config = config.with(&flags.settings)?;
    let config = UcrConfig { seeds: flags.seeds.unwrap_or(config.seeds), ..config };
    let device = device::choose(&flags.device)?;
    let terminal = Terminal::new(LogFormat::Text);
    let stop = stop_on_signal(LogFormat::Text, terminal.in_hand(), AFTER_THIS_STEP)?;
    let finished = evaluate_ucr(&flags.folder, &flags.output, &config, &device, &stop, &terminal);
    terminal.close();
    let finished = finished?;
    if let Some(page) = &finished.page {
        say(&finished.summary)?;
        say(format_args!("report {}", page.display()))?;
    }
    if finished.interrupted {
        say("interrupted; the same command goes on where it stopped")?;
        return Ok(ExitCode::from(130));
    }
    // Each was told with its reason.
    Ok(if finished.failed > 0 { ExitCode::from(1) } else { ExitCode::SUCCESS })
}
