//! Samples kept as they are: arrays of one width in shards, for data that is read from other programs'
//! files once and trained on many times.
//!
//! The shards are those of augmented windows: Arrow IPC, mapped, checksummed, written once, the
//! manifest last. A folder that was left half-made is gone on with: each shard that is there with its
//! receipt, made from the same inputs, is kept. Where the values come from is the caller's matter.

use std::collections::HashSet;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use arrow_buffer::MutableBuffer;
use firebox_core::{Event, Key, Listener, SeriesValues, Storage, count};
use half::f16;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::element::{self, Element, Lost, Values, Zeros, name};
use crate::error::{CacheError, Damage};
use crate::files::{FileRecord, check_file, flush_folder, replace_flushed, write_flushed};
use crate::lock;
use crate::manifest;
use crate::mapped::Mapped;
use crate::room;
use crate::shard::{self, Columns, Layout, Shard};
use crate::shards::Record;

/// Names the format and its version: all samples are as long as the longest.
const PADDED: &str = "samples-v1";
/// The same of samples that are as long as their valid steps.
const PACKED: &str = "samples-v2";

/// What is done where there is no memory for a shard, of which each thread makes one.
const LESS_MEMORY: &str = "give the process more memory (ulimit -v and -d), make smaller shards (`--shard-size`), or let fewer threads make them, as with RAYON_NUM_THREADS=1";

/// What a folder of samples is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleSpec {
    /// Covers the inputs and how they are read. A folder that was finished under another key is refused, and one that
    /// was begun, unless it was from the same source.
    pub key: Key,
    /// Where the inputs lie, such as their folder: what was begun from there and not finished, with other settings or
    /// before they changed, is begun anew.
    pub source: String,
    /// Steps of the longest sample, and channels: `[time, channel]`.
    pub shape: [usize; 2],
    /// The type that values are stored in.
    pub storage: Storage,
    /// Class names that labels index.
    pub classes: Vec<String>,
    /// Valid steps and label of each sample.
    pub samples: Vec<(u32, Option<u32>)>,
    /// A name for each sample, no two alike; empty where they have none.
    pub names: Vec<String>,
    /// Size of a shard in bytes.
    pub shard_bytes: usize,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Manifest {
    format: String,
    key: Key,
    shape: [usize; 2],
    storage: Storage,
    classes: Vec<String>,
    records: usize,
    records_per_shard: usize,
    /// Left out where samples have none, as in folders that were made before there were names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    names: Vec<String>,
    /// What the storage type made zeros of in each shard; left out where it is nothing in any, as in folders that were
    /// made before it was kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    zeros: Vec<Zeros>,
    files: Vec<FileRecord>,
    /// BLAKE3 of this manifest with an empty checksum.
    checksum: String,
}

impl Manifest {
    fn own_checksum(&self) -> Result<String, serde_json::Error> {
        let bare = Self { checksum: String::new(), ..self.clone() };
        Ok(blake3::hash(&serde_json::to_vec(&bare)?).to_hex().to_string())
    }

    fn read(folder: &Path) -> Result<Self, Damage> {
        let text = fs::read(folder.join(manifest::NAME)).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Damage::Missing,
            _ => Damage::Unreadable(error),
        })?;
        let broken = |error| Damage::Content(format!("the manifest is broken: {error}"));
        let manifest: Self = serde_json::from_slice(&text).map_err(broken)?;
        if manifest.own_checksum().map_err(broken)? != manifest.checksum {
            return Err(Damage::Checksum);
        }
        let per_shard = manifest.records_per_shard;
        let files = manifest
            .records
            .checked_div(per_shard)
            .map(|full| full + usize::from(!manifest.records.is_multiple_of(per_shard)));
        let is_known = [PADDED, PACKED].contains(&&*manifest.format);
        if !is_known || files != Some(manifest.files.len()) {
            return Err(Damage::Content("the manifest is of another format".to_owned()));
        }
        if let Some([names, samples]) = ill_named(manifest.names.len(), manifest.records) {
            return Err(Damage::Content(format!("the manifest has {names} for {samples}")));
        }
        Ok(manifest)
    }
}

/// How many names and samples there are, in words, if neither each sample has a name nor none has.
fn ill_named(names: usize, samples: usize) -> Option<[String; 2]> {
    let counted = [(names, "name"), (samples, "sample")];
    let in_words = || counted.map(|(number, noun)| count(number as u64, noun));
    (names != 0 && names != samples).then(in_words)
}

/// Says that a shard is whole, and what it was made from.
#[derive(Debug, Serialize, Deserialize)]
struct Receipt {
    key: Key,
    file: FileRecord,
    /// The format, and samples of each shard: other folders under the key may have been begun with others.
    #[serde(default)]
    format: String,
    #[serde(default)]
    records_per_shard: usize,
    /// What the storage type made zeros of in it.
    #[serde(default)]
    zeros: Zeros,
}

impl SampleSpec {
    /// Refuses names, steps and labels that cannot be those of the samples, before anything is made of them.
    fn check(&self) -> Result<(), CacheError> {
        let refuse = |message| Err(CacheError::Declared(message));
        if let Some([names, samples]) = ill_named(self.names.len(), self.samples.len()) {
            return refuse(format!("{samples} have {names}; give one for each, or none"));
        }
        let mut known = HashSet::new();
        if let Some(twice) = self.names.iter().find(|name| !known.insert(name.as_str())) {
            return refuse(format!(
                "two samples are called `{twice}`; name each of them otherwise"
            ));
        }
        let ([longest, _], classes) = (self.shape, self.classes.len());
        for (sample, (steps, label)) in self.samples.iter().enumerate() {
            if *steps as usize > longest {
                return refuse(format!(
                    "sample {sample} has {steps} steps, and the longest was said to have {longest}"
                ));
            }
            if let Some(label) = label.filter(|label| *label as usize >= classes) {
                let classes = count(classes as u64, "class name");
                return refuse(format!(
                    "sample {sample} has the label {label}, which is none of {classes}, from 0"
                ));
            }
        }
        Ok(())
    }

    /// How shards hold the samples: without padding where not all are of one length.
    fn layout(&self) -> Layout {
        let [longest, _] = self.shape;
        // A column of samples of one length holds no more numbers of each than this.
        let is_wide = longest.saturating_mul(self.shape[1]) > i32::MAX as usize;
        let is_packed =
            is_wide || self.samples.iter().any(|(steps, _)| (*steps as usize) < longest);
        Layout { shape: self.shape, storage: self.storage, is_packed }
    }

    /// Bytes of the values of some samples.
    fn bytes(&self, layout: &Layout, samples: Range<usize>) -> u64 {
        let size = (layout.shape[1] * element::bytes(self.storage)) as u64;
        let steps = |(steps, _): &(u32, _)| match layout.is_packed {
            true => u64::from(*steps),
            false => layout.shape[0] as u64,
        };
        self.samples[samples].iter().map(steps).sum::<u64>() * size
    }

    /// Samples of each shard but the last: as many as fit into its size wherever they stand.
    fn per_shard(&self, layout: &Layout) -> usize {
        let count = self.samples.len();
        let of = |bytes: u64| (self.shard_bytes as u64 / bytes.max(1)).max(1) as usize;
        let longest = (layout.width() * element::bytes(self.storage)) as u64;
        let mean = self.bytes(layout, 0..count) / (count as u64).max(1);
        let (fewest, mut most) = (of(longest), of(mean).min(count.max(1)));
        let fits = |most: usize| {
            let ranges = (0..count).step_by(most).map(|start| start..(start + most).min(count));
            let mut bytes = ranges.map(|range| self.bytes(layout, range));
            bytes.all(|bytes| bytes <= self.shard_bytes as u64)
        };
        while most > fewest && !fits(most) {
            most = (most / 2).max(fewest);
        }
        most.max(fewest)
    }
}

/// Samples in mapped shards.
#[derive(Clone, Debug)]
pub struct Samples {
    path: PathBuf,
    manifest: Arc<Manifest>,
    mapped: Mapped,
}

impl Samples {
    /// Writes a folder of samples, or goes on with one that was begun; `read` appends the values of a
    /// sample, `[time, channel]`, its valid steps alone. Shards are made on all threads; each takes
    /// `shard_bytes` of memory meanwhile. Progress is reported in the stage `convert`, and values that the storage type
    /// made zeros of as a warning, whenever their shards were made.
    ///
    /// # Errors
    ///
    /// Before anything is written, when names, steps or labels cannot be those of the samples; what `read` returns, and
    /// when it gives more or fewer values than were declared; when the folder belongs to other inputs; when a value does
    /// not fit the storage; when the disk or memory is refused. What was finished before stays and is used the next time.
    pub fn write<E>(
        folder: &Path,
        spec: &SampleSpec,
        listener: &dyn Listener,
        read: impl Fn(usize, &mut Vec<f32>) -> Result<(), E> + Sync,
    ) -> Result<Self, E>
    where
        E: From<CacheError> + Send,
    {
        spec.check()?;
        fs::create_dir_all(folder).map_err(CacheError::io("create the folder", folder))?;
        let _lock = lock::exclusive(&folder.join(".lock"), &AtomicBool::new(false), || {
            let message = format!("waiting for another program that writes {}", folder.display());
            listener.on(&Event::Warning { message });
        })?;
        refuse_other(folder, spec)?;
        let making = Making::begin(folder, spec)?;
        let (ranges, done) = (making.ranges(), Mutex::new(0_u64));
        let total = spec.samples.len() as u64;
        let make = |(index, range): (usize, &Range<usize>)| -> Result<(FileRecord, Zeros), E> {
            let made = match making.receipt(index) {
                Some(made) => made,
                None => making.write(index, range.clone(), &read)?,
            };
            let (stage, unit) = ("convert".to_owned(), "samples".to_owned());
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            *done += range.len() as u64;
            // Within the lock, so that no listener hears of less than before.
            listener.on(&Event::Progress { stage, done: *done, total, unit });
            Ok(made)
        };
        let made = ranges.par_iter().enumerate().map(|(i, range)| make((i, range)));
        let made = made.collect::<Result<Vec<_>, E>>()?;
        let (files, mut zeros): (Vec<_>, Vec<_>) = made.into_iter().unzip();
        if zeros.iter().all(Zeros::are_none) {
            zeros.clear();
        }
        // Runs are named after the manifest: a folder whose shards come out as they were stays the same one.
        if let Some(finished) = &making.finished
            && finished.files == files
        {
            zeros.clone_from(&finished.zeros);
        }
        let mut manifest = Manifest {
            format: making.format().to_owned(),
            key: spec.key,
            shape: spec.shape,
            storage: spec.storage,
            classes: spec.classes.clone(),
            records: spec.samples.len(),
            records_per_shard: making.per_shard,
            names: spec.names.clone(),
            zeros,
            files,
            checksum: String::new(),
        };
        let path = folder.join(manifest::NAME);
        let json = |e: serde_json::Error| CacheError::io("write", &path)(e.into());
        manifest.checksum = manifest.own_checksum().map_err(json)?;
        let text = serde_json::to_vec_pretty(&manifest).map_err(json)?;
        replace_flushed(&path, &text)?;
        for index in 0..manifest.files.len() {
            // They have done their work; one that stays does no harm.
            let _ = fs::remove_file(receipt_path(folder, index));
        }
        remove_further(folder, manifest.files.len());
        flush_folder(folder)?;
        let samples = Self::open(folder, false)?;
        if let Some(message) = samples.lost() {
            listener.on(&Event::Warning { message });
        }
        Ok(samples)
    }

    /// Maps a folder of samples. `verify` says whether to read all of it and compare checksums, or
    /// only sizes.
    ///
    /// # Errors
    ///
    /// When it is not whole, or no folder of samples.
    pub fn open(folder: &Path, verify: bool) -> Result<Self, CacheError> {
        let damaged = |name: &str| {
            let path = folder.join(name);
            move |source| CacheError::Samples { path, source }
        };
        let manifest = Manifest::read(folder).map_err(damaged(manifest::NAME))?;
        let (shape, storage) = (manifest.shape, manifest.storage);
        let layout = Layout { shape, storage, is_packed: manifest.format == PACKED };
        let shard = |(index, file): (usize, &FileRecord)| {
            let start = index * manifest.records_per_shard;
            let rows = manifest.records_per_shard.min(manifest.records - start);
            let shard = Shard::open(folder, file, &layout, rows, verify);
            shard.map(Shard::converted).map_err(damaged(&file.name))
        };
        let shards = manifest.files.iter().enumerate().map(shard).collect::<Result<_, _>>()?;
        let sizes = [manifest.records, manifest.records_per_shard];
        let mapped = Mapped::new(shards, sizes, manifest.shape, manifest.storage);
        Ok(Self { path: folder.to_owned(), manifest: Arc::new(manifest), mapped })
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.manifest.records
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Steps of the longest sample, and channels: `[time, channel]`.
    pub fn shape(&self) -> [usize; 2] {
        self.manifest.shape
    }

    /// The type that values are stored in.
    pub fn storage(&self) -> Storage {
        self.manifest.storage
    }

    /// Class names that the labels index.
    pub fn classes(&self) -> &[String] {
        &self.manifest.classes
    }

    /// The name of a sample, if they have names.
    pub fn name(&self, index: usize) -> Option<&str> {
        self.manifest.names.get(index).map(String::as_str)
    }

    /// What to say of values that their type made zeros of, with the way out, if they are more than a few.
    pub fn lost(&self) -> Option<String> {
        let zeros: Zeros = self.manifest.zeros.iter().copied().sum();
        zeros.warning(
            "multiply the arrays by a constant before they are converted, or store them as f32 or bf16 (`--storage`)",
        )
    }

    /// What they were made from.
    pub fn key(&self) -> Key {
        self.manifest.key
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes on disk, without the manifest.
    pub fn bytes(&self) -> u64 {
        self.manifest.files.iter().map(|file| file.bytes).sum()
    }

    /// Valid steps and class of a sample, without looking at the rest of it.
    ///
    /// # Panics
    ///
    /// When there is no such sample.
    pub fn sample(&self, index: usize) -> (u32, Option<u32>) {
        self.mapped.sample(index)
    }

    /// What a sample is, without its values.
    ///
    /// # Panics
    ///
    /// When there is no such sample.
    pub fn record(&self, index: usize) -> Record {
        let (shard, row) = self.mapped.place(index);
        let (length, label, window, version) = shard.about(row);
        Record { length, label, window, version }
    }

    /// The values of a sample as they are stored, its valid steps alone, in place.
    ///
    /// # Panics
    ///
    /// When there is no such sample.
    pub fn values(&self, index: usize) -> Values<'_> {
        let (shard, row) = self.mapped.place(index);
        let [_, channels] = self.shape();
        shard.values(row).part(..shard.sample(row).0 as usize * channels)
    }

    /// The values of each sample, `[time, channel]`, its valid steps alone, as those of a series: they stay
    /// where they are mapped.
    pub fn series_values(&self) -> Vec<SeriesValues> {
        self.mapped.series_values()
    }

    /// Writes the values of samples as f32, each cut or padded with zeros to `steps`.
    ///
    /// # Shapes
    ///
    /// - `out`: `[sample, steps, channel]`, row-major
    ///
    /// # Panics
    ///
    /// When there is no such sample, or `out` has another length.
    pub fn gather(&self, indices: &[usize], steps: usize, out: &mut [f32]) {
        self.mapped.gather(indices, steps, out);
    }

    /// Whether these samples, which have just been read, were there.
    ///
    /// # Errors
    ///
    /// As for [`Shards::check_read`](crate::Shards::check_read).
    pub fn check_read(&self, indices: &[usize]) -> Result<(), CacheError> {
        self.mapped.check_read(indices)
    }

    /// Tells the system that these samples are read soon.
    pub fn will_need(&self, samples: Range<usize>) {
        self.mapped.will_need(samples);
    }
}

/// What a folder was begun with.
#[derive(Serialize, Deserialize)]
struct Beginning {
    key: Key,
    source: String,
}

/// Refuses a folder that holds samples of other inputs, finished or begun.
fn refuse_other(folder: &Path, spec: &SampleSpec) -> Result<(), CacheError> {
    let begun = folder.join("key.json");
    let other = || {
        let what = "inputs or settings";
        Err(CacheError::OtherInputs { path: folder.to_owned(), what })
    };
    // One that cannot be read was being written when its process ended: each shard that is there has a
    // key of its own.
    let text = fs::read(&begun).unwrap_or_default();
    let found = serde_json::from_slice::<Beginning>(&text).ok();
    // Folders of before have the key alone.
    let alone =
        || Some(Beginning { key: serde_json::from_slice(&text).ok()?, source: String::new() });
    let is_finished = folder.join(manifest::NAME).exists();
    match found.or_else(alone) {
        Some(found) if found.key == spec.key => return Ok(()),
        Some(found) if is_finished || found.source != spec.source => return other(),
        None if is_finished => return other(),
        _ => {}
    }
    let beginning = Beginning { key: spec.key, source: spec.source.clone() };
    let text = serde_json::to_vec(&beginning)
        .map_err(|error| CacheError::io("write", &begun)(error.into()))?;
    // Not a moment without one: the folder would be of somebody else.
    replace_flushed(&begun, &text)
}

/// Removes shards with this number and larger ones, of what was begun before with more of them, and what was left of each.
/// Several are made at once, so that there may be gaps between them.
fn remove_further(folder: &Path, first: usize) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if shard_number(&name).is_some_and(|number| number >= first) {
            // One that stays does no harm.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The number of the shard that a file is, or a receipt or an unfinished part of.
fn shard_number(name: &str) -> Option<usize> {
    let (number, kind) = name.strip_prefix("shard-")?.split_once('.')?;
    let is_own = ["arrow", "arrow.part", "json", "json.part"].contains(&kind);
    number.parse().ok().filter(|_| is_own)
}

fn shard_name(index: usize) -> String {
    format!("shard-{index:05}.arrow")
}

fn receipt_path(folder: &Path, index: usize) -> PathBuf {
    folder.join(format!("shard-{index:05}.json"))
}

/// The making of a folder's shards.
struct Making<'a> {
    folder: &'a Path,
    spec: &'a SampleSpec,
    layout: Layout,
    per_shard: usize,
    /// Bytes of the values of all samples.
    bytes: u64,
    /// What says that all shards were made, of a folder that is made again because some are damaged.
    finished: Option<Manifest>,
}

impl<'a> Making<'a> {
    /// Refuses samples that the disk has no room for, beside those that are there already.
    fn begin(folder: &'a Path, spec: &'a SampleSpec) -> Result<Self, CacheError> {
        let layout = spec.layout();
        let (samples, per_shard) = (spec.samples.len(), spec.per_shard(&layout));
        let bytes = spec.bytes(&layout, 0..samples);
        let mut making = Self { folder, spec, layout, per_shard, bytes, finished: None };
        let is_own = |own: &Manifest| making.goes_on(own.key, &own.format, own.records_per_shard);
        making.finished = Manifest::read(folder).ok().filter(is_own);
        let size = |index| fs::metadata(making.shard(index)).map_or(0, |file| file.len());
        let there: u64 = (0..samples.div_ceil(per_shard)).map(size).sum();
        match room::free(folder) {
            Some(free) if free.saturating_add(there) < bytes => {
                Err(CacheError::NoRoomForSamples { path: folder.to_owned(), samples, bytes, free })
            }
            _ => Ok(making),
        }
    }

    fn format(&self) -> &'static str {
        if self.layout.is_packed { PACKED } else { PADDED }
    }

    /// Whether shards that were made under a key, in a format and of so many samples are these.
    fn goes_on(&self, key: Key, format: &str, per_shard: usize) -> bool {
        (self.spec.key, self.format(), self.per_shard) == (key, format, per_shard)
    }

    /// The samples of each shard.
    fn ranges(&self) -> Vec<Range<usize>> {
        let count = self.spec.samples.len();
        let starts = (0..count).step_by(self.per_shard);
        starts.map(|start| start..(start + self.per_shard).min(count)).collect()
    }

    fn shard(&self, index: usize) -> PathBuf {
        self.folder.join(shard_name(index))
    }

    /// A shard that an earlier run has finished, if it is whole, and what became zeros in it.
    fn receipt(&self, index: usize) -> Option<(FileRecord, Zeros)> {
        let (file, zeros) = match &self.finished {
            Some(manifest) => {
                let zeros = manifest.zeros.get(index).copied().unwrap_or_default();
                (manifest.files.get(index)?.clone(), zeros)
            }
            None => {
                let text = fs::read(receipt_path(self.folder, index)).ok()?;
                let own: Receipt = serde_json::from_slice(&text).ok()?;
                let goes_on = self.goes_on(own.key, &own.format, own.records_per_shard);
                goes_on.then_some((own.file, own.zeros))?
            }
        };
        let fits = file.name == shard_name(index) && check_file(self.folder, &file, true).is_ok();
        fits.then_some((file, zeros))
    }

    fn write<E: From<CacheError>>(
        &self,
        index: usize,
        range: Range<usize>,
        read: &impl Fn(usize, &mut Vec<f32>) -> Result<(), E>,
    ) -> Result<(FileRecord, Zeros), E> {
        let lost = Lost::default();
        let values = match self.spec.storage {
            Storage::F32 => self.values::<f32, E>(range.clone(), read, &lost),
            Storage::F16 => self.values::<f16, E>(range.clone(), read, &lost),
            Storage::Bf16 => self.values::<u16, E>(range.clone(), read, &lost),
        }?;
        let mut columns = Columns::default();
        for sample in range {
            let (length, label) = self.spec.samples[sample];
            columns.length.push(length);
            columns.label.push(label);
            columns.window.push(sample as u32);
            columns.version.push(0);
        }
        let (name, path) = (shard_name(index), self.shard(index));
        let part = self.folder.join(format!("{name}.part"));
        let encode = |source| CacheError::Encode { path: path.clone(), source };
        let batch = self.layout.batch(values, columns).map_err(encode)?;
        let written = shard::write(&part, &batch);
        if written.is_err() {
            // A full disk is not made fuller by what is of no use.
            let _ = fs::remove_file(&part);
        }
        let file = FileRecord { name, ..written.map_err(|error| error.of_all(self.bytes))? };
        fs::rename(&part, &path).map_err(CacheError::io("rename into place", &path))?;
        let receipt = Receipt {
            key: self.spec.key,
            file: file.clone(),
            format: self.format().to_owned(),
            records_per_shard: self.per_shard,
            zeros: lost.zeros(),
        };
        let to = receipt_path(self.folder, index);
        let text =
            serde_json::to_vec(&receipt).map_err(|e| CacheError::io("write", &to)(e.into()))?;
        write_flushed(&to, &text)?;
        Ok((file, receipt.zeros))
    }

    /// The values of samples one after the other, padded with zeros unless they are packed.
    fn values<T: Element, E: From<CacheError>>(
        &self,
        range: Range<usize>,
        read: &impl Fn(usize, &mut Vec<f32>) -> Result<(), E>,
        lost: &Lost,
    ) -> Result<MutableBuffer, E> {
        let Self { spec, layout, .. } = self;
        let bytes = spec.bytes(layout, range.clone()) as usize;
        let mut buffer = shard::zeroed(bytes, LESS_MEMORY)?;
        let mut left = buffer.typed_data_mut::<T>();
        let mut scratch = Vec::with_capacity(layout.width());
        for sample in range {
            scratch.clear();
            read(sample, &mut scratch)?;
            let [_, channels] = layout.shape;
            let valid = spec.samples[sample].0 as usize * channels;
            let width = if layout.is_packed { valid } else { layout.width() };
            let (out, rest) = left.split_at_mut(width);
            left = rest;
            if scratch.len() != valid {
                let found = count(scratch.len() as u64, "value");
                let message = format!(
                    "sample {sample} was read with {found}, and {valid} were declared: those of its valid steps, of \
                     {channels} channels each"
                );
                return Err(CacheError::Declared(message).into());
            }
            let stored = T::store(&scratch, &mut out[..valid]);
            stored.map_err(|at| CacheError::Value {
                sample,
                step: at / channels,
                channel: at % channels,
                value: scratch[at],
                storage: name(spec.storage),
            })?;
            lost.add(&scratch, &out[..valid]);
        }
        Ok(buffer)
    }
}
