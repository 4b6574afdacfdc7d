//! What `firebox-remote` keeps in the folder of a URL: the file, `manifest.json`, `lock`, and of a download
//! that is not complete `<name>.part` and `part.json`.
//!
//! The lock is never removed: whoever waits for it has the file open.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::CacheError;
use crate::keep::children;
use crate::{lock, manifest};

/// Says what a part is a part of.
pub(crate) const PART: &str = "part.json";
const LOCK: &str = "lock";
const SUFFIX: &str = ".part";

/// What whoever fetches or removes the copy in a folder holds.
pub(crate) fn lock(folder: &Path) -> PathBuf {
    folder.join(LOCK)
}

/// Whether a file of this name is the copy itself.
pub(crate) fn is_content(name: &str) -> bool {
    name != LOCK && name != manifest::NAME && !is_of_part(name)
}

fn is_of_part(name: &str) -> bool {
    name == PART || name.ends_with(SUFFIX)
}

fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// What is there of a download that is not complete. Without a manifest, the copy itself is not.
pub(crate) fn parts(folder: &Path) -> Result<Vec<PathBuf>, CacheError> {
    let whole = folder.join(manifest::NAME).is_file();
    let mut found = children(folder)?;
    found.retain(|path| is_of_part(&name(path)) || (!whole && name(path) != LOCK));
    Ok(found)
}

/// The address that a manifest or the note of a part names, without names or passwords.
pub(crate) fn url(about: &Path) -> Option<String> {
    #[derive(Deserialize)]
    struct About {
        url: String,
    }
    let about: About = serde_json::from_slice(&fs::read(about).ok()?).ok()?;
    Some(without_credentials(&about.url))
}

/// In `abfs://container@account/…` what stands before the `@` is no name of a user.
fn without_credentials(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (host, path) = rest.find('/').map_or((rest, ""), |end| rest.split_at(end));
    let host = match host.rsplit_once('@') {
        Some((user, bare)) if user.contains(':') || !scheme.starts_with("abfs") => bare,
        _ => host,
    };
    format!("{scheme}://{host}{path}")
}

/// Removes a part, unless a process is at it.
pub(crate) fn remove_part(path: &Path) -> Result<bool, CacheError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let Some(_alone) = lock::try_exclusive(&lock(folder))? else { return Ok(false) };
    remove(path)?;
    Ok(true)
}

/// Removes a copy, whose lock the caller holds. The manifest goes first, so that nobody believes the rest.
pub(crate) fn remove_copy(folder: &Path) -> Result<(), CacheError> {
    remove(&folder.join(manifest::NAME))?;
    let others = children(folder)?;
    others.iter().filter(|path| is_content(&name(path))).try_for_each(|path| remove(path))
}

fn remove(path: &Path) -> Result<(), CacheError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(CacheError::io("remove", path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_without_credentials() {
        let check = |url: &str, expected: &str| assert_eq!(without_credentials(url), expected);
        check("https://host:80/a/b.csv", "https://host:80/a/b.csv");
        check("https://me:secret@host/a@b.csv?token=1", "https://host/a@b.csv");
        check("s3://key@bucket/a#x", "s3://bucket/a");
        check("abfs://box@account.net/a", "abfs://box@account.net/a");
        check("abfs://me:secret@account.net/a", "abfs://account.net/a");
    }
}
