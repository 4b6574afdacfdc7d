//! Trackers: each gets the events of a run through a bounded queue, in a thread of its own.
//!
//! The training loop only puts an event into a queue. A tracker that fails stops listening and is
//! said to have failed once; one that cannot keep up loses events, which are counted.

mod histogram;
mod hparams;
mod layout;
mod mlflow;
mod mlflow_files;
mod mlflow_server;
mod png;
mod points;
mod prometheus;
mod protobuf;
mod tensorboard;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use firebox_core::{Event, Listener};

use crate::MonitorConfig;

/// Time between two moments at which a tracker takes what is in its queue and writes it. To be woken
/// for each event would cost more than all else that it does.
const FLUSH: Duration = Duration::from_secs(2);
/// Time that the end of a run waits for the trackers, all together.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The run that trackers are told of.
#[derive(Clone, Debug)]
pub struct TrackedRun {
    /// Its name.
    pub name: String,
    /// Its folder.
    pub folder: PathBuf,
    /// Its settings with every default.
    pub settings: serde_json::Value,
}

/// A picture of few colours, for trackers that show pictures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Its name, such as `test/masked window 1`.
    pub name: String,
    /// Pixels of a row, at least 1.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Red, green and blue of each colour, 256 at most.
    pub palette: Vec<[u8; 3]>,
    /// Rows of pixels, each an index into the palette.
    pub pixels: Vec<u8>,
}

/// What a tracker is told.
enum Told {
    Event(Event),
    Picture(Arc<Picture>),
}

/// Why a tracker cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TrackError {
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{address} does not answer: {reason}")]
    Gone { address: String, reason: String },
    #[error("{address} answers with status {status}: {meaning}{said}")]
    Failing { address: String, status: u16, meaning: &'static str, said: String },
    #[error("{address} refuses: {reason}")]
    Refused { address: String, reason: String },
    #[error("port {port} of 127.0.0.1 cannot be listened on: {source}")]
    Port { port: u16, source: std::io::Error },
}

/// Names the path in an error of the file system.
pub(crate) fn at(path: &Path) -> impl Fn(std::io::Error) -> TrackError {
    let path = path.to_path_buf();
    move |source| TrackError::Write { path: path.clone(), source }
}

/// One tracker, in its thread.
pub(crate) trait Track {
    /// Takes an event with its time, milliseconds since 1970 UTC.
    fn take(&mut self, time: u64, event: &Event) -> Result<(), TrackError>;

    /// Takes a picture; most trackers have no place for one.
    fn picture(&mut self, _: u64, _: &Picture) -> Result<(), TrackError> {
        Ok(())
    }

    /// Puts what was collected where it belongs; called each [`FLUSH`].
    fn flush(&mut self) -> Result<(), TrackError>;

    /// Does what cannot wait for events; called each [`Track::pause`].
    fn look(&mut self) {}

    /// Time between two looks.
    fn pause(&self) -> Duration {
        FLUSH
    }

    /// Ends the run.
    fn close(&mut self, time: u64, ending: Ending) -> Result<(), TrackError>;
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With a result.
    Finished,
    /// As it was asked to; it can go on.
    Interrupted,
    /// With an error.
    Failed,
}

/// Every tracker that the settings ask for.
#[derive(Default)]
pub struct Trackers {
    /// Emptied by the end of the run.
    all: Mutex<Vec<Tracker>>,
    warnings: Arc<Warnings>,
}

/// What is to be said once.
#[derive(Default)]
struct Warnings {
    count: AtomicU64,
    texts: Mutex<Vec<String>>,
}

impl Warnings {
    fn add(&self, text: String) {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner).push(text);
        self.count.fetch_add(1, Ordering::Release);
    }

    fn take(&self) -> Vec<String> {
        if self.count.load(Ordering::Acquire) == 0 {
            return vec![];
        }
        let mut texts = self.texts.lock().unwrap_or_else(PoisonError::into_inner);
        self.count.store(0, Ordering::Release);
        std::mem::take(&mut texts)
    }
}

/// What a tracker is known to have written.
#[derive(Default)]
struct Delivered {
    events: AtomicU64,
    /// Steps taken until then.
    step: AtomicU64,
}

impl Delivered {
    fn is(&self, events: u64, step: u64) {
        self.step.store(step, Ordering::Relaxed);
        self.events.store(events, Ordering::Release);
    }

    /// What whoever looks there will not find.
    fn missing(&self) -> String {
        match (self.events.load(Ordering::Acquire), self.step.load(Ordering::Relaxed)) {
            (0, _) => "nothing is tracked there".to_owned(),
            (_, 0) => "no step is tracked there".to_owned(),
            (_, step) => format!("what came after step {step} is missing there"),
        }
    }
}

/// Events in a queue, about.
struct Waiting {
    count: AtomicUsize,
    /// So many wake the tracker early.
    most: usize,
}

struct Tracker {
    name: &'static str,
    delivered: Arc<Delivered>,
    queue: SyncSender<(u64, Told)>,
    waiting: Arc<Waiting>,
    lost: AtomicU64,
    /// Returns whether it failed.
    thread: JoinHandle<bool>,
}

impl Trackers {
    /// Starts the trackers. One that cannot start is said so like one that fails later.
    pub fn start(config: &MonitorConfig, run: &TrackedRun) -> Self {
        let trackers = Self::default();
        if let Some(settings) = config.tensorboard.clone() {
            let run = run.clone();
            trackers.add("TensorBoard", config.queue, move || {
                Ok(Box::new(tensorboard::TensorBoard::open(&settings, run)?))
            });
        }
        if let Some(settings) = config.mlflow.clone() {
            let run = run.clone();
            trackers.add("MLflow", config.queue, move || {
                Ok(Box::new(mlflow::Mlflow::open(&settings, run)?))
            });
        }
        if let Some(settings) = config.prometheus {
            let run = run.clone();
            trackers.add("Prometheus", config.queue, move || {
                Ok(Box::new(prometheus::Prometheus::open(settings, run)?))
            });
        }
        trackers
    }

    fn add(
        &self,
        name: &'static str,
        queue: usize,
        open: impl FnOnce() -> Result<Box<dyn Track>, TrackError> + Send + 'static,
    ) {
        let (sender, events) = sync_channel(queue);
        let warnings = Arc::clone(&self.warnings);
        let delivered = Arc::new(Delivered::default());
        let waiting = Arc::new(Waiting { count: AtomicUsize::new(0), most: (queue / 2).max(1) });
        let (known, counted) = (Arc::clone(&delivered), Arc::clone(&waiting));
        let body = move || {
            let Err(error) = listen(open, &events, &counted, &known) else { return false };
            let what = known.missing();
            warnings.add(format!("{name}: {error}; training goes on, and {what}"));
            true
        };
        match Builder::new().name(name.to_owned()).spawn(body) {
            Ok(thread) => {
                let lost = AtomicU64::new(0);
                let queue = sender;
                self.trackers().push(Tracker { name, delivered, queue, waiting, lost, thread });
            }
            Err(error) => {
                let what = "nothing is tracked there";
                self.warnings.add(format!("{name}: no thread for it: {error}; {what}"));
            }
        }
    }

    fn trackers(&self) -> MutexGuard<'_, Vec<Tracker>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells every tracker that shows pictures of one. It is as far as the run is.
    pub fn picture(&self, picture: Picture) {
        let picture = Arc::new(picture);
        self.tell(|| Told::Picture(Arc::clone(&picture)));
    }

    fn tell(&self, told: impl Fn() -> Told) {
        let time = now();
        for tracker in self.trackers().iter() {
            let Waiting { count, most } = &*tracker.waiting;
            match tracker.queue.try_send((time, told())) {
                Ok(()) if count.fetch_add(1, Ordering::Relaxed) + 1 == *most => {
                    tracker.thread.thread().unpark();
                }
                Err(TrySendError::Full(_)) => {
                    tracker.lost.fetch_add(1, Ordering::Relaxed);
                }
                // A tracker that has failed said so.
                Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            }
        }
    }

    /// What is to be said since this was asked before. Costs a memory access if that is nothing.
    pub fn warnings(&self) -> Vec<String> {
        self.warnings.take()
    }

    /// Ends the trackers, waits a while until they have written what they were told, and returns
    /// what is to be said of them.
    pub fn close(&self) -> Vec<String> {
        let until = Instant::now() + LAST_WORDS;
        for tracker in self.trackers().drain(..) {
            if let Some(said) = tracker.close(until) {
                self.warnings.add(said);
            }
        }
        self.warnings.take()
    }
}

impl Tracker {
    /// Lets it end until a moment, and returns what it has lost, unless it said so itself.
    fn close(self, until: Instant) -> Option<String> {
        let Self { name, delivered, queue, lost, thread, .. } = self;
        drop(queue);
        thread.thread().unpark();
        while !thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        if !thread.is_finished() {
            let waited = LAST_WORDS.as_secs();
            let what = delivered.missing();
            return Some(format!(
                "{name} had not taken everything {waited} s after the run, and is not waited for: {what}"
            ));
        }
        match (thread.join(), lost.into_inner()) {
            (Err(_), _) => {
                Some(format!("{name} failed by a defect of its own; training was not touched"))
            }
            (Ok(true), _) | (Ok(false), 0) => None,
            (Ok(false), left) => Some(format!(
                "{name} could not keep up: {left} events are not tracked there; raise `monitor.queue`, or write fewer points with its key `every`"
            )),
        }
    }
}

impl Drop for Trackers {
    /// A run that failed ends its trackers too; its error is what is said of it.
    fn drop(&mut self) {
        self.close();
    }
}

impl Listener for Trackers {
    fn on(&self, event: &Event) {
        if matches!(event, Event::Progress { .. }) {
            return;
        }
        self.tell(|| Told::Event(event.clone()));
    }
}

/// Milliseconds since 1970 UTC.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}

/// The life of a tracker: until the run drops the queue, or something cannot be written.
fn listen(
    open: impl FnOnce() -> Result<Box<dyn Track>, TrackError>,
    events: &Receiver<(u64, Told)>,
    waiting: &Waiting,
    delivered: &Delivered,
) -> Result<(), TrackError> {
    let mut tracker = open()?;
    let (mut flushed, mut ending) = (Instant::now(), Ending::Failed);
    let (mut taken, mut last, mut empty) = (0, 0, false);
    loop {
        match events.try_recv() {
            Ok((time, Told::Picture(picture))) => tracker.picture(time, &picture)?,
            Ok((time, Told::Event(event))) => {
                tracker.take(time, &event)?;
                taken += 1;
                match event {
                    Event::Step { step, .. } => last = step,
                    Event::RunFinished { outcome, .. } if outcome == "interrupted" => {
                        ending = Ending::Interrupted;
                    }
                    Event::RunFinished { outcome, .. } if outcome.starts_with("failed") => {
                        ending = Ending::Failed;
                    }
                    Event::RunFinished { .. } => ending = Ending::Finished,
                    _ => {}
                }
            }
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {
                waiting.count.store(0, Ordering::Relaxed);
                tracker.look();
                empty = true;
            }
        }
        // A queue that never gets empty is written all the same.
        if flushed.elapsed() >= if empty { FLUSH } else { 2 * FLUSH } {
            tracker.flush()?;
            flushed = Instant::now();
            delivered.is(taken, last);
        }
        if std::mem::take(&mut empty) {
            let pause = FLUSH.saturating_sub(flushed.elapsed()).min(tracker.pause());
            std::thread::park_timeout(pause);
        }
    }
    tracker.close(now(), ending)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Does this with each event, and nothing else.
    struct Each<F>(F);

    impl<F: FnMut() -> Result<(), TrackError>> Track for Each<F> {
        fn take(&mut self, _: u64, _: &Event) -> Result<(), TrackError> {
            (self.0)()
        }

        fn flush(&mut self) -> Result<(), TrackError> {
            Ok(())
        }

        fn close(&mut self, _: u64, _: Ending) -> Result<(), TrackError> {
            Ok(())
        }
    }

    fn slow() -> Result<(), TrackError> {
        std::thread::sleep(Duration::from_millis(20));
        Ok(())
    }

    #[test]
    fn a_tracker_that_fails_is_said_once_with_what_it_lost() {
        let trackers = Trackers::default();
        let mut events = 0;
        let take = move || {
            events += 1;
            match events {
                0..=2 => Ok(()),
                _ => Err(at(Path::new("/full/disk"))(std::io::ErrorKind::StorageFull.into())),
            }
        };
        trackers.add("Broken", 8, move || Ok(Box::new(Each(take))));
        for step in 1..=50 {
            trackers.on(&crate::testing::step(step, 1.0));
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut said = trackers.warnings();
        said.extend(trackers.close());
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("Broken: cannot write /full/disk"), "{said:?}");
        assert!(said[0].ends_with("training goes on, and nothing is tracked there"), "{said:?}");
    }

    #[test]
    fn a_tracker_that_is_slow_never_holds_the_run_up_and_its_loss_is_counted() {
        let trackers = Trackers::default();
        trackers.add("Slow", 4, || Ok(Box::new(Each(slow))));
        let start = Instant::now();
        (1..=1000).for_each(|step| trackers.on(&crate::testing::step(step, 1.0)));
        // Waiting for each would take 20 s.
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        let said = trackers.close();
        assert_eq!(said.len(), 1, "{said:?}");
        let lost = said[0].split_once("Slow could not keep up: ").expect("it is said").1;
        let lost: u64 = lost.split(' ').next().unwrap().parse().unwrap();
        assert!((700..1000).contains(&lost), "{said:?}");
    }

    #[test]
    fn a_queue_that_fills_is_emptied_before_it_is_full() {
        let taken = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&taken);
        let take = move || {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        let trackers = Trackers::default();
        trackers.add("Counting", 64, move || Ok(Box::new(Each(take))));
        let start = Instant::now();
        // Batches of half the queue, each once the one before is taken: every one would else wait for
        // its flush.
        for batch in 1..=10 {
            (0..32).for_each(|step| trackers.on(&crate::testing::step(step, 1.0)));
            while taken.load(Ordering::Relaxed) < 32 * batch && start.elapsed() < 5 * FLUSH {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert_eq!(taken.load(Ordering::Relaxed), 320);
        assert!(start.elapsed() < 5 * FLUSH, "{:?}", start.elapsed());
        assert!(trackers.close().is_empty());
    }

    #[test]
    fn a_tracker_that_hangs_is_left_and_what_it_lacks_is_said() {
        let start = Instant::now();
        let trackers = Trackers::default();
        trackers.add("Hanging", 8, || {
            std::thread::sleep(Duration::from_secs(3600));
            Ok(Box::new(Each(slow)))
        });
        trackers.on(&crate::testing::step(1, 1.0));
        let said = trackers.close();
        assert!(start.elapsed() < 2 * LAST_WORDS, "{:?}", start.elapsed());
        let expected = "5 s after the run, and is not waited for: nothing is tracked there";
        assert!(said.len() == 1 && said[0].ends_with(expected), "{said:?}");
    }

    #[test]
    fn what_is_missing_is_what_was_not_delivered() {
        let delivered = Delivered::default();
        delivered.is(3, 0);
        assert_eq!(delivered.missing(), "no step is tracked there");
        delivered.is(40, 30);
        assert_eq!(delivered.missing(), "what came after step 30 is missing there");
    }

    #[test]
    fn no_tracker_costs_nothing_and_says_nothing() {
        let run = TrackedRun { name: "r".to_owned(), folder: "r".into(), settings: ().into() };
        let trackers = Trackers::start(&MonitorConfig::default(), &run);
        trackers.on(&crate::testing::step(1, 1.0));
        assert!(trackers.warnings().is_empty() && trackers.close().is_empty());
    }
}
