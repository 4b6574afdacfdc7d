//! Technical indicators of one run of bars without a gap, each from this bar and earlier ones.
//!
//! Each takes the bars of a run one by one and keeps no more of them than it looks back on, so that a run may
//! be longer than memory. What it gives is NaN as long as its window reaches before the first bar. Every value is
//! computed from the bars of its window alone, in their order, so that it is the same bit by bit
//! whatever comes later.

use std::f64::consts::TAU;

/// A bar of one timeframe.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Bar {
    /// Moment at which it has closed, microseconds since 1970-01-01 UTC.
    pub(crate) closed: i64,
    pub(crate) open: f64,
    pub(crate) high: f64,
    pub(crate) low: f64,
    pub(crate) close: f64,
}

impl Bar {
    /// `(H − L) / C`.
    pub(crate) fn range(&self) -> f64 {
        (self.high - self.low) / self.close
    }

    /// `(C − O) / (H − L)`; 0 for a bar without a range.
    pub(crate) fn body(&self) -> f64 {
        quotient(self.close - self.open, self.high - self.low).unwrap_or(0.0)
    }

    /// Sine and cosine of where its close stands within a cycle of `length` microseconds.
    pub(crate) fn clock(&self, length: i64, start: i64) -> [f64; 2] {
        let angle = TAU * (self.closed - start).rem_euclid(length) as f64 / length as f64;
        [angle.sin(), angle.cos()]
    }
}

/// The last values of a column, so many of them, or all while there are fewer.
#[derive(Debug)]
pub(crate) struct Window {
    most: usize,
    /// The last `most`, behind some that are older.
    values: Vec<f64>,
}

impl Window {
    /// Holds so many values, 1 or more.
    pub(crate) fn of(most: usize) -> Self {
        Self { most, values: Vec::new() }
    }

    pub(crate) fn push(&mut self, value: f64) {
        // They are moved once in a while, so that the last ones always lie side by side.
        if self.values.len() >= 2 * self.most {
            self.values.drain(..=self.values.len() - self.most);
        }
        self.values.push(value);
    }

    /// A statistic of the last n values; NaN while there are fewer.
    fn rolling(&self, n: usize, statistic: fn(&[f64]) -> f64) -> f64 {
        match self.values.len().checked_sub(n) {
            Some(start) => statistic(&self.values[start..]),
            None => f64::NAN,
        }
    }

    /// Of closes: `ln(C / C₋ₖ)`.
    pub(crate) fn log_return(&self, k: usize) -> f64 {
        self.rolling(k + 1, |closes| (closes[closes.len() - 1] / closes[0]).ln())
    }

    /// Of closes: `C / mean of the last n − 1`.
    pub(crate) fn average_distance(&self, n: usize) -> f64 {
        self.last() / self.rolling(n, mean) - 1.0
    }

    /// Of closes: `(C − mean) / (2 · standard deviation)` of the last n, −1 and 1 at Bollinger's bands
    /// ("Bollinger on Bollinger Bands", 2001); 0 where they are all alike.
    pub(crate) fn bollinger(&self, n: usize) -> f64 {
        let (mean, deviation) = (self.rolling(n, mean), self.rolling(n, deviation));
        match () {
            () if deviation.is_nan() => f64::NAN,
            // Of closes that are alike, rounding leaves some.
            () if deviation <= mean.abs() * 1e-12 => 0.0,
            () => quotient(self.last() - mean, 2.0 * deviation).unwrap_or(0.0),
        }
    }

    /// Of log returns: the standard deviation of the last n.
    pub(crate) fn volatility(&self, n: usize) -> f64 {
        self.rolling(n, deviation)
    }

    fn last(&self) -> f64 {
        self.values.last().copied().unwrap_or(f64::NAN)
    }
}

/// An average that begins with the mean of the first n values from the first that is a number, then moves by `weight`
/// of the distance to each new value.
#[derive(Debug)]
pub(crate) struct Smoothed {
    n: usize,
    weight: f64,
    /// The first values, until there are n.
    first: Vec<f64>,
    average: f64,
}

impl Smoothed {
    /// The exponential average with the weight 2 / (n + 1).
    pub(crate) fn exponential(n: usize) -> Self {
        Self { n, weight: 2.0 / (n as f64 + 1.0), first: Vec::new(), average: f64::NAN }
    }

    /// Wilder's smoothing: an exponential average with the weight 1 / n.
    fn wilder(n: usize) -> Self {
        Self { n, weight: 1.0 / n as f64, first: Vec::new(), average: f64::NAN }
    }

    /// The average with this value; NaN while there are fewer than n.
    pub(crate) fn next(&mut self, value: f64) -> f64 {
        if self.first.len() == self.n {
            self.average += self.weight * (value - self.average);
        } else if !(self.first.is_empty() && value.is_nan()) {
            self.first.push(value);
            if self.first.len() == self.n {
                self.average = mean(&self.first);
            }
        }
        self.average
    }
}

/// Wilder's relative strength index of n changes, from 0 to 1 ("New Concepts in Technical
/// Trading Systems", 1978): `gains / (gains + losses)`, both averaged by his smoothing; 0.5
/// where nothing has changed.
#[derive(Debug)]
pub(crate) struct Strength {
    gains: Smoothed,
    losses: Smoothed,
    /// The close before.
    before: Option<f64>,
}

impl Strength {
    pub(crate) fn of(n: usize) -> Self {
        Self { gains: Smoothed::wilder(n), losses: Smoothed::wilder(n), before: None }
    }

    pub(crate) fn next(&mut self, close: f64) -> f64 {
        let Some(before) = self.before.replace(close) else { return f64::NAN };
        let change = close - before;
        let (gains, losses) =
            (self.gains.next(change.max(0.0)), self.losses.next((-change).max(0.0)));
        match () {
            () if gains.is_nan() => f64::NAN,
            () => quotient(gains, gains + losses).unwrap_or(0.5),
        }
    }
}

/// Wilder's average true range of n bars over the close.
#[derive(Debug)]
pub(crate) struct TrueRange {
    average: Smoothed,
    /// The close before.
    before: Option<f64>,
}

impl TrueRange {
    pub(crate) fn of(n: usize) -> Self {
        Self { average: Smoothed::wilder(n), before: None }
    }

    pub(crate) fn next(&mut self, bar: &Bar) -> f64 {
        let Some(before) = self.before.replace(bar.close) else { return f64::NAN };
        self.average.next(bar.high.max(before) - bar.low.min(before)) / bar.close
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
