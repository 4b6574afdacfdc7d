//! Reconstruction error on masked steps, beside what anyone gets without a model.
//!
//! Plain functions on windows; drawing masks and running the model is done elsewhere.

use firebox_core::Stream;
use serde::{Deserialize, Serialize};

use crate::together::independent;
use crate::{Estimate, EvalConfig, EvalError, Resampling, Together};

/// A window with some steps masked, and what a model put there.
///
/// # Shapes
///
/// - `truth`, `reconstructed`: `[time, channel]`, row-major, without padding.
/// - `mask`: `[time]`, true where the step was hidden from the model.
/// - `filled`: `[time, channel]`, true where the value does not count, as nobody measured it or the model does not restore its step; empty where all do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MaskedWindow {
    /// Index of the window within its part.
    pub index: usize,
    /// Normalised values.
    pub truth: Vec<f32>,
    /// The model's values, at every step.
    pub reconstructed: Vec<f32>,
    /// Hidden steps.
    pub mask: Vec<bool>,
    /// Values that do not count: they were put in, or the model does not restore their step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filled: Vec<bool>,
}

impl MaskedWindow {
    /// Takes the first `length` steps of padded buffers, as batches hold them.
    ///
    /// # Shapes
    ///
    /// - `truth`, `reconstructed`: `[time, channel]`; `mask`: `[time]`; each at least `length` long.
    ///
    /// # Panics
    ///
    /// When a buffer is shorter.
    pub fn from_padded(
        index: usize,
        truth: &[f32],
        reconstructed: &[f32],
        mask: &[bool],
        length: usize,
        channels: usize,
    ) -> Self {
        Self {
            index,
            truth: truth[..length * channels].to_vec(),
            reconstructed: reconstructed[..length * channels].to_vec(),
            mask: mask[..length].to_vec(),
            filled: vec![],
        }
    }

    /// Whether any value of a step counts. Of others there may be no reconstruction.
    pub(crate) fn counts(&self, step: usize, channels: usize) -> bool {
        let own = self.filled.get(step * channels..(step + 1) * channels);
        own.is_none_or(|filled| filled.contains(&false))
    }

    fn check(&self, channels: usize) -> Result<(), EvalError> {
        let values = self.mask.len() * channels;
        let problem = if self.truth.len() != values || self.reconstructed.len() != values {
            format!(
                "{} steps of {channels} channels need {values} values; the truth has {} and the reconstruction {}",
                self.mask.len(),
                self.truth.len(),
                self.reconstructed.len()
            )
        } else if !self.filled.is_empty() && self.filled.len() != values {
            format!("{} of {values} values are said to count or not", self.filled.len())
        } else if let Some(place) = self.reconstructed.iter().position(|v| !v.is_finite()) {
            format!(
                "the reconstruction of step {} channel {} is {}: the model has diverged",
                place / channels,
                place % channels,
                self.reconstructed[place]
            )
        } else {
            return Ok(());
        };
        Err(EvalError::MaskedWindow { index: self.index, problem })
    }
}

/// What stands in for masked values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fill {
    /// The pre-trained model's reconstruction.
    Model,
    /// A straight line between the steps beside the mask.
    Linear,
    /// The last step before the mask.
    LastValue,
    /// The mean of the window's steps that are not masked.
    SeenMean,
    /// Zero, the mean of a normalised channel.
    Mean,
}

impl Fill {
    /// Every fill, the model first.
    pub const ALL: [Self; 5] =
        [Self::Model, Self::Linear, Self::LastValue, Self::SeenMean, Self::Mean];

    /// Its name in running text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Model => "pre-trained model",
            Self::Linear => "linear interpolation",
            Self::LastValue => "last value",
            Self::SeenMean => "mean of the visible steps",
            Self::Mean => "mean (zero)",
        }
    }
}

/// Carries the last visible step forward over masked ones. Before the first visible step stands
/// that step; without any, zero.
///
/// # Shapes
///
/// - `window`: `[time, channel]`, row-major; `mask`: `[time]`. Returns `[time, channel]`.
pub fn fill_last_value(window: &[f32], mask: &[bool], channels: usize) -> Vec<f32> {
    let mut out = window.to_vec();
    let first = mask.iter().position(|masked| !masked);
    let mut source = first;
    for step in 0..mask.len() {
        if !mask[step] {
            source = Some(step);
        } else {
            for channel in 0..channels {
                out[step * channels + channel] =
                    source.map_or(0.0, |source| window[source * channels + channel]);
            }
        }
    }
    out
}

/// Draws a straight line over each masked run between the visible steps beside it. A run at an end
/// of the window takes the one visible neighbour; without any, zero.
///
/// # Shapes
///
/// - `window`: `[time, channel]`, row-major; `mask`: `[time]`. Returns `[time, channel]`.
pub fn fill_linear(window: &[f32], mask: &[bool], channels: usize) -> Vec<f32> {
    let mut out = fill_last_value(window, mask, channels);
    let mut step = 0;
    while step < mask.len() {
        let end = (step..mask.len()).find(|step| !mask[*step]).unwrap_or(mask.len());
        if step > 0 && step < end && end < mask.len() {
            let run = (end - step + 1) as f32;
            for (place, masked) in (step..end).enumerate() {
                let share = (place + 1) as f32 / run;
                for channel in 0..channels {
                    let before = window[(step - 1) * channels + channel];
                    let after = window[end * channels + channel];
                    out[masked * channels + channel] = before + share * (after - before);
                }
            }
        }
        step = end + 1;
    }
    out
}

/// Puts the mean of each channel over the window's visible steps on masked ones; without any, zero. What is noise around a
/// level cannot be told better.
///
/// # Shapes
///
/// - `window`: `[time, channel]`, row-major; `mask`: `[time]`. Returns `[time, channel]`.
pub fn fill_seen_mean(window: &[f32], mask: &[bool], channels: usize) -> Vec<f32> {
    let mut sums = vec![0.0f64; channels];
    let steps = || window.chunks_exact(channels.max(1)).zip(mask);
    for (values, _) in steps().filter(|(_, masked)| !**masked) {
        sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += f64::from(*value));
    }
    let seen = mask.iter().filter(|masked| !**masked).count().max(1) as f64;
    let mut out = window.to_vec();
    for (values, masked) in out.chunks_exact_mut(channels.max(1)).zip(mask) {
        if *masked {
            values.iter_mut().zip(&sums).for_each(|(value, sum)| *value = (sum / seen) as f32);
        }
    }
    out
}

/// Puts zero, the mean of a normalised channel, on masked steps.
///
/// # Shapes
///
/// - `window`: `[time, channel]`, row-major; `mask`: `[time]`. Returns `[time, channel]`.
pub fn fill_mean(window: &[f32], mask: &[bool], channels: usize) -> Vec<f32> {
    let mut out = window.to_vec();
    for (values, masked) in out.chunks_exact_mut(channels.max(1)).zip(mask) {
        if *masked {
            values.fill(0.0);
        }
    }
    out
}

/// Errors of one masked window, summed over its masked values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowErrors {
    /// Index of the window within its part.
    pub index: usize,
    /// Squared errors of each fill, in the order of [`Fill::ALL`], in squared normalised units.
    pub squared: [f64; 5],
    /// Masked values that were measured, over which they are summed.
    pub values: f64,
}

impl WindowErrors {
    /// The mean squared error of a fill.
    pub fn mean(&self, fill: Fill) -> f64 {
        let place = Fill::ALL.iter().position(|own| *own == fill).unwrap_or(0);
        self.squared[place] / self.values
    }
}

/// Collects the errors of masked windows, one after the other.
#[derive(Clone, Debug)]
pub struct ReconstructionTally {
    channels: Vec<String>,
    windows: Vec<WindowErrors>,
    /// Which they are of all that were added.
    places: Vec<usize>,
    added: usize,
    /// `[fill][channel]`.
    squared: [Vec<f64>; 5],
    absolute: [f64; 5],
    masked_steps: u64,
    /// Values that count, of each channel.
    values: Vec<f64>,
}

impl ReconstructionTally {
    /// An empty one for windows of these channels.
    pub fn new(channels: Vec<String>) -> Self {
        let squared = std::array::from_fn(|_| vec![0.0; channels.len()]);
        Self {
            values: vec![0.0; channels.len()],
            channels,
            windows: vec![],
            places: vec![],
            added: 0,
            squared,
            absolute: [0.0; 5],
            masked_steps: 0,
        }
    }

    /// Adds a window. Windows come in the order of time; one without a masked value that was measured adds nothing.
    ///
    /// # Errors
    ///
    /// When its parts do not fit together, or the reconstruction is not finite.
    pub fn add(&mut self, window: &MaskedWindow) -> Result<(), EvalError> {
        let channels = self.channels.len();
        window.check(channels)?;
        self.added += 1;
        let counts = |at: &usize| {
            window.mask[at / channels] && !window.filled.get(*at).copied().unwrap_or(false)
        };
        let counted: Vec<usize> = (0..window.truth.len()).filter(counts).collect();
        if counted.is_empty() {
            return Ok(());
        }
        let fills = [
            window.reconstructed.clone(),
            fill_linear(&window.truth, &window.mask, channels),
            fill_last_value(&window.truth, &window.mask, channels),
            fill_seen_mean(&window.truth, &window.mask, channels),
            fill_mean(&window.truth, &window.mask, channels),
        ];
        let values = counted.len() as f64;
        let mut own = WindowErrors { index: window.index, squared: [0.0; 5], values };
        counted.iter().for_each(|at| self.values[at % channels] += 1.0);
        for (place, fill) in fills.iter().enumerate() {
            for at in counted.iter().copied() {
                let error = f64::from(fill[at]) - f64::from(window.truth[at]);
                own.squared[place] += error * error;
                self.squared[place][at % channels] += error * error;
                self.absolute[place] += error.abs();
            }
        }
        self.windows.push(own);
        self.places.push(self.added - 1);
        let steps: std::collections::BTreeSet<usize> =
            counted.iter().map(|at| at / channels).collect();
        self.masked_steps += steps.len() as u64;
        Ok(())
    }

    /// The errors of each window that has a masked value which was measured, in the order in which they were added.
    pub fn windows(&self) -> &[WindowErrors] {
        &self.windows
    }

    /// The scores, or `None` without any masked step. `together` says which of the windows that were added hang together, and
    /// how many there are by default of [`EvalConfig::block`].
    ///
    /// # Panics
    ///
    /// When `together` is of another number of windows.
    pub fn finish(&self, config: &EvalConfig, together: &Together) -> Option<Reconstruction> {
        if self.windows.is_empty() || self.channels.is_empty() {
            return None;
        }
        let together = together.of_chosen(&self.places, 1).asked(config.block);
        let resampling = Resampling {
            stream: Stream::new(config.seed, "reconstruction bootstrap"),
            resamples: config.resamples,
            block: together.block.clamp(1, self.windows.len()),
            units: together.units_in_order(),
            whole_units: together.whole_units,
            confidence: config.confidence,
        }
        .if_enough(self.windows.len());
        let all: Vec<u32> = together.sorted(&(0..self.windows.len() as u32).collect::<Vec<_>>());
        let value = self.means(&all);
        let resampled = resampling.map(self.windows.len(), |indices, _| {
            self.means(&indices.iter().map(|index| all[*index as usize]).collect::<Vec<_>>())
        });
        let estimate = |of: &dyn Fn(&[f64; 5]) -> f64| {
            let resampled: Vec<f64> = resampled.iter().map(of).collect();
            Estimate::from_resamples(of(&value), &resampled, config.confidence)
        };
        let values: f64 = self.values.iter().sum();
        let scores = Fill::ALL.iter().enumerate().map(|(place, fill)| ReconstructionScore {
            fill: *fill,
            mean_squared_error: estimate(&|means| means[place]),
            mean_absolute_error: self.absolute[place] / values,
            per_channel: self.squared[place]
                .iter()
                .zip(&self.values)
                .map(|(sum, values)| sum / values)
                .collect(),
        });
        let reductions = Fill::ALL.iter().enumerate().skip(1).map(|(place, fill)| Reduction {
            fill: *fill,
            reduction: estimate(&|means| reduction(means[0], means[place])),
        });
        Some(Reconstruction {
            windows: self.windows.len(),
            masked_steps: self.masked_steps,
            channels: self.channels.clone(),
            confidence: config.confidence,
            block: resampling.block,
            units: resampling.drawn_units(),
            scores: scores.collect(),
            reductions: reductions.collect(),
        })
    }

    /// Mean squared error of each fill over the drawn windows' masked values.
    fn means(&self, indices: &[u32]) -> [f64; 5] {
        let mut sums = [0.0; 5];
        let mut values = 0.0;
        for index in indices {
            let window = &self.windows[*index as usize];
            sums.iter_mut().zip(window.squared).for_each(|(sum, own)| *sum += own);
            values += window.values;
        }
        sums.map(|sum| sum / values)
    }
}

/// One minus the quotient of two errors; two errors of zero are equal. A naive fill without any error cannot be improved
/// on: any error is infinitely worse.
fn reduction(own: f64, other: f64) -> f64 {
    if own == other { 0.0 } else { 1.0 - own / other }
}

/// Reconstruction errors of the model and of naive fills on the same masked steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reconstruction {
    /// Windows measured.
    pub windows: usize,
    /// Steps masked in them.
    pub masked_steps: u64,
    /// Names of the channels.
    pub channels: Vec<String>,
    /// Share of the resamples within an interval.
    pub confidence: f64,
    /// Consecutive windows that were drawn together.
    pub block: usize,
    /// How many whole series or groups of equal size those of the windows are as good as
    /// ([`equal_units`](crate::equal_units)), if these were drawn.
    #[serde(rename = "equal_units", default, skip_serializing_if = "Option::is_none")]
    pub units: Option<usize>,
    /// The errors, the model first.
    pub scores: Vec<ReconstructionScore>,
    /// How much lower the model's error is than that of each naive fill.
    pub reductions: Vec<Reduction>,
}

/// The error of one fill.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReconstructionScore {
    /// Which fill.
    pub fill: Fill,
    /// Over all masked values, in squared normalised units.
    pub mean_squared_error: Estimate,
    /// Over all masked values, in normalised units.
    pub mean_absolute_error: f64,
    /// Mean squared error of each channel; NaN of one of which no masked value was measured.
    #[serde(deserialize_with = "firebox_core::numbers_or_nan")]
    pub per_channel: Vec<f64>,
}

/// How much lower the model's mean squared error is than a naive fill's: `1 − model / fill`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reduction {
    /// Which fill.
    pub fill: Fill,
    /// The share; negative where the model is worse, without bounds where the fill has no error.
    pub reduction: Estimate,
}

impl Reconstruction {
    /// Windows that are independent of each other: the windows over the block, or the units that were drawn.
    pub fn independent_windows(&self) -> usize {
        independent(self.windows, self.block, self.units)
    }

    /// The naive fill that is hardest to beat.
    pub fn hardest(&self) -> Option<&Reduction> {
        self.reductions.iter().min_by(|a, b| a.reduction.value.total_cmp(&b.reduction.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_nobody_measured_do_not_count() {
        let window = |filled: Vec<bool>| MaskedWindow {
            index: 0,
            truth: vec![0.0, 1.0, 2.0, 3.0, 9.0, 5.0, 4.0, 7.0],
            reconstructed: vec![0.0, 0.0, 2.5, 3.0, 0.0, 5.0, 4.0, 9.0],
            mask: vec![false, true, true, true],
            filled,
        };
        let scores = |windows: &[MaskedWindow]| {
            let mut tally = ReconstructionTally::new(vec!["a".to_owned(), "b".to_owned()]);
            windows.iter().for_each(|window| tally.add(window).unwrap());
            let one = Together::every(1);
            tally.finish(&EvalConfig::default(), &one).map(|found| found.scores[0].clone())
        };
        let of = |places: &[usize]| {
            let filled = (0..8).map(|at| places.contains(&at)).collect();
            scores(&[window(filled)])
                .map(|own| (own.mean_squared_error.value, own.mean_absolute_error, own.per_channel))
        };
        // The third value of the first channel was put in, and is far off.
        assert_eq!(of(&[4]), Some((4.25 / 5.0, 2.5 / 5.0, vec![0.125, 4.0 / 3.0])));
        assert_eq!(of(&[]), Some((85.25 / 6.0, 11.5 / 6.0, vec![81.25 / 3.0, 4.0 / 3.0])));
        assert_eq!(of(&[2, 3, 4, 5, 6, 7]), None);
        // Of the first channel nothing was measured, which a file of scores can tell.
        let second = scores(&[window((0..8).map(|at| [2, 4, 6].contains(&at)).collect())]).unwrap();
        let text = serde_json::to_string(&second).unwrap();
        assert!(text.contains(r#""per_channel":[null,"#), "{text}");
        let read: ReconstructionScore = serde_json::from_str(&text).unwrap();
        assert!(read.per_channel[0].is_nan());
        assert_eq!((read.per_channel[1], read.mean_absolute_error), (4.0 / 3.0, 2.0 / 3.0));
        let short = ReconstructionTally::new(vec!["a".to_owned(), "b".to_owned()])
            .add(&window(vec![true; 3]))
            .unwrap_err();
        assert!(short.to_string().contains("3 of 8 values"), "{short}");
    }

    #[test]
    fn fills_by_hand() {
        let check = |window: &[f32], mask: &[u8], channels, last: &[f32], linear: &[f32]| {
            let mask: Vec<bool> = mask.iter().map(|m| *m == 1).collect();
            assert_eq!(fill_last_value(window, &mask, channels), last);
            assert_eq!(fill_linear(window, &mask, channels), linear);
        };
        // The masked values 9 must never come through.
        check(
            &[1.0, 9.0, 9.0, 4.0],
            &[0, 1, 1, 0],
            1,
            &[1.0, 1.0, 1.0, 4.0],
            &[1.0, 2.0, 3.0, 4.0],
        );
        check(&[9.0, 2.0, 9.0], &[1, 0, 1], 1, &[2.0, 2.0, 2.0], &[2.0, 2.0, 2.0]);
        check(&[9.0, 9.0], &[1, 1], 1, &[0.0, 0.0], &[0.0, 0.0]);
        check(
            &[0.0, 10.0, 9.0, 9.0, 2.0, 20.0, 9.0, 9.0, 4.0, 0.0],
            &[0, 1, 0, 1, 0],
            2,
            &[0.0, 10.0, 0.0, 10.0, 2.0, 20.0, 2.0, 20.0, 4.0, 0.0],
            &[0.0, 10.0, 1.0, 15.0, 2.0, 20.0, 3.0, 10.0, 4.0, 0.0],
        );
        check(&[], &[], 3, &[], &[]);
        assert_eq!(fill_mean(&[1.0, 2.0, 3.0, 4.0], &[true, false], 2), [0.0, 0.0, 3.0, 4.0]);
        let seen = fill_seen_mean(&[9.0, 9.0, 1.0, 4.0, 2.0, 8.0], &[true, false, false], 2);
        assert_eq!(seen, [1.5, 6.0, 1.0, 4.0, 2.0, 8.0]);
        assert_eq!(fill_seen_mean(&[9.0, 9.0], &[true, true], 1), [0.0, 0.0]);
        assert!(fill_seen_mean(&[], &[], 3).is_empty());
    }

    fn window(index: usize, noise: f32) -> MaskedWindow {
        let mut draws = Stream::new(index as u64, "window").draws();
        let mut level = 0.0;
        let truth: Vec<f32> = (0..60)
            .map(|_| {
                level += draws.normal() as f32;
                level
            })
            .collect();
        let reconstructed = truth.iter().map(|v| v + noise * draws.normal() as f32).collect();
        let mask = (0..30).map(|step| step % 10 >= 5).collect();
        MaskedWindow { index, truth, reconstructed, mask, filled: vec![] }
    }

    fn tally(noise: f32) -> Reconstruction {
        let mut tally = ReconstructionTally::new(vec!["a".to_owned(), "b".to_owned()]);
        (0..100).for_each(|index| tally.add(&window(index, noise)).unwrap());
        tally
            .finish(&EvalConfig { resamples: 400, ..EvalConfig::default() }, &Together::default())
            .unwrap()
    }

    #[test]
    fn a_good_model_wins_with_its_interval_and_a_bad_one_loses() {
        let good = tally(0.5);
        assert_eq!((good.windows, good.masked_steps), (100, 1500));
        let model = &good.scores[0];
        assert!((model.mean_squared_error.value - 0.25).abs() < 0.03);
        assert!((model.mean_absolute_error - 0.5 * 0.798).abs() < 0.03);
        let mean = model.per_channel.iter().sum::<f64>() / 2.0;
        assert!((mean - model.mean_squared_error.value).abs() < 1e-12);
        assert!(good.reductions.iter().all(|r| r.reduction.is_above_zero()));
        assert_eq!(good.hardest().unwrap().fill, Fill::Linear);
        let bad = tally(20.0);
        assert!(bad.hardest().unwrap().reduction.is_below_zero());
    }

    #[test]
    fn a_sentence_says_how_many_times_a_large_error_is_and_claims_nothing_of_an_open_one() {
        let mut tallied = tally(20.0);
        let mut said = |value, low, high| {
            for one in &mut tallied.reductions {
                one.reduction = Estimate { value, low, high };
            }
            crate::verdict::compared(&tallied).unwrap()
        };
        let times = said(-972_021.054, -1e6, -9e5);
        assert!(times.contains("is 972,022 times that of "), "{times}");
        assert!(times.contains("interval 900,001 to 1,000,001)"), "{times}");
        let percent = said(-9.9, -10.0, -9.0);
        assert!(percent.contains("by 990.0 %"), "{percent}");
        let never = f64::NEG_INFINITY;
        let perfect = said(never, never, never);
        let expected = "is above that of linear interpolation, which errs nowhere";
        assert!(perfect.ends_with(expected), "{perfect}");
        assert_eq!(said(never, never, 0.0), perfect);
        let few = said(never, f64::NAN, f64::NAN);
        assert!(few.contains(&format!("{expected}, and the test windows are too few")), "{few}");
        let open = said(0.2, -0.1, 0.3);
        assert!(open.contains("is not shown to be below that of "), "{open}");
    }

    #[test]
    fn what_does_not_fit_is_refused_and_nothing_masked_is_nothing() {
        let mut tally = ReconstructionTally::new(vec!["a".to_owned(), "b".to_owned()]);
        let mut bad = window(3, 0.1);
        bad.reconstructed[7] = f32::NAN;
        let error = tally.add(&bad).unwrap_err().to_string();
        assert!(error.contains("window 3") && error.contains("step 3 channel 1"), "{error}");
        let mut short = window(0, 0.1);
        short.truth.pop();
        assert!(tally.add(&short).unwrap_err().to_string().contains("need 60"));
        let mut visible = window(0, 0.1);
        visible.mask.fill(false);
        tally.add(&visible).unwrap();
        assert!(tally.finish(&EvalConfig::default(), &Together::default()).is_none());
        // Windows without a masked step have no place in an order.
        let windows: Vec<MaskedWindow> = (0..6).map(|index| window(index, 0.1)).collect();
        let of = |order: Vec<u32>| {
            let mut tally = ReconstructionTally::new(vec!["a".to_owned(), "b".to_owned()]);
            for (place, window) in windows.iter().enumerate() {
                let mask = vec![false; window.mask.len()];
                let bare = MaskedWindow { mask, ..window.clone() };
                tally.add(if place == 2 { &bare } else { window }).unwrap();
            }
            let config = EvalConfig { resamples: 50, ..EvalConfig::default() };
            tally.finish(&config, &Together { block: 2, order, ..Together::default() }).unwrap()
        };
        let (sorted, plain) = (of(vec![5, 3, 1, 0, 2, 4]), of(vec![]));
        assert_eq!((sorted.windows, plain.windows), (5, 5));
        let error = |of: &Reconstruction| of.scores[0].mean_squared_error.value;
        assert!((error(&sorted) - error(&plain)).abs() < 1e-12);
        assert_eq!(
            [reduction(0.0, 0.0), reduction(1.0, 0.0), reduction(1.0, 4.0)],
            [0.0, f64::NEG_INFINITY, 0.75]
        );
    }
}
