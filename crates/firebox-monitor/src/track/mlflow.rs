//! An MLflow run: parameters, metrics and status, in MLflow's files or on its server.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use firebox_core::Event;
use serde::{Deserialize, Serialize};

use super::mlflow_files::Files;
use super::mlflow_server::Server;
use super::points::{Name, Points, free_name, settings};
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
    names: Names,
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
        let (points, names) = (Points::new(config.every), Names::default());
        Ok(Self { store, points, names, pending: vec![] })
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

/// The names that curves have in MLflow.
#[derive(Default)]
struct Names {
    given: BTreeMap<Name, Name>,
    taken: BTreeSet<String>,
}

impl Names {
    /// The same, with a sign where a name that was given is a folder of it, or it is one of theirs.
    fn beside(&self, mut name: String) -> String {
        let is_within = |name: &str, folder: &str| {
            name.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
        };
        while self.taken.iter().any(|taken| is_within(&name, taken)) {
            let Some((folder, own)) = name.rsplit_once('/') else { break };
            name = format!("{folder}_{own}");
        }
        while self.taken.iter().any(|taken| is_within(taken, &name)) {
            name.push('_');
        }
        name
    }

    /// The name of a curve. Those that differ in what MLflow does not take are told apart by a number.
    fn of(&mut self, name: Name) -> Name {
        if let Some(given) = self.given.get(&name) {
            return given.clone();
        }
        let own = free_name(self.beside(allowed(&name)), &mut self.taken);
        let given = if own == *name { name.clone() } else { Name::Owned(own) };
        self.given.insert(name, given.clone());
        given
    }
}

/// A name of a metric as MLflow takes it: of letters, digits and `_-. :/`; anything else, such as the `+` between a target
/// and a horizon, becomes `_`. So do letters that are not ASCII's: MLflow takes most, and refuses the signs that some are
/// written with.
fn allowed(name: &str) -> String {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_-. :/".contains(c);
    let name: String = name.chars().map(|c| if is_allowed(c) { c } else { '_' }).collect();
    name.split('/').map(component).collect::<Vec<_>>().join("/")
}

/// A part of a name between slashes: in MLflow's files a folder, which must be no other's, and on its server no path that
/// can be written shorter (`path_not_unique` in `mlflow/utils/validation.py`).
fn component(part: &str) -> String {
    match part.strip_prefix("..") {
        Some(rest) => format!("__{rest}"),
        None if part.is_empty() || part == "." => "_".to_owned(),
        None => part.to_owned(),
    }
}

impl Track for Mlflow {
    fn take(&mut self, time: u64, event: &Event) -> Result<(), TrackError> {
        if let Some((step, pairs)) = self.points.of(event) {
            let names = &mut self.names;
            let metric = |(name, value)| Metric { name: names.of(name), value, time, step };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_mlflow_takes_and_stay_apart() {
        let mut names = Names::default();
        let mut check = |name: &str, expected: &str| {
            assert_eq!(names.of(name.to_owned().into()), expected, "{name}");
        };
        check("train/loss", "train/loss");
        check("test/mae/a+24", "test/mae/a_24");
        check("test/mae/a*24", "test/mae/a_24_2");
        check("test/mae/a_24", "test/mae/a_24_3");
        check("test/mae/a+24", "test/mae/a_24");
        check("test/mae/温度 -1.5:b", "test/mae/__ -1.5:b");
        check("test/mae/湿度 -1.5:b", "test/mae/__ -1.5:b_2");
        check("test/mae/कीमत", "test/mae/____");
        // In files, no name can be another's folder.
        check("test/mae/b", "test/mae/b");
        check("test/mae/b/c", "test/mae/b_c");
        check("test/mae/d/e", "test/mae/d/e");
        check("test/mae/d", "test/mae/d_");
        check("../../../x", "__/__/__/x");
        check("a//b/./", "a/_/b/_/_");
        check("..x/y..z", "__x/y..z");
        check("", "_");
    }

    #[test]
    fn no_name_of_a_channel_leads_out_of_the_folder_of_metrics() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("mlruns");
        let to = root.to_str().unwrap().to_owned();
        let config = MlflowConfig { to, ..MlflowConfig::default() };
        let (name, settings) = ("r".to_owned(), serde_json::json!({}));
        let run = TrackedRun { name, folder: folder.path().into(), settings };
        let mut mlflow = Mlflow::open(&config, run).unwrap();
        let name = "../../../x".to_owned();
        mlflow.take(1, &Event::Scored { name, value: 0.5 }).unwrap();
        mlflow.flush().unwrap();
        let known = std::fs::read(folder.path().join(KNOWN)).unwrap();
        let known: Known = serde_json::from_slice(&known).unwrap();
        let metrics = root.join(known.experiment_id).join(known.run_id).join("metrics");
        assert!(metrics.join("__/__/__/x").is_file());
        assert!(!root.join("x").exists());
    }
}
