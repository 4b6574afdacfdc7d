//! What a search found: the best trials as pipeline files, the best measured as any other run, the page.

use std::path::{Path, PathBuf};

use firebox_core::{Event, Listener};
use firebox_search::{Direction, Limit, Study, Trial, TrialState, pareto_front, superseded};

use super::settled::{comments, of_trial};
use super::text::{reason, value_text};
use super::{Search, SearchConfig, page, trial};
use crate::device::ChosenDevice;
use crate::error::{PipelineError, at};
use crate::feed::fetch_first;
use crate::folder::{RunFolder, conclusion};
use crate::forgotten::{begin_again, forgotten};
use crate::kept::is_kept;
use crate::stages::Asker;
use crate::{Finished, Prepared};

/// What a search found.
#[derive(Clone, Debug)]
pub struct Searched {
    /// Trials with a value, trials given up early, and trials that failed for good.
    pub complete: usize,
    /// See above.
    pub pruned: usize,
    /// See above.
    pub failed: usize,
    /// Why no more trials are begun, if so.
    pub ended: Option<String>,
    /// Number of the best trial and its value of the first objective; with several objectives, of the
    /// one that is best in the first.
    pub best: Option<(u64, f64)>,
    /// The first objective, for a reader, such as `validation loss`.
    pub objective: &'static str,
    /// With several objectives: the trials that no other beats in all of them, by their numbers, each
    /// with its pipeline file.
    pub front: Vec<(u64, PathBuf)>,
    /// The best configuration, as a pipeline file.
    pub pipeline: Option<PathBuf>,
    /// The page of the study.
    pub page: PathBuf,
    /// The run of the best trial, measured as any other run.
    pub finished: Option<Finished>,
}

impl Search {
    /// Measures the best trial as any other run, and writes its pipeline and the page of the study.
    ///
    /// # Errors
    ///
    /// If the journal fails, the evaluation fails, or something cannot be written.
    pub fn conclude(
        &self,
        device: &ChosenDevice,
        listener: &dyn Listener,
    ) -> Result<Searched, PipelineError> {
        let study = self.study()?;
        let trials = self.trials(&study)?;
        let folder = self.folder();
        std::fs::create_dir_all(&folder).map_err(at(&folder))?;
        // What was tried again is told of by the last try.
        let retried = superseded(&trials);
        let shown = trials.iter().filter(|trial| !retried.contains(&trial.number));
        let shown: Vec<Trial> = shown.cloned().collect();
        let count = |state| shown.iter().filter(|trial| trial.state == state).count();
        let ended = self.ended(&study)?;
        let (best, warnings) = self.best(&shown);
        for message in &warnings {
            listener.on(&Event::Warning { message: message.clone() });
        }
        let mut about = page::About {
            study: &study,
            trials: &shown,
            all: &trials,
            seconds: study.time_spent()?.as_secs_f64(),
            space: &self.space,
            storage: self.storage.address(),
            objectives: &self.search.objectives,
            sampler: self.search.sampler.name(),
            pruner: self.search.pruner().name(),
            ended: ended.clone(),
            best: best.iter().map(|best| best.trial.number).collect(),
            configuration: String::new(),
            warnings,
        };
        let mut pipeline = None;
        if let Some(first) = best.first() {
            let path = folder.join("best.toml");
            about.configuration = self.text_of(first)?;
            page::replace(&path, &about.configuration)?;
            pipeline = Some(path);
        }
        let front = if study.directions().len() > 1 { best.as_slice() } else { &[] };
        let write = |best: &Best| {
            let path = folder.join(format!("best-{}.toml", best.trial.number));
            page::replace(&path, &self.text_of(best)?)?;
            Ok((best.trial.number, path))
        };
        let front = front.iter().map(write).collect::<Result<Vec<_>, PipelineError>>()?;
        forget_others(&folder, &front);
        // Before the evaluation, which takes its time and may fail.
        let page = page::write(&folder, &about)?;
        let finished = match best.first() {
            Some(best) => self.measure(best, device, listener)?,
            None => None,
        };
        Ok(Searched {
            complete: count(TrialState::Complete),
            pruned: count(TrialState::Pruned),
            failed: count(TrialState::Fail),
            ended,
            best: best.first().map(|best| (best.trial.number, best.value)),
            objective: self.search.objectives.names()[0],
            front,
            pipeline,
            page,
            finished,
        })
    }

    /// Why no more trials are begun.
    fn ended(&self, study: &Study) -> Result<Option<String>, PipelineError> {
        let Some(limit) = study.limit(&self.budget())? else { return Ok(None) };
        let SearchConfig { trials, timeout, early_stop, .. } = &self.search;
        Ok(Some(match limit {
            Limit::Trials => format!("all of `search.trials` = {trials}"),
            Limit::Time => format!(
                "trials ran for {:.1} s, all workers and commands together, and `search.timeout` = {}",
                study.time_spent()?.as_secs_f64(),
                timeout.unwrap_or_default()
            ),
            Limit::EarlyStop => format!(
                "the last {} trials have not improved the best value (`search.early_stop`)",
                early_stop.as_ref().map_or(0, |rule| rule.patience)
            ),
            Limit::Proposals => "the sampler has nothing left to propose".to_owned(),
        }))
    }

    /// A trial as a pipeline file.
    fn text_of(&self, best: &Best) -> Result<String, PipelineError> {
        let (number, name) = (best.trial.number, &self.name);
        let head = format!(
            "# Trial {number} of the study {name}: {}\n# Run it: firebox run <this file>\n{}\n",
            value_text(&best.trial, &self.search.objectives),
            comments(best.prepared.settled_reasons())
        );
        Ok(head + &best.prepared.toml()?)
    }

    /// Evaluates the best trial, or waits for a worker that does.
    fn measure(
        &self,
        best: &Best,
        device: &ChosenDevice,
        listener: &dyn Listener,
    ) -> Result<Option<Finished>, PipelineError> {
        let mut waits = false;
        let run = || {
            self.renew(best, device, listener)?;
            best.prepared.run_for(Asker::Search, device, &self.stop, listener)
        };
        while !self.is_stopped() {
            match run() {
                Err(PipelineError::InUse(folder)) => {
                    if !std::mem::replace(&mut waits, true) {
                        let message = format!(
                            "another worker has {} in hand, the run of the best trial; this one waits",
                            folder.display()
                        );
                        listener.on(&Event::Warning { message });
                    }
                    std::thread::sleep(trial::PAUSE);
                }
                other => return other.map(Some),
            }
        }
        Ok(None)
    }

    /// Lets the best trial be trained again if what is to be measured is gone: its checkpoint, and what was
    /// measured of it before.
    fn renew(
        &self,
        best: &Best,
        device: &ChosenDevice,
        listener: &dyn Listener,
    ) -> Result<(), PipelineError> {
        // A look at its folder is enough for nearly every trial.
        let run = trial::run_of(&best.trial).map(|run| self.config.run.directory.join(run));
        if run.is_none_or(|run| forgotten(&run).is_none()) {
            return Ok(());
        }
        fetch_first(best.prepared.config(), &self.stop, listener)?;
        let (keys, run) = best.prepared.settled(device, &self.stop, &self.shared)?.place(device)?;
        let is_gone = || forgotten(&run).is_some_and(|own| own.key == keys.training);
        let is_measured = conclusion(&run, keys.evaluation).is_some() && is_kept(&run);
        if is_measured || !is_gone() {
            return Ok(());
        }
        let _held = RunFolder::open(&run)?;
        // Another worker may have had it in hand until now.
        if is_gone() {
            let (number, folder) = (best.trial.number, run.display());
            let message = format!(
                "the checkpoint of trial {number}, the best, is not in {folder} any more; it is trained again"
            );
            listener.on(&Event::Warning { message });
            begin_again(&run)?;
        }
        Ok(())
    }

    /// The best trials that are pipelines, the best in the first objective first: one, or with several
    /// objectives all that no other beats; and a warning for each better one that is none: Optuna's may
    /// have parameters and values that no pipeline has.
    fn best(&self, trials: &[Trial]) -> (Vec<Best>, Vec<String>) {
        let directions = self.search.objectives.directions();
        let (mut best, mut warnings) = (vec![], vec![]);
        for ranked in ranked(trials, &directions) {
            let enough = directions.len() == 1 || !ranked.on_front;
            if enough && !best.is_empty() {
                break;
            }
            let (trial, value) = (ranked.trial.clone(), ranked.value);
            match self.config_of(&trial) {
                Ok(config) => {
                    let (config, settled) = of_trial(config, &trial, &self.config.run.directory);
                    let prepared = Prepared::of(&self.name, config).explained(settled);
                    best.push(Best { trial, value, prepared });
                }
                Err(error) => warnings.push(format!(
                    "trial {} ({}) is no pipeline, so the next best is taken: {}",
                    trial.number,
                    value_text(&trial, &self.search.objectives),
                    reason(&error)
                )),
            }
        }
        (best, warnings)
    }
}

/// Removes the pipelines of trials that were on the front when the search was concluded before.
fn forget_others(folder: &Path, front: &[(u64, PathBuf)]) {
    for file in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = file.file_name().to_string_lossy().into_owned();
        let number = name.strip_prefix("best-").and_then(|rest| rest.strip_suffix(".toml"));
        let number = number.and_then(|number| number.parse::<u64>().ok());
        if number.is_some_and(|number| front.iter().all(|(own, _)| *own != number)) {
            // One that stays misleads nobody: it says which trial it is.
            let _ = std::fs::remove_file(file.path());
        }
    }
}

/// A trial that is among the best.
struct Best {
    trial: Trial,
    /// Of the first objective.
    value: f64,
    prepared: Prepared,
}

/// A complete trial that violates no constraint and has finite values.
pub(super) struct Ranked<'a> {
    pub(super) trial: &'a Trial,
    /// Of the first objective.
    value: f64,
    /// No other is as good in every objective and better in one.
    on_front: bool,
}

/// Whether a trial violates no constraint.
pub(super) fn is_feasible(trial: &Trial) -> bool {
    trial.constraints.iter().flatten().all(|size| *size <= 0.0)
}

/// Those of all trials, the best first: by the first objective, and with several objectives those on the front
/// before all others.
pub(super) fn ranked<'a>(trials: &'a [Trial], directions: &[Direction]) -> Vec<Ranked<'a>> {
    let front = pareto_front(trials, directions, true);
    let complete = trials.iter().filter(|t| t.state == TrialState::Complete && is_feasible(t));
    let rank = |trial: &'a Trial| {
        let values = trial.values.as_ref().filter(|values| values.len() == directions.len())?;
        let value = *values.first().filter(|_| values.iter().all(|value| value.is_finite()))?;
        Some(Ranked { trial, value, on_front: front.contains(&trial.number) })
    };
    let mut ranked: Vec<_> = complete.filter_map(rank).collect();
    let behind = |one: &Ranked<'_>| directions.len() > 1 && !one.on_front;
    let loss = |one: &Ranked<'_>| directions.first().map_or(0.0, |first| first.loss(one.value));
    ranked.sort_by(|a, b| {
        let by_front = behind(a).cmp(&behind(b));
        by_front.then(loss(a).total_cmp(&loss(b))).then(a.trial.number.cmp(&b.trial.number))
    });
    ranked
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(number: u64, values: &[f64]) -> Trial {
        let values = Some(values.to_vec());
        Trial { values, ..Trial::new(number, TrialState::Complete) }
    }

    #[test]
    fn the_front_comes_before_all_others_and_within_it_the_least_loss() {
        let order = |trials: &[Trial], objectives: usize| {
            let directions = vec![Direction::Minimize; objectives];
            let ranked = ranked(trials, &directions);
            ranked.iter().map(|one| one.trial.number).collect::<Vec<_>>()
        };
        let one =
            [trial(0, &[2.0]), trial(1, &[1.0]), trial(2, &[f64::INFINITY]), trial(3, &[1.0])];
        assert_eq!(order(&one, 1), [1, 3, 0]);
        // Trial 1 is beaten by 0 in both; 2 is large and best, 3 the smallest.
        let mut two = vec![
            trial(0, &[2.0, 50.0]),
            trial(1, &[2.5, 60.0]),
            trial(2, &[1.0, 90.0]),
            trial(3, &[9.0, 10.0]),
            trial(4, &[0.5, f64::NAN]),
            trial(5, &[0.5]),
        ];
        assert_eq!(order(&two, 2), [2, 0, 3, 1]);
        two[2].constraints = Some(vec![1.0]);
        assert_eq!(order(&two, 2), [0, 3, 1]);
    }

    #[test]
    fn of_a_score_the_greatest_is_the_best() {
        let (up, down) = (Direction::Maximize, Direction::Minimize);
        let order = |trials: &[Trial], directions: &[Direction]| {
            ranked(trials, directions).iter().map(|one| one.trial.number).collect::<Vec<_>>()
        };
        let one = [trial(0, &[0.5]), trial(1, &[0.9]), trial(2, &[f64::NAN]), trial(3, &[-2.0])];
        assert_eq!(order(&one, &[up]), [1, 0, 3]);
        // Trial 0 is beaten by 1 in both: it is larger and scores less.
        let two = [trial(0, &[0.5, 90.0]), trial(1, &[0.9, 80.0]), trial(2, &[0.2, 10.0])];
        assert_eq!(order(&two, &[up, down]), [1, 2, 0]);
    }
}
