//! Tables read by polars: which column is what, and from columns to series.

use std::path::Path;
use std::sync::Arc;

use firebox_core::{Channel, Role};
use polars::prelude::*;
use rayon::prelude::*;

use crate::config::role_of;
use crate::error::nearest;
use crate::input::Input;
use crate::raw::{Interner, NO_LABEL, Piece, Raw, RawLabels, RawSeries, Rows};
use crate::time::{Written, Zone, epoch, likely_unit, parse_epoch, parse_iso};
use crate::{Columns, DataConfig, DataError, Format, TimeUnit, csv};

const TIMES: [&str; 5] = ["time", "timestamp", "datetime", "date", "ts"];
const SERIES: [&str; 4] = ["series", "symbol", "ticker", "instrument"];

/// Which column of a file is what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) time: Option<String>,
    pub(crate) series: Option<String>,
    pub(crate) label: Option<String>,
    pub(crate) channels: Vec<Channel>,
    /// Whether the channels are what was left, and not declared or prices.
    pub(crate) by_default: bool,
}

impl Mapping {
    /// The columns to read.
    pub(crate) fn used(&self) -> impl Iterator<Item = &str> {
        let others = [&self.time, &self.series, &self.label].into_iter().flatten();
        others.chain(self.channels.iter().map(|channel| &channel.name)).map(String::as_str)
    }

    /// Finds the declared columns, and the others by their names.
    fn new(path: &Path, names: &[String], columns: &Columns) -> Result<Self, DataError> {
        let find = |name: &String, key| {
            if names.contains(name) {
                return Ok(name.clone());
            }
            Err(DataError::NoColumn {
                path: path.to_owned(),
                column: name.clone(),
                key,
                nearest: nearest(name, names.iter().map(String::as_str)),
                available: names.to_vec(),
            })
        };
        let declared =
            |name: &Option<String>, key| name.as_ref().map(|name| find(name, key)).transpose();
        let channel_names: Vec<&str> = columns.channels.iter().map(|c| c.name.as_str()).collect();
        let known = |words: &[&str]| {
            let is = |name: &&String| {
                words.iter().any(|word| name.eq_ignore_ascii_case(word))
                    && !channel_names.contains(&name.as_str())
                    && columns.label.as_ref() != Some(name)
            };
            names.iter().find(is).cloned()
        };
        let time = declared(&columns.time, "time")?.or_else(|| known(&TIMES));
        let series = declared(&columns.series, "series")?.or_else(|| known(&SERIES));
        let label = declared(&columns.label, "label")?;
        let mut mapping = Self { time, series, label, channels: vec![], by_default: false };
        mapping.channels = if columns.channels.is_empty() {
            mapping.default_channels(names)
        } else {
            let channel = |column: &crate::ChannelColumn| {
                Ok(Channel::new(find(&column.name, "channels")?, column.role()))
            };
            columns.channels.iter().map(channel).collect::<Result<_, DataError>>()?
        };
        mapping.by_default =
            columns.channels.is_empty() && !mapping.channels.iter().all(|c| c.role.is_price());
        if mapping.channels.is_empty() {
            return Err(DataError::NoChannel { path: path.to_owned(), available: names.to_vec() });
        }
        mapping.check_uses()?;
        Ok(mapping)
    }

    /// The four prices of a bar if all are there, else every column that has no other use.
    fn default_channels(&self, names: &[String]) -> Vec<Channel> {
        let free = |name: &&String| {
            ![&self.time, &self.series, &self.label].into_iter().flatten().any(|used| used == *name)
        };
        let all: Vec<Channel> =
            names.iter().filter(free).map(|name| Channel::new(name, role_of(name))).collect();
        let of = |role| all.iter().find(|channel| channel.role == role).cloned();
        let prices: Option<Vec<Channel>> =
            [Role::Open, Role::High, Role::Low, Role::Close].into_iter().map(of).collect();
        prices.unwrap_or(all)
    }

    fn check_uses(&self) -> Result<(), DataError> {
        let uses = [(&self.time, "time"), (&self.series, "series"), (&self.label, "label")];
        let others = uses.into_iter().filter_map(|(name, of)| name.as_deref().map(|n| (n, of)));
        let channels = self.channels.iter().map(|channel| (channel.name.as_str(), "channel"));
        let mut seen = std::collections::HashMap::new();
        for (column, of) in others.chain(channels) {
            if let Some(first) = seen.insert(column, of) {
                let column = column.to_owned();
                return Err(DataError::DuplicateUse { column, first, second: of });
            }
        }
        check_roles(&self.channels)
    }
}

/// Refuses two channels of one price role.
pub(crate) fn check_roles(channels: &[Channel]) -> Result<(), DataError> {
    for (index, first) in channels.iter().enumerate().filter(|(_, c)| c.role.is_price()) {
        if let Some(second) = channels[index + 1..].iter().find(|c| c.role == first.role) {
            return Err(DataError::DuplicateRole {
                first: first.name.clone(),
                second: second.name.clone(),
                role: format!("{:?}", first.role).to_lowercase(),
            });
        }
    }
    Ok(())
}

pub(crate) fn scan_path(path: &Path) -> Result<PlRefPath, DataError> {
    let other = |_| std::io::Error::other("polars reads only paths that are valid UTF-8");
    PlRefPath::try_from_path(path).map_err(other).map_err(DataError::io("open", path))
}

/// Reads one CSV, Parquet or Arrow file.
pub(crate) fn read(input: &Input, config: &DataConfig, zone: &Zone) -> Result<Raw, DataError> {
    let Input { path, format, .. } = input;
    let (frame, mapping) = if *format == Format::Csv {
        let mapping = Mapping::new(path, &csv::header(path, &config.csv)?, &config.columns)?;
        (csv::read(path, &config.csv, &mapping)?, mapping)
    } else {
        let malformed = |error: PolarsError| DataError::malformed(path, *format, error.to_string());
        let mut lazy = scan(path, *format)?.map_err(malformed)?;
        let schema = lazy.collect_schema().map_err(malformed)?;
        let names: Vec<String> = schema.iter_names().map(ToString::to_string).collect();
        let mapping = Mapping::new(path, &names, &config.columns)?;
        for channel in &mapping.channels {
            check_numeric(path, channel, schema.get(&channel.name), &mapping)?;
        }
        let columns: Vec<Expr> = mapping.used().map(col).collect();
        (lazy.select(columns).collect().map_err(malformed)?, mapping)
    };
    if frame.height() == 0 {
        return Err(DataError::Empty { path: path.clone() });
    }
    Reading { input, config, zone, frame: &frame, mapping: &mapping }.series()
}

fn scan(path: &Path, format: Format) -> Result<PolarsResult<LazyFrame>, DataError> {
    let path = scan_path(path)?;
    Ok(match format {
        Format::Arrow => LazyFrame::scan_ipc(
            path,
            IpcScanOptions::default(),
            UnifiedScanArgs { glob: false, ..UnifiedScanArgs::default() },
        ),
        _ => LazyFrame::scan_parquet(
            path,
            ScanArgsParquet { glob: false, ..ScanArgsParquet::default() },
        ),
    })
}

fn check_numeric(
    path: &Path,
    channel: &Channel,
    kind: Option<&DataType>,
    mapping: &Mapping,
) -> Result<(), DataError> {
    let Some(kind) = kind.filter(|kind| !(kind.is_primitive_numeric() || kind.is_bool())) else {
        return Ok(());
    };
    let wanted = if mapping.by_default {
        "name the columns to learn from in `data.columns.channels`"
    } else {
        "a channel holds numbers"
    };
    Err(DataError::ColumnType {
        path: path.to_owned(),
        column: channel.name.clone(),
        found: kind.to_string(),
        wanted: wanted.to_owned(),
    })
}

struct Reading<'a> {
    input: &'a Input,
    config: &'a DataConfig,
    zone: &'a Zone,
    frame: &'a DataFrame,
    mapping: &'a Mapping,
}

impl Reading<'_> {
    fn series(&self) -> Result<Raw, DataError> {
        let Mapping { time, series, label, channels, .. } = self.mapping;
        let times = time.as_ref().map(|name| self.times(name)).transpose()?;
        let columns = channels.iter().map(|c| self.numbers(&c.name)).collect::<Result<_, _>>()?;
        let mut classes = Interner::default();
        let labels = match label {
            Some(name) => RawLabels::PerStep(self.codes(name, &mut classes)?),
            None => RawLabels::None,
        };
        let whole = RawSeries {
            name: self.input.stem(),
            origin: self.input.origin,
            time: times,
            columns,
            labels,
            pieces: vec![Piece {
                path: Arc::from(self.input.path.as_path()),
                steps: self.frame.height(),
                rows: Rows::From(1),
            }],
        };
        let series_of_file = match series {
            Some(name) => self.by_series(name, whole)?,
            None => vec![whole],
        };
        Ok(Raw {
            channels: channels.clone(),
            classes: classes.names,
            series: series_of_file,
            time: time.clone(),
            by: series.clone(),
            label: label.clone(),
        })
    }

    fn column(&self, name: &str) -> Result<&Column, DataError> {
        self.frame.column(name).map_err(|error| self.polars(&error))
    }

    fn polars(&self, error: &PolarsError) -> DataError {
        DataError::malformed(&self.input.path, self.input.format, error.to_string())
    }

    fn wrong_type(&self, name: &str, kind: &DataType, wanted: &str) -> DataError {
        DataError::ColumnType {
            path: self.input.path.clone(),
            column: name.to_owned(),
            found: kind.to_string(),
            wanted: wanted.to_owned(),
        }
    }

    /// A column as numbers, with NaN for missing values.
    fn numbers(&self, name: &str) -> Result<Vec<f64>, DataError> {
        let column = self.column(name)?.cast(&DataType::Float64).map_err(|e| self.polars(&e))?;
        let numbers = column.f64().map_err(|error| self.polars(&error))?;
        let mut values = Vec::with_capacity(numbers.len());
        for chunk in numbers.downcast_iter() {
            let start = values.len();
            values.extend_from_slice(chunk.values());
            if let Some(validity) = chunk.validity().filter(|bits| bits.unset_bits() > 0) {
                for (value, valid) in values[start..].iter_mut().zip(validity.iter()) {
                    if !valid {
                        *value = f64::NAN;
                    }
                }
            }
        }
        Ok(values)
    }

    /// A column of names as codes; a missing name is [`NO_LABEL`].
    fn codes(&self, name: &str, interner: &mut Interner) -> Result<Vec<u32>, DataError> {
        let column = self.column(name)?;
        let text = column.cast(&DataType::String).map_err(|_| {
            self.wrong_type(name, column.dtype(), "names are text, whole numbers or booleans")
        })?;
        let text = text.str().map_err(|error| self.polars(&error))?;
        let code = |text: Option<&str>| match text.map(str::trim) {
            None | Some("") => NO_LABEL,
            Some(text) => interner.code(text),
        };
        Ok(text.iter().map(code).collect())
    }

    /// The rows of each series, in the order in which the series come first.
    fn by_series(&self, name: &str, whole: RawSeries) -> Result<Vec<RawSeries>, DataError> {
        let mut names = Interner::default();
        let codes = self.codes(name, &mut names)?;
        if let Some(row) = codes.iter().position(|code| *code == NO_LABEL) {
            return Err(DataError::Value {
                path: self.input.path.clone(),
                row: row + 1,
                column: name.to_owned(),
                value: String::new(),
                problem: "names no series: every row needs a name".to_owned(),
            });
        }
        let mut rows = vec![Vec::<u32>::new(); names.names.len()];
        for (row, code) in (0..).zip(&codes) {
            rows[*code as usize].push(row);
        }
        let path = Arc::from(self.input.path.as_path());
        let part = |(name, rows): (String, Vec<u32>)| {
            let contiguous = rows.len() == (rows[rows.len() - 1] - rows[0]) as usize + 1;
            let range = rows[0] as usize..rows[0] as usize + rows.len();
            let of = |values: &Vec<f64>| match contiguous {
                true => values[range.clone()].to_vec(),
                false => rows.iter().map(|row| values[*row as usize]).collect(),
            };
            RawSeries {
                name,
                origin: whole.origin,
                time: whole
                    .time
                    .as_ref()
                    .map(|time| rows.iter().map(|row| time[*row as usize]).collect()),
                columns: whole.columns.iter().map(of).collect(),
                labels: match &whole.labels {
                    RawLabels::PerStep(labels) => {
                        RawLabels::PerStep(rows.iter().map(|row| labels[*row as usize]).collect())
                    }
                    other => other.clone(),
                },
                pieces: vec![Piece {
                    path: Arc::clone(&path),
                    steps: rows.len(),
                    rows: match contiguous {
                        true => Rows::From(range.start + 1),
                        false => Rows::Each(rows.iter().map(|row| row + 1).collect()),
                    },
                }],
            }
        };
        Ok(names
            .names
            .into_iter()
            .zip(rows)
            .collect::<Vec<_>>()
            .into_par_iter()
            .map(part)
            .collect())
    }

    /// A column as times.
    fn times(&self, name: &str) -> Result<Vec<i64>, DataError> {
        let column = self.column(name)?;
        let unit = self.config.columns.time_unit;
        match column.dtype() {
            DataType::String => self.text_times(name, unit),
            DataType::Datetime(stored, zone) => {
                let unit = match stored {
                    polars::prelude::TimeUnit::Milliseconds => TimeUnit::Ms,
                    polars::prelude::TimeUnit::Microseconds => TimeUnit::Us,
                    polars::prelude::TimeUnit::Nanoseconds => TimeUnit::Ns,
                };
                let mut times = self.whole_times(name, unit)?;
                // A stored zone says how to show the time; what is stored is in UTC.
                if zone.is_none() {
                    self.local(name, &mut times)?;
                }
                Ok(times)
            }
            DataType::Date => {
                let mut times = self.whole_times(name, TimeUnit::S)?;
                times.iter_mut().for_each(|time| *time *= 86_400);
                self.local(name, &mut times)?;
                Ok(times)
            }
            kind if kind.is_integer() && unit == TimeUnit::Auto => {
                let first = column.cast(&DataType::Int64).ok().and_then(|c| c.i64().ok()?.get(0));
                Err(self.undeclared(name, first.unwrap_or(0) as f64))
            }
            kind if kind.is_integer() => self.whole_times(name, unit),
            kind if kind.is_float() && unit != TimeUnit::Auto => self.float_times(name, unit),
            kind if kind.is_float() => Err(self.undeclared(name, self.numbers(name)?[0])),
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
        self.wrong_type(
            name,
            self.column(name).map_or(&DataType::Null, |column| column.dtype()),
            &format!("declare `data.columns.time_unit` for times that are numbers{unit}"),
        )
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
        let time = |(row, number): (usize, Option<i64>)| {
            let Some(number) = number else {
                return Err(self.bad_time(row, name, "", "has no time".to_owned()));
            };
            epoch(number, unit).ok_or_else(|| {
                let problem = "is beyond the times that 64 bits of microseconds hold: check `data.columns.time_unit`";
                self.bad_time(row, name, &number.to_string(), problem.to_owned())
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
                    Err(self.bad_time(row, name, &number.to_string(), "is no time".to_owned()))
                }
            }
        };
        self.numbers(name)?.into_iter().enumerate().map(time).collect()
    }

    fn text_times(&self, name: &str, unit: TimeUnit) -> Result<Vec<i64>, DataError> {
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
        let local = parts.iter().flatten().any(|time| matches!(time, Written::Local(_)));
        let mut times = Vec::with_capacity(text.len());
        for time in parts.into_iter().flatten() {
            match time {
                Written::Utc(_) if local && !matches!(self.zone, Zone::Utc) => {
                    let row = times.len();
                    let value = text.get(row).unwrap_or_default();
                    let problem = "has a zone, but other rows have none: write all of them alike";
                    return Err(self.bad_time(row, name, value, problem.to_owned()));
                }
                Written::Utc(time) | Written::Local(time) => times.push(time),
            }
        }
        if local {
            self.local(name, &mut times)?;
        }
        Ok(times)
    }

    fn no_time(&self, row: usize, name: &str, value: &str, unit: TimeUnit) -> DataError {
        if let (TimeUnit::Auto, Ok(number)) = (unit, value.trim().parse::<f64>()) {
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
            let problem = "does not exist in that zone: clocks were put forward over it; check `data.columns.time_zone`";
            self.bad_time(row, name, &value, problem.to_owned())
        })
    }
}
