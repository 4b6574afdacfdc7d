//! Bootstrap intervals: how far a score could move with other test windows and other seeds.
//!
//! Resamples are shared by everything that is measured on the same windows, so a difference of two
//! scores is a paired difference. Windows that overlap in time are drawn in circular blocks of
//! consecutive windows (Politis and Romano, "A circular block-resampling procedure for stationary
//! data", 1992); with a block of one this is the ordinary bootstrap of Efron. Where they hang together by the unit that they
//! are of, such as a subject, whole units are drawn (the cluster bootstrap: Davison and Hinkley, "Bootstrap methods and their
//! application", 1997, section 3.8).

use std::collections::BTreeMap;

use firebox_core::Stream;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::together::{drawn_units, number_anew, number_of_units};
use crate::{Confusion, Metric, Metrics, Together};

/// Blocks of windows below which there is no interval. A choice: a resample of one block is all windows again, and those of
/// few are so alike that an interval of them would be far too narrow.
pub(crate) const FEWEST_BLOCKS: usize = 5;

/// A number with its bootstrap interval, whose ends are NaN where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// On the windows as they are.
    #[serde(deserialize_with = "firebox_core::number_or_nan")]
    pub value: f64,
    /// Lower end of the interval.
    #[serde(deserialize_with = "firebox_core::number_or_nan")]
    pub low: f64,
    /// Upper end of the interval.
    #[serde(deserialize_with = "firebox_core::number_or_nan")]
    pub high: f64,
}

impl Estimate {
    /// The percentile interval of resampled values, at this confidence. A resample without a value, NaN, may have had any: it
    /// counts beyond both ends, and where one of them would be among such there is no interval.
    pub fn from_resamples(value: f64, resampled: &[f64], confidence: f64) -> Self {
        let (mut sorted, unknown): (Vec<f64>, Vec<f64>) =
            resampled.iter().partition(|value| !value.is_nan());
        sorted.sort_unstable_by(f64::total_cmp);
        let tail = (1.0 - confidence) / 2.0;
        let low = quantile(&[&unknown[..], &sorted].concat(), tail);
        let high = quantile(&[&sorted[..], &unknown].concat(), 1.0 - tail);
        match low.is_nan() || high.is_nan() {
            true => Self { value, low: f64::NAN, high: f64::NAN },
            false => Self { value, low, high },
        }
    }

    /// The same with an honest lower end where all of so many independent ones are right: a bootstrap of what is alike
    /// throughout has an interval of width zero, which claims a certainty that nobody has.
    #[must_use]
    pub fn unless_all_agree(self, independent: f64, confidence: f64) -> Self {
        match self.low == 1.0 {
            true => Self { low: bound_when_all_agree(independent, confidence), ..self },
            false => self,
        }
    }

    /// The same of a difference of two scores, of which `agree` says whether all is right in every resample of the one, and of
    /// the other: such a score may be as much less as it is by [`unless_all_agree`](Self::unless_all_agree), and the
    /// difference with it.
    #[must_use]
    pub fn unless_either_agrees(self, agree: [bool; 2], independent: f64, confidence: f64) -> Self {
        let room = 1.0 - bound_when_all_agree(independent, confidence);
        let [less, more] = agree.map(|agrees| if agrees { room } else { 0.0 });
        Self { low: self.low - less, high: self.high + more, ..self }
    }

    /// `84.2 % (81.0 % to 87.1 %)`, or the value alone where there is no interval.
    pub fn with_interval(&self, format: impl Fn(f64) -> String) -> String {
        let value = format(self.value);
        self.ends(format).map_or_else(|| value.clone(), |ends| format!("{value} ({ends})"))
    }

    /// `81.0 % to 87.1 %`, if it has an interval.
    pub fn ends(&self, format: impl Fn(f64) -> String) -> Option<String> {
        self.has_interval().then(|| format!("{} to {}", format(self.low), format(self.high)))
    }

    /// Whether it has an interval.
    pub fn has_interval(&self) -> bool {
        !self.low.is_nan() && !self.high.is_nan()
    }

    /// Whether the whole interval lies above zero: the only thing called a win.
    pub fn is_above_zero(&self) -> bool {
        self.has_interval() && self.low > 0.0
    }

    /// Whether the whole interval lies below zero.
    pub fn is_below_zero(&self) -> bool {
        self.has_interval() && self.high < 0.0
    }
}

/// The `share` quantile of sorted values, interpolated linearly (NumPy's default).
pub(crate) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = share.clamp(0.0, 1.0) * last as f64;
    let (low, part) = (place.floor() as usize, place.fract());
    let (value, next) = (sorted[low], sorted[(low + 1).min(last)]);
    // Between equal values, infinite ones among them, there is nothing to interpolate; next to an infinite one, the
    // lower is the cautious answer.
    match (next - value) * part {
        step if step.is_finite() => value + step,
        _ if next.is_nan() => f64::NAN,
        _ => value,
    }
}

/// Whether any of these scores has an interval; of too few independent windows none has.
pub(crate) fn have_intervals<'a>(
    mut scores: impl Iterator<Item = &'a BTreeMap<Metric, Estimate>>,
) -> bool {
    scores.any(|metrics| metrics.values().any(Estimate::has_interval))
}

/// Windows as runs of consecutive ones: the first of each and how many.
pub(crate) type Unit = Vec<(usize, usize)>;

/// What resamples are drawn by.
enum Drawn {
    /// Blocks alone.
    Blocks,
    /// Blocks, of which each window comes as often as its unit is drawn.
    Crossed {
        /// The unit of each window, from 0.
        units: Vec<u32>,
        /// How many units there are.
        count: usize,
    },
    /// Whole units.
    Whole(Vec<Unit>),
}

/// How windows are drawn again.
#[derive(Clone, Debug, PartialEq)]
pub struct Resampling {
    /// Where the draws come from.
    pub stream: Stream,
    /// Resamples drawn.
    pub resamples: u32,
    /// Consecutive windows drawn together: 1, or the number of windows that share a step.
    pub block: usize,
    /// The unit that each window is of, by any number of it, such as that of its series, where windows hang together by these
    /// and by blocks: a window comes as often as its block times its unit is drawn (the pigeonhole bootstrap of two crossed
    /// factors: Owen, "The pigeonhole bootstrap", 2007). Empty: by blocks alone.
    pub units: Vec<u32>,
    /// Units are drawn whole, as many as there are, and no blocks: where windows hang together by units alone, a block that
    /// begins in one unit and ends in another varies less than a unit does.
    pub whole_units: bool,
    /// Share of the resamples within an interval.
    pub confidence: f64,
}

impl Resampling {
    /// The windows of one resample, as indices below `windows`.
    ///
    /// The `resample`-th one is the same on any number of threads.
    pub fn indices(&self, windows: usize, resample: u32) -> Vec<u32> {
        self.indices_of(&self.drawn(), windows, resample)
    }

    fn indices_of(&self, by: &Drawn, windows: usize, resample: u32) -> Vec<u32> {
        let blocks = self.blocks(by, windows, resample).into_iter();
        let drawn = blocks
            .flat_map(|(start, length)| (start..start + length).map(|at| (at % windows) as u32));
        let Drawn::Crossed { units: of_window, count: units } = by else { return drawn.collect() };
        let (drawn, units): (Vec<u32>, usize) = (drawn.collect(), *units);
        let of_units = self.stream.substream(u64::MAX - 1);
        let mut draws = of_units.substream(u64::from(resample)).draws();
        let mut times = vec![0usize; units];
        (0..units).for_each(|_| times[draws.below(units as u64) as usize] += 1);
        let of = |at: &u32| times[of_window[*at as usize] as usize];
        let crossed: Vec<u32> =
            drawn.iter().flat_map(|at| std::iter::repeat_n(*at, of(at))).collect();
        // No drawn block has a window of a drawn unit: as good as never, and there has to be one.
        if crossed.is_empty() { drawn } else { crossed }
    }

    /// How many independent ones so many windows are as good as: as there are blocks of them, or units, whichever are fewer;
    /// where whole units are drawn, [as these are](crate::equal_units).
    pub fn independent(&self, windows: usize) -> usize {
        self.drawn_units().unwrap_or_else(|| {
            let units = number_of_units(&self.units).unwrap_or(windows);
            (windows / self.block.max(1)).min(units)
        })
    }

    /// How many units of equal size the units are as good as, if whole ones are drawn.
    pub(crate) fn drawn_units(&self) -> Option<usize> {
        drawn_units(&self.units, self.whole_units)
    }

    /// The same without a resample where there are too few blocks or units of so many windows for an interval.
    #[must_use]
    pub fn if_enough(self, windows: usize) -> Self {
        let independent = self.independent(windows);
        let resamples = if independent < FEWEST_BLOCKS { 0 } else { self.resamples };
        Self { resamples, ..self }
    }

    /// The units that are drawn whole, if they are.
    pub(crate) fn units_to_draw(&self) -> Option<Vec<Unit>> {
        (self.whole_units && !self.units.is_empty()).then(|| self.all_units())
    }

    /// The units that cross blocks, if they do.
    pub(crate) fn units_to_cross(&self) -> Option<Vec<Unit>> {
        (!self.whole_units && !self.units.is_empty()).then(|| self.all_units())
    }

    /// The windows of each unit.
    fn all_units(&self) -> Vec<Unit> {
        let mut units = self.units.clone();
        let mut all: Vec<Unit> = vec![vec![]; number_anew(&mut units)];
        for (window, unit) in units.iter().enumerate() {
            let own = &mut all[*unit as usize];
            match own.last_mut().filter(|(start, length)| *start + *length == window) {
                Some((_, length)) => *length += 1,
                None => own.push((window, 1)),
            }
        }
        all
    }

    /// What every resample is drawn by.
    fn drawn(&self) -> Drawn {
        if let Some(units) = self.units_to_draw() {
            return Drawn::Whole(units);
        }
        let mut units = self.units.clone();
        match number_anew(&mut units) {
            0 => Drawn::Blocks,
            count => Drawn::Crossed { units, count },
        }
    }

    /// What is drawn before units cross it, as blocks: first window and length. A block that reaches beyond the last window
    /// goes on with the first.
    fn blocks(&self, by: &Drawn, windows: usize, resample: u32) -> Unit {
        let mut draws = self.stream.substream(u64::from(resample)).draws();
        if let Drawn::Whole(units) = by {
            let count = units.len() as u64;
            let drawn = (0..count).map(|_| draws.below(count) as usize);
            return drawn.flat_map(|unit| units[unit].iter().copied()).collect();
        }
        let block = self.block.clamp(1, windows.max(1));
        (0..windows)
            .step_by(block)
            .map(|taken| (draws.below(windows as u64) as usize, block.min(windows - taken)))
            .collect()
    }

    /// Evaluates a statistic on every resample, in parallel, as [`Resampling::map`] does, on its
    /// blocks.
    pub(crate) fn map_blocks<T: Send>(
        &self,
        windows: usize,
        statistic: impl Fn(&[(usize, usize)], Stream) -> T + Sync,
    ) -> Vec<T> {
        let by = self.drawn();
        (0..self.resamples)
            .into_par_iter()
            .map(|resample| {
                let own = self.stream.substream(u64::MAX).substream(u64::from(resample));
                let blocks: Unit = match &by {
                    Drawn::Crossed { .. } => {
                        let drawn = self.indices_of(&by, windows, resample);
                        drawn.into_iter().map(|window| (window as usize, 1)).collect()
                    }
                    Drawn::Blocks | Drawn::Whole(_) => self.blocks(&by, windows, resample),
                };
                statistic(&blocks, own)
            })
            .collect()
    }

    /// Evaluates a statistic on every resample, in parallel. It gets the drawn windows and a stream
    /// of its own for whatever else is drawn again.
    pub fn map<T: Send>(
        &self,
        windows: usize,
        statistic: impl Fn(&[u32], Stream) -> T + Sync,
    ) -> Vec<T> {
        let by = self.drawn();
        (0..self.resamples)
            .into_par_iter()
            .map(|resample| {
                // Substreams of resamples occupy 0..resamples; the second level has its own.
                let own = self.stream.substream(u64::MAX).substream(u64::from(resample));
                statistic(&self.indices_of(&by, windows, resample), own)
            })
            .collect()
    }

    /// The interval of the mean of one value for each window.
    pub fn mean(&self, values: &[f64]) -> Estimate {
        let mean = |count: usize, sum: f64| if count > 0 { sum / count as f64 } else { 0.0 };
        let resampled = self.map(values.len(), |indices, _| {
            mean(indices.len(), indices.iter().map(|index| values[*index as usize]).sum())
        });
        let value = mean(values.len(), values.iter().sum());
        Estimate::from_resamples(value, &resampled, self.confidence)
    }
}

/// What one classifier predicted for the test windows, once for each seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Predictions {
    /// `[run][window]`; every run has the same windows.
    pub runs: Vec<Vec<u32>>,
}

impl Predictions {
    /// A classifier without anything random has a single run.
    pub fn single(predicted: Vec<u32>) -> Self {
        Self { runs: vec![predicted] }
    }

    /// The same with the windows in another order.
    pub(crate) fn sorted(&self, together: &Together) -> Self {
        Self { runs: self.runs.iter().map(|run| together.sorted(run)).collect() }
    }

    /// Metrics of each run on all windows.
    pub fn metrics(&self, classes: usize, truth: &[u32]) -> Vec<Metrics> {
        self.runs.iter().map(|run| Confusion::of(classes, truth, run).metrics()).collect()
    }
}

/// Metrics of several classifiers on the same resamples.
#[derive(Clone, Debug)]
pub struct Comparison {
    confidence: f64,
    /// `[classifier]`, the mean over its runs.
    values: Vec<Metrics>,
    /// Runs of each.
    runs: Vec<usize>,
    /// `[resample][classifier]`.
    resampled: Vec<Vec<Metrics>>,
    /// The same of one run, drawn by itself, and of all: how far one seed is from the others. Of classifiers with several
    /// runs.
    apart: Vec<Vec<Option<[Metrics; 2]>>>,
}

impl Comparison {
    /// Measures every classifier on the windows and on every resample of them. A classifier with
    /// several runs gets its runs resampled too, so that its interval covers both sources of chance. Their mean is moved away
    /// from that of all by the root of `n / (n − 1)`, as few drawn ones vary less than seeds do (Davison and Hinkley, "Bootstrap
    /// methods and their application", 1997, section 2.3).
    ///
    /// # Panics
    ///
    /// When a run has another number of windows than `truth`, or a class is not below `classes`.
    pub fn new(
        resampling: &Resampling,
        classes: usize,
        truth: &[u32],
        classifiers: &[Predictions],
    ) -> Self {
        for run in classifiers.iter().flat_map(|classifier| &classifier.runs) {
            assert_eq!(run.len(), truth.len(), "one prediction for each window");
        }
        let values = classifiers
            .iter()
            .map(|classifier| mean(&classifier.metrics(classes, truth)))
            .collect();
        let drawn =
            resampling.clone().if_enough(truth.len()).map(truth.len(), |indices, stream| {
                let of = |(classifier, place): (&Predictions, u64)| {
                    let mut draws = stream.substream(place).draws();
                    let all: Vec<Metrics> = classifier
                        .runs
                        .iter()
                        .map(|run| drawn_confusion(classes, truth, run, indices).metrics())
                        .collect();
                    let runs = all.len();
                    let mut one = |run: usize| match runs > 1 {
                        true => all[draws.below(runs as u64) as usize],
                        false => all[run],
                    };
                    let drawn: Vec<Metrics> = (0..runs).map(&mut one).collect();
                    let apart = (runs > 1).then(|| [one(0), mean(&all)]);
                    (of_seeds(&mean(&drawn), &mean(&all), runs), apart)
                };
                classifiers.iter().zip(0..).map(of).unzip::<_, _, Vec<_>, Vec<_>>()
            });
        let (resampled, apart) = drawn.into_iter().unzip();
        let runs = classifiers.iter().map(|classifier| classifier.runs.len()).collect();
        Self { confidence: resampling.confidence, values, runs, resampled, apart }
    }

    /// The same with intervals of another confidence.
    pub(crate) fn at(&self, confidence: f64) -> Self {
        Self { confidence, ..self.clone() }
    }

    /// A metric of one classifier.
    pub fn estimate(&self, classifier: usize, metric: Metric) -> Estimate {
        self.interval(|metrics| metric.of(&metrics[classifier]))
    }

    /// A metric of one classifier minus that of another, paired window by window.
    pub fn difference(&self, classifier: usize, baseline: usize, metric: Metric) -> Estimate {
        self.interval(|metrics| metric.of(&metrics[classifier]) - metric.of(&metrics[baseline]))
    }

    /// The same of a classifier that was trained with one seed, against others that were with several: it might have been
    /// as far from its mean by its seed as one of those is from theirs.
    pub fn difference_of_one(
        &self,
        classifier: usize,
        baseline: usize,
        metric: Metric,
    ) -> Estimate {
        let difference =
            |metrics: &[Metrics]| metric.of(&metrics[classifier]) - metric.of(&metrics[baseline]);
        let resampled = self.resampled.iter().zip(&self.apart).map(|(metrics, apart)| {
            let by_seed =
                apart[baseline].map_or(0.0, |[one, all]| metric.of(&one) - metric.of(&all));
            difference(metrics) + self.widening(baseline) * by_seed
        });
        let resampled: Vec<f64> = resampled.collect();
        Estimate::from_resamples(difference(&self.values), &resampled, self.confidence)
    }

    fn widening(&self, classifier: usize) -> f64 {
        widening(self.runs.get(classifier).copied().unwrap_or(1))
    }

    fn interval(&self, of: impl Fn(&[Metrics]) -> f64) -> Estimate {
        let resampled: Vec<f64> = self.resampled.iter().map(|metrics| of(metrics)).collect();
        Estimate::from_resamples(of(&self.values), &resampled, self.confidence)
    }
}

fn drawn_confusion(classes: usize, truth: &[u32], run: &[u32], indices: &[u32]) -> Confusion {
    let mut counts = vec![0; classes * classes];
    for index in indices {
        let index = *index as usize;
        counts[truth[index] as usize * classes + run[index] as usize] += 1;
    }
    Confusion { classes, counts }
}

/// How much farther runs lie from the mean of all seeds than from their own: the root of `n / (n − 1)`, or 1 of a single run, of
/// which no spread is known.
pub(crate) fn widening(runs: usize) -> f64 {
    let runs = runs as f64;
    if runs > 1.0 { (runs / (runs - 1.0)).sqrt() } else { 1.0 }
}

fn mean(runs: &[Metrics]) -> Metrics {
    let count = runs.len().max(1) as f64;
    each_metric(|metric| runs.iter().map(|run| metric.of(run)).sum::<f64>() / count)
}

/// The mean of drawn runs, as far from that of all as the mean of as many seeds is from that of every seed.
fn of_seeds(drawn: &Metrics, all: &Metrics, runs: usize) -> Metrics {
    if runs < 2 {
        return *drawn;
    }
    let by = widening(runs);
    // Seeds that differ may be moved beyond what a metric can be.
    each_metric(|metric| {
        (metric.of(all) + by * (metric.of(drawn) - metric.of(all))).clamp(0.0, 1.0)
    })
}

fn each_metric(of: impl Fn(Metric) -> f64) -> Metrics {
    Metrics {
        accuracy: of(Metric::Accuracy),
        balanced_accuracy: of(Metric::BalancedAccuracy),
        macro_precision: of(Metric::MacroPrecision),
        macro_recall: of(Metric::MacroRecall),
        macro_f1: of(Metric::MacroF1),
        weighted_precision: of(Metric::WeightedPrecision),
        weighted_recall: of(Metric::WeightedRecall),
        weighted_f1: of(Metric::WeightedF1),
    }
}

/// The smallest accuracy under which `windows` independent windows are all classified rightly
/// with probability `1 − confidence` halved: the exact bound (Clopper and Pearson, 1934) for the
/// one case in which a bootstrap knows nothing, because every resample is alike.
pub(crate) fn bound_when_all_agree(windows: f64, confidence: f64) -> f64 {
    ((1.0 - confidence) / 2.0).powf(1.0 / windows.max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resampling(block: usize) -> Resampling {
        Resampling {
            stream: Stream::new(1, "bootstrap"),
            resamples: 4000,
            block,
            units: vec![],
            whole_units: false,
            confidence: 0.95,
        }
    }

    #[test]
    fn resamples_without_a_value_widen_an_interval_or_leave_none() {
        let values: Vec<f64> = (0..1000).map(f64::from).collect();
        let of = |unknown: usize| {
            // Of either sign: 0/0 has another one on another processor.
            let mut all = values.clone();
            all[..unknown].iter_mut().enumerate().for_each(|(at, value)| {
                *value = if at % 2 == 0 { f64::NAN } else { -f64::NAN };
            });
            Estimate::from_resamples(500.0, &all, 0.9)
        };
        let known = of(0);
        assert!((known.low - 49.95).abs() < 1e-9 && (known.high - 949.05).abs() < 1e-9);
        let some = of(20);
        assert!((some.low - 49.95).abs() < 1e-9, "{some:?}");
        assert!(some.high > 965.0 && some.high < 975.0, "{some:?}");
        let many = of(60);
        assert!(!many.has_interval() && many.low.is_nan() && many.high.is_nan(), "{many:?}");
        let half = Estimate { value: 1.0, low: 0.5, high: f64::NAN };
        assert!(!half.is_above_zero());
        assert!(!Estimate { value: -1.0, low: f64::NAN, high: -0.5 }.is_below_zero());
    }

    #[test]
    fn quantiles_interpolate() {
        let sorted = [1.0, 2.0, 4.0];
        assert_eq!(
            [0.0, 0.25, 0.5, 0.75, 1.0].map(|q| quantile(&sorted, q)),
            [1.0, 1.5, 2.0, 3.0, 4.0]
        );
        assert!(quantile(&[], 0.5).is_nan());
        let (low, high) = (f64::NEG_INFINITY, f64::INFINITY);
        assert_eq!(quantile(&[low; 3], 0.3), low);
        assert_eq!(quantile(&[high; 3], 0.3), high);
        assert_eq!(quantile(&[low, 1.0], 0.5), low);
        assert_eq!([0.5, 0.7].map(|q| quantile(&[1.0, 2.0, high], q)), [2.0, 2.0]);
        assert!(quantile(&[1.0, f64::NAN], 0.5).is_nan());
    }

    #[test]
    fn an_estimate_that_is_not_finite_is_read_back() {
        let written = Estimate { value: f64::NAN, low: 0.5, high: f64::INFINITY };
        let text = serde_json::to_string(&written).unwrap();
        let read: Estimate = serde_json::from_str(&text).unwrap();
        assert!(read.value.is_nan() && read.low == 0.5 && read.high.is_nan(), "{read:?}");
        assert!(serde_json::from_str::<Estimate>(r#"{"value":0.5,"low":0.4}"#).is_err());
    }

    #[test]
    fn the_interval_of_a_mean_has_the_width_of_theory() {
        let mut draws = Stream::new(2, "values").draws();
        let values: Vec<f64> = (0..400).map(|_| draws.normal()).collect();
        let estimate = resampling(1).mean(&values);
        let width = estimate.high - estimate.low;
        assert!((width / (2.0 * 1.96 / 20.0) - 1.0).abs() < 0.15, "{width}");
        // Forty values, ten times each: blocks see that there are only forty.
        let repeated: Vec<f64> = (0..400).map(|i| values[i / 10]).collect();
        let blocks = resampling(10).mean(&repeated);
        let alone = resampling(1).mean(&repeated);
        assert!((blocks.high - blocks.low) > 2.0 * (alone.high - alone.low));
    }

    #[test]
    fn paired_differences_cancel_what_both_share() {
        let mut draws = Stream::new(3, "truth").draws();
        let truth: Vec<u32> = (0..500).map(|_| draws.below(3) as u32).collect();
        // Both are wrong on the same half; the second also on 20 more.
        let a: Vec<u32> =
            (0..500).map(|i| if i % 2 == 0 { truth[i] } else { (truth[i] + 1) % 3 }).collect();
        let b: Vec<u32> =
            (0..500).map(|i| if i < 40 { (truth[i] + 1) % 3 } else { a[i] }).collect();
        let classifiers = [a.clone(), b, a].map(Predictions::single);
        let comparison = Comparison::new(&resampling(1), 3, &truth, &classifiers);
        let difference = comparison.difference(0, 1, Metric::Accuracy);
        assert!((difference.value - 0.04).abs() < 1e-12 && difference.is_above_zero());
        let alone = comparison.estimate(0, Metric::Accuracy);
        assert!(difference.high - difference.low < 0.5 * (alone.high - alone.low));
        let same = comparison.difference(0, 2, Metric::Accuracy);
        assert_eq!((same.low, same.value, same.high), (0.0, 0.0, 0.0));
        assert!(!same.is_above_zero() && !same.is_below_zero());
        assert!(comparison.difference(1, 0, Metric::Accuracy).is_below_zero());
    }

    #[test]
    fn runs_widen_the_interval() {
        let truth = vec![0; 1000];
        let run = |wrong: usize| (0..1000).map(|i| u32::from(i < wrong)).collect::<Vec<u32>>();
        let several = Predictions { runs: vec![run(0), run(500), run(250)] };
        let comparison =
            Comparison::new(&resampling(1), 2, &truth, &[several, Predictions::single(run(250))]);
        let [several, single] = [0, 1].map(|c| comparison.estimate(c, Metric::Accuracy));
        assert_eq!((several.value, single.value), (0.75, 0.75));
        assert!(several.high - several.low > 3.0 * (single.high - single.low));
    }

    #[test]
    fn seeds_vary_in_a_resample_as_they_do_for_themselves() {
        // Four runs that are right for 900, 700, 500 and 300 of 1000 windows: accuracies with the unbiased variance 1/15. Windows
        // are alike in every run but for which are right, so drawn ones add about 0.6 · 0.4 / 1000 at most.
        let truth = vec![0; 1000];
        let run = |right: usize| (0..1000).map(|i| u32::from(i >= right)).collect::<Vec<u32>>();
        let several = Predictions { runs: vec![run(900), run(700), run(500), run(300)] };
        let comparison = Comparison::new(&resampling(1), 2, &truth, &[several]);
        let values = comparison.resampled.iter().map(|all| Metric::Accuracy.of(&all[0]));
        let values: Vec<f64> = values.collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let square: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let variance = square / values.len() as f64;
        // The variance of the mean of four seeds is 1/60; drawn without a correction, it is 3/4 of that.
        assert!((mean - 0.6).abs() < 0.01, "{mean}");
        assert!((0.0155..0.0182).contains(&variance), "{variance}");
    }

    #[test]
    fn an_interval_of_a_share_ends_at_what_a_share_can_be() {
        let truth = vec![0; 1000];
        let run = |right: usize| (0..1000).map(|i| u32::from(i >= right)).collect::<Vec<u32>>();
        let several = Predictions { runs: vec![run(1000), run(800)] };
        let comparison = Comparison::new(&resampling(1), 2, &truth, &[several]);
        // Both drawn runs being the first, 0.9 + √2 · 0.1 is more than all.
        let found = comparison.estimate(0, Metric::Accuracy);
        assert!(found.high == 1.0 && found.low < 0.78, "{found:?}");
        // Nor is it more than all above one that is half right.
        let half = Predictions::single(run(500));
        let all = [Predictions { runs: vec![run(1000), run(800)] }, half];
        let lead = Comparison::new(&resampling(1), 2, &truth, &all);
        assert!(lead.difference(0, 1, Metric::Accuracy).high < 0.54);
    }

    #[test]
    fn whole_units_are_drawn_in_place_of_blocks() {
        // Three units of one, two and four windows, that of two in two places.
        let units = vec![0, 1, 2, 2, 2, 2, 1];
        let own = Resampling { units, whole_units: true, ..resampling(2) };
        let mut times = [0usize; 3];
        for resample in 0..600 {
            let drawn = own.indices(7, resample);
            let mut counts = [0usize; 7];
            drawn.iter().for_each(|at| counts[*at as usize] += 1);
            // All windows of a unit come equally often, and three units are drawn.
            assert!(counts[1] == counts[6] && counts[2..6].iter().all(|n| *n == counts[2]));
            assert_eq!(counts[0] + counts[1] + counts[2], 3);
            // The first window of each unit.
            times.iter_mut().zip(counts).for_each(|(sum, own)| *sum += own);
        }
        // 600 times three draws of three: 600 of each, with a standard deviation of 20.
        assert!(times.iter().all(|drawn| (500..700).contains(drawn)), "{times:?}");
        let halves = Resampling { units: (0..12).map(|at| at / 2).collect(), ..own };
        for half in halves.map_halves(12, <[u32]>::to_vec) {
            let has = |at: u32| half.contains(&at);
            assert!(half.len() == 6 && (0..6).all(|unit| has(2 * unit) == has(2 * unit + 1)));
        }
    }

    #[test]
    fn units_count_as_there_are_whatever_their_numbers() {
        // The last three of a hundred series.
        let units: Vec<u32> = (0..300).map(|at| at / 100).collect();
        let of_series: Vec<u32> = units.iter().map(|unit| 97 + unit).collect();
        for whole_units in [false, true] {
            let of =
                |units: &[u32]| Resampling { units: units.to_vec(), whole_units, ..resampling(10) };
            let (found, numbered) = (of(&of_series), of(&units));
            assert_eq!(found.independent(300), 3);
            assert_eq!(found.clone().if_enough(300).resamples, 0);
            for resample in 0..20 {
                assert_eq!(found.indices(300, resample), numbered.indices(300, resample));
            }
        }
    }

    #[test]
    fn intervals_of_whole_units_hold_the_truth_where_blocks_through_them_do_not() {
        // Sixty subjects of ten windows, all of one alike: the mean of sixty values.
        let (subjects, each, rounds) = (60, 10, 300u64);
        let [mut whole, mut blocks] = [0u32; 2];
        for round in 0..rounds {
            let mut draws = Stream::new(round, "subjects").draws();
            let own: Vec<f64> = (0..subjects).map(|_| draws.normal()).collect();
            let values: Vec<f64> = (0..subjects * each).map(|at| own[at / each]).collect();
            let units = (0..subjects * each).map(|at| (at / each) as u32).collect();
            let stream = Stream::new(round, "resamples");
            let by_blocks = Resampling { stream, resamples: 400, ..resampling(each) };
            let by_units = Resampling { units, whole_units: true, ..by_blocks.clone() };
            let holds = |found: Estimate| u32::from(found.low <= 0.0 && 0.0 <= found.high);
            whole += holds(by_units.mean(&values));
            blocks += holds(by_blocks.mean(&values));
        }
        // 95 % of 300 is 285; blocks have two thirds of the variance: 89 %, 267.
        assert!(whole >= 267 && blocks + 3 <= whole, "{whole} {blocks}");
    }

    #[test]
    fn one_more_seed_is_seldom_called_better_than_the_others() {
        // Six encoders of one kind, whose accuracies differ by their seeds: the first against the others.
        let (windows, rounds) = (1000, 200);
        let truth = vec![1u32; windows];
        let (mut claims, mut naive) = (0, 0);
        for round in 0..rounds {
            let mut draws = Stream::new(round, "seeds").draws();
            let mut run = || {
                let rate = 0.6 + 0.03 * draws.normal();
                (0..windows).map(|_| u32::from(draws.chance(rate))).collect::<Vec<u32>>()
            };
            let own = Predictions::single(run());
            let others = Predictions { runs: (0..5).map(|_| run()).collect() };
            let stream = Stream::new(round, "resamples");
            let resampling = Resampling { stream, resamples: 300, ..resampling(1) };
            let comparison = Comparison::new(&resampling, 2, &truth, &[own, others]);
            let metric = Metric::Accuracy;
            let [one, plain] =
                [comparison.difference_of_one(0, 1, metric), comparison.difference(0, 1, metric)];
            assert!((one.value - plain.value).abs() < 1e-12);
            claims += u32::from(one.is_above_zero());
            naive += u32::from(plain.is_above_zero());
        }
        // 2.5 % would be 5; four others know their spread but roughly.
        assert!(claims <= 18 && naive >= 2 * claims, "{claims} {naive}");
    }

    #[test]
    fn indices_do_not_depend_on_threads_and_blocks_wrap() {
        let resampling = resampling(7);
        let indices = resampling.indices(10, 3);
        assert_eq!(indices, resampling.indices(10, 3));
        assert!(indices[..7].windows(2).all(|pair| (pair[0] + 1) % 10 == pair[1]));
        assert_eq!(resampling.indices(0, 0), Vec::<u32>::new());
    }

    #[test]
    fn forty_right_of_forty_is_not_certainty() {
        // scipy.stats.binomtest(40, 40).proportion_ci(0.95, "exact").low
        assert!((bound_when_all_agree(40.0, 0.95) - 0.9119028).abs() < 1e-6);
        let difference = Estimate { value: 0.8, low: 0.8, high: 0.8 };
        let honest = |agree| difference.unless_either_agrees(agree, 40.0, 0.95);
        assert!((honest([true, false]).low - 0.7119028).abs() < 1e-6);
        assert_eq!(honest([true, false]).high, 0.8);
        assert!((honest([false, true]).high - 0.8880972).abs() < 1e-6);
        assert_eq!(honest([false, false]), difference);
    }
}
