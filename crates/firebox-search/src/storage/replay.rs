//! The studies that a journal tells of, by applying its entries in order.
//!
//! The rules are those of `JournalStorageReplayResult` in `optuna/storages/journal/_storage.py`: the
//! same entries give the same numbers, and what Optuna ignores is ignored here.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::record::{Record, field};
use super::{distribution, json, time};
use crate::direction::Direction;
use crate::space::Distribution;
use crate::trial::{Trial, TrialState};

/// Everything a journal holds.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    studies: Vec<StudyRecord>,
    /// Study and place in it, by the number of the trial in the journal.
    trials: Vec<(usize, usize)>,
    /// Parsed texts: a study repeats its few distributions in every trial.
    distributions: HashMap<String, Distribution>,
}

/// A study of the journal.
#[derive(Debug)]
pub(crate) struct StudyRecord {
    pub(crate) name: String,
    pub(crate) directions: Vec<Direction>,
    pub(crate) user_attributes: BTreeMap<String, Value>,
    pub(crate) system_attributes: BTreeMap<String, Value>,
    /// In the order of their numbers.
    pub(crate) trials: Vec<Trial>,
    /// Numbers of the trials in the journal.
    pub(crate) ids: Vec<u64>,
    /// Each parameter as the lowest-numbered trial with it has it.
    pub(crate) parameters: BTreeMap<String, (u64, Distribution)>,
    /// Trials that no worker has ended, by their place; so that nobody looks through all of them.
    pub(crate) open: std::collections::BTreeSet<usize>,
    deleted: bool,
}

impl Replay {
    /// The studies that were not deleted, with their numbers.
    pub(crate) fn studies(&self) -> impl Iterator<Item = (u64, &StudyRecord)> {
        let numbered = self.studies.iter().enumerate().map(|(id, study)| (id as u64, study));
        numbered.filter(|(_, study)| !study.deleted)
    }

    pub(crate) fn study(&self, id: u64) -> Option<&StudyRecord> {
        self.studies.get(usize::try_from(id).ok()?).filter(|study| !study.deleted)
    }

    /// How many trials there are: the number in the journal of the next one.
    pub(crate) fn trial_count(&self) -> u64 {
        self.trials.len() as u64
    }

    /// A trial by its number in the journal.
    pub(crate) fn trial(&self, id: u64) -> Option<&Trial> {
        let (study, place) = *self.trials.get(usize::try_from(id).ok()?)?;
        self.studies.get(study)?.trials.get(place)
    }

    /// Applies an entry. One that Optuna would ignore changes nothing.
    ///
    /// # Errors
    ///
    /// If it lacks a field, or a field cannot be understood.
    pub(super) fn apply(&mut self, record: Record) -> Result<(), String> {
        match field(record.op_code, "op_code")? {
            0 => self.create_study(record),
            1 => self.change_study(record, |study, _| {
                study.deleted = true;
                Ok(())
            }),
            2 => self.change_study(record, |study, record| {
                study.user_attributes.extend(field(record.user_attr, "user_attr")?);
                Ok(())
            }),
            3 => self.change_study(record, |study, record| {
                study.system_attributes.extend(field(record.system_attr, "system_attr")?);
                Ok(())
            }),
            4 => self.create_trial(record),
            5 => self.set_parameter(record),
            6 => self.set_state(record),
            7 => self.change_trial(record, |trial, record| {
                let value = field(record.intermediate_value, "intermediate_value")?;
                trial.intermediate.insert(field(record.step, "step")?, value.0);
                Ok(())
            }),
            8 => self.change_trial(record, |trial, record| {
                trial.user_attributes.extend(field(record.user_attr, "user_attr")?);
                Ok(())
            }),
            9 => self.change_trial(record, |trial, record| {
                trial.system_attributes.extend(field(record.system_attr, "system_attr")?);
                trial.constraints = constraints(&trial.system_attributes);
                Ok(())
            }),
            // Optuna: "only supported by Rustuna", and ignored.
            10 => Ok(()),
            code => Err(format!(
                "the operation {code} is not known; a newer Optuna may have written it"
            )),
        }
    }

    fn create_study(&mut self, record: Record) -> Result<(), String> {
        let name = field(record.study_name, "study_name")?;
        if self.studies().any(|(_, study)| study.name == name) {
            return Ok(());
        }
        let directions = field(record.directions, "directions")?.into_iter();
        let directions = directions.map(|code| match code {
            // Optuna has 0 for "not set", which it minimises.
            0 | 1 => Ok(Direction::Minimize),
            2 => Ok(Direction::Maximize),
            code => Err(format!("the direction {code} is not known")),
        });
        self.studies.push(StudyRecord {
            name,
            directions: directions.collect::<Result<_, _>>()?,
            user_attributes: BTreeMap::new(),
            system_attributes: BTreeMap::new(),
            trials: vec![],
            ids: vec![],
            parameters: BTreeMap::new(),
            open: Default::default(),
            deleted: false,
        });
        Ok(())
    }

    fn change_study(
        &mut self,
        record: Record,
        change: impl FnOnce(&mut StudyRecord, Record) -> Result<(), String>,
    ) -> Result<(), String> {
        let id = field(record.study_id, "study_id")?;
        let study = usize::try_from(id).ok().and_then(|id| self.studies.get_mut(id));
        match study.filter(|study| !study.deleted) {
            Some(study) => change(study, record),
            None => Ok(()),
        }
    }

    fn create_trial(&mut self, record: Record) -> Result<(), String> {
        let id = field(record.study_id, "study_id")?;
        if self.study(id).is_none() {
            return Ok(());
        }
        let mut parameters = BTreeMap::new();
        for (name, internal) in record.params {
            let text = field(record.distributions.get(&name), "distributions")?.clone();
            parameters.insert(name, (self.distribution(text)?, internal.0));
        }
        let state = record.state.map_or(Ok(TrialState::Running), state)?;
        let many = record.values.map(|values| values.iter().map(|value| value.0).collect());
        let place = id as usize;
        let study = &mut self.studies[place];
        let number = study.trials.len();
        for (name, (distribution, _)) in &parameters {
            study.saw(number as u64, name, distribution);
        }
        study.trials.push(Trial {
            number: number as u64,
            state,
            values: many.or_else(|| record.value.map(|value| vec![value.0])),
            parameters,
            intermediate: record.intermediate_values.iter().map(|(k, v)| (*k, v.0)).collect(),
            constraints: constraints(&record.system_attrs),
            user_attributes: record.user_attrs,
            system_attributes: record.system_attrs,
            started: record.datetime_start.as_deref().map(time::read).transpose()?,
            ended: record.datetime_complete.as_deref().map(time::read).transpose()?,
        });
        if !state.is_finished() {
            study.open.insert(number);
        }
        study.ids.push(self.trials.len() as u64);
        self.trials.push((place, number));
        Ok(())
    }

    fn set_parameter(&mut self, record: Record) -> Result<(), String> {
        let new = self.distribution(field(record.distribution.clone(), "distribution")?)?;
        let Some((place, number)) = self.changeable(&record)? else { return Ok(()) };
        let name = field(record.param_name, "param_name")?;
        let internal = field(record.param_value_internal, "param_value_internal")?.0;
        let study = &mut self.studies[place];
        if let Some((_, old)) = study.parameters.get(&name)
            && distribution::incompatible(old, &new).is_some()
        {
            return Ok(());
        }
        study.saw(number as u64, &name, &new);
        study.trials[number].parameters.insert(name, (new, internal));
        Ok(())
    }

    fn set_state(&mut self, record: Record) -> Result<(), String> {
        let Some((place, number)) = self.changeable(&record)? else { return Ok(()) };
        let study = &mut self.studies[place];
        let trial = &mut study.trials[number];
        let new = state(field(record.state, "state")?)?;
        if new == TrialState::Running {
            // A trial that runs already is not taken a second time.
            if trial.state == TrialState::Running {
                return Ok(());
            }
            trial.started = Some(time::read(&field(record.datetime_start, "datetime_start")?)?);
        }
        if new.is_finished() {
            trial.ended = Some(time::read(&field(record.datetime_complete, "datetime_complete")?)?);
            study.open.remove(&number);
        }
        trial.state = new;
        if let Some(values) = record.values {
            trial.values = Some(values.iter().map(|value| value.0).collect());
        }
        Ok(())
    }

    fn change_trial(
        &mut self,
        record: Record,
        change: impl FnOnce(&mut Trial, Record) -> Result<(), String>,
    ) -> Result<(), String> {
        match self.changeable(&record)? {
            Some((place, number)) => change(&mut self.studies[place].trials[number], record),
            None => Ok(()),
        }
    }

    /// Where the trial of an entry is, if it is there and not ended.
    fn changeable(&self, record: &Record) -> Result<Option<(usize, usize)>, String> {
        let id = field(record.trial_id, "trial_id")?;
        let found = usize::try_from(id).ok().and_then(|id| self.trials.get(id)).copied();
        let open = |&(place, number): &(usize, usize)| {
            !self.studies[place].trials[number].state.is_finished()
        };
        Ok(found.filter(open))
    }

    fn distribution(&mut self, text: String) -> Result<Distribution, String> {
        if let Some(known) = self.distributions.get(&text) {
            return Ok(known.clone());
        }
        let read = distribution::read(&text)?;
        self.distributions.insert(text, read.clone());
        Ok(read)
    }
}

impl StudyRecord {
    /// Keeps the distribution of the lowest-numbered trial with this parameter.
    fn saw(&mut self, number: u64, name: &str, distribution: &Distribution) {
        match self.parameters.get_mut(name) {
            Some((lowest, _)) if *lowest <= number => {}
            Some(known) => *known = (number, distribution.clone()),
            None => {
                self.parameters.insert(name.to_owned(), (number, distribution.clone()));
            }
        }
    }
}

fn state(code: u8) -> Result<TrialState, String> {
    use TrialState::{Complete, Fail, Pruned, Running, Waiting};
    let all = [Running, Complete, Pruned, Fail, Waiting];
    let state = all.into_iter().find(|state| *state as u8 == code);
    state.ok_or_else(|| format!("the state {code} is not known"))
}

/// The sizes of violated constraints: of `constraints`, a list, and of `constraints:NAME`, one each. The names
/// of those of the list are their places in it, and a name counts once: Optuna's
/// `_get_constraints_from_system_attrs`.
fn constraints(attributes: &BTreeMap<String, Value>) -> Option<Vec<f64>> {
    let size = |value: &Value| json::as_number(value).unwrap_or(f64::NAN);
    let list = attributes.get("constraints").and_then(Value::as_array);
    let mut sizes: Vec<f64> = list.into_iter().flatten().map(size).collect();
    let listed = sizes.len();
    for (key, value) in attributes.range("constraints:".to_owned()..) {
        let Some(name) = key.strip_prefix("constraints:") else { break };
        let place = name.parse::<usize>().ok();
        // As Python writes it.
        match place.filter(|place| *place < listed && place.to_string() == name) {
            Some(place) => sizes[place] = size(value),
            None => sizes.push(size(value)),
        }
    }
    (list.is_some() || !sizes.is_empty()).then_some(sizes)
}
