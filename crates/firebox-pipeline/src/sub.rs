//! Trainings of a run: the one that is the run's own, and those within it (folds, seeds, arms,
//! iterations). Each of these has a folder below the run's, with its own key, so that a run that was
//! killed goes on within the training it was in.

use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use burn::module::Module;
use firebox_core::{Event, Key, Listener, count};
use firebox_eval::loss;
use firebox_monitor::SettingKeys;
use firebox_train::{Data, FixedScale, Objective, Outcome, TrainConfig, TrainError, Trained};

use crate::chain::Work;
use crate::error::PipelineError;
use crate::forgotten::{begin_again_if_forgotten, forgotten};
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

/// Whether a training of this name has ended before, and is read back: one whose checkpoint is gone is trained again.
pub(crate) fn sub_trained_before(work: &Work<'_>, name: &str) -> bool {
    let folder = path(work, name);
    folder.join(firebox_train::SUMMARY_FILE).is_file() && forgotten(&folder).is_none()
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
    /// How it ended.
    pub(crate) outcome: Outcome,
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
        // Without validation samples, the epoch is chosen by what it was trained on, if one is.
        let of = if data.validation.is_some() { "validation" } else { "training" };
        let train = || firebox_train::train(model, objective, data, &config, &run);
        let trained = self.device.run(train)?;
        let summary = &trained.summary;
        let best = summary.best.map_or(String::new(), |best| {
            format!(", best {of} loss {} after epoch {}", loss(best.loss), best.epoch)
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
        if let Some(message) = begin_again_if_forgotten(&folder, sub.key)? {
            self.listener.on(&Event::Warning { message });
        }
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
        let trained = self.device.run(train).map_err(|error| by_own_keys(error, sub))?;
        let Sub { batch_size, keys, .. } = *sub;
        let (name, config) = (sub.name.to_owned(), config.clone());
        let part = Part { name, batch_size, keys, config, outcome: trained.summary.outcome };
        work.parts.lock().unwrap_or_else(PoisonError::into_inner).push(part);
        Ok(trained)
    }
}

/// What a training says of numbers that left their range: of one whose settings have keys of their own, only these act
/// there.
fn by_own_keys(error: TrainError, sub: &Sub<'_>) -> PipelineError {
    let SettingKeys { rate, clips, .. } = sub.keys;
    if rate.starts_with("train.") {
        return error.into();
    }
    let (what, scale, may_go_on) = match error {
        TrainError::NonFinite { step, epoch, loss, norm, scale } => {
            let what = format!(
                "step {step} (epoch {epoch}) has the loss {loss} and the gradient norm {norm}"
            );
            (what, scale, clips)
        }
        TrainError::NoWayBack { step, epoch, loss, norm, scale } => {
            let what = format!(
                "step {step} (epoch {epoch}) has the loss {loss} and the gradient norm {norm}, and no checkpoint is there to go back to"
            );
            (what, scale, false)
        }
        TrainError::NonFiniteLimit { count, step, scale } => {
            let what = format!(
                "{count} steps in a row up to step {step} were not finite, the limit of `train.non_finite_limit`"
            );
            (what, scale, false)
        }
        other => return other.into(),
    };
    let scale = scale.map_or_else(String::new, FixedScale::way_out);
    let clip = if clips { " or `train.clip`" } else { "" };
    let go_on = match may_go_on {
        true => ", or set `train.non_finite` to `skip` or `rollback`",
        false => "",
    };
    let way_out = format!("{scale}lower `{rate}`{clip}{go_on}");
    PipelineError::NotFinite { training: sub.name.to_owned(), what, way_out }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finetune::FinetuneConfig;

    #[test]
    fn numbers_that_left_their_range_are_told_with_the_keys_that_act_there() {
        let key = Key::builder("test", 1).finish();
        let said = |name: &str, keys: SettingKeys, error: TrainError| {
            let sub = Sub { name, key, seed: 0, batch_size: 1, keys };
            by_own_keys(error, &sub).to_string()
        };
        let lost = |scale| {
            let (loss, norm) = (f64::NAN, f64::NAN);
            TrainError::NonFinite { step: 3, epoch: 1, loss, norm, scale }
        };
        let limit = || TrainError::NonFiniteLimit { count: 10, step: 12, scale: None };
        let arm = FinetuneConfig::keys();
        assert_eq!(
            said("share-1/fine-tuned/seed-7", arm, lost(None)),
            "share-1/fine-tuned/seed-7: step 3 (epoch 1) has the loss NaN and the gradient norm NaN; lower `finetune.learning_rate`"
        );
        let scaled = said("a", arm, lost(Some(FixedScale::Static(8.0))));
        assert!(scaled.contains("`train.loss_scale.static` is 8: lower it"), "{scaled}");
        let lstm =
            SettingKeys { rate: "multitimeframe.lstm.learning_rate", ..SettingKeys::default() };
        let of_fold = said("fold-1/lstm", lstm, lost(None));
        let expected = "lower `multitimeframe.lstm.learning_rate` or `train.clip`, or set `train.non_finite` to `skip` or `rollback`";
        assert!(of_fold.ends_with(expected), "{of_fold}");
        let of_fold = said("fold-1/lstm", lstm, limit());
        assert!(of_fold.ends_with("; lower `multitimeframe.lstm.learning_rate` or `train.clip`"));
        // What reads the run's own tables says what it says.
        let own = said("seed-8", SettingKeys::default(), lost(None));
        assert_eq!(own, lost(None).to_string());
    }
}
