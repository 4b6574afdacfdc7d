//! Trials whose worker died: failed once, and put back into the queue in the same change.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::storage::{Operation, StudyRecord, time};
use crate::trial::{FAILED_TRIAL, HEARTBEAT, HISTORY, Trial, TrialState};

/// User attribute with the reason of a failure.
pub(super) const REASON: &str = "fail_reason";
/// Those of the history whose worker was stopped and did not die.
const STOPPED: &str = "firebox:stopped";
/// Those of the stopped ones whose worker met a fault that is none of the trial's own.
const FAULTS: &str = "firebox:faults";

/// Whether it is a retry of another.
pub(super) fn is_retry(trial: &Trial) -> bool {
    trial.system_attributes.contains_key(FAILED_TRIAL)
}

fn numbers(trial: &Trial, key: &str) -> Vec<Value> {
    match trial.system_attributes.get(key) {
        Some(Value::Array(numbers)) => numbers.clone(),
        _ => vec![],
    }
}

/// Numbers of the trials that it goes on with and whose worker met a fault.
pub(super) fn faults(trial: &Trial) -> Vec<Value> {
    numbers(trial, FAULTS)
}

/// Ends a trial with a reason.
pub(super) fn fail(id: u64, reason: &str) -> Vec<Operation> {
    vec![
        Operation::UserAttribute { trial: id, key: REASON.to_owned(), value: Value::from(reason) },
        Operation::State { trial: id, state: TrialState::Fail, values: None, time: time::now() },
    ]
}

/// Why a trial is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause<'a> {
    /// Its worker died; with the number of times that this may happen to a trial.
    Died(u64),
    /// Its worker was stopped for this reason, which is no fault of the trial.
    Stopped(&'a str),
    /// Its worker met this fault, which is none of the trial's own, and stopped.
    Fault(&'a str),
}

/// Whether a trial was put back into the queue: another one has its number in its history.
fn is_put_back(study: &StudyRecord, trial: &Trial) -> bool {
    let mut later = study.trials.iter().skip(trial.number as usize);
    later.any(|other| other.earlier_tries().any(|number| number == trial.number))
}

/// Ends a trial and puts it back into the queue with its parameters and what it has reported, unless
/// too many workers died with it before.
///
/// The queue comes first: whatever a failure of the machine leaves of these lines, the trial is either
/// still to be put back or already there, and then only ended.
pub(super) fn fail_and_retry(
    record: &StudyRecord,
    study: u64,
    id: u64,
    trial: &Trial,
    cause: Cause<'_>,
) -> Vec<Operation> {
    let (mut history, mut stopped) = (numbers(trial, HISTORY), numbers(trial, STOPPED));
    let mut faults = faults(trial);
    let reason = match cause {
        Cause::Died(most) => {
            let reason = "its worker gave no sign of life any more";
            if history.len().saturating_sub(stopped.len()) as u64 >= most {
                return fail(id, &format!("{reason}, as {most} times before"));
            }
            reason
        }
        Cause::Stopped(reason) => {
            stopped.push(Value::from(trial.number));
            reason
        }
        Cause::Fault(reason) => {
            stopped.push(Value::from(trial.number));
            faults.push(Value::from(trial.number));
            reason
        }
    };
    history.push(Value::from(trial.number));
    let kept = |key: &String| key != HEARTBEAT && !key.starts_with("constraints");
    let mut system_attributes: BTreeMap<_, _> = trial.system_attributes.clone();
    system_attributes.retain(|key, _| kept(key));
    system_attributes.insert(FAILED_TRIAL.to_owned(), json!(trial.origin()));
    system_attributes.insert(HISTORY.to_owned(), Value::Array(history));
    for (key, numbers) in [(STOPPED, stopped), (FAULTS, faults)] {
        if !numbers.is_empty() {
            system_attributes.insert(key.to_owned(), Value::Array(numbers));
        }
    }
    let put_back = (!is_put_back(record, trial)).then(|| Operation::Enqueue {
        study,
        parameters: trial.parameters.clone(),
        intermediate: trial.intermediate.clone(),
        user_attributes: trial.user_attributes.clone(),
        system_attributes,
    });
    put_back.into_iter().chain(fail(id, reason)).collect()
}

/// How many trials count: each chain of retries once, and none that waits.
pub(super) fn begun(study: &StudyRecord) -> u64 {
    let trials = study.trials.iter();
    trials.filter(|trial| !is_retry(trial) && trial.state != TrialState::Waiting).count() as u64
}
