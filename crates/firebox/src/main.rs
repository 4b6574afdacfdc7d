//! The `firebox` program: commands, flags, the choice of the device and the rendering of errors.
//!
//! What a command does is in the libraries. Exit codes: 0 done, 1 failed while running, 2 bad
//! input (flags, pipeline file, data, device), 130 interrupted with everything saved, 131 stopped at
//! once by a second Ctrl-C, with what was done since the last checkpoint lost.

mod apply;
mod bench;
mod cache;
mod data;
mod device;
mod doctor;
mod error;
mod evaluate;
mod export;
mod memory;
mod output;
mod refused;
mod search;
mod terminal;
mod watch;
mod workers;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use firebox_pipeline::monitor::{Counted, ProfileConfig};
use firebox_pipeline::{
    Finished, Outcome, PipelineError, Prepared, Source, quoted_for_a_shell, refused_thread,
};

use crate::device::Listed;
use crate::output::{OutputError, say};
use crate::terminal::{InHand, LogFormat, SOON, Terminal, write_line, write_line_within};

/// Page faults of the system's allocator are a quarter of a CPU training step.
#[global_allocator]
static ALLOCATOR: Counted<memory::Counting> = Counted(memory::Counting);

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
    /// Make sample data, and test a pipeline's data for look-ahead.
    #[command(subcommand)]
    Data(DataCommand),
    /// List the devices that this build can use.
    Devices,
    /// Examine the devices: times, memory and losses of each model in each precision, and what to set.
    Doctor(doctor::DoctorFlags),
    /// Time whole training steps of a reference workload on noise, or many in the suite.
    Bench(bench::BenchFlags),
    /// Turn windows of new data, or texts, into vectors with the trained model of a run.
    Embed(apply::EmbedFlags),
    /// Tell classes, forecasts or labels of new data with the trained model of a run.
    Predict(apply::PredictFlags),
    /// Write the trained model of a run for other programs: safetensors, ONNX, PyTorch.
    Export(export::ExportFlags),
    /// Measure on sets of an archive by the published protocol.
    #[command(subcommand)]
    Evaluate(evaluate::EvaluateCommand),
    /// Put several runs on one page: curves, scores, settings that differ, times.
    Compare(CompareFlags),
    /// Show a run in the terminal while it goes on or later: losses, rates, the machine, time left.
    Watch(watch::WatchFlags),
}

#[derive(Args)]
struct CompareFlags {
    /// The runs: their folders, or their names within the runs folder.
    #[arg(required = true, num_args = 2.., value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// The page to write; by default comparison.html, which replaces an earlier comparison.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the page if it is there.
    #[arg(long)]
    force: bool,
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
    /// Write the bars of a generated market, the hours of generated demand, or generated texts as CSV.
    Generate {
        /// Settings of the generator: data/sample.market.toml, a .demand.toml or a .texts.toml.
        settings: PathBuf,
        /// The CSV file to write.
        output: PathBuf,
        /// Replace the file if it is there.
        #[arg(long)]
        force: bool,
    },
    /// Turn a folder of .npy arrays into samples in mapped shards, or go on with such a folder.
    Convert(data::ConvertFlags),
    /// Change the future of a pipeline's data, and demand that no feature, window, label or scale
    /// before it changes by a single bit. Exits with 1 and the first place that does.
    CheckLeaks(PlanFlags),
}

/// Stopped by a second signal, with nothing saved since the last checkpoint.
const STOPPED_AT_ONCE: i32 = 131;

fn main() -> ExitCode {
    memory::take_little_at_a_time();
    memory::keep();
    outlive_the_limit_of_files();
    firebox_pipeline::quiet_readers();
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(refused) => return error::render_usage(&refused, std::env::args_os()),
    };
    let log = match &command {
        Command::Run(flags) => flags.log,
        Command::Search(flags) => flags.log,
        Command::Data(DataCommand::Convert(flags)) => flags.log,
        Command::Embed(flags) => flags.log(),
        Command::Predict(flags) => flags.log(),
        _ => LogFormat::Text,
    };
    // A trial that panics fails alone, and the search goes on.
    let too_little_memory = match &command {
        Command::Run(_) => Some(TOO_LITTLE),
        Command::Search(_) => None,
        Command::Doctor(_) => Some(TOO_LITTLE_FOR_DOCTOR),
        _ => Some(TOO_LITTLE_MEMORY),
    };
    refused::tell_refusals(log, too_little_memory);
    // A run says what else it keeps, and a worker of a search that is ended by a signal is begun anew.
    #[cfg(unix)]
    if let Some(text) = too_little_memory.filter(|_| !matches!(command, Command::Run(_))) {
        memory::end_with(text, log);
    }
    let result = match command {
        Command::Run(flags) => run(&flags),
        Command::Search(flags) => search::run(&flags),
        Command::Plan(flags) => plan(&flags),
        Command::Cache(command) => cache::run(&command),
        Command::Data(DataCommand::Generate { settings, output, force }) => {
            generate(&settings, &output, force)
        }
        Command::Data(DataCommand::Convert(flags)) => data::convert(&flags),
        Command::Data(DataCommand::CheckLeaks(flags)) => check_leaks(&flags),
        Command::Devices => devices(),
        Command::Doctor(flags) => doctor::run(&flags),
        Command::Bench(flags) => bench::run(&flags),
        Command::Embed(flags) => apply::embed(&flags),
        Command::Predict(flags) => apply::predict(&flags),
        Command::Export(flags) => export::run(&flags),
        Command::Evaluate(command) => evaluate::run(&command),
        Command::Compare(flags) => compare(&flags),
        Command::Watch(flags) => watch::run(&flags),
    };
    result.unwrap_or_else(|error| {
        error::render(&error, log);
        ExitCode::from(error::exit_code(&error))
    })
}

/// What ends any other command whose memory is refused.
const TOO_LITTLE_MEMORY: &str = "memory was refused, and this command cannot go on with less\n  \
     what was complete before is kept\n  \
     give it more memory (ulimit -d and -v, its control group), or less to do at once";

/// What ends an examination whose memory is refused: it writes nothing before its end.
const TOO_LITTLE_FOR_DOCTOR: &str = "memory was refused, and what this examination has measured is not kept\n  \
     examine fewer models (--quick, or --workload NAME), or give it more memory (ulimit -d and -v, its control group)";

/// What ends a run whose memory is refused where nothing is divided.
const TOO_LITTLE: &str = "memory was refused where a run cannot go on with less, as it does in steps, validations and checkpoints\n  \
     what was complete is kept: the same command goes on from there\n  \
     give it more memory (ulimit -d and -v, its control group), or let it take less at once: evaluate.batch_size, or where it ended \
     before its first step a smaller model, a number for loader.batch_size if that is \"auto\", or shorter texts where long ones were told";

fn run(flags: &RunFlags) -> anyhow::Result<ExitCode> {
    let source = match (&flags.resume, &flags.file) {
        (Some(run), file) => Source::Resume { run: run.clone(), file: file.clone() },
        (None, Some(file)) => Source::File(file.clone()),
        (None, None) => anyhow::bail!("name a pipeline file, or a run with --resume"),
    };
    let prepared = Prepared::new(&source, environment()?, &flags.layers.settings())?;
    let prepared = prepared.profiled(flags.profile);
    #[cfg(unix)]
    {
        memory::begin_anew_without();
        memory::end_with(TOO_LITTLE, flags.log);
    }
    // Before memory is scarce.
    let terminal = Terminal::new(flags.log);
    let stop = stop_on_signal(flags.log, terminal.in_hand(), SOON)?;
    let device = device::choose(&prepared.config().run.device)?;
    let finished = prepared.run(&device, &stop, &terminal);
    terminal.close();
    #[cfg(unix)]
    if let Err(error) = &finished
        && !stop.load(Ordering::SeqCst)
    {
        memory::begin_anew_after(error);
    }
    if let Err(PipelineError::Interrupted) = &finished {
        say(
            "interrupted before there was a run; what was fetched is kept, and the same command goes on",
        )?;
        return Ok(ExitCode::from(130));
    }
    Ok(conclude(&finished?)?)
}

/// The variables that are Firebox's, or would be in capitals. What others put into the environment may be any bytes.
fn environment() -> anyhow::Result<Vec<(String, String)>> {
    let own = |(name, _): &(OsString, OsString)| {
        name.to_string_lossy().to_uppercase().starts_with("FIREBOX_")
    };
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
            let run = quoted_for_a_shell(&finished.run.to_string_lossy());
            match step {
                0 if finished.run.join("parts").is_dir() => say(
                    "interrupted; every training that is complete is kept, and of the one in hand what was saved last",
                )?,
                0 => say(
                    "interrupted before a step was saved; every result that is complete is kept",
                )?,
                step => say(format_args!("interrupted; everything up to step {step} is saved"))?,
            }
            say(format_args!("go on with: cargo xtask pipeline --resume {run}"))?;
            say(format_args!("        or: firebox run --resume {run}"))?;
            Ok(ExitCode::from(130))
        }
    }
}

/// Signals that follow one another faster than this are one: whoever sends one to a process and to its group, as timeout(1)
/// and schedulers do, sends it twice.
const ONE_SIGNAL: Duration = Duration::from_millis(100);

/// How long a signal waits for a terminal that stands still, as after Ctrl-S: the next one has to be heard.
const PATIENCE: Duration = Duration::from_millis(500);

/// The first signal asks the work to stop soon, and says what is waited for, the other where no stage is known; the
/// second ends the program.
fn stop_on_signal(
    log: LogFormat,
    in_hand: InHand,
    otherwise: &'static str,
) -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    // When the first one was dealt with, which takes a while where the terminal stands still.
    let mut first: Option<Instant> = None;
    ctrlc::set_handler(move || {
        let again = flag.swap(true, Ordering::SeqCst);
        if again && first.is_some_and(|first| first.elapsed() < ONE_SIGNAL) {
            return;
        }
        let said = if again {
            "stopped at once; what was done since the last checkpoint is lost"
        } else {
            in_hand.stopping(otherwise)
        };
        let line = match log {
            LogFormat::Text => format!("\n{said}"),
            LogFormat::Json => {
                serde_json::json!({ "event": "warning", "message": said }).to_string()
            }
        };
        write_line_within(PATIENCE, line);
        if again {
            std::process::exit(STOPPED_AT_ONCE);
        }
        first = Some(Instant::now());
    })
    .map_err(unheard)?;
    outlive_the_terminal();
    Ok(stop)
}

/// What a thread that hears signals was refused for: its stack takes memory.
fn unheard(error: ctrlc::Error) -> anyhow::Error {
    match error {
        ctrlc::Error::System(source) => refused_thread("the one that hears Ctrl-C", source).into(),
        other => other.into(),
    }
}

#[cfg(unix)]
unsafe extern "C" {
    /// Of the C library: sets what is done about a signal.
    fn signal(number: std::ffi::c_int, handler: usize) -> usize;
}

/// Lets a run go on when its terminal is closed, as `nohup` does: its log, its trackers and
/// `firebox watch` tell the rest.
#[cfg(unix)]
fn outlive_the_terminal() {
    /// `SIGHUP` of every Unix's signal.h.
    const SIGHUP: std::ffi::c_int = 1;
    ignore(SIGHUP);
}

#[cfg(not(unix))]
fn outlive_the_terminal() {}

/// Lets a file that grows beyond the limit for files (`ulimit -f`) be an error that says so, instead of the end of the
/// process.
#[cfg(unix)]
fn outlive_the_limit_of_files() {
    /// `SIGXFSZ` of the signal.h of Linux, macOS and the BSDs.
    const SIGXFSZ: std::ffi::c_int = 25;
    ignore(SIGXFSZ);
}

#[cfg(not(unix))]
fn outlive_the_limit_of_files() {}

#[cfg(unix)]
fn ignore(number: std::ffi::c_int) {
    /// `SIG_IGN` of every Unix's signal.h.
    const SIG_IGN: usize = 1;
    // SAFETY: a function of the C library; ignoring a signal calls nothing of ours.
    unsafe { signal(number, SIG_IGN) };
}

fn plan(flags: &PlanFlags) -> anyhow::Result<ExitCode> {
    let source = Source::File(flags.file.clone());
    let prepared = Prepared::new(&source, environment()?, &flags.layers.settings())?;
    #[cfg(unix)]
    memory::heed_group();
    let device = device::choose(&prepared.config().run.device)?;
    // Offline, no server is asked.
    let urls = prepared.urls().filter(|_| !prepared.config().run.fetch.offline);
    for url in urls {
        write_line(&format!("fetching {}, unless its copy is there and current", url.display()));
    }
    let terminal = Terminal::new(LogFormat::Text);
    let plan = prepared.plan(&device, &terminal);
    terminal.close();
    say(plan?)?;
    Ok(ExitCode::SUCCESS)
}

fn check_leaks(flags: &PlanFlags) -> anyhow::Result<ExitCode> {
    let source = Source::File(flags.file.clone());
    let prepared = Prepared::new(&source, environment()?, &flags.layers.settings())?;
    let terminal = Terminal::new(LogFormat::Text);
    let checked = prepared.check_leaks(&terminal);
    terminal.close();
    let checked = checked?;
    for line in &checked.lines {
        say(line)?;
    }
    say(checked.conclusion)?;
    Ok(ExitCode::SUCCESS)
}

fn generate(settings: &Path, output: &Path, force: bool) -> anyhow::Result<ExitCode> {
    let written = firebox_pipeline::generate(settings, output, force)?;
    say(format_args!("{written} in {}", output.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn compare(flags: &CompareFlags) -> anyhow::Result<ExitCode> {
    let output = match &flags.output {
        Some(output) if output.exists() && !flags.force => anyhow::bail!(
            "{} is not written: it is there already\n  replace it with --force, or name another file",
            output.display()
        ),
        Some(output) => output.as_path(),
        None => Path::new("comparison.html"),
    };
    firebox_pipeline::compare(&flags.runs, output)?;
    say(format_args!("comparison {}", output.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn devices() -> anyhow::Result<ExitCode> {
    for Listed { name, kind, found } in device::all() {
        let text = match found {
            Ok(device) => device.description,
            Err(error) => error.to_string().lines().next().unwrap_or_default().to_owned(),
        };
        // A device of a GPU begins with its name.
        let text = text.strip_prefix(&format!("{name} ")).unwrap_or(&text);
        let kind = kind.map_or(String::new(), |kind| format!("{kind}: "));
        say(format_args!("{name:<9} {kind}{text}"))?;
    }
    Ok(ExitCode::SUCCESS)
}
