//! Divides windows by two moments in time that hold for all series.

use rayon::prelude::*;

use crate::{Series, SeriesSet, Window};

/// The first moment of validation and the first of the test, so that each part holds its share of
/// all steps.
pub(super) fn boundaries(set: &SeriesSet, validation: f64, test: f64) -> [i64; 2] {
    let moments = Moments::of(set);
    [moments.at(1.0 - validation - test), moments.at(1.0 - test)]
}

/// Steps whose times are sorted for it: 128 MiB. A choice.
const SORTED: usize = 1 << 24;

/// The times of all steps of all series, in their order. Of many steps they are looked for between the first and the last: a
/// copy of all times would be as large as a channel.
pub(crate) struct Moments<'a> {
    set: &'a SeriesSet,
    steps: usize,
    sorted: Option<Vec<i64>>,
}

impl<'a> Moments<'a> {
    pub(crate) fn of(set: &'a SeriesSet) -> Self {
        let steps = set.steps();
        let sorted = (steps <= SORTED).then(|| {
            let all = set.series().iter().flat_map(|series| &series.time);
            let mut times: Vec<i64> = all.copied().collect();
            times.sort_unstable();
            times
        });
        Self { set, steps, sorted }
    }

    /// The first moment behind a share of all steps.
    pub(crate) fn at(&self, share: f64) -> i64 {
        let index = (share * self.steps as f64).round() as usize;
        match &self.sorted {
            _ if index >= self.steps => i64::MAX,
            Some(times) => times[index],
            None => self.sought(index),
        }
    }

    /// The smallest moment with more steps than `index` until then, by halving.
    fn sought(&self, index: usize) -> i64 {
        let all = self.set.series();
        let until = |moment: i64| -> usize {
            let steps = |series: &Series| series.time.partition_point(|time| *time <= moment);
            all.par_iter().map(steps).sum()
        };
        let ends = |end: fn(&Series) -> Option<&i64>| all.iter().filter_map(end).copied();
        let first = ends(|series| series.time.first()).min().unwrap_or(0);
        let last = ends(|series| series.time.last()).max().unwrap_or(0);
        let (mut from, mut to) = (i128::from(first), i128::from(last));
        while from < to {
            let middle = (from + to).div_euclid(2);
            if until(middle as i64) > index {
                to = middle;
            } else {
                from = middle + 1;
            }
        }
        from as i64
    }
}

/// The first step of a series at or after each moment.
pub(crate) fn places<const N: usize>(series: &Series, moments: [i64; N]) -> [usize; N] {
    moments.map(|moment| series.time.partition_point(|time| *time < moment))
}

/// 0 training, 1 validation, 2 test, none when the window touches a boundary or a gap. `places` are those of the two
/// boundaries within its series.
pub(super) fn part_by_time(
    window: &Window,
    [validation, test]: [usize; 2],
    gap: usize,
    horizon: usize,
) -> Option<usize> {
    let steps = window.steps();
    // The gap is counted in steps of this series after each boundary that lies within it.
    let after = |boundary: usize| if boundary == 0 { 0 } else { boundary.saturating_add(gap) };
    let end = steps.end.saturating_add(horizon);
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::split::tests::{rule, set};
    use crate::{Channel, Labels, Role, SplitRule, Stream, split};

    #[test]
    fn a_moment_that_is_looked_for_is_the_one_that_sorting_finds() {
        let mut draws = Stream::new(5, "moments").draws();
        for case in 0..300 {
            // Times of both signs, near and far, some of them in several series.
            let reach = [3, 60, 1 << 40, 1 << 62][case % 4];
            let series = (0..1 + draws.below(5)).map(|index| {
                let mut time: Vec<i64> = (0..1 + draws.below(40))
                    .map(|_| (draws.below(2 * reach) as i64).wrapping_sub(reach as i64))
                    .collect();
                time.sort_unstable();
                time.dedup();
                let mut series =
                    Series::regular(format!("s{index}"), 0, 1, vec![0.5; time.len()], 1);
                series.time = time.into();
                series
            });
            let channels = vec![Channel::new("x", Role::Other)];
            let set = Arc::new(SeriesSet::new(channels, vec![], series.collect()).unwrap());
            let mut sorted: Vec<i64> = set.series().iter().flat_map(|s| s.time.to_vec()).collect();
            sorted.sort_unstable();
            let own = Moments::of(&set);
            let sought = Moments { set: &set, steps: own.steps, sorted: None };
            for share in [0.0, 0.1, 0.5, draws.uniform_f64(), 0.99, 1.0] {
                let index = (share * sorted.len() as f64).round() as usize;
                let expected = sorted.get(index).copied().unwrap_or(i64::MAX);
                assert_eq!(own.at(share), expected, "{share} of {sorted:?}");
                assert_eq!(sought.at(share), expected, "{share} of {sorted:?}");
            }
        }
    }

    #[test]
    fn a_series_that_equals_one_of_other_times_is_told_of() {
        let mut draws = Stream::new(3, "walk").draws();
        let walk: Vec<f64> = (0..200).map(|_| draws.normal()).collect();
        let told = |start: i64| {
            let series = [("a", 0), ("b", start)];
            let series =
                series.map(|(name, from)| Series::regular(name, from, 10, walk.clone(), 1));
            let channels = vec![Channel::new("x", Role::Other)];
            let set = Arc::new(SeriesSet::new(channels, vec![], series.to_vec()).unwrap());
            let parts = split(&set, &rule(10, 1), &SplitRule::time(0.2, 0.2), &Labels::None);
            parts.unwrap().equal.warnings()
        };
        assert!(told(0).is_empty(), "both are on one side of each boundary");
        let [said] = &told(2000)[..] else { panic!() };
        assert!(
            said.starts_with(
                "1 series equals another one, value for value, at other times, such as `a` and `b`"
            ),
            "{said}"
        );
    }

    #[test]
    fn no_step_is_shared_and_the_gap_is_kept() {
        let set = set(&[500, 300]);
        let labels = Labels::Forward { horizon: 3, threshold: 1.0 };
        let parts = split(&set, &rule(10, 1), &SplitRule::time(0.2, 0.2), &labels).unwrap();
        let [validation, test] = parts.boundaries.unwrap();
        let end = |w: &Window| set.series()[w.series as usize].time[w.steps().end - 1 + 3];
        let start = |w: &Window| set.series()[w.series as usize].time[w.steps().start];
        assert!(parts.train.windows().iter().all(|w| end(&w) < validation));
        let within = |w: Window| start(&w) >= validation + 130 && end(&w) < test;
        assert!(parts.validation.windows().iter().all(within));
        assert!(parts.test.windows().iter().all(|w| start(&w) >= test + 130));
        assert!(!parts.test.is_empty() && !parts.validation.is_empty() && parts.left_out > 0);
    }
}
