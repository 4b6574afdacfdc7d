//! Handing batches to the device: when each is asked for, or ahead of the one in use, by a thread of its own.
//!
//! A device that has a queue for each thread copies the next batches while it computes with the one before, if they
//! are large enough for that to be worth the wait of one queue for the other.
//! Order, values and positions are those of the threads that fill batches (see `prefetch`).

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};
use burn_std::stream::{Stream, StreamId};
use crossbeam_channel::{Receiver, RecvTimeoutError, SendTimeoutError, Sender, bounded};
use firebox_core::new_thread;

use crate::fill::Filled;
use crate::prefetch::{LEAVING, PATIENCE, Prefetch, join_until};
use crate::recycle::Buffers;
use crate::{Batch, LoadError, LoaderConfig, Position};

/// Batches on the device, in order.
pub(crate) enum Uploads {
    /// Handed over when they are asked for.
    Here(Box<Prefetch>, Upload),
    /// Handed over by a thread.
    Ahead(Uploader),
}

/// The queue of devices that all large batches are copied in that are handed over ahead, whichever thread does: a
/// device keeps memory for each queue that it ever had, and threads have one each.
static QUEUE: LazyLock<Stream> = LazyLock::new(Stream::new);

/// Runs `f` in the queue of large batches that are handed over ahead.
pub(crate) fn in_queue<T>(f: impl FnOnce() -> T) -> T {
    QUEUE.enter(f)
}

/// Bytes up to which a batch is copied in the queue of whoever takes it, between two steps: 0.1 ms at the 25 GB/s of
/// 16 lanes of PCIe 4. From a queue of its own, the step would have to wait for the copy and the copy's memory for the
/// step, by two events and a thread of CubeCL's for each batch, behind which launches have been seen to stand still
/// for longer than a step of a small model takes (LOG.md, 2026-11-27).
const BESIDE_STEPS: usize = 2 << 20;

/// What it takes to hand a batch over.
#[derive(Clone)]
pub(crate) struct Upload {
    pub(crate) device: Device,
    /// Channels of a batch.
    pub(crate) channel: usize,
    /// Where batches are copied.
    queue: Queue,
}

/// Which queue of the device batches are copied in.
#[derive(Clone, Copy)]
enum Queue {
    /// That of the caller, between two steps.
    OfSteps(Stream),
    /// One of their own, beside the steps.
    Own,
}

impl Upload {
    /// How batches of up to so many values go to a device for the calling thread.
    pub(crate) fn new(
        device: Device,
        channel: usize,
        values: usize,
        &LoaderConfig { pin, upload_ahead, .. }: &LoaderConfig,
    ) -> Self {
        let small = values.saturating_mul(size_of::<f32>()) <= BESIDE_STEPS;
        // Memory that the device copies from by itself is that of the batches' own queue.
        let queue = match pin || (upload_ahead > 0 && !small) {
            true => Queue::Own,
            false => Queue::OfSteps(Stream::from_id(StreamId::current())),
        };
        Self { device, channel, queue }
    }

    /// The next batch of these threads, whose wait is not known here.
    fn next(&self, prefetch: &mut Prefetch) -> Option<Result<Batch, LoadError>> {
        let filled = prefetch.next()?;
        Some(filled.map(|filled| self.batch(filled, &prefetch.buffers(), prefetch.position())))
    }

    fn batch(&self, filled: Filled, buffers: &Buffers, next: Position) -> Batch {
        let ready = Instant::now();
        let Filled { values, steps, lengths, labels, indices, took } = filled;
        // As one run: rows of their own may be padded on the device, be copied one by one, and have to be put together there.
        let shape = [indices.len(), steps, self.channel];
        let data = buffers.lend(values, [shape.iter().product()]);
        let inputs = Tensor::<1>::from_data(data, &self.device).reshape(shape);
        // In the queue of the steps, a flush would wait for the step before.
        if let Queue::Own = self.queue {
            // The device gives memory back that it has copied, the batch before this one at the latest with the next
            // flush. By itself it would do so for 64 at a time, and pin new memory for each of the first 128. What is
            // wrong with it is told by whoever reads a result.
            let _ = self.device.flush();
        }
        let (wait, upload) = (Duration::ZERO, ready.elapsed());
        Batch { inputs, lengths, labels, indices, next, wait, upload, handed: upload, fill: took }
    }
}

impl Uploads {
    /// The batches of threads that fill them; with a thread that is up to `ahead` of them ahead, if that
    /// is not 0 and the system gives one.
    pub(crate) fn start(prefetch: Prefetch, upload: Upload, ahead: usize) -> Self {
        match ahead {
            0 => Self::Here(Box::new(prefetch), upload),
            _ => Uploader::start(prefetch, upload, ahead),
        }
    }

    /// The batch that is delivered next.
    pub(crate) fn position(&self) -> Position {
        match self {
            Self::Here(prefetch, _) => prefetch.position(),
            Self::Ahead(uploader) => uploader.next,
        }
    }

    /// Whether the next batch, of which there must be one, or what is to be said instead of it, is there or would be made by
    /// the caller. Waits for it no longer than this.
    pub(crate) fn is_ready_within(&mut self, time: Duration) -> bool {
        match self {
            Self::Here(prefetch, _) => prefetch.is_ready_within(time),
            Self::Ahead(uploader) => uploader.is_ready_within(time),
        }
    }

    /// The next batch. After an error there is none.
    pub(crate) fn next(&mut self) -> Option<Result<Batch, LoadError>> {
        let start = Instant::now();
        let batch = match self {
            Self::Here(prefetch, upload) => upload.next(prefetch)?,
            Self::Ahead(uploader) => uploader.next()?,
        };
        Some(batch.map(|batch| Batch { wait: start.elapsed(), ..batch }))
    }
}

/// A thread that hands batches over.
pub(crate) struct Uploader {
    ready: Receiver<Made>,
    /// What has come of it before it was asked for.
    come: Option<Made>,
    /// What is told before its turn.
    failed: Arc<Mutex<Option<LoadError>>>,
    /// The next batch to be delivered.
    next: Position,
    /// Tells the threads that fill batches to leave theirs.
    stop: Arc<AtomicBool>,
    handle: Option<JoinHandle<()>>,
}

/// What becomes of a batch; a panic is that of the device.
enum Made {
    Batch(Box<Batch>),
    Error(LoadError),
    Panic(Box<dyn Any + Send>),
}

impl Uploader {
    fn start(prefetch: Prefetch, upload: Upload, ahead: usize) -> Uploads {
        // One more is in the thread's hands.
        let (send, ready) = bounded(ahead.saturating_sub(1));
        let failed = Arc::<Mutex<Option<LoadError>>>::default();
        let (next, stop) = (prefetch.position(), prefetch.stop());
        let theirs = Arc::clone(&failed);
        // What it works with goes to it once it is there: without it, it stays here.
        let (hand, taken) = bounded::<(Prefetch, Upload)>(1);
        let work = move || {
            let Ok((prefetch, upload)) = taken.recv() else { return };
            let work = || hand_over(prefetch, &upload, &send, &theirs);
            match upload.queue {
                Queue::OfSteps(steps) => steps.enter(work),
                Queue::Own => in_queue(work),
            }
        };
        match new_thread("firebox-upload").and_then(|thread| thread.spawn(work)) {
            Ok(handle) => {
                // It waits for nothing else.
                let _ = hand.send((prefetch, upload));
                let handle = Some(handle);
                Uploads::Ahead(Self { ready, come: None, failed, next, stop, handle })
            }
            Err(_) => {
                prefetch.refused(1);
                Uploads::Here(Box::new(prefetch), upload)
            }
        }
    }

    fn is_ready_within(&mut self, time: Duration) -> bool {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if failed || self.come.is_some() {
            return true;
        }
        match self.ready.recv_timeout(time) {
            Ok(made) => {
                self.come = Some(made);
                true
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        }
    }

    fn next(&mut self) -> Option<Result<Batch, LoadError>> {
        let failed = || self.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(error) = failed() {
            return Some(Err(error));
        }
        match self.come.take().map_or_else(|| self.ready.recv(), Ok) {
            Ok(Made::Batch(batch)) => {
                self.next = batch.next;
                Some(Ok(*batch))
            }
            Ok(Made::Error(error)) => Some(Err(error)),
            Ok(Made::Panic(panic)) => resume_unwind(panic),
            Err(_) => failed().map(Err),
        }
    }
}

impl Drop for Uploader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The thread finds out at its next batch that nobody takes it.
        self.ready = crossbeam_channel::never();
        if let Some(handle) = self.handle.take() {
            join_until(handle, Instant::now() + 2 * LEAVING);
        }
    }
}

/// The thread's work: until the batches end, one fails, or nobody takes them.
fn hand_over(
    mut prefetch: Prefetch,
    upload: &Upload,
    ready: &Sender<Made>,
    failed: &Mutex<Option<LoadError>>,
) {
    loop {
        let next = catch_unwind(AssertUnwindSafe(|| upload.next(&mut prefetch)));
        let (mut made, last) = match next {
            Ok(None) => return,
            // Nobody stood still for it.
            Ok(Some(Ok(batch))) => {
                (Made::Batch(Box::new(Batch { upload: Duration::ZERO, ..batch })), false)
            }
            Ok(Some(Err(error))) => (Made::Error(error), true),
            Err(panic) => (Made::Panic(panic), true),
        };
        loop {
            made = match ready.send_timeout(made, PATIENCE) {
                Ok(()) => break,
                Err(SendTimeoutError::Disconnected(_)) => return,
                Err(SendTimeoutError::Timeout(made)) => made,
            };
            // Whoever computes with the batch before for long hears of a failure as soon as it asks.
            if let Some(error) = prefetch.failure() {
                *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                return;
            }
            if let Made::Error(error) = made {
                *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                return;
            }
        }
        if last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use firebox_core::with_threads;

    use super::*;
    use crate::{Sample, Source, TrainLoader, TrainSource};

    /// Samples of one step, which say their index.
    struct Indices;

    impl Source for Indices {
        fn len(&self) -> usize {
            20
        }

        fn shape(&self) -> [usize; 2] {
            [1, 1]
        }

        fn read(&self, index: usize, out: &mut [f32]) -> Result<Sample, LoadError> {
            out[0] = index as f32;
            Ok(Sample { length: 1, label: None })
        }

        fn classes(&self) -> &[String] {
            &[]
        }
    }

    impl TrainSource for Indices {}

    #[test]
    fn threads_that_the_system_refuses_are_done_without() {
        let loader = || {
            let config = LoaderConfig {
                batch_size: 3,
                workers: 3,
                upload_ahead: 2,
                ..LoaderConfig::default()
            };
            TrainLoader::new(Arc::new(Indices), config, Device::default()).unwrap()
        };
        let epoch = |loader: &TrainLoader| -> Vec<Vec<usize>> {
            loader.epoch(Position::START).map(|batch| batch.unwrap().indices).collect()
        };
        let whole = loader();
        let expected = epoch(&whole);
        assert_eq!((expected.len(), whole.refused_threads()), (7, 0));
        // Three that fill batches, and one that hands them over.
        for (given, refused) in [(0, 4), (1, 3), (3, 1), (4, 0)] {
            let few = loader();
            assert_eq!(with_threads(given, || epoch(&few)), expected, "{given} threads");
            assert_eq!([few.refused_threads(), few.refused_threads()], [refused, 0]);
        }
    }
}
