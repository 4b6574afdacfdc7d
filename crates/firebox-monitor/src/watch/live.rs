//! What the dashboard shows, collected from a run's log while it grows.

use std::collections::VecDeque;
use std::fs::{File, TryLockError};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use firebox_core::{Event, MachineSample, Request};
use serde::Deserialize;

/// Steps that rates are averaged over.
const RECENT: usize = 32;
/// Time that the rate of progress is measured over, milliseconds, or that between the last two that were told, if it is
/// longer.
const WINDOW: u64 = 60_000;
/// Samples of the machine that are kept for the line of how busy it was.
const HISTORY: usize = 240;
/// Time without news from which it is worth a word, milliseconds.
const SILENCE: u64 = 10_000;

/// The end of a file that grows.
pub(crate) struct Tail {
    path: PathBuf,
    offset: u64,
    rest: Vec<u8>,
}

impl Tail {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, offset: 0, rest: vec![] }
    }

    /// Whole lines that have come since the last look; `None` if the file was begun anew.
    pub(crate) fn lines(&mut self) -> std::io::Result<Option<Vec<String>>> {
        let mut file = File::open(&self.path)?;
        if file.metadata()?.len() < self.offset {
            (self.offset, self.rest) = (0, vec![]);
            return Ok(None);
        }
        file.seek(SeekFrom::Start(self.offset))?;
        self.offset += file.read_to_end(&mut self.rest)? as u64;
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else {
            return Ok(Some(vec![]));
        };
        let whole: Vec<u8> = self.rest.drain(..=end).collect();
        Ok(Some(String::from_utf8_lossy(&whole).lines().map(str::to_owned).collect()))
    }
}

/// Whether a process works on a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alive {
    Yes,
    No,
    /// There is no lock, or it cannot be asked.
    Unknown,
}

impl Alive {
    /// By the lock that a process holds on the run's folder as long as it works there. The look
    /// takes the lock for a moment where nobody has it, which who begins a run waits for.
    pub(crate) fn of(folder: &Path) -> Self {
        let Ok(lock) = File::open(folder.join("lock")) else { return Self::Unknown };
        match lock.try_lock_shared() {
            Ok(()) => Self::No,
            Err(TryLockError::WouldBlock) => Self::Yes,
            Err(TryLockError::Error(_)) => Self::Unknown,
        }
    }
}

/// How far a stage is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stretch {
    pub(crate) stage: String,
    pub(crate) done: u64,
    pub(crate) total: u64,
    pub(crate) unit: String,
}

/// The newest step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Newest {
    pub(crate) step: u64,
    pub(crate) epoch: u64,
    pub(crate) loss: f64,
    pub(crate) learning_rate: f64,
    pub(crate) gradient_norm: f64,
}

/// A run as far as its log tells.
#[derive(Clone, Debug, Default)]
pub(crate) struct Live {
    pub(crate) run: String,
    pub(crate) device: String,
    pub(crate) outcome: Option<String>,
    pub(crate) stage: Option<String>,
    pub(crate) stages: Vec<(String, f64, bool)>,
    pub(crate) progress: Option<Stretch>,
    /// The training that losses and steps are of, where it is one of several.
    pub(crate) part: Option<String>,
    pub(crate) losses: Vec<(f64, f64)>,
    pub(crate) validation: Vec<(f64, f64)>,
    pub(crate) newest: Newest,
    /// Epoch and loss of the best validation.
    pub(crate) best: Option<(u64, f64)>,
    /// Steps that were skipped.
    pub(crate) skipped: Vec<u64>,
    pub(crate) machine: Option<MachineSample>,
    /// Percent that the GPU, or else the processor, was busy.
    pub(crate) busy: VecDeque<u64>,
    pub(crate) warnings: Vec<String>,
    /// Those of the report, of which some are in no log: what is measured at the end has warnings of its own.
    pub(crate) of_report: Vec<String>,
    pub(crate) paused: bool,
    /// What was answered last, with its step.
    pub(crate) answered: Option<(Request, u64)>,
    /// When something was told last, milliseconds since 1970 UTC.
    told: u64,
    /// Samples, milliseconds and milliseconds of waiting of the newest steps.
    recent: VecDeque<(u64, f64, f64)>,
    /// When how much of the stage was done.
    stretch: VecDeque<(u64, u64)>,
}

#[derive(Deserialize)]
struct Stamp {
    time: u64,
}

impl Live {
    /// Takes a line of the log. What cannot be read is left out.
    pub(crate) fn line(&mut self, line: &str) {
        let (Ok(event), Ok(Stamp { time })) =
            (serde_json::from_str::<Event>(line), serde_json::from_str::<Stamp>(line))
        else {
            return;
        };
        self.told = self.told.max(time);
        if self.part.is_some() && matches!(event, Event::Step { .. }) {
            self.forget_steps();
        }
        self.event(time, event);
    }

    /// One of several trainings begins.
    pub(crate) fn begin_part(&mut self, name: String) {
        self.forget_steps();
        self.part = Some(name);
    }

    /// What that training tells.
    pub(crate) fn of_part(&mut self, event: Event) {
        self.event(self.told, event);
    }

    /// Forgets the training that was shown until now.
    fn forget_steps(&mut self) {
        self.part = None;
        (self.losses, self.validation, self.skipped) = (vec![], vec![], vec![]);
        (self.newest, self.best) = (Newest::default(), None);
        self.recent.clear();
    }

    fn event(&mut self, time: u64, event: Event) {
        match event {
            Event::RunStarted { run, device, resumed_at_step } => {
                self.started(run, device, resumed_at_step);
            }
            Event::StageStarted { stage } => {
                self.stage = Some(stage);
                self.progress = None;
                self.stretch.clear();
            }
            Event::StageFinished { stage, seconds, reused, .. } => {
                self.stage = None;
                self.stages.retain(|known| known.0 != stage);
                self.stages.push((stage, seconds, reused));
            }
            Event::Progress { stage, done, total, unit } => {
                let now = Stretch { stage, done, total, unit };
                if !self.goes_on(&now) {
                    self.stretch.clear();
                }
                self.stretch.push_back((time, done));
                let is_old = |first: &(u64, u64)| first.0 + WINDOW < time;
                // One alone tells no rate.
                while self.stretch.len() > 2 && self.stretch.front().is_some_and(is_old) {
                    self.stretch.pop_front();
                }
                self.progress = Some(now);
            }
            Event::Step { .. } => self.step(&event),
            Event::Epoch { epoch, step, validation_loss, best, .. } => {
                if let Some(loss) = validation_loss {
                    self.validation.push((step as f64, loss));
                    if best {
                        self.best = Some((epoch, loss));
                    }
                }
            }
            Event::Asked { request, step } => {
                self.answered = Some((request, step));
                match request {
                    Request::Pause => self.paused = true,
                    Request::GoOn => self.paused = false,
                    _ => {}
                }
                // The time of a pause says nothing about the rate.
                self.stretch.clear();
            }
            Event::Machine(sample) => self.sample(sample),
            Event::Warning { message } => self.warnings.push(message),
            Event::RunFinished { outcome, .. } => {
                self.outcome = Some(outcome);
                self.stage = None;
            }
            Event::Checkpoint { .. }
            | Event::Scored { .. }
            | Event::Times { .. }
            | Event::LossScale { .. } => {}
        }
    }

    fn started(&mut self, run: String, device: String, resumed: Option<u64>) {
        let step = resumed.unwrap_or(0) as f64;
        let mut kept = std::mem::take(self);
        kept.losses.retain(|point| point.0 <= step);
        kept.validation.retain(|point| point.0 <= step);
        let (told, best) = (kept.told, kept.best);
        *self = Self { run, device, told, best, ..Self::default() };
        (self.losses, self.validation) = (kept.losses, kept.validation);
        kept.skipped.retain(|skipped| *skipped as f64 <= step);
        self.skipped = kept.skipped;
        if kept.newest.step as f64 <= step {
            self.newest = kept.newest;
        }
    }

    /// Whether this is more of what was told last: the next of several trainings of a stage begins at zero, and has a
    /// rate of its own.
    fn goes_on(&self, now: &Stretch) -> bool {
        let last = self.stretch.back().map_or(0, |last| last.1);
        let same = |known: &Stretch| *known == Stretch { done: known.done, ..now.clone() };
        last <= now.done && self.progress.as_ref().is_some_and(same)
    }

    fn step(&mut self, event: &Event) {
        let &Event::Step {
            step,
            epoch,
            loss,
            learning_rate,
            gradient_norm,
            samples,
            milliseconds,
            data_milliseconds,
            skipped,
        } = event
        else {
            return;
        };
        self.newest = Newest { step, epoch, loss, learning_rate, gradient_norm };
        // Progress is logged once a second, and steps are logged all.
        if let Some(Stretch { stage, done, total, unit }) = &mut self.progress
            && (stage == "train" && unit == "steps")
            && (*done..=*total).contains(&step)
        {
            *done = step;
        }
        if skipped {
            self.skipped.push(step);
        } else if loss.is_finite() {
            self.losses.push((step as f64, loss));
        }
        self.recent.push_back((samples, milliseconds, data_milliseconds));
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
    }

    fn sample(&mut self, sample: MachineSample) {
        let gpu = sample.gpus.iter().filter_map(|gpu| gpu.utilisation).max_by(f64::total_cmp);
        let busy = gpu.unwrap_or(sample.cpu_threads / f64::from(sample.threads.max(1)));
        self.busy.push_back((100.0 * busy.clamp(0.0, 1.0)).round() as u64);
        if self.busy.len() > HISTORY {
            self.busy.pop_front();
        }
        self.machine = Some(sample);
    }

    /// All warnings, each once, the newest last.
    pub(crate) fn all_warnings(&self) -> Vec<&str> {
        let of_report = self.of_report.iter().filter(|message| !self.warnings.contains(message));
        self.warnings.iter().chain(of_report).map(String::as_str).collect()
    }

    /// Whether it has ended with a report.
    pub(crate) fn is_complete(&self) -> bool {
        let ends = |outcome: &str| outcome != "interrupted" && !outcome.starts_with("failed");
        self.outcome.as_deref().is_some_and(ends)
    }

    /// Milliseconds since it told something.
    pub(crate) fn silence(&self, now: u64) -> u64 {
        now.saturating_sub(self.told)
    }

    /// Whether it has ended, stands still, or goes on; with the time that it has told nothing, if
    /// that is long.
    pub(crate) fn status(&self, now: u64, alive: Alive) -> String {
        let silence = self.silence(now);
        let since = crate::text::duration(silence as f64 / 1e3);
        let quiet = match silence > SILENCE {
            true => format!(", no news for {since}"),
            false => String::new(),
        };
        match (&self.outcome, &self.stage) {
            (Some(outcome), _) => outcome.clone(),
            (None, _) if self.run.is_empty() => "nothing told yet".to_owned(),
            (None, _) if alive == Alive::No => {
                format!("killed: no process works on it, no news for {since}")
            }
            (None, _) if self.paused => "paused".to_owned(),
            (None, _) if alive == Alive::Unknown && silence > SILENCE => {
                format!("no news for {since}: killed, or its machine stands still")
            }
            (None, Some(stage)) => format!("running: {stage}{quiet}"),
            (None, None) => format!("running{quiet}"),
        }
    }

    /// Mean time of a step and of its waiting for data in milliseconds, and samples a second.
    pub(crate) fn rates(&self) -> Option<(f64, f64, f64)> {
        let steps = self.recent.len() as f64;
        let milliseconds: f64 = self.recent.iter().map(|step| step.1).sum();
        let waiting: f64 = self.recent.iter().map(|step| step.2).sum();
        let samples: u64 = self.recent.iter().map(|step| step.0).sum();
        let some = milliseconds > 0.0;
        some.then(|| (milliseconds / steps, waiting / steps, samples as f64 / milliseconds * 1e3))
    }

    /// Seconds until the stage is done, at the rate of the last minute, or of what was told last where that took
    /// longer.
    pub(crate) fn seconds_left(&self) -> Option<f64> {
        let (first, last) = (self.stretch.front()?, self.stretch.back()?);
        // Clocks are put back.
        let [time, done] = [last.0.checked_sub(first.0)?, last.1.checked_sub(first.1)?];
        let seconds = time as f64 / 1e3;
        let left = self.progress.as_ref()?.total.saturating_sub(last.1);
        (done > 0 && seconds > 0.0).then(|| left as f64 * seconds / done as f64)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn line(time: u64, event: &Event) -> String {
        let mut value = serde_json::to_value(event).unwrap();
        value["time"] = time.into();
        value.to_string()
    }

    fn started(resumed_at_step: Option<u64>) -> Event {
        Event::RunStarted { run: "r".to_owned(), device: "cpu".to_owned(), resumed_at_step }
    }

    fn progress(done: u64) -> Event {
        let (stage, unit) = ("train".to_owned(), "steps".to_owned());
        Event::Progress { stage, done, total: 100, unit }
    }

    #[test]
    fn lines_are_told_once_they_are_whole_and_a_new_file_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        let mut tail = Tail::new(path.clone());
        assert!(tail.lines().is_err());
        let mut file = File::create(&path).unwrap();
        file.write_all(b"one\ntw").unwrap();
        assert_eq!(tail.lines().unwrap().unwrap(), ["one"]);
        file.write_all(b"o\n").unwrap();
        assert_eq!(tail.lines().unwrap().unwrap(), ["two"]);
        assert!(tail.lines().unwrap().unwrap().is_empty());
        std::fs::write(&path, "x\n").unwrap();
        assert_eq!(tail.lines().unwrap(), None);
        assert_eq!(tail.lines().unwrap().unwrap(), ["x"]);
    }

    #[test]
    fn time_left_is_that_of_the_last_minute_and_silence_is_noticed() {
        let mut live = Live::default();
        assert_eq!(live.status(0, Alive::No), "nothing told yet");
        live.line(&line(1_000, &started(None)));
        live.line(&line(1_000, &Event::StageStarted { stage: "train".to_owned() }));
        for (time, done) in [(1_000, 0), (2_000, 40), (70_000, 50), (80_000, 60)] {
            live.line(&line(time, &progress(done)));
        }
        // Ten in the ten seconds that the last minute still has.
        assert_eq!(live.seconds_left(), Some(40.0));
        // Steps tell more often how far it is.
        for (step, done) in [(63, 63), (3, 63), (101, 63)] {
            live.line(&line(80_100, &crate::testing::step(step, 1.0)));
            assert_eq!(live.progress.as_ref().map(|stretch| stretch.done), Some(done));
        }
        assert_eq!(live.status(81_000, Alive::Unknown), "running: train");
        assert!(live.status(100_000, Alive::Unknown).starts_with("no news for 20 s"));
        assert_eq!(live.status(100_000, Alive::Yes), "running: train, no news for 20 s");
        assert!(live.status(100_000, Alive::No).starts_with("killed: no process works on it"));
        live.line(&line(81_000, &Event::Asked { request: Request::Pause, step: 9 }));
        // Whoever stands still tells nothing.
        for alive in [Alive::Yes, Alive::Unknown] {
            assert_eq!(live.status(900_000, alive), "paused");
        }
        assert_eq!(live.seconds_left(), None);
        assert!(live.status(900_000, Alive::No).starts_with("killed"));
        live.line("not json");
        let outcome = "finished".to_owned();
        live.line(&line(
            82_000,
            &Event::RunFinished { run: "r".to_owned(), outcome, seconds: 1.0 },
        ));
        assert_eq!(live.status(900_000, Alive::No), "finished");
    }

    #[test]
    fn each_of_several_trainings_has_a_rate_of_its_own() {
        let left = |told: &[(u64, u64, u64, &str)]| {
            let mut live = Live::default();
            for (time, done, total, unit) in told {
                let (stage, unit) = ("train".to_owned(), (*unit).to_owned());
                let event = Event::Progress { stage, done: *done, total: *total, unit };
                live.line(&line(*time, &event));
            }
            live.seconds_left()
        };
        let first = [(1_000, 0, 100, "steps"), (2_000, 50, 100, "steps")];
        assert_eq!(left(&first), Some(1.0));
        // The next one begins at zero, counts something else, or has more to do.
        let slower = [(21_000, 0, 100, "steps"), (31_000, 60, 100, "steps")];
        assert_eq!(left(&[first, slower].concat()), Some(40.0 * 10.0 / 60.0));
        let others = [(21_000, 60, 100, "windows"), (31_000, 70, 100, "windows")];
        assert_eq!(left(&[first, others].concat()), Some(30.0));
        let longer = [(21_000, 60, 200, "steps"), (31_000, 70, 200, "steps")];
        assert_eq!(left(&[first, longer].concat()), Some(130.0));
        assert_eq!(left(&[&first[..], &slower[..1]].concat()), None);
    }

    #[test]
    fn steps_of_more_than_a_minute_have_a_rate_too() {
        let mut live = Live::default();
        let mut left = vec![];
        // The second takes 140 s, the fourth 50 s.
        for (time, done) in [(1_000, 0), (71_000, 1), (211_000, 2), (281_000, 3), (331_000, 4)] {
            live.line(&line(time, &progress(done)));
            left.push(live.seconds_left());
        }
        let expected = [None, Some(99.0 * 70.0), Some(98.0 * 140.0), Some(97.0 * 70.0)];
        assert_eq!(left[..4], expected);
        assert_eq!(left[4], Some(96.0 * 50.0));
    }

    #[test]
    fn a_lock_that_is_held_is_a_run_that_is_alive() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Alive::of(folder.path()), Alive::Unknown);
        let lock = File::create(folder.path().join("lock")).unwrap();
        assert_eq!(Alive::of(folder.path()), Alive::No);
        lock.lock().unwrap();
        assert_eq!(Alive::of(folder.path()), Alive::Yes);
        drop(lock);
        assert_eq!(Alive::of(folder.path()), Alive::No);
    }

    #[test]
    fn steps_are_averaged_and_a_resume_forgets_those_after_it() {
        let mut live = Live::default();
        live.line(&line(1, &started(None)));
        for step in 1..=40 {
            live.line(&line(step, &crate::testing::step(step, 1.0 / step as f64)));
        }
        live.line(&line(50, &crate::testing::step(41, f64::NAN)));
        // A step that was skipped is no point of the curve.
        assert_eq!((live.losses.len(), live.newest.step, live.skipped.len()), (40, 41, 1));
        let (milliseconds, waiting, samples) = live.rates().unwrap();
        assert!((milliseconds - 10.0).abs() < 1e-9 && (waiting - 1.0).abs() < 1e-9);
        assert!((samples - 400.0).abs() < 1e-9);
        live.line(&line(60, &started(Some(10))));
        assert_eq!((live.losses.len(), live.skipped.len(), live.newest.step), (10, 0, 0));
        live.line(&line(70, &crate::testing::step(11, f64::NAN)));
        live.line(&line(80, &started(Some(11))));
        assert_eq!((live.skipped.len(), live.newest.step), (1, 11));
    }
}
