//! What the channels are that go through the rules: labels of steps go as the last of them, whose numbers are codes. A
//! row that is moved or left out takes its label along, and nothing is ever wrong with one. Where rows are stored, and in
//! memory at the end, they are told apart again. Channels that are known to have no value do not go there.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use firebox_core::{Channel, Role};
use polars::prelude::{Column, DataFrame, DataType, Int64Chunked, IntoColumn, TimeUnit, TimeZone};

use crate::frame::{Reading, Table};
use crate::mapping::Mapping;
use crate::raw::{Interner, NO_LABEL, in_order};
use crate::time::{Clocks, Zone};

use super::parted::Short;

/// What goes through the rules of the tables of all files.
#[derive(Default)]
pub(super) struct Layout {
    /// The classes of all labels, which have codes in the order in which threads find them.
    classes: Mutex<Interner>,
    /// The channels that are left out.
    void: Vec<String>,
    /// By which clocks the times of a file are written, as far as its tables were seen.
    clocks: Mutex<Clocks>,
}

impl Layout {
    /// That of tables of which these channels are left out.
    pub(super) fn without(void: Vec<String>) -> Self {
        Self { void, ..Self::default() }
    }

    /// The channels that are left out as those without any value.
    pub(super) fn void(&self) -> &[String] {
        &self.void
    }

    /// Says that the tables that come are those of another file.
    pub(super) fn begin_file(&self) {
        *self.clocks.lock().unwrap_or_else(PoisonError::into_inner) = Clocks::default();
    }

    /// The same table with its times parsed if they are texts. None if they cannot be, or if others of the file are those
    /// of another zone, which is told of on the long way.
    fn timed<'a>(&self, table: Table<'a>, zone: &Zone) -> Option<Table<'a>> {
        let Some(time) = &table.mapping().time else { return Some(table) };
        if *table.frame().column(time).ok()?.dtype() != DataType::String {
            return Some(table);
        }
        let (frame, clocks) = with_times(&table.reading(zone))?;
        let mut of_file = self.clocks.lock().unwrap_or_else(PoisonError::into_inner);
        *of_file = of_file.and(clocks);
        let mapping = table.mapping().clone();
        (!of_file.differ(*zone)).then(|| table.with(frame, mapping))
    }

    /// The same table with its labels as the last channel, if it has any; none if they, or its times, cannot be read.
    pub(super) fn coded<'a>(&self, table: Table<'a>, zone: &Zone) -> Option<Table<'a>> {
        let table = self.timed(table, zone)?;
        let mapping = self.mapping(table.mapping());
        let Some(label) = table.mapping().label.clone() else {
            let frame = table.frame().clone();
            return Some(table.with(frame, mapping));
        };
        let mut own = Interner::default();
        let codes = table.reading(zone).classes(&label, &mut own).ok()?;
        let of_all: Vec<u32> = {
            let mut all = self.classes.lock().unwrap_or_else(PoisonError::into_inner);
            own.names.iter().map(|name| all.code(name)).collect()
        };
        let code = |code: &u32| f64::from(of_all.get(*code as usize).copied().unwrap_or(NO_LABEL));
        let codes: Vec<f64> = codes.iter().map(code).collect();
        let mut frame = table.frame().clone();
        frame.with_column(Column::new(label.as_str().into(), codes)).ok()?;
        Some(table.with(frame, mapping))
    }

    /// Which columns of a file are what without the channels that are left out.
    pub(super) fn kept(&self, of_file: &Mapping) -> Mapping {
        let mut mapping = of_file.clone();
        if !self.void.is_empty() {
            let void: HashSet<&str> = self.void.iter().map(String::as_str).collect();
            mapping.channels.retain(|channel| !void.contains(channel.name.as_str()));
        }
        mapping
    }

    /// The same with the labels as the last channel, as they go through the rules.
    pub(super) fn mapping(&self, of_file: &Mapping) -> Mapping {
        let mut mapping = self.kept(of_file);
        let label = mapping.label.take();
        mapping.channels.extend(label.map(|name| Channel::new(name, Role::Other)));
        mapping
    }

    /// The classes in order, and the place there of each code; none if two of them are the same number, of which the one
    /// that a file has first comes first.
    pub(super) fn in_order(&self) -> Option<(Vec<String>, Vec<u32>)> {
        let names = self.classes.lock().unwrap_or_else(PoisonError::into_inner).names.clone();
        let (order, clear) = in_order(&names);
        clear.then_some(())?;
        let mut places = vec![0; order.len()];
        order.iter().zip(0..).for_each(|(code, place)| places[*code] = place);
        Some((order.into_iter().map(|code| names[code].clone()).collect(), places))
    }
}

/// A table with its times parsed, as they are written, and by which clocks.
pub(super) fn with_times(reading: &Reading<'_>) -> Option<(DataFrame, Clocks)> {
    let mut frame = reading.frame.clone();
    let Some(name) = &reading.mapping.time else { return Some((frame, Clocks::UTC)) };
    let (times, clocks) = reading.as_written(name).ok()?;
    let zone = if clocks.local { None } else { Some(TimeZone::UTC) };
    let times = Int64Chunked::from_vec(name.as_str().into(), times);
    frame.with_column(times.into_datetime(TimeUnit::Microseconds, zone).into_column()).ok()?;
    Some((frame, clocks))
}

/// Rows of so many numbers without the last of each, which is a code, and the codes.
pub(super) fn apart(rows: &[f64], width: usize) -> (Vec<f64>, Vec<u32>) {
    let rows = rows.chunks_exact(width);
    let codes = rows.clone().map(|row| row[width - 1] as u32).collect();
    let mut values = Vec::with_capacity(rows.len() * (width - 1));
    rows.for_each(|row| values.extend_from_slice(&row[..width - 1]));
    (values, codes)
}

impl Short {
    /// Takes the labels from among the channels, of which there are so many without them.
    pub(super) fn part_labels(&mut self, channels: usize) {
        self.usable.truncate(channels);
        self.filled = std::mem::take(&mut self.filled).without(&[channels]);
        (self.values, self.labels) = apart(&self.values, channels + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::label_of;

    #[test]
    fn classes_are_in_the_order_of_the_long_way_or_in_none() {
        let of = |names: &[&str]| {
            let layout = Layout::default();
            for name in names {
                layout.classes.lock().unwrap().code(name);
            }
            layout.in_order()
        };
        let texts = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(of(&["10", "9", "-1"]), Some((texts(&["-1", "9", "10"]), vec![2, 1, 0])));
        assert_eq!(of(&["b", "10", "a"]), Some((texts(&["10", "a", "b"]), vec![2, 0, 1])));
        assert_eq!(of(&["1", "2", "1.0"]), None);
        assert_eq!(of(&[]), Some((vec![], vec![])));
    }

    #[test]
    fn labels_are_told_apart_from_the_channels() {
        let none = f64::from(NO_LABEL);
        let (values, codes) = apart(&[1.0, 2.0, 0.0, 3.0, 4.0, none], 3);
        assert_eq!((values, codes), (vec![1.0, 2.0, 3.0, 4.0], vec![0, NO_LABEL]));
        assert_eq!([0, NO_LABEL].map(label_of), [Some(0), None]);
    }
}
