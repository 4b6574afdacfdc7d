//! Files of S3, Google Cloud Storage, Azure Blob Storage and web servers in a local cache.
//!
//! [`fetch`] downloads what a URL names, once: `s3://`, `gs://`, `az://` (also `abfs://`) and
//! `https://` (`http://` for servers of one's own). A download that was cut short goes on where it
//! stopped, as long as the server still has the same content; what is there is compared with its
//! checksum before it is used, and with the server's tag before it is believed to be current. Keys and
//! regions come from the variables that the services' own tools read, such as
//! `AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL` or `GOOGLE_APPLICATION_CREDENTIALS`.
//!
//! Files come in parts of 8 MiB, four at a time, or whole where a server sends no parts. A server that
//! does not say how long a file is, as where it is made when it is asked for, is refused. What has not
//! come within 30 seconds is asked for again from where it stopped, and an error is a part that failed
//! five times with little or nothing to show for it, unless [`RemoteConfig`] says otherwise. Without a
//! line, [`RemoteConfig::offline`] goes on with the copies that there are.
//!
//! What the files hold is not looked at here. S3 is tested against a local server; Google Cloud and
//! Azure have never been tried. Without the feature `client`, which is off unless it is asked for, there
//! is no network in this crate: it finds whole copies offline, and refuses every other URL with the way out.
//!
//! # Example
//!
//! ```
//! use std::path::Path;
//! use firebox_remote::is_remote;
//!
//! assert!(is_remote(Path::new("s3://bucket/bars.parquet")));
//! assert!(!is_remote(Path::new("data/bars.parquet")));
//! ```

mod cache;
#[cfg(feature = "client")]
mod client;
mod error;
#[cfg(feature = "client")]
mod meter;
#[cfg(feature = "client")]
mod store;
mod url;
mod version;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use firebox_core::Listener;

pub use error::{Local, RemoteError};
pub use url::is_remote;

/// How, and how patiently, files are fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteConfig {
    /// Time that a server has for each answer. A part that has not come whole in it is asked for again from where
    /// it stopped.
    pub timeout: Duration,
    /// Times that a part is asked for again after a failure that may pass. One that brought at least a sixteenth of
    /// the part does not count.
    pub retries: usize,
    /// Size of a part in bytes.
    pub part_bytes: u64,
    /// Whole copies in the cache are used, and no server is asked whether they are current.
    pub offline: bool,
}

impl Default for RemoteConfig {
    /// A line of 70 kB/s is enough: four parts at once, a sixteenth of 8 MiB of each in 30 seconds.
    fn default() -> Self {
        Self { timeout: Duration::from_secs(30), retries: 4, part_bytes: 8 << 20, offline: false }
    }
}

/// Refuses a URL that cannot be fetched whatever its server has, such as one of an unknown scheme. No server is asked.
///
/// # Errors
///
/// What is wrong with the URL.
pub fn check_url(url: &str) -> Result<(), RemoteError> {
    url::Address::read(url).map(drop)
}

/// The local copies of the files that a URL names, in the order of their names: one, or where the URL
/// ends in `/` all that lie directly under it (not on web servers, which cannot list).
///
/// They are kept in `cache/remote-v1`. Progress is reported in the stage `fetch`, in bytes; that another process has a
/// copy in hand, which is waited for, is a warning.
///
/// # Errors
///
/// When the URL cannot be read, when the server refuses, does not answer, does not say how long the file is, has no such
/// file or a web page in its place, when the disk refuses, when this build has no client, or when no server may be asked
/// and there is no copy.
/// Nothing half-fetched is taken for whole; what was fetched of the file's begin is kept, and the next call goes on
/// with it if the server's file is still the same and the server sends parts.
pub fn fetch(
    url: &str,
    cache: &Path,
    config: &RemoteConfig,
    listener: &dyn Listener,
) -> Result<Vec<PathBuf>, RemoteError> {
    fetch_until(&AtomicBool::new(false), url, cache, config, listener)
}

/// The same until `stop` is true: then it ends with what comes next of a file, or does not come in time, and keeps what
/// came.
///
/// # Errors
///
/// As [`fetch`], and [`RemoteError::Stopped`].
pub fn fetch_until(
    stop: &AtomicBool,
    url: &str,
    cache: &Path,
    config: &RemoteConfig,
    listener: &dyn Listener,
) -> Result<Vec<PathBuf>, RemoteError> {
    let address = url::Address::read(url)?;
    if config.offline {
        return cache::offline(&address, cache, (stop, listener));
    }
    #[cfg(feature = "client")]
    return client::fetch(&address, cache, config, (stop, listener));
    #[cfg(not(feature = "client"))]
    {
        let _ = (cache, config, stop, listener);
        Err(RemoteError::NotBuilt { url: address.url })
    }
}
