//! Why a journal cannot be read or written.

use std::path::PathBuf;

/// A journal that cannot be used. What it holds already is safe.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// A file cannot be read or written.
    #[error("cannot {action} `{}`{}", path.display(), way_out(source))]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// An entry of the journal is not one.
    #[error(
        "{place} is damaged: {reason}\n  nothing was changed; restore the journal from a copy, or \
         take that entry out of it"
    )]
    Damaged {
        /// File and line, or server and key.
        place: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Another process keeps every other from writing.
    #[error(
        "{holder} has kept the journal {journal} locked for {seconds} s: it is suspended, or its disk \
         does not answer\n  let it go on (`kill -CONT`) or end it, and start this one again; what was \
         stored is safe"
    )]
    Held {
        /// The journal.
        journal: String,
        /// Who, as far as it is known.
        holder: String,
        /// For how long, as seen here.
        seconds: u64,
    },
    /// The journal is shorter than what was read of it.
    #[error(
        "{journal} was cut or replaced while it was in use\n  put it back, or start the workers \
         anew to go on with what is there now"
    )]
    Cut {
        /// The journal.
        journal: String,
    },
    /// An address of neither kind.
    #[error(
        "`{address}` is no storage: {reason}\n  name the path of a journal file, or \
         redis://HOST:PORT/DATABASE"
    )]
    Address {
        /// What was written.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The server does not answer, or answers with an error.
    #[error(
        "the Redis server {server} cannot be used, after {seconds} s of trying: {reason}\n  {}",
        of_server(*reached)
    )]
    Redis {
        /// Host, port and database.
        server: String,
        /// Whether it has answered before.
        reached: bool,
        /// How long it was tried.
        seconds: u64,
        /// The last reason.
        reason: String,
    },
}

/// What who may not write can do.
fn way_out(source: &std::io::Error) -> &'static str {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    match source.kind() {
        PermissionDenied | ReadOnlyFilesystem => {
            "\n  whoever works on a study writes to its journal and beside it: ask for the right to do \
             so, or keep the study elsewhere"
        }
        _ => "",
    }
}

/// An error of the system as [`StorageError::File`].
pub(super) fn file(
    action: &'static str,
    path: &std::path::Path,
) -> impl FnOnce(std::io::Error) -> StorageError + use<> {
    let path = path.to_path_buf();
    move |source| StorageError::File { action, path, source }
}

fn of_server(reached: bool) -> &'static str {
    match reached {
        true => "what was stored is safe there; start the worker again when the server is back",
        false => {
            "it has not answered once: nothing was begun. Check its address, and that it runs and can be reached from here"
        }
    }
}
