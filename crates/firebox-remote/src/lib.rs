//! Files of S3, Google Cloud Storage, Azure Blob Storage and web servers in a local cache.
//!
//! [`fetch`] downloads what a URL names, once: `s3://`, `gs://`, `az://` (also `abfs://`) and
//! `https://` (`http://` for servers of one's own). A download that was cut short goes on where it
//! stopped, as long as the server still has the same content; what is there is compared with its
//! checksum before it is used, and with the server's tag before it is believed to be current. Keys and
//! regions come from the variables that the services' own tools read, such as
//! `AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL` or `GOOGLE_APPLICATION_CREDENTIALS`. Files come in parts of 8 MiB, four at a
//! time; a part has 30 seconds and is asked for again up to four times, unless [`RemoteConfig`] says otherwise.
//!
//! What the files hold is not looked at here. S3 is tested against a local server; Google Cloud and
//! Azure have never been tried. Without the feature `client`, which is off unless it is asked for, there
//! is no network in this crate, and every URL is refused with the way out.
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
mod url;

use std::path::{Path, PathBuf};
use std::time::Duration;

use firebox_core::Listener;

pub use error::RemoteError;
pub use url::is_remote;

/// How patiently files are fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteConfig {
    /// Time that a server has for each part of a file.
    pub timeout: Duration,
    /// Times that a part is asked for again after a failure that may pass.
    pub retries: usize,
    /// Size of a part in bytes.
    pub part_bytes: u64,
}

impl Default for RemoteConfig {
    /// Parts that a slow line gets through in time: four at once at 1.1 MB/s.
    fn default() -> Self {
        Self { timeout: Duration::from_secs(30), retries: 4, part_bytes: 8 << 20 }
    }
}

/// The local copies of the files that a URL names, in the order of their names: one, or where the URL
/// ends in `/` all that lie directly under it (not on web servers, which cannot list).
///
/// They are kept in `cache/remote-v1`. Progress is reported in the stage `fetch`, in bytes.
///
/// # Errors
///
/// When the URL cannot be read, when the server refuses, does not answer or has no such file, when the
/// disk refuses, or when this build has no client. Nothing half-fetched is taken for whole.
pub fn fetch(
    url: &str,
    cache: &Path,
    config: &RemoteConfig,
    listener: &dyn Listener,
) -> Result<Vec<PathBuf>, RemoteError> {
    let address = url::Address::read(url)?;
    #[cfg(feature = "client")]
    return client::fetch(&address, cache, config, listener);
    #[cfg(not(feature = "client"))]
    {
        let _ = (cache, config, listener);
        Err(RemoteError::NotBuilt { url: address.url })
    }
}
