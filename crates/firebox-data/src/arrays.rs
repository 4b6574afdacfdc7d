//! Samples in folders of `.npy` arrays: what each file holds, and reading one sample of it.
//!
//! For arrays that are converted once and not kept in memory as series are. An array is one sample,
//! `[time]` or `[time, channel]`, or several, `[sample, time, channel]`.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use firebox_core::Storage;
use half::f16;

use crate::input::label_of_another;
use crate::npy::{Header, Kind, Problem, fits, read_header};
use crate::{DataError, Format};

/// A `.npy` file, looked at and not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayFile {
    /// Where it is.
    pub path: PathBuf,
    /// Samples: 1 for an array of one or two axes. 0, as steps and channels are, for one that is no samples.
    pub samples: usize,
    /// Steps of each sample.
    pub steps: usize,
    /// Channels of a step.
    pub channels: usize,
    /// Its size in bytes.
    pub bytes: u64,
    /// Why it is no samples, if it is in order and yet none.
    header: Result<Header, String>,
}

impl ArrayFile {
    /// Reads the header of an array and compares what it says with the file's size.
    ///
    /// # Errors
    ///
    /// When it cannot be read, is no array, or is cut off.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let malformed = |problem: String| DataError::malformed(path, Format::Npy, problem);
        let mut file = File::open(path).map_err(DataError::io("open", path))?;
        let bytes = file.metadata().map_err(DataError::io("read", path))?.len();
        let read = read_header(&mut file).map_err(DataError::io("read", path))?;
        let array = |[samples, steps, channels]: [usize; 3], header| Self {
            path: path.to_owned(),
            samples,
            steps,
            channels,
            bytes,
            header,
        };
        let header = match read {
            Ok((header, _)) => header,
            Err(Problem { holds: Some(holds), .. }) => {
                let reason = format!("holds {holds}, and samples hold float16, float32 or float64");
                return Ok(array([0; 3], Err(reason)));
            }
            Err(Problem { text, .. }) => return Err(malformed(text)),
        };
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        fits(&header, length.saturating_sub(header.start)).map_err(malformed)?;
        let order = match (header.big_endian, header.fortran && header.shape.len() > 1) {
            (false, false) => None,
            (true, false) => Some("big-endian"),
            (false, true) => Some("in Fortran order"),
            (true, true) => Some("big-endian and in Fortran order"),
        };
        let shape = match *header.shape {
            [steps] => Ok([1, steps, 1]),
            [steps, channels] => Ok([1, steps, channels]),
            [samples, steps, channels] => Ok([samples, steps, channels]),
            ref shape => Err(format!(
                "has {} axes (arrays are [time], [time, channel] or [sample, time, channel])",
                shape.len()
            )),
        };
        Ok(match (shape, order) {
            (Err(reason), _) => array([0; 3], Err(reason)),
            (Ok(_), Some(order)) => {
                let reason = format!(
                    "is {order}, and little-endian arrays in C order are converted (`np.ascontiguousarray(x.astype('<f4'))` makes it one)"
                );
                array([0; 3], Err(reason))
            }
            (Ok(shape), None) => array(shape, Ok(header)),
        })
    }

    /// Why no sample can be read of it, such as "holds int32, …"; none if samples can be.
    pub fn unfit(&self) -> Option<String> {
        match &self.header {
            Err(reason) => Some(reason.clone()),
            Ok(header) if !header.element.is_float() => Some(format!(
                "holds {}, and samples hold float16, float32 or float64 (`x.astype('<f4')` makes it one)",
                header.element.name()
            )),
            Ok(_) => None,
        }
    }

    /// The smallest type that holds its numbers; those of float64 are rounded to it. None where no sample can be read
    /// of it, as of whole numbers.
    pub fn storage(&self) -> Option<Storage> {
        let element = self.header.as_ref().ok()?.element;
        match (element.kind, element.bytes) {
            (Kind::Float, 2) => Some(Storage::F16),
            (Kind::Float, _) => Some(Storage::F32),
            _ => None,
        }
    }

    /// The type of its numbers as NumPy names it; none where it is no samples.
    pub fn type_name(&self) -> Option<&'static str> {
        self.header.as_ref().ok().map(|header| header.element.name())
    }

    /// Length of each axis, as it is stored; nothing where it is no samples.
    pub fn axes(&self) -> &[usize] {
        match &self.header {
            Ok(header) => &header.shape,
            Err(_) => &[],
        }
    }

    /// Appends the first `steps` steps of a sample.
    ///
    /// # Shapes
    ///
    /// - `out`: `[steps, channel]` more, row-major
    ///
    /// # Errors
    ///
    /// When no sample can be read of it, and when the file cannot be read, or has changed since it was opened.
    pub fn read(&self, sample: usize, steps: usize, out: &mut Vec<f32>) -> Result<(), DataError> {
        let path = &self.path;
        let header = match &self.header {
            Ok(header) if header.element.is_float() => header,
            _ => {
                let problem = format!("it {}", self.unfit().unwrap_or_default());
                return Err(DataError::malformed(path, Format::Npy, problem));
            }
        };
        let mut file = File::open(path).map_err(DataError::io("open", path))?;
        let found = file.metadata().map_err(DataError::io("read", path))?.len();
        if found != self.bytes {
            let problem =
                format!("it changed while it was read: {found} bytes, {} before", self.bytes);
            return Err(DataError::malformed(path, Format::Npy, problem));
        }
        let values = self.steps * self.channels;
        let start = header.start as u64 + (sample * values * header.element.bytes) as u64;
        file.seek(SeekFrom::Start(start)).map_err(DataError::io("read", path))?;
        let mut bytes = vec![0; steps.min(self.steps) * self.channels * header.element.bytes];
        file.read_exact(&mut bytes).map_err(DataError::io("read", path))?;
        match header.element.bytes {
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
/// When a folder cannot be read, there is no array, or one is named as the labels of another.
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
    if found.is_empty() {
        return Err(DataError::NoArray { path: folder.to_owned() });
    }
    match label_of_another(found.iter().map(|(path, _)| path.as_path())) {
        Some((path, of, label)) => Err(DataError::LabelArray { path, of, label }),
        None => Ok(found),
    }
}
