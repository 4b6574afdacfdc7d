//! Tables read by polars → series.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use firebox_core::Channel;
use polars::prelude::*;
use rayon::prelude::*;

use crate::guarded::guarded;
use crate::input::{Input, inputs};
use crate::mapping::Mapping;
use crate::raw::{Interner, NO_LABEL, Piece, Raw, RawLabels, RawSeries, Rows};
use crate::schema::Declared;
use crate::time::Zone;
use crate::{DataConfig, DataError, Format, csv};

pub(crate) fn scan_path(path: &Path) -> Result<PlRefPath, DataError> {
    let other = |_| std::io::Error::other("polars reads only paths that are valid UTF-8");
    PlRefPath::try_from_path(path).map_err(other).map_err(DataError::io("open", path))
}

/// A CSV, Parquet or Arrow file in memory.
pub(crate) struct Table<'a> {
    input: &'a Input,
    config: &'a DataConfig,
    frame: DataFrame,
    mapping: Mapping,
}

/// The columns of a table, and what it declares them to be; nothing of other files, and where it cannot be read.
pub(crate) fn names_of(
    input: &Input,
    config: &DataConfig,
) -> Option<(Vec<String>, Option<Declared>)> {
    let read = || match input.format {
        Format::Csv => Some((csv::header(&input.path, &config.csv).ok()?, None)),
        Format::Parquet | Format::Arrow => {
            let declared = Declared::read(&input.path, input.format).ok()?;
            Some((declared.names.clone(), Some(declared)))
        }
        _ => None,
    };
    guarded(input, read).ok().flatten()
}

/// The files of `config` that have no column of this name; those whose columns have no names are none of them.
///
/// # Errors
///
/// When a file is missing, or is of the wrong kind.
pub fn files_without(config: &DataConfig, column: &str) -> Result<Vec<PathBuf>, DataError> {
    let lacks = |input: &Input| {
        names_of(input, config).is_some_and(|(names, _)| names.iter().all(|name| name != column))
    };
    Ok(inputs(config)?.into_iter().filter(lacks).map(|input| input.path).collect())
}

/// Reads the columns in use of one CSV, Parquet or Arrow file.
pub(crate) fn load<'a>(input: &'a Input, config: &'a DataConfig) -> Result<Table<'a>, DataError> {
    let Input { path, format, .. } = input;
    let (frame, mapping) = if *format == Format::Csv {
        let names = csv::header(path, &config.csv)?;
        let mapping = Mapping::new(path, &names, &config.columns)?;
        csv::check_index(path, &config.csv, &names, &mapping)?;
        (csv::read(path, &config.csv, &names, &mapping)?, mapping)
    } else {
        let declared = Declared::read(path, *format)?;
        let mapping = mapped(input, config, &declared)?;
        let frame = if declared.all_can_be_read() {
            let columns: Vec<Expr> = mapping.used().map(col).collect();
            scan(path, *format)?.and_then(|lazy| lazy.select(columns).collect())
        } else {
            used_alone(path, *format, &mapping)?
        };
        let malformed = |error: PolarsError| DataError::malformed(path, *format, error.to_string());
        let frame = frame.and_then(|frame| without_decimals(frame, &mapping));
        (frame.map_err(malformed)?, mapping)
    };
    if frame.height() == 0 {
        return Err(DataError::Empty { path: path.clone() });
    }
    Ok(Table { input, config, frame, mapping })
}

/// Which columns of a Parquet or Arrow file are what.
///
/// # Errors
///
/// When one is missing, or has a type that cannot be what it is to be.
pub(crate) fn mapped(
    input: &Input,
    config: &DataConfig,
    declared: &Declared,
) -> Result<Mapping, DataError> {
    let path = &input.path;
    let mapping = Mapping::new(path, &declared.names, &config.columns)?;
    // A column that is no channel as it is named as the numbers of rows may be the times.
    let index = mapping.index_columns(&declared.names);
    for name in mapping.channels.iter().map(|channel| &channel.name).chain(&index) {
        check_numeric(path, name, declared.kind(name), &mapping)?;
    }
    let others = [&mapping.time, &mapping.series, &mapping.label].into_iter().flatten();
    others.into_iter().try_for_each(|name| check_known(path, name, declared.kind(name)))?;
    Ok(mapping)
}

/// The same with channels of decimals as floats, as which both the short and the long way find them.
pub(crate) fn without_decimals(frame: DataFrame, mapping: &Mapping) -> PolarsResult<DataFrame> {
    let is_decimal = |column: &Column| {
        let is_channel = |channel: &Channel| channel.name.as_str() == column.name().as_str();
        column.dtype().is_decimal() && mapping.channels.iter().any(is_channel)
    };
    if !frame.columns().iter().any(is_decimal) {
        return Ok(frame);
    }
    let cast = |column: &Column| match is_decimal(column) {
        true => column.cast(&DataType::Float64),
        false => Ok(column.clone()),
    };
    let columns = frame.columns().iter().map(cast).collect::<PolarsResult<Vec<Column>>>()?;
    DataFrame::new(frame.height(), columns)
}

impl<'a> Table<'a> {
    pub(crate) fn of(
        input: &'a Input,
        config: &'a DataConfig,
        frame: DataFrame,
        mapping: Mapping,
    ) -> Self {
        Self { input, config, frame, mapping }
    }

    pub(crate) fn rows(&self) -> usize {
        self.frame.height()
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    pub(crate) fn frame(&self) -> &DataFrame {
        &self.frame
    }

    /// The same table of other columns.
    pub(crate) fn with(self, frame: DataFrame, mapping: Mapping) -> Self {
        Self { frame, mapping, ..self }
    }

    #[cfg(test)]
    pub(crate) fn into_frame(self) -> DataFrame {
        self.frame
    }

    /// With everything that its reading needs.
    pub(crate) fn reading<'b>(&'b self, zone: &'b Zone) -> Reading<'b> {
        let Self { input, config, frame, mapping } = self;
        Reading { input, config, zone, frame, mapping }
    }
}

pub(crate) fn scan(path: &Path, format: Format) -> Result<PolarsResult<LazyFrame>, DataError> {
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

/// The columns in use, of a file that has others which no scan would get past.
fn used_alone(
    path: &Path,
    format: Format,
    mapping: &Mapping,
) -> Result<PolarsResult<DataFrame>, DataError> {
    let file = std::fs::File::open(path).map_err(DataError::io("open", path))?;
    let columns = Some(mapping.used().map(str::to_owned).collect());
    Ok(match format {
        Format::Arrow => IpcReader::new(file).with_columns(columns).finish(),
        _ => ParquetReader::new(file).with_columns(columns).finish(),
    })
}

/// What the values of a channel may be.
const NUMBERS: &str = "a channel holds floats of 32 or 64 bits, integers of up to 64, decimals of up to 38 digits or booleans";

/// The type of a column, or the name of one that cannot be read.
type Kind<'a> = Option<Result<&'a DataType, &'a str>>;

fn check_numeric(
    path: &Path,
    name: &str,
    kind: Kind<'_>,
    mapping: &Mapping,
) -> Result<(), DataError> {
    let (found, is_text) = match kind {
        // A column of type null holds no value, as one of numbers may.
        Some(Ok(kind)) if kind.is_numeric() || kind.is_bool() || kind.is_null() => return Ok(()),
        Some(Ok(kind)) => {
            (kind.to_string(), kind.is_string() || kind.is_categorical() || kind.is_enum())
        }
        Some(Err(kind)) => (kind.to_owned(), false),
        None => return Ok(()),
    };
    // A text beside numbers mostly says which series a row is of, and a date the time, if no other column does.
    let is_time = mapping.time.is_none() && matches!(kind, Some(Ok(kind)) if kind.is_temporal());
    let way_out = match (is_text || is_time) && mapping.by_default {
        true => mapping.not_a_channel(is_time),
        false => {
            "cast it to float64, or name the columns to learn from, without it, in `data.columns.channels`"
        }
    };
    let (column, wanted) = (name.to_owned(), format!("{NUMBERS}: {way_out}"));
    Err(DataError::ColumnType { path: path.to_owned(), column, found, wanted })
}

fn check_known(path: &Path, column: &str, kind: Kind<'_>) -> Result<(), DataError> {
    match kind {
        Some(Err(found)) => Err(DataError::ColumnType {
            path: path.to_owned(),
            column: column.to_owned(),
            found: found.to_owned(),
            wanted: "times, names and labels are text, whole numbers, booleans or dates: convert it, or name another column".to_owned(),
        }),
        Some(Ok(_)) | None => Ok(()),
    }
}

/// One table with everything that its reading needs.
pub(crate) struct Reading<'a> {
    pub(crate) input: &'a Input,
    pub(crate) config: &'a DataConfig,
    pub(crate) zone: &'a Zone,
    pub(crate) frame: &'a DataFrame,
    pub(crate) mapping: &'a Mapping,
}

impl Reading<'_> {
    /// The series of the table, unchecked.
    pub(crate) fn series(&self) -> Result<Raw, DataError> {
        let Mapping { time, series, label, channels, .. } = self.mapping;
        let times = time.as_ref().map(|name| self.times_of_clocks(name)).transpose()?;
        let (times, zone) = times.map_or((None, Zone::Utc), |(times, zone)| (Some(times), zone));
        let columns =
            channels.par_iter().map(|c| self.numbers(&c.name)).collect::<Result<_, _>>()?;
        let mut classes = Interner::default();
        let labels = match label {
            Some(name) => RawLabels::PerStep(self.classes(name, &mut classes)?),
            None => RawLabels::None,
        };
        let whole = RawSeries {
            name: self.input.name(),
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
            label_like: self.mapping.label_like.clone(),
            element: None,
            zone,
        })
    }

    pub(crate) fn column(&self, name: &str) -> Result<&Column, DataError> {
        self.frame.column(name).map_err(|error| self.polars(&error))
    }

    pub(crate) fn polars(&self, error: &PolarsError) -> DataError {
        DataError::malformed(&self.input.path, self.input.format, error.to_string())
    }

    pub(crate) fn wrong_type(&self, name: &str, kind: &DataType, wanted: &str) -> DataError {
        DataError::ColumnType {
            path: self.input.path.clone(),
            column: name.to_owned(),
            found: kind.to_string(),
            wanted: wanted.to_owned(),
        }
    }

    /// A column as numbers, with NaN for missing values.
    pub(crate) fn numbers(&self, name: &str) -> Result<Vec<f64>, DataError> {
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

    /// A column of names as codes; a missing name is [`NO_LABEL`]. White space around a name is no part of it. A number that
    /// is NaN is missing, and so is the text that pandas makes of one; a series may be called `NaN`.
    pub(crate) fn codes(&self, name: &str, interner: &mut Interner) -> Result<Vec<u32>, DataError> {
        let is_float = self.column(name)?.dtype().is_float();
        self.codes_but(name, interner, |text| text == "nan" || (is_float && text == "NaN"))
    }

    /// A column of classes as codes: of an empty field, and of NaN, which programs write for it, there is no class.
    pub(crate) fn classes(
        &self,
        name: &str,
        interner: &mut Interner,
    ) -> Result<Vec<u32>, DataError> {
        self.codes_but(name, interner, |text| text.eq_ignore_ascii_case("nan"))
    }

    /// The same where some texts mean that there is none.
    fn codes_but(
        &self,
        name: &str,
        interner: &mut Interner,
        is_none: impl Fn(&str) -> bool,
    ) -> Result<Vec<u32>, DataError> {
        let column = self.column(name)?;
        let text = column.cast(&DataType::String).map_err(|_| {
            self.wrong_type(name, column.dtype(), "names are text, whole numbers or booleans")
        })?;
        let text = text.str().map_err(|error| self.polars(&error))?;
        let code = |text: Option<&str>| match text.map(str::trim) {
            None | Some("") => NO_LABEL,
            Some(text) if is_none(text) => NO_LABEL,
            Some(text) => interner.code(text),
        };
        Ok(text.iter().map(code).collect())
    }

    /// What stands in a row of a column of names that names nothing, and why it does not, where anything stands there.
    pub(crate) fn no_name(&self, name: &str, row: usize) -> (String, &'static str) {
        let text = self
            .column(name)
            .and_then(|column| column.cast(&DataType::String).map_err(|error| self.polars(&error)));
        let value = text.ok().and_then(|text| Some(text.str().ok()?.get(row)?.to_owned()));
        let value = value.unwrap_or_default();
        let what = match value.trim() {
            _ if value.is_empty() => "",
            "" => ", as white space is no name",
            _ => ", as programs write it for one that is missing",
        };
        (value, what)
    }

    /// What is wrong with a row whose name is missing, or white space alone.
    fn without_name(&self, name: &str, row: usize) -> DataError {
        let (value, what) = self.no_name(name, row);
        DataError::Value {
            path: self.input.path.clone(),
            row: row + 1,
            column: name.to_owned(),
            value,
            problem: format!(
                "names no series{what}: every row needs a name; write it there, or leave such rows out of the file"
            ),
        }
    }

    /// The rows of each series, in the order in which the series come first.
    fn by_series(&self, name: &str, whole: RawSeries) -> Result<Vec<RawSeries>, DataError> {
        let mut names = Interner::default();
        let codes = self.codes(name, &mut names)?;
        if let Some(row) = codes.iter().position(|code| *code == NO_LABEL) {
            return Err(self.without_name(name, row));
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
                        false => Rows::Each(rows.iter().map(|row| *row as usize + 1).collect()),
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
}
