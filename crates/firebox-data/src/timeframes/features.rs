//! The features of one run of base bars without a gap, bar by bar: what is visible of longer bars, and how many bars
//! the warm-up takes.
//!
//! A run holds as many values as its indicators look back on, and the one longer bar of each timeframe that is still
//! open.

use super::{DAY, HigherPeriods, Periods, Timeframes};
use crate::indicators::{Bar, Smoothed, Strength, TrueRange, Window};

/// The epoch was a Thursday: the first Monday after it.
const MONDAY: i64 = 4 * DAY;
/// Base bars that the two longer returns look back on.
const LONG_RETURNS: [usize; 2] = [4, 16];
/// Features of each longer timeframe.
const OF_LONGER: usize = 6;

/// Bars of `length` microseconds, each from those that close within it.
pub(super) struct Resample {
    length: i64,
    bar: Option<Bar>,
}

impl Resample {
    pub(super) fn to(length: i64) -> Self {
        Self { length, bar: None }
    }

    /// Takes the next shorter bar. Gives the bar before if another one begins with it; a bar without a shorter one is
    /// not made.
    pub(super) fn next(&mut self, of: &Bar) -> Option<Bar> {
        if let Some(bar) = self.bar.as_mut().filter(|bar| of.closed <= bar.closed) {
            bar.high = bar.high.max(of.high);
            bar.low = bar.low.min(of.low);
            bar.close = of.close;
            return None;
        }
        self.bar.replace(Bar { closed: end_of(of.closed, self.length), ..*of })
    }

    /// The bar that is open, if it has closed by now: once a shorter one closes at its end.
    pub(super) fn closed_by(&self, now: i64) -> Option<Bar> {
        self.bar.filter(|bar| bar.closed <= now)
    }
}

/// The end of the bar within which something closes: at the very end of a bar, it belongs to that one.
pub(super) fn end_of(closed: i64, length: i64) -> i64 {
    (closed - 1).div_euclid(length) * length + length
}

/// What the features of a run need to know of its bars before.
pub(super) struct Features<'a> {
    frames: &'a Timeframes,
    closes: Window,
    returns: Window,
    fast: Smoothed,
    slow: Smoothed,
    signal: Smoothed,
    strength: Strength,
    true_range: TrueRange,
    higher: Vec<Higher>,
}

impl<'a> Features<'a> {
    /// Of a run whose first bar begins at this moment.
    pub(super) fn from(begin: i64, frames: &'a Timeframes) -> Self {
        let Periods { average, strength, fast, slow, signal } = frames.periods;
        let lengths = frames.higher.iter().map(|frame| frame.microseconds());
        Self {
            frames,
            closes: Window::of(average.max(1 + LONG_RETURNS[1])),
            returns: Window::of(average),
            fast: Smoothed::exponential(fast),
            slow: Smoothed::exponential(slow),
            signal: Smoothed::exponential(signal),
            strength: Strength::of(strength),
            true_range: TrueRange::of(strength),
            higher: lengths.map(|length| Higher::from(begin, length, frames)).collect(),
        }
    }

    /// The features of the next bar, in the order of [`Timeframes::names`].
    pub(super) fn next(&mut self, bar: &Bar, out: &mut Vec<f64>) {
        let average = self.frames.periods.average;
        self.closes.push(bar.close);
        let log_return = self.closes.log_return(1);
        self.returns.push(log_return);
        let (fast, slow) = (self.fast.next(bar.close), self.slow.next(bar.close));
        let line = fast - slow;
        let signal = self.signal.next(line);
        out.clear();
        out.extend([
            log_return,
            self.closes.log_return(LONG_RETURNS[0]),
            self.closes.log_return(LONG_RETURNS[1]),
            bar.range(),
            bar.body(),
            self.closes.average_distance(average),
            bar.close / slow - 1.0,
            self.strength.next(bar.close),
            self.true_range.next(bar),
            self.closes.bollinger(average),
            line / bar.close,
            (line - signal) / bar.close,
            self.returns.volatility(average),
        ]);
        for higher in &mut self.higher {
            out.extend(higher.next(bar));
        }
        out.extend(bar.clock(DAY, 0));
        out.extend(bar.clock(7 * DAY, MONDAY));
    }
}

/// What the closed bars of a longer timeframe say at the close of each base bar.
struct Higher {
    average: usize,
    bars: Resample,
    /// Whether the bar that is open began within the run: the first one may have begun before.
    whole: bool,
    closes: Window,
    strength: Strength,
    true_range: TrueRange,
    /// Of the last bar that has closed.
    seen: [f64; OF_LONGER],
}

impl Higher {
    fn from(begin: i64, length: i64, frames: &Timeframes) -> Self {
        let HigherPeriods { average, strength } = frames.higher_periods;
        Self {
            average,
            bars: Resample::to(length),
            whole: begin % length == 0,
            closes: Window::of(average.max(2)),
            strength: Strength::of(strength),
            true_range: TrueRange::of(strength),
            seen: [f64::NAN; OF_LONGER],
        }
    }

    fn next(&mut self, base: &Bar) -> [f64; OF_LONGER] {
        self.bars.next(base);
        let Some(bar) = self.bars.closed_by(base.closed) else { return self.seen };
        if std::mem::replace(&mut self.whole, true) {
            self.closes.push(bar.close);
            self.seen = [
                self.closes.log_return(1),
                bar.range(),
                self.closes.average_distance(self.average),
                self.strength.next(bar.close),
                self.true_range.next(&bar),
                self.closes.bollinger(self.average),
            ];
        }
        self.seen
    }
}

/// Bars that the warm-up of a run takes whose first bar begins at this moment, if it has as many: until every feature
/// has bars enough to look back on.
pub(super) fn warmup(begin: i64, frames: &Timeframes) -> usize {
    let Periods { average, strength, fast, slow, signal } = frames.periods;
    // An average of n values has one at the n-th bar; one of n changes, a bar later.
    let histogram = fast.max(slow) + signal - 2;
    let own = [LONG_RETURNS[1], average, strength, histogram].into_iter().fold(0, usize::max);
    let HigherPeriods { average, strength } = frames.higher_periods;
    let needed = average.max(strength + 1).max(2) as i64;
    let base = frames.base.microseconds();
    let longer = frames.higher.iter().map(|frame| {
        let length = frame.microseconds();
        // From the beginning of the first whole one on.
        let wait = (-begin).rem_euclid(length) + needed * length;
        (wait / base - 1) as usize
    });
    longer.fold(own, usize::max)
}
