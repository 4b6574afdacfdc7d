//! A trial in the hands of the function that is searched.

use std::cell::Cell;
use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::{Study, StudyError, retry};
use crate::direction::Direction;
use crate::space::Distribution;
use crate::storage::{Operation, Replay, StudyRecord, time};
use crate::trial::{REPEATS, Trial, TrialState};

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
    /// Stopped by a fault that is none of its own, for this reason: as [`Ended::Interrupted`], and counted by
    /// [`TrialHandle::faults`].
    PutBack(String),
}

/// A running trial.
///
/// Whatever it is told is in the journal when the call returns, for everybody to read and whatever becomes
/// of this process; a failure of the machine's power may take what it was told since it began. Dropped
/// without an end, it fails.
pub struct TrialHandle<'study> {
    pub(super) study: &'study Study,
    pub(super) id: u64,
    pub(super) number: u64,
    origin: u64,
    /// Parameters that it has, with their internal values.
    pub(super) parameters: BTreeMap<String, (Distribution, f64)>,
    /// Values that it must take: of an enqueued trial.
    pub(super) fixed: BTreeMap<String, Json>,
    /// Sampled together with another, and not asked for yet.
    pub(super) proposed: BTreeMap<String, (Distribution, f64)>,
    pub(super) groups: Option<Vec<BTreeMap<String, Distribution>>>,
    /// What the function asked for; see [`TrialHandle::give_up`].
    pub(super) wish: Option<Ended>,
    /// Whether the journal failed: that is no fault of the trial.
    pub(super) unheard: Cell<bool>,
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
            origin: trial.origin(),
            parameters: trial.parameters.clone(),
            fixed,
            proposed: BTreeMap::new(),
            groups: None,
            wish: None,
            unheard: Cell::new(false),
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

    /// How often it was put back into the queue because of a fault that is none of its own, see
    /// [`TrialHandle::put_back`].
    pub fn faults(&self) -> u64 {
        self.trial().map_or(0, |trial| retry::faults(&trial).len() as u64)
    }

    /// The direction of each objective of its study.
    pub fn directions(&self) -> &[Direction] {
        &self.study.directions
    }

    /// The trial as the journal has it.
    pub fn trial(&self) -> Option<Trial> {
        self.study.storage.peek(|replay| replay.trial(self.id).cloned())
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

    /// Gives the trial what another has reported, because it has that one's result: its parameters are
    /// the same, and nothing was computed again. It then has the curve that it would have had.
    ///
    /// Pruners leave it out. Samplers repeat what is good: if one curve counted as often as it is proposed,
    /// it would raise the median, and take the places of a rung from which trials go on, though nothing new
    /// is known. Optuna has no such trials, and its own pruners, where it works on the same study, count
    /// them as any other.
    ///
    /// # Errors
    ///
    /// If the journal fails, or the trial has ended.
    pub fn repeat(&mut self, number: u64) -> Result<(), StudyError> {
        let trial = self.id;
        self.change(|record, had| {
            let other = usize::try_from(number).ok().and_then(|place| record.trials.get(place));
            let Some(other) = other else { return Ok(vec![]) };
            let new =
                other.intermediate.iter().filter(|(step, _)| !had.intermediate.contains_key(step));
            let reports = new.map(|(&step, &value)| Operation::Intermediate { trial, step, value });
            let (key, value) = (REPEATS.to_owned(), Json::from(number));
            Ok(reports.chain([Operation::SystemAttribute { trial, key, value }]).collect())
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

    /// As [`TrialHandle::interrupt`], because of a fault that is none of the trial's own, such as a full disk or data
    /// that are not there. It becomes the reason that the journal has, costs none of the retries that a trial
    /// has whose worker dies, and is counted by [`TrialHandle::faults`].
    pub fn put_back(&mut self, reason: &str) {
        self.wish = Some(Ended::PutBack(reason.to_owned()));
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
    pub(super) fn change(
        &self,
        mut decide: impl FnMut(&StudyRecord, &Trial) -> Result<Vec<Operation>, StudyError>,
    ) -> Result<(), StudyError> {
        let ended = || StudyError::Ended { number: self.number };
        let changed = self.study.storage.change(&self.study.stop, |replay: &Replay| {
            let record = replay.study(self.study.id).ok_or_else(ended)?;
            let trial = replay.trial(self.id).filter(|trial| trial.state == TrialState::Running);
            Ok((decide(record, trial.ok_or_else(ended)?)?, ()))
        });
        if matches!(changed, Err(StudyError::Storage(_))) {
            self.unheard.set(true);
        }
        changed
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
        let told = self.change(|record, trial| {
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
                    let cause = retry::Cause::Stopped("its worker was stopped");
                    retry::fail_and_retry(record, study, id, trial, cause)
                }
                Ended::PutBack(reason) => {
                    let cause = retry::Cause::Fault(reason);
                    retry::fail_and_retry(record, study, id, trial, cause)
                }
            })
        });
        self.study.heart.stop(id);
        told?;
        Ok(match ended {
            Ended::Complete(_) => TrialState::Complete,
            Ended::Pruned => TrialState::Pruned,
            Ended::Failed(_) | Ended::Interrupted | Ended::PutBack(_) => TrialState::Fail,
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

/// The attributes that the trial does not have yet, or otherwise.
pub(super) fn new_attributes(
    id: u64,
    attributes: &BTreeMap<String, Json>,
    trial: &Trial,
) -> Vec<Operation> {
    let new = attributes.iter().filter(|(key, v)| trial.system_attributes.get(*key) != Some(*v));
    new.map(|(key, value)| Operation::SystemAttribute {
        trial: id,
        key: key.clone(),
        value: value.clone(),
    })
    .collect()
}
