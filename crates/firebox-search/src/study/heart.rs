//! Signs of life of the trials that this process runs, and the watch over those of others.
//!
//! Optuna's journal has no heartbeat; a system attribute of the trial carries it, which Optuna keeps
//! and ignores. A trial counts as lost when its attribute has not changed for three of its intervals
//! *as seen here*: clocks of different machines are never compared.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::storage::{Operation, Storage, time};
use crate::trial::{HEARTBEAT, Trial, TrialState};

/// How many intervals without a sign of life make a trial a lost one.
const LOST_AFTER: f64 = 3.0;
/// A journal that answers sooner than this was never away.
const SLOW: Duration = Duration::from_secs(1);

/// The shortest interval: shorter ones would fill the journal, and call a trial lost that waited for its disk. Tests wait
/// less.
const SHORTEST: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 100 });

/// The attribute's value now.
pub(super) fn beat(every: Duration) -> Value {
    json!({ "time": time::now(), "every": every.as_secs_f64() })
}

/// The last sign of life of a trial.
pub(super) struct Beat {
    /// By the clock of its worker, in seconds since the epoch.
    pub(super) time: f64,
    /// Seconds to the next one.
    pub(super) every: f64,
}

impl Beat {
    pub(super) fn of(trial: &Trial) -> Option<Self> {
        let beat = trial.system_attributes.get(HEARTBEAT)?;
        Some(Self { time: beat.get("time")?.as_f64()?, every: beat.get("every")?.as_f64()? })
    }
}

/// Beats for the running trials of a study until it is dropped.
pub(super) struct Heart {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    every: Duration,
    /// Since when the journal has answered this process without delay.
    steady: Mutex<Instant>,
}

#[derive(Default)]
struct State {
    running: BTreeSet<u64>,
    stopped: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the journal answered after so long.
    fn answered(&self, after: Duration) {
        if after > (self.every / 2).max(SLOW) {
            *self.steady.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        }
    }
}

impl Heart {
    /// Beats in this interval, or the [shortest](SHORTEST).
    pub(super) fn new(every: Duration) -> Self {
        let every = every.max(SHORTEST);
        let (state, changed, steady) =
            (Mutex::default(), Condvar::new(), Mutex::new(Instant::now()));
        let shared = Arc::new(Shared { state, changed, every, steady });
        Self { shared, thread: Mutex::new(None) }
    }

    pub(super) fn every(&self) -> Duration {
        self.shared.every
    }

    /// Notes that the journal answered after so long.
    pub(super) fn answered(&self, after: Duration) {
        self.shared.answered(after);
    }

    /// Whether the journal has answered this process without delay for a whole interval, so that those
    /// who live have had the time to say so.
    pub(super) fn is_steady(&self) -> bool {
        let since = self.shared.steady.lock().unwrap_or_else(PoisonError::into_inner);
        since.elapsed() > self.shared.every
    }

    /// Beats for this trial, by its number in the journal, from now on. Its first beat was written
    /// when it was taken.
    pub(super) fn start(&self, trial: u64, storage: &Arc<Storage>, stop: &Arc<AtomicBool>) {
        self.shared.state().running.insert(trial);
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let (shared, storage) = (Arc::clone(&self.shared), Arc::clone(storage));
            let stop = Arc::clone(stop);
            // Without the thread the trial may be tried twice, and is still counted once.
            *thread = std::thread::Builder::new()
                .name("firebox-heartbeat".to_owned())
                .spawn(move || run(&shared, &storage, &stop))
                .ok();
        }
    }

    pub(super) fn stop(&self, trial: u64) {
        self.shared.state().running.remove(&trial);
    }

    pub(super) fn runs(&self, trial: u64) -> bool {
        self.shared.state().running.contains(&trial)
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.shared.state().stopped = true;
        self.shared.changed.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared, storage: &Storage, stop: &Arc<AtomicBool>) {
    let every = shared.every;
    loop {
        let wait = shared.changed.wait_timeout_while(shared.state(), every, |state| !state.stopped);
        let (state, _) = wait.unwrap_or_else(PoisonError::into_inner);
        if state.stopped {
            return;
        }
        let running = state.running.clone();
        drop(state);
        let asked = Instant::now();
        // A journal that fails is reported by the trial's own next change.
        let _ = storage.change::<_, crate::storage::StorageError>(stop, |replay| {
            let alive = running.iter().filter(|trial| {
                replay.trial(**trial).is_some_and(|trial| trial.state == TrialState::Running)
            });
            let beats = alive.map(|&trial| Operation::SystemAttribute {
                trial,
                key: HEARTBEAT.to_owned(),
                value: beat(every),
            });
            Ok((beats.collect(), ()))
        });
        shared.answered(asked.elapsed());
    }
}

/// What was last seen of the trials of others.
#[derive(Default)]
pub(super) struct Watch(BTreeMap<u64, (Value, Instant)>);

impl Watch {
    /// Takes what is seen now of the running trials and returns those that are lost. Trials without
    /// the attribute, such as Optuna's, are never lost.
    pub(super) fn lost<'a>(&mut self, running: impl Iterator<Item = (u64, &'a Trial)>) -> Vec<u64> {
        let (mut seen, mut lost) = (BTreeMap::new(), vec![]);
        for (id, trial) in running {
            let Some(beat) = trial.system_attributes.get(HEARTBEAT) else { continue };
            let before = self.0.remove(&id).filter(|(last, _)| last == beat);
            let since = before.map_or_else(Instant::now, |(_, since)| since);
            let every = beat.get("every").and_then(Value::as_f64).unwrap_or(10.0);
            // Of another version, it may be shorter than any.
            let every = every.max(SHORTEST.as_secs_f64());
            if since.elapsed().as_secs_f64() > LOST_AFTER * every {
                lost.push(id);
            }
            seen.insert(id, (beat.clone(), since));
        }
        self.0 = seen;
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_interval_is_so_short_that_the_living_are_lost() {
        let heart = Heart::new(Duration::ZERO);
        assert_eq!(heart.every(), Duration::from_millis(10));
        // Nor one that another version wrote down.
        let mut trial = Trial::new(0, TrialState::Running);
        let beat = beat(Duration::ZERO);
        trial.system_attributes.insert(HEARTBEAT.to_owned(), beat);
        let (mut watch, first) = (Watch::default(), Instant::now());
        assert!(watch.lost([(7, &trial)].into_iter()).is_empty());
        std::thread::sleep(Duration::from_millis(1));
        let lost = watch.lost([(7, &trial)].into_iter());
        assert!(lost.is_empty() || first.elapsed() > Duration::from_millis(30), "{lost:?}");
        std::thread::sleep(Duration::from_millis(40));
        assert_eq!(watch.lost([(7, &trial)].into_iter()), [7]);
    }

    #[test]
    fn after_an_outage_of_the_journal_everybody_has_an_interval_to_say_that_they_live() {
        let heart = Heart::new(Duration::from_secs(2));
        assert!(!heart.is_steady());
        while !heart.is_steady() {
            std::thread::sleep(Duration::from_millis(20));
        }
        heart.answered(Duration::from_millis(900));
        assert!(heart.is_steady());
        heart.answered(Duration::from_secs(40));
        assert!(!heart.is_steady());
    }
}
