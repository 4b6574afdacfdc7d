//! Trainings of a run: the one that is the run's own, and those within it (folds, seeds, arms,
//! iterations). Each of these has a folder below the run's, with its own key, so that a run that was
//! killed goes on within the training it was in.

use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use burn::module::Module;
use firebox_core::{Event, Key, Listener, count};
use firebox_monitor::SettingKeys;
use firebox_train::{Data, Objective, TrainConfig, Trained};

use crate::chain::Work;
use crate::error::PipelineError;
use crate::score::{Judge, Judged};
use crate::stages::{Run, training};

/// Folder of these trainings within the run's folder.
pub(crate) const FOLDER: &str = firebox_monitor::PARTS;

/// The folder of a training.
pub(crate) fn path(work: &Work<'_>, name: &str) -> PathBuf {
    work.path.join(FOLDER).join(name)
}

/// The folder of a training, which is made if it is not there.
pub(crate) fn folder(work: &Work<'_>, name: &str) -> Result<PathBuf, PipelineError> {
    let folder = path(work, name);
    std::fs::create_dir_all(&folder).map_err(crate::error::at(&folder))?;
    Ok(folder)
}

/// Whether a training of this name has ended before.
pub(crate) fn sub_trained_before(work: &Work<'_>, name: &str) -> bool {
    path(work, name).join(firebox_train::SUMMARY_FILE).is_file()
}

/// Which training it is.
pub(crate) struct Sub<'a> {
    /// Its name, which is also its path below the run's `parts`, such as `fold-1/lstm`.
    pub(crate) name: &'a str,
    /// Key of all that decides its result: data, model, settings, seed.
    pub(crate) key: Key,
    /// Seed of masks and dropout.
    pub(crate) seed: u64,
    /// Samples of a batch.
    pub(crate) batch_size: usize,
    /// Where its settings are written.
    pub(crate) keys: SettingKeys,
}

/// A training that has been done within the run.
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) batch_size: usize,
    pub(crate) keys: SettingKeys,
    pub(crate) config: TrainConfig,
}

impl Run<'_> {
    /// Trains in the run's own folder, or reads back what was trained, and says it in a line.
    pub(crate) fn train_own<M: Module, O: Objective<M>>(
        &self,
        path: &Path,
        model: M,
        objective: &O,
        data: Data<'_>,
        judge: Option<&Judge<'_, M>>,
    ) -> Result<(Trained<M>, String), PipelineError> {
        let objective = &Judged { objective, judge };
        let run = firebox_train::Run {
            folder: path,
            key: self.keys.training,
            seed: self.config.run.seed,
            resume: true,
            stop: self.stop,
            requests: self.requests,
            listener: self.listener,
        };
        let config = training(self.config);
        // Without validation samples, the epoch is chosen by what it was trained on.
        let of = if data.validation.is_some() { "validation" } else { "training" };
        let train = || firebox_train::train(model, objective, data, &config, &run);
        let trained = self.device.run(train)?;
        let summary = &trained.summary;
        let best = summary.best.map_or(String::new(), |best| {
            format!(", best {of} loss {:.5} after epoch {}", best.loss, best.epoch)
        });
        let said = format!(
            "{} in {}, {} parameters, {}{best}",
            count(summary.steps, "step"),
            count(summary.epochs, "epoch"),
            summary.parameters,
            summary.outcome
        );
        Ok((trained, said))
    }

    /// Trains one of several, or reads back what was trained. If it was interrupted, its summary
    /// says so.
    ///
    /// Its steps and epochs are in its own `history.jsonl`; the log of the run is told of progress,
    /// requests and warnings.
    pub(crate) fn train_sub<M: Module, O: Objective<M>>(
        &self,
        work: &Work<'_>,
        sub: &Sub<'_>,
        model: M,
        objective: &O,
        data: Data<'_>,
        config: &TrainConfig,
    ) -> Result<Trained<M>, PipelineError> {
        let folder = folder(work, sub.name)?;
        let run = firebox_train::Run {
            folder: &folder,
            key: sub.key,
            seed: sub.seed,
            resume: true,
            stop: self.stop,
            requests: self.requests,
            listener: &Within { listener: self.listener, name: sub.name },
        };
        let train = || firebox_train::train(model, objective, data, config, &run);
        let trained = self.device.run(train)?;
        let Sub { batch_size, keys, .. } = *sub;
        let part = Part { name: sub.name.to_owned(), batch_size, keys, config: config.clone() };
        work.parts.lock().unwrap_or_else(PoisonError::into_inner).push(part);
        Ok(trained)
    }
}

/// Keeps the curves of one training out of the log of a run of many.
struct Within<'a> {
    listener: &'a dyn Listener,
    name: &'a str,
}

impl Listener for Within<'_> {
    fn on(&self, event: &Event) {
        match event {
            Event::Warning { message } => {
                let message = format!("{}: {message}", self.name);
                self.listener.on(&Event::Warning { message });
            }
            Event::Progress { .. } | Event::Asked { .. } => self.listener.on(event),
            _ => {}
        }
    }
}
