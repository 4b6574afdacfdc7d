//! Local copies: `remote-v1/<key of the URL>/` with the file, and `manifest.json` written last.
//!
//! A download in progress is `<name>.part` beside `part.json`, which says what it is a part of.
#![cfg_attr(not(feature = "client"), allow(dead_code, reason = "only the client writes"))]

use std::fs::{self, File, TryLockError};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use firebox_core::{Event, Key, Listener};
use serde::{Deserialize, Serialize};

use crate::RemoteError;
use crate::error::Local;
use crate::url::Address;
use crate::version::Version;

/// The bucket within the cache. The number changes with its format.
const BUCKET: &str = "remote-v1";
/// The bucket of what folders on servers held.
const LISTINGS: &str = "remote-folders-v1";
const MANIFEST: &str = "manifest.json";
const PART: &str = "part.json";
const LOCK: &str = "lock";

/// Time between two looks at a lock that another process has.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug, Serialize, Deserialize)]
struct Manifest {
    url: String,
    version: Version,
    /// BLAKE3 of the content.
    blake3: String,
}

impl Manifest {
    fn read(folder: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(folder.join(MANIFEST)).ok()?).ok()
    }
}

/// What a download that is not complete is a part of.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Part {
    url: String,
    version: Version,
}

/// The place of one URL's copy.
#[derive(Debug)]
pub(crate) struct Copy {
    url: String,
    folder: PathBuf,
    name: String,
    /// Locked: one process at a time looks at the copy and fetches it.
    _lock: File,
}

impl Copy {
    /// The place of the copy, which is this one's alone until it is dropped: waits for any other process
    /// that fetches or checks the same, which is told, until `stop` is true.
    pub(crate) fn of(
        url: &str,
        cache: &Path,
        (stop, listener): (&AtomicBool, &dyn Listener),
    ) -> Result<Self, RemoteError> {
        let folder = folder(url, cache);
        let name = own_name(url.rsplit('/').next().unwrap_or_default());
        fs::create_dir_all(&folder).map_err(RemoteError::io("create the folder", &folder))?;
        let lock = folder.join(LOCK);
        let held = match File::create(&lock) {
            // Copies in a cache that may only be read can be read.
            Err(error) if is_read_only(&error) && lock.is_file() => File::open(&lock),
            held => held,
        };
        let held = held.map_err(RemoteError::io("lock", &lock))?;
        let mut waits = false;
        loop {
            match held.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if stop.load(Ordering::Relaxed) => {
                    return Err(RemoteError::Stopped {
                        url: url.to_owned(),
                        local: Local::Nothing,
                    });
                }
                Err(TryLockError::WouldBlock) => {
                    if !std::mem::replace(&mut waits, true) {
                        let message = format!(
                            "waiting for another process that fetches or checks the copy of `{url}`"
                        );
                        listener.on(&Event::Warning { message });
                    }
                    std::thread::sleep(PAUSE);
                }
                Err(TryLockError::Error(error)) => {
                    return Err(RemoteError::io("lock", &lock)(error));
                }
            }
        }
        // What was used last is pruned last. A disk that keeps no times has no such order.
        let _ = held.set_modified(SystemTime::now());
        Ok(Self { url: url.to_owned(), folder, name, _lock: held })
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    pub(crate) fn part_path(&self) -> PathBuf {
        self.folder.join(format!("{}.part", self.name))
    }

    /// Forgets a download that is not complete.
    pub(crate) fn discard(&self) -> Result<(), RemoteError> {
        let part = self.part_path();
        fs::remove_file(&part).map_err(RemoteError::io("remove", &part))
    }

    /// The copy, if it is of this version and has its checksum.
    pub(crate) fn whole(&self, version: &Version) -> Option<PathBuf> {
        // Without a tag, nobody can say whether the server's content is still the same.
        version.tag.as_ref()?;
        self.verified(|manifest| manifest.version == *version)
    }

    /// The copy, of whatever version, if it has its checksum.
    fn any(&self) -> Option<PathBuf> {
        self.verified(|_| true)
    }

    fn verified(&self, fits: impl FnOnce(&Manifest) -> bool) -> Option<PathBuf> {
        let manifest = Manifest::read(&self.folder)?;
        let path = self.path();
        let whole = manifest.url == self.url
            && fits(&manifest)
            && has_content(&path, manifest.version.bytes, &manifest.blake3);
        whole.then_some(path)
    }

    /// Bytes that an earlier download of this version left; 0 begins anew.
    pub(crate) fn begun(&self, version: &Version) -> Result<u64, RemoteError> {
        let about = self.folder.join(PART);
        let known = fs::read(&about).ok();
        let known = known.and_then(|text| serde_json::from_slice::<Part>(&text).ok());
        let part = self.part_path();
        let wanted = Part { url: self.url.clone(), version: version.clone() };
        if version.tag.is_some() && known.as_ref() == Some(&wanted) {
            let found = fs::metadata(&part).map_or(0, |found| found.len());
            if found <= version.bytes {
                return Ok(found);
            }
        }
        self.anew(version)
    }

    /// Begins a download anew.
    pub(crate) fn anew(&self, version: &Version) -> Result<u64, RemoteError> {
        let (part, about) = (self.part_path(), self.folder.join(PART));
        let wanted = Part { url: self.url.clone(), version: version.clone() };
        // What it is a part of is written down before there is any of it.
        if part.exists() {
            fs::remove_file(&part).map_err(RemoteError::io("remove", &part))?;
        }
        let text = json(&wanted, &about)?;
        fs::write(&about, text).map_err(RemoteError::io("write", &about))?;
        Ok(0)
    }

    /// Gives a finished download its name, and writes down what it is. A copy that has the same bytes is left alone:
    /// somebody may be reading it.
    pub(crate) fn finish(&self, version: &Version) -> Result<PathBuf, RemoteError> {
        let (part, path, manifest) = (self.part_path(), self.path(), self.folder.join(MANIFEST));
        let bytes = fs::metadata(&part).map_err(RemoteError::io("read", &part))?.len();
        if bytes != version.bytes {
            return Err(RemoteError::Changed { url: self.url.clone() });
        }
        let blake3 = hash(&part).map_err(RemoteError::io("read", &part))?;
        let is_there = has_content(&path, bytes, &blake3);
        let content = Manifest { url: self.url.clone(), version: version.clone(), blake3 };
        let unfinished = manifest.with_extension("json.part");
        let text = json(&content, &manifest)?;
        // Without room for it, the part stays a part, and the copy before it a copy.
        fs::write(&unfinished, text).map_err(RemoteError::io("write", &unfinished))?;
        if is_there {
            self.discard()?;
        } else {
            if manifest.exists() {
                fs::remove_file(&manifest).map_err(RemoteError::io("remove", &manifest))?;
            }
            fs::rename(&part, &path).map_err(RemoteError::io("rename into place", &path))?;
        }
        fs::rename(&unfinished, &manifest)
            .map_err(RemoteError::io("rename into place", &manifest))?;
        // It has done its work; one that stays does no harm.
        let _ = fs::remove_file(self.folder.join(PART));
        Ok(path)
    }
}

fn is_read_only(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem)
}

/// The copies of what an address names, of which no server is asked whether they are current.
pub(crate) fn offline(
    address: &Address,
    cache: &Path,
    heard: (&AtomicBool, &dyn Listener),
) -> Result<Vec<PathBuf>, RemoteError> {
    let url = address.file_url();
    let urls = match address.folder {
        true => copies_under(&url, cache),
        false => vec![url],
    };
    let lacking = |url: &str| RemoteError::NoCopy { url: url.to_owned(), cache: cache.to_owned() };
    if urls.is_empty() {
        return Err(lacking(&address.url));
    }
    let copy = |url: &String| {
        if !has_copy(url, cache) {
            return Err(lacking(url));
        }
        Copy::of(url, cache, heard)?.any().ok_or_else(|| lacking(url))
    };
    urls.iter().map(copy).collect()
}

/// Whether the cache has a copy that was whole when it was finished.
pub(crate) fn has_copy(url: &str, cache: &Path) -> bool {
    Manifest::read(&folder(url, cache)).is_some_and(|manifest| manifest.url == url)
}

/// Which files a server's folder held when all of them were here: without it, nobody knows whether they are all.
#[derive(Serialize, Deserialize)]
struct Listing {
    url: String,
    files: Vec<String>,
}

fn listing(url: &str, cache: &Path) -> PathBuf {
    let key = Key::builder(LISTINGS, 1).field("url", url).finish();
    cache.join(LISTINGS).join(format!("{key}.json"))
}

/// Writes down the URLs of a folder's files, all of which are here.
pub(crate) fn keep_listing(
    url: String,
    files: Vec<String>,
    cache: &Path,
) -> Result<(), RemoteError> {
    let (path, folder) = (listing(&url, cache), cache.join(LISTINGS));
    fs::create_dir_all(&folder).map_err(RemoteError::io("create the folder", &folder))?;
    let unfinished = path.with_extension(format!("{}.part", std::process::id()));
    let text = json(&Listing { url, files }, &path)?;
    fs::write(&unfinished, text).map_err(RemoteError::io("write", &unfinished))?;
    fs::rename(&unfinished, &path).map_err(RemoteError::io("rename into place", &path))
}

/// The URLs of a folder's files, if all were here once.
fn copies_under(folder: &str, cache: &Path) -> Vec<String> {
    let known = fs::read(listing(folder, cache)).ok();
    let known = known.and_then(|text| serde_json::from_slice::<Listing>(&text).ok());
    known.filter(|known| known.url == folder).map_or_else(Vec::new, |known| known.files)
}

/// The folder of one URL's copy.
fn folder(url: &str, cache: &Path) -> PathBuf {
    let key = Key::builder(BUCKET, 1).field("url", url).finish();
    cache.join(BUCKET).join(key.to_string())
}

/// The name of a copy: the file's own, unless this folder or its downloads have files of that name.
fn own_name(name: &str) -> String {
    // Some file systems take both cases for one.
    let lower = name.to_lowercase();
    match [MANIFEST, PART, LOCK].contains(&lower.as_str()) || lower.ends_with(".part") {
        true => format!("{name}.copy"),
        false => name.to_owned(),
    }
}

fn json<T: Serialize>(value: &T, path: &Path) -> Result<Vec<u8>, RemoteError> {
    serde_json::to_vec_pretty(value).map_err(|error| RemoteError::io("write", path)(error.into()))
}

/// Whether a file has so many bytes and this checksum.
fn has_content(path: &Path, bytes: u64, blake3: &str) -> bool {
    fs::metadata(path).is_ok_and(|found| found.len() == bytes)
        && hash(path).is_ok_and(|found| found == blake3)
}

fn hash(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finalize().to_hex().to_string()),
            read => drop(hasher.update(&buffer[..read])),
        }
    }
}
