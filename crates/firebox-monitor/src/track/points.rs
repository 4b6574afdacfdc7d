//! Events as points of named curves, the same for every tracker.

use std::borrow::Cow;
use std::collections::BTreeSet;

use firebox_core::{Event, MachineSample};

/// Makes points of events.
pub(crate) struct Points {
    /// Steps between two points of the curves of steps.
    every: u64,
    /// Steps taken, for events that do not tell.
    step: u64,
}

/// The name of a curve.
pub(crate) type Name = Cow<'static, str>;
/// A step with its names and values.
pub(crate) type Row = (u64, Vec<(Name, f64)>);

impl Points {
    pub(crate) fn new(every: u64) -> Self {
        Self { every, step: 0 }
    }

    /// The points of an event, if it has any.
    pub(crate) fn of(&mut self, event: &Event) -> Option<Row> {
        let row = |pairs: &[(&'static str, f64)]| -> Vec<(Name, f64)> {
            pairs.iter().map(|(name, value)| (Name::Borrowed(*name), *value)).collect()
        };
        match event {
            Event::RunStarted { resumed_at_step, .. } => {
                self.step = resumed_at_step.unwrap_or(0);
                None
            }
            &Event::Step {
                step,
                loss,
                learning_rate,
                gradient_norm,
                samples,
                milliseconds,
                data_milliseconds,
                skipped,
                ..
            } => {
                self.step = step;
                if step % self.every != 0 && !skipped {
                    return None;
                }
                let rate =
                    if milliseconds > 0.0 { samples as f64 / milliseconds * 1e3 } else { 0.0 };
                Some((
                    step,
                    row(&[
                        ("train/loss", loss),
                        ("train/learning_rate", learning_rate),
                        ("train/gradient_norm", gradient_norm),
                        ("train/skipped", f64::from(u8::from(skipped))),
                        ("time/step_milliseconds", milliseconds),
                        ("time/data_milliseconds", data_milliseconds),
                        ("time/samples_per_second", rate),
                    ]),
                ))
            }
            Event::Epoch { epoch, step, train_loss, validation_loss, seconds, .. } => {
                self.step = *step;
                let mut pairs = row(&[
                    ("epoch/number", *epoch as f64),
                    ("epoch/train_loss", *train_loss),
                    ("epoch/seconds", *seconds),
                ]);
                pairs.extend(validation_loss.map(|loss| ("epoch/validation_loss".into(), loss)));
                Some((*step, pairs))
            }
            Event::Checkpoint { step, blocked_milliseconds, save_milliseconds, bytes, .. } => {
                Some((
                    *step,
                    row(&[
                        ("checkpoint/blocked_milliseconds", *blocked_milliseconds),
                        ("checkpoint/save_milliseconds", *save_milliseconds),
                        ("checkpoint/bytes", *bytes as f64),
                    ]),
                ))
            }
            Event::LossScale { step, scale, .. } => {
                Some((*step, row(&[("train/loss_scale", *scale)])))
            }
            Event::Scored { name, value } => Some((self.step, vec![(name.clone().into(), *value)])),
            Event::Machine(sample) => Some((self.step, machine(sample))),
            _ => None,
        }
    }
}

fn machine(sample: &MachineSample) -> Vec<(Name, f64)> {
    let all = [
        ("machine/cpu_threads", Some(sample.cpu_threads)),
        ("machine/other_threads", sample.other_threads),
        ("machine/resident_bytes", Some(sample.resident_bytes as f64)),
        ("machine/available_bytes", Some(sample.available_bytes as f64)),
        ("machine/page_cache_bytes", sample.page_cache_bytes.map(|bytes| bytes as f64)),
        ("machine/minor_faults_per_second", sample.minor_faults),
        ("machine/major_faults_per_second", sample.major_faults),
        ("machine/disk_read_bytes_per_second", Some(sample.disk_read)),
        ("machine/disk_written_bytes_per_second", Some(sample.disk_written)),
        ("machine/page_cache_read_bytes_per_second", sample.cache_read),
    ];
    let own = all.into_iter().filter_map(|(name, value)| Some((Name::Borrowed(name), value?)));
    let mut pairs: Vec<(Name, f64)> = own.collect();
    for gpu in &sample.gpus {
        let all = [
            ("utilisation", gpu.utilisation),
            ("memory_bytes", gpu.memory_used_bytes.map(|bytes| bytes as f64)),
            ("clock_mhz", gpu.clock_mhz.map(f64::from)),
            ("power_watts", gpu.power_watts),
            ("temperature_celsius", gpu.temperature_celsius.map(f64::from)),
        ];
        let named = |name| Name::Owned(format!("machine/gpu{}_{name}", gpu.index));
        let known = all.into_iter().filter_map(|(name, value)| Some((named(name), value?)));
        pairs.extend(known);
    }
    pairs
}

/// A name that none of the others has: this one, or with a number behind it.
pub(crate) fn free_name(name: String, taken: &mut BTreeSet<String>) -> String {
    let numbered = (2..).map(|number| format!("{name}_{number}"));
    let mut names = std::iter::once(name.clone()).chain(numbered);
    let free = names.find(|name| taken.insert(name.clone()));
    free.unwrap_or(name)
}

/// Settings as names and values: `train.optimizer.adamw.learning_rate` and `0.001`. What is not
/// set is left out.
pub(crate) fn settings(value: &serde_json::Value) -> Vec<(String, serde_json::Value)> {
    let mut flat = Vec::new();
    flatten("", value, &mut flat);
    flat
}

fn flatten(name: &str, value: &serde_json::Value, flat: &mut Vec<(String, serde_json::Value)>) {
    match value {
        serde_json::Value::Object(map) => {
            for (key, value) in map {
                let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                flatten(&name, value, flat);
            }
        }
        serde_json::Value::Null => {}
        other => flat.push((name.to_owned(), other.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_of_steps_are_thinned_and_skipped_steps_are_not() {
        let mut points = Points::new(10);
        assert!(points.of(&crate::testing::step(9, 1.0)).is_none());
        let (step, row) = points.of(&crate::testing::step(10, 0.5)).unwrap();
        assert_eq!((step, &row[0]), (10, &("train/loss".into(), 0.5)));
        assert!(points.of(&crate::testing::step(13, f64::NAN)).is_some());
        // The machine has no step of its own.
        let (step, row) = points.of(&Event::Machine(MachineSample::default())).unwrap();
        assert_eq!((step, row.len()), (13, 5));
    }

    #[test]
    fn settings_are_flat_and_what_is_not_set_is_left_out() {
        let value = serde_json::json!({"a": {"b": 1, "c": null, "d": {}}, "e": [1, 2], "f": false});
        let names: Vec<String> =
            settings(&value).into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(names, ["a.b=1", "e=[1,2]", "f=false"]);
    }
}
