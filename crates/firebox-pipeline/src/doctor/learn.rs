//! Whether each precision learns what f32 learns: the same model, seed, batches and dropout, and the
//! losses beside each other.

use firebox_core::Precision;
use serde::Serialize;

use super::{Allowance, DoctorCase, DoctorConfig, Timed};
use crate::bench::{BenchConfig, Workload};
use crate::device::ChosenDevice;
use crate::error::PipelineError;

/// Steps where the time allows it.
const STEPS: f64 = 300.0;
/// The same of a small model beside others, in a quick examination.
const FEW: f64 = 60.0;
/// Samples of a batch: a smaller one takes more steps in the same time.
const BATCH: usize = 16;
/// Largest difference of the loss, as a share of the first loss: R1's ±0.5 %.
const BOUND: f64 = 0.005;

/// Seeds of dropout and masks: the first is that of all runs that are compared; f32 alone is trained with
/// the others, too, which say how much chance is in an end.
const SEEDS: [u64; 4] = [1337, 1338, 1339, 1340];

/// Student's t of 1, 2 and 3 degrees of freedom that one value of a hundred exceeds.
const STUDENT: [f64; 3] = [31.821, 6.965, 4.541];

/// Times what one run of a hundred exceeds, which about one of a thousand does. There are many small models, and each has
/// a chance of its own.
const RARER: f64 = 3.0;

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
    /// `last` less the mean of the same over runs in f32 that differ in their dropout and masks alone, as
    /// a share of the first loss.
    pub above: f64,
    /// What one run of a hundred in f32 would exceed there, by chance alone; of a small model, about one of a thousand.
    pub chance: f64,
}

impl Learning {
    /// `base` are losses in f32, of which the first had the same seed. What one more run of a hundred
    /// exceeds is `t · s · √(1 + 1/n)` above the mean of `n`, with their deviation `s` and Student's `t`.
    pub(super) fn new(
        case: impl Into<DoctorCase>,
        precision: Precision,
        losses: &[f64],
        base: &[Vec<f64>],
    ) -> Self {
        let case: DoctorCase = case.into();
        let steps = losses.len().min(base[0].len());
        let tail = steps - steps.div_ceil(3)..steps;
        let first = base[0][0];
        let last = mean(&losses[tail.clone()]);
        let ends: Vec<f64> = base.iter().map(|losses| mean(&losses[tail.clone()])).collect();
        let difference = (last - ends[0]) / first;
        let apart: Vec<f64> =
            losses[tail.clone()].iter().zip(&base[0][tail]).map(|(a, b)| (a - b) / first).collect();
        let runs = ends.len() as f64;
        let chance = match ends.len() {
            1 => 0.0,
            count => {
                let student = STUDENT[count.min(STUDENT.len() + 1) - 2];
                let times = if case.is_small() { RARER } else { 1.0 };
                times * student * deviation(&ends) * (1.0 + 1.0 / runs).sqrt() / first
            }
        };
        Self {
            workload: case.name().to_owned(),
            precision,
            steps,
            first,
            last,
            last_f32: ends[0],
            difference,
            error: deviation(&apart) / (apart.len() as f64).sqrt(),
            above: (last - mean(&ends)) / first,
            chance,
        }
    }

    /// Whether the steps are enough to say anything.
    pub fn is_enough(&self) -> bool {
        self.steps >= ENOUGH
    }

    /// Whether the loss ends no higher than in f32: by R1's ±0.5 % and two standard errors, or by what
    /// chance makes of f32. One that ends lower learns as well.
    pub fn is_close(&self) -> bool {
        self.difference <= BOUND + 2.0 * self.error || self.above <= self.chance
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The standard deviation of a sample.
fn deviation(values: &[f64]) -> f64 {
    let center = mean(values);
    let square: f64 = values.iter().map(|value| (value - center).powi(2)).sum();
    (square / (values.len() as f64 - 1.0).max(1.0)).sqrt()
}

/// Runs in f32 beside the one with the same seed as the others.
pub(super) fn more_seeds(config: DoctorConfig) -> usize {
    if config.quick { 2 } else { SEEDS.len() - 1 }
}

/// Trains a model in each precision in which it was timed, f32 first.
pub(super) fn learn(
    case: DoctorCase,
    timed: &[&Timed],
    config: DoctorConfig,
    device: &ChosenDevice,
    time: &mut Allowance,
    tell: &dyn Fn(&str),
) -> Result<Vec<Learning>, PipelineError> {
    let batch = match (case, config.quick) {
        (DoctorCase::Reference(Workload::BertBase), _) => 2,
        (_, true) => BATCH / 2,
        (_, false) => BATCH,
    };
    // All take equally many steps. A step of a small batch has a part that does not shrink with it.
    let one = |timed: &&Timed| 1.5e-3 * timed.median_ms / timed.batch as f64 * batch as f64;
    let more = more_seeds(config);
    let all_once = timed.iter().map(one).sum::<f64>() + more as f64 * one(&timed[0]);
    let allowed = time.of((timed.len() + more) as u32).as_secs_f64();
    let least = if config.quick { 6.0 } else { 20.0 };
    let beside = case.is_small() && config.quick && config.only.is_none();
    let most = if beside { FEW } else { STEPS };
    let steps = (allowed / all_once).clamp(least, most) as u64;
    let taken = |precision, seed| {
        let config = BenchConfig { batch: Some(batch), seed, ..case.steps(precision, steps, 0) };
        Ok::<_, PipelineError>(case.measure(&config, device)?.losses)
    };
    let mut base: Vec<Vec<f64>> = vec![];
    let mut all = vec![];
    for Timed { precision, .. } in timed {
        tell(&format!("training {} in {precision} for {steps} steps", case.name()));
        let losses = match taken(*precision, SEEDS[0]) {
            Err(PipelineError::Train(error)) if !base.is_empty() => {
                tell(&format!("{} does not train in {precision}: {error}", case.name()));
                vec![f64::NAN; base[0].len()]
            }
            losses => losses?,
        };
        if base.is_empty() {
            base.push(losses.clone());
            for seed in &SEEDS[1..=more] {
                tell(&format!("training {} in {precision} with other dropout", case.name()));
                base.push(taken(*precision, *seed)?);
            }
        }
        all.push(Learning::new(case, *precision, &losses, &base));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learnt(losses: &[f64], base: &[Vec<f64>]) -> Learning {
        Learning::new(Workload::Mlp, Precision::Bf16, losses, base)
    }

    #[test]
    fn the_ends_are_compared() {
        let base: Vec<f64> = (0..60).map(|step| 2.0 - 0.01 * f64::from(step)).collect();
        let alone = [base.clone()];
        let by = |factor: f64| -> Vec<f64> { base.iter().map(|loss| loss * factor).collect() };
        let other: Vec<f64> = base.iter().map(|loss| loss + 0.008).collect();
        let near = learnt(&other, &alone);
        assert!((near.difference - 0.004).abs() < 1e-12 && near.error < 1e-12, "{near:?}");
        assert!(near.is_close() && near.is_enough() && (near.last_f32 - 1.505).abs() < 1e-12);
        assert!(!learnt(&by(1.02), &alone).is_close());
        assert!(!learnt(&[f64::NAN; 60], &[base.clone(), by(1.02), by(0.98)]).is_close());
        // One that learns faster learns as well.
        assert!(learnt(&by(0.8), &alone).is_close());
        // Steps that scatter around those of f32 are as good as they are.
        let chance = |step: usize| if step.is_multiple_of(2) { 0.1 } else { -0.098 };
        let scattered: Vec<f64> =
            base.iter().enumerate().map(|(step, loss)| loss + chance(step)).collect();
        assert!(learnt(&scattered, &alone).is_close());
    }

    #[test]
    fn chance_is_what_other_seeds_make_of_f32() {
        let flat = |loss: f64| vec![loss; 60];
        // Ends of mean 2 and deviation 0.01; t of three degrees of freedom, √(5/4) and the first loss.
        let apart = 0.01 * 0.75_f64.sqrt();
        let base = [flat(2.0 - apart), flat(2.0 + apart), flat(2.0 - apart), flat(2.0 + apart)];
        let bound = 4.541 * 0.01 * 1.25_f64.sqrt() / (2.0 - apart);
        let below = learnt(&flat(2.0 + 0.0507), &base);
        assert!((below.chance - bound).abs() < 1e-12, "{below:?}");
        assert!(below.difference > BOUND && below.is_close(), "{below:?}");
        assert!(!learnt(&flat(2.0 + 0.0509), &base).is_close());
        // The fewer runs, the less they say.
        let of = |count: usize| learnt(&flat(2.0), &base[..count]).chance;
        assert!(of(2) > of(3) && of(3) > of(4) && of(1) == 0.0);
    }
}
