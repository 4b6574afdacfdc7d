//! `firebox export`: a trained model for other programs. What is written is decided in the libraries.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use firebox_pipeline::{ExportFormat, ExportRequest, Part};

use crate::output::say;

const EXAMPLES: &str = "\
Examples:
  firebox export pretrain-5e0ff9fb
  firebox export pretrain-5e0ff9fb --format onnx --output encoder.onnx
  firebox export pretrain-5e0ff9fb --format onnx --part head --output restore.onnx
  firebox export pretrain-5e0ff9fb --format torch --output encoder";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExportFlags {
    /// The run: its folder, or its name within the runs folder; or the folder of a model.
    run: PathBuf,
    /// What to write.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// What of the model, in ONNX: by default the encoder of a pre-trained model, else the head.
    #[arg(long, value_enum)]
    part: Option<ExportedPart>,
    /// The file to write, or the folder for torch; by default named after the run, in this folder.
    #[arg(long, value_name = "PATH")]
    output: Option<PathBuf>,
    /// Replace what is there.
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Copy, Default, PartialEq, ValueEnum)]
enum Format {
    /// Weights under PyTorch's names, with the card as metadata and beside it.
    #[default]
    Safetensors,
    /// A graph of standard operators, with free batch and time axes and lengths.
    Onnx,
    /// A folder that Python loads: weights, card, and the model's source for PyTorch.
    Torch,
}

#[derive(Clone, Copy, ValueEnum)]
enum ExportedPart {
    /// Windows to vectors.
    Encoder,
    /// What the model was trained for: restored steps, or scores of classes.
    Head,
}

pub(crate) fn run(flags: &ExportFlags) -> anyhow::Result<ExitCode> {
    if flags.part.is_some() && flags.format != Format::Onnx {
        anyhow::bail!(
            "--part is for --format onnx: safetensors and torch hold the whole model\n  leave it out"
        );
    }
    let exported = firebox_pipeline::export(&ExportRequest {
        run: flags.run.clone(),
        format: match flags.format {
            Format::Safetensors => ExportFormat::Safetensors,
            Format::Onnx => ExportFormat::Onnx,
            Format::Torch => ExportFormat::Torch,
        },
        part: flags.part.map(|part| match part {
            ExportedPart::Encoder => Part::Encoder,
            ExportedPart::Head => Part::Head,
        }),
        output: flags.output.clone(),
        force: flags.force,
    })?;
    say(format_args!("exported {}", exported.output.display()))?;
    say(format_args!("card {}", exported.card.display()))?;
    say(exported.usage)?;
    Ok(ExitCode::SUCCESS)
}
