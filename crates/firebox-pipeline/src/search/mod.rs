//! A search: a study whose trials are runs of a pipeline with some of its keys changed.
//!
//! The study knows nothing of training, and training nothing of the study; this module has both. The
//! pipeline that is searched is kept with the study, so that any worker that reaches the journal can
//! take part, and so that nobody continues it with another pipeline by mistake.

mod conclude;
mod concurrent;
mod config;
mod keep;
mod named;
mod objective;
mod open;
mod page;
mod sampling;
mod settled;
mod shortage;
mod space;
mod text;
mod training;
mod trial;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use firebox_core::{Event, Key, Listener, count};
use firebox_search::{
    Budget, Options, Space, Storage, Study, StudyError, Trial, TrialHandle, TrialState,
};

pub use conclude::Searched;
pub use concurrent::Concurrent;
pub use config::{Number, Patient, PrunerConfig, SamplerConfig, SearchConfig, SpaceEntry};
pub use objective::{Objective, Objectives};

pub use shortage::{NOTE_BYTES, Shortage, note_trials};

use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::feed::fetch_first;
use crate::settle::check_environment;
use crate::shared::Shared;
use crate::stages::check_size;
use crate::{PipelineConfig, Prepared, layers, prepared};
use concurrent::Gate;
use open::{
    DATA, PIPELINE, check_name, check_numbers, find, folder, open_storage, same_search,
    stored_pipeline,
};
use settled::Told;
use shortage::{ALONE, InHand, Turns};
use text::{parameters_text, reason, values_text};
use trial::Ran;

/// How often a trial is put back because of what is no fault of its own. One for which no worker can read something
/// would else be the next of every worker, and no other would run.
const MOST_FAULTS: u64 = 3;

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
    /// What was said of them.
    told: Told,
    /// Which of them may run.
    turns: Turns,
    /// What the process had in hand whose place this one took.
    before: Option<Shortage>,
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
        Self::open_with(source, &environment.into_iter().collect::<Vec<_>>(), settings, stop)
    }

    fn open_with(
        source: &SearchSource,
        environment: &[(String, String)],
        settings: &[String],
        stop: &Arc<AtomicBool>,
    ) -> Result<Self, PipelineError> {
        let settings = settings.to_vec();
        let (file, text, joined) = match source {
            SearchSource::File(file) => (file.clone(), layers::text_of(file)?, None),
            SearchSource::Join { storage, study } => {
                let (storage, name) = find(storage, study.as_deref())?;
                let text = stored_pipeline(&storage, &name)?;
                (PathBuf::from(format!("pipeline of {name}")), text, Some((storage, name)))
            }
        };
        prepared::check_folders(&file)?;
        let config = layers::parse(&file, &text, environment, &settings)?;
        prepared::check(&config)?;
        let Some(mut search) = config.search.clone() else {
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
        if let Some(why) = config.pipeline.chain().unsearched() {
            return Err(PipelineError::Setting(why.to_owned()));
        }
        check_numbers(&search)?;
        search.objectives.check(&config)?;
        prepared::absolute_choices(&mut search)?;
        let space = space::space(&search.space, &search.objectives)?;
        let read = |more: &[String]| {
            let all = [settings.as_slice(), more].concat();
            prepared::check(&layers::parse(&file, &text, environment, &all)?)
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
        let this = Self {
            name,
            text,
            config,
            search,
            space,
            storage,
            stop,
            fault: Mutex::default(),
            shared: Shared::keeping(),
            told: Told::default(),
            turns: Turns::default(),
            before: None,
        };
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

    /// Takes the place of a process of this worker that ran out of memory: ends its trials, or puts them
    /// back.
    ///
    /// # Errors
    ///
    /// If the journal fails.
    pub fn take_over(
        &mut self,
        before: Shortage,
        listener: &dyn Listener,
    ) -> Result<(), PipelineError> {
        let study = self.study()?;
        if let Some(failed) = before.settle(&study, listener)? {
            let trials = study.trials()?;
            let failed = trials.iter().find(|trial| trial.number == failed);
            if let Some(run) = failed.and_then(trial::run_of) {
                trial::forget(&self.config.run.directory.join(run));
            }
        }
        if before.stopped {
            self.stop.store(true, Ordering::SeqCst);
        }
        self.before = Some(before);
        Ok(())
    }

    /// Works on the study until its budget is used up or the worker is stopped.
    ///
    /// # Errors
    ///
    /// If the journal fails, or what every trial would meet: data that is not there, a full disk, no
    /// validation windows. The trial that met it is put back, three times at most, whatever `search.retries` is. None
    /// is begun in an environment that no run has.
    pub fn work(
        &self,
        device: &ChosenDevice,
        listener: &dyn Listener,
    ) -> Result<(), PipelineError> {
        check_environment()?;
        if !self.sizes_models() {
            check_size(&self.config, device)?;
        }
        match fetch_first(&self.config, &self.stop, listener) {
            Err(PipelineError::Interrupted) => return Ok(()),
            fetched => fetched?,
        }
        let study = self.study()?;
        let data = self.same_data(&study)?;
        let budget = self.budget();
        let gpu = device.backend != "cpu";
        let threads = rayon::current_num_threads();
        let concurrent = self.before.as_ref().map_or(self.search.concurrent, |before| {
            let configured = self.search.concurrent;
            let most = configured.most(gpu, threads);
            match before.most(most) {
                same if same == most => configured,
                fewer => Concurrent::Trials(fewer),
            }
        });
        let gate = Gate::new(concurrent, gpu, threads, listener);
        let period = if gate.watches() { concurrent::PERIOD } else { 0.0 };
        let work = || {
            // Whatever ends this one ends those that wait, too.
            let _closing = gate.closing();
            study.optimize(&budget, |trial| self.attempt(&study, trial, data, device, listener))
        };
        let one = |others| if gate.enter(others) { work() } else { Ok(()) };
        firebox_monitor::sampled(period, threads, device.watched(), &gate, || {
            std::thread::scope(|scope| {
                let one = &one;
                let begun = |others| {
                    let thread = Builder::new().name(format!("firebox-trial-{others}"));
                    thread.spawn_scoped(scope, move || one(others))
                };
                // What is refused to one is refused to the next.
                let more: Vec<_> = (1..gate.most()).map(begun).map_while(Result::ok).collect();
                if more.len() + 1 < gate.most() {
                    let there = count(more.len() as u64 + 1, "trial");
                    let message = format!(
                        "the system refused a thread for a further trial, mostly for want of memory for its stack: {there} at a time; set search.concurrent to \
                         that, or give the process more memory (ulimit -v and -d) or threads (ulimit -u)"
                    );
                    listener.on(&Event::Warning { message });
                }
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

    /// Whether trials may have models of other sizes than the pipeline has, or hold less of each parameter, by keys of
    /// the space.
    fn sizes_models(&self) -> bool {
        let tables = ["model", "window", "text", "train.optimizer", "train.groups"];
        let within = |key: &String, table: &str| {
            key.strip_prefix(table).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.search.space.keys().any(|key| tables.iter().any(|table| within(key, table)))
    }

    fn budget(&self) -> Budget {
        Budget {
            trials: Some(self.search.trials),
            time: self.search.timeout.map(Duration::from_secs_f64),
            early_stop: self.search.early_stop.clone(),
        }
    }

    fn study(&self) -> Result<Study, PipelineError> {
        let seed = self.config.run.seed;
        let options = Options {
            sampler: sampling::sampler(&self.search.sampler, &self.space, seed)?,
            pruner: sampling::pruner(&self.search.pruner(), &self.name)?,
            heartbeat: Duration::from_secs_f64(self.search.heartbeat),
            retries: self.search.retries,
            stop: Arc::clone(&self.stop),
        };
        let directions = self.search.objectives.directions();
        Ok(Study::join(&self.storage, &self.name, &directions, options)?)
    }

    /// Begins the study, or makes sure that it is this one. With the file, what may change of it is
    /// kept for those who join.
    fn begin(&self, file: &Path, with_file: bool) -> Result<(), PipelineError> {
        let study = self.study()?;
        study.check_space(&self.space)?;
        // In one change: of two that begin at the same time, one finds what the other has set.
        let known = study.claim_system_attribute(PIPELINE, &self.text.clone().into())?;
        if let Some(text) = known.as_ref().and_then(|text| text.as_str()) {
            let theirs = layers::parse(&self.kept_in(), text, &[], &[])?;
            same_search(&self.name, file, &self.config, &theirs)?;
            if with_file {
                study.set_system_attribute(PIPELINE, &self.text.clone().into())?;
            }
        }
        study.set_metric_names(&self.search.objectives.names())?;
        Ok(())
    }

    /// Refuses to go on with a study whose data have changed: losses of other data cannot be compared.
    /// Returns their key.
    fn same_data(&self, study: &Study) -> Result<Key, PipelineError> {
        let own = self.config.pipeline.chain().data_key(&self.config)?;
        let key = own.to_string();
        let known = study.claim_system_attribute(DATA, &key.as_str().into())?;
        let has_value =
            |trial: &Trial| matches!(trial.state, TrialState::Complete | TrialState::Pruned);
        match known.as_ref().and_then(|known| known.as_str()) {
            // Nothing was learnt of the others yet, and they may have been mended.
            Some(known) if known != key && !study.trials()?.iter().any(has_value) => {
                Ok(study.set_system_attribute(DATA, &key.as_str().into())?)
            }
            Some(known) if known != key => {
                Err(PipelineError::OtherStudyData { study: self.name.clone() })
            }
            _ => Ok(()),
        }?;
        Ok(own)
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
        let mut config = layers::parse(&self.kept_in(), &self.text, &[], &settings)?;
        prepared::check(&config)?;
        config.search = None;
        Ok(config)
    }

    /// All trials, of which one with a value that is no number has failed, whoever ended it.
    fn trials(&self, study: &Study) -> Result<Vec<Trial>, PipelineError> {
        let mut trials = study.trials()?;
        trials.iter_mut().for_each(|trial| self.search.objectives.fail_without_number(trial));
        Ok(trials)
    }

    /// Refuses a trial with a value that is no number, by which none can be compared.
    fn compared(&self, ran: Ran) -> Result<Ran, PipelineError> {
        let refused = self.search.objectives.refused(&self.values(&ran));
        refused.map_or(Ok(ran), |reason| Err(PipelineError::Setting(reason)))
    }

    /// The value of each objective.
    fn values(&self, ran: &Ran) -> Vec<f64> {
        let Ran::Complete { loss, parameters, scores } = ran else { return vec![] };
        let mut scores = scores.iter();
        let value = |objective: &Objective| match objective {
            Objective::ValidationLoss => *loss,
            Objective::Parameters => *parameters as f64,
            // They stand in the order of the objectives; a trial without one has no value.
            Objective::ValidationAccuracy | Objective::ValidationF1 | Objective::ValidationR2 => {
                scores.next().copied().unwrap_or(f64::NAN)
            }
        };
        self.search.objectives.all().iter().map(value).collect()
    }

    /// Runs a trial; what it says besides its value becomes the reason of its failure.
    fn attempt(
        &self,
        study: &Study,
        trial: &mut TrialHandle<'_>,
        data: Key,
        device: &ChosenDevice,
        listener: &dyn Listener,
    ) -> Result<Vec<f64>, PipelineError> {
        let started = std::time::Instant::now();
        let stage = format!("trial {}", trial.number());
        listener.on(&Event::StageStarted { stage: stage.clone() });
        // What was enqueued may be refused.
        let suggested = trial.suggest_space(&self.space);
        let frozen = trial.trial().ok_or(StudyError::Ended { number: trial.number() })?;
        let in_hand = InHand::waiting(trial.number());
        let _turn = self.turns.take(frozen.system_attributes.contains_key(ALONE));
        in_hand.begin();
        let config = suggested.map_err(PipelineError::from).and_then(|_| self.config_of(&frozen));
        let ran = config.and_then(|config| {
            let objectives = &self.search.objectives;
            let (stop, shared, told) = (&self.stop, &self.shared, &self.told);
            let worker = trial::Worker { study, data, device, stop, shared, listener, told };
            self.compared(trial::run(&self.name, config, objectives, &worker, trial)?)
        });
        // What the kernels keep from step to step has the sizes of this trial's model; others that run take
        // theirs anew, once.
        firebox_kernels::release_buffers();
        let detail = match &ran {
            Ok(ran @ Ran::Complete { .. }) => {
                values_text(&self.values(ran), &self.search.objectives)
            }
            Ok(Ran::Pruned) => "given up early".to_owned(),
            Ok(Ran::Interrupted) => "interrupted; it is gone on with later".to_owned(),
            Err(error) if puts_back(trial, error) => match is_of_journal(error) {
                true => "the journal failed; it is gone on with later".to_owned(),
                false => "put back, as the worker cannot go on".to_owned(),
            },
            Err(error) => format!("failed: {}", reason(error)),
        };
        let repeats = trial.trial().and_then(|trial| trial.repeats());
        let earlier = match (repeats, trial.origin()) {
            (Some(original), _) => format!(", the same as trial {original}"),
            (None, origin) if origin == trial.number() => String::new(),
            (None, origin) => format!(", goes on with trial {origin}"),
        };
        let values = match parameters_text(&frozen) {
            none if none.is_empty() => none,
            values => format!("; {values}"),
        };
        listener.on(&Event::StageFinished {
            stage,
            key: None,
            reused: false,
            seconds: started.elapsed().as_secs_f64(),
            detail: format!("{detail}{values}{earlier}"),
        });
        if let Err(error) = self.tidy(study, &frozen, &ran) {
            let why = reason(&error);
            let message = format!("checkpoints that are not needed any more stay: {why}");
            listener.on(&Event::Warning { message });
        }
        match ran {
            Ok(ran @ Ran::Complete { .. }) => Ok(self.values(&ran)),
            Ok(Ran::Pruned) => {
                trial.give_up();
                Ok(vec![])
            }
            Ok(Ran::Interrupted) => {
                trial.interrupt();
                Ok(vec![])
            }
            Err(error) => self.met(trial, error),
        }
    }

    /// Ends a trial with an error. What is none of its own puts it back, and ends the worker, whatever becomes of the
    /// trial.
    fn met(
        &self,
        trial: &mut TrialHandle<'_>,
        error: PipelineError,
    ) -> Result<Vec<f64>, PipelineError> {
        let why = reason(&error);
        let ended = if !puts_back(trial, &error) {
            Err(PipelineError::Setting(why))
        } else if is_of_journal(&error) {
            trial.interrupt();
            Ok(vec![])
        } else {
            trial.put_back(&why);
            Ok(vec![])
        };
        if is_shared(&error) {
            let mut fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
            fault.get_or_insert(error);
            // Other trials of this worker would fail in the same way.
            self.stop.store(true, Ordering::SeqCst);
        }
        ended
    }
}

/// Whether a trial with this error is put back: where it is none of its own, but not again and again.
fn puts_back(trial: &TrialHandle<'_>, error: &PipelineError) -> bool {
    is_shared(error) && (is_of_journal(error) || trial.faults() < MOST_FAULTS)
}

/// Whether the journal of the search failed.
fn is_of_journal(error: &PipelineError) -> bool {
    matches!(error, PipelineError::Study(StudyError::Storage(_)))
}

/// Whether an error is none of the trial's own: the machine's, or of the data, which no trial changes.
fn is_shared(error: &PipelineError) -> bool {
    use PipelineError::{Data, Horizons, NoLabels, NoValidation, Normalise, Split};
    use PipelineError::{OtherData, OtherStudyData, OtherWeights};
    let of_files =
        matches!(error, Data(_) | OtherData | OtherStudyData { .. } | OtherWeights { .. });
    let of_parts = matches!(error, Horizons(_) | NoLabels | NoValidation | Normalise(_) | Split(_));
    if of_files || of_parts {
        return true;
    }
    if is_of_journal(error) {
        return true;
    }
    if matches!(error, PipelineError::Cache(firebox_cache::CacheError::NoMemory { .. })) {
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
