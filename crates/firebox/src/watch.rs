//! `firebox watch`: looks at a run, and asks it for something. The dashboard is in firebox-monitor.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use firebox_core::Request;
use firebox_pipeline::monitor;

use crate::output::say;
use crate::unheard;

#[derive(Args)]
pub(crate) struct WatchFlags {
    /// The run: its folder, or its name within the runs folder.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Print the dashboard once, as text.
    #[arg(long)]
    once: bool,
    /// Columns of what is printed once, from 1 to 1000.
    #[arg(long, default_value_t = 100, requires = "once", value_parser = size())]
    width: u16,
    /// Lines of what is printed once, from 1 to 1000.
    #[arg(long, default_value_t = 30, requires = "once", value_parser = size())]
    height: u16,
    /// Ask the run for something instead, as the keys of the dashboard do: pause, go-on, save,
    /// stop-after-epoch. It is done at the end of the step in hand; stop-after-epoch ends a pause, too.
    #[arg(long, value_name = "REQUEST", value_parser = request, conflicts_with = "once")]
    ask: Option<Request>,
}

/// Sizes that a terminal may have: the cells of a larger one would fill the memory.
fn size() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=1000)
}

fn request(text: &str) -> Result<Request, String> {
    Request::ALL.into_iter().find(|request| request.name() == text).ok_or_else(|| {
        let names: Vec<&str> = Request::ALL.iter().map(|request| request.name()).collect();
        format!("a run can be asked for {}", names.join(", "))
    })
}

pub(crate) fn run(flags: &WatchFlags) -> anyhow::Result<ExitCode> {
    let folder = firebox_pipeline::find_run(&flags.run)?;
    if let Some(request) = flags.ask {
        say(monitor::request(&folder, request)?)?;
    } else if flags.once {
        say(monitor::watch_once(&folder, [flags.width, flags.height])?)?;
    } else {
        let stop = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stop);
        // The terminal is given back first.
        ctrlc::set_handler(move || {
            flag.store(true, Ordering::SeqCst);
            // The dashboard may stand still before a terminal that takes nothing.
            std::thread::sleep(Duration::from_secs(2));
            std::process::exit(130);
        })
        .map_err(unheard)?;
        monitor::watch(&folder, &stop)?;
        if stop.load(Ordering::SeqCst) {
            return Ok(ExitCode::from(130));
        }
    }
    Ok(ExitCode::SUCCESS)
}
