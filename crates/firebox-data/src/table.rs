//! Tables of results as Parquet files, written batch by batch. Nothing is read here.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use polars::io::parquet::write::BatchedWriter;
use polars::prelude::*;
use tempfile::NamedTempFile;

use crate::DataError;

/// The values of a column, one for each row.
#[derive(Clone, Debug, PartialEq)]
pub enum TableColumn {
    /// Texts.
    Text(Vec<String>),
    /// Texts, where there are any.
    TextIfAny(Vec<Option<String>>),
    /// Moments: microseconds since 1970-01-01 UTC.
    Time(Vec<i64>),
    /// Whole numbers.
    Whole(Vec<i64>),
    /// Whole numbers, where there are any.
    WholeIfAny(Vec<Option<i64>>),
    /// Numbers.
    Number(Vec<f32>),
    /// Numbers that a model did not compute alone, such as forecasts in the units of the data.
    Exact(Vec<f64>),
    /// The same, where there are any.
    ExactIfAny(Vec<Option<f64>>),
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
    writer: Option<(BatchedWriter<Noting>, SchemaRef)>,
    /// What the disk said last, which the format's own errors hide.
    refused: Arc<Mutex<Option<std::io::Error>>>,
    rows: u64,
}

/// A file that notes why it could not be written.
struct Noting {
    file: File,
    refused: Arc<Mutex<Option<std::io::Error>>>,
}

impl Noting {
    fn note<T>(&self, result: std::io::Result<T>) -> std::io::Result<T> {
        result.map_err(|error| {
            let kind = error.kind();
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            kind.into()
        })
    }
}

impl Write for Noting {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write(bytes);
        self.note(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let flushed = self.file.flush();
        self.note(flushed)
    }
}

impl TableWriter {
    /// A table that will be at `path`, whatever is there now.
    ///
    /// # Errors
    ///
    /// When nothing can be written in that folder.
    pub fn create(path: &Path) -> Result<Self, DataError> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let file = temporary().tempfile_in(folder.unwrap_or(Path::new(".")));
        let file = file.map_err(DataError::io("write", path))?;
        let refused = Arc::new(Mutex::new(None));
        Ok(Self { path: path.to_path_buf(), file, writer: None, refused, rows: 0 })
    }

    /// Adds rows, as a row group of their own. The columns are the same in every batch.
    ///
    /// # Errors
    ///
    /// When columns differ in length or from those of the first batch, the numbers of vectors are no whole rows, or the
    /// disk is full.
    pub fn write(&mut self, columns: Vec<(String, TableColumn)>) -> Result<(), DataError> {
        let frame = frame(columns).map_err(|error| self.failed(error))?;
        if self.writer.is_none() {
            let file = self.file.reopen().map_err(DataError::io("write", &self.path))?;
            // Numbers of an encoder do not compress; what repeats is stored by a dictionary.
            let file = Noting { file, refused: Arc::clone(&self.refused) };
            let writer = ParquetWriter::new(file)
                .with_compression(ParquetCompression::Uncompressed)
                .batched(frame.schema())
                .map_err(|error| self.failed(error))?;
            self.writer = Some((writer, frame.schema().clone()));
        }
        self.rows += frame.height() as u64;
        let Some((writer, schema)) = &mut self.writer else { return Ok(()) };
        let written = match frame.schema() == schema {
            true => writer.write_batch(&frame),
            false => Err(polars_err!(
                SchemaMismatch: "the columns are {:?}, and were {:?}", frame.schema(), schema
            )),
        };
        written.map_err(|error| self.failed(error))
    }

    /// Puts the file in its place and returns its number of rows. Without a batch there is no file.
    ///
    /// # Errors
    ///
    /// When the disk is full, or the file cannot be put there.
    pub fn finish(mut self) -> Result<u64, DataError> {
        let Some((writer, _)) = self.writer.take() else { return Ok(0) };
        writer.finish().map_err(|error| self.failed(error))?;
        drop(writer);
        let Self { path, file, rows, .. } = self;
        file.as_file().sync_all().map_err(DataError::io("write", &path))?;
        file.persist(&path).map_err(|error| DataError::io("write", &path)(error.error))?;
        Ok(rows)
    }

    fn failed(&self, error: PolarsError) -> DataError {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner).take();
        let said = refused.unwrap_or_else(|| std::io::Error::other(error.to_string()));
        DataError::io("write", &self.path)(said)
    }
}

/// Temporary files that others may read as they may any file, once these are in their place.
pub(crate) fn temporary() -> tempfile::Builder<'static, 'static> {
    #[cfg_attr(not(unix), allow(unused_mut))]
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder
}

fn frame(columns: Vec<(String, TableColumn)>) -> PolarsResult<DataFrame> {
    let columns = columns.into_iter().map(column).collect::<PolarsResult<Vec<Column>>>()?;
    DataFrame::new_infer_height(columns)
}

fn column((name, values): (String, TableColumn)) -> PolarsResult<Column> {
    if let TableColumn::Vectors { values, width } = &values
        && !values.len().is_multiple_of(*width)
    {
        return Err(polars_err!(
            ShapeMismatch: "the column `{}` has {} numbers, which are no whole rows of {}",
            name, values.len(), width
        ));
    }
    let name = PlSmallStr::from_string(name);
    Ok(match values {
        TableColumn::Text(values) => Column::new(name, values),
        TableColumn::TextIfAny(values) => Column::new(name, values),
        TableColumn::Whole(values) => Column::new(name, values),
        TableColumn::WholeIfAny(values) => Column::new(name, values),
        TableColumn::Number(values) => Column::new(name, values),
        TableColumn::Exact(values) => Column::new(name, values),
        TableColumn::ExactIfAny(values) => Column::new(name, values),
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
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(from: i64) -> Vec<(String, TableColumn)> {
        let rows = from..from + 3;
        let columns = [
            (
                "series",
                TableColumn::Text(rows.clone().map(|row| format!("s{}", row % 2)).collect()),
            ),
            ("start", TableColumn::Time(rows.clone().map(|row| row * 60_000_000).collect())),
            ("step", TableColumn::Whole(rows.clone().collect())),
            ("p", TableColumn::Number(rows.clone().map(|row| row as f32 / 3.0).collect())),
            (
                "embedding",
                TableColumn::Vectors {
                    values: rows.flat_map(|r| [r as f32, -0.5]).collect(),
                    width: 2,
                },
            ),
        ];
        columns.map(|(name, column)| (name.to_owned(), column)).into()
    }

    #[test]
    fn rows_come_back_in_their_order_and_types() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.parquet");
        let mut table = TableWriter::create(&path).unwrap();
        table.write(batch(0)).unwrap();
        table.write(batch(3)).unwrap();
        assert_eq!(table.finish().unwrap(), 6);
        let frame = ParquetReader::new(File::open(&path).unwrap()).finish().unwrap();
        assert_eq!(frame.shape(), (6, 5));
        let text = frame.column("series").unwrap().str().unwrap();
        assert_eq!(text.iter().flatten().collect::<Vec<_>>(), ["s0", "s1", "s0", "s1", "s0", "s1"]);
        let start = frame.column("start").unwrap();
        let utc = DataType::Datetime(TimeUnit::Microseconds, Some(TimeZone::UTC));
        assert_eq!(start.dtype(), &utc);
        let start = start.datetime().unwrap().physical().iter().flatten().collect::<Vec<_>>();
        assert_eq!(start, [0, 1, 2, 3, 4, 5].map(|minute| minute * 60_000_000));
        let p = frame.column("p").unwrap().f32().unwrap();
        assert_eq!(p.get(5), Some(5.0 / 3.0));
        let lists = frame.column("embedding").unwrap().list().unwrap();
        let last = lists.get_as_series(5).unwrap();
        assert_eq!(last.f32().unwrap().iter().flatten().collect::<Vec<_>>(), [5.0, -0.5]);
    }

    #[test]
    fn nothing_is_left_of_a_table_that_was_not_finished() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.parquet");
        let mut table = TableWriter::create(&path).unwrap();
        table.write(batch(0)).unwrap();
        drop(table);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert_eq!(TableWriter::create(&path).unwrap().finish().unwrap(), 0);
        assert!(!path.exists(), "a table without a batch is no file");
        assert!(TableWriter::create(&folder.path().join("no/t.parquet")).is_err());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_full_disk_is_told_as_such_and_is_no_bad_input() {
        let refused = Arc::new(Mutex::new(None));
        let file = File::options().write(true).open("/dev/full").unwrap();
        let mut noting = Noting { file, refused: Arc::clone(&refused) };
        assert!(noting.write(&[0; 64]).is_err());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.parquet");
        let table = TableWriter { refused, ..TableWriter::create(&path).unwrap() };
        let error = table.failed(polars_err!(ComputeError: "out of specification"));
        assert!(!error.is_bad_input());
        assert!(
            error
                .to_string()
                .ends_with("t.parquet\n  free some space, or name a place on another disk"),
            "{error}"
        );
    }

    #[test]
    fn columns_of_another_type_or_length_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut table = TableWriter::create(&folder.path().join("t.parquet")).unwrap();
        table.write(batch(0)).unwrap();
        let mut other = batch(0);
        other[1].1 = TableColumn::Whole(vec![1, 2, 3]);
        assert!(table.write(other).is_err());
        let mut short = batch(0);
        short[2].1 = TableColumn::Whole(vec![1]);
        assert!(table.write(short).is_err());
        // Three rows of two, and one number more.
        for (count, width) in [(7, 2), (3, 0)] {
            let mut odd = batch(0);
            odd[4].1 = TableColumn::Vectors { values: vec![0.5; count], width };
            let DataError::Io { source, .. } = table.write(odd).unwrap_err() else { panic!() };
            let expected =
                format!("`embedding` has {count} numbers, which are no whole rows of {width}");
            assert!(source.to_string().contains(&expected), "{source}");
        }
    }
}
