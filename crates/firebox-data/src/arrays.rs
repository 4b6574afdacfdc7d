//! Samples in folders of `.npy` arrays: what each file holds, and reading one sample of it.
//!
//! For arrays that are converted once and not kept in memory as series are. An array is one sample,
//! `[time]` or `[time, channel]`, or several, `[sample, time, channel]`.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use firebox_core::Storage;
use half::f16;

use crate::npy::{Header, Kind, header};
use crate::{DataError, Format};

/// Bytes that hold the header of any array of a sensible shape.
const LONGEST_HEADER: u64 = 1 << 16;

/// A `.npy` file, looked at and not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayFile {
    /// Where it is.
    pub path: PathBuf,
    /// Samples: 1 for an array of one or two axes.
    pub samples: usize,
    /// Steps of each sample.
    pub steps: usize,
    /// Channels of a step.
    pub channels: usize,
    /// Its size in bytes.
    pub bytes: u64,
    header: Header,
}

impl ArrayFile {
    /// Reads the header of an array and compares what it says with the file's size.
    ///
    /// # Errors
    ///
    /// When it cannot be read, is no array, is cut off, has more than three axes, or is in Fortran order
    /// or in big-endian order.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let malformed = |problem: String| DataError::malformed(path, Format::Npy, problem);
        let file = File::open(path).map_err(DataError::io("open", path))?;
        let bytes = file.metadata().map_err(DataError::io("read", path))?.len();
        let mut start = Vec::new();
        file.take(LONGEST_HEADER).read_to_end(&mut start).map_err(DataError::io("read", path))?;
        let header = header(&start).map_err(malformed)?;
        if header.big_endian || (header.fortran && header.shape.len() > 1) {
            let problem = "it is stored in Fortran or big-endian order: save `numpy.ascontiguousarray(x, dtype='<f4')`";
            return Err(malformed(problem.to_owned()));
        }
        let (samples, steps, channels) = match *header.shape {
            [steps] => (1, steps, 1),
            [steps, channels] => (1, steps, channels),
            [samples, steps, channels] => (samples, steps, channels),
            ref shape => {
                let axes = shape.len();
                return Err(malformed(format!(
                    "its shape {shape:?} has {axes} axes: arrays are [time], [time, channel] or [sample, time, channel]"
                )));
            }
        };
        let array = Self { path: path.to_owned(), samples, steps, channels, bytes, header };
        let values = array.sample_bytes().checked_mul(samples as u64);
        let wanted = values.and_then(|values| values.checked_add(array.header.start as u64));
        match wanted {
            Some(wanted) if wanted == bytes => Ok(array),
            Some(wanted) if wanted > bytes => {
                Err(malformed(format!("it is cut off: {bytes} of {wanted} bytes")))
            }
            Some(wanted) => Err(malformed(format!(
                "{} bytes follow the last value: save one array in each file",
                bytes - wanted
            ))),
            None => {
                Err(malformed(format!("its shape {:?} is beyond any memory", array.header.shape)))
            }
        }
    }

    /// The smallest type that holds its numbers; those of float64 are rounded to it. None where they are whole numbers,
    /// which samples do not hold.
    pub fn storage(&self) -> Option<Storage> {
        match (self.header.element.kind, self.header.element.bytes) {
            (Kind::Float, 2) => Some(Storage::F16),
            (Kind::Float, _) => Some(Storage::F32),
            _ => None,
        }
    }

    /// The type of its numbers as NumPy names it.
    pub fn type_name(&self) -> &'static str {
        self.header.element.name()
    }

    /// Length of each axis, as it is stored.
    pub fn axes(&self) -> &[usize] {
        &self.header.shape
    }

    fn sample_bytes(&self) -> u64 {
        [self.steps, self.channels, self.header.element.bytes]
            .into_iter()
            .try_fold(1u64, |product, factor| product.checked_mul(factor as u64))
            .unwrap_or(u64::MAX)
    }

    /// Appends the first `steps` steps of a sample.
    ///
    /// # Shapes
    ///
    /// - `out`: `[steps, channel]` more, row-major
    ///
    /// # Errors
    ///
    /// When it holds whole numbers, and when the file cannot be read, or has changed since it was opened.
    pub fn read(&self, sample: usize, steps: usize, out: &mut Vec<f32>) -> Result<(), DataError> {
        let path = &self.path;
        if self.storage().is_none() {
            let found = self.type_name();
            let problem = format!("it holds {found}, and samples hold floating-point numbers");
            return Err(DataError::malformed(path, Format::Npy, problem));
        }
        let mut file = File::open(path).map_err(DataError::io("open", path))?;
        let found = file.metadata().map_err(DataError::io("read", path))?.len();
        if found != self.bytes {
            let problem =
                format!("it changed while it was read: {found} bytes, {} before", self.bytes);
            return Err(DataError::malformed(path, Format::Npy, problem));
        }
        let start = self.header.start as u64 + sample as u64 * self.sample_bytes();
        file.seek(SeekFrom::Start(start)).map_err(DataError::io("read", path))?;
        let mut bytes = vec![0; steps.min(self.steps) * self.channels * self.header.element.bytes];
        file.read_exact(&mut bytes).map_err(DataError::io("read", path))?;
        match self.header.element.bytes {
            2 => {
                out.extend(bytes.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()))
            }
            4 => out.extend(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b))),
            _ => out.extend(bytes.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b) as f32)),
        }
        Ok(())
    }
}

fn is_array(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("npy"))
}

/// Whether a folder has an array, however deep.
fn holds_array(folder: &Path) -> bool {
    let Ok(entries) = fs::read_dir(folder) else { return false };
    // Links are not followed, which may lead round in circles.
    entries.flatten().any(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => holds_array(&entry.path()),
        _ => is_array(&entry.path()),
    })
}

/// The `.npy` files of a folder in the order of their names, and those of the folders in it, each with
/// the name of its folder; hidden ones are left out.
///
/// # Errors
///
/// When a folder cannot be read, or there is no array.
pub fn array_paths(folder: &Path) -> Result<Vec<(PathBuf, Option<String>)>, DataError> {
    let list = |folder: &Path| -> Result<Vec<PathBuf>, DataError> {
        let mut paths = Vec::new();
        for entry in fs::read_dir(folder).map_err(DataError::io("read the folder", folder))? {
            let entry = entry.map_err(DataError::io("read the folder", folder))?;
            if !entry.file_name().to_string_lossy().starts_with('.') {
                paths.push(entry.path());
            }
        }
        paths.sort();
        Ok(paths)
    };
    let mut found = Vec::new();
    for path in list(folder)? {
        if path.is_dir() {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            let inside = list(&path)?;
            if let Some(nested) = inside.iter().find(|path| holds_array(path)) {
                return Err(DataError::NestedFolder { path: nested.clone() });
            }
            let arrays = inside.into_iter().filter(|path| is_array(path));
            found.extend(arrays.map(|array| (array, name.clone())));
        } else if is_array(&path) {
            found.push((path, None));
        }
    }
    match found.is_empty() {
        true => Err(DataError::NoArray { path: folder.to_owned() }),
        false => Ok(found),
    }
}
