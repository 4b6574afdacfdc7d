//! Answers that were measured, kept in the cache, or beside the run that they are of, so that the next run of the
//! same model on the same device asks nothing.

use std::path::{Path, PathBuf};

use firebox_core::Key;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{PipelineError, at};
use crate::folder::temporary;

/// The answer under a key in a bucket of the cache, or the one that is measured now and kept. What cannot
/// be read back is measured anew.
///
/// # Errors
/// The first of `measure`, and if the folder of the cache cannot be written.
pub(crate) fn cached<T: Serialize + DeserializeOwned>(
    bucket: &Path,
    key: &Key,
    measure: impl FnOnce() -> Result<T, PipelineError>,
) -> Result<T, PipelineError> {
    cached_if(bucket, key, |_| true, measure).map(|(answer, _)| answer)
}

/// The same for an answer that may no longer hold: it is measured anew then. With whether it was there.
///
/// # Errors
/// As for [`cached`].
pub(crate) fn cached_if<T: Serialize + DeserializeOwned>(
    bucket: &Path,
    key: &Key,
    holds: impl FnOnce(&T) -> bool,
    measure: impl FnOnce() -> Result<T, PipelineError>,
) -> Result<(T, bool), PipelineError> {
    let path = entry(bucket, key);
    let known = std::fs::read(&path).ok();
    let known: Option<T> = known.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    if let Some(answer) = known.filter(holds) {
        return Ok((answer, true));
    }
    let answer = measure()?;
    std::fs::create_dir_all(bucket).map_err(at(bucket))?;
    let file = temporary().tempfile_in(bucket).map_err(at(bucket))?;
    serde_json::to_writer_pretty(&file, &answer)
        .map_err(|error| at(&path)(std::io::Error::other(error)))?;
    file.persist(&path).map_err(|error| at(&path)(error.error))?;
    Ok((answer, false))
}

/// Where an answer is kept.
pub(crate) fn entry(bucket: &Path, key: &Key) -> PathBuf {
    bucket.join(format!("{key}.json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_measured_once_and_a_broken_one_anew() {
        let folder = tempfile::tempdir().unwrap();
        let (bucket, key) = (folder.path().join("bucket-v1"), Key::builder("test", 1).finish());
        let ask = |answer: u64| cached(&bucket, &key, || Ok(answer)).unwrap();
        assert_eq!((ask(1), ask(2)), (1, 1));
        std::fs::write(bucket.join(format!("{key}.json")), "half an ans").unwrap();
        assert_eq!((ask(3), ask(4)), (3, 3));
        let holds = |least: u64| {
            cached_if(&bucket, &key, |known: &u64| *known >= least, || Ok(least)).unwrap()
        };
        assert_eq!([holds(2), holds(5), holds(5)], [(3, true), (5, false), (5, true)]);
    }
}
