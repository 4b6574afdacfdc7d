//! The features of whole series at once, column by column: what those that are made bar by bar must be, bit by bit.

use std::f64::consts::TAU;

use firebox_core::{Role, Series, SeriesSet, StepLabels};

use super::super::*;
use crate::time;

/// The epoch was a Thursday: the first Monday after it.
const MONDAY: i64 = 4 * DAY;
/// Base bars that the two longer returns look back on.
const LONG_RETURNS: [usize; 2] = [4, 16];

/// Makes the features of every series.
///
/// `source` is the time between two source bars.
///
/// # Errors
///
/// When a timeframe is no multiple of the one below it, a price is missing or not positive, or no
/// bar has bars enough to look back on.
pub(super) fn derive(
    set: &SeriesSet,
    frames: &Timeframes,
    source: Option<Interval>,
) -> Result<(SeriesSet, TimeframeChecks), DataError> {
    let source = frames.check(source)?;
    let role = |role| set.role(role).ok_or(DataError::TimeframePrices);
    let prices = [role(Role::Open)?, role(Role::High)?, role(Role::Low)?, role(Role::Close)?];
    for series in set.series() {
        refuse_prices(series, set.channels().len(), prices)?;
    }
    let made: Vec<(Series, TimeframeChecks)> = set
        .series()
        .iter()
        .map(|series| of_series(series, set.channels().len(), prices, frames, source))
        .collect::<Result<_, _>>()?;
    let mut checks = TimeframeChecks::default();
    for (_, own) in &made {
        checks.bars += own.bars;
        checks.runs += own.runs;
        checks.warmup += own.warmup;
        checks.lost_runs += own.lost_runs;
    }
    let lost = made.iter().filter(|(series, _)| series.is_empty());
    checks.lost_series = lost.map(|(series, _)| series.name.clone()).collect();
    let series: Vec<Series> =
        made.into_iter().map(|(series, _)| series).filter(|series| !series.is_empty()).collect();
    if series.is_empty() {
        return Err(DataError::TimeframeWarmup {
            bars: checks.bars,
            runs: checks.runs,
            longest: frames.higher.last().map_or(frames.base, |frame| *frame),
        });
    }
    Ok((SeriesSet::new(frames.channels(), set.classes().to_vec(), series)?, checks))
}

fn refuse_prices(series: &Series, width: usize, prices: [usize; 4]) -> Result<(), DataError> {
    let values = series.values.all();
    if let Some(step) =
        (0..series.len()).find(|t| prices.iter().any(|p| values[t * width + p] <= 0.0))
    {
        let at = time::format(series.time[step]);
        return Err(DataError::TimeframePrice { series: series.name.clone(), at });
    }
    Ok(())
}

fn of_series(
    series: &Series,
    width: usize,
    prices: [usize; 4],
    frames: &Timeframes,
    source: i64,
) -> Result<(Series, TimeframeChecks), DataError> {
    let values = series.values.all();
    let column = |channel: usize| values[channel..].iter().step_by(width).copied().collect();
    let [open, high, low, close] = prices.map(column);
    let shift = if frames.stamp == Stamp::Open { source } else { 0 };
    let rows =
        Bars { closed: series.time.iter().map(|t| t + shift).collect(), open, high, low, close };
    let (base, last) = resample(&rows, frames.base.microseconds());
    let mut out = Series { name: series.name.clone(), origin: series.origin, ..Series::default() };
    let (mut time, mut values, mut labels) = (Vec::new(), Vec::new(), Vec::new());
    let mut checks = TimeframeChecks { bars: base.len() as u64, ..TimeframeChecks::default() };
    let mut start = 0;
    for end in 1..=base.len() {
        let goes_on = end < base.len()
            && base.closed[end] - base.closed[end - 1] == frames.base.microseconds();
        if goes_on {
            continue;
        }
        let run = slice(&base, start..end);
        let columns = features(&run, frames);
        let ready = (0..run.len()).find(|t| columns.iter().all(|column| !column[*t].is_nan()));
        let ready = ready.unwrap_or(run.len());
        checks.runs += 1;
        checks.warmup += ready as u64;
        checks.lost_runs += u64::from(ready == run.len());
        if ready < run.len() {
            out.segments.push(time.len()..time.len() + run.len() - ready);
        }
        if let Some(error) = not_finite(series, &columns, ready, &run, frames) {
            return Err(error);
        }
        for t in ready..run.len() {
            // The return is one from or to a close that was put in.
            let both = last[start + t.saturating_sub(1)..=start + t].iter();
            if both.clone().any(|row| series.filled.holds(prices[3], *row)) {
                out.filled.add(0, time.len()..time.len() + 1);
            }
            time.push(run.closed[t]);
            values.extend(columns.iter().map(|column| column[t]));
            labels.push(last[start + t]);
        }
        start = end;
    }
    (out.time, out.values) = (time.into(), values.into());
    out.labels = match &series.labels {
        StepLabels::PerStep(of) => StepLabels::PerStep(labels.iter().map(|row| of[*row]).collect()),
        whole => whole.clone(),
    };
    Ok((out, checks))
}

/// The first feature that is no number although its bars are: prices too far apart for f64.
fn not_finite(
    series: &Series,
    columns: &[Vec<f64>],
    ready: usize,
    run: &Bars,
    frames: &Timeframes,
) -> Option<DataError> {
    let usable = |value: f64| value.abs() <= f64::from(f32::MAX);
    let bad = |column: &Vec<f64>| (ready..run.len()).find(|t| !usable(column[*t]));
    let found = columns.iter().enumerate().find_map(|(at, column)| Some((at, bad(column)?)));
    found.map(|(at, t)| DataError::TimeframeFeature {
        feature: frames.names().swap_remove(at),
        series: series.name.clone(),
        at: time::format(run.closed[t]),
        value: columns[at][t],
    })
}

fn slice(bars: &Bars, range: std::ops::Range<usize>) -> Bars {
    let of = |values: &[f64]| values[range.clone()].to_vec();
    Bars {
        closed: bars.closed[range.clone()].to_vec(),
        open: of(&bars.open),
        high: of(&bars.high),
        low: of(&bars.low),
        close: of(&bars.close),
    }
}

/// Bars of `length` microseconds, each from those that close within it; and the last row of each.
/// A bar without a row is not made, and neither is the last one before it is closed.
fn resample(rows: &Bars, length: i64) -> (Bars, Vec<usize>) {
    let (mut out, mut last) = (Bars::default(), Vec::new());
    for row in 0..rows.len() {
        // A row that closes at the very end of a bar belongs to it.
        let closed = (rows.closed[row] - 1).div_euclid(length) * length + length;
        if out.closed.last() != Some(&closed) {
            out.closed.push(closed);
            out.open.push(rows.open[row]);
            out.high.push(rows.high[row]);
            out.low.push(rows.low[row]);
            out.close.push(rows.close[row]);
            last.push(row);
            continue;
        }
        let bar = out.closed.len() - 1;
        out.high[bar] = out.high[bar].max(rows.high[row]);
        out.low[bar] = out.low[bar].min(rows.low[row]);
        out.close[bar] = rows.close[row];
        last[bar] = row;
    }
    // The last one may go on: it is closed once a row closes at its end.
    if out.closed.last() > rows.closed.last() {
        last.pop();
        for column in [&mut out.open, &mut out.high, &mut out.low, &mut out.close] {
            column.pop();
        }
        out.closed.pop();
    }
    (out, last)
}

/// The columns of one run of base bars, in the order of [`Timeframes::names`].
fn features(base: &Bars, frames: &Timeframes) -> Vec<Vec<f64>> {
    let Periods { average, strength, fast, slow, signal } = frames.periods;
    let [macd, histogram] = base.convergence(fast, slow, signal);
    let mut columns = vec![
        base.log_return(1),
        base.log_return(LONG_RETURNS[0]),
        base.log_return(LONG_RETURNS[1]),
        base.range(),
        base.body(),
        base.average_distance(average),
        base.exponential_distance(slow),
        base.strength(strength),
        base.true_range(strength),
        base.bollinger(average),
        macd,
        histogram,
        base.volatility(average),
    ];
    for frame in &frames.higher {
        columns.extend(higher(base, frame.microseconds(), frames));
    }
    columns.extend(base.clock(DAY, 0));
    columns.extend(base.clock(7 * DAY, MONDAY));
    columns
}

/// What the closed bars of a longer timeframe say at the close of each base bar.
fn higher(base: &Bars, length: i64, frames: &Timeframes) -> Vec<Vec<f64>> {
    let HigherPeriods { average, strength } = frames.higher_periods;
    let (mut bars, _) = resample(base, length);
    // The first bar may have begun before the run did.
    let whole = base.closed.first().is_some_and(|t| (t - frames.base.microseconds()) % length == 0);
    if !whole && bars.len() > 0 {
        bars = slice(&bars, 1..bars.len());
    }
    let columns = [
        bars.log_return(1),
        bars.range(),
        bars.average_distance(average),
        bars.strength(strength),
        bars.true_range(strength),
        bars.bollinger(average),
    ];
    let visible: Vec<Option<usize>> = base
        .closed
        .iter()
        .map(|now| bars.closed.partition_point(|closed| closed <= now).checked_sub(1))
        .collect();
    let join = |column: Vec<f64>| {
        visible.iter().map(|bar| bar.map_or(f64::NAN, |bar| column[bar])).collect()
    };
    columns.map(join).into()
}

/// The bars of one timeframe: `[bar]` each.
#[derive(Clone, Debug, Default, PartialEq)]
struct Bars {
    /// Moment at which the bar has closed, microseconds since 1970-01-01 UTC.
    closed: Vec<i64>,
    open: Vec<f64>,
    high: Vec<f64>,
    low: Vec<f64>,
    close: Vec<f64>,
}

impl Bars {
    fn len(&self) -> usize {
        self.closed.len()
    }

    fn column(&self, of: impl Fn(usize) -> f64) -> Vec<f64> {
        (0..self.len()).map(of).collect()
    }

    /// `ln(C / C₋ₖ)`.
    fn log_return(&self, k: usize) -> Vec<f64> {
        self.column(|t| match t.checked_sub(k) {
            Some(before) => (self.close[t] / self.close[before]).ln(),
            None => f64::NAN,
        })
    }

    /// `(H − L) / C`.
    fn range(&self) -> Vec<f64> {
        self.column(|t| (self.high[t] - self.low[t]) / self.close[t])
    }

    /// `(C − O) / (H − L)`; 0 for a bar without a range.
    fn body(&self) -> Vec<f64> {
        self.column(|t| {
            quotient(self.close[t] - self.open[t], self.high[t] - self.low[t]).unwrap_or(0.0)
        })
    }

    /// `C / mean of the last n closes − 1`.
    fn average_distance(&self, n: usize) -> Vec<f64> {
        let mean = rolling(&self.close, n, mean);
        self.column(|t| self.close[t] / mean[t] - 1.0)
    }

    /// `C / EMAₙ(C) − 1`.
    fn exponential_distance(&self, n: usize) -> Vec<f64> {
        let average = exponential(&self.close, n);
        self.column(|t| self.close[t] / average[t] - 1.0)
    }

    /// `(C − mean) / (2 · standard deviation)` of the last n closes: −1 and 1 at Bollinger's bands
    /// ("Bollinger on Bollinger Bands", 2001); 0 where the closes are all alike.
    fn bollinger(&self, n: usize) -> Vec<f64> {
        let (mean, deviation) = (rolling(&self.close, n, mean), rolling(&self.close, n, deviation));
        self.column(|t| match () {
            () if deviation[t].is_nan() => f64::NAN,
            () if deviation[t] <= 1e-12 * mean[t] => 0.0,
            () => quotient(self.close[t] - mean[t], 2.0 * deviation[t]).unwrap_or(0.0),
        })
    }

    /// Wilder's relative strength index of n changes, from 0 to 1 ("New Concepts in Technical
    /// Trading Systems", 1978): `gains / (gains + losses)`, both averaged by his smoothing; 0.5
    /// where nothing has changed.
    fn strength(&self, n: usize) -> Vec<f64> {
        let change = |t: usize| if t == 0 { f64::NAN } else { self.close[t] - self.close[t - 1] };
        let gains = wilder(&self.column(|t| change(t).max(0.0)), 1, n);
        let losses = wilder(&self.column(|t| (-change(t)).max(0.0)), 1, n);
        self.column(|t| match () {
            () if gains[t].is_nan() => f64::NAN,
            () => quotient(gains[t], gains[t] + losses[t]).unwrap_or(0.5),
        })
    }

    /// Wilder's average true range of n bars over the close.
    fn true_range(&self, n: usize) -> Vec<f64> {
        let range = self.column(|t| match t.checked_sub(1).map(|before| self.close[before]) {
            Some(before) => self.high[t].max(before) - self.low[t].min(before),
            None => f64::NAN,
        });
        let average = wilder(&range, 1, n);
        self.column(|t| average[t] / self.close[t])
    }

    /// `(EMA_fast − EMA_slow) / C`, and the same less its own `EMA_signal` (Appel, "Technical
    /// Analysis: Power Tools for Active Investors", 2005).
    fn convergence(&self, fast: usize, slow: usize, signal: usize) -> [Vec<f64>; 2] {
        let (fast, slow) = (exponential(&self.close, fast), exponential(&self.close, slow));
        let line: Vec<f64> = fast.iter().zip(&slow).map(|(fast, slow)| fast - slow).collect();
        let signal = exponential(&line, signal);
        [
            self.column(|t| line[t] / self.close[t]),
            self.column(|t| (line[t] - signal[t]) / self.close[t]),
        ]
    }

    /// Standard deviation of the last n log returns.
    fn volatility(&self, n: usize) -> Vec<f64> {
        rolling(&self.log_return(1), n, deviation)
    }

    /// Sine and cosine of where a bar's close stands within a cycle of `length` microseconds.
    fn clock(&self, length: i64, start: i64) -> [Vec<f64>; 2] {
        let angle =
            |t: usize| TAU * (self.closed[t] - start).rem_euclid(length) as f64 / length as f64;
        [self.column(|t| angle(t).sin()), self.column(|t| angle(t).cos())]
    }
}

fn quotient(numerator: f64, denominator: f64) -> Option<f64> {
    (denominator > 0.0).then(|| numerator / denominator)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn deviation(values: &[f64]) -> f64 {
    let center = mean(values);
    (values.iter().map(|value| (value - center).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
}

/// A statistic of the last n values; NaN while there are fewer.
fn rolling(values: &[f64], n: usize, statistic: fn(&[f64]) -> f64) -> Vec<f64> {
    let of = |end: usize| match end.checked_sub(n) {
        Some(start) => statistic(&values[start..end]),
        None => f64::NAN,
    };
    (1..=values.len()).map(of).collect()
}

/// Begins with the mean of n values from the first that is a number, then moves by `weight` of the
/// distance to each new value.
fn smoothed(values: &[f64], first: usize, n: usize, weight: f64) -> Vec<f64> {
    let mut out = vec![f64::NAN; values.len()];
    let start = first + n - 1;
    if start < values.len() {
        out[start] = mean(&values[first..=start]);
        for t in start + 1..values.len() {
            out[t] = out[t - 1] + weight * (values[t] - out[t - 1]);
        }
    }
    out
}

/// The exponential average with the weight 2 / (n + 1).
fn exponential(values: &[f64], n: usize) -> Vec<f64> {
    let first = values.iter().position(|value| !value.is_nan()).unwrap_or(values.len());
    smoothed(values, first, n, 2.0 / (n as f64 + 1.0))
}

/// Wilder's smoothing: an exponential average with the weight 1 / n.
fn wilder(values: &[f64], first: usize, n: usize) -> Vec<f64> {
    smoothed(values, first, n, 1.0 / n as f64)
}
