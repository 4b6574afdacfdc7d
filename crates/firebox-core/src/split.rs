//! The split: by time with a gap, by whole series, or as the files give it. Everything later gets its
//! windows here. Where whole series are drawn, equal ones stay together.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::equal::{firsts, units};
use crate::{
    EqualSeries, HeldOutWindows, Labels, Origin, Series, SeriesSet, Stream, TrainWindows, Window,
    WindowRule, Windows,
};

/// How windows are divided into training, validation and test.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum SplitRule {
    /// By two moments in time that hold for all series. Steps are counted over all series
    /// together: the last `test` of them are tested on, the `validation` before them validated on.
    Time {
        /// Share of the steps for validation, `0..1`; by default a tenth.
        #[serde(default = "tenth")]
        validation: f64,
        /// Share of the steps for the test, `0..1`; by default a fifth.
        #[serde(default = "fifth")]
        test: f64,
        /// Steps left out after each boundary; by default one window and the label's horizon.
        #[serde(default)]
        gap: Option<usize>,
    },
    /// By whole series, for samples that share no clock: shares of them are drawn for validation
    /// and test, evenly from each class. No series is seen by two parts, nor is one that equals it.
    Series {
        /// Share of the series for validation, `0..1`; by default a tenth.
        #[serde(default = "tenth")]
        validation: f64,
        /// Share of the series for the test, `0..1`; by default a fifth.
        #[serde(default = "fifth")]
        test: f64,
        /// Seed of the draw, by default 1337.
        #[serde(default = "seed")]
        seed: u64,
    },
    /// Series from test files are tested on; of the others, a share is drawn for validation,
    /// evenly from each class.
    Given {
        /// Share of the training series for validation, `0..1`; by default a tenth.
        #[serde(default = "tenth")]
        validation: f64,
        /// Seed of the draw, by default 1337.
        #[serde(default = "seed")]
        seed: u64,
    },
}

fn tenth() -> f64 {
    0.1
}

fn fifth() -> f64 {
    0.2
}

fn seed() -> u64 {
    1337
}

impl SplitRule {
    /// A split by time with the default gap.
    pub fn time(validation: f64, test: f64) -> Self {
        Self::Time { validation, test, gap: None }
    }

    /// The rule for data of which the user wrote none, and why: as the files give it where they
    /// give a test set; by whole series where several of them share no clock; else by time.
    pub fn automatic(given: bool, clock: bool, series: usize) -> (Self, &'static str) {
        let (validation, test, seed) = (tenth(), fifth(), seed());
        match () {
            () if given => (
                Self::Given { validation, seed },
                "`data.test` names a test set, so its series are the test part and validation is drawn from the others",
            ),
            () if !clock && series > 1 => (
                Self::Series { validation, test, seed },
                "the series have no times, so there is no moment that holds for all of them: whole series are drawn for each part",
            ),
            () => (
                Self::time(validation, test),
                "what comes last is tested on, so that nothing is learnt from what comes after",
            ),
        }
    }

    /// Its name in a configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Time { .. } => "time",
            Self::Series { .. } => "series",
            Self::Given { .. } => "given",
        }
    }
}

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

/// A split that leaves nothing to train on or to measure with.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SplitError {
    /// A share outside its range.
    #[error(
        "the {part} share is {found}; shares lie between 0 and 1 and leave some data for training"
    )]
    Share {
        /// Part of the split.
        part: &'static str,
        /// Share found.
        found: f64,
    },
    /// A window of no steps, or a stride of zero.
    #[error(
        "window length {length} and stride {stride} must both be at least 1 and at most {}",
        u32::MAX
    )]
    Rule {
        /// Window length.
        length: usize,
        /// Stride.
        stride: usize,
    },
    /// No window fits into any segment.
    #[error(
        "no window fits: it needs {needed} consecutive steps, and the longest run without a gap has {longest} (series `{series}`)"
    )]
    TooLong {
        /// Steps of a window and of its label's horizon.
        needed: usize,
        /// Steps of the longest segment.
        longest: usize,
        /// Its series.
        series: String,
    },
    /// A part without a window.
    #[error(
        "the {part} part is empty: {windows} windows in all, {left_out} of them across a boundary or in a gap\n  {hint}"
    )]
    Empty {
        /// Part of the split.
        part: &'static str,
        /// Windows in all parts.
        windows: usize,
        /// Windows that fit no part.
        left_out: usize,
        /// The way out.
        hint: &'static str,
    },
    /// Whole windows of series that are not whole.
    #[error(
        "`window.whole` makes one window of each series, and {count} of {series} are cut into pieces (`{example}` into {pieces}) by missing values, gaps or broken bars that were dropped\n  set `data.checks.not_finite` (or `gaps`, `ohlc`) to \"fill\", raise `data.checks.longest_fill` if runs are longer than that, or set window.whole = false"
    )]
    Pieces {
        /// Series in pieces.
        count: usize,
        /// Series in all.
        series: usize,
        /// The first of them.
        example: String,
        /// Its pieces.
        pieces: usize,
    },
    /// The split that the files give, for files that give none.
    #[error(
        "the split is `given`, but no series comes from a {part} file\n  name the test set in `data.test`, or use [split.time] or [split.series]"
    )]
    NotGiven {
        /// Missing part.
        part: &'static str,
    },
    /// Forward labels without a closing price.
    #[error("forward labels need a channel with the role `close`")]
    NoClose,
    /// Return labels without a price or its change.
    #[error("return labels need a channel with the role `close`, or with the role `return`")]
    NoReturn,
    /// Too few folds, or a share for validation outside its range.
    #[error(
        "{folds} folds with a validation share of {validation} cannot be made; there are at least 1 and at most 1000 folds, and the share lies above 0 and below 1"
    )]
    Folds {
        /// Number of folds.
        folds: usize,
        /// Share for validation.
        validation: f64,
    },
    /// A fold without a window in one of its parts.
    #[error(
        "fold {fold} of {folds} has no {part} window: its {part} part is {found} long in the longest run, and a window with its label takes {needed} after {embargo} that are left out at the boundary\n  it takes about {wanted} steps of one series without a gap in all ({have} there are): give more data, use fewer folds, a larger validation share, a smaller `embargo`, or shorter windows"
    )]
    FoldEmpty {
        /// The fold, from 1.
        fold: usize,
        /// Number of folds.
        folds: usize,
        /// Part of the fold.
        part: &'static str,
        /// Steps of the longest run within the part, before the embargo.
        found: usize,
        /// Steps of a window and of its label's horizon.
        needed: usize,
        /// Steps left out after the boundary.
        embargo: usize,
        /// Steps of one series that would be enough.
        wanted: usize,
        /// Steps of the longest series.
        have: usize,
    },
}

/// Cuts the series of `set` into windows and divides them.
///
/// A window lies in one segment of one series; with its label's horizon it lies wholly on one side
/// of a boundary. After a boundary, `gap` steps of each series are left out, so that no held-out
/// window begins in what a training window has just seen.
///
/// # Errors
///
/// When a rule is out of range, when no window fits, or when training, validation or test would be
/// empty although its share is not zero.
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
        SplitRule::Time { .. } => (Vec::new(), EqualSeries::default()),
        SplitRule::Series { validation, test, seed } => parts_drawn(set, validation, test, seed),
        SplitRule::Given { validation, seed } => parts_given(set, validation, seed)?,
    };
    let mut parts = [Vec::new(), Vec::new(), Vec::new()];
    let mut left_out = 0;
    for window in &all {
        let series = window.series as usize;
        let part = match (rule, boundaries) {
            (SplitRule::Time { gap, .. }, Some(boundaries)) => {
                let horizon = labels.horizon();
                let gap = gap.unwrap_or(length + horizon);
                part_by_time(&set.series()[series], window, boundaries, gap, horizon)
            }
            _ => Some(parts_of_series[series]),
        };
        match part {
            Some(part) => parts[part].push(*window),
            None => left_out += 1,
        }
    }
    let (validation_share, test_share) = shares(rule);
    let wanted = [("training", 1.0), ("validation", validation_share), ("test", test_share)];
    for (windows, (part, share)) in parts.iter().zip(wanted) {
        if windows.is_empty() && share > 0.0 {
            let hint = way_out(rule);
            return Err(SplitError::Empty { part, windows: all.len(), left_out, hint });
        }
    }
    Ok(Split { equal, ..Split::of(set, parts, labels, boundaries, left_out) })
}

impl Split {
    /// Windows of training, validation and test, which the caller has kept apart.
    pub(crate) fn of(
        set: &Arc<SeriesSet>,
        parts: [Vec<Window>; 3],
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

/// Every window of every segment, labelled.
///
/// # Errors
///
/// When the rule is out of range, labels lack their channel, or no window fits.
pub(crate) fn all_windows(
    set: &SeriesSet,
    windows: &WindowRule,
    labels: &Labels,
) -> Result<Vec<Window>, SplitError> {
    let &WindowRule { length, stride, .. } = windows;
    let range = 1..=u32::MAX as usize;
    if !range.contains(&length) || !range.contains(&stride) {
        return Err(SplitError::Rule { length, stride });
    }
    let close = set.role(crate::Role::Close).is_some();
    match labels {
        Labels::Forward { .. } if !close => return Err(SplitError::NoClose),
        Labels::Return { .. } if !close && set.role(crate::Role::Return).is_none() => {
            return Err(SplitError::NoReturn);
        }
        _ => {}
    }
    if windows.whole {
        refuse_pieces(set, length + labels.horizon())?;
    }
    let all = cut(set, windows, labels);
    if all.is_empty() { Err(too_long(set, length + labels.horizon())) } else { Ok(all) }
}

/// Every window of a set that had no part in any training: new data for a finished model. They have no
/// labels, and there may be none.
///
/// # Errors
///
/// When the rule is out of range, or asks for whole series and one is in pieces.
pub fn unseen(set: &Arc<SeriesSet>, windows: &WindowRule) -> Result<HeldOutWindows, SplitError> {
    let &WindowRule { length, stride, .. } = windows;
    let range = 1..=u32::MAX as usize;
    if !range.contains(&length) || !range.contains(&stride) {
        return Err(SplitError::Rule { length, stride });
    }
    if windows.whole {
        refuse_pieces(set, length)?;
    }
    let all = cut(set, windows, &Labels::None);
    Ok(HeldOutWindows::new(Windows::new(Arc::clone(set), all, set.classes().into())))
}

fn way_out(rule: &SplitRule) -> &'static str {
    match rule {
        SplitRule::Time { .. } => {
            "give it a larger share in [split.time], set a smaller `gap` there, or make windows shorter; for samples without a clock, split them by [split.series], or by [split.given] with `data.test`"
        }
        SplitRule::Series { .. } => {
            "give it a larger share in [split.series], or more series; each class keeps at least one series for training, and equal series stay in one part"
        }
        SplitRule::Given { .. } => {
            "give it a larger share in [split.given], or more series; each class keeps at least one series for training, and equal series stay in one part"
        }
    }
}

/// One window of a series is the whole of it, or nothing honest can be said of its label.
fn refuse_pieces(set: &SeriesSet, needed: usize) -> Result<(), SplitError> {
    let broken = |series: &&Series| {
        series.segments.len() > 1 && series.segments[0].len() < needed.min(series.len())
    };
    let cut = || set.series().iter().filter(broken);
    match cut().next() {
        Some(first) => Err(SplitError::Pieces {
            count: cut().count(),
            series: set.series().len(),
            example: first.name.clone(),
            pieces: first.segments.len(),
        }),
        None => Ok(()),
    }
}

fn shares(rule: &SplitRule) -> (f64, f64) {
    match *rule {
        SplitRule::Time { validation, test, .. } | SplitRule::Series { validation, test, .. } => {
            (validation, test)
        }
        SplitRule::Given { validation, .. } => (validation, 1.0),
    }
}

fn check_shares(rule: &SplitRule) -> Result<(), SplitError> {
    let (validation, test) = match *rule {
        SplitRule::Time { validation, test, .. } | SplitRule::Series { validation, test, .. } => {
            (validation, test)
        }
        SplitRule::Given { validation, .. } => (validation, 0.0),
    };
    let range = 0.0..1.0;
    match () {
        () if !range.contains(&validation) => {
            Err(SplitError::Share { part: "validation", found: validation })
        }
        () if !range.contains(&test) => Err(SplitError::Share { part: "test", found: test }),
        () if validation + test >= 1.0 => {
            Err(SplitError::Share { part: "validation + test", found: validation + test })
        }
        () => Ok(()),
    }
}

/// Every window of every segment, labelled.
fn cut(set: &SeriesSet, rule: &WindowRule, labels: &Labels) -> Vec<Window> {
    let horizon = labels.horizon();
    let mut windows = Vec::new();
    for (index, series) in set.series().iter().enumerate() {
        let mut push = |start: usize, length: usize| {
            windows.push(Window {
                series: index as u32,
                start: start as u32,
                length: length as u32,
                label: labels.of(set, series, start, length),
            });
        };
        if rule.whole {
            if let Some(first) = series.segments.first() {
                let length = first.len().saturating_sub(horizon).min(rule.length);
                if length > 0 {
                    push(first.start, length);
                }
            }
            continue;
        }
        for segment in &series.segments {
            let last = segment.end.checked_sub(rule.length + horizon);
            for start in
                last.map(|last| segment.start..last + 1).into_iter().flatten().step_by(rule.stride)
            {
                push(start, rule.length);
            }
        }
    }
    windows
}

fn too_long(set: &SeriesSet, needed: usize) -> SplitError {
    let longest = set
        .series()
        .iter()
        .flat_map(|series| series.segments.iter().map(move |segment| (segment.len(), &series.name)))
        .max_by_key(|(length, _)| *length);
    let (longest, series) = longest.map_or((0, String::new()), |(n, name)| (n, name.clone()));
    SplitError::TooLong { needed, longest, series }
}

/// The first moment of validation and the first of the test, so that each part holds its share of
/// all steps.
fn boundaries(set: &SeriesSet, validation: f64, test: f64) -> [i64; 2] {
    let mut times: Vec<i64> =
        set.series().iter().flat_map(|series| &series.time).copied().collect();
    times.sort_unstable();
    let at = |share: f64| {
        let index = (share * times.len() as f64).round() as usize;
        times.get(index).copied().unwrap_or(i64::MAX)
    };
    [at(1.0 - validation - test), at(1.0 - test)]
}

/// 0 training, 1 validation, 2 test, none when the window touches a boundary or a gap.
fn part_by_time(
    series: &Series,
    window: &Window,
    boundaries: [i64; 2],
    gap: usize,
    horizon: usize,
) -> Option<usize> {
    let steps = window.steps();
    let [validation, test] =
        boundaries.map(|moment| series.time.partition_point(|time| *time < moment));
    // The gap is counted in steps of this series after each boundary that lies within it.
    let after = |boundary: usize| if boundary == 0 { 0 } else { boundary + gap };
    let end = steps.end + horizon;
    if end <= validation {
        Some(0)
    } else if steps.start >= after(validation) && end <= test {
        Some(1)
    } else if steps.start >= after(test).max(after(validation)) {
        Some(2)
    } else {
        None
    }
}

/// The part of each series: test files to the test, a share of each class to validation. A training series stays one,
/// whatever series of a test file it equals.
fn parts_given(
    set: &SeriesSet,
    validation: f64,
    seed: u64,
) -> Result<(Vec<usize>, EqualSeries), SplitError> {
    let of = |origin: Origin| {
        let series = set.series().iter().enumerate();
        series.filter(move |(_, series)| series.origin == origin).map(|(index, _)| index)
    };
    let mut parts = vec![0; set.series().len()];
    of(Origin::Test).for_each(|index| parts[index] = 2);
    let train: Vec<usize> = of(Origin::Train).collect();
    for (part, missing) in
        [("training", train.is_empty()), ("test", of(Origin::Test).next().is_none())]
    {
        if missing {
            return Err(SplitError::NotGiven { part });
        }
    }
    let firsts = firsts(set);
    let units = units(&firsts, &train);
    // Where nothing is drawn, nothing is drawn together.
    let equal = match validation > 0.0 {
        true => EqualSeries::drawn(set, &units),
        false => EqualSeries::default(),
    };
    let equal = equal.with_tested(set, &firsts, &train);
    draw(set, units, &[(1, validation)], Stream::new(seed, "validation split"), &mut parts);
    Ok((parts, equal))
}

/// The part of each series where whole series are drawn.
fn parts_drawn(
    set: &SeriesSet,
    validation: f64,
    test: f64,
    seed: u64,
) -> (Vec<usize>, EqualSeries) {
    let mut parts = vec![0; set.series().len()];
    let all: Vec<usize> = (0..parts.len()).collect();
    let units = units(&firsts(set), &all);
    let equal = EqualSeries::drawn(set, &units);
    draw(set, units, &[(2, test), (1, validation)], Stream::new(seed, "series split"), &mut parts);
    (parts, equal)
}

/// Draws a share of the series for each of some parts, evenly from each class. The members of a unit go together, by
/// the class of the first. One series of each class at least stays where it was.
fn draw(
    set: &SeriesSet,
    units: Vec<Vec<usize>>,
    shares: &[(usize, f64)],
    stream: Stream,
    parts: &mut [usize],
) {
    let class = |index: usize| match set.series()[index].labels {
        crate::StepLabels::Whole(label) => Some(label),
        crate::StepLabels::None | crate::StepLabels::PerStep(_) => None,
    };
    let mut by_class = std::collections::BTreeMap::<Option<u32>, Vec<Vec<usize>>>::new();
    let mut staying = std::collections::BTreeMap::<Option<u32>, usize>::new();
    for unit in units {
        unit.iter().for_each(|index| *staying.entry(class(*index)).or_default() += 1);
        by_class.entry(class(unit[0])).or_default().push(unit);
    }
    let mut draws = stream.draws();
    // The rounding of one class is made good by the next, so that the share holds over all.
    let mut owed = vec![0.0f64; shares.len()];
    for mut free in by_class.into_values() {
        draws.shuffle(&mut free);
        let all = free.iter().map(Vec::len).sum::<usize>() as f64;
        for (owed, (part, share)) in owed.iter_mut().zip(shares) {
            *owed += share * all;
            let wanted = owed.round().max(0.0) as usize;
            let mut taken = 0;
            free.retain(|unit| {
                // Equal series may be of several classes.
                let members =
                    |of: Option<u32>| unit.iter().filter(|one| class(**one) == of).count();
                let leaves_some = |index: &usize| {
                    let of = class(*index);
                    staying.get(&of).is_some_and(|all| *all > members(of))
                };
                // A unit is left where more would be too many by it than are missing without it.
                let fits = 2 * taken + unit.len() <= 2 * wanted;
                let take = fits && unit.iter().all(leaves_some);
                if take {
                    for index in unit {
                        parts[*index] = *part;
                        staying.entry(class(*index)).and_modify(|all| *all -= 1);
                    }
                    taken += unit.len();
                }
                !take
            });
            *owed -= taken as f64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Channel, Role, StepLabels};

    fn set(lengths: &[usize]) -> Arc<SeriesSet> {
        let series = lengths.iter().enumerate().map(|(index, steps)| {
            Series::regular(format!("s{index}"), 0, 10, (0..*steps).map(|v| v as f64).collect(), 1)
        });
        let channels = vec![Channel::new("close", Role::Close)];
        Arc::new(SeriesSet::new(channels, vec![], series.collect()).unwrap())
    }

    fn rule(length: usize, stride: usize) -> WindowRule {
        WindowRule { length, stride, whole: false }
    }

    #[test]
    fn no_step_is_shared_and_the_gap_is_kept() {
        let set = set(&[500, 300]);
        let labels = Labels::Forward { horizon: 3, threshold: 1.0 };
        let parts = split(&set, &rule(10, 1), &SplitRule::time(0.2, 0.2), &labels).unwrap();
        let [validation, test] = parts.boundaries.unwrap();
        let end = |w: &Window| set.series()[w.series as usize].time[w.steps().end - 1 + 3];
        let start = |w: &Window| set.series()[w.series as usize].time[w.steps().start];
        assert!(parts.train.windows().iter().all(|w| end(w) < validation));
        assert!(
            parts
                .validation
                .windows()
                .iter()
                .all(|w| start(w) >= validation + 130 && end(w) < test)
        );
        assert!(parts.test.windows().iter().all(|w| start(w) >= test + 130));
        assert!(!parts.test.is_empty() && !parts.validation.is_empty() && parts.left_out > 0);
    }

    #[test]
    fn windows_stay_within_segments() {
        let mut series = Series::regular("a", 0, 1, vec![0.0; 100], 1);
        series.segments = vec![0..30, 40..100];
        let channels = vec![Channel::new("x", Role::Other)];
        let set = Arc::new(SeriesSet::new(channels, vec![], vec![series]).unwrap());
        let parts = split(&set, &rule(8, 3), &SplitRule::time(0.0, 0.0), &Labels::None).unwrap();
        assert!(parts.train.windows().iter().all(|w| w.steps().end <= 30 || w.steps().start >= 40));
        assert_eq!(parts.train.len(), 8 + 18);
    }

    #[test]
    fn a_given_split_draws_validation_evenly_from_each_class() {
        let mut series: Vec<_> = (0..40)
            .map(|index| Series {
                labels: StepLabels::Whole(index % 2),
                origin: if index < 30 { Origin::Train } else { Origin::Test },
                ..Series::regular(format!("s{index}"), 0, 1, vec![0.0; 5 + index as usize], 1)
            })
            .collect();
        let channels = vec![Channel::new("x", Role::Other)];
        let classes = vec!["a".to_owned(), "b".to_owned()];
        let given = SplitRule::Given { validation: 0.2, seed: 1 };
        let whole = WindowRule { length: 20, stride: 1, whole: true };
        let set =
            Arc::new(SeriesSet::new(channels.clone(), classes.clone(), series.clone()).unwrap());
        let parts = split(&set, &whole, &given, &Labels::Last).unwrap();
        assert_eq!([parts.train.len(), parts.validation.len(), parts.test.len()], [24, 6, 10]);
        let ones = parts.validation.windows().iter().filter(|w| w.label == Some(1)).count();
        assert_eq!(ones, 3);
        assert_eq!((parts.train.windows()[0].length, parts.train.longest()), (5, 20));
        series.truncate(30);
        let set = Arc::new(SeriesSet::new(channels, classes, series).unwrap());
        assert_eq!(
            split(&set, &whole, &given, &Labels::Last).unwrap_err(),
            SplitError::NotGiven { part: "test" }
        );
    }

    #[test]
    fn a_split_by_series_draws_each_class_evenly_and_shares_no_series() {
        let series = (0..40).map(|index| Series {
            labels: StepLabels::Whole(u32::from(index >= 30)),
            ..Series::regular(format!("s{index}"), 0, 1, vec![f64::from(index); 60], 1)
        });
        let channels = vec![Channel::new("x", Role::Other)];
        let classes = vec!["a".to_owned(), "b".to_owned()];
        let set = Arc::new(SeriesSet::new(channels, classes, series.collect()).unwrap());
        let by_series = SplitRule::Series { validation: 0.1, test: 0.2, seed: 1 };
        let parts = split(&set, &rule(20, 5), &by_series, &Labels::Last).unwrap();
        let of = |windows: &[Window]| {
            windows.iter().map(|w| w.series).collect::<std::collections::BTreeSet<_>>()
        };
        let [train, validation, test] =
            [of(parts.train.windows()), of(parts.validation.windows()), of(parts.test.windows())];
        assert_eq!([train.len(), validation.len(), test.len()], [28, 4, 8]);
        assert!(train.is_disjoint(&test) && train.is_disjoint(&validation));
        assert!(validation.is_disjoint(&test));
        assert_eq!(test.iter().filter(|series| **series >= 30).count(), 2);
        assert_eq!((parts.left_out, parts.boundaries), (0, None));
    }

    /// Series of one value each, with the class and the file that each is of.
    fn of_values(series: &[(f64, Option<u32>, Origin)]) -> Arc<SeriesSet> {
        let series = series.iter().enumerate().map(|(index, (value, class, origin))| Series {
            labels: class.map_or(StepLabels::None, StepLabels::Whole),
            origin: *origin,
            ..Series::regular(format!("s{index}"), 0, 1, vec![*value; 6], 1)
        });
        let classes = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        let channels = vec![Channel::new("x", Role::Other)];
        Arc::new(SeriesSet::new(channels, classes, series.collect()).unwrap())
    }

    /// The draw as it was before equal series were kept together.
    fn drawn_one_by_one(
        set: &SeriesSet,
        of: &[usize],
        shares: &[(usize, f64)],
        stream: Stream,
        parts: &mut [usize],
    ) {
        let mut by_class = std::collections::BTreeMap::<Option<u32>, Vec<usize>>::new();
        for &index in of {
            let class = match set.series()[index].labels {
                StepLabels::Whole(label) => Some(label),
                StepLabels::None | StepLabels::PerStep(_) => None,
            };
            by_class.entry(class).or_default().push(index);
        }
        let mut draws = stream.draws();
        let mut owed = vec![0.0f64; shares.len()];
        for mut members in by_class.into_values() {
            draws.shuffle(&mut members);
            let (all, mut free) = (members.len() as f64, &members[..]);
            for (owed, (part, share)) in owed.iter_mut().zip(shares) {
                *owed += share * all;
                let take = (owed.round().max(0.0) as usize).min(free.len().saturating_sub(1));
                *owed -= take as f64;
                free[..take].iter().for_each(|index| parts[*index] = *part);
                free = &free[take..];
            }
        }
    }

    #[test]
    fn series_that_all_differ_are_drawn_as_ever() {
        let mut draws = Stream::new(5, "sets").draws();
        for seed in 0..200 {
            let series: Vec<_> = (0..=draws.below(70))
                .map(|index| {
                    let class = u32::try_from(draws.below(5)).unwrap();
                    let test = index > 0 && draws.chance(0.3);
                    let origin = if test { Origin::Test } else { Origin::Train };
                    (index as f64, Some(class).filter(|class| *class < 4), origin)
                })
                .collect();
            let set = of_values(&series);
            let [validation, test] = [0.45, 0.5].map(|most| most * draws.uniform_f64());
            let all: Vec<usize> = (0..series.len()).collect();
            let mut expected = vec![0; series.len()];
            let shares = [(2, test), (1, validation)];
            drawn_one_by_one(&set, &all, &shares, Stream::new(seed, "series split"), &mut expected);
            let found = parts_drawn(&set, validation, test, seed);
            assert_eq!(found, (expected, EqualSeries::default()), "{seed}");

            let tested = |index: &usize| series[*index].2 == Origin::Test;
            let mut expected: Vec<usize> =
                all.iter().map(|index| if tested(index) { 2 } else { 0 }).collect();
            let Ok(found) = parts_given(&set, validation, seed) else {
                assert!(!all.iter().any(tested), "there is a training and a test series");
                continue;
            };
            let train: Vec<usize> = all.into_iter().filter(|index| !tested(index)).collect();
            let stream = Stream::new(seed, "validation split");
            drawn_one_by_one(&set, &train, &[(1, validation)], stream, &mut expected);
            assert_eq!(found, (expected, EqualSeries::default()), "{seed}");
        }
    }

    #[test]
    fn equal_series_stay_in_one_part_for_every_seed() {
        // 60 series, of which 40 equal one of another class.
        let value = |index: u32| f64::from(if index < 40 { index / 2 } else { index });
        let series: Vec<_> =
            (0..60).map(|index| (value(index), Some(index % 2), Origin::Unassigned)).collect();
        let set = of_values(&series);
        for seed in 0..50 {
            let by_series = SplitRule::Series { validation: 0.1, test: 0.2, seed };
            let parts = split(&set, &rule(6, 1), &by_series, &Labels::Last).unwrap();
            let values = |windows: &[Window]| -> std::collections::BTreeSet<u64> {
                windows.iter().map(|window| series[window.series as usize].0.to_bits()).collect()
            };
            let (train, validation, test) = (
                values(parts.train.windows()),
                values(parts.validation.windows()),
                values(parts.test.windows()),
            );
            assert!(train.is_disjoint(&test) && train.is_disjoint(&validation), "{seed}");
            assert!(validation.is_disjoint(&test), "{seed}");
            // Members are counted, so that the shares are those of series.
            assert!(parts.test.len().abs_diff(12) <= 1, "{seed}: {}", parts.test.len());
            assert!(parts.validation.len().abs_diff(6) <= 1, "{seed}");
            let warnings = parts.equal.warnings();
            assert!(warnings[0].starts_with("40 series equal another one, such as `s0` and `s1`"));
            assert_eq!((warnings.len(), parts.equal.tested), (1, 0));
        }
    }

    #[test]
    fn many_equal_series_do_not_fill_a_small_part() {
        // 50 of 60 are equal: they can only be trained on.
        let series: Vec<_> =
            (0..60u32).map(|index| (f64::from(index.min(10)), None, Origin::Unassigned)).collect();
        for seed in 0..20 {
            let (parts, equal) = parts_drawn(&of_values(&series), 0.05, 0.1, seed);
            let count = |part| parts.iter().filter(|found| **found == part).count();
            assert_eq!(([count(0), count(1), count(2)], equal.together), ([51, 3, 6], 50));
        }
    }

    #[test]
    fn training_series_that_equal_given_test_series_are_counted_and_change_no_draw() {
        let series = |same: bool| -> Vec<_> {
            let train = (0..40u32).map(|index| (f64::from(index), Some(index % 2), Origin::Train));
            let shift = if same { 37.0 } else { 100.0 };
            let test = (0..8u32)
                .map(move |index| (f64::from(index) + shift, Some(index % 2), Origin::Test));
            train.chain(test).collect()
        };
        let (parts, equal) = parts_given(&of_values(&series(true)), 0.2, 3).unwrap();
        assert_eq!(parts_given(&of_values(&series(false)), 0.2, 3).unwrap().0, parts);
        assert_eq!((equal.together, equal.tested), (0, 3));
        let [warning] = &equal.warnings()[..] else { panic!("{equal:?}") };
        let expected =
            "3 series of the training files equal one of the test files, such as `s37` and `s40`";
        assert!(warning.starts_with(expected), "{warning}");
        // Two equal training series are validated on together, if one is drawn at all.
        let twice: Vec<_> = [0.0, 1.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
            .into_iter()
            .map(|value| (value, None, if value < 6.0 { Origin::Train } else { Origin::Test }))
            .collect();
        for (validation, together) in [(0.4, 2), (0.0, 0)] {
            for seed in 0..20 {
                let (parts, equal) = parts_given(&of_values(&twice), validation, seed).unwrap();
                assert_eq!((parts[1], equal.together), (parts[2], together), "{seed}");
            }
        }
    }

    #[test]
    fn whole_windows_need_whole_series() {
        let mut series = Series::regular("a", 0, 1, vec![0.0; 100], 1);
        series.segments = vec![0..30, 40..100];
        let channels = vec![Channel::new("x", Role::Other)];
        let set = Arc::new(SeriesSet::new(channels, vec![], vec![series]).unwrap());
        let whole = WindowRule { length: 100, stride: 1, whole: true };
        let error = split(&set, &whole, &SplitRule::time(0.0, 0.0), &Labels::None).unwrap_err();
        assert!(matches!(&error, SplitError::Pieces { count: 1, pieces: 2, .. }), "{error}");
        assert!(error.to_string().contains("`a` into 2"), "{error}");
    }

    #[test]
    fn the_automatic_rule_never_cuts_across_samples_or_a_given_test_set() {
        let name = |given, clock, series| SplitRule::automatic(given, clock, series).0.name();
        assert_eq!(name(true, true, 1), "given");
        assert_eq!(name(false, false, 9), "series");
        assert_eq!([name(false, false, 1), name(false, true, 9)], ["time", "time"]);
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
}
