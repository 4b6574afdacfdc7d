//! Training steps that are watched as a run is: sampler, log, trackers, progress and the look for
//! requests; and what that costs.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use firebox_core::{Event, Listener, Requests};
use firebox_monitor::{
    MlflowConfig, MonitorConfig, PrometheusConfig, TensorBoardConfig, TrackedRun, Trackers,
    WatchGpus, obeying, sampled,
};
use serde::{Deserialize, Serialize};

use super::processor;
use crate::error::{PipelineError, at};
use crate::folder::RunFolder;

/// Names of the threads that watch, as Linux keeps them.
const THREADS: [&str; 5] = ["monitor", "TensorBoard", "MLflow", "Prometheus", "control"];

/// Time that the threads get to open what they write to, before the first step.
const OPENING: Duration = Duration::from_millis(300);

/// What watching cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Watching {
    /// Microseconds of each timed step for which the training loop stood still.
    pub loop_us: f64,
    /// Microseconds of processor time of the threads that watch, for each timed step; `None` where
    /// the system does not tell.
    pub threads_us: Option<f64>,
    /// Seconds of the timed steps, which both are means over.
    #[serde(default)]
    pub seconds: f64,
    /// Milliseconds before the first step, once a run: the processor time of the threads, which open
    /// everything and tell it of the settings, and the time that the run stood still for it.
    #[serde(default)]
    pub begin_ms: Option<f64>,
    /// Milliseconds of processor time after the last step: the histograms of one checkpoint were
    /// made, and everything was written and closed.
    #[serde(default)]
    pub end_ms: Option<f64>,
}

/// Steps that are watched.
pub(super) struct Followed<'a> {
    pub(super) progress: &'a dyn Listener,
    /// Counts the steps, besides.
    pub(super) own: &'a dyn Listener,
    /// Steps before those that count.
    pub(super) warmup: u64,
    /// Set by `own` with the last step.
    pub(super) stop: &'a AtomicBool,
}

/// What was spent until a step.
#[derive(Clone, Copy)]
struct Spent {
    at: Instant,
    steps: u64,
    on_the_loop: Duration,
    threads: Option<Duration>,
}

/// Does the work with sampler, log and every tracker on, the trackers in `folder`.
pub(super) fn watched<T>(
    folder: &Path,
    followed: &Followed<'_>,
    work: impl FnOnce(&dyn Listener) -> T,
) -> Result<(T, Watching), PipelineError> {
    let config = every_tracker(folder)?;
    // About as many as a pipeline has.
    let settings = (0..80).map(|place| (format!("table.key_{place}"), place.into()));
    let settings = serde_json::Value::Object(settings.collect());
    let run = TrackedRun { name: "bench".to_owned(), folder: folder.to_path_buf(), settings };
    let Followed { progress, own, warmup, stop } = *followed;
    let start = Instant::now();
    let trackers = Trackers::start(&config, &run);
    let log = RunFolder::open(&folder.join("log"))?.events()?;
    let begun = Event::RunStarted { run: run.name, device: String::new(), resumed_at_step: None };
    log.on(&begun);
    trackers.on(&begun);
    let opened = start.elapsed();
    let (nanoseconds, steps, marks) =
        (AtomicU64::new(0), AtomicU64::new(0), Mutex::new((None, None)));
    let spent = || Spent {
        at: Instant::now(),
        steps: steps.load(Ordering::Relaxed),
        on_the_loop: Duration::from_nanos(nanoseconds.load(Ordering::Relaxed)),
        threads: watchers(),
    };
    let everyone = |event: &Event| {
        let start = Instant::now();
        progress.on(event);
        log.on(event);
        trackers.on(event);
        // The sampler's thread tells events too; its time is among the threads'.
        if !matches!(event, Event::Machine(_)) {
            nanoseconds.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
        let mark = || marks.lock().unwrap_or_else(PoisonError::into_inner);
        // Around what `own` times, so that no step is timed that is not watched.
        if let Event::Step { step, .. } = event {
            steps.fetch_add(1, Ordering::Relaxed);
            if *step == warmup {
                mark().0 = Some(spent());
            }
        }
        own.on(event);
        if matches!(event, Event::Step { .. }) && stop.load(Ordering::Relaxed) {
            mark().1 = Some(spent());
        }
    };
    let (done, first, ended) = obeying(folder, &Requests::new(), progress, || {
        let threads = rayon::current_num_threads();
        sampled(config.period, threads, WatchGpus::IfTold, &everyone, || {
            std::thread::sleep(OPENING);
            let first = spent();
            let done = work(&everyone);
            (done, first, [watchers(), processor::process()])
        })
    });
    for message in trackers.close() {
        progress.on(&Event::Warning { message });
    }
    let closed = processor::process();
    let marks = marks.into_inner().unwrap_or_else(PoisonError::into_inner);
    let (from, to) = (marks.0.unwrap_or(first), marks.1.unwrap_or_else(spent));
    let count = (to.steps - from.steps).max(1) as f64;
    let watching = Watching {
        loop_us: 1e6 * (to.on_the_loop - from.on_the_loop).as_secs_f64() / count,
        threads_us: milliseconds(from.threads, to.threads).map(|all| 1e3 * all / count),
        seconds: to.at.duration_since(from.at).as_secs_f64(),
        begin_ms: milliseconds(Some(Duration::ZERO), first.threads.map(|time| opened + time)),
        // While the loop saves its checkpoint, only the threads are watching; after it, all is.
        end_ms: milliseconds(to.threads, ended[0])
            .zip(milliseconds(ended[1], closed))
            .map(|(saving, closing)| saving + closing),
    };
    Ok((done, watching))
}

/// From one reading of a clock to another.
fn milliseconds(from: Option<Duration>, to: Option<Duration>) -> Option<f64> {
    Some(1e3 * to?.checked_sub(from?)?.as_secs_f64())
}

/// Everything on that can be.
fn every_tracker(folder: &Path) -> Result<MonitorConfig, PipelineError> {
    Ok(MonitorConfig {
        tensorboard: Some(TensorBoardConfig::default()),
        mlflow: Some(MlflowConfig {
            to: folder.join("mlruns").display().to_string(),
            ..MlflowConfig::default()
        }),
        prometheus: Some(PrometheusConfig { port: free_port()? }),
        ..MonitorConfig::default()
    })
}

/// Processor time of the threads that watch, while they live.
fn watchers() -> Option<Duration> {
    processor::busy_of(|name| THREADS.contains(&name))
}

fn free_port() -> Result<u16, PipelineError> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0");
    let port = listener.and_then(|listener| listener.local_addr()).map(|address| address.port());
    port.map_err(at(Path::new("127.0.0.1")))
}
