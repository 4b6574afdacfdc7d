//! From the settings to the sampler and the pruner.

use std::collections::BTreeMap;

use firebox_search::{
    GridSampler, PatientPruner, PercentilePruner, Pruner, QuasiRandomSampler, RandomSampler,
    Sampler, Sequence, Space, TpeSampler,
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
            Box::new(QuasiRandomSampler::new(Sequence::Sobol, true, seed))
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
            let distributions = parameters.iter();
            let distributions: BTreeMap<_, _> =
                distributions.map(|(key, p)| (key.clone(), p.distribution.clone())).collect();
            let grid = GridSampler::new(&distributions, BTreeMap::new(), seed);
            Box::new(grid.map_err(|error| wrong("sampler", &error))?)
        }
    })
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
