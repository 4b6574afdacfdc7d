//! Rows of series that do not stand together, in a file of their own: written in blocks that fit into memory, each
//! sorted by series, and read back series by series through a map. What the rows are is not looked at here.
//!
//! The file holds words of 8 bytes. A block begins with the code of each of its series and the row of the block from
//! which on its rows lie; then come the rows of each series, column by column. Nothing is read of it after its process.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use firebox_cache::MappedFile;
use firebox_core::Origin;
use tempfile::TempPath;

use crate::DataError;
use crate::input::Input;

use super::grouped::Grouped;
use super::{Stop, known};

/// Writes below this size are gathered.
const BUFFER: usize = 1 << 18;
/// Bits of a place that are its row; those above are the number of its file.
const ROW_BITS: u32 = 40;
/// Words of a block that say where a series begins.
const HEAD: usize = 2;

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
}

/// The series of all files, in the order in which they come first.
#[derive(Default)]
struct Known {
    all: Vec<Scattered>,
    codes: HashMap<(String, Origin), usize>,
}

impl Known {
    /// The number of a series of which so many rows go into a block.
    fn code(&mut self, name: &str, origin: Origin, rows: usize, block: usize) -> usize {
        let all = &mut self.all;
        let code = *self.codes.entry((name.to_owned(), origin)).or_insert_with(|| {
            let (name, blocks) = (name.to_owned(), block..block);
            all.push(Scattered { name, origin, rows: 0, blocks });
            all.len() - 1
        });
        all[code].rows += rows;
        all[code].blocks.end = block + 1;
        code
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
    /// Bytes of a block, about.
    most: usize,
    /// Parts that are not written, with the codes of their series.
    waiting: Vec<(Vec<usize>, Grouped)>,
    rows_waiting: usize,
    blocks: Vec<Block>,
    known: Known,
    files: Vec<Arc<Path>>,
}

impl Sorting {
    /// Makes the file of rows of so many words in a folder.
    pub(super) fn begin(folder: &Path, width: usize, most: usize) -> Result<Self, DataError> {
        let path = folder.join("rows");
        let file = File::create_new(&path).map_err(DataError::io("write", &path))?;
        let path = TempPath::try_from_path(&path).map_err(DataError::io("write", &path))?;
        Ok(Self {
            out: BufWriter::with_capacity(BUFFER, file),
            path,
            words: 0,
            width,
            most,
            waiting: vec![],
            rows_waiting: 0,
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
        let before: usize = self.known.all.iter().map(|series| series.rows).sum();
        let words = (self.rows_waiting + rows) as u64 * self.width as u64
            + (before + rows) as u64 * stored as u64;
        words * size_of::<u64>() as u64
    }

    /// Takes the next rows of a file.
    pub(super) fn add(&mut self, mut part: Grouped, input: &Input) -> Result<(), Stop> {
        if self.files.last().is_none_or(|last| **last != *input.path) {
            self.files.push(Arc::from(input.path.as_path()));
        }
        let file = (self.files.len() - 1) as u64;
        known((file < 1 << (u64::BITS - ROW_BITS)).then_some(()))?;
        part.columns[0].iter_mut().for_each(|place| *place |= file << ROW_BITS);
        let (mut begin, block) = (0, self.blocks.len());
        let code = |(name, end): &(String, usize)| {
            let rows = end - std::mem::replace(&mut begin, *end);
            self.known.code(name, input.origin, rows, block)
        };
        let codes = part.series.iter().map(code).collect();
        self.rows_waiting += part.rows();
        self.waiting.push((codes, part));
        if self.rows_waiting >= self.rows_of(self.most) {
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
            for column in 0..self.width {
                for (_, part, rows) in own {
                    self.write(&waiting[*part].1.columns[column][rows.clone()])?;
                }
            }
        }
        self.rows_waiting = 0;
        Ok(())
    }

    fn write(&mut self, words: &[u64]) -> Result<(), DataError> {
        self.words += words.len();
        let written = self.out.write_all(bytemuck::cast_slice(words));
        written.map_err(DataError::io("write", &self.path))
    }

    /// All rows, once there are no more.
    pub(super) fn finish(mut self) -> Result<Sorted, DataError> {
        self.write_block()?;
        let Self { mut out, path, width, blocks, known, files, .. } = self;
        out.flush().map_err(DataError::io("write", &path))?;
        drop(out);
        let file = MappedFile::of_path(&path).map_err(DataError::io("read back", &path))?;
        Ok(Sorted { file, path, width, blocks, series: known.all, files })
    }
}

/// Rows that can be read series by series. The file goes with this.
pub(super) struct Sorted {
    file: MappedFile,
    path: TempPath,
    width: usize,
    blocks: Vec<Block>,
    pub(super) series: Vec<Scattered>,
    files: Vec<Arc<Path>>,
}

impl Sorted {
    /// Some rows of a series, each column in pieces that lie one behind the other.
    ///
    /// # Errors
    ///
    /// When the file is not what was written.
    pub(super) fn rows(
        &self,
        series: usize,
        wanted: &Range<usize>,
    ) -> Result<Vec<Vec<&[u64]>>, DataError> {
        let mut columns = vec![vec![]; self.width];
        let mut before = 0;
        for block in &self.blocks[self.series[series].blocks.clone()] {
            let all = self.extent(block, series);
            let rows = all.len() / self.width;
            let within = |row: usize| row.saturating_sub(before).min(rows);
            let own = within(wanted.start)..within(wanted.end);
            if !own.is_empty() {
                let pieces = all.chunks_exact(rows).map(|column| &column[own.clone()]);
                columns.iter_mut().zip(pieces).for_each(|(column, piece)| column.push(piece));
            }
            before += rows;
            if before >= wanted.end {
                break;
            }
        }
        // Where the file has shrunk, heads read as zeros.
        self.check()?;
        match before >= wanted.end {
            true => Ok(columns),
            false => Err(self.vanished("rows of it are gone".to_owned())),
        }
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
        let place = found.first().and_then(|pieces| pieces.first()?.first()).copied();
        let file = |place: u64| self.files.get((place >> ROW_BITS) as usize).cloned();
        let row = |place: u64| (place & ((1 << ROW_BITS) - 1)) as usize;
        let found = place.and_then(|place| Some((file(place)?, row(place))));
        found.unwrap_or_else(|| (Path::new("").into(), 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Format;

    /// Rows of a part: of each series so many, whose only value is the number of their row in all files.
    fn part(series: &[(&str, usize)], first: u64) -> Grouped {
        let mut end = 0;
        let series = series.iter().map(|(name, rows)| {
            end += rows;
            ((*name).to_owned(), end)
        });
        let series: Vec<_> = series.collect();
        let places = (1..=end as u64).collect();
        Grouped { series, columns: vec![places, (first..first + end as u64).collect()] }
    }

    fn input(name: &str) -> Input {
        Input { path: name.into(), format: Format::Csv, origin: Origin::Unassigned }
    }

    #[test]
    fn rows_of_a_series_are_read_in_their_order_from_all_blocks() {
        let folder = tempfile::tempdir().unwrap();
        // A block of six rows.
        let mut sorting = Sorting::begin(folder.path(), 2, 6 * 16).unwrap();
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
        let mut sorting = Sorting::begin(folder.path(), 2, 1 << 20).unwrap();
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
        let mut sorting = Sorting::begin(folder.path(), 2, 1).unwrap();
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
        let sorting = Sorting::begin(folder.path(), 2, 1).unwrap();
        drop(sorting);
        assert!(!path.exists());
    }
}
