//! A Parquet or Arrow file that is opened once and decoded some groups of rows (record batches) at a time, on any thread.
//!
//! What is wrong with a file is not said here: whoever finds it odd reads it again as a whole.

use std::io::Cursor;
use std::ops::Range;
use std::sync::Arc;

use firebox_cache::MappedFile;
use polars::prelude::*;

use crate::batches::Batches;
use crate::frame::{self, Table};
use crate::input::Input;
use crate::mapping::Mapping;
use crate::schema::Declared;
use crate::{DataConfig, Format};

/// Groups of rows, and the rows of the file that they are.
#[derive(Clone, Debug)]
pub(crate) struct GroupRange {
    pub(crate) groups: Range<usize>,
    pub(crate) rows: Range<usize>,
}

/// An open file, with what its end says of its groups.
pub(crate) struct Groups<'a> {
    input: &'a Input,
    config: &'a DataConfig,
    file: MappedFile,
    stored: Stored,
    /// Of each group.
    rows: Vec<usize>,
    mapping: Mapping,
}

/// What a file says of its groups, and the same without any.
enum Stored {
    Parquet(FileMetadataRef, Box<FileMetadata>),
    Arrow(Box<Batches>),
}

impl Stored {
    /// Those of a Parquet file, with its columns.
    fn parquet(file: &[u8]) -> Option<(Self, Declared)> {
        let mut reader = ParquetReader::new(Cursor::new(file));
        let declared = Declared::of(reader.schema().ok()?.as_ref());
        let about = Arc::clone(reader.get_metadata().ok()?);
        let mut bare = FileMetadata::clone(&about);
        bare.row_groups.clear();
        Some((Self::Parquet(about, Box::new(bare)), declared))
    }

    fn arrow(file: &[u8]) -> Option<(Self, Declared)> {
        let batches = Batches::open(file)?;
        let declared = batches.declared();
        Some((Self::Arrow(Box::new(batches)), declared))
    }

    /// The same for columns that are in use; none if one of them cannot be decoded.
    fn of_columns(self, file: &[u8], mapping: &Mapping) -> Option<Self> {
        match self {
            Self::Parquet(..) => Some(self),
            Self::Arrow(batches) => Some(Self::Arrow(Box::new(batches.of_columns(file, mapping)?))),
        }
    }

    /// Rows of each group.
    fn rows(&self, file: &[u8]) -> Option<Vec<usize>> {
        match self {
            Self::Parquet(about, _) => {
                Some(about.row_groups.iter().map(|group| group.num_rows()).collect())
            }
            Self::Arrow(batches) => batches.rows(file),
        }
    }
}

impl<'a> Groups<'a> {
    /// Opens a file whose columns can all be taken; none if anything is odd.
    pub(crate) fn open(input: &'a Input, config: &'a DataConfig) -> Option<Self> {
        // Not mapped by polars, whose maps end the process when the file shrinks.
        let file = MappedFile::of_input(&input.path).ok()?;
        let (stored, declared) = match input.format {
            Format::Arrow => Stored::arrow(file.bytes())?,
            _ => Stored::parquet(file.bytes())?,
        };
        let mapping = frame::mapped(input, config, &declared).ok()?;
        declared.all_can_be_read().then_some(())?;
        let stored = stored.of_columns(file.bytes(), &mapping)?;
        let rows = stored.rows(file.bytes())?;
        Some(Self { input, config, file, stored, rows, mapping })
    }

    /// Rows of the file.
    pub(crate) fn rows(&self) -> usize {
        self.rows.iter().sum()
    }

    /// Which columns are what.
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Groups of rows that follow on one another, of at least `at_once` rows together but for the last.
    pub(crate) fn parts(&self, at_once: usize) -> Vec<GroupRange> {
        let mut parts = Vec::new();
        let mut part = GroupRange { groups: 0..0, rows: 0..0 };
        for (index, rows) in self.rows.iter().enumerate() {
            part.groups.end = index + 1;
            part.rows.end += rows;
            if part.rows.len() >= at_once {
                let (groups, rows) = (index + 1..index + 1, part.rows.end..part.rows.end);
                parts.push(std::mem::replace(&mut part, GroupRange { groups, rows }));
            }
        }
        if !part.rows.is_empty() {
            parts.push(part);
        }
        parts
    }

    /// Decodes the columns in use of some groups: on this thread, or, of Parquet, by columns on all of polars' own. None
    /// if that fails.
    pub(crate) fn part(&self, part: &GroupRange, by_columns: bool) -> Option<Table<'a>> {
        let frame = match &self.stored {
            Stored::Parquet(about, bare) => {
                self.row_groups(part, (about.as_ref(), bare.as_ref()), by_columns)
            }
            Stored::Arrow(batches) => {
                batches.read(self.file.bytes(), part.groups.clone(), &self.mapping)
            }
        };
        let frame = frame.filter(|frame| frame.height() == part.rows.len())?;
        let frame = frame::without_decimals(frame, &self.mapping).ok()?;
        self.file.check().ok()?;
        self.release(part);
        Some(Table::of(self.input, self.config, frame, self.mapping.clone()))
    }

    fn row_groups(
        &self,
        part: &GroupRange,
        (all, bare): (&FileMetadata, &FileMetadata),
        by_columns: bool,
    ) -> Option<DataFrame> {
        let columns = self.mapping.used().map(str::to_owned).collect();
        // A file that has these groups alone: polars would look at all others first.
        let mut about = bare.clone();
        about.row_groups = all.row_groups.get(part.groups.clone())?.to_vec();
        about.num_rows = part.rows.len();
        let how = if by_columns { ParallelStrategy::Columns } else { ParallelStrategy::None };
        let mut reader = ParquetReader::new(Cursor::new(self.file.bytes()))
            .with_columns(Some(columns))
            .read_parallel(how);
        reader.set_metadata(Arc::new(about));
        reader.finish().ok()
    }

    /// Gives the pages of what has been decoded back.
    fn release(&self, part: &GroupRange) {
        match &self.stored {
            Stored::Parquet(about, _) => {
                for group in &about.row_groups[part.groups.clone()] {
                    let bytes = group.full_byte_range();
                    self.file.release(bytes.start as usize..bytes.end as usize);
                }
            }
            Stored::Arrow(batches) => {
                batches.bytes(part.groups.clone()).for_each(|bytes| self.file.release(bytes));
            }
        }
    }
}
