//! The client: what a server has, and its bytes part by part onto the disk.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use firebox_core::Listener;
use futures_util::StreamExt;
use object_store::path::Path as Location;
use object_store::{Attribute, GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore};

use crate::cache::{Copy, has_copy, keep_listing};
use crate::error::Local;
use crate::meter::Meter;
use crate::store::{client, store};
use crate::url::Address;
use crate::version::{Version, WEAK, version};
use crate::{RemoteConfig, RemoteError};

/// Parts that are on their way at a time.
const AT_ONCE: usize = 4;

/// Share of a part that an answer must bring for its failure not to count, as one in so many.
const SHARE: u64 = 16;

/// The longest wait before a part is asked for again.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

pub(crate) fn fetch(
    address: &Address,
    cache: &Path,
    config: &RemoteConfig,
    heard: (&AtomicBool, &dyn Listener),
) -> Result<Vec<PathBuf>, RemoteError> {
    // Whoever is in a runtime of their own may not wait for another one on the same thread.
    if tokio::runtime::Handle::try_current().is_err() {
        return fetch_here(address, cache, config, heard);
    }
    std::thread::scope(|scope| {
        let fetched = scope.spawn(|| fetch_here(address, cache, config, heard)).join();
        fetched.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The same on this thread.
fn fetch_here(
    address: &Address,
    cache: &Path,
    config: &RemoteConfig,
    (stop, listener): (&AtomicBool, &dyn Listener),
) -> Result<Vec<PathBuf>, RemoteError> {
    let threads = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let threads = threads.map_err(RemoteError::io("start a thread for", cache))?;
    threads.block_on(async {
        let store = store(address, config, client(config))?;
        let remote = Remote { store, address, cache, config, stop, listener };
        let (mut files, mut urls) = (Vec::new(), Vec::new());
        for location in remote.locations().await? {
            files.push(remote.file(&location).await?);
            urls.push(format!("{}/{location}", address.root));
        }
        if address.folder {
            keep_listing(address.file_url(), urls, cache)?;
        }
        Ok(files)
    })
}

struct Remote<'a> {
    store: Box<dyn ObjectStore>,
    address: &'a Address,
    cache: &'a Path,
    config: &'a RemoteConfig,
    stop: &'a AtomicBool,
    listener: &'a dyn Listener,
}

/// What is fetched.
struct Wanted<'a> {
    url: &'a str,
    location: &'a Location,
    version: &'a Version,
    /// What each part is asked for with.
    condition: GetOptions,
    /// When the server was asked of it first.
    asked: SystemTime,
}

impl Wanted<'_> {
    /// Refuses an answer of another content or length. Not all servers heed on what condition they are asked.
    fn check(&self, answer: &GetResult) -> Result<(), Broken> {
        let tag = answer.meta.e_tag.as_ref().filter(|tag| !tag.starts_with(WEAK));
        if self.version.is_strong() && tag.is_some_and(|tag| Some(tag) != self.version.tag.as_ref())
        {
            return Err(Broken::Changed);
        }
        match answer.meta.size {
            bytes if bytes == self.version.bytes => Ok(()),
            sent => Err(Broken::Length { sent }),
        }
    }
}

/// Why the rest of a part did not come.
enum Broken {
    /// The server was asked as often as it may be.
    Request(object_store::Error),
    /// It began to send.
    Body(object_store::Error),
    /// It has, or sends, another number of bytes.
    Length { sent: u64 },
    /// The disk refuses, which had so many bytes of the file.
    Disk { had: u64, source: std::io::Error },
    /// It was asked to stop.
    Stopped,
    /// It has another content by now.
    Changed,
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
        let listed = listed.map_err(|source| failed(url, self.config, Local::Nothing, source))?;
        let files = listed.objects.into_iter().map(|file| file.location);
        // Notes of whoever wrote the folder, such as Spark's `_SUCCESS`.
        let is_note =
            |file: &Location| file.filename().is_none_or(|name| name.starts_with(['_', '.']));
        // A folder that somebody made has an object of its own name, of no bytes: it is no file in it.
        let is_file = |file: &Location| *file != location && !is_note(file);
        let mut files: Vec<_> = files.filter(is_file).collect();
        files.sort();
        match files.is_empty() {
            true if !listed.common_prefixes.is_empty() => {
                let problem = "there are folders alone in it, which are not searched: name one of them, with a / at its end";
                Err(RemoteError::Url { url: url.clone(), problem })
            }
            true => Err(RemoteError::NotFound { url: url.clone() }),
            false => Ok(files),
        }
    }

    async fn file(&self, location: &Location) -> Result<PathBuf, RemoteError> {
        let url = format!("{}/{location}", self.address.root);
        let asked = SystemTime::now();
        let about = self.about(location, &url).await?;
        let version = version(&about, asked);
        let copy = Copy::of(&url, self.cache, (self.stop, self.listener))?;
        if let Some(path) = copy.whole(&version) {
            return Ok(path);
        }
        let begun = if version.resumes() { copy.begun(&version)? } else { copy.anew(&version)? };
        // Of another content, no part is sent, if the server heeds it.
        let condition = GetOptions {
            if_match: version.tag.clone().filter(|_| version.is_strong()),
            if_unmodified_since: version.is_by_time().then_some(about.last_modified),
            ..GetOptions::default()
        };
        let wanted = Wanted { url: &url, location, version: &version, condition, asked };
        match self.download(&wanted, &copy, begun).await {
            Err(error @ RemoteError::Length { .. }) => {
                copy.discard()?;
                match self.is_current(&wanted).await? {
                    true => Err(error),
                    false => Err(RemoteError::Changed { url }),
                }
            }
            Err(error) => Err(error),
            Ok(()) if version.is_strong() || self.is_current(&wanted).await? => {
                copy.finish(&version)
            }
            Ok(()) => {
                copy.discard()?;
                Err(RemoteError::Changed { url })
            }
        }
    }

    /// What the server says of a file.
    async fn about(&self, location: &Location, url: &str) -> Result<ObjectMeta, RemoteError> {
        let head = GetOptions { head: true, ..GetOptions::default() };
        let about = match self.store.get_opts(location, head).await {
            Err(error) if self.is_web() && is_refusal(&error) => self.about_by_byte(location).await,
            about => about,
        };
        let about = about.map_err(|source| failed(url, self.config, self.copy(url), source))?;
        self.refuse(url, &about)?;
        Ok(about.meta)
    }

    /// The same by asking for the first byte, of web servers that answer no question about a file, or not how long it is.
    async fn about_by_byte(&self, location: &Location) -> object_store::Result<GetResult> {
        let byte = GetOptions { range: Some(GetRange::Bounded(0..1)), ..GetOptions::default() };
        match self.store.get_opts(location, byte).await {
            // It sends no parts: its answer is left where it is.
            Err(object_store::Error::NotSupported { .. }) => {
                self.store.get_opts(location, GetOptions::default()).await
            }
            about => about,
        }
    }

    /// Whether it is no store of objects that is asked.
    fn is_web(&self) -> bool {
        matches!(self.address.scheme, "http" | "https")
    }

    /// Refuses what is no file of data.
    fn refuse(&self, url: &str, about: &GetResult) -> Result<(), RemoteError> {
        let said = |name| about.attributes.get(&name).map_or("", |value| value.as_ref());
        let encoding = said(Attribute::ContentEncoding);
        if !matches!(encoding, "" | "identity" | "aws-chunked") {
            let (url, encoding) = (url.to_owned(), encoding.to_owned());
            return Err(RemoteError::Encoded { url, encoding });
        }
        // Whoever uploads to a bucket says of the type what he likes.
        let is_web = self.is_web();
        let no_file = |found| Err(RemoteError::NoFile { url: url.to_owned(), found });
        match said(Attribute::ContentType).starts_with("text/html") {
            true if is_web => no_file("a web page (text/html)"),
            _ if is_web && about.meta.size == 0 => no_file("nothing, 0 bytes"),
            _ => Ok(()),
        }
    }

    /// Whether the server's file is still the one that was wanted.
    async fn is_current(&self, wanted: &Wanted<'_>) -> Result<bool, RemoteError> {
        let now = self.about(wanted.location, wanted.url).await?;
        Ok(version(&now, wanted.asked) == *wanted.version)
    }

    /// Appends what is missing to the part that is there, in order, as far as it comes.
    async fn download(
        &self,
        wanted: &Wanted<'_>,
        copy: &Copy,
        begun: u64,
    ) -> Result<(), RemoteError> {
        let (url, version) = (wanted.url, wanted.version);
        let path = copy.part_path();
        let open = File::options().create(true).append(true).open(&path);
        let mut file = open.map_err(RemoteError::io("create", &path))?;
        let meter = Meter::new(self.listener, begun, version.bytes);
        let step = self.config.part_bytes.max(1);
        let starts = (begun..version.bytes).step_by(usize::try_from(step).unwrap_or(usize::MAX));
        let parts = starts.map(|start| {
            let range = start..start.saturating_add(step).min(version.bytes);
            self.part(wanted, range, &meter)
        });
        let mut parts = futures_util::stream::iter(parts).buffered(AT_ONCE);
        let (mut safe, mut done, mut end) = (begun, begun, Ok(()));
        while let Some((bytes, result)) = parts.next().await {
            file.write_all(&bytes)
                .map_err(|source| unwritten(wanted, &path, (length(&file), true), source))?;
            done += bytes.len() as u64;
            end = result;
            if end.is_err() {
                break;
            }
        }
        if let Err(Broken::Request(object_store::Error::NotSupported { .. })) = end {
            drop(parts);
            // An answer may take however long, as long as something comes.
            let patient = client(self.config).with_timeout_disabled();
            let patient = store(self.address, self.config, patient)?;
            safe = 0;
            (done, end) = (0, self.whole(wanted, patient.as_ref(), &mut file, &meter).await);
        }
        if let Err(source) = file.sync_all() {
            // Nobody knows how much of it is on the disk: no more is believed than before.
            let _ = file.set_len(safe);
            return Err(unwritten(wanted, &path, (length(&file), true), source));
        }
        end.map_err(|broken| match broken {
            Broken::Length { sent } => {
                RemoteError::Length { url: url.to_owned(), said: version.bytes, sent }
            }
            // It refuses a whole file alone, of which nothing is kept.
            Broken::Disk { had, source } => unwritten(wanted, &path, (had, false), source),
            Broken::Changed => RemoteError::Changed { url: url.to_owned() },
            Broken::Stopped => {
                let url = url.to_owned();
                RemoteError::Stopped { local: self.local(&url, version, done), url }
            }
            Broken::Request(source) | Broken::Body(source) => {
                failed(url, self.config, self.local(url, version, done), source)
            }
        })
    }

    /// A whole file, of a server that sends no parts: what fails begins anew, and nothing of it is kept.
    async fn whole(
        &self,
        wanted: &Wanted<'_>,
        store: &dyn ObjectStore,
        file: &mut File,
        meter: &Meter<'_>,
    ) -> Result<(), Broken> {
        let mut tries = 0;
        let refused = |source| Broken::Disk { had: 0, source };
        loop {
            file.set_len(0).map_err(refused)?;
            meter.restart();
            match self.pour(wanted, store, file, meter).await {
                Err(Broken::Body(_)) if tries < self.config.retries && self.heed().is_ok() => {
                    tries += 1;
                }
                Err(broken) => {
                    file.set_len(0).map_err(refused)?;
                    self.heed()?;
                    return Err(broken);
                }
                Ok(()) => return Ok(()),
            }
            tokio::time::sleep(wait(tries)).await;
        }
    }

    /// Appends a whole file as it comes.
    async fn pour(
        &self,
        wanted: &Wanted<'_>,
        store: &dyn ObjectStore,
        file: &mut File,
        meter: &Meter<'_>,
    ) -> Result<(), Broken> {
        let answer = store.get_opts(wanted.location, wanted.condition.clone());
        let answer = tokio::time::timeout(self.config.timeout, answer).await;
        let answer = answer.map_err(|_| silence())?;
        let answer = answer.map_err(Broken::Request)?;
        wanted.check(&answer)?;
        let (mut body, mut sent) = (answer.into_stream(), 0);
        loop {
            let chunk = tokio::time::timeout(self.config.timeout, body.next()).await;
            let Some(chunk) = chunk.map_err(|_| silence())? else { break };
            let chunk = chunk.map_err(Broken::Body)?;
            self.heed()?;
            // Before it is cut: how much the disk had room for.
            file.write_all(&chunk).map_err(|source| Broken::Disk { had: length(file), source })?;
            sent += chunk.len() as u64;
            meter.add(chunk.len() as u64);
        }
        match sent == wanted.version.bytes {
            true => Ok(()),
            false => Err(Broken::Length { sent }),
        }
    }

    /// A part of a file: as much of its begin as came, and why no more did.
    async fn part(
        &self,
        wanted: &Wanted<'_>,
        range: Range<u64>,
        meter: &Meter<'_>,
    ) -> (Vec<u8>, Result<(), Broken>) {
        let RemoteConfig { timeout, retries, part_bytes, .. } = *self.config;
        let patience = timeout.saturating_mul(u32::try_from(retries).unwrap_or(u32::MAX));
        let (mut bytes, mut had, mut tries) = (Vec::new(), 0, 0);
        let mut since = Instant::now();
        loop {
            let error = match self.rest(wanted, &range, &mut bytes, meter).await {
                Err(Broken::Body(error)) => error,
                end => return (bytes, end),
            };
            if let Err(stopped) = self.heed() {
                return (bytes, Err(stopped));
            }
            if (bytes.len() - had) as u64 * SHARE >= part_bytes {
                (had, tries, since) = (bytes.len(), 0, Instant::now());
            } else {
                tries += 1;
            }
            // The client itself goes on with the body of an answer that has a strong tag, for as long.
            if tries > retries || (tries > 0 && since.elapsed() > patience) {
                return (bytes, Err(Broken::Body(error)));
            }
            tokio::time::sleep(wait(tries)).await;
        }
    }

    /// Appends what is missing of a part, as far as it comes.
    async fn rest(
        &self,
        wanted: &Wanted<'_>,
        part: &Range<u64>,
        bytes: &mut Vec<u8>,
        meter: &Meter<'_>,
    ) -> Result<(), Broken> {
        let start = part.start + bytes.len() as u64;
        let range = Some(GetRange::Bounded(start..part.end));
        let options = GetOptions { range, ..wanted.condition.clone() };
        let answer = self.store.get_opts(wanted.location, options).await;
        let answer = answer.map_err(Broken::Request)?;
        wanted.check(&answer)?;
        let mut body = answer.into_stream();
        while let Some(chunk) = body.next().await {
            let chunk = chunk.map_err(Broken::Body)?;
            self.heed()?;
            bytes.extend_from_slice(&chunk);
            meter.add(chunk.len() as u64);
        }
        match part.start + bytes.len() as u64 {
            end if end == part.end => Ok(()),
            sent => Err(Broken::Length { sent }),
        }
    }

    /// What the cache has of a file whose first bytes are there.
    fn local(&self, url: &str, version: &Version, bytes: u64) -> Local {
        match bytes > 0 && version.resumes() {
            true => Local::Begin { bytes },
            false => self.copy(url),
        }
    }

    fn copy(&self, url: &str) -> Local {
        if has_copy(url, self.cache) { Local::Copy } else { Local::Nothing }
    }

    /// Whoever wants the files wants them no more.
    fn heed(&self) -> Result<(), Broken> {
        if self.stop.load(Ordering::Relaxed) { Err(Broken::Stopped) } else { Ok(()) }
    }
}

/// Nothing came in time.
fn silence() -> Broken {
    Broken::Body(object_store::Error::Generic { store: "HTTP", source: "timed out".into() })
}

/// The wait after so many failures in a row.
fn wait(tries: usize) -> Duration {
    (Duration::from_millis(100) * (1 << tries.min(6))).min(LONGEST_WAIT)
}

/// Bytes of a file that is written; 0 if the disk does not say.
fn length(file: &File) -> u64 {
    file.metadata().map_or(0, |found| found.len())
}

/// A full disk is told with what the file takes, any other refusal as it is. The disk had so many bytes of it, which
/// are kept or not.
fn unwritten(
    wanted: &Wanted<'_>,
    path: &Path,
    (had, is_kept): (u64, bool),
    source: std::io::Error,
) -> RemoteError {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    if !matches!(source.kind(), FileTooLarge | QuotaExceeded | StorageFull) {
        return RemoteError::io("write", path)(source);
    }
    let (url, path, bytes) = (wanted.url.to_owned(), path.to_owned(), wanted.version.bytes);
    let goes_on = is_kept && had > 0 && wanted.version.resumes();
    RemoteError::Full { url, path, bytes, lacking: bytes.saturating_sub(had), goes_on, source }
}

pub(crate) fn failed(
    url: &str,
    config: &RemoteConfig,
    local: Local,
    error: object_store::Error,
) -> RemoteError {
    use object_store::Error as E;
    let url = url.to_owned();
    match error {
        E::NotFound { .. } => RemoteError::NotFound { url },
        E::PermissionDenied { source, .. } | E::Unauthenticated { source, .. } => {
            RemoteError::Refused { url, source }
        }
        E::Precondition { .. } => RemoteError::Changed { url },
        error if wants_keys(&error) => RemoteError::NoKeys { url, local, source: Box::new(error) },
        // Of lists the client tells no kinds of refusal.
        error if lists_with(&error, &["401", "403"]) => {
            RemoteError::Refused { url, source: Box::new(error) }
        }
        error if lists_with(&error, &["404"]) => RemoteError::NotFound { url },
        error if has_no_length(&error) => RemoteError::NoLength { url, local },
        error if timed_out(&error) => {
            let (timeout, tries) = (config.timeout, config.retries.saturating_add(1));
            RemoteError::TimedOut { url, timeout, tries, local, source: Box::new(error) }
        }
        error => RemoteError::Failed { url, local, source: Box::new(error) },
    }
}

/// Whether a server answered, and not as it was asked to.
fn is_refusal(error: &object_store::Error) -> bool {
    use object_store::Error as E;
    match error {
        E::NotFound { .. }
        | E::PermissionDenied { .. }
        | E::Unauthenticated { .. }
        | E::NotSupported { .. } => true,
        // A method that is not known, and an answer without a length.
        error => {
            says(error, |text| text.contains("status code") || text.contains("Header missing"))
        }
    }
}

/// Whether an answer did not say how long it is, such as one in chunks, which the client takes from nobody.
fn has_no_length(error: &(dyn std::error::Error + 'static)) -> bool {
    says(error, |text| text.contains("Content-Length Header missing"))
}

/// Whether a time-out is among the causes. The client's own types for it are private.
fn timed_out(error: &(dyn std::error::Error + 'static)) -> bool {
    says(error, |text| {
        // Errors of repeated requests also say how long they might have been repeated.
        let text = text.replace("retry_timeout", "");
        text.contains("timed out") || text.contains("timeout")
    })
}

/// Whether what failed is to ask the machine for keys of S3, as the client does where the environment has none: only
/// those at Amazon have an answer.
fn wants_keys(error: &(dyn std::error::Error + 'static)) -> bool {
    says(error, |text| {
        ["/latest/api/token", "/latest/meta-data/iam"].iter().any(|place| text.contains(place))
    })
}

/// Whether what failed is to ask what a folder holds, which was answered with one of these statuses.
fn lists_with(error: &(dyn std::error::Error + 'static), statuses: &[&str]) -> bool {
    says(error, |text| {
        let answer = text.contains("list request").then(|| text.split_once(" status code: "));
        let status = answer.flatten().map(|(_, status)| status);
        status.is_some_and(|found| statuses.iter().any(|status| found.starts_with(status)))
    })
}

/// Whether an error or one of its causes says something.
fn says(error: &(dyn std::error::Error + 'static), what: impl Fn(&str) -> bool) -> bool {
    std::iter::successors(Some(error), |&error| error.source())
        .any(|error| what(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_keys_the_variables_that_have_them_are_named() {
        let said = |text: &str| {
            let error = object_store::Error::Generic { store: "S3", source: text.into() };
            let config = RemoteConfig::default();
            failed("s3://bucket/bars.csv", &config, Local::Nothing, error).to_string()
        };
        // Whether that address answers that there is nothing, or not at all.
        for end in ["error sending request", "operation timed out"] {
            let text = format!("PUT http://169.254.169.254/latest/api/token: {end}");
            let found = said(&text);
            assert!(found.starts_with("`s3://bucket/bars.csv` is asked for with keys"), "{found}");
            assert!(found.ends_with("or AWS_SKIP_SIGNATURE=true for a public bucket"), "{found}");
        }
        assert!(said("GET http://host/bars.csv: timed out").contains("no answer within"));
        assert!(said("GET http://host/bars.csv: refused").ends_with("cannot be fetched"));
    }
}
