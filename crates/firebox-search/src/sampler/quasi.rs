//! Parameters from a sequence of points that fills the space evenly.

use std::collections::BTreeMap;

use firebox_core::Stream;

use crate::sampler::halton::Halton;
use crate::sampler::random::RandomSampler;
use crate::sampler::sobol::Sobol;
use crate::sampler::unit::from_unit;
use crate::sampler::{Sampler, SamplerContext};
use crate::space::Distribution;

/// Which sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sequence {
    /// Sobol's: the more even of the two, best with a power of two as the number of trials.
    #[default]
    Sobol,
    /// Halton's.
    Halton,
}

/// Takes the trial's number as the place in a quasi-random sequence: Optuna's `QMCSampler`.
///
/// Trial `n` gets point `n`, whatever the other trials are, so that workers need not agree on
/// anything but the seed. (Optuna counts in the study's attributes and draws the first trial at
/// random, because it does not know the space before.) A parameter of a single value takes no
/// coordinate. Spaces with more parameters than Sobol's table has coordinates get the rest at random.
#[derive(Clone, Copy, Debug)]
pub struct QuasiRandomSampler {
    sequence: Sequence,
    scramble: bool,
    seed: u64,
}

impl QuasiRandomSampler {
    /// A sampler of `sequence`. Without `scramble` the seed plays no part, and the first point is the
    /// corner of all least values.
    pub fn new(sequence: Sequence, scramble: bool, seed: u64) -> Self {
        Self { sequence, scramble, seed }
    }

    /// Coordinate `dimension` of point `number`, from 0 to below 1.
    fn unit(&self, dimension: usize, number: u64) -> Option<f64> {
        let stream = Stream::new(self.seed, "search/quasi").substream(dimension as u64);
        let scramble = self.scramble.then_some(stream);
        match self.sequence {
            Sequence::Sobol => Some(Sobol::new(dimension, scramble)?.at(number)),
            Sequence::Halton => Some(Halton::new(dimension, scramble).at(number)),
        }
    }
}

impl Sampler for QuasiRandomSampler {
    fn sample(
        &mut self,
        context: &SamplerContext<'_>,
        space: &BTreeMap<String, Distribution>,
    ) -> BTreeMap<String, f64> {
        let mut dimension = 0;
        let mut sampled = BTreeMap::new();
        for (name, distribution) in space {
            let value = if distribution.is_single() {
                from_unit(distribution, 0.0)
            } else {
                let unit = self.unit(dimension, context.number);
                dimension += 1;
                unit.map_or_else(
                    || RandomSampler::new(self.seed).draw(context.number, name, distribution),
                    |unit| from_unit(distribution, unit),
                )
            };
            sampled.insert(name.clone(), value);
        }
        sampled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;
    use crate::sampler::sobol::SOBOL_DIMENSIONS;
    use crate::sampler::testing::{context, space};

    #[test]
    fn plain_proposals_are_optunas() {
        let mut cases = golden::read("quasi");
        for (name, sequence) in
            [("optuna_sobol", Sequence::Sobol), ("optuna_halton", Sequence::Halton)]
        {
            let expected = cases.remove(name).unwrap();
            for (number, expected) in expected.as_array().unwrap().iter().enumerate() {
                let mut sampler = QuasiRandomSampler::new(sequence, false, 0);
                let found = sampler.sample(&context(number as u64), &space());
                let wanted = expected.as_object().unwrap();
                assert_eq!(found.len(), wanted.len());
                for (name, expected) in wanted {
                    let (value, expected) = (found[name], expected.as_f64().unwrap());
                    assert!(
                        (value - expected).abs() <= 1e-12 * expected.abs(),
                        "{name} of {number}"
                    );
                }
            }
        }
    }

    #[test]
    fn scrambling_moves_points_with_the_seed_and_keeps_them_within_the_space() {
        for sequence in [Sequence::Sobol, Sequence::Halton] {
            let at = |seed, number| {
                QuasiRandomSampler::new(sequence, true, seed).sample(&context(number), &space())
            };
            assert_eq!(at(1, 5), at(1, 5));
            assert_ne!(at(1, 5), at(2, 5));
            for number in 0..200 {
                assert!(at(1, number).iter().all(|(name, value)| space()[name].contains(*value)));
            }
        }
    }

    #[test]
    fn more_parameters_than_coordinates_are_filled_up_at_random() {
        let float = Distribution::Float { low: 0.0, high: 1.0, log: false, step: None };
        let wide: BTreeMap<_, _> =
            (0..SOBOL_DIMENSIONS + 3).map(|i| (format!("p{i:03}"), float.clone())).collect();
        let found = QuasiRandomSampler::new(Sequence::Sobol, false, 1).sample(&context(0), &wide);
        assert_eq!(found.values().filter(|v| **v == 0.0).count(), SOBOL_DIMENSIONS);
    }
}
