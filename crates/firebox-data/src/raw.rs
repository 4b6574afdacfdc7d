//! Series as files give them: column by column, unchecked.
//!
//! The readers of all formats end here, and the checks begin here.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use firebox_core::{Channel, Filled, Origin, Series, StepLabels};

use crate::DataError;
use crate::npy::Element;
use crate::time::{Course, Zone};

/// The code of a step without a label.
pub(crate) const NO_LABEL: u32 = u32::MAX;

/// The label of a code.
pub(crate) fn label_of(code: u32) -> Option<u32> {
    (code != NO_LABEL).then_some(code)
}

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
    /// The zone by which the times of each series are still to be settled.
    pub(crate) zone: Zone,
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
    Each(Vec<usize>),
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
                    Rows::Each(rows) => rows[step],
                    Rows::Without { first, gone } => first + gone.outside(step),
                };
                return (Arc::clone(&piece.path), row);
            }
            step -= piece.steps;
        }
        (Path::new("").into(), 0)
    }

    /// The series, `[time, channel]`, cut like this.
    pub(crate) fn laid_out(self, segments: Vec<Range<usize>>, width: usize) -> Series {
        let steps = self.len();
        let mut values = vec![0.0; steps * width];
        // A block of rows at a time stays in the cache while each of its columns is written.
        const ROWS: usize = 256;
        for (block, out) in values.chunks_mut(ROWS * width.max(1)).enumerate() {
            for (channel, column) in self.columns.iter().enumerate() {
                let column = &column[block * ROWS..steps.min((block + 1) * ROWS)];
                let out = out[channel..].iter_mut().step_by(width);
                out.zip(column).for_each(|(out, value)| *out = *value);
            }
        }
        Series {
            name: self.name,
            time: self.time.unwrap_or_else(|| (0..steps as i64).collect()).into(),
            values: values.into(),
            labels: match self.labels {
                RawLabels::None => StepLabels::None,
                RawLabels::PerStep(labels) => {
                    StepLabels::PerStep(labels.into_iter().map(label_of).collect())
                }
                RawLabels::Whole(code) => {
                    label_of(code).map_or(StepLabels::None, StepLabels::Whole)
                }
            },
            segments,
            origin: self.origin,
            filled: Filled::default(),
            group: None,
        }
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

/// A series that has a name.
#[derive(Clone, Copy, Debug)]
struct Known {
    place: usize,
    /// Whether a column names it. Others are named after their files.
    named: bool,
    /// How its times go on, where they are those of a zone.
    course: Course,
}

/// What files give, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    raw: Raw,
    /// The series of each name and origin.
    known: HashMap<(String, Origin), Known>,
    /// Of names that several files have: the number that the next of them is tried with.
    numbers: HashMap<String, usize>,
}

impl Gathered {
    /// Adds what another file gives. Series named by a column go on where an earlier file left
    /// them.
    pub(crate) fn add(&mut self, mut other: Raw) -> Result<(), DataError> {
        let (named, zone) = (other.by.is_some(), std::mem::take(&mut other.zone));
        if self.raw.series.is_empty() {
            let series = std::mem::take(&mut other.series);
            self.raw = other;
            return series.into_iter().try_for_each(|series| self.put((series, zone), named, 0));
        }
        other.order_as(&self.raw.channels);
        self.check_alike(&other)?;
        let map = merge_classes(&mut self.raw.classes, &other.classes);
        self.raw.by = self.raw.by.take().or(other.by);
        let before = self.raw.series.len();
        for mut series in other.series {
            relabel(&mut series.labels, &map);
            self.put((series, zone), named, before)?;
        }
        Ok(())
    }

    /// Refuses a file whose values do not go with those of the files before it.
    fn check_alike(&self, other: &Raw) -> Result<(), DataError> {
        if self.raw.channels != other.channels {
            let names = |raw: &Raw| {
                let names: Vec<_> = raw.channels.iter().map(|c| c.name.as_str()).collect();
                let count = firebox_core::count(names.len() as u64, "channel");
                format!("{count} ({})", names.join(", "))
            };
            return Err(DataError::Channels {
                path: other.first_file(),
                found: names(other),
                first: self.raw.first_file(),
                expected: names(&self.raw),
            });
        }
        let (timed, untimed) =
            if other.time.is_some() { (other, &self.raw) } else { (&self.raw, other) };
        if let (Some(column), None) = (&timed.time, &untimed.time) {
            let (timed, untimed) = (timed.first_file(), untimed.first_file());
            return Err(DataError::MixedTimes { timed, column: column.clone(), untimed });
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
                unconvertible: labels(other) || !(first.is_float() || found.is_float()),
            });
        }
        Ok(())
    }

    /// The channels of all files.
    pub(crate) fn channels(&self) -> &[Channel] {
        &self.raw.channels
    }

    /// The series that were added, in their order.
    pub(crate) fn series(&self) -> &[RawSeries] {
        &self.raw.series
    }

    /// Everything that was added.
    pub(crate) fn finish(self) -> Raw {
        self.raw
    }

    /// Adds a series of a file before which there were so many. It goes on with the one of its name if a column names
    /// both; of files, it gets another name.
    fn put(
        &mut self,
        (mut series, zone): (RawSeries, Zone),
        named: bool,
        before: usize,
    ) -> Result<(), DataError> {
        let (name, origin) = (series.name.clone(), series.origin);
        let known = self.known.get(&(name.clone(), origin)).copied();
        let goes_on = known.filter(|known| known.named && named);
        let mut course = goes_on.map_or(Course::default(), |known| known.course);
        if let Some(times) = &mut series.time {
            zone.settle(times, &mut course);
        }
        let Some(known) = known else {
            self.push(series, named, course);
            return Ok(());
        };
        let first = &mut self.raw.series[known.place];
        match (known.named, named) {
            (true, true) => {
                first.append(series);
                self.known.insert((name, origin), Known { course, ..known });
            }
            (true, false) => return Err(one_name(name, first, &series)),
            (false, true) => return Err(one_name(name, &series, first)),
            // Of one file, series of one name stay apart.
            (false, false) if known.place >= before => self.push(series, named, course),
            (false, false) => {
                series.name = self.free_name(&series)?;
                self.push(series, named, course);
            }
        }
        Ok(())
    }

    fn push(&mut self, series: RawSeries, named: bool, course: Course) {
        let place = self.raw.series.len();
        self.known.insert((series.name.clone(), series.origin), Known { place, named, course });
        self.raw.series.push(series);
    }

    /// A name that no series has: two folders may hold files of one name.
    fn free_name(&mut self, series: &RawSeries) -> Result<String, DataError> {
        let first = self.numbers.get(&series.name).copied().unwrap_or(2);
        for number in first.. {
            let name = format!("{} ({number})", series.name);
            let of = |origin| self.known.get(&(name.clone(), origin));
            // In whatever order the files come, a name of a column and one of a file are not the same.
            if let Some(known) = of(series.origin).filter(|known| known.named) {
                return Err(one_name(name, &self.raw.series[known.place], series));
            }
            let origins = [Origin::Unassigned, Origin::Train, Origin::Test];
            if origins.into_iter().all(|origin| of(origin).is_none()) {
                self.numbers.insert(series.name.clone(), number + 1);
                return Ok(name);
            }
        }
        Ok(series.name.clone())
    }
}

/// A column and a file give one name, and nothing says whether they mean one series.
fn one_name(name: String, of_column: &RawSeries, of_file: &RawSeries) -> DataError {
    let (path, row) = of_column.place(0);
    let (path, file) = (path.to_path_buf(), of_file.place(0).0.to_path_buf());
    DataError::NameOfFile { name, path, row, file }
}

impl Raw {
    /// Puts the channels in this order, if they are these.
    fn order_as(&mut self, channels: &[Channel]) {
        if self.channels == channels || self.channels.len() != channels.len() {
            return;
        }
        let place = |channel: &Channel| self.channels.iter().position(|own| own == channel);
        let Some(places) = channels.iter().map(place).collect::<Option<Vec<usize>>>() else {
            return;
        };
        for series in &mut self.series {
            series.columns =
                places.iter().map(|place| std::mem::take(&mut series.columns[*place])).collect();
        }
        self.channels = channels.to_vec();
    }

    /// The file of the first series.
    fn first_file(&self) -> PathBuf {
        self.series.first().map(|series| series.place(0).0.to_path_buf()).unwrap_or_default()
    }

    /// Takes out the channels of these names; none where no other one would be left.
    pub(crate) fn take_out(&mut self, names: &[String]) {
        let is_out = |channel: &Channel| names.contains(&channel.name);
        if self.channels.iter().all(is_out) {
            return;
        }
        let out = (0..self.channels.len()).filter(|place| is_out(&self.channels[*place]));
        for place in out.collect::<Vec<_>>().into_iter().rev() {
            self.series.iter_mut().for_each(|series| drop(series.columns.remove(place)));
            self.channels.remove(place);
        }
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

/// The number that a name is, however that is written: `7`, `7.0` and `07` are one. Large whole ones are told apart to
/// their last digit.
pub(crate) fn as_number(name: &str) -> Option<String> {
    let whole = name.parse::<i128>().map(|number| number.to_string());
    whole.or_else(|_| name.parse::<f64>().map(|number| number.to_string())).ok()
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
    /// The code of a name that was met.
    pub(crate) fn known(&self, name: &str) -> Option<u32> {
        self.codes.get(name).copied()
    }

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

    /// What is read of files in this order, each in a folder of its own.
    fn read(files: &[(&str, &str)]) -> Result<Vec<(String, usize)>, String> {
        let folder = tempfile::tempdir().unwrap();
        let mut paths = vec![];
        for (number, (name, text)) in files.iter().enumerate() {
            let own = folder.path().join(number.to_string());
            std::fs::create_dir(&own).unwrap();
            std::fs::write(own.join(name), text).unwrap();
            paths.push(own.join(name));
        }
        let mut config = crate::DataConfig::new(&paths[0]);
        config.path = crate::Paths(paths);
        config.columns.channels = vec!["x".into()];
        let told = |text: String| text.replace(&folder.path().display().to_string(), "");
        let read = crate::read(&config, &firebox_core::Silent);
        let (set, _) = read.map_err(|error| told(error.to_string()))?;
        Ok(set.series().iter().map(|one| (one.name.clone(), one.len())).collect())
    }

    const NAMED: &str = "symbol,x\na,1\na,2\nb,3\nb,5\n";
    const PLAIN: &str = "x\n7\n9\n";

    #[test]
    fn a_name_of_a_column_and_of_a_file_is_refused_in_every_order() {
        let expected = |column: usize, file: usize| {
            format!(
                "/{column}/n.csv, row 3, names the series `b`, and so is that of /{file}/b.csv named, after its file: nothing says whether they are one\n  if they are, give each row of the file its name in the same column; if they are not, rename the file"
            )
        };
        assert_eq!(read(&[("n.csv", NAMED), ("b.csv", PLAIN)]).unwrap_err(), expected(0, 1));
        assert_eq!(read(&[("b.csv", PLAIN), ("n.csv", NAMED)]).unwrap_err(), expected(1, 0));
        // So are the names that files of one name get.
        for (order, name) in [([0, 1, 2], "1/c"), ([0, 2, 1], "2/c"), ([2, 0, 1], "1/c")] {
            let named = NAMED.replace("b,", &format!("{name},"));
            let files = [("c.csv", PLAIN), ("c.csv", PLAIN), ("n.csv", named.as_str())];
            let said = read(&order.map(|file| files[file])).unwrap_err();
            assert!(said.contains(&format!("names the series `{name}`")), "{said}");
        }
        // Other names go together in every order, and a series goes on in files with the column.
        let more = NAMED.replace(",1", ",6");
        let files = [("c.csv", PLAIN), ("n.csv", NAMED), ("m.csv", more.as_str())];
        for order in [[0, 1, 2], [1, 0, 2], [2, 1, 0]] {
            let mut found = read(&order.map(|file| files[file])).unwrap();
            found.sort();
            let expected = [("a", 4), ("b", 4), ("c", 2)].map(|(name, steps)| (name.into(), steps));
            assert_eq!(found, expected, "{order:?}");
        }
    }

    #[test]
    fn files_with_times_and_without_are_refused_in_every_order() {
        let timed = "time,symbol,x\n2024-01-01T00:00,a,1\n2024-01-01T00:01,a,2\n";
        for other in ["symbol,x\na,3\na,\n", "symbol,x\nb,3\nb,4\n"] {
            let files = [("t.csv", timed), ("u.csv", other)];
            for order in [[0, 1], [1, 0]] {
                let said = read(&order.map(|file| files[file])).unwrap_err();
                let [timed, untimed] = order;
                let expected = format!(
                    "/{timed}/t.csv has a column of times, `time`, and /{untimed}/u.csv has none: "
                );
                assert!(said.starts_with(&expected), "{said}");
            }
        }
    }

    #[test]
    fn white_space_around_names_tells_no_series_apart() {
        let padded = NAMED.replace("a,1", " a\t,1").replace("b,", "b ,");
        let expected = [("a".to_owned(), 2), ("b".to_owned(), 2)];
        assert_eq!(read(&[("n.csv", &padded)]).unwrap(), expected);
        let more = padded.replace(",1", ",6");
        let expected = expected.map(|(name, _)| (name, 4));
        assert_eq!(read(&[("n.csv", NAMED), ("m.csv", &more)]).unwrap(), expected);
        // Nor is it a name.
        let blank = NAMED.replace("b,5", "  ,5");
        let said = read(&[("n.csv", &blank)]).unwrap_err();
        let expected = "/0/n.csv, row 4, column `symbol`: `  ` names no series, as white space is no name: every row needs a name; write it there, or leave such rows out of the file";
        assert_eq!(said, expected);
        let missing = NAMED.replace("b,5", ",5");
        let said = read(&[("n.csv", &missing)]).unwrap_err();
        assert!(said.contains("`` names no series: every row needs a name"), "{said}");
    }

    #[test]
    fn many_files_of_one_name_are_numbered_at_once() {
        let file: Arc<Path> = Arc::from(Path::new("a.npy"));
        let one = || RawSeries {
            name: "a".to_owned(),
            origin: Origin::Unassigned,
            time: None,
            columns: vec![vec![1.0]],
            labels: RawLabels::None,
            pieces: vec![Piece { path: Arc::clone(&file), steps: 1, rows: Rows::From(1) }],
        };
        let mut all = Gathered::default();
        for _ in 0..20_000 {
            all.add(Raw { series: vec![one()], ..Raw::default() }).unwrap();
        }
        let series = all.finish().series;
        assert_eq!((&*series[1].name, &*series[19_999].name), ("a (2)", "a (20000)"));
    }
}
