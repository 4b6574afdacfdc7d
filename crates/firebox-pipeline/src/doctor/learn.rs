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

/// What chance may make of a difference at most where losses are called no higher than in f32, as a share of the first
/// loss, whatever few seeds say (Firebox's own): their deviation is known too badly for more.
const MOST: f64 = 0.05;

/// Deviation of the ends in f32 from seed to seed, as a share of the first loss, above which a comparison of ends decides
/// nothing (Firebox's own).
pub(super) const SCATTER: f64 = 0.02;

/// Share of the first loss by which f32 has to end below it, so that something was learnt that another type may miss.
const LEARNT: f64 = 0.05;

/// Share of that without which another type learns nothing.
const NOTHING: f64 = 0.2;

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
    /// The standard deviation of the ends in f32, as a share of the first loss.
    pub scatter: f64,
}

/// What the ends say of a precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It ends no higher than f32.
    Close,
    /// It may, as far as is known.
    Unknown,
    /// It ends higher.
    Higher,
    /// It learns nothing of what f32 learns.
    Nothing,
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
        let (runs, scatter) = (ends.len() as f64, deviation(&ends) / first);
        let chance = match ends.len() {
            1 => 0.0,
            count => {
                let student = STUDENT[count.min(STUDENT.len() + 1) - 2];
                let times = if case.is_small() { RARER } else { 1.0 };
                times * student * scatter * (1.0 + 1.0 / runs).sqrt()
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
            scatter,
        }
    }

    /// Whether the steps are enough to say anything.
    pub fn is_enough(&self) -> bool {
        self.steps >= ENOUGH
    }

    /// Whether the loss is shown to end no higher than in f32. One that ends lower learns as well.
    pub fn is_close(&self) -> bool {
        self.verdict() == Verdict::Close
    }

    /// Whether it is shown to end higher, or nothing is learnt of what f32 learns.
    pub fn is_apart(&self) -> bool {
        matches!(self.verdict(), Verdict::Higher | Verdict::Nothing)
    }

    /// It ends higher beyond R1's ±0.5 % and two standard errors, and beyond what chance makes of f32. Within these it is
    /// as good where they are narrow enough to say something, and f32 has learnt something itself.
    pub(super) fn verdict(&self) -> Verdict {
        if self.precision == Precision::F32 {
            return Verdict::Close;
        }
        if !self.last.is_finite() {
            return Verdict::Higher;
        }
        let [own, in_f32] = [self.learnt(), self.learnt_in_f32()];
        if in_f32 >= LEARNT && own < NOTHING * in_f32 {
            // Where f32 with the same draws learnt nothing either, it was them.
            let alike = 1.0 - self.last_f32 / self.first;
            let decides = alike >= LEARNT && own < NOTHING * alike;
            return if decides { Verdict::Nothing } else { Verdict::Unknown };
        }
        let bound = BOUND + 2.0 * self.error;
        if self.difference > bound && self.above > self.chance {
            return Verdict::Higher;
        }
        let near = self.difference <= bound.min(MOST) || self.above <= self.chance.min(MOST);
        let decides = self.scatter <= SCATTER && in_f32 >= LEARNT;
        if near && decides { Verdict::Close } else { Verdict::Unknown }
    }

    /// Share of the first loss by which it ends below it.
    fn learnt(&self) -> f64 {
        1.0 - self.last / self.first
    }

    /// The same in the mean over the runs in f32.
    fn learnt_in_f32(&self) -> f64 {
        self.learnt() + self.above
    }

    /// Why it is not known whether it ends higher.
    pub(super) fn unknown(&self) -> String {
        if self.scatter > SCATTER {
            format!("f32 itself ends {:.1} % of the first loss apart", 100.0 * self.scatter)
        } else if self.learnt_in_f32() < LEARNT {
            "f32 itself learns nothing".to_owned()
        } else {
            format!("{:+.1} %, which may be chance", 100.0 * self.above)
        }
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
        assert!(learnt(&by(1.02), &alone).is_apart());
        assert!(learnt(&[f64::NAN; 60], &[base.clone(), by(1.02), by(0.98)]).is_apart());
        // One that learns faster learns as well.
        assert!(learnt(&by(0.8), &alone).is_close());
        // Steps that scatter around those of f32 are as good as they are.
        let chance = |step: usize| if step.is_multiple_of(2) { 0.1 } else { -0.098 };
        let scattered: Vec<f64> =
            base.iter().enumerate().map(|(step, loss)| loss + chance(step)).collect();
        assert!(learnt(&scattered, &alone).is_close());
    }

    /// Losses that fall from 4 to this end, on which they stay.
    fn falling_to(end: f64) -> Vec<f64> {
        std::iter::once(4.0).chain(std::iter::repeat_n(end, 59)).collect()
    }

    #[test]
    fn chance_is_what_other_seeds_make_of_f32() {
        // Ends of mean 2 and deviation 0.01; t of three degrees of freedom, √(5/4) and the first loss.
        let apart = 0.01 * 0.75_f64.sqrt();
        let base = [2.0 - apart, 2.0 + apart, 2.0 - apart, 2.0 + apart].map(falling_to);
        let bound = 4.541 * 0.01 * 1.25_f64.sqrt() / 4.0;
        let below = learnt(&falling_to(2.0 + 0.0507), &base);
        assert!((below.chance - bound).abs() < 1e-12, "{below:?}");
        assert!(below.difference > BOUND && below.is_close(), "{below:?}");
        assert!(learnt(&falling_to(2.0 + 0.0509), &base).is_apart());
        // The fewer runs, the less they say.
        let of = |count: usize| learnt(&falling_to(2.0), &base[..count]).chance;
        assert!(of(2) > of(3) && of(3) > of(4) && of(1) == 0.0);
    }

    #[test]
    fn what_few_seeds_leave_open_is_neither_close_nor_apart() {
        let verdict = |end: f64, deviation: f64| {
            let base = [2.0, 2.0 + deviation, 2.0 - deviation].map(falling_to);
            learnt(&falling_to(end), &base).verdict()
        };
        // Ends that scatter by 1 % of the first loss: chance would allow 8 %, and 5 % are allowed.
        assert_eq!(verdict(2.0 + 0.19, 0.04), Verdict::Close);
        assert_eq!(verdict(2.0 + 0.21, 0.04), Verdict::Unknown);
        assert_eq!(verdict(2.0 + 0.33, 0.04), Verdict::Higher);
        // By 2.5 %: nothing is shown, however near it is.
        assert_eq!(verdict(2.0, 0.1), Verdict::Unknown);
        let base = [4.0, 4.01, 3.99].map(falling_to);
        let still = learnt(&falling_to(4.0), &base);
        assert_eq!(
            (still.verdict(), still.unknown()),
            (Verdict::Unknown, "f32 itself learns nothing".to_owned())
        );
    }

    #[test]
    fn what_learns_nothing_fails_however_much_f32_scatters() {
        // As a classifier of 60 steps does: from 1.14 to 0.05 in one seed, and far above it in others.
        let base = [0.2, 1.0, 2.0].map(falling_to);
        let still = learnt(&falling_to(4.0), &base);
        assert!(still.above < still.chance, "{still:?}");
        assert_eq!(still.verdict(), Verdict::Nothing);
        assert_eq!(learnt(&falling_to(1.0), &base).verdict(), Verdict::Unknown);
        // Where f32 with the same draws learns nothing, it is not the type.
        let unlucky = [4.0, 0.2, 0.3].map(falling_to);
        assert_eq!(learnt(&falling_to(4.0), &unlucky).verdict(), Verdict::Unknown);
    }
}
