//! How a run starts: its folder with what it is begun as, its log, its trackers and its first event.

use std::path::Path;

use firebox_core::{Event, Listener};
use firebox_eval::Reason;
use firebox_monitor::{TrackedRun, Trackers};

use super::derived::reasons;
use crate::Prepared;
use crate::compare::changed;
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::folder::{
    Begun, EventLog, PIPELINE, RunFolder, is_finished, is_otherwise_finished, is_searched,
    steps_behind, unmark,
};
use crate::keys::Keys;

/// Tables of which some settings decide a report and not the training that a run is named after.
const MEASURED: [&str; 2] = ["evaluate", "forecast"];

/// Takes the folder of a run, and writes down what it is begun as.
pub(crate) fn begin(
    prepared: &Prepared,
    device: &ChosenDevice,
    keys: &Keys,
    path: &Path,
    by: Asker,
) -> Result<(RunFolder, Vec<Reason>, EventLog), PipelineError> {
    // Before there is a folder: settings that cannot be written leave none.
    let reasons = reasons(prepared, device)?;
    let resolved = prepared.resolved(&reasons)?;
    let folder = RunFolder::open(path)?;
    match by {
        Asker::Search | Asker::Trial => folder.mark_if_new()?,
        Asker::User => unmark(path),
    }
    // A trial that reads what somebody's run has learnt leaves it as finished as it is.
    if !(by == Asker::Trial && is_finished(path) && !is_searched(path)) {
        folder.unfinish()?;
        folder.begin(&begun_as(prepared, keys))?;
        folder.write(PIPELINE, resolved.as_bytes())?;
    }
    let log = folder.events()?;
    Ok((folder, reasons, log))
}

/// Who wants a run to be made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    /// Whoever keeps it.
    User,
    /// A search, which may remove its checkpoints, and measures its best one.
    Search,
    /// A trial of a search, which wants to know what it has learnt.
    Trial,
}

/// What the run of a pipeline is begun as.
fn begun_as(prepared: &Prepared, keys: &Keys) -> Begun {
    Begun { name: prepared.name().to_owned(), training: keys.training }
}

/// Writes anew what a finished run was begun as, and says so.
pub(super) fn begin_anew(
    prepared: &Prepared,
    keys: &Keys,
    path: &Path,
    message: String,
    listener: &dyn Listener,
) {
    // A finished run may lie where nothing can be written.
    let begin = |folder: RunFolder| folder.begin(&begun_as(prepared, keys));
    if RunFolder::open(path).and_then(begin).is_ok() {
        listener.on(&Event::Warning { message });
    }
}

/// What is to be said of a finished report that is about to be replaced. A run is named after its training, so
/// that another evaluation of it reuses that, and ends in the same folder.
pub(super) fn replaced(
    prepared: &Prepared,
    keys: &Keys,
    path: &Path,
) -> Result<Option<String>, PipelineError> {
    if !is_otherwise_finished(path, keys.evaluation) {
        return Ok(None);
    }
    // Without it, nothing is known of the settings that it was made with.
    let before = std::fs::read_to_string(path.join(PIPELINE)).unwrap_or_default();
    let changed = changed(&before, &prepared.toml()?, &MEASURED);
    let why = match changed.is_empty() {
        true => "it was made by other settings, or by another version of Firebox".to_owned(),
        false => changed.join(", "),
    };
    Ok(Some(format!(
        "the finished report in {} is replaced: {why}; to keep it, with its scores and test windows, copy that folder before this run ends",
        path.display()
    )))
}

/// Name of a run: that of its folder.
pub(crate) fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The trackers that the settings ask for.
pub(crate) fn trackers(prepared: &Prepared, path: &Path) -> Result<Trackers, PipelineError> {
    let settings = prepared.absolute()?;
    let tracked = TrackedRun {
        name: name_of(path),
        folder: path.to_path_buf(),
        settings: serde_json::to_value(&settings).unwrap_or_default(),
    };
    Ok(Trackers::start(&settings.monitor, &tracked))
}

/// Says that a run begins or goes on, and returns its name.
pub(crate) fn started_event(device: &ChosenDevice, path: &Path, listener: &dyn Listener) -> String {
    let name = name_of(path);
    listener.on(&Event::RunStarted {
        run: name.clone(),
        device: device.description.clone(),
        resumed_at_step: steps_behind(path),
    });
    name
}

#[cfg(test)]
mod tests {
    use firebox_core::Key;

    use super::*;
    use crate::PipelineConfig;
    use crate::folder::Conclusion;

    #[test]
    fn a_finished_report_is_not_replaced_without_a_word() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run");
        let said = |config: &PipelineConfig| {
            let keys = Keys::new(config, Key::builder("series", 1).finish(), "cpu");
            replaced(&Prepared::of("test", config.clone()), &keys, &path).unwrap()
        };
        let mut config = PipelineConfig::default();
        config.data.path = firebox_data::Paths(vec!["bars.csv".into()]);
        config.evaluate.seeds = 5;
        assert_eq!(said(&config), None, "there is no report");
        let run = RunFolder::open(&path).unwrap();
        let resolved = Prepared::of("test", config.clone()).resolved(&[]).unwrap();
        run.write(PIPELINE, resolved.as_bytes()).unwrap();
        for name in ["scores.json", "summary.md", "report.html"] {
            run.write(name, b"text").unwrap();
        }
        let keys = Keys::new(&config, Key::builder("series", 1).finish(), "cpu");
        let end = Conclusion { trained: String::new(), verdict: String::new() };
        run.finish(keys.evaluation, &end).unwrap();
        config.monitor.period = 9.0;
        assert_eq!(said(&config), None, "it is the report of these settings");
        config.evaluate.seeds = 6;
        let text = said(&config).unwrap();
        assert!(text.contains("run is replaced: `evaluate.seeds` was 5 and is 6; to"), "{text}");
        run.write(PIPELINE, b"no settings").unwrap();
        let text = said(&config).unwrap();
        assert!(text.contains("is replaced: it was made by other settings, or"), "{text}");
        run.unfinish().unwrap();
        assert_eq!(said(&config), None, "it is finished no more");
    }
}
