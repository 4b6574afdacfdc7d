//! What can be wrong with a folder of a model, a tokenizer, or texts.

use std::path::{Path, PathBuf};

use firebox_models::{Mismatch, ModelError};

use crate::folder::TOKENIZER;

/// A model, a tokenizer or texts that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A file that cannot be read.
    #[error("`{}` cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file that holds something else than its name says.
    #[error("`{}` {found}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What was found, and what is allowed.
        found: String,
    },
    /// Weights in a form that is not read.
    #[error(
        "`{}` holds `{found}` and no `model.safetensors`; pickled weights can run code and are not \
         read. Convert them once with Python: `from transformers import AutoModel; \
         AutoModel.from_pretrained(\"{}\").save_pretrained(\"{}\", safe_serialization=True)`{}",
        path.display(), path.display(), path.display(), and_its_tokenizer(path)
    )]
    Pickled {
        /// The folder.
        path: PathBuf,
        /// The file in it.
        found: String,
    },
    /// A folder without a tokenizer in the form that is read.
    #[error(
        "`{}` has no `tokenizer.json`: write it once with Python: {}{CASED}",
        path.display(), saved_by_python("AutoTokenizer", path)
    )]
    NoTokenizer {
        /// The folder.
        path: PathBuf,
    },
    /// A model of another architecture.
    #[error(
        "`{}` is a model of the family `{found}`, which is not supported; supported are {}",
        path.display(), crate::SUPPORTED
    )]
    Family {
        /// The file that says so.
        path: PathBuf,
        /// Its `model_type`.
        found: String,
    },
    /// A setting of a supported family whose value is not supported.
    #[error("`{}` sets `{key}` to {found}; supported is {allowed}", path.display())]
    Setting {
        /// The file.
        path: PathBuf,
        /// The key in it.
        key: String,
        /// Its value.
        found: String,
        /// What is supported.
        allowed: String,
    },
    /// Weights that do not fit the model of their `config.json`.
    #[error("the weights in `{}` do not fit its config.json", path.display())]
    Weights {
        /// The folder.
        path: PathBuf,
        /// How.
        #[source]
        source: Mismatch,
    },
    /// A tokenizer that does not belong to the model.
    #[error("the tokenizer does not fit the model: {0}")]
    Tokenizer(String),
    /// A text that is empty, or of characters that no token stands for.
    #[error("nothing of the text {shown:?} has a token")]
    Nothing {
        /// Its beginning.
        shown: String,
    },
    /// Texts or labels that cannot be learnt from.
    #[error("{0}")]
    Texts(String),
    /// It was asked to stop.
    #[error("it was asked to stop")]
    Stopped,
    /// Settings of a model that are out of their range.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// What makes `transformers` write its own of a folder there again, in the form that is read.
pub(crate) fn saved_by_python(class: &str, folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "`from transformers import {class}; {class}.from_pretrained(\"{folder}\").save_pretrained(\"{folder}\")`"
    )
}

/// Of a list of tokens alone, `transformers` makes a tokenizer without capitals.
const CASED: &str = " (of a model with capitals, add `do_lower_case=False` to `from_pretrained`)";

/// What to write beside weights, where that is not there, either.
fn and_its_tokenizer(folder: &Path) -> String {
    match folder.join(TOKENIZER).is_file() {
        true => String::new(),
        false => {
            let saved = saved_by_python("AutoTokenizer", folder);
            format!(", and `{TOKENIZER}` with {saved}{CASED}")
        }
    }
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, TextError> {
    std::fs::read(path).map_err(|source| TextError::Read { path: path.to_owned(), source })
}

pub(crate) fn content(path: &Path, found: impl Into<String>) -> TextError {
    TextError::Content { path: path.to_owned(), found: found.into() }
}

pub(crate) fn json(path: &Path) -> Result<serde_json::Value, TextError> {
    serde_json::from_slice(&read(path)?)
        .map_err(|error| content(path, format!("is not JSON: {error}")))
}
