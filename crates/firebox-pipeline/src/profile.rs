//! The profile of a run: its timeline beside the run, and its table in the report.

use firebox_core::{Event, Listener, Precision};
use firebox_eval::Table;
use firebox_monitor::{Profile, ProfileConfig, Profiler, SpanTotal};

use crate::bench::Ceilings;
use crate::device::ChosenDevice;
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
        device: &ChosenDevice,
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
        Some(rows(&profile, warmup, &Ceilings::measure(device)))
    }
}

fn rows(profile: &Profile, warmup: u64, ceilings: &Ceilings) -> Table {
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
            let mut row = vec![name, total.count.to_string(), share, own, mean, longest];
            row.push(total.shape.clone());
            row.extend(rates(total, ceilings));
            row
        })
        .collect();
    let columns = [
        "span",
        "count",
        "share of the time",
        "own",
        "mean",
        "longest",
        "shape",
        "GFLOP/s",
        "GB/s",
    ];
    table("Profile", note(profile, warmup, ceilings), &columns, rows)
}

/// What a kernel reached of the device, each rate beside the share of its ceiling.
fn rates(total: &SpanTotal, ceilings: &Ceilings) -> [String; 2] {
    let rate = |work: f64, ceiling: f64| match work > 0.0 && total.total_ms > 0.0 {
        true => {
            let rate = work / (total.total_ms / 1e3);
            format!("{:.1} ({:.0} %)", rate / 1e9, 100.0 * rate / ceiling)
        }
        false => "–".to_owned(),
    };
    let precision = if total.bf16 { Precision::Bf16 } else { Precision::F32 };
    [rate(total.operations, ceilings.flops(precision)), rate(total.bytes, ceilings.memory_bytes)]
}

/// What holds for all rows.
fn note(profile: &Profile, warmup: u64, ceilings: &Ceilings) -> String {
    let left_out = match profile.left_out {
        0 => String::new(),
        count => format!(" {count} spans are left out: there were too many."),
    };
    let steps = profile.steps.max(1) as f64;
    let allocations = profile.allocations.map_or(String::new(), |(count, bytes)| {
        let (count, bytes) = (count as f64 / steps, bytes as f64 / steps / 1e6);
        format!("; memory was taken {count:.0} times a step, {bytes:.1} MB in all")
    });
    format!(
        "{} steps after the first {warmup}, as the host saw them; the timeline is in {TRACE}, which Perfetto and Chromium's tracing page open. A step launched {:.1} kernels and waited for the device {:.1} times{allocations}. Rates are of the work that a kernel cannot do without, beside the measured ceilings ({:.0} GFLOP/s in f32, {:.0} in bf16, {:.0} GB/s). On a GPU, forward and backward are the time to ask for the work, reading back waits for it, and kernels are not told apart. Own time is without the spans within.{left_out}",
        profile.steps,
        profile.launches() as f64 / steps,
        profile.synchronisations() as f64 / steps,
        ceilings.f32_flops / 1e9,
        ceilings.flops(Precision::Bf16) / 1e9,
        ceilings.memory_bytes / 1e9,
    )
}
