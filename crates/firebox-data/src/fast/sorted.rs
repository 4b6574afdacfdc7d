//! Rows of series that do not stand together, or not in the order of their times, in a file of their own: written in
//! blocks that fit into memory, each sorted by series, and within each by time if that is wanted; and read back series by
//! series through a map. Of a row, its time is all that is looked at here.
//!
//! The file holds words of 8 bytes. A block begins with the code of each of its series and the row of the block from
//! which on its rows lie; then come the rows of each series, column by column. Nothing is read of it after its process.
//!
//! Rows of a series that is sorted by time are merged from its blocks when they are read: where those of so many rows end
//! in each block is found by halving what lies between the first and the last time ([`split`]), and they are sorted.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytemuck::{cast_slice, cast_slice_mut};
use firebox_cache::MappedFile;
use firebox_core::Origin;
use tempfile::TempPath;

use crate::DataError;
use crate::input::Input;
use crate::mapping::Mapping;
use crate::time::Course;
use crate::work::Back;

use super::grouped::Grouped;
use super::{Stop, known};

/// Writes below this size are gathered.
const BUFFER: usize = 1 << 18;
/// Bits of a place that are its row; those above are the number of its file.
const ROW_BITS: u32 = 40;
/// Parts that wait, at most: each of them takes memory beside its rows.
const MOST_WAITING: usize = 1 << 12;
/// Words of a block that say where a series begins.
const HEAD: usize = 2;
/// The columns of a row that are no channels: its place, and its time if there are any.
const PLACES: usize = 0;
const TIMES: usize = 1;

/// Rows that were in memory at once, sorted by series.
struct Block {
    /// Word of the file that it begins with.
    begin: usize,
    series: usize,
    rows: usize,
}

/// A series, and where its rows are.
pub(super) struct Scattered {
    pub(super) name: String,
    pub(super) origin: Origin,
    pub(super) rows: usize,
    /// The blocks that have some of them, and others between those.
    blocks: Range<usize>,
    /// The file of the first of them.
    pub(super) file: Arc<Path>,
    order: Order,
}

/// What is known of the times of a series.
#[derive(Default)]
struct Order {
    /// How they go on, where they are those of a zone.
    course: Course,
    /// Of the last row, and the latest of all.
    last: Option<[i64; 2]>,
    /// Rows behind later ones, and where the first of them is, behind which time, and its own.
    back: u64,
    first: Option<(u64, [i64; 2])>,
    /// The latest of the blocks that were written, and whether a later block has an earlier one.
    written: Option<i64>,
    overlap: bool,
}

impl Order {
    /// Takes the next times, with the places of their rows.
    fn add(&mut self, times: &[u64], places: &[u64]) {
        for (time, place) in times.iter().zip(places) {
            let time = *time as i64;
            let [before, latest] = self.last.unwrap_or([time; 2]);
            if time < latest {
                self.back += 1;
                self.first.get_or_insert((*place, [before, time]));
            }
            self.last = Some([time, latest.max(time)]);
        }
    }

    /// Notes the ends of the times of a block.
    fn wrote(&mut self, [first, last]: [i64; 2]) {
        self.overlap |= self.written.is_some_and(|written| first < written);
        self.written = self.written.max(Some(last));
    }
}

/// The series of all files, in the order in which they come first.
#[derive(Default)]
struct Known {
    all: Vec<Scattered>,
    codes: HashMap<(String, Origin), usize>,
}

impl Known {
    /// The number of a series of which so many rows of a file go into a block. A series that no column names is that of one
    /// file.
    fn code(
        &mut self,
        (name, named): (&str, bool),
        (origin, file): (Origin, &Arc<Path>),
        rows: usize,
        block: usize,
    ) -> Result<usize, Stop> {
        let all = &mut self.all;
        let code = *self.codes.entry((name.to_owned(), origin)).or_insert_with(|| {
            let (name, blocks, file) = (name.to_owned(), block..block, Arc::clone(file));
            all.push(Scattered { name, origin, rows: 0, blocks, file, order: Order::default() });
            all.len() - 1
        });
        known((named || all[code].file == *file).then_some(()))?;
        all[code].rows += rows;
        all[code].blocks.end = block + 1;
        Ok(code)
    }
}

/// A file that rows are put into.
pub(super) struct Sorting {
    out: BufWriter<File>,
    path: TempPath,
    /// Words that were written.
    words: usize,
    /// Words of a row.
    width: usize,
    /// Whether a column names the series, and another holds times.
    named: bool,
    timed: bool,
    /// Whether rows are sorted by time.
    by_time: bool,
    /// Bytes of a block, about.
    most: usize,
    /// Parts that are not written, with the codes of their series.
    waiting: Vec<(Vec<usize>, Grouped)>,
    rows_waiting: usize,
    /// Of all files so far.
    rows: usize,
    blocks: Vec<Block>,
    known: Known,
    files: Vec<Arc<Path>>,
}

impl Sorting {
    /// Makes the file of rows of these columns in a folder. They are sorted by their times, too, if `by_time` says so and
    /// they have any.
    pub(super) fn begin(
        folder: &Path,
        mapping: &Mapping,
        by_time: bool,
        most: usize,
    ) -> Result<Self, DataError> {
        let timed = mapping.time.is_some();
        let width = 1 + usize::from(timed) + mapping.channels.len();
        let path = folder.join("rows");
        let file = File::create_new(&path).map_err(DataError::io("write", &path))?;
        let path = TempPath::try_from_path(&path).map_err(DataError::io("write", &path))?;
        Ok(Self {
            out: BufWriter::with_capacity(BUFFER, file),
            path,
            words: 0,
            width,
            named: mapping.series.is_some(),
            timed,
            by_time: by_time && timed,
            most,
            waiting: vec![],
            rows_waiting: 0,
            rows: 0,
            blocks: vec![],
            known: Known::default(),
            files: vec![],
        })
    }

    /// How many rows are so many bytes, at least one.
    pub(super) fn rows_of(&self, bytes: usize) -> usize {
        (bytes / size_of::<u64>() / self.width).max(1)
    }

    /// Bytes that so many rows more need, here and as numbers of `stored` words among all others in the store.
    pub(super) fn bytes(&self, rows: usize, stored: usize) -> u64 {
        let words = (self.rows_waiting + rows) as u64 * self.width as u64
            + (self.rows + rows) as u64 * stored as u64;
        words * size_of::<u64>() as u64
    }

    /// Takes the next rows of a file.
    pub(super) fn add(&mut self, mut part: Grouped, input: &Input) -> Result<(), Stop> {
        if self.files.last().is_none_or(|last| **last != *input.path) {
            self.files.push(Arc::from(input.path.as_path()));
        }
        let file = (self.files.len() - 1) as u64;
        known((file < 1 << (u64::BITS - ROW_BITS)).then_some(()))?;
        part.columns[PLACES].iter_mut().for_each(|place| *place |= file << ROW_BITS);
        let (mut begin, block) = (0, self.blocks.len());
        let file = known(self.files.last())?;
        let mut codes = Vec::with_capacity(part.series.len());
        for (name, end) in &part.series {
            let own = std::mem::replace(&mut begin, *end)..*end;
            let of = (input.origin, file);
            let code = self.known.code((name, self.named), of, own.len(), block)?;
            if let [places, times, ..] = &mut part.columns[..]
                && self.timed
            {
                let (times, order) = (&mut times[own.clone()], &mut self.known.all[code].order);
                part.zone.settle(cast_slice_mut(times), &mut order.course);
                order.add(times, &places[own]);
            }
            codes.push(code);
        }
        self.rows_waiting += part.rows();
        self.rows += part.rows();
        self.waiting.push((codes, part));
        if self.rows_waiting >= self.rows_of(self.most) || self.waiting.len() >= MOST_WAITING {
            self.write_block()?;
        }
        Ok(())
    }

    /// Writes the rows that wait.
    fn write_block(&mut self) -> Result<(), DataError> {
        let waiting = std::mem::take(&mut self.waiting);
        if waiting.is_empty() {
            return Ok(());
        }
        let mut places = Vec::new();
        for (part, (codes, rows)) in waiting.iter().enumerate() {
            let mut begin = 0;
            for (code, (_, end)) in codes.iter().zip(&rows.series) {
                places.push((*code, part, std::mem::replace(&mut begin, *end)..*end));
            }
        }
        places.sort_unstable_by_key(|(code, part, _)| (*code, *part));
        let series = || places.chunk_by(|(a, ..), (b, ..)| a == b);
        let (mut head, mut rows) = (vec![], 0);
        for own in series() {
            head.extend([own[0].0 as u64, rows as u64]);
            rows += own.iter().map(|(.., rows)| rows.len()).sum::<usize>();
        }
        self.blocks.push(Block { begin: self.words, series: head.len() / HEAD, rows });
        self.write(&head)?;
        for own in series() {
            let waiting = &waiting;
            let pieces = |column: usize| {
                let piece = move |(_, part, rows): &(usize, usize, Range<usize>)| {
                    &waiting[*part].1.columns[column][rows.clone()]
                };
                own.iter().map(piece)
            };
            let order = if self.by_time { self.order(own[0].0, pieces(TIMES)) } else { None };
            for column in 0..self.width {
                match &order {
                    None => pieces(column).try_for_each(|piece| self.write(piece))?,
                    Some(order) => {
                        let rows: Vec<u64> = pieces(column).flatten().copied().collect();
                        for part in order.chunks(BUFFER) {
                            let part: Vec<u64> =
                                part.iter().map(|row| rows[*row as usize]).collect();
                            self.write(&part)?;
                        }
                    }
                }
            }
        }
        self.rows_waiting = 0;
        Ok(())
    }

    /// Notes the times of a series in a block. Returns the order of its rows by time, if it is another.
    fn order<'a>(
        &mut self,
        code: usize,
        times: impl Iterator<Item = &'a [u64]>,
    ) -> Option<Vec<u32>> {
        let times: Vec<i64> = times.flatten().map(|time| *time as i64).collect();
        let order = by_time(&times);
        let end = |end: usize| times[order.as_ref().map_or(end, |order| order[end] as usize)];
        self.known.all[code].order.wrote([end(0), end(times.len() - 1)]);
        order
    }

    fn write(&mut self, words: &[u64]) -> Result<(), DataError> {
        self.words += words.len();
        let written = self.out.write_all(bytemuck::cast_slice(words));
        written.map_err(DataError::io("write", &self.path))
    }

    /// All rows, once there are no more.
    pub(super) fn finish(mut self) -> Result<Sorted, DataError> {
        self.write_block()?;
        let Self { mut out, path, width, by_time, blocks, known, files, .. } = self;
        out.flush().map_err(DataError::io("write", &path))?;
        drop(out);
        let file = MappedFile::of_path(&path).map_err(DataError::io("read back", &path))?;
        Ok(Sorted { file, path, width, by_time, blocks, series: known.all, files })
    }
}

/// Words of a series in blocks, and some of the rows that they are.
type Parts<'a> = Vec<(&'a [u64], Range<usize>)>;

/// Rows that can be read series by series. The file goes with this.
pub(super) struct Sorted {
    file: MappedFile,
    path: TempPath,
    width: usize,
    by_time: bool,
    blocks: Vec<Block>,
    pub(super) series: Vec<Scattered>,
    files: Vec<Arc<Path>>,
}

impl Sorted {
    /// Some rows of a series, each column in pieces that lie one behind the other. Where rows were sorted by time, each
    /// piece is, and all of them are once they are.
    ///
    /// # Errors
    ///
    /// When the file is not what was written.
    pub(super) fn rows(
        &self,
        series: usize,
        wanted: &Range<usize>,
    ) -> Result<Vec<Vec<&[u64]>>, DataError> {
        let own = &self.series[series];
        let blocks = &self.blocks[own.blocks.clone()];
        let extents = blocks.iter().map(|block| self.extent(block, series));
        let (parts, found) = match own.order.overlap {
            true => self.merged(extents.collect(), wanted),
            false => self.in_turn(extents, wanted),
        };
        let mut columns = vec![vec![]; self.width];
        for (all, rows) in parts.into_iter().filter(|(_, rows)| !rows.is_empty()) {
            let pieces = all.chunks_exact(self.rows_in(all)).map(|column| &column[rows.clone()]);
            columns.iter_mut().zip(pieces).for_each(|(column, piece)| column.push(piece));
        }
        // Where the file has shrunk, heads read as zeros.
        self.check()?;
        match found >= wanted.end {
            true => Ok(columns),
            false => Err(self.vanished("rows of it are gone".to_owned())),
        }
    }

    /// How many rows these words of a block are.
    fn rows_in(&self, all: &[u64]) -> usize {
        all.len() / self.width
    }

    /// Where these rows are in the blocks of a series, one behind the other, and how many there are up to the last of them.
    fn in_turn<'a>(
        &self,
        extents: impl Iterator<Item = &'a [u64]>,
        wanted: &Range<usize>,
    ) -> (Parts<'a>, usize) {
        let (mut parts, mut before) = (vec![], 0);
        for all in extents {
            let rows = self.rows_in(all);
            let within = |row: usize| row.saturating_sub(before).min(rows);
            parts.push((all, within(wanted.start)..within(wanted.end)));
            before += rows;
            if before >= wanted.end {
                break;
            }
        }
        (parts, before)
    }

    /// The same of rows in the order of their times, of blocks each of which is in it.
    fn merged<'a>(&self, extents: Vec<&'a [u64]>, wanted: &Range<usize>) -> (Parts<'a>, usize) {
        let times = |all: &&'a [u64]| -> &'a [i64] {
            let rows = self.rows_in(all);
            cast_slice(&all[TIMES * rows..(TIMES + 1) * rows])
        };
        let runs: Vec<&[i64]> = extents.iter().map(times).collect();
        let [starts, ends] = [wanted.start, wanted.end].map(|rows| split(&runs, rows));
        let own = starts.into_iter().zip(ends).map(|(start, end)| start..end);
        let parts = extents.into_iter().zip(own).collect();
        (parts, runs.iter().map(|run| run.len()).sum())
    }

    /// Whether rows were sorted by time, too.
    pub(super) fn is_by_time(&self) -> bool {
        self.by_time
    }

    /// Whether everything that was read so far was there: rows are read after they were found.
    pub(super) fn check(&self) -> Result<(), DataError> {
        self.file.check().map_err(|error| self.vanished(error.to_string()))
    }

    fn vanished(&self, said: String) -> DataError {
        DataError::io("read back", &self.path)(std::io::Error::other(said))
    }

    /// The words of a series in a block; none of one that is not there.
    fn extent(&self, block: &Block, series: usize) -> &[u64] {
        // Maps begin with a page.
        let words: &[u64] = bytemuck::try_cast_slice(self.file.bytes()).unwrap_or_default();
        let block_end = block.begin + block.series * HEAD;
        let head = words.get(block.begin..block_end).unwrap_or_default();
        let (heads, _) = head.as_chunks::<HEAD>();
        let place = heads.partition_point(|[code, _]| *code < series as u64);
        let Some([code, begin]) = heads.get(place) else { return &[] };
        let end = heads.get(place + 1).map_or(block.rows, |[_, begin]| *begin as usize);
        let word = |row: usize| block_end + row * self.width;
        match *code == series as u64 {
            true => words.get(word(*begin as usize)..word(end)).unwrap_or_default(),
            false => &[],
        }
    }

    /// File and row of a row of a series; nowhere if it cannot be read.
    pub(super) fn place(&self, series: usize, row: usize) -> (Arc<Path>, usize) {
        let found = self.rows(series, &(row..row + 1)).unwrap_or_default();
        let place = found.get(PLACES).and_then(|pieces| pieces.first()?.first()).copied();
        self.place_of(place.filter(|_| self.check().is_ok()))
    }

    fn place_of(&self, place: Option<u64>) -> (Arc<Path>, usize) {
        let file = |place: u64| self.files.get((place >> ROW_BITS) as usize).cloned();
        let row = |place: u64| (place & ((1 << ROW_BITS) - 1)) as usize;
        let found = place.and_then(|place| Some((file(place)?, row(place))));
        found.unwrap_or_else(|| (Path::new("").into(), 0))
    }

    /// The rows of a series that were behind later ones before they were sorted, if there are any.
    pub(super) fn back(&self, series: usize) -> Option<Back> {
        let order = &self.series[series].order;
        // Those that are left out are counted when they are.
        self.by_time.then_some(())?;
        let (place, times) = order.first?;
        Some(Back { rows: order.back, place: self.place_of(Some(place)), times })
    }
}

/// The order of these times, if they are not in it. Equal ones stay as they are.
pub(super) fn by_time(times: &[i64]) -> Option<Vec<u32>> {
    if times.is_sorted() {
        return None;
    }
    let mut order: Vec<u32> = (0..times.len() as u32).collect();
    order.sort_by_key(|row| times[*row as usize]);
    Some(order)
}

/// Where the first so many rows of some runs end, each of which is in the order of its times. Of equal times, those of
/// the first run come first.
fn split(runs: &[&[i64]], rows: usize) -> Vec<usize> {
    let firsts = runs.iter().filter_map(|run| run.first()).min();
    let lasts = runs.iter().filter_map(|run| run.last()).max();
    let mut before = vec![0; runs.len()];
    let (Some(first), Some(last), 1..) = (firsts, lasts, rows) else { return before };
    let mut until: Vec<usize> = runs.iter().map(|run| run.len()).collect();
    // The first time up to which there are as many: where the rows end that are earlier, and those that are not later.
    let (mut low, mut high) = (*first, *last);
    while low < high {
        let middle = (i128::from(low) + i128::from(high)).div_euclid(2) as i64;
        let ends = runs.iter().zip(before.iter().zip(&until)).map(|(run, (before, until))| {
            before + run[*before..*until].partition_point(|time| *time <= middle)
        });
        let ends: Vec<usize> = ends.collect();
        match ends.iter().sum::<usize>() >= rows {
            true => (high, until) = (middle, ends),
            false => (low, before) = (middle + 1, ends),
        }
    }
    let mut left = rows - before.iter().sum::<usize>();
    let own = before.into_iter().zip(until).map(|(before, until)| {
        let taken = left.min(until - before);
        left -= taken;
        before + taken
    });
    own.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Zone;
    use crate::{Columns, Format};
    use proptest::prelude::*;

    /// Rows of a part: of each series so many, whose only value is the number of their row in all files.
    fn part(series: &[(&str, usize)], first: u64) -> Grouped {
        let mut end = 0;
        let series = series.iter().map(|(name, rows)| {
            end += rows;
            ((*name).to_owned(), end)
        });
        let series: Vec<_> = series.collect();
        let places = (1..=end as u64).collect();
        Grouped {
            series,
            columns: vec![places, (first..first + end as u64).collect()],
            zone: Zone::Utc,
        }
    }

    /// The file of rows without times, of one channel, of which so many are sorted at once.
    fn sorting(folder: &Path, bytes: usize) -> Sorting {
        let names = ["symbol", "x"].map(str::to_owned);
        let mapping = Mapping::new(Path::new("a.csv"), &names, &Columns::default()).unwrap();
        Sorting::begin(folder, &mapping, true, bytes).unwrap()
    }

    fn input(name: &str) -> Input {
        Input {
            path: name.into(),
            format: Format::Csv,
            origin: Origin::Unassigned,
            within: String::new(),
        }
    }

    #[test]
    fn rows_of_a_series_are_read_in_their_order_from_all_blocks() {
        let folder = tempfile::tempdir().unwrap();
        // A block of six rows.
        let mut sorting = self::sorting(folder.path(), 6 * 16);
        let (one, two) = (input("one"), input("two"));
        sorting.add(part(&[("b", 2), ("a", 1)], 0), &one).unwrap();
        sorting.add(part(&[("a", 3)], 3), &two).unwrap();
        sorting.add(part(&[("c", 6)], 6), &two).unwrap();
        sorting.add(part(&[("b", 2), ("d", 1)], 12), &two).unwrap();
        assert_eq!(sorting.bytes(10, 3), (13 * 2 + 25 * 3) * 8);
        let sorted = sorting.finish().unwrap();
        let names: Vec<_> = sorted.series.iter().map(|one| (&*one.name, one.rows)).collect();
        assert_eq!(names, [("b", 4), ("a", 4), ("c", 6), ("d", 1)]);
        let values = |series: usize, rows: Range<usize>| {
            let columns = sorted.rows(series, &rows).unwrap();
            (columns[1].len(), columns[1].concat())
        };
        assert_eq!(values(0, 0..4), (2, vec![0, 1, 12, 13]));
        assert_eq!(values(0, 1..3), (2, vec![1, 12]));
        assert_eq!(values(1, 0..4), (1, vec![2, 3, 4, 5]));
        assert_eq!(values(2, 4..6), (1, vec![10, 11]));
        assert_eq!(values(3, 0..1), (1, vec![14]));
        let place = |series, row| {
            let (path, row) = sorted.place(series, row);
            (path.to_str().unwrap().to_owned(), row)
        };
        assert_eq!(place(1, 0), ("one".to_owned(), 3));
        assert_eq!(place(1, 1), ("two".to_owned(), 1));
        assert_eq!(place(0, 3), ("two".to_owned(), 2));
    }

    #[test]
    fn rows_that_are_gone_once_they_are_found_are_told_of() {
        let folder = tempfile::tempdir().unwrap();
        let mut sorting = self::sorting(folder.path(), 1 << 20);
        sorting.add(part(&[("a", 4000)], 1), &input("one")).unwrap();
        let sorted = sorting.finish().unwrap();
        let found = sorted.rows(0, &(0..4000)).unwrap();
        assert!(sorted.check().is_ok());
        let path = folder.path().join("rows");
        File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
        assert_eq!(found[1][0][3999], 0);
        let said = sorted.check().unwrap_err().to_string();
        assert!(said.contains("read back"), "{said}");
    }

    #[test]
    fn a_file_that_shrinks_is_told_of_and_none_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows");
        let mut sorting = self::sorting(folder.path(), 1);
        for first in 0..1000 {
            sorting.add(part(&[("a", 4), ("b", 4)], first), &input("one")).unwrap();
        }
        let sorted = sorting.finish().unwrap();
        assert_eq!(sorted.rows(1, &(0..4000)).unwrap()[1].len(), 1000);
        File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
        let said = sorted.rows(1, &(0..4000)).unwrap_err().to_string();
        assert!(said.contains("read back"), "{said}");
        drop(sorted);
        assert!(!path.exists());
        let sorting = self::sorting(folder.path(), 1);
        drop(sorting);
        assert!(!path.exists());
    }

    proptest! {
        #[test]
        fn rows_of_runs_end_where_they_do_once_all_are_sorted(
            mut runs in prop::collection::vec(prop::collection::vec(-3i64..4, 0..9), 0..6),
            extreme in any::<bool>(),
        ) {
            if extreme {
                let far = |time: &mut i64| *time = time.saturating_mul(i64::MAX / 3);
                runs.iter_mut().flatten().for_each(far);
            }
            runs.iter_mut().for_each(|run| run.sort_unstable());
            let runs: Vec<&[i64]> = runs.iter().map(|run| &run[..]).collect();
            let of = |run: usize| runs[run].iter().map(move |time| (*time, run));
            let mut all: Vec<(i64, usize)> = (0..runs.len()).flat_map(of).collect();
            all.sort();
            for rows in 0..=all.len() {
                let own = |run| all[..rows].iter().filter(|(_, of)| *of == run).count();
                let expected: Vec<usize> = (0..runs.len()).map(own).collect();
                prop_assert_eq!(split(&runs, rows), expected);
            }
        }
    }
}
