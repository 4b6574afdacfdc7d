//! `firebox data convert`: folders of `.npy` arrays → samples in mapped shards.
//!
//! Each array is read once, on all threads. What was finished before an interruption is kept. Nothing
//! is normalised, cut into windows or augmented.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use firebox_cache::{CacheError, SampleSpec, Samples};
use firebox_core::{Event, Key, Listener, Storage};
use firebox_data::{ArrayFile, DataError, array_paths};
use rayon::prelude::*;

/// What to do about arrays that are not like the others: of float16 beside wider ones or the reverse, of another
/// number of channels, or without a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Odd {
    /// Refuse the folder, naming the first.
    #[default]
    Refuse,
    /// Leave them out, and say how many and why.
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
    /// Arrays left out, counted by the reason.
    pub skipped: BTreeMap<String, usize>,
    /// Bytes on disk.
    pub bytes: u64,
    /// Names of the classes, which are the folders that the arrays lie in.
    pub classes: Vec<String>,
}

impl fmt::Display for Converted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { samples, shape: [time, channel], cut, skipped, bytes, classes } = self;
        write!(f, "{samples} samples of up to {time} steps and {channel} channels")?;
        if !classes.is_empty() {
            write!(f, " in {} classes", classes.len())?;
        }
        write!(f, ", {:.1} MB", *bytes as f64 / 1e6)?;
        if *cut > 0 {
            write!(f, "; {cut} were cut to {time} steps")?;
        }
        for (reason, count) in skipped {
            write!(f, "; {count} left out: {reason}")?;
        }
        Ok(())
    }
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
        "{} {reason}, and so are {more} more: correct them, or leave such arrays out with --odd skip",
        path.display()
    )]
    Odd {
        /// The first such array.
        path: PathBuf,
        /// What is odd about it.
        reason: String,
        /// How many others there are.
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
    let storage = config.storage.unwrap_or(arrays[kept[0]].storage());
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
    for (reason, count) in &skipped {
        let message = format!("{count} of {} arrays were left out: {reason}", arrays.len());
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

/// The arrays that are like the first one, and how many are not.
fn sort_out(
    folder: &Path,
    arrays: &[ArrayFile],
    odd: Odd,
) -> Result<(Vec<usize>, BTreeMap<String, usize>), ConvertError> {
    let whole = |array: &&ArrayFile| array.samples * array.steps * array.channels > 0;
    let first = arrays.iter().find(whole);
    let reason = |array: &ArrayFile| match first {
        Some(_) if !whole(&array) => Some("has no step".to_owned()),
        Some(first) if array.channels != first.channels => {
            Some(format!("has other than {} channels", first.channels))
        }
        // Arrays of float64 are rounded to float32, and so are like those.
        Some(first) if array.storage() != first.storage() => {
            Some(format!("is of another type than {}", first.type_name()))
        }
        Some(_) => None,
        None => Some("has no step".to_owned()),
    };
    let (mut kept, mut skipped) = (Vec::new(), BTreeMap::new());
    let mut example: Option<(&ArrayFile, String)> = None;
    for (index, array) in arrays.iter().enumerate() {
        match reason(array) {
            None => kept.push(index),
            Some(reason) => {
                *skipped.entry(reason.clone()).or_default() += 1;
                example.get_or_insert((array, reason));
            }
        }
    }
    match example {
        Some((_, reason)) if kept.is_empty() => Err(ConvertError::Nothing {
            path: folder.to_owned(),
            reason: format!("the first {reason}"),
        }),
        Some((array, reason)) if odd == Odd::Refuse => {
            let found = match array.samples * array.steps {
                0 => String::new(),
                _ => format!(" ({} channels of {})", array.channels, array.type_name()),
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

#[cfg(test)]
mod tests {
    use super::*;
    use firebox_core::Silent;
    use std::fs;

    /// A file as NumPy writes it, of float32 or float16.
    fn array(path: &Path, shape: &[usize], half: bool, value: impl Fn(usize) -> f32) {
        let shape_text: Vec<String> = shape.iter().map(ToString::to_string).collect();
        let comma = if shape.len() == 1 { "," } else { "" };
        let kind = if half { "<f2" } else { "<f4" };
        let mut text = format!(
            "{{'descr': '{kind}', 'fortran_order': False, 'shape': ({}{comma}), }}",
            shape_text.join(", ")
        );
        while (11 + text.len()) % 64 != 0 {
            text.push(' ');
        }
        text.push('\n');
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
        for at in 0..shape.iter().product() {
            match half {
                // 0.5 and 1.0 in float16, which is what the tests write.
                true if value(at) == 0.5 => bytes.extend(0x3800u16.to_le_bytes()),
                true => bytes.extend(0x3c00u16.to_le_bytes()),
                false => bytes.extend(value(at).to_le_bytes()),
            }
        }
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn values(samples: &Samples, index: usize) -> Vec<f32> {
        let [time, channels] = samples.shape();
        let mut out = vec![0.0; time * channels];
        samples.gather(&[index], time, &mut out);
        out.truncate(samples.record(index).length as usize * channels);
        out
    }

    #[test]
    fn arrays_become_samples_with_the_classes_of_their_folders() {
        let root = tempfile::tempdir().unwrap();
        let (arrays, output) = (root.path().join("arrays"), root.path().join("samples"));
        array(&arrays.join("dogs/b.npy"), &[4, 2], false, |at| at as f32);
        array(&arrays.join("cats/a.npy"), &[3, 5, 2], false, |at| -(at as f32));
        array(&arrays.join("dogs/a.npy"), &[9, 2], false, |at| 10.0 + at as f32);
        let config = ConvertConfig { length: 6, shard_bytes: 100, ..ConvertConfig::default() };
        let converted = convert(&arrays, &output, &config, &Silent).unwrap();
        assert_eq!(
            converted.to_string(),
            format!(
                "5 samples of up to 6 steps and 2 channels in 2 classes, {:.1} MB; 1 were cut to 6 steps",
                converted.bytes as f64 / 1e6
            )
        );
        let samples = Samples::open(&output, true).unwrap();
        assert_eq!(samples.classes(), ["cats", "dogs"]);
        let names: Vec<_> = (0..5).filter_map(|index| samples.name(index)).collect();
        assert_eq!(names, ["cats/a/1", "cats/a/2", "cats/a/3", "dogs/a", "dogs/b"]);
        let labels: Vec<_> = (0..5).map(|index| samples.record(index).label).collect();
        assert_eq!(labels, [Some(0), Some(0), Some(0), Some(1), Some(1)]);
        assert_eq!(values(&samples, 1), (10..20).map(|at| -(at as f32)).collect::<Vec<_>>());
        assert_eq!(values(&samples, 3), (0..12).map(|at| 10.0 + at as f32).collect::<Vec<_>>());
        assert_eq!(values(&samples, 4), (0..8).map(|at| at as f32).collect::<Vec<_>>());
        // Once more changes nothing; an array that changed makes it another folder's content.
        assert_eq!(convert(&arrays, &output, &config, &Silent).unwrap(), converted);
        array(&arrays.join("dogs/c.npy"), &[4, 2], false, |at| at as f32);
        let error = convert(&arrays, &output, &config, &Silent).unwrap_err();
        assert!(matches!(error, ConvertError::Cache(CacheError::OtherInputs { .. })), "{error}");
    }

    #[test]
    fn what_is_left_out_moves_no_class() {
        let root = tempfile::tempdir().unwrap();
        let (arrays, output) = (root.path().join("arrays"), root.path().join("samples"));
        array(&arrays.join("ants/a.npy"), &[4, 2], false, |at| at as f32);
        array(&arrays.join("cats/a.npy"), &[4, 2], false, |at| at as f32);
        let config = ConvertConfig { odd: Odd::Skip, ..ConvertConfig::default() };
        convert(&arrays, &output, &config, &Silent).unwrap();
        array(&arrays.join("bees/a.npy"), &[4, 3], false, |at| at as f32);
        let again = convert(&arrays, &output, &config, &Silent).unwrap();
        assert_eq!(again.classes, ["ants", "cats"]);
        let samples = Samples::open(&output, true).unwrap();
        let class =
            |index: usize| &samples.classes()[samples.record(index).label.unwrap() as usize];
        assert_eq!([class(0), class(1)], ["ants", "cats"]);
    }

    #[test]
    fn no_two_samples_have_one_name() {
        let root = tempfile::tempdir().unwrap();
        let (arrays, output) = (root.path().join("arrays"), root.path().join("samples"));
        array(&arrays.join("a/1.npy"), &[4, 2], false, |at| at as f32);
        array(&arrays.join("a.npy"), &[2, 4, 2], false, |at| at as f32);
        convert(&arrays, &output, &ConvertConfig::default(), &Silent).unwrap();
        let samples = Samples::open(&output, true).unwrap();
        let names: Vec<_> = (0..3).filter_map(|index| samples.name(index)).collect();
        assert_eq!(names, ["a/1", "a/1 (2)", "a/2"]);
    }

    #[test]
    fn half_precision_stays_half_precision() {
        let root = tempfile::tempdir().unwrap();
        let (arrays, output) = (root.path().join("arrays"), root.path().join("samples"));
        let value = |at: usize| if at.is_multiple_of(2) { 0.5 } else { 1.0 };
        array(&arrays.join("a.npy"), &[8], true, value);
        convert(&arrays, &output, &ConvertConfig::default(), &Silent).unwrap();
        let samples = Samples::open(&output, true).unwrap();
        assert_eq!((samples.storage(), samples.shape()), (Storage::F16, [8, 1]));
        assert_eq!(values(&samples, 0), (0..8).map(value).collect::<Vec<_>>());
    }

    #[test]
    fn arrays_unlike_the_others_are_refused_or_counted() {
        let root = tempfile::tempdir().unwrap();
        let arrays = root.path().join("arrays");
        array(&arrays.join("a.npy"), &[4, 2], false, |_| 1.0);
        array(&arrays.join("b.npy"), &[4, 3], false, |_| 1.0);
        array(&arrays.join("c.npy"), &[0, 2], false, |_| 1.0);
        array(&arrays.join("d.npy"), &[4, 2], true, |_| 1.0);
        array(&arrays.join("e.npy"), &[7, 2], false, |_| 1.0);
        let config = ConvertConfig::default();
        let error = convert(&arrays, &root.path().join("x"), &config, &Silent).unwrap_err();
        let text = error.to_string();
        assert!(text.ends_with("b.npy has other than 2 channels (3 channels of float32), and so are 2 more: correct them, or leave such arrays out with --odd skip"), "{text}");
        let skip = ConvertConfig { odd: Odd::Skip, ..config };
        let converted = convert(&arrays, &root.path().join("y"), &skip, &Silent).unwrap();
        assert_eq!((converted.samples, converted.shape), (2, [7, 2]));
        let skipped: Vec<_> = converted.skipped.into_iter().collect();
        let expected =
            ["has no step", "has other than 2 channels", "is of another type than float32"];
        assert_eq!(skipped, expected.map(|reason| (reason.to_owned(), 1)));
    }

    #[test]
    fn arrays_that_are_cut_off_or_hold_no_number_are_named() {
        let root = tempfile::tempdir().unwrap();
        let arrays = root.path().join("arrays");
        array(&arrays.join("a.npy"), &[4, 2], false, |_| f32::NAN);
        let go = |name: &str| {
            let to = root.path().join(name);
            convert(&arrays, &to, &ConvertConfig::default(), &Silent).unwrap_err().to_string()
        };
        let said = go("nan");
        let expected = "a.npy, sample 0, step 0, channel 0: NaN cannot be stored as f32\n  correct";
        assert!(said.contains(expected), "{said}");
        assert!(go("arrays").contains("lies within the other"), "{}", go("arrays"));
        assert!(go("arrays/shards").contains("lies within the other"));
        let path = arrays.join("a.npy");
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert!(go("cut").contains("it is cut off: 159 of 160 bytes"), "{}", go("cut"));
        fs::remove_file(path).unwrap();
        array(&arrays.join("a/b/c.npy"), &[4, 2], false, |_| 1.0);
        assert!(go("nested").contains("lies in a folder of a class"), "{}", go("nested"));
        fs::remove_dir_all(arrays.join("a")).unwrap();
        assert!(go("empty").contains("has no .npy file"));
    }

    #[test]
    fn arrays_of_float64_go_with_those_of_float32() {
        let root = tempfile::tempdir().unwrap();
        let (arrays, output) = (root.path().join("arrays"), root.path().join("samples"));
        array(&arrays.join("a.npy"), &[4, 2], false, |at| at as f32);
        let bytes = fs::read(arrays.join("a.npy")).unwrap();
        let end = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        let mut double = bytes[..end].to_vec();
        let kind = double.windows(2).position(|pair| pair == b"f4").unwrap();
        double[kind + 1] = b'8';
        double.extend((0..8).flat_map(|at| f64::from(at).to_le_bytes()));
        fs::write(arrays.join("b.npy"), double).unwrap();
        convert(&arrays, &output, &ConvertConfig::default(), &Silent).unwrap();
        let samples = Samples::open(&output, true).unwrap();
        assert_eq!(values(&samples, 0), values(&samples, 1));
    }
}
