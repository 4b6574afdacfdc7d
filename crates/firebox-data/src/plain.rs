//! Arrays of the store: plain `.npy` files, written from their beginning to their end and mapped.
//!
//! Files that users bring are read by [`npy`](crate::npy), which accepts far more.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::marker::PhantomData;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytemuck::Pod;
use firebox_cache::{Damage, FileRecord, MappedFile};
use firebox_core::Backing;

use crate::DataError;

/// Bytes before the numbers: a multiple of 64, as NumPy aligns them.
const HEADER: usize = 128;
/// Writes below this size are gathered.
const BUFFER: usize = 1 << 18;
/// Bytes that are hashed between two looks at whether to stop.
const HASHED: usize = 16 << 20;

/// Numbers that the store holds.
pub(crate) trait Kind: Pod + Send + Sync {
    /// NumPy's letter and size.
    const NAME: &'static str;
}

impl Kind for f64 {
    const NAME: &'static str = "f8";
}

impl Kind for i64 {
    const NAME: &'static str = "i8";
}

impl Kind for u32 {
    const NAME: &'static str = "u4";
}

/// The header of version 1 of the format, in as many bytes for every shape.
fn header<T: Kind>(rows: usize, width: Option<usize>) -> [u8; HEADER] {
    let order = if cfg!(target_endian = "little") { '<' } else { '>' };
    let shape = width.map_or(format!("({rows},)"), |width| format!("({rows}, {width})"));
    let text =
        format!("{{'descr': '{order}{}', 'fortran_order': False, 'shape': {shape}, }}", T::NAME);
    let mut bytes = [b' '; HEADER];
    bytes[..8].copy_from_slice(b"\x93NUMPY\x01\x00");
    bytes[8..10].copy_from_slice(&((HEADER - 10) as u16).to_le_bytes());
    // Two numbers of 20 digits each leave room.
    bytes[10..10 + text.len()].copy_from_slice(text.as_bytes());
    bytes[HEADER - 1] = b'\n';
    bytes
}

/// An array that is being written.
pub(crate) struct Writer<T> {
    folder: PathBuf,
    name: &'static str,
    /// Numbers of a row; none for an array of one axis.
    width: Option<usize>,
    out: BufWriter<File>,
    numbers: usize,
    kind: PhantomData<T>,
}

impl<T: Kind> Writer<T> {
    pub(crate) fn create(
        folder: &Path,
        name: &'static str,
        width: Option<usize>,
    ) -> Result<Self, DataError> {
        let path = folder.join(name);
        let file = File::create_new(&path).map_err(DataError::io("write", &path))?;
        let out = BufWriter::with_capacity(BUFFER, file);
        let folder = folder.to_owned();
        let mut writer = Self { folder, name, width, out, numbers: 0, kind: PhantomData };
        writer.write(&[b' '; HEADER])?;
        Ok(writer)
    }

    pub(crate) fn push(&mut self, numbers: &[T]) -> Result<(), DataError> {
        self.numbers += numbers.len();
        self.write(bytemuck::cast_slice(numbers))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), DataError> {
        self.out.write_all(bytes).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: std::io::Error) -> DataError {
        DataError::io("write", &self.folder.join(self.name))(error)
    }

    /// How many were written.
    pub(crate) fn numbers(&self) -> usize {
        self.numbers
    }

    /// Bytes of the file.
    pub(crate) fn bytes(&self) -> usize {
        HEADER + self.numbers * size_of::<T>()
    }

    /// What was written until now.
    pub(crate) fn so_far(&mut self) -> Result<Arc<Mapped<T>>, DataError> {
        self.out.flush().map_err(|error| self.failed(error))?;
        // It grows, and is rewritten: no change of it is damage.
        let file = MappedFile::of_path(&self.folder.join(self.name));
        let file = file.map_err(|error| self.failed(error))?;
        if file.bytes().len() != self.bytes() {
            let (found, expected) = (file.bytes().len() as u64, self.bytes() as u64);
            return Err(self.failed(std::io::Error::other(Damage::Size { found, expected })));
        }
        Ok(Arc::new(Mapped { file, kind: PhantomData }))
    }

    /// Whether everything that was read of what was written was there.
    pub(crate) fn check(&self, read: &Mapped<T>) -> Result<(), DataError> {
        let path = self.folder.join(self.name);
        read.check().map_err(|said| DataError::io("read back", &path)(std::io::Error::other(said)))
    }

    /// Keeps these ranges of the numbers that were written, one behind the other.
    pub(crate) fn keep(
        &mut self,
        kept: &[Range<usize>],
        stop: &AtomicBool,
    ) -> Result<(), DataError> {
        self.rewrite(kept, stop, |part| Cow::Borrowed(part))?;
        let bytes = self.bytes() as u64;
        self.out.get_ref().set_len(bytes).map_err(|error| self.failed(error))
    }

    /// Puts another number in the place of each that was written.
    pub(crate) fn change(
        &mut self,
        stop: &AtomicBool,
        other: impl Fn(T) -> T,
    ) -> Result<(), DataError> {
        let all = 0..self.numbers;
        self.rewrite(std::slice::from_ref(&all), stop, |part| {
            part.iter().map(|number| other(*number)).collect()
        })
    }

    /// Writes these ranges of the numbers from the beginning on, as they are made of those that were written.
    fn rewrite(
        &mut self,
        ranges: &[Range<usize>],
        stop: &AtomicBool,
        made: impl for<'a> Fn(&'a [T]) -> Cow<'a, [T]>,
    ) -> Result<(), DataError> {
        let all = self.so_far()?;
        let begin = SeekFrom::Start(HEADER as u64);
        self.out.seek(begin).map_err(|error| self.failed(error))?;
        self.numbers = 0;
        for range in ranges {
            // Less than the buffer at once: nothing is written before it has been copied from the map.
            for part in all.all()[range.clone()].chunks(BUFFER / 2 / size_of::<T>()) {
                DataError::heed(stop)?;
                self.push(&made(part))?;
            }
        }
        self.check(&all)?;
        drop(all);
        self.out.flush().map_err(|error| self.failed(error))
    }

    /// Completes the file and waits until it is on the disk. `hashed` hears of each part of so many bytes that is hashed,
    /// and may end it.
    pub(crate) fn finish(
        mut self,
        hashed: &mut dyn FnMut(usize) -> Result<(), DataError>,
    ) -> Result<FileRecord, DataError> {
        hashed(0)?;
        let width = self.width.unwrap_or(1).max(1);
        let header = header::<T>(self.numbers / width, self.width);
        let mut complete = || {
            self.out.flush()?;
            let file = self.out.get_mut();
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&header)?;
            file.sync_all()
        };
        complete().map_err(|error| self.failed(error))?;
        let written = self.so_far()?;
        let bytes = written.file.bytes().len() as u64;
        let blake3 = checksum(written.file.bytes(), hashed)?;
        Ok(FileRecord { name: self.name.to_owned(), bytes, blake3 })
    }
}

/// The checksum of bytes. `hashed` hears of each part of so many of them.
fn checksum(
    bytes: &[u8],
    hashed: &mut dyn FnMut(usize) -> Result<(), DataError>,
) -> Result<String, DataError> {
    let mut hasher = blake3::Hasher::new();
    for part in bytes.chunks(HASHED) {
        hasher.update_rayon(part);
        hashed(part.len())?;
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// A mapped array.
#[derive(Debug)]
pub(crate) struct Mapped<T> {
    file: MappedFile,
    kind: PhantomData<T>,
}

impl<T: Kind> Mapped<T> {
    /// Maps an array of this shape, and compares its checksum until `verify` is true, if there is that.
    ///
    /// # Errors
    ///
    /// Says what is damaged.
    pub(crate) fn open(
        folder: &Path,
        record: &FileRecord,
        rows: usize,
        width: Option<usize>,
        verify: Option<&AtomicBool>,
    ) -> Result<Arc<Self>, String> {
        let name = &record.name;
        let damaged = |damage: Damage| format!("{name}: {damage}");
        let file = MappedFile::open(folder, record, false).map_err(damaged)?;
        if let Some(stop) = verify {
            let found = checksum(file.bytes(), &mut |_| DataError::heed(stop));
            if found.map_err(|stopped| stopped.to_string())? != record.blake3 {
                return Err(damaged(Damage::Checksum));
            }
        }
        let numbers = rows * width.unwrap_or(1);
        let found = file.bytes();
        if !found.starts_with(&header::<T>(rows, width))
            || found.len() != HEADER + numbers * size_of::<T>()
        {
            return Err(format!("{name} does not have the shape of its manifest"));
        }
        Ok(Arc::new(Self { file, kind: PhantomData }))
    }
}

impl<T: Kind> Backing<T> for Mapped<T> {
    fn all(&self) -> &[T] {
        let bytes = self.file.bytes().get(HEADER..).unwrap_or_default();
        // Maps begin with a page, and the numbers 128 bytes behind it.
        bytemuck::try_cast_slice(bytes).unwrap_or_default()
    }

    fn check(&self) -> Result<(), String> {
        use std::error::Error as _;
        self.file.check().map_err(|error| match error.source() {
            Some(source) => format!("{error} ({source})"),
            None => error.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_npy_files_and_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = Writer::<f64>::create(folder.path(), "a.npy", Some(3)).unwrap();
        let numbers: Vec<f64> = (0..60_000).map(f64::from).collect();
        numbers.chunks(7_001).for_each(|part| writer.push(part).unwrap());
        assert_eq!(writer.so_far().unwrap().all(), numbers);
        let never = AtomicBool::new(false);
        let mut hashed = 0;
        let mut hear = |bytes| {
            hashed += bytes;
            Ok(())
        };
        let record = writer.finish(&mut hear).unwrap();
        assert_eq!(hashed as u64, record.bytes);
        let bytes = std::fs::read(folder.path().join("a.npy")).unwrap();
        assert_eq!(crate::npy::header(&bytes).unwrap().shape, [20_000, 3]);
        let open = |record: &FileRecord, rows, width| {
            Mapped::<f64>::open(folder.path(), record, rows, width, Some(&never))
        };
        let mapped = open(&record, 20_000, Some(3)).unwrap();
        assert_eq!(mapped.all(), numbers);
        assert!(open(&record, 60_000, None).unwrap_err().contains("shape"));
        let wrong = FileRecord { blake3: "0".repeat(64), ..record };
        assert!(open(&wrong, 20_000, Some(3)).unwrap_err().contains("checksum"));
        let mut writer = Writer::<i64>::create(folder.path(), "b.npy", None).unwrap();
        let numbers: Vec<i64> = (0..200_000).collect();
        writer.push(&numbers).unwrap();
        let kept = [3..5, 7..120_000, 120_001..199_999];
        writer.keep(&kept, &never).unwrap();
        writer.push(&[-1]).unwrap();
        let expected: Vec<i64> = kept.into_iter().flatten().map(|n| n as i64).chain([-1]).collect();
        assert_eq!(writer.so_far().unwrap().all(), expected);
        writer.change(&never, |number| number * 3 + 1).unwrap();
        let expected: Vec<i64> = expected.into_iter().map(|number| number * 3 + 1).collect();
        assert_eq!(writer.so_far().unwrap().all(), expected);
        let record = writer.finish(&mut |_| Ok(())).unwrap();
        let kept = Mapped::<i64>::open(folder.path(), &record, expected.len(), None, Some(&never));
        let kept = kept.unwrap();
        assert_eq!(kept.all(), expected);
        // Most of it is gone: zeros instead of a signal, and an error.
        let file = File::options().write(true).open(folder.path().join("a.npy")).unwrap();
        file.set_len(4096).unwrap();
        assert_eq!(mapped.all()[59_999], 0.0);
        let said = mapped.check().unwrap_err();
        assert!(said.contains("changed while it was being read"), "{said}");
    }
}
