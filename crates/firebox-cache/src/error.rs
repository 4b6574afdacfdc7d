//! What can go wrong between windows and the store.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::parameters::ParameterError;

/// How a file of the cache comes back that is damaged.
pub(crate) const RUN_AGAIN: &str = "Run again: a damaged cache is made anew";

/// How a file of converted samples does, which no run makes.
const CONVERT: &str =
    "convert the arrays again, with the settings of before, which makes only what is missing";

/// The same as a sentence.
const CONVERT_AGAIN: &str = "A run does not mend it: convert the arrays again, with the settings of before, which makes only what is missing";

/// A cache that cannot be made, read or pruned.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// A parameter of an augmentation outside its range.
    #[error("an augmentation has a parameter out of range")]
    Parameter(#[from] ParameterError),
    /// Nothing to augment.
    #[error("there is no training window to augment")]
    Empty,
    /// The normalisation belongs to other data.
    #[error(
        "the normaliser was fitted on the channels {fitted:?}, and the windows have {found:?}; fit it on these windows"
    )]
    Channels {
        /// Channels of the normaliser.
        fitted: Vec<String>,
        /// Channels of the windows.
        found: Vec<String>,
    },
    /// More records, or values of a record, than indices can count.
    #[error(
        "{windows} windows in {versions} versions of {values} values are more than a cache holds (2^32 windows, 2^31 values a record); use a larger stride or shorter windows"
    )]
    TooMany {
        /// Training windows.
        windows: usize,
        /// Versions, the original included.
        versions: u64,
        /// Values of a record.
        values: usize,
    },
    /// A value that the storage type cannot hold.
    #[error(
        "window {window}, version {version}, step {step}, channel `{channel}`: {value} does not fit into {storage}; {way_out}"
    )]
    Range {
        /// Index of the window.
        window: u32,
        /// Number of the version.
        version: u32,
        /// Step within the window.
        step: usize,
        /// Name of the channel.
        channel: String,
        /// The value.
        value: f32,
        /// Name of the storage type.
        storage: &'static str,
        /// The way out.
        way_out: &'static str,
    },
    /// One key for two different things.
    #[error(
        "`{}` was made from {what} that differ from those asked for\n  name another folder, or remove this one",
        path.display()
    )]
    OtherInputs {
        /// Folder of the entry.
        path: PathBuf,
        /// What differs.
        what: &'static str,
    },
    /// The operating system refused.
    #[error("cannot {action} `{}`", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// The refusal.
        #[source]
        source: std::io::Error,
    },
    /// The disk is full.
    #[error(
        "cannot write `{}`: it takes {bytes} bytes{in_all}, and {}, or name a folder on another disk{goes_on}",
        path.display(), no_room(source)
    )]
    Full {
        /// The file.
        path: PathBuf,
        /// Size of the file.
        bytes: u64,
        /// Size of all files that it is one of, as part of the sentence.
        in_all: String,
        /// What another try goes on with, as part of the sentence: nothing, unless files that were finished are kept.
        goes_on: &'static str,
        /// The refusal.
        #[source]
        source: std::io::Error,
    },
    /// The disk has less room than what was asked for takes. Nothing was written.
    #[error(
        "{windows} windows in {versions} versions, the originals among them, take {bytes} bytes in `{}`, and its disk has {free} free\n  \
         lower `augment.versions` (there is room for {most}), store them as f16 or bf16 (`augment.storage`), name a cache on another disk (`run.cache`), or store none: augment.mode = \"online\" draws them anew in each epoch",
        path.display()
    )]
    NoRoom {
        /// Folder of the entry.
        path: PathBuf,
        /// Training windows.
        windows: usize,
        /// Versions, the original included.
        versions: u64,
        /// Bytes of all of them.
        bytes: u64,
        /// Bytes that the disk has.
        free: u64,
        /// Versions beside the original that it has room for.
        most: u64,
    },
    /// The disk has less room than samples take. Nothing was written.
    #[error(
        "{samples} samples take {bytes} bytes in `{}`, and its disk has {free} free\n  \
         store them as f16 or bf16 (`--storage`), cut them (`--length`), make room there, or name a folder on another disk",
        path.display()
    )]
    NoRoomForSamples {
        /// The folder.
        path: PathBuf,
        /// Number of samples.
        samples: usize,
        /// Bytes of all of them.
        bytes: u64,
        /// Bytes that the disk has.
        free: u64,
    },
    /// Memory for the values of a shard was refused. Shards of samples that are whole are kept.
    #[error("{bytes} bytes of memory for a shard of values were refused\n  {way_out}")]
    NoMemory {
        /// Bytes of the values.
        bytes: usize,
        /// What takes less, which depends on whose the shard is.
        way_out: &'static str,
    },
    /// Whoever wanted the entry wants it no more.
    #[error("it was asked to stop, and nothing half-made is left")]
    Stopped,
    /// A mapped file that was whole when it was opened.
    #[error(
        "`{}` changed while it was being read; what was read of it is not used. {way_out}",
        path.display()
    )]
    Vanished {
        /// The file.
        path: PathBuf,
        /// What to do, which depends on whose the file is.
        way_out: &'static str,
        /// What is wrong with it.
        #[source]
        source: Damage,
    },
    /// Series that windows are made of, which lie in a file that is not whole any more.
    #[error("{0}")]
    Lost(String),
    /// A folder of samples that is not whole.
    #[error("`{}` cannot be used: {CONVERT}", path.display())]
    Samples {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: Damage,
    },
    /// Samples that are not what was said of them.
    #[error("{0}")]
    Declared(String),
    /// A value of a sample that the storage type cannot hold.
    #[error(
        "sample {sample}, step {step}, channel {channel}: {value} cannot be stored as {storage}; correct the array, or store the samples in a wider type"
    )]
    Value {
        /// Index of the sample.
        sample: usize,
        /// Index of the step.
        step: usize,
        /// Index of the channel.
        channel: usize,
        /// The value.
        value: f32,
        /// Name of the storage type.
        storage: &'static str,
    },
    /// What was just written is not whole.
    #[error("`{}` was written, but does not read back; check the disk", path.display())]
    ReadBack {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: Damage,
    },
    /// Arrow refused to encode.
    #[error("cannot encode `{}`", path.display())]
    Encode {
        /// The file.
        path: PathBuf,
        /// The refusal.
        #[source]
        source: arrow_schema::ArrowError,
    },
}

/// Why a file cannot be as large as it is to be, and what helps.
fn no_room(source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::FileTooLarge => {
            "no file may be as large there, by a limit of the process or of the disk's file system\n  raise the limit (`ulimit -f`)"
        }
        _ => "its disk has no room for them\n  make room there",
    }
}

impl CacheError {
    /// What whoever works long asks now and then: an error once `stop` is true.
    pub(crate) fn heed(stop: &AtomicBool) -> Result<(), Self> {
        if stop.load(Ordering::Relaxed) { Err(Self::Stopped) } else { Ok(()) }
    }

    /// A file of so many bytes that cannot be written.
    pub(crate) fn unwritten(path: &Path, bytes: u64, source: std::io::Error) -> Self {
        use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        match source.kind() {
            FileTooLarge | QuotaExceeded | StorageFull => {
                let (path, in_all, goes_on) = (path.to_owned(), String::new(), "");
                Self::Full { path, bytes, in_all, goes_on, source }
            }
            _ => Self::io("write", path)(source),
        }
    }

    /// The same of a file of converted samples.
    pub(crate) fn of_samples(mut self) -> Self {
        if let Self::Vanished { way_out, .. } = &mut self {
            *way_out = CONVERT_AGAIN;
        }
        self
    }

    /// The same with what all files take that it is one of, of which those stay that were finished.
    pub(crate) fn of_all(mut self, all: u64) -> Self {
        if let Self::Full { in_all, goes_on, .. } = &mut self {
            *in_all = format!(" of {all} in all");
            *goes_on = "; what was finished before is used when it is tried again";
        }
        self
    }

    /// Wraps an error of the operating system: `.map_err(CacheError::io("create", path))`.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}

/// What is wrong with a stored file.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// It is not there.
    #[error("the file is missing")]
    Missing,
    /// It has another size than was written.
    #[error("the file has {found} bytes; {expected} were written")]
    Size {
        /// Bytes found.
        found: u64,
        /// Bytes written.
        expected: u64,
    },
    /// It was written to after it was opened.
    #[error("the file was written to after it was opened")]
    Rewritten,
    /// Its content has changed.
    #[error("the checksum of the file differs from that of what was written")]
    Checksum,
    /// It is not what it should be, although its checksum fits or there is none.
    #[error("{0}")]
    Content(String),
    /// It cannot be read.
    #[error("the file cannot be read")]
    Unreadable(#[source] std::io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_finished_on_a_full_disk_is_told_of_where_it_is_kept() {
        let full = || {
            let source = std::io::Error::from(std::io::ErrorKind::StorageFull);
            CacheError::unwritten(Path::new("shard"), 8, source)
        };
        let (alone, of_all) = (full().to_string(), full().of_all(24).to_string());
        assert!(alone.ends_with("make room there, or name a folder on another disk"), "{alone}");
        let kept = "disk; what was finished before is used when it is tried again";
        assert!(of_all.contains("8 bytes of 24 in all") && of_all.ends_with(kept), "{of_all}");
    }
}
