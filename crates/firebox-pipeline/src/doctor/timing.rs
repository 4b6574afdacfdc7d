//! How long a step of each model takes in each precision, and what memory.

use std::time::{Duration, Instant};

use firebox_core::Precision;
use firebox_train::{TrainError, memory};
use serde::Serialize;

use super::{Allowance, DoctorCase, DoctorConfig};
use crate::bench::GPU_WARMUP;
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
    /// Whether it is of a small size, beside the reference workloads: then it has no part in means, and in what follows
    /// from times.
    pub small: bool,
    /// The precision.
    pub precision: Precision,
    /// Whether it is emulated on this device.
    pub emulated: bool,
    /// Samples of a batch.
    pub batch: usize,
    /// Steps timed.
    pub steps: usize,
    /// Steps before them, at least.
    #[serde(skip)]
    pub warmup: u64,
    /// The first step of all, which is not among the timed ones: kernels are compiled and tuned in it, and memory is
    /// first used; milliseconds.
    pub first_ms: f64,
    /// Median time of a step, milliseconds.
    pub median_ms: f64,
    /// The first and the third quartile.
    pub quartiles_ms: [f64; 2],
    /// Part of a step that waits for data, 0 to 1.
    pub wait: f64,
    /// The most memory that training took, MiB; `None` if nobody counts. On a processor what it held beyond what the
    /// process had held before; on another device what its allocator had to reserve beyond what it had before.
    pub peak_mib: Option<f64>,
    /// Median step in f32 over this one.
    pub speed_up: f64,
}

impl Default for Timed {
    fn default() -> Self {
        Self {
            workload: String::new(),
            small: false,
            precision: Precision::F32,
            emulated: false,
            batch: 0,
            steps: 0,
            warmup: 1,
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
    case: DoctorCase,
    precisions: &[Precision],
    abilities: &Abilities,
    config: DoctorConfig,
    device: &ChosenDevice,
    time: &mut Allowance,
    tell: &dyn Fn(&str),
) -> Result<Vec<Timed>, PipelineError> {
    let mut all: Vec<Timed> = vec![];
    for precision in precisions {
        tell(&format!("timing {} in {precision}", case.name()));
        let emulated = matches!(abilities.support(*precision), Support::Emulated(_));
        // Nobody trains in an emulated f16: one step after the first tells how slow it is.
        let few = config.quick && emulated && *precision == Precision::F16;
        let allowed = if few { None } else { Some(time.next()) };
        let sample = match one(case, *precision, allowed, device) {
            Err(PipelineError::Train(error)) if *precision != Precision::F32 => {
                tell(&format!("{} does not train in {precision}: {error}", case.name()));
                continue;
            }
            sample => sample?,
        };
        let base = all.first().map_or(sample.median_ms, |first| first.median_ms);
        let small = case.is_small() && config.only.is_none();
        all.push(Timed { speed_up: base / sample.median_ms, small, emulated, ..sample });
    }
    Ok(all)
}

/// Steps in which a loss scale that begins at 65,536 has come down to one.
const HALVINGS: u64 = 16;

/// Steps that are not timed and that are, of so many milliseconds each, of which there is time for `left`; of `usual` ones
/// before the timed ones as many as take no longer than all that is allowed.
fn divided(usual: u64, [left, allowed]: [Duration; 2], milliseconds: f64) -> [u64; 2] {
    let fit = |time: Duration| (time.as_secs_f64() * 1e3 / milliseconds) as u64;
    let warmup = fit(allowed).clamp(1, usual);
    [warmup, fit(left).saturating_sub(warmup).clamp(LEAST, STEPS)]
}

/// Times a model within about this time, or one step of it after the first.
fn one(
    case: DoctorCase,
    precision: Precision,
    allowed: Option<Duration>,
    device: &ChosenDevice,
) -> Result<Timed, PipelineError> {
    let begun = Instant::now();
    let before = start_of_peak(device);
    let on_gpu = device.backend != "cpu";
    // On a processor the first step is not much longer than the others, and tells how many of them there is time for.
    let mut warmup = u64::from(on_gpu || allowed.is_none());
    let mut measured = match case.measure(&case.steps(precision, 1, warmup), device) {
        // The loss scale has to come down first.
        Err(PipelineError::Train(TrainError::Overflowed { .. })) => {
            case.measure(&case.steps(precision, 1, HALVINGS), device)?
        }
        measured => measured?,
    };
    let first = Duration::from_secs_f64(measured.first / 1e3);
    if let Some(allowed) = allowed {
        // Making the model and the noise takes its time anew; the first step of all is a cold one.
        let again = begun.elapsed().saturating_sub(first);
        let left = allowed.saturating_sub(begun.elapsed() + again);
        let usual = if on_gpu { GPU_WARMUP } else { 1 };
        let [untimed, steps] = divided(usual, [left, allowed], measured.times[0]);
        warmup = untimed;
        measured = case.measure(&case.steps(precision, steps, warmup), device)?;
    }
    let peak = before.and_then(|before| Some(most_held(device)?.saturating_sub(before)));
    let waited: f64 = measured.waits.iter().sum();
    let all: f64 = measured.times.iter().sum();
    let mut sorted = measured.times;
    sorted.sort_by(f64::total_cmp);
    let at = |share: f64| sorted[((sorted.len() - 1) as f64 * share).round() as usize];
    Ok(Timed {
        workload: case.name().to_owned(),
        precision,
        batch: case.default_batch(),
        steps: sorted.len(),
        warmup,
        first_ms: first.as_secs_f64() * 1e3,
        median_ms: sorted[sorted.len() / 2],
        quartiles_ms: [at(0.25), at(0.75)],
        wait: waited / all,
        peak_mib: peak.map(|bytes| bytes as f64 / f64::from(1 << 20)),
        ..Timed::default()
    })
}

/// Bytes held now, from which on a peak is looked for; `None` if nobody counts them.
fn start_of_peak(device: &ChosenDevice) -> Option<u64> {
    if device.backend != "cpu" {
        // Pages that earlier steps left would not be counted for these.
        device.device.memory_cleanup();
        return device.reserved();
    }
    firebox_kernels::release_buffers();
    memory::reset_peak();
    memory::held()
}

/// The most bytes that were held at once since then.
fn most_held(device: &ChosenDevice) -> Option<u64> {
    // What the program holds is no memory of a GPU.
    if device.backend == "cpu" { memory::peak() } else { device.reserved() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_of_a_small_model_is_timed() {
        let case = "patch-transformer".parse().unwrap();
        let timed = one(case, Precision::F32, None, &ChosenDevice::named("cpu")).unwrap();
        assert_eq!((timed.workload.as_str(), timed.batch), ("patch-transformer", 32));
        assert!(timed.median_ms > 0.0 && timed.steps == 1, "{timed:?}");
        // The table says that the first step is not among the timed ones, also where there is one alone.
        assert!(timed.first_ms > 0.0 && timed.first_ms != timed.median_ms, "{timed:?}");
        // Without time for more, three steps after one.
        let allowed = Some(Duration::ZERO);
        let timed = one(case, Precision::F32, allowed, &ChosenDevice::named("cpu")).unwrap();
        assert_eq!((timed.steps, timed.warmup), (3, 1));
    }

    #[test]
    fn steps_of_a_gpu_are_timed_after_its_kernels_are_tuned_unless_they_take_long() {
        let seconds = |seconds: [u64; 2]| seconds.map(Duration::from_secs);
        // A processor: of eleven steps one is not timed, at least three and at most fifty are.
        assert_eq!(divided(1, seconds([11, 20]), 1000.0), [1, 10]);
        assert_eq!(
            [divided(1, seconds([0, 0]), 1000.0), divided(1, seconds([99, 99]), 1.0)],
            [[1, 3], [1, 50]]
        );
        // Ten seconds for steps of 20 ms; the same after seven of them went by compiling; two that did in a quick look.
        assert_eq!(divided(128, seconds([10, 10]), 20.0), [128, 50]);
        assert_eq!(divided(128, seconds([3, 10]), 20.0), [128, 22]);
        assert_eq!(divided(128, seconds([0, 2]), 20.0), [100, 3]);
        // Tuning is little beside steps of a second.
        assert_eq!(divided(128, seconds([8, 10]), 1000.0), [10, 3]);
    }

    #[test]
    fn a_model_whose_first_gradients_overflow_is_timed() {
        let (case, device) = ("gru".parse::<DoctorCase>().unwrap(), ChosenDevice::named("cpu"));
        let first = case.measure(&case.steps(Precision::F16, 1, 0), &device);
        let overflowed = matches!(first, Err(PipelineError::Train(TrainError::Overflowed { .. })));
        assert!(overflowed, "it is no such model any more");
        assert!(one(case, Precision::F16, None, &device).unwrap().median_ms > 0.0);
    }

    #[test]
    fn what_the_program_holds_is_no_memory_of_a_gpu() {
        // A processor under the name of a GPU reserves no pages.
        let device = ChosenDevice::named("cuda");
        assert_eq!((start_of_peak(&device), most_held(&device)), (None, None));
    }
}
