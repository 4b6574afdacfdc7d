//! `firebox bench`, one workload, and `firebox bench suite`, all of them.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use firebox_core::Precision;
use firebox_pipeline::{
    ADDED_AIM, BenchConfig, BenchResult, Ceilings, KernelShare, PageFaults, Regression, Resident,
    Share, StepParts, SuiteConfig, SuiteOutcome, SuitePart, TorchConfig, UPDATE_AIM, Undecided,
    Untimed, Workload,
};

use crate::device;
use crate::output::say;
use crate::terminal::{LogFormat, Terminal, write_line};

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BenchFlags {
    #[command(subcommand)]
    command: Option<BenchCommand>,
    #[command(flatten)]
    one: OneFlags,
}

#[derive(Subcommand)]
enum BenchCommand {
    /// Time every workload, what each setting brings and how steps scale, in rounds, and write
    /// performance_summary.md, performance.json and performance.html.
    Suite(SuiteFlags),
    /// Measure what a device does at most, and print one line of JSON: the suite asks for it.
    #[command(hide = true)]
    Ceilings {
        /// Device: auto, cpu, cuda:0, vulkan, …
        #[arg(long, default_value = "auto", value_name = "NAME")]
        device: String,
    },
}

#[derive(Args)]
struct OneFlags {
    /// The workload: lstm-mae, lstm-forecast, transformer, mlp, cnn-lstm, bert-base.
    #[arg(long, default_value = "lstm-mae")]
    workload: Workload,
    /// Type of the operands of products: f32, tf32, bf16, f16.
    #[arg(long, default_value = "f32")]
    precision: Precision,
    /// Samples of a batch; by default the workload's own.
    #[arg(long)]
    batch: Option<usize>,
    /// Steps that are timed.
    #[arg(long, default_value_t = 10)]
    steps: u64,
    /// Steps before them; by default 3, and 128 where training is timed on a GPU, which meets new shapes until then.
    #[arg(long)]
    warmup: Option<u64>,
    /// Go on until steps have been timed for so many seconds.
    #[arg(long, default_value_t = 0.0, value_name = "SECONDS")]
    seconds: f64,
    /// Time the forward pass and the loss alone, in evaluation.
    #[arg(long)]
    eval: bool,
    /// Steps of a sequence; by default the workload's own.
    #[arg(long)]
    length: Option<usize>,
    /// Units of a hidden layer, or the width; by default the workload's own.
    #[arg(long)]
    hidden: Option<usize>,
    /// Different samples that batches are drawn from; by default one batch.
    #[arg(long)]
    samples: Option<usize>,
    /// Where the samples lie, as `loader.resident` has it: auto, device, memory, stream. On the device they need no threads.
    #[arg(long, default_value = "auto", value_name = "PLACE")]
    resident: Resident,
    /// Threads that make batches; 0: each batch is made when it is asked for.
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// Sampler, log, trackers and progress on, as in a run that is watched, and what they cost.
    #[arg(long)]
    watched: bool,
    /// Tell where the time of a step goes: forward, backward, and what the trainer adds. On processors.
    #[arg(long)]
    parts: bool,
    /// Tell which kernels a step spends its time in, as the device wrote it down. On GPUs.
    #[arg(long)]
    kernels: bool,
    /// Device: auto, cpu, cuda:0, vulkan, …
    #[arg(long, default_value = "auto", value_name = "NAME")]
    device: String,
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
}

/// A program that is timed beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PeerName {
    /// PyTorch.
    Torch,
}

#[derive(Args)]
struct SuiteFlags {
    /// Device: auto, cpu, cuda:0, vulkan, …
    #[arg(long, default_value = "auto", value_name = "NAME")]
    device: String,
    /// Folder of the results.
    #[arg(long, default_value = "performance", value_name = "FOLDER")]
    output: PathBuf,
    /// Fewer and shorter cases, for a look or a CI machine.
    #[arg(long)]
    quick: bool,
    /// Minutes that it may take; they decide how many rounds there are, and beside how many cases the
    /// peer runs. What there is no time for is listed. The last one counts.
    #[arg(long, default_value_t = 15.0, overrides_with = "minutes")]
    minutes: f64,
    /// Only these parts: table, watching, trainer, matrix, scaling.
    #[arg(long, value_delimiter = ',', value_name = "PART,…")]
    only: Vec<SuitePart>,
    /// A peer that is timed beside, in turn.
    #[arg(long, value_name = "NAME")]
    peers: Option<PeerName>,
    /// A Python that has PyTorch; without it `python3` is tried, and then an environment is made.
    #[arg(long, value_name = "PROGRAM", requires = "peers")]
    python: Option<PathBuf>,
    /// The script that times PyTorch and prints the keys of `firebox bench --json`.
    #[arg(long, value_name = "FILE", default_value = "../shared/peers/torch_steps.py")]
    torch_steps: PathBuf,
    /// Compare with an earlier performance.json, and fail if something has become slower, or cannot be
    /// timed any more. It takes three rounds of both to tell what is slower.
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Run every program of this folder first, and put what they say into the results.
    #[arg(long, value_name = "FOLDER")]
    checks: Option<PathBuf>,
    /// Run these programs, and time nothing.
    #[arg(long, requires = "checks")]
    checks_only: bool,
}

pub(crate) fn run(flags: &BenchFlags) -> anyhow::Result<ExitCode> {
    match &flags.command {
        Some(BenchCommand::Suite(suite)) => run_suite(suite),
        Some(BenchCommand::Ceilings { device }) => {
            say(serde_json::to_string(&Ceilings::measure(&device::choose(device)?))?)?;
            Ok(ExitCode::SUCCESS)
        }
        None => run_one(&flags.one),
    }
}

fn run_one(flags: &OneFlags) -> anyhow::Result<ExitCode> {
    let device = device::choose(&flags.device)?;
    let on_gpu = device.backend != "cpu";
    let warmup = flags.warmup.unwrap_or_else(|| BenchConfig::default_warmup(&device, flags.eval));
    let config = BenchConfig {
        workload: flags.workload,
        precision: flags.precision,
        batch: flags.batch,
        steps: flags.steps,
        warmup,
        seconds: flags.seconds,
        evaluate: flags.eval,
        length: flags.length,
        hidden: flags.hidden,
        samples: flags.samples,
        resident: flags.resident,
        workers: flags.workers,
        watched: flags.watched,
        parts: flags.parts,
        kernels: flags.kernels,
        ..BenchConfig::new(flags.workload)
    };
    let terminal = Terminal::new(LogFormat::Text);
    let result = firebox_pipeline::bench_shown(&config, &device, &terminal);
    terminal.close();
    let result = result?;
    if flags.json {
        say(serde_json::to_string(&result)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let BenchResult { workload, mode, precision, batch, kernels, device, .. } = &result;
    let sizes = [("length", flags.length), ("hidden", flags.hidden), ("samples", flags.samples)];
    let sizes = sizes.into_iter().filter_map(|(name, size)| Some(format!(", {name} {}", size?)));
    let sizes: String = sizes.collect();
    say(format_args!("{workload} {mode} {precision}, batch {batch}{sizes}, {device} ({kernels})"))?;
    say(format_args!(
        "step {:.1} ms (median; {:.1} to {:.1}), {:.0} samples/s, {:.2} ms waiting for data",
        result.step_ms, result.min_ms, result.max_ms, result.samples_per_s, result.data_ms
    ))?;
    if let Some(busy) = result.utilisation {
        say(format_args!("device busy {:.0} % of the time", 100.0 * busy))?;
    }
    if let Some(peak) = result.peak_mib {
        let what = if on_gpu { "reserved memory of the device" } else { "peak resident memory" };
        say(format_args!("{what} {peak:.0} MiB"))?;
    }
    if let Some(PageFaults { minor, major }) = result.page_faults {
        say(format_args!(
            "page faults of a step: {minor:.1} that memory served, {major:.1} that a disk did"
        ))?;
    }
    if let Some(cost) = result.watching {
        let threads = cost.threads_us.map_or("unknown".to_owned(), |time| format!("{time:.0} µs"));
        say(format_args!(
            "watching: {:.1} µs of each step in the loop, {threads} in its own threads, over {:.1} s",
            cost.loop_us, cost.seconds
        ))?;
        if let (Some(begin), Some(end)) = (cost.begin_ms, cost.end_ms) {
            say(format_args!("and {begin:.1} ms of processor time to begin, {end:.1} ms to end"))?;
        }
    }
    if let Some(parts) = &result.parts {
        // The aims are of this model and batch.
        let aims = flags.workload == Workload::LstmMae && *batch == 512;
        for line in parts_lines(parts, aims) {
            say(line)?;
        }
    }
    if let Some(kernels) = &result.on_device {
        for line in kernel_lines(kernels, result.step_ms) {
            say(line)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The kernels of a step with their times and rates, and what of the step the device was busy.
fn kernel_lines(kernels: &[KernelShare], step_ms: f64) -> Vec<String> {
    let busy: f64 = kernels.iter().map(|kernel| kernel.ms).sum();
    let launches: f64 = kernels.iter().map(|kernel| kernel.launches).sum();
    let head = format!(
        "the device computed for {busy:.3} of {step_ms:.3} ms a step, in {launches:.0} launches:"
    );
    let line = |kernel: &KernelShare| {
        let KernelShare { name, shape, launches, ms, gflop } = kernel;
        let rate = match *gflop > 0.0 && *ms > 0.0 {
            true => format!("  {:.1} TFLOP/s", gflop / ms),
            false => String::new(),
        };
        format!("{ms:>9.3} ms {launches:>6.1} x  {name} {shape}{rate}")
    };
    [head].into_iter().chain(kernels.iter().map(line)).collect()
}

/// Where the time of a step goes, beside the aims for it.
fn parts_lines(parts: &StepParts, aims: bool) -> [String; 4] {
    let aim = |share: Share, aim: f64| match aims {
        true => format!(" (aim: under {:.0} %, {})", 100.0 * aim, share.below(aim)),
        false => String::new(),
    };
    let StepParts { steps, whole_ms, added, update, .. } = *parts;
    [
        format!(
            "of {whole_ms:.1} ms a step (mean of {steps}): forward {:.1}, backward {:.1}",
            parts.forward_ms, parts.backward_ms
        ),
        format!("everything else: {added} of it{}", aim(added, ADDED_AIM)),
        format!("optimizer, clipping and zeroing: {update} at most{}", aim(update, UPDATE_AIM)),
        format!(
            "waiting for data {:.3} ms, reading the loss and the norm {:.3} ms, optimizer {:.3} ms",
            parts.waiting_ms, parts.read_back_ms, parts.optimizer_ms
        ),
    ]
}

fn run_suite(flags: &SuiteFlags) -> anyhow::Result<ExitCode> {
    // Who starts this for somebody says what that one has typed.
    let typed = std::env::var("FIREBOX_TYPED").unwrap_or_else(|_| {
        let own = std::env::args_os().skip(1).map(|text| text.to_string_lossy().into_owned());
        ["firebox".to_owned()].into_iter().chain(own).collect::<Vec<_>>().join(" ")
    });
    let torch = flags.peers.map(|PeerName::Torch| TorchConfig {
        python: flags.python.clone(),
        script: flags.torch_steps.clone(),
        environment: flags.output.join("torch-environment"),
    });
    let parts = match (flags.checks_only, flags.only.is_empty()) {
        (true, _) => vec![],
        (false, true) => SuitePart::ALL.map(|(part, _)| part).to_vec(),
        (false, false) => flags.only.clone(),
    };
    let device = device::choose(&flags.device)?;
    let config = SuiteConfig {
        program: std::env::current_exe()?,
        command: typed,
        // What `auto` found, so that each case gets the same.
        device: match flags.device.as_str() {
            "auto" => device.backend.clone(),
            named => named.to_owned(),
        },
        output: flags.output.clone(),
        quick: flags.quick,
        minutes: flags.minutes,
        parts,
        torch,
        baseline: flags.baseline.clone(),
        checks: flags.checks.clone(),
    };
    let outcome = firebox_pipeline::suite(&config, &device, &|text| write_line(text))?;
    say(format_args!("summary {}", outcome.summary.display()))?;
    let mut failed = false;
    for check in outcome.performance.checks.iter().filter(|check| !check.passed) {
        write_line(&format!("check {} failed:\n{}", check.name, check.said));
        failed = true;
    }
    for case in &outcome.performance.cases {
        if let Some(error) = &case.error {
            write_line(&format!("{} was not timed: {error}", case.name));
        }
    }
    for Untimed { name, before_ms, .. } in &outcome.untimed {
        write_line(&format!("failed: {name}: {before_ms:.3} ms before, not timed now"));
        failed = true;
    }
    for Regression { name, before_ms, now_ms } in outcome.regressions.iter().flatten() {
        write_line(&format!("slower: {name}: {before_ms:.3} ms before, {now_ms:.3} ms now"));
        failed = true;
    }
    tell_undecided(&outcome);
    Ok(if failed { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// Says of which cases there are too few rounds to tell whether they have become slower, and how to take more.
fn tell_undecided(outcome: &SuiteOutcome) {
    for Undecided { name, before_ms, now_ms, rounds: [before, now] } in &outcome.undecided {
        write_line(&format!(
            "too few rounds to tell: {name}: {before_ms:.3} ms before (rounds: {before}), {now_ms:.3} ms now (rounds: {now})"
        ));
    }
    if !outcome.undecided.is_empty() {
        write_line(&format!(
            "three rounds of both tell what is slower: about --minutes {:.0} here without a peer, and as many for a new baseline where that has fewer",
            outcome.performance.minutes_for_enough()
        ));
    }
}
