//! The profile of a run: its timeline beside the run, and its table in the report. In builds for GPUs,
//! the kernels of the device are measured too.

use std::sync::Arc;

use firebox_core::{Event, Listener, Precision};
use firebox_eval::Table;
use firebox_monitor::{DeviceTimer, Place, Profile, ProfileConfig, Profiler, SpanTotal};

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
        let started = config.map(|config| (Profiler::start(config, device_timer()), config));
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

/// What measures the kernels of a device.
#[cfg(feature = "gpu")]
pub(crate) fn device_timer() -> Option<Arc<dyn DeviceTimer>> {
    Some(Arc::new(gpu::Timer::default()))
}

/// Without a backend for GPUs, kernels run in the host's spans.
#[cfg(not(feature = "gpu"))]
pub(crate) fn device_timer() -> Option<Arc<dyn DeviceTimer>> {
    None
}

#[cfg(feature = "gpu")]
mod gpu {
    //! Carries what firebox-kernels sees of the device to firebox-monitor, which knows no devices.

    use std::sync::{Mutex, PoisonError};

    use firebox_kernels::{LaunchWatch, Launched};
    use firebox_monitor::{DeviceKernel, DeviceTimer, Ran};

    #[derive(Debug, Default)]
    pub(super) struct Timer(Mutex<Option<LaunchWatch>>);

    impl DeviceTimer for Timer {
        fn begin(&self) {
            let watch = Some(LaunchWatch::start());
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = watch;
        }

        fn end(&self) -> Vec<DeviceKernel> {
            let watch = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
            watch.map_or(vec![], |watch| watch.end().into_iter().map(kernel).collect())
        }
    }

    fn kernel(launched: Launched) -> DeviceKernel {
        let Launched { mut name, work, at, ran } = launched;
        let mut fields = vec![];
        if let Some(work) = work {
            fields = vec![
                ("kernel", std::mem::replace(&mut name, work.name.to_owned())),
                ("shape", format!("{:?}", work.shape)),
                ("operations", work.operations.to_string()),
                ("bytes", work.bytes.to_string()),
                ("bf16", work.bf16.to_string()),
            ];
        }
        let ran = ran.map(|ran| Ran {
            begin: ran.begin,
            duration: ran.duration,
            by_device: ran.by_device,
        });
        DeviceKernel { name, fields, launched: at, ran }
    }
}

/// Milliseconds of the training loop in the profiled steps.
fn loop_ms(totals: &[SpanTotal]) -> f64 {
    let all: f64 = totals.iter().filter(|t| t.place == Place::Loop).map(|t| t.own_ms).sum();
    all.max(f64::MIN_POSITIVE)
}

fn rows(profile: &Profile, warmup: u64, ceilings: &Ceilings) -> Table {
    let totals = profile.totals();
    let all = loop_ms(&totals);
    let rows = totals
        .iter()
        .map(|total| {
            let share = match total.place {
                Place::Beside => "–".to_owned(),
                Place::Loop | Place::Device => format!("{:.1} %", 100.0 * total.own_ms / all),
            };
            let name = match (total.name.as_str(), total.place) {
                ("step", Place::Loop) => "step, the rest of it".to_owned(),
                (name, Place::Loop) => name.to_owned(),
                (name, Place::Device) => format!("{name} (on the device)"),
                (name, Place::Beside) => format!("{name} (in another thread)"),
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
    table("Profile", note(profile, all, warmup, ceilings), &columns, rows)
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

/// What holds for all rows, of which those of the training loop took `all_ms`.
fn note(profile: &Profile, all_ms: f64, warmup: u64, ceilings: &Ceilings) -> String {
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
        "{} steps after the first {warmup}, as the host saw them; the timeline is in {TRACE}, which Perfetto and Chromium's tracing page open. A step launched {:.1} kernels and waited for the device {:.1} times{allocations}. Rates are of the work that a kernel cannot do without, beside the measured ceilings ({:.0} GFLOP/s in f32, {:.0} in bf16, {:.0} GB/s). Own time is without the spans within.{}{left_out}",
        profile.steps,
        profile.launches() as f64 / steps,
        profile.synchronisations() as f64 / steps,
        ceilings.f32_flops / 1e9,
        ceilings.flops(Precision::Bf16) / 1e9,
        ceilings.memory_bytes / 1e9,
        on_device(profile, all_ms),
    )
}

/// What is to be known of the kernels of a device, if there are any.
fn on_device(profile: &Profile, all_ms: f64) -> String {
    let lost = match profile.unmeasured {
        0 => String::new(),
        count => format!(" {count} launches could not be measured and are only counted."),
    };
    let by_host = match profile.by_host {
        0 => String::new(),
        count => format!(
            " {count} of them were timed by the host, one at a time, because the device keeps no times: they contain the launch and the wait."
        ),
    };
    let Some(busy) = profile.device_busy_ms() else { return lost };
    format!(
        " Kernels on the device are measured by it, whoever launched them, and were running {:.1} % of the time; forward, backward and optimizer are there only the time to ask for the work, and reading back waits for it. Measuring costs each launch a round trip, so profiled steps are longer than others. Shapes and work are known of Firebox's own kernels, those of Burn and fused ones have names. The device's clock is laid over the host's so that no kernel begins before its launch.{by_host}{lost}",
        100.0 * busy / all_ms,
    )
}

#[cfg(test)]
mod tests {
    use firebox_monitor::Span;

    use super::*;

    #[test]
    fn kernels_of_a_device_have_their_rows_and_their_share_of_the_loop() {
        let span = |name: &'static str, on_device, start_us, duration_us| Span {
            name: name.into(),
            fields: vec![],
            thread: 1,
            thread_name: "main".to_owned(),
            on_device,
            start_us,
            duration_us,
        };
        let work = |mut span: Span| {
            let fields = [("shape", "[2, 8]"), ("operations", "5e8"), ("bytes", "1e6")];
            span.fields = fields.map(|(name, value)| (name, value.to_owned())).to_vec();
            span
        };
        let spans = vec![
            span("forward", false, 0.0, 2000.0),
            span("step", false, 0.0, 10_000.0),
            work(span("recurrent layer", true, 500.0, 1000.0)),
            span("Fused", true, 3000.0, 3000.0),
        ];
        let profile = Profile { steps: 1, spans, launched: 4, unmeasured: 2, ..Profile::default() };
        let ceilings =
            Ceilings { f32_flops: 1e12, bf16_flops: None, f16_flops: None, memory_bytes: 10e9 };
        let text = format!("{:?}", rows(&profile, 5, &ceilings));
        for expected in [
            "A step launched 4.0 kernels",
            "running 40.0 % of the time",
            "2 launches could not be measured",
            "\"Fused (on the device)\", \"1\", \"30.0 %\"",
            "\"500.0 (50 %)\", \"1.0 (10 %)\"",
        ] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
        let host = Profile { spans: profile.spans[..2].to_vec(), unmeasured: 0, ..profile };
        assert!(!format!("{:?}", rows(&host, 5, &ceilings)).contains("on the device"));
    }
}
