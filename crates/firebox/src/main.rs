//! The `firebox` program: commands, flags, the choice of the device and the rendering of errors.
//!
//! What a command does is in the libraries. Exit codes: 0 done, 1 failed while running, 2 bad
//! input (flags, pipeline file, data, device), 130 interrupted with everything saved, 131 stopped at
//! once by a second Ctrl-C, with what was done since the last checkpoint lost.

mod cache;
mod data;
mod device;
mod error;
mod output;
mod search;
mod terminal;
#[cfg(unix)]
mod watch;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Args, Parser, Subcommand};
use firebox_core::Precision;
use firebox_pipeline::monitor::ProfileConfig;
use firebox_pipeline::{BenchConfig, Finished, Outcome, Prepared, Source, Workload};

use crate::output::{OutputError, say};
use crate::terminal::{LogFormat, Terminal, write_line};

/// Page faults of the system's allocator are a quarter of a CPU training step.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Lets the allocator keep freed memory until the process ends: a training step takes what the one
/// before gave up, without a page fault (5 % of a step of 600 ms, measured).
fn keep_memory() {
    /// `mi_option_purge_delay` of mimalloc.h: milliseconds, or -1 for never.
    const PURGE_DELAY: std::ffi::c_int = 15;
    unsafe extern "C" {
        fn mi_option_set(option: std::ffi::c_int, value: std::ffi::c_long);
    }
    // SAFETY: a function of the linked allocator that stores a number, whatever it is.
    unsafe { mi_option_set(PURGE_DELAY, -1) };
}

/// Train sequence encoders fast and honestly from one declarative file.
#[derive(Parser)]
#[command(version, about, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a pipeline file, or go on with a run that was interrupted.
    Run(RunFlags),
    /// Search good values of keys of a pipeline, begin, go on with or join such a search.
    Search(search::SearchFlags),
    /// Show the stages of a pipeline, their keys, and which results are there already.
    Plan(PlanFlags),
    /// List, verify or prune what runs share on disk.
    #[command(subcommand)]
    Cache(cache::CacheCommand),
    /// Make sample data.
    #[command(subcommand)]
    Data(DataCommand),
    /// List the devices that this build can use.
    Devices,
    /// Time whole training steps of a reference workload on noise.
    Bench(BenchFlags),
    /// Put several runs on one page: curves, scores, settings that differ, times.
    Compare(CompareFlags),
    /// Show a run in the terminal while it goes on or later: losses, rates, the machine, time left.
    #[cfg(unix)]
    Watch(watch::WatchFlags),
}

#[derive(Args)]
struct CompareFlags {
    /// The runs: their folders, or their names within the runs folder.
    #[arg(required = true, num_args = 2.., value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// The page to write.
    #[arg(long, default_value = "comparison.html", value_name = "FILE")]
    output: PathBuf,
}

#[derive(Args)]
struct BenchFlags {
    /// The workload: lstm-mae, lstm-forecast, transformer, mlp, cnn-lstm, bert-base.
    #[arg(long, default_value = "lstm-mae")]
    workload: Workload,
    /// Type of the operands of products: f32, bf16.
    #[arg(long, default_value = "f32")]
    precision: Precision,
    /// Samples of a batch; by default the workload's own.
    #[arg(long)]
    batch: Option<usize>,
    /// Steps that are timed.
    #[arg(long, default_value_t = 10)]
    steps: u64,
    /// Steps before them.
    #[arg(long, default_value_t = 3)]
    warmup: u64,
    /// Time the forward pass and the loss alone, in evaluation.
    #[arg(long)]
    eval: bool,
    /// Device: auto, cpu, cuda:0, vulkan, …
    #[arg(long, default_value = "auto", value_name = "NAME")]
    device: String,
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Layers {
    /// Set one key over the file and the environment, such as --set train.epochs=5.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Device: auto, cpu, cuda:0, vulkan, …; the same as --set run.device=NAME.
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
}

impl Layers {
    fn settings(&self) -> Vec<String> {
        let device = self.device.iter().map(|name| format!("run.device={name}"));
        self.settings.iter().cloned().chain(device).collect()
    }
}

#[derive(Args)]
struct RunFlags {
    /// The pipeline file.
    #[arg(required_unless_present = "resume", value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    layers: Layers,
    /// Go on with a run: its folder, or its name within the runs folder.
    #[arg(long, value_name = "RUN")]
    resume: Option<PathBuf>,
    /// How events are shown.
    #[arg(long, value_enum, default_value_t)]
    log: LogFormat,
    /// Profile some training steps: a timeline in the run's folder, a table in the report.
    #[arg(
        long,
        value_name = "warmup=5,active=10",
        num_args = 0..=1,
        default_missing_value = "warmup=5,active=10"
    )]
    profile: Option<ProfileConfig>,
}

#[derive(Args)]
struct PlanFlags {
    /// The pipeline file.
    file: PathBuf,
    #[command(flatten)]
    layers: Layers,
}

#[derive(Subcommand)]
enum DataCommand {
    /// Write the bars of a generated market as CSV.
    Generate {
        /// Settings of the generator, such as data/sample.market.toml.
        settings: PathBuf,
        /// The CSV file to write.
        output: PathBuf,
        /// Replace the file if it is there.
        #[arg(long)]
        force: bool,
    },
    /// Turn a folder of .npy arrays into samples in mapped shards, or go on with such a folder.
    Convert(data::ConvertFlags),
}

/// Stopped by a second signal, with nothing saved since the last checkpoint.
const STOPPED_AT_ONCE: i32 = 131;

fn main() -> ExitCode {
    keep_memory();
    let command = Cli::parse().command;
    let log = match &command {
        Command::Run(flags) => flags.log,
        Command::Search(flags) => flags.log,
        _ => LogFormat::Text,
    };
    let result = match command {
        Command::Run(flags) => run(&flags),
        Command::Search(flags) => search::run(&flags),
        Command::Plan(flags) => plan(&flags),
        Command::Cache(command) => cache::run(&command),
        Command::Data(DataCommand::Generate { settings, output, force }) => {
            generate(&settings, &output, force)
        }
        Command::Data(DataCommand::Convert(flags)) => data::convert(&flags),
        Command::Devices => devices(),
        Command::Bench(flags) => bench(&flags),
        Command::Compare(flags) => compare(&flags),
        #[cfg(unix)]
        Command::Watch(flags) => watch::run(&flags),
    };
    result.unwrap_or_else(|error| {
        error::render(&error, log);
        ExitCode::from(error::exit_code(&error))
    })
}

fn run(flags: &RunFlags) -> anyhow::Result<ExitCode> {
    let source = match (&flags.resume, &flags.file) {
        (Some(run), file) => Source::Resume { run: run.clone(), file: file.clone() },
        (None, Some(file)) => Source::File(file.clone()),
        (None, None) => anyhow::bail!("name a pipeline file, or a run with --resume"),
    };
    let prepared = Prepared::new(&source, environment()?, &flags.layers.settings())?;
    let prepared = prepared.profiled(flags.profile);
    let device = device::choose(&prepared.config().run.device)?;
    let stop = stop_on_signal(flags.log)?;
    let terminal = Terminal::new(flags.log);
    let finished = prepared.run(&device, &stop, &terminal);
    terminal.close();
    Ok(conclude(&finished?)?)
}

/// The variables that are Firebox's. What others put into the environment may be any bytes.
fn environment() -> anyhow::Result<Vec<(String, String)>> {
    let own = |(name, _): &(OsString, OsString)| name.to_string_lossy().starts_with("FIREBOX_");
    let text = |(name, value): (OsString, OsString)| {
        let shown = name.to_string_lossy().into_owned();
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => Ok((name, value)),
            _ => anyhow::bail!(
                "the environment variable {shown} is not valid UTF-8\n  set it to plain text, or unset it"
            ),
        }
    };
    std::env::vars_os().filter(own).map(text).collect()
}

/// Prints where the result is, or how to go on.
fn conclude(finished: &Finished) -> Result<ExitCode, OutputError> {
    match &finished.outcome {
        Outcome::Finished => {
            if finished.remade == 0 {
                say("nothing to do: every result is there and whole")?;
            }
            say(&finished.trained)?;
            say(&finished.verdict)?;
            say(format_args!("report {}", finished.report.display()))?;
            Ok(ExitCode::SUCCESS)
        }
        Outcome::Interrupted { step } => {
            let run = finished.run.display();
            say(format_args!("interrupted; everything up to step {step} is saved"))?;
            say(format_args!("go on with: cargo xtask pipeline --resume {run}"))?;
            say(format_args!("        or: firebox run --resume {run}"))?;
            Ok(ExitCode::from(130))
        }
    }
}

/// The first signal asks the run to stop after the step in hand; the second ends the program.
fn stop_on_signal(log: LogFormat) -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    ctrlc::set_handler(move || {
        let again = flag.swap(true, Ordering::SeqCst);
        let said = if again {
            "stopped at once; what was done since the last checkpoint is lost"
        } else {
            "stopping after this step; press Ctrl-C again to stop at once and lose it"
        };
        match log {
            LogFormat::Text => write_line(&format!("\n{said}")),
            LogFormat::Json => {
                let event = serde_json::json!({ "event": "warning", "message": said });
                write_line(&event.to_string());
            }
        }
        if again {
            std::process::exit(STOPPED_AT_ONCE);
        }
    })?;
    Ok(stop)
}

fn plan(flags: &PlanFlags) -> anyhow::Result<ExitCode> {
    let source = Source::File(flags.file.clone());
    let prepared = Prepared::new(&source, environment()?, &flags.layers.settings())?;
    let device = device::choose(&prepared.config().run.device)?;
    say(prepared.plan(&device)?)?;
    Ok(ExitCode::SUCCESS)
}

fn generate(settings: &Path, output: &Path, force: bool) -> anyhow::Result<ExitCode> {
    let bars = firebox_pipeline::generate_market(settings, output, force)?;
    say(format_args!("{bars} bars in {}", output.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn bench(flags: &BenchFlags) -> anyhow::Result<ExitCode> {
    let config = BenchConfig {
        workload: flags.workload,
        precision: flags.precision,
        batch: flags.batch,
        steps: flags.steps,
        warmup: flags.warmup,
        evaluate: flags.eval,
    };
    let result = firebox_pipeline::bench(&config, &device::choose(&flags.device)?)?;
    if flags.json {
        say(serde_json::to_string(&result)?)?;
    } else {
        let firebox_pipeline::BenchResult { workload, mode, precision, batch, kernels, .. } =
            &result;
        let device = &result.device;
        say(format_args!("{workload} {mode} {precision}, batch {batch}, {device} ({kernels})"))?;
        say(format_args!(
            "step {:.1} ms (median; {:.1} to {:.1}), {:.0} samples/s",
            result.step_ms, result.min_ms, result.max_ms, result.samples_per_s
        ))?;
        if let Some(peak) = result.peak_mib {
            say(format_args!("peak resident memory {peak:.0} MiB"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn compare(flags: &CompareFlags) -> anyhow::Result<ExitCode> {
    firebox_pipeline::compare(&flags.runs, &flags.output)?;
    say(format_args!("comparison {}", flags.output.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn devices() -> anyhow::Result<ExitCode> {
    for name in ["cuda", "rocm", "vulkan", "metal", "wgpu", "cpu"] {
        match device::choose(name) {
            Ok(device) => say(format_args!("{name:<8} {}", device.description))?,
            Err(error) => {
                let error = error.to_string();
                say(format_args!("{name:<8} {}", error.lines().next().unwrap_or_default()))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
