//! Windows: views into series, in two types that keep training and held-out data apart.
//!
//! [`TrainWindows`] and [`HeldOutWindows`] have no public constructor: only [`split`](crate::split())
//! and [`walk_forward`](crate::walk_forward()) make them, so code that takes one of them cannot be
//! given the other.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::normalise::is_rounding;
use crate::{Role, Series, SeriesSet, StepLabels, WindowList};

/// A run of consecutive steps of one segment of one series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Index of the series within its set.
    pub series: u32,
    /// First step.
    pub start: u32,
    /// Number of steps.
    pub length: u32,
    /// Class of the window, an index into [`SeriesSet::classes`].
    pub label: Option<u32>,
}

impl Window {
    /// The steps of the window, as indices into its series.
    pub fn steps(&self) -> std::ops::Range<usize> {
        self.start as usize..(self.start + self.length) as usize
    }
}

/// How series are cut into windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WindowRule {
    /// Steps of a window. A longer window is the whole series when `whole` is set.
    pub length: usize,
    /// Steps between the starts of two windows.
    pub stride: usize,
    /// One window for each series, from its first step, cut to `length`; shorter series give
    /// shorter windows. What is forecast goes on from the last steps: of [`Labels::Ahead`] it ends where the
    /// farthest target is the last step.
    pub whole: bool,
}

impl Default for WindowRule {
    /// The window of reference system R1: 105 steps.
    fn default() -> Self {
        Self { length: 105, stride: 1, whole: false }
    }
}

/// Where the label of a window comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub enum Labels {
    /// Windows have no labels.
    #[default]
    None,
    /// The label of the whole series, or of the window's last step.
    Last,
    /// The most frequent label among the window's steps; none if its share of all steps is below
    /// `share`.
    Majority {
        /// Smallest share of the steps, `0..=1`.
        share: f64,
    },
    /// What the close does in the `horizon` steps after the window: 0 falls, 1 stays, 2 rises, by
    /// `threshold` times the volatility expected over the horizon (the window's standard
    /// deviation of one-step changes × √horizon). The steps looked at belong to the window's
    /// footprint: they never cross a gap or a boundary of the split. Windows have no class whose last close, or the
    /// one at the horizon, was not measured ([`Series::filled`]).
    Forward {
        /// Steps looked ahead.
        horizon: usize,
        /// Smallest move that counts, in units of expected volatility.
        threshold: f64,
    },
    /// No class, but values of the steps after the window, which belong to its footprint as those of
    /// `forward` do: what a forecaster learns and is measured on.
    Ahead {
        /// Steps looked ahead.
        steps: usize,
    },
    /// What the close does in the `horizon` steps after the window, as a share of the window's last
    /// close: 0 falls, 1 stays, 2 rises, by `threshold` or more. It is read from the channel with
    /// the role `close`, or summed up from one with the role `return`. The steps looked at belong
    /// to the window's footprint, as with `forward`, and are none where they were not measured: the last close and the one
    /// at the horizon, or any of the returns.
    Return {
        /// Steps looked ahead.
        horizon: usize,
        /// Smallest move that counts, as a share of the price: 0.006 is 0.6 %.
        threshold: f64,
    },
}

impl Labels {
    /// Names of the classes that [`Labels::Forward`] and [`Labels::Return`] make.
    pub const FORWARD_CLASSES: [&'static str; 3] = ["falls", "stays", "rises"];

    /// Steps after a window that its label looks at.
    pub fn horizon(&self) -> usize {
        match self {
            Self::Ahead { steps } => *steps,
            Self::Forward { horizon, .. } | Self::Return { horizon, .. } => *horizon,
            Self::None | Self::Last | Self::Majority { .. } => 0,
        }
    }

    /// The class that would be right if what the close did until the end of the window went on: that
    /// of the `horizon` steps which end with the window. None for labels that do not look ahead, and
    /// where the window is shorter than that.
    pub fn last_direction(&self, set: &SeriesSet, window: &Window) -> Option<u32> {
        let horizon = self.horizon();
        let length = (window.length as usize).checked_sub(horizon).filter(|length| *length > 0)?;
        let series = &set.series()[window.series as usize];
        match self {
            // One step has no volatility of its own.
            Self::Forward { .. } if length < 3 => None,
            Self::Forward { .. } | Self::Return { .. } => {
                self.of(set, series, window.start as usize, length)
            }
            Self::None | Self::Last | Self::Majority { .. } | Self::Ahead { .. } => None,
        }
    }

    /// The label of the steps `start..start + length` of `series`.
    pub(crate) fn of(
        &self,
        set: &SeriesSet,
        series: &Series,
        start: usize,
        length: usize,
    ) -> Option<u32> {
        match (self, &series.labels) {
            (Self::None | Self::Ahead { .. }, _) => None,
            (Self::Forward { horizon, threshold }, _) => {
                let close = set.role(Role::Close)?;
                measured(series, close, start + length - 1, *horizon)?;
                let at = |step: usize| series.values.at(step * set.channels().len() + close);
                forward(&at, start, length, *horizon, *threshold)
            }
            (Self::Return { horizon, threshold }, _) => {
                let [change, rounding] = change(set, series, start + length - 1, *horizon)?;
                // A move of exactly the threshold, as from 1000 to 1001 at 0.001, is one however it was rounded.
                Some(class_of(change, (threshold - rounding).max(0.0)))
            }
            (_, StepLabels::None) => None,
            (_, StepLabels::Whole(label)) => Some(*label),
            (Self::Last, StepLabels::PerStep(labels)) => labels[start + length - 1],
            (Self::Majority { share }, StepLabels::PerStep(labels)) => {
                majority(&labels[start..start + length], set.classes().len(), *share)
            }
        }
    }
}

fn majority(labels: &[Option<u32>], classes: usize, share: f64) -> Option<u32> {
    let mut counts = vec![0usize; classes];
    for label in labels.iter().flatten() {
        counts[*label as usize] += 1;
    }
    // The first of equal counts: `max_by_key` would take the last.
    let (label, count) = counts.iter().enumerate().rev().max_by_key(|(_, count)| **count)?;
    // 0.55 of 20 is more than 11 once it is rounded, and 11 of 20 is 0.55.
    (*count > 0 && *count as f64 / labels.len() as f64 >= share).then_some(label as u32)
}

fn forward(
    close: &dyn Fn(usize) -> f64,
    start: usize,
    length: usize,
    horizon: usize,
    threshold: f64,
) -> Option<u32> {
    let changes: Vec<f64> = (start + 1..start + length).map(|t| close(t) - close(t - 1)).collect();
    let count = changes.len() as f64;
    let mean = changes.iter().sum::<f64>() / count;
    let variance = changes.iter().map(|c| (c - mean).powi(2)).sum::<f64>() / count;
    let expected = (variance * horizon as f64).sqrt();
    let levels = (start..start + length).map(close);
    if expected.is_nan() || expected <= 0.0 || is_rounding(levels, mean, variance.sqrt()) {
        return None;
    }
    let last = start + length - 1;
    Some(class_of((close(last + horizon) - close(last)) / expected, threshold))
}

/// 0 falls, 1 stays, 2 rises. What does not move stays, whatever the threshold.
fn class_of(change: f64, threshold: f64) -> u32 {
    match () {
        () if change < 0.0 && change <= -threshold => 0,
        () if change > 0.0 && change >= threshold => 2,
        () => 1,
    }
}

/// Whether the closes were measured at the end of a window and `horizon` steps after it.
fn measured(series: &Series, close: usize, last: usize, horizon: usize) -> Option<()> {
    let of = |step| !series.filled.holds(close, step);
    (of(last) && of(last + horizon)).then_some(())
}

/// The change of the close over the `horizon` steps after `last`, as a share of it, and by how much rounding may have
/// moved it. None where the price is not positive, and where what it is made of was not measured.
fn change(set: &SeriesSet, series: &Series, last: usize, horizon: usize) -> Option<[f64; 2]> {
    /// Of two prices in decimals and their quotient.
    const OF_PRICES: f64 = 4.0 * f64::EPSILON;
    /// Of a return, which may be the difference of two logarithms of up to 16.
    const OF_RETURN: f64 = 16.0 * f64::EPSILON;
    let with = |change: f64, rounding: f64| [change, rounding * (1.0 + change.abs())];
    let at = |channel: usize, step: usize| series.values.at(step * set.channels().len() + channel);
    if let Some(close) = set.role(Role::Close) {
        measured(series, close, last, horizon)?;
        let [from, to] = [at(close, last), at(close, last + horizon)];
        return (from > 0.0).then(|| with(to / from - 1.0, OF_PRICES));
    }
    let channel = set.role(Role::Return)?;
    if series.filled.any(channel, last + 1..last + 1 + horizon) {
        return None;
    }
    let sum: f64 = (last + 1..=last + horizon).map(|step| at(channel, step)).sum();
    Some(with(sum.exp_m1(), OF_RETURN * horizon as f64))
}

/// Windows of one set, in the order of series and time.
#[derive(Clone, Debug)]
pub struct Windows {
    set: Arc<SeriesSet>,
    windows: WindowList,
    classes: Arc<[String]>,
}

impl Windows {
    pub(crate) fn new(
        set: Arc<SeriesSet>,
        mut windows: WindowList,
        classes: Arc<[String]>,
    ) -> Self {
        windows.shrink_to_fit();
        Self { set, windows, classes }
    }

    /// The set that the windows look into.
    pub fn set(&self) -> &Arc<SeriesSet> {
        &self.set
    }

    /// The windows.
    pub fn windows(&self) -> &WindowList {
        &self.windows
    }

    /// Number of windows.
    pub fn len(&self) -> usize {
        self.windows.len()
    }

    /// Whether there is no window.
    pub fn is_empty(&self) -> bool {
        self.windows.is_empty()
    }

    /// Steps of the longest window.
    pub fn longest(&self) -> usize {
        self.windows.longest()
    }

    /// Class names that the labels of the windows index.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    fn labelled(&self) -> Self {
        let windows = self.windows.iter().filter(|window| window.label.is_some()).collect();
        Self::new(Arc::clone(&self.set), windows, Arc::clone(&self.classes))
    }
}

/// Windows that may be trained on, augmented, and used to fit a [`Normaliser`](crate::Normaliser).
#[derive(Clone, Debug)]
pub struct TrainWindows(Windows);

/// Windows that are only ever measured on.
///
/// They cannot stand where training windows are wanted:
///
/// ```compile_fail
/// fn fit(held_out: &firebox_core::HeldOutWindows) {
///     let _ = firebox_core::Normaliser::fit(firebox_core::Normalisation::Standard, held_out);
/// }
/// ```
#[derive(Clone, Debug)]
pub struct HeldOutWindows(Windows);

macro_rules! deref_windows {
    ($($name:ident),*) => {$(
        impl $name {
            pub(crate) fn new(windows: Windows) -> Self {
                Self(windows)
            }

            /// The windows that have a label.
            pub fn labelled(&self) -> Self {
                Self(self.0.labelled())
            }

            /// The same windows of the same series with other channels.
            pub(crate) fn on(self, set: &Arc<SeriesSet>) -> Self {
                Self(Windows { set: Arc::clone(set), ..self.0 })
            }
        }

        impl std::ops::Deref for $name {
            type Target = Windows;

            fn deref(&self) -> &Windows {
                &self.0
            }
        }
    )*};
}

deref_windows!(TrainWindows, HeldOutWindows);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_majority_needs_its_share_and_ties_go_to_the_first_class() {
        let labels = [Some(1), Some(1), Some(0), None];
        assert_eq!(majority(&labels, 2, 0.5), Some(1));
        assert_eq!(majority(&labels, 2, 0.6), None);
        assert_eq!(majority(&[Some(1), Some(0)], 2, 0.5), Some(0));
        assert_eq!(majority(&[None], 2, 0.0), None);
        // 0.55 · 20 is more than 11 in f64.
        let eleven: Vec<_> = (0..20).map(|at| Some(u32::from(at < 11))).collect();
        assert_eq!(majority(&eleven, 2, 0.55), Some(1));
        assert_eq!(majority(&eleven, 2, 0.551), None);
    }

    #[test]
    fn forward_labels_compare_with_the_windows_own_volatility() {
        let close = [0.0, 1.0, 0.0, 1.0, 0.0, 9.0, 0.1, -9.0];
        let label = |horizon| forward(&|t| close[t], 0, 5, horizon, 1.0);
        assert_eq!([label(1), label(2), label(3)], [Some(2), Some(1), Some(0)]);
        assert_eq!(forward(&|_| 1.0, 0, 5, 1, 1.0), None);
        // An even rise has no volatility but by how its closes were rounded.
        assert_eq!(forward(&|t| 1.1 + 0.1 * t as f64, 0, 5, 1, 1.0), None);
        // Of a threshold of 0, every move counts, and no move is none.
        let after = |last: f64| forward(&|t| if t == 5 { last } else { close[t] }, 0, 5, 1, 0.0);
        assert_eq!([-1e-9, 0.0, 1e-9].map(after), [Some(0), Some(1), Some(2)]);
    }

    #[test]
    fn a_return_of_exactly_the_threshold_counts_upwards_and_downwards() {
        let class = |role, values: &[f64], horizon, threshold| {
            let series = Series::regular("a", 0, 1, values.to_vec(), 1);
            let set =
                SeriesSet::new(vec![crate::Channel::new("x", role)], vec![], vec![series]).unwrap();
            Labels::Return { horizon, threshold }.of(&set, &set.series()[0], 0, 1)
        };
        for (from, to, threshold, expected) in [
            // 1001 / 1000 − 1 is 0.00099999999999989 in f64, and 8.2 / 8 − 1 is 0.02499999999999991.
            (1000.0f64, 1001.0f64, 0.001, 2),
            (1000.0, 999.0, 0.001, 0),
            (8.0, 8.2, 0.025, 2),
            (8.0, 7.8, 0.025, 0),
            (100.0, 1.0, 0.99, 0),
            (1000.0, 1000.999, 0.001, 1),
            (1000.0, 999.001, 0.001, 1),
            (1000.0, 1000.0, 0.0, 1),
            (1000.0, 1000.0, 1e-16, 1),
        ] {
            let what = format!("{from} {to} {threshold}");
            let (log, expected) = ((to / from).ln(), Some(expected));
            assert_eq!(class(Role::Close, &[from, to], 1, threshold), expected, "{what}");
            assert_eq!(class(Role::Return, &[0.0, log], 1, threshold), expected, "{what}");
            let logs = [0.0, 1007.0f64.ln() - from.ln(), to.ln() - 1007.0f64.ln()];
            assert_eq!(class(Role::Return, &logs, 2, threshold), expected, "{what}");
        }
    }

    #[test]
    fn a_return_is_the_same_from_closes_and_from_their_logarithms() {
        let close = [1.0f64, 1.001, 1.0005, 1.0075, 1.0, 0.992];
        let logs: Vec<f64> =
            (0..6).map(|t| if t == 0 { 0.3 } else { (close[t] / close[t - 1]).ln() }).collect();
        let label = |role, values: &[f64], start| {
            let series = Series::regular("a", 0, 1, values.to_vec(), 1);
            let set =
                SeriesSet::new(vec![crate::Channel::new("x", role)], vec![], vec![series]).unwrap();
            let rule = Labels::Return { horizon: 2, threshold: 0.006 };
            rule.of(&set, &set.series()[0], start, 2)
        };
        for (start, expected) in [(0, Some(2)), (1, Some(1)), (2, Some(0))] {
            assert_eq!(label(Role::Close, &close, start), expected, "{start}");
            assert_eq!(label(Role::Return, &logs, start), expected, "{start}");
        }
        assert_eq!(label(Role::Other, &close, 0), None);
        // From the third close to the fifth it falls by 0.05 %, from the fourth to the sixth by 1.5 %.
        let series = Series::regular("a", 0, 1, close.to_vec(), 1);
        let channels = vec![crate::Channel::new("x", Role::Close)];
        let set = SeriesSet::new(channels, vec![], vec![series]).unwrap();
        let last = |start, length, threshold| {
            let window = Window { series: 0, start, length, label: None };
            Labels::Return { horizon: 2, threshold }.last_direction(&set, &window)
        };
        assert_eq!(
            [last(0, 5, 0.006), last(1, 5, 0.006), last(0, 5, 0.0004)],
            [Some(1), Some(0), Some(0)]
        );
        assert_eq!(last(4, 2, 0.006), None);
        // No class is made of what nobody measured: the last close of the window and the one at the horizon.
        let of = |role, values: &[f64], filled: usize, rule: Labels| {
            let mut series = Series::regular("a", 0, 1, values.to_vec(), 1);
            series.filled.add(0, filled..filled + 1);
            let set =
                SeriesSet::new(vec![crate::Channel::new("x", role)], vec![], vec![series]).unwrap();
            rule.of(&set, &set.series()[0], 0, 3).is_some()
        };
        let returns = Labels::Return { horizon: 2, threshold: 0.006 };
        let forward = Labels::Forward { horizon: 2, threshold: 1.0 };
        let by =
            |role, values: &[f64], rule| [0, 1, 2, 3, 4, 5].map(|at| of(role, values, at, rule));
        let prices = [true, true, false, true, false, true];
        assert_eq!(by(Role::Close, &close, returns), prices);
        assert_eq!(by(Role::Close, &close, forward), prices);
        assert_eq!(by(Role::Return, &logs, returns), [true, true, true, false, false, true]);
        assert_eq!(label(Role::Close, &[0.0; 6], 0), None);
    }
}
