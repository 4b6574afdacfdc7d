//! Checked series on disk: `series-v2/<key>/` with `values.npy`, `time.npy`, `labels.npy` if steps have
//! labels, and `manifest.json`. Of converted samples the manifest is all: their values stay in their shards.
//!
//! A folder appears under its key by one rename, whole or not at all; its manifest holds the
//! checksums of the data, and its own. What does not fit its manifest is made anew. Two runs that make the same
//! key at once both succeed, and one result stays. Large series are mapped: the system gives their
//! memory up when it is short.

use std::collections::HashMap;
use std::fs;
use std::io::{BufWriter, ErrorKind, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use firebox_cache::{Aside, FileRecord, SERIES, checksum_without};
use firebox_core::{
    Backing, Channel, Column, Filled, Key, Origin, Series, SeriesError, SeriesSet, SeriesValues,
    StepLabels,
};
use serde::{Deserialize, Serialize};

use crate::plain::{Kind, Mapped, Writer};
use crate::progress::Share;
use crate::raw::{NO_LABEL, label_of};
use crate::{Checks, DataError};

/// Of what is in a folder. A change needs a new number, and the bucket another name.
const VERSION: u32 = 2;
/// Of what a key covers, and of how files are read.
pub(crate) const KEY_VERSION: u32 = 5;
const VALUES: &str = "values.npy";
const TIME: &str = "time.npy";
const LABELS: &str = "labels.npy";
const MANIFEST: &str = "manifest.json";
/// Values of fewer bytes are read into memory, where no other program can change them.
const MAPPED: u64 = 32 << 20;
/// Steps of a set in memory that are written at once.
const AT_ONCE: usize = 1 << 16;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    version: u32,
    key: Key,
    /// The arrays.
    files: Vec<FileRecord>,
    channels: Vec<Channel>,
    classes: Vec<String>,
    series: Vec<Entry>,
    checks: Checks,
    /// Whether the values are in the shards of converted samples that the series were read from.
    #[serde(default)]
    in_place: bool,
    /// That of this manifest, see [`checksum_without`]; empty in those that were stored before it was kept.
    #[serde(default)]
    checksum: String,
}

impl Manifest {
    /// Reads the text of a manifest.
    ///
    /// # Errors
    ///
    /// Says what is damaged.
    fn read(text: &[u8]) -> Result<Self, String> {
        let manifest: Self = serde_json::from_slice(text)
            .map_err(|error| format!("its manifest is damaged: {error}"))?;
        let stated = &manifest.checksum;
        if !stated.is_empty() && checksum_without(text, stated) != *stated {
            return Err("its manifest is damaged: its checksum is of another text".to_owned());
        }
        Ok(manifest)
    }

    /// Its text, with the checksum of this.
    fn text(&mut self) -> Result<Vec<u8>, serde_json::Error> {
        self.checksum.clear();
        let bare = serde_json::to_vec_pretty(self)?;
        self.checksum = checksum_without(&bare, "");
        serde_json::to_vec_pretty(self)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) origin: Origin,
    pub(crate) steps: usize,
    pub(crate) segments: Vec<Range<usize>>,
    pub(crate) labels: LabelKind,
    #[serde(default, skip_serializing_if = "Filled::is_empty")]
    pub(crate) filled: Filled,
    /// Put there once the series are stored, see [`keep_groups`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<String>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LabelKind {
    None,
    PerStep,
    Whole(u32),
}

/// The folder of a key.
pub(crate) fn folder(cache: &Path, key: Key) -> PathBuf {
    cache.join(SERIES).join(key.to_string())
}

/// Removes what is stored under a key, of which it is not the content.
pub(crate) fn remove(cache: &Path, key: Key) -> Result<(), DataError> {
    let folder = folder(cache, key);
    let manifest = folder.join(MANIFEST);
    // First, so that nobody believes the rest; another process may have found out, too.
    match fs::remove_file(&manifest) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(DataError::io("remove", &manifest)(error));
        }
        _ => {}
    }
    let _ = fs::remove_dir_all(&folder);
    Ok(())
}

/// What was found in the series that are stored under a key, if they are there in their full size.
/// Their content is not read.
pub(crate) fn peek(cache: &Path, key: Key) -> Option<Checks> {
    let folder = folder(cache, key);
    let manifest = Manifest::read(&fs::read(folder.join(MANIFEST)).ok()?).ok()?;
    let whole = |file: &FileRecord| {
        fs::metadata(folder.join(&file.name)).is_ok_and(|found| found.len() == file.bytes)
    };
    let whole = manifest.files.iter().all(whole);
    (manifest.key == key && manifest.version == VERSION && whole).then_some(manifest.checks)
}

/// Reads what is stored under a key: `Ok(None)` if there is nothing. `samples` are the values of converted
/// samples, which may be those of its series.
///
/// # Errors
///
/// Says what is damaged, or anything once `stop` is true.
pub(crate) fn load(
    cache: &Path,
    key: Key,
    samples: Vec<SeriesValues>,
    stop: &AtomicBool,
) -> Result<Option<(SeriesSet, Checks)>, String> {
    let folder = folder(cache, key);
    let manifest = match fs::read(folder.join(MANIFEST)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return if folder.exists() { Err("it has no manifest".to_owned()) } else { Ok(None) };
        }
        Err(error) => return Err(format!("its manifest cannot be read: {error}")),
    };
    let manifest = Manifest::read(&manifest)?;
    if manifest.key != key || manifest.version != VERSION {
        return Err("its manifest belongs to another key".to_owned());
    }
    let named = |entry: &Entry| Some((entry.name.clone(), Arc::from(entry.group.as_deref()?)));
    let groups: HashMap<String, Arc<str>> = manifest.series.iter().filter_map(named).collect();
    let stored = match manifest.in_place {
        true if samples.len() != manifest.series.len() => {
            Err("its manifest is of other samples".to_owned())
        }
        true => match in_place(&manifest, samples) {
            Ok(set) => Ok(Some((set, manifest.checks))),
            Err(error) => Err(format!("its data breaks a promise: {error}")),
        },
        false => decode(&folder, manifest, Some(stop)).map(Some),
    };
    Ok(stored?.map(|(set, checks)| (set.grouped(&groups), checks)))
}

/// Stores the groups of series that are stored, by their names: they stay in their folder, and its manifest is replaced as a
/// whole.
pub(crate) fn keep_groups(
    cache: &Path,
    key: Key,
    groups: &HashMap<String, Arc<str>>,
) -> Result<(), DataError> {
    let folder = folder(cache, key);
    let path = folder.join(MANIFEST);
    let text = match fs::read(&path) {
        // Whoever pruned the cache took it; it is read on from where it is mapped.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        read => read.map_err(DataError::io("read", &path))?,
    };
    // What is damaged stays so, for the next run to see and to make anew.
    let Ok(mut manifest) = Manifest::read(&text) else { return Ok(()) };
    for entry in &mut manifest.series {
        entry.group = groups.get(&entry.name).map(|group| group.to_string());
    }
    let text = manifest.text().map_err(|error| DataError::io("encode", &path)(error.into()))?;
    let new = crate::table::temporary().prefix(".manifest").tempfile_in(&folder);
    let new = new.map_err(DataError::io("write to the folder", &folder))?.into_temp_path();
    write(&new, &text)?;
    new.persist(&path).map_err(|error| DataError::io("write", &path)(error.error))?;
    sync_folder(&folder);
    Ok(())
}

/// The times of all samples: each has the first of them.
struct Steps(Vec<i64>);

impl Backing<i64> for Steps {
    fn all(&self) -> &[i64] {
        &self.0
    }

    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

/// Series whose values are those of these samples. That they are finite was seen when they were converted.
fn in_place(manifest: &Manifest, samples: Vec<SeriesValues>) -> Result<SeriesSet, SeriesError> {
    let longest = manifest.series.iter().map(|entry| entry.steps).max().unwrap_or(0);
    let steps: Arc<dyn Backing<i64>> = Arc::new(Steps((0..longest as i64).collect()));
    let series = manifest.series.iter().zip(samples).map(|(entry, values)| Series {
        name: entry.name.clone(),
        time: Column::elsewhere(Arc::clone(&steps), 0..entry.steps),
        values,
        labels: match entry.labels {
            LabelKind::Whole(label) => StepLabels::Whole(label),
            LabelKind::None | LabelKind::PerStep => StepLabels::None,
        },
        segments: entry.segments.clone(),
        origin: entry.origin,
        filled: Filled::default(),
        group: None,
    });
    let (channels, classes) = (manifest.channels.clone(), manifest.classes.clone());
    SeriesSet::looked_at(channels, classes, series.collect())
}

/// Maps the arrays and divides them among the series; compares checksums until `verify` is true, if there is that.
fn decode(
    folder: &Path,
    manifest: Manifest,
    verify: Option<&AtomicBool>,
) -> Result<(SeriesSet, Checks), String> {
    let steps: usize = manifest.series.iter().map(|entry| entry.steps).sum();
    let width = manifest.channels.len();
    let record = |name: &str| {
        let mut files = manifest.files.iter();
        files.find(|file| file.name == name).ok_or_else(|| format!("its manifest lacks {name}"))
    };
    let values = record(VALUES)?;
    let elsewhere = values.bytes >= MAPPED;
    let values = Mapped::<f64>::open(folder, values, steps, Some(width), verify)?;
    let time = Mapped::<i64>::open(folder, record(TIME)?, steps, None, verify)?;
    let per_step = |entry: &Entry| matches!(entry.labels, LabelKind::PerStep);
    let labels = match manifest.series.iter().any(per_step) {
        true => Some(Mapped::<u32>::open(folder, record(LABELS)?, steps, None, verify)?),
        false => None,
    };
    let mut start = 0;
    let mut series = Vec::with_capacity(manifest.series.len());
    for entry in manifest.series {
        let rows = start..start + entry.steps;
        start = rows.end;
        series.push(Series {
            name: entry.name,
            time: part(&time, rows.clone(), elsewhere),
            values: part(&values, rows.start * width..rows.end * width, elsewhere).into(),
            labels: match (entry.labels, &labels) {
                (LabelKind::Whole(label), _) => StepLabels::Whole(label),
                (LabelKind::PerStep, Some(labels)) => {
                    let codes = labels.all()[rows].iter().copied();
                    StepLabels::PerStep(codes.map(label_of).collect())
                }
                (LabelKind::None | LabelKind::PerStep, _) => StepLabels::None,
            },
            segments: entry.segments,
            origin: entry.origin,
            filled: entry.filled,
            group: None,
        });
    }
    // What was stored a moment ago had been looked at.
    let of = if verify.is_some() { SeriesSet::new } else { SeriesSet::looked_at };
    let set = of(manifest.channels, manifest.classes, series)
        .map_err(|error| format!("its data breaks a promise: {error}"))?;
    [values.check(), time.check(), labels.map_or(Ok(()), |labels| labels.check())]
        .into_iter()
        .collect::<Result<(), String>>()?;
    Ok((set, manifest.checks))
}

fn part<T: Kind>(mapped: &Arc<Mapped<T>>, range: Range<usize>, elsewhere: bool) -> Column<T> {
    match elsewhere {
        true => Column::elsewhere(Arc::clone(mapped) as Arc<dyn Backing<T>>, range),
        false => mapped.all()[range].to_vec().into(),
    }
}

/// A result that is being made, in a folder that goes when this is dropped.
pub(crate) struct Making {
    aside: Aside,
    folder: PathBuf,
    pub(crate) arrays: Arrays,
}

/// The arrays of a result that is being made.
pub(crate) struct Arrays {
    pub(crate) values: Writer<f64>,
    pub(crate) time: Writer<i64>,
    /// If steps have labels.
    pub(crate) labels: Option<Writer<u32>>,
}

impl Arrays {
    fn create(folder: &Path, channels: usize, labelled: bool) -> Result<Self, DataError> {
        let values = Writer::create(folder, VALUES, Some(channels))?;
        let time = Writer::create(folder, TIME, None)?;
        let labels = labelled.then(|| Writer::create(folder, LABELS, None)).transpose()?;
        Ok(Self { values, time, labels })
    }

    /// Adds steps; their codes if they have labels.
    pub(crate) fn push(
        &mut self,
        values: &[f64],
        times: &[i64],
        codes: &[u32],
    ) -> Result<(), DataError> {
        self.values.push(values)?;
        self.time.push(times)?;
        self.labels.as_mut().map_or(Ok(()), |labels| labels.push(codes))
    }

    /// Adds a whole series of so many channels, unless it is stopped before.
    pub(crate) fn push_series(
        &mut self,
        series: &Series,
        width: usize,
        stop: &AtomicBool,
    ) -> Result<(), DataError> {
        let code = |step| match &series.labels {
            StepLabels::PerStep(labels) => labels[step],
            StepLabels::Whole(label) => Some(*label),
            StepLabels::None => None,
        };
        let steps = if self.labels.is_some() { series.len() } else { 0 };
        let codes: Vec<u32> = (0..steps).map(|step| code(step).unwrap_or(NO_LABEL)).collect();
        let times = series.time.as_slice();
        for start in (0..times.len()).step_by(AT_ONCE) {
            DataError::heed(stop)?;
            let rows = start..times.len().min(start + AT_ONCE);
            let values = series.values.part(rows.start * width..rows.end * width);
            let codes = codes.get(rows.clone()).unwrap_or_default();
            self.push(&values, &times[rows], codes)?;
        }
        Ok(())
    }

    fn finish(
        self,
        (stop, share): (&AtomicBool, &Share<'_>),
    ) -> Result<Vec<FileRecord>, DataError> {
        let Self { values, time, labels } = self;
        let of_labels = labels.as_ref().map_or(0, Writer::bytes);
        let (mut done, all) = (0, values.bytes() + time.bytes() + of_labels);
        let mut hashed = |bytes| {
            done += bytes;
            share.reached(done, all);
            DataError::heed(stop)
        };
        let mut files = vec![values.finish(&mut hashed)?, time.finish(&mut hashed)?];
        files.extend(labels.map(|labels| labels.finish(&mut hashed)).transpose()?);
        Ok(files)
    }
}

impl Making {
    /// Begins a result of so many channels.
    pub(crate) fn begin(cache: &Path, channels: usize, labelled: bool) -> Result<Self, DataError> {
        let (aside, folder) = aside(cache)?;
        let arrays = Arrays::create(&folder, channels, labelled)?;
        Ok(Self { aside, folder, arrays })
    }

    /// Begins the arrays anew, and hands over those that were written, which stay until the result is there. So many
    /// steps more are to be written.
    pub(crate) fn begin_again(
        &mut self,
        channels: usize,
        more: usize,
    ) -> Result<Arrays, DataError> {
        let steps = (self.arrays.time.numbers() + more) as u64;
        let labelled = self.arrays.labels.is_some();
        let label = if labelled { size_of::<u32>() } else { 0 };
        let bytes = steps * ((channels + 1) * size_of::<f64>() + label) as u64;
        let what = "a copy of the series whose gaps are filled, or of which channels are left out";
        check_room(self.aside(), what, bytes, firebox_cache::free_bytes(self.aside()))?;
        let folder = self.aside().join("again");
        fs::create_dir(&folder).map_err(DataError::io("make the folder", &folder))?;
        let arrays = Arrays::create(&folder, channels, labelled)?;
        self.folder = folder;
        Ok(std::mem::replace(&mut self.arrays, arrays))
    }

    /// A folder for what is needed only until the result is there.
    pub(crate) fn aside(&self) -> &Path {
        self.aside.path()
    }

    /// The series that were written until now, where they lie, and what is to be checked once they have been read.
    pub(crate) fn so_far(&mut self, about: &About) -> Result<Written, DataError> {
        let (values, time) = (self.arrays.values.so_far()?, self.arrays.time.so_far()?);
        let codes = self.arrays.labels.as_mut().map(Writer::so_far).transpose()?;
        let (width, mut start) = (about.channels.len(), 0);
        let series = about.series.iter().map(|entry| {
            let rows = start..start + entry.steps;
            start = rows.end;
            Series {
                name: entry.name.clone(),
                time: part(&time, rows.clone(), true),
                values: part(&values, rows.start * width..rows.end * width, true).into(),
                labels: StepLabels::None,
                segments: entry.segments.clone(),
                origin: entry.origin,
                filled: entry.filled.clone(),
                group: None,
            }
        });
        let set = SeriesSet::looked_at(about.channels.clone(), vec![], series.collect())?;
        Ok(Written { set, codes, values, time })
    }

    /// Whether everything that was read of what was written was there.
    pub(crate) fn check(&self, read: &Written) -> Result<(), DataError> {
        self.arrays.values.check(&read.values)?;
        self.arrays.time.check(&read.time)?;
        let labels = self.arrays.labels.as_ref().zip(read.codes.as_ref());
        labels.map_or(Ok(()), |(labels, codes)| labels.check(codes))
    }

    /// Completes the result and puts it in its place, unless it is stopped before. What was there is replaced unless it
    /// is whole.
    pub(crate) fn finish(
        self,
        (cache, key): (&Path, Key),
        about: About,
        heard: (&AtomicBool, &Share<'_>),
    ) -> Result<Made, DataError> {
        let Self { aside, folder, arrays } = self;
        let files = arrays.finish(heard)?;
        let mut manifest = about.manifest(key, files, false);
        let there = || matches!(load(cache, key, vec![], heard.0), Ok(Some(_)));
        let target = complete(&aside, &folder, cache, &mut manifest, there)?;
        Ok(Made { folder: target, manifest })
    }
}

/// Refuses more bytes than the disk has of a folder for what is being made, if it says how many are free.
pub(crate) fn check_room(
    aside: &Path,
    what: &'static str,
    bytes: u64,
    free: Option<u64>,
) -> Result<(), DataError> {
    let Some(free) = free.filter(|free| *free < bytes) else { return Ok(()) };
    // The bucket of the cache: the folder in it goes.
    let path = aside.parent().unwrap_or(aside).to_owned();
    Err(DataError::NoRoom { path, what, bytes, free })
}

/// A folder for a result that is being made, which goes with the first of the two.
fn aside(cache: &Path) -> Result<(Aside, PathBuf), DataError> {
    let bucket = cache.join(SERIES);
    fs::create_dir_all(&bucket).map_err(DataError::io("make the folder", &bucket))?;
    let aside = Aside::begin(&bucket).map_err(DataError::io("write to the folder", &bucket))?;
    // A folder within: temporary folders are private, the result need not be.
    let folder = aside.path().join("result");
    fs::create_dir(&folder).map_err(DataError::io("make the folder", &folder))?;
    Ok((aside, folder))
}

/// Writes the manifest and puts the folder in its place.
fn complete(
    aside: &Aside,
    folder: &Path,
    cache: &Path,
    manifest: &mut Manifest,
    whole: impl Fn() -> bool,
) -> Result<PathBuf, DataError> {
    let target = self::folder(cache, manifest.key);
    let text = manifest.text().map_err(|error| DataError::io("encode", &target)(error.into()))?;
    write(&folder.join(MANIFEST), &text)?;
    sync_folder(folder);
    put(folder, &target, aside.path(), whole)?;
    sync_folder(target.parent().unwrap_or(cache));
    Ok(target)
}

/// Stores what was found of converted samples, whose values stay where they are.
pub(crate) fn keep_in_place(
    cache: &Path,
    key: Key,
    about: About,
    samples: Vec<SeriesValues>,
) -> Result<(SeriesSet, Checks), DataError> {
    let (aside, folder) = aside(cache)?;
    let mut manifest = about.manifest(key, vec![], true);
    let never = AtomicBool::new(false);
    // What breaks a promise, such as two channels of one name, is refused before it is stored.
    let set = in_place(&manifest, samples.clone())?;
    let there = || matches!(load(cache, key, samples.clone(), &never), Ok(Some(_)));
    complete(&aside, &folder, cache, &mut manifest, there)?;
    Ok((set, manifest.checks))
}

/// Series of a result that is being made, mapped whatever their size. They are to be dropped before it.
pub(crate) struct Written {
    /// Without labels.
    pub(crate) set: SeriesSet,
    /// The codes of the labels, of all series one after the other, if steps have labels.
    pub(crate) codes: Option<Arc<Mapped<u32>>>,
    values: Arc<Mapped<f64>>,
    time: Arc<Mapped<i64>>,
}

/// A result that has just been stored.
pub(crate) struct Made {
    folder: PathBuf,
    manifest: Manifest,
}

impl Made {
    /// Reads it from its place. What was hashed a moment ago is not hashed again.
    pub(crate) fn open(self) -> Result<(SeriesSet, Checks), DataError> {
        let Self { folder, manifest } = self;
        decode(&folder, manifest, None)
            .map_err(|problem| DataError::io("read back", &folder)(std::io::Error::other(problem)))
    }
}

/// What a result holds beside its arrays.
pub(crate) struct About {
    pub(crate) channels: Vec<Channel>,
    pub(crate) classes: Vec<String>,
    pub(crate) series: Vec<Entry>,
    pub(crate) checks: Checks,
}

impl About {
    /// The manifest of such a result, which has its checksum once it is [written](Manifest::text).
    fn manifest(self, key: Key, files: Vec<FileRecord>, in_place: bool) -> Manifest {
        let Self { channels, classes, series, checks } = self;
        let (version, checksum) = (VERSION, String::new());
        Manifest { version, key, files, channels, classes, series, checks, in_place, checksum }
    }
}

/// Stores a set under its key, unless it is stopped before. What was there is replaced unless it is whole.
pub(crate) fn save(
    (cache, key): (&Path, Key),
    set: &SeriesSet,
    checks: &Checks,
    heard: (&AtomicBool, &Share<'_>),
) -> Result<(), DataError> {
    let per_step = |series: &Series| matches!(series.labels, StepLabels::PerStep(_));
    let labelled = set.series().iter().any(per_step);
    let mut making = Making::begin(cache, set.channels().len(), labelled)?;
    for series in set.series() {
        making.arrays.push_series(series, set.channels().len(), heard.0)?;
    }
    let about = About {
        channels: set.channels().to_vec(),
        classes: set.classes().to_vec(),
        series: set.series().iter().map(entry).collect(),
        checks: checks.clone(),
    };
    making.finish((cache, key), about, heard).map(drop)
}

/// Renames the finished folder to its place.
fn put(
    folder: &Path,
    target: &Path,
    aside: &Path,
    whole: impl Fn() -> bool,
) -> Result<(), DataError> {
    const ATTEMPTS: usize = 5;
    for attempt in 0..ATTEMPTS {
        match fs::rename(folder, target) {
            Ok(()) => return Ok(()),
            Err(error) if !target.exists() => return Err(DataError::io("write", target)(error)),
            // Another run was faster, and its result is as good.
            Err(_) if whole() => return Ok(()),
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

pub(crate) fn entry(series: &Series) -> Entry {
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
        filled: series.filled.clone(),
        group: None,
    }
}
