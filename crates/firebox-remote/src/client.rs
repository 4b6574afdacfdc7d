//! The client: what a server has, and its bytes part by part onto the disk.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use firebox_core::{Event, Listener};
use futures_util::{StreamExt, TryStreamExt};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path as Location;
use object_store::{
    ClientOptions, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, RetryConfig,
};

use crate::cache::{Copy, Version};
use crate::url::Address;
use crate::{RemoteConfig, RemoteError};

/// Parts that are on their way at a time.
const AT_ONCE: usize = 4;

pub(crate) fn fetch(
    address: &Address,
    cache: &Path,
    config: &RemoteConfig,
    listener: &dyn Listener,
) -> Result<Vec<PathBuf>, RemoteError> {
    let threads = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let threads = threads.map_err(RemoteError::io("start a thread for", cache))?;
    threads.block_on(async {
        let remote = Remote { store: store(address, config)?, address, config, listener };
        let mut files = Vec::new();
        for location in remote.locations().await? {
            files.push(remote.file(&location, cache).await?);
        }
        Ok(files)
    })
}

/// The store of an address, with keys from the environment.
fn store(address: &Address, config: &RemoteConfig) -> Result<Box<dyn ObjectStore>, RemoteError> {
    // A server of one's own often has no certificate; whoever names one without means it.
    let client = ClientOptions::new()
        .with_timeout(config.timeout)
        .with_connect_timeout(config.timeout)
        .with_allow_http(true);
    let retry = RetryConfig {
        max_retries: config.retries,
        retry_timeout: config.timeout * (config.retries as u32 + 1),
        ..RetryConfig::default()
    };
    let root = address.root.as_str();
    let boxed = |store| -> Box<dyn ObjectStore> { store };
    refuse_endpoint(address)?;
    let made = match address.scheme {
        "s3" => AmazonS3Builder::from_env()
            .with_url(root)
            .with_client_options(client)
            .with_retry(retry)
            .build()
            .map(|store| boxed(Box::new(store))),
        "gs" => GoogleCloudStorageBuilder::from_env()
            .with_url(root)
            .with_client_options(client)
            .with_retry(retry)
            .build()
            .map(|store| boxed(Box::new(store))),
        "http" | "https" => HttpBuilder::new()
            .with_url(root)
            .with_client_options(client)
            .with_retry(retry)
            .build()
            .map(|store| boxed(Box::new(store))),
        _ => MicrosoftAzureBuilder::from_env()
            .with_url(root)
            .with_client_options(client)
            .with_retry(retry)
            .build()
            .map(|store| boxed(Box::new(store))),
    };
    made.map_err(|source| failed(&address.url, config, source))
}

/// The client panics on an address of a server that is none.
fn refuse_endpoint(address: &Address) -> Result<(), RemoteError> {
    use object_store::aws::AmazonS3ConfigKey::Endpoint;
    let set = AmazonS3Builder::from_env().get_config_value(&Endpoint);
    let valid = |text: &str| {
        let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-_~:/[]@%".contains(&byte);
        host.is_some_and(|host| !host.is_empty() && host.bytes().all(allowed))
    };
    if address.scheme != "s3" || set.is_none_or(|text| valid(&text)) {
        return Ok(());
    }
    let (url, problem) = (
        address.url.clone(),
        "the server in AWS_ENDPOINT_URL is no address such as http://host:9000",
    );
    Err(RemoteError::Url { url, problem })
}

struct Remote<'a> {
    store: Box<dyn ObjectStore>,
    address: &'a Address,
    config: &'a RemoteConfig,
    listener: &'a dyn Listener,
}

impl Remote<'_> {
    /// The files that the address names.
    async fn locations(&self) -> Result<Vec<Location>, RemoteError> {
        let url = &self.address.url;
        let bad = |_| RemoteError::Url { url: url.clone(), problem: "its path cannot be read" };
        let location = Location::from_url_path(&self.address.path).map_err(bad)?;
        if !self.address.folder {
            return Ok(vec![location]);
        }
        let listed = self.store.list_with_delimiter(Some(&location)).await;
        let listed = listed.map_err(|source| failed(url, self.config, source))?;
        let files = listed.objects.into_iter().map(|file| file.location);
        // Notes of whoever wrote the folder, such as Spark's `_SUCCESS`.
        let is_note =
            |file: &Location| file.filename().is_none_or(|name| name.starts_with(['_', '.']));
        let mut files: Vec<_> = files.filter(|file| !is_note(file)).collect();
        files.sort();
        match files.is_empty() {
            true => Err(RemoteError::NotFound { url: url.clone() }),
            false => Ok(files),
        }
    }

    async fn file(&self, location: &Location, cache: &Path) -> Result<PathBuf, RemoteError> {
        let url = format!("{}/{location}", self.address.root);
        let about = self.store.head(location).await;
        let about = about.map_err(|source| failed(&url, self.config, source))?;
        let version = version(&about);
        let copy = Copy::of(&url, cache)?;
        if let Some(path) = copy.whole(&version) {
            return Ok(path);
        }
        let begun = copy.begun(&version)?;
        self.download(location, &url, &copy, (&about, &version), begun).await?;
        // Servers without tags often do not heed on what condition a part was asked for.
        if version.is_by_time() {
            let now = self.store.head(location).await;
            let now = now.map_err(|source| failed(&url, self.config, source))?;
            if self::version(&now) != version {
                copy.discard()?;
                return Err(RemoteError::Changed { url });
            }
        }
        copy.finish(&version)
    }

    /// Appends what is missing to the part that is there, in order.
    async fn download(
        &self,
        location: &Location,
        url: &str,
        copy: &Copy,
        (about, version): (&ObjectMeta, &Version),
        begun: u64,
    ) -> Result<(), RemoteError> {
        let by_time = version.is_by_time();
        let path = copy.part_path();
        let open = File::options().create(true).append(true).open(&path);
        let mut file = open.map_err(RemoteError::io("create", &path))?;
        let step = self.config.part_bytes.max(1);
        let starts = (begun..version.bytes).step_by(usize::try_from(step).unwrap_or(usize::MAX));
        let parts = starts.map(|start| {
            let options = GetOptions {
                range: Some(GetRange::Bounded(start..(start + step).min(version.bytes))),
                // Of another content, no part is sent.
                if_match: version.tag.clone().filter(|_| !by_time),
                if_unmodified_since: by_time.then_some(about.last_modified),
                ..GetOptions::default()
            };
            async move { self.store.get_opts(location, options).await?.bytes().await }
        });
        let mut parts = futures_util::stream::iter(parts).buffered(AT_ONCE);
        let mut done = begun;
        let next = |done: u64| {
            let (stage, unit) = ("fetch".to_owned(), "bytes".to_owned());
            self.listener.on(&Event::Progress { stage, done, total: version.bytes, unit });
        };
        while let Some(part) =
            parts.try_next().await.map_err(|source| failed(url, self.config, source))?
        {
            file.write_all(&part).map_err(|source| unwritten(url, &path, version, source))?;
            done += part.len() as u64;
            next(done);
        }
        if let Err(source) = file.sync_all() {
            // Nobody knows how much of it is on the disk: no more is believed than before.
            let _ = file.set_len(begun);
            return Err(unwritten(url, &path, version, source));
        }
        match done == version.bytes {
            true => Ok(()),
            false => Err(RemoteError::Changed { url: url.to_owned() }),
        }
    }
}

/// Before the time of the last change, where a server has no tag.
const TIME: &str = "changed ";

/// Age in seconds below which a time of change says nothing: that of what a server makes as it is asked is always now.
const YOUNG: u64 = 60;

impl Version {
    /// Whether the time of the last change is all that is known of the content.
    fn is_by_time(&self) -> bool {
        self.tag.as_ref().is_some_and(|tag| tag.starts_with(TIME))
    }
}

fn version(about: &ObjectMeta) -> Version {
    // Servers without a time of change are given the epoch's.
    let changed = about.last_modified.timestamp();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let is_old = u64::try_from(changed).is_ok_and(|changed| changed.saturating_add(YOUNG) <= now);
    let time = || (changed != 0 && is_old).then(|| format!("{TIME}{changed}"));
    Version { bytes: about.size, tag: about.e_tag.clone().or_else(time) }
}

/// A full disk is told with what the file takes, any other refusal as it is.
fn unwritten(url: &str, path: &Path, version: &Version, source: std::io::Error) -> RemoteError {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    if !matches!(source.kind(), FileTooLarge | QuotaExceeded | StorageFull) {
        return RemoteError::io("write", path)(source);
    }
    let there = std::fs::metadata(path).map_or(0, |found| found.len());
    let (url, path, bytes) = (url.to_owned(), path.to_owned(), version.bytes);
    RemoteError::Full { url, path, bytes, lacking: bytes.saturating_sub(there), source }
}

fn failed(url: &str, config: &RemoteConfig, error: object_store::Error) -> RemoteError {
    use object_store::Error as E;
    let url = url.to_owned();
    match error {
        E::NotFound { .. } => RemoteError::NotFound { url },
        E::PermissionDenied { source, .. } | E::Unauthenticated { source, .. } => {
            RemoteError::Refused { url, source }
        }
        E::Precondition { .. } => RemoteError::Changed { url },
        E::NotSupported { .. } => RemoteError::NoParts { url },
        error if timed_out(&error) => {
            let (timeout, tries) = (config.timeout, config.retries + 1);
            RemoteError::TimedOut { url, timeout, tries, source: Box::new(error) }
        }
        error => RemoteError::Failed { url, source: Box::new(error) },
    }
}

/// Whether a time-out is among the causes. The client's own types for it are private.
fn timed_out(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        // Errors of repeated requests also say how long they might have been repeated.
        let text = error.to_string().replace("retry_timeout", "");
        if text.contains("timed out") || text.contains("timeout") {
            return true;
        }
        cause = error.source();
    }
    false
}
