//! Samples the machine from a thread of its own while some work goes on.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::{Builder, scope};
use std::time::{Duration, Instant};

use firebox_core::{Event, Listener, MachineSample, MemoryPool};

use crate::gpu::{Gpus, Numbering};
use crate::machine::Machine;

/// The shortest time that a last sample is worth taking over.
const SHORTEST: Duration = Duration::from_millis(50);

/// Does the work, and meanwhile sends an [`Event::Machine`] to the listener each `period` seconds
/// and once more at the end. With a period of 0 there are none.
///
/// `threads` are those that the work computes with: what it keeps busy is told as a share of them, or of those that the
/// process may use, where these are fewer.
///
/// `gpus` says which of them are looked at: what others do on a GPU is nothing of a run on the processor, or on another
/// GPU. Nothing that goes wrong here is seen by the work.
pub fn sampled<T>(
    period: f64,
    threads: usize,
    gpus: WatchGpus,
    listener: &dyn Listener,
    work: impl FnOnce() -> T,
) -> T {
    sampled_with(period, threads, gpus, &Vec::new, listener, work)
}

/// Which GPUs are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchGpus {
    /// None.
    No,
    /// All, where something tells of them.
    IfTold,
    /// That which the work uses, where it is sure which one that is; otherwise all.
    Own {
        /// Its number among those of its backend.
        index: u32,
        /// How its backend counts.
        numbering: Numbering,
        /// Whether NVIDIA's library or the kernel could tell of it: their silence is said once, as a warning.
        expected: bool,
    },
}

/// The same, with what `pools` says of the memory at each sample.
pub fn sampled_with<T>(
    period: f64,
    threads: usize,
    watch: WatchGpus,
    pools: &(dyn Fn() -> Vec<MemoryPool> + Sync),
    listener: &dyn Listener,
    work: impl FnOnce() -> T,
) -> T {
    if period <= 0.0 {
        return work();
    }
    let period = Duration::try_from_secs_f64(period).unwrap_or(Duration::from_secs(1));
    scope(|scope| {
        let (stop, stopped) = channel::<()>();
        let thread = Builder::new().name("monitor".to_owned()).spawn_scoped(scope, move || {
            let (gpus, expected) = match watch {
                WatchGpus::No => (Gpus::unasked(), false),
                WatchGpus::IfTold => (Gpus::find(), false),
                WatchGpus::Own { index, numbering, expected } => {
                    (Gpus::find().only(index, numbering), expected)
                }
            };
            if let (true, Some(reason)) = (expected, gpus.absence()) {
                let message = format!(
                    "the GPU cannot be watched: {reason}; training goes on without its utilisation, memory, clock, power and temperature"
                );
                listener.on(&Event::Warning { message });
            }
            let mut machine = Machine::new(gpus, threads);
            let mut before = Instant::now();
            let mut sample = || {
                listener.on(&Event::Machine(MachineSample { pools: pools(), ..machine.sample() }));
            };
            while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                sample();
                before = Instant::now();
            }
            if before.elapsed() >= SHORTEST {
                sample();
            }
        });
        if let Err(error) = thread {
            let message = format!("the machine is not watched: no thread for it: {error}");
            listener.on(&Event::Warning { message });
        }
        // Dropped before the scope waits for the thread, also if the work panics.
        let _stop = stop;
        work()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn events(period: f64, work: Duration) -> Vec<Event> {
        let events = Mutex::new(vec![]);
        let listener = |event: &Event| events.lock().unwrap().push(event.clone());
        assert_eq!(
            sampled(period, 1, WatchGpus::IfTold, &listener, || {
                std::thread::sleep(work);
                7
            }),
            7
        );
        events.into_inner().unwrap()
    }

    #[test]
    fn samples_come_while_the_work_goes_on_and_once_at_its_end() {
        let events = events(0.1, Duration::from_millis(480));
        assert!((2..=6).contains(&events.len()), "{events:?}");
        let seconds: f64 = events
            .iter()
            .map(|event| match event {
                Event::Machine(sample) => sample.seconds,
                other => panic!("{other:?}"),
            })
            .sum();
        assert!((0.3..2.0).contains(&seconds), "{seconds}");
    }

    #[test]
    fn samples_hold_what_is_said_of_the_memory() {
        let pool = |bytes| MemoryPool {
            name: "heap".to_owned(),
            allocated_bytes: bytes,
            reserved_bytes: Some(2 * bytes),
            peak_bytes: None,
        };
        let asked = std::sync::atomic::AtomicU64::new(0);
        let pools = || vec![pool(asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1)];
        let found = Mutex::new(vec![]);
        let listener = |event: &Event| {
            if let Event::Machine(sample) = event {
                found.lock().unwrap().extend(sample.pools.clone());
            }
        };
        let work = || std::thread::sleep(Duration::from_millis(350));
        sampled_with(0.1, 1, WatchGpus::IfTold, &pools, &listener, work);
        let found = found.into_inner().unwrap();
        let expected: Vec<_> = (1..=found.len() as u64).map(pool).collect();
        assert!(found.len() >= 2 && found == expected, "{found:?}");
    }

    #[test]
    fn a_period_of_0_takes_none_and_a_panic_of_the_work_ends_the_thread() {
        assert_eq!(events(0.0, Duration::from_millis(60)), []);
        let listener = |_: &Event| ();
        let panicked = std::panic::catch_unwind(|| {
            sampled(60.0, 1, WatchGpus::No, &listener, || panic!("the work"));
        });
        assert!(panicked.is_err());
    }

    #[test]
    fn a_gpu_that_cannot_be_watched_is_said_once() {
        let events = Mutex::new(vec![]);
        let listener = |event: &Event| events.lock().unwrap().push(event.clone());
        let own = WatchGpus::Own { index: 0, numbering: Numbering::Nvidia, expected: true };
        sampled(0.1, 1, own, &listener, || std::thread::sleep(Duration::from_millis(350)));
        let events = events.into_inner().unwrap();
        let warnings = events.iter().filter(|event| matches!(event, Event::Warning { .. })).count();
        assert_eq!(warnings, usize::from(Gpus::find().absence().is_some()), "{events:?}");
    }
}
