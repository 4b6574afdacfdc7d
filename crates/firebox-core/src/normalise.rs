//! Normalisation: fitted on training windows only, or relative to each window.

use std::borrow::Cow;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{Channel, Role, SeriesSet, SeriesValues, Steps, TrainWindows, Window};

/// How the values of a window are brought to a scale that a model can learn from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Normalisation {
    /// As they are.
    None,
    /// `(x − mean) / standard deviation` of each channel over the training steps.
    #[default]
    Standard,
    /// `(x − median) / (interquartile range / 1.349)` of each channel over the training steps; the
    /// divisor equals the standard deviation for normal data.
    Robust,
    /// `(x − mean) / standard deviation` of each channel within the window.
    WindowStandard,
    /// Changes since the window's first close, in units of the window's volatility: the standard
    /// deviation of the one-step changes of the close × √(number of changes), which is how far a
    /// random walk of these steps strays over the window, so values are of the order of 1. All
    /// price channels share this one map, so their order is kept; every other channel uses its own
    /// first value and its own changes.
    WindowRelative,
}

/// A normalisation that cannot be fitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NormaliseError {
    /// Nothing to fit on.
    #[error("there is no training window to fit the normalisation on")]
    Empty,
    /// Price channels without a close to relate them to.
    #[error(
        "`window-relative` relates prices to the first close, and no channel has the role `close`"
    )]
    NoClose,
}

/// The affine map of one channel: `(x − center) / scale`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Affine {
    center: f64,
    scale: f64,
}

impl Affine {
    /// Of values with this mean and variance. What rounding leaves of a constant channel is no scale.
    fn of(center: f64, variance: f64) -> Self {
        let scale = if variance.sqrt() > center.abs() * 1e-12 { variance.sqrt() } else { 0.0 };
        Self { center, scale }
    }

    /// The same, but without a scale of a channel that has one value in all of these steps: a long sum of one number is off
    /// by its rounding, the mean with it, and each value is as far from it.
    fn unless_constant(
        self,
        parts: &[(&SeriesValues, Range<usize>)],
        width: usize,
        channel: usize,
    ) -> Self {
        let is_doubtful = self.scale > 0.0 && self.scale <= DOUBTFUL * self.center.abs();
        match is_doubtful.then(|| constant(parts, width, channel)).flatten() {
            Some(center) => Self { center, scale: 0.0 },
            None => self,
        }
    }

    /// The same where there is a scale, and one of 1 where there is none.
    fn or_one(self) -> Self {
        Self { scale: if self.scale > 0.0 { self.scale } else { 1.0 }, ..self }
    }
}

/// A fitted normalisation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Normaliser {
    kind: Normalisation,
    channels: Vec<Channel>,
    /// Fitted maps. For the kinds that are relative to a window, `scale` stands in where a window
    /// is constant: the mean of the training windows' own scales.
    fitted: Vec<Affine>,
}

impl Normaliser {
    /// Names of the channels that `robust` leaves as large as they are, because a quarter of their steps on both sides of the
    /// median have its value: their interquartile range is zero.
    pub fn without_range(&self) -> Vec<&str> {
        let channels = self.channels.iter().zip(&self.fitted);
        let unscaled = channels
            .filter(|(_, map)| self.kind == Normalisation::Robust && map.scale == 1.0)
            .map(|(channel, _)| channel.name.as_str());
        unscaled.collect()
    }

    /// Fits on the steps that training windows cover, each counted once.
    ///
    /// # Errors
    ///
    /// Without training windows, and for relative prices without a close.
    pub fn fit(kind: Normalisation, train: &TrainWindows) -> Result<Self, NormaliseError> {
        let set = train.set();
        let channels = set.channels().to_vec();
        if train.is_empty() {
            return Err(NormaliseError::Empty);
        }
        let prices = channels.iter().any(|channel| channel.role.is_price());
        if kind == Normalisation::WindowRelative && prices && set.role(Role::Close).is_none() {
            return Err(NormaliseError::NoClose);
        }
        let fitted = match kind {
            Normalisation::None => vec![Affine { center: 0.0, scale: 1.0 }; channels.len()],
            Normalisation::Standard => fit_standard(train),
            Normalisation::Robust => fit_robust(train),
            Normalisation::WindowStandard | Normalisation::WindowRelative => {
                fit_fallback(kind, train)
            }
        };
        Ok(Self { kind, channels, fitted })
    }

    /// Of no channels: for what is no series.
    pub fn of_nothing() -> Self {
        Self { kind: Normalisation::None, channels: vec![], fitted: vec![] }
    }

    /// The kind that was fitted.
    pub fn kind(&self) -> Normalisation {
        self.kind
    }

    /// Whether what becomes of a value depends on the window that it is in, and not on its channel alone.
    pub fn depends_on_window(&self) -> bool {
        match self.kind {
            Normalisation::None | Normalisation::Standard | Normalisation::Robust => false,
            Normalisation::WindowStandard | Normalisation::WindowRelative => true,
        }
    }

    /// The channels that it was fitted on.
    pub fn channels(&self) -> &[Channel] {
        &self.channels
    }

    /// Writes the normalised values of a window.
    ///
    /// # Shapes
    ///
    /// - `out`: `[time, channel]`, row-major; `window.length` steps.
    ///
    /// # Panics
    ///
    /// When `out` has another length, or the set other channels than were fitted.
    pub fn apply(&self, set: &SeriesSet, window: &Window, out: &mut [f32]) {
        let channels = self.channels.len();
        let (values, range) = self.place(set, window);
        assert_eq!(
            out.len(),
            range.len(),
            "a window of {} steps of {channels} channels",
            window.length
        );
        let maps = self.maps(set, values, range.clone());
        let maps: Vec<[f64; 2]> = maps.iter().map(|map| [map.center, map.scale.recip()]).collect();
        let mut done = 0;
        values.rows(range, channels, |rows| {
            let out = &mut out[done..][..rows.len()];
            match channels {
                4 => scale_rows::<4>(rows, &maps, out),
                _ => scale_rows::<0>(rows, &maps, out),
            }
            done += rows.len();
        });
    }

    /// The affine map of a channel in this window, as `[center, scale]`: `(x − center) / scale`.
    ///
    /// # Panics
    ///
    /// When there is no such channel or the set has other channels than were fitted.
    pub fn center_and_scale(&self, set: &SeriesSet, window: &Window, channel: usize) -> [f64; 2] {
        let (values, range) = self.place(set, window);
        let own = match self.kind {
            Normalisation::None | Normalisation::Standard | Normalisation::Robust => {
                self.fitted[channel]
            }
            Normalisation::WindowStandard => {
                let (part, width) = (values.part(range.clone()), self.channels.len());
                let own = standard(column(&part, width, channel));
                own.unless_constant(&[(values, range)], width, channel)
            }
            Normalisation::WindowRelative => relative(set, &values.part(range), channel),
        };
        let Affine { center, scale } = self.or_fitted(own, channel);
        [center, scale]
    }

    /// Where the values of a window lie.
    fn place<'a>(&self, set: &'a SeriesSet, window: &Window) -> (&'a SeriesValues, Range<usize>) {
        let channels = self.channels.len();
        assert_eq!(set.channels().len(), channels, "the set has other channels than were fitted");
        (&set.series()[window.series as usize].values, range(window, channels))
    }

    /// The maps of all channels in a window.
    fn maps(
        &self,
        set: &SeriesSet,
        values: &SeriesValues,
        range: Range<usize>,
    ) -> Cow<'_, [Affine]> {
        let own = match self.kind {
            Normalisation::None | Normalisation::Standard | Normalisation::Robust => {
                return Cow::Borrowed(&self.fitted);
            }
            kind => maps_of(kind, set, values, range),
        };
        Cow::Owned(own.into_iter().enumerate().map(|(at, own)| self.or_fitted(own, at)).collect())
    }

    /// What was fitted stands in for a scale that a constant window does not have.
    fn or_fitted(&self, own: Affine, channel: usize) -> Affine {
        if own.scale > 0.0 { own } else { Affine { scale: self.fitted[channel].scale, ..own } }
    }
}

/// `(x − center) / scale` of rows; `maps` hold the centre and the reciprocal of the scale. `WIDTH` is the
/// number of channels, or 0 for any number.
fn scale_rows<const WIDTH: usize>(rows: &[f64], maps: &[[f64; 2]], out: &mut [f32]) {
    let width = if WIDTH == 0 { maps.len() } else { WIDTH };
    let maps = &maps[..width];
    for (row, out) in rows.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        for ((out, value), [center, inverse]) in out.iter_mut().zip(row).zip(maps) {
            *out = ((value - center) * inverse) as f32;
        }
    }
}

/// The values of a window among those of its series.
fn range(window: &Window, channels: usize) -> Range<usize> {
    let steps = window.steps();
    steps.start * channels..steps.end * channels
}

fn column(
    values: &[f64],
    channels: usize,
    channel: usize,
) -> impl Iterator<Item = f64> + Clone + '_ {
    values[channel.min(values.len())..].iter().step_by(channels).copied()
}

/// Mean and (population) standard deviation; in two passes, which keeps its digits far from zero.
fn standard(values: impl Iterator<Item = f64> + Clone) -> Affine {
    let (count, sum) = values.clone().fold((0.0, 0.0), |(n, sum), value| (n + 1.0, sum + value));
    let center = sum / count;
    Affine::of(center, values.map(|value| (value - center).powi(2)).sum::<f64>() / count)
}

/// [`standard`] of every channel of all rows of these parts, in order: the same bits, with each row read as
/// it lies.
fn standards(parts: &[(&SeriesValues, Range<usize>)], width: usize) -> Vec<Affine> {
    let visit = |take: &mut dyn FnMut(&[f64])| {
        parts.iter().for_each(|(values, range)| values.rows(range.clone(), width, &mut *take));
    };
    let (mut count, mut centers) = (0.0, vec![0.0; width]);
    visit(&mut |rows: &[f64]| {
        for row in rows.chunks_exact(width) {
            count += 1.0;
            centers.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
    });
    centers.iter_mut().for_each(|sum| *sum /= count);
    let mut squares = vec![0.0; width];
    visit(&mut |rows: &[f64]| {
        for row in rows.chunks_exact(width) {
            for ((sum, value), center) in squares.iter_mut().zip(row).zip(&centers) {
                *sum += (value - center).powi(2);
            }
        }
    });
    let maps = centers.iter().zip(squares).map(|(center, sum)| Affine::of(*center, sum / count));
    let own = |(channel, map): (usize, Affine)| map.unless_constant(parts, width, channel);
    maps.enumerate().map(own).collect()
}

/// The map of a channel relative to the window: prices share that of the close.
fn relative(set: &SeriesSet, values: &[f64], channel: usize) -> Affine {
    let channels = set.channels().len();
    let reference = match set.role(Role::Close) {
        Some(close) if set.channels()[channel].role.is_price() => close,
        _ => channel,
    };
    let levels = column(values, channels, reference);
    let changes = levels.clone().skip(1).zip(levels.clone()).map(|(now, before)| now - before);
    let center = levels.clone().next().unwrap_or(0.0);
    let own = standard(changes.clone());
    let scale = own.scale * (changes.count() as f64).sqrt();
    let is_none = !scale.is_finite() || is_rounding(levels, own.center, own.scale);
    Affine { center, scale: if is_none { 0.0 } else { scale } }
}

/// Whether changes of this mean and standard deviation scatter by no more than how their levels were rounded, as those of
/// a meter that counts evenly do. Levels that are all numbers of f32, and not whole, were rounded to it.
pub(crate) fn is_rounding(
    levels: impl Iterator<Item = f64> + Clone,
    mean: f64,
    deviation: f64,
) -> bool {
    let largest = levels.clone().fold(0.0f64, |largest, level| largest.max(level.abs()));
    is_rounding_of(largest, mean, deviation, || {
        levels.clone().all(|level| f64::from(level as f32) == level)
            && levels.clone().any(|level| level.fract() != 0.0)
    })
}

/// The same of levels whose largest size is known, and whether all are numbers of f32 and some are not whole.
pub(crate) fn is_rounding_of(
    largest: f64,
    mean: f64,
    deviation: f64,
    are_narrow: impl FnOnce() -> bool,
) -> bool {
    // What differs from the mean by half a unit in the last place at each end.
    if deviation <= 2.0 * f64::EPSILON * largest {
        return true;
    }
    // A level that stands still is the same number each time, however it was rounded.
    deviation < mean.abs() && deviation <= f64::from(f32::EPSILON) * largest && are_narrow()
}

/// The maps of all channels relative to a window.
fn maps_of(
    kind: Normalisation,
    set: &SeriesSet,
    values: &SeriesValues,
    range: Range<usize>,
) -> Vec<Affine> {
    let channels = set.channels().len();
    match kind {
        Normalisation::WindowRelative => {
            let values = values.part(range);
            (0..channels).map(|channel| relative(set, &values, channel)).collect()
        }
        _ => standards(&[(values, range)], channels),
    }
}

/// The steps that training windows cover, each once, in order, as values of a series.
fn covered(train: &TrainWindows) -> Vec<(&SeriesValues, Range<usize>)> {
    let set = train.set();
    let channels = set.channels().len();
    let values = |(series, steps): &(usize, Range<usize>)| {
        (&set.series()[*series].values, steps.start * channels..steps.end * channels)
    };
    Steps::of_windows(set, train.windows()).runs().iter().map(values).collect()
}

fn fit_standard(train: &TrainWindows) -> Vec<Affine> {
    let width = train.set().channels().len();
    standards(&covered(train), width).into_iter().map(Affine::or_one).collect()
}

/// Standard deviation over mean of a channel from which on it is not looked at whether it varies at all: more than what
/// rounding leaves of the sum of 10⁹ equal numbers.
const DOUBTFUL: f64 = 1e-6;

/// The value that a channel has in all of some steps, if it is one.
fn constant(parts: &[(&SeriesValues, Range<usize>)], width: usize, channel: usize) -> Option<f64> {
    let (head, tail) = (parts.first()?, parts.last()?);
    let ends = [head.0.at(head.1.start + channel), tail.0.at(tail.1.end - width + channel)];
    if ends[0] != ends[1] {
        return None;
    }
    let (mut first, mut is_one) = (None, true);
    for (values, range) in parts {
        values.rows(range.clone(), width, |rows| {
            is_one = is_one
                && column(rows, width, channel).all(|value| value == *first.get_or_insert(value));
        });
    }
    first.filter(|_| is_one)
}

/// Bytes of columns that are sorted at a time; at least one column is.
const SORTED: usize = 64 << 20;

fn fit_robust(train: &TrainWindows) -> Vec<Affine> {
    let width = train.set().channels().len();
    let parts = covered(train);
    let steps: usize = parts.iter().map(|(_, range)| range.len() / width).sum();
    let at_once = (SORTED / (steps * size_of::<f64>()).max(1)).clamp(1, width);
    let mut fitted = Vec::with_capacity(width);
    for first in (0..width).step_by(at_once) {
        let mut columns = vec![Vec::with_capacity(steps); at_once.min(width - first)];
        for (values, range) in &parts {
            values.rows(range.clone(), width, |rows| {
                for row in rows.chunks_exact(width) {
                    columns.iter_mut().zip(&row[first..]).for_each(|(all, v)| all.push(*v));
                }
            });
        }
        for values in &mut columns {
            values.sort_unstable_by(f64::total_cmp);
            let quantile =
                |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
            let scale = (quantile(0.75) - quantile(0.25)) / 1.349;
            fitted.push(Affine { center: quantile(0.5), scale }.or_one());
        }
    }
    fitted
}

/// The mean scale of the training windows, for windows that have none of their own.
fn fit_fallback(kind: Normalisation, train: &TrainWindows) -> Vec<Affine> {
    let set = train.set();
    let channels = set.channels().len();
    let mut scales = vec![(0.0, 0.0); channels];
    for window in train.windows() {
        let values = &set.series()[window.series as usize].values;
        let maps = maps_of(kind, set, values, range(&window, channels));
        for ((sum, count), map) in scales.iter_mut().zip(maps).filter(|(_, map)| map.scale > 0.0) {
            *sum += map.scale;
            *count += 1.0;
        }
    }
    let mean = |(sum, count): (f64, f64)| Affine { center: 0.0, scale: sum / count }.or_one();
    scales.into_iter().map(mean).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Labels, Series, SplitRule, WindowRule, split};

    fn fit(
        kind: Normalisation,
        roles: &[Role],
        values: Vec<f64>,
    ) -> (Arc<SeriesSet>, Normaliser, Window) {
        let channels: Vec<_> = roles
            .iter()
            .enumerate()
            .map(|(i, role)| Channel::new(format!("c{i}"), *role))
            .collect();
        let series = Series::regular("a", 0, 1, values, roles.len());
        let set = Arc::new(SeriesSet::new(channels, vec![], vec![series]).unwrap());
        let rule = WindowRule { length: 4, stride: 1, whole: false };
        let by_time = SplitRule::Time { validation: 0.0, test: 0.3, gap: Some(0) };
        let parts = split(&set, &rule, &by_time, &Labels::None).unwrap();
        let normaliser = Normaliser::fit(kind, &parts.train).unwrap();
        (set, normaliser, parts.train.windows().at(0))
    }

    fn first(kind: Normalisation, roles: &[Role], values: Vec<f64>) -> Vec<f32> {
        let (set, normaliser, window) = fit(kind, roles, values);
        let mut out = vec![0.0; 4 * roles.len()];
        normaliser.apply(&set, &window, &mut out);
        out
    }

    #[test]
    fn standard_sees_training_steps_only() {
        // Fourteen training steps alternate between 1 and 3; the test steps are far away.
        let values =
            (0..20).map(|i| if i < 14 { 2.0 + f64::from(i % 2) * 2.0 - 1.0 } else { 900.0 });
        let values: Vec<f64> = values.collect();
        assert_eq!(
            first(Normalisation::Standard, &[Role::Other], values.clone()),
            [-1.0, 1.0, -1.0, 1.0]
        );
        let robust = first(Normalisation::Robust, &[Role::Other], values);
        assert!(robust.iter().all(|v| v.abs() < 3.0));
    }

    #[test]
    fn relative_prices_share_the_map_of_the_close() {
        let bars: Vec<f64> = (0..20)
            .flat_map(|i| [100.0 + f64::from(i % 2), 105.0, 99.0, 100.0 + f64::from(i % 2)])
            .collect();
        let roles = [Role::Open, Role::High, Role::Low, Role::Close];
        let out = first(Normalisation::WindowRelative, &roles, bars);
        // Three changes +1, −1, +1: standard deviation √(8/9).
        let unit = (8.0f32 / 9.0 * 3.0).sqrt();
        let expected = [0.0, 5.0 / unit, -1.0 / unit, 0.0, 1.0 / unit];
        assert!(out.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{out:?}");
    }

    #[test]
    fn a_long_constant_channel_has_no_scale_however_its_sum_is_rounded() {
        // The mean of the first 140,000 is off by more than 1e-12 of it; in the other channel one value differs by less.
        let (count, near) = (200_000, 0.1 + 1e-9);
        let values = (0..count).flat_map(|step| {
            let is_held_out = step > count * 3 / 4;
            let constant = if is_held_out { 0.2 } else { 0.1 };
            [constant, if step == 5 { near } else { 0.1 }]
        });
        let roles = [Role::Other, Role::Other];
        let (set, normaliser, window) = fit(Normalisation::Standard, &roles, values.collect());
        assert_eq!(normaliser.center_and_scale(&set, &window, 0), [0.1, 1.0]);
        let [center, scale] = normaliser.center_and_scale(&set, &window, 1);
        assert!((center - 0.1).abs() < 1e-9 && (1e-12..1e-11).contains(&scale), "{center} {scale}");
    }

    #[test]
    fn constant_windows_become_zero_not_nan() {
        for kind in
            [Normalisation::WindowRelative, Normalisation::WindowStandard, Normalisation::Standard]
        {
            assert_eq!(first(kind, &[Role::Close], vec![0.1; 20]), [0.0; 4], "{kind:?}");
        }
    }

    #[test]
    fn a_long_constant_window_becomes_zero_however_its_sum_is_rounded() {
        // The mean of 80,000 is off by more than 1e-12 of it, and every value had become 1.
        let length = 80_000;
        let series = Series::regular("a", 0, 1, vec![21.7; 3 * length], 1);
        let channels = vec![Channel::new("x", Role::Other)];
        let set = Arc::new(SeriesSet::new(channels, vec![], vec![series]).unwrap());
        let rule = WindowRule { length, stride: length, whole: false };
        let by_time = SplitRule::Time { validation: 0.0, test: 0.34, gap: Some(0) };
        let parts = split(&set, &rule, &by_time, &Labels::None).unwrap();
        let normaliser = Normaliser::fit(Normalisation::WindowStandard, &parts.train).unwrap();
        let (window, mut out) = (parts.train.windows().at(0), vec![1.0; length]);
        normaliser.apply(&set, &window, &mut out);
        assert!(out.iter().all(|value| *value == 0.0), "{:?}", out.first());
        assert_eq!(normaliser.center_and_scale(&set, &window, 0), [21.7, 1.0]);
    }

    #[test]
    fn what_rounding_leaves_of_an_even_rise_is_no_volatility() {
        let kind = Normalisation::WindowRelative;
        // A meter that counts 0.1 a step, between a step of 5 and one of 9, of which training windows have a scale.
        let meter = |single: bool| -> Vec<f64> {
            let level = |t: u32| match t {
                13.. => 905.7 + 0.1 * f64::from(t) + if t > 13 { 9.0 } else { 0.0 },
                t => 900.7 + 0.1 * f64::from(t),
            };
            let levels = (0..40).map(level);
            if single { levels.map(|x| f64::from(x as f32)).collect() } else { levels.collect() }
        };
        for single in [false, true] {
            let (set, normaliser, window) = fit(kind, &[Role::Other], meter(single));
            let own = relative(&set, &meter(single)[..4], 0);
            assert_eq!(own.scale, 0.0, "{own:?}");
            let mut out = [0.0; 4];
            normaliser.apply(&set, &window, &mut out);
            // By the mean scale of those that have one.
            assert!(out.iter().all(|value| value.abs() < 1.0), "{out:?}");
        }
        let scale = |levels: &[f64]| {
            let series = Series::regular("a", 0, 1, levels.to_vec(), 1);
            let channels = vec![Channel::new("x", Role::Close)];
            let set = SeriesSet::new(channels, vec![], vec![series]).unwrap();
            relative(&set, levels, 0).scale
        };
        // Whole numbers are exact, a quiet price moves by a tick now and then, and f32 has digits enough for most.
        assert!(scale(&[1e7, 1e7 + 1.0, 1e7 + 3.0, 1e7 + 4.0]) > 0.5);
        let tick = |x: f64| f64::from(x as f32);
        assert!(scale(&[tick(60_000.1), tick(60_000.1), tick(60_000.11), tick(60_000.11)]) > 0.0);
        assert!(scale(&[1.10001, 1.10002, 1.10004, 1.10005]) > 0.0);
        assert_eq!(scale(&[1.10001, 1.10002, 1.10003, 1.10004]), 0.0);
    }
}
