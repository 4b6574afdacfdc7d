//! What stood out in the trainings of a run of many: each finding once, with how many of them have it.

use super::learning::{divergence, overflows, plateau, skipped, still_falling};
use super::{Advice, Settings, starvation};
use crate::text::{percent, significant};
use crate::times::{StepDevice, StepTimes};
use crate::usage::Usage;

/// One of the trainings of a run.
#[derive(Clone, Debug)]
pub struct Training {
    /// Its name, such as `fold-1/lstm`.
    pub name: String,
    /// Its steps and epochs, and how busy the run's GPU was: see [`Usage::on_the_gpu_of`].
    pub usage: Usage,
    /// The settings that it ran with.
    pub settings: Settings,
}

/// Looks for one thing in a training.
type Check = fn(&Usage, &Settings) -> Option<Advice>;

/// Each check, with the share of the trainings from which it is worth a word: a single one that is not
/// finite or starves is, while epochs for nothing in a few of many are the luck of a seed.
const CHECKS: [(Check, f64); 6] = [
    (starvation, 0.0),
    (skipped, 0.0),
    (overflows, 0.0),
    (divergence, 0.0),
    (plateau, 0.5),
    (still_falling, 0.5),
];

/// What stood out in several trainings: a line for each finding, with the first training that has it.
pub fn advice_on_trainings(trainings: &[Training]) -> Vec<Advice> {
    let told: Vec<&Training> =
        trainings.iter().filter(|training| !training.usage.steps.is_empty()).collect();
    CHECKS.iter().filter_map(|(check, least)| look(&told, *check, *least)).collect()
}

/// Where the time of the steps of all trainings went, by name and as text; nothing where none was told.
pub fn timings_of_trainings(trainings: &[Training]) -> Vec<(String, String)> {
    let all: Vec<StepTimes> =
        trainings.iter().flat_map(|training| &training.usage.times).copied().collect();
    let Some(times) = StepTimes::sum(&all) else { return vec![] };
    let own = |name: &str, text: String| (name.to_owned(), text);
    let mean = 1e3 * times.seconds() / times.steps as f64;
    let mut timings = vec![
        own("steps", times.steps.to_string()),
        own("step, mean", format!("{} ms", significant(mean))),
        own("waiting for data", percent(times.waiting_share())),
    ];
    timings.extend(times.shares().map(|(name, share)| own(name, percent(share))));
    // All are of one run, and so on one device.
    let device = trainings.iter().map(|one| one.usage.step_device(one.settings.on_gpu)).next();
    timings.push(own("limited by", times.limit(device.unwrap_or(StepDevice::Processor))));
    timings
}

/// The line of one check, if enough of the trainings have something.
fn look(trainings: &[&Training], check: Check, least: f64) -> Option<Advice> {
    let mut found = trainings.iter().filter_map(|training| {
        let advice = check(&training.usage, &training.settings)?;
        Some((&training.name, advice))
    });
    let (name, Advice { finding, setting }) = found.next()?;
    let (count, all) = (1 + found.count(), trainings.len());
    if (count as f64) < least * all as f64 {
        return None;
    }
    let finding = match all {
        1 => format!("training `{name}`: {finding}"),
        all => format!("{count} of {all} trainings, the first is `{name}`: {finding}"),
    };
    Some(Advice { finding, setting })
}
