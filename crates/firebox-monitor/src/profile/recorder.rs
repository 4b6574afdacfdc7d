//! Records spans: a subscriber of [`tracing`] that is off but for the profiled steps.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt::{Debug, Write as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::set_global_default;
use tracing::{Event, Metadata, Subscriber};

use super::allocations::{counted, counting};
use super::{Profile, ProfileConfig, STEP, Span};

/// Spans that are kept at most: enough for thousands of steps, and not for all memory.
const MOST: usize = 1_000_000;
/// The id of a span that is not recorded.
const UNRECORDED: u64 = 1;

/// The profiler could not be switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// Something else in this process listens to all spans.
    #[error("the spans of this process have another listener already, so nothing can be profiled")]
    Taken,
    /// Another profile is being recorded.
    #[error("another profile is being recorded in this process")]
    Busy,
}

/// A profile being recorded. Recording ends when this is dropped.
#[derive(Debug)]
pub struct Profiler {
    recorder: Arc<Recorder>,
}

impl Profiler {
    /// Listens to the spans of this process from now on.
    ///
    /// # Errors
    ///
    /// When somebody else does, or another profile is being recorded.
    pub fn start(config: ProfileConfig) -> Result<Self, ProfileError> {
        static INSTALLED: OnceLock<Result<Arc<Recorder>, ProfileError>> = OnceLock::new();
        let recorder = INSTALLED.get_or_init(|| {
            let recorder = Arc::new(Recorder::default());
            let installed = set_global_default(Listening(Arc::clone(&recorder)));
            installed.map(|()| recorder).map_err(|_| ProfileError::Taken)
        });
        let recorder = Arc::clone(recorder.as_ref().map_err(|error| *error)?);
        if recorder.waiting.swap(true, Ordering::SeqCst) {
            return Err(ProfileError::Busy);
        }
        *recorder.state() = State::new(config);
        Ok(Self { recorder })
    }

    /// What was recorded so far.
    pub fn profile(&self) -> Profile {
        let state = self.recorder.state();
        let steps = state.steps.saturating_sub(state.config.warmup).min(state.config.active);
        let (left_out, allocations) = (state.left_out, counted());
        Profile { steps, spans: state.spans.clone(), left_out, allocations }
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        self.recorder.recording.store(false, Ordering::SeqCst);
        counting(false);
        self.recorder.waiting.store(false, Ordering::SeqCst);
    }
}

/// What every thread's spans go to.
#[derive(Debug, Default)]
struct Recorder {
    /// A profile was asked for and is not over.
    waiting: AtomicBool,
    /// The steps in hand are profiled.
    recording: AtomicBool,
    ids: AtomicU64,
    state: Mutex<State>,
}

/// Name and fields of a span.
type Open = (&'static str, Vec<(&'static str, String)>);

#[derive(Debug)]
struct State {
    config: ProfileConfig,
    /// Steps that were begun.
    steps: u64,
    begun: Instant,
    /// Spans that are open.
    open: HashMap<u64, Open>,
    spans: Vec<Span>,
    left_out: u64,
}

impl State {
    fn new(config: ProfileConfig) -> Self {
        let (open, spans) = (HashMap::new(), vec![]);
        Self { config, steps: 0, begun: Instant::now(), open, spans, left_out: 0 }
    }
}

impl Default for State {
    fn default() -> Self {
        Self::new(ProfileConfig::default())
    }
}

impl Recorder {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A step begins: recording goes on or off.
    fn step(&self) {
        let mut state = self.state();
        state.steps += 1;
        let ProfileConfig { warmup, active } = state.config;
        let recording = state.steps > warmup && state.steps <= warmup.saturating_add(active);
        if recording && !self.recording.load(Ordering::Relaxed) {
            state.begun = Instant::now();
            counting(true);
        }
        if !recording {
            counting(false);
        }
        self.recording.store(recording, Ordering::SeqCst);
    }

    /// The span of a step ends: after the last one, recording ends with it.
    fn step_ended(&self) {
        let state = self.state();
        let ProfileConfig { warmup, active } = state.config;
        if state.steps >= warmup.saturating_add(active) {
            self.recording.store(false, Ordering::SeqCst);
            counting(false);
        }
    }
}

thread_local! {
    /// Number of this thread, from 1; 0 until it has one.
    static THREAD: Cell<u64> = const { Cell::new(0) };
    /// Spans that this thread is in, with the moments at which it entered them.
    static ENTERED: RefCell<Vec<(u64, Instant)>> = const { RefCell::new(Vec::new()) };
}

fn thread() -> u64 {
    static THREADS: AtomicU64 = AtomicU64::new(0);
    THREAD.with(|thread| {
        if thread.get() == 0 {
            thread.set(THREADS.fetch_add(1, Ordering::Relaxed) + 1);
        }
        thread.get()
    })
}

/// The subscriber.
struct Listening(Arc<Recorder>);

struct Fields(Vec<(&'static str, String)>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        // Writing to a text does not fail.
        let _ = write!(text, "{value:?}");
        self.0.push((field.name(), text));
    }
}

impl Subscriber for Listening {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target().starts_with("firebox")
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let name = attributes.metadata().name();
        if name == STEP && self.0.waiting.load(Ordering::Relaxed) {
            self.0.step();
        }
        if !self.0.recording.load(Ordering::Relaxed) {
            return Id::from_u64(UNRECORDED);
        }
        let id = self.0.ids.fetch_add(1, Ordering::Relaxed) + UNRECORDED + 1;
        let mut fields = Fields(vec![]);
        attributes.record(&mut fields);
        self.0.state().open.insert(id, (name, fields.0));
        Id::from_u64(id)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, id: &Id) {
        if id.into_u64() != UNRECORDED {
            ENTERED.with_borrow_mut(|entered| entered.push((id.into_u64(), Instant::now())));
        }
    }

    fn exit(&self, id: &Id) {
        let (id, end) = (id.into_u64(), Instant::now());
        if id == UNRECORDED {
            return;
        }
        let entered = ENTERED.with_borrow_mut(|entered| {
            let place = entered.iter().rposition(|known| known.0 == id)?;
            Some(entered.remove(place).1)
        });
        let Some(start) = entered else { return };
        let mut state = self.0.state();
        let Some((name, fields)) = state.open.get(&id).cloned() else { return };
        if state.spans.len() >= MOST {
            state.left_out += 1;
            return;
        }
        let start_us = start.saturating_duration_since(state.begun).as_secs_f64() * 1e6;
        let duration_us = end.saturating_duration_since(start).as_secs_f64() * 1e6;
        let current = std::thread::current();
        let thread = thread();
        let thread_name = current.name().map_or(format!("thread {thread}"), str::to_owned);
        let span = Span { name, fields, thread, thread_name, start_us, duration_us };
        state.spans.push(span);
        drop(state);
        if name == STEP {
            self.0.step_ended();
        }
    }

    fn try_close(&self, id: Id) -> bool {
        if id.into_u64() != UNRECORDED {
            self.0.state().open.remove(&id.into_u64());
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use tracing::info_span;

    use super::*;

    fn spin(milliseconds: u64) {
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
    }

    #[test]
    fn the_asked_for_steps_are_recorded_with_what_is_in_them() {
        let profiler = Profiler::start(ProfileConfig { warmup: 2, active: 3 }).unwrap();
        assert_eq!(Profiler::start(ProfileConfig::default()).unwrap_err(), ProfileError::Busy);
        for number in 1..=8u64 {
            let _step = info_span!("step", number).entered();
            info_span!("forward").in_scope(|| spin(4));
            std::thread::scope(|scope| {
                scope.spawn(|| info_span!("save").in_scope(|| spin(1)));
            });
            tracing::info_span!(target: "other", "not ours").in_scope(|| ());
        }
        let profile = profiler.profile();
        drop(profiler);
        assert_eq!((profile.steps, profile.left_out), (3, 0));
        let of = |name: &str| profile.spans.iter().filter(|s| s.name == name).collect::<Vec<_>>();
        assert_eq!([of("step").len(), of("forward").len(), of("save").len()], [3, 3, 3]);
        assert!(of("not ours").is_empty());
        assert_eq!(of("step")[0].fields, [("number", "3".to_owned())]);
        assert!(of("forward").iter().all(|span| span.duration_us >= 4000.0));
        assert_ne!(of("save")[0].thread, of("step")[0].thread);
        // Nothing more is recorded, and another profile may begin.
        info_span!("step").in_scope(|| ());
        let again = Profiler::start(ProfileConfig { warmup: 0, active: 1 }).unwrap();
        assert!(again.profile().spans.is_empty());
        info_span!("step").in_scope(|| ());
        info_span!("after").in_scope(|| ());
        assert_eq!(again.profile().spans.len(), 1);
    }
}
