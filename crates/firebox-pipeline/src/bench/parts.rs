//! Where the time of a training step goes: forward, backward, and what the trainer adds to them, by the loop's own
//! spans. It tells what the aims of R1's step say of it.
//!
//! A step here is all from its begin to that of the next: what the loop does between two is no forward pass either.

use std::fmt;
use std::sync::Arc;

use firebox_monitor::{DeviceTimer, Profile, ProfileConfig, Profiler, Span};
use serde::{Deserialize, Serialize};

use super::config::BenchConfig;
use crate::error::PipelineError;

/// Shares of R1's step at a batch of 512 that the project allows: everything but forward and backward, and of it the
/// optimizer with clipping and zeroing.
pub const ADDED_AIM: f64 = 0.01;
/// See [`ADDED_AIM`].
pub const UPDATE_AIM: f64 = 0.02;

/// The parts of a step, means over steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepParts {
    /// Steps that they are means over.
    pub steps: u64,
    /// Milliseconds of a step, to the begin of the next one.
    pub whole_ms: f64,
    /// Of it in the forward pass and the loss.
    pub forward_ms: f64,
    /// Of it in the backward pass.
    pub backward_ms: f64,
    /// Of it waiting for a batch.
    pub waiting_ms: f64,
    /// Of it in reading the loss and the norm of the gradients, which clipping needs.
    pub read_back_ms: f64,
    /// Of it in the optimizer, which clips as it updates.
    pub optimizer_ms: f64,
    /// Share of a step that is neither forward nor backward.
    pub added: Share,
    /// Share of it in optimizer, clipping and zeroing at most: all that is added but the waiting. Gradients are
    /// not zeroed but given back, which has no span of its own.
    pub update: Share,
}

/// A share of a step with its standard error.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// Mean over steps.
    pub mean: f64,
    /// Standard error of the mean; NaN of fewer than two steps.
    #[serde(default = "unknown", deserialize_with = "number_or_unknown")]
    pub error: f64,
}

fn unknown() -> f64 {
    f64::NAN
}

/// JSON has no NaN: it is written as `null`.
fn number_or_unknown<'de, D: serde::Deserializer<'de>>(reader: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(reader)?.unwrap_or(f64::NAN))
}

/// Whether a share stays below an aim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// By two standard errors.
    Met,
    /// It is above by two standard errors.
    Missed,
    /// The aim lies within two standard errors.
    NotDecided,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Met => "met",
            Self::Missed => "missed",
            Self::NotDecided => "not decided",
        })
    }
}

impl Share {
    /// Of some figures, each of a step or of a round.
    pub fn of(figures: &[f64]) -> Self {
        let count = figures.len() as f64;
        let mean = figures.iter().sum::<f64>() / count;
        let squares: f64 = figures.iter().map(|figure| (figure - mean).powi(2)).sum();
        // 0/0 for a single one: nothing is known of its error.
        Self { mean, error: (squares / (count - 1.0) / count).sqrt() }
    }

    /// Whether it is below an aim.
    pub fn below(&self, aim: f64) -> Verdict {
        match self {
            Self { mean, error } if mean + 2.0 * error < aim => Verdict::Met,
            Self { mean, error } if mean - 2.0 * error >= aim => Verdict::Missed,
            _ => Verdict::NotDecided,
        }
    }
}

/// `0.64 ± 0.03 %`.
impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mean, error } = *self;
        match error.is_finite() {
            true => write!(f, "{:.2} ± {:.2} %", 100.0 * mean, 100.0 * error),
            false => write!(f, "{:.2} %", 100.0 * mean),
        }
    }
}

/// Does training whose steps are taken apart, if that is asked for.
pub(super) fn apart<T>(
    config: &BenchConfig,
    work: impl FnOnce() -> Result<T, PipelineError>,
) -> Result<(T, Option<StepParts>), PipelineError> {
    if !config.parts {
        return Ok((work()?, None));
    }
    let (done, profile) = profiled(config, None, work)?;
    match StepParts::of(&profile) {
        Some(parts) => Ok((done, Some(parts))),
        None => Err(PipelineError::Setting(
            "the parts of a step cannot be told: no two whole steps were recorded\n  take more with --steps".to_owned(),
        )),
    }
}

/// Does training whose timed steps are profiled.
pub(super) fn profiled<T>(
    config: &BenchConfig,
    timer: Option<Arc<dyn DeviceTimer>>,
    work: impl FnOnce() -> Result<T, PipelineError>,
) -> Result<(T, Profile), PipelineError> {
    let BenchConfig { warmup, steps: active, .. } = *config;
    let profiler = Profiler::start(ProfileConfig { warmup, active }, timer)
        .map_err(|error| PipelineError::Setting(error.to_string()))?;
    Ok((work()?, profiler.profile()))
}

impl StepParts {
    /// From the spans of the training loop; `None` of fewer than two steps, whose ends are not known.
    fn of(profile: &Profile) -> Option<Self> {
        let own = |name: &str| {
            let found = profile.spans.iter().filter(|span| span.name == name && !span.on_device);
            let mut found: Vec<&Span> = found.collect();
            found.sort_by(|a, b| a.start_us.total_cmp(&b.start_us));
            found
        };
        let begun = own("step");
        let thread = begun.first()?.thread;
        let steps: Vec<[f64; 2]> =
            begun.windows(2).map(|pair| [pair[0].start_us, pair[1].start_us]).collect();
        if steps.is_empty() {
            return None;
        }
        // Milliseconds of each step that spans of a name take, of which it may have several.
        let each = |name: &str| -> Vec<f64> {
            let spans = own(name);
            let within = |[from, to]: &[f64; 2]| {
                let inside = spans
                    .iter()
                    .filter(|span| span.thread == thread && (*from..*to).contains(&span.start_us));
                inside.map(|span| span.duration_us).sum::<f64>() / 1e3
            };
            steps.iter().map(within).collect()
        };
        let names = ["forward", "backward", "wait for data", "read back", "optimizer"];
        let [forward, backward, waiting, read_back, optimizer] = names.map(each);
        let whole: Vec<f64> = steps.iter().map(|[from, to]| (to - from) / 1e3).collect();
        let share = |of: &dyn Fn(usize) -> f64| {
            Share::of(&(0..whole.len()).map(|step| of(step) / whole[step]).collect::<Vec<_>>())
        };
        let added = |step: usize| whole[step] - forward[step] - backward[step];
        let mean = |times: &[f64]| times.iter().sum::<f64>() / times.len() as f64;
        Some(Self {
            steps: whole.len() as u64,
            whole_ms: mean(&whole),
            forward_ms: mean(&forward),
            backward_ms: mean(&backward),
            waiting_ms: mean(&waiting),
            read_back_ms: mean(&read_back),
            optimizer_ms: mean(&optimizer),
            added: share(&added),
            update: share(&|step| added(step) - waiting[step]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(name: &'static str, thread: u64, start_us: f64, duration_us: f64) -> Span {
        Span {
            name: name.into(),
            fields: vec![],
            thread,
            thread_name: String::new(),
            on_device: false,
            start_us,
            duration_us,
        }
    }

    /// A step of 1,000 µs after 100 µs that lie between two, of which this part is the optimizer's.
    fn step(number: f64, optimizer: f64) -> Vec<Span> {
        let at = 1100.0 * number;
        vec![
            span("wait for data", 1, at, 20.0),
            span("forward", 1, at + 20.0, 300.0),
            // Its second part.
            span("forward", 1, at + 320.0, 100.0),
            span("backward", 1, at + 420.0, 400.0),
            span("read back", 1, at + 820.0, 10.0),
            span("optimizer", 1, at + 830.0, optimizer),
            // Another thread's are not the loop's.
            span("forward", 2, at + 100.0, 900.0),
            span("step", 1, at, 1000.0),
        ]
    }

    #[test]
    fn a_step_is_taken_apart_up_to_the_begin_of_the_next() {
        let spans = [step(0.0, 100.0), step(1.0, 120.0), step(2.0, 900.0)].concat();
        let parts = StepParts::of(&Profile { steps: 3, spans, ..Profile::default() }).unwrap();
        let near = |found: f64, expected: f64| {
            assert!((found - expected).abs() < 1e-12, "{found} {expected}");
        };
        // The last step has no end.
        assert_eq!(parts.steps, 2);
        near(parts.whole_ms, 1.1);
        near(parts.forward_ms, 0.4);
        near(parts.backward_ms, 0.4);
        near(parts.waiting_ms, 0.02);
        near(parts.read_back_ms, 0.01);
        near(parts.optimizer_ms, 0.11);
        // 300 of 1,100 µs, and without the waiting 280.
        near(parts.added.mean, 300.0 / 1100.0);
        near(parts.update.mean, 280.0 / 1100.0);
        near(parts.added.error, 0.0);
        assert_eq!(StepParts::of(&Profile { spans: step(0.0, 1.0), ..Profile::default() }), None);
        assert_eq!(StepParts::of(&Profile::default()), None);
    }

    #[test]
    fn an_aim_is_met_or_missed_by_two_standard_errors() {
        // Squares of 14/3 in all, over 2 and over 3.
        let share = Share::of(&[1.0, 2.0, 4.0]);
        assert!((share.mean - 7.0 / 3.0).abs() < 1e-12);
        assert!((share.error - 0.881_917_103_688_197).abs() < 1e-12, "{share:?}");
        let verdict = |mean, error| Share { mean, error }.below(0.01);
        assert_eq!(verdict(0.0064, 0.0003), Verdict::Met);
        assert_eq!(verdict(0.0064, 0.002), Verdict::NotDecided);
        assert_eq!(verdict(0.012, 0.002), Verdict::NotDecided);
        assert_eq!(verdict(0.02, 0.002), Verdict::Missed);
        // Of one figure nothing is known.
        assert_eq!(Share::of(&[0.001]).below(0.01), Verdict::NotDecided);
        assert_eq!(Share { mean: 0.0064, error: 0.0003 }.to_string(), "0.64 ± 0.03 %");
        assert_eq!(Share::of(&[0.001]).to_string(), "0.10 %");
        let text = serde_json::to_string(&Share::of(&[0.001])).unwrap();
        let read: Share = serde_json::from_str(&text).unwrap();
        assert!(read.mean == 0.001 && read.error.is_nan(), "{text}");
    }
}
