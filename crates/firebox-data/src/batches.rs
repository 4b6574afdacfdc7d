//! An Arrow file, of which some record batches at a time are decoded, on any thread.
//!
//! Polars itself decodes such a file as a whole. Nested values are left to it.

use std::io::Cursor;
use std::ops::Range;

use polars::prelude::{ArrowDataType, DataFrame};
use polars_arrow::io::ipc::read::{
    Dictionaries, FileMetadata, get_row_count_from_blocks, read_batch, read_file_dictionaries,
    read_file_metadata,
};

use crate::mapping::Mapping;
use crate::schema::Declared;

/// What the end of a file says of its batches.
pub(crate) struct Batches {
    about: FileMetadata,
    /// The values that columns of its batches name by their numbers, if there are such columns in use.
    dictionaries: Dictionaries,
}

impl Batches {
    /// Reads the end of a file.
    pub(crate) fn open(file: &[u8]) -> Option<Self> {
        let about = read_file_metadata(&mut Cursor::new(file)).ok()?;
        // Of two columns of one name, polars keeps one.
        let alike = about.schema.len() == about.ipc_schema.fields.len();
        alike.then(|| Self { about, dictionaries: Dictionaries::default() })
    }

    /// The same with the dictionaries of columns in use, if any has one; none if one of these columns is none that is
    /// decoded here.
    pub(crate) fn of_columns(mut self, file: &[u8], mapping: &Mapping) -> Option<Self> {
        let can = |kind: &ArrowDataType| match kind {
            ArrowDataType::Dictionary(_, values, _) => is_text(values),
            kind => is_plain(kind),
        };
        mapping.used().all(|name| self.kind(name).is_some_and(can)).then_some(())?;
        let has_one = |name| matches!(self.kind(name), Some(ArrowDataType::Dictionary(..)));
        if mapping.used().any(has_one) {
            let (mut file, scratch) = (Cursor::new(file), &mut vec![]);
            let read = read_file_dictionaries(&mut file, &self.about, scratch, Default::default());
            self.dictionaries = read.ok()?;
        }
        Some(self)
    }

    /// The type of a column.
    fn kind(&self, name: &str) -> Option<&ArrowDataType> {
        self.about.schema.get(name).map(|field| &field.dtype)
    }

    /// The columns of the file.
    pub(crate) fn declared(&self) -> Declared {
        Declared::of(&self.about.schema)
    }

    /// Rows of each batch.
    pub(crate) fn rows(&self, file: &[u8]) -> Option<Vec<usize>> {
        let rows = |block| {
            let rows =
                get_row_count_from_blocks(&mut Cursor::new(file), std::slice::from_ref(block));
            usize::try_from(rows.ok()?).ok()
        };
        self.about.blocks.iter().map(rows).collect()
    }

    /// Where in the file some batches lie.
    pub(crate) fn bytes(&self, batches: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        self.about.blocks[batches].iter().filter_map(|block| {
            let begin = usize::try_from(block.offset).ok()?;
            let length = i64::from(block.meta_data_length).checked_add(block.body_length)?;
            Some(begin..begin.checked_add(usize::try_from(length).ok()?)?)
        })
    }

    /// The columns in use of some batches.
    pub(crate) fn read(
        &self,
        file: &[u8],
        batches: Range<usize>,
        mapping: &Mapping,
    ) -> Option<DataFrame> {
        let Self { about, dictionaries } = self;
        let mut used: Vec<usize> =
            mapping.used().map(|name| about.schema.index_of(name)).collect::<Option<_>>()?;
        // In the order of the file, and each once.
        used.sort_unstable();
        let mut scratch = [vec![], vec![]];
        let mut all: Option<DataFrame> = None;
        for batch in batches {
            let [message, data] = &mut scratch;
            let mut file = Cursor::new(file);
            let read = read_batch(
                &mut file,
                dictionaries,
                about,
                Some(&used),
                None,
                batch,
                false,
                message,
                data,
                Default::default(),
            );
            let frame = DataFrame::from(read.ok()?);
            match &mut all {
                Some(all) => {
                    all.vstack_mut_owned(frame).ok()?;
                }
                None => all = Some(frame),
            }
        }
        all
    }
}

/// Types whose values stand in a batch as they are.
fn is_plain(kind: &ArrowDataType) -> bool {
    use ArrowDataType as A;
    matches!(
        kind,
        A::Boolean
            | A::Float32
            | A::Float64
            | A::Int8
            | A::Int16
            | A::Int32
            | A::Int64
            | A::UInt8
            | A::UInt16
            | A::UInt32
            | A::UInt64
            | A::Date32
            | A::Timestamp(..)
            | A::Decimal(..)
    ) || is_text(kind)
}

fn is_text(kind: &ArrowDataType) -> bool {
    use ArrowDataType as A;
    matches!(kind, A::Utf8 | A::LargeUtf8 | A::Utf8View)
}
