//! The store: entries under content keys, made once, checked whenever they are used.
//!
//! What an entry contains is decided in `plan`. Listing, verifying and pruning, which know nothing
//! of what entries contain, are in `keep`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use firebox_core::{Augmentation, Event, Key, Listener, Normaliser, TrainWindows};

use crate::error::{CacheError, Damage};
use crate::files::{self, Unfinished, flush_folder, temporary, write_flushed};
use crate::keep::{children, only_file};
use crate::lock::{self, Lock, apart};
use crate::manifest::{self, AnyManifest, Manifest};
use crate::plan::Plan;
use crate::room;
use crate::shard::Shard;
use crate::shards::Shards;

/// The bucket of augmented windows. The number changes with their format.
pub const AUGMENTED: &str = "augmented-v1";
/// The bucket of ingested series, which `firebox-data` writes.
pub const SERIES: &str = "series-v2";
/// The bucket of tokenised texts, which `firebox-pipeline` writes.
pub const TOKENS: &str = "tokens-v1";
/// The bucket of copies of remote files, which `firebox-remote` writes.
pub const REMOTE: &str = "remote-v1";

/// Size of a shard: large enough for the disk to be read at its full rate, small enough that a
/// damaged one is quickly remade and that two of them fit into memory.
const SHARD_BYTES: usize = 64 << 20;

/// A key for augmented windows that covers all that they depend on.
///
/// `windows` must cover the data, the split, the window rule and the kind of normalisation.
pub fn augmented_key(windows: Key, augmentation: &Augmentation, seed: u64) -> Key {
    // Debug output names every field and prints floats so that they round-trip.
    Key::builder(AUGMENTED, 1)
        .upstream("windows", windows)
        .field("augmentation", format!("{augmentation:?}"))
        .field("seed", seed.to_le_bytes())
        .finish()
}

/// Keeps a result from being pruned until it is dropped.
#[derive(Debug)]
pub struct Hold {
    _lock: Lock,
}

/// A cache folder. Several processes may use one at the same time.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
    shard_bytes: usize,
    /// Whether whoever waits for an entry wants it no more.
    stop: Arc<AtomicBool>,
}

impl Store {
    /// Opens a cache folder, and makes it if it is not there.
    ///
    /// # Errors
    ///
    /// When it is not there and cannot be made.
    pub fn open(root: &Path) -> Result<Self, CacheError> {
        fs::create_dir_all(root).map_err(CacheError::io("create the cache folder", root))?;
        // The working folder may change later.
        let root = std::path::absolute(root).map_err(CacheError::io("find", root))?;
        Ok(Self { root, shard_bytes: SHARD_BYTES, stop: Arc::default() })
    }

    /// The same store with another size of new shards, in bytes; 64 MiB otherwise. No record
    /// depends on it.
    pub fn with_shard_bytes(self, shard_bytes: usize) -> Self {
        Self { shard_bytes, ..self }
    }

    /// The same store, which ends soon with [`CacheError::Stopped`] once `stop` is true, whether it checks an entry,
    /// waits for another run that makes it, or makes it; nothing half-made is left.
    pub fn stopped_by(self, stop: &Arc<AtomicBool>) -> Self {
        Self { stop: Arc::clone(stop), ..self }
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The augmented versions of training windows: mapped if they are in the store and whole, made
    /// or mended otherwise.
    ///
    /// `key` must cover all that they depend on; [`augmented_key`] makes one. Every stored byte is
    /// read and compared with its checksum before it is used; what is damaged is made again, and
    /// nothing else. Processes that want the same entry at the same time make it once.
    ///
    /// Progress is reported in the stage `augment`, and damage as a warning, as are values that the storage type made
    /// zeros of, whoever made the entry.
    ///
    /// Only training windows are accepted:
    ///
    /// ```compile_fail
    /// use firebox_cache::Store;
    /// use firebox_core::{Augmentation, HeldOutWindows, Key, Normaliser, Silent};
    ///
    /// fn augment(store: &Store, key: Key, test: &HeldOutWindows, normaliser: &Normaliser) {
    ///     let _ = store.augmented(key, test, normaliser, &Augmentation::default(), 1, &Silent);
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// When a parameter is out of range, when there is no window, when the normaliser has other
    /// channels, when the storage type cannot hold a value, when the entry was made from something
    /// else, when its disk has too little room or refuses, when memory for a shard is refused, and when it
    /// is [stopped](Self::stopped_by).
    /// Nothing half-written is left.
    pub fn augmented(
        &self,
        key: Key,
        train: &TrainWindows,
        normaliser: &Normaliser,
        augmentation: &Augmentation,
        seed: u64,
        listener: &dyn Listener,
    ) -> Result<Shards, CacheError> {
        let plan = Plan::new(train, normaliser, augmentation, seed, self.shard_bytes, &self.stop)?;
        let entry = Entry { store: self, key, path: self.bucket(AUGMENTED).join(key.to_string()) };
        let used = self.hold(AUGMENTED, key)?;
        if let State::Whole(manifest, shards) = entry.state(&plan)? {
            warn_of_zeros(&manifest, listener);
            return Ok(Shards::new(entry.path, *manifest, shards, used));
        }
        let bucket = self.bucket(AUGMENTED);
        fs::create_dir_all(&bucket).map_err(CacheError::io("create", &bucket))?;
        let make = lock::path(&self.root, AUGMENTED, &key.to_string(), "make");
        let making = lock::exclusive(&make, &self.stop, || {
            warn(
                listener,
                format!("waiting for another run that is making {}", entry.path.display()),
            );
        })?;
        let (manifest, shards, made) = apart(|| entry.made(&plan, &making, listener))?;
        warn_of_zeros(&manifest, listener);
        let shards = Shards::new(entry.path, manifest, shards, used);
        Ok(if made { shards.made() } else { shards })
    }

    /// Whether there is an entry with a manifest. Whether it is whole is known once it is used.
    pub fn contains(&self, bucket: &str, key: Key) -> bool {
        self.bucket(bucket).join(key.to_string()).join(manifest::NAME).is_file()
    }

    /// Whether the entry of a key in the cache at `root` has every file of its manifest in its full
    /// size, or has the only one, whose size no manifest states. Nothing else of it is read, and nothing is made.
    pub fn complete(root: &Path, bucket: &str, key: Key) -> bool {
        let entry = root.join(bucket).join(key.to_string());
        let manifest = fs::read(entry.join(manifest::NAME)).ok();
        let manifest: Option<AnyManifest> =
            manifest.and_then(|text| serde_json::from_slice(&text).ok());
        let whole = |file: &files::FileRecord| {
            fs::metadata(entry.join(&file.name)).is_ok_and(|found| found.len() == file.bytes)
        };
        manifest.is_some_and(|manifest| match manifest.files.is_empty() {
            true if manifest.blake3.is_some() => only_file(bucket, &entry).is_ok(),
            _ => manifest.files.iter().all(whole),
        })
    }

    pub(crate) fn bucket(&self, bucket: &str) -> PathBuf {
        self.root.join(bucket)
    }

    /// Keeps a result from being pruned as long as the returned value lives, and marks it as used
    /// now. [`Shards`] do so by themselves; results of other buckets are held here.
    ///
    /// # Errors
    ///
    /// When the lock cannot be taken.
    pub fn hold(&self, bucket: &str, key: Key) -> Result<Hold, CacheError> {
        let path = lock::path(&self.root, bucket, &key.to_string(), "use");
        let lock = lock::shared(&path)?;
        lock::mark_used(&path);
        Ok(Hold { _lock: lock })
    }

    /// Does work that makes a result of a bucket which others keep, or finds it made, while nobody else does: waits for
    /// whoever is at it, until `stop` is true. `waiting` is called first if there is someone.
    ///
    /// # Errors
    ///
    /// When it is stopped, or the lock cannot be taken.
    pub fn alone<T: Send>(
        &self,
        (bucket, key): (&str, Key),
        stop: &AtomicBool,
        waiting: impl FnOnce(),
        work: impl FnOnce() -> T + Send,
    ) -> Result<T, CacheError> {
        let path = lock::path(&self.root, bucket, &key.to_string(), "make");
        let _lock = lock::exclusive(&path, stop, waiting)?;
        Ok(lock::apart(work))
    }
}

fn warn(listener: &dyn Listener, message: String) {
    listener.on(&Event::Warning { message });
}

/// Tells of values that the storage type made zeros of, if they are more than a few.
fn warn_of_zeros(manifest: &Manifest, listener: &dyn Listener) {
    let way_out = "normalise the windows (`window.normalise`), or store them as f32 or bf16 (`augment.storage`)";
    if let Some(message) = manifest.zeros.warning(way_out) {
        warn(listener, message);
    }
}

/// What is found under a key.
enum State {
    /// Nothing.
    Absent,
    /// All of it, checked.
    Whole(Box<Manifest>, Vec<Shard>),
    /// A manifest, and shards that do not fit it.
    Damaged(Box<Manifest>, Vec<(usize, Damage)>),
    /// No manifest that can be read.
    Broken(Damage),
}

/// One entry of augmented windows.
struct Entry<'a> {
    store: &'a Store,
    key: Key,
    path: PathBuf,
}

impl Entry<'_> {
    /// Reads and checks all that is stored.
    fn state(&self, plan: &Plan<'_>) -> Result<State, CacheError> {
        let manifest = match Manifest::read(&self.path) {
            Ok(Some(manifest)) => manifest,
            Ok(None) if self.path.exists() => {
                return Ok(State::Broken(Damage::Content("the manifest is missing".to_owned())));
            }
            Ok(None) => return Ok(State::Absent),
            Err(damage) => return Ok(State::Broken(damage)),
        };
        if let Some(what) = manifest.inputs.difference(&plan.inputs) {
            return Err(CacheError::OtherInputs { path: self.path.clone(), what });
        }
        let per_shard = manifest.records_per_shard;
        let fits = manifest.format == AUGMENTED
            && manifest.shape == plan.layout.shape
            && manifest.records == plan.records()
            && per_shard > 0
            && manifest.files.len() == manifest.records.div_ceil(per_shard);
        if !fits {
            return Ok(State::Broken(Damage::Content(
                "the manifest contradicts itself".to_owned(),
            )));
        }
        let (mut shards, mut damaged) = (Vec::new(), Vec::new());
        for index in 0..manifest.files.len() {
            CacheError::heed(&self.store.stop)?;
            match self.shard(plan, &manifest, index, true) {
                Ok(shard) => shards.push(shard),
                Err(damage) => damaged.push((index, damage)),
            }
        }
        let manifest = Box::new(manifest);
        Ok(match damaged.is_empty() {
            true => State::Whole(manifest, shards),
            false => State::Damaged(manifest, damaged),
        })
    }

    fn shard(
        &self,
        plan: &Plan<'_>,
        manifest: &Manifest,
        index: usize,
        hash: bool,
    ) -> Result<Shard, Damage> {
        let start = index * manifest.records_per_shard;
        let rows = manifest.records_per_shard.min(manifest.records - start);
        Shard::open(&self.path, &manifest.files[index], &plan.layout, rows, hash)
    }

    /// What is there, or is made now by whoever holds the lock, and whether it is made.
    fn made(
        &self,
        plan: &Plan<'_>,
        making: &Lock,
        listener: &dyn Listener,
    ) -> Result<(Manifest, Vec<Shard>, bool), CacheError> {
        // Where nothing can be locked, another maker may be alive.
        if making.is_real() {
            self.remove_leftovers(&self.store.bucket(AUGMENTED))?;
        }
        // It may have been made in the meantime.
        let made = match self.state(plan)? {
            State::Whole(manifest, shards) => return Ok((*manifest, shards, false)),
            State::Absent => self.make(plan, listener)?,
            State::Broken(damage) => {
                warn(listener, format!("{}: {damage}; it is made again", self.path.display()));
                self.make(plan, listener)?
            }
            State::Damaged(manifest, damaged) => {
                for (index, damage) in &damaged {
                    let path = self.path.join(&manifest.files[*index].name);
                    warn(listener, format!("{}: {damage}; it is made again", path.display()));
                }
                let indices: Vec<usize> = damaged.into_iter().map(|(index, _)| index).collect();
                match self.mend(plan, &manifest, &indices, listener)? {
                    Some(mended) => mended,
                    None => {
                        let what = "its shards come out different now; all are made again";
                        warn(listener, format!("{}: {what}", self.path.display()));
                        self.make(plan, listener)?
                    }
                }
            }
        };
        Ok((made.0, made.1, true))
    }

    /// Makes the whole entry in a temporary folder, and moves it into place.
    fn make(
        &self,
        plan: &Plan<'_>,
        listener: &dyn Listener,
    ) -> Result<(Manifest, Vec<Shard>), CacheError> {
        let bucket = self.store.bucket(AUGMENTED);
        self.remove_orphans(&bucket);
        plan.check_room(&self.path, room::free(&bucket))?;
        let name = self.key.to_string();
        let unfinished = Unfinished::folder(temporary(&bucket, &name))?;
        let indices: Vec<usize> = (0..plan.shards()).collect();
        let files = plan.write(unfinished.path(), &indices, listener, shard_name)?;
        plan.windows().set().check_read().map_err(CacheError::Lost)?;
        let manifest = Manifest {
            format: AUGMENTED.to_owned(),
            key: self.key,
            shape: plan.layout.shape,
            channels: plan.windows().set().channels().to_vec(),
            classes: plan.windows().classes().to_vec(),
            records: plan.records(),
            records_per_shard: plan.records_per_shard(),
            inputs: plan.inputs.clone(),
            zeros: plan.zeros(),
            files,
            checksum: String::new(),
        };
        let path = unfinished.path().join(manifest::NAME);
        let json = manifest.to_json().map_err(|e| CacheError::io("write", &path)(e.into()))?;
        write_flushed(&path, json.as_bytes())?;
        flush_folder(unfinished.path())?;
        if self.path.exists() {
            // Whoever has mapped the broken entry keeps its files.
            let old = temporary(&bucket, &name);
            fs::rename(&self.path, &old).map_err(CacheError::io("move away", &self.path))?;
            unfinished.rename(&self.path)?;
            // What cannot be removed now, as where somebody still reads it over NFS, is left over, and the new one is there.
            let _ = files::remove(&old);
        } else {
            unfinished.rename(&self.path)?;
        }
        flush_folder(&bucket)?;
        self.reopen(plan, manifest)
    }

    /// Makes the shards of these indices again. None if they come out different from what the
    /// manifest says.
    fn mend(
        &self,
        plan: &Plan<'_>,
        manifest: &Manifest,
        indices: &[usize],
        listener: &dyn Listener,
    ) -> Result<Option<(Manifest, Vec<Shard>)>, CacheError> {
        let Some(plan) = plan.with_records_per_shard(manifest.records_per_shard) else {
            return Ok(None);
        };
        let bucket = self.store.bucket(AUGMENTED);
        let unfinished = Unfinished::folder(temporary(&bucket, &self.key.to_string()))?;
        let made = plan.write(unfinished.path(), indices, listener, shard_name)?;
        if indices.iter().zip(&made).any(|(index, made)| manifest.files[*index] != *made) {
            return Ok(None);
        }
        for file in &made {
            let to = self.path.join(&file.name);
            fs::rename(unfinished.path().join(&file.name), &to)
                .map_err(CacheError::io("rename into place", &to))?;
        }
        flush_folder(&self.path)?;
        self.reopen(&plan, manifest.clone()).map(Some)
    }

    /// Maps what was just written: its checksums are those of what was sent to the disk.
    fn reopen(
        &self,
        plan: &Plan<'_>,
        manifest: Manifest,
    ) -> Result<(Manifest, Vec<Shard>), CacheError> {
        let shard = |index: usize| {
            self.shard(plan, &manifest, index, false).map_err(|source| CacheError::ReadBack {
                path: self.path.join(&manifest.files[index].name),
                source,
            })
        };
        let shards = (0..manifest.files.len()).map(shard).collect::<Result<_, _>>()?;
        Ok((manifest, shards))
    }

    /// Removes what earlier makers of this entry left when they died. The caller holds the lock
    /// that every living maker of it holds.
    /// What cannot be removed costs room and nothing else.
    fn remove_leftovers(&self, bucket: &Path) -> Result<(), CacheError> {
        let prefix = format!("{}.tmp-", self.key);
        for file in fs::read_dir(bucket).map_err(CacheError::io("list", bucket))? {
            let file = file.map_err(CacheError::io("list", bucket))?;
            if file.file_name().to_string_lossy().starts_with(&prefix) {
                let _ = files::remove(&file.path());
            }
        }
        Ok(())
    }

    /// Removes what makers of other entries left when they died: after a kill and a change of settings, nobody else
    /// would. Every living maker holds its lock `use`, so what is got alone here has none.
    fn remove_orphans(&self, bucket: &Path) {
        for path in children(bucket).unwrap_or_default() {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            let name = name.unwrap_or_default();
            let key = name.split_once(".tmp-").and_then(|(key, _)| key.parse::<Key>().ok());
            let Some(key) = key.filter(|key| *key != self.key) else { continue };
            let lock = lock::path(&self.store.root, AUGMENTED, &key.to_string(), "use");
            if let Ok(Some(_alone)) = lock::try_exclusive(&lock) {
                // What stays costs room and nothing else; `Store::list` tells of it.
                let _ = files::remove(&path);
            }
        }
    }
}

fn shard_name(index: usize) -> String {
    format!("shard-{index:05}.arrow")
}
