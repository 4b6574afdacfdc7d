//! Tables of results as Parquet files, written batch by batch. Nothing is read here.

use std::fs::File;
use std::path::{Path, PathBuf};

use polars::io::parquet::write::BatchedWriter;
use polars::prelude::*;
use tempfile::NamedTempFile;

use crate::DataError;

/// The values of a column, one for each row.
#[derive(Clone, Debug, PartialEq)]
pub enum TableColumn {
    /// Texts.
    Text(Vec<String>),
    /// Moments: microseconds since 1970-01-01 UTC.
    Time(Vec<i64>),
    /// Whole numbers.
    Whole(Vec<i64>),
    /// Numbers.
    Number(Vec<f32>),
    /// A list of so many numbers in each row, row by row.
    Vectors {
        /// Numbers, `[row, width]`.
        values: Vec<f32>,
        /// Numbers of a row.
        width: usize,
    },
}

/// A Parquet file that grows by batches of rows. It is there under its name only once it is
/// [finished](Self::finish): before, it is a temporary file beside it, which is removed if the
/// writer is dropped.
///
/// # Example
///
/// ```
/// use firebox_data::{TableColumn, TableWriter};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("vectors.parquet");
/// let mut table = TableWriter::create(&path)?;
/// let batch = |from: i64| vec![
///     ("series".to_owned(), TableColumn::Text(vec!["a".to_owned(); 2])),
///     ("start".to_owned(), TableColumn::Time(vec![from, from + 1])),
///     ("embedding".to_owned(), TableColumn::Vectors { values: vec![0.5; 6], width: 3 }),
/// ];
/// table.write(batch(0))?;
/// table.write(batch(2))?;
/// assert!(!path.exists());
/// assert_eq!(table.finish()?, 4);
/// assert!(path.exists());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TableWriter {
    path: PathBuf,
    file: NamedTempFile,
    /// Made with the first batch, whose columns are those of the file.
    writer: Option<BatchedWriter<File>>,
    rows: u64,
}

impl TableWriter {
    /// A table that will be at `path`, whatever is there now.
    ///
    /// # Errors
    ///
    /// When nothing can be written in that folder.
    pub fn create(path: &Path) -> Result<Self, DataError> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let file = NamedTempFile::new_in(folder.unwrap_or(Path::new(".")));
        let file = file.map_err(DataError::io("write", path))?;
        Ok(Self { path: path.to_path_buf(), file, writer: None, rows: 0 })
    }

    /// Adds rows, as a row group of their own. The columns are the same in every batch.
    ///
    /// # Errors
    ///
    /// When columns differ in length or from those of the first batch, or the disk is full.
    pub fn write(&mut self, columns: Vec<(String, TableColumn)>) -> Result<(), DataError> {
        let frame = frame(columns).map_err(|error| self.failed(error))?;
        if self.writer.is_none() {
            let file = self.file.reopen().map_err(DataError::io("write", &self.path))?;
            // Numbers of an encoder do not compress; what repeats is stored by a dictionary.
            let writer = ParquetWriter::new(file)
                .with_compression(ParquetCompression::Uncompressed)
                .batched(frame.schema())
                .map_err(|error| self.failed(error))?;
            self.writer = Some(writer);
        }
        self.rows += frame.height() as u64;
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let written = writer.write_batch(&frame);
        written.map_err(|error| self.failed(error))
    }

    /// Puts the file in its place and returns its number of rows. Without a batch there is no file.
    ///
    /// # Errors
    ///
    /// When the disk is full, or the file cannot be put there.
    pub fn finish(mut self) -> Result<u64, DataError> {
        let Some(writer) = self.writer.take() else { return Ok(0) };
        writer.finish().map_err(|error| self.failed(error))?;
        drop(writer);
        let Self { path, file, rows, .. } = self;
        file.as_file().sync_all().map_err(DataError::io("write", &path))?;
        file.persist(&path).map_err(|error| DataError::io("write", &path)(error.error))?;
        Ok(rows)
    }

    fn failed(&self, error: PolarsError) -> DataError {
        DataError::io("write", &self.path)(std::io::Error::other(error.to_string()))
    }
}

fn frame(columns: Vec<(String, TableColumn)>) -> PolarsResult<DataFrame> {
    let columns: Vec<Column> = columns.into_iter().map(column).collect();
    DataFrame::new_infer_height(columns)
}

fn column((name, values): (String, TableColumn)) -> Column {
    let name = PlSmallStr::from_string(name);
    match values {
        TableColumn::Text(values) => Column::new(name, values),
        TableColumn::Whole(values) => Column::new(name, values),
        TableColumn::Number(values) => Column::new(name, values),
        TableColumn::Time(values) => {
            let values = Int64Chunked::from_vec(name, values);
            values.into_datetime(TimeUnit::Microseconds, Some(TimeZone::UTC)).into_column()
        }
        TableColumn::Vectors { values, width } => {
            let rows = values.len() / width.max(1);
            let mut lists = ListPrimitiveChunkedBuilder::<Float32Type>::new(
                name,
                rows,
                values.len(),
                DataType::Float32,
            );
            values.chunks_exact(width.max(1)).for_each(|row| lists.append_slice(row));
            lists.finish().into_column()
        }
    }
}
