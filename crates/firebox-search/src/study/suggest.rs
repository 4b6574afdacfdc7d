//! How a trial gets the values of its parameters: enqueued, sampled together, or sampled alone.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::conditional::Space;
use super::groups::groups;
use super::handle::new_attributes;
use super::{StudyError, TrialHandle};
use crate::space::{Choice, Distribution, DistributionError, Value};
use crate::storage::{Operation, incompatible, json};

impl TrialHandle<'_> {
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
                self.proposed.get(name).filter(|(d, _)| d.equals(distribution))
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
                let group = groups
                    .iter()
                    .find(|group| group.get(name).is_some_and(|known| known.equals(distribution)));
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
}

fn parameter(name: &str) -> impl FnOnce(DistributionError) -> StudyError + use<> {
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
fn enqueued(value: &Json, distribution: &Distribution) -> Result<f64, DistributionError> {
    let outside = || DistributionError::Outside {
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
            let choice = serde_json::from_value(value.clone()).map_err(|_| outside())?;
            let found = distribution.to_internal(&Value::Choice(choice));
            // Python's infinities are texts in an attribute; a choice may be such a text as well, and where both are
            // choices, it is the text.
            let number = json::as_number(value).map(|number| Value::Choice(Choice::Float(number)));
            return found.or_else(|error| {
                number.and_then(|number| distribution.to_internal(&number).ok()).ok_or(error)
            });
        }
    };
    distribution.to_internal(&value)
}
