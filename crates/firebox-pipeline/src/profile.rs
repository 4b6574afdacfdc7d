//! The profile of a run: its timeline beside the run, and its table in the report.

use firebox_core::{Event, Listener};
use firebox_eval::Table;
use firebox_monitor::{Profile, ProfileConfig, Profiler};

use crate::folder::RunFolder;
use crate::measure::table;

/// Name of the timeline within the run's folder.
const TRACE: &str = "trace.json";

/// A profile being recorded, if one was asked for and can be.
pub(crate) struct Profiling {
    profiler: Option<(Profiler, ProfileConfig)>,
}

impl Profiling {
    pub(crate) fn start(config: Option<ProfileConfig>, listener: &dyn Listener) -> Self {
        let started = config.map(|config| (Profiler::start(config), config));
        let profiler = started.and_then(|(profiler, config)| match profiler {
            Ok(profiler) => Some((profiler, config)),
            Err(error) => {
                listener.on(&Event::Warning { message: error.to_string() });
                None
            }
        });
        Self { profiler }
    }

    /// Writes the timeline and returns the table, if a step was profiled. `trained_before` says
    /// whether the training was there already.
    pub(crate) fn end(
        self,
        folder: &RunFolder,
        trained_before: bool,
        listener: &dyn Listener,
    ) -> Option<Table> {
        let (profiler, ProfileConfig { warmup, active }) = self.profiler?;
        let profile = profiler.profile();
        if profile.steps == 0 {
            let message = if trained_before {
                "nothing was profiled: the training is there and was reused, so no step was taken\n  \
                 train anew (another seed, another folder)"
                    .to_owned()
            } else {
                format!(
                    "nothing was profiled: this run took no more than the {warmup} steps before the profiled ones\n  \
                     lower warmup in --profile warmup={warmup},active={active}, or train anew (another seed, another folder)"
                )
            };
            listener.on(&Event::Warning { message });
            return None;
        }
        // The run is worth more than its timeline.
        if let Err(error) = folder.write(TRACE, profile.trace().as_bytes()) {
            let message = format!("{error}; there is no timeline of the profile, only its table");
            listener.on(&Event::Warning { message });
        }
        Some(rows(&profile, warmup))
    }
}

fn rows(profile: &Profile, warmup: u64) -> Table {
    let totals = profile.totals();
    let all: f64 = totals.iter().filter(|total| !total.beside).map(|total| total.own_ms).sum();
    let rows = totals
        .iter()
        .map(|total| {
            let share = match total.beside {
                true => "–".to_owned(),
                false => format!("{:.1} %", 100.0 * total.own_ms / all.max(f64::MIN_POSITIVE)),
            };
            let name = match total.name.as_str() {
                "step" => "step, the rest of it".to_owned(),
                name if total.beside => format!("{name} (in another thread)"),
                name => name.to_owned(),
            };
            let milliseconds = |value: f64| format!("{value:.3} ms");
            let own = total.own_ms / total.count as f64;
            let times = [own, total.total_ms / total.count as f64, total.longest_ms];
            let [own, mean, longest] = times.map(milliseconds);
            vec![name, total.count.to_string(), share, own, mean, longest]
        })
        .collect();
    let left_out = match profile.left_out {
        0 => String::new(),
        count => format!(" {count} spans are left out: there were too many."),
    };
    let note = format!(
        "{} steps after the first {warmup}, as the host saw them; the timeline is in {TRACE}, which Perfetto and Chromium's tracing page open. On a GPU, forward and backward are the time to ask for the work, and reading back waits for it. Own time is without the spans within.{left_out}",
        profile.steps
    );
    let columns = ["span", "count", "share of the time", "own", "mean", "longest"];
    table("Profile", note, &columns, rows)
}
