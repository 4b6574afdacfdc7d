//! The loop of a worker: ask, run, tell, until the budget is used up.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Ended, Study, StudyError, TrialHandle};
use crate::stop::EarlyStop;

/// When to begin no more trials. Everything left out is unlimited.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Budget {
    /// Trials of the study in all, of all workers. A trial that is tried again counts once.
    pub trials: Option<u64>,
    /// Time since this worker began. A trial that runs by then is not stopped.
    pub time: Option<Duration>,
    /// When the best value has not improved for long.
    pub early_stop: Option<EarlyStop>,
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
    /// that reason, and the study goes on; see also [`TrialHandle::give_up`] and
    /// [`TrialHandle::interrupt`].
    ///
    /// # Errors
    ///
    /// If the journal fails.
    pub fn optimize<E: Display>(
        &self,
        budget: &Budget,
        mut objective: impl FnMut(&mut TrialHandle<'_>) -> Result<Vec<f64>, E>,
    ) -> Result<(), StudyError> {
        let start = Instant::now();
        loop {
            let late = budget.time.is_some_and(|time| start.elapsed() >= time);
            if late || self.stop.load(Ordering::SeqCst) {
                return Ok(());
            }
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
            let stops = wish == Some(Ended::Interrupted);
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
    }
}

/// The message of a panic.
fn said(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}
