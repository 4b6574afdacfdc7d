//! Technical indicators of one run of bars without a gap, each from this bar and earlier ones.
//!
//! A column has one value a bar, NaN as long as its window reaches before the first bar. Every
//! value is computed from the bars of its window alone, in their order, so that it is the same bit
//! by bit whatever comes later.

use std::f64::consts::TAU;

/// The bars of one timeframe: `[bar]` each.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Bars {
    /// Moment at which the bar has closed, microseconds since 1970-01-01 UTC.
    pub(crate) closed: Vec<i64>,
    pub(crate) open: Vec<f64>,
    pub(crate) high: Vec<f64>,
    pub(crate) low: Vec<f64>,
    pub(crate) close: Vec<f64>,
}

impl Bars {
    pub(crate) fn len(&self) -> usize {
        self.closed.len()
    }

    fn column(&self, of: impl Fn(usize) -> f64) -> Vec<f64> {
        (0..self.len()).map(of).collect()
    }

    /// `ln(C / C₋ₖ)`.
    pub(crate) fn log_return(&self, k: usize) -> Vec<f64> {
        self.column(|t| match t.checked_sub(k) {
            Some(before) => (self.close[t] / self.close[before]).ln(),
            None => f64::NAN,
        })
    }

    /// `(H − L) / C`.
    pub(crate) fn range(&self) -> Vec<f64> {
        self.column(|t| (self.high[t] - self.low[t]) / self.close[t])
    }

    /// `(C − O) / (H − L)`; 0 for a bar without a range.
    pub(crate) fn body(&self) -> Vec<f64> {
        self.column(|t| {
            quotient(self.close[t] - self.open[t], self.high[t] - self.low[t]).unwrap_or(0.0)
        })
    }

    /// `C / mean of the last n closes − 1`.
    pub(crate) fn average_distance(&self, n: usize) -> Vec<f64> {
        let mean = rolling(&self.close, n, mean);
        self.column(|t| self.close[t] / mean[t] - 1.0)
    }

    /// `C / EMAₙ(C) − 1`.
    pub(crate) fn exponential_distance(&self, n: usize) -> Vec<f64> {
        let average = exponential(&self.close, n);
        self.column(|t| self.close[t] / average[t] - 1.0)
    }

    /// `(C − mean) / (2 · standard deviation)` of the last n closes: −1 and 1 at Bollinger's bands
    /// ("Bollinger on Bollinger Bands", 2001); 0 where the closes are all alike.
    pub(crate) fn bollinger(&self, n: usize) -> Vec<f64> {
        let (mean, deviation) = (rolling(&self.close, n, mean), rolling(&self.close, n, deviation));
        self.column(|t| match () {
            () if deviation[t].is_nan() => f64::NAN,
            () => quotient(self.close[t] - mean[t], 2.0 * deviation[t]).unwrap_or(0.0),
        })
    }

    /// Wilder's relative strength index of n changes, from 0 to 1 ("New Concepts in Technical
    /// Trading Systems", 1978): `gains / (gains + losses)`, both averaged by his smoothing; 0.5
    /// where nothing has changed.
    pub(crate) fn strength(&self, n: usize) -> Vec<f64> {
        let change = |t: usize| if t == 0 { f64::NAN } else { self.close[t] - self.close[t - 1] };
        let gains = wilder(&self.column(|t| change(t).max(0.0)), 1, n);
        let losses = wilder(&self.column(|t| (-change(t)).max(0.0)), 1, n);
        self.column(|t| match () {
            () if gains[t].is_nan() => f64::NAN,
            () => quotient(gains[t], gains[t] + losses[t]).unwrap_or(0.5),
        })
    }

    /// Wilder's average true range of n bars over the close.
    pub(crate) fn true_range(&self, n: usize) -> Vec<f64> {
        let range = self.column(|t| match t.checked_sub(1).map(|before| self.close[before]) {
            Some(before) => self.high[t].max(before) - self.low[t].min(before),
            None => f64::NAN,
        });
        let average = wilder(&range, 1, n);
        self.column(|t| average[t] / self.close[t])
    }

    /// `(EMA_fast − EMA_slow) / C`, and the same less its own `EMA_signal` (Appel, "Technical
    /// Analysis: Power Tools for Active Investors", 2005).
    pub(crate) fn convergence(&self, fast: usize, slow: usize, signal: usize) -> [Vec<f64>; 2] {
        let (fast, slow) = (exponential(&self.close, fast), exponential(&self.close, slow));
        let line: Vec<f64> = fast.iter().zip(&slow).map(|(fast, slow)| fast - slow).collect();
        let signal = exponential(&line, signal);
        [
            self.column(|t| line[t] / self.close[t]),
            self.column(|t| (line[t] - signal[t]) / self.close[t]),
        ]
    }

    /// Standard deviation of the last n log returns.
    pub(crate) fn volatility(&self, n: usize) -> Vec<f64> {
        rolling(&self.log_return(1), n, deviation)
    }

    /// Sine and cosine of where a bar's close stands within a cycle of `length` microseconds.
    pub(crate) fn clock(&self, length: i64, start: i64) -> [Vec<f64>; 2] {
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
