//! What a failure of the machine's power leaves of a study: the journal as it was last flushed, with any
//! part of what was written since.

use std::collections::BTreeSet;
use std::path::Path;

use super::*;
use crate::sampler::RandomSampler;
use crate::storage::{FLUSHED, JournalLock, StorageError};

fn open(path: &Path) -> Result<Arc<Storage>, StorageError> {
    Storage::file(path, JournalLock::default(), Duration::from_secs(2)).map(Arc::new)
}

fn study(path: &Path, heartbeat: Duration) -> Study {
    let options = Options { heartbeat, ..Options::new(RandomSampler::new(7)) };
    Study::join(&open(path).unwrap(), "s", &[Direction::Minimize], options).unwrap()
}

/// Flushes since this was last asked.
fn flushes() -> Vec<u64> {
    FLUSHED.with_borrow_mut(std::mem::take)
}

/// Long enough for no sign of life in a test.
const QUIET: Duration = Duration::from_secs(3600);
/// Short enough for a test to wait until a trial counts as lost.
const HEARTBEAT: Duration = Duration::from_millis(20);

#[test]
fn beginnings_and_ends_are_flushed_with_all_before_them_and_reports_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("study.log");
    let length = || std::fs::metadata(&path).unwrap().len();
    let flushed = |what: &str, times: usize| {
        let found = flushes();
        assert_eq!(found.len(), times, "{what}: {found:?}");
        if let Some(last) = found.last() {
            assert_eq!(*last, length(), "{what}: a part is not flushed");
        }
    };
    flushed("nothing", 0);
    let study = study(&path, QUIET);
    flushed("a study", 1);
    study.set_attribute("a", &1.into()).unwrap();
    flushed("an attribute of a study", 1);
    let budget = Budget::default();
    for (ended, state) in [
        (Ended::Complete(vec![1.0]), TrialState::Complete),
        (Ended::Pruned, TrialState::Pruned),
        (Ended::Failed("it failed".to_owned()), TrialState::Fail),
        (Ended::Interrupted, TrialState::Fail),
    ] {
        let mut trial = study.ask(&budget).unwrap().unwrap();
        flushed("a beginning", 1);
        trial.suggest_float("x", 0.0, 1.0).unwrap();
        flushed("a parameter", 0);
        trial.report(0, 1.0).unwrap();
        trial.report(1, 2.0).unwrap();
        trial.set_attribute("epochs", 2.into()).unwrap();
        flushed("reports", 0);
        assert_eq!(trial.tell(ended).unwrap(), state);
        flushed("an end, with what was reported", 1);
    }
    // The one that was interrupted waits: it is taken, and then tried again in one change.
    let taken = study.ask(&budget).unwrap().unwrap();
    flushed("a trial that waited", 1);
    let number = taken.number();
    std::mem::forget(taken);
    assert!(study.put_back(number, "its worker was stopped", &BTreeMap::new()).unwrap());
    flushed("an end and what is put back", 1);
}

/// The journal is cut at every place behind the flush before: what was flushed is all there, and the
/// study goes on from it to the same end, with every trial ended once.
#[test]
fn a_journal_that_is_cut_anywhere_behind_its_last_flush_loses_nothing_that_had_ended() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("study.log");
    let _ = flushes();
    {
        let study = study(&path, HEARTBEAT);
        let budget = Budget { trials: Some(3), ..Budget::default() };
        study.optimize(&budget, objective).unwrap();
    }
    let (whole, flushed) = (std::fs::read(&path).unwrap(), flushes());
    assert_eq!(flushed.len(), 7, "a study, and a beginning and an end of each of three trials");
    // Within the reports of the second trial, and at their very ends.
    let (from, to) = (flushed[3] as usize, flushed[4] as usize);
    let ends: BTreeSet<usize> =
        (from..to).filter(|at| whole[at - 1] == b'\n').flat_map(|at| [at, at + 1]).collect();
    let within = (from..to).step_by(97);
    let cuts: BTreeSet<usize> = ends.into_iter().chain(within).filter(|at| *at < to).collect();
    assert!(cuts.len() > 10, "{cuts:?}");
    let complete = |study: &Study| {
        let trials = study.trials().unwrap();
        trials.into_iter().filter(|t| t.state == TrialState::Complete).collect::<Vec<Trial>>()
    };
    for (place, cut) in cuts.into_iter().enumerate() {
        let path = folder.path().join(format!("{cut}.log"));
        let mut left = whole[..cut].to_vec();
        // Some file systems leave zeros where the data had not arrived.
        if place % 2 == 1 {
            left.extend([0; 50]);
        }
        std::fs::write(&path, left).unwrap();
        let study = study(&path, HEARTBEAT);
        let before = complete(&study);
        assert_eq!(before.len(), 1, "cut at {cut}: the first trial had ended");
        let budget = Budget { trials: Some(3), ..Budget::default() };
        study.optimize(&budget, objective).unwrap();
        let after = complete(&study);
        assert_eq!((after.len(), after[0].values.clone()), (3, before[0].values.clone()), "{cut}");
        let trials = study.trials().unwrap();
        assert!(trials.iter().all(|trial| trial.state.is_finished()), "cut at {cut}: {trials:?}");
        let again: Vec<_> = trials.iter().filter(|trial| retry::is_retry(trial)).collect();
        assert_eq!((trials.len(), again.len()), (4, 1), "cut at {cut}: tried again once");
        assert_eq!(again[0].origin(), 1);
        // What its first try had of its values is kept: it is the same trial.
        for (name, value) in &trials[1].parameters {
            assert_eq!(&again[0].parameters[name], value, "cut at {cut}");
        }
        assert_eq!(again[0].intermediate.len(), 3, "cut at {cut}: all of its reports");
    }
}

/// Whichever lines of a change a failure leaves, no trial is lost: one that ran is tried again once, and the
/// budget is spent on trials that end.
#[test]
fn a_change_of_which_some_lines_are_left_loses_no_trial() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("study.log");
    {
        let study = study(&path, HEARTBEAT);
        let budget = Budget { trials: Some(1), ..Budget::default() };
        study.optimize(&budget, objective).unwrap();
        // The second trial is stopped, put back, and gone on with.
        let budget = Budget { trials: Some(2), ..Budget::default() };
        let stop = |trial: &mut TrialHandle<'_>| {
            objective(trial)?;
            trial.interrupt();
            Ok::<_, StudyError>(vec![])
        };
        study.optimize(&budget, stop).unwrap();
        study.optimize(&budget, objective).unwrap();
    }
    let whole = std::fs::read(&path).unwrap();
    let ends = (1..=whole.len()).filter(|at| whole[at - 1] == b'\n');
    let begun = String::from_utf8_lossy(&whole).find("\"op_code\":4").unwrap();
    let mut seen = 0;
    for cut in ends.filter(|cut| *cut > begun) {
        seen += 1;
        let path = folder.path().join(format!("{cut}.log"));
        std::fs::write(&path, &whole[..cut]).unwrap();
        let study = study(&path, HEARTBEAT);
        let budget = Budget { trials: Some(2), ..Budget::default() };
        study.optimize(&budget, objective).unwrap();
        let trials = study.trials().unwrap();
        let mut complete: Vec<_> =
            trials.iter().filter(|t| t.state == TrialState::Complete).map(Trial::origin).collect();
        complete.sort_unstable();
        assert_eq!(complete, [0, 1], "cut at {cut}: {trials:?}");
        assert!(trials.iter().all(|trial| trial.state.is_finished()), "cut at {cut}: {trials:?}");
    }
    assert!(seen > 15, "{seen}");
}

fn objective(trial: &mut TrialHandle<'_>) -> Result<Vec<f64>, StudyError> {
    let (x, y) = (trial.suggest_float("x", 0.0, 1.0)?, trial.suggest_float("y", 0.0, 1.0)?);
    for step in 0..3 {
        trial.report(step, x + step as f64)?;
    }
    Ok(vec![x + y])
}
