//! `firebox embed` and `firebox predict`: a trained model on new data. What is computed is decided in
//! the libraries.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use firebox_core::{Precision, count};
use firebox_pipeline::{ApplyRequest, Wanted};

use crate::output::say;
use crate::terminal::{LogFormat, Terminal};
use crate::{device, stop_on_signal};

const EMBED_EXAMPLES: &str = "\
The file has one row for each window: series, start and end (the times of its first and last
step), and its vector, in the order of files, series and time.

Examples:
  firebox embed pretrain-5e0ff9fb bars.parquet --output vectors.parquet
  firebox embed pretrain-5e0ff9fb bars/ --output vectors.parquet --stride 105 --wide
  firebox embed pretrain-5e0ff9fb bars.csv --output vectors.parquet --set data.checks.gaps=split";

const PREDICT_EXAMPLES: &str = "\
The file has one row for each window: series, start and end (the times of its first and last
step), then its class and the probability of every class, or the forecast of every target and
horizon in the target's own units (TARGET+STEPS), in the order of files, series and time. Of a
text it has the file and the row, every label with its probability, and the evidence with its
place in characters and its probability: the model names evidence in each text, also in one that
has none, and evidence_probability says how sure it is of these very tokens, as if there were
some. Empty texts have no row, and are told.

Examples:
  firebox predict finetune-91d40c2a bars.parquet --output classes.parquet
  firebox predict finetune-91d40c2a bars/ --output classes.parquet --stride 105
  firebox predict forecast-0b5c41d2 demand.parquet --output forecasts.parquet
  firebox predict text-77aa0e1b letters.csv --output labels.parquet";

#[derive(Args)]
#[command(after_help = EMBED_EXAMPLES)]
pub(crate) struct EmbedFlags {
    #[command(flatten)]
    common: ApplyFlags,
    /// Write one column for each number of a vector, in place of one column of lists.
    #[arg(long)]
    wide: bool,
}

#[derive(Args)]
#[command(after_help = PREDICT_EXAMPLES)]
pub(crate) struct PredictFlags {
    #[command(flatten)]
    common: ApplyFlags,
}

#[derive(Args)]
struct ApplyFlags {
    /// The run: its folder, or its name within the runs folder; or the folder of a model.
    run: PathBuf,
    /// Files or folders of new data: Parquet, CSV, Arrow, .npy or .ts; tables of texts.
    #[arg(required = true, value_name = "INPUT")]
    inputs: Vec<PathBuf>,
    /// The Parquet file to write.
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// Replace the file if it is there.
    #[arg(long)]
    force: bool,
    /// Steps between the starts of two windows; by default as in training.
    #[arg(long, value_name = "STEPS")]
    stride: Option<usize>,
    /// Windows or texts of a batch.
    #[arg(long, default_value_t = 256, value_name = "WINDOWS", value_parser = at_least_one)]
    batch: usize,
    /// Type of the operands of products, f32, bf16 or f16; by default as in training.
    #[arg(long, value_name = "TYPE")]
    precision: Option<Precision>,
    /// Read new data otherwise than that of the training, such as --set data.checks.gaps=split.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Device: auto, cpu, cuda:0, vulkan, …
    #[arg(long, default_value = "auto", value_name = "NAME")]
    device: String,
    /// How events are shown.
    #[arg(long, value_enum, default_value_t)]
    log: LogFormat,
}

pub(crate) fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("it must be a whole number of at least 1".to_owned()),
        Ok(number) => Ok(number),
    }
}

pub(crate) fn embed(flags: &EmbedFlags) -> anyhow::Result<ExitCode> {
    apply(&flags.common, Wanted::Embedding { wide: flags.wide })
}

pub(crate) fn predict(flags: &PredictFlags) -> anyhow::Result<ExitCode> {
    apply(&flags.common, Wanted::Prediction)
}

impl EmbedFlags {
    pub(crate) fn log(&self) -> LogFormat {
        self.common.log
    }
}

impl PredictFlags {
    pub(crate) fn log(&self) -> LogFormat {
        self.common.log
    }
}

fn apply(flags: &ApplyFlags, wanted: Wanted) -> anyhow::Result<ExitCode> {
    let request = ApplyRequest {
        run: flags.run.clone(),
        inputs: flags.inputs.clone(),
        output: flags.output.clone(),
        wanted,
        force: flags.force,
        batch: flags.batch,
        stride: flags.stride,
        precision: flags.precision,
        settings: flags.settings.clone(),
    };
    let device = device::choose(&flags.device)?;
    let terminal = Terminal::new(flags.log);
    let otherwise = "stopping after this batch; nothing is written";
    let stop = stop_on_signal(flags.log, terminal.in_hand(), otherwise)?;
    let applied = firebox_pipeline::apply(&request, &device, &stop, &terminal);
    terminal.close();
    let Some(applied) = applied? else {
        say("interrupted; nothing was written")?;
        return Ok(ExitCode::from(130));
    };
    let rate = applied.windows as f64 / applied.seconds.max(1e-9);
    let (row, of) = match applied.series {
        0 => ("text", String::new()),
        series => ("window", format!(" of {series} series")),
    };
    say(format_args!(
        "{}{of} in {}: {} in {:.1} s ({rate:.0} {row}s/s)",
        count(applied.windows, row),
        count(applied.files as u64, "file"),
        applied.what,
        applied.seconds
    ))?;
    say(format_args!("written {}", applied.output.display()))?;
    Ok(ExitCode::SUCCESS)
}
