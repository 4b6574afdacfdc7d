//! The paths and URLs among the settings.

use std::path::{Path, PathBuf};

use firebox_remote::is_remote;

use crate::PipelineConfig;
use crate::error::PipelineError;
use crate::search::SearchConfig;
use crate::text::TextConfig;

/// The URLs among the paths of the data.
pub(super) fn urls(config: &PipelineConfig) -> impl Iterator<Item = &Path> {
    config.data.paths().map(PathBuf::as_path).filter(|path| is_remote(path))
}

/// Refuses a pipeline file in a folder, and a working folder, that settings cannot name: they are text, and their paths
/// begin with one or the other.
pub(crate) fn check_folders(file: &Path) -> Result<(), PipelineError> {
    let here = std::env::current_dir().unwrap_or_default();
    let beside = file.parent().unwrap_or(Path::new(""));
    for (folder, other) in [(here.as_path(), "start elsewhere"), (beside, "move the file")] {
        if folder.to_str().is_none() {
            return Err(PipelineError::Setting(format!(
                "the name of the folder {} is not valid UTF-8, as paths of settings have to be\n  rename it, or {other}",
                folder.display()
            )));
        }
    }
    Ok(())
}

/// The settings with paths that mean the same from any folder.
pub(super) fn absolute(mut config: PipelineConfig) -> Result<PipelineConfig, PipelineError> {
    let absolute = |path: &Path| std::path::absolute(path).map_err(crate::error::at(path));
    config.run.directory = absolute(&config.run.directory)?;
    config.run.cache = absolute(&config.run.cache)?;
    if let Some(search) = &mut config.search {
        absolute_choices(search)?;
        if let Some(storage) = search.storage.as_mut().filter(|storage| !storage.contains("://")) {
            *storage = absolute(Path::new(storage))?.display().to_string();
        }
    }
    let here = std::env::current_dir().map_err(crate::error::at(Path::new(".")))?;
    config.data.resolve(&here);
    for path in config.monitor.paths() {
        *path = absolute(path)?;
    }
    if let Some(mlflow) = config.monitor.mlflow.as_mut().filter(|mlflow| !mlflow.to.contains("://"))
    {
        mlflow.to = absolute(Path::new(mlflow.to.trim()))?.display().to_string();
    }
    for path in paths(&mut config).filter(|path| !is_remote(path)) {
        *path = absolute(path)?;
    }
    if let Some(encoder) = config.finetune.as_mut().and_then(|finetune| finetune.encoder.as_mut()) {
        *encoder = absolute(encoder)?;
    }
    Ok(config)
}

/// The same for the paths that a search chooses among: its trials have them from the journal.
pub(crate) fn absolute_choices(search: &mut SearchConfig) -> Result<(), PipelineError> {
    for path in search.paths().filter(|path| !path.trim().is_empty() && !path.contains("://")) {
        let whole = std::path::absolute(&*path).map_err(crate::error::at(Path::new(&*path)))?;
        *path = whole.display().to_string();
    }
    Ok(())
}

/// Every path of the data.
pub(super) fn paths(config: &mut PipelineConfig) -> impl Iterator<Item = &mut PathBuf> {
    let test = config.data.test.iter_mut().flat_map(|test| &mut test.0);
    let texts = config.text.iter_mut().flat_map(TextConfig::paths);
    config.data.path.0.iter_mut().chain(test).chain(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn folders_that_settings_cannot_name_are_refused() {
        use std::os::unix::ffi::OsStrExt as _;
        let odd = Path::new(std::ffi::OsStr::from_bytes(b"n\xff"));
        let said = check_folders(&odd.join("p.toml")).unwrap_err();
        assert!(said.is_bad_input() && said.to_string().ends_with("or move the file"), "{said}");
        for file in ["p.toml", "数据/p.toml", "/"] {
            check_folders(Path::new(file)).unwrap();
        }
    }

    #[test]
    fn addresses_stay_what_they_are_beside_paths() {
        let mut config = PipelineConfig::default();
        let url = PathBuf::from("s3://bucket/bars.parquet");
        config.data.path = firebox_data::Paths(vec![url.clone(), PathBuf::from("bars.csv")]);
        let found = absolute(config).unwrap().data.path.0;
        assert_eq!(found[0], url);
        assert!(found[1].is_absolute() && found[1].ends_with("bars.csv"), "{found:?}");
    }
}
