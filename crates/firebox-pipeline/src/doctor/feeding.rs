//! How many threads of the loader a step needs whose samples come as those of real data do. Copies from memory, with which
//! the other parts of the doctor time steps, would need the fewest.

use std::time::{Duration, Instant};

use firebox_core::Precision;
use firebox_loader::{Resident, default_workers};
use serde::Serialize;

use super::{Allowance, DoctorCase, MARGIN, Timed};
use crate::bench::BenchConfig;
use crate::device::ChosenDevice;
use crate::error::PipelineError;

/// Times each number is measured, in turn, so that other work of the machine falls on all of them.
const ROUNDS: u32 = 2;
/// Steps of a measurement, at least and at most.
const STEPS: [f64; 2] = [3.0, 200.0];
/// More threads than these are not tried: each has two batches in the making.
const MOST: usize = 8;
/// Steps by which it is told how long a step takes with such samples.
const PILOT: u64 = 2;

/// Steps that are fed by some threads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Feeding {
    /// The model whose steps wait for data the most.
    pub workload: String,
    /// Threads that fill batches; with 0, the training thread does.
    pub workers: usize,
    /// Median time of a step, milliseconds.
    pub median_ms: f64,
    /// Part of the steps that waits for data, 0 to 1.
    pub wait: f64,
}

/// Numbers of threads that are tried: none, powers of two up to as many as there are and [`MOST`], the
/// default, and the guess for the device's class if there are so many.
fn candidates(threads: usize, guess: usize) -> Vec<usize> {
    let most = threads.min(MOST);
    let powers = std::iter::successors(Some(1), |workers| Some(2 * workers));
    let mut all: Vec<usize> = powers.take_while(|workers| *workers <= most).collect();
    all.extend([0, default_workers(), guess.min(threads)]);
    all.sort_unstable();
    all.dedup();
    all
}

/// Steps that a measurement has time for beside what goes before them, of so many milliseconds each; none where it is too
/// short. One step more is not timed.
fn steps(each: Duration, around: Duration, milliseconds: f64) -> Option<u64> {
    let steps = each.saturating_sub(around).as_secs_f64() * 1e3 / milliseconds - 1.0;
    (steps >= STEPS[0]).then_some(steps.min(STEPS[1]) as u64)
}

/// Milliseconds of the longest of a few steps, and the time that goes by around them. Where nobody fills batches beside
/// them, no number of threads makes steps longer.
fn pilot(
    case: DoctorCase,
    settings: &BenchConfig,
    device: &ChosenDevice,
) -> Result<(f64, Duration), PipelineError> {
    let begun = Instant::now();
    let times = case.measure(settings, device)?.times;
    let steps = Duration::from_secs_f64(times.iter().sum::<f64>() / 1e3);
    let around = begun.elapsed().saturating_sub(steps);
    Ok((times.into_iter().fold(0.0, f64::max), around))
}

/// Times steps of the model that waits the most, with each number of threads; none where there is no time for it.
pub(super) fn feed(
    precision: Precision,
    timed: &[Timed],
    guess: usize,
    device: &ChosenDevice,
    time: &mut Allowance,
    tell: &dyn Fn(&str),
) -> Result<Vec<Feeding>, PipelineError> {
    let own = timed.iter().filter(|one| one.precision == precision && !one.small);
    let Some(hungry) = own.max_by(|a, b| a.wait.total_cmp(&b.wait)) else { return Ok(vec![]) };
    let mut cases = DoctorCase::all();
    let Some(case) = cases.find(|case| case.name() == hungry.workload) else { return Ok(vec![]) };
    let candidates = candidates(super::available_threads(), guess);
    let settings = |workers, steps| BenchConfig {
        workers,
        stored: !case.reads_texts(),
        resident: Resident::Stream,
        ..case.steps(precision, steps, 1)
    };
    let (share, begun) = (time.next(), Instant::now());
    let parts = ROUNDS * candidates.len() as u32;
    // Nor is there time for a pilot then.
    if steps(share / parts, Duration::ZERO, hungry.median_ms).is_none() {
        return Ok(vec![]);
    }
    let (longest, around) = pilot(case, &settings(0, PILOT), device)?;
    let each = share.saturating_sub(begun.elapsed()) / parts;
    let Some(steps) = steps(each, around, longest.max(hungry.median_ms)) else {
        return Ok(vec![]);
    };
    tell(&format!("feeding {} by several threads", hungry.workload));
    let mut all: Vec<(Vec<f64>, f64)> = vec![Default::default(); candidates.len()];
    for _ in 0..ROUNDS {
        for (workers, (times, waited)) in candidates.iter().zip(&mut all) {
            let measured = case.measure(&settings(*workers, steps), device)?;
            *waited += measured.waits.iter().sum::<f64>();
            times.extend(measured.times);
        }
    }
    let feeding = candidates.into_iter().zip(all).map(|(workers, (mut times, waited))| {
        let wait = waited / times.iter().sum::<f64>();
        times.sort_by(f64::total_cmp);
        let median_ms = times[times.len() / 2];
        Feeding { workload: hungry.workload.clone(), workers, median_ms, wait }
    });
    Ok(feeding.collect())
}

/// The number of threads to set: the default, unless another one makes steps faster by more than noise;
/// of those that do as well, the smallest.
pub(super) fn workers(feeding: &[Feeding]) -> usize {
    let best = feeding.iter().map(|one| one.median_ms).fold(f64::INFINITY, f64::min);
    let usual = feeding.iter().find(|one| one.workers == default_workers());
    if usual.is_none_or(|usual| usual.median_ms < MARGIN * best) {
        return default_workers();
    }
    let near = feeding.iter().filter(|one| one.median_ms <= 1.02 * best);
    near.map(|one| one.workers).min().unwrap_or_else(default_workers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_machine() {
        assert_eq!(candidates(1, 4)[..2], [0, 1]);
        // What R1's guide has for a V100 is tried where there are so many.
        assert!(candidates(16, 12).contains(&12) && !candidates(6, 12).contains(&12));
        for threads in [1, 2, 6, 16, 64] {
            let found = candidates(threads, 12);
            assert!(found.is_sorted() && found.contains(&default_workers()), "{found:?}");
            assert!(found.iter().all(|workers| *workers <= threads.max(default_workers())));
        }
    }

    #[test]
    fn a_measurement_keeps_to_its_time() {
        let of = |each, around, milliseconds| {
            let [each, around] = [each, around].map(Duration::from_millis);
            steps(each, around, milliseconds)
        };
        // One of 11 is not timed.
        assert_eq!(of(1100, 0, 100.0), Some(10));
        assert_eq!(of(1100, 500, 100.0), Some(5));
        assert_eq!(of(1_000_000, 0, 1.0), Some(200));
        assert_eq!([of(390, 0, 100.0), of(300, 500, 1.0)], [None, None]);
    }

    #[test]
    fn another_number_is_taken_where_it_is_faster_by_more_than_noise() {
        let usual = default_workers();
        let of = |times: &[(usize, f64)]| {
            let one = |(workers, median_ms): &(usize, f64)| Feeding {
                workload: "mlp".to_owned(),
                workers: *workers,
                median_ms: *median_ms,
                wait: 0.0,
            };
            workers(&times.iter().map(one).collect::<Vec<_>>())
        };
        assert_eq!(of(&[]), usual);
        assert_eq!(of(&[(0, 9.8), (usual, 10.0), (usual + 1, 9.9)]), usual);
        assert_eq!(of(&[(0, 9.0), (usual, 10.0), (usual + 1, 8.9)]), 0);
        assert_eq!(of(&[(0, 20.0), (usual, 10.0), (usual + 3, 5.0), (usual + 9, 5.0)]), usual + 3);
    }
}
