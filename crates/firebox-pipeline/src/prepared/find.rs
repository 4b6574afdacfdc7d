//! Finding a run by its path or by its name.

use std::path::{Path, PathBuf};

use crate::error::PipelineError;
use crate::{PipelineConfig, folder};

/// Runs that a message names.
const NAMED: usize = 5;

/// The names of all runs in a folder, the newest first.
fn newest_runs(runs: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(runs).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter(|entry| entry.path().join(folder::PIPELINE).is_file())
        .map(|entry| {
            let changed = entry.metadata().and_then(|meta| meta.modified()).ok();
            (std::cmp::Reverse(changed), entry.file_name().to_string_lossy().into_owned())
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, name)| name).collect()
}

/// The folder of a run that was named by its path or by its name.
///
/// # Errors
///
/// When there is no such run; the message names those that there are.
pub fn find_run(run: &Path) -> Result<PathBuf, PipelineError> {
    find_beside(run, None)
}

/// The same, where the runs folder may also lie beside a pipeline file.
pub(super) fn find_beside(run: &Path, file: Option<&Path>) -> Result<PathBuf, PipelineError> {
    let runs = PipelineConfig::default().run.directory;
    let beside = file.and_then(Path::parent).map(|folder| folder.join(&runs).join(run));
    let places: Vec<PathBuf> =
        [Some(run.to_path_buf()), Some(runs.join(run)), beside].into_iter().flatten().collect();
    if let Some(found) = places.iter().find(|place| place.join(folder::PIPELINE).is_file()) {
        return Ok(found.clone());
    }
    if let Some(begun) = places.iter().find(|place| place.join(folder::BEGUN).is_file()) {
        return Err(PipelineError::Setting(format!(
            "the run {} was begun and ended before its settings were written, so there is nothing to go on from\n  run its pipeline file again, which begins it anew",
            begun.display()
        )));
    }
    let known = newest_runs(&runs);
    let known = match known.len() {
        0 => String::new(),
        all => {
            let more =
                if all > NAMED { format!(" and {} older", all - NAMED) } else { String::new() };
            let names = known.into_iter().take(NAMED).collect::<Vec<_>>().join(", ");
            format!("\n  in {}: {names}{more}", runs.display())
        }
    };
    Err(PipelineError::NoRun(run.to_path_buf(), known))
}
