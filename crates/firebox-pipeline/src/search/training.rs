//! The part of a run that a trial needs: everything up to the end of its training.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use firebox_core::{Listener, Requests};
use firebox_train::{CHECKPOINT_FOLDER, Checkpoint, CheckpointError, SUMMARY_FILE, Summary};

use crate::Prepared;
use crate::chain::Work;
use crate::device::ChosenDevice;
use crate::error::{PipelineError, at};
use crate::keys::Keys;
use crate::score::WantedScores;
use crate::shared::Shared;
use crate::stages::{
    Everyone, Run, begin, check_size, failed, started_event, summary_of, trackers,
};

/// What ends a trial's training before its time.
#[derive(Default)]
pub(super) struct Halt {
    pub(super) stop: Arc<AtomicBool>,
    /// Whether anybody will go on with it.
    pub(super) requests: Requests,
}

/// What a training that ended says of itself, and the scores that were wanted of its model.
pub(super) type Ended = (Summary, Vec<f64>);

/// What a training said of itself that ended in this folder, if the checkpoint that it selected is not there
/// any more: a search removes those of trials that are not among the best, and a person may remove any.
pub(super) fn forgotten(run: &Path) -> Option<Summary> {
    let text = std::fs::read(run.join(SUMMARY_FILE)).ok()?;
    let summary: Summary = serde_json::from_slice(&text).ok()?;
    let selected = summary.selected_path(run);
    let is_gone = |name: &String| matches!(selected.join(name).try_exists(), Ok(false));
    let forgotten = match Checkpoint::open(&selected) {
        Ok(checkpoint) => checkpoint.manifest().files.keys().any(is_gone),
        // One that cannot be read is there, and whoever reads it says what is wrong with it.
        Err(error) => matches!(error, CheckpointError::NoManifest(_)),
    };
    forgotten.then_some(summary)
}

/// Lets a training that ended begin again from its start. Whoever asks for that holds the folder of the run.
///
/// # Errors
///
/// If what is left of it cannot be removed.
pub(super) fn begin_again(run: &Path) -> Result<(), PipelineError> {
    let checkpoints = run.join(CHECKPOINT_FOLDER);
    if checkpoints.is_dir() {
        std::fs::remove_dir_all(&checkpoints).map_err(at(&checkpoints))?;
    }
    // Last what says that it has ended: without that, it would go on from a checkpoint that is left.
    let summary = run.join(SUMMARY_FILE);
    std::fs::remove_file(&summary).map_err(at(&summary))
}

/// Everything up to the end of training, for a search; `None` if it was stopped. A run that was trained
/// before is not trained again, and scored if that is wanted, for which it needs its checkpoint: one whose
/// checkpoint is gone is trained again.
pub(super) fn train_only(
    prepared: &Prepared,
    device: &ChosenDevice,
    keys: &Keys,
    path: &Path,
    halt: &Halt,
    (shared, wanted): (&Shared, &WantedScores),
    listener: &dyn Listener,
) -> Result<Option<Ended>, PipelineError> {
    if let Some(summary) = summary_of(path, keys).filter(|_| wanted.scores.is_empty()) {
        return Ok(Some((summary, vec![])));
    }
    let started = Instant::now();
    // The model of each trial may be of another size.
    check_size(prepared.config(), device)?;
    let (folder, reasons, log) = begin(prepared, device, keys, path)?;
    if forgotten(path).is_some_and(|summary| summary.key == keys.training) {
        begin_again(path)?;
    }
    let trackers = trackers(prepared, path)?;
    let all = Everyone { listener, log: &log, trackers: &trackers };
    let name = started_event(device, path, &all);
    let config = prepared.config();
    let run = Run {
        config,
        device,
        keys,
        listener: &all,
        stop: &halt.stop,
        requests: &halt.requests,
        shared,
        wanted,
    };
    let finish = |outcome: &str| all.finish(&name, outcome, started);
    let mut work = Work::new(prepared, &folder, path, reasons);
    let chain = prepared.config().pipeline.chain();
    let summary = match chain.train_only(&run, &mut work) {
        // Gone on with later, as one that was stopped while it trained.
        Err(PipelineError::Interrupted) => Ok(None),
        trained => trained,
    }
    .inspect_err(|error| finish(&failed(error)))?;
    let outcome = summary.as_ref().map(|summary| summary.outcome.to_string());
    finish(outcome.as_deref().unwrap_or("interrupted"));
    Ok(summary.map(|summary| (summary, work.scores)))
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use firebox_core::Key;
    use firebox_train::{Counts, FileEntry, Kind, Manifest, Outcome, SaveTimes};

    use super::*;

    /// Writes what a training leaves: a summary, and the checkpoint that it selected with one file.
    pub(in crate::search) fn ended(run: &Path, key: Key) -> Summary {
        let summary = Summary {
            outcome: Outcome::Finished,
            key,
            steps: 8,
            epochs: 2,
            parameters: 90,
            best: None,
            selected: "step-000004".to_owned(),
            counts: Counts::default(),
            divisions: vec![],
            saves: SaveTimes::default(),
            seconds: 1.0,
            data_seconds: 0.5,
        };
        let selected = summary.selected_path(run);
        std::fs::create_dir_all(&selected).unwrap();
        let entry = FileEntry { bytes: 4, sha256: String::new() };
        let files = BTreeMap::from([("weights.safetensors".to_owned(), entry)]);
        let (kind, score) = (Kind::Epoch, None);
        let manifest = Manifest { version: 2, step: 4, epochs: 1, kind, score, key, files };
        let write = |path: &Path, text: Vec<u8>| std::fs::write(path, text).unwrap();
        write(&selected.join("manifest.json"), serde_json::to_vec(&manifest).unwrap());
        write(&selected.join("weights.safetensors"), b"text".to_vec());
        write(&run.join(SUMMARY_FILE), serde_json::to_vec(&summary).unwrap());
        summary
    }

    #[test]
    fn a_training_is_forgotten_once_its_checkpoint_is_gone_and_then_begins_again() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path();
        assert_eq!(forgotten(run), None, "nothing was trained");
        let summary = ended(run, Key::builder("test", 1).finish());
        let selected = summary.selected_path(run);
        assert_eq!(forgotten(run), None, "all of it is there");
        // A damaged checkpoint is there, and a person may have a copy of it.
        std::fs::write(selected.join("weights.safetensors"), "t").unwrap();
        assert_eq!(forgotten(run), None);
        std::fs::remove_file(selected.join("weights.safetensors")).unwrap();
        assert_eq!(forgotten(run), Some(summary.clone()));
        std::fs::remove_dir_all(&selected).unwrap();
        assert_eq!(forgotten(run), Some(summary));
        // A newer checkpoint is not what was selected, and nothing goes on from it.
        std::fs::create_dir_all(run.join(CHECKPOINT_FOLDER).join("step-000008")).unwrap();
        begin_again(run).unwrap();
        assert!(!run.join(CHECKPOINT_FOLDER).exists() && !run.join(SUMMARY_FILE).exists());
        assert_eq!(forgotten(run), None);
    }
}
