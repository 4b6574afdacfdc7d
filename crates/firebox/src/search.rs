//! `firebox search`: one worker, several of this machine, or one more of a search that others began.
//!
//! What a trial is and how a study is kept is in the libraries, and processes are started and watched in
//! `workers`.

use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use firebox_core::Listener;
use firebox_pipeline::memory::Shortage;
use firebox_pipeline::{Search, SearchSource, Searched, loss_text, quoted_for_a_shell};

use crate::output::say;
use crate::terminal::{AFTER_THIS_STEP, LogFormat, Terminal, write_line};
use crate::{Layers, device, environment, stop_on_signal, workers};

/// Variable with the address of the study for a worker: other users see the arguments of a process, and
/// the address may hold a password.
const ADDRESS: &str = "FIREBOX_SEARCH_ADDRESS";

/// A search that found nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fruitless {
    #[error("every worker failed; see what they said above")]
    Workers,
    #[error("no trial ended with a value; {} has the reasons", .0.display())]
    Trials(PathBuf),
}

#[derive(Args)]
pub(crate) struct SearchFlags {
    /// The pipeline file, with a table `[search]`; none with --join.
    #[arg(conflicts_with = "join", value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    layers: Layers,
    /// Take part in a search that was begun: its folder, its journal, or redis://HOST:PORT/DATABASE.
    #[arg(long, value_name = "STUDY")]
    join: Option<String>,
    /// The name of the study to join, where a journal has several.
    #[arg(long, requires = "join", value_name = "NAME")]
    study: Option<String>,
    /// Processes that work on it; the threads of this machine are divided among them. One that is
    /// killed is begun anew, up to ten times.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: u16,
    /// How events are shown.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) log: LogFormat,
    /// Work, leave the conclusion to whoever started this, and stop when standard input ends.
    #[arg(long, hide = true)]
    worker: bool,
    /// What the worker had in hand whose place this one takes, when it ran out of memory.
    #[arg(long, hide = true)]
    after: Option<Shortage>,
}

pub(crate) fn run(flags: &SearchFlags) -> anyhow::Result<ExitCode> {
    let passes = flags.worker || flags.after.is_some();
    let passed = if passes { std::env::var(ADDRESS).ok() } else { None };
    let source = match (&passed.or_else(|| flags.join.clone()), &flags.file) {
        (Some(storage), _) => {
            SearchSource::Join { storage: storage.clone(), study: flags.study.clone() }
        }
        (None, Some(file)) => SearchSource::File(file.clone()),
        (None, None) => anyhow::bail!(
            "there is nothing to search: no FILE is named, and no study with --join\n  \
             begin or go on with a search: firebox search FILE\n  \
             take part in one that was begun, without a file: firebox search --join STUDY"
        ),
    };
    let terminal = Terminal::new(flags.log);
    let stop = stop_on_signal(flags.log, terminal.in_hand(), AFTER_THIS_STEP)?;
    let mut search = Search::open(&source, environment()?, &flags.layers.settings(), &stop)?;
    let device = device::choose(&search.config().run.device)?;
    if flags.worker {
        stop_with_input(&stop);
    } else if flags.log == LogFormat::Text && flags.after.is_none() {
        write_line(&format!("study {} in {}", search.name(), search.storage()));
        write_line(&format!("device {}", device.description));
        write_line(&format!("join it with: {}", join_command(&search)));
    }
    if let Some(before) = &flags.after {
        search.take_over(before.clone(), &terminal)?;
    }
    #[cfg(unix)]
    if flags.workers == 1 {
        outlive_shortages(flags, &search, &stop);
    }
    let worked = if flags.workers == 1 {
        search.work(&device, &terminal).map_err(anyhow::Error::from)
    } else {
        work_together(flags, &search, &stop, &terminal)
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

/// Lets another process take the place of this one when a trial has too little memory.
#[cfg(unix)]
fn outlive_shortages(flags: &SearchFlags, search: &Search, stop: &Arc<AtomicBool>) {
    let mut arguments: Vec<OsString> = std::env::args_os().take(1).collect();
    // What is searched is the study's by now, whatever becomes of the file.
    arguments.extend(join_arguments(flags, search));
    if flags.worker {
        arguments.push("--worker".into());
    }
    let variable = (ADDRESS.into(), search.secret_storage().into());
    crate::memory::begin_worker_anew(arguments, variable, "--after", stop);
}

/// The arguments of a process that takes part in this search as this one does.
fn join_arguments(flags: &SearchFlags, search: &Search) -> Vec<OsString> {
    let join = ["search", "--join", search.storage(), "--study", search.name()];
    let mut arguments: Vec<OsString> = join.into_iter().map(OsString::from).collect();
    if flags.log == LogFormat::Json {
        arguments.extend(["--log", "json"].map(OsString::from));
    }
    for setting in flags.layers.settings() {
        arguments.extend([OsString::from("--set"), setting.into()]);
    }
    arguments
}

/// Works with processes of this machine, which divide its threads.
fn work_together(
    flags: &SearchFlags,
    search: &Search,
    stop: &AtomicBool,
    listener: &dyn Listener,
) -> anyhow::Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = (threads / usize::from(flags.workers)).max(1);
    let command = || {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(join_arguments(flags, search)).arg("--worker");
        command.env(ADDRESS, search.secret_storage());
        if std::env::var_os("RAYON_NUM_THREADS").is_none() {
            command.env("RAYON_NUM_THREADS", share.to_string());
        }
        Ok(command)
    };
    if workers::work(flags.workers, command, stop, listener)? {
        Ok(())
    } else {
        Err(Fruitless::Workers.into())
    }
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
    format!("{}{hidden}", joining(address, search.name()))
}

/// The command that takes part in a study. It has the name: the journal may have others, now or later.
fn joining(address: &str, study: &str) -> String {
    let [address, study] = [address, study].map(quoted_for_a_shell);
    format!("firebox search --join {address} --study {study}")
}

fn best_line(number: u64, objective: &str, value: f64) -> String {
    format!("best: trial {number} with a {objective} of {}", loss_text(value))
}

fn conclude(search: &Search, searched: &Searched) -> anyhow::Result<ExitCode> {
    let Searched { complete, pruned, failed, .. } = searched;
    say(format_args!("{complete} complete, {pruned} given up early, {failed} failed"))?;
    if let Some(ended) = &searched.ended {
        say(format_args!("no more are begun: {ended}"))?;
    }
    if let Some((number, value)) = searched.best {
        say(best_line(number, searched.objective, value))?;
    }
    for (number, pipeline) in &searched.front {
        say(format_args!("on the Pareto front: trial {number}, {}", pipeline.display()))?;
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
        return Err(Fruitless::Trials(searched.page.clone()).into());
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_to_join_names_the_study() {
        let own = joining("redis://host:6379/0", "a.b");
        assert_eq!(own, "firebox search --join redis://host:6379/0 --study a.b");
        let quoted = joining("my runs/s.log", "it's");
        assert_eq!(quoted, r"firebox search --join 'my runs/s.log' --study 'it'\''s'");
    }

    #[test]
    fn a_small_loss_does_not_read_as_zero() {
        let line = best_line(3, "validation loss", 3.1e-7);
        assert_eq!(line, "best: trial 3 with a validation loss of 3.10e-7");
    }
}
