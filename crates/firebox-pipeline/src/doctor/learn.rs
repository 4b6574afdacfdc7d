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

/// Seeds of dropout and masks: of all runs that are compared, and of the one that says how much chance is
/// in them.
const SEEDS: [u64; 2] = [1337, 1338];

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
    /// How far two runs in f32 end from each other that differ in their dropout and masks alone, as a
    /// share of the first loss.
    pub spread: f64,
}

impl Learning {
    /// `base` are the losses in f32, and `other` those with another seed.
    pub(super) fn new(
        workload: Workload,
        precision: Precision,
        losses: &[f64],
        [base, other]: [&[f64]; 2],
    ) -> Self {
        let steps = losses.len().min(base.len());
        let tail = steps - steps.div_ceil(3)..steps;
        let count = tail.len() as f64;
        let mean = |values: &[f64]| values.iter().sum::<f64>() / count;
        let (first, last, last_f32) =
            (base[0], mean(&losses[tail.clone()]), mean(&base[tail.clone()]));
        let spread = (mean(&other[tail.clone()]) - last_f32).abs() / first;
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
            spread,
        }
    }

    /// Whether the steps are enough to say anything.
    pub fn is_enough(&self) -> bool {
        self.steps >= ENOUGH
    }

    /// Whether the losses end as near to those of f32 as R1 asks for, up to two standard errors, or as
    /// near as those of f32 with another seed.
    pub fn is_close(&self) -> bool {
        self.difference.abs() <= (BOUND + 2.0 * self.error).max(self.spread)
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
    let taken = |precision, seed| {
        let config =
            BenchConfig { batch: Some(batch), seed, ..bench(workload, precision, steps, 0) };
        Ok::<_, PipelineError>(measure(&config, device, &Silent)?.losses)
    };
    let mut base: Vec<f64> = vec![];
    let mut other: Vec<f64> = vec![];
    let mut all = vec![];
    for Timed { precision, .. } in timed {
        tell(&format!("training {} in {precision} for {steps} steps", workload.name()));
        let losses = match taken(*precision, SEEDS[0]) {
            Err(PipelineError::Train(error)) if !base.is_empty() => {
                tell(&format!("{} does not train in {precision}: {error}", workload.name()));
                vec![f64::NAN; base.len()]
            }
            losses => losses?,
        };
        if base.is_empty() {
            base.clone_from(&losses);
            other = taken(*precision, SEEDS[1])?;
        }
        all.push(Learning::new(workload, *precision, &losses, [&base, &other]));
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
        let near = Learning::new(Workload::Mlp, Precision::Bf16, &other, [&base, &base]);
        assert!((near.difference - 0.004).abs() < 1e-12 && near.error < 1e-12, "{near:?}");
        assert!(near.is_close() && near.is_enough() && (near.last_f32 - 1.505).abs() < 1e-12);
        let far: Vec<f64> = base.iter().map(|loss| loss * 1.02).collect();
        assert!(!Learning::new(Workload::Mlp, Precision::Bf16, &far, [&base, &base]).is_close());
        // As far as f32 with other dropout.
        let farther: Vec<f64> = base.iter().map(|loss| loss * 1.03).collect();
        let chance = Learning::new(Workload::Mlp, Precision::Bf16, &far, [&base, &farther]);
        assert!(chance.is_close() && chance.spread > chance.difference, "{chance:?}");
        // Steps that scatter around those of f32 are as good as they are.
        let chance = |step: usize| if step.is_multiple_of(2) { 0.1 } else { -0.098 };
        let scattered: Vec<f64> =
            base.iter().enumerate().map(|(step, loss)| loss + chance(step)).collect();
        assert!(
            Learning::new(Workload::Mlp, Precision::Bf16, &scattered, [&base, &base]).is_close()
        );
    }
}
