//! Training steps that are watched as a run is: sampler, log, trackers and progress; and what that
//! costs.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use firebox_core::{Event, Listener};
use firebox_monitor::{
    MlflowConfig, MonitorConfig, PrometheusConfig, TensorBoardConfig, TrackedRun, Trackers, sampled,
};
use serde::{Deserialize, Serialize};

use super::processor;
use crate::error::{PipelineError, at};
use crate::folder::RunFolder;

/// Names of the threads that watch, as Linux keeps them.
const THREADS: [&str; 4] = ["monitor", "TensorBoard", "MLflow", "Prometheus"];

/// What watching cost, a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Watching {
    /// Microseconds for which the training loop stood still.
    pub loop_us: f64,
    /// Microseconds of processor time of the threads that watch; `None` where the system does not
    /// tell.
    pub threads_us: Option<f64>,
}

/// Does the work with sampler, log and every tracker on, the trackers in `folder`.
pub(super) fn watched<T>(
    folder: &Path,
    progress: &dyn Listener,
    own: &dyn Listener,
    work: impl FnOnce(&dyn Listener) -> T,
) -> Result<(T, Watching), PipelineError> {
    let config = MonitorConfig {
        tensorboard: Some(TensorBoardConfig::default()),
        mlflow: Some(MlflowConfig {
            to: folder.join("mlruns").display().to_string(),
            ..MlflowConfig::default()
        }),
        prometheus: Some(PrometheusConfig { port: free_port()? }),
        ..MonitorConfig::default()
    };
    let settings = serde_json::json!({ "train": { "epochs": 1 } });
    let run = TrackedRun { name: "bench".to_owned(), folder: folder.to_path_buf(), settings };
    let trackers = Trackers::start(&config, &run);
    let log = RunFolder::open(&folder.join("log"))?.events()?;
    let (nanoseconds, steps) = (AtomicU64::new(0), AtomicU64::new(0));
    let everyone = |event: &Event| {
        let start = Instant::now();
        progress.on(event);
        log.on(event);
        trackers.on(event);
        // The sampler's thread tells events too; its time is among the threads'.
        if !matches!(event, Event::Machine(_)) {
            nanoseconds.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
        steps.fetch_add(u64::from(matches!(event, Event::Step { .. })), Ordering::Relaxed);
        own.on(event);
    };
    let (done, threads) = sampled(config.period, false, &everyone, || {
        let done = work(&everyone);
        // The threads are still there.
        (done, processor::busy_of(|name| THREADS.contains(&name)))
    });
    for message in trackers.close() {
        progress.on(&Event::Warning { message });
    }
    let steps = steps.into_inner().max(1) as f64;
    let per_step = |time: Duration| time.as_secs_f64() * 1e6 / steps;
    let loop_us = per_step(Duration::from_nanos(nanoseconds.into_inner()));
    Ok((done, Watching { loop_us, threads_us: threads.map(per_step) }))
}

fn free_port() -> Result<u16, PipelineError> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0");
    let port = listener.and_then(|listener| listener.local_addr()).map(|address| address.port());
    port.map_err(at(Path::new("127.0.0.1")))
}
