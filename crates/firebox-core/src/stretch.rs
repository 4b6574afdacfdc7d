//! Stretches of steps that two data have in common: the same times and the same values, one step after the other, whatever
//! their series are called and wherever they begin or end. Labels are not compared.
//!
//! Blocks of half the shortest stretch are looked up by their hash, so that the time it takes grows with the number of steps
//! and not with that of pairs. What is found is compared value by value.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::ops::Range;

use rayon::prelude::*;

use crate::equal::{is_copy, single_bits};
use crate::{Series, SeriesSet, Window};

/// Fewest steps that are evidence of one origin. A choice: less may be chance.
pub const LEAST_STRETCH: usize = 16;

/// Fewest different steps among them. A choice: what hardly changes, as a closed market, is the same in many series.
const DISTINCT: usize = 8;

/// Steps whose hash is looked up: wherever a stretch begins, it has so many that begin at a multiple of it.
const BLOCK: usize = LEAST_STRETCH.div_ceil(2);

/// Places that are compared of those with one hash: there are more only where series of one side share steps.
const PLACES: usize = 4;

/// Steps on each side of a block that are compared first: most stretches are told from chance by them.
const NEAR: usize = LEAST_STRETCH;

/// Steps that are hashed at a time.
const AT_ONCE: usize = 1 << 16;

/// An odd number near 2⁶⁴ divided by the golden ratio, which spreads what it multiplies over all bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c55;

/// Steps of a set of series, and the channels by which they are told apart.
#[derive(Clone, Debug)]
pub struct Steps<'a> {
    set: &'a SeriesSet,
    channels: Vec<usize>,
    ranges: Vec<(usize, Range<usize>)>,
}

/// Steps that are in both of two data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedStretch {
    /// The series of each, as an index into its set.
    pub series: [usize; 2],
    /// Time of the first step.
    pub start: i64,
    /// Number of steps.
    pub steps: usize,
}

/// Adds a run of steps, as a part of the last one if it begins within it or where it ends. False if it comes before that.
fn join(ranges: &mut Vec<(usize, Range<usize>)>, series: usize, steps: Range<usize>) -> bool {
    match ranges.last_mut() {
        Some((last, range)) if (*last, range.start) > (series, steps.start) => {
            ranges.push((series, steps));
            false
        }
        Some((last, range)) if *last == series && steps.start <= range.end => {
            range.end = range.end.max(steps.end);
            true
        }
        _ => {
            ranges.push((series, steps));
            true
        }
    }
}

impl<'a> Steps<'a> {
    /// All steps of some series.
    pub fn of_series(set: &'a SeriesSet, series: impl IntoIterator<Item = usize>) -> Self {
        let all = series.into_iter().map(|index| (index, 0..set.series()[index].len()));
        Self { set, channels: (0..set.channels().len()).collect(), ranges: all.collect() }
    }

    /// All steps that some windows of its series have.
    pub fn of_windows(
        set: &'a SeriesSet,
        windows: impl IntoIterator<Item: Borrow<Window>>,
    ) -> Self {
        let mut ranges: Vec<(usize, Range<usize>)> = Vec::new();
        let mut is_sorted = true;
        // Most windows overlap the one before, so that few runs have to be held.
        for window in windows {
            let window = window.borrow();
            let (series, steps) = (window.series as usize, window.steps());
            is_sorted &= join(&mut ranges, series, steps);
        }
        if !is_sorted {
            let mut all = std::mem::take(&mut ranges);
            all.sort_unstable_by_key(|(series, steps)| (*series, steps.start, steps.end));
            all.into_iter().for_each(|(series, steps)| _ = join(&mut ranges, series, steps));
        }
        Self { set, channels: (0..set.channels().len()).collect(), ranges }
    }

    /// Each series, as an index into the set, with a run of its steps; no two runs touch.
    pub fn runs(&self) -> &[(usize, Range<usize>)] {
        &self.ranges
    }

    /// Each of them once: the series, as an index into the set, and the step.
    pub(crate) fn each(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.ranges.iter().flat_map(|(series, steps)| steps.clone().map(|step| (*series, step)))
    }

    /// The series of which `other` steps of the same set have some of these, as indices into it. Both must be of windows.
    pub fn series_in_both(&self, other: &Self) -> Vec<usize> {
        let is_there = |(series, steps): &&(usize, Range<usize>)| {
            let ends_before = |(index, range): &(usize, Range<usize>)| {
                (*index, range.end) <= (*series, steps.start)
            };
            let at = other.ranges.partition_point(ends_before);
            let first = other.ranges.get(at);
            first.is_some_and(|(index, range)| index == series && range.start < steps.end)
        };
        let found = self.ranges.iter().filter(is_there).map(|(series, _)| *series);
        let mut found: Vec<usize> = found.collect();
        found.dedup();
        found
    }

    /// The same, told apart by these channels, which the set must have.
    #[must_use]
    pub fn told_by(mut self, names: &[&str]) -> Self {
        let channels = self.set.channels();
        let place = |name: &&str| channels.iter().position(|channel| channel.name == *name);
        self.channels = names.iter().filter_map(place).collect();
        self
    }

    /// Those of series with times.
    #[must_use]
    pub(crate) fn with_times(mut self) -> Self {
        self.ranges.retain(|(series, _)| has_times(&self.set.series()[*series]));
        self
    }

    fn series(&self, range: usize) -> &Series {
        &self.set.series()[self.ranges[range].0]
    }

    /// First and last time.
    fn span(&self) -> Option<[i64; 2]> {
        let mut spans =
            self.ranges.iter().filter(|(_, steps)| !steps.is_empty()).map(|(series, steps)| {
                let time = &self.set.series()[*series].time;
                [time[steps.start], time[steps.end - 1]]
            });
        let first = spans.next()?;
        Some(spans.fold(first, |[from, to], [start, end]| [from.min(start), to.max(end)]))
    }

    /// The steps of a range that lie in a span of time.
    fn within(&self, range: usize, [from, to]: [i64; 2]) -> Range<usize> {
        let steps = self.ranges[range].1.clone();
        let times = &self.series(range).time[steps.clone()];
        let start = times.partition_point(|time| *time < from);
        let end = times.partition_point(|time| *time <= to);
        steps.start + start..steps.start + end.max(start)
    }

    /// A hash of the time and the values of each of some steps.
    fn hashes(&self, range: usize, steps: Range<usize>) -> Vec<u64> {
        let (series, width) = (self.series(range), self.set.channels().len());
        let times = &series.time[steps.clone()];
        let mut hashes = Vec::with_capacity(steps.len());
        series.values.rows(steps.start * width..steps.end * width, width, |values| {
            for row in values.chunks_exact(width) {
                let time = mixed(SPREAD, times[hashes.len()].cast_unsigned());
                let value = |hash, channel: &usize| mixed(hash, bits(row[*channel]));
                hashes.push(self.channels.iter().fold(time, value));
            }
        });
        hashes
    }

    /// The values of a step.
    fn values(&self, range: usize, step: usize) -> impl Iterator<Item = f64> {
        let (series, width) = (self.series(range), self.set.channels().len());
        self.channels.iter().map(move |channel| series.values.at(step * width + channel))
    }

    fn is_equal(&self, (range, step): (usize, usize), other: &Self, at: (usize, usize)) -> bool {
        self.series(range).time[step] == other.series(at.0).time[at.1]
            && self.values(range, step).zip(other.values(at.0, at.1)).all(|(a, b)| is_copy(a, b))
    }

    /// Whether steps of a range are too many different ones to be the same by chance: as they are, or as they were before
    /// one of the two was stored as f32.
    fn is_evidence(&self, range: usize, steps: Range<usize>) -> bool {
        let mut found = HashSet::new();
        let exactly = |value: f64| if value == 0.0 { 0 } else { value.to_bits() };
        let values = |step: usize| self.values(range, step).map(exactly);
        // Of a long run of one value, each step is told from the one before it alone.
        let is_new = |step: &usize| *step == steps.start || !values(*step).eq(values(*step - 1));
        steps.len() >= LEAST_STRETCH
            && steps.clone().filter(is_new).any(|step| {
                found.insert(values(step).collect::<Vec<u64>>());
                found.len() >= DISTINCT
            })
    }
}

/// Whether a series has times, not the numbers of its steps in place of them.
fn has_times(series: &Series) -> bool {
    // They increase: with these ends, they are 0, 1, 2, ….
    let ends = [series.time.first(), series.time.last()].map(|time| time.copied());
    ends != [Some(0), Some(series.len() as i64 - 1)]
}

/// For each series of `trained` that has a stretch of steps of `tested`, of [`LEAST_STRETCH`] and more and not all alike,
/// the first that was found. Series without times have the numbers of their steps as times.
pub fn shared_stretches(trained: &Steps<'_>, tested: &Steps<'_>) -> Vec<SharedStretch> {
    let Some(span) = tested.span() else { return Vec::new() };
    if trained.channels.is_empty() || trained.channels.len() != tested.channels.len() {
        return Vec::new();
    }
    let places: Vec<(usize, Range<usize>)> = (0..trained.ranges.len())
        .map(|range| (range, trained.within(range, span)))
        .filter(|(_, steps)| steps.len() >= LEAST_STRETCH)
        .collect();
    if places.is_empty() {
        return Vec::new();
    }
    let known = Known::of(tested);
    let first = |of| known.found_in(trained, of, 1, None);
    let mut found: Vec<SharedStretch> = places.into_par_iter().flat_map_iter(first).collect();
    found.dedup_by_key(|stretch| stretch.series[0]);
    found
}

/// Steps of a set in which stretches that two series share are looked for, at most: what is known of blocks takes a
/// dozen bytes for each. A choice.
const MOST_WITHIN: usize = 1 << 25;

/// Pairs of these series that have a stretch of steps in common, as [`shared_stretches`] finds them. Not every pair where
/// more than two share one, but as many as join them all. None of more steps than can be looked through.
pub(crate) fn stretches_within(steps: &Steps<'_>) -> Vec<[usize; 2]> {
    let all: usize = steps.ranges.iter().map(|(_, steps)| steps.len()).sum();
    if steps.channels.is_empty() || steps.ranges.len() < 2 || all > MOST_WITHIN {
        return Vec::new();
    }
    let known = Known::of(steps);
    let of = |range: usize| {
        let (own, all) = &steps.ranges[range];
        let found = known.found_in(steps, (range, all.clone()), usize::MAX, Some(*own));
        found.into_iter().map(|stretch| stretch.series)
    };
    (0..steps.ranges.len()).into_par_iter().flat_map_iter(of).collect()
}

/// Where blocks of steps are, by their hashes.
struct Known<'a> {
    steps: &'a Steps<'a>,
    places: HashMap<u64, Vec<(usize, usize)>, BuildHasherDefault<DefaultHasher>>,
}

impl<'a> Known<'a> {
    fn of(steps: &'a Steps<'a>) -> Self {
        let mut places = HashMap::<_, Vec<(usize, usize)>, _>::default();
        for (range, (_, own)) in steps.ranges.iter().enumerate() {
            for start in own.clone().step_by(AT_ONCE) {
                let hashes = steps.hashes(range, start..own.end.min(start + AT_ONCE));
                for (place, block) in hashes.chunks_exact(BLOCK).enumerate() {
                    let of_block = places.entry(block.iter().fold(0, rolled)).or_default();
                    if of_block.len() < PLACES {
                        of_block.push((range, start + place * BLOCK));
                    }
                }
            }
        }
        Self { steps, places }
    }

    /// Stretches among some steps of a range, one with each known range and so many at most, but for those with this series.
    /// Only the last of so many is compared to its ends.
    fn found_in(
        &self,
        trained: &Steps<'_>,
        (range, steps): (usize, Range<usize>),
        most: usize,
        own: Option<usize>,
    ) -> Vec<SharedStretch> {
        let mut found = Vec::new();
        // The step from which on each known range is looked at again. What others have behind a long run of one value is no
        // part of that run, so that each range is passed over by itself.
        let mut until = HashMap::<usize, usize>::new();
        for start in steps.clone().step_by(AT_ONCE) {
            let end = steps.end.min(start + AT_ONCE + BLOCK - 1);
            let blocks = of_blocks(&trained.hashes(range, start..end));
            for (step, hash) in (start..).zip(blocks) {
                for place in self.places.get(&hash).into_iter().flatten() {
                    let known = self.steps.ranges[place.0].0;
                    let is_done = || until.get(&place.0).is_some_and(|until| step < *until);
                    if own == Some(known) || is_done() {
                        continue;
                    }
                    let other = place.0;
                    let compared = |reach: usize| {
                        let (from, to) = self.extent(trained, (range, step), *place, reach);
                        let begin = place.1 - (step - from);
                        let is_evidence = trained.is_evidence(range, from..to)
                            || self.steps.is_evidence(other, begin..begin + (to - from));
                        (from, to, is_evidence)
                    };
                    let (mut from, mut to, mut is_evidence) = compared(NEAR);
                    if !is_evidence || found.len() + 1 == most {
                        (from, to, is_evidence) = compared(usize::MAX);
                    }
                    if is_evidence {
                        found.push(SharedStretch {
                            series: [trained.ranges[range].0, known],
                            start: trained.series(range).time[from],
                            steps: to - from,
                        });
                        if found.len() == most {
                            return found;
                        }
                    }
                    until.insert(other, if is_evidence { steps.end } else { to });
                }
            }
        }
        found
    }

    /// The steps around one of `trained` that equal those around a known one, so many on each side at most.
    fn extent(
        &self,
        trained: &Steps<'_>,
        (range, step): (usize, usize),
        (place, at): (usize, usize),
        reach: usize,
    ) -> (usize, usize) {
        let (ours, known) = (&trained.ranges[range].1, &self.steps.ranges[place].1);
        let is_equal =
            |one: usize, other: usize| trained.is_equal((range, one), self.steps, (place, other));
        let before = (1..=(step - ours.start).min(at - known.start).min(reach))
            .take_while(|back| is_equal(step - back, at - back));
        let after = (0..(ours.end - step).min(known.end - at).min(reach))
            .take_while(|on| is_equal(step + on, at + on));
        (step - before.count(), step + after.count())
    }
}

/// The hash of each block of consecutive steps, made from the one before it.
fn of_blocks(hashes: &[u64]) -> Vec<u64> {
    let Some(first) = hashes.get(..BLOCK) else { return Vec::new() };
    let mut hash = first.iter().fold(0, rolled);
    let oldest = (1..BLOCK).fold(1u64, |power, _| power.wrapping_mul(SPREAD));
    let mut blocks = Vec::with_capacity(hashes.len() - BLOCK + 1);
    blocks.push(hash);
    for (gone, new) in hashes.iter().zip(&hashes[BLOCK..]) {
        hash = rolled(hash.wrapping_sub(gone.wrapping_mul(oldest)), new);
        blocks.push(hash);
    }
    blocks
}

fn rolled(hash: u64, step: &u64) -> u64 {
    hash.wrapping_mul(SPREAD).wrapping_add(*step)
}

fn mixed(hash: u64, bits: u64) -> u64 {
    let hash = (hash ^ bits).wrapping_mul(SPREAD);
    hash ^ (hash >> 29)
}

/// Of a value and of its copy that was stored as f32.
fn bits(value: f64) -> u64 {
    u64::from(single_bits(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Channel, Role, Stream};

    const MINUTE: i64 = 60_000_000;
    const DAY: i64 = 1_700_000_000_000_000;

    /// Two channels of a walk.
    fn walk(name: &str, steps: usize) -> Vec<f64> {
        let mut draws = Stream::new(3, name).draws();
        (0..2 * steps).map(|_| draws.uniform_f64()).collect()
    }

    fn series(name: &str, start: i64, values: &[f64]) -> Series {
        Series::regular(name, DAY + start * MINUTE, MINUTE, values.to_vec(), 2)
    }

    fn set(series: Vec<Series>) -> SeriesSet {
        let channels = ["x", "y"].map(|name| Channel::new(name, Role::Other));
        SeriesSet::new(channels.to_vec(), vec![], series).unwrap()
    }

    fn shared(trained: &SeriesSet, tested: &SeriesSet) -> Vec<SharedStretch> {
        let all = |set: &SeriesSet| 0..set.series().len();
        shared_stretches(
            &Steps::of_series(trained, all(trained)),
            &Steps::of_series(tested, all(tested)),
        )
    }

    #[test]
    fn runs_are_what_windows_cover_in_any_order() {
        let set = set(["a", "b"].map(|name| series(name, 0, &walk(name, 90))).to_vec());
        let mut draws = Stream::new(5, "windows").draws();
        for count in [0, 1, 2, 5, 20, 60] {
            let window = |_| Window {
                series: draws.below(2) as u32,
                start: draws.below(80) as u32,
                length: 1 + draws.below(9) as u32,
                label: None,
            };
            let mut windows: Vec<Window> = (0..count).map(window).collect();
            let in_any_order = Steps::of_windows(&set, &windows).runs().to_vec();
            let all = windows.iter().flat_map(|own| own.steps().map(|step| (own.series, step)));
            let covered: std::collections::BTreeSet<_> = all.collect();
            let of_runs: Vec<_> = in_any_order
                .iter()
                .flat_map(|(series, steps)| steps.clone().map(|step| (*series as u32, step)))
                .collect();
            assert_eq!(of_runs, covered.into_iter().collect::<Vec<_>>());
            let touch = |pair: &[(usize, Range<usize>)]| {
                pair[0].0 == pair[1].0 && pair[0].1.end >= pair[1].1.start
            };
            assert!(!in_any_order.windows(2).any(touch), "{in_any_order:?}");
            windows.sort_unstable_by_key(|window| (window.series, window.start, window.length));
            assert_eq!(Steps::of_windows(&set, &windows).runs(), in_any_order);
        }
    }

    #[test]
    fn series_of_which_both_choices_have_a_step_are_found_however_short_that_is() {
        let set = set(["a", "b", "c"].map(|name| series(name, 0, &walk(name, 40))).to_vec());
        let window = |series, start, length| Window { series, start, length, label: None };
        let of = |windows: &[Window]| Steps::of_windows(&set, windows);
        let seen = of(&[window(2, 0, 40), window(0, 20, 5), window(0, 0, 10), window(0, 30, 5)]);
        let found = |windows: &[Window]| of(windows).series_in_both(&seen);
        assert!(found(&[window(0, 10, 10), window(0, 25, 5), window(0, 35, 5)]).is_empty());
        assert!(found(&[window(1, 0, 40)]).is_empty());
        assert_eq!(found(&[window(0, 10, 11)]), [0]);
        assert_eq!(found(&[window(0, 34, 6), window(0, 9, 2), window(2, 5, 1)]), [0, 2]);
    }

    #[test]
    fn copies_in_f32_are_found_and_levels_that_it_cannot_tell_apart_are_told_by_what_they_were() {
        let copy = |values: &[f64]| -> Vec<f64> {
            values.iter().map(|value| f64::from(*value as f32)).collect()
        };
        let fine = walk("fine", 400);
        let one = |values: &[f64], start: i64| set(vec![series("s", start, values)]);
        for (ours, theirs) in [(fine.clone(), copy(&fine)), (copy(&fine), fine.clone())] {
            let [found] = &shared(&one(&ours, 0), &one(&theirs[200..], 100))[..] else {
                panic!("one stretch")
            };
            assert_eq!(found.steps, 300);
        }
        // A counter far from zero, whose steps f32 has as a few numbers.
        let counter: Vec<f64> = (0..800).map(|at| 1.7e9 + 0.25 * f64::from(at)).collect();
        let found = shared(&one(&counter, 0), &one(&counter[200..], 100));
        assert_eq!(found.iter().map(|one| one.steps).collect::<Vec<_>>(), [300]);
        // Another one, of the same numbers in f32, is no copy of it.
        let other: Vec<f64> = counter.iter().map(|value| value + 0.125).collect();
        assert!(shared(&one(&counter, 0), &one(&other, 0)).is_empty());
    }

    #[test]
    fn a_part_of_one_series_and_one_that_spans_two_are_found() {
        let bars = walk("bars", 4000);
        let trained = set(vec![
            series("far", 0, &walk("far", 4000)),
            series("first", 0, &bars[..4000]),
            series("second", 2000, &bars[4000..]),
        ]);
        let of = |from: usize, to: usize| {
            set(vec![series("test", from as i64, &bars[2 * from..2 * to])])
        };
        let found = |from: usize, to: usize| -> Vec<([usize; 2], usize)> {
            let all = shared(&trained, &of(from, to));
            all.into_iter().map(|stretch| (stretch.series, stretch.steps)).collect()
        };
        assert_eq!(found(101, 333), [([1, 0], 232)]);
        assert_eq!(found(1507, 3001), [([1, 0], 493), ([2, 0], 1001)]);
        assert_eq!(shared(&trained, &of(1507, 3001))[1].start, DAY + 2000 * MINUTE);
        // The shortest that counts, wherever it begins; less is chance.
        for from in 700..720 {
            assert_eq!(found(from, from + LEAST_STRETCH), [([1, 0], LEAST_STRETCH)], "{from}");
            assert_eq!(found(from, from + LEAST_STRETCH - 1), []);
            assert_eq!(found(1984 + from - 700, 2100).len(), if from == 700 { 2 } else { 1 });
        }
    }

    #[test]
    fn a_stretch_is_found_over_the_ends_of_what_is_hashed_at_once() {
        let bars = walk("long", AT_ONCE + 400);
        let trained = set(vec![series("long", 0, &bars)]);
        for from in [AT_ONCE - 20, AT_ONCE - LEAST_STRETCH, AT_ONCE - 7, AT_ONCE] {
            let mut other = walk("other", AT_ONCE + 400);
            let part = 2 * from..2 * (from + LEAST_STRETCH);
            other[part.clone()].copy_from_slice(&bars[part]);
            let tested = set(vec![series("test", 0, &other)]);
            for [one, two] in [[&trained, &tested], [&tested, &trained]] {
                let found = shared(one, two);
                assert_eq!(found.len(), 1, "{from}");
                assert_eq!(found[0].steps, LEAST_STRETCH, "{from}");
            }
        }
    }

    #[test]
    fn other_times_other_values_and_what_hardly_changes_are_no_evidence() {
        let bars = walk("bars", 300);
        let trained = set(vec![series("bars", 0, &bars)]);
        assert_eq!(shared(&trained, &set(vec![series("bars", 1, &bars)])), []);
        // Another market of the same name and times.
        assert_eq!(shared(&trained, &set(vec![series("bars", 0, &walk("other", 300))])), []);
        let mut every = bars.clone();
        every.iter_mut().step_by(2 * (LEAST_STRETCH - 1)).for_each(|value| *value += 1.0);
        assert_eq!(shared(&trained, &set(vec![series("bars", 0, &every)])), []);
        let flat: Vec<f64> = (0..40_000).map(|value| f64::from(value / 10_000)).collect();
        let flats = |name| set(vec![series(name, 0, &flat)]);
        assert_eq!(shared(&flats("one"), &flats("other")), []);
        // Behind such a run, it is found.
        let both = |name| set(vec![series(name, 0, &[&flat[..], &bars[..]].concat())]);
        assert_eq!(shared(&both("one"), &both("other")).len(), 1);
    }

    #[test]
    fn a_stretch_that_begins_in_a_run_of_one_value_is_found_whoever_else_has_that_run() {
        let flat = vec![5.0; 2 * 100];
        let behind = |name: &str| [&flat[..], &walk(name, 100)[..]].concat();
        let (first, other) = (behind("first"), behind("other"));
        // 50 steps of that run and 7 behind it: 8 different ones.
        let copy = [&first[2 * 50..2 * 107], &walk("copy", 93)[..]].concat();
        let trained = set(vec![series("first", 0, &first)]);
        let tested = set(vec![series("other", 0, &other), series("copy", 50, &copy)]);
        let expected = SharedStretch { series: [0, 1], start: DAY + 50 * MINUTE, steps: 57 };
        assert_eq!(shared(&trained, &tested), [expected]);
    }

    #[test]
    fn days_that_two_series_share_are_found_where_all_have_the_same_nights() {
        // Seven hours a day are not zero, up to midnight.
        let days = |name: &str, from: usize, to: usize| {
            let mut values = walk(name, 24 * 45)[2 * 24 * from..2 * 24 * to].to_vec();
            let hours = values.chunks_exact_mut(2).enumerate();
            hours.filter(|(hour, _)| hour % 24 < 17).for_each(|(_, values)| values.fill(0.0));
            values
        };
        let mut all: Vec<Series> =
            ["p", "q", "r", "s"].map(|name| series(name, 0, &days(name, 0, 45))).to_vec();
        all.push(series("december", 0, &days("plant", 0, 30)));
        all.push(series("january", 24 * 15, &days("plant", 15, 45)));
        let all = set(all);
        let mut pairs = stretches_within(&Steps::of_series(&all, 0..6));
        pairs.iter_mut().for_each(|pair| pair.sort_unstable());
        pairs.dedup();
        assert_eq!(pairs, [[4, 5]]);
        let of = |series: Range<usize>| Steps::of_series(&all, series);
        let found = shared_stretches(&of(5..6), &of(0..5));
        assert_eq!(
            found.iter().map(|one| (one.series, one.steps)).collect::<Vec<_>>(),
            [([5, 4], 360)]
        );
    }

    #[test]
    fn steps_of_windows_and_common_channels_alone_are_compared() {
        let bars = walk("bars", 200);
        let one = set(vec![series("one", 0, &bars)]);
        let more: Vec<f64> = bars.chunks(2).flat_map(|row| [row[1], 7.0, row[0]]).collect();
        let channels = ["y", "new", "x"].map(|name| Channel::new(name, Role::Other));
        let wide = Series::regular("wide", DAY, MINUTE, more, 3);
        let wide = SeriesSet::new(channels.to_vec(), vec![], vec![wide]).unwrap();
        let window = |start, length| Window { series: 0, start, length, label: None };
        let common = ["x", "y"];
        let found = |trained: &[Window], tested: &[Window]| {
            let trained = Steps::of_windows(&one, trained).told_by(&common);
            let tested = Steps::of_windows(&wide, tested).told_by(&common);
            shared_stretches(&trained, &tested).first().map(|stretch| stretch.steps)
        };
        let before = [window(10, 30), window(30, 30), window(0, 30)];
        assert_eq!(found(&before, &[window(60, 50)]), None);
        assert_eq!(found(&before, &[window(50, 50)]), None, "10 steps are too few");
        assert_eq!(found(&before, &[window(40, 50)]), Some(20));
        assert_eq!(found(&before, &[window(0, 200)]), Some(60));
    }

    #[test]
    fn steps_that_have_numbers_for_times_are_told_from_those_with_times() {
        let bars = walk("bars", 50);
        let numbered = Series::regular("numbered", 0, 1, bars.clone(), 2);
        let all = set(vec![numbered, series("timed", 0, &bars)]);
        assert_eq!(Steps::of_series(&all, 0..2).with_times().ranges, [(1, 0..50)]);
        assert_eq!(shared(&all, &all).len(), 2);
    }
}
