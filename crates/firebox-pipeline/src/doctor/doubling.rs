//! Whether a larger batch trains faster: steps of half a batch and of the whole, in turn, so that whatever else the
//! machine does falls on both.

use firebox_core::Precision;

use super::checklist::{Working, median, working};
use super::{Allowance, DoctorCase};
use crate::bench::BenchConfig;
use crate::device::ChosenDevice;
use crate::error::PipelineError;

/// Times that both are measured.
pub(super) const ROUNDS: usize = 3;
/// Steps of a measurement at most.
const STEPS: f64 = 50.0;
/// How many more samples a second are worth a larger batch.
const ENOUGH: f64 = 1.1;

/// Samples a second of a batch over those of its half.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Doubling {
    /// Samples of the half and of the whole.
    batches: [usize; 2],
    /// Median over the rounds.
    middle: f64,
    /// The least and the most of a round.
    range: [f64; 2],
    /// Median of a step with the whole, milliseconds.
    pub(super) whole_ms: f64,
}

impl Doubling {
    /// Takes steps of both for about one share of the time, of a model whose steps take so long with the whole, after so
    /// many that were not timed. Returns besides how long threads worked at the first half.
    pub(super) fn measure(
        case: DoctorCase,
        precision: Precision,
        (batch, step_ms, warmup): (usize, f64, u64),
        device: &ChosenDevice,
        time: &mut Allowance,
    ) -> Result<(Self, Option<Working>), PipelineError> {
        let batches = [(batch / 2).max(1), batch];
        // A GPU tunes its kernels for each batch anew, and has done so for the whole.
        if device.backend != "cpu" {
            let half = BenchConfig { batch: Some(batches[0]), ..case.steps(precision, 1, warmup) };
            case.measure(&half, device)?;
        }
        // Half of a batch takes about half of the time, and of each one step is not timed.
        let steps = time.next().as_secs_f64() * 1e3 / (1.5 * step_ms * ROUNDS as f64) - 1.0;
        let steps = steps.clamp(1.0, STEPS) as u64;
        let mut rounds: [Vec<f64>; 2] = [vec![], vec![]];
        let mut worked = None;
        for round in 0..ROUNDS {
            // Neither is always the first.
            for place in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
                let config =
                    BenchConfig { batch: Some(batches[place]), ..case.steps(precision, steps, 1) };
                let (measured, own) = working(|| case.measure(&config, device))?;
                if round + place == 0 {
                    worked = own;
                }
                rounds[place].push(median(measured.times));
            }
        }
        Ok((Self::of(batches, rounds), worked))
    }

    /// From the median step of each round, milliseconds.
    pub(super) fn of(batches: [usize; 2], [halves, wholes]: [Vec<f64>; 2]) -> Self {
        let [half, whole] = batches.map(|batch| batch as f64);
        let pairs = halves.iter().zip(&wholes);
        let gains: Vec<f64> = pairs.map(|(a, b)| (whole / b) / (half / a)).collect();
        let least = gains.iter().copied().fold(f64::INFINITY, f64::min);
        let most = gains.iter().copied().fold(0.0, f64::max);
        Self { batches, middle: median(gains), range: [least, most], whole_ms: median(wholes) }
    }

    /// Whether the whole is faster by enough in every round.
    pub(super) fn is_gain(&self) -> bool {
        self.range[0] > ENOUGH
    }

    /// Whether it is so in no round.
    fn is_none(&self) -> bool {
        self.range[1] <= ENOUGH
    }

    /// Whether nothing speaks for a larger batch.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_gain() && self.is_none()
    }

    /// What follows for a model.
    pub(super) fn advice(&self, model: &str) -> String {
        let [half, whole] = self.batches;
        let [least, middle, most] =
            [self.range[0], self.middle, self.range[1]].map(|gain| 100.0 * (gain - 1.0));
        let said = format!(
            "doubling that of {model} ({half} to {whole}) changes its samples a second by {middle:+.0} % ({least:+.0} to {most:+.0} % in {ROUNDS} rounds)"
        );
        match (self.is_gain(), self.is_none()) {
            (true, _) => format!(
                "a larger batch: {said}; try loader.batch_size = {}, or \"auto\"",
                2 * whole
            ),
            (false, true) => format!("no larger batch: {said}"),
            (false, false) => {
                format!(
                    "a larger batch may help, or not: {said}, which is within what rounds differ by"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(halves: [f64; 3], wholes: [f64; 3]) -> Doubling {
        Doubling::of([256, 512], [halves.to_vec(), wholes.to_vec()])
    }

    #[test]
    fn a_larger_batch_is_advised_only_beyond_what_rounds_differ_by() {
        let gain = of([10.0, 10.4, 9.9], [12.0, 12.1, 12.6]);
        assert!(gain.is_gain() && !gain.is_idle());
        let said = gain.advice("lstm-mae");
        assert!(
            said.starts_with("a larger batch: ") && said.contains("loader.batch_size = 1024"),
            "{said}"
        );
        assert!(said.contains("by +67 % (+57 to +72 % in 3 rounds)"), "{said}");
        // Twice the time for twice the samples.
        let none = of([10.0, 10.0, 9.0], [20.0, 21.0, 17.5]);
        assert!(none.is_idle() && none.advice("mlp").starts_with("no larger batch: "));
        // Other work held up one of the halves, or one of the wholes.
        let once = of([10.0, 18.0, 10.0], [20.0, 20.0, 20.0]);
        assert!(!once.is_gain() && !once.is_idle(), "{once:?}");
        let but = of([10.0, 10.0, 10.0], [14.0, 14.0, 22.0]);
        let said = but.advice("mlp");
        assert!(
            !but.is_gain() && !but.is_idle() && said.starts_with("a larger batch may"),
            "{said}"
        );
        assert_eq!(but.whole_ms, 14.0);
    }

    #[test]
    fn both_are_measured_in_turn() {
        let device = ChosenDevice::named("cpu");
        let end = std::time::Instant::now() + std::time::Duration::from_millis(50);
        let mut time = Allowance { end, left: 1 };
        let case = "mlp".parse().unwrap();
        let (found, _) =
            Doubling::measure(case, Precision::F32, (8, 1.0, 1), &device, &mut time).unwrap();
        assert!(found.batches == [4, 8] && found.middle > 0.0 && found.whole_ms > 0.0, "{found:?}");
        assert!(found.range[0] <= found.middle && found.middle <= found.range[1], "{found:?}");
    }
}
