//! What can go wrong between a server and a file.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// A file that cannot be fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// A URL that cannot be used.
    #[error("`{url}` cannot be fetched: {problem}")]
    Url {
        /// The URL.
        url: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A build without network.
    #[error(
        "`{url}` is remote, and this build has no client: build it with `cargo build --release --features remote`, or download the file first"
    )]
    NotBuilt {
        /// The URL.
        url: String,
    },
    /// The server has no such file.
    #[error("`{url}` does not exist (404): check the bucket and the path")]
    NotFound {
        /// The URL.
        url: String,
    },
    /// The server refuses.
    #[error(
        "`{url}` may not be read (401 or 403): set the service's keys in the environment, and check that they may read it"
    )]
    Refused {
        /// The URL.
        url: String,
        /// What the server said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A server that sends whole files alone.
    #[error(
        "`{url}`: this server sends no parts of files (HTTP ranges), in which Firebox fetches them: download the file by other means, such as curl -O, and name the copy"
    )]
    NoParts {
        /// The URL.
        url: String,
    },
    /// The server did not answer in time.
    #[error(
        "`{url}`: no answer within {timeout:?}, asked {tries} times: check the network and try again (what was fetched is kept), or give it longer, as with `run.fetch.timeout` in a pipeline file"
    )]
    TimedOut {
        /// The URL.
        url: String,
        /// Time that it had, each time.
        timeout: Duration,
        /// How often it was asked.
        tries: usize,
        /// What the client said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server's file is not the one that the download began with.
    #[error("`{url}` changed while it was being fetched: run again to fetch it anew")]
    Changed {
        /// The URL.
        url: String,
    },
    /// Anything else between here and the server.
    #[error("`{url}` cannot be fetched: what was fetched is kept, so trying again goes on")]
    Failed {
        /// The URL.
        url: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The local disk is full.
    #[error(
        "`{url}` takes {bytes} bytes, and the disk of `{}` has no room for the last {lacking} of them\n  make room there, or set `run.cache` to a folder on another disk; what was fetched is kept, so trying again goes on",
        path.display()
    )]
    Full {
        /// The URL.
        url: String,
        /// The part that was written.
        path: PathBuf,
        /// Size of the whole file.
        bytes: u64,
        /// Bytes of it that are not on the disk.
        lacking: u64,
        /// The refusal.
        #[source]
        source: std::io::Error,
    },
    /// The local disk refuses.
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
}

#[cfg_attr(not(feature = "client"), allow(dead_code, reason = "only the client writes"))]
impl RemoteError {
    /// Wraps an error of the operating system: `.map_err(RemoteError::io("create", path))`.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}
