//! Whether two pipelines say the same, and by which key they differ.

use std::collections::BTreeSet;
use std::path::Path;

use firebox_core::{Key, MatmulPrecision, Precision};
use firebox_monitor::MonitorConfig;
use serde_json::{Map, Value};

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

/// What has changed since a run was begun whose training had another key, as a clause. `key` is that of a training by other
/// settings, of the data and on the device of now: a setting that it leaves out has changed nothing, and is not named.
pub(super) fn changed_since(
    run: &Path,
    now: &PipelineConfig,
    key: impl Fn(&PipelineConfig) -> Result<Key, PipelineError>,
) -> String {
    let key_of = |settings: Value| {
        let mut config: PipelineConfig = serde_json::from_value(settings).ok()?;
        // What was fetched is found where it is.
        config.run.cache.clone_from(&now.run.cache);
        config.run.fetch = now.run.fetch;
        key(&config).ok()
    };
    let begun = layers::load(&run.join(folder::PIPELINE), [], &[]).ok();
    let both = begun.and_then(|begun| Some((compared(&begun).ok()?, compared(now).ok()?)));
    let known = both.and_then(|(then, now)| Some((key_of(now.clone())?, then, now)));
    let Some((own, then, now)) = known else {
        return "its data, settings or device have changed since it was begun".to_owned();
    };
    let matters = |place: &Vec<String>| {
        let mut settings = now.clone();
        take_back(&mut settings, &then, place);
        // Settings that cannot be without the others have changed with them.
        key_of(settings) != Some(own)
    };
    let place = places(&then, &now).into_iter().find(matters);
    let changed = place.and_then(|place| {
        let of = |settings: &Value| {
            place.iter().try_fold(settings, |table, name| table.get(name)).cloned()
        };
        let [then, now] = [&then, &now].map(|settings| of(settings).unwrap_or_default());
        difference(&place.join("."), &then, &now)
    });
    match changed {
        Some((key, before, after)) => format!(
            "its settings have changed since it was begun: `{key}` was {before} then, and is {after} now"
        ),
        None => "its data or device have changed since it was begun".to_owned(),
    }
}

/// The first key whose values differ, with both values. Where results lie does not matter, nor how a
/// file is named.
pub(crate) fn first_difference(
    ours: &PipelineConfig,
    theirs: &PipelineConfig,
) -> Result<Option<(String, String, String)>, PipelineError> {
    Ok(difference("", &compared(ours)?, &compared(theirs)?))
}

/// The settings as what is compared.
fn compared(config: &PipelineConfig) -> Result<Value, PipelineError> {
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
    serde_json::to_value(config).map_err(|error| {
        PipelineError::Setting(format!("the settings cannot be compared: {error}"))
    })
}

/// The names that lead to each value that differs. A table that only one of them has is one value.
fn places(then: &Value, now: &Value) -> Vec<Vec<String>> {
    let (Value::Object(before), Value::Object(after)) = (then, now) else {
        return if then == now { vec![] } else { vec![vec![]] };
    };
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let within = |name: &String| {
        let of = |table: &Map<String, Value>| table.get(name).cloned().unwrap_or_default();
        let mut found = places(&of(before), &of(after));
        found.iter_mut().for_each(|place| place.insert(0, name.clone()));
        found
    };
    names.into_iter().flat_map(within).collect()
}

/// Makes the value of one of [`places`] what it was, or takes it out if it was not there.
fn take_back(now: &mut Value, then: &Value, place: &[String]) {
    match (place, now) {
        ([], now) => now.clone_from(then),
        ([name, rest @ ..], Value::Object(table)) => match then.get(name) {
            Some(then) => take_back(table.entry(name.clone()).or_insert(Value::Null), then, rest),
            None => drop(table.remove(name)),
        },
        // Places lead through tables alone.
        _ => {}
    }
}

/// The first key whose values differ, with both values.
fn difference(key: &str, a: &Value, b: &Value) -> Option<(String, String, String)> {
    let empty = Map::new();
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
        let of = |map: &Map<String, Value>| map.get(name).cloned().unwrap_or_default();
        difference(&full, &of(mine), &of(theirs))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::ChosenDevice;

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
    fn what_has_changed_since_a_run_was_begun_is_named_if_it_matters() {
        let run = tempfile::tempdir().unwrap();
        let data = run.path().join("a.csv");
        std::fs::write(&data, "x\n1\n2\n").unwrap();
        let mut begun = PipelineConfig::default();
        begun.data.path = firebox_data::Paths(vec![data]);
        begun.loader.workers = 1;
        begun.train.epochs = 7;
        let device = ChosenDevice::named("cpu");
        let key = |config: &PipelineConfig| -> Result<Key, PipelineError> {
            Ok(config.pipeline.chain().keys(config, &device)?.training)
        };
        let write = |text: &str| std::fs::write(run.path().join(folder::PIPELINE), text).unwrap();
        write(&toml::to_string(&begun).unwrap());
        let check = |edit: &dyn Fn(&mut PipelineConfig), expected: &str| {
            let mut now = begun.clone();
            edit(&mut now);
            let said = changed_since(run.path(), &now, key);
            assert!(said.starts_with(expected), "{said}");
        };
        let elsewhere = "its data or device have changed since it was begun";
        check(&|_| (), elsewhere);
        // None of these is in the key.
        let nothing = |now: &mut PipelineConfig| {
            now.evaluate.seeds = 2;
            now.loader.workers = 3;
            now.loader.resident = firebox_loader::Resident::Memory;
            now.monitor.period = 5.0;
            now.run.recompute = true;
            now.train.checkpoint.interval = Some(0);
        };
        check(&nothing, elsewhere);
        let own = "its settings have changed since it was begun: ";
        let epochs = |now: &mut PipelineConfig| {
            nothing(now);
            now.train.epochs = 9;
        };
        check(&epochs, &format!("{own}`train.epochs` was 7 then, and is 9 now"));
        let split = |now: &mut PipelineConfig| {
            nothing(now);
            now.split = Some(firebox_core::SplitRule::time(0.1, 0.2));
        };
        check(&split, &format!("{own}`split.time."));
        let gone = |now: &mut PipelineConfig| now.data.path.0.push("nowhere.csv".into());
        check(&gone, "its data, settings or device have changed since it was begun");
        write("[train");
        check(&epochs, "its data, settings or device have changed since it was begun");
    }

    #[test]
    fn settings_are_taken_back_one_by_one() {
        let then = serde_json::json!({"a": {"b": 1, "c": [1, 2]}, "d": "full", "e": 5});
        let now = serde_json::json!({"a": {"b": 1, "c": [2]}, "d": {"blocks": 3}, "f": {"g": 0}});
        let places = places(&then, &now);
        let names: Vec<String> = places.iter().map(|place| place.join(".")).collect();
        assert_eq!(names, ["a.c", "d", "e", "f"]);
        let mut settings = now.clone();
        take_back(&mut settings, &then, &places[0]);
        assert_eq!(settings["a"], then["a"]);
        assert_eq!(settings["d"], now["d"]);
        places.iter().for_each(|place| take_back(&mut settings, &then, place));
        assert_eq!(settings, then);
    }
}
