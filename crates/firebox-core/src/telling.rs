//! Channels that alone tell what a model is to learn, or where in the data a window lies: a copy of the label, something
//! that was made of it or of what comes after, or a number of the row. Scores of a model that sees one say nothing.

use crate::{Labels, Series, SeriesSet, StepLabels, Steps, TrainWindows};

/// Windows or steps that are looked at, evenly taken from all. A choice.
const LOOKED_AT: usize = 20_000;

/// Fewest of them that say anything. A choice.
const FEWEST: usize = 50;

/// Fewest runs of one class, one behind the other, of each class: labels that hardly ever change go along with anything that
/// drifts. A choice.
const RUNS: usize = 5;

/// Different values at most of a channel that stands for its classes by values and not by their order. A choice.
const VALUES: usize = 64;

/// What a channel tells by itself.
#[derive(Clone, Debug, PartialEq)]
pub enum Telling {
    /// The class: each value, or each range of values, is of one class.
    Class {
        /// The channel.
        channel: String,
        /// Windows or labelled steps of which it is so.
        seen: usize,
    },
    /// The number of the row: it changes by the same from each step to the next.
    Row {
        /// The channel.
        channel: String,
        /// By how much.
        step: f64,
    },
}

/// Such channels of the steps that training windows cover, with their classes by this rule.
pub fn telling_channels(train: &TrainWindows, labels: &Labels) -> Vec<Telling> {
    let set = train.set();
    let steps = Steps::of_windows(set, train.windows());
    let classes = classes(train, labels, &steps);
    let found = |channel: usize| {
        let name = set.channels()[channel].name.clone();
        if let Some(step) = row_step(set, channel, &steps) {
            return Some(Telling::Row { channel: name, step });
        }
        let seen = classes.len();
        tells_class(set, channel, &classes).then_some(Telling::Class { channel: name, seen })
    };
    (0..set.channels().len()).filter_map(found).collect()
}

/// A step of a series and its class, in the order of series and time.
type Labelled = (usize, usize, u32);

/// Some labelled steps: by their own labels where classes are those of steps, else the last steps of windows by theirs.
fn classes(train: &TrainWindows, labels: &Labels, steps: &Steps<'_>) -> Vec<Labelled> {
    let series = train.set().series();
    let by_step = matches!(labels, Labels::Last | Labels::Majority { .. })
        && series.iter().any(|series| matches!(series.labels, StepLabels::PerStep(_)));
    let all: Vec<Labelled> = if by_step {
        let class = |(index, step): (usize, usize)| match &series[index].labels {
            StepLabels::PerStep(labels) => Some((index, step, labels[step]?)),
            StepLabels::None | StepLabels::Whole(_) => None,
        };
        let count: usize = steps.runs().iter().map(|(_, steps)| steps.len()).sum();
        steps.each().step_by(count.div_ceil(LOOKED_AT).max(1)).filter_map(class).collect()
    } else {
        let windows = train.windows().iter();
        let last = |window: crate::Window| {
            Some((window.series as usize, window.steps().end.checked_sub(1)?, window.label?))
        };
        windows.step_by(train.len().div_ceil(LOOKED_AT).max(1)).filter_map(last).collect()
    };
    let classes = all.iter().map(|(.., class)| *class as usize + 1).max().unwrap_or(0);
    let mut runs = vec![0; classes];
    for (place, (index, _, class)) in all.iter().enumerate() {
        let before = place.checked_sub(1).map(|before| (all[before].0, all[before].2));
        runs[*class as usize] += usize::from(before != Some((*index, *class)));
    }
    let there: Vec<usize> = runs.into_iter().filter(|runs| *runs > 0).collect();
    let is_enough =
        all.len() >= FEWEST && there.len() > 1 && there.iter().all(|runs| *runs >= RUNS);
    if is_enough { all } else { vec![] }
}

/// Whether each value of the channel is of one class, and there are few values, or the values of each class lie together.
fn tells_class(set: &SeriesSet, channel: usize, classes: &[Labelled]) -> bool {
    let width = set.channels().len();
    let value = |(series, step, class): &Labelled| {
        (set.series()[*series].values.at(step * width + channel), *class)
    };
    let mut all: Vec<(f64, u32)> = classes.iter().map(value).collect();
    all.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let (mut values, mut changes) = (usize::from(!all.is_empty()), 0);
    for pair in all.windows(2) {
        let is_new = pair[0].0 != pair[1].0;
        let is_other = pair[0].1 != pair[1].1;
        if is_other && !is_new {
            return false;
        }
        values += usize::from(is_new);
        changes += usize::from(is_other);
    }
    let mut there: Vec<u32> = classes.iter().map(|(.., class)| *class).collect();
    there.sort_unstable();
    there.dedup();
    // A value for each is seen again and again where it says anything.
    let by_value = values <= VALUES.min(classes.len() / RUNS);
    there.len() > 1 && (changes + 1 == there.len() || by_value)
}

/// By how much the channel changes from each covered step to the next, if that is the same everywhere and not zero.
fn row_step(set: &SeriesSet, channel: usize, steps: &Steps<'_>) -> Option<f64> {
    /// Rounding of values, as a share of the largest of them.
    const ROUNDING: f64 = 1e-9;
    let width = set.channels().len();
    let (mut own, mut seen) = (None, 0);
    for (series, steps) in steps.runs() {
        let Series { values, segments, .. } = &set.series()[*series];
        let begins = |step| segments.binary_search_by_key(&step, |segment| segment.start).is_ok();
        let mut before: Option<f64> = None;
        for step in steps.clone() {
            let now = values.at(step * width + channel);
            // Runs go on over gaps, where the step before is another time ago.
            if let Some(before) = before.filter(|_| !begins(step)) {
                let change = now - before;
                let change_of_all = *own.get_or_insert(change);
                let rounding = ROUNDING * change.abs().max(now.abs());
                if change == 0.0 || (change - change_of_all).abs() > rounding {
                    return None;
                }
                seen += 1;
            }
            before = Some(now);
        }
    }
    own.filter(|_| seen >= FEWEST)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Channel, Role, SplitRule, Stream, WindowRule, split};

    const STEPS: usize = 600;

    /// The value of a channel, by the step and its class.
    type Value<'a> = &'a dyn Fn(usize, u32) -> f64;

    /// Two series of these channels, functions of the step and its class, which changes every so many steps.
    fn found(every: usize, labels: &Labels, channels: &[(&str, Value<'_>)]) -> Vec<Telling> {
        let class = |step: usize| (step / every % 2) as u32;
        let series = ["a", "b"].map(|name| {
            let values = (0..STEPS)
                .flat_map(|step| channels.iter().map(move |(_, value)| value(step, class(step))));
            let mut series = Series::regular(name, 0, 60_000_000, values.collect(), channels.len());
            series.labels = StepLabels::PerStep((0..STEPS).map(|step| Some(class(step))).collect());
            series
        });
        let names = channels.iter().map(|(name, _)| Channel::new(*name, Role::Other)).collect();
        let classes = vec!["rest".to_owned(), "run".to_owned()];
        let set = Arc::new(SeriesSet::new(names, classes, series.to_vec()).unwrap());
        let rule = WindowRule { length: 12, stride: 2, whole: false };
        let parts = split(&set, &rule, &SplitRule::time(0.1, 0.2), labels).unwrap();
        telling_channels(&parts.train, labels)
    }

    fn noise(step: usize) -> f64 {
        Stream::new(step as u64, "noise").draws().normal()
    }

    #[test]
    fn copies_of_labels_and_numbers_of_rows_are_found() {
        let honest = |step: usize, class: u32| noise(step) + f64::from(class);
        let channels: [(&str, Value<'_>); 6] = [
            ("honest", &honest),
            ("copy", &|_, class| f64::from(class)),
            ("made of it", &|step, class| f64::from(class) * 20.0 + noise(step)),
            ("codes", &|step, class| (4 * (step % 3)) as f64 + f64::from(class)),
            ("row", &|step, _| 0.1 * step as f64 + 7.0),
            ("saw", &|step, _| (step % 24) as f64),
        ];
        for labels in [Labels::Last, Labels::Majority { share: 0.5 }] {
            let found = found(20, &labels, &channels);
            let names: Vec<&str> = found
                .iter()
                .map(|one| match one {
                    Telling::Class { channel, seen } => {
                        assert!(*seen > 300, "{seen}");
                        channel.as_str()
                    }
                    Telling::Row { channel, step } => {
                        assert!((step - 0.1).abs() < 1e-9);
                        channel.as_str()
                    }
                })
                .collect();
            assert_eq!(names, ["copy", "made of it", "codes", "row"], "{labels:?}");
        }
        // Nobody asks for classes.
        let found = found(20, &Labels::None, &channels);
        assert!(matches!(&found[..], [Telling::Row { .. }]), "{found:?}");
    }

    #[test]
    fn a_number_of_the_row_is_told_where_rows_between_are_missing() {
        let told = |missing: usize| {
            let id = (0..STEPS).map(|row| (row + usize::from(row >= missing)) as f64);
            let series = Series {
                segments: vec![0..STEPS / 4, STEPS / 4..STEPS],
                ..Series::regular("a", 0, 60_000_000, id.collect(), 1)
            };
            let channels = vec![Channel::new("id", Role::Other)];
            let set = Arc::new(SeriesSet::new(channels, vec![], vec![series]).unwrap());
            let rule = WindowRule { length: 12, stride: 1, whole: false };
            let parts = split(&set, &rule, &SplitRule::time(0.1, 0.2), &Labels::None).unwrap();
            telling_channels(&parts.train, &Labels::None)
        };
        // From 149 to 151 over the gap, or from 199 to 201 behind it.
        assert_eq!(told(150), [Telling::Row { channel: "id".to_owned(), step: 1.0 }]);
        assert_eq!(told(200), []);
    }

    #[test]
    fn what_drifts_tells_no_class_that_hardly_changes() {
        let walk = |step: usize, _| step as f64 + 0.3 * noise(step);
        assert_eq!(found(300, &Labels::Last, &[("walk", &walk)]), []);
        // Values that are all different tell nothing by being different.
        assert_eq!(found(20, &Labels::Last, &[("noise", &|step, _| noise(step))]), []);
    }
}
