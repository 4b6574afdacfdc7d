//! The part of a run that a trial needs: everything up to the end of its training.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use firebox_core::{Listener, Requests};
use firebox_eval::Reason;

use crate::Prepared;
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::folder::{PIPELINE, RunFolder};
use crate::keys::Keys;
use crate::stages::{
    Everyone, Run, Training, begin, failed, split_reasons, started_event, trackers,
};

/// Everything up to the end of training, for a search: what the training says of itself, or `None` if
/// it was stopped. A run that was trained before is not trained again.
pub(super) fn train_only(
    prepared: &Prepared,
    device: &ChosenDevice,
    keys: &Keys,
    path: &Path,
    stop: &Arc<AtomicBool>,
    listener: &dyn Listener,
) -> Result<Option<firebox_train::Summary>, PipelineError> {
    if let Some(summary) = trained_before(path, keys) {
        return Ok(Some(summary));
    }
    let started = Instant::now();
    let (folder, mut reasons, log) = begin(prepared, device, keys, path)?;
    let trackers = trackers(prepared, path)?;
    let all = Everyone { listener, log: &log, trackers: &trackers };
    let name = started_event(device, path, &all);
    let requests = Requests::new();
    let run =
        Run { config: prepared.config(), device, keys, listener: &all, stop, requests: &requests };
    let finish = |outcome: &str| all.finish(&name, outcome, started);
    let summary = trained(&run, prepared, &folder, &mut reasons, path)
        .inspect_err(|error| finish(&failed(error)))?;
    let outcome = summary.as_ref().map(|summary| summary.outcome.to_string());
    finish(outcome.as_deref().unwrap_or("interrupted"));
    Ok(summary)
}

/// The stages, and what the last one says of itself, or `None` if it was stopped.
fn trained(
    run: &Run<'_>,
    prepared: &Prepared,
    folder: &RunFolder,
    reasons: &mut Vec<Reason>,
    path: &Path,
) -> Result<Option<firebox_train::Summary>, PipelineError> {
    let mut remade = 0;
    let windows = run.windows(&mut remade)?;
    if windows.parts.validation.is_empty() {
        return Err(PipelineError::NoValidation);
    }
    reasons.extend(split_reasons(prepared.config(), &windows));
    folder.write(PIPELINE, prepared.resolved(reasons)?.as_bytes())?;
    let shards = run.augment(&windows, &mut remade)?;
    Ok(match run.train(&windows, shards, path, &mut remade)? {
        Training::Complete(_) => trained_before(path, run.keys),
        Training::Interrupted { .. } => None,
    })
}

/// What a run's training said when it ended.
fn trained_before(path: &Path, keys: &Keys) -> Option<firebox_train::Summary> {
    let text = std::fs::read(path.join(firebox_train::SUMMARY_FILE)).ok()?;
    let summary: firebox_train::Summary = serde_json::from_slice(&text).ok()?;
    (summary.key == keys.training).then_some(summary)
}
