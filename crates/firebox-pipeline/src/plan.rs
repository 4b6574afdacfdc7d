//! `firebox plan`: stages, their keys, and which results are there. Nothing is made here.

use std::fmt;
use std::path::Path;

use firebox_cache::Store;
use firebox_core::{Key, Labels, SplitRule};
use firebox_data::Checks;

use crate::error::{PipelineError, at};
use crate::feed::is_stored;
use crate::folder;
use crate::forgotten::forgotten;
use crate::keys::Keys;
use crate::stages::written;
use crate::{Kind, PipelineConfig};

/// The stages of a pipeline with the state of their results.
#[derive(Clone, Debug)]
pub struct Plan {
    stages: Vec<PlannedStage>,
    run: String,
    split: String,
}

/// A stage and whether it would do anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedStage {
    /// Name of the stage.
    pub name: &'static str,
    /// Content key of its result, if it is stored.
    pub key: Option<Key>,
    /// What is there.
    pub state: StageState,
}

/// What is there of a stage's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageState {
    /// The whole result.
    Done,
    /// Checkpoints to go on from.
    Begun,
    /// Nothing; it will be made.
    ToDo,
    /// It is made anew each time, in no time, and not stored.
    NotStored,
}

impl Plan {
    /// # Errors
    ///
    /// When what is there cannot be looked at: it would be told as if it were not there.
    pub(crate) fn new(
        config: &PipelineConfig,
        keys: &Keys,
        run: &Path,
    ) -> Result<Self, PipelineError> {
        for folder in [&config.run.cache, run] {
            match std::fs::read_dir(folder) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(at(folder)(error));
                }
                _ => (),
            }
        }
        let stored = |bucket: &str, key: Key| match Store::complete(&config.run.cache, bucket, key)
        {
            true => StageState::Done,
            false => StageState::ToDo,
        };
        let checks = firebox_data::stored_checks(&config.run.cache, keys.series);
        let finished = folder::conclusion(run, keys.evaluation).is_some();
        let training = match folder::steps_saved(run) {
            _ if finished => StageState::Done,
            _ if forgotten(run).is_some() => StageState::ToDo,
            _ if run.join(firebox_train::SUMMARY_FILE).is_file() => StageState::Done,
            Some(_) => StageState::Begun,
            None if run.join(crate::sub::FOLDER).is_dir() => StageState::Begun,
            None => StageState::ToDo,
        };
        let series = if checks.is_some() { StageState::Done } else { StageState::ToDo };
        let last = if finished { StageState::Done } else { StageState::ToDo };
        let state = |name: &str| match name {
            "ingest" if config.pipeline == Kind::Text => StageState::NotStored,
            "ingest" => series,
            "windows" => StageState::NotStored,
            "augment" if !is_stored(&config.augment) => StageState::NotStored,
            "tokenise" => stored(firebox_cache::TOKENS, keys.windows),
            "augment" => stored(firebox_cache::AUGMENTED, keys.augmented),
            "train" => training,
            _ => last,
        };
        let stages = config.pipeline.chain().stages(keys).into_iter();
        let stages =
            stages.map(|(name, key)| PlannedStage { name, key, state: state(name) }).collect();
        let split = split(config, checks.as_ref());
        Ok(Self { stages, run: run.display().to_string(), split })
    }

    /// The stages in order.
    pub fn stages(&self) -> &[PlannedStage] {
        &self.stages
    }
}

/// The split with its reason, as far as it is known before the data is read.
fn split(config: &PipelineConfig, checks: Option<&Checks>) -> String {
    if let Some(text) = &config.text {
        return text.split_in_words();
    }
    if config.pipeline == Kind::Multitimeframe {
        let folds = crate::multitimeframe::settings(config).folds.folds;
        return format!(
            "{folds} walk-forward folds: each is tested on what follows its training part"
        );
    }
    let given = config.data.test.is_some();
    let by_classes = !given
        && !config.data.is_grouped()
        && matches!(config.labels, Labels::Last | Labels::Majority { .. })
        && checks.is_some_and(|checks| checks.span.is_some() && checks.series > 1);
    let (rule, why) = match (config.split, checks) {
        (Some(rule), _) => (rule, "as written"),
        (None, _) if !given && config.data.is_grouped() && crate::moments::horizon(config) > 0 => {
            return "follows from the data: whole groups are drawn for each part, or by time where groups have the same times"
                .to_owned();
        }
        (None, Some(_)) if by_classes => {
            return "follows from the data: by time, or by whole series where several have no times or each has one class throughout"
                .to_owned();
        }
        (None, Some(checks)) => {
            let (clock, series) = (checks.span.is_some(), checks.series as usize);
            SplitRule::automatic(given, config.data.is_grouped(), clock, series)
        }
        (None, None) if given || config.data.is_grouped() => {
            SplitRule::automatic(given, config.data.is_grouped(), false, 0)
        }
        (None, None) => {
            return "follows from the data: by time, or by whole series where several have no times or each has one class throughout"
                .to_owned();
        }
    };
    let (SplitRule::Time { test, .. } | SplitRule::Series { test, .. }) = rule else {
        return format!("{}: {why}", written(&rule));
    };
    let untested = if test == 0.0 { "; there is no test part to measure on" } else { "" };
    format!("{}: {why}{untested}", written(&rule))
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for PlannedStage { name, key, state } in &self.stages {
            let key = key.map_or(String::new(), |key| key.to_string());
            let state = match state {
                StageState::Done => "done",
                StageState::Begun => "begun; goes on from its last checkpoint",
                StageState::ToDo => "to do",
                StageState::NotStored => "not stored: made in each run",
            };
            writeln!(f, "{name:<9} {key:<32}  {state}")?;
        }
        writeln!(f, "split     {}", self.split)?;
        write!(f, "run       {}", self.run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_without_a_test_part_says_so() {
        let said = |rule| split(&PipelineConfig { split: Some(rule), ..Default::default() }, None);
        let expected = "there is no test part to measure on";
        assert!(said(SplitRule::time(0.1, 0.0)).ends_with(expected));
        assert!(!said(SplitRule::time(0.1, 0.2)).contains(expected));
        assert!(!said(SplitRule::automatic(true, false, true, 1).0).contains(expected));
    }
}
