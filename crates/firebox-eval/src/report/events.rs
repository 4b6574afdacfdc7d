//! Collects from the events of a run what a report shows of it.

use firebox_core::Event;

use super::{CheckpointRow, EpochPoint, Report, ScaleChange, Stage, StepPoint};

impl Report {
    /// Takes an event of the run. After a resume, steps and epochs that are told again replace what
    /// was recorded of them before. A stage that ends again under the same key stays one: its times
    /// are summed, and it counts as reused only if it was each time. Under another key, it replaces
    /// the one before.
    pub fn record(&mut self, event: &Event) {
        match event {
            Event::RunStarted { run, device, resumed_at_step } => {
                self.run.clone_from(run);
                self.device.clone_from(device);
                // How the attempt before ended is not how this one does.
                self.outcome.clear();
                self.begun = resumed_at_step.is_none();
                if let Some(step) = resumed_at_step {
                    self.forget_after(*step);
                }
            }
            Event::StageFinished { stage, key, reused, seconds, detail } => {
                self.ended(Stage {
                    name: stage.clone(),
                    key: key.map(|key| key.short()),
                    reused: *reused,
                    seconds: *seconds,
                    detail: detail.clone(),
                });
            }
            Event::Step { step, loss, learning_rate, gradient_norm, skipped, .. } => {
                self.begin_at(*step);
                if *skipped {
                    self.curves.skipped.push(*step);
                } else {
                    self.curves.steps.push(StepPoint {
                        step: *step,
                        loss: *loss,
                        learning_rate: *learning_rate,
                        gradient_norm: *gradient_norm,
                    });
                }
            }
            Event::LossScale { step, before, scale, .. } => {
                let (step, before, scale) = (*step, *before, *scale);
                // It comes before the step that it is of.
                self.begin_at(step);
                self.curves.loss_scales.push(ScaleChange { step, before, scale });
            }
            Event::Epoch { epoch, step, train_loss, validation_loss, best, .. } => {
                self.curves.epochs.retain(|known| known.epoch < *epoch);
                self.curves.epochs.push(EpochPoint {
                    epoch: *epoch,
                    step: *step,
                    train_loss: *train_loss,
                    validation_loss: *validation_loss,
                    best: *best,
                });
            }
            Event::Checkpoint { step, path, blocked_milliseconds, save_milliseconds, bytes } => {
                self.checkpoints.retain(|known| known.step < *step);
                self.checkpoints.push(CheckpointRow {
                    step: *step,
                    path: path.clone(),
                    bytes: *bytes,
                    blocked_milliseconds: *blocked_milliseconds,
                    save_milliseconds: *save_milliseconds,
                });
            }
            Event::Warning { message } => {
                if !self.warnings.contains(message) {
                    self.warnings.push(message.clone());
                }
            }
            Event::RunFinished { outcome, seconds, .. } => {
                self.outcome.clone_from(outcome);
                self.seconds = *seconds;
            }
            Event::StageStarted { .. }
            | Event::Progress { .. }
            | Event::Times { .. }
            | Event::Scored { .. }
            | Event::Machine(_)
            | Event::Asked { .. } => {}
        }
    }

    /// How the loss scale moved, in a sentence; `None` if it did not.
    pub(super) fn scale_line(&self) -> Option<String> {
        let last = self.curves.loss_scales.last()?;
        let times = |falls: bool| {
            let changes = self.curves.loss_scales.iter();
            match changes.filter(|change| (change.scale < change.before) == falls).count() {
                1 => "once".to_owned(),
                many => format!("{many} times"),
            }
        };
        let (fell, rose) = (times(true), times(false));
        Some(format!("The loss scale fell {fell}, rose {rose}, and ended at {}.", last.scale))
    }

    fn ended(&mut self, mut stage: Stage) {
        match self.stages.iter_mut().find(|known| known.name == stage.name) {
            Some(known) if known.key == stage.key => {
                stage.seconds += known.seconds;
                stage.reused &= known.reused;
                *known = stage;
            }
            Some(known) => *known = stage,
            None => self.stages.push(stage),
        }
    }

    /// Forgets what an attempt told that ended before it saved anything, and began anew.
    fn begin_at(&mut self, step: u64) {
        if std::mem::take(&mut self.begun) {
            self.forget_after(step.saturating_sub(1));
        }
    }

    fn forget_after(&mut self, step: u64) {
        self.curves.steps.retain(|known| known.step <= step);
        self.curves.skipped.retain(|known| *known <= step);
        self.curves.loss_scales.retain(|known| known.step <= step);
        self.curves.epochs.retain(|known| known.step <= step);
        self.checkpoints.retain(|known| known.step <= step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict;

    fn step(step: u64) -> Event {
        Event::Step {
            step,
            epoch: 1,
            loss: step as f64,
            learning_rate: 0.1,
            gradient_norm: 1.0,
            samples: 1,
            milliseconds: 1.0,
            data_milliseconds: 0.0,
            skipped: step == 3,
        }
    }

    #[test]
    fn a_stage_of_several_attempts_is_one_with_all_its_time() {
        let mut report = Report::new("pretrain", "", verdict(None, None));
        let key = |version| firebox_core::Key::builder("stage", version).finish();
        let mut ended = |stage: &str, key, reused, seconds| {
            let (stage, detail) = (stage.to_owned(), format!("{seconds} s"));
            report.record(&Event::StageFinished { stage, key, reused, seconds, detail });
        };
        ended("ingest", Some(key(1)), false, 2.0);
        ended("evaluate", Some(key(1)), false, 5.0);
        ended("ingest", Some(key(1)), true, 1.0);
        ended("augment", Some(key(1)), true, 1.0);
        ended("augment", Some(key(1)), true, 1.5);
        ended("evaluate", Some(key(2)), false, 3.0);
        let rows: Vec<_> =
            report.stages.iter().map(|s| (s.name.as_str(), s.seconds, s.reused)).collect();
        assert_eq!(
            rows,
            [("ingest", 3.0, false), ("evaluate", 3.0, false), ("augment", 2.5, true)]
        );
        assert_eq!(report.stages[0].detail, "1 s");
    }

    #[test]
    fn a_resume_replaces_what_it_repeats() {
        let mut report = Report::new("pretrain", "", verdict(None, None));
        let started = |resumed_at_step| Event::RunStarted {
            run: "r1".to_owned(),
            device: "cpu".to_owned(),
            resumed_at_step,
        };
        report.record(&started(None));
        (1..=5).for_each(|at| report.record(&step(at)));
        report.record(&started(Some(2)));
        (3..=6).for_each(|at| report.record(&step(at)));
        let steps: Vec<u64> = report.curves.steps.iter().map(|point| point.step).collect();
        assert_eq!((steps, &report.curves.skipped), (vec![1, 2, 4, 5, 6], &vec![3]));
        // So does an attempt that begins anew, and one that trains nothing keeps all.
        let kept = report.curves.clone();
        report.record(&started(None));
        assert_eq!(report.curves, kept);
        (1..=4).for_each(|at| report.record(&step(at)));
        let steps: Vec<u64> = report.curves.steps.iter().map(|point| point.step).collect();
        assert_eq!((steps, &report.curves.skipped), (vec![1, 2, 4], &vec![3]));
        let warning = Event::Warning { message: "disk is nearly full".to_owned() };
        report.record(&warning);
        report.record(&warning);
        assert_eq!((report.run.as_str(), report.warnings.len()), ("r1", 1));
    }

    #[test]
    fn changes_of_the_loss_scale_are_told() {
        let mut report = Report::new("pretrain", "", verdict(None, None));
        assert_eq!(report.scale_line(), None);
        let (run, device) = ("pretrain-0123456789ab".to_owned(), "cpu".to_owned());
        report.record(&Event::RunStarted { run, device, resumed_at_step: None });
        // The fall at the first step comes before the step.
        for (at, before, scale, overflows) in
            [(1, 65_536.0, 32_768.0, 1), (4, 32_768.0, 16_384.0, 2), (9, 16_384.0, 32_768.0, 2)]
        {
            report.record(&Event::LossScale { step: at, before, scale, overflows });
            report.record(&step(at));
        }
        let line = "The loss scale fell 2 times, rose once, and ended at 32768.";
        assert_eq!(report.scale_line().as_deref(), Some(line));
        report.forget_after(3);
        assert_eq!(report.curves.loss_scales.len(), 1);
    }
}
