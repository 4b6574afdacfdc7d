//! Whether each precision learns what f32 learns: the same model, seed, batches and dropout, and the
//! losses beside each other.

use firebox_core::{Precision, Silent};
use serde::Serialize;

use super::{Allowance, DoctorConfig, Timed, bench};
use crate::bench::{BenchConfig, Workload, measure};
use crate::device::ChosenDevice;
use crate::error::PipelineError;

/// Steps where the time allows it.
const STEPS: f64 = 300.0;
/// Samples of a batch: a smaller one takes more steps in the same time.
const BATCH: usize = 16;
/// Largest difference of the loss, as a share of the first loss: R1's ±0.5 %.
const BOUND: f64 = 0.005;

/// Steps below which a difference says nothing of how training ends.
pub(super) const ENOUGH: usize = 50;

/// Losses of a model in a precision.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Learning {
    /// The model.
    pub workload: String,
    /// The precision.
    pub precision: Precision,
    /// Steps that both took.
    pub steps: usize,
    /// Loss of the first step.
    pub first: f64,
    /// Mean loss of the last third of the steps.
    pub last: f64,
    /// The same in f32.
    pub last_f32: f64,
    /// Their difference as a share of the first loss.
    pub difference: f64,
    /// The standard error of that difference. Once rounding has led two runs apart, their steps differ
    /// by chance.
    pub error: f64,
}

impl Learning {
    fn new(workload: Workload, precision: Precision, losses: &[f64], base: &[f64]) -> Self {
        let steps = losses.len().min(base.len());
        let tail = steps - steps.div_ceil(3)..steps;
        let count = tail.len() as f64;
        let mean = |values: &[f64]| values.iter().sum::<f64>() / count;
        let (first, last, last_f32) =
            (base[0], mean(&losses[tail.clone()]), mean(&base[tail.clone()]));
        let difference = (last - last_f32) / first;
        let apart = losses[tail.clone()].iter().zip(&base[tail]);
        let square: f64 = apart.map(|(a, b)| ((a - b) / first - difference).powi(2)).sum();
        Self {
            workload: workload.name().to_owned(),
            precision,
            steps,
            first,
            last,
            last_f32,
            difference,
            error: (square / (count - 1.0).max(1.0) / count).sqrt(),
        }
    }

    /// Whether the steps are enough to say anything.
    pub fn is_enough(&self) -> bool {
        self.steps >= ENOUGH
    }

    /// Whether the losses end as near to those of f32 as R1 asks for, up to two standard errors.
    pub fn is_close(&self) -> bool {
        self.difference.abs() <= BOUND + 2.0 * self.error
    }
}

/// Trains a model in each precision in which it was timed, f32 first.
pub(super) fn learn(
    workload: Workload,
    timed: &[&Timed],
    config: DoctorConfig,
    device: &ChosenDevice,
    time: &mut Allowance,
    tell: &dyn Fn(&str),
) -> Result<Vec<Learning>, PipelineError> {
    let batch = match (workload, config.quick) {
        (Workload::BertBase, _) => 2,
        (_, true) => BATCH / 2,
        (_, false) => BATCH,
    };
    // All take the steps that the slowest has time for. A step of a small batch has a part that does
    // not shrink with it.
    let slowest =
        timed.iter().map(|timed| timed.median_ms / timed.batch as f64).fold(0.0, f64::max);
    let step = 1e-3 * slowest * batch as f64 * 1.5;
    let allowed: Vec<_> = timed.iter().map(|_| time.next().as_secs_f64()).collect();
    let shortest = allowed.into_iter().fold(f64::INFINITY, f64::min);
    let steps = (shortest / step).clamp(if config.quick { 6.0 } else { 20.0 }, STEPS) as u64;
    let mut base: Vec<f64> = vec![];
    let mut all = vec![];
    for Timed { precision, .. } in timed {
        tell(&format!("training {} in {precision} for {steps} steps", workload.name()));
        let config = BenchConfig { batch: Some(batch), ..bench(workload, *precision, steps, 0) };
        let losses = measure(&config, device, &Silent)?.losses;
        if base.is_empty() {
            base.clone_from(&losses);
        }
        all.push(Learning::new(workload, *precision, &losses, &base));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_are_compared() {
        let base: Vec<f64> = (0..60).map(|step| 2.0 - 0.01 * f64::from(step)).collect();
        let other: Vec<f64> = base.iter().map(|loss| loss + 0.008).collect();
        let near = Learning::new(Workload::Mlp, Precision::Bf16, &other, &base);
        assert!((near.difference - 0.004).abs() < 1e-12 && near.error < 1e-12, "{near:?}");
        assert!(near.is_close() && near.is_enough() && (near.last_f32 - 1.505).abs() < 1e-12);
        let far: Vec<f64> = base.iter().map(|loss| loss * 1.02).collect();
        assert!(!Learning::new(Workload::Mlp, Precision::Bf16, &far, &base).is_close());
        // Steps that scatter around those of f32 are as good as they are.
        let chance = |step: usize| if step.is_multiple_of(2) { 0.1 } else { -0.098 };
        let scattered: Vec<f64> =
            base.iter().enumerate().map(|(step, loss)| loss + chance(step)).collect();
        assert!(Learning::new(Workload::Mlp, Precision::Bf16, &scattered, &base).is_close());
    }
}
