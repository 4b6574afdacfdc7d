//! Background threads that fill batches ahead of time, in order, over the ends of epochs.
//!
//! The consumer hands out jobs, a bounded number ahead of what it has taken; any thread takes the
//! next one. Results come back in any order and wait in a small map for their turn. A consumer that
//! would stand still takes a job, too, unless samples may take long.

use std::collections::BTreeMap;
use std::error::Error;
use std::iter;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use burn::tensor::Device;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use firebox_core::new_thread;

use crate::fill::{Filled, fill, message};
use crate::order::Plan;
use crate::recycle::Buffers;
use crate::{LoadError, LoaderConfig, Position, Source};

/// Time after which a failure is told before its turn. Until then the batches before it are
/// delivered, so that short runs fail at the same step every time.
pub(crate) const PATIENCE: Duration = Duration::from_millis(250);
/// Time that threads have to end. With [`PATIENCE`] it is below the second within which a failure ends a run.
pub(crate) const LEAVING: Duration = Duration::from_millis(500);

/// Batches in order, filled here or by threads.
pub(crate) struct Prefetch {
    filler: Filler,
    /// The next batch to be delivered.
    next: Position,
    /// The next batch that no thread has been given.
    next_job: Position,
    /// Where the batches end; none where epoch follows on epoch.
    end: Option<Position>,
    threads: Option<Threads>,
}

/// What it takes to fill a batch, on whichever thread.
#[derive(Clone)]
struct Filler {
    source: Arc<dyn Source>,
    plan: Arc<Plan>,
    buffers: Buffers,
    stop: Arc<AtomicBool>,
    alarm: Option<Alarm>,
}

/// What whoever trains hears of threads.
#[derive(Clone)]
pub(crate) struct Alarm {
    /// Where a thread says at once why it has no batch, whenever its turn comes.
    pub(crate) failed: Sender<String>,
    /// Threads that the system refused since that was last asked.
    pub(crate) refused: Arc<AtomicUsize>,
}

/// A batch, and when it was done.
struct Done {
    position: Position,
    at: Instant,
    filled: Result<Filled, LoadError>,
}

impl Done {
    /// A batch that was left, because nobody will take it.
    fn lost(position: Position) -> Self {
        Self { position, at: Instant::now(), filled: Err(LoadError::Lost(position.batch)) }
    }
}

struct Threads {
    /// Dropped to tell the threads that there are no more jobs.
    jobs: Option<Sender<Position>>,
    /// Jobs that nobody has begun.
    todo: Receiver<Position>,
    results: Receiver<Done>,
    waiting: BTreeMap<Position, Result<Filled, LoadError>>,
    /// The first batch that failed, and when.
    failed: Option<(Position, Instant)>,
    handles: Vec<JoinHandle<()>>,
}

impl Prefetch {
    /// Starts the threads of `config`, which work up to [`LoaderConfig::prefetch`] batches ahead, from `start` on.
    /// Without workers, each batch is filled when it is asked for: also where the system gives memory for the stack of
    /// none. `device` is where batches go.
    pub(crate) fn start(
        source: Arc<dyn Source>,
        plan: Arc<Plan>,
        [start, end]: [Position; 2],
        endless: bool,
        config: &LoaderConfig,
        device: &Device,
        alarm: Option<Alarm>,
    ) -> Self {
        let &LoaderConfig { workers, prefetch: ahead, upload_ahead, pin, .. } = config;
        let stop = Arc::new(AtomicBool::new(false));
        let workers = match start < end {
            true if endless => workers,
            true => workers.min(usize::try_from(end.batch - start.batch).unwrap_or(usize::MAX)),
            false => 0,
        };
        let end = (!endless).then_some(end);
        // Those that wait, those that are being filled, and those that the device or the caller has: it gives back
        // pinned memory a batch later.
        let most = ahead.max(workers) + 2 + upload_ahead + usize::from(pin);
        let buffers = if pin { Buffers::pinned(most, device.clone()) } else { Buffers::new(most) };
        let filler = Filler { source, plan, buffers, stop, alarm };
        let mut prefetch = Self { filler, next: start, next_job: start, end, threads: None };
        if workers > 0 {
            prefetch.spawn(workers);
            // Each thread needs a batch to work on, whatever `ahead` says.
            for _ in 0..ahead.max(workers) {
                prefetch.give_job();
            }
        }
        prefetch
    }

    /// Starts as many threads as the system gives.
    fn spawn(&mut self, workers: usize) {
        let (jobs, todo) = unbounded::<Position>();
        let (done, results) = unbounded();
        let threads = self.threads.insert(Threads {
            jobs: Some(jobs),
            todo: todo.clone(),
            results,
            waiting: BTreeMap::new(),
            failed: None,
            handles: Vec::with_capacity(workers),
        });
        for worker in 0..workers {
            let (todo, done) = (todo.clone(), done.clone());
            let filler = self.filler.clone();
            let work = move || {
                for position in todo {
                    let (filled, stopped) = match filler.fill(position) {
                        Some(filled) => (filled, false),
                        // Whoever waits for it elsewhere must not wait for ever.
                        None => (Done::lost(position), true),
                    };
                    if done.send(filled).is_err() || stopped {
                        return;
                    }
                }
            };
            let thread = new_thread(format!("firebox-loader-{worker}"));
            match thread.and_then(|thread| thread.spawn(work)) {
                Ok(handle) => threads.handles.push(handle),
                // What is refused to this one is refused to the next.
                Err(_) => break,
            }
        }
        let there = threads.handles.len();
        if there == 0 {
            self.threads = None;
        }
        self.refused(workers - there);
    }

    /// Counts threads that could not be had.
    pub(crate) fn refused(&self, threads: usize) {
        if let Some(alarm) = &self.filler.alarm {
            alarm.refused.fetch_add(threads, Ordering::Relaxed);
        }
    }

    /// Hands out the next batch, if there is one left.
    fn give_job(&mut self) {
        let Some(jobs) = self.threads.as_ref().and_then(|threads| threads.jobs.as_ref()) else {
            return;
        };
        // Threads that have gone are found out about when their results are missed.
        if self.end.is_none_or(|end| self.next_job < end) && jobs.send(self.next_job).is_ok() {
            self.next_job = self.filler.plan.after(self.next_job);
        }
    }

    /// The memory of batches.
    pub(crate) fn buffers(&self) -> Buffers {
        self.filler.buffers.clone()
    }

    /// Set to make the threads leave what they do.
    pub(crate) fn stop(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.filler.stop)
    }

    /// A failure that is old enough to be told before its turn.
    pub(crate) fn failure(&mut self) -> Option<LoadError> {
        let error = self.threads.as_mut()?.failure()?;
        self.finish();
        Some(error)
    }

    /// The batch that is delivered next.
    pub(crate) fn position(&self) -> Position {
        self.next
    }

    /// The next batch. After an error there is none.
    pub(crate) fn next(&mut self) -> Option<Result<Filled, LoadError>> {
        if self.end.is_some_and(|end| self.next >= end) {
            return None;
        }
        let filled = match &mut self.threads {
            None => {
                let Filler { source, plan, buffers, stop, .. } = &self.filler;
                fill(source.as_ref(), plan, buffers, self.next, stop)?
            }
            Some(threads) => threads.take(self.next, &self.filler),
        };
        self.next = self.filler.plan.after(self.next);
        match &filled {
            Ok(_) => self.give_job(),
            Err(_) => self.finish(),
        }
        Some(filled)
    }

    /// Whether the next batch, of which there must be one, or what is to be said instead of it, is there or would be made by
    /// the caller. Waits for it no longer than this.
    pub(crate) fn is_ready_within(&mut self, time: Duration) -> bool {
        let (next, quick) = (self.next, self.filler.is_quick());
        self.threads.as_mut().is_none_or(|threads| threads.is_ready_within(next, quick, time))
    }

    /// Stops and waits for the threads, as long as each needs for the samples at hand, but no longer than [`LEAVING`].
    /// One that still waits then, as for a disk that does not answer, is left behind with what it holds.
    fn finish(&mut self) {
        self.end = Some(Position::START);
        self.filler.stop.store(true, Ordering::Relaxed);
        if let Some(mut threads) = self.threads.take() {
            threads.jobs = None;
            let until = Instant::now() + LEAVING;
            for handle in threads.handles {
                join_until(handle, until);
            }
        }
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.finish();
    }
}

/// An error with its causes.
fn with_causes(error: &LoadError) -> String {
    let causes = iter::successors(error.source(), |error| (*error).source());
    causes.fold(error.to_string(), |said, cause| format!("{said}: {cause}"))
}

/// Waits for a thread to end, until this moment. Threads of a loader catch every panic; there is nobody left to tell of
/// another.
pub(crate) fn join_until(thread: JoinHandle<()>, until: Instant) {
    while !thread.is_finished() {
        if Instant::now() >= until {
            return;
        }
        thread::sleep(Duration::from_micros(200));
    }
    let _ = thread.join();
}

impl Filler {
    /// The batch at a position; none if it was stopped meanwhile. A panic is its error, because a batch
    /// that is never delivered would be waited for without end.
    fn fill(&self, position: Position) -> Option<Done> {
        let Self { source, plan, buffers, stop, alarm } = self;
        let work = || fill(source.as_ref(), plan, buffers, position, stop);
        let filled = match catch_unwind(AssertUnwindSafe(work)) {
            Ok(filled) => filled?,
            Err(panic) => {
                let message = message(panic.as_ref());
                Err(LoadError::Worker { batch: position.batch, message })
            }
        };
        if let (Err(error), Some(alarm)) = (&filled, alarm) {
            // Nobody may be left to be told.
            let _ = alarm.failed.send(with_causes(error));
        }
        Some(Done { position, at: Instant::now(), filled })
    }

    /// Whether no group of samples takes long, so that whoever waits for a batch can fill one.
    fn is_quick(&self) -> bool {
        self.source.at_once() > 1
    }
}

impl Threads {
    fn take(&mut self, position: Position, filler: &Filler) -> Result<Filled, LoadError> {
        loop {
            if let Some(error) = self.failure() {
                return Err(error);
            }
            if let Some(filled) = self.waiting.remove(&position) {
                return filled;
            }
            if self.failed.is_none()
                && filler.is_quick()
                && let Ok(job) = self.todo.try_recv()
            {
                // What was stopped is not gone on with.
                let done = filler.fill(job).ok_or(LoadError::Lost(position.batch))?;
                self.keep(done);
                continue;
            }
            let next = match self.failed {
                None => self.results.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some((_, at)) => self.results.recv_timeout(PATIENCE.saturating_sub(at.elapsed())),
            };
            match next {
                Ok(done) => self.keep(done),
                // The failure is told now.
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(LoadError::Lost(position.batch)),
            }
        }
    }

    /// Whether the batch at a position, or what is to be said instead of it, comes within this time, or whoever asks for it
    /// fills one itself.
    fn is_ready_within(&mut self, position: Position, quick: bool, time: Duration) -> bool {
        let until = Instant::now() + time;
        loop {
            self.collect();
            let told = self.failed.is_some() || self.waiting.contains_key(&position);
            if told || (quick && !self.todo.is_empty()) {
                return true;
            }
            match self.results.recv_deadline(until) {
                Ok(done) => self.keep(done),
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => return true,
            }
        }
    }

    /// Whatever has come meanwhile, so that no failure lies unseen behind a batch.
    fn collect(&mut self) {
        while let Ok(done) = self.results.try_recv() {
            self.keep(done);
        }
    }

    /// The failure, if it has waited for long enough.
    fn failure(&mut self) -> Option<LoadError> {
        self.collect();
        let (failed, _) = self.failed.filter(|(_, at)| at.elapsed() >= PATIENCE)?;
        self.waiting.remove(&failed)?.err()
    }

    fn keep(&mut self, Done { position, at, filled }: Done) {
        if filled.is_err() && self.failed.is_none_or(|(first, _)| position < first) {
            self.failed = Some((position, at));
        }
        self.waiting.insert(position, filled);
    }
}
