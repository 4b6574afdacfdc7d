//! Channels that never change where training looks, and do elsewhere. No scale can be fitted on them: what fits one
//! takes 1, and whoever runs it has to tell of that. One that never changes at all is told of by the checks of the data.

use crate::{ForecastRule, SeriesSet, Steps, TrainWindows, Window};

/// A channel with one value in all of a training part.
#[derive(Clone, Debug, PartialEq)]
pub struct Unchanging {
    /// Its name.
    pub channel: String,
    /// The value.
    pub value: f64,
}

/// Those of the channels that windows show.
pub fn unchanging_channels(train: &TrainWindows) -> Vec<Unchanging> {
    let set = train.set();
    let first = |window: Window| (window.series as usize, window.start as usize);
    let starts = || train.windows().iter().map(first);
    // The first steps of some windows tell of nearly every channel that it changes.
    let all = (0..set.channels().len()).filter(|channel| same(set, *channel, starts()).is_some());
    let left: Vec<usize> = all.collect();
    if left.is_empty() {
        return vec![];
    }
    // Windows overlap, and a channel that does not change is looked at to the end.
    let steps = Steps::of_windows(set, train.windows());
    left.into_iter().filter_map(|channel| unchanging(set, channel, steps.each())).collect()
}

/// Those of the targets, in the steps that are forecast and were measured, and of the static channels, each once. `set` is
/// the one that the rule is of.
///
/// # Panics
/// When the windows do not lie in `set`, or a channel is not among its own.
pub fn unchanging_targets(
    rule: &ForecastRule,
    set: &SeriesSet,
    train: &TrainWindows,
) -> Vec<Unchanging> {
    let last =
        || train.windows().iter().map(|window| (window.series as usize, window.steps().end - 1));
    let target = |channel: &usize| {
        let ahead = |(series, last): (usize, usize)| {
            rule.horizons.iter().map(move |horizon| (series, last + horizon))
        };
        // Nothing is learnt of what nobody measured.
        let measured =
            |(series, step): &(usize, usize)| !set.series()[*series].filled.holds(*channel, *step);
        unchanging(set, *channel, last().flat_map(ahead).filter(measured))
    };
    let of_static = |channel: &usize| unchanging(set, *channel, last());
    let mut found: Vec<Unchanging> = rule.targets.iter().filter_map(target).collect();
    for one in rule.statics.iter().filter_map(of_static) {
        if !found.contains(&one) {
            found.push(one);
        }
    }
    found
}

/// A channel, if it has one value at these steps of series and another one somewhere.
fn unchanging(
    set: &SeriesSet,
    channel: usize,
    steps: impl Iterator<Item = (usize, usize)>,
) -> Option<Unchanging> {
    let value = same(set, channel, steps)?;
    let all = (0..)
        .zip(set.series())
        .flat_map(|(index, series)| (0..series.len()).map(move |step| (index, step)));
    // It has another one somewhere.
    let name = || set.channels()[channel].name.clone();
    same(set, channel, all).is_none().then(|| Unchanging { channel: name(), value })
}

/// The one value that a channel has at these steps of series; none if it has several.
fn same(
    set: &SeriesSet,
    channel: usize,
    steps: impl Iterator<Item = (usize, usize)>,
) -> Option<f64> {
    let width = set.channels().len();
    let at =
        |(series, step): (usize, usize)| set.series()[series].values.at(step * width + channel);
    let mut seen = steps.map(at);
    let value = seen.next()?;
    seen.all(|other| other == value).then_some(value)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Channel, Labels, Role, Series, Split, SplitRule, WindowRule, split};

    /// A channel that always changes, one that is 5 until `from`, and one that is 7 throughout.
    fn parts(from: usize, labels: &Labels) -> Split {
        let row = |step: usize| [step as f64, if step < from { 5.0 } else { step as f64 }, 7.0];
        let series = Series::regular("a", 0, 1, (0..100).flat_map(row).collect(), 3);
        let channels = ["load", "still", "never"].map(|name| Channel::new(name, Role::Other));
        let set = Arc::new(SeriesSet::new(channels.to_vec(), vec![], vec![series]).unwrap());
        let windows = WindowRule { length: 4, stride: 1, whole: false };
        split(&set, &windows, &SplitRule::time(0.2, 0.2), labels).unwrap()
    }

    fn still() -> Vec<Unchanging> {
        vec![Unchanging { channel: "still".to_owned(), value: 5.0 }]
    }

    #[test]
    fn a_channel_that_changes_outside_of_training_alone_is_found() {
        assert_eq!(unchanging_channels(&parts(80, &Labels::None).train), still());
        assert!(unchanging_channels(&parts(40, &Labels::None).train).is_empty());
    }

    #[test]
    fn targets_are_looked_at_where_they_are_forecast() {
        let rule = |targets: &[usize], statics: &[usize]| ForecastRule {
            targets: targets.to_vec(),
            horizons: vec![1, 6],
            statics: statics.to_vec(),
            ..ForecastRule::default()
        };
        let of = |from, rule: ForecastRule| {
            let parts = parts(from, &Labels::Ahead { steps: 6 });
            unchanging_targets(&rule, parts.train.set(), &parts.train)
        };
        assert_eq!(of(80, rule(&[0, 1, 2], &[])), still());
        assert_eq!(of(80, rule(&[1], &[1, 2])), still());
        assert_eq!(of(80, rule(&[0], &[1])), still());
        // A target of which all that changes was put in.
        let train = parts(40, &Labels::Ahead { steps: 6 }).train;
        let mut series = train.set().series()[0].clone();
        series.filled.add(1, 40..100);
        let set = SeriesSet::new(train.set().channels().to_vec(), vec![], vec![series]).unwrap();
        assert_eq!(unchanging_targets(&rule(&[0, 1], &[]), &set, &train), still());
        // Seen by no window's end, and forecast from the last of them.
        let last = parts(80, &Labels::Ahead { steps: 6 }).train.windows().last().unwrap().steps();
        assert!(of(last.end + 5, rule(&[1], &[])).is_empty());
        assert_eq!(of(last.end + 5, rule(&[0], &[1])), still());
    }
}
