//! `firebox data convert`: folders of `.npy` arrays → samples in mapped shards.
//!
//! Each array is read once, on all threads. What was finished before an interruption is kept. Nothing
//! is normalised, cut into windows or augmented.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use firebox_cache::{CacheError, SampleSpec, Samples};
use firebox_core::{Event, Key, Listener, Storage, count, quoted};
use firebox_data::{ArrayFile, DataError, array_paths};
use rayon::prelude::*;

/// Arrays left out that are named for each reason.
const NAMED: usize = 4;

/// What to do about arrays that are not like the others: of float16 beside wider ones or the reverse, of whole numbers,
/// text or other values, of another number of channels or of axes, without a step, big-endian, or in Fortran order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Odd {
    /// Refuse the folder, naming the first.
    #[default]
    Refuse,
    /// Leave them out, and say how many, which and why.
    Skip,
}

/// How arrays are converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertConfig {
    /// The type that values are stored in; that of the arrays if none is given.
    pub storage: Option<Storage>,
    /// Steps that longer samples are cut to; 0 for none.
    pub length: usize,
    /// What is done about arrays that are not like the others.
    pub odd: Odd,
    /// Size of a shard in bytes.
    pub shard_bytes: usize,
}

impl Default for ConvertConfig {
    /// Shards as large as those of the cache.
    fn default() -> Self {
        Self { storage: None, length: 0, odd: Odd::Refuse, shard_bytes: 64 << 20 }
    }
}

/// What a conversion made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converted {
    /// Samples.
    pub samples: usize,
    /// Steps of the longest, and channels.
    pub shape: [usize; 2],
    /// Samples that were cut to the length asked for.
    pub cut: usize,
    /// Arrays left out, by the reason: their paths within the folder.
    pub skipped: BTreeMap<String, Vec<String>>,
    /// Bytes on disk.
    pub bytes: u64,
    /// Names of the classes, which are the folders that the arrays lie in.
    pub classes: Vec<String>,
}

impl fmt::Display for Converted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { samples, shape: [time, channel], cut, skipped, bytes, classes } = self;
        let [samples, time, channel] =
            [(*samples, "sample"), (*time, "step"), (*channel, "channel")]
                .map(|(number, noun)| count(number as u64, noun));
        write!(f, "{samples} of up to {time} and {channel}")?;
        match classes.len() {
            0 => {}
            1 => f.write_str(" in 1 class")?,
            classes => write!(f, " in {classes} classes")?,
        }
        write!(f, ", {:.1} MB", *bytes as f64 / 1e6)?;
        if *cut > 0 {
            let were = if *cut == 1 { "was" } else { "were" };
            write!(f, "; {cut} {were} cut to {time}")?;
        }
        for (reason, names) in skipped {
            write!(f, "; {} left out {}", names.len(), which(names, reason))?;
        }
        Ok(())
    }
}

/// "(`a.npy`, `b.npy`): each has no step".
fn which(names: &[String], reason: &str) -> String {
    let each = if names.len() == 1 { "it" } else { "each" };
    format!("({}): {each} {reason}", quoted(names, NAMED))
}

/// Arrays that cannot be converted.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// An array that cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Shards that cannot be written.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// An array that is not like the first.
    #[error(
        "{} {reason}{}: correct {}, or leave such arrays out with --odd skip",
        path.display(), AndMore(*more), if *more == 0 { "it" } else { "them" }
    )]
    Odd {
        /// The first such array.
        path: PathBuf,
        /// What is odd about it.
        reason: String,
        /// How many others are unlike the first, in this way or another.
        more: usize,
    },
    /// The input and the output are one folder, or one lies in the other.
    #[error(
        "the folder to write, {}, is that of the arrays, or one lies within the other\n  name a folder of its own",
        output.display()
    )]
    Nested {
        /// The folder to write.
        output: PathBuf,
    },
    /// A value that the type of the samples does not hold.
    #[error(
        "{}, sample {sample}, step {step}, channel {channel}: {value} cannot be stored as {storage}\n  {way_out}",
        path.display()
    )]
    Value {
        /// The array.
        path: PathBuf,
        /// Sample within the array.
        sample: usize,
        /// Step of the sample.
        step: usize,
        /// Channel.
        channel: usize,
        /// The value.
        value: f32,
        /// Name of the storage type.
        storage: &'static str,
        /// What to do.
        way_out: &'static str,
    },
    /// Nothing is left.
    #[error("no array of {} can be used: {reason}", path.display())]
    Nothing {
        /// The folder.
        path: PathBuf,
        /// Why the first was left out.
        reason: String,
    },
}

/// Arrays beside the one that is named.
struct AndMore(usize);

impl fmt::Display for AndMore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            1 => f.write_str(", and 1 more is unlike the first, too"),
            more => write!(f, ", and {more} more are unlike the first, too"),
        }
    }
}

impl ConvertError {
    /// Whether the user can mend it in flags or arrays; else it failed while running.
    pub fn is_bad_input(&self) -> bool {
        match self {
            Self::Data(error) => error.is_bad_input(),
            Self::Cache(error) => !matches!(
                error,
                CacheError::Io { .. }
                    | CacheError::Full { .. }
                    | CacheError::ReadBack { .. }
                    | CacheError::Encode { .. }
            ),
            Self::Odd { .. } | Self::Nothing { .. } | Self::Nested { .. } | Self::Value { .. } => {
                true
            }
        }
    }
}

/// Refuses to write where arrays are read, which would then be arrays and shards at once.
fn apart(folder: &Path, output: &Path) -> Result<(), ConvertError> {
    let Ok(folder) = folder.canonicalize() else { return Ok(()) };
    // A folder to be made is where its parent is.
    let parent = output.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let parent = || Some(parent.canonicalize().ok()?.join(output.file_name()?));
    let Some(found) = output.canonicalize().ok().or_else(parent) else { return Ok(()) };
    match found.starts_with(&folder) || folder.starts_with(&found) {
        true => Err(ConvertError::Nested { output: output.to_owned() }),
        false => Ok(()),
    }
}

/// Converts the arrays of a folder, and those of the folders in it, whose names become classes.
///
/// # Errors
///
/// When an array cannot be read or is not like the others, when a value does not fit the type, and when
/// the disk refuses. Calling it again goes on.
pub fn convert(
    folder: &Path,
    output: &Path,
    config: &ConvertConfig,
    listener: &dyn Listener,
) -> Result<Converted, ConvertError> {
    apart(folder, output)?;
    let paths = array_paths(folder)?;
    let opened = paths.par_iter().map(|(path, _)| ArrayFile::open(path));
    let arrays = opened.collect::<Result<Vec<_>, _>>()?;
    let (kept, skipped) = sort_out(folder, &arrays, config.odd)?;
    // What is left out has no part in the labels: the key below does not know it.
    let mut classes: Vec<String> =
        kept.iter().filter_map(|index| paths[*index].1.clone()).collect();
    classes.dedup();
    let channels = arrays[kept[0]].channels;
    let limit = if config.length == 0 { usize::MAX } else { config.length };
    let storage = config.storage.or(arrays[kept[0]].storage()).unwrap_or_default();
    let (mut samples, mut places, mut cut) = (Vec::new(), Vec::new(), 0);
    for index in &kept {
        let array = &arrays[*index];
        let class = paths[*index].1.as_ref();
        let label = class.and_then(|class| classes.iter().position(|name| name == class));
        let steps = array.steps.min(limit);
        cut += if array.steps > limit { array.samples } else { 0 };
        for sample in 0..array.samples {
            samples.push((steps as u32, label.map(|label| label as u32)));
            places.push((*index, sample));
        }
    }
    let longest = samples.iter().map(|(steps, _)| *steps as usize).max().unwrap_or(0);
    let spec = SampleSpec {
        key: key(folder, &kept.iter().map(|index| &arrays[*index]).collect::<Vec<_>>(), config),
        shape: [longest, channels],
        storage,
        classes: classes.clone(),
        samples,
        names: names(kept.iter().map(|index| (&arrays[*index], paths[*index].1.as_deref()))),
        shard_bytes: config.shard_bytes,
    };
    for (reason, names) in &skipped {
        let were = if names.len() == 1 { "was" } else { "were" };
        let (some, all) = (names.len(), count(arrays.len() as u64, "array"));
        let message = format!("{some} of {all} {were} left out {}", which(names, reason));
        listener.on(&Event::Warning { message });
    }
    let written = Samples::write(output, &spec, listener, |sample, out| {
        let (array, place) = places[sample];
        let steps = spec.samples[sample].0 as usize;
        arrays[array].read(place, steps, out).map_err(ConvertError::from)
    });
    let written = written.map_err(|error| match error {
        ConvertError::Cache(CacheError::Value { sample, step, channel, value, storage }) => {
            let (array, sample) = places[sample];
            let path = arrays[array].path.clone();
            let way_out = match value.is_finite() {
                true => "correct the array, or store the samples in a wider type (--storage f32)",
                false => "correct the array: samples hold finite numbers",
            };
            ConvertError::Value { path, sample, step, channel, value, storage, way_out }
        }
        other => other,
    })?;
    let (bytes, shape) = (written.bytes(), written.shape());
    Ok(Converted { samples: places.len(), shape, cut, skipped, bytes, classes })
}

/// A name for each sample of these arrays, by which its file is found: the folder of the class and the name of the
/// file, with a number where a file holds several. Where two files would give one name, the later has a number behind it.
fn names<'a>(arrays: impl Iterator<Item = (&'a ArrayFile, Option<&'a str>)>) -> Vec<String> {
    let mut taken = HashSet::new();
    let mut free = |name: String| {
        let (mut free, mut number) = (name.clone(), 1);
        while !taken.insert(free.clone()) {
            number += 1;
            free = format!("{name} ({number})");
        }
        free
    };
    let mut names = Vec::new();
    for (array, class) in arrays {
        let stem = array.path.file_stem().unwrap_or_default().to_string_lossy();
        let file = match class {
            Some(class) => format!("{class}/{stem}"),
            None => stem.into_owned(),
        };
        match array.samples {
            1 => names.push(free(file)),
            samples => {
                let digits = samples.to_string().len();
                names.extend((1..=samples).map(|sample| free(format!("{file}/{sample:0digits$}"))));
            }
        }
    }
    names
}

/// What is odd about an array beside the first of those that can be samples; none if nothing is.
fn oddity(array: &ArrayFile, first: Option<&ArrayFile>) -> Option<String> {
    if let Some(reason) = array.unfit() {
        return Some(reason);
    }
    let axes = [(array.samples, "sample"), (array.steps, "step"), (array.channels, "channel")];
    if let Some((_, noun)) = axes.into_iter().find(|(length, _)| *length == 0) {
        return Some(format!("has no {noun}"));
    }
    let first = first?;
    if array.channels != first.channels {
        return Some(match array.axes() {
            [_] => format!("has one axis, which is time, and not {} channels", first.channels),
            _ => format!("has other than {}", count(first.channels as u64, "channel")),
        });
    }
    // Arrays of float64 are rounded to float32, and so are like those.
    let other = array.storage() != first.storage();
    other.then(|| format!("is of another type than {}", type_name(first)))
}

fn can_be_samples(array: &ArrayFile) -> bool {
    array.storage().is_some() && ![array.samples, array.steps, array.channels].contains(&0)
}

fn type_name(array: &ArrayFile) -> &'static str {
    array.type_name().unwrap_or("no number")
}

/// The names of arrays that are left out, by the reason.
type Skipped = BTreeMap<String, Vec<String>>;

/// The arrays that are like the first one, and by the reason the names of those that are not.
fn sort_out(
    folder: &Path,
    arrays: &[ArrayFile],
    odd: Odd,
) -> Result<(Vec<usize>, Skipped), ConvertError> {
    let first = arrays.iter().find(|array| can_be_samples(array));
    let (mut kept, mut skipped) = (Vec::new(), Skipped::new());
    let mut example: Option<(&ArrayFile, String)> = None;
    for (index, array) in arrays.iter().enumerate() {
        match oddity(array, first) {
            None => kept.push(index),
            Some(reason) => {
                let name = array.path.strip_prefix(folder).unwrap_or(&array.path);
                let names = skipped.entry(reason.clone()).or_default();
                names.push(name.to_string_lossy().into_owned());
                example.get_or_insert((array, reason));
            }
        }
    }
    match (example, first) {
        (Some((array, reason)), None) => Err(ConvertError::Nothing {
            path: folder.to_owned(),
            reason: format!("the first, {}, {reason}", array.path.display()),
        }),
        (Some((array, reason)), Some(first)) if odd == Odd::Refuse => {
            let is = |array: &ArrayFile| {
                let channels = count(array.channels as u64, "channel");
                format!("{channels} of {}", type_name(array))
            };
            let found = match can_be_samples(array) {
                true => format!(" ({}; {} has {})", is(array), first.path.display(), is(first)),
                false => String::new(),
            };
            let more = arrays.len() - kept.len() - 1;
            let reason = format!("{reason}{found}");
            Err(ConvertError::Odd { path: array.path.clone(), reason, more })
        }
        _ => Ok((kept, skipped)),
    }
}

/// Covers which files there are, how large, and when they were last changed; their content is read once
/// only, when it is converted.
fn key(folder: &Path, arrays: &[&ArrayFile], config: &ConvertConfig) -> Key {
    let mut key = Key::builder("samples", 1).field("settings", format!("{config:?}"));
    for array in arrays {
        let name = array.path.strip_prefix(folder).unwrap_or(&array.path);
        let changed = std::fs::metadata(&array.path).and_then(|found| found.modified()).ok();
        let changed = changed.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        key = key
            .field("name", name.to_string_lossy().into_owned())
            .field("bytes", array.bytes.to_le_bytes())
            .field("changed", changed.unwrap_or_default().as_nanos().to_le_bytes());
    }
    key.finish()
}
