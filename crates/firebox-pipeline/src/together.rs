//! Which test windows hang together, from the data and the settings: [`Together`].

use std::collections::{BTreeMap, BTreeSet};

use firebox_core::{HeldOutWindows, Origin, SeriesSet, SplitRule, WindowList};
use firebox_eval::{Together, block_of_labels, block_of_overlap, size_of_units};

use crate::PipelineConfig;
use crate::measure::units_of;
use crate::moments::{IN_COMMON, in_common, of_windows};
use crate::stages::Windows;

/// Which windows of a test part hang together, which intervals must know: those that share a step of their values or labels,
/// of all series at a moment where several have the same times, and as many as labels persist over; where the series of the
/// test part are others than those that were trained on, all of one of them, or of a group, beside those of a moment. What is
/// alike in the windows of one subject says nothing of other subjects.
pub(crate) fn together(
    config: &PipelineConfig,
    windows: &Windows,
    test: &firebox_core::Windows,
) -> Together {
    let (set, list) = (test.set(), test.windows());
    let (has_clock, whole) = (windows.ingested.checks.span.is_some(), config.window.whole);
    let footprint = config.window.length + config.labels.horizon();
    if is_apart(&windows.rule, set) {
        let units = set.units();
        let unit = |series: u32| units[series as usize];
        let spans = of_windows(set, list, unit);
        if whole || !has_clock || in_common(&spans, |_| true) < IN_COMMON {
            return by_units(list, unit);
        }
        let share_a_step = config.window.length.div_ceil(config.window.stride);
        let of_a_unit = size_of_units(&numbers_of_units(list, unit)).max(share_a_step);
        let persist = Persist::OfMoments;
        let timed = by_moments(list, set, footprint, config.window.stride, persist);
        return crossed(timed, of_a_unit, list, unit);
    }
    if whole {
        return Together::every(1);
    }
    in_time(list, set, footprint, config.window.stride, has_clock)
}

/// What `of` says of the windows with a class, by their places among all of a test part: probes are judged by these alone,
/// of which fewer share a step. The others have no place in the order, and any unit.
pub(crate) fn as_labelled(
    test: &HeldOutWindows,
    of: impl Fn(&firebox_core::Windows) -> Together,
) -> Together {
    let own = of(&test.labelled());
    let labelled = (0..).zip(test.windows()).filter(|(_, window)| window.label.is_some());
    let places: Vec<u32> = labelled.map(|(place, _)| place).collect();
    let order = own.order.iter().map(|window| places[*window as usize]).collect();
    let mut units = vec![];
    if !own.units.is_empty() {
        units.resize(test.len(), 0);
        for (place, unit) in places.iter().zip(&own.units) {
            units[*place as usize] = *unit;
        }
    }
    Together { order, units, ..own }
}

/// Windows that hang together by moments and by units, such as those of assets that are new to the model and move together:
/// there are as many independent ones as there are blocks of the one or of the other, whichever are fewer.
fn crossed(
    timed: Together,
    of_a_unit: usize,
    windows: &WindowList,
    unit: impl Fn(u32) -> usize,
) -> Together {
    let block = timed.block.max(of_a_unit).min(windows.len().max(1));
    Together { block, units: numbers_of_units(windows, unit), ..timed }
}

/// Windows that hang together by units alone, of which there are as many independent ones as units of equal size.
fn by_units(windows: &WindowList, unit: impl Fn(u32) -> usize) -> Together {
    let units = numbers_of_units(windows, unit);
    let of_a_unit = size_of_units(&units);
    Together { units, whole_units: true, ..Together::every(of_a_unit) }
}

/// The unit of each window, numbered from 0 as they come.
pub(crate) fn numbers_of_units(windows: &WindowList, unit: impl Fn(u32) -> usize) -> Vec<u32> {
    let mut numbers = BTreeMap::<usize, u32>::new();
    let number = |window: firebox_core::Window| {
        let next = numbers.len() as u32;
        *numbers.entry(unit(window.series)).or_insert(next)
    };
    windows.iter().map(number).collect()
}

/// Whether the test part has other series, or groups of them, than the training part.
pub(crate) fn is_apart(rule: &SplitRule, set: &SeriesSet) -> bool {
    match rule {
        SplitRule::Time { .. } => false,
        SplitRule::Series { .. } => true,
        SplitRule::Given { .. } => set.groups() > 0 || are_others(set),
    }
}

/// Whether the series to test on are others than those to train on, and not their later parts: several, of other names.
fn are_others(set: &SeriesSet) -> bool {
    let names = |origin: Origin| {
        set.series().iter().filter(move |series| series.origin == origin).map(|one| &*one.name)
    };
    let trained: BTreeSet<&str> = names(Origin::Train).collect();
    let goes_on = |name: &str| name.strip_prefix("test/").is_some_and(|own| trained.contains(own));
    names(Origin::Test).count() > 1 && !names(Origin::Test).any(goes_on)
}

/// Windows of which each looks at `footprint` steps, in the order of time if several series have the same times.
pub(crate) fn in_time(
    windows: &WindowList,
    set: &SeriesSet,
    footprint: usize,
    stride: usize,
    has_clock: bool,
) -> Together {
    if !has_clock || units_of(windows, |series| series as usize) < 2 {
        let share_a_step = footprint.div_ceil(stride.max(1));
        let block = block_of_overlap(share_a_step, windows.len() as f64);
        return Together::every(block.max(block_of_labels(&of_series(windows), 1.0)));
    }
    by_moments(windows, set, footprint, stride, Persist::OfSeries)
}

/// Whose labels persist: those of each series, or what most series have at a moment, where each series counts as one beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Persist {
    OfSeries,
    OfMoments,
}

/// The labels of each series.
fn of_series(windows: &WindowList) -> Vec<Vec<u32>> {
    let mut labels: Vec<Vec<u32>> = vec![];
    let mut before = None;
    for window in windows {
        let Some(label) = window.label else { continue };
        if before != Some(window.series) {
            labels.push(vec![]);
            before = Some(window.series);
        }
        if let Some(own) = labels.last_mut() {
            own.push(label);
        }
    }
    labels
}

/// The label that most windows have at each moment, and how many windows a moment has in the mean. A moment is as long as
/// the time between two windows of a series.
fn of_moments(windows: &WindowList, starts: &[i64]) -> (Vec<u32>, usize) {
    let mut pairs = windows.iter().zip(starts).zip(windows.iter().zip(starts).skip(1));
    let between = pairs.find(|((one, _), (next, _))| one.series == next.series);
    let between = between.map_or(1, |((_, one), (_, next))| (next - one).max(1));
    let mut moments = BTreeMap::<i64, BTreeMap<u32, usize>>::new();
    for (window, start) in windows.iter().zip(starts) {
        let moment = moments.entry(start.div_euclid(between)).or_default();
        if let Some(label) = window.label {
            *moment.entry(label).or_default() += 1;
        }
    }
    let labels = moments.values().filter_map(|labels| {
        let most = labels.iter().max_by_key(|(label, count)| (**count, std::cmp::Reverse(**label)));
        most.map(|(label, _)| *label)
    });
    (labels.collect(), windows.len().div_ceil(moments.len().max(1)))
}

/// The same of windows of several series that have times.
fn by_moments(
    windows: &WindowList,
    set: &SeriesSet,
    footprint: usize,
    stride: usize,
    persist: Persist,
) -> Together {
    let share_a_step = footprint.div_ceil(stride.max(1));
    // The first moment that each window looks at, and the last.
    let moments: Vec<[i64; 2]> = windows
        .iter()
        .map(|window| {
            let time = &set.series()[window.series as usize].time;
            let (start, last) = (window.steps().start, time.len() - 1);
            [time[start], time[(start + footprint - 1).min(last)]]
        })
        .collect();
    let mut order: Vec<u32> = (0..moments.len() as u32).collect();
    order.sort_by_key(|window| moments[*window as usize][0]);
    // Windows that begin while another one goes on, itself among them.
    let starts: Vec<i64> = order.iter().map(|window| moments[*window as usize][0]).collect();
    let beside = |(place, window): (usize, &u32)| {
        let end = moments[*window as usize][1];
        starts[place..].partition_point(|start| *start <= end) as u64
    };
    let all: u64 = order.iter().enumerate().map(beside).sum();
    let at_once = all.div_ceil(order.len().max(1) as u64) as usize;
    // Of each series that goes on at a moment, so many windows share a step.
    let series = at_once as f64 / share_a_step.max(1) as f64;
    let overlap = block_of_overlap(share_a_step, windows.len() as f64 / series.max(1.0));
    // So many windows of each of these series.
    let of_all = |block: usize| (at_once * block / share_a_step.max(1)).max(at_once).max(block);
    let block = match persist {
        // Labels persist over as many windows of each of the series that go on at once.
        Persist::OfSeries => of_all(overlap.max(block_of_labels(&of_series(windows), series))),
        Persist::OfMoments => {
            let begins: Vec<i64> = moments.iter().map(|[start, _]| *start).collect();
            let (labels, in_each) = of_moments(windows, &begins);
            of_all(overlap).max(in_each * block_of_labels(&[labels], 1.0))
        }
    };
    Together { order, ..Together::every(block.clamp(1, windows.len().max(1))) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use firebox_core::{Channel, Labels, Role, Series, StepLabels, WindowRule, split};

    use super::*;

    /// Series of so many steps that begin at these minutes; the label of a step.
    fn test_part(
        begins: &[i64],
        steps: usize,
        stride: usize,
        label: impl Fn(usize, usize) -> u32,
    ) -> firebox_core::Windows {
        let series = begins.iter().enumerate().map(|(index, begin)| {
            let values = (0..steps).map(|step| (step * 7 % 13) as f64).collect();
            let labels = (0..steps).map(|step| Some(label(index, step))).collect();
            let name = format!("s{index}");
            Series {
                labels: StepLabels::PerStep(labels),
                ..Series::regular(name, begin * 60_000_000, 60_000_000, values, 1)
            }
        });
        let channels = vec![Channel::new("x", Role::Other)];
        let classes = vec!["a".to_owned(), "b".to_owned()];
        let set = Arc::new(SeriesSet::new(channels, classes, series.collect()).unwrap());
        let rule = WindowRule { length: 20, stride, whole: false };
        let all = SplitRule::Time { validation: 0.0, test: 0.0, gap: Some(0) };
        (*split(&set, &rule, &all, &Labels::Last).unwrap().train).clone()
    }

    fn of(part: &firebox_core::Windows, footprint: usize, stride: usize) -> Together {
        in_time(part.windows(), part.set(), footprint, stride, true)
    }

    fn noise(series: usize, step: usize) -> u32 {
        firebox_core::Stream::new(series as u64, "labels").block(step as u64)[0] % 2
    }

    #[test]
    fn windows_of_one_series_hang_together_as_far_as_their_steps_and_labels_reach() {
        let part = test_part(&[0], 2000, 10, noise);
        let found = of(&part, 20, 10);
        // (2 − 1/2)² · 199 / 6 = 74.6 = 4.2³.
        assert!(found.order.is_empty() && (4..=5).contains(&found.block), "{found:?}");
        // A label that looks 600 steps ahead.
        assert_eq!(of(&part, 620, 10).block, 62);
        // Bouts of 300 steps, which are 30 windows.
        let bouts = test_part(&[0], 20_000, 10, |_, step| (step / 300 % 2) as u32);
        assert!((60..=400).contains(&of(&bouts, 20, 10).block), "{}", of(&bouts, 20, 10).block);
    }

    #[test]
    fn series_of_the_same_times_are_drawn_by_time() {
        let part = test_part(&[0, 0, 0, 5], 1000, 10, noise);
        let found = of(&part, 20, 10);
        let windows = part.windows();
        let moment = |window: &u32| {
            let window = windows.at(*window as usize);
            part.set().series()[window.series as usize].time[window.steps().start]
        };
        assert!(found.order.iter().map(moment).is_sorted());
        let mut all = found.order.clone();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..windows.len() as u32));
        // Four series, of which two windows each share a step: three are drawn.
        assert!((10..=15).contains(&found.block), "{}", found.block);
        // Series that follow on one another are as one.
        let after = of(&test_part(&[0, 1000, 2000], 1000, 10, noise), 20, 10);
        assert!((4..=6).contains(&after.block), "{}", after.block);
        // Without a clock, nothing is known of their times.
        let without = in_time(windows, part.set(), 20, 10, false);
        assert!(without.order.is_empty() && without.block <= 6, "{without:?}");
    }

    #[test]
    fn windows_without_a_class_do_not_lengthen_the_blocks_of_those_with_one() {
        // Three series of the same times, of which two have classes, other ones from window to window.
        let series = [0, 1, 2].map(|index| {
            let values = (0..4000).map(|step| f64::from(step * 7 % 13)).collect();
            let labels = (0..4000u32).map(|step| (index > 0).then_some(step / 10 % 2)).collect();
            Series {
                labels: StepLabels::PerStep(labels),
                ..Series::regular(format!("s{index}"), 0, 60_000_000, values, 1)
            }
        });
        let channels = vec![Channel::new("x", Role::Other)];
        let classes = vec!["a".to_owned(), "b".to_owned()];
        let set = Arc::new(SeriesSet::new(channels, classes, series.into()).unwrap());
        let rule = WindowRule { length: 20, stride: 10, whole: false };
        let half = SplitRule::Time { validation: 0.0, test: 0.5, gap: Some(0) };
        let test = split(&set, &rule, &half, &Labels::Last).unwrap().test;
        let all = of(&test, 20, 10);
        let labelled = as_labelled(&test, |part| of(part, 20, 10));
        // Some 199 windows of a series, of which two share a step: (2 − 1/2)² · 199 / 6 = 74.6 = 4.2³, of each series.
        assert_eq!((all.block, labelled.block), (10, 8));
        let has_class = |at: &usize| test.windows().at(*at).label.is_some();
        let chosen: Vec<usize> = (0..test.len()).filter(has_class).collect();
        assert_eq!(labelled.of_chosen(&chosen, 1), of(&test.labelled(), 20, 10));
    }

    #[test]
    fn labels_of_moments_persist_where_all_series_have_them_and_not_where_each_has_its_own() {
        let block = |label: &dyn Fn(usize, usize) -> u32| {
            let part = test_part(&[0, 0, 0, 0, 0, 0], 1000, 10, label);
            by_moments(part.windows(), part.set(), 20, 10, Persist::OfMoments).block
        };
        // Two windows of each of six series share a step: three are drawn.
        assert!((14..=21).contains(&block(&noise)), "{}", block(&noise));
        let own = |series, _| series as u32 % 2;
        assert!((14..=21).contains(&block(&own)), "{}", block(&own));
        // Regimes of 200 steps, 20 windows of each.
        let common = |_, step| (step / 200 % 2) as u32;
        assert!(block(&common) > 60, "{}", block(&common));
    }

    #[test]
    fn windows_of_new_series_hang_together_by_moments_too() {
        let part = test_part(&[0, 0, 0, 0], 1000, 10, noise);
        let timed = of(&part, 20, 10);
        let found = crossed(timed.clone(), 5, part.windows(), |series| 7 + series as usize / 2);
        assert_eq!((found.block, &found.order), (timed.block, &timed.order));
        let per_series = part.len() / 4;
        let expected = |at: usize| u32::from(at >= 2 * per_series);
        assert!(found.units.iter().enumerate().all(|(at, unit)| *unit == expected(at)));
        // The fewer of the two are what there is.
        assert_eq!(crossed(timed, 90, part.windows(), |series| series as usize).block, 90);
    }

    #[test]
    fn windows_of_new_series_without_moments_hang_together_by_whole_units() {
        let part = test_part(&[0, 0, 0, 0], 1000, 10, noise);
        let per_series = part.len() / 4;
        // Two units of two series each.
        let found = by_units(part.windows(), |series| 7 + series as usize / 2);
        assert!(found.whole_units && found.order.is_empty(), "{found:?}");
        assert_eq!((found.block, found.units.len()), (2 * per_series, part.len()));
        let expected = |at: usize| u32::from(at >= 2 * per_series);
        assert!(found.units.iter().enumerate().all(|(at, unit)| *unit == expected(at)));
        assert_eq!(found.by_units(), None, "they are by units already");
    }

    #[test]
    fn test_series_are_others_unless_they_go_on_from_those_to_train_on() {
        let set = |names: &[(&str, Origin)]| {
            let series = names.iter().map(|(name, origin)| Series {
                origin: *origin,
                ..Series::regular(*name, 0, 1, vec![0.0; 3], 1)
            });
            SeriesSet::new(vec![Channel::new("x", Role::Other)], vec![], series.collect()).unwrap()
        };
        let (train, test) = (Origin::Train, Origin::Test);
        assert!(are_others(&set(&[("a", train), ("b", test), ("c", test)])));
        assert!(!are_others(&set(&[("a", train), ("b", test)])));
        assert!(!are_others(&set(&[("a", train), ("test/a", test), ("test/b", test)])));
    }
}
