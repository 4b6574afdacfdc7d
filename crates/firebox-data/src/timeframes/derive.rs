//! From source bars to features: base bars, runs of them, and what is left after the warm-up.
//!
//! These are loops and not polars expressions, because polars' as-of joins and dynamic groups are
//! features that the build does without; a Python script with polars is the reference of the tests.
//!
//! A series is gone through row by row, and what is made of it is handed on step by step: here into memory, in
//! [`stored`](super::stored) into the store.

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use firebox_core::{Filled, Role, Series, SeriesSet, StepLabels};
use rayon::prelude::*;

use super::features::{Features, Resample, end_of, warmup};
use super::{Stamp, TimeframeChecks, Timeframes};
use crate::indicators::Bar;
use crate::{DataError, Interval, time};

/// Rows of a series that are gone through at once, between two looks at whether to stop.
const ROWS: usize = 1 << 14;

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
    let never = AtomicBool::new(false);
    let plan = Plan::of(set, frames, source, (&never, &|_| ()))?;
    let made = plan.collected(0..set.series().len())?;
    let checks = plan.summary(made.iter().map(|(found, _)| found))?;
    let series = set.series().iter().zip(made).filter(|(_, (found, _))| found.steps > 0);
    let series = series.map(|(of, (found, steps))| Series {
        name: of.name.clone(),
        origin: of.origin,
        group: of.group.clone(),
        labels: match &of.labels {
            StepLabels::PerStep(labels) => {
                StepLabels::PerStep(steps.rows.iter().map(|row| labels[*row]).collect())
            }
            whole => whole.clone(),
        },
        segments: found.segments,
        filled: found.filled,
        time: steps.time.into(),
        values: steps.values.into(),
    });
    let series = series.collect();
    Ok((SeriesSet::new(frames.channels(), set.classes().to_vec(), series)?, checks))
}

/// What features are made of, once it is known that they can be.
pub(super) struct Plan<'a> {
    set: &'a SeriesSet,
    frames: &'a Timeframes,
    /// The channels of open, high, low and close.
    prices: [usize; 4],
    /// Microseconds between two source bars.
    source: i64,
    /// Whether to end.
    stop: &'a AtomicBool,
    /// Hears of so many source bars more that have been gone through, from any thread.
    passed: &'a (dyn Fn(usize) + Sync),
    /// Of each series.
    steps: Vec<usize>,
}

/// What was made of a series beside its steps.
#[derive(Default)]
pub(super) struct Found {
    pub(super) segments: Vec<Range<usize>>,
    pub(super) steps: usize,
    /// Returns from or to a close that was not measured.
    pub(super) filled: Filled,
    /// Without the names of series.
    checks: TimeframeChecks,
}

/// Steps of a series: the moments at which their bars close, their features, and the last source row of each.
#[derive(Default)]
pub(super) struct Steps {
    pub(super) time: Vec<i64>,
    pub(super) values: Vec<f64>,
    pub(super) rows: Vec<usize>,
}

impl Steps {
    pub(super) fn push(&mut self, time: i64, values: &[f64], row: usize) {
        self.time.push(time);
        self.values.extend_from_slice(values);
        self.rows.push(row);
    }

    pub(super) fn clear(&mut self) {
        self.time.clear();
        self.values.clear();
        self.rows.clear();
    }
}

/// The feature that classes can be made of.
pub(super) const RETURN: usize = 0;

/// Rows in a row that lie evenly farther apart than a bar takes, from which on they are taken for longer bars: of a bar that is
/// stamped by when it opens, nothing else says when it closes. A choice; gaps of markets do not come so often one after the other.
const MOST_ALIKE: usize = 20;

/// Such rows.
#[derive(Default)]
struct Alike {
    last: Option<i64>,
    step: i64,
    rows: usize,
    /// The first of them.
    first: i64,
}

impl Alike {
    /// How many there are with this row.
    fn add(&mut self, time: i64, interval: i64) -> usize {
        let last = self.last.replace(time);
        let step = last.map_or(0, |last| time - last);
        match step {
            step if step < 2 * interval => (self.step, self.rows) = (0, 0),
            step if step == self.step => self.rows += 1,
            step => (self.step, self.rows, self.first) = (step, 1, last.unwrap_or(time)),
        }
        self.rows
    }
}

impl<'a> Plan<'a> {
    /// Looks at the settings and at all prices.
    pub(super) fn of(
        set: &'a SeriesSet,
        frames: &'a Timeframes,
        source: Option<Interval>,
        (stop, passed): (&'a AtomicBool, &'a (dyn Fn(usize) + Sync)),
    ) -> Result<Self, DataError> {
        let source = frames.check(source)?;
        let role = |role| set.role(role).ok_or(DataError::TimeframePrices);
        let prices = [role(Role::Open)?, role(Role::High)?, role(Role::Low)?, role(Role::Close)?];
        let mut plan = Self { set, frames, prices, source, stop, passed, steps: vec![] };
        let of_each = set.series().par_iter().map(|series| plan.count(series));
        // All of them first: which is the first that is refused does not depend on the threads.
        let of_each: Vec<Result<usize, DataError>> = of_each.collect();
        plan.steps = of_each.into_iter().collect::<Result<_, _>>()?;
        Ok(plan)
    }

    /// Steps that each series gives; fewer if its prices lie too far apart.
    pub(super) fn steps(&self) -> &[usize] {
        &self.steps
    }

    /// The steps that are left of a series after the warm-up, if its prices are positive.
    fn count(&self, series: &Series) -> Result<usize, DataError> {
        let (width, base) = (self.set.channels().len(), self.frames.base.microseconds());
        let times = series.time.as_slice();
        let left = |run: &Range<i64>| {
            let bars = ((run.end - run.start) / base) as usize;
            bars.saturating_sub(warmup(run.start, self.frames))
        };
        let (mut steps, mut run, mut last) = (0, 0..0, None);
        let mut alike = Alike::default();
        for part in parts(times.len()) {
            DataError::heed(self.stop)?;
            let values = series.values.part(part.start * width..part.end * width);
            for (time, row) in times[part].iter().zip(values.chunks_exact(width)) {
                if self.frames.stamp == Stamp::Open && alike.add(*time, self.source) == MOST_ALIKE {
                    return Err(self.longer(series, &alike));
                }
                if self.prices.iter().any(|price| row[*price] <= 0.0) {
                    let (series, at) = (series.name.clone(), time::format(*time));
                    return Err(DataError::TimeframePrice { series, at });
                }
                let closed = time + self.shift();
                if closed > run.end || last.is_none() {
                    let end = end_of(closed, base);
                    if end - base != run.end {
                        steps += left(&run);
                        run.start = end - base;
                    }
                    run.end = end;
                }
                last = Some(closed);
            }
        }
        // The last bar may go on.
        if last.is_some_and(|closed| run.end > closed) {
            run.end -= base;
        }
        Ok(steps + left(&run))
    }

    /// What is said of rows that lie evenly farther apart than a bar takes.
    fn longer(&self, series: &Series, alike: &Alike) -> DataError {
        DataError::TimeframeSteps {
            series: series.name.clone(),
            at: time::format(alike.first),
            rows: MOST_ALIKE,
            step: Interval::whole(alike.step).to_string(),
            interval: Interval::whole(self.source).to_string(),
        }
    }

    /// From the time of a row to the moment at which its bar closes.
    fn shift(&self) -> i64 {
        if self.frames.stamp == Stamp::Open { self.source } else { 0 }
    }

    /// What is made of some series, several at a time, all of it in memory.
    pub(super) fn collected(&self, range: Range<usize>) -> Result<Vec<(Found, Steps)>, DataError> {
        let width = self.frames.names().len();
        let of_series = |index: usize| {
            let most = self.steps[index];
            let (time, rows) = (Vec::with_capacity(most), Vec::with_capacity(most));
            let mut steps = Steps { time, values: Vec::with_capacity(most * width), rows };
            let take = |time, values: &[f64], row| {
                steps.push(time, values, row);
                Ok(())
            };
            Ok((self.series(index, take)?, steps))
        };
        let made: Vec<Result<_, DataError>> = range.into_par_iter().map(of_series).collect();
        made.into_iter().collect()
    }

    /// Goes through a series, and hands on each step with the last source row that is in it.
    pub(super) fn series(
        &self,
        index: usize,
        take: impl FnMut(i64, &[f64], usize) -> Result<(), DataError>,
    ) -> Result<Found, DataError> {
        let series = &self.set.series()[index];
        let (width, times) = (self.set.channels().len(), series.time.as_slice());
        let mut bars = Resample::to(self.frames.base.microseconds());
        let found = Found::default();
        let mut runs = Runs { plan: self, series, take, run: None, values: Vec::new(), found };
        for part in parts(times.len()) {
            DataError::heed(self.stop)?;
            let values = series.values.part(part.start * width..part.end * width);
            let rows = part.len();
            for (row, values) in part.zip(values.chunks_exact(width)) {
                let [open, high, low, close] = self.prices.map(|price| values[price]);
                let bar = Bar { closed: times[row] + self.shift(), open, high, low, close };
                if let Some(bar) = bars.next(&bar) {
                    runs.next(&bar, row - 1)?;
                }
            }
            (self.passed)(rows);
        }
        let last = times.last().and_then(|time| bars.closed_by(time + self.shift()));
        if let Some(bar) = last {
            runs.next(&bar, times.len() - 1)?;
        }
        runs.end()?;
        Ok(runs.found)
    }

    /// What was found in all series together.
    ///
    /// # Errors
    ///
    /// When nothing is left of any.
    pub(super) fn summary<'b>(
        &self,
        found: impl Iterator<Item = &'b Found>,
    ) -> Result<TimeframeChecks, DataError> {
        let mut checks = TimeframeChecks::default();
        let mut left = false;
        for (series, Found { steps, checks: own, .. }) in self.set.series().iter().zip(found) {
            checks.bars += own.bars;
            checks.runs += own.runs;
            checks.warmup += own.warmup;
            checks.lost_runs += own.lost_runs;
            left |= *steps > 0;
            if *steps == 0 {
                checks.lost_series.push(series.name.clone());
            }
        }
        if left {
            return Ok(checks);
        }
        let longest = self.frames.higher.last().map_or(self.frames.base, |frame| *frame);
        Err(DataError::TimeframeWarmup { bars: checks.bars, runs: checks.runs, longest })
    }
}

/// Rows of a series, a bounded number at a time.
fn parts(rows: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows).step_by(ROWS).map(move |start| start..rows.min(start + ROWS))
}

/// The base bars of a series, one by one.
struct Runs<'a, T> {
    plan: &'a Plan<'a>,
    series: &'a Series,
    take: T,
    run: Option<Run<'a>>,
    /// Features of a bar.
    values: Vec<f64>,
    found: Found,
}

/// Base bars without a gap.
struct Run<'a> {
    features: Features<'a>,
    /// When the last bar closed.
    closed: i64,
    /// Whether its close was measured.
    measured: bool,
    /// The first step, once every indicator has bars enough to look back on.
    first: Option<usize>,
    /// The first feature that is no number although its bars are: prices too far apart for f64.
    refused: Option<Refused>,
}

struct Refused {
    feature: usize,
    closed: i64,
    value: f64,
}

impl<T: FnMut(i64, &[f64], usize) -> Result<(), DataError>> Runs<'_, T> {
    /// Takes the next bar and the last source row of it.
    fn next(&mut self, bar: &Bar, row: usize) -> Result<(), DataError> {
        let (frames, base) = (self.plan.frames, self.plan.frames.base.microseconds());
        if self.run.as_ref().is_some_and(|run| bar.closed - run.closed != base) {
            self.end()?;
        }
        let run = self.run.get_or_insert_with(|| Run {
            features: Features::from(bar.closed - base, frames),
            closed: bar.closed,
            measured: true,
            first: None,
            refused: None,
        });
        run.closed = bar.closed;
        let measured = !self.series.filled.holds(self.plan.prices[3], row);
        let before = std::mem::replace(&mut run.measured, measured);
        run.features.next(bar, &mut self.values);
        #[cfg(test)]
        if frames.leak > 0 {
            self.values[4] = self.plan.ahead(self.series, row + frames.leak);
        }
        self.found.checks.bars += 1;
        if run.first.is_none() {
            if self.values.iter().any(|value| value.is_nan()) {
                self.found.checks.warmup += 1;
                return Ok(());
            }
            run.first = Some(self.found.steps);
        }
        let usable = |value: &f64| value.abs() <= f64::from(f32::MAX);
        if let Some(feature) = self.values.iter().position(|value| !usable(value))
            && run.refused.as_ref().is_none_or(|refused| feature < refused.feature)
        {
            let (closed, value) = (bar.closed, self.values[feature]);
            run.refused = Some(Refused { feature, closed, value });
        }
        if !(before && measured) {
            self.found.filled.add(RETURN, self.found.steps..self.found.steps + 1);
        }
        self.found.steps += 1;
        match run.refused {
            // The run is gone through to its end: an earlier feature may be refused, too.
            Some(_) => Ok(()),
            None => (self.take)(bar.closed, &self.values, row),
        }
    }

    /// Ends a run, if there is one.
    fn end(&mut self) -> Result<(), DataError> {
        let Some(run) = self.run.take() else { return Ok(()) };
        if let Some(Refused { feature, closed, value }) = run.refused {
            return Err(DataError::TimeframeFeature {
                feature: self.plan.frames.names().swap_remove(feature),
                series: self.series.name.clone(),
                at: time::format(closed),
                value,
            });
        }
        self.found.checks.runs += 1;
        self.found.checks.lost_runs += u64::from(run.first.is_none());
        self.found.segments.extend(run.first.map(|first| first..self.found.steps));
        Ok(())
    }
}

#[cfg(test)]
impl Plan<'_> {
    /// The close of a row, or of the last one.
    fn ahead(&self, series: &Series, row: usize) -> f64 {
        let row = row.min(series.len() - 1);
        series.values.at(row * self.set.channels().len() + self.prices[3])
    }
}
