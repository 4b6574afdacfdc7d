//! Forecasts that need no training, and the error that MASE is scaled by.

use firebox_core::{ForecastRule, Series, SeriesSet, TrainWindows, Window};

/// Microseconds of an hour.
const HOUR: i64 = 3_600_000_000;

/// The season that data of this interval usually has, in steps: a day where a day has several steps,
/// a week of days, a year of months.
pub fn usual_season(interval: i64) -> Option<usize> {
    let day = 24 * HOUR;
    match interval {
        ..=0 => None,
        _ if interval < day && day % interval == 0 => Some((day / interval) as usize),
        _ if interval == day => Some(7),
        _ if (28 * day..=31 * day).contains(&interval) => Some(12),
        _ => None,
    }
}

/// The last value of each window at every horizon.
///
/// # Shapes
/// - returns `[window, horizon, target]`
pub fn last_value(
    set: &SeriesSet,
    rule: &ForecastRule,
    windows: impl IntoIterator<Item = Window>,
) -> Vec<f64> {
    let of = |window: Window| -> Vec<f64> {
        (0..rule.targets.len()).map(|target| rule.last(set, &window, target)).collect()
    };
    windows.into_iter().flat_map(|window| of(window).repeat(rule.horizons.len())).collect()
}

/// The value one season before each target, or as many seasons as it takes to lie in what is known
/// at the end of the window.
///
/// What is known are the steps of the window and those before it up to the last gap. Where they hold
/// no such value, the last one is taken.
///
/// # Shapes
/// - returns `[window, horizon, target]`, and the number of windows that lacked a value
pub fn seasonal_naive(
    set: &SeriesSet,
    rule: &ForecastRule,
    windows: impl IntoIterator<Item = Window>,
    season: usize,
) -> (Vec<f64>, usize) {
    let channels = set.channels().len();
    let windows = windows.into_iter();
    let mut out = Vec::with_capacity(windows.size_hint().0 * rule.outputs());
    let mut lacking = 0;
    for window in windows {
        let series = &set.series()[window.series as usize];
        let last = window.steps().end - 1;
        let within = series.segments.iter().find(|segment| segment.contains(&last));
        let first = within.map_or(last, |segment| segment.start);
        let mut short = false;
        for horizon in &rule.horizons {
            let back = season.max(1) * horizon.div_ceil(season.max(1));
            let step = (last + horizon).checked_sub(back).filter(|step| *step >= first);
            short |= step.is_none();
            let step = step.unwrap_or(last);
            let value = |target: &usize| series.values.at(step * channels + target);
            out.extend(rule.targets.iter().map(value));
        }
        lacking += usize::from(short);
    }
    (out, lacking)
}

/// Mean absolute error of the seasonal naive forecast one season ahead, over the steps that training
/// windows cover, of each series and target, where both values were measured. A series without one, or where it is 0, has the mean of
/// the others; NaN if there is none.
///
/// # Shapes
/// - returns `[series, target]`
pub fn seasonal_scale(
    set: &SeriesSet,
    rule: &ForecastRule,
    train: &TrainWindows,
    season: usize,
) -> Vec<f64> {
    let (targets, channels) = (rule.targets.len(), set.channels().len());
    let mut sums = vec![(0.0, 0.0); set.series().len() * targets];
    // The first step that is covered without a break, and the first that was not looked at yet.
    let mut covered = (u32::MAX, 0, 0);
    for window in train.windows() {
        let steps = window.steps();
        if covered.0 != window.series || steps.start > covered.2 {
            covered = (window.series, steps.start, steps.start);
        }
        let Series { values, filled, .. } = &set.series()[window.series as usize];
        for step in (covered.1 + season).max(covered.2)..steps.end {
            for (place, target) in rule.targets.iter().enumerate() {
                if filled.holds(*target, step) || filled.holds(*target, step - season) {
                    continue;
                }
                let at = |step: usize| values.at(step * channels + target);
                let (sum, count) = &mut sums[window.series as usize * targets + place];
                *sum += (at(step) - at(step - season)).abs();
                *count += 1.0;
            }
        }
        covered.2 = covered.2.max(steps.end);
    }
    let mean = |sum: f64, count: f64| if sum > 0.0 { sum / count } else { f64::NAN };
    let mut scales: Vec<f64> = sums.into_iter().map(|(sum, count)| mean(sum, count)).collect();
    for target in 0..targets {
        let known = scales[target..].iter().step_by(targets).filter(|scale| !scale.is_nan());
        let (count, sum) = known.fold((0.0, 0.0), |(n, sum), scale| (n + 1.0, sum + scale));
        let lacking = scales[target..].iter_mut().step_by(targets).filter(|scale| scale.is_nan());
        lacking.for_each(|scale| *scale = mean(sum, count));
    }
    scales
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use firebox_core::{Channel, Labels, Role, SplitRule, WindowRule, split};

    use super::*;

    fn set(values: Vec<f64>, segments: &[std::ops::Range<usize>]) -> Arc<SeriesSet> {
        let mut series = Series::regular("a", 0, HOUR, values, 1);
        series.segments = segments.to_vec();
        let channels = vec![Channel::new("x", Role::Other)];
        Arc::new(SeriesSet::new(channels, vec![], vec![series]).unwrap())
    }

    fn rule(horizons: &[usize]) -> ForecastRule {
        ForecastRule { targets: vec![0], horizons: horizons.to_vec(), ..ForecastRule::default() }
    }

    fn window(start: u32) -> Window {
        Window { series: 0, start, length: 3, label: None }
    }

    #[test]
    fn naive_forecasts_look_back_and_never_across_a_gap() {
        let set = set((0..40).map(f64::from).collect(), &[0..12, 12..40]);
        let rule = rule(&[1, 4, 9]);
        assert_eq!(last_value(&set, &rule, [window(20)]), [22.0; 3]);
        // A season of 4: one, one and three seasons back.
        let (values, lacking) = seasonal_naive(&set, &rule, [window(20)], 4);
        assert_eq!((values, lacking), (vec![19.0, 22.0, 19.0], 0));
        // The last step is 16, and the segment begins at 12: 13 is known, 10 would lie before it.
        let (values, lacking) = seasonal_naive(&set, &rule, [window(14), window(20)], 7);
        assert_eq!(values[..3], [16.0, 13.0, 16.0]);
        assert_eq!(lacking, 1);
    }

    #[test]
    fn the_scale_counts_each_training_step_once() {
        let values: Vec<f64> = (0..60).map(|step| f64::from(step * step % 17)).collect();
        let set = set(values.clone(), &[0..25, 30..60]);
        let windows = WindowRule { length: 6, stride: 1, whole: false };
        let parts = split(&set, &windows, &SplitRule::time(0.0, 0.2), &Labels::None).unwrap();
        let found = seasonal_scale(&set, &rule(&[1]), &parts.train, 5);
        let steps = (5..25).chain(35..48);
        let errors: Vec<f64> = steps.map(|step| (values[step] - values[step - 5]).abs()).collect();
        let expected = errors.iter().sum::<f64>() / errors.len() as f64;
        assert!((found[0] - expected).abs() < 1e-12, "{found:?} {expected}");
        let constant = self::set(vec![3.0; 60], std::slice::from_ref(&(0..60)));
        let parts = split(&constant, &windows, &SplitRule::time(0.0, 0.2), &Labels::None).unwrap();
        assert!(seasonal_scale(&constant, &rule(&[1]), &parts.train, 5)[0].is_nan());
    }

    #[test]
    fn usual_seasons_are_days_weeks_and_years() {
        let day = 24 * HOUR;
        let found = [HOUR, HOUR / 4, day, 30 * day, 7 * day, 5 * HOUR, 0].map(usual_season);
        assert_eq!(found, [Some(24), Some(96), Some(7), Some(12), None, None, None]);
    }
}
