//! `search.concurrent`: how many trials a worker runs at once. A number is taken as it is; with
//! `auto` the worker begins with one trial and adds more while the device is not busy and there is
//! memory for one more.
//!
//! On a processor each trial has a pool of threads of its own. A trial's results do not depend on how many
//! others run; which values the sampler proposes does, since it knows fewer of them when it is asked.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use firebox_core::{Event, GpuSample, Listener, MachineSample};
use serde::{Deserialize, Serialize};

/// Share of the device's time above which nothing is gained by another trial (Firebox's own; the guides
/// call a device well used from 85 %).
const BUSY: f64 = 0.85;
/// What another trial has to add to that share, or no more are added.
const GAIN: f64 = 0.05;
/// Samples after a trial was added that tell of its start, not of its training.
const STARTING: usize = 3;
/// Samples that are judged together.
const JUDGED: usize = 3;
/// Most trials at once on a device that is not a processor (Firebox's own).
const MOST_ON_GPU: usize = 8;
/// Part of the free memory that a further trial may take.
const ROOM: f64 = 0.8;
/// Seconds between two samples.
pub(super) const PERIOD: f64 = 1.0;

/// Trials that one worker runs at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub enum Concurrent {
    /// As many as keep the device busy and have room.
    Auto,
    /// So many.
    Trials(usize),
}

impl Concurrent {
    /// Most trials of a worker on this device, which has so many threads if it is a processor.
    pub(super) fn most(self, gpu: bool, threads: usize) -> usize {
        match self {
            Self::Trials(trials) => trials,
            Self::Auto if gpu => MOST_ON_GPU,
            Self::Auto => threads,
        }
    }
}

/// As it is written in a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged, expecting = "`search.concurrent` is a number from 1 to 64, or \"auto\"")]
enum Written {
    Trials(u64),
    Word(String),
}

impl TryFrom<Written> for Concurrent {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Trials(trials @ 1..=64) => Ok(Self::Trials(trials as usize)),
            Written::Word(word) if word == "auto" => Ok(Self::Auto),
            Written::Trials(trials) => Err(wrong(&trials.to_string())),
            Written::Word(word) => Err(wrong(&format!("{word:?}"))),
        }
    }
}

fn wrong(found: &str) -> String {
    format!("{found} trials at once; it must be a number from 1 to 64, or \"auto\"")
}

impl From<Concurrent> for Written {
    fn from(concurrent: Concurrent) -> Self {
        match concurrent {
            Concurrent::Auto => Self::Word("auto".to_owned()),
            Concurrent::Trials(trials) => Self::Trials(trials as u64),
        }
    }
}

/// Lets trials begin. It listens to samples of the machine.
pub(super) struct Gate<'a> {
    most: usize,
    gpu: bool,
    listener: &'a dyn Listener,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Trials that may run at once.
    admitted: usize,
    /// Shares of the device's time since the last trial was added.
    busy: Vec<f64>,
    /// The share before the last trial was added.
    before: Option<f64>,
    /// No more are added.
    settled: bool,
    /// The worker has no more to do.
    closed: bool,
}

impl<'a> Gate<'a> {
    pub(super) fn new(
        concurrent: Concurrent,
        gpu: bool,
        threads: usize,
        listener: &'a dyn Listener,
    ) -> Self {
        let most = concurrent.most(gpu, threads).max(1);
        let (admitted, settled) = match concurrent {
            Concurrent::Trials(trials) => (trials, true),
            Concurrent::Auto => (1, most == 1),
        };
        let state = Mutex::new(State { admitted, settled, ..State::default() });
        Self { most, gpu, listener, state, changed: Condvar::new() }
    }

    /// Threads that may ever run a trial.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Whether samples are of use.
    pub(super) fn watches(&self) -> bool {
        !self.lock().settled
    }

    /// Waits until so many trials are let in besides this one; false if that will not be.
    pub(super) fn enter(&self, others: usize) -> bool {
        let mut state = self.lock();
        loop {
            if state.admitted > others {
                return true;
            }
            if state.closed {
                return false;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets no more in once this is dropped, because there is nothing left to begin.
    pub(super) fn closing(&self) -> Closing<'_> {
        Closing(self)
    }

    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is said if another trial is let in now.
    fn judge(&self, sample: &MachineSample) -> Option<String> {
        let share = busy(sample, self.gpu)?;
        let mut state = self.lock();
        if state.settled || state.closed {
            return None;
        }
        state.busy.push(share);
        if state.busy.len() < STARTING + JUDGED {
            return None;
        }
        let last = &state.busy[state.busy.len() - JUDGED..];
        let mean = last.iter().sum::<f64>() / JUDGED as f64;
        let useless = state.before.is_some_and(|before| mean < before + GAIN);
        if useless || mean >= BUSY || !has_room(sample, self.gpu, state.admitted) {
            // Trials differ in size, so a device that is busy now may have room later.
            state.settled = useless;
            return None;
        }
        state.busy.clear();
        state.before = Some(mean);
        state.admitted += 1;
        state.settled = state.admitted == self.most;
        self.changed.notify_all();
        let (trials, percent) = (state.admitted, 100.0 * mean);
        let before = match trials - 1 {
            1 => "one keeps".to_owned(),
            some => format!("{some} keep"),
        };
        Some(format!(
            "{trials} trials at once: {before} the device busy for {percent:.0} % of the time"
        ))
    }
}

/// Closes a [`Gate`] when it is dropped.
pub(super) struct Closing<'a>(&'a Gate<'a>);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// What the device did, if it is a GPU. Of several that were sampled it is not known which one is meant, and others may
/// be at work on each.
fn own_gpu(sample: &MachineSample) -> Option<&GpuSample> {
    match &sample.gpus[..] {
        [own] => Some(own),
        _ => None,
    }
}

/// Share of the device's time in which it worked, if it is known.
fn busy(sample: &MachineSample, gpu: bool) -> Option<f64> {
    if gpu {
        return own_gpu(sample)?.utilisation;
    }
    // Threads that fill batches come on top of those that compute.
    (sample.threads > 0).then(|| (sample.cpu_threads / f64::from(sample.threads)).min(1.0))
}

/// Whether a further trial fits that takes as much memory as each of those that run. What is not
/// known has no room.
fn has_room(sample: &MachineSample, gpu: bool, running: usize) -> bool {
    let fits = |used: u64, free: u64| used as f64 / running as f64 <= ROOM * free as f64;
    let on_gpu = || {
        let gpu = own_gpu(sample)?;
        let (used, all) = (gpu.memory_used_bytes?, gpu.memory_bytes?);
        Some(fits(used, all.saturating_sub(used)))
    };
    let on_host = fits(sample.resident_bytes, sample.available_bytes);
    on_host && (!gpu || on_gpu() == Some(true))
}

impl Listener for Gate<'_> {
    fn on(&self, event: &Event) {
        match event {
            Event::Machine(sample) => {
                if let Some(message) = self.judge(sample) {
                    self.listener.on(&Event::StageFinished {
                        stage: "concurrent".to_owned(),
                        key: None,
                        reused: false,
                        seconds: 0.0,
                        detail: message,
                    });
                }
            }
            other => self.listener.on(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use firebox_core::Silent;

    use super::*;

    fn sample(share: f64) -> MachineSample {
        MachineSample {
            seconds: 1.0,
            cpu_threads: 4.0 * share,
            threads: 4,
            resident_bytes: 100,
            available_bytes: 10_000,
            ..MachineSample::default()
        }
    }

    fn on_gpu(share: f64, used: u64) -> MachineSample {
        let gpu = GpuSample {
            utilisation: Some(share),
            memory_used_bytes: Some(used),
            memory_bytes: Some(1000),
            ..GpuSample::default()
        };
        MachineSample { gpus: vec![gpu], ..sample(1.0) }
    }

    fn after(gate: &Gate<'_>, samples: impl Fn(usize) -> MachineSample, count: usize) -> usize {
        for _ in 0..count {
            let admitted = gate.lock().admitted;
            gate.on(&Event::Machine(samples(admitted)));
        }
        gate.lock().admitted
    }

    #[test]
    fn trials_are_added_until_the_device_is_busy() {
        let gate = Gate::new(Concurrent::Auto, false, 8, &Silent);
        assert_eq!(after(&gate, |trials| sample(0.3 * trials as f64), STARTING + JUDGED - 1), 1);
        // Three keep it busy for 90 %.
        assert_eq!(after(&gate, |trials| sample(0.3 * trials as f64), 100), 3);
        assert_eq!(after(&gate, |_| sample(0.7), JUDGED), 4, "smaller trials came later");
        let gate = Gate::new(Concurrent::Auto, false, 8, &Silent);
        assert_eq!(after(&gate, |_| sample(0.95), 100), 1);
        assert_eq!(after(&gate, |_| sample(0.5), JUDGED), 2, "a smaller one came");
        assert_eq!([0.5, 1.25].map(|share| busy(&sample(share), false)), [Some(0.5), Some(1.0)]);
    }

    #[test]
    fn trials_that_bring_nothing_are_not_added_to() {
        let gate = Gate::new(Concurrent::Auto, false, 8, &Silent);
        assert_eq!(after(&gate, |_| sample(0.4), 100), 2);
        assert!(!gate.watches());
    }

    #[test]
    fn threads_and_memory_limit_them() {
        let gate = Gate::new(Concurrent::Auto, false, 2, &Silent);
        assert_eq!(after(&gate, |trials| sample(0.1 * trials as f64), 100), 2);
        let full =
            |trials: usize| MachineSample { available_bytes: 120, ..sample(0.1 * trials as f64) };
        let gate = Gate::new(Concurrent::Auto, false, 8, &Silent);
        assert_eq!(after(&gate, full, 100), 1, "100 bytes a trial, and 80 % of 120 are free");
        let gate = Gate::new(Concurrent::Auto, true, 8, &Silent);
        let some = |trials: usize| on_gpu(0.1 * trials as f64, 300 * trials as u64);
        assert_eq!(after(&gate, some, 100), 3, "a fourth needs 300 of 100 bytes");
        let unknown = |_: usize| sample(0.0);
        let gate = Gate::new(Concurrent::Auto, true, 8, &Silent);
        assert_eq!(after(&gate, unknown, 100), 1, "nobody tells what the GPU does");
        let several = |trials: usize| {
            let gpus = [1, 2].map(|share| on_gpu(0.1 * f64::from(share), 10).gpus.remove(0));
            MachineSample { gpus: gpus.to_vec(), ..sample(0.1 * trials as f64) }
        };
        let gate = Gate::new(Concurrent::Auto, true, 8, &Silent);
        assert_eq!(after(&gate, several, 100), 1, "nobody tells which GPU is meant");
    }

    #[test]
    fn who_waits_is_let_in_or_sent_home() {
        let gate = Gate::new(Concurrent::Auto, false, 8, &Silent);
        let inside = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let waiting: Vec<_> = (1..8)
                .map(|others| {
                    let (gate, inside) = (&gate, &inside);
                    scope.spawn(move || {
                        let entered = gate.enter(others);
                        inside.fetch_add(usize::from(entered), Ordering::SeqCst);
                    })
                })
                .collect();
            after(&gate, |trials| sample(0.3 * trials as f64), 100);
            gate.close();
            waiting.into_iter().for_each(|thread| thread.join().unwrap());
        });
        assert_eq!(inside.into_inner(), 2);
        let gate = Gate::new(Concurrent::Trials(3), false, 8, &Silent);
        assert!(gate.enter(2) && !gate.watches());
    }

    #[test]
    fn it_is_a_number_or_auto() {
        #[derive(Debug, Deserialize)]
        struct Table {
            concurrent: Concurrent,
        }
        let read = |value: &str| {
            toml::from_str::<Table>(&format!("concurrent = {value}")).map(|table| table.concurrent)
        };
        assert_eq!(read("3").unwrap(), Concurrent::Trials(3));
        assert_eq!(read("\"auto\"").unwrap(), Concurrent::Auto);
        for wrong in ["0", "65", "\"all\"", "1.5", "-1"] {
            let said = read(wrong).unwrap_err().to_string();
            assert!(said.contains("from 1 to 64, or \"auto\""), "{wrong}: {said}");
        }
    }
}
