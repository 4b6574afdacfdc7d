//! Series whose steps are of another length than those of the data. Each would pass as one step, as steps of a clock that
//! is not quite even do on purpose, and a window would span another time than it says.

use std::iter;

use crate::clean::{FEW, most_frequent};
use crate::work::{is_soon, missing};
use crate::{CheckPolicies, CrowdedPolicy, DataError, GapPolicy, Interval};

/// Of fewer steps nothing is said: one or two may be anything, such as a month of 28 days.
const FEWEST: u64 = 3;
/// Of ten steps of a series of another rate, so many at least are off to one side.
const MOST_OF_TEN: u64 = 9;

/// Whether a step counts as one that follows neither too soon nor after a gap.
fn is_near(difference: i64, interval: i64) -> bool {
    !is_soon(difference, interval) && missing(difference, interval).is_none()
}

/// How far a step that counts as one is off the interval, if that is more than a tenth of it.
pub(crate) fn uneven(difference: i64, interval: i64) -> Option<i64> {
    let off = (difference - interval).abs();
    (off > interval / 10 && is_near(difference, interval)).then_some(off)
}

/// Times that are passed by at once where all are regular.
const AT_ONCE: usize = 1024;

/// The steps that do not follow the one before by the interval. Regular times, of which nearly all are, take no more than
/// reading them.
pub(crate) fn irregular(times: &[i64], interval: i64) -> impl Iterator<Item = usize> {
    let off = move |step: usize| times[step] - times[step - 1] - interval;
    (1..times.len()).step_by(AT_ONCE).flat_map(move |first| {
        let end = times.len().min(first + AT_ONCE);
        let own = times[first - 1..end].windows(2);
        let any = own.fold(0, |any, pair| any | (pair[1] - pair[0] - interval));
        let steps = if any == 0 { end..end } else { first..end };
        steps.filter(move |step| off(*step) != 0)
    })
}

/// What the steps that count as one are.
#[derive(Default)]
struct Near {
    steps: u64,
    shorter: u64,
    longer: u64,
    /// Of all together, by how much they are longer than so many intervals.
    over: i128,
    /// The shortest and the longest.
    ends: Option<[i64; 2]>,
}

impl Near {
    fn of(times: &[i64], interval: i64, tolerance: i64) -> Self {
        let (mut near, mut regular) = (Self::default(), times.len().saturating_sub(1) as u64);
        for step in irregular(times, interval) {
            let difference = times[step] - times[step - 1];
            regular -= 1;
            if is_near(difference, interval) {
                let over = difference - interval;
                near.steps += 1;
                near.shorter += u64::from(over < -tolerance);
                near.longer += u64::from(over > tolerance);
                near.over += i128::from(over);
                let [shortest, longest] = near.ends.unwrap_or([difference; 2]);
                near.ends = Some([shortest.min(difference), longest.max(difference)]);
            }
        }
        if regular > 0 {
            let [shortest, longest] = near.ends.unwrap_or([interval; 2]);
            near.ends = Some([shortest.min(interval), longest.max(interval)]);
        }
        Self { steps: near.steps + regular, ..near }
    }
}

/// The step of a series, where that is another one than the interval. It may be off by a fiftieth; where rows of a higher
/// rate were left out, by the tenth that they may be.
pub(crate) fn other_step(
    times: &[i64],
    interval: i64,
    policies: &CheckPolicies,
    left_out: bool,
) -> Option<i64> {
    let all = times.len().saturating_sub(1) as u64;
    let tolerance = if left_out { interval / 10 } else { interval / 50 };
    let mut near = Near::of(times, interval, tolerance);
    let is_few = near.steps < FEW;
    if is_few {
        near = Near::of(times, interval, interval / 10);
    }
    let most = if is_few { near.steps } else { (near.steps * MOST_OF_TEN).div_ceil(10) };
    let is_off = |steps: u64, over: i128| {
        // Steps that make up for each other are those of an uneven clock.
        let mean = over > i128::from(tolerance) * i128::from(near.steps);
        near.steps >= FEWEST && steps >= most && mean
    };
    let is_shorter = is_off(near.shorter, -near.over) && policies.crowded != CrowdedPolicy::Keep;
    // A few steps of an uneven clock may all be long, but not alike.
    let spread = near.ends.map_or(0, |[shortest, longest]| longest - shortest);
    let is_alike = !is_few || spread <= interval / 50;
    let is_other = (is_shorter || is_off(near.longer, near.over)) && is_alike;
    if is_other || is_of_gaps(times, interval, near.steps, policies) {
        // The interval may be the usual step of a clock that is late more often than early.
        let is_own = |step: &i64| (step - interval).abs() <= tolerance;
        return most_frequent(iter::once(times)).filter(|step| all > 0 && !is_own(step));
    }
    None
}

/// Whether nearly all steps are gaps of one length, which are not filled.
fn is_of_gaps(times: &[i64], interval: i64, near: u64, policies: &CheckPolicies) -> bool {
    let all = times.len().saturating_sub(1) as u64;
    if all < FEW || 10 * near > all || policies.gaps == GapPolicy::Fill {
        return false;
    }
    let Some(own) = most_frequent(iter::once(times)) else { return false };
    let is_alike = |pair: &&[i64]| (pair[1] - pair[0] - own).abs() <= own / 50;
    let alike = times.windows(2).filter(is_alike).count() as u64;
    missing(own, interval).is_some() && 10 * alike >= MOST_OF_TEN * all
}

/// Refuses series of another step than the interval, if there are any, of which these are the names and steps.
pub(crate) fn refused<'a>(
    others: impl Iterator<Item = (&'a str, i64)>,
    interval: i64,
    is_declared: bool,
    series: usize,
) -> Option<DataError> {
    let mut others = others.peekable();
    let (name, step) = *others.peek()?;
    Some(DataError::OtherStep {
        name: name.to_owned(),
        step: Interval::whole(step).rounded(),
        interval: Interval::whole(interval),
        is_declared,
        others: others.count() as u64,
        series: series as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use firebox_core::Stream;

    const MINUTE: i64 = 60_000_000;

    /// Times with these steps between them, in seconds.
    fn times(steps: impl IntoIterator<Item = i64>) -> Vec<i64> {
        let later = |at: &mut i64, step: i64| {
            *at += step * 1_000_000;
            Some(*at)
        };
        iter::once(0).chain(steps.into_iter().scan(0, later)).collect()
    }

    fn of(steps: &[i64], policies: &CheckPolicies) -> Option<i64> {
        other_step(&times(steps.iter().copied()), MINUTE, policies, false)
            .map(|step| step / 1_000_000)
    }

    #[test]
    fn a_series_of_another_rate_is_told_by_its_steps() {
        let check = |steps: &[i64], expected: Option<i64>| {
            assert_eq!(of(steps, &CheckPolicies::default()), expected, "{steps:?}");
        };
        for step in [31, 35, 45, 57, 58, 62, 63, 75, 90] {
            let is_other = (step - 60_i64).abs() > 1;
            check(&[step; 20], Some(step).filter(|_| (step - 60).abs() > 1));
            let is_told_of_few = is_other && (step - 60).abs() > 6;
            check(&[step; 3], Some(step).filter(|_| is_told_of_few));
            check(&[step; 2], None);
        }
        check(&[59; 20], None);
        check(&[61; 20], None);
        // Gaps between, and a few steps of the interval.
        check(&[45, 45, 600, 45, 45, 45, 45, 45, 45, 3600, 45], Some(45));
        check(&[45, 45, 45, 45, 45, 45, 45, 45, 45, 60], Some(45));
        check(&[45, 45, 45, 45, 45, 45, 45, 45, 60, 60], None);
        // Of gaps of one length, and of any.
        check(&[120; 8], Some(120));
        check(&[120; 7], None);
        check(&[120, 180, 120, 240, 120, 120, 300, 120], None);
        check(&[120, 60, 120, 120, 120, 120, 120, 120], None);
    }

    #[test]
    fn steps_that_are_not_regular_are_found_wherever_they_are() {
        for (count, odd) in [
            (0, vec![]),
            (1, vec![]),
            (5000, vec![]),
            (5000, vec![1, 1023, 1024, 1025, 4999]),
            (1025, vec![1024]),
        ] {
            let step = |step: usize| if odd.contains(&step) { 61 } else { 60 };
            let all = times((1..count.max(1)).map(step));
            assert_eq!(irregular(&all, MINUTE).collect::<Vec<_>>(), odd, "{count}");
        }
    }

    #[test]
    fn uneven_clocks_and_months_are_no_other_rate() {
        let check = |steps: &[i64]| assert_eq!(of(steps, &CheckPolicies::default()), None);
        // Steps that make up for each other, however far they are off.
        check(&[40, 80, 40, 80, 40, 80, 40, 80]);
        check(&[57, 57, 57, 57, 57, 57, 57, 57, 57, 87]);
        check(&[70, 75, 68]);
        // Never early, and late by up to a half.
        for steps in [
            &[60, 60, 64, 70, 88, 75, 66, 71, 79, 83, 68, 73][..],
            &[62, 88, 60, 60, 75, 71, 66, 64, 80],
        ] {
            check(steps);
        }
        let days = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        let months: Vec<i64> = days.iter().cycle().take(36).copied().collect();
        for interval in [30, 31] {
            for start in 0..12 {
                for end in start..36 {
                    let times = times(months[start..end].iter().copied());
                    let found =
                        other_step(&times, interval * 1_000_000, &CheckPolicies::default(), false);
                    assert_eq!(found, None, "{interval}, {start}..{end}");
                }
            }
        }
    }

    #[test]
    fn rows_that_come_a_little_early_or_late_pass_and_those_of_another_rate_do_not() {
        let mut draws = Stream::new(7, "clock").draws();
        for series in 0..2000 {
            let rows = 2 + series % 40;
            let spread = [0.02, 0.1, 0.2][series as usize % 3];
            let mut off = || (spread * 60e6 * (2.0 * draws.uniform_f64() - 1.0)) as i64;
            let mut of = |step: i64| {
                let times: Vec<i64> = (0..rows).map(|row| row * step + off()).collect();
                other_step(&times, MINUTE, &CheckPolicies::default(), false)
            };
            assert_eq!(of(MINUTE), None, "{series}: {rows} rows, {spread}");
            let found = of(2 * MINUTE / 3);
            assert!(found.is_some() || rows < 12 || spread > 0.1, "{series}: {rows} rows");
        }
    }

    #[test]
    fn policies_that_take_such_rows_take_them() {
        let keep = CheckPolicies { crowded: CrowdedPolicy::Keep, ..CheckPolicies::default() };
        assert_eq!((of(&[45; 20], &keep), of(&[90; 20], &keep)), (None, Some(90)));
        let fill = CheckPolicies { gaps: GapPolicy::Fill, ..CheckPolicies::default() };
        assert_eq!((of(&[120; 20], &fill), of(&[90; 20], &fill)), (None, Some(90)));
        // Of every seven minutes, every ninth is nearly an hour behind another.
        let times = |step: i64| times(iter::repeat_n(step, 20));
        let check = |step: i64, left_out: bool| {
            other_step(&times(step), MINUTE, &CheckPolicies::default(), left_out).is_some()
        };
        assert!(check(63, false) && !check(63, true) && check(75, true));
    }
}
