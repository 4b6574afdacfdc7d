//! A column of times of a table, whatever its type, as microseconds since 1970-01-01 UTC.

use polars::prelude::{DataType, TimeUnit as Stored};
use rayon::prelude::*;

use crate::checks::duration;
use crate::frame::Reading;
use crate::time::{
    Clocks, Written, Zone, as_date, epoch, in_units, is_time_of_day, likely_unit, parse_epoch,
    parse_iso,
};
use crate::{DataError, TimeUnit};

/// The end of the year 2299: no data is from then.
const FARTHEST: u64 = 10_413_792_000_000_000;
/// What lies between two times that are no farther than this can be counted, too.
const COUNTABLE: u64 = i64::MAX as u64 / 2;
const NOT_COUNTABLE: &str =
    "is beyond the times that 64 bits of microseconds hold: check `data.columns.time_unit`";
/// Microseconds that times of 32 bits may lie apart.
const APART: f64 = 1000.0;
/// Whole numbers up to this one are exact in 32 bits.
const EXACT: f64 = 16_777_216.0;
const OF_DAY: &str = "where the date stands in a column of its own, join both in one, such as 2014-05-01T09:30, and name that in `data.columns.time`";

impl Reading<'_> {
    /// A column as times, and the zone of the clocks that showed them, by which they are still to be
    /// [settled](Zone::settle), series by series: until then, those that clocks show twice are the first of the two.
    pub(crate) fn times_of_clocks(&self, name: &str) -> Result<(Vec<i64>, Zone), DataError> {
        let (mut times, clocks) = self.as_written(name)?;
        if clocks.local {
            self.local(name, &mut times)?;
        }
        let zone = if clocks.local { *self.zone } else { Zone::Utc };
        let unit = self.config.columns.time_unit;
        let is_date = |time: &i64| as_date(in_units(*time, unit)).is_some();
        if unit != TimeUnit::Auto && times.len() > 2 && times.iter().all(is_date) {
            let number = in_units(times[0], unit);
            let problem = unless_date(number, String::new());
            return Err(self.bad_time(0, name, &format!("{number}"), problem));
        }
        // Numbers of another unit than the declared one end up far in the future.
        let most = if unit == TimeUnit::Auto { COUNTABLE } else { FARTHEST };
        let Some(row) = times.iter().position(|time| time.unsigned_abs() > most) else {
            return Ok((times, zone));
        };
        Err(match unit {
            TimeUnit::Auto => {
                self.bad_time(row, name, &times[row].to_string(), NOT_COUNTABLE.to_owned())
            }
            unit => self.too_far(row, name, times[row], unit),
        })
    }

    fn too_far(&self, row: usize, name: &str, time: i64, unit: TimeUnit) -> DataError {
        let number = in_units(time, unit);
        let year = 1970.0 + (time as f64 / (365.2425 * 86_400e6)).floor();
        let likely = likely_unit(number)
            .map_or(String::new(), |unit| format!("; `time_unit = \"{unit}\"` would be likely"));
        let problem =
            format!("would lie in the year {year:.0}: check `data.columns.time_unit`{likely}");
        self.bad_time(row, name, &format!("{number}"), unless_date(number, problem))
    }

    /// Times as they stand there, and by which clocks.
    pub(crate) fn as_written(&self, name: &str) -> Result<(Vec<i64>, Clocks), DataError> {
        let column = self.column(name)?;
        let unit = self.config.columns.time_unit;
        match column.dtype() {
            DataType::String => self.text_times(name, unit),
            DataType::Datetime(stored, zone) => {
                let unit = match stored {
                    Stored::Milliseconds => TimeUnit::Ms,
                    Stored::Microseconds => TimeUnit::Us,
                    Stored::Nanoseconds => TimeUnit::Ns,
                };
                // A stored zone says how to show the time; what is stored is in UTC.
                let clocks = if zone.is_none() { Clocks::LOCAL } else { Clocks::UTC };
                Ok((self.whole_times(name, unit)?, clocks))
            }
            DataType::Date => {
                let days = self.whole_times(name, TimeUnit::S)?;
                let time = |(row, day): (usize, i64)| {
                    day.checked_mul(86_400).ok_or_else(|| {
                        let day = format!("day {} after 1970-01-01", day / 1_000_000);
                        self.bad_time(row, name, &day, NOT_COUNTABLE.to_owned())
                    })
                };
                let times = days.into_iter().enumerate().map(time).collect::<Result<_, _>>()?;
                Ok((times, Clocks::LOCAL))
            }
            kind if kind.is_integer() && unit == TimeUnit::Auto => {
                let first = column.cast(&DataType::Int64).ok().and_then(|c| c.i64().ok()?.get(0));
                Err(self.undeclared(name, first.unwrap_or(0) as f64))
            }
            kind if kind.is_integer() => Ok((self.whole_times(name, unit)?, Clocks::UTC)),
            kind if kind.is_float() && unit != TimeUnit::Auto => {
                Ok((self.float_times(name, unit)?, Clocks::UTC))
            }
            kind if kind.is_float() => Err(self.undeclared(name, self.numbers(name)?[0])),
            DataType::Time => {
                Err(self.wrong_type(name, &DataType::Time, &format!("it says no date: {OF_DAY}")))
            }
            kind => Err(self.wrong_type(
                name,
                kind,
                "times are ISO 8601 text, dates, times, or epoch numbers with `data.columns.time_unit`",
            )),
        }
    }

    fn undeclared(&self, name: &str, value: f64) -> DataError {
        let unit = match likely_unit(value) {
            Some(unit) => format!("; `time_unit = \"{unit}\"` would be likely"),
            None => String::new(),
        };
        let hint = match as_date(value) {
            Some(date) => format!("{value} {}", like_a_date(&date)),
            None => format!("declare `data.columns.time_unit` for times that are numbers{unit}"),
        };
        let kind = self.column(name).map_or(&DataType::Null, |column| column.dtype());
        self.wrong_type(name, kind, &hint)
    }

    fn bad_time(&self, row: usize, name: &str, value: &str, problem: String) -> DataError {
        DataError::Value {
            path: self.input.path.clone(),
            row: row + 1,
            column: name.to_owned(),
            value: value.to_owned(),
            problem,
        }
    }

    fn whole_times(&self, name: &str, unit: TimeUnit) -> Result<Vec<i64>, DataError> {
        let physical = self.column(name)?.to_physical_repr();
        let column = physical.cast(&DataType::Int64).map_err(|error| self.polars(&error))?;
        let numbers = column.i64().map_err(|error| self.polars(&error))?;
        if unit == TimeUnit::Us && numbers.null_count() == 0 {
            let mut times = Vec::with_capacity(numbers.len());
            numbers.downcast_iter().for_each(|chunk| times.extend_from_slice(chunk.values()));
            return Ok(times);
        }
        let time = |(row, number): (usize, Option<i64>)| {
            let Some(number) = number else {
                return Err(self.bad_time(row, name, "", "has no time".to_owned()));
            };
            epoch(number, unit).ok_or_else(|| {
                let problem = unless_date(number as f64, NOT_COUNTABLE.to_owned());
                self.bad_time(row, name, &number.to_string(), problem)
            })
        };
        numbers.iter().enumerate().map(time).collect()
    }

    fn float_times(&self, name: &str, unit: TimeUnit) -> Result<Vec<i64>, DataError> {
        let factor = match unit {
            TimeUnit::S => 1e6,
            TimeUnit::Ms => 1e3,
            TimeUnit::Us | TimeUnit::Auto => 1.0,
            TimeUnit::Ns => 1e-3,
        };
        let time = |(row, number): (usize, f64)| {
            let time = (number * factor).round();
            match time.abs() < 9.2e18 {
                true => Ok(time as i64),
                false => {
                    let problem = unless_date(number, "is no time".to_owned());
                    Err(self.bad_time(row, name, &number.to_string(), problem))
                }
            }
        };
        let numbers = self.numbers(name)?;
        if *self.column(name)?.dtype() == DataType::Float32 {
            self.check_exact(name, &numbers, factor)?;
        }
        numbers.into_iter().enumerate().map(time).collect()
    }

    /// Refuses times of 32 bits among which are such as were rounded by more than a clock is off. Each is of so many
    /// microseconds.
    fn check_exact(&self, name: &str, numbers: &[f64], unit: f64) -> Result<(), DataError> {
        let apart = |number: f64| {
            let number = (number as f32).abs();
            f64::from(number.next_up() - number) * unit
        };
        let is_rounded =
            |number: f64| (number.abs() > EXACT || number.fract() != 0.0) && apart(number) > APART;
        match numbers.iter().copied().find(|number| is_rounded(*number)) {
            None => Ok(()),
            Some(number) => Err(self.wrong_type(
                name,
                &DataType::Float32,
                &format!(
                    "times of 32 bits lie {} apart at {number}, and were rounded to that: take them from where they were made, as float64, whole numbers or a type of times",
                    duration(apart(number) as i64)
                ),
            )),
        }
    }

    fn text_times(&self, name: &str, unit: TimeUnit) -> Result<(Vec<i64>, Clocks), DataError> {
        let column = self.column(name)?;
        let text = column.str().map_err(|error| self.polars(&error))?;
        let chunks: Vec<_> = text.downcast_iter().collect();
        let parse = |text: Option<&str>| {
            let text = text?.as_bytes();
            match unit {
                TimeUnit::Auto => parse_iso(text),
                unit => parse_epoch(text, unit).map(Written::Utc),
            }
        };
        let parts: Result<Vec<Vec<Written>>, usize> = chunks
            .par_iter()
            .map(|chunk| {
                let parsed = chunk.iter().enumerate().map(|(row, text)| parse(text).ok_or(row));
                parsed.collect::<Result<Vec<_>, usize>>()
            })
            .collect();
        let Ok(parts) = parts else {
            // The first one in the file: the parallel search returns any.
            let bad = text.iter().enumerate().find(|(_, text)| parse(*text).is_none());
            let (row, value) = bad.unwrap_or((0, None));
            return Err(self.no_time(row, name, value.unwrap_or_default(), unit));
        };
        let mut clocks = Clocks::default();
        for time in parts.iter().flatten() {
            match time {
                Written::Utc(_) => clocks.utc = true,
                Written::Offset(_) => clocks.offset = true,
                Written::Local(_) => clocks.local = true,
            }
        }
        let differ = clocks.differ(*self.zone);
        let mut times = Vec::with_capacity(text.len());
        for time in parts.into_iter().flatten() {
            match time {
                Written::Utc(_) | Written::Offset(_) if differ => {
                    let row = times.len();
                    let value = text.get(row).unwrap_or_default();
                    let problem = "has a zone, but other rows have none: write all of them alike";
                    return Err(self.bad_time(row, name, value, problem.to_owned()));
                }
                Written::Utc(time) | Written::Offset(time) | Written::Local(time) => {
                    times.push(time);
                }
            }
        }
        Ok((times, clocks))
    }

    fn no_time(&self, row: usize, name: &str, value: &str, unit: TimeUnit) -> DataError {
        if is_time_of_day(value) {
            let problem = format!("is a time of day and says no date: {OF_DAY}");
            return self.bad_time(row, name, value, problem);
        }
        let number = value.trim().parse::<f64>();
        if let Some(date) = number.as_ref().ok().and_then(|number| as_date(*number)) {
            return self.bad_time(row, name, value, like_a_date(&date));
        }
        if let (TimeUnit::Auto, Ok(number)) = (unit, number) {
            let likely = likely_unit(number)
                .map(|unit| format!("; `time_unit = \"{unit}\"` would be likely"))
                .unwrap_or_default();
            let problem =
                format!("is a number: declare its unit in `data.columns.time_unit`{likely}");
            return self.bad_time(row, name, value, problem);
        }
        let problem = match unit {
            TimeUnit::Auto => {
                "is no ISO 8601 time such as 2014-05-01T00:01:00 or 2014-05-01 00:01+02:00"
            }
            TimeUnit::S => "is no number of seconds since 1970",
            TimeUnit::Ms => "is no whole number of milliseconds since 1970",
            TimeUnit::Us => "is no whole number of microseconds since 1970",
            TimeUnit::Ns => "is no whole number of nanoseconds since 1970",
        };
        self.bad_time(row, name, value, problem.to_owned())
    }

    /// Local times of the declared zone → UTC.
    fn local(&self, name: &str, times: &mut [i64]) -> Result<(), DataError> {
        self.zone.to_utc(times).map_err(|(row, _)| {
            let value = crate::time::format(times[row]).trim_end_matches('Z').to_owned();
            let problem = "does not exist in that zone: clocks were put forward over it; check `data.columns.time_zone`, and leave it out for days, which have no hour";
            self.bad_time(row, name, &value, problem.to_owned())
        })
    }
}

/// What is said of a number that is this date, written without separators.
fn like_a_date(date: &str) -> String {
    format!("looks like a date without separators, and is no number since 1970: write it as {date}")
}

/// That, where a number is a date; else the problem.
fn unless_date(number: f64, problem: String) -> String {
    as_date(number).map_or(problem, |date| like_a_date(&date))
}
