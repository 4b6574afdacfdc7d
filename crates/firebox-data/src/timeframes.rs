//! Bars of one timeframe with what the closed bars of longer ones say: the features of reference
//! system R3.
//!
//! Source bars are made into base bars, base bars into those of each longer timeframe, and each
//! base bar is joined with the last longer bar that had closed when it closed itself. Nothing reads
//! a later bar, and nothing reads over a gap. What reads bars and how they are repaired is not here.

use firebox_core::{Channel, Role};
use serde::{Deserialize, Serialize};

use crate::{DataError, Interval};

mod derive;
mod features;
mod stored;

pub(crate) use derive::derive;
pub(crate) use stored::make;

const DAY: i64 = 86_400_000_000;

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
    /// How many source rows ahead a feature sees, for the test of the test.
    #[cfg(test)]
    #[serde(skip)]
    pub(crate) leak: usize,
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
            leak: 0,
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
    /// Series of which nothing was left.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost_series: Vec<String>,
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
        let role = |at| if at == derive::RETURN { Role::Return } else { Role::Other };
        (0..).zip(self.names()).map(|(at, name): (usize, _)| Channel::new(name, role(at))).collect()
    }

    fn check(&self, source: Option<Interval>) -> Result<i64, DataError> {
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
        self.validate()?;
        Ok(source.microseconds())
    }

    /// Checks what is known before any data is read.
    ///
    /// # Errors
    ///
    /// The first setting that is out of its range.
    pub fn validate(&self) -> Result<(), DataError> {
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
        Ok(())
    }
}

fn wrong<T>(key: &'static str, found: String, wanted: String) -> Result<T, DataError> {
    Err(DataError::Timeframe { key, found, wanted })
}

#[cfg(test)]
mod tests;
