//! An MLflow run: parameters, metrics and status, in MLflow's files or on its server.

use std::path::Path;

use firebox_core::Event;
use serde::{Deserialize, Serialize};

use super::mlflow_files::Files;
use super::mlflow_server::Server;
use super::points::{Name, Points, settings};
use super::{Ending, Track, TrackError, TrackedRun, at, now};
use crate::MlflowConfig;

/// Name of the file in the run's folder that says which MLflow run it is, so that a resumed run
/// goes on with it.
const KNOWN: &str = "mlflow.json";
/// Metrics that are sent at once; MLflow takes 1,000.
const BATCH: usize = 500;
/// Characters of a parameter; older servers take no more.
const LONGEST: usize = 500;

/// Where an MLflow run is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Known {
    pub(super) to: String,
    pub(super) experiment: String,
    pub(super) experiment_id: String,
    pub(super) run_id: String,
}

/// A point of a metric.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Metric {
    pub(super) name: Name,
    pub(super) value: f64,
    /// Milliseconds since 1970 UTC.
    pub(super) time: u64,
    pub(super) step: u64,
}

/// Files or a server.
pub(super) trait Store {
    /// The run to write to: this one if it is still there, or a new one with these parameters.
    fn begin(
        &mut self,
        known: Option<Known>,
        name: &str,
        time: u64,
        parameters: &[(String, String)],
    ) -> Result<Known, TrackError>;

    fn log(&mut self, metrics: &[Metric]) -> Result<(), TrackError>;

    fn end(&mut self, time: u64, ending: Ending) -> Result<(), TrackError>;
}

/// An MLflow run being written.
pub(crate) struct Mlflow {
    store: Box<dyn Store>,
    points: Points,
    pending: Vec<Metric>,
}

impl Mlflow {
    pub(crate) fn open(config: &MlflowConfig, run: TrackedRun) -> Result<Self, TrackError> {
        let file = run.folder.join(KNOWN);
        let to = config.to.trim();
        let same = |known: &Known| known.to == to && known.experiment == config.experiment;
        let known = std::fs::read(&file).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let mut store: Box<dyn Store> = match to.starts_with("http://") {
            true => Box::new(Server::new(to, &config.experiment)),
            false => Box::new(Files::new(Path::new(to), &config.experiment)),
        };
        let known = store.begin(known.filter(same), &run.name, now(), &parameters(&run))?;
        let known = Known { to: to.to_owned(), ..known };
        let text = serde_json::to_vec_pretty(&known).map_err(|e| at(&file)(e.into()))?;
        std::fs::write(&file, text).map_err(at(&file))?;
        Ok(Self { store, points: Points::new(config.every), pending: vec![] })
    }
}

/// The settings as texts that MLflow takes.
fn parameters(run: &TrackedRun) -> Vec<(String, String)> {
    let text = |value: serde_json::Value| {
        let text = match value {
            serde_json::Value::String(text) if !text.contains('\n') => text,
            other => other.to_string(),
        };
        text.chars().take(LONGEST).collect()
    };
    settings(&run.settings).into_iter().map(|(name, value)| (name, text(value))).collect()
}

/// A name of a metric as MLflow takes it: of letters, digits and `_-. :/`; anything else, such as the `+` between a target
/// and a horizon, becomes `_`.
fn allowed(name: Name) -> Name {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_-. :/".contains(c);
    match name.chars().all(is_allowed) {
        true => name,
        false => {
            name.chars().map(|c| if is_allowed(c) { c } else { '_' }).collect::<String>().into()
        }
    }
}

impl Track for Mlflow {
    fn take(&mut self, time: u64, event: &Event) -> Result<(), TrackError> {
        if let Some((step, pairs)) = self.points.of(event) {
            let metric = |(name, value)| Metric { name: allowed(name), value, time, step };
            self.pending.extend(pairs.into_iter().map(metric));
        }
        if self.pending.len() >= BATCH { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), TrackError> {
        for metrics in std::mem::take(&mut self.pending).chunks(BATCH) {
            self.store.log(metrics)?;
        }
        Ok(())
    }

    fn close(&mut self, time: u64, ending: Ending) -> Result<(), TrackError> {
        self.flush()?;
        self.store.end(time, ending)
    }
}
