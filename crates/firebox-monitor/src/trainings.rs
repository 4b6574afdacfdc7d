//! Where the trainings of a run lie that has several. What they tell is read by others.

use std::path::{Path, PathBuf};

/// Name of the folder within a run's that has a folder for each of its trainings.
pub const PARTS: &str = "parts";
/// Name of the file in which a training tells of its steps.
pub(crate) const HISTORY: &str = "history.jsonl";
/// Folders below [`PARTS`] that a training may lie in.
const DEPTH: usize = 6;

/// The trainings of a run that has several, those that have told something: the name of each, which is its
/// path below [`PARTS`], such as `fold-1/lstm`, and its folder.
pub fn trainings(run: &Path) -> Vec<(String, PathBuf)> {
    let mut found = vec![];
    below(run.join(PARTS), "", DEPTH, &mut found);
    found
}

fn below(folder: PathBuf, name: &str, depth: usize, found: &mut Vec<(String, PathBuf)>) {
    // What lies within a training is none.
    if folder.join(HISTORY).is_file() {
        found.push((name.to_owned(), folder));
        return;
    }
    if depth == 0 {
        return;
    }
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        let own = entry.file_name().to_string_lossy().into_owned();
        let name = if name.is_empty() { own } else { format!("{name}/{own}") };
        below(entry.path(), &name, depth - 1, found);
    }
}
