//! What a run is given and what it returns.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use firebox_core::{Key, Listener, Requests};
use firebox_loader::{HeldOutLoader, TrainLoader};
use serde::{Deserialize, Serialize};

use crate::checkpoint::{SaveTimes, folder_name};
use crate::division::Division;
use crate::state::{Best, Counts};

/// Name of the file that says how a run ended. It is written last.
pub const SUMMARY_FILE: &str = "training.json";
/// Name of the folder of checkpoints within the run's folder.
pub const CHECKPOINT_FOLDER: &str = "checkpoints";

/// What a run learns from and is measured on.
#[derive(Clone, Copy)]
pub struct Data<'a> {
    /// Training batches.
    pub train: &'a TrainLoader,
    /// Validation batches. Without them the training loss decides what is best, and nothing does where the run returns an
    /// average of the weights, of which the newest is kept.
    pub validation: Option<&'a HeldOutLoader>,
}

/// Where a run lives and who watches it.
#[derive(Clone, Copy)]
pub struct Run<'a> {
    /// Folder of the run; checkpoints, history and summary go there.
    pub folder: &'a Path,
    /// Key of all that decides the result: data, model, settings. A run can only be resumed with
    /// the key that it was begun with.
    pub key: Key,
    /// Seed of masks and dropout. The loader has its own.
    pub seed: u64,
    /// Go on with the run in `folder`. If it has no checkpoint yet, it begins again from the start.
    pub resume: bool,
    /// Once this is true, training ends after the current step, saves, and returns
    /// [`Outcome::Interrupted`].
    pub stop: &'a AtomicBool,
    /// What a person asks meanwhile; answered between two steps.
    pub requests: &'a Requests,
    /// Receives steps, epochs, checkpoints and warnings, some of them from another thread. On a GPU with
    /// kernels for the optimizer, several steps at once, up to a quarter of a second late.
    pub listener: &'a dyn Listener,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// All steps were taken.
    Finished,
    /// The validation loss had stopped falling.
    StoppedEarly,
    /// It was told to stop, and can be resumed.
    Interrupted,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Finished => "finished",
            Self::StoppedEarly => "stopped early",
            Self::Interrupted => "interrupted",
        })
    }
}

/// A model after training.
#[derive(Clone, Debug)]
pub struct Trained<M> {
    /// The model in evaluation, with the weights of [`Summary::selected`].
    pub model: M,
    /// What happened.
    pub summary: Summary,
}

/// What happened in a run; `training.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// How it ended.
    pub outcome: Outcome,
    /// Key of all that decided the result.
    pub key: firebox_core::Key,
    /// Optimizer steps, those included whose update was not applied.
    pub steps: u64,
    /// Epochs completed.
    pub epochs: u64,
    /// Parameters of the model.
    pub parameters: u64,
    /// The best epoch.
    pub best: Option<Best>,
    /// The checkpoint to go on with, a name within the folder of checkpoints: the best one if it
    /// was kept, else the newest.
    pub selected: String,
    /// Whether the average of the weights in it is the model, as its settings have it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub averaged: bool,
    /// What was counted.
    pub counts: Counts,
    /// The steps from which on batches were computed in smaller parts, for want of memory, and the
    /// validations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub divisions: Vec<Division>,
    /// Time and size of the saves since the run was last resumed.
    pub saves: SaveTimes,
    /// Wall-clock time since the run was last resumed.
    pub seconds: f64,
    /// Part of it spent waiting for training data.
    pub data_seconds: f64,
}

impl Summary {
    /// The folder of the selected checkpoint of the run in `folder`.
    pub fn selected_path(&self, folder: &Path) -> PathBuf {
        folder.join(CHECKPOINT_FOLDER).join(&self.selected)
    }

    /// The epoch, from 1, whose weights are the selected ones: the best if it was kept, else the last.
    pub fn kept_epoch(&self) -> u64 {
        let chosen = self.best.filter(|best| self.selected == folder_name(best.step));
        chosen.map_or(self.epochs, |best| best.epoch)
    }
}
