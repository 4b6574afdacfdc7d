//! Series as files give them: column by column, unchecked.
//!
//! The readers of all formats end here, and the checks begin here.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use firebox_core::{Channel, Origin};

use crate::DataError;
use crate::npy::Element;

/// The code of a step without a label.
pub(crate) const NO_LABEL: u32 = u32::MAX;

/// Everything that was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Raw {
    pub(crate) channels: Vec<Channel>,
    pub(crate) classes: Vec<String>,
    pub(crate) series: Vec<RawSeries>,
    /// The column that times come from.
    pub(crate) time: Option<String>,
    /// The column that names the series.
    pub(crate) by: Option<String>,
    /// The column of labels.
    pub(crate) label: Option<String>,
    /// Without one, a column whose name is usual for labels.
    pub(crate) label_like: Option<String>,
    /// Type of the values of arrays, which have one.
    pub(crate) element: Option<Element>,
}

/// One series.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RawSeries {
    pub(crate) name: String,
    pub(crate) origin: Origin,
    /// Microseconds since 1970-01-01 UTC; `None` for data without times.
    pub(crate) time: Option<Vec<i64>>,
    /// One vector a channel; missing values are NaN.
    pub(crate) columns: Vec<Vec<f64>>,
    pub(crate) labels: RawLabels,
    /// Where its rows lie.
    pub(crate) pieces: Vec<Piece>,
}

/// Labels as indices into the classes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum RawLabels {
    #[default]
    None,
    /// One for each step, or [`NO_LABEL`].
    PerStep(Vec<u32>),
    Whole(u32),
}

/// Consecutive steps of a series that come from one file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Piece {
    pub(crate) path: Arc<Path>,
    pub(crate) steps: usize,
    pub(crate) rows: Rows,
}

/// Rows of a file, counted from 1 after the header.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Rows {
    From(usize),
    Each(Vec<u32>),
    /// All from the first on but those that are gone, counted from there.
    Without {
        first: usize,
        gone: RowSet,
    },
}

/// Rows, counted from 0: a bit for each up to the last of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RowSet(Vec<u64>);

impl RowSet {
    pub(crate) fn insert(&mut self, row: usize) {
        let word = row / 64;
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (row % 64);
    }

    /// How many are in the set.
    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The row before which so many are not in the set, and which is not in it either.
    fn outside(&self, mut before: usize) -> usize {
        for (index, word) in self.0.iter().enumerate() {
            let here = word.count_zeros() as usize;
            if before < here {
                let mut free = !word;
                (0..before).for_each(|_| free &= free - 1);
                return index * 64 + free.trailing_zeros() as usize;
            }
            before -= here;
        }
        self.0.len() * 64 + before
    }
}

impl RawSeries {
    pub(crate) fn len(&self) -> usize {
        self.columns.first().map_or(0, Vec::len)
    }

    /// Time of a row, or its number in data without times.
    pub(crate) fn moment(&self, row: usize) -> i64 {
        self.time.as_ref().map_or(row as i64, |time| time[row])
    }

    /// Where these rows lie.
    pub(crate) fn pieces_of(&self, rows: &[u32]) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = vec![];
        for row in rows {
            let (path, place) = self.place(*row as usize);
            let place = place as u32;
            match pieces.last_mut() {
                Some(Piece { path: last, steps, rows: Rows::Each(rows) }) if *last == path => {
                    rows.push(place);
                    *steps += 1;
                }
                _ => pieces.push(Piece { path, steps: 1, rows: Rows::Each(vec![place]) }),
            }
        }
        pieces
    }

    /// File and row of a step.
    pub(crate) fn place(&self, mut step: usize) -> (Arc<Path>, usize) {
        for piece in &self.pieces {
            if step < piece.steps {
                let row = match &piece.rows {
                    Rows::From(first) => first + step,
                    Rows::Each(rows) => rows[step] as usize,
                    Rows::Without { first, gone } => first + gone.outside(step),
                };
                return (Arc::clone(&piece.path), row);
            }
            step -= piece.steps;
        }
        (Path::new("").into(), 0)
    }

    pub(crate) fn append(&mut self, other: Self) {
        if let (Some(time), Some(more)) = (&mut self.time, other.time) {
            time.extend(more);
        }
        for (column, more) in self.columns.iter_mut().zip(other.columns) {
            column.extend(more);
        }
        if let (RawLabels::PerStep(labels), RawLabels::PerStep(more)) =
            (&mut self.labels, other.labels)
        {
            labels.extend(more);
        }
        self.pieces.extend(other.pieces);
    }
}

/// What files give, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    raw: Raw,
    /// Where the series of a name and an origin is.
    known: HashMap<(String, Origin), usize>,
}

impl Gathered {
    /// Adds what another file gives. Series named by a column go on where an earlier file left
    /// them.
    pub(crate) fn add(&mut self, mut other: Raw) -> Result<(), DataError> {
        if self.raw.series.is_empty() {
            let series = std::mem::take(&mut other.series);
            self.raw = other;
            series.into_iter().for_each(|series| self.push(series));
            return Ok(());
        }
        if self.raw.channels != other.channels {
            let names = |raw: &Raw| {
                let names: Vec<_> = raw.channels.iter().map(|c| c.name.as_str()).collect();
                let count = firebox_core::count(names.len() as u64, "channel");
                format!("{count} ({})", names.join(", "))
            };
            return Err(DataError::Channels {
                path: other.first_file(),
                found: names(&other),
                first: self.raw.first_file(),
                expected: names(&self.raw),
            });
        }
        if let (Some(first), Some(found)) = (self.raw.element, other.element)
            && !first.goes_with(found)
        {
            let labels = |raw: &Raw| raw.series.iter().any(|s| s.labels != RawLabels::None);
            return Err(DataError::MixedTypes {
                path: other.first_file(),
                found: found.name(),
                first: self.raw.first_file(),
                expected: first.name(),
                // Whole numbers are left out of what is converted, all of them.
                unconvertible: labels(&other) || !(first.is_float() || found.is_float()),
            });
        }
        let map = merge_classes(&mut self.raw.classes, &other.classes);
        // Of one file, series of one name stay apart.
        let before = self.raw.series.len();
        for mut series in other.series {
            relabel(&mut series.labels, &map);
            match self.known.get(&(series.name.clone(), series.origin)) {
                Some(index) if *index < before && self.raw.by.is_some() => {
                    self.raw.series[*index].append(series);
                }
                Some(index) if *index < before => {
                    series.name = self.free_name(&series.name);
                    self.push(series);
                }
                _ => self.push(series),
            }
        }
        Ok(())
    }

    /// Everything that was added.
    pub(crate) fn finish(self) -> Raw {
        self.raw
    }

    fn push(&mut self, series: RawSeries) {
        self.known.insert((series.name.clone(), series.origin), self.raw.series.len());
        self.raw.series.push(series);
    }

    /// A name that no series has: two folders may hold files of one name.
    fn free_name(&self, name: &str) -> String {
        let taken = |name: &String| {
            let of = |origin| self.known.contains_key(&(name.clone(), origin));
            [Origin::Unassigned, Origin::Train, Origin::Test].into_iter().any(of)
        };
        let mut names = (2..).map(|number| format!("{name} ({number})"));
        names.find(|name| !taken(name)).unwrap_or_default()
    }
}

impl Raw {
    /// The file of the first series.
    fn first_file(&self) -> PathBuf {
        self.series.first().map(|series| series.place(0).0.to_path_buf()).unwrap_or_default()
    }

    /// Gives test series whose name a training series has another one.
    pub(crate) fn separate_names(&mut self) {
        let train: std::collections::HashSet<_> = self
            .series
            .iter()
            .filter(|series| series.origin != Origin::Test)
            .map(|series| series.name.clone())
            .collect();
        for series in self.series.iter_mut().filter(|series| series.origin == Origin::Test) {
            if train.contains(&series.name) {
                series.name = format!("test/{}", series.name);
            }
        }
    }

    /// Puts the classes in order: numbers by value, other names by alphabet.
    pub(crate) fn sort_classes(&mut self) {
        let (order, _) = in_order(&self.classes);
        let mut map = vec![0; order.len()];
        order.iter().zip(0..).for_each(|(old, new)| map[*old] = new);
        self.classes = order.into_iter().map(|old| self.classes[old].clone()).collect();
        self.series.iter_mut().for_each(|series| relabel(&mut series.labels, &map));
    }
}

/// The places of classes in order: of numbers by value, of other names by alphabet; and whether no two are equal numbers,
/// which keep the order that they have.
pub(crate) fn in_order(classes: &[String]) -> (Vec<usize>, bool) {
    let numbers: Option<Vec<f64>> = classes.iter().map(|class| class.parse().ok()).collect();
    let mut order: Vec<usize> = (0..classes.len()).collect();
    let Some(numbers) = numbers else {
        order.sort_by(|a, b| classes[*a].cmp(&classes[*b]));
        return (order, true);
    };
    order.sort_by(|a, b| numbers[*a].total_cmp(&numbers[*b]));
    let differ = |pair: &[usize]| numbers[pair[0]].total_cmp(&numbers[pair[1]]).is_ne();
    let clear = order.windows(2).all(differ);
    (order, clear)
}

fn merge_classes(classes: &mut Vec<String>, more: &[String]) -> Vec<u32> {
    let mut interner = Interner::from(std::mem::take(classes));
    let map = more.iter().map(|class| interner.code(class)).collect();
    *classes = interner.names;
    map
}

fn relabel(labels: &mut RawLabels, map: &[u32]) {
    let new = |code: &mut u32| {
        if let Some(new) = map.get(*code as usize) {
            *code = *new;
        }
    };
    match labels {
        RawLabels::None => {}
        RawLabels::PerStep(labels) => labels.iter_mut().for_each(new),
        RawLabels::Whole(label) => new(label),
    }
}

/// Gives each name a number, in the order in which they come.
#[derive(Debug, Default)]
pub(crate) struct Interner {
    pub(crate) names: Vec<String>,
    codes: HashMap<String, u32>,
    last: u32,
}

impl Interner {
    pub(crate) fn code(&mut self, name: &str) -> u32 {
        // Neighbouring rows mostly have the same name, which needs no hash.
        if self.names.get(self.last as usize).is_some_and(|last| last == name) {
            return self.last;
        }
        self.last = match self.codes.get(name) {
            Some(code) => *code,
            None => {
                let code = self.names.len() as u32;
                self.codes.insert(name.to_owned(), code);
                self.names.push(name.to_owned());
                code
            }
        };
        self.last
    }
}

impl From<Vec<String>> for Interner {
    fn from(names: Vec<String>) -> Self {
        let codes = names.iter().cloned().zip(0..).collect();
        Self { names, codes, last: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_outside_of_a_set_are_counted() {
        let mut set = RowSet::default();
        let inside = [0, 1, 5, 63, 64, 65, 130, 200];
        inside.into_iter().for_each(|row| set.insert(row));
        assert_eq!(set.len(), inside.len());
        let outside = (0..400).filter(|row| !inside.contains(row));
        for (before, row) in outside.enumerate() {
            assert_eq!(set.outside(before), row);
        }
    }
}
