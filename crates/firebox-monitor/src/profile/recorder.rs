//! Records spans: a subscriber of [`tracing`] that is off but for the profiled steps.

use std::borrow::Cow;
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

use super::allocations::{counted, counting, forget_counted};
use super::device::laid_over;
use super::trace::Steps;
use super::{DeviceKernel, DeviceTimer, Profile, ProfileConfig, STEP, Span};

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
    /// Listens to the spans of this process from now on, and has the kernels of a `device` measured
    /// while the steps are recorded.
    ///
    /// # Errors
    ///
    /// When somebody else does, or another profile is being recorded.
    pub fn start(
        config: ProfileConfig,
        device: Option<Arc<dyn DeviceTimer>>,
    ) -> Result<Self, ProfileError> {
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
        *recorder.state() = State { device, ..State::new(config) };
        Ok(Self { recorder })
    }

    /// What was recorded. If steps are still being recorded, that ends.
    pub fn profile(&self) -> Profile {
        self.recorder.over();
        let state = self.recorder.state();
        let steps = state.steps.saturating_sub(state.config.warmup).min(state.config.active);
        let mut spans = state.spans.clone();
        let own = Steps::of(&spans);
        let launched = state.kernels.iter().filter(|kernel| {
            let moment = kernel.launched.saturating_duration_since(state.begun);
            own.thread_at(1e6 * moment.as_secs_f64()).is_some()
        });
        let launched = launched.count() as u64;
        spans.extend(laid_over(&state.kernels, state.begun));
        let ran = || state.kernels.iter().map(|kernel| kernel.ran);
        Profile {
            steps,
            spans,
            left_out: state.left_out,
            launched,
            unmeasured: ran().filter(Option::is_none).count() as u64,
            by_host: ran().flatten().filter(|ran| !ran.by_device).count() as u64,
            allocations: counted(),
        }
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        self.recorder.over();
        *self.recorder.state() = State::default();
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
    device: Option<Arc<dyn DeviceTimer>>,
    kernels: Vec<DeviceKernel>,
}

impl State {
    fn new(config: ProfileConfig) -> Self {
        Self {
            config,
            steps: 0,
            begun: Instant::now(),
            open: HashMap::new(),
            spans: vec![],
            left_out: 0,
            device: None,
            kernels: vec![],
        }
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
        let wanted = state.steps > warmup && state.steps <= warmup.saturating_add(active);
        if !wanted {
            drop(state);
            return self.over();
        }
        if self.recording.load(Ordering::Relaxed) {
            counting(true);
            return;
        }
        let device = state.device.clone();
        drop(state);
        // Without the lock, which kernels that are being launched may wait for.
        if let Some(device) = device {
            device.begin();
        }
        self.state().begun = Instant::now();
        forget_counted();
        counting(true);
        self.recording.store(true, Ordering::SeqCst);
    }

    /// The span of a step ends: what is taken until the next one is not counted, and after the last one, recording ends
    /// with it.
    fn step_ended(&self) {
        counting(false);
        let state = self.state();
        let ProfileConfig { warmup, active } = state.config;
        if state.steps >= warmup.saturating_add(active) {
            drop(state);
            self.over();
        }
    }

    /// Recording ends, if it was on, and the device is asked what it did.
    fn over(&self) {
        if !self.recording.swap(false, Ordering::SeqCst) {
            return;
        }
        counting(false);
        let device = self.state().device.clone();
        if let Some(device) = device {
            let kernels = device.end();
            self.state().kernels = kernels;
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
        if state.spans.len() < MOST {
            let start_us = start.saturating_duration_since(state.begun).as_secs_f64() * 1e6;
            let duration_us = end.saturating_duration_since(start).as_secs_f64() * 1e6;
            let current = std::thread::current();
            let thread = thread();
            let thread_name = current.name().map_or(format!("thread {thread}"), str::to_owned);
            state.spans.push(Span {
                name: Cow::Borrowed(name),
                fields,
                thread,
                thread_name,
                on_device: false,
                start_us,
                duration_us,
            });
        } else {
            state.left_out += 1;
        }
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
    use std::alloc::{GlobalAlloc as _, Layout, System};
    use std::time::Duration;

    use tracing::info_span;

    use super::super::allocations::ALONE;
    use super::super::{Counted, Ran};
    use super::*;

    /// A device whose kernels take a millisecond each; each second one is not measured, and the first
    /// by the host.
    #[derive(Debug, Default)]
    struct Device(Mutex<Option<Vec<DeviceKernel>>>);

    impl Device {
        fn launch(&self, number: u64) {
            if let Some(kernels) = &mut *self.0.lock().unwrap() {
                let ran = Ran {
                    begin: Duration::from_millis(500 + 10 * number),
                    duration: Duration::from_millis(1),
                    by_device: number > 3,
                };
                let ran = (!number.is_multiple_of(2)).then_some(ran);
                let (name, launched) = (number.to_string(), Instant::now());
                kernels.push(DeviceKernel { name, fields: vec![], launched, ran });
            }
        }
    }

    impl DeviceTimer for Device {
        fn begin(&self) {
            assert!(self.0.lock().unwrap().replace(vec![]).is_none());
        }

        fn end(&self) -> Vec<DeviceKernel> {
            self.0.lock().unwrap().take().unwrap()
        }
    }

    fn spin(milliseconds: u64) {
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
    }

    fn take(bytes: usize) {
        let (allocator, layout) = (Counted(System), Layout::from_size_align(bytes, 8).unwrap());
        // SAFETY: the memory is given back with the layout that it was taken with.
        unsafe {
            let memory = allocator.alloc(layout);
            allocator.dealloc(memory, layout);
        }
    }

    #[test]
    fn the_asked_for_steps_are_recorded_with_what_is_in_them() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let device = Arc::new(Device::default());
        let config = ProfileConfig { warmup: 2, active: 3 };
        let profiler = Profiler::start(config, Some(device.clone())).unwrap();
        let busy = Profiler::start(ProfileConfig::default(), None).unwrap_err();
        assert_eq!(busy, ProfileError::Busy);
        for number in 1..=8u64 {
            let step = info_span!("step", number).entered();
            info_span!("forward").in_scope(|| spin(4));
            device.launch(number);
            std::thread::scope(|scope| {
                scope.spawn(|| info_span!("save").in_scope(|| spin(1)));
            });
            tracing::info_span!(target: "other", "not ours").in_scope(|| ());
            take(64);
            drop(step);
            // As a validation between two steps.
            device.launch(number);
            take(1000);
        }
        let profile = profiler.profile();
        drop(profiler);
        assert_eq!((profile.steps, profile.left_out), (3, 0));
        // Five kernels, of which two were launched between steps.
        assert_eq!((profile.launches(), profile.unmeasured, profile.by_host), (3, 2, 2));
        assert_eq!(profile.allocations, Some((3, 192)));
        let kernels: Vec<_> = profile.spans.iter().filter(|span| span.on_device).collect();
        assert_eq!(kernels.iter().map(|span| &*span.name).collect::<Vec<_>>(), ["3", "3", "5"]);
        // One of them begins with its launch, after the first profiled step's forward.
        assert!(kernels[0].start_us >= 4000.0, "{kernels:?}");
        assert_eq!(Arc::strong_count(&device), 1, "the device is let go of");
        let of = |name: &str| profile.spans.iter().filter(|s| s.name == name).collect::<Vec<_>>();
        assert_eq!([of("step").len(), of("forward").len(), of("save").len()], [3, 3, 3]);
        assert!(of("not ours").is_empty());
        assert_eq!(of("step")[0].fields, [("number", "3".to_owned())]);
        assert!(of("forward").iter().all(|span| span.duration_us >= 4000.0));
        assert_ne!(of("save")[0].thread, of("step")[0].thread);
        // Nothing more is recorded, and another profile may begin.
        info_span!("step").in_scope(|| ());
        let again = Profiler::start(ProfileConfig { warmup: 0, active: 1 }, None).unwrap();
        assert!(again.profile().spans.is_empty());
        info_span!("step").in_scope(|| ());
        info_span!("after").in_scope(|| ());
        assert_eq!(again.profile().spans.len(), 1);
    }
}
