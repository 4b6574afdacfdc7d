//! Fetching from servers: a small one of our own that misbehaves on demand, and moto's S3.
#![cfg(feature = "client")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use firebox_core::{Event, Silent};
use firebox_remote::{Local, RemoteConfig, RemoteError, fetch, fetch_until};
use firebox_tests::S3;

/// A web server of one file.
struct Server {
    port: u16,
    file: Arc<File>,
}

struct File {
    content: Mutex<(Vec<u8>, &'static str)>,
    /// Bytes sent of bodies.
    sent: AtomicU64,
    /// Parts that are answered before all further ones are not.
    parts: AtomicUsize,
    /// Parts that are answered before the content is another, an hour younger.
    changes_after: AtomicUsize,
    /// Parts that are cut off in their middle, before all further ones are not.
    cuts: AtomicUsize,
    /// Whether a part comes 100 bytes at a time, ten times a second.
    is_slow: AtomicBool,
    /// Whether conditions are not heeded.
    is_heedless: AtomicBool,
    /// The time of change of contents that are young when the server begins.
    young: String,
    /// What is said of the length in place of the truth.
    length: AtomicUsize,
    /// Requests.
    asked: AtomicUsize,
    /// Whether no request is answered any more.
    is_silent: AtomicBool,
    /// Further headers.
    header: Mutex<&'static str>,
}

const ALL: usize = usize::MAX;

impl Server {
    fn start(content: Vec<u8>, parts: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let file = Arc::new(File {
            content: Mutex::new((content, "\"one\"")),
            sent: AtomicU64::new(0),
            parts: AtomicUsize::new(parts),
            changes_after: AtomicUsize::new(ALL),
            cuts: AtomicUsize::new(0),
            is_slow: AtomicBool::new(false),
            is_heedless: AtomicBool::new(false),
            young: nearly_a_minute_ago(),
            length: AtomicUsize::new(ALL),
            asked: AtomicUsize::new(0),
            is_silent: AtomicBool::new(false),
            header: Mutex::new(""),
        });
        let shared = Arc::clone(&file);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let file = Arc::clone(&shared);
                std::thread::spawn(move || while answer(&stream, &file).is_some() {});
            }
        });
        Self { port, file }
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.port)
    }
}

/// Answers one request; none if the connection is to be closed.
fn answer(mut stream: &TcpStream, file: &File) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    let first = lines.next()?.ok()?;
    let headers: Vec<String> =
        lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
    let header = |name: &str| {
        let named = |line: &&String| line.to_lowercase().starts_with(&format!("{name}:"));
        headers.iter().find(named).map(|line| line[name.len() + 1..].trim().to_owned())
    };
    let (content, tag) = file.content.lock().unwrap().clone();
    file.asked.fetch_add(1, Ordering::SeqCst);
    if file.is_silent.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_secs(5));
        return None;
    }
    let status = match first.split(' ').nth(1)? {
        "/bars.csv" | "/manifest.json" | "/whole.csv" => 200,
        // No question about them is answered, or not how long they are.
        "/get/bars.csv" | "/get/whole.csv" if first.starts_with("HEAD") => 405,
        "/signed/bars.csv" if first.starts_with("HEAD") => 403,
        "/new/bars.csv" if first.starts_with("HEAD") => 501,
        "/get/bars.csv" | "/get/whole.csv" | "/signed/bars.csv" | "/new/bars.csv" => 200,
        "/chunked/bars.csv" => 200,
        // Nor how long what they send is.
        "/unsaid/bars.csv" | "/unsaid/parts.csv" => 200,
        "/secret.csv" => 403,
        // What a folder holds, of buckets of S3.
        path if path.starts_with("/secret?") => 403,
        path if path.starts_with("/login?") => 401,
        "/slow.csv" => {
            std::thread::sleep(Duration::from_secs(5));
            return None;
        }
        _ => 404,
    };
    if status != 200 {
        write!(stream, "HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n").ok()?;
        return Some(());
    }
    if first.starts_with("HEAD") {
        let length = file.length.load(Ordering::SeqCst);
        if first.contains("/chunked/") || first.contains("/unsaid/bars.csv") {
            let version = version(tag, &file.young);
            write!(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{version}\r\n\r\n")
                .ok()?;
            return Some(());
        }
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{}{}\r\n\r\n",
            if length == ALL { content.len() } else { length },
            file.header.lock().unwrap(),
            version(tag, &file.young)
        )
        .ok()?;
        return Some(());
    }
    if first.contains("/unsaid/") {
        let status = match header("range") {
            Some(_) if first.contains("/parts.csv") => {
                "206 Partial\r\nContent-Range: bytes 0-999/25500"
            }
            _ => "200 OK",
        };
        write!(stream, "HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n").ok()?;
        return None;
    }
    // Weak tags never match here (RFC 9110, 13.1.1).
    let heeds = !file.is_heedless.load(Ordering::SeqCst);
    if heeds && header("if-match").is_some_and(|wanted| wanted != tag || tag.starts_with("W/")) {
        write!(stream, "HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n").ok()?;
        return Some(());
    }
    let left = file.parts.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
        Some(if left == ALL { ALL } else { left.saturating_sub(1) })
    });
    if left == Ok(0) {
        write!(stream, "HTTP/1.1 400 Enough\r\nContent-Length: 0\r\n\r\n").ok()?;
        return Some(());
    }
    if first.contains("/whole.csv") {
        let version = version(tag, &file.young);
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{version}\r\n\r\n", content.len())
            .ok()?;
        // Whoever wanted a part has gone already.
        return if header("range").is_some() { None } else { send(stream, &content, file) };
    }
    let range = header("range")?;
    let (start, end) = range.strip_prefix("bytes=")?.split_once('-')?;
    let (start, end): (usize, usize) = (start.parse().ok()?, end.parse().ok()?);
    let until = file.changes_after.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
        Some(if left == ALL { ALL } else { left.saturating_sub(1) })
    });
    if until == Ok(1) {
        let mut held = file.content.lock().unwrap();
        held.0.reverse();
        held.1 = if tag.starts_with('"') { "\"other\"" } else { "Wed, 21 Oct 2015 08:28:00 GMT" };
    }
    if start >= content.len() {
        write!(stream, "HTTP/1.1 416 Beyond\r\nContent-Length: 0\r\n\r\n").ok()?;
        return Some(());
    }
    let end = end.min(content.len() - 1);
    let part = &content[start..=end];
    write!(
        stream,
        "HTTP/1.1 206 Partial\r\nContent-Length: {}\r\nContent-Range: bytes {start}-{end}/{}\r\n{}\r\n\r\n",
        part.len(),
        content.len(),
        version(tag, &file.young)
    )
    .ok()?;
    send(stream, part, file)
}

/// A body, or half of one; none if the connection is to be closed.
fn send(mut stream: &TcpStream, part: &[u8], file: &File) -> Option<()> {
    let cut =
        file.cuts.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
    let part = if cut.is_ok() { &part[..part.len() / 2] } else { part };
    let pieces = if file.is_slow.load(Ordering::SeqCst) { 100 } else { part.len().max(1) };
    for piece in part.chunks(pieces) {
        stream.write_all(piece).ok()?;
        file.sent.fetch_add(piece.len() as u64, Ordering::SeqCst);
        if pieces < part.len() {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    cut.is_err().then_some(())
}

/// What a server says of a content: its tag and the time of its last change, or one of the two alone.
fn version(tag: &str, young: &str) -> String {
    match tag {
        "young" => format!("Last-Modified: {young}"),
        "young W/\"one\"" => format!("ETag: W/\"one\"\r\nLast-Modified: {young}"),
        "W/\"one\" only" => "ETag: W/\"one\"".to_owned(),
        _ if tag.starts_with(['"', 'W']) && !tag.starts_with("Wed") => {
            format!("ETag: {tag}\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT")
        }
        _ => format!("Last-Modified: {tag}"),
    }
}

fn config() -> RemoteConfig {
    let timeout = Duration::from_millis(400);
    RemoteConfig { timeout, retries: 1, part_bytes: 1000, offline: false }
}

/// Of parts that take two and a half seconds on a slow line, a server has one and a half.
fn slowly() -> RemoteConfig {
    let timeout = Duration::from_millis(1500);
    RemoteConfig { timeout, retries: 0, part_bytes: 2500, offline: false }
}

/// A moment 58 seconds ago, as servers write it: in two seconds it is old enough to tell contents apart by.
fn nearly_a_minute_ago() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
    chrono::DateTime::from_timestamp(now - 58, 0).unwrap().to_rfc2822()
}

fn content() -> Vec<u8> {
    (0..25_500u32).map(|at| (at * 31 % 251) as u8).collect()
}

fn get(url: &str, cache: &Path) -> Result<Vec<u8>, RemoteError> {
    let files = fetch(url, cache, &config(), &Silent)?;
    assert_eq!(files.len(), 1);
    assert!(files[0].ends_with("bars.csv"), "the name stays: {files:?}");
    Ok(fs::read(&files[0]).unwrap())
}

#[test]
fn a_file_is_fetched_once_and_again_when_it_or_the_copy_changes() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(content(), ALL);
    let url = server.url("bars.csv");
    let sent = || server.file.sent.load(Ordering::SeqCst);
    assert_eq!(get(&url, cache.path()).unwrap(), content());
    assert_eq!(get(&url, cache.path()).unwrap(), content());
    assert_eq!(sent(), 25_500, "the copy is used");
    // A copy that was changed is not believed.
    let copy = fetch(&url, cache.path(), &config(), &Silent).unwrap().remove(0);
    let mut bytes = content();
    bytes[700] ^= 1;
    fs::write(&copy, bytes).unwrap();
    assert_eq!(get(&url, cache.path()).unwrap(), content());
    assert_eq!(sent(), 2 * 25_500);
    let other: Vec<u8> = content().into_iter().rev().collect();
    *server.file.content.lock().unwrap() = (other.clone(), "\"two\"");
    assert_eq!(get(&url, cache.path()).unwrap(), other);
}

#[test]
fn whoever_is_in_a_runtime_of_their_own_may_fetch_too() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(content(), ALL);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let url = server.url("bars.csv");
    assert_eq!(runtime.block_on(async { get(&url, cache.path()).unwrap() }), content());
}

#[test]
fn several_who_want_the_same_fetch_it_once() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(content(), ALL);
    let url = server.url("bars.csv");
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..6).map(|_| scope.spawn(|| get(&url, cache.path()))).collect();
        for one in all {
            assert_eq!(one.join().unwrap().unwrap(), content());
        }
    });
    assert_eq!(server.file.sent.load(Ordering::SeqCst), 25_500);
}

#[test]
fn a_download_that_was_cut_short_goes_on() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(content(), 11);
    let url = server.url("bars.csv");
    let error = get(&url, cache.path()).unwrap_err();
    assert!(error.to_string().contains("trying again goes on"), "{error}");
    let sent = server.file.sent.load(Ordering::SeqCst);
    server.file.parts.store(ALL, Ordering::SeqCst);
    assert_eq!(get(&url, cache.path()).unwrap(), content());
    let again = server.file.sent.load(Ordering::SeqCst) - sent;
    // Parts that were on their way behind the failed one are fetched again.
    assert!(again < 25_500 - 5_000, "{again} of 25500 bytes were fetched again");
    // One that begins with other content begins anew.
    let cache = tempfile::tempdir().unwrap();
    server.file.parts.store(11, Ordering::SeqCst);
    get(&url, cache.path()).unwrap_err();
    let other: Vec<u8> = content().into_iter().rev().collect();
    *server.file.content.lock().unwrap() = (other.clone(), "\"two\"");
    server.file.parts.store(ALL, Ordering::SeqCst);
    assert_eq!(get(&url, cache.path()).unwrap(), other);
}

/// A strong tag, a weak one beside a time, and a time alone.
const TAGS: [&str; 3] = ["\"one\"", "W/\"one\"", "Wed, 21 Oct 2015 07:28:00 GMT"];

#[test]
fn a_part_that_is_cut_off_goes_on_where_it_stopped() {
    for tag in TAGS {
        let cache = tempfile::tempdir().unwrap();
        let server = Server::start(content(), ALL);
        server.file.content.lock().unwrap().1 = tag;
        // More than are asked for again: halves of parts are no failures.
        server.file.cuts.store(20, Ordering::SeqCst);
        let url = server.url("bars.csv");
        assert_eq!(get(&url, cache.path()).unwrap(), content(), "{tag}");
        assert_eq!(server.file.sent.load(Ordering::SeqCst), 25_500, "{tag}");
        // A whole copy is current as long as the server says the same of it.
        assert_eq!(get(&url, cache.path()).unwrap(), content(), "{tag}");
        assert_eq!(server.file.sent.load(Ordering::SeqCst), 25_500, "{tag}");
    }
}

/// A file of this tag is fetched whole on a line on which no part comes in time.
fn comes_slowly(tag: &'static str) {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(content()[..4000].to_vec(), ALL);
    server.file.content.lock().unwrap().1 = tag;
    server.file.is_slow.store(true, Ordering::SeqCst);
    let files = fetch(&server.url("bars.csv"), cache.path(), &slowly(), &Silent).unwrap();
    assert_eq!(fs::read(&files[0]).unwrap(), content()[..4000], "{tag}");
}

#[test]
fn a_slow_line_is_slow_and_no_failure() {
    for tag in TAGS {
        comes_slowly(tag);
    }
}

#[test]
fn what_came_of_a_part_is_kept_and_the_error_says_how_much() {
    for tag in TAGS {
        let cache = tempfile::tempdir().unwrap();
        let server = Server::start(content(), ALL);
        server.file.content.lock().unwrap().1 = tag;
        // One part after the other, of which the first two are cut, and nothing is answered after them.
        server.file.cuts.store(2, Ordering::SeqCst);
        server.file.parts.store(2, Ordering::SeqCst);
        let whole = RemoteConfig { part_bytes: 1 << 20, ..config() };
        let url = server.url("bars.csv");
        let error = fetch(&url, cache.path(), &whole, &Silent).unwrap_err();
        // A half, and a half of the rest.
        let had = 12_750 + 6_375;
        assert!(
            matches!(error, RemoteError::Failed { local: Local::Begin { bytes }, .. } if bytes == had)
        );
        let says = format!("its first {had} bytes are kept, so trying again goes on");
        assert!(error.to_string().ends_with(&says), "{error}");
        server.file.parts.store(ALL, Ordering::SeqCst);
        assert_eq!(get(&url, cache.path()).unwrap(), content());
        assert_eq!(server.file.sent.load(Ordering::SeqCst), 25_500, "{tag}");
    }
}

#[test]
fn of_contents_that_only_mean_the_same_no_parts_are_put_together() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(content(), 11);
    server.file.content.lock().unwrap().1 = "W/\"one\" only";
    let url = server.url("bars.csv");
    let error = get(&url, cache.path()).unwrap_err();
    assert!(matches!(error, RemoteError::Failed { local: Local::Nothing, .. }), "{error:?}");
    assert!(error.to_string().ends_with("cannot be fetched"), "{error}");
    let sent = server.file.sent.load(Ordering::SeqCst);
    server.file.parts.store(ALL, Ordering::SeqCst);
    assert_eq!(get(&url, cache.path()).unwrap(), content());
    assert_eq!(server.file.sent.load(Ordering::SeqCst) - sent, 25_500);
    assert_eq!(get(&url, cache.path()).unwrap(), content());
    assert_eq!(server.file.sent.load(Ordering::SeqCst) - sent, 25_500, "the copy is used");
}

#[test]
fn a_server_that_is_wrong_about_a_length_is_told_as_one() {
    for said in [20_000, 25_499, 25_501, 40_000] {
        let cache = tempfile::tempdir().unwrap();
        let server = Server::start(content(), ALL);
        server.file.length.store(said, Ordering::SeqCst);
        let error = get(&server.url("bars.csv"), cache.path()).unwrap_err();
        let says = format!("the server says that it has {said} bytes, and sends 25500");
        assert!(matches!(error, RemoteError::Length { .. }), "{error:?}");
        assert!(error.to_string().contains(&says), "{error}");
    }
}

#[test]
fn a_server_that_does_not_say_how_long_a_file_is_is_told_as_one() {
    let server = Server::start(content(), ALL);
    // One that sends no parts, and one that says it of the file alone.
    for path in ["unsaid/bars.csv", "unsaid/parts.csv"] {
        let cache = tempfile::tempdir().unwrap();
        let error = get(&server.url(path), cache.path()).unwrap_err();
        assert!(matches!(error, RemoteError::NoLength { local: Local::Nothing, .. }), "{error:?}");
        let way_out = "how long what it sends is\n  download it by other means, such as curl -O, and name the copy";
        assert!(error.to_string().ends_with(way_out), "{error}");
    }
}

#[test]
fn a_copy_that_is_fetched_anew_with_the_same_content_is_left_alone() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(content(), ALL);
    // Younger than any question: nobody knows whether a copy is current.
    const YOUNG: &str = "Fri, 01 Jan 2100 00:00:00 GMT";
    server.file.content.lock().unwrap().1 = YOUNG;
    let url = server.url("bars.csv");
    let copy = fetch(&url, cache.path(), &config(), &Silent).unwrap().remove(0);
    let before = SystemTime::now() - Duration::from_secs(100);
    fs::File::options().write(true).open(&copy).unwrap().set_modified(before).unwrap();
    let seen = || fs::metadata(&copy).unwrap().modified().unwrap();
    let before = seen();
    assert_eq!(get(&url, cache.path()).unwrap(), content());
    assert_eq!(server.file.sent.load(Ordering::SeqCst), 2 * 25_500);
    assert_eq!(seen(), before, "whoever reads it finds it as it was");
    assert!(!copy.with_extension("csv.part").exists());
    // Offline, it is believed.
    let offline = RemoteConfig { offline: true, ..config() };
    assert_eq!(fetch(&url, cache.path(), &offline, &Silent).unwrap(), vec![copy.clone()]);
    let other: Vec<u8> = content().into_iter().rev().collect();
    *server.file.content.lock().unwrap() = (other.clone(), YOUNG);
    assert_eq!(get(&url, cache.path()).unwrap(), other);
}

#[test]
fn who_is_stopped_keeps_what_came() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(content(), ALL);
    server.file.is_slow.store(true, Ordering::SeqCst);
    let (url, stop, file) = (server.url("bars.csv"), AtomicBool::new(false), &server.file);
    // Half a minute, had it been waited for.
    let config = RemoteConfig { timeout: Duration::from_secs(60), part_bytes: 1 << 20, ..config() };
    let begun = Instant::now();
    let listener = |event: &Event| {
        if matches!(event, Event::Progress { done: 1.., .. }) {
            stop.store(true, Ordering::SeqCst);
            file.is_slow.store(false, Ordering::SeqCst);
        }
    };
    let error = fetch_until(&stop, &url, cache.path(), &config, &listener).unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    let RemoteError::Stopped { local: Local::Begin { bytes }, .. } = error else {
        panic!("{error:?}");
    };
    assert!((1..25_500).contains(&bytes), "{bytes}");
    assert_eq!(get(&url, cache.path()).unwrap(), content());
}

#[test]
fn who_is_stopped_does_not_wait_for_another_process_or_a_silent_server() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(content(), ALL);
    let url = server.url("bars.csv");
    assert_eq!(get(&url, cache.path()).unwrap(), content());
    let copy = fs::read_dir(cache.path().join("remote-v1")).unwrap().next().unwrap().unwrap();
    let held = fs::File::create(copy.path().join("lock")).unwrap();
    held.lock().unwrap();
    let stop = AtomicBool::new(true);
    let error = fetch_until(&stop, &url, cache.path(), &config(), &Silent).unwrap_err();
    assert!(matches!(error, RemoteError::Stopped { .. }), "{error:?}");
    // Whoever waits is told so, once.
    stop.store(false, Ordering::SeqCst);
    let warnings = Mutex::new(vec![]);
    let listener = |event: &Event| {
        if let Event::Warning { message } = event {
            warnings.lock().unwrap().push(message.clone());
            held.unlock().unwrap();
        }
    };
    let all = fetch_until(&stop, &url, cache.path(), &config(), &listener).unwrap();
    assert_eq!(fs::read(&all[0]).unwrap(), content());
    let expected =
        format!("waiting for another process that fetches or checks the copy of `{url}`");
    assert_eq!(warnings.into_inner().unwrap(), [expected]);
}

#[test]
fn a_content_of_another_tag_is_not_put_together_with_the_first() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(content(), ALL);
    // It heeds no condition, and has another content of the same size after three parts.
    server.file.is_heedless.store(true, Ordering::SeqCst);
    server.file.changes_after.store(3, Ordering::SeqCst);
    let url = server.url("bars.csv");
    let changed = get(&url, cache.path()).unwrap_err();
    assert!(matches!(changed, RemoteError::Changed { .. }), "{changed:?}");
    server.file.changes_after.store(ALL, Ordering::SeqCst);
    let now: Vec<u8> = content().into_iter().rev().collect();
    assert_eq!(get(&url, cache.path()).unwrap(), now);
}

#[test]
fn a_file_that_grows_old_while_it_is_fetched_is_the_same() {
    for tag in ["young", "young W/\"one\""] {
        comes_slowly(tag);
    }
}

#[test]
fn what_is_no_file_of_data_is_refused() {
    let error = |header: &'static str, content: Vec<u8>| {
        let cache = tempfile::tempdir().unwrap();
        let server = Server::start(content, ALL);
        *server.file.header.lock().unwrap() = header;
        let error = get(&server.url("bars.csv"), cache.path()).unwrap_err().to_string();
        assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0, "{error}");
        error
    };
    let page = error("Content-Type: text/html; charset=utf-8\r\n", content());
    assert!(page.contains("the server sends a web page (text/html): open the address"), "{page}");
    let nothing = error("Content-Type: text/csv\r\n", Vec::new());
    assert!(nothing.contains("the server sends nothing, 0 bytes"), "{nothing}");
    let encoded = error("Content-Encoding: gzip\r\n", content());
    assert!(encoded.contains("stored compressed (Content-Encoding: gzip)"), "{encoded}");
}

#[test]
fn without_a_line_the_copy_is_used_if_that_is_asked_for() {
    let offline = RemoteConfig { offline: true, ..config() };
    let cache = tempfile::tempdir().unwrap();
    // Nobody listens there.
    let url = "http://127.0.0.1:9/some%20bars.csv";
    let none = fetch(url, cache.path(), &offline, &Silent).unwrap_err();
    assert!(matches!(none, RemoteError::NoCopy { .. }), "{none:?}");
    assert!(none.to_string().contains("no server is asked: fetch it once"), "{none}");
    assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0);
    let server = Server::start(content(), ALL);
    let url = server.url("bars.csv");
    assert_eq!(get(&url, cache.path()).unwrap(), content());
    let sent = server.file.asked.load(Ordering::SeqCst);
    let copy = fetch(&url, cache.path(), &offline, &Silent).unwrap().remove(0);
    assert_eq!(fs::read(&copy).unwrap(), content());
    assert_eq!(server.file.asked.load(Ordering::SeqCst), sent, "nobody was asked");
    // The server is silent: what there is is named.
    server.file.is_silent.store(true, Ordering::SeqCst);
    let silent = get(&url, cache.path()).unwrap_err();
    assert!(matches!(silent, RemoteError::TimedOut { local: Local::Copy, .. }), "{silent:?}");
    assert!(silent.to_string().contains("the cache has a whole copy, which"), "{silent}");
    // A copy that was changed is none.
    fs::write(&copy, &content()[1..]).unwrap();
    let damaged = fetch(&url, cache.path(), &offline, &Silent).unwrap_err();
    assert!(matches!(damaged, RemoteError::NoCopy { .. }), "{damaged:?}");
}

#[test]
fn a_file_that_changes_while_it_is_fetched_is_not_believed() {
    const BEFORE: &str = "Wed, 21 Oct 2015 07:28:00 GMT";
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(content(), 11);
    // A server without tags, which asks no condition of a part.
    server.file.content.lock().unwrap().1 = BEFORE;
    let url = server.url("bars.csv");
    let cut = get(&url, cache.path()).unwrap_err();
    assert!(matches!(cut, RemoteError::Failed { .. }), "{cut:?}");
    server.file.parts.store(ALL, Ordering::SeqCst);
    server.file.changes_after.store(3, Ordering::SeqCst);
    let changed = get(&url, cache.path()).unwrap_err();
    assert!(matches!(changed, RemoteError::Changed { .. }), "{changed:?}");
    let now: Vec<u8> = content().into_iter().rev().collect();
    assert_eq!(get(&url, cache.path()).unwrap(), now);
}

#[test]
fn a_file_may_be_called_as_a_file_of_the_cache() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(content(), ALL);
    for _ in 0..2 {
        let files = fetch(&server.url("manifest.json"), cache.path(), &config(), &Silent).unwrap();
        assert_eq!(fs::read(&files[0]).unwrap(), content());
    }
    assert_eq!(server.file.sent.load(Ordering::SeqCst), 25_500);
}

#[test]
fn a_server_that_sends_no_parts_sends_the_whole() {
    for tag in TAGS {
        let cache = tempfile::tempdir().unwrap();
        let server = Server::start(content(), ALL);
        server.file.content.lock().unwrap().1 = tag;
        let url = server.url("whole.csv");
        let get = |config: &RemoteConfig| fetch(&url, cache.path(), config, &Silent);
        // Cut off once, and asked again for all of it.
        server.file.cuts.store(1, Ordering::SeqCst);
        assert_eq!(fs::read(&get(&config()).unwrap()[0]).unwrap(), content());
        // Nothing is kept of what is cut off each time.
        server.file.content.lock().unwrap().0.reverse();
        server.file.cuts.store(2, Ordering::SeqCst);
        fs::remove_dir_all(cache.path().join("remote-v1")).unwrap();
        let error = get(&config()).unwrap_err();
        assert!(matches!(error, RemoteError::Failed { local: Local::Nothing, .. }), "{error:?}");
        // However slow it is: two and a half seconds, of which each piece may take one and a half.
        server.file.content.lock().unwrap().0.truncate(2500);
        server.file.is_slow.store(true, Ordering::SeqCst);
        let now = server.file.content.lock().unwrap().0.clone();
        assert_eq!(fs::read(&get(&slowly()).unwrap()[0]).unwrap(), now);
    }
}

#[test]
fn a_server_that_answers_no_question_about_a_file_is_asked_for_its_first_byte() {
    let server = Server::start(content(), ALL);
    for path in
        ["get/bars.csv", "signed/bars.csv", "new/bars.csv", "chunked/bars.csv", "get/whole.csv"]
    {
        let cache = tempfile::tempdir().unwrap();
        let get =
            || fetch(&server.url(path), cache.path(), &config(), &Silent).map(|all| all[0].clone());
        let sent = || server.file.sent.load(Ordering::SeqCst);
        let file = get().unwrap_or_else(|error| panic!("{path}: {error:?}"));
        assert_eq!(fs::read(file).unwrap(), content(), "{path}");
        // Once it is there, no more than its first byte is asked for, if there are parts.
        let before = sent();
        get().unwrap();
        assert!(path.contains("whole") || sent() <= before + 1, "{path}");
    }
}

#[test]
fn refusals_and_silence_are_said_with_the_way_out() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(content(), ALL);
    let error = |path: &str| get(&server.url(path), cache.path()).unwrap_err();
    let forbidden = error("secret.csv");
    assert!(matches!(forbidden, RemoteError::Refused { .. }), "{forbidden:?}");
    assert!(forbidden.to_string().contains("may not be read (401 or 403): it may want a login"));
    let missing = error("none.csv");
    assert!(matches!(missing, RemoteError::NotFound { .. }), "{missing:?}");
    let start = Instant::now();
    let slow = error("slow.csv");
    assert!(matches!(slow, RemoteError::TimedOut { .. }), "{slow:?}");
    assert!(slow.to_string().contains("no answer within 400ms, asked 2 times"), "{slow}");
    assert!(start.elapsed() < Duration::from_secs(4));
    let nobody = get("http://127.0.0.1:9/bars.csv", cache.path()).unwrap_err();
    assert!(matches!(nobody, RemoteError::Failed { .. }), "{nobody:?}");
    // Nothing of it is left that could be taken for a file.
    let left = fs::read_dir(cache.path()).unwrap().count();
    assert_eq!(left, 0);
}

/// No file may grow beyond a few kilobytes, and the process is told so instead of killed.
#[cfg(unix)]
#[test]
fn a_limit_of_files_is_an_error_and_the_download_goes_on() {
    if let Some(cache) = std::env::var_os("FIREBOX_TEST_FULL") {
        let url = std::env::var("FIREBOX_TEST_URL").unwrap();
        let error = fetch(&url, Path::new(&cache), &config(), &Silent).unwrap_err();
        let RemoteError::Full { lacking, .. } = &error else { panic!("{error:?}") };
        println!("{error}\nlacking {lacking}.");
        return;
    }
    let test = "a_limit_of_files_is_an_error_and_the_download_goes_on";
    let server = Server::start(content(), ALL);
    let (cache, url) = (tempfile::tempdir().unwrap(), server.url("bars.csv"));
    let said = fetched_within_limits(test, cache.path(), &url);
    let limited = "no file may be as large as `";
    assert!(said.contains(limited) && said.contains("bars.csv.part` would be"), "{said}");
    assert!(said.contains("raise the limit (`ulimit -f`), or set `run.cache`"), "{said}");
    assert!(said.contains("; what was fetched is kept, so trying again goes on"), "{said}");
    let copy =
        fs::read_dir(cache.path().join("remote-v1")).unwrap().next().unwrap().unwrap().path();
    let kept = fs::read(copy.join("bars.csv.part")).unwrap();
    assert!(kept.len() >= 10_000 && content().starts_with(&kept), "{}", kept.len());
    assert!(said.contains(&format!("lacking {}.", 25_500 - kept.len())), "{said}");
    assert!(!copy.join("bars.csv").exists() && !copy.join("manifest.json").exists());
    let sent = server.file.sent.load(Ordering::SeqCst);
    assert_eq!(get(&url, cache.path()).unwrap(), content());
    let again = server.file.sent.load(Ordering::SeqCst) - sent;
    assert_eq!(again as usize, 25_500 - kept.len());
    // Of a server that sends no parts nothing is kept, and as much of it had found room.
    let (whole, url) = (tempfile::tempdir().unwrap(), server.url("whole.csv"));
    let said = fetched_within_limits(test, whole.path(), &url);
    assert!(said.contains(limited) && !said.contains("trying again goes on"), "{said}");
    assert!(said.contains(&format!("lacking {}.", 25_500 - kept.len())), "{said}");
}

/// What a test says in a process of its own, whose files may have ten kilobytes, or twenty.
#[cfg(unix)]
fn fetched_within_limits(test: &str, cache: &Path, url: &str) -> String {
    // Blocks of 512 bytes, or of 1024 in some shells.
    let script = format!("trap '' XFSZ; ulimit -f 20; exec \"$0\" --exact {test} --nocapture");
    let output = Command::new("sh")
        .args(["-c", &script])
        .arg(std::env::current_exe().unwrap())
        .env("FIREBOX_TEST_FULL", cache)
        .env("FIREBOX_TEST_URL", url)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains(&format!("`{url}` takes 25500 bytes")), "{said}");
    said
}

#[test]
fn a_cache_that_is_a_file_is_an_error() {
    let server = Server::start(content(), ALL);
    let cache = tempfile::tempdir().unwrap();
    let file = cache.path().join("file");
    fs::write(&file, "").unwrap();
    let error = get(&server.url("bars.csv"), &file).unwrap_err();
    assert!(matches!(error, RemoteError::Io { action: "create the folder", .. }), "{error:?}");
}

/// Runs a test in a process of its own, which says nothing unless it fails: it is no further test.
fn passes(test: &mut Command, case: &str) {
    let output = test.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{case}: {}", String::from_utf8_lossy(&said));
}

/// The same program with an address that is none, at which the client would panic.
#[test]
fn an_address_of_a_server_that_is_none_is_refused() {
    let cache = tempfile::tempdir().unwrap();
    for address in ["http://127.0.0.1:9 000", "server:9000", "http://"] {
        let mut test = Command::new(std::env::current_exe().unwrap());
        test.args(["--exact", "s3_is_fetched_from_a_local_server"])
            .env("FIREBOX_TEST_S3_NOWHERE", cache.path())
            .env("AWS_ENDPOINT_URL", address)
            .env("AWS_ACCESS_KEY_ID", "test")
            .env("AWS_SECRET_ACCESS_KEY", "test");
        passes(&mut test, address);
    }
}

/// The same program with keys that a server refuses.
#[test]
fn a_folder_that_may_not_be_read_is_refused_as_its_files_are() {
    if let Some(cache) = std::env::var_os("FIREBOX_TEST_S3_REFUSED") {
        let error = |url| fetch(url, Path::new(&cache), &config(), &Silent).unwrap_err();
        for url in ["s3://secret/a/", "s3://login/a/"] {
            let error = error(url);
            assert!(matches!(error, RemoteError::Refused { .. }), "{error:?}");
            let said = error.to_string();
            assert!(said.starts_with(&format!("`{url}` may not be read (401 or 403): set")));
        }
        let missing = error("s3://nobody/a/");
        assert!(matches!(missing, RemoteError::NotFound { .. }), "{missing:?}");
        return;
    }
    let server = Server::start(content(), ALL);
    let cache = tempfile::tempdir().unwrap();
    let mut test = Command::new(std::env::current_exe().unwrap());
    test.args(["--exact", "a_folder_that_may_not_be_read_is_refused_as_its_files_are"])
        .env("FIREBOX_TEST_S3_REFUSED", cache.path())
        .env("AWS_ENDPOINT_URL", server.url("").trim_end_matches('/'))
        .env("AWS_ACCESS_KEY_ID", "test")
        .env("AWS_SECRET_ACCESS_KEY", "test")
        .env("AWS_REGION", "us-east-1");
    passes(&mut test, "with keys that are refused");
}

const FILL: &str = "
client.create_bucket(Bucket='bars')
content = bytes(at * 31 % 251 for at in range(25500))
for name in ['deep/bars.csv', 'deep/more.csv', 'deep/_SUCCESS', 'deep/deeper/no.csv']:
    client.put_object(Bucket='bars', Key=name, Body=content)
# What a console leaves where it is asked for a new folder.
for name in ['deep/', 'made/']:
    client.put_object(Bucket='bars', Key=name, Body=b'')
";

/// Runs this test program again with the keys and the address of the server in its environment.
#[test]
fn s3_is_fetched_from_a_local_server() {
    if let Some(cache) = std::env::var_os("FIREBOX_TEST_S3_CACHE") {
        let cache = Path::new(&cache);
        assert_eq!(get("s3://bars/deep/bars.csv", cache).unwrap(), content());
        let files = fetch("s3://bars/deep/", cache, &config(), &Silent).unwrap();
        let names: Vec<_> = files.iter().map(|file| file.file_name().unwrap()).collect();
        assert_eq!(names, ["bars.csv", "more.csv"]);
        let offline = RemoteConfig { offline: true, ..config() };
        assert_eq!(fetch("s3://bars/deep/", cache, &offline, &Silent).unwrap(), files);
        // One that is gone is not left out in silence, nor is a folder of which only a file was fetched.
        fs::remove_dir_all(files[1].parent().unwrap()).unwrap();
        let gone = fetch("s3://bars/deep/", cache, &offline, &Silent).unwrap_err();
        assert!(gone.to_string().contains("deep/more.csv` has no whole copy"), "{gone}");
        let never = fetch("s3://bars/", cache, &offline, &Silent).unwrap_err();
        assert!(matches!(never, RemoteError::NoCopy { .. }), "{never:?}");
        let above = fetch("s3://bars/", cache, &config(), &Silent).unwrap_err();
        assert!(above.to_string().contains("there are folders alone in it"), "{above}");
        let made = fetch("s3://bars/made/", cache, &config(), &Silent).unwrap_err();
        assert!(matches!(made, RemoteError::NotFound { .. }), "{made:?}");
        let missing = get("s3://bars/none.csv", cache).unwrap_err();
        assert!(matches!(missing, RemoteError::NotFound { .. }), "{missing:?}");
        let missing = get("s3://nobody/none.csv", cache).unwrap_err();
        assert!(matches!(missing, RemoteError::NotFound { .. }), "{missing:?}");
        return;
    }
    if let Some(cache) = std::env::var_os("FIREBOX_TEST_S3_NOWHERE") {
        let error = get("s3://bars/deep/bars.csv", Path::new(&cache)).unwrap_err();
        assert!(error.to_string().contains("AWS_ENDPOINT_URL is no address"), "{error}");
        return;
    }
    let Some(server) = S3::start(FILL, &[""; 0]) else { return };
    let cache = tempfile::tempdir().unwrap();
    let mut test = server.test("s3_is_fetched_from_a_local_server");
    passes(test.env("FIREBOX_TEST_S3_CACHE", cache.path()), "with a server");
}
