//! Bars of one timeframe with what the closed bars of longer ones say: the features of reference
//! system R3.
//!
//! Source bars are made into base bars, base bars into those of each longer timeframe, and each
//! base bar is joined with the last longer bar that had closed when it closed itself. Nothing reads
//! a later bar, and nothing reads over a gap. What reads bars and how they are repaired is not here.
//!
//! These are loops and not polars expressions, because polars' as-of joins and dynamic groups are
//! features that the build does without; a Python script with polars is the reference of the tests.

use firebox_core::{Channel, Role, Series, SeriesSet, StepLabels};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::indicators::Bars;
use crate::{DataError, Interval, time};

const DAY: i64 = 86_400_000_000;
/// The first Monday after the epoch began on a Thursday.
const MONDAY: i64 = 4 * DAY;
/// Base bars that the longer of the two further returns look back.
const LONG_RETURNS: [usize; 2] = [4, 16];

/// The table `[data.timeframes]`: base bars, and the longer timeframes that they are joined with.
///
/// With two longer timeframes there are the 29 features of reference system R3:
///
/// | of | feature | formula |
/// |---|---|---|
/// | base | `return`, `return_4`, `return_16` | `ln(C / C₋ₖ)` |
/// | base | `range`, `body` | `(H − L) / C`, `(C − O) / (H − L)` |
/// | base | `sma`, `ema` | `C / SMA − 1`, `C / EMA_slow − 1` |
/// | base | `rsi`, `atr` | Wilder 1978; `ATR / C` |
/// | base | `bollinger` | `(C − SMA) / (2 σ)`, Bollinger 2001 |
/// | base | `macd`, `macd_histogram` | `(EMA_fast − EMA_slow) / C`, the same less its signal; Appel 2005 |
/// | base | `volatility` | σ of `ln(C / C₋₁)` |
/// | each longer one | `return`, `range`, `sma`, `rsi`, `atr`, `bollinger` | as above |
/// | time | `day_sin`, `day_cos`, `week_sin`, `week_cos` | of the moment at which the base bar closes, UTC |
///
/// Their names begin with the timeframe: `15min_rsi`. The guide of R3 gives their number and kinds
/// and not their list, which is Firebox's own.
///
/// # Example
///
/// ```
/// let config: firebox_data::DataConfig = toml::from_str(r#"
///     path = "eurusd.csv"
///     [timeframes]
///     base = "15min"
///     higher = ["1h", "4h"]
///     stamp = "open"
/// "#)?;
/// assert_eq!(config.timeframes.map(|frames| frames.names().len()), Some(29));
/// # Ok::<(), toml::de::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timeframes {
    /// Length of the bars that become the steps of the series; R3: `15min`.
    pub base: Interval,
    /// Lengths of the longer bars, from short to long; R3: `1h` and `4h`. Each is a whole multiple
    /// of the base and divides a day, which begins at midnight UTC.
    pub higher: Vec<Interval>,
    /// What the times in the files mark.
    pub stamp: Stamp,
    /// Bars that the indicators of base bars look back.
    pub periods: Periods,
    /// Bars that the indicators of longer bars look back.
    pub higher_periods: HigherPeriods,
    /// A feature that sees two bars ahead, for the test of the test.
    #[cfg(test)]
    #[serde(skip)]
    pub(crate) leak: bool,
}

/// What a bar's time marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stamp {
    /// The moment at which it opens.
    #[default]
    Open,
    /// The moment at which it has closed.
    Close,
}

/// Bars that indicators look back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Periods {
    /// Of the moving average, Bollinger's bands and volatility; usual: 20.
    pub average: usize,
    /// Of RSI and ATR; Wilder: 14.
    pub strength: usize,
    /// Of the fast average of MACD; Appel: 12.
    pub fast: usize,
    /// Of the slow average of MACD, and of `ema`; Appel: 26.
    pub slow: usize,
    /// Of the average of MACD itself; Appel: 9.
    pub signal: usize,
}

impl Default for Periods {
    fn default() -> Self {
        Self { average: 20, strength: 14, fast: 12, slow: 26, signal: 9 }
    }
}

/// Bars that the indicators of longer bars look back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HigherPeriods {
    /// Of the moving average and Bollinger's bands; usual: 20.
    pub average: usize,
    /// Of RSI and ATR; Wilder: 14.
    pub strength: usize,
}

impl Default for HigherPeriods {
    fn default() -> Self {
        Self { average: 20, strength: 14 }
    }
}

impl Default for Timeframes {
    fn default() -> Self {
        let minutes = |count: i64| Interval::whole(count * 60_000_000);
        Self {
            base: minutes(15),
            higher: vec![minutes(60), minutes(240)],
            stamp: Stamp::Open,
            periods: Periods::default(),
            higher_periods: HigherPeriods::default(),
            #[cfg(test)]
            leak: false,
        }
    }
}

/// What the making of timeframes found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeframeChecks {
    /// Base bars made from all series.
    pub bars: u64,
    /// Runs of them without a gap.
    pub runs: u64,
    /// Base bars left out because an indicator still lacked bars to look back on.
    pub warmup: u64,
    /// Runs of which nothing was left.
    pub lost_runs: u64,
}

impl Timeframes {
    /// Names of the features, in the order of the channels.
    pub fn names(&self) -> Vec<String> {
        let base = [
            "return",
            "return_4",
            "return_16",
            "range",
            "body",
            "sma",
            "ema",
            "rsi",
            "atr",
            "bollinger",
            "macd",
            "macd_histogram",
            "volatility",
        ];
        let higher = ["return", "range", "sma", "rsi", "atr", "bollinger"];
        let mut names: Vec<String> =
            base.iter().map(|name| format!("{}_{name}", self.base)).collect();
        for frame in &self.higher {
            names.extend(higher.iter().map(|name| format!("{frame}_{name}")));
        }
        names.extend(["day_sin", "day_cos", "week_sin", "week_cos"].map(str::to_owned));
        names
    }

    /// The features as channels. The base return is known to be one, so that labels can be made of it.
    pub fn channels(&self) -> Vec<Channel> {
        let role = |at| if at == 0 { Role::Return } else { Role::Other };
        (0..).zip(self.names()).map(|(at, name): (usize, _)| Channel::new(name, role(at))).collect()
    }

    fn check(&self, source: Option<Interval>) -> Result<i64, DataError> {
        let wrong = |key: &'static str, found: String, wanted: String| {
            Err(DataError::Timeframe { key, found, wanted })
        };
        let Some(source) = source else {
            let wanted = "it needs data with times: name their column in `data.columns.time`";
            return wrong("base", self.base.to_string(), wanted.to_owned());
        };
        if self.base.microseconds() % source.microseconds() != 0 {
            let wanted = format!(
                "it must be a whole multiple of the {source} between the rows (`data.interval`)"
            );
            return wrong("base", self.base.to_string(), wanted);
        }
        let mut before = self.base;
        for (frame, key) in
            [(self.base, "base")].into_iter().chain(self.higher.iter().map(|f| (*f, "higher")))
        {
            let length = frame.microseconds();
            if length % self.base.microseconds() != 0 {
                let wanted = format!("each must be a whole multiple of the base, {}", self.base);
                return wrong(key, frame.to_string(), wanted);
            }
            if DAY % length != 0 {
                let wanted = "it must divide a day, so that bars begin at the same times each day";
                return wrong(key, frame.to_string(), wanted.to_owned());
            }
            if key == "higher" && length <= before.microseconds() {
                let wanted =
                    format!("list them from short to long: it must be longer than {before}");
                return wrong(key, frame.to_string(), wanted);
            }
            before = frame;
        }
        let Periods { average, strength, fast, slow, signal } = self.periods;
        let HigherPeriods { average: further, strength: other } = self.higher_periods;
        let all = [average, strength, fast, slow, signal, further, other];
        if all.iter().any(|period| !(1..=100_000).contains(period)) {
            let found = format!("{:?} and {:?}", self.periods, self.higher_periods);
            return wrong("periods", found, "each looks back 1 to 100,000 bars".to_owned());
        }
        Ok(source.microseconds())
    }
}

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
    if let Some(step) =
        (0..series.len()).find(|t| prices.iter().any(|p| series.values[t * width + p] <= 0.0))
    {
        let at = time::format(series.time[step]);
        return Err(DataError::TimeframePrice { series: series.name.clone(), at });
    }
    let column = |channel: usize| series.values[channel..].iter().step_by(width).copied().collect();
    let [open, high, low, close] = prices.map(column);
    let shift = if frames.stamp == Stamp::Open { source } else { 0 };
    let rows =
        Bars { closed: series.time.iter().map(|t| t + shift).collect(), open, high, low, close };
    let (base, last) = resample(&rows, frames.base.microseconds());
    let mut out = Series { name: series.name.clone(), origin: series.origin, ..Series::default() };
    let mut labels = Vec::new();
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
            out.segments.push(out.time.len()..out.time.len() + run.len() - ready);
        }
        if let Some(error) = not_finite(series, &columns, ready, &run, frames) {
            return Err(error);
        }
        for t in ready..run.len() {
            out.time.push(run.closed[t]);
            out.values.extend(columns.iter().map(|column| column[t]));
            labels.push(last[start + t]);
        }
        start = end;
    }
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
/// A bar without a row is not made.
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

#[cfg(test)]
mod tests;
