//! The split: by time with a gap, by whole series, or as the files give it. Everything later gets its
//! windows here. Where whole series are drawn, equal ones stay together.

mod by_series;
mod by_time;
mod cut;
mod error;
mod rule;

use std::sync::Arc;

pub(crate) use by_time::{Moments, places};
pub(crate) use cut::all_windows;
pub use cut::unseen;
pub use error::SplitError;
pub use rule::{EqualPolicy, SplitRule};

use by_series::{LEFT_OUT, least_share, parts_drawn, parts_given};
use by_time::{boundaries, part_by_time};
use rule::{check_shares, shares, way_out};

use crate::{
    EqualSeries, HeldOutWindows, Labels, SeriesError, SeriesSet, TrainWindows, WindowList,
    WindowRule, Windows,
};

/// The windows of each part. No step is seen by two parts.
#[derive(Clone, Debug)]
pub struct Split {
    /// To train on.
    pub train: TrainWindows,
    /// To choose by: early stopping, the best checkpoint.
    pub validation: HeldOutWindows,
    /// To report on, at the end.
    pub test: HeldOutWindows,
    /// The two boundaries of a split by time, microseconds since 1970-01-01 UTC.
    pub boundaries: Option<[i64; 2]>,
    /// Windows that fit no part: they lie across a boundary or in the gap after it.
    pub left_out: usize,
    /// Series that equal another one.
    pub equal: EqualSeries,
}

/// Cuts the series of `set` into windows and divides them.
///
/// A window lies in one segment of one series; with its label's horizon it lies wholly on one side
/// of a boundary. After a boundary, `gap` steps of each series are left out, so that no held-out
/// window begins in what a training window has just seen.
///
/// # Errors
///
/// When a rule is out of range, when no window fits, when training, validation or test would be
/// empty although its share is not zero, or when a given test set has series that are trained on and the rule
/// refuses that.
pub fn split(
    set: &Arc<SeriesSet>,
    windows: &WindowRule,
    rule: &SplitRule,
    labels: &Labels,
) -> Result<Split, SplitError> {
    let length = windows.length;
    check_shares(rule)?;
    let all = all_windows(set, windows, labels)?;
    let boundaries = match *rule {
        SplitRule::Time { validation, test, .. } => Some(boundaries(set, validation, test)),
        SplitRule::Series { .. } | SplitRule::Given { .. } => None,
    };
    let (parts_of_series, equal) = match *rule {
        SplitRule::Time { .. } => (Vec::new(), EqualSeries::at_other_times(set)),
        SplitRule::Series { validation, test, seed } => parts_drawn(set, validation, test, seed),
        SplitRule::Given { validation, seed, equal } => parts_given(set, validation, seed, equal)?,
    };
    let places_of: Vec<[usize; 2]> =
        boundaries.map_or_else(Vec::new, |of| set.series().iter().map(|s| places(s, of)).collect());
    let mut parts = [(); 3].map(|()| WindowList::default());
    let mut left_out = 0;
    for window in &all {
        let series = window.series as usize;
        let part = match rule {
            SplitRule::Time { gap, .. } => {
                let horizon = labels.horizon();
                let gap = gap.unwrap_or(length.saturating_add(horizon));
                part_by_time(&window, places_of[series], gap, horizon)
            }
            _ if parts_of_series[series] == LEFT_OUT => continue,
            _ => Some(parts_of_series[series]),
        };
        match part {
            Some(part) => parts[part].push(window),
            None => left_out += 1,
        }
    }
    let (validation_share, test_share) = shares(rule);
    let wanted = [("training", 1.0), ("validation", validation_share), ("test", test_share)];
    for (windows, (part, share)) in parts.iter().zip(wanted) {
        if windows.is_empty() && share > 0.0 {
            let drawn = match rule {
                SplitRule::Given { .. } => parts_of_series.iter().filter(|part| **part < 2).count(),
                _ => set.series().len(),
            };
            let least = || {
                let mut has_window = vec![false; set.series().len()];
                all.iter().for_each(|window| has_window[window.series as usize] = true);
                let place = if part == "test" { 2 } else { 1 };
                least_share(set, rule, place, &parts_of_series, &has_window)
            };
            let hint = way_out(rule, part, drawn, least);
            return Err(SplitError::Empty { part, windows: all.len(), left_out, hint });
        }
    }
    Ok(Split { equal, ..Split::of(set, parts, labels, boundaries, left_out) })
}

impl Split {
    /// The same windows with some of the channels of their series, in this order. A set is divided with all of its channels, in
    /// which equal series are equal, and those that a model reads are selected afterwards.
    ///
    /// # Errors
    ///
    /// As [`SeriesSet::select`].
    ///
    /// # Panics
    ///
    /// When an index is not below the number of channels.
    pub fn select(self, channels: &[usize]) -> Result<Self, SeriesError> {
        let set = Arc::new(self.train.set().select(channels)?);
        let Self { train, validation, test, .. } = self;
        let [validation, test] = [validation, test].map(|part| part.on(&set));
        Ok(Self { train: train.on(&set), validation, test, ..self })
    }

    /// Windows of training, validation and test, which the caller has kept apart.
    pub(crate) fn of(
        set: &Arc<SeriesSet>,
        parts: [WindowList; 3],
        labels: &Labels,
        boundaries: Option<[i64; 2]>,
        left_out: usize,
    ) -> Self {
        let classes: Arc<[String]> = match labels {
            Labels::Forward { .. } | Labels::Return { .. } => {
                Labels::FORWARD_CLASSES.map(String::from).into()
            }
            Labels::Ahead { .. } => [].into(),
            Labels::None | Labels::Last | Labels::Majority { .. } => set.classes().into(),
        };
        let [train, validation, test] =
            parts.map(|windows| Windows::new(Arc::clone(set), windows, Arc::clone(&classes)));
        Self {
            train: TrainWindows::new(train),
            validation: HeldOutWindows::new(validation),
            test: HeldOutWindows::new(test),
            boundaries,
            left_out,
            equal: EqualSeries::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Channel, Role, Series};

    pub(super) fn set(lengths: &[usize]) -> Arc<SeriesSet> {
        let series = lengths.iter().enumerate().map(|(index, steps)| {
            Series::regular(format!("s{index}"), 0, 10, (0..*steps).map(|v| v as f64).collect(), 1)
        });
        let channels = vec![Channel::new("close", Role::Close)];
        Arc::new(SeriesSet::new(channels, vec![], series.collect()).unwrap())
    }

    pub(super) fn rule(length: usize, stride: usize) -> WindowRule {
        WindowRule { length, stride, whole: false }
    }

    #[test]
    fn every_error_names_its_figures() {
        let message = |lengths: &[usize], window, split_rule| {
            split(&set(lengths), &window, &split_rule, &Labels::None).unwrap_err().to_string()
        };
        let time = SplitRule::time(0.1, 0.1);
        assert!(message(&[20, 30], rule(40, 1), time).contains("needs 40"));
        assert!(message(&[20, 30], rule(40, 1), time).contains("has 30 (series `s1`)"));
        assert!(message(&[100], rule(20, 1), time).contains("validation part is empty"));
        assert!(message(&[100], rule(0, 1), time).contains("at least 1"));
        assert!(message(&[100], rule(5, 1), SplitRule::time(0.6, 0.6)).contains("1.2"));
        assert!(message(&[100], rule(5, 1), SplitRule::time(f64::NAN, 0.1)).contains("NaN"));
    }

    #[test]
    fn windows_of_some_channels_are_the_same_windows() {
        let channels = vec![Channel::new("a", Role::Other), Channel::new("b", Role::Other)];
        let values = (0..40).map(f64::from).collect();
        let series = vec![Series::regular("s", 0, 10, values, 2)];
        let set = Arc::new(SeriesSet::new(channels, vec![], series).unwrap());
        let rule = SplitRule::Time { validation: 0.2, test: 0.3, gap: None };
        let window = WindowRule { length: 2, stride: 1, whole: false };
        let all = split(&set, &window, &rule, &Labels::None).unwrap();
        let some = all.clone().select(&[1]).unwrap();
        let windows = |parts: &Split| {
            [parts.train.windows(), parts.validation.windows(), parts.test.windows()]
                .map(|windows| windows.iter().collect::<Vec<_>>())
        };
        assert_eq!(windows(&some), windows(&all));
        assert_eq!(some.boundaries, all.boundaries);
        for part in [some.train.set(), some.validation.set(), some.test.set()] {
            assert_eq!(part.series()[0].values.all()[..3], [1.0, 3.0, 5.0]);
        }
    }
}
