//! How many threads of the loader a step needs.

use firebox_core::{Precision, Silent};
use firebox_loader::default_workers;
use serde::Serialize;

use super::{Allowance, MARGIN, Timed, bench};
use crate::bench::{BenchConfig, Workload, measure};
use crate::device::ChosenDevice;
use crate::error::PipelineError;

/// Times each number is measured, in turn, so that other work of the machine falls on all of them.
const ROUNDS: u32 = 2;
/// Steps of a measurement, at least and at most.
const STEPS: [f64; 2] = [3.0, 200.0];
/// More threads than these are not tried: each has two batches in the making.
const MOST: usize = 8;

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

/// Numbers of threads that are tried: none, powers of two up to as many as there are and [`MOST`], and the
/// default.
fn candidates(threads: usize) -> Vec<usize> {
    let most = threads.min(MOST);
    let powers = std::iter::successors(Some(1), |workers| Some(2 * workers));
    let mut all: Vec<usize> = powers.take_while(|workers| *workers <= most).collect();
    all.extend([0, default_workers()]);
    all.sort_unstable();
    all.dedup();
    all
}

/// Times steps of the model that waits the most, with each number of threads; none where there is no time for it.
pub(super) fn feed(
    precision: Precision,
    timed: &[Timed],
    device: &ChosenDevice,
    time: &mut Allowance,
    tell: &dyn Fn(&str),
) -> Result<Vec<Feeding>, PipelineError> {
    let own = timed.iter().filter(|one| one.precision == precision);
    let Some(hungry) = own.max_by(|a, b| a.wait.total_cmp(&b.wait)) else { return Ok(vec![]) };
    let named = Workload::ALL.into_iter().find(|(workload, _)| workload.name() == hungry.workload);
    let Some((workload, _)) = named else { return Ok(vec![]) };
    let candidates = candidates(super::available_threads());
    let each = time.next() / (ROUNDS * candidates.len() as u32);
    // One more is not timed.
    let steps = each.as_secs_f64() * 1e3 / hungry.median_ms - 1.0;
    if steps < STEPS[0] {
        return Ok(vec![]);
    }
    let steps = steps.min(STEPS[1]) as u64;
    tell(&format!("feeding {} by several threads", hungry.workload));
    let mut all: Vec<(Vec<f64>, f64)> = vec![Default::default(); candidates.len()];
    for _ in 0..ROUNDS {
        for (workers, (times, waited)) in candidates.iter().zip(&mut all) {
            let settings =
                BenchConfig { workers: *workers, ..bench(workload, precision, steps, 1) };
            let measured = measure(&settings, device, &Silent)?;
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
        assert_eq!(candidates(1)[..2], [0, 1]);
        for threads in [1, 2, 6, 16, 64] {
            let found = candidates(threads);
            assert!(found.is_sorted() && found.contains(&default_workers()), "{found:?}");
            assert!(found.iter().all(|workers| *workers <= threads.max(default_workers())));
        }
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
