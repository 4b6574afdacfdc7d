//! The loop of a worker: ask, run, tell, until the budget is used up.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Ended, Study, StudyError, TrialHandle};
use crate::stop::EarlyStop;

/// When to begin no more trials. Everything left out is unlimited.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Budget {
    /// Trials of the study in all, of all workers. A trial that is tried again counts once.
    pub trials: Option<u64>,
    /// Time of the study in all, of all workers: that in which at least one of its trials ran, see
    /// [`Study::time_spent`]. A trial that runs when it is over is not stopped.
    pub time: Option<Duration>,
    /// When the best value has not improved for long.
    pub early_stop: Option<EarlyStop>,
}

/// Why a study begins no more trials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// [`Budget::trials`]
    Trials,
    /// [`Budget::time`]
    Time,
    /// [`Budget::early_stop`]
    EarlyStop,
    /// The sampler has nothing left to propose.
    Proposals,
}

/// What became of asking for a trial.
pub(super) enum Asked<'study> {
    Trial(TrialHandle<'study>),
    /// None is to be begun any more; one whose worker dies may still come back.
    UsedUp,
    Stopped,
}

impl Study {
    /// Runs trials until the budget is used up, and then waits for those of others, to go on with them
    /// if their workers die. Several threads may call it at once.
    ///
    /// The function returns a value of each objective. An error or a panic of it fails the trial with
    /// that reason, and the study goes on; see also [`TrialHandle::give_up`],
    /// [`TrialHandle::interrupt`] and [`TrialHandle::put_back`].
    ///
    /// # Errors
    ///
    /// If the journal fails.
    pub fn optimize<E: Display>(
        &self,
        budget: &Budget,
        mut objective: impl FnMut(&mut TrialHandle<'_>) -> Result<Vec<f64>, E>,
    ) -> Result<(), StudyError> {
        while !self.stop.load(Ordering::SeqCst) {
            let mut trial = match self.ask_within(budget)? {
                Asked::Trial(trial) => trial,
                Asked::Stopped => return Ok(()),
                Asked::UsedUp if !self.others_work()? => return Ok(()),
                Asked::UsedUp => {
                    let pause = self.heart.every() / 4;
                    std::thread::sleep(pause.min(Duration::from_millis(500)));
                    continue;
                }
            };
            let result = catch_unwind(AssertUnwindSafe(|| objective(&mut trial)));
            let wish = trial.wish.take();
            let stops = matches!(wish, Some(Ended::Interrupted | Ended::PutBack(_)));
            let ended = wish.unwrap_or_else(|| match result {
                Ok(Ok(values)) => Ended::Complete(values),
                // If the journal answers again, the trial is gone on with; if not, nobody is told.
                Ok(Err(_)) if trial.unheard.get() => Ended::Interrupted,
                Ok(Err(error)) => Ended::Failed(error.to_string()),
                Err(panic) => Ended::Failed(format!("it panicked: {}", said(panic.as_ref()))),
            });
            match trial.end(ended) {
                // Somebody else goes on with it; what this worker computed is the same.
                Ok(_) | Err(StudyError::Ended { .. }) => {}
                Err(error) => return Err(error),
            }
            if stops {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// The message of a panic.
fn said(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}
