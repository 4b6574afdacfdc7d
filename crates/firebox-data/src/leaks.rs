//! What a test for look-ahead changes, and the place where it shows.
//!
//! Values are changed as they come from the files, before any check, so that everything that is
//! made of them afterwards is put to the test. Nothing here is stored. What is made of series
//! (windows, labels, scales) is compared in `firebox-pipeline`.

use std::fmt;

use firebox_core::{Channel, Listener, Series, SeriesSet, Stream};

use crate::ingest::{checked, raw};
use crate::{Checks, DataConfig, DataError, time};

/// What is changed in the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    None,
    /// Every value after this moment, microseconds since 1970-01-01 UTC; in data without times,
    /// after the row of this number, from 0.
    After(i64),
    /// Every value of the series of these names.
    Series(Vec<String>),
}

/// Reads the data as [`ingest`](crate::ingest()) does, with some of its values changed: each row by
/// a factor of its own around 1, the same for its prices, so that no defect comes in. It neither reads
/// nor writes the cache.
///
/// # Errors
///
/// As [`ingest`](crate::ingest()).
pub fn changed(
    config: &DataConfig,
    change: &Change,
    listener: &dyn Listener,
) -> Result<(SeriesSet, Checks), DataError> {
    let mut raw = raw(config, listener)?;
    let named = checked_names(change);
    for series in &mut raw.series {
        let after = match change {
            Change::None => continue,
            Change::After(moment) => *moment,
            Change::Series(_) if named.contains(&series.name.as_str()) => i64::MIN,
            Change::Series(_) => continue,
        };
        let rows = series.len();
        let time = series.time.clone().unwrap_or_else(|| (0..rows as i64).collect());
        let rows: Vec<usize> = (0..rows).filter(|row| time[*row] > after).collect();
        disturb(&raw.channels, &mut series.columns, &rows);
    }
    checked(raw, config)
}

fn checked_names(change: &Change) -> Vec<&str> {
    match change {
        Change::Series(names) => names.iter().map(String::as_str).collect(),
        Change::None | Change::After(_) => vec![],
    }
}

fn disturb(channels: &[Channel], columns: &mut [Vec<f64>], rows: &[usize]) {
    let stream = Stream::new(1, "look-ahead test");
    for row in rows {
        let mut draws = stream.substream(*row as u64).draws();
        let factor = (0.05 * draws.normal()).exp();
        for (column, channel) in columns.iter_mut().zip(channels) {
            let shift =
                if channel.role.is_price() { 0.0 } else { 0.01 + 0.1 * f64::from(draws.uniform()) };
            column[*row] = column[*row] * factor + shift;
        }
    }
}

/// A place where two results differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// The series.
    pub series: String,
    /// The channel; none where a step is there in one of the two results only.
    pub channel: Option<String>,
    /// Time of the step, microseconds since 1970-01-01 UTC; in data without times, its number.
    pub time: i64,
    /// What it was, and is after the change.
    pub values: [f64; 2],
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { series, channel, time, values: [before, after] } = self;
        // Numbers of rows are small; moments are not.
        let at = if *time < 1_000_000_000 { format!("step {time}") } else { time::format(*time) };
        match channel {
            Some(channel) => write!(
                f,
                "series `{series}`, {at}, feature `{channel}`: {before:e} became {after:e}"
            ),
            None => {
                write!(f, "series `{series}`, {at}: the step is in one of the two results only")
            }
        }
    }
}

/// The first step up to `until` that differs, bit by bit, between two results.
pub fn first_difference(before: &SeriesSet, after: &SeriesSet, until: i64) -> Option<Place> {
    let names = |set: &SeriesSet| set.channels().to_vec();
    if names(before) != names(after) {
        let channel = before.channels().iter().find(|channel| !after.channels().contains(channel));
        return Some(Place {
            series: String::new(),
            channel: channel.map(|channel| channel.name.clone()),
            time: until,
            values: [0.0, f64::NAN],
        });
    }
    let missing = Series::default();
    before.series().iter().find_map(|series| {
        let other = after.series().iter().find(|other| other.name == series.name);
        difference(series, other.unwrap_or(&missing), before.channels(), until)
    })
}

fn difference(before: &Series, after: &Series, channels: &[Channel], until: i64) -> Option<Place> {
    let width = channels.len();
    let place =
        |channel, time, values| Some(Place { series: before.name.clone(), channel, time, values });
    let count = |series: &Series| series.time.partition_point(|time| *time <= until);
    for step in 0..count(before).max(count(after)) {
        let times = [before, after].map(|series| series.time.get(step).copied());
        if times[0] != times[1] {
            let time = times.into_iter().flatten().min().unwrap_or(until);
            return place(None, time, [f64::NAN; 2]);
        }
        for (channel, at) in channels.iter().zip(step * width..) {
            let values = [before.values.at(at), after.values.at(at)];
            if values[0].to_bits() != values[1].to_bits() {
                return place(Some(channel.name.clone()), before.time[step], values);
            }
        }
    }
    None
}
