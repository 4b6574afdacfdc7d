//! Divides windows by two moments in time that hold for all series.

use crate::{Series, SeriesSet, Window};

/// The first moment of validation and the first of the test, so that each part holds its share of
/// all steps.
pub(super) fn boundaries(set: &SeriesSet, validation: f64, test: f64) -> [i64; 2] {
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
pub(super) fn part_by_time(
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::split::tests::{rule, set};
    use crate::{Labels, SplitRule, split};

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
}
