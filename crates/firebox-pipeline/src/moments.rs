//! Which series have times in common: what moves all of them at a moment is known of one by another.

use std::collections::BTreeMap;

use firebox_core::{Series, SeriesSet, Split, StepLabels, WindowList};

use crate::PipelineConfig;

/// A series that begins within this of the begin of 1970, in microseconds, counts from the begin of its recording.
const DAY: i64 = 24 * 3_600_000_000;

/// Share of a series from which on it has its times in common with others. A choice.
pub(crate) const IN_COMMON: f64 = 0.5;

/// From the first moment of something to its last one, in microseconds, with what it belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    from: i64,
    to: i64,
    unit: usize,
}

/// Whether the times of a series are moments of the calendar, and do not begin anew with each recording.
fn is_of_calendar(series: &Series) -> bool {
    series.time.first().is_some_and(|begin| !(0..DAY).contains(begin))
}

/// Of each series that has windows, and times of the calendar, from the first step of one to the last.
pub(crate) fn of_windows(
    set: &SeriesSet,
    windows: &WindowList,
    unit: impl Fn(u32) -> usize,
) -> Vec<Span> {
    let mut spans = BTreeMap::<u32, Span>::new();
    for window in windows {
        let series = &set.series()[window.series as usize];
        if !is_of_calendar(series) {
            continue;
        }
        let (time, steps) = (&series.time, window.steps());
        let [from, to] = [time[steps.start], time[steps.end - 1]];
        let own = Span { from, to, unit: unit(window.series) };
        spans
            .entry(window.series)
            .and_modify(|span| (span.from, span.to) = (span.from.min(from), span.to.max(to)))
            .or_insert(own);
    }
    spans.into_values().collect()
}

/// The share of the time of the spans of `counted` units in which another unit has one, too.
pub(crate) fn in_common(spans: &[Span], counted: impl Fn(usize) -> bool) -> f64 {
    let ends = spans
        .iter()
        .flat_map(|span| [(span.from, 1, span.unit), (span.to.saturating_add(1), -1, span.unit)]);
    let mut ends: Vec<(i64, i64, usize)> = ends.collect();
    ends.sort_unstable();
    let (mut open, mut counting, mut before) = (BTreeMap::<usize, i64>::new(), 0i64, 0i64);
    let [mut all, mut shared] = [0.0f64; 2];
    for (at, change, unit) in ends {
        let time = counting as f64 * at.saturating_sub(before) as f64;
        all += time;
        shared += if open.len() > 1 { time } else { 0.0 };
        before = at;
        counting += if counted(unit) { change } else { 0 };
        let own = open.entry(unit).or_default();
        *own += change;
        if *own == 0 {
            open.remove(&unit);
        }
    }
    if all > 0.0 { shared / all } else { 0.0 }
}

/// Whether units of series, such as groups, have most of their times in common with others.
pub(crate) fn are_in_common(set: &SeriesSet, clock: bool) -> bool {
    let units = set.units();
    let series = set.series().iter().zip(units).filter(|(series, _)| is_of_calendar(series));
    let whole = series.filter_map(|(series, unit)| {
        Some(Span { from: *series.time.first()?, to: *series.time.last()?, unit })
    });
    clock && in_common(&whole.collect::<Vec<_>>(), |_| true) >= IN_COMMON
}

/// The largest number of steps after a window that its label or targets look at.
pub(crate) fn horizon(config: &PipelineConfig) -> usize {
    let forecast = config.forecast.iter().flat_map(|table| table.horizons.iter().copied());
    forecast.chain([config.labels.horizon()]).max().unwrap_or(0)
}

/// What is said of a test part that lies at the times of the training part, or may, where what is told of a window comes
/// after it.
pub(crate) fn told_of_moments(
    config: &PipelineConfig,
    split: &Split,
    clock: bool,
) -> Option<String> {
    known_from_training(config, split, clock).or_else(|| without_moments(config, split, clock))
}

/// What is said of a test part whose series lie at the times of those that are trained on, where what is told of a window
/// comes after it: what moves all series at a moment was in the training.
fn known_from_training(config: &PipelineConfig, split: &Split, clock: bool) -> Option<String> {
    let (set, horizon) = (split.train.set(), horizon(config));
    if split.boundaries.is_some() || horizon == 0 || !clock {
        return None;
    }
    let mut spans = of_windows(set, split.train.windows(), |_| 0);
    let tested = of_windows(set, split.test.windows(), |_| 1);
    spans.extend(&tested);
    let share = in_common(&spans, |unit| unit == 1);
    (!tested.is_empty() && share >= IN_COMMON).then(|| {
        let way_out = match config.data.test.is_some() {
            true => "test on what comes after the training data",
            false => "divide the data by time (--set split.time.test=0.2)",
        };
        format!(
            "{:.0} % of the time of the test part is that of training series, and what is told of a window lies up to {horizon} steps ahead: what moves all series at \
             once is learnt in training and asked for in the test\n  \
             {way_out}, unless the times of different series have nothing to do with each other",
            100.0 * share
        )
    })
}

/// What is said of whole series that are drawn for each part because none has times, as where rows are numbered so that days
/// without trade are no gaps: whether a test part lies at the times of those that are trained on is not known then. Samples
/// with one label each are recordings by themselves, which are not divided by time.
fn without_moments(config: &PipelineConfig, split: &Split, clock: bool) -> Option<String> {
    let horizon = horizon(config);
    let is_written = config.split.is_some() || config.data.test.is_some();
    let set = split.train.set();
    let is_by_series = split.boundaries.is_none() && set.groups() == 0;
    let is_sample = |one: &Series| matches!(one.labels, StepLabels::Whole(_));
    let may_be_in_common = !clock && is_by_series && !set.series().iter().any(is_sample);
    (may_be_in_common && !is_written && horizon > 0).then(|| {
        format!(
            "the series have no times, so whole ones are drawn for each part, and what is told of a window lies up to {horizon} steps ahead: where their rows are of the \
             same days, what moves all series at once is learnt in training and asked for in the test\n  \
             divide them by the numbers of their rows if all begin on one day (--set split.time.test=0.2), or say that they have nothing to do with each other (--set split.series.test=0.2)"
        )
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use firebox_core::{Channel, Labels, Role, Series, SplitRule, WindowRule, split};

    use super::*;

    fn span(from: i64, to: i64, unit: usize) -> Span {
        Span { from, to, unit }
    }

    #[test]
    fn time_in_common_is_counted_for_those_that_are_asked_for() {
        let all = |spans: &[Span]| in_common(spans, |_| true);
        assert_eq!(all(&[]), 0.0);
        assert_eq!(all(&[span(0, 9, 0)]), 0.0);
        assert_eq!(all(&[span(0, 9, 0), span(0, 9, 0)]), 0.0);
        assert_eq!(all(&[span(0, 9, 0), span(0, 9, 1)]), 1.0);
        assert_eq!(all(&[span(0, 9, 0), span(10, 19, 1)]), 0.0);
        assert_eq!(all(&[span(0, 9, 0), span(5, 14, 1)]), 0.5);
        // Half of the second one lies beside the first, which is not asked for.
        let two = [span(0, 99, 0), span(90, 109, 1)];
        assert_eq!(in_common(&two, |unit| unit == 1), 0.5);
        assert_eq!(in_common(&two, |unit| unit == 0), 0.1);
        // One of three ends while the others go on.
        assert_eq!(all(&[span(0, 1, 0), span(0, 3, 1), span(0, 3, 2)]), 1.0);
    }

    #[test]
    fn recordings_that_count_from_their_begin_have_no_moment_in_common() {
        let set = |begins: &[i64]| {
            let series = begins.iter().enumerate();
            let series = series.map(|(index, begin)| {
                Series::regular(format!("s{index}"), *begin, 1_000_000, vec![0.0; 50], 1)
            });
            SeriesSet::new(vec![Channel::new("x", Role::Other)], vec![], series.collect()).unwrap()
        };
        let year = 730 * DAY;
        assert!(are_in_common(&set(&[year, year, year + 5]), true));
        assert!(!are_in_common(&set(&[0, 0, 0]), true));
        assert!(!are_in_common(&set(&[year, year]), false));
        assert!(!are_in_common(&set(&[year, year + 100_000_000]), true));
        // A share of 1962 beside those of a later year, all of them before 1970, and a recording beside them.
        assert!(are_in_common(&set(&[-8 * 365 * DAY, year, year]), true));
        assert!(are_in_common(&set(&[-year, -year]), true));
        assert!(are_in_common(&set(&[0, year, year]), true));
    }

    #[test]
    fn series_without_times_that_are_drawn_unasked_may_have_moments_in_common() {
        let set = |labels: &StepLabels| {
            let series = (0..6u8).map(|index| {
                let values = (0..80u8).map(|step| f64::from(index) * 100.0 + f64::from(step));
                let plain = Series::regular(format!("s{index}"), 0, 1, values.collect(), 1);
                Series { labels: labels.clone(), ..plain }
            });
            let channels = vec![Channel::new("close", Role::Close)];
            let classes = vec!["a".to_owned()];
            Arc::new(SeriesSet::new(channels, classes, series.collect()).unwrap())
        };
        let (samples, set) = (set(&StepLabels::Whole(0)), set(&StepLabels::None));
        let (window, none) = (WindowRule { length: 4, stride: 1, whole: false }, Labels::None);
        let drawn = SplitRule::Series { validation: 0.2, test: 0.2, seed: 1 };
        let parts = split(&set, &window, &drawn, &none).unwrap();
        let ahead = Labels::Return { horizon: 5, threshold: 0.0 };
        let config = PipelineConfig { labels: ahead, ..PipelineConfig::default() };
        let said = without_moments(&config, &parts, false).unwrap();
        for part in ["up to 5 steps ahead", "split.time.test=0.2", "split.series.test=0.2"] {
            assert!(said.contains(part), "`{part}`: {said}");
        }
        assert_eq!(without_moments(&config, &parts, true), None);
        let by_rows = split(&set, &window, &SplitRule::time(0.2, 0.2), &none).unwrap();
        assert_eq!(without_moments(&config, &by_rows, false), None);
        let parts_of_samples = split(&samples, &window, &drawn, &none).unwrap();
        assert_eq!(without_moments(&config, &parts_of_samples, false), None);
        let written = PipelineConfig { split: Some(drawn), ..config };
        assert_eq!(without_moments(&written, &parts, false), None);
        assert_eq!(without_moments(&PipelineConfig::default(), &parts, false), None);
    }
}
