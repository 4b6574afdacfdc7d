//! How much of its time a study has used: by its journal, whoever worked on it, when and where.

use super::heart::Beat;
use crate::trial::{Trial, TrialState};

/// Seconds in which at least one trial ran, up to `now`: trials that ran at once count once, and time
/// in which none ran does not.
pub(super) fn seconds(trials: &[Trial], now: f64) -> f64 {
    let mut ran: Vec<(f64, f64)> = trials.iter().filter_map(|trial| ran(trial, now)).collect();
    ran.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut sum, mut until) = (0.0, f64::NEG_INFINITY);
    for (started, ended) in ran {
        sum += (ended - started.max(until)).max(0.0);
        until = until.max(ended);
    }
    sum
}

/// Seconds that a trial ran that has ended, by the same rule.
pub(crate) fn took(trial: &Trial) -> Option<f64> {
    let (started, ended) = ran(trial, trial.ended?)?;
    Some(ended - started)
}

/// When a trial ran. Its start, its signs of life and its values have the time of its worker's machine;
/// `now`, and the end of a trial that another took for lost, may be days later, or of another clock.
/// So a trial without a result ran until its last sign of life, and at most up to the next one.
fn ran(trial: &Trial, now: f64) -> Option<(f64, f64)> {
    let started = trial.started?;
    let ended = match (trial.state, Beat::of(trial)) {
        (TrialState::Running | TrialState::Fail, Some(Beat { time, every })) => {
            trial.ended.unwrap_or(now).min(time + every).max(time)
        }
        // Of one that runs without signs of life, such as Optuna's, nobody knows whether it does.
        _ => trial.ended?,
    };
    Some((started, ended.max(started)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::trial::HEARTBEAT;

    const NOW: f64 = 1e6;

    fn trial(state: TrialState, started: f64, ended: Option<f64>, beat: Option<f64>) -> Trial {
        let mut trial = Trial { started: Some(started), ended, ..Trial::new(0, state) };
        if let Some(time) = beat {
            let beat = json!({ "time": time, "every": 10.0 });
            trial.system_attributes.insert(HEARTBEAT.to_owned(), beat);
        }
        trial
    }

    fn check(trials: &[Trial], expected: f64) {
        assert_eq!(seconds(trials, NOW), expected, "{trials:?}");
    }

    #[test]
    fn trials_at_once_count_once_and_pauses_not_at_all() {
        use TrialState::{Complete, Pruned, Waiting};
        check(&[], 0.0);
        let of = |state, started, ended| trial(state, started, Some(ended), None);
        let mut trials = vec![
            of(Complete, 100.0, 160.0),
            of(Pruned, 130.0, 140.0),
            of(Complete, 150.0, 180.0),
            // Another day.
            of(Complete, 90_000.0, 90_020.0),
            of(Complete, 90_020.0, 90_025.0),
        ];
        check(&trials, 105.0);
        trials.reverse();
        check(&trials, 105.0);
        trials.push(Trial { started: None, ..trial(Waiting, 0.0, None, None) });
        // A clock was put back while it ran.
        trials.push(of(Complete, 200.0, 150.0));
        check(&trials, 105.0);
    }

    #[test]
    fn a_trial_without_a_result_counts_up_to_its_last_sign_of_life() {
        use TrialState::{Complete, Fail, Running};
        let check = |state, started, ended, beat, expected| {
            check(&[trial(state, started, ended, beat)], expected);
        };
        // It runs.
        check(Running, NOW - 60.0, None, Some(NOW - 4.0), 60.0);
        // Its worker died, and nobody has noticed it, or somebody did days later.
        check(Running, 100.0, None, Some(150.0), 60.0);
        check(Fail, 100.0, Some(90_000.0), Some(150.0), 60.0);
        // It failed, or was stopped.
        check(Fail, 100.0, Some(153.0), Some(150.0), 53.0);
        let taken = |state, ended, beat| took(&trial(state, 100.0, ended, beat));
        assert_eq!(taken(Fail, Some(90_000.0), Some(150.0)), Some(60.0));
        assert_eq!(
            [taken(Complete, Some(130.0), None), taken(Running, None, None)],
            [Some(30.0), None]
        );
        // The clock of who looks, or of who noticed, is behind or ahead of its worker's.
        check(Running, NOW + 3600.0, None, Some(NOW + 3650.0), 50.0);
        check(Running, NOW - 7200.0, None, Some(NOW - 7150.0), 60.0);
        check(Fail, 5000.0, Some(2000.0), Some(5050.0), 50.0);
        // Whoever has a result has worked for it, however slow its journal was.
        check(Complete, 100.0, Some(400.0), Some(150.0), 300.0);
        // Optuna's trials have no signs of life.
        check(Fail, 100.0, Some(130.0), None, 30.0);
        check(Running, 100.0, None, None, 0.0);
    }
}
