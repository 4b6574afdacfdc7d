//! What a rollback goes back to: the newest regular checkpoint from which a later step was finite.
//!
//! Whether weights are good shows only in the step after them. Until then the checkpoint before
//! stays the one to go back to, or a run whose update broke the weights would go back to broken
//! ones for ever.

use std::path::Path;
use std::sync::Arc;

use burn::module::Module;
use firebox_core::{Event, Listener};
use serde::{Deserialize, Serialize};

use crate::TrainError;
use crate::average::Average;
use crate::checkpoint::{Kind, Whole, checkpoints};
use crate::optimizer::OptimizerState;
use crate::snapshot::Snapshot;

/// The steps of the checkpoints that a rollback needs; part of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RollbackSteps {
    /// Of the one that a rollback goes back to.
    pub proved: Option<u64>,
    /// Of a newer one from which no step was finite yet.
    pub candidate: Option<u64>,
}

impl RollbackSteps {
    /// Whether there is neither, as in a run that never goes back.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a rollback may need the checkpoint of this step.
    pub(crate) fn needs(&self, step: u64) -> bool {
        [self.proved, self.candidate].contains(&Some(step))
    }
}

/// Copies of these checkpoints.
#[derive(Default)]
pub(crate) struct Safe {
    proved: Option<Arc<Snapshot>>,
    candidate: Option<Arc<Snapshot>>,
}

impl Safe {
    /// Takes a regular checkpoint. That of the start has nothing before it to go back to.
    pub(crate) fn take(&mut self, steps: &mut RollbackSteps, step: u64, snapshot: &Arc<Snapshot>) {
        let snapshot = Some(Arc::clone(snapshot));
        match step {
            0 => (self.proved, steps.proved) = (snapshot, Some(step)),
            _ => (self.candidate, steps.candidate) = (snapshot, Some(step)),
        }
    }

    /// After a step that was finite.
    pub(crate) fn prove(&mut self, steps: &mut RollbackSteps) {
        if let Some(candidate) = self.candidate.take() {
            self.proved = Some(candidate);
            steps.proved = steps.candidate.take();
        }
    }

    /// What to go back to, if there is anything. What was not proved is given up.
    pub(crate) fn go_back(&mut self, steps: &mut RollbackSteps) -> Option<&Snapshot> {
        (self.candidate, steps.candidate) = (None, None);
        self.proved.as_deref()
    }

    /// The copies of a run that goes on, of which model, optimizer and average have the shapes. A
    /// checkpoint that is gone or damaged is left out of `steps`, with a warning.
    pub(crate) fn read<M: Module>(
        steps: &mut RollbackSteps,
        folder: &Path,
        like: (&M, &OptimizerState, &Average),
        listener: &dyn Listener,
    ) -> Result<Self, TrainError> {
        let there = checkpoints(folder)?;
        if steps.is_empty() {
            // Written before the steps were: then it was the newest regular one.
            let regular = there.iter().find(|one| one.manifest().kind != Kind::Interrupt);
            steps.proved = regular.map(|one| one.manifest().step);
        }
        let read = |step: &mut Option<u64>| -> Result<Option<Arc<Snapshot>>, TrainError> {
            let Some(wanted) = *step else { return Ok(None) };
            let found = there.iter().find(|one| one.manifest().step == wanted);
            if let Some(Ok(whole)) = found.map(|one| Whole::read(one.clone())) {
                return copy(whole, like).map(|copy| Some(Arc::new(copy)));
            }
            *step = None;
            let message = format!(
                "the checkpoint of step {wanted}, which `train.non_finite = \"rollback\"` may go \
                 back to, is gone or damaged: until a newer one is proved by a finite step, a step \
                 that is not finite ends the run"
            );
            listener.on(&Event::Warning { message });
            Ok(None)
        };
        Ok(Self { proved: read(&mut steps.proved)?, candidate: read(&mut steps.candidate)? })
    }
}

fn copy<M: Module>(
    whole: Whole,
    (model, optimizer, average): (&M, &OptimizerState, &Average),
) -> Result<Snapshot, TrainError> {
    let (mut model, mut optimizer) = (model.clone(), optimizer.clone());
    let mut average = average.clone();
    whole.restore(&mut model, &mut optimizer, &mut average)?;
    Snapshot::take(&model, &optimizer, &average)
}
