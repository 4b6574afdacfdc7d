//! Trainings that have ended and whose checkpoint is not there any more.

use std::path::Path;

use firebox_core::Key;
use firebox_train::{CHECKPOINT_FOLDER, Checkpoint, CheckpointError, SUMMARY_FILE, Summary};

use crate::error::{PipelineError, at};

/// What a training said of itself that ended in this folder, if the checkpoint that it selected is not there
/// any more: a search removes those of trials that are not among the best, and a person may remove any.
pub(crate) fn forgotten(run: &Path) -> Option<Summary> {
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
pub(crate) fn begin_again(run: &Path) -> Result<(), PipelineError> {
    let checkpoints = run.join(CHECKPOINT_FOLDER);
    if checkpoints.is_dir() {
        std::fs::remove_dir_all(&checkpoints).map_err(at(&checkpoints))?;
    }
    // Last what says that it has ended: without that, it would go on from a checkpoint that is left.
    let summary = run.join(SUMMARY_FILE);
    std::fs::remove_file(&summary).map_err(at(&summary))
}

/// Lets a training of this key begin again whose checkpoint is gone, and returns what is to be said of it. Whoever asks for that
/// holds the folder of the run.
///
/// # Errors
///
/// As [`begin_again`].
pub(crate) fn begin_again_if_forgotten(
    run: &Path,
    key: Key,
) -> Result<Option<String>, PipelineError> {
    let Some(summary) = forgotten(run).filter(|summary| summary.key == key) else {
        return Ok(None);
    };
    begin_again(run)?;
    Ok(Some(format!(
        "the checkpoint that the training of {} ended with, {}, is not there any more (a search removes those of trials that are not among the best): it is trained again",
        run.display(),
        summary.selected
    )))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use firebox_train::{Counts, FileEntry, Kind, Manifest, Outcome, SaveTimes};

    use super::*;

    /// Writes what a training leaves: a summary, and the checkpoint that it selected with one file.
    pub(crate) fn ended(run: &Path, key: Key) -> Summary {
        let summary = Summary {
            outcome: Outcome::Finished,
            key,
            steps: 8,
            epochs: 2,
            parameters: 90,
            best: None,
            selected: "step-000004".to_owned(),
            averaged: false,
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
