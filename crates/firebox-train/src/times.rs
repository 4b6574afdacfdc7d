//! Where the time of steps went, added up until an epoch or a checkpoint: two looks at the clock for each part.

use std::time::Duration;

use firebox_loader::Batch;

use crate::TimesRecord;

/// Times of the steps since they were last told.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    steps: u64,
    all: Duration,
    waiting: Duration,
    upload: Duration,
    handing: Duration,
    filling: Duration,
    /// Forward, backward and optimizer, as long as the host is busy with them.
    pub(crate) computing: Duration,
    /// Standing still until the device has a result.
    pub(crate) reading_back: Duration,
}

impl Times {
    pub(crate) fn batch(&mut self, batch: &Batch) {
        self.waiting += batch.wait.saturating_sub(batch.upload);
        self.upload += batch.upload;
        self.handing += batch.handed;
        self.filling += batch.fill;
    }

    pub(crate) fn step(&mut self, all: Duration) {
        self.steps += 1;
        self.all += all;
    }

    /// What is to be told, after which it begins anew. None without a step.
    pub(crate) fn take(&mut self, step: u64) -> Option<TimesRecord> {
        let Self { steps, all, waiting, upload, handing, filling, computing, reading_back } =
            std::mem::take(self);
        let known = waiting + upload + computing + reading_back;
        (steps > 0).then(|| TimesRecord {
            step,
            steps,
            waiting: waiting.as_secs_f64(),
            upload: upload.as_secs_f64(),
            handing: handing.as_secs_f64(),
            filling: filling.as_secs_f64(),
            computing: computing.as_secs_f64(),
            reading_back: reading_back.as_secs_f64(),
            other: all.saturating_sub(known).as_secs_f64(),
        })
    }
}
