//! `firebox search`: one worker, several of this machine, or one more of a search that others began.
//!
//! What a trial is and how a study is kept is in the libraries. Here processes are started and
//! stopped.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use firebox_pipeline::{Search, SearchSource, Searched};

use crate::output::say;
use crate::terminal::{LogFormat, Terminal, write_line};
use crate::{Layers, STOPPING, device, environment, stop_on_signal};

/// Variable with the address of the study for a worker: other users see the arguments of a process, and
/// the address may hold a password.
const ADDRESS: &str = "FIREBOX_SEARCH_ADDRESS";
/// Time between two looks at the workers.
const LOOK: Duration = Duration::from_millis(200);

#[derive(Args)]
pub(crate) struct SearchFlags {
    /// The pipeline file, with a table `[search]`.
    #[arg(required_unless_present = "join", conflicts_with = "join", value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    layers: Layers,
    /// Take part in a search that was begun: its journal, or redis://HOST:PORT/DATABASE.
    #[arg(long, value_name = "STUDY")]
    join: Option<String>,
    /// The name of the study to join, where a journal has several.
    #[arg(long, requires = "join", value_name = "NAME")]
    study: Option<String>,
    /// Processes that work on it; the threads of this machine are divided among them.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: u16,
    /// How events are shown.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) log: LogFormat,
    /// Work, leave the conclusion to whoever started this, and stop when standard input ends.
    #[arg(long, hide = true)]
    worker: bool,
}

pub(crate) fn run(flags: &SearchFlags) -> anyhow::Result<ExitCode> {
    let passed = if flags.worker { std::env::var(ADDRESS).ok() } else { None };
    let source = match (&passed.or_else(|| flags.join.clone()), &flags.file) {
        (Some(storage), _) => {
            SearchSource::Join { storage: storage.clone(), study: flags.study.clone() }
        }
        (None, Some(file)) => SearchSource::File(file.clone()),
        (None, None) => anyhow::bail!("name a pipeline file, or a search with --join"),
    };
    let stop = stop_on_signal(flags.log, STOPPING)?;
    let search = Search::open(&source, environment()?, &flags.layers.settings(), &stop)?;
    let device = device::choose(&search.config().run.device)?;
    if flags.worker {
        stop_with_input(&stop);
    } else if flags.log == LogFormat::Text {
        write_line(&format!("study {} in {}", search.name(), search.storage()));
        write_line(&format!("device {}", device.description));
        write_line(&format!("join it with: {}", join_command(&search)));
    }
    let terminal = Terminal::new(flags.log);
    let worked = if flags.workers == 1 {
        search.work(&device, &terminal).map_err(anyhow::Error::from)
    } else {
        work_together(flags, &search, &stop)
    };
    terminal.close();
    worked?;
    if flags.worker {
        return Ok(ExitCode::from(if search.is_stopped() { 130 } else { 0 }));
    }
    let searched = search.conclude(&device, &terminal);
    terminal.close();
    conclude(&search, &searched?)
}

/// Starts the workers and waits for them. One that dies is left to the others, who go on with its
/// trial.
fn work_together(
    flags: &SearchFlags,
    search: &Search,
    stop: &Arc<AtomicBool>,
) -> anyhow::Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = (threads / usize::from(flags.workers)).max(1);
    let mut workers: Vec<Child> = vec![];
    for _ in 0..flags.workers {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["search", "--worker", "--join", search.storage(), "--study", search.name()]);
        command.env(ADDRESS, search.secret_storage());
        if flags.log == LogFormat::Json {
            command.args(["--log", "json"]);
        }
        for setting in flags.layers.settings() {
            command.args(["--set", &setting]);
        }
        if std::env::var_os("RAYON_NUM_THREADS").is_none() {
            command.env("RAYON_NUM_THREADS", share.to_string());
        }
        workers.push(command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?);
    }
    let mut died = 0;
    while !workers.is_empty() {
        if stop.load(Ordering::SeqCst) {
            // A worker stops when its input ends.
            workers.iter_mut().for_each(|worker| drop(worker.stdin.take()));
        }
        let mut running = vec![];
        for mut worker in workers {
            match worker.try_wait()? {
                None => running.push(worker),
                Some(status) if status.success() || status.code() == Some(130) => {}
                Some(status) => {
                    died += 1;
                    write_line(&format!("warning: a worker ended with {status}"));
                }
            }
        }
        workers = running;
        std::thread::sleep(LOOK);
    }
    if died == usize::from(flags.workers) {
        anyhow::bail!("every worker failed; see what they said above");
    }
    Ok(())
}

/// Stops the worker when whoever started it is gone or wants it to stop.
fn stop_with_input(stop: &Arc<AtomicBool>) {
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut vec![]);
        stop.store(true, Ordering::SeqCst);
    });
}

fn join_command(search: &Search) -> String {
    let address = search.storage();
    let hidden = if address == search.secret_storage() {
        ""
    } else {
        " (with the user and the password before the host: redis://USER:PASSWORD@HOST)"
    };
    format!("firebox search --join {address}{hidden}")
}

fn conclude(search: &Search, searched: &Searched) -> anyhow::Result<ExitCode> {
    let Searched { complete, pruned, failed, .. } = searched;
    say(format_args!("{complete} complete, {pruned} given up early, {failed} failed"))?;
    if let Some((number, value)) = searched.best {
        say(format_args!("best: trial {number} with a validation loss of {value:.6}"))?;
    }
    if let Some(pipeline) = &searched.pipeline {
        say(format_args!("its pipeline: {}", pipeline.display()))?;
    }
    if let Some(finished) = &searched.finished {
        say(&finished.verdict)?;
        say(format_args!("its report: {}", finished.report.display()))?;
    }
    say(format_args!("study {}", searched.page.display()))?;
    if search.is_stopped() {
        say(format_args!("interrupted; go on with: {}", join_command(search)))?;
        return Ok(ExitCode::from(130));
    }
    if searched.best.is_none() {
        anyhow::bail!("no trial ended with a value; {} has the reasons", searched.page.display());
    }
    Ok(ExitCode::SUCCESS)
}
