//! Every combination of some values, once.

use std::collections::{BTreeMap, BTreeSet};

use firebox_core::Stream;
use serde_json::{Value as Json, json};

use crate::sampler::mersenne::shuffled;
use crate::sampler::random::RandomSampler;
use crate::sampler::{Sampler, SamplerContext};
use crate::space::{Distribution, DistributionError, Value};
use crate::storage::json;
use crate::trial::{HEARTBEAT, Trial, TrialState};

/// Most points of a grid: more would not be tried in a lifetime, and their order takes memory.
const MOST_POINTS: u64 = 10_000_000;

/// Why a grid cannot be.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GridError {
    /// A parameter with more values than can be listed.
    #[error(
        "the grid has no values for `{name}`, which is {distribution}; list them, or give the range \
         a step"
    )]
    NoValues {
        /// The parameter.
        name: String,
        /// Its distribution.
        distribution: String,
    },
    /// A value that the space does not allow.
    #[error("a value of `{name}` in the grid cannot be")]
    Value {
        /// The parameter.
        name: String,
        /// Why not.
        #[source]
        source: DistributionError,
    },
    /// Values of a parameter that the space does not have.
    #[error("the grid lists values of `{name}`, but the space has no such parameter")]
    Unknown {
        /// The parameter.
        name: String,
    },
    /// Too many combinations.
    #[error("the grid has more than {MOST_POINTS} points; list fewer values")]
    TooLarge,
}

/// Goes through all combinations of listed values: Optuna's `GridSampler`.
///
/// Trial `n` gets the n-th point of an order that depends on the seed alone and is Optuna's for the
/// same seed, so that workers take different points, unless somebody wished for a later trial's. Later
/// trials get points that no trial has finished or has in hand, as long as there are any: those that were
/// passed over because somebody had wished for the parameters of a trial. As in Optuna a failed trial's point
/// counts as visited, and a trial that is begun while all points that are left are in hand takes one of these
/// a second time. A [`Study`](crate::Study) begins none then, unless it is one of Optuna's workers that has a
/// point in hand: these give no signs of life, and might have died.
#[derive(Clone, Debug)]
pub struct GridSampler {
    /// Of each parameter in the order of names: values and their internal values.
    axes: Vec<(String, Vec<(Value, f64)>)>,
    /// The combination, counted with the last parameter fastest, of each point.
    order: Vec<u32>,
    /// The point of each combination.
    points: Vec<u32>,
    seed: u64,
}

impl GridSampler {
    /// A grid over `space`, with these `values` of some parameters, and of the others all that their
    /// distributions have. Only the lower half of `seed` decides the order, as in NumPy.
    ///
    /// # Errors
    ///
    /// If a value lies outside of the space, a range without a step is not listed, or there are too
    /// many combinations.
    pub fn new(
        space: &BTreeMap<String, Distribution>,
        mut values: BTreeMap<String, Vec<Value>>,
        seed: u64,
    ) -> Result<Self, GridError> {
        let mut axes = Vec::new();
        let mut count = 1_u64;
        for (name, distribution) in space {
            let listed = match values.remove(name) {
                Some(listed) if !listed.is_empty() => listed,
                _ => all_values(name, distribution)?,
            };
            count = count.saturating_mul(listed.len() as u64);
            if count > MOST_POINTS {
                return Err(GridError::TooLarge);
            }
            let with_internal = |value: Value| match distribution.to_internal(&value) {
                Ok(internal) => Ok((value, internal)),
                Err(source) => Err(GridError::Value { name: name.clone(), source }),
            };
            let axis: Result<Vec<_>, _> = listed.into_iter().map(with_internal).collect();
            axes.push((name.clone(), axis?));
        }
        if let Some(name) = values.into_keys().next() {
            return Err(GridError::Unknown { name });
        }
        let order = shuffled(count as u32, seed as u32);
        let mut points = vec![0; order.len()];
        for (point, combination) in order.iter().enumerate() {
            points[*combination as usize] = point as u32;
        }
        Ok(Self { axes, order, points, seed })
    }

    /// How many points the grid has.
    pub fn points(&self) -> u64 {
        self.order.len() as u64
    }

    /// The internal values at a point.
    fn at(&self, point: u64) -> BTreeMap<&str, f64> {
        let mut rest = self.order[point as usize] as usize;
        let mut values = BTreeMap::new();
        for (name, axis) in self.axes.iter().rev() {
            values.insert(name.as_str(), axis[rest % axis.len()].1);
            rest /= axis.len();
        }
        values
    }

    /// The listed values, as Optuna keeps them in a trial's attributes, with `number` for those of choices that
    /// are floats.
    fn search_space(&self, number: fn(f64) -> Json) -> Json {
        let list =
            |axis: &[(Value, f64)]| axis.iter().map(|(value, _)| to_json(value, number)).collect();
        self.axes.iter().map(|(name, axis)| (name.clone(), Json::Array(list(axis)))).collect()
    }

    /// The point that a trial has: what its attributes say, or else its parameters.
    fn point_of(&self, trial: &Trial) -> Option<u64> {
        let attributes = &trial.system_attributes;
        if let Some(id) = attributes.get("grid_id").and_then(Json::as_u64)
            && attributes.get("search_space") == Some(&self.search_space(json::unmarked))
        {
            return (id < self.points()).then_some(id);
        }
        let combination = self.axes.iter().try_fold(0, |combination, (name, axis)| {
            let (_, internal) = trial.parameters.get(name)?;
            let place = axis.iter().position(|(_, value)| value == internal)?;
            Some(combination * axis.len() + place)
        })?;
        Some(u64::from(self.points[combination]))
    }

    /// Points that no finished trial has.
    fn open(&self, trials: &[Trial]) -> BTreeSet<u64> {
        let mut open: BTreeSet<_> = (0..self.points()).collect();
        for trial in trials.iter().filter(|trial| trial.state.is_finished()) {
            self.point_of(trial).map(|point| open.remove(&point));
        }
        open
    }

    fn point(&self, context: &SamplerContext<'_>) -> u64 {
        let number = context.number;
        let own = context.trials.iter().find(|trial| trial.number == number);
        if let Some(point) = own.and_then(|trial| self.point_of(trial)) {
            return point;
        }
        if number < self.points() {
            return number;
        }
        let mut open = self.open(context.trials);
        // A running trial that has no parameters yet is about to take the next open point.
        let mut undecided = 0;
        for trial in context.trials {
            if trial.state == TrialState::Running && trial.number < number {
                match self.point_of(trial) {
                    Some(point) if open.len() > 1 => _ = open.remove(&point),
                    Some(_) => {}
                    None => undecided += 1,
                }
            }
        }
        if open.is_empty() {
            let stream = Stream::new(self.seed, "search/grid").substream(number);
            return stream.draws().below(self.points());
        }
        open.iter().nth(undecided % open.len()).copied().unwrap_or_default()
    }
}

impl Sampler for GridSampler {
    fn learns_from_rivals_alone(&self) -> bool {
        false
    }

    fn sample(
        &mut self,
        context: &SamplerContext<'_>,
        space: &BTreeMap<String, Distribution>,
    ) -> BTreeMap<String, f64> {
        let values = self.at(self.point(context));
        let value = |(name, distribution): (&String, &Distribution)| {
            let listed = values.get(name.as_str()).copied();
            let value = listed.unwrap_or_else(|| {
                RandomSampler::new(self.seed).draw(context.number, name, distribution)
            });
            (name.clone(), value)
        };
        space.iter().map(value).collect()
    }

    fn attributes(&self, context: &SamplerContext<'_>) -> BTreeMap<String, Json> {
        BTreeMap::from([
            ("search_space".to_owned(), self.search_space(json::marked)),
            ("grid_id".to_owned(), json!(self.point(context))),
        ])
    }

    fn is_exhausted(&self, trials: &[Trial]) -> bool {
        let mut open = self.open(trials);
        let lives = |trial: &&Trial| {
            trial.state == TrialState::Running && trial.system_attributes.contains_key(HEARTBEAT)
        };
        let mut undecided = 0;
        for trial in trials.iter().filter(lives) {
            let by_number = Some(trial.number).filter(|number| *number < self.points());
            match self.point_of(trial).or(by_number) {
                Some(point) => _ = open.remove(&point),
                None => undecided += 1,
            }
        }
        open.len() <= undecided
    }
}

/// All values of a distribution that has a step.
fn all_values(name: &str, distribution: &Distribution) -> Result<Vec<Value>, GridError> {
    let values: Vec<Value> = match distribution {
        Distribution::Categorical { choices } => {
            choices.iter().cloned().map(Value::Choice).collect()
        }
        Distribution::Int { low, high, step, .. } if *step > 0 => (*low..=*high)
            .step_by(usize::try_from(*step).unwrap_or(usize::MAX))
            .take(MOST_POINTS as usize + 1)
            .map(Value::Int)
            .collect(),
        Distribution::Float { low, high, step: Some(step), .. } if *step > 0.0 => (0..=MOST_POINTS)
            .map(|k| low + k as f64 * step)
            .take_while(|value| *value <= high + step / 2.0)
            .map(|value| Value::Float(value.min(*high)))
            .collect(),
        Distribution::Float { low, .. } if distribution.is_single() => vec![Value::Float(*low)],
        _ => Vec::new(),
    };
    if values.is_empty() {
        let (name, distribution) = (name.to_owned(), distribution.to_string());
        return Err(GridError::NoValues { name, distribution });
    }
    Ok(values)
}

fn to_json(value: &Value, number: fn(f64) -> Json) -> Json {
    match value {
        Value::Float(real) => json!(real),
        Value::Int(whole) => json!(whole),
        Value::Choice(choice) => choice.to_json(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;
    use crate::sampler::testing::{context, trial};
    use crate::space::Choice;

    fn space() -> BTreeMap<String, Distribution> {
        let kinds = ["gru", "lstm"].map(|kind| Choice::Text(kind.to_owned()));
        BTreeMap::from([
            ("dropout".into(), float(0.0, 0.5, Some(0.25))),
            ("kind".into(), Distribution::Categorical { choices: kinds.to_vec() }),
            ("layers".into(), Distribution::Int { low: 1, high: 3, log: false, step: 1 }),
        ])
    }

    fn float(low: f64, high: f64, step: Option<f64>) -> Distribution {
        Distribution::Float { low, high, log: false, step }
    }

    fn grid() -> GridSampler {
        GridSampler::new(&space(), BTreeMap::new(), 9).unwrap()
    }

    fn finished(number: u64, parameters: BTreeMap<String, f64>) -> Trial {
        let space = space();
        let parameters = parameters.into_iter().map(|(n, v)| (n.clone(), (space[&n].clone(), v)));
        Trial { parameters: parameters.collect(), ..trial(number, TrialState::Complete) }
    }

    #[test]
    fn points_and_attributes_are_optunas() {
        let expected = golden::read("quasi").remove("optuna_grid").unwrap();
        let expected = expected.as_array().unwrap();
        assert_eq!(expected.len() as u64, grid().points());
        for (number, expected) in expected.iter().enumerate() {
            let context = context(number as u64);
            let found = grid().sample(&context, &space());
            let wanted = expected["params"].as_object().unwrap();
            assert_eq!(found.len(), wanted.len());
            for (name, value) in wanted {
                assert_eq!(value.as_f64(), Some(found[name]), "{name} of {number}");
            }
            let attributes: serde_json::Map<_, _> =
                grid().attributes(&context).into_iter().collect();
            assert_eq!(Json::Object(attributes), expected["system_attrs"]);
        }
    }

    #[test]
    fn a_point_that_was_passed_over_is_visited_later_by_one_worker_alone() {
        let mut trials: Vec<_> = (0..18)
            .filter(|number| ![4, 11].contains(number))
            .map(|number| finished(number, grid().sample(&context(number), &space())))
            .collect();
        assert!(!grid().is_exhausted(&trials));
        // Two workers at once, neither of which has written parameters.
        trials.push(trial(18, TrialState::Running));
        trials.push(trial(19, TrialState::Running));
        let at = |trials: &[Trial], number| {
            let context = SamplerContext { trials, ..context(number) };
            (grid().point(&context), grid().sample(&context, &space()))
        };
        let ((first, values), (second, _)) = (at(&trials, 18), at(&trials, 19));
        assert_eq!((first, second), (4, 11));
        trials[16] = finished(18, values);
        trials[17] = finished(19, at(&trials, 19).1);
        assert!(grid().is_exhausted(&trials));
        assert!(at(&trials, 20).0 < 18);
    }

    #[test]
    fn points_in_the_hands_of_the_living_are_not_begun_again() {
        let at = |number| grid().sample(&context(number), &space());
        let mut trials: Vec<_> = (0..16).map(|number| finished(number, at(number))).collect();
        let running = |number, lives: bool| {
            let mut trial = trial(number, TrialState::Running);
            if lives {
                trial.system_attributes.insert("firebox:heartbeat".into(), json!({}));
            }
            trial
        };
        trials.push(running(16, true));
        assert!(!grid().is_exhausted(&trials), "point 17 is left");
        // One of Optuna's, of which nobody knows whether it lives.
        trials.push(running(17, false));
        assert!(!grid().is_exhausted(&trials));
        // It has taken point 17, or is about to.
        for parameters in [at(17), BTreeMap::new()] {
            let mut again = running(18, true);
            again.parameters = finished(17, parameters).parameters;
            let all = [&trials[..], &[again]].concat();
            assert!(grid().is_exhausted(&all));
        }
        // A point that was passed over is left, whatever the trial of its number does.
        trials[17] = finished(17, at(3));
        trials[16].parameters = finished(16, at(5)).parameters;
        assert!(!grid().is_exhausted(&trials));
    }

    #[test]
    fn infinite_choices_are_points_as_others() {
        let choices = [Choice::Float(f64::INFINITY), Choice::Text("Infinity".to_owned())].to_vec();
        let space = BTreeMap::from([("c".to_owned(), Distribution::Categorical { choices })]);
        let mut grid = GridSampler::new(&space, BTreeMap::new(), 0).unwrap();
        let mut first = trial(0, TrialState::Complete);
        first.system_attributes.insert("grid_id".into(), json!(1));
        // What is read of Optuna's `{"c": [Infinity, "Infinity"]}`.
        let read = json!({ "c": ["Infinity", "Infinity"] });
        first.system_attributes.insert("search_space".into(), read);
        let context = SamplerContext { trials: &[first], ..context(0) };
        assert_eq!(grid.point(&context), 1, "its attributes say so");
        let written = grid.attributes(&context);
        assert_eq!(written["search_space"], json!({ "c": ["\0Infinity", "Infinity"] }));
        assert_eq!(grid.sample(&context, &space).len(), 1);
    }

    #[test]
    fn what_cannot_be_a_grid_is_named() {
        let check = |values: &[(&str, Vec<Value>)], space: &BTreeMap<_, _>, expected: &str| {
            let values = values.iter().map(|(n, v)| ((*n).to_owned(), v.clone())).collect();
            let error = GridSampler::new(space, values, 0).unwrap_err();
            let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
            assert_eq!(format!("{error}{}", source.unwrap_or_default()), expected);
        };
        check(
            &[],
            &BTreeMap::from([("rate".into(), float(0.0, 1.0, None))]),
            "the grid has no values for `rate`, which is the numbers from 0 to 1; list them, or give \
             the range a step",
        );
        check(
            &[("layers", vec![Value::Int(4)])],
            &space(),
            "a value of `layers` in the grid cannot be: 4 is not among the whole numbers from 1 to 3",
        );
        check(
            &[("width", vec![Value::Int(4)])],
            &space(),
            "the grid lists values of `width`, but the space has no such parameter",
        );
        let large = Distribution::Int { low: 0, high: 1 << 40, log: false, step: 1 };
        check(
            &[],
            &BTreeMap::from([("steps".into(), large)]),
            "the grid has more than 10000000 points; list fewer values",
        );
    }
}
