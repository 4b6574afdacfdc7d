//! What is forecast from a window, and what is known at its end beside its values.
//!
//! A target is a channel at a horizon: its value so many steps after the last step of the window.
//! [`ForecastScaler`] brings targets and static features to a scale that a model can learn from,
//! fitted on training windows only, and forecasts back to the channel's own units. That no target
//! lies across a gap or a boundary of the split is the split's business:
//! [`Labels::Ahead`](crate::Labels::Ahead).

use std::f64::consts::TAU;

use serde::{Deserialize, Serialize};

use crate::normalise::is_rounding_of;
use crate::{SeriesSet, TrainWindows, Window};

/// Microseconds of an hour.
const HOUR: i64 = 3_600_000_000;
/// Days of a year in the mean of the Gregorian calendar.
const YEAR: f64 = 365.2425;
/// Share of the mean spread within windows below which a window is nearly constant. A choice.
const NEARLY_CONSTANT: f64 = 0.1;

/// A cycle of the calendar, known for any moment: its phase as a sine and a cosine, so that the last
/// hour lies beside the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Calendar {
    /// Hour of the day, UTC.
    Hour,
    /// Day of the week, UTC.
    Weekday,
    /// Day of the year.
    YearDay,
}

impl Calendar {
    /// Features of each cycle.
    pub const WIDTH: usize = 2;

    /// Sine and cosine of the phase at a moment, in microseconds since 1970-01-01 UTC.
    fn features(self, time: i64) -> [f32; 2] {
        let days = time.div_euclid(24 * HOUR);
        let phase = match self {
            Self::Hour => time.rem_euclid(24 * HOUR) as f64 / (24 * HOUR) as f64,
            Self::Weekday => days.rem_euclid(7) as f64 / 7.0,
            Self::YearDay => (days as f64 / YEAR).rem_euclid(1.0),
        };
        [(TAU * phase).sin() as f32, (TAU * phase).cos() as f32]
    }
}

/// What a model's outputs stand for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Predicted {
    /// The value itself.
    #[default]
    Value,
    /// Its change since the last step of the window: a level that drifts away from what was trained
    /// on does no harm.
    Change,
    /// The same in units of the target's standard deviation within the window: neither a level nor a
    /// volatility that drifts does harm. Source of the idea: Kim et al., "Reversible instance
    /// normalization for accurate time-series forecasting against distribution shift", 2022.
    RelativeChange,
}

/// What is forecast from a window of some set, by the indices of its channels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForecastRule {
    /// Channels that are forecast.
    pub targets: Vec<usize>,
    /// Steps after the last one of the window, each at least 1, in increasing order.
    pub horizons: Vec<usize>,
    /// Channels whose value at the last step of the window is a static feature.
    pub statics: Vec<usize>,
    /// Cycles of the calendar at the last step of the window, as static features.
    pub calendar: Vec<Calendar>,
    /// What a model's outputs stand for.
    pub predicted: Predicted,
}

impl ForecastRule {
    /// Steps after a window that its targets reach.
    pub fn reach(&self) -> usize {
        self.horizons.iter().copied().max().unwrap_or(0)
    }

    /// Outputs of a model: horizons × targets, all targets of the first horizon first.
    pub fn outputs(&self) -> usize {
        self.horizons.len() * self.targets.len()
    }

    /// Static features of a window: those of channels, then those of the calendar.
    pub fn static_features(&self) -> usize {
        self.statics.len() + Calendar::WIDTH * self.calendar.len()
    }

    /// Writes the true values of a window's targets, in their own units: NaN where none was measured
    /// ([`Series::filled`](crate::Series::filled)).
    ///
    /// # Shapes
    /// - `out`: `[horizon, target]`
    ///
    /// # Panics
    /// When the window does not lie in `set`, or its targets beyond the end of its series.
    pub fn truth(&self, set: &SeriesSet, window: &Window, out: &mut [f64]) {
        let last = window.steps().end - 1;
        let rows = out.chunks_exact_mut(self.targets.len().max(1));
        for (out, horizon) in rows.zip(&self.horizons) {
            for (out, channel) in out.iter_mut().zip(&self.targets) {
                let step = last + horizon;
                let filled = set.series()[window.series as usize].filled.holds(*channel, step);
                *out = if filled { f64::NAN } else { value(set, window.series, step, *channel) };
            }
        }
    }

    /// The value of a target at the last step of the window.
    pub fn last(&self, set: &SeriesSet, window: &Window, target: usize) -> f64 {
        value(set, window.series, window.steps().end - 1, self.targets[target])
    }
}

fn value(set: &SeriesSet, series: u32, step: usize, channel: usize) -> f64 {
    set.series()[series as usize].values.at(step * set.channels().len() + channel)
}

/// Mean and (population) standard deviation of one number, collected in one pass (Welford, 1962).
#[derive(Clone, Copy, Debug, Default)]
struct Moments {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Moments {
    fn add(&mut self, value: f64) {
        self.count += 1.0;
        let off = value - self.mean;
        self.mean += off / self.count;
        self.squares += off * (value - self.mean);
    }

    fn deviation(&self) -> f64 {
        (self.squares / self.count.max(1.0)).sqrt()
    }

    /// Centre and scale; the scale of what is constant, or whose spread `is_rounding`, is 1.
    fn affine(&self, is_rounding: bool) -> Affine {
        let scale = self.deviation();
        let varies = !is_rounding && scale > self.mean.abs() * 1e-12;
        Affine { center: self.mean, scale: if varies { scale } else { 1.0 } }
    }
}

/// What is known of the levels that changes are between.
#[derive(Clone, Copy, Default)]
struct Levels {
    largest: f64,
    /// Whether some are no numbers of f32, and whether some are not whole.
    is_wide: bool,
    has_parts: bool,
}

impl Levels {
    fn add(&mut self, level: f64) {
        self.largest = self.largest.max(level.abs());
        self.is_wide |= f64::from(level as f32) != level;
        self.has_parts |= level.fract() != 0.0;
    }

    /// Whether changes between them scatter by no more than how they were rounded.
    fn round(&self, changes: &Moments) -> bool {
        let (mean, deviation) = (changes.mean, changes.deviation());
        is_rounding_of(self.largest, mean, deviation, || !self.is_wide && self.has_parts)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Affine {
    center: f64,
    scale: f64,
}

/// The scales of targets and static features, of training windows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForecastScaler {
    rule: ForecastRule,
    /// Of each output.
    outputs: Vec<Affine>,
    /// Of each static channel.
    statics: Vec<Affine>,
    /// Standard deviation of each target within a window, the mean over the training windows: for
    /// windows in which it is constant.
    spreads: Vec<f64>,
}

impl ForecastScaler {
    /// Fits mean and standard deviation of every output and every static channel on the training
    /// windows.
    ///
    /// `set` has the series that the windows were cut from, with all their channels; the windows may
    /// look into a set with fewer of them ([`SeriesSet::select`]).
    ///
    /// # Panics
    /// When the windows do not lie in `set`, or a channel is not among its own.
    pub fn fit(rule: ForecastRule, set: &SeriesSet, train: &TrainWindows) -> Self {
        let mut outputs = vec![Moments::default(); rule.outputs()];
        let mut statics = vec![Moments::default(); rule.statics.len()];
        let spreads = match rule.predicted {
            Predicted::RelativeChange => spreads(&rule, set, train),
            Predicted::Value | Predicted::Change => vec![1.0; rule.targets.len()],
        };
        let mut row = vec![0.0; rule.outputs()];
        let mut levels = vec![Levels::default(); rule.targets.len()];
        for window in train.windows() {
            framed(&rule, &spreads, set, &window, &mut row);
            let measured = outputs.iter_mut().zip(&row).filter(|(_, value)| !value.is_nan());
            measured.for_each(|(moments, value)| moments.add(*value));
            let last = window.steps().end - 1;
            for (levels, channel) in levels.iter_mut().zip(&rule.targets) {
                levels.add(value(set, window.series, last, *channel));
            }
            for (moments, channel) in statics.iter_mut().zip(&rule.statics) {
                moments.add(value(set, window.series, last, *channel));
            }
        }
        // Changes are off by as much as their levels were rounded: those of a meter that counts evenly have no other scale.
        let is_change = rule.predicted == Predicted::Change;
        let of_output = |(output, moments): (usize, &Moments)| {
            moments.affine(is_change && levels[output % rule.targets.len()].round(moments))
        };
        Self {
            outputs: outputs.iter().enumerate().map(of_output).collect(),
            statics: statics.iter().map(|moments| moments.affine(false)).collect(),
            rule,
            spreads,
        }
    }

    /// Whether it is of a set with so many channels: its parts may come from a file.
    pub fn fits(&self, channels: usize) -> bool {
        let rule = &self.rule;
        let known = |named: &[usize]| named.iter().all(|channel| *channel < channels);
        let scaled = |maps: &[Affine]| {
            maps.iter()
                .all(|map| map.center.is_finite() && map.scale.is_finite() && map.scale > 0.0)
        };
        known(&rule.targets)
            && known(&rule.statics)
            && self.outputs.len() == rule.outputs()
            && self.statics.len() == rule.statics.len()
            && self.spreads.len() == rule.targets.len()
            && scaled(&self.outputs)
            && scaled(&self.statics)
    }

    /// Targets whose relative changes are large in training windows in which they are nearly constant, and small in the
    /// others: each as its channel with the number of these windows, whose standard deviation is below a tenth of the
    /// mean and which have more than half of all squares of relative changes. Empty where no such changes are put out.
    pub fn nearly_constant(&self, set: &SeriesSet, train: &TrainWindows) -> Vec<(usize, usize)> {
        let Self { rule, spreads, .. } = self;
        if rule.predicted != Predicted::RelativeChange {
            return vec![];
        }
        let mut row = vec![0.0; rule.outputs()];
        // Of each target such windows, the squares of their changes, and those of all.
        let mut found = vec![(0_usize, 0.0_f64, 0.0_f64); rule.targets.len()];
        for window in train.windows() {
            framed(rule, spreads, set, &window, &mut row);
            for (target, (windows, own, all)) in found.iter_mut().enumerate() {
                let changes = row[target..].iter().step_by(rule.targets.len());
                let changes = changes.filter(|change| !change.is_nan());
                let squares: f64 = changes.map(|change| change * change).sum();
                let within = spread(set, &window, rule.targets[target]);
                *all += squares;
                if within > 0.0 && within < NEARLY_CONSTANT * spreads[target] {
                    *windows += 1;
                    *own += squares;
                }
            }
        }
        let of_each = found.into_iter().zip(&rule.targets);
        let of_each = of_each.filter(|((_, own, all), _)| *own > 0.5 * *all);
        of_each.map(|((windows, ..), channel)| (*channel, windows)).collect()
    }

    /// What is forecast.
    pub fn rule(&self) -> &ForecastRule {
        &self.rule
    }

    /// The static channels, each with the centre and the scale of its training values.
    pub fn static_scales(&self) -> impl Iterator<Item = (usize, [f64; 2])> + '_ {
        let maps = self.statics.iter().map(|map| [map.center, map.scale]);
        self.rule.statics.iter().copied().zip(maps)
    }

    /// Writes what a model is to output for a window: its targets, in units of their scale, and NaN for those that were
    /// not measured.
    ///
    /// # Shapes
    /// - `out`: `[horizon, target]`
    pub fn targets(&self, set: &SeriesSet, window: &Window, out: &mut [f32]) {
        let mut row = vec![0.0; self.rule.outputs()];
        framed(&self.rule, &self.spreads, set, window, &mut row);
        for ((out, value), Affine { center, scale }) in out.iter_mut().zip(row).zip(&self.outputs) {
            *out = if value.is_nan() { f32::NAN } else { ((value - center) / scale) as f32 };
        }
    }

    /// Writes the static features of a window.
    ///
    /// # Shapes
    /// - `out`: `[static]`
    pub fn statics(&self, set: &SeriesSet, window: &Window, out: &mut [f32]) {
        let last = window.steps().end - 1;
        let (channels, calendar) = out.split_at_mut(self.rule.statics.len());
        for ((out, channel), Affine { center, scale }) in
            channels.iter_mut().zip(&self.rule.statics).zip(&self.statics)
        {
            *out = ((value(set, window.series, last, *channel) - center) / scale) as f32;
        }
        let time = set.series()[window.series as usize].time[last];
        for (out, cycle) in calendar.chunks_exact_mut(Calendar::WIDTH).zip(&self.rule.calendar) {
            out.copy_from_slice(&cycle.features(time));
        }
    }

    /// Brings what a model put out for a window back to the units of its targets.
    ///
    /// # Shapes
    /// - `outputs` and `out`: `[horizon, target]`
    pub fn restore(&self, set: &SeriesSet, window: &Window, outputs: &[f32], out: &mut [f64]) {
        let targets = self.rule.targets.len().max(1);
        for (place, (out, value)) in out.iter_mut().zip(outputs).enumerate() {
            let Affine { center, scale } = self.outputs[place];
            let (from, unit) = frame(&self.rule, &self.spreads, set, window, place % targets);
            *out = from + unit * (center + scale * f64::from(*value));
        }
    }
}

/// What a model's output 0 and a difference of 1 stand for, before the scale of training.
fn frame(
    rule: &ForecastRule,
    spreads: &[f64],
    set: &SeriesSet,
    window: &Window,
    target: usize,
) -> (f64, f64) {
    match rule.predicted {
        Predicted::Value => (0.0, 1.0),
        Predicted::Change => (rule.last(set, window, target), 1.0),
        Predicted::RelativeChange => {
            let own = spread(set, window, rule.targets[target]);
            let unit = if own > 0.0 { own } else { spreads[target] };
            (rule.last(set, window, target), unit)
        }
    }
}

/// The targets of a window as the rule wants them put out, without the scale of training.
fn framed(rule: &ForecastRule, spreads: &[f64], set: &SeriesSet, window: &Window, out: &mut [f64]) {
    rule.truth(set, window, out);
    for target in 0..rule.targets.len() {
        let (from, unit) = frame(rule, spreads, set, window, target);
        for out in out[target..].iter_mut().step_by(rule.targets.len()) {
            *out = (*out - from) / unit;
        }
    }
}

/// Standard deviation of a channel within a window; 0 where it is constant.
fn spread(set: &SeriesSet, window: &Window, channel: usize) -> f64 {
    let mut moments = Moments::default();
    window.steps().for_each(|step| moments.add(value(set, window.series, step, channel)));
    let spread = (moments.squares / moments.count.max(1.0)).sqrt();
    // What rounding leaves of a constant is not a scale.
    if spread > moments.mean.abs() * 1e-12 { spread } else { 0.0 }
}

/// The mean of [`spread`] over the training windows that are not constant; 1 if all are.
fn spreads(rule: &ForecastRule, set: &SeriesSet, train: &TrainWindows) -> Vec<f64> {
    let of = |channel: &usize| {
        let mut moments = Moments::default();
        let own = train.windows().iter().map(|window| spread(set, &window, *channel));
        own.filter(|own| *own > 0.0).for_each(|own| moments.add(own));
        if moments.count > 0.0 { moments.mean } else { 1.0 }
    };
    rule.targets.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Channel, Labels, Role, Series, SplitRule, WindowRule, split};

    #[test]
    fn what_nobody_measured_is_no_target() {
        let mut series = Series::regular("a", 0, HOUR, (0..40).map(f64::from).collect(), 1);
        let whole = series.clone();
        series.filled.add(0, 10..12);
        let set = |series| {
            let channels = vec![Channel::new("x", Role::Other)];
            Arc::new(SeriesSet::new(channels, vec![], vec![series]).unwrap())
        };
        let (whole, set) = (set(whole), set(series));
        let rule =
            ForecastRule { targets: vec![0], horizons: vec![1, 4], ..ForecastRule::default() };
        let mut truth = [0.0; 2];
        for (start, expected) in [(5, [8.0, f64::NAN]), (7, [f64::NAN, 13.0]), (9, [12.0, 15.0])] {
            let window = Window { series: 0, start, length: 3, label: None };
            rule.truth(&set, &window, &mut truth);
            assert!(truth[0].to_bits() == expected[0].to_bits(), "{start} {truth:?}");
            assert!(truth[1].to_bits() == expected[1].to_bits(), "{start} {truth:?}");
        }
        let windows = WindowRule { length: 3, stride: 1, whole: false };
        let ahead = Labels::Ahead { steps: 4 };
        let parts = split(&set, &windows, &SplitRule::time(0.0, 0.4), &ahead).unwrap();
        for predicted in [Predicted::Value, Predicted::Change, Predicted::RelativeChange] {
            let rule = ForecastRule { predicted, ..rule.clone() };
            let fit = |set: &SeriesSet| ForecastScaler::fit(rule.clone(), set, &parts.train);
            let (scaler, of_all) = (fit(&set), fit(&whole));
            let mut values: [Vec<f64>; 2] = [vec![], vec![]];
            let mut row = [0.0f32; 2];
            for window in parts.train.windows() {
                of_all.targets(&whole, &window, &mut row);
                let all = row;
                scaler.targets(&set, &window, &mut row);
                let last = window.steps().end - 1;
                for (at, horizon) in [1, 4].into_iter().enumerate() {
                    assert_eq!(row[at].is_nan(), (10..12).contains(&(last + horizon)));
                    if !row[at].is_nan() {
                        values[at].push(f64::from(row[at]));
                        assert!(!all[at].is_nan());
                    }
                }
            }
            // The scale is that of the targets which are there.
            for values in values.iter().filter(|_| predicted == Predicted::Value) {
                let count = values.len() as f64;
                let mean = values.iter().sum::<f64>() / count;
                let spread = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
                assert!(mean.abs() < 1e-6 && (spread - 1.0).abs() < 1e-5, "{mean} {spread}");
            }
        }
    }
    /// Two channels of 200 hours: the step, and its square.
    fn set() -> Arc<SeriesSet> {
        let values = (0..200).flat_map(|step| [f64::from(step), f64::from(step * step)]);
        let series = Series::regular("a", 0, HOUR, values.collect(), 2);
        let channels = vec![Channel::new("x", Role::Other), Channel::new("y", Role::Other)];
        Arc::new(SeriesSet::new(channels, vec![], vec![series]).unwrap())
    }

    fn rule(predicted: Predicted) -> ForecastRule {
        ForecastRule {
            targets: vec![1, 0],
            horizons: vec![1, 5],
            statics: vec![0],
            calendar: vec![Calendar::Hour, Calendar::Weekday],
            predicted,
        }
    }

    fn parts(set: &Arc<SeriesSet>, steps: usize) -> crate::Split {
        let windows = WindowRule { length: 4, stride: 1, whole: false };
        split(set, &windows, &SplitRule::time(0.2, 0.2), &Labels::Ahead { steps }).unwrap()
    }

    #[test]
    fn targets_come_back_in_their_own_units() {
        let set = set();
        let parts = parts(&set, 5);
        for predicted in [Predicted::Value, Predicted::Change, Predicted::RelativeChange] {
            let scaler = ForecastScaler::fit(rule(predicted), &set, &parts.train);
            let window = parts.test.windows().at(3);
            let (mut scaled, mut back, mut truth) = ([0.0; 4], [0.0; 4], [0.0; 4]);
            scaler.targets(&set, &window, &mut scaled);
            scaler.restore(&set, &window, &scaled, &mut back);
            scaler.rule().truth(&set, &window, &mut truth);
            let last = f64::from(window.start + 3);
            let expected = [(last + 1.0).powi(2), last + 1.0, (last + 5.0).powi(2), last + 5.0];
            assert_eq!(truth, expected);
            assert!(scaled.iter().any(|value| value.abs() > 0.1), "{scaled:?}");
            for (back, truth) in back.iter().zip(truth) {
                assert!((back - truth).abs() < 1e-4 * truth, "{back} {truth}");
            }
        }
    }

    #[test]
    fn scales_are_those_of_training_windows_only() {
        let set = set();
        let parts = parts(&set, 5);
        let scaler = ForecastScaler::fit(rule(Predicted::Value), &set, &parts.train);
        let sums = parts.train.windows().iter().fold([0.0; 4], |mut sums, window| {
            let mut row = [0.0; 4];
            scaler.targets(&set, &window, &mut row);
            sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(value));
            sums
        });
        assert!(sums.iter().all(|sum| sum.abs() < 1e-3), "{sums:?}");
        let mut row = [0.0; 4];
        scaler.targets(&set, &parts.test.windows().last().unwrap(), &mut row);
        assert!(row.iter().all(|value| *value > 2.0), "the test lies beyond: {row:?}");
        // A change of a straight line is constant, and no scale.
        let changes = ForecastScaler::fit(rule(Predicted::Change), &set, &parts.train);
        changes.targets(&set, &parts.test.windows().at(0), &mut row);
        assert_eq!([row[1], row[3]], [0.0, 0.0]);
    }

    #[test]
    fn changes_that_differ_by_the_rounding_of_their_levels_have_no_scale() {
        // A meter that counts evenly, and then faster, in f64 and as it is stored in f32.
        let level =
            |step: u32| 90_000.0 + 0.1 * f64::from(step) + if step == 900 { 0.1 } else { 0.0 };
        let stored: [fn(f64) -> f64; 2] = [|level| level, |level| f64::from(level as f32)];
        for (stored, within) in stored.into_iter().zip([1e-6, 0.02]) {
            let values = (0..1000).map(level).map(stored).collect();
            let series = Series::regular("a", 0, HOUR, values, 1);
            let channels = vec![Channel::new("x", Role::Other)];
            let set = Arc::new(SeriesSet::new(channels, vec![], vec![series]).unwrap());
            let windows = WindowRule { length: 8, stride: 1, whole: false };
            let ahead = Labels::Ahead { steps: 1 };
            let parts = split(&set, &windows, &SplitRule::time(0.0, 0.3), &ahead).unwrap();
            let rule = ForecastRule {
                targets: vec![0],
                horizons: vec![1],
                predicted: Predicted::Change,
                ..ForecastRule::default()
            };
            let scaler = ForecastScaler::fit(rule, &set, &parts.train);
            let mut row = [0.0f32];
            let window = Window { series: 0, start: 892, length: 8, label: None };
            scaler.targets(&set, &window, &mut row);
            assert!((row[0] - 0.1).abs() < within, "in units of the target: {row:?}");
        }
    }

    #[test]
    fn windows_that_are_nearly_constant_are_counted_where_they_make_the_scale() {
        // Power by the hour: nothing at night, 8 at dawn, hundreds by day; and a wave that never rests.
        let day = |hour: usize| match hour {
            0..12 => 0.0,
            12 => 8.0,
            hour => 100.0 * (hour as f64 - 11.0),
        };
        let row = |step: usize| [day(step % 24), (step as f64 / 3.0).sin()];
        let series = Series::regular("a", 0, HOUR, (0..480).flat_map(row).collect(), 2);
        let channels = vec![Channel::new("power", Role::Other), Channel::new("x", Role::Other)];
        let set = Arc::new(SeriesSet::new(channels, vec![], vec![series]).unwrap());
        let parts = parts(&set, 1);
        let of = |predicted| {
            let rule = ForecastRule {
                targets: vec![1, 0],
                horizons: vec![1],
                predicted,
                ..ForecastRule::default()
            };
            let scaler = ForecastScaler::fit(rule, &set, &parts.train);
            scaler.nearly_constant(&set, &parts.train)
        };
        // One window a day ends with dawn: it scatters by 8·√3/4 = 3.5, the others by 85 and more.
        let dawns = parts.train.windows().iter().filter(|window| window.steps().end % 24 == 13);
        assert_eq!(of(Predicted::RelativeChange), [(0, dawns.count())]);
        assert!(of(Predicted::Change).is_empty());
    }

    #[test]
    fn relative_changes_are_in_units_of_the_window_and_survive_constant_ones() {
        let values = (0..60).map(|step| if step < 40 { f64::from(step % 4) } else { 7.0 });
        let series = Series::regular("a", 0, HOUR, values.collect(), 1);
        let channels = vec![Channel::new("x", Role::Other)];
        let set = Arc::new(SeriesSet::new(channels, vec![], vec![series]).unwrap());
        let parts = parts(&set, 1);
        let relative = ForecastRule {
            targets: vec![0],
            horizons: vec![1],
            predicted: Predicted::RelativeChange,
            ..ForecastRule::default()
        };
        // Each window holds 0, 1, 2, 3 in some order.
        let unit = 1.25f64.sqrt();
        let scaler = ForecastScaler::fit(relative, &set, &parts.train);
        assert!((scaler.spreads[0] - unit).abs() < 1e-12);
        let window = Window { series: 0, start: 0, length: 4, label: None };
        let mut back = [0.0];
        let Affine { center, scale } = scaler.outputs[0];
        let output = (1.0 - center) / scale;
        scaler.restore(&set, &window, &[output as f32], &mut back);
        assert!((back[0] - (3.0 + unit)).abs() < 1e-6, "{back:?}");
        let constant = Window { start: 50, ..window };
        scaler.restore(&set, &constant, &[output as f32], &mut back);
        assert!((back[0] - (7.0 + unit)).abs() < 1e-6, "{back:?}");
    }

    #[test]
    fn scales_that_were_written_down_restore_the_same_bits() {
        let set = set();
        let parts = parts(&set, 5);
        let scaler = ForecastScaler::fit(rule(Predicted::RelativeChange), &set, &parts.train);
        let text = serde_json::to_string(&scaler).unwrap();
        let again: ForecastScaler = serde_json::from_str(&text).unwrap();
        assert_eq!(scaler, again);
        let channels = set.channels().len();
        assert!(again.fits(channels) && !again.fits(1), "a target is not among one channel");
        let short = ForecastScaler { outputs: vec![], ..again };
        assert!(!short.fits(channels));
    }

    #[test]
    fn no_target_of_a_part_is_seen_by_another() {
        let set = set();
        let parts = parts(&set, 5);
        let [validation, test] = parts.boundaries.unwrap();
        let time =
            |window: Window, ahead: usize| set.series()[0].time[window.steps().end - 1 + ahead];
        assert!(parts.train.windows().iter().all(|window| time(window, 5) < validation));
        assert!(parts.validation.windows().iter().all(|window| time(window, 5) < test));
        assert!(!parts.test.is_empty() && parts.train.classes().is_empty());
    }

    #[test]
    fn the_calendar_is_that_of_the_last_step() {
        let set = set();
        let parts = parts(&set, 5);
        let scaler = ForecastScaler::fit(rule(Predicted::Value), &set, &parts.train);
        // Steps 3 to 6: 06:00 of Thursday, 1 January 1970.
        let mut features = [0.0; 5];
        scaler.statics(&set, &parts.train.windows().at(3), &mut features);
        let expected = [1.0, 0.0, 0.0, 1.0];
        assert!(features[1..].iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6));
        let day = Calendar::YearDay.features(182 * 24 * HOUR + 15 * HOUR);
        assert!(day[0].abs() < 0.02 && day[1] < -0.99, "{day:?}");
    }
}
