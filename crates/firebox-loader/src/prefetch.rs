//! Background threads that fill batches ahead of time, in order.
//!
//! The consumer hands out jobs, a bounded number ahead of what it has taken; any thread takes the
//! next one. Results come back in any order and wait in a small map for their turn.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::fill::{Filled, fill};
use crate::{LoadError, Source};

/// The samples of each batch of an epoch.
pub(crate) type Indices = Arc<dyn Fn(u64) -> Vec<usize> + Send + Sync>;

/// Batches in order, filled here or by threads.
pub(crate) struct Prefetch {
    source: Arc<dyn Source>,
    indices: Indices,
    /// Batches that are still to be delivered.
    batches: Range<u64>,
    /// The next batch that no thread has been given.
    next_job: u64,
    threads: Option<Threads>,
    stop: Arc<AtomicBool>,
}

struct Threads {
    /// Dropped to tell the threads that there are no more jobs.
    jobs: Option<Sender<u64>>,
    results: Receiver<(u64, Result<Filled, LoadError>)>,
    waiting: BTreeMap<u64, Result<Filled, LoadError>>,
    handles: Vec<JoinHandle<()>>,
}

impl Prefetch {
    /// Starts `workers` threads that work up to `ahead` batches ahead. Without workers, each batch
    /// is filled when it is asked for.
    pub(crate) fn start(
        source: Arc<dyn Source>,
        indices: Indices,
        batches: Range<u64>,
        workers: usize,
        ahead: usize,
    ) -> Result<Self, LoadError> {
        let stop = Arc::new(AtomicBool::new(false));
        let next_job = batches.start;
        let count = batches.end.saturating_sub(batches.start);
        let workers = workers.min(usize::try_from(count).unwrap_or(usize::MAX));
        let mut prefetch = Self { source, indices, batches, next_job, threads: None, stop };
        if workers > 0 {
            prefetch.spawn(workers)?;
            // Each thread needs a batch to work on, whatever `ahead` says.
            for _ in 0..ahead.max(workers) {
                prefetch.give_job();
            }
        }
        Ok(prefetch)
    }

    fn spawn(&mut self, workers: usize) -> Result<(), LoadError> {
        let (jobs, todo) = unbounded::<u64>();
        let (done, results) = unbounded();
        let threads = self.threads.insert(Threads {
            jobs: Some(jobs),
            results,
            waiting: BTreeMap::new(),
            handles: Vec::with_capacity(workers),
        });
        for worker in 0..workers {
            let (todo, done) = (todo.clone(), done.clone());
            let (source, indices) = (Arc::clone(&self.source), Arc::clone(&self.indices));
            let stop = Arc::clone(&self.stop);
            let work = move || {
                for batch in todo {
                    let Some(filled) = fill(source.as_ref(), indices(batch), &stop) else { return };
                    if done.send((batch, filled)).is_err() {
                        return;
                    }
                }
            };
            let thread = thread::Builder::new().name(format!("firebox-loader-{worker}"));
            threads.handles.push(thread.spawn(work).map_err(LoadError::Thread)?);
        }
        Ok(())
    }

    /// Hands out the next batch, if there is one left.
    fn give_job(&mut self) {
        let Some(jobs) = self.threads.as_ref().and_then(|threads| threads.jobs.as_ref()) else {
            return;
        };
        // Threads that have gone are found out about when their results are missed.
        if self.next_job < self.batches.end && jobs.send(self.next_job).is_ok() {
            self.next_job += 1;
        }
    }

    /// Batches that are still to be delivered.
    pub(crate) fn remaining(&self) -> u64 {
        self.batches.end.saturating_sub(self.batches.start)
    }

    /// The next batch and its number. After an error there is none.
    pub(crate) fn next(&mut self) -> Option<(u64, Result<Filled, LoadError>)> {
        let batch = self.batches.next()?;
        let filled = match &mut self.threads {
            None => {
                let indices = (self.indices)(batch);
                fill(self.source.as_ref(), indices, &self.stop)?
            }
            Some(threads) => threads.take(batch),
        };
        match &filled {
            Ok(_) => self.give_job(),
            Err(_) => self.end(),
        }
        Some((batch, filled))
    }

    /// Stops and waits for the threads: at most as long as each needs for the sample at hand.
    fn end(&mut self) {
        self.batches.start = self.batches.end;
        self.stop.store(true, Ordering::Relaxed);
        if let Some(mut threads) = self.threads.take() {
            threads.jobs = None;
            for handle in threads.handles {
                // Threads catch the panics of sources; there is nobody left to tell of another.
                let _ = handle.join();
            }
        }
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.end();
    }
}

impl Threads {
    fn take(&mut self, batch: u64) -> Result<Filled, LoadError> {
        loop {
            if let Some(filled) = self.waiting.remove(&batch) {
                return filled;
            }
            match self.results.recv() {
                Ok((number, filled)) => {
                    self.waiting.insert(number, filled);
                }
                Err(_) => return Err(LoadError::Lost(batch)),
            }
        }
    }
}
