//! What the settings of all generated data have in common: how their file is read.

use std::path::Path;

use serde::de::DeserializeOwned;

use crate::DataError;

/// Settings of a generator, which are checked when its data is made.
pub(crate) fn settings<T: DeserializeOwned>(path: &Path, text: &[u8]) -> Result<T, DataError> {
    let text =
        std::str::from_utf8(text).map_err(|_| DataError::line(path, 1, "the file is not UTF-8"))?;
    toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let line = text[..start.min(text.len())].matches('\n').count() + 1;
        DataError::line(path, line, error.message())
    })
}
