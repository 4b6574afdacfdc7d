//! Listing, verifying and pruning. Entries of every bucket are treated alike: a folder that is named
//! by a key and holds a manifest. Copies of remote files have their locks within their folders, which stay
//! when they are removed, and parts of downloads that were cut short beside them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use firebox_core::Key;

use crate::error::{CacheError, Damage};
use crate::files::{self, FileRecord, check_file, temporary};
use crate::manifest::{self, AnyManifest, Manifest, checksum_without};
use crate::remote;
use crate::store::{AUGMENTED, REMOTE, SERIES, Store, TOKENS};
use crate::{aside, lock};

/// The buckets that are listed and pruned.
const BUCKETS: [&str; 5] = [AUGMENTED, SERIES, FORMER_SERIES, TOKENS, REMOTE];
/// Of earlier versions, which nothing reads any more.
const FORMER_SERIES: &str = "series-v1";
/// A temporary that names no lock counts as left over once nothing in it has changed for so long.
const ABANDONED: Duration = Duration::from_secs(60 * 60);

/// A finished result in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its bucket: what kind of result it is.
    pub bucket: &'static str,
    /// Its key.
    pub key: Key,
    /// Its folder.
    pub path: PathBuf,
    /// Bytes on disk, all files together.
    pub bytes: u64,
    /// When it was made or last used.
    pub last_used: SystemTime,
    /// Whether a running process uses it.
    pub in_use: bool,
    /// The address that it is a copy of, without names or passwords.
    pub url: Option<String>,
}

/// Something half-made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// Its file or folder.
    pub path: PathBuf,
    /// Bytes on disk.
    pub bytes: u64,
    /// Whether a running process may still be at it. Only dead ones are pruned.
    pub alive: bool,
    /// The address that it is a part of a copy of, without names or passwords.
    pub url: Option<String>,
}

/// All that a store holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Finished results, the least recently used first.
    pub stored: Vec<Stored>,
    /// Half-made ones.
    pub leftovers: Vec<Leftover>,
}

impl Listing {
    /// Bytes of everything.
    pub fn bytes(&self) -> u64 {
        let stored: u64 = self.stored.iter().map(|stored| stored.bytes).sum();
        stored + self.leftovers.iter().map(|leftover| leftover.bytes).sum::<u64>()
    }
}

/// What was found out about a finished result.
#[derive(Debug)]
pub struct Verified {
    /// The result.
    pub stored: Stored,
    /// Bytes that were compared with their checksums; 0 if the manifest states none.
    pub checked: u64,
    /// Damaged files with their damage. Empty if all is well.
    pub damaged: Vec<(PathBuf, Damage)>,
    /// Whether another process is making, fetching or removing it, so that nothing of it was looked at.
    pub left_alone: bool,
}

/// What pruning did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Results that were removed, the least recently used first.
    pub removed: Vec<Stored>,
    /// Results that had to go, but are in use by a running process.
    pub kept_in_use: Vec<Stored>,
    /// Half-made results of dead processes that were removed.
    pub leftovers: Vec<Leftover>,
    /// Bytes that were freed.
    pub freed: u64,
    /// Bytes that the store still holds.
    pub left: u64,
}

impl Store {
    /// All results, and what is half-made.
    ///
    /// # Errors
    ///
    /// When a folder cannot be read.
    pub fn list(&self) -> Result<Listing, CacheError> {
        let mut listing = Listing::default();
        for bucket in BUCKETS {
            for path in children(&self.bucket(bucket))? {
                let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
                let name = name.unwrap_or_default();
                match name.parse::<Key>() {
                    Ok(key) if bucket == REMOTE => self.remote(key, &path, &mut listing)?,
                    Ok(key) if path.join(manifest::NAME).is_file() => {
                        listing.stored.push(self.stored(bucket, key, path)?);
                    }
                    _ => listing.leftovers.push(self.leftover(path)?),
                }
            }
        }
        listing.stored.sort_by_key(|stored| (stored.last_used, stored.key));
        Ok(listing)
    }

    /// Compares every stored byte with its checksum. Nothing is mended: the next run that needs a
    /// damaged result makes it again. What another process has in hand is left alone.
    ///
    /// # Errors
    ///
    /// When a folder cannot be read.
    pub fn verify(&self) -> Result<Vec<Verified>, CacheError> {
        self.list()?.stored.into_iter().map(|stored| self.verify_one(stored)).collect()
    }

    fn verify_one(&self, stored: Stored) -> Result<Verified, CacheError> {
        let (mut damaged, mut checked) = (Vec::new(), 0);
        let Some(_used) = lock::try_shared(&self.use_lock(&stored))? else {
            return Ok(Verified { stored, checked, damaged, left_alone: true });
        };
        match recorded(&stored) {
            Ok(files) => {
                for file in files {
                    match check_file(&stored.path, &file, true) {
                        Ok(_) => checked += file.bytes,
                        Err(damage) => damaged.push((stored.path.join(&file.name), damage)),
                    }
                }
            }
            Err(damage) => damaged.push((stored.path.join(manifest::NAME), damage)),
        }
        Ok(Verified { stored, checked, damaged, left_alone: false })
    }

    /// Removes the least recently used results until no more than `max_bytes` are left, and what
    /// dead processes left half-made. Nothing that a running process uses is removed.
    ///
    /// # Errors
    ///
    /// When a folder cannot be read or removed.
    pub fn prune(&self, max_bytes: u64) -> Result<Pruned, CacheError> {
        let Listing { stored, leftovers } = self.list()?;
        let mut pruned =
            Pruned { left: stored.iter().map(|stored| stored.bytes).sum(), ..Pruned::default() };
        for leftover in leftovers {
            if leftover.alive || !self.remove_leftover(&leftover.path)? {
                pruned.left += leftover.bytes;
            } else {
                pruned.freed += leftover.bytes;
                pruned.leftovers.push(leftover);
            }
        }
        for stored in stored {
            if pruned.left <= max_bytes {
                break;
            }
            if self.remove(&stored)? {
                pruned.left -= stored.bytes;
                pruned.freed += stored.bytes;
                pruned.removed.push(stored);
            } else {
                pruned.kept_in_use.push(stored);
            }
        }
        Ok(pruned)
    }

    /// Removes something half-made, unless a process has begun to work at it in the meantime.
    fn remove_leftover(&self, path: &Path) -> Result<bool, CacheError> {
        if path.starts_with(self.bucket(REMOTE)) && path.is_file() {
            return remote::remove_part(path);
        }
        let lock = self.make_lock(path);
        let alone = lock.as_deref().map(lock::try_exclusive).transpose()?;
        if matches!(alone, Some(None)) {
            return Ok(false);
        }
        match files::remove(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
            removed => removed.map(|()| true).map_err(CacheError::io("remove", path)),
        }
    }

    /// The lock of whoever makes something, or the entry that it is named after, if there is one.
    fn make_lock(&self, path: &Path) -> Option<PathBuf> {
        if let Some(own) = aside::lock_of(path) {
            return Some(own);
        }
        let name = path.file_name()?.to_string_lossy().into_owned();
        let bucket = path.parent()?.file_name()?.to_string_lossy().into_owned();
        let key = name.split('.').next().filter(|key| key.parse::<Key>().is_ok())?;
        Some(self.lock(&bucket, key, "make")).filter(|lock| lock.is_file())
    }

    /// Removes a result unless a running process uses it.
    fn remove(&self, stored: &Stored) -> Result<bool, CacheError> {
        let Some(_alone) = lock::try_exclusive(&self.use_lock(stored))? else { return Ok(false) };
        if stored.bucket == REMOTE {
            // Whoever reads it holds it beside whoever fetches it.
            let read = self.lock(REMOTE, &stored.key.to_string(), "use");
            let Some(_alone) = lock::try_exclusive(&read)? else { return Ok(false) };
            remote::remove_copy(&stored.path)?;
            return Ok(true);
        }
        // Renamed first, so that nobody finds a part of it.
        let gone = temporary(&self.bucket(stored.bucket), &stored.key.to_string());
        let removed = fs::rename(&stored.path, &gone).and_then(|()| fs::remove_dir_all(&gone));
        match removed {
            // Whoever else prunes was faster.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
            removed => removed.map(|()| true).map_err(CacheError::io("remove", &stored.path)),
        }
    }

    fn lock(&self, bucket: &str, key: &str, kind: &str) -> PathBuf {
        lock::path(self.root(), bucket, key, kind)
    }

    fn use_lock(&self, stored: &Stored) -> PathBuf {
        match stored.bucket {
            REMOTE => remote::lock(&stored.path),
            bucket => self.lock(bucket, &stored.key.to_string(), "use"),
        }
    }

    /// The copy of a remote file, and what there is of a later one.
    fn remote(&self, key: Key, path: &Path, listing: &mut Listing) -> Result<(), CacheError> {
        let lock = remote::lock(path);
        let read = self.lock(REMOTE, &key.to_string(), "use");
        let in_use = lock::is_held(&lock) || lock::is_held(&read);
        let mut left = 0;
        for part in remote::parts(path)? {
            let (bytes, _) = measure(&part)?;
            left += bytes;
            let url = remote::url(&path.join(remote::PART));
            listing.leftovers.push(Leftover { path: part, bytes, alive: in_use, url });
        }
        if path.join(manifest::NAME).is_file() {
            let times = [path.join(manifest::NAME), lock].map(changed);
            let last_used = times.into_iter().flatten().max().unwrap_or(SystemTime::UNIX_EPOCH);
            let bytes = measure(path)?.0.saturating_sub(left);
            let (url, path) = (remote::url(&path.join(manifest::NAME)), path.to_owned());
            let bucket = REMOTE;
            listing.stored.push(Stored { bucket, key, path, bytes, last_used, in_use, url });
        }
        Ok(())
    }

    fn stored(&self, bucket: &'static str, key: Key, path: PathBuf) -> Result<Stored, CacheError> {
        let lock = self.lock(bucket, &key.to_string(), "use");
        let times = [path.join(manifest::NAME), lock.clone()].map(changed);
        let last_used = times.into_iter().flatten().max().unwrap_or(SystemTime::UNIX_EPOCH);
        let (bytes, _) = measure(&path)?;
        let in_use = lock::is_held(&lock);
        Ok(Stored { bucket, key, bytes, last_used, in_use, path, url: None })
    }

    fn leftover(&self, path: PathBuf) -> Result<Leftover, CacheError> {
        let (bytes, changed) = measure(&path)?;
        let alive = match self.make_lock(&path) {
            Some(lock) => lock::is_held(&lock),
            // A clock that was turned back counts as just now.
            None => changed.elapsed().unwrap_or_default() < ABANDONED,
        };
        Ok(Leftover { path, bytes, alive, url: None })
    }
}

/// The files of a result with their checksums.
fn recorded(stored: &Stored) -> Result<Vec<FileRecord>, Damage> {
    if stored.bucket == AUGMENTED
        && let Err(damage) = Manifest::read(&stored.path)
    {
        return Err(damage);
    }
    let text = fs::read(stored.path.join(manifest::NAME)).map_err(Damage::Unreadable)?;
    let AnyManifest { files, blake3, checksum } = serde_json::from_slice(&text)
        .map_err(|error| Damage::Content(format!("the manifest is broken: {error}")))?;
    let states_own = stored.bucket == SERIES && !checksum.is_empty();
    if states_own && checksum_without(&text, &checksum) != checksum {
        return Err(Damage::Checksum);
    }
    let Some(blake3) = blake3.filter(|_| files.is_empty()) else { return Ok(files) };
    // One checksum for the only file; its size is not stated.
    let only = only_file(stored.bucket, &stored.path)?;
    let bytes = only.metadata().map_err(Damage::Unreadable)?.len();
    let name = only.file_name().to_string_lossy().into_owned();
    Ok(vec![FileRecord { name, bytes, blake3 }])
}

/// The only file beside the manifest in the folder of a result.
pub(crate) fn only_file(bucket: &str, entry: &Path) -> Result<fs::DirEntry, Damage> {
    let others = fs::read_dir(entry).map_err(Damage::Unreadable)?;
    let of_copy = |name: &str| bucket != REMOTE || remote::is_content(name);
    let mut others = others.flatten().filter(|file| {
        file.file_name() != manifest::NAME && of_copy(&file.file_name().to_string_lossy())
    });
    match (others.next(), others.next()) {
        (Some(only), None) => Ok(only),
        _ => Err(Damage::Content("one file was written beside the manifest".to_owned())),
    }
}

fn changed(path: PathBuf) -> Option<SystemTime> {
    fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

/// The files and folders in a folder by name; none if it is not there.
pub(crate) fn children(folder: &Path) -> Result<Vec<PathBuf>, CacheError> {
    let list = match fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        list => list.map_err(CacheError::io("list", folder))?,
    };
    let mut paths = BTreeMap::new();
    for child in list {
        let child = child.map_err(CacheError::io("list", folder))?;
        paths.insert(child.file_name(), child.path());
    }
    Ok(paths.into_values().collect())
}

/// Bytes of all files in a folder, or of a file, and the latest change. What vanishes meanwhile,
/// because its maker has finished, counts as nothing.
fn measure(path: &Path) -> Result<(u64, SystemTime), CacheError> {
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok((0, SystemTime::now()));
        }
        metadata => metadata.map_err(CacheError::io("read the size of", path))?,
    };
    let mut changed = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    if !metadata.is_dir() {
        return Ok((metadata.len(), changed));
    }
    let mut bytes = 0;
    for child in children(path)? {
        let (size, at) = measure(&child)?;
        bytes += size;
        changed = changed.max(at);
    }
    Ok((bytes, changed))
}
