//! A search: trials that samplers propose, a function runs and a journal keeps.
//!
//! Any number of threads, processes and machines may work on one study. What is done in the journal
//! is done once: a trial is taken by one worker, ends once, and is tried again once if its worker
//! died.

mod best;
mod conditional;
mod error;
mod groups;
mod handle;
mod heart;
mod optimize;
mod replaced;
mod retry;
mod spent;
mod suggest;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value as Json;

pub use conditional::{Parameter, Space};
pub use error::StudyError;
pub use handle::{Ended, TrialHandle};
pub use optimize::{Budget, Limit};
pub(crate) use spent::took;

use crate::direction::Direction;
use crate::pruner::Pruner;
use crate::sampler::{Sampler, SamplerContext};
use crate::space::{Choice, Distribution};
use crate::stop::EarlyStop;
use crate::storage::{Operation, Storage, StudyRecord, incompatible, json, time};
use crate::trial::{HEARTBEAT, Trial, TrialState};
use heart::{Heart, Watch};
use optimize::Asked;

/// How a worker takes part in a study; none of it is kept in the journal.
pub struct Options {
    /// Proposes parameters.
    pub sampler: Box<dyn Sampler>,
    /// Gives trials up early.
    pub pruner: Option<Box<dyn Pruner>>,
    /// Time between two signs of life of a running trial, at least 100 ms: less counts as that. After three without one it
    /// is tried again.
    pub heartbeat: Duration,
    /// How often a trial is tried again whose worker died. One that was stopped does not count.
    pub retries: u64,
    /// Once it is true, this worker begins no more trials and waits for none.
    pub stop: Arc<AtomicBool>,
}

impl Options {
    /// With a sampler, without a pruner, with a sign of life every 10 seconds and 3 retries.
    pub fn new(sampler: impl Sampler + 'static) -> Self {
        let heartbeat = Duration::from_secs(10);
        let stop = Arc::default();
        Self { sampler: Box::new(sampler), pruner: None, heartbeat, retries: 3, stop }
    }
}

/// A study of a journal. Threads share it by reference.
pub struct Study {
    storage: Arc<Storage>,
    id: u64,
    name: String,
    directions: Vec<Direction>,
    sampler: Mutex<Box<dyn Sampler>>,
    pruner: Option<Box<dyn Pruner>>,
    retries: u64,
    stop: Arc<AtomicBool>,
    heart: Heart,
    watch: Mutex<Watch>,
}

impl Study {
    /// Begins a study with an objective for each direction.
    ///
    /// # Errors
    ///
    /// If one of the name is there, or the journal fails.
    pub fn create(
        storage: &Arc<Storage>,
        name: &str,
        directions: &[Direction],
        options: Options,
    ) -> Result<Self, StudyError> {
        storage.change(&options.stop, |replay| {
            match replay.studies().find(|(_, study)| study.name == name) {
                None => {
                    let (name, directions) = (name.to_owned(), directions.to_vec());
                    Ok((vec![Operation::CreateStudy { name, directions }], ()))
                }
                Some(_) => {
                    let storage = storage.address().to_owned();
                    Err(StudyError::Exists { storage, name: name.to_owned() })
                }
            }
        })?;
        Self::load(storage, name, options)
    }

    /// Continues a study, whoever began it.
    ///
    /// # Errors
    ///
    /// If there is none of the name, or the journal fails.
    pub fn load(storage: &Arc<Storage>, name: &str, options: Options) -> Result<Self, StudyError> {
        let found = storage.view(&options.stop, |replay| {
            let mut named = replay.studies().filter(|(_, study)| study.name == name);
            named.next().map(|(id, study)| (id, study.directions.clone()))
        })?;
        let Some((id, directions)) = found else {
            let (known, name) = (storage.studies()?, name.to_owned());
            return Err(StudyError::Missing { storage: storage.address().to_owned(), name, known });
        };
        let Options { sampler, pruner, heartbeat, retries, stop } = options;
        Ok(Self {
            storage: Arc::clone(storage),
            id,
            name: name.to_owned(),
            directions,
            sampler: Mutex::new(sampler),
            pruner,
            retries,
            stop,
            heart: Heart::new(heartbeat),
            watch: Mutex::default(),
        })
    }

    /// Continues a study, or begins it if it is not there.
    ///
    /// # Errors
    ///
    /// If the one that is there has other objectives, or the journal fails.
    pub fn join(
        storage: &Arc<Storage>,
        name: &str,
        directions: &[Direction],
        options: Options,
    ) -> Result<Self, StudyError> {
        storage.change::<_, StudyError>(&options.stop, |replay| {
            let there = replay.studies().any(|(_, study)| study.name == name);
            let (name, directions) = (name.to_owned(), directions.to_vec());
            Ok((
                (!there)
                    .then_some(Operation::CreateStudy { name, directions })
                    .into_iter()
                    .collect(),
                (),
            ))
        })?;
        let study = Self::load(storage, name, options)?;
        if study.directions != directions {
            let text = |directions: &[Direction]| format!("the directions {directions:?}");
            let (found, wanted) = (text(&study.directions), text(directions));
            return Err(StudyError::Shape { name: name.to_owned(), found, wanted });
        }
        Ok(study)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The direction of each objective.
    pub fn directions(&self) -> &[Direction] {
        &self.directions
    }

    /// All trials, in the order of their numbers.
    ///
    /// # Errors
    ///
    /// If the journal fails.
    pub fn trials(&self) -> Result<Vec<Trial>, StudyError> {
        self.view(|study| study.trials.clone())
    }

    /// The best trials: with one objective the first best, with several those that no other trial
    /// beats in one objective without losing in another. Trials that violate a constraint are none.
    ///
    /// # Errors
    ///
    /// If the journal fails.
    pub fn best_trials(&self) -> Result<Vec<Trial>, StudyError> {
        let best = |study: &StudyRecord| {
            best::best(&study.trials, &self.directions).into_iter().cloned().collect()
        };
        self.view(best)
    }

    /// The time in which at least one trial of the study ran, up to now, by its journal: whoever worked
    /// on it, and in however many processes, one after the other or at once. A trial whose worker died
    /// counts up to its last sign of life.
    ///
    /// Each machine writes the time of its own clock. Where clocks differ by more than trials take,
    /// trials that ran at once may count twice. What depends on them besides is which of several trials ended
    /// first: for [`EarlyStop`], and for pruners that take their steps from the first complete trial.
    ///
    /// # Errors
    ///
    /// If the journal fails.
    pub fn time_spent(&self) -> Result<Duration, StudyError> {
        self.view(spent)
    }

    /// What keeps the study from beginning another trial, if anything does.
    ///
    /// # Errors
    ///
    /// If the journal fails.
    pub fn limit(&self, budget: &Budget) -> Result<Option<Limit>, StudyError> {
        self.view(|study| self.limit_of(study, budget).or_else(|| self.exhausted(study)))
    }

    fn limit_of(&self, study: &StudyRecord, budget: &Budget) -> Option<Limit> {
        let over = |rule: &EarlyStop| rule.is_over(&study.trials, &self.directions);
        if budget.trials.is_some_and(|most| retry::begun(study) >= most) {
            Some(Limit::Trials)
        } else if budget.time.is_some_and(|most| spent(study) >= most) {
            Some(Limit::Time)
        } else {
            budget.early_stop.as_ref().is_some_and(over).then_some(Limit::EarlyStop)
        }
    }

    fn exhausted(&self, study: &StudyRecord) -> Option<Limit> {
        let sampler = self.sampler.lock().unwrap_or_else(PoisonError::into_inner);
        sampler.is_exhausted(&study.trials).then_some(Limit::Proposals)
    }

    /// Attributes of the user.
    ///
    /// # Errors
    ///
    /// If the journal fails.
    pub fn attributes(&self) -> Result<BTreeMap<String, Json>, StudyError> {
        self.view(|study| study.user_attributes.clone())
    }

    /// Sets an attribute of the user.
    ///
    /// # Errors
    ///
    /// If the journal fails.
    pub fn set_attribute(&self, key: &str, value: &Json) -> Result<(), StudyError> {
        self.storage.change(&self.stop, |replay| {
            let had = replay.study(self.id).and_then(|study| study.user_attributes.get(key));
            let (study, key) = (self.id, key.to_owned());
            let operation = Operation::StudyUserAttribute { study, key, value: value.clone() };
            Ok(((had != Some(value)).then_some(operation).into_iter().collect(), ()))
        })
    }

    /// Attributes that programs keep for themselves; Optuna's dashboard does not show them.
    ///
    /// # Errors
    ///
    /// If the journal fails.
    pub fn system_attributes(&self) -> Result<BTreeMap<String, Json>, StudyError> {
        self.view(|study| study.system_attributes.clone())
    }

    /// Sets an attribute that programs keep for themselves.
    ///
    /// # Errors
    ///
    /// If the journal fails.
    pub fn set_system_attribute(&self, key: &str, value: &Json) -> Result<(), StudyError> {
        self.storage.change(&self.stop, |replay| {
            let had = replay.study(self.id).and_then(|study| study.system_attributes.get(key));
            let (study, key) = (self.id, key.to_owned());
            let operation = Operation::StudySystemAttribute { study, key, value: value.clone() };
            Ok(((had != Some(value)).then_some(operation).into_iter().collect(), ()))
        })
    }

    /// Sets an attribute of the system unless there is one; returns the one that there is. Of several who do
    /// so at once, one sets it.
    ///
    /// # Errors
    ///
    /// If the journal fails.
    pub fn claim_system_attribute(
        &self,
        key: &str,
        value: &Json,
    ) -> Result<Option<Json>, StudyError> {
        self.storage.change(&self.stop, |replay| {
            let had = replay.study(self.id).and_then(|study| study.system_attributes.get(key));
            let (study, key) = (self.id, key.to_owned());
            let operation = Operation::StudySystemAttribute { study, key, value: value.clone() };
            Ok((had.is_none().then_some(operation).into_iter().collect(), had.cloned()))
        })
    }

    /// Names the objectives, as Optuna's `set_metric_names` does; its dashboard shows them.
    ///
    /// # Errors
    ///
    /// If the journal fails.
    pub fn set_metric_names(&self, names: &[&str]) -> Result<(), StudyError> {
        self.set_system_attribute("study:metric_names", &Json::from(names.to_vec()))
    }

    /// Puts a trial with these values into the queue; it is taken before any other is begun.
    /// Parameters that are not among them are sampled.
    ///
    /// # Errors
    ///
    /// If the journal fails.
    pub fn enqueue(
        &self,
        values: &BTreeMap<String, Choice>,
        user_attributes: &BTreeMap<String, Json>,
    ) -> Result<(), StudyError> {
        let fixed =
            values.iter().map(|(name, choice)| (name.clone(), choice.to_json(json::marked)));
        let fixed = Json::Object(fixed.collect());
        self.storage.change(&self.stop, |_| {
            let operation = Operation::Enqueue {
                study: self.id,
                parameters: BTreeMap::new(),
                intermediate: BTreeMap::new(),
                user_attributes: user_attributes.clone(),
                system_attributes: BTreeMap::from([("fixed_params".to_owned(), fixed.clone())]),
            };
            Ok((vec![operation], ()))
        })
    }

    /// Refuses a space that trials of the study contradict, before one more is begun.
    ///
    /// # Errors
    ///
    /// If a parameter is of another kind than in earlier trials, or the journal fails.
    pub fn check_space(&self, space: &Space) -> Result<(), StudyError> {
        let known = self.view(|study| study.parameters.clone())?;
        for (name, parameter) in space.parameters() {
            if let Some((_, old)) = known.get(name)
                && let Some(reason) = incompatible(old, &parameter.distribution)
            {
                return Err(self.shape(name, old, &parameter.distribution, reason));
            }
        }
        Ok(())
    }

    /// Takes a trial that waits, or begins one. `None` if there is none to begin, see [`Study::limit`].
    ///
    /// # Errors
    ///
    /// If the journal fails.
    pub fn ask(&self, budget: &Budget) -> Result<Option<TrialHandle<'_>>, StudyError> {
        Ok(match self.ask_within(budget)? {
            Asked::Trial(handle) => Some(handle),
            Asked::UsedUp | Asked::Stopped => None,
        })
    }

    fn ask_within(&self, budget: &Budget) -> Result<Asked<'_>, StudyError> {
        self.retry_lost()?;
        let taken = self.storage.change::<_, StudyError>(&self.stop, |replay| {
            let Some(study) = replay.study(self.id) else { return Ok((vec![], Err(true))) };
            let room = self.limit_of(study, budget).is_none();
            let waiting = study.open.iter().map(|place| (study.ids[*place], &study.trials[*place]));
            let mut waiting = waiting.filter(|(_, trial)| trial.state == TrialState::Waiting);
            if let Some((id, _)) = waiting.find(|(_, trial)| room || retry::is_retry(trial)) {
                let (state, values) = (TrialState::Running, None);
                let taken = Operation::State { trial: id, state, values, time: time::now() };
                // First the sign of life: what was cut off behind it still waits.
                return Ok((vec![self.beat(id), taken], Ok(id)));
            }
            if !room || self.exhausted(study).is_some() {
                return Ok((vec![], Err(false)));
            }
            let (id, started) = (replay.trial_count(), time::now());
            let first = (HEARTBEAT.to_owned(), heart::beat(self.heart.every()));
            let system_attributes = BTreeMap::from([first]);
            let begun = Operation::CreateTrial { study: self.id, started, system_attributes };
            Ok((vec![begun], Ok(id)))
        })?;
        let id = match taken {
            Ok(id) => id,
            Err(stopped) => return Ok(if stopped { Asked::Stopped } else { Asked::UsedUp }),
        };
        self.heart.start(id, &self.storage, &self.stop);
        let trial = self.storage.peek(|replay| replay.trial(id).cloned());
        let trial = trial.ok_or(StudyError::Ended { number: id })?;
        Ok(Asked::Trial(TrialHandle::new(self, id, &trial)))
    }

    fn beat(&self, trial: u64) -> Operation {
        let value = heart::beat(self.heart.every());
        Operation::SystemAttribute { trial, key: HEARTBEAT.to_owned(), value }
    }

    /// Fails the trials whose worker died, and puts each back into the queue.
    fn retry_lost(&self) -> Result<(), StudyError> {
        let looked = Instant::now();
        let lost = self.view(|study| {
            self.heart.answered(looked.elapsed());
            let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
            watch.lost(self.strange(study))
        })?;
        // Where the journal could not be had, nobody could give a sign of life either.
        if lost.is_empty() || !self.heart.is_steady() {
            return Ok(());
        }
        self.storage.change(&self.stop, |replay| {
            let Some(study) = replay.study(self.id) else { return Ok((vec![], ())) };
            let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
            // Others may have done it meanwhile, and its worker may have woken up.
            let still = watch.lost(self.strange(study));
            let operations = still.into_iter().filter_map(|id| {
                let cause = retry::Cause::Died(self.retries);
                let trial = replay.trial(id)?;
                Some(retry::fail_and_retry(study, self.id, id, trial, cause))
            });
            Ok((operations.flatten().collect(), ()))
        })
    }

    /// The running trials that are not this process's.
    fn strange<'a>(&'a self, study: &'a StudyRecord) -> impl Iterator<Item = (u64, &'a Trial)> {
        let open = study.open.iter().map(|place| (study.ids[*place], &study.trials[*place]));
        let running = open.filter(|(_, trial)| trial.state == TrialState::Running);
        running.filter(|(id, _)| !self.heart.runs(*id))
    }

    /// Whether a trial is under way that may still come back: it runs with signs of life, or waits as
    /// a retry.
    fn others_work(&self) -> Result<bool, StudyError> {
        self.view(|study| {
            study.open.iter().any(|place| {
                let trial = &study.trials[*place];
                match trial.state {
                    TrialState::Running => trial.system_attributes.contains_key(HEARTBEAT),
                    _ => retry::is_retry(trial),
                }
            })
        })
    }

    /// Values of a space for a trial, and the attributes that the sampler wants to be kept.
    fn sample(
        &self,
        trials: &[Trial],
        number: u64,
        space: &BTreeMap<String, Distribution>,
    ) -> (BTreeMap<String, f64>, BTreeMap<String, Json>) {
        let mut sampler = self.sampler.lock().unwrap_or_else(PoisonError::into_inner);
        let pruner = self.pruner.as_ref().filter(|_| sampler.learns_from_rivals_alone());
        let competing = pruner.and_then(|pruner| {
            let competes = |trial: &&Trial| pruner.competes(trials, number, trial.number);
            let all = trials.iter().all(|trial| competes(&trial));
            (!all).then(|| trials.iter().filter(competes).cloned().collect::<Vec<_>>())
        });
        let trials = competing.as_deref().unwrap_or(trials);
        let context = SamplerContext { trials, directions: &self.directions, number };
        let values = sampler.sample(&context, space);
        (values, sampler.attributes(&context))
    }

    fn view<T>(&self, look: impl FnOnce(&StudyRecord) -> T) -> Result<T, StudyError> {
        let seen = self.storage.view(&self.stop, |replay| replay.study(self.id).map(look))?;
        seen.ok_or_else(|| StudyError::Missing {
            storage: self.storage.address().to_owned(),
            name: self.name.clone(),
            known: vec![],
        })
    }

    fn shape(
        &self,
        name: &str,
        old: &Distribution,
        new: &Distribution,
        reason: &str,
    ) -> StudyError {
        StudyError::Shape {
            name: self.name.clone(),
            found: format!("`{name}` among {old}"),
            wanted: format!("`{name}` among {new}; {reason}"),
        }
    }
}

fn spent(study: &StudyRecord) -> Duration {
    let seconds = spent::seconds(&study.trials, time::now());
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod power;
#[cfg(test)]
mod tests;
