//! Time and channel masking of whole batches: stretches of steps, and channels, set to zero.
//!
//! After SpecAugment (Park et al. 2019, arXiv:1904.08779), for classifiers and regressors. The masks
//! that pre-training learns to fill in are drawn elsewhere, by the models.

use burn::tensor::Tensor;
use firebox_core::Stream;
use firebox_kernels::indicator;
use serde::{Deserialize, Serialize};

/// What is hidden of each sample. Values are normalised, so zero is the mean of a channel or near it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Masking {
    /// Stretches of steps that are hidden.
    pub time_masks: usize,
    /// Longest of them, as a share of the sample's steps, `0..=1`: each is uniform from none to this, cut off to whole
    /// steps.
    pub longest: f64,
    /// Share of the channels that are hidden on average, `0..1`, each by a coin of its own; at least
    /// one stays.
    pub channels: f64,
}

/// What cannot be hidden.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum MaskingError {
    /// A share that cannot be.
    #[error("`masking.{key}` is {found}; it must be from 0 to {}", if *key == "channels" { "below 1" } else { "1" })]
    Share {
        /// Of what.
        key: &'static str,
        /// What was found.
        found: f64,
    },
    /// Stretches of steps without a length.
    #[error(
        "`masking.longest` is 0 beside time_masks = {0}, so no step is hidden\n  set longest, too, or leave time_masks out"
    )]
    NoLength(usize),
    /// Stretches that are shorter than a step.
    #[error(
        "`masking.longest` is {found}, which is less than one of the {steps} steps of a sample, so no step is hidden beside time_masks\n  \
         set longest to {} or more, or leave both out", least(*steps)
    )]
    TooShort {
        /// Share of the steps.
        found: f64,
        /// Steps of the longest sample.
        steps: usize,
    },
    /// More stretches than there are steps.
    #[error(
        "`masking.time_masks` is {found}; it must be at most {steps}, the steps of a sample: more stretches would hide all of it, or the same steps again\n  \
         set time_masks to {steps} or less; SpecAugment has two"
    )]
    TooMany {
        /// Stretches.
        found: usize,
        /// Steps of the longest sample.
        steps: usize,
    },
}

/// The least share that is a step, or a little more: four digits, which are no less when they are read.
fn least(steps: usize) -> f64 {
    (1e4 / steps as f64).ceil() / 1e4
}

impl Masking {
    /// Whether anything is hidden.
    pub fn is_on(&self) -> bool {
        (self.time_masks > 0 && self.longest > 0.0) || self.channels > 0.0
    }

    /// Whether nothing is hidden.
    pub fn is_off(&self) -> bool {
        !self.is_on()
    }

    /// Checks the shares, and that stretches of steps have a length.
    ///
    /// # Errors
    ///
    /// The first share that is out of range; `time_masks` without `longest`, while a length without stretches is none.
    pub fn validate(&self) -> Result<(), MaskingError> {
        if !(0.0..=1.0).contains(&self.longest) {
            return Err(MaskingError::Share { key: "longest", found: self.longest });
        }
        if !(0.0..1.0).contains(&self.channels) {
            return Err(MaskingError::Share { key: "channels", found: self.channels });
        }
        match self.time_masks {
            masks if masks > 0 && self.longest == 0.0 => Err(MaskingError::NoLength(masks)),
            _ => Ok(()),
        }
    }

    /// Checks that there are no more stretches than steps in the longest sample, and that they may have a step.
    ///
    /// # Errors
    ///
    /// More stretches than that, or shorter ones.
    pub fn validate_for(&self, steps: usize) -> Result<(), MaskingError> {
        match self.time_masks {
            found if found > steps => Err(MaskingError::TooMany { found, steps }),
            masks if masks > 0 && self.most_steps(steps) == 0 => {
                Err(MaskingError::TooShort { found: self.longest, steps })
            }
            _ => Ok(()),
        }
    }

    /// Steps that a stretch has at most in a sample of so many.
    fn most_steps(&self, steps: usize) -> u64 {
        (self.longest * steps as f64) as u64
    }

    /// Sets what is drawn for each sample to zero, on the device of `inputs`. What is hidden of a
    /// sample depends on `stream` and its index alone, not on the batch it is in.
    ///
    /// # Shapes
    ///
    /// - `inputs`, output: `[batch, time, channel]`
    /// - `lengths`, `indices`: `[batch]`
    ///
    /// # Panics
    ///
    /// When `longest` is above 1, which [`validate`](Self::validate) refuses, or a length above the steps of `inputs`.
    pub fn apply(
        &self,
        inputs: Tensor<3>,
        lengths: &[usize],
        indices: &[usize],
        stream: Stream,
    ) -> Tensor<3> {
        if !self.is_on() {
            return inputs;
        }
        let [batch, time, channel] = inputs.dims();
        let (mut steps, mut channels) = (vec![true; batch * time], vec![true; batch * channel]);
        for (row, (length, index)) in lengths.iter().zip(indices).enumerate() {
            let own = stream.substream(*index as u64);
            self.hide_steps(own.substream(0), &mut steps[row * time..][..*length]);
            self.hide_channels(own.substream(1), &mut channels[row * channel..][..channel]);
        }
        let device = inputs.device();
        let steps = indicator(&steps, [batch, time, 1], &device);
        inputs * steps * indicator(&channels, [batch, 1, channel], &device)
    }

    fn hide_steps(&self, stream: Stream, kept: &mut [bool]) {
        let mut draws = stream.draws();
        for _ in 0..self.time_masks {
            let length = draws.below(self.most_steps(kept.len()) + 1) as usize;
            let start = draws.below((kept.len() - length) as u64 + 1) as usize;
            kept[start..start + length].fill(false);
        }
    }

    fn hide_channels(&self, stream: Stream, kept: &mut [bool]) {
        let mut draws = stream.draws();
        for channel in kept.iter_mut() {
            if draws.chance(self.channels) {
                *channel = false;
            }
        }
        if !kept.is_empty() && !kept.contains(&true) {
            kept[draws.below(kept.len() as u64) as usize] = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    const LENGTHS: [usize; 3] = [20, 7, 0];

    fn masked(masking: Masking, indices: &[usize; 3], seed: u64) -> Vec<f32> {
        let inputs = Tensor::<3>::ones([3, 20, 4], &Device::default());
        let stream = Stream::new(seed, "masking");
        let output = masking.apply(inputs, &LENGTHS, indices, stream);
        output.into_data().try_to_vec::<f32>().unwrap()
    }

    #[test]
    fn hidden_is_what_is_drawn_for_the_sample_wherever_it_stands() {
        let masking = Masking { time_masks: 2, longest: 0.4, channels: 0.3 };
        let one = masked(masking, &[5, 6, 7], 1);
        assert_eq!(one, masked(masking, &[5, 6, 7], 1));
        assert_ne!(one, masked(masking, &[5, 6, 7], 2));
        let other = masked(masking, &[5, 9, 9], 1);
        assert_eq!(one[..80], other[..80]);
        assert_eq!(masked(Masking::default(), &[0, 1, 2], 1), vec![1.0; 240]);
    }

    #[test]
    fn shares_are_those_of_the_settings() {
        let masking = Masking { time_masks: 1, longest: 0.5, channels: 0.25 };
        let (mut steps, mut channels, mut longest) = (0.0, 0.0, 0);
        const SAMPLES: usize = 4000;
        for index in 0..SAMPLES {
            let own = Stream::new(3, "masking").substream(index as u64);
            let (mut time, mut channel) = ([true; 20], [true; 8]);
            masking.hide_steps(own.substream(0), &mut time);
            masking.hide_channels(own.substream(1), &mut channel);
            let hidden = time.iter().filter(|kept| !**kept).count();
            longest = longest.max(hidden);
            steps += hidden as f64;
            channels += channel.iter().filter(|kept| !**kept).count() as f64;
            assert!(channel.contains(&true));
        }
        // Lengths uniform from 0 to 10 steps; standard errors 0.05 and 0.02.
        assert!((steps / SAMPLES as f64 - 5.0).abs() < 0.2, "{steps}");
        assert!((channels / SAMPLES as f64 - 2.0).abs() < 0.08, "{channels}");
        assert_eq!(longest, 10);
    }

    #[test]
    fn shares_out_of_range_are_refused() {
        let error = |masking: Masking| masking.validate().unwrap_err().to_string();
        let all = Masking { channels: 1.0, ..Masking::default() };
        assert_eq!(error(all), "`masking.channels` is 1; it must be from 0 to below 1");
        let long = Masking { longest: f64::NAN, ..Masking::default() };
        assert_eq!(error(long), "`masking.longest` is NaN; it must be from 0 to 1");
        assert!(Masking { time_masks: 3, longest: 1.0, channels: 0.9 }.validate().is_ok());
        assert!(Masking { channels: 0.5, ..Masking::default() }.validate().is_ok());
    }

    #[test]
    fn stretches_without_a_length_are_refused() {
        let with = |time_masks, longest| Masking { time_masks, longest, channels: 0.5 };
        let said = with(2, 0.0).validate().unwrap_err().to_string();
        assert!(said.starts_with("`masking.longest` is 0 beside time_masks = 2,"), "{said}");
        assert!(said.contains("set longest, too, or leave time_masks out"), "{said}");
        // What a search may draw.
        assert!(with(0, 0.5).validate().is_ok());
    }

    #[test]
    fn stretches_of_less_than_a_step_are_refused() {
        let with = |longest| Masking { time_masks: 2, longest, channels: 0.0 };
        let said = with(0.05).validate_for(16).unwrap_err().to_string();
        assert!(
            said.starts_with("`masking.longest` is 0.05, which is less than one of the 16 steps"),
            "{said}"
        );
        assert!(said.contains("set longest to 0.0625 or more"), "{said}");
        assert!(with(0.0625).validate_for(16).is_ok());
        assert!(Masking { time_masks: 0, ..with(0.05) }.validate_for(16).is_ok());
        // What is advised is enough, also where no number of digits is the share itself.
        for steps in (2..3000).chain([16_384, 1_000_000]) {
            assert!(with(least(steps)).validate_for(steps).is_ok(), "{steps}");
        }
        assert_eq!([3, 49, 105].map(least), [0.3334, 0.0205, 0.0096]);
    }

    #[test]
    fn more_stretches_than_steps_are_refused() {
        let masking = Masking { time_masks: 1_000_000, longest: 0.1, channels: 0.0 };
        let said = masking.validate_for(20).unwrap_err().to_string();
        assert!(
            said.starts_with("`masking.time_masks` is 1000000; it must be at most 20,"),
            "{said}"
        );
        assert!(Masking { time_masks: 20, ..masking }.validate_for(20).is_ok());
    }
}
