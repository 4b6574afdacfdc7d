//! The part of a run that a trial needs: everything up to the end of its training.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use firebox_core::{Listener, Requests};
use firebox_train::Summary;

use crate::Prepared;
use crate::chain::Work;
use crate::device::ChosenDevice;
use crate::error::PipelineError;
use crate::forgotten::begin_again_if_forgotten;
use crate::keys::{Keys, validates};
use crate::score::WantedScores;
use crate::shared::Shared;
use crate::stages::{
    Asker, Everyone, Run, begin, check_size, failed, started_event, summary_of, trackers,
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
    // One that somebody ran without a validation part has no validation loss, and is refused as any other.
    let is_told = wanted.scores.is_empty() && validates(prepared.config());
    if let Some(summary) = summary_of(path, keys).filter(|_| is_told) {
        return Ok(Some((summary, vec![])));
    }
    let started = Instant::now();
    // The model of each trial may be of another size.
    check_size(prepared.config(), device)?;
    let (folder, reasons, log) = begin(prepared, device, keys, path, Asker::Trial)?;
    begin_again_if_forgotten(path, keys.training)?;
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
