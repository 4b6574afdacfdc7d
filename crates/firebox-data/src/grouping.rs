//! Which group each series belongs to, such as the subject of several recordings: by a column of tables, or by a pattern in
//! the names of series. Series of one group are kept in one part of a split, see [`Series::group`](firebox_core::Series).
//!
//! The column is read on its own, in parts, once the series are stored; what it says is stored with them.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use firebox_core::{Origin, Series, SeriesSet};
use regex::Regex;

use crate::fast::Stop;
use crate::frame::{self, Reading};
use crate::groups::Groups;
use crate::guarded::guarded;
use crate::input::Input;
use crate::mapping::Mapping;
use crate::raw::{Interner, NO_LABEL, as_number};
use crate::schema::Declared;
use crate::time::Zone;
use crate::{ChannelColumn, Columns, DataConfig, DataError, Format, csv, parts};

/// Rows of a Parquet or Arrow file that are decoded at once.
const AT_ONCE: usize = 1 << 18;

/// The group of each series of a set, by its name.
pub(crate) fn groups(
    config: &DataConfig,
    inputs: &[Input],
    set: &SeriesSet,
    stop: &AtomicBool,
) -> Result<HashMap<String, Arc<str>>, DataError> {
    let naming = match &config.group_pattern {
        Some(pattern) => Naming::Pattern(compiled(pattern)?),
        None => Naming::Column(Box::new(Column::read(config, inputs, stop)?)),
    };
    let mut known = HashMap::<String, Arc<str>>::new();
    let mut groups = HashMap::with_capacity(set.series().len());
    let mut without: Vec<&Series> = vec![];
    for series in set.series() {
        // A test series whose name a training series has, too.
        let bare = series.name.strip_prefix("test/").filter(|_| series.origin == Origin::Test);
        let names = [Some(series.name.as_str()), bare].into_iter().flatten();
        let Some(group) = names.rev().find_map(|name| naming.of(name, series.origin)) else {
            without.push(series);
            continue;
        };
        let group = known.entry(as_compared(&group)).or_insert_with(|| Arc::from(group.as_str()));
        groups.insert(series.name.clone(), Arc::clone(group));
    }
    match without.first() {
        Some(first) => Err(DataError::NoGroup {
            series: first.name.clone(),
            count: without.len(),
            all: set.series().len(),
            pattern: config.group_pattern.clone(),
        }),
        None => Ok(groups),
    }
}

/// A group as it is compared: `7` of one file and `7.0` of another are one, and would else be trained on and tested on.
fn as_compared(group: &str) -> String {
    as_number(group).unwrap_or_else(|| group.to_owned())
}

/// What names groups.
enum Naming {
    Pattern(Regex),
    Column(Box<Column>),
}

impl Naming {
    fn of(&self, name: &str, origin: Origin) -> Option<String> {
        match self {
            Self::Pattern(regex) => found(regex, name),
            Self::Column(column) => column.of(name, origin),
        }
    }
}

/// A pattern of names.
///
/// # Errors
///
/// When it is none.
pub(crate) fn compiled(pattern: &str) -> Result<Regex, DataError> {
    Regex::new(pattern).map_err(|error| {
        let said = error.to_string();
        let problem = said.lines().last().unwrap_or(&said).trim_start_matches("error: ").to_owned();
        DataError::GroupPattern { pattern: pattern.to_owned(), problem }
    })
}

/// What a pattern finds in a name: its first group in parentheses, or all of it.
fn found(regex: &Regex, name: &str) -> Option<String> {
    let found = regex.captures(name)?;
    let part = found.iter().skip(1).flatten().next().or_else(|| found.get(0))?.as_str();
    (!part.is_empty()).then(|| part.to_owned())
}

/// What a column says of the series that tables name.
#[derive(Default)]
struct Column {
    series: Interner,
    groups: Interner,
    /// The group of each, with the file and row that said so.
    of: HashMap<(Origin, u32), Said>,
}

struct Said {
    group: u32,
    path: PathBuf,
    row: usize,
}

impl Column {
    fn read(config: &DataConfig, inputs: &[Input], stop: &AtomicBool) -> Result<Self, DataError> {
        let mut column = Self::default();
        for input in inputs {
            guarded(input, || column.file(config, input, stop))??;
        }
        Ok(column)
    }

    /// Reads the groups of one file.
    fn file(
        &mut self,
        config: &DataConfig,
        input: &Input,
        stop: &AtomicBool,
    ) -> Result<(), DataError> {
        let path = &input.path;
        let mapping = match input.format {
            Format::Csv => Mapping::new(path, &csv::header(path, &config.csv)?, &config.columns)?,
            format => frame::mapped(input, config, &Declared::read(path, format)?)?,
        };
        // As labels are read, with one channel, because no file is read without.
        let channels = mapping.channels.iter().take(1);
        let channels = channels
            .map(|channel| ChannelColumn { name: channel.name.clone(), role: Some(channel.role) });
        let columns = Columns {
            time: mapping.time.clone(),
            series: mapping.series.clone(),
            label: mapping.group.clone(),
            group: None,
            channels: channels.collect(),
            ..config.columns.clone()
        };
        let config = &DataConfig { columns, ..config.clone() };
        let mut row = 0;
        let mut take = |column: &mut Self, table: frame::Table<'_>| {
            DataError::heed(stop)?;
            let rows = table.rows();
            column.part(&table.reading(&Zone::default()), row)?;
            row += rows;
            Ok::<(), DataError>(())
        };
        if input.format == Format::Csv {
            match parts::each(input, config, |table, _| Ok(take(self, table)?)) {
                Ok(()) => return Ok(()),
                Err(Stop::Failed(error)) => return Err(error),
                // What is odd about its lines, a reading of the whole knows.
                Err(_) => row = 0,
            }
        } else if let Some(groups) = Groups::open(input, config) {
            for part in groups.parts(AT_ONCE) {
                let table = groups.part(&part, true).ok_or_else(|| {
                    let problem = "a part of its rows cannot be decoded".to_owned();
                    DataError::malformed(path, input.format, problem)
                })?;
                take(self, table)?;
            }
            return Ok(());
        }
        let table = frame::load(input, config)?;
        self.part(&table.reading(&Zone::default()), row)
    }

    /// Reads the groups of consecutive rows of a file, of which `before` come before.
    fn part(&mut self, reading: &Reading<'_>, before: usize) -> Result<(), DataError> {
        let (Some(label), input) = (&reading.mapping.label, reading.input) else { return Ok(()) };
        let groups = reading.codes(label, &mut self.groups)?;
        let series = match &reading.mapping.series {
            Some(name) => reading.codes(name, &mut self.series)?,
            None => vec![self.series.code(&input.name()); groups.len()],
        };
        let mut last = None;
        for (row, pair) in series.into_iter().zip(groups).enumerate() {
            // Rows of one series mostly stand together; one without a name is told of as such.
            if last == Some(pair) || pair.0 == NO_LABEL {
                continue;
            }
            last = Some(pair);
            self.note(pair, (reading, label), [before, row])?;
        }
        Ok(())
    }

    /// Notes what a row says: the one at a place of its part, counted from 0, `before` which come so many of the file.
    fn note(
        &mut self,
        (series, group): (u32, u32),
        (reading, label): (&Reading<'_>, &str),
        [before, place]: [usize; 2],
    ) -> Result<(), DataError> {
        let (path, row) = (reading.input.path.clone(), before + place + 1);
        if group == NO_LABEL {
            let (value, what) = reading.no_name(label, place);
            let problem = format!(
                "names no group{what}: every row needs the group of its series, in `data.columns.group`; write it \
                 there, or leave such series out of the file"
            );
            let column = label.to_owned();
            return Err(DataError::Value { path, row, column, value, problem });
        }
        let said = Said { group, path: path.clone(), row };
        let first = self.of.entry((reading.input.origin, series)).or_insert(said);
        let name = |code: u32| self.groups.names[code as usize].clone();
        if first.group == group || as_compared(&name(first.group)) == as_compared(&name(group)) {
            return Ok(());
        }
        let problem = format!(
            "is not the group `{}` that the series `{}` has in row {} of {}: each series is of one group; correct one of \
             them, or name series in `data.columns.series` so that each is of one",
            name(first.group),
            self.series.names[series as usize],
            first.row,
            first.path.display()
        );
        let (column, value) = (label.to_owned(), name(group));
        Err(DataError::Value { path, row, column, value, problem })
    }

    fn of(&self, name: &str, origin: Origin) -> Option<String> {
        let said = self.of.get(&(origin, self.series.known(name)?))?;
        Some(self.groups.names[said.group as usize].clone())
    }
}
