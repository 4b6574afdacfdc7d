//! Normalisation: fitted on training windows only, or relative to each window.

use serde::{Deserialize, Serialize};

use crate::{Channel, Role, SeriesSet, TrainWindows, Window};

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
            Normalisation::Standard | Normalisation::Robust => {
                (0..channels.len()).map(|channel| fit_channel(kind, train, channel)).collect()
            }
            Normalisation::WindowStandard | Normalisation::WindowRelative => {
                (0..channels.len()).map(|channel| fit_fallback(kind, train, channel)).collect()
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
        assert_eq!(set.channels().len(), channels, "the set has other channels than were fitted");
        let series = &set.series()[window.series as usize];
        let steps = window.steps();
        let values = &series.values[steps.start * channels..steps.end * channels];
        assert_eq!(
            out.len(),
            values.len(),
            "a window of {} steps of {channels} channels",
            window.length
        );
        for channel in 0..channels {
            let Affine { center, scale } = self.map(set, values, channel);
            let inverse = scale.recip();
            for (out, value) in out[channel..]
                .iter_mut()
                .step_by(channels)
                .zip(values[channel..].iter().step_by(channels))
            {
                *out = ((value - center) * inverse) as f32;
            }
        }
    }

    /// The affine map of a channel in this window, as `[center, scale]`: `(x − center) / scale`.
    ///
    /// # Panics
    ///
    /// When there is no such channel or the set has other channels than were fitted.
    pub fn center_and_scale(&self, set: &SeriesSet, window: &Window, channel: usize) -> [f64; 2] {
        let channels = self.channels.len();
        assert_eq!(set.channels().len(), channels, "the set has other channels than were fitted");
        let series = &set.series()[window.series as usize];
        let steps = window.steps();
        let values = &series.values[steps.start * channels..steps.end * channels];
        let Affine { center, scale } = self.map(set, values, channel);
        [center, scale]
    }

    fn map(&self, set: &SeriesSet, values: &[f64], channel: usize) -> Affine {
        let own = match self.kind {
            Normalisation::None | Normalisation::Standard | Normalisation::Robust => {
                return self.fitted[channel];
            }
            Normalisation::WindowStandard => standard(column(values, self.channels.len(), channel)),
            Normalisation::WindowRelative => relative(set, values, channel),
        };
        if own.scale > 0.0 { own } else { Affine { scale: self.fitted[channel].scale, ..own } }
    }
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
    let variance = values.map(|value| (value - center).powi(2)).sum::<f64>() / count;
    // What rounding leaves of a constant channel is not a scale.
    let scale = if variance.sqrt() > center.abs() * 1e-12 { variance.sqrt() } else { 0.0 };
    Affine { center, scale }
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
    let scale = standard(changes.clone()).scale * (changes.count() as f64).sqrt();
    Affine { center, scale: if scale.is_finite() { scale } else { 0.0 } }
}

fn fit_channel(kind: Normalisation, train: &TrainWindows, channel: usize) -> Affine {
    let set = train.set();
    let channels = set.channels().len();
    let mut values = Vec::new();
    let mut covered = (u32::MAX, 0);
    // Windows are in the order of series and time, so each step is new after the last one covered.
    for window in train.windows() {
        let steps = window.steps();
        let from =
            if covered.0 == window.series { steps.start.max(covered.1) } else { steps.start };
        covered =
            (window.series, steps.end.max(if covered.0 == window.series { covered.1 } else { 0 }));
        let series = &set.series()[window.series as usize];
        if from < steps.end {
            values.extend(column(
                &series.values[from * channels..steps.end * channels],
                channels,
                channel,
            ));
        }
    }
    let Affine { center, scale } = match kind {
        Normalisation::Robust => {
            values.sort_unstable_by(f64::total_cmp);
            let quantile =
                |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
            Affine { center: quantile(0.5), scale: (quantile(0.75) - quantile(0.25)) / 1.349 }
        }
        _ => standard(values.iter().copied()),
    };
    Affine { center, scale: if scale > 0.0 { scale } else { 1.0 } }
}

/// The mean scale of the training windows, for windows that have none of their own.
fn fit_fallback(kind: Normalisation, train: &TrainWindows, channel: usize) -> Affine {
    let set = train.set();
    let channels = set.channels().len();
    let scales: Vec<f64> = train
        .windows()
        .iter()
        .map(|window| {
            let steps = window.steps();
            let series = &set.series()[window.series as usize];
            let values = &series.values[steps.start * channels..steps.end * channels];
            match kind {
                Normalisation::WindowRelative => relative(set, values, channel).scale,
                _ => standard(column(values, channels, channel)).scale,
            }
        })
        .filter(|scale| *scale > 0.0)
        .collect();
    let scale = scales.iter().sum::<f64>() / scales.len() as f64;
    Affine { center: 0.0, scale: if scale > 0.0 { scale } else { 1.0 } }
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
        (set, normaliser, parts.train.windows()[0])
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
    fn constant_windows_become_zero_not_nan() {
        for kind in
            [Normalisation::WindowRelative, Normalisation::WindowStandard, Normalisation::Standard]
        {
            assert_eq!(first(kind, &[Role::Close], vec![0.1; 20]), [0.0; 4], "{kind:?}");
        }
    }
}
