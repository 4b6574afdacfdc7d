//! How long a step of each model takes in each precision, and what memory.

use std::time::{Duration, Instant};

use firebox_core::{Precision, Silent};
use firebox_train::memory;
use serde::Serialize;

use super::{Allowance, DoctorConfig, bench};
use crate::bench::{Workload, measure};
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::precision::{Abilities, Support};

/// Steps that are timed where the time allows it, as in R5's check.
const STEPS: u64 = 50;
/// Steps that are timed whatever time they take.
const LEAST: u64 = 3;

/// Times of a model in a precision.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timed {
    /// The model with its sizes.
    pub workload: String,
    /// The precision.
    pub precision: Precision,
    /// Whether it is emulated on this device.
    pub emulated: bool,
    /// Samples of a batch.
    pub batch: usize,
    /// Steps timed.
    pub steps: usize,
    /// The first step of all, which is not among the timed ones where there are more: kernels are
    /// compiled and tuned in it, and memory is first used; milliseconds.
    pub first_ms: f64,
    /// Median time of a step, milliseconds.
    pub median_ms: f64,
    /// The first and the third quartile.
    pub quartiles_ms: [f64; 2],
    /// Part of a step that waits for data, 0 to 1.
    pub wait: f64,
    /// The most memory that training held beyond what the process had held before, MiB; `None` if
    /// nobody counts.
    pub peak_mib: Option<f64>,
    /// Median step in f32 over this one.
    pub speed_up: f64,
}

impl Default for Timed {
    fn default() -> Self {
        Self {
            workload: String::new(),
            precision: Precision::F32,
            emulated: false,
            batch: 0,
            steps: 0,
            first_ms: f64::NAN,
            median_ms: f64::NAN,
            quartiles_ms: [f64::NAN; 2],
            wait: 0.0,
            peak_mib: None,
            speed_up: f64::NAN,
        }
    }
}

/// Times a model in each precision, f32 first.
pub(super) fn time(
    workload: Workload,
    precisions: &[Precision],
    abilities: &Abilities,
    config: DoctorConfig,
    device: &ChosenDevice,
    time: &mut Allowance,
    tell: &dyn Fn(&str),
) -> Result<Vec<Timed>, PipelineError> {
    let mut all: Vec<Timed> = vec![];
    for precision in precisions {
        tell(&format!("timing {} in {precision}", workload.name()));
        let emulated = matches!(abilities.support(*precision), Support::Emulated(_));
        // Nobody trains in an emulated f16: one step tells how slow it is.
        let few = config.quick && emulated && *precision == Precision::F16;
        let allowed = if few { None } else { Some(time.next()) };
        let sample = match one(workload, *precision, allowed, device) {
            Err(PipelineError::Train(error)) if *precision != Precision::F32 => {
                tell(&format!("{} does not train in {precision}: {error}", workload.name()));
                continue;
            }
            sample => sample?,
        };
        let base = all.first().map_or(sample.median_ms, |first| first.median_ms);
        all.push(Timed { speed_up: base / sample.median_ms, emulated, ..sample });
    }
    Ok(all)
}

/// Times a model within about this time, or one step of it.
fn one(
    workload: Workload,
    precision: Precision,
    allowed: Option<Duration>,
    device: &ChosenDevice,
) -> Result<Timed, PipelineError> {
    let batch = workload.default_batch();
    let begun = Instant::now();
    let (held, peak) = start_of_peak();
    // What the program holds is no memory of a GPU.
    let mut peak = peak.filter(|_| device.backend == "cpu");
    let mut measured = measure(&bench(workload, precision, 1, 0), device, &Silent)?;
    let first = Duration::from_secs_f64(measured.times[0] / 1e3);
    if let Some(allowed) = allowed {
        // Making the model and the noise takes its time anew; the first step of all is a cold one.
        let again = begun.elapsed().saturating_sub(first);
        let left = allowed.saturating_sub(begun.elapsed() + again);
        let steps = (left.as_secs_f64() / first.as_secs_f64()) as u64;
        let config = bench(workload, precision, steps.clamp(LEAST + 1, STEPS + 1) - 1, 1);
        measured = measure(&config, device, &Silent)?;
    }
    if let Some(value) = &mut peak {
        *value = memory::peak().unwrap_or(held).saturating_sub(held);
    }
    let waited: f64 = measured.waits.iter().sum();
    let all: f64 = measured.times.iter().sum();
    let mut sorted = measured.times;
    sorted.sort_by(f64::total_cmp);
    let at = |share: f64| sorted[((sorted.len() - 1) as f64 * share).round() as usize];
    Ok(Timed {
        workload: workload.name().to_owned(),
        precision,
        batch,
        steps: sorted.len(),
        first_ms: first.as_secs_f64() * 1e3,
        median_ms: sorted[sorted.len() / 2],
        quartiles_ms: [at(0.25), at(0.75)],
        wait: waited / all,
        peak_mib: peak.map(|bytes| bytes as f64 / f64::from(1 << 20)),
        ..Timed::default()
    })
}

/// Bytes held now, from which on a peak is looked for; and where it goes, if anyone counts.
pub(super) fn start_of_peak() -> (u64, Option<u64>) {
    firebox_kernels::release_buffers();
    memory::reset_peak();
    match memory::held() {
        Some(held) => (held, Some(0)),
        None => (0, None),
    }
}
