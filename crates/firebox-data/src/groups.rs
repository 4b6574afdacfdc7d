//! A Parquet file that is opened once and decoded some groups of rows at a time.
//!
//! What is wrong with a file is not said here: whoever finds it odd reads it again as a whole.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use polars::prelude::*;

use crate::DataConfig;
use crate::frame::{self, Table};
use crate::input::Input;
use crate::mapping::Mapping;
use crate::schema::Declared;

/// An open file, with what its end says of its groups.
pub(crate) struct Groups<'a> {
    input: &'a Input,
    config: &'a DataConfig,
    file: File,
    about: FileMetadataRef,
    mapping: Mapping,
}

impl<'a> Groups<'a> {
    /// Opens a file whose columns polars can all take; none if anything is odd.
    pub(crate) fn open(input: &'a Input, config: &'a DataConfig) -> Option<Self> {
        let file = File::open(&input.path).ok()?;
        let mut reader = ParquetReader::new(file.try_clone().ok()?);
        let declared = Declared::of(reader.schema().ok()?.as_ref());
        let about = Arc::clone(reader.get_metadata().ok()?);
        let mapping = frame::mapped(input, config, &declared).ok()?;
        declared.all_can_be_read().then_some(Self { input, config, file, about, mapping })
    }

    /// Rows of the file.
    pub(crate) fn rows(&self) -> usize {
        self.about.row_groups.iter().map(|group| group.num_rows()).sum()
    }

    /// Ranges of rows that are whole groups, of at least `at_once` rows but for the last.
    pub(crate) fn parts(&self, at_once: usize) -> Vec<Range<usize>> {
        let mut parts = Vec::new();
        let (mut start, mut end) = (0, 0);
        for group in &self.about.row_groups {
            end += group.num_rows();
            if end - start >= at_once {
                parts.push(start..end);
                start = end;
            }
        }
        if start < end {
            parts.push(start..end);
        }
        parts
    }

    /// Decodes the columns in use of some rows; none if that fails.
    pub(crate) fn part(&self, rows: &Range<usize>) -> Option<Table<'a>> {
        let columns = self.mapping.used().map(str::to_owned).collect();
        let mut reader = ParquetReader::new(self.file.try_clone().ok()?)
            .with_columns(Some(columns))
            .with_slice(Some((rows.start, rows.len())))
            .read_parallel(ParallelStrategy::RowGroups);
        reader.set_metadata(Arc::clone(&self.about));
        let frame = reader.finish().ok().filter(|frame| frame.height() == rows.len())?;
        Some(Table::of(self.input, self.config, frame, self.mapping.clone()))
    }
}
