//! A trial in the hands of the function that is searched.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::conditional::Space;
use super::groups::groups;
use super::{Study, StudyError, retry};
use crate::direction::Direction;
use crate::space::{Choice, Distribution, Value};
use crate::storage::{Operation, Replay, StudyRecord, incompatible, time};
use crate::trial::{Trial, TrialState};

/// How a trial ends.
#[derive(Clone, Debug, PartialEq)]
pub enum Ended {
    /// With a value of each objective.
    Complete(Vec<f64>),
    /// Given up early, because others were better at the same step.
    Pruned,
    /// With an error, for this reason. The study goes on.
    Failed(String),
    /// Stopped from outside: it fails, and waits for a worker to go on with it.
    Interrupted,
}

/// A running trial.
///
/// Whatever it is told is in the journal when the call returns. Dropped without an end, it fails.
pub struct TrialHandle<'study> {
    study: &'study Study,
    id: u64,
    number: u64,
    origin: u64,
    /// Parameters that it has, with their internal values.
    parameters: BTreeMap<String, (Distribution, f64)>,
    /// Values that it must take: of an enqueued trial.
    fixed: BTreeMap<String, Json>,
    /// Sampled together with another, and not asked for yet.
    proposed: BTreeMap<String, (Distribution, f64)>,
    groups: Option<Vec<BTreeMap<String, Distribution>>>,
    /// What the function asked for; see [`TrialHandle::give_up`].
    pub(super) wish: Option<Ended>,
    done: bool,
}

impl<'study> TrialHandle<'study> {
    pub(super) fn new(study: &'study Study, id: u64, trial: &Trial) -> Self {
        let fixed = match trial.system_attributes.get("fixed_params") {
            Some(Json::Object(fixed)) => fixed.clone().into_iter().collect(),
            _ => BTreeMap::new(),
        };
        Self {
            study,
            id,
            number: trial.number,
            origin: retry::origin(trial),
            parameters: trial.parameters.clone(),
            fixed,
            proposed: BTreeMap::new(),
            groups: None,
            wish: None,
            done: false,
        }
    }

    /// Its number within the study, from 0 on.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The number of the trial that was begun first and that this one goes on with, if that one's
    /// worker died; else its own. What a trial leaves behind to go on from belongs under this number.
    pub fn origin(&self) -> u64 {
        self.origin
    }

    /// The trial as the journal has it.
    pub fn trial(&self) -> Option<Trial> {
        self.study.storage.peek(|replay| replay.trial(self.id).cloned())
    }

    /// A real number from `low` to `high`.
    ///
    /// # Errors
    ///
    /// As [`TrialHandle::suggest`].
    pub fn suggest_float(&mut self, name: &str, low: f64, high: f64) -> Result<f64, StudyError> {
        let distribution = Distribution::Float { low, high, log: false, step: None };
        self.suggest_internal(name, distribution)
    }

    /// A real number from `low` to `high` whose logarithm is uniform.
    ///
    /// # Errors
    ///
    /// As [`TrialHandle::suggest`].
    pub fn suggest_log(&mut self, name: &str, low: f64, high: f64) -> Result<f64, StudyError> {
        self.suggest_internal(name, Distribution::Float { low, high, log: true, step: None })
    }

    /// A whole number from `low` to `high`.
    ///
    /// # Errors
    ///
    /// As [`TrialHandle::suggest`].
    pub fn suggest_int(&mut self, name: &str, low: i64, high: i64) -> Result<i64, StudyError> {
        let distribution = Distribution::Int { low, high, log: false, step: 1 };
        Ok(self.suggest_internal(name, distribution)? as i64)
    }

    /// One of these values.
    ///
    /// # Errors
    ///
    /// As [`TrialHandle::suggest`].
    pub fn suggest_choice(&mut self, name: &str, choices: &[Choice]) -> Result<Choice, StudyError> {
        let distribution = Distribution::Categorical { choices: choices.to_vec() };
        let place = self.suggest_internal(name, distribution)?;
        Ok(choices.get(place as usize).cloned().unwrap_or(Choice::None))
    }

    /// A value of the parameter. Asked for again, it is the same.
    ///
    /// # Errors
    ///
    /// If the distribution cannot be, or not for this name, because earlier trials have another kind;
    /// if an enqueued value lies outside of it; if the journal fails, or the trial has ended.
    pub fn suggest(
        &mut self,
        name: &str,
        distribution: &Distribution,
    ) -> Result<Value, StudyError> {
        let internal = self.suggest_internal(name, distribution.clone())?;
        let had = self.parameters.get(name).map_or(distribution, |(had, _)| had);
        had.to_value(internal).map_err(parameter(name))
    }

    /// Values of all parameters of a space that exist, sampled together, and those that depend on
    /// others after them.
    ///
    /// # Errors
    ///
    /// As [`TrialHandle::suggest`].
    pub fn suggest_space(&mut self, space: &Space) -> Result<BTreeMap<String, Value>, StudyError> {
        loop {
            let next = space.next(&self.parameters);
            if next.is_empty() {
                break;
            }
            self.take(next)?;
        }
        let own = self.parameters.iter().filter(|(name, _)| space.parameters().contains_key(*name));
        own.map(|(name, (distribution, internal))| {
            Ok((name.clone(), distribution.to_value(*internal).map_err(parameter(name))?))
        })
        .collect()
    }

    fn suggest_internal(&mut self, name: &str, wanted: Distribution) -> Result<f64, StudyError> {
        let wanted = wanted.aligned().map_err(parameter(name))?;
        if let Some((had, internal)) = self.parameters.get(name) {
            return match incompatible(had, &wanted) {
                None => Ok(*internal),
                Some(reason) => Err(self.study.shape(name, had, &wanted, reason)),
            };
        }
        self.take(BTreeMap::from([(name.to_owned(), wanted)]))?;
        Ok(self.parameters.get(name).map_or(f64::NAN, |(_, internal)| *internal))
    }

    /// Chooses values and writes them down.
    fn take(&mut self, wanted: BTreeMap<String, Distribution>) -> Result<(), StudyError> {
        let mut values: BTreeMap<String, f64> = BTreeMap::new();
        let mut open = BTreeMap::new();
        for (name, distribution) in &wanted {
            distribution.validate().map_err(parameter(name))?;
            if let Some(fixed) = self.fixed.get(name) {
                values
                    .insert(name.clone(), enqueued(fixed, distribution).map_err(parameter(name))?);
            } else if distribution.is_single() {
                values.insert(name.clone(), single(distribution));
            } else if let Some((_, internal)) =
                self.proposed.get(name).filter(|(d, _)| d == distribution)
            {
                values.insert(name.clone(), *internal);
            } else {
                open.insert(name.clone(), distribution.clone());
            }
        }
        let mut attributes = BTreeMap::new();
        if !open.is_empty() {
            let (sampled, extra) = self.sample(&open);
            attributes = extra;
            values.extend(sampled);
        }
        for (name, distribution) in &wanted {
            let internal = values.get(name).copied().unwrap_or(f64::NAN);
            distribution.to_value(internal).map_err(parameter(name))?;
        }
        self.write_parameters(&wanted, &values, &attributes)?;
        let taken = wanted
            .into_iter()
            .filter_map(|(name, d)| Some((name.clone(), (d, *values.get(&name)?))));
        self.parameters.extend(taken);
        Ok(())
    }

    /// Asks the sampler: for the whole group of a single parameter, so that what is suggested one by
    /// one is still chosen together.
    fn sample(
        &mut self,
        wanted: &BTreeMap<String, Distribution>,
    ) -> (BTreeMap<String, f64>, BTreeMap<String, Json>) {
        let study = self.study;
        study.storage.peek(|replay| {
            let Some(record) = replay.study(study.id) else { return Default::default() };
            let mut space = wanted.clone();
            if let (1, Some((name, distribution))) = (wanted.len(), wanted.first_key_value()) {
                let groups = self.groups.get_or_insert_with(|| groups(&record.trials));
                let group = groups.iter().find(|group| group.get(name) == Some(distribution));
                let others = group.into_iter().flatten();
                let others = others.filter(|(name, d)| {
                    let known =
                        self.parameters.contains_key(*name) || self.fixed.contains_key(*name);
                    !known && !d.is_single() && !self.proposed.contains_key(*name)
                });
                space.extend(others.map(|(name, d)| (name.clone(), d.clone())));
            }
            let (mut values, attributes) = study.sample(&record.trials, self.number, &space);
            let unasked = space.into_iter().filter(|(name, _)| !wanted.contains_key(name));
            let proposed =
                unasked.filter_map(|(name, d)| Some((name.clone(), (d, values.remove(&name)?))));
            self.proposed.extend(proposed);
            (values, attributes)
        })
    }

    fn write_parameters(
        &self,
        wanted: &BTreeMap<String, Distribution>,
        values: &BTreeMap<String, f64>,
        attributes: &BTreeMap<String, Json>,
    ) -> Result<(), StudyError> {
        let trial = self.id;
        self.change(|record, had| {
            let mut operations = vec![];
            for (name, distribution) in wanted {
                if let Some((_, old)) = record.parameters.get(name)
                    && let Some(reason) = incompatible(old, distribution)
                {
                    return Err(self.study.shape(name, old, distribution, reason));
                }
                let (name, distribution) = (name.clone(), distribution.clone());
                let internal = values.get(&name).copied().unwrap_or(f64::NAN);
                operations.push(Operation::Parameter { trial, name, internal, distribution });
            }
            operations.extend(new_attributes(trial, attributes, had));
            Ok(operations)
        })
    }

    /// Writes the value of the objective at a step, such as the validation loss after an epoch. A
    /// step that was reported before is ignored, as in Optuna: a trial that goes on from a checkpoint
    /// has its earlier values.
    ///
    /// # Errors
    ///
    /// With several objectives; if the journal fails, or the trial has ended.
    pub fn report(&mut self, step: u64, value: f64) -> Result<(), StudyError> {
        let objectives = self.study.directions.len();
        if objectives != 1 {
            return Err(StudyError::ManyObjectives(objectives));
        }
        let trial = self.id;
        self.change(|_, had| {
            let new = !had.intermediate.contains_key(&step);
            Ok(new.then_some(Operation::Intermediate { trial, step, value }).into_iter().collect())
        })
    }

    /// Whether the pruner would give the trial up after its last reported value.
    ///
    /// # Errors
    ///
    /// If the journal fails, or the trial has ended.
    pub fn should_prune(&mut self) -> Result<bool, StudyError> {
        let (Some(pruner), [direction]) = (&self.study.pruner, self.study.directions.as_slice())
        else {
            return Ok(false);
        };
        let decide = |record: &StudyRecord, trial: &Trial, direction: Direction| {
            let prune = pruner.prune(&record.trials, trial, direction);
            (prune, pruner.attributes(&record.trials, trial, direction))
        };
        let decided = self.study.storage.peek(|replay| {
            let record = replay.study(self.study.id)?;
            Some(decide(record, replay.trial(self.id)?, *direction))
        });
        let Some((prune, attributes)) = decided else { return Ok(false) };
        if !attributes.is_empty() {
            self.change(|_, had| Ok(new_attributes(self.id, &attributes, had)))?;
        }
        Ok(prune)
    }

    /// Gives the trial up: what the function returns afterwards is ignored, and the trial is pruned.
    pub fn give_up(&mut self) {
        self.wish = Some(Ended::Pruned);
    }

    /// Ends the trial and the search of this worker, so that the trial is gone on with later: what the
    /// function returns afterwards is ignored.
    pub fn interrupt(&mut self) {
        self.wish = Some(Ended::Interrupted);
    }

    /// Sets an attribute of the user.
    ///
    /// # Errors
    ///
    /// If the journal fails, or the trial has ended.
    pub fn set_attribute(&mut self, key: &str, value: Json) -> Result<(), StudyError> {
        let (trial, key) = (self.id, key.to_owned());
        self.change(|_, had| {
            let new = had.user_attributes.get(&key) != Some(&value);
            let operation =
                Operation::UserAttribute { trial, key: key.clone(), value: value.clone() };
            Ok(new.then_some(operation).into_iter().collect())
        })
    }

    /// Sets the sizes by which constraints are violated; none above 0 is feasible.
    ///
    /// # Errors
    ///
    /// If one is NaN or infinite, the journal fails, or the trial has ended.
    pub fn set_constraints(&mut self, sizes: &[f64]) -> Result<(), StudyError> {
        if let Some(size) = sizes.iter().find(|size| !size.is_finite()) {
            let source = crate::space::DistributionError::NotFinite(*size);
            return Err(StudyError::Parameter { name: "constraints".to_owned(), source });
        }
        let (trial, key) = (self.id, "constraints".to_owned());
        let value = Json::from(sizes.to_vec());
        self.change(|_, _| {
            let (key, value) = (key.clone(), value.clone());
            Ok(vec![Operation::SystemAttribute { trial, key, value }])
        })
    }

    /// A change of this trial, while it runs.
    fn change(
        &self,
        mut decide: impl FnMut(&StudyRecord, &Trial) -> Result<Vec<Operation>, StudyError>,
    ) -> Result<(), StudyError> {
        let ended = || StudyError::Ended { number: self.number };
        self.study.storage.change(|replay: &Replay| {
            let record = replay.study(self.study.id).ok_or_else(ended)?;
            let trial = replay.trial(self.id).filter(|trial| trial.state == TrialState::Running);
            Ok((decide(record, trial.ok_or_else(ended)?)?, ()))
        })
    }

    /// Ends the trial.
    ///
    /// # Errors
    ///
    /// If the journal fails, or the trial was ended by another worker.
    pub fn tell(mut self, ended: Ended) -> Result<TrialState, StudyError> {
        self.end(ended)
    }

    pub(super) fn end(&mut self, ended: Ended) -> Result<TrialState, StudyError> {
        self.done = true;
        let objectives = self.study.directions.len();
        let ended = match ended {
            Ended::Complete(values) => {
                wrong_values(&values, objectives).map_or(Ended::Complete(values), Ended::Failed)
            }
            other => other,
        };
        let (study, id) = (self.study.id, self.id);
        let told = self.change(|_, trial| {
            let state = |state, values| {
                vec![Operation::State { trial: id, state, values, time: time::now() }]
            };
            Ok(match &ended {
                Ended::Complete(values) => state(TrialState::Complete, Some(values.clone())),
                Ended::Pruned => {
                    // As Optuna's `tell`: the last value reported stands for the trial.
                    let last = trial.intermediate.last_key_value().map(|(_, value)| *value);
                    let value = last.filter(|value| objectives == 1 && !value.is_nan());
                    state(TrialState::Pruned, value.map(|value| vec![value]))
                }
                Ended::Failed(reason) => retry::fail(id, reason),
                Ended::Interrupted => {
                    retry::fail_and_retry(study, id, trial, "its worker was stopped", u64::MAX)
                }
            })
        });
        self.study.heart.stop(id);
        told?;
        Ok(match ended {
            Ended::Complete(_) => TrialState::Complete,
            Ended::Pruned => TrialState::Pruned,
            Ended::Failed(_) | Ended::Interrupted => TrialState::Fail,
        })
    }
}

impl Drop for TrialHandle<'_> {
    fn drop(&mut self) {
        if !self.done {
            let _ = self.end(Ended::Failed("it was given back without a result".to_owned()));
        }
    }
}

fn wrong_values(values: &[f64], objectives: usize) -> Option<String> {
    if values.len() != objectives {
        let number = values.len();
        return Some(format!("it has {number} values, and the study {objectives} objectives"));
    }
    values.iter().any(|value| value.is_nan()).then(|| "its value is NaN".to_owned())
}

fn parameter(name: &str) -> impl FnOnce(crate::space::DistributionError) -> StudyError + use<> {
    let name = name.to_owned();
    |source| StudyError::Parameter { name, source }
}

/// The only value of a distribution.
fn single(distribution: &Distribution) -> f64 {
    match distribution {
        Distribution::Float { low, .. } => *low,
        Distribution::Int { low, .. } => *low as f64,
        Distribution::Categorical { .. } => 0.0,
    }
}

/// The internal value of what was enqueued as JSON.
fn enqueued(
    value: &Json,
    distribution: &Distribution,
) -> Result<f64, crate::space::DistributionError> {
    let outside = || crate::space::DistributionError::Outside {
        value: value.to_string(),
        allowed: distribution.to_string(),
    };
    let value = match distribution {
        Distribution::Float { .. } => Value::Float(value.as_f64().ok_or_else(outside)?),
        Distribution::Int { .. } => {
            let whole = value.as_f64().filter(|number| number.fract() == 0.0);
            Value::Int(whole.ok_or_else(outside)? as i64)
        }
        Distribution::Categorical { .. } => {
            Value::Choice(serde_json::from_value(value.clone()).map_err(|_| outside())?)
        }
    };
    distribution.to_internal(&value)
}

/// The attributes that the trial does not have yet, or otherwise.
fn new_attributes(id: u64, attributes: &BTreeMap<String, Json>, trial: &Trial) -> Vec<Operation> {
    let new = attributes.iter().filter(|(key, v)| trial.system_attributes.get(*key) != Some(*v));
    new.map(|(key, value)| Operation::SystemAttribute {
        trial: id,
        key: key.clone(),
        value: value.clone(),
    })
    .collect()
}
