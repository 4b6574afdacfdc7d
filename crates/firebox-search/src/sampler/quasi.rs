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
/// random, because it does not know the space before.) A parameter has the coordinate of its place in the
/// whole space, whatever it is asked for with: one that exists for some choices of another alone, and is asked
/// for after it, has one of its own, and so have those beside what was enqueued. A parameter of a single value takes no
/// coordinate. What the space does not have is drawn at random, and so is what is beyond the coordinates of
/// Sobol's table.
#[derive(Clone, Debug)]
pub struct QuasiRandomSampler {
    sequence: Sequence,
    scramble: bool,
    seed: u64,
    /// The coordinate of each parameter that has one.
    dimensions: BTreeMap<String, usize>,
}

impl QuasiRandomSampler {
    /// A sampler of `sequence` over `space`, which has all parameters that any trial may have. Without `scramble`
    /// the seed plays no part in what has a coordinate, and the first point is the corner of all least values.
    pub fn new(
        sequence: Sequence,
        scramble: bool,
        seed: u64,
        space: &BTreeMap<String, Distribution>,
    ) -> Self {
        let searched = space.iter().filter(|(_, distribution)| !distribution.is_single());
        let dimensions = searched.enumerate().map(|(place, (name, _))| (name.clone(), place));
        Self { sequence, scramble, seed, dimensions: dimensions.collect() }
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
        let draw = |(name, distribution): (&String, &Distribution)| {
            let dimension = self.dimensions.get(name);
            let value = if distribution.is_single() {
                from_unit(distribution, 0.0)
            } else {
                let unit = dimension.and_then(|place| self.unit(*place, context.number));
                unit.map_or_else(
                    || RandomSampler::new(self.seed).draw(context.number, name, distribution),
                    |unit| from_unit(distribution, unit),
                )
            };
            (name.clone(), value)
        };
        space.iter().map(draw).collect()
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
                let mut sampler = QuasiRandomSampler::new(sequence, false, 0, &space());
                let found = sampler.sample(&context(number as u64), &space());
                let wanted = expected.as_object().unwrap();
                assert_eq!(found.len(), wanted.len());
                for (name, expected) in wanted {
                    let (value, expected) = (found[name], expected.as_f64().unwrap());
                    assert!(
                        (value - expected).abs() <= 1e-12 * expected.abs(),
                        "{name} of {number}"
                    );
                    // Asked for by itself, after those that it depends on, it has its own coordinate.
                    let alone = BTreeMap::from([(name.clone(), space()[name].clone())]);
                    let alone = sampler.sample(&context(number as u64), &alone);
                    assert_eq!(alone, BTreeMap::from([(name.clone(), value)]), "{number}");
                }
            }
        }
    }

    #[test]
    fn scrambling_moves_points_with_the_seed_and_keeps_them_within_the_space() {
        for sequence in [Sequence::Sobol, Sequence::Halton] {
            let at = |seed, number| {
                let mut sampler = QuasiRandomSampler::new(sequence, true, seed, &space());
                sampler.sample(&context(number), &space())
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
        let mut sampler = QuasiRandomSampler::new(Sequence::Sobol, false, 1, &wide);
        let found = sampler.sample(&context(0), &wide);
        assert_eq!(found.values().filter(|v| **v == 0.0).count(), SOBOL_DIMENSIONS);
        // Nor has what the space does not have.
        let strange = BTreeMap::from([("strange".to_owned(), float)]);
        let random = RandomSampler::new(1).sample(&context(0), &strange);
        assert_eq!(sampler.sample(&context(0), &strange), random);
    }
}
