//! Parameters at random, each independent of all others.

use std::collections::BTreeMap;

use firebox_core::Stream;

use crate::sampler::unit::from_unit;
use crate::sampler::{Sampler, SamplerContext};
use crate::space::Distribution;

/// Draws each parameter from its distribution: Optuna's `RandomSampler`.
///
/// A value depends on the seed, the trial's number and the parameter's name; other parameters can
/// come and go.
#[derive(Clone, Copy, Debug)]
pub struct RandomSampler {
    seed: u64,
}

impl RandomSampler {
    /// A sampler that draws from `seed`.
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    pub(crate) fn draw(&self, number: u64, name: &str, distribution: &Distribution) -> f64 {
        let stream = Stream::new(self.seed, "search/random").substream(number);
        from_unit(distribution, stream.substream(hash(name)).draws().uniform_f64())
    }
}

/// FNV-1a: stable across versions and platforms, unlike the standard library's hasher.
pub(crate) fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl Sampler for RandomSampler {
    fn sample(
        &mut self,
        context: &SamplerContext<'_>,
        space: &BTreeMap<String, Distribution>,
    ) -> BTreeMap<String, f64> {
        let draw = |(name, distribution): (&String, &Distribution)| {
            (name.clone(), self.draw(context.number, name, distribution))
        };
        space.iter().map(draw).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::testing::{context, space};

    #[test]
    fn a_value_depends_on_seed_number_and_name_alone() {
        let space = space();
        let mut sampler = RandomSampler::new(7);
        let whole = sampler.sample(&context(3), &space);
        for (name, distribution) in &space {
            let alone = BTreeMap::from([(name.clone(), distribution.clone())]);
            assert_eq!(RandomSampler::new(7).sample(&context(3), &alone)[name], whole[name]);
        }
        assert_ne!(sampler.sample(&context(4), &space), whole);
        assert_ne!(RandomSampler::new(8).sample(&context(3), &space), whole);
    }

    #[test]
    fn every_step_and_choice_comes_equally_often() {
        let space = space();
        let mut counts = BTreeMap::<(String, i64), u32>::new();
        for number in 0..12_000 {
            for (name, value) in RandomSampler::new(1).sample(&context(number), &space) {
                assert!(space[&name].contains(value), "{name} {value}");
                let cell = match space[&name] {
                    Distribution::Float { low, high, step: None, .. } => {
                        let place = if name == "rate" {
                            (value / low).ln() / (high / low).ln()
                        } else {
                            (value - low) / (high - low)
                        };
                        (place * 4.0) as i64
                    }
                    _ => (value * 4.0) as i64,
                };
                *counts.entry((name, cell)).or_default() += 1;
            }
        }
        for name in ["dropout", "kind", "layers", "mix", "rate"] {
            let of: Vec<_> =
                counts.iter().filter(|((n, _), _)| n == name).map(|(_, c)| *c).collect();
            let expected = 12_000.0 / of.len() as f64;
            assert!(of.len() >= 3, "{name}");
            // Five standard deviations of a count.
            assert!(
                of.iter().all(|&c| (f64::from(c) - expected).abs() < 5.0 * expected.sqrt()),
                "{name} {of:?}"
            );
        }
    }
}
