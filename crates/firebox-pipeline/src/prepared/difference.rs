//! Whether two pipelines say the same, and by which key they differ.

use std::path::Path;

use firebox_core::{MatmulPrecision, Precision};
use firebox_monitor::MonitorConfig;

use super::paths::{absolute, paths};
use crate::PipelineConfig;
use crate::config::FetchConfig;
use crate::error::PipelineError;
use crate::{folder, layers};

/// Refuses to go on with a run beside a pipeline file that says something else.
pub(super) fn same_settings(
    run: &Path,
    ours: &PipelineConfig,
    file: &Path,
    theirs: &PipelineConfig,
) -> Result<(), PipelineError> {
    // What was measured then is not measured again.
    let mut theirs = theirs.clone();
    if theirs.run.auto {
        (theirs.run.precision, theirs.run.auto) = (ours.run.precision, ours.run.auto);
    }
    let settled = match theirs.run.matmul {
        Some(MatmulPrecision::Highest) => ours.run.precision == Precision::F32,
        Some(MatmulPrecision::High) => ours.run.precision == Precision::Tf32,
        Some(MatmulPrecision::Medium) => ours.run.precision == Precision::Bf16,
        None => false,
    };
    if settled && ours.run.matmul.is_none() {
        (theirs.run.precision, theirs.run.matmul) = (ours.run.precision, None);
    }
    if theirs.loader.batch_size == 0 {
        theirs.loader.batch_size = ours.loader.batch_size;
    }
    match first_difference(ours, &theirs)? {
        Some((key, ours, theirs)) => Err(PipelineError::Setting(format!(
            "{} differs from the pipeline of the run {}: `{key}` is {theirs} in the one and {ours} in the other\n  \
             leave {0} out to go on with the run as it was begun, or leave out --resume to begin another run",
            file.display(),
            run.display(),
        ))),
        None => Ok(()),
    }
}

/// By which setting of its training a run differs from when it was begun, as a clause; none where no setting says it, as
/// where the data or the device are others.
pub(super) fn changed_since(run: &Path, now: &PipelineConfig) -> Option<String> {
    let begun = layers::load(&run.join(folder::PIPELINE), [], &[]).ok()?;
    // A run may be measured in another way.
    let begun = PipelineConfig { evaluate: now.evaluate.clone(), ..begun };
    let (key, before, after) = first_difference(&begun, now).ok()??;
    Some(format!("; `{key}` was {before} then, and is {after} now"))
}

/// The first key whose values differ, with both values. Where results lie does not matter, nor how a
/// file is named.
pub(crate) fn first_difference(
    ours: &PipelineConfig,
    theirs: &PipelineConfig,
) -> Result<Option<(String, String, String)>, PipelineError> {
    let value = |config: &PipelineConfig| -> Result<serde_json::Value, PipelineError> {
        let mut config = absolute(config.clone())?;
        // Those of the run stay where they are.
        config.run.directory.clear();
        config.run.cache.clear();
        // Nor does it matter how patiently data are fetched.
        config.run.fetch = FetchConfig::default();
        // Who watches does not matter either.
        config.monitor = MonitorConfig::default();
        // One file may have been named in two ways.
        for path in paths(&mut config) {
            if let Ok(known) = path.canonicalize() {
                *path = known;
            }
        }
        let value = serde_json::to_value(config);
        value.map_err(|error| {
            PipelineError::Setting(format!("the settings cannot be compared: {error}"))
        })
    };
    Ok(difference("", &value(ours)?, &value(theirs)?))
}

/// The first key whose values differ, with both values.
fn difference(
    key: &str,
    a: &serde_json::Value,
    b: &serde_json::Value,
) -> Option<(String, String, String)> {
    use serde_json::Value;
    let empty = serde_json::Map::new();
    if !a.is_object() && !b.is_object() {
        let text =
            |value: &Value| if value.is_null() { "not set".to_owned() } else { value.to_string() };
        return (a != b).then(|| (key.to_owned(), text(a), text(b)));
    }
    let (mine, theirs) = (a.as_object().unwrap_or(&empty), b.as_object().unwrap_or(&empty));
    let mut keys: Vec<&String> = mine.keys().chain(theirs.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter().find_map(|name| {
        let full = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
        let of = |map: &serde_json::Map<String, Value>| map.get(name).cloned().unwrap_or_default();
        difference(&full, &of(mine), &of(theirs))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_setting_that_differs_is_named() {
        let base = PipelineConfig::default();
        let mut other = base.clone();
        other.train.epochs = 7;
        let error = same_settings(Path::new("r"), &base, Path::new("p.toml"), &other).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("p.toml differs from the pipeline of the run r: `train.epochs` is 7"),
            "{text}"
        );
        same_settings(Path::new("r"), &base, Path::new("p.toml"), &base).unwrap();
        let mut watched = base.clone();
        watched.monitor.period = 5.0;
        same_settings(Path::new("r"), &base, Path::new("p.toml"), &watched).unwrap();
        let mut patient = base.clone();
        patient.run.fetch.timeout = 120;
        same_settings(Path::new("r"), &base, Path::new("p.toml"), &patient).unwrap();
    }

    #[test]
    fn what_was_changed_since_a_run_was_begun_is_named() {
        let run = tempfile::tempdir().unwrap();
        std::fs::write(run.path().join(folder::PIPELINE), "[train]\nepochs = 7\n").unwrap();
        let mut now = PipelineConfig::default();
        now.train.epochs = 9;
        now.evaluate.seeds = 2;
        let said = changed_since(run.path(), &now);
        assert_eq!(said.as_deref(), Some("; `train.epochs` was 7 then, and is 9 now"));
        now.train.epochs = 7;
        assert_eq!(changed_since(run.path(), &now), None);
    }
}
