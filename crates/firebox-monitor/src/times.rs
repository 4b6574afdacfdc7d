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

/// What steps were computed on, by which it is told what their waiting for data costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum StepDevice {
    /// A processor, which stands still while steps wait.
    Processor,
    /// A GPU, which may compute while they do, as the host goes ahead of it; with the share of the time that it was
    /// busy, from 0 to 1, where that is known.
    Gpu(Option<f64>),
}

/// Share of a step's time from which a part of it is worth changing.
const NOTABLE: f64 = 0.05;

/// How many times as fast steps would have to be for more threads to be worth a word: less is noise. A choice.
const WORTH: f64 = 1.05;

impl StepDevice {
    /// Whether it is known that a GPU computed nearly all the time: no data that come sooner make such steps faster.
    pub(crate) fn is_busy(self) -> bool {
        matches!(self, Self::Gpu(Some(busy)) if busy * WORTH > 1.0)
    }

    /// Whether it is a GPU of which it is not known how busy it was, nor what waiting for data costs.
    pub(crate) fn is_unknown(self) -> bool {
        self == Self::Gpu(None)
    }
}

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

    /// Seconds of the steps without waiting.
    fn without_waiting(&self) -> f64 {
        self.seconds() - self.waiting
    }

    /// Seconds that the steps would take at least if data were always there: those without waiting, and on a GPU as
    /// many as it was busy for. None where it is not known how many these are.
    fn pace(&self, device: StepDevice) -> Option<f64> {
        match device {
            StepDevice::Processor => Some(self.without_waiting()),
            StepDevice::Gpu(busy) => Some(self.without_waiting().max(busy? * self.seconds())),
        }
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
    /// more threads that fill nor more batches ahead would change anything. False where it is not known how busy a GPU was,
    /// which may take longer still.
    pub(crate) fn is_held_up_by_handing(&self, workers: usize, device: StepDevice) -> bool {
        let ahead = self.handing - self.upload;
        let Some(pace) = self.pace(device) else { return false };
        ahead > pace && ahead > self.filling / workers.max(1) as f64
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
    pub(crate) fn limit(&self, device: StepDevice) -> String {
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
        if data < NOTABLE {
            return format!("{} ({} of a step)", largest.1, percent(largest.0 / all));
        }
        // Waiting can be taken away whole, and the rest cannot, so it counts before it is the largest.
        let at_most = match device {
            StepDevice::Gpu(Some(busy)) if device.is_busy() => {
                return format!(
                    "the device ({} of a step waits for data, while it computes: it was busy {} of the time)",
                    percent(data),
                    percent(busy)
                );
            }
            StepDevice::Gpu(None) => {
                return format!(
                    "data or the device ({} of a step waits for data, and how much of that the device computed is not known)",
                    percent(data)
                );
            }
            StepDevice::Gpu(Some(_)) => "at most ",
            StepDevice::Processor => "",
        };
        let pace = self.pace(device).unwrap_or_default().max(f64::MIN_POSITIVE);
        let gain = significant(all / pace);
        format!("data: steps would be {at_most}{gain} times as fast if it were always there")
    }

    /// Whether batches are filled by threads.
    pub(crate) fn fills(&self) -> bool {
        self.filling > 0.0
    }

    /// The smallest number of threads that would fill batches as fast as they are used, out of
    /// `threads` that the machine has, and how much faster steps would be with them. None where `now`
    /// are enough, so that more would bring nothing, and where it is not known how busy a GPU was.
    ///
    /// `w` threads give a batch every `filling / w`, and a step takes at least its [pace](Self::pace); the slower of
    /// the two sets the time. The steps of a processor are computed by all of these threads: what fills takes its part
    /// of their time.
    pub(crate) fn workers(
        &self,
        now: usize,
        threads: usize,
        device: StepDevice,
    ) -> Option<(usize, f64)> {
        let busy = self.pace(device)?;
        if busy <= 0.0 || self.filling <= 0.0 {
            return None;
        }
        let wanted = ((self.filling / busy).ceil() as usize).clamp(1, threads.max(1));
        let taken = match device {
            StepDevice::Processor => self.filling / threads.max(1) as f64,
            StepDevice::Gpu(_) => 0.0,
        };
        let gain = self.seconds() / (busy + taken).max(self.filling / wanted as f64);
        (wanted > now && gain >= WORTH).then_some((wanted, gain))
    }

    /// How much faster steps would be at best if these threads filled batches further ahead, so that one that takes
    /// long is made up for by others. None where they fill all the time, or there is none, so that it would bring
    /// nothing, and where it is not known how busy a GPU was.
    pub(crate) fn ahead(&self, workers: usize, device: StepDevice) -> Option<f64> {
        let pace = self.pace(device)?.max(self.filling / workers as f64);
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

    /// A GPU that was busy for less of the time than the host.
    const IDLE: StepDevice = StepDevice::Gpu(Some(0.2));

    #[test]
    fn the_limit_is_what_can_be_changed_or_takes_longest() {
        let limit = |times: StepTimes| times.limit(StepDevice::Processor);
        assert_eq!(
            limit(times(3.1, 6.9, 20.0)),
            "data: steps would be 1.45 times as fast if it were always there"
        );
        assert!(limit(times(0.1, 9.9, 1.0)).starts_with("the host: computing"));
        let device = StepTimes { reading_back: 20.0, ..times(0.1, 9.9, 1.0) };
        assert_eq!(limit(device), "the device (66.7 % of a step)");
        assert_eq!(device.limit(StepDevice::Gpu(None)), "the device (66.7 % of a step)");
        assert_eq!(StepTimes::sum(&[]), None);
    }

    /// 25 steps of 10 ms on a GPU, each of which the host issues in 2 ms; one thread fills a batch in 9 ms.
    fn issued() -> StepTimes {
        StepTimes { steps: 25, reading_back: 0.025, ..times(0.175, 0.05, 0.225) }
    }

    #[test]
    fn waiting_while_a_gpu_computes_costs_nothing() {
        let limit = |busy| issued().limit(StepDevice::Gpu(busy));
        assert_eq!(
            limit(Some(1.0)),
            "the device (70.0 % of a step waits for data, while it computes: it was busy 100.0 % of the time)"
        );
        // Nobody knows what it did meanwhile.
        assert_eq!(
            limit(None),
            "data or the device (70.0 % of a step waits for data, and how much of that the device computed is not known)"
        );
        // Half of the time it had nothing to do; and for less of it than the host's 75 of 250 ms.
        let at_most = |gain: &str| {
            format!("data: steps would be at most {gain} times as fast if it were always there")
        };
        assert_eq!([Some(0.5), Some(0.1)].map(limit), ["2.00", "3.33"].map(at_most));
        let is_busy = |busy| StepDevice::Gpu(busy).is_busy();
        assert_eq!([Some(0.96), Some(0.95), None].map(is_busy), [true, false, false]);
        assert!(!StepDevice::Processor.is_busy() && !StepDevice::Processor.is_unknown());
    }

    #[test]
    fn no_more_threads_are_advised_than_a_gpu_takes_batches_from() {
        let workers = |filling: f64, busy| {
            StepTimes { filling, ..issued() }.workers(1, 16, StepDevice::Gpu(busy))
        };
        assert_eq!([workers(0.225, Some(1.0)), workers(0.225, None)], [None; 2]);
        // A batch takes 24.8 ms to fill and a step 5 ms of the GPU: five threads, not the nine of 75 ms of the host.
        let (wanted, gain) = workers(0.62, Some(0.5)).unwrap();
        assert_eq!(wanted, 5);
        assert!((gain - 2.0).abs() < 1e-9, "{gain}");
        assert_eq!(workers(0.62, Some(0.1)).map(|(wanted, _)| wanted), Some(9));
        let ahead = |busy| issued().ahead(2, StepDevice::Gpu(busy));
        assert_eq!([ahead(Some(1.0)), ahead(None)], [None; 2]);
        // Two threads fill all in 112.5 ms, and the GPU computes for 125 of 250.
        assert!((ahead(Some(0.5)).unwrap() - 2.0).abs() < 1e-9);
        // Handing takes longer than the host, and not longer than the GPU; of one that nobody asked, nothing is known.
        let handed = StepTimes { handing: 0.2, filling: 0.1, ..issued() };
        let held_up = |busy| handed.is_held_up_by_handing(1, StepDevice::Gpu(busy));
        assert_eq!([held_up(Some(0.9)), held_up(Some(0.5)), held_up(None)], [false, true, false]);
    }

    #[test]
    fn more_threads_are_advised_where_they_help_and_by_how_much() {
        // Filling takes 20 s on one thread, computing 6.9 s: three threads keep up.
        let (workers, gain) = times(13.1, 6.9, 20.0).workers(1, 16, IDLE).unwrap();
        assert_eq!(workers, 3);
        assert!((gain - 20.0 / 6.9).abs() < 1e-9);
        // With two threads to be had, filling sets the pace.
        let (workers, gain) = times(13.1, 6.9, 20.0).workers(1, 2, IDLE).unwrap();
        assert_eq!(workers, 2);
        assert!((gain - 2.0).abs() < 1e-9);
        assert_eq!(times(1.0, 6.9, 20.0).workers(3, 16, IDLE), None);
        assert_eq!(times(1.0, 6.9, 0.0).workers(0, 16, IDLE), None);
        // Both cores compute for 10 s, one of them fills for 10 s: 30 s of a core, not 20.
        let processor = StepDevice::Processor;
        let (workers, gain) = times(10.0, 10.0, 10.0).workers(0, 2, processor).unwrap();
        assert_eq!(workers, 1);
        assert!((gain - 20.0 / 15.0).abs() < 1e-9);
        // One that fills for 5 of 13 s is late with some; one that fills all the time is late with all; none fills ahead.
        let gain = times(3.0, 10.0, 5.0).ahead(1, processor).unwrap();
        assert!((gain - 1.3).abs() < 1e-9);
        let ahead = |filling, workers| times(3.0, 10.0, filling).ahead(workers, processor);
        assert_eq!([ahead(12.9, 1), ahead(3.0, 0)], [None; 2]);
        // Cores that are busy all the time have none to spare.
        assert_eq!(times(0.5, 10.0, 1.0).workers(0, 2, processor).map(|(_, gain)| gain), None);
    }

    #[test]
    fn epochs_add_up() {
        let sum = StepTimes::sum(&[times(1.0, 2.0, 3.0), times(1.0, 4.0, 3.0)]).unwrap();
        assert_eq!((sum.steps, sum.waiting, sum.computing, sum.filling), (20, 2.0, 6.0, 6.0));
        let shares: f64 = sum.shares().iter().map(|(_, share)| share).sum();
        assert!((shares + 2.0 / 8.0 - 1.0).abs() < 1e-12);
    }
}
