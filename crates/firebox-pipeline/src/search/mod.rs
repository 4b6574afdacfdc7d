//! A search: a study whose trials are runs of a pipeline with some of its keys changed.
//!
//! The study knows nothing of training, and training nothing of the study; this module has both. The
//! pipeline that is searched is kept with the study, so that any worker that reaches the journal can
//! take part, and so that nobody continues it with another pipeline by mistake.

mod concurrent;
mod config;
mod open;
mod page;
mod sampling;
mod space;
mod text;
mod training;
mod trial;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use firebox_core::{Event, Listener};
use firebox_search::{
    Budget, Direction, Options, Space, Storage, Study, StudyError, Trial, TrialHandle, TrialState,
};

pub use concurrent::Concurrent;
pub use config::{
    Number, Objective, Patient, PrunerConfig, SamplerConfig, SearchConfig, SpaceEntry,
};

use crate::device::ChosenDevice;
use crate::error::{PipelineError, at};
use crate::shared::Shared;
use crate::{Finished, PipelineConfig, Prepared, layers, prepared};
use concurrent::Gate;
use open::{
    PIPELINE, check_name, check_numbers, find, folder, open_storage, same_search, stored_pipeline,
};
use text::{parameters_text, reason, value_text};
use trial::Ran;

/// Which search is worked on.
#[derive(Clone, Debug)]
pub enum SearchSource {
    /// That of a pipeline file; begun if it is not there.
    File(PathBuf),
    /// One that somebody began.
    Join {
        /// Its journal: a path, or `redis://…`.
        storage: String,
        /// Its name, if the journal has several.
        study: Option<String>,
    },
}

/// A search, ready to be worked on.
pub struct Search {
    name: String,
    /// What is searched: the pipeline with all its layers, as the study keeps it.
    text: String,
    config: PipelineConfig,
    search: SearchConfig,
    space: Space,
    storage: Arc<Storage>,
    stop: Arc<AtomicBool>,
    /// What keeps this worker from running any trial.
    fault: Mutex<Option<PipelineError>>,
    /// What the trials of this worker have in common.
    shared: Shared,
}

/// What a search found.
#[derive(Clone, Debug)]
pub struct Searched {
    /// Trials with a value, trials given up early, and trials that failed for good.
    pub complete: usize,
    /// See above.
    pub pruned: usize,
    /// See above.
    pub failed: usize,
    /// Number and value of the best trial.
    pub best: Option<(u64, f64)>,
    /// The best configuration, as a pipeline file.
    pub pipeline: Option<PathBuf>,
    /// The page of the study.
    pub page: PathBuf,
    /// The run of the best trial, measured as any other run.
    pub finished: Option<Finished>,
}

impl Search {
    /// Reads the pipeline, checks the space against its schema, and begins or joins the study. No trial
    /// is begun.
    ///
    /// # Errors
    ///
    /// What cannot be read, is unknown or out of range, in the file and in the space; a storage that
    /// cannot be used; a study that was begun with another pipeline.
    pub fn open(
        source: &SearchSource,
        environment: impl IntoIterator<Item = (String, String)>,
        settings: &[String],
        stop: &Arc<AtomicBool>,
    ) -> Result<Self, PipelineError> {
        let environment: Vec<(String, String)> = environment.into_iter().collect();
        let settings = settings.to_vec();
        let (file, text, joined) = match source {
            SearchSource::File(file) => (file.clone(), layers::text_of(file)?, None),
            SearchSource::Join { storage, study } => {
                let (storage, name) = find(storage, study.as_deref())?;
                let text = stored_pipeline(&storage, &name)?;
                (PathBuf::from(format!("pipeline of {name}")), text, Some((storage, name)))
            }
        };
        let config = layers::parse(&file, &text, environment.clone(), &settings)?;
        prepared::check(&config)?;
        let Some(search) = config.search.clone() else {
            return Err(PipelineError::Setting(format!(
                "{} has no table [search]\n  add one with [search.space], as in pipelines/search.toml, or run the pipeline with `firebox run`",
                file.display()
            )));
        };
        let stem = file.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let own = || search.study.clone().or(stem).unwrap_or_else(|| "search".to_owned());
        let (storage, name) = match joined {
            Some((storage, name)) => (Some(storage), name),
            None => (None, own()),
        };
        check_name(&name)?;
        check_numbers(&search)?;
        let space = space::space(&search.space)?;
        let read = |more: &[String]| {
            let all = [settings.as_slice(), more].concat();
            prepared::check(&layers::parse(&file, &text, environment.clone(), &all)?)
        };
        space::check_schema(&space, read)?;
        let storage = match storage {
            Some(storage) => storage,
            None => open_storage(&config, &search, &name)?,
        };
        let stop = Arc::clone(stop);
        let mut kept = config.clone();
        if let Some(search) = &mut kept.search {
            search.storage = search.storage.as_deref().map(Storage::public);
        }
        let text = Prepared::of(&name, kept).toml()?;
        let (fault, shared) = (Mutex::new(None), Shared::keeping());
        let this = Self { name, text, config, search, space, storage, stop, fault, shared };
        this.begin(&file, matches!(source, SearchSource::File(_)))?;
        Ok(this)
    }

    /// Name of the study.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where the study is kept, for those who join it; without user and password.
    pub fn storage(&self) -> &str {
        self.storage.address()
    }

    /// Where the study is kept, with the password, for processes that this one starts.
    pub fn secret_storage(&self) -> &str {
        self.storage.secret_address()
    }

    /// The pipeline's settings, without those of a trial.
    pub fn config(&self) -> &PipelineConfig {
        &self.config
    }

    /// Folder of what the search leaves: the best pipeline and the page.
    pub fn folder(&self) -> PathBuf {
        folder(&self.config, &self.name)
    }

    /// Works on the study until its budget is used up or the worker is stopped.
    ///
    /// # Errors
    ///
    /// If the journal fails, or what every trial would meet: data that is not there, a full disk, no
    /// validation windows. The trial that met it is put back.
    pub fn work(
        &self,
        device: &ChosenDevice,
        listener: &dyn Listener,
    ) -> Result<(), PipelineError> {
        let study = self.study()?;
        let budget = Budget {
            trials: Some(self.search.trials),
            time: self.search.timeout.map(Duration::from_secs_f64),
            early_stop: self.search.early_stop.clone(),
        };
        let gpu = device.backend != "cpu";
        let gate = Gate::new(self.search.concurrent, gpu, rayon::current_num_threads(), listener);
        let period = if gate.watches() { concurrent::PERIOD } else { 0.0 };
        let work = || {
            // Whatever ends this one ends those that wait, too.
            let _closing = gate.closing();
            study.optimize(&budget, |trial| self.attempt(&study, trial, device, listener))
        };
        let one = |others| if gate.enter(others) { work() } else { Ok(()) };
        firebox_monitor::sampled(period, gpu, &gate, || {
            std::thread::scope(|scope| {
                let one = &one;
                let more: Vec<_> =
                    (1..gate.most()).map(|others| scope.spawn(move || one(others))).collect();
                let mut result = work();
                for other in more {
                    let other =
                        other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                    result = result.and(other);
                }
                result
            })
        })?;
        let fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner).take();
        fault.map_or(Ok(()), Err)
    }

    /// Whether the worker was asked to stop.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

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
        let trials = study.trials()?;
        let folder = self.folder();
        std::fs::create_dir_all(&folder).map_err(at(&folder))?;
        // What was tried again is told of by the last try.
        let retried = |trial: &Trial| trials.iter().any(|later| goes_on_with(later, trial.number));
        let shown: Vec<Trial> = trials.iter().filter(|trial| !retried(trial)).cloned().collect();
        let count = |state| shown.iter().filter(|trial| trial.state == state).count();
        let (best, warnings) = self.best(&shown);
        for message in &warnings {
            listener.on(&Event::Warning { message: message.clone() });
        }
        let mut about = page::About {
            study: &study,
            trials: &shown,
            space: &self.space,
            storage: self.storage.address(),
            sampler: self.search.sampler.name(),
            pruner: self.search.pruner.name(),
            best: best.as_ref().map(|(trial, ..)| trial.number),
            configuration: String::new(),
            warnings,
        };
        let mut pipeline = None;
        if let Some((best, _, prepared)) = &best {
            let path = folder.join("best.toml");
            let head = format!(
                "# Trial {} of the study {}: {}\n# Run it: firebox run <this file>\n\n",
                best.number,
                self.name,
                value_text(best)
            );
            about.configuration = head + &prepared.toml()?;
            page::replace(&path, &about.configuration)?;
            pipeline = Some(path);
        }
        // Before the evaluation, which takes its time and may fail.
        let page = page::write(&folder, &about)?;
        let finished = match &best {
            Some((_, _, prepared)) if !self.is_stopped() => {
                Some(prepared.run(device, &self.stop, listener)?)
            }
            _ => None,
        };
        Ok(Searched {
            complete: count(TrialState::Complete),
            pruned: count(TrialState::Pruned),
            failed: count(TrialState::Fail),
            best: best.map(|(best, value, _)| (best.number, value)),
            pipeline,
            page,
            finished,
        })
    }

    /// The best trial that is a pipeline, with its value, and a warning for each better one that is
    /// none: Optuna's may have parameters and values that no pipeline has.
    fn best(&self, trials: &[Trial]) -> (Option<(Trial, f64, Prepared)>, Vec<String>) {
        let mut warnings = vec![];
        for (trial, value) in ranked(trials) {
            match self.config_of(trial) {
                Ok(config) => {
                    let prepared = Prepared::of(&self.name, config);
                    return (Some((trial.clone(), value, prepared)), warnings);
                }
                Err(error) => warnings.push(format!(
                    "trial {} has the loss {value} and is no pipeline, so the next best is taken: {}",
                    trial.number,
                    reason(&error)
                )),
            }
        }
        (None, warnings)
    }

    fn study(&self) -> Result<Study, PipelineError> {
        let seed = self.config.run.seed;
        let options = Options {
            sampler: sampling::sampler(&self.search.sampler, &self.space, seed)?,
            pruner: sampling::pruner(&self.search.pruner, &self.name)?,
            heartbeat: Duration::from_secs_f64(self.search.heartbeat),
            retries: self.search.retries,
            stop: Arc::clone(&self.stop),
        };
        Ok(Study::join(&self.storage, &self.name, &[Direction::Minimize], options)?)
    }

    /// Begins the study, or makes sure that it is this one. With the file, what may change of it is
    /// kept for those who join.
    fn begin(&self, file: &Path, with_file: bool) -> Result<(), PipelineError> {
        let study = self.study()?;
        study.check_space(&self.space)?;
        let known = study.system_attributes()?;
        let known = known.get(PIPELINE).and_then(|text| text.as_str());
        if let Some(text) = known {
            let theirs = layers::parse(&self.kept_in(), text, [], &[])?;
            same_search(&self.name, file, &self.config, &theirs)?;
        }
        if with_file || known.is_none() {
            study.set_system_attribute(PIPELINE, &self.text.clone().into())?;
        }
        study.set_metric_names(&["validation loss"])?;
        Ok(())
    }

    /// Where the text comes from, for messages.
    fn kept_in(&self) -> PathBuf {
        PathBuf::from(format!("the study {}", self.name))
    }

    /// The pipeline with the values of a trial.
    fn config_of(&self, trial: &Trial) -> Result<PipelineConfig, PipelineError> {
        let mut settings = vec![];
        for (key, (distribution, internal)) in &trial.parameters {
            let value = distribution.to_value(*internal);
            let value =
                value.map_err(|source| StudyError::Parameter { name: key.clone(), source })?;
            settings.push(space::setting(key, &value));
        }
        let mut config = layers::parse(&self.kept_in(), &self.text, [], &settings)?;
        prepared::check(&config)?;
        config.search = None;
        Ok(config)
    }

    /// Runs a trial; what it says besides its value becomes the reason of its failure.
    fn attempt(
        &self,
        study: &Study,
        trial: &mut TrialHandle<'_>,
        device: &ChosenDevice,
        listener: &dyn Listener,
    ) -> Result<Vec<f64>, PipelineError> {
        let started = std::time::Instant::now();
        let stage = format!("trial {}", trial.number());
        listener.on(&Event::StageStarted { stage: stage.clone() });
        trial.suggest_space(&self.space)?;
        let frozen = trial.trial().ok_or(StudyError::Ended { number: trial.number() })?;
        let ran = self.config_of(&frozen).and_then(|config| {
            trial::run(&self.name, config, device, &self.stop, &self.shared, listener, trial)
        });
        let detail = match &ran {
            Ok(Ran::Complete(loss)) => format!("validation loss {loss:.5}"),
            Ok(Ran::Pruned) => "given up early".to_owned(),
            Ok(Ran::Interrupted) => "interrupted; it is gone on with later".to_owned(),
            Err(error) if is_shared(error) => "put back, as the worker cannot go on".to_owned(),
            Err(error) => format!("failed: {}", reason(error)),
        };
        let resumed = match trial.origin() {
            origin if origin == trial.number() => String::new(),
            origin => format!(", goes on with trial {origin}"),
        };
        listener.on(&Event::StageFinished {
            stage,
            key: None,
            reused: false,
            seconds: started.elapsed().as_secs_f64(),
            detail: format!("{detail}; {}{resumed}", parameters_text(&frozen)),
        });
        self.tidy(study, &frozen, &ran)?;
        match ran {
            Ok(Ran::Complete(loss)) => Ok(vec![loss]),
            Ok(Ran::Pruned) => {
                trial.give_up();
                Ok(vec![])
            }
            Ok(Ran::Interrupted) => {
                trial.interrupt();
                Ok(vec![])
            }
            Err(error) if is_shared(&error) => {
                trial.interrupt();
                let mut fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
                fault.get_or_insert(error);
                // Other trials of this worker would fail in the same way.
                self.stop.store(true, Ordering::SeqCst);
                Ok(vec![])
            }
            Err(error) => Err(PipelineError::Setting(reason(&error))),
        }
    }

    /// Removes the checkpoints of trials that are not among the best any more.
    fn tidy(
        &self,
        study: &Study,
        now: &Trial,
        ran: &Result<Ran, PipelineError>,
    ) -> Result<(), PipelineError> {
        let mut values: Vec<(f64, String)> = vec![];
        let run_of = |trial: &Trial| {
            trial.user_attributes.get(trial::RUN).and_then(|run| run.as_str()).map(str::to_owned)
        };
        let trials = study.trials()?;
        let named = trials.iter().find(|trial| trial.number == now.number).and_then(run_of);
        let mut done = vec![];
        match (named, ran) {
            (Some(run), Ok(Ran::Complete(loss))) => values.push((*loss, run)),
            (Some(run), Ok(Ran::Pruned)) => done.push(run),
            // Not if another worker goes on with it.
            (Some(run), Err(error))
                if !is_shared(error) && !matches!(error, PipelineError::Study(_)) =>
            {
                done.push(run);
            }
            _ => {}
        }
        for trial in trials.iter().filter(|trial| trial.state == TrialState::Complete) {
            let value = trial.values.as_ref().and_then(|values| values.first()).copied();
            if let (Some(value), Some(run)) = (value, run_of(trial)) {
                values.push((value, run));
            }
        }
        values.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        values.dedup_by(|(_, a), (_, b)| a == b);
        let best = values.iter().take(self.search.keep.max(1)).map(|(_, run)| run.clone());
        let sizes = best.map(|run| {
            let size = trial::checkpoint_bytes(&self.config.run.directory.join(&run));
            (run, size)
        });
        let kept = within(self.search.size_budget, sizes.collect());
        done.extend(values.into_iter().map(|(_, run)| run));
        for run in done.iter().filter(|run| !kept.contains(run)) {
            trial::forget(&self.config.run.directory.join(run));
        }
        Ok(())
    }
}

/// The runs, the best first, whose checkpoints fit into the budget together; always the first.
fn within(budget: Option<u64>, runs: Vec<(String, u64)>) -> Vec<String> {
    let mut taken = 0u64;
    let fits = |(place, (_, size)): &(usize, (String, u64))| {
        taken = taken.saturating_add(*size);
        *place == 0 || budget.is_none_or(|budget| taken <= budget)
    };
    runs.into_iter().enumerate().take_while(fits).map(|(_, (run, _))| run).collect()
}

/// Whether an error is none of the trial's own: the machine's, or of the data, which no trial changes.
fn is_shared(error: &PipelineError) -> bool {
    use PipelineError::{Data, NoValidation, Normalise, Split, Study};
    if matches!(error, Data(_) | NoValidation | Normalise(_) | Split(_)) {
        return true;
    }
    if matches!(error, Study(StudyError::Storage(_))) {
        return true;
    }
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        if inner.is::<std::io::Error>() {
            return true;
        }
        cause = inner.source();
    }
    false
}

/// The complete trials that violate no constraint and have a finite value, the best first.
fn ranked(trials: &[Trial]) -> Vec<(&Trial, f64)> {
    let feasible = |trial: &Trial| trial.constraints.iter().flatten().all(|size| *size <= 0.0);
    let complete = trials.iter().filter(|t| t.state == TrialState::Complete && feasible(t));
    let value = |trial: &Trial| trial.values.as_ref()?.first().copied().filter(|v| v.is_finite());
    let mut ranked: Vec<_> = complete.filter_map(|trial| Some((trial, value(trial)?))).collect();
    ranked.sort_by(|(a, x), (b, y)| x.total_cmp(y).then(a.number.cmp(&b.number)));
    ranked
}

fn goes_on_with(later: &Trial, number: u64) -> bool {
    let history = later.system_attributes.get("retry_history").and_then(|list| list.as_array());
    history.is_some_and(|list| list.iter().any(|entry| entry.as_u64() == Some(number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_budget_keeps_the_best_and_what_fits_beside_it() {
        let runs =
            || [("a", 5), ("b", 3), ("c", 3)].map(|(run, size)| (run.to_owned(), size)).to_vec();
        assert_eq!(within(None, runs()), ["a", "b", "c"]);
        assert_eq!(within(Some(8), runs()), ["a", "b"]);
        assert_eq!(within(Some(7), runs()), ["a"]);
        assert_eq!(within(Some(0), runs()), ["a"]);
        assert!(within(Some(9), vec![]).is_empty());
    }
}
