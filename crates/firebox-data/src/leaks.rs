//! What a test for look-ahead changes, and the place where it shows.
//!
//! Values are changed, or rows taken away, as they come from the files, so that everything that is
//! made of them afterwards is put to the test. Nothing here is stored. What is made of series
//! (windows, labels, scales) is compared in `firebox-pipeline`.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use firebox_core::{Channel, Listener, Series, SeriesSet, Stream};

use crate::clean::in_order;
use crate::ingest::{checked, cleaned, raw, with_timeframes};
use crate::input::inputs;
use crate::raw::Raw;
use crate::{
    CheckPolicies, Checks, ConstantPolicy, DataConfig, DataError, Interval, Stamp, Timeframes,
    grouping, time,
};

/// What is changed in the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Every value after this moment, microseconds since 1970-01-01 UTC; in data without times,
    /// after the row of this number, from 0. Of bars that longer timeframes are made of, those that close after it.
    After(i64),
    /// Every value of the series of these names.
    Series(Vec<String>),
    /// No row after this moment is there any more, counted as in [`After`](Self::After). The order of rows,
    /// their interval and the channels that are kept stay those of all rows.
    Gone(i64),
}

/// What the files hold, read once, from which the data can be made with changes.
#[derive(Clone, Debug)]
pub struct Original {
    raw: Raw,
    config: DataConfig,
    /// Of the channels of the files, which are kept.
    kept: Vec<bool>,
    interval: Option<Interval>,
    /// The group of each series, if they have any: what is changed stays in it.
    groups: HashMap<String, Arc<str>>,
}

impl Original {
    /// Reads the data as [`ingest`](crate::ingest()) does, but neither reads nor writes the cache. Returns
    /// with it what is made of the files as they are.
    ///
    /// # Errors
    ///
    /// As [`ingest`](crate::ingest()).
    pub fn read(
        config: &DataConfig,
        listener: &dyn Listener,
    ) -> Result<(Self, SeriesSet, Checks), DataError> {
        let raw = raw(config, listener)?;
        let (set, checks) = cleaned(raw.clone(), config)?;
        let kept = raw.channels.iter().map(|channel| set.channels().contains(channel)).collect();
        let groups = match config.is_grouped() {
            true => grouping::groups(config, &inputs(config)?, &set, &AtomicBool::new(false))?,
            false => HashMap::new(),
        };
        let original =
            Self { raw, config: config.clone(), kept, interval: checks.interval, groups };
        let (set, checks) = with_timeframes(set, checks, config)?;
        let set = set.grouped(&original.groups);
        Ok((original, set, checks))
    }

    /// The data with some values changed: each row by a factor of its own around 1, the same for its
    /// prices, so that no defect comes in; or without the rows that are [gone](Change::Gone).
    ///
    /// # Errors
    ///
    /// As [`ingest`](crate::ingest()); also when too few rows are left.
    pub fn changed(&self, change: &Change) -> Result<SeriesSet, DataError> {
        let (raw, config) = match change {
            Change::After(moment) => {
                let moment = self.last_begun(*moment);
                (self.disturbed(|_| Some(moment)), self.config.clone())
            }
            Change::Series(names) => {
                let all = |series: &str| names.iter().any(|name| name == series);
                (self.disturbed(|series| all(series).then_some(i64::MIN)), self.config.clone())
            }
            Change::Gone(moment) => self.without(*moment),
        };
        let checks = CheckPolicies { constant: ConstantPolicy::Keep, ..config.checks };
        Ok(checked(raw, &DataConfig { checks, ..config })?.0.grouped(&self.groups))
    }

    /// The last time of a row that has ended by a moment: where bars of longer timeframes are made of rows whose times mark
    /// their begin, one that begins at the moment lies behind it.
    fn last_begun(&self, moment: i64) -> i64 {
        let opens = |frames: &Timeframes| frames.stamp == Stamp::Open;
        let interval = self.config.interval.or(self.interval);
        match self.config.timeframes.as_ref().is_some_and(opens) {
            true => moment.saturating_sub(interval.map_or(0, Interval::microseconds)),
            false => moment,
        }
    }

    /// What the files hold, of the channels that are kept: one that never changes would with other values, and one that
    /// changes would not without some.
    fn of_kept(&self) -> Raw {
        let mut raw = self.raw.clone();
        only(&mut raw.channels, &self.kept);
        raw.series.iter_mut().for_each(|series| only(&mut series.columns, &self.kept));
        raw
    }

    /// The rows with other values after the moment that a series has by its name.
    fn disturbed(&self, after: impl Fn(&str) -> Option<i64>) -> Raw {
        let mut raw = self.of_kept();
        for series in &mut raw.series {
            let Some(after) = after(&series.name) else { continue };
            let rows: Vec<usize> =
                (0..series.len()).filter(|row| series.moment(*row) > after).collect();
            disturb(&raw.channels, &mut series.columns, &rows);
        }
        raw
    }

    /// The rows as they would be had none come after a moment. Their order, the interval and the channels
    /// that say something are those of all rows: a user declares them, or would.
    fn without(&self, moment: i64) -> (Raw, DataConfig) {
        let (mut raw, config) = (self.of_kept(), &self.config);
        // The row that closes a bar may be the first of the next one, which is itself not complete.
        let next = config.timeframes.is_some();
        let works = in_order(std::mem::take(&mut raw.series), &raw.channels, &config.checks);
        let interval = config.interval.or(self.interval);
        let of = (&raw.channels[..], interval.map(Interval::microseconds));
        let works = works.into_iter().map(|work| work.until(moment, of, &config.checks, next));
        raw.series = works.collect();
        raw.series.retain(|series| series.len() > 0);
        (raw, DataConfig { interval, ..config.clone() })
    }
}

/// Keeps what is marked.
fn only<T>(values: &mut Vec<T>, kept: &[bool]) {
    let mut kept = kept.iter();
    values.retain(|_| kept.next() == Some(&true));
}

/// Changes rows by what they hold, as f32: rows that are equal, wherever they stand, are so afterwards, and a copy that
/// was stored as f32 is one still. What is left out, or kept together, for steps that series share stays so.
fn disturb(channels: &[Channel], columns: &mut [Vec<f64>], rows: &[usize]) {
    let stream = Stream::new(1, "look-ahead test");
    for row in rows {
        let bits = |column: &Vec<f64>| u64::from((column[*row] as f32 + 0.0).to_bits());
        let own = columns.iter().fold(stream, |stream, column| stream.substream(bits(column)));
        let mut draws = own.draws();
        let factor = (0.05 * draws.normal()).exp();
        for (column, channel) in columns.iter_mut().zip(channels) {
            let shift =
                if channel.role.is_price() { 0.0 } else { 0.01 + 0.1 * f64::from(draws.uniform()) };
            column[*row] = single(column[*row]) * factor + shift;
        }
    }
}

/// The number in f32, if that has it.
fn single(value: f64) -> f64 {
    let single = value as f32;
    if single.is_normal() || value == 0.0 { f64::from(single) } else { value }
}

/// A place where two results differ.
#[derive(Clone, Debug, PartialEq)]
pub enum Difference {
    /// A feature has another value.
    Value {
        /// The series.
        series: String,
        /// The feature.
        channel: String,
        /// Time of the step, microseconds since 1970-01-01 UTC; in data without times, its number.
        time: i64,
        /// What it was, and is after the change.
        values: [f64; 2],
    },
    /// A step is there in one of the two results only.
    Step {
        /// The series.
        series: String,
        /// Its time, as above.
        time: i64,
    },
    /// A feature is there in one of the two results only; none if their order alone differs.
    Feature(Option<String>),
}

impl Difference {
    /// In words. `clock` says whether times are moments, and not numbers of rows.
    pub fn told(&self, clock: bool) -> String {
        let at = |series: &str, time: i64| {
            let at = if clock { time::format(time) } else { format!("step {time}") };
            // A single series may have no name.
            if series.is_empty() { at } else { format!("series `{series}`, {at}") }
        };
        match self {
            Self::Value { series, channel, time, values: [before, after] } => {
                let at = at(series, *time);
                format!("{at}, feature `{channel}`: {before:e} became {after:e}")
            }
            Self::Step { series, time } => {
                format!("{}: the step is in one of the two results only", at(series, *time))
            }
            Self::Feature(Some(channel)) => {
                format!("feature `{channel}` is in one of the two results only")
            }
            Self::Feature(None) => "the features are in another order".to_owned(),
        }
    }
}

/// The first step up to `until` that differs, bit by bit, between two results.
pub fn first_difference(before: &SeriesSet, after: &SeriesSet, until: i64) -> Option<Difference> {
    let (ours, theirs) = (before.channels(), after.channels());
    if ours != theirs {
        let only = |one: &[Channel], other: &[Channel]| {
            one.iter().find(|own| !other.contains(own)).map(|own| own.name.clone())
        };
        return Some(Difference::Feature(only(ours, theirs).or_else(|| only(theirs, ours))));
    }
    let missing = Series::default();
    let others: HashMap<&str, &Series> =
        after.series().iter().map(|series| (&*series.name, series)).collect();
    before.series().iter().find_map(|series| {
        let other = others.get(&*series.name).copied();
        difference(series, other.unwrap_or(&missing), ours, until)
    })
}

fn difference(
    before: &Series,
    after: &Series,
    channels: &[Channel],
    until: i64,
) -> Option<Difference> {
    let width = channels.len();
    let series = || before.name.clone();
    let count = |series: &Series| series.time.partition_point(|time| *time <= until);
    for step in 0..count(before).max(count(after)) {
        let times = [before, after].map(|series| series.time.get(step).copied());
        if times[0] != times[1] {
            let time = times.into_iter().flatten().min().unwrap_or(until);
            return Some(Difference::Step { series: series(), time });
        }
        for (channel, at) in channels.iter().zip(step * width..) {
            let values = [before.values.at(at), after.values.at(at)];
            if values[0].to_bits() != values[1].to_bits() {
                let (channel, time) = (channel.name.clone(), before.time[step]);
                return Some(Difference::Value { series: series(), channel, time, values });
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use firebox_core::{Silent, StepLabels};

    use super::*;
    use crate::{GapPolicy, Policy};

    const MINUTE: i64 = 60_000_000;

    /// Bars of two series, the second of which begins late, and a channel that never changes.
    fn bars(edit: impl Fn(usize, &mut String)) -> String {
        let mut text = "time,series,close,always,kind\n".to_owned();
        for step in 0..60_usize {
            edit(step, &mut text);
            let time = crate::time::format(step as i64 * MINUTE);
            let close = 100.0 + (step * step % 17) as f64;
            let _ = writeln!(text, "{time},a,{close},7,{}", ["up", "down"][step % 2]);
            if step >= 40 {
                let _ = writeln!(text, "{time},b,{close},7,up");
            }
        }
        text
    }

    #[test]
    fn what_is_changed_stays_in_its_group() {
        for change in [
            Change::After(30 * MINUTE),
            Change::Gone(50 * MINUTE),
            Change::Series(vec!["b".to_owned()]),
        ] {
            let [whole, changed] = changed(&bars(|_, _| ()), &change, |config| {
                config.group_pattern = Some("a|b".to_owned());
            });
            let groups = |set: &SeriesSet| -> Vec<_> {
                set.series().iter().map(|series| series.group.clone()).collect()
            };
            assert_eq!(groups(&changed), groups(&whole));
            assert_eq!(whole.groups(), 2);
        }
    }

    fn sets(text: &str, moment: i64, edit: impl Fn(&mut DataConfig)) -> [SeriesSet; 2] {
        changed(text, &Change::Gone(moment), edit)
    }

    fn changed(text: &str, change: &Change, edit: impl Fn(&mut DataConfig)) -> [SeriesSet; 2] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("bars.csv");
        std::fs::write(&file, text).unwrap();
        let mut config = DataConfig::new(&file);
        config.columns.label = Some("kind".to_owned());
        config.checks.constant = ConstantPolicy::Drop;
        edit(&mut config);
        let (original, whole, _) = Original::read(&config, &Silent).unwrap();
        [whole, original.changed(change).unwrap()]
    }

    #[test]
    fn rows_that_are_gone_change_none_before_them() {
        let moment = 29 * MINUTE + 1;
        let [whole, rest] = sets(&bars(|_, _| ()), moment, |_| ());
        let names = |set: &SeriesSet| {
            set.series()
                .iter()
                .map(|series| (series.name.clone(), series.len()))
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&whole), [("a".to_owned(), 60), ("b".to_owned(), 20)]);
        assert_eq!(names(&rest), [("a".to_owned(), 30)]);
        // What never changes was dropped from both, and labels went with their rows.
        assert_eq!((rest.channels(), rest.channels().len()), (whole.channels(), 1));
        assert_eq!(first_difference(&whole, &rest, moment), None);
        let StepLabels::PerStep(labels) = &rest.series()[0].labels else {
            panic!("labels of steps")
        };
        let StepLabels::PerStep(all) = &whole.series()[0].labels else { panic!("labels of steps") };
        assert_eq!(labels, &all[..30]);
        // A moment later, one step is there that was not.
        let found = first_difference(&whole, &rest, moment + MINUTE).unwrap();
        let step = Difference::Step { series: "a".to_owned(), time: 30 * MINUTE };
        assert_eq!(found, step);
        assert_eq!(
            found.told(true),
            "series `a`, 1970-01-01T00:30:00Z: the step is in one of the two results only"
        );
    }

    #[test]
    fn a_channel_that_was_left_out_is_left_out_of_other_values_too() {
        let moment = 29 * MINUTE + 1;
        for change in [Change::After(moment), Change::Series(vec!["b".to_owned()])] {
            let [whole, other] = changed(&bars(|_, _| ()), &change, |_| ());
            assert_eq!((other.channels(), other.channels().len()), (whole.channels(), 1));
            assert_eq!(first_difference(&whole, &other, moment), None);
            // What was changed is there.
            let found = first_difference(&whole, &other, i64::MAX).unwrap();
            let Difference::Value { channel, .. } = found else { panic!("{found:?}") };
            assert_eq!(channel, "close");
        }
    }

    #[test]
    fn holes_are_filled_by_what_lies_before_them_alone() {
        // A gap of three steps and a run of three missing values, with moments within and beside both.
        let text = bars(|_, _| ());
        let keep = |(step, line): &(usize, &str)| {
            !(11..14).contains(&(step.saturating_sub(1))) || !line.contains(",a,")
        };
        let missing = |(step, line): (usize, &str)| {
            let close = (21..24).contains(&step.saturating_sub(1));
            let parts: Vec<&str> = line.split(',').collect();
            if close {
                format!("{},{},,7,{}\n", parts[0], parts[1], parts[4])
            } else {
                format!("{line}\n")
            }
        };
        let text: String = text.lines().enumerate().filter(keep).map(missing).collect();
        for moment in 5..30 {
            let [whole, rest] = sets(&text, moment * MINUTE, |config| {
                (config.checks.gaps, config.checks.not_finite) = (GapPolicy::Fill, Policy::Fill);
            });
            assert_eq!(whole.series()[0].len(), 60);
            assert_eq!(first_difference(&whole, &rest, moment * MINUTE), None, "{moment}");
        }
    }

    /// What is made of a table and how, to be changed.
    fn original(text: &str, edit: impl Fn(&mut DataConfig)) -> (Original, SeriesSet) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("bars.csv");
        std::fs::write(&file, text).unwrap();
        let mut config = DataConfig::new(&file);
        edit(&mut config);
        let (original, whole, _) = Original::read(&config, &Silent).unwrap();
        (original, whole)
    }

    #[test]
    fn rows_of_a_higher_rate_are_left_out_by_what_lies_before_them() {
        const SECOND: i64 = MINUTE / 60;
        for seconds in [5, 6, 7, 13] {
            let mut text = "time,series,close\n".to_owned();
            let mut row = |name: &str, at: i64| {
                let _ = writeln!(text, "{},{name},{}", crate::time::format(at), at / SECOND % 997);
            };
            (0..400).for_each(|minute| row("a", minute * MINUTE));
            (0..120).for_each(|step| row("b", 350 * MINUTE + step * seconds * SECOND));
            let (original, whole) = original(&text, |config| {
                config.checks.crowded = crate::CrowdedPolicy::Drop;
            });
            assert_eq!(whole.series()[0].len(), 400);
            for step in (1..120).step_by(3) {
                let moment = 350 * MINUTE + step * seconds * SECOND;
                let rest = original.changed(&Change::Gone(moment)).unwrap();
                let found = first_difference(&whole, &rest, moment);
                assert_eq!(found, None, "{seconds}, {step}");
            }
        }
    }

    #[test]
    fn what_is_filled_breaks_no_bar_whatever_the_others_are() {
        let mut draws = Stream::new(3, "bars").draws();
        let mut text = "time,open,high,low,close\n".to_owned();
        let mut close = 100.0;
        for step in 0..300 {
            close *= (0.01 * draws.normal()).exp();
            let open = close * (0.002 * draws.normal()).exp();
            let (high, low) = (1.001 * f64::max(open, close), 0.999 * f64::min(open, close));
            let open = if step % 11 == 5 { String::new() } else { open.to_string() };
            let time = crate::time::format(step * MINUTE);
            let _ = writeln!(text, "{time},{open},{high},{low},{close}");
        }
        let (original, whole) = original(&text, |config| {
            (config.checks.not_finite, config.checks.ohlc) = (Policy::Fill, Policy::Drop);
        });
        assert_eq!((whole.series()[0].len(), whole.series()[0].segments.len()), (300, 1));
        for moment in [50 * MINUTE, 150 * MINUTE] {
            let other = original.changed(&Change::After(moment)).unwrap();
            assert_eq!((other.series()[0].len(), other.series()[0].segments.len()), (300, 1));
            assert_eq!(first_difference(&whole, &other, moment), None);
        }
    }

    #[test]
    fn a_bar_is_closed_by_the_first_row_that_stays() {
        const HOUR: i64 = 60 * MINUTE;
        let mut text = "time,series,open,high,low,close\n".to_owned();
        let mut row = |name: &str, hour: i64, is_empty: bool| {
            let open = 100.0 + (hour * hour % 17) as f64 / 10.0;
            let [high, low, close] = [open + 1.0, open - 1.0, open + 0.1];
            let bar = match is_empty {
                true => ",,,".to_owned(),
                false => format!("{open},{high},{low},{close}"),
            };
            let _ = writeln!(text, "{},{name},{bar}", crate::time::format(hour * HOUR));
        };
        (0..160).for_each(|hour| row("a", hour, false));
        // Before the gap there is one of two rows of a bar, and the first row behind it says nothing.
        (0..101).chain(140..160).for_each(|hour| row("b", hour, hour == 140));
        for policy in [Policy::Drop, Policy::Fill] {
            let (original, whole) = original(&text, |config| {
                (config.checks.not_finite, config.checks.gaps) = (policy, GapPolicy::Split);
                let frames = "base = '2h'\nhigher = ['4h']\nperiods = { average = 2, strength = 2, fast = 2, slow = 3, signal = 2 }\nhigher_periods = { average = 2, strength = 2 }";
                config.timeframes = Some(toml::from_str(frames).unwrap());
            });
            assert!(whole.series()[1].time.contains(&(102 * HOUR)));
            for hour in [102, 110, 139] {
                let rest = original.changed(&Change::Gone(hour * HOUR)).unwrap();
                let found = first_difference(&whole, &rest, hour * HOUR);
                assert_eq!(found, None, "{policy:?}, {hour}");
            }
        }
    }

    #[test]
    fn rows_out_of_order_are_gone_by_their_times() {
        // The row of minute 50 comes first of all.
        let early = format!("{},a,99,7,up\n", crate::time::format(50 * MINUTE));
        let text = bars(|step, text| {
            if step == 0 {
                text.push_str(&early)
            }
        });
        let [whole, rest] = sets(&text, 20 * MINUTE, |config| {
            (config.checks.unsorted, config.checks.duplicates) = (Policy::Fill, Policy::Fill);
        });
        assert_eq!((whole.series()[0].len(), rest.series()[0].len()), (60, 21));
        assert_eq!(first_difference(&whole, &rest, 20 * MINUTE), None);
    }

    #[test]
    fn where_too_few_rows_are_left_it_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("bars.csv");
        std::fs::write(&file, bars(|_, _| ())).unwrap();
        let mut config = DataConfig::new(&file);
        config.checks.constant = ConstantPolicy::Drop;
        config.columns.label = Some("kind".to_owned());
        let (original, ..) = Original::read(&config, &Silent).unwrap();
        let error = original.changed(&Change::Gone(0)).unwrap_err().to_string();
        assert!(error.contains("bars.csv"), "{error}");
    }
}
