//! What happens in a run, as values: the terminal, the log and the report all read these.

use serde::{Deserialize, Deserializer, Serialize};

use crate::{Key, MachineSample, Request};

/// Something that happened. Written as one JSON object with the key `event`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// A run begins, or goes on after a resume.
    RunStarted {
        /// Name of the run, which is also the name of its folder.
        run: String,
        /// The device with its memory, driver and abilities as far as they are known.
        device: String,
        /// The step that it goes on from.
        resumed_at_step: Option<u64>,
    },
    /// A stage begins.
    StageStarted {
        /// Name of the stage.
        stage: String,
    },
    /// A stage advances.
    Progress {
        /// Name of the stage.
        stage: String,
        /// Units done.
        done: u64,
        /// Units in all.
        total: u64,
        /// What is counted, in the plural.
        unit: String,
    },
    /// A stage ends.
    StageFinished {
        /// Name of the stage.
        stage: String,
        /// Content key of its result.
        key: Option<Key>,
        /// Whether the result was there already, and whole.
        reused: bool,
        /// Wall-clock time.
        seconds: f64,
        /// One line on what was made.
        detail: String,
    },
    /// An optimizer step was taken or skipped.
    Step {
        /// Steps taken so far, this one included.
        step: u64,
        /// Epoch, from 1.
        epoch: u64,
        /// Training loss of this step.
        #[serde(deserialize_with = "number_or_nan")]
        loss: f64,
        /// Learning rate of this step.
        learning_rate: f64,
        /// Global gradient norm before clipping.
        #[serde(deserialize_with = "number_or_nan")]
        gradient_norm: f64,
        /// Samples in the step.
        samples: u64,
        /// Wall-clock time of the step.
        milliseconds: f64,
        /// Part of it spent waiting for data.
        data_milliseconds: f64,
        /// The loss or a gradient was not finite, and the weights were left alone.
        skipped: bool,
    },
    /// The loss scale of half precision changed.
    LossScale {
        /// Steps taken so far.
        step: u64,
        /// The scale until then.
        before: f64,
        /// The scale from now on.
        scale: f64,
        /// Steps skipped so far because a gradient had overflown.
        overflows: u64,
    },
    /// An epoch ends.
    Epoch {
        /// Epoch, from 1.
        epoch: u64,
        /// Steps taken so far.
        step: u64,
        /// Mean training loss over the epoch.
        #[serde(deserialize_with = "number_or_nan")]
        train_loss: f64,
        /// Validation loss.
        validation_loss: Option<f64>,
        /// Whether it is the best validation loss so far.
        best: bool,
        /// Wall-clock time, validation included, pauses left out.
        seconds: f64,
    },
    /// Where the time of some steps went, in seconds: of those since the last checkpoint or the epoch's begin. Sent
    /// before a checkpoint and before the epoch ends.
    Times {
        /// Steps taken so far.
        step: u64,
        /// Steps that these times are of.
        steps: u64,
        /// Standing still until a batch was filled.
        waiting: f64,
        /// Handing batches to the device.
        upload: f64,
        /// The same by whichever thread, beside the steps or within them.
        #[serde(default)]
        handing: f64,
        /// Filling batches, on all threads together, mostly beside the steps and not within them.
        filling: f64,
        /// Forward, backward and optimizer, as long as the host was busy with them: computing on a
        /// CPU, issuing work to a GPU.
        computing: f64,
        /// Standing still until the device had a result.
        reading_back: f64,
        /// Whatever else a step did: logging, scaling, bookkeeping.
        other: f64,
    },
    /// A checkpoint is complete on disk.
    Checkpoint {
        /// Steps taken.
        step: u64,
        /// Its folder.
        path: String,
        /// Time that training stood still for it.
        blocked_milliseconds: f64,
        /// Time of the whole save, in the background.
        save_milliseconds: f64,
        /// Size on disk.
        bytes: u64,
    },
    /// A trained model was measured.
    Scored {
        /// What, such as `test/accuracy`.
        name: String,
        /// Its value; shares from 0 to 1.
        value: f64,
    },
    /// What the machine did since the sample before.
    Machine(MachineSample),
    /// The training loop does what a person asked of it.
    Asked {
        /// What was asked.
        request: Request,
        /// Steps taken so far.
        step: u64,
    },
    /// Something that the user should know, and that does not end the run.
    Warning {
        /// What, and what to do about it.
        message: String,
    },
    /// A run ends.
    RunFinished {
        /// Name of the run.
        run: String,
        /// `finished`, `stopped early`, `interrupted`, or `failed: ` and why.
        outcome: String,
        /// Wall-clock time.
        seconds: f64,
    },
}

/// Whether a stage of this name is one that trains: each training of a run is within one of these.
pub fn is_training(stage: &str) -> bool {
    // That of a further seed says which one it is: `train, seed 7`.
    matches!(stage.split(',').next(), Some("train" | "finetune"))
}

/// For `deserialize_with`: JSON has no number for what is not finite, which is written as `null` and read as NaN.
///
/// # Errors
///
/// What is neither a number nor `null`.
pub fn number_or_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// The same for several numbers.
///
/// # Errors
///
/// What is neither a number nor `null` in one of the places.
pub fn numbers_or_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f64>, D::Error> {
    let all: Vec<Option<f64>> = Deserialize::deserialize(deserializer)?;
    Ok(all.into_iter().map(|value| value.unwrap_or(f64::NAN)).collect())
}

/// Receives events, from any thread, in the order in which each thread sends them.
pub trait Listener: Send + Sync {
    /// Takes an event. It must not block: training waits for it.
    fn on(&self, event: &Event);
}

impl<F: Fn(&Event) + Send + Sync> Listener for F {
    fn on(&self, event: &Event) {
        self(event);
    }
}

/// A listener that ignores everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Listener for Silent {
    fn on(&self, _: &Event) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_was_not_finite_is_read_back() {
        let (loss, gradient_norm) = (f64::NAN, f64::INFINITY);
        let event = Event::Step {
            step: 3,
            epoch: 1,
            loss,
            learning_rate: 0.1,
            gradient_norm,
            samples: 4,
            milliseconds: 1.0,
            data_milliseconds: 0.5,
            skipped: true,
        };
        let text = serde_json::to_string(&event).unwrap();
        match serde_json::from_str(&text).unwrap() {
            Event::Step { step, loss, gradient_norm, skipped, .. } => {
                assert!(step == 3 && loss.is_nan() && gradient_norm.is_nan() && skipped);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn stages_that_train_are_told_from_the_others() {
        let all = ["ingest", "windows", "augment", "tokenise", "train", "finetune", "evaluate"];
        assert_eq!(all.map(is_training), [false, false, false, false, true, true, false]);
        assert!(is_training("train, seed 7"));
    }

    #[test]
    fn an_event_is_one_flat_json_object() {
        let event = Event::StageStarted { stage: "ingest".to_owned() };
        let text = serde_json::to_string(&event).unwrap();
        assert_eq!(text, r#"{"event":"stage-started","stage":"ingest"}"#);
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
        let sample = MachineSample { seconds: 1.0, threads: 2, ..MachineSample::default() };
        let text = serde_json::to_string(&Event::Machine(sample.clone())).unwrap();
        assert!(text.starts_with(r#"{"event":"machine","seconds":1.0,"#), "{text}");
        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), Event::Machine(sample));
    }
}
