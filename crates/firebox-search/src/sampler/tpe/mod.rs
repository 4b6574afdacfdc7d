//! The tree-structured Parzen estimator: parameters that good trials have and bad ones do not.
//!
//! Sources: Bergstra et al., "Algorithms for hyper-parameter optimization", 2011; Watanabe,
//! "Tree-structured Parzen estimator: understanding its algorithm components", arXiv 2304.11127. The
//! behaviour and the defaults are those of `TPESampler` in Optuna 5.0.0.

mod joint;
mod parzen;
mod split;

use std::collections::BTreeMap;

use firebox_core::Stream;
use serde::{Deserialize, Serialize};

use crate::sampler::random::{RandomSampler, hash};
use crate::sampler::unit::from_unit;
use crate::sampler::{Sampler, SamplerContext};
use crate::space::{Choice, Distribution, Value};
use crate::storage::json;
use crate::trial::{Trial, TrialState};
use joint::{Subspace, groups, intersection};
use parzen::{Parzen, Shape};
use split::split;

/// Under this attribute Optuna's workers write the parameters that a running trial will have.
const RELATIVE_PARAMETERS: &str = "tpe:relative_params";

/// Settings of a [`TpeSampler`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TpeConfig {
    /// Complete and pruned trials before the first that is not drawn at random.
    pub startup_trials: usize,
    /// Points drawn from the good trials' density, of which the best is taken; at least 1.
    pub candidates: usize,
    /// Whether parameters are sampled together, so that their interplay counts. Left out: with one
    /// objective.
    pub multivariate: Option<bool>,
    /// Whether parameters that only some trials have are sampled together with those that the same
    /// trials have; otherwise each alone. Needs `multivariate`.
    pub group: bool,
    /// Whether parameters near those of running trials are avoided.
    pub constant_liar: bool,
    /// Weight of the prior, in trials.
    pub prior_weight: f64,
    /// Whether narrow kernels are widened while there are few trials.
    pub magic_clip: bool,
    /// Whether the outermost kernels are at least as wide as their distance from the range's end.
    pub endpoints: bool,
}

impl Default for TpeConfig {
    /// Optuna 5.0.0's defaults.
    fn default() -> Self {
        Self {
            startup_trials: 10,
            candidates: 24,
            multivariate: None,
            group: false,
            constant_liar: true,
            prior_weight: 1.0,
            magic_clip: true,
            endpoints: false,
        }
    }
}

/// Why a [`TpeSampler`] cannot be.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum TpeError {
    /// Groups without joint sampling.
    #[error("`group` needs joint sampling; leave out `multivariate = false` or `group`")]
    GroupAlone,
    /// No candidates.
    #[error("`candidates` is 0; at least 1 point must be drawn")]
    NoCandidates,
    /// A prior weight that is negative or not finite.
    #[error("`prior_weight` is {0}; it must be 0 or a finite number above it")]
    PriorWeight(f64),
}

/// Optuna's `TPESampler`.
///
/// For each trial it splits the past ones into good and bad, gives each part a density, and takes the
/// point that is likeliest under the good and unlikeliest under the bad of some points drawn from the
/// good. It keeps nothing between trials: a proposal depends on the seed, the trial's number and the
/// past trials.
#[derive(Clone, Debug)]
pub struct TpeSampler {
    config: TpeConfig,
    seed: u64,
}

impl TpeSampler {
    /// A sampler that draws from `seed`.
    ///
    /// # Errors
    ///
    /// If a setting cannot be.
    pub fn new(config: TpeConfig, seed: u64) -> Result<Self, TpeError> {
        if config.group && config.multivariate == Some(false) {
            return Err(TpeError::GroupAlone);
        }
        if config.candidates == 0 {
            return Err(TpeError::NoCandidates);
        }
        if !(config.prior_weight >= 0.0 && config.prior_weight.is_finite()) {
            return Err(TpeError::PriorWeight(config.prior_weight));
        }
        Ok(Self { config, seed })
    }

    /// The parts of `space` that are sampled together; what no part has is sampled alone.
    fn parts<'a>(
        &self,
        context: &SamplerContext<'_>,
        finished: &[&Trial],
        space: &'a BTreeMap<String, Distribution>,
    ) -> Vec<Subspace<'a>> {
        let single_objective = context.directions.len() <= 1;
        let multivariate =
            self.config.multivariate.unwrap_or(self.config.group || single_objective);
        let mut parts = match (multivariate, self.config.group) {
            (true, true) => groups(finished, space),
            (true, false) => vec![intersection(finished, space)],
            (false, _) => Vec::new(),
        };
        parts.retain(|part| !part.is_empty());
        for (name, distribution) in space {
            if !distribution.is_single() && !parts.iter().any(|part| part.contains_key(&**name)) {
                parts.push(BTreeMap::from([(name.as_str(), distribution)]));
            }
        }
        parts
    }

    /// The good and the bad trials.
    fn split<'a>(&self, context: &SamplerContext<'a>) -> [Vec<&'a Trial>; 2] {
        let counts = |trial: &&Trial| match trial.state {
            TrialState::Complete | TrialState::Pruned => true,
            TrialState::Running => self.config.constant_liar,
            TrialState::Fail | TrialState::Waiting => false,
        };
        let trials: Vec<_> = others(context).filter(counts).collect();
        let finished = trials.iter().filter(|trial| trial.state.is_finished()).count();
        split(&trials, context.directions, good_trials(context, finished))
    }

    /// The best of the candidates; `draw` gives uniform numbers in [0, 1).
    fn propose(
        &self,
        context: &SamplerContext<'_>,
        [below, above]: &[Vec<&Trial>; 2],
        part: &Subspace<'_>,
        draw: &mut dyn FnMut() -> f64,
    ) -> Vec<f64> {
        let shape = Shape {
            prior_weight: self.config.prior_weight,
            magic_clip: self.config.magic_clip,
            endpoints: self.config.endpoints,
        };
        let (below, above) = (observations(below, part), observations(above, part));
        let equal = (context.directions.len() > 1).then(|| vec![1.0; below.len()]);
        let below = Parzen::new(&below, part, shape, equal);
        let above = Parzen::new(&above, part, shape, None);
        let mut candidates = below.sample(self.config.candidates, draw);
        let gains = below.log_density(&candidates).into_iter().zip(above.log_density(&candidates));
        let gains = gains.map(|(below, above)| below - above);
        let best = gains.enumerate().fold((0, f64::NEG_INFINITY), |best, (place, gain)| {
            if gain > best.1 { (place, gain) } else { best }
        });
        candidates.swap_remove(best.0)
    }
}

impl Sampler for TpeSampler {
    fn sample(
        &mut self,
        context: &SamplerContext<'_>,
        space: &BTreeMap<String, Distribution>,
    ) -> BTreeMap<String, f64> {
        let done =
            |trial: &&Trial| matches!(trial.state, TrialState::Complete | TrialState::Pruned);
        let finished: Vec<_> = others(context).filter(done).collect();
        if finished.len() < self.config.startup_trials {
            return RandomSampler::new(self.seed).sample(context, space);
        }
        let mut values: BTreeMap<String, f64> = space
            .iter()
            .filter(|(_, distribution)| distribution.is_single())
            .map(|(name, distribution)| (name.clone(), from_unit(distribution, 0.0)))
            .collect();
        let stream = Stream::new(self.seed, "search/tpe").substream(context.number);
        let trials = self.split(context);
        for part in self.parts(context, &finished, space) {
            let purpose = part.keys().fold(0, |purpose, name| hash(name) ^ (purpose << 1));
            let mut draws = stream.substream(purpose).draws();
            let point = self.propose(context, &trials, &part, &mut || draws.uniform_f64());
            values.extend(part.keys().map(|name| (*name).to_owned()).zip(point));
        }
        values
    }
}

/// The trials but the one to sample for.
fn others<'a>(context: &SamplerContext<'a>) -> impl Iterator<Item = &'a Trial> {
    let number = context.number;
    context.trials.iter().filter(move |trial| trial.number != number)
}

/// How many of the `finished` trials count as good: a tenth, with one objective at most 25.
fn good_trials(context: &SamplerContext<'_>, finished: usize) -> usize {
    let tenth = (0.1 * finished as f64).ceil() as usize;
    if context.directions.len() <= 1 { tenth.min(25) } else { tenth }
}

/// The internal values of the trials that have all parameters of `part`.
fn observations(trials: &[&Trial], part: &Subspace<'_>) -> Vec<Vec<f64>> {
    let of_trial = |trial: &&Trial| {
        let planned = planned(trial);
        let value = |(name, distribution): (&&str, &&Distribution)| {
            observed(trial, &planned, name, distribution)
        };
        part.iter().map(value).collect()
    };
    trials.iter().filter_map(of_trial).collect()
}

/// What Optuna's workers announce for a running trial before it has all of its parameters.
fn planned(trial: &Trial) -> serde_json::Map<String, serde_json::Value> {
    if trial.state.is_finished() {
        return serde_json::Map::new();
    }
    let text: String = (0..)
        .map_while(|chunk| trial.system_attributes.get(&format!("{RELATIVE_PARAMETERS}:{chunk}")))
        .filter_map(|chunk| chunk.as_str())
        .collect();
    json::read_marked(&text).unwrap_or_default()
}

/// A trial's internal value, if it makes sense under `distribution`, which may have changed since.
fn observed(
    trial: &Trial,
    planned: &serde_json::Map<String, serde_json::Value>,
    name: &str,
    distribution: &Distribution,
) -> Option<f64> {
    let numeric = |d: &Distribution| !matches!(d, Distribution::Categorical { .. });
    let value = match trial.parameters.get(name) {
        // A journal may hold any number.
        Some((Distribution::Categorical { choices }, value))
            if !(0.0..choices.len() as f64).contains(value) =>
        {
            return None;
        }
        Some((known, value))
            if known.equals(distribution) || (numeric(known) && numeric(distribution)) =>
        {
            *value
        }
        Some(_) => return None,
        None => {
            let value = planned.get(name)?;
            if numeric(distribution) {
                value.as_f64()?
            } else {
                let number = json::token(value).map(Choice::Float);
                let choice = number.or_else(|| serde_json::from_value(value.clone()).ok())?;
                distribution.to_internal(&Value::Choice(choice)).ok()?
            }
        }
    };
    let log = matches!(
        distribution,
        Distribution::Float { log: true, .. } | Distribution::Int { log: true, .. }
    );
    (value.is_finite() && !(log && value <= 0.0)).then_some(value)
}

#[cfg(test)]
mod tests;
