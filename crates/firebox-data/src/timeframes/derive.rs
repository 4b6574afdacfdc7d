//! From source bars to features: resampling, what is visible of longer bars, and warm-up.
//!
//! These are loops and not polars expressions, because polars' as-of joins and dynamic groups are
//! features that the build does without; a Python script with polars is the reference of the tests.

use firebox_core::{Role, Series, SeriesSet, StepLabels};
use rayon::prelude::*;

use super::{DAY, HigherPeriods, Periods, Stamp, TimeframeChecks, Timeframes};
use crate::indicators::Bars;
use crate::{DataError, Interval, time};

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
pub(crate) fn derive(
    set: &SeriesSet,
    frames: &Timeframes,
    source: Option<Interval>,
) -> Result<(SeriesSet, TimeframeChecks), DataError> {
    let source = frames.check(source)?;
    let role = |role| set.role(role).ok_or(DataError::TimeframePrices);
    let prices = [role(Role::Open)?, role(Role::High)?, role(Role::Low)?, role(Role::Close)?];
    let made: Vec<(Series, TimeframeChecks)> = set
        .series()
        .par_iter()
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

fn of_series(
    series: &Series,
    width: usize,
    prices: [usize; 4],
    frames: &Timeframes,
    source: i64,
) -> Result<(Series, TimeframeChecks), DataError> {
    let values = series.values.all();
    if let Some(step) =
        (0..series.len()).find(|t| prices.iter().any(|p| values[t * width + p] <= 0.0))
    {
        let at = time::format(series.time[step]);
        return Err(DataError::TimeframePrice { series: series.name.clone(), at });
    }
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
    #[cfg(test)]
    if frames.leak {
        columns[4] = (0..base.len()).map(|t| base.close[(t + 2).min(base.len() - 1)]).collect();
    }
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
