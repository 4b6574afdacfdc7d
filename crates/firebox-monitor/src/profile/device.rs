//! Kernels of a device on the timeline of the host: who measures them is told when the profiled steps
//! begin and end, and what it returns is laid beside the host's spans. How a device is asked is not
//! known here.

use std::borrow::Cow;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use super::Span;

/// Measures the kernels of a device while steps are profiled.
///
/// It is called by the thread that trains, between two steps.
pub trait DeviceTimer: Debug + Send + Sync {
    /// The profiled steps begin.
    fn begin(&self);

    /// They are over, or nobody wants them any more: measuring ends. Returns what was launched since
    /// [`begin`](Self::begin), in the order of the launches.
    fn end(&self) -> Vec<DeviceKernel>;
}

/// A kernel that was launched on a device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceKernel {
    /// Its name.
    pub name: String,
    /// More about it: `shape`, `operations`, `bytes` and `bf16` have their columns in the table.
    pub fields: Vec<(&'static str, String)>,
    /// When the host launched it.
    pub launched: Instant,
    /// When it ran; `None` where that could not be measured.
    pub ran: Option<Ran>,
}

/// When a kernel ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Since any moment that is the same for all kernels: the clock of a device begins where it likes.
    pub begin: Duration,
    /// How long.
    pub duration: Duration,
    /// Measured by the device itself, and not by a host that waited for it.
    pub by_device: bool,
}

/// The kernels as spans after the moment `begun` of the host.
///
/// The device's clock is laid over the host's so that no kernel begins before its launch, and at least
/// one begins with it. Kernels that overlap are on different lanes.
pub(super) fn laid_over(kernels: &[DeviceKernel], begun: Instant) -> Vec<Span> {
    let launched = |kernel: &DeviceKernel| {
        let after = kernel.launched.saturating_duration_since(begun).as_secs_f64();
        let before = begun.saturating_duration_since(kernel.launched).as_secs_f64();
        1e6 * (after - before)
    };
    let micro = |duration: Duration| duration.as_secs_f64() * 1e6;
    // A clock that began long ago leaves no digits for a begin: times are taken from the first one.
    let first = kernels.iter().filter_map(|kernel| Some(kernel.ran?.begin)).min();
    let Some(first) = first else { return vec![] };
    let measured = || kernels.iter().filter_map(|kernel| Some((kernel, kernel.ran?)));
    let begin = |ran: Ran| micro(ran.begin.saturating_sub(first));
    let shift =
        measured().map(|(kernel, ran)| launched(kernel) - begin(ran)).fold(f64::MIN, f64::max);
    let mut spans: Vec<Span> = measured()
        .map(|(kernel, ran)| Span {
            name: Cow::Owned(kernel.name.clone()),
            fields: kernel.fields.clone(),
            thread: 0,
            thread_name: String::new(),
            on_device: true,
            start_us: begin(ran) + shift,
            duration_us: micro(ran.duration),
        })
        .collect();
    spans.sort_by(|a, b| a.start_us.total_cmp(&b.start_us));
    let mut lanes: Vec<f64> = vec![];
    for span in &mut spans {
        // Times are rounded to nanoseconds.
        let free = lanes.iter().position(|end| *end <= span.start_us + 1e-3);
        let lane = free.unwrap_or(lanes.len());
        let end = span.start_us + span.duration_us;
        match lanes.get_mut(lane) {
            Some(known) => *known = end,
            None => lanes.push(end),
        }
        span.thread = lane as u64 + 1;
        span.thread_name = format!("kernels {}", lane + 1);
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(launched: Instant, ran: Option<(u64, u64)>) -> DeviceKernel {
        let ran = ran.map(|(begin, duration)| Ran {
            begin: Duration::from_micros(begin),
            duration: Duration::from_micros(duration),
            by_device: true,
        });
        DeviceKernel { name: "k".to_owned(), fields: vec![], launched, ran }
    }

    #[test]
    fn kernels_begin_with_their_launch_or_later_whatever_the_clock_of_the_device_says() {
        let begun = Instant::now();
        let at = |micros: u64| begun + Duration::from_micros(micros);
        // The device's clock is a day ahead; the second kernel waited for the first.
        let day = 86_400_000_000;
        let kernels = [
            kernel(at(100), Some((day + 7000, 50))),
            kernel(at(110), Some((day + 7050, 30))),
            kernel(at(115), None),
            kernel(at(120), Some((day + 7060, 5))),
        ];
        let spans = laid_over(&kernels, begun);
        let found: Vec<(u64, u64, u64)> = spans
            .iter()
            .map(|span| {
                (span.start_us.round() as u64, span.duration_us.round() as u64, span.thread)
            })
            .collect();
        // The third overlaps the second and has a lane of its own.
        assert_eq!(found, [(100, 50, 1), (150, 30, 1), (160, 5, 2)]);
        assert!(spans.iter().all(|span| span.on_device));
        assert_eq!(laid_over(&kernels[2..3], begun), []);
        assert_eq!(laid_over(&[], begun), []);
    }
}
