//! A study in numbers, for whoever reports on it. Nothing here draws or writes.

use crate::direction::Direction;
use crate::pruner::percentile_of;
use crate::space::{Choice, Distribution};
use crate::study::took;
use crate::trial::{Trial, TrialState};

/// What the pruned trials saved and what all trials took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Savings {
    /// Seconds that pruned trials would have taken beyond their end, if each had taken as long as the
    /// median of the complete trials: what a trial does before its first step is not counted as saved.
    pub seconds: f64,
    /// Seconds that all ended trials took together, those that others go on with among them.
    pub spent: f64,
    /// Pruned among the complete and pruned trials, from 0 to 1.
    pub share: f64,
}

/// What giving up trials early saved, of all trials of a study in the order of their numbers. A trial that goes on
/// with others took their time as well. `None` without a pruned trial, or without a complete one that
/// tells how long a whole trial is; one that has the result of another does not.
pub fn savings(trials: &[Trial]) -> Option<Savings> {
    let of = |state| trials.iter().filter(move |trial: &&Trial| trial.state == state);
    let own = of(TrialState::Complete).filter(|trial| trial.repeats().is_none());
    let taken = |trial: &Trial| seconds_taken(trials, trial);
    let whole = percentile_of(own.filter_map(taken).collect(), 50.0);
    let pruned = of(TrialState::Pruned).count();
    if pruned == 0 || whole.is_nan() {
        return None;
    }
    let ended = trials.iter().filter(|trial| trial.state.is_finished());
    let rest = |trial: &Trial| taken(trial).map_or(0.0, |own| (whole - own).max(0.0));
    Some(Savings {
        seconds: of(TrialState::Pruned).map(rest).sum(),
        spent: ended.filter_map(took).sum(),
        share: pruned as f64 / (pruned + of(TrialState::Complete).count()) as f64,
    })
}

/// Seconds that a trial took that has ended, and with it the tries that it goes on with, of which each whose worker
/// died counts up to its last sign of life. `trials` are all of the study in the order of their numbers. `None` if it is
/// not known when the trial ran.
pub fn seconds_taken(trials: &[Trial], trial: &Trial) -> Option<f64> {
    let earlier = trial.earlier_tries().filter_map(|number| {
        let place = trials.binary_search_by_key(&number, |other| other.number).ok()?;
        took(trials.get(place)?)
    });
    Some(took(trial)? + earlier.sum::<f64>())
}

/// The complete trial with the best value of the first objective that violates no constraint; the
/// first of several. NaN is never the best.
pub fn best_trial<'a>(trials: &'a [Trial], directions: &[Direction]) -> Option<&'a Trial> {
    let direction = directions.first().copied()?;
    let loss = |trial: &Trial| {
        let feasible = crate::pareto::violation(trial) <= 0.0;
        let value = trial.values.as_ref()?.first().copied()?;
        let counts = trial.state == TrialState::Complete && feasible && !value.is_nan();
        counts.then(|| direction.loss(value))
    };
    let losses = trials.iter().filter_map(|trial| Some((trial, loss(trial)?)));
    let best = losses.min_by(|a, b| a.1.total_cmp(&b.1).then(a.0.number.cmp(&b.0.number)));
    best.map(|(trial, _)| trial)
}

impl Distribution {
    /// Where an internal value lies on an axis from 0 to 1: linear, or linear in the logarithm; choices
    /// are evenly spaced. Values outside are held at the ends.
    pub fn place(&self, internal: f64) -> f64 {
        let between = |low: f64, high: f64, value: f64| {
            if high > low { ((value - low) / (high - low)).clamp(0.0, 1.0) } else { 0.5 }
        };
        match *self {
            Self::Float { low, high, log: false, .. } => between(low, high, internal),
            Self::Float { low, high, log: true, .. } => {
                between(low.ln(), high.ln(), internal.max(low).ln())
            }
            Self::Int { low, high, log: false, .. } => between(low as f64, high as f64, internal),
            Self::Int { low, high, log: true, .. } => {
                let (low, high) = (low as f64, high as f64);
                between(low.ln(), high.ln(), internal.max(low).ln())
            }
            Self::Categorical { ref choices } => between(0.0, choices.len() as f64 - 1.0, internal),
        }
    }

    /// Places worth a mark on that axis, at most `count` or so, with their labels.
    pub fn marks(&self, count: usize) -> Vec<(f64, String)> {
        if let Self::Categorical { choices } = self {
            let stride = choices.len().div_ceil(count.max(1)).max(1);
            let marked = choices.iter().enumerate().step_by(stride);
            return marked
                .map(|(index, choice)| (self.place(index as f64), label(choice)))
                .collect();
        }
        let ends = match *self {
            Self::Int { low, high, .. } => [low as f64, high as f64],
            Self::Float { low, high, .. } => [low, high],
            Self::Categorical { .. } => [0.0, 0.0],
        };
        let parts = if ends[0] < ends[1] { count.max(2) - 1 } else { 0 };
        let value = |part: usize| {
            let share = part as f64 / parts.max(1) as f64;
            let raw = match self {
                Self::Float { log: true, .. } | Self::Int { log: true, .. } => {
                    ends[0] * (ends[1] / ends[0]).powf(share)
                }
                _ => ends[0] + (ends[1] - ends[0]) * share,
            };
            if matches!(self, Self::Int { .. }) { raw.round() } else { raw }
        };
        let mut marks: Vec<(f64, String)> =
            (0..=parts).map(value).map(|value| (self.place(value), short(value))).collect();
        marks.dedup_by(|a, b| a.1 == b.1);
        marks
    }
}

fn label(choice: &Choice) -> String {
    match choice {
        Choice::Text(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A number with three digits that count.
fn short(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let exponent = value.abs().log10().floor() as i32;
    if (-3..6).contains(&exponent) {
        let text = format!("{value:.*}", (2 - exponent).max(0) as usize);
        let trimmed = text.trim_end_matches('0').trim_end_matches('.');
        return if text.contains('.') { trimmed.to_owned() } else { text };
    }
    let text = format!("{value:.2e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    format!("{}e{exponent}", mantissa.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::testing::{space, trial};

    fn ended(number: u64, state: TrialState, reports: u64, seconds: f64) -> Trial {
        let intermediate = (0..reports).map(|step| (step, 0.5)).collect();
        let (started, ended) = (Some(100.0), Some(100.0 + seconds));
        Trial { intermediate, started, ended, ..trial(number, state) }
    }

    #[test]
    fn savings_are_what_complete_trials_take_less_what_pruned_ones_took() {
        let mut trials = vec![
            ended(0, TrialState::Complete, 10, 50.0),
            ended(1, TrialState::Complete, 10, 30.0),
            // One report in ten, after 10 seconds of set-up: it saves 29 seconds, and not 99.
            ended(2, TrialState::Pruned, 1, 11.0),
            // Slower than complete ones: it saves nothing, and takes nothing of what others save.
            ended(3, TrialState::Pruned, 2, 55.0),
            ended(4, TrialState::Fail, 1, 6.0),
            trial(5, TrialState::Running),
        ];
        let expected = Savings { seconds: 29.0, spent: 152.0, share: 0.5 };
        assert_eq!(savings(&trials), Some(expected));
        // What has the result of another took no time of its own.
        let mut repeated = ended(6, TrialState::Complete, 10, 0.5);
        repeated.system_attributes.insert(crate::trial::REPEATS.to_owned(), 0.into());
        trials.push(repeated);
        let seconds = |trials: &[Trial]| savings(trials).map(|savings| savings.seconds);
        assert_eq!(seconds(&trials), Some(29.0));
        trials.push(ended(7, TrialState::Complete, 0, 90.0));
        assert_eq!(seconds(&trials), Some(39.0));
        trials.retain(|trial| trial.state != TrialState::Complete);
        assert_eq!(savings(&trials), None);
        assert_eq!(savings(&[ended(0, TrialState::Complete, 3, 1.0)]), None);
        // Where nobody wrote down when the complete trial ran, there is nothing to compare with.
        let timeless = Trial { started: None, ..ended(0, TrialState::Complete, 3, 1.0) };
        assert_eq!(savings(&[timeless, ended(1, TrialState::Pruned, 1, 1.0)]), None);
    }

    #[test]
    fn a_trial_takes_the_time_of_all_its_tries() {
        let retry = |number, state, seconds, earlier: &[u64]| {
            let mut retry = ended(number, state, 3, seconds);
            retry.system_attributes.insert(crate::trial::HISTORY.to_owned(), earlier.into());
            retry
        };
        let mut trials = vec![
            ended(0, TrialState::Fail, 1, 5.0),
            retry(1, TrialState::Fail, 90_000.0, &[0]),
            ended(2, TrialState::Fail, 1, 7.0),
            retry(3, TrialState::Complete, 9.0, &[0, 1]),
            retry(4, TrialState::Pruned, 1.0, &[2]),
        ];
        // Its worker died after 4 seconds, which another noticed a day later.
        let beat = serde_json::json!({ "time": 104.0, "every": 2.0 });
        trials[1].system_attributes.insert(crate::trial::HEARTBEAT.to_owned(), beat);
        let taken: Vec<_> = trials.iter().map(|trial| seconds_taken(&trials, trial)).collect();
        assert_eq!(taken, [5.0, 11.0, 7.0, 20.0, 8.0].map(Some));
        // 20 less 8; and 5, 6, 7, 9 and 1.
        let expected = Savings { seconds: 12.0, spent: 28.0, share: 0.5 };
        assert_eq!(savings(&trials), Some(expected));
    }

    #[test]
    fn the_best_trial_is_complete_and_feasible() {
        let valued = |number, value| Trial {
            values: Some(vec![value]),
            ..trial(number, TrialState::Complete)
        };
        let mut trials = vec![
            valued(0, f64::NAN),
            valued(1, 2.0),
            valued(2, 1.0),
            valued(3, 1.0),
            valued(4, 5.0),
        ];
        let best = |trials: &[Trial], direction| best_trial(trials, &[direction]).map(|t| t.number);
        assert_eq!(best(&trials, Direction::Minimize), Some(2));
        assert_eq!(best(&trials, Direction::Maximize), Some(4));
        trials[2].constraints = Some(vec![-1.0, 0.1]);
        trials[3].state = TrialState::Running;
        assert_eq!(best(&trials, Direction::Minimize), Some(1));
        assert_eq!(best(&trials[..1], Direction::Minimize), None);
        assert_eq!(best_trial(&trials, &[]), None);
    }

    #[test]
    fn axes_run_from_end_to_end() {
        let space = space();
        let check = |name: &str, internal: f64, place: f64, marks: &[&str]| {
            assert!((space[name].place(internal) - place).abs() < 1e-12, "{name}");
            let found: Vec<_> = space[name].marks(4).into_iter().map(|mark| mark.1).collect();
            assert_eq!(found, marks);
        };
        check("dropout", 0.25, 0.5, &["0", "0.167", "0.333", "0.5"]);
        check("kind", 2.0, 1.0, &["gru", "lstm", "transformer"]);
        check("layers", 7.0, 1.0, &["1", "3", "5", "7"]);
        check("mix", -9.0, 0.0, &["-1", "0", "1", "2"]);
        check("rate", 1e-3, 0.5, &["1e-5", "2.15e-4", "0.00464", "0.1"]);
        check("width", 64.0, 0.5, &["8", "32", "128", "512"]);
        let one = Distribution::Int { low: 4, high: 4, log: true, step: 1 };
        assert_eq!(one.marks(5), [(0.5, "4".to_owned())]);
    }
}
