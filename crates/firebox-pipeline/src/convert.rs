//! `firebox data convert`: folders of `.npy` arrays → samples in mapped shards.
//!
//! Each array is read once, on all threads; twice where arrays that are not finite are to be left out, because which
//! samples there are is known before the first is stored. What was finished before an interruption is kept. Nothing
//! is normalised, cut into windows or augmented.

mod output;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::UNIX_EPOCH;

use firebox_cache::{CacheError, SampleSpec, Samples};
use firebox_core::{Event, Key, Listener, Storage, count, quoted};
use firebox_data::{ArrayFile, DataError, array_paths};
use rayon::prelude::*;

/// Arrays left out that are named for each reason.
const NAMED: usize = 4;

/// What to do about arrays that are not like the others: of float16 beside wider ones or the reverse, of whole numbers,
/// text or other values, of another number of channels or of axes, without a step, big-endian, in Fortran order, damaged,
/// or with numbers that are not finite.
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
    /// An array that breaks the rules of its format, such as one that is cut off.
    #[error("{source}\n  mend or remove it, or leave such arrays out with --odd skip")]
    Damaged {
        /// What is wrong with it.
        source: DataError,
    },
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
    /// Samples of more steps than are counted.
    #[error(
        "{} has {steps} steps a sample, and a sample has at most {}\n  divide it into several arrays, or cut samples off with --length",
        path.display(), u32::MAX
    )]
    TooLong {
        /// The array.
        path: PathBuf,
        /// Its steps.
        steps: usize,
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
    /// A folder to write with files of somebody else.
    #[error(
        "the folder to write, {}, holds other files, such as `{found}`, and no conversion that was begun\n  \
         name a new or an empty folder, or one that a conversion of the same arrays has begun",
        output.display()
    )]
    Occupied {
        /// The folder to write.
        output: PathBuf,
        /// What lies there.
        found: String,
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
                    | CacheError::NoRoomForSamples { .. }
                    | CacheError::NoMemory { .. }
                    | CacheError::ReadBack { .. }
                    | CacheError::Encode { .. }
            ),
            Self::Odd { .. }
            | Self::Damaged { .. }
            | Self::Nothing { .. }
            | Self::Nested { .. }
            | Self::TooLong { .. }
            | Self::Occupied { .. }
            | Self::Value { .. } => true,
        }
    }
}

/// Converts the arrays of a folder, and those of the folders in it, whose names become classes. Of arrays beside such
/// folders, which have no class, a warning tells, and of folders without an array beside them.
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
    output::check(folder, output)?;
    let paths = array_paths(folder)?;
    let limit = if config.length == 0 { usize::MAX } else { config.length };
    let found = open(&paths, limit, config.odd, listener)?;
    let (kept, skipped) = sort_out(folder, &paths, &found, config.odd)?;
    // What is left out has no part in the labels: the key below does not know it.
    let mut classes: Vec<String> =
        kept.iter().filter_map(|index| paths[*index].1.clone()).collect();
    classes.dedup();
    let arrays: Vec<(&ArrayFile, Option<&str>)> = kept
        .iter()
        .filter_map(|index| Some((found[*index].as_ref().ok()?, paths[*index].1.as_deref())))
        .collect();
    let channels = arrays[0].0.channels;
    let storage = config.storage.or(arrays[0].0.storage()).unwrap_or_default();
    let (mut samples, mut places, mut cut) = (Vec::new(), Vec::new(), 0);
    for (index, (array, class)) in arrays.iter().enumerate() {
        let label = class.and_then(|class| classes.iter().position(|name| name == class));
        let steps = array.steps.min(limit);
        let Ok(steps) = u32::try_from(steps) else {
            return Err(ConvertError::TooLong { path: array.path.clone(), steps });
        };
        cut += if array.steps > limit { array.samples } else { 0 };
        for sample in 0..array.samples {
            samples.push((steps, label.map(|label| label as u32)));
            places.push((index, sample));
        }
    }
    let longest = samples.iter().map(|(steps, _)| *steps as usize).max().unwrap_or(0);
    let spec = SampleSpec {
        key: key(folder, arrays.iter().map(|(array, _)| *array), config),
        source: folder.canonicalize().unwrap_or_default().display().to_string(),
        shape: [longest, channels],
        storage,
        classes: classes.clone(),
        samples,
        names: names(&arrays),
        shard_bytes: config.shard_bytes,
    };
    for (reason, names) in &skipped {
        let were = if names.len() == 1 { "was" } else { "were" };
        let (some, all) = (names.len(), count(paths.len() as u64, "array"));
        let message = format!("{some} of {all} {were} left out {}", which(names, reason));
        listener.on(&Event::Warning { message });
    }
    for message in classless(folder, &arrays).into_iter().chain(output::empty(folder, &paths)) {
        listener.on(&Event::Warning { message });
    }
    let written = Samples::write(output, &spec, listener, |sample, out| {
        let (array, place) = places[sample];
        let steps = spec.samples[sample].0 as usize;
        arrays[array].0.read(place, steps, out).map_err(ConvertError::from)
    });
    let written = written.map_err(|error| match error {
        ConvertError::Cache(CacheError::Value { sample, step, channel, value, storage }) => {
            let (array, sample) = places[sample];
            let path = arrays[array].0.path.clone();
            let way_out = match value.is_finite() {
                true => "correct the array, or store the samples in a wider type (--storage f32)",
                false => {
                    "correct the array, or leave such arrays out with --odd skip: samples hold finite numbers"
                }
            };
            ConvertError::Value { path, sample, step, channel, value, storage, way_out }
        }
        other => other,
    })?;
    let (bytes, shape) = (written.bytes(), written.shape());
    Ok(Converted { samples: places.len(), shape, cut, skipped, bytes, classes })
}

/// What is said of arrays that lie beside folders of classes; none if there are no such arrays or no classes.
fn classless(folder: &Path, arrays: &[(&ArrayFile, Option<&str>)]) -> Option<String> {
    let beside = arrays.iter().filter(|(_, class)| class.is_none());
    let names: Vec<String> = beside.map(|(array, _)| within(folder, &array.path)).collect();
    if names.is_empty() || names.len() == arrays.len() {
        return None;
    }
    let [lie, hold, them, theirs] = match names.len() {
        1 => ["lies", "it holds", "it", "the folder of its class"],
        _ => ["lie", "they hold", "them", "the folders of their classes"],
    };
    Some(format!(
        "{} of {} {lie} beside the folders of classes ({}), and what {hold} has no class: pre-training learns from it, and what learns or scores classes passes it over\n  \
         move {them} into {theirs}, or out of {} if nothing is to learn from {them}",
        names.len(),
        count(arrays.len() as u64, "array"),
        quoted(&names, NAMED),
        folder.display()
    ))
}

/// The path of an array within its folder.
fn within(folder: &Path, path: &Path) -> String {
    path.strip_prefix(folder).unwrap_or(path).to_string_lossy().into_owned()
}

/// A name for each sample of these arrays, by which its file is found: the folder of the class and the name of the
/// file, with a number where a file holds several. Where two files would give one name, the later has a number behind it.
fn names(arrays: &[(&ArrayFile, Option<&str>)]) -> Vec<String> {
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

/// Why no sample can be made of an array, whatever the others are.
struct Unusable {
    /// What is wrong, as other arrays may have it, too.
    what: &'static str,
    /// What was found in this one.
    found: String,
}

/// What an array is, or why it is left out.
type Found = Result<ArrayFile, Unusable>;

/// Opens all arrays; where odd ones are left out, also reads them, as far as they would be stored, and says which are
/// damaged or not finite.
fn open(
    paths: &[(PathBuf, Option<String>)],
    limit: usize,
    odd: Odd,
    listener: &dyn Listener,
) -> Result<Vec<Found>, ConvertError> {
    let looked_at = |path: &Path| -> Result<Found, ConvertError> {
        let array = match (ArrayFile::open(path), odd) {
            (Ok(array), _) => array,
            (Err(DataError::Malformed { problem, .. }), Odd::Skip) => {
                return Ok(Err(Unusable { what: "is no valid .npy file", found: problem }));
            }
            (Err(source @ DataError::Malformed { .. }), Odd::Refuse) => {
                return Err(ConvertError::Damaged { source });
            }
            (Err(error), _) => return Err(error.into()),
        };
        if odd == Odd::Refuse {
            return Ok(Ok(array));
        }
        let found = not_finite(&array, limit)?;
        let what = "holds numbers that are not finite in float32";
        Ok(found.map_or(Ok(array), |found| Err(Unusable { what, found })))
    };
    let (all, done) = (paths.len(), Mutex::new(0_usize));
    let one = |(path, _): &(PathBuf, Option<String>)| -> Result<Found, ConvertError> {
        let found = looked_at(path)?;
        if odd == Odd::Refuse {
            return Ok(found);
        }
        let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
        *done += 1;
        // A hundred times, however many there are.
        if *done * 100 / all > (*done - 1) * 100 / all {
            let (stage, unit) = ("check".to_owned(), "arrays".to_owned());
            // Within the lock, so that no listener hears of less than before.
            listener.on(&Event::Progress { stage, done: *done as u64, total: all as u64, unit });
        }
        Ok(found)
    };
    paths.par_iter().map(one).collect()
}

/// The first number that is not finite, and its place, among those that samples of so many steps would hold.
fn not_finite(array: &ArrayFile, limit: usize) -> Result<Option<String>, DataError> {
    if !can_be_samples(array) {
        return Ok(None);
    }
    let mut values = Vec::new();
    for sample in 0..array.samples {
        values.clear();
        array.read(sample, array.steps.min(limit), &mut values)?;
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            let [step, channel] = [at / array.channels, at % array.channels];
            return Ok(Some(format!(
                "{} in sample {sample}, step {step}, channel {channel}",
                values[at]
            )));
        }
    }
    Ok(None)
}

/// The names of arrays that are left out, by the reason.
type Skipped = BTreeMap<String, Vec<String>>;

/// The arrays that are like the first one, and by the reason the names of those that are not.
fn sort_out(
    folder: &Path,
    paths: &[(PathBuf, Option<String>)],
    found: &[Found],
    odd: Odd,
) -> Result<(Vec<usize>, Skipped), ConvertError> {
    let first = found.iter().flatten().find(|array| can_be_samples(array));
    let (mut kept, mut skipped) = (Vec::new(), Skipped::new());
    let mut unusable = BTreeMap::<&str, (&str, Vec<String>)>::new();
    let mut example: Option<(usize, String)> = None;
    for (index, found) in found.iter().enumerate() {
        let name = within(folder, &paths[index].0);
        let reason = match found {
            Err(Unusable { what, found }) => {
                unusable.entry(what).or_insert((found, vec![])).1.push(name);
                format!("{what} ({found})")
            }
            Ok(array) => match oddity(array, first) {
                None => {
                    kept.push(index);
                    continue;
                }
                Some(reason) => {
                    skipped.entry(reason.clone()).or_default().push(name);
                    reason
                }
            },
        };
        example.get_or_insert((index, reason));
    }
    // Each of them has its own place and number: the first's stand for all.
    skipped.extend(unusable.into_iter().map(|(what, (found, names))| {
        let of = if names.len() == 1 { "" } else { "the first: " };
        (format!("{what} ({of}{found})"), names)
    }));
    match (example, first) {
        (Some((index, reason)), None) => Err(ConvertError::Nothing {
            path: folder.to_owned(),
            reason: format!("the first, {}, {reason}", paths[index].0.display()),
        }),
        (Some((index, reason)), Some(first)) if odd == Odd::Refuse => {
            let is = |array: &ArrayFile| {
                let channels = count(array.channels as u64, "channel");
                format!("{channels} of {}", type_name(array))
            };
            let beside = match &found[index] {
                Ok(array) if can_be_samples(array) => {
                    format!(" ({}; {} has {})", is(array), first.path.display(), is(first))
                }
                _ => String::new(),
            };
            let more = found.len() - kept.len() - 1;
            let reason = format!("{reason}{beside}");
            Err(ConvertError::Odd { path: paths[index].0.clone(), reason, more })
        }
        _ => Ok((kept, skipped)),
    }
}

/// Covers which files there are, how large, and when they were last changed; their content is read once
/// only, when it is converted.
fn key<'a>(
    folder: &Path,
    arrays: impl Iterator<Item = &'a ArrayFile>,
    config: &ConvertConfig,
) -> Key {
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
