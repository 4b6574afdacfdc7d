//! Checked series on disk: `series-v1/<key>/` with `series.arrow` and `manifest.json`.
//!
//! A folder appears under its key by one rename, whole or not at all; its manifest holds the
//! checksum of the data. What does not fit its manifest is made anew. Two runs that make the same
//! key at once both succeed, and one result stays.

use std::fs;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use firebox_core::{Channel, Key, Origin, Series, SeriesSet, StepLabels};
use polars::prelude::*;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::{Checks, DataError};

/// Of the folder and of what is in it. A change of either needs a new number.
pub(crate) const VERSION: u32 = 1;
const DATA: &str = "series.arrow";
const MANIFEST: &str = "manifest.json";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    version: u32,
    key: Key,
    /// BLAKE3 of `series.arrow`.
    blake3: String,
    /// Size of `series.arrow`; older results do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    channels: Vec<Channel>,
    classes: Vec<String>,
    series: Vec<Entry>,
    checks: Checks,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    origin: Origin,
    steps: usize,
    segments: Vec<Range<usize>>,
    labels: LabelKind,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum LabelKind {
    None,
    PerStep,
    Whole(u32),
}

/// The folder of a key.
pub(crate) fn folder(cache: &Path, key: Key) -> PathBuf {
    cache.join(format!("series-v{VERSION}")).join(key.to_string())
}

/// What was found in the series that are stored under a key, if they are there in their full size.
/// Their content is not read.
pub(crate) fn peek(cache: &Path, key: Key) -> Option<Checks> {
    let folder = folder(cache, key);
    let manifest: Manifest = serde_json::from_slice(&fs::read(folder.join(MANIFEST)).ok()?).ok()?;
    let found = fs::metadata(folder.join(DATA)).ok()?.len();
    let whole = manifest.bytes.is_none_or(|bytes| bytes == found);
    (manifest.key == key && manifest.version == VERSION && whole).then_some(manifest.checks)
}

/// Reads what is stored under a key: `Ok(None)` if there is nothing.
///
/// # Errors
///
/// Says what is damaged.
pub(crate) fn load(cache: &Path, key: Key) -> Result<Option<(SeriesSet, Checks)>, String> {
    let folder = folder(cache, key);
    let manifest = match fs::read(folder.join(MANIFEST)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return if folder.exists() { Err("it has no manifest".to_owned()) } else { Ok(None) };
        }
        Err(error) => return Err(format!("its manifest cannot be read: {error}")),
    };
    let manifest: Manifest = serde_json::from_slice(&manifest)
        .map_err(|error| format!("its manifest is damaged: {error}"))?;
    if manifest.key != key || manifest.version != VERSION {
        return Err("its manifest belongs to another key".to_owned());
    }
    let bytes =
        fs::read(folder.join(DATA)).map_err(|error| format!("its data cannot be read: {error}"))?;
    if hash(&bytes) != manifest.blake3 {
        return Err("its data does not have the checksum of its manifest".to_owned());
    }
    decode(bytes, manifest).map(Some)
}

fn hash(bytes: &[u8]) -> String {
    blake3::Hasher::new().update_rayon(bytes).finalize().to_hex().to_string()
}

fn decode(bytes: Vec<u8>, manifest: Manifest) -> Result<(SeriesSet, Checks), String> {
    let said = |error: PolarsError| format!("its data is no Arrow file: {error}");
    let frame = IpcReader::new(std::io::Cursor::new(bytes)).finish().map_err(said)?;
    let mut frame = frame;
    frame.rechunk_mut();
    let steps: usize = manifest.series.iter().map(|entry| entry.steps).sum();
    let width = manifest.channels.len();
    if frame.height() != steps || frame.width() != width + 2 {
        return Err("its data does not have the shape of its manifest".to_owned());
    }
    let columns = frame.columns();
    let time = columns[0].i64().and_then(|column| column.cont_slice()).map_err(said)?;
    let labels = columns[1].u32().map_err(said)?;
    let values: Vec<&[f64]> = columns[2..]
        .iter()
        .map(|column| column.f64().and_then(|column| column.cont_slice()))
        .collect::<PolarsResult<_>>()
        .map_err(said)?;
    let mut start = 0;
    let entries: Vec<(usize, Entry)> = manifest
        .series
        .into_iter()
        .map(|entry| {
            start += entry.steps;
            (start - entry.steps, entry)
        })
        .collect();
    let series = entries
        .into_par_iter()
        .map(|(start, entry)| {
            let rows = start..start + entry.steps;
            let mut interleaved = vec![0.0; entry.steps * width];
            for (channel, column) in values.iter().enumerate() {
                let out = interleaved[channel.min(entry.steps * width)..].iter_mut().step_by(width);
                out.zip(&column[rows.clone()]).for_each(|(out, value)| *out = *value);
            }
            Series {
                name: entry.name,
                time: time[rows.clone()].to_vec(),
                values: interleaved,
                labels: match entry.labels {
                    LabelKind::None => StepLabels::None,
                    LabelKind::Whole(label) => StepLabels::Whole(label),
                    LabelKind::PerStep => {
                        StepLabels::PerStep(rows.map(|row| labels.get(row)).collect())
                    }
                },
                segments: entry.segments,
                origin: entry.origin,
            }
        })
        .collect();
    let set = SeriesSet::new(manifest.channels, manifest.classes, series)
        .map_err(|error| format!("its data breaks a promise: {error}"))?;
    Ok((set, manifest.checks))
}

/// Stores a set under its key. What was there is replaced unless it is whole.
pub(crate) fn save(
    cache: &Path,
    key: Key,
    set: &SeriesSet,
    checks: &Checks,
) -> Result<(), DataError> {
    let target = folder(cache, key);
    let bucket = target.parent().unwrap_or(cache);
    fs::create_dir_all(bucket).map_err(DataError::io("make the folder", bucket))?;
    let making = tempfile::Builder::new()
        .prefix(".making-")
        .tempdir_in(bucket)
        .map_err(DataError::io("write to the folder", bucket))?;
    // A folder within: temporary folders are private, the result need not be.
    let folder = making.path().join("result");
    fs::create_dir(&folder).map_err(DataError::io("make the folder", &folder))?;
    let (bytes, blake3) = write_data(&folder.join(DATA), set)?;
    let manifest = Manifest {
        version: VERSION,
        key,
        blake3,
        bytes: Some(bytes),
        channels: set.channels().to_vec(),
        classes: set.classes().to_vec(),
        series: set.series().iter().map(entry).collect(),
        checks: checks.clone(),
    };
    let manifest = serde_json::to_vec_pretty(&manifest)
        .map_err(|error| DataError::io("encode", &target)(error.into()))?;
    write(&folder.join(MANIFEST), &manifest)?;
    sync_folder(&folder);
    put(&folder, &target, cache, key, making.path())?;
    sync_folder(bucket);
    Ok(())
}

/// Renames the finished folder to its place.
fn put(
    folder: &Path,
    target: &Path,
    cache: &Path,
    key: Key,
    aside: &Path,
) -> Result<(), DataError> {
    const ATTEMPTS: usize = 5;
    for attempt in 0..ATTEMPTS {
        match fs::rename(folder, target) {
            Ok(()) => return Ok(()),
            Err(error) if !target.exists() => return Err(DataError::io("write", target)(error)),
            // Another run was faster, and its result is as good.
            Err(_) if matches!(load(cache, key), Ok(Some(_))) => return Ok(()),
            // What lies there is damaged: it goes with the temporary folder.
            Err(_) => drop(fs::rename(target, aside.join(format!("damaged-{attempt}")))),
        }
    }
    let busy = std::io::Error::other("other runs keep changing it");
    Err(DataError::io("replace", target)(busy))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    let write = || {
        let mut file = BufWriter::new(fs::File::create(path)?);
        file.write_all(bytes)?;
        file.into_inner().map_err(|error| error.into_error())?.sync_all()
    };
    write().map_err(DataError::io("write", path))
}

/// Makes the names in a folder durable, where the system can.
fn sync_folder(folder: &Path) {
    if let Ok(folder) = fs::File::open(folder) {
        // Some file systems cannot sync a folder; the files in it are synced already.
        drop(folder.sync_all());
    }
}

fn entry(series: &Series) -> Entry {
    Entry {
        name: series.name.clone(),
        origin: series.origin,
        steps: series.len(),
        segments: series.segments.clone(),
        labels: match &series.labels {
            StepLabels::None => LabelKind::None,
            StepLabels::PerStep(_) => LabelKind::PerStep,
            StepLabels::Whole(label) => LabelKind::Whole(*label),
        },
    }
}

/// Counts and hashes what is written.
struct Hashing<W> {
    inner: W,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.inner.write(bytes)?;
        match written {
            // All threads together only pay off on large pieces.
            0..PARALLEL => self.hasher.update(&bytes[..written]),
            _ => self.hasher.update_rayon(&bytes[..written]),
        };
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

const PARALLEL: usize = 256 * 1024;

/// Writes the set, and returns the size and the checksum of the file.
fn write_data(path: &Path, set: &SeriesSet) -> Result<(u64, String), DataError> {
    let file = fs::File::create(path).map_err(DataError::io("write", path))?;
    let mut out = BufWriter::new(Hashing { inner: &file, hasher: blake3::Hasher::new(), bytes: 0 });
    encode(set, &mut out).map_err(|error| match error {
        PolarsError::IO { error, .. } => {
            DataError::io("write", path)(std::io::Error::new(error.kind(), error.to_string()))
        }
        error => DataError::io("encode", path)(std::io::Error::other(error.to_string())),
    })?;
    let hashing =
        out.into_inner().map_err(|error| DataError::io("write", path)(error.into_error()))?;
    file.sync_all().map_err(DataError::io("write", path))?;
    Ok((hashing.bytes, hashing.hasher.finalize().to_hex().to_string()))
}

/// Columns: time, label, then the channels by number (their names may be any text).
fn encode(set: &SeriesSet, out: &mut impl Write) -> PolarsResult<()> {
    let width = set.channels().len();
    let time: Vec<i64> = set.series().iter().flat_map(|series| &series.time).copied().collect();
    let labels = set.series().iter().flat_map(|series| {
        (0..series.len()).map(|step| match &series.labels {
            StepLabels::PerStep(labels) => labels[step],
            StepLabels::Whole(label) => Some(*label),
            StepLabels::None => None,
        })
    });
    let labels: UInt32Chunked = labels.collect();
    let height = time.len();
    let mut columns = vec![
        Column::new("time".into(), time),
        labels.with_name("label".into()).into_series().into_column(),
    ];
    let channels: Vec<Column> = (0..width)
        .into_par_iter()
        .map(|channel| {
            let series = set.series().iter();
            let values = series.flat_map(|series| series.values.chunks_exact(width));
            let values: Vec<f64> = values.map(|step| step[channel]).collect();
            Column::new(format!("channel-{channel}").into(), values)
        })
        .collect();
    columns.extend(channels);
    let mut frame = DataFrame::new(height, columns)?;
    IpcWriter::new(out).finish(&mut frame)
}
