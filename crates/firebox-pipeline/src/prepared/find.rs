//! Finding a run by its path or by its name.

use std::path::{Path, PathBuf};

use crate::error::{PipelineError, at};
use crate::layers::{FOLDER_OF_RUNS, folder_of_runs};
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

/// The folder of a run that was named by its path or by its name. The runs folder is that of the environment variable
/// `FIREBOX_RUN__DIRECTORY`, or the default.
///
/// # Errors
///
/// When there is no such run; the message names those that there are.
pub fn find_run(run: &Path) -> Result<PathBuf, PipelineError> {
    let asked = std::env::var(FOLDER_OF_RUNS).ok();
    let asked: Vec<_> = asked.map(|value| (FOLDER_OF_RUNS.to_owned(), value)).into_iter().collect();
    find_run_in(run, &folder_of_runs(&asked, &[])?)
}

/// The same in this runs folder.
pub(crate) fn find_run_in(run: &Path, runs: &Path) -> Result<PathBuf, PipelineError> {
    find_beside(run, runs, None)
}

/// The same, where the runs folder may also lie beside a pipeline file.
pub(super) fn find_beside(
    run: &Path,
    runs: &Path,
    file: Option<&Path>,
) -> Result<PathBuf, PipelineError> {
    let beside = file.and_then(Path::parent).map(|folder| folder.join(runs).join(run));
    // Where runs lie that were made without the setting.
    let usual = PipelineConfig::default().run.directory.join(run);
    let places: Vec<PathBuf> = [Some(run.to_path_buf()), Some(runs.join(run)), beside, Some(usual)]
        .into_iter()
        .flatten()
        .collect();
    if let Some(found) = places.iter().find(|place| place.join(folder::PIPELINE).is_file()) {
        return named(found);
    }
    if let Some(begun) = places.iter().find(|place| place.join(folder::BEGUN).is_file()) {
        return Err(PipelineError::Setting(format!(
            "the run {} was begun and ended before its settings were written, so there is nothing to go on from\n  run its pipeline file again, which begins it anew",
            begun.display()
        )));
    }
    let known = newest_runs(runs);
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

/// The folder of a run by a path that ends in its name, which `.` and `..` do not.
fn named(run: &Path) -> Result<PathBuf, PipelineError> {
    match run.file_name() {
        Some(_) => Ok(run.to_path_buf()),
        None => run.join(".").canonicalize().map_err(at(run)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of this name in a folder of runs.
    fn run(runs: &Path, name: &str) -> PathBuf {
        let run = runs.join(name);
        std::fs::create_dir_all(run.join("parts")).unwrap();
        std::fs::write(run.join(folder::PIPELINE), "").unwrap();
        run
    }

    #[test]
    fn a_run_has_its_name_however_its_folder_is_called() {
        let folder = tempfile::tempdir().unwrap();
        let run = run(folder.path(), "small-1");
        let found = find_run(&run.join("parts").join("..")).unwrap();
        assert_eq!(found, run.canonicalize().unwrap());
        assert_eq!(found.file_name().unwrap(), "small-1");
        // A path that ends in the name stays as it was written.
        assert_eq!(find_run(&run).unwrap(), run);
    }

    #[test]
    fn a_name_is_looked_for_in_the_folder_of_runs_and_beside_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let (out, file) = (folder.path().join("out"), folder.path().join("small.toml"));
        let (own, name) = (run(&out, "small-1"), Path::new("small-1"));
        assert_eq!(find_run_in(name, &out).unwrap(), own);
        assert_eq!(find_beside(name, Path::new("out"), Some(&file)).unwrap(), own);
        let said = find_run_in(Path::new("other"), &out).unwrap_err().to_string();
        assert!(said.contains("there is no run other"), "{said}");
        assert!(said.contains(&format!("in {}: small-1", out.display())), "{said}");
        assert!(find_run_in(name, &folder.path().join("runs")).is_err());
    }
}
