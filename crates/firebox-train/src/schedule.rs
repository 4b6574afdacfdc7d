//! The learning rate of each step: a function of the step and, for the plateau schedule, of the
//! validation losses seen so far. Formulas are those of `torch.optim.lr_scheduler`.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, check};

/// How the learning rate changes over a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Schedule {
    /// The peak learning rate throughout.
    Constant(Constant),
    /// Down along half a cosine to `minimum` at the end of the run.
    Cosine(Cosine),
    /// Down by a factor whenever the validation loss stops falling.
    Plateau(Plateau),
    /// Up to the peak and down to almost nothing.
    OneCycle(OneCycle),
}

impl Default for Schedule {
    fn default() -> Self {
        Self::Cosine(Cosine::default())
    }
}

/// A linear rise of the learning rate at the start: step `s`, from 0, of `w` gets `(s + 1) / w` of
/// it, so that the first step already moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Warmup {
    /// No rise.
    #[default]
    None,
    /// Over this many optimizer steps.
    Steps(u64),
    /// Over this share of the run's steps, `0..=1`.
    Share(f64),
    /// Over this many epochs.
    Epochs(f64),
}

/// Settings of [`Schedule::Constant`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Constant {
    /// Rise at the start.
    pub warmup: Warmup,
}

/// Settings of [`Schedule::Cosine`]: `CosineAnnealingLR` over the steps after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cosine {
    /// Rise at the start.
    pub warmup: Warmup,
    /// Learning rate at the end, 0 or more; 1e-5 in R1.
    pub minimum: f64,
}

impl Default for Cosine {
    fn default() -> Self {
        Self { warmup: Warmup::None, minimum: 1e-5 }
    }
}

/// Settings of [`Schedule::Plateau`]: `ReduceLROnPlateau`, told once per validation. Defaults are
/// PyTorch's, except for the patience of 5, which is reference system R2's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Plateau {
    /// Rise at the start.
    pub warmup: Warmup,
    /// What the learning rate is multiplied by, `0 < factor < 1`.
    pub factor: f64,
    /// Validations without an improvement that are tolerated; the next one lowers the rate.
    pub patience: u64,
    /// An improvement is a loss below `best · (1 − threshold)`; 0 or more.
    pub threshold: f64,
    /// Validations after a lowering during which nothing is counted.
    pub cooldown: u64,
    /// Lowest learning rate, 0 or more.
    pub minimum: f64,
}

impl Default for Plateau {
    fn default() -> Self {
        Self {
            warmup: Warmup::None,
            factor: 0.1,
            patience: 5,
            threshold: 1e-4,
            cooldown: 0,
            minimum: 0.0,
        }
    }
}

/// Settings of [`Schedule::OneCycle`]: `OneCycleLR` with cosine annealing in two phases and
/// `cycle_momentum=False`. Defaults are PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OneCycle {
    /// Share of the steps that the rate rises in, `0 < rise < 1`.
    pub rise: f64,
    /// The first learning rate is the peak divided by this; at least 1.
    pub start_divisor: f64,
    /// The last learning rate is the first divided by this; at least 1.
    pub end_divisor: f64,
}

impl Default for OneCycle {
    fn default() -> Self {
        Self { rise: 0.3, start_divisor: 25.0, end_divisor: 1e4 }
    }
}

/// What the plateau schedule remembers; part of every checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlateauState {
    /// Product of the factors applied so far.
    pub scale: f64,
    /// Lowest loss, if there was one.
    pub best: Option<f64>,
    /// Validations since the last improvement.
    pub waited: u64,
    /// Validations left of the cooldown.
    pub cooldown: u64,
}

impl Default for PlateauState {
    fn default() -> Self {
        Self { scale: 1.0, best: None, waited: 0, cooldown: 0 }
    }
}

/// Where a step lies within its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The step, from 0: updates that were applied before it. Those that were skipped do not count.
    pub step: u64,
    /// Steps of the whole run, as if none were skipped.
    pub total: u64,
    /// Steps of one epoch.
    pub per_epoch: u64,
}

impl Schedule {
    /// The learning rate of a step.
    pub fn learning_rate(&self, peak: f64, at: Progress, plateau: &PlateauState) -> f64 {
        match self {
            Self::Constant(constant) => peak * constant.warmup.factor(at),
            Self::Cosine(cosine) => {
                let warmup = cosine.warmup.steps(at);
                if at.step < warmup {
                    return peak * cosine.warmup.factor(at);
                }
                let share =
                    (at.step - warmup) as f64 / at.total.saturating_sub(warmup).max(1) as f64;
                anneal(peak, cosine.minimum.min(peak), share.min(1.0))
            }
            Self::Plateau(settings) => {
                let lowered = (peak * plateau.scale).max(settings.minimum.min(peak));
                lowered * settings.warmup.factor(at)
            }
            Self::OneCycle(cycle) => cycle.learning_rate(peak, at),
        }
    }

    /// Steps in which the rate rises at the start, of a run of this length.
    pub(crate) fn warmup_steps(&self, at: Progress) -> u64 {
        match self {
            Self::Constant(constant) => constant.warmup.steps(at),
            Self::Cosine(cosine) => cosine.warmup.steps(at),
            Self::Plateau(plateau) => plateau.warmup.steps(at),
            Self::OneCycle(_) => 0,
        }
    }

    /// The rate that it falls to, if that is a setting, and the key of the schedule.
    pub(crate) fn minimum(&self) -> Option<(&'static str, f64)> {
        match self {
            Self::Cosine(cosine) => Some(("cosine", cosine.minimum)),
            Self::Plateau(plateau) => Some(("plateau", plateau.minimum)),
            Self::Constant(_) | Self::OneCycle(_) => None,
        }
    }

    /// Tells the schedule a validation loss (NaN for one that could not be computed, which is as bad as an infinite one).
    pub fn observe(&self, loss: f64, state: &mut PlateauState) {
        let Self::Plateau(settings) = self else { return };
        let better = state.best.is_none_or(|best| loss < best * (1.0 - settings.threshold));
        // An infinite one is no better than none, and a checkpoint could not hold it.
        if better && loss.is_finite() {
            state.best = Some(loss);
            state.waited = 0;
        } else {
            state.waited += 1;
        }
        if state.cooldown > 0 {
            state.cooldown -= 1;
            state.waited = 0;
        }
        if state.waited > settings.patience {
            state.scale *= settings.factor;
            state.cooldown = settings.cooldown;
            state.waited = 0;
        }
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let rate = |key, value: f64| {
            check(key, value, |v| v >= 0.0 && v.is_finite(), "0 or more and finite")
        };
        match self {
            Self::Constant(constant) => constant.warmup.validate(),
            Self::Cosine(cosine) => {
                rate("schedule.cosine.minimum", cosine.minimum)?;
                cosine.warmup.validate()
            }
            Self::Plateau(plateau) => {
                rate("schedule.plateau.minimum", plateau.minimum)?;
                rate("schedule.plateau.threshold", plateau.threshold)?;
                let inside = |v| v > 0.0 && v < 1.0;
                check("schedule.plateau.factor", plateau.factor, inside, "above 0 and below 1")?;
                plateau.warmup.validate()
            }
            Self::OneCycle(cycle) => {
                let inside = |v| v > 0.0 && v < 1.0;
                check("schedule.one-cycle.rise", cycle.rise, inside, "above 0 and below 1")?;
                let divisor = |v: f64| v >= 1.0 && v.is_finite();
                let allowed = "at least 1 and finite";
                let start = cycle.start_divisor;
                check("schedule.one-cycle.start_divisor", start, divisor, allowed)?;
                check("schedule.one-cycle.end_divisor", cycle.end_divisor, divisor, allowed)
            }
        }
    }
}

impl Warmup {
    fn steps(self, at: Progress) -> u64 {
        match self {
            Self::None => 0,
            Self::Steps(steps) => steps,
            Self::Share(share) => (share * at.total as f64).round() as u64,
            Self::Epochs(epochs) => (epochs * at.per_epoch as f64).round() as u64,
        }
    }

    fn factor(self, at: Progress) -> f64 {
        let steps = self.steps(at);
        if at.step < steps { (at.step + 1) as f64 / steps as f64 } else { 1.0 }
    }

    fn validate(self) -> Result<(), ConfigError> {
        match self {
            Self::None | Self::Steps(_) => Ok(()),
            Self::Share(share) => {
                check("schedule.*.warmup.share", share, |v| (0.0..=1.0).contains(&v), "0 to 1")
            }
            Self::Epochs(epochs) => {
                let good = |v: f64| v >= 0.0 && v.is_finite();
                check("schedule.*.warmup.epochs", epochs, good, "0 or more and finite")
            }
        }
    }
}

impl OneCycle {
    fn learning_rate(&self, peak: f64, at: Progress) -> f64 {
        let first = peak / self.start_divisor;
        let last = first / self.end_divisor;
        let top = self.rise * at.total as f64 - 1.0;
        let end = at.total as f64 - 1.0;
        let step = at.step as f64;
        if step <= top {
            anneal(first, peak, step / top.max(f64::MIN_POSITIVE))
        } else {
            // A run of one step has no way to fall.
            let way = end - top;
            anneal(peak, last, if way > 0.0 { ((step - top) / way).min(1.0) } else { 1.0 })
        }
    }
}

/// From `start` to `end` along half a cosine.
fn anneal(start: f64, end: f64, share: f64) -> f64 {
    end + (start - end) / 2.0 * (1.0 + (PI * share).cos())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(schedule: &Schedule, total: u64) -> Vec<f64> {
        let at = |step| Progress { step, total, per_epoch: 10 };
        let state = PlateauState::default();
        (0..total).map(|step| schedule.learning_rate(1e-3, at(step), &state)).collect()
    }

    #[test]
    fn warm_up_rises_to_the_peak_and_meets_the_cosine() {
        let warmup = |warmup| Schedule::Cosine(Cosine { warmup, minimum: 1e-5 });
        let with = rates(&warmup(Warmup::Steps(4)), 24);
        for (rate, expected) in with.iter().zip([2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3]) {
            assert!((rate - expected).abs() < 1e-12, "{with:?}");
        }
        let without = rates(&warmup(Warmup::None), 20);
        assert!(with[4..].iter().zip(&without).all(|(a, b)| (a - b).abs() < 1e-15));
        assert_eq!(
            rates(&warmup(Warmup::Share(0.25)), 40),
            rates(&warmup(Warmup::Epochs(1.0)), 40)
        );
        let constant = Schedule::Constant(Constant { warmup: Warmup::Steps(2) });
        assert_eq!(rates(&constant, 4), [5e-4, 1e-3, 1e-3, 1e-3]);
    }

    #[test]
    fn short_runs_have_finite_rates() {
        for schedule in [
            Schedule::default(),
            Schedule::OneCycle(OneCycle::default()),
            Schedule::Plateau(Plateau::default()),
            Schedule::Cosine(Cosine { warmup: Warmup::Steps(100), minimum: 0.0 }),
        ] {
            for total in 1..6 {
                let rates = rates(&schedule, total);
                assert!(rates.iter().all(|r| (0.0..=1e-3).contains(r)), "{schedule:?} {rates:?}");
            }
        }
    }

    #[test]
    fn a_plateau_counts_a_loss_that_is_no_number_as_no_improvement() {
        let schedule = Schedule::Plateau(Plateau { patience: 1, ..Plateau::default() });
        let mut state = PlateauState::default();
        for loss in [f64::NAN, 1.0, f64::NAN, f64::NAN] {
            schedule.observe(loss, &mut state);
        }
        assert_eq!((state.best, state.scale), (Some(1.0), 0.1));
        // An infinite one is none either, as in PyTorch's `ReduceLROnPlateau`, whose best is infinite at first.
        let mut state = PlateauState::default();
        schedule.observe(f64::INFINITY, &mut state);
        schedule.observe(f64::INFINITY, &mut state);
        assert_eq!((state.best, state.scale), (None, 0.1));
    }
}
