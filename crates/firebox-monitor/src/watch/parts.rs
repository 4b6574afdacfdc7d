//! The training in hand of a run that has several, whose curves the log of the run leaves out: the
//! history that was written to last below the run's `parts`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use firebox_core::Event;

use super::live::{Live, Tail};
use crate::trainings::{HISTORY, trainings};

/// Time between two looks for another training.
const LOOK: Duration = Duration::from_secs(1);

/// Follows one training after the other.
pub(crate) struct Parts {
    run: PathBuf,
    looked: Option<Instant>,
    /// Name and history.
    training: Option<(String, Tail)>,
}

impl Parts {
    pub(crate) fn new(run: &Path) -> Self {
        Self { run: run.to_path_buf(), looked: None, training: None }
    }

    /// Tells the dashboard what has come since the last look. What cannot be read is left out.
    pub(crate) fn look(&mut self, live: &mut Live) {
        if self.looked.is_none_or(|looked| looked.elapsed() >= LOOK) {
            self.looked = Some(Instant::now());
            if let Some((_, name, history)) = newest(&self.run)
                && self.training.as_ref().is_none_or(|(known, _)| *known != name)
            {
                live.begin_part(name.clone());
                self.training = Some((name, Tail::new(history)));
            }
        }
        let Some((name, tail)) = &mut self.training else { return };
        match tail.lines() {
            Ok(Some(lines)) => lines.iter().filter_map(|line| event(line)).for_each(|event| {
                live.of_part(event);
            }),
            // Begun anew.
            Ok(None) => live.begin_part(name.clone()),
            Err(_) => {}
        }
    }
}

/// The training whose history was written to last: when, its name, and the history.
fn newest(run: &Path) -> Option<(SystemTime, String, PathBuf)> {
    let written = |(name, folder): (String, PathBuf)| {
        let history = folder.join(HISTORY);
        Some((history.metadata().and_then(|about| about.modified()).ok()?, name, history))
    };
    trainings(run).into_iter().filter_map(written).max()
}

/// A line of a history as the event that it was.
fn event(line: &str) -> Option<Event> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    let (kind, fields) = line.as_object()?.iter().next()?;
    let mut fields = fields.as_object()?.clone();
    fields.insert("event".to_owned(), kind.as_str().into());
    serde_json::from_value(fields.into()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: u64, loss: &str) -> String {
        format!(
            r#"{{"step":{{"step":{step},"epoch":1,"loss":{loss},"parts":{{}},"learning_rate":0.001,"gradient_norm":1.5,"loss_scale":1.0,"samples":4,"skipped":false,"milliseconds":2.0,"data_milliseconds":1.0}}}}"#
        ) + "\n"
    }

    #[test]
    fn the_training_that_was_written_to_last_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let (mut parts, mut live) = (Parts::new(folder.path()), Live::default());
        let look = |parts: &mut Parts, live: &mut Live| {
            parts.looked = None;
            parts.look(live);
        };
        look(&mut parts, &mut live);
        assert_eq!(live.part, None);
        let write = |name: &str, text: &str| {
            let folder = folder.path().join("parts").join(name);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("history.jsonl"), text).unwrap();
        };
        let epoch = r#"{"epoch":{"epoch":1,"step":2,"train_loss":0.5,"validation_loss":0.4,"learning_rate":0.001,"best":true,"seconds":1.0}}"#;
        write("fold-1/lstm", &(step(1, "0.6") + &step(2, "0.5") + epoch + "\nhalf a li"));
        look(&mut parts, &mut live);
        assert_eq!(live.part.as_deref(), Some("fold-1/lstm"));
        assert_eq!((&live.losses[..], live.best), (&[(1.0, 0.6), (2.0, 0.5)][..], Some((1, 0.4))));
        assert_eq!(live.rates(), Some((2.0, 1.0, 2000.0)));
        // Times of files may be coarse.
        std::thread::sleep(Duration::from_millis(50));
        write("fold-1/mlp", &step(1, "0.9"));
        look(&mut parts, &mut live);
        assert_eq!((live.part.as_deref(), live.losses.len()), (Some("fold-1/mlp"), 1));
        assert_eq!((live.best, live.validation.len()), (None, 0));
        // The run's own training takes its place.
        let mut value = serde_json::to_value(crate::testing::step(7, 0.1)).unwrap();
        value["time"] = 5.into();
        live.line(&value.to_string());
        assert_eq!((live.part.as_deref(), &live.losses[..]), (None, &[(7.0, 0.1)][..]));
    }
}
