//! The `[monitor]` table: what is measured beside training, and who is told.

use std::fmt;
use std::marker::PhantomData;
use std::path::PathBuf;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Largest queue of a tracker. Its memory is taken at once: about 15 MB for each tracker.
const MAX_QUEUE: usize = 65_536;

/// What is measured beside training, and who is told. Nothing here changes a result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MonitorConfig {
    /// Seconds between two samples of the machine, from 0.1 to 3600. 0: no samples.
    pub period: f64,
    /// Events that wait for each tracker at most, from 1 to 65536. Training never waits for one:
    /// what comes when the queue is full is left out and counted.
    pub queue: usize,
    /// TensorBoard event files, where this table stands; `false` in its place takes it away again.
    #[serde(deserialize_with = "or_switch", skip_serializing_if = "Option::is_none")]
    pub tensorboard: Option<TensorBoardConfig>,
    /// An MLflow run, where this table stands; `false` in its place takes it away again.
    #[serde(deserialize_with = "or_switch", skip_serializing_if = "Option::is_none")]
    pub mlflow: Option<MlflowConfig>,
    /// A page of figures for Prometheus, where this table stands; `false` in its place takes it away again.
    #[serde(deserialize_with = "or_switch", skip_serializing_if = "Option::is_none")]
    pub prometheus: Option<PrometheusConfig>,
}

impl Default for MonitorConfig {
    fn default() -> Self {
        Self { period: 1.0, queue: 4096, tensorboard: None, mlflow: None, prometheus: None }
    }
}

/// `[monitor.tensorboard]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TensorBoardConfig {
    /// Folder in which each run gets a folder of its own. Empty: `tensorboard` in the run's folder.
    pub folder: PathBuf,
    /// Steps between two points of the curves of steps, at least 1.
    pub every: u64,
    /// Histograms of the weights, and of the running mean of their gradients (AdamW) or their
    /// momentum (SGD), at each checkpoint.
    pub histograms: bool,
}

impl Default for TensorBoardConfig {
    fn default() -> Self {
        Self { folder: PathBuf::new(), every: 1, histograms: true }
    }
}

/// `[monitor.mlflow]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MlflowConfig {
    /// A folder in MLflow's file layout, or the address of its server: `http://127.0.0.1:5000`.
    pub to: String,
    /// Name of the experiment, which is made if it is not there.
    pub experiment: String,
    /// Steps between two points of the curves of steps, at least 1.
    pub every: u64,
}

impl Default for MlflowConfig {
    fn default() -> Self {
        Self { to: "mlruns".to_owned(), experiment: "firebox".to_owned(), every: 1 }
    }
}

/// `[monitor.prometheus]`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PrometheusConfig {
    /// Port on the loopback address 127.0.0.1, where `/metrics` is served while the run goes on.
    pub port: u16,
}

impl Default for PrometheusConfig {
    fn default() -> Self {
        Self { port: 9184 }
    }
}

/// Settings, `true` for their defaults, or `false` for none: a table that a file has is switched off
/// by a layer over it.
fn or_switch<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    deserializer.deserialize_any(Switch(PhantomData))
}

struct Switch<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de> + Default> Visitor<'de> for Switch<T> {
    type Value = Option<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("its settings, or false to switch it off")
    }

    fn visit_bool<E: Error>(self, on: bool) -> Result<Self::Value, E> {
        Ok(on.then(T::default))
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Some)
    }
}

/// A setting that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`monitor.{key}` is {found}; {allowed}")]
pub struct ConfigError {
    key: &'static str,
    found: String,
    allowed: &'static str,
}

impl MonitorConfig {
    /// Every path among the settings.
    pub fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let folder = self.tensorboard.iter_mut().map(|tensorboard| &mut tensorboard.folder);
        folder.filter(|folder| !folder.as_os_str().is_empty())
    }

    /// Checks what the types cannot.
    ///
    /// # Errors
    ///
    /// The first setting that cannot be.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let check = |good: bool, key, found: String, allowed| {
            if good { Ok(()) } else { Err(ConfigError { key, found, allowed }) }
        };
        let period = self.period;
        check(
            period == 0.0 || (0.1..=3600.0).contains(&period),
            "period",
            period.to_string(),
            "it lies from 0.1 to 3600 seconds, or is 0 for no samples",
        )?;
        let positive = "it must be at least 1";
        check(
            (1..=MAX_QUEUE).contains(&self.queue),
            "queue",
            self.queue.to_string(),
            "it lies from 1 to 65536 events",
        )?;
        if let Some(tensorboard) = &self.tensorboard {
            let every = tensorboard.every;
            check(every >= 1, "tensorboard.every", every.to_string(), positive)?;
        }
        if let Some(mlflow) = &self.mlflow {
            check(mlflow.every >= 1, "mlflow.every", mlflow.every.to_string(), positive)?;
            let to = mlflow.to.trim();
            check(
                !to.is_empty() && (!to.contains("://") || to.starts_with("http://")),
                "mlflow.to",
                format!("`{to}`"),
                "it is a folder, or the http:// address of a server (https needs a proxy on this machine)",
            )?;
            let name = &mlflow.experiment;
            check(!name.is_empty(), "mlflow.experiment", "empty".to_owned(), "give it a name")?;
        }
        if let Some(prometheus) = &self.prometheus {
            let allowed = "name a port from 1 to 65535";
            check(prometheus.port > 0, "prometheus.port", "0".to_owned(), allowed)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        let config: Result<MonitorConfig, _> = serde_json::from_str(text);
        let message = match config {
            Ok(config) => config.validate().unwrap_err().to_string(),
            Err(error) => error.to_string(),
        };
        assert!(message.contains(expected), "{text}: {message}");
    }

    #[test]
    fn what_cannot_be_is_named() {
        check(r#"{"period": 0.01}"#, "`monitor.period` is 0.01; it lies from 0.1");
        check(r#"{"period": -1}"#, "`monitor.period` is -1");
        check(r#"{"queue": 0}"#, "`monitor.queue` is 0");
        let most = "it lies from 1 to 65536 events";
        check(r#"{"queue": 65537}"#, most);
        check(r#"{"queue": 10000000000000000000}"#, most);
        check(r#"{"tensorboard": {"every": 0}}"#, "`monitor.tensorboard.every` is 0");
        check(r#"{"mlflow": {"to": "https://a"}}"#, "`monitor.mlflow.to` is `https://a`");
        check(r#"{"mlflow": {"to": " "}}"#, "mlflow.to");
        check(r#"{"mlflow": {"experiment": ""}}"#, "`monitor.mlflow.experiment` is empty");
        check(r#"{"prometheus": {"port": 0}}"#, "`monitor.prometheus.port` is 0");
        check(r#"{"periods": 1}"#, "unknown field `periods`");
        check(r#"{"tensorboard": {"step": 1}}"#, "unknown field `step`");
        for good in [
            "{}",
            r#"{"period": 0, "queue": 65536}"#,
            r#"{"tensorboard": {}, "mlflow": {}, "prometheus": {}}"#,
        ] {
            assert_eq!(serde_json::from_str::<MonitorConfig>(good).unwrap().validate(), Ok(()));
        }
    }

    #[test]
    fn a_tracker_is_switched_on_and_off() {
        let read = |text| serde_json::from_str::<MonitorConfig>(text).unwrap();
        assert_eq!(read(r#"{"tensorboard": false, "mlflow": null}"#), MonitorConfig::default());
        let on = read(r#"{"tensorboard": true}"#).tensorboard;
        assert_eq!(on, Some(TensorBoardConfig::default()));
        check(r#"{"prometheus": 9184}"#, "expected its settings, or false to switch it off");
    }
}
