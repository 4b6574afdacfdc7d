//! A Parquet file that is opened once and decoded some groups of rows at a time, on any thread.
//!
//! What is wrong with a file is not said here: whoever finds it odd reads it again as a whole.

use std::io::Cursor;
use std::ops::Range;
use std::sync::Arc;

use firebox_cache::MappedFile;
use polars::prelude::*;

use crate::DataConfig;
use crate::frame::{self, Table};
use crate::input::Input;
use crate::mapping::Mapping;
use crate::schema::Declared;

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
    about: FileMetadataRef,
    /// The same without a group.
    bare: FileMetadata,
    mapping: Mapping,
}

impl<'a> Groups<'a> {
    /// Opens a file whose columns polars can all take; none if anything is odd.
    pub(crate) fn open(input: &'a Input, config: &'a DataConfig) -> Option<Self> {
        // Not mapped by polars, whose maps end the process when the file shrinks.
        let file = MappedFile::of_path(&input.path).ok()?;
        let (declared, about) = {
            let mut reader = ParquetReader::new(Cursor::new(file.bytes()));
            let declared = Declared::of(reader.schema().ok()?.as_ref());
            (declared, Arc::clone(reader.get_metadata().ok()?))
        };
        let mapping = frame::mapped(input, config, &declared).ok()?;
        let mut bare = FileMetadata::clone(&about);
        bare.row_groups.clear();
        declared.all_can_be_read().then_some(Self { input, config, file, about, bare, mapping })
    }

    /// Rows of the file.
    pub(crate) fn rows(&self) -> usize {
        self.about.row_groups.iter().map(|group| group.num_rows()).sum()
    }

    /// Which columns are what.
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Groups of rows that follow on one another, of at least `at_once` rows together but for the last.
    pub(crate) fn parts(&self, at_once: usize) -> Vec<GroupRange> {
        let mut parts = Vec::new();
        let mut part = GroupRange { groups: 0..0, rows: 0..0 };
        for (index, group) in self.about.row_groups.iter().enumerate() {
            part.groups.end = index + 1;
            part.rows.end += group.num_rows();
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

    /// Decodes the columns in use of some groups: on this thread, or by columns on all of polars' own. None if
    /// that fails.
    pub(crate) fn part(&self, part: &GroupRange, by_columns: bool) -> Option<Table<'a>> {
        let columns = self.mapping.used().map(str::to_owned).collect();
        // A file that has these groups alone: polars would look at all others first.
        let mut about = self.bare.clone();
        about.row_groups = self.about.row_groups.get(part.groups.clone())?.to_vec();
        about.num_rows = part.rows.len();
        let how = if by_columns { ParallelStrategy::Columns } else { ParallelStrategy::None };
        let mut reader = ParquetReader::new(Cursor::new(self.file.bytes()))
            .with_columns(Some(columns))
            .read_parallel(how);
        reader.set_metadata(Arc::new(about));
        let frame = reader.finish().ok().filter(|frame| frame.height() == part.rows.len())?;
        let frame = frame::without_decimals(frame, &self.mapping).ok()?;
        self.file.check().ok()?;
        for group in &self.about.row_groups[part.groups.clone()] {
            let bytes = group.full_byte_range();
            self.file.release(bytes.start as usize..bytes.end as usize);
        }
        Some(Table::of(self.input, self.config, frame, self.mapping.clone()))
    }
}
