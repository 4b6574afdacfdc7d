//! Where the time of steps went, and what limits them.

use firebox_core::Event;

use crate::text::{percent, significant};

/// Times of some steps in seconds, as [`Event::Times`] has them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct StepTimes {
    pub(crate) step: u64,
    pub(crate) steps: u64,
    pub(crate) waiting: f64,
    pub(crate) upload: f64,
    /// Handing batches to the device, by whichever thread.
    handing: f64,
    pub(crate) filling: f64,
    computing: f64,
    reading_back: f64,
    other: f64,
}

/// Share of a step's time from which a part of it is worth changing.
const NOTABLE: f64 = 0.05;

/// How many times as fast steps would have to be for more threads to be worth a word: less is noise. A choice.
const WORTH: f64 = 1.05;

impl StepTimes {
    /// The times that an event tells, if it tells any.
    pub(crate) fn of(step: u64, event: &Event) -> Option<Self> {
        let &Event::Times {
            steps,
            waiting,
            upload,
            handing,
            filling,
            computing,
            reading_back,
            other,
            ..
        } = event
        else {
            return None;
        };
        Some(Self {
            step,
            steps,
            waiting,
            upload,
            handing,
            filling,
            computing,
            reading_back,
            other,
        })
    }

    /// All of them together; none if there is no step.
    pub(crate) fn sum(all: &[Self]) -> Option<Self> {
        let sum = all.iter().fold(Self::default(), |a, b| Self {
            step: b.step,
            steps: a.steps + b.steps,
            waiting: a.waiting + b.waiting,
            upload: a.upload + b.upload,
            handing: a.handing + b.handing,
            filling: a.filling + b.filling,
            computing: a.computing + b.computing,
            reading_back: a.reading_back + b.reading_back,
            other: a.other + b.other,
        });
        (sum.steps > 0 && sum.seconds() > 0.0).then_some(sum)
    }

    /// Seconds of the steps.
    pub(crate) fn seconds(&self) -> f64 {
        self.waiting + self.upload + self.computing + self.reading_back + self.other
    }

    /// Seconds of the steps without waiting: what they would take if data were always there.
    pub(crate) fn without_waiting(&self) -> f64 {
        self.seconds() - self.waiting
    }

    /// The share of them that waits for data.
    pub(crate) fn waiting_share(&self) -> f64 {
        self.waiting / self.seconds()
    }

    /// Of the time that steps stood still for batches, the share until they were filled: the rest went by handing them
    /// to the device.
    pub(crate) fn waiting_of_data(&self) -> f64 {
        let data = self.waiting + self.upload;
        if data > 0.0 { self.waiting / data } else { 1.0 }
    }

    /// Whether a thread hands batches to the device beside the steps, and that takes longer than all else: so that neither
    /// more threads that fill nor more batches ahead would change anything.
    pub(crate) fn is_held_up_by_handing(&self, workers: usize) -> bool {
        let ahead = self.handing - self.upload;
        ahead > self.without_waiting() && ahead > self.filling / workers.max(1) as f64
    }

    /// The parts of a step, as shares of it. Waiting is told elsewhere.
    pub(crate) fn shares(&self) -> [(&'static str, f64); 4] {
        let all = self.seconds();
        [
            ("handing batches to the device", self.upload / all),
            ("computing, or issuing work", self.computing / all),
            ("waiting for results of the device", self.reading_back / all),
            ("the rest of a step", self.other / all),
        ]
    }

    /// The part of a step that limits it.
    pub(crate) fn limit(&self) -> String {
        let all = self.seconds();
        let parts = [
            (self.waiting, "waiting for data"),
            (self.upload, "the upload of batches"),
            (self.computing, "the host: computing, or issuing work to the device"),
            (self.reading_back, "the device"),
            (self.other, "bookkeeping between the parts of a step"),
        ];
        let largest = parts.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((0.0, ""));
        let data = self.waiting_share();
        // Waiting can be taken away whole, and the rest cannot, so it counts before it is the largest.
        if data >= NOTABLE {
            let gain = all / self.without_waiting().max(f64::MIN_POSITIVE);
            return format!(
                "data: steps would be {} times as fast if it were always there",
                significant(gain)
            );
        }
        format!("{} ({} of a step)", largest.1, percent(largest.0 / all))
    }

    /// Whether batches are filled by threads.
    pub(crate) fn fills(&self) -> bool {
        self.filling > 0.0
    }

    /// The smallest number of threads that would fill batches as fast as they are used, out of
    /// `threads` that the machine has, and how much faster steps would be with them. None where `now`
    /// are enough, so that more would bring nothing.
    ///
    /// `w` threads give a batch every `filling / w`, and a step takes at least what it takes without
    /// waiting; the slower of the two sets the pace. Where steps are `shared`, computed by all of these threads, what
    /// fills takes its part of their time.
    pub(crate) fn workers(&self, now: usize, threads: usize, shared: bool) -> Option<(usize, f64)> {
        let busy = self.without_waiting();
        if busy <= 0.0 || self.filling <= 0.0 {
            return None;
        }
        let wanted = ((self.filling / busy).ceil() as usize).clamp(1, threads.max(1));
        let taken = if shared { self.filling / threads.max(1) as f64 } else { 0.0 };
        let gain = self.seconds() / (busy + taken).max(self.filling / wanted as f64);
        (wanted > now && gain >= WORTH).then_some((wanted, gain))
    }

    /// How much faster steps would be at best if these threads filled batches further ahead, so that one that takes
    /// long is made up for by others. None where they fill all the time, or there is none, so that it would bring
    /// nothing.
    pub(crate) fn ahead(&self, workers: usize) -> Option<f64> {
        let pace = self.without_waiting().max(self.filling / workers as f64);
        let gain = self.seconds() / pace;
        (workers > 0 && pace > 0.0 && gain >= WORTH).then_some(gain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten steps of these seconds.
    fn times(waiting: f64, computing: f64, filling: f64) -> StepTimes {
        StepTimes { steps: 10, waiting, computing, filling, ..StepTimes::default() }
    }

    #[test]
    fn the_limit_is_what_can_be_changed_or_takes_longest() {
        assert_eq!(
            times(3.1, 6.9, 20.0).limit(),
            "data: steps would be 1.45 times as fast if it were always there"
        );
        assert!(times(0.1, 9.9, 1.0).limit().starts_with("the host: computing"));
        let device = StepTimes { reading_back: 20.0, ..times(0.1, 9.9, 1.0) };
        assert_eq!(device.limit(), "the device (66.7 % of a step)");
        assert_eq!(StepTimes::sum(&[]), None);
    }

    #[test]
    fn more_threads_are_advised_where_they_help_and_by_how_much() {
        // Filling takes 20 s on one thread, computing 6.9 s: three threads keep up.
        let (workers, gain) = times(13.1, 6.9, 20.0).workers(1, 16, false).unwrap();
        assert_eq!(workers, 3);
        assert!((gain - 20.0 / 6.9).abs() < 1e-9);
        // With two threads to be had, filling sets the pace.
        let (workers, gain) = times(13.1, 6.9, 20.0).workers(1, 2, false).unwrap();
        assert_eq!(workers, 2);
        assert!((gain - 2.0).abs() < 1e-9);
        assert_eq!(times(1.0, 6.9, 20.0).workers(3, 16, false), None);
        assert_eq!(times(1.0, 6.9, 0.0).workers(0, 16, false), None);
        // Both cores compute for 10 s, one of them fills for 10 s: 30 s of a core, not 20.
        let (workers, gain) = times(10.0, 10.0, 10.0).workers(0, 2, true).unwrap();
        assert_eq!(workers, 1);
        assert!((gain - 20.0 / 15.0).abs() < 1e-9);
        // One that fills for 5 of 13 s is late with some; one that fills all the time is late with all; none fills ahead.
        let gain = times(3.0, 10.0, 5.0).ahead(1).unwrap();
        assert!((gain - 1.3).abs() < 1e-9);
        assert_eq!([times(3.0, 10.0, 12.9).ahead(1), times(3.0, 10.0, 3.0).ahead(0)], [None; 2]);
        // Cores that are busy all the time have none to spare.
        assert_eq!(times(0.5, 10.0, 1.0).workers(0, 2, true).map(|(_, gain)| gain), None);
    }

    #[test]
    fn epochs_add_up() {
        let sum = StepTimes::sum(&[times(1.0, 2.0, 3.0), times(1.0, 4.0, 3.0)]).unwrap();
        assert_eq!((sum.steps, sum.waiting, sum.computing, sum.filling), (20, 2.0, 6.0, 6.0));
        let shares: f64 = sum.shares().iter().map(|(_, share)| share).sum();
        assert!((shares + 2.0 / 8.0 - 1.0).abs() < 1e-12);
    }
}
