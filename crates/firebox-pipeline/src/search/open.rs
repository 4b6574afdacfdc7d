//! Which study is meant, where it is kept, and whether it is the same as before.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use firebox_search::{Options, Storage, Study, StudyError};

use super::{PrunerConfig, SearchConfig};
use crate::error::{PipelineError, at};
use crate::{PipelineConfig, prepared};

/// System attribute of the study with the pipeline that is searched, as TOML.
pub(super) const PIPELINE: &str = "firebox:pipeline";

/// System attribute of the study with the key of the data that its trials read.
pub(super) const DATA: &str = "firebox:data";

/// Name of a study's journal within the folder of the search.
const JOURNAL: &str = "study.log";

pub(super) fn folder(config: &PipelineConfig, name: &str) -> PathBuf {
    config.run.directory.join(format!("{name}.search"))
}

pub(super) fn open_storage(
    config: &PipelineConfig,
    search: &SearchConfig,
    name: &str,
) -> Result<Arc<Storage>, PipelineError> {
    let address = match &search.storage {
        Some(address) if !address.contains("://") && is_something_else(Path::new(address)) => {
            return Err(PipelineError::Setting(format!(
                "`search.storage` names {address}, which is a file and no journal of a study\n  \
                 name a file that is not there yet, a journal, or redis://HOST:PORT/DATABASE"
            )));
        }
        Some(address) => address.clone(),
        None => {
            let folder = folder(config, name);
            std::fs::create_dir_all(&folder).map_err(at(&folder))?;
            folder.join(JOURNAL).display().to_string()
        }
    };
    Ok(Arc::new(Storage::open(&address).map_err(StudyError::from)?))
}

/// The storage and the name of a study that somebody began.
pub(super) fn find(
    address: &str,
    study: Option<&str>,
) -> Result<(Arc<Storage>, String), PipelineError> {
    // The folder of a search is named as readily as the journal in it.
    let within = Path::new(address).join(JOURNAL);
    let is_folder = within.is_file();
    let address = if is_folder { within.display().to_string() } else { address.to_owned() };
    if !address.contains("://") && !Path::new(&address).is_file() {
        return Err(PipelineError::Setting(format!(
            "there is no journal {address} to join\n  begin the search with `firebox search FILE`, and name the journal that it prints"
        )));
    }
    if !is_folder && !address.contains("://") && is_something_else(Path::new(&address)) {
        let begin = match Path::new(&address).extension() {
            Some(ending) if ending == "toml" => {
                format!("; search a pipeline file without --join: `firebox search {address}`")
            }
            _ => String::new(),
        };
        return Err(PipelineError::Setting(format!(
            "{address} is a file, and neither the folder of a study nor the journal in it\n  --join takes that folder (NAME.search among the runs), the journal ({JOURNAL} in it), or redis://HOST:PORT/DATABASE{begin}"
        )));
    }
    let storage = Arc::new(Storage::open(&address).map_err(StudyError::from)?);
    let known = storage.studies().map_err(StudyError::from)?;
    let name = match (study, known.as_slice()) {
        (Some(name), _) => name.to_owned(),
        (None, [only]) => only.clone(),
        (None, []) => {
            return Err(PipelineError::Setting(format!(
                "{} holds no study yet\n  begin the search with `firebox search FILE`",
                storage.address()
            )));
        }
        (None, _) => {
            return Err(PipelineError::Setting(format!(
                "{} holds {} studies ({})\n  choose one with --study NAME",
                storage.address(),
                known.len(),
                known.join(", ")
            )));
        }
    };
    Ok((storage, name))
}

/// Whether a file cannot be a journal, which has nothing but JSON objects. A journal that is damaged further
/// on is one.
fn is_something_else(path: &Path) -> bool {
    let mut beginning = vec![];
    let read = File::open(path).and_then(|file| file.take(256).read_to_end(&mut beginning));
    // Some file systems leave zeros where a line was to be.
    let first = beginning.iter().find(|byte| !byte.is_ascii_whitespace() && **byte != 0);
    read.is_ok() && first.is_some_and(|byte| *byte != b'{')
}

pub(super) fn stored_pipeline(storage: &Arc<Storage>, name: &str) -> Result<String, PipelineError> {
    let options = Options::new(firebox_search::RandomSampler::new(0));
    let known = Study::load(storage, name, options)?.system_attributes()?;
    let text = known.get(PIPELINE).and_then(|text| text.as_str()).map(str::to_owned);
    text.ok_or_else(|| {
        PipelineError::Setting(format!(
            "the study {name} was not begun by `firebox search`: it has no pipeline\n  name a pipeline file instead"
        ))
    })
}

pub(super) fn check_numbers(search: &SearchConfig) -> Result<(), PipelineError> {
    let wrong = |key: &str, found: String, allowed: &str| {
        Err(PipelineError::Setting(format!("`search.{key}` is {found}; {allowed}")))
    };
    if search.trials == 0 {
        return wrong("trials", "0".to_owned(), "a search has at least one trial");
    }
    if let Some(rule) = &search.early_stop {
        if rule.patience == 0 {
            let allowed = "a search ends after at least one trial without an improvement";
            return wrong("early_stop.patience", "0".to_owned(), allowed);
        }
        if !(rule.min_delta >= 0.0 && rule.min_delta.is_finite()) {
            let found = rule.min_delta.to_string();
            return wrong("early_stop.min_delta", found, "it is a finite number, 0 or above");
        }
    }
    let several = search.objectives.all().len() > 1;
    if several && search.pruner.as_ref().is_some_and(|pruner| *pruner != PrunerConfig::None) {
        let allowed =
            "with several objectives no trial is given up early; leave it out, or search one";
        return wrong("pruner", search.pruner().name().to_owned(), allowed);
    }
    let positive = |seconds: f64| seconds.is_finite() && seconds > 0.0 && seconds < 1e9;
    if let Some(timeout) = search.timeout.filter(|timeout| !positive(*timeout)) {
        return wrong("timeout", timeout.to_string(), "it is a number of seconds above 0");
    }
    if !(0.1..=3600.0).contains(&search.heartbeat) {
        let found = search.heartbeat.to_string();
        return wrong("heartbeat", found, "it must be from 0.1 to 3600 seconds");
    }
    Ok(())
}

/// Refuses a name that would lead out of the folder of the runs: that of the search is called so.
pub(super) fn check_name(name: &str) -> Result<(), PipelineError> {
    let wrong = name.trim().is_empty() || name.contains(['/', '\\', ':', '\0']);
    if wrong || name == "." || name == ".." {
        return Err(PipelineError::Setting(format!(
            "a study cannot be called {name:?}: its folder has its name\n  choose a name without /, \\ and : in `search.study`"
        )));
    }
    Ok(())
}

/// Refuses to continue a study with another pipeline. How long, where and with how many it is searched
/// may change.
pub(super) fn same_search(
    name: &str,
    file: &Path,
    ours: &PipelineConfig,
    theirs: &PipelineConfig,
) -> Result<(), PipelineError> {
    let plain = |config: &PipelineConfig| {
        let mut config = config.clone();
        config.run.device.clear();
        if let Some(search) = &mut config.search {
            let SearchConfig { space, objectives, .. } = std::mem::take(search);
            *search = SearchConfig { space, objectives, ..SearchConfig::default() };
        }
        config
    };
    let found = prepared::first_difference(&plain(ours), &plain(theirs))?;
    let Some((key, ours, theirs)) = found else { return Ok(()) };
    Err(StudyError::Shape {
        name: name.to_owned(),
        found: format!("`{key}` = {theirs}"),
        wanted: format!("`{key}` = {ours}, by {}", file.display()),
    }
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_joined_is_a_journal_its_folder_or_told_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let found = |name: &str| find(&path(name), None).map(|(_, study)| study);
        let said = |name: &str| found(name).unwrap_err().to_string();
        let study = |name: &str, study: &str| {
            let storage = Arc::new(Storage::open(&path(name)).unwrap());
            let options = Options::new(firebox_search::RandomSampler::new(0));
            let directions = [firebox_search::Direction::Minimize];
            Study::create(&storage, study, &directions, options).unwrap();
        };
        study(JOURNAL, "s");
        assert_eq!([found(JOURNAL).unwrap(), found("").unwrap()], ["s", "s"]);
        std::fs::write(path("p.toml"), "\n# A search.\npipeline = \"text\"\n").unwrap();
        let error = said("p.toml");
        for part in [
            "p.toml is a file, and neither the folder of a study nor the journal in it\n",
            "--join takes that folder",
            "study.log",
            "redis://HOST:PORT/DATABASE",
            &format!("without --join: `firebox search {}`", path("p.toml")),
        ] {
            assert!(error.contains(part), "`{part}`: {error}");
        }
        std::fs::write(path("notes"), "trials").unwrap();
        let error = said("notes");
        assert!(error.contains("notes is a file, and") && !error.contains("without"), "{error}");
        // A journal that is damaged is one, and an empty one has no study yet.
        std::fs::write(path("damaged"), "{\"op_cod\n").unwrap();
        assert!(said("damaged").contains("is damaged"), "{}", said("damaged"));
        std::fs::write(path("empty"), "\0\0").unwrap();
        assert!(said("empty").contains("holds no study yet"), "{}", said("empty"));
        assert!(said("absent").contains("there is no journal"), "{}", said("absent"));
        study(JOURNAL, "t");
        assert!(said("").contains("holds 2 studies (s, t)"), "{}", said(""));
    }
}
