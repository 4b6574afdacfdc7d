//! From the settings to the sampler and the pruner.

use std::collections::BTreeMap;

use firebox_search::{
    Distribution, GridSampler, PatientPruner, PercentilePruner, Pruner, QuasiRandomSampler,
    RandomSampler, Sampler, Sequence, Space, TpeSampler,
};

use super::config::{PrunerConfig, SamplerConfig};
use crate::error::PipelineError;

pub(super) fn sampler(
    config: &SamplerConfig,
    space: &Space,
    seed: u64,
) -> Result<Box<dyn Sampler>, PipelineError> {
    Ok(match config {
        SamplerConfig::Random => Box::new(RandomSampler::new(seed)),
        SamplerConfig::QuasiRandom => {
            Box::new(QuasiRandomSampler::new(Sequence::Sobol, true, seed, &distributions(space)))
        }
        SamplerConfig::Tpe(config) => {
            let sampler = TpeSampler::new(config.clone(), seed);
            Box::new(sampler.map_err(|error| wrong("sampler.tpe", &error))?)
        }
        SamplerConfig::Grid => {
            let parameters = space.parameters();
            if let Some((key, _)) = parameters.iter().find(|(_, p)| p.when.is_some()) {
                return Err(PipelineError::Setting(format!(
                    "`search.sampler` is grid, and `{key}` depends on another key\n  take another sampler, or search each case by itself"
                )));
            }
            let grid = GridSampler::new(&distributions(space), BTreeMap::new(), seed);
            Box::new(grid.map_err(|error| wrong("sampler", &error))?)
        }
    })
}

/// All keys of a space, those that exist for some choices of another alone among them.
fn distributions(space: &Space) -> BTreeMap<String, Distribution> {
    let parameters = space.parameters().iter();
    parameters.map(|(key, parameter)| (key.clone(), parameter.distribution.clone())).collect()
}

pub(super) fn pruner(
    config: &PrunerConfig,
    study: &str,
) -> Result<Option<Box<dyn Pruner>>, PipelineError> {
    let of = |name: &'static str| move |error| wrong(&format!("pruner.{name}"), &error);
    Ok(Some(match config.clone() {
        PrunerConfig::None => return Ok(None),
        PrunerConfig::Median(pruner) => {
            let percentile =
                PercentilePruner { percentile: 50.0, schedule: pruner.schedule.clone() };
            percentile.validate().map_err(of("median"))?;
            Box::new(pruner)
        }
        PrunerConfig::Percentile(pruner) => {
            pruner.validate().map_err(of("percentile"))?;
            Box::new(pruner)
        }
        PrunerConfig::SuccessiveHalving(pruner) => {
            pruner.validate().map_err(of("successive-halving"))?;
            Box::new(pruner)
        }
        PrunerConfig::Hyperband(mut pruner) => {
            pruner.study = study.to_owned();
            pruner.validate().map_err(of("hyperband"))?;
            Box::new(pruner)
        }
        PrunerConfig::Patient(patient) => {
            let pruner = PatientPruner::new(None, patient.patience, patient.min_delta);
            Box::new(pruner.map_err(of("patient"))?)
        }
        PrunerConfig::Threshold(pruner) => {
            pruner.validate().map_err(of("threshold"))?;
            Box::new(pruner)
        }
    }))
}

fn wrong(table: &str, error: &dyn std::fmt::Display) -> PipelineError {
    PipelineError::Setting(format!("[search.{table}] cannot be: {error}"))
}

#[cfg(test)]
mod tests {
    use firebox_search::{Choice, Direction, Parameter, SamplerContext, Value};

    use super::*;

    /// Of the first 64 points of Sobol's sequence each square of an eighth of the first and of the third axis has one,
    /// scrambled or not, also where the third key is asked for after the choice that it depends on.
    #[test]
    fn a_key_that_depends_on_another_is_no_function_of_those_before_it() {
        let unit = Distribution::Float { low: 0.0, high: 1.0, log: false, step: None };
        let choices = ["bf16", "f32"].map(|text| Choice::Text(text.to_owned())).to_vec();
        let when = Some(("b".to_owned(), Value::Choice(choices[0].clone())));
        let parameters = [
            ("a", Parameter { distribution: unit.clone(), when: None }),
            ("b", Parameter { distribution: Distribution::Categorical { choices }, when: None }),
            ("c", Parameter { distribution: unit, when }),
        ];
        let space = Space::new(parameters.map(|(name, own)| (name.to_owned(), own)).into());
        let space = space.unwrap();
        let mut sampler = sampler(&SamplerConfig::QuasiRandom, &space, 3).unwrap();
        let mut squares = std::collections::BTreeSet::new();
        for number in 0..64 {
            let context =
                SamplerContext { trials: &[], directions: &[Direction::Minimize], number };
            let mut depends = distributions(&space);
            let mut first = depends.clone();
            first.retain(|name, _| name != "c");
            depends.retain(|name, _| name == "c");
            let (first, then) =
                (sampler.sample(&context, &first), sampler.sample(&context, &depends));
            squares.insert([first["a"], then["c"]].map(|value| (8.0 * value) as u32));
        }
        assert_eq!(squares.len(), 64, "{squares:?}");
    }
}
