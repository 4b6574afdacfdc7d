//! What `auto` settled for trials: told once, kept with each trial, and written into the pipelines of the best.
//!
//! It is kept in the journal, because the worker that concludes a search may be on another machine than the one that
//! ran the best trial, where the same settings would be other values.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use firebox_core::{Event, Listener};
use firebox_eval::Reason;
use firebox_search::{StudyError, Trial, TrialHandle};

use super::trial::run_of;
use crate::folder::PIPELINE;
use crate::settle::reasons_in;
use crate::{PipelineConfig, Prepared};

/// User attribute with the values that were `auto`, and their reasons.
const SETTLED: &str = "settled";
const PRECISION: &str = "run.precision";
const BATCH_SIZE: &str = "loader.batch_size";

/// What a worker has told of its trials.
#[derive(Default)]
pub(super) struct Told(Mutex<BTreeSet<String>>);

impl Told {
    /// Whether this was not said before.
    pub(super) fn is_new(&self, said: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(said.to_owned())
    }

    /// Tells what was measured for a trial where no other had the same value.
    pub(super) fn listening<'a>(
        &'a self,
        number: u64,
        listener: &'a dyn Listener,
    ) -> impl Listener + 'a {
        move |event: &Event| {
            let Event::StageFinished { stage, key, reused, seconds, detail } = event else {
                return;
            };
            // Reasons have figures that are others for each model.
            let value = detail.split_once(": ").map_or(detail.as_str(), |(value, _)| value);
            if self.is_new(value) {
                listener.on(&Event::StageFinished {
                    stage: stage.clone(),
                    key: *key,
                    reused: *reused,
                    seconds: *seconds,
                    detail: format!("trial {number}: {detail}"),
                });
            }
        }
    }
}

/// The settings that are `auto`.
fn open(config: &PipelineConfig) -> Vec<&'static str> {
    let precision = config.run.auto.then_some(PRECISION);
    let batch_size = (config.loader.batch_size == 0).then_some(BATCH_SIZE);
    precision.into_iter().chain(batch_size).collect()
}

/// Keeps with a trial what its settings that were `auto` became.
pub(super) fn keep(
    trial: &mut TrialHandle<'_>,
    written: &PipelineConfig,
    prepared: &Prepared,
) -> Result<(), StudyError> {
    let open = open(written);
    let own = |reason: &&Reason| open.contains(&reason.key.as_str());
    let settled: Vec<&Reason> = prepared.settled_reasons().iter().filter(own).collect();
    match serde_json::to_value(&settled) {
        Ok(value) if !settled.is_empty() => trial.set_attribute(SETTLED, value),
        _ => Ok(()),
    }
}

/// The settings of a trial with the values that those that are `auto` had in it, and their reasons. What nobody wrote
/// down stays `auto`: trials of earlier versions said it in the folder of their run alone.
pub(super) fn of_trial(
    mut config: PipelineConfig,
    trial: &Trial,
    runs: &Path,
) -> (PipelineConfig, Vec<Reason>) {
    let kept = trial.user_attributes.get(SETTLED);
    let kept = kept.and_then(|kept| serde_json::from_value::<Vec<Reason>>(kept.clone()).ok());
    let beside = || {
        let path = runs.join(run_of(trial)?).join(PIPELINE);
        Some(reasons_in(&std::fs::read_to_string(path).ok()?))
    };
    let open = open(&config);
    let mut settled =
        if open.is_empty() { vec![] } else { kept.or_else(beside).unwrap_or_default() };
    settled
        .retain(|reason| open.contains(&reason.key.as_str()) && set(&mut config, reason).is_some());
    (config, settled)
}

/// Takes a value, if it is one.
fn set(config: &mut PipelineConfig, Reason { key, value, .. }: &Reason) -> Option<()> {
    match key.as_str() {
        PRECISION => {
            config.run.precision = value.parse().ok()?;
            config.run.auto = false;
        }
        _ => config.loader.batch_size = value.parse().ok().filter(|size| *size > 0)?,
    }
    Some(())
}

/// Comments that say which values of a pipeline were `auto`.
pub(super) fn comments(settled: &[Reason]) -> String {
    let comment = |Reason { key, value, reason }: &Reason| {
        format!("# {key} = {value}: it was \"auto\"; {reason}\n")
    };
    settled.iter().map(comment).collect()
}

#[cfg(test)]
mod tests {
    use firebox_core::Precision;
    use firebox_search::TrialState;
    use serde_json::json;

    use super::*;

    fn auto() -> PipelineConfig {
        toml::from_str("[run]\nprecision = 'auto'\n[loader]\nbatch_size = 'auto'").unwrap()
    }

    fn reasons() -> serde_json::Value {
        json!([
            { "key": "run.precision", "value": "bf16", "reason": "measured 1.40× f32" },
            { "key": "loader.batch_size", "value": "64", "reason": "measured: 128 brings +1 %" },
        ])
    }

    fn trial(settled: Option<serde_json::Value>) -> Trial {
        let mut trial = Trial::new(3, TrialState::Complete);
        trial.user_attributes.extend(settled.map(|value| (SETTLED.to_owned(), value)));
        trial
    }

    #[test]
    fn the_values_of_a_trial_are_taken_where_its_pipeline_says_auto() {
        let runs = tempfile::tempdir().unwrap();
        let of = |config, trial: &Trial| of_trial(config, trial, runs.path());
        let (config, settled) = of(auto(), &trial(Some(reasons())));
        assert_eq!((config.run.precision, config.run.auto), (Precision::Bf16, false));
        assert_eq!(config.loader.batch_size, 64);
        let said = comments(&settled);
        assert_eq!(
            said,
            "# run.precision = bf16: it was \"auto\"; measured 1.40× f32\n\
             # loader.batch_size = 64: it was \"auto\"; measured: 128 brings +1 %\n"
        );
        // What is written is the trial's own.
        let written: PipelineConfig =
            toml::from_str("[run]\nprecision = 'auto'\n[loader]\nbatch_size = 8").unwrap();
        let (config, settled) = of(written, &trial(Some(reasons())));
        assert_eq!((config.loader.batch_size, settled.len()), (8, 1));
        // Nobody knows, or what stands there is no value.
        let odd = json!([{ "key": "loader.batch_size", "value": "0", "reason": "" }]);
        for unknown in [None, Some(json!("text")), Some(odd)] {
            let (config, settled) = of(auto(), &trial(unknown));
            assert!(config.run.auto && config.loader.batch_size == 0 && settled.is_empty());
        }
    }

    #[test]
    fn trials_of_earlier_versions_said_it_beside_their_runs() {
        let runs = tempfile::tempdir().unwrap();
        let mut trial = trial(None);
        trial.user_attributes.insert("run".to_owned(), json!("p-1"));
        std::fs::create_dir(runs.path().join("p-1")).unwrap();
        let text = "# The settings\n# run.precision = f32: measured: 2 ms\n\n[run]\n";
        std::fs::write(runs.path().join("p-1").join(PIPELINE), text).unwrap();
        let (config, settled) = of_trial(auto(), &trial, runs.path());
        assert!(!config.run.auto && config.loader.batch_size == 0);
        assert_eq!((settled.len(), settled[0].reason.as_str()), (1, "measured: 2 ms"));
    }

    #[test]
    fn a_value_is_told_once_with_the_trial_that_had_it_first() {
        let (told, heard) = (Told::default(), Mutex::new(vec![]));
        let listener = |event: &Event| {
            if let Event::StageFinished { detail, .. } = event {
                heard.lock().unwrap().push(detail.clone());
            }
        };
        for (number, detail) in [
            (0, "run.precision = bf16: measured: 2 ms"),
            (1, "run.precision = bf16: measured: 3 ms"),
            (2, "run.precision = f32: measured: 4 ms"),
            (3, "run.precision = f32: measured: 4 ms"),
        ] {
            told.listening(number, &listener).on(&Event::StageFinished {
                stage: "settle".to_owned(),
                key: None,
                reused: false,
                seconds: 1.0,
                detail: detail.to_owned(),
            });
        }
        assert_eq!(
            heard.into_inner().unwrap(),
            [
                "trial 0: run.precision = bf16: measured: 2 ms",
                "trial 2: run.precision = f32: measured: 4 ms"
            ]
        );
    }
}
