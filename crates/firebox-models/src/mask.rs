//! Which steps are hidden during masked pre-training.
//!
//! Masks fall on valid steps only, and every sample that has a step has a hidden one. The sizes of
//! R1 (105 steps: a block of 15, or 2 of 15 patches of 7 steps) follow from the shares below; other
//! lengths use the same shares. Each sample's mask depends on its own length and its own stream,
//! so it is the same in every batch.

use burn::tensor::{Device, Tensor};
use firebox_core::Stream;
use firebox_kernels::indicator;
use serde::{Deserialize, Serialize};

use crate::{ModelError, PretrainBatch};

/// How the hidden steps of a sample are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum MaskRule {
    /// Each step by itself. A sample that no step was drawn in has one uniformly chosen step.
    Random {
        /// Probability that a step is hidden, `0 < p ≤ 1`; 0.15 in R1.
        probability: f64,
    },
    /// One run of `⌊share · length⌋` steps (at least one) at a uniform place.
    Block {
        /// Share of the sample's steps, `0 < share ≤ 1`; 0.15 in R1.
        share: f64,
    },
    /// Whole patches: a sample is cut into patches of `steps` from its start (the last one may be
    /// shorter), and `⌊share · patches⌋` of them (at least one) are hidden.
    Patch {
        /// Steps of a patch; 7 in R1.
        steps: usize,
        /// Share of the sample's patches, `0 < share ≤ 1`; 0.15, which is R1's 2 of 15.
        share: f64,
    },
}

impl Default for MaskRule {
    /// R1's default: patches of 7 steps, 2 of 15.
    fn default() -> Self {
        Self::Patch { steps: 7, share: 0.15 }
    }
}

impl MaskRule {
    /// Checks the settings.
    ///
    /// # Errors
    /// The first setting that is out of its range.
    pub fn validate(&self) -> Result<(), ModelError> {
        let (key, share) = match self {
            Self::Random { probability } => ("mask.random.probability", *probability),
            Self::Block { share } => ("mask.block.share", *share),
            Self::Patch { share, .. } => ("mask.patch.share", *share),
        };
        if !(share > 0.0 && share <= 1.0) {
            let allowed = "above 0 and at most 1";
            return Err(ModelError::Setting { key, found: share.to_string(), allowed });
        }
        if let Self::Patch { steps: 0, .. } = self {
            let key = "mask.patch.steps";
            return Err(ModelError::Setting { key, found: "0".to_owned(), allowed: "at least 1" });
        }
        Ok(())
    }

    /// Draws the mask of a batch: sample `i` from `stream.substream(indices[i])`.
    pub fn draw(&self, batch: &PretrainBatch<'_>, stream: Stream) -> StepMask {
        let [_, time, _] = batch.inputs.dims();
        let mut mask = StepMask::none(batch.lengths.len(), time);
        let rows = mask.masked.chunks_exact_mut(time.max(1));
        for ((row, length), index) in rows.zip(batch.lengths).zip(batch.indices) {
            let length = (*length).min(time);
            if length > 0 {
                self.draw_sample(&mut row[..length], stream.substream(*index as u64));
            }
        }
        mask
    }

    /// Draws the mask of one sample of at least one step.
    fn draw_sample(&self, row: &mut [bool], stream: Stream) {
        let mut draws = stream.draws();
        let part = |share: f64, of: usize| ((share * of as f64).floor() as usize).clamp(1, of);
        match *self {
            Self::Random { probability } => {
                row.iter_mut().for_each(|step| *step = draws.chance(probability));
                if !row.contains(&true) {
                    row[draws.below(row.len() as u64) as usize] = true;
                }
            }
            Self::Block { share } => {
                let size = part(share, row.len());
                let start = draws.below((row.len() - size) as u64 + 1) as usize;
                row[start..start + size].fill(true);
            }
            Self::Patch { steps, share } => {
                let mut patches: Vec<&mut [bool]> = row.chunks_mut(steps).collect();
                let count = patches.len();
                // The first places of a partial Fisher–Yates shuffle are a draw without
                // replacement.
                for place in 0..part(share, count) {
                    let chosen = place + draws.below((count - place) as u64) as usize;
                    patches.swap(place, chosen);
                    patches[place].fill(true);
                }
            }
        }
    }
}

/// The hidden steps of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepMask {
    /// Whether each step is hidden, `[batch, time]` row by row.
    pub masked: Vec<bool>,
    /// Samples.
    pub batch: usize,
    /// Steps of each sample, padding included.
    pub time: usize,
}

impl StepMask {
    /// A mask that hides nothing.
    pub fn none(batch: usize, time: usize) -> Self {
        Self { masked: vec![false; batch * time], batch, time }
    }

    /// Number of hidden steps.
    pub fn count(&self) -> usize {
        self.masked.iter().filter(|masked| **masked).count()
    }

    /// One where a step is hidden, zero elsewhere.
    ///
    /// # Shapes
    /// - returns `[batch, time, 1]`
    pub fn to_tensor(&self, device: &Device) -> Tensor<3> {
        indicator(&self.masked, [self.batch, self.time, 1], device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(rule: MaskRule, lengths: &[usize], time: usize, seed: u64) -> StepMask {
        let inputs = Tensor::zeros([lengths.len(), time, 1], &Device::default());
        let indices: Vec<usize> = (0..lengths.len()).collect();
        let batch = PretrainBatch { inputs, lengths, indices: &indices };
        rule.draw(&batch, Stream::new(seed, "mask"))
    }

    const RULES: [MaskRule; 4] = [
        MaskRule::Random { probability: 0.15 },
        MaskRule::Block { share: 0.15 },
        MaskRule::Patch { steps: 7, share: 0.15 },
        MaskRule::Patch { steps: 200, share: 1.0 },
    ];

    #[test]
    fn every_sample_hides_a_valid_step_and_no_padding() {
        let lengths = [0, 1, 2, 6, 7, 8, 50, 104, 105];
        for rule in RULES {
            for seed in 0..40 {
                let mask = draw(rule, &lengths, 105, seed);
                for (row, length) in mask.masked.chunks(105).zip(lengths) {
                    assert_eq!(row[..length].contains(&true), length > 0, "{rule:?} {length}");
                    assert!(!row[length..].contains(&true), "{rule:?} {length}");
                }
            }
        }
    }

    #[test]
    fn sizes_are_those_of_the_reference_system() {
        let runs = |row: &[bool]| row.chunk_by(|a, b| a == b).filter(|run| run[0]).count();
        for seed in 0..200 {
            let block = draw(MaskRule::Block { share: 0.15 }, &[105], 105, seed);
            assert_eq!((block.count(), runs(&block.masked)), (15, 1));
            let patch = draw(MaskRule::default(), &[105], 105, seed);
            assert_eq!(patch.count(), 14);
            assert!(patch.masked.chunks(7).all(|p| p.iter().all(|step| *step == p[0])));
        }
    }

    #[test]
    fn every_step_is_hidden_equally_often() {
        for (rule, share) in [(RULES[0], 0.15), (RULES[2], 2.0 / 15.0)] {
            let batch = 6_000;
            let mask = draw(rule, &vec![105; batch], 105, 1);
            for step in 0..105 {
                let hidden = mask.masked.iter().skip(step).step_by(105).filter(|m| **m).count();
                let expected = share * batch as f64;
                let deviation = (hidden as f64 - expected) / (expected * (1.0 - share)).sqrt();
                assert!(deviation.abs() < 5.0, "{rule:?}, step {step}: {hidden} of {expected}");
            }
        }
    }

    #[test]
    fn a_mask_follows_its_sample_and_not_its_row() {
        let inputs = || Tensor::zeros([2, 30, 1], &Device::default());
        let mask = |lengths: &[usize], indices: &[usize]| {
            let batch = PretrainBatch { inputs: inputs(), lengths, indices };
            MaskRule::default().draw(&batch, Stream::new(3, "mask")).masked
        };
        let (a, b) = (mask(&[30, 20], &[4, 9]), mask(&[20, 30], &[9, 4]));
        assert_eq!((&a[..30], &a[30..]), (&b[30..], &b[..30]));
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let message = |rule: MaskRule| rule.validate().unwrap_err().to_string();
        assert!(message(MaskRule::Random { probability: 0.0 }).contains("mask.random.probability"));
        assert!(message(MaskRule::Block { share: 1.5 }).contains("1.5"));
        assert!(message(MaskRule::Block { share: f64::NAN }).contains("NaN"));
        assert!(message(MaskRule::Patch { steps: 0, share: 0.1 }).contains("at least 1"));
        assert!(RULES.iter().all(|rule| rule.validate().is_ok()));
    }
}
