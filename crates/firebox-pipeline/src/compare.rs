//! `firebox compare`: what several run folders tell, side by side on one page.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use firebox_core::Event;
use firebox_eval::{ComparedRun, Curves, Evaluation, Reconstruction, Report, SideBySide, verdict};
use firebox_monitor::{Usage, trainings};
use firebox_train::History;
use serde::Deserialize;
use serde_json::Value;

use crate::error::{PipelineError, at};
use crate::folder::{PIPELINE, begun, is_finished, replay};
use crate::{Kind, find_run};

/// Settings that change no result, and would differ between any two runs.
const ELSEWHERE: [&str; 4] = ["run.directory", "run.cache", "run.fetch.", "monitor."];

/// The part of `scores.json` that is compared.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Scores {
    evaluation: Option<Evaluation>,
    reconstruction: Option<Reconstruction>,
    /// The figures of its kind.
    results: Value,
}

/// Writes a page that compares runs, named by their folders or by their names. Runs that go on yet
/// are compared as far as they are.
///
/// # Errors
///
/// A run that is not there, has no log, or is named twice; fewer than two, or more than can be told apart; a file
/// that cannot be written, or is something else.
pub fn compare(runs: &[PathBuf], output: &Path) -> Result<(), PipelineError> {
    let mut folders: Vec<PathBuf> = vec![];
    for run in runs {
        let folder = find_run(run)?;
        let folder = folder.canonicalize().map_err(at(&folder))?;
        if folders.contains(&folder) {
            return Err(PipelineError::Setting(format!(
                "the run {} is named twice\n  name each run once: beside itself it shows nothing",
                folder.display()
            )));
        }
        folders.push(folder);
    }
    let read = folders.iter().map(|folder| read(folder));
    let runs = read.collect::<Result<Vec<ComparedRun>, PipelineError>>()?;
    Ok(SideBySide::new(runs)?.write(output)?)
}

fn read(folder: &Path) -> Result<ComparedRun, PipelineError> {
    let mut report = Report::new("", "", verdict(None, None));
    let mut usage = Usage::default();
    // Those of the newest attempt, where there were several.
    let mut scored = BTreeMap::new();
    let attempts = replay(folder, &mut |event| {
        match event {
            Event::RunStarted { .. } => scored.clear(),
            Event::Scored { name, value } => {
                scored.insert(name.clone(), *value);
            }
            _ => {}
        }
        report.record(event);
        usage.record(event);
    })?;
    report.seconds = report.seconds.max(attempts.seconds);
    // A run has the name of its folder, whatever it was begun as.
    if let Some(name) = folder.canonicalize().ok().as_deref().and_then(Path::file_name) {
        report.run = name.to_string_lossy().into_owned();
    }
    let scores = scores(folder);
    let told = scores.is_some();
    let Scores { evaluation, reconstruction, results } = scores.unwrap_or_default();
    report.judge(evaluation, reconstruction);
    let settings = settings(folder)?;
    let chain = kind(&settings).chain();
    let tests = chain.main_scores(&results);
    let mut timings: Vec<(String, String)> = report
        .stages
        .iter()
        .map(|stage| {
            let text = match stage.reused {
                true => "reused".to_owned(),
                false => format!("{:.1} s", stage.seconds),
            };
            (format!("stage {}", stage.name), text)
        })
        .collect();
    // A log that names no device is taken for that of a processor.
    let on_gpu = !report.device.is_empty() && !report.device.starts_with("cpu");
    timings.extend(usage.timings(on_gpu));
    let mut curves = BTreeMap::new();
    let damaged = read_trainings(folder, &mut curves);
    if damaged > 0 {
        let name = "histories of trainings that cannot be read".to_owned();
        timings.push((name, damaged.to_string()));
    }
    if attempts.unreadable > 0 {
        let lines = attempts.unreadable.to_string();
        timings.push(("lines of the log that cannot be read".to_owned(), lines));
    }
    if report.outcome.is_empty() && is_finished(folder) {
        let name = "events.jsonl, the log of a run that has ended".to_owned();
        timings.push((name, "damaged: it does not tell the end".to_owned()));
    }
    if !told {
        let name = "scores.json, which says what the run reached".to_owned();
        timings.push((name, "damaged, or gone; `firebox run FILE` writes it anew".to_owned()));
    }
    if begun(folder).is_err() {
        let name = "run.json, which says what the run was begun as".to_owned();
        timings.push((name, "damaged; `firebox run FILE` writes it anew".to_owned()));
    }
    timings.push(("device".to_owned(), report.device.clone()));
    let own_training = chain.own_training(!curves.is_empty()).to_owned();
    let (scores, trainings) = (scored, curves);
    Ok(ComparedRun { report, tests, own_training, settings, scores, timings, trainings })
}

/// What a run has written of its scores, which is nothing before it has ended; `None` where that is damaged or gone.
fn scores(folder: &Path) -> Option<Scores> {
    let file = folder.join("scores.json");
    let text = match std::fs::read(&file) {
        Ok(text) => text,
        Err(_) if !file.is_file() && !is_finished(folder) => return Some(Scores::default()),
        Err(_) => return None,
    };
    let whole: serde_json::Map<String, Value> = serde_json::from_slice(&text).ok()?;
    // A whole file may be of another version, or hold a figure that is no number.
    Some(serde_json::from_value(Value::Object(whole)).unwrap_or_default())
}

/// The kind of a run; that of a file that names none where it is not known.
fn kind(settings: &BTreeMap<String, String>) -> Kind {
    let name = settings.get("pipeline").map(|name| Value::from(name.as_str()));
    name.and_then(|name| serde_json::from_value(name).ok()).unwrap_or_default()
}

/// The curves of the trainings of a run that has several, by their names, and how many cannot be read.
fn read_trainings(run: &Path, out: &mut BTreeMap<String, Curves>) -> usize {
    let mut damaged = 0;
    for (name, folder) in trainings(run) {
        let Ok(history) = History::read(&folder) else {
            damaged += 1;
            continue;
        };
        let mut report = Report::new("", "", verdict(None, None));
        history.tell(&mut |event| report.record(event));
        out.insert(name, report.curves);
    }
    damaged
}

/// The resolved settings, flat.
fn settings(folder: &Path) -> Result<BTreeMap<String, String>, PipelineError> {
    let path = folder.join(PIPELINE);
    let text = std::fs::read_to_string(&path).map_err(at(&path))?;
    let mut settings = flat(&text).map_err(|error| {
        PipelineError::Setting(format!("{} cannot be read: {error}", path.display()))
    })?;
    settings.retain(|name, _| !ELSEWHERE.iter().any(|other| name.starts_with(other)));
    Ok(settings)
}

fn flat(text: &str) -> Result<BTreeMap<String, String>, toml::de::Error> {
    let mut settings = BTreeMap::new();
    flatten("", &toml::Value::Table(text.parse()?), &mut settings);
    Ok(settings)
}

/// The keys of these tables that have other values in one text of settings than in the other, each with both. There are
/// none if a text cannot be read.
pub(crate) fn changed(before: &str, now: &str, tables: &[&str]) -> Vec<String> {
    let (Ok(before), Ok(now)) = (flat(before), flat(now)) else { return vec![] };
    let within = |key: &str| {
        let mut heads = tables.iter().filter_map(|table| key.strip_prefix(table));
        heads.any(|rest| rest.starts_with('.'))
    };
    let keys: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    let changed = keys.into_iter().filter(|key| within(key) && before.get(*key) != now.get(*key));
    let value = |settings: &BTreeMap<String, String>, key: &String| {
        settings.get(key).map_or("not set", String::as_str).to_owned()
    };
    changed
        .map(|key| format!("`{key}` was {} and is {}", value(&before, key), value(&now, key)))
        .collect()
}

fn flatten(name: &str, value: &toml::Value, out: &mut BTreeMap<String, String>) {
    match value {
        toml::Value::Table(table) => {
            for (key, value) in table {
                let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                flatten(&name, value, out);
            }
        }
        toml::Value::String(text) => {
            out.insert(name.to_owned(), text.clone());
        }
        // Whole numbers of 39 digits are not read by anybody.
        toml::Value::Float(value) if value.abs() >= 1e9 && value.is_finite() => {
            out.insert(name.to_owned(), format!("{value:e}"));
        }
        other => {
            out.insert(name.to_owned(), other.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn trainings_are_named_by_their_folders_and_damaged_ones_counted() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(crate::sub::FOLDER).join(name);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join(firebox_train::HISTORY_FILE), text).unwrap();
        };
        let epoch = r#"{"epoch":{"epoch":1,"step":4,"train_loss":0.5,"validation_loss":null,"learning_rate":0.1,"best":true,"seconds":1.0}}"#;
        write("fold-1/lstm", &format!("{epoch}\n"));
        write("fold-2", "");
        write("fold-3", "{\n");
        // What lies within a training is none.
        write("fold-2/checkpoints", &format!("{epoch}\n"));
        let mut found = BTreeMap::new();
        assert_eq!(read_trainings(folder.path(), &mut found), 1);
        let losses = |curves: &Curves| curves.epochs.iter().map(|e| e.train_loss).collect();
        let found: Vec<(String, Vec<f64>)> =
            found.iter().map(|(name, curves)| (name.clone(), losses(curves))).collect();
        assert_eq!(found, [("fold-1/lstm".to_owned(), vec![0.5]), ("fold-2".to_owned(), vec![])]);
        assert_eq!(read_trainings(&folder.path().join("none"), &mut BTreeMap::new()), 0);
    }

    #[test]
    fn scores_and_a_log_that_are_damaged_are_told_among_the_times() {
        let folder = tempfile::tempdir().unwrap();
        let write =
            |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let told = || -> Vec<String> {
            let timings = read(folder.path()).unwrap().timings.into_iter();
            timings.filter(|(_, text)| text.contains("damaged")).map(|(name, _)| name).collect()
        };
        write(PIPELINE, &toml::to_string(&crate::PipelineConfig::default()).unwrap());
        write("events.jsonl", "");
        // A run that has not ended has no scores, and its log has no end.
        assert!(told().is_empty());
        let key = firebox_core::Key::builder("test", 1).finish();
        let manifest = json!({ "key": key, "trained": "", "verdict": "", "files": [] });
        write("manifest.json", &manifest.to_string());
        write("scores.json", "{");
        let found = told();
        assert!(found.len() == 2, "{found:?}");
        assert!(found[0].starts_with("events.jsonl") && found[1].starts_with("scores.json"));
        write("scores.json", "{}");
        assert_eq!(told().len(), 1);
    }

    #[test]
    fn every_kind_tells_its_own_score_from_the_figures_of_its_page() {
        let value = json!({ "value": 0.75, "low": 0.5, "high": null });
        let all = json!({
            "forecaster": "model", "output": null, "mae": value, "rmse": value, "r2": value,
            "mase": value, "runs": [0.75],
        });
        let forecast = json!({
            "outputs": [{ "target": "demand", "horizon": 2 }], "windows": 9, "block": 1,
            "confidence": 0.95, "scores": [all], "gains": [],
        });
        let confusion = json!({ "classes": 1, "counts": [9] });
        let arm = json!({
            "arm": "fine-tuned", "seeds": 1, "spread": null, "metrics": { "macro-f1": value },
            "constant": 0,
        });
        let share = json!({ "share": 0.5, "windows": 9.0, "arms": [arm], "differences": [] });
        let finetune = json!({
            "classes": ["a"], "metric": "macro-f1", "confidence": 0.95, "windows": 9, "block": 1,
            "shares": [share], "majority": value, "majority_class": "a", "confusion": confusion,
        });
        let standing = |name: &str, baseline: bool| {
            json!({
                "name": name, "baseline": baseline, "metrics": { "accuracy": value },
                "confusion": confusion,
            })
        };
        let folds = json!({
            "classes": ["a"], "windows": 9, "block": 1, "metric": "accuracy", "confidence": 0.95,
            "lead_confidence": 0.95, "resamples": 100, "leads": [],
            "standings": [standing("MLP", false), standing("majority class", true)],
        });
        let text = json!({ "labels": { "encoder": { "macro_f1": value } } });
        let clusters = json!({ "subjects": [{ "normalised_information": value }] });
        let told = |kind_name: &str, figures: &Value| -> Vec<(String, String, f64)> {
            let settings = [("pipeline".to_owned(), kind_name.to_owned())].into();
            let scores = kind(&settings).chain().main_scores(figures).into_iter();
            scores.map(|score| (score.metric, score.model, score.estimate.value)).collect()
        };
        for (kind, figures, metric, model) in [
            ("forecast", forecast, "mean absolute error of demand 2 steps ahead", ""),
            ("finetune", finetune, "macro F1 with 50.0 % of the labels", ""),
            ("multitimeframe", folds, "accuracy", "MLP"),
            ("text", text, "macro F1", ""),
            ("pseudolabel", clusters, "normalised mutual information with the true classes", ""),
        ] {
            let expected = (metric.to_owned(), model.to_owned(), 0.75);
            assert_eq!(told(kind, &figures), [expected], "{kind}");
            // A run that has not ended has no figures, and one of another version may have others.
            for none in [Value::Null, json!({ "labels": [], "subjects": {} })] {
                assert!(told(kind, &none).is_empty(), "{kind}");
            }
        }
        assert!(told("pretrain", &json!({})).is_empty());
    }

    #[test]
    fn what_changed_is_named_with_both_values_and_other_tables_are_left_out() {
        let before =
            "[evaluate]\nseeds = 5\nlist = [1]\nsame = 1\n[evaluates]\na = 1\n[run]\na = 1";
        let now = "[evaluate]\nseeds = 6\nlist = [2]\nsame = 1\n[evaluates]\na = 2\n[run]\na = 2\n\
                   [forecast]\nseason = 12";
        let said = changed(before, now, &["evaluate", "forecast"]);
        let expected = [
            "`evaluate.list` was [1] and is [2]",
            "`evaluate.seeds` was 5 and is 6",
            "`forecast.season` was not set and is 12",
        ];
        assert_eq!(said, expected);
        assert!(changed("no settings", now, &["evaluate"]).is_empty());
    }

    #[test]
    fn settings_are_flat_and_large_ones_are_short() {
        let text = "[a]\nb = 1e38\nc = 0.5\nd = 3\ne = \"x\"\nf = -2.5e10";
        let out: Vec<String> =
            flat(text).unwrap().iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(out, ["a.b=1e38", "a.c=0.5", "a.d=3", "a.e=x", "a.f=-2.5e10"]);
    }
}
