//! One shard: an Arrow IPC file of one record batch, written in one go and mapped into memory.
//!
//! Which records a shard holds is decided in `plan`; which shards make an entry, in `entry`.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, LargeListArray, RecordBatch, UInt32Array, make_array,
};
use arrow_buffer::{Buffer, MutableBuffer, OffsetBuffer, ScalarBuffer};
use arrow_data::ArrayData;
use arrow_ipc::reader::{FileDecoder, read_footer_length};
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use firebox_core::{Narrow, Storage};
use half::slice::HalfBitsSliceExt;

use crate::element::{self, Values};
use crate::error::{CacheError, Damage};
use crate::files::{FileRecord, Hashing, check_file};
use crate::guard::Guard;
use crate::hint::fetch;

/// Values are found at multiples of this many bytes, as Arrow recommends for wide instructions.
const ALIGNMENT: usize = 64;
/// Bytes before the footer's end: its length and Arrow's magic.
const TRAILER: usize = 10;

/// What all shards of an entry have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Steps of the longest window, and channels.
    pub(crate) shape: [usize; 2],
    /// Type of the values.
    pub(crate) storage: Storage,
    /// Whether each record is as long as its valid steps; all are padded to the longest else.
    pub(crate) is_packed: bool,
}

/// So many bytes of zeros, for the values of a shard. Arrow's own function panics where they are refused.
pub(crate) fn zeroed(bytes: usize, way_out: &'static str) -> Result<MutableBuffer, CacheError> {
    let refused = |_| CacheError::NoMemory { bytes, way_out };
    MutableBuffer::try_from_len_zeroed(bytes).map_err(refused)
}

/// What is stored beside the values of each record.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    pub(crate) length: Vec<u32>,
    pub(crate) label: Vec<Option<u32>>,
    pub(crate) window: Vec<u32>,
    pub(crate) version: Vec<u32>,
}

impl Layout {
    /// Values of a record.
    pub(crate) fn width(&self) -> usize {
        self.shape[0] * self.shape[1]
    }

    /// Bytes of a record on the disk, without the few kilobytes of each shard's own.
    pub(crate) fn record_bytes(&self) -> usize {
        let size = element::bytes(self.storage);
        // Length, label, window and version stand beside the values.
        self.width() * size + 4 * size_of::<u32>()
    }

    /// Where the values of packed records of these lengths begin, and where the last ends.
    fn starts(&self, lengths: &[u32]) -> impl Iterator<Item = i64> {
        let [_, channel] = self.shape;
        let ends = lengths.iter().scan(0, move |end, length| {
            *end += i64::from(*length) * channel as i64;
            Some(*end)
        });
        std::iter::once(0).chain(ends)
    }

    fn schema(&self) -> SchemaRef {
        let item = Arc::new(Field::new("item", element::data_type(self.storage), false));
        let list = match self.is_packed {
            true => DataType::LargeList(item),
            false => DataType::FixedSizeList(item, self.width() as i32),
        };
        let [time, channel] = self.shape;
        let about = HashMap::from([
            ("firebox.storage".to_owned(), element::name(self.storage).to_owned()),
            ("firebox.shape".to_owned(), format!("[{time}, {channel}]")),
        ]);
        Arc::new(Schema::new(vec![
            Field::new("values", list, false).with_metadata(about),
            Field::new("length", DataType::UInt32, false),
            Field::new("label", DataType::UInt32, true),
            Field::new("window", DataType::UInt32, false),
            Field::new("version", DataType::UInt32, false),
        ]))
    }

    /// A batch of records: `values` are those of one after the other, padded to the longest unless they are packed.
    pub(crate) fn batch(
        &self,
        values: MutableBuffer,
        columns: Columns,
    ) -> Result<RecordBatch, ArrowError> {
        let schema = self.schema();
        let items = ArrayData::builder(element::data_type(self.storage))
            .len(values.len() / element::bytes(self.storage))
            .add_buffer(values.into())
            .build()?;
        let items = make_array(items);
        let values: ArrayRef = match schema.field(0).data_type() {
            DataType::FixedSizeList(item, width) => {
                Arc::new(FixedSizeListArray::try_new(Arc::clone(item), *width, items, None)?)
            }
            DataType::LargeList(item) => {
                let starts = self.starts(&columns.length);
                let starts = OffsetBuffer::new(starts.collect::<Vec<i64>>().into());
                Arc::new(LargeListArray::try_new(Arc::clone(item), starts, items, None)?)
            }
            _ => return Err(ArrowError::SchemaError("values are lists".to_owned())),
        };
        let columns: Vec<ArrayRef> = vec![
            values,
            Arc::new(UInt32Array::from(columns.length)),
            Arc::new(UInt32Array::from(columns.label)),
            Arc::new(UInt32Array::from(columns.window)),
            Arc::new(UInt32Array::from(columns.version)),
        ];
        RecordBatch::try_new(schema, columns)
    }
}

/// Writes a shard and waits until it is on the disk.
pub(crate) fn write(path: &Path, batch: &RecordBatch) -> Result<FileRecord, CacheError> {
    let bytes = batch.get_array_memory_size() as u64;
    let io = |source| CacheError::unwritten(path, bytes, source);
    let file = File::create(path).map_err(CacheError::io("create", path))?;
    let options = IpcWriteOptions::try_new(ALIGNMENT, false, arrow_ipc::MetadataVersion::V5);
    // The file's content is hashed on its way; the large buffers pass the small one by.
    let encoded = options.and_then(|options| {
        let buffered = BufWriter::new(Hashing::new(&file));
        let schema = batch.schema();
        let mut writer = FileWriter::try_new_with_options(buffered, &schema, options)?;
        writer.write(batch)?;
        writer.finish()?;
        writer.into_inner()
    });
    let mut buffered = encoded.map_err(|source| match source {
        ArrowError::IoError(_, source) => io(source),
        source => CacheError::Encode { path: path.to_owned(), source },
    })?;
    buffered.flush().map_err(io)?;
    let hashing = buffered.into_inner().map_err(|error| io(error.into_error()))?;
    let record = hashing.finish(path);
    file.sync_all().map_err(io)?;
    Ok(record)
}

/// A shard mapped into memory. Its buffers point into the file.
#[derive(Clone, Debug)]
pub(crate) struct Shard {
    file: Arc<Guard>,
    /// Whether it is one of converted samples, which no run makes.
    is_converted: bool,
    width: usize,
    storage: Storage,
    values: Buffer,
    /// Where the values of each record begin, and where the last ends, if they are packed.
    starts: Option<ScalarBuffer<i64>>,
    length: ScalarBuffer<u32>,
    label: UInt32Array,
    window: ScalarBuffer<u32>,
    version: ScalarBuffer<u32>,
}

impl Shard {
    /// Maps a shard. `hash` says whether to read all of it and compare checksums, or only its size.
    pub(crate) fn open(
        folder: &Path,
        record: &FileRecord,
        layout: &Layout,
        rows: usize,
        hash: bool,
    ) -> Result<Self, Damage> {
        let file = check_file(folder, record, hash)?;
        let length = file.bytes().len();
        let start = NonNull::new(file.bytes().as_ptr().cast_mut())
            .ok_or_else(|| Damage::Content("the file is empty".to_owned()))?;
        let owner = Arc::clone(&file);
        // SAFETY: the map is `length` bytes long, is never written through, and lives as long as
        // the buffer, which owns it. Files in the store are replaced by renaming and never changed
        // in place, so the bytes stay what they were checked to be.
        let buffer = unsafe { Buffer::from_custom_allocation(start, length, owner) };
        let batch = decode(&buffer, layout, rows).map_err(|e| Damage::Content(e.to_string()))?;
        Ok(Self::of(&batch, layout, file))
    }

    fn of(batch: &RecordBatch, layout: &Layout, file: Arc<Guard>) -> Self {
        let lists = batch.column(0);
        let starts = lists.as_any().downcast_ref::<LargeListArray>();
        let starts = starts.map(|lists| lists.offsets().inner().clone());
        let values = lists.to_data().child_data()[0].clone();
        let column = |index: usize| UInt32Array::from(batch.column(index).to_data());
        let size = values.data_type().primitive_width().unwrap_or(0);
        let (offset, bytes) = (values.offset() * size, values.len() * size);
        Self {
            file,
            is_converted: false,
            width: layout.width(),
            storage: layout.storage,
            values: values.buffers()[0].slice_with_length(offset, bytes),
            starts,
            length: column(1).values().clone(),
            label: column(2),
            window: column(3).values().clone(),
            version: column(4).values().clone(),
        }
    }

    /// The same as one of converted samples.
    pub(crate) fn converted(self) -> Self {
        Self { is_converted: true, ..self }
    }

    /// Values of a record as they are stored: no byte is copied.
    pub(crate) fn values(&self, row: usize) -> Values<'_> {
        self.values_of(row, 1)
    }

    /// Values of records that lie one behind the other.
    pub(crate) fn values_of(&self, row: usize, rows: usize) -> Values<'_> {
        self.numbers(self.start(row)..self.start(row + rows))
    }

    /// The place of a record's first value among those of all.
    pub(crate) fn start(&self, row: usize) -> usize {
        self.starts.as_ref().map_or(row * self.width, |starts| starts[row] as usize)
    }

    /// Whether each record is as long as its valid steps.
    pub(crate) fn is_packed(&self) -> bool {
        self.starts.is_some()
    }

    /// Values by their places among those of all records.
    fn numbers(&self, range: Range<usize>) -> Values<'_> {
        match self.storage {
            Storage::F32 => Values::F32(&self.values.typed_data()[range]),
            Storage::F16 => Values::F16(&self.values.typed_data()[range]),
            Storage::Bf16 => {
                Values::Bf16(self.values.typed_data::<u16>()[range].reinterpret_cast())
            }
        }
    }

    /// The bytes of records that lie one behind the other.
    pub(crate) fn stored(&self, row: usize, rows: usize) -> &[u8] {
        let size = element::bytes(self.storage);
        &self.values[self.start(row) * size..self.start(row + rows) * size]
    }

    /// Tells the system that these bytes of the file are read soon.
    fn will_need_bytes(&self, bytes: &[u8]) {
        let offset = bytes.as_ptr() as usize - self.file.bytes().as_ptr() as usize;
        self.file.will_need(offset, bytes.len());
    }

    /// Whether what was read so far was there.
    ///
    /// # Errors
    ///
    /// When the file has shrunk or cannot be read any more.
    pub(crate) fn check(&self) -> Result<(), CacheError> {
        let checked = self.file.check();
        if self.is_converted { checked.map_err(CacheError::of_samples) } else { checked }
    }

    /// Tells the system that these records are read soon.
    pub(crate) fn will_need(&self, row: usize, rows: usize) {
        self.will_need_bytes(self.stored(row, rows));
    }

    /// Asks the processor for a record and for what [`sample`](Self::sample) says of it.
    pub(crate) fn fetch(&self, row: usize) {
        fetch(self.stored(row, 1));
        fetch(&self.length[row..=row]);
        fetch(&self.label.values()[row..=row]);
    }

    /// Length and label of a record.
    pub(crate) fn sample(&self, row: usize) -> (u32, Option<u32>) {
        (self.length[row], self.label.is_valid(row).then(|| self.label.value(row)))
    }

    /// Length, label, window and version of a record.
    pub(crate) fn about(&self, row: usize) -> (u32, Option<u32>, u32, u32) {
        let (length, label) = self.sample(row);
        (length, label, self.window[row], self.version[row])
    }
}

/// Values by their places among those of all records, padding included if there is any.
impl Narrow for Shard {
    fn count(&self) -> usize {
        self.start(self.length.len())
    }

    fn bytes_each(&self) -> usize {
        element::bytes(self.storage)
    }

    fn read(&self, start: usize, out: &mut [f32]) {
        self.numbers(start..start + out.len()).write(out);
    }

    fn check(&self) -> Result<(), String> {
        use std::error::Error as _;
        Self::check(self).map_err(|error| match error.source() {
            Some(source) => format!("{error} ({source})"),
            None => error.to_string(),
        })
    }

    fn will_need(&self, range: Range<usize>) {
        let size = element::bytes(self.storage);
        self.will_need_bytes(&self.values[range.start * size..range.end * size]);
    }
}

/// The one batch of an Arrow IPC file, with this many rows. Its buffers are parts of `file`.
fn decode(file: &Buffer, layout: &Layout, rows: usize) -> Result<RecordBatch, ArrowError> {
    let trailer = file.len().checked_sub(TRAILER).ok_or_else(|| broken("the file is too short"))?;
    let mut end = [0; TRAILER];
    end.copy_from_slice(&file[trailer..]);
    let footer = trailer
        .checked_sub(read_footer_length(end)?)
        .ok_or_else(|| broken("the footer is longer than the file"))?;
    let footer = arrow_ipc::root_as_footer(&file[footer..trailer])
        .map_err(|error| broken(&format!("the footer is broken: {error}")))?;
    let schema = footer.schema().ok_or_else(|| broken("the footer has no schema"))?;
    let schema = Arc::new(arrow_ipc::convert::try_fb_to_schema(schema)?);
    if schema != layout.schema() {
        return Err(broken("the columns are not those of a shard"));
    }
    let block = match footer.recordBatches() {
        Some(blocks) if blocks.len() == 1 => blocks.get(0),
        _ => return Err(broken("a shard has one record batch")),
    };
    let start = usize::try_from(block.offset()).map_err(|_| broken("a negative offset"))?;
    let head = usize::try_from(block.metaDataLength()).map_err(|_| broken("a negative length"))?;
    let length = usize::try_from(block.bodyLength())
        .ok()
        .and_then(|body| body.checked_add(head))
        .filter(|length| start.checked_add(*length).is_some_and(|end| end <= file.len()))
        .ok_or_else(|| broken("the record batch ends behind the file"))?;
    let block_bytes = file.slice_with_length(start, length);
    check_lengths(&block_bytes, layout, rows, length - head)?;
    let batch = FileDecoder::new(schema, footer.version())
        .with_require_alignment(true)
        .read_record_batch(block, &block_bytes)?
        .ok_or_else(|| broken("the record batch is empty"))?;
    if layout.is_packed {
        check_starts(&batch, layout)?;
    }
    Ok(batch)
}

/// Packed records are read by where they begin, and by how long they are said to be: both must say the same.
fn check_starts(batch: &RecordBatch, layout: &Layout) -> Result<(), ArrowError> {
    let lists = batch.column(0).as_any().downcast_ref::<LargeListArray>();
    let lengths = batch.column(1).as_any().downcast_ref::<UInt32Array>();
    let (Some(lists), Some(lengths)) = (lists, lengths) else {
        return Err(broken("the columns are not those of a shard"));
    };
    let lengths = lengths.values();
    let are_short = lengths.iter().all(|length| *length as usize <= layout.shape[0]);
    let starts = lists.offsets();
    let is_whole = starts.iter().next_back() == Some(&(lists.values().len() as i64));
    if are_short && is_whole && layout.starts(lengths).eq(starts.iter().copied()) {
        return Ok(());
    }
    Err(broken("the lengths of the records are not those of their values"))
}

fn broken(what: &str) -> ArrowError {
    ArrowError::ParseError(what.to_owned())
}

/// Arrow takes the lengths and places that a batch states as they are, and panics where they are
/// wrong; `body` is the number of bytes that they may lie in.
fn check_lengths(
    block: &[u8],
    layout: &Layout,
    rows: usize,
    body: usize,
) -> Result<(), ArrowError> {
    // A message begins with a mark and its length, four bytes each.
    let message = block.get(8..).ok_or_else(|| broken("the record batch is too short"))?;
    let message = arrow_ipc::root_as_message(message)
        .map_err(|error| broken(&format!("the record batch is broken: {error}")))?;
    let batch = message.header_as_record_batch();
    let nodes = batch.and_then(|batch| batch.nodes());
    let found = nodes.iter().flatten().map(|node| node.length());
    let records = rows as i64;
    let most = records * layout.width() as i64;
    let found: Vec<i64> = found.collect();
    let are_items =
        |items: &i64| if layout.is_packed { (0..=most).contains(items) } else { *items == most };
    let fits = match found[..] {
        [lists, items, ref columns @ ..] => {
            lists == records && are_items(&items) && columns == [records; 4]
        }
        _ => false,
    };
    if !fits {
        return Err(broken(&format!("the record batch does not hold {rows} records")));
    }
    let within = |place: &arrow_ipc::Buffer| {
        let end = place.offset().checked_add(place.length());
        place.offset() >= 0
            && place.length() >= 0
            && end.is_some_and(|end| end as u64 <= body as u64)
    };
    let buffers = match batch.and_then(|batch| batch.buffers()) {
        Some(buffers) if buffers.iter().all(within) => buffers,
        _ => return Err(broken("a column ends behind the record batch")),
    };
    if layout.is_packed {
        // Behind the bits that say which lists there are.
        let starts = (buffers.len() > 1).then(|| buffers.get(1));
        let size = size_of::<i64>();
        let are_starts = |place: &arrow_ipc::Buffer| {
            let address = block.as_ptr() as usize + block.len() - body + place.offset() as usize;
            address.is_multiple_of(size) && place.length() == (records + 1) * size as i64
        };
        if !starts.is_some_and(are_starts) {
            return Err(broken("where the records begin is not where it is said to be"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_read_without_copying_and_its_values_are_aligned() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shard-00000.arrow");
        let layout = Layout { shape: [7, 3], storage: Storage::F32, is_packed: false };
        let numbers: Vec<f32> = (0..42).map(|i| i as f32).collect();
        let mut values = MutableBuffer::new(0);
        values.extend_from_slice(&numbers);
        let columns = Columns {
            length: vec![7, 5],
            label: vec![None, Some(3)],
            window: vec![0, 1],
            version: vec![0, 2],
        };
        let record = write(&path, &layout.batch(values, columns).unwrap()).unwrap();
        assert_eq!(record.bytes, std::fs::metadata(&path).unwrap().len());
        let hash = blake3::hash(&std::fs::read(&path).unwrap());
        assert_eq!(record.blake3, hash.to_hex().to_string());

        let shard = Shard::open(folder.path(), &record, &layout, 2, true).unwrap();
        let range = shard.file.bytes().as_ptr_range();
        assert!(range.contains(&shard.values.as_ptr()));
        assert_eq!(shard.values.as_ptr() as usize % ALIGNMENT, 0);
        assert_eq!(shard.values(1), Values::F32(&numbers[21..]));
        assert_eq!(shard.about(0), (7, None, 0, 0));
        assert_eq!(shard.about(1), (5, Some(3), 1, 2));
    }

    #[test]
    fn memory_for_values_that_is_refused_is_an_error_with_a_way_out() {
        assert_eq!(zeroed(12, "").unwrap().as_slice(), [0; 12]);
        // More than there are addresses, and more than any memory may be.
        for bytes in [1 << 60, usize::MAX] {
            let said = zeroed(bytes, "take less").unwrap_err().to_string();
            assert!(
                said.starts_with(&bytes.to_string()) && said.ends_with("\n  take less"),
                "{said}"
            );
        }
    }

    #[test]
    fn packed_records_take_no_padding_and_are_found_where_they_begin() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout { shape: [7, 3], storage: Storage::F32, is_packed: true };
        let numbers: Vec<f32> = (0..30).map(|i| i as f32).collect();
        let mut values = MutableBuffer::new(0);
        values.extend_from_slice(&numbers);
        let columns = || Columns {
            length: vec![2, 7, 1],
            label: vec![None, Some(3), None],
            window: vec![0, 1, 2],
            version: vec![0; 3],
        };
        let batch = layout.batch(values, columns()).unwrap();
        let record = write(&folder.path().join("a"), &batch).unwrap();
        let open = |layout| Shard::open(folder.path(), &record, &layout, 3, true);
        let shard = open(layout).unwrap();
        assert_eq!(shard.values.as_ptr() as usize % ALIGNMENT, 0);
        let places = [0..6, 6..27, 27..30];
        for (row, place) in places.into_iter().enumerate() {
            assert_eq!(
                (shard.start(row), shard.values(row)),
                (place.start, Values::F32(&numbers[place]))
            );
        }
        assert_eq!((shard.is_packed(), shard.count()), (true, 30));
        assert_eq!(shard.sample(1), (7, Some(3)));
        // Records of which one is longer than the longest, and those of another layout.
        assert!(open(Layout { shape: [6, 3], ..layout }).is_err());
        assert!(open(Layout { is_packed: false, ..layout }).is_err());
        // As many values as are said.
        let mut less = MutableBuffer::new(0);
        less.extend_from_slice(&numbers[3..]);
        assert!(layout.batch(less, columns()).is_err());
    }

    #[test]
    fn broken_files_are_refused_without_a_panic() {
        for is_packed in [false, true] {
            refuse_broken(is_packed);
        }
    }

    fn refuse_broken(is_packed: bool) {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout { shape: [4, 1], storage: Storage::F16, is_packed };
        let mut values = MutableBuffer::new(0);
        values.extend_from_slice(&[half::f16::ONE; 8]);
        let columns = Columns {
            length: vec![4; 2],
            label: vec![None; 2],
            window: vec![0, 1],
            version: vec![0; 2],
        };
        let path = folder.path().join("good");
        write(&path, &layout.batch(values, columns).unwrap()).unwrap();
        let whole = std::fs::read(&path).unwrap();
        // Every cut and every flipped byte, with a checksum that fits: an error or some shard.
        let check = |bytes: &[u8]| {
            let name = "bad".to_owned();
            std::fs::write(folder.path().join(&name), bytes).unwrap();
            let blake3 = blake3::hash(bytes).to_hex().to_string();
            let record = FileRecord { name, bytes: bytes.len() as u64, blake3 };
            Shard::open(folder.path(), &record, &layout, 2, true)
        };
        assert_eq!(check(&whole).unwrap().about(1), (4, None, 1, 0));
        for cut in 0..whole.len() {
            assert!(check(&whole[..cut]).is_err(), "cut at {cut}");
        }
        for index in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[index] ^= 0xff;
            // What is read at all lies within the file.
            if let Ok(shard) = check(&bytes) {
                let all: usize = (0..2).map(|row| shard.values(row).len()).sum();
                assert!(all <= 8, "byte {index}");
            }
        }
    }
}
