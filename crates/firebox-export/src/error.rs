//! What can go wrong when a model is stored, read back or exported.

use std::path::{Path, PathBuf};

use firebox_models::ModelError;

/// A model that cannot be stored, read back or exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// Settings out of range, or weights of another model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Settings of a far larger model than the weights are of.
    #[error(
        "a model of these settings has {asked:.3e} numbers and more, and the weights have {given}: they are of another model"
    )]
    Size {
        /// Numbers of a model of the settings, at least.
        asked: f64,
        /// Numbers of the weights.
        given: usize,
    },
    /// A parameter that the graph needs.
    #[error("the weights have no matrix or vector `{name}`, which the exported graph needs")]
    Missing {
        /// Its name.
        name: String,
    },
    /// A model that gives no vectors.
    #[error(
        "the model `{model}` classifies and makes no vectors of its own: it has no encoder to export\n  export its head instead"
    )]
    NoEncoder {
        /// Name of the model.
        model: &'static str,
    },
    /// A model that ends with its vectors.
    #[error(
        "the model `{model}` has no head: it makes vectors of windows and nothing else\n  export its encoder instead"
    )]
    NoHead {
        /// Name of the model.
        model: &'static str,
    },
    /// More than Protocol Buffers hold.
    #[error(
        "the graph would have {bytes} bytes, and an ONNX file holds at most 2 GiB\n  export safetensors, which have no such limit"
    )]
    TooLarge {
        /// Size of the file.
        bytes: usize,
    },
    /// A file that is no safetensors file, or one with what no model has.
    #[error("{} is not a usable safetensors file: {reason}", path.display())]
    Weights {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Names that do not tell parameters apart.
    #[error("two parameters of the model have the name `{name}`")]
    Twice {
        /// The name.
        name: String,
    },
    /// Weights that cannot be put into a file.
    #[error("the weights cannot be written as safetensors")]
    Serialize(#[from] safetensors::SafeTensorError),
    /// A card that cannot be read.
    #[error("{} is not the card of a model: {reason}", path.display())]
    Card {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A card that says something else than when it was written.
    #[error(
        "{} was changed: its checksum is not that of what it says\n  \
         take it from a copy, or make it again from the run; to use it as it is, take `checksum` out of it",
        path.display()
    )]
    ChangedCard {
        /// The file.
        path: PathBuf,
    },
    /// No card.
    #[error("there is no trained model in {}: it has no file {}", path.display(), crate::CARD)]
    NoModel {
        /// The folder.
        path: PathBuf,
    },
    /// Weights that are not those that the card was written with.
    #[error(
        "{} is damaged or was changed: its checksum is not that of its card\n  make it again from the run, or take it from a copy",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// Something is there already.
    #[error("{} is not written: it is there already\n  replace it with --force, or name another place", path.display())]
    Exists {
        /// The file or folder.
        path: PathBuf,
    },
    /// Something that is not replaced whatever is asked.
    #[error("{} is not written: {what}\n  name another place", path.display())]
    Refused {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        what: &'static str,
    },
    /// The file system.
    #[error("cannot read or write {}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl ExportError {
    /// Whether the user can mend it by other flags or files; else it failed while running.
    pub fn is_bad_input(&self) -> bool {
        !matches!(
            self,
            Self::Io { .. } | Self::Serialize(_) | Self::Missing { .. } | Self::Twice { .. }
        )
    }
}

/// Names the path in an error of the file system.
pub(crate) fn at(path: &Path) -> impl Fn(std::io::Error) -> ExportError {
    let path = path.to_path_buf();
    move |source| ExportError::Io { path: path.clone(), source }
}
