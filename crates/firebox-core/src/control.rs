//! What a person asks of a run while it goes on. How the question arrives is not known here.

use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

/// Something to be done at the end of the step in hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Stand still until told to go on.
    Pause,
    /// Go on after a pause.
    GoOn,
    /// Save a checkpoint.
    Save,
    /// End this epoch with its validation, save, and stop. A run that stands still goes on for it.
    StopAfterEpoch,
}

impl Request {
    /// Every request.
    pub const ALL: [Self; 4] = [Self::Pause, Self::GoOn, Self::Save, Self::StopAfterEpoch];

    /// Its name in files and on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::GoOn => "go-on",
            Self::Save => "save",
            Self::StopAfterEpoch => "stop-after-epoch",
        }
    }
}

/// Requests on their way to the training loop. Asking and looking cost a memory access each.
#[derive(Debug, Default)]
pub struct Requests {
    paused: AtomicBool,
    save: AtomicBool,
    stop_after_epoch: AtomicBool,
    given_up: AtomicBool,
}

impl Requests {
    /// Nothing asked.
    pub const fn new() -> Self {
        Self {
            paused: AtomicBool::new(false),
            save: AtomicBool::new(false),
            stop_after_epoch: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
        }
    }

    /// Asks for something.
    pub fn ask(&self, request: Request) {
        match request {
            Request::Pause => self.paused.store(true, Ordering::SeqCst),
            Request::GoOn => self.paused.store(false, Ordering::SeqCst),
            Request::Save => self.save.store(true, Ordering::SeqCst),
            Request::StopAfterEpoch => {
                self.stop_after_epoch.store(true, Ordering::SeqCst);
                // After it, so that whoever goes on has heard it.
                self.paused.store(false, Ordering::SeqCst);
            }
        }
    }

    /// Whether to stand still.
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    /// Takes the request to save: it is answered once.
    pub fn take_save(&self) -> bool {
        // Read first, so that a step without a request writes to no shared memory.
        self.save.load(Ordering::Relaxed) && self.save.swap(false, Ordering::SeqCst)
    }

    /// Takes the request to stop after the epoch: it is answered once.
    pub fn take_stop_after_epoch(&self) -> bool {
        let asked = self.stop_after_epoch.load(Ordering::Relaxed);
        asked && self.stop_after_epoch.swap(false, Ordering::SeqCst)
    }

    /// Says that nobody will go on with the run, so that it saves nothing when it is stopped.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::SeqCst);
    }

    /// Whether nobody will go on with the run.
    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_answered_once_and_a_pause_lasts() {
        let requests = Requests::new();
        assert!(
            !requests.is_paused() && !requests.take_save() && !requests.take_stop_after_epoch()
        );
        Request::ALL.iter().for_each(|request| requests.ask(*request));
        assert!(requests.take_save() && !requests.take_save());
        assert!(requests.take_stop_after_epoch() && !requests.take_stop_after_epoch());
        assert!(!requests.is_paused(), "the pause was taken back");
        requests.ask(Request::Pause);
        assert!(requests.is_paused() && requests.is_paused());
        requests.ask(Request::StopAfterEpoch);
        assert!(!requests.is_paused() && requests.take_stop_after_epoch());
    }

    #[test]
    fn the_name_is_the_one_in_files() {
        for request in Request::ALL {
            let text = serde_json::to_string(&request).unwrap();
            assert_eq!(text, format!("\"{}\"", request.name()));
        }
    }
}
