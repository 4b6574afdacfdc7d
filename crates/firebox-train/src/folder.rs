//! The folder of a run: who may use it, whether its run has ended, whether a checkpoint fits it.

use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::Path;

use crate::TrainError;
use crate::checkpoint::{Checkpoint, CheckpointError, checkpoints, sync_folder};
use crate::history::HISTORY_FILE;
use crate::run::{CHECKPOINT_FOLDER, Run, SUMMARY_FILE, Summary};
use crate::state::State;

/// Refuses to go on from a checkpoint whose history is missing or cut. The checkpoint is whole, so
/// it stays as it is.
pub(crate) fn history_reaches(
    run: &Run<'_>,
    checkpoint: &Checkpoint,
) -> Result<(), CheckpointError> {
    let path = run.folder.join(HISTORY_FILE);
    let wanted = checkpoint.state()?.history_bytes;
    let found = fs::metadata(&path).map_or(0, |file| file.len());
    if found >= wanted {
        return Ok(());
    }
    let reached = |other: &Checkpoint| other.state().is_ok_and(|s| s.history_bytes <= found);
    let all = checkpoints(&run.folder.join(CHECKPOINT_FOLDER))?;
    let older = all.into_iter().find(reached).map(|older| older.path().to_owned());
    let checkpoint = checkpoint.path().to_owned();
    Err(CheckpointError::History { path, found, wanted, checkpoint, older })
}

pub(crate) fn check_same(state: &State, run: &Run<'_>) -> Result<(), TrainError> {
    let path = run.folder.to_owned();
    if state.key != run.key {
        return Err(TrainError::different(path, "the configuration", state.key, run.key));
    }
    if state.seed != run.seed {
        let (found, wanted) = (state.seed.to_string(), run.seed.to_string());
        return Err(TrainError::Different { path, what: "the seed", found, wanted });
    }
    Ok(())
}

/// Holds the run's folder for this process; the system lets go of it however the process ends.
pub(crate) fn lock(folder: &Path) -> Result<File, TrainError> {
    let path = folder.join("training.lock");
    let error = |action, source| TrainError::File { action, path: path.clone(), source };
    fs::create_dir_all(folder).map_err(|source| TrainError::File {
        action: "create the folder",
        path: folder.to_owned(),
        source,
    })?;
    let file = File::create(&path).map_err(|source| error("create", source))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(TrainError::Locked(folder.to_owned())),
        Err(TryLockError::Error(source)) => Err(error("lock", source)),
    }
}

/// The summary of a run that has ended.
pub(crate) fn ended_before(run: &Run<'_>) -> Result<Option<Summary>, TrainError> {
    let path = run.folder.join(SUMMARY_FILE);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(TrainError::File { action: "read", path, source }),
    };
    if !run.resume {
        return Err(TrainError::Exists(run.folder.to_owned()));
    }
    let summary: Summary = serde_json::from_slice(&text).map_err(|source| {
        let way_out = "remove it and resume the run";
        TrainError::Content { path, line: None, way_out, source }
    })?;
    if summary.key != run.key {
        let path = run.folder.to_owned();
        return Err(TrainError::different(path, "the configuration", summary.key, run.key));
    }
    Ok(Some(summary))
}

pub(crate) fn write_summary(folder: &Path, summary: &Summary) -> Result<(), TrainError> {
    let path = folder.join(SUMMARY_FILE);
    let partial = folder.join(format!(".{SUMMARY_FILE}.partial"));
    let write = || {
        let mut file = File::create(&partial)?;
        file.write_all(&serde_json::to_vec_pretty(summary)?)?;
        file.sync_all()?;
        fs::rename(&partial, &path)
    };
    write().map_err(|source| TrainError::File { action: "write", path: path.clone(), source })?;
    // Checkpoints go after it, and must not go before it.
    Ok(sync_folder(folder)?)
}
