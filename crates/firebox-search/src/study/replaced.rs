//! Trials of a process whose place another has taken, and which it knows by their numbers: ended at
//! once, instead of being missed until they count as lost.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::{Study, StudyError, retry};
use crate::storage::{Operation, Replay, StudyRecord};
use crate::trial::{Trial, TrialState};

impl Study {
    /// Ends a trial that no process runs any more, for this reason. Returns whether it did: a trial that
    /// has ended already, or that others have taken for lost, is left as it is.
    ///
    /// # Errors
    ///
    /// If the journal fails.
    pub fn fail(&self, number: u64, reason: &str) -> Result<bool, StudyError> {
        self.end_running(number, |_, id, _| retry::fail(id, reason))
    }

    /// As [`Study::fail`], and puts the trial back into the queue with what it had and these system
    /// attributes. It costs none of the retries that a trial has whose worker dies.
    ///
    /// # Errors
    ///
    /// If the journal fails.
    pub fn put_back(
        &self,
        number: u64,
        reason: &str,
        attributes: &BTreeMap<String, Json>,
    ) -> Result<bool, StudyError> {
        self.end_running(number, |study, id, trial| {
            let mut trial = trial.clone();
            trial.system_attributes.extend(attributes.clone());
            retry::fail_and_retry(study, self.id, id, &trial, retry::Cause::Stopped(reason))
        })
    }

    fn end_running(
        &self,
        number: u64,
        end: impl Fn(&StudyRecord, u64, &Trial) -> Vec<Operation>,
    ) -> Result<bool, StudyError> {
        self.storage.change(&self.stop, |replay: &Replay| {
            let found = replay.study(self.id).and_then(|study| {
                let place = usize::try_from(number).ok()?;
                Some((study, *study.ids.get(place)?, study.trials.get(place)?))
            });
            let running = found.filter(|(_, _, trial)| trial.state == TrialState::Running);
            let operations = running.map(|(study, id, trial)| end(study, id, trial));
            let operations = operations.unwrap_or_default();
            let ended = !operations.is_empty();
            Ok((operations, ended))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::storage::Storage;
    use crate::{Budget, Direction, Options, RandomSampler};

    #[test]
    fn trials_of_a_replaced_process_are_ended_once_by_their_numbers() {
        let storage = Arc::new(Storage::memory().unwrap());
        let options = || Options {
            heartbeat: Duration::from_secs(3600),
            retries: 0,
            ..Options::new(RandomSampler::new(1))
        };
        let before = Study::create(&storage, "s", &[Direction::Minimize], options()).unwrap();
        for _ in 0..2 {
            let mut trial = before.ask(&Budget::default()).unwrap().unwrap();
            trial.suggest_float("x", 0.0, 1.0).unwrap();
            trial.report(0, 5.0).unwrap();
            std::mem::forget(trial);
        }
        let study = Study::load(&storage, "s", options()).unwrap();
        let alone = BTreeMap::from([("alone".to_owned(), json!(true))]);
        assert!(study.fail(0, "too large").unwrap());
        assert!(study.put_back(1, "too many", &alone).unwrap());
        // What has ended, or is not there, is left alone; the one that waits runs nowhere yet.
        for number in [0, 1, 2, 9] {
            assert!(!study.fail(number, "again").unwrap(), "{number}");
            assert!(!study.put_back(number, "again", &alone).unwrap(), "{number}");
        }
        let all = study.trials().unwrap();
        let states = [TrialState::Fail, TrialState::Fail, TrialState::Waiting];
        assert_eq!(all.iter().map(|trial| trial.state).collect::<Vec<_>>(), states);
        let reason = |trial: &Trial| trial.user_attributes["fail_reason"].clone();
        assert_eq!([reason(&all[0]), reason(&all[1])], [json!("too large"), json!("too many")]);
        let again = study.ask(&Budget { trials: Some(2), ..Budget::default() }).unwrap().unwrap();
        assert_eq!((again.number(), again.origin()), (2, 1));
        let had = again.trial().unwrap();
        assert_eq!(had.system_attributes["alone"], json!(true));
        assert_eq!(
            (had.parameters, had.intermediate),
            (all[1].parameters.clone(), all[1].intermediate.clone())
        );
    }
}
