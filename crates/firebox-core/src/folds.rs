//! Walk-forward folds: training on everything before a moment, testing on what follows it.
//!
//! The same windows, labels and types as a single split has; nothing here trains or measures.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::split::{Moments, all_windows, places};
use crate::{
    EqualSeries, Labels, Series, SeriesSet, Split, SplitError, Window, WindowList, WindowRule,
};

/// How time is divided into folds.
///
/// The steps of all series together are cut by moments that hold for all series into `folds + 1`
/// blocks of equally many steps. Fold `k` trains on the first `k` blocks, of which the last
/// `validation` share is set apart to choose by, and is tested on block `k + 1`: the training part
/// expands, and no fold learns from what it is tested on or from anything later.
///
/// Terms are those of López de Prado, "Advances in Financial Machine Learning" (2018), chapter 7.
/// *Purging*: a window that, with the steps its label looks at, reaches over a boundary belongs to
/// neither side. *Embargo*: after each boundary some steps are left out, because values that follow
/// each other closely are alike. There the embargo keeps training data from following test data too
/// closely; here training data only ever comes before, so it is kept at that end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WalkForward {
    /// Folds, each with a test part of its own; 1 to 1000. R3: 5.
    pub folds: usize,
    /// Share of each training part that is validated on, `0 < share < 1`.
    pub validation: f64,
    /// Steps of each series that are left out after each boundary; by default one window and the
    /// label's horizon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embargo: Option<usize>,
}

impl Default for WalkForward {
    fn default() -> Self {
        Self { folds: 5, validation: 0.15, embargo: None }
    }
}

/// One fold.
#[derive(Clone, Debug)]
pub struct Fold {
    /// Its windows. `left_out` counts those within the fold's span that were purged or embargoed.
    pub split: Split,
    /// Windows that reach over a boundary of the fold, with the steps that their label looks at.
    pub purged: usize,
    /// Windows that begin within the embargo after a boundary.
    pub embargoed: usize,
    /// First moment of validation, first of the test, and the first after the test, microseconds
    /// since 1970-01-01 UTC. The last fold has no end.
    pub boundaries: [i64; 3],
}

/// The folds of a set, in the order of time.
///
/// # Errors
///
/// When a rule is out of range, no window fits, or a part of a fold has no window; the message says
/// how much data it takes.
///
/// # Example
///
/// ```
/// use std::sync::Arc;
/// use firebox_core::{Channel, Labels, Role, Series, SeriesSet, WalkForward, WindowRule, walk_forward};
///
/// let series = Series::regular("demo", 0, 60_000_000, vec![1.0; 600], 1);
/// let set = Arc::new(SeriesSet::new(vec![Channel::new("close", Role::Close)], vec![], vec![series])?);
/// let windows = WindowRule { length: 5, ..WindowRule::default() };
/// let labels = Labels::Return { horizon: 2, threshold: 0.006 };
/// let folds = walk_forward(&set, &windows, &WalkForward::default(), &labels)?;
/// assert_eq!(folds.len(), 5);
/// assert!(folds.windows(2).all(|pair| pair[0].split.train.len() < pair[1].split.train.len()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn walk_forward(
    set: &Arc<SeriesSet>,
    windows: &WindowRule,
    rule: &WalkForward,
    labels: &Labels,
) -> Result<Vec<Fold>, SplitError> {
    let &WalkForward { folds, validation, .. } = rule;
    let share = validation > 0.0 && validation < 1.0;
    if !(share && (1..=1000).contains(&folds)) {
        return Err(SplitError::Folds { folds, validation });
    }
    let all = all_windows(set, windows, labels)?;
    let horizon = labels.horizon();
    let embargo = rule.embargo.unwrap_or(windows.length.saturating_add(horizon));
    let moments = Moments::of(set);
    let moment = |share: f64| moments.at(share);
    let blocks = (folds + 1) as f64;
    let equal = EqualSeries::at_other_times(set);
    (1..=folds)
        .map(|fold| {
            let train = fold as f64 / blocks;
            let end = if fold == folds { i64::MAX } else { moment((fold + 1) as f64 / blocks) };
            let boundaries = [moment(train * (1.0 - validation)), moment(train), end];
            let mut fold_of = one_fold(set, &all, boundaries, embargo, labels);
            fold_of.split.equal = equal.clone();
            refuse_empty(&fold_of, set, windows, rule, horizon, fold)?;
            Ok(fold_of)
        })
        .collect()
}

/// Where a window stands in a fold.
enum Place {
    Part(usize),
    Purged,
    Embargoed,
    /// After the test part.
    Later,
}

fn one_fold(
    set: &Arc<SeriesSet>,
    all: &WindowList,
    boundaries: [i64; 3],
    embargo: usize,
    labels: &Labels,
) -> Fold {
    let steps_of: Vec<[usize; 3]> = set.series().iter().map(|s| places(s, boundaries)).collect();
    let mut parts = [(); 3].map(|()| WindowList::default());
    let (mut purged, mut embargoed) = (0, 0);
    for window in all {
        match place(&window, steps_of[window.series as usize], embargo, labels.horizon()) {
            Place::Part(part) => parts[part].push(window),
            Place::Purged => purged += 1,
            Place::Embargoed => embargoed += 1,
            Place::Later => {}
        }
    }
    let two = Some([boundaries[0], boundaries[1]]);
    let split = Split::of(set, parts, labels, two, purged + embargoed);
    Fold { split, purged, embargoed, boundaries }
}

fn place(window: &Window, boundaries: [usize; 3], embargo: usize, horizon: usize) -> Place {
    let (start, end) = (window.steps().start, window.steps().end.saturating_add(horizon));
    if start >= boundaries[2] {
        return Place::Later;
    }
    if boundaries.iter().any(|boundary| start < *boundary && *boundary < end) {
        return Place::Purged;
    }
    // A boundary before the series begins has nothing of it on its other side.
    let within = |boundary: &usize| {
        *boundary > 0 && (*boundary..boundary.saturating_add(embargo)).contains(&start)
    };
    if boundaries[..2].iter().any(within) {
        return Place::Embargoed;
    }
    Place::Part(boundaries[..2].iter().filter(|boundary| start >= **boundary).count())
}

fn refuse_empty(
    fold: &Fold,
    set: &SeriesSet,
    windows: &WindowRule,
    rule: &WalkForward,
    horizon: usize,
    number: usize,
) -> Result<(), SplitError> {
    let Split { train, validation, test, .. } = &fold.split;
    let empty = [("training", train.is_empty()), ("validation", validation.is_empty())];
    let empty = empty.into_iter().chain([("test", test.is_empty())]).zip(0..);
    let Some(((part, _), place)) = empty.into_iter().find(|((_, empty), _)| *empty) else {
        return Ok(());
    };
    let needed = windows.length.saturating_add(horizon);
    let embargo = if place == 0 { 0 } else { rule.embargo.unwrap_or(needed) };
    let runs = set.series().iter().flat_map(|series| {
        let bounds = places(series, fold.boundaries);
        let from = if place == 0 { 0 } else { bounds[place - 1] };
        let part = from..bounds[place];
        series.segments.iter().map(move |segment| {
            segment.end.min(part.end).saturating_sub(segment.start.max(part.start))
        })
    });
    // The shortest part of all is the first fold's validation or its test.
    let least = needed.saturating_add(embargo) as f64;
    let share = rule.validation.min(1.0 - rule.validation).min(1.0) / (rule.folds + 1) as f64;
    Err(SplitError::FoldEmpty {
        fold: number,
        folds: rule.folds,
        part,
        found: runs.max().unwrap_or(0),
        needed,
        embargo,
        wanted: (least / share).ceil() as usize,
        have: set.series().iter().map(Series::len).max().unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{Channel, Role, Stream};

    /// Series of random lengths that begin at random moments, cut at random gaps.
    fn set(seed: u64) -> Arc<SeriesSet> {
        let mut draws = Stream::new(seed, "folds").draws();
        let series = (0..1 + draws.below(4)).map(|index| {
            let steps = 300 + draws.below(900) as usize;
            let start = draws.below(5_000) as i64;
            let values = (0..steps).map(|_| draws.normal() * 0.003).collect();
            let mut series = Series::regular(format!("s{index}"), start, 10, values, 1);
            let cut = 1 + draws.below(steps as u64 - 2) as usize;
            series.segments = vec![0..cut, cut..steps];
            series
        });
        let channels = vec![Channel::new("return", Role::Return)];
        Arc::new(SeriesSet::new(channels, vec![], series.collect()).unwrap())
    }

    fn footprint(window: Window, horizon: usize) -> impl Iterator<Item = (u32, usize)> {
        (window.steps().start..window.steps().end + horizon).map(move |t| (window.series, t))
    }

    #[test]
    fn no_fold_learns_from_what_it_is_tested_on_or_from_later() {
        let mut made = 0;
        for seed in 0..60 {
            let set = set(seed);
            let mut draws = Stream::new(seed, "rules").draws();
            let horizon = draws.below(9) as usize;
            let length = 2 + draws.below(12) as usize;
            let windows = WindowRule { length, stride: 1 + draws.below(3) as usize, whole: false };
            let embargo = (seed % 2 == 0).then(|| draws.below(20) as usize);
            let rule = WalkForward { folds: 1 + draws.below(5) as usize, validation: 0.2, embargo };
            let labels = Labels::Return { horizon, threshold: 0.001 };
            let Ok(folds) = walk_forward(&set, &windows, &rule, &labels) else { continue };
            made += 1;
            let steps = embargo.unwrap_or(length + horizon);
            let mut tested = BTreeSet::new();
            for fold in &folds {
                let parts =
                    [&*fold.split.train, &*fold.split.validation, &*fold.split.test].map(|part| {
                        let all = part.windows().iter().flat_map(|w| footprint(w, horizon));
                        all.collect::<BTreeSet<_>>()
                    });
                for (before, after) in [(0, 1), (1, 2), (0, 2)] {
                    assert!(parts[before].is_disjoint(&parts[after]));
                    let moment =
                        |(series, step): &(u32, usize)| set.series()[*series as usize].time[*step];
                    let last = parts[before].iter().map(moment).max().unwrap();
                    let first = parts[after].iter().map(moment).min().unwrap();
                    assert!(last < first, "{seed}: {last} {first}");
                    for (series, step) in &parts[after] {
                        let own = parts[before].iter().rfind(|(other, _)| other == series);
                        assert!(own.is_none_or(|(_, last)| *step > last + steps), "{seed}");
                    }
                }
                for window in fold.split.test.windows() {
                    assert!(tested.insert((window.series, window.start)), "tested twice");
                }
            }
            assert!(folds.windows(2).all(|pair| {
                let of = |fold: &Fold| fold.split.train.len();
                of(&pair[1]) >= of(&pair[0]) && pair[0].boundaries < pair[1].boundaries
            }));
        }
        assert!(made > 30, "{made}");
    }

    #[test]
    fn every_window_of_the_span_is_accounted_for() {
        let set = set(3);
        let windows = WindowRule { length: 6, stride: 1, whole: false };
        let labels = Labels::Return { horizon: 3, threshold: 0.001 };
        let all = all_windows(&set, &windows, &labels).unwrap();
        let folds = walk_forward(&set, &windows, &WalkForward::default(), &labels).unwrap();
        let last = &folds[4];
        let Split { train, validation, test, left_out, .. } = &last.split;
        assert_eq!(train.len() + validation.len() + test.len() + left_out, all.len());
        assert_eq!(last.purged + last.embargoed, *left_out);
        assert!(last.purged > 0 && last.embargoed > 0);
    }

    #[test]
    fn series_that_equal_one_of_other_times_are_told_of() {
        let channels = vec![Channel::new("return", Role::Return)];
        let of = |shift: i64| {
            let mut draws = Stream::new(1, "values").draws();
            let values: Vec<f64> = (0..1500).map(|_| draws.normal() * 0.003).collect();
            let series = [("a", 0), ("b", shift)]
                .map(|(name, start)| Series::regular(name, start, 10, values.clone(), 1));
            let set = SeriesSet::new(channels.clone(), vec![], series.to_vec()).unwrap();
            let windows = WindowRule { length: 6, stride: 1, whole: false };
            let labels = Labels::Return { horizon: 3, threshold: 0.001 };
            let folds = walk_forward(&Arc::new(set), &windows, &WalkForward::default(), &labels);
            folds.unwrap()[0].split.equal.warnings()
        };
        assert!(of(0).is_empty());
        assert!(of(3000)[0].starts_with("1 series equals another one, value for value, at other"));
    }

    #[test]
    fn what_cannot_be_divided_says_how_much_it_takes() {
        let series = Series::regular("a", 0, 10, vec![0.0; 100], 1);
        let channels = vec![Channel::new("return", Role::Return)];
        let set = Arc::new(SeriesSet::new(channels, vec![], vec![series]).unwrap());
        let windows = WindowRule { length: 10, stride: 1, whole: false };
        let labels = Labels::Return { horizon: 8, threshold: 0.006 };
        let message = |rule: WalkForward, labels: &Labels| {
            walk_forward(&set, &windows, &rule, labels).unwrap_err().to_string()
        };
        let short = message(WalkForward::default(), &labels);
        assert!(short.contains("fold 1 of 5 has no training window"), "{short}");
        assert!(short.contains("(100 there are)"), "{short}");
        let wanted = short.split("about ").nth(1).and_then(|rest| rest.split(' ').next());
        let wanted: usize = wanted.unwrap().parse().unwrap();
        let series = Series::regular("a", 0, 10, vec![0.0; 2 * wanted], 1);
        let channels = vec![Channel::new("return", Role::Return)];
        let enough = Arc::new(SeriesSet::new(channels, vec![], vec![series]).unwrap());
        walk_forward(&enough, &windows, &WalkForward::default(), &labels).unwrap();
        assert!(
            message(WalkForward { folds: 0, ..Default::default() }, &labels).contains("0 folds")
        );
        let nan = WalkForward { validation: f64::NAN, ..Default::default() };
        assert!(message(nan, &labels).contains("NaN"));
        let forward = Labels::Forward { horizon: 8, threshold: 1.0 };
        assert!(message(WalkForward::default(), &forward).contains("`close`"));
    }
}
