//! What can go wrong between a server and a file.

use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The way out where a server refuses.
fn way_in(url: &str) -> &'static str {
    match url.split_once("://") {
        Some(("http" | "https", _)) => {
            "it may want a login, or a link that has expired: open the address in a browser, or download the file first"
        }
        _ => "set the service's keys in the environment, and check that they may read it",
    }
}

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
    #[error("`{url}` may not be read (401 or 403): {}", way_in(url))]
    Refused {
        /// The URL.
        url: String,
        /// What the server said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A bucket of S3 that is asked for without keys, on a machine that Amazon gives none.
    #[error(
        "`{url}` is asked for with keys, and the environment has none{local}\n  set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket"
    )]
    NoKeys {
        /// The URL.
        url: String,
        /// What the cache has of the file.
        local: Local,
        /// What the client said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server did not answer in time.
    #[error(
        "`{url}`: no answer within {timeout:?}, asked {tries} times{local}\n  check the network and try again, or give it longer, as with `run.fetch.timeout` in a pipeline file"
    )]
    TimedOut {
        /// The URL.
        url: String,
        /// Time that it had, each time.
        timeout: Duration,
        /// How often it was asked.
        tries: usize,
        /// What the cache has of the file.
        local: Local,
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
    /// Whoever wanted the file wants it no more.
    #[error("`{url}` was not fetched to its end, because it was asked to stop{local}")]
    Stopped {
        /// The URL.
        url: String,
        /// What the cache has of the file.
        local: Local,
    },
    /// The server sends another number of bytes than it says.
    #[error(
        "`{url}`: the server says that it has {said} bytes, and sends {sent}: download the file by other means, such as curl -O, and name the copy"
    )]
    Length {
        /// The URL.
        url: String,
        /// Bytes of the whole file, when it was asked about.
        said: u64,
        /// Bytes of the whole file, or of the parts of it that came.
        sent: u64,
    },
    /// The server does not say how many bytes it sends.
    #[error(
        "`{url}`: the server does not say how long what it sends is{local}\n  download it by other means, such as curl -O, and name the copy"
    )]
    NoLength {
        /// The URL.
        url: String,
        /// What the cache has of the file.
        local: Local,
    },
    /// What is at the URL is no file of data.
    #[error(
        "`{url}` is no file of data: the server sends {found}: open the address in a browser; it may want a login, or be a page about the file, which links to the file itself"
    )]
    NoFile {
        /// The URL.
        url: String,
        /// What it is, such as `a web page (text/html)`.
        found: &'static str,
    },
    /// The file is stored compressed, which readers of its name would not expect.
    #[error(
        "`{url}` is stored compressed (Content-Encoding: {encoding}): download it by other means, such as curl --compressed -O, and name the copy"
    )]
    Encoded {
        /// The URL.
        url: String,
        /// How.
        encoding: String,
    },
    /// No server may be asked, and there is no copy.
    #[error(
        "`{url}` has no whole copy in `{}`, and no server is asked: fetch it once, with `run.fetch.offline = false` in a pipeline file", cache.display()
    )]
    NoCopy {
        /// The URL.
        url: String,
        /// The cache.
        cache: PathBuf,
    },
    /// Anything else between here and the server.
    #[error("`{url}` cannot be fetched{local}")]
    Failed {
        /// The URL.
        url: String,
        /// What the cache has of the file.
        local: Local,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The local disk is full.
    #[error(
        "`{url}` takes {bytes} bytes, and {}, or set `run.cache` to a folder on another disk{}",
        match source.kind() {
            std::io::ErrorKind::FileTooLarge => format!(
                "no file may be as large as `{}` would be, by a limit of the process or of the disk's file system\n  raise the limit (`ulimit -f`)",
                path.display()
            ),
            _ => format!("the disk of `{}` has no room for the last {lacking} of them\n  make room there", path.display()),
        },
        if *goes_on { "; what was fetched is kept, so trying again goes on" } else { "" }
    )]
    Full {
        /// The URL.
        url: String,
        /// The part that was written.
        path: PathBuf,
        /// Size of the whole file.
        bytes: u64,
        /// Bytes of it that the disk did not take.
        lacking: u64,
        /// Whether what was fetched is kept, and another try goes on with it: not of a server that sends no parts, nor
        /// of a content that cannot be told from a later one.
        goes_on: bool,
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

/// What the cache has of a file that cannot be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Local {
    /// Nothing.
    Nothing,
    /// Its first bytes, with which another try goes on.
    Begin {
        /// How many.
        bytes: u64,
    },
    /// A whole copy, of which nobody knows whether it is still current.
    Copy,
}

impl Display for Local {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => Ok(()),
            Self::Begin { bytes } => {
                write!(f, ": its first {bytes} bytes are kept, so trying again goes on")
            }
            Self::Copy => f.write_str(
                "; the cache has a whole copy, which `run.fetch.offline = true` in a pipeline file goes on with, asking no server",
            ),
        }
    }
}

#[cfg_attr(not(feature = "client"), allow(dead_code, reason = "only the client writes"))]
impl RemoteError {
    /// Wraps an error of the operating system: `.map_err(RemoteError::io("create", path))`.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}
