//! The columns of Parquet and Arrow files as the files declare them, before polars takes any.
//!
//! Polars panics on types that it was built without, whether a column is asked for or not; so
//! columns of other types are found here, and left out or refused.

use std::fs::File;
use std::path::Path;

use firebox_core::{count, quoted};
use polars::prelude::*;
use polars_arrow::io::ipc::read::read_file_metadata;

use crate::{DataError, Format};

/// The names of a file's columns, and their types as far as polars has them.
pub(crate) struct Declared {
    pub(crate) names: Vec<String>,
    types: Vec<Result<DataType, String>>,
}

impl Declared {
    /// Reads the schema of a Parquet or Arrow file.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or two columns have one name.
    pub(crate) fn read(path: &Path, format: Format) -> Result<Self, DataError> {
        let mut file = File::open(path).map_err(DataError::io("open", path))?;
        let malformed = |error: PolarsError| DataError::malformed(path, format, error.to_string());
        if format != Format::Arrow {
            let schema = ParquetReader::new(file).schema().map_err(malformed)?;
            return Ok(Self::of(&schema));
        }
        let about = read_file_metadata(&mut file).map_err(malformed)?;
        let declared = Self::of(&about.schema);
        // Polars keeps one of those that are called alike, and gives up over the others.
        let (columns, names) = (about.ipc_schema.fields.len(), &declared.names);
        if columns > names.len() {
            let problem = format!(
                "its {columns} columns have {} between them ({}): rename those that are called alike",
                count(names.len() as u64, "name"),
                quoted(names, 12)
            );
            return Err(DataError::malformed(path, format, problem));
        }
        Ok(declared)
    }

    /// What a schema declares.
    pub(crate) fn of(schema: &ArrowSchema) -> Self {
        let kind = |field: &ArrowField| match can_be_read(&field.dtype) {
            true => Ok(DataType::from_arrow_field(field)),
            false => Err(name(&field.dtype)),
        };
        Self {
            names: schema.iter_names().map(ToString::to_string).collect(),
            types: schema.iter_values().map(kind).collect(),
        }
    }

    /// Whether polars can take every column.
    pub(crate) fn all_can_be_read(&self) -> bool {
        self.types.iter().all(Result::is_ok)
    }

    /// The type of a column; `Err` holds the name of one that cannot be read.
    pub(crate) fn kind(&self, column: &str) -> Option<Result<&DataType, &str>> {
        let place = self.names.iter().position(|name| name == column)?;
        Some(self.types[place].as_ref().map_err(String::as_str))
    }
}

fn can_be_read(kind: &ArrowDataType) -> bool {
    use ArrowDataType as A;
    match kind {
        A::Null | A::Boolean | A::Float32 | A::Float64 => true,
        A::Int8 | A::Int16 | A::Int32 | A::Int64 => true,
        A::UInt8 | A::UInt16 | A::UInt32 | A::UInt64 => true,
        A::Date32 | A::Date64 | A::Time32(_) | A::Time64(_) | A::Duration(_) => true,
        A::Timestamp(_, zone) => TimeZone::opt_try_new(zone.clone()).is_ok(),
        A::Utf8 | A::LargeUtf8 | A::Utf8View => true,
        A::Binary | A::LargeBinary | A::BinaryView => true,
        // Numbers of more digits do not fit what polars holds decimals in.
        A::Decimal(digits, scale) | A::Decimal32(digits, scale) | A::Decimal64(digits, scale) => {
            (1..=38).contains(digits) && scale <= digits
        }
        A::List(field) | A::LargeList(field) => can_be_read(&field.dtype),
        A::Struct(fields) => fields.iter().all(|field| can_be_read(&field.dtype)),
        A::Dictionary(_, values, _) => can_be_read(values),
        _ => false,
    }
}

/// The type in the words of its file's format.
fn name(kind: &ArrowDataType) -> String {
    use ArrowDataType as A;
    match kind {
        A::Decimal(digits, scale) | A::Decimal32(digits, scale) | A::Decimal64(digits, scale) => {
            format!("decimal({digits}, {scale})")
        }
        A::Decimal256(digits, scale) => format!("decimal256({digits}, {scale})"),
        A::Float16 => "float16".to_owned(),
        A::List(field) | A::LargeList(field) => format!("lists of {}", name(&field.dtype)),
        A::FixedSizeList(field, size) => format!("lists of {size} of {}", name(&field.dtype)),
        A::FixedSizeBinary(size) => format!("binary values of {size} bytes"),
        A::Interval(_) => "intervals".to_owned(),
        A::Union(_) => "unions".to_owned(),
        other => {
            let text = format!("{other:?}");
            text.split(['(', '{']).next().unwrap_or(&text).trim().to_lowercase()
        }
    }
}
