//! Divides whole series: drawn evenly from each class, or as the files give them. Equal series stay together.

use super::{EqualPolicy, SplitError, SplitRule};
use crate::equal::{
    equal_to_tests, firsts, joined, names, of_groups_of_tests, units, with_steps_of_each_other,
    with_steps_of_tests,
};
use crate::{EqualSeries, Origin, Series, SeriesSet, SharedStretch, Stream};

/// In place of the part of a series that no part has.
pub(super) const LEFT_OUT: usize = 3;

/// The part of each series: test files to the test, a share of each class to validation. What is done about training
/// series that equal one of a test file is up to `policy`.
pub(super) fn parts_given(
    set: &SeriesSet,
    validation: f64,
    seed: u64,
    policy: EqualPolicy,
) -> Result<(Vec<usize>, EqualSeries), SplitError> {
    let of = |origin: Origin| {
        let series = set.series().iter().enumerate();
        series.filter(move |(_, series)| series.origin == origin).map(|(index, _)| index)
    };
    let mut parts = vec![0; set.series().len()];
    of(Origin::Test).for_each(|index| parts[index] = 2);
    let mut train: Vec<usize> = of(Origin::Train).collect();
    for (part, missing) in
        [("training", train.is_empty()), ("test", of(Origin::Test).next().is_none())]
    {
        if missing {
            return Err(SplitError::NotGiven { part });
        }
    }
    let firsts = firsts(set);
    let equal = equal_to_tests(set, &firsts, &train);
    let within = with_steps_of_tests(set, &train, &equal);
    let grouped = of_groups_of_tests(set, &train);
    let mut tested = EqualSeries::tested(set, &equal, &within, &grouped);
    if policy == EqualPolicy::Error {
        refuse(set, &equal, &within, &grouped)?;
    }
    if policy == EqualPolicy::Drop {
        let pairs = equal.iter().chain(&grouped).map(|[index, _]| *index);
        tested.left_out = pairs.chain(within.iter().map(|stretch| stretch.series[0])).collect();
        tested.left_out.sort_unstable();
        tested.left_out.dedup();
        if tested.left_out.len() == train.len() {
            return Err(SplitError::NothingElse { series: train.len() });
        }
        tested.left_out.iter().for_each(|index| parts[*index] = LEFT_OUT);
        train.retain(|index| parts[*index] != LEFT_OUT);
    }
    let used: Vec<usize> = (0..parts.len()).filter(|index| parts[*index] != LEFT_OUT).collect();
    let all = units(&firsts, &used);
    let (contradicting, contradiction) =
        EqualSeries::contradicting(set, all.iter().map(Vec::as_slice));
    // Where nothing is drawn, nothing is drawn together.
    let mut pairs = Vec::new();
    let mut drawn = EqualSeries::default();
    if validation > 0.0 {
        pairs = with_steps_of_each_other(set, &train);
        drawn = EqualSeries::drawn(set, &units(&firsts, &train)).overlapping(set, &firsts, &pairs);
        pairs.extend(with_groups(set, &train));
    }
    let units = units(&joined(&firsts, &pairs), &train);
    let EqualSeries { together, drawn, overlapping, overlap, .. } = drawn;
    let equal = EqualSeries {
        together,
        drawn,
        overlapping,
        overlap,
        contradicting,
        contradiction,
        ..tested
    };
    draw(set, units, &[(1, validation)], Stream::new(seed, DRAWN_OF_GIVEN), &mut parts);
    Ok((parts, equal))
}

/// Pairs of these series that are of one group.
fn with_groups(set: &SeriesSet, of: &[usize]) -> Vec<[usize; 2]> {
    let mut firsts = std::collections::HashMap::new();
    let pair = |index: &usize| {
        let group = set.series()[*index].group.as_ref()?;
        let first = *firsts.entry(group).or_insert(*index);
        (first != *index).then_some([first, *index])
    };
    of.iter().filter_map(pair).collect()
}

/// Refuses training series that equal one of a test file, are of a group of one, or have steps of one.
fn refuse(
    set: &SeriesSet,
    equal: &[[usize; 2]],
    within: &[SharedStretch],
    grouped: &[[usize; 2]],
) -> Result<(), SplitError> {
    if let Some(pair) = equal.first() {
        let ([train, test], series) = (names(set, *pair), equal.len());
        return Err(SplitError::Equal { series, train, test });
    }
    if let Some(pair) = grouped.first() {
        let ([train, test], series) = (names(set, *pair), grouped.len());
        let group = set.series()[pair[0]].group.as_deref().unwrap_or_default().to_owned();
        return Err(SplitError::Grouped { series, train, test, group });
    }
    let Some(stretch) = within.first() else { return Ok(()) };
    let ([train, test], series) = (names(set, stretch.series), within.len());
    Err(SplitError::Within { series, train, test, steps: stretch.steps })
}

/// The part of each series where whole series are drawn.
pub(super) fn parts_drawn(
    set: &SeriesSet,
    validation: f64,
    test: f64,
    seed: u64,
) -> (Vec<usize>, EqualSeries) {
    let mut parts = vec![0; set.series().len()];
    let all: Vec<usize> = (0..parts.len()).collect();
    let firsts = firsts(set);
    let pairs = with_steps_of_each_other(set, &all);
    let equal = EqualSeries::drawn(set, &units(&firsts, &all)).overlapping(set, &firsts, &pairs);
    let together = [pairs, with_groups(set, &all)].concat();
    let units = units(&joined(&firsts, &together), &all);
    draw(set, units, &[(2, test), (1, validation)], Stream::new(seed, DRAWN), &mut parts);
    (parts, equal)
}

/// What series are drawn by for all parts, and for validation alone.
const DRAWN: &str = "series split";
const DRAWN_OF_GIVEN: &str = "validation split";

/// Shares that are tried at a time for a part that came out empty, spread over all there are. A choice.
const TRIED: usize = 100;

/// The least share, of those that are so many whole series of all that are drawn from, by which a part has one of which
/// there is a window, if a share that is tried does. `parts` are those that a rule has led to.
pub(super) fn least_share(
    set: &SeriesSet,
    rule: &SplitRule,
    part: usize,
    parts: &[usize],
    has_window: &[bool],
) -> Option<f64> {
    let series: Vec<usize> = (0..parts.len())
        .filter(|index| !matches!(rule, SplitRule::Given { .. }) || parts[*index] < 2)
        .collect();
    let together = [with_steps_of_each_other(set, &series), with_groups(set, &series)].concat();
    let units = units(&joined(&firsts(set), &together), &series);
    let mut before = parts.to_vec();
    series.iter().for_each(|index| before[*index] = 0);
    let draws = |share: f64| {
        let (shares, seed, purpose) = match (*rule, part) {
            (SplitRule::Series { test, seed, .. }, 1) => ([(2, test), (1, share)], seed, DRAWN),
            (SplitRule::Series { validation, seed, .. }, 2) => {
                ([(2, share), (1, validation)], seed, DRAWN)
            }
            (SplitRule::Given { seed, .. }, 1) => ([(2, 0.0), (1, share)], seed, DRAWN_OF_GIVEN),
            _ => return false,
        };
        let mut drawn = before.clone();
        draw(set, units.clone(), &shares, Stream::new(seed, purpose), &mut drawn);
        let is_there = |index: &usize| drawn[*index] == part && has_window[*index];
        shares.iter().map(|(_, share)| share).sum::<f64>() < 1.0 && series.iter().any(is_there)
    };
    let share = |some: usize| share_of(some, series.len());
    least_of(series.len(), |some| draws(share(some))).map(share)
}

/// The least number from 1 on and below `end` that is one of those asked for, if one that is tried is: a hundred over
/// all, and then a hundred between the first that is one and the one before it, as long as there are any. Of up to ten
/// thousand it is the least one, where all from it on are and the last that is tried over all is one.
fn least_of(end: usize, is_one: impl Fn(usize) -> bool) -> Option<usize> {
    let (mut tried, mut least) = (1..end, None);
    while !tried.is_empty() {
        let apart = tried.len().div_ceil(TRIED);
        let mut some = tried.clone().step_by(apart);
        let Some(found) = some.find(|number| is_one(*number)) else { break };
        least = Some(found);
        tried = (found + 1).saturating_sub(apart).max(tried.start)..found;
    }
    least
}

/// The share that some of so many series are, in as few digits as tell it from that of fewer.
fn share_of(some: usize, series: usize) -> f64 {
    let scale = 10f64.powf((series as f64).log10().ceil()).max(100.0);
    (scale * some as f64 / series as f64).ceil() / scale
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
    let classes: Vec<Option<u32>> = set.series().iter().map(Series::main_class).collect();
    let class = |index: usize| classes[index];
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
            // What a class could not give for having too few series is no debt of the next one.
            let wanted = owed.round().clamp(0.0, most(*share, all)) as usize;
            let mut taken = 0;
            free.retain(|unit| {
                let leaves_some = || {
                    // Equal series may be of several classes.
                    let mut members = std::collections::BTreeMap::<Option<u32>, usize>::new();
                    unit.iter().for_each(|index| *members.entry(class(*index)).or_default() += 1);
                    let mut members = members.iter();
                    members.all(|(of, count)| staying.get(of).is_some_and(|all| all > count))
                };
                // A unit is left where more would be too many by it than are missing without it.
                let fits = 2 * taken + unit.len() <= 2 * wanted;
                let take = fits && leaves_some();
                if take {
                    for index in unit {
                        parts[*index] = *part;
                        staying.entry(class(*index)).and_modify(|all| *all -= 1);
                    }
                    taken += unit.len();
                }
                !take
            });
            *owed = (*owed - taken as f64).min(ROUNDED);
        }
    }
}

/// What a class owes at most for its share being rounded.
const ROUNDED: f64 = 0.5;

/// Series that are drawn of so many at most.
fn most(share: f64, all: f64) -> f64 {
    // 0.55 of 100 is more than 55 once it is rounded.
    (share * all - 1e-9).ceil()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::split::tests::rule;
    use crate::{Channel, Labels, Role, SplitRule, StepLabels, WindowList, WindowRule, split};

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
        let given = SplitRule::Given { validation: 0.2, seed: 1, equal: EqualPolicy::Error };
        let whole = WindowRule { length: 20, stride: 1, whole: true };
        let set =
            Arc::new(SeriesSet::new(channels.clone(), classes.clone(), series.clone()).unwrap());
        let parts = split(&set, &whole, &given, &Labels::Last).unwrap();
        assert_eq!([parts.train.len(), parts.validation.len(), parts.test.len()], [24, 6, 10]);
        let ones = parts.validation.windows().iter().filter(|w| w.label == Some(1)).count();
        assert_eq!(ones, 3);
        assert_eq!((parts.train.windows().at(0).length, parts.train.longest()), (5, 20));
        series.truncate(30);
        let set = Arc::new(SeriesSet::new(channels, classes, series).unwrap());
        assert_eq!(
            split(&set, &whole, &given, &Labels::Last).unwrap_err(),
            SplitError::NotGiven { part: "test" }
        );
    }

    #[test]
    fn a_share_that_is_advised_draws_a_series_and_none_is_where_none_does() {
        // A series of each class, and of the first class so many more; two of another class are tested on.
        let divided = |more: usize, rule: &SplitRule| {
            let classes = [0, 1, 2].into_iter().chain(std::iter::repeat_n(0, more));
            let train = classes.map(|class| (class, Origin::Train));
            let all = train.chain([(1, Origin::Test), (2, Origin::Test)]);
            let series = all.enumerate().map(|(index, (class, origin))| Series {
                labels: StepLabels::Whole(class),
                origin,
                ..Series::regular(format!("s{index}"), 0, 1, vec![index as f64; 30], 1)
            });
            let channels = vec![Channel::new("x", Role::Other)];
            let classes = ["a", "b", "c"].map(str::to_owned).to_vec();
            let set = Arc::new(SeriesSet::new(channels, classes, series.collect()).unwrap());
            let whole = WindowRule { length: 30, stride: 1, whole: true };
            split(&set, &whole, rule, &Labels::Last)
        };
        let given =
            |validation| SplitRule::Given { validation, seed: 1, equal: EqualPolicy::Error };
        let said = divided(0, &given(0.1)).unwrap_err().to_string();
        assert!(said.contains("the validation part is empty"), "{said}");
        assert!(said.contains("no share draws a series for it: give more series"), "{said}");
        assert!(said.contains("(split.given.validation = 0)"), "{said}");
        for share in [0.34, 0.67, 0.99] {
            divided(0, &given(share)).unwrap_err();
        }
        assert_eq!(divided(0, &given(0.0)).unwrap().validation.len(), 0);
        // Four of which one may go.
        let said = divided(1, &given(0.1)).unwrap_err().to_string();
        assert!(said.contains("set split.given.validation = 0.25, which is one"), "{said}");
        assert_eq!(divided(1, &given(0.25)).unwrap().validation.len(), 1);
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
        let of = |windows: &WindowList| {
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
                let wanted = owed.round().clamp(0.0, most(*share, all)) as usize;
                let take = wanted.min(free.len().saturating_sub(1));
                *owed = (*owed - take as f64).min(ROUNDED);
                free[..take].iter().for_each(|index| parts[*index] = *part);
                free = &free[take..];
            }
        }
    }

    #[test]
    fn what_small_classes_cannot_give_is_not_taken_from_the_next_one() {
        // A series each of many classes, which stays, and then classes of a hundred.
        let rare = (0..50).map(|class| (class, 1));
        let few = (52..72).map(|class| (class, 7));
        let sizes: Vec<(u32, usize)> = rare.chain([(50, 100), (51, 100)]).chain(few).collect();
        let of_class = |(class, size): &(u32, usize)| {
            let class = *class;
            (0..*size).map(move |at| (f64::from(class) * 1e3 + at as f64, class))
        };
        let series =
            sizes.iter().flat_map(of_class).enumerate().map(|(index, (value, class))| Series {
                labels: StepLabels::Whole(class),
                ..Series::regular(format!("s{index}"), 0, 1, vec![value; 6], 1)
            });
        let classes = (0..72).map(|class| format!("class {class}")).collect();
        let channels = vec![Channel::new("x", Role::Other)];
        let set = SeriesSet::new(channels, classes, series.collect()).unwrap();
        let (shares, mut parts) = ([(2, 0.2), (1, 0.1)], vec![0; set.series().len()]);
        let units = (0..parts.len()).map(|index| vec![index]).collect();
        draw(&set, units, &shares, Stream::new(3, "split"), &mut parts);
        let drawn = |class: u32, part: usize| {
            let of = |(own, series): (&usize, &Series)| {
                *own == part && series.labels == StepLabels::Whole(class)
            };
            parts.iter().zip(set.series()).filter(|pair| of(*pair)).count()
        };
        for class in [50, 51] {
            let found = [drawn(class, 2), drawn(class, 1)];
            assert!((20..=21).contains(&found[0]) && (10..=11).contains(&found[1]), "{found:?}");
        }
        // A fifth of 140, and a tenth.
        let of_few = |part| (52..72).map(|class| drawn(class, part)).sum::<usize>();
        let found = [of_few(2), of_few(1)];
        assert!((27..=29).contains(&found[0]) && (13..=15).contains(&found[1]), "{found:?}");
        assert!((0..50).all(|class| drawn(class, 0) == 1));
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
            let Ok(found) = parts_given(&set, validation, seed, EqualPolicy::Error) else {
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
            let values = |windows: &WindowList| -> std::collections::BTreeSet<u64> {
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
            let expected = "40 series equal one of another class, such as `s0` and `s1`: ";
            assert!(warnings[1].starts_with(expected), "{warnings:?}");
            assert_eq!((warnings.len(), parts.equal.tested), (2, 0));
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
        let keep = EqualPolicy::Keep;
        let (parts, equal) = parts_given(&of_values(&series(true)), 0.2, 3, keep).unwrap();
        assert_eq!(parts_given(&of_values(&series(false)), 0.2, 3, keep).unwrap().0, parts);
        assert_eq!((equal.together, equal.tested), (0, 3));
        let [warning, other] = &equal.warnings()[..] else { panic!("{equal:?}") };
        assert!(other.starts_with("6 series equal one of another class, such as `s37` and `s40`"));
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
                let all = of_values(&twice);
                let (parts, equal) = parts_given(&all, validation, seed, keep).unwrap();
                assert_eq!((parts[1], equal.together), (parts[2], together), "{seed}");
            }
        }
    }

    #[test]
    fn training_series_that_equal_given_test_series_are_refused_or_left_out() {
        // `s3` and `s4` equal each other and, with `s5`, a test series.
        let values = [0.0, 1.0, 2.0, 7.0, 7.0, 8.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
        let all: Vec<_> = values
            .into_iter()
            .enumerate()
            .map(|(index, value)| {
                (value, None, if index < 10 { Origin::Train } else { Origin::Test })
            })
            .collect();
        let set = of_values(&all);
        let given = |equal| SplitRule::Given { validation: 0.3, seed: 2, equal };
        let of = |equal| split(&set, &rule(6, 1), &given(equal), &Labels::None);
        let said = of(EqualPolicy::Error).unwrap_err().to_string();
        let expected = "3 series of the training files equal one of the test files, value for value, such as `s3` and `s10`: ";
        assert!(said.starts_with(expected) && said.contains("split.given.equal=drop"), "{said}");
        let one = of_values(&[all[0], all[3], all[10]]);
        let refused = parts_given(&one, 0.0, 1, EqualPolicy::Error).unwrap_err().to_string();
        assert!(refused.starts_with("1 series of the training files equals one"), "{refused}");

        let parts = of(EqualPolicy::Drop).unwrap();
        assert_eq!([parts.train.len(), parts.validation.len(), parts.test.len()], [5, 2, 3]);
        assert_eq!((parts.left_out, &parts.equal.left_out[..]), (0, &[3, 4, 5][..]));
        let mut seen = parts.train.windows().iter().chain(parts.validation.windows());
        assert!(seen.all(|window| ![3, 4, 5].contains(&window.series)));
        let [warning] = &parts.equal.warnings()[..] else { panic!("{:?}", parts.equal) };
        assert!(warning.contains("are left out of training and validation"), "{warning}");
        let kept = of(EqualPolicy::Keep).unwrap();
        assert_eq!((kept.train.len() + kept.validation.len(), kept.equal.tested), (10, 3));
        // Nothing else changes where none are equal, and a rule that is read has the default.
        let read: SplitRule = serde_json::from_str(r#"{"given": {}}"#).unwrap();
        assert_eq!(read, SplitRule::automatic(true, false, true, 1).0);
        let only = of_values(&[(7.0, None, Origin::Train), (7.0, None, Origin::Test)]);
        let drop = SplitRule::Given { validation: 0.0, seed: 1, equal: EqualPolicy::Drop };
        let empty = split(&only, &rule(6, 1), &drop, &Labels::None).unwrap_err().to_string();
        assert!(
            empty.starts_with("each series of the training files, 1 in all, equals one"),
            "{empty}"
        );
    }

    #[test]
    fn series_that_have_steps_of_each_other_are_drawn_for_one_part() {
        let mut draws = Stream::new(2, "bars").draws();
        let bars: Vec<f64> = (0..3000).map(|_| draws.uniform_f64()).collect();
        // Thirty series of 60 steps, the second half of each third one being the first half of the next.
        let series = (0..30).map(|index: usize| {
            let from = if index % 3 == 1 { (index - 1) * 100 + 30 } else { index * 100 };
            let values = bars[from..from + 60].to_vec();
            Series::regular(format!("s{index}"), from as i64 * 1000 + 5, 1000, values, 1)
        });
        let channels = vec![Channel::new("x", Role::Other)];
        let set = SeriesSet::new(channels, vec![], series.collect()).unwrap();
        let mut apart = 0;
        for seed in 0..20 {
            let (parts, equal) = parts_drawn(&set, 0.1, 0.2, seed);
            assert!((0..30).step_by(3).all(|index| parts[index] == parts[index + 1]), "{parts:?}");
            assert_eq!((equal.overlapping, equal.together), (20, 0));
            apart += usize::from((0..30).step_by(3).any(|index| parts[index] != parts[index + 2]));
            let of = |part| parts.iter().filter(|own| **own == part).count();
            assert!((5..=7).contains(&of(2)) && (2..=4).contains(&of(1)), "{parts:?}");
        }
        assert!(apart > 15);
        // So they are for the validation of a training set that is given.
        let mut given = set.series().to_vec();
        for (index, series) in given.iter_mut().enumerate() {
            series.origin = if index < 27 { Origin::Train } else { Origin::Test };
        }
        let given = SeriesSet::new(set.channels().to_vec(), vec![], given).unwrap();
        for seed in 0..20 {
            let (parts, equal) = parts_given(&given, 0.3, seed, EqualPolicy::Error).unwrap();
            assert!((0..27).step_by(3).all(|index| parts[index] == parts[index + 1]), "{parts:?}");
            assert_eq!((equal.overlapping, equal.within), (18, 0));
            assert!((6..=10).contains(&parts.iter().filter(|own| **own == 1).count()));
        }
        assert_eq!(parts_given(&given, 0.0, 1, EqualPolicy::Error).unwrap().1.overlapping, 0);
        let equal = parts_drawn(&set, 0.1, 0.2, 1).1;
        let [said] = &equal.warnings()[..] else { panic!("{equal:?}") };
        assert!(said.starts_with("20 series have steps of another one"), "{said}");
        // At other times, it may be chance or another thing.
        let mut later = set.series().to_vec();
        later.iter_mut().enumerate().for_each(|(index, series)| {
            series.time = series.time.iter().map(|time| time + index as i64).collect();
        });
        let later = SeriesSet::new(set.channels().to_vec(), vec![], later).unwrap();
        assert_eq!(parts_drawn(&later, 0.1, 0.2, 1).1, EqualSeries::default());
    }

    /// Series of one value each, of these groups and classes.
    fn of_groups(series: &[(Option<u32>, u32, Origin)]) -> SeriesSet {
        let all = series.iter().enumerate().map(|(index, (_, class, origin))| Series {
            labels: StepLabels::Whole(*class),
            origin: *origin,
            ..Series::regular(format!("s{index}"), 0, 1, vec![index as f64; 5], 1)
        });
        let channels = vec![Channel::new("x", Role::Other)];
        let classes = ["a", "b", "c"].map(str::to_owned).to_vec();
        let set = SeriesSet::new(channels, classes, all.collect()).unwrap();
        let group = |(index, (group, ..)): (usize, &(Option<u32>, u32, Origin))| {
            Some((format!("s{index}"), Arc::from(format!("g{}", (*group)?))))
        };
        set.grouped(&series.iter().enumerate().filter_map(group).collect())
    }

    #[test]
    fn series_of_one_group_stand_together_and_are_drawn_for_one_part() {
        let mut draws = Stream::new(4, "groups").draws();
        for seed in 0..60 {
            let all: Vec<_> = (0..80)
                .map(|_| {
                    let group = Some(draws.below(12) as u32).filter(|group| *group < 11);
                    (group, draws.below(3) as u32, Origin::Unassigned)
                })
                .collect();
            let set = of_groups(&all);
            let units = set.units();
            assert!(units.is_sorted(), "{units:?}");
            let groups = set.series().iter().filter_map(|series| series.group.clone());
            let groups: std::collections::BTreeSet<_> = groups.collect();
            assert_eq!(set.groups(), groups.len());
            let (parts, equal) = parts_drawn(&set, 0.2, 0.3, seed);
            let apart = (0..80).find(|index| parts[*index] != parts[units[*index]]);
            assert_eq!((apart, equal), (None, EqualSeries::default()), "{seed}: {parts:?}");
            let of = |part| parts.iter().filter(|own| **own == part).count();
            // A group has about seven series.
            assert!(of(2).abs_diff(24) <= 7 && of(1).abs_diff(16) <= 7, "{seed}: {parts:?}");
            // So it is for the validation of a given training set.
            let given: Vec<_> = all
                .iter()
                .map(|(group, class, _)| match group {
                    Some(0 | 1) => (*group, *class, Origin::Test),
                    _ => (*group, *class, Origin::Train),
                })
                .collect();
            let given = of_groups(&given);
            let (parts, _) = parts_given(&given, 0.3, seed, EqualPolicy::Error).unwrap();
            let units = given.units();
            assert!((0..80).all(|index| parts[index] == parts[units[index]]), "{seed}: {parts:?}");
            assert!(parts.contains(&1) && parts.contains(&0));
        }
    }

    #[test]
    fn series_whose_steps_are_all_of_one_class_are_drawn_evenly_from_each() {
        let set = |labels: &dyn Fn(u32) -> StepLabels| {
            let series = (0..40).map(|index| Series {
                labels: labels(index),
                ..Series::regular(format!("s{index}"), 0, 1, vec![f64::from(index); 5], 1)
            });
            let channels = vec![Channel::new("x", Role::Other)];
            let classes = ["a", "b"].map(str::to_owned).to_vec();
            SeriesSet::new(channels, classes, series.collect()).unwrap()
        };
        let by_steps = |index: u32| {
            let label = Some(u32::from(index >= 30));
            StepLabels::PerStep(vec![None, label, label, None, label])
        };
        let (steps, whole) =
            (set(&by_steps), set(&|index| StepLabels::Whole(u32::from(index >= 30))));
        for seed in 0..20 {
            let (parts, _) = parts_drawn(&steps, 0.1, 0.2, seed);
            assert_eq!(parts, parts_drawn(&whole, 0.1, 0.2, seed).0);
            let of = |from: usize, to: usize| parts[from..to].iter().filter(|p| **p == 2).count();
            assert_eq!([of(0, 30), of(30, 40)], [6, 2]);
        }
        // A series of several classes has none.
        let mixed = set(&|index| StepLabels::PerStep([0, 1, 0, 1, index % 2].map(Some).to_vec()));
        assert_eq!(
            parts_drawn(&mixed, 0.1, 0.2, 1),
            parts_drawn(&set(&|_| StepLabels::None), 0.1, 0.2, 1)
        );
    }

    #[test]
    fn a_share_is_advised_however_many_series_the_few_groups_have() {
        let all: Vec<_> =
            (0..1000).map(|index| (Some(index / 250), 0, Origin::Unassigned)).collect();
        let set = Arc::new(of_groups(&all));
        let of = |validation| {
            let by_series = SplitRule::Series { validation, test: 0.2, seed: 1 };
            split(&set, &rule(5, 1), &by_series, &Labels::None)
        };
        // A group of 250 is as near to 125 series as none is, and farther from 124.
        let said = of(0.1).unwrap_err().to_string();
        let expected = "give it a larger share, as by split.series.validation = 0.125, or more";
        assert!(said.contains(expected), "{said}");
        assert!(of(0.124).is_err());
        assert_eq!(of(0.125).unwrap().validation.len(), 250);
    }

    #[test]
    fn a_share_is_advised_in_the_time_that_groups_of_many_series_take_and_not_its_square() {
        let all: Vec<_> =
            (0..200_000).map(|index| (Some(index / 50_000), 0, Origin::Unassigned)).collect();
        let set = Arc::new(of_groups(&all));
        let by_series = SplitRule::Series { validation: 0.1, test: 0.2, seed: 1 };
        let begun = std::time::Instant::now();
        let said = split(&set, &rule(5, 1), &by_series, &Labels::None).unwrap_err().to_string();
        // Minutes, if each member of a group were compared with each.
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{:?}", begun.elapsed());
        assert!(said.contains("as by split.series.validation = 0.125, or more"), "{said}");
    }

    #[test]
    fn the_least_number_is_found_of_many() {
        let from = |least: usize, end| least_of(end, |number| number >= least);
        for (end, all) in [
            (1, &[][..]),
            (2, &[1][..]),
            (101, &[1, 2, 50, 99, 100][..]),
            (102, &[1, 2, 3, 99, 100][..]),
            (1000, &[1, 2, 11, 12, 125, 131, 990][..]),
            (10_001, &[1, 2, 101, 102, 5_000, 9_900][..]),
            (1_000_000, &[1, 123_456][..]),
        ] {
            assert_eq!((from(end, end), least_of(end, |_| false)), (None, None), "{end}");
            for least in all {
                assert_eq!(from(*least, end), Some(*least), "{least} below {end}");
            }
        }
    }

    #[test]
    fn without_groups_nothing_is_drawn_otherwise() {
        let all: Vec<_> = (0..40).map(|index| (None, index % 3, Origin::Unassigned)).collect();
        let set = of_groups(&all);
        assert_eq!((set.groups(), set.units()), (0, (0..40).collect()));
        // Groups of one are no groups.
        let alone: Vec<_> =
            (0..40).map(|index| (Some(index), index % 3, Origin::Unassigned)).collect();
        for seed in 0..20 {
            assert_eq!(
                parts_drawn(&set, 0.2, 0.3, seed),
                parts_drawn(&of_groups(&alone), 0.2, 0.3, seed)
            );
        }
    }

    #[test]
    fn training_series_of_groups_of_test_series_are_refused_or_left_out() {
        let all: Vec<_> = (0..12)
            .map(|index| {
                let origin = if index < 9 { Origin::Train } else { Origin::Test };
                (Some(index / 2), index % 2, origin)
            })
            .collect();
        // `s8` is of the group of `s9`.
        let set = Arc::new(of_groups(&all));
        let given = |equal| SplitRule::Given { validation: 0.3, seed: 2, equal };
        let of = |equal| split(&set, &rule(5, 1), &given(equal), &Labels::None);
        let said = of(EqualPolicy::Error).unwrap_err().to_string();
        let expected = "1 series of the training files is of groups that test files have, such as `s8` and `s9` of the group `g4`: ";
        assert!(said.starts_with(expected) && said.contains("split.given.equal=drop"), "{said}");
        let dropped = of(EqualPolicy::Drop).unwrap();
        assert_eq!((dropped.equal.left_out.clone(), dropped.equal.grouped), (vec![8], 1));
        let seen = dropped.train.windows().iter().chain(dropped.validation.windows());
        assert_eq!(seen.filter(|window| window.series == 8).count(), 0);
        let [warning] = &dropped.equal.warnings()[..] else { panic!("{:?}", dropped.equal) };
        let expected = "1 series of the training files is of groups of the test files, such as `s8`, of the group of `s9`, and is left out";
        assert!(warning.starts_with(expected), "{warning}");
        let kept = of(EqualPolicy::Keep).unwrap();
        assert_eq!(kept.train.len() + kept.validation.len(), 9);
        assert!(kept.equal.warnings()[0].contains("what is alike in a group"));
    }

    #[test]
    fn training_series_that_have_steps_of_test_series_are_refused_or_left_out() {
        let mut draws = Stream::new(1, "bars").draws();
        let bars: Vec<f64> = (0..900).map(|_| draws.uniform_f64()).collect();
        let of = |name: &str, from: usize, to: usize, origin| Series {
            origin,
            ..Series::regular(name, from as i64 * 1000, 1000, bars[from..to].to_vec(), 1)
        };
        let set = |test: [usize; 2]| {
            let series = vec![
                of("old", 10, 300, Origin::Train),
                of("first", 300, 500, Origin::Train),
                of("second", 500, 700, Origin::Train),
                of("test", test[0], test[1], Origin::Test),
            ];
            let channels = vec![Channel::new("x", Role::Other)];
            Arc::new(SeriesSet::new(channels, vec![], series).unwrap())
        };
        let split_by = |test, equal| {
            let given = SplitRule::Given { validation: 0.0, seed: 1, equal };
            split(&set(test), &rule(20, 5), &given, &Labels::None)
        };
        let said = split_by([400, 600], EqualPolicy::Error).unwrap_err().to_string();
        let expected = "2 series of the training files have steps of the test files, with the same times and values, such as `first`, which has 100 steps of `test`: ";
        assert!(said.starts_with(expected) && said.contains("split.given.equal=drop"), "{said}");
        let one = split_by([650, 800], EqualPolicy::Error).unwrap_err().to_string();
        assert!(one.starts_with("1 series of the training files has steps"), "{one}");
        assert!(split_by([690, 900], EqualPolicy::Error).is_ok(), "10 steps may be chance");
        let dropped = split_by([400, 600], EqualPolicy::Drop).unwrap();
        assert!(dropped.train.windows().iter().all(|window| window.series == 0));
        assert_eq!((dropped.equal.left_out.clone(), dropped.equal.within), (vec![1, 2], 2));
        let [warning] = &dropped.equal.warnings()[..] else { panic!("{:?}", dropped.equal) };
        assert!(warning.ends_with("are left out of training and validation"), "{warning}");
        let kept = split_by([400, 600], EqualPolicy::Keep).unwrap();
        assert!(kept.train.len() > dropped.train.len() && kept.equal.within == 2);
        assert!(kept.equal.warnings()[0].contains("may be too good"));
    }
}
