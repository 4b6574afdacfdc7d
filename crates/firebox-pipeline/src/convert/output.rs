//! What lies in the folders of a conversion beside its arrays: where samples may be written, and which class is none.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use firebox_core::quoted;

use super::{ConvertError, NAMED};

/// What a conversion writes first, and last.
const OURS: [&str; 3] = ["key.json.part", "key.json", "manifest.json"];

/// Refuses a folder to write that is that of the arrays, or that holds files of somebody else.
pub(super) fn check(folder: &Path, output: &Path) -> Result<(), ConvertError> {
    apart(folder, output)?;
    // What was begun is compared with what is asked for by whoever writes.
    if OURS.iter().any(|name| output.join(name).exists()) {
        return Ok(());
    }
    match names(output).into_iter().next() {
        Some(found) => Err(ConvertError::Occupied { output: output.to_owned(), found }),
        None => Ok(()),
    }
}

/// What a folder shows, in order; nothing of one that cannot be read.
fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| !name.starts_with('.')).collect()
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

/// What is said of folders beside those of classes that hold no array; none if there are no such folders or no classes.
pub(super) fn empty(folder: &Path, paths: &[(PathBuf, Option<String>)]) -> Option<String> {
    let classes: BTreeSet<&String> = paths.iter().filter_map(|(_, class)| class.as_ref()).collect();
    let is_empty = |name: &String| !classes.contains(name) && folder.join(name).is_dir();
    let empty: Vec<String> = names(folder).into_iter().filter(is_empty).collect();
    if empty.is_empty() || classes.is_empty() {
        return None;
    }
    let said = match empty.len() {
        1 => {
            ["1 folder holds", "is no class", "its arrays there, or remove it if no class is meant"]
        }
        _ => [
            "folders hold",
            "are no classes",
            "their arrays there, or remove those that are meant as none",
        ],
    };
    let [hold, none, way_out] = said;
    let hold = if empty.len() == 1 { hold.to_owned() } else { format!("{} {hold}", empty.len()) };
    Some(format!("{hold} no .npy array, and {none} ({}): put {way_out}", quoted(&empty, NAMED)))
}
