//! Who hears of a run's events: whoever started it, its log and its trackers.

use std::time::Instant;

use firebox_core::{Event, Listener};
use firebox_monitor::Trackers;

use crate::folder::EventLog;

/// Sends events to the user's listener, to the log of the run, and to the trackers.
pub(crate) struct Everyone<'a> {
    pub(crate) listener: &'a dyn Listener,
    pub(crate) log: &'a EventLog,
    pub(crate) trackers: &'a Trackers,
}

impl Everyone<'_> {
    /// Says how a run ended that was started then, ends the trackers, and says what is to be said of
    /// them.
    pub(crate) fn finish(&self, run: &str, outcome: &str, started: Instant) {
        self.on(&Event::RunFinished {
            run: run.to_owned(),
            outcome: outcome.to_owned(),
            seconds: started.elapsed().as_secs_f64(),
        });
        self.say(self.trackers.close());
    }

    fn say(&self, warnings: Vec<String>) {
        for message in warnings {
            let event = Event::Warning { message };
            self.log.on(&event);
            self.listener.on(&event);
        }
    }
}

impl Listener for Everyone<'_> {
    fn on(&self, event: &Event) {
        self.log.on(event);
        self.listener.on(event);
        self.trackers.on(event);
        self.say(self.trackers.warnings());
        if let Some(message) = self.log.warning() {
            self.say(vec![message]);
        }
    }
}
