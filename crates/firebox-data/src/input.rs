//! From what the user named to files of a known format. Nothing is parsed here.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use firebox_core::Origin;

use crate::converted;
use crate::error::nearest;
use crate::guarded::guarded;
use crate::schema::Declared;
use crate::{DataConfig, DataError, Format};

/// A file to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Input {
    pub(crate) path: PathBuf,
    pub(crate) format: Format,
    pub(crate) origin: Origin,
    /// What tells it from others of its name: some of the folders that it lies in, such as `kitchen/`.
    pub(crate) within: String,
}

impl Input {
    /// The name of its series: that of the file without its extension, behind folders where files of several have one name.
    pub(crate) fn name(&self) -> String {
        format!("{}{}", self.within, self.stem())
    }

    /// The name of the file without its extension.
    pub(crate) fn stem(&self) -> String {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let stem = match self.format {
            Format::Market => {
                name.strip_suffix(".market.toml").or_else(|| name.strip_suffix(".toml"))
            }
            Format::Demand => {
                name.strip_suffix(".demand.toml").or_else(|| name.strip_suffix(".toml"))
            }
            Format::Clips => {
                name.strip_suffix(".clips.toml").or_else(|| name.strip_suffix(".toml"))
            }
            // The manifest stands for its folder.
            Format::Samples => {
                let folder = self.path.parent().and_then(Path::file_name).unwrap_or_default();
                return folder.to_string_lossy().into_owned();
            }
            _ => name.rsplit_once('.').map(|(stem, _)| stem),
        };
        stem.unwrap_or(&name).to_owned()
    }
}

/// The files of `path` and `test`, in the order in which they are declared.
pub(crate) fn inputs(config: &DataConfig) -> Result<Vec<Input>, DataError> {
    let train = if config.test.is_some() { Origin::Train } else { Origin::Unassigned };
    let sides = [(Some(&config.path), train), (config.test.as_ref(), Origin::Test)];
    let mut inputs: Vec<Input> = Vec::new();
    for (paths, origin) in sides {
        let Some(paths) = paths else { continue };
        if paths.0.is_empty() {
            return Err(DataError::NoPath);
        }
        for path in &paths.0 {
            for (path, format) in files(path, config)? {
                inputs.push(Input { path, format, origin, within: String::new() });
            }
        }
    }
    if let Some(other) = inputs.iter().find(|input| input.format != inputs[0].format) {
        return Err(DataError::MixedFormats {
            first: (inputs[0].path.clone(), inputs[0].format),
            second: (other.path.clone(), other.format),
        });
    }
    inputs.iter().try_for_each(check_kind)?;
    tell_apart(&mut inputs);
    Ok(inputs)
}

/// Names files of one name by the folders that they lie in, as few as tell them all apart: `p` of the folders `symbol=A` and
/// `symbol=B`. What folders do not tell apart stays. Copies of fetched files lie in folders of the cache, which tell them
/// apart by keys.
fn tell_apart(inputs: &mut [Input]) {
    let mut alike = HashMap::<(Origin, String), Vec<usize>>::new();
    for (index, input) in inputs.iter().enumerate() {
        alike.entry((input.origin, input.stem())).or_default().push(index);
    }
    for places in alike.into_values().filter(|places| places.len() > 1) {
        let folders = |index: &usize| -> Vec<String> {
            let path = &inputs[*index].path;
            let file = match inputs[*index].format {
                Format::Samples => path.parent().unwrap_or(path),
                _ => path,
            };
            let folders = file.parent().into_iter().flat_map(Path::components).rev();
            folders.map(|part| part.as_os_str().to_string_lossy().into_owned()).collect()
        };
        let folders: Vec<Vec<String>> = places.iter().map(folders).collect();
        let deepest = folders.iter().map(Vec::len).max().unwrap_or(0);
        let tell = |count: usize| {
            let of = |folders: &Vec<String>| {
                let own = &folders[..count.min(folders.len())];
                own.iter().rev().map(|folder| format!("{folder}/")).collect::<String>()
            };
            let names: Vec<String> = folders.iter().map(of).collect();
            let differ = names.iter().collect::<HashSet<_>>().len() == names.len();
            differ.then_some(names)
        };
        let names = (1..=deepest).find_map(tell);
        for (place, within) in places.into_iter().zip(names.into_iter().flatten()) {
            inputs[place].within = within;
        }
    }
}

fn files(path: &Path, config: &DataConfig) -> Result<Vec<(PathBuf, Format)>, DataError> {
    if path.as_os_str().is_empty() {
        return Err(DataError::NoPath);
    }
    if path.is_symlink() && !path.exists() {
        return Err(DataError::DeadLink { path: path.to_owned() });
    }
    let meta = fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => not_found(path),
        _ => DataError::io("read", path)(error),
    })?;
    let declared = config.format;
    // What is read is looked at several times, and may be mapped.
    if !meta.is_dir() && !meta.is_file() {
        return Err(DataError::NotAFile { path: path.to_owned() });
    }
    if !meta.is_dir() {
        let converted = matches!(declared, Format::Auto | Format::Samples)
            && path.file_name().is_some_and(|name| name == converted::MANIFEST);
        if let (true, Some(folder)) = (converted, path.parent()) {
            let here = folder.as_os_str().is_empty();
            return files(if here { Path::new(".") } else { folder }, config);
        }
        let format = match declared {
            Format::Samples => return Err(DataError::NotConverted { folder: path.to_owned() }),
            Format::Auto => Format::of(path)
                .ok_or_else(|| DataError::UnknownFormat { path: path.to_owned() })?,
            format => format,
        };
        return Ok(vec![(path.to_owned(), format)]);
    }
    if matches!(declared, Format::Auto | Format::Samples) {
        if converted::is_converted(path) {
            return Ok(vec![(path.join(converted::MANIFEST), Format::Samples)]);
        }
        if declared == Format::Samples || converted::is_begun(path) {
            return Err(DataError::NotConverted { folder: path.to_owned() });
        }
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(DataError::io("read the folder", path))? {
        let entry = entry.map_err(DataError::io("read the folder", path))?.path();
        let hidden = entry.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        let Some(format) = Format::of(&entry) else { continue };
        let wanted = declared == Format::Auto || declared == format;
        if wanted && !hidden && entry.is_symlink() && !entry.exists() {
            return Err(DataError::DeadLink { path: entry });
        }
        if wanted && !hidden && entry.is_file() && !is_label_file(&entry, config) {
            files.push((entry, format));
        }
    }
    files.sort_by(|a, b| a.0.cmp(&b.0));
    refuse_label_files(&files, config)?;
    if files.is_empty() {
        if matches!(declared, Format::Auto | Format::Npy) && has_class_folders(path) {
            return Err(DataError::ClassFolders { folder: path.to_owned() });
        }
        let inside = folders_of_data(path, declared);
        if !inside.is_empty() {
            return Err(DataError::DataInFolders { folder: path.to_owned(), inside });
        }
        let wanted = match declared {
            Format::Auto => {
                "converted sample, and no .csv, .tsv, .parquet, .pq, .arrow, .feather, .ipc, .npy, .ts, .market.toml, .demand.toml or .clips.toml"
            }
            Format::Csv => ".csv or .tsv",
            Format::Parquet => ".parquet or .pq",
            Format::Arrow => ".arrow, .feather or .ipc",
            Format::Npy => ".npy",
            Format::Ts => ".ts",
            Format::Market => ".market.toml",
            Format::Demand => ".demand.toml",
            Format::Clips => ".clips.toml",
            Format::Samples => "converted",
        };
        return Err(DataError::EmptyFolder { path: path.to_owned(), wanted });
    }
    Ok(files)
}

/// Ends of the names of files that hold data and are not read: packed ones, and formats of others.
const PACKED: [&str; 12] =
    ["gz", "zst", "bz2", "xz", "lz4", "zip", "npz", "h5", "hdf5", "xlsx", "xls", "mat"];

/// What of a folder that is named as data seems to be data, too, and is not read: each such folder with the names of packed
/// files, and of folders with files of the format that is read.
pub(crate) fn unread(config: &DataConfig, format: Format) -> Vec<(PathBuf, Vec<String>)> {
    let folders = config.path.0.iter().chain(config.test.iter().flat_map(|paths| &paths.0));
    // Of folders of converted samples, everything is their own.
    let folders = folders.filter(|path| format != Format::Samples && path.is_dir());
    let of = |folder: &PathBuf| {
        let is_packed = |path: &PathBuf| {
            let end = path.extension().map(|end| end.to_string_lossy().to_lowercase());
            end.is_some_and(|end| PACKED.contains(&end.as_str())) && path.is_file()
        };
        let all = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
        let mut left: Vec<PathBuf> = all.filter(is_packed).collect();
        left.extend(folders_of_data(folder, format));
        left.sort();
        let name = |path: PathBuf| Some(path.file_name()?.to_string_lossy().into_owned());
        let names: Vec<String> = left.into_iter().filter_map(name).collect();
        (!names.is_empty()).then(|| (folder.clone(), names))
    };
    folders.filter_map(of).collect()
}

/// Whether a folder right inside this one holds an array.
fn has_class_folders(folder: &Path) -> bool {
    let inside = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    let is_array = |entry: fs::DirEntry| Format::of(&entry.path()) == Some(Format::Npy);
    inside(folder).any(|entry| inside(&entry.path()).any(is_array))
}

/// The folders right inside this one that hold files of the format, in the order of their names.
fn folders_of_data(folder: &Path, declared: Format) -> Vec<PathBuf> {
    let inside = |folder: &Path| -> Vec<PathBuf> {
        let paths = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let is_shown = |path: &PathBuf| {
            path.file_name().is_some_and(|name| !name.to_string_lossy().starts_with('.'))
        };
        paths.filter(is_shown).collect()
    };
    let is_data = |path: &PathBuf| {
        Format::of(path).is_some_and(|format| declared == Format::Auto || declared == format)
    };
    let mut folders = inside(folder);
    folders.retain(|folder| inside(folder).iter().any(is_data));
    folders.sort();
    folders
}

/// Whether this is the label file of an array, which is read together with the array.
fn is_label_file(path: &Path, config: &DataConfig) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    config.columns.label.as_ref().is_some_and(|label| name.ends_with(&format!(".{label}.npy")))
}

/// Without a declared name for label files, `bars.y.npy` beside `bars.npy` would become a series.
fn refuse_label_files(files: &[(PathBuf, Format)], config: &DataConfig) -> Result<(), DataError> {
    if config.columns.label.is_some() {
        return Ok(());
    }
    let arrays = files.iter().filter(|(_, format)| *format == Format::Npy);
    match label_of_another(arrays.map(|(path, _)| path.as_path())) {
        Some((path, of, label)) => Err(DataError::LabelFile { path, of, label }),
        None => Ok(()),
    }
}

/// The first of some arrays that is named as the labels of another one, and that one.
pub(crate) fn label_of_another<'a>(
    mut arrays: impl Iterator<Item = &'a Path> + Clone,
) -> Option<(PathBuf, PathBuf, String)> {
    let there: HashSet<&Path> = arrays.clone().collect();
    arrays.find_map(|path| {
        let stem = path.file_stem()?.to_string_lossy();
        let (of, label) = stem.rsplit_once('.')?;
        let of = path.with_file_name(format!("{of}.npy"));
        there.contains(of.as_path()).then(|| (path.to_owned(), of, label.to_owned()))
    })
}

fn not_found(path: &Path) -> DataError {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let names: Vec<String> = fs::read_dir(folder.unwrap_or(Path::new(".")))
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let nearest = nearest(&name, names.iter().map(String::as_str));
    DataError::NotFound { path: path.to_owned(), nearest }
}

/// What the first bytes of a file say that it is.
fn kind_of(start: &[u8]) -> Option<(&'static str, Option<Format>)> {
    let kinds: [(&[u8], &str, Option<Format>); 11] = [
        (b"PAR1", "a Parquet file", Some(Format::Parquet)),
        (b"ARROW1", "an Arrow IPC file", Some(Format::Arrow)),
        (b"\xff\xff\xff\xff", "an Arrow IPC stream, which has no footer", None),
        (b"\x93NUMPY", "a NumPy array", Some(Format::Npy)),
        (b"PK\x03\x04", "a zip archive (as .npz, .xlsx and .zip files are)", None),
        (b"\x1f\x8b", "compressed by gzip", None),
        (b"\x28\xb5\x2f\xfd", "compressed by zstd", None),
        (b"BZh", "compressed by bzip2", None),
        (b"\xfd7zXZ", "compressed by xz", None),
        (b"\x89HDF", "an HDF5 file", None),
        (b"%PDF", "a PDF", None),
    ];
    kinds.into_iter().find(|(magic, ..)| start.starts_with(magic)).map(|(_, name, f)| (name, f))
}

/// Refuses a file that its first bytes show to be of another kind.
fn check_kind(input: &Input) -> Result<(), DataError> {
    let Input { path, format, .. } = input;
    let mut start = Vec::new();
    let file = fs::File::open(path).map_err(DataError::io("open", path))?;
    file.take(4096).read_to_end(&mut start).map_err(DataError::io("read", path))?;
    if start.is_empty() {
        return Err(DataError::Empty { path: path.clone() });
    }
    let wrong = |found, hint: &str| {
        Err(DataError::WrongKind { path: path.clone(), format: *format, found, hint: hint.into() })
    };
    match kind_of(&start) {
        // Of its schema, it has more to say where it is read.
        Some((_, Some(found @ (Format::Parquet | Format::Arrow)))) if found == *format => {
            guarded(input, || drop(Declared::read(path, found)))
        }
        Some((_, Some(found))) if found == *format => Ok(()),
        Some((name, Some(found))) => wrong(
            name,
            &format!("set `data.format` to \"{}\", or give it the right extension", found.name()),
        ),
        Some((name, None)) => wrong(name, "unpack or convert it first"),
        None if matches!(format, Format::Parquet | Format::Arrow | Format::Npy) => {
            let text = !start.contains(&0);
            let found = if text { "text" } else { "binary data of an unknown kind" };
            wrong(found, "check that it is the right file and that it was copied whole")
        }
        None if start.starts_with(b"\xff\xfe") || start.starts_with(b"\xfe\xff") => {
            wrong("text in UTF-16", "convert it to UTF-8 first")
        }
        None if start.contains(&0) => wrong("binary data", "check that it is the right file"),
        None => Ok(()),
    }
}
