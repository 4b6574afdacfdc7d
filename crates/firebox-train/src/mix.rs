//! Mixup and cutmix: training windows that are made of two, with the classes of both.
//!
//! They are drawn anew at each step from a counter-based stream, so a resumed run draws the same. What
//! is made here is a batch; the loss is that of `classify`.

use burn::tensor::{Int, Tensor, TensorData};
use firebox_core::{Draws, Stream};
use firebox_kernels::indicator;
use serde::{Deserialize, Serialize};

use crate::ConfigError;
use crate::config::check;

/// How training windows are mixed: `[finetune.mix]`. Validation and test windows never are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Mix {
    /// Not at all.
    #[default]
    None,
    /// Each window becomes `λ·own + (1 − λ)·other`, with λ from Beta(α, α), and counts for both
    /// classes by these shares. Source: Zhang, Cisse, Dauphin and Lopez-Paz, "mixup: beyond empirical
    /// risk minimization", 2018.
    Mixup {
        /// α of the beta distribution, above 0; R1: 0.4.
        #[serde(default = "alpha")]
        alpha: f64,
    },
    /// With a probability, a run of steps of each window is replaced by the same steps of another, a
    /// uniform share of them, and the window counts for both classes by their shares of its steps.
    /// Source: Yun et al., "CutMix", 2019, along time.
    Cutmix {
        /// Probability that a batch is mixed, above 0 and at most 1; R1: 0.5.
        #[serde(default = "half")]
        probability: f64,
    },
}

fn alpha() -> f64 {
    0.4
}

fn half() -> f64 {
    0.5
}

/// A batch in which every window has two classes.
#[derive(Clone, Debug)]
pub struct Mixed {
    /// `[batch, time, channel]`.
    pub inputs: Tensor<3>,
    /// Valid steps of each window.
    pub lengths: Vec<usize>,
    /// The row that each row was mixed with, itself where it was not.
    pub partners: Vec<usize>,
    /// What each row's own class counts; its partner's counts the rest to 1.
    pub shares: Vec<f32>,
}

impl Mix {
    /// Checks the settings.
    ///
    /// # Errors
    /// The setting that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        match *self {
            Self::None => Ok(()),
            Self::Mixup { alpha } => {
                let fits = |alpha: f64| (1e-3..=1e3).contains(&alpha);
                check("mix.mixup.alpha", alpha, fits, "from 0.001 to 1000")
            }
            Self::Cutmix { probability } => {
                let fits = |p: f64| p > 0.0 && p <= 1.0;
                let allowed = "above 0 and at most 1; with mix = \"none\" nothing is mixed";
                check("mix.cutmix.probability", probability, fits, allowed)
            }
        }
    }

    /// Mixes a batch, or gives it back as it is. Everything is drawn from `stream`: the partners of
    /// all rows together, then each row by itself.
    ///
    /// A window mixed by mixup is as long as the longer of both. By cutmix it keeps its length, and no
    /// step beyond its partner's is replaced.
    ///
    /// # Shapes
    /// - inputs: `[batch, time, channel]`, zero after each length
    /// - lengths: `[batch]`
    pub fn apply(&self, inputs: Tensor<3>, lengths: &[usize], stream: Stream) -> Mixed {
        let [batch, time, _] = inputs.dims();
        let mut draws = stream.substream(0).draws();
        let mut partners: Vec<usize> = (0..batch).collect();
        let mixes = match *self {
            Self::None => false,
            Self::Mixup { .. } => true,
            Self::Cutmix { probability } => draws.chance(probability),
        };
        if !mixes || batch < 2 {
            let (lengths, shares) = (lengths.to_vec(), vec![1.0; batch]);
            return Mixed { inputs, lengths, partners, shares };
        }
        draws.shuffle(&mut partners);
        let mut shares = Vec::with_capacity(batch);
        let mut new_lengths = Vec::with_capacity(batch);
        // What each row takes from its partner as a whole.
        let mut taken = Vec::with_capacity(batch);
        // The steps that are the partner's.
        let mut replaced = vec![false; batch * time];
        for (row, partner) in partners.iter().enumerate() {
            let mut draws = stream.substream(1).substream(row as u64).draws();
            let (own, other) = (lengths[row].min(time), lengths[*partner].min(time));
            let steps = &mut replaced[row * time..(row + 1) * time];
            if let Self::Mixup { alpha } = *self {
                let share = beta(&mut draws, alpha);
                taken.push((1.0 - share) as f32);
                shares.push(share as f32);
                new_lengths.push(own.max(other));
            } else {
                let both = own.min(other);
                let cut = (draws.uniform_f64() * (both + 1) as f64) as usize;
                let start = draws.below((both - cut) as u64 + 1) as usize;
                steps[start..start + cut].fill(true);
                shares.push(1.0 - cut as f32 / own.max(1) as f32);
                new_lengths.push(own);
            }
        }
        let device = inputs.device().without_autodiff();
        let order: Vec<i64> = partners.iter().map(|row| *row as i64).collect();
        let order = Tensor::<1, Int>::from_data(TensorData::new(order, [batch]), &device);
        let taken: Tensor<3> = match self {
            Self::Mixup { .. } => Tensor::from_data(TensorData::new(taken, [batch, 1, 1]), &device),
            Self::None | Self::Cutmix { .. } => indicator(&replaced, [batch, time, 1], &device),
        };
        let other = inputs.clone().select(0, order) * taken.clone();
        let inputs = inputs * (1.0 - taken) + other;
        Mixed { inputs, lengths: new_lengths, partners, shares }
    }
}

/// A draw from Beta(α, α): the share of one of two gamma variates in their sum.
fn beta(draws: &mut Draws, alpha: f64) -> f64 {
    let (a, b) = (log_gamma_variate(draws, alpha), log_gamma_variate(draws, alpha));
    // As logarithms: for a small α both variates may be too small for a number.
    1.0 / (1.0 + (b - a).exp())
}

/// The logarithm of a draw from Gamma(α, 1). Source: Marsaglia and Tsang, "A simple method for
/// generating gamma variables", 2000, with their way to shapes below 1.
fn log_gamma_variate(draws: &mut Draws, alpha: f64) -> f64 {
    let (shape, boost) = if alpha < 1.0 {
        (alpha + 1.0, (1.0 - draws.uniform_f64()).ln() / alpha)
    } else {
        (alpha, 0.0)
    };
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = draws.normal();
        let v = (1.0 + c * x).powi(3);
        let u = 1.0 - draws.uniform_f64();
        if v > 0.0 && u.ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return (d * v).ln() + boost;
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    fn values(tensor: Tensor<3>) -> Vec<f32> {
        tensor.into_data().try_into_vec().unwrap()
    }

    /// Rows whose values name them: row 2 holds 3s.
    fn rows(lengths: &[usize], time: usize) -> Tensor<3> {
        let value = |at: usize| {
            let (row, step) = (at / time, at % time);
            if step < lengths[row] { (row + 1) as f32 } else { 0.0 }
        };
        let values: Vec<f32> = (0..lengths.len() * time).map(value).collect();
        let data = TensorData::new(values, [lengths.len(), time, 1]);
        Tensor::from_data(data, &Device::default())
    }

    #[test]
    fn beta_has_its_moments_and_stays_within_its_bounds() {
        for alpha in [0.01, 0.4, 1.0, 3.0] {
            let mut draws = Stream::new(1, "beta").draws();
            let all: Vec<f64> = (0..40_000).map(|_| beta(&mut draws, alpha)).collect();
            assert!(all.iter().all(|share| (0.0..=1.0).contains(share)), "{alpha}");
            let mean = all.iter().sum::<f64>() / all.len() as f64;
            let variance =
                all.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / all.len() as f64;
            let expected = 1.0 / (4.0 * (2.0 * alpha + 1.0));
            assert!((mean - 0.5).abs() < 0.01, "{alpha}: {mean}");
            assert!((variance - expected).abs() < 0.005, "{alpha}: {variance} {expected}");
        }
    }

    #[test]
    fn mixup_is_the_weighted_sum_of_two_rows() {
        let lengths = [6, 6, 4, 6, 2];
        let mixed =
            Mix::Mixup { alpha: 0.4 }.apply(rows(&lengths, 6), &lengths, Stream::new(3, "m"));
        assert_ne!(mixed.partners, [0, 1, 2, 3, 4]);
        let found = values(mixed.inputs.clone());
        for row in 0..5 {
            let (partner, share) = (mixed.partners[row], mixed.shares[row]);
            assert_eq!(mixed.lengths[row], lengths[row].max(lengths[partner]));
            for step in 0..6 {
                let at = |row: usize| if step < lengths[row] { (row + 1) as f32 } else { 0.0 };
                let expected = share * at(row) + (1.0 - share) * at(partner);
                assert!((found[row * 6 + step] - expected).abs() < 1e-6);
            }
        }
        let again =
            Mix::Mixup { alpha: 0.4 }.apply(rows(&lengths, 6), &lengths, Stream::new(3, "m"));
        assert_eq!((values(again.inputs), again.shares), (found, mixed.shares));
    }

    #[test]
    fn cutmix_replaces_a_run_of_steps_and_shares_are_those_of_the_steps() {
        let lengths = [9, 9, 5, 0];
        let mut cut_ever = false;
        for seed in 0..50 {
            let mix = Mix::Cutmix { probability: 1.0 };
            let mixed = mix.apply(rows(&lengths, 9), &lengths, Stream::new(seed, "cut"));
            assert_eq!(mixed.lengths, lengths);
            let found = values(mixed.inputs);
            for row in 0..4 {
                let steps = &found[row * 9..][..9];
                let (own, other) = ((row + 1) as f32, (mixed.partners[row] + 1) as f32);
                assert!(steps[lengths[row]..].iter().all(|value| *value == 0.0));
                let foreign: Vec<usize> =
                    (0..lengths[row]).filter(|step| steps[*step] != own).collect();
                assert!(foreign.iter().all(|step| steps[*step] == other));
                assert!(foreign.windows(2).all(|pair| pair[1] == pair[0] + 1), "one run");
                cut_ever |= !foreign.is_empty();
                if own != other {
                    let share = 1.0 - foreign.len() as f32 / lengths[row].max(1) as f32;
                    assert_eq!(mixed.shares[row], share);
                }
            }
        }
        assert!(cut_ever);
    }

    #[test]
    fn nothing_is_mixed_where_none_is_asked_for_or_there_is_one_row() {
        let stream = Stream::new(1, "m");
        for (mix, lengths) in [
            (Mix::None, vec![4, 4]),
            (Mix::Cutmix { probability: 0.0 }, vec![4, 4]),
            (Mix::Mixup { alpha: 0.4 }, vec![4]),
        ] {
            let mixed = mix.apply(rows(&lengths, 4), &lengths, stream);
            assert_eq!(values(mixed.inputs), values(rows(&lengths, 4)));
            assert!(mixed.shares.iter().all(|share| *share == 1.0));
        }
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let refused = |mix: Mix| mix.validate().unwrap_err().to_string();
        assert!(refused(Mix::Mixup { alpha: 0.0 }).contains("mix.mixup.alpha` is 0"));
        assert!(refused(Mix::Mixup { alpha: f64::NAN }).contains("NaN"));
        for probability in [1.5, -0.5, f64::NAN] {
            let said = refused(Mix::Cutmix { probability });
            assert!(said.contains("must be above 0 and at most 1"), "{said}");
        }
        // What mixes nothing is a slip, and has another name.
        let never = refused(Mix::Cutmix { probability: 0.0 });
        assert!(never.contains("mix.cutmix.probability` is 0;"), "{never}");
        assert!(never.contains("with mix = \"none\" nothing is mixed"), "{never}");
        assert_eq!(Mix::Cutmix { probability: 1.0 }.validate(), Ok(()));
    }
}
