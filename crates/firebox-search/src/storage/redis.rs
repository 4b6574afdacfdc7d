//! A journal on a Redis server, for workers that share no disk. Optuna's `JournalRedisBackend`.
//!
//! `PREFIX:log_number` is the number of the last entry, and `PREFIX:log:N` an entry. Optuna counts up
//! and stores in one step; here both happen in a transaction that fails if anybody wrote since the
//! last read. Snapshots, which are Python's pickles, are left alone. A cluster is not supported: it
//! has no such transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redis::{Client, Connection, RedisError, RedisResult};

use super::backend::{Backend, Batch, Seen};
use super::error::StorageError;

/// How long a server that does not answer is tried.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// How long one try may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The same of one that has never answered: its address may be wrong.
const FIRST_PATIENCE: Duration = Duration::from_secs(5);
/// How long a worker that was asked to stop keeps trying.
const STOPPED_PATIENCE: Duration = Duration::from_secs(3);
/// Pause before a server that only follows another is asked to store again.
const READ_ONLY_PAUSE: Duration = Duration::from_millis(200);
/// Entries that are asked for at once.
const CHUNK: u64 = 1000;

pub(super) struct RedisBackend {
    client: Client,
    server: String,
    prefix: String,
    patience: Duration,
    /// Whether it was tried for so long in vain: then it is not again, until it answers.
    gone: bool,
    /// Whether it has answered.
    reached: bool,
    /// Whether whoever waits should soon give up.
    stop: Arc<AtomicBool>,
    connection: Option<Connection>,
    /// Whether the number of the last entry is watched since the change began.
    watching: bool,
    applied: u64,
    seen: Seen,
    /// When the server first and last said that it stores nothing, as one does that follows another.
    refusing: Option<[Instant; 2]>,
}

impl RedisBackend {
    pub(super) fn open(url: &str, patience: Duration) -> Result<Self, StorageError> {
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
        let refuse = |reason: String| StorageError::Address { address: hidden(url), reason };
        let prefix = match query.split_once('=') {
            None if query.is_empty() => "",
            Some(("prefix", prefix)) => prefix,
            _ => return Err(refuse(format!("`?{query}` is not `?prefix=TEXT`"))),
        };
        if !["redis://", "unix://", "redis+unix://"].iter().any(|kind| address.starts_with(kind)) {
            return Err(refuse("only redis:// is known, without encryption".to_owned()));
        }
        let client = Client::open(address).map_err(|error| refuse(error.to_string()))?;
        let (prefix, server) = (prefix.to_owned(), hidden(url));
        Ok(Self {
            client,
            server,
            prefix,
            patience,
            gone: false,
            reached: false,
            stop: Arc::default(),
            connection: None,
            watching: false,
            applied: 0,
            seen: Seen::default(),
            refusing: None,
        })
    }

    fn key(&self, entry: u64) -> String {
        format!("{}:log:{entry}", self.prefix)
    }

    fn last(&self) -> String {
        format!("{}:log_number", self.prefix)
    }

    /// Entries without a number of the last of them, which an eviction may have taken, or which are another program's: what
    /// was stored would take their place.
    fn without_number(&self, number: Option<i64>, is_begun: bool) -> StorageError {
        let found =
            number.map_or_else(|| "is not there".to_owned(), |number| format!("is {number}"));
        StorageError::Damaged {
            place: format!("the journal of {}", self.server),
            reason: format!(
                "`{}`, the number of its last entry, {found}{}; if these are another program's keys, name a prefix of \
                 your own by ?prefix=TEXT",
                self.last(),
                if is_begun { format!(", and `{}` is there", self.key(0)) } else { String::new() }
            ),
        }
    }

    /// Asks the server, and again over a new connection while it does not answer.
    fn ask<T>(
        &mut self,
        mut question: impl FnMut(&mut Connection) -> RedisResult<T>,
    ) -> Result<T, StorageError> {
        let start = Instant::now();
        let mut pause = Duration::from_millis(50);
        loop {
            let error = match self.connected().and_then(&mut question) {
                Ok(answer) => {
                    (self.gone, self.reached) = (false, true);
                    return Ok(answer);
                }
                Err(error) => error,
            };
            self.disconnect();
            if !is_passing(&error) {
                return Err(self.failed(&error, start));
            }
            // It is back, and reads what it had stored.
            self.gone &= !is_loading(&error);
            self.reached |= is_loading(&error);
            if start.elapsed() + pause > self.patience() {
                self.gone = true;
                return Err(self.failed(&error, start));
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(Duration::from_secs(2));
        }
    }

    fn patience(&self) -> Duration {
        let patience = match (self.gone, self.stop.load(Ordering::SeqCst)) {
            (true, _) => Duration::ZERO,
            (false, true) => self.patience.min(STOPPED_PATIENCE),
            (false, false) => self.patience,
        };
        if self.reached { patience } else { patience.min(FIRST_PATIENCE) }
    }

    fn connected(&mut self) -> RedisResult<&mut Connection> {
        if self.connection.is_none() {
            let connection = self.client.get_connection_with_timeout(TIMEOUT)?;
            connection.set_read_timeout(Some(TIMEOUT))?;
            connection.set_write_timeout(Some(TIMEOUT))?;
            self.connection = Some(connection);
        }
        self.connection.as_mut().ok_or_else(|| {
            RedisError::from((redis::ErrorKind::Client, "the connection is not there"))
        })
    }

    /// A new connection watches nothing.
    fn disconnect(&mut self) {
        self.connection = None;
        self.watching = false;
    }

    fn failed(&self, error: &RedisError, start: Instant) -> StorageError {
        StorageError::Redis {
            server: self.server.clone(),
            reached: self.reached,
            seconds: start.elapsed().as_secs(),
            reason: error.to_string(),
        }
    }

    fn entries(&mut self, from: u64, to: u64) -> Result<Vec<Option<Vec<u8>>>, StorageError> {
        let keys: Vec<String> = (from..to).map(|entry| self.key(entry)).collect();
        self.ask(|connection| redis::cmd("MGET").arg(&keys).query(connection))
    }
}

impl Backend for RedisBackend {
    fn stop_with(&mut self, stop: &Arc<AtomicBool>) {
        self.stop = Arc::clone(stop);
    }

    fn begin(&mut self) -> Result<(), StorageError> {
        let last = self.last();
        self.ask(|connection| redis::cmd("WATCH").arg(&last).exec(connection))?;
        self.watching = true;
        Ok(())
    }

    fn read(&mut self) -> Result<Batch, StorageError> {
        // The last entry that was applied, or the first where none was.
        let known = self.applied.saturating_sub(1);
        let mut both = redis::pipe();
        // In this order: what others store meanwhile is no entry beyond the number. Not by MGET, for which keys of another
        // type are not there.
        both.cmd("GET").arg(self.key(known)).cmd("GET").arg(self.last());
        let (entry, number): (Option<Vec<u8>>, Option<i64>) =
            self.ask(|connection| both.query(connection))?;
        // Optuna begins with -1.
        let end = u64::try_from(i128::from(number.unwrap_or(-1)) + 1).ok();
        let sound = |end: &u64| match self.applied {
            0 => *end > 0 || entry.is_none(),
            applied => *end >= applied && entry.as_ref().is_some_and(|one| self.seen.is_last(one)),
        };
        let Some(end) = end.filter(sound) else {
            return Err(match self.applied {
                0 => self.without_number(number, entry.is_some()),
                _ => StorageError::Cut { journal: self.place(known) },
            });
        };
        let mut batch = Batch::new();
        let mut from = self.applied;
        self.seen.begin();
        while from < end {
            let to = end.min(from.saturating_add(CHUNK));
            for (entry, bytes) in (from..to).zip(self.entries(from, to)?) {
                let damaged = |reason: &str| StorageError::Damaged {
                    place: self.place(entry),
                    reason: reason.to_owned(),
                };
                let bytes = bytes.ok_or_else(|| damaged("it is not there"))?;
                let text = std::str::from_utf8(&bytes).map_err(|_| damaged("it is not text"))?;
                batch.extend(text.chars().map(|c| if c == '\n' { ' ' } else { c }));
                batch.push('\n');
                self.seen.read(&bytes);
            }
            from = to;
        }
        Ok(batch)
    }

    fn place(&self, entry: u64) -> String {
        format!("`{}` of {}", self.key(entry), self.server)
    }

    fn applied(&self) -> u64 {
        self.applied
    }

    fn advance(&mut self, entries: u64, _: u64) {
        self.applied += entries;
        self.seen.advance(entries);
    }

    fn commit(&mut self, lines: &[String], _: bool) -> Result<bool, StorageError> {
        if !self.watching {
            return Ok(false);
        }
        let mut all = redis::pipe();
        all.atomic();
        for (place, line) in lines.iter().enumerate() {
            all.cmd("SET").arg(self.key(self.applied + place as u64)).arg(line).ignore();
        }
        let number = self.applied + lines.len() as u64 - 1;
        all.cmd("SET").arg(self.last()).arg(number).ignore();
        let start = Instant::now();
        let stored = self.connected().and_then(|connection| all.query::<Option<()>>(connection));
        self.watching = false;
        let refusing = self.refusing.take();
        match stored {
            Ok(stored) => Ok(stored.is_some()),
            // It follows another, as while a cluster's guard changes the two, or has no room for more: it is asked again
            // for as long as one that does not answer.
            Err(error) if refuses_to_store(&error) => {
                let going_on = refusing.filter(|[_, last]| last.elapsed() < TIMEOUT);
                let since = going_on.map_or(start, |[since, _]| since);
                self.refusing = Some([since, Instant::now()]);
                self.disconnect();
                if since.elapsed() > self.patience() {
                    return Err(self.failed(&error, since));
                }
                std::thread::sleep(READ_ONLY_PAUSE);
                Ok(false)
            }
            Err(error) if is_passing(&error) => {
                // The answer was lost, and perhaps not the question: the entry tells.
                self.disconnect();
                let first = self.entries(self.applied, self.applied + 1)?;
                Ok(first.first().is_some_and(|entry| entry.as_deref() == Some(lines[0].as_bytes())))
            }
            Err(error) => Err(self.failed(&error, start)),
        }
    }

    fn end(&mut self) {
        if std::mem::take(&mut self.watching)
            && let Some(connection) = &mut self.connection
            && redis::cmd("UNWATCH").exec(connection).is_err()
        {
            self.disconnect();
        }
    }
}

/// Whether the server answers, and stores nothing for now: it only follows another (`READONLY`), its memory or its disk
/// is full (`OOM`, `MISCONF`), or too few follow it (`NOREPLICAS`). Of a transaction, it says so of each command.
fn refuses_to_store(error: &RedisError) -> bool {
    let all = error.clone().into_server_errors();
    let codes = ["READONLY", "OOM", "MISCONF", "NOREPLICAS"];
    all.is_some_and(|all| all.iter().any(|(_, error)| codes.contains(&error.code())))
}

/// Whether the server may well answer to another try.
fn is_passing(error: &RedisError) -> bool {
    use redis::{ErrorKind, ServerErrorKind};
    matches!(
        error.kind(),
        ErrorKind::Io
            | ErrorKind::Server(
                ServerErrorKind::BusyLoading
                    | ServerErrorKind::TryAgain
                    | ServerErrorKind::MasterDown
            )
    ) || error.is_connection_dropped()
        || error.is_timeout()
}

/// Whether the server answers, but not yet what it is asked.
fn is_loading(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(redis::ServerErrorKind::BusyLoading)
}

/// An address without its user and password. What follows the host may hold an `@` of its own.
pub(super) fn hidden(url: &str) -> String {
    let Some((kind, rest)) = url.split_once("://").filter(|(kind, _)| !kind.contains("unix"))
    else {
        return url.to_owned();
    };
    let (server, query) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
    let host = server.rsplit_once('@').map_or(server, |(_, host)| host);
    format!("{kind}://{host}{query}")
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// Answers every command of two connections as a server does that has just begun, and knows of no key
    /// after that.
    fn loading(listener: &TcpListener) {
        for (number, stream) in listener.incoming().enumerate() {
            let (mut stream, mut text) = (stream.unwrap(), [0; 4096]);
            let answer = if number < 2 { "-LOADING it reads its data\r\n" } else { "$-1\r\n" };
            while let Ok(count @ 1..) = stream.read(&mut text) {
                let commands = text[..count].iter().filter(|byte| **byte == b'*').count();
                let _ = stream.write_all(answer.repeat(commands).as_bytes());
            }
        }
    }

    #[test]
    fn a_server_that_is_back_and_reads_its_data_is_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || loading(&listener));
        let mut backend = RedisBackend::open(&url, Duration::from_secs(30)).unwrap();
        // It had stayed away for as long as it is waited for.
        backend.gone = true;
        let found = backend.ask(|c| redis::cmd("GET").arg("a").query::<Option<u64>>(c));
        assert_eq!(found.unwrap(), None);
        assert!(!backend.gone);
    }

    #[test]
    fn a_server_that_never_answers_is_not_waited_for_long_and_told_so() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut backend = RedisBackend::open(&format!("redis://{free}"), PATIENCE).unwrap();
        let start = Instant::now();
        let asked = backend.ask(|c| redis::cmd("GET").arg("a").query::<Option<u64>>(c));
        let said = asked.unwrap_err().to_string();
        assert!(start.elapsed() < 3 * FIRST_PATIENCE);
        assert!(said.contains("not answered once") && !said.contains("safe there"), "{said}");
        backend.reached = true;
        backend.gone = true;
        let asked = backend.ask(|c| redis::cmd("GET").arg("a").query::<Option<u64>>(c));
        assert!(asked.unwrap_err().to_string().contains("what was stored is safe there"));
    }

    #[test]
    fn an_address_is_shown_without_its_password_and_with_its_prefix() {
        for (url, shown) in [
            ("redis://host:1/0", "redis://host:1/0"),
            ("redis://:secret@host:1/0", "redis://host:1/0"),
            ("redis://me:se@cret@host/0?prefix=a@b", "redis://host/0?prefix=a@b"),
            ("redis://host/0?prefix=a@b", "redis://host/0?prefix=a@b"),
            ("rediss://me:secret@host:1/0", "rediss://host:1/0"),
            ("unix://a@b.socket", "unix://a@b.socket"),
            ("study@home/study.log", "study@home/study.log"),
        ] {
            assert_eq!(hidden(url), shown);
        }
    }
}
