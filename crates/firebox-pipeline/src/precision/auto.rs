//! `run.precision = "auto"`: a short timed comparison of the model's own training steps, kept in the
//! cache folder so that the next run of this model on this device asks nothing.

use std::path::Path;

use firebox_core::{Key, Precision};
use serde::{Deserialize, Serialize};

use super::{Abilities, device_class};
use crate::cached::{cached_if, entry};
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::load_average;

/// How much faster than f32 a type has to be before it is chosen: what the spread of a short
/// measurement can make of nothing (Firebox's own).
const MARGIN: f64 = 1.05;
/// Times that each type is measured, in turn, at least: a machine that grows slower meanwhile slows down all.
const ROUNDS: usize = 2;
/// The same at most.
const MOST_ROUNDS: usize = 12;
/// Milliseconds that the steps in f32 take together until they are enough: eight steps of 2 ms, a time in which frequencies
/// and caches still find their place, made differences of up to 30 % out of nothing.
const ENOUGH: f64 = 300.0;
/// The same at most, where the shortest step of a type was met in one measurement alone: other processes hold steps up,
/// and the next one may find it again.
const LONG: f64 = 5_000.0;
/// Bucket of the cache.
const BUCKET: &str = "precision-v1";

/// What a comparison found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Choice {
    /// The type chosen.
    pub(crate) precision: Precision,
    /// Why, in one line.
    pub(crate) reason: String,
    /// What was measured.
    pub(crate) timings: Vec<Timing>,
}

/// The steps of one type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Timing {
    pub(crate) precision: Precision,
    /// Median time of a step, milliseconds.
    pub(crate) median: f64,
    /// The shortest and the longest step.
    pub(crate) range: [f64; 2],
}

impl Timing {
    fn new(precision: Precision, mut times: Vec<f64>) -> Option<Self> {
        times.sort_by(f64::total_cmp);
        let (first, last) = (*times.first()?, *times.last()?);
        Some(Self { precision, median: times[times.len() / 2], range: [first, last] })
    }
}

/// Chooses among `candidates` (f32 first) by the times of steps that `time` measures, in
/// milliseconds.
///
/// A type whose training fails, as f16 may whose gradients overflow, is not chosen, and named.
///
/// # Errors
/// The first of `time` in f32, or that is none of training.
pub(crate) fn choose(
    candidates: &[Precision],
    device: &ChosenDevice,
    what: &str,
    mut time: impl FnMut(Precision) -> Result<Vec<f64>, PipelineError>,
) -> Result<Choice, PipelineError> {
    let mut times: Vec<Vec<f64>> = vec![vec![]; candidates.len()];
    let mut failed = vec![None; candidates.len()];
    // Of each measurement.
    let mut shortest: Vec<Vec<f64>> = vec![vec![]; candidates.len()];
    for round in 0..MOST_ROUNDS {
        let spent: f64 = times[0].iter().sum();
        let found = || shortest.iter().all(|own| is_met_again(own));
        if round >= ROUNDS && spent >= ENOUGH && (spent >= LONG || found()) {
            break;
        }
        for place in 0..candidates.len() {
            // Back and forth, so that none is always the first.
            let place = if round % 2 == 0 { place } else { candidates.len() - 1 - place };
            if failed[place].is_some() {
                continue;
            }
            match time(candidates[place]) {
                Ok(more) => {
                    shortest[place].extend(more.iter().copied().min_by(f64::total_cmp));
                    times[place].extend(more);
                }
                Err(PipelineError::Train(error)) if candidates[place] != Precision::F32 => {
                    failed[place] = Some(error.to_string());
                    times[place].clear();
                    shortest[place].clear();
                }
                Err(error) => return Err(error),
            }
        }
    }
    let timings: Vec<Timing> = candidates
        .iter()
        .zip(times)
        .filter_map(|(precision, times)| Timing::new(*precision, times))
        .collect();
    let abilities = Abilities::of(device)?;
    let guess = device_class(&device.description);
    let mut choice = decide(timings, &abilities, (&guess.name, guess.precision), what);
    for (precision, error) in candidates.iter().zip(failed) {
        if let Some(error) = error {
            // Reasons are comments of one line in the settings beside a run, and what a device says may be of many.
            let error = error.lines().next().unwrap_or_default();
            choice.reason += &format!("; {precision} failed: {error}");
        }
    }
    Ok(choice)
}

/// Whether the shortest of these was met twice, within what decides.
fn is_met_again(shortest: &[f64]) -> bool {
    let mut sorted = shortest.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted[..] {
        [first, second, ..] => second <= MARGIN * first,
        _ => true,
    }
}

/// The decision, from the shortest step of each: other processes make steps longer, and none shorter.
fn decide(
    timings: Vec<Timing>,
    abilities: &Abilities,
    (class, guess): (&str, Precision),
    what: &str,
) -> Choice {
    let shortest = |precision| {
        let found = timings.iter().find(|timing| timing.precision == precision);
        found.map_or(f64::NAN, |timing| timing.range[0])
    };
    let base = shortest(Precision::F32);
    let fastest = timings.iter().min_by(|a, b| a.range[0].total_cmp(&b.range[0]));
    let fastest = fastest.map_or(Precision::F32, |timing| timing.precision);
    let gain = base / shortest(fastest);
    let gains: Vec<String> = timings
        .iter()
        .filter(|timing| timing.precision != Precision::F32)
        .map(|timing| format!("{} {:.2}×", timing.precision, base / timing.range[0]))
        .collect();
    let (precision, mut reason) = if fastest != Precision::F32 && gain >= MARGIN {
        let milliseconds = shortest(fastest);
        let how = abilities.support(fastest).how();
        let said = format!(
            "{how}; measured {gain:.2}× f32 on {what} ({milliseconds:.1} ms a step at the shortest, f32 {base:.1} ms)"
        );
        (fastest, said)
    } else if gains.is_empty() {
        (Precision::F32, "no other type could be faster on this device".to_owned())
    } else {
        let said = format!(
            "measured on {what}, f32 takes {base:.1} ms a step at the shortest, and nothing is faster by {:.0} %: {}",
            100.0 * (MARGIN - 1.0),
            gains.join(", ")
        );
        (Precision::F32, said)
    };
    if guess != precision {
        reason += &format!("; the guess for the class `{class}` was {guess}");
    }
    Choice { precision, reason, timings }
}

/// [`choose`], or what an earlier run of the same model on the same device found, and whether one did.
///
/// # Errors
/// As [`choose`], and if the folder of the cache cannot be written.
pub(crate) fn choose_cached<T>(
    cache: &Path,
    model: &str,
    candidates: &[Precision],
    device: &ChosenDevice,
    begin: impl FnOnce() -> Result<(String, T), PipelineError>,
) -> Result<(Choice, bool), PipelineError>
where
    T: FnMut(Precision) -> Result<Vec<f64>, PipelineError>,
{
    let names: Vec<_> = candidates.iter().map(ToString::to_string).collect();
    let key = Key::builder("precision", 3)
        .field("version", env!("CARGO_PKG_VERSION"))
        .field("device", device.description.as_str())
        .field("arithmetic", device.arithmetic()?)
        .field("threads", rayon::current_num_threads().to_le_bytes())
        .field("candidates", names.join(" "))
        .field("model", model)
        .finish();
    let measure = || {
        let (what, time) = begin()?;
        let noted = load_average::noted_now(&entry(&cache.join(BUCKET), &key));
        let mut choice = choose(candidates, device, &what, time)?;
        choice.reason += &noted;
        Ok(choice)
    };
    cached_if(&cache.join(BUCKET), &key, |_| true, measure)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> ChosenDevice {
        let description = "cpu: a processor of 1999".to_owned();
        ChosenDevice { description, ..ChosenDevice::named("cpu") }
    }

    fn steps(milliseconds: [f64; 2]) -> impl FnMut(Precision) -> Result<Vec<f64>, PipelineError> {
        move |precision| Ok(vec![milliseconds[usize::from(precision == Precision::Bf16)]; 3])
    }

    const BOTH: [Precision; 2] = [Precision::F32, Precision::Bf16];

    #[test]
    fn the_faster_type_is_chosen_and_the_slower_one_is_not() {
        let chosen =
            |milliseconds| choose(&BOTH, &device(), "this model", steps(milliseconds)).unwrap();
        let faster = chosen([14.0, 10.0]);
        assert_eq!(faster.precision, Precision::Bf16);
        let said = &faster.reason;
        assert!(said.contains("measured 1.40× f32 on this model (10.0 ms a step"), "{said}");
        assert!(said.ends_with("the guess for the class `processor` was f32"), "{said}");
        let slower = chosen([10.0, 14.0]);
        assert_eq!(slower.precision, Precision::F32);
        assert!(
            slower.reason.contains("nothing is faster by 5 %: bf16 0.71×"),
            "{}",
            slower.reason
        );
        // Within what a short measurement can make of nothing.
        assert_eq!(chosen([10.3, 10.0]).precision, Precision::F32);
    }

    #[test]
    fn a_type_that_does_not_train_is_named_and_not_chosen() {
        let time = |precision| match precision {
            Precision::Bf16 => {
                let said = "overflow\n  0: in a kernel\n  1: in a queue".to_owned();
                Err(firebox_train::TrainError::Device(said).into())
            }
            _ => Ok(vec![10.0; 3]),
        };
        let chosen = choose(&BOTH, &device(), "this model", time).unwrap();
        assert_eq!(chosen.precision, Precision::F32);
        assert!(chosen.reason.ends_with("the device failed: overflow"), "{}", chosen.reason);
        assert!(chosen.reason.contains("; bf16 failed: "), "{}", chosen.reason);
        let fails = |_| Err(firebox_train::TrainError::Device("gone".to_owned()).into());
        assert!(choose(&BOTH, &device(), "this model", fails).is_err());
    }

    #[test]
    fn what_other_processes_took_decides_nothing() {
        // Most steps in f32 were held up.
        let mut call = 0;
        let time = |precision| {
            call += 1;
            Ok(match precision {
                Precision::Bf16 => vec![10.5, 11.0, 10.6],
                _ if call > 2 => vec![90.0, 80.0, 70.0],
                _ => vec![90.0, 10.0, 95.0],
            })
        };
        let chosen = choose(&BOTH, &device(), "this model", time).unwrap();
        assert_eq!(chosen.precision, Precision::F32, "{}", chosen.reason);
        assert!(chosen.reason.contains("bf16 0.95×"), "{}", chosen.reason);
        // It is looked for again, and more steps are held up than not.
        assert_eq!(chosen.timings[0].median, 80.0);
    }

    #[test]
    fn a_shortest_step_that_was_met_once_is_looked_for_again() {
        let rounds = |shortest: &[f64]| {
            let mut count = 0;
            let time = |precision| {
                let own = shortest.get(count).copied().unwrap_or(100.0);
                count += usize::from(precision == Precision::F32);
                let own = if precision == Precision::F32 { own } else { 100.0 };
                Ok(vec![own, 2.0 * own])
            };
            choose(&BOTH, &device(), "it", time).unwrap();
            count
        };
        assert_eq!(rounds(&[100.0, 104.0]), 2);
        assert_eq!(rounds(&[100.0, 130.0]), 3);
        assert_eq!(rounds(&[50.0]), MOST_ROUNDS);
        // Long steps are not measured without end.
        assert_eq!(rounds(&[600.0, 700.0, 800.0, 900.0]), 3);
    }

    #[test]
    fn a_comparison_is_made_once_for_a_model_and_a_device() {
        let cache = tempfile::tempdir().unwrap();
        let mut count = 0;
        let mut ask = |model: &str| {
            let time = |precision| {
                count += 1;
                steps([2.0, 1.0])(precision)
            };
            let begin = || Ok(("it".to_owned(), time));
            choose_cached(cache.path(), model, &BOTH, &device(), begin).unwrap().0
        };
        let first = ask("a");
        assert_eq!(ask("a"), first);
        ask("b");
        assert_eq!(count, 2 * MOST_ROUNDS * BOTH.len());
    }

    #[test]
    fn short_steps_are_measured_more_often() {
        let rounds = |milliseconds: f64| {
            let mut count = 0;
            let time = |precision| {
                count += usize::from(precision == Precision::F32);
                Ok(vec![milliseconds; 4])
            };
            choose(&BOTH, &device(), "it", time).unwrap();
            count
        };
        assert_eq!([1000.0, 37.5, 25.0, 15.0, 2.0].map(rounds), [2, 2, 3, 5, MOST_ROUNDS]);
    }
}
