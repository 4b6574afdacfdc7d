//! When the kernels of a GPU ran, whoever launched them: Burn's own, fused ones, and those of this
//! crate, which also tell their shapes and their work.
//!
//! CubeCL tells an observer of each launch and lets the device write down when it began and ended
//! ([`TimingRequest::Deferred`]); nothing waits until the times are read. Where nobody watches, a launch
//! costs one read of a flag. What waits for the device, and copies from and to it, are no launches.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use burn_cubecl::cubecl::future::block_on;
use burn_cubecl::cubecl::logging::{
    LaunchObservation, LaunchObserver, ProfileDuration, TimingMethod, TimingRequest,
};

use crate::cuts::without_modules;

/// Kernels that are kept at most.
const MOST: usize = 200_000;
/// How far before the watch the clock of a device may have begun: a year.
const BEFORE: Duration = Duration::from_secs(365 * 86_400);

static WATCHED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// What the launch in hand does, as far as this crate launches it.
    static WORK: RefCell<Option<LaunchedWork>> = const { RefCell::new(None) };
    /// When this thread launched last.
    static LAUNCHED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// What a kernel of this crate does.
#[derive(Clone, Debug, PartialEq)]
pub struct LaunchedWork {
    /// Its name.
    pub name: &'static str,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// Additions and multiplications.
    pub operations: f64,
    /// Bytes that it reads and writes at least.
    pub bytes: f64,
    /// Whether it stores numbers in bf16.
    pub bf16: bool,
}

/// A kernel that was launched on a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Launched {
    /// Name of the kernel in its source.
    pub name: String,
    /// What it does; `None` for those of others.
    pub work: Option<LaunchedWork>,
    /// When the host launched it.
    pub at: Instant,
    /// When it ran; `None` where that was not measured.
    pub ran: Option<LaunchedRun>,
}

/// When a kernel ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchedRun {
    /// Since a moment that is the same for all kernels of a watch.
    pub begin: Duration,
    /// How long.
    pub duration: Duration,
    /// Measured by the device; else by a host that waited for it.
    pub by_device: bool,
}

/// Watches all launches of this process until it ends.
#[derive(Debug)]
pub struct LaunchWatch {
    kept: Arc<Kept>,
    observation: LaunchObservation,
    origin: Instant,
}

impl LaunchWatch {
    /// Begins to watch. One watch at a time: a second one takes the launches of the first.
    pub fn start() -> Self {
        let kept = Arc::new(Kept::default());
        let observation = LaunchObservation::new(kept.clone());
        WATCHED.store(true, Ordering::Relaxed);
        let now = Instant::now();
        Self { kept, observation, origin: now.checked_sub(BEFORE).unwrap_or(now) }
    }

    /// Ends, waits for what was launched, and returns it in the order of the launches.
    pub fn end(self) -> Vec<Launched> {
        WATCHED.store(false, Ordering::Relaxed);
        drop(self.observation);
        let kept = std::mem::take(&mut *self.kept.launches());
        kept.into_iter().map(|kept| kept.read(self.origin)).collect()
    }
}

/// A launch whose times are still with the device.
struct Unread {
    name: &'static str,
    work: Option<LaunchedWork>,
    at: Instant,
    measured: Option<ProfileDuration>,
}

impl Unread {
    fn read(self, origin: Instant) -> Launched {
        let ran = self.measured.and_then(|measured| {
            let by_device = measured.timing_method() == TimingMethod::Device;
            let ticks = block_on(measured.resolve())?;
            let (begin, duration) = (ticks.start_duration_since(origin), ticks.duration());
            Some(LaunchedRun { begin, duration, by_device })
        });
        Launched { name: without_modules(self.name), work: self.work, at: self.at, ran }
    }
}

#[derive(Default)]
struct Kept(Mutex<Vec<Unread>>);

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Kept").field(&self.launches().len()).finish()
    }
}

impl Kept {
    fn launches(&self) -> MutexGuard<'_, Vec<Unread>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, name: &'static str, measured: Option<ProfileDuration>) {
        let mut launches = self.launches();
        if launches.len() < MOST {
            let at = LAUNCHED.take().unwrap_or_else(Instant::now);
            let work = WORK.with_borrow(Clone::clone);
            launches.push(Unread { name, work, at, measured });
        }
    }
}

impl LaunchObserver for Kept {
    fn launched(&self, _: &'static str) {
        LAUNCHED.set(Some(Instant::now()));
    }

    fn timing(&self) -> TimingRequest {
        TimingRequest::Deferred
    }

    fn profiled(&self, name: &'static str, profile: ProfileDuration) {
        self.keep(name, Some(profile));
    }

    // CubeCL's own logger reads the times, if it is on, and tells nothing but their length.
    fn timed(&self, name: &'static str, _: Duration, _: TimingMethod) {
        self.keep(name, None);
    }
}

/// Launches something, and tells whoever watches what it does.
pub(super) fn launching<T>(work: impl FnOnce() -> LaunchedWork, launch: impl FnOnce() -> T) -> T {
    if !WATCHED.load(Ordering::Relaxed) {
        return launch();
    }
    let before = WORK.replace(Some(work()));
    let result = launch();
    WORK.set(before);
    result
}
